"""A picture that is too large, as a page of a PDF file, of which PDFium makes a smaller one.

No pixel is touched: what a PNG or a JPEG file holds of its pixels is what a PDF file holds of
a picture, byte for byte. Other formats, and PNG files whose rows are interlaced, have no such
form.
"""

from __future__ import annotations

from .pictures import JPEG_ALONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .pictures import Picture

MOST_UNPACKED = 1 << 30
"""Bytes of pixels; PDFium unpacks no more, and draws what it has."""
SIDE = 1568
"""Pixels of the longer side of a picture; a model sees no more."""

_RGB, _GREY = "/DeviceRGB", "/DeviceGray"
_ON_WHITE = "exch 1 exch sub mul 1 exch sub"
"""Colour and opacity → the colour on white paper: 1 - opacity * (1 - colour)."""
_GREY_ON_WHITE = f"{{ {_ON_WHITE} }}"
_RGB_ON_WHITE = (
    f"{{ dup 5 1 roll {_ON_WHITE} 4 1 roll 2 index {_ON_WHITE} "
    f"4 1 roll exch {_ON_WHITE} 3 1 roll }}"
)
_TURNED = {
    2: (-1, 0, 0, 1, 1, 0),
    3: (-1, 0, 0, -1, 1, 1),
    4: (1, 0, 0, -1, 0, 1),
    5: (0, -1, -1, 0, 1, 1),
    6: (0, -1, 1, 0, 0, 1),
    7: (0, 1, 1, 0, 0, 0),
    8: (0, 1, -1, 0, 1, 0),
}
"""Orientation as cameras note it → how the unit square is laid on the page."""
_UPRIGHT = (1, 0, 0, 1, 0, 0)


def page_of(data: bytes, picture: Picture) -> tuple[bytes, int] | None:
    """A PDF file whose only page is the picture, and the longer side that it should get.

    Args:
        data: a whole picture.
        picture: what is known of it.

    Returns:
        None if it has no such form.
    """
    look = {"image/png": _png, "image/jpeg": _jpeg}.get(picture.media_type)
    found = None if look is None else look(data)
    if found is None:
        return None
    objects, pixels, turn = found
    width, height = picture.width, picture.height
    objects[0] = f"/Width {width} /Height {height} {objects[0]}"
    if turn > 4:
        width, height = height, width
    side = min(SIDE, max(width, height))
    scale = side / max(width, height)
    across, down = max(round(width * scale), 1), max(round(height * scale), 1)
    return _file(objects, pixels, _drawing(turn, across, down), (across, down)), side


def _drawing(turn: int, across: int, down: int) -> str:
    a, b, c, d, e, f = _TURNED.get(turn, _UPRIGHT)
    laid = (a * across, b * down, c * across, d * down, e * across, f * down)
    return f"{' '.join(map(str, laid))} cm /I Do"


def _file(objects: list[str], pixels: bytes, drawing: str, size: tuple[int, int]) -> bytes:
    """The PDF file.

    Args:
        objects: entries of the picture, then whatever they refer to, from object 6 on.
        pixels: of the picture.
        drawing: of the page.
        size: of the page.
    """
    image, *others = objects
    page = f"/MediaBox [0 0 {size[0]} {size[1]}] /Resources << /XObject << /I 5 0 R >> >>"
    image = f"<< /Type /XObject /Subtype /Image {image} /Length {len(pixels)} >>\nstream\n"
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R {page} /Contents 4 0 R >>".encode(),
        f"<< /Length {len(drawing)} >>\nstream\n{drawing}\nendstream".encode(),
        image.encode() + pixels + b"\nendstream",
        *(other.encode() for other in others),
    ]
    pieces, places, at = [b"%PDF-1.4\n"], b"", 9
    for number, body in enumerate(bodies, 1):
        places += b"%010d 00000 n \n" % at
        piece = b"%d 0 obj\n" % number + body + b"\nendobj\n"
        pieces.append(piece)
        at += len(piece)
    count = len(bodies) + 1
    pieces.append(b"xref\n0 %d\n0000000000 65535 f \n" % count + places)
    pieces.append(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, at))
    return b"".join(pieces)


# ─── PNG ────────────────────────────────────────────────────────────────────────────


def _png(data: bytes) -> tuple[list[str], bytes, int] | None:
    depth, colour, interlaced = data[24], data[25], data[28]
    if interlaced:
        return None
    blocks = _blocks(data)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    space, others = _space(colour, blocks)
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if ((width * depth * channels + 7) // 8 + 1) * height > MOST_UNPACKED:
        return None
    rows = f"/Predictor 15 /Colors {channels} /BitsPerComponent {depth} /Columns {width}"
    image = f"/ColorSpace {space} /BitsPerComponent {depth} /Filter /FlateDecode"
    return [f"{image} /DecodeParms << {rows} >>", *others], blocks[b"IDAT"], 1


def _blocks(data: bytes) -> dict[bytes, bytes]:
    """What is in the blocks that say something of the pixels."""
    found: dict[bytes, list[memoryview]] = {b"IDAT": [], b"PLTE": [], b"tRNS": []}
    view, at, name = memoryview(data), 8, b""
    while name != b"IEND":
        name, end = data[at + 4 : at + 8], at + 8 + int.from_bytes(data[at : at + 4], "big")
        if name in found:
            found[name].append(view[at + 8 : end])
        at = end + 4
    return {name: b"".join(pieces) for name, pieces in found.items()}


def _space(colour: int, blocks: dict[bytes, bytes]) -> tuple[str, list[str]]:
    """The colour space, and the objects that it refers to."""
    if colour == 3:
        return _palette(blocks[b"PLTE"], blocks[b"tRNS"]), []
    if colour in (0, 2):
        return _GREY if colour == 0 else _RGB, []
    names, base, code = (
        ("/G /A", _GREY, _GREY_ON_WHITE) if colour == 4 else ("/R /G /B /A", _RGB, _RGB_ON_WHITE)
    )
    domain, values = "0 1 " * (colour - 2), "0 1 " * (1 if colour == 4 else 3)
    function = f"<< /FunctionType 4 /Domain [{domain}] /Range [{values}] /Length {len(code)} >>"
    return f"[/DeviceN [{names}] {base} 6 0 R]", [f"{function}\nstream\n{code}\nendstream"]


def _palette(colours: bytes, opacity: bytes) -> str:
    """A table of colours, each as it is on white paper."""
    table = bytearray(colours[: len(colours) // 3 * 3])
    for number, alpha in enumerate(opacity[: len(table) // 3]):
        for at in range(3 * number, 3 * number + 3):
            table[at] = 255 - alpha * (255 - table[at]) // 255
    return f"[/Indexed {_RGB} {len(table) // 3 - 1} <{table.hex()}>]"


# ─── JPEG ───────────────────────────────────────────────────────────────────────────


def _jpeg(data: bytes) -> tuple[list[str], bytes, int] | None:
    at, turn, is_inverted = 2, 1, False
    while True:
        mark = data[at + 1]
        if mark == 0xFF or mark in JPEG_ALONE:
            at += 1 if mark == 0xFF else 2
            continue
        end = at + 2 + max(int.from_bytes(data[at + 2 : at + 4], "big"), 2)
        if mark in (0xC0, 0xC1, 0xC2):
            break
        if mark == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            turn = _orientation(data[at + 10 : end])
        if mark == 0xEE and data[at + 4 : at + 9] == b"Adobe":
            is_inverted = True
        if mark == 0xDA:
            return None
        at = end
    space = {1: _GREY, 3: _RGB, 4: "/DeviceCMYK"}.get(data[at + 9])
    if space is None:
        return None
    image = f"/ColorSpace {space} /BitsPerComponent 8 /Filter /DCTDecode"
    # Whoever writes four colours with such a block writes how much is missing of each.
    if data[at + 9] == 4 and is_inverted:
        image += " /Decode [1 0 1 0 1 0 1 0]"
    return [image], data, turn


def _orientation(exif: bytes) -> int:
    """How the camera was held; 1 if nothing is said that makes sense."""
    if exif[:2] not in (b"II", b"MM"):
        return 1

    def number(at: int, size: int) -> int:
        return int.from_bytes(exif[at : at + size], "little" if exif[:1] == b"I" else "big")

    table = number(4, 4)
    for entry in range(table + 2, table + 2 + 12 * min(number(table, 2), 100), 12):
        if number(entry, 2) == 0x112:
            found = number(entry + 8, 2)
            return found if 1 <= found <= 8 else 1
    return 1
