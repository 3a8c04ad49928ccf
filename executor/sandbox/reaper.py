"""Who a controller is, and clearing away what dead controllers left behind.

A controller holds a lock (`flock`) on `<state>/controllers/<id>.lock` for as long as it
lives; the kernel frees it however the process ends. `<state>/controllers/<id>/` holds
the files that it generates. Its containers bear its id, the boot id of its machine, its
state directory, and when their life is over at the latest.

A lock that the reaper can take means a dead controller. It keeps the lock until that
controller's containers and directory are gone, so that two reapers do not do the same
work, and lists the containers before it looks at the locks: a controller that starts
meanwhile has no container in the list.

A living controller knows the names of its open boxes (`Identity.hold`). Its own sweep
removes whatever else bears its id: a box that could not be removed when it was closed, or
that the engine made although its answer never came.
"""

from __future__ import annotations

import asyncio
import calendar
import fcntl
import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.errors import ConfigError, EngineError
from executor.sandbox import descent, ext4, mirror
from executor.sandbox.container import (
    LABEL_BOOT,
    LABEL_CONTROLLER,
    LABEL_EXPIRES,
    LABEL_LOOP,
    LABEL_POLICY,
    LABEL_STATE,
    LABEL_TENANT,
)
from executor.sandbox.engine import Engine, status

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FOREIGN_GRACE = 3600.0
"""Seconds that an ended container of somebody else's state directory is left alone."""
OWN_GRACE = 60.0
"""Seconds that a living controller has to look at its own ended container."""
_ID = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_ENDED = frozenset({"exited", "dead"})
_BUILD = {"executor.kind": "build"}
BUILD_LOCK = "build.lock"
"""In the state directory: held by who builds."""
_ATTEMPTS = 8
_GONE = 404


class Identity:
    """A living controller. Made by `claim`; ended by `close` or `with`.

    Attributes:
        id: 16 hex digits.
        boot: the machine's boot id.
        state: the state directory.
        left: names of boxes that could not be removed so far.
    """

    def __init__(self, state: Path, id: str, lock: int) -> None:
        self.id = id
        self.state = state
        self.left: set[str] = set()
        self.boot = boot_id()
        self._lock = lock
        self._held: set[str] = set()
        _claimed.add(self)

    @classmethod
    def claim(cls, state_directory: Path) -> Identity:
        """A new identity; the state directory is made where there is none.

        Raises:
            ConfigError: the state directory can't be written, or has no locks.
        """
        try:
            state_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = state_directory.resolve()
            controllers = state / "controllers"
            controllers.mkdir(mode=0o700, exist_ok=True)
            for _ in range(_ATTEMPTS):
                id = secrets.token_hex(8)
                lock = _take(controllers / f"{id}.lock", create=True)
                if lock is not None:
                    identity = cls(state, id, lock)
                    identity.directory.mkdir(mode=0o700)
                    return identity
        except OSError as error:
            raise ConfigError(
                f"state directory: {state_directory} can't be used ({error}); give a directory "
                "of your own in EXECUTOR_STATE_DIR"
            ) from error
        raise ConfigError(
            f"state directory: no file in {state_directory} can be locked; give a directory on a "
            "local file system in EXECUTOR_STATE_DIR"
        )

    @property
    def directory(self) -> Path:
        """The controller's directory; removed when it is closed or found dead."""
        return self.state / "controllers" / self.id

    def files_directory(self, exec_id: str) -> Path:
        """A directory for the generated files of one box, made on first use.

        Args:
            exec_id: name of the box; a sweep that removes the box discards them by that.
        """
        if not _NAME.fullmatch(exec_id):
            raise ValueError(f"{exec_id!r} is no name of a loop")
        path = self.directory / exec_id
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def discard_files(self, exec_id: str) -> None:
        """Removes the generated files of one box; to be called when it is gone."""
        if _NAME.fullmatch(exec_id):
            _remove_tree(self.directory, exec_id)

    def hold(self, name: str) -> None:
        """A box of this name is ours; to be called before the engine is asked for it."""
        self._held.add(name)

    def let_go(self, name: str) -> None:
        """Nobody uses the box any more; if it is still there, the next sweep takes it."""
        self._held.discard(name)

    def holds(self, name: str) -> bool:
        """Whether a box of this name is being made, used or closed."""
        return name in self._held

    def labels(self, exec_id: str, tenant: str, lifetime: float) -> dict[str, str]:
        """The labels of a container of this controller.

        Args:
            lifetime: seconds from now after which anybody may remove it.
        """
        return {
            LABEL_CONTROLLER: self.id,
            LABEL_BOOT: self.boot,
            LABEL_LOOP: exec_id,
            LABEL_TENANT: tenant,
            LABEL_EXPIRES: str(int(time.time() + lifetime)),
            LABEL_STATE: str(self.state),
        }

    def close(self) -> None:
        """Removes the directory and frees the lock."""
        if self._lock < 0:
            return
        if _remove_tree(self.directory.parent, self.id):
            with suppress(FileNotFoundError):
                self.directory.with_suffix(".lock").unlink()
        self._let_go()

    def _let_go(self) -> None:
        """Closes the lock's descriptor. In a forked child this frees nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Identity:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_claimed: weakref.WeakSet[Identity] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A child that outlives its parent must not keep the parent's lock."""
    for identity in list(_claimed):
        # One whose descriptor somebody has closed must not keep the others' locks.
        with suppress(OSError):
            identity._let_go()


os.register_at_fork(after_in_child=_forget_in_child)


def boot_id() -> str:
    """The id that the kernel made up when it started."""
    return BOOT_ID.read_text().strip()


def build_labels(state_directory: Path) -> dict[str, str]:
    """The labels of a container that builds for whoever holds the state directory's lock."""
    state = str(state_directory.resolve())
    return {**_BUILD, LABEL_BOOT: boot_id(), LABEL_STATE: state}


# ─── reaping ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Reaped:
    """What a pass of the reaper removed.

    Attributes:
        containers: ids.
        directories: ids of controllers.
        failures: what could not be removed and why, one sentence each.
        kept: images of worktrees that were not brought back; see `ext4`.
    """

    containers: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    kept: tuple[Path, ...] = ()


async def reap(
    engine: Engine,
    state_directory: Path,
    identity: Identity | None = None,
    tidy: Callable[[Path], list[str]] = lambda directory: [],
) -> Reaped:
    """Removes what dead controllers left on this engine and in this state directory.

    May run any number of times at once, in one process or several.

    Args:
        identity: the caller's own; the boxes that it holds are left to it.
        tidy: puts in order what the loops of a dead controller left outside, by the
            controller's directory; says what could not be, one sentence each.

    Raises:
        EngineError: the engine can't list its containers; nothing was removed then.
    """
    state = state_directory.resolve()
    systems = ext4.left(state)
    listed = await engine.list_containers({LABEL_CONTROLLER: None})
    building = await engine.list_containers(build_labels(state))
    with _dead_controllers(state / "controllers") as dead:
        view = _View(state, boot_id(), dead, _known(state / "controllers"), identity)
        sweep = _Sweep(engine, view)
        for container in listed:
            await sweep.consider(container)
        over = {
            name
            for name, id in systems.items()
            if (id in dead or id not in view.known) and id not in sweep.unfinished
        }
        recovered = await asyncio.to_thread(ext4.recover, state, over)
        sweep.failures += recovered.failures
        sweep.unfinished |= recovered.unfinished
        for id in sorted(set(dead) - sweep.unfinished):
            sweep.failures += await asyncio.to_thread(sweep.rescued, id)
            sweep.failures += await asyncio.to_thread(tidy, state / "controllers" / id)
        directories = await asyncio.to_thread(
            _remove_directories, state / "controllers", sorted(set(dead) - sweep.unfinished)
        )
    await sweep.take_builds(building)
    return Reaped(tuple(sweep.removed), directories, tuple(sweep.failures), recovered.kept)


class _Sweep:
    """One pass over containers.

    Attributes:
        removed: ids.
        failures: what could not be removed and why.
        unfinished: controllers of which something could not be removed.
    """

    def __init__(self, engine: Engine, view: _View) -> None:
        self._engine = engine
        self._view = view
        self.removed: list[str] = []
        self.failures: list[str] = []
        self.unfinished: set[str] = set()

    async def consider(self, container: Mapping[str, Any]) -> None:
        """Remove the container if it is over."""
        try:
            if await _is_over(self._engine, self._view, container):
                await self._remove(container)
        except EngineError as error:
            if status(error) != _GONE:
                self.failures.append(str(error))
                self.unfinished.add(_label(container, LABEL_CONTROLLER))

    def rescued(self, id: str) -> list[str]:
        """What agents of a dead controller had is kept where it was brought back by half."""
        state = self._view.state
        try:
            return mirror.rescue(state / "controllers" / id, state / "kept")
        except OSError as error:
            self.unfinished.add(id)
            return [f"an agent's copy can't be kept: {error.strerror or error}"]

    async def _remove(self, container: Mapping[str, Any]) -> None:
        await self._engine.remove(container["Id"])
        self.removed.append(container["Id"])
        if self._view.is_own(container) and self._view.identity is not None:
            self._view.identity.discard_files(_name(container))
            self._view.identity.left.discard(_name(container))

    async def take_builds(self, building: Sequence[Mapping[str, Any]]) -> None:
        """Remove containers that built for somebody who is dead: nobody holds the lock."""
        lock = _take(self._view.state / BUILD_LOCK, create=False) if building else None
        if lock is None:
            return
        try:
            for container in building:
                await self._engine.remove(container["Id"])
                self.removed.append(container["Id"])
        except EngineError as error:
            self.failures.append(str(error))
        finally:
            os.close(lock)


@dataclass(frozen=True, slots=True)
class _View:
    """What is known about controllers while a pass lasts."""

    state: Path
    boot: str
    dead: Mapping[str, int]
    known: frozenset[str]
    identity: Identity | None

    def is_dead(self, container: Mapping[str, Any]) -> bool:
        """The container's controller used this state directory and lives no longer.

        One of another boot counts when it is known here: another machine may use the
        same engine with a state directory of the same name.
        """
        controller = _label(container, LABEL_CONTROLLER)
        if _label(container, LABEL_STATE) != str(self.state):
            return False
        if _label(container, LABEL_BOOT) == self.boot:
            return controller in self.dead or controller not in self.known
        return controller in self.dead

    def is_own(self, container: Mapping[str, Any]) -> bool:
        """The container is one of the caller's."""
        return self.identity is not None and self.identity.id == _label(container, LABEL_CONTROLLER)

    def is_let_go(self, container: Mapping[str, Any]) -> bool:
        """It is one of the caller's, and none that the caller uses.

        A box is held before it is made, so one that was listed and is not held was closed.
        What is no box (an image is looked at in a container) is not held, but short-lived.
        """
        name = _name(container)
        own = self.identity if self.is_own(container) else None
        if own is None or not name or own.holds(name):
            return False
        is_box = bool(_label(container, LABEL_POLICY))
        return is_box or time.time() - float(container.get("Created") or 0) > OWN_GRACE

    def is_living(self, container: Mapping[str, Any]) -> bool:
        """The container's controller is known here and holds its lock."""
        controller = _label(container, LABEL_CONTROLLER)
        same = _label(container, LABEL_STATE) == str(self.state)
        return same and controller in self.known and controller not in self.dead


async def _is_over(engine: Engine, view: _View, container: Mapping[str, Any]) -> bool:
    """Whether a container may be removed now."""
    if view.is_dead(container) or view.is_let_go(container) or _expired(container):
        return True
    if container.get("State") not in (*_ENDED, "created"):
        return False
    if not view.is_living(container):
        return await _idle(engine, container) > FOREIGN_GRACE
    ended = container.get("State") in _ENDED
    return view.is_own(container) and ended and await _idle(engine, container) > OWN_GRACE


def _label(container: Mapping[str, Any], name: str) -> str:
    return str((container.get("Labels") or {}).get(name, ""))


def _name(container: Mapping[str, Any]) -> str:
    """The container's name; empty where the engine lists none."""
    return str(next(iter(container.get("Names") or ()), "")).removeprefix("/")


def _expired(container: Mapping[str, Any]) -> bool:
    text = _label(container, LABEL_EXPIRES)
    return text.isascii() and text.isdigit() and time.time() > int(text[:18])


async def _idle(engine: Engine, container: Mapping[str, Any]) -> float:
    """Seconds since the container ended, or was made if it never started."""
    times = [float(container.get("Created") or 0)]
    if container.get("State") in _ENDED:
        state = (await engine.inspect(container["Id"])).get("State") or {}
        times.append(_seconds(str(state.get("FinishedAt") or "")))
    return time.time() - max(times)


def _seconds(text: str) -> float:
    """`2026-01-02T03:04:05.678901234Z` → seconds since 1970; unreadable → 0."""
    with suppress(ValueError, OverflowError):
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    return 0.0


# ─── locks and directories ──────────────────────────────────────────────────────────


@contextmanager
def _dead_controllers(controllers: Path) -> Iterator[dict[str, int]]:
    """Id → lock of every controller that holds its lock no longer; held meanwhile."""
    dead: dict[str, int] = {}
    try:
        for id in sorted(_known(controllers)):
            lock = _take(controllers / f"{id}.lock", create=False)
            if lock is not None:
                dead[id] = lock
        yield dead
    finally:
        for lock in dead.values():
            os.close(lock)


def _known(controllers: Path) -> frozenset[str]:
    """Ids of the controllers that have a lock file."""
    try:
        names = os.listdir(controllers)
    except FileNotFoundError:
        return frozenset()
    return frozenset(
        name.removesuffix(".lock")
        for name in names
        if name.endswith(".lock") and _ID.fullmatch(name.removesuffix(".lock"))
    )


def living(state: Path) -> list[Path]:
    """Directories of the controllers that hold their locks."""
    controllers = state / "controllers"
    known = sorted(_known(controllers))
    with _dead_controllers(controllers) as dead:
        return [controllers / id for id in known if id not in dead]


def _take(path: Path, *, create: bool) -> int | None:
    """A lock's descriptor; None when it is held, or is no longer what the path names."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    flags |= os.O_CREAT | os.O_EXCL if create else os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        if create and not path.exists():
            raise
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_directories(controllers: Path, dead: list[str]) -> tuple[str, ...]:
    """Removes directories of controllers whose lock is held by the caller, lock last."""
    removed = []
    for id in dead:
        if _remove_tree(controllers, id):
            with suppress(FileNotFoundError):
                (controllers / f"{id}.lock").unlink()
            removed.append(id)
    return tuple(removed)


def _remove_tree(parent: Path, name: str) -> bool:
    """Removes a directory by file descriptors, following no link; True when it is gone."""
    descriptor = -1
    try:
        descriptor = os.open(parent, descent.DIRECTORY)
        # Copies of worktrees are among it, which boxes made as deep as they liked.
        descent.remove(name, descriptor)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True
