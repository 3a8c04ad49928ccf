"""The near half of carried connections: each a `ByteStream`, all of them on the agent's stream.

Who opens a channel sends OPEN or DIAL and its first GRANT; the other side's first GRANT is the
answer. A channel is over when both sides have said SHUT, or when both have said ABORT: each
side answers an ABORT with one, unless it has said one already, so that both know when the
other has forgotten the channel. What is to be sent waits here until the stream takes it, one
turn per channel, after calls that wait.

Nothing that the agent sends is believed. What it may make the host keep is bounded: `WINDOW`
bytes for each of `MAX_CONNECTIONS` channels, in one buffer each, so that the number of frames
does not matter; and nothing that answers the agent is written while the agent does not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from executor.agent import frame
from executor.agent.frame import MAX_CONNECTIONS, WINDOW, encode, encode_json
from executor.bytestream import ByteStream, StreamClosed
from executor.errors import Code, ProtocolError, SandboxError, ToolError
from executor.sandbox.control import from_json

Accept: TypeAlias = Callable[[ByteStream], Awaitable[None]]
"""Serves one connection of a box; the stream has ended when it returns."""

log = logging.getLogger(__name__)

PIECE = 1 << 16
"""Bytes of one frame, and so of one turn."""
MAX_SERVED = 2 * MAX_CONNECTIONS
"""Connections that are being served, those included that the box has already left."""
MAX_CONTROL = 4096
"""Bytes of an ABORT; a GRANT has no need of more than `MAX_GRANT`."""
MAX_GRANT = 64
MAX_REASON = 200
"""Characters of a reason that are kept."""
LATE = 4
"""Frames that may come for a channel which is over by SHUT: grants and an ABORT that were under
way meanwhile."""
DIAL_TIMEOUT = 10.0
FINISH_TIMEOUT = 10.0
"""Seconds that are waited for what serves connections, once it was cancelled."""


class Channel:
    """One carried connection; see `ByteStream`. One reader and one writer at a time."""

    def __init__(self, channels: Channels, number: int) -> None:
        self._channels = channels
        self.number = number
        self.answered: asyncio.Future[None] = channels.loop.create_future()
        self._buffer = bytearray()
        self._granted = 0
        self._owed = WINDOW
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None
        self._data = memoryview(b"")
        self._credit = 0
        self._writer: asyncio.Future[None] | None = None
        self._is_ending = self._has_shut = False
        self._why: str | None = None
        self._has_aborted = self._was_aborted = False
        self._owes_abort = False
        self._is_kept = False

    # ── the owner's side ──

    async def read(self, most: int = 1 << 16) -> bytes:
        """The next bytes; empty once no more come."""
        while not self._buffer:
            if self._is_ended and (self._why is None or self._is_kept):
                return b""
            if self._why is not None:
                raise StreamClosed(self._why)
            self._reader = self._channels.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = bytes(memoryview(self._buffer)[:most])
        del self._buffer[: len(data)]
        self._owed += len(data)
        if self._owed >= WINDOW // 2 and not self._is_ended:
            self._channels.submit(self)
        return data

    async def write(self, data: bytes) -> None:
        """Send; waits until the box's side has room for all of it."""
        if self._is_ending:
            raise StreamClosed("the end was said already")
        self._data = memoryview(data)
        if data:
            self._channels.submit(self)
        try:
            while self._data and self._why is None:
                self._writer = self._channels.loop.create_future()
                await self._writer
        finally:
            self._writer = None
            self._data = memoryview(b"")
        if self._why is not None:
            raise StreamClosed(self._why)

    async def write_eof(self) -> None:
        """No more bytes come from the host."""
        if not self._is_ending and self._why is None:
            self._is_ending = True
            self._channels.submit(self)

    def abort(self, reason: str = "") -> None:
        """End both directions now."""
        is_over = self._is_ending and self._is_ended  # and only has to be said
        if self._why is None and not is_over:
            self._owes_abort = True
        self.fail(reason or "the connection was ended")
        if self._owes_abort and not self._has_aborted:
            self._channels.submit(self)

    def fail(self, reason: str, *, is_kept: bool = False) -> None:
        """Nothing more comes or goes; whoever waits is told.

        Args:
            is_kept: what has come may still be read.
        """
        if self._why is not None:
            return
        self._why = reason
        self._is_kept = is_kept
        if not is_kept:
            self._buffer.clear()
        self._wake()

    def _wake(self) -> None:
        for waiting in (self._reader, self._writer):
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    # ── the stream's side ──

    def take_turn(self) -> bool:
        """Send what is owed and one piece at most; whether more could follow at once."""
        send = self._channels.send
        if self._owes_abort:
            if not self._has_aborted:
                self._has_aborted = True
                send(encode_json(frame.ABORT, self.number, {"reason": (self._why or "")[:200]}))
            self._settle()
            return False
        if self._owed >= WINDOW // 2 and not self._is_ended:
            self._granted += self._owed
            send(encode_json(frame.GRANT, self.number, {"bytes": self._owed}))
            self._owed = 0
        self._push(min(len(self._data), self._credit, PIECE))
        if self._is_ending and not self._has_shut and not self._data:
            self._has_shut = True
            send(encode(frame.SHUT, self.number))
            self._settle()
        return bool(self._data) and self._credit > 0

    def _push(self, size: int) -> None:
        if not size:
            return
        head = frame.HEADER.pack(frame.PUSH, self.number, size)
        self._channels.send(b"".join((head, self._data[:size])))
        self._credit -= size
        self._data = self._data[size:]
        if not self._data:
            self._wake()

    def on_frame(self, kind: int, payload: bytes) -> None:
        """What the agent says of this channel."""
        if self._was_aborted:
            raise ProtocolError("a frame of a connection that it had ended")
        if kind == frame.PUSH:
            self._on_push(payload)
        elif kind == frame.GRANT:
            self._on_grant(payload)
        elif kind == frame.SHUT:
            self._on_shut(payload)
        else:
            self._on_abort(payload)

    def _on_push(self, payload: bytes) -> None:
        if self._is_ended:
            raise ProtocolError("bytes of a connection after their end")
        if not 0 < len(payload) <= min(PIECE, self._granted):
            raise ProtocolError(f"{len(payload)} bytes of a connection, more than were granted")
        self._granted -= len(payload)
        if self._why is None:
            self._buffer += payload
            if self._reader is not None:
                self._wake()

    def _on_grant(self, payload: bytes) -> None:
        size = from_json(payload).get("bytes") if len(payload) <= MAX_GRANT else None
        if type(size) is not int or not 0 < size <= WINDOW - self._credit:
            raise ProtocolError("a grant that is no number, or more than a window")
        self._credit += size
        if not self.answered.done():
            self.answered.set_result(None)
        if self._data:
            self._channels.submit(self)

    def _on_shut(self, payload: bytes) -> None:
        if self._is_ended or payload:
            raise ProtocolError("a second end of a connection's bytes, or one that holds some")
        self._is_ended = True
        self._wake()
        self._settle()

    def _on_abort(self, payload: bytes) -> None:
        reason = from_json(payload).get("reason") if len(payload) <= MAX_CONTROL else None
        if not isinstance(reason, str):
            raise ProtocolError("an end of a connection whose reason is no text, or too long")
        self._was_aborted = True
        if not self.answered.done():
            self.answered.set_exception(ConnectionRefusedError(reason[:MAX_REASON]))
            self.answered.exception()
        # A box may open as many one after the other as it likes; those of the host are few.
        is_ours = self.number < frame.FROM_BOX
        self.fail(f"the box's side ended it: {reason[:MAX_REASON]!a}", is_kept=is_ours)
        self._owes_abort = True
        if self._has_aborted:
            self._settle()
        else:
            self._channels.submit(self)

    def _settle(self) -> None:
        """Forget the channel, if the other side has or will."""
        if self._has_shut and self._is_ended:
            self._channels.forget(self, LATE)
        elif self._has_aborted and self._was_aborted:
            self._channels.forget(self, 0)


class Channels:
    """All carried connections of one box.

    Args:
        send: writes to the stream.
        may_send: whether the stream takes bytes and no call waits for it.
        number: a number that no call and no other channel has.
        accept: serves a connection that somebody in the box has opened to the proxy; None =
            the box has no proxy. It is cancelled when the box ends.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        may_send: Callable[[], bool],
        number: Callable[[], int],
        accept: Accept | None,
    ) -> None:
        self.send = send
        self.loop = asyncio.get_running_loop()
        self._may_send = may_send
        self._number = number
        self._accept = accept
        self._open: dict[int, Channel] = {}
        self._from_box = 0
        self._last = frame.FROM_BOX - 1
        self._late = 0
        self._queue: dict[Channel, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: SandboxError | None = None

    # ── turns ──

    def submit(self, channel: Channel) -> None:
        """Have the channel take its turn, now or when the stream takes bytes again."""
        self._queue[channel] = None
        self.pump()

    def pump(self, at_least: int = 0) -> None:
        """Let channels take turns while the stream takes bytes.

        Args:
            at_least: turns that are taken even so: calls that wait must not shut them out.
        """
        while self._queue and (at_least > 0 or self._may_send()):
            at_least -= 1
            channel = next(iter(self._queue))
            del self._queue[channel]
            if channel.take_turn():
                self._queue[channel] = None

    # ── frames ──

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        """A frame of the agent.

        Raises:
            ProtocolError: it may not say that.
        """
        if kind == frame.OPEN:
            self._on_open(number, payload)
            return
        channel = self._open.get(number)
        if channel is not None:
            channel.on_frame(kind, payload)
            return
        self._late -= 1
        if kind not in (frame.GRANT, frame.ABORT) or self._late < 0:
            raise ProtocolError(f"a frame of connection {number}, which is not open")

    def _on_open(self, number: int, payload: bytes) -> None:
        if self._accept is None:
            raise ProtocolError("a connection to a proxy, which this box does not have")
        if payload or number <= self._last:
            raise ProtocolError(f"connection {number} again, or one below the agent's numbers")
        if self._from_box >= MAX_CONNECTIONS:
            raise ProtocolError(f"more than {MAX_CONNECTIONS} connections at a time")
        self._last = number
        self._from_box += 1
        channel = self._open[number] = Channel(self, number)
        if len(self._tasks) >= MAX_SERVED:
            channel.abort("too many connections are still being ended")
            return
        task = self.loop.create_task(self._serve(channel, self._accept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.submit(channel)

    async def _serve(self, channel: Channel, accept: Accept) -> None:
        try:
            await accept(channel)
        except StreamClosed:
            pass
        except Exception:
            # It is one connection's; the box and its other connections go on.
            log.exception("a connection from a box could not be served to its end")
        finally:
            channel.abort("the host has ended the connection")

    def forget(self, channel: Channel, late: int) -> None:
        """The channel is over on both sides; so many frames of it may still be under way."""
        if self._open.pop(channel.number, None) is None:
            return
        self._queue.pop(channel, None)
        self._late = min(self._late + late, LATE * MAX_CONNECTIONS)
        if channel.number >= frame.FROM_BOX:
            self._from_box -= 1

    # ── the owner's side ──

    async def dial(self, port: int, timeout: float = DIAL_TIMEOUT) -> ByteStream:
        """Connect to a port of the box's loopback.

        Args:
            timeout: seconds that the connection may take to come about.

        Raises:
            ToolError: nobody answers there (NETWORK_ERROR, TIMEOUT), or too many connections
                are open (LIMIT).
            SandboxError: the box is lost.
        """
        if not 0 < port < 1 << 16:
            raise ToolError(Code.INVALID_ARGUMENTS, f"{port} is no port: they are 1 to 65535")
        try:
            return await self._dial({"port": port}, timeout)
        except TimeoutError:
            message = f"port {port} of the box did not answer within {timeout:g} s"
            raise ToolError(Code.TIMEOUT, message) from None
        except ConnectionRefusedError as error:
            raise ToolError(Code.NETWORK_ERROR, _refusal(port, str(error))) from None

    async def dial_server(self, server: int, timeout: float = DIAL_TIMEOUT) -> ByteStream:
        """Connect to the stdin and stdout of a server in the box; once for each.

        Args:
            server: its number, as the agent gave it.
            timeout: seconds that the connection may take to come about.

        Raises:
            ToolError: there is none (EXECUTION_ERROR), or too many connections are open (LIMIT).
            SandboxError: the box is lost.
        """
        try:
            return await self._dial({"server": server}, timeout)
        except TimeoutError:
            message = f"the pipes of a server were not connected within {timeout:g} s"
            raise ToolError(Code.TIMEOUT, message) from None
        except ConnectionRefusedError as error:
            message = f"the pipes of a server can't be connected: {str(error)!a}"
            raise ToolError(Code.EXECUTION_ERROR, message) from None

    async def _dial(self, to: dict[str, int], timeout: float) -> Channel:
        """A new channel to something in the box.

        Raises:
            TimeoutError, ConnectionRefusedError: it did not come about.
            ToolError: LIMIT, too many are open.
            SandboxError: the box is lost.
        """
        if self._error is not None:
            raise self._error
        if len(self._open) - self._from_box >= MAX_CONNECTIONS:
            message = f"{MAX_CONNECTIONS} connections into the box are open; end some first"
            raise ToolError(Code.LIMIT, message)
        number = self._number()
        channel = self._open[number] = Channel(self, number)
        self.send(encode_json(frame.DIAL, number, to))
        self.submit(channel)
        try:
            async with asyncio.timeout(timeout):
                await channel.answered
        except TimeoutError:
            channel.abort("it took too long")
            raise
        except ConnectionRefusedError:
            raise
        except BaseException:
            channel.abort("nobody waits for it any more")
            raise
        return channel

    def end(self, error: SandboxError) -> None:
        """The box is lost: every connection ends, and what serves them is cancelled."""
        self._error = error
        self._queue.clear()
        for channel in self._open.values():
            if not channel.answered.done():
                channel.answered.set_exception(error)
                channel.answered.exception()
            channel.fail(f"the box is lost: {error}")
        self._open.clear()
        for task in self._tasks:
            task.cancel()

    async def finish(self) -> None:
        """Wait until what served connections has ended, once the box is lost or closed."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=FINISH_TIMEOUT)
            if left:
                log.warning("%d connections of a box that is gone are still served", len(left))


def _refusal(port: int, reason: str) -> str:
    if reason == "refused":
        return (
            f"nothing listens on port {port} of the box's loopback: start the server first, and "
            "have it listen on 127.0.0.1, ::1 or on all addresses"
        )
    return f"port {port} of the box's loopback can't be reached: {reason!a}"
