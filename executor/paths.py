"""Paths as a model writes them → paths as tools name them. Pure: nothing is looked up.

A path below the worktree has no leading slash, and the root is ``""``. Everywhere else in the
box it is absolute. What a path leads to, through links, is the agent's business, which holds
every operation to the same places (`executor.agent.roots`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from executor.errors import Code, ToolError
from executor.model import MOUNT, RESULTS
from executor.sandbox.container import HOME, RUNTIME

HIDDEN = ("/proc", "/sys", "/dev", RUNTIME)
"""What no toolset reads: processes, the kernel, devices, the executor's own files."""
SCRATCH = ("/tmp", HOME)
"""What toolsets that reach all of the box may write, besides the worktree."""


_PLAIN = re.compile(r"(?!\.{1,2}(?:/|$))[^/\0]+(?:/(?!\.{1,2}(?:/|$))[^/\0]+)*")
"""A path that says the same when it is written out, as most do."""


@dataclass(frozen=True, slots=True)
class Added:
    """A directory beside the worktree.

    Attributes:
        path: where it is in the box.
        names: what it is called on the host.
        is_writable: tools may change what is in it.
    """

    path: str
    names: tuple[str, ...] = ()
    is_writable: bool = False


@dataclass(frozen=True, slots=True)
class Reach:
    """Which paths of a box a loop's tools take.

    Attributes:
        roots: what the worktree is called on the host; a host's prompt may use it.
        added: directories beside the worktree.
        plan_file: the one file of its directory that is the loop's; None = it has none.
        is_box: its toolset reads all of the box but what is hidden, and writes `SCRATCH`.
        hidden: directories that are hidden besides `HIDDEN`.
    """

    roots: tuple[str, ...] = ()
    added: tuple[Added, ...] = ()
    plan_file: str | None = None
    is_box: bool = False
    hidden: tuple[str, ...] = ()

    def to_read(self, text: str, base: str = MOUNT) -> str:
        """The path that a model means by a text, for reading.

        Args:
            text: as the model wrote it.
            base: absolute; where a relative path begins.

        Raises:
            ToolError: INVALID_PATH, it leads where the loop's tools have nothing to do.
        """
        return self._placed(text, base, is_change=False)

    def to_write(self, text: str, base: str = MOUNT) -> str:
        """The same for changing, making or deleting what is there.

        Raises:
            ToolError: INVALID_PATH as for reading; PERMISSION_DENIED, it is only for reading.
        """
        return self._placed(text, base, is_change=True)

    def _placed(self, text: str, base: str, *, is_change: bool) -> str:
        if base == MOUNT and _PLAIN.fullmatch(text):
            return text
        path = _absolute(text, base)
        inside = _below(path, (MOUNT,))
        if inside is None and text.startswith("/"):
            inside = _below(path, self.roots)
        if inside is not None:
            return inside
        for added in self.added:
            below = _below(path, (added.path, *(added.names if text.startswith("/") else ())))
            if below is None:
                continue
            if is_change and not added.is_writable:
                raise _only_for_reading(text, added.path)
            return f"{added.path}/{below}" if below else added.path
        return self._elsewhere(text, path, is_change=is_change)

    def _elsewhere(self, text: str, path: str, *, is_change: bool) -> str:
        """A path of the box outside of the worktree and what was added."""
        if path == self.plan_file:
            return path
        if _below(path, (RESULTS,)) is not None:
            if is_change:
                raise _only_for_reading(text, RESULTS)
            return path
        if not self.is_box:
            raise self._outside(text)
        hidden = (*HIDDEN, *self.hidden)
        if _below(path, hidden) is not None:
            raise _invalid(f"The path {text!r} is in a part of the box that is not for tools")
        if is_change and _below(path, SCRATCH) is None:
            raise _invalid(
                f"The path {text!r} can't be written: files are written below {MOUNT}, "
                f"{' and '.join(SCRATCH)}"
            )
        return path

    def _outside(self, text: str) -> ToolError:
        if not text.startswith("/"):
            return _invalid(f"The path {text!r} leads out of the worktree")
        # What the host calls its directories is not for a model that does not know it yet.
        names = (*self.roots, *(name for added in self.added for name in added.names))
        shown = "" if any(name in text for name in names) else f" {text!r}"
        return _invalid(f"The path{shown} is outside the worktree")


def worktree_path(text: str, roots: Iterable[str]) -> str:
    """A path as the model wrote it → the worktree path; the root is ``""``.

    Args:
        text: as the model wrote it.
        roots: other names of the worktree's root than `/workspace`.

    Raises:
        ToolError: INVALID_PATH, it leads out of the worktree or is no path at all.
    """
    path = Reach(tuple(roots)).to_read(text)
    if path.startswith("/"):
        raise _invalid(f"The path {text!r} is outside the worktree")
    return path


def _absolute(text: str, base: str) -> str:
    if "\0" in text:
        raise _invalid("The path holds a NUL character, which no file name can")
    if text.startswith("/"):
        return posixpath.normpath("/" + text.lstrip("/"))
    return posixpath.normpath(posixpath.join(base, text))


def _below(path: str, places: Sequence[str]) -> str | None:
    """What of a path comes after the first of these that it is in; None = it is in none."""
    for place in places:
        if path == place:
            return ""
        if path.startswith(place + "/"):
            return path[len(place) + 1 :]
    return None


def _only_for_reading(text: str, place: str) -> ToolError:
    return ToolError(
        Code.PERMISSION_DENIED,
        f"The path {text!r} can't be changed: {place} is only for reading. Write into {MOUNT}.",
    )


def _invalid(reason: str) -> ToolError:
    return ToolError(
        Code.INVALID_PATH,
        f"{reason}. The root is {MOUNT}: use a path relative to it, for example src/main.py.",
    )
