"""Hooks that misbehave, and what they may see and reach."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.catalog import load
from executor.controller import Controller
from executor.errors import Code, ConfigError
from executor.hooks import (
    ENDING_TIMEOUT,
    MAX_OUTPUT,
    MAX_TOLD,
    Hook,
    HookEvent,
    Hooks,
    Occasion,
    Reply,
)
from executor.model import Call, Directory, Finished, LoopSpec, Result
from executor.settings import Settings
from executor.tool import Arguments, Context, Outcome
from tests.driver import LoopThread
from tests.loops import opener
from tests.test_callables import _deep
from tests.test_hooks import (
    AFTER,
    BEFORE,
    FAILED,
    TURN,
    USE,
    Rig,
    after,
    before,
    refusal,
    rig,
    saved,
)

__all__ = ["rig"]  # the fixture


# ─── what a command answers ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ('checking\n{"decision": "reject"}', "other text before a JSON object"),
        ('{"decison": "reject"}', "none of decision, reason, updated_input"),
        ('{"hookSpecificOutput": {"permissionDecision": "deny"}}', "none of decision"),
        ('{"updated_input": {"timeout": NaN}}', "NaN is no JSON"),
        ('{"decision": "reject"} trailing', "can't be used"),
        ('{"decision": "Reject"}', "write allow or reject"),
        ('{"decision": "reject"', "can't be used"),
        ('{"a":' * 10_000, "can't be used"),
        ('{"updated_input": {"x": "' + "x" * MAX_OUTPUT + '"}}', f"more than {MAX_OUTPUT} bytes"),
    ],
)
def test_a_no_that_is_not_understood_is_no_yes(tmp_path: Path, printed: str, reason: str) -> None:
    """What may have meant a rejection stops the call, and says how to write it."""
    path = tmp_path / "said"
    path.write_text(printed)
    assert reason in refusal(Hook(BEFORE, ["/bin/cat", str(path)]))


def test_a_byte_order_mark_hides_no_rejection(tmp_path: Path) -> None:
    """Programs of some systems begin with one."""
    path = tmp_path / "said"
    path.write_text('\ufeff{"decision": "reject", "reason": "no"}')
    assert refusal(Hook(BEFORE, ["/bin/cat", str(path)])) == "Bash was not run: no"


def test_a_command_may_repeat_what_it_was_told() -> None:
    """As one does that writes it down with `tee`."""
    assert before(Hook(BEFORE, "tee /dev/null")) is None


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply("no"), "write allow or reject"),  # type: ignore[arg-type]
        (Reply(True), "write allow or reject"),  # type: ignore[arg-type]
        (Reply(reason=3), "reason must be text"),  # type: ignore[arg-type]
        (Reply(updated_input=["ls"]), "must be an object"),  # type: ignore[arg-type]
        (Reply(updated_input={"command": {1}}), "no JSON"),
        (Reply(updated_input=_deep(100_000)), "nested too deep"),
    ],
)
def test_a_reply_of_other_types_is_a_failure(reply: Reply, reason: str) -> None:
    """Before a call it stops it; after one it is a warning, and the result stays."""
    assert reason in refusal(Hook(BEFORE, lambda occasion: reply))
    notes, warnings = after(Hook(AFTER, lambda occasion: reply))
    assert notes == [] and reason in warnings[0]


def test_other_words_for_a_rejection_are_one() -> None:
    """A callable's, too."""
    stop = Hook(BEFORE, lambda occasion: Reply("deny", "no"))  # type: ignore[arg-type]
    assert refusal(stop) == "Bash was not run: no"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGPIPE])
def test_a_command_that_a_signal_ends_has_not_agreed(number: int) -> None:
    """Whichever signal it was."""
    assert f"signal {number:d}" in refusal(Hook(BEFORE, f"kill -{number:d} $$"))


def test_a_command_that_is_not_there_any_more_has_not_agreed(tmp_path: Path) -> None:
    """A script that was deleted, one that can't be run, and a relative path."""
    script = tmp_path / "check"
    script.write_text("#!/bin/sh\nexit 0\n")
    assert "can't be started" in refusal(Hook(BEFORE, [str(script)]))
    script.chmod(0o755)
    assert before(Hook(BEFORE, [str(script)])) is None
    script.unlink()
    assert "can't be started" in refusal(Hook(BEFORE, [str(script)]))
    assert "exit code 127" in refusal(Hook(BEFORE, str(script)))
    assert "can't be started" in refusal(Hook(BEFORE, ["./check"]))


# ─── what a callable can reach ──────────────────────────────────────────────────────


def test_what_a_hook_does_to_what_it_is_told_is_done_to_nothing_else() -> None:
    """Neither the input, nor the outcome, nor what the next hook sees."""

    def spoil(occasion: Occasion) -> None:
        occasion.use.input["command"] = "rm x"  # type: ignore[index]
        if occasion.outcome is not None:
            assert occasion.outcome.structured is not None
            occasion.outcome.structured["exit_code"] = 1
            occasion.outcome.content.clear()  # type: ignore[union-attr]

    seen: list[Any] = []

    def look(occasion: Occasion) -> None:
        seen.append((dict(occasion.use.input), occasion.outcome))

    outcome = Outcome([{"type": "text", "text": "done"}], {"exit_code": 0})
    assert before(Hook(BEFORE, spoil), Hook(BEFORE, look)) is None
    after(Hook(AFTER, spoil), Hook(AFTER, look), outcome=outcome)
    assert seen == [({"command": "ls"}, None), ({"command": "ls"}, outcome)]
    assert outcome.structured == {"exit_code": 0} and outcome.content
    assert USE.input == {"command": "ls"}


def test_a_hook_that_cancels_itself_has_failed() -> None:
    """Whoever waits for the call is not cancelled by it."""

    async def cancelled(occasion: Occasion) -> None:
        raise asyncio.CancelledError

    assert "it cancelled itself" in refusal(Hook(BEFORE, cancelled))


def test_hooks_of_a_cancelled_call_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are, the call's end is not put off for longer."""
    monkeypatch.setattr("executor.hooks.ENDING_TIMEOUT", 0.05)

    async def slow(occasion: Occasion) -> None:
        await asyncio.Event().wait()

    hooks = Hooks([Hook(FAILED, slow)] * 3)
    warnings = asyncio.run(hooks.after_failure(USE, asyncio.CancelledError()))
    assert "within 0.05 s" in warnings[0] and "within 0 s" in warnings[1] + warnings[2]


@pytest.mark.parametrize("command", ["rm x", "env rm x", "sh -c 'rm x'"])
def test_a_hook_gives_no_permission(rig: Callable[..., Rig], command: str) -> None:
    """What it makes of a call is denied by the rules that deny it, whatever it says itself."""
    made = Reply("allow", updated_input={"command": command})
    more = "[permissions]\ndeny = ['run_command(rm *)']\n"
    opened = rig([Hook(BEFORE, lambda occasion: made, "run_command")], more)
    opened.call("write_file", path="x", content="")
    assert opened.call("run_command", command="ls").code is Code.PERMISSION_DENIED
    assert opened.call("read_file", path="x").code is None


# ─── what a command is told of a result ─────────────────────────────────────────────


def told(tmp_path: Path, outcome: Outcome) -> dict[str, Any]:
    """What a command reads of an outcome."""
    path = tmp_path / "told"
    assert after(Hook(AFTER, saved(path)), outcome=outcome) == ([], [])
    response: dict[str, Any] = json.loads(path.read_text())["tool_response"]
    return response


def test_a_command_is_not_told_more_than_it_can_read(tmp_path: Path) -> None:
    """Pictures and data that are too long are named, and not sent."""
    picture = {"type": "image", "source": {"data": "x" * (MAX_TOLD + 1)}}
    outcome = Outcome([{"type": "text", "text": "hi"}, picture], {"stdout": "x" * (MAX_TOLD + 1)})
    response = told(tmp_path, outcome)
    assert response["content"][0] == {"type": "text", "text": "hi"}
    assert response["content"][1]["left_out"] > MAX_TOLD
    assert response["structured"] is None and response["structured_left_out"] is True
    small = Outcome([picture | {"source": {"data": "x"}}], {"a": 1})
    assert told(tmp_path, small)["content"][0]["source"] == {"data": "x"}


def test_hooks_see_what_the_model_sees(rig: Callable[..., Rig]) -> None:
    """A result that is too long is cut before, and says where all of it is."""
    seen: list[Outcome] = []

    def look(occasion: Occasion) -> None:
        assert occasion.outcome is not None
        seen.append(occasion.outcome)

    more = "[tools.glob]\nmax_output_bytes = 1000\n"
    opened = rig([Hook(AFTER, look, "glob")], more)
    opened.call("run_command", command="for i in $(seq 100 400); do : > long-name-$i; done")
    result = opened.call("glob", pattern="*")
    assert result.truncated and len(str(result.content)) <= 1000
    assert seen[0].content == result.content and seen[0].truncated


# ─── once a turn ────────────────────────────────────────────────────────────────────


def turns(rig: Callable[..., Rig]) -> tuple[Rig, list[list[str]]]:
    """A loop whose turns are noted."""
    seen: list[list[str]] = []

    def look(occasion: Occasion) -> None:
        seen.append([use.call_id for use in occasion.uses])

    return rig([Hook(TURN, look)]), seen


WRITE = Call("write", "write_file", {"path": "f", "content": "1"})


def test_the_turns_hook_is_called_once_or_not_at_all(rig: Callable[..., Rig]) -> None:
    """For the calls that succeeded and may have changed something, of all that there were."""
    opened, seen = turns(rig)
    reads = [Call("read", "read_file", {"path": "f"}), Call("no", "nope", {})]
    failing = Call("fails", "edit_file", {"path": "none", "old_string": "a", "new_string": "b"})
    again = replace(WRITE, id="again", input={"path": "g", "content": "1"})
    opened.thread.run(opened.loop.turn([*reads, failing]))
    opened.thread.run(opened.loop.turn([]))
    assert seen == []
    opened.thread.run(opened.loop.turn([WRITE, *reads, failing, again]))
    assert seen == [["write", "again"]]


def test_calls_that_a_tool_makes_are_the_turns_too(rig: Callable[..., Rig]) -> None:
    """The turn's hook is told of them, and what was validated is in doubt after them."""

    async def make(context: Context, given: Any) -> Outcome:
        assert context.loop.call is not None
        await context.loop.call(context, "run_command", {"command": "touch x"})
        return Outcome("made")

    opened, seen = turns(rig)
    known = opened.loop.registry.get("complete_task")
    assert known is not None
    tool = replace(known, name="make", run=make, arguments=Arguments, unavailable=None)
    opened.loop.registry.register(tool)
    opened.loop.session.validated = True
    opened.thread.run(opened.loop.turn([Call("1", "make", {})]))
    opened.call("read_file", path="x")
    assert seen == [["1.1"]] and opened.loop.session.validated is None


@pytest.mark.parametrize("how", ["task", "calls", "stream"])
def test_a_cancelled_turn_has_its_hook_too(rig: Callable[..., Rig], how: str) -> None:
    """What was written before is told of, however the turn ends: task, calls, or its reader."""
    opened, seen = turns(rig)
    calls = [WRITE, Call("sleeps", "run_command", {"command": "echo begun; sleep 300"})]

    async def scene() -> None:
        stream = opened.loop.stream(calls)
        if how == "task":
            running = asyncio.Event()

            async def drain() -> None:
                async for event in stream:
                    if isinstance(event, Finished):
                        running.set()

            task = asyncio.ensure_future(drain())
            await running.wait()
            task.cancel()
            await asyncio.wait({task})
        else:
            async for event in stream:
                if isinstance(event, Finished):
                    if how == "stream":
                        break
                    opened.loop.cancel()
        await stream.aclose()  # type: ignore[attr-defined]

    opened.thread.run(scene())
    assert seen == [["write"]]


def test_a_reader_who_leaves_with_the_last_result_ends_no_hook(rig: Callable[..., Rig]) -> None:
    """The turn's hook has its time, and the loop's changes are made."""
    ended: list[bool] = []

    async def slow(occasion: Occasion) -> None:
        for _ in range(200):
            await asyncio.sleep(0)
        ended.append(True)

    opened = rig([Hook(TURN, slow)])

    async def scene() -> None:
        stream = opened.loop.stream([WRITE])
        async for event in stream:
            if isinstance(event, Finished):
                break
        await stream.aclose()  # type: ignore[attr-defined]

    opened.thread.run(scene())
    assert ended == [True] and ENDING_TIMEOUT > 0


def test_a_call_that_is_cancelled_behind_itself_keeps_its_result(rig: Callable[..., Rig]) -> None:
    """It has run: while a hook still looks at it, cancelling does not make that unsaid."""
    running = asyncio.Event()

    async def slow(occasion: Occasion) -> None:
        running.set()
        await asyncio.Event().wait()

    opened = rig([Hook(AFTER, slow)])

    async def scene() -> Result:
        call = Call("1", "run_command", {"command": "echo done"})
        task = asyncio.ensure_future(opened.loop.turn([call]))
        await running.wait()
        opened.loop.cancel()
        (result,) = await task
        return result

    result = opened.thread.run(scene())
    assert result.code is Code.CANCELLED and str(result.content).startswith("done")


# ─── where hooks may lie ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["/{}/hook.sh", "sh ./{}/hook.sh", "{}/hook.sh", "'{}'/hook.sh x"])
def test_other_spellings_of_the_worktree_are_it(tmp_path: Path, form: str) -> None:
    """Two slashes, and paths relative to where commands start."""
    root = tmp_path / "worktree"
    root.mkdir()
    text = form.format(root if form.startswith("/{") else str(root)[1:])
    for run in (text, ["/bin/sh", "-c", text], text.split()):
        with pytest.raises(ConfigError, match="lies in the worktree"):
            Hooks([Hook(BEFORE, run)]).check([str(root)])


@pytest.mark.parametrize("is_writable", [False, True])
def test_no_hook_runs_out_of_a_directory_that_the_loop_may_write(
    loop_thread: LoopThread, tmp_path: Path, is_writable: bool
) -> None:
    """What is added to be written is like the worktree; what is only read is not."""
    root, beside = tmp_path / "worktree", tmp_path / "beside"
    root.mkdir()
    beside.mkdir()
    settings = replace(Settings.load(), state_directory=tmp_path / "state")
    hooks = Hooks([Hook(HookEvent.BEFORE, f"{beside}/hook.sh")])
    made = Controller(settings, load(), opener=opener("local", tmp_path), hooks=hooks)
    controller = loop_thread.enter(made)
    added = (Directory(beside, is_writable=is_writable),)
    spec = LoopSpec(worktree=root, add_dirs=added)
    if is_writable:
        with pytest.raises(ConfigError, match="added directory"):
            loop_thread.enter(controller.open(spec))
    else:
        controller._check(spec)


def test_a_command_inherits_no_descriptor(tmp_path: Path) -> None:
    """But its three, even where ours are inheritable."""
    path = tmp_path / "seen"
    read, write = os.pipe()
    try:
        os.set_inheritable(read, True)
        assert before(Hook(BEFORE, f"cd /proc/self/fd; echo * > {path}")) is None
    finally:
        os.close(read)
        os.close(write)
    assert str(read) not in path.read_text().split()
