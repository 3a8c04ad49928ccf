"""Requests of boxes, read by h11 and made unambiguous, and the answers on their way back.

h11 is lenient where servers have to be. What it takes and is refused here: line ends without CR,
folded lines, `Content-Length` twice or with `Transfer-Encoding`, HTTP versions but 1.0 and 1.1,
and targets that two readers could read in two ways. What is sent on is written by h11 anew, from
what was understood: no byte of a head is passed on as it came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import h11

from executor.egress.names import IsAnAddress, NotAName, host_of, split
from executor.egress.policy import Kind, Reason
from executor.egress.refusal import Refused

Headers: TypeAlias = list[tuple[bytes, bytes]]

MAX_HEAD = 1 << 16
MAX_HEADERS = 100
_ABSOLUTE = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#]*)(.*)", re.IGNORECASE)
_LENGTH = re.compile(rb"^content-length:([^\r]*)", re.IGNORECASE | re.MULTILINE)
_TOKEN_START = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")
_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"te", b"upgrade", b"http2-settings"),
        *(b"transfer-encoding", b"trailer", b"x-executor-egress"),
    }
)
"""Headers of one connection (RFC 9110, 7.6.1), and ours, which no server says in our name."""
_FRAMING = frozenset({b"content-length", b"host"})
"""What `Connection` can't take out of a message."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes.

    Attributes:
        kind: `TUNNEL` for CONNECT.
        host: canonical.
        path: as it came, with its query; empty for CONNECT.
    """

    kind: Kind
    host: str
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """The `Host` header of a plain request."""
        return self.host if self.port == 80 else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request whose head was read.

    Attributes:
        target: where it goes.
        request: its head.
        connection: h11's, which reads its body and writes its answer.
    """

    target: Target
    request: h11.Request
    connection: h11.Connection

    @property
    def is_read(self) -> bool:
        """Nothing of it is still to come."""
        return self.connection.their_state is not h11.SEND_BODY


def head_end(data: bytearray, searched: int) -> int | None:
    """Where the head that the bytes begin with ends; None = there is more to come.

    Args:
        data: what came.
        searched: how much of it was looked at before.

    Raises:
        Refused: it can't become a head any more.
    """
    if not _TOKEN_START.match(data):
        raise Refused(Reason.MALFORMED, detail="it is no HTTP request (this is an HTTP proxy)")
    start = max(searched - 3, 0)
    end = data.find(b"\r\n\r\n", start)
    if end > MAX_HEAD - 4 or (end < 0 and len(data) > MAX_HEAD):
        raise Refused(Reason.HEAD, detail=f"more than {MAX_HEAD} bytes")
    at = data.find(b"\n", start, end if end >= 0 else len(data))
    while at >= 0:
        if at == 0 or data[at - 1] != 13:
            raise Refused(Reason.MALFORMED, detail="a line that does not end in CR LF")
        at = data.find(b"\n", at + 1, end if end >= 0 else len(data))
    return end + 4 if end >= 0 else None


def parse(head: bytes) -> Ask:
    """Reads a whole head, with the empty line that ends it.

    Raises:
        Refused: it is not a request that has one meaning.
    """
    _check_lines(head)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
    try:
        connection.receive_data(head)
        request = connection.next_event()
    except h11.RemoteProtocolError as error:
        # What follows the colon are bytes of the request.
        raise Refused(Reason.MALFORMED, detail=str(error).partition(":")[0]) from error
    if not isinstance(request, h11.Request):
        raise Refused(Reason.MALFORMED, detail="no request line")
    _check_framing(request, head)
    target = target_of(request.method.decode("ascii"), request.target.decode("ascii"))
    _check_host(request, target)
    if target.kind is Kind.PLAIN:
        connection.next_event()  # the end, of a request without a body; else nothing yet
    return Ask(target, request, connection)


def _check_lines(head: bytes) -> None:
    lines = head.split(b"\r\n")[:-2]
    if any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines):
        raise Refused(Reason.MALFORMED, detail="a control character in its head")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise Refused(Reason.MALFORMED, detail="a folded header line")
    if len(lines) - 1 > MAX_HEADERS:
        raise Refused(Reason.HEAD, detail=f"more than {MAX_HEADERS} headers")


def _check_framing(request: h11.Request, head: bytes) -> None:
    """One length, known one way (RFC 9112, 6.3)."""
    if request.http_version not in (b"1.0", b"1.1"):
        raise Refused(Reason.MALFORMED, detail="its HTTP version is neither 1.0 nor 1.1")
    lengths = _LENGTH.findall(head)
    is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    if len(lengths) > 1 or any(b"," in length for length in lengths):
        raise Refused(Reason.MALFORMED, detail="more than one Content-Length")
    if lengths and is_chunked:
        raise Refused(Reason.MALFORMED, detail="both Content-Length and Transfer-Encoding")
    if is_chunked and request.http_version == b"1.0":
        raise Refused(Reason.MALFORMED, detail="Transfer-Encoding in HTTP/1.0")
    if request.method == b"CONNECT" and (is_chunked or any(int(one) for one in lengths)):
        raise Refused(Reason.MALFORMED, detail="a body with CONNECT")


def target_of(method: str, target: str) -> Target:
    """Reads the target of a request line, as proxies get it.

    Raises:
        Refused: it is another form, or names no host that could be judged.
    """
    if method == "CONNECT":
        host, port = _place(target)
        if port is None:
            raise Refused(Reason.TARGET, target, detail="CONNECT without a port")
        return Target(Kind.TUNNEL, host, port)
    match = _ABSOLUTE.fullmatch(target)
    if method.upper() == "CONNECT":  # which a lenient server would take for the real one
        raise Refused(Reason.TARGET, detail="CONNECT in lower case")
    if match is None:
        raise Refused(Reason.TARGET, detail="no URL (this is an HTTP proxy)")
    scheme, authority, path = match.groups()
    if scheme.lower() != "http":
        raise Refused(Reason.TARGET, detail="no http:// URL; https goes by CONNECT")
    if "#" in path:
        raise Refused(Reason.TARGET, detail="a fragment")
    host, port = _place(authority)
    if not path.startswith("/"):
        path = "*" if method == "OPTIONS" and not path else f"/{path}"
    return Target(Kind.PLAIN, host, port or 80, path)


def _place(authority: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise Refused(Reason.TARGET, detail="a user in it; send credentials in a header")
    host, port = authority, None
    try:
        host, port = split(authority)
        return host_of(host), port
    except IsAnAddress:
        raise Refused(Reason.LITERAL, host, port or 0) from None
    except NotAName as fault:
        raise Refused(Reason.TARGET, authority, detail=f"its host {fault}") from None


def _check_host(request: h11.Request, target: Target) -> None:
    """`Host` is where the request goes: else a server could take it for another's."""
    for name, value in request.headers:
        if name != b"host":
            continue
        try:
            host, port = split(value.decode("ascii"))
            same = host_of(host) == target.host
        except (NotAName, UnicodeDecodeError):
            same, port = False, None
        if target.kind is Kind.PLAIN:
            port = port or 80
        if not same or port not in (None, target.port):
            raise Refused(Reason.HOST_MISMATCH, target.host, target.port)


def is_switching(request: h11.Request) -> bool:
    """Whether it asks for a protocol that can't be carried. HTTP/2 is an offer: it is left out."""
    asked = [value.lower() for name, value in request.headers if name == b"upgrade"]
    return any(b"websocket" in value for value in asked)


def onward(ask: Ask) -> Headers:
    """The headers that the other end gets, `Host` first."""
    kept = end_to_end(ask.request.headers.raw_items())
    is_chunked = any(name == b"transfer-encoding" for name, _ in ask.request.headers)
    is_old = ask.request.http_version == b"1.0"
    return [
        (b"Host", ask.target.authority.encode("ascii")),
        *((b"Transfer-Encoding", b"chunked") for _ in range(is_chunked)),
        *(
            (name, value)
            for name, value in kept
            if name.lower() != b"host" and not (is_old and name.lower() == b"expect")
        ),
    ]


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Without what is meant for one connection, or for a proxy."""
    items = list(headers)
    named = {
        one.strip().lower()
        for name, value in items
        if name.lower() == b"connection"
        for one in value.split(b",")
    }
    dropped = _HOP | (named - _FRAMING)
    return [
        (name, value)
        for name, value in items
        if name.lower() not in dropped and not name.lower().startswith(b"proxy-")
    ]


def trailers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Of the fields behind a body, those that don't change what its head said (RFC 9110, 6.5.1)."""
    refused = _FRAMING | {b"authorization", b"set-cookie", b"content-type", b"content-encoding"}
    return [(name, value) for name, value in end_to_end(headers) if name.lower() not in refused]
