"""Paths of a workspace → descriptors, never leaving it whatever races with the look-up.

The kernel resolves a path beneath the root in one call (`openat2`). Where it can't
(old kernels, gVisor, a seccomp filter) and for absolute links that point back into the
workspace, the path is walked one component at a time, following no link unseen.
Nothing here opens a path in a way that can wait: every open is non-blocking.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from _blake2 import blake2b

from .operation import MARKUP, PDF, RIPGREP, Failure
from .text import spelled, unspelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .restrictions import Restrictions

MOUNT = "/workspace"
DIRECTORY = os.O_PATH | os.O_DIRECTORY
SAFE = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_OPENAT2 = 437
_BENEATH = 0x08 | 0x02  # RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS
_WALK_INSTEAD = frozenset({errno.EXDEV, errno.EAGAIN, errno.ENAMETOOLONG})
_MAX_LINKS = 40
MAX_PATH = 8 << 10
"""Bytes. The kernel takes 4096 at a time; a longer path is walked."""
MAX_KEY = 200
"""Characters of a file's key."""
_MAX_PARTS = 5000
_MAX_MADE = 256
_MAX_SPELLED = 16
"""Parts of a path that are looked up in two spellings; each look opens all before it."""
_SHOWN = 1000
_NO_REPLACE = 1
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_size_t,
]
_how: dict[int, bytes] = {}

_KINDS = {
    stat.S_IFREG: "regular file",
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "FIFO (named pipe)",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFLNK: "link",
}


def kind(mode: int) -> str:
    """What a file of this mode is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "special file")


def letter(mode: int) -> str:
    """`f`, `d` or `l` for file, directory and link; `o` for anything else."""
    if stat.S_ISREG(mode):
        return "f"
    if stat.S_ISDIR(mode):
        return "d"
    return "l" if stat.S_ISLNK(mode) else "o"


def shown(path: str) -> str:
    """The path for a message: without its middle if it is long, spelled as listings spell it."""
    if len(path) > _SHOWN:
        path = f"{path[: _SHOWN // 2]}…{path[-_SHOWN // 2 :]}"
    return spelled(path)


def identity(status: os.stat_result) -> tuple[int, ...]:
    """Changes whenever the file is replaced, written or its mode changed."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def mark(status: os.stat_result) -> str:
    """Changes whenever the file is replaced, written or its mode changed."""
    return ":".join(map(str, identity(status)))


def require_judged(there: os.stat_result | None, path: str, judged: str | None) -> None:
    """Refuse to lose anything else than what the host has judged the change by.

    Args:
        there: what is at the path.
        path: for the message.
        judged: the mark of what was there; empty = nothing, None = it does not matter.
    """
    if judged is None or judged == ("" if there is None else mark(there)):
        return
    what = "appeared" if not judged else "changed" if there is not None else "went away"
    raise Failure(
        "CONFLICT", f"{shown(path)} {what} while the call was judged; make the call again."
    )


def rename_exclusive(source_parent: int, source: str, parent: int, name: str) -> None:
    """Rename that fails with `FileExistsError` instead of replacing anything."""
    renameat2 = getattr(_libc, "renameat2", None)
    if renameat2 is not None:
        old, new = os.fsencode(source), os.fsencode(name)
        if renameat2(source_parent, old, parent, new, _NO_REPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code), name)
    _rename_exclusive_slowly(source_parent, source, parent, name)


def _rename_exclusive_slowly(source_parent: int, source: str, parent: int, name: str) -> None:
    """The same by older calls, of which each refuses what exists."""
    status = os.lstat(source, dir_fd=source_parent)
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(name, dir_fd=parent)
        try:
            os.rename(source, name, src_dir_fd=source_parent, dst_dir_fd=parent)
        except OSError:
            os.rmdir(name, dir_fd=parent)
            raise
        return
    try:
        os.link(source, name, src_dir_fd=source_parent, dst_dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS or _exists(parent, name):
            raise
        # Nothing better is left on a file system that knows neither.
        os.rename(source, name, src_dir_fd=source_parent, dst_dir_fd=parent)
    else:
        os.unlink(source, dir_fd=source_parent)


def _exists(parent: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True


class Denied(PermissionError):
    """What was opened, or would be changed, is denied by a rule of the loop."""

    def __init__(self, rule: str) -> None:
        super().__init__(errno.EACCES, os.strerror(errno.EACCES))
        self.rule = rule


class Asked(Denied):
    """The same, where the rule wants somebody asked first, and nobody was."""


class Elsewhere(PermissionError):
    """What was opened, or would be changed, is not what the call was judged by."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, os.strerror(errno.EACCES))


class Gits(PermissionError):
    """What was opened, or would be changed, is git's own."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, os.strerror(errno.EACCES))


class Place:
    """A name in an open directory: where something is, or is to be made.

    A context: on leaving it by an error, directories made on the way are removed again.

    Attributes:
        parent: descriptor of the directory; closed on leaving.
        name: the last component; never followed as a link.
        made: directories that were made on the way, outermost first.
    """

    __slots__ = ("made", "name", "parent")

    def __init__(self, parent: int, name: str, made: list[tuple[int, str]]) -> None:
        self.parent = parent
        self.name = name
        self.made = made

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self.parent)
        _settle(self.made, undo=error is not None)

    def status(self) -> os.stat_result | None:
        """What is there now, without following it; None if nothing is."""
        try:
            return os.lstat(self.name, dir_fd=self.parent)
        except FileNotFoundError:
            return None


class _Failures:
    """Turns an `OSError` inside a `with` block into the reply for the model."""

    __slots__ = ("_path", "_workspace")

    def __init__(self, workspace: Workspace, path: str) -> None:
        self._workspace = workspace
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise self._workspace.failure(error, self._path) from error
        if isinstance(error, ValueError):  # a NUL character, or half of a surrogate pair
            reason = f"{shown(self._path)} is not a path that can be used."
            raise Failure("INVALID_PATH", reason) from error


class Workspace:
    """A directory that every path is resolved beneath.

    Args:
        root: the directory.
        label: how messages call it.

    Attributes:
        directory: descriptor of the root.
        ripgrep: the program that searches.
        pdf: what takes PDF files apart; see `operation.PDF`.
        markup: what reads HTML; see `operation.MARKUP`.
        beneath: the kernel resolves paths; otherwise every path is walked.
        restrictions: what the loop's rules deny; None = nothing.
        prefix: stands before what the host is told of paths below the root: nothing for the
            worktree, whose paths have no leading slash.
        unsearched: options of ripgrep that leave out what is not searched.
        box: all that is around it, where that may be looked at; None = nothing.
    """

    def __init__(self, root: str, label: str = MOUNT) -> None:
        self.root = os.path.realpath(root)
        self.label = label
        self.ripgrep = RIPGREP
        self.pdf = PDF
        self.markup = MARKUP
        self.directory = os.open(self.root, DIRECTORY | os.O_CLOEXEC)
        self._root = self.root.rstrip("/") + "/"
        self._named = self._root
        self.prefix = ""
        self.unsearched: list[str] = []
        self.box: Workspace | None = None
        self._prefix = os.fsencode(self._root)
        self.beneath = True
        self.restrictions: Restrictions | None = None
        try:
            os.close(self.open("", DIRECTORY))
        except OSError:
            self.beneath = False

    def close(self) -> None:
        """Close the root."""
        os.close(self.directory)

    def names_from(self, worktree: Workspace) -> None:
        """Name files as seen from the worktree: those elsewhere by their absolute paths."""
        self._named = worktree._root
        self.prefix = self._root

    # ─── resolving ──────────────────────────────────────────────────────────────────

    def open(self, path: str, flags: int) -> int:
        """A descriptor of what `path` leads to; links inside the workspace are followed.

        `path` is relative to the root, or absolute and inside it. Nothing is created.

        Raises:
            OSError: as `open(2)`; EXDEV when the path leaves the workspace.
            Denied: it may not be read.
            Gits: it is in a `.git` directory.
        """
        fd = self._open(path, flags)
        if not flags & os.O_PATH:
            try:
                self._require_not_gits(fd)
                if self.restrictions is not None:
                    self.restrictions.require_opened(self, fd)
            except BaseException:
                os.close(fd)
                raise
        return fd

    def _open(self, path: str, flags: int) -> int:
        name = os.fsencode(path) or b"."
        if b"\0" in name:
            raise OSError(errno.EINVAL, "NUL character in a path", path)
        if len(name) > MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        flags |= os.O_CLOEXEC if flags & os.O_PATH else SAFE
        if not self.beneath:
            return self._walk(name, flags)
        how = _how.get(flags)
        if how is None:
            how = _how[flags] = struct.pack("=QQQ", flags, 0, _BENEATH)
        fd: int = _syscall(_OPENAT2, self.directory, name, how, 24)
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code in _WALK_INSTEAD:
            return self._walk(name, flags)
        raise OSError(code, os.strerror(code), path)

    def _inside(self, path: bytes) -> bytes:
        """An absolute path as one relative to the root.

        Raises:
            OSError: EXDEV, it is not inside.
        """
        if path + b"/" == self._prefix:
            return b"."
        if not path.startswith(self._prefix):
            raise OSError(errno.EXDEV, "leads out of the workspace", path)
        return path[len(self._prefix) :]

    def _walk(self, path: bytes, flags: int) -> int:
        """`open` one component at a time; `..` goes back to the directory it came from."""
        trail = [self.directory]
        todo = [path]
        links = parts = 0
        try:
            while todo:
                part, last = _next_part(todo)
                parts += 1
                if parts > _MAX_PARTS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if part.startswith(b"/"):
                    _forget(trail)
                    todo.append(self._inside(part))
                elif part == b"..":
                    if len(trail) == 1:
                        raise OSError(errno.EXDEV, "leads out of the workspace", path)
                    os.close(trail.pop())
                elif part not in (b"", b"."):
                    opened = _open_part(part, flags if last else DIRECTORY, trail[-1])
                    if isinstance(opened, bytes):
                        links += 1
                        if links > _MAX_LINKS:
                            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                        todo.append(opened)
                    else:
                        trail.append(opened)
                        self.enter(opened)
                        if last:
                            return trail.pop()
            return os.open(b".", flags | os.O_DIRECTORY, dir_fd=trail[-1])
        finally:
            _forget(trail)

    def enter(self, fd: int) -> None:
        """Look at what was opened on a walk.

        Raises:
            OSError: EXDEV, it must not be entered.
        """

    def locate(self, path: str, *, follow: bool, make_parents: bool = False) -> Place:
        """The open directory and the name in it that `path` means.

        Args:
            path: relative to the root, or absolute and inside it.
            follow: a link is followed to where it leads, even if nothing is there yet.
            make_parents: make missing directories on the way.

        Raises:
            OSError: as `open`.
            Denied: it may not be written.
            Gits: it is called `.git`, or is in such a directory.
            Failure: INVALID_PATH, the path names no entry of a directory.
        """
        made: list[tuple[int, str]] = []
        try:
            for _ in range(_MAX_LINKS + 1):
                head, name = self._parted(path)
                parent = self._open_parent(head, made if make_parents else None)
                place = Place(parent, name, made)
                target = _link_target(place) if follow else None
                if target is None:
                    self._require_writable(place, follow)
                    return place
                os.close(parent)
                path = target if target.startswith("/") else f"{head or '.'}/{target}"
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        except BaseException:
            _settle(made, undo=True)
            raise

    def _require_writable(self, place: Place, follow: bool) -> None:
        """Whoever locates a place is going to change it; closes it when that is denied."""
        try:
            self._require_not_for_git(place, follow)
            if self.restrictions is not None:
                self.restrictions.require_writable(self, place)
        except BaseException:
            os.close(place.parent)
            raise

    def _below(self, fd: int) -> str:
        """Where an open file is, from the root, with a slash before it and after it.

        In small letters: a file system may take `.GIT` for `.git`. What is so deep that it has
        no path can't be found by git either.
        """
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return "/…/"
        return f"/{path.removeprefix(self._root[:-1]).strip('/')}/".lower()

    def _require_not_gits(self, fd: int) -> None:
        """Git alone reads what is in a `.git` directory, by whatever path that was reached.

        Raises:
            Gits: it is one, or is in one. A file of this name only says where one is.
        """
        path = self._below(fd)
        if "/.git/" not in path:
            return
        if path.count("/.git/") > 1 or not path.endswith("/.git/"):
            raise Gits
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise Gits

    def require_not_gits(self, path: str) -> None:
        """The same for a path, without opening what is there.

        Raises:
            OSError: as `open`.
            Gits: git alone reads what is there.
        """
        fd = self.open(path, os.O_PATH)
        try:
            self._require_not_gits(fd)
        finally:
            os.close(fd)

    def _require_not_for_git(self, place: Place, follow: bool) -> None:
        """No file is made or changed that git obeys: hooks, settings, a pointer to others.

        Whoever lets a call write files, and `git status` run, has not let it run commands.

        Raises:
            Gits: it is such a file. The root's own `.git` is left to `require_free`.
        """
        above = self._below(place.parent)
        if "/.git/" in above:
            raise Gits
        is_called_so = place.name.lower() == ".git"
        if is_called_so and (above != "//" or follow or place.status() is None):
            raise Gits

    def _parted(self, path: str) -> tuple[str, str]:
        """A path as its directory and its last name."""
        head, slash, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            os.close(self.open(path, os.O_PATH))
            raise Failure(
                "INVALID_PATH",
                f"{shown(path) or '.'} is a directory that is not named here by its own name; "
                f"give the path of a file or directory below {self.label}.",
            )
        return (head or slash), name

    def _open_parent(self, path: str, made: list[tuple[int, str]] | None) -> int:
        """The directory `path`; what is missing of it is made and noted in `made`."""
        try:
            return self.open(path, DIRECTORY)
        except FileNotFoundError:
            if made is None:
                raise
        if path.startswith("/"):
            path = os.fsdecode(self._inside(os.fsencode(path)))
        parts = [part for part in path.split("/") if part not in ("", ".")]
        there = self._count_existing(parts)
        missing = parts[there:]
        if ".." in missing:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if len(missing) > _MAX_MADE:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        fd = self.open("/".join(parts[:there]), DIRECTORY)
        for name in missing:
            fd = _step_into(fd, name, made)
        return fd

    def _count_existing(self, parts: list[str]) -> int:
        """How many of these directories exist, each in the one before."""
        low, high = 0, len(parts)
        while low < high:
            middle = (low + high + 1) // 2
            try:
                os.close(self.open("/".join(parts[:middle]), DIRECTORY))
                low = middle
            except FileNotFoundError:
                high = middle - 1
        return low

    def status(self, path: str) -> os.stat_result:
        """What `path` leads to; links inside the workspace are followed.

        Raises:
            OSError: as `open`.
        """
        fd = self.open(path, os.O_PATH)
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def plain(self, path: str) -> str:
        """The path relative to the root without needless parts; `..` stays.

        Raises:
            OSError: EXDEV, an absolute path that is not inside.
        """
        if path.startswith("/"):
            path = os.fsdecode(self._inside(os.fsencode(path)))
        return "/".join(part for part in path.split("/") if part not in ("", "."))

    def spelled_out(self, path: str) -> str:
        """The path that is meant: `\\xHH` in a name stands for a byte where only that exists.

        Listings show bytes that can't be shown in this way. A name that exists as it is
        written is never taken for another.
        """
        if "\\x" not in path:
            return path
        parts = path.split("/")
        if sum("\\x" in part for part in parts) > _MAX_SPELLED:
            return path
        for index, part in enumerate(parts):
            if "\\x" not in part or self._has("/".join(parts[: index + 1])):
                continue
            name = unspelled(os.fsencode(part))
            if name in (b".", b"..") or b"/" in name or b"\0" in name:
                return path
            meant = [*parts[:index], os.fsdecode(name)]
            if not self._has("/".join(meant)):
                break
            parts[index] = meant[-1]
        return "/".join(parts)

    def _has(self, path: str) -> bool:
        try:
            os.close(self.open(path, os.O_PATH | os.O_NOFOLLOW))
        except (OSError, ValueError):
            return False
        return True

    def real(self, fd: int, name: str = "") -> str:
        """Where a file is now: relative to the root, or absolute and outside of it.

        Args:
            fd: of the file, or of the directory that it is in.
            name: its name in the directory.
        """
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.endswith(" (deleted)") and not os.fstat(fd).st_nlink:
            path = path.removesuffix(" (deleted)")  # otherwise that is its name
        if name:
            path = f"{path.rstrip('/')}/{name}"
        if path == self._named[:-1]:
            return ""
        return path.removeprefix(self._named)

    def key(self, fd: int, name: str = "") -> str:
        """What tells a file from others, by whatever path it was reached.

        Args:
            fd: of the file, or of the directory that it is in.
            name: its name in the directory.
        """
        path = os.readlink(f"/proc/self/fd/{fd}")
        if name:
            path = f"{path.rstrip('/')}/{name}"
        if path.startswith(self._named):
            path = path[len(self._named) :]
        if len(path) > MAX_KEY:
            path = "#" + blake2b(os.fsencode(path), digest_size=32).hexdigest()
        return path

    def named(self, path: str) -> str:
        """A path below the root as the host is told it: from the worktree's root, or absolute."""
        path = self.prefix + path
        if path == self._named[:-1]:
            return ""
        return path.removeprefix(self._named)

    def require_free(self, status: os.stat_result, path: str) -> None:
        """Refuse the root and its `.git`, by whatever path they were reached.

        Raises:
            Failure: INVALID_PATH, it is one of these.
        """
        for name, what in ((".", "the workspace itself"), (".git", "the workspace's .git")):
            try:
                kept = os.lstat(name, dir_fd=self.directory)
            except OSError:
                continue
            if (kept.st_dev, kept.st_ino) == (status.st_dev, status.st_ino):
                raise Failure(
                    "INVALID_PATH", f"{shown(path)} is {what}, which can't be moved or deleted."
                )

    # ─── words for the model ────────────────────────────────────────────────────────

    def failures(self, path: str) -> _Failures:
        """A context in which an `OSError` becomes a `Failure` that speaks of `path`."""
        return _Failures(self, path)

    def failure(self, error: OSError, path: str) -> Failure:
        """The reply for an error that the kernel gave for `path`."""
        name = shown(path) or "."
        if isinstance(error, Elsewhere):
            reason = f"{name} leads elsewhere than when the call was judged; make the call again."
            return Failure("CONFLICT", reason)
        if isinstance(error, Gits):
            reason = f"{name} is git's own, which git alone reads and changes. Use run_command "
            reason += "with a command of git, for example git config, git log or git restore."
            return Failure("PERMISSION_DENIED", reason)
        if isinstance(error, Asked):
            reason = f"{name} is not allowed: the rule {error.rule} asks first, and this call was "
            reason += "not asked about. Make a call for this path alone."
            return Failure("PERMISSION_DENIED", reason, {"rule": error.rule})
        if isinstance(error, Denied):
            reason = f"{name} is not allowed: the rule {error.rule} denies it."
            return Failure("PERMISSION_DENIED", reason, {"rule": error.rule})
        number = error.errno or 0
        if number == errno.EPERM and self._is_pipe(path):
            number = errno.ENXIO  # gVisor opens no FIFO of a directory of the host's
        code, text = self._reason(number, name)
        if number == errno.ENOENT:
            text = self._missing(path, name)
        if number == errno.ENXIO:
            text = f"{name} is a {self._kind(path)}, not a regular file."
        return Failure(code, text or f"{name}: {error.strerror}.")

    def _reason(self, number: int, name: str) -> tuple[str, str]:
        if number == errno.EXDEV:
            return "INVALID_PATH", (
                f"{name} leads out of {self.label}. Use a path inside {self.label}."
            )
        code, text = _REASONS.get(number, ("EXECUTION_ERROR", ""))
        return code, text and text.format(name)

    def _kind(self, path: str) -> str:
        try:
            return kind(self.status(path).st_mode)
        except OSError:
            return "socket or device"

    def _is_pipe(self, path: str) -> bool:
        try:
            return stat.S_ISFIFO(self.status(path).st_mode)
        except OSError:
            return False

    def _missing(self, path: str, name: str) -> str:
        """Why nothing is found at `path`: a dead link, a missing directory, or just that."""
        head, _, last = path.rstrip("/").rpartition("/")
        try:
            parent = self.open(head, DIRECTORY)
        except OSError:
            return f"{name} does not exist: there is no directory {shown(head)} in {self.label}."
        try:
            target = os.readlink(last or ".", dir_fd=parent)
        except OSError:
            return f"{name} does not exist in {self.label}. Check the spelling of the path."
        finally:
            os.close(parent)
        return f"{name} is a link to {shown(target)}, which does not exist."


_REASONS = {
    errno.ENOENT: ("FILE_NOT_FOUND", ""),
    errno.ENOTDIR: (
        "INVALID_PATH",
        "{}: something on the way to it is not a directory; check the path with list_directory.",
    ),
    errno.ELOOP: ("INVALID_PATH", "{} goes round in a cycle of links, or through too many."),
    errno.ENAMETOOLONG: (
        "INVALID_PATH",
        f"{{}} is too long; a name may have 255 bytes, a path {MAX_PATH}.",
    ),
    errno.EINVAL: ("INVALID_PATH", "{} is not a path that can be used."),
    errno.EACCES: (
        "PERMISSION_DENIED",
        "{}: permission denied. Look at its mode and its directory's with run_command.",
    ),
    errno.EPERM: ("PERMISSION_DENIED", "{}: operation not permitted. Use another path."),
    errno.EROFS: ("PERMISSION_DENIED", "{} is on a read-only file system. Use another path."),
    errno.EBUSY: ("PERMISSION_DENIED", "{} is a mount point or in use and can't be replaced."),
    errno.EISDIR: ("NOT_A_FILE", "{} is a directory, not a regular file; give the path of a file."),
    errno.ENXIO: ("NOT_A_FILE", "{} is a socket or device, not a regular file."),
    errno.ENODEV: ("NOT_A_FILE", "{} is a device, not a regular file."),
    errno.EEXIST: ("EXISTS", "{} exists already."),
    errno.ENOTEMPTY: ("EXISTS", "{} is a directory that is not empty."),
    errno.EAGAIN: ("EXECUTION_ERROR", "{} is held by another process; try again."),
    errno.ENOSPC: ("NO_SPACE", "{}: no space left. Delete something first."),
    errno.EDQUOT: ("NO_SPACE", "{}: the quota is used up. Delete something first."),
    errno.EFBIG: ("LIMIT", "{} would be larger than the limit for one file."),
    errno.EMFILE: ("LIMIT", "{}: too many files are open."),
    errno.ENFILE: ("LIMIT", "{}: too many files are open."),
    errno.ENOMEM: ("OUT_OF_MEMORY", "{}: out of memory."),
}


def _next_part(todo: list[bytes]) -> tuple[bytes, bool]:
    """Take the next component; is it the last? An absolute path comes back whole."""
    text = todo.pop()
    if text.startswith(b"/"):
        return text, False
    part, slash, rest = text.partition(b"/")
    if slash:
        # A slash at the end stays as an empty part: what is before it must be a directory.
        todo.append(rest.lstrip(b"/"))
    return part, not todo


def _open_part(name: bytes, flags: int, parent: int) -> int | bytes:
    """Open one component without following it; a link comes back as its target."""
    unseen = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags | unseen, dir_fd=parent)
    except OSError as error:
        if flags & os.O_NOFOLLOW or error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        try:
            return os.readlink(name, dir_fd=parent)
        except OSError:
            raise error from None
    if flags & os.O_PATH and not flags & os.O_NOFOLLOW and stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        return os.readlink(name, dir_fd=parent)
    return fd


def _step_into(parent: int, name: str, made: list[tuple[int, str]]) -> int:
    """Make the directory `name` if it is missing and open it; closes `parent`."""
    try:
        try:
            os.mkdir(name, dir_fd=parent)
            made.append((os.dup(parent), name))
        except FileExistsError:
            pass
        return os.open(name, DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    finally:
        os.close(parent)


def _settle(made: list[tuple[int, str]], *, undo: bool) -> None:
    """Let go of directories that were made; `undo` removes those still empty."""
    while made:
        parent, name = made.pop()
        if undo:
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError:
                undo = False
        os.close(parent)


def _forget(trail: list[int]) -> None:
    """Close all but the root."""
    while len(trail) > 1:
        os.close(trail.pop())


def _link_target(place: Place) -> str | None:
    try:
        return os.readlink(place.name, dir_fd=place.parent)
    except OSError:
        return None
