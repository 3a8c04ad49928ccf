"""A Unix socket before the real engine: requests are counted, held, cut, answered otherwise.

It speaks as much HTTP as the engine's clients do: one request after the other on a
connection, bodies with a length or in chunks, and streams that take the connection over.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tests.driver import LoopThread

ENGINE = "unix:///var/run/docker.sock"
_HEAD = b"\r\n\r\n"
_UPGRADED = 101
_NO_BODY = (204, 304)


class Cut(Exception):
    """Raised by a rule: the client's connection ends here."""


@dataclass(frozen=True)
class Request:
    """What a client asks for.

    Attributes:
        number: 1 for the first that came.
        path: without the API version's prefix.
    """

    number: int
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.number} {self.method} {self.path}"


@dataclass(frozen=True)
class Instead:
    """An answer that the engine never gave."""

    status: int
    message: str

    def encode(self) -> bytes:
        """As HTTP."""
        body = json.dumps({"message": self.message}).encode()
        head = f"HTTP/1.1 {self.status} Wrong\r\nContent-Type: application/json\r\n"
        return head.encode() + b"Content-Length: %d" % len(body) + _HEAD + body


Rule: TypeAlias = Callable[[Request], Awaitable[Instead | None]]
"""Called for a request; returns what is answered instead, or None; raises `Cut`."""


async def nothing(request: Request) -> None:
    """The rule that changes nothing."""


Change: TypeAlias = Callable[[Request, bytes], bytes]
"""Called with the body of a request, or of its answer; returns the one that is sent on."""


def same(request: Request, body: bytes) -> bytes:
    """The change that changes nothing."""
    return body


@dataclass(eq=False)
class _Pair:
    """A client's connection and its own one to the engine."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter
    task: asyncio.Task[Any]
    is_stream: bool = False


@dataclass
class EngineProxy:
    """The proxy. Made by `engine_proxy`; its rules run on its own thread.

    Attributes:
        address: of its socket, as `DOCKER_HOST` takes it.
        requests: all that came, in order.
        before: asked before a request goes to the engine.
        during: asked once the engine has the request, before it has answered.
        after: asked once the engine has answered, before the client sees it.
        change_request: what the engine is asked instead.
        change_answer: what the client is told instead.
    """

    thread: LoopThread
    socket: Path
    engine: str = ENGINE
    requests: list[Request] = field(default_factory=list)
    before: Rule = nothing
    during: Rule = nothing
    after: Rule = nothing
    change_request: Change = same
    change_answer: Change = same
    _server: asyncio.Server | None = None
    _pairs: set[_Pair] = field(default_factory=set)

    @property
    def address(self) -> str:
        """Of the socket."""
        return f"unix://{self.socket}"

    # ── from the test's thread ──

    def listen(self) -> None:
        """Take connections, again."""
        self.thread.run(self._listen())

    def refuse(self) -> None:
        """Nothing listens from now on; connections that are open live on."""
        self.thread.run(self._refuse())

    def cut(self, *, streams_only: bool = False, is_far_kept: bool = False) -> None:
        """End open connections.

        Args:
            streams_only: those that became streams, not those of single requests.
            is_far_kept: the engine does not notice.
        """
        self.thread.run(self._cut(streams_only, is_far_kept))

    # ── on its own ──

    async def _listen(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.socket, limit=1 << 24)
        self.socket.chmod(0o600)

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _cut(self, streams_only: bool, is_far_kept: bool) -> None:
        chosen = [pair for pair in self._pairs if pair.is_stream or not streams_only]
        for pair in chosen:
            pair.near.transport.abort()
            if not is_far_kept:
                pair.far.transport.abort()
                pair.task.cancel()
        if chosen and not is_far_kept:
            await asyncio.wait({pair.task for pair in chosen})

    async def _serve(self, near_in: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        path = self.engine.removeprefix("unix://")
        try:
            far_in, far = await asyncio.open_unix_connection(path, limit=1 << 24)
        except OSError:
            near.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None, "a server's callback is a task"
        pair = _Pair(near, far, task)
        self._pairs.add(pair)
        try:
            while not await self._exchange(near_in, far_in, pair):
                pass
        except (Cut, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cut off by a rule, by either end, or by `cut`
        finally:
            self._pairs.discard(pair)
            near.transport.abort()
            far.transport.abort()

    async def _exchange(
        self, near_in: asyncio.StreamReader, far_in: asyncio.StreamReader, pair: _Pair
    ) -> bool:
        """One request and its answer; True when the connection has become a stream and ended."""
        head = await near_in.readuntil(_HEAD)
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        path = re.sub(r"^/v\d+\.\d+", "", target)
        request = Request(len(self.requests) + 1, method, path)
        self.requests.append(request)
        if (instead := await self.before(request)) is not None:
            await _body(near_in, head)
            return await _say(pair.near, instead.encode())
        asked = _changed(head, await _body(near_in, head), partial(self.change_request, request))
        await _send(pair.far, asked)
        if (instead := await self.during(request)) is not None:
            return await _say(pair.near, instead.encode())
        head = await far_in.readuntil(_HEAD)
        status = int(head.split(b" ", 2)[1])
        is_stream = status == _UPGRADED or b"docker.raw-stream" in head
        answer = head
        if not is_stream and method != "HEAD" and status not in _NO_BODY:
            body = await _body(far_in, head)
            answer = _changed(head, body, partial(self.change_answer, request))
        if (instead := await self.after(request)) is not None:
            return await _say(pair.near, instead.encode())
        await _send(pair.near, answer)
        if is_stream:
            pair.is_stream = True
            await _carry(near_in, far_in, pair)
        return is_stream


async def _say(writer: asyncio.StreamWriter, answer: bytes) -> bool:
    await _send(writer, answer)
    raise Cut


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """What follows a head, as it came."""
    fields = head.lower()
    if b"transfer-encoding: chunked" in fields:
        pieces = []
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            pieces.append(line + await reader.readexactly(size + 2))
            if not size:
                return b"".join(pieces)
    found = re.search(rb"content-length: (\d+)", fields)
    return await reader.readexactly(int(found[1])) if found else b""


def _changed(head: bytes, body: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Head and body, with another body where the change makes one."""
    plain = body
    if b"transfer-encoding: chunked" in head.lower():
        plain, rest = b"", body
        while rest:
            line, _, rest = rest.partition(b"\r\n")
            size = int(line.split(b";")[0], 16)
            plain, rest = plain + rest[:size], rest[size + 2 :]
    if (other := change(plain)) == plain:
        return head + body
    framing = (b"transfer-encoding:", b"content-length:")
    lines = [
        line
        for line in head.removesuffix(_HEAD).split(b"\r\n")
        if not line.lower().startswith(framing)
    ]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(other)]) + _HEAD + other


async def _carry(near_in: asyncio.StreamReader, far_in: asyncio.StreamReader, pair: _Pair) -> None:
    """Both directions until either end is gone."""

    async def one_way(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await _send(sink, data)

    ways = {
        asyncio.ensure_future(one_way(near_in, pair.far)),
        asyncio.ensure_future(one_way(far_in, pair.near)),
    }
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if pair.near.transport.is_closing() and not pair.far.transport.is_closing():
            # The client was cut off, and the engine is not to notice.
            await asyncio.wait(ways)
    finally:
        for way in ways:
            way.cancel()


@contextmanager
def engine_proxy(
    engine: str = ENGINE, before: Rule = nothing, during: Rule = nothing, after: Rule = nothing
) -> Iterator[EngineProxy]:
    """A listening proxy before the engine at this address; see `EngineProxy` for the rules."""
    with tempfile.TemporaryDirectory(prefix="proxy-") as directory, LoopThread() as thread:
        proxy = EngineProxy(thread, Path(directory) / "docker.sock", engine)
        proxy.before, proxy.during, proxy.after = before, during, after
        proxy.listen()
        try:
            yield proxy
        finally:
            proxy.refuse()
            proxy.cut()
