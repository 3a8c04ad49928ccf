"""How much a tree takes, found by directory descriptors while it may be changed.

Directories are opened and entries looked at; no file is opened and no link followed, and
what is mounted in the tree is left out. What can't be seen from names is not counted: a file
that was deleted and is still open, the content of directories that this process may not
read, and what is moved from where the look has yet to come to where it has been.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from executor.sandbox.descent import Trail

_BLOCK = 512
_BREATH = 128
"""Entries between two looks at the clock."""
_COARSE = 5
"""The kernel's CLOCK_REALTIME_COARSE, which inodes get their times from."""


def before_now() -> int:
    """Nanoseconds since 1970. What is changed from now on has a later time of change.

    That goes by a clock that stands still for milliseconds.
    """
    return time.clock_gettime_ns(_COARSE) - 1


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree takes.

    Attributes:
        bytes: allocated, directories included, each file once.
        files: files, links, directories and so on, each once.
        old_bytes, old_files: those of it that have not changed since a time that was given.
        is_whole: the look was not ended early.
    """

    bytes: int
    files: int
    old_bytes: int = 0
    old_files: int = 0
    is_whole: bool = True


class Stopped(Exception):
    """The look was called off."""


class Measurement:
    """One look at a tree.

    Args:
        roots: descriptors of directories; only read from.
        most: stop as soon as this is passed; None = look at everything.
        since: nanoseconds since 1970; what changed later is not `old`.
        share: of a core, that the look may take; it sleeps in between.
        stop: ends the look when it is set.
    """

    def __init__(
        self,
        roots: Sequence[int],
        stop: threading.Event,
        *,
        most: Usage | None = None,
        since: int = 0,
        share: float = 1.0,
    ) -> None:
        self._roots = roots
        self._stop = stop
        self._most = (most.bytes, most.files) if most is not None else (1 << 63, 1 << 63)
        self._since = since
        self._rest = 1 / share - 1
        self._linked: set[int] = set()
        self._bytes = self._files = self._old_bytes = self._old_files = 0
        self._entries = 0
        self._resumed = time.perf_counter()
        self.cost = 0.0
        """Seconds that the look has taken so far, its sleep not counted."""

    def take(self) -> Usage:
        """Look.

        Raises:
            Stopped: it was called off.
        """
        self._resumed = time.perf_counter()
        for root in self._roots:
            self._linked.clear()
            self._take(root)
        self._breathe()
        return Usage(
            self._bytes, self._files, self._old_bytes, self._old_files, not self._is_over()
        )

    def _take(self, root: int) -> None:
        device = os.fstat(root).st_dev
        with Trail(root) as trail:
            waiting = [self._look(root, device)]
            while waiting and not self._is_over():
                if not waiting[-1]:
                    waiting.pop()
                    if waiting and not trail.up():
                        del waiting[trail.depth + 1 :]
                    continue
                try:
                    trail.down(waiting[-1].pop())
                except OSError:
                    continue
                waiting.append([] if trail.is_outside else self._look(trail.descriptor, device))

    def _is_over(self) -> bool:
        return self._bytes > self._most[0] or self._files > self._most[1]

    def _look(self, directory: int, device: int) -> list[str]:
        """Counts one directory's entries; the names of the directories among them."""
        below: list[str] = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._entries += 1
                    if not self._entries % _BREATH:
                        self._breathe()
                        if self._is_over():
                            break
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if status.st_dev != device:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        below.append(entry.name)
                    elif status.st_nlink > 1 and not self._is_first(status.st_ino):
                        continue
                    self._count(status)
        except OSError:
            pass  # gone, or not to be read: what was seen of it counts
        return below

    def _is_first(self, inode: int) -> bool:
        if inode in self._linked:
            return False
        self._linked.add(inode)
        return True

    def _count(self, status: os.stat_result) -> None:
        size = status.st_blocks * _BLOCK
        self._bytes += size
        self._files += 1
        if status.st_ctime_ns <= self._since:
            self._old_bytes += size
            self._old_files += 1

    def _breathe(self) -> None:
        """Let others have the core, and see whether the look is still wanted."""
        took = time.perf_counter() - self._resumed
        self.cost += took
        if self._stop.wait(took * self._rest) if self._rest > 0 else self._stop.is_set():
            raise Stopped
        self._resumed = time.perf_counter()
