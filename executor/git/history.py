"""One loop's history: from the repository of its worktree into its boxes, and back.

    open      the worktree's repository is found, or a worktree is made of one
    place     the loop's own git directory is written, for all its boxes
    commit    after a turn, if that is wanted; and what it made is landed
    collect   what it has made leaves its last box, into a quarantine, and is checked
    settle    it lands in the origin, or is kept aside; no box is left
    look      what the loop left in its worktree is looked at, and made harmless for git

What fails on the way back is not raised: it is a sentence of the report, and what the loop
has made stays where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from executor.errors import ConfigError, ExecutorError
from executor.git import (
    aftermath,
    checkout,
    commits,
    export,
    landing,
    private,
    repository,
    submodules,
)
from executor.git.program import Git
from executor.git.records import TREE, Entry, Record, Records, State
from executor.git.report import Report
from executor.git.tidying import suffix
from executor.git.traces import Traces, traces
from executor.git.uids import Lease, lease, owners_of_worktrees
from executor.git.values import Arrival, Box, Head, Landed, Refused, Repository, Sharing
from executor.model import GitOptions, LoopSpec
from executor.sandbox import ownership
from executor.sandbox.completion import to_completion
from executor.sandbox.container import GitView, Owner
from executor.sandbox.descent import DIRECTORY
from executor.sandbox.measure import Stopped, before_now
from executor.sandbox.mirror import Mirror, Moved
from executor.sandbox.quota import Quota

_PATIENCE = 10.0
"""Seconds that somebody else may have the loop's entry while it ends."""
_LAST = "What {exec_id} had not committed"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a loop's history has to know about where it is.

    Attributes:
        state: the state directory.
        controller: id of the living controller.
        forbidden: places that no worktree may be in.
        users: which uids boxes have.
        is_gvisor: the boxes have a kernel of their own.
        uids: first and last of those that made worktrees get; None = the caller's own.
        program: git; None = it is looked for.
        claimed: notes the directories of a loop until they were looked at, so that who comes
            after a crash looks at them; None = nobody comes.
    """

    state: Path
    controller: str
    forbidden: tuple[Path, ...]
    users: ownership.UserMap
    is_gvisor: bool = False
    uids: tuple[int, int] | None = None
    program: Path | None = None
    claimed: Callable[[LoopSpec], contextlib.AbstractContextManager[None]] | None = None


class History:
    """The history of one loop. Made by `opened`.

    Attributes:
        spec: the loop's; with the worktree that was made for it, if one was.
        view: what its boxes have of git; None = nothing.
        no_git: why they have nothing, where a repository is hidden; None = it is not.
        notices: what a person should be told, one sentence each.
        report: what it made and left; None before the end.
    """

    def __init__(self, spec: LoopSpec, around: Surroundings) -> None:
        self.spec = spec
        self.view: GitView | None = None
        self.no_git: str | None = None
        self.notices: list[str] = []
        self.report: Report | None = None
        self._around = around
        self._options: GitOptions = spec.git
        self._git: Git | None = None
        self._repository: Repository | None = None
        self._origin: Repository | None = None
        """The same, with HEAD as it is outside."""
        self._lease: Lease | None = None
        self._entry: Entry | None = None
        self._arrival: Arrival | None = None
        self._landed: Landed | None = None
        self._is_unexported = False
        self._faults: list[str] = []
        self._notes: list[str] = []
        self._versioned: set[str] = set()
        """Directories that the loop may write and that had a `.git` before it began."""
        self._since = before_now()
        self._traces: Traces | None = None
        """Of the loop's own git directory when nothing was in it that has not come."""
        self._stop = threading.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, spec: LoopSpec, around: Surroundings) -> AsyncIterator[History]:
        """The history of a loop, for longer than anything else of it lasts.

        Raises:
            ConfigError: worktree or repository can't be used.
            GitError: git on this machine failed.
        """
        history = cls(spec, around)
        with contextlib.ExitStack() as claims:
            try:
                if spec.repo is not None:
                    await history._make_worktree(Path(spec.repo), str(spec.branch))
                else:
                    await history._find_repository()
                history._remember()
                if around.claimed is not None:
                    claims.enter_context(around.claimed(history.spec))
                yield history
            finally:
                await to_completion(history._end(), history._stop.set)

    # ── before the first box ──

    def _remember(self) -> None:
        """What was there before the loop, and when that was: not what is checked out for it."""
        for path in self.spec.writable:
            with ownership.open_worktree(path, self._around.forbidden) as worktree:
                if worktree.git is not ownership.GitEntry.NONE:
                    self._versioned.add(str(path))
        self._since = before_now()

    async def _find_repository(self) -> None:
        with ownership.open_worktree(self.spec.worktree, self._around.forbidden) as worktree:
            has_git = worktree.git is not ownership.GitEntry.NONE
            if self._options.sharing == "hidden":
                self.no_git = "git is hidden from this loop"
                return
            if not has_git:
                self._require_repository()
                return
            try:
                self._git = Git.find(self._around.program)
            except ConfigError as error:
                if self._options != GitOptions():
                    raise
                self.no_git = f"git is hidden from this loop: {error}"
                self.notices.append(f"Git is hidden from the sandbox. {error}")
                return
            self._repository = await repository.discover(self._git, worktree)
        self._origin = self._repository
        if self._repository is not None:
            self._begin(self._repository)

    def _require_repository(self) -> None:
        if self._options.commit or self._options.landing in ("refs", "branch"):
            raise ConfigError(
                f"git: {self.spec.worktree} belongs to no repository, so nothing can be committed "
                "or landed; run `git init` there, or leave these options out"
            )

    def _begin(self, origin: Repository) -> None:
        """Note the loop, so that nothing of it is lost whatever becomes of this process."""
        record = Record.begin(
            origin,
            exec_id=str(self.spec.exec_id),
            tenant=self.spec.tenant,
            controller=self._around.controller,
            sharing=self._sharing.value,
        )
        self._entry = Records(self._around.state).create(record)
        self.notices += [*origin.notices, *private.unfinished(origin)]

    @property
    def _sharing(self) -> Sharing:
        """Over gVisor a file that the box's uid owns can be emptied through a read-only mount."""
        wanted = Sharing(self._options.sharing)
        return Sharing.COPY if self._around.is_gvisor and wanted is Sharing.SHARED else wanted

    async def _make_worktree(self, origin: Path, branch: str) -> None:
        """Check the branch out into a directory of ours, with the loop's own git directory."""
        self._git = Git.find(self._around.program)
        found = await repository.discover_bare_or_not(self._git, origin)
        self._repository = await checkout.starting_at(self._git, found, branch)
        # A branch that is new is not there yet: landing makes it.
        full = self._repository.head.branch
        there = Head(full, found.refs.get(str(full)))
        self._origin = replace(self._repository, head=there)
        self._begin(self._origin)
        assert self._entry is not None, "it has just begun"
        directory = self._entry.make_worktree_directory()
        tree = directory / TREE
        await self._prepare(self._repository, self._entry.private, is_exact=False)
        await checkout.check_out(self._git, self._repository, branch, tree, self._entry.private)
        owner = self._owner_of_made()
        await asyncio.to_thread(private.give_away, tree, owner)
        await _ticked()
        self.spec = replace(self.spec, worktree=tree)

    def _owner_of_made(self) -> Owner:
        if self._around.uids is None:
            return Owner(os.geteuid(), os.getegid())
        taken = owners_of_worktrees(self._around.state)
        self._lease = lease(self._around.state, *self._around.uids, taken=taken)
        return Owner(self._lease.uid, self._lease.uid)

    async def _prepare(self, origin: Repository, directory: Path, *, is_exact: bool) -> None:
        assert self._git is not None, "a repository was found with it"
        await private.prepare(self._git, origin, directory, self._sharing, is_exact_stat=is_exact)

    def git_settings(self, has_proxy: bool) -> bytes:
        """What git reads in a box of the loop's, also where it has no repository there.

        Args:
            has_proxy: the box has a way out for HTTP.
        """
        return private.system_settings(self._repository, self._options, has_proxy=has_proxy)

    async def place(self, quota: Quota) -> None:
        """Write the loop's own git directory, where its quota wants it.

        Raises:
            GitError: it can't be written.
            ConfigError: the engine's boxes have no uid for it.
        """
        origin, entry = self._repository, self._entry
        if origin is None or entry is None:
            return
        room = quota.room()
        directory = entry.private if room is None else room / "git"
        if self.spec.repo is None:
            is_exact = not self._around.is_gvisor and room is None
            await self._prepare(origin, directory, is_exact=is_exact)
        elif room is not None:
            await asyncio.to_thread(shutil.copytree, entry.private, directory, symlinks=True)
            # After a crash it would be taken for what the loop has made.
            await asyncio.to_thread(entry.remove_private)
        covers = await asyncio.to_thread(self._covers, entry, origin)
        await self._pass_over(directory, covers)
        owner = self._owner_outside()
        await asyncio.to_thread(private.give_away, directory, owner)
        if room is None:
            quota.also(directory)
        else:
            noted = replace(entry.record, elsewhere=os.fspath(directory))
            await asyncio.to_thread(entry.save, noted)
        self._traces = await asyncio.to_thread(traces, directory)
        self.view = GitView(
            directory=directory,
            pointer=self._pointer(entry, origin, owner),
            stores=origin.stores if self._sharing is Sharing.SHARED else (),
            described=_described(self._sharing),
            identities=origin.identities if self._sharing is Sharing.SHARED else (),
            nothing=private.write_nothing(entry.directory / "nothing"),
            covers=tuple(covers),
        )

    async def _pass_over(self, directory: Path, covers: Sequence[tuple[str, Path]]) -> None:
        """Git inside takes submodules as they are in the index; the directory is still ours."""
        if self._git is None or not covers:
            return
        paths = (path.removesuffix("/.git") for path, _ in covers)
        await self._git.output(
            ["update-index", "--skip-worktree", "-z", "--stdin"],
            git_directory=directory,
            given=b"".join(os.fsencode(path) + b"\0" for path in paths),
        )

    def _covers(self, entry: Entry, origin: Repository) -> list[tuple[str, Path]]:
        with ownership.open_own(Path(self.spec.worktree).resolve()) as worktree:
            root = worktree.readable()
            try:
                return submodules.covers(root, origin.submodules, entry.directory)
            finally:
                os.close(root)

    def _owner_outside(self) -> Owner:
        """Whose the box is, seen from outside; what it may write belongs to that one."""
        with ownership.open_own(Path(self.spec.worktree).resolve()) as worktree:
            inside = ownership.owner_of(worktree, self.spec.uid, self._around.users)
        return self._around.users.outside(inside) or inside

    def _pointer(self, entry: Entry, origin: Repository, owner: Owner) -> Path | None:
        if origin.entry is not ownership.GitEntry.FILE:
            return None
        pointer = entry.directory / "pointer"
        private.write_pointer(pointer)
        with contextlib.suppress(PermissionError):
            os.chown(pointer, owner.uid, owner.gid, follow_symlinks=False)
        return pointer

    # ── while there are boxes ──

    async def after_turn(self, box: Box, uses: Sequence[commits.Made]) -> list[str]:
        """Commit what a turn has changed, if that is wanted, and land it.

        Returns:
            What went wrong, one sentence each; it changes no result of a call.
        """
        if self.view is None or not self._options.commit:
            return []
        try:
            await self._commit(box, commits.filled(self._options.message, uses, self._exec_id))
        except (ExecutorError, OSError) as error:
            return [f"the turn was not committed: {error}"]
        return []

    async def _commit(self, box: Box, message: str) -> None:
        assert self.view is not None, "there is git in the box"
        made = await commits.commit(
            box,
            inside=self.view.inside,
            message=message,
            paths=self._options.paths,
            environment={},
        )
        if made is not None:
            await self._take(box, snapshot=False)
            if self._lands:
                await self._land()

    async def collect(self, box: Box, *, is_open: bool = True) -> None:
        """Take what the loop has made out of its box, before the last one is gone.

        Args:
            box: opens another one where there is none any more.
            is_open: there is one. If not, none is opened for a loop that left nothing in it.
        """
        if self.view is None or (not is_open and await self._has_all()):
            return
        try:
            if self._options.commit:
                await self._commit(box, commits.filled(_LAST, (), self._exec_id))
            await self._take(box, snapshot=self.spec.repo is not None)
        except Refused as refusal:
            self._is_unexported = True
            self._faults += [
                f"the loop's commits were refused: {reason}" for reason in refusal.reasons
            ]
        except (ExecutorError, OSError) as error:
            self._is_unexported = True
            self._faults.append(f"the loop's commits could not be taken out of its box: {error}")

    async def _has_all(self) -> bool:
        """No ref has changed since what there was has come, and nothing else is wanted."""
        if self.view is None or self._options.commit or self.spec.repo is not None:
            return False
        now = await asyncio.to_thread(traces, self.view.directory)
        return now is not None and now == self._traces

    async def _take(self, box: Box, *, snapshot: bool) -> None:
        assert self._git and self._repository and self._entry and self.view, "there is git"
        # Taken before: what changes while the box is asked has not come for certain.
        found = await asyncio.to_thread(traces, self.view.directory)
        arrival = await export.collect(
            self._git,
            box,
            self._repository,
            self._entry.record.refs,
            self._entry.quarantine,
            self._options,
            inside=self.view.inside,
            snapshot=snapshot,
        )
        if arrival is not None:
            is_new = self._arrival is None or arrival.refs != self._arrival.refs
            self._arrival = arrival
            if is_new:
                await asyncio.to_thread(self._entry.arrived, arrival)
        self._traces = found

    async def _land(self) -> None:
        assert self._git and self._origin and self._entry and self._arrival, "it has come"
        before = self._landed
        self._landed = await landing.land(
            self._git,
            self._origin,
            self._arrival,
            self._exec_id,
            advance=self._advances,
            known=self._entry.record.landed,
        )
        is_all = self._landed.conflict is None
        if is_all and self._landed.advanced is None and before is not None:
            self._landed = replace(self._landed, branch=before.branch, advanced=before.advanced)
        record = replace(self._entry.record, landed=self._landed.refs, imported=is_all)
        await asyncio.to_thread(self._entry.save, record)

    @property
    def _exec_id(self) -> str:
        return str(self.spec.exec_id)

    @property
    def _sets_aside(self) -> bool:
        return self._options.nested == "set-aside"

    @property
    def _advances(self) -> bool:
        """Commits were asked for where they are expected: on the branch."""
        return self._lands and self._options.landing != "refs"

    @property
    def _lands(self) -> bool:
        wanted = self._options.landing
        if wanted is None:
            return self._options.commit or self.spec.repo is not None
        return wanted != "keep"

    # ── after the last one ──

    async def settle(self) -> None:
        """Land what has come, or keep it; to be called when no box is left."""
        await to_completion(self._settle())

    async def _settle(self) -> None:
        entry = self._entry
        if entry is None:
            return
        async with _held(entry):
            await self._settle_entry(entry)

    async def _settle_entry(self, entry: Entry) -> None:
        try:
            if self._arrival is not None and self._lands and not entry.record.imported:
                await self._land()
        except (ExecutorError, OSError) as error:
            self._faults.append(f"the loop's commits could not be landed: {error}")
        if self._is_unexported:
            try:
                await asyncio.to_thread(self._bring_home, entry)
            except (OSError, Moved, Stopped) as error:
                self._faults.append(f"what git has of the loop could not be kept: {error}")

    def _bring_home(self, entry: Entry) -> None:
        """The loop's own git directory leaves the file system of its quota, which goes now."""
        if self.view is None or self.view.directory == entry.private:
            return
        entry.private.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as stack:
            source, target = (
                os.open(one, DIRECTORY) for one in (self.view.directory, entry.private)
            )
            stack.callback(os.close, source)
            stack.callback(os.close, target)
            Mirror(source, target, self._stop, directories={}).run()
        entry.save(replace(entry.record, elsewhere=None))

    async def _end(self) -> None:
        """Look at what the loop left, and let go of what is needed no more."""
        found = await self._seen(self.spec.worktree, is_worktree=True)
        beside = [
            (str(one.name), await self._seen(one.path, is_worktree=False))
            for one in self.spec.directories
            if one.is_writable
        ]
        entry = self._entry
        try:
            if entry is not None:
                async with _held(entry):
                    await asyncio.to_thread(self._close, entry)
        except OSError as error:
            self._faults.append(f"{entry and entry.directory} could not be put in order: {error}")
        if self._lease is not None:
            self._lease.close()
        arrival = self._arrival
        is_there = entry is not None and entry.directory.exists()
        self.report = Report(
            exec_id=self._exec_id,
            commits=arrival.commits if arrival is not None else 0,
            landed=self._landed,
            is_kept=is_there,
            faults=tuple(self._faults),
            notes=(*self._notes, *(arrival.notes if arrival is not None else ())),
            aftermath=found,
            beside=tuple((name, left) for name, left in beside if left is not None),
            worktree=entry.made / TREE if is_there and entry and entry.made.exists() else None,
        )

    def _close(self, entry: Entry) -> None:
        """What is needed no more goes; what may be all that there is of something stays."""
        if self._is_unexported:
            reason = self._faults[0] if self._faults else None
            entry.save(replace(entry.record, state=State.UNEXPORTED, failure=reason))
        elif self._arrival is None or entry.record.imported:
            entry.remove()
        else:
            entry.save(replace(entry.record, state=State.KEPT))
            entry.remove_private()
            entry.remove_worktree()

    async def _seen(self, path: Path | str, *, is_worktree: bool) -> aftermath.Aftermath | None:
        try:
            return await asyncio.to_thread(self._look, path, is_worktree)
        except (ConfigError, OSError) as error:
            self._notes.append(f"nobody could look at what the loop left in {path}: {error}")
            return None

    def _look(self, path: Path | str, is_worktree: bool) -> aftermath.Aftermath:
        with ownership.open_worktree(path, self._around.forbidden) as worktree:
            root = worktree.readable()
            try:
                return aftermath.look(
                    root,
                    self._since,
                    set_aside=suffix(self._exec_id) if self._sets_aside else None,
                    has_git=str(path) in self._versioned,
                    reads=self._repository.reads if self._repository and is_worktree else (),
                    stop=self._stop,
                )
            finally:
                os.close(root)


@contextlib.asynccontextmanager
async def _held(entry: Entry) -> AsyncIterator[None]:
    """Keep others from the entry. Who looks at it just now is waited for, but not for ever."""
    until = time.monotonic() + _PATIENCE
    while True:
        with entry.locked() as is_ours:
            if is_ours or time.monotonic() > until:
                yield
                return
        await asyncio.sleep(0.05)


async def _ticked() -> None:
    """Wait for the clock of inodes: what is checked out was not changed by the loop."""
    made = time.time_ns()
    while before_now() <= made:
        await asyncio.sleep(0.001)


def _described(sharing: Sharing) -> str:
    """For `capabilities`."""
    return {
        Sharing.SHARED: "own; all objects of the origin can be read",
        Sharing.COPY: "own, with a copy of the origin's branches and tags",
        Sharing.SHALLOW: "own, with a copy of the commit at HEAD",
    }[sharing]
