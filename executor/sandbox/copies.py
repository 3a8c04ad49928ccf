"""A worktree of its own for an agent below a loop: copied from the loop's, merged back once.

The copy is a directory of the controller's. What the agent changed is told from what others
changed meanwhile as `mirror` does it, entry by entry: what only the agent changed is brought,
what others changed or made stays, and what both changed differently is a conflict. There the
loop's own stays in its place, and the agent's is handed out to be kept elsewhere.

All methods of `Copy` block; they are for a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from executor.model import LoopSpec
from executor.sandbox import content, descent
from executor.sandbox.completion import to_completion
from executor.sandbox.descent import DIRECTORY
from executor.sandbox.measure import before_now
from executor.sandbox.mirror import MERGING, Mirror, Origin, keep
from executor.sandbox.ownership import GitEntry, Worktree, open_own
from executor.sandbox.quota import Quota, Watch

_HIDDEN = frozenset({".git"})
_PAUSE = 0.001

log = logging.getLogger(__name__)


def _moment() -> int:
    """A time that what was changed before this is not after, and what is changed next is.

    The clock of inodes stands still for milliseconds: it is waited for.
    """
    moment = time.time_ns()
    while before_now() <= moment:
        time.sleep(_PAUSE)
    return moment


@dataclass(frozen=True, slots=True)
class Conflict:
    """An entry that both the agent and somebody else changed.

    Attributes:
        path: in the worktree, which has the other's still.
        data: what the agent's file holds; None = it has none there, or it is no file.
        left_out: bytes at its end that are not in `data`.
    """

    path: str
    data: bytes | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Merged:
    """What came of bringing an agent's changes back.

    Attributes:
        written, removed: entries.
        conflicts: the first of those that were kept from it.
        failed: entries that could not be written, with the reason; the first of them.
        count: conflicts and failures in all.
    """

    written: int = 0
    removed: int = 0
    conflicts: tuple[Conflict, ...] = ()
    failed: tuple[str, ...] = ()
    count: int = 0


class Copy:
    """The copy of one worktree.

    Args:
        tree: an empty directory of ours.
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._opened_at = self._filled_at = 0
        self._hidden = _HIDDEN
        self._directories: dict[int, Origin] = {}
        self._entries: set[tuple[int, str]] = set()

    def fill(self, worktree: Worktree, stop: threading.Event) -> None:
        """Take all that is in a worktree now but its `.git`.

        Raises:
            OSError, Moved: it could not be copied.
            Stopped: it was called off.
        """
        self._opened_at = _moment()
        source, target = worktree.readable(), os.open(self.tree, DIRECTORY)
        try:
            Mirror(
                source,
                target,
                stop,
                hidden=_HIDDEN,
                directories=self._directories,
                entries=self._entries,
            ).run()
            # The cover of the worktree's `.git` needs something to lie on.
            if worktree.git is GitEntry.FILE:
                os.close(os.open(".git", os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target))
            elif worktree.git is GitEntry.DIRECTORY:
                os.mkdir(".git", 0o700, dir_fd=target)
            else:
                # One that is made in the copy is an entry like any other.
                self._hidden = frozenset()
        finally:
            os.close(target)
            os.close(source)
        self._filled_at = _moment()

    def merge(self, worktree: Worktree, stop: threading.Event, most: int) -> Merged:
        """Bring back what was changed in the copy. To be called when no box uses it.

        Args:
            worktree: that it was filled from.
            stop: calls it off.
            most: bytes of a file of a conflict that are handed out.

        Raises:
            OSError, Moved, Stopped: it was not done to its end.
        """
        source, target = os.open(self.tree, DIRECTORY), worktree.readable()
        refused: list[str] = []
        if not self._hidden and worktree.git is not GitEntry.NONE:
            # Two repositories are not to be mixed; that of the others stays.
            self._hidden = _HIDDEN
            if os.path.lexists(self.tree / ".git"):
                refused.append("'.git': somebody else has made one meanwhile")
        try:
            if not os.fstat(target).st_nlink:
                raise FileNotFoundError(f"the worktree {worktree.path} was removed")
            report = Mirror(
                source,
                target,
                stop,
                changed_since=self._filled_at,
                foreign_since=self._opened_at,
                hidden=self._hidden,
                directories=self._directories,
                entries=self._entries,
            ).run()
            conflicts = tuple(_versions(source, report.paths, most))
        finally:
            os.close(target)
            os.close(source)
        failed = (*refused, *report.failed)
        count = report.count + len(refused)
        return Merged(report.written, report.removed, conflicts, failed, count)


def _versions(root: int, paths: Iterable[str], most: int) -> Iterable[Conflict]:
    """What a copy has at these places. It is read as a file that a box has made: no link."""
    for path in paths:
        found: list[Conflict] = []

        def read(directory: int, path: str = path, found: list[Conflict] = found) -> None:
            with content.opened(path.rpartition("/")[2], directory) as file:
                data = bytearray()
                while len(data) < most and (piece := os.read(file, most - len(data))):
                    data += piece
                size = max(os.fstat(file).st_size - len(data), 0)
                found.append(Conflict(path, bytes(data), size))

        try:
            descent.at(root, tuple(path.split("/")[:-1]), read)
        except OSError:
            found.append(Conflict(path))
        yield from found


class Placed(Quota):
    """No limit, over a loop's own worktree, which is read-only there."""

    def __init__(self, source: Callable[[], Worktree]) -> None:
        super().__init__()
        self._source = source

    def place(self) -> Worktree:
        """See `Quota.place`."""
        return self._source()


class Unwatched(Quota):
    """No limit, over a copy."""

    def __init__(self, tree: Path) -> None:
        super().__init__()
        self._tree = tree

    def place(self) -> Worktree:
        """See `Quota.place`."""
        return open_own(self._tree)


class Watched(Watch):
    """A soft limit, over a copy."""

    def __init__(self, spec: LoopSpec, tree: Path) -> None:
        with open_own(tree) as worktree:
            super().__init__(spec, worktree)
        self._tree = tree

    def place(self) -> Worktree:
        """See `Quota.place`."""
        return open_own(self._tree)


# ─── where an agent works ───────────────────────────────────────────────────────────


class Ground:
    """Where one agent below a loop works. Made by `shared` or `copied`.

    Attributes:
        worktree: its directory on this machine.
        kept: where its copy stays, as not all of it could be brought back; None = nowhere.
    """

    def __init__(self, source: Callable[[], Worktree], worktree: Path) -> None:
        self.kept: Path | None = None
        self.worktree = worktree
        self._source = source

    def quota(self, spec: LoopSpec) -> Quota:
        """What keeps the agent's boxes within their limits, and says where they work.

        Args:
            spec: of the agent.
        """
        return Placed(self._source)

    async def merge(self, most: int) -> Merged | None:
        """Bring back what it changed, when no box of it is left; None = it could change nothing.

        Args:
            most: bytes of a file of a conflict that are handed out.

        Raises:
            OSError, Moved: it was not done to its end.
        """
        return None


class _Copied(Ground):
    def __init__(
        self, source: Callable[[], Worktree], copy: Copy, stop: threading.Event, place: Path
    ) -> None:
        super().__init__(source, copy.tree)
        self._copy = copy
        self._stop = stop
        self._place = place

    def quota(self, spec: LoopSpec) -> Quota:
        return Unwatched(self.worktree) if spec.quota == "none" else Watched(spec, self.worktree)

    async def merge(self, most: int) -> Merged | None:
        mark = self._copy.tree.parent / MERGING

        def work() -> Merged:
            # Until it is whole the copy is not given up, however this process ends.
            self.kept = self._place
            with self._source() as worktree:
                mark.write_bytes(os.fsencode(worktree.path))
                merged = self._copy.merge(worktree, self._stop, most)
            if not merged.failed:
                self.kept = None
                mark.unlink()
            return merged

        # Half a merge is worse than one that comes late.
        return await to_completion(asyncio.to_thread(work))


def shared(source: Callable[[], Worktree]) -> Ground:
    """The loop's own worktree, which the agent must not change.

    Args:
        source: opens it, as the loop's boxes have it.

    Raises:
        ConfigError: it can't be opened any more.
    """
    with source() as worktree:
        return Ground(source, worktree.path)


@asynccontextmanager
async def copied(
    source: Callable[[], Worktree], directory: Path, kept: Path
) -> AsyncIterator[Ground]:
    """A copy of the loop's worktree, for as long as this lasts.

    Args:
        source: opens the worktree, as the loop's boxes have it.
        directory: an empty one of ours; it is removed at the end.
        kept: where it goes instead, if not all could be brought back.

    Raises:
        OSError, Moved, ConfigError: it could not be copied.
    """
    stop = threading.Event()
    tree = directory / "tree"
    copy = Copy(tree)

    def fill() -> None:
        tree.mkdir(mode=0o700)
        with source() as worktree:
            copy.fill(worktree, stop)

    filling = asyncio.ensure_future(asyncio.to_thread(fill))
    try:
        try:
            await asyncio.shield(filling)
        except asyncio.CancelledError:
            stop.set()
            raise
        ground = _Copied(source, copy, stop, kept / directory.name)
        try:
            yield ground
        finally:
            if ground.kept is not None:
                await to_completion(asyncio.to_thread(keep, directory, ground.kept))
    finally:
        await to_completion(_cleared_away(filling, directory))


async def _cleared_away(filling: asyncio.Future[None], directory: Path) -> None:
    await asyncio.wait({filling})
    if not filling.cancelled():
        filling.exception()  # retrieved here: whoever waited may have been cancelled

    def clear() -> None:
        if not directory.exists():
            return  # it is kept
        parent = os.open(directory.parent, DIRECTORY)
        try:
            descent.remove(directory.name, parent)
        finally:
            os.close(parent)

    try:
        await asyncio.to_thread(clear)
    except OSError as error:
        log.warning("an agent's copy is left to the next sweep: %s", error.strerror or error)
