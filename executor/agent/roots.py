"""Absolute paths of the box: beneath which directory an operation resolves them.

A path without a leading slash is the worktree's and is resolved beneath it. An absolute one
is resolved beneath the deepest of the directories that the host names here (spilled results,
the plan file's, those that were added to the loop), each like a worktree of its own: no link
leads out of it. Operations that only look may be given the whole box (`reach` is `box`): then
links lead anywhere but into what shows processes, devices, the kernel or the executor itself.
The host says which of it a toolset has; what it says is held to here.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from .operation import RUNTIME, Failure
from .workspace import DIRECTORY, Workspace, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

HIDDEN = ("/proc", "/sys", "/dev", RUNTIME)
"""What no operation enters: processes, the kernel, devices, and the executor's own files."""
READS = frozenset({"read", "read_image", "read_pages", "read_notebook", "stat", "glob", "grep"})
"""Operations that may be given the whole box."""
LOOKS = READS | {"list"}
CHANGES = frozenset({"write", "edit", "edit_notebook", "delete", "move"})
_NAMES = ("path", "from", "to")


class BoxView(Workspace):
    """All of the box but what is hidden, for operations that change nothing.

    Every path is walked, one part at a time, since the kernel knows no way to say what may
    not be entered: a directory is hidden by what it is, whatever way leads there.

    Args:
        worktree: paths without a leading slash begin here.
        hidden: directories that are not entered; those that are not there don't matter.
        root: all of the box.
    """

    def __init__(
        self, worktree: Workspace, hidden: Iterable[str] = HIDDEN, root: str = "/"
    ) -> None:
        super().__init__(root, root)
        self.beneath = False
        self.names_from(worktree)
        self._worktree = os.fsencode(worktree.root)
        paths = [path for path in hidden if path.startswith("/")]
        self._hidden = {(s.st_dev, s.st_ino) for s in map(_status, paths) if s is not None}
        below = self.root.rstrip("/")
        self.unsearched = [
            f"--glob=!{path.removeprefix(below)}" for path in paths if path.startswith(below + "/")
        ]

    def _open(self, path: str, flags: int) -> int:
        return super()._open(self._absolute(path), flags)

    def plain(self, path: str) -> str:
        """See `Workspace.plain`; of paths of the worktree, too."""
        return super().plain(self._absolute(path))

    def _absolute(self, path: str) -> str:
        # What searches have made of a path begins at the root, and no operation is given the
        # box for any other path without a slash.
        return path if path.startswith("/") else f"{self._root}{path}"

    def enter(self, fd: int) -> None:
        """See `Workspace.enter`."""
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) in self._hidden:
            raise OSError(errno.EXDEV, "leads to what is hidden")


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


class _Root:
    """A directory that absolute paths are resolved beneath.

    Attributes:
        path: absolute.
        is_writable: operations may change what is in it.
        only_with_box: it is a root only for toolsets that reach all of the box.
    """

    __slots__ = ("_open", "is_made", "is_writable", "only_with_box", "path")

    def __init__(self, given: dict[str, Any]) -> None:
        self.path: str = given["path"].rstrip("/")
        self.is_writable: bool = given.get("write", False)
        self.only_with_box: bool = given.get("box", False)
        self.is_made: bool = given.get("make", False)
        self._open: Workspace | None = None

    def holds(self, path: str) -> bool:
        return path == self.path or path.startswith(self.path + "/")

    def workspace(self, worktree: Workspace) -> Workspace:
        """The directory, opened once for as long as it stays the same.

        Raises:
            OSError: it is not there, or something else is in its place.
        """
        if self.is_made:
            with suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
        fd = os.open(self.path, DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if self._open is None or not os.path.sameopenfile(fd, self._open.directory):
                if self._open is not None:
                    self._open.close()
                self._open = Workspace(self.path, self.path)
                self._open.beneath = self._open.beneath and worktree.beneath
        finally:
            os.close(fd)
        return self._open


class Roots:
    """The directories of a box in which operations find paths.

    Args:
        worktree: for paths without a leading slash.
        given: `path`, and where they hold: `write`, it may be changed; `box`, it is a root
            only where the call reaches all of the box; `make`, it is made when it is missing.
        hidden: what is hidden besides `HIDDEN`.
        box: all of the box.
    """

    def __init__(
        self,
        worktree: Workspace,
        given: Iterable[dict[str, Any]] = (),
        hidden: Iterable[str] = (),
        box: str = "/",
    ) -> None:
        self._worktree = worktree
        self._roots = sorted(map(_Root, given), key=lambda root: -len(root.path))
        self._hidden = (*HIDDEN, *hidden)
        self._box = box
        self._view: BoxView | None = None

    def place(self, op: str, arguments: dict[str, Any]) -> Workspace:
        """Beneath what an operation resolves its paths.

        Args:
            op: its name.
            arguments: of it; a path may be replaced by another spelling.

        Raises:
            Failure: the paths can't be had together, or may not be changed.
        """
        reaches = arguments.get("reach") == "box"
        if op == "resolve" and (reaches or any(map(_is_absolute, arguments["paths"]))):
            self._worktree.box = self._all()
        paths = self._paths(op, arguments)
        if not reaches and not any(map(_is_absolute, paths)):
            return self._worktree
        if reaches and op in READS:
            return self._to_look(arguments, paths)
        found = {self._root_of(path, op, reaches): path for path in paths}
        if len(found) > 1:
            raise Failure(
                "UNSUPPORTED",
                f"{' and '.join(map(shown, found.values()))} are on different file systems. "
                "Use run_command with mv.",
            )
        for root, path in found.items():
            if root is not None:
                return self._opened(root, path)
        return self._worktree

    def _paths(self, op: str, arguments: dict[str, Any]) -> list[str]:
        if op not in LOOKS and op not in CHANGES:
            return []
        paths = [arguments[name] for name in _NAMES if arguments.get(name)]
        pattern = arguments.get("pattern", "") if op == "glob" else ""
        return [pattern] if pattern.startswith("/") else paths

    def _to_look(self, arguments: dict[str, Any], paths: list[str]) -> Workspace:
        """The worktree for what is in there, all of the box for what is not."""
        if all(map(self._is_inside, paths)):
            return self._worktree
        path = arguments.get("path")
        if path is not None and not path.startswith("/"):
            arguments["path"] = f"{self._worktree.root.rstrip('/')}/{path}"
        return self._shared(self._all())

    def _all(self) -> BoxView:
        if self._view is None:
            self._view = BoxView(self._worktree, self._hidden, self._box)
        return self._view

    def _is_inside(self, path: str) -> bool:
        """Is it in the worktree, for all that can be seen? A link may lead out of it."""
        try:
            os.close(self._worktree.open(path, os.O_PATH))
        except OSError as error:
            return error.errno != errno.EXDEV
        except ValueError:
            return True  # no path at all, which the operation says
        return True

    def _root_of(self, path: str, op: str, reaches: bool) -> _Root | None:
        """The deepest root that holds the path; None = the worktree, or nothing."""
        if not path.startswith("/") or (path + "/").startswith(self._worktree.root + "/"):
            return None
        for root in self._roots:
            if not root.holds(path) or (root.only_with_box and not reaches):
                continue
            if op in CHANGES and not root.is_writable:
                raise Failure(
                    "PERMISSION_DENIED",
                    f"{shown(path)} can't be changed: {root.path} is only for reading.",
                )
            return root
        return None

    def _opened(self, root: _Root, path: str) -> Workspace:
        try:
            found = root.workspace(self._worktree)
        except OSError as error:
            raise Failure(
                "FILE_NOT_FOUND", f"{shown(path)} does not exist: there is no {root.path}."
            ) from error
        found.names_from(self._worktree)
        return self._shared(found)

    def _shared(self, found: Workspace) -> Workspace:
        found.restrictions = self._worktree.restrictions
        found.ripgrep = self._worktree.ripgrep
        found.pdf = self._worktree.pdf
        found.markup = self._worktree.markup
        return found


def _is_absolute(path: str) -> bool:
    return path.startswith("/")
