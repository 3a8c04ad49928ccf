"""Where paths lead in a box: what a rule has to match, and which paths are one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from executor.errors import Code, ToolError
from executor.tool import Box

TIMEOUT = 10.0
"""Seconds that one look may take."""
MAX_ASKED = 100_000
"""Characters of paths in one request: its frame, and the answer's, are bounded."""


class State(StrEnum):
    """What was found at the end of a path."""

    THERE = "there"
    MISSING = "missing"
    OUTSIDE = "outside"
    """It leads out of the worktree; where to is not said."""
    UNCLEAR = "unclear"
    """A cycle of links, a directory that may not be searched, a path that is too long."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads, at the moment of the look. Paths are as `Context.path` gives them.

    Attributes:
        path: what it leads to when all links are followed, also where nothing is there yet;
            the path as it was given if `state` is OUTSIDE or UNCLEAR.
        own: the same without following the last part: where the link itself is.
        state: what was found.
        kind: `f`, `d` or `o` for file, directory and anything else; None if not there.
        key: the agent's key of the file, as sessions file it; None if not there.
        shared: a file with several hard links.
        missing: the first part of `path` that is not there; None if all is.
        links: every link on the way, by its own place, in order.
    """

    path: str
    own: str
    state: State
    kind: str | None = None
    key: str | None = None
    shared: bool = False
    missing: str | None = None
    links: tuple[str, ...] = ()


async def resolved(box: Box, paths: Iterable[str], *, leaves: bool = False) -> dict[str, Place]:
    """Where each of these paths leads, by few requests to the agent.

    Args:
        box: whose worktree it is.
        paths: as `Context.path` gives them. Links lead out of an absolute one's directory
            and into the worktree, but from a worktree path never out of it.
        leaves: they do, as they do for a toolset that reads all of the box.

    Raises:
        ToolError: the agent could not say it.
        SandboxError: the box could not be had or was lost.
    """
    found: dict[str, Place] = {}
    await box.ready()
    for some in _portions(dict.fromkeys(paths)):
        asked: dict[str, Any] = {"paths": some} | ({"reach": "box"} if leaves else {})
        answer = await box.request("resolve", asked, timeout=TIMEOUT)
        places = answer.value["places"]
        if len(places) != len(some):
            raise ToolError(Code.PROTOCOL_ERROR, "not every path was resolved")
        found.update(zip(some, map(_place, places), strict=True))
    return found


def _portions(paths: Iterable[str]) -> Iterator[list[str]]:
    some: list[str] = []
    size = 0
    for path in paths:
        if some and size + len(path) > MAX_ASKED:
            yield some
            some, size = [], 0
        some.append(path)
        size += len(path)
    if some:
        yield some


def _place(value: dict[str, Any]) -> Place:
    return Place(
        path=value["path"],
        own=value["own"],
        state=State(value["state"]),
        kind=value["kind"],
        key=value["key"],
        shared=value["shared"],
        missing=value["missing"],
        links=tuple(value["links"]),
    )
