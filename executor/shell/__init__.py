"""What a shell command line runs, reads and writes, from a parse. Pure.

What can't be told for sure is not understood, and whoever asks has to ask a person. The
rules on commands are advice, though, and the box is the wall: a program does what it wants.
"""

from __future__ import annotations

from functools import lru_cache

from executor.model import MOUNT
from executor.shell.values import Paths, Script, Simple, installed_program, program_of
from executor.shell.walk import analysed

__all__ = ["Paths", "Script", "Simple", "analyse", "installed_program", "program_of"]

HOME = "/home/sandbox"
"""Where `~` leads in the box, unless the loop's own variables say something else."""


@lru_cache(maxsize=256)
def analyse(text: str, cwd: str = MOUNT, home: str | None = HOME, *, posix: bool = False) -> Script:
    """What a command line runs, reads and writes.

    Args:
        text: as it will be given to `bash -c`; bytes that are no UTF-8 as lone surrogates.
        cwd: where it will be run, absolute, as seen in the box.
        home: what HOME will be; None = not known.
        posix: it will be given to another shell than bash: what only bash knows is not
            understood.
    """
    analysis = analysed(text, cwd, home, posix=posix)
    return Script.of(
        analysis.commands,
        analysis.fault,
        changes_directory=analysis.moves,
        spelt=frozenset(analysis.spelt),
    )
