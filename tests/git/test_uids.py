"""Leases of uids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from executor.errors import ConfigError, SandboxUnavailable
from executor.git.uids import FIRST, lease

_HOLD = """
import sys
from pathlib import Path
from executor.git.uids import lease
held = lease(Path(sys.argv[1]), 5000, 5000)
print(held.uid, flush=True)
sys.stdin.read()
"""


def test_the_lowest_free_uid_is_leased(tmp_path: Path) -> None:
    """A lease that was closed is dealt out again, and none that is held."""
    first = lease(tmp_path)
    second = lease(tmp_path)
    assert (first.uid, second.uid) == (FIRST, FIRST + 1)
    first.close()
    with lease(tmp_path) as again:
        assert again.uid == FIRST
    second.close()


def test_no_uid_is_leased_twice(tmp_path: Path) -> None:
    """Of many that ask at once, each gets one of its own."""
    with ThreadPoolExecutor(16) as pool:
        held = list(pool.map(lambda _: lease(tmp_path, 5000, 5099), range(100)))
    assert sorted(one.uid for one in held) == list(range(5000, 5100))
    for one in held:
        one.close()


def test_closing_twice_frees_nothing_else(tmp_path: Path) -> None:
    """The second `close` does not close a descriptor that was opened meanwhile."""
    held = lease(tmp_path)
    held.close()
    other = lease(tmp_path)
    held.close()
    with lease(tmp_path) as third:
        assert third.uid != other.uid
    other.close()


def test_an_exhausted_range_is_a_clear_error(tmp_path: Path) -> None:
    """The error says how many there are, and what to do."""
    with lease(tmp_path, 5000, 5000):
        with pytest.raises(SandboxUnavailable, match="All 1 uids from 5000 to 5000 are taken"):
            lease(tmp_path, 5000, 5000)


@pytest.mark.parametrize(("first", "last"), [(0, 5), (7, 6), (-3, 5), (1, 2**31)])
def test_a_range_without_ordinary_uids_is_refused(tmp_path: Path, first: int, last: int) -> None:
    """Root is no uid of a loop, nor is a number that kernels treat specially."""
    with pytest.raises(ConfigError, match="is no range of uids"):
        lease(tmp_path, first, last)


def test_a_killed_process_frees_its_uid(tmp_path: Path) -> None:
    """`kill -9` is enough: nothing has to be cleaned up."""
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"5000\n"
        with pytest.raises(SandboxUnavailable):
            lease(tmp_path, 5000, 5000)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with lease(tmp_path, 5000, 5000) as held:
        assert held.uid == 5000


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    """Nothing is made where a link leads."""
    (tmp_path / "uids").mkdir()
    (tmp_path / "uids/5000").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SandboxUnavailable, match="No uid can be leased"):
        lease(tmp_path, 5000, 5000)
    assert not (tmp_path / "elsewhere").exists()
