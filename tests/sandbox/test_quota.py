"""Quotas: what a look finds, what a box is ended for, what becomes of a file system of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from executor.controller import Controller
from executor.errors import ConfigError, NotReturned, QuotaExceeded, SandboxError
from executor.model import Access, GitOptions, Limits, LoopSpec
from executor.sandbox import ext4, quota
from executor.sandbox.engine import Engine
from executor.sandbox.measure import Measurement, Stopped, Usage
from executor.sandbox.mirror import UNFINISHED, Mirror, Report
from executor.sandbox.ownership import open_worktree
from executor.sandbox.quota import Watch
from executor.sandbox.reaper import Identity, reap
from executor.settings import Settings
from tests.conftest import LIMITS, UID, make_worktree
from tests.driver import LoopThread
from tests.loops import Work
from tests.sandbox.trees import deep, directory, needs_root, small_disk

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@contextlib.contextmanager
def open_loop(
    base: Path,
    kind: str,
    *,
    disk: int | str = "20m",
    files: int = 2000,
    runtime: str | None = None,
    uid: int | None = None,
    sharing: str = "shared",
) -> Iterator[Work]:
    """A loop of a controller of its own, over `base/worktree`."""
    root = make_worktree(base / "worktree")
    limits = replace(LIMITS, disk_bytes=disk, disk_files=files)
    spec = LoopSpec(
        worktree=root,
        limits=limits,
        exec_id="test",
        quota=kind,
        runtime=runtime,
        uid=uid,
        git=GitOptions(sharing=sharing),
    )
    with LoopThread() as thread:
        settings = replace(Settings.load(), state_directory=base / "state")
        loop = thread.enter(thread.enter(Controller(settings)).open(spec))
        yield Work(thread, loop, root, "docker")


def needs_loops() -> None:
    """Skips, aloud, where no image can be mounted."""
    if faults := ext4.faults():
        pytest.skip(f"no loop-ext4 here: {'; '.join(faults)}")


# ─── looking ────────────────────────────────────────────────────────────────────────


def look(root: Path, **more: object) -> Usage:
    """What a tree takes."""
    with directory(root) as descriptor:
        return Measurement([descriptor], threading.Event(), **more).take()  # type: ignore[arg-type]


def test_a_look_counts_as_the_system_does(tmp_path: Path) -> None:
    """Allocated bytes and inodes: hard links once, holes not, directories too, links as links."""
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/file").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "d/file", tmp_path / "d/e/again")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / os.fsdecode(b"\xff\n\x1b")).touch()
    (tmp_path / "link").symlink_to("/")
    os.mkfifo(tmp_path / "pipe")
    found = look(tmp_path)
    said = subprocess.run(["du", "-s", "--block-size=1", tmp_path], capture_output=True, check=True)
    assert found.bytes == int(said.stdout.split()[0]) - tmp_path.stat().st_blocks * 512
    assert found.files == 7
    assert found.is_whole


def test_a_look_goes_down_without_end_and_with_few_descriptors(tmp_path: Path) -> None:
    """Ten thousand directories in one another, with room for a hundred descriptors."""
    deep(tmp_path, 10_000)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100, limits[1]))
    try:
        assert look(tmp_path).files == 10_001
        assert len(os.listdir("/proc/self/fd")) <= used + 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


@needs_root
def test_what_is_mounted_below_is_not_counted(tmp_path: Path) -> None:
    """Another file system in the worktree is not the loop's."""
    with small_disk(tmp_path / "mounted"):
        (tmp_path / "mounted/f").write_bytes(b"x" * 100_000)
        (tmp_path / "f").touch()
        assert look(tmp_path).files == 1


def test_a_look_ends_at_its_most_and_when_it_is_called_off(tmp_path: Path) -> None:
    """It stops where the limit is passed, says so, and stops for the end of its loop."""
    for number in range(2000):
        (tmp_path / str(number)).touch()
    found = look(tmp_path, most=Usage(1 << 40, 100))
    assert 100 < found.files < 2000
    assert not found.is_whole
    stop = threading.Event()
    stop.set()
    with directory(tmp_path) as descriptor, pytest.raises(Stopped):
        Measurement([descriptor], stop).take()


def test_a_look_is_not_led_astray_by_a_tree_that_changes(tmp_path: Path) -> None:
    """Directories that become links to elsewhere, or vanish: nothing there is counted."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number in range(500):
        (elsewhere / f"other{number}").touch()
    tree = tmp_path / "tree"
    for number in range(40):
        (tree / f"d{number}/e/f").mkdir(parents=True)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for number in range(40):
                place, aside = tree / f"d{number}/e", tmp_path / f"aside{number}"
                place.rename(aside)
                place.symlink_to(elsewhere)
                place.unlink()
                aside.rename(place)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        assert all(look(tree).files <= 120 for _ in range(300))
    finally:
        stop.set()
        thread.join()
    assert look(tree).files == 120


# ─── watch ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A worktree on a disk where nobody else takes or frees room."""
    with small_disk(tmp_path / "disk", "size=200m") as place:
        yield place


class Watched:
    """A watch over a directory, with a box that notes how it was ended."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.errors: asyncio.Queue[SandboxError] = asyncio.Queue()

    async def box(self) -> None:
        """A new box: admitted and guarded."""
        await self.watch.admit("box")
        self.watch.guard(self.errors.put_nowait, "box")

    async def end(self) -> SandboxError:
        """How it was ended."""
        error = await asyncio.wait_for(self.errors.get(), 60)
        self.watch.release("box")
        return error


@contextlib.asynccontextmanager
async def watched(root: Path, disk: int, files: int = 1000) -> AsyncIterator[Watched]:
    """A watch over `root`."""
    limits = Limits(disk_bytes=disk, disk_files=files)
    with open_worktree(root) as worktree:
        watch = Watch(LoopSpec(worktree=root, limits=limits), worktree)
        try:
            yield Watched(watch)
        finally:
            await watch.close()


def write(path: Path, size: int) -> None:
    """A file that takes as much as it says."""
    path.write_bytes(os.urandom(size))


@needs_root
def test_what_is_written_before_the_first_look_counts(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that a box makes at once are its own; old ones that it changes are not."""
    monkeypatch.setattr(quota, "FIRST_DELAY", 0.05)
    write(disk / "old", 30 * MIB)

    async def scenario() -> None:
        async with watched(disk, 10 * MIB) as one:
            with (disk / "old").open("r+b") as file:
                file.write(b"changed")
            write(disk / "new", 12 * MIB)
            await one.box()
            assert "has added 12 MiB" in str(await one.end())
        (disk / "new").unlink()
        async with watched(disk, 10 * MIB) as one:
            with (disk / "old").open("r+b") as file:
                file.write(b"changed again")
            await one.box()
            while one.watch._ceiling is None:
                await asyncio.sleep(0.01)
            assert one.errors.empty()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@needs_root
def test_a_box_above_the_limit_is_ended_and_may_recover(disk: Path) -> None:
    """The next box may shrink the worktree; growing on ends it; the fourth end is the last."""
    write(disk / "before", 30 * MIB)

    async def scenario() -> None:
        async with watched(disk, 10 * MIB) as one:
            await one.box()
            write(disk / "a", 9 * MIB)
            write(disk / "b", 3 * MIB)
            error = await one.end()
            assert isinstance(error, QuotaExceeded) and error.code == "NO_SPACE"
            assert re.search(r"has added 1[12]\.?\d* MiB .* may add 10 MiB", str(error))
            for number in range(quota.RECOVERIES):
                await one.box()
                write(disk / f"more{number}", 2 * MIB)
                await one.end()
            with pytest.raises(QuotaExceeded, match="No new sandbox is opened"):
                await one.box()
            (disk / "a").unlink()
            await one.box()
            write(disk / "c", 9 * MIB)
            await one.end()
        assert (disk / "before").stat().st_size == 30 * MIB

    asyncio.run(asyncio.wait_for(scenario(), 120))


@pytest.mark.parametrize(
    ("size", "files", "text"),
    [
        (50 << 20, 1_000_000, "50 MiB and 1,000,000 files"),
        ((50 << 20) // 16, 62_500, "3.1 MiB and 62,500 files"),
        (10 << 30, 2000, "10 GiB and 2000 files"),
        (3 << 40, 1, "3,072 GiB and 1 files"),
        (1023, 64, "1023 bytes and 64 files"),
    ],
)
def test_sizes_are_told_as_people_say_them(size: int, files: int, text: str) -> None:
    """A place behind the point at most, thousands apart."""
    assert quota._allowance(size, files) == text


@needs_root
def test_files_are_counted_too_and_deleting_helps(disk: Path) -> None:
    """Empty files end a box; below the limit again, all of the limit is there again."""

    async def scenario() -> None:
        async with watched(disk, 1 << 40, 500) as one:
            await one.box()
            for number in range(600):
                (disk / str(number)).touch()
            assert "and may add" in str(await one.end())
            for number in range(600):
                (disk / str(number)).unlink()
            await one.box()
            for number in range(600):
                (disk / str(number)).touch()
            assert re.search(r"and (5[0-9][0-9]|600) files", str(await one.end()))

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_watch_ends_with_its_loop_while_it_looks(tmp_path: Path) -> None:
    """Closed in the middle of its first look, it is done with the directory at once."""
    for number in range(5000):
        (tmp_path / str(number)).touch()

    async def scenario() -> None:
        used = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            async with watched(tmp_path, MIB) as one:
                await one.box()
                while not one.watch._looks:
                    await asyncio.sleep(0.001)
        assert len(os.listdir("/proc/self/fd")) <= used

    asyncio.run(asyncio.wait_for(scenario(), 60))


# ─── loop-ext4 ──────────────────────────────────────────────────────────────────────


def images(state: Path) -> list[str]:
    """What of file systems of their own is left below a state directory."""
    return [str(path.relative_to(state)) for path in sorted(state.glob("quota/*"))]


def attached(state: Path) -> list[str]:
    """Loop devices and mounts that stand on it."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    found = [text for file in files if str(state) in (text := file.read_text())]
    return found + [
        one for one in Path("/proc/mounts").read_text().splitlines() if str(state) in one
    ]


@needs_root
def test_a_loop_works_in_a_copy_and_its_changes_come_back(tmp_path: Path) -> None:
    """Files keep their owner, `.git` is not touched, the rest is as the loop left it."""
    needs_loops()
    root = make_worktree(tmp_path / "worktree")
    (root / ".git").write_text("gitdir: /elsewhere\n")
    for name in ("kept", "changed", "removed"):
        (root / name).write_text("old\n")
    for path in (root, *root.iterdir()):
        os.chown(path, UID, UID)
    kept = (root / "kept").stat()
    with open_loop(tmp_path, "loop-ext4", sharing="hidden") as work:
        assert "loop-ext4: hard" in work.loop.capabilities["quota"]
        assert any("does not change before" in one for one in work.loop.capabilities["notices"])
        ran = work.call(
            "run_command",
            command="cat .git; rm removed; echo new > changed; mkdir d; echo x > d/f; ln -s / l; "
            "cp /bin/true s; chmod 4755 s; mkfifo pipe",
        )
        assert ran.code is None and "git-is-not-available" in str(ran.content)
        assert work.call("write_file", path="written", content="w").code is None
        assert (root / "changed").read_text() == "old\n"
        assert not (root / "d").exists()
    assert sorted(os.listdir(root)) == [".git", "changed", "d", "kept", "l", "s", "written"]
    assert (root / "changed").read_text() == "new\n"
    assert (root / ".git").read_text() == "gitdir: /elsewhere\n"
    assert {path.lstat().st_uid for path in root.iterdir()} == {UID}
    assert stat.S_IMODE((root / "s").stat().st_mode) == 0o755
    assert (root / "kept").stat() == kept
    assert images(tmp_path / "state") == attached(tmp_path / "state") == []


@needs_root
def test_a_lost_box_is_replaced_over_the_same_file_system(tmp_path: Path) -> None:
    """What one box wrote, the next one has; it comes back when the loop ends."""
    needs_loops()
    with open_loop(tmp_path, "loop-ext4") as work:
        assert work.call("write_file", path="f", content="first").code is None
        lost = work.call(
            "run_command", command="kill -STOP 1; kill -9 -1; sleep 60", timeout_ms=500
        )
        again = work.call("read_file", path="f")
        assert "first" in str(again.content), (lost.content, again.content)
    assert (tmp_path / "worktree/f").read_text() == "first"
    assert attached(tmp_path / "state") == []


@needs_root
def test_what_cannot_come_back_is_kept_and_named(tmp_path: Path) -> None:
    """A file that somebody changed meanwhile stays; the loop's is in the image that is named."""
    needs_loops()
    root = make_worktree(tmp_path / "worktree")
    (root / "f").write_text("old")
    os.chown(root / "f", UID, UID)
    with pytest.raises(NotReturned, match="Changed outside") as caught:
        with open_loop(tmp_path, "loop-ext4") as work:
            assert work.call("run_command", command="echo loop > f; echo loop > g").code is None
            (root / "f").write_text("person")
    assert (root / "f").read_text() == "person"
    assert (root / "g").read_text() == "loop\n"
    found = re.search(r"kept in (\S+\.ext4) \(mount", str(caught.value))
    assert found is not None
    assert attached(tmp_path / "state") == []
    image = Path(found[1]).stat()
    assert image.st_blocks * 512 < image.st_size / 2  # what it does not use was given back
    with mounted(Path(found[1]), tmp_path / "look") as look:
        assert (look / "tree/f").read_text() == "loop\n"


@contextlib.contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    """A kept image, as its message tells to look at it."""
    place.mkdir()
    subprocess.run(["mount", "-o", "loop,ro,nosuid,nodev", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@needs_root
def test_without_room_or_right_the_loop_is_refused_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the disk has, no program, no root: a ConfigError, and nothing is left."""
    needs_loops()
    with pytest.raises(ConfigError, match=r"can't be copied.*use quota watch"):
        with open_loop(tmp_path, "loop-ext4", disk="4000t"):
            pass
    assert images(tmp_path / "state") == attached(tmp_path / "state") == []
    monkeypatch.setitem(ext4.PROGRAMS, "mkfs.ext4", ("/nonexistent",))
    with pytest.raises(ConfigError, match=r"mkfs.ext4 is not installed.*e2fsprogs"):
        with open_loop(tmp_path, "loop-ext4"):
            pass
    monkeypatch.setattr(os, "geteuid", lambda: UID)
    assert "only root may mount" in ext4.faults()


def test_programs_are_named_by_fixed_paths_and_get_a_fixed_environment() -> None:
    """Statement H15: nothing is searched for, and no variable of ours reaches a program."""
    assert all(path.startswith("/") for paths in ext4.PROGRAMS.values() for path in paths)
    assert set(ext4.ENVIRONMENT) == {"PATH", "LC_ALL"}
    source = Path(ext4.__file__).read_text()
    assert source.count("subprocess.run(") == 1
    assert "shell=" not in source


@needs_root
@pytest.mark.parametrize("fault", [ValueError("odd"), MemoryError(), RecursionError("deep")])
def test_no_fault_of_ours_costs_what_a_loop_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """Whatever a merge fails with: mount and device are freed, the image is kept and named."""
    needs_loops()

    def fail(mirror: Mirror) -> Report:
        raise fault

    with pytest.raises(NotReturned, match=type(fault).__name__) as caught:
        with open_loop(tmp_path, "loop-ext4") as work:
            assert work.call("write_file", path="f", content="loop").code is None
            monkeypatch.setattr(Mirror, "run", fail)
    assert attached(tmp_path / "state") == []
    assert kept_file(str(caught.value), tmp_path) == "loop"


@needs_root
def test_what_is_not_on_the_disk_yet_is_not_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image is removed only once the worktree's disk has taken all that came back."""
    needs_loops()

    def fail(directory: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with pytest.raises(NotReturned, match="the disk is broken") as caught:
        with open_loop(tmp_path, "loop-ext4") as work:
            assert work.call("write_file", path="f", content="loop").code is None
            monkeypatch.setattr(ext4, "_write_out", fail)
    assert kept_file(str(caught.value), tmp_path) == "loop"


@needs_root
def test_bringing_back_is_called_off_by_a_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled end does not wait for the merge; the image is kept, and what was told is told."""
    needs_loops()
    root = make_worktree(tmp_path / "worktree")
    limits = replace(LIMITS, disk_bytes="20m", disk_files=100)
    spec = LoopSpec(worktree=root, limits=limits, exec_id="test", quota="loop-ext4")
    steps: list[str] = []
    run = Mirror.run

    async def scenario() -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None

        def wait(mirror: Mirror) -> Report:
            assert mirror._stop.wait(60)
            return run(mirror)

        def told(step: str, done: int | None, total: int | None) -> None:
            if not steps:
                loop.call_soon(task.cancel)
            steps.append(step)

        with Identity.claim(tmp_path / "state") as identity:
            async with quota.opened(spec, identity, True, (), told) as own:
                place = own.place()
                assert place is not None
                (place.path / "f").write_text("loop")
                place.close()
                monkeypatch.setattr(Mirror, "run", wait)
                steps.clear()

    with pytest.raises(asyncio.CancelledError) as caught:
        asyncio.run(asyncio.wait_for(scenario(), 60))
    assert "bringing the loop's changes back" in steps[0]
    assert "called off" in caught.value.__notes__[0]
    assert attached(tmp_path / "state") == []
    assert kept_file(caught.value.__notes__[0], tmp_path) == "loop"


CALLS = [
    {"id": "1", "name": "run_command", "input": {"command": "seq 40000 | xargs touch; echo made"}},
    {"id": "2", "name": "run_command", "input": {"command": "echo loop > f; sleep 600"}},
]


@needs_root
@pytest.mark.parametrize("is_running", [True, False])
def test_ctrl_c_while_changes_come_back_leaves_them_in_an_image(
    tmp_path: Path, is_running: bool
) -> None:
    """At the loop's end, or after an earlier Ctrl-C: it ends soon and says where all of it is."""
    needs_loops()
    root, calls = make_worktree(tmp_path / "worktree"), tmp_path / "calls"
    calls.write_text("".join(json.dumps(one) + "\n" for one in CALLS[: 1 + is_running]))
    options = ["--worktree", root, "--calls", calls, "--quota", "loop-ext4", "--disk", "200m"]
    with subprocess.Popen(
        [sys.executable, "-m", "executor", "run", *map(str, options)],
        cwd=ROOT,
        env=os.environ | {"EXECUTOR_STATE_DIR": str(tmp_path / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["code"] is None
        if is_running:
            process.send_signal(signal.SIGINT)
        said = next(line for line in process.stderr if "bringing the loop's changes" in line)
        assert "Ctrl-C" in said
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT
    assert "was called off" in rest and "Traceback" not in rest, rest
    assert attached(tmp_path / "state") == []
    assert len(os.listdir(root)) < 40_000
    found = re.search(r"kept in (\S+\.ext4) \(mount", rest)
    assert found is not None
    with mounted(Path(found[1]), tmp_path / "look") as look:
        assert len(os.listdir(look / "tree")) >= 40_000


def kept_file(message: str, base: Path) -> str:
    """The content of `f` in the image that a message names."""
    found = re.search(r"kept in (\S+\.ext4) \(mount", message)
    assert found is not None, message
    with mounted(Path(found[1]), base / "look") as look:
        return (look / "tree/f").read_text()


HOLDER = """
import sys, threading
from pathlib import Path
from executor.sandbox.ext4 import FileSystem
from executor.sandbox.mirror import Mirror
from executor.sandbox.ownership import open_worktree
from executor.sandbox.reaper import Identity
state, worktree, stage = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
identity = Identity.claim(state)
system = FileSystem(identity.state, identity.id, "test")
tree = open_worktree(worktree)
if stage == "filling":
    mark = Path.touch
    Path.touch = lambda path: (print("there", flush=True), sys.stdin.read())
system.open(tree, 1 << 24, 100, threading.Event())
(system.tree / "result").write_text("result")
if stage == "merging":
    Mirror._put = lambda *_: (print("there", flush=True), sys.stdin.read())
    system.bring_back(tree, threading.Event())
if stage == "returned":
    system.bring_back(tree, threading.Event())
print("there", flush=True)
sys.stdin.read()
"""


@needs_root
@pytest.mark.parametrize(
    ("stage", "is_kept"), [("filling", 0), ("open", 1), ("merging", 1), ("returned", 0)]
)
def test_a_dead_controller_leaves_no_mount_and_loses_no_result(
    tmp_path: Path, stage: str, is_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After kill -9 the reaper unmounts, frees the device, and keeps what may hold results."""
    needs_loops()
    root = make_worktree(tmp_path / "worktree")
    (root / "f").write_text("f")
    state = tmp_path / "state"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state), str(root), stage],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert len(attached(state)) == 2
        living = asyncio.run(sweep(state))
        assert (living, len(attached(state))) == ((), 2)
        process.send_signal(signal.SIGKILL)
    kept = asyncio.run(sweep(state))
    assert len(kept) == is_kept
    assert images(state) == attached(state) == []
    assert os.listdir(state / "controllers") == []
    assert (root / "result").exists() == (stage == "returned")
    if is_kept:
        assert kept[0].parent == state.resolve() / "kept"
        assert str(kept[0]) in caplog.text
        assert f"brought back to '{root}'" in caplog.text
        assert all(name.startswith(UNFINISHED) for name in os.listdir(root) if name != "f")
        assert len(os.listdir(root)) == 1 + (stage == "merging")
        assert UNFINISHED in caplog.text
        with mounted(kept[0], tmp_path / "look") as look:
            assert (look / "tree/result").read_text() == "result"
    assert asyncio.run(sweep(state)) == ()


async def sweep(state: Path) -> tuple[Path, ...]:
    """What a pass of the reaper kept; nothing failed."""
    async with await Engine.connect(Settings.load()) as engine:
        reaped = await reap(engine, state)
    assert reaped.failures == ()
    return reaped.kept


@needs_root
def test_a_controller_killed_with_a_box_open_loses_no_result(tmp_path: Path) -> None:
    """`executor run` ended by SIGKILL in mid-call: box, mount and device go, the image stays."""
    needs_loops()
    root, state = make_worktree(tmp_path / "worktree"), tmp_path / "state"
    commands = "echo result > f; sync", "sleep 600"
    calls = tmp_path / "calls"
    calls.write_text(
        "".join(
            json.dumps({"id": command, "name": "run_command", "input": {"command": command}}) + "\n"
            for command in commands
        )
    )
    options = ["--worktree", root, "--calls", calls, "--quota", "loop-ext4", "--disk", "8m"]
    with subprocess.Popen(
        [sys.executable, "-m", "executor", "run", *map(str, options)],
        cwd=ROOT,
        env=os.environ | {"EXECUTOR_STATE_DIR": str(state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["code"] is None
        process.send_signal(signal.SIGKILL)
    kept = asyncio.run(sweep(state))
    assert (len(kept), attached(state), os.listdir(root)) == (1, [], [])
    with mounted(kept[0], tmp_path / "look") as look:
        assert (look / "tree/f").read_text() == "result\n"


@needs_root
def test_an_image_in_use_is_left_to_a_later_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process still has open is neither moved nor removed, and said."""
    needs_loops()
    monkeypatch.setattr(ext4, "UNMOUNT_PATIENCE", 0.2)
    root = make_worktree(tmp_path / "worktree")
    with Identity.claim(tmp_path / "state") as identity, open_worktree(root) as worktree:
        system = ext4.FileSystem(identity.state, identity.id, "test")
        system.open(worktree, 1 << 20, 10, threading.Event())
        names = list(ext4.left(identity.state))
        with (system.tree / "open").open("w"):
            recovered = ext4.recover(identity.state, names)
            assert recovered.kept == ()
            assert recovered.unfinished == {identity.id}
            assert "umount failed" in recovered.failures[0]
            assert len(attached(tmp_path / "state")) == 2
        assert ext4.recover(identity.state, names).kept == (system.kept,)
    assert attached(tmp_path / "state") == []


@needs_root
def test_mounts_of_any_name_do_not_hinder_the_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other mounts of the machine may have any bytes in their names; ours is found among them."""
    mounts = tmp_path / "mountinfo"
    ours = tmp_path / "a b"
    line = b"1 2 0:1 / %s rw - tmpfs x rw\n"
    escaped = os.fsencode(ours).replace(b" ", b"\\040")
    mounts.write_bytes(line % b"/m/\xff\x0b\x1c\r" + line % b"/m/\xc2\x85" + line % escaped)
    monkeypatch.setattr(ext4, "_MOUNTS", mounts)
    assert ext4._is_mounted(ours)
    assert not ext4._is_mounted(tmp_path / "a")


@needs_root
def test_a_clock_that_was_set_back_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the times of change nothing was changed then: the image is kept, with the reason."""
    needs_loops()
    root = make_worktree(tmp_path / "worktree")
    with Identity.claim(tmp_path / "state") as identity, open_worktree(root) as worktree:
        system = ext4.FileSystem(identity.state, identity.id, "test")
        system.open(worktree, 1 << 20, 10, threading.Event())
        now = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
        with pytest.raises(OSError, match="clock was set back by 3600"):
            system.bring_back(worktree, threading.Event())
        assert system.release() == system.kept


# ─── a full disk ────────────────────────────────────────────────────────────────────


def writing_tools(work: Work, reason: str = "no space left") -> None:
    """Every writing tool over a full worktree: the old content stays, nothing is left beside."""
    tools = {tool.name for tool in work.loop.registry.all() if tool.access is Access.WRITE}
    assert tools == {"write_file", "edit_file", "notebook_edit", "move_file", "delete_file"}
    old = {"read": "old\n" * 10, "d/moved": "moved\n", "n.ipynb": NOTEBOOK}
    for name, content in old.items():
        assert work.call("write_file", path=name, content=content).code is None
        assert work.call("read_file", path=name).code is None
    filled = work.call("run_command", command=FILL)
    assert filled.code is None, filled.content
    before = work.call("run_command", command=LIST)
    big = "x" * 300_000
    calls = [
        ("write_file", {"path": "read", "content": big}),
        ("edit_file", {"path": "read", "old_string": "old\n" * 10, "new_string": big}),
        ("write_file", {"path": "new/deeper/file", "content": big}),
        ("move_file", {"from": "d/moved", "to": "new/deeper/moved"}),
        ("notebook_edit", {**CELL, "new_source": big}),
    ]
    for name, given in calls:
        result = work.call(name, **given)
        assert (result.is_error, result.code) == (True, "NO_SPACE"), (name, result.content)
        assert reason in str(result.content)
        after = work.call("run_command", command=LIST)
        assert after.content == before.content, name
    for name, content in old.items():
        shown = work.call("run_command", command=f"cat {name}")
        assert shown.content == content
    ran = work.call("run_command", command="echo more > more.txt && head -c 9999 /dev/zero > z")
    assert ran.code == "NO_SPACE"


NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}\n'
CELL = {"notebook_path": "n.ipynb", "cell_type": "code", "edit_mode": "insert"}
FILL = """mkdir fill; head -c 1000000000 /dev/zero > fill/big 2>/dev/null
i=0; while mkdir fill/$i 2>/dev/null; do i=$((i+1)); done
i=0; while echo -n x 2>/dev/null > fill/f$i && [ -s fill/f$i ]; do i=$((i+1)); done
rm -f fill/f$i; for n in 1 2 3; do echo x >> fill/big; done 2>/dev/null; true"""
LIST = "find . -printf '%p %s %y\\n' | sort; cat read | md5sum"


@needs_root
def test_on_a_full_worktree_every_writing_tool_keeps_the_old(tmp_path: Path) -> None:
    """ENOSPC of a file system of its own."""
    needs_loops()
    with open_loop(tmp_path, "loop-ext4", disk="4m", files=300) as work:
        writing_tools(work)


@needs_root
def test_on_a_full_tmpfs_every_writing_tool_keeps_the_old(tmp_path: Path) -> None:
    """ENOSPC of memory, where files are made as long as there are inodes."""
    with small_disk(tmp_path / "worktree", "size=4m,nr_inodes=300"):
        with open_loop(tmp_path, "none") as work:
            writing_tools(work)


@needs_root
def test_above_a_quota_of_the_file_system_every_writing_tool_keeps_the_old(tmp_path: Path) -> None:
    """EDQUOT, of a btrfs subvolume with a limit of 8 MiB."""
    needs_loops()
    with limited_btrfs(tmp_path) as base:
        with open_loop(base, "none") as work:
            writing_tools(work, "quota is used up")


@contextlib.contextmanager
def limited_btrfs(base: Path) -> Iterator[Path]:
    """A directory whose `worktree` has a quota."""
    image, place = base / "btrfs", base / "mount"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(256 * MIB)

    def run(*command: str | Path) -> bool:
        return not subprocess.run(command, capture_output=True, check=False).returncode

    with contextlib.suppress(FileNotFoundError):
        if run("mkfs.btrfs", "-q", image) and run("mount", "-o", "loop", image, place):
            try:
                worktree = place / "worktree"
                made = run("btrfs", "quota", "enable", place)
                made &= run("btrfs", "subvolume", "create", worktree)
                made &= run("btrfs", "qgroup", "limit", "8M", worktree)
                assert made
                yield place
            finally:
                subprocess.run(["umount", place], check=True)
            return
    pytest.skip("no btrfs with quotas here")
