"""Pictures by their content: which kind, how large, and whether they are whole.

A model's API refuses a conversation that holds a damaged picture, and every later request
with it. So a file is looked through from its first to its last block before it is given as a
picture. Pixels are not decoded: that is work for whoever shows them.
"""

from __future__ import annotations

import re
import zlib

from .text import HEAD, media_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeAlias

    Looking: TypeAlias = Generator[None, Any, tuple[int, int]]

MAX_SIDE = 8000
"""Pixels. Anthropic's API takes no larger picture."""
_STEP = 256 << 10
_BLOCKS = 2000


class Damaged(Exception):
    """It is not a whole picture; the text says why."""


class Picture:
    """What is known of a picture.

    Attributes:
        media_type: of it.
        width, height: pixels.
    """

    __slots__ = ("height", "media_type", "width")

    def __init__(self, media: str, width: int, height: int) -> None:
        self.media_type = media
        self.width = width
        self.height = height

    @property
    def is_too_large(self) -> bool:
        """It has more pixels than a model's API takes."""
        return max(self.width, self.height) > MAX_SIDE


def looked_through(data: bytes) -> Generator[None, Any, Picture | None]:
    """What a picture's bytes are; None if they are no picture at all.

    Raises:
        Damaged: they are not all of one.
    """
    media = media_type(data[:HEAD])
    look = _LOOKS.get(media or "")
    if media is None or look is None:
        return None
    width, height = yield from look(data)
    return Picture(media, width, height)


def _number(data: bytes, at: int, size: int, *, little: bool = False) -> int:
    piece = data[at : at + size]
    if len(piece) < size:
        raise Damaged("it ends too early")
    return int.from_bytes(piece, "little" if little else "big")


def _sides(width: int, height: int) -> tuple[int, int]:
    if not width or not height:
        raise Damaged("it has no pixels")
    return width, height


# ─── PNG ────────────────────────────────────────────────────────────────────────────

_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PNG_NEEDED = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})
_LAST_FILTER = 4
_INTERLACED = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
               (0, 1, 1, 2))  # fmt: skip
"""Of each pass: where it begins across and down, and its steps."""


def _png(data: bytes) -> Looking:
    view = memoryview(data)
    at, count, colours = 8, 0, 0
    pixels: list[memoryview] = []
    while True:
        length, name = _number(data, at, 4), data[at + 4 : at + 8]
        end = at + 8 + length
        if _number(data, end, 4) != zlib.crc32(view[at + 4 : end]):
            raise Damaged(f"the checksum of its block at byte {at} is wrong")
        if (count == 0) != (name == b"IHDR") or (count == 0 and length != 13):
            raise Damaged("its header is missing, or is there twice")
        if not name[0] & 0x20 and name not in _PNG_NEEDED:
            raise Damaged(f"no reader knows the block at byte {at}, which all have to")
        if name == b"PLTE" and not pixels:
            colours = length
        if name == b"IDAT":
            pixels.append(view[at + 8 : end])
        if name == b"IEND":
            break
        at, count = end + 4, count + 1
        if count % _BLOCKS == 0 or length > _STEP:
            yield None
    width, height = _sides(_number(data, 16, 4), _number(data, 20, 4))
    depth, colour, packing, filtering, interlaced = data[24:29]
    if depth not in _PNG_DEPTHS.get(colour, ()) or packing or filtering or interlaced > 1:
        raise Damaged("its header makes no sense")
    if colour == 3 and (not colours or colours % 3 or colours > 3 * 256):
        raise Damaged("its table of colours is missing")
    if max(width, height) <= MAX_SIDE:
        rows = _Rows(_passes(width, height, depth * _CHANNELS[colour], interlaced))
        yield from _require_pixels(pixels, rows)
    return width, height


def _passes(width: int, height: int, bits: int, interlaced: int) -> list[tuple[int, int]]:
    """Bytes of a row, and rows, of each pass over the picture."""
    found = []
    for left, top, across, down in _INTERLACED if interlaced else ((0, 0, 1, 1),):
        columns = -(-max(width - left, 0) // across)
        rows = -(-max(height - top, 0) // down)
        if columns and rows:
            found.append(((columns * bits + 7) // 8 + 1, rows))
    return found


class _Rows:
    """Unpacked rows as they come: how many bytes, and whether each begins with a known filter.

    Args:
        passes: bytes of a row, and rows, of each pass.
    """

    def __init__(self, passes: list[tuple[int, int]]) -> None:
        self.size = sum(row * rows for row, rows in passes)
        self.found = 0
        self._passes = passes
        self._in_pass = 0

    def take(self, data: bytes) -> None:
        """Look at the next bytes."""
        self.found += len(data)
        at = 0
        while at < len(data) and self._passes:
            row, rows = self._passes[0]
            end = min(len(data), at + row * rows - self._in_pass)
            if max(data[at + -self._in_pass % row : end : row], default=0) > _LAST_FILTER:
                raise Damaged("its pixels make no sense")
            self._in_pass += end - at
            at = end
            if self._in_pass == row * rows:
                self._passes, self._in_pass = self._passes[1:], 0


def _require_pixels(pieces: list[memoryview], rows: _Rows) -> Generator[None, Any, None]:
    """Unpack all pixels, a piece at a time, to see that they are there.

    Args:
        pieces: of the packed pixels.
        rows: takes them.
    """
    unpacker = zlib.decompressobj()
    try:
        for piece in pieces:
            rest = bytes(piece)
            while rest and not unpacker.eof and rows.found <= rows.size:
                rows.take(unpacker.decompress(rest, _STEP))
                rest = unpacker.unconsumed_tail
                yield None
        while not unpacker.eof and rows.found <= rows.size:
            more = unpacker.decompress(b"", _STEP)
            if not more:
                break
            rows.take(more)
            yield None
    except zlib.error:
        raise Damaged("its pixels can't be unpacked") from None
    if not unpacker.eof or rows.found != rows.size:
        raise Damaged("pixels are missing")


# ─── JPEG ───────────────────────────────────────────────────────────────────────────

_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_JPEG_READ = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
"""Frames that readers know: of eight bits, and not of the kinds that were never used."""
JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_JPEG_MARK = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def _jpeg(data: bytes) -> Looking:
    at, count = 2, 0
    sides: tuple[int, int] | None = None
    has_tables = has_pixels = False
    while True:
        count += 1
        if count % _BLOCKS == 0:
            yield None
        if _number(data, at, 1) != 0xFF:
            raise Damaged(f"no block begins at byte {at}")
        mark = _number(data, at + 1, 1)
        if mark == 0xD9:
            break
        if mark == 0xFF or mark in JPEG_ALONE:
            at += 1 if mark == 0xFF else 2
            continue
        end = at + 2 + max(_number(data, at + 2, 2), 2)
        if end > len(data):
            raise Damaged("it ends too early")
        if mark in _JPEG_FRAMES:
            if sides is not None or mark not in _JPEG_READ or _number(data, at + 4, 1) != 8:
                raise Damaged("it is of a kind that few programs read")
            sides = _sides(_number(data, at + 7, 2), _number(data, at + 5, 2))
        at = end
        has_tables = has_tables or mark == 0xDB
        if mark == 0xDA:
            if sides is None or not has_tables:
                raise Damaged("its header is missing")
            at, has_pixels = (yield from _after_scan(data, end)), True
    if sides is None or not has_pixels:
        raise Damaged("pixels are missing")
    return sides


def _after_scan(data: bytes, at: int) -> Generator[None, Any, int]:
    """Where the block after the pixels begins."""
    while at < len(data):
        found = _JPEG_MARK.search(data, at, at + _STEP + 2)
        if found is not None:
            return found.start()
        at += _STEP
        yield None
    raise Damaged("it ends too early")


# ─── GIF ────────────────────────────────────────────────────────────────────────────


def _gif(data: bytes) -> Looking:
    sides = _sides(_number(data, 6, 2, little=True), _number(data, 8, 2, little=True))
    at = 13 + _colours(_number(data, 10, 1))
    has_pixels = False
    while True:
        mark = _number(data, at, 1)
        if mark == 0x3B:
            break
        if mark == 0x21:
            at = yield from _after_blocks(data, at + 2)
        elif mark == 0x2C:
            if not 1 <= _number(data, at + 10 + _colours(_number(data, at + 9, 1)), 1) <= 8:
                raise Damaged("its pixels make no sense")
            at = yield from _after_blocks(data, at + 11 + _colours(_number(data, at + 9, 1)))
            has_pixels = True
        else:
            raise Damaged(f"no block begins at byte {at}")
        yield None
    if not has_pixels:
        raise Damaged("pixels are missing")
    return sides


def _colours(flags: int) -> int:
    """Bytes of the colour table that follows."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> Generator[None, Any, int]:
    count = 0
    while size := _number(data, at, 1):
        at += 1 + size
        count += 1
        if count % _BLOCKS == 0:
            yield None
    return at + 1


# ─── WebP ───────────────────────────────────────────────────────────────────────────


def _webp(data: bytes) -> Looking:
    end = 8 + _number(data, 4, 4, little=True)
    if end > len(data):
        raise Damaged("it ends too early")
    at, count = 12, 0
    sides: tuple[int, int] | None = None
    has_pixels = False
    while at + 8 <= end:
        name, size = data[at : at + 4], _number(data, at + 4, 4, little=True)
        if at + 8 + size > end:
            raise Damaged("it ends too early")
        if name in _WEBP_SIDES:
            sides = sides or _WEBP_SIDES[name](data, at + 8)
        has_pixels = has_pixels or name in (b"VP8 ", b"VP8L", b"ANMF")
        at += 8 + size + size % 2
        count += 1
        if count % _BLOCKS == 0:
            yield None
    if sides is None or not has_pixels:
        raise Damaged("pixels are missing")
    return sides


def _webp_lossy(data: bytes, at: int) -> tuple[int, int]:
    if data[at + 3 : at + 6] != b"\x9d\x01\x2a" or data[at] & 1:
        raise Damaged("its header makes no sense")
    both = (_number(data, at + 6, 2, little=True), _number(data, at + 8, 2, little=True))
    return _sides(both[0] & 0x3FFF, both[1] & 0x3FFF)


def _webp_lossless(data: bytes, at: int) -> tuple[int, int]:
    if _number(data, at, 1) != 0x2F:
        raise Damaged("its header makes no sense")
    bits = _number(data, at + 1, 4, little=True)
    return _sides((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)


def _webp_canvas(data: bytes, at: int) -> tuple[int, int]:
    width, height = (_number(data, at + skip, 3, little=True) + 1 for skip in (4, 7))
    return _sides(width, height)


_WEBP_SIDES: dict[bytes, Callable[[bytes, int], tuple[int, int]]] = {
    b"VP8 ": _webp_lossy,
    b"VP8L": _webp_lossless,
    b"VP8X": _webp_canvas,
}

_LOOKS: dict[str, Callable[[bytes], Looking]] = {
    "image/png": _png,
    "image/jpeg": _jpeg,
    "image/gif": _gif,
    "image/webp": _webp,
}
