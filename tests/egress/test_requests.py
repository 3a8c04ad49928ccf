"""Heads of requests: one meaning or none."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.egress import names
from executor.egress.policy import Kind, Reason
from executor.egress.refusal import Refused
from executor.egress.requests import (
    MAX_HEAD,
    Ask,
    head_end,
    onward,
    parse,
    target_of,
    trailers,
)

GET = b"GET http://files.example/a?b HTTP/1.1\r\nHost: files.example\r\n"


def read(head: bytes, piece: int = 1 << 16) -> Ask:
    """The request as it is read when it comes in pieces of this size."""
    data = bytearray()
    for at in range(0, len(head), piece):
        searched = len(data)
        data += head[at : at + piece]
        end = head_end(data, searched)
        if end is not None:
            return parse(bytes(data[:end]))
    raise AssertionError("the head does not end")


def refusal(head: bytes, piece: int = 1 << 16) -> Refused:
    """Why it is refused."""
    with pytest.raises(Refused) as caught:
        read(head, piece)
    return caught.value


@pytest.mark.parametrize("piece", [1, 3, 7, 1 << 16])
def test_a_request_goes_where_its_target_says(piece: int) -> None:
    """However its head comes in; a body behind it is not looked at."""
    ask = read(GET + b"X: 1\r\n\r\nbody\nof\nit", piece)
    assert (ask.target.kind, ask.target.host, ask.target.port) == (Kind.PLAIN, "files.example", 80)
    assert (ask.target.path, ask.target.authority) == ("/a?b", "files.example")


@pytest.mark.parametrize(
    ("method", "target", "found"),
    [
        ("CONNECT", "files.example:443", ("https", "files.example", 443, "")),
        ("CONNECT", "FILES.example.:8443", ("https", "files.example", 8443, "")),
        ("GET", "http://files.example", ("http", "files.example", 80, "/")),
        ("GET", "HTTP://Files.Example.:8080?x", ("http", "files.example", 8080, "/?x")),
        ("OPTIONS", "http://files.example", ("http", "files.example", 80, "*")),
        ("OPTIONS", "http://files.example/", ("http", "files.example", 80, "/")),
        (
            "GET",
            "http://files.example//evil.example/",
            ("http", "files.example", 80, "//evil.example/"),
        ),
        ("GET", "http://files.example/@evil", ("http", "files.example", 80, "/@evil")),
        ("GET", "http://127.0.0.1:8080/", ("http", "127.0.0.1", 8080, "/")),
    ],
)
def test_targets_that_are_taken(method: str, target: str, found: tuple[str, str, int, str]) -> None:
    """CONNECT with a port; http with or without one."""
    made = target_of(method, target)
    assert (made.kind.value, made.host, made.port, made.path) == found


@pytest.mark.statement("F2", "F5")
@pytest.mark.parametrize(
    ("method", "target", "reason"),
    [
        ("CONNECT", "files.example", Reason.TARGET),
        ("CONNECT", "files.example:", Reason.TARGET),
        ("CONNECT", "files.example:0", Reason.TARGET),
        ("CONNECT", "files.example:0443", Reason.TARGET),
        ("CONNECT", "files.example:65536", Reason.TARGET),
        ("CONNECT", "files.example:443:443", Reason.LITERAL),
        ("CONNECT", "files.example%00:443", Reason.TARGET),
        ("CONNECT", "files.example%00.evil.example:443", Reason.TARGET),
        ("CONNECT", "a@files.example:443", Reason.TARGET),
        ("CONNECT", "files.example:443@evil.example:443", Reason.TARGET),
        ("CONNECT", "http://files.example:443", Reason.LITERAL),
        ("CONNECT", "/files.example:443", Reason.TARGET),
        ("CONNECT", "2130706433:443", Reason.LITERAL),
        ("CONNECT", "0x7f.1:443", Reason.LITERAL),
        ("CONNECT", "0177.0.0.1:443", Reason.LITERAL),
        ("CONNECT", "127.1:443", Reason.LITERAL),
        ("CONNECT", "[fe80::1%eth0]:443", Reason.LITERAL),
        ("CONNECT", "::1:443", Reason.LITERAL),
        ("CONNECT", "*", Reason.TARGET),
        ("GET", "/a", Reason.TARGET),
        ("connect", "http://files.example/", Reason.TARGET),
        ("GET", "*", Reason.TARGET),
        ("GET", "files.example/a", Reason.TARGET),
        ("GET", "https://files.example/", Reason.TARGET),
        ("GET", "ftp://files.example/", Reason.TARGET),
        ("GET", "http:files.example/", Reason.TARGET),
        ("GET", "http:/files.example/", Reason.TARGET),
        ("GET", "http:///files.example/", Reason.TARGET),
        ("GET", "http://", Reason.TARGET),
        ("GET", "http://files.example:80@evil.example/", Reason.TARGET),
        ("GET", "http://user:key@files.example/", Reason.TARGET),
        ("GET", "http://@files.example/", Reason.TARGET),
        ("GET", "http://files.example\\@evil.example/", Reason.TARGET),
        ("GET", "http://files.example\\.evil.example/", Reason.TARGET),
        ("GET", "http://files.example/#a", Reason.TARGET),
        ("GET", "http://files.example#@evil.example/", Reason.TARGET),
        ("GET", "http://%66iles.example/", Reason.TARGET),
        ("GET", "http://files.example:080/", Reason.TARGET),
        ("GET", "http://files.example:/", Reason.TARGET),
        ("GET", "http://files..example/", Reason.TARGET),
        ("GET", "http://[::1/", Reason.LITERAL),
        ("GET", "http://127.1/", Reason.LITERAL),
    ],
)
def test_targets_that_are_not(method: str, target: str, reason: Reason) -> None:
    """Other forms, hosts that are none, users, fragments, odd ports."""
    with pytest.raises(Refused) as caught:
        target_of(method, target)
    assert caught.value.reason is reason
    assert caught.value.is_denial


_PIECES = st.sampled_from(
    [
        *("http://", "files.example", "evil.example", ":80", ":443", "@", "/", "\\", "#", "?"),
        *("%00", ".", "..", "127.0.0.1", "[::1]", "0x7f.1", "A", "xn--a", "*", " ", "\0", "é"),
        *(":", "//"),
    ]
)


@pytest.mark.statement("F5")
@settings(deadline=None)
@given(
    st.sampled_from(["GET", "CONNECT", "OPTIONS"]),
    st.text(max_size=30) | st.lists(_PIECES, max_size=8).map("".join),
)
def test_what_is_taken_is_the_canonical_host_of_the_text(method: str, target: str) -> None:
    """Whatever is accepted: the text holds this host, alone, where a host belongs."""
    try:
        made = target_of(method, target)
    except Refused:
        return
    assert names.host_of(made.host) == made.host
    assert 1 <= made.port <= 65535
    scheme = "" if method == "CONNECT" else "http://"
    assert target.lower().startswith(scheme + made.host)
    rest = target[len(scheme + made.host) :].removeprefix(".")
    rest = rest.removeprefix(f":{made.port}")
    assert not rest or (method != "CONNECT" and rest[0] in "/?")


@pytest.mark.statement("F5", "F12")
@pytest.mark.parametrize("piece", [1, 1 << 16])
@pytest.mark.parametrize(
    "head",
    [
        GET + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        GET + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        GET + b"Transfer-Encoding: x, chunked\r\n\r\n",
        GET + b"Transfer-Encoding: chunked, chunked\r\n\r\n",
        GET + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        GET + b"Transfer-Encoding: identity\r\n\r\n",
        GET + b"Transfer-Encoding : chunked\r\n\r\n",
        GET + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
        GET + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
        GET + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
        GET + b"Content-Length: 3, 3\r\n\r\n",
        GET + b"Content-Length: +3\r\n\r\n",
        GET + b"Content-Length: -3\r\n\r\n",
        GET + b"Content-Length: 0x3\r\n\r\n",
        GET + b"Content-Length: 3 3\r\n\r\n",
        GET + b"Content-Length:\r\n\r\n",
        GET + b"Content-Length: 99999999999999999999999\r\n\r\n",
        GET + b"X: 1\n\r\n",
        GET + b"X: 1\n\n",
        GET.replace(b"\r\n", b"\n") + b"\n",
        GET + b"X: 1\rY: 2\r\n\r\n",
        GET + b"X: a\r\n b\r\n\r\n",
        GET + b"X: a\r\n\tContent-Length: 3\r\n\r\n",
        GET + b" X: a\r\n\r\n",
        GET + b"X: a\0b\r\n\r\n",
        GET + b"X\0: a\r\n\r\n",
        GET + b"X Y: a\r\n\r\n",
        GET + b": a\r\n\r\n",
        GET + b"X\r\n\r\n",
        GET + b"Host: files.example\r\n\r\n",
        b"GET http://files.example/ HTTP/1.1\r\n\r\n",
        b"GET http://files.example/ HTTP/1.1\r\n\r\n" + GET + b"\r\n",
        b"GET http://files.example/\0 HTTP/1.1\r\nHost: files.example\r\n\r\n",
        b"GET http://files.example/ x HTTP/1.1\r\nHost: files.example\r\n\r\n",
        b"GET  http://files.example/ HTTP/1.1\r\nHost: files.example\r\n\r\n",
        b"GET http://files.example/\xc3\xa9 HTTP/1.1\r\nHost: files.example\r\n\r\n",
        b"GET http://files.example/\r\n\r\n",
        b"GET http://files.example/ HTTP/2.0\r\nHost: files.example\r\n\r\n",
        b"GET http://files.example/ HTTP/1.2\r\nHost: files.example\r\n\r\n",
        b"GET http://files.example/ HTTP/0.9\r\nHost: files.example\r\n\r\n",
        b"GET http://files.example/ http/1.1\r\nHost: files.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST http://files.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"CONNECT files.example:443 HTTP/1.1\r\nHost: files.example\r\nContent-Length: 3\r\n\r\n",
        b"CONNECT files.example:443 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\r\n" + GET + b"\r\n",
        b"\x16\x03\x01\x00\x05hello\r\n\r\n",
        b"\x05\x01\x00\r\n\r\n",
    ],
)
def test_a_head_with_two_readings_is_malformed(head: bytes, piece: int) -> None:
    """As h11 finds, and where h11 is lenient: 400, before anything else is looked at."""
    refused = refusal(head, piece)
    assert (refused.reason, refused.status) == (Reason.MALFORMED, 400)
    assert refused.response().startswith(b"HTTP/1.1 400 ")


@pytest.mark.statement("F8")
@pytest.mark.parametrize(
    "host",
    [
        *(b"evil.example", b"files.example.evil.example", b"files.example:81", b"", b"[::1]"),
        *(b"a@files.example", b"files.example, evil.example", b"files.example/", b"\xe9"),
        b"files.example:80:80",
    ],
)
def test_the_host_header_is_the_target(host: bytes) -> None:
    """Any other is refused: a server could answer for that one."""
    head = b"GET http://files.example/ HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
    refused = refusal(head)
    assert (refused.reason, refused.status) == (Reason.HOST_MISMATCH, 403)


@pytest.mark.parametrize("host", [b"files.example", b"FILES.example.", b"files.example:80"])
def test_the_host_header_may_be_spelt_otherwise(host: bytes) -> None:
    """What goes on is the canonical one."""
    ask = read(b"GET http://files.example/ HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert onward(ask)[0] == (b"Host", b"files.example")


@pytest.mark.parametrize("host", [b"files.example", b"files.example:443"])
def test_connect_has_a_host_header_with_or_without_the_port(host: bytes) -> None:
    """Clients differ in that; another host or port is refused."""
    line = b"CONNECT files.example:443 HTTP/1.1\r\nHost: "
    assert read(line + host + b"\r\n\r\n").target.host == "files.example"
    for other in (b"evil.example:443", b"files.example:80"):
        assert refusal(line + other + b"\r\n\r\n").reason is Reason.HOST_MISMATCH


@pytest.mark.statement("F11")
def test_a_head_has_a_size() -> None:
    """64 KiB and 100 headers, seen before the head is whole."""
    many = GET + b"".join(b"X-%d: 1\r\n" % number for number in range(99)) + b"\r\n"
    assert len(read(many).request.headers) == 100
    refused = refusal(GET + b"".join(b"X-%d: 1\r\n" % number for number in range(100)) + b"\r\n")
    assert (refused.reason, refused.status) == (Reason.HEAD, 431)
    endless = bytearray(GET + b"X: " + b"a" * MAX_HEAD)
    with pytest.raises(Refused) as caught:
        head_end(endless, 0)
    assert caught.value.reason is Reason.HEAD
    fitting = GET + b"X: " + b"a" * (MAX_HEAD - len(GET) - 7) + b"\r\n\r\n"
    assert len(fitting) == MAX_HEAD
    assert read(fitting, 4096)
    assert refusal(fitting.replace(b"X: ", b"X: a"), 4096).reason is Reason.HEAD


def test_what_is_for_one_connection_stays_on_it() -> None:
    """Hop-by-hop headers, those that `Connection` names, and all of proxies."""
    ask = read(
        GET + b"Connection: close, X-Mine, Content-Length, Host\r\nX-Mine: 1\r\nKeep-Alive: 5\r\n"
        b"Proxy-Authorization: Basic eA==\r\nPROXY-CONNECTION: keep-alive\r\nTE: trailers\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: x\r\nTrailer: X\r\nContent-Length: 3\r\n"
        b"X-Case: Kept\r\n\r\n"
    )
    assert onward(ask) == [
        (b"Host", b"files.example"),
        (b"Content-Length", b"3"),
        (b"X-Case", b"Kept"),
    ]
    chunked = read(GET + b"Transfer-Encoding: CHUNKED\r\nConnection: transfer-encoding\r\n\r\n")
    assert (b"Transfer-Encoding", b"chunked") in onward(chunked)


def test_a_request_of_http_1_0_needs_no_host_header() -> None:
    """Its target says it; the server gets it."""
    ask = read(b"GET http://files.example:8080/ HTTP/1.0\r\nExpect: 100-continue\r\n\r\n")
    assert onward(ask) == [(b"Host", b"files.example:8080")]


def test_fields_behind_a_body_change_nothing_of_its_head() -> None:
    """What they can't be is left out."""
    given = [(b"Content-Length", b"3"), (b"Host", b"x"), (b"Authorization", b"x"), (b"Sum", b"1")]
    assert trailers(given) == [(b"Sum", b"1")]


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_are_a_request_or_refused(data: bytes, begin: int) -> None:
    """Nothing but `Refused` comes of noise."""
    head = [b"", b"GET ", GET, GET + b"X: "][begin] + data + b"\r\n\r\n"
    try:
        ask = read(head)
    except Refused as refused:
        assert 400 <= refused.status < 500
        return
    written = h11.Connection(h11.CLIENT).send(
        h11.Request(method=ask.request.method, target=ask.target.path or "/", headers=onward(ask))
    )
    assert written is not None
    assert written.count(b"\n") == written.count(b"\r\n")
