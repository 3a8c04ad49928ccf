"""Subagents: a conversation of their own, in a place of their own, never wider than their loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from executor.approvals import CallableApprover
from executor.catalog import Catalog
from executor.controller import Controller
from executor.errors import Code, ConfigError
from executor.lane import OpenBox
from executor.loop import Loop
from executor.messages import MessagesApi, Reply
from executor.model import (
    ApprovalAnswer,
    ApprovalRequest,
    ApprovalRequested,
    Call,
    EgressOptions,
    Event,
    Finished,
    LoopSpec,
    Progress,
    Result,
    Warned,
)
from executor.sandbox import content, copies, descent, ext4, mirror
from executor.sandbox.container import LABEL_STATE
from executor.sandbox.copies import Copy
from executor.sandbox.engine import Engine
from executor.sandbox.ownership import open_own
from executor.sandbox.reaper import Identity, reap
from executor.settings import Settings
from executor.tool import Order, Tool
from executor.tools import agents
from executor.toolsets.building import Shown, build
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread
from tests.loops import opener
from tests.messages_server import (
    KEY,
    Answer,
    Hangup,
    MessagesServer,
    Request,
    Say,
    Script,
    Silent,
    Status,
    Stream,
    Together,
    call,
    event,
    in_order,
    serving,
)
from tests.test_catalog import with_user_file

TEXT = "Launch a new agent."


def tools_of(catalog: Catalog) -> list[Tool]:
    """The tools that these tests add to `standard`, which has no agents."""
    shown = (
        Shown(
            name="task",
            arguments=agents.Task,
            run=agents.task,
            order=Order.SAFE,
            actions=agents.starts_agent,
            unavailable=agents.childless,
            mutates=True,
            describe=agents.with_types(TEXT),
        ),
    )
    return list(build(shown, catalog).all())


@dataclass
class Work:
    """An open loop whose agents ask a server of the test.

    Attributes:
        root: the loop's worktree.
        server: what the agents' model says.
        state: the controller's directory.
        specs: of all loops that had a box, in order.
    """

    thread: LoopThread
    loop: Loop
    root: Path
    server: MessagesServer
    state: Path
    specs: list[LoopSpec] = field(default_factory=list)
    number: int = 0

    def make(self, name: str, /, **given: Any) -> Call:
        """A call with an id of its own."""
        self.number += 1
        return Call(f"call{self.number}", name, given)

    def call(self, name: str, /, **given: Any) -> Result:
        """The result of one call."""
        return self.thread.run(self.loop.execute(self.make(name, **given)))

    def task(self, kind: str = "general-purpose", prompt: str = "Do it.", **more: Any) -> Result:
        """The result of one agent."""
        return self.call("task", **{**given_of(kind, prompt), **more})

    def copies(self) -> list[Path]:
        """The copies of the worktree that there are."""
        return list(self.state.glob("copy-*"))


def given_of(kind: str, prompt: str) -> dict[str, Any]:
    """The arguments of a task."""
    return {"description": "do it", "prompt": prompt, "subagent_type": kind}


Open = Callable[..., Work]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens loops whose agents' model follows a script."""
    with contextlib.ExitStack() as stack:

        def open_one(*answers: Answer, **more: Any) -> Work:
            return stack.enter_context(opened_work(tmp_path, in_order(*answers), **more))

        yield open_one


@contextmanager
def opened_work(
    directory: Path,
    script: Script,
    *,
    toml: str = "",
    kind: str = "local",
    approver: Any = None,
    model: Any = None,
    **fields: Any,
) -> Iterator[Work]:
    """A loop over `directory/worktree`, and the server that its agents ask."""
    root = make_worktree(directory / "worktree")
    catalog = with_user_file(toml)
    state = directory / "state"
    specs: list[LoopSpec] = []
    inner = opener(kind, directory)

    def noting(spec: LoopSpec) -> AbstractAsyncContextManager[OpenBox]:
        specs.append(spec)
        return inner(spec)

    with LoopThread() as thread:
        server = thread.enter(serving(script))
        controller = Controller(
            replace(Settings.load({}), state_directory=state),
            catalog,
            opener=noting,
            tools=tools_of(catalog),
            approver=approver,
            model=model or MessagesApi(KEY, server.url, "model-1", tries=2, first_wait=0.001),
        )
        thread.enter(controller)
        spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test", **fields)
        loop = thread.enter(controller.open(spec))
        yield Work(thread, loop, root, server, state, specs)


WRITES = Say.of("I write.", call("c1", "write_file", path="new/a.txt", content="made"))
DONE = Say.of("It is done.")


# ─── the conversation ───────────────────────────────────────────────────────────────


def test_result_is_the_last_message(opened: Open) -> None:
    """An agent runs its calls in its own loop, and its last text is the result."""
    work = opened(Say.of(call("c1", "read_file", path="a.txt")), DONE)
    (work.root / "a.txt").write_text("hello")
    result = work.task()
    assert not result.is_error, result.content
    assert str(result.content).startswith("It is done.")
    first, second = work.server.requests
    assert first.body["messages"] == [{"role": "user", "content": "Do it."}]
    assert "/workspace" in first.body["system"]
    assert [block["tool_use_id"] for block in second.results] == ["c1"]
    assert "hello" in second.results[0]["content"] and not second.results[0]["is_error"]
    assert second.body["messages"][1]["content"] == [call("c1", "read_file", path="a.txt")]
    assert result.structured is not None
    assert result.structured["agent_id"] == "agent_1" and result.structured["turns"] == 2
    assert result.structured["usage"]["input"] == 14 and result.structured["usage"]["output"] == 10


def test_failures_are_results_for_the_agent(opened: Open) -> None:
    """A call that fails is told to the agent, which goes on."""
    work = opened(Say.of(call("c1", "read_file", path="none"), call("c2", "nothing")), DONE)
    assert not work.task().is_error
    results = work.server.requests[1].results
    assert [block["is_error"] for block in results] == [True, True]
    assert "none" in results[0]["content"] and "Unknown tool" in results[1]["content"]


def test_turns_are_bounded(opened: Open) -> None:
    """After `max_turns` the agent is ended, with its last words and how to go on."""
    work = opened(Say.of("Still looking.", call("c1", "glob", pattern="*")))
    result = work.task(max_turns=3)
    assert result.code is Code.LIMIT
    assert str(result.content).startswith("Still looking.")
    assert "resume: agent_1" in str(result.content)
    assert len(work.server.requests) == 3


def test_fifty_turns_without_a_word(opened: Open) -> None:
    """The default is fifty turns."""
    work = opened(Say.of(call("c1", "glob", pattern="*")))
    assert work.task().code is Code.LIMIT
    assert len(work.server.requests) == 50


def test_cut_call_is_not_run(opened: Open) -> None:
    """The last call of a message that was cut may lack half of its input: it is not run."""
    work = opened(replace(WRITES, stop_reason="max_tokens"), DONE)
    assert not work.task().is_error
    (block,) = work.server.requests[1].results
    assert block["is_error"] and "was cut at its longest" in block["content"]
    assert not (work.root / "new").exists()


def test_call_that_is_no_json_is_not_run(opened: Open) -> None:
    """A call whose input can't be read gets a result that says so; the others are run."""
    block = {"type": "tool_use", "id": "c1", "name": "write_file", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"path": "a.txt", "content": '}
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": call("c2", "glob")},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"pattern": "*"}'},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    work = opened(Stream(b"".join(event(one) for one in told)), DONE)
    assert not work.task().is_error
    results = {block["tool_use_id"]: block for block in work.server.requests[1].results}
    assert results["c1"]["is_error"] and "no JSON object" in results["c1"]["content"]
    assert not results["c2"]["is_error"]


def test_refused_message_runs_nothing(opened: Open) -> None:
    """Calls of a message that the model broke off are not run; the agent can go on without it."""
    broken = Say.of("No.", call("c1", "write_file", path="x", content=""), stop_reason="refusal")
    work = opened(broken, DONE)
    result = work.task()
    assert result.code is Code.EXECUTION_ERROR and "refused to go on" in str(result.content)
    assert os.listdir(work.root) == []
    assert not work.task(resume="agent_1").is_error
    assert all(isinstance(m["content"], str) for m in work.server.requests[1].body["messages"])


def test_blank_texts_are_not_sent_back(opened: Open) -> None:
    """The API refuses a text of nothing but spaces; thinking goes back as it came."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    blank = [{"type": "text", "text": text} for text in ("", " \n")]
    told: list[dict[str, Any]] = [{"type": "message_start", "message": {}}]
    for index, block in enumerate((thinking, *blank, call("c1", "glob", pattern="*"))):
        told.append({"type": "content_block_start", "index": index, "content_block": block})
        told.append({"type": "content_block_stop", "index": index})
    told.append({"type": "message_stop"})
    work = opened(Stream(b"".join(event(one) for one in told)), DONE)
    assert not work.task().is_error
    said = work.server.requests[1].body["messages"][1]["content"]
    assert said == [thinking, call("c1", "glob", pattern="*")]


class Broken:
    """A model of the host's own that fails as such clients do, after one message."""

    def __init__(self) -> None:
        self.replies = [Reply((call("c1", "write_file", path="a.txt", content="x"),), "tool_use")]

    async def create(self, messages: Any, **more: Any) -> Reply:
        """The message, then a failure whose text nobody should see."""
        if not self.replies:
            raise RuntimeError(f"401 for {KEY}")
        return self.replies.pop()


def test_client_of_the_host_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the agent has done is brought back, it can go on, and the failure's text stays away."""
    with opened_work(tmp_path, in_order(DONE), model=Broken()) as work:
        result = work.task()
        assert result.code is Code.EXECUTION_ERROR and "RuntimeError" in str(result.content)
        assert (work.root / "a.txt").read_text() == "x"
        assert KEY not in f"{result}{caplog.text}"
        assert "client failed" in str(work.task(resume="agent_1").content)


def test_pause_goes_on(opened: Open) -> None:
    """A message that only pauses is not the last one."""
    work = opened(Say.of("Wait.", stop_reason="pause_turn"), DONE)
    assert str(work.task().content).startswith("It is done.")
    assert work.server.requests[1].body["messages"][-1]["role"] == "assistant"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Hangup(), Code.NETWORK_ERROR),
        (Status(529), Code.NETWORK_ERROR),
        (Status(400), Code.EXECUTION_ERROR),
        (Say.of("No.", stop_reason="refusal"), Code.EXECUTION_ERROR),
    ],
)
def test_model_fails(opened: Open, answer: Answer, code: Code) -> None:
    """What the agent has done so far is brought back, and it can go on later."""
    work = opened(WRITES, answer, *([answer] if code is Code.NETWORK_ERROR else []), DONE)
    result = work.task()
    assert result.code is code, result.content
    assert (work.root / "new/a.txt").read_text() == "made"
    again = work.task(resume="agent_1")
    assert str(again.content).startswith("It is done.")


def test_model_is_the_calls_then_the_types_then_the_clients(opened: Open) -> None:
    """The nearest name of a model holds."""
    toml = '[agents.Explore]\nmodel = "small"\n'
    work = opened(DONE, toml=toml)
    work.task("Explore", model="mine")
    work.task("Explore")
    work.task("Plan")
    assert [request.body["model"] for request in work.server.requests] == [
        "mine",
        "small",
        "model-1",
    ]


def test_watchers_see_what_agents_do(opened: Open) -> None:
    """Each call of an agent is progress of its task's call."""
    work = opened(WRITES, DONE)

    async def collect() -> list[Any]:
        given = given_of("general-purpose", "Do it.")
        return [event async for event in work.loop.stream([work.make("task", **given)])]

    events = work.thread.run(collect())
    told = [event.message for event in events if isinstance(event, Progress)]
    assert told == ["agent_1: write_file"]


# ─── types and tools ────────────────────────────────────────────────────────────────


def test_types_stand_in_the_description(opened: Open) -> None:
    """The model reads which types there are; a user's own is one of them."""
    work = opened(DONE, toml='[agents.tester]\ndescription = "Writes tests."\n')
    (shown,) = [tool for tool in work.loop.definitions() if tool["name"] == "task"]
    lines = shown["description"].splitlines()
    assert lines[0] == TEXT
    assert [line.split(":")[0] for line in lines if line.startswith("- ")] == [
        "- general-purpose",
        "- Bash",
        "- Explore",
        "- Plan",
        "- tester",
    ]
    assert lines[-1] == "- tester: Writes tests. (Tools: *)"


def test_types_name_tools_that_there_are(opened: Open) -> None:
    """A type with a tool that nobody knows is a fault of the configuration."""
    with pytest.raises(ConfigError, match=r"agents\.x\.tools: there is no tool 'Grope'"):
        opened(DONE, toml='[agents.x]\ndescription = "d"\ntools = ["Grope"]\n')


def test_unknown_type(opened: Open) -> None:
    """A type that there is not is refused with those that there are."""
    result = opened(DONE).task("explorer")
    assert result.code is Code.NOT_FOUND
    assert "general-purpose, Bash, Explore, Plan" in str(result.content)


def test_agents_have_what_their_type_has(opened: Open) -> None:
    """An agent is shown the tools of its type, and none that speaks for its loop."""
    work = opened(DONE)
    work.task("general-purpose")
    work.task("Bash")
    work.task("Explore")
    everything, shell, looking = (set(request.tools) for request in work.server.requests)
    mine = {tool["name"] for tool in work.loop.definitions()}
    versions = {"git_status", "git_diff", "git_log", "git_commit", "git_push"}  # its copy has none
    assert everything == mine - versions - {"complete_task", "query_loop", "share_data"}
    assert "run_command" in shell and "write_file" not in shell
    assert {"read_file", "grep", "glob"} <= looking
    assert not {"write_file", "edit_file", "delete_file", "task"} & looking


def test_allowed_tools_narrow(opened: Open) -> None:
    """A call may name fewer tools than the type has, and never others."""
    work = opened(Say.of(call("c1", "write_file", path="a", content="x")), DONE)
    work.task("Explore", allowed_tools=["grep", "write_file"])
    first, second = work.server.requests
    assert first.tools == ["grep"]
    assert second.results[0]["is_error"] and "disabled" in second.results[0]["content"]
    refused = work.task(allowed_tools=["Grope"])
    assert refused.code is Code.INVALID_ARGUMENTS and "Grope" in str(refused.content)


def test_agents_of_claude_code(opened: Open) -> None:
    """In the toolset that has agents, types and calls name tools as that toolset shows them."""
    work = opened(
        Say.of(call("c1", "Read", file_path="/workspace/a.txt")), DONE, toolset="claude-code"
    )
    (work.root / "a.txt").write_text("hello")
    result = work.call("Task", **given_of("Explore", "Look."))
    assert not result.is_error, result.content
    first, second = work.server.requests[:2]
    assert first.tools == ["Read", "Glob", "Grep", "Bash", "TodoWrite"]
    assert "hello" in second.results[0]["content"]
    work.call("Task", **given_of("general-purpose", "x"), allowed_tools=["Read", "Edit"])
    assert work.server.requests[2].tools == ["Read", "Edit"]
    shown = next(t for t in work.loop.definitions() if t["name"] == "Task")["description"]
    assert "- Plan: Software architect" in shown and "statusline" not in shown


def test_loop_type_holds_for_agents(opened: Open) -> None:
    """What a loop's type takes away, its agents don't have either."""
    toml = '[loop_types.look]\ntools = ["read_file", "task"]\n'
    work = opened(DONE, toml=toml, loop_type="look")
    assert not work.task().is_error
    assert work.server.requests[0].tools == ["read_file", "task"]


def test_depth_is_bounded(opened: Open) -> None:
    """Agents may be three deep; the lowest has no task tool and is told why."""
    down = Say.of(call("c", "task", **given_of("general-purpose", "Deeper.")))
    work = opened(down, down, down, DONE)
    assert not work.task().is_error
    assert ["task" in request.tools for request in work.server.requests[:4]] == [
        True,
        True,
        False,
        False,
    ]
    (block,) = work.server.requests[3].results
    assert "at most 3 deep" in block["content"]


def test_no_model(tmp_path: Path) -> None:
    """Without a model there is no such tool, and it is said why."""
    catalog = with_user_file("")
    with LoopThread() as thread:
        controller = Controller(
            replace(Settings.load({}), state_directory=tmp_path / "state"),
            catalog,
            opener=opener("local", tmp_path),
            tools=tools_of(catalog),
        )
        thread.enter(controller)
        root = make_worktree(tmp_path / "worktree")
        loop = thread.enter(controller.open(LoopSpec(worktree=root, limits=LIMITS)))
        result = thread.run(loop.execute(Call("1", "task", given_of("Plan", "x"))))
        assert result.code is Code.DISABLED and "no model was given" in str(result.content)


def test_model_of_the_settings(tmp_path: Path) -> None:
    """A key in the environment is enough; its text does not show it."""
    settings = Settings.load({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_MODEL": "m"})
    assert KEY not in repr(settings)
    with LoopThread() as thread:
        catalog = with_user_file("")
        controller = Controller(
            replace(settings, state_directory=tmp_path / "state"),
            catalog,
            opener=opener("local", tmp_path),
            tools=tools_of(catalog),
        )
        thread.enter(controller)
        root = make_worktree(tmp_path / "worktree")
        loop = thread.enter(controller.open(LoopSpec(worktree=root, limits=LIMITS)))
        assert "task" in {tool["name"] for tool in loop.definitions()}


# ─── never wider ────────────────────────────────────────────────────────────────────


def test_rules_hold_for_agents(opened: Open) -> None:
    """What is denied to a loop is denied to its agents, also where a rule came later."""
    work = opened(
        Say.of(
            call("c1", "read_file", path="secret.txt"),
            call("c2", "run_command", command="curl x"),
        ),
        DONE,
        deny=("read_file(secret.txt)", "run_command(curl *)"),
    )
    (work.root / "secret.txt").write_text("s")
    work.task()
    results = work.server.requests[1].results
    assert ["is not allowed" in block["content"] for block in results] == [True, True]


def test_loop_of_an_agent(opened: Open) -> None:
    """An agent's loop has its parent's box, and is one deeper in the same chain."""
    work = opened(DONE, environment={"A": "b"}, seccomp="strict", image="heavy", quota="none")
    work.task("general-purpose")
    work.task("Explore")
    parent, writer, reader = work.specs
    for child in (writer, reader):
        same = ("image", "runtime", "seccomp", "environment", "uid", "tenant", "quota", "toolset")
        assert [getattr(child, name) for name in same] == [getattr(parent, name) for name in same]
        mine = replace(child.limits, max_seconds=None)
        assert mine == parent.limits and 0 < (child.limits.max_seconds or 0) <= 3610
        assert (child.depth, child.chain_id, child.mode) == (1, "test", "bypass")
    assert (writer.agent_id, writer.read_only, writer.exec_id) == (
        "agent_1",
        False,
        "test-agent-1",
    )
    assert (reader.agent_id, reader.read_only) == ("agent_2", True)
    assert Path(writer.worktree) != work.root and Path(reader.worktree) == work.root


def test_mode_is_never_wider(opened: Open) -> None:
    """A type that wants bypass does not get it from a loop that asks."""
    toml = '[agents.wide]\ndescription = "d"\nmode = "bypass"\n'
    work = opened(WRITES, Say.of(call("c2", "run_command", command="touch x")), DONE, toml=toml)
    work.loop.session.mode = "default"
    work.task("wide")
    assert "needs approval" in work.server.requests[2].results[0]["content"]


def test_mode_of_a_type_narrows(opened: Open) -> None:
    """A type may ask more than its loop does."""
    toml = '[agents.shy]\ndescription = "d"\nmode = "plan"\n'
    work = opened(WRITES, DONE, toml=toml)
    work.task("shy")
    assert "plan mode" in work.server.requests[1].results[0]["content"]


def test_approvers_are_asked_for_agents(opened: Open) -> None:
    """Who decides for the loop decides for its agents, and sees whose call it is."""
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> ApprovalAnswer:
        asked.append(request)
        return ApprovalAnswer(approved=True)

    work = opened(
        Say.of(call("c1", "run_command", command="touch x")),
        DONE,
        approver=CallableApprover(approve),
    )
    work.loop.session.mode = "default"

    async def collect() -> list[Any]:
        given = given_of("general-purpose", "Do it.")
        return [event async for event in work.loop.stream([work.make("task", **given)])]

    events = work.thread.run(collect())
    assert [request.exec_id for request in asked] == ["test-agent-1"]
    assert [e.request.exec_id for e in events if isinstance(e, ApprovalRequested)] == [
        "test-agent-1"
    ]
    assert (work.root / "x").exists()


def test_plan_mode_starts_readers_only(opened: Open) -> None:
    """In plan mode no agent is started that could change something."""
    work = opened(DONE)
    work.loop.session.mode = "plan"
    refused = work.task("general-purpose")
    assert refused.code is Code.PERMISSION_DENIED and "Explore, Plan" in str(refused.content)
    assert not work.task("Explore").is_error


# ─── places ─────────────────────────────────────────────────────────────────────────


def test_writers_work_in_a_copy(opened: Open) -> None:
    """A writer begins with the tree as it is, uncommitted changes included, and merges back."""
    seen: list[bool] = []

    def script(request: Request) -> Answer:
        if len(work.server.requests) == 1:
            return Say.of(
                call("c1", "read_file", path="a.txt"),
                call("c2", "edit_file", path="a.txt", old_string="one", new_string="two"),
                call("c3", "write_file", path="new/b.txt", content="b"),
                call("c4", "delete_file", path="gone.txt"),
            )
        seen.append((work.root / "new").exists())
        return DONE

    work = opened(DONE)
    work.server.script = script
    for name in ("a.txt", "gone.txt", "same.txt"):
        (work.root / name).write_text("one")
    result = work.task()
    assert not result.is_error, result.content
    assert seen == [False]
    assert (work.root / "a.txt").read_text() == "two"
    assert (work.root / "new/b.txt").read_text() == "b"
    assert not (work.root / "gone.txt").exists()
    assert (work.root / "same.txt").read_text() == "one"
    assert result.structured is not None
    assert result.structured["merged"]["conflicts"] == []
    assert "3 written, 1 removed" in str(result.content)
    assert not work.copies()


def test_both_changed_a_file(opened: Open) -> None:
    """The loop's own version stays, and the conflict is reported; the rest is brought back."""

    def script(request: Request) -> Answer:
        if len(work.server.requests) == 1:
            (work.root / "a.txt").write_text("the loop's")
            (work.root / "theirs.txt").write_text("the loop's")
            return Say.of(
                call("c1", "run_command", command="echo agent > a.txt; echo agent > b.txt")
            )
        return DONE

    work = opened(DONE)
    work.server.script = script
    for name in ("a.txt", "b.txt"):
        (work.root / name).write_text("old")
    result = work.task("Bash")
    assert (work.root / "a.txt").read_text() == "the loop's"
    assert (work.root / "b.txt").read_text() == "agent\n"
    assert (work.root / "theirs.txt").read_text() == "the loop's"
    assert result.structured is not None
    assert [one["path"] for one in result.structured["merged"]["conflicts"]] == ["a.txt"]
    assert "conflict: a.txt was changed by others" in str(result.content)


def test_only_agents_with_a_copy_are_set_up(opened: Open) -> None:
    """What a set-up wrote to the worktree is there, and one who only looks could not write it."""
    hosts = EgressOptions(("files.example.org",), ("packages.example.org",))
    work = opened(DONE, setup="touch made", egress=hosts)
    assert not work.task("Explore").is_error
    assert not work.task("general-purpose").is_error
    own, reader, copy = work.specs
    assert own.setup == copy.setup == "touch made" and own.egress == copy.egress == hosts
    assert reader.setup is None and reader.egress == replace(hosts, setup_hosts=())


def test_agents_use_the_bytes_of_their_loop(opened: Open) -> None:
    """Each has a broker, and all one account and one list: more agents don't reach for more."""
    seen = []
    work = opened(DONE, egress=EgressOptions(("files.example.org",)))
    parent: Any = work.loop._surroundings

    async def look() -> None:
        ground = parent.agents._parent.ground("agent_9", True)
        async with ground as place:
            spec = replace(work.loop.spec, worktree=place.worktree, exec_id="below", depth=1)
            async with parent.agents._parent.open(spec, place) as child:
                below = child._surroundings
                deeper = below.agents._parent.open.keywords["above"]
                work.loop.change_egress(["other.example.org"])
                seen.extend([below.egress, deeper, below.egress.account, below.egress.hosts])

    work.thread.run(look())
    broker, deeper, account, hosts = seen
    assert broker is deeper is not parent.egress
    assert account is parent.egress.account
    assert hosts is parent.egress.hosts


def test_readers_are_refused_writes(opened: Open) -> None:
    """An agent over its loop's own worktree has no tool that changes a file."""
    toml = (
        '[agents.look]\ndescription = "d"\nisolation = "read-only"\n'
        'tools = ["write_file", "read_file"]\n'
    )
    work = opened(WRITES, DONE, toml=toml)
    result = work.task("look")
    assert "read-only here" in work.server.requests[1].results[0]["content"]
    assert result.structured is not None and result.structured["merged"] is None
    assert not (work.root / "new").exists() and not work.copies()


def test_agents_run_side_by_side(opened: Open) -> None:
    """Two agents of one turn are at work at the same time, and both merge."""
    names = ("left", "right")

    def script(request: Request) -> Answer:
        said = request.body["messages"][0]["content"]
        if len(request.body["messages"]) > 1:
            return DONE
        return Together(2, Say.of(call("c", "write_file", path=f"{said}.txt", content=said)))

    work = opened(DONE)
    work.server.script = script
    calls = [work.make("task", **given_of("general-purpose", name)) for name in names]
    results = work.thread.run(work.loop.turn(calls))
    assert not any(result.is_error for result in results)
    assert [(work.root / f"{name}.txt").read_text() for name in names] == list(names)
    assert [r.structured["agent_id"] for r in results if r.structured] == ["agent_1", "agent_2"]


# ─── resume, background, cancel ─────────────────────────────────────────────────────


def test_resumed_agent_knows_what_was_said(opened: Open) -> None:
    """It goes on with the same messages, under the same id, over the tree as it is now."""
    work = opened(WRITES, DONE, Say.of(call("c9", "read_file", path="new/a.txt")), Say.of("Yes."))
    work.task(prompt="First.")
    (work.root / "new/a.txt").write_text("changed")
    result = work.task(prompt="Second.", resume="agent_1")
    assert str(result.content).startswith("Yes.")
    last = work.server.requests[-1]
    users = [m["content"] for m in last.body["messages"] if isinstance(m["content"], str)]
    assert users == ["First.", "Second."]
    assert "changed" in last.results[0]["content"]
    assert result.structured is not None and result.structured["turns"] == 4


def test_agent_whose_time_is_over(opened: Open) -> None:
    """It is ended in the middle of a call, keeps what it did, and can go on: no call is open."""
    toml = "[tools.task]\ntimeout_ms = 3000\n"
    wait = call("c2", "run_command", command="echo x > x.txt; sleep 100")
    work = opened(Say.of("I wait.", call("c1", "glob", pattern="*"), wait), DONE, toml=toml)
    result = work.task()
    assert result.code is Code.TIMEOUT and str(result.content).startswith("I wait.")
    assert (work.root / "x.txt").exists()
    assert not work.task(resume="agent_1").is_error
    answered = work.server.requests[1].body["messages"][2]["content"]
    assert [block["tool_use_id"] for block in answered] == ["c1", "c2"]
    assert answered[1]["is_error"]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"resume": "agent_9"}, Code.NOT_FOUND),
        ({"resume": "agent_1", "subagent_type": "Plan"}, Code.INVALID_ARGUMENTS),
    ],
)
def test_what_can_not_be_resumed(opened: Open, more: dict[str, Any], code: Code) -> None:
    """An unknown agent, or one of another type, is refused; nothing is asked."""
    work = opened(DONE)
    work.task()
    assert work.task(**more).code is code
    assert len(work.server.requests) == 1


@pytest.mark.parametrize("name", ["subagent_type", "resume", "allowed_tools"])
def test_refusals_are_short(opened: Open, name: str) -> None:
    """A name that there is not is repeated in part only, however long it is."""
    long = "x" * 1_000_000
    given: dict[str, Any] = {name: [long] if name == "allowed_tools" else long}
    result = opened(DONE).task(**given)
    assert result.is_error and len(str(result.content)) < 2000


def test_resume_does_not_widen(opened: Open) -> None:
    """Tools that an agent was started without, it does not get when it is resumed."""
    work = opened(DONE)
    work.task(allowed_tools=["grep", "glob"])
    work.task(resume="agent_1", allowed_tools=["grep", "write_file"])
    assert work.server.requests[1].tools == ["grep"]


def test_background(opened: Open) -> None:
    """An agent in the background is read through its id, and merges when it has ended."""
    work = opened(WRITES, DONE)
    started = work.task(run_in_background=True)
    assert started.content == "Background agent started: agent_1"
    task = work.loop.session.background.get("agent_1")
    assert task is not None
    work.thread.run(task.wait())
    written = work.thread.run(task.output(None))
    assert task.status == "completed" and written.text.startswith("It is done.")
    assert (work.root / "new/a.txt").read_text() == "made"
    assert not work.task(resume="agent_1").is_error


def test_tools_of_background_tasks_take_agents(opened: Open) -> None:
    """task_output and kill_shell take the ids of agents."""
    work = opened(WRITES, DONE, Silent())
    work.task(run_in_background=True)
    read = work.call("task_output", task_id="agent_1")
    assert "It is done." in str(read.content) and not read.is_error
    work.task(run_in_background=True)
    work.thread.run(work.server.waiting.wait())
    waiting = work.call("task_output", task_id="agent_2", block=False)
    assert "asking the model" in str(waiting.content)
    killed = work.call("kill_shell", shell_id="agent_2")
    assert not killed.is_error and "not brought back" in str(killed.content)


def test_what_an_agent_leaves_running_is_said(tmp_path: Path) -> None:
    """What it started in the background ends with it, and nobody takes that for done."""
    given = {**given_of("general-purpose", "inner"), "run_in_background": True}
    command = call("c2", "run_command", command="sleep 100; touch x", run_in_background=True)

    def script(request: Request) -> Answer:
        if request.body["messages"][0]["content"] == "inner":
            return Silent()
        return (
            DONE
            if len(request.body["messages"]) > 1
            else Say.of(call("c1", "task", **given), command)
        )

    with opened_work(tmp_path, script) as work:
        result = work.task(prompt="outer")
        assert "agent_1, bash_1 of its background tasks did not end" in str(result.content)
        assert not work.copies() and not (work.root / "x").exists()


def test_plan_mode_reaches_agents_that_run(opened: Open) -> None:
    """A loop that goes into plan mode takes its running agents with it, and out again."""
    write = [call(f"c{n}", "run_command", command=f"touch {n}") for n in range(3)]
    modes = iter(("bypass", "plan", "bypass"))

    def script(request: Request) -> Answer:
        mode = next(modes, None)
        if mode is None:
            return DONE
        work.loop.session.mode = mode
        return Say.of(write.pop(0))

    work = opened(DONE)
    work.server.script = script
    work.task()
    results = [request.results[0] for request in work.server.requests[1:]]
    assert [block["is_error"] for block in results] == [False, True, False]
    assert sorted(os.listdir(work.root)) == ["0", "2"]


def test_killed_in_the_background(opened: Open) -> None:
    """Killing an agent ends its request and its copy; what it had changed is not merged."""
    work = opened(WRITES, Silent())
    work.task(run_in_background=True)
    task = work.loop.session.background.get("agent_1")
    assert task is not None
    work.thread.run(work.server.waiting.wait())
    running = work.thread.run(task.output(None))
    assert "asking the model" in running.text
    assert work.task(resume="agent_1").code is Code.CONFLICT
    work.thread.run(task.kill())
    assert task.status == "killed"
    work.thread.run(asyncio.wait_for(work.server.left.wait(), 20))
    assert not (work.root / "new").exists() and not work.copies()
    assert work.task(resume="agent_1").code is Code.NOT_FOUND


def test_killed_while_it_is_merged(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge that has begun is done to its end, and who kills the agent then is told so."""
    begun, go_on = threading.Event(), threading.Event()
    merge = Copy.merge

    def held(copy: Copy, *given: Any) -> copies.Merged:
        begun.set()
        assert go_on.wait(60)
        return merge(copy, *given)

    monkeypatch.setattr(Copy, "merge", held)
    work = opened(WRITES, DONE)
    work.task(run_in_background=True)
    assert begun.wait(60)
    task = work.loop.session.background.get("agent_1")
    assert task is not None

    async def killed() -> str | None:
        killing = asyncio.create_task(task.kill())
        await asyncio.sleep(0)
        go_on.set()
        return await killing

    assert "was brought back" in str(work.thread.run(killed()))
    assert (work.root / "new/a.txt").read_text() == "made" and not work.copies()


def test_cancelled_call_ends_the_agent(opened: Open) -> None:
    """Cancelling a task's call ends the agent's request, box and copy."""
    work = opened(WRITES, Silent())

    async def cancelled() -> list[Result]:
        given = given_of("general-purpose", "Do it.")
        turn = asyncio.create_task(work.loop.turn([work.make("task", **given)]))
        await work.server.waiting.wait()
        assert work.copies()
        assert work.loop.cancel() == 1
        results = await turn
        async with asyncio.timeout(20):
            await work.server.left.wait()
        return results

    (result,) = work.thread.run(cancelled())
    assert result.code is Code.CANCELLED
    assert not (work.root / "new").exists() and not work.copies()


def test_closing_the_loop_ends_agents(tmp_path: Path) -> None:
    """An agent in the background does not outlive its loop."""
    with opened_work(tmp_path, in_order(WRITES, Silent())) as work:
        work.task(run_in_background=True)
        work.thread.run(work.server.waiting.wait())
    assert work.server.left.is_set()
    assert not (work.root / "new").exists() and not work.copies()


def test_running_agents_are_bounded(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a box, so there are not many at a time."""
    monkeypatch.setattr("executor.subagents.MAX_RUNNING", 1)
    work = opened(Silent())
    work.task(run_in_background=True)
    work.thread.run(work.server.waiting.wait())
    assert work.task().code is Code.LIMIT


def test_agents_that_start_agents_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound holds for all below one loop: agents can't multiply at each depth."""
    monkeypatch.setattr("executor.subagents.MAX_RUNNING", 3)
    again = Say.of(*(call(f"c{n}", "task", **given_of("general-purpose", "x")) for n in range(3)))

    def script(request: Request) -> Answer:
        return DONE if isinstance(request.said, list) else again

    with opened_work(tmp_path, script) as work:
        assert not work.task().is_error
        refused = [block for one in work.server.requests[1:] for block in _results(one)]
        assert any("3 agents are running" in block["content"] for block in refused)
        assert not work.task().is_error  # those that have ended make room


def _results(request: Request) -> list[dict[str, Any]]:
    return request.results if isinstance(request.said, list) else []


def test_readers_change_nothing_beside_the_worktree(tmp_path: Path) -> None:
    """What a loop may write to beside its worktree, its agents that only read may not."""
    beside = tmp_path / "beside"
    beside.mkdir()
    with opened_work(tmp_path, in_order(DONE), add_dirs=(f"{beside}:rw",)) as work:
        work.task("Explore")
        work.task("general-purpose")
        given = [[(one.name, one.is_writable) for one in spec.directories] for spec in work.specs]
        assert given == [[("beside", True)], [("beside", False)], [("beside", True)]]


# ─── copies ─────────────────────────────────────────────────────────────────────────


HOSTILE = """
mkdir -p sub/.git/hooks hooks a/b
printf '#!/bin/sh\\ntouch {canary}\\n' > hooks/run
chmod 6755 hooks/run
cp hooks/run sub/.git/hooks/post-checkout
printf '* filter=evil diff=evil merge=evil\\n' | tee .gitattributes > a/.gitattributes
for config in sub/.git/config .gitconfig; do
  printf '[core]\\nfsmonitor={root}/hooks/run\\nhooksPath={root}/hooks\\n' > $config
  printf '[filter "evil"]\\n' >> $config
  printf 'smudge={root}/hooks/run\\nclean={root}/hooks/run\\nprocess=x\\n' >> $config
done
printf '[submodule "s"]\\npath=s\\nurl=ext::{root}/hooks/run\\n' > .gitmodules
echo 'gitdir: ../sub/.git' > a/.git
ln -s ../.git a/b/.git; ln -s / up; ln -s /etc/shadow shadow; mkfifo pipe
"""


def test_git_of_the_host_is_never_asked(opened: Open, tmp_path: Path) -> None:
    """Copying and merging run nothing: no hook, filter, monitor or submodule of the worktree."""
    canary = tmp_path / "canary"
    work = opened(DONE)
    command = HOSTILE.format(canary=canary, root=work.root)
    work.server.script = in_order(Say.of(call("c1", "run_command", command=command)), DONE)
    git = work.root / ".git"
    git.mkdir()
    (git / "config").write_text(f"[core]\nfsmonitor = {work.root}/hooks/run\n")
    started: list[str] = []
    is_listening = True

    def hear(event: str, arguments: Any) -> None:
        if is_listening and event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
            started.append(f"{event} {arguments!r}")

    sys.addaudithook(hear)
    try:
        for kind in ("Bash", "general-purpose", "Explore"):
            result = work.task(kind)
            assert not result.is_error, result.content
    finally:
        is_listening = False
    assert not canary.exists()
    assert not any("'git'" in one or "/git'" in one for one in started)
    assert os.readlink(work.root / "shadow") == "/etc/shadow"
    assert (work.root / "hooks/run").stat().st_mode & 0o7777 == 0o755
    assert sorted(os.listdir(git)) == ["config"]
    assert (work.root / "sub/.git/config").exists()


def test_versions_of_a_conflict_are_kept(tmp_path: Path) -> None:
    """What both changed is handed out from the copy, whole as far as there is room."""
    (tmp_path / "tree").mkdir()
    root = make_worktree(tmp_path / "worktree")
    (root / "d").mkdir()
    for name in ("d/a", "d/b", "link"):
        (root / name).write_text("old")
    copy, stop = Copy(tmp_path / "tree"), threading.Event()
    with open_own(root) as worktree:
        copy.fill(worktree, stop)
        for name in ("d/a", "d/b", "link"):
            (root / name).write_text("the loop's")
        (copy.tree / "d/a").write_text("0123456789")
        (copy.tree / "d/b").unlink()
        (copy.tree / "link").unlink()
        (copy.tree / "link").symlink_to("/etc/passwd")
        merged = copy.merge(worktree, stop, 4)
    found = {one.path: (one.data, one.left_out) for one in merged.conflicts}
    assert found == {"d/a": (b"0123", 6), "d/b": (None, 0), "link": (None, 0)}
    assert merged.count == 3 and (root / "d/a").read_text() == "the loop's"


def test_same_change_is_no_conflict(tmp_path: Path) -> None:
    """Both sides wrote the same: there is nothing to report."""
    (tmp_path / "tree").mkdir()
    root = make_worktree(tmp_path / "worktree")
    (root / "a").write_text("old")
    copy, stop = Copy(tmp_path / "tree"), threading.Event()
    with open_own(root) as worktree:
        copy.fill(worktree, stop)
        for tree in (root, copy.tree):
            (tree / "a").write_text("new")
        merged = copy.merge(worktree, stop, 4)
    assert merged.conflicts == () and merged.count == 0


OLD = ("keep", "same", "own", "delete")
NEW = ("none", "same", "own")


def _merged(old: str | None, agents: str, loops: str) -> tuple[str | None, bool]:
    """What has to be there after both sides did this to a file, and whether it is a conflict.

    Args:
        old: what it held; None = it was not there.
        agents, loops: what each side did.
    """

    def after(what: str, side: str) -> str | None:
        return {"keep": old, "none": old, "same": "same", "own": side, "delete": None}[what]

    mine, theirs = after(agents, "agent"), after(loops, "loop")
    if mine == theirs or theirs == old:
        return mine, False
    if mine == old:
        return theirs, False
    # A file that the loop deleted and the agent changed is there again: nothing is lost.
    return (mine, False) if theirs is None else (theirs, True)


def _do(what: str, path: Path, own: str) -> None:
    if what in ("same", "own"):
        path.write_text("same" if what == "same" else own)
    elif what == "delete":
        path.unlink()


def test_both_sides_at_work(tmp_path: Path) -> None:
    """Each way in which two sides can change a file has its one outcome, at any depth."""
    (tmp_path / "tree").mkdir()
    root = make_worktree(tmp_path / "worktree")
    cases: list[tuple[str | None, str, str]] = [("old", a, b) for a in OLD for b in OLD]
    cases += [(None, one, other) for one in NEW for other in NEW]
    paths = {f"d/{old}-{one}-{other}": (old, one, other) for old, one, other in cases}
    (root / "d").mkdir()
    for path, (old, _, _) in paths.items():
        if old is not None:
            (root / path).write_text(old)
    copy, stop = Copy(tmp_path / "tree"), threading.Event()
    with open_own(root) as worktree:
        copy.fill(worktree, stop)
        for path, (_, agents_, loops) in paths.items():
            _do(agents_, copy.tree / path, "agent")
            _do(loops, root / path, "loop")
        merged = copy.merge(worktree, stop, 100)
    expected = {path: _merged(*case) for path, case in paths.items()}
    found = {path: (root / path).read_text() if (root / path).exists() else None for path in paths}
    assert found == {path: content for path, (content, _) in expected.items()}
    conflicts = {path for path, (_, is_conflict) in expected.items() if is_conflict}
    assert {one.path for one in merged.conflicts} == conflicts
    assert merged.count == len(conflicts) and merged.failed == ()


def test_git_stays_outside(tmp_path: Path) -> None:
    """A copy has something for the cover of `.git` to lie on, and none of its content."""
    (tmp_path / "tree").mkdir()
    root = make_worktree(tmp_path / "worktree")
    (root / ".git").mkdir()
    (root / ".git/config").write_text("x")
    copy, stop = Copy(tmp_path / "tree"), threading.Event()
    with open_own(root) as worktree:
        copy.fill(worktree, stop)
        assert list((copy.tree / ".git").iterdir()) == []
        (copy.tree / ".git/config").write_text("bad")
        copy.merge(worktree, stop, 4)
    assert (root / ".git/config").read_text() == "x"


def test_repository_that_an_agent_makes(tmp_path: Path) -> None:
    """It comes back where there was none; where others made one meanwhile that one stays."""
    for number, is_taken in enumerate((False, True)):
        root = make_worktree(tmp_path / f"worktree{number}")
        (tmp_path / f"tree{number}").mkdir()
        copy, stop = Copy(tmp_path / f"tree{number}"), threading.Event()
        with open_own(root) as worktree:
            copy.fill(worktree, stop)
        (copy.tree / ".git").mkdir()
        (copy.tree / ".git/HEAD").write_text("the agent's")
        if is_taken:
            (root / ".git").mkdir()
            (root / ".git/HEAD").write_text("the loop's")
        with open_own(root) as worktree:
            merged = copy.merge(worktree, stop, 0)
        expected = "the loop's" if is_taken else "the agent's"
        assert (root / ".git/HEAD").read_text() == expected
        assert bool(merged.failed) is is_taken and merged.count == is_taken


def test_copies_are_removed_whatever_is_in_them(tmp_path: Path) -> None:
    """Deep, closed and odd entries go; what a link leads to stays."""
    root = tmp_path / "copy"
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("x")
    (root / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "pipe")
    (root / "closed").mkdir()
    (root / "closed/x").write_text("x")
    (root / "closed").chmod(0)
    descriptor = os.open(root, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        descent.remove("copy", parent)
        with pytest.raises(FileNotFoundError):
            descent.remove("copy", parent)
        (tmp_path / "link").symlink_to("outside")
        with pytest.raises(NotADirectoryError):
            descent.remove("link", parent)
    finally:
        os.close(parent)
    assert sorted(os.listdir(tmp_path)) == ["link", "outside"]
    assert os.listdir(tmp_path / "outside") == ["kept"]


# ─── boxes ──────────────────────────────────────────────────────────────────────────

LOOK = (
    '[agents.look]\ndescription = "d"\nisolation = "read-only"\n'
    'tools = ["run_command", "write_file"]\n'
)


@contextmanager
def boxed(directory: Path, script: Script, toml: str = "", **fields: Any) -> Iterator[Work]:
    """A loop in a container, whose agents have containers of their own."""
    root = make_worktree(directory / "worktree")
    catalog = with_user_file(toml)
    state = directory / "state"
    with LoopThread() as thread:
        server = thread.enter(serving(script))
        controller = Controller(
            replace(Settings.load(), state_directory=state),
            catalog,
            tools=tools_of(catalog),
            model=MessagesApi(KEY, server.url, "model-1", tries=2, first_wait=0.001),
        )
        thread.enter(controller)
        spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test", **fields)
        yield Work(thread, thread.enter(controller.open(spec)), root, server, state)


def left(state: Path) -> list[Path]:
    """Copies of worktrees in a controller's directory."""
    return list(state.glob("controllers/*/copy-*"))


def test_writer_in_a_box(tmp_path: Path) -> None:
    """A writer's box has the tree as it is; its changes come back, and its owner stays."""
    script = in_order(
        Say.of(call("c1", "run_command", command="cat a.txt; echo b > b.txt; id -u; touch .git")),
        DONE,
    )
    with boxed(tmp_path, script) as work:
        (work.root / "a.txt").write_text("uncommitted")
        os.chown(work.root / "a.txt", *_owner(work.root))
        result = work.task("Bash")
        assert not result.is_error, result.content
        (block,) = work.server.requests[1].results
        assert block["content"].startswith("uncommitted")
        assert (work.root / "b.txt").read_text() == "b\n"
        assert _owner(work.root / "b.txt") == _owner(work.root)
        assert not left(work.state)


@pytest.mark.skipif(bool(ext4.faults()), reason="; ".join(ext4.faults()))
def test_loop_with_a_file_system_of_its_own(tmp_path: Path) -> None:
    """Agents see, copy and change the tree that the loop's boxes have, not the one outside."""
    command = "cat a.txt; echo agent >> a.txt"
    script = in_order(
        Say.of(call("c1", "run_command", command=command)),
        DONE,
        Say.of(call("c2", "run_command", command=command)),
        DONE,
    )
    with boxed(tmp_path, script, LOOK, quota="loop-ext4") as work:
        work.call("write_file", path="a.txt", content="old\n")
        work.task("Bash")
        work.task("look")
        shown = work.server.requests[-1].results[0]["content"]
        assert "old\nagent\n" in shown and "Read-only file system" in shown
        assert os.listdir(work.root) == []
    assert (work.root / "a.txt").read_text() == "old\nagent\n"


def _owner(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid


def test_reader_in_a_box(tmp_path: Path) -> None:
    """A reader's box has the loop's own tree, live, and nothing in it can change that."""
    commands = "ls; touch x; echo y > a.txt; rm a.txt; mount -o remount,rw /workspace; chmod 777 ."
    script = in_order(
        Say.of(
            call("c1", "run_command", command=commands),
            call("c2", "write_file", path="x", content="x"),
            call("c3", "run_command", command="echo t > /tmp/t && cat /tmp/t"),
        ),
        DONE,
    )
    with boxed(tmp_path, script, LOOK) as work:
        work.call("write_file", path="a.txt", content="old")
        mode = work.root.stat().st_mode
        result = work.task("look")
        assert not result.is_error, result.content
        first, second, third = work.server.requests[1].results
        assert "a.txt" in first["content"] and "Read-only file system" in first["content"]
        assert "read-only here" in second["content"] and third["content"].strip() == "t"
        assert os.listdir(work.root) == ["a.txt"]
        assert (work.root / "a.txt").read_text() == "old" and work.root.stat().st_mode == mode


def test_conflict_is_kept_for_the_loop(tmp_path: Path) -> None:
    """Where both changed a file, the loop reads the agent's version among its results."""

    def script(request: Request) -> Answer:
        if len(request.body["messages"]) > 1:
            return DONE
        (work.root / "a.txt").write_text("the loop's")
        return Say.of(call("c1", "run_command", command="echo the agent > a.txt"))

    with boxed(tmp_path, script) as work:
        work.call("write_file", path="a.txt", content="old")
        result = work.task("Bash")
        assert result.structured is not None
        (conflict,) = result.structured["merged"]["conflicts"]
        assert conflict["path"] == "a.txt" and conflict["kept"] in str(result.content)
        assert "the agent" in str(work.call("read_file", path=conflict["kept"]).content)
        assert (work.root / "a.txt").read_text() == "the loop's"


def test_agents_of_agents_in_boxes(tmp_path: Path) -> None:
    """An agent's agent works in a copy of the agent's copy, and both merge."""

    def script(request: Request) -> Answer:
        said = request.body["messages"][0]["content"]
        if len(request.body["messages"]) > 1:
            return DONE
        write = call("c1", "run_command", command=f"ls; echo x > {said}.txt")
        if said == "inner":
            return Say.of(write)
        return Say.of(write, call("c2", "task", **given_of("general-purpose", "inner")))

    with boxed(tmp_path, script) as work:
        result = work.task(prompt="outer")
        assert not result.is_error, result.content
        assert sorted(os.listdir(work.root)) == ["inner.txt", "outer.txt"]
        answered = [r for r in work.server.requests if len(r.body["messages"]) > 1]
        assert "outer.txt" in answered[0].results[0]["content"]
        assert not left(work.state)


def _serve_agent(settings: Settings, spec: LoopSpec, url: str, pipe: Any) -> None:
    """A process that starts an agent in the background, and then waits to be killed."""

    async def main() -> None:
        catalog = with_user_file("")
        model = MessagesApi(KEY, url, "m")
        async with (
            Controller(settings, catalog, tools=tools_of(catalog), model=model) as controller,
            controller.open(spec) as loop,
        ):
            given = given_of("general-purpose", "Do it.")
            result = await loop.execute(Call("1", "task", {**given, "run_in_background": True}))
            pipe.send(result.is_error)
            await asyncio.Event().wait()

    asyncio.run(main())


def _die_in_a_merge(state: Path, root: Path) -> None:
    """A process that is killed while it brings a copy back, with a file half written."""
    copied_before = content.copy
    count = 0

    def copy(source: int, target: int, status: os.stat_result) -> None:
        nonlocal count
        count += 1
        if count == 3:
            os.write(target, b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        copied_before(source, target, status)

    async def main() -> None:
        with Identity.claim(state) as identity:
            directory = identity.files_directory("copy-killed-agent-1-00000000")
            source = functools.partial(open_own, root)
            async with copies.copied(source, directory, state / "kept") as ground:
                for name in ("a", "b", "c", "d"):
                    (ground.worktree / name).write_text("the agent's")
                vars(mirror)["copy"] = copy
                await ground.merge(0)

    asyncio.run(main())


def test_killed_while_an_agent_is_merged(tmp_path: Path) -> None:
    """No file is half; the agent's copy is kept and named by the sweep; the next one is clean."""
    root, state = make_worktree(tmp_path / "worktree"), tmp_path / "state"
    for name in ("a", "b", "c", "d"):
        (root / name).write_text("old")
    process = multiprocessing.get_context("spawn").Process(
        target=_die_in_a_merge, args=(state, root)
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    texts = [(root / name).read_text() for name in ("a", "b", "c", "d")]
    assert sorted(texts) == ["old", "old", "the agent's", "the agent's"]
    settings = replace(Settings.load(), state_directory=state)

    async def sweep() -> tuple[str, ...]:
        async with await Engine.connect(settings) as engine:
            return (await reap(engine, state)).failures

    (told,) = asyncio.run(sweep())
    (kept,) = (state / "kept").iterdir()
    assert f"{kept}/tree" in told and str(root) in told and ".executor-" in told
    assert [(kept / "tree" / n).read_text() for n in ("a", "b", "c", "d")] == ["the agent's"] * 4
    assert asyncio.run(sweep()) == () and not list((state / "controllers").iterdir())


def test_what_could_not_come_back_is_kept(tmp_path: Path) -> None:
    """Where the worktree takes not all of it, the agent's copy stays and the host is told where."""

    def script(request: Request) -> Answer:
        if len(request.body["messages"]) > 1:
            shutil.rmtree(work.root)
            return DONE
        return WRITES

    with opened_work(tmp_path, script) as work:
        events = work.loop.stream([work.make("task", **given_of("general-purpose", "x"))])

        async def collected() -> list[Event]:
            return [event async for event in events]

        told = work.thread.run(collected())
        (finished,) = [one.result for one in told if isinstance(one, Finished)]
        assert finished.code is Code.CONFLICT and "kept for the user" in str(finished.content)
        (kept,) = (work.state / "kept").iterdir()
        assert (kept / "tree/new/a.txt").read_text() == "made"
        (warned,) = [one.message for one in told if isinstance(one, Warned)]
        assert str(kept) in warned and not work.copies()


def test_nothing_is_left_of_a_killed_controller(tmp_path: Path) -> None:
    """After kill -9 agent boxes end, and the next controller's sweep takes boxes and copies."""
    root, state = make_worktree(tmp_path / "worktree"), tmp_path / "state"
    settings = replace(Settings.load(), state_directory=state)
    deep = "mkdir -p " + "/".join("d" for _ in range(2000))
    script = in_order(Say.of(call("c1", "run_command", command=deep)), Silent())
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with LoopThread() as thread:
        server = thread.enter(serving(script))
        spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="killed")
        process = context.Process(target=_serve_agent, args=(settings, spec, server.url, theirs))
        process.start()
        try:
            assert ours.poll(120) and ours.recv() is False
            thread.run(asyncio.wait_for(server.waiting.wait(), 120))
            assert left(state)
        finally:
            process.kill()
            process.join(30)

        async def sweep() -> tuple[str, ...]:
            async with await Engine.connect(settings) as engine:
                return (await reap(engine, state)).failures

        assert thread.run(sweep()) == ()
        assert not left(state)

        async def boxes() -> list[Any]:
            async with await Engine.connect(settings) as engine:
                return await engine.list_containers({LABEL_STATE: str(state)})

        assert thread.run(boxes()) == []
