"""What covers the `.git` of the submodules of a worktree, in its boxes.

A submodule's `.git` names a git directory that no box has: git inside would end with "not a git
repository" at every command. And whoever can write it has the user's `git status` obey him, since
that looks into submodules. So it is covered: a file by a socket, a directory by an empty one. Git
takes neither for a repository, and the submodule for one that was not fetched; its files are there.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from executor.sandbox.descent import DIRECTORY

MOST = 64
"""Submodules that are covered: each is a mount."""
_SOCKET, _EMPTY = "covered", "empty"


def covers(worktree: int, submodules: Iterable[str], directory: Path) -> list[tuple[str, Path]]:
    """What is to be bound over what, read-only.

    Args:
        worktree: descriptor of it; no link in it is followed.
        submodules: their paths in it.
        directory: ours alone, for what covers.

    Returns:
        Pairs of a path in the worktree and a file or directory of ours.

    Raises:
        OSError: nothing can be made there.
    """
    found: list[tuple[str, Path]] = []
    for path in submodules:
        mode = _mode(worktree, f"{path}/.git")
        if mode is not None and len(found) < MOST:
            found.append((f"{path}/.git", _made(directory, is_directory=stat.S_ISDIR(mode))))
    return found


def _mode(root: int, path: str) -> int | None:
    """Of a plain file or a directory; None = there is neither, or a link leads there."""
    *above, name = path.split("/")
    here = os.dup(root)
    try:
        for part in above:
            below = os.open(part, DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        mode = os.stat(name, dir_fd=here, follow_symlinks=False).st_mode
    except OSError:
        return None
    finally:
        os.close(here)
    return mode if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else None


def _made(directory: Path, *, is_directory: bool) -> Path:
    """What covers, made once for all; nobody listens at the socket."""
    path = directory / (_EMPTY if is_directory else _SOCKET)
    with suppress(FileExistsError):
        if is_directory:
            path.mkdir(mode=0o555)
        elif not path.exists():
            _make_socket(directory, path.name)
    return path


def _make_socket(directory: Path, name: str) -> None:
    # By a descriptor: the path of a socket is at most 107 bytes long.
    parent = os.open(directory, DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{parent}/{name}")
        os.chmod(name, 0o444, dir_fd=parent)
    finally:
        os.close(parent)
