"""Events that a server sends over HTTP, each of them bounded before anybody reads it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from executor.foreign.bounds import MAX_LINE, MAX_PARTS, TooMuch, require_few_parts

SOONEST, LATEST = 100, 60_000
"""Milliseconds between which a server may say when it is asked again."""
# A carriage return at the end may be half of a line's end.
_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)
_RETRY = b"retry:"


class Broken(Exception):
    """An answer that is read no further; with the reason."""


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The events of a stream, each as a whole with the empty line after it.

    Args:
        pieces: of the stream, cut anywhere.

    Raises:
        Broken: one is too large.
    """
    event: list[bytes] = []
    size = 0
    async for line in _lines(pieces):
        size += len(line) + 1
        event.append(_timely(line))
        if size > MAX_LINE:
            raise Broken(_too_large())
        if len(event) > MAX_PARTS:
            raise Broken(f"its answer has an event of more than {MAX_PARTS} lines")
        if not line:
            yield _checked(event)
            event, size = [], 0
    if event:
        yield _checked(event)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        if len(rest) > MAX_LINE:
            raise Broken(_too_large())
        new = rest[-len(piece) - 1 :]
        if b"\n" in new or b"\r" in new:
            *lines, last = _END.split(bytes(rest))
            rest = bytearray(last)
            for line in lines:
                yield line
    if rest:
        yield bytes(rest.rstrip(b"\r"))


def _too_large() -> str:
    return f"its answer has an event of more than {MAX_LINE} bytes"


def _checked(event: list[bytes]) -> bytes:
    data = b"\n".join(event) + b"\n"
    try:
        require_few_parts(data)
    except TooMuch as error:
        raise Broken(str(error)) from error
    return data


def _timely(line: bytes) -> bytes:
    """A line; where it says when to ask again, neither at once nor never."""
    if not line.startswith(_RETRY):
        return line
    number = line.removeprefix(_RETRY).strip()
    if not number.isdigit():
        return line
    asked = int(number) if len(number) <= 12 else LATEST
    return _RETRY + b" %d" % min(max(asked, SOONEST), LATEST)
