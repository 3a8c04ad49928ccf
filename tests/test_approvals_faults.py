"""Approvers that misbehave, arguments that change meanwhile, and what a difference may not hide."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from executor.approvals import CallableApprover, PolicyApprover, QueueApprover
from executor.errors import Code, StreamBroken
from executor.hooks import Hook, HookEvent, Hooks, Occasion
from executor.model import (
    ApprovalAnswer,
    ApprovalAnswered,
    ApprovalRequest,
    ApprovalRequested,
    Call,
    Question,
    Remember,
)
from tests.test_approvals import NO, TOUCH, YES, Recorder, opened, request_of, scene
from tests.test_callables import _deep


class Awkward:
    """An approver whose answer is whatever the test says.

    Args:
        approve: request → answer, in whatever way.
    """

    def __init__(self, approve: Callable[[ApprovalRequest], Any]) -> None:
        self.approve = approve

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        raise AssertionError("no question was expected")


def _later(answer: Any) -> Callable[[ApprovalRequest], Any]:
    async def approve(request: ApprovalRequest) -> Any:
        return answer

    return approve


def _raises(error: BaseException) -> Callable[[ApprovalRequest], Any]:
    async def approve(request: ApprovalRequest) -> Any:
        raise error

    return approve


def _at_once(request: ApprovalRequest) -> Any:
    raise ValueError("raised before there is anything to wait for")


def _with(arguments: Any) -> ApprovalAnswer:
    return ApprovalAnswer(approved=True, modified_arguments=arguments)


@pytest.mark.parametrize(
    ("approve", "reason"),
    [
        (_later(None), "NoneType where an answer belongs"),
        (_later(True), "bool where an answer belongs"),
        (_later({"approved": True}), "dict where an answer belongs"),
        (_later(ApprovalAnswer(approved="no")), "approved is 'no'"),  # type: ignore[arg-type]
        (_later(ApprovalAnswer(approved=1)), "approved is 1"),  # type: ignore[arg-type]
        (_later(ApprovalAnswer(approved=True, reason=3)), "no text"),  # type: ignore[arg-type]
        (_later(_with(["touch x"])), "list where an object"),
        (_later(_with({"command": {"touch x"}})), "no JSON"),
        (_later(_with({"command": "touch x", "timeout": float("nan")})), "no JSON"),
        (_later(_with(_deep(100_000))), "nested too deep"),
        (lambda request: YES, "TypeError"),
        (_at_once, "ValueError"),
        (_raises(KeyError("x")), "KeyError"),
        (_raises(asyncio.CancelledError()), "it cancelled itself"),
    ],
)
def test_what_is_no_answer_is_a_no(
    tmp_path: Path, approve: Callable[[ApprovalRequest], Any], reason: str
) -> None:
    """It is one error result, told of once; nothing was run, and the next call is answered."""
    results, events = scene(
        tmp_path,
        Awkward(approve),
        ("run_command", {"command": "touch x"}),
        ("glob", {"pattern": "*"}),
    )
    assert results[0].code is Code.REJECTED and reason in str(results[0].content)
    assert results[1].code is None and "x" not in str(results[1].content)
    ended = [event for event in events if isinstance(event, ApprovalAnswered)]
    assert [event.approved for event in ended] == [False]


@pytest.mark.parametrize("said", ["no", "deny", 1, None, {"approved": False}])
def test_only_true_and_false_are_decisions_of_a_function(tmp_path: Path, said: Any) -> None:
    """What is merely true in Python's eyes, as the word no is, approves nothing."""
    (result,), _ = scene(tmp_path, CallableApprover(lambda request: said), TOUCH)
    assert result.code is Code.REJECTED


@pytest.mark.parametrize(
    ("modified", "code"),
    [
        ({"command": "rm x"}, Code.PERMISSION_DENIED),
        ({"path": "x"}, Code.INVALID_ARGUMENTS),
        ({"command": "touch x", "more": 1}, Code.INVALID_ARGUMENTS),
        ({"command": 7}, Code.INVALID_ARGUMENTS),
        ({}, Code.INVALID_ARGUMENTS),
        ({"command": "x" * (9 << 20)}, Code.INVALID_ARGUMENTS),
    ],
)
def test_modified_arguments_are_like_any_others(
    tmp_path: Path, modified: dict[str, Any], code: Code
) -> None:
    """Rules that deny, and what the tool takes, hold for an approver too."""
    (result,), _ = scene(
        tmp_path, Awkward(_later(_with(modified))), TOUCH, deny=("run_command(rm *)",)
    )
    assert result.code in (code, Code.TOO_LARGE) and not (tmp_path / "worktree/x").exists()


def test_modified_arguments_are_a_copy(tmp_path: Path) -> None:
    """Whoever gave them may change theirs; what was approved runs, and hooks can't reach it."""
    mine = {"command": "echo approved"}

    def change(occasion: Occasion) -> None:
        mine["command"] = "echo changed"
        occasion.use.input["command"] = "echo changed"  # type: ignore[index]

    seen: list[str] = []
    hooks = Hooks(
        [
            Hook(HookEvent.BEFORE, change),
            Hook(HookEvent.AFTER, lambda occasion: seen.append(occasion.use.input["command"])),
        ]
    )
    (result,), _ = scene(tmp_path, Awkward(_later(_with(mine))), TOUCH, hooks=hooks)
    assert str(result.content).startswith("approved")
    assert seen == ["echo approved"]


def test_arguments_that_change_while_somebody_decides_are_not_run(tmp_path: Path) -> None:
    """What was shown runs: the call's own arguments, nested ones too, are the host's."""
    edits = [{"old_str": "one", "new_str": "two"}]
    given: dict[str, Any] = {"path": "f", "edits": edits}
    root = tmp_path / "worktree"
    root.mkdir()
    (root / "f").write_text("one\n")

    async def approve(request: ApprovalRequest) -> ApprovalAnswer:
        edits[0]["new_str"] = "evil"
        given["path"] = "g"
        request.arguments["edits"][0]["new_str"] = "worse"
        return YES

    calls = [("read_file", {"path": "f"}), ("edit_file", given)]
    results, _ = scene(tmp_path, Awkward(approve), *calls, toolset="loom")
    assert results[1].code is None
    assert (root / "f").read_text() == "two\n"


def test_arguments_that_can_not_be_shown_are_not_asked_about(tmp_path: Path) -> None:
    """A host's own values: a call is refused, and nobody is asked."""
    recorder = Recorder()
    (deep, odd), _ = scene(
        tmp_path,
        recorder,
        ("run_command", _deep(100_000)),
        ("run_command", {"command": "touch x", "description": iter(())}),
    )
    assert deep.code is odd.code is Code.INVALID_ARGUMENTS
    assert recorder.requests == []


def _other_text(root: Path) -> None:
    (root / "f").write_text("precious")


def _directory(root: Path) -> None:
    (root / "f").unlink()
    (root / "f").mkdir()
    (root / "f/precious").touch()


def _link(root: Path) -> None:
    (root / "f").unlink()
    (root / "f").symlink_to("g")


@pytest.mark.parametrize("swap", [_other_text, _directory, _link])
@pytest.mark.parametrize("more", [{}, {"mode": "bypass", "ask": ("edit_file(**)",)}])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("delete_file", {"path": "f", "recursive": True}),
        ("move_file", {"from": "g", "to": "f", "overwrite": True}),
    ],
)
def test_what_somebody_agreed_to_lose_is_what_was_there(
    tmp_path: Path,
    swap: Callable[[Path], None],
    more: dict[str, Any],
    name: str,
    arguments: dict[str, Any],
) -> None:
    """Whether the mode or a rule asks: what took its place meanwhile stays."""
    root = tmp_path / "worktree"
    root.mkdir()
    for one in ("f", "g"):
        (root / one).write_text("junk")

    async def approve(request: ApprovalRequest) -> ApprovalAnswer:
        swap(root)
        return YES

    (result,), _ = scene(tmp_path, Awkward(approve), (name, arguments), **more)
    assert result.code is Code.CONFLICT
    assert (root / "f").is_symlink() or (root / "f").exists()


def test_a_directory_that_is_still_written_can_be_deleted(tmp_path: Path) -> None:
    """Nobody was shown what is in it."""
    root = tmp_path / "worktree"
    (root / "f").mkdir(parents=True)

    async def approve(request: ApprovalRequest) -> ApprovalAnswer:
        (root / "f/more").touch()
        return YES

    arguments = {"path": "f", "recursive": True}
    (result,), _ = scene(tmp_path, Awkward(approve), ("delete_file", arguments))
    assert result.code is None and not (root / "f").exists()


# ─── rules that are remembered ──────────────────────────────────────────────────────

ODD_NAMES = [
    "a b",
    "a)b",
    "*",
    "[ab]",
    "!x",
    "a\nb",
    "#x",
    "\\x",
    "a\\",
    "**",
    "x ",
    " ",
    "?",
    "{a}",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_what_is_remembered_of_a_path_is_that_path(tmp_path: Path, name: str) -> None:
    """However odd its name: nothing fails for it, and no other file may be written for it."""
    root = tmp_path / "worktree"
    root.mkdir()
    others = ["ab", "a", "x", "b", "other", *(one for one in ODD_NAMES if one != name)]
    for one in (name, *others):
        (root / one).write_text("precious")

    async def approve(request: ApprovalRequest) -> ApprovalAnswer:
        is_first = request.step_id == f"call-{len(others) + 1}"
        return ApprovalAnswer(approved=is_first, remember=Remember.SESSION)

    names = (name, *others)
    calls: list[tuple[str, dict[str, Any]]] = [("read_file", {"path": one}) for one in names]
    calls += [("write_file", {"path": one, "content": "new"}) for one in names]
    results, _ = scene(tmp_path, Awkward(approve), *calls)
    assert results[len(names)].code is None
    assert {result.code for result in results[len(names) + 1 :]} == {Code.REJECTED}
    assert all((root / one).read_text() == "precious" for one in others)


@pytest.mark.parametrize(
    ("remembered", "asked"),
    [
        ("git commit -m x", ["git push", "git -c a=b commit", "git commit -m x; touch y"]),
        ("make", ["make install", "make; touch y", "make > f"]),
        (
            "touch x",
            ["touch y", "touch x y", "touch -r x", "/tmp/touch x", "X=1 LD_PRELOAD=y touch x"],
        ),
        ("npm run build", ["npm run evil", "npm install", "npm exec build"]),
        ("'A=b' x", ["'A=b' y", "touch y"]),
        ("echo 'a\nb' > f", ["echo 'a\nb' > g", "touch y"]),
        ("env rm x", ["env touch y", "rm y"]),
        ("sh -c 'touch x'", ["sh -c 'touch y'", "sh -c 'touch x; touch y'", "sh x"]),
    ],
)
def test_what_is_remembered_of_a_command_is_no_other_command(
    tmp_path: Path, remembered: str, asked: list[str]
) -> None:
    """A session's rule never reaches further than what it says."""

    async def approve(request: ApprovalRequest) -> ApprovalAnswer:
        is_first = request.step_id == "call-0"
        return ApprovalAnswer(approved=is_first, remember=Remember.SESSION)

    calls = [("run_command", {"command": text}) for text in (remembered, *asked)]
    results, _ = scene(tmp_path, Awkward(approve), *calls)
    assert results[0].code is not Code.INTERNAL
    assert [result.code for result in results[1:]] == [Code.REJECTED] * len(asked)


# ─── differences ────────────────────────────────────────────────────────────────────


def shown_diff(directory: Path, old: str, new: str) -> str | None:
    """The difference that is shown of writing a file over."""
    root = directory / "worktree"
    root.mkdir(exist_ok=True)
    (root / "f").write_bytes(old.encode())
    recorder = Recorder(NO)
    calls = [("read_file", {"path": "f"}), ("write_file", {"path": "f", "content": new})]
    scene(directory, recorder, *calls)
    return recorder.requests[0].diff


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a\nb\n", "a\r\nb\r\n", ["-a", "-b", "+a\r", "+b\r"]),
        ("a\n", "a", ["-a", "+a", "\\ No newline at end of file"]),
        ("// a\nb()\n", "// a\u2028b()\n", ["-// a", "-b()", "+// a\u2028b()"]),
        ("a\nb\n", "a\x0cb\n", ["-a", "-b", "+a\x0cb"]),
        ("a\nb\n", "a\x85b\n", ["-a", "-b", "+a\x85b"]),
        ("", "x", ["+x", "\\ No newline at end of file"]),
    ],
)
def test_a_difference_hides_no_character(
    tmp_path: Path, old: str, new: str, expected: list[str]
) -> None:
    """Line ends, a last line without one, and characters that only some take for line ends."""
    diff = shown_diff(tmp_path, old, new)
    assert diff is not None
    assert [line for line in diff.split("\n")[3:] if line[:1] != " "] == expected


def test_what_changes_nothing_has_no_difference(tmp_path: Path) -> None:
    """So that the content itself is shown."""
    assert shown_diff(tmp_path, "a\n", "a\n") is None


NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {},
    "cells": [
        {
            **{"cell_type": "code", "id": "one", "metadata": {}, "execution_count": 1},
            "source": ["x = 1\n", "y = 2"],
            "outputs": [{"output_type": "stream", "name": "stdout", "text": "o" * 200_000}],
        },
        {"cell_type": "markdown", "id": "two", "metadata": {}, "source": "# Title"},
    ],
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"cell_id": "one", "new_source": "x = 1\ny = 3"},
            ["--- a/n.ipynb#one", "+++ b/n.ipynb#one", " x = 1", "-y = 2", "+y = 3"],
        ),
        (
            {"cell_id": "two", "new_source": "", "edit_mode": "delete"},
            ["--- a/n.ipynb#two", "-# Title"],
        ),
        (
            {"cell_id": "two", "new_source": "z", "edit_mode": "insert", "cell_type": "code"},
            ["--- a/n.ipynb#new cell", "+z"],
        ),
    ],
)
def test_a_change_of_a_cell_is_shown(
    tmp_path: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    """Its source before and after, whatever else is in the notebook."""
    root = tmp_path / "worktree"
    root.mkdir()
    (root / "n.ipynb").write_text(json.dumps(NOTEBOOK))
    recorder = Recorder(NO)
    calls = [
        ("read_file", {"path": "n.ipynb"}),
        ("notebook_edit", {"notebook_path": "n.ipynb", **changes}),
    ]
    scene(tmp_path, recorder, *calls)
    diff = recorder.requests[0].diff
    assert diff is not None and set(expected) <= set(diff.split("\n"))
    assert "ooo" not in diff


def test_a_cell_that_is_not_there_is_not_asked_about(tmp_path: Path) -> None:
    """The call would fail anyway."""
    root = tmp_path / "worktree"
    root.mkdir()
    (root / "n.ipynb").write_text(json.dumps(NOTEBOOK))
    recorder = Recorder()
    given = {"notebook_path": "n.ipynb", "cell_id": "three", "new_source": "x"}
    calls = [("read_file", {"path": "n.ipynb"}), ("notebook_edit", given)]
    results, _ = scene(tmp_path, recorder, *calls)
    assert (results[1].code, recorder.requests) == (Code.NO_MATCH, [])


def test_a_name_with_a_line_end_is_one_path(tmp_path: Path) -> None:
    """What is shown of it can't be taken for two."""
    recorder = Recorder(NO)
    (tmp_path / "worktree").mkdir()
    (tmp_path / "worktree/a\nsecret").write_text("x")
    scene(tmp_path, recorder, ("delete_file", {"path": "a\nsecret"}))
    assert recorder.requests[0].action == "a\\nsecret"


# ─── policies and queues ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "approved"),
    [
        ({"arguments": {"command": "ls; rm x"}}, False),
        ({"arguments": {"command": "sudo rm x"}}, False),
        ({"arguments": {"command": "rm x; ls"}}, False),
        ({"arguments": {"command": "echo $("}}, False),
        ({"arguments": {"command": "$X y"}}, False),
        ({"arguments": {"command": "ls"}}, True),
        ({"tool": "edit_file", "arguments": {}, "action": "a.py\n.env"}, False),
        ({"tool": "web_fetch", "arguments": {}, "action": "good.org:443\nevil.org:80"}, False),
        ({"tool": "run_code", "arguments": {"code": "x"}, "action": "x"}, False),
    ],
)
def test_a_policy_denies_what_is_denied_in_part(changes: dict[str, Any], approved: bool) -> None:
    """One command of a line, one path, one host is enough; what is not understood is, too."""
    deny = ["run_command(rm *)", "edit_file(.env)", "web_fetch(domain:evil.org)", "run_code(rm *)"]
    policy = PolicyApprover(deny=deny, otherwise=True)
    assert asyncio.run(policy.approve(request_of(**changes))).approved is approved


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": {"command": "echo x > .bashrc"}},
        {"arguments": {"command": "> f"}},
        {"arguments": {"command": "X=1"}},
        {"arguments": {"command": "echo x > $f"}},
        {"arguments": {"command": ""}},
        {"tool": "web_fetch", "arguments": {}, "action": "evil.com\nok.x.org"},
        {"tool": "web_fetch", "arguments": {}, "action": "evil.com:80\nok.x.org:443"},
        {"tool": "run_code", "arguments": {"code": "x"}, "action": "echo"},
    ],
)
def test_a_policy_allows_what_is_allowed_as_a_whole(changes: dict[str, Any]) -> None:
    """A file that the shell writes, a second host, a program: the rule does not speak of them."""
    policy = PolicyApprover(
        allow=["run_command(echo *)", "web_fetch(domain:*.x.org)", "run_code(echo *)"]
    )
    assert not asyncio.run(policy.approve(request_of(**changes))).approved


def test_a_queue_that_nobody_reads_keeps_nothing() -> None:
    """Of requests that have ended nothing is left, and none is handed out."""

    async def run() -> None:
        queue = QueueApprover()
        for number in range(100):
            waiting = asyncio.ensure_future(queue.approve(request_of(id=str(number))))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
        assert queue.pending() == () and queue._unseen == {}
        last = asyncio.ensure_future(queue.approve(request_of(id="last")))
        assert (await anext(aiter(queue))).id == "last"
        queue.decide("last", YES)
        assert await last == YES

    asyncio.run(run())


# ─── streams that break, and time that runs out ─────────────────────────────────────


def test_what_waits_for_a_decision_when_the_stream_breaks_never_runs(tmp_path: Path) -> None:
    """It has not begun: the request is withdrawn, and the break is told at once."""
    block = {"type": "tool_use", "id": "t", "name": "run_command", "input": {"command": "touch x"}}
    answered: list[Any] = []

    async def run() -> None:
        queue = QueueApprover()

        async def events() -> AsyncIterator[dict[str, Any]]:
            yield {"type": "content_block_start", "index": 0, "content_block": block}
            yield {"type": "content_block_stop", "index": 0}
            await anext(aiter(queue))
            raise OSError("connection reset")

        async with opened(tmp_path, queue) as loop, asyncio.timeout(30):
            with pytest.raises(StreamBroken) as raised:
                async for event in loop.stream_model(events()):
                    if isinstance(event, ApprovalRequested | ApprovalAnswered):
                        answered.append(event)
            assert raised.value.unanswered == ("t",)
            assert queue.pending() == ()

    asyncio.run(run())
    assert [type(event) for event in answered] == [ApprovalRequested, ApprovalAnswered]
    assert not (tmp_path / "worktree/x").exists()


def test_the_time_of_a_decision_is_the_loops(tmp_path: Path) -> None:
    """Nobody is waited for longer than it lasts, and what is permitted too late is not run."""

    async def run() -> None:
        queue = QueueApprover()
        async with opened(tmp_path, queue) as loop, asyncio.timeout(30):
            pipeline, around = loop.pipeline, loop._surroundings
            call = Call("1", "run_command", {"command": "touch x"})
            answering = asyncio.ensure_future(pipeline.answer(call, around, time_left=0.1))
            request: Any = await anext(aiter(queue))
            assert request.timeout <= 0.1
            assert (await answering).result.code is Code.TIMEOUT
            with pytest.raises(LookupError):
                queue.decide(request.id, YES)
            around.session.mode = "bypass"
            late = (await pipeline.answer(call, around, time_left=1e-9)).result
            assert late.code is Code.TIMEOUT and "nothing was run" in str(late.content)

    asyncio.run(run())
    assert not (tmp_path / "worktree/x").exists()
