"""What a program with these arguments does, as far as tables know it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from executor.shell.values import Word


@dataclass(frozen=True, slots=True)
class Argv:
    """A command that a wrapper runs.

    Attributes:
        words: of it.
        directory: where it is run; None = in the wrapper's own.
        is_sure: false for the best guess.
    """

    words: tuple[Word, ...]
    directory: Word | None = None
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class Text:
    """A text that a wrapper gives to a shell.

    Attributes:
        text: None = can't be known.
        posix: the shell may be another than bash.
        here: it is run by the shell itself, which keeps its working directory.
    """

    text: str | None
    posix: bool = False
    here: bool = False


Runs = Argv | Text


@dataclass(frozen=True, slots=True)
class Effect:
    """What one command does by itself, without what it runs.

    Attributes:
        reads, lists, writes: operands whose contents are read, of which names or states are
            seen, which are written or deleted. None = anything.
        is_read_only: it changes nothing.
        runs: commands and texts that it runs.
    """

    reads: tuple[Word, ...] | None = ()
    lists: tuple[Word, ...] = ()
    writes: tuple[Word, ...] | None = ()
    is_read_only: bool = False
    runs: tuple[Runs, ...] = ()

    def but_unsure(self) -> Effect:
        """The same of a command whose options are not all known."""
        return replace(self, reads=None, writes=None, is_read_only=False)


ANYTHING = Effect(reads=None, writes=None)
"""Of a program that is not known."""
HARMLESS = Effect(is_read_only=True)
"""Reads no file and changes none."""
