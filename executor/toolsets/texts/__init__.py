"""What specifications say of their tools: texts and schemas, and where these would be false."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """A passage of a specification's text that is not shown as it is.

    Attributes:
        old: the passage.
        new: what stands in its place.
        why: the reason, for `docs/conformance.md`.
        unless_agents: it holds only for loops that can't start agents.
    """

    old: str
    new: str
    why: str
    unless_agents: bool = False


@functools.cache
def text(toolset: str, tool: str) -> str:
    """The description that the specification gives, word for word."""
    return _read(toolset, f"{tool}.txt").removesuffix("\n")


def schema(toolset: str, tool: str) -> dict[str, Any]:
    """The JSON Schema that the specification gives."""
    found: dict[str, Any] = json.loads(_read(toolset, "schemas.json"))[tool]
    return found


@functools.cache
def _read(toolset: str, name: str) -> str:
    return resources.files(__name__).joinpath(toolset, name).read_text("utf-8")


def changed(said: str, changes: Iterable[Change]) -> str:
    """The text with each passage replaced.

    Raises:
        ValueError: a passage is not there: the text and the list of changes have parted.
    """
    for change in changes:
        if change.old not in said:
            raise ValueError(f"the text does not say {change.old!r}")
        said = said.replace(change.old, change.new)
    return said


def names(toolset: str) -> Mapping[str, Any]:
    """The tools of which the specification gives a schema, by name."""
    found: Mapping[str, Any] = json.loads(_read(toolset, "schemas.json"))
    return found
