"""JSON-RPC in frames with `Content-Length`, as language servers speak it; all of it bounded.

What a server sends is a stranger's: it is read by its length, kept only where somebody waits for
it, and not read at all while nobody has asked anything for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeAlias

from executor.bytestream import ByteStream, StreamClosed
from executor.text import one_line, visible

MAX_MESSAGE = 8 << 20
"""Bytes of one message of a server; as objects it takes some twenty times as much."""
MAX_OBJECTS = 400_000
"""Objects and lists of one message, so that it is read in less than half a second; a hundred
thousand places have as many."""
COST = 256
"""Bytes that each message counts for besides its own, since to take one costs time."""
MOST_WAITING = 16 << 20
"""Bytes that a server has not taken, with which it is sent no more documents."""
MAX_HEADER = 4096
"""Bytes of the header of one message."""
MAX_UNASKED = 64 << 20
"""Bytes that a server may send after the last request before it is read no further."""
MAX_ANSWERING = 100
"""Requests of a server whose answers it has not taken; one that makes more is ended."""
MAX_ID = 200
"""Characters of the id of a server's request, which comes back in the answer."""
METHOD_NOT_FOUND = -32601
CONTENT_MODIFIED, SERVER_CANCELLED = -32801, -32802
"""Codes of answers that have to be asked for again."""
_LENGTH = re.compile(
    rb"(?:^|\r\n)content-length:[ \t]*([0-9]{1,10})[ \t]*(?:\r\n|$)", re.IGNORECASE
)

log = logging.getLogger(__name__)

Answer: TypeAlias = Callable[[str, Any], Any]
"""Answers a request of the server; raises `Refused`."""
Heard: TypeAlias = Callable[[str, Any], None]
"""Is told of a notification of the server."""


class Refused(Exception):
    """A request was answered with an error.

    Args:
        code: as the protocol has it.
        message: in the words of whoever refuses.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Ended(Exception):
    """The server answers no more."""


class Peer:
    """A server's end of the protocol, from when it was started to its end.

    Args:
        stream: its stdin and stdout.
        answer: answers what it asks.
        heard: is told what it tells.
        mask: is given each message, and gives back what is read instead.

    Attributes:
        over: set once it answers no more.
        fault: why it was given up; None = it has ended by itself.
        heard_at: when it last sent a message, by the monotonic clock.
        waiting_since: when it was asked first of what it has answered nothing of; None = it has
            answered since it was last asked, whatever it was.
    """

    def __init__(
        self,
        stream: ByteStream,
        answer: Answer,
        heard: Heard,
        mask: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.over = asyncio.Event()
        self.fault: str | None = None
        self.heard_at = time.monotonic()
        self.waiting_since: float | None = None
        self._stream = stream
        self._answer = answer
        self._heard = heard
        self._mask = mask
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._out: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self._waiting = 0
        self._full_since: float | None = None
        self._taken = asyncio.Event()
        self._answering = 0
        self._unasked = 0
        self._wanted = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._reading()),
            asyncio.create_task(self._writing()),
        ]

    @property
    def owing_since(self) -> float | None:
        """Since when it owes something: an answer, or to take what it is sent; None = nothing."""
        known = (self.waiting_since, self._full_since)
        return min((since for since in known if since is not None), default=None)

    # ─── to the server ───

    async def request(self, method: str, params: Any) -> Any:
        """Ask, and wait for the answer. Cancelling tells the server that nobody waits any more.

        Raises:
            Refused: the server does not answer this.
            Ended: it answers no more.
        """
        if self.over.is_set():
            raise Ended
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self._unasked = 0
        self._wanted.set()
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()
        try:
            self._send({"id": number, "method": method, "params": params})
            return await future
        except asyncio.CancelledError:
            self.notify("$/cancelRequest", {"id": number})
            raise
        finally:
            del self._asked[number]

    def notify(self, method: str, params: Any) -> None:
        """Tell. What a server that has ended is told is lost."""
        self._send({"method": method, "params": params})

    async def room(self) -> None:
        """Wait until it has taken most of what it was sent, or ends."""
        while self._waiting > MOST_WAITING and not self.over.is_set():
            await self._taken.wait()

    def _send(self, message: Mapping[str, Any], *, is_answer: bool = False) -> None:
        if self.over.is_set():
            return
        text = {"jsonrpc": "2.0", **message}
        # Half a character, as odd names have it, is escaped and so no fault of the encoding.
        body = json.dumps(text, separators=(",", ":")).encode()
        frame = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        self._waiting += len(frame)
        if self._waiting > MOST_WAITING and self._full_since is None:
            self._full_since = time.monotonic()
        self._taken.clear()
        self._out.put_nowait((frame, is_answer))

    async def _writing(self) -> None:
        try:
            while True:
                frame, is_answer = await self._out.get()
                await self._stream.write(frame)
                self._answering -= is_answer
                self._waiting -= len(frame)
                self._full_since = time.monotonic() if self._waiting > MOST_WAITING else None
                self._taken.set()
        except StreamClosed:
            return  # what it has answered before is still to be read

    # ─── from the server ───

    async def _reading(self) -> None:
        try:
            async with contextlib.aclosing(self._messages()) as messages:
                async for message in messages:
                    self._take(message)
                    if self.fault is not None:
                        return
        except StreamClosed:
            pass
        finally:
            self.end()

    async def _messages(self) -> AsyncGenerator[Any, None]:
        data = bytearray()
        while (head := await self._until_header(data)) is not None:
            length = _LENGTH.search(head)
            if length is None:
                self.fault = f"it sent a header without a length: {_shown(head)}"
                return
            size = int(length[1])
            if size > MAX_MESSAGE:
                self.fault = f"it sent a message of {size} bytes; {MAX_MESSAGE} are taken at most"
                return
            while len(data) < size:
                if not (piece := await self._stream.read()):
                    return
                data += piece
            body = self._mask(bytes(data[:size]))
            del data[:size]
            if body.count(b"{") + body.count(b"[") > MAX_OBJECTS:
                self.fault = f"it sent a message of more than {MAX_OBJECTS} objects"
                return
            try:
                message = json.loads(body)
            except (ValueError, RecursionError):
                self.fault = f"it sent a message that is no JSON: {_shown(body)}"
                return
            await self._afford(size)
            yield message

    async def _until_header(self, data: bytearray) -> bytes | None:
        """The next header, taken off the data; None = there is none any more."""
        while (end := data.find(b"\r\n\r\n")) < 0 and len(data) <= MAX_HEADER:
            if not (piece := await self._stream.read()):
                return None
            data += piece
        if not 0 <= end <= MAX_HEADER:
            self.fault = f"it sent what is no message: {_shown(bytes(data))}"
            return None
        head = bytes(data[:end])
        del data[: end + 4]
        return head

    async def _afford(self, size: int) -> None:
        """Wait for somebody to ask something, if too much came since that was."""
        self._unasked += size + COST
        if self._unasked <= MAX_UNASKED:
            # A flood must not keep others from their turn.
            await asyncio.sleep(0)
        elif self._asked:
            self.fault = f"it sent more than {MAX_UNASKED} bytes and no answer"
        else:
            self._wanted.clear()
            await self._wanted.wait()

    def _take(self, message: Any) -> None:
        self.heard_at = time.monotonic()
        if not isinstance(message, Mapping):
            return
        method, number = message.get("method"), message.get("id")
        if isinstance(method, str):
            if number is None:
                self._heard(method, message.get("params"))
            else:
                self._respond(number, method, message.get("params"))
            return
        self.waiting_since = None
        if type(number) is int and (future := self._asked.get(number)) and not future.done():
            error = message.get("error")
            if isinstance(error, Mapping):
                future.set_exception(_refusal(error))
            else:
                future.set_result(message.get("result"))

    def _respond(self, number: Any, method: str, params: Any) -> None:
        if not isinstance(number, int | str):
            return
        if isinstance(number, str) and len(number) > MAX_ID:
            self.fault = (
                f"it asked with an id of {len(number)} characters; {MAX_ID} are taken at most"
            )
            return
        self._answering += 1
        if self._answering > MAX_ANSWERING:
            self.fault = f"it asked more than {MAX_ANSWERING} times and took no answers"
            return
        try:
            answer = {"result": self._answer(method, params)}
        except Refused as error:
            answer = {"error": {"code": error.code, "message": error.message}}
        self._send({"id": number, **answer}, is_answer=True)

    # ─── end ───

    def end(self) -> None:
        """It answers no more. Those who wait are told, and what it has not taken is dropped."""
        self.over.set()
        self._taken.set()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(Ended())
        # What it was to be told waits in vain, and it for room to say its last words.
        self._tasks[1].cancel()
        self._out = asyncio.Queue()

    async def close(self) -> None:
        """Read and write no more. The program is the caller's to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


def _refusal(error: Mapping[str, Any]) -> Refused:
    code, message = error.get("code"), error.get("message")
    said = visible(message[:2000]) if isinstance(message, str) else "it gave no reason"
    return Refused(code if type(code) is int else 0, said)


def _shown(data: bytes) -> str:
    return one_line(data[:100].decode(errors="replace"))
