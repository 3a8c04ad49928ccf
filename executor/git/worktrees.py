"""Which worktree of a repository has a branch: read by ourselves, nothing of git is run there.

Whoever owns the repository may have put a link to anybody's file there, and what is read is shown
to him: so no link is followed, and nothing is read that he could not read himself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from executor.git.index import opened, take
from executor.git.program import Git
from executor.git.values import GitError, Repository
from executor.sandbox.container import Owner

_MOST = 1 << 20
_STUB = "refs/heads/.invalid"
"""What HEAD holds where the refs are tables (`reftable`), for programs that read files."""
_BUSY = ("rebase-merge/head-name", "rebase-apply/head-name", "rebase-merge/update-refs")
"""Where git notes the branches that a rebase will set when it ends."""


async def holder(git: Git, repository: Repository, branch: str) -> Path | None:
    """The other worktree that has a branch checked out, or rebases or bisects it; None = none.

    Args:
        git: the host's.
        repository: its own worktree is not looked at.
        branch: full name.
    """
    owner = repository.owner
    for directory in _others(repository):
        head = _read(directory / "HEAD", owner).strip()
        if head == f"ref: {_STUB}":
            done = await git.run(
                ["symbolic-ref", "-q", "HEAD"], git_directory=directory, owner=owner
            )
            head = "ref: " + os.fsdecode(done.output).strip()
        if head == f"ref: {branch}" and await _has_files(git, repository, directory):
            return _place(repository, directory)
        if _is_busy(directory, branch, owner):
            return _place(repository, directory)
    return None


def _others(repository: Repository) -> Iterator[Path]:
    """Git directories of the main worktree and of all linked ones, but our own worktree's."""
    common = repository.common_directory
    own = repository.git_directory if repository.worktree is not None else None
    found = [common]
    with suppress(OSError):
        found += sorted((common / "worktrees").iterdir())
    for directory in found:
        if own is None or not _is_same(directory, own):
            yield directory


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


async def _has_files(git: Git, repository: Repository, directory: Path) -> bool:
    """A bare repository has a HEAD, but nothing is checked out of it."""
    if directory != repository.common_directory:
        return True
    told = await git.run(
        ["config", "--type=bool", "--get", "core.bare"],
        git_directory=directory,
        owner=repository.owner,
    )
    return told.output.strip() != b"true"


def _is_busy(directory: Path, branch: str, owner: Owner) -> bool:
    if any(branch in _read(directory / name, owner).split("\n") for name in _BUSY):
        return True
    return _read(directory / "BISECT_START", owner).strip() == branch.removeprefix("refs/heads/")


def _place(repository: Repository, directory: Path) -> Path:
    """The worktree that a git directory belongs to, for a person."""
    if directory == repository.common_directory:
        return directory.parent if directory.name == ".git" else directory
    pointer = _read(directory / "gitdir", repository.owner).strip()
    return Path(pointer).parent if pointer else directory


def _read(path: Path, owner: Owner) -> str:
    """A file's text; empty if there is none that the repository's owner may read."""
    try:
        with opened(path.parent, owner) as directory:
            taken = take(directory, path.name, owner, _MOST)
    except GitError:
        return ""
    return os.fsdecode(taken.data) if taken is not None else ""
