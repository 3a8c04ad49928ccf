"""Specification 5, what rows of `test_conformance` can't say: what tools change in their loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from executor import Code, Context, Outcome, custom_tool
from executor.model import Access, CommandQueued, Finished, Progress
from executor.tool import FileRead, PermissionGranted, QueueCommand
from tests.loops import Work, open_work
from tests.test_conformance import tools


class Said(BaseModel):
    """Arguments of the tools below."""

    text: str


@custom_tool(access=Access.READ)
async def queue(context: Context, given: Said) -> Outcome:
    """Queue a text."""
    return Outcome("queued", modifiers=(QueueCommand(given.text),))


@custom_tool(access=Access.READ)
async def grant(context: Context, given: Said) -> Outcome:
    """Grant a rule."""
    return Outcome("granted", modifiers=(PermissionGranted(given.text),))


@custom_tool(access=Access.READ)
async def see(context: Context, given: Said) -> Outcome:
    """See a whole file in a way of its own."""
    asked = {"path": context.path(given.text), "encoding": "base64"}
    answer = await context.ask("read", asked)
    return Outcome("seen", modifiers=(FileRead(given.text, answer.value["hash"]),))


@custom_tool(access=Access.READ)
async def count(context: Context, given: Said) -> str:
    """Tell how far it is."""
    for number in (1, 2):
        context.progress(f"{given.text} {number}", number, 2)
    return "counted"


TOOLS = (queue, grant, see, count)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """A loop in mode default with these tools, over an agent on this machine."""
    with open_work(
        "local", tmp_path, change=lambda spec: replace(spec, mode="default"), tools=TOOLS
    ) as opened:
        yield opened


def test_queued_texts_are_the_hosts_in_the_order_of_the_calls(work: Work) -> None:
    """Nothing of them runs; an event tells each, and they are taken once."""
    events = work.events(*[("queue", {"text": f"run {n}"}) for n in range(5)])
    told = [event.text for event in events if isinstance(event, CommandQueued)]
    assert told == [f"run {n}" for n in range(5)]
    assert work.loop.queued() == tuple(told)
    assert work.loop.queued() == ()


def test_a_granted_rule_holds_after_its_turn(work: Work) -> None:
    """Within the turn nothing is allowed by it, whatever the order of the calls."""
    touch: dict[str, Any] = {"command": "touch made"}
    granted = ("grant", {"text": "run_command(touch *)"})
    first, second = work.turn(granted, ("run_command", touch))
    assert (first.code, second.code) == (None, Code.APPROVAL_REQUIRED)
    assert work.call("run_command", **touch).code is None


def test_a_file_that_a_tool_has_read_may_be_changed(work: Work) -> None:
    """By its hash: what has changed since is a conflict."""
    work.write("f", "one\n")
    arguments = {"path": "f", "old_string": "one", "new_string": "two"}
    work.loop.allow("edit_file(/f)")
    assert work.call("edit_file", **arguments).code is Code.NOT_READ
    assert work.call("see", text="f").content == "seen"
    assert work.call("edit_file", **arguments).code is None
    work.write("f", "one\nmore\n")
    assert work.call("edit_file", **arguments).code is Code.CONFLICT


def test_progress_is_told_while_the_call_runs(work: Work) -> None:
    """Message, how far, of how much; before the call has finished."""
    events = work.events(("count", {"text": "step"}))
    told = [event for event in events if isinstance(event, Progress | Finished)]
    assert [type(event) for event in told] == [Progress, Progress, Finished]
    assert [(event.message, event.current, event.total) for event in told[:2]] == [  # type: ignore[union-attr]
        ("step 1", 1, 2),
        ("step 2", 2, 2),
    ]


# ─── the same under the names of `standard` ─────────────────────────────────────────


@pytest.mark.parametrize(
    ("toolset", "name"), [("standard", "task_output"), ("claude-code", "TaskOutput")]
)
def test_output_of_a_task_is_waited_for_half_a_minute(toolset: str, name: str) -> None:
    """`block` is true and `timeout` 30000 where a model leaves them out."""
    given = tools(toolset)[name].parse({"task_id": "bash_1"}).model_dump()
    assert (given["block"], given["timeout"]) == (True, 30_000)


@pytest.mark.parametrize("name", ["run_command", "run_command_isolated"])
def test_commands_of_both_names_run_in_the_background(tmp_path: Path, name: str) -> None:
    """The task is listed under its description, and its output is read like any other's."""
    with open_work("local", tmp_path) as work:
        given = {"command": "echo done", "description": "Say it", "run_in_background": True}
        assert not work.call(name, **given).is_error
        [task] = [one for one in work.thread.run(work.loop.tasks()) if one.kind == "task"]
        assert task.description == "Say it"
        assert "done" in str(work.call("task_output", task_id=task.id).content)
