"""A way down a tree by directory descriptors: no link followed, no recursion, few open.

The tree may be hostile and may change meanwhile: every directory is opened by one name in
its parent, and a directory that is come back to is the one that was left, by device and
inode, or it is given up. What is mounted in the tree is told by the mount's number: another
directory of the same file system may be mounted there.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from types import TracebackType

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_OPEN = 32
"""Descriptors that one way holds at the most, its root's not counted."""
_MOUNT = re.compile(rb"^mnt_id:\s*(\d+)$", re.MULTILINE)


class Mounted(OSError):
    """Something is mounted there, which is no part of the tree."""

    def __init__(self) -> None:
        super().__init__(errno.EXDEV, "something else is mounted there")


def mount_of(descriptor: int) -> int:
    """The number of the mount that an open file or directory was reached by.

    Raises:
        OSError: the kernel does not tell.
    """
    told = os.open(f"/proc/self/fdinfo/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        match = _MOUNT.search(os.read(told, 4096))
    finally:
        os.close(told)
    if match is None:
        raise OSError(errno.ENOTSUP, "the kernel does not tell mounts apart")
    return int(match[1])


class _Level:
    """One directory on the way."""

    __slots__ = ("descriptor", "identity", "mount", "name")

    def __init__(self, name: str, descriptor: int, status: os.stat_result) -> None:
        self.name = name
        self.descriptor = descriptor
        self.identity = _identity(status)
        self.mount = mount_of(descriptor)


class Trail:
    """Where one is below a root directory. To be closed, or used with `with`.

    Args:
        root: descriptor of the root; it stays the caller's.
    """

    def __init__(self, root: int) -> None:
        self._root = _Level("", root, os.fstat(root))
        self._levels: list[_Level] = []

    def __enter__(self) -> Trail:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._levels:
            _close(self._levels.pop())

    @property
    def descriptor(self) -> int:
        """Of the directory where the way is now."""
        return self._top.descriptor

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return len(self._levels)

    @property
    def name(self) -> str:
        """Of the directory where the way is now; empty at the root."""
        return self._top.name

    @property
    def parts(self) -> tuple[str, ...]:
        """Names from the root to here."""
        return tuple(level.name for level in self._levels)

    @property
    def is_outside(self) -> bool:
        """The directory where the way is now is on another mount, or device, than the root."""
        top, root = self._top, self._root
        return (top.mount, top.identity[0]) != (root.mount, root.identity[0])

    @property
    def _top(self) -> _Level:
        return self._levels[-1] if self._levels else self._root

    def down(self, name: str) -> os.stat_result:
        """Go into a directory; its status.

        Raises:
            OSError: it is gone, is no directory any more, or can't be opened.
        """
        descriptor = os.open(name, DIRECTORY, dir_fd=self.descriptor)
        try:
            status = os.fstat(descriptor)
            level = _Level(name, descriptor, status)
        except BaseException:
            os.close(descriptor)
            raise
        self._levels.append(level)
        if len(self._levels) > MAX_OPEN:
            _close(self._levels[-MAX_OPEN - 1])
        return status

    def up(self) -> bool:
        """Go back to the directory above.

        Returns:
            False if that one is no longer where it was: the way is then at the lowest one
            that still is, see `depth`.
        """
        left = self._levels.pop()
        try:
            top = self._top
            if top.descriptor < 0:
                top.descriptor = _open_same("..", left.descriptor, top.identity)
            return True
        except OSError:
            return self._from_root()
        finally:
            _close(left)

    def _from_root(self) -> bool:
        """Open the way again from its root, as far as it is still there."""
        levels, self._levels = self._levels, []
        for place, level in enumerate(levels):
            try:
                descriptor = _open_same(level.name, self.descriptor, level.identity)
            except OSError:
                for rest in levels[place:]:
                    _close(rest)
                return False
            _close(level)
            level.descriptor = descriptor
            self._levels.append(level)
            if len(self._levels) > MAX_OPEN:
                _close(self._levels[-MAX_OPEN - 1])
        return True


def at(root: int, parts: tuple[str, ...], act: Callable[[int], None]) -> None:
    """Do something with the descriptor of a directory that names lead to.

    Raises:
        OSError: they no longer lead there, or the deed failed.
    """
    with Trail(root) as trail:
        for name in parts:
            trail.down(name)
            if trail.is_outside:
                raise Mounted
        act(trail.descriptor)


def remove(name: str, parent: int) -> None:
    """Remove a directory with all that is in it, however deep; no link is followed.

    Args:
        name: of the directory.
        parent: descriptor of the one that it is in.

    Raises:
        OSError: it is not all gone, for example because something is mounted in it.
    """
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        _make_open(name, parent, status)
    root = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        with Trail(root) as trail:
            waiting = [_cleared(root)]
            while waiting:
                if waiting[-1]:
                    trail.down(waiting[-1].pop())
                    if trail.is_outside:
                        raise Mounted
                    waiting.append(_cleared(trail.descriptor))
                    continue
                waiting.pop()
                if waiting:
                    left = trail.name
                    if not trail.up():
                        raise FileNotFoundError(errno.ENOENT, "a directory was moved away")
                    os.rmdir(left, dir_fd=trail.descriptor)
    finally:
        os.close(root)
    os.rmdir(name, dir_fd=parent)


def _cleared(directory: int) -> list[str]:
    """Removes all from a directory but the directories in it; their names."""
    below: list[str] = []
    for name in os.listdir(directory):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=directory)
            continue
        below.append(name)
        _make_open(name, directory, status)
    return below


def _make_open(name: str, parent: int, status: os.stat_result) -> None:
    """Who owns a directory may have taken all rights to it from himself."""
    if status.st_mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=parent)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _open_same(name: str, parent: int, identity: tuple[int, int]) -> int:
    descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    if _identity(os.fstat(descriptor)) != identity:
        os.close(descriptor)
        raise FileNotFoundError(name)
    return descriptor


def _close(level: _Level) -> None:
    if level.descriptor >= 0:
        os.close(level.descriptor)
        level.descriptor = -1
