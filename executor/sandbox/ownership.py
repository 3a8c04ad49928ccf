"""A worktree on the host: whose it is, whether it may be mounted, what covers its `.git`.

The host takes nothing out of a worktree but what is looked at here. The directory is
opened once and never by name again; its identity is compared with what the name leads to
once the engine has the name (`Worktree.check`).
"""

from __future__ import annotations

import os
import re
import resource
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from executor.errors import ConfigError, SandboxUnavailable
from executor.sandbox.container import (
    FORBIDDEN,
    HOME,
    Ceilings,
    Files,
    Owner,
    mount_faults,
)

USER = "sandbox"
NOBODY = 65534
POINTER = "gitdir: /dev/null/git-is-not-available-in-this-sandbox\n"
_POINTER_LIMIT = 4096
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
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
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

    def close(self) -> None:
        """Lets go of the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Worktree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_worktree(path: Path | str, forbidden: Iterable[Path] = ()) -> Worktree:
    """Opens a directory as a worktree. A symbolic link is resolved first.

    Args:
        forbidden: more places that no box may write: state directory, engine's data.

    Raises:
        ConfigError: it is no directory, it is a place that no box may write, or its
            `.git` can't be covered.
    """
    try:
        real = Path(path).expanduser().resolve(strict=True)
        descriptor = _open_directory(real)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"worktree: {path} can't be opened: {_reason(error)}") from error
    try:
        if faults := _place_faults(real, list(forbidden)):
            raise ConfigError(faults)
        return Worktree(real, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def owner_of(worktree: Worktree, uid: int | None) -> Owner:
    """Whose the box is: the worktree's owner, or the uid that was asked for (as gid too)."""
    return worktree.owner if uid is None else Owner(uid, uid)


def user_name(owner: Owner) -> str:
    """The name that the uid has in the box."""
    return {0: "root", NOBODY: "nobody"}.get(owner.uid, USER)


def notices(worktree: Worktree, owner: Owner) -> list[str]:
    """What a person should be told about whose the box is, one sentence each."""
    found = []
    if owner.uid == 0:
        found.append(
            "The worktree belongs to root, so commands run as uid 0 without capabilities; "
            "give --uid for another one."
            if worktree.owner.uid == 0
            else "Commands run as uid 0 without capabilities."
        )
    if owner.uid != worktree.owner.uid:
        found.append(
            f"Commands run as uid {owner.uid}, but the worktree belongs to uid "
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
    )


def _hard(kind: int) -> int | None:
    hard = resource.getrlimit(kind)[1]
    return None if hard == resource.RLIM_INFINITY else hard


# ─── places ─────────────────────────────────────────────────────────────────────────


def _place_faults(real: Path, forbidden: list[Path]) -> list[str]:
    """By name, and by identity: a bind mount gives a directory another name."""
    resolved = {place for path in forbidden for place in (path, path.resolve())}
    if faults := mount_faults(real, sorted(resolved)):
        return faults
    places = _identities([*map(Path, FORBIDDEN), *resolved])
    for directory in (real, *real.parents):
        if place := places.get(_identity(directory)):
            return [f"worktree: {real} leads into {place}, that no sandbox may write"]
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


def write_files(directory: Path, owner: Owner, git: GitEntry) -> Files:
    """Writes what is bound over the image's files; readable by every uid.

    Args:
        directory: ours alone; what it holds of an earlier call is replaced.
    """
    files = Files(
        passwd=_write(directory / "passwd", passwd(owner)),
        group=_write(directory / "group", group(owner)),
        hosts=_write(directory / "hosts", HOSTS),
        git=_cover(directory, git),
    )
    if files.git is not None:
        # git refuses a directory, or a pointer, of another owner than the worktree's.
        with suppress(PermissionError):
            os.chown(files.git, owner.uid, owner.gid, follow_symlinks=False)
    return files


HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"


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


def _write(path: Path, text: str) -> Path:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        os.fchmod(descriptor, 0o444)
    return path


def _cover(directory: Path, git: GitEntry) -> Path | None:
    if git is GitEntry.FILE:
        return _write(directory / "git-file", POINTER)
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
