"""The near half of servers: programs in the box whose stdin and stdout a channel carries.

What the agent says of them is checked by its shape and believed no further: their bytes are the
reader's to bound, and stderr stays bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from executor.bytestream import ByteStream
from executor.errors import Code, Partial, SandboxError, ToolError, partial_of
from executor.sandbox.channels import Channels
from executor.sandbox.completion import to_completion
from executor.sandbox.connection import Answer
from executor.served import Program, State

if TYPE_CHECKING:
    from executor.sandbox.box import Sandbox

START_TIMEOUT = 15.0
"""Seconds that the agent may take to start a program, which does not wait for its first word."""
STATE_TIMEOUT = 10.0
END_MARGIN = 20.0
"""Seconds on top of the grace in which a server must have been ended."""
MAX_GRACE = 60.0


async def start(sandbox: Sandbox, channels: Channels, program: Program) -> Running:
    """Start a program in the box and connect to its pipes.

    Raises:
        ToolError: INVALID_ARGUMENTS, no box can start it; NOT_FOUND, the box has no such program;
            LIMIT, too many servers or connections, or the process limit; FILE_NOT_FOUND or
            PERMISSION_DENIED, it can't begin in that directory; EXECUTION_ERROR, it could not
            be started.
        SandboxError: the box is lost.
    """
    asked = _asked(program)
    try:
        answer = await sandbox.request("serve", asked, timeout=START_TIMEOUT)
    except asyncio.CancelledError as error:
        started = partial_of(error)
        if isinstance(started, Answer):
            # What it came to is nobody's business any more, and least a tool's.
            error.args = tuple(one for one in error.args if not isinstance(one, Partial))
            await to_completion(_discard(sandbox, started.value["server"]))
        raise
    number: int = answer.value["server"]
    try:
        stream = await channels.dial_server(number)
    except BaseException:
        await to_completion(_discard(sandbox, number))
        raise
    return Running(sandbox, number, stream)


def _asked(program: Program) -> dict[str, object]:
    """The agent's arguments.

    Raises:
        ToolError: INVALID_ARGUMENTS, no program can be started so.
    """
    words = [*program.argv, *program.environment, *program.environment.values(), program.cwd]
    if not program.argv or not program.argv[0]:
        raise ToolError(Code.INVALID_ARGUMENTS, "a server needs a command; its first word is empty")
    if any("\0" in word for word in words):
        raise ToolError(
            Code.INVALID_ARGUMENTS, f"{program.argv[0]!a}: a word holds a NUL character"
        )
    if any(not name or "=" in name for name in program.environment):
        message = f"{program.argv[0]!a}: a variable's name is empty or holds ="
        raise ToolError(Code.INVALID_ARGUMENTS, message)
    return {
        "argv": list(program.argv),
        "environment": dict(program.environment),
        "cwd": program.cwd,
    }


async def _discard(sandbox: Sandbox, number: int) -> None:
    """End a server that nobody got to know; one that can't be ended goes with the box."""
    try:
        await _end(sandbox, number, 0.0)
    except (ToolError, SandboxError):
        return


async def _end(sandbox: Sandbox, number: int, grace: float) -> State:
    asked = {"server": number, "grace": grace}
    return _state(await sandbox.request("server_end", asked, timeout=grace + END_MARGIN))


def _state(answer: Answer) -> State:
    value = answer.value
    return State(
        is_running=value["running"],
        exit_code=value["exit_code"],
        signal=value["signal"],
        is_out_of_memory=value["oom"],
        stderr=answer.data,
    )


class Running:
    """A started program; see `Served`. Made by `start`."""

    def __init__(self, sandbox: Sandbox, number: int, stream: ByteStream) -> None:
        self._sandbox = sandbox
        self._number = number
        self._stream = stream
        self._end: asyncio.Future[State] | None = None

    @property
    def stream(self) -> ByteStream:
        """Its stdin and stdout."""
        return self._stream

    async def state(self) -> State:
        """How it is; once it was ended, how it was then.

        Raises:
            SandboxError: the box is lost.
        """
        if self._end is not None:
            return await asyncio.shield(self._end)
        asked = {"server": self._number}
        try:
            answer = await self._sandbox.request("server_state", asked, timeout=STATE_TIMEOUT)
        except ToolError as error:
            raise SandboxError(f"the box does not say how a server is: {error}") from error
        return _state(answer)

    async def end(self, grace: float = 2.0) -> State:
        """End it and all that it started, to its end even if the caller is cancelled meanwhile.

        The stream is aborted then: what it printed last and nobody has read is lost.

        Args:
            grace: seconds between TERM and KILL, at most a minute.

        Raises:
            SandboxError: the box is lost, and it with the box.
        """
        if self._end is None:
            self._end = asyncio.ensure_future(self._ended(min(max(grace, 0.0), MAX_GRACE)))
        return await to_completion(_result_of(self._end))

    async def _ended(self, grace: float) -> State:
        try:
            return await _end(self._sandbox, self._number, grace)
        except ToolError as error:
            raise SandboxError(f"the box does not end a server: {error}") from error
        finally:
            self._stream.abort("the server was ended")


async def _result_of(future: asyncio.Future[State]) -> State:
    return await asyncio.shield(future)
