"""What an ended command has printed can be fetched in pieces, for a while."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.agent import spool
from executor.agent.spool import MEMORY, Shelf, Shelved, Spool
from tests.agent.driver import changed


def filled(directory: Path, size: int, cap: int) -> tuple[Spool, bytes]:
    """A spool of so many bytes, and the bytes."""
    data = b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]
    made = Spool(str(directory), cap)
    for start in range(0, size, 50_000):
        made.write(data[start : start + 50_000])
    return made, data


def fetched(output: Shelved, size: int) -> bytes:
    """All of stdout, piece by piece."""
    found, position = b"", 0
    while True:
        piece, position = output.piece("stdout", position, size)
        if not piece:
            return found
        found += piece


@pytest.mark.parametrize("place", ["file", "nowhere"])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 12 * MEMORY), st.integers(1, 3 * MEMORY))
def test_beginning_and_end_come_back_in_any_pieces(
    tmp_path: Path, place: str, size: int, piece: int
) -> None:
    """What is kept is said and given, byte for byte, on disk and where there is none."""
    directory = tmp_path if place == "file" else tmp_path / "missing"
    made, data = filled(directory, size, 4 * MEMORY)
    head, tail = made.kept()
    assert head + tail <= size and (head == size or head >= MEMORY)
    if place == "file":
        assert head + tail == min(size, 4 * MEMORY)
    output = Shelved({"stdout": made}, b"")
    assert fetched(output, piece) == data[:head] + data[size - tail :]
    output.close()


def test_files_without_a_name_are_made_without_help_of_the_kernel(tmp_path: Path) -> None:
    """Where no unnamed files can be opened (gVisor), one is made and unlinked at once."""
    with changed(os, O_TMPFILE=os.O_DIRECTORY | os.O_WRONLY):
        made, data = filled(tmp_path, 4 * MEMORY, 8 * MEMORY)
        assert list(tmp_path.iterdir()) == []
        assert made.kept() == (len(data), 0) and made.piece(0, len(data)) == data
        made.close()


def test_words_of_ours_are_left_out_of_stderr(tmp_path: Path) -> None:
    """What the agent put before a command is not what the command said."""
    made, _ = filled(tmp_path, 0, MEMORY)
    made.write(b"bash: line 1: trap x; echo (\n")
    output = Shelved({"stderr": made}, b"trap x; ")
    assert output.piece("stderr", 0, 100)[0] == b"bash: line 1: echo (\n"


def test_few_outputs_are_kept_and_not_for_long(tmp_path: Path) -> None:
    """The oldest goes when there are too many, all go when nobody asks; files are closed."""
    before = len(os.listdir("/proc/self/fd"))
    shelf = Shelf()
    numbers = [
        shelf.put(Shelved({"stdout": filled(tmp_path, 2 * MEMORY, MEMORY)[0]}, b""))
        for _ in range(spool.SHELVED + 1)
    ]
    assert shelf.get(numbers[0]) is None and shelf.get(numbers[1]) is not None
    shelf.drop(numbers[1])
    assert shelf.get(numbers[1]) is None
    with changed(spool, SHELF_LIFE=-1.0):
        assert all(shelf.get(number) is None for number in numbers)
    assert len(os.listdir("/proc/self/fd")) == before
