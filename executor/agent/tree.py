"""The operations on directories: list, delete.

Trees are walked by descriptors: a directory is opened in the one that lists it and never
through a link, so nothing that moves meanwhile leads elsewhere.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat

from .operation import Failure
from .workspace import SAFE, Denied, Place, Workspace, kind, letter, require_judged, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any, TypeAlias

    from .operation import Steps

    Pauses: TypeAlias = Generator[None, Any, None]

_LISTED = 1000
_LISTED_CHARACTERS = 256 << 10
"""Of all listed paths, with escapes: as JSON they and what failed must fit into a frame."""
_NAMED = 20
_NAMED_CHARACTERS = 64 << 10
"""Of all paths that failed."""
_MAX_RECORDS = 4 << 20
"""Bytes of all records: paths in a deep tree are long."""
_SLICE = 500
_DELETED = 100
"""Entries deleted between two pauses; the kernel takes longer for them than for a look."""
_SORTED = 2000
"""Names sorted between two pauses."""
_DEPTH = 128
_NAMES = 200_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | SAFE

# ─── list ───────────────────────────────────────────────────────────────────────────


class _Level:
    """An open directory and what of it is still to be listed.

    An entry is listed under its name; a directory is entered under its name and a slash,
    so that everything comes in the order of the bytes of whole paths.
    """

    __slots__ = ("fd", "names", "prefix")

    def __init__(self, fd: int, prefix: bytes) -> None:
        self.fd = fd
        self.prefix = prefix
        self.names: Iterator[bytes] = iter(())


class _Listing:
    def __init__(self, arguments: dict[str, Any]) -> None:
        recursive = arguments.get("recursive", False)
        depth = arguments.get("max_depth")
        self.depth: int = min(depth or _DEPTH, _DEPTH) if recursive else 1
        self.include_hidden: bool = arguments.get("include_hidden", False)
        self.max_entries: int = arguments.get("max_entries", 10_000)
        self.records: list[bytes] = []
        self.size = 0
        self.unreadable: list[str] = []
        self.hidden = self._named = 0
        self.truncated = False
        self.left_out: int | None = None
        self.has_unseen = False

    def fill(self, level: _Level, depth: int) -> Pauses:
        """Read the names of a directory.

        They are sorted in portions and merged as they are taken: to sort all at once
        would keep the agent for as long as a directory is large.
        """
        enters = depth < self.depth
        portions: list[list[bytes]] = []
        names: list[bytes] = []
        with os.scandir(level.fd) as entries:
            for count, entry in enumerate(entries, 1):
                name = os.fsencode(entry.name)
                if name.startswith(b".") and not self.include_hidden:
                    self.hidden += 1
                else:
                    names.append(name)
                    if name != b".git" and entry.is_dir(follow_symlinks=False):
                        if enters:
                            names.append(name + b"/")
                        self.truncated = self.truncated or depth >= _DEPTH
                if count % _SLICE == 0:
                    yield None
                if len(names) >= _SORTED:
                    portions.append(sorted(names))
                    names = []
                if count == _NAMES:
                    self.truncated = self.has_unseen = True
                    break
        portions.append(sorted(names))
        level.names = heapq.merge(*portions) if len(portions) > 1 else iter(portions[0])

    def add(self, level: _Level, name: bytes) -> None:
        """Note one entry."""
        path = level.prefix + name
        try:
            status = os.lstat(name, dir_fd=level.fd)
        except FileNotFoundError:
            return
        except OSError:
            self._note_unreadable(path)
            self._add(b"o\x1f0\x1f0\x1f\x1f" + path + b"\0")
            return
        type_ = letter(status.st_mode)
        target = b""
        if type_ == "l":
            type_, target = _link(level.fd, name)
        fields = f"{type_}\x1f{status.st_size}\x1f{status.st_mtime_ns}\x1f".encode()
        self._add(fields + target + b"\x1f" + path + b"\0")

    def _add(self, record: bytes) -> None:
        self.size += len(record)
        if self.size <= _MAX_RECORDS:
            self.records.append(record)

    @property
    def is_full(self) -> bool:
        """There is no room for another entry."""
        return len(self.records) >= self.max_entries or self.size > _MAX_RECORDS

    def enter(self, level: _Level, name: bytes) -> _Level | None:
        """Open a directory of this one; None if it can't be."""
        path = level.prefix + name
        try:
            return _Level(os.open(name[:-1], _DIRECTORY, dir_fd=level.fd), path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                self._note_unreadable(path[:-1])
            return None

    def _note_unreadable(self, path: bytes) -> None:
        self._named += len(path)
        if len(self.unreadable) < _NAMED and self._named <= _NAMED_CHARACTERS:
            self.unreadable.append(os.fsdecode(path))


def _link(parent: int, name: bytes) -> tuple[str, bytes]:
    """The letter of a link, `L` when nothing is where it leads, and its target."""
    try:
        # The separator of the record's fields can't be shown as itself.
        target = os.readlink(name, dir_fd=parent).replace(b"\x1f", b"?")
    except OSError:
        return "L", b""
    try:
        os.stat(name, dir_fd=parent)
    except PermissionError:
        return "l", target
    except OSError:
        return "L", target
    return "l", target


def list_directory(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """The entries of a directory, sorted by the bytes of their paths."""
    path = workspace.spelled_out(arguments.get("path") or ".")
    listing = _Listing(arguments)
    levels: list[_Level] = []
    with workspace.failures(path):
        try:
            levels.append(_Level(_open_directory(workspace, path), b""))
            yield from listing.fill(levels[0], 1)
            yield from _list(listing, levels)
        finally:
            for level in levels:
                os.close(level.fd)
    total = len(listing.records) + (listing.left_out or 0)
    reply = {
        "entries": len(listing.records),
        "total": None if listing.truncated and listing.left_out is None else total,
        "hidden": listing.hidden,
        "truncated": listing.truncated,
        "unreadable": listing.unreadable,
    }
    return reply, b"".join(listing.records)


def _list(listing: _Listing, levels: list[_Level]) -> Pauses:
    steps = 0
    while levels:
        level = levels[-1]
        steps += 1
        if steps % _SLICE == 0:
            yield None
        name = next(level.names, None)
        if name is None:
            os.close(levels.pop().fd)
            continue
        if not name.endswith(b"/"):
            if listing.is_full:
                listing.truncated = True
                if listing.depth == 1 and not listing.has_unseen:
                    listing.left_out = yield from _count(level.names)
                return
            listing.add(level, name)
            continue
        inner = listing.enter(level, name)
        if inner is not None:
            levels.append(inner)
            yield from listing.fill(inner, len(levels))


def _count(names: Iterator[bytes]) -> Generator[None, Any, int]:
    """How many entries these are, and the one that was taken before them."""
    count = 1
    for _ in names:
        count += 1
        if count % _SORTED == 0:
            yield None
    return count


def _open_directory(workspace: Workspace, path: str) -> int:
    try:
        return workspace.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except NotADirectoryError:
        what = kind(workspace.status(path).st_mode)
        raise Failure(
            "INVALID_PATH", f"{shown(path)} is a {what}, not a directory; use read_file for files."
        ) from None


# ─── delete ─────────────────────────────────────────────────────────────────────────


class _Deletion:
    """What was deleted so far, and what could not be.

    A tree may be deeper than any path can be long: a path is made only where it has room.
    """

    def __init__(self) -> None:
        self.count = 0
        self.paths: list[str] = []
        self.failed: list[dict[str, str]] = []
        self.code = ""
        self._room = _LISTED_CHARACTERS

    def done(self, above: _Emptied | None, name: str) -> None:
        """Note that `name` in the directory `above` was deleted."""
        self.count += 1
        if len(self.paths) < _LISTED and _length(above, name) < self._room:
            path = _path(above, name)
            self._room -= len(ascii(path))
            if self._room >= 0:
                self.paths.append(path)

    def fail(self, workspace: Workspace, error: OSError, above: _Emptied | None, name: str) -> None:
        """Note why `name` in the directory `above` could not be deleted."""
        if len(self.failed) >= _NAMED:
            return
        fits = _length(above, name) < _NAMED_CHARACTERS // _NAMED
        path = _path(above, name) if fits else f"…/{name}"
        failure = workspace.failure(error, path)
        self.code = self.code or failure.code
        self.failed.append({"path": path, "reason": failure.message})


def delete(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Remove a file or link, or with `recursive` a directory and all below it."""
    path = workspace.spelled_out(arguments["path"])
    deletion = _Deletion()
    with workspace.failures(path), workspace.locate(path, follow=False) as place:
        status = place.status()
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        workspace.require_free(status, path)
        require_judged(status, path, arguments.get("judged"))
        name = workspace.prefix + workspace.plain(path)
        is_tree = stat.S_ISDIR(status.st_mode) and arguments.get("recursive", False)
        if arguments.get("trial", False) and (is_tree or not stat.S_ISDIR(status.st_mode)):
            return {"deleted": 0, "truncated": False}, b""
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(place.name, dir_fd=place.parent)
            deletion.done(None, name)
        elif not is_tree:
            raise Failure(
                "NOT_A_FILE",
                f"{shown(path)} is a directory. Use recursive=true to delete it and all below it.",
                {"type": "directory"},
            )
        else:
            yield from _Clearing(workspace, place, deletion).run(name)
    if deletion.failed:
        raise Failure(
            deletion.code,
            f"{shown(path)} was deleted only in part: {deletion.failed[0]['reason']}",
            {"deleted": deletion.paths, "count": deletion.count, "failed": deletion.failed},
        )
    reply = {"deleted": deletion.count, "truncated": deletion.count > len(deletion.paths)}
    return reply, b"\0".join(map(os.fsencode, deletion.paths))


class _Emptied:
    """A directory that is being emptied.

    Attributes:
        above: the directory that it is in, if that is being emptied too.
        name: its name there.
        label: the same; of the outermost, its path relative to the root.
        length: characters of its path.
        identity: device and inode.
        directories: names of the directories in it that are still to be removed.
        kept: something in it can't be removed, and so it can't be.
    """

    __slots__ = ("above", "directories", "identity", "kept", "label", "length", "name")

    def __init__(
        self, above: _Emptied | None, name: str, label: str, identity: tuple[int, int]
    ) -> None:
        self.above = above
        self.name = name
        self.label = label
        self.length = _length(above, label)
        self.identity = identity
        self.directories: list[str] = []
        self.kept = False


def _length(above: _Emptied | None, name: str) -> int:
    return len(name) if above is None else above.length + 1 + len(name)


def _path(above: _Emptied | None, name: str) -> str:
    parts = [name]
    while above is not None:
        parts.append(above.label)
        above = above.above
    return "/".join(reversed(parts))


class _Clearing:
    """Removes a directory tree with two descriptors at a time, however deep it is.

    Going up by `..` is safe because what is reached must be the directory come from.
    """

    def __init__(self, workspace: Workspace, place: Place, deletion: _Deletion) -> None:
        self._workspace = workspace
        self._place = place
        self._deletion = deletion
        self._mounts = _mounts_in(workspace)
        self._levels: list[_Emptied] = []
        self._fd = -1

    def run(self, path: str) -> Pauses:
        """Remove it all; what can't be removed is noted and the rest goes on."""
        try:
            yield from self._enter(self._place.parent, self._place.name, path)
            while self._levels:
                level = self._levels[-1]
                if level.directories:
                    name = level.directories.pop()
                    yield from self._enter(self._fd, name, name)
                else:
                    self._leave()
                yield None
        finally:
            if self._fd >= 0:
                os.close(self._fd)

    @property
    def _above(self) -> _Emptied | None:
        return self._levels[-1] if self._levels else None

    def _fail(self, error: OSError, name: str) -> None:
        self._deletion.fail(self._workspace, error, self._above, name)
        if self._levels:
            self._levels[-1].kept = True

    def _enter(self, parent: int, name: str, label: str) -> Pauses:
        """Open a directory and remove the files in it; one that can't be opened may be empty."""
        try:
            if self._fd >= 0:
                self._require_writable(name, is_directory=True)
            fd = os.open(name, _DIRECTORY, dir_fd=parent)
        except Denied as error:
            self._fail(error, label)
            return
        except OSError as error:
            self._remove_unopened(parent, name, label, error)
            return
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if identity in self._mounts:
            os.close(fd)
            self._fail(OSError(errno.EBUSY, os.strerror(errno.EBUSY)), label)
            return
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        level = _Emptied(self._above, name, label, identity)
        self._levels.append(level)
        yield from self._unlink_files(level)

    def _remove_unopened(self, parent: int, name: str, label: str, error: OSError) -> None:
        try:
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError:
            self._fail(error, label)
        else:
            self._deletion.done(self._above, label)

    def _require_writable(self, name: str, *, is_directory: bool) -> None:
        """Let an entry of the open directory be removed, unless a rule denies it."""
        restrictions = self._workspace.restrictions
        if restrictions is not None:
            restrictions.require("write", self._workspace.real(self._fd, name), is_directory)

    def _unlink_files(self, level: _Emptied) -> Pauses:
        """Remove all but the directories of the open directory, and note those."""
        with os.scandir(self._fd) as entries:
            for count, entry in enumerate(entries, 1):
                if count % _DELETED == 0:
                    yield None
                if entry.is_dir(follow_symlinks=False):
                    level.directories.append(entry.name)
                    continue
                try:
                    self._require_writable(entry.name, is_directory=False)
                    os.unlink(entry.name, dir_fd=self._fd)
                    self._deletion.done(level, entry.name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    self._fail(error, entry.name)
        if len(level.directories) <= _SORTED:
            level.directories.sort(reverse=True)

    def _leave(self) -> None:
        """Go up and remove the directory that was emptied."""
        level = self._levels.pop()
        parent = self._go_up(level) if self._levels else self._place.parent
        if level.kept:
            if self._levels:
                self._levels[-1].kept = True
            return
        try:
            os.rmdir(level.name, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError as error:
            self._fail(error, level.label)
        else:
            self._deletion.done(self._above, level.label)

    def _go_up(self, level: _Emptied) -> int:
        parent = os.open("..", os.O_RDONLY | os.O_DIRECTORY | SAFE, dir_fd=self._fd)
        os.close(self._fd)
        self._fd = parent
        status = os.fstat(parent)
        if (status.st_dev, status.st_ino) != self._levels[-1].identity:
            raise Failure("CONFLICT", f"{shown(level.label)} was moved while it was being deleted.")
        return parent


def _mounts_in(workspace: Workspace) -> set[tuple[int, int]]:
    """The directories below the root on which something else is mounted."""
    found: set[tuple[int, int]] = set()
    root = os.fsencode(workspace.root).rstrip(b"/") + b"/"
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            points = [_unescaped(line.split(b" ")[4]) for line in table]
    except OSError:
        return found
    for point in points:
        if point.startswith(root):
            try:
                status = os.lstat(point)
            except OSError:
                continue
            found.add((status.st_dev, status.st_ino))
    return found


def _unescaped(field: bytes) -> bytes:
    """A path of the kernel's table, which has its separators as octal numbers."""
    for code, character in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n")):
        field = field.replace(code, character)
    return field.replace(b"\\134", b"\\")
