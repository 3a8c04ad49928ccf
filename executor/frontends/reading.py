"""Lines of a descriptor, read beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import AsyncIterator, Iterator

MAX_LINE = 64 << 20
"""Bytes. Of a longer line so many are held, and one more by which it is known."""
LINES_AHEAD = 16
"""Lines that are read before they are needed."""


async def lines(source: int) -> AsyncIterator[bytes]:
    """The lines of a descriptor, without their ends, while signals are heard.

    The thread is a daemon and reads the bare descriptor: at the end of the process it may
    wait for input that never comes, or for room that nobody makes any more.

    Raises:
        OSError: it can't be read.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
    room = threading.Semaphore(LINES_AHEAD)

    def put(item: bytes | OSError | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
            try:
                for line in _split(source):
                    put(line)
                put(None)
            except OSError as error:
                put(error)

    threading.Thread(target=read, name="lines", daemon=True).start()
    while (item := await queue.get()) is not None:
        room.release()
        if isinstance(item, OSError):
            raise item
        yield item


def _split(source: int) -> Iterator[bytes]:
    buffer = bytearray()
    while data := _some(source):
        *ends, rest = data.split(b"\n")
        for end in ends:
            buffer += end
            yield bytes(buffer[: MAX_LINE + 1])
            buffer.clear()
        buffer += rest
        # The end of a line that is too long is left out, not its middle: no JSON is left.
        del buffer[MAX_LINE + 1 :]
    if buffer:
        yield bytes(buffer)


def _some(source: int) -> bytes:
    while True:
        try:
            return os.read(source, 1 << 16)
        except BlockingIOError:  # whoever shares the descriptor made it so
            select.select([source], [], [])
