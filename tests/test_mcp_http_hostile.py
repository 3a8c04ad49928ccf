"""`executor mcp --http` among strangers who shout, and clients that do what none should."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp.server.streamable_http import StreamableHTTPServerTransport

from executor.errors import ConfigError, EngineError, SandboxError
from executor.frontends import mcp_http, mcp_loops, mcp_sessions
from executor.frontends.mcp_loops import KeptLoop
from executor.frontends.mcp_server import LoopServer
from executor.frontends.mcp_sessions import Sessions
from executor.frontends.mcp_token import token_of
from executor.loop import Loop
from tests.driver import wait_until
from tests.mcp_clients import GREETING, SECONDS, boxes, with_file
from tests.mcp_http_clients import (
    BOTH,
    TOKEN,
    Served,
    answer,
    begun,
    calls,
    exchanged,
    fault,
    head,
    message,
    newcomer,
    received,
    served,
    serving,
    wire,
)


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    """A worktree with one file."""
    return with_file(tmp_path)


@contextlib.contextmanager
def unheard(worktree: Path) -> Iterator[int]:
    """The port of a server to whose stderr nobody listens once it serves."""
    file = worktree.parent / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    command = [sys.executable, "-m", "executor", "mcp", "--worktree", str(worktree)]
    command += ["--http", "0", "--token-file", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert select.select([process.stderr], [], [], SECONDS)[0]
            yield int(process.stderr.readline().split(b":")[3].split(b"/")[0])
        finally:
            process.kill()


def asked(port: int, request: bytes) -> bytes:
    """The first line of the answer, and what it says."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), SECONDS)) as raw:
        raw.sendall(request)
        answered = received(raw)
    return answered.splitlines()[0] + answered.split(b"\r\n\r\n", 1)[1]


# ─── strangers ──────────────────────────────────────────────────────────────────────


def test_strangers_can_not_fill_the_log(worktree: Path) -> None:
    """What they do wrong is answered and no line of stderr, which may be full."""
    with unheard(worktree) as port:
        long = "x" * 2000
        bad = [
            f"GET /mcp HTTP/1.1\r\nHost: {long}\r\n\r\n",
            f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://{long}\r\n\r\n",
            f"GET /mcp {long}\r\n\r\n",
            f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: upgrade\r\n"
            "Upgrade: websocket\r\n\r\n",
        ]
        statuses = [b"421", b"403", b"400", b"401"]
        for _ in range(100):  # lines of them would be more than a pipe takes
            for request, status in zip(bad, statuses, strict=True):
                assert asked(port, request.encode()).split()[1] == status


def test_a_wrong_name_is_told_the_right_one(worktree: Path) -> None:
    """Who is refused for a name or a page hears what to do, and no name of a session."""
    with unheard(worktree) as port:
        said = asked(port, b"POST /mcp HTTP/1.1\r\nHost: LOCALHOST.:1\r\n\r\n")
        assert f"use http://127.0.0.1:{port}/mcp".encode() in said
        said = asked(
            port,
            f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: null\r\n\r\n".encode(),
        )
        assert b"other sites" in said


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("POST /mcp HTTP/1.1", ["Host: evil.example"], b"400"),
        ("POST /mcp HTTP/1.1", ["Content-Length: 3"], b"400"),
        ("POST /mcp HTTP/1.1", ["Content-Length: -3"], b"400"),
        ("POST /mcp HTTP/1.1", ["Content-Length: " + "9" * 5000], b"400"),
        ("POST /mcp HTTP/1.1", ["Transfer-Encoding: gzip"], b"400"),
        ("POST /mcp HTTP/1.1", ["X: a\0b"], b"400"),
        ("POST http://evil.example/mcp HTTP/1.1", [], b"404"),
        ("POST /x/../mcp HTTP/1.1", [], b"404"),
        ("CONNECT evil.example:443 HTTP/1.1", [], b"404"),
        ("OPTIONS * HTTP/1.1", [], b"404"),
        ("OPTIONS /mcp HTTP/1.1", ["Origin: http://evil.example"], b"403"),
        ("TRACE /mcp HTTP/1.1", [], b"405"),
    ],
)
def test_odd_heads_are_refused(
    monkeypatch: pytest.MonkeyPatch, line: str, headers: list[str], status: bytes
) -> None:
    """With the right token, too; no other site is told that it may ask."""

    async def run() -> bytes:
        async with serving(monkeypatch) as port:
            first, _, rest = begun(port, *headers).partition(b"\r\n")
            assert first == b"POST /mcp HTTP/1.1"
            return await exchanged(port, line.encode() + b"\r\n" + rest + b"x" * 1000)

    said = asyncio.run(run())
    assert said.split()[1] == status
    assert b"access-control" not in said.lower() and b"server:" not in said.lower()


# ─── sessions ───────────────────────────────────────────────────────────────────────


def greeting(port: int, **params: Any) -> bytes:
    """A request that begins a session, if these parameters are right."""
    body = json.dumps(message("initialize", 0, **params)).encode()
    request = begun(port, "Content-Type: application/json", f"Accept: {BOTH}", "Connection: close")
    return request.replace(b"Length: 1000", b"Length: %d" % len(body)) + body


def test_a_session_that_asks_for_nothing_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that went before they asked for anything do not use up the sessions."""
    monkeypatch.setattr(mcp_sessions, "BEGIN_SECONDS", 0.2)

    async def run() -> None:
        async with serving(monkeypatch) as port:
            full = 0
            for _ in range(4):  # two are allowed
                async with asyncio.timeout(SECONDS):
                    while b" 503 " in (await exchanged(port, greeting(port, **GREETING))):
                        full += 1
                        await asyncio.sleep(0)
            assert full > 0

    asyncio.run(run())


def unfit(port: int) -> list[tuple[bytes, bytes]]:
    """Requests of no session that begin none, and the status of the answer to each."""
    right = greeting(port, **GREETING)
    bare = greeting(port).partition(b"\r\n\r\n")[0].replace(b"Content-Length", b"X") + b"\r\n\r\n"
    return [
        (bare.replace(b"POST", b"GET", 1), b" 400 "),
        (bare.replace(b"POST", b"DELETE", 1), b" 400 "),
        (bare.replace(b"POST", b"PUT", 1), b" 405 "),
        (bare, b" 400 "),
        (greeting(port), b" 400 "),
        (greeting(port, **{**GREETING, "clientInfo": {}}), b" 400 "),
        (right.replace(b"initialize", b"tools/list"), b" 400 "),
        (right.replace(b'"id"', b'"ix"'), b" 400 "),
        (right.replace(b'{"jsonrpc"', b'["jsonrpc"'), b" 400 "),
        (right.replace(b"application/json\r\n", b"text/plain; json\r\n"), b" 400 "),
        (right.replace(b"text/event-stream", b"text/html"), b" 406 "),
    ]


def test_what_begins_no_session_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anybody makes room for it, and keeps no place."""
    monkeypatch.setattr(mcp_sessions, "QUIET_SECONDS", 0.0)

    async def run() -> None:
        async with serving(monkeypatch) as port:
            for request, status in unfit(port):
                assert status in (await exchanged(port, request)).splitlines()[0], request
            names = [await began(port) for _ in range(2)]  # two are allowed
            for request, status in unfit(port):
                assert status in (await exchanged(port, request)).splitlines()[0], request
            for name in names:
                assert b" 202 " in await exchanged(port, notice(port, name))

    asyncio.run(run())


async def began(port: int) -> str:
    """The name of a session that is begun."""
    name = re.search(
        rb"mcp-session-id: ([0-9a-f]+)", await exchanged(port, greeting(port, **GREETING))
    )
    assert name is not None
    return name[1].decode()


def test_a_session_that_can_not_be_served_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault at its very beginning is answered, and the next one begins."""

    def broken(_: object) -> Any:
        raise OSError("no streams")

    async def run() -> None:
        async with serving(monkeypatch) as port:
            with monkeypatch.context() as patched:
                patched.setattr(StreamableHTTPServerTransport, "connect", broken)
                for _ in range(3):  # two are allowed
                    assert b" 404 " in await exchanged(port, greeting(port, **GREETING))
            assert await began(port)

    asyncio.run(run())


def test_why_there_is_no_box_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is tried, and for whom: stderr may be full. After a loop it is news."""
    monkeypatch.setattr(mcp_loops, "AGAIN_SECONDS", 0.0)
    said: list[str] = []
    monkeypatch.setattr(mcp_sessions, "say", said.append)

    async def run() -> None:
        faults: list[Exception] = []

        async def keep(opened: asyncio.Future[Loop], end: asyncio.Event) -> None:
            if faults:
                raise faults[0]
            opened.set_result(object.__new__(Loop))
            await end.wait()
            raise SandboxError("not all came back")

        async def told(fault: Exception, *loops: KeptLoop) -> list[str]:
            said.clear()
            faults[:] = [fault]
            for loop in loops:
                with pytest.raises(type(fault)):
                    await loop.opened()
            return list(said)

        sessions = Sessions(lambda: keep, lambda opened: LoopServer(opened, "1"), most=4, idle=1.0)
        first, second, third, fourth = (sessions._new_loop() for _ in range(4))
        no_engine = EngineError("start Docker")
        assert await told(no_engine, first, first, second, first) == ["start Docker"]
        assert await told(ConfigError(["no lane", "no image"]), second) == ["no lane", "no image"]
        assert await told(no_engine, first) == []
        faults.clear()
        assert await third.opened() and await fourth.opened()
        assert await told(no_engine, first, first) == ["start Docker"]
        said.clear()
        for loop in (third, fourth):
            assert isinstance(await loop.close(), SandboxError)
        assert said == ["not all came back"] * 2, "that is of another loop each time"

    asyncio.run(run())


@pytest.mark.parametrize("is_quiet", [True, False])
def test_a_session_that_is_quiet_makes_room(
    monkeypatch: pytest.MonkeyPatch, is_quiet: bool
) -> None:
    """The one that has been so for longest, and only for a client that comes."""
    monkeypatch.setattr(mcp_sessions, "QUIET_SECONDS", 0.0 if is_quiet else 1000.0)

    async def run() -> None:
        async with serving(monkeypatch) as port:
            heads = [await exchanged(port, greeting(port, **GREETING)) for _ in range(3)]
            names = [re.search(rb"mcp-session-id: ([0-9a-f]+)", one) for one in heads]
            assert names[0] is not None and names[1] is not None, "two are allowed"
            assert (names[2] is not None) is is_quiet
            if not is_quiet:
                assert b" 503 " in heads[2]
            for number, status in ((0, b" 404 " if is_quiet else b" 202 "), (1, b" 202 ")):
                found = names[number]
                assert found is not None
                said = notice(port, found[1].decode())
                assert status in await exchanged(port, said)

    asyncio.run(run())


def test_a_client_that_listens_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken from those who are there."""
    monkeypatch.setattr(mcp_sessions, "QUIET_SECONDS", 0.0)

    async def run() -> None:
        async with serving(monkeypatch) as port:
            reader, writer = await listening(port)
            try:
                others = [await exchanged(port, greeting(port, **GREETING)) for _ in range(3)]
                assert all(b" 200 " in one for one in others)
                assert not reader.at_eof(), "it was ended for another one"
            finally:
                writer.close()

    asyncio.run(run())


async def listening(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The stream of a client that has begun a session and listens."""
    name = await began(port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = ["GET /mcp HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {TOKEN}"]
    lines += ["Accept: text/event-stream", f"mcp-session-id: {name}", "", ""]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(SECONDS):
        assert b" 200 " in await reader.readline()
    return reader, writer


def notice(port: int, name: str) -> bytes:
    """A message in a session that wants no answer."""
    body = json.dumps(message("notifications/unknown")).encode()
    lines = ("Content-Type: application/json", f"Accept: {BOTH}", "Connection: close")
    request = begun(port, *lines, f"mcp-session-id: {name}")
    return request.replace(b"Length: 1000", b"Length: %d" % len(body)) + body


def test_a_later_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a connection that has had its answer kept open by half of another request."""

    async def run() -> None:
        async with serving(monkeypatch) as port:
            request = notice(port, await began(port)).replace(b"Connection: close\r\n", b"")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(SECONDS):
                for _ in range(2):
                    writer.write(request)
                    assert b" 202 " in await reader.readuntil(b"\r\n\r\n")
                monkeypatch.setattr(mcp_http, "HEAD_SECONDS", 0.0)
                writer.write(request[:20])
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


def test_the_end_of_a_session_is_the_end_of_its_requests(worktree: Path) -> None:
    """Whatever is under way when it is ended: each is answered whole, and no fault is told."""
    with served(worktree, "--exec-id", "mcp-race", "--sessions", "2") as server:
        for _ in range(20):
            with wire(server) as found:
                name = found.http.headers["mcp-session-id"]
                requests = [
                    posted(server, name, message("ping", 1)),
                    posted(server, name, message("notifications/unknown")),
                    posted(server, name, message("tools/call", 2, **calls("sleep 60"))),
                    posted(server, name, message("tools/call", 2, **calls("sleep 61"))),
                    posted(server, name, message("tools/list", 3)),
                    posted(server, name, {}).replace(b"POST", b"DELETE", 1),
                    posted(server, name, {}).replace(b"POST", b"GET", 1),
                    posted(server, name, message("ping", 4)),
                ]
                for answered in together(server, requests):
                    status = int(answered.split()[1])
                    assert status in (200, 202, 404), answered
                    if b"chunked" in answered:
                        assert answered.endswith(b"0\r\n\r\n"), answered
        wait_until(lambda: boxes("mcp-race") == [])
        said = server.end(signal.SIGTERM)
        assert said.startswith("143: ") and "Traceback" not in said and "ASGI" not in said, said


def posted(server: Served, session: str, body: dict[str, Any]) -> bytes:
    """A request, after whose answer the connection is closed."""
    data = json.dumps(body).encode()
    request = head(server, len(data), session)
    return request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + data


def together(server: Served, requests: list[bytes]) -> list[bytes]:
    """The answers to requests that are sent at once, each over a connection of its own."""
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), SECONDS))
            for _ in requests
        ]
        for raw, request in zip(opened, requests, strict=True):
            raw.sendall(request)
        return [received(raw) for raw in opened]


def test_two_requests_of_one_name_end_with_their_session(worktree: Path) -> None:
    """A client that uses an id twice loses an answer, and no connection beyond the session."""
    with served(worktree) as server, wire(server) as found:
        with found.asked(7, "touch begun; until [ -e go ]; do read -t 0.05 <> <(:); done") as lost:
            wait_until((worktree / "begun").exists)
            with found.asked(7, "true") as other:
                (worktree / "go").touch()
                assert b"data: {" in other.read()
            assert found.http.delete(server.url).status_code == 200
            assert b"data: {" not in lost.read()


def test_who_hangs_up_in_a_request_is_forgotten(worktree: Path) -> None:
    """Half a body begins nothing, ends nothing, and is no fault of the server."""
    with served(worktree, "--sessions", "1") as server:
        body = json.dumps(message("initialize", 0, **GREETING)).encode()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(head(server, len(body)) + body[:-1])
        with wire(server) as found:
            call = posted(server, found.http.headers["mcp-session-id"], message("ping", 1))
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", server.port)) as raw:
                    raw.sendall(call[:-1])
            assert found.command(1, "echo on") == "on\n"
        said = server.end(signal.SIGTERM)
        assert "Traceback" not in said and "rror" not in said, said


def test_who_asks_for_the_past_gets_what_comes(worktree: Path) -> None:
    """Nothing is kept to be sent again; a client that asks for it listens like others."""
    with served(worktree) as server, wire(server) as found:
        headers = {"last-event-id": "5"}
        with found.http.stream("GET", server.url, headers=headers) as response:
            assert response.status_code == 200
            assert found.http.get(server.url).status_code == 409


def test_a_request_of_another_session_is_not_cancelled(worktree: Path) -> None:
    """Ids are those of a session."""
    with served(worktree) as server, wire(server) as one, wire(server) as other:
        waits = "touch begun; until [ -e go ]; do read -t 0.05 <> <(:); done; echo lived"
        with one.asked(7, waits) as response:
            wait_until((worktree / "begun").exists)
            assert other.post("notifications/cancelled", requestId=7).status_code == 202
            assert answer(other.post("ping", 7))["result"] == {}
            (worktree / "go").touch()
            response.read()
            assert answer(response)["result"]["content"][0]["text"] == "lived\n"


def test_a_second_greeting_changes_nothing(worktree: Path) -> None:
    """It begins no other session, and no other box."""
    with served(worktree, "--exec-id", "mcp-again", "--sessions", "1") as server:
        with wire(server) as found:
            assert found.command(1, "echo one > /tmp/own") == ""
            again = found.post("initialize", 2, **GREETING)
            assert again.headers["mcp-session-id"] == found.http.headers["mcp-session-id"]
            assert found.command(3, "cat /tmp/own") == "one\n"
            assert len(boxes("mcp-again")) == 1


def test_a_session_is_ended_once(worktree: Path) -> None:
    """Who ends it again is told that it is gone."""
    with served(worktree) as server, wire(server) as found:
        assert found.http.delete(server.url).status_code == 200
        late = found.http.delete(server.url)
        assert late.status_code == 404 and "initialize" in fault(late)


def test_a_thousand_requests_in_one_breath(worktree: Path) -> None:
    """A client that does not wait for answers gets them all, in order; another is heard."""
    with served(worktree) as server, wire(server) as found, wire(server) as other:
        name = found.http.headers["mcp-session-id"]
        asks = b""
        for number in range(1000):
            body = json.dumps(message("ping", number)).encode()
            asks += head(server, len(body), name) + body
        with socket.create_connection(("127.0.0.1", server.port), SECONDS) as raw:
            raw.sendall(asks)
            got = b""
            while got.count(b'"result"') < 500:
                got += raw.recv(1 << 16)
            assert answer(other.post("ping", 1))["result"] == {}
            while got.count(b'"result"') < 1000:
                piece = raw.recv(1 << 16)
                assert piece
                got += piece
        lines = [line for line in got.splitlines() if line.startswith(b"data: ")]
        numbers = [json.loads(line[len(b"data: ") :])["id"] for line in lines]
        assert numbers == list(range(1000))


@pytest.mark.parametrize("redirected", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_descriptors_are_no_fault(worktree: Path, redirected: str) -> None:
    """A service may be started with none; nothing of it becomes one of them."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    file = worktree.parent / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    command = f"exec '{sys.executable}' -m executor mcp --worktree '{worktree}' --http {port}"
    command += f" --exec-id mcp-closed --token-file '{file}' {redirected}"
    with subprocess.Popen(["sh", "-c", command], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: listens(port))
            server = Reached(port)
            with wire(server) as found:
                assert found.command(1, "cat; echo on") == "on\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 128 + signal.SIGTERM
            assert boxes("mcp-closed") == []
        finally:
            process.kill()


class Reached(Served):
    """A server that says nothing."""

    def __init__(self, port: int) -> None:
        self.token = TOKEN
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"


def listens(port: int) -> bool:
    """Somebody does."""
    with socket.socket() as raw:
        return raw.connect_ex(("127.0.0.1", port)) == 0


def test_sessions_leave_nothing_open(worktree: Path) -> None:
    """After many of them the server has the descriptors that it had."""
    with served(worktree) as server:
        open_ones = Path(f"/proc/{server.process.pid}/fd")
        for number in range(60):
            with newcomer(server) as found:
                begins = found.post("initialize", 0, **GREETING)
                assert begins.status_code == 200, begins.text
                name = {"mcp-session-id": begins.headers["mcp-session-id"]}
                assert found.http.delete(server.url, headers=name).status_code == 200
            if number == 20:
                wait_until(lambda: closed(server.port))
                before = len(list(open_ones.iterdir()))
        wait_until(lambda: closed(server.port))
        assert len(list(open_ones.iterdir())) <= before


def closed(port: int) -> bool:
    """No connection of the server is open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return not any(row[1].endswith(f":{port:04X}") and row[3] in ("01", "08") for row in rows)


# ─── the token ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf" + TOKEN.encode(), TOKEN.encode() + b"\0"])
def test_bytes_that_nobody_sees_are_no_token(worktree: Path, content: bytes) -> None:
    """A mark of the encoding, or a zero: refused at the start, and not shown."""
    file = worktree.parent / "odd"
    file.write_bytes(content)
    file.chmod(0o600)
    command = [sys.executable, "-m", "executor", "mcp", "--worktree", str(worktree)]
    command += ["--http", "0", "--token-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2 and "holds no token" in done.stderr
    assert TOKEN not in done.stderr


def test_a_link_that_leads_nowhere_is_no_place_for_a_token(worktree: Path) -> None:
    """None is made through it."""
    file = worktree.parent / "link"
    file.symlink_to(worktree.parent / "elsewhere")
    command = [sys.executable, "-m", "executor", "mcp", "--worktree", str(worktree)]
    command += ["--http", "0", "--token-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2 and "name a file that can be read" in done.stderr
    assert not (worktree.parent / "elsewhere").exists()


def test_those_who_start_at_once_have_one_token(tmp_path: Path) -> None:
    """Whoever makes the file makes it whole; the others read it, and nothing else is left."""
    for number in range(100):
        file = tmp_path / str(number) / "token"
        at_once = threading.Barrier(4)

        def made(file: Path = file, at_once: threading.Barrier = at_once) -> str:
            at_once.wait(SECONDS)
            return token_of(file)

        with ThreadPoolExecutor(4) as threads:
            found = {each.result(SECONDS) for each in [threads.submit(made) for _ in range(4)]}
        assert found == {file.read_text().strip()}
        assert [each.name for each in file.parent.iterdir()] == ["token"]
