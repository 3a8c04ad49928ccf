"""Pictures of 3x2 pixels in every format that models take."""

from __future__ import annotations

import base64
import struct
import zlib


def block(name: bytes, data: bytes) -> bytes:
    """One block of a PNG file, with its checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int = 3, height: int = 2, *, rows: int | None = None) -> bytes:
    """A PNG file in grey.

    Args:
        width: pixels.
        height: pixels, as its header says.
        rows: rows that are in it; None = all.
    """
    pixels = (b"\0" + bytes(width)) * (height if rows is None else rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return of_blocks((b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b""))


def of_blocks(*blocks: tuple[bytes, bytes]) -> bytes:
    """A PNG file of these blocks."""
    return b"\x89PNG\r\n\x1a\n" + b"".join(block(name, data) for name, data in blocks)


def _decoded(text: str) -> bytes:
    return base64.b64decode("".join(text.split()))


PNG = png()
JPEG = _decoded("""
/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1
tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSk
pKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wAARCAACAAMDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAT/xA
AUEAEAAAAAAAAAAAAAAAAAAAAA/8QAFQEBAQAAAAAAAAAAAAAAAAAABAX/xAAUEQEAAAAAAAAAAAAAAAAAAAAA/9oA
DAMBAAIRAxEAPwCEAdYf/9k=
""")
JPEG_PROGRESSIVE = _decoded("""
/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1
tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSk
pKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wgARCAACAAMDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAP/xA
AVAQEBAAAAAAAAAAAAAAAAAAADBP/aAAwDAQACEAMQAAABgDs//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQAB
BQJ//8QAFBEBAAAAAAAAAAAAAAAAAAAAAP/aAAgBAwEBPwF//8QAFBEBAAAAAAAAAAAAAAAAAAAAAP/aAAgBAgEBPw
F//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQAGPwJ//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPyF/
/9oADAMBAAIAAwAAABAD/8QAFBEBAAAAAAAAAAAAAAAAAAAAAP/aAAgBAwEBPxB//8QAFBEBAAAAAAAAAAAAAAAAAA
AAAP/aAAgBAgEBPxB//8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPxB//9k=
""")
GIF = _decoded("""
R0lGODdhAwACAIEAAMgeHgAAAAAAAAAAACwAAAAAAwACAAAIBgABCBwYEAA7
""")
WEBP = _decoded("""
UklGRjQAAABXRUJQVlA4ICgAAABwAQCdASoDAAIABUB8JaACdAFAAAD+54v6qOxyc//BBfxBfxBWAAAA
""")
WEBP_LOSSLESS = _decoded("""
UklGRh4AAABXRUJQVlA4TBEAAAAvAkAAAAdQjyLXo/+BiOh/AAA=
""")
WEBP_MOVING = _decoded("""
UklGRsYAAABXRUJQVlA4WAoAAAACAAAAAgAAAQAAQU5JTQYAAAAAAAAAAABBTk1GXAAAAAAAAAAAAAIAAAEAAAAAAA
JWUDggRAAAAFABAJ0BKgMAAgABQCYlqAAEdAAA/u9fePuOvxZ49nvz5+FS77OjCW8ez///wH8S/sC8f//3aTy3/9wc
f/3PM0/6kAAAQU5NRjYAAAAAAAAAAAACAAABAAAAAAAAVlA4IB4AAABUAQCdASoDAAIAAAAmJZwABGGAAP79KNEm56
WYAAA=
""")


# ─── PDF files ──────────────────────────────────────────────────────────────────────


def pdf(*texts: str, trailer: str = "", page: str = "/MediaBox [0 0 200 100]") -> bytes:
    """A PDF file with one line of text on each page.

    Args:
        texts: the lines.
        trailer: what else is in the trailer.
        page: what else is in each page.
    """
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(texts)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(texts)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(texts):
        resources = f"/Resources << /Font << /F 3 0 R >> >> /Contents {5 + 2 * number} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R {page} {resources} >>")
        line = f"BT /F 24 Tf 10 40 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(line)} >>\nstream\n{line}\nendstream")
    return of_objects(objects, trailer)


def of_objects(objects: list[str], trailer: str = "") -> bytes:
    """A PDF file of these objects; the first is its root."""
    data, places = b"%PDF-1.4\n", b""
    for number, text in enumerate(objects, 1):
        places += b"%010d 00000 n \n" % len(data)
        data += f"{number} 0 obj\n{text}\nendobj\n".encode("latin-1")
    count = len(objects) + 1
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % count + places
    end = f"trailer\n<< /Size {count} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n"
    return data + end.encode()


def drawn(width: int, height: int, pixels: bytes) -> bytes:
    """A PDF file whose only page is a picture in red, green and blue.

    Args:
        width: pixels of the picture, as the file says.
        height: the same.
        pixels: packed.
    """
    image = "/Type /XObject /Subtype /Image /ColorSpace /DeviceRGB /BitsPerComponent 8"
    image += f" /Width {width} /Height {height} /Filter /FlateDecode /Length {len(pixels)}"
    line = "200 0 0 100 0 0 cm /I Do"
    resources = "/MediaBox [0 0 200 100] /Resources << /XObject << /I 5 0 R >> >> /Contents 4 0 R"
    return of_objects(
        [
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            f"<< /Type /Page /Parent 2 0 R {resources} >>",
            f"<< /Length {len(line)} >>\nstream\n{line}\nendstream",
            f"<< {image} >>\nstream\n{pixels.decode('latin-1')}\nendstream",
        ]
    )


LOCKED = (
    "/ID [<00112233445566778899aabbccddeeff> <00112233445566778899aabbccddeeff>] "
    f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{'ab' * 32}> /U <{'cd' * 32}> >>"
)
"""The trailer of a file that a password is needed for; nobody knows it."""
