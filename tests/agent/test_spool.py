"""The spool keeps head and tail of any amount of output."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.agent.spool import MEMORY, Spool


def _filled(directory: Path, pieces: list[bytes], cap: int) -> Spool:
    spool = Spool(str(directory), cap)
    for piece in pieces:
        spool.write(piece)
    return spool


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.integers(0, 3 * MEMORY), max_size=8),
    st.sampled_from([2 * MEMORY, 4 * MEMORY]),
    st.integers(0, MEMORY),
    st.integers(0, MEMORY),
)
def test_ends_are_those_of_the_whole(
    tmp_path: Path, sizes: list[int], cap: int, head: int, tail: int
) -> None:
    """First and last bytes equal those of all that was written; the total is exact."""
    pieces = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
    whole = b"".join(pieces)
    spool = _filled(tmp_path, pieces, cap)
    first, last = spool.ends(head, tail)
    spool.close()
    assert spool.total == len(whole)
    if len(whole) <= head + tail:
        assert (first, last) == (whole, b"")
    else:
        assert first == whole[:head]
        assert last == (whole[len(whole) - tail :] if tail else b"")


def test_the_file_is_unlinked_and_capped(tmp_path: Path) -> None:
    """Nothing is seen in the directory, and the file never passes its cap."""
    cap = 4 * MEMORY
    spool = _filled(tmp_path, [b"x" * MEMORY] * 40, cap)
    assert list(tmp_path.iterdir()) == []
    assert spool.total == 40 * MEMORY
    first, last = spool.ends(cap, cap)
    assert len(first) + len(last) == cap
    spool.close()


def test_output_goes_on_where_no_file_can_be_made(tmp_path: Path) -> None:
    """A full or missing scratch directory costs the middle of the output, not the command."""
    spool = _filled(tmp_path / "missing", [b"a" * MEMORY, b"b" * MEMORY, b"c" * MEMORY], MEMORY)
    first, last = spool.ends(10, 10)
    assert (first, last, spool.total) == (b"a" * 10, b"c" * 10, 3 * MEMORY)


@pytest.mark.parametrize("size", [MEMORY - 1, MEMORY, MEMORY + 1])
def test_the_border_between_memory_and_file(tmp_path: Path, size: int) -> None:
    """Output of about 64 KiB is whole on either side of the border."""
    content = bytes(range(256)) * (size // 256 + 1)
    spool = _filled(tmp_path, [content[:size]], 4 * MEMORY)
    assert spool.ends(MEMORY, MEMORY) == (content[:size], b"")
    spool.close()
