"""One tree made like another: what comes along, what stays, what nobody overwrites."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executor.sandbox import content, descent, mirror
from executor.sandbox.mirror import Mirror, Origin, Report
from tests.sandbox.trees import (
    alter,
    deep,
    directory,
    grow,
    needs_root,
    remove,
    small_disk,
    snapshot,
)

ROOT = Path(__file__).parents[2]
SEEDS = 12
LEVELS = 3000

pytestmark = needs_root


class Pair:
    """A worktree and its copy."""

    def __init__(self, base: Path) -> None:
        self.outside = base / "worktree"
        self.inside = base / "copy"
        self.outside.mkdir(exist_ok=True)
        self.inside.mkdir(exist_ok=True)
        self.opened_at = self.filled_at = 0
        self.directories: dict[int, Origin] = {}

    def fill(self, hidden: frozenset[str] = frozenset()) -> Report:
        """Outside → inside."""
        self.opened_at = settled()
        with directory(self.outside) as source, directory(self.inside) as target:
            report = Mirror(
                source, target, threading.Event(), hidden=hidden, directories=self.directories
            ).run()
        self.filled_at = settled()
        return report

    def bring_back(self, hidden: frozenset[str] = frozenset()) -> Report:
        """Inside → outside."""
        with directory(self.inside) as source, directory(self.outside) as target:
            return Mirror(
                source,
                target,
                threading.Event(),
                changed_since=self.filled_at,
                foreign_since=self.opened_at,
                hidden=hidden,
                directories=self.directories,
            ).run()


def settled() -> int:
    """The time, once the file system's clock, which goes in steps, has come to it."""
    now = time.time_ns()
    probe = Path("/tmp") / f".clock-{os.getpid()}"
    while True:
        probe.touch()
        seen = probe.stat().st_ctime_ns
        probe.unlink()
        if seen > now:
            return seen


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """An empty worktree and its copy."""
    return Pair(tmp_path)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_copy_is_alike_and_what_changed_in_it_comes_back(tmp_path: Path, seed: int) -> None:
    """Random trees, random changes: both sides are equal after each way, and nothing else moved."""
    dice = random.Random(seed)
    pair = Pair(tmp_path)
    grow(pair.outside, dice, 80)
    before = snapshot(pair.outside)
    pair.fill()
    assert snapshot(pair.inside) == before
    assert snapshot(pair.outside) == before
    alter(pair.inside, dice, 40)
    wanted = snapshot(pair.inside)
    report = pair.bring_back()
    assert (report.kept, report.failed) == ([], [])
    assert without_link_groups(snapshot(pair.outside)) == without_link_groups(wanted)
    again = pair.bring_back()
    assert again.is_whole


def without_link_groups(tree: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """Which names share an inode may differ: files that are alike are not linked anew."""
    return {name: facts[:6] if len(facts) > 6 else facts for name, facts in tree.items()}


def test_what_is_the_same_is_not_touched(pair: Pair) -> None:
    """A file that the loop did not change keeps its inode and its time of change."""
    for name in ("same", "touched", "changed"):
        (pair.outside / name).write_text(name)
    pair.fill()
    before = {name: (pair.outside / name).stat() for name in ("same", "touched", "changed")}
    (pair.inside / "changed").write_text("new")
    os.utime(pair.inside / "touched", ns=(1, 1))
    assert pair.bring_back().written == 1
    after = {name: (pair.outside / name).stat() for name in before}
    assert after["same"] == before["same"]
    assert after["touched"].st_ino == before["touched"].st_ino
    assert after["touched"].st_mtime_ns == 1
    assert after["changed"].st_ino != before["changed"].st_ino


def test_changes_of_somebody_else_are_not_overwritten(pair: Pair) -> None:
    """What both sides changed, and what only the outside changed, stays as it is outside."""
    for name in ("both", "theirs", "removed", "deleted inside", "mine"):
        (pair.outside / name).write_text("old")
    (pair.outside / "directory").mkdir()
    pair.fill()
    for name in ("both", "mine"):
        (pair.inside / name).write_text("by the loop")
    (pair.inside / "deleted inside").unlink()
    (pair.inside / "directory").rmdir()
    for name in ("both", "theirs", "deleted inside", "new outside"):
        (pair.outside / name).write_text("by a person")
    (pair.outside / "directory/file").write_text("by a person")
    (pair.outside / "removed").unlink()
    report = pair.bring_back()
    assert {path.name: path.read_text() for path in pair.outside.iterdir() if path.is_file()} == {
        "both": "by a person",
        "theirs": "by a person",
        "deleted inside": "by a person",
        "new outside": "by a person",
        "mine": "by the loop",
    }
    assert (pair.outside / "directory/file").read_text() == "by a person"
    assert not report.is_whole
    told = "\n".join(report.kept)
    assert all(name in told for name in ("both", "deleted inside", "new outside", "directory"))


def test_a_directory_that_somebody_moved_is_left_as_it_is(pair: Pair) -> None:
    """One that a person gave the name of another keeps all that is in it; both are told."""
    for name in ("a", "c", "c/below"):
        (pair.outside / name).mkdir()
        (pair.outside / name / "old").write_text(name)
    pair.fill()
    (pair.inside / "a/new").write_text("by the loop")
    (pair.outside / "a").rename(pair.outside / "b")
    (pair.outside / "c").rename(pair.outside / "a")
    before = snapshot(pair.outside)
    report = pair.bring_back()
    assert snapshot(pair.outside) == before
    told = "\n".join(report.kept)
    assert "'a': another directory was moved there" in told
    assert "'b'" in told and "'c'" in told


@pytest.mark.parametrize("order", ["xy", "yx"])
def test_a_moved_directory_comes_with_all_that_is_in_it(tmp_path: Path, order: str) -> None:
    """Though the directory that is made for it may get the inode of the one removed for it."""
    for number in range(10):
        base = tmp_path / str(number)
        base.mkdir()
        pair = Pair(base)
        (pair.outside / order[1]).mkdir()
        (pair.outside / order[0] / "d").mkdir(parents=True)
        (pair.outside / order[0] / "d/old").write_text("old")
        pair.fill()
        (pair.inside / order[0] / "d").rename(pair.inside / order[1] / "d")
        assert pair.bring_back().is_whole
        assert snapshot(pair.outside).keys() == {"x", "y", f"{order[1]}/d", f"{order[1]}/d/old"}


def test_what_could_not_be_removed_is_named_from_the_root_on(pair: Pair) -> None:
    """The report tells where in the worktree a thing is, however deep in what was removed."""
    (pair.outside / "a/b/c").mkdir(parents=True)
    (pair.outside / "a/b/c/f").write_text("old")
    pair.fill()
    remove(pair.inside / "a/b")
    (pair.outside / "a/b/c/f").write_text("by a person")
    report = pair.bring_back()
    assert "'a/b/c/f': changed or made there meanwhile" in report.kept
    assert (pair.outside / "a/b/c/f").read_text() == "by a person"


def test_attributes_that_the_loop_removed_go(pair: Pair) -> None:
    """Who takes a right to read away has it taken away outside, too, and nothing inherits it."""
    pair.outside.joinpath("d").mkdir()
    for path, kind in ((pair.outside / "f", "access"), (pair.outside / "d", "default")):
        path.touch()
        with contextlib.suppress(OSError):
            os.setxattr(path, f"system.posix_acl_{kind}", ACCESS_LIST)
    if "system.posix_acl_access" not in os.listxattr(pair.outside / "f"):
        pytest.skip("no access lists on this file system")
    os.setxattr(pair.outside / "f", "user.note", b"old")
    pair.fill()
    for name in os.listxattr(pair.inside / "f"):
        os.removexattr(pair.inside / "f", name)
    (pair.inside / "f").chmod(0o600)
    os.removexattr(pair.inside / "d", "system.posix_acl_default")
    (pair.inside / "d/new").write_text("x")
    (pair.inside / "d/new").chmod(0o640)
    assert pair.bring_back().is_whole
    for name, mode in (("f", 0o600), ("d/new", 0o640), ("d", 0o755)):
        assert os.listxattr(pair.outside / name) == []
        assert stat.S_IMODE((pair.outside / name).stat().st_mode) == mode


ACCESS_LIST = struct.pack(
    "<I" + "HHI" * 5,
    *(2, 1, 6, 2**32 - 1, 2, 6, 4321, 4, 4, 2**32 - 1, 16, 6, 2**32 - 1, 32, 4, 2**32 - 1),
)
"""Of version 2: owner rw, uid 4321 rw, group r, mask rw, others r."""


def test_a_link_in_the_way_is_replaced_not_followed(pair: Pair, tmp_path: Path) -> None:
    """Links on either side to the outside: nothing behind them is read, written or removed."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "f").write_text("canary")
    (pair.outside / "link").symlink_to(canary)
    (pair.outside / "file link").symlink_to(canary / "f")
    (pair.outside / "directory").mkdir()
    (pair.outside / "directory/f").write_text("x")
    pair.fill()
    assert (pair.inside / "link").is_symlink()
    (pair.inside / "link").unlink()
    (pair.inside / "link").mkdir()
    (pair.inside / "link/f").write_text("mine")
    (pair.inside / "file link").unlink()
    (pair.inside / "file link").write_text("mine")
    remove(pair.inside / "directory")
    (pair.inside / "directory").symlink_to(canary)
    assert pair.bring_back().is_whole
    assert snapshot(pair.outside).keys() == {"link", "link/f", "file link", "directory"}
    assert os.readlink(pair.outside / "directory") == str(canary)
    assert [(one.name, one.read_text()) for one in canary.iterdir()] == [("f", "canary")]


def test_a_name_that_is_swapped_under_a_merge_gives_nothing_away(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes the name of an entry that was just looked at or made keeps its owner."""
    (pair.outside / "store").write_text("same")
    (pair.outside / "secret").mkdir()
    (pair.outside / "secret/key").write_text("key")
    (pair.outside / "file").write_text("same")
    pair.fill()
    (pair.inside / "file").chmod(0o777)
    (pair.inside / "made").mkdir()
    (pair.inside / "link").symlink_to("file")
    for name in ("file", "made", "link"):
        os.chown(pair.inside / name, 1000, 1000, follow_symlinks=False)
    opened, mkdir, symlink = content.opened, os.mkdir, os.symlink
    root = (pair.outside.stat().st_dev, pair.outside.stat().st_ino)

    def swap(name: str, by: str, at: int) -> None:
        status = os.fstat(at)
        if (status.st_dev, status.st_ino) == root:
            os.rename(name, f"{by} before", dst_dir_fd=at, src_dir_fd=at)
            os.rename(by, name, src_dir_fd=at, dst_dir_fd=at)

    def swapped_open(name: str, at: int) -> object:
        if name == "file":
            swap(name, "store", at)
        return opened(name, at)

    def swapped_mkdir(name: str, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        swap(name, "secret", dir_fd)

    def swapped_symlink(to: str, name: str, *, dir_fd: int) -> None:
        (tmp_path / "worktree/plain").write_text("x")
        symlink(to, name, dir_fd=dir_fd)
        swap(name, "plain", dir_fd)

    monkeypatch.setattr("executor.sandbox.mirror.opened", swapped_open)
    monkeypatch.setattr(os, "mkdir", swapped_mkdir)
    monkeypatch.setattr(os, "symlink", swapped_symlink)
    report = pair.bring_back()
    told = "\n".join(report.failed)
    assert all(f"'{name}'" in told for name in ("file", "made", "link")), told
    assert (pair.outside / "file").stat().st_uid == 0
    assert (pair.outside / "made").stat().st_uid == 0
    assert (pair.outside / "made/key").read_text() == "key"
    assert not [one.name for one in pair.outside.iterdir() if one.name == "plain"]


def test_a_name_that_is_swapped_gets_no_other_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hard links are made of what was brought back, not of what a closed directory hides."""
    for name in ("a", "b", "closed"):
        (pair.outside / name).mkdir()
    (pair.outside / "closed/f").write_text("secret")
    pair.fill()
    (pair.inside / "a/f").write_text("mine")
    os.link(pair.inside / "a/f", pair.inside / "b/f")
    at = descent.at

    def swapped(root: int, parts: tuple[str, ...], act: Callable[[int], None]) -> None:
        (pair.outside / parts[0]).rename(pair.outside / "aside")
        (pair.outside / "closed").rename(pair.outside / parts[0])
        at(root, parts, act)

    monkeypatch.setattr("executor.sandbox.mirror.at", swapped)
    pair.bring_back()
    assert [path.read_text() for path in pair.outside.glob("[ab]*/f")].count("secret") == 1
    assert {path.stat().st_nlink for path in pair.outside.glob("*/f")} == {1}


def test_a_secret_that_is_swapped_in_under_a_filling_keeps_its_owner(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy has the owner and the mode of the file that its content is from."""
    (pair.outside / "name").write_text("mine")
    os.chown(pair.outside / "name", 1000, 1000)
    (pair.outside / "secret").write_text("secret")
    (pair.outside / "secret").chmod(0o600)
    opened = content.opened

    def swapped(name: str, at: int) -> object:
        if name == "name":
            (pair.outside / "secret").rename(pair.outside / "name")
        return opened(name, at)

    monkeypatch.setattr("executor.sandbox.mirror.opened", swapped)
    pair.fill()
    found = (pair.inside / "name").stat()
    assert (pair.inside / "name").read_text() == "secret"
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o600)


def test_files_of_several_names_far_down_end_in_the_report(pair: Pair) -> None:
    """The way to a first name is gone anew for each other one, so it has an end; depth has none."""
    pair.fill()
    deep(pair.inside, mirror.MAX_DEPTH + 2)
    lowest = pair.inside.joinpath(*["d"] * (mirror.MAX_DEPTH + 2))
    (lowest / "one").write_text("x")
    os.link(lowest / "one", lowest / "two")
    report = pair.bring_back()
    assert (report.count, len(report.failed)) == (2, 2)
    assert "several names" in report.failed[0]


def test_holes_are_not_read_to_see_whether_files_are_alike(tmp_path: Path) -> None:
    """Two files of 8 TiB, nearly all of it hole, are told apart at once."""
    with small_disk(tmp_path / "disk") as disk:
        for name in ("one", "other"):
            with (disk / name).open("wb") as file:
                file.truncate(1 << 43)
                file.seek(1 << 42)
                file.write(b"middle")
        with (disk / "one").open("rb") as one, (disk / "other").open("r+b") as other:
            assert content.same_content(one.fileno(), other.fileno())
            other.seek(1 << 41)
            other.write(b"x")
            other.flush()
            assert not content.same_content(one.fileno(), other.fileno())
            assert not content.same_content(other.fileno(), one.fileno())


def test_a_file_that_grows_is_copied_as_far_as_it_was(tmp_path: Path) -> None:
    """Who appends faster than it is read does not fill the disk with the copy."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("old")
    status = source.stat()
    source.write_text("old and new")
    with source.open("rb") as one, target.open("wb") as other:
        content.copy(one.fileno(), other.fileno(), status)
    assert target.read_text() == "old"


def test_privileges_and_special_files_stay_inside(pair: Pair) -> None:
    """Set-uid and set-gid bits, devices, pipes and sockets do not come back; those outside stay."""
    os.mkfifo(pair.outside / "pipe")
    (pair.outside / "old").write_text("x")
    (pair.outside / "old").chmod(0o4755)
    pair.fill()
    assert not (pair.inside / "pipe").exists()
    for name in ("setuid", "setgid"):
        (pair.inside / name).write_text("x")
    (pair.inside / "setuid").chmod(0o4755)
    (pair.inside / "setgid").chmod(0o2755)
    (pair.inside / "place").mkdir()
    (pair.inside / "place").chmod(0o2777)
    (pair.inside / "old").write_text("changed")
    (pair.inside / "old").chmod(0o6755)
    os.mkfifo(pair.inside / "new pipe")
    os.mknod(pair.inside / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    report = pair.bring_back()
    assert (report.is_whole, report.left_out) == (True, 2)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in pair.outside.iterdir()}
    assert modes == {
        "pipe": modes["pipe"],
        "old": 0o755,
        "setuid": 0o755,
        "setgid": 0o755,
        "place": 0o777,
    }


def test_hidden_names_are_left_alone(pair: Pair) -> None:
    """The worktree's `.git` is neither copied nor written, replaced or removed; one below is."""
    (pair.outside / ".git").mkdir()
    (pair.outside / ".git/config").write_text("[core]")
    (pair.outside / "sub/.git").mkdir(parents=True)
    hidden = frozenset({".git"})
    pair.fill(hidden)
    assert snapshot(pair.inside).keys() == {"sub", "sub/.git"}
    (pair.inside / ".git").write_text("evil")
    (pair.inside / "sub/.git/config").write_text("x")
    assert pair.bring_back(hidden).is_whole
    assert (pair.outside / ".git/config").read_text() == "[core]"
    assert (pair.outside / "sub/.git/config").read_text() == "x"


def test_holes_attributes_and_links_are_kept(pair: Pair) -> None:
    """A sparse file of 1 GiB takes no room on either way, hard links stay one file."""
    with (pair.outside / "sparse").open("wb") as file:
        file.seek(1 << 30)
        file.write(b"end")
    (pair.outside / "one").write_text("x")
    os.link(pair.outside / "one", pair.outside / "two")
    pair.fill()
    assert (pair.inside / "one").stat().st_nlink == 2
    with (pair.inside / "sparse").open("r+b") as file:
        file.seek(1 << 29)
        file.write(b"middle")
    os.link(pair.inside / "one", pair.inside / "three")
    (pair.inside / "one").write_text("changed")
    assert pair.bring_back().is_whole
    found = {name: (pair.outside / name).stat() for name in ("one", "two", "three", "sparse")}
    assert len({found[name].st_ino for name in ("one", "two", "three")}) == 1
    assert (pair.outside / "three").read_text() == "changed"
    assert found["sparse"].st_size == (1 << 30) + 3
    assert found["sparse"].st_blocks * 512 < 1 << 20
    with (pair.outside / "sparse").open("rb") as file:
        file.seek(1 << 29)
        assert file.read(6) == b"middle"


def test_deeper_than_any_path_and_with_few_descriptors(pair: Pair) -> None:
    """Thousands of directories in one another come along and go, with a hundred descriptors."""
    deep(pair.outside, LEVELS)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 100, limits[1]))
    try:
        assert pair.fill().written == LEVELS + 1
        remove(pair.inside / "d")
        report = pair.bring_back()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (report.is_whole, report.removed) == (True, LEVELS + 1)
    assert os.listdir(pair.outside) == []


def test_without_room_outside_the_old_content_stays(tmp_path: Path) -> None:
    """What does not fit is reported, its old content is whole, and no temporary file is left."""
    with small_disk(tmp_path / "worktree", "size=1m"):
        pair = Pair(tmp_path)
        (pair.outside / "f").write_text("old")
        pair.fill()
        (pair.inside / "f").write_bytes(b"x" * (4 << 20))
        (pair.inside / "small").write_text("fits")
        report = pair.bring_back()
        assert len(report.failed) == 1 and os.strerror(errno.ENOSPC) in report.failed[0]
        assert sorted(os.listdir(pair.outside)) == ["f", "small"]
        assert (pair.outside / "f").read_text() == "old"


def test_what_is_mounted_in_the_worktree_is_left_alone(tmp_path: Path) -> None:
    """A file system below is neither copied nor cleared, though it looks empty inside."""
    pair = Pair(tmp_path)
    with small_disk(pair.outside / "mounted"):
        (pair.outside / "mounted/f").write_text("x")
        pair.fill()
        assert snapshot(pair.inside).keys() == {"mounted"}
        (pair.inside / "mounted/g").write_text("x")
        report = pair.bring_back()
        assert report.left_out == 1
        assert os.listdir(pair.outside / "mounted") == ["f"]
        remove(pair.inside / "mounted")
        pair.bring_back()
        assert os.listdir(pair.outside / "mounted") == ["f"]


@contextlib.contextmanager
def bound(source: Path, place: Path) -> Iterator[None]:
    """A file or directory of the same file system, mounted over another."""
    if subprocess.run(["mount", "--bind", source, place], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


def test_what_is_mounted_from_the_same_file_system_is_left_alone(
    pair: Pair, tmp_path: Path
) -> None:
    """A directory and a file that are bound into the worktree are neither read nor written."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_text("elsewhere")
    (pair.outside / "place").mkdir()
    (pair.outside / "file").write_text("below")
    with bound(elsewhere, pair.outside / "place"), bound(elsewhere / "f", pair.outside / "file"):
        before = (elsewhere / "f").stat()
        assert pair.fill().left_out == 2
        assert snapshot(pair.inside).keys() == {"place"}
        (pair.inside / "place/f").write_text("by the loop")
        (pair.inside / "place/g").write_text("by the loop")
        assert pair.bring_back().is_whole
        (pair.inside / "file").write_text("elsewhere")
        os.chown(pair.inside / "file", 1000, 1000)
        report = pair.bring_back()
        assert len(report.failed) == 1 and "mounted there" in report.failed[0]
        remove(pair.inside / "place")
        remove(pair.inside / "file")
        pair.bring_back()
        assert (elsewhere / "f").stat() == before
        assert os.listdir(elsewhere) == ["f"]
    assert (pair.outside / "file").read_text() == "below"


def test_another_name_of_what_is_hidden_is_hidden_as_well(pair: Pair) -> None:
    """Where `.GIT` is `.git`, on a disk that does not know case, it is neither read nor written."""
    (pair.outside / ".git").write_text("gitdir: /elsewhere")
    os.link(pair.outside / ".git", pair.outside / ".GIT")
    hidden = frozenset({".git"})
    pair.fill(hidden)
    assert os.listdir(pair.inside) == []
    assert pair.bring_back(hidden).is_whole
    (pair.inside / ".GIT").write_text("gitdir: evil")
    report = pair.bring_back(hidden)
    assert len(report.failed) == 1 and "hidden" in report.failed[0]
    assert {path.read_text() for path in pair.outside.iterdir()} == {"gitdir: /elsewhere"}


KILLED = """
import os, sys, threading
from executor.sandbox.mirror import Mirror
source, target = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in sys.argv[1:3])
Mirror(source, target, threading.Event(), changed_since=int(sys.argv[3]),
       foreign_since=int(sys.argv[4]), directories={}).run()
"""


@pytest.mark.parametrize("part", [1, 60, 300])
def test_killed_in_the_middle_each_file_is_old_or_new(pair: Pair, part: int) -> None:
    """SIGKILL while changes come back: no file is a mixture, none is missing."""
    files = [pair.outside / f"f{number}" for number in range(600)]
    for path in files:
        path.write_bytes(b"o" * 20_000)
    pair.fill()
    for path in files:
        (pair.inside / path.name).write_bytes(b"n" * 30_000)
    command = [sys.executable, "-c", KILLED, str(pair.inside), str(pair.outside)]
    inodes = {path: path.stat().st_ino for path in files}
    with subprocess.Popen(
        [*command, str(pair.filled_at), str(pair.opened_at)], cwd=ROOT
    ) as process:
        while sum(path.stat().st_ino != inodes[path] for path in files) < part:
            assert process.poll() is None or part > 600
        process.send_signal(signal.SIGKILL)
    contents = {path.read_bytes() for path in files}
    assert contents <= {b"o" * 20_000, b"n" * 30_000}
    assert len(os.listdir(pair.outside)) <= len(files) + 1
