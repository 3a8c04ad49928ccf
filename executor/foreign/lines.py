"""Messages of MCP as lines over the stdin and stdout of a program, both bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_PARAMS,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
)

from executor.bytestream import ByteStream, StreamClosed
from executor.foreign.bounds import MAX_LINE, Measure, TooMuch, parsed

Into: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]


@dataclass(slots=True)
class Ends:
    """Both ends of a connection as the SDK takes them.

    Attributes:
        read, write: messages.
        over: set once no more messages come, before `read` ends or `write` is closed for it.
        fault: why it was ended from here; None = the other side ended it.
        faults: numbers of our requests that have none yet → why none comes; empty = it may.
    """

    read: MemoryObjectReceiveStream[SessionMessage | Exception]
    write: MemoryObjectSendStream[SessionMessage]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    fault: str | None = None
    faults: dict[int, str] = field(default_factory=dict)

    def end(self, fault: str) -> None:
        """End it from here."""
        self.fault = self.fault or fault
        self.over.set()

    @contextmanager
    def read_from(self) -> Iterator[None]:
        """While this lasts messages come; at its end no more do."""
        try:
            yield
        except TooMuch as error:
            self.end(str(error))
        except (StreamClosed, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self.over.set()


@dataclass(slots=True)
class Inner:
    """The other ends of a connection, for what carries the messages.

    Attributes:
        into: takes what has come.
        out: has what is to go.
    """

    into: Into
    out: MemoryObjectReceiveStream[SessionMessage]


def joined() -> tuple[Ends, Inner]:
    """A connection and its other ends; nothing waits in between."""
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, out = anyio.create_memory_object_stream[SessionMessage](0)
    return Ends(read, write), Inner(into, out)


@asynccontextmanager
async def over_lines(name: str, stream: ByteStream) -> AsyncIterator[Ends]:
    """The ends of a program's connection for as long as this lasts.

    Args:
        name: of the server, for the log.
        stream: its stdin and stdout.
    """
    ends, inner = joined()
    measure = Measure(name)

    async def send(_: SessionMessage, text: str) -> None:
        await stream.write(text.encode() + b"\n")

    carriers = _reading(stream, inner.into, ends, measure), passed_on(inner, ends, measure, send)
    async with carried(ends, inner, *carriers):
        yield ends


@asynccontextmanager
async def carried(
    ends: Ends, inner: Inner, *carriers: Coroutine[Any, Any, None]
) -> AsyncIterator[None]:
    """Runs what carries the messages of a connection for as long as this lasts."""
    tasks = [asyncio.ensure_future(carrier) for carrier in carriers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)
        for one in (inner.into, ends.read, ends.write, inner.out):
            one.close()


async def _reading(stream: ByteStream, into: Into, ends: Ends, measure: Measure) -> None:
    async with into:
        with ends.read_from():
            async for line in _lines(stream):
                measure.count()
                message = _message(line, measure)
                if message is not None:
                    measure.take(message)
                    await into.send(SessionMessage(message))


async def _lines(stream: ByteStream) -> AsyncIterator[bytes]:
    """The lines of a stream.

    Raises:
        StreamClosed: it was aborted.
        TooMuch: one has too many bytes.
    """
    pieces: list[bytes] = []
    size = 0
    while data := await stream.read():
        first, *more = data.split(b"\n")
        pieces.append(first)
        size += len(first)
        for piece in more:
            if size > MAX_LINE:
                break
            yield b"".join(pieces)
            pieces, size = [piece], len(piece)
        if size > MAX_LINE:
            raise TooMuch(f"a message of it has more than {MAX_LINE} bytes")


def _message(line: bytes, measure: Measure) -> JSONRPCMessage | None:
    """The message of a line; None = it is none.

    Raises:
        TooMuch: there were too many that are none, or it has too many parts.
    """
    if not line.strip():
        return None
    try:
        return parsed(line)
    except (ValueError, RecursionError):
        measure.no_message(line)
        return None


async def passed_on(
    inner: Inner,
    ends: Ends,
    measure: Measure,
    send: Callable[[SessionMessage, str], Awaitable[None]],
) -> None:
    """Sends what is to go, and counts the answers that were taken.

    Args:
        inner: has what is to go.
        ends: of the connection, which is over where nothing more can be sent.
        measure: counts.
        send: sends a message, or its text, and returns once it was taken.
    """
    async with inner.out:
        try:
            async for sent in inner.out:
                text = await written(sent.message, inner.into)
                if text is not None:
                    await send(sent, text)
                if _is_answer(sent.message):
                    measure.answered()
        except (StreamClosed, anyio.BrokenResourceError, anyio.ClosedResourceError):
            ends.over.set()


async def written(message: JSONRPCMessage, into: Into) -> str | None:
    """A message of ours as text; None = no text can have it, which a request is answered with."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True)
    except ValueError:
        if isinstance(message, JSONRPCRequest):
            why = "it has half a character, or is nested too deep"
            said = f"the request can't be written as JSON: {why}"
            refusal = ErrorData(code=INVALID_PARAMS, message=said)
            answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=refusal)
            await into.send(SessionMessage(answer))
        return None


def _is_answer(message: JSONRPCMessage) -> bool:
    """It answers a request of the server."""
    return isinstance(message, JSONRPCResponse | JSONRPCError)
