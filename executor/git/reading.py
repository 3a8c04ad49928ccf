"""Files of a repository that may be another user's, read with that user's rights.

Whoever owns a git directory can put a link to anybody's file in it. Root would follow it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from executor.git.program import as_owner
from executor.git.values import GitError
from executor.sandbox.container import Owner

MOST = 1 << 20


async def read(path: Path, owner: Owner, most: int = MOST) -> bytes | None:
    """What a file holds; None if there is none that its reader may read.

    Args:
        path: of it; a link is followed.
        owner: with whose rights, if we are root.
        most: bytes.

    Raises:
        GitError: it is longer.
    """
    if os.geteuid() == 0 and owner.uid != 0:
        return await _read_as(path, owner, most)
    return await asyncio.to_thread(_read, path, most)


async def may_use(path: Path, owner: Owner) -> bool:
    """Whether somebody may enter and list a directory, by every directory on the way to it."""
    if owner.uid == os.geteuid():
        return os.access(path, os.R_OK | os.X_OK)
    if os.geteuid() == 0:
        done = await as_owner(["/usr/bin/test", "-r", str(path), "-a", "-x", str(path)], owner)
        return done.code == 0
    return await asyncio.to_thread(_is_open_to, path, owner)


async def usable(path: Path, owner: Owner) -> tuple[int, int] | None:
    """Device and inode of a directory that somebody may enter and list; None if he may not.

    Who asks and what he sees are one: the path may lead elsewhere a moment later.
    """
    if os.geteuid() == 0 and owner.uid != 0:
        script = 'cd -P -- "$1" && test -r . && exec stat -c "%d %i" .'
        done = await as_owner(["/bin/sh", "-c", script, "sh", str(path)], owner)
        if done.code != 0:
            return None
        device, inode = done.output.split()
        return int(device), int(inode)
    if not await may_use(path, owner):
        return None
    status = await asyncio.to_thread(os.stat, path)
    return status.st_dev, status.st_ino


async def _read_as(path: Path, owner: Owner, most: int) -> bytes | None:
    command = [
        "/usr/bin/dd",
        f"if={path}",
        # What is no file, a pipe for one, gives nothing instead of being waited for.
        "iflag=nonblock,count_bytes,fullblock",
        "bs=65536",
        f"count={most + 1}",
        "status=none",
    ]
    done = await as_owner(command, owner, most=most + 1)
    return _checked(done.output, path, most) if done.code == 0 else None


def _read(path: Path, most: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return _checked(file.read(most + 1), path, most)


def _checked(data: bytes, path: Path, most: int) -> bytes:
    if len(data) > most:
        raise GitError(f"git: {path} is longer than {most} bytes; make it shorter")
    return data


def _is_open_to(path: Path, owner: Owner) -> bool:
    """The same by modes alone: we can't become the owner to try."""
    with suppress(OSError):
        last = len(path.parts) - 1
        for number, place in enumerate([*reversed(path.parents), path]):
            status = place.stat()
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, str(place))
            wanted = 0o5 if number == last else 0o1
            if _rights(status, owner) & wanted != wanted:
                return False
        return True
    return False


def _rights(status: os.stat_result, owner: Owner) -> int:
    if status.st_uid == owner.uid:
        return status.st_mode >> 6 & 0o7
    if status.st_gid == owner.gid:
        return status.st_mode >> 3 & 0o7
    return status.st_mode & 0o7
