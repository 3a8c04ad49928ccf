"""Tools of MCP servers as a loop's own."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from executor.catalog import ToolEntry
from executor.catalog_tables import Lane
from executor.foreign import schemas
from executor.foreign.connection import Connection
from executor.foreign.contents import outcome_of
from executor.foreign.names import is_unicode
from executor.model import LANE, Access, McpToolCallBegin, McpToolCallEnd
from executor.text import visible
from executor.tool import Action, Contacts, Context, Order, Outcome, Surroundings, Tool, no_actions

MAX_DESCRIPTION = 4096
"""Characters of a description that a model is shown."""
MAX_NAME = 256
"""Characters of a tool's name."""
_CUT = " […]"


class Given(BaseModel):
    """Arguments of a foreign tool: whatever its server takes."""

    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ForeignTool(Tool):
    """A tool of an MCP server.

    Attributes:
        original: the server's own schema of its arguments, of whatever shape.
        connection: to its server.
    """

    original: Any = None
    connection: Connection | None = None

    def parse(self, given: Any, *, is_approvers: bool = False) -> BaseModel:
        """See `Tool.parse`; nulls stay, and names are as they are written."""
        return Given(values=schemas.checked(self.name, self.original, given))


class Maker:
    """Makes the tools of one server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._entry = connection.entry

    def is_own(self, tool: Tool) -> bool:
        """It is one of this server's."""
        return isinstance(tool, ForeignTool) and tool.connection is self._connection

    def tool(self, name: str, said: Mapping[str, Any]) -> ForeignTool:
        """The tool.

        Args:
            name: for the model.
            said: by the server.

        Raises:
            ValueError: it can't be shown; why.
        """
        foreign = _name(said.get("name"))
        original = said.get("inputSchema")
        shown = schemas.shown(original)
        hints = said.get("annotations")
        is_read_only = isinstance(hints, Mapping) and hints.get("readOnlyHint") is True
        is_remote = self._entry.url is not None
        access = Access.READ if is_read_only else Access.NETWORK if is_remote else Access.EXEC
        is_safe = is_read_only or is_remote
        return ForeignTool(
            name=name,
            description=_description(said.get("description"), self._connection.name),
            schema=shown,
            arguments=Given,
            run=self._running(foreign, said.get("outputSchema")),
            canonical=name,
            entry=ToolEntry(
                self._lane,
                access,
                self._entry.timeout_ms,
                self._entry.max_output_bytes,
            ),
            order=Order.SAFE if is_safe else Order.UNSAFE,
            actions=self._contacts(is_read_only=is_read_only) if is_remote else no_actions,
            unavailable=self._reason(foreign),
            mutates=not is_read_only and not is_remote,
            original=original,
            connection=self._connection,
        )

    @property
    def _lane(self) -> Lane:
        is_boxed = self._entry.url is None and self._entry.where == "box"
        return cast("Lane", self._entry.lane) if is_boxed else LANE

    def _contacts(self, *, is_read_only: bool) -> Any:
        parts = urllib.parse.urlsplit(self._entry.url or "")
        contact = Contacts(parts.hostname or "", parts.port, is_free=is_read_only)

        def actions(context: Context, given: Any) -> Sequence[Action]:
            return (contact,)

        return actions

    def _reason(self, foreign: str) -> Any:
        connection = self._connection

        def unavailable(loop: Surroundings) -> str | None:
            if any(one.get("name") == foreign for one in connection.tools):
                return None
            return f"the MCP server {connection.name} does not have it any more"

        return unavailable

    def _running(self, foreign: str, promised: Any) -> Any:
        connection = self._connection

        async def run(context: Context, given: Given) -> Outcome:
            return await _called(connection, foreign, promised, context, given)

        return run


async def _called(
    connection: Connection, foreign: str, promised: Any, context: Context, given: Given
) -> Outcome:
    """One call, from its first word to its last."""
    server, tool = connection.name, visible(foreign)
    context.tell(McpToolCallBegin(server=server, tool=tool, call_id=context.call_id))
    is_error = True
    began = time.monotonic()

    def told(current: float, total: float | None, message: str | None) -> None:
        seconds = time.monotonic() - began
        context.progress(message or f"{tool}: {seconds:.0f} s", current, total)

    try:
        answer = await connection.call(foreign, given.values, context.seconds, told)
        outcome = outcome_of(answer, context, promised)
        is_error = outcome.is_error
        return outcome
    finally:
        context.tell(
            McpToolCallEnd(server=server, tool=tool, call_id=context.call_id, is_error=is_error)
        )


def _name(value: Any) -> str:
    """A tool's own name.

    Raises:
        ValueError: it has none that it can be called by.
    """
    if not isinstance(value, str) or not value:
        raise ValueError("it has no name")
    if len(value) > MAX_NAME:
        raise ValueError(f"its name has {len(value)} characters; at most {MAX_NAME} are taken")
    if not is_unicode(value):
        raise ValueError("its name is no valid Unicode, and can't be sent back")
    return value


def _description(value: Any, server: str) -> str:
    """What a model reads of a tool: its server's words, bounded and visible."""
    if not isinstance(value, str) or not value.strip():
        return f"A tool of the MCP server {server}, which does not describe it."
    text = visible(value.strip()[:MAX_DESCRIPTION])
    if len(value.strip()) > MAX_DESCRIPTION or len(text) > MAX_DESCRIPTION:
        text = text[: MAX_DESCRIPTION - len(_CUT)] + _CUT
    return text
