"""What boxes and servers do to a broker that no client of good will does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from executor.audit import AuditLog
from executor.egress import Waits
from executor.egress.exchange import TURN
from executor.egress.journal import BURST, OTHERS, Decision, Journal
from executor.egress.policy import Reason
from tests.egress.proxying import (
    NAME,
    OK,
    SOON,
    Client,
    Proxy,
    Server,
    client_hello,
    get,
    parts,
    proxy,
    run,
    saying,
    serving,
)


async def tunnel(made: Proxy, server: Server) -> Client:
    """A connection whose CONNECT was answered."""
    client = await made.open()
    await client.send(f"CONNECT {NAME}:{server.port} HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())
    assert (await client.head()).startswith(b"HTTP/1.1 200 ")
    return client


class Silent:
    """A server that takes requests and never answers."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        self.heard.set()
        try:
            await reader.read()
        finally:
            self.left.set()
        await asyncio.Event().wait()


# ─── who leaves ─────────────────────────────────────────────────────────────────────


@pytest.mark.statement("F11")
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_client_that_leaves_frees_its_place_though_its_server_is_silent(
    tmp_path: Path, method: str
) -> None:
    """At once, and the server is told."""

    async def scenario() -> None:
        silent = Silent()
        async with serving(silent) as server, proxy(tmp_path, f"{NAME}:{server.port}") as made:
            client = await made.open()
            body = "Content-Length: 3\r\n" if method == "POST" else ""
            await client.send(get(server, "/", body, method) + b"abc" * bool(body))
            async with asyncio.timeout(SOON):
                await silent.heard.wait()
                client.close()
                await client.served
                await silent.left.wait()
            assert made.broker.used.connections == 0
            (line,) = await made.lines()
            assert (line["verdict"], line["reason"]) == ("allow", "client_gone")

    run(scenario())


@pytest.mark.statement("F11")
def test_a_tunnel_that_its_client_has_left_ends_though_its_server_is_silent(
    tmp_path: Path,
) -> None:
    """One direction may end before the other, but is then not waited for as long as ever."""

    async def scenario() -> None:
        silent = Silent()
        async with serving(silent) as server:
            waits = Waits(half=0.2)
            async with proxy(tmp_path, f"{NAME}:{server.port}", waits=waits) as made:
                client = await tunnel(made, server)
                await client.send(client_hello(NAME))
                await silent.heard.wait()
                client.writer.write_eof()
                async with asyncio.timeout(SOON):
                    await client.served

    run(scenario())


@pytest.mark.statement("F11")
def test_a_tunnel_that_its_server_has_left_ends_though_its_client_is_silent(
    tmp_path: Path,
) -> None:
    """It gives its place among the connections back, and has what the server had sent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"last")
        writer.write_eof()
        while await reader.read(1 << 16):
            pass

    async def scenario() -> None:
        async with serving(answer) as server:
            waits = Waits(half=0.2)
            async with proxy(tmp_path, f"{NAME}:{server.port}", waits=waits) as made:
                client = await tunnel(made, server)
                await client.send(client_hello(NAME))
                assert await client.reader.readexactly(4) == b"last"
                async with asyncio.timeout(SOON):
                    await client.served
                assert made.broker.used.connections == 0

    run(scenario())


@pytest.mark.statement("F15")
def test_a_client_that_leaves_before_its_first_byte_of_tls_is_recorded(tmp_path: Path) -> None:
    """The connection was allowed and made: it has a line."""

    async def scenario() -> None:
        async with serving(Silent()) as server, proxy(tmp_path, f"{NAME}:{server.port}") as made:
            client = await tunnel(made, server)
            client.served.cancel()
            await asyncio.wait([client.served])
            (line,) = await made.lines()
            assert (line["verdict"], line["host"], line["up"]) == ("allow", NAME, 0)

    run(scenario())


# ─── answers to nothing ─────────────────────────────────────────────────────────────


@pytest.mark.statement("F12")
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_answer_that_nobody_asked_for_answers_no_later_request(
    tmp_path: Path, method: str
) -> None:
    """It comes while the connection rests: the next request goes over another."""
    more = asyncio.Event()
    said = asyncio.Event()

    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(OK)
                await writer.drain()
                if server.connections == 1:
                    await more.wait()
                    writer.write(OK.replace(b"hi", b"NO"))
                    await writer.drain()
                    said.set()

        async with serving(answer) as server, proxy(tmp_path, f"{NAME}:{server.port}") as made:
            client = await made.open()
            await client.send(get(server))
            await client.head()
            assert await client.reader.readexactly(2) == b"hi"
            while made.broker.used.requests < 1:
                await asyncio.sleep(0)
            more.set()
            await said.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            await client.send(get(server, method=method, more="Content-Length: 0\r\n"))
            await client.head()
            assert await client.reader.readexactly(2) == b"hi"
            assert server.connections == 2

    run(scenario())


@pytest.mark.statement("F12")
@pytest.mark.parametrize(
    "extra",
    [
        OK.replace(b"hi", b"NO"),
        b"more than was said",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_comes_behind_an_answer_reaches_nobody(
    tmp_path: Path, extra: bytes, method: str
) -> None:
    """A second answer in the same segment, or bytes beyond the length: that connection ends."""

    async def scenario() -> None:
        async with serving(saying(OK + extra)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                first = get(server, method=method)
                last = get(server, more="Connection: close\r\n")
                status, _, rest = parts(await _both(client, first, last))
                assert status == 200
                second = rest if method == "HEAD" else rest.removeprefix(b"hi")
                assert parts(second)[0] == 200
                assert parts(second)[2] == b"hi"
                assert server.connections == 2

    run(scenario())


async def _both(client: Client, first: bytes, last: bytes) -> bytes:
    """Two requests in one piece; all that comes back."""
    await client.send(first + last)
    return await client.rest()


@pytest.mark.statement("F12")
@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified", b"101 Switching"])
def test_a_body_where_none_can_be_is_no_answer_to_the_next(tmp_path: Path, status: bytes) -> None:
    """Of an answer that has no body, what follows is dropped with its connection."""
    said = b"HTTP/1.1 " + status + b"\r\nContent-Length: 40\r\n\r\n" + OK.replace(b"hi", b"NO")

    async def scenario() -> None:
        async with serving(saying(said)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                client = await made.open()
                last = get(server, more="Connection: close\r\n")
                assert b"NO" not in await _both(client, get(server), last)

    run(scenario())


# ─── what can't be seen ─────────────────────────────────────────────────────────


@pytest.mark.statement("F10")
def test_what_host_filtering_can_t_see_is_so_and_is_said(tmp_path: Path) -> None:
    """An allowed host may pass on what comes to it: nobody in between sees to whom."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = client_hello(NAME)
        assert await reader.readexactly(len(hello))
        writer.write(b"relayed: " + await reader.readline())
        await writer.drain()

    async def scenario() -> None:
        async with serving(relay) as server, proxy(tmp_path, f"{NAME}:{server.port}") as made:
            client = await tunnel(made, server)
            await client.send(client_hello(NAME) + b"CONNECT denied.example:443\n")
            assert await client.rest() == b"relayed: CONNECT denied.example:443\n"

    run(scenario())
    docs = Path(__file__).parents[2] / "docs"
    (row,) = [line for line in (docs / "security.md").read_text("utf-8").splitlines()
              if line.startswith("|") and "F10" in line.split("|")[1]]  # fmt: skip
    assert "An allowed host that relays" in row and "inside TLS neither the Host header nor" in row
    guide = " ".join((docs / "egress.md").read_text("utf-8").split())
    assert "to whom that host passes it on, is not seen" in guide
    assert "Allow what you would trust with the whole worktree" in guide


# ─── floods ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("F15")
def test_names_below_a_listed_suffix_that_lead_nowhere_fill_no_disk(tmp_path: Path) -> None:
    """However many there are, all beyond a budget are one line."""

    async def scenario() -> None:
        log = AuditLog(tmp_path)
        journal = Journal(log, "loop-1", "tenant-1", clock=lambda: 0.0)
        for number in range(10_000):
            facts = ("box", "net", f"n{number}.files.example", 80, "http", True, Reason.NO_NAME)
            journal.note(Decision(*facts))
        await journal.aclose()
        lines = log.path.read_text().splitlines()
        assert len(lines) == BURST + 1
        last = json.loads(lines[-1])
        assert (last["host"], last["verdict"], last["count"]) == (OTHERS, "allow", 10_000 - BURST)

    run(scenario())


@pytest.mark.statement("F11")
@pytest.mark.parametrize("is_upload", [True, False])
def test_chunks_of_one_byte_keep_the_event_loop_from_nobody(
    tmp_path: Path, is_upload: bool
) -> None:
    """Thousands of them come in one segment: other loops of the controller have their turns."""
    count = 3000
    chunks = b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    chunked = "Transfer-Encoding: chunked\r\n"
    turns = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if is_upload:
            await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + chunked.encode() + b"\r\n" + chunks)
        await writer.drain()

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        async with serving(answer) as server, proxy(tmp_path, f"{NAME}:{server.port}") as made:
            client = await made.open()
            ticking = asyncio.create_task(tick())
            if is_upload:
                await client.send(get(server, "/", chunked, "POST") + chunks)
            else:
                await client.send(get(server))
            async with asyncio.timeout(SOON * 2):
                await client.reader.readuntil(b"\r\n0\r\n\r\n")
            ticking.cancel()
            assert turns > count * (1 + is_upload) // (2 * TURN)

    run(scenario())


def test_what_was_refused_lately_holds_nothing_of_its_request(tmp_path: Path) -> None:
    """An error's traceback would keep a request, its secrets and its buffers alive."""

    async def scenario() -> None:
        async with proxy(tmp_path, "files.example") as made:
            asked = b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"
            await (await made.open()).refusal(asked)
            (told,) = made.broker.denied_recently(SOON)
            assert (told.__traceback__, told.__context__, told.__cause__) == (None, None, None)

    run(scenario())
