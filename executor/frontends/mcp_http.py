"""The Model Context Protocol over HTTP, on this machine's own address alone.

The SDK and uvicorn speak HTTP. What is here says who is heard: whoever has the token, under a
name of this machine's own, with requests of bounded size that arrive in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn
from mcp.server.transport_security import (
    RequestBodyLimitMiddleware,
    TransportSecurityMiddleware,
    TransportSecuritySettings,
)
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from executor.errors import ConfigError
from executor.frontends.mcp_loops import Keep
from executor.frontends.mcp_server import LoopServer
from executor.frontends.mcp_sessions import Sessions, refusal
from executor.frontends.options import HttpTerms
from executor.frontends.running import say
from executor.loop import Loop

ADDRESS = "127.0.0.1"
PATH = "/mcp"
MOST_BODY = 64 << 20
"""Bytes of a request: a file of some size, and what JSON makes of it."""
MOST_CONNECTIONS = 128
BODY_SECONDS = 60.0
"""For a request's body to arrive."""
HEAD_SECONDS = 10.0
"""For a request's head to arrive; a stranger may be at the other end."""
END_SECONDS = 3.0
"""For answers that are being read when the server ends."""


class Gate:
    """An ASGI application: lets requests through to another one, or says why not.

    Args:
        app: the other one.
        token: that a request has to have.
        port: that is served.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = RequestBodyLimitMiddleware(app, MOST_BODY)
        self._token = token.encode()
        # A page of another site reaches this address under a name of its own: such a name, and
        # such a page, is refused, whatever else the request has.
        names = [f"{name}:{port}" for name in (ADDRESS, "localhost")]
        names += [ADDRESS, "localhost"] if port == 80 else []
        self._reasons = {
            421: f"this is not the name of this server; use http://{ADDRESS}:{port}{PATH}",
            403: "pages of other sites are not heard here",
        }
        settings = TransportSecuritySettings(
            allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
        )
        self._security = TransportSecurityMiddleware(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        answer = _closing(send)
        try:
            refused = await self._refused(Request(scope))
            if refused is None:
                await self._app(scope, _timely(receive), answer)
        except _Late:
            refused = refusal(408, f"the request did not arrive within {BODY_SECONDS:g} s")
        except _Gone:
            return
        if refused is not None:
            await refused(scope, receive, answer)

    async def _refused(self, request: Request) -> Response | None:
        if request.scope["path"] != PATH:
            return refusal(404, f"there is nothing but {PATH} here")
        if (refused := await self._security.validate_request(request)) is not None:
            return refusal(refused.status_code, self._reasons[refused.status_code])
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(token.strip().encode("latin-1"), self._token)
        if scheme.lower() != "bearer" or not is_right:
            answer = refusal(401, "send the server's token, as Authorization: Bearer TOKEN")
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        return None


class _Late(Exception):
    """A body did not arrive in time."""


class _Gone(Exception):
    """The client has, in the middle of a body."""


def _timely(receive: Receive) -> Receive:
    """The same, with a limit for the body; what comes after it, the end, may take its time."""
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS
    is_whole = False

    async def received() -> Message:
        nonlocal is_whole
        if is_whole:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise _Late from None
        if message["type"] == "http.disconnect":
            raise _Gone
        is_whole = not message.get("more_body", False)
        return message

    return received


def _closing(send: Send) -> Send:
    """The same, but a refusal ends the connection: the rest of such a request is not read."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return sent


class _Patient(H11Protocol):
    """uvicorn's, with a limit for connections and for heads that don't come to their end."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._wait_no_more()

    def _wait(self) -> None:
        """Have a limit while a head is to come. For its begin after an answer uvicorn has one."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class _Server(uvicorn.Server):
    """uvicorn's, which leaves signals to the commands."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--http: port {port} can't be had: {error.strerror}; give another one, or 0 for any "
            "free one"
        ) from error
    return listener


async def serve(
    terms: HttpTerms,
    token: str,
    keeping: Callable[[], Keep],
    served: Callable[[Callable[[], Awaitable[Loop]]], LoopServer],
) -> None:
    """Serve until this is cancelled; then every session has ended.

    Args:
        terms: say where, and how many.
        token: that clients have to show.
        keeping: has, for each session, what opens and closes its loop.
        served: what serves one, given how it is had.

    Raises:
        ConfigError: the port can't be had.
    """
    listener = _listening(terms.port)
    port = listener.getsockname()[1]
    sessions = Sessions(keeping, served, most=terms.sessions, idle=terms.idle)
    options: dict[str, Any] = {"http": _Patient, "ws": "none", "lifespan": "off"}
    options |= {"log_config": None, "access_log": False}
    # What a stranger does wrong is no news: with nobody to read stderr, lines of it, of which
    # there may be any number, would hold up the server.
    options |= {"log_level": logging.ERROR}
    logging.getLogger("mcp.server.transport_security").setLevel(logging.ERROR)
    options |= {"server_header": False, "proxy_headers": False}
    gate = Gate(sessions, token, port)
    server = _Server(uvicorn.Config(gate, **options))
    serving = asyncio.create_task(server.serve([listener]))
    say(f"serving on http://{ADDRESS}:{port}{PATH}")
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await sessions.close()
        await asyncio.wait({serving}, timeout=END_SECONDS)
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # somebody who does not read
        await asyncio.wait({serving})
