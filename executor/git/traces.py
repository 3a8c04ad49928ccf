"""Whether a loop's own git directory has changed where its commits would show.

A box writes it: nothing of it is read here. Only what the kernel says of its files is compared,
so that a box that is gone is not opened again for a loop that has committed nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from executor.sandbox.descent import DIRECTORY

MOST = 50_000
"""Files and directories that are looked at; where there are more, a change is taken for granted."""
DEEPEST = 64
_PLACES = ("HEAD", "packed-refs", "reftable")

Traces: TypeAlias = frozenset[tuple[str, int, int, int, int]]
"""Of each file: its name, device, inode, change time and size."""


def traces(directory: Path) -> Traces | None:
    """What the refs of a git directory look like from outside; None: nobody can tell.

    Two that are equal were taken with no ref changed in between. Every write, rename and
    removal gives a file or its directory another change time, which nobody can set.
    """
    try:
        root = os.open(directory, DIRECTORY)
        try:
            found: set[tuple[str, int, int, int, int]] = set()
            for name in _PLACES:
                _note(name, name, root, found)
            _descend("refs", "refs", root, found, DEEPEST)
            return frozenset(found)
        finally:
            os.close(root)
    except (OSError, _TooMany):
        return None


class _TooMany(Exception):
    """More than is looked at."""


def _note(name: str, path: str, parent: int, found: set[tuple[str, int, int, int, int]]) -> None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if len(found) >= MOST:
        raise _TooMany
    # What is in a directory that is looked at as one thing can't be told from its own times.
    if name == "reftable":
        raise _TooMany
    found.add((path, status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size))


def _descend(
    name: str, path: str, parent: int, found: set[tuple[str, int, int, int, int]], left: int
) -> None:
    if left <= 0:
        raise _TooMany
    directory = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        _note(".", path, directory, found)
        with os.scandir(directory) as entries:
            for entry in entries:
                below = f"{path}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    _descend(entry.name, below, directory, found, left - 1)
                else:
                    _note(entry.name, below, directory, found)
    finally:
        os.close(directory)
