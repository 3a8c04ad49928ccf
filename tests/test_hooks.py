"""Hooks around calls: callables, and commands on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.catalog import PACKAGED, load, parse
from executor.controller import Controller
from executor.errors import Code, ConfigError, ToolError
from executor.hooks import (
    DIRECTORY,
    ENVIRONMENT,
    MAX_OUTPUT,
    Hook,
    HookEvent,
    Hooks,
    Occasion,
    Reply,
    Use,
)
from executor.model import Call, LoopSpec, Result, Warned
from executor.settings import Settings
from executor.tool import Outcome
from tests.driver import LoopThread, wait_until
from tests.loops import opener
from tests.terminals import COMMAND
from tests.test_catalog import TEXT

BEFORE, AFTER = HookEvent.BEFORE, HookEvent.AFTER
FAILED, TURN = HookEvent.AFTER_FAILURE, HookEvent.AFTER_TURN
USE = Use("Bash", "run_command", {"command": "ls"}, "1", "turn-1", "loop", "/workspace", True)


def before(*hooks: Hook, use: Use = USE) -> Any:
    """The input that a call would run with; None = its own."""
    return asyncio.run(Hooks(hooks).before(use))


def refusal(*hooks: Hook) -> str:
    """Why the hooks stop a call."""
    with pytest.raises(ToolError) as raised:
        before(*hooks)
    assert raised.value.code is Code.REJECTED
    return str(raised.value)


def after(*hooks: Hook, outcome: Outcome | None = None) -> tuple[list[str], list[str]]:
    """Notes and warnings after a call."""
    return asyncio.run(Hooks(hooks).after(USE, outcome or Outcome("done")))


# ─── callables ──────────────────────────────────────────────────────────────────────


def test_hooks_are_called_in_order_and_see_what_was_made_of_the_input() -> None:
    """Async and plain ones alike; the last input is the call's."""
    seen: list[Any] = []

    async def first(occasion: Occasion) -> Reply | None:
        seen.append(dict(occasion.use.input))
        return Reply(updated_input={"command": "pwd"})

    def second(occasion: Occasion) -> Reply | None:
        seen.append(dict(occasion.use.input))
        return None

    assert before(Hook(BEFORE, first), Hook(BEFORE, second)) == {"command": "pwd"}
    assert seen == [{"command": "ls"}, {"command": "pwd"}]


def test_an_input_that_comes_back_unchanged_is_no_change() -> None:
    """A hook may always answer with the input as it wants it."""
    assert before(Hook(BEFORE, lambda occasion: Reply(updated_input={"command": "ls"}))) is None


def test_a_rejection_ends_the_round() -> None:
    """Its reason goes to the model; hooks after it are not called."""

    def never(occasion: Occasion) -> None:
        raise AssertionError("called after a rejection")

    stop = Hook(BEFORE, lambda occasion: Reply("reject", "not on a Friday"))
    assert refusal(stop, Hook(BEFORE, never)) == "Bash was not run: not on a Friday"

    def refuse(occasion: Occasion) -> None:
        raise ToolError(Code.REJECTED, "no")

    assert refusal(Hook(BEFORE, refuse)) == "Bash was not run: no"


async def _slow(occasion: Occasion) -> None:
    await asyncio.Event().wait()


async def _broken(occasion: Occasion) -> None:
    raise ZeroDivisionError("oops")


async def _wrong(occasion: Occasion) -> Any:
    return True


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (_slow, "no answer within 0.05 s"),
        (_broken, "ZeroDivisionError: oops"),
        (_wrong, "it returned bool; return a Reply or None"),
        ("exit 1", "exit code 1"),
        ("echo why >&2; exit 3", "exit code 3: why"),
        ("kill -9 $$", "signal 9"),
        (["/no/such/program"], "it can't be started"),
        ("echo '{'", "JSON that can't be used"),
        ('echo \'{"decision": "maybe"}\'', "write allow or reject"),
        ("echo '{\"decision\": [1]}'", "write allow or reject"),
        ("echo '{\"reason\": 3}'", "reason must be text"),
        ("echo '{\"updated_input\": []}'", "updated_input must be an object"),
    ],
)
def test_a_hook_that_fails_stops_what_it_has_to_agree_to(run: Any, reason: str) -> None:
    """Before a call it fails closed; after one it is a warning, and the result stays."""
    seconds = 0.05 if run is _slow else 20.0
    message = refusal(Hook(BEFORE, run, timeout=seconds))
    assert (
        message.startswith("Bash was not run: a hook that has to agree failed")
        and reason in message
    )
    notes, warnings = after(Hook(AFTER, run, timeout=seconds))
    assert notes == [] and len(warnings) == 1
    assert warnings[0].startswith("the PostToolUse hook ") and reason in warnings[0]


@pytest.mark.parametrize(
    ("matcher", "matches"),
    [
        ("*", True),
        ("Bash", True),
        ("run_command", True),
        ("Bas", False),
        ("run_.*", True),
        ("Edit|Write", False),
        ("Edit|Bash", True),
    ],
)
def test_a_matcher_is_a_name_or_an_expression(matcher: str, matches: bool) -> None:
    """Canonical or shown; an expression has to match all of it."""
    stop = Hook(BEFORE, lambda occasion: Reply("reject"), matcher)
    if matches:
        assert refusal(stop) == "Bash was not run: no reason was given"
    else:
        assert before(stop) is None


def test_a_note_is_added_after_a_call() -> None:
    """Each hook may add one; it sees the outcome."""
    seen: list[Any] = []

    def look(occasion: Occasion) -> Reply:
        seen.append(occasion.outcome)
        return Reply(reason="remember the changelog")

    outcome = Outcome("done", {"exit_code": 0})
    assert after(Hook(AFTER, look), Hook(FAILED, _broken), outcome=outcome) == (
        ["remember the changelog"],
        [],
    )
    assert seen == [outcome]


def test_the_turns_hook_is_told_of_the_calls_it_matches() -> None:
    """Once for all of them."""
    seen: list[Any] = []

    def look(occasion: Occasion) -> None:
        seen.append([use.tool for use in occasion.uses])

    uses = [USE, replace(USE, tool="Edit", canonical="edit_file")]
    hooks = Hooks([Hook(TURN, look), Hook(TURN, look, "Edit"), Hook(TURN, look, "Read")])
    assert asyncio.run(hooks.after_turn(uses)) == []
    assert seen == [["Bash", "Edit"], ["Edit"]]


def test_a_cancelled_call_is_not_held_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failure hook has less time, and is told that it was cancelled."""
    monkeypatch.setattr("executor.hooks.ENDING_TIMEOUT", 0.05)
    hooks = Hooks([Hook(FAILED, _slow)])
    warnings = asyncio.run(hooks.after_failure(USE, asyncio.CancelledError()))
    assert "no answer within 0.05 s" in warnings[0]
    told = Occasion(FAILED, (USE,), error=asyncio.CancelledError()).to_json()
    assert told["error"] == {"code": "CANCELLED", "message": "CancelledError"}


# ─── commands ───────────────────────────────────────────────────────────────────────


def saved(path: Path) -> list[str]:
    """A command that keeps what it is given."""
    return ["/bin/sh", "-c", 'cat > "$1"', "sh", str(path)]


def test_a_command_is_told_of_the_call_as_json(tmp_path: Path) -> None:
    """One line with the fields of the contract; what acts in a terminal is escaped in it."""
    path = tmp_path / "told"
    use = replace(USE, input={"command": "echo \x1b[2J\u202e\udcff"})
    assert before(Hook(BEFORE, saved(path)), use=use) is None
    text = path.read_text()
    assert text.isascii() and text.count("\n") == 1
    assert json.loads(text) == {
        "hook_event_name": "PreToolUse",
        "exec_id": "loop",
        "turn_id": "turn-1",
        "cwd": "/workspace",
        "tool_name": "Bash",
        "tool_input": {"command": "echo \x1b[2J\u202e\udcff"},
        "call_id": "1",
    }
    after(Hook(AFTER, saved(path)), outcome=Outcome("out", {"a": 1}, is_error=True))
    assert json.loads(path.read_text())["tool_response"] == {
        **{"content": "out", "structured": {"a": 1}, "is_error": True}
    }
    asyncio.run(Hooks([Hook(FAILED, saved(path))]).after_failure(USE, ToolError(Code.TIMEOUT, "t")))
    assert json.loads(path.read_text())["error"] == {"code": "TIMEOUT", "message": "t"}
    asyncio.run(Hooks([Hook(TURN, saved(path))]).after_turn([USE]))
    assert json.loads(path.read_text())["tools"] == [
        {"tool_name": "Bash", "tool_input": {"command": "ls"}, "call_id": "1"}
    ]


def test_what_a_command_says() -> None:
    """Exit 0 with JSON or other text, exit 2 with a reason on standard error."""
    assert before(Hook(BEFORE, "echo hello")) is None
    assert before(Hook(BEFORE, "true")) is None
    reply = json.dumps({"updated_input": {"command": "pwd"}, "decision": "allow"})
    assert before(Hook(BEFORE, ["/bin/echo", reply])) == {"command": "pwd"}
    assert refusal(Hook(BEFORE, "echo because >&2; exit 2")) == "Bash was not run: because"
    reply = json.dumps({"decision": "reject", "reason": "no"})
    assert refusal(Hook(BEFORE, ["/bin/echo", reply])) == "Bash was not run: no"
    assert after(Hook(AFTER, "echo tidy up >&2; exit 2")) == (["tidy up"], [])


def test_what_a_box_sent_is_data_to_a_command(tmp_path: Path) -> None:
    """No part of a call becomes a word, a variable or a path of the command."""
    marker = tmp_path / "marker"
    evil = f"'; touch {marker}; `touch {marker}` $(touch {marker}) \n touch {marker}"
    use = replace(USE, input={evil: evil}, cwd=evil)
    assert before(Hook(BEFORE, "cat > /dev/null"), use=use) is None
    assert after(Hook(AFTER, "cat"), outcome=Outcome(evil))[1] == []
    assert not marker.exists()


def test_a_command_has_a_fixed_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of ours, nothing of the loop's; it starts in the root directory."""
    monkeypatch.setenv("SECRET", "1")
    path = tmp_path / "seen"
    code = "import os, sys; open(sys.argv[1], 'w').write(repr((dict(os.environ), os.getcwd())))"
    assert before(Hook(BEFORE, [sys.executable, "-S", "-c", code, str(path)])) is None
    environment, directory = eval(path.read_text())
    assert {name: environment[name] for name in ENVIRONMENT} == ENVIRONMENT
    assert set(environment) - set(ENVIRONMENT) <= {"LC_CTYPE"}
    assert directory == DIRECTORY == "/"


def test_a_command_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """Its whole group is killed."""
    path = tmp_path / "pid"
    script = f"sleep 300 & echo $! > {path}; wait"
    assert "no answer within 0.3 s" in refusal(Hook(BEFORE, script, timeout=0.3))
    assert not is_alive(int(path.read_text()))


def is_alive(pid: int) -> bool:
    """Does a process run, or is it not waited for yet by its new parent?"""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        os.sched_yield()
    return True


def test_a_cancelled_command_is_killed(tmp_path: Path) -> None:
    """Nothing of it is left when whoever waited for it is cancelled."""
    path = tmp_path / "pid"

    async def scene() -> None:
        script = f"echo $$ > {path}.new; mv {path}.new {path}; sleep 300"
        task = asyncio.ensure_future(Hooks([Hook(BEFORE, script)]).before(USE))
        await asyncio.to_thread(wait_until, path.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert not is_alive(int(path.read_text()))


def test_what_a_command_leaves_running_does_not_hold_it_up() -> None:
    """A process that keeps its streams open is not waited for."""
    started = time.monotonic()
    assert before(Hook(BEFORE, "sleep 20 & true", timeout=15)) is None
    assert time.monotonic() - started < 10


def test_output_without_end_is_dropped() -> None:
    """What is kept of each stream is bounded, and the command is not blocked by it."""
    script = f"head -c {20 * MAX_OUTPUT} /dev/zero | tr '\\0' x >&2; exit 2"
    message = refusal(Hook(BEFORE, script))
    assert message.startswith("Bash was not run: xxx") and len(message) < MAX_OUTPUT
    assert before(Hook(BEFORE, f"head -c {20 * MAX_OUTPUT} /dev/zero")) is None


def test_a_command_need_not_read_its_input() -> None:
    """More than a pipe holds, to a command that ends at once."""
    use = replace(USE, input={"content": "x" * (4 << 20)})
    assert before(Hook(BEFORE, "true"), use=use) is None


# ─── configuration ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("hook", "fault"),
    [
        (Hook(BEFORE, "x", "("), "no regular expression"),
        (Hook(BEFORE, "x", timeout=0), "give more than 0 seconds"),
        (Hook(BEFORE, " "), "the command is empty"),
        (Hook(BEFORE, []), "the command is empty"),
        (Hook(BEFORE, "a\0b"), "NUL"),
        (Hook("PreTool", "x"), "there is no event 'PreTool'"),  # type: ignore[arg-type]
    ],
)
def test_bad_hooks_are_faults(hook: Hook, fault: str) -> None:
    """Each says what is wrong with it before anything is run."""
    with pytest.raises(ConfigError, match=r"^hook .*: ") as raised:
        Hooks([hook])
    assert fault in str(raised.value)


CATALOG_HOOKS = """
[[hooks]]
event = "PreToolUse"
matcher = "grep"
command = "echo from the catalog >&2; exit 2"

[[hooks]]
event = "PostToolUse"
command = ["/bin/true"]
timeout = 5
"""


def test_hooks_of_the_catalog() -> None:
    """A text is for the shell, a list is a program; unknown events are faults of the file."""
    catalog = parse([(PACKAGED, TEXT), ("my", CATALOG_HOOKS)])
    hooks = Hooks.from_catalog(catalog.hooks)._hooks
    assert hooks == (
        Hook(BEFORE, "echo from the catalog >&2; exit 2", "grep"),
        Hook(AFTER, ("/bin/true",), timeout=5.0),
    )
    with pytest.raises(ConfigError, match=r"my: hooks\.0\.event"):
        parse([(PACKAGED, TEXT), ("my", '[[hooks]]\nevent = "x"\ncommand = "y"\n')])


class Rig:
    """A loop with hooks over a local box."""

    def __init__(
        self, thread: LoopThread, directory: Path, hooks: Sequence[Hook], more: str = ""
    ) -> None:
        self.thread = thread
        self.root = directory / "worktree"
        self.root.mkdir()
        catalog = parse([(PACKAGED, TEXT), ("my", more)])
        settings = replace(Settings.load(), state_directory=directory / "state")
        controller = Controller(
            settings, catalog, opener=opener("local", directory), hooks=Hooks(hooks)
        )
        self.controller = thread.enter(controller)
        self.loop = thread.enter(self.controller.open(LoopSpec(worktree=self.root)))

    def call(self, name: str, **given: Any) -> Result:
        """The result of one call."""
        return self.thread.run(self.loop.execute(Call("1", name, given)))


@pytest.fixture
def rig(loop_thread: LoopThread, tmp_path: Path) -> Callable[..., Rig]:
    """Opens a loop with these hooks."""
    return lambda hooks, more="": Rig(loop_thread, tmp_path, hooks, more)


def test_hooks_around_real_calls(rig: Callable[..., Rig]) -> None:
    """A failed command has run; refusals of the first stages call no hook."""
    seen: list[str] = []

    def look(occasion: Occasion) -> None:
        seen.append(f"{occasion.event} {occasion.use.canonical}")

    opened = rig([Hook(event, look) for event in HookEvent])
    opened.call("run_command", command="exit 1")
    assert seen == ["PreToolUse run_command", "PostToolUse run_command"]
    seen.clear()
    opened.call("read_file", path="none")
    assert seen == ["PreToolUse read_file", "PostToolUseFailure read_file"]
    seen.clear()
    opened.call("read_file")
    opened.call("nope")
    assert seen == []
    opened.call("write_file", path="f", content="1")
    assert seen[-1] == "PostTools write_file"


def test_a_changed_input_is_checked_and_judged_again(rig: Callable[..., Rig]) -> None:
    """What a hook makes of a call is like a call of the model."""

    def other(occasion: Occasion) -> Reply | None:
        command = occasion.use.input["command"]
        return Reply(updated_input={"command": "pwd"} if command == "ls" else {"comand": "x"})

    opened = rig([Hook(BEFORE, other, "run_command")])
    assert opened.call("run_command", command="rm x").code is Code.INVALID_ARGUMENTS
    count = 0

    def restless(occasion: Occasion) -> Reply:
        nonlocal count
        count += 1
        return Reply(updated_input={"pattern": str(count)})

    opened.loop.pipeline.hooks = Hooks([Hook(BEFORE, restless)])
    result = opened.call("grep", pattern="x")
    assert result.code is Code.REJECTED and "changed 4 times" in str(result.content)


def test_a_note_stands_beside_the_result_and_a_failure_is_told(rig: Callable[..., Rig]) -> None:
    """PostToolUse never replaces a result; what fails is an event."""
    hooks = [Hook(AFTER, lambda occasion: Reply(reason="well done")), Hook(AFTER, _broken)]
    opened = rig(hooks)

    async def events() -> list[Any]:
        call = Call("1", "run_command", {"command": "echo hi"})
        return [event async for event in opened.loop.stream([call])]

    told = opened.thread.run(events())
    content = str(told[-1].result.content)
    assert content.startswith("hi") and "well done" in content
    warned = [event for event in told if isinstance(event, Warned)]
    assert len(warned) == 1 and "ZeroDivisionError" in warned[0].message


def test_hooks_of_the_catalog_come_first(rig: Callable[..., Rig]) -> None:
    """The controller puts its own behind them."""

    def never(occasion: Occasion) -> None:
        raise AssertionError

    opened = rig([Hook(BEFORE, never, "grep")], CATALOG_HOOKS)
    assert "from the catalog" in str(opened.call("grep", pattern="x").content)


@pytest.mark.parametrize("form", ["{}/hook.sh", "sh {}/hook.sh", "cat<{}/a|sh", "x={}/a; $x"])
@pytest.mark.parametrize("link", [False, True])
def test_no_hook_runs_out_of_the_worktree(
    loop_thread: LoopThread, tmp_path: Path, form: str, link: bool
) -> None:
    """What the loop can rewrite is never run on this machine: the loop is not opened."""
    root = tmp_path / "worktree"
    root.mkdir()
    place = tmp_path / "link"
    place.symlink_to(root)
    command = form.format(place if link else root)
    settings = replace(Settings.load(), state_directory=tmp_path / "state")
    for run in (command, ["/bin/sh", "-c", command]):
        hooks = Hooks([Hook(BEFORE, run)])
        made = Controller(settings, load(), opener=opener("local", tmp_path), hooks=hooks)
        controller = loop_thread.enter(made)
        with pytest.raises(ConfigError, match="lies in the worktree"):
            loop_thread.enter(controller.open(LoopSpec(worktree=root)))


@pytest.mark.parametrize("command", [["run"], ["call", "read_file"]])
@pytest.mark.parametrize("named_by", ["--config", "EXECUTOR_CATALOG"])
def test_no_configuration_is_taken_from_the_worktree(
    tmp_path: Path, command: list[str], named_by: str
) -> None:
    """Its hooks would run on this machine, and the loop can write it: not even if it is named."""
    root = tmp_path / "worktree"
    root.mkdir()
    config = root / "catalog.toml"
    config.write_text(CATALOG_HOOKS)
    arguments = [*COMMAND, *command, "--worktree", str(root)]
    environment = {**os.environ, "EXECUTOR_STATE_DIR": str(tmp_path / "state")}
    if named_by == "--config":
        arguments += [named_by, str(config)]
    else:
        environment[named_by] = str(config)
    done = subprocess.run(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "lies in the worktree" in done.stderr
