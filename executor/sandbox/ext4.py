"""A file system in a file for one loop's worktree: made, mounted, given back, or kept.

It lies below the state directory, in `quota/<controller>-<loop>-<nonce>/`:

    image.ext4   the file system; all its space is taken from the host's disk at once, so
                 that no write in it can fail for want of room outside
    mount/       where it is mounted; `mount/tree` is what the box gets as its worktree, so
                 an engine that does not see the mount has nothing to give
    worktree     the path of the user's own directory
    filled       there since the worktree's content was in it: from now on it may hold results
    returned     there since the worktree had all of it: it may go

What a dead controller left is unmounted by the reaper (`recover`), and what may hold
results is moved to `kept/`. Programs of the host are run by fixed paths, with a fixed
environment, and are given paths of ours alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import re
import secrets
import shlex
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from executor.errors import ConfigError
from executor.sandbox.descent import DIRECTORY
from executor.sandbox.measure import Measurement, before_now
from executor.sandbox.mirror import UNFINISHED, Mirror, Origin, Report
from executor.sandbox.ownership import GitEntry, Worktree

PROGRAMS = {
    "mkfs.ext4": ("/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"),
    "mount": ("/usr/bin/mount", "/bin/mount"),
    "umount": ("/usr/bin/umount", "/bin/umount"),
}
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
PROGRAM_TIMEOUT = 120.0
UNMOUNT_PATIENCE = 10.0
"""Seconds that a mount may be busy after its box is gone."""
STEP = 250_000_000
"""Nanoseconds that the clock may have been set back by while a loop ran: no box opens faster."""
OPTIONS = "loop,nosuid,nodev,noatime,noinit_itable"
BLOCK = 4096
INODE = 256
_SLACK = 24 << 20
"""Bytes: the file system sets 16 MiB apart for itself, and writes its own tables."""
_OWN_INODES = 15
"""The file system's own eleven, `tree`, `beside`, `ballast`, and what covers of `.git` lie on."""
_CONTROL = Path("/dev/loop-control")
_MOUNTS = Path("/proc/self/mountinfo")
_TRIM = 0xC0185879
"""The kernel's FITRIM."""
_ADMINISTRATION = 21
"""The number of CAP_SYS_ADMIN."""
_NAME = re.compile(r"([0-9a-f]{16})-([a-z0-9][a-z0-9._-]{0,63}-[0-9a-f]{8})")

log = logging.getLogger(__name__)


def faults() -> list[str]:
    """Why this process can't have such file systems, one reason each."""
    found = []
    if os.geteuid() != 0 or not _has_capability(_ADMINISTRATION):
        found.append("only root may mount")
    if not os.access(_CONTROL, os.R_OK | os.W_OK):
        found.append(f"there is no {_CONTROL}")
    found += [f"{name} is not installed" for name in PROGRAMS if _program(name) is None]
    return found


def _has_capability(number: int) -> bool:
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False


class FileSystem:
    """One loop's. All methods block; they are for a worker thread.

    Args:
        state: the state directory, as a real path.
        controller: id of the living controller.
        exec_id: name of the loop.

    Attributes:
        tree: what the box gets in place of the worktree.
        beside: for what else the box may write.
        kept: where the image goes if it may hold what the worktree has not.
        room: bytes and files that can be added.
    """

    def __init__(self, state: Path, controller: str, exec_id: str) -> None:
        self._state = state
        self._name = f"{controller}-{exec_id}-{secrets.token_hex(4)}"
        self._directory = state / "quota" / self._name
        self._mount = self._directory / "mount"
        self._opened_at = 0
        self._filled_at = 0
        self._clock = 0
        self._directories: dict[int, Origin] = {}
        self._mirror: Mirror | None = None
        self.tree = self._mount / "tree"
        self.beside = self._mount / "beside"
        self.kept = _kept(state, self._name)
        self.room = 0, 0

    @property
    def looked(self) -> int:
        """Entries that a copy under way, in or back, has looked at so far."""
        return self._mirror.looked if self._mirror is not None else 0

    # ── open ──

    def open(self, worktree: Worktree, size: int, files: int, stop: threading.Event) -> None:
        """Makes it, mounts it and fills it.

        Args:
            worktree: whose content goes in.
            size: bytes that may be added.
            files: files and directories that may be added.
            stop: calls it off.

        Raises:
            ConfigError: there is no room for it, or it can't be mounted.
            Stopped: it was called off.
        """
        self._opened_at = before_now()
        try:
            source = worktree.readable()
            try:
                usage = Measurement([source], stop).take()
                self._make(size, files, usage.bytes, usage.files)
                (self._directory / "worktree").write_bytes(os.fsencode(worktree.path))
                self._fill(source, worktree, stop)
            finally:
                os.close(source)
            self._weigh_down(size)
            (self._directory / "filled").touch()
        except OSError as error:
            raise ConfigError(
                f"quota: {worktree.path} can't be copied into a file system of its own "
                f"({error}); make room in {self._state}, allow fewer bytes, or use quota watch"
            ) from error
        self._filled_at = time.time_ns()
        self._clock = _clock()

    def _make(self, size: int, files: int, held: int, held_files: int) -> None:
        content = held + held_files * BLOCK
        inodes = min(held_files + files, held_files + max(size // BLOCK, 1) * 2) + _OWN_INODES
        total = (content + size + inodes * INODE) * 66 // 64 + _SLACK
        self._mount.mkdir(mode=0o700, parents=True)
        image = self._directory / "image.ext4"
        descriptor = os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, total // BLOCK * BLOCK)
        finally:
            os.close(descriptor)
        _run(
            "mkfs.ext4",
            *("-q", "-F", "-m", "0", "-b", str(BLOCK), "-I", str(INODE), "-N", str(inodes)),
            *("-O", "^has_journal,^resize_inode", "-E", "nodiscard,lazy_itable_init=1"),
            str(image),
        )
        _run("mount", "-t", "ext4", "-o", OPTIONS, str(image), str(self._mount))

    def _fill(self, source: int, worktree: Worktree, stop: threading.Event) -> None:
        self.tree.mkdir(mode=0o700)
        self.beside.mkdir(mode=0o700)
        target = os.open(self.tree, DIRECTORY)
        try:
            hidden = frozenset({".git"})
            self._mirror = Mirror(
                source, target, stop, hidden=hidden, directories=self._directories
            )
            self._mirror.run()
            # The cover of the worktree's `.git` needs something to lie on.
            if worktree.git is GitEntry.FILE:
                os.close(os.open(".git", os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target))
            elif worktree.git is GitEntry.DIRECTORY:
                os.mkdir(".git", 0o700, dir_fd=target)
        finally:
            os.close(target)

    def _weigh_down(self, size: int) -> None:
        """Takes the room that was made too much, so that the limit is what was asked for."""
        found = os.statvfs(self._mount)
        surplus = (found.f_bavail * found.f_frsize - size) // BLOCK * BLOCK
        if surplus > 0:
            descriptor = os.open(self._mount / "ballast", os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, surplus)
            finally:
                os.close(descriptor)
        found = os.statvfs(self._mount)
        self.room = found.f_bavail * found.f_frsize, found.f_ffree

    # ── give back ──

    def bring_back(self, worktree: Worktree, stop: threading.Event) -> Report:
        """Makes the worktree like the tree. To be called when no box is left.

        Raises:
            OSError, Moved, Stopped: it could not be done to its end.
        """
        if (back := self._clock - _clock()) > STEP:
            raise OSError(
                f"the machine's clock was set back by {back / 1e9:.1f} s meanwhile, "
                "so that it can't be told what changed"
            )
        target = worktree.readable()
        try:
            if not os.fstat(target).st_nlink:
                raise FileNotFoundError(f"the worktree {worktree.path} was removed")
            has_git = worktree.git is not GitEntry.NONE or _exists(".git", target)
            source = os.open(self.tree, DIRECTORY)
            try:
                self._mirror = Mirror(
                    source,
                    target,
                    stop,
                    changed_since=self._filled_at,
                    foreign_since=self._opened_at,
                    hidden=frozenset({".git"} if has_git else ()),
                    directories=self._directories,
                )
                report = self._mirror.run()
            finally:
                os.close(source)
            if report.is_whole and (report.written or report.removed):
                _write_out(target)
        finally:
            os.close(target)
        if report.is_whole:
            (self._directory / "returned").touch()
        return report

    def release(self) -> Path | None:
        """Unmounts it; removes it, or keeps it if it may hold what the worktree has not.

        Returns:
            Where it is kept, or would be if it could be unmounted; None if it is gone.
        """
        return _settle(self._state, self._name)


# ─── the end of one, by its controller or by the reaper ─────────────────────────────


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of file systems that dead controllers left.

    Attributes:
        kept: images that may hold results.
        failures: one sentence each; a later pass tries again.
        unfinished: ids of the controllers whose file systems are still there.
    """

    kept: tuple[Path, ...] = ()
    failures: tuple[str, ...] = ()
    unfinished: frozenset[str] = frozenset()


def left(state: Path) -> dict[str, str]:
    """Name → controller's id, of every file system below the state directory."""
    try:
        names = os.listdir(state / "quota")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {name: match[1] for name in names if (match := _NAME.fullmatch(name))}


def recover(state: Path, names: Iterable[str]) -> Recovered:
    """Unmounts what dead controllers left; keeps every image that may hold results."""
    kept: list[Path] = []
    failures: list[str] = []
    unfinished: set[str] = set()
    for name in sorted(names):
        try:
            image = _settle(state, name)
        except (OSError, ConfigError) as error:
            failures.append(f"the file system {state / 'quota' / name} is still there: {error}")
            unfinished.add(name.partition("-")[0])
            continue
        if image is not None:
            kept.append(image)
            log.warning("%s; %s", _unfinished(image), how_to_mount(image))
    return Recovered(tuple(kept), tuple(failures), frozenset(unfinished))


def how_to_mount(image: Path) -> str:
    """What a person does with a kept image."""
    return (
        f"its files are kept in {image} "
        f"(mount -o loop,ro,nosuid,nodev {shlex.quote(str(image))} DIRECTORY "
        "shows them, in DIRECTORY/tree); remove the image when nothing in it is needed"
    )


def _unfinished(image: Path) -> str:
    """What a person should know of the worktree that a kept image belongs to."""
    try:
        worktree = repr(os.fsdecode(image.with_suffix(".worktree").read_bytes()))
    except OSError:
        worktree = "a worktree"
    return (
        f"a loop ended before all that it did was brought back to {worktree}: some of it may be "
        f"there, and a name that begins with {UNFINISHED} is a copy that was not finished and "
        "can be removed"
    )


def _settle(state: Path, name: str) -> Path | None:
    """Unmounts a file system and removes or keeps it; may be done again at any point.

    Raises:
        OSError: it is in use.
    """
    directory = state / "quota" / name
    image = directory / "image.ext4"
    is_wanted = (directory / "filled").exists() and not (directory / "returned").exists()
    if is_wanted and _is_mounted(directory / "mount"):
        _shrink(directory / "mount")
    _unmount(directory / "mount", image)
    kept = None
    if is_wanted and image.exists():
        kept = _kept(state, name)
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(OSError):
            (directory / "worktree").rename(kept.with_suffix(".worktree"))
        image.rename(kept)
    _discard(directory)
    return kept


def _kept(state: Path, name: str) -> Path:
    """Where an image that may hold results goes: the name without the controller's."""
    return state / "kept" / f"{name.partition('-')[2]}.ext4"


def _unmount(mount: Path, image: Path) -> None:
    deadline = time.monotonic() + UNMOUNT_PATIENCE
    while True:
        error = ""
        try:
            while _is_mounted(mount):
                _run("umount", str(mount))
        except ConfigError as failure:
            error = str(failure)
        if not error and not _is_attached(image):
            return
        if time.monotonic() > deadline:
            raise OSError(error or f"{image} is still in use by another mount")
        time.sleep(0.05)


def _shrink(mount: Path) -> None:
    """Gives the room that an image does not use back to the host's disk."""
    with suppress(OSError):
        (mount / "ballast").unlink(missing_ok=True)
        descriptor = os.open(mount, DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _TRIM, struct.pack("QQQ", 0, (1 << 64) - 1, 0))
        finally:
            os.close(descriptor)


def _is_mounted(mount: Path) -> bool:
    # As bytes: the names of other mounts are anybody's.
    escaped = re.sub(rb"[ \t\n\\]", lambda match: b"\\%03o" % match[0][0], os.fsencode(mount))
    lines = _MOUNTS.read_bytes().split(b"\n")
    return any(fields[4:5] == [escaped] for fields in (line.split(b" ", 5) for line in lines))


def _is_attached(image: Path) -> bool:
    """Whether a loop device stands on the image; one does as long as it is mounted anywhere."""
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            if entry.read_bytes().removesuffix(b"\n") == os.fsencode(image):
                return True
    return False


def _discard(directory: Path) -> None:
    """Removes what belongs to a file system, by name: never a tree, which might be mounted."""
    for name in ("image.ext4", "worktree", "returned", "filled"):
        with suppress(FileNotFoundError):
            (directory / name).unlink()
    for place in (directory / "mount", directory):
        with suppress(FileNotFoundError):
            place.rmdir()


# ─── programs ───────────────────────────────────────────────────────────────────────


def _program(name: str) -> str | None:
    return next((path for path in PROGRAMS[name] if os.access(path, os.X_OK)), None)


def _run(name: str, *arguments: str) -> None:
    """Runs a program of the host.

    Raises:
        ConfigError: it failed, or is not there.
    """
    program = _program(name)
    if program is None:
        raise ConfigError(f"quota: {name} is not installed; install it, or use quota watch")
    try:
        done = subprocess.run(
            [program, *arguments],
            env=ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROGRAM_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"quota: {name} could not be run ({error}); use quota watch") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise ConfigError(
            f"quota: {name} failed with code {done.returncode} ({said}); "
            "use quota watch, or see to it that root may mount ext4 images here"
        )


def _write_out(directory: int) -> None:
    """Waits until all of a file system is on its disk: what is not there yet may get lost.

    Raises:
        OSError: something could not be written.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.syncfs(directory):
        raise OSError(ctypes.get_errno(), "the worktree's disk does not take what was written")


def _clock() -> int:
    """When the machine started by its clock, in nanoseconds: it changes when that is set."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _exists(name: str, directory: int) -> bool:
    try:
        return bool(stat.S_IFMT(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode))
    except FileNotFoundError:
        return False
