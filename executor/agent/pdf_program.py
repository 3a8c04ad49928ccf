"""Pages of a PDF file as text and pictures: a program of its own, never a part of the agent.

The library that takes a file of unknown origin apart is large and written in C++. So it works
in a process that lives as long as one call, in the box, with the rights of a command, and with
less: it may take only so much memory and time, start nothing and write no file. What it writes
to its output is believed by nobody. Standard library only, and PDFium by its C interface.

    python3 pdf_program.py LIBRARY MEMORY FIRST LAST MOST_PAGES TEXT_BYTES PICTURE_BYTES SECONDS
    python3 pdf_program.py LIBRARY MEMORY alone PICTURE_BYTES SIDE

Its input is the file, and MEMORY the bytes that it may have. A page number of 0 is none given.
Pages are drawn for so many seconds; of those that are left there is no more than their text. The
second form is for a file that is one picture, whose longer side has so many pixels at the most.
The output is one line of JSON, then the bytes of all parts.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import struct
import sys
import time
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MEMORY = 1 << 30
SECONDS = 60
SIDE = 1568
"""Pixels of the longer side of a page; a model sees no more."""
MOST_CHARACTERS = 200_000
"""Characters that are taken of one page."""
_LEAST_SIDE = 400
_FAULTS = {4: "password", 5: "password"}
_BGR = 2
_WHITE = 0xFFFFFFFF
_UNDRAWN = 0xFFFE01FD
"""No picture is all of this colour: where it is, nothing was drawn."""
LARGE, LATE = 1, 2
"""Why there is no picture of a page: it has too many bytes, or the time to draw is over."""
MOST_PICTURE = 3 * (5 << 20) // 4
"""Bytes of one picture; see `executor.tools.rich`."""
_ANNOTATIONS = 1


def confine(memory: int = MEMORY) -> None:
    """Give up what taking a file apart does not need. Limits only go down from here.

    Args:
        memory: bytes. Some kernels end the whole box when its memory runs out.
    """
    wanted = {
        resource.RLIMIT_AS: min(memory, MEMORY),
        resource.RLIMIT_CPU: SECONDS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 8,
    }
    for name, most in wanted.items():
        _, now = resource.getrlimit(name)
        limit = most if now == resource.RLIM_INFINITY else min(most, now)
        resource.setrlimit(name, (limit, limit))


class Document:
    """An open PDF file.

    Args:
        library: PDFium.
        data: the file.
    """

    def __init__(self, library: str, data: bytes) -> None:
        self._pdf = ctypes.CDLL(library)
        _declare(self._pdf)
        self._data = data
        self._pdf.FPDF_InitLibrary()
        self._document = self._pdf.FPDF_LoadMemDocument64(data, len(data), None)
        if not self._document:
            fault = _FAULTS.get(self._pdf.FPDF_GetLastError(), "damaged")
            answer({"fault": fault}, [])
        self.pages: int = self._pdf.FPDF_GetPageCount(self._document)

    def page(self, number: int) -> Any:
        """A page by its number from 1; None if it is damaged."""
        return self._pdf.FPDF_LoadPage(self._document, number - 1)

    def text(self, page: Any) -> str:
        """The text of a page, as far as it has any."""
        found = self._pdf.FPDFText_LoadPage(page)
        if not found:
            return ""
        count = min(self._pdf.FPDFText_CountChars(found), MOST_CHARACTERS)
        buffer = ctypes.create_string_buffer(2 * (max(count, 0) + 1))
        written = self._pdf.FPDFText_GetText(found, 0, count, buffer) if count > 0 else 1
        self._pdf.FPDFText_ClosePage(found)
        text = buffer.raw[: 2 * max(written - 1, 0)].decode("utf-16-le", "replace")
        return text.replace("\r\n", "\n").replace("\0", "")

    def picture(self, page: Any, side: int, paper: int = _WHITE) -> bytes:
        """A page as a PNG file; empty if there is no memory for it, or nothing was drawn.

        Args:
            page: the page.
            side: pixels of its longer side.
            paper: the colour on which it is drawn.
        """
        width, height = (
            max(float(size), 1.0)
            for size in (self._pdf.FPDF_GetPageWidthF(page), self._pdf.FPDF_GetPageHeightF(page))
        )
        scale = side / max(width, height)
        across, down = (min(max(round(size * scale), 1), side) for size in (width, height))
        stride = -(-3 * across // 4) * 4
        pixels = ctypes.create_string_buffer(stride * down)
        bitmap = self._pdf.FPDFBitmap_CreateEx(across, down, _BGR, pixels, stride)
        if not bitmap:
            return b""
        self._pdf.FPDFBitmap_FillRect(bitmap, 0, 0, across, down, paper)
        self._pdf.FPDF_RenderPageBitmap(bitmap, page, 0, 0, across, down, 0, _ANNOTATIONS)
        self._pdf.FPDFBitmap_Destroy(bitmap)
        rows = pixels.raw
        if paper == _UNDRAWN and _is_paper(rows, across, stride):
            return b""
        return png(rows, across, down, stride)

    def close(self, page: Any) -> None:
        """Free a page."""
        self._pdf.FPDF_ClosePage(page)


def _declare(pdf: Any) -> None:
    """The types of the functions that are used."""
    whole, pointer, real = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
    functions: tuple[tuple[Any, ...], ...] = (
        ("FPDF_InitLibrary", None),
        ("FPDF_LoadMemDocument64", pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p),
        ("FPDF_GetLastError", ctypes.c_ulong),
        ("FPDF_GetPageCount", whole, pointer),
        ("FPDF_LoadPage", pointer, pointer, whole),
        ("FPDF_ClosePage", None, pointer),
        ("FPDF_GetPageWidthF", real, pointer),
        ("FPDF_GetPageHeightF", real, pointer),
        ("FPDFText_LoadPage", pointer, pointer),
        ("FPDFText_CountChars", whole, pointer),
        ("FPDFText_GetText", whole, pointer, whole, whole, ctypes.c_char_p),
        ("FPDFText_ClosePage", None, pointer),
        ("FPDFBitmap_CreateEx", pointer, whole, whole, whole, ctypes.c_char_p, whole),
        ("FPDFBitmap_FillRect", None, pointer, whole, whole, whole, whole, ctypes.c_ulong),
        ("FPDF_RenderPageBitmap", None, pointer, pointer, *[whole] * 6),
        ("FPDFBitmap_Destroy", None, pointer),
    )
    for name, result, *arguments in functions:
        function = getattr(pdf, name)
        function.restype = result
        function.argtypes = arguments


def png(pixels: bytes, width: int, height: int, stride: int) -> bytes:
    """Rows of blue, green, red as a PNG file; in grey where all three are the same.

    Args:
        pixels: the rows.
        width, height: pixels.
        stride: bytes from row to row.
    """
    is_grey = _is_grey(pixels, width, height, stride)
    packer = zlib.compressobj(6)
    packed: list[bytes] = []
    for start in range(0, stride * height, stride):
        row = pixels[start : start + 3 * width]
        if is_grey:
            packed.append(packer.compress(b"\0" + row[::3]))
            continue
        turned = bytearray(row)
        turned[::3], turned[2::3] = row[2::3], row[::3]
        packed.append(packer.compress(b"\0" + turned))
    packed.append(packer.flush())
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if is_grey else 2, 0, 0, 0)
    blocks = [(b"IHDR", header), (b"IDAT", b"".join(packed)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in blocks
    )


def _is_grey(pixels: bytes, width: int, height: int, stride: int) -> bool:
    for start in range(0, stride * height, stride):
        row = pixels[start : start + 3 * width]
        if not row[::3] == row[1::3] == row[2::3]:
            return False
    return True


def _is_paper(rows: bytes, across: int, stride: int) -> bool:
    """Is there nothing on it?"""
    row = _UNDRAWN.to_bytes(4, "little")[:3] * across
    return all(rows.startswith(row, at) for at in range(0, len(rows), stride))


def answer(facts: dict[str, Any], pieces: list[bytes]) -> None:
    """Say it and end."""
    output = sys.stdout.buffer
    output.write(json.dumps(facts).encode() + b"\n")
    for piece in pieces:
        output.write(piece)
    output.flush()
    os._exit(0)


def main(
    library: str, first: int, last: int, most: int, text_room: int, room: int, seconds: int
) -> None:
    """Take the file on the input apart and answer."""
    over = time.monotonic() + seconds
    document = Document(library, sys.stdin.buffer.read())
    facts: dict[str, Any] = {"pages": document.pages}
    if first > document.pages or document.pages < 1:
        answer({**facts, "fault": "range" if document.pages else "damaged"}, [])
    end = min(last, document.pages) if first else document.pages
    if end - max(first, 1) + 1 > most:
        answer({**facts, "fault": "many"}, [])
    parts: list[list[Any]] = []
    pieces: list[bytes] = []
    side = SIDE
    for number in range(max(first, 1), end + 1):
        page = document.page(number)
        whole = document.text(page).encode("utf-8", "replace") if page else b""
        text = whole[:text_room].decode("utf-8", "ignore").encode()
        text_room -= len(text)
        parts.append(["page", number, len(text), len(whole) - len(text)])
        pieces.append(text)
        if page and room:
            picture, reason = b"", LATE
            if time.monotonic() < over:
                share = min(room // (end - number + 1), MOST_PICTURE)
                picture, side = fitting(document, page, share, min(SIDE, side * 4 // 3))
                reason = 0 if picture else LARGE
            room -= len(picture)
            parts.append(["picture", number, len(picture), reason])
            pieces.append(picture)
        if page:
            document.close(page)
        else:
            parts[-1][0] = "damaged"
    answer({**facts, "parts": parts}, pieces)


def alone(library: str, room: int, side: int) -> None:
    """The picture that is all of the file on the input, made smaller."""
    document = Document(library, sys.stdin.buffer.read())
    page = document.page(1)
    picture = fitting(document, page, min(room, MOST_PICTURE), side, _UNDRAWN)[0] if page else b""
    part = ["picture", 1, len(picture), 0 if picture else LARGE]
    answer({"pages": 1, "parts": [part]}, [picture])


def fitting(
    document: Document, page: Any, room: int, side: int, paper: int = _WHITE
) -> tuple[bytes, int]:
    """A page as large as it fits into so many bytes, and its longer side.

    Nothing if it is too large however small, or if nothing is drawn.
    """
    picture = document.picture(page, side, paper)
    while len(picture) > room and side > _LEAST_SIDE:
        by_size = int(side * 0.97 * (room / len(picture)) ** 0.5)
        side = max(min(side * 9 // 10, by_size), _LEAST_SIDE)
        picture = document.picture(page, side, paper)
    return (picture if len(picture) <= room else b""), side


if __name__ == "__main__":
    confine(int(sys.argv[2]))
    if sys.argv[3] == "alone":
        alone(sys.argv[1], *map(int, sys.argv[4:]))
    else:
        main(sys.argv[1], *map(int, sys.argv[3:]))
