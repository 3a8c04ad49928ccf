"""Taking over what a loop has made: objects first, then its refs and the branch, in one step.

Nothing is overwritten that could not be found again: every ref is replaced only from the value
that was looked at, and a branch only goes forward. What stands in the way is a conflict, which
says what to do. A crash before the refs leaves objects that nothing refers to, which the owner's
next `git gc` clears away.

The branch and the worktree's index move together. The index that belongs to the new commit is
made beside the old one and becomes git's own `index.lock` before the refs change, so that
no `git commit` of the user can come between: with the new branch and the old index it would take
the loop's changes back. Where somebody holds that lock, the branch stays.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from executor.git import staging
from executor.git.private import NEUTRAL
from executor.git.program import Git
from executor.git.reading import read
from executor.git.values import REFS, Arrival, GitError, Head, Landed, Repository
from executor.git.worktrees import holder

LOCK_SECONDS = 60.0
"""How long a landing waits for another one in the same repository."""
MOVE_SECONDS = 600.0
"""How long git may take for the objects, and for their connectivity."""
ATTEMPTS = 6
"""How often the refs are looked at anew when they changed, or were locked, meanwhile."""
UNPACK_LIMIT = 100
"""Fewer objects than this land loose, as `git fetch` does it: a pack for each turn of a loop
would soon make the owner's git pack everything anew."""
UNPACK_BYTES = 8 << 20
_PAUSE = 0.05
_NAME = re.compile(r"head|uncommitted|index|stash/\d{1,9}|(?:heads|tags)/.+")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|[./]$")
_EXEC_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_REASON = "executor: loop {exec_id}"
_LENGTHS = {"sha1": 40, "sha256": 64}
_GOING_ON = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase or `git am`",
    "sequencer": "a series of picks",
}
"""What the user's next `git commit` would end, with whatever the index holds then."""


def prefix(exec_id: str) -> str:
    """Where a loop's refs are: `refs/loops/<exec_id>/`, spelled as git allows it.

    A name may hold what no ref may (`..`, a dot or `.lock` at its end). Such a dot becomes
    `%2e`; no name has a `%`, so no two loops share a place.

    Raises:
        ValueError: it is no name of a loop.
    """
    if not _EXEC_ID.fullmatch(exec_id):
        raise ValueError(f"{exec_id!r} is no name of a loop")
    name = exec_id.replace("..", ".%2e")
    if name.endswith((".", ".lock")):
        start, _, end = name.rpartition(".")
        name = f"{start}%2e{end}"
    return f"{REFS}/{name}/"


async def land(
    git: Git,
    repository: Repository,
    arrival: Arrival,
    exec_id: str,
    *,
    advance: bool,
    known: Mapping[str, str],
) -> Landed:
    """Take an arrival over into the origin.

    Args:
        git: the host's.
        repository: the origin; its `head` is where HEAD was when the loop started.
        arrival: checked; its refs are those of `Arrival.refs`.
        exec_id: of the loop.
        advance: the branch (or the detached HEAD) of the worktree follows too.
        known: what this loop landed before, by full names: it may replace that.

    Returns:
        What is in the origin now. With a `conflict` and no refs nothing has changed there.

    Raises:
        GitError: git failed; no ref has changed.
    """
    names = {prefix(exec_id) + name: commit for name, commit in _refs(repository, arrival).items()}
    async with _alone(repository):
        if advance:
            await staging.mend(git, repository)
        landing = _Landing(git, repository, arrival, exec_id, names, known)
        await landing.move_objects()
        return await landing.move_refs(advance=advance)


def _refs(repository: Repository, arrival: Arrival) -> dict[str, str]:
    """The refs that land, looked at once more: these texts came out of a box.

    Raises:
        GitError: a name or an object name is none.
    """
    length = _LENGTHS[repository.object_format]
    for name, value in arrival.refs.items():
        is_name = _NAME.fullmatch(name) and not _FORBIDDEN.search(name)
        if not is_name or not re.fullmatch(rf"[0-9a-f]{{{length}}}", value):
            raise GitError(f"the loop's ref {name!r} → {value!r} can't be landed")
    return {name: value for name, value in arrival.refs.items() if name != "index"}


@asynccontextmanager
async def _alone(repository: Repository) -> AsyncIterator[None]:
    """One landing at a time in a repository, by a lock that leaves no file and dies with us.

    Raises:
        GitError: another one does not end, or the directory can't be opened.
    """
    place = repository.common_directory
    try:
        lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise GitError(f"{place} can't be opened: {error.strerror}") from error
    try:
        async with asyncio.timeout(LOCK_SECONDS):
            while not _taken(lock):
                await asyncio.sleep(_PAUSE)
        yield
    except TimeoutError as error:
        raise GitError(
            f"another landing in {place} has not ended for {LOCK_SECONDS:.0f} s; "
            "try again when it has"
        ) from error
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Advance:
    """The branch that is to go forward.

    Attributes:
        ref: its full name; `HEAD` = the worktree's HEAD is detached.
        old: where it was at the start; None = unborn.
        new: where the loop has it.
        tree: what the index is to hold.
    """

    ref: str
    old: str | None
    new: str
    tree: str


class _Landing:
    """One landing, while it lasts."""

    def __init__(
        self,
        git: Git,
        repository: Repository,
        arrival: Arrival,
        exec_id: str,
        names: Mapping[str, str],
        known: Mapping[str, str],
    ) -> None:
        self._git = git
        self._origin = repository
        self._arrival = arrival
        self._prefix = prefix(exec_id)
        self._reason = _REASON.format(exec_id=exec_id)
        self._names = names
        self._known = known

    # ─── objects ────────────────────────────────────────────────────────────────────

    async def move_objects(self) -> None:
        """Copy what the quarantine has and the origin has not; nothing refers to it yet."""
        tips = sorted(set(self._arrival.refs.values()))
        if not tips:
            return
        parcel = self._arrival.directory / "landing"
        await asyncio.to_thread(_clear, parcel)
        try:
            # As git makes its own: readable by us alone, it is gone again soon.
            parcel.mkdir(mode=0o700)
            await self._pack(parcel, tips)
            for pack in sorted(parcel.glob("*.pack")):
                await self._unpack(pack)
        except OSError as error:
            raise GitError(f"the loop's objects can't be packed: {error}") from error
        finally:
            await asyncio.to_thread(_clear, parcel)
        await self._in_origin(
            ["rev-list", "--objects", "--quiet", "--stdin", "--not", "--all"],
            given="".join(f"{tip}\n" for tip in tips).encode(),
            timeout=MOVE_SECONDS,
        )

    async def _pack(self, parcel: Path, tips: list[str]) -> None:
        quarantine = self._arrival.directory
        there = sorted(set((await self._current()).values()))
        lines = "".join(f"{name}\n" for name in there).encode()
        told = await self._git.output(
            ["cat-file", "--batch-check=%(objectname)"], git_directory=quarantine, given=lines
        )
        shared = [name for name in told.decode().split("\n") if name and " " not in name]
        wanted = "".join([*(f"{tip}\n" for tip in tips), *(f"^{name}\n" for name in shared)])
        await self._git.output(
            # --local: what is borrowed from the origin is in the origin.
            ["pack-objects", "-q", "--revs", "--local", "--delta-base-offset", f"{parcel}/pack"],
            git_directory=quarantine,
            given=wanted.encode(),
            timeout=MOVE_SECONDS,
        )

    async def _unpack(self, pack: Path) -> None:
        source = os.open(pack, os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = int.from_bytes(os.pread(source, 4, 8), "big")
            is_small = count < UNPACK_LIMIT and os.fstat(source).st_size < UNPACK_BYTES
            if count == 0:
                return
            way = ["unpack-objects", "-q"] if is_small else ["index-pack", "--stdin", "--fix-thin"]
            await self._in_origin([*way, "--strict"], given=source, timeout=MOVE_SECONDS)
        finally:
            os.close(source)

    # ─── refs ───────────────────────────────────────────────────────────────────────

    async def move_refs(self, *, advance: bool) -> Landed:
        """Everything in one transaction, tried again while others change the same refs."""
        failure = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(_PAUSE * 2**attempt)
            current = await self._current()
            if (conflict := await self._refused(current)) is not None:
                earlier = {name: v for name, v in self._known.items() if current.get(name) == v}
                return Landed(earlier, _branch(self._origin) if advance else None, None, conflict)
            if failed := await self._make_room(current):
                failure = failed
                continue
            moved, failed = await self._try(await self._current(), advance=advance)
            if moved is not None:
                return moved
            failure = failed
        raise GitError(f"the loop's refs can't be written in {self._where}: {failure}")

    async def _try(self, current: Mapping[str, str], *, advance: bool) -> tuple[Landed | None, str]:
        plain = [
            _update(name, new, current.get(name))
            for name, new in self._names.items()
            if current.get(name) != new
        ]
        branch = _branch(self._origin) if advance else None
        landed = Landed(dict(self._names), branch, notes=self._new_branches(current))
        step, conflict = await self._advance(current) if advance else (None, None)
        if step is None:
            failed = await self._transaction(plain)
            return (None, failed) if failed else (replace(landed, conflict=conflict), "")
        if self._origin.worktree is None:
            failed = await self._transaction([*plain, _update(step.ref, step.new, step.old)])
            return (None, failed) if failed else (replace(landed, advanced=step.new), "")
        index = await staging.stage(self._git, self._origin, step.tree, step.new)
        if isinstance(index, str):
            failed = await self._transaction(plain)
            return (None, failed) if failed else (self._held(landed, index), "")
        failed = await self._with_index(index, plain, step)
        return (None, failed) if failed else (replace(landed, advanced=step.new), "")

    async def _with_index(self, index: staging.Index, plain: list[str], step: _Advance) -> str:
        """The refs, the branch and the index together; git's words where it failed."""
        done = False
        try:
            if await self._head() != Head(_branch(self._origin), step.old):
                return "HEAD of the worktree moved meanwhile"
            if (busy := await self._going_on(step.new)) is not None:
                return busy
            failed = await self._transaction([*plain, _update(step.ref, step.new, step.old)])
            done = not failed
            return failed
        finally:
            index.finish(taken=done)

    async def _transaction(self, commands: list[str]) -> str:
        """Git's words where it failed; empty: it is done."""
        if not commands:
            return ""
        # `start`: a script that ends too early, because we died, does nothing then.
        script = "start\0" + "".join(commands) + "prepare\0commit\0"
        done = await self._git.run(
            ["update-ref", "-m", self._reason, "--stdin", "-z"],
            git_directory=self._origin.git_directory,
            owner=self._origin.owner,
            given=os.fsencode(script),
            environment=self._committer(),
        )
        return (done.errors.strip() or f"exit code {done.code}") if done.code else ""

    def _committer(self) -> dict[str, str]:
        person = self._origin.person or NEUTRAL
        return {"GIT_COMMITTER_NAME": person.name, "GIT_COMMITTER_EMAIL": person.email}

    async def _refused(self, current: Mapping[str, str]) -> str | None:
        """Why the refs can't land: one that another loop of this name left would be lost."""
        losing = {}
        for name, new in self._names.items():
            old = current.get(name)
            if old not in (None, new, self._known.get(name)) and not await self._is_kept(
                old or "", new, current
            ):
                losing[name] = str(old)
        for above in (REFS, self._prefix.removesuffix("/")):
            if above in current:
                return (
                    f"{above} is a ref in {self._where}, so that nothing can be put below it; "
                    f"`git branch loop-before {current[above]} && git update-ref -d {above}` "
                    "gives it another name"
                )
        if not losing:
            return None
        mend = " && ".join(
            f"git branch {shlex.quote(self._prefix.split('/')[2] + '-before-' + old[:12])} {old}"
            for old in sorted(set(losing.values()))
        )
        return (
            f"another loop of the same name left commits in {self._where} that no branch has "
            f"({', '.join(sorted(losing))}), and nothing was landed over them; keep them by "
            f"`{mend}`, or drop them by "
            f"`git update-ref -d {shlex.quote(min(losing))}`, and import again"
        )

    async def _is_kept(self, old: str, new: str, current: Mapping[str, str]) -> bool:
        """Whether an object can be reached without the loop's own refs."""
        if any(v == old and not name.startswith(self._prefix) for name, v in current.items()):
            return True
        kind = await self._in_origin(["cat-file", "-t", old])
        if kind.strip() != b"commit":
            return False  # a tag object or a tree is in no history
        if await self._is_ancestor(old, new):
            return True
        told = await self._git.run(
            ["for-each-ref", "--count=1", f"--contains={old}", "refs/heads", "refs/remotes"],
            git_directory=self._origin.git_directory,
            owner=self._origin.owner,
            timeout=MOVE_SECONDS,
        )
        return told.code == 0 and bool(told.output.strip())

    async def _make_room(self, current: Mapping[str, str]) -> str:
        """Git's words where it failed. A ref `a` and a ref `a/b` can't both be.

        What the loop landed there before, and has no longer, is put aside under a name of its
        own first: git does not do both at once.
        """
        blocking = {
            name: value
            for name, value in current.items()
            if name.startswith(self._prefix)
            and name not in self._names
            # Not compared with all: a ref blocks what is below it and what it is below.
            and (
                _is_below_any(name, self._names)
                or any(n.startswith(f"{name}/") for n in self._names)
            )
        }
        commands: list[str] = []
        for name, value in blocking.items():
            aside = f"{self._prefix}replaced/{value}"
            if current.get(aside) is None and not any(value in c for c in commands):
                commands.append(_update(aside, value, None))
            commands.append(f"delete {name}\0{value}\0")
        return await self._transaction(commands)

    def _new_branches(self, current: Mapping[str, str]) -> tuple[str, ...]:
        found = []
        for full in self._names:
            name = full.removeprefix(self._prefix)
            is_branch = name.startswith("heads/")
            if (
                is_branch
                and f"refs/{name}" not in current
                and f"refs/{name}" != _branch(self._origin)
            ):
                short = shlex.quote(name.removeprefix("heads/"))
                found.append(
                    f"the branch {short} was made inside; "
                    f"`{self._command} branch {short} {shlex.quote(full)}` makes it here"
                )
        return tuple(found)

    # ─── the branch ─────────────────────────────────────────────────────────────────

    async def _advance(self, current: Mapping[str, str]) -> tuple[_Advance | None, str | None]:
        """What is to go forward, or why it can't; neither: the loop has nothing for it."""
        step = self._wanted()
        if step is None:
            return None, None
        now = await self._head()
        branch = _branch(self._origin)
        source = self._source(branch)
        place = current.get(step.ref) if branch is not None else now.commit
        if place == step.new:
            return None, None
        if self._origin.worktree is not None and now.branch != branch:
            there = f"on {_short(now.branch)}" if now.branch else "detached"
            return None, self._stays(branch, f"HEAD of {self._where} is {there} now", source)
        if place is not None and place == self._known.get(self._landed_as(branch)):
            step = replace(step, old=place)  # where an earlier landing of this loop took it
        if place != step.old:
            return None, self._stays(branch, "it has moved since the loop started", source)
        if step.old is not None and not await self._is_ancestor(step.old, step.new):
            return None, self._rewritten(branch, source)
        if (busy := await self._going_on(step.new)) is not None:
            return None, self._stays(branch, busy, source)
        if branch is not None and (where := await holder(self._git, self._origin, branch)):
            return None, self._elsewhere(branch, where, source)
        return step, None

    async def _going_on(self, new: str) -> str | None:
        """What the user is in the middle of: with the loop's index it would end in silent loss.

        A merge that the loop has ended itself is in its commits.
        """
        if self._origin.worktree is None:
            return None
        for name, what in _GOING_ON.items():
            place = self._origin.git_directory / name
            if os.path.lexists(place) and not (
                name == "MERGE_HEAD" and await self._has_merged(place, new)
            ):
                return f"{what} is going on in {self._where} ({place}), which has to end first"
        return None

    async def _has_merged(self, place: Path, new: str) -> bool:
        told = await read(place, self._origin.owner) or b""
        commits = os.fsdecode(told).split()
        form = f"[0-9a-f]{{{_LENGTHS[self._origin.object_format]}}}"
        for one in commits:
            if not re.fullmatch(form, one) or not await self._is_ancestor(one, new):
                return False
        return bool(commits)

    def _wanted(self) -> _Advance | None:
        head, refs = self._origin.head, self._arrival.refs
        if head.branch is None:
            is_here = self._arrival.branch is None
            new = refs.get("head") if is_here else None
        else:
            is_here = self._arrival.branch == head.branch
            new = refs.get(head.branch.removeprefix("refs/"))
        if new is None or new == head.commit:
            return None
        tree = refs.get("index", new) if is_here else new
        return _Advance(head.branch or "HEAD", head.commit, new, tree)

    def _landed_as(self, branch: str | None) -> str:
        return self._prefix + (branch.removeprefix("refs/") if branch else "head")

    def _source(self, branch: str | None) -> str:
        return shlex.quote(self._landed_as(branch))

    def _stays(self, branch: str | None, reason: str, source: str) -> str:
        start = f"{_short(branch)} was not advanced: {reason}; the loop's commits are in {source}: "
        if self._origin.worktree is None:
            return f"{start}check the branch out and `git merge {source}` takes them"
        return (
            f"{start}`{self._command} log HEAD..{source}` shows them, and after "
            f"`{self._command} stash -u` (the loop's files are in the worktree) "
            f"`{self._command} merge {source}` takes them"
        )

    def _rewritten(self, branch: str | None, source: str) -> str:
        # Mixed: the loop's files are in the worktree already, and reset --keep minds that.
        take = (
            f"{self._command} reset {source}"
            if self._origin.worktree is not None
            else f"{self._command} update-ref {shlex.quote(branch or 'HEAD')} {source} "
            f"{self._origin.head.commit}"
        )
        return (
            f"{_short(branch)} was not advanced: the loop has rewritten it, and it would lose "
            f"commits; `{take}` takes it as the loop has it, {source}"
        )

    def _elsewhere(self, branch: str, where: Path, source: str) -> str:
        return (
            f"{_short(branch)} was not advanced: {where} has it checked out; "
            f"`git -C {shlex.quote(str(where))} merge --ff-only {source}` takes the loop's commits"
        )

    def _held(self, landed: Landed, reason: str) -> Landed:
        branch = _branch(self._origin)
        source = self._source(branch)
        text = (
            f"{_short(branch)} was not advanced: {reason}; when it is gone, "
            f"`{self._command} reset {source}` moves the branch and the index and leaves the files"
        )
        return replace(landed, conflict=text)

    # ─── the origin ─────────────────────────────────────────────────────────────────

    @property
    def _where(self) -> Path:
        return self._origin.worktree or self._origin.git_directory

    @property
    def _command(self) -> str:
        if self._origin.worktree is None:
            return f"git --git-dir={shlex.quote(str(self._origin.git_directory))}"
        return f"git -C {shlex.quote(str(self._origin.worktree))}"

    async def _in_origin(
        self, arguments: list[str], *, given: bytes | int | None = None, timeout: float = 60
    ) -> bytes:
        return await self._git.output(
            arguments,
            git_directory=self._origin.git_directory,
            owner=self._origin.owner,
            given=given,
            timeout=timeout,
        )

    async def _current(self) -> dict[str, str]:
        """Every ref of the origin, now."""
        told = await self._in_origin(["for-each-ref", "--format=%(objectname) %(refname)"])
        pairs = (line.split(" ", 1) for line in os.fsdecode(told).split("\n") if line)
        return {name: value for value, name in pairs}

    async def _head(self) -> Head:
        """Where the worktree's HEAD is now."""
        return await where(self._git, self._origin)

    async def _is_ancestor(self, old: str, new: str) -> bool:
        done = await self._git.run(
            ["merge-base", "--is-ancestor", old, new],
            git_directory=self._origin.git_directory,
            owner=self._origin.owner,
            timeout=MOVE_SECONDS,
        )
        return done.code == 0


async def where(git: Git, repository: Repository) -> Head:
    """Where HEAD of the worktree is at this moment."""
    found = []
    for arguments in (["symbolic-ref", "-q", "HEAD"], ["rev-parse", "-q", "--verify", "HEAD"]):
        done = await git.run(
            arguments, git_directory=repository.git_directory, owner=repository.owner
        )
        found.append(os.fsdecode(done.output).strip() if done.code == 0 else None)
    return Head(*found)


def _branch(repository: Repository) -> str | None:
    return repository.head.branch


def _short(branch: str | None) -> str:
    return "the detached HEAD" if branch is None else branch.removeprefix("refs/heads/")


def _update(name: str, new: str, old: str | None) -> str:
    option = "option no-deref\0" if name == "HEAD" or name.startswith(f"{REFS}/") else ""
    return f"{option}update {name}\0{new}\0{old or '0' * len(new)}\0"


def _is_below_any(name: str, names: Mapping[str, str]) -> bool:
    parts = name.split("/")
    return any("/".join(parts[:end]) in names for end in range(3, len(parts)))


def _clear(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
