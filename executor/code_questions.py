"""What is asked about a project's code, and what is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Operation: TypeAlias = Literal[
    "goto_definition",
    "hover",
    "find_references",
    "diagnostics",
    "document_symbols",
    "rename_preview",
]

MOST_SPOTS = 200
"""Places that an answer shows (decisions, row 85)."""


@dataclass(frozen=True, slots=True)
class CodeQuestion:
    """One question about a file.

    Attributes:
        operation: what is asked.
        path: of the file, as `Context.path` gives it.
        line: counted from 1, as `read_file` counts lines; None = the operation has no position.
        column: of a Unicode character in the line, counted from 1; one more than the line has is
            its end. None = the operation has no position.
        new_name: that `rename_preview` would give.
    """

    operation: Operation
    path: str
    line: int | None = None
    column: int | None = None
    new_name: str | None = None


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a file of the box.

    Attributes:
        path: as tools name it: below the worktree without a leading slash, elsewhere absolute.
            Of what is no file of the box, its URI.
        line, column, end_line, end_column: counted from 1, in Unicode characters; the end is the
            first character behind it.
        text: the line there, or what is said of the place; empty = it can't be read.
        is_file: it is one of the box.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str = ""
    is_file: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """An answer.

    Attributes:
        server: program that gave it.
        spots: places, in the order in which they are shown; at most `MOST_SPOTS`.
        total: how many there were.
        hidden: of these, how many lie where the loop's rules let it read nothing.
        text: of `hover`; None = there was nothing to be said, or it was not asked.
        notes: what a reader has to know of the answer, for example that the server still reads
            the project.
    """

    server: str
    spots: tuple[Spot, ...] = ()
    total: int = 0
    hidden: int = 0
    text: str | None = None
    notes: tuple[str, ...] = ()
