"""What the loop's rules deny, enforced where files are opened.

The host judges a call by what its paths lead to at that moment; another process of the box
may change that before the operation begins. So the agent looks at what it has opened: the
kernel says which file a descriptor stands for, whatever way led to it.
"""

from __future__ import annotations

import errno
import os
import stat

from .ignore import Patterns
from .operation import Failure
from .workspace import SAFE, Asked, Denied, Elsewhere, Workspace, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Literal, TypeAlias

    from .operation import Operation, Reply
    from .workspace import Place

    How: TypeAlias = Literal["read", "write"]

_SLICE = 500
_MOST = 200_000
"""Entries of a directory that is moved; a larger one is not looked through."""
_NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | SAFE


class _Layer:
    """Rules of one list, by what they speak of.

    Args:
        given: `read` and `write`, each [pattern, rule] in order; what is missing is empty.
        asks: they want somebody asked, and nobody was; otherwise they deny.
    """

    __slots__ = ("asks", "patterns", "rules")

    def __init__(self, given: dict[str, list[list[str]]], asks: bool) -> None:
        kinds = ("read", "write")
        pairs = {kind: given.get(kind) or [] for kind in kinds}
        self.asks = asks
        self.patterns = {kind: Patterns(text for text, _ in pairs[kind]) for kind in kinds}
        self.rules = {kind: [rule for _, rule in pairs[kind]] for kind in kinds}


class Restrictions:
    """Which files may not be read, and which not be written, each by a rule.

    Args:
        read, write: [pattern, rule] in order, as the host sends them.
    """

    def __init__(self, read: list[list[str]], write: list[list[str]]) -> None:
        self._layers = [_Layer({"read": read, "write": write}, asks=False)]
        self._places: list[str] | None = None

    def with_those_of(self, call: dict[str, Any]) -> Restrictions:
        """The same for one call, with what holds for it alone.

        Args:
            call: `deny` and `ask`, rules as `_Layer` takes them; `places`, where the paths of
                the call led when it was judged: it opens nothing but them and what is below.
        """
        found = Restrictions([], [])
        found._layers = [
            *self._layers,
            _Layer(call.get("deny") or {}, asks=False),
            _Layer(call.get("ask") or {}, asks=True),
        ]
        found._places = call.get("places")
        return found

    def _refusal(self, how: How, path: str, is_directory: bool) -> Denied | None:
        for layer in self._layers:
            found = layer.patterns[how].find(path, is_directory=is_directory)
            if found is not None:
                rule = layer.rules[how][found]
                return Asked(rule) if layer.asks else Denied(rule)
        return None

    def require(self, how: How, path: str, is_directory: bool) -> None:
        """Let it pass, or refuse it.

        Raises:
            Denied: a rule denies it.
            Elsewhere: the call was judged by another place.
        """
        refusal = self._refusal(how, path, is_directory)
        if refusal is not None:
            raise refusal
        if self._places is not None and not any(_holds(place, path) for place in self._places):
            raise Elsewhere

    def hides(self, path: str) -> bool:
        """May this file not be read?"""
        return self._refusal("read", path, False) is not None

    @property
    def hides_any(self) -> bool:
        """There are files that may not be read."""
        return self._places is not None or any(layer.rules["read"] for layer in self._layers)

    @property
    def asks(self) -> bool:
        """There are files that may not be read before somebody is asked."""
        return any(layer.asks and layer.rules["read"] for layer in self._layers)

    def require_opened(self, workspace: Workspace, fd: int) -> None:
        """The same for reading what was opened.

        Raises:
            Denied: a rule denies it.
        """
        self.require("read", workspace.real(fd), stat.S_ISDIR(os.fstat(fd).st_mode))

    def require_writable(self, workspace: Workspace, place: Place) -> None:
        """The same for making, changing or removing what is in a place.

        Raises:
            Denied: a rule denies it.
        """
        status = place.status()
        is_directory = status is not None and stat.S_ISDIR(status.st_mode)
        self.require("write", workspace.real(place.parent, place.name), is_directory)

    def require_readable(self, workspace: Workspace, place: Place) -> None:
        """The same for the content of what is in a place.

        Raises:
            Denied: a rule denies it.
        """
        status = place.status()
        is_directory = status is not None and stat.S_ISDIR(status.st_mode)
        self.require("read", workspace.real(place.parent, place.name), is_directory)

    def require_movable(
        self, workspace: Workspace, place: Place, target: str
    ) -> Generator[None, Any, None]:
        """The same for all that would get another name with a file or directory.

        Args:
            workspace: it is in.
            place: of it.
            target: where it would be, as rules name it.

        Raises:
            Denied: a rule denies something of it, under the old name or the new one.
            Failure: LIMIT, there is too much to look through.
        """
        self.require_readable(workspace, place)
        if not any(rules for layer in self._layers for rules in layer.rules.values()):
            return
        path = workspace.real(place.parent, place.name)
        todo = [(place.name, path, target)] if _is_directory(place) else []
        count = 0
        while todo:
            name, path, target = todo.pop()
            try:
                fd = os.open(name, _DIRECTORY, dir_fd=place.parent)
            except OSError as error:
                if error.errno in _NO_DIRECTORY:
                    continue  # gone, or a link by now: nothing of it moves along
                raise
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        count += 1
                        is_directory = entry.is_dir(follow_symlinks=False)
                        below = f"{path}/{entry.name}"
                        there = f"{target}/{entry.name}"
                        for how in ("read", "write"):
                            self.require(how, below, is_directory)
                        self.require("write", there, is_directory)
                        if is_directory:
                            todo.append((f"{name}/{entry.name}", below, there))
                        if count % _SLICE == 0:
                            yield None
            finally:
                os.close(fd)
            if count > _MOST:
                raise Failure(
                    "LIMIT",
                    f"{shown(path)}: there is too much in this directory to be sure that no rule "
                    "denies to move it. Move a part of it.",
                )


def _holds(place: str, path: str) -> bool:
    """Is a path this place, or below it? The worktree's root holds all that is no other's."""
    if not place:
        return not path.startswith("/")
    return path == place or path.startswith(place.rstrip("/") + "/")


def bound(workspace: Workspace, call: dict[str, Any]) -> Workspace:
    """The workspace for one call, which more is denied to than to the loop.

    Args:
        workspace: of the loop. What it has open stays its own.
        call: see `Restrictions.with_those_of`.
    """
    found = object.__new__(type(workspace))
    found.__dict__.update(workspace.__dict__)
    found.restrictions = (workspace.restrictions or Restrictions([], [])).with_those_of(call)
    return found


def _is_directory(place: Place) -> bool:
    status = place.status()
    return status is not None and stat.S_ISDIR(status.st_mode)


def restrict(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Reply:
    """Set what may not be read and written from now on; empty lists take all back."""
    read, write = arguments["read"], arguments["write"]
    workspace.restrictions = Restrictions(read, write) if read or write else None
    return {}, b""


OPERATIONS: dict[str, Operation] = {"restrict": restrict}
