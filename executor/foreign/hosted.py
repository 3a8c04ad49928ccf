"""A server that runs on the host, by the user's own word: nothing confines it.

It has a group of processes of its own, which ends as a whole: when the loop is closed, and its
first process with the executor, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Mapping

from executor.bytestream import StreamClosed
from executor.errors import Code, ToolError
from executor.sandbox.completion import to_completion
from executor.served import MAX_STDERR, Program, State
from executor.settings import values_of

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables of the executor that such a server has."""
_PR_SET_PDEATHSIG = 1
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_WAIT = 5.0


async def start(program: Program) -> Hosted:
    """Start a program on the host.

    Raises:
        ToolError: NOT_FOUND, there is no such program; EXECUTION_ERROR, it can't be started.
    """
    environment = {**values_of(KEPT), **program.environment}
    try:
        return Hosted(await _started(program, environment))
    except FileNotFoundError:
        name = program.argv[0]
        text = f"the host has no program {name!a}; install it, or write the path where it is"
        raise ToolError(Code.NOT_FOUND, text) from None
    except (OSError, ValueError) as error:
        text = f"{program.argv[0]!a} can't be started on the host: {error}"
        raise ToolError(Code.EXECUTION_ERROR, text) from error


async def _started(program: Program, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    parent = os.getpid()

    def prepare() -> None:
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before that held
            os._exit(1)

    return await asyncio.create_subprocess_exec(
        *program.argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=program.cwd or "/",
        start_new_session=True,
        preexec_fn=prepare,
    )


class _Pipes:
    """The pipes of a process as a stream."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None, "it was started with pipes"
        assert process.stdout is not None, "it was started with pipes"
        self._stdin, self._stdout = process.stdin, process.stdout
        self._is_aborted = False

    async def read(self, most: int = 1 << 16) -> bytes:
        """See `ByteStream`."""
        if self._is_aborted:
            raise StreamClosed("it was aborted")
        return await self._stdout.read(most)

    async def write(self, data: bytes) -> None:
        """See `ByteStream`."""
        if self._stdin.is_closing():
            raise StreamClosed("its stdin is closed")
        try:
            self._stdin.write(data)
            await self._stdin.drain()
        except OSError as error:
            raise StreamClosed(str(error)) from error

    async def write_eof(self) -> None:
        """See `ByteStream`."""
        self._stdin.close()

    def abort(self, reason: str = "") -> None:
        """See `ByteStream`."""
        self._is_aborted = True
        self._stdin.close()


async def _result(state: asyncio.Future[State]) -> State:
    return await state


class Hosted:
    """A program of the host, as `Served` has it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pipes = _Pipes(process)
        self._stderr = bytearray()
        self._end_state: asyncio.Future[State] | None = None
        self._tail = asyncio.create_task(self._keep_tail())

    @property
    def stream(self) -> _Pipes:
        """See `Served`."""
        return self._pipes

    async def state(self) -> State:
        """See `Served`."""
        code = self._process.returncode
        said = bytes(self._stderr)
        if code is None:
            return State(True, stderr=said)
        if code < 0:
            return State(False, None, signal.Signals(-code).name, stderr=said)
        return State(False, code, stderr=said)

    async def end(self, grace: float = 2.0) -> State:
        """See `Served`. Processes that have left its group are not found."""
        if self._end_state is None:  # later its number may be another's
            self._end_state = asyncio.ensure_future(self._end(grace))
        return await to_completion(_result(self._end_state))

    async def _end(self, grace: float) -> State:
        self._pipes.abort()
        if self._process.returncode is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace)
        self._signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _WAIT)
        _, waiting = await asyncio.wait({self._tail}, timeout=0.5)
        for task in waiting:
            task.cancel()
        self._close_pipes()
        return await self.state()

    def _close_pipes(self) -> None:
        """Close the pipes, which processes that have left the group may still hold."""
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _keep_tail(self) -> None:
        assert self._process.stderr is not None, "it was started with pipes"
        while data := await self._process.stderr.read(1 << 16):
            self._stderr += data
            del self._stderr[:-MAX_STDERR]
