"""Questions and plan mode: who is asked, what their answer changes, and what no answer means."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from executor.approvals import fingerprint
from executor.bytestream import ByteStream
from executor.controller import Controller
from executor.errors import Code, SandboxError, ToolError
from executor.loop import Loop
from executor.model import (
    ApprovalAnswer,
    ApprovalAnswered,
    ApprovalRequest,
    ApprovalRequested,
    Call,
    Event,
    Finished,
    LoopSpec,
    ModeChanged,
    Question,
    QuestionAsked,
    Result,
)
from executor.served import Program, Served
from executor.settings import Settings
from executor.tool import Tool
from executor.tools import consent
from executor.toolsets.building import Shown, build
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread, wait_until
from tests.test_catalog import with_user_file

PLAN = "/run/executor/plans/test.md"


@dataclass
class Person:
    """An approver that follows a script.

    Attributes:
        decide: what becomes of a request.
        say: what becomes of questions.
        asked: the requests so far.
        waiting: set when somebody waits for an answer.
    """

    decide: Callable[[ApprovalRequest], ApprovalAnswer | Awaitable[ApprovalAnswer]] = field(
        default=lambda request: ApprovalAnswer(approved=True)
    )
    say: Callable[[Sequence[Question]], Any] = field(default=lambda questions: {})
    asked: list[ApprovalRequest] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `Approver.approve`."""
        self.asked.append(request)
        self.waiting.set()
        answer = self.decide(request)
        return answer if isinstance(answer, ApprovalAnswer) else await answer

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        """See `Approver.answer`."""
        self.waiting.set()
        said = self.say(questions)
        return await said if isinstance(said, Awaitable) else said  # type: ignore[no-any-return]


async def never(_: Any = None) -> Any:
    """Nobody answers."""
    await asyncio.Event().wait()


def yes(**more: Any) -> Callable[[ApprovalRequest], ApprovalAnswer]:
    """A decision for it."""
    return lambda request: ApprovalAnswer(approved=True, **more)


def no(reason: str | None = None) -> Callable[[ApprovalRequest], ApprovalAnswer]:
    """A decision against it."""
    return lambda request: ApprovalAnswer(approved=False, reason=reason)


def _fail(_: Any) -> Any:
    raise ValueError("no")


# ─── the tools ──────────────────────────────────────────────────────────────────────


def _tools(catalog: Any) -> tuple[Tool, ...]:
    shown = (
        Shown(
            name="enter_plan_mode",
            arguments=consent.EnterPlanMode,
            run=consent.enter_plan_mode,
        ),
        Shown(
            name="exit_plan_mode",
            arguments=consent.ExitPlanMode,
            run=consent.exit_plan_mode,
        ),
    )
    return build(shown, catalog).all()


@dataclass
class Work:
    """An open loop.

    Attributes:
        files: path → content, of a box that is written by the test.
        events: all that was told.
    """

    thread: LoopThread
    loop: Loop
    files: dict[str, bytes]
    events: list[Event] = field(default_factory=list)
    number: int = 0

    def call(self, name: str, /, **given: Any) -> Result:
        """The result of one call, whose events are noted."""
        self.number += 1
        call = Call(f"c{self.number}", name, given)

        async def collect() -> list[Event]:
            return [event async for event in self.loop.stream([call])]

        events = self.thread.run(collect())
        self.events += events
        return next(event.result for event in events if isinstance(event, Finished))

    def told(self, *kinds: type) -> list[Any]:
        """The events of these kinds, in order."""
        return [event for event in self.events if isinstance(event, kinds)]

    @property
    def mode(self) -> str:
        """Of the loop."""
        return self.loop.mode

    def plan(self, text: str = "1. Do it.") -> None:
        """Enter plan mode, and have a plan there."""
        assert not self.call("enter_plan_mode").is_error
        self.files[PLAN] = text.encode()


@dataclass(frozen=True)
class Said:
    """An answer of an agent."""

    value: dict[str, Any]
    data: bytes


@dataclass
class Drawer:
    """A box that has these files, and can do nothing but show one."""

    files: dict[str, bytes]
    name: str = "drawer"
    capabilities: dict[str, Any] = field(default_factory=dict)
    error: SandboxError | None = None

    async def mourned(self) -> SandboxError | None:
        """See `OpenBox.mourned`."""
        return self.error

    async def request(
        self, op: str, arguments: dict[str, Any], body: bytes = b"", **more: Any
    ) -> Said:
        """See `Operations.request`."""
        if op != "read":
            return Said({"shell": "bash", "programs": []} if op == "shell" else {}, b"")
        data = self.files.get(arguments["path"])
        if data is None:
            raise ToolError(Code.FILE_NOT_FOUND, f"There is no {arguments['path']}.")
        return Said({"size": len(data)}, data)

    async def dial(self, port: int) -> ByteStream:
        """See `OpenBox.dial`."""
        raise ToolError(Code.NETWORK_ERROR, f"nothing listens on port {port}")

    async def serve(self, program: Program) -> Served:
        """See `OpenBox.serve`."""
        raise ToolError(Code.NOT_FOUND, f"{program.argv[0]}: there is no such program")


Open = Callable[..., Work]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens loops over a box that has the test's files and nothing else."""
    with contextlib.ExitStack() as stack:

        def open_one(
            approver: Person | None = None,
            leader: Person | None = None,
            toml: str = "",
            **fields: Any,
        ) -> Work:
            files: dict[str, bytes] = {}

            @contextlib.asynccontextmanager
            async def open_box(spec: LoopSpec) -> AsyncIterator[Drawer]:
                yield Drawer(files)

            catalog = with_user_file(toml)
            thread = stack.enter_context(LoopThread())
            controller = Controller(
                replace(Settings.load({}), state_directory=tmp_path / "state"),
                catalog,
                opener=open_box,
                tools=_tools(catalog),
                approver=approver,
                leader=leader,
            )
            thread.enter(controller)
            root = make_worktree(tmp_path / "worktree")
            given = {"exec_id": "test", "mode": "default", **fields}
            spec = LoopSpec(worktree=root, limits=LIMITS, **given)
            return Work(thread, thread.enter(controller.open(spec)), files)

        yield open_one


# ─── plan mode ──────────────────────────────────────────────────────────────────────


def test_entering_needs_no_consent(opened: Open) -> None:
    """Plan mode only narrows: nobody is asked, and the text names the plan file."""
    person = Person()
    work = opened(person)
    result = work.call("enter_plan_mode")
    assert PLAN in str(result.content) and result.structured == {"plan_file": PLAN}
    assert (work.mode, person.asked) == ("plan", [])
    assert work.told(ModeChanged)[0].previous == "default"


def test_entering_twice_is_a_notice(opened: Open) -> None:
    """In plan mode already, nothing changes: what leaving goes back to neither."""
    work = opened(mode="acceptEdits")
    work.call("enter_plan_mode")
    again = work.call("enter_plan_mode")
    assert not again.is_error and str(again.content).startswith("Already in plan mode")
    assert len(work.told(ModeChanged)) == 1
    assert work.loop.session.mode_before_plan == "acceptEdits"


def test_leaving_what_was_not_entered(opened: Open) -> None:
    """Outside of plan mode there is nothing to leave."""
    person = Person()
    assert opened(person).call("exit_plan_mode").code is Code.CONFLICT
    assert person.asked == []


@pytest.mark.parametrize("mode", ["default", "acceptEdits", "bypass"])
def test_approved_plan_restores_the_mode(opened: Open, mode: str) -> None:
    """After a yes the mode is what it was before plan mode."""
    person = Person()
    work = opened(person, mode=mode)
    work.plan("1. Do it.\n2. Test it.")
    result = work.call("exit_plan_mode")
    assert not result.is_error, result.content
    assert work.mode == mode and work.loop.session.mode_before_plan is None
    (request,) = person.asked
    assert request.action == "1. Do it.\n2. Test it."
    assert (request.tool, request.exec_id, request.step_id) == ("exit_plan_mode", "test", "c2")
    assert request.arguments_hash == fingerprint(request.tool, request.arguments)
    assert [type(e) for e in work.told(ApprovalRequested, ApprovalAnswered, ModeChanged)] == [
        ModeChanged,
        ApprovalRequested,
        ApprovalAnswered,
        ModeChanged,
    ]


def test_loop_that_was_opened_in_plan_mode(opened: Open) -> None:
    """What was never entered goes back to default, which asks."""
    work = opened(Person(), mode="plan")
    work.files[PLAN] = b"x"
    assert not work.call("exit_plan_mode").is_error
    assert work.mode == "default"


def test_rejected_plan(opened: Open) -> None:
    """After a no plan mode goes on, and the model reads why."""
    work = opened(Person(no("too large")))
    work.plan()
    result = work.call("exit_plan_mode")
    assert result.code is Code.REJECTED and "too large" in str(result.content)
    assert work.mode == "plan"
    assert [event.approved for event in work.told(ApprovalAnswered)] == [False]


def test_no_plan(opened: Open) -> None:
    """Without a plan file nobody is asked, and the path is named."""
    person = Person()
    work = opened(person)
    work.call("enter_plan_mode")
    result = work.call("exit_plan_mode")
    assert result.code is Code.FILE_NOT_FOUND and PLAN in str(result.content)
    assert person.asked == [] and work.mode == "plan"


def test_empty_plan(opened: Open) -> None:
    """An empty plan is none."""
    person = Person()
    work = opened(person)
    work.plan(" \n")
    assert work.call("exit_plan_mode").code is Code.INVALID_ARGUMENTS
    assert person.asked == [] and work.mode == "plan"


# ─── nobody is there ────────────────────────────────────────────────────────────────


def test_headless_bypass_leaves_plan_mode(opened: Open) -> None:
    """Where all is allowed anyway and nobody can be asked, a plan needs no yes."""
    work = opened(mode="bypass")
    work.plan()
    assert not work.call("exit_plan_mode").is_error
    assert work.mode == "bypass" and work.told(ApprovalRequested) == []


@pytest.mark.parametrize("mode", ["default", "acceptEdits"])
def test_headless_otherwise_stays(opened: Open, mode: str) -> None:
    """In other modes nobody being there is no yes."""
    work = opened(mode=mode)
    work.plan()
    assert work.call("exit_plan_mode").code is Code.APPROVAL_REQUIRED
    assert work.mode == "plan"


SHORT = "[tools.exit_plan_mode]\ntimeout_ms = 100\n[tools.ask_user_question]\ntimeout_ms = 100\n"


def test_nobody_decides_in_time(opened: Open) -> None:
    """No answer is a no, after the tool's time."""
    work = opened(Person(never), toml=SHORT)
    work.plan()
    result = work.call("exit_plan_mode")
    assert result.code is Code.TIMEOUT and "0.1 s" in str(result.content)
    assert work.mode == "plan"
    assert [event.approved for event in work.told(ApprovalAnswered)] == [False]


def test_who_decides_fails(opened: Open) -> None:
    """A fault of the approver's is a no, not a fault of ours."""
    work = opened(Person(_fail))
    work.plan()
    assert work.call("exit_plan_mode").code is Code.REJECTED
    assert work.mode == "plan"


def test_answer_for_something_else(opened: Open) -> None:
    """A yes for other arguments is none."""
    work = opened(Person(yes(arguments_hash="other")))
    work.plan()
    assert work.call("exit_plan_mode").code is Code.REJECTED
    assert work.mode == "plan"


def test_cancelled_while_somebody_decides(opened: Open) -> None:
    """Cancelling the call ends the question, and plan mode goes on."""
    person = Person(never)
    work = opened(person)
    work.plan()

    async def cancelled() -> list[Result]:
        turn = asyncio.create_task(work.loop.turn([Call("x", "exit_plan_mode", {})]))
        await person.waiting.wait()
        work.loop.cancel()
        return await turn

    (result,) = work.thread.run(cancelled())
    assert result.code is Code.CANCELLED and work.mode == "plan"


# ─── prompts ────────────────────────────────────────────────────────────────────────

PROMPTS = '[prompts]\n"Feed the Cat" = ["run_command(feed cat *)", "run_command(purr)"]\n'


def _prompts(*texts: str) -> dict[str, Any]:
    return {"allowedPrompts": [{"tool": "Bash", "prompt": text} for text in texts]}


def allowed(work: Work) -> list[str]:
    """What is allowed by rules."""
    return [rule.text for rule in work.loop.session.rules.allow]


def test_prompts_become_rules(opened: Open) -> None:
    """Known prompts, in any case, are the catalog's rules; the request shows them."""
    person = Person()
    work = opened(person, toml=PROMPTS)
    work.plan()
    result = work.call("exit_plan_mode", **_prompts("feed the cat ", "FEED THE CAT"))
    assert person.asked[0].rules == ("run_command(feed cat *)", "run_command(purr)")
    assert allowed(work) == ["run_command(feed cat *)", "run_command(purr)"]
    assert "run_command(purr)" in str(result.content)


def test_unknown_prompts_grant_nothing(opened: Open) -> None:
    """A prompt that the catalog does not know is said to grant nothing, to both sides."""
    person = Person()
    work = opened(person)
    work.plan()
    result = work.call("exit_plan_mode", **_prompts("delete everything"))
    assert "'delete everything' is not known" in str(result.content)
    assert "delete everything" in str(person.asked[0].arguments["notes"])
    assert allowed(work) == []


def test_approver_confirms_fewer_rules(opened: Open) -> None:
    """Who decides may agree to some of the rules; others than those are not granted."""
    some = {"rules": ["run_command(purr)", "run_command"]}
    work = opened(Person(yes(modified_arguments=some)), toml=PROMPTS)
    work.plan()
    work.call("exit_plan_mode", **_prompts("feed the cat"))
    assert allowed(work) == ["run_command(purr)"]


@pytest.mark.parametrize("named", [None, "run_command(feed cat *)", {}, [], 7, ["run_command"]])
def test_rules_that_are_no_list_of_them_are_not_confirmed(opened: Open, named: Any) -> None:
    """Nothing is granted that was not named, and nothing that was not proposed."""
    work = opened(Person(yes(modified_arguments={"rules": named})), toml=PROMPTS)
    work.plan()
    result = work.call("exit_plan_mode", **_prompts("feed the cat"))
    assert not result.is_error and allowed(work) == []
    assert work.mode == "default"


@pytest.mark.parametrize(
    "answer",
    [ApprovalAnswer(approved="no"), True, None],  # type: ignore[arg-type]
)
def test_what_only_looks_like_a_yes_leaves_no_plan_mode(opened: Open, answer: Any) -> None:
    """Whatever Python would make of it."""

    async def decide(request: ApprovalRequest) -> Any:
        return answer

    work = opened(Person(decide))
    work.plan()
    assert work.call("exit_plan_mode").code is Code.REJECTED and work.mode == "plan"


def test_rejected_plan_grants_nothing(opened: Open) -> None:
    """Without a yes no rule is granted."""
    work = opened(Person(no()), toml=PROMPTS)
    work.plan()
    work.call("exit_plan_mode", **_prompts("feed the cat"))
    assert allowed(work) == []


def test_arguments_of_the_specification(opened: Open) -> None:
    """Pushing elsewhere is noted as not available, and unknown arguments are ignored."""
    work = opened(Person())
    work.plan()
    result = work.call("exit_plan_mode", pushToRemote=True, remoteSessionId="x", more=1)
    assert not result.is_error and "pushToRemote is not available" in str(result.content)
    assert result.structured == {}


def test_prompt_of_another_tool(opened: Open) -> None:
    """Prompts are about commands only."""
    work = opened(Person())
    given = {"allowedPrompts": [{"tool": "Write", "prompt": "x"}]}
    assert work.call("exit_plan_mode", **given).code is Code.INVALID_ARGUMENTS


# ─── a leader ───────────────────────────────────────────────────────────────────────


@dataclass
class Leader(Person):
    """Decides when the test lets it."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    approved: bool = True
    fails: bool = False

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `Approver.approve`."""
        self.asked.append(request)
        await self.may.wait()
        if self.fails:
            raise ValueError("no")
        return ApprovalAnswer(approved=self.approved)


@pytest.mark.parametrize(
    ("approved", "fails", "mode", "rules"),
    [
        (True, False, "default", ["run_command(feed cat *)", "run_command(purr)"]),
        (False, False, "plan", []),
        (True, True, "plan", []),
    ],
)
def test_leader_decides_later(
    opened: Open, approved: bool, fails: bool, mode: str, rules: list[str]
) -> None:
    """The call ends at once; mode and rules change when the leader has said yes."""
    leader, person = Leader(approved=approved, fails=fails), Person()
    work = opened(person, leader, toml=PROMPTS)
    work.plan()
    result = work.call("exit_plan_mode", **_prompts("feed the cat"))
    assert not result.is_error and result.structured is not None
    assert result.structured["awaitingLeaderApproval"] is True
    assert result.structured["requestId"] in str(result.content)
    assert (work.mode, allowed(work), person.asked) == ("plan", [], [])
    again = work.call("exit_plan_mode")
    assert again.code is Code.CONFLICT and result.structured["requestId"] in str(again.content)
    changed = work.call("write_file", path=PLAN, content="2. Do something else.")
    assert changed.code is Code.PERMISSION_DENIED and "was submitted" in str(changed.content)

    async def decide() -> list[Event]:
        events = work.loop.events()
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        leader.may.set()
        found = [await first]
        while work.loop.session.submitted is not None or (mode != "plan" and len(found) < 2):
            found.append(await anext(events))
        return found

    events = work.thread.run(decide())
    assert isinstance(events[0], ApprovalAnswered)
    assert events[0].approved is (mode != "plan")
    assert [event.mode for event in events if isinstance(event, ModeChanged)] == (
        [mode] if mode != "plan" else []
    )
    assert (work.mode, allowed(work)) == (mode, rules)


def test_leader_answers_after_the_loop(opened: Open) -> None:
    """A leader who never answers does not keep a loop from closing."""
    leader = Leader()
    work = opened(None, leader)
    work.plan()
    assert not work.call("exit_plan_mode").is_error
    wait_until(lambda: bool(leader.asked))


# ─── questions ──────────────────────────────────────────────────────────────────────

RED: dict[str, Any] = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [
        {"label": "Red", "description": "like blood"},
        {"label": "Blue", "description": "like the sky"},
    ],
}
MANY = {**RED, "question": "Which ones?", "multiSelect": True}


def test_answers(opened: Open) -> None:
    """Answers come by their questions: labels, several of them, or free text."""
    seen: list[Question] = []

    def say(questions: Sequence[Question]) -> Any:
        seen.extend(questions)
        return {"Which colour?": "Green, please", "Which ones?": ["Red", "Blue"]}

    work = opened(Person(say=say))
    third = {**RED, "question": "And now?"}
    result = work.call("ask_user_question", questions=[RED, MANY, third])
    assert result.structured == {
        "answers": {
            "Which colour?": ["Green, please"],
            "Which ones?": ["Red", "Blue"],
            "And now?": [],
        }
    }
    assert result.content == (
        "Which colour? → Green, please\nWhich ones? → Red, Blue\nAnd now? → no answer"
    )
    assert [question.multi_select for question in seen] == [False, True, False]
    assert seen[0].options[1].description == "like the sky"
    assert [event.questions for event in work.told(QuestionAsked)] == [tuple(seen)]


def test_no_one_to_ask(opened: Open) -> None:
    """Without an approver a question is answered at once, by a refusal."""
    result = opened().call("ask_user_question", questions=[RED])
    assert result.code is Code.APPROVAL_REQUIRED and "no one to ask" in str(result.content)


def _refuse(_: Any) -> Any:
    raise ToolError(Code.REJECTED, "The user does not want to answer.")


@pytest.mark.parametrize(
    ("say", "code"),
    [(never, Code.TIMEOUT), (_fail, Code.REJECTED), (_refuse, Code.REJECTED)],
)
def test_no_answer(opened: Open, say: Any, code: Code) -> None:
    """Silence ends in time; a refusal and a fault are refusals."""
    result = opened(Person(say=say), toml=SHORT).call("ask_user_question", questions=[RED])
    assert result.code is code


async def _cancels_itself(_: Any) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "say",
    [
        _cancels_itself,
        lambda questions: None,
        lambda questions: ["Red"],
        lambda questions: {RED["question"]: 3},
        lambda questions: {RED["question"]: [3]},
        lambda questions: {RED["question"]: None},
        lambda questions: {RED["question"]: b"Red"},
    ],
)
def test_what_is_no_answer(opened: Open, say: Any) -> None:
    """Something else than texts is nobody's choice, and a fault of whoever answers."""
    result = opened(Person(say=say)).call("ask_user_question", questions=[RED])
    assert result.code is Code.REJECTED and "has failed" in str(result.content)


@pytest.mark.parametrize(
    "questions",
    [
        [],
        [RED] * 5,
        [RED, RED],
        [{**RED, "header": "x" * 13}],
        [{**RED, "options": RED["options"][:1]}],
        [{**RED, "options": RED["options"] * 3}],
        [{**RED, "question": ""}],
        [{**RED, "more": 1}],
    ],
)
def test_bad_questions(opened: Open, questions: list[Any]) -> None:
    """1 to 4 different questions, 2 to 4 options, 12 characters of header; else nobody is asked."""
    work = opened(Person(say=_fail))
    result = work.call("ask_user_question", questions=questions)
    assert result.code is Code.INVALID_ARGUMENTS
    assert work.told(QuestionAsked) == []


# ─── in a box ───────────────────────────────────────────────────────────────────────


def test_plan_mode_in_a_box(tmp_path: Path) -> None:
    """From entering to leaving: only the plan file is written, then the rules hold."""
    person = Person()
    catalog = with_user_file('[prompts]\n"make a mark" = ["run_command(touch mark)"]\n')
    root = make_worktree(tmp_path / "worktree")
    with LoopThread() as thread:
        controller = Controller(
            replace(Settings.load(), state_directory=tmp_path / "state"),
            catalog,
            tools=_tools(catalog),
            approver=person,
        )
        thread.enter(controller)
        spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test", mode="default")
        work = Work(thread, thread.enter(controller.open(spec)), {})
        (root / "a.txt").write_text("old")
        assert not work.call("enter_plan_mode").is_error
        for name, given in (
            ("write_file", {"path": "b.txt", "content": "x"}),
            ("edit_file", {"path": "a.txt", "old_string": "old", "new_string": "new"}),
            ("run_command", {"command": "touch mark"}),
            ("run_command", {"command": f"echo x > {PLAN}"}),
            ("write_file", {"path": PLAN.replace("test", "other"), "content": "x"}),
        ):
            refused = work.call(name, **given)
            assert refused.is_error, (name, given)
        assert not work.call("read_file", path="a.txt").is_error
        assert work.call("run_command", command="ls").content == "a.txt\n"
        written = work.call("write_file", path=PLAN, content="1. Mark it.")
        assert not written.is_error, written.content
        shown = work.call("run_command", command=f"cat {PLAN}; ls -l /run/executor/plans")
        assert "1. Mark it." in str(shown.content)
        left = work.call("exit_plan_mode", **_prompts("make a mark"))
        assert not left.is_error, left.content
        assert [request.action for request in person.asked] == ["1. Mark it."]
        assert work.mode == "default"
        assert not work.call("run_command", command="touch mark").is_error
        assert len(person.asked) == 1 and (root / "mark").exists()
