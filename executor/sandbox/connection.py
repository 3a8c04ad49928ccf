"""The near half of the wire: calls out, answers in, and a watch over the far half.

Nothing that the agent sends is believed: lengths and kinds are capped and closed, an
answer must belong to a call that waits for it, and no field of an answer is ever used
as a path, address, command or class of the host. Any fault loses this box only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from executor.agent import frame
from executor.agent.frame import FrameError, Parser, encode, encode_json
from executor.errors import AgentLost, Code, Partial, ProtocolError, SandboxError, ToolError
from executor.sandbox.channels import Accept, Channels
from executor.sandbox.control import from_json
from executor.sandbox.replies import MAX_DATA, Shape, most_data, most_records, shape_of

OnOutput: TypeAlias = Callable[[Literal["stdout", "stderr"], bytes], None]

log = logging.getLogger(__name__)

_CODES = frozenset(code.value for code in Code)

MAX_PIECES = MAX_DATA // frame.MAX_PAYLOAD
"""DATA frames of one answer: an agent of ours fills each but the last one."""
MAX_STDERR = 1 << 20
"""Bytes beside the stream; an agent of ours says a line or two in its life."""
MAX_MESSAGE = 4000
"""Characters of an error message that are kept."""
MAX_DEPTH = 20
"""Levels that the details of an error may have."""
LIVE_CREDIT = 1 << 20
"""Bytes of live output under way at the most; the agent's own start value."""
LIVE_PIECE = 1 << 16
"""Bytes of one piece of it: the agent reads no more at a time, and listeners count pieces."""
CANCEL_MARGIN = 8.0
"""Seconds on top of the grace in which a cancelled or timed out call must answer."""
PING_INTERVAL = 5.0
PING_PATIENCE = 10.0
"""Seconds without an answer after which a box counts as lost."""
PING_SUSPICION = 3.0
"""Seconds without an answer after which the owner looks whether the engine knows why."""


_COMMANDS = ("run", "await_task")


class Writer(Protocol):
    """The sending end of a stream to an agent."""

    def write(self, data: bytes) -> None:
        """Send, or keep until it can be sent."""

    def close(self) -> None:
        """End the stream; the agent ends with it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What an operation of the agent came to. Untrusted."""

    value: dict[str, Any]
    data: bytes


@dataclass(slots=True)
class _Waiting:
    """A call that has no answer yet."""

    future: asyncio.Future[Answer]
    on_output: OnOutput | None
    shape: Shape | None
    most: int
    records: int | None
    data: bytes | bytearray = b""
    pieces: int = 0
    live: int = 0
    expired: float | None = None
    deadline: asyncio.TimerHandle | None = None

    def add(self, payload: bytes) -> None:
        """One more piece of data. The first one, which mostly is the last, is not copied."""
        self.pieces += 1
        if not self.data:
            self.data = payload
            return
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        self.data += payload

    def disarm(self) -> None:
        """There is nothing left to be in time for."""
        if self.deadline is not None:
            self.deadline.cancel()


class Connection:
    """One agent's stream.

    Args:
        hash: the runtime's content hash that READY must repeat; None takes any.
        on_lost: called once when the stream is lost: the owner finds the cause, ends the
            box, and calls `fail_waiting`.
        on_silence: called when the agent has not answered a ping for some seconds, which
            it is given; the owner may know the cause and call `lose`.
        accept: serves connections to the box's proxy; None = it has none.

    Attributes:
        channels: the connections that the stream carries.
        mourned: set when everything that waited has its end, and `error` the cause.
    """

    def __init__(
        self,
        hash: str | None,
        on_lost: Callable[[SandboxError], Any],
        on_silence: Callable[[float], object] = lambda seconds: None,
        accept: Accept | None = None,
    ) -> None:
        self._hash = hash
        self._on_lost = on_lost
        self._on_silence = on_silence
        self.mourned = asyncio.Event()
        self._parser = Parser(frame.TO_HOST)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Waiting] = {}
        self._held = 0
        self._channel = 0
        self._ready: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._pong: asyncio.Event = asyncio.Event()
        self._ping = b""
        self._pings = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._queued = 0
        self.channels = Channels(self._send, self._may_push, self._next_channel, accept)
        self._writer: Writer | None = None
        self._error: SandboxError | None = None
        self._watch: asyncio.Task[None] | None = None
        self.stderr = b""
        self._said = 0

    # ── the stream's side ──

    def connected(self, writer: Writer) -> None:
        """The stream is there."""
        self._writer = writer

    def pause(self) -> None:
        """The stream takes no more for now; calls wait with their input."""
        self._writable.clear()

    def resume(self) -> None:
        """The stream takes bytes again."""
        self._writable.set()
        self.channels.pump()

    def received(self, data: bytes) -> int:
        """Bytes from the agent; how many frames they completed."""
        if self._error is not None:
            return 0
        frames: list[tuple[int, int, bytes]] = []
        try:
            frames = self._parser.feed(data)
            for kind, channel, payload in frames:
                self._on_frame(kind, channel, payload)
        except (FrameError, ProtocolError) as error:
            self.lose(ProtocolError(f"the agent broke the protocol: {error}"))
        return len(frames)

    def received_stderr(self, data: bytes) -> None:
        """What the agent or the runtime says beside the stream: the last 8 KiB are kept."""
        self.stderr = (self.stderr + data)[-8192:]
        self._said += len(data)
        if self._said > MAX_STDERR:
            self.lose(ProtocolError(f"the agent said more than {MAX_STDERR} bytes on stderr"))

    def closed(self, reason: str) -> None:
        """The stream ended."""
        self.lose(AgentLost(reason))

    def lose(self, error: SandboxError) -> None:
        """End everything that waits, once. The owner is asked to end the box."""
        if self._error is not None:
            return
        self._error = error
        self._writable.set()
        self.channels.end(error)
        if self._watch is not None:
            self._watch.cancel()
        if self._writer is not None:
            self._writer.close()
        self._on_lost(error)

    def fail_waiting(self, error: SandboxError) -> None:
        """Give every waiting call its end; `error` has the cause by now."""
        self._error = error
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # retrieved here: nobody may be waiting for it
        for waiting in self._waiting.values():
            waiting.disarm()
            if not waiting.future.done():
                waiting.future.set_exception(error)
                waiting.future.exception()
        self._waiting.clear()
        self.mourned.set()

    @property
    def error(self) -> SandboxError | None:
        """Why the box is lost; None while it lives."""
        return self._error

    # ── frames ──

    def _on_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == frame.REPLY:
            self._on_reply(channel, payload)
        elif kind == frame.DATA:
            self._on_data(channel, payload)
        elif kind in (frame.STDOUT, frame.STDERR):
            self._on_live(kind, channel, payload)
        elif kind in frame.CARRIED or kind == frame.OPEN:
            self.channels.on_frame(kind, channel, payload)
        elif kind == frame.PONG:
            self._on_pong(payload)
        elif kind == frame.READY:
            self._on_ready(from_json(payload))
        else:
            reason = str(from_json(payload).get("reason"))[:MAX_MESSAGE]
            hint = "another client may be attached to it"
            raise ProtocolError(f"it gave up: {reason!a}; if nothing wrong was sent, {hint}")

    def _on_pong(self, payload: bytes) -> None:
        if not self._pings:
            raise ProtocolError("an answer to a ping that was not sent")
        self._pings -= 1
        if payload == self._ping:
            self._pong.set()

    def _on_ready(self, value: dict[str, Any]) -> None:
        if self._ready.done():
            raise ProtocolError("a second READY")
        if self._hash is not None and value.get("hash") != self._hash:
            raise ProtocolError("READY names another runtime than the one that was mounted")
        self._ready.set_result(value)

    def _taken(self, channel: int) -> _Waiting:
        waiting = self._waiting.get(channel)
        if waiting is None:
            raise ProtocolError(f"an answer to call {channel}, which is not waiting")
        return waiting

    def _on_data(self, channel: int, payload: bytes) -> None:
        waiting = self._taken(channel)
        self._held += len(payload)
        if not payload or self._held > MAX_DATA:
            raise ProtocolError(f"data that are empty or more than {MAX_DATA} bytes")
        waiting.add(payload)
        if len(waiting.data) > waiting.most or waiting.pieces > MAX_PIECES:
            raise ProtocolError(f"data in {waiting.pieces} pieces, more than were asked for")

    def _on_live(self, kind: int, channel: int, payload: bytes) -> None:
        waiting = self._taken(channel)
        waiting.live += len(payload)
        if waiting.on_output is None or waiting.live > LIVE_CREDIT:
            raise ProtocolError("live output that was not asked for")
        if not 0 < len(payload) <= LIVE_PIECE:
            raise ProtocolError(f"live output in a piece of {len(payload)} bytes")
        try:
            waiting.on_output("stdout" if kind == frame.STDOUT else "stderr", payload)
        except Exception:
            # The listener is the caller's; the call and all others go on without it.
            log.exception("a listener to live output failed and gets no more of it")
            waiting.on_output = _nobody
        if waiting.live > LIVE_CREDIT // 2:
            self._send(encode_json(frame.CREDIT, channel, {"bytes": waiting.live}))
            waiting.live = 0

    def _on_reply(self, channel: int, payload: bytes) -> None:
        waiting = self._taken(channel)
        outcome = _outcome(from_json(payload), waiting)
        del self._waiting[channel]
        self._held -= len(waiting.data)
        waiting.disarm()
        if waiting.future.done():
            return
        if isinstance(outcome, ToolError):
            waiting.future.set_exception(outcome)
            waiting.future.exception()
        else:
            waiting.future.set_result(outcome)

    # ── the caller's side ──

    async def hello(self, settings: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Wait for READY, give the agent its settings, begin to watch it.

        Args:
            timeout: seconds that the agent may take to come up.

        Raises:
            AgentLost: it did not.
            ProtocolError: it is not the agent that was mounted.
        """
        try:
            async with asyncio.timeout(timeout):
                ready = await asyncio.shield(self._ready)
        except TimeoutError:
            self.lose(AgentLost(f"the agent did not come up within {timeout:g} s"))
            ready = await self._ready
        if self._error is not None:  # what came with READY was the end of it
            raise self._error
        self._send(encode_json(frame.HELLO, 0, settings))
        self._watch = self._loop.create_task(self._keep_watch())
        return ready

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        grace: float = 0.0,
        on_output: OnOutput | None = None,
    ) -> Answer:
        """Have one operation done.

        Args:
            op: the operation's name.
            arguments: JSON-able.
            body: its input.
            timeout: seconds that it may take. The agent ends a command by itself, other
                operations are ended from here; a call that is not ended within `grace` and
                a margin after that costs the box.
            grace: seconds between TERM and KILL.
            on_output: takes live output while the command runs.

        Raises:
            ToolError: the operation failed.
            SandboxError: the box is lost.
        """
        has_waited = not self._writable.is_set()
        if has_waited:
            await self._until_writable(timeout, grace)
        if self._error is not None:
            raise self._error
        channel = self._next_channel()
        try:
            frames = _call(channel, {"op": op, **arguments}, body)
            waiting = _Waiting(
                self._loop.create_future(),
                on_output,
                shape_of(op, arguments),
                most_data(op, arguments),
                most_records(op, arguments),
            )
            self._waiting[channel] = waiting
            self._send(frames)
        finally:
            if has_waited:  # connections waited for this call, sent or not
                self.channels.pump(at_least=1)
        if timeout is not None and op in _COMMANDS:  # which the agent ends by itself
            self._arm(waiting, timeout + grace + CANCEL_MARGIN, self._overdue, channel, timeout)
        elif timeout is not None:
            self._arm(waiting, timeout, self._expire, channel, timeout)
        try:
            return await waiting.future
        except asyncio.CancelledError as error:
            answer = await self._cancel(channel, waiting, grace)
            if answer is not None:
                error.args = (*error.args, Partial(answer))
            raise

    async def _until_writable(self, timeout: float | None, grace: float) -> None:
        """Wait with a call; a stream that takes nothing for all the call's time is lost."""
        overdue = None
        if timeout is not None:
            seconds = timeout + grace + CANCEL_MARGIN
            error = AgentLost(f"the agent took no input for {seconds:g} s; box killed")
            overdue = self._loop.call_later(seconds, self.lose, error)
        self._queued += 1
        try:
            while not self._writable.is_set():
                await self._writable.wait()
        except BaseException:
            # The stream may take bytes again, and nobody else tells the connections.
            self._loop.call_soon(self.channels.pump)
            raise
        finally:
            self._queued -= 1
            if overdue is not None:
                overdue.cancel()

    def _arm(
        self, waiting: _Waiting, seconds: float, action: Callable[..., None], *arguments: Any
    ) -> None:
        """What happens unless the call is answered within that time.

        The timer is the call's, not the task's that waits for it: that one may be cancelled
        twice, and be gone before the agent has answered.
        """
        waiting.disarm()
        waiting.deadline = self._loop.call_later(seconds, action, *arguments)

    async def _cancel(self, channel: int, waiting: _Waiting, grace: float) -> Answer | None:
        """End the call in the box before the cancellation goes on; what it had come to."""
        if channel not in self._waiting:
            return None
        self._send(encode(frame.CANCEL, channel))
        self._arm(waiting, grace + CANCEL_MARGIN, self._overdue, channel, grace)
        waiting.future = self._loop.create_future()
        with contextlib.suppress(ToolError, SandboxError):
            return await waiting.future
        return None

    def _expire(self, channel: int, timeout: float) -> None:
        """End an operation that takes too long; one that can't be ended costs the box."""
        waiting = self._waiting.get(channel)
        if waiting is not None:
            waiting.expired = timeout
            self._send(encode(frame.CANCEL, channel))
            self._arm(waiting, CANCEL_MARGIN, self._overdue, channel, timeout)

    def _overdue(self, channel: int, timeout: float) -> None:
        if channel not in self._waiting:
            return
        self.lose(
            AgentLost(f"a call of at most {timeout:g} s was not ended by the agent; box killed")
        )

    def close(self) -> None:
        """End the stream and with it the agent."""
        self.lose(AgentLost("the sandbox was closed"))

    def _next_channel(self) -> int:
        self._channel += 1
        return self._channel

    def _may_push(self) -> bool:
        """Bytes of connections are sent when no call is kept waiting by it."""
        return self._error is None and self._writable.is_set() and not self._queued

    def _send(self, data: bytes) -> None:
        if self._writer is not None and self._error is None:
            self._writer.write(data)

    async def _keep_watch(self) -> None:
        """Ping for as long as the box lives; one that stays silent is lost.

        The pings also renew the agent's lease. What they hold can't be guessed: who answers
        has read its input up to there.
        """
        while True:
            self._ping = secrets.token_bytes(8)
            self._pong.clear()
            self._pings += 1
            self._send(encode(frame.PING, 0, self._ping))
            first = min(PING_SUSPICION, PING_PATIENCE)
            if await self._answered(first):
                await asyncio.sleep(PING_INTERVAL)
                continue
            self._on_silence(first)
            # The last, short wait is for this process: it may itself have been stopped,
            # and shall read what came meanwhile.
            rest = PING_PATIENCE - first
            if not await self._answered(rest) and not await self._answered(1.0):
                reason = (
                    "stopped, starved or ended by a command, or another client attached to it "
                    "takes no output"
                )
                self.lose(
                    AgentLost(f"the agent did not answer for {PING_PATIENCE:.0f} s ({reason})")
                )
                return
            await asyncio.sleep(PING_INTERVAL)

    async def _answered(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._pong.wait()
        except TimeoutError:
            return False
        return True


def _call(channel: int, arguments: dict[str, Any], body: bytes) -> bytes:
    if body:
        arguments["body"] = len(body)
    try:
        head = encode_json(frame.CALL, channel, arguments)
    except FrameError as error:
        raise ToolError(Code.TOO_LARGE, f"the arguments are too long: {error}") from error
    return head + b"".join(encode(frame.BODY, channel, piece) for piece in frame.split(body))


def _nobody(channel: str, data: bytes) -> None:
    """Takes live output after its listener failed."""


def _is_shallow(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether the value can be written again, however deep in calls the writer is."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(part, levels - 1) for part in inner)


def _outcome(value: dict[str, Any], waiting: _Waiting) -> Answer | ToolError:
    if set(value) == {"ok"} and isinstance(value["ok"], dict):
        data = bytes(waiting.data)
        if waiting.records is not None and data.count(b"\0") > waiting.records:
            raise ProtocolError("more records than were asked for")
        if waiting.shape is not None:
            waiting.shape.check(value["ok"], data)
        return Answer(value["ok"], data)
    error = value.get("error")
    if set(value) != {"error"} or not isinstance(error, dict):
        raise ProtocolError("an answer that is neither ok nor error")
    code, message, details = error.get("code"), error.get("message"), error.get("details")
    if not isinstance(code, str) or code not in _CODES or not isinstance(message, str):
        raise ProtocolError("an error with an unknown code")
    if details is not None and not (isinstance(details, dict) and _is_shallow(details)):
        raise ProtocolError("an error whose details are no object, or too deep")
    if waiting.expired is not None and code == Code.CANCELLED:
        return ToolError(Code.TIMEOUT, f"not done within {waiting.expired:g} s; it was ended")
    return ToolError(Code(code), message[:MAX_MESSAGE], details)
