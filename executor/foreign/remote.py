"""Servers that are spoken to over streamable HTTP: by what the loop may reach, and no other way."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
import httpx
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, jsonrpc_message_adapter

from executor.egress.broker import Broker
from executor.egress.refusal import Refused
from executor.foreign.bounds import (
    MAX_LINE,
    MINUTE,
    Measure,
    TooMuch,
    make_finite,
    require_few_parts,
)
from executor.foreign.events import SOONEST, Broken, events
from executor.foreign.lines import Ends, Inner, carried, joined, passed_on

T = TypeVar("T")

MARGIN = 5.0
"""Seconds that an answer may go on after the most that a call may take."""
TELLING = 30.0
"""Seconds that a server may take to take a message that has no answer; others wait for it."""
MAX_OPENED = 20
"""Times in a minute that a server's own stream is opened; one that closes it sooner has none."""
MAX_REOPENED = 600
"""Times that an answer is asked for again while it may come. The SDK reads each rest inside of
the one before, and Python has an end of that."""
AS_SOON_AS_SAID = 20
"""Times of these that it is asked for when the server says; the others are spread over the time
that the answer may take."""


@asynccontextmanager
async def over_http(
    name: str, url: str, headers: Mapping[str, str], broker: Broker, seconds: float
) -> AsyncIterator[Ends]:
    """The ends of a connection to a server at a URL for as long as this lasts.

    Args:
        name: of the server, for the log.
        url: of it.
        headers: of each request.
        broker: says what may be reached.
        seconds: that a server may take for an answer.
    """
    ends, inner = joined()
    measure = Measure(name)
    async with (
        httpx2.AsyncClient(
            transport=_Adapter(broker.transport(), ends, measure, seconds),
            headers={**headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(30.0, read=seconds),
            follow_redirects=False,
            trust_env=False,
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE) as (
            read,
            write,
        ),
        carried(
            ends,
            inner,
            _taking(read, inner, ends, measure),
            # The SDK takes a message only when the last one was taken.
            passed_on(inner, ends, measure, lambda sent, _: write.send(sent)),
        ),
    ):
        yield ends


async def _taking(read: Any, inner: Inner, ends: Ends, measure: Measure) -> None:
    """Passes on what the SDK has read."""
    async with inner.into:
        with ends.read_from():
            async for one in read:
                if isinstance(one, SessionMessage):
                    make_finite(one.message)
                    measure.take(one.message)
                    await inner.into.send(one)
                else:
                    measure.no_message(str(one).encode(errors="replace"))


class _Asked:
    """A message of ours until its answer has come, and longer than that nobody reads it.

    Args:
        number: of the request; None = it has no answer.
        seconds: that the answer may take.
    """

    def __init__(self, number: int | str | None, seconds: float) -> None:
        self.number = number
        self._why = ""
        self._seconds = seconds
        self._until = anyio.current_time() + seconds
        self._scope: anyio.CancelScope | None = None
        self._reopened = 0

    def give_up(self, why: str) -> None:
        """Nobody waits for it any more."""
        self._why = self._why or why
        if self._scope is not None:
            self._scope.cancel()

    def check(self) -> None:
        """Refuse to go on with it.

        Raises:
            Broken: nobody waits for it any more.
        """
        if self._why:
            raise Broken(self._why)

    async def wait_to_reopen(self) -> None:
        """Wait as long as the rest of the answer is not to be asked for yet.

        Raises:
            Broken: nobody waits for it any more.
        """
        self._reopened += 1
        if self._reopened > AS_SOON_AS_SAID:
            between = self._seconds / (MAX_REOPENED - AS_SOON_AS_SAID)
            # The SDK has waited so long at least, see `events`.
            await self.wait(anyio.sleep(max(0.0, between - SOONEST / 1000)))

    async def wait(self, coming: Awaitable[T]) -> T:
        """What comes.

        Raises:
            Broken: nobody waits for it any more.
        """
        with anyio.CancelScope(deadline=self._until) as self._scope:
            if self._why:
                self._scope.cancel()
            return await coming
        self._why = self._why or f"its answer took longer than {self._seconds:g} seconds"
        raise Broken(self._why)


_CURRENT: ContextVar[_Asked] = ContextVar("_CURRENT")
"""The request whose answer a task of the SDK reads, also where it asks for the rest of it."""


class _Adapter(httpx2.AsyncBaseTransport):
    """The SDK's requests, as `Broker.transport` takes them.

    The SDK ends the whole connection where one request fails. So what fails is an answer too, to
    that request alone, and says why.

    Args:
        inner: sends them.
        ends: of the connection.
        measure: counts what comes.
        seconds: that an answer may take.
    """

    def __init__(
        self, inner: httpx.AsyncBaseTransport, ends: Ends, measure: Measure, seconds: float
    ) -> None:
        self._inner = inner
        self._ends = ends
        self._measure = measure
        self._seconds = seconds + MARGIN
        # Each lives as long as the task that reads its answer.
        self._asked: WeakValueDictionary[Any, _Asked] = WeakValueDictionary()
        self._opened: deque[float] = deque(maxlen=MAX_OPENED)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See `httpx2.AsyncBaseTransport`."""
        given = httpx.Request(
            request.method,
            str(request.url),
            headers=request.headers.raw,
            content=await request.aread(),
            extensions=dict(request.extensions),
        )
        asked = self._begun(given)
        try:
            asked.check()
            if given.method == "GET":
                if asked.number is not None:
                    await asked.wait_to_reopen()
                elif not self._may_open():
                    return httpx2.Response(httpx2.codes.METHOD_NOT_ALLOWED)
                else:  # it may have nothing to say for long
                    given.extensions["timeout"] = {**given.extensions["timeout"], "read": None}
            answer = await asked.wait(self._inner.handle_async_request(given))
            return await self._taken(given, answer, asked)
        except (Refused, Broken, httpx.TransportError) as error:
            return self._failed(asked, str(error), is_stream=given.method == "GET")

    def _begun(self, given: httpx.Request) -> _Asked:
        """What a request asks, or asks the rest of."""
        if given.method != "POST":
            return _CURRENT.get(_Asked(None, math.inf))
        message = _fields(given.content)
        if message.get("method") == "notifications/cancelled":
            asked = self._asked.get(message["params"].get("requestId"))
            if asked is not None:
                asked.give_up("the call was cancelled")
        if "method" not in message or "id" not in message:
            return _Asked(None, TELLING)
        asked = _Asked(message["id"], self._seconds)
        self._asked[message["id"]] = asked
        _CURRENT.set(asked)
        return asked

    def _may_open(self) -> bool:
        """The server's own stream may be opened, or opened again."""
        now = time.monotonic()
        if len(self._opened) == MAX_OPENED and now - self._opened[0] < MINUTE:
            return False
        self._opened.append(now)
        return True

    async def _taken(
        self, given: httpx.Request, answer: httpx.Response, asked: _Asked
    ) -> httpx2.Response:
        """The answer as the SDK takes it: events as they come, all else as a whole.

        Raises:
            Broken, httpx.TransportError: it can't be read.
        """
        assert isinstance(answer.stream, httpx.AsyncByteStream), "the transport is asynchronous"
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            # Few bytes could become any number of them.
            await answer.aclose()
            raise Broken("its answer is packed, which was not asked for")
        status, headers = answer.status_code, answer.headers.raw
        if status == httpx.codes.ACCEPTED or (answer.is_success and _is_events(answer)):
            stream = _Events(answer.stream, asked, self)
            return httpx2.Response(status, headers=headers, stream=stream)
        body = await asked.wait(_whole(answer.stream))
        if _is_lost(given, status, body):
            self._ends.over.set()
        elif asked.number is not None:
            _require_message(answer, body)
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(body))

    def _failed(self, asked: _Asked, why: str, *, is_stream: bool) -> httpx2.Response:
        """What the SDK is told where there is no answer; it knows whose it is."""
        self.note(asked, why)
        if is_stream and asked.number is not None:  # else it would ask again and again
            return httpx2.Response(
                httpx2.codes.OK,
                headers={"content-type": "text/event-stream"},
                content=_last_event(asked.number, why),
            )
        return httpx2.Response(httpx2.codes.BAD_GATEWAY, json=_error(None, why))

    def note(self, asked: _Asked, why: str) -> None:
        """Remember why a request has no answer, if it is one that waits for it."""
        if asked.number in self._ends.faults:
            self._ends.faults[asked.number] = why

    def count(self) -> None:
        """One more event has come."""
        try:
            self._measure.count()
        except TooMuch as error:
            self._ends.end(str(error))
            raise Broken(str(error)) from error

    async def aclose(self) -> None:
        """Ends its connections."""
        await self._inner.aclose()


class _Events(httpx2.AsyncByteStream):
    """An answer's events, each whole; where no more may come the last one says why."""

    def __init__(self, inner: httpx.AsyncByteStream, asked: _Asked, adapter: _Adapter) -> None:
        self._inner = inner
        self._asked = asked
        self._adapter = adapter

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for event in events(self._pieces()):
                self._adapter.count()
                yield event
        except Broken as error:
            self._adapter.note(self._asked, str(error))
            await self.aclose()
            if self._asked.number is not None:
                yield _last_event(self._asked.number, str(error))
        except httpx.TransportError as error:
            self._adapter.note(self._asked, str(error))
            raise httpx2.ReadError(str(error)) from error

    async def _pieces(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._inner)
        while (data := await self._asked.wait(anext(pieces, None))) is not None:
            yield data

    async def aclose(self) -> None:
        """Ends the answer."""
        await self._inner.aclose()


async def _whole(stream: httpx.AsyncByteStream) -> bytes:
    """An answer's bytes; not more than were agreed on.

    Raises:
        Broken: there are more.
        httpx.TransportError: they do not come.
    """
    found = bytearray()
    try:
        async for data in stream:
            found += data
            if len(found) > MAX_LINE:
                raise Broken(f"its answer has more than {MAX_LINE} bytes")
    finally:
        await stream.aclose()
    return bytes(found)


def _is_events(answer: httpx.Response) -> bool:
    return _type(answer).startswith("text/event-stream")


def _type(answer: httpx.Response) -> str:
    return str(answer.headers.get("content-type", "")).lower()


def _require_message(answer: httpx.Response, body: bytes) -> None:
    """Refuse an answer that is no message, or too costly a one.

    Raises:
        Broken: with the reason, and what to do about it.
    """
    if answer.has_redirect_location:
        return  # the SDK follows it, or says where it leads
    is_json = _type(answer).startswith("application/json")
    if not answer.is_success:
        error = _fields(body).get("error")
        if is_json and isinstance(error, dict) and "code" in error:
            return
        raise Broken(_unwilling(answer.status_code))
    if not is_json:
        shown = _type(answer) or "something without a type"
        raise Broken(f"it answered with {shown}, which is no message; check its url")
    try:
        require_few_parts(body)
        jsonrpc_message_adapter.validate_json(body, by_name=False)
    except TooMuch as error:
        raise Broken(str(error)) from error
    except ValueError as error:
        raise Broken("its answer is no message that can be read") from error


def _unwilling(status: int) -> str:
    """What a status says, and what to do about it."""
    try:
        said = f"it answered {status} {HTTPStatus(status).phrase}"
    except ValueError:
        said = f"it answered {status}"
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return f'{said}; check its headers, as in headers = {{Authorization = "Bearer ${{TOKEN}}"}}'
    if status in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
        return f"{said}; check its url"
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return f"{said}; call it less often, or later"
    return said


def _last_event(number: int | str, why: str) -> bytes:
    """Ends the answer to a request: the SDK asks for no rest of it."""
    return b"data: " + json.dumps(_error(number, why)).encode() + b"\n\n"


def _error(number: int | str | None, why: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": CONNECTION_CLOSED, "message": why}}


def _is_lost(asked: httpx.Request, status: int, body: bytes) -> bool:
    """The server does not know the session of a request any more."""
    if asked.method != "POST" or "mcp-session-id" not in asked.headers:
        return False
    if status != httpx.codes.BAD_REQUEST:
        return status == httpx.codes.NOT_FOUND
    # Against the specification many servers say it so, as examples of an SDK have it. What has the
    # number of a request is the answer to it, and says nothing about the session.
    said = _fields(body)
    if said.get("id") is not None:
        return False
    error = said.get("error")
    return isinstance(error, dict) and error.get("code") == CONNECTION_CLOSED


def _fields(body: bytes) -> dict[str, Any]:
    """Of a message; none where it is no object of JSON."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
