"""What a server says of its tools, and how much of that is kept. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from executor.foreign.names import is_unicode

MAX_TOOLS = 512
"""Tools of one server that are taken."""
MAX_TOOL_BYTES = 256 << 10
"""Bytes of what is kept of one tool, as JSON."""
MAX_BYTES = 4 << 20
"""Bytes of what is kept of all tools of one server; no model reads as much."""
_KEPT = ("name", "description", "inputSchema", "outputSchema", "annotations")
_MOST_SAID = 8192
"""Characters of a description that are kept; a model is shown fewer."""
_MOST_OF_NAME = 256
"""Characters of the name of a tool that is left out."""


@dataclass(slots=True)
class ToolList:
    """The tools of a server, of whatever shape, as far as they are kept.

    Attributes:
        tools: those that are, with the fields that anybody looks at.
        left_out: the name of each that is too large → why it is left out.
        limit: why no more of it was looked at, in words; None = all was.
        digests: tell one list from another, in whatever order it comes.
    """

    tools: list[Mapping[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    limit: str | None = None
    digests: set[bytes] = field(default_factory=set)
    _size: int = 0

    def take(self, page: Mapping[str, Any]) -> str | None:
        """Keep what a page of the list has.

        Args:
            page: the result of `tools/list`, of whatever shape.

        Returns:
            The cursor of the next page; None = no other is wanted.
        """
        tools = page.get("tools")
        for said in tools if isinstance(tools, list) else []:
            if isinstance(said, Mapping):
                self._add(said)
            if self.limit is not None:
                return None
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return None
        if not is_unicode(cursor):
            self.limit = "the name of its next page of tools is no valid Unicode, and can't be sent"
            return None
        return cursor

    def _add(self, said: Mapping[str, Any]) -> None:
        if len(self.tools) + len(self.left_out) >= MAX_TOOLS:
            self.limit = f"at most {MAX_TOOLS} of its tools are taken"
            return
        kept = _kept(said)
        try:
            text = json.dumps(kept).encode()
        except RecursionError:
            self._leave_out(kept, "it is nested too deep")
            return
        if len(text) > MAX_TOOL_BYTES:
            self._leave_out(kept, f"it has {len(text)} bytes; at most {MAX_TOOL_BYTES} are taken")
            return
        if self._size + len(text) > MAX_BYTES:
            self.limit = f"at most {MAX_BYTES} bytes of its tools are taken"
            return
        self._size += len(text)
        self.tools.append(kept)
        self.digests.add(hashlib.sha256(text).digest())

    def _leave_out(self, kept: Mapping[str, Any], why: str) -> None:
        said = kept.get("name")
        name = said[:_MOST_OF_NAME] if isinstance(said, str) else ""
        self.left_out[name] = why
        self.digests.add(hashlib.sha256(f"{name}\n{why}".encode(errors="replace")).digest())


def _kept(said: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: said[key] for key in _KEPT if key in said}
    description = kept.get("description")
    if isinstance(description, str):
        kept["description"] = description.strip()[:_MOST_SAID]
    return kept
