"""What keeps a loop within the bytes and files that it may add to its worktree.

A quota belongs to the loop, not to a box: it is opened before the loop's first box and
closed when the last one is gone.

`none` is `Quota` itself. `Watch` looks at the worktree every now and then and ends the box
that has gone too far; it needs no right and no room, and is soft. `Separate` gives the box
a file system of its own (`ext4`), which is hard, and brings the changes back at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from executor.errors import ConfigError, NotReturned, QuotaExceeded, SandboxError
from executor.model import LoopSpec, parse_size
from executor.sandbox import ext4, nesting, ownership
from executor.sandbox.completion import to_completion
from executor.sandbox.descent import DIRECTORY
from executor.sandbox.measure import Measurement, Stopped, Usage, before_now
from executor.sandbox.mirror import Moved, Report
from executor.sandbox.reaper import Identity
from executor.sandbox.runtime import Progress, silent

T = TypeVar("T")
TICK = 1.0
"""Seconds between two looks at the free space, which cost nothing."""
SHORTEST, LONGEST = 1.0, 30.0
"""Seconds between two looks at the worktree."""
SHARE = 0.02
"""Of a core, that they take together where `LONGEST` allows it; a tenth at the most."""
PACE = 0.25
"""Of a core, that one look takes while it lasts, unless it is urgent."""
FIRST_DELAY = 1.0
"""Seconds from the first box to the first look: opening and the first call go before."""
QUIET = 1.0
"""Seconds for which a copy is not worth a word, and between two words about one."""
RECOVERIES = 3
"""How often a box is opened over a worktree that is above its limit."""

_ELSEWHERE = (
    "The engine may be on another machine; the worktree is watched as this machine sees it."
)

log = logging.getLogger(__name__)

_THREADS = ThreadPoolExecutor(2, "worktree")
"""Looks take long and mostly sleep; they must not take the threads of other work."""

Lose = Callable[[SandboxError], None]


class Quota:
    """No limit. The base of those that are.

    Attributes:
        described: for `capabilities`: the kind, whether it is hard, the limits.
        notices: what a person should be told, one sentence each.
    """

    def __init__(self, described: str = "none", notices: Iterable[str] = ()) -> None:
        self.described = described
        self.notices = tuple(notices)

    def place(self) -> ownership.Worktree | None:
        """What the box is to mount instead of the worktree; the caller closes it."""
        return None

    def room(self) -> Path | None:
        """A directory for what else the loop may write, where a hard limit holds for it, too.

        None = anywhere; `also` is told where.
        """
        return None

    def also(self, directory: Path) -> None:
        """What is in this directory counts as added to the worktree; before the first box."""

    async def admit(self, name: str) -> None:
        """A box is about to be made.

        Raises:
            QuotaExceeded: the worktree is too far above its limit.
        """

    def guard(self, lose: Lose, name: str) -> None:
        """A box is open, and `lose` ends it; a loop may have several at a time.

        Args:
            lose: ends it.
            name: of the box, as `release` has it.
        """

    def release(self, name: str) -> None:
        """The box is gone for certain."""

    async def close(self) -> None:
        """The loop is over, and so are its boxes."""

    def call_off(self) -> None:
        """Somebody waits for `close`, and no longer wants to."""


@contextlib.asynccontextmanager
async def opened(
    spec: LoopSpec,
    identity: Identity,
    is_local: bool,
    forbidden: Iterable[Path],
    progress: Progress = silent,
) -> AsyncIterator[Quota]:
    """The quota that the specification asks for.

    Args:
        identity: of the living controller.
        is_local: paths of this machine are the engine's.
        forbidden: places that no worktree may be in.
        progress: is told of copies that take long.

    Raises:
        ConfigError: the worktree can't be used, or can't have such a quota here.
        NotReturned: at the end: not all that the loop made is in its worktree.
    """
    forbidden = list(forbidden)
    with contextlib.ExitStack() as stack:
        worktree = stack.enter_context(ownership.open_worktree(spec.worktree, forbidden))
        stack.enter_context(claimed(spec, identity, forbidden))
        quota: Quota
        if spec.quota == "none":
            quota = Quota()
        elif spec.quota == "watch":
            quota = Watch(spec, worktree)
            if not is_local:
                quota.notices += (_ELSEWHERE,)
        else:
            quota = await Separate.open(spec, worktree, identity, is_local, progress)
        try:
            yield quota
        except BaseException as error:
            try:
                await _closed(quota)
            except NotReturned as failure:
                # What ended the loop, a cancellation perhaps, goes before.
                log.error("%s", failure)
                error.add_note(str(failure))
            raise
        await _closed(quota)


@contextlib.contextmanager
def claimed(spec: LoopSpec, identity: Identity, forbidden: Iterable[Path]) -> Iterator[None]:
    """All directories that the loop may write are its own meanwhile; see `nesting`.

    Raises:
        ConfigError: one of them can't be used, or a living loop is in the way.
    """
    forbidden = list(forbidden)
    sets_aside = spec.git.nested == "set-aside"
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(ownership.open_worktree(spec.worktree, forbidden))]
        for one in spec.directories:
            if one.is_writable:
                opened.append(stack.enter_context(ownership.open_beside(one.path, forbidden)))
        for directory in opened:
            stack.enter_context(
                nesting.claimed(identity, str(spec.exec_id), directory, sets_aside=sets_aside)
            )
        yield


async def _closed(quota: Quota) -> None:
    """Closes it, to its end; a cancellation, or a further one, makes that end come soon."""
    _closing.add(quota)
    try:
        await to_completion(quota.close(), quota.call_off)
    except asyncio.CancelledError as error:
        if error.__cause__ is not None:
            # A cancellation is all that its caller sees.
            log.error("%s", error.__cause__)
            error.add_note(str(error.__cause__))
        raise
    finally:
        _closing.discard(quota)


def call_off() -> None:
    """Every loop of this process that is bringing its changes back leaves the rest in an image."""
    for quota in list(_closing):
        quota.call_off()


_closing: set[Quota] = set()


# ─── watch ──────────────────────────────────────────────────────────────────────────


class Watch(Quota):
    """Measures the worktree beside the work. Nothing in it is opened but directories."""

    def __init__(self, spec: LoopSpec, worktree: ownership.Worktree) -> None:
        self._size = parse_size(spec.limits.disk_bytes)
        self._files = spec.limits.disk_files
        super().__init__(
            f"watch: soft, looked at every {SHORTEST:g} to {LONGEST:g} s; "
            f"at most {_allowance(self._size, self._files)} more"
        )
        self._path = worktree.path
        self._opened_at = before_now()
        self._stop = threading.Event()
        self._guarded = asyncio.Event()
        self._loses: dict[str, Lose] = {}
        self._ceiling: Usage | None = None
        self._base = self._found = Usage(0, 0)
        self._endings = 0
        self._has_passed = False
        self._cost = 0.0
        self._looks: set[asyncio.Future[Usage]] = set()
        self._task: asyncio.Task[None] | None = None
        self._looked = time.monotonic()
        self._directories: list[int] = []
        try:
            self._directories.append(worktree.readable())
        except OSError as error:
            self.described = "none: the worktree can't be read by this process"
            self.notices = (f"The worktree is not watched: {error.strerror}.",)
            return
        self._at_first = self._free = self._free_space()
        self._task = asyncio.create_task(self._keep_watch())

    # ── for boxes ──

    def also(self, directory: Path) -> None:
        """See `Quota.also`."""
        if self._task is not None:
            self._directories.append(os.open(directory, DIRECTORY))
            self._at_first = self._free = self._free_space()

    async def admit(self, name: str) -> None:
        """After an end for size: a new box may be had, so that files can be deleted in it.

        It is ended when the worktree grows by a sixteenth of the limit from there. After
        `RECOVERIES` such ends, no box is opened until somebody has made room.
        """
        if not self._has_passed or self._task is None:
            return
        usage = await self._measure(share=1.0)
        self._has_passed = False
        if self._is_within(usage):
            return
        if self._endings > RECOVERIES:
            self._has_passed = True
            raise QuotaExceeded(
                f"{self._sentence(usage)} No new sandbox is opened after {self._endings} ends "
                f"for that: delete what is not needed in {self._path} from outside, or give the "
                "loop a higher limit (disk_bytes, disk_files)."
            )
        self._ceiling = Usage(
            usage.bytes + max(self._size // 16, 1 << 20),
            usage.files + max(self._files // 16, 64),
        )

    def guard(self, lose: Lose, name: str) -> None:
        """See `Quota.guard`."""
        self._loses[name] = lose
        self._guarded.set()

    def release(self, name: str) -> None:
        """See `Quota.release`."""
        self._loses.pop(name, None)

    async def close(self) -> None:
        """End the watch; a look that is under way is called off."""
        if self._task is None:
            return
        self._stop.set()
        self._task.cancel()
        under_way: list[asyncio.Future[Any]] = [self._task, *self._looks]
        await asyncio.wait(under_way)
        for directory in self._directories:
            os.close(directory)

    # ── the watch ──

    async def _keep_watch(self) -> None:
        try:
            await self._find_base()
            while True:
                await self._until_due()
                usage = await self._measure(
                    most=self._ceiling, share=1.0 if self._is_shrinking() else PACE
                )
                self._judge(usage)
        except Stopped:
            pass
        except OSError as error:
            log.warning("the worktree %r can't be watched any longer: %s", str(self._path), error)

    async def _find_base(self) -> None:
        """What was there before. The loop may be writing already, and its first look is slow.

        What has changed since the loop was opened is taken for its addition as far as so
        much has gone from the disk since: an old file that it changed is not.
        """
        await self._guarded.wait()
        await asyncio.sleep(FIRST_DELAY)
        usage = await self._measure(since=self._opened_at, share=PACE)
        free = self._free_space()
        gone = [max(first - now, 0) for first, now in zip(self._at_first, free, strict=True)]
        self._base = Usage(
            usage.bytes - min(usage.bytes - usage.old_bytes, gone[0]),
            usage.files - min(usage.files - usage.old_files, gone[1]),
        )
        self._ceiling = self._most()
        self._judge(usage)

    def _most(self) -> Usage:
        return Usage(self._base.bytes + self._size, self._base.files + self._files)

    async def _until_due(self) -> None:
        pause = max(SHORTEST, min(self._cost / SHARE, LONGEST), self._cost * 10)
        while True:
            await asyncio.sleep(TICK)
            if not self._loses:
                continue
            since = time.monotonic() - self._looked
            free = self._free_space()
            is_quiet = free == self._free and free[1] > 0
            if since >= pause and not is_quiet:
                return
            if since >= max(SHORTEST, 4 * self._cost) and self._is_shrinking():
                return

    def _is_shrinking(self) -> bool:
        """As much went from the disk since the last look as the loop may add still."""
        assert self._ceiling is not None, "the base is found first"
        now = self._free_space()
        return (
            self._free[0] - now[0] > self._ceiling.bytes - self._found.bytes
            or self._free[1] - now[1] > self._ceiling.files - self._found.files
        )

    def _free_space(self) -> tuple[int, int]:
        systems = {os.fstat(one).st_dev: os.statvfs(one) for one in self._directories}
        return (
            sum(found.f_bfree * found.f_frsize for found in systems.values()),
            sum(found.f_ffree for found in systems.values()),
        )

    async def _measure(self, *, most: Usage | None = None, since: int = 0, share: float) -> Usage:
        free = self._free_space()
        look = Measurement(self._directories, self._stop, most=most, since=since, share=share)
        usage = await asyncio.shield(self._under_way(look))
        self._free = free
        self._found = usage
        self._cost = look.cost
        self._looked = time.monotonic()
        return usage

    def _under_way(self, look: Measurement) -> asyncio.Future[Usage]:
        """The look in its thread. It uses the directory until it is done, cancelled or not."""
        future = asyncio.get_running_loop().run_in_executor(_THREADS, look.take)
        self._looks.add(future)
        future.add_done_callback(self._looked_to_its_end)
        return future

    def _looked_to_its_end(self, look: asyncio.Future[Usage]) -> None:
        self._looks.discard(look)
        if not look.cancelled():
            look.exception()  # retrieved here: nobody may be waiting for it

    def _is_within(self, usage: Usage) -> bool:
        most = self._most()
        if usage.bytes > most.bytes or usage.files > most.files:
            return False
        self._ceiling = most
        self._endings = 0
        return True

    def _judge(self, usage: Usage) -> None:
        assert self._ceiling is not None, "the base is found first"
        if self._is_within(usage) or not self._loses:
            return
        if usage.bytes <= self._ceiling.bytes and usage.files <= self._ceiling.files:
            return
        # Whose bytes they are nobody can tell.
        loses, self._loses = self._loses, {}
        self._has_passed = True
        self._endings += 1
        for lose in loses.values():
            lose(QuotaExceeded(self._ending_of(usage)))

    def _ending_of(self, usage: Usage) -> str:
        return (
            f"{self._sentence(usage)} The sandbox was ended, the files are as they were. "
            "Delete what is not needed before anything else: until that is done, the next "
            f"one is ended when the worktree grows by {_size(max(self._size // 16, 1 << 20))} "
            f"or by {_number(max(self._files // 16, 64))} files."
        )

    def _sentence(self, usage: Usage) -> str:
        found = _allowance(
            max(usage.bytes - self._base.bytes, 0), max(usage.files - self._base.files, 0)
        )
        more = "" if usage.is_whole else " or more"
        return (
            f"The loop has added {found}{more} to its worktree and may add "
            f"{_allowance(self._size, self._files)} (disk_bytes, disk_files)."
        )


# ─── a file system of its own ───────────────────────────────────────────────────────


class Separate(Quota):
    """The box works in a copy of the worktree that can't grow beyond its limit."""

    def __init__(
        self, system: ext4.FileSystem, worktree: ownership.Worktree, progress: Progress
    ) -> None:
        super().__init__(
            f"loop-ext4: hard, a file system of its own; at most {_allowance(*system.room)} more",
            ("The worktree outside does not change before the loop ends.",),
        )
        self._system = system
        self._worktree = worktree
        self._progress = progress
        self._stop = threading.Event()
        self._boxes: set[str] = set()

    @classmethod
    async def open(
        cls,
        spec: LoopSpec,
        worktree: ownership.Worktree,
        identity: Identity,
        is_local: bool,
        progress: Progress = silent,
    ) -> Separate:
        """A file system with the worktree's content.

        Raises:
            ConfigError: such a thing can't be had here, or there is no room for it.
        """
        faults = ext4.faults()
        if not is_local:
            faults.append("the engine may be on another machine")
        if faults:
            raise ConfigError(
                f"quota: loop-ext4 can't be had: {'; '.join(faults)}. Run as root on the engine's "
                "machine with loop devices and e2fsprogs, or use quota watch"
            )
        system = ext4.FileSystem(identity.state, identity.id, str(spec.exec_id))
        stop = threading.Event()
        size = parse_size(spec.limits.disk_bytes)
        work = asyncio.to_thread(system.open, worktree, size, spec.limits.disk_files, stop)
        task = asyncio.ensure_future(work)
        try:
            step = f"copying {worktree.path} into a file system of its own"
            await asyncio.shield(_told_of(task, system, step, progress))
        except BaseException:
            stop.set()
            await to_completion(_undo(task, system))
            raise
        return cls(system, worktree, progress)

    def room(self) -> Path:
        """See `Quota.room`."""
        return self._system.beside

    def place(self) -> ownership.Worktree:
        """See `Quota.place`."""
        return ownership.open_own(self._system.tree)

    async def admit(self, name: str) -> None:
        """See `Quota.admit`."""
        self._boxes.add(name)

    def release(self, name: str) -> None:
        """See `Quota.release`."""
        self._boxes.discard(name)

    async def close(self) -> None:
        """Bring the changes back and free everything.

        Raises:
            NotReturned: not all of them could be; they are kept, and it is said where.
        """
        if self._boxes:
            # It may still be writing. The reaper keeps the image once it is gone.
            raise NotReturned(
                f"The worktree {self._worktree.path} was not changed: the loop's sandbox could "
                f"not be removed and may be running. When it is gone, the next sweep keeps the "
                f"files as an image in {self._system.kept.parent}."
            )
        step = (
            f"bringing the loop's changes back to {self._worktree.path} "
            "(a signal, Ctrl-C for one, ends that; what is not back then is kept as an image)"
        )
        work = asyncio.ensure_future(asyncio.to_thread(self._bring_back))
        reason = await _told_of(work, self._system, step, self._progress)
        try:
            image = await asyncio.to_thread(self._system.release)
        except Exception as error:  # whatever it is, what was found so far is said
            image = None
            if not reason:
                log.warning("a loop's file system is left to the next sweep: %s", error)
                return
            reason += f" Its file system can't be unmounted yet ({error})."
        if reason:
            where = ext4.how_to_mount(image or self._system.kept)
            raise NotReturned(f"{self._worktree.path}: {reason} All of {where}.")

    def call_off(self) -> None:
        """See `Quota.call_off`."""
        self._stop.set()

    def _bring_back(self) -> str:
        """Why not all came back; empty = it did."""
        try:
            report = self._system.bring_back(self._worktree, self._stop)
        except Stopped:
            return "bringing the loop's changes back was called off; some of them may be there."
        except (OSError, Moved) as error:
            return f"the loop's changes were not all brought back: {error}."
        except Exception as error:  # a fault of ours must not cost what the loop has made
            log.exception("a loop's changes could not be brought back")
            return f"the loop's changes were not all brought back: {type(error).__name__}: {error}."
        if report.left_out:
            log.info("%d pipes, sockets or mounts were left out", report.left_out)
        return "" if report.is_whole else _told(report)


async def _told_of(
    work: asyncio.Future[T], system: ext4.FileSystem, step: str, progress: Progress
) -> T:
    """The result of a copy. It is shown how far that is, if it takes long."""
    while not (await asyncio.wait({work}, timeout=QUIET))[0]:
        progress(step, system.looked, None)
    return work.result()


async def _undo(opening: asyncio.Future[None], system: ext4.FileSystem) -> None:
    await asyncio.wait({opening})
    try:
        await asyncio.to_thread(system.release)
    except (OSError, ConfigError) as error:
        log.warning("a loop's file system is left to the next sweep: %s", error)


def _told(report: Report) -> str:
    parts = []
    if report.kept:
        parts.append("Changed outside meanwhile and left so: " + ", ".join(report.kept))
    if report.failed:
        parts.append("Could not be written: " + ", ".join(report.failed))
    return (
        f"not all changes of the loop came back (left: {report.count}). " + "; ".join(parts) + "."
    )


def _allowance(size: int, files: int) -> str:
    return f"{_size(size)} and {_number(files)} files"


def _number(count: int) -> str:
    """`2000`, `62,500`."""
    return f"{count:,}" if count >= 10_000 else str(count)


def _size(size: int) -> str:
    """`1.5 GiB`, `64 MiB`; exact below a KiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"
