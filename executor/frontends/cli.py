"""The console script: hears signals first, then loads the commands, which takes a while."""

from __future__ import annotations

import io
import os
import sys

from executor.frontends.signals import HEARD


def main() -> None:
    """Run the command line of this process."""
    HEARD.hear()
    _complete_streams()
    from executor.frontends.commands import app
    from executor.frontends.running import enter

    enter(app)


def _complete_streams() -> None:
    """Open those standard streams that whoever started this has closed.

    Their numbers would be given to what is opened next, a socket of the engine perhaps. There
    is nothing on such a stdin and nobody at such a stderr. A write to such a stdout fails:
    results are not lost in silence.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            errors = "strict" if name == "stdin" else "backslashreplace"
            stream = os.fdopen(number, mode, encoding="utf-8", errors=errors, closefd=False)
            setattr(sys, name, stream)
    # A glyph that the locale does not know must not end a command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
