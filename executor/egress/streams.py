"""Connections as `ByteStream`s: a socket, and bytes carried between two of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from executor.bytestream import ByteStream, StreamClosed

PIECE = 1 << 16
"""Bytes that are carried at a time."""
FLUSH = 30.0
"""Seconds that the other end may take for the last bytes."""


class SocketStream:
    """A connection that asyncio has made."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._has_read_all = self._has_written_all = False

    async def read(self, most: int = PIECE) -> bytes:
        """See `ByteStream`."""
        try:
            data = await self._reader.read(most)
            self._has_read_all = not data
            return data
        except OSError as error:
            raise StreamClosed(str(error)) from error

    async def write(self, data: bytes) -> None:
        """See `ByteStream`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:  # the latter after `write_eof`
            raise StreamClosed(str(error)) from error

    async def write_eof(self) -> None:
        """See `ByteStream`."""
        self._has_written_all = True
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()

    def abort(self, reason: str = "") -> None:
        """See `ByteStream`. After the end of both directions, what was written still arrives."""
        if self._has_read_all and self._has_written_all:
            self._writer.close()
        else:
            self._writer.transport.abort()

    async def finish(self) -> None:
        """Waits, boundedly, until all that was written has been taken."""
        self._writer.close()
        try:
            async with asyncio.timeout(FLUSH):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()


async def carry(
    source: ByteStream, sink: ByteStream, count: Callable[[int], None], first: bytes = b""
) -> None:
    """Carries one direction to its end, never more of it at a time than one piece.

    Args:
        source: whose bytes.
        sink: where they go.
        count: gets the number of bytes before they are passed on; what it raises ends it.
        first: bytes that were read already.

    Raises:
        StreamClosed: either side was aborted.
    """
    while data := first or await source.read(PIECE):
        first = b""
        count(len(data))
        await sink.write(data)
    await sink.write_eof()


async def both(*ways: asyncio.Task[None]) -> None:
    """Waits until all have ended, or one of them has failed; then none goes on.

    Raises:
        Exception: what the first to fail has raised.
    """
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
