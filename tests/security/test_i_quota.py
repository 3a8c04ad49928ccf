"""Group I, the disk: a worktree that is filled, from inside real boxes. And the mount of G11."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from executor.errors import Code
from executor.model import LoopSpec
from executor.sandbox.quota import LONGEST, SHORTEST
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import LoopThread
from tests.loops import Work
from tests.sandbox.test_quota import MIB, attached, needs_loops, open_loop
from tests.sandbox.trees import needs_root

FILL = "head -c 100G /dev/zero > big; sleep 60"
MANY = """
import os, sys
made = 0
try:
    for number in range(1_000_000):
        os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    print(made, error.errno)
    sys.exit(3)
"""


def size_of(root: Path) -> int:
    """Allocated bytes of what lies directly in a directory."""
    return sum(path.lstat().st_blocks * 512 for path in root.iterdir())


def fill_until_ended(work: Work, command: str) -> float:
    """Runs what fills the worktree; seconds until the box was ended for it."""
    started = time.monotonic()
    result = work.call("run_command", command=command, timeout_ms=100_000)
    assert (result.is_error, result.code) == (True, Code.NO_SPACE), result.content
    assert "The loop has added" in str(result.content) and "may add" in str(result.content)
    assert "disk_bytes, disk_files" in str(result.content)
    return time.monotonic() - started


def assert_recovers(work: Work, command: str) -> None:
    """The next call is in a new box, is told why, and can make room."""
    again = work.call("run_command", command=command)
    assert again.code is None, again.content
    assert "the sandbox was lost (The loop has added" in str(again.content)
    assert work.call("run_command", command="echo fine > small && cat small").content == "fine\n"


@pytest.mark.statement("I4")
def test_watch_ends_the_box_that_fills_its_worktree(runtime: str, tmp_path: Path) -> None:
    """Within seconds of crossing; the capabilities say that it is soft, and how often it looks."""
    with open_loop(tmp_path, "watch", disk="64m", runtime=runtime) as work:
        told = work.loop.capabilities["quota"]
        assert told.startswith(f"watch: soft, looked at every {SHORTEST:g} to {LONGEST:g} s")
        assert "at most 64 MiB and 2000 files more" in told
        assert fill_until_ended(work, FILL) < LONGEST
        assert size_of(work.root) > 64 * MIB  # nothing of it was touched
        assert_recovers(work, "rm big; echo removed")


@pytest.mark.statement("I5")
def test_watch_ends_the_box_that_makes_too_many_files(runtime: str, tmp_path: Path) -> None:
    """A million empty files are stopped soon after the two thousand that are allowed."""
    with open_loop(tmp_path, "watch", runtime=runtime) as work:
        (work.root / "many.py").write_text(MANY)
        python = "/opt/executor/bin/python3 -I -S -B many.py"
        assert fill_until_ended(work, f"{python}; sleep 60") < LONGEST + 30
        assert 2000 < len(os.listdir(work.root)) < 1_000_000
        assert_recovers(work, "find . -name 'f*' -delete; echo removed")


@needs_root
@pytest.mark.statement("I4")
def test_a_file_system_of_its_own_can_not_be_overfilled(runtime: str, tmp_path: Path) -> None:
    """ENOSPC at the limit, to the block; the box lives on, the neighbour has all its room."""
    needs_loops()
    with open_loop(tmp_path, "loop-ext4", disk="64m", runtime=runtime) as work:
        assert "hard" in work.loop.capabilities["quota"]
        assert "at most 64 MiB and 20" in work.loop.capabilities["quota"]
        filled = work.call("run_command", command="head -c 100G /dev/zero > big")
        assert filled.code is Code.NO_SPACE, filled.content
        size = int(str(work.call("run_command", command="stat -c %s big").content))
        assert 63 * MIB < size <= 64 * MIB
        assert work.call("run_command", command="rm big; echo x > y").code is None
        assert os.listdir(work.root) == []
    assert os.listdir(work.root) == ["y"]
    assert attached(tmp_path) == []


@needs_root
@pytest.mark.statement("I5")
def test_a_file_system_of_its_own_has_only_so_many_files(runtime: str, tmp_path: Path) -> None:
    """ENOSPC for the file after the last one; the box lives on."""
    needs_loops()
    with open_loop(tmp_path, "loop-ext4", disk="64m", runtime=runtime) as work:
        code = work.call("write_file", path="many.py", content=MANY)
        assert code.code is None
        ran = work.call("run_command", command="/opt/executor/bin/python3 -I -S -B many.py")
        assert ran.structured is not None and ran.structured["exit_code"] == 3, ran.content
        made, error = map(int, str(ran.structured["stdout"]).split())
        assert 1990 < made < 2040
        assert error == 28
        removed = work.call("run_command", command="rm f*; echo x > y; rm many.py")
        assert removed.code is None, removed.content
    assert os.listdir(work.root) == ["y"]


@pytest.mark.statement("I4")
def test_without_a_quota_nothing_is_claimed(tmp_path: Path) -> None:
    """`none` says none, and a full file system below is no end of the box."""
    with open_loop(tmp_path, "none", disk="1m") as work:
        assert work.loop.capabilities["quota"] == "none"
        assert work.call("run_command", command="head -c 9M /dev/zero > big").code is None


@needs_root
@pytest.mark.statement("G11")
def test_the_mount_of_a_worktree_gives_no_privilege_and_is_seen_by_nobody_else(
    runtime: str, tmp_path: Path
) -> None:
    """nosuid and nodev in the box; another box sees no loop device and no such mount."""
    needs_loops()
    show = "cat /proc/self/mountinfo"
    other = make_worktree(tmp_path / "other/worktree")
    spec = LoopSpec(worktree=other, limits=LIMITS, exec_id="other", quota="none", runtime=runtime)
    with open_loop(tmp_path, "loop-ext4", runtime=runtime) as work, LoopThread() as thread:
        thread.enter(open_docker_box(spec, tmp_path / "other/state"))
        own = str(work.call("run_command", command=show).content)
        line = next(one for one in own.splitlines() if " /workspace " in one)
        if runtime == "runc":
            assert {"nosuid", "nodev"} <= set(line.split()[5].split(",")), line
        flags = [
            one for one in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in one
        ]
        assert len(flags) == 1 and "nosuid,nodev" in flags[0]
        made = work.call(
            "run_command", command="cp /usr/bin/id s && chmod 6755 s && ./s -u && id -u"
        )
        uids = str(made.content).split()
        assert made.code is None and uids[0] == uids[1]
    assert os.stat(work.root / "s").st_mode & 0o7777 == 0o755
