"""Commands that go on after the call that started them, and what ended calls left running.

A task is a command whose call has its answer at once. The host then waits for its end with a
call of its own, and may look at its output and end it meanwhile. Loaded on first use.
"""

from __future__ import annotations

import os

from . import processes
from .commands import MAX_PIECE, Commands, Job
from .operation import Failure
from .spool import CAP, MEMORY, Shelved, Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_TASKS = 100
"""Tasks that are running, or whose end nobody has asked for; the host has the same limit."""
MAX_ENDED = 100
"""Ended tasks of which is known what they left running."""
MAX_LEFT = 200
"""Calls of which is said what they left running."""
MAX_SHOWN = 200
"""Bytes that are shown of a process's arguments."""


class BackgroundJob(Job):
    """A running command whose call has been answered."""

    def __init__(self, commands: Commands, channel: int, arguments: dict[str, Any]) -> None:
        super().__init__(commands, channel, arguments)
        self.name: str = arguments["task"]
        self.moves = False
        self.waiter: Waiter | None = None
        self.answer: Callable[[int], None] | None = None
        self.claims: list[int] = []

    def _spool(self) -> Spool:
        tasks: Tasks = self.commands.tasks
        self.claims.append(tasks.claim())
        return Spool(self.commands.scratch, self.claims[-1])

    def release(self) -> None:
        """Free files, pipes, the timer, and the place that was meant for the output."""
        super().release()
        self.commands.tasks.give_back(sum(self.claims))
        self.claims = []

    def _reply(self, value: dict[str, Any], data: bytes) -> None:
        self._end(lambda channel: self.service.reply(channel, value, data))

    def _fail(self, failure: Failure) -> None:
        self._end(lambda channel: self.service.fail(channel, failure))

    def _end(self, answer: Callable[[int], None]) -> None:
        """Tell whoever waits; otherwise whoever asks first."""
        tasks: Tasks = self.commands.tasks
        waiter = self.waiter
        if waiter is None:
            self.answer = answer
            return
        tasks.forget(self)
        waiter.leave()
        answer(waiter.channel)

    def look(self, head: int, tail: int) -> tuple[dict[str, Any], bytes]:
        """What it has printed so far: the ends of it, and what more can be fetched."""
        pieces: list[bytes] = []
        named = dict(zip(("stdout", "stderr"), self.streams, strict=False))
        value: dict[str, Any] = {
            name: self._kept(stream, pieces, head, tail) for name, stream in named.items()
        }
        if any(stream.spool.total > head + tail for stream in named.values()):
            spools = {name: stream.spool for name, stream in named.items()}
            kept = {name: [spool.total, *spool.kept()] for name, spool in spools.items()}
            value["shelf"] = {"number": 0, **kept}
        return value, b"".join(pieces)

    def piece(self, name: str, position: int, size: int) -> tuple[bytes, int]:
        """The next bytes of a stream of those that are kept now; see `Shelved.piece`.

        Raises:
            Failure: NOT_FOUND, it has ended.
        """
        named = dict(zip(("stdout", "stderr"), self.streams, strict=False))
        if name not in named:
            raise Failure("NOT_FOUND", "the task has ended")
        return Shelved({name: named[name].spool}, self.prefix).piece(name, position, size)


class Waiter:
    """A call of the host that waits for the end of a task."""

    __slots__ = ("channel", "credit", "job")
    pid = 0

    def __init__(self, channel: int, job: BackgroundJob) -> None:
        self.channel = channel
        self.credit = 0
        self.job = job
        job.waiter = self
        job.commands.waiting += 1
        job.service.calls[channel] = self

    def leave(self) -> None:
        """It waits no more."""
        self.job.waiter = None
        self.job.commands.waiting -= 1

    def cancel(self) -> None:
        """The host no longer wants to know; the task goes on."""
        self.leave()
        self.job.service.fail(self.channel, Failure("CANCELLED", "no longer waited for"))

    def abandon(self) -> None:
        """The box ends."""
        self.job.abandon()


class Leftover(Job):
    """The end of what a call that has ended left running.

    Args:
        commands: of the box.
        channel: of the call that wants it ended.
        grace: seconds between TERM and KILL.
    """

    def __init__(self, commands: Commands, channel: int, grace: float) -> None:
        super().__init__(commands, channel, {"head": 0, "tail": 0, "grace": grace})
        self.status = 0
        self.count = 0

    def begin(self, owner: processes.Owner, count: int) -> None:
        """Ask the processes to end."""
        self.owner = owner
        self.count = count
        self.service.calls[self.channel] = self
        self.commands.jobs[self.channel] = self
        self.stop("end")

    def _finish(self) -> None:
        del self.commands.jobs[self.channel]
        self.commands.ending.pop(self.channel, None)
        self.service.reply(self.channel, {"ended": self.count})


class Tasks:
    """The background of one box."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._service = commands.service
        self._jobs: dict[str, BackgroundJob] = {}
        self._ended: dict[str, int] = {}
        self._room = _size_of(commands.scratch) // 2
        self.operations: dict[str, Callable[..., Any]] = {
            "begin": self._begin,
            "await_task": self._await,
            "peek": self._peek,
            "fetch": self._fetch,
            "stop_task": self._stop,
            "left": self._left,
            "end_left": self._end_left,
        }

    def claim(self) -> int:
        """Bytes that one more stream may keep on disk: as any command's, while there is room.

        Commands that are waited for need the other half, for their outputs and scripts.
        """
        size = max(MEMORY, min(CAP, self._room // 4))
        self._room -= size
        return size

    def give_back(self, size: int) -> None:
        """So much is no longer needed."""
        self._room += size

    def forget(self, job: BackgroundJob) -> None:
        """It has ended and its end was told."""
        del self._jobs[job.name]
        self._ended[job.name] = job.channel
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _begin(self, channel: int, arguments: dict[str, Any], body: bytes) -> None:
        name = arguments["task"]
        if name in self._jobs:
            raise Failure("EXISTS", f"there is a task {name}")
        if len(self._jobs) >= MAX_TASKS:
            raise Failure("LIMIT", f"{MAX_TASKS} background tasks are running")
        job = self._commands.start(channel, arguments, body, kind=BackgroundJob)
        self._jobs[name] = job
        self._service.reply(channel, {"call": channel})

    def _task(self, arguments: dict[str, Any]) -> BackgroundJob:
        job = self._jobs.get(arguments["task"])
        if job is None:
            raise Failure("NOT_FOUND", "there is no such task in this box")
        return job

    def _await(self, channel: int, arguments: dict[str, Any], body: bytes) -> None:
        job = self._task(arguments)
        if job.waiter is not None:
            raise Failure("CONFLICT", "somebody waits for it already")
        if job.answer is not None:
            self.forget(job)
            job.answer(channel)
        else:
            Waiter(channel, job)

    def _peek(self, channel: int, arguments: dict[str, Any], body: bytes) -> None:
        job = self._task(arguments)
        value, data = job.look(int(arguments["head"]), int(arguments["tail"]))
        self._service.reply(channel, value, data)

    def _fetch(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        size = min(int(arguments["size"]), MAX_PIECE)
        asked = arguments["stream"], int(arguments["position"]), size
        data, at = self._task(arguments).piece(*asked)
        return {"next": at}, data

    def _stop(self, channel: int, arguments: dict[str, Any], body: bytes) -> None:
        self._task(arguments).stop("kill")
        self._service.reply(channel, {})

    # ── what ended calls left running ──

    def _left(self, channel: int, arguments: dict[str, Any], body: bytes) -> None:
        names = {number: name for name, number in self._ended.items()}
        found = self._leftovers(processes.Look())
        calls = [
            {
                "call": call,
                "task": names.get(call),
                "processes": len(members),
                "command": _arguments_of(members[0].pid),
            }
            for call, members in sorted(found.items())[:MAX_LEFT]
        ]
        self._service.reply(channel, {"calls": calls})

    def _leftovers(self, look: processes.Look) -> dict[int, list[processes.Process]]:
        """What no running call owns, by the call that started it, the oldest first.

        Call 0 is where that can't be told.
        """
        commands = self._commands
        owners = commands.owners()
        owned = commands.attribution.owned(look, owners, [], commands.last_channel)
        taken = {pid for pids in owned.values() for pid in pids} | look.guests
        found: dict[int, list[processes.Process]] = {}
        for process in look.processes.values():
            if process.pid in taken:
                continue
            call = commands.attribution.call_of(look, process, commands.last_channel)
            # Outside a container everything else on the machine would be call 0.
            if call or processes.IS_INIT:
                found.setdefault(call, []).append(process)
        if not commands.ending:
            commands.attribution.clear()
        for members in found.values():
            members.sort(key=lambda process: (process.start, process.pid))
        return found

    def _end_left(self, channel: int, arguments: dict[str, Any], body: bytes) -> None:
        name = arguments.get("task")
        call = int(arguments["call"]) if name is None else self._ended.get(name, -1)
        members = self._leftovers(processes.Look()).get(call)
        if not members:
            self._service.reply(channel, {"ended": 0})
            return
        marker = f"{self._commands.box}-{call}"
        owner = processes.Owner(-1, marker, members[0].start)
        ending = Leftover(self._commands, channel, float(arguments["grace"]))
        ending.begin(owner, len(members))


def _size_of(directory: str) -> int:
    """Bytes of the file system that a directory is on."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def _arguments_of(pid: int) -> str:
    """The beginning of a process's command line."""
    line = processes.read(f"/proc/{pid}/cmdline", MAX_SHOWN)
    return line.replace(b"\0", b" ").strip().decode("utf-8", "replace")
