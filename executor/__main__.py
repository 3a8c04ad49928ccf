"""`python -m executor`."""

from executor.frontends.cli import main

if __name__ == "__main__":
    main()
