"""One plain request and its answer, carried between a box and a server by h11."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import h11

from executor.bytestream import ByteStream, StreamClosed
from executor.egress import requests
from executor.egress.inbox import Inbox
from executor.egress.policy import Reason
from executor.egress.refusal import Refused
from executor.egress.requests import Ask, Headers
from executor.egress.secrets import Masker, Secrets
from executor.egress.streams import PIECE

MAX_INTERIM = 20
"""Answers of status 1xx before the answer."""
TURN = 16
"""Pieces that one direction carries before others have their turn. A chunk may be of one byte:
thousands are in one segment, and nothing that is done for them waits for anything."""


class Upstream:
    """A connection to a server, which may take one request after another.

    Args:
        stream: the connection.
        place: host and port that it was made for.
    """

    def __init__(self, stream: ByteStream, place: tuple[str, int]) -> None:
        self.stream = stream
        self.place = place
        self.http = h11.Connection(h11.CLIENT, max_incomplete_event_size=requests.MAX_HEAD)
        self.is_used = False
        """It has answered a request already; servers end such connections when they like."""
        self._more: asyncio.Task[None] | None = None

    def rest(self) -> None:
        """Nothing is asked for: what comes now answers nothing."""
        self._more = asyncio.create_task(self._wait_for_more())

    async def _wait_for_more(self) -> None:
        with contextlib.suppress(StreamClosed):
            await self.stream.read(1)

    async def resume(self) -> bool:
        """Ends the rest; whether nothing has come meanwhile, neither bytes nor their end.

        A second answer, or a late one, would be taken for that to the next request.
        """
        if self._more is None:
            return True
        await asyncio.sleep(0)  # what has come already is seen
        is_quiet = not self._more.done()
        self._more.cancel()
        await asyncio.wait([self._more])
        self._more = None
        return is_quiet

    def end(self) -> None:
        """Ends the connection now."""
        if self._more is not None:
            self._more.cancel()
        self.stream.abort()

    def is_ready(self) -> bool:
        """Whether it takes another request: all was sent, all has come, and nothing more has."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        if self.http.trailing_data != (b"", False):
            return False
        self.http.start_next_cycle()
        self.is_used = True
        return True


class Exchange:
    """Carries one request up and its answer down, both at the same time.

    Args:
        client: whose request it is.
        ask: its head.
        headers: that the server gets.
        upstream: the connection to it.
        sent, received: count bytes before they are passed on; raise to stop them.
        secrets: whose values are masked in the answer.
    """

    def __init__(
        self,
        client: Inbox,
        ask: Ask,
        headers: Headers,
        upstream: Upstream,
        sent: Callable[[int], None],
        received: Callable[[int], None],
        secrets: Secrets | None,
    ) -> None:
        self._client = client
        self._ask = ask
        self._headers = headers
        self._upstream = upstream.stream
        self._far = upstream.http
        self._sent = sent
        self._received = received
        self._secrets = secrets
        self._near = ask.connection
        self._masker: Masker | None = None
        self._pieces = 0
        self.is_answered = False
        """The client has had the head of its answer, or a part of it."""
        self.is_heard = False
        """The server has sent something."""

    async def run(self) -> bool:
        """Returns whether the client's connection can take another request.

        Raises:
            Refused: the request or its answer is malformed, or the server fails.
            StreamClosed: the client is gone, or it was ended from here.
        """
        up = asyncio.create_task(self._up_and_watch())
        down = asyncio.create_task(self._down())
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if not down.done():
                await up  # has failed
            await down
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        return self._may_go_on()

    def _may_go_on(self) -> bool:
        if self._near.our_state is not h11.DONE or self._near.their_state is not h11.DONE:
            return False
        self._client.give_back(self._near.trailing_data[0])
        return True

    # ─── up ───

    async def _up_and_watch(self) -> None:
        """Sends the request, then waits whether its client leaves: so nothing is kept for it."""
        await self._up()
        await self._client.left()

    async def _up(self) -> None:
        head = self._head()
        try:
            await self._send(head)
            while True:
                event = await self._of_client()
                if isinstance(event, h11.EndOfMessage):
                    trailers = requests.trailers(event.headers.raw_items())
                    await self._send(self._far.send(h11.EndOfMessage(headers=trailers)))
                    return
                await self._send(self._far.send(event))
        except StreamClosed as error:
            if not isinstance(error, _ServerGone):
                raise
            # It may have answered before it closed: `_down` sees.

    def _head(self) -> bytes | None:
        target = self._ask.target
        try:
            return self._far.send(
                h11.Request(
                    method=self._ask.request.method,
                    target=target.path.encode(),
                    headers=self._headers,
                )
            )
        except h11.LocalProtocolError:
            # Its text may hold a header, and so a secret: it is not passed on.
            said = "a header can't be sent on"
            raise Refused(Reason.MALFORMED, target.host, target.port, said) from None

    async def _of_client(self) -> h11.Data | h11.EndOfMessage:
        if self._ask.is_read:
            return h11.EndOfMessage()  # it has no body
        await self._let_others()
        while True:
            try:
                event = self._near.next_event()
            except h11.RemoteProtocolError as error:
                said = str(error).partition(":")[0].partition("(")[0]
                raise Refused(Reason.MALFORMED, detail=f"its body ({said.strip()})") from error
            if isinstance(event, h11.Data | h11.EndOfMessage):
                return event
            self._near.receive_data(await self._client.some())

    async def _let_others(self) -> None:
        self._pieces += 1
        if self._pieces % TURN == 0:
            await asyncio.sleep(0)

    async def _send(self, data: bytes | None) -> None:
        if not data:
            return
        self._sent(len(data))
        try:
            await self._upstream.write(data)
        except StreamClosed as error:
            raise _ServerGone(str(error)) from error

    # ─── down ───

    async def _down(self) -> None:
        interim = 0
        while True:
            event = await self._of_server()
            if isinstance(event, h11.InformationalResponse):
                interim += 1
                if interim > MAX_INTERIM:
                    raise self._failed("too many answers before the answer")
                if self._ask.request.http_version == b"1.1":
                    await self._answer(_interim(event, self._shown(event), self._reason(event)))
            elif isinstance(event, h11.Response):
                self._require_readable(event)
                self._masker = self._secrets.masker() if self._secrets else None
                # Before all of its request was read: no other request can follow.
                is_early = not self._ask.is_read
                await self._answer(
                    _response(event, self._shown(event), self._reason(event), is_early)
                )
            elif isinstance(event, h11.Data):
                await self._pass_on(self._masker.feed(event.data) if self._masker else event.data)
            else:
                await self._pass_on(self._masker.end() if self._masker else b"")
                await self._answer(h11.EndOfMessage(headers=self._trailers(event)))
                return

    async def _of_server(
        self,
    ) -> h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage:
        await self._let_others()
        while True:
            try:
                event = self._far.next_event()
            except h11.RemoteProtocolError as error:
                raise self._failed("it is malformed, or was cut short") from error
            if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise self._failed("none came")
            if event is not h11.NEED_DATA:
                assert isinstance(
                    event, h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage
                )
                return event
            try:
                data = await self._upstream.read(PIECE)
            except StreamClosed as error:
                raise self._failed("the connection broke") from error
            self.is_heard |= bool(data)
            self._received(len(data))
            self._far.receive_data(data)

    async def _pass_on(self, data: bytes) -> None:
        if data:
            await self._answer(h11.Data(data=data))

    async def _answer(self, event: h11.Event) -> None:
        try:
            data = self._near.send(event)
        except h11.LocalProtocolError as error:
            raise self._failed("it can't be passed on") from error
        if data:
            self.is_answered = True
            await self._client.stream.write(data)

    def _require_readable(self, event: h11.Response) -> None:
        if self._secrets is None:
            return
        fault = self._secrets.hides_in(self._headers, event.headers.raw_items())
        if fault is not None:
            raise self._failed(fault)

    def _reason(self, event: h11.InformationalResponse | h11.Response) -> bytes:
        return self._secrets.mask(event.reason) if self._secrets else event.reason

    def _shown(self, event: h11.InformationalResponse | h11.Response) -> Headers:
        headers = requests.end_to_end(event.headers.raw_items())
        return self._secrets.mask_headers(headers) if self._secrets else headers

    def _trailers(self, event: h11.EndOfMessage) -> Headers:
        if self._ask.request.http_version == b"1.0" or not event.headers:
            return []
        kept = requests.trailers(event.headers.raw_items())
        return self._secrets.mask_headers(kept) if self._secrets else kept

    def _failed(self, said: str) -> Refused:
        return Refused(Reason.UPSTREAM, self._ask.target.host, self._ask.target.port, said)


class _ServerGone(StreamClosed):
    """The server takes no more of the request."""


def _interim(
    event: h11.InformationalResponse, headers: Headers, reason: bytes
) -> h11.InformationalResponse:
    return h11.InformationalResponse(status_code=event.status_code, headers=headers, reason=reason)


def _response(event: h11.Response, headers: Headers, reason: bytes, is_last: bool) -> h11.Response:
    headers += [(b"Connection", b"close")] * is_last
    return h11.Response(status_code=event.status_code, headers=headers, reason=reason)
