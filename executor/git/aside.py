"""Taking a repository out of git's sight, by directory descriptors.

A repository that something hostile made is obeyed by git wherever it is found: by name
(`.git` in a directory) or by what it holds (a bare one). Both names are changed, within their
directories; nothing is removed, no link is followed and nothing is replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from executor.sandbox.descent import DIRECTORY

GIT = ".git"
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_REPLACE = 1
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
_TRIES = 8
_libc = ctypes.CDLL(None, use_errno=True)


def hide(directory: int, suffix: str) -> str:
    """Rename the `.git` of a directory, so that git sees none there.

    What was a directory is no bare repository either then, and is ignored by the repository
    around it: `git add --all` takes nothing of it in.

    Args:
        directory: descriptor of the directory that it is in.
        suffix: of the new name; it is made longer where that name is taken.

    Returns:
        The new name.

    Raises:
        OSError: it could not be renamed.
    """
    with writable(directory):
        name = _rename(directory, GIT, f"{GIT}.{suffix}")
    return name


def close_up(directory: int, name: str, suffix: str) -> None:
    """Make what `hide` renamed no repository, and ignored by the one around it.

    Nothing is done if it is no directory.

    Raises:
        OSError: it could not be done. It is hidden all the same.
    """
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        return
    with opened(directory, name) as hidden, writable(hidden):
        with suppress(FileNotFoundError):
            behead(hidden, suffix)
        _ignore_all(hidden, suffix)


def behead(directory: int, suffix: str) -> str:
    """Rename the `HEAD` of a directory: git takes none without for a repository.

    Returns:
        The new name.

    Raises:
        OSError: it could not be renamed; `FileNotFoundError`: there is none.
    """
    with writable(directory):
        return _rename(directory, "HEAD", f"HEAD.{suffix}")


def _ignore_all(directory: int, suffix: str) -> None:
    try:
        os.unlink(".gitignore", dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError:  # a directory; or it may not be removed, and then not renamed either
        _rename(directory, ".gitignore", f".gitignore.{suffix}")
    file = os.open(".gitignore", _NEW, 0o644, dir_fd=directory)
    try:
        os.write(file, b"*\n")
        status = os.fstat(directory)
        with suppress(PermissionError):
            os.fchown(file, status.st_uid, status.st_gid)
    finally:
        os.close(file)


def _rename(directory: int, old: str, new: str) -> str:
    """Under the new name, or a longer one: never over what is there."""
    names = [new, *(f"{new}-{secrets.token_hex(4)}" for _ in range(_TRIES))]
    for name in names:
        try:
            _rename_exclusive(directory, old, name)
        except FileExistsError:
            continue
        return name
    raise FileExistsError(errno.EEXIST, "every name for it is taken", new)


def _rename_exclusive(directory: int, old: str, new: str) -> None:
    call = getattr(_libc, "renameat2", None)
    code = errno.ENOSYS
    if call is not None:
        names = os.fsencode(old), os.fsencode(new)
        if call(directory, names[0], directory, names[1], _NO_REPLACE) == 0:
            return
        code = ctypes.get_errno()
    if code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code), old)
    # A file system that can't: what is looked up first can appear only by a race, and then
    # something of the worktree is replaced by something of the worktree.
    if _exists(directory, new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def writable(directory: int) -> Iterator[None]:
    """A directory's owner may have taken the right to change it from himself."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if not os.geteuid() or mode & 0o300 == 0o300:
        yield
        return
    os.fchmod(directory, mode | 0o300)
    try:
        yield
    finally:
        with suppress(OSError):
            os.fchmod(directory, mode)


@contextmanager
def opened(parent: int, name: str) -> Iterator[int]:
    """A directory by its name in another, whatever its owner may do with it."""
    mode = unlock(parent, name)
    directory = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        yield directory
    finally:
        if mode is not None:
            os.fchmod(directory, mode)
        os.close(directory)


def unlock(parent: int, name: str) -> int | None:
    """Let the owner of a directory, who is us, look into it; no link is followed.

    Returns:
        Its mode before; None = it needed no change.

    Raises:
        OSError: it is gone, or somebody else's.
    """
    if not os.geteuid():
        return None
    place = os.open(name, _PATH | os.O_DIRECTORY, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        if mode & 0o500 == 0o500:
            return None
        # fchmod does not take such a descriptor; this name leads to what it is open at.
        os.chmod(f"/proc/self/fd/{place}", mode | 0o500)
        return mode
    finally:
        os.close(place)
