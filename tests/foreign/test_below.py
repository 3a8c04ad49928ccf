"""MCP servers of agents, and of boxes that are replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.test_client import STUB, entry, said
from tests.loops import open_work
from tests.messages_server import Say, call, in_order
from tests.test_agents import opened_work
from tests.test_controller import lose_box

SERVER = f'[mcp.s]\ncommand = ["python3", "-c", {json.dumps(STUB)}]\n'
DONE = Say.of("It is done.")


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, {"mcp__s__echo", "mcp__s__fail", "read_file"}),
        (["mcp__s__*"], {"mcp__s__echo", "mcp__s__fail"}),
        (["mcp__s__echo"], {"mcp__s__echo"}),
        (["read_file"], {"read_file"}),
    ],
)
def test_an_agent_has_the_foreign_tools_that_its_list_names(
    tmp_path: Path, allowed: list[str] | None, expected: set[str]
) -> None:
    """An agent has its loop's foreign tools, from a server in its own box, if its list has them."""
    script = in_order(Say.of(call("c1", "mcp__s__echo", text="of an agent")), DONE)
    with opened_work(tmp_path, script, toml=SERVER) as work:
        more: dict[str, Any] = {} if allowed is None else {"allowed_tools": allowed}
        result = work.task(**more)
        assert not result.is_error, result.content
        first, second = work.server.requests
        assert {"mcp__s__echo", "mcp__s__fail", "read_file"} & set(first.tools) == expected
        has_it = "mcp__s__echo" in expected
        assert second.results[0]["is_error"] is not has_it
        if has_it:
            assert "of an agent" in str(second.results[0]["content"])


def test_an_agent_has_no_more_than_its_loop(tmp_path: Path) -> None:
    """An agent of a loop with a list of tools has no foreign tool that this does not name."""
    script = in_order(DONE)
    tools = ("task", "read_file", "mcp__s__echo")
    with opened_work(tmp_path, script, toml=SERVER, tools=tools) as work:
        assert not work.task().is_error
        assert set(work.server.requests[0].tools) - {"task"} == {"read_file", "mcp__s__echo"}


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_a_server_is_started_anew_in_a_new_box(tmp_path: Path, kind: str) -> None:
    """A server whose box was lost is started in the next one, and the call works."""
    with open_work(kind, tmp_path, mcp={"s": entry()}) as work:
        assert not work.call("mcp__s__echo", text="a").is_error
        lose_box(work)
        again = [work.call("mcp__s__echo", text="b") for _ in range(2)]
        assert not again[1].is_error, said(again[1])
        assert len(work.opened) == 2


def test_sixteen_servers_and_one_more(tmp_path: Path) -> None:
    """A box has sixteen servers; one more is a notice, and the sixteen work."""
    servers = {f"s{number}": entry(lane="no-net") for number in range(17)}
    with open_work("local", tmp_path, mcp=servers) as work:
        notices = [one for one in work.loop.capabilities["notices"] if "MCP" in one]
        assert len(notices) == 1
        shown = [one["name"] for one in work.loop.definitions()]
        assert len([name for name in shown if name.endswith("__echo")]) == 16
