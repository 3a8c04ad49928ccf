"""A worktree on the host: whose it is, whether it may be mounted, what covers its `.git`.

The host takes nothing out of a worktree but what is looked at here. The directory is
opened once and never by name again; its identity is compared with what the name leads to
once the engine has the name (`Worktree.check`).
"""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from executor.errors import ConfigError, ForbiddenMount, SandboxUnavailable
from executor.model import GIT_OBJECTS, MOUNT
from executor.sandbox.container import (
    FORBIDDEN,
    HOME,
    Ceilings,
    Files,
    Owner,
    Plan,
    mount_faults,
)
from executor.sandbox.facts import EngineFacts

USER = "sandbox"
NOBODY = 65534
POINTER = "gitdir: /dev/null/git-is-not-available-in-this-sandbox\n"
REMAPPED = 65536
"""How many uids an engine with `userns-remap` has for its boxes, as `useradd` deals them."""
_POINTER_LIMIT = 4096
_MOST_ABOVE = 4096
_GITDIR = re.compile(rb"gitdir: ([^\r\n\0]+)[\r\n]*")


class GitEntry(StrEnum):
    """What a worktree's `.git` is."""

    NONE = "none"
    FILE = "file"
    DIRECTORY = "directory"


class Worktree:
    """An open worktree. Made by `open_worktree`; ended by `close` or `with`.

    Attributes:
        path: real path, without symbolic links.
        owner: uid and gid of the directory.
        git: what its `.git` is.
        ancestry: device and inode of it and of every directory above it, when it was opened.
    """

    def __init__(
        self, path: Path, descriptor: int, ancestry: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.path = path
        self.ancestry = ancestry
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self.owner = Owner(status.st_uid, status.st_gid)
        self.git = _git_entry(path, descriptor)

    def check(self) -> None:
        """Checks that the path still leads to the directory that was opened.

        To be called once the container is created and once it is started: the engine
        follows the path at both times.

        Raises:
            SandboxUnavailable: something else is there, or its `.git` is another thing.
        """
        try:
            descriptor = _open_directory(self.path)
        except OSError as error:
            raise SandboxUnavailable(f"The worktree {self.path} is gone: {error}") from error
        with _closing(descriptor):
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != self._identity:
                raise SandboxUnavailable(
                    f"The worktree {self.path} was replaced while its box was made"
                )
            if _git_kind(descriptor) is not self.git:
                raise SandboxUnavailable(
                    f"The .git of {self.path} was replaced while its box was made"
                )

    def check_mounted(self, mounted: object, passwd: Path, target: str = MOUNT) -> None:
        """Checks that what the box sees as its worktree is the directory that was opened.

        The path can be led elsewhere while the engine follows it, and back before `check`;
        what was mounted stays.

        Args:
            mounted: path → device and inode as the agent saw them, before any command ran.
            passwd: our file that is `/etc/passwd` in the box. If the agent saw another one,
                its kernel has numbers of its own (gVisor, a virtual machine) and nothing
                can be compared.
            target: where it was to be mounted.

        Raises:
            SandboxUnavailable: it is another directory.
        """
        check_mounted(mounted, passwd, target, self._identity, f"The worktree {self.path}")

    def readable(self) -> int:
        """A descriptor that the directory can be listed with; the caller closes it.

        Raises:
            OSError: this process may not.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(".", flags, dir_fd=self._descriptor)

    def close(self) -> None:
        """Lets go of the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Worktree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_mounted(
    mounted: object, passwd: Path, target: str, identity: tuple[int, int], what: str
) -> None:
    """Checks that what the box sees somewhere is the directory that is meant.

    Args:
        mounted: as of `Worktree.check_mounted`.
        passwd: as there.
        target: where it was to be mounted.
        identity: device and inode of the one that is meant.
        what: it, for a person.

    Raises:
        SandboxUnavailable: it is another directory.
    """
    known = passwd.stat()
    if not isinstance(mounted, dict):
        return
    if mounted.get("/etc/passwd") != [known.st_dev, known.st_ino]:
        return
    if mounted.get(target) != list(identity):
        raise SandboxUnavailable(
            f"{what} was replaced while its box was made: another directory is mounted in it"
        )


def check_stores(mounted: object, plan: Plan) -> None:
    """Checks that the box has the object stores that were found, and none of somebody else.

    Raises:
        SandboxUnavailable: the way to one was led elsewhere meanwhile.
    """
    if plan.git is None:
        return
    pairs = zip(plan.git.stores, plan.git.identities, strict=False)
    for number, (store, identity) in enumerate(pairs):
        target = f"{GIT_OBJECTS}/{number}"
        check_mounted(mounted, plan.files.passwd, target, identity, f"The object store {store}")


def open_worktree(path: Path | str, forbidden: Iterable[Path] = ()) -> Worktree:
    """Opens a directory as a worktree. A symbolic link is resolved first.

    Args:
        forbidden: more places that no box may write: state directory, engine's data.

    Raises:
        ForbiddenMount: it is, contains or leads to a place that no box may write.
        ConfigError: it is no directory, or its `.git` can't be covered.
    """
    places = list(forbidden)
    try:
        real = Path(path).expanduser().resolve(strict=True)
        if not real.is_dir() and (faults := _place_faults(real, places, _named_ancestry(real))):
            raise ForbiddenMount(faults)
        descriptor = _open_directory(real)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"worktree: {path} can't be opened: {_reason(error)}") from error
    try:
        # Of what was opened, not of what the name leads to now: commands of another box
        # may have the directories on the way there.
        ancestry = _ancestry(descriptor)
        if faults := _place_faults(real, places, ancestry):
            raise ForbiddenMount(faults)
        if os.readlink(f"/proc/self/fd/{descriptor}") != os.fspath(real):
            raise ConfigError(
                f"worktree: {real} was led elsewhere while it was opened; see who renames "
                "directories on the way to it, and try again"
            )
        return Worktree(real, descriptor, ancestry)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(f"worktree: {path} can't be opened: {_reason(error)}") from error
    except BaseException:
        os.close(descriptor)
        raise


def open_beside(path: Path | str, forbidden: Iterable[Path] = ()) -> Worktree:
    """Opens a directory that a box has beside its worktree, with the same checks.

    Raises:
        ForbiddenMount, ConfigError: as `open_worktree`.
    """
    try:
        return open_worktree(path, forbidden)
    except ConfigError as error:
        said = [f"add_dirs:{fault.removeprefix('worktree:')}" for fault in error.faults]
        raise type(error)(said) from error


def open_own(path: Path) -> Worktree:
    """Opens a directory of ours that a box gets as its worktree."""
    descriptor = _open_directory(path)
    try:
        return Worktree(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


@dataclass(frozen=True, slots=True)
class UserMap:
    """Which uids and gids boxes have, seen from outside.

    Attributes:
        uid, gid: what uid 0 and gid 0 of a box are outside; None = nobody knows.
        size: how many follow one another from there.
    """

    uid: int | None = 0
    gid: int | None = 0
    size: int = 2**32 - 1

    def inside(self, outside: Owner) -> Owner | None:
        """What an owner outside is in a box; None = he has no uid, or no gid, there."""
        if self.uid is None or self.gid is None:
            return None
        owner = Owner(outside.uid - self.uid, outside.gid - self.gid)
        fits = 0 <= owner.uid < self.size and 0 <= owner.gid < self.size
        return owner if fits else None

    def outside(self, inside: Owner) -> Owner | None:
        """What an owner in a box is outside; None = nobody, or nobody knows."""
        if self.uid is None or self.gid is None:
            return None
        if inside.uid >= self.size or inside.gid >= self.size:
            return None
        return Owner(inside.uid + self.uid, inside.gid + self.gid)


SAME = UserMap()
"""Boxes have the uids of the machine."""


def user_map(facts: EngineFacts, engine_user: Owner | None = None) -> UserMap:
    """The engine's map of users.

    Args:
        engine_user: whose a rootless engine is (`owner_of_socket`).
    """
    if facts.rootless:
        # Other uids are there, too; which, only /etc/subuid of its machine says.
        return UserMap(engine_user.uid, engine_user.gid, 1) if engine_user else _UNKNOWN
    if facts.userns:
        return UserMap(*facts.remapped_root, REMAPPED) if facts.remapped_root else _UNKNOWN
    return SAME


_UNKNOWN = UserMap(None, None, 0)


def owner_of_socket(facts: EngineFacts) -> Owner | None:
    """Whose an engine on this machine is, by its socket."""
    with suppress(OSError):
        if facts.is_local:
            status = os.stat(facts.address.removeprefix("unix://"))
            return Owner(status.st_uid, status.st_gid)
    return None


def owner_of(worktree: Worktree, uid: int | None, users: UserMap = SAME) -> Owner:
    """Whose the box is, as seen inside: the worktree's owner, or the uid that was asked for.

    Raises:
        ConfigError: the engine's boxes have no uid for the worktree's owner.
    """
    if uid is not None:
        return Owner(uid, uid)
    inside = users.inside(worktree.owner)
    if inside is not None:
        return inside
    raise ConfigError(_unmapped(worktree, users))


def _unmapped(worktree: Worktree, users: UserMap) -> str:
    start = f"worktree: {worktree.path} belongs to {worktree.owner}, and the engine"
    if users.uid is None or users.gid is None:
        return (
            f"{start} maps users without saying how; name the uid that it has inside with "
            "--uid, or use an engine without userns-remap"
        )
    own = users.size == 1
    shift = 0 if own else 1000
    mend = f"`chown -R {users.uid + shift}:{users.gid + shift} {worktree.path}`"
    if own:
        return (
            f"{start} is rootless, where only its own user ({users.uid}:{users.gid}) may write "
            f"files: run {mend}, or use that user's worktree or a rootful engine"
        )
    return (
        f"{start} maps users, where only the uids from {users.uid} to "
        f"{users.uid + users.size - 1} are in its boxes: run {mend}, or use an engine without "
        "userns-remap; --uid gives a box that can write only what is open to others"
    )


def user_name(owner: Owner) -> str:
    """The name that the uid has in the box."""
    return {0: "root", NOBODY: "nobody"}.get(owner.uid, USER)


def notices(worktree: Worktree, owner: Owner, users: UserMap = SAME) -> list[str]:
    """What a person should be told about whose the box is, one sentence each."""
    found = []
    outside = users.outside(owner)
    if owner.uid == 0 and users != SAME:
        found.append("Commands run as uid 0 of the box without capabilities.")
    elif owner.uid == 0:
        found.append(
            "The worktree belongs to root, so commands run as uid 0 without capabilities; "
            "give --uid for another one."
            if worktree.owner.uid == 0
            else "Commands run as uid 0 without capabilities."
        )
    if outside is None:
        found.append(f"Which uid outside is uid {owner.uid} of the box is not known.")
    elif outside.uid != worktree.owner.uid:
        name = f"uid {owner.uid}" + (f" ({outside.uid} outside)" if users != SAME else "")
        found.append(
            f"Commands run as {name}, but the worktree belongs to uid "
            f"{worktree.owner.uid}: they can write only what is open to others."
        )
    return found


def ceilings() -> Ceilings:
    """The hard limits of this process, which an engine on this machine may share.

    A limit above them is refused by an engine without the right to raise limits.
    """
    return Ceilings(
        open_files=_hard(resource.RLIMIT_NOFILE),
        locked_memory=_hard(resource.RLIMIT_MEMLOCK),
        core=_hard(resource.RLIMIT_CORE),
        file_bytes=_hard(resource.RLIMIT_FSIZE),
        processes=_hard(resource.RLIMIT_NPROC),
        pending_signals=_hard(resource.RLIMIT_SIGPENDING),
        queue_bytes=_hard(resource.RLIMIT_MSGQUEUE),
    )


def _hard(kind: int) -> int | None:
    hard = resource.getrlimit(kind)[1]
    return None if hard == resource.RLIM_INFINITY else hard


# ─── places ─────────────────────────────────────────────────────────────────────────


def _place_faults(
    real: Path, forbidden: list[Path], ancestry: Iterable[tuple[int, int]]
) -> list[str]:
    """By name, and by identity: a bind mount gives a directory another name."""
    resolved = {place for path in forbidden for place in (path, path.resolve())}
    if faults := mount_faults(real, sorted(resolved)):
        return faults
    places = _identities([*map(Path, FORBIDDEN), *resolved])
    for identity in ancestry:
        if place := places.get(identity):
            return [f"worktree: {real} leads into {place}, that no sandbox may have"]
    if ".git" in real.parts or _is_bare(real):
        return [f"worktree: {real} is git's own directory; give the worktree that belongs to it"]
    return []


def _identities(places: Iterable[Path]) -> dict[tuple[int, int], Path]:
    found = {}
    for place in places:
        with suppress(OSError):
            found[_identity(place)] = place
    return found


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _named_ancestry(real: Path) -> list[tuple[int, int]]:
    return [_identity(directory) for directory in (real, *real.parents)]


def _ancestry(descriptor: int) -> tuple[tuple[int, int], ...]:
    """Device and inode of a directory and of all above it, whatever they are called now.

    Raises:
        OSError: there is no end to them: somebody moves them about.
    """
    found: list[tuple[int, int]] = []
    here = os.dup(descriptor)
    try:
        while len(found) < _MOST_ABOVE:
            status = os.fstat(here)
            if found and found[-1] == (status.st_dev, status.st_ino):
                return tuple(found)  # the root is above itself
            found.append((status.st_dev, status.st_ino))
            above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = above
    finally:
        os.close(here)
    raise OSError(errno.ELOOP, "it lies too deep")


def _is_bare(directory: Path) -> bool:
    return (directory / "HEAD").is_file() and all(
        (directory / name).is_dir() for name in ("objects", "refs")
    )


# ─── .git ───────────────────────────────────────────────────────────────────────────


def _git_entry(worktree: Path, descriptor: int) -> GitEntry:
    """What `.git` is.

    Raises:
        ConfigError: it can't be covered, or the git directory that it names is inside
            the worktree, in plain sight.
    """
    kind = _git_kind(descriptor)
    if kind is None:
        raise ConfigError(
            f"worktree: {worktree}/.git is neither a file nor a directory; remove it, or give "
            "a worktree that git made"
        )
    directory = _pointed(worktree, descriptor) if kind is GitEntry.FILE else None
    if directory is not None and directory.is_relative_to(worktree):
        raise ConfigError(
            f"worktree: its git directory {directory} lies inside it, where commands could "
            "write it; move it out, or give a worktree made by `git worktree add`"
        )
    return kind


def _git_kind(descriptor: int) -> GitEntry | None:
    try:
        mode = os.stat(".git", dir_fd=descriptor, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return GitEntry.NONE
    if stat.S_ISREG(mode):
        return GitEntry.FILE
    return GitEntry.DIRECTORY if stat.S_ISDIR(mode) else None


def _pointed(worktree: Path, descriptor: int) -> Path | None:
    """Where the `.git` file points; None when it is no pointer."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with _closing(os.open(".git", flags, dir_fd=descriptor)) as file:
            match = _GITDIR.fullmatch(os.read(file, _POINTER_LIMIT))
    except OSError:
        return None
    return (worktree / os.fsdecode(match[1])).resolve() if match else None


# ─── generated files ────────────────────────────────────────────────────────────────


def write_files(
    directory: Path,
    owner: Owner,
    git: GitEntry,
    outside: Owner | None = None,
    git_settings: bytes = b"",
    certificates: bytes | None = None,
) -> Files:
    """Writes what is bound over the image's files; readable by every uid.

    Args:
        directory: ours alone; what it holds of an earlier call is replaced.
        owner: whose the box is, as seen inside.
        git: what the worktree's `.git` is.
        outside: the same as seen outside; None = no difference.
        git_settings: git's configuration, to come after the image's own.
        certificates: those that clients in the box believe; None = the image's.
    """
    outside = outside or owner
    files = Files(
        passwd=_write(directory / "passwd", passwd(owner).encode()),
        group=_write(directory / "group", group(owner).encode()),
        hosts=_write(directory / "hosts", HOSTS),
        git_settings=_write(directory / "gitconfig", IMAGE_SETTINGS + git_settings),
        git=_cover(directory, git),
        certificates=(None if certificates is None else _write(directory / "ca.crt", certificates)),
    )
    if files.git is not None:
        _give_away(files.git, outside)
    return files


def cover_git(directory: Path, git: GitEntry, outside: Owner) -> Path | None:
    """What covers the `.git` of another directory; None where it has none.

    Args:
        directory: ours alone; one cover serves all that have the same kind of `.git`.
        git: what is there.
        outside: whose the box is, as seen outside.
    """
    path = directory / f"git-{git}"
    if not path.exists() and (made := _cover(directory, git)) is not None:
        _give_away(made, outside)
    return path if git is not GitEntry.NONE else None


def _give_away(path: Path, outside: Owner) -> None:
    # git refuses a directory, or a pointer, of another owner than the worktree's.
    with suppress(PermissionError):
        os.chown(path, outside.uid, outside.gid, follow_symlinks=False)


HOSTS = b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"
IMAGE_SETTINGS = b"[include]\n\tpath = /etc/gitconfig\n"
"""An image without that file is none the worse (git-config(1), "Includes")."""


def passwd(owner: Owner) -> str:
    """`/etc/passwd`: root, nobody, and a name for the box's uid."""
    homes = {0: "/root", NOBODY: "/nonexistent"} | {owner.uid: HOME}
    names = {0: "root", NOBODY: "nobody"} | {owner.uid: user_name(owner)}
    groups = {0: 0, NOBODY: NOBODY} | {owner.uid: owner.gid}
    return "".join(
        f"{names[uid]}:x:{uid}:{groups[uid]}:{names[uid]}:{homes[uid]}:/bin/sh\n"
        for uid in sorted(names)
    )


def group(owner: Owner) -> str:
    """`/etc/group`: root, nogroup, and a name for the box's gid."""
    names = {owner.gid: USER} | {0: "root", NOBODY: "nogroup"}
    return "".join(f"{names[gid]}:x:{gid}:\n" for gid in sorted(names))


def _write(path: Path, content: bytes) -> Path:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, 0o444)
    return path


def _cover(directory: Path, git: GitEntry) -> Path | None:
    if git is GitEntry.FILE:
        return _write(directory / "git-file", POINTER.encode())
    if git is GitEntry.DIRECTORY:
        path = directory / "git-directory"
        path.mkdir(exist_ok=True)
        path.chmod(0o555)
        return path
    return None


# ─── descriptors ────────────────────────────────────────────────────────────────────


def _open_directory(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _reason(error: BaseException) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
