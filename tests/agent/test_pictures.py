"""Pictures in the agent: what they are, and whether they are whole."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent import pictures
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


@pytest.mark.parametrize(
    ("data", "reason"),
    [
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
    assert failure.details == {"size": len(samples.PNG), "limit": 50}
