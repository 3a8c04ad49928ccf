"""The content of one file, and what goes with it: opened, compared, copied by descriptors."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from executor.sandbox.descent import Mounted, mount_of

PLAIN = 0o777
"""The bits of a mode that give no privilege."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOATIME | os.O_CLOEXEC
_SMALL = 1 << 18
_CHUNK = 1 << 24


@contextmanager
def opened(name: str, directory: int) -> Iterator[int]:
    """A regular file of the directory's own file system, open for reading.

    Raises:
        Mounted: another file is mounted over it.
        OSError: it is gone, or something else.
    """
    descriptor = os.open(name, _FILE, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file any more")
        if mount_of(descriptor) != mount_of(directory):
            raise Mounted
        yield descriptor
    finally:
        os.close(descriptor)


def marks(status: os.stat_result) -> tuple[int, ...]:
    """What two files with the same content may still differ in."""
    return status.st_mode & PLAIN, status.st_uid, status.st_gid, status.st_mtime_ns


def copy(source: int, target: int, status: os.stat_result) -> None:
    """The content as far as the status tells, however it grows; holes stay holes."""
    if status.st_size <= _SMALL and status.st_blocks * 512 >= status.st_size:
        left = status.st_size
        while piece := os.read(source, left):
            _write_all(target, piece)
            left -= len(piece)
        return
    os.ftruncate(target, status.st_size)
    position = 0
    while position < status.st_size:
        start = _data(source, position)
        if start is None:  # nothing but a hole is left
            return
        position = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        while start < position:
            sent = os.sendfile(target, source, start, min(position - start, _CHUNK))
            if not sent:  # it was cut meanwhile
                return
            start += sent


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def same_content(one: int, other: int) -> bool:
    """Whether two files of one size hold the same. What is a hole in both is not read."""
    position = 0
    while True:
        starts = [start for file in (one, other) if (start := _data(file, position)) is not None]
        if not starts:
            return True
        position = min(starts)
        mine, its = os.pread(one, _SMALL, position), os.pread(other, _SMALL, position)
        if mine != its:
            return False
        if not mine:
            return True
        position += len(mine)


def _data(file: int, position: int) -> int | None:
    """Where the next content is that is no hole; None if there is none."""
    try:
        return os.lseek(file, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def copy_attributes(source: int, target: int) -> None:
    """Makes the extended attributes that any owner may set alike. No capabilities, no labels.

    Access lists are among them, so this goes before the mode, which they change.
    """
    wanted = _own_attributes(source)
    for name in _own_attributes(target) - wanted:
        with suppress(OSError):
            os.removexattr(target, name)
    for name in wanted:
        with suppress(OSError):
            os.setxattr(target, name, os.getxattr(source, name))


def _own_attributes(file: int) -> set[str]:
    with suppress(OSError):
        return {one for one in os.listxattr(file) if one.startswith(("user.", "system.posix_acl_"))}
    return set()
