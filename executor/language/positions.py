"""Places in a text as people count them, and as the protocol of language servers does. Pure.

People count lines as `read_file` numbers them, each ended by a line feed, and characters of
Unicode. The protocol ends a line at a lone carriage return, too, and counts units of an encoding.
So a place is turned into an offset in the whole text and back, never a line into a line.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from functools import partial
from itertools import accumulate
from typing import Literal, TypeAlias

from executor.results import counted

Encoding: TypeAlias = Literal["utf-8", "utf-16", "utf-32"]
"""In what the protocol's `character` is counted: bytes, pairs of bytes, characters."""

_BLOCK = 64
"""Characters between two entries of a table of units."""
_WORD, _WORD_BEFORE = re.compile(r"\w*"), re.compile(r"\w+\Z")
_MOST_WORD = 200
"""Characters of a word that are looked at before a place, and behind it."""
_CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2)}
"""Encoding → the codec, and how many bytes a unit has. Of UTF-32 a unit is a character."""


class NoPosition(ValueError):
    """A file has no such place; says what it has, for the model."""


class Text:
    """A file's text, as people and the protocol count in it.

    Making one costs nothing; what it takes to count is made once, when it is first needed, which
    may take a second for a text of megabytes (see `prepare`).

    Args:
        text: all of it, without a byte order mark.

    Attributes:
        content: the text.
    """

    def __init__(self, text: str) -> None:
        self.content = text
        self._is_ascii = text.isascii()
        self._lines: array[int] | None = None
        self._protocol_lines: array[int] | None = None
        self._units: dict[Encoding, array[int]] = {}

    def prepare(self, encoding: Encoding) -> None:
        """Make now what it takes to count, for example in a thread; then all else is quick."""
        self.place(0, 1, encoding)

    # ─── as people count ───

    def line(self, number: int) -> str:
        """A line, counted from 1, without its end; empty beyond the last one."""
        return self.content[slice(*self.bounds(number))]

    def word(self, line: int, column: int) -> str:
        """The word at a place, or that ends there; empty = there is none. Of a long one a part."""
        start, end = self.bounds(line)
        at = min(start + column - 1, end)
        before = _WORD_BEFORE.search(self.content, max(start, at - _MOST_WORD), at)
        behind = _WORD.match(self.content, at, min(end, at + _MOST_WORD))
        return f"{before[0] if before else ''}{behind[0] if behind else ''}"

    def located(self, offset: int) -> tuple[int, int]:
        """An offset in the content → line and column, counted from 1."""
        starts = self._starts()
        number = bisect_right(starts, offset)
        return number, offset - starts[number - 1] + 1

    def bounds(self, number: int) -> tuple[int, int]:
        """Offsets of where a line, counted from 1, begins and where its end does."""
        starts = self._starts()
        if not 1 <= number <= len(starts):
            return 0, 0
        start = starts[number - 1]
        if number == len(starts):
            return start, len(self.content)
        end = starts[number] - 1
        return start, end - (end > start and self.content[end - 1] == "\r")

    def _starts(self) -> array[int]:
        """Where the lines begin. The last may be empty: behind the last line feed."""
        if self._lines is None:
            self._lines = _starts(self.content)
        return self._lines

    # ─── as the protocol counts ───

    def position(self, line: int, column: int, encoding: Encoding) -> dict[str, int]:
        """A place as people count it → as the protocol does.

        Args:
            line: counted from 1.
            column: counted from 1; one more than the line has characters is its end.
            encoding: in whose units the server counts.

        Raises:
            NoPosition: there is no such line, or no such column in it.
        """
        count = len(self._starts())
        if not 1 <= line <= count:
            shown = count - (not self.content[self._starts()[-1] :])  # as `read_file` counts
            raise NoPosition(f"There is no line {line}: the file has {counted(shown, 'line')}.")
        start, end = self.bounds(line)
        if not 1 <= column <= end - start + 1:
            raise NoPosition(
                f"There is no column {column} in line {line}: it has "
                f"{counted(end - start, 'character')}, and its end is column {end - start + 1}."
            )
        offset = start + column - 1
        starts = self._protocol_starts()
        number = bisect_right(starts, offset) - 1
        before = partial(self._before, encoding)
        return {"line": number, "character": before(offset) - before(starts[number])}

    def place(self, line: int, character: int, encoding: Encoding) -> tuple[int, int]:
        """A place as the protocol counts it → line and column as people do, from 1.

        Args:
            line, character: whatever a server sent. What is beyond a line means its end, and
                what is beyond the text the text's; what is inside a character means its start.
            encoding: in whose units the server counts.
        """
        return self.located(self.offset(line, character, encoding))

    def offset(self, line: int, character: int, encoding: Encoding) -> int:
        """The same → an offset in the content."""
        starts = self._protocol_starts()
        if line >= len(starts):
            return len(self.content)
        start, end = self._protocol_bounds(starts, line) if line >= 0 else (0, 0)
        character = max(character, 0)
        if self._is_ascii or encoding == "utf-32":
            return min(start + character, end)
        before = partial(self._before, encoding)
        wanted = before(start) + character
        return start + bisect_right(range(start, end + 1), wanted, key=before) - 1

    def _protocol_starts(self) -> array[int]:
        if self._protocol_lines is None:
            text = self.content
            if "\r" in text:
                # Each end of a line becomes one line feed, and no character moves.
                text = text.replace("\r\n", " \n").replace("\r", "\n")
                self._protocol_lines = _starts(text)
            else:
                self._protocol_lines = self._starts()
        return self._protocol_lines

    def _protocol_bounds(self, starts: array[int], line: int) -> tuple[int, int]:
        start = starts[line]
        if line + 1 == len(starts):
            return start, len(self.content)
        end = starts[line + 1] - 1
        return start, end - (end > start and self.content[end - 1 : end + 1] == "\r\n")

    def _before(self, encoding: Encoding, offset: int) -> int:
        """How many units there are before an offset."""
        if self._is_ascii or encoding == "utf-32":
            return offset
        if encoding not in self._units:
            self._units[encoding] = _units(self.content, encoding)
        block = offset // _BLOCK
        rest = self.content[block * _BLOCK : offset]
        return self._units[encoding][block] + _size(rest, encoding)


def _starts(text: str) -> array[int]:
    """Where the lines begin that line feeds end."""
    lines = text.split("\n")
    lines.pop()
    return array("I", accumulate((len(line) + 1 for line in lines), initial=0))


def _units(text: str, encoding: Encoding) -> array[int]:
    """How many units there are before each block."""
    blocks = (text[at : at + _BLOCK] for at in range(0, len(text), _BLOCK))
    sizes = (_size(block, encoding) for block in blocks)
    return array("I", accumulate(sizes, initial=0))


def _size(text: str, encoding: Encoding) -> int:
    codec, width = _CODECS[encoding]
    return len(text.encode(codec, "surrogatepass")) // width
