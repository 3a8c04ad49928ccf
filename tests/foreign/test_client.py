"""MCP servers as a loop's tools: over the local transport and in containers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.catalog_servers import McpEntry
from executor.errors import Code
from executor.foreign import connection
from executor.model import Finished, LoopSpec, McpToolCallBegin, McpToolCallEnd, Progress, Result
from tests.driver import wait_until
from tests.loops import Work, open_work
from tests.test_catalog import with_user_file

STUB = (Path(__file__).parent / "stubs" / "server.py").read_text()


def entry(kind: str = "good", **more: Any) -> McpEntry:
    """A stub server that behaves so."""
    return McpEntry(command=("python3", "-c", STUB, kind), **more)


@pytest.fixture(scope="module", params=["local", "docker"])
def work(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Work]:
    """A loop with a good server, one that writes junk, and some that are dead."""
    servers = {
        "good": entry(),
        "junk": entry("junk"),
        "dead": entry("dies"),
        "huge": entry("huge"),
        "asks": entry("asks"),
        "silent": entry("silent", start_timeout_ms=1500),
        "none": McpEntry(command=("no-such-program",)),
        "off": entry(enabled=False),
    }
    with open_work(request.param, tmp_path_factory.mktemp("mcp"), mcp=servers) as opened:
        yield opened


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Work]]:
    """Opens loops over the local transport."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda servers, **more: stack.enter_context(
            open_work("local", tmp_path, mcp=servers, **more)
        )


def names(work: Work) -> list[str]:
    """Of the tools that the model is shown."""
    return [one["name"] for one in work.loop.definitions()]


def said(result: Result) -> str:
    """All text of a result."""
    if isinstance(result.content, str):
        return result.content
    return "\n".join(block.get("text", "") for block in result.content)


def test_dead_servers_are_notices_and_the_rest_register(work: Work) -> None:
    """One dead server costs its own tools, is said with its reason, and no other has less."""
    shown = names(work)
    assert "mcp__good__echo" in shown
    assert "mcp__junk__echo" in shown
    assert not [name for name in shown if name.startswith(("mcp__dead", "mcp__off", "mcp__huge"))]
    notices = "\n".join(work.loop.capabilities["notices"])
    assert "dead could not be started" in notices
    assert "exit code is 3" in notices
    assert "no licence\\x1b" in notices.replace("\\\\", "\\")
    silent = next(one for one in notices.split("\n") if "silent could not be started" in one)
    assert silent.endswith("it did not answer in 1.5 seconds."), "how we ended it says nothing"
    assert "huge could not be started" in notices
    assert "took no answers" in notices
    assert "no-such-program" in notices


def test_a_call_is_answered_with_text_and_data(work: Work) -> None:
    """A call gives the server's text and its data, and a null stays a null."""
    result = work.call("mcp__good__echo", text=None)
    assert not result.is_error, said(result)
    assert json.loads(said(result)) == {"text": None}
    assert result.structured == {"text": None}


@pytest.mark.parametrize("given", [{}, {"text": 5}, {"text": "a", "more": 1}])
def test_arguments_are_held_to_the_servers_schema(work: Work, given: dict[str, Any]) -> None:
    """Arguments that the server's own schema refuses never reach it."""
    result = work.call("mcp__good__echo", **given)
    assert result.code is Code.INVALID_ARGUMENTS


def test_a_failed_tool_is_an_error_result(work: Work) -> None:
    """What the server marks as an error is one, with the server's words."""
    result = work.call("mcp__good__fail")
    assert result.code is Code.EXECUTION_ERROR
    assert said(result) == "it went wrong"


def test_large_results_are_bounded(work: Work) -> None:
    """Five megabytes of text are cut and say so, and two hundred blocks are all there."""
    result = work.call("mcp__good__big")
    assert result.truncated
    assert len(said(result)) <= 110_000
    blocks = work.call("mcp__good__blocks")
    assert said(blocks).count("block ") == 200


def test_pictures_are_sent_or_named(work: Work) -> None:
    """A picture is a block that the model sees; one that is too large is named instead."""
    small = work.call("mcp__good__picture")
    assert isinstance(small.content, list)
    assert [block["type"] for block in small.content] == ["image"]
    large = work.call("mcp__good__large-picture")
    assert large.truncated
    assert "a picture of 10000" in said(large)


def test_other_blocks_are_told_as_text(work: Work) -> None:
    """Links, resources, sounds and what nobody knows are told as text."""
    text = said(work.call("mcp__good__mixed"))
    for part in ("[resource a: file:///a]", "inside", "audio (audio/wav)", "unknown type smell"):
        assert part in text


def test_data_without_text_are_shown_if_they_are_no_bomb(work: Work) -> None:
    """Data are the text where there is none, and left out where they are nested too deep."""
    flat = work.call("mcp__good__data", levels=2)
    assert said(flat) == '{"a": {"a": {}}}'
    assert flat.structured == {"a": {"a": {}}}
    deep = work.call("mcp__good__data", levels=150)
    assert deep.structured is None
    assert deep.truncated


def test_data_that_are_no_object_are_shown_as_text(work: Work) -> None:
    """A list as data is the text where there is no other."""
    result = work.call("mcp__good__list")
    assert said(result) == '["a", 1]'
    assert result.structured is None


def test_numbers_that_json_does_not_have_reach_nobody(work: Work) -> None:
    """A result or a progress with NaN or infinity is told without it, and the rest is there."""
    events = work.events(("mcp__good__no-numbers", {}))
    [result] = [one.result for one in events if hasattr(one, "result")]
    assert result.structured == {"x": None, "y": [None, 1]}
    assert said(result) == '{"x": null, "y": [null, 1]}'
    told = [(one.current, one.total) for one in events if isinstance(one, Progress)]
    assert told == [(1, None)]


def test_data_are_held_to_what_the_server_promised(work: Work) -> None:
    """Data that contradict the server's own schema of them are passed on with a word."""
    assert said(work.call("mcp__good__promised", a=1)) == "done"
    result = work.call("mcp__good__promised", a="no")
    assert result.structured == {"a": "no"}
    assert not result.is_error
    assert "[the result's data are not as the server says" in said(result)
    assert "a must be of type integer, not 'no'" in said(result)


def test_events_begin_and_end_each_call(work: Work) -> None:
    """Each call of a server is told of at its begin and at its end, a failed one too."""
    events = work.events(("mcp__good__fail", {}))
    kinds = [type(one) for one in events]
    assert McpToolCallBegin in kinds
    ends = [one for one in events if isinstance(one, McpToolCallEnd)]
    assert [(one.server, one.tool, one.is_error) for one in ends] == [("good", "fail", True)]


def test_a_server_that_died_is_told_and_started_anew(work: Work) -> None:
    """A server's death under a call is an error with its last words, and the next call works."""
    result = work.call("mcp__junk__die")
    assert result.code is Code.EXECUTION_ERROR
    assert "exit code is 7" in said(result)
    assert "last words" in said(result)
    assert not work.call("mcp__junk__echo", text="again").is_error


def test_a_refused_call_ends_no_server(work: Work) -> None:
    """A server that refuses a call, with whatever code, is told so and lives on."""
    before = said(work.call("mcp__good__pid"))
    result = work.call("mcp__good__refuse")
    assert result.code is Code.EXECUTION_ERROR
    assert said(result) == "The MCP server good refused the call: not today"
    assert said(work.call("mcp__good__pid")) == before


def test_a_cancelled_call_is_cancelled_in_the_server(work: Work) -> None:
    """Cancelling a call tells the server, which lives on."""
    before = said(work.call("mcp__good__pid"))
    call = work.make("mcp__good__wait", {})

    async def cancelled() -> list[Result]:
        found: list[Result] = []
        async for event in work.loop.stream([call]):
            if isinstance(event, Progress):
                work.loop.cancel(call.id)
            elif isinstance(event, Finished):
                found.append(event.result)
        return found

    found = work.thread.run(cancelled())
    assert found[0].code is Code.CANCELLED
    wait_until(lambda: said(work.call("mcp__good__cancelled")) == "1", 10)
    assert said(work.call("mcp__good__pid")) == before


def test_a_server_in_the_box_works_in_the_worktree(work: Work) -> None:
    """A server runs in the box, over the loop's worktree."""
    assert not work.call("mcp__good__write").is_error
    assert (work.root / "written.txt").read_text() == "by a server"


def test_a_changed_list_is_there_at_the_next_turn(work: Work) -> None:
    """A tool that a server adds later can be called in the next turn."""
    assert "mcp__good__added" not in names(work)
    work.call("mcp__good__add")

    def is_there() -> bool:
        work.call("mcp__good__pid")
        return "mcp__good__added" in names(work)

    wait_until(is_there, 10)
    assert said(work.call("mcp__good__added")) == "added"


def test_progress_keeps_a_call_alive_and_silence_ends_it(opened: Callable[..., Work]) -> None:
    """Progress renews the idle limit, the hard limit holds all the same, and silence ends it."""
    work = opened({"s": entry(idle_timeout_ms=1000, timeout_ms=4000)})
    events = work.events(("mcp__s__progress", {}))
    results = [one.result for one in events if hasattr(one, "result")]
    assert said(results[0]) == "progress"
    assert [one for one in events if isinstance(one, Progress) and one.message == "step 2"]
    silent = work.call("mcp__s__hang")
    assert silent.code is Code.TIMEOUT
    assert "said nothing for 1 seconds" in said(silent)
    assert said(work.call("mcp__s__cancelled")) == "1"
    endless = work.call("mcp__s__endless")
    assert endless.code is Code.TIMEOUT
    assert "took longer than 4 seconds" in said(endless)


def test_odd_tools_are_shown_as_objects_or_left_out(opened: Callable[..., Work]) -> None:
    """Odd schemas are shown as objects, what is too large is left out and said, nothing hangs."""
    work = opened({"o": entry("odd")})
    shown = {one["name"]: one for one in work.loop.definitions()}
    assert "mcp__o__with_space_slash" in shown
    assert all(len(name) <= 64 for name in shown)
    for name in ("boolean", "no_type", "list", "far", "round"):
        assert shown[f"mcp__o__{name}"]["input_schema"]["type"] == "object"
        assert not work.call(f"mcp__o__{name}").is_error
    assert "mcp__o__deep" not in shown
    assert "mcp__o__wide" not in shown
    notices = "\n".join(work.loop.capabilities["notices"])
    assert "the tool deep is left out" in notices
    assert "is left out: its name has 300 characters" in notices
    assert "is left out: its name is no valid Unicode" in notices
    assert shown["mcp__o__strange"]["input_schema"] == {
        "type": "object",
        "properties": {
            "_top": {
                "type": "integer",
                "exclusiveMinimum": 0,
                "description": "The server calls it $top",
            },
            "five": {},
            "typed": {},
        },
        "required": ["_top"],
    }
    assert not work.call("mcp__o__strange", _top=1, typed=5).is_error
    assert work.call("mcp__o__strange", _top=0).code is Code.INVALID_ARGUMENTS
    text = shown["mcp__o__said"]["description"]
    assert len(text) <= 4096
    assert "\x1b" not in text
    assert "\u202e" not in text
    began = time.monotonic()
    assert not work.call("mcp__o__slow", a="a" * 40 + "!").is_error
    assert time.monotonic() - began < 20, "the expression alone would take years"
    assert work.call("mcp__o__far", a=1).code is not Code.INTERNAL


def test_a_list_of_tools_has_those_it_names(opened: Callable[..., Work]) -> None:
    """A loop with a list of tools has the foreign ones that it names, by name or pattern."""

    def change(spec: LoopSpec) -> LoopSpec:
        return replace(spec, tools=("read_file", "mcp__a__echo", "mcp__b__*"))

    work = opened({"a": entry(), "b": entry(), "c": entry()}, change=change)
    shown = names(work)
    assert [name for name in shown if name.startswith("mcp__a__")] == ["mcp__a__echo"]
    assert "mcp__b__fail" in shown
    assert not [name for name in shown if name.startswith("mcp__c__")]


def test_a_toolset_has_the_foreign_tools_that_it_names(opened: Callable[..., Work]) -> None:
    """A toolset with a list of tools has the foreign ones of it alone."""
    catalog = with_user_file(
        '[toolsets.mine]\nbase = "standard"\ntools = ["read_file", "mcp__a__echo"]\n'
    )
    work = opened(
        {"a": entry(), "b": entry()},
        catalog=catalog,
        change=lambda spec: replace(spec, toolset="mine"),
    )
    assert names(work) == ["read_file", "mcp__a__echo"]
    assert work.call("mcp__a__fail").code is Code.DISABLED


def test_default_mode_asks_unless_a_tool_only_reads(opened: Callable[..., Work]) -> None:
    """Mode default asks before a foreign tool unless it says that it only reads, or a rule is."""

    def change(spec: LoopSpec) -> LoopSpec:
        return replace(spec, mode="default", allow=("mcp__ruled__*",))

    work = opened({"asked": entry(), "ruled": entry()}, change=change)
    assert work.call("mcp__asked__fail").code is Code.APPROVAL_REQUIRED
    assert not work.call("mcp__asked__echo", text="a").is_error
    assert work.call("mcp__ruled__fail").code is Code.EXECUTION_ERROR


def test_plan_mode_has_only_tools_that_read(opened: Callable[..., Work]) -> None:
    """Plan mode runs foreign tools only if they say that they only read."""
    work = opened({"s": entry()}, change=lambda spec: replace(spec, mode="plan"))
    assert work.call("mcp__s__write").code is Code.PERMISSION_DENIED
    assert not work.call("mcp__s__echo", text="a").is_error


def test_three_quick_deaths_are_enough(opened: Callable[..., Work]) -> None:
    """A server that ends three times soon after its start is not started again for a while."""
    work = opened({"s": entry()})
    for _ in range(3):
        assert "exit code is 7" in said(work.call("mcp__s__die"))
    result = work.call("mcp__s__echo", text="a")
    assert "is not started again" in said(result)


def test_a_server_of_the_host_is_confessed_and_ends(
    opened: Callable[..., Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server on the host is noted in the audit log, and is gone when the loop is."""
    monkeypatch.setenv("KEY_OF_THE_HOST", "a value of it")
    monkeypatch.setenv("NOT_ITS_MATTER", "secret")
    environment = {"KEY": "${KEY_OF_THE_HOST}"}
    work = opened({"s": entry(where="host", environment=environment)})
    assert "nothing confines it" in "\n".join(work.loop.capabilities["notices"])
    pid = int(said(work.call("mcp__s__pid")))
    seen = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"KEY=a value of it" in seen
    assert b"NOT_ITS_MATTER" not in seen
    audit = (work.root.parent / "state" / "audit.jsonl").read_text()
    assert "mcp.s.where" in audit
    work.thread.run(work.loop._mcp.close())  # type: ignore[union-attr]
    wait_until(lambda: not _runs(pid), 5)


def test_what_a_server_of_the_host_is_given_is_masked(
    opened: Callable[..., Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that a server on the host is given is masked in results, unless each one has it."""
    monkeypatch.setenv("KEY_OF_THE_HOST", "a-value-of-the-host")
    monkeypatch.setenv("HOME", "/home/of-somebody")
    environment = {"KEY": "${KEY_OF_THE_HOST}", "OTHER": "${HOME}"}
    work = opened({"s": entry(where="host", environment=environment)})
    result = said(work.call("mcp__s__echo", text="a-value-of-the-host /home/of-somebody"))
    assert "a-value-of-the-host" not in result
    assert "/home/of-somebody" in result
    assert "EXECUTOR_MCP_" not in said(work.call("run_command", command="env"))


def test_what_can_not_be_written_is_refused_and_ends_nothing(
    opened: Callable[..., Work],
) -> None:
    """A call that is nested too deep is refused at once, and the server lives on."""
    work = opened({"s": entry()})
    value: Any = 0
    for _ in range(300):
        value = [value]
    before = said(work.call("mcp__s__pid"))
    result = work.call("mcp__s__pid", a=value)
    assert result.code is Code.INVALID_ARGUMENTS
    assert "nested deeper than 100 levels" in said(result)
    assert said(work.call("mcp__s__pid")) == before


def test_why_a_server_is_not_there_is_said_with_what_to_do(opened: Callable[..., Work]) -> None:
    """A program that is missing, and an answer that is wrong, are told in a sentence each."""
    odd = """read x; echo '{"jsonrpc": "2.0", "id": 1, "result": {}}'; read x"""
    servers = {
        "box": McpEntry(command=("no-such-program",)),
        "host": McpEntry(command=("no-such-program",), where="host"),
        "odd": McpEntry(command=("sh", "-c", odd)),
    }
    notices = "\n".join(opened(servers).loop.capabilities["notices"])
    assert "no such program in this image; add its package in images.toml" in notices
    assert "no program 'no-such-program'; install it" in notices
    assert "its answer is none of the protocol: capabilities: Field required." in notices
    assert "pydantic" not in notices


def test_a_missing_variable_costs_that_server_alone(opened: Callable[..., Work]) -> None:
    """A variable that is not set is said by its name, and the other servers are there."""
    bad = entry(where="host", environment={"KEY": "${NOT_SET_ANYWHERE}"})
    work = opened({"bad": bad, "good": entry()})
    assert "NOT_SET_ANYWHERE is not set" in "\n".join(work.loop.capabilities["notices"])
    assert "mcp__good__echo" in names(work)


def test_a_url_needs_egress(opened: Callable[..., Work]) -> None:
    """A server at a URL that the loop may not reach is refused, with what would allow it."""
    work = opened({"far": McpEntry(url="https://mcp.example.com/mcp")})
    assert "--egress mcp.example.com" in "\n".join(work.loop.capabilities["notices"])


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_that_changes_its_tools_without_end_is_bounded(
    opened: Callable[..., Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has ever new tools fills no loop with them, and that is said."""
    monkeypatch.setattr(connection, "REST", 0.0)
    work = opened({"s": entry()})
    for number in range(4):
        fresh = [f"t{number}_{one}" for one in range(400)]
        assert not work.call("mcp__s__add", names=fresh).is_error
        wait_until(lambda fresh=fresh: _has_learnt(work, fresh[-1]), 10)  # type: ignore[misc]
    assert len([one for one in work.loop.registry.list() if one.startswith("mcp__s__")]) == 1024
    assert "has had 1024 tools" in "\n".join(work.loop.capabilities["notices"])


def _has_learnt(work: Work, name: str) -> bool:
    """After another turn the loop knows the tool, or has said that it takes no more."""
    work.call("mcp__s__pid")
    notices = "\n".join(work.loop.capabilities.get("notices", ()))
    return f"mcp__s__{name}" in names(work) or "has had 1024 tools" in notices
