"""The index of a worktree that is to follow its branch, made ready beside the old one.

`stage` has git make the new index in a file of its own in the worktree's git directory, and
links that file to `index.lock`: whoever wants to change the index waits or fails from there on,
as with any other git. `finish` makes the lock the index, or takes it away. Both are one step.

A process that is killed in between leaves the lock. It is the same file as the one of our name,
by which `mend` knows it as ours: whoever lands holds the lock of the repository, so that its
maker is dead.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import time
from contextlib import suppress

from executor.git.program import Git
from executor.git.values import GitError, Repository
from executor.sandbox.descent import DIRECTORY

WAIT = 2.0
"""Seconds that a lock of the user's git is waited for; a `git status` holds it for less."""
_PAUSE = 0.05
_OURS = re.compile(r"executor-index-([0-9a-f]{40,64})")
_LOCK = "index.lock"


class Index:
    """A new index that is ready, and the lock that keeps the old one as it is."""

    def __init__(self, directory: int, name: str) -> None:
        self._directory = directory
        self._name = name

    def finish(self, *, taken: bool) -> None:
        """Make it the index, or leave the old one; the lock is gone then."""
        try:
            if taken:
                os.rename(_LOCK, "index", src_dir_fd=self._directory, dst_dir_fd=self._directory)
            else:
                os.unlink(_LOCK, dir_fd=self._directory)
            # The second name of what is the index now.
            os.unlink(self._name, dir_fd=self._directory)
        finally:
            os.close(self._directory)


async def stage(git: Git, repository: Repository, tree: str, commit: str) -> Index | str:
    """The index of a tree, with what the old one knows of files that are the same.

    Args:
        git: the host's.
        repository: has a worktree.
        tree: what the index is to hold.
        commit: where the branch goes; the file is named for it.

    Returns:
        The index, locked; or, as text, why it can't be had.
    """
    try:
        directory = _opened(repository)
    except OSError as error:
        return f"its index can't be made: {repository.git_directory}: {error.strerror}"
    name = f"executor-index-{commit}"
    try:
        end = time.monotonic() + WAIT
        made_from: object = _identity  # no identity of a file
        while True:
            before = _identity(directory, "index")
            if before != made_from:
                await _make(git, repository, directory, name, tree)
                made_from = before
            if _lock(directory, name):
                if _identity(directory, "index") == before:
                    return Index(os.dup(directory), name)
                os.unlink(_LOCK, dir_fd=directory)
            elif time.monotonic() > end:
                _drop(directory, name)
                return _held(directory, repository)
            await asyncio.sleep(_PAUSE)
    except GitError as error:
        _drop(directory, name)
        return f"its index can't be made: {error}"
    except OSError as error:
        return f"its index can't be made: {error.strerror or error}"
    except BaseException:
        _drop(directory, name)
        raise
    finally:
        os.close(directory)


async def mend(git: Git, repository: Repository) -> None:
    """Finish or take back what a landing left that was killed.

    To be called with the repository's lock. Where HEAD is at the commit that the index was made
    for, the refs had moved and the index follows; otherwise it stays.
    """
    if repository.worktree is None:
        return
    try:
        directory = _opened(repository)
    except OSError:
        return
    try:
        for name in os.listdir(directory):
            if match := _OURS.fullmatch(name.removesuffix(".lock")):
                head = await git.run(
                    ["rev-parse", "-q", "--verify", "HEAD"],
                    git_directory=repository.git_directory,
                    owner=repository.owner,
                )
                is_there = head.output.strip().decode() == match[1]
                if is_there and _is_ours(directory, name):
                    Index(os.dup(directory), name).finish(taken=True)
                else:
                    _drop(directory, name)
    finally:
        os.close(directory)


def _opened(repository: Repository) -> int:
    """The git directory: its owner's, since root links and renames in it.

    Raises:
        OSError: it can't be opened, or another user's was put there.
    """
    directory = os.open(repository.git_directory, DIRECTORY)
    uid = os.fstat(directory).st_uid
    if os.geteuid() == 0 and uid != repository.owner.uid:
        os.close(directory)
        raise PermissionError(errno.EPERM, f"it belongs to uid {uid}")
    return directory


async def _make(git: Git, repository: Repository, directory: int, name: str, tree: str) -> None:
    """Have git make the index. The same file under another name: git replaces, never rewrites."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    with suppress(FileNotFoundError):
        os.link("index", name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    await git.output(
        # Git looks for files here, where it is told no worktree: what it finds says nothing.
        ["-c", "sparse.expectFilesOutsideOfPatterns=true", "read-tree", "--reset", tree],
        git_directory=repository.git_directory,
        owner=repository.owner,
        environment={"GIT_INDEX_FILE": os.fspath(repository.git_directory / name)},
        timeout=600,
    )


def _lock(directory: int, name: str) -> bool:
    try:
        os.link(name, _LOCK, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        return False
    return True


def _drop(directory: int, name: str) -> None:
    """Take the file away, and the lock where it is the same file."""
    with suppress(OSError):
        if _is_ours(directory, name):
            os.unlink(_LOCK, dir_fd=directory)
    with suppress(OSError):
        os.unlink(name, dir_fd=directory)


def _is_ours(directory: int, name: str) -> bool:
    lock = _identity(directory, _LOCK)
    return lock is not None and lock == _identity(directory, name)


def _identity(directory: int, name: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _held(directory: int, repository: Repository) -> str:
    path = repository.git_directory / _LOCK
    try:
        since = os.stat(_LOCK, dir_fd=directory, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return f"its index ({path.with_suffix('')}) changes all the time"
    return f"git holds {path} for {max(0, time.time() - since):.0f} s now"
