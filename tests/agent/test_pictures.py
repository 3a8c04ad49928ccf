"""Pictures in the agent: what they are, and whether they are whole."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent import pictures, scaling
from tests import pictures as samples
from tests.agent.driver import Tree

T = TypeVar("T")
WHOLE = {
    "png": samples.PNG,
    "jpeg": samples.JPEG,
    "progressive": samples.JPEG_PROGRESSIVE,
    "gif": samples.GIF,
    "webp": samples.WEBP,
    "lossless": samples.WEBP_LOSSLESS,
    "moving": samples.WEBP_MOVING,
}


def look(data: bytes) -> pictures.Picture | None:
    """What a picture is; raises Damaged."""
    steps: Generator[None, None, pictures.Picture | None] = pictures.looked_through(data)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: pictures.Picture | None = stop.value
            return found


@pytest.mark.parametrize("name", WHOLE)
def test_whole_pictures_are_known(name: str) -> None:
    """Type and size of a whole picture are read out of it, in every format."""
    found = look(WHOLE[name])
    assert found is not None
    kind = {"progressive": "jpeg", "lossless": "webp", "moving": "webp"}.get(name, name)
    assert (found.media_type, found.width, found.height) == (f"image/{kind}", 3, 2)


@pytest.mark.parametrize("name", WHOLE)
def test_no_cut_picture_is_whole(name: str) -> None:
    """Wherever a picture is cut, it is damaged, or no picture."""
    for end in range(len(WHOLE[name])):
        try:
            found = look(WHOLE[name][:end])
        except pictures.Damaged:
            continue
        assert found is None, end


@given(st.integers(8 * 8, 8 * len(samples.PNG) - 1))
def test_a_changed_bit_of_a_png_is_found(bit: int) -> None:
    """No bit of a PNG file can change without being noticed."""
    data = bytearray(samples.PNG)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(pictures.Damaged):
        look(bytes(data))


HEADS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a\0\xff", b"RIFF\x10\0\0\0WEBP\xff\0")


@given(st.sampled_from(HEADS), st.binary(max_size=200))
def test_whatever_follows_the_first_bytes(head: bytes, rest: bytes) -> None:
    """Any bytes behind the first ones of a picture are looked through to an end."""
    try:
        found = look(head + rest)
    except pictures.Damaged:
        return
    assert found is None or found.width > 0


JPEG_MARKS = (0xE1, 0xE1, 0xEE, 0xFE, 0xD0, 0xFF)
EXIFS = st.binary(max_size=40).map(lambda rest: b"Exif\0\0" + rest)
HEAD = struct.pack(">IIBBBBB", 3, 2, 8, 0, 0, 0, 0)
END = (b"IEND", b"")


def packed(*rows: bytes) -> tuple[bytes, bytes]:
    """The block of these rows."""
    return b"IDAT", zlib.compress(b"".join(rows))


ROWS = packed(bytes(4), bytes(4))


def jpeg(frame: int = 0xC0, bits: int = 8) -> bytes:
    """A JPEG file with another frame than it is packed for."""
    return samples.JPEG.replace(b"\xff\xc0\0\x11\x08", bytes((0xFF, frame, 0, 0x11, bits)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (samples.of_blocks((b"IHDR", HEAD), (b"IHDR", HEAD), ROWS, END), "twice"),
        (samples.of_blocks((b"IHDR", HEAD), (b"ABCD", b""), ROWS, END), "no reader knows"),
        (samples.of_blocks((b"IHDR", HEAD[:9] + b"\3\0\0\0"), ROWS, END), "table of colours"),
        (
            samples.of_blocks((b"IHDR", HEAD), packed(bytes(4), b"\5" + bytes(3)), END),
            "make no sense",
        ),
        (samples.of_blocks((b"IHDR", HEAD[:12] + b"\1"), ROWS, END), "pixels are missing"),
        (jpeg(frame=0xC3), "few programs"),
        (jpeg(bits=12), "few programs"),
        (samples.JPEG.replace(b"\xff\xdb", b"\xff\xfe"), "header is missing"),
        (samples.GIF[:35] + b"\x0c" + samples.GIF[36:], "make no sense"),
        (samples.png(height=2, rows=1), "pixels are missing"),
        (samples.png(height=2, rows=3), "pixels are missing"),
        (samples.png(width=0), "no pixels"),
        (samples.JPEG[:2] + samples.JPEG[-2:], "pixels are missing"),
        (samples.GIF[:13] + b";", "pixels are missing|no block|too early"),
        (b"RIFF\x0c\0\0\0WEBPVP8 \0\0\0\0", "sense"),
    ],
)
def test_what_has_no_pixels_is_damaged(data: bytes, reason: str) -> None:
    """A picture that is well formed and has fewer pixels than it says is damaged."""
    with pytest.raises(pictures.Damaged, match=reason):
        look(data)


def test_a_bomb_is_not_unpacked(tree: Tree) -> None:
    """Pixels of a picture that is too large are not unpacked; more than it says are not, either."""
    huge = samples.png(width=100_000, height=100_000, rows=0)
    tree.write("huge.png", huge)
    failure = tree.failure("read_image", path="huge.png", max_bytes=1 << 20)
    assert failure.code == "TOO_LARGE"
    assert "100000x100000" in failure.message
    bomb = samples.png(width=8000, height=2, rows=40_000)
    tree.write("bomb.png", bomb)
    assert tree.failure("read_image", path="bomb.png", max_bytes=4 << 20).code == "EXECUTION_ERROR"
    assert tree.pauses("read_image", path="bomb.png", max_bytes=4 << 20) < 20


def test_a_file_over_the_limit(tree: Tree) -> None:
    """A picture with more bytes than can be sent is refused with both numbers."""
    tree.write("a.png", samples.PNG)
    failure = tree.failure("read_image", path="a.png", max_bytes=50)
    assert failure.code == "TOO_LARGE"
    assert failure.details is not None
    assert (failure.details["size"], failure.details["limit"]) == (len(samples.PNG), 50)
    assert f"{len(samples.PNG)} bytes" in failure.message


def test_interlaced_rows_are_counted() -> None:
    """The rows of all seven passes make an interlaced picture whole."""
    header = (b"IHDR", HEAD[:12] + b"\1")
    # Of 3 x 2 pixels these passes have any: 1, 4, 6, 7 with 1, 1, 1 and 3 pixels.
    rows = packed(bytes(2), bytes(2), bytes(2), bytes(4))
    found = look(samples.of_blocks(header, rows, END))
    assert found is not None
    assert (found.width, found.height) == (3, 2)


BLOCKS = st.lists(
    st.tuples(
        st.sampled_from([*JPEG_MARKS, *range(0xC0, 0x100), 1]),
        st.one_of(st.none(), st.binary(max_size=12), EXIFS),
    ),
    max_size=4,
)


@given(st.sampled_from([samples.JPEG, samples.JPEG_PROGRESSIVE]), BLOCKS)
def test_whatever_is_whole_has_a_page_or_none(
    data: bytes, blocks: list[tuple[int, bytes | None]]
) -> None:
    """A photo with any blocks before its pixels that is found to be whole becomes a page."""
    made = b"".join(
        bytes((0xFF, mark)) + (b"" if body is None else struct.pack(">H", len(body) + 2) + body)
        for mark, body in blocks
    )
    try:
        found = look(data[:2] + made + data[2:])
    except pictures.Damaged:
        return
    assert found is not None
    page = scaling.page_of(data[:2] + made + data[2:], found)
    assert page is None or page[1] <= scaling.SIDE


# ─── smaller ones ───────────────────────────────────────────────────────────────────

JUNK = (b"teXt", bytes(5000))
LEFT, RIGHT = (200, 40, 90), (10, 250, 130)


def pixels_of(data: bytes) -> list[list[tuple[int, ...]]]:
    """The rows of a PNG file as the program writes them: no filters, one or three channels."""
    width = int.from_bytes(data[16:20], "big")
    channels = 3 if data[25] == 2 else 1
    raw = zlib.decompress(data[41:-16])
    step = width * channels + 1
    rows = [raw[at + 1 : at + step] for at in range(0, len(raw), step)]
    return [
        [tuple(row[at : at + channels]) * (3 // channels) for at in range(0, len(row), channels)]
        for row in rows
    ]


def on_white(colour: int, opacity: int) -> float:
    return 255 - opacity * (255 - colour) / 255


@pytest.mark.parametrize(
    ("colour", "depth", "left", "right", "shown"),
    [
        (0, 8, b"\x20", b"\xd0", ((0x20,) * 3, (0xD0,) * 3)),
        (0, 16, b"\x20\0", b"\xd0\0", ((0x20,) * 3, (0xD0,) * 3)),
        (2, 8, bytes(LEFT), bytes(RIGHT), (LEFT, RIGHT)),
        (3, 8, b"\0", b"\1", (LEFT, [on_white(value, 51) for value in RIGHT])),
        (4, 8, b"\x20\xff", b"\xd0\x33", ((0x20,) * 3, (on_white(0xD0, 51),) * 3)),
        (6, 8, bytes(LEFT) + b"\xff", bytes(RIGHT) + b"\x33",
         (LEFT, [on_white(value, 51) for value in RIGHT])),
        (6, 8, bytes(LEFT) + b"\0", bytes(RIGHT) + b"\xff", ((255, 255, 255), RIGHT)),
    ],
)  # fmt: skip
def test_a_smaller_picture_has_the_same_colours(
    tree: Tree, colour: int, depth: int, left: bytes, right: bytes, shown: Sequence[Sequence[float]]
) -> None:
    """Whatever its colours are written as, and on white where it is transparent."""
    header = struct.pack(">IIBBBBB", 40, 20, depth, colour, 0, 0, 0)
    rows = [b"\0" + left * 20 + right * 20] * 20
    table = [(b"PLTE", bytes(LEFT + RIGHT)), (b"tRNS", b"\xff\x33")] if colour == 3 else []
    data = samples.of_blocks((b"IHDR", header), *table, JUNK, packed(*rows), END)
    tree.write("a.png", data)
    value, found = tree.call("read_image", path="a.png", max_bytes=4000)
    assert (value["scaled"], value["media_type"], value["width"]) == (True, "image/png", 40)
    made = pixels_of(found)
    for at, expected in ((5, shown[0]), (35, shown[1])):
        assert all(abs(a - b) <= 2 for a, b in zip(made[10][at], expected, strict=True)), made[10]


@pytest.mark.parametrize(
    ("orientation", "corner"),
    [(1, (0, 1)), (2, (1, 1)), (3, (1, 0)), (4, (0, 0)), (5, (0, 1)), (6, (1, 1)), (7, (1, 0)),
     (8, (0, 0))],
)  # fmt: skip
def test_a_smaller_photo_stands_as_the_camera_was_held(
    tree: Tree, orientation: int, corner: tuple[int, int]
) -> None:
    """Where its first pixel goes is what its orientation says; its sides change places."""
    exif = b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0" + bytes((orientation, 0, 0, 0))
    exif += bytes(4)
    blocks = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    blocks += b"\xff\xfe" + struct.pack(">H", 5002) + bytes(5000)
    tree.write("a.jpg", samples.JPEG[:2] + blocks + samples.JPEG[2:])
    _, found = tree.call("read_image", path="a.jpg", max_bytes=4000)
    sides = [int.from_bytes(found[at : at + 4], "big") for at in (16, 20)]
    assert sides == ([3, 2] if orientation < 5 else [2, 3])
    a, b, c, d, e, f = scaling._TURNED.get(orientation, scaling._UPRIGHT)
    # The first pixel is at the upper left: 0 across, 1 up.
    assert (c + e, d + f) == corner
    assert abs(a * d - b * c) == 1


@pytest.mark.parametrize("data", [samples.GIF, samples.WEBP])
def test_what_has_no_smaller_form_is_refused(tree: Tree, data: bytes) -> None:
    """The refusal has the command that makes a smaller one, if the image has a tool for it."""
    tree.write("it's.gif", data)
    tree.write("bin/convert", "")
    (tree.path / "bin/convert").chmod(0o755)
    for path, said in (
        (str(tree.path / "bin"), "convert 'it'\\''s.gif' -resize 1568x1568 small.png"),
        ("/nowhere", "has none that is known"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", path)
            failure = tree.failure("read_image", path="it's.gif", max_bytes=len(data) - 1)
        assert failure.code == "TOO_LARGE"
        assert said in failure.message


def test_without_the_library_nothing_is_scaled(tree: Tree) -> None:
    """The refusal is the same where the runtime has no PDFium."""
    tree.write("a.png", samples.png(9000, 9))
    assert tree.call("read_image", path="a.png", max_bytes=4000)[0]["scaled"]
    tree.workspace.pdf = (tree.workspace.pdf[0], "/nowhere")
    assert tree.failure("read_image", path="a.png", max_bytes=4000).code == "TOO_LARGE"
