"""What a loop has left in its worktree, once its boxes are gone: looked at, made harmless.

By directory descriptors: no link is followed, nothing mounted is entered, no git is run. A
file is changed if its time of change is later than the start, which nobody inside can forge;
what was deleted leaves nothing to see, and what came along with a renamed directory is as old
as it was. Somebody else may be at work in the tree meanwhile: what he does where the look has
been is not seen, and he can't lead it out of the tree.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from executor.git.aside import GIT, behead, close_up, hide, unlock
from executor.git.findings import Aftermath, Fate, Listed, Nested, Oddity
from executor.git.kinds import BY_CONFIGURATION, runner_below, runner_of
from executor.git.nested import Judge
from executor.sandbox.descent import Trail
from executor.sandbox.measure import Stopped
from executor.text import visible

__all__ = ["MAX_NAMES", "Aftermath", "look"]

MAX_NAMES = 1000
"""Names that one list of an aftermath holds; the count is of all."""
_ENDS = 10
"""Names at each end of a long path that are kept."""
_BREATH = 128
"""Entries between two looks at whether to go on."""
_CAPABILITIES = "security.capability"
_SHARED_MODE = stat.S_ISGID
"""A directory has it from the one above: it says nothing where the root has it."""


def look(
    root: int,
    since: int,
    *,
    set_aside: str | None,
    has_git: bool,
    reads: Sequence[str] = (),
    stop: threading.Event,
) -> Aftermath:
    """Looks at a worktree that no box of the loop has any more. Blocks: for a thread.

    Args:
        root: descriptor of the worktree, that it can be listed with; it stays the caller's.
        since: nanoseconds since 1970, from `measure.before_now`, before the first box.
        set_aside: ends the new names of repositories that the loop made or changed; None =
            they are only reported, and nothing in the tree is changed.
        has_git: the `.git` of the root is the host's, and was covered in the boxes.
        reads: paths in the worktree that the host's git executes or obeys by configuration.
        stop: ends the look when it is set; what was found until then is returned.

    Raises:
        OSError: the root can't be looked at.
    """
    return _Look(root, since, set_aside, has_git, _tree(reads), stop).take()


_Reads = dict[str, Any]
"""Paths as a tree: names → the same of what is below. The empty name marks a path's end."""


class _Names:
    """Names that are counted, and kept as far as there is room."""

    __slots__ = ("count", "kept")

    def __init__(self) -> None:
        self.count = 0
        self.kept: list[str] = []

    def listed(self) -> Listed:
        return Listed(self.count, tuple(self.kept))


class _Level:
    """One directory on the way, and what is left to be done in it.

    Attributes:
        below: names of directories in it that are still to be entered.
        closed: those of them that their owner may not look into.
        git: the one of them that is the git directory of a repository that the loop made or
            changed, whatever it is called by now.
        is_git: it is such a one. What is in it is looked at for other repositories only.
        is_inside: it is in such a one.
        mode: to be given back to it.
        runner: who executes or obeys all that is in it.
        reads: the part of the host's own paths that is below it.
    """

    __slots__ = (
        *("below", "closed", "git", "is_git", "is_inside", "mode", "name", "reads", "runner"),
    )

    def __init__(self, name: str, above: _Level | None, reads: _Reads | None = None) -> None:
        self.name = name
        self.below: list[str] = []
        self.closed: set[str] = set()
        self.git: str | None = None
        self.is_git = self.is_inside = False
        self.mode: int | None = None
        self.runner: str | None = None
        self.reads = reads
        if above is not None:
            self.is_git = name == above.git
            self.is_inside = above.is_inside or above.is_git
            self.runner = above.runner or runner_below(name, above.name)
            self.reads = _below(above.reads, name)


class _Look:
    def __init__(
        self,
        root: int,
        since: int,
        suffix: str | None,
        has_git: bool,
        reads: _Reads,
        stop: threading.Event,
    ) -> None:
        self._root = root
        self._since = since
        self._suffix = suffix
        self._has_git = has_git
        self._reads = reads
        self._stop = stop
        self._judge = Judge(root, since, has_git=has_git, stop=stop)
        status = os.fstat(root)
        self._owner = (status.st_uid, status.st_gid)
        self._usual_mode = status.st_mode & _SHARED_MODE
        self._is_root = os.geteuid() == 0
        self._levels: list[_Level] = []
        self._changed = _Names()
        self._executed: dict[str, _Names] = {}
        self._odd: dict[Oddity, _Names] = {}
        self._nested: dict[Fate, list[Nested]] = {fate: [] for fate in Fate}
        self._counts = dict.fromkeys(Fate, 0)

    def take(self) -> Aftermath:
        is_whole = True
        with Trail(self._root) as trail:
            try:
                self._take(trail)
            except Stopped:
                is_whole = False
            finally:
                while self._levels:
                    self._leave(trail)
        return Aftermath(
            changed=self._changed.listed(),
            executed={who: names.listed() for who, names in sorted(self._executed.items())},
            nested=tuple(nested for fate in Fate for nested in self._nested[fate]),
            nested_counts={fate: count for fate, count in self._counts.items() if count},
            odd={odd: self._odd[odd].listed() for odd in Oddity if odd in self._odd},
            is_whole=is_whole,
        )

    # ─── the way ────────────────────────────────────────────────────────────────────

    def _take(self, trail: Trail) -> None:
        top = _Level("", None, self._reads)
        mode = stat.S_IMODE(os.fstat(self._root).st_mode)
        if self._suffix is not None and not self._is_root and mode & 0o500 != 0o500:
            with suppress(OSError):
                os.fchmod(self._root, mode | 0o500)
                top.mode = mode
        self._levels.append(top)
        self._directory(trail.descriptor, top)
        while self._levels:
            level = self._levels[-1]
            if level.below:
                self._enter(trail, level, level.below.pop())
            else:
                self._leave(trail)

    def _enter(self, trail: Trail, above: _Level, name: str) -> None:
        level = _Level(name, above)
        try:
            if name in above.closed and self._suffix is not None:
                level.mode = unlock(trail.descriptor, name)
            trail.down(name)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                self._strange(Oddity.UNSEEN, name)
            return
        self._levels.append(level)
        if trail.is_outside:
            self._strange(Oddity.MOUNTED)
        else:
            self._directory(trail.descriptor, level)

    def _leave(self, trail: Trail) -> None:
        level = self._levels.pop()
        left = os.dup(trail.descriptor) if level.mode is not None else -1
        if self._levels and not trail.up():
            del self._levels[trail.depth + 1 :]  # moved away meanwhile: it is gone from here
        if level.mode is not None:
            with suppress(OSError):
                os.fchmod(left, level.mode)
            os.close(left)

    # ─── one directory ──────────────────────────────────────────────────────────────

    def _directory(self, directory: int, level: _Level) -> None:
        see = self._pass_by if level.is_git or level.is_inside else self._see
        is_stopped, since = self._stop.is_set, self._since
        try:
            with os.scandir(directory) as entries:
                for number, entry in enumerate(entries):
                    if not number % _BREATH and is_stopped():
                        raise Stopped
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if status.st_ctime_ns > since or stat.S_ISDIR(status.st_mode):
                        see(directory, level, entry.name, status)
        except OSError:
            self._strange(Oddity.UNSEEN)
        if len(self._levels) > 1 or not self._has_git:
            self._see_git(directory, level)
        elif GIT in level.below:
            level.below.remove(GIT)
        if not level.is_git:
            self._see_bare(directory, level)

    def _pass_by(self, _: int, level: _Level, name: str, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            self._go_below(level, name, status.st_mode)

    def _see(self, directory: int, level: _Level, name: str, status: os.stat_result) -> None:
        mode = status.st_mode
        is_directory = stat.S_ISDIR(mode)
        if is_directory:
            self._go_below(level, name, mode)
        if status.st_ctime_ns <= self._since or name == GIT:
            return
        self._see_strange(name, status)
        if is_directory:
            return
        self._add(self._changed, name)
        if runner := self._runner(level, name):
            self._add(self._executed.setdefault(runner, _Names()), name)
        if stat.S_ISLNK(mode):
            self._see_link(directory, name)
        elif mode & 0o111 and stat.S_ISREG(mode) and _has_capabilities(directory, name):
            self._strange(Oddity.CAPABILITIES, name)

    def _see_link(self, directory: int, name: str) -> None:
        with suppress(OSError):  # replaced meanwhile
            if _leaves(os.readlink(name, dir_fd=directory), len(self._levels) - 1):
                self._strange(Oddity.LINK, name)

    def _go_below(self, level: _Level, name: str, mode: int) -> None:
        level.below.append(name)
        if mode & 0o500 != 0o500:
            level.closed.add(name)

    def _runner(self, level: _Level, name: str) -> str | None:
        if _below(level.reads, name) is not None:
            return BY_CONFIGURATION
        return level.runner or runner_of(name, level.name)

    def _see_strange(self, name: str, status: os.stat_result) -> None:
        mode = status.st_mode
        kind = stat.S_IFMT(mode)
        wanted = 0o500 if kind == stat.S_IFDIR else 0o400
        if kind != stat.S_IFLNK and mode & wanted != wanted:
            self._strange(Oddity.UNREADABLE, name)
        if (status.st_uid, status.st_gid) != self._owner:
            self._strange(Oddity.OWNER, name)
        usual = self._usual_mode if kind == stat.S_IFDIR else 0
        if mode & ~usual & 0o7000:
            self._strange(Oddity.SPECIAL_MODE, name)
        if not name.isprintable() and (visible(name) != name or "\n" in name or "\t" in name):
            self._strange(Oddity.NAME, name)
        if kind not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK):
            self._strange(Oddity.SPECIAL, name)

    # ─── repositories ───────────────────────────────────────────────────────────────

    def _see_git(self, directory: int, level: _Level) -> None:
        """Asked for by its name, since some file systems know it by other spellings, too."""
        status = _status(directory, GIT)
        if status is None:
            return
        reason = self._change(directory, status)
        if GIT in level.below:
            level.below.remove(GIT)
        if reason is None:
            self._found(Nested(self._path(GIT), False, Fate.UNTOUCHED))
            return
        level.git = GIT
        now, fault = self._hide(directory)
        if now is not None:
            level.git = now
        if stat.S_ISDIR(status.st_mode):
            self._go_below(level, level.git, status.st_mode)
        fate = Fate.SET_ASIDE if now is not None else Fate.LEFT
        self._found(Nested(self._path(GIT), False, fate, reason, now, fault))

    def _change(self, directory: int, status: os.stat_result) -> str | None:
        """What has changed about the `.git` of a directory; None = nothing."""
        level = self._levels[-1]
        if level.is_inside or level.is_git:
            return "it is in a repository that was made or changed"
        if status.st_ctime_ns > self._since:  # without the names, which may be very many
            return "it was made or changed"
        return self._judge.change(directory, self._parts(), status)

    def _hide(self, directory: int) -> tuple[str | None, str | None]:
        """The new name of its `.git`, and what could not be done."""
        if self._suffix is None:
            return None, None
        try:
            now = hide(directory, self._suffix)
        except OSError as error:
            return None, _reason(error)
        try:
            close_up(directory, now, self._suffix)
        except OSError as error:
            return now, f"it is not ignored by git: {_reason(error)}"
        return now, None

    def _see_bare(self, directory: int, level: _Level) -> None:
        """What git takes for a repository by what is in it, when it is run there."""
        status = _bare(directory)
        if status is None:
            return
        path = self._path()
        reason: str | None = "its HEAD was made or changed"
        if status.st_ctime_ns <= self._since:
            reason = self._judge.change_of_bare(directory, self._parts())
        if reason is None:
            self._found(Nested(path, True, Fate.UNTOUCHED))
            return
        now = fault = None
        if self._suffix is not None:
            try:
                now = behead(directory, self._suffix)
            except OSError as error:
                fault = _reason(error)
        fate = Fate.SET_ASIDE if now is not None else Fate.LEFT
        self._found(Nested(path, True, fate, reason, now, fault))

    def _found(self, nested: Nested) -> None:
        self._counts[nested.fate] += 1
        if len(self._nested[nested.fate]) < MAX_NAMES:
            self._nested[nested.fate].append(nested)

    # ─── names ──────────────────────────────────────────────────────────────────────

    def _strange(self, oddity: Oddity, name: str | None = None) -> None:
        self._add(self._odd.setdefault(oddity, _Names()), name)

    def _add(self, names: _Names, name: str | None) -> None:
        names.count += 1
        if len(names.kept) < MAX_NAMES:
            names.kept.append(self._path(name))

    def _parts(self) -> tuple[str, ...]:
        return tuple(level.name for level in self._levels[1:])

    def _path(self, name: str | None = None) -> str:
        """From the root to an entry of this directory, or to itself."""
        if len(self._levels) > 2 * _ENDS + 1:
            first, last = self._levels[1 : _ENDS + 1], self._levels[-_ENDS:]
            parts = [*(level.name for level in first), "…", *(level.name for level in last)]
        else:
            parts = [level.name for level in self._levels[1:]]
        if name is not None:
            parts.append(name)
        return "/".join(parts) or "."


def _tree(paths: Sequence[str]) -> _Reads:
    tree: _Reads = {}
    for path in paths:
        here = tree
        for name in path.split("/"):
            if name not in ("", "."):
                here = here.setdefault(name, {})
        here[""] = {}
    return tree


def _below(reads: _Reads | None, name: str) -> _Reads | None:
    """What of the paths is below a name; None = it is neither on one nor below one."""
    if reads is None or "" in reads:
        return reads
    return reads.get(name)


def _leaves(target: str, depth: int) -> bool:
    """Whether a link leads out, by its text: what other links do is not looked at."""
    if target.startswith("/"):
        return True
    for name in target.split("/"):
        if name == "..":
            depth -= 1
        elif name not in ("", "."):
            depth += 1
        if depth < 0:
            return True
    return False


def _has_capabilities(directory: int, name: str) -> bool:
    try:
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return False
    try:
        os.getxattr(f"/proc/self/fd/{file}", _CAPABILITIES)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _bare(directory: int) -> os.stat_result | None:
    """Status of the `HEAD` of a directory that git takes for a repository; None = it doesn't."""
    status = _status(directory, "HEAD")
    if status is None or _status(directory, "commondir") is not None:
        return status
    is_whole = all(_status(directory, name) is not None for name in ("objects", "refs"))
    return status if is_whole else None


def _status(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return None


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
