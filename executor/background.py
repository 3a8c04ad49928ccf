"""What goes on beside the calls of a loop: commands and agents, each under an id.

Whatever can go on after its call registers here, and is read and ended through the same two
tools. The registry knows nothing of how that is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from executor.errors import Code, ToolError
from executor.model import BackgroundEnded, BackgroundStarted, Event

MAX_TASKS = 100
"""Tasks of one loop that are known at a time; the oldest that has ended makes room."""
CLOSING = 10.0
"""Seconds that tasks may take to learn that their loop is over."""


class Status(StrEnum):
    """Where a task is."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    LOST = "lost"
    """What it ran in is gone, and its end was not seen."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a task has said so far.

    Attributes:
        text: as the model is shown it.
        truncated: something is left out.
        total_bytes: size of the whole, where it is known.
        spill: where the loop can read the whole; None = nowhere.
        is_fitted: it is within the limit of the tool that asked.
        causes: why it failed, a line each.
        notices: what else has to be known.
    """

    text: str
    truncated: bool = False
    total_bytes: int | None = None
    spill: str | None = None
    is_fitted: bool = False
    causes: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


class BackgroundTask(Protocol):
    """Something that goes on after the call that started it."""

    @property
    def id(self) -> str:
        """Under which it is asked for; `Background.new_id` makes one."""

    @property
    def description(self) -> str:
        """What it does, in a line."""

    @property
    def status(self) -> Status:
        """Where it is."""

    @property
    def exit_code(self) -> int | None:
        """Of a command that has ended; None for anything else."""

    async def wait(self) -> None:
        """Until it has ended. Cancelling this ends nothing but the waiting."""

    async def output(self, context: Any) -> Written:
        """What it has said so far.

        Args:
            context: the `Context` of the call that asks.
        """

    async def kill(self) -> str | None:
        """End it, and wait for its end. One that has ended is fine.

        Returns:
            What has to be said of it; None = nothing.
        """


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of `Loop.tasks`.

    Attributes:
        id: for `task_output` and `kill_shell`; of what calls left running, for the latter.
        kind: `task`; or `process`, what a call that has ended left running.
        description: what it does.
        status: where it is.
        exit_code: of a command that has ended.
        processes: how many there are; None = not counted.
    """

    id: str
    kind: str
    description: str
    status: Status
    exit_code: int | None = None
    processes: int | None = None


def _nobody(event: Event) -> None:
    """Nobody listens."""


class Background:
    """The tasks of one loop.

    Attributes:
        announce: takes the events of tasks; the loop sets it.
    """

    def __init__(self) -> None:
        self.announce: Callable[[Event], None] = _nobody
        self._tasks: dict[str, BackgroundTask] = {}
        self._numbers: dict[str, int] = {}
        self._watches: set[asyncio.Task[None]] = set()

    def new_id(self, kind: str) -> str:
        """The next id of its kind, as `bash_1`."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}_{self._numbers[kind]}"

    def require_room(self) -> None:
        """Have a place for one more task, of which an ended one may have to be forgotten.

        Raises:
            ToolError: LIMIT, too many are running.
        """
        if len(self._tasks) < MAX_TASKS:
            return
        for task in self._tasks.values():
            if task.status is not Status.RUNNING:
                del self._tasks[task.id]
                return
        raise ToolError(
            Code.LIMIT,
            f"{MAX_TASKS} background tasks are running, and there can be no more; wait for one "
            "or end one with kill_shell.",
        )

    def add(self, task: BackgroundTask) -> None:
        """A task has started; `require_room` comes before that."""
        self._tasks[task.id] = task
        self.announce(BackgroundStarted(task_id=task.id, description=task.description))

    def ended(self, task: BackgroundTask) -> None:
        """A task has ended; whoever runs it says so, once."""
        self.announce(
            BackgroundEnded(task_id=task.id, status=task.status, exit_code=task.exit_code)
        )

    def get(self, task_id: str) -> BackgroundTask | None:
        """The task of this id."""
        return self._tasks.get(task_id)

    def all(self) -> tuple[BackgroundTask, ...]:
        """The tasks that are known, in the order in which they started."""
        return tuple(self._tasks.values())

    def keep_running(self, work: Coroutine[Any, Any, None]) -> None:
        """Let this go on for as long as the loop is open."""
        task = asyncio.ensure_future(work)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def close(self) -> None:
        """The loop's box is gone: what still goes on is told so, and ended at last."""
        if not self._watches:
            return
        _, late = await asyncio.wait(self._watches, timeout=CLOSING)
        for task in late:
            task.cancel()
