"""Bytes of text files, without input or output: lines to show, and replacements.

Everything works on bytes, so that what is not asked about never changes: line ends,
byte order marks, bytes that are not valid UTF-8.
"""

from __future__ import annotations

import codecs
from itertools import islice

from .operation import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .operation import Reply

BOM = codecs.BOM_UTF8
HEAD = 8192
"""Bytes at the start of a file that decide whether it is text."""

_CONTINUATION = bytes(range(0x80, 0xC0))
_SPACE = b" \t\r\n\f\v"
_HINT_BYTES = 512 << 10
_MAX_SLOW_PLACES = 100_000
_MAX_PLACES = 20


class Window:
    """The part of a file to show.

    Args:
        first: number of the first line, from 1.
        limit: lines.
        max_bytes: bytes in all; at least one line is shown whatever its size.
        line_chars: characters of one line.

    Raises:
        Failure: INVALID_ARGUMENTS, one of them is less than 1.
    """

    __slots__ = ("first", "limit", "line_chars", "max_bytes")

    def __init__(self, first: int, limit: int, max_bytes: int, line_chars: int) -> None:
        if min(first, limit, max_bytes, line_chars) < 1:
            raise Failure("INVALID_ARGUMENTS", "offset and limit count lines and start at 1.")
        self.first = first
        self.limit = limit
        self.max_bytes = max_bytes
        self.line_chars = line_chars


# ─── what kind of bytes ─────────────────────────────────────────────────────────────


def media_type(head: bytes) -> str | None:
    """The type of an image or PDF by its first bytes; None for anything else."""
    if head.startswith(b"%PDF-"):
        return "application/pdf"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if b"\0" in head or not is_utf8(head):
        if head.startswith((b"GIF87a", b"GIF89a")):
            return "image/gif"
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return "image/webp"
    return None


def is_utf8(data: bytes) -> bool:
    """Is it valid UTF-8, but for a character that may be cut at the end?"""
    if data.isascii():
        return True
    try:
        codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return False
    return True


class Utf8:
    """Whether bytes that come in pieces are valid UTF-8."""

    def __init__(self) -> None:
        self._rest = b""
        self._valid = True

    def feed(self, piece: bytes) -> None:
        """Look at the next piece."""
        if not self._valid or (not self._rest and piece.isascii()):
            return
        data = self._rest + piece
        try:
            _, used = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError:
            self._valid = False
        else:
            self._rest = data[used:]

    def finish(self, *, ended: bool) -> bool:
        """The answer; `ended`: no character may go on after the last piece."""
        return self._valid and not (ended and self._rest)


def from_utf16(data: bytes) -> bytes | None:
    """The text of a UTF-16 file as UTF-8, without its mark; None if it is no such file."""
    codec = utf16_codec(data)
    if codec is None:
        return None
    try:
        return data[2:].decode(codec, "surrogatepass").encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None


def to_utf16(text: bytes, codec: str, mark: bytes) -> bytes:
    """The inverse of `from_utf16`."""
    return mark + text.decode("utf-8", "surrogatepass").encode(codec, "surrogatepass")


def utf16_codec(head: bytes) -> str | None:
    """The encoding that a byte order mark names, if it is a UTF-16 one."""
    if head.startswith(codecs.BOM_UTF16_LE) and not head.startswith(codecs.BOM_UTF32_LE):
        return "utf-16-le"
    return "utf-16-be" if head.startswith(codecs.BOM_UTF16_BE) else None


def characters(line: bytes) -> int:
    """Number of characters in UTF-8 text; at least a quarter of the bytes in what is none."""
    return max(leading_bytes(line), (len(line) + 3) // 4)


def leading_bytes(piece: bytes) -> int:
    """How many bytes of UTF-8 text begin a character; may be summed up over pieces."""
    if piece.isascii():
        return len(piece)
    return len(piece.translate(None, _CONTINUATION))


def clip(line: bytes, count: int) -> bytes:
    """The first `count` characters; bytes that are not UTF-8 stay as they are."""
    text = line[: 4 * count].decode("utf-8", "surrogateescape")[:count]
    return text.encode("utf-8", "surrogateescape")


# ─── lines to show ──────────────────────────────────────────────────────────────────


def show(text: bytes, window: Window) -> Reply:
    """The lines of `window` out of a whole text in memory, and the fields about them."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if window.first == 1 and len(text) <= window.max_bytes:
        total = text.count(b"\n") + (text[-1:] not in (b"\n", b""))
        if total <= window.limit and _has_short_lines(text, window.line_chars):
            return _reply(window, total, total, None, []), text.removesuffix(b"\n")
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    total = len(lines)
    start = window.first - 1
    chosen = lines[start : start + window.limit] if start or total > window.limit else lines
    clipped: list[list[int | None]] = []
    if chosen and len(text) > window.line_chars and max(map(len, chosen)) > window.line_chars:
        clipped = _clip_lines(chosen, window)
    cut_by = "limit" if start + len(chosen) < total and chosen else None
    data = b"\n".join(chosen)
    if len(data) > window.max_bytes:
        kept = _count_within(chosen, window.max_bytes)
        if kept < len(chosen):
            cut_by = "bytes"
            chosen = chosen[:kept]
            clipped = [entry for entry in clipped if (entry[0] or 0) < window.first + kept]
            data = b"\n".join(chosen)
    return _reply(window, len(chosen), total, cut_by, clipped), data


def _has_short_lines(text: bytes, most: int) -> bool:
    """Has every line at most `most` bytes? Looks at a few places only."""
    start, end = 0, len(text)
    while end - start > most:
        start = text.rfind(b"\n", start, start + most + 1) + 1
        if not start:
            return False
    return True


def _reply(
    window: Window,
    lines: int,
    total: int | None,
    cut_by: str | None,
    clipped: list[list[int | None]],
) -> dict[str, Any]:
    more = cut_by is not None
    return {
        "first": window.first,
        "lines": lines,
        "total_lines": total,
        "more": more,
        "cut_by": cut_by,
        "clipped": clipped,
        "whole": window.first == 1 and not more and not clipped,
    }


def _clip_lines(lines: list[bytes], window: Window) -> list[list[int | None]]:
    clipped: list[list[int | None]] = []
    for index, line in enumerate(lines):
        if len(line) > window.line_chars:
            count = characters(line)
            if count > window.line_chars:
                lines[index] = clip(line, window.line_chars)
                clipped.append([window.first + index, count])
    return clipped


def _count_within(lines: list[bytes], max_bytes: int) -> int:
    """How many of the lines fit; at least one."""
    size = -1
    for index, line in enumerate(lines):
        size += len(line) + 1
        if size > max_bytes:
            return max(index, 1)
    return len(lines)


class Lines:
    """The lines of `window` out of a text that comes in pieces; holds no more than those.

    Attributes:
        full: no further line will be taken.
        open_bytes: bytes seen so far of a line that is taken and not yet at its end.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._lines: list[bytes] = []
        self._clipped: list[list[int | None]] = []
        self._size = -1
        self._newlines = 0
        self._ended = True
        self._more = False
        self._cut_by: str | None = None
        self._prefix = bytearray()
        self._leading = 0
        self._tail = b""
        self.open_bytes = 0
        self.full = False

    @property
    def skipping(self) -> bool:
        """The first line of the window is not reached yet."""
        return self._newlines < self._window.first - 1

    @property
    def certain(self) -> bool:
        """The window is full, and whether more lines follow it is known."""
        return self.full and self._more

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the text; it is not empty."""
        to_skip = self._window.first - 1 - self._newlines
        count = piece.count(b"\n")
        self._newlines += count
        self._ended = piece.endswith(b"\n")
        if count < to_skip:
            return
        if to_skip > 0:
            piece = piece.split(b"\n", to_skip)[-1]
        for part, ended in _parts(piece, self._window.limit - len(self._lines)):
            if self.full:
                self._more = self._more or bool(part) or ended
                return
            self._extend(part)
            if ended:
                self._end_line(newline=True)

    def _extend(self, part: bytes) -> None:
        room = 4 * self._window.line_chars + 1 - len(self._prefix)
        if room > 0:
            self._prefix += part[:room]
        self.open_bytes += len(part)
        self._leading += leading_bytes(part)
        self._tail = part[-1:] or self._tail

    def _end_line(self, *, newline: bool) -> None:
        line = bytes(self._prefix)
        carriage = newline and self._tail == b"\r"
        if carriage and len(line) == self.open_bytes:
            line = line[:-1]
        count = max(self._leading - carriage, (self.open_bytes - carriage + 3) // 4)
        self._prefix.clear()
        self._tail = b""
        self.open_bytes = self._leading = 0
        self._take(line, count)

    def _take(self, line: bytes, count: int | None) -> None:
        window = self._window
        long = count is None or count > window.line_chars
        if long:
            line = clip(line, window.line_chars)
        if self._lines and self._size + len(line) + 1 > window.max_bytes:
            self._cut_by, self.full, self._more = "bytes", True, True
            return
        if long:
            self._clipped.append([window.first + len(self._lines), count])
        self._lines.append(line)
        self._size += len(line) + 1
        self.full = len(self._lines) == window.limit

    def give_up_line(self) -> None:
        """Take the open line as it is; how long it is stays unknown."""
        self._take(bytes(self._prefix), None)
        self.full = self._more = True

    def finish(self, *, ended: bool) -> Reply:
        """The result. `ended`: every byte of the text was fed."""
        if ended and self.open_bytes and not self.full:
            self._end_line(newline=False)
        total = self._newlines + (not self._ended) if ended else None
        cut_by = self._cut_by or ("limit" if self._more else None)
        reply = _reply(self._window, len(self._lines), total, cut_by, self._clipped)
        return reply, b"\n".join(self._lines)


def _parts(piece: bytes, limit: int) -> Iterator[tuple[bytes, bool]]:
    """The first `limit` lines of a piece and then the rest, each with: did it end?"""
    parts = piece.split(b"\n", limit)
    last = parts.pop()
    for part in parts:
        yield part, True
    yield last, False


# ─── replacing ──────────────────────────────────────────────────────────────────────


class Edited:
    """A text after replacing.

    Args:
        text: the whole text.
        replacements: how many places were replaced.
        first_line: number of the line in which the first of them begins.
    """

    __slots__ = ("first_line", "replacements", "text")

    def __init__(self, text: bytes, replacements: int, first_line: int) -> None:
        self.text = text
        self.replacements = replacements
        self.first_line = first_line


def replace(text: bytes, old: bytes, new: bytes, *, everywhere: bool) -> Edited:
    """Replace `old` by `new`. Line ends of either kind match, and those of the place stay.

    Raises:
        Failure: nothing to find, nothing found, found more than once, or no change.
    """
    if text.startswith(BOM):
        # The mark belongs to the file: it is neither found, doubled nor removed.
        edited = _replace(
            text[3:], old.removeprefix(BOM), new.removeprefix(BOM), everywhere=everywhere
        )
        edited.text = BOM + edited.text
        return edited
    return _replace(text, old, new, everywhere=everywhere)


def require_old(old: bytes) -> None:
    """Refuse to look for nothing.

    Raises:
        Failure: INVALID_ARGUMENTS.
    """
    if not old:
        raise Failure(
            "INVALID_ARGUMENTS",
            "old_string is empty. Give the text to replace; use write_file to make a file.",
        )


def _replace(text: bytes, old: bytes, new: bytes, *, everywhere: bool) -> Edited:
    require_old(old)
    needle, exact = _needle(text, old)
    count = text.count(needle) if needle is not None else _bare(text).count(_bare(old))
    if not count:
        raise Failure("NO_MATCH", NOT_FOUND + _hint(text, old))
    if count > 1 and not everywhere:
        raise _ambiguous(text, _places(text, old, needle), count)
    literal = exact and b"\r\n" in old and old != new and _bare(old) == _bare(new)
    put = new if literal else _put_everywhere(text, new)
    if put is not None and needle is not None and not put.startswith(BOM):
        first = text.find(needle)
        result = text.replace(needle, put)
    else:
        if count > _MAX_SLOW_PLACES:
            raise Failure(
                "TOO_LARGE",
                f"old_string found {count} times in a file with mixed line ends; at most "
                f"{_MAX_SLOW_PLACES} can be replaced at once. Use run_command with sed.",
            )
        first, result = _replace_each(text, _places(text, old, needle), put, new)
    if result == text:
        raise Failure(
            "INVALID_ARGUMENTS",
            "no change: old_string and new_string are the same"
            + ("." if old == new else " but for line ends, which stay as they are in the file."),
        )
    return Edited(result, count, 1 + text.count(b"\n", 0, first))


NOT_FOUND = "old_string not found in file. Make sure it matches exactly including whitespace."


def _bare(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n")


def _needle(text: bytes, old: bytes) -> tuple[bytes | None, bool]:
    """The bytes to search for, if the same everywhere; and: is that `old` byte for byte?"""
    if b"\n" not in old:
        return old, True
    if b"\r\n" in old and not old.startswith(b"\n") and old in text:
        return old, True
    bare = _bare(old)
    pairs = text.count(b"\r\n")
    if pairs == 0:
        return bare, False
    if pairs == text.count(b"\n"):
        return bare.replace(b"\n", b"\r\n"), False
    return None, False


def _put_everywhere(text: bytes, new: bytes) -> bytes | None:
    """What to put in every place alike; None if that depends on the place."""
    lines = text.count(b"\n")
    if b"\n" not in new or not lines:
        return new
    pairs = text.count(b"\r\n")
    if pairs not in (0, lines):
        return None
    return _bare(new).replace(b"\n", b"\r\n") if pairs else _bare(new)


def _places(text: bytes, old: bytes, needle: bytes | None) -> Iterator[tuple[int, int]]:
    """Where `old` is, as start and end, from left to right without overlaps."""
    if needle is not None:
        return _occurrences(text, needle)
    return _in_original(text, _occurrences(_bare(text), _bare(old)))


def _replace_each(
    text: bytes, places: Iterator[tuple[int, int]], put: bytes | None, new: bytes
) -> tuple[int, bytes]:
    """The first place, and the text with each place replaced in its own way."""
    pieces: list[bytes] = []
    first = -1
    end = 0
    for start, stop in places:
        first = start if first < 0 else first
        here = _with_line_ends(text, start, stop, new) if put is None else put
        pieces += (text[end:start], here if start else here.removeprefix(BOM))
        end = stop
    pieces.append(text[end:])
    return first, b"".join(pieces)


def _occurrences(text: bytes, old: bytes) -> Iterator[tuple[int, int]]:
    start = text.find(old)
    while start >= 0:
        end = start + len(old)
        yield start, end
        start = text.find(old, end)


def _in_original(text: bytes, places: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Places in `_bare(text)` → places in `text`."""
    at = bare_at = 0
    for start, end in places:
        first = _forward(text, at, start - bare_at)
        at = _forward(text, first, end - start)
        bare_at = end
        yield first, at


def _forward(text: bytes, start: int, distance: int) -> int:
    """The position `distance` bytes after `start`, where CR LF counts as one byte."""
    end = start + distance
    while True:
        reached = start + distance + text.count(b"\r\n", start, end)
        if reached == end:
            break
        end = reached
    split = end > start and text[end - 1 : end + 1] == b"\r\n"
    return end + 1 if split else end


def _with_line_ends(text: bytes, start: int, end: int, new: bytes) -> bytes:
    """`new` with the line ends of the place that it replaces."""
    if b"\n" not in new:
        return new
    place = text[start:end]
    bare = _bare(new)
    pairs = place.count(b"\r\n")
    if b"\n" not in place:
        near = _line_end_near(text, start, end)
        return new if near is None else bare.replace(b"\n", near)
    if pairs in (0, place.count(b"\n")):
        return bare.replace(b"\n", b"\r\n") if pairs else bare
    return _with_mixed_line_ends(place, bare)


def _line_end_near(text: bytes, start: int, end: int) -> bytes | None:
    """How the line of this place ends, or else the line before it; None if there is no other."""
    at = text.find(b"\n", end)
    if at < 0:
        at = text.rfind(b"\n", 0, start)
    if at < 0:
        return None
    return b"\r\n" if at > 0 and text[at - 1 : at] == b"\r" else b"\n"


def _with_mixed_line_ends(place: bytes, bare: bytes) -> bytes:
    """Lines that stay keep their own end, a changed line takes that of the line it replaces."""
    old_lines = place.split(b"\n")
    ends = [b"\r\n" if line.endswith(b"\r") else b"\n" for line in old_lines[:-1]]
    old_lines = [*(line.removesuffix(b"\r") for line in old_lines[:-1]), old_lines[-1]]
    new_lines = bare.split(b"\n")
    shift = len(old_lines) - len(new_lines)
    shared = min(len(old_lines), len(new_lines))
    same_start = 0
    while same_start < shared and old_lines[same_start] == new_lines[same_start]:
        same_start += 1
    same_end = 0
    while same_end < shared - same_start and old_lines[-1 - same_end] == new_lines[-1 - same_end]:
        same_end += 1
    last_changed = max(same_start, len(old_lines) - same_end) - 1
    last_changed = min(max(last_changed, 0), len(ends) - 1)
    result = [new_lines[0]]
    for index, line in enumerate(new_lines[1:]):
        kept = index >= len(new_lines) - same_end
        result += (ends[index + shift if kept else min(index, last_changed)], line)
    return b"".join(result)


def _ambiguous(text: bytes, places: Iterator[tuple[int, int]], count: int) -> Failure:
    numbers: list[int] = []
    line, at = 1, 0
    for start, _ in islice(places, _MAX_PLACES):
        line += text.count(b"\n", at, start)
        at = start
        numbers.append(line)
    listed = ", ".join(map(str, numbers)) + (", …" if count > _MAX_PLACES else "")
    return Failure(
        "AMBIGUOUS",
        f"old_string found {count} times (lines {listed}). "
        "Use replace_all=true or provide more context.",
        {"count": count, "lines": numbers},
    )


# ─── what may have been meant ───────────────────────────────────────────────────────


def _hint(text: bytes, old: bytes) -> str:
    """A sentence that helps to find what was meant, or nothing."""
    if len(text) > _HINT_BYTES or len(old) > _HINT_BYTES:
        return ""
    return _spacing_hint(text, old) or _number_hint(old) or _line_hint(text, old)


def _spacing_hint(text: bytes, old: bytes) -> str:
    packed = old.translate(None, _SPACE)
    at = text.translate(None, _SPACE).find(packed) if packed else -1
    if at < 0:
        return ""
    for number, line in enumerate(text.split(b"\n"), 1):
        at -= len(line.translate(None, _SPACE))
        if at < 0:
            return (
                f" The nearest text differs only in whitespace: line {number} is {_quoted(line)}."
            )
    return ""


def _number_hint(old: bytes) -> str:
    """Was the text copied together with the line numbers that reading shows?"""
    for line in old.split(b"\n"):
        digits, bar, _ = line.decode("utf-8", "replace").lstrip().partition("│")
        if not bar:
            digits, bar, _ = digits.partition("→")
        if not bar or not digits.isdigit():
            return ""
    return " It holds line numbers; leave out the number and the bar in front of each line."


def _line_hint(text: bytes, old: bytes) -> str:
    """Which line of the file is one of the lines looked for?"""
    for line in sorted({line.strip() for line in old.split(b"\n")}, key=len, reverse=True)[:50]:
        at = text.find(line) if len(line) > 3 else -1
        if at >= 0:
            number = 1 + text.count(b"\n", 0, at)
            return f" A part of it is at line {number}: {_quoted(line)}; the text around differs."
    return ""


def _quoted(line: bytes) -> str:
    text = line.removesuffix(b"\r").decode("utf-8", "replace")
    return repr(text if len(text) <= 200 else text[:200] + "…")
