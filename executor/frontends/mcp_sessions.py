"""Sessions of the Model Context Protocol over HTTP: each client has a loop of its own.

The official SDK speaks the protocol to each session. Its manager of sessions serves all of them
by one server; here each has one, whose end is the end of its calls and its loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import mcp_types as types
from mcp.server.streamable_http import (
    LAST_EVENT_ID_HEADER,
    MCP_SESSION_ID_HEADER,
    StreamableHTTPServerTransport,
    check_accept_headers,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from executor.errors import ConfigError, SandboxError
from executor.frontends.mcp_loops import Keep, KeptLoop
from executor.frontends.mcp_server import LoopServer
from executor.frontends.running import say
from executor.loop import Loop

log = logging.getLogger(__name__)

BEGIN_SECONDS = 60.0
"""For a session to ask for anything; one whose client was refused, or has gone, never will."""
QUIET_SECONDS = 120.0
"""After which a session that neither asks nor listens makes room for another one: most clients go
without a word."""
GONE = "there is no such session, or it has ended; begin a new one with initialize"
_BEGINS = "initialize begins"


def refusal(
    status: int, message: str, code: int = types.INVALID_REQUEST, **data: object
) -> Response:
    """An answer that is an error of the protocol, to no request in particular.

    Args:
        status: of HTTP.
        message: says what to do.
        code: of JSON-RPC.
        data: of the error, for programs.
    """
    error = {"code": code, "message": message, **({"data": data} if data else {})}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, status)


@dataclass
class _Session:
    transport: StreamableHTTPServerTransport
    loop: KeptLoop
    server: LoopServer
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    requests: set[anyio.CancelScope] = field(default_factory=set)
    heard_at: float = field(default_factory=time.monotonic)

    @property
    def quiet_since(self) -> float | None:
        """Since when it neither asks nor listens; None = it does."""
        return None if self.requests or self.server.is_busy else self.heard_at

    async def hear(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """A request; its answer ends with the session at the latest."""
        with anyio.CancelScope() as heard:
            self.requests.add(heard)
            try:
                await self.transport.handle_request(_without_past(scope), receive, answer)
            finally:
                self.requests.discard(heard)
                self.heard_at = time.monotonic()
        if heard.cancelled_caught:
            await answer.end(scope, receive)

    async def end(self) -> None:
        """No request is heard any more, and none waits; what serves it comes to its end."""
        for heard in self.requests:
            heard.cancel()
        await self.transport.terminate()


class _Answer:
    """What is sent to one request.

    Attributes:
        status: of HTTP; None = nothing was sent yet.
    """

    def __init__(self, send: Send) -> None:
        self.status: int | None = None
        self._send = send
        self._is_whole = False

    async def __call__(self, message: Message) -> None:
        """Send some of it."""
        self.status = message.get("status", self.status)
        await self._send(message)
        self._is_whole = message["type"] == "http.response.body" and not message.get("more_body")

    async def end(self, scope: Scope, receive: Receive) -> None:
        """There is no more of it."""
        if self.status is None:
            await refusal(404, GONE)(scope, receive, self)
        elif not self._is_whole:
            await self({"type": "http.response.body"})


def _without_past(scope: Scope) -> Scope:
    """The same; what was sent before is not kept, so that nobody can have it again."""
    headers = [one for one in scope["headers"] if one[0] != LAST_EVENT_ID_HEADER.encode()]
    return {**scope, "headers": headers}


class Sessions:
    """An ASGI application: the sessions that are open.

    Args:
        keeping: has, for each session, what opens and closes its loop.
        served: what serves one, given how it is had.
        most: sessions at a time, and loops.
        idle: seconds without any request after which a session is ended.
    """

    def __init__(
        self,
        keeping: Callable[[], Keep],
        served: Callable[[Callable[[], Awaitable[Loop]]], LoopServer],
        *,
        most: int,
        idle: float,
    ) -> None:
        self._keeping = keeping
        self._served = served
        self._most = most
        self._idle = idle
        self._open: dict[str, _Session] = {}
        # A session that has ended makes room at once, its loop only when it is closed.
        self._places = asyncio.Semaphore(most)
        self._running: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._said: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Who may ask, and how much, was looked at before."""
        headers = Headers(scope=scope)
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        name = headers.get(MCP_SESSION_ID_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await _unknown(version)(scope, receive, send)
        elif name is None:
            await self._begin(scope, receive, send)
        elif (session := self._open.get(name)) is None:
            await refusal(404, GONE)(scope, receive, send)
        elif scope["method"] == "DELETE":
            await self._end(name)
            await Response()(scope, receive, send)
        else:
            await session.hear(scope, receive, _Answer(send))

    async def close(self) -> None:
        """End all sessions; then no call runs any more, and no loop is open."""
        self._is_closed = True
        for name in list(self._open):
            await self._end(name)
        if self._running:
            await asyncio.wait(set(self._running))

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request of no session can only be one that begins a session."""
        request = Request(scope, receive)
        body = await request.body()
        refused = _unfit(request, body) or await self._full()
        if refused is not None:
            await refused(scope, receive, send)
            return
        name = secrets.token_hex(16)
        loop = self._new_loop()
        transport = StreamableHTTPServerTransport(name, idle_timeout=self._idle)
        session = self._open[name] = _Session(transport, loop, self._served(loop.opened))
        task = asyncio.create_task(self._run(name, session))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await session.is_ready.wait()
        answer = _Answer(send)
        try:
            await session.hear(scope, _again(body, receive), answer)
        finally:
            if (answer.status or 500) >= 400:
                await self._end(name)  # it was not begun after all

    async def _full(self) -> Response | None:
        """Why there can be no other session; None = there can, if need be in the place of one."""
        if len(self._open) >= self._most:
            await self._make_room()
        if self._is_closed:
            return refusal(503, "the server is ending")
        if len(self._open) < self._most:
            return None
        return refusal(
            503,
            f"sessions: {len(self._open)} are open, and no more are allowed; end one, or start "
            "the server with a higher --sessions",
        )

    async def _make_room(self) -> None:
        """End the session that has been quiet for longest, if one has been for long."""
        since = {name: session.quiet_since for name, session in self._open.items()}
        quiet = {name: at for name, at in since.items() if at is not None}
        oldest = min(quiet, key=lambda name: quiet[name], default=None)
        if oldest is not None and time.monotonic() - quiet[oldest] >= QUIET_SECONDS:
            await self._end(oldest)

    async def _run(self, name: str, session: _Session) -> None:
        """Serve a session until it is ended; then nothing of it is left."""
        try:
            async with session.transport.connect() as (incoming, outgoing):
                watching = asyncio.create_task(self._end_when_idle(name, session))
                session.is_ready.set()
                try:
                    await session.server.run(incoming, outgoing)
                finally:
                    watching.cancel()
                    await self._end(name, session)
        except Exception:
            log.exception("a session was ended by a fault")
        finally:
            session.is_ready.set()  # as ready as it gets: whoever waits hears that it has ended
            await self._end(name)
            await session.loop.close()  # what goes wrong there was said when it did

    async def _end_when_idle(self, name: str, session: _Session) -> None:
        idle = session.transport.idle_scope
        assert idle is not None, "it is connected, with a limit"
        with idle:
            await anyio.sleep(BEGIN_SECONDS)
            if session.loop.is_begun:
                await anyio.sleep_forever()
        await self._end(name)

    async def _end(self, name: str, session: _Session | None = None) -> None:
        """Nobody is heard in this session any more; what serves it comes to its end."""
        session = self._open.pop(name, session)
        if session is not None:
            await session.end()

    def _new_loop(self) -> KeptLoop:
        """The loop of another session."""
        return KeptLoop(functools.partial(self._kept, self._keeping()))

    async def _kept(self, keep: Keep, opened: asyncio.Future[Loop], end: asyncio.Event) -> None:
        opened.add_done_callback(self._forget_said)
        async with self._places:
            try:
                await keep(opened, end)
            except (ConfigError, SandboxError) as error:
                if opened.done() or self._take_news(error):
                    for fault in error.faults if isinstance(error, ConfigError) else [error]:
                        say(str(fault))
                raise

    def _take_news(self, error: Exception) -> bool:
        """Whether nothing was said of this since a loop was opened; from now on it was.

        What clients ask for is tried again and again: with nobody to read stderr, a line for each
        try would hold up the server in the end.
        """
        is_news = str(error) not in self._said
        self._said.add(str(error))
        return is_news

    def _forget_said(self, opened: asyncio.Future[Loop]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            self._said.clear()


def _unfit(request: Request, body: bytes) -> Response | None:
    """Why a request begins no session; None = it does. Nobody makes room for one that does not."""
    if request.method in ("GET", "DELETE"):
        return refusal(400, f"name a session in {MCP_SESSION_ID_HEADER}; a POST of {_BEGINS} one")
    if request.method != "POST":
        return refusal(405, f"there are POST, GET and DELETE; a POST of {_BEGINS} a session")
    if not all(check_accept_headers(request)):
        return refusal(406, "accept both application/json and text/event-stream")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return refusal(400, "send JSON, as Content-Type: application/json")
    try:
        message = types.jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValueError:
        return refusal(400, f"the body is no message; {_BEGINS} a session", types.PARSE_ERROR)
    if not isinstance(message, types.JSONRPCRequest) or message.method != "initialize":
        return refusal(400, f"this is of no session; {_BEGINS} one")
    try:
        types.InitializeRequestParams.model_validate(message.params or {}, by_name=False)
    except ValueError:
        text = "initialize has protocolVersion, capabilities and clientInfo"
        return refusal(400, text, types.INVALID_PARAMS)
    return None


def _again(body: bytes, receive: Receive) -> Receive:
    """The same, where the body was read already."""
    is_read = False

    async def received() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


def _unknown(version: str) -> Response:
    """The answer to a version without sessions, or one that nobody knows."""
    known = list(HANDSHAKE_PROTOCOL_VERSIONS)
    message = f"use a version of the protocol that has sessions: {', '.join(known)}"
    code = types.UNSUPPORTED_PROTOCOL_VERSION
    return refusal(400, message, code, supported=known, requested=version[:64])
