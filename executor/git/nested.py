"""Whether a repository inside a worktree is as it was at a given time. Nothing is changed.

Every change of an inode, its content, its mode, its name, sets its time of change, which no
program can set otherwise. So a repository is untouched if nothing in it, but objects, has
changed since, and nothing that it names in the worktree: what its links lead to, what its
configuration includes or has executed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from collections import deque

from executor.git.aside import GIT
from executor.sandbox.descent import DIRECTORY, Trail
from executor.sandbox.measure import Stopped

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MOST_LINKS = 40
_MOST_TEXT = 1 << 20
_MOST_DEPTH = 8
_POINTER = re.compile(rb"gitdir:\s*([^\r\n\0]+)")
_SETTING = re.compile(
    r"^\s*(?:\[[^\]]*\]\s*)?([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*?)\s*$", re.MULTILINE
)
_WORD = re.compile(r"[^\s\"'`;|&()<>=,]+")
_NO_PROGRAMS = ("url", "pushurl", "fetch", "push", "merge", "remote", "worktree", "name", "email")
"""Settings whose values are no programs and no files that git obeys."""
_PATHS = ("hookspath", "path", "fsmonitor", "attributesfile", "excludesfile", "command")
"""Settings whose values are paths, or commands, even without a slash."""


class Judge:
    """Judges repositories in one worktree.

    Args:
        root: descriptor of the worktree.
        since: nanoseconds since 1970; what changed later is not trusted.
        has_git: the root's own `.git` is the host's, and not judged.
        stop: ends the look when it is set.
    """

    def __init__(self, root: int, since: int, *, has_git: bool, stop: threading.Event) -> None:
        self._root = root
        self._since = since
        self._has_git = has_git
        self._stop = stop
        self._path = tuple(os.readlink(f"/proc/self/fd/{root}").strip("/").split("/"))

    def change(self, parent: int, parts: tuple[str, ...], status: os.stat_result) -> str | None:
        """What has changed about a `.git`; None = nothing has.

        Args:
            parent: descriptor of the directory that it is in.
            parts: names from the root to that directory.
            status: its own.

        Raises:
            Stopped: the look was called off.
        """
        if status.st_ctime_ns > self._since:
            return "it was made or changed"
        try:
            if stat.S_ISDIR(status.st_mode):
                directory = os.open(GIT, DIRECTORY, dir_fd=parent)
                try:
                    return self._in_repository(directory, (*parts, GIT), _MOST_DEPTH)
                finally:
                    os.close(directory)
            if stat.S_ISLNK(status.st_mode):
                return self._at(parts, os.readlink(GIT, dir_fd=parent), _MOST_DEPTH)
            if stat.S_ISREG(status.st_mode):
                return self._pointer(_read(parent, GIT), parts)
        except OSError as error:
            return f"it can't be looked at: {error.strerror}"
        return None

    def change_of_bare(self, directory: int, parts: tuple[str, ...]) -> str | None:
        """The same for a directory that holds a repository by itself.

        Raises:
            Stopped: the look was called off.
        """
        try:
            return self._in_repository(directory, parts, _MOST_DEPTH)
        except OSError as error:
            return f"it can't be looked at: {error.strerror}"

    def _pointer(self, content: bytes, parts: tuple[str, ...]) -> str | None:
        match = _POINTER.match(content)
        return self._at(parts, os.fsdecode(match[1].rstrip()), _MOST_DEPTH) if match else None

    # ─── a git directory ────────────────────────────────────────────────────────────

    def _in_repository(self, directory: int, parts: tuple[str, ...], depth: int) -> str | None:
        """Looks at all in it but its objects."""
        with Trail(directory) as trail:
            waiting = [os.listdir(directory)]
            while waiting:
                if self._stop.is_set():
                    raise Stopped
                if not waiting[-1]:
                    waiting.pop()
                    if waiting and not trail.up():
                        return "it is being changed"
                    continue
                name = waiting[-1].pop()
                if trail.depth == 0 and name == "objects":
                    continue
                place = (*parts, *trail.parts)
                status = os.stat(name, dir_fd=trail.descriptor, follow_symlinks=False)
                if found := self._entry(trail.descriptor, place, name, status, depth):
                    return found
                if stat.S_ISDIR(status.st_mode):
                    trail.down(name)
                    if trail.is_outside:
                        return f"something is mounted at its {name}"
                    waiting.append(os.listdir(trail.descriptor))
        return None

    def _entry(
        self, parent: int, place: tuple[str, ...], name: str, status: os.stat_result, depth: int
    ) -> str | None:
        if status.st_ctime_ns > self._since:
            return f"its {name} was made or changed"
        if stat.S_ISLNK(status.st_mode):
            return self._at(place, os.readlink(name, dir_fd=parent), depth)
        if not stat.S_ISREG(status.st_mode):
            return None
        if name == "commondir":
            return self._at(place, os.fsdecode(_read(parent, name)).rstrip("\n"), depth)
        if name in ("config", "config.worktree"):
            return self._configuration(_read(parent, name), place, depth)
        return None

    def _configuration(self, content: bytes, place: tuple[str, ...], depth: int) -> str | None:
        """Whether a configuration that nobody changed names what somebody did.

        Paths in it go from it, from the git directory or from its worktree, by the setting:
        all are tried. It is the user's, so it is read without care for what git would say.
        """
        text = os.fsdecode(content)
        for match in _SETTING.finditer(text):
            key, value = match[1].lower(), match[2]
            if key in _NO_PROGRAMS:
                continue
            words = {value.strip('"'), *_WORD.findall(value)}
            for word in words:
                if "/" not in word and key not in _PATHS:
                    continue
                for base in {place, place[:-1]}:
                    if word and (found := self._at(base, word, depth)):
                        return found
        return None

    # ─── what is named ──────────────────────────────────────────────────────────────

    def _at(self, base: tuple[str, ...], target: str, depth: int) -> str | None:
        """What has changed about what a path leads to; None = nothing, or it is outside.

        Args:
            base: names from the root to the directory that it goes from.
            target: the path.
            depth: how many more files may lead to others.
        """
        if depth <= 0:
            return "it leads from file to file without an end"
        led = self._lead(base, target)
        if led is None or isinstance(led, str):
            return led
        parts, status = led
        if not parts or (self._has_git and parts[0] == GIT):
            return None
        shown = "/".join(parts[-2:])
        with Trail(self._root) as trail:
            for name in parts[:-1]:
                trail.down(name)
            if stat.S_ISDIR(status.st_mode):
                trail.down(parts[-1])
                return self._directory(trail.descriptor, parts, depth - 1)
            if stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_TEXT:
                content = _read(trail.descriptor, parts[-1])
                if b"[" in content and b"=" in content:
                    return self._configuration(content, parts[:-1], depth - 1)
        return None if stat.S_ISREG(status.st_mode) else f"{shown} is no file"

    def _directory(self, directory: int, parts: tuple[str, ...], depth: int) -> str | None:
        """A git directory as one; of another, as of hooks, what is directly in it."""
        names = os.listdir(directory)
        if "HEAD" in names:
            return self._in_repository(directory, parts, depth)
        for name in names:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if status.st_ctime_ns > self._since:
                return f"{parts[-1]}/{name}, that it names, was made or changed"
            if stat.S_ISLNK(status.st_mode) and (
                found := self._at(parts, os.readlink(name, dir_fd=directory), depth)
            ):
                return found
        return None

    def _lead(
        self, base: tuple[str, ...], target: str
    ) -> tuple[tuple[str, ...], os.stat_result] | str | None:
        """Follows a path as the kernel would, one name at a time.

        Returns:
            Where it leads in the worktree; what has changed on the way there; None = it leads
            nowhere, or out.
        """
        links = 0
        here = list(self._path + base)
        waiting = deque(target.split("/"))
        if target.startswith("/"):
            here.clear()
        status = None
        while waiting:
            name = waiting.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                here = here[:-1]
                continue
            here.append(name)
            if not self._is_inside(here):
                continue
            status = self._status(tuple(here[len(self._path) :]))
            if status is None:
                return None
            if status.st_ctime_ns > self._since and not self._is_above(here, base):
                return f"{name}, that it names, was made or changed"
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    return None
                here.pop()
                waiting.extendleft(reversed(self._link(here, name).split("/")))
        if not self._is_inside(here):
            return None
        parts = tuple(here[len(self._path) :])
        status = self._status(parts)
        return (parts, status) if status is not None else None

    def _is_inside(self, here: list[str]) -> bool:
        size = len(self._path)
        return len(here) > size and tuple(here[:size]) == self._path

    def _is_above(self, here: list[str], base: tuple[str, ...]) -> bool:
        """Directories above the repository change whenever something is made in them."""
        parts = tuple(here[len(self._path) :])
        return base[: len(parts)] == parts

    def _status(self, parts: tuple[str, ...]) -> os.stat_result | None:
        try:
            with Trail(self._root) as trail:
                for name in parts[:-1]:
                    trail.down(name)
                if not parts:
                    return os.fstat(trail.descriptor)
                return os.stat(parts[-1], dir_fd=trail.descriptor, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _link(self, here: list[str], name: str) -> str:
        with Trail(self._root) as trail:
            for part in here[len(self._path) :]:
                trail.down(part)
            target = os.readlink(name, dir_fd=trail.descriptor)
        if target.startswith("/"):
            here.clear()
        return target


def _read(parent: int, name: str) -> bytes:
    file = os.open(name, _FILE, dir_fd=parent)
    try:
        content = os.read(file, _MOST_TEXT + 1)
        if len(content) > _MOST_TEXT:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), name)
        return content
    finally:
        os.close(file)
