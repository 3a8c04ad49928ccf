"""One turn: each call starts as soon as what it waits for has ended."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from executor import results
from executor.errors import Code, SandboxError, ToolError, partial_of
from executor.model import Call, CallStarted, Event, Finished, Output, Warned
from executor.pipeline import Answered, Emit
from executor.places import Place, resolved
from executor.sandbox.completion import to_completion
from executor.scheduling import Intent, Schedule, effects_of
from executor.streaming import Reader, StreamFault
from executor.tool import Box, Order, Outcome

MAX_QUEUED_OUTPUT = 1 << 20
"""Characters of live output that may wait for a slow reader of events; more is dropped."""
MAX_QUEUED_EVENTS = 10_000
"""Events that may wait for a slow reader of `Loop.events`."""
READER_PATIENCE = 5.0
"""Seconds that the host's stream of events may take to end when it is cancelled."""

ALONE = Intent(Order.UNSAFE, reads_all=True, writes_all=True)
"""What is known of a call that need not be looked at."""

REPEATED = (
    "Another call of this message has the same id, so that their results could not be told "
    "apart; this one was not run. Send it again."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Crew:
    """What runs the calls of a turn.

    Attributes:
        execute: the answer to one call; raises nothing but cancellation. What it is given
            is called when the call is permitted and about to run.
        foresee: what a call is going to do.
        box: where paths are looked up: those of the worktree lead to the same in all lanes, and
            others count as anything.
        tell: takes the turn's events.
        lane: whose box a call is for; None = there is no such tool.
    """

    execute: Callable[[Call, Callable[[], object]], Awaitable[Answered]]
    foresee: Callable[[Call], Intent]
    box: Box
    tell: Emit
    lane: Callable[[Call], str | None] = lambda call: None


class Turn:
    """The calls of one turn, which may still be coming in while the first of them run.

    Attributes:
        fault: why the model's stream broke; None = it did not.
    """

    def __init__(self, crew: Crew) -> None:
        self.fault: BaseException | None = None
        self._crew = crew
        self._schedule = Schedule()
        self._calls: list[Call] = []
        self._intents: dict[int, Intent] = {}
        self._tasks: dict[int, asyncio.Task[Answered]] = {}
        self._found: dict[int, Answered] = {}
        self._withdrawn: set[int] = set()
        self._begun: set[int] = set()
        self._told = 0
        self._is_ending = False
        self._changed = asyncio.Event()

    # ─── what comes in ───

    def add(self, call: Call, fault: str | None = None) -> None:
        """One more call of the turn.

        Args:
            call: of the model.
            fault: why it can't be run; it is answered with that.
        """
        position = self._schedule.add()
        self._calls.append(call)
        if fault is not None:
            self._crew.tell(CallStarted(call=call))
            result = results.refusal(call, Code.INVALID_ARGUMENTS, fault)
            self._answer(position, Answered(result))
        self._changed.set()

    def close(self) -> None:
        """No more calls come."""
        self._schedule.close()
        self._changed.set()

    def break_off(self, fault: BaseException) -> None:
        """The model's stream broke: nothing starts any more, and what changes nothing is ended.

        What does change something runs to its end, so that it is known what it did. A call
        that still waits to be permitted has not begun.
        """
        self.fault = fault
        for position, task in self._tasks.items():
            if self._intents[position].order is Order.SAFE or position not in self._begun:
                task.cancel()
        self._changed.set()

    def cancel(self, ids: Collection[str]) -> int:
        """End calls; each is answered that it was cancelled.

        Args:
            ids: of the calls; none = all of them.

        Returns:
            How many there were.
        """
        wanted = [
            position
            for position in self._schedule.unfinished
            if not ids or self._calls[position].id in ids
        ]
        for position in wanted:
            self._withdrawn.add(position)
            if position in self._tasks:
                self._tasks[position].cancel()
            else:
                self._answer(position, _cancelled(self._calls[position], "before it began"))
        self._changed.set()
        return len(wanted)

    async def follow(self, events: AsyncIterable[Any], reader: Reader) -> None:
        """Add calls as a model makes them, until its message ends or its stream breaks."""
        ids: set[str] = set()
        try:
            async for event in events:
                for block in () if reader.is_done else reader.take(event):
                    is_known = block.call.id in ids
                    ids.add(block.call.id)
                    self.add(block.call, REPEATED if is_known else block.fault)
                    await asyncio.sleep(0)  # the call may start before the next event
                if reader.is_done:
                    self.close()
            if not reader.is_done:
                raise StreamFault("it ended before the message did")
        except Exception as error:
            self._on_fault(error, reader)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._on_fault(error, reader)  # the host's own, from within its iterator

    def _on_fault(self, error: BaseException, reader: Reader) -> None:
        if not reader.is_done:
            self.break_off(error)

    # ─── the running ───

    async def run(self) -> list[Answered]:
        """Run the calls until all have ended and no more come.

        Cancelling it ends what runs, in the box too, before the cancellation goes on.

        Returns:
            What they came to, in their order; a stream that broke leaves gaps.
        """
        try:
            while not self._is_over:
                self._changed.clear()
                if self.fault is None and await self._advance():
                    continue
                await self._changed.wait()
        finally:
            if self._tasks:
                await to_completion(self._end())
        self._tell_rest()
        return self.answers

    async def run_with(self, events: AsyncIterable[Any], reader: Reader) -> list[Answered]:
        """The same for calls that a model is still making."""
        reading = asyncio.create_task(self.follow(events, reader))
        try:
            return await self.run()
        finally:
            reading.cancel()
            await asyncio.wait({reading}, timeout=READER_PATIENCE)

    @property
    def answers(self) -> list[Answered]:
        """What its calls have come to so far, in their order."""
        return [self._found[position] for position in sorted(self._found)]

    @property
    def unanswered(self) -> list[Call]:
        """Calls that have no answer."""
        return [call for position, call in enumerate(self._calls) if position not in self._found]

    @property
    def _is_over(self) -> bool:
        if self.fault is not None:
            return not self._tasks
        return self._schedule.is_over

    async def _advance(self) -> bool:
        """Start what can be; whether to look again at once."""
        step = self._schedule.step()
        for position in step.start:
            self._start(position)
        if step.learn:
            await self._learn(step.learn)
        return bool(step.learn)

    def _start(self, position: int) -> None:
        self._schedule.start(position)
        task = asyncio.create_task(self._run(position))
        self._tasks[position] = task
        task.add_done_callback(functools.partial(self._on_done, position))

    async def _run(self, position: int) -> Answered:
        call, began = self._calls[position], time.perf_counter()
        try:
            return await self._crew.execute(call, functools.partial(self._begun.add, position))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if position in self._withdrawn:
                milliseconds = (time.perf_counter() - began) * 1000
                self._found[position] = _cancelled(
                    call, "while it ran", partial_of(error), milliseconds
                )
            elif task is not None and not task.cancelling():
                raise RuntimeError("the tool cancelled itself") from error
            raise

    def _on_done(self, position: int, task: asyncio.Task[Answered]) -> None:
        del self._tasks[position]
        self._changed.set()
        call = self._calls[position]
        if task.cancelled():
            if position not in self._withdrawn:
                self._schedule.end(position)  # the turn ends, or its stream broke
                return
            answered = self._found.get(position) or _cancelled(call, "before it began")
        elif (error := task.exception()) is not None:
            log.error("call %r of tool %r failed: %r", call.id, call.name, error)
            message = f"The tool failed inside the executor ({type(error).__name__})."
            answered = Answered(results.refusal(call, Code.INTERNAL, message))
        else:
            answered = task.result()
        self._answer(position, answered)

    def _answer(self, position: int, answered: Answered) -> None:
        if answered.result.lane is None:  # it was not run to its end
            lane = self._crew.lane(self._calls[position])
            answered = replace(answered, result=replace(answered.result, lane=lane))
        self._found[position] = answered
        self._schedule.end(position)
        while self._told in self._found and not self._is_ending:
            self._crew.tell(Finished(result=self._found[self._told].result))
            self._told += 1

    def _tell_rest(self) -> None:
        """What ended behind a call that has no answer."""
        for position in sorted(self._found):
            if position >= self._told:
                self._crew.tell(Finished(result=self._found[position].result))

    async def _end(self) -> None:
        self._is_ending = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:  # the last of them may have ended before this began
            await asyncio.wait(tasks)

    # ─── what calls are going to do ───

    async def _learn(self, positions: Iterable[int]) -> None:
        """Find out what calls do, up to the first that nothing may pass."""
        intents: dict[int, Intent] = {}
        for position in () if self._is_alone else positions:
            intents[position] = self._crew.foresee(self._calls[position])
            if intents[position].order is Order.BARRIER:
                break
        intents = intents or dict.fromkeys(positions, ALONE)
        self._intents |= intents
        shape = self._schedule.shape
        places: dict[str, Place] | None = None
        if self._needs_places():
            paths = [path for intent in intents.values() for path in intent.paths]
            try:
                places = await resolved(self._crew.box, paths) if paths else {}
            except (ToolError, SandboxError):
                intents = {position: intents[position].veiled() for position in intents}
        if shape != self._schedule.shape:
            return  # paths may lead elsewhere by now; the next step asks again
        for position, intent in intents.items():
            self._schedule.learn(position, effects_of(intent, places))

    def _needs_places(self) -> bool:
        """Whether it matters which paths are one file: somebody writes, and is not alone."""
        if not self._schedule.is_closed:
            return True
        unfinished = self._schedule.unfinished
        known = (self._intents[position] for position in unfinished if position in self._intents)
        return not self._is_alone and any(intent.writes_somewhere for intent in known)

    @property
    def _is_alone(self) -> bool:
        """There is one call left, whose effects nobody has to wait for."""
        return self._schedule.is_closed and len(self._schedule.unfinished) == 1


def _cancelled(call: Call, when: str, partial: Any = None, milliseconds: float = 0.0) -> Answered:
    """The answer to a call that was ended on purpose."""
    if isinstance(partial, Outcome):
        outcome = replace(partial, is_error=True, code=Code.CANCELLED, modifiers=())
        return Answered(results.result_of(call, outcome, milliseconds))
    message = f"The call was cancelled {when}."
    return Answered(results.refusal(call, Code.CANCELLED, message, milliseconds))


class Feed:
    """Events on their way to a reader who may be slow: live output is dropped first.

    Args:
        most: events that may wait; None = all but live output.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._events: deque[Event] = deque()
        self._output = 0
        self._left_out = 0
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, event: Event) -> None:
        """One more event."""
        is_full = self._most is not None and len(self._events) >= self._most
        if isinstance(event, Output):
            if is_full or self._output > MAX_QUEUED_OUTPUT:
                self._left_out += 1
                return
            self._output += len(event.text)
        elif is_full:
            self._make_room()
        self._events.append(event)
        self._changed.set()

    def close(self) -> None:
        """No more events come; those that wait are still read."""
        self._is_closed = True
        self._changed.set()

    async def next(self) -> Event | None:
        """The next event; None when no more come."""
        while not self._events:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        if isinstance(event, Output):
            self._output -= len(event.text)
        return event

    def left_out(self) -> Warned | None:
        """What has to be said of events that were dropped since the last time."""
        count, self._left_out = self._left_out, 0
        if not count:
            return None
        return Warned(message=f"{count} events were left out here: they were not read in time")

    def _make_room(self) -> None:
        kept: deque[Event] = deque(event for event in self._events if not isinstance(event, Output))
        if len(kept) == len(self._events):
            kept.popleft()
        self._left_out += len(self._events) - len(kept)
        self._events, self._output = kept, 0
