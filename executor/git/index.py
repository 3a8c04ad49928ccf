"""A worktree's index, taken as it is: what git knows of the files' times stays known.

It is read by descriptors while its owner's git may write: git replaces an index by renaming
a new one over it, so that one that was opened stays whole. Nothing is followed, and nothing
is read that the repository's owner could not read himself.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from executor.git.values import GitError, ObjectFormat
from executor.sandbox.container import Owner
from executor.sandbox.descent import DIRECTORY

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_HASH_BYTES = {"sha1": 20, "sha256": 32}
_NAME = re.compile(rb"[A-Za-z]{4}")
_TRIES = 5
_MOST = 1 << 31


@dataclass(frozen=True, slots=True)
class Taken:
    """A file's content and times.

    Attributes:
        data: its content.
        times: of last access and change, ns. The time of an index has a meaning: files
            changed at that time, or later, are looked into (gitformat-index(5), "racy git").
    """

    data: bytes
    times: tuple[int, int]


@contextmanager
def opened(directory: Path, owner: Owner) -> Iterator[int]:
    """A descriptor of a git directory.

    Raises:
        GitError: a link leads to it, or its owner may not enter it.
    """
    try:
        descriptor = os.open(directory, DIRECTORY)
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") != os.fspath(directory):
                raise OSError(errno.ELOOP, "a link leads there")
            _check_readable(os.fstat(descriptor), owner, 0o1)
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise GitError(f"git: {directory} can't be read: {error.strerror or error}") from error


def take(directory: int, name: str, owner: Owner, most: int = _MOST) -> Taken | None:
    """A plain file of a git directory; None = there is none.

    Args:
        directory: descriptor of the git directory.
        name: of the file in it.
        owner: the repository's; what he may not read is not read for him.
        most: bytes that it may have.

    Raises:
        OSError: it is no plain file, is too large, or its owner may not read it.
    """
    try:
        descriptor = os.open(name, _FILE, dir_fd=directory)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, f"{name} is no plain file")
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"{name} has {status.st_size} bytes")
        _check_readable(status, owner, 0o4)
        # Not `most`: as many bytes would be allocated.
        return Taken(file.read(status.st_size), (status.st_atime_ns, status.st_mtime_ns))


def take_index(directory: int, object_format: ObjectFormat, owner: Owner) -> dict[str, Taken]:
    """The index, and the shared one that it is split from, by their names.

    Raises:
        GitError: the shared index that it names stays away.
        OSError: as `take`.
    """
    for _ in range(_TRIES):
        index = take(directory, "index", owner)
        if index is None:
            return {}
        name = shared_name(index.data, object_format)
        if name is None:
            return {"index": index}
        if (shared := take(directory, name, owner)) is not None:
            return {name: shared, "index": index}
    raise GitError(
        f"git: the index is split and its shared part {name} is missing; run "
        "`git update-index --no-split-index` in the worktree"
    )


def shared_name(index: bytes, object_format: ObjectFormat) -> str | None:
    """Name of the shared index that an index is split from; None = it is whole.

    The extension `link` has it. Entries before the extensions have no length of their own, so
    the extension is known by what follows it: extensions up to the checksum at the end.
    """
    size = _HASH_BYTES[object_format]
    position = index.find(b"link")
    while position >= 0:
        if _is_extension(index, position, len(index) - size):
            name = index[position + 8 : position + 8 + size]
            return f"sharedindex.{name.hex()}" if any(name) else None
        position = index.find(b"link", position + 1)
    return None


def _is_extension(index: bytes, position: int, end: int) -> bool:
    first = True
    while position < end:
        if not _NAME.fullmatch(index[position : position + 4]):
            return False
        length = int.from_bytes(index[position + 4 : position + 8])
        if first and length < len(index) - end:
            return False
        first = False
        position += 8 + length
    return position == end


def _check_readable(status: os.stat_result, owner: Owner, right: int) -> None:
    """A controller that is root reads nothing for a user that he could not read."""
    if os.geteuid() or owner.uid in {0, status.st_uid}:
        return
    group = right << 3 if owner.gid == status.st_gid else 0
    if not status.st_mode & (right | group):
        raise PermissionError(errno.EACCES, "the repository's owner may not read it")
