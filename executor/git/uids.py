"""Uids that one loop has alone, so that no process of another one shares its files.

A lease is a lock (`flock`) on a file of the uid's name. The kernel drops it when the process
that has it ends, however it ends; the files stay, and nobody must remove them: a lock on a
file that is gone is no lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from executor.errors import ConfigError, SandboxUnavailable

FIRST = 1_900_000_000
LAST = 1_900_000_999
"""Far from what `useradd`, `subuid` and systemd's dynamic users deal out (systemd's
UIDS-GIDS, "Summary")."""
_HIGHEST = 2**31 - 1


class Lease:
    """A uid, and a gid of the same number, of one's own. Ended by `close` or `with`.

    Attributes:
        uid: the number.
    """

    def __init__(self, uid: int, descriptor: int) -> None:
        self.uid = uid
        self._descriptor = descriptor

    def close(self) -> None:
        """Gives it back; does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def owners_of_worktrees(state: Path) -> set[int]:
    """Whose the worktrees are that were made for loops and are still there.

    The box of a controller that was killed may run on, without anybody who holds its lease;
    its worktree is there until the box is gone and what it made was taken.

    Args:
        state: the state directory.
    """
    found = set()
    for tree in (state / "worktrees").glob("*/tree"):
        with suppress(FileNotFoundError):
            found.add(tree.stat(follow_symlinks=False).st_uid)
    return found


def lease(
    state: Path, first: int = FIRST, last: int = LAST, *, taken: Collection[int] = ()
) -> Lease:
    """Takes the lowest uid of a range that nobody has.

    Args:
        state: the state directory; leases are known to all that use the same one.
        first: lowest uid.
        last: highest uid.
        taken: uids that are not given although nobody has leased them.

    Raises:
        ConfigError: the range holds no uid, or one that is no ordinary user's.
        SandboxUnavailable: all of them are taken, or the directory can't be used.
    """
    if not 0 < first <= last <= _HIGHEST:
        raise ConfigError(
            f"uids: {first}-{last} is no range of uids; use two numbers from 1 to {_HIGHEST}"
        )
    directory = state / "uids"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for uid in range(first, last + 1):
            if uid in taken:
                continue
            if (descriptor := _lock(directory / str(uid))) is not None:
                return Lease(uid, descriptor)
    except OSError as error:
        raise SandboxUnavailable(f"No uid can be leased in {directory}: {error}") from error
    raise SandboxUnavailable(
        f"All {last - first + 1} uids from {first} to {last} are taken by loops that are open. "
        "Close some, or give a wider range."
    )


def _lock(path: Path) -> int | None:
    """A descriptor that holds the lock of a file; None = somebody has it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except OSError as error:
        os.close(descriptor)
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
            raise
        return None
