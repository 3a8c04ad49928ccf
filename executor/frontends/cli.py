"""The console script: hears signals first, then loads the commands, which takes a while."""

from __future__ import annotations

from executor.frontends.signals import HEARD


def main() -> None:
    """Run the command line of this process."""
    HEARD.hear()
    from executor.frontends.commands import app

    app()


if __name__ == "__main__":
    main()
