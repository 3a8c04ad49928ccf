"""The private git directory of a loop: its own HEAD, refs, index and configuration.

Its files are written here before a box has it, and never parsed by the host afterwards.
Objects are the origin's: borrowed by the paths that its stores have in the box, or copied.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from executor.git.configuration import configuration
from executor.git.index import Taken, opened, take, take_index
from executor.git.program import Git
from executor.git.values import OBJECTS, PRIVATE, GitError, Head, Person, Repository, Sharing
from executor.model import MOUNT, GitOptions
from executor.sandbox.container import Owner
from executor.sandbox.descent import DIRECTORY, Trail
from executor.sandbox.ownership import GitEntry

POINTER = f"gitdir: {PRIVATE}\n"
NEUTRAL = Person("executor", "executor@localhost")
"""Who commits where neither the loop nor the host's configuration says."""
_DIRECTORIES = ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks")
_HEADS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")
_MESSAGES = ("MERGE_MSG", "MERGE_MODE", "SQUASH_MSG")
"""What `git commit` ends a merge, a pick or a revert with."""
_STEPS = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase or `git am`",
    "sequencer": "series of picks",
    "BISECT_LOG": "bisection",
}
"""What can't be gone on with inside: it speaks of refs and commands of the host."""
_STATE_BYTES = 1 << 20
_PACK_BYTES = 1 << 32
_PACK_SECONDS = 1800.0
_REMOTE = re.compile(r"remote\.(.+)\.(?:push)?url", re.DOTALL | re.IGNORECASE)
_OUTSIDE = "outside"
"""git runs `git-remote-outside`, which is in the runtime volume, for it."""
_FAR = ("ssh://", "git://", "git@")
_BY_HTTP = ("https://", "http://")
"""What the box's proxy, if there is one, can lead to; to the others nothing does."""
_INEXACT = (("core.checkStat", "minimal"), ("core.trustctime", "false"))


async def prepare(
    git: Git,
    repository: Repository,
    directory: Path,
    sharing: Sharing,
    *,
    is_exact_stat: bool,
) -> None:
    """Writes a private git directory; it is still ours, see `give_away`.

    Args:
        git: the host's git, for copies of objects.
        repository: what it is a private directory of.
        directory: made here; it must not hold anything.
        sharing: how the origin's objects get into it.
        is_exact_stat: files have the same inode, owner and change time inside as outside.
            If not, git goes by size and time alone, so that it reads no file again.

    Raises:
        GitError: the origin can't be read, or the directory not be written.
    """
    try:
        await asyncio.to_thread(_make, directory)
        state = await asyncio.to_thread(_state, repository)
        tips = _tips(repository, state)
        refs = _refs(repository)
        if sharing is Sharing.SHALLOW:
            refs = {name: value for name, value in refs.items() if value in tips}
        files = _files(repository, refs, is_exact_stat)
        if sharing is Sharing.SHARED:
            files["objects/info/alternates"] = alternates(len(repository.stores))
        shallow = await asyncio.to_thread(_cut, repository, sharing, tips)
        if shallow:
            files["shallow"] = shallow
        await asyncio.to_thread(_write_all, directory, files, state)
    except OSError as error:
        raise GitError(f"git: {directory} can't be written: {error}") from error
    if sharing is not Sharing.SHARED:
        depth = tips if sharing is Sharing.SHALLOW else ()
        wanted = [*tips, *refs.values(), *await staged(git, repository)]
        await copy_objects(git, repository, wanted, directory, cut=depth)


def unfinished(repository: Repository) -> tuple[str, ...]:
    """What is going on in the worktree that can't be gone on with inside, a sentence each."""
    if repository.worktree is None:
        return ()
    return tuple(
        f"A {name} is going on in the worktree. Inside, git does not know of it; end it outside."
        for path, name in _STEPS.items()
        if os.path.lexists(repository.git_directory / path)
    )


def write_pointer(path: Path) -> None:
    """Writes what is bound over a `.git` that is a file; readable by every uid."""
    path.unlink(missing_ok=True)
    _write(path, POINTER.encode(), 0o444)


def write_nothing(path: Path) -> Path:
    """Writes an empty file, readable by every uid, that covers what nobody is to read."""
    path.unlink(missing_ok=True)
    _write(path, b"", 0o444)
    return path


def alternates(count: int) -> bytes:
    """The file `objects/info/alternates`, as the box sees the origin's stores."""
    return "".join(f"{OBJECTS}/{number}\n" for number in range(count)).encode()


# ─── what is written ────────────────────────────────────────────────────────────────


def _make(directory: Path) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)
    if os.listdir(directory):
        raise FileExistsError("it is not empty")
    for name in _DIRECTORIES:
        place = directory
        for part in name.split("/"):
            place /= part
            place.mkdir(mode=0o700, exist_ok=True)


def _state(repository: Repository) -> dict[str, Taken]:
    """The worktree's index and the files of a merge that is going on."""
    if repository.worktree is None:
        return {}
    owner = repository.owner
    with opened(repository.git_directory, owner) as descriptor:
        found = take_index(descriptor, repository.object_format, owner)
        for name in (*_HEADS, *_MESSAGES):
            file = take(descriptor, name, owner, _STATE_BYTES)
            if file is not None:
                found[name] = file
    return found


def _tips(repository: Repository, state: Mapping[str, Taken]) -> tuple[str, ...]:
    """The commits that HEAD and a merge that is going on are at."""
    found = [repository.head.commit] if repository.head.commit else []
    for name in _HEADS:
        if name in state:
            found += state[name].data.decode("ascii", "replace").split()
    length = 40 if repository.object_format == "sha1" else 64
    broken = [name for name in found if len(name) != length or not _is_hexadecimal(name)]
    if broken:
        raise GitError(f"git: {repository.git_directory} names no commit: {broken[0]!r}")
    return tuple(dict.fromkeys(found))


def _is_hexadecimal(name: str) -> bool:
    return not name.strip("0123456789abcdef")


def _refs(repository: Repository) -> dict[str, str]:
    refs = dict(repository.refs)
    head = repository.head
    if head.branch is not None and head.commit is not None:
        refs[head.branch] = head.commit
    return refs


def _files(
    repository: Repository, refs: Mapping[str, str], is_exact_stat: bool
) -> dict[str, bytes]:
    files = {
        "HEAD": pointed(repository.head),
        "config": configuration(settings(repository, is_exact_stat)),
        "description": b"Private git directory of a loop\n",
        "packed-refs": packed(refs),
        "info/exclude": repository.excludes.encode("utf-8", "surrogateescape"),
        "info/attributes": repository.attributes.encode("utf-8", "surrogateescape"),
    }
    if repository.sparse is not None:
        files["info/sparse-checkout"] = repository.sparse.encode("utf-8", "surrogateescape")
    return files


def settings(repository: Repository, is_exact_stat: bool) -> list[tuple[str, str]]:
    """The private configuration: the repository's, then what is needed here."""
    is_sha1 = repository.object_format == "sha1"
    found = [("core.repositoryFormatVersion", "0" if is_sha1 else "1")]
    if not is_sha1:
        found.append(("extensions.objectFormat", repository.object_format))
    found += repository.settings
    found += (
        ("core.bare", "false"),
        # Of a directory without a worktree of its own, git would keep no reflogs.
        ("core.logAllRefUpdates", "true"),
        # The index may have a list of untracked files, and times of a file monitor. Both are of
        # another place; unset, git would keep the first and warn at every `git status`.
        ("core.untrackedCache", "false"),
        ("core.fsmonitor", "false"),
        # The directory lives as long as the loop; packing it would be work for nothing.
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
    )
    if repository.sparse is not None:
        # Git from 2.46 on speaks of it whenever an index of directories has to be taken apart.
        found.append(("advice.sparseIndexExpanded", "false"))
    found += _unreachable(repository.settings)
    return found if is_exact_stat else [*found, *_INEXACT]


def _unreachable(known: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Has git start a program of ours for every remote, which says that there is no network.

    All boxes of a loop have these settings. In one with a proxy the program leaves `https://` and
    `http://` to git's own.
    Their addresses are kept from being rewritten (see `environment`): the longest match wins,
    and `git remote -v` shows what it does outside.
    """
    found: list[tuple[str, str]] = []
    for key, value in known:
        match = _REMOTE.fullmatch(key)
        if match is not None:
            found.append((f"remote.{match[1]}.vcs", _OUTSIDE))
            if "\n" not in value:
                found.append((f"url.{value}.insteadOf", value))
    if found:
        # `git push` says the same on a branch that was made inside.
        found.append(("push.autoSetupRemote", "true"))
    return list(dict.fromkeys(found))


def pointed(head: Head) -> bytes:
    """The file `HEAD`."""
    where = f"ref: {head.branch}" if head.branch is not None else head.commit
    return f"{where}\n".encode("utf-8", "surrogateescape")


def packed(refs: Mapping[str, str]) -> bytes:
    """The file `packed-refs`. Without peeled lines git peels a tag when it is asked to.

    It has no header: GitPython refuses the file of one that does not say `peeled`.
    """
    names = {name.encode("utf-8", "surrogateescape"): value for name, value in refs.items()}
    lines = [b"%s %s\n" % (names[name].encode(), name) for name in sorted(names)]
    return b"".join(lines)


def _cut(repository: Repository, sharing: Sharing, tips: Iterable[str]) -> bytes:
    """The file `shallow`: commits whose parents are not there. Empty = none."""
    if sharing is Sharing.SHALLOW:
        return "".join(f"{name}\n" for name in tips).encode()
    if repository.shallow is None:
        return b""
    with opened(repository.shallow.parent, repository.owner) as directory:
        taken = take(directory, repository.shallow.name, repository.owner)
    return taken.data if taken is not None else b""


def _write_all(directory: Path, files: Mapping[str, bytes], state: Mapping[str, Taken]) -> None:
    for name, data in files.items():
        _write(directory / name, data)
    for name, taken in state.items():
        _write(directory / name, taken.data)
        os.utime(directory / name, ns=taken.times)


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, mode)


# ─── copies of objects ──────────────────────────────────────────────────────────────


async def staged(git: Git, repository: Repository) -> list[str]:
    """Object names of the files in the index, committed or not; none of a bare repository.

    Raises:
        GitError: the index can't be read.
    """
    if repository.worktree is None:
        return []
    listed = await git.output(
        ["ls-files", "--stage", "-z"],
        git_directory=repository.git_directory,
        owner=repository.owner,
        most=_PACK_BYTES,
    )
    found: dict[str, None] = {}
    for entry in listed.split(b"\0"):
        mode, _, rest = entry.partition(b" ")
        if rest and mode != b"160000":
            found[rest.split(b" ", 1)[0].decode("ascii")] = None
    return list(found)


async def copy_objects(
    git: Git,
    repository: Repository,
    wanted: Iterable[str],
    directory: Path,
    *,
    cut: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Copies objects, and all that they need, into a git directory of ours.

    The origin is read as its owner; what comes of it is checked and indexed as who we are.

    Args:
        git: the host's git.
        repository: the origin.
        wanted: names of objects.
        directory: a git directory without alternates that nobody else has yet.
        cut: commits whose parents are left out.
        environment: more variables for the git that writes them.

    Raises:
        GitError: something is missing in the origin, or there is no room.
    """
    names = dict.fromkeys(wanted)
    if not names:
        return
    lines = [f"--shallow {name}\n" for name in cut] + [f"{name}\n" for name in names]
    with TemporaryFile(dir=directory) as pack:
        await git.output(
            ["pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q"],
            git_directory=repository.git_directory,
            owner=repository.owner,
            given="".join(lines).encode(),
            most=_PACK_BYTES,
            timeout=_PACK_SECONDS,
            into=pack.fileno(),
        )
        os.lseek(pack.fileno(), 0, os.SEEK_SET)
        await git.output(
            ["index-pack", "--stdin"],
            git_directory=directory,
            given=pack.fileno(),
            environment=environment or {},
            timeout=_PACK_SECONDS,
        )


# ─── whose it is ────────────────────────────────────────────────────────────────────


def give_away(directory: Path, owner: Owner) -> None:
    """Makes a directory of ours, and all in it, another user's. No link is followed.

    Args:
        directory: nobody else may have written in it so far.
        owner: whose it will be, as seen outside.

    Raises:
        GitError: this process may not.
    """
    try:
        root = os.open(directory, DIRECTORY)
        try:
            _give_tree(root, owner)
            os.fchown(root, owner.uid, owner.gid)
        finally:
            os.close(root)
    except OSError as error:
        raise GitError(f"git: {directory} can't be given to uid {owner}: {error}") from error


def _give_tree(root: int, owner: Owner) -> None:
    with Trail(root) as trail:
        waiting = [_give_files(root, owner)]
        while waiting:
            if waiting[-1]:
                trail.down(waiting[-1].pop())
                if trail.is_outside:
                    raise OSError("something else is mounted in it")
                waiting.append(_give_files(trail.descriptor, owner))
                continue
            waiting.pop()
            if waiting and not trail.up():
                raise OSError("a directory in it was moved away")


def _give_files(directory: int, owner: Owner) -> list[str]:
    """Gives all that is in a directory; names of the directories among it."""
    below: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            os.chown(entry.name, owner.uid, owner.gid, dir_fd=directory, follow_symlinks=False)
    return below


# ─── what git is told beside ────────────────────────────────────────────────────────


def system_settings(
    repository: Repository | None,
    options: GitOptions,
    *,
    workspace: str = MOUNT,
    has_proxy: bool = False,
) -> bytes:
    """What git in the box reads before any settings of the loop's, which so come before ours.

    It holds in every repository inside, also in one that a loop makes or clones there.

    Args:
        repository: whose private directory is there; None = none is.
        options: the loop's; its name and address come before the host's.
        workspace: where the worktree is in the box.
        has_proxy: the box has a way out for HTTP.

    Raises:
        GitError: a value that no configuration file can have.
    """
    person = person_of(repository, options)
    # The second is what `git clone /workspace` asks for, the third a command that is started
    # in the directory itself.
    places = [workspace, f"{workspace}/.git"]
    far = _FAR if has_proxy else (*_BY_HTTP, *_FAR)
    if repository is not None and repository.entry is GitEntry.FILE:
        places.append(PRIVATE)
    return configuration(
        [
            ("user.name", person.name),
            ("user.email", person.email),
            *(("safe.directory", place) for place in places),
            (f"protocol.{_OUTSIDE}.allow", "always"),
            *((f"url.{_OUTSIDE}::{start}.insteadOf", start) for start in far),
        ]
    )


def person_of(repository: Repository | None, options: GitOptions) -> Person:
    """Who commits in the box if nobody says so in there."""
    known = (repository.person if repository is not None else None) or NEUTRAL
    return Person(options.name or known.name, options.email or known.email)


def variables(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Configuration as variables (git-config(1), `GIT_CONFIG_COUNT`)."""
    pairs = list(settings)
    found = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (key, value) in enumerate(pairs):
        found[f"GIT_CONFIG_KEY_{number}"] = key
        found[f"GIT_CONFIG_VALUE_{number}"] = value
    return found
