"""The proxy that boxes speak to: who is let through, and what is carried, byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import zlib
from pathlib import Path
from typing import Any

import pytest

from executor.bytestream import StreamClosed
from executor.egress import Broker, Waits
from executor.egress.inbox import LINGER
from executor.egress.policy import Kind
from executor.egress.secrets import Secrets
from executor.errors import ConfigError
from executor.model import EgressOptions, Secret
from tests.egress.proxying import (
    BOX,
    NAME,
    OK,
    SOON,
    Client,
    Proxy,
    Server,
    certificate,
    client_hello,
    get,
    parts,
    proxy,
    run,
    saying,
    serving,
)


def connect(host: str = NAME, port: int = 443) -> bytes:
    """A request for a tunnel."""
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends back what comes, and ends when it ends."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


# ─── who is let through ─────────────────────────────────────────────────────────────


@pytest.mark.statement("F1", "F14")
@pytest.mark.parametrize(
    ("request_", "host", "port", "reason"),
    [
        (connect("evil.example"), "evil.example", 443, "host_not_allowed"),
        (connect("files.example.evil.example"), "files.example.evil.example", 443, ""),
        (connect("dns.example"), "dns.example", 443, "host_not_allowed"),
        (connect("files.example", 853), "files.example", 853, "port_not_allowed"),
        (connect("files.example", 80), "files.example", 80, "port_not_allowed"),
        (connect("files.example", 22), "files.example", 22, "port_not_allowed"),
        (
            b"GET http://evil.example/q?key=1 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            "evil.example",
            80,
            "host_not_allowed",
        ),
        (
            b"GET http://files.example:443/ HTTP/1.1\r\nHost: files.example:443\r\n\r\n",
            "files.example",
            443,
            "port_not_allowed",
        ),
    ],
)
def test_what_is_not_on_the_list_is_denied_and_no_name_server_asked(
    tmp_path: Path, request_: bytes, host: str, port: int, reason: str
) -> None:
    """403, with a reason for programs, a sentence for people, and not one query."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example") as made:
            status, said = await (await made.open()).refusal(request_)
            assert status == 403
            assert said.pop("message").startswith(host)
            assert said == {
                "error": "egress_denied",
                "reason": reason or "host_not_allowed",
                "host": host,
                "port": port,
            }
            assert made.names.asked == []
            assert made.broker.used.denials == 1

    run(scenario())


def test_a_refusal_of_connect_says_why_in_its_first_line(tmp_path: Path) -> None:
    """Of the answer to CONNECT, most clients show no more."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example") as made:
            client = await made.open()
            await client.send(connect("evil.example"))
            first = (await client.head()).split(b"\r\n")[0]
            assert b"evil.example:443 is not on the list" in first
            assert first.endswith(b"--egress evil.example")
            client = await made.open()
            await client.send(connect("evil.example", 8443))
            first = (await client.head()).split(b"\r\n")[0]
            # Without the port the rule would not be enough.
            assert first.endswith(b"--egress evil.example:8443")

    run(scenario())


@pytest.mark.statement("F2")
@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1", "[::ffff:169.254.169.254]"),
        *("[::1]", "[fe80::1%eth0]", "[64:ff9b::a9fe:a9fe]", "169.254.169.254"),
    ],
)
def test_an_address_is_no_host(tmp_path: Path, host: str) -> None:
    """In any spelling, and though a server listens there and a rule allows its port."""

    async def scenario() -> None:
        async with serving(echo) as server, proxy(tmp_path, f"{NAME}:{server.port}") as made:
            status, said = await (await made.open()).refusal(connect(host, server.port))
            assert (status, said["reason"]) == (403, "ip_literal")
            assert (made.names.asked, server.connections) == ([], 0)

    run(scenario())


@pytest.mark.statement("F3")
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "192.0.0.1"),
        *("198.18.0.1", "224.0.0.1", "240.0.0.1", "fd00::1", "fe80::1", "::1", "64:ff9b::a00:1"),
        "::ffff:127.0.0.1",
    ],
)
def test_an_allowed_name_that_leads_to_a_private_address_is_denied(
    tmp_path: Path, address: str
) -> None:
    """It is said that it does, and nothing is dialled."""

    async def scenario() -> None:
        async with serving(echo) as server:
            async with proxy(tmp_path, f"files.example:{server.port}") as made:
                made.names.answers["files.example"] = address
                client = await made.open()
                status, said = await client.refusal(connect("files.example", server.port))
                assert (status, said["reason"]) == (403, "address_not_allowed")
                assert made.names.asked == ["files.example"]
            assert server.connections == 0

    run(scenario())


def test_a_private_host_is_never_a_metadata_service(tmp_path: Path) -> None:
    """Whatever an operator lists as private."""

    async def scenario() -> None:
        async with proxy(tmp_path, NAME) as made:
            for address in ("169.254.169.254", "fd00:ec2::254", "::ffff:100.100.100.200"):
                made.names.answers[NAME] = address
                _, said = await (await made.open()).refusal(connect())
                assert said["reason"] == "address_not_allowed"
                assert "metadata" in said["message"]

    run(scenario())


def test_an_address_that_an_operator_has_listed_is_reached_as_it_is(tmp_path: Path) -> None:
    """Without a name server; its TLS hello names nobody, as such hellos do."""

    async def scenario() -> None:
        async with serving(echo) as server:
            at = f"127.0.0.1:{server.port}"
            async with proxy(tmp_path, at, private=["127.0.0.1"]) as made:
                client = await made.open()
                await client.send(connect("127.0.0.1", server.port))
                assert (await client.head()).startswith(b"HTTP/1.1 200 ")
                hello = client_hello(None)
                await client.send(hello)
                assert await client.reader.readexactly(len(hello)) == hello
                assert made.names.asked == []

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (None, 502, "name_not_found"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), 502, "name_server_failed"),
        ([], 502, "name_not_found"),
    ],
)
def test_a_name_that_leads_nowhere(tmp_path: Path, answer: Any, status: int, reason: str) -> None:
    """Is told from one that is not allowed."""

    def answers() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example") as made:
            made.names.answers["files.example"] = answers
            found = await (await made.open()).refusal(connect("files.example"))
            assert (found[0], found[1]["reason"]) == (status, reason)
            assert found[1]["error"] == "egress_failed"

    run(scenario())


def test_a_port_where_nothing_listens(tmp_path: Path) -> None:
    """502, and what to check."""

    async def scenario() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            async with proxy(tmp_path, f"{NAME}:{port}") as made:
                status, said = await (await made.open()).refusal(connect(NAME, port))
                assert (status, said["reason"]) == (502, "connection_refused")

    run(scenario())


@pytest.mark.statement("F13")
def test_a_box_is_judged_as_itself(tmp_path: Path) -> None:
    """One that is set up reaches more than another, and only until it is set up."""

    async def scenario() -> None:
        async with serving(saying(OK)) as server:
            host = f"{NAME}:{server.port}"
            async with proxy(tmp_path, setup_hosts=(host,)) as made:
                made.broker.set_up("box-a")
                other = await made.open("net", "box-b")
                assert (await other.refusal(get(server)))[1]["reason"] == "no_egress"
                first = await made.open("no-net", "box-a")
                await first.send(get(server))
                assert (await first.head()).startswith(b"HTTP/1.1 200 ")
                assert await first.reader.readexactly(2) == b"hi"
                while not made.broker.used.requests:
                    await asyncio.sleep(0)
                made.broker.set_up_done("box-a")
                status, said = await first.refusal(get(server))
                assert (status, said["reason"]) == (403, "no_egress")
                lines = await made.lines()
                seen = [(line["sandbox"], line["lane"], line["verdict"]) for line in lines]
                assert seen == [
                    ("box-b", "net", "deny"),
                    ("box-a", "no-net", "allow"),
                    ("box-a", "no-net", "deny"),
                ]
                assert [line["down"] > 0 for line in lines] == [False, True, False]

    run(scenario())


def test_a_lane_without_egress_has_none(tmp_path: Path) -> None:
    """Though its loop has, and its box has the proxy."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example") as made:
            closed = await made.open("no-net", "box-a")
            _, said = await closed.refusal(connect("files.example"))
            assert said["reason"] == "no_egress"
            made.broker.set_up("box-a")
            again = await made.open("no-net", "box-a")
            _, said = await again.refusal(connect("files.example"))
            assert said["reason"] == "name_not_found"

    run(scenario())


def test_what_was_denied_lately_can_be_asked_for(tmp_path: Path) -> None:
    """The latest of each host, as a sentence, by lane and by time."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example") as made:
            for host in ("a.example", "b.example", "a.example", "files.example"):
                await (await made.open()).refusal(connect(host))
            await (await made.open("no-net", "box-b")).refusal(connect("c.example"))
            found = made.broker.denied_recently(60.0)
            hosts = ["a.example", "b.example", "files.example", "c.example"]
            assert [refused.host for refused in found] == hosts
            assert str(found[0]).startswith("a.example:443 is not on the list")
            assert len(made.broker.denied_recently(60.0, "no-net")) == 1
            assert made.broker.denied_recently(-1.0) == []

    run(scenario())


# ─── TLS ────────────────────────────────────────────────────────────────────────────


async def tunnel(made: Proxy, server: Server) -> Client:
    """A connection whose CONNECT was answered with 200."""
    client = await made.open()
    await client.send(connect(NAME, server.port))
    assert await client.head() == b"HTTP/1.1 200 Connection established\r\n\r\n"
    return client


@pytest.mark.statement("F7")
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (client_hello("evil.example"), "sni_mismatch"),
        (client_hello(f"a.{NAME}"), "sni_mismatch"),
        (client_hello(None), "no_sni"),
        (b"GET / HTTP/1.1\r\n\r\n", "not_tls"),
        (b"SSH-2.0-OpenSSH\r\n", "not_tls"),
        (b"\x16\x03\x01", "too_slow"),
        (b"", "too_slow"),
    ],
)
def test_a_hello_for_another_server_does_not_reach_any(
    tmp_path: Path, sent: bytes, reason: str
) -> None:
    """Not one byte; the client gets the alert that TLS has for it."""

    async def scenario() -> None:
        has_ended = asyncio.Event()

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while piece := await reader.read(1 << 16):
                    server.seen += piece
            finally:
                has_ended.set()

        async with serving(keep) as server:
            waits = Waits(head=0.3)
            async with proxy(tmp_path, f"{NAME}:{server.port}", waits=waits) as made:
                client = await tunnel(made, server)
                await client.send(sent)
                assert await client.rest() == b"\x15\x03\x03\x00\x02\x02\x31"
                lines = await made.lines()
                assert [(line["verdict"], line["reason"]) for line in lines] == [("deny", reason)]
                assert (lines[0]["host"], lines[0]["port"]) == (NAME, server.port)
            await has_ended.wait()
            assert (server.connections, bytes(server.seen)) == (1, b"")

    run(scenario())


def test_tls_goes_through_as_it_is(tmp_path: Path) -> None:
    """A real handshake and 4 MiB each way, with half closes; certificates are the server's."""
    made_for, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made_for, key)
    sent = zlib.compress(b"x") + bytes(range(256)) * (1 << 14)

    async def scenario() -> None:
        async with serving(echo, tls) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await tunnel(made, server)
                trust = ssl.create_default_context(cafile=str(made_for))
                await client.writer.start_tls(trust, server_hostname=NAME)
                back = asyncio.create_task(client.reader.readexactly(len(sent)))
                await client.send(sent)
                assert hashlib.sha256(await back).digest() == hashlib.sha256(sent).digest()
                lines = await made.lines()
                assert len(lines) == 1
                assert lines[0]["scheme"] == "https"
                assert lines[0]["up"] > len(sent) < lines[0]["down"]

    run(scenario())


def test_each_direction_of_a_tunnel_ends_by_itself(tmp_path: Path) -> None:
    """What a server sends after its client has ended still arrives."""
    hello = client_hello(NAME)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = await reader.read()
        writer.write(b"seen %d" % len(seen))

    async def scenario() -> None:
        async with serving(answer) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await tunnel(made, server)
                await client.send(hello[:7])
                await client.send(hello[7:] + b"more")
                client.writer.write_eof()
                assert await client.rest() == b"seen %d" % (len(hello) + 4)
                await client.served

    run(scenario())


# ─── plain HTTP ─────────────────────────────────────────────────────────────────────


def test_a_request_reaches_its_server_rewritten(tmp_path: Path) -> None:
    """In origin form, with the one Host, without what was for the proxy."""
    seen: list[bytes] = []

    async def scenario() -> None:
        async with serving(saying(OK, seen)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                more = "Proxy-Authorization: x\r\nContent-Length: 3\r\nX-Mine: 1\r\n"
                client = await made.open()
                await client.send(get(server, "/a?b=c", more, "POST") + b"abc")
                assert (await client.head()).startswith(b"HTTP/1.1 200 OK\r\n")
            assert seen == [
                b"POST /a?b=c HTTP/1.1\r\nHost: %s:%d\r\nContent-Length: 3\r\nX-Mine: 1\r\n"
                b"\r\nabc" % (NAME.encode(), server.port)
            ]

    run(scenario())


@pytest.mark.parametrize(
    ("method", "answer", "body"),
    [
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        ("GET", b"HTTP/1.1 200 OK\r\n\r\nhello", b"hello"),
        ("GET", b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (
            "GET",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n"
            b"Sum: 1\r\nContent-Length: 9\r\n\r\n",
            b"hello",
        ),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        (
            "GET",
            b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"",
        ),
        ("GET", b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nKeep-Alive: 5\r\n\r\n", b""),
    ],
)
def test_answers_keep_their_bodies_whatever_frames_them(
    tmp_path: Path, method: str, answer: bytes, body: bytes
) -> None:
    """And after each, the connection takes the next request, sent ahead or not."""

    async def scenario() -> None:
        async with serving(saying(answer)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                last = get(server, "/2", "Connection: close\r\n", method)
                await client.send(get(server, "/1", "", method) + last)
                answers = await client.rest()
                assert answers.count(b"HTTP/1.1 ") == 2 * answer.count(b"HTTP/1.")
                assert answers.count(b"Keep-Alive") == 0
                if b"chunked" in answers:
                    assert (
                        answers.count(
                            b"5\r\nhello\r\n0\r\n" if body and b";x" not in answer else b"0\r\n"
                        )
                        >= 2
                    )
                    assert answers.count(b"Sum: 1") == 2 * answer.count(b"Sum: 1")
                    assert b"Content-Length: 9" not in answers
                else:
                    assert answers.endswith(body)
                assert made.broker.used.requests == 2

    run(scenario())


def numbered(*closing: int) -> Any:
    """Answers request after request with its number; ends the connection before some of them."""
    count = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while True:
            await reader.readuntil(b"\r\n\r\n")
            count += 1
            if count in closing:
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%02d" % count)
            await writer.drain()

    return answer


def test_one_connection_to_a_server_takes_the_requests_of_one_client(tmp_path: Path) -> None:
    """Not those of another client, and not those for another port of the host."""

    async def scenario() -> None:
        async with serving(numbered()) as server, serving(numbered()) as other:
            hosts = (f"{NAME}:{server.port}", f"{NAME}:{other.port}")
            async with proxy(tmp_path, *hosts) as made:
                client = await made.open()
                for number in range(3):
                    await client.send(get(server, "/", f"X: {number}\r\n"))
                    assert (await client.head()).startswith(b"HTTP/1.1 200 ")
                    assert int(await client.reader.readexactly(2)) == number + 1
                assert (server.connections, made.names.asked) == (1, [NAME])
                await client.send(get(other))
                assert (await client.head()).startswith(b"HTTP/1.1 200 ")
                await client.reader.readexactly(2)
                second = await made.open()
                await second.send(get(server))
                assert (await second.head()).startswith(b"HTTP/1.1 200 ")
                assert (server.connections, other.connections) == (2, 1)
                while made.broker.used.requests < 5:
                    await asyncio.sleep(0)
                made.broker.change([f"{NAME}:{other.port}"])
                assert await second.reader.readexactly(2) == b"04"
                for one in (client, second):
                    status, said = await one.refusal(get(server))
                    assert (status, said["reason"]) == (403, "port_not_allowed")

    run(scenario())


def test_a_server_that_ends_a_kept_connection_gets_the_request_on_another(tmp_path: Path) -> None:
    """Where it does no harm to have come twice, and nothing of an answer was there."""

    async def scenario() -> None:
        async with serving(numbered(2, 4)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                for found in (b"01", b"03"):
                    await client.send(get(server))
                    assert (await client.head()).startswith(b"HTTP/1.1 200 ")
                    assert await client.reader.readexactly(2) == found
                assert server.connections == 2
                more = "Content-Length: 1\r\n"
                status, said = await client.refusal(get(server, "/", more, "POST") + b"x")
                assert (status, said["reason"]) == (502, "upstream_failed")
                assert server.connections == 2

    run(scenario())


def test_bodies_go_both_ways_at_once_in_chunks(tmp_path: Path) -> None:
    """An answer may begin before its request has ended; trailers come through."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (size := int(await reader.readline(), 16)) > 0:
            data = await reader.readexactly(size + 2)
            writer.write(b"%x\r\n%s" % (size, data))
        trailer = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"0\r\n" + trailer)

    async def scenario() -> None:
        async with serving(answer) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                await client.send(get(server, "/", "Transfer-Encoding: chunked\r\n", "POST"))
                assert b"chunked" in await client.head()
                for part in (b"one", b"three"):
                    await client.send(b"%x\r\n%s\r\n" % (len(part), part))
                    assert await client.reader.readuntil(part + b"\r\n")
                await client.send(b"0\r\nSum: 8\r\n\r\n")
                assert await client.reader.readuntil(b"\r\n\r\n") == b"0\r\nSum: 8\r\n\r\n"

    run(scenario())


def test_a_client_may_wait_for_leave_to_send_its_body(tmp_path: Path) -> None:
    """`Expect: 100-continue` is the server's to answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Expect: 100-continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(3) == b"abc"
        writer.write(OK)

    async def scenario() -> None:
        async with serving(answer) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                more = "Expect: 100-continue\r\nContent-Length: 3\r\n"
                await client.send(get(server, "/", more, "POST"))
                assert (await client.head()).startswith(b"HTTP/1.1 100 ")
                await client.send(b"abc")
                assert (await client.head()).startswith(b"HTTP/1.1 200 ")

    run(scenario())


def test_an_answer_may_come_before_its_request_has(tmp_path: Path) -> None:
    """Of a body that a server does not want, the rest is left; the connection ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()

    async def scenario() -> None:
        async with serving(answer) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                await client.send(get(server, "/", "Content-Length: 99999999\r\n", "POST"))
                status, headers, body = parts(await client.rest())
                assert (status, headers["connection"], body) == (413, "close", b"no")

    run(scenario())


def test_clients_of_http_1_0_are_served(tmp_path: Path) -> None:
    """With bodies that end with the connection."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nSum: 1\r\n\r\n"

    async def scenario() -> None:
        async with serving(saying(chunked)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                target = f"http://{NAME}:{server.port}/"
                status, headers, body = await (await made.open()).ask(
                    f"GET {target} HTTP/1.0\r\n\r\n".encode()
                )
                assert (status, body) == (200, b"hi")
                assert "transfer-encoding" not in headers

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "upstream_failed"),
        (b"SSH-2.0-x\r\n\r\n", "upstream_failed"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * (1 << 17), "upstream_failed"),
        (b"HTTP/1.1 200 OK\r\nX y: 1\r\n\r\n", "upstream_failed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "upstream_failed"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "upstream_failed"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, None),
    ],
)
def test_an_answer_that_is_none_is_a_bad_gateway(
    tmp_path: Path, answer: bytes, reason: str | None
) -> None:
    """502 for a client that had nothing of it; else its connection breaks off."""

    async def scenario() -> None:
        async with serving(saying(answer)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                if reason is None:
                    await client.send(get(server))
                    assert (await client.rest()).count(b"HTTP/1.1 100") <= 20
                else:
                    status, said = await client.refusal(get(server))
                    assert (status, said["reason"], said["error"]) == (502, reason, "egress_failed")

    run(scenario())


def test_a_body_that_is_cut_short_does_not_look_whole(tmp_path: Path) -> None:
    """The client's connection ends before the length that was announced."""
    cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"

    async def scenario() -> None:
        async with serving(saying(cut)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                await client.send(get(server, "/", "Connection: close\r\n"))
                assert not (await client.rest()).endswith(b"0\r\n\r\n")
                assert (await made.lines())[0]["reason"] == "upstream_failed"

    run(scenario())


def test_another_protocol_is_refused_and_http_2_left_out(tmp_path: Path) -> None:
    """A WebSocket goes over TLS; an offer of HTTP/2 is no wish."""

    async def scenario() -> None:
        async with serving(saying(OK)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
                status, said = await (await made.open()).refusal(get(server, "/", upgrade))
                assert (status, said["reason"]) == (501, "upgrade_not_carried")
                client = await made.open()
                offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                await client.send(get(server, "/", offer))
                assert (await client.head()).startswith(b"HTTP/1.1 200 ")

    run(scenario())


@pytest.mark.statement("L2", "L3")
def test_a_secret_goes_to_its_host_and_comes_back_masked(tmp_path: Path) -> None:
    """In a header, and in no other place; from another host's answer nothing is taken out."""
    value = "s3cr3t-value-of-the-host"
    seen: list[bytes] = []

    async def repeating(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        seen.append(request)
        token = request.partition(b"X-Token: ")[2].partition(b"\r\n")[0]
        writer.write(b"HTTP/1.1 200 OK\r\nX-Seen: %s\r\n" % token)
        body = b"<" + token + b">"
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body))
        for byte in body:
            writer.write(bytes([byte]))
            await writer.drain()

    async def scenario() -> None:
        async with serving(repeating) as server, serving(repeating) as other:
            near, far = f"{NAME}:{server.port}", f"{NAME}:{other.port}"
            secrets = Secrets([Secret("TOKEN", value, (near,))])
            placeholder = secrets.placeholders["TOKEN"]
            async with proxy(tmp_path, near, far, secrets=secrets) as made:
                more = f"X-Token: {placeholder}\r\nConnection: close\r\n"
                ask = get(server, f"/?{placeholder}", more)
                _, headers, body = await (await made.open()).ask(ask)
                assert f"X-Token: {value}".encode() in seen[0]
                assert f"GET /?{placeholder} ".encode() in seen[0]
                assert headers["x-seen"] == "*" * len(value)
                assert body == b"<" + b"*" * len(value) + b">"
                assert int(headers["content-length"]) == len(body)
                _, headers, body = await (await made.open()).ask(get(other, "/", more))
                assert value.encode() not in seen[1]
                assert headers["x-seen"] == placeholder
                assert value not in str(await made.lines())

    run(scenario())


# ─── limits ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("F11")
@pytest.mark.parametrize("sent", [b"", b"GET http://files", b"CONNECT a:443 HTTP/1.1\r\nX: 1\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(tmp_path: Path, sent: bytes) -> None:
    """408, however little of it is there."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example", waits=Waits(head=0.2)) as made:
            status, said = await (await made.open()).refusal(sent)
            assert (status, said["reason"]) == (408, "too_slow")

    run(scenario())


@pytest.mark.statement("F11")
def test_drops_of_a_head_don_t_make_its_time_longer(tmp_path: Path) -> None:
    """A byte now and then (slow loris) is no progress."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example", waits=Waits(head=0.3)) as made:
            client = await made.open()
            answer = asyncio.create_task(client.head())
            sent = 0
            for sent in range(1000):
                await client.send(b"GET "[sent : sent + 1] or b"a")
                done, _ = await asyncio.wait([answer], timeout=0.02)
                if done:
                    break
            assert (await answer).startswith(b"HTTP/1.1 408 ")
            assert 3 <= sent < 100

    run(scenario())


def test_a_connection_that_waits_for_its_next_request_just_ends(tmp_path: Path) -> None:
    """No answer is due, so none is given."""

    async def scenario() -> None:
        async with serving(saying(OK)) as server:
            waits = Waits(keep=0.2)
            async with proxy(tmp_path, f"{NAME}:{server.port}", waits=waits) as made:
                client = await made.open()
                await client.send(get(server))
                assert (await client.rest()).endswith(b"\r\n\r\nhi")

    run(scenario())


@pytest.mark.statement("F11")
def test_heads_without_end_are_cut_off(tmp_path: Path) -> None:
    """After 64 KiB, or 100 headers."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example") as made:
            head = b"GET http://files.example/ HTTP/1.1\r\nHost: files.example\r\n"
            for more in (b"X: " + b"a" * (1 << 17), b"X: 1\r\n" * 101 + b"\r\n"):
                status, said = await (await made.open()).refusal(head + more)
                assert (status, said["reason"]) == (431, "head_too_large")
            assert made.names.asked == []

    run(scenario())


@pytest.mark.statement("F11")
def test_so_many_connections_are_open_at_a_time(tmp_path: Path) -> None:
    """One more is told so; when one has ended, another may come."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example", connections=2) as made:
            first, second = await made.open(), await made.open()
            status, said = await (await made.open()).refusal(connect("files.example"))
            assert (status, said["reason"]) == (429, "too_many_connections")
            first.close()
            await first.served
            _, said = await (await made.open()).refusal(connect("files.example"))
            assert said["reason"] == "name_not_found"
            assert not second.served.done()

    run(scenario())


@pytest.mark.statement("F11")
def test_bytes_are_counted_over_all_and_end_everything_when_used_up(tmp_path: Path) -> None:
    """What goes on is cut, in whatever direction; what comes after is told."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()

    async def scenario() -> None:
        async with serving(endless) as server, serving(echo) as other:
            hosts = (f"{NAME}:{server.port}", f"{NAME}:{other.port}")
            async with proxy(tmp_path, *hosts, total_bytes="1m") as made:
                idle = await tunnel(made, other)
                await idle.send(client_hello(NAME))
                assert await idle.reader.read(1)
                client = await made.open()
                await client.send(get(server))
                assert len(await client.rest()) <= 1 << 20
                await idle.rest()
                await idle.served
                status, said = await (await made.open()).refusal(get(server))
                assert (status, said["reason"]) == (429, "byte_quota")
                lines = await made.lines()
                assert [line["reason"] for line in lines] == ["byte_quota"] * 3
                assert sum(line["up"] + line["down"] for line in lines) <= 1 << 20

    run(scenario())


@pytest.mark.statement("F11")
def test_what_an_agent_uses_is_gone_for_its_loop(tmp_path: Path) -> None:
    """What one broker spends ends what goes on in the other; and what one may reach, both may."""

    async def scenario() -> None:
        async with serving(echo) as other:
            hosts = (f"{NAME}:{other.port}",)
            async with (
                proxy(tmp_path / "a", *hosts, total_bytes="1m") as made,
                Broker(
                    EgressOptions(hosts),
                    exec_id="below",
                    tenant="t",
                    journal=None,
                    above=made.broker,
                ) as below,
            ):
                made.broker.change(["other.example"])
                assert not below.policy(None).judge(NAME, other.port, Kind.TUNNEL).is_allowed
                made.broker.change(hosts)
                assert below.policy(None).judge(NAME, other.port, Kind.TUNNEL).is_allowed
                idle = await tunnel(made, other)
                await idle.send(client_hello(NAME))
                assert await idle.reader.read(1)
                passage = below.enter("net", "a-box")
                with pytest.raises(StreamClosed):
                    passage.sent(1 << 20)
                below.leave(passage)
                await idle.rest()
                await idle.served
            assert made.broker.account.on_spent == []

    run(scenario())


@pytest.mark.statement("F11")
def test_a_client_that_does_not_read_stops_its_server(tmp_path: Path) -> None:
    """Nobody in between keeps an endless body."""
    stopped = asyncio.Event()
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                stopped.set()
                await writer.drain()

    async def scenario() -> None:
        async with serving(endless) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                await client.send(get(server))
                async with asyncio.timeout(SOON):
                    await stopped.wait()
                assert sent < 32 << 20  # buffers of two sockets and both ends of each
                assert made.broker.used.down < 2 << 20

    run(scenario())


def test_an_answer_that_does_not_come_is_a_gateway_s_timeout(tmp_path: Path) -> None:
    """504, and the journal says that it was idle."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def scenario() -> None:
        async with serving(silent) as server:
            waits = Waits(idle=1.0)
            async with proxy(tmp_path, f"{NAME}:{server.port}", waits=waits) as made:
                status, said = await (await made.open()).refusal(get(server))
                assert (status, said["reason"]) == (504, "upstream_timeout")
                quiet = await tunnel(made, server)
                await quiet.send(client_hello(NAME))
                assert await quiet.rest() == b""
                lines = await made.lines()
                assert [line["reason"] for line in lines] == ["idle", "idle"]

    run(scenario())


# ─── changes, end ───────────────────────────────────────────────────────────────────


def test_a_list_may_change_while_connections_are_open(tmp_path: Path) -> None:
    """Those that it no longer allows are ended, the others are not."""

    async def scenario() -> None:
        async with serving(echo) as server, serving(echo) as other:
            kept, dropped = f"{NAME}:{server.port}", f"{NAME}:{other.port}"
            async with proxy(tmp_path, kept, dropped) as made:
                first, second = await tunnel(made, server), await tunnel(made, other)
                hello = client_hello(NAME)
                for client in (first, second):
                    await client.send(hello)
                    await client.reader.readexactly(len(hello))
                with pytest.raises(ConfigError):
                    made.broker.change([kept, "*"])
                made.broker.change([kept])
                assert await second.rest() == b""
                await first.send(b"still")
                assert await first.reader.readexactly(5) == b"still"
                _, said = await (await made.open()).refusal(connect(NAME, other.port))
                assert said["reason"] == "port_not_allowed"
                made.broker.change([])
                assert await first.rest() == b""

    run(scenario())


def test_a_broker_that_closes_ends_everything(tmp_path: Path) -> None:
    """Connections, whatever they are at; and nothing opens after it."""

    async def scenario() -> None:
        async with serving(echo) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                waiting, tunnelled = await made.open(), await tunnel(made, server)
                await tunnelled.send(client_hello(NAME))
                assert await tunnelled.reader.read(1)
                await made.broker.aclose()
                await asyncio.gather(waiting.served, tunnelled.served)
                assert made.broker.used.connections == 0
                status, said = await (await made.open()).refusal(connect(NAME, server.port))
                assert (status, said["reason"]) == (503, "closing")

    run(scenario())


def test_a_caller_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    """The connection ends, and so does the one to the server."""
    gone = asyncio.Event()

    async def watching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b""
        finally:
            gone.set()

    async def scenario() -> None:
        async with serving(watching) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                await client.send(get(server))
                while not made.broker.used.up:
                    await asyncio.sleep(0)
                client.served.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await client.served
                async with asyncio.timeout(SOON):
                    await gone.wait()
                assert made.broker.used.connections == 0

    run(scenario())


# ─── what is recorded ───────────────────────────────────────────────────────────────


@pytest.mark.statement("F15")
def test_every_decision_is_recorded_without_contents(tmp_path: Path) -> None:
    """Who, where, how much and the verdict; no path, query, header or body."""

    async def scenario() -> None:
        async with serving(saying(OK)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                more = "X-Canary: canary-header\r\nContent-Length: 11\r\nConnection: close\r\n"
                request = get(server, "/canary-path?q=canary-query", more, "POST")
                assert (await client.ask(request + b"canary-body"))[0] == 200
                denied = b"GET http://evil.example/canary-path?canary-query HTTP/1.1\r\n"
                await (await made.open()).refusal(denied + b"Host: evil.example\r\n\r\n")
                await (await made.open()).refusal(b"GET canary-path HTTP/1.1\r\n\r\n")
                await (await made.open()).refusal(
                    b"GET http://canary-user:canary-key@a/ HTTP/1.0\r\n\r\n"
                )
                lines = await made.lines()
                text = made.log.path.read_text()
                assert "canary" not in text
                assert made.log.verify() == []
                allowed = lines[0]
                assert allowed["up"] > 100 < allowed["down"] + 100
                kept = ("exec_id", "tenant", "sandbox", "lane", "host", "port", "scheme", "verdict")
                assert [allowed[name] for name in kept] == [
                    *("loop-1", "tenant-1", BOX, "net", NAME, server.port, "http", "allow"),
                ]
                found = [(line["verdict"], line["reason"], line["host"]) for line in lines[1:]]
                assert found == [
                    ("deny", "host_not_allowed", "evil.example"),
                    ("deny", "malformed", ""),
                    ("deny", "bad_target", ""),
                ]

    run(scenario())


def test_a_hostile_name_acts_on_no_terminal(tmp_path: Path) -> None:
    """What is no name is shown escaped and cut, in the answer and in the log."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example") as made:
            hostile = "a" * 2000 + "$(x)"
            status, said = await (await made.open()).refusal(connect(hostile))
            assert (status, said["reason"]) == (400, "bad_target")
            assert len(said["host"]) <= 300
            lines = await made.lines()
            assert len(lines[0]["host"]) <= 300

    run(scenario())


def test_nothing_passes_that_can_t_be_recorded(tmp_path: Path) -> None:
    """When the log can't be written, it is said, and no connection is made."""

    async def scenario() -> None:
        async with serving(saying(OK)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                made.log.path.mkdir()  # no file can be written there any more
                assert (await (await made.open()).refusal(connect("evil.example")))[0] == 403
                for _ in range(400):
                    client = await made.open()
                    await client.send(get(server, "/", "Connection: close\r\n"))
                    status, _, body = parts(await client.rest())
                    if status == 503:
                        break
                    await asyncio.sleep(0.02)
                assert status == 503
                assert b"journal_failed" in body
                seen = server.connections
                assert (await (await made.open()).refusal(get(server)))[0] == 503
                assert server.connections == seen

    run(scenario())


assert LINGER < SOON
