"""Turns that change the mode, repeat themselves, or are ended while somebody decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor import toolsets
from executor.catalog import load
from executor.errors import Code
from executor.hooks import Hook, HookEvent, Hooks, Occasion
from executor.model import ApprovalAnswer, ApprovalRequest, Call, Finished, Output, Question, Result
from executor.turn import REPEATED
from tests.loops import Work, open_work
from tests.test_turns import (
    OTHERS,
    READS,
    SCHEDULES,
    STOP,
    WRITES,
    Given,
    Twins,
    block,
    call,
    compare,
    is_still,
    plant,
    twins,
    work,
)

__all__ = ["twins", "work"]  # the fixtures

MODES = st.one_of(call("EnterPlanMode"), call("ExitPlanMode"))


@pytest.fixture
def planners(twins: Twins) -> Twins:
    """Both loops, with plan mode as its specification has it."""
    known = toolsets.registry("claude-code", load())
    for one in (twins.ordered, twins.free):
        for name in ("EnterPlanMode", "ExitPlanMode"):
            tool = known.get(name)
            assert tool is not None
            one.loop.registry.register(tool, replace=True)
    return twins


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedule=SCHEDULES, calls=st.lists(st.one_of(READS, WRITES, OTHERS, MODES), max_size=8))
def test_calls_are_judged_in_the_mode_of_their_place_in_the_order(
    planners: Twins, schedule: tuple[int, tuple[str, ...]], calls: list[Given]
) -> None:
    """Nothing is written behind a call that enters plan mode, whatever ends first."""
    twins = planners
    for one in (twins.ordered, twins.free):
        one.loop.session.mode, one.loop.session.mode_before_plan = "bypass", None
    try:
        compare(twins, schedule, calls)
        modes = {one.loop.mode for one in (twins.ordered, twins.free)}
        assert len(modes) == 1
    finally:
        for one in (twins.ordered, twins.free):
            one.loop.session.mode, one.loop.session.mode_before_plan = "bypass", None


def test_what_stands_before_plan_mode_is_written_and_what_comes_after_is_not(
    planners: Twins,
) -> None:
    """Of one turn."""
    work = planners.free
    plant(work.root)
    results = work.turn(
        ("write_file", {"path": "before", "content": "x"}),
        ("EnterPlanMode", {}),
        ("write_file", {"path": "behind", "content": "x"}),
        ("read_file", {"path": "before"}),
        ("run_command", {"command": "ls"}),
        ("run_command", {"command": "touch behind"}),
    )
    work.loop.session.mode, work.loop.session.mode_before_plan = "bypass", None
    denied = Code.PERMISSION_DENIED
    assert [result.code for result in results] == [None, None, denied, None, None, denied]
    assert (work.root / "before").exists() and not (work.root / "behind").exists()


def test_a_turn_that_is_cancelled_as_its_last_call_ends_is_cancelled(work: Work) -> None:
    """It raises that, and nothing else, at whatever moment it comes."""

    async def scene() -> set[str]:
        ends = set()
        for rounds in range(60):
            task = asyncio.ensure_future(work.loop.turn([Call("1", "nope", {})]))
            await _pass(rounds)
            task.cancel()
            await asyncio.wait({task})
            ends.add("cancelled" if task.cancelled() else repr(task.exception()))
        return ends

    assert work.thread.run(scene()) == {"cancelled", "None"}


async def _events(*steps: Any) -> AsyncIterator[Any]:
    for step in steps:
        yield step


def streamed(work: Work, *steps: Any) -> list[Result]:
    """The results of a message's calls."""

    async def collect() -> list[Result]:
        stream = work.loop.stream_model(_events(*steps))
        return [event.result async for event in stream if isinstance(event, Finished)]

    return work.thread.run(collect())


def test_a_call_that_comes_twice_runs_once(work: Work) -> None:
    """The same id again is somebody's repetition: it is answered, and not run."""
    command = "echo x >> counted"
    again = [{**event, "index": 1} for event in block(0, "run_command", command=command)]
    first, second = streamed(work, *block(0, "run_command", command=command), *again, STOP)
    assert (first.id, first.code) == ("call0", None)
    assert (second.id, second.code) == ("call0", Code.INVALID_ARGUMENTS)
    assert second.content == REPEATED
    assert (work.root / "counted").read_text() == "x\n"


def test_a_thousand_calls_of_one_message(work: Work) -> None:
    """Empty inputs, refusals and reads: each has its own answer, in order."""
    work.write("a", "a\n")
    steps: list[Any] = []
    for number in range(0, 1000, 2):
        steps += block(number, "read_file", path="a") + block(number + 1, "read_file")
    results = streamed(work, *steps, STOP)
    assert [result.id for result in results] == [f"call{number}" for number in range(1000)]
    assert [result.code for result in results] == [None, Code.INVALID_ARGUMENTS] * 500


def test_what_was_validated_is_in_doubt_after_a_cancelled_change(work: Work) -> None:
    """Nobody knows how far it has come; a cancelled look changes nothing."""

    async def cancel(command: str) -> None:
        work.loop.session.validated = True
        stream = work.loop.stream([work.make("run_command", {"command": command})])
        async for event in stream:
            if isinstance(event, Output):
                work.loop.cancel()

    work.thread.run(cancel("echo x; tail -f /dev/null"))
    assert work.loop.session.validated is True
    work.thread.run(cancel("touch y; echo x; tail -f /dev/null"))
    assert work.loop.session.validated is None


# ─── cancelled at any moment ────────────────────────────────────────────────────────


class Slow:
    """Decides after some rounds of the event loop.

    Attributes:
        rounds: how many.
        asking: requests that wait.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.asking = 0

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `Approver.approve`."""
        self.asking += 1
        try:
            await _pass(self.rounds)
        finally:
            self.asking -= 1
        modified = {"command": "touch approved"} if self.rounds % 2 else None
        return ApprovalAnswer(approved=True, modified_arguments=modified)

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        """See `Approver.answer`."""
        self.asking += 1
        try:
            await _pass(self.rounds)
        finally:
            self.asking -= 1
        return {}


async def _pass(rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


class Asked:
    """A loop in which everything is decided, and hooked.

    Attributes:
        work: it.
        approver: decides.
        hooked: hooks that are running.
    """

    def __init__(self, directory: Path) -> None:
        self.approver = Slow()
        self.hooked = 0
        hooks = Hooks([Hook(event, self._hook) for event in HookEvent])
        self._opening = open_work("local", directory, approver=self.approver, hooks=hooks)
        self.work: Work

    def __enter__(self) -> Asked:
        self.work = self._opening.__enter__()
        self.work.loop.session.mode = "default"
        return self

    def __exit__(self, *error: Any) -> None:
        self._opening.__exit__(*error)

    async def _hook(self, occasion: Occasion) -> None:
        self.hooked += 1
        try:
            await _pass(self.approver.rounds // 2)
        finally:
            self.hooked -= 1


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """One loop for all examples."""
    with Asked(tmp_path_factory.mktemp("asked")) as opened:
        yield opened


QUESTION = {
    "question": "Which?",
    "header": "Which",
    "options": [{"label": "a", "description": "A"}, {"label": "b", "description": "B"}],
}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rounds=st.integers(0, 600),
    slow=st.integers(0, 40),
    how=st.sampled_from(["task", "stream", "calls", "twice"]),
    calls=st.lists(
        st.one_of(
            WRITES,
            call("run_command", command=st.sampled_from(["touch x", "echo x; sleep 200.75"])),
            call("ask_user_question", questions=st.just([QUESTION])),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_a_decision_can_be_called_off_at_any_moment(
    asked: Asked, rounds: int, slow: int, how: str, calls: list[Given]
) -> None:
    """No request waits, no hook and no command runs, and the next call is asked about again."""
    work, asked.approver.rounds = asked.work, slow
    plant(work.root)
    made = [work.make(name, arguments) for name, arguments in calls]
    work.thread.run(_called_off(work, made, rounds, how), timeout=30)
    assert (asked.approver.asking, asked.hooked) == (0, 0)
    assert work.loop._running == []
    asked.approver.rounds = 0
    work.loop.session.mode = "bypass"
    try:
        assert is_still(work, "sleep 200.75")
    finally:
        work.loop.session.mode = "default"
    assert work.call("write_file", path="after", content="x").code is None


async def _called_off(work: Work, calls: list[Call], rounds: int, how: str) -> None:
    if how == "stream":
        stream = work.loop.stream(calls)
        async for _ in stream:
            await _pass(rounds // len(calls))
            break
        await stream.aclose()  # type: ignore[attr-defined]
        return
    task = asyncio.ensure_future(work.loop.turn(calls))
    await _pass(rounds + 1)  # before that there is no turn whose calls could be cancelled
    if how == "calls":
        work.loop.cancel()
        assert len(await task) == len(calls)
        return
    task.cancel()
    if how == "twice":
        await _pass(rounds % 7)
        task.cancel()
    await asyncio.wait({task})
