"""A connection to an MCP server under calls that overlap, deaths, and lists that come late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from executor.errors import Code, ToolError
from executor.foreign import connection as connection_module
from executor.foreign import hosted
from executor.foreign.connection import Connection, Link, started
from executor.served import Program
from tests.foreign.test_client import entry

HELD_UP = 60.0
"""Seconds; a guard against hanging."""


async def text_of(connection: Connection, tool: str, **given: Any) -> str:
    """The text of an answer."""
    answer = await connection.call(tool, given, HELD_UP, lambda *_: None)
    return str(answer["content"][0]["text"])


async def changed(connection: Connection, *added: str) -> None:
    """It has these more tools, and has said so."""
    await text_of(connection, "add", names=added)
    async with asyncio.timeout(HELD_UP):
        while not connection.is_stale:
            await text_of(connection, "pid")


class Server:
    """A connection to a stub server of the host.

    Args:
        kind: how the stub behaves.

    Attributes:
        links: to the programs that were started for it, in order.
        has_begun: set once the first of them was.
        may_go: as long as it is not set, nobody sees that a program is gone.
    """

    def __init__(self, kind: str = "good") -> None:
        self.links: list[Link] = []
        self.has_begun = asyncio.Event()
        self.may_go = asyncio.Event()
        self.may_go.set()
        self._entry = entry(kind, where="host", start_timeout_ms=int(10_000 * HELD_UP))
        self.connection = Connection("s", self._entry, self._link)

    @asynccontextmanager
    async def _link(self) -> AsyncIterator[Link]:
        program = Program(self._entry.command)
        async with started("s", hosted.start, self._entry, program) as link:
            self.links.append(link)
            self.has_begun.set()
            yield link
            await self.may_go.wait()

    async def call(self, tool: str, **given: Any) -> str:
        """The text of an answer."""
        return await text_of(self.connection, tool, **given)

    async def under_way(self) -> asyncio.Task[dict[str, Any]]:
        """A call that the server has begun and does not end."""
        has_begun = asyncio.Event()

        def told(*_: object) -> None:
            has_begun.set()

        task = asyncio.create_task(self.connection.call("wait", {}, HELD_UP, told))
        await asyncio.wait_for(has_begun.wait(), HELD_UP)
        return task

    async def running(self) -> int:
        """Programs that run."""
        return sum([await _runs(one) for one in self.links])


async def _runs(link: Link) -> bool:
    assert link.served is not None
    return (await link.served.state()).is_running


def test_one_death_under_many_calls_is_one_end() -> None:
    """A death is told to each call that was under way, with its words, and counts once."""

    async def run() -> None:
        server = Server()
        calls = [await server.under_way() for _ in range(3)]
        with pytest.raises(ToolError, match="exit code is 7"):
            await server.call("die")
        for call in calls:
            with pytest.raises(ToolError, match=r"(?s)exit code is 7.*last words.*starts it anew"):
                await call
        await server.call("pid")
        assert len(server.links) == 2
        await server.connection.close()
        assert await server.running() == 0

    asyncio.run(run())


def test_a_server_that_is_started_while_calls_hear_of_a_death_ends_with_the_rest() -> None:
    """A call that comes between a death and the refusals starts a server, which close() ends."""

    async def run() -> None:
        server = Server()
        calls = [await server.under_way() for _ in range(3)]
        dying = asyncio.create_task(server.call("die"))
        await asyncio.wait_for(server.links[0].ends.over.wait(), HELD_UP)
        assert int(await server.call("pid"))
        for call in (dying, *calls):
            with pytest.raises(ToolError, match="exit code is 7"):
                await call
        assert await server.running() == 1
        await server.connection.close()
        assert await server.running() == 0

    asyncio.run(run())


def test_nothing_is_started_by_a_call_that_waits_while_it_is_closed() -> None:
    """A call that waits for the end of a server is refused if the connection is closed then."""

    async def run() -> None:
        server = Server()
        await server.connection.open()
        server.may_go.clear()
        dying = asyncio.create_task(server.call("die"))
        await asyncio.wait_for(server.links[0].ends.over.wait(), HELD_UP)
        call = asyncio.create_task(server.call("pid"))
        closing = asyncio.create_task(server.connection.close())
        asyncio.get_running_loop().call_soon(server.may_go.set)
        with pytest.raises(ToolError, match="is closed"):
            await call
        with pytest.raises(ToolError, match="exit code is 7"):
            await dying
        await closing
        assert len(server.links) == 1

    asyncio.run(run())


def test_a_server_that_is_being_started_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits, at the end, for a server that has not answered yet."""
    monkeypatch.setattr(connection_module, "END_TIMEOUT", 10 * HELD_UP)

    async def run() -> None:
        server = Server("silent")
        opening = asyncio.create_task(server.connection.open())
        await asyncio.wait_for(server.has_begun.wait(), HELD_UP)
        await asyncio.wait_for(server.connection.close(), HELD_UP)
        assert await server.running() == 0
        with pytest.raises(ToolError, match="could not be started"):
            await opening

    asyncio.run(run())


def test_a_changed_list_that_does_not_come_in_time_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that is slow once to say which tools it has now is asked again later."""
    monkeypatch.setattr(connection_module, "REFRESH_TIMEOUT", 0.1)
    monkeypatch.setattr(connection_module, "PAUSE", 0.0)

    async def run() -> None:
        server = Server("holds")
        await changed(server.connection, "added")
        with pytest.raises(ToolError, match=r"now: it did not answer in 0\.1 seconds\.$") as caught:
            await server.connection.refresh()
        assert caught.value.code is Code.EXECUTION_ERROR
        assert server.connection.is_stale
        monkeypatch.setattr(connection_module, "REFRESH_TIMEOUT", HELD_UP)
        await server.connection.refresh()
        assert "added" in _names(server)
        assert not server.connection.is_stale
        await server.connection.close()

    asyncio.run(run())


def test_a_changed_list_that_is_given_up_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn that is cancelled while it asks which tools there are loses no change."""
    monkeypatch.setattr(connection_module, "REFRESH_TIMEOUT", HELD_UP)

    async def run() -> None:
        server = Server("holds")
        await changed(server.connection, "added")
        asking = await _asking(server)
        asking.cancel()
        await asyncio.wait({asking})
        assert server.connection.is_stale
        await server.connection.refresh()
        assert "added" in _names(server)
        await server.connection.close()

    asyncio.run(run())


def test_a_change_while_the_list_is_on_its_way_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list that was out of date when it came is asked for again."""
    monkeypatch.setattr(connection_module, "REFRESH_TIMEOUT", HELD_UP)
    monkeypatch.setattr(connection_module, "REST", 0.0)

    async def run() -> None:
        server = Server("holds")
        await changed(server.connection, "first")
        asking = await _asking(server)
        await server.call("add", names=["second"])
        await server.call("release")
        await asking
        assert "first" in _names(server)
        assert server.connection.is_stale
        await server.connection.refresh()
        assert "second" in _names(server)
        assert not server.connection.is_stale
        await server.connection.close()

    asyncio.run(run())


def test_a_change_before_the_first_list_is_not_lost() -> None:
    """A server that says that its tools changed before it has told any is asked again."""

    async def run() -> None:
        server = Server("early")
        await server.connection.open()
        assert "late" not in _names(server)
        async with asyncio.timeout(HELD_UP):
            while not server.connection.is_stale:
                await server.call("pid")
        await server.connection.refresh()
        assert "late" in _names(server)
        await server.connection.close()

    asyncio.run(run())


def test_a_server_that_is_slow_to_list_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that took its time is not asked for again at once, and no change is lost by that."""
    monkeypatch.setattr(connection_module, "REST", 1e9)

    async def run() -> None:
        server = Server()
        await changed(server.connection, "first")
        await server.connection.refresh()
        assert not server.connection.is_stale
        await changed(server.connection, "second")
        await server.connection.refresh()
        assert server.connection.is_stale
        await server.connection.close()

    asyncio.run(run())


async def _asking(server: Server) -> asyncio.Task[None]:
    """It has been asked for its tools, and does not answer."""
    task = asyncio.create_task(server.connection.refresh())
    async with asyncio.timeout(HELD_UP):
        while await server.call("held") == "0":
            pass
    return task


def _names(server: Server) -> set[str]:
    return {str(one["name"]) for one in server.connection.tools}
