"""Which directories loops may write, so that none is opened in another one, or around it.

The commands of a loop may rename and replace all that is in its worktree, and in a directory
beside it that is writable: the `.git` of a worktree in there, that is hidden from its loop and
must not be written, and the way to it. Two loops over one and the same directory are another
matter: they share it by intent.

A claim is a file in the controller's directory, and is worth something as long as the
controller holds its lock.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from executor.errors import ConfigError
from executor.sandbox.ownership import GitEntry, Worktree
from executor.sandbox.reaper import Identity, living

_SUFFIX = ".worktree"


@dataclass(frozen=True, slots=True)
class Claim:
    """A directory in use.

    Attributes:
        loop: whose it is.
        path: real path.
        ancestry: device and inode of it and of every directory above it.
        has_git: it had a `.git` when the loop was opened, which the loop could not reach.
        sets_aside: repositories that the loop makes in it are to be set aside.
    """

    loop: str
    path: str
    ancestry: tuple[tuple[int, int], ...]
    has_git: bool = True
    sets_aside: bool = False

    def conflict(self, other: Claim) -> str | None:
        """Why the two can't be open at once; None = they can."""
        mine, its = self.ancestry[0], other.ancestry[0]
        if mine == its:
            return None
        if its in self.ancestry:
            how = "lies in"
        elif mine in other.ancestry:
            how = "contains"
        else:
            return None
        return (
            f"worktree: {self.path} {how} {other.path}, where loop {other.loop!r} is at work; the "
            "outer loop's commands could replace the inner one's .git and what leads there. End "
            "that loop first, or use directories that lie beside one another"
        )


@contextmanager
def claimed(
    identity: Identity, loop: str, worktree: Worktree, *, sets_aside: bool = False
) -> Iterator[None]:
    """The directory is written by a loop: meanwhile none is opened in it or around it.

    Of two that are opened in the same moment both may be refused.

    Args:
        identity: whose loop it is.
        loop: its name.
        worktree: the directory.
        sets_aside: see `Claim`.

    Raises:
        ConfigError: a living loop has such a directory.
    """
    has_git = worktree.git is not GitEntry.NONE
    own = Claim(loop, str(worktree.path), worktree.ancestry, has_git, sets_aside)
    name = secrets.token_hex(6)
    file, half = (identity.directory / f"{name}{end}" for end in (_SUFFIX, ".new"))
    half.write_text(json.dumps(astuple(own)))
    half.rename(file)
    try:
        for other in _others(identity, file):
            if (fault := own.conflict(other)) is not None:
                raise ConfigError(fault)
        yield
    finally:
        file.unlink(missing_ok=True)


def claims(directory: Path) -> Iterator[tuple[Claim, int]]:
    """What a controller's directory claims, and when each was, in nanoseconds since 1970."""
    for file in sorted(directory.glob(f"*{_SUFFIX}")):
        if (claim := _read(file)) is not None:
            yield claim, file.stat().st_mtime_ns


def _others(identity: Identity, own: Path) -> Iterator[Claim]:
    for directory in living(identity.state):
        for file in directory.glob(f"*{_SUFFIX}"):
            if file != own and (claim := _read(file)) is not None:
                yield claim


def _read(file: Path) -> Claim | None:
    """A claim; None if it is gone."""
    with suppress(FileNotFoundError):
        loop, path, ancestry, *more = json.loads(file.read_text())
        return Claim(loop, path, tuple((device, inode) for device, inode in ancestry), *more)
    return None
