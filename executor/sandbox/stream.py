"""The attach stream of a container as an asyncio transport of a `Connection`."""

from __future__ import annotations

import asyncio
import socket

from executor.errors import ProtocolError
from executor.sandbox.attach import STDOUT, Demultiplexer
from executor.sandbox.connection import Connection

BUFFER = 1 << 16
"""Bytes a read. One buffer for all: a fresh one for each costs more than the read itself."""
LEAST = 1 << 12
CROWD = 512
"""Frames of one read over which the next one is smaller: all other boxes wait meanwhile."""


class AttachedStream(asyncio.BufferedProtocol):
    """Carries the agent's bytes; what the container says on stderr is kept apart."""

    def __init__(self, connection: Connection) -> None:
        self._buffer = memoryview(bytearray(BUFFER))
        self._size = BUFFER
        self._connection = connection
        self._demultiplexer = Demultiplexer()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(cls, raw: socket.socket, connection: Connection) -> AttachedStream:
        """Take over an attached socket."""
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(lambda: cls(connection), sock=raw)
        return stream

    def write(self, data: bytes) -> None:
        """Send to the agent."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """End the stream now; the agent sees its end and ends."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        assert isinstance(transport, asyncio.Transport), "a stream socket was attached"
        self._transport = transport
        self._connection.connected(self)

    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the next bytes go."""
        return self._buffer[: self._size]

    def buffer_updated(self, size: int) -> None:
        """Bytes from the engine."""
        frames = 0
        try:
            for stream, piece in self._demultiplexer.feed(bytes(self._buffer[:size])):
                if stream == STDOUT:
                    frames += self._connection.received(piece)
                else:
                    self._connection.received_stderr(piece)
        except ValueError as error:
            self._connection.lose(ProtocolError(f"the engine's stream is unreadable: {error}"))
        if frames > CROWD:
            self._size = max(LEAST, self._size // 2)
        elif frames < CROWD // 4 and self._size < BUFFER:
            self._size *= 2

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone, by either end."""
        reason = f": {error}" if error is not None else ""
        self._connection.closed(f"the stream to the box ended{reason}")

    def pause_writing(self) -> None:
        """The socket's buffer is full."""
        self._connection.pause()

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self._connection.resume()
