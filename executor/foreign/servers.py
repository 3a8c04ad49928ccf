"""The MCP servers of one loop."""

from __future__ import annotations

import asyncio
import functools
import re
import urllib.parse
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from executor.catalog_servers import REFERENCE, McpEntry
from executor.egress.secrets import faults
from executor.errors import Code, ConfigError, SandboxError, ToolError
from executor.foreign import hosted
from executor.foreign.connection import Connection, Link, started
from executor.foreign.lists import MAX_TOOLS
from executor.foreign.names import named
from executor.foreign.secrets import secret_name, secret_of
from executor.foreign.tools import Maker
from executor.model import Warned
from executor.served import Program
from executor.text import one_line
from executor.tool import Registry, Surroundings, Tool

if TYPE_CHECKING:
    from executor.egress.broker import Broker

MAX_TOLD = 200
"""Notices of one loop's servers; more are not told."""
MOST_EVER = 2 * MAX_TOOLS
"""Tools that one server may have had, those among them that it has no more."""


class McpServers:
    """Connects a loop to its MCP servers, and keeps what they have.

    Args:
        entries: name → what the catalog says of it; those switched off are left out.
        around: of the loop, by lane.
        announce: takes what the loop's host should know.
        variables: of the process, for `${NAME}`.
    """

    def __init__(
        self,
        entries: Mapping[str, McpEntry],
        around: Surroundings,
        announce: Callable[[Warned], None],
        variables: Mapping[str, str],
    ) -> None:
        self._around = around
        self._announce = announce
        self._variables = variables
        self.notices: list[str] = []
        self._taken_over: dict[str, set[bytes]] = {}
        self.connections = {
            name: Connection(name, entry, functools.partial(self._link, name, entry))
            for name, entry in entries.items()
            if entry.enabled
        }

    async def open(self) -> None:
        """Start all at once. One that can't be started is a notice and costs no other anything."""
        await asyncio.gather(*(self._open(one) for one in self.connections.values()))

    async def _open(self, connection: Connection) -> None:
        if connection.entry.where == "host":
            self._tell(f"MCP server {connection.name}: runs on the host, where nothing confines it")
        try:
            await connection.open()
        except (ToolError, SandboxError) as error:
            said = " ".join(str(error).split())  # its last words are lines
            self._tell(one_line(f"The tools of {connection.name} are missing. {said}"))

    def _tell(self, text: str) -> None:
        if text in self.notices or len(self.notices) >= MAX_TOLD:
            return
        self.notices.append(text)
        self._announce(Warned(message=text))

    def tools_of(self, connection: Connection, registry: Registry) -> list[Tool]:
        """The tools of a server as a loop has them; those that can't be shown are a notice.

        They count as taken over then: `refresh` does so again with another list alone.
        """
        self._taken_over[connection.name] = connection.listed.digests
        make = Maker(connection)
        taken = {one.name for one in registry.all() if not make.is_own(one)}
        wanted = connection.entry.tools
        known = {
            str(one.get("name")): one
            for one in connection.tools
            if wanted is None or one.get("name") in wanted
        }
        self._tell_limits(connection, known)
        made: list[Tool] = []
        for name, tool in named(connection.name, known, taken).items():
            try:
                made.append(make.tool(name, known[tool]))
            except ValueError as error:
                self._tell_left_out(connection, tool, str(error))
        return made

    def _tell_limits(self, connection: Connection, known: Collection[str]) -> None:
        """What of a server's list was not kept, and what it does not have."""
        listed, wanted = connection.listed, connection.entry.tools
        if listed.limit is not None:
            self._tell(f"MCP server {connection.name}: {listed.limit}")
        for tool, why in listed.left_out.items():
            if wanted is None or tool in wanted:
                self._tell_left_out(connection, tool, why)
        missing = [one for one in wanted or () if one not in known and one not in listed.left_out]
        if missing:
            self._tell(f"MCP server {connection.name}: it has no tool {', '.join(missing)}")

    def _tell_left_out(self, connection: Connection, tool: str, why: str) -> None:
        shown = one_line(tool, 100)
        self._tell(f"MCP server {connection.name}: the tool {shown} is left out: {why}")

    async def refresh(self, registry: Registry) -> None:
        """Take over the tools of servers that have others now, as they say or since a restart."""
        await asyncio.gather(*(self._ask(one) for one in self.connections.values()))
        for connection in self.connections.values():
            if connection.listed.digests == self._taken_over.get(connection.name, set()):
                continue
            for tool in self._with_room(connection, registry):
                registry.register(tool, replace=True)
            self._announce(Warned(message=f"the tools of MCP server {connection.name} changed"))

    async def _ask(self, connection: Connection) -> None:
        """Let a server say which tools it has, if they changed."""
        try:
            await connection.refresh()
        except ToolError as error:
            self._tell(one_line(str(error)))

    def _with_room(self, connection: Connection, registry: Registry) -> list[Tool]:
        """The tools of a changed list; of new ones no more than a server may ever have had."""
        tools = self.tools_of(connection, registry)
        room = MOST_EVER - sum(map(Maker(connection).is_own, registry.all()))
        new = [one.name for one in tools if registry.get(one.name) is None]
        refused = set(new[max(room, 0) :])
        if refused:
            said = f"it has had {MOST_EVER} tools by now, and no other is taken"
            self._tell(f"MCP server {connection.name}: {said}")
        return [one for one in tools if one.name not in refused]

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(one.close() for one in self.connections.values()))

    # ─── how each is reached ───

    def _link(self, name: str, entry: McpEntry) -> AbstractAsyncContextManager[Link]:
        if entry.url is not None:
            return self._remote(name, entry, entry.url)
        if entry.where == "host":
            environment = {
                key: self._filled(name, value) for key, value in entry.environment.items()
            }
            program = Program(entry.command, environment)
            return started(name, hosted.start, entry, program)
        serve = self._around.in_lane(entry.lane).serve
        if serve is None:
            raise ToolError(Code.EXECUTION_ERROR, "this loop starts no programs in its boxes")
        return started(name, serve, entry, Program(entry.command, entry.environment))

    def _filled(self, name: str, value: str) -> str:
        """A value with the variables of the executor in it."""

        def found(match: re.Match[str]) -> str:
            if match[1] not in self._variables:
                raise ToolError(Code.EXECUTION_ERROR, _unset(name, match[1]))
            return self._variables[match[1]]

        return REFERENCE.sub(found, value)

    @asynccontextmanager
    async def _remote(self, name: str, entry: McpEntry, url: str) -> AsyncIterator[Link]:
        from executor.foreign.remote import over_http

        broker = self._broker(url)
        headers = {key: self._veiled(name, url, value) for key, value in entry.headers.items()}
        async with over_http(name, url, headers, broker, entry.timeout_ms / 1000) as ends:
            yield Link(ends)

    def _broker(self, url: str) -> Broker:
        broker = self._around.egress
        if broker is None:
            host = urllib.parse.urlsplit(url).hostname
            text = f"the loop may reach no host; allow it with --egress {host}"
            raise ToolError(Code.NETWORK_DENIED, text)
        return broker

    def _missing(self, name: str, url: str, variable: str) -> str:
        """Why a variable is no secret of a server."""
        if variable not in self._variables:
            return _unset(name, variable)
        fault = faults([secret_of(name, url, variable, self._variables[variable])])
        return f"mcp.{name}: the variable {variable} can't be sent: {'; '.join(fault)}"

    def _veiled(self, name: str, url: str, value: str) -> str:
        """A header's value with placeholders, which the way out makes the secrets of."""
        placeholders = self._around.secrets.placeholders if self._around.secrets else {}

        def found(match: re.Match[str]) -> str:
            placeholder = placeholders.get(secret_name(name, match[1]))
            if placeholder is None:
                text = self._missing(name, url, match[1])
                raise ToolError(Code.EXECUTION_ERROR, text)
            return placeholder

        return REFERENCE.sub(found, value)


def _unset(name: str, variable: str) -> str:
    return f"mcp.{name}: the variable {variable} is not set where the executor runs"


async def register_mcp_tools(registry: Registry, servers: McpServers) -> tuple[str, ...]:
    """Add the tools of the servers to a registry; opens those that are not open yet.

    A server that can't be started is a notice of `servers`, and the rest register.

    Args:
        registry: takes them.
        servers: of a loop.

    Returns:
        The names that were added.
    """
    await servers.open()
    names: list[str] = []
    for connection in servers.connections.values():
        for tool in servers.tools_of(connection, registry):
            try:
                registry.register(tool)
            except ConfigError as error:
                servers._tell(str(error))
            else:
                names.append(tool.name)
    return tuple(names)
