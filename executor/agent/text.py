"""Bytes of text files, without input or output: lines to show, and replacements.

Everything works on bytes, so that what is not asked about never changes: line ends,
byte order marks, bytes that are not valid UTF-8. What may take long gives way.
"""

from __future__ import annotations

import codecs

from .operation import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any, TypeAlias, TypeVar

    from .operation import Reply

    T = TypeVar("T")
    Pauses: TypeAlias = Generator[None, Any, None]
    Pausing: TypeAlias = Generator[None, Any, T]

BOM = codecs.BOM_UTF8
HEAD = 8192
"""Bytes at the start of a file that decide whether it is text."""

_CONTINUATION = bytes(range(0x80, 0xC0))
_LF = b"\n"
_SPACE = b" \t\r\n\f\v"
_HINT_BYTES = 512 << 10
_STEP = 256 << 10
"""Bytes looked at between two pauses."""
_LINES_STEP = 4 << 10
"""The same where every byte may be a line that is taken."""
_SLICE = 5000
"""Lines compared between two pauses."""
_MAX_SLOW_PLACES = 100_000
_MAX_SLOW_LINES = 100_000
_MAX_PLACES = 20


def spelled(name: str) -> str:
    """A name for a text: what breaks a line or hides, and bytes that are no UTF-8, as `\\xHH`."""
    return name if name.isprintable() else "".join(map(_spelled, name))


def _spelled(character: str) -> str:
    if character.isprintable() or not _breaks_text(character):
        return character
    errors = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))


def _breaks_text(character: str) -> bool:
    """Is it a control character, a line separator, half a character, or one that hides?"""
    is_control = character < " " or "\x7f" <= character <= "\x9f"
    is_separator = character in "\u2028\u2029"
    is_half = "\ud800" <= character <= "\udfff"
    return is_control or is_separator or is_half or _is_hidden(character)


def _is_hidden(character: str) -> bool:
    """Bidirectional controls, zero-width characters but joiners, tags; the host has the same."""
    return (
        character in "\u00ad\u061c\u180e\u200b\u200e\u200f\ufeff"
        or "\u202a" <= character <= "\u202e"
        or "\u2060" <= character <= "\u206f"
        or "\U000e0000" <= character <= "\U000e007f"
    )


def unspelled(name: bytes) -> bytes:
    """The name that `spelled` makes such a text of."""
    first, *others = name.split(b"\\x")
    pieces = [first]
    for other in others:
        digits = other[:2]
        is_byte = len(digits) == 2 and not digits.strip(b"0123456789abcdefABCDEF")
        byte = bytes.fromhex(digits.decode()) if is_byte else b"\\x" + digits
        pieces += (byte, other[2:])
    return b"".join(pieces)


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


class Utf16:
    """UTF-16 that comes in pieces → UTF-8, without the mark at its start."""

    def __init__(self, codec: str) -> None:
        self._decode = codecs.utf_16_le_decode if codec == "utf-16-le" else codecs.utf_16_be_decode
        self._rest = b""
        self._started = False

    def feed(self, piece: bytes, *, final: bool = False) -> bytes:
        """The next piece; of a character that is cut at its end the rest comes later.

        Raises:
            UnicodeDecodeError: these bytes are no UTF-16.
        """
        data = self._rest + piece if self._rest else piece
        text, used = self._decode(data, "surrogatepass", final)
        self._rest = data[used:]
        if text and not self._started:
            self._started = True
            text = text[1:]
        return text.encode("utf-8", "surrogatepass")


def from_utf16(data: bytes) -> Pausing[bytes | None]:
    """The text of a UTF-16 file as UTF-8, without its mark; None if it is no such file."""
    codec = utf16_codec(data)
    if codec is None:
        return None
    decoder = Utf16(codec)
    pieces: list[bytes] = []
    try:
        for start in range(0, len(data), _STEP):
            if start:
                yield None
            final = start + _STEP >= len(data)
            pieces.append(decoder.feed(data[start : start + _STEP], final=final))
    except UnicodeDecodeError:
        return None
    return b"".join(pieces)


def to_utf16(text: bytes, codec: str, mark: bytes) -> Pausing[bytes]:
    """The inverse of `from_utf16`.

    Raises:
        UnicodeDecodeError: the text is no UTF-8.
    """
    pieces = [mark]
    start = 0
    while start < len(text):
        if start:
            yield None
        end = min(start + _STEP, len(text))
        while start < end < len(text) and text[end] in _CONTINUATION:
            end -= 1
        piece = text[start : end if end > start else start + _STEP]
        pieces.append(piece.decode("utf-8", "surrogatepass").encode(codec, "surrogatepass"))
        start += len(piece)
    return b"".join(pieces)


def finished(steps: Pausing[T]) -> T:
    """The result of something that is small enough not to give way."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


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

    def take(self, data: bytes) -> Pauses:
        """Take more of the text, giving way where it has many lines."""
        start = 0
        while start < len(data):
            if start:
                yield None
            skips_all = self._window.first - 1 - self._newlines > _STEP
            step = _STEP if skips_all or self.full else _LINES_STEP
            self.feed(data[start : start + step])
            start += step

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the text; it is not empty."""
        to_skip = self._window.first - 1 - self._newlines
        count = piece.count(b"\n")
        self._newlines += count
        self._ended = piece.endswith(b"\n")
        if self.full:
            self._more = True
        if self.full or count < to_skip:
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


def replace(text: bytes, old: bytes, new: bytes, *, everywhere: bool) -> Pausing[Edited]:
    """Replace `old` by `new`. Line ends of either kind match, and those of the place stay.

    No edit changes line ends: `new` takes those of the place, however it is written.

    Raises:
        Failure: nothing to find, nothing found, found more than once, or no change.
    """
    if text.startswith(BOM):
        # The mark belongs to the file: it is neither found, doubled nor removed.
        edited = yield from _replace(
            text[3:], old.removeprefix(BOM), new.removeprefix(BOM), everywhere=everywhere
        )
        edited.text = BOM + edited.text
        return edited
    return (yield from _replace(text, old, new, everywhere=everywhere))


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


def _replace(text: bytes, old: bytes, new: bytes, *, everywhere: bool) -> Pausing[Edited]:
    require_old(old)
    ends = yield from _line_ends(text, old, new)
    needle = yield from _needle(text, old, ends)
    places = yield from _find(text, old, needle)
    if not places.count:
        raise Failure("NO_MATCH", NOT_FOUND + _hint(text, old))
    if places.count > 1 and not everywhere:
        raise (yield from _ambiguous(text, places))
    put = _put_everywhere(new, ends)
    if put is not None and needle is not None and not put.startswith(BOM):
        first, result = yield from _replace_alike(text, places, put)
    else:
        first, result = yield from _replace_each(text, places, put, new)
    if result == text:
        raise Failure(
            "INVALID_ARGUMENTS",
            "no change: old_string and new_string are the same"
            + (
                "."
                if old == new
                else " but for line ends, which stay as they are in the file. "
                "Use run_command to change line ends."
            ),
        )
    line = 1 + (yield from _count(text, b"\n", first))
    return Edited(result, places.count, line)


NOT_FOUND = "old_string not found in file. Make sure it matches exactly including whitespace."


def _bare(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n")


def _count(text: bytes, part: bytes, end: int) -> Pausing[int]:
    """How often a line end is in the text before `end`."""
    count = 0
    for start in range(0, end, _STEP):
        if start:
            yield None
        count += text.count(part, start, min(start + _STEP + len(part) - 1, end))
    return count


def _line_ends(text: bytes, old: bytes, new: bytes) -> Pausing[tuple[int, int]]:
    """How many lines end with CR LF, and how many in all; nothing where it doesn't matter."""
    if b"\n" not in old and b"\n" not in new:
        return 0, 0
    pairs = yield from _count(text, b"\r\n", len(text))
    return pairs, (yield from _count(text, b"\n", len(text)))


def _needle(text: bytes, old: bytes, ends: tuple[int, int]) -> Pausing[bytes | None]:
    """The bytes to search for, if they are the same everywhere."""
    if b"\n" not in old:
        return old
    if b"\r\n" in old and not old.startswith(b"\n"):
        for _, _, count in _portions(text, old):
            if count:
                return old
            yield None
    pairs, lines = ends
    if pairs == 0:
        return _bare(old)
    if pairs == lines:
        return _bare(old).replace(b"\n", b"\r\n")
    return None


def _put_everywhere(new: bytes, ends: tuple[int, int]) -> bytes | None:
    """What to put in every place alike; None if that depends on the place."""
    pairs, lines = ends
    if b"\n" not in new or not lines:
        return new
    if pairs not in (0, lines):
        return None
    return _bare(new).replace(b"\n", b"\r\n") if pairs else _bare(new)


class _Places:
    """Where a text was found.

    Args:
        text: what was searched: the text itself, or with line ends made equal.
        needle: what was found in it.
        portions: parts of it that no place reaches across: start, end, number of places.
        in_original: the text itself was searched.
    """

    def __init__(
        self, text: bytes, needle: bytes, portions: list[tuple[int, int, int]], in_original: bool
    ) -> None:
        self.text = text
        self.needle = needle
        self.portions = portions
        self.in_original = in_original
        self.count = sum(count for _, _, count in portions)

    def __iter__(self) -> Iterator[tuple[int, int] | None]:
        """Start and end of each in what was searched; None for a pause."""
        for start, end, count in self.portions:
            yield None
            at = start
            for _ in range(count):
                at = self.text.find(self.needle, at, end)
                yield at, at + len(self.needle)
                at += len(self.needle)


def _find(text: bytes, old: bytes, needle: bytes | None) -> Pausing[_Places]:
    searched, wanted = text, needle
    if wanted is None:
        searched, wanted = (yield from _sliced_bare(text)), _bare(old)
    portions: list[tuple[int, int, int]] = []
    for portion in _portions(searched, wanted):
        portions.append(portion)
        yield None
    return _Places(searched, wanted, portions, needle is not None)


def _sliced_bare(text: bytes) -> Pausing[bytes]:
    pieces: list[bytes] = []
    start = 0
    while start < len(text):
        end = _uncut(text, start + _STEP)
        pieces.append(_bare(text[start:end]))
        start = end
        yield None
    return b"".join(pieces)


def _uncut(text: bytes, end: int) -> int:
    """This position, or the one before if it is in the middle of a line end."""
    return end - 1 if text[end - 1 : end + 1] == b"\r\n" else end


def _portions(text: bytes, needle: bytes) -> Iterator[tuple[int, int, int]]:
    """The text in portions that no place reaches across, each with its number of places.

    Places are counted from left to right without overlaps, as `bytes.count` does.
    """
    step = max(_STEP, 2 * len(needle))
    overlaps = _may_overlap(needle)
    start = 0
    while start < len(text):
        end = min(start + step, len(text))
        if overlaps:
            count, reached = _count_singly(text, needle, start, end)
        else:
            count = text.count(needle, start, end)
            reached = text.rfind(needle, start, end) + len(needle) if count else start
        if count < _LINES_STEP or not overlaps:
            # What begins in the last bytes may go on after them.
            reached = end if end == len(text) else max(reached, end - len(needle) + 1)
        yield start, reached, count
        start = reached


def _count_singly(text: bytes, needle: bytes, start: int, end: int) -> tuple[int, int]:
    """The number of places, up to a limit, and where the last of them ends."""
    count = 0
    while count < _LINES_STEP:
        at = text.find(needle, start, end)
        if at < 0:
            break
        count += 1
        start = at + len(needle)
    return count, start


def _may_overlap(needle: bytes) -> bool:
    """May two places overlap, so that it matters from where they are counted?"""
    start = needle.find(needle[:1], 1)
    for _ in range(100):
        if start < 0:
            return False
        if needle.startswith(needle[start:]):
            return True
        start = needle.find(needle[:1], start + 1)
    return True


def _replace_alike(text: bytes, places: _Places, put: bytes) -> Pausing[tuple[int, bytes]]:
    """The first place, and the text with the same put into all of them."""
    pieces: list[bytes] = []
    first = -1
    for start, end, count in places.portions:
        piece = text[start:end]
        if count and first < 0:
            first = text.find(places.needle, start, end)
        pieces.append(piece.replace(places.needle, put) if count else piece)
        yield None
    return first, b"".join(pieces)


def _replace_each(
    text: bytes, places: _Places, put: bytes | None, new: bytes
) -> Pausing[tuple[int, bytes]]:
    """The first place, and the text with each place replaced in its own way."""
    if places.count > _MAX_SLOW_PLACES:
        raise _too_mixed(f"old_string found {places.count} times", _MAX_SLOW_PLACES)
    pieces: list[bytes] = []
    near = _Near(text)
    first = -1
    end = searched_end = work = 0
    for place in places:
        if place is None:
            yield None
            continue
        if places.in_original:
            start, stop = place
        else:
            start = yield from _forward(text, end, place[0] - searched_end)
            stop = yield from _forward(text, start, place[1] - place[0])
            searched_end = place[1]
        first = start if first < 0 else first
        here = put
        if here is None:
            here = yield from _with_line_ends(text, start, stop, new, near)
        pieces += (text[end:start], here if start else here.removeprefix(BOM))
        end = stop
        work += 500 + len(here) + stop - start
        if work > _STEP:
            work = 0
            yield None
    pieces.append(text[end:])
    return first, b"".join(pieces)


def _too_mixed(what: str, most: int) -> Failure:
    return Failure(
        "TOO_LARGE",
        f"{what} in a file with mixed line ends; at most {most} can be replaced at once. "
        "Use run_command with sed.",
    )


def _forward(text: bytes, start: int, distance: int) -> Pausing[int]:
    """The position `distance` bytes after `start`, where CR LF counts as one byte."""
    while distance > _STEP:
        end = _uncut(text, start + _STEP)
        distance -= end - start - text.count(b"\r\n", start, end)
        start = end
        yield None
    end = start + distance
    while True:
        reached = start + distance + text.count(b"\r\n", start, end)
        if reached == end:
            break
        end = reached
    split = end > start and text[end - 1 : end + 1] == b"\r\n"
    return end + 1 if split else end


class _Near:
    """Line ends next to places that come from left to right; each is looked for once."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._from = self._at = -1
        self._last = -1

    def line_end(self, start: int, end: int) -> bytes | None:
        """How the line of this place ends, or else the line before it; None: no other line."""
        text = self._text
        if not self._from <= end <= self._at:
            self._from, self._at = end, text.find(b"\n", end)
            if self._at < 0:
                self._at = len(text)
                self._last = text.rfind(b"\n", 0, start)
        at = self._at if self._at < len(text) else self._last
        if at < 0:
            return None
        return b"\r\n" if at > 0 and text[at - 1 : at] == b"\r" else b"\n"


def _with_line_ends(text: bytes, start: int, end: int, new: bytes, near: _Near) -> Pausing[bytes]:
    """`new` with the line ends of the place that it replaces."""
    if b"\n" not in new:
        return new
    place = text[start:end]
    bare = _bare(new)
    pairs = place.count(b"\r\n")
    if b"\n" not in place:
        line_end = near.line_end(start, end)
        return new if line_end is None else bare.replace(b"\n", line_end)
    if pairs in (0, place.count(b"\n")):
        return bare.replace(b"\n", b"\r\n") if pairs else bare
    return (yield from _with_mixed_line_ends(place, bare))


def _with_mixed_line_ends(place: bytes, bare: bytes) -> Pausing[bytes]:
    """Lines that stay keep their own end, a changed line takes that of the line it replaces."""
    most = max(place.count(b"\n"), bare.count(b"\n"))
    if most > _MAX_SLOW_LINES:
        raise _too_mixed(f"a text of {most} lines is to be replaced", _MAX_SLOW_LINES)
    old_lines, new_lines = place.split(b"\n"), bare.split(b"\n")
    yield None
    ends = [b"\r\n" if line.endswith(b"\r") else b"\n" for line in old_lines[:-1]]
    old_lines = [*(line.removesuffix(b"\r") for line in old_lines[:-1]), old_lines[-1]]
    yield None
    same_start = yield from _count_same(old_lines, new_lines)
    same_end = yield from _count_same(old_lines[same_start:][::-1], new_lines[same_start:][::-1])
    last_changed = max(same_start, len(old_lines) - same_end) - 1
    last_changed = min(max(last_changed, 0), len(ends) - 1)
    kept = len(new_lines) - same_end - 1
    shift = len(old_lines) - len(new_lines)
    result = [new_lines[0]]
    for index, line in enumerate(new_lines[1:]):
        result += (ends[index + shift if index > kept else min(index, last_changed)], line)
        if index % _SLICE == _SLICE - 1:
            yield None
    return b"".join(result)


def _count_same(one: list[bytes], other: list[bytes]) -> Pausing[int]:
    """How many lines are the same from the start on."""
    shared = min(len(one), len(other))
    for start in range(0, shared, _SLICE):
        if one[start : start + _SLICE] != other[start : start + _SLICE]:
            for index in range(start, shared):
                if one[index] != other[index]:
                    return index
        yield None
    return shared


def _ambiguous(text: bytes, places: _Places) -> Pausing[Failure]:
    """The error for several places. Lines are the same whichever text was searched."""
    numbers: list[int] = []
    line, at = 1, 0
    for place in places:
        if place is None:
            yield None
        elif len(numbers) == _MAX_PLACES:
            break
        else:
            while place[0] - at > _STEP:
                line += places.text.count(b"\n", at, at + _STEP)
                at += _STEP
                yield None
            line += places.text.count(b"\n", at, place[0])
            at = place[0]
            numbers.append(line)
    listed = ", ".join(map(str, numbers)) + (", …" if places.count > _MAX_PLACES else "")
    return Failure(
        "AMBIGUOUS",
        f"old_string found {places.count} times (lines {listed}). "
        "Use replace_all=true or provide more context.",
        {"count": places.count, "lines": numbers},
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
    # The place in the text up to which there are `at` bytes that are no space.
    low, high = at, len(text)
    while low < high:
        middle = (low + high) // 2
        if len(text[: middle + 1].translate(None, _SPACE)) <= at:
            low = middle + 1
        else:
            high = middle
    return (
        " The nearest text differs only in whitespace: "
        f"line {text.count(_LF, 0, low) + 1} is {_quoted(_line_at(text, low))}."
    )


def _line_at(text: bytes, at: int) -> bytes:
    return text[text.rfind(_LF, 0, at) + 1 :].partition(_LF)[0]


def _number_hint(old: bytes) -> str:
    """Was the text copied together with the line numbers that reading shows?"""
    for line in old.split(_LF, _MAX_PLACES)[:_MAX_PLACES]:
        digits, bar, _ = line.decode("utf-8", "replace").lstrip().partition("│")
        if not bar:
            digits, bar, _ = digits.partition("→")
        if not bar or not digits.isdigit():
            return ""
    return " It holds line numbers; leave out the number and the bar in front of each line."


def _line_hint(text: bytes, old: bytes) -> str:
    """Which line of the file is one of the lines looked for?"""
    lines = {line.strip() for line in old.split(_LF, 1000)[:1000]}
    for line in sorted(lines, key=len, reverse=True)[:_MAX_PLACES]:
        at = text.find(line) if len(line) > 3 else -1
        if at >= 0:
            number = 1 + text.count(_LF, 0, at)
            return f" A part of it is at line {number}: {_quoted(line)}; the text around differs."
    return ""


def _quoted(line: bytes) -> str:
    text = line.removesuffix(b"\r").decode("utf-8", "replace")
    return repr(text if len(text) <= 200 else text[:200] + "…")
