"""One HTTP request of a tool, on the host: where it may go, at each hop, and what comes back.

What is outside is reached by the loop's broker alone, which judges, resolves, checks and counts.
`localhost` is the sandbox itself: its server is reached through the box's stream, whether or not
the loop may reach anything else. What a server sends is believed in nothing: it costs no more
than so many bytes and so much time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import httpcore
import httpx

from executor.bytestream import ByteStream, StreamClosed
from executor.egress import names
from executor.egress.policy import DEFAULT_PORTS, KINDS, Kind, Reason
from executor.egress.refusal import Refused
from executor.egress.secrets import Secrets
from executor.egress.transport import MOST_READ, Body, lowered
from executor.errors import Code, ToolError
from executor.permissions import is_host
from executor.rules import Rule
from executor.text import one_line
from executor.tool import Context
from executor.tools import bodies

CANONICAL = "web_fetch"
MOST_HOPS = 10
MOST_BODY = 5 << 20
"""Bytes of a body, unpacked; of a longer one the beginning is taken."""
MOST_PACKED = 16 << 20
"""Bytes of a body as it is sent: what unpacks to nothing ends, too."""
_STEPS_AT_ONCE = 50
"""Pieces of a body that are taken before others have their turn, however fast they come."""
MOST_HEADERS = 100
MOST_HEADER_BYTES = 16 << 10
MOST_ADDRESS = 8000
"""Characters of an address."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEPT = frozenset({"accept", "accept-language", "user-agent", "content-type"})
"""Headers that go to another host than the one they were given for; credentials do not."""
_BROKEN = (
    *(httpx.TransportError, httpx.StreamError, httpx.DecodingError, httpx.InvalidURL),
    *(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException),
    *(StreamClosed, OSError),
)


# ─── where to ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes.

    Attributes:
        url: the address.
        host: canonical, an IPv6 address in brackets.
        port: the address's own, or the scheme's.
    """

    url: httpx.URL
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Target:
        """Reads an address.

        Raises:
            ToolError: INVALID_ARGUMENTS, it is none that can be fetched; NETWORK_DENIED, its
                host is an address in an odd spelling.
        """
        if len(text) > MOST_ADDRESS:
            raise _bad(text, f"is longer than {MOST_ADDRESS} characters")
        try:
            url = httpx.URL(text)
            raw = url.raw_host.decode("ascii")
            port = url.port
        except (httpx.InvalidURL, ValueError, UnicodeError):
            raise _bad(text, "is no address") from None
        if url.scheme not in KINDS or not raw:
            raise _bad(text, "is none of http or https; write https://host/path")
        if url.userinfo or "@" in url.netloc.decode("ascii", "replace"):
            raise _bad(text, "holds a name or a password; give them in a header")
        port = port if port is not None else DEFAULT_PORTS[KINDS[url.scheme]]
        if not 1 <= port <= names.MAX_PORT:
            raise _bad(text, "has no port from 1 to 65535")
        return cls(url, _host(raw, port, text), port)

    @property
    def kind(self) -> Kind:
        """How the host is spoken to."""
        return KINDS[self.url.scheme]

    @property
    def at(self) -> str:
        """Host and port, for people."""
        return f"{self.host}:{self.port}"

    @property
    def origin(self) -> tuple[str, str, int]:
        """What has to be the same for credentials to go there, too."""
        return self.url.scheme, self.host, self.port

    @property
    def is_box(self) -> bool:
        """It is the sandbox itself: the loopback, by name or by address."""
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        if not names.is_address(self.host):
            return False
        return ipaddress.ip_address(self.host.strip("[]")).is_loopback


def _bad(text: str, fault: str) -> ToolError:
    return ToolError(Code.INVALID_ARGUMENTS, f"The url {one_line(text, 200)!r} {fault}.")


def _host(raw: str, port: int, text: str) -> str:
    try:
        return names.host_of(f"[{raw}]" if ":" in raw else raw)
    except names.IsAnAddress:
        raise Refused(Reason.LITERAL, raw, port) from None
    except names.NotAName as fault:
        raise _bad(text, f"has a host that {fault}") from None


def is_listed(context: Context, target: Target) -> bool:
    """Whether the loop's own rules of egress allow it, or it is the sandbox itself."""
    broker = context.loop.egress
    if target.is_box:
        return True
    if broker is None:
        return False
    return broker.policy(None).judge(target.host, target.port, target.kind).is_allowed


def require_way(context: Context, target: Target) -> None:
    """Refuse what nobody could agree to, before anybody is asked.

    Raises:
        ToolError: NETWORK_DENIED: the loop may reach nothing outside, or the host is named by an
            address that no operator has listed.
    """
    broker = context.loop.egress
    if target.is_box or is_listed(context, target):
        return
    if broker is None or not broker.policy(None):
        raise Refused(Reason.NO_EGRESS, target.host, target.port)
    if names.is_address(target.host):
        raise Refused(Reason.LITERAL, target.host, target.port)


# ─── the request ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ask:
    """A request.

    Attributes:
        target: where it goes.
        method: GET or POST.
        headers: of the model's.
        body: of a POST.
    """

    target: Target
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def followed(self, target: Target, status: int) -> Ask:
        """The request that a redirect asks for.

        Raises:
            ToolError: it must not be made.
        """
        here = self.target
        _require_safe(here, target)
        is_same = here.origin == target.origin
        becomes_get = status == 303 or (status in (301, 302) and self.method == "POST")
        if self.method == "POST" and not becomes_get and not is_same:
            raise ToolError(
                Code.NETWORK_DENIED,
                f"{here.at} redirects the POST to {target.at} (HTTP {status}), and its body is "
                "sent to no other host by itself. Send it there in a call of its own, if that is "
                "meant.",
                {"reason": "redirected_post", "host": target.host, "port": target.port},
            )
        kept = [one for one in self.headers if is_same or one[0].lower() in _KEPT]
        if not becomes_get:
            return replace(self, target=target, headers=tuple(kept))
        kept = [one for one in kept if not one[0].lower().startswith("content-")]
        return Ask(target, "GET", tuple(kept))


def _require_safe(here: Target, there: Target) -> None:
    """Raises:
    ToolError: nobody may be led there from here.
    """
    facts = {"host": there.host, "port": there.port}
    if there.is_box and not here.is_box:
        raise ToolError(
            Code.NETWORK_DENIED,
            f"{here.at} redirects to {there.at}, which is the sandbox itself: no server outside "
            "leads there. Fetch it in a call of its own, if that is meant.",
            {"reason": "redirect_into_sandbox", **facts},
        )
    if here.url.scheme == "https" and there.url.scheme == "http" and not here.is_box:
        raise ToolError(
            Code.NETWORK_DENIED,
            f"{here.at} redirects from https to plain http at {there.at}, which is not followed. "
            "Fetch it in a call of its own, if that is meant.",
            {"reason": "redirect_to_plain", **facts},
        )


@dataclass(slots=True)
class Page:
    """What came back.

    Attributes:
        url: where it came from at last.
        status, phrase: of its first line.
        headers: by their names in lower case, within bounds.
        data: the body, unpacked, within bounds.
        is_cut: there is more of the body.
        packed: the coding that could not be taken off; None = there is none.
    """

    url: httpx.URL
    status: int
    phrase: str
    headers: dict[str, str]
    data: bytes = b""
    is_cut: bool = False
    packed: str | None = None


@dataclass(slots=True)
class _Progress:
    """How far a fetch has come, for when its time is over."""

    target: Target
    said: str = "it did not answer"
    hops: list[str] = field(default_factory=list)


async def fetch(context: Context, ask: Ask, seconds: float) -> Page:
    """Make the request, follow where it is led, and take what comes.

    Args:
        context: of the call.
        ask: the request.
        seconds: that all of it may take.

    Raises:
        ToolError: NETWORK_DENIED, NETWORK_ERROR, PERMISSION_DENIED (a rule is against one of
            the hosts), TIMEOUT.
    """
    progress = _Progress(ask.target)
    try:
        async with asyncio.timeout(seconds):
            return await _followed(context, ask, progress)
    except TimeoutError:
        text = f"Timed out after {round(seconds * 1000)}ms: {progress.target.at}, {progress.said}."
        raise ToolError(Code.TIMEOUT, text, {"host": progress.target.host}) from None


async def _followed(context: Context, ask: Ask, progress: _Progress) -> Page:
    first = ask.target
    for _ in range(MOST_HOPS + 1):
        progress.target, progress.said = ask.target, "it did not answer"
        if progress.hops:
            _require_rules(context, ask.target)
        grants = _granted(context, ask.target, first)
        try:
            page, location = await _once(context, ask, grants, progress)
        except ToolError as error:
            raise _in_words(error, progress) from error
        except bodies.Damaged as fault:
            raise _error(ask.target, f"malformed reply: {fault}") from None
        except _BROKEN as error:
            raise _error(ask.target, _why(error)) from error
        if location is None:
            return page
        progress.hops.append(ask.target.at)
        ask = ask.followed(_next(ask.target, location), page.status)
    raise ToolError(
        Code.NETWORK_ERROR,
        f"{first.at} redirects without an end: after {MOST_HOPS} redirects there is another one.",
        {"reason": "too_many_redirects"},
    )


def _next(here: Target, location: str) -> Target:
    try:
        return Target.of(str(here.url.join(location)))
    except (httpx.InvalidURL, ValueError):  # the latter is of `urllib`, which joins them
        fault = f"it redirects to {one_line(location, 200)!r}, which is no address"
        raise _error(here, fault) from None
    except ToolError as error:
        if error.code is not Code.INVALID_ARGUMENTS:
            raise
        raise _error(here, f"it redirects wrongly. {error}") from error


def _in_words(error: ToolError, progress: _Progress) -> ToolError:
    """The same error; after redirects it says that it was led there."""
    if not progress.hops:
        return error
    text = f"{error} (redirected there by {progress.hops[-1]})"
    return ToolError(error.code, text, error.details)


def _granted(context: Context, target: Target, first: Target) -> list[tuple[str, int]]:
    """What may be reached beside the loop's list: what somebody has agreed to, host and port."""
    if target.is_box:
        return []
    is_agreed = context.is_approved and (target.host, target.port) == (first.host, first.port)
    allow = context.session.rules.allow
    if is_agreed or _naming(context, allow, target) is not None:
        return [(target.host, target.port)]
    return []


def _naming(context: Context, rules: Sequence[Rule], target: Target) -> Rule | None:
    """The first of some rules that names the host, for this tool."""
    for rule in rules:
        is_about = rule.host is not None and rule.names(context.tool, CANONICAL)
        if is_about and is_host(rule.host or "", target.host):
            return rule
    return None


def _require_rules(context: Context, target: Target) -> None:
    """Refuse a host that a redirect leads to and a rule is against.

    Raises:
        ToolError: PERMISSION_DENIED.
    """
    rules = context.session.rules
    for some, what in ((rules.deny, "denies it"), (rules.ask, "asks first")):
        rule = _naming(context, some, target)
        if rule is not None:
            raise ToolError(
                Code.PERMISSION_DENIED,
                f"The redirect to {target.at} is not followed: the rule {rule.text} {what}.",
                {"rule": rule.text},
            )


async def _once(
    context: Context, ask: Ask, grants: list[tuple[str, int]], progress: _Progress
) -> tuple[Page, str | None]:
    """One request, and where its answer leads; None = it is an answer."""
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(_transport(context, ask.target, grants))
        secrets = None if ask.target.is_box else _secrets(context)
        request = httpx.Request(ask.method, ask.target.url, headers=_headers(ask), content=ask.body)
        response = await transport.handle_async_request(request)
        stack.push_async_callback(_closed, response)
        progress.said = "it sent a head and no body"
        status = response.status_code
        said = response.headers  # without values of secrets: the broker's transport masks them
        location = said.get("location") if status in _REDIRECTS else None
        page = Page(ask.target.url, status, _phrase(response), _bounded(said))
        if location is None:
            await _read(response, page, progress)
        if secrets is not None and page.data:
            page.data = await asyncio.to_thread(_masked, secrets, page)
        return page, location


def _masked(secrets: Secrets, page: Page) -> bytes:
    """The body without values that were packed, or are cut at its end."""
    return secrets.mask_cut(page.data, b"")[0] if page.is_cut else secrets.mask(page.data)


def _secrets(context: Context) -> Secrets | None:
    broker = context.loop.egress
    return None if broker is None else broker.secrets


async def _closed(response: httpx.Response) -> None:
    with suppress(*_BROKEN):
        await response.aclose()


def _headers(ask: Ask) -> list[tuple[bytes, bytes]]:
    """The headers of the request, with placeholders: the broker's transport knows the values."""
    given = {name.lower() for name, _ in ask.headers}
    usual = (
        ("User-Agent", "executor"),
        ("Accept", "text/html, text/markdown, text/plain, application/json, */*;q=0.5"),
    )
    made = [(name, value) for name, value in usual if name.lower() not in given]
    if ask.body and "content-type" not in given:
        made.append(("Content-Type", "text/plain; charset=utf-8"))
    made += [("Accept-Encoding", "gzip, deflate"), ("Connection", "close"), *ask.headers]
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in made]


def _transport(
    context: Context, target: Target, grants: list[tuple[str, int]]
) -> httpx.AsyncBaseTransport:
    if target.is_box:
        return _BoxTransport(context, target)
    broker = context.loop.egress
    if broker is None:
        raise Refused(Reason.NO_EGRESS, target.host, target.port)
    return broker.transport(granted=grants)


def _phrase(response: httpx.Response) -> str:
    try:
        return HTTPStatus(response.status_code).phrase
    except ValueError:
        said: bytes = response.extensions.get("reason_phrase", b"")
        return one_line(said.decode("ascii", "replace"), 100)


def _bounded(headers: httpx.Headers) -> dict[str, str]:
    found: dict[str, str] = {}
    size = 0
    for name, value in headers.items():
        size += len(name) + len(value)
        if len(found) >= MOST_HEADERS or size > MOST_HEADER_BYTES:
            break
        found[one_line(name)] = one_line(value)
    return found


async def _read(response: httpx.Response, page: Page, progress: _Progress) -> None:
    """Takes the body, as far as it is taken.

    Raises:
        bodies.Damaged: it is not packed as it is said to be.
    """
    coding = response.headers.get("content-encoding", "")
    try:
        unpacker = bodies.Unpacker(coding)
    except bodies.Unknown:
        page.packed, unpacker = one_line(coding, 40), bodies.Unpacker("")
    data, packed, steps = bytearray(), 0, 0
    async for piece in _pieces(response):
        packed += len(piece)
        progress.said = f"it went on sending after {packed} bytes"
        for part in unpacker.feed(piece):
            data += part
            page.is_cut = len(data) > MOST_BODY or unpacker.work > bodies.MOST_WORK
            if page.is_cut:
                break
            steps += 1
            if steps % _STEPS_AT_ONCE == 0:
                await asyncio.sleep(0)
        page.is_cut = page.is_cut or packed > MOST_PACKED
        if page.is_cut:
            break
    else:
        unpacker.end()
    page.data = bytes(data[:MOST_BODY])


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream), "it comes from an asynchronous transport"
    async for piece in stream:
        yield piece


# ─── what went wrong ────────────────────────────────────────────────────────────────


def _error(target: Target, why: str) -> ToolError:
    facts = {"host": target.host, "port": target.port}
    return ToolError(Code.NETWORK_ERROR, f"{target.at} can't be fetched: {why}.", facts)


def _why(error: BaseException) -> str:
    """What happened, in words that tell one kind of failure from another."""
    said = one_line(str(error) or type(error).__name__, 300).rstrip(".")
    trust = _cause(error, ssl.SSLError)
    if trust is not None:
        why = getattr(trust, "verify_message", "") or getattr(trust, "reason", "") or said
        return f"TLS failed ({one_line(str(why), 300)}); what it shows has to be trusted"
    if isinstance(error, httpx.RemoteProtocolError | httpcore.RemoteProtocolError):
        return f"malformed reply: {said}"
    if isinstance(error, httpx.TimeoutException | httpcore.TimeoutException):
        return "it timed out"
    if isinstance(error, httpx.LocalProtocolError | httpcore.LocalProtocolError):
        return f"the request can't be sent: {said}"
    return f"the connection broke ({said})"


def _cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


# ─── the sandbox's own servers ──────────────────────────────────────────────────────


class _BoxTransport(httpx.AsyncBaseTransport):
    """HTTP to a port of the loopback in the box that runs commands.

    Certificates are not checked: nobody else is between, and a server there has none that
    anybody has signed.
    """

    def __init__(self, context: Context, target: Target) -> None:
        tls = None
        if target.kind is Kind.TUNNEL:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls, network_backend=_Backend(context, target), max_keepalive_connections=0
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`; errors are those of httpcore."""
        asked = lowered(request, request.headers.raw)
        answer = await self._pool.handle_async_request(asked)
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=Body(answer),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        """Ends its connection."""
        await self._pool.aclose()


class _Backend(httpcore.AsyncNetworkBackend):
    """Where httpcore gets its connection: a channel into the box."""

    def __init__(self, context: Context, target: Target) -> None:
        self._context = context
        self._target = target

    async def connect_tcp(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """See `httpcore.AsyncNetworkBackend`."""
        dial = self._context.loop.dial
        if dial is None:
            raise _error(self._target, "this loop has no way into its sandbox")
        return _Connection(await dial(self._target.port))

    async def sleep(self, seconds: float) -> None:
        """See `httpcore.AsyncNetworkBackend`."""
        await asyncio.sleep(seconds)


class _Connection(httpcore.AsyncNetworkStream):
    """A channel as httpcore has its connections. The time is the call's: no read has its own."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._left = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        most = min(max_bytes, MOST_READ)
        data = self._left or await self._stream.read(most)
        self._left = data[most:]
        return data[:most]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer)

    async def aclose(self) -> None:
        self._stream.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        secured = _Secured(self, ssl_context, server_hostname)
        await secured.begin()
        return secured

    def get_extra_info(self, info: str) -> Any:
        return None


class _Secured(httpcore.AsyncNetworkStream):
    """TLS over a connection that is no socket."""

    def __init__(
        self, inner: httpcore.AsyncNetworkStream, context: ssl.SSLContext, name: str | None
    ) -> None:
        self._inner = inner
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._going, server_hostname=name)

    async def begin(self) -> None:
        """The handshake."""
        await self._done(self._tls.do_handshake)

    async def _done(self, step: Any, *given: Any) -> Any:
        """What a step gives, once what it needs has come and what it has to say has gone."""
        while True:
            try:
                result = step(*given)
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._inner.read(1 << 16)
                if data:
                    self._coming.write(data)
                else:
                    self._coming.write_eof()
                continue
            await self._flush()
            return result

    async def _flush(self) -> None:
        if self._going.pending:
            await self._inner.write(self._going.read())

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            data: bytes = await self._done(self._tls.read, max_bytes)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._done(self._tls.write, buffer)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._tls if info == "ssl_object" else None
