"""One connection of a box to its proxy: request after request, or one tunnel."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executor.bytestream import ByteStream, StreamClosed
from executor.egress import requests
from executor.egress.exchange import Exchange, Upstream
from executor.egress.inbox import Inbox
from executor.egress.passage import Passage
from executor.egress.policy import Kind, Reason
from executor.egress.refusal import Refused
from executor.egress.requests import Ask
from executor.egress.secrets import NotSubstituted
from executor.egress.streams import SocketStream, both, carry

if TYPE_CHECKING:
    from executor.egress.broker import Broker

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_TLS_DENIED = bytes([21, 3, 3, 0, 2, 2, 49])
"""A fatal alert, `access_denied`: what a client of TLS shows of a hello that went nowhere."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that boxes and servers have.

    Attributes:
        head: for the whole head of a request, or the whole hello of TLS (F11).
        keep: for the next request on a connection.
        idle: between two pieces of anything else.
        half: the same, in a tunnel that one side has ended: the other is gone, as a rule.
    """

    head: float = 10.0
    keep: float = 60.0
    idle: float = 600.0
    half: float = 10.0


class Conversation:
    """Answers what one connection of a box asks for.

    Args:
        broker: decides, dials, and keeps the journal.
        passage: this connection, as the broker knows it.
        stream: its bytes.
        waits: how long anything may take.
    """

    def __init__(self, broker: Broker, passage: Passage, stream: ByteStream, waits: Waits) -> None:
        self._broker = broker
        self._passage = passage
        self._client = Inbox(stream, waits.head, waits.keep)
        self._waits = waits
        self._spare: Upstream | None = None
        passage.drop_spare = self._drop_spare

    async def run(self) -> None:
        """From the first byte to the last.

        Raises:
            StreamClosed: the client is gone, or must not take what it has for all.
        """
        try:
            self._broker.welcome()
            while ask := await self._client.next():
                if ask.target.kind is Kind.TUNNEL:
                    return await self._tunnel(ask)
                if not await self._forward(ask):
                    break
                self._passage.rest()
            self._passage.is_ending = True
            self._drop_spare()
            await self._client.finish(self._waits.keep)
        except Refused as refused:
            self._broker.refused(self._passage, refused, "")
            await self._say(refused)
        finally:
            self._drop_spare()

    async def last_word(self) -> None:
        """For a client that waits for the head of an answer, and which was ended from here."""
        reason = self._passage.reason_of_end or Reason.IDLE
        if self._passage.owes is None or reason is Reason.CLOSED:
            return
        host, port, _ = self._passage.owes
        reason = Reason.UPSTREAM_SLOW if reason is Reason.IDLE else reason
        said = Refused(reason, host, port, str(self._broker.account.limit))
        await self._client.say_last(said.response())

    async def _say(self, refused: Refused, with_body: bool = True) -> None:
        """The last that the client hears."""
        self._passage.is_ending = True
        self._passage.rest()
        await self._client.say_last(refused.response(with_body))

    # ─── plain requests ───

    async def _forward(self, ask: Ask) -> bool:
        """Carries one request; whether another may follow on the connection."""
        with_body = ask.request.method != b"HEAD"
        try:
            upstream = await self._upstream(ask)
            headers = self._with_secrets(ask)
        except Refused as refused:
            self._broker.refused(self._passage, refused, Kind.PLAIN)
            await self._say(refused, with_body)
            return False
        try:
            return await self._exchange(ask, headers, upstream)
        except Refused as refused:
            await self._say(refused, with_body)
            return False

    async def _exchange(self, ask: Ask, headers: requests.Headers, upstream: Upstream) -> bool:
        """Carries it over a connection; once more, over another, if the server had ended that."""
        passage = self._passage
        exchange = Exchange(
            *(self._client, ask, headers, upstream),
            *(passage.sent, passage.received, self._broker.secrets),
        )
        reason: Reason | None = Reason.CLIENT
        try:
            may_go_on = await exchange.run()
            reason = Reason.ALLOWED
            self._keep(upstream)
            return may_go_on
        except Refused as refused:
            reason = refused.reason
            if exchange.is_answered:
                # The client must not take what it has for a whole answer.
                raise StreamClosed(str(refused)) from refused
            if not upstream.is_used or exchange.is_heard or not _may_be_sent_again(ask):
                raise
            reason = None
        finally:
            if self._spare is not upstream:
                upstream.end()
            passage.owes = None if exchange.is_answered else passage.target
            if reason is not None:
                self._broker.passed(passage, reason)
        return await self._forward(ask)

    async def _upstream(self, ask: Ask) -> Upstream:
        """A connection to where the request goes: the one of the last request, or a new one.

        Either way it goes to an address that was checked when it was dialled, and this request
        is judged by itself.
        """
        target = ask.target
        place = (target.host, target.port)
        self._broker.judge(self._passage, *place, target.kind)
        if requests.is_switching(ask.request):
            raise Refused(Reason.UPGRADE, *place)
        spare, self._spare, self._passage.spare = self._spare, None, None
        self._await(target)
        if spare is not None:
            try:
                if spare.place == place and await spare.resume():
                    return spare
            except BaseException:
                spare.end()
                raise
            spare.end()
        return Upstream(await self._broker.dial(self._passage, *place, target.kind), place)

    def _await(self, target: requests.Target) -> None:
        """From now on the client waits for an answer from there."""
        self._passage.target = self._passage.owes = (target.host, target.port, target.kind)
        self._passage.touch()

    def _keep(self, upstream: Upstream) -> None:
        """For the next request, if the connection takes one."""
        if upstream.is_ready():
            upstream.rest()
            self._spare, self._passage.spare = upstream, (*upstream.place, Kind.PLAIN)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.end()
        self._spare = self._passage.spare = None

    def _with_secrets(self, ask: Ask) -> requests.Headers:
        headers = requests.onward(ask)
        if self._broker.secrets is None:
            return headers
        host, port = ask.target.host, ask.target.port
        try:
            return self._broker.secrets.substitute(host, port, headers)
        except NotSubstituted as error:
            raise Refused(Reason.SECRET, host, port, str(error)) from error

    # ─── tunnels ───

    async def _tunnel(self, ask: Ask) -> None:
        target = ask.target
        self._drop_spare()
        try:
            self._broker.judge(self._passage, target.host, target.port, target.kind)
            self._await(target)
            upstream = await self._broker.dial(self._passage, target.host, target.port, target.kind)
        except Refused as refused:
            self._broker.refused(self._passage, refused, Kind.TUNNEL)
            return await self._say(refused)
        try:
            await self._through(target, upstream)
        finally:
            upstream.abort()

    async def _through(self, target: requests.Target, upstream: SocketStream) -> None:
        """Carries TLS both ways, once it is known to be for this host."""
        client, passage = self._client, self._passage
        passage.owes = None
        await client.stream.write(_ESTABLISHED)
        try:
            hello = await client.tls(target.host)
        except Refused as refused:
            said = Refused(refused.reason, target.host, target.port)
            self._broker.refused(passage, said, Kind.TUNNEL)
            passage.is_ending = True
            return await client.say_last(_TLS_DENIED)
        reason = Reason.CLIENT
        try:
            passage.touch()
            await both(
                asyncio.create_task(self._send_on(upstream, hello)),
                asyncio.create_task(self._send_back(upstream)),
            )
            await upstream.finish()
            reason = Reason.ALLOWED
        finally:
            self._broker.passed(passage, reason)

    async def _send_on(self, upstream: SocketStream, hello: bytes) -> None:
        """Carries what the client sends; from its end on, a silent server is not waited for."""
        await carry(self._client.stream, upstream, self._passage.sent, hello)
        self._passage.hurry(self._waits.half)

    async def _send_back(self, upstream: SocketStream) -> None:
        """Carries what the server sends; from its end on, a silent client is not waited for."""
        await carry(upstream, self._client.stream, self._passage.received)
        self._passage.hurry(self._waits.half)


def _may_be_sent_again(ask: Ask) -> bool:
    """Whether nothing changes at the server when it has come twice (RFC 9110, 9.2.2), and all
    of it is still known."""
    return ask.is_read and ask.request.method in (b"GET", b"HEAD", b"OPTIONS", b"TRACE")
