"""The frame: whole, cut, and hostile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent import frame
from executor.agent.frame import FrameError, Parser, encode

FRAMES = st.lists(
    st.tuples(st.sampled_from(sorted(frame.TO_HOST)), st.integers(0, 2**32 - 1), st.binary())
)


@given(FRAMES, st.lists(st.integers(1, 40)))
def test_any_split_gives_the_same_frames(
    frames: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    """However the bytes arrive, the same frames come out."""
    data = b"".join(encode(*one) for one in frames)
    parser = Parser(frame.TO_HOST)
    found: list[tuple[int, int, bytes]] = []
    for cut in cuts:
        found += parser.feed(data[:cut])
        data = data[cut:]
    assert found + parser.feed(data) == frames


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(data: bytes) -> None:
    """Garbage is a FrameError or an unfinished frame, never another exception."""
    parser = Parser(frame.TO_HOST)
    try:
        frames = parser.feed(data)
    except FrameError:
        return
    assert all(kind in frame.TO_HOST for kind, _, _ in frames)


@pytest.mark.parametrize("length", [frame.MAX_PAYLOAD + 1, 0xFFFFFFFF])
def test_a_length_over_the_cap_is_refused_at_the_header(length: int) -> None:
    """Statement J1: nothing is stored for a frame that is too long."""
    with pytest.raises(FrameError, match="at most"):
        Parser(frame.TO_HOST).feed(frame.HEADER.pack(frame.DATA, 1, length))


def test_the_other_sides_kinds_are_refused() -> None:
    """A host takes no CALL, an agent no REPLY."""
    with pytest.raises(FrameError, match="unknown frame kind"):
        Parser(frame.TO_HOST).feed(encode(frame.CALL, 1, b"{}"))
    with pytest.raises(FrameError, match="unknown frame kind"):
        Parser(frame.TO_AGENT).feed(encode(frame.REPLY, 1, b"{}"))


def test_a_payload_over_the_cap_is_never_sent() -> None:
    """The sender finds the fault too."""
    with pytest.raises(FrameError, match="at most"):
        encode(frame.DATA, 1, bytes(frame.MAX_PAYLOAD + 1))
    assert frame.split(bytes(frame.MAX_PAYLOAD + 1)) == [bytes(frame.MAX_PAYLOAD), b"\0"]
