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
from .workspace import SAFE, Denied, Workspace, shown

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


class Restrictions:
    """Which files may not be read, and which not be written, each by a rule.

    Args:
        read, write: [pattern, rule] in order, as the host sends them.
    """

    def __init__(self, read: list[list[str]], write: list[list[str]]) -> None:
        self._patterns = {
            "read": Patterns(pattern for pattern, _ in read),
            "write": Patterns(pattern for pattern, _ in write),
        }
        self._rules = {
            "read": [rule for _, rule in read],
            "write": [rule for _, rule in write],
        }

    def rule(self, how: How, path: str, is_directory: bool) -> str | None:
        """The rule that denies it; None = none does."""
        found = self._patterns[how].find(path, is_directory=is_directory)
        return None if found is None else self._rules[how][found]

    def require(self, how: How, path: str, is_directory: bool) -> None:
        """Let it pass, or refuse it.

        Raises:
            Denied: a rule denies it.
        """
        rule = self.rule(how, path, is_directory)
        if rule is not None:
            raise Denied(rule)

    def hides(self, path: str) -> bool:
        """May this file not be read?"""
        return self.rule("read", path, False) is not None

    @property
    def hides_any(self) -> bool:
        """There are files that may not be read."""
        return bool(self._rules["read"])

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

    def require_movable(self, workspace: Workspace, place: Place) -> Generator[None, Any, None]:
        """The same for all that would get another name with a file or directory.

        Raises:
            Denied: a rule denies something of it.
            Failure: LIMIT, there is too much to look through.
        """
        self.require_readable(workspace, place)
        path = workspace.real(place.parent, place.name)
        todo = [(place.name, path)] if _is_directory(place) else []
        count = 0
        while todo:
            name, path = todo.pop()
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
                        for how in ("read", "write"):
                            self.require(how, below, is_directory)
                        if is_directory:
                            todo.append((f"{name}/{entry.name}", below))
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


def _is_directory(place: Place) -> bool:
    status = place.status()
    return status is not None and stat.S_ISDIR(status.st_mode)


def restrict(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Reply:
    """Set what may not be read and written from now on; empty lists take all back."""
    read, write = arguments["read"], arguments["write"]
    workspace.restrictions = Restrictions(read, write) if read or write else None
    return {}, b""


OPERATIONS: dict[str, Operation] = {"restrict": restrict}
