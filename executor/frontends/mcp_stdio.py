"""The Model Context Protocol over stdin and stdout: a message a line, and nothing else there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage

from executor.callables import forget
from executor.errors import ConfigError
from executor.frontends import mcp_messages, reading
from executor.frontends.mcp_contents import sendable
from executor.frontends.mcp_messages import Refusal
from executor.frontends.running import write_texts

if TYPE_CHECKING:
    # What the SDK calls the streams of all its transports has no public name.
    from mcp.shared._stream_protocols import ReadStream, WriteStream

MAX_UNANSWERED: Final = 100
"""Requests at a time; each answer is held until the client reads it."""
LAST_WORDS: Final = 3.0
"""Seconds that a client which has ended its side, or asks too much, may take to read."""
CANCELLED: Final = "notifications/cancelled"
_SAME_ID: Final = "a request with this id waits for its answer; give each one an id of its own"
_HANG_UPS: Final = (errno.ECONNRESET, errno.EIO)
"""How a socket ends whose client has left an answer unread, and a terminal that is closed."""
_TOO_MANY: Final = (
    f"{MAX_UNANSWERED} requests wait for their answers; read those, and send this again"
)

Incoming: TypeAlias = "ReadStream[SessionMessage | Exception]"
Outgoing: TypeAlias = "WriteStream[SessionMessage]"
_Into: TypeAlias = MemoryObjectSendStream[SessionMessage | Exception]
_Out: TypeAlias = MemoryObjectSendStream[SessionMessage]
_Source: TypeAlias = MemoryObjectReceiveStream[SessionMessage]


@contextlib.contextmanager
def claimed_stdout() -> Iterator[int]:
    """The descriptor that the client reads; what else writes to stdout meanwhile goes to stderr."""
    sys.stdout.flush()
    wire = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    os.dup2(2, 1)
    try:
        yield wire
    finally:
        os.dup2(wire, 1)
        os.close(wire)


@contextlib.asynccontextmanager
async def messages(source: int, sink: int) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Both directions of a connection. The first one ends with the source.

    Args:
        source: descriptor that messages are read from.
        sink: descriptor that they are written to, by a thread: a client that does not read holds
            up nothing but its own messages, of which there are so many at the most.

    Raises:
        ConfigError: nothing can be read there.
        BrokenPipeError: nobody reads any more.
        Unwritable: there is no room.
    """
    read_sink, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, write_source = anyio.create_memory_object_stream[SessionMessage](0)
    requests = _Requests()
    reading_them = asyncio.create_task(_read(source, read_sink, outgoing.clone(), requests))
    writing_them = asyncio.create_task(_write(sink, write_source, requests))
    tasks = (writing_them, reading_them)
    for task in tasks:
        task.add_done_callback(forget)
    # Where nobody reads any more nobody is to be heard either: the connection is over.
    writing_them.add_done_callback(lambda _: reading_them.cancel())
    try:
        yield incoming, outgoing
        # What was answered last is still to be written; the server has closed its side.
        await asyncio.wait({writing_them}, timeout=LAST_WORDS)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _read(source: int, into: _Into, refusals: _Out, requests: _Requests) -> None:
    """Pass on what the client sends, and refuse what is none of the server's business.

    Raises:
        ConfigError: nothing can be read there.
    """
    async with into, refusals:
        try:
            async for line in reading.lines(source):
                for item in mcp_messages.read(line):
                    if (refusal := requests.refused(item)) is None:
                        await into.send(item)
                    elif not requests.are_ignored:
                        with anyio.move_on_after(LAST_WORDS) as waiting:
                            await refusals.send(refusal)
                        requests.are_ignored = waiting.cancelled_caught
        except anyio.BrokenResourceError:
            pass  # the server has ended
        except OSError as error:
            if error.errno not in _HANG_UPS:
                raise ConfigError(
                    f"stdin can't be read: {error.strerror}; this is started by a client of MCP, "
                    "which writes there"
                ) from error


async def _write(sink: int, source: _Source, requests: _Requests) -> None:
    """Tell the client what the server says."""
    with open(sink, "w", encoding="utf-8", closefd=False) as stream:
        async with source:
            async for message in source:
                await write_texts((stream, _line(message)))
                requests.told(message)


class _Requests:
    """Those that wait for their answer, by their ids as the SDK tells them apart.

    Attributes:
        are_ignored: the client does not read what it is told of them.
    """

    def __init__(self) -> None:
        self.are_ignored = False
        self._waiting: set[types.RequestId] = set()

    def refused(self, message: SessionMessage) -> Refusal | None:
        """What is answered instead of the server; None = the message may pass."""
        if isinstance(message, Refusal):
            return message
        body = message.message
        if isinstance(body, types.JSONRPCNotification) and body.method == CANCELLED:
            named = cancelled_request_id_from_params(body.params)
            if named is not None:
                self._waiting.discard(coerce_request_id(named))
        if not isinstance(body, types.JSONRPCRequest):
            return None
        id = coerce_request_id(body.id)
        if id in self._waiting:
            return Refusal.of(types.INVALID_REQUEST, _SAME_ID, body.id)
        if len(self._waiting) >= MAX_UNANSWERED:
            return Refusal.of(types.INTERNAL_ERROR, _TOO_MANY, body.id)
        self._waiting.add(id)
        return None

    def told(self, message: SessionMessage) -> None:
        """The client has read this, or can."""
        self.are_ignored = False
        body = message.message
        if isinstance(message, Refusal):
            return
        if isinstance(body, types.JSONRPCResponse | types.JSONRPCError) and body.id is not None:
            self._waiting.discard(coerce_request_id(body.id))


def _line(message: SessionMessage) -> bytes:
    text = message.message.model_dump(by_alias=True, exclude_unset=True, mode="python")
    return json.dumps(sendable(text), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
