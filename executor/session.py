"""What is remembered for one loop: the files that it read, where it is, what it finished."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from executor.model import MOUNT


@dataclass(frozen=True, slots=True)
class Reading:
    """What the loop has seen of one file.

    Attributes:
        hash: of the whole file when it was last read or written; None for huge files.
        through: line up to which it was shown without a gap, counted from line 1.
        whole: every byte was shown or written by the loop.
    """

    hash: str | None
    through: int = 0
    whole: bool = False


class Session:
    """The memory of one loop. Paths are worktree paths, compared as text.

    Attributes:
        cwd: where the last command ended, as seen inside the box.
        completed: the summary that the model gave to `complete_task`; None before.
    """

    def __init__(self) -> None:
        self.cwd = MOUNT
        self.completed: str | None = None
        self._reads: dict[str, Reading] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def reading(self, path: str) -> Reading | None:
        """What was seen of the file; None if nothing was."""
        return self._reads.get(path)

    def saw(self, path: str, digest: str | None, first: int, last: int, more: bool) -> None:
        """Lines `first` to `last` were shown whole; `more` lines follow in the file.

        Readings of unchanged content add up when they leave no gap, so a file too long
        for one reading can be known as a whole.
        """
        before = self._reads.get(path)
        same = before is not None and digest is not None and before.hash == digest
        through = before.through if same and before is not None else 0
        whole = before.whole if same and before is not None else False
        if first <= through + 1:
            through = max(through, last)
            whole = whole or (not more and through == last)
        self._reads[path] = Reading(digest, through, whole)

    def knows(self, path: str, digest: str | None) -> None:
        """The loop read or wrote every byte of the file."""
        self._reads[path] = Reading(digest, whole=True)

    def edited(self, path: str, digest: str | None) -> None:
        """The loop changed the file: what it knew of it, it still knows."""
        before = self._reads.get(path, Reading(None))
        # Line numbers may have moved: a gapless reading has to start again.
        self._reads[path] = replace(before, hash=digest, through=0)

    def forget(self, path: str) -> None:
        """The file, or the directory with all in it, is gone."""
        for name in self._at_or_below(path):
            del self._reads[name]

    def move(self, source: str, target: str) -> None:
        """What was seen of `source`, or of the files in it, holds for `target` now."""
        moved = {
            target + name[len(source) :]: self._reads.pop(name)
            for name in self._at_or_below(source)
        }
        self.forget(target)
        self._reads.update(moved)

    def lock(self, path: str) -> asyncio.Lock:
        """The lock of this path: changes to one file follow each other."""
        return self._locks.setdefault(path, asyncio.Lock())

    def _at_or_below(self, path: str) -> list[str]:
        below = path + "/"
        return [name for name in self._reads if name == path or name.startswith(below)]
