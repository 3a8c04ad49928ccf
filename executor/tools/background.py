"""Background tasks: started by a command's call, read and ended by calls of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from executor.background import BackgroundTask, Listed, Status, Written
from executor.errors import Code, SandboxError, ToolError
from executor.model import LANE, Spilled, plain
from executor.results import (
    Limit,
    Streams,
    saved_notices,
    show_streams,
    size_of,
    with_notices,
)
from executor.session import Session
from executor.text import one_line
from executor.tool import Answer, Arguments, Context, Operations, Outcome, Text
from executor.tools.outputs import GRACE, captured, causes, kept

AWAIT = "await_task"
"""The operation that is answered when a task has ended; the box is in use until then."""
KIND = "bash"
"""What the ids of commands begin with."""
LEFT = "call_"
"""What the ids begin with of what a call has left running; behind it its number, which in other
lanes than `no-net` has the lane's name before it."""
PATIENCE = 10.0
"""Seconds that an operation on a task may take; ending one takes the grace beside that."""
DESCRIPTION = 200
"""Characters of a description."""
HEADER_ROOM = 200
"""Bytes of what stands above an output."""


async def readable(context: Context, given: Any) -> Mapping[str, Any]:
    """Refuse to go on in the background where nobody could read or end it; see `Tool.prepare`.

    Raises:
        ToolError: INVALID_ARGUMENTS, with the reason.
    """
    if given.run_in_background and not context.loop.reads_tasks:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            "run_in_background can't be used here: the loop has no tool to read or end what runs "
            "in the background. Leave it out and wait for the end, with a timeout that suits it.",
        )
    return {}


# ─── a command ──────────────────────────────────────────────────────────────────────


async def start(context: Context, arguments: dict[str, Any], description: str) -> Outcome:
    """Start a command that goes on after its call.

    Args:
        context: of the call.
        arguments: of the agent's `run`.
        description: what it does.

    Raises:
        ToolError: it could not be started; LIMIT, there are too many.
    """
    background = context.session.background
    background.require_room()
    task = CommandTask(context, background.new_id(KIND), description, arguments)
    try:
        await task.begin()
    except (asyncio.CancelledError, ToolError) as error:
        if not isinstance(error, ToolError) or error.code is Code.TIMEOUT:
            background.keep_running(task.discard())
        raise
    background.add(task)
    background.keep_running(task.watch())
    return Outcome(
        f"Background task started: {task.id}",
        {
            "task_id": task.id,
            "status": task.status,
            "description": task.description,
            "exit_code": None,
            "cwd": context.cwd,
            "lane": context.loop.lane,
            "merged": context.loop.toolset.merge_stderr,
        },
        is_fitted=True,
    )


class CommandTask:
    """A command in the background.

    Args:
        context: of the call that starts it.
        task_id: its id.
        description: what it does.
        arguments: of the agent's `run`.
    """

    exit_code: int | None = None

    def __init__(
        self, context: Context, task_id: str, description: str, arguments: dict[str, Any]
    ) -> None:
        self.id = task_id
        self.description = one_line(description, DESCRIPTION)
        self.status = Status.RUNNING
        # Whoever listens to the call does not listen to what comes after it.
        self._context = replace(context, emit=None)
        self._box = context.loop.box
        self._arguments = {**arguments, "task": task_id, "shelve": True}
        self._ends = {name: arguments[name] for name in ("head", "tail")}
        self._timeout: float | None = arguments["timeout"]
        self._over = asyncio.Event()
        self._answer: Answer | None = None
        self._spilled: Spilled | None = None
        self._so_far: Spilled | None = None
        self._causes: tuple[str, ...] = ()

    async def begin(self) -> None:
        """Start it in the box.

        Raises:
            ToolError: it could not be started.
            SandboxError: the box could not be had.
        """
        await self._box.request("begin", self._arguments, timeout=PATIENCE)

    async def discard(self) -> None:
        """End what nobody will ever ask for: its call was over before it was known to run."""
        with suppress(ToolError, SandboxError):
            await self._box.request("stop_task", {"task": self.id}, timeout=PATIENCE)
            await self._box.request(AWAIT, self._waiting, timeout=PATIENCE)

    @property
    def _waiting(self) -> dict[str, Any]:
        return {"task": self.id, "grace": GRACE, **self._ends}

    async def watch(self) -> None:
        """Wait for its end, however that comes."""
        try:
            answer = await self._box.request(AWAIT, self._waiting, timeout=self._timeout)
        except (SandboxError, ToolError) as error:
            self._end(Status.LOST, (f"lost: {error}",))
        except BaseException as error:
            was_closed = isinstance(error, asyncio.CancelledError)
            reason = "the loop was closed" if was_closed else type(error).__name__
            self._end(Status.LOST, (f"lost: {reason}",))
            raise
        else:
            self._answer = answer
            if self._streams(answer, Limit.of(self._context)).truncated:
                self._spilled = await kept(self._context, answer)
            self._end(*self._judged(answer.value))

    def _judged(self, value: dict[str, Any]) -> tuple[Status, tuple[str, ...]]:
        """Where an answer leaves it, and why it failed."""
        self.exit_code = value["exit_code"]
        if value.get("cancelled") is True:
            return Status.KILLED, ()
        if value["exit_code"] == 0 and not value["timed_out"]:
            return Status.COMPLETED, ()
        found = causes(value, self._timeout or 0.0, self._context.loop.limits)
        # Its exit code is said already.
        return Status.FAILED, tuple(cause for cause in found if not cause.startswith("Exit code"))

    def _end(self, status: Status, reasons: tuple[str, ...]) -> None:
        self.status = status
        self._causes = reasons
        self._over.set()
        self._context.session.background.ended(self)

    async def wait(self) -> None:
        """See `BackgroundTask.wait`."""
        await self._over.wait()

    async def output(self, context: Context) -> Written:
        """See `BackgroundTask.output`."""
        if self.status is Status.RUNNING:
            try:
                so_far = await self._peek(context)
            except ToolError as error:
                if error.code is not Code.NOT_FOUND:
                    raise
                # It ended under our eyes, and is about to say so.
                await self.wait()
            except SandboxError:
                await self.wait()
            else:
                return await self._written_so_far(context, so_far)
        answer = self._answer
        if answer is None:
            return Written("", is_fitted=True, causes=self._causes)
        if self._spilled is None and self._is_cut(context, answer):
            self._spilled = await kept(self._there(context), answer)
        return self._written(context, answer, self._spilled)

    async def _written_so_far(self, context: Context, answer: Answer) -> Written:
        """What there is of a task that runs; the next look takes the place of this one."""
        if not self._is_cut(context, answer):
            return self._written(context, answer, None)
        before = self._so_far.path if self._so_far is not None else None
        self._so_far = await kept(self._there(context), answer, self.id, before)
        return self._written(context, answer, self._so_far)

    def _there(self, context: Context) -> Context:
        """A call that reads the task, in the lane of the one that started it."""
        return replace(context, loop=self._context.loop)

    def _is_cut(self, context: Context, answer: Answer) -> bool:
        return self._written(context, answer, None).truncated

    async def _peek(self, context: Context) -> Answer:
        half = Limit.of(context).most_bytes // 2
        asked = {"task": self.id, "head": half, "tail": half}
        return await self._box.request("peek", asked, timeout=PATIENCE)

    def _written(self, context: Context, answer: Answer, spilled: Spilled | None) -> Written:
        notices = [str(note) for note in answer.value.get("notes", ())]
        spill = context.loop.spill
        if spilled is not None and (spill is None or not spill.holds(spilled.path)):
            notices.append(f"{spilled.path} was dropped to make room for newer results")
            spilled = None
        notices += saved_notices(spilled, context.entry.keep)
        limit = Limit.of(context)
        around = with_notices("".join(f"{cause}\n" for cause in self._causes) + "\n", notices)
        limit = limit.less(size_of(around, limit.unit) + HEADER_ROOM)
        path = None if spilled is None else spilled.path
        streams = self._streams(answer, limit, path)
        return Written(
            streams.text,
            streams.truncated,
            streams.total,
            path,
            is_fitted=True,
            causes=self._causes,
            notices=tuple(notices),
        )

    def _streams(self, answer: Answer, limit: Limit, path: str | None = None) -> Streams:
        return show_streams(*captured(answer), limit, self._context.entry.keep, path)

    async def kill(self) -> str | None:
        """See `BackgroundTask.kill`. What an ended one left running is ended, too."""
        if self.status is not Status.RUNNING:
            return await self._end_rest()
        try:
            await self._box.request("stop_task", {"task": self.id}, timeout=PATIENCE)
        except ToolError as error:
            if error.code is not Code.NOT_FOUND:
                raise
        except SandboxError:
            pass  # it is gone, which its watch is about to say
        try:
            async with asyncio.timeout(GRACE + PATIENCE):
                await self.wait()
        except TimeoutError:
            raise ToolError(
                Code.TIMEOUT, f"{self.id} was told to end and has not ended yet; try again."
            ) from None
        return None

    async def _end_rest(self) -> str:
        said = f"{self.id} has already ended ({_state(self)})"
        if self.status is not Status.LOST:
            asked = {"task": self.id, "grace": GRACE}
            answer = await self._box.request("end_left", asked, timeout=GRACE + PATIENCE)
            if count := answer.value["ended"]:
                return f"{said}; what it had left running was ended ({_counted(count)})"
        return f"{said}; nothing was done"


def _state(task: BackgroundTask) -> str:
    """Where a task is, in words."""
    if task.exit_code is None:
        return str(task.status)
    return f"{task.status}, exit code {task.exit_code}"


def _counted(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


# ─── task_output ────────────────────────────────────────────────────────────────────


class TaskOutput(Arguments):
    """Arguments of `task_output`."""

    task_id: Text = Field(description="The task ID to get output from")
    block: bool = Field(True, description="Whether to wait for completion (default: true)")
    timeout: Annotated[float, Field(ge=0, le=600_000, allow_inf_nan=False)] = Field(
        30_000, description="Max wait time in ms (default: 30000)"
    )


async def task_output(context: Context, given: TaskOutput) -> Outcome:
    """Read what a background task has printed, and how it ended; waits for its end by default."""
    task = context.session.background.get(given.task_id)
    if task is None:
        raise _unknown(context, given.task_id)
    if given.block:
        await _wait(context, task, given.timeout / 1000)
    status, exit_code = task.status, task.exit_code
    is_completed = status is not Status.RUNNING
    state = _state(task)
    if given.block and not is_completed:
        state = f"still running after {plain(given.timeout)} ms"
    written = await task.output(context)
    text = "\n".join(filter(None, (f"{task.id}: {state}", *written.causes, written.text)))
    return Outcome(
        with_notices(text, written.notices),
        {
            "retrieval_status": _retrieval(is_completed, given.block),
            "task": {
                "output": written.text,
                "is_completed": is_completed,
                "exit_code": exit_code,
                "status": status,
            },
        },
        truncated=written.truncated,
        total_bytes=written.total_bytes,
        spill=written.spill,
        is_fitted=written.is_fitted,
    )


async def _wait(context: Context, task: BackgroundTask, seconds: float) -> None:
    """Until it has ended, or so long."""
    if context.time_left is not None:
        seconds = min(seconds, context.time_left)
    if task.status is Status.RUNNING:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await task.wait()


def _retrieval(is_completed: bool, was_waited_for: bool) -> str:
    if is_completed:
        return "success"
    return "timeout" if was_waited_for else "not_ready"


def _unknown(context: Context, task_id: str) -> ToolError:
    known = [task.id for task in context.session.background.all()]
    there = f"known are {', '.join(known)}" if known else "none was started"
    return ToolError(
        Code.NOT_FOUND,
        f"There is no background task '{one_line(task_id, 100)}': {there}.",
        {"tasks": known},
    )


# ─── kill_shell ─────────────────────────────────────────────────────────────────────


class KillShell(Arguments):
    """Arguments of `kill_shell`."""

    shell_id: Text = Field(description="The ID of the background shell to kill")


async def kill_shell(context: Context, given: KillShell) -> Outcome:
    """End a background task by its ID, with all processes that it has started."""
    task = context.session.background.get(given.shell_id)
    if task is None:
        return await _end_left(context, given.shell_id)
    said = await task.kill()
    if said is None and task.status is not Status.KILLED:
        said = f"{task.id} ended by itself meanwhile ({_state(task)})"
    return Outcome(
        said or f"Successfully killed shell: {task.id}",
        {"shell_id": task.id, "status": task.status, "exit_code": task.exit_code},
        is_fitted=True,
    )


async def _end_left(context: Context, shell_id: str) -> Outcome:
    """End what a call that has ended left running."""
    loop = context.loop
    lane, _, number = shell_id.removeprefix(LEFT).rpartition("_")
    is_id = shell_id.startswith(LEFT) and number.isdecimal() and len(number) <= 10
    if not is_id or (lane and lane not in loop.lanes):
        raise _unknown(context, shell_id)
    box = loop.in_lane(lane or LANE).box
    asked = {"call": int(number), "grace": GRACE}
    answer = await box.request("end_left", asked, timeout=GRACE + PATIENCE)
    count = answer.value["ended"]
    if not count:
        raise ToolError(Code.NOT_FOUND, f"{shell_id} has left nothing running.")
    return Outcome(
        f"Ended what {shell_id} had left running: {_counted(count)}",
        {"shell_id": shell_id, "status": Status.KILLED, "exit_code": None},
        is_fitted=True,
    )


# ─── all of them ────────────────────────────────────────────────────────────────────


async def listed(session: Session, boxes: Mapping[str, Operations]) -> tuple[Listed, ...]:
    """The tasks of a loop, and what its ended calls left running.

    Args:
        session: of the loop.
        boxes: lane → its box, where one is open; elsewhere nothing can be running.

    Raises:
        SandboxError: a box was lost meanwhile.
    """
    tasks = [
        Listed(task.id, "task", task.description, task.status, task.exit_code)
        for task in session.background.all()
    ]
    known = {task.id for task in tasks}
    for lane, box in boxes.items():
        answer = await box.request("left", {}, timeout=PATIENCE)
        prefix = LEFT if lane == LANE else f"{LEFT}{lane}_"
        for one in answer.value["calls"]:
            shown = one_line(one["command"], DESCRIPTION)
            name = one["task"] if one["task"] in known else f"{prefix}{one['call']}"
            tasks.append(Listed(name, "process", shown, Status.RUNNING, processes=one["processes"]))
    return tuple(tasks)
