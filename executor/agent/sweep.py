"""The operation sweep: which files of a language the worktree has, and how each was left.

The host compares two answers to tell a language server what has changed between them. Names and
times are told of files, too, that rules deny to read: the server has all of them before it, and
nothing of their content is told here. Of directories of packages it is told how they were left
themselves, which an installation changes. Loaded on first use.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
import time
from _blake2 import blake2b

from .workspace import MAX_PATH, SAFE, Workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any, TypeAlias

    from .operation import Operation, Steps
    from .pattern import Pattern

    Pauses: TypeAlias = Generator[None, Any, None]

LEFT_OUT = frozenset(
    (
        *(".git", ".hg", ".svn", "__pycache__"),
        *(".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache"),
    )
)
"""Names of directories that are not entered: what is in there is nobody's own source text."""
_OF_PYTHON = ("lib", "python", "site-packages")
PACKAGES = {"node_modules": ("@",), ".venv": _OF_PYTHON, "venv": _OF_PYTHON}
"""Directories that packages are installed in → how the names of the directories begin that are
entered in there, one below the other. These are noted themselves, and none of their files."""
MAX_FILES = 50_000
MAX_DATA = 6 << 20
"""Bytes of all records; the host takes no more of either."""
_NAMES = 400_000
"""Names that are looked at, of whatever kind, but for those in directories of packages."""
_PACKAGE_NAMES = 100_000
"""Names that are looked at there. Beyond these no more directories are found in there."""
_PACKAGE_DATA = 400_000
"""Bytes of the records of directories of packages, about 5,000. Others are not noted: neither
bound leaves out a file, or is said."""
_DEPTH = 128
_SLICE = 300
"""Names between two pauses: about 1 ms."""
_SORTED = 2000
"""Names sorted between two pauses."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | SAFE
_OWN_LACK = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the agent is short of: a sweep that leaves something out for it would say it is gone."""


class _Level:
    """An open directory, and which of its names are still to be looked at.

    A directory is entered under its name and a slash, so that all files come in the order of
    the bytes of whole paths.

    Args:
        fd: its descriptor.
        prefix: its path, with a slash at the end; empty at the top.
        way: in a directory of packages, how the names begin that are still to be entered; None =
            it is none.
    """

    __slots__ = ("fd", "identity", "names", "prefix", "status", "way")

    def __init__(self, fd: int, prefix: bytes, way: tuple[str, ...] | None) -> None:
        self.status = os.fstat(fd)
        self.fd = fd
        self.identity = (self.status.st_dev, self.status.st_ino)
        self.prefix = prefix
        self.way = way
        self.names: Iterator[bytes] = iter(())

    def enters(self, name: str) -> bool:
        """Is a directory of this name entered?"""
        if self.way is None:
            return name not in LEFT_OUT
        return name.startswith(self.way[:1])

    def way_in(self, name: bytes) -> tuple[str, ...] | None:
        """The way in a directory in here."""
        return PACKAGES.get(os.fsdecode(name[:-1])) if self.way is None else self.way[1:]


class _Sweep:
    """A walk through the worktree by descriptors, and what it has found.

    Args:
        suffixes: what the names of the wanted files end with.
        names: of those that are wanted besides; `*` in one stands for any characters.

    Attributes:
        data: the records.
        files: how many there are, directories of packages among them.
        is_truncated: there may be files that it did not come to.
    """

    def __init__(self, suffixes: list[str], names: list[str]) -> None:
        self._suffixes = tuple(suffixes)
        self._names = frozenset(names)
        starred = [name for name in names if "*" in name]
        self._patterns = _patterns(starred)
        self._tails = tuple(name.rpartition("*")[2] for name in starred)
        self._levels: list[_Level] = []
        self._digest = blake2b(digest_size=16)
        self._names_left, self._package_names_left = _NAMES, _PACKAGE_NAMES
        self._package_data_left = _PACKAGE_DATA
        self._is_full = self._is_full_of_packages = False
        self.data = bytearray()
        self.files = 0
        self.is_truncated = False

    @property
    def mark(self) -> str:
        """Two sweeps with the same records have the same."""
        return self._digest.hexdigest()

    def run(self, root: int) -> Pauses:
        """Walk from this directory.

        Raises:
            OSError: it can't be opened, or the agent is short of something.
        """
        yield from self._enter(_Level(os.open(".", _DIRECTORY, dir_fd=root), b"", None))
        steps = 0
        while self._levels and not self._is_full:
            steps += 1
            if steps % _SLICE == 0:
                yield None
            level = self._levels[-1]
            name = next(level.names, None)
            if name is None:
                os.close(self._levels.pop().fd)
            elif name.endswith(b"/"):
                inner = self._opened(level, name)
                if inner is not None:
                    yield from self._enter(inner)
            else:
                self._add(level, name)

    def close(self) -> None:
        """Close what is open, however far it came."""
        while self._levels:
            os.close(self._levels.pop().fd)

    def _opened(self, level: _Level, name: bytes) -> _Level | None:
        """A directory in this one, opened; None if it is not to be entered."""
        path, way = level.prefix + name, level.way_in(name)
        is_too_deep = len(self._levels) >= _DEPTH or len(path) > MAX_PATH
        has_enough = self._names_left <= 0 if way is None else self._is_full_of_packages
        if is_too_deep or has_enough:
            self.is_truncated |= way is None
            return None
        try:
            return _Level(os.open(name[:-1], _DIRECTORY, dir_fd=level.fd), path, way)
        except OSError as error:
            _pass_over(error)
            return None

    def _enter(self, level: _Level) -> Pauses:
        """Read the names of an open directory; one that holds itself by a mount is closed."""
        if any(one.identity == level.identity for one in self._levels):
            os.close(level.fd)
            return
        self._levels.append(level)
        if level.way is not None:
            self._note_packages(level)
            # To read all that is in there would take long, and its files are no help.
            if not level.way or self._package_names_left <= 0:
                return
        portions: list[list[bytes]] = [[]]
        try:
            with os.scandir(level.fd) as entries:
                for entry in entries:
                    left = self._count_name(level)
                    if left < 0:
                        break
                    if left % _SLICE == 0:
                        yield None
                    name = self._wanted(level, entry)
                    if name:
                        portions[-1].append(name)
                    if len(portions[-1]) >= _SORTED:
                        # To sort all at once would keep the agent for as long as there are many.
                        portions[-1].sort()
                        portions.append([])
        except OSError as error:
            _pass_over(error)
        portions[-1].sort()
        level.names = heapq.merge(*portions) if len(portions) > 1 else iter(portions[0])

    def _count_name(self, level: _Level) -> int:
        """Count a name in a directory; how many more may be looked at, below 0 = not even it."""
        if level.way is not None:
            self._package_names_left -= 1
            return self._package_names_left
        self._names_left -= 1
        self.is_truncated |= self._names_left < 0
        return self._names_left

    def _wanted(self, level: _Level, entry: os.DirEntry[str]) -> bytes:
        """The name under which an entry is looked at again; empty if it is none of ours."""
        name = entry.name
        try:
            is_directory = entry.is_dir(follow_symlinks=False)
        except OSError as error:
            _pass_over(error)
            return b""
        if is_directory:
            return os.fsencode(name) + b"/" if level.enters(name) else b""
        if level.way is None and self._is_named(name):
            return os.fsencode(name)
        return b""

    def _is_named(self, name: str) -> bool:
        """Is a file of this name asked for?"""
        if name.endswith(self._suffixes) or name in self._names:
            return True
        # A pattern takes far longer than to look at a name's end.
        return name.endswith(self._tails) and any(one.matches(name) for one in self._patterns)

    def _add(self, level: _Level, name: bytes) -> None:
        """Note what is under a name, if it is a regular file."""
        try:
            status = os.lstat(name, dir_fd=level.fd)
        except OSError as error:
            _pass_over(error)
            return
        if not stat.S_ISREG(status.st_mode):
            return
        path = level.prefix + name
        if len(path) > MAX_PATH:
            self.is_truncated = True
            return
        self._note(status, path)

    def _note(self, status: os.stat_result, path: bytes) -> None:
        """Add the record of a file; without room for it the sweep is over."""
        if not self._took(_record(status, path)):
            self.is_truncated = self._is_full = True

    def _note_packages(self, level: _Level) -> None:
        """Add the record of a directory of packages, if they have left room for it."""
        record = _record(level.status, level.prefix)
        self._package_data_left -= len(record)
        if self._package_data_left < 0 or not self._took(record):
            self._is_full_of_packages = True

    def _took(self, record: bytes) -> bool:
        """Was there room for a record? Then it is added."""
        if self.files >= MAX_FILES or len(self.data) + len(record) > MAX_DATA:
            return False
        self.data += record
        self._digest.update(record)
        self.files += 1
        return True


def _record(status: os.stat_result, path: bytes) -> bytes:
    """What is told of a file or a directory."""
    facts = (status.st_ctime_ns, status.st_size, status.st_ino, path)
    return b"%d\x1f%d\x1f%d\x1f%b\0" % facts


def _patterns(names: list[str]) -> list[Pattern]:
    """Names with stars, to be matched."""
    if not names:
        return []
    from .pattern import Pattern

    return [Pattern(name) for name in names]


def _pass_over(error: OSError) -> None:
    """Leave out what can't be read or is gone by now.

    Raises:
        OSError: the fault is the agent's.
    """
    if error.errno in _OWN_LACK:
        raise error


def sweep(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """The worktree's files of some names, sorted by the bytes of their paths.

    Each is a record `ctime_ns \\x1f size \\x1f inode \\x1f path \\0`; there are none where the
    host says the mark of what it knows, and that is still so. The time is the kernel's own: a
    program may put the other one back, or ahead of all clocks. A directory of packages is one
    among them, its path with a slash at the end.
    """
    now = time.time_ns()
    found = _Sweep(arguments["suffixes"], arguments["names"])
    try:
        with workspace.failures("."):
            yield from found.run(workspace.directory)
    finally:
        found.close()
    reply = {
        "mark": found.mark,
        "files": found.files,
        "truncated": found.is_truncated,
        "now": now,
    }
    return reply, b"" if found.mark == arguments["known"] else bytes(found.data)


OPERATIONS: dict[str, Operation] = {"sweep": sweep}
