"""The user's repository that a worktree belongs to: where it is, whose, and what of it matters.

The worktree is hostile: of it only the `.git` is looked at, by the worktree's descriptor. What
a `.git` file points to is believed only if it can't be somebody else's: it has to name the
worktree in return, or to be the worktree's owner's, and he has to be able to read it himself.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from executor.errors import ConfigError
from executor.git import listing, meaning
from executor.git.listing import Entry
from executor.git.program import Git
from executor.git.reading import may_use, read, usable
from executor.git.values import GitError, Head, ObjectFormat, Repository
from executor.sandbox import ownership
from executor.sandbox.container import Owner
from executor.sandbox.ownership import GitEntry
from executor.text import one_line

_POINTER = re.compile(rb"gitdir: ([^\r\n\0]+)[\r\n]*")
_POINTER_LIMIT = 4096
_DEEPEST = 5
"""How many alternates lead from one to the next; git gives up there too."""
_MOST_STORES = 64
"""Each is a mount of every box."""
_SHOWN = ("refs/heads", "refs/tags", "refs/remotes")
_REFS_BYTES = 256 << 20
_INDEX_BYTES = 1 << 30
_GITLINK = re.compile(rb"(?:\A|\0)160000 [0-9a-f]+ \d\t([^\0]+)")
_HAS_ATTRIBUTES = re.compile(rb"\t(?:[^\0]*/)?\.gitattributes\0")
_LFS = re.compile(rb"^[^#\n]*\sfilter=lfs\b", re.MULTILINE)
_KNOWN = frozenset(
    {"noop", "objectformat", "worktreeconfig", "relativeworktrees", "preciousobjects"}
)
_PARTS = ("info", "logs", "objects", "objects/info", "objects/pack", "refs", "refs/heads")
_OTHERWISE = "or hide git from the loop (--git hidden)"
_NAMED_AT_MOST = 5


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the parts of a repository are, checked."""

    git_directory: Path
    common: Path
    worktree: Path | None
    entry: GitEntry
    owner: Owner
    user: Owner


async def discover(git: Git, worktree: ownership.Worktree) -> Repository | None:
    """The repository of a worktree; None if it has no `.git`.

    Raises:
        ConfigError: it has one, and it can't be had; says why and what to do.
        GitError: git failed.
    """
    if worktree.git is GitEntry.NONE:
        return None
    return await _described(git, await _place(worktree))


async def discover_bare_or_not(git: Git, path: Path) -> Repository:
    """The repository that a path names: a bare one, or one by any checkout of it.

    Raises:
        ConfigError: there is none, or it can't be had.
        GitError: git failed.
    """
    try:
        real = await asyncio.to_thread(lambda: path.expanduser().resolve(strict=True))
        descriptor = os.open(real, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or one_line(str(error))
        raise ConfigError(f"repo: {path} can't be opened: {reason}; name a repository") from error
    with ownership.Worktree(real, descriptor) as worktree:
        if worktree.git is not GitEntry.NONE:
            return await _described(git, await _place(worktree))
        owner = worktree.owner
    if not _is_repository(real):
        raise ConfigError(
            f"repo: {path} is neither a bare repository nor a checkout; name the directory that "
            "has `.git` in it, or the bare repository itself"
        )
    if owner.uid not in (0, os.geteuid()) and os.geteuid() != 0:
        raise ConfigError(f"repo: {path} belongs to another user (uid {owner.uid}); clone it")
    return await _described(git, _Place(real, real, None, GitEntry.NONE, owner, owner))


# ─── where it is ────────────────────────────────────────────────────────────────────


async def _place(worktree: ownership.Worktree) -> _Place:
    path, user = worktree.path, worktree.owner
    if worktree.git is GitEntry.DIRECTORY:
        found = path / ".git"
    else:
        found = await asyncio.to_thread(_pointed, worktree)
    directory = await _resolved(found, f"the git directory of {path}")
    _check_owner(directory, user)
    common = await _common(directory, user)
    owner = _check_owner(common, user)
    for part in {directory, common}:
        if not await may_use(part, user):
            raise ConfigError(
                f"worktree: the owner of {path} (uid {user.uid}) may not read its git directory "
                f"{part}; mend its modes, {_OTHERWISE}"
            )
    _check_way(common, owner, user)
    await asyncio.to_thread(_check_parts, {directory, common}, owner, user)
    if not _is_repository(common) or not _exists(directory / "HEAD"):
        raise ConfigError(
            f"worktree: {directory} is no git repository; remove {path}/.git, {_OTHERWISE}"
        )
    place = _Place(directory, common, path, worktree.git, owner, user)
    await _check_backwards(place)
    return place


def _pointed(worktree: ownership.Worktree) -> Path:
    """Where the `.git` file points."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    data = b""
    with suppress(OSError):
        root = worktree.readable()
        try:
            descriptor = os.open(".git", flags, dir_fd=root)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    data = os.read(descriptor, _POINTER_LIMIT)
            finally:
                os.close(descriptor)
        finally:
            os.close(root)
    match = _POINTER.fullmatch(data)
    if match is None:
        raise ConfigError(
            f"worktree: {worktree.path}/.git is no pointer to a git directory; remove it, "
            f"{_OTHERWISE}"
        )
    return worktree.path / os.fsdecode(match[1])


async def _resolved(path: Path, what: str) -> Path:
    try:
        return await asyncio.to_thread(lambda: path.resolve(strict=True))
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"worktree: {what} can't be found: {one_line(str(error))}; if it was moved, run "
            f"`git worktree repair` in its repository, {_OTHERWISE}"
        ) from error


def _check_owner(directory: Path, user: Owner) -> Owner:
    """Whose it is: the worktree's owner's, root's or ours."""
    status = directory.stat()
    if status.st_uid not in (user.uid, 0, os.geteuid()):
        raise ConfigError(
            f"worktree: its git directory {directory} belongs to uid {status.st_uid}, and the "
            f"worktree to uid {user.uid}: it may be another user's; make a worktree or a clone "
            f"of the same user, {_OTHERWISE}"
        )
    return Owner(status.st_uid, status.st_gid)


def _check_way(common: Path, owner: Owner, user: Owner) -> None:
    """What is root's is used as root: then nobody else may lead the way there elsewhere."""
    if os.geteuid() != 0 or owner.uid != 0 or user.uid == 0:
        return
    for place in common.parents:
        status = place.stat()
        is_shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or is_shared:
            raise ConfigError(
                f"worktree: its git directory {common} is root's, and others than root may "
                f"rename what is in {place}; give it to the worktree's owner, {_OTHERWISE}"
            )


def _check_parts(directories: set[Path], owner: Owner, user: Owner) -> None:
    """Nor may anybody else write what root's git reads there, and where it writes."""
    if os.geteuid() != 0 or owner.uid != 0 or user.uid == 0:
        return
    for directory in directories:
        for part in [directory, *(directory / name for name in _PARTS)]:
            for path in _with_entries(part):
                status = path.lstat()
                is_link = stat.S_ISLNK(status.st_mode)
                is_shared = status.st_mode & 0o002 or (status.st_mode & 0o020 and status.st_gid)
                if status.st_uid != 0 or (is_shared and not is_link):
                    raise ConfigError(
                        f"worktree: its repository is root's, and others than root may write "
                        f"{path}; give all of it to the worktree's owner, or take that "
                        f"right away, {_OTHERWISE}"
                    )


def _with_entries(directory: Path) -> list[Path]:
    """A directory and what is in it; nothing if there is none."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        return [directory, *(Path(entry.path) for entry in entries)]
    return []


async def _common(directory: Path, user: Owner) -> Path:
    """What the worktrees of a repository share; a linked one's directory names it."""
    told = await read(directory / "commondir", user, _POINTER_LIMIT)
    if told is None:
        return directory
    name = os.fsdecode(told.strip(b"\r\n"))
    common = await _resolved(directory / name, f"what {directory} belongs to")
    if directory.parent != common / "worktrees":
        raise ConfigError(
            f"worktree: {directory}/commondir names {common}, which has no such worktree; run "
            f"`git worktree repair` there, {_OTHERWISE}"
        )
    return common


async def _check_backwards(place: _Place) -> None:
    """The git directory names the worktree in return, as far as there is a way to."""
    if place.entry is not GitEntry.FILE or place.worktree is None:
        return
    ours = place.worktree / ".git"
    if place.git_directory == place.common:
        # Of a submodule, or of `git init --separate-git-dir`. The first is checked with its
        # configuration; the second has no way back, and is believed if the owner is the same.
        return
    told = await read(place.git_directory / "gitdir", place.user, _POINTER_LIMIT)
    named = place.git_directory / os.fsdecode((told or b"").strip(b"\r\n"))
    # Its parent may be reached by a link; the last name is the `.git` itself.
    if told is None or named.parent.resolve() / named.name != ours:
        raise ConfigError(
            f"worktree: {ours} points to {place.git_directory}, which points back to "
            f"{named if told is not None else 'nothing'}; if the worktree was moved, run "
            f"`git worktree repair {place.worktree}` in its repository, {_OTHERWISE}"
        )


def _is_repository(common: Path) -> bool:
    return _exists(common / "HEAD") and (common / "objects").is_dir() and _exists(common / "refs")


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


# ─── what of it matters ─────────────────────────────────────────────────────────────


async def _described(git: Git, place: _Place) -> Repository:
    entries = await listing.listed(git, place.git_directory, place.owner)
    _check_format(entries, place)
    await _check_readable(git, place)
    stores, missing = await _stores(place)
    head, refs, index, person = await asyncio.gather(
        _head(git, place),
        _refs(git, place),
        _index(git, place),
        listing.person(git, entries, place.owner),
    )
    await _check_objects(git, place, head)
    found = Repository(
        git_directory=place.git_directory,
        common_directory=place.common,
        worktree=place.worktree,
        entry=place.entry,
        owner=place.owner,
        stores=tuple(stores),
        identities=tuple(stores.values()),
        object_format=_object_format(entries),
        head=head,
        refs=refs,
        settings=tuple(meaning.settings((entry.key, entry.value) for entry in entries)),
        person=person,
        submodules=tuple(os.fsdecode(match[1]) for match in _GITLINK.finditer(index)),
    )
    return await _with_files(git, place, entries, index, found, missing)


async def _with_files(
    git: Git,
    place: _Place,
    entries: Sequence[Entry],
    index: bytes,
    found: Repository,
    notices: Sequence[str],
) -> Repository:
    """The same with what stands in files, and with what a person should know."""
    surroundings = listing.Surroundings(place.worktree, place.common, place.owner)
    sparse = await read(place.git_directory / "info/sparse-checkout", place.owner)
    shallow = place.common / "shallow"
    return replace(
        found,
        excludes=await surroundings.excludes(entries),
        attributes=await surroundings.attributes(
            entries, has_own=_HAS_ATTRIBUTES.search(index) is not None
        ),
        sparse=os.fsdecode(sparse) if sparse is not None else None,
        shallow=shallow if _exists(shallow) else None,
        reads=await asyncio.to_thread(surroundings.reads, entries),
        notices=(*notices, *_submodule_notice(found.submodules), *await _lfs(git, place, found)),
    )


def _check_format(entries: Sequence[Entry], place: _Place) -> None:
    """Refuses what a box could not read, or what git inside could not complete."""
    known = {entry.key: entry.value or "" for entry in entries if entry.is_own}
    promisors = [key for key in known if re.fullmatch(r"remote\..*\.promisor", key)]
    if "extensions.partialclone" in known or any(known[key] != "false" for key in promisors):
        raise ConfigError(
            f"git: {place.common} is a partial clone: objects that are missing would have to be "
            "fetched from inside; run `git fetch --refetch --no-filter` in it, unset "
            f"remote.<name>.promisor and extensions.partialClone, {_OTHERWISE}"
        )
    if (
        known.get("extensions.refstorage", "files") != "files"
        or (place.common / "reftable").exists()
    ):
        raise ConfigError(
            f"git: {place.common} keeps its refs in a reftable, which is not supported; run `git "
            f"refs migrate --ref-format=files` in it, {_OTHERWISE}"
        )
    names = {key.removeprefix("extensions.") for key in known if key.startswith("extensions.")}
    unknown = sorted(names - _KNOWN - {"refstorage", "partialclone"})
    if unknown:
        raise ConfigError(
            f"git: {place.common} has an extension that is not supported here "
            f"({one_line(', '.join(unknown), 200)}); take a clone, {_OTHERWISE}"
        )
    _check_worktree(known, place)


def _check_worktree(known: dict[str, str], place: _Place) -> None:
    worktree = known.get("core.worktree")
    if place.worktree is None:
        return
    if worktree is None:
        is_bare = known.get("core.bare", "false").lower() in ("true", "yes", "on", "1", "")
        if is_bare and place.git_directory == place.common:
            raise ConfigError(
                f"git: {place.common} says that it is bare, and {place.worktree} is a worktree "
                "of it; run `git config core.bare false` there, or use --repo with --branch"
            )
        _check_one_way(place)
        return
    named = (place.git_directory / worktree).resolve()
    if named != place.worktree and place.git_directory == place.common:
        raise ConfigError(
            f"worktree: {place.worktree}/.git points to {place.git_directory}, whose "
            f"core.worktree is {named}; set it to the one or move the other, {_OTHERWISE}"
        )


def _check_one_way(place: _Place) -> None:
    """What does not point back must be the same user's: any file can point to it."""
    if place.git_directory == place.common and place.owner.uid != place.user.uid:
        raise ConfigError(
            f"worktree: {place.worktree} belongs to uid {place.user.uid} and its git directory "
            f"{place.common} to uid {place.owner.uid}; give both to one of them, make a worktree "
            f"by `git worktree add`, {_OTHERWISE}"
        )


def _object_format(entries: Sequence[Entry]) -> ObjectFormat:
    formats = [e.value for e in entries if e.is_own and e.key == "extensions.objectformat"]
    return "sha256" if formats and formats[-1] == "sha256" else "sha1"


async def _check_readable(git: Git, place: _Place) -> None:
    done = await git.run(
        ["rev-parse", "--git-dir"], git_directory=place.git_directory, owner=place.owner
    )
    if done.code != 0:
        raise ConfigError(
            f"git: {git.program} (git {git.version[0]}.{git.version[1]}) can't read "
            f"{place.git_directory}: {done.reason}; mend it, {_OTHERWISE}"
        )


async def _head(git: Git, place: _Place) -> Head:
    symbolic, resolved = await asyncio.gather(
        *(
            git.run(arguments, git_directory=place.git_directory, owner=place.owner)
            for arguments in (
                ["symbolic-ref", "-q", "HEAD"],
                ["rev-parse", "-q", "--verify", "HEAD"],
            )
        )
    )
    branch = os.fsdecode(symbolic.output).strip("\n") if symbolic.code == 0 else None
    commit = resolved.output.decode().strip() if resolved.code == 0 else None
    if branch is None and commit is None:
        raise ConfigError(
            f"git: HEAD of {place.git_directory} leads nowhere: {symbolic.reason}; run `git fsck`"
        )
    return Head(branch, commit)


async def _refs(git: Git, place: _Place) -> dict[str, str]:
    told = await git.output(
        ["for-each-ref", "--format=%(objectname) %(refname)", *_SHOWN],
        git_directory=place.git_directory,
        owner=place.owner,
        most=_REFS_BYTES,
    )
    pairs = (line.split(" ", 1) for line in os.fsdecode(told).split("\n") if line)
    return {name: value for value, name in pairs}


async def _index(git: Git, place: _Place) -> bytes:
    """What the index lists; for a bare repository, nothing."""
    if place.worktree is None:
        return b""
    return await git.output(
        ["ls-files", "--stage", "-z"],
        git_directory=place.git_directory,
        owner=place.owner,
        most=_INDEX_BYTES,
    )


async def _check_objects(git: Git, place: _Place, head: Head) -> None:
    if head.commit is None:
        return
    done = await git.run(
        ["cat-file", "-e", f"{head.commit}^{{tree}}"],
        git_directory=place.git_directory,
        owner=place.owner,
    )
    if done.code != 0:
        raise ConfigError(
            f"git: {place.common} lacks objects of its HEAD {head.commit}, or they can't be read: "
            f"{done.reason}; run `git fsck`, {_OTHERWISE}"
        )


# ─── objects ────────────────────────────────────────────────────────────────────────


async def _stores(place: _Place) -> tuple[dict[Path, tuple[int, int]], list[str]]:
    """Object directories and what they are, and what is to be said of those that are missing.

    The own one is the first.
    """
    own = await _resolved(place.common / "objects", f"the objects of {place.common}")
    found: dict[Path, tuple[int, int]] = {}
    notices: list[str] = []
    waiting = [(own, 0)]
    while waiting:
        store, depth = waiting.pop(0)
        if store in found:
            continue
        found[store] = await _check_store(store, place)
        if len(found) > _MOST_STORES:
            raise ConfigError(
                f"git: {place.common} borrows objects from more than {_MOST_STORES} stores; run "
                f"`git repack -a -d` in it and remove objects/info/alternates, {_OTHERWISE}"
            )
        for line in await _alternates(store, place.owner):
            named = Path(os.path.normpath(store / os.fsdecode(line)))
            real = named.resolve()
            if depth >= _DEEPEST:
                notices.append(f"The alternates of {store} are nested too deep; git ignores them.")
            elif not real.is_dir():
                notices.append(f"The alternate object store {named} is missing.")
            else:
                waiting.append((real, depth + 1))
    return found, notices


async def _check_store(store: Path, place: _Place) -> tuple[int, int]:
    """Whoever owns the worktree may have its box read it only if he may read it himself."""
    identity = await usable(store, place.user)
    if identity is None:
        raise ConfigError(
            f"git: the object store {store} of {place.common} can't be read by uid "
            f"{place.user.uid}, whose the worktree is; mend its modes, {_OTHERWISE}"
        )
    return identity


async def _alternates(store: Path, owner: Owner) -> list[bytes]:
    text = await read(store / "info" / "alternates", owner) or b""
    lines = [line for line in text.split(b"\n") if line and not line.startswith(b"#")]
    return [listing.unquoted(line) for line in lines]


# ─── what a person should know ──────────────────────────────────────────────────────


def _submodule_notice(submodules: Sequence[str]) -> list[str]:
    if not submodules:
        return []
    named = ", ".join(one_line(name, 100) for name in submodules[:_NAMED_AT_MOST])
    more = len(submodules) - _NAMED_AT_MOST
    return [
        f"Submodules have no repository in the sandbox and are left as they are: {named}"
        + (f" and {more} more." if more > 0 else ".")
    ]


async def _lfs(git: Git, place: _Place, found: Repository) -> list[str]:
    if found.head.commit is None and place.worktree is None:
        return []
    source = "HEAD" if place.worktree is None else ""
    try:
        done = await git.run(
            ["cat-file", "blob", f"{source}:.gitattributes"],
            git_directory=place.git_directory,
            owner=place.owner,
            most=1 << 20,
        )
    except GitError:
        return []
    if done.code != 0 or not _LFS.search(done.output):
        return []
    return [
        "Files of Git LFS are not fetched or stored in the sandbox: pointers stay pointers, and "
        "what is committed of them is committed as it is."
    ]
