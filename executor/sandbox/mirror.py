"""One tree made like another, by directory descriptors; no link is followed on either side.

Used twice for a worktree with a file system of its own: to fill that, and to bring back
what the loop has changed. Three things are told apart by the time of an inode's last
change, which nobody can set: what the source has changed since it was filled, what
somebody has changed in the target meanwhile, and the rest, which is not touched.

A file is written beside the old one and takes its name when it is whole. What both sides
have changed is left as it is in the target and reported.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from executor.sandbox.content import PLAIN, copy, copy_attributes, marks, opened, same_content
from executor.sandbox.descent import Mounted, Trail, at
from executor.sandbox.measure import Stopped

EVERYTHING = -1
"""As `changed_since`: all of the source counts as changed."""
UNFINISHED = ".executor-"
"""How the name of an entry begins until it is whole, when bringing back."""
MERGING = "merging"
"""A file beside a copy that is being brought back; it names the worktree."""
MAX_TOLD = 20
"""Entries of a kind that a report names; all are counted."""
MAX_DEPTH = 128
"""Levels down to a name that others are linked to: the way is gone again for each."""
_LINK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Report:
    """What was done.

    Attributes:
        written, removed: entries.
        left_out: sockets, pipes, devices, and what is mounted in the tree.
        kept: entries that both sides changed; the target has its own still.
        failed: entries that could not be made or removed, with the reason.
        count: how many `kept` and `failed` there were, beyond what is named.
        paths: of the entries in `kept`, from the root.
    """

    written: int = 0
    removed: int = 0
    left_out: int = 0
    kept: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    count: int = 0
    paths: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """The target has all that the source has."""
        return not self.count


class Moved(Exception):
    """A directory was moved away while it was being looked through."""


class Origin(NamedTuple):
    """The directory outside that one inside was filled from.

    Attributes:
        inode: its own.
        above: the inode of the directory that it was in.
        name: that it had there.
    """

    inode: int
    above: int
    name: str


class _Name(NamedTuple):
    """Where a file of several names was met first in the target.

    Attributes:
        parts: names of the directories that lead there.
        name: its own.
        inode: what it was then.
    """

    parts: tuple[str, ...]
    name: str
    inode: int


@dataclass
class _Level:
    """A directory that is being made alike.

    Attributes:
        names: directories in it whose content waits.
        made: those of them that were made for this.
        is_new: the target's was made for this.
        is_same: the two belonged together when the source was filled. In other ones even
            what has not changed may be at its place for the first time.
        is_theirs: the target's is somebody else's, with all that is in it.
    """

    source: os.stat_result
    target: os.stat_result
    is_new: bool
    is_same: bool
    is_theirs: bool
    names: list[str] = field(default_factory=list)
    made: set[str] = field(default_factory=set)


class Mirror:
    """Makes the target like the source, once.

    Args:
        source, target: descriptors of the two directories; they stay the caller's.
        changed_since: nanoseconds since 1970; only what changed in the source later is
            brought, or `EVERYTHING` into an empty target.
        foreign_since: what changed in the target later is somebody else's.
        hidden: names in the root that are not looked at on either side.
        stop: ends the work when it is set.
        directories: inode inside → the directory outside. A filling adds to it what bringing
            back needs, to see which directories were moved, and by whom.
        entries: (inode outside of a directory, name) of all that was filled in, likewise. With
            it, what somebody made in the target meanwhile is left there without a word.
    """

    def __init__(
        self,
        source: int,
        target: int,
        stop: threading.Event,
        *,
        changed_since: int = EVERYTHING,
        foreign_since: int = 0,
        hidden: frozenset[str] = frozenset(),
        directories: dict[int, Origin],
        entries: set[tuple[int, str]] | None = None,
    ) -> None:
        self._source = Trail(source)
        self._target = Trail(target)
        self._target_root = target
        self._stop = stop
        self._changed_since = changed_since
        self._foreign_since = foreign_since
        self._is_filling = changed_since == EVERYTHING
        self._hidden = hidden
        self._directories = directories
        self._entries = entries
        self._places = (
            {} if self._is_filling else {one.inode: one[1:] for one in directories.values()}
        )
        self._hidden_inodes = _inodes(source if self._is_filling else target, hidden)
        self._is_theirs = False
        self._first: dict[int, _Name] = {}
        self._touched: set[int] = set()
        self._parts: tuple[str, ...] = ()
        self._outer: tuple[str, ...] = ()
        self._temporary = f"{UNFINISHED}{secrets.token_hex(6)}-"
        self._number = 0
        self.looked = 0
        self.report = Report()

    def run(self) -> Report:
        """Do it.

        Raises:
            Stopped: it was called off.
            Moved: a directory went away under it.
            OSError: a filling failed; when bringing back, failures are in the report.
        """
        with self._source as source, self._target as target:
            roots = os.fstat(source.descriptor), os.fstat(target.descriptor)
            root = _Level(*roots, is_new=self._is_filling, is_same=True, is_theirs=False)
            waiting = [self._enter(root)]
            while waiting:
                if waiting[-1].names:
                    if (level := self._descend(waiting[-1])) is not None:
                        waiting.append(self._enter(level))
                    continue
                self._leave(waiting.pop())
                if waiting:
                    self._up(source, target)
        return self.report

    def _up(self, *trails: Trail) -> None:
        for trail in trails:
            if not trail.up():
                raise Moved("a directory was moved away while the worktree was copied")

    # ── directories ──

    def _descend(self, above: _Level) -> _Level | None:
        """Goes into a directory on both sides; None if there is nothing to be done in it."""
        name = above.names.pop()
        is_new = above.is_new or name in above.made
        places = above.source.st_ino, above.target.st_ino
        try:
            source = self._source.down(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            target = self._target.down(name)
        except OSError as error:
            self._up(self._source)
            self._fail(name, error)
            return None
        if name in above.made:
            if not self._is_own(target):
                self._up(self._source, self._target)
                self._fail(name, FileExistsError(errno.EEXIST, "it was changed there meanwhile"))
                return None
            os.fchown(self._target.descriptor, source.st_uid, source.st_gid)
        if self._source.is_outside or self._target.is_outside:
            self.report.left_out += 1
            self._up(self._source, self._target)
            return None
        if self._is_filling:
            self._directories[target.st_ino] = Origin(source.st_ino, places[0], name)
        elif is_new:
            # As the last one of this inode, which may have been another directory's before.
            self._directories.pop(source.st_ino, None)
            self._directories[source.st_ino] = Origin(target.st_ino, places[1], name)
        origin = self._directories.get(source.st_ino)
        # One that was made for this may have the inode of one that was removed for this.
        is_same = not is_new and origin is not None and origin.inode == target.st_ino
        place = self._places.get(target.st_ino)
        if not is_new and place not in (None, (places[1], name)):
            self._up(self._source, self._target)
            self._keep(name, "another directory was moved there meanwhile")
            return None
        is_theirs = not is_new and (above.is_theirs or place is None)
        return _Level(source, target, is_new, is_same, is_theirs)

    def _is_own(self, target: os.stat_result) -> bool:
        """Whether it can be the directory that was made here: only such a one is given away."""
        if target.st_uid != os.geteuid():
            return False
        with os.scandir(self._target.descriptor) as entries:
            return next(entries, None) is None

    def _hides(self, name: str) -> bool:
        return not self._source.depth and name in self._hidden

    def _is_hidden(self, outside: os.stat_result) -> bool:
        """Whether it is a hidden entry by another name: not all file systems know case."""
        return not self._source.depth and outside.st_ino in self._hidden_inodes

    def _enter(self, level: _Level) -> _Level:
        """Makes everything in a directory alike but the content of its directories."""
        self._is_theirs = level.is_theirs
        self._parts = ()
        with os.scandir(self._source.descriptor) as entries:
            for entry in entries:
                if self._stop.is_set():
                    raise Stopped
                self.looked += 1
                if self._hides(entry.name):
                    continue
                with self._failures(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    if self._is_filling and self._is_hidden(status):
                        continue
                    if self._is_filling and self._entries is not None:
                        self._entries.add((level.source.st_ino, entry.name))
                    is_old = level.is_same and status.st_ctime_ns <= self._changed_since
                    if is_old and status.st_nlink == 1 and not stat.S_ISDIR(status.st_mode):
                        continue
                    there = None if level.is_new else self._there(entry.name)
                    if there is not None and self._is_hidden(there):
                        raise PermissionError(errno.EPERM, "it is another name of what is hidden")
                    if stat.S_ISDIR(status.st_mode):
                        self._directory(level, entry.name, status, there, is_old)
                    else:
                        self._other(entry.name, status, there, is_old)
        return level

    def _leave(self, level: _Level) -> None:
        """What comes last: what is to go, and the directory's own mode and times."""
        self._is_theirs = level.is_theirs
        if not level.is_new:
            self._remove_gone()
        changed = level.source.st_ctime_ns > self._changed_since and not level.is_theirs
        if not (level.is_new or (changed and not self._is_foreign(level.target))):
            return
        source, target = self._source.descriptor, self._target.descriptor
        with self._failures("."):
            copy_attributes(source, target)
            if level.is_new:
                os.fchown(target, level.source.st_uid, level.source.st_gid)
            mode = stat.S_IMODE(level.source.st_mode)
            if not self._is_filling:
                # A directory keeps its own set-group-id; it gets none from a box.
                mode = (mode & PLAIN) | (mode & stat.S_IMODE(level.target.st_mode) & ~PLAIN)
            os.fchmod(target, mode)
            os.utime(target, ns=(level.source.st_atime_ns, level.source.st_mtime_ns))

    def _directory(
        self,
        level: _Level,
        name: str,
        status: os.stat_result,
        there: os.stat_result | None,
        is_old: bool,
    ) -> None:
        if there is not None and stat.S_ISDIR(there.st_mode):
            level.names.append(name)
            return
        if there is not None:
            if self._is_foreign(there):
                self._keep(name, "changed there meanwhile")
                return
            self._unlink(name, there)
        elif is_old:
            self._keep(name, "removed there meanwhile")
            return
        os.mkdir(name, 0o700, dir_fd=self._target.descriptor)
        self.report.written += 1
        level.names.append(name)
        level.made.add(name)

    # ── files and links ──

    def _other(
        self, name: str, status: os.stat_result, there: os.stat_result | None, is_old: bool
    ) -> None:
        kind = stat.S_IFMT(status.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFLNK):
            self.report.left_out += 1
            return
        if status.st_nlink > 1 and self._target.depth > MAX_DEPTH:
            raise OSError(errno.ELOOP, "a file of several names lies too deep")
        if is_old:
            if there is not None:
                self._remember(name, status)
            return
        same_kind = there is not None and stat.S_IFMT(there.st_mode) == kind
        if there is not None and same_kind and self._is_alike(name, status, there):
            self._remember(name, status)
            return
        if there is not None and self._is_foreign(there):
            self._keep(name, "changed on both sides")
            return
        if there is not None and stat.S_ISDIR(there.st_mode):
            if not self._remove(name, there):
                return
            there = None
        if not self._link(name, status, there):
            make = self._write if kind == stat.S_IFREG else self._point
            self._put(name, there, make(name, status, self._name_for(name)))
        self._remember(name, status)
        self.report.written += 1

    def _is_alike(self, name: str, status: os.stat_result, there: os.stat_result) -> bool:
        """Whether the target has the same already; its mode and times are made so."""
        first = self._first.get(status.st_ino)
        if status.st_nlink > 1 and first is not None and first.inode != there.st_ino:
            return False
        source, target = self._source.descriptor, self._target.descriptor
        if stat.S_ISLNK(status.st_mode):
            return os.readlink(name, dir_fd=source) == os.readlink(name, dir_fd=target)
        if status.st_size != there.st_size:
            return False
        if there.st_nlink > 1 and marks(status) != marks(there):
            return False  # other names would get its mode and times, too
        with opened(name, source) as mine, opened(name, target) as other:
            now = os.fstat(other)
            if (now.st_dev, now.st_ino, now.st_nlink) != (
                there.st_dev,
                there.st_ino,
                there.st_nlink,
            ):
                # What is there now may be a name of a file that lies elsewhere, too.
                raise FileExistsError(errno.EEXIST, "it was changed there meanwhile")
            if not same_content(mine, other):
                return False
            self._sync(mine, other, status, there)
        return True

    def _sync(self, mine: int, other: int, status: os.stat_result, there: os.stat_result) -> None:
        """Mode, owner and times of a file whose content is the same."""
        if self._is_foreign(there):
            return
        self._touch(there)
        if (status.st_uid, status.st_gid) != (there.st_uid, there.st_gid):
            os.fchown(other, status.st_uid, status.st_gid)
        copy_attributes(mine, other)
        if (status.st_mode ^ os.fstat(other).st_mode) & PLAIN:
            os.fchmod(other, status.st_mode & PLAIN)
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _name_for(self, name: str) -> str:
        """What a new entry is called until it is whole. Nobody looks on at a filling."""
        if self._is_filling:
            return name
        self._number += 1
        return f"{self._temporary}{self._number}"

    def _write(self, name: str, status: os.stat_result, temporary: str) -> str:
        """A new file with the content and all that goes with it; gives its name."""
        directory = self._target.descriptor
        with opened(name, self._source.descriptor) as source:
            # Its name may stand for another file by now: owner and mode go with the content.
            status = os.fstat(source)
            target = os.open(temporary, _NEW, 0o600, dir_fd=directory)
            try:
                copy(source, target, status)
                copy_attributes(source, target)
                os.fchown(target, status.st_uid, status.st_gid)
                mode = stat.S_IMODE(status.st_mode)
                os.fchmod(target, mode if self._is_filling else mode & PLAIN)
                os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            except BaseException:
                os.unlink(temporary, dir_fd=directory)
                raise
            finally:
                os.close(target)
        return temporary

    def _point(self, name: str, status: os.stat_result, temporary: str) -> str:
        """A new symbolic link; gives its name."""
        directory = self._target.descriptor
        os.symlink(os.readlink(name, dir_fd=self._source.descriptor), temporary, dir_fd=directory)
        link = os.open(temporary, _LINK, dir_fd=directory)
        try:
            # The name may stand for another inode by now: what is held is looked at and changed.
            if not stat.S_ISLNK(os.fstat(link).st_mode):
                raise FileExistsError(errno.EEXIST, "it was changed there meanwhile")
            held = f"/proc/self/fd/{link}"
            os.chown(held, status.st_uid, status.st_gid)
            os.utime(held, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(link)
        return temporary

    def _put(self, name: str, there: os.stat_result | None, temporary: str) -> None:
        """Gives a whole entry its name, in place of what was there, and of nothing else."""
        directory = self._target.descriptor
        if temporary == name:
            return
        try:
            if there is None:
                os.link(
                    temporary,
                    name,
                    src_dir_fd=directory,
                    dst_dir_fd=directory,
                    follow_symlinks=False,
                )
                return
            now = self._there(name)
            if now is None or (now.st_ino, now.st_ctime_ns) != (there.st_ino, there.st_ctime_ns):
                raise FileExistsError(errno.EEXIST, "it was changed there meanwhile")
            self._touch(there)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)

    # ── hard links ──

    def _remember(self, name: str, status: os.stat_result) -> None:
        if status.st_nlink > 1 and status.st_ino not in self._first:
            there = self._there(name)
            if there is not None:
                self._parts = self._parts or self._target.parts
                self._first[status.st_ino] = _Name(self._parts, name, there.st_ino)

    def _link(self, name: str, status: os.stat_result, there: os.stat_result | None) -> bool:
        """Makes it another name of what was made before; False if there is no such thing."""
        first = self._first.get(status.st_ino) if status.st_nlink > 1 else None
        if first is None:
            return False
        directory, temporary = self._target.descriptor, self._name_for(name)

        def link(parent: int) -> None:
            held = os.open(first.name, _LINK, dir_fd=parent)
            try:
                there = os.fstat(held)
                if there.st_ino != first.inode:
                    # Another file, maybe one that its directory hides from those who look on.
                    raise FileNotFoundError(errno.ENOENT, "it was changed there meanwhile")
                if not self._is_foreign(there):
                    self._touched.add(there.st_ino)
                os.link(f"/proc/self/fd/{held}", temporary, dst_dir_fd=directory)
            finally:
                os.close(held)

        try:
            at(self._target_root, first.parts, link)
        except OSError:
            return False  # moved, or as many names as there may be
        self._put(name, there, temporary)
        return True

    # ── removing ──

    def _remove_gone(self) -> None:
        """Removes what is in the target and no longer in the source."""
        source = self._source.descriptor
        for name in os.listdir(self._target.descriptor):
            if self._stop.is_set():
                raise Stopped
            if self._hides(name):
                continue
            with self._failures(name):
                try:
                    os.stat(name, dir_fd=source, follow_symlinks=False)
                except FileNotFoundError:
                    there = self._there(name)
                    if there is not None and not self._is_hidden(there):
                        self._remove(name, there)

    def _remove(self, name: str, there: os.stat_result) -> bool:
        """Removes an entry of the target, with all that is in it; True when it is gone.

        What is no file, link or directory never went into the source, so it stays.
        """
        if self._is_foreign(there):
            if not self._is_made_there(name):
                self._keep(name, "changed or made there meanwhile")
            return False
        if stat.S_ISDIR(there.st_mode):
            return self._remove_tree(name, there)
        if stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode):
            try:
                self._unlink(name, there)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                self.report.left_out += 1  # something is mounted over it
                return False
            return True
        return False

    def _is_made_there(self, name: str) -> bool:
        """An entry of the target was never in the source, and it is known."""
        if self._entries is None:
            return False
        return (os.fstat(self._target.descriptor).st_ino, name) not in self._entries

    def _unlink(self, name: str, there: os.stat_result) -> None:
        self._touch(there)
        os.unlink(name, dir_fd=self._target.descriptor)
        self.report.removed += 1

    def _remove_tree(self, name: str, there: os.stat_result) -> bool:
        outer = self._target
        with Trail(outer.descriptor) as inner, self._below(outer.parts):
            status = inner.down(name)
            if inner.is_outside or status.st_ino != there.st_ino:
                return False
            self._target = inner
            try:
                waiting = [self._clear()]
                while waiting:
                    if waiting[-1]:
                        with self._failures(waiting[-1][-1]):
                            inner.down(waiting[-1].pop())
                            if inner.is_outside:
                                self._up(inner)
                            else:
                                waiting.append(self._clear())
                        continue
                    waiting.pop()
                    here = inner.name
                    self._up(inner)
                    with self._failures(here):
                        os.rmdir(here, dir_fd=inner.descriptor)
                        self.report.removed += 1
            finally:
                self._target = outer
        return self._there(name) is None

    @contextmanager
    def _below(self, parts: tuple[str, ...]) -> Iterator[None]:
        """The target's way begins here: the report names entries from the root on."""
        self._outer = parts
        try:
            yield
        finally:
            self._outer = ()

    def _clear(self) -> list[str]:
        """Removes the files of a directory of the target; the directories in it."""
        below = []
        for name in os.listdir(self._target.descriptor):
            with self._failures(name):
                there = self._there(name)
                if there is None:
                    continue
                if stat.S_ISDIR(there.st_mode) and not self._is_foreign(there):
                    below.append(name)
                else:
                    self._remove(name, there)
        return below

    # ── what is whose, and what went wrong ──

    def _there(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._target.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _is_foreign(self, there: os.stat_result) -> bool:
        """Whether somebody else has changed it. Removing one of its names is a change too."""
        if there.st_ino in self._touched:
            return False
        return self._is_theirs or there.st_ctime_ns > self._foreign_since

    def _touch(self, there: os.stat_result) -> None:
        """It is about to be changed by us, and may be met again under another name."""
        if there.st_nlink > 1 and not self._is_foreign(there):
            self._touched.add(there.st_ino)

    def _keep(self, name: str, reason: str) -> None:
        if len(self.report.kept) < MAX_TOLD:
            self.report.paths.append("/".join([*self._outer, *self._target.parts, name]))
        self._tell(self.report.kept, name, reason)

    def _fail(self, name: str, error: OSError) -> None:
        if self._is_filling:
            raise error
        self._tell(self.report.failed, name, error.strerror or str(error))

    def _tell(self, listed: list[str], name: str, reason: str) -> None:
        self.report.count += 1
        if len(listed) < MAX_TOLD:
            path = "/".join([*self._outer, *self._target.parts, name])[-300:]
            listed.append(f"{path!a}: {reason}")

    @contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        """What goes wrong with one entry does not end the rest, except in a filling."""
        try:
            yield
        except Mounted as error:
            if self._is_filling:
                self.report.left_out += 1
            else:
                self._fail(name, error)
        except FileNotFoundError as error:
            if not self._is_filling:
                self._fail(name, error)
        except OSError as error:
            self._fail(name, error)


def _inodes(directory: int, names: frozenset[str]) -> frozenset[int]:
    """Of the entries that there are."""
    found = set()
    for name in names:
        with suppress(FileNotFoundError):
            found.add(os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino)
    return frozenset(found)


# ─── what was brought back by half ──────────────────────────────────────────────────


def keep(directory: Path, place: Path) -> None:
    """Move a copy that was not all brought back to where it stays.

    Raises:
        OSError: it can't be moved there.
    """
    place.parent.mkdir(mode=0o700, exist_ok=True)
    directory.rename(place)


def rescue(directory: Path, kept: Path) -> list[str]:
    """Keep what a dead controller has brought back by half.

    Args:
        directory: of that controller.
        kept: where it goes.

    Returns:
        What a person should know of each, one sentence each.

    Raises:
        OSError: it can't be moved there; the directory must not be removed.
    """
    told: list[str] = []
    for mark in sorted(directory.glob(f"copy-*/{MERGING}")):
        worktree = repr(os.fsdecode(mark.read_bytes()))
        place = kept / mark.parent.name
        keep(mark.parent, place)
        told.append(
            f"an agent's changes were being brought back to {worktree} when its controller ended: "
            f"some of them may be there, and a name that begins with {UNFINISHED} is a copy that "
            f"was not finished and can be removed; all that the agent had is kept in {place}/tree"
        )
    return told
