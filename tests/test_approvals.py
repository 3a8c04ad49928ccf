"""Requests, answers, and whoever decides."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.approvals import (
    CallableApprover,
    PolicyApprover,
    QuestionRequest,
    QueueApprover,
    fingerprint,
)
from executor.catalog import PACKAGED, parse
from executor.controller import Controller
from executor.errors import Code, ConfigError, ToolError
from executor.hooks import Hook, HookEvent, Hooks, Occasion, Reply
from executor.loop import Loop
from executor.model import (
    ApprovalAnswer,
    ApprovalAnswered,
    ApprovalRequest,
    ApprovalRequested,
    Call,
    Event,
    LoopSpec,
    Option,
    Question,
    Remember,
    Result,
)
from executor.settings import Settings
from executor.tool import Approver
from tests.driver import LoopThread
from tests.loops import opener
from tests.test_catalog import TEXT

YES, NO = ApprovalAnswer(approved=True), ApprovalAnswer(approved=False)
QUESTIONS = (Question("Which?", "Which", (Option("a", "A"), Option("b", "B"))),)


class Recorder:
    """Answers with what the test says, and keeps what it was asked."""

    def __init__(self, *answers: ApprovalAnswer) -> None:
        self.requests: list[ApprovalRequest] = []
        self._answers = list(answers)

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.requests.append(request)
        return self._answers.pop(0) if self._answers else YES

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        raise AssertionError("no question was expected")


@asynccontextmanager
async def opened(
    directory: Path, approver: Approver | None, *, more: str = "", hooks: Hooks | None = None,
    **changes: Any,
) -> AsyncIterator[Loop]:  # fmt: skip
    """A loop in mode default over a local box."""
    root = directory / "worktree"
    root.mkdir(exist_ok=True)
    catalog = parse([(PACKAGED, TEXT), ("my", more)])
    settings = replace(Settings.load(), state_directory=directory / "state")
    async with Controller(
        settings, catalog, opener=opener("local", directory), approver=approver, hooks=hooks
    ) as controller:
        spec = LoopSpec(worktree=root, exec_id="test", **{"mode": "default", **changes})
        async with controller.open(spec) as loop:
            yield loop


def scene(
    directory: Path, approver: Approver | None, *calls: tuple[str, dict[str, Any]], **more: Any
) -> tuple[list[Result], list[Event]]:
    """Results of calls that run one after the other, and what was told meanwhile."""

    async def run() -> tuple[list[Result], list[Event]]:
        results: list[Result] = []
        events: list[Event] = []
        async with opened(directory, approver, **more) as loop:
            for number, (name, given) in enumerate(calls):
                async for event in loop.stream([Call(f"call-{number}", name, given)]):
                    events.append(event)
                results.append(event.result)  # type: ignore[union-attr]
        return results, events

    return asyncio.run(run())


TOUCH: tuple[str, dict[str, Any]] = ("run_command", {"command": "touch x; git push origin"})


# ─── requests ───────────────────────────────────────────────────────────────────────


def test_a_request_says_what_would_run_and_why(tmp_path: Path) -> None:
    """All that a person needs, whole; the fingerprint binds it."""
    recorder = Recorder(NO)
    arguments = {"command": "git push origin"}
    (result,), events = scene(tmp_path, recorder, ("run_command", arguments))
    (request,) = recorder.requests
    assert request == ApprovalRequest(
        id=request.id,
        step_id="call-0",
        exec_id="test",
        tool="run_command",
        arguments=arguments,
        action="git push origin",
        description=None,
        reason="mode default asks before commands",
        diff=None,
        rules=("run_command(git push *)",),
        timeout=600.0,
        arguments_hash=fingerprint("run_command", arguments),
    )
    told = [event for event in events if isinstance(event, ApprovalRequested | ApprovalAnswered)]
    assert told[0].request == request  # type: ignore[union-attr]
    assert (told[1].request_id, told[1].approved) == (request.id, False)  # type: ignore[union-attr]
    assert (result.code, result.content) == (Code.REJECTED, "User denied permission.")


def test_a_long_command_is_there_to_its_end(tmp_path: Path) -> None:
    """Casebook K95: nothing of it is cut."""
    recorder = Recorder(NO)
    command = f"echo {'x' * 5000}; rm x"
    scene(tmp_path, recorder, ("run_command", {"command": command}))
    assert recorder.requests[0].action == command
    assert recorder.requests[0].rules == ("run_command(rm x)",)


def test_a_change_of_a_file_is_shown_as_a_difference(tmp_path: Path) -> None:
    """Edits and overwriting of what was read; what can't be shown is left out."""
    root = tmp_path / "worktree"
    root.mkdir()
    (root / "f").write_text("one\ntwo\nthree\n")
    (root / "binary").write_bytes(b"\xff\xfe\0")
    recorder = Recorder(NO, NO, NO)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": "f"}),
        ("read_file", {"path": "binary", "encoding": "base64"}),
        ("edit_file", {"path": "f", "old_string": "two", "new_string": "2"}),
        ("write_file", {"path": "f", "content": "one\n"}),
        ("write_file", {"path": "binary", "content": "x"}),
    ]
    scene(tmp_path, recorder, *calls)
    edit, write, binary = (request.diff for request in recorder.requests)
    assert edit is not None and edit.splitlines()[:2] == ["--- a/f", "+++ b/f"]
    assert "-two" in edit and "+2" in edit and " three" in edit
    assert write is not None and "-two" in write and "-three" in write
    assert binary is None
    assert (root / "f").read_text() == "one\ntwo\nthree\n"


def test_what_the_model_says_that_it_does_is_shown_beside_the_command(tmp_path: Path) -> None:
    """A description is the model's word, and is no part of the action."""
    recorder = Recorder(NO, NO)
    told = {"command": "touch x", "description": "Looks around"}
    scene(tmp_path, recorder, ("run_command", told), ("run_command", {"command": "touch x"}))
    assert [one.description for one in recorder.requests] == ["Looks around", None]
    assert [one.action for one in recorder.requests] == ["touch x", "touch x"]


def test_the_time_to_decide_is_the_catalogs(tmp_path: Path) -> None:
    """At most what the loop has left."""
    recorder = Recorder(NO, NO)
    scene(tmp_path, recorder, TOUCH, more="[permissions]\ntimeout = 5\n")
    assert recorder.requests[0].timeout == 5.0


# ─── answers ────────────────────────────────────────────────────────────────────────


def test_an_approved_call_runs_once(tmp_path: Path) -> None:
    """The same call is asked about the next time."""
    recorder = Recorder(YES, NO)
    results, _ = scene(tmp_path, recorder, *[("run_command", {"command": "touch x"})] * 2)
    assert [result.code for result in results] == [None, Code.REJECTED]


def test_a_denial_is_that_calls_alone(tmp_path: Path) -> None:
    """Its reason goes to the model; calls that need no approval go on."""
    recorder = Recorder(replace(NO, reason="use make"))
    results, _ = scene(tmp_path, recorder, TOUCH, ("run_command", {"command": "ls"}))
    assert results[0].content == "User denied permission: use make"
    assert results[1].code is None


def test_what_is_remembered_holds_until_the_loop_ends(tmp_path: Path) -> None:
    """The rules of the request, and no more than they name."""
    recorder = Recorder(replace(YES, remember=Remember.SESSION), NO)
    calls = [("run_command", {"command": text}) for text in ("make", "make", "make x")]
    results, _ = scene(tmp_path, recorder, *calls)
    assert [request.action for request in recorder.requests] == ["make", "make x"]
    assert results[2].code is Code.REJECTED


def test_modified_arguments_go_round_again(tmp_path: Path) -> None:
    """They are checked and judged, deny rules hold, and they are not asked about again."""

    def modified(**arguments: Any) -> ApprovalAnswer:
        return replace(YES, modified_arguments=arguments, remember=Remember.SESSION)

    recorder = Recorder(
        modified(command="touch y"), modified(command="rm y"), modified(comand="x"), NO
    )
    calls = [("run_command", {"command": "touch x"})] * 4
    results, _ = scene(tmp_path, recorder, *calls, deny=("run_command(rm *)",))
    assert [result.code for result in results] == [
        *(None, Code.PERMISSION_DENIED, Code.INVALID_ARGUMENTS, Code.REJECTED)
    ]
    assert [path.name for path in (tmp_path / "worktree").iterdir()] == ["y"]


def test_arguments_that_a_hook_changes_after_approval_are_asked_about(tmp_path: Path) -> None:
    """Casebook K95: an approval is bound to the arguments that were shown."""

    def change(occasion: Occasion) -> Reply:
        return Reply(updated_input={"command": "touch z"})

    recorder = Recorder(YES, NO)
    hooks = Hooks([Hook(HookEvent.BEFORE, change)])
    (result,), _ = scene(tmp_path, recorder, ("run_command", {"command": "touch x"}), hooks=hooks)
    assert [request.action for request in recorder.requests] == ["touch x", "touch z"]
    assert result.code is Code.REJECTED


def test_an_approver_can_not_change_what_runs(tmp_path: Path) -> None:
    """It has a copy: what it does to that is done to nothing."""

    async def meddle(request: ApprovalRequest) -> bool:
        dict.update(request.arguments, command="touch evil")
        return True

    given = {"command": "touch x"}
    kept = copy.deepcopy(given)
    scene(tmp_path, CallableApprover(meddle), ("run_command", given))
    assert given == kept
    assert [path.name for path in (tmp_path / "worktree").iterdir()] == ["x"]


def test_an_answer_for_other_arguments_is_no_approval(tmp_path: Path) -> None:
    """With another fingerprint the call is rejected."""
    recorder = Recorder(replace(YES, arguments_hash="0" * 64))
    (result,), events = scene(tmp_path, recorder, ("run_command", {"command": "touch x"}))
    assert result.code is Code.REJECTED and "other arguments" in str(result.content)
    assert not list((tmp_path / "worktree").iterdir())
    answered = [event for event in events if isinstance(event, ApprovalAnswered)]
    assert [event.approved for event in answered] == [False]


def test_nobody_answering_is_a_no(tmp_path: Path) -> None:
    """After the time the call fails with TIMEOUT, and nothing was run."""
    more = "[permissions]\ntimeout = 0.05\n"
    (result,), events = scene(tmp_path, QueueApprover(), TOUCH, more=more)
    assert result.code is Code.TIMEOUT and "within 0.05 s" in str(result.content)
    assert [event.approved for event in events if isinstance(event, ApprovalAnswered)] == [False]


def test_a_timeout_of_the_approvers_own_is_its_failure(tmp_path: Path) -> None:
    """An approver that fails approves nothing, whatever it fails with."""
    errors: list[Exception] = [TimeoutError("mine"), ZeroDivisionError("oops")]

    async def fail(request: ApprovalRequest) -> bool:
        raise errors.pop()

    results, _ = scene(tmp_path, CallableApprover(fail), TOUCH, TOUCH)
    for result, name in zip(results, ("ZeroDivisionError", "TimeoutError"), strict=True):
        assert result.code is Code.REJECTED and f"has failed ({name})" in str(result.content)


def test_a_cancelled_call_takes_its_request_along(tmp_path: Path) -> None:
    """Whoever was asked is told, and an answer that comes later is refused."""
    queue = QueueApprover()

    async def run() -> None:
        async with opened(tmp_path, queue) as loop:
            task = asyncio.ensure_future(loop.execute(Call("1", *TOUCH)))
            async with asyncio.timeout(30):
                request = await anext(aiter(queue))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert queue.pending() == ()
            with pytest.raises(LookupError, match="it may have ended"):
                queue.decide(request.id, YES)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("mode", "more", "expected"),
    [
        ("default", {}, "It would be allowed by the rule run_command(touch x)"),
        ("default", {"ask": ("run_command",)}, "Only without the rule run_command would it run"),
        (
            "bypass",
            {"ask": ("run_command(touch *)",)},
            "Only without the rule run_command(touch *)",
        ),
    ],
)
def test_asking_nobody_is_an_error_at_once(
    tmp_path: Path, mode: str, more: dict[str, Any], expected: str
) -> None:
    """Decisions row 1: it never waits, and names the rule."""
    call = ("run_command", {"command": "touch x"})
    (result,), events = scene(tmp_path, None, call, mode=mode, **more)
    assert result.code is Code.APPROVAL_REQUIRED
    assert "no one to ask" in str(result.content) and expected in str(result.content)
    assert not [event for event in events if isinstance(event, ApprovalRequested)]


def test_what_is_not_understood_has_no_smaller_rule_than_the_tool(tmp_path: Path) -> None:
    """Nothing that a person could agree to for a whole session is offered."""
    (result,), _ = scene(tmp_path, None, ("run_command", {"command": "touch $X"}))
    assert "No rule but run_command, for every call of it" in str(result.content)


def test_a_call_that_can_not_run_is_not_asked_about(tmp_path: Path) -> None:
    """Decisions row 37: arguments are checked first."""
    recorder = Recorder()
    results, _ = scene(tmp_path, recorder, ("run_command", {}), ("write_file", {"path": "a"}))
    assert {result.code for result in results} == {Code.INVALID_ARGUMENTS}
    assert recorder.requests == []


# ─── what changes between the question and the answer ───────────────────────────────


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """Decisions row 52: judged as new, it has to be new; the next call is asked about."""

    async def run() -> None:
        async with opened(tmp_path, None) as loop:
            path = tmp_path / "worktree" / "f"
            box: Any = loop._surroundings.box
            request = box.request

            async def interfering(op: str, *rest: Any, **more: Any) -> Any:
                answer = await request(op, *rest, **more)
                if op == "stat":
                    path.write_text("precious")
                return answer

            box.request = interfering
            write = Call("1", "write_file", {"path": "f", "content": "x"})
            result = await loop.execute(write)
            assert result.code is Code.CONFLICT and "appeared" in str(result.content)
            box.request = request
            assert (await loop.execute(write)).code is Code.APPROVAL_REQUIRED
            assert path.read_text() == "precious"

    asyncio.run(run())


@pytest.mark.parametrize("name", ["move_file", "write_file"])
def test_what_may_be_replaced_is_what_was_there_when_it_was_asked(
    tmp_path: Path, name: str
) -> None:
    """Decisions row 52: another content than the one agreed to is a conflict."""
    root = tmp_path / "worktree"
    root.mkdir()
    (root / "f").write_text("old")
    (root / "g").write_text("new")

    async def swap(request: ApprovalRequest) -> bool:
        (root / "f").write_text("precious")
        return True

    calls: list[tuple[str, dict[str, Any]]] = [("read_file", {"path": "f"})]
    if name == "move_file":
        calls.append((name, {"from": "g", "to": "f", "overwrite": True}))
    else:
        calls.append((name, {"path": "f", "content": "new"}))
    results, _ = scene(tmp_path, CallableApprover(swap), *calls)
    assert results[1].code is Code.CONFLICT
    assert (root / "f").read_text() == "precious"


# ─── whoever decides ────────────────────────────────────────────────────────────────


def request_of(**changes: Any) -> ApprovalRequest:
    """A request to run `git push`."""
    request = ApprovalRequest(
        id="a",
        step_id="1",
        exec_id="x",
        tool="run_command",
        arguments={"command": "git push"},
        action="git push",
        description=None,
        reason="",
        timeout=1,
        arguments_hash="h",
    )
    return replace(request, **changes)


async def _yes(request: ApprovalRequest) -> bool:
    return True


@pytest.mark.parametrize(
    "decides", [_yes, lambda request: True, lambda request: YES, Recorder().approve]
)
def test_any_callable_decides(decides: Callable[[ApprovalRequest], Any]) -> None:
    """Async or not, a truth value or an answer."""
    assert asyncio.run(CallableApprover(decides).approve(request_of())) == YES


def test_a_callable_answers_questions() -> None:
    """Another function; without one there is nobody to ask."""
    approver = CallableApprover(_yes, lambda questions: {questions[0].question: ["a"]})
    assert asyncio.run(approver.answer(QUESTIONS)) == {"Which?": ["a"]}
    for nobody in (CallableApprover(_yes), PolicyApprover()):
        with pytest.raises(ToolError) as raised:
            asyncio.run(nobody.answer(QUESTIONS))
        assert raised.value.code is Code.APPROVAL_REQUIRED


@pytest.mark.parametrize(
    ("changes", "approved"),
    [
        ({}, True),
        ({"arguments": {"command": "git push --force"}}, False),
        ({"arguments": {"command": "git push; rm x"}}, False),
        ({"arguments": {"command": "git log"}}, False),
        ({"tool": "edit_file", "arguments": {"path": "a.py"}, "action": "a.py"}, True),
        ({"tool": "edit_file", "arguments": {"path": "a.md"}, "action": "a.md"}, False),
        ({"tool": "web_fetch", "arguments": {}, "action": "a.x.org:443"}, True),
        ({"tool": "web_fetch", "arguments": {}, "action": "y.org"}, False),
        ({"tool": "other", "arguments": {}, "action": ""}, True),
    ],
)
def test_a_policy_decides_by_rules(changes: dict[str, Any], approved: bool) -> None:
    """Deny wins; what no rule names is refused unless it is told otherwise."""
    policy = PolicyApprover(
        allow=["run_command(git push *)", "edit_file(*.py)", "web_fetch(domain:*.x.org)", "other"],
        deny=["run_command(git push --force)"],
    )
    answer = asyncio.run(policy.approve(request_of(**changes)))
    assert answer.approved is approved and answer.reason


def test_a_policy_has_a_default_and_answers() -> None:
    """Bad rules are faults at once."""
    assert asyncio.run(PolicyApprover(otherwise=True).approve(request_of())).approved
    policy = PolicyApprover(answers={"Which?": ["b"]})
    assert asyncio.run(policy.answer(QUESTIONS)) == {"Which?": ["b"]}
    with pytest.raises(ConfigError):
        PolicyApprover(allow=["("])


def test_a_queue_hands_out_requests_and_takes_answers() -> None:
    """In any order, each once; whoever asks gets the answer to their own."""

    async def run() -> None:
        queue = QueueApprover()
        first = asyncio.ensure_future(queue.approve(request_of(id="a")))
        second = asyncio.ensure_future(queue.approve(request_of(id="b")))
        asked = asyncio.ensure_future(queue.answer(QUESTIONS))
        requests = aiter(queue)
        async with asyncio.timeout(10):
            got = [await anext(requests) for _ in range(3)]
        assert [request.id for request in got] == ["a", "b", "question-1"]
        assert isinstance(got[2], QuestionRequest) and got[2].questions == QUESTIONS
        assert [request.id for request in queue.pending()] == ["a", "b", "question-1"]
        queue.decide("b", NO)
        with pytest.raises(ValueError, match="other arguments"):
            queue.decide("a", replace(YES, arguments_hash="other"))
        queue.decide("a", replace(YES, arguments_hash="h"))
        queue.reply("question-1", {"Which?": ["a"]})
        assert (await first).approved and not (await second).approved
        assert await asked == {"Which?": ["a"]}
        for name in ("a", "question-1", "never"):
            with pytest.raises(LookupError):
                queue.decide(name, YES)

    asyncio.run(run())


def test_a_second_answer_is_refused() -> None:
    """Even before whoever asked has taken the first; so are answers of the wrong kind."""

    async def run() -> None:
        queue = QueueApprover()
        waiting = asyncio.ensure_future(queue.approve(request_of(id="a")))
        await anext(aiter(queue))
        with pytest.raises(LookupError):
            queue.reply("a", {})
        queue.decide("a", NO)
        with pytest.raises(LookupError):
            queue.decide("a", YES)
        assert not (await waiting).approved

    asyncio.run(run())


def test_a_request_can_be_let_expire() -> None:
    """As if its time were over; it is handed out no more."""

    async def run() -> None:
        queue = QueueApprover()
        waiting = asyncio.ensure_future(queue.approve(request_of(id="a")))
        await asyncio.sleep(0)
        queue.expire("a")
        with pytest.raises(ToolError) as raised:
            await waiting
        assert raised.value.code is Code.TIMEOUT
        later = asyncio.ensure_future(queue.approve(request_of(id="b")))
        assert (await anext(aiter(queue))).id == "b"
        later.cancel()

    asyncio.run(run())


def test_the_thread_of_the_tests_is_not_needed(loop_thread: LoopThread) -> None:
    """Approvers are bound to no event loop before they are used."""
    queue = QueueApprover()
    waiting = asyncio.run_coroutine_threadsafe(queue.approve(request_of()), loop_thread.loop)

    async def decide() -> None:
        request = await anext(aiter(queue))
        queue.decide(request.id, YES)

    loop_thread.run(decide())
    assert waiting.result(10) == YES
