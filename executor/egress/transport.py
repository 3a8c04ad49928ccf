"""HTTP for the host's own tools, with every connection judged, checked and counted as a box's."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

from executor.bytestream import StreamClosed
from executor.egress import names
from executor.egress.addresses import Address
from executor.egress.dialling import Dialler
from executor.egress.passage import Passage
from executor.egress.policy import DEFAULT_PORTS, KINDS, Kind, Policy, Reason
from executor.egress.refusal import Refused
from executor.egress.secrets import UNPACKED, Masker, NotSubstituted

if TYPE_CHECKING:
    from executor.egress.broker import Broker

MOST_READ = 16 << 10
"""Bytes that are taken at a time. What reads HTTP goes through them without a pause: thousands of
answers that are none yet, or chunks of a byte, keep a loop from all else."""
_MAPPED: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.UnsupportedProtocol, httpx.UnsupportedProtocol),
)


@contextmanager
def _mapped(request: httpx.Request | None = None) -> Iterator[None]:
    """Errors of httpcore as httpx has them; `Refused` as it is."""
    try:
        yield
    except tuple(theirs for theirs, _ in _MAPPED) as error:
        ours = next(ours for theirs, ours in _MAPPED if isinstance(error, theirs))
        raise ours(str(error) or type(error).__name__, request=request) from error


class Transport(httpx.AsyncBaseTransport):
    """See `Broker.transport`. No proxy or setting of the environment has a say in it."""

    def __init__(
        self,
        broker: Broker,
        dialler: Dialler,
        approved: Policy,
        trust: Callable[[], ssl.SSLContext],
    ) -> None:
        self._broker = broker
        self._trust = trust
        self._gates = {kind: Gate(broker, dialler, approved, kind) for kind in Kind}
        self._pools: dict[Kind, httpcore.AsyncConnectionPool] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`.

        Raises:
            Refused: it may not go where it goes, or that can't be reached.
        """
        kind = KINDS.get(request.url.scheme)
        if kind is None:
            raise httpx.UnsupportedProtocol(f"{request.url.scheme}: is neither http nor https")
        url = request.url
        port = url.port or DEFAULT_PORTS[kind]
        hosts = request.headers.get_list("host")
        self._gates[kind].admit(url.raw_host.decode("ascii"), port, hosts)
        name = _host(url.raw_host.decode("ascii"), port)
        headers = self._with_secrets(name, port, kind, request.headers.raw)
        with _mapped(request):
            answer = await self._pool(kind).handle_async_request(lowered(request, headers))
        secrets = self._broker.secrets
        if secrets is None:
            return _response(answer, answer.headers, None)
        fault = secrets.hides_in(headers, answer.headers)
        if fault is not None:
            await answer.aclose()
            raise Refused(Reason.UPSTREAM, name, port, fault)
        return _response(answer, secrets.mask_headers(answer.headers), secrets.masker())

    def _with_secrets(
        self, host: str, port: int, kind: Kind, headers: Sequence[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        """The headers with the values in them; answers have to be readable from now on."""
        secrets = self._broker.secrets
        if secrets is None:
            return list(headers)
        kept = [*(one for one in headers if one[0].lower() != UNPACKED[0].lower()), UNPACKED]
        try:
            return secrets.substitute(host, port, kept, is_tls=kind is Kind.TUNNEL)
        except NotSubstituted as error:
            raise Refused(Reason.SECRET, host, port, str(error)) from error

    def _pool(self, kind: Kind) -> httpcore.AsyncConnectionPool:
        if kind not in self._pools:
            self._pools[kind] = httpcore.AsyncConnectionPool(
                ssl_context=self._trust() if kind is Kind.TUNNEL else None,
                network_backend=self._gates[kind],
                # Streams stay open as long as calls do: whoever calls bounds them, and what ends
                # a call must never wait for a place.
                max_connections=None,
                max_keepalive_connections=0,  # each connection is judged when it is made
            )
        return self._pools[kind]

    async def aclose(self) -> None:
        """Ends its connections."""
        for pool in self._pools.values():
            await pool.aclose()


def _response(
    answer: httpcore.Response, headers: Sequence[tuple[bytes, bytes]], masker: Masker | None
) -> httpx.Response:
    # Its reason phrase is left out: a server may put anything there.
    more = {name: one for name, one in answer.extensions.items() if name != "reason_phrase"}
    return httpx.Response(
        status_code=answer.status,
        headers=headers,
        stream=Body(answer, masker),
        extensions=answer.extensions if masker is None else more,
    )


def lowered(request: httpx.Request, headers: Sequence[tuple[bytes, bytes]]) -> httpcore.Request:
    """The request as httpcore takes it, with these headers."""
    url = request.url
    return httpcore.Request(
        method=request.method,
        url=httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        ),
        headers=headers,
        content=request.stream,
        extensions={"timeout": request.extensions.get("timeout", {})},
    )


class Body(httpx.AsyncByteStream):
    """The body of an answer, as it comes, without the values of secrets."""

    def __init__(self, answer: httpcore.Response, masker: Masker | None = None) -> None:
        self._answer = answer
        self._masker = masker

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _mapped():
            async for part in self._answer.aiter_stream():
                shown = part if self._masker is None else self._masker.feed(part)
                if shown:
                    yield shown
        if self._masker is not None and (rest := self._masker.end()):
            yield rest

    async def aclose(self) -> None:
        with _mapped():
            await self._answer.aclose()


class Gate(httpcore.AsyncNetworkBackend):
    """Where httpcore gets its connections: dialled by the loop's dialler, at checked addresses."""

    def __init__(self, broker: Broker, dialler: Dialler, approved: Policy, kind: Kind) -> None:
        self._broker = broker
        self._dialler = dialler
        self._approved = approved
        self._kind = kind
        self._inner = httpcore.AnyIOBackend()

    def admit(self, host: str, port: int, headers: Iterable[str] = ()) -> None:
        """Judges a request before anything is done for it.

        Args:
            host, port: of its URL.
            headers: its `Host` headers, which have to say the same.

        Raises:
            Refused: it may not go there. The journal has it.
        """
        passage = Passage("", "", self._broker.account)
        try:
            name, _ = self._judge(passage, host, port)
            for header in headers:
                if not _is_same(header, name, port, self._kind):
                    raise Refused(Reason.HOST_MISMATCH, name, port)
        except Refused as refused:
            self._broker.refused(passage, refused, self._kind)
            raise

    def _judge(self, passage: Passage, host: str, port: int) -> tuple[str, bool]:
        """The canonical host, and whether its addresses may be private ones."""
        name = _host(host, port)
        listed = self._broker.policy(None)
        is_listed = listed.judge(name, port, self._kind).is_allowed
        # Where nothing at all is allowed, nobody can approve anything either.
        is_granted = bool(listed) and self._approved.judge(name, port, self._kind).is_allowed
        passage.is_granted = is_granted and not is_listed
        policy = self._approved if passage.is_granted else listed
        self._broker.judge(passage, name, port, self._kind, policy)
        return name, not passage.is_granted and listed.may_be_private(name, port)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """See `httpcore.AsyncNetworkBackend`."""
        passage = self._broker.enter("", "")
        try:
            inner = await self._connect(passage, host, port, timeout, socket_options)
        except Refused as refused:
            self._broker.refused(passage, refused, self._kind)
            self._broker.leave(passage)
            raise
        except BaseException:
            self._broker.leave(passage)
            raise
        return _Counted(inner, self._broker, passage)

    async def _connect(
        self,
        passage: Passage,
        host: str,
        port: int,
        timeout: float | None,
        options: Iterable[Any] | None,
    ) -> httpcore.AsyncNetworkStream:
        name, is_private = self._judge(passage, host, port)
        passage.target = (name, port, self._kind)

        async def connect(address: Address) -> httpcore.AsyncNetworkStream:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, None, options)
            except httpcore.ConnectTimeout as error:
                raise TimeoutError from error
            except httpcore.ConnectError as error:
                raise _cause(error) from error

        inner, _ = await self._dialler.reach(name, port, is_private, connect)
        return inner

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Nothing leads to a socket of the host."""
        raise httpcore.UnsupportedProtocol("no socket of the host is reached")

    async def sleep(self, seconds: float) -> None:
        """See `httpcore.AsyncNetworkBackend`."""
        await self._inner.sleep(seconds)


class _Counted(httpcore.AsyncNetworkStream):
    """A connection whose bytes are counted, and which can be ended by its broker."""

    def __init__(
        self, inner: httpcore.AsyncNetworkStream, broker: Broker, passage: Passage
    ) -> None:
        self._inner = inner
        self._broker = broker
        self._passage = passage
        passage.stop_by(self._stop)

    def _stop(self) -> None:
        """Wakes whoever reads or writes; and nobody has to, for the broker to close."""
        with contextlib.suppress(OSError):  # it has ended already
            self._inner.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._left()

    def _left(self) -> None:
        self._broker.passed(self._passage, Reason.ALLOWED)
        self._broker.leave(self._passage)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(min(max_bytes, MOST_READ), timeout)
        try:
            self._passage.received(len(data))
        except StreamClosed as error:
            raise httpcore.ReadError(str(error)) from error
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            self._passage.sent(len(buffer))
        except StreamClosed as error:
            raise httpcore.WriteError(str(error)) from error
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        self._left()
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:  # it has closed what is beneath by itself
            self._left()
            raise
        return _Counted(inner, self._broker, self._passage)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _is_same(header: str, host: str, port: int, kind: Kind) -> bool:
    try:
        found, at = names.split(header)
        return (names.host_of(found), at or DEFAULT_PORTS[kind]) == (host, port)
    except names.NotAName:
        return False


def _host(host: str, port: int) -> str:
    text = f"[{host}]" if ":" in host else host
    try:
        return names.host_of(text)
    except names.IsAnAddress:
        raise Refused(Reason.LITERAL, host, port) from None
    except names.NotAName as fault:
        raise Refused(Reason.TARGET, host, port, f"its host {fault}") from None


def _cause(error: BaseException) -> OSError:
    """The system's error beneath one of httpcore."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno is not None:
            return seen
        seen = seen.__cause__ or seen.__context__
    return OSError(str(error))
