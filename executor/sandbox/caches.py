"""Directories of a tenant's that outlast its loops: what package managers fetch once.

    <state>/caches/<tenant>/<uid>/<name>              mounted at /run/executor/caches/<name>
    <state>/caches/<tenant>/<uid>/<name>.LOCK         held, shared, by every box that has it
    <state>/caches/<tenant>/<uid>/<name>.OLD-<hex>    was emptied, and is being removed

Whatever a cache holds was written by boxes, so the host reads none of it and follows no link in
it. All above it is ours: boxes can reach only what is in it. By the tenant, loops of one can
hand each other what they like, harmful packages too, and nothing to those of another.

A cache has no limit while it is in use. Whoever takes it while nobody else has it, and whoever
leaves it as the last, measures it and empties it when it is too large.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor.errors import ConfigError
from executor.model import CACHE_NAME, CACHES
from executor.sandbox.completion import to_completion
from executor.sandbox.container import Owner
from executor.sandbox.descent import DIRECTORY, Trail, remove
from executor.sandbox.measure import Measurement, Stopped, Usage

PLACE = "caches"
"""In the state directory."""
MOST = Usage(10 << 30, 1_000_000)
"""What a cache may hold when nobody uses it; one that holds more is emptied."""
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LOCK, _OLD = ".LOCK", ".OLD-"
"""No name of a cache has capitals."""
_PRIVILEGED = stat.S_ISUID | stat.S_ISGID
_ATTEMPTS = 8

log = logging.getLogger(__name__)


def cache_environment(names: Sequence[str]) -> dict[str, str]:
    """The variables that lead package managers to the first of a loop's caches.

    What has no variable of its own follows `XDG_CACHE_HOME` as a rule (uv, poetry, ccache, deno).
    """
    if not names:
        return {}
    root = f"{CACHES}/{names[0]}"
    return {
        "XDG_CACHE_HOME": f"{root}/xdg",
        "PIP_CACHE_DIR": f"{root}/pip",
        "npm_config_cache": f"{root}/npm",
        "YARN_CACHE_FOLDER": f"{root}/yarn",
        "GOMODCACHE": f"{root}/go/mod",
        "GOCACHE": f"{root}/go/build",
        "CARGO_HOME": f"{root}/cargo",
        "GRADLE_USER_HOME": f"{root}/gradle",
    }


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache that is in use.

    Attributes:
        name: as the loop has it.
        path: of the directory, on the host.
    """

    name: str
    path: Path

    @property
    def target(self) -> str:
        """Where it is in the box."""
        return f"{CACHES}/{self.name}"


class Caches:
    """The caches of one box, from before it is made until it is gone. Made by `open`.

    Attributes:
        opened: what is to be mounted.
        notices: what a person should be told, one sentence each.
    """

    def __init__(self, most: Usage = MOST) -> None:
        self.opened: list[Cache] = []
        self.notices: list[str] = []
        self._most = most
        self._owner = Owner(0, 0)
        self._locks: dict[str, int] = {}
        self._parent = -1
        self._stop = threading.Event()

    @classmethod
    async def open(
        cls, state: Path, tenant: str, owner: Owner, names: Iterable[str], most: Usage = MOST
    ) -> Caches:
        """Takes caches, after making those that there are not.

        Args:
            state: the state directory.
            tenant: whose they are; any text.
            owner: whose the box is, as seen outside.
            names: of the caches.
            most: what each of them may hold.

        Raises:
            ConfigError: one can't be had; the sentence says why.
        """
        caches = cls(most)
        try:
            await to_completion(
                asyncio.to_thread(caches._take_all, state, tenant, owner, list(names)),
                caches._stop.set,
            )
        except BaseException:
            caches._stop.set()
            await caches.close(tend=False)
            raise
        return caches

    async def close(self, *, tend: bool = True) -> None:
        """Lets go of them, once the box is gone; no more than once.

        Args:
            tend: see to those that nobody else has. Not where the box may still be there.
        """
        if self._parent >= 0:
            await to_completion(asyncio.to_thread(self._leave_all, tend), self._stop.set)

    # ── in a thread ──

    def _take_all(self, state: Path, tenant: str, owner: Owner, names: list[str]) -> None:
        self._owner = owner
        if not names:
            return
        try:
            self._parent, parent = _place(state, tenant, owner)
            for name in names:
                if not CACHE_NAME.fullmatch(name):
                    raise ConfigError(f"caches: {name!r} is no name of a cache")
                self._take(name)
                self.opened.append(Cache(name, parent / name))
        except OSError as error:
            raise ConfigError(
                f"caches: {error.filename or state / PLACE} can't be used ({error.strerror}); "
                "open the loop without caches, or mend the state directory"
            ) from error

    def _take(self, name: str) -> None:
        lock = self._locks[name] = _lock_file(name, self._parent)
        if _locked(lock, fcntl.LOCK_EX):
            self._tend(name)
            _made(name, self._parent, self._owner)
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Between the two, another may have had it alone for a moment, and emptied it.
        _made(name, self._parent, self._owner)

    def _leave_all(self, tend: bool) -> None:
        for name, lock in self._locks.items():
            try:
                if tend and _locked(lock, fcntl.LOCK_EX):
                    self._tend(name)
            except OSError as error:
                log.warning("the cache %s can't be looked at: %s", name, error.strerror or error)
            finally:
                os.close(lock)
        self._locks.clear()
        os.close(self._parent)
        self._parent = -1

    def _tend(self, name: str) -> None:
        """Look after a cache that nobody else has: not too large, nothing privileged in it."""
        for left in os.listdir(self._parent):
            if left.startswith(f"{name}{_OLD}"):
                remove(left, self._parent)
        try:
            _make_open(name, self._parent)
            root = os.open(name, DIRECTORY, dir_fd=self._parent)
        except FileNotFoundError:
            return
        try:
            with contextlib.suppress(Stopped):
                # Before it is measured: what is in a closed directory would not count.
                _make_plain(root, self._stop)
                usage = Measurement([root], self._stop, most=self._most).take()
                if not usage.is_whole:
                    self._empty(name)
        finally:
            os.close(root)

    def _empty(self, name: str) -> None:
        old = f"{name}{_OLD}{secrets.token_hex(4)}"
        os.rename(name, old, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        _made(name, self._parent, self._owner)
        remove(old, self._parent)
        said = (
            f"The cache {name} held more than {self._most.bytes >> 20} MiB or "
            f"{self._most.files} files and was emptied."
        )
        self.notices.append(said)
        log.warning("%s", said)


def sizes(state: Path, stop: threading.Event | None = None) -> dict[str, int]:
    """Bytes of every cache in the state directory, by `tenant/uid/name`. Nothing is changed."""
    found: dict[str, int] = {}
    for path in sorted((state / PLACE).glob("*/*/*")):
        if _OLD in path.name or path.name.endswith(_LOCK):
            continue
        try:
            root = os.open(path, DIRECTORY)
        except OSError:
            continue  # it is not for us to see
        try:
            usage = Measurement([root], stop or threading.Event()).take()
        finally:
            os.close(root)
        found[str(path.relative_to(state / PLACE))] = usage.bytes
    return found


# ─── places ─────────────────────────────────────────────────────────────────────────


def tenant_directory(tenant: str) -> str:
    """The tenant as the name of a directory; no two have the same."""
    if _PLAIN.fullmatch(tenant):
        return tenant
    # No plain name begins with a plus sign.
    return "+" + hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()


def _place(state: Path, tenant: str, owner: Owner) -> tuple[int, Path]:
    """The directory of a tenant's caches for one uid, opened; ours all the way."""
    descriptor, path = os.open(state, DIRECTORY), state
    for part in (PLACE, tenant_directory(tenant), str(owner.uid)):
        path /= part
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=descriptor)
            below = os.open(part, DIRECTORY, dir_fd=descriptor)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(descriptor)
        descriptor = below
        if os.fstat(descriptor).st_uid != os.geteuid():
            os.close(descriptor)
            raise ConfigError(f"caches: {path} belongs to somebody else; remove it")
    return descriptor, path


def _made(name: str, parent: int, owner: Owner) -> None:
    """The directory is there, and is the box's alone."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    _make_open(name, parent)
    root = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        status = os.fstat(root)
        if status.st_uid != owner.uid:
            os.fchown(root, owner.uid, owner.gid)
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(root, 0o700)
    finally:
        os.close(root)


def _lock_file(name: str, parent: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(f"{name}{_LOCK}", flags, 0o600, dir_fd=parent)


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_plain(root: int, stop: threading.Event) -> None:
    """Opens all directories to their owner, and takes set-uid and set-gid bits off all files.

    In a box the bits do nothing (`no-new-privileges`), and nobody else on the host can reach the
    files; but a copy that somebody makes of the cache would have them.
    """
    with Trail(root) as trail:
        waiting = [_mended(root)]
        while waiting and not stop.is_set():
            if not waiting[-1]:
                waiting.pop()
                if waiting and not trail.up():
                    del waiting[trail.depth + 1 :]
                continue
            with contextlib.suppress(OSError):
                trail.down(waiting[-1].pop())
                waiting.append([] if trail.is_outside else _mended(trail.descriptor))


def _mended(directory: int) -> list[str]:
    """Mends what is in a directory; the names of the directories among it."""
    below: list[str] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            # One that can't be mended is no end of the look at the others.
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    below.append(entry.name)
                    _make_open(entry.name, directory)
                elif stat.S_ISREG(status.st_mode) and status.st_mode & _PRIVILEGED:
                    _strip(entry.name, directory)
    return below


def _make_open(name: str, parent: int) -> None:
    """Gives the owner of a directory all rights to it, which a box may have taken."""
    with _path(name, parent, os.O_DIRECTORY) as (path, mode):
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(path, mode | stat.S_IRWXU)


def _strip(name: str, parent: int) -> None:
    with _path(name, parent) as (path, mode):
        os.chmod(path, mode & ~_PRIVILEGED)


@contextlib.contextmanager
def _path(name: str, parent: int, flags: int = 0) -> Iterator[tuple[str, int]]:
    """A path to exactly what has this name now, and its mode; nobody needs rights to it."""
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
    try:
        mode = os.fstat(held).st_mode
        if stat.S_ISLNK(mode):
            raise FileNotFoundError(name)
        yield f"/proc/self/fd/{held}", stat.S_IMODE(mode)
    finally:
        os.close(held)
