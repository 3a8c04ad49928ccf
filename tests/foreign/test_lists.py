"""What a server says of its tools: how much is kept, and when a loop has what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from executor.errors import Code
from executor.foreign import connection as connection_module
from executor.foreign import lists
from executor.foreign.connection import Connection
from executor.foreign.lists import ToolList
from executor.foreign.servers import McpServers, register_mcp_tools
from executor.model import Warned
from executor.tool import Registry
from tests.foreign.test_client import entry, names, opened, said
from tests.foreign.test_connection import HELD_UP, changed, text_of
from tests.loops import Work
from tests.test_way_out import around

__all__ = ["opened"]  # the fixture


def listed(*tools: Any) -> ToolList:
    """What is kept of a list of one page."""
    found = ToolList()
    found.take({"tools": list(tools)})
    return found


def test_what_nobody_looks_at_is_not_kept() -> None:
    """Unknown fields and the rest of a long description are not kept, and what is no tool."""
    schema = {"type": "object"}
    found = listed({"name": "a", "inputSchema": schema, "junk": "j" * 10_000_000}, 5, "text", None)
    assert found.tools == [{"name": "a", "inputSchema": schema}]
    [long] = listed({"name": "a", "description": "  " + "d" * 1_000_000}).tools
    assert 4096 < len(long["description"]) <= 10_000


def test_a_tool_that_is_too_large_costs_no_other() -> None:
    """A tool that is too large is left out by name, with the reason, and the next is kept."""
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    large = {"a": "x" * lists.MAX_TOOL_BYTES}
    found = listed(
        {"name": "large", "inputSchema": large},
        {"name": "deep", "inputSchema": deep},
        {"name": "n" * 1_000_000},
        {"name": ["x"] * 1_000_000},
        {"name": "small"},
    )
    assert found.tools == [{"name": "small"}]
    assert "bytes; at most" in found.left_out["large"]
    assert "nested too deep" in found.left_out["deep"]
    assert max(map(len, found.left_out)) < 1000
    assert found.limit is None


def test_a_list_has_an_end() -> None:
    """No more tools are kept than there may be, nor more bytes, and no page is asked for then."""
    many = [{"name": f"t{number}"} for number in range(lists.MAX_TOOLS)]
    found = ToolList()
    assert found.take({"tools": many, "nextCursor": "more"}) == "more"
    assert found.take({"tools": [{"name": "last"}], "nextCursor": "more"}) is None
    assert len(found.tools) == lists.MAX_TOOLS
    assert found.limit == "at most 512 of its tools are taken"
    wide = {"a": "x" * (lists.MAX_TOOL_BYTES // 2)}
    found = listed(*({**one, "inputSchema": wide} for one in many))
    assert 16 < len(found.tools) < 33
    assert found.limit == f"at most {lists.MAX_BYTES} bytes of its tools are taken"


@pytest.mark.parametrize("page", [{}, {"tools": {}}, {"tools": None, "nextCursor": 5}])
def test_a_page_of_any_shape_is_one_without_tools(page: Any) -> None:
    """A page that is no page has no tools, and is the last."""
    found = ToolList()
    assert found.take(page) is None
    assert found.tools == []


def test_a_page_that_can_not_be_asked_for_costs_no_other() -> None:
    """Where half a character is the name of the next page, what came before is kept."""
    found = ToolList()
    assert found.take({"tools": [{"name": "a"}], "nextCursor": "\ud800"}) is None
    assert found.tools == [{"name": "a"}]
    assert (
        found.limit == "the name of its next page of tools is no valid Unicode, and can't be sent"
    )


def test_a_list_in_another_order_is_the_same() -> None:
    """Lists are told apart by what a loop would have of them, not by their order."""
    first, second = {"name": "a", "maximum": float("nan")}, {"name": "b", "inputSchema": {}}
    assert listed(first, second).digests == listed(second, first).digests
    assert listed(first).digests != listed(first, second).digests
    large = {"name": "c", "inputSchema": {"a": "x" * lists.MAX_TOOL_BYTES}}
    assert listed(first).digests != listed(first, large).digests


def test_tools_that_are_not_kept_are_said(opened: Callable[..., Work]) -> None:
    """A tool that is too large is a notice, unless the catalog does not want it anyway."""
    work = opened({"o": entry("odd"), "p": entry("odd", tools=("echo", "vast", "nothing"))})
    notices = work.loop.capabilities["notices"]
    about = [one for one in notices if "the tool vast is left out: it has 300" in one]
    assert len(about) == 2
    assert "MCP server p: it has no tool nothing" in notices
    assert not [one for one in notices if "server p: the tool deep" in one]


def test_tools_are_learnt_anew_after_a_restart(opened: Callable[..., Work]) -> None:
    """A server that comes back with other tools is called by its new schemas, the new ones too."""
    work = opened({"s": entry("reborn")})
    assert not work.call("mcp__s__asks", old=1).is_error
    assert work.call("mcp__s__die").code is Code.EXECUTION_ERROR
    assert not work.call("mcp__s__pid").is_error
    assert "mcp__s__fresh" in names(work)
    assert said(work.call("mcp__s__asks", new=1)) == "asks"
    assert work.call("mcp__s__asks", old=1).code is Code.INVALID_ARGUMENTS


class Registered:
    """Servers of the host, and the tools that a loop would have of them.

    Args:
        kinds: name → how the stub behaves.

    Attributes:
        told: what the loop's host was told.
    """

    def __init__(self, **kinds: str) -> None:
        self.registry = Registry()
        self.told: list[Warned] = []
        entries = {name: entry(kind, where="host") for name, kind in kinds.items()}
        self.servers = McpServers(entries, around(None), self.told.append, {})

    async def open(self) -> None:
        """Start the servers, and have their tools."""
        await register_mcp_tools(self.registry, self.servers)
        self.told.clear()

    def each(self) -> tuple[Connection, ...]:
        """The connections to the servers."""
        return tuple(self.servers.connections.values())


def test_servers_are_asked_for_changes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow to say which tools it has now holds up no other that is asked."""
    monkeypatch.setattr(connection_module, "REFRESH_TIMEOUT", HELD_UP)

    async def run() -> None:
        work = Registered(a="holds", b="holds")
        await work.open()
        for one in work.each():
            await changed(one, "added")
        asking = asyncio.create_task(work.servers.refresh(work.registry))
        async with asyncio.timeout(HELD_UP):
            for one in work.each():
                while await text_of(one, "held") == "0":
                    pass
        for one in work.each():
            await text_of(one, "release")
        await asking
        assert {"mcp__a__added", "mcp__b__added"} <= set(work.registry.list())
        assert len(work.told) == 2
        await work.servers.close()

    asyncio.run(run())


def test_a_change_that_is_none_is_not_announced() -> None:
    """A server that says that its tools changed, and has the same ones, is asked and that is it."""

    async def run() -> None:
        work = Registered(s="good")
        await work.open()
        [connection] = work.each()
        await changed(connection)
        await work.servers.refresh(work.registry)
        assert not connection.is_stale
        assert work.told == []
        await work.servers.close()

    asyncio.run(run())
