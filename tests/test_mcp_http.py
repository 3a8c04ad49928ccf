"""`executor mcp --http`: loops as sessions of a server, and who is kept out of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import httpx2
import pytest
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client

from executor.errors import ConfigError
from executor.frontends import mcp_http
from executor.frontends.mcp_server import MAX_CALLS
from executor.frontends.mcp_token import token_of
from tests.driver import wait_until
from tests.mcp_clients import GREETING, SECONDS, Progress, boxes, text_of, with_file
from tests.mcp_http_clients import (
    BOTH,
    TOKEN,
    Served,
    answer,
    begun,
    calls,
    ended,
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
from tests.pictures import PNG


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    """A worktree with one file."""
    return with_file(tmp_path)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all that ends no session of others."""
    with served(with_file(tmp_path_factory.mktemp("one")), "--sessions", "20") as server:
        yield server


# ─── the official client ────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def client(server: Served) -> AsyncIterator[ClientSession]:
    """The SDK's client of a server."""
    headers = {"authorization": f"Bearer {server.token}"}
    async with (
        asyncio.timeout(SECONDS),
        httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http,
    ):
        async with streamable_http_client(server.url, http_client=http) as (incoming, outgoing):
            async with ClientSession(incoming, outgoing) as session:
                await session.initialize()
                yield session


async def ran(session: ClientSession, command: str) -> str:
    """What a command prints."""
    return text_of(await session.call_tool("run_command", {"command": command}))


def test_an_exchange_with_progress(one: Served) -> None:
    """A client lists the tools, calls some, and is told of a running command's lines."""

    async def run() -> None:
        heard = Progress()
        async with client(one) as session:
            tools = {tool.name for tool in (await session.list_tools()).tools}
            assert {"read_file", "run_command"} <= tools
            read = await session.call_tool("read_file", {"path": "a.txt"})
            assert read.structured_content is not None
            assert read.structured_content["total_lines"] == 2
            waits = {"command": "echo begun; until [ -e go ]; do read -t 0.05 <> <(:); done; ls"}
            running = session.call_tool("run_command", waits, progress_callback=heard)
            async with client(one) as other, asyncio.TaskGroup() as group:
                task = group.create_task(running)
                await heard.first.wait()
                await ran(other, "touch go")
            assert "go" in text_of(task.result())
        assert heard.told[0] == (1, "begun")

    asyncio.run(run())


def test_clients_of_later_versions_find_their_way(one: Served) -> None:
    """Versions without sessions are refused in a way that makes the SDK begin a session."""

    async def run() -> None:
        headers = {"authorization": f"Bearer {one.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http:
            async with Client(streamable_http_client(one.url, http_client=http)) as found:
                result = await found.call_tool("read_file", {"path": "a.txt"})
                assert "two" in text_of(result)

    asyncio.run(run())


def test_each_client_has_a_loop_of_its_own(worktree: Path) -> None:
    """Two at a time share the worktree, and neither box, nor what was read."""

    async def run(server: Served) -> None:
        async with client(server) as first, client(server) as second:
            await asyncio.gather(ran(first, "echo 1 > /tmp/own"), ran(second, "ls -A /tmp"))
            assert "own" not in await ran(second, "ls -A /tmp")
            await first.call_tool("read_file", {"path": "a.txt"})
            given = {"path": "a.txt", "old_string": "two", "new_string": "three"}
            unread = await second.call_tool("edit_file", given)
            assert unread.is_error and "read" in text_of(unread)
            assert not (await first.call_tool("edit_file", given)).is_error
            assert "three" in await ran(second, "cat a.txt")
            assert len(boxes("mcp-two-1-")) == len(boxes("mcp-two-2-")) == 1

    with served(worktree, "--exec-id", "mcp-two") as server:
        asyncio.run(run(server))
        wait_until(lambda: boxes("mcp-two") == [])
        assert server.end(signal.SIGTERM).startswith("143: ")


def test_a_box_that_is_tried_again_is_that_of_its_client(worktree: Path) -> None:
    """The names of loops count clients, not tries."""
    engine = worktree.parent / "docker.sock"
    given = {"DOCKER_HOST": f"unix://{engine}"}
    with served(worktree, "--exec-id", "mcp-tried", **given) as server, wire(server) as first:
        numbers = itertools.count(1)

        def ran() -> bool:
            return "result" in answer(first.post("tools/call", next(numbers), **calls("true")))

        assert not ran()
        engine.symlink_to("/var/run/docker.sock")
        wait_until(ran)
        assert len(boxes("mcp-tried-1-")) == 1
        with wire(server) as second:
            second.command(1, "true")
            assert len(boxes("mcp-tried-2-")) == 1
        assert server.end(signal.SIGTERM).startswith("143: ")


# ─── the bare wire ──────────────────────────────────────────────────────────────────


def test_a_cancelled_call_is_ended_and_the_next_one_works(tmp_path: Path) -> None:
    """Its stream ends with an error, its processes are gone, and the session goes on."""
    worktree = with_file(tmp_path)
    with served(worktree) as server, wire(server) as found:
        with found.asked(1, "echo $$ > pid; sleep 60; touch PROOF") as response:
            wait_until((worktree / "pid").exists)
            found.post("notifications/cancelled", requestId=1, reason="enough")
            response.read()
            assert answer(response)["error"]["code"] == -32800
        text = found.command(2, "kill -0 $(cat pid) || echo gone; ls")
        assert "gone" in text and "PROOF" not in text


def test_who_hangs_up_keeps_the_session(tmp_path: Path) -> None:
    """A stream that is closed ends neither call nor session."""
    worktree = with_file(tmp_path)
    with served(worktree) as server, wire(server) as found:
        waits = "touch begun; until [ -e go ]; do read -t 0.05 <> <(:); done; touch over"
        with found.asked(1, waits):
            wait_until((worktree / "begun").exists)
        (worktree / "go").touch()
        wait_until((worktree / "over").exists)
        assert "over" in found.command(2, "ls")


def test_calls_that_nobody_waits_for_are_so_many_and_no_more(worktree: Path) -> None:
    """Who asks and hangs up, again and again, is refused; ending the session ends them all."""
    with served(worktree, "--exec-id", "mcp-many") as server, wire(server) as found:
        with found.asked(0, "touch begun; sleep 60"):
            wait_until((worktree / "begun").exists)
        for number in range(1, MAX_CALLS):
            with found.asked(number, f"touch PROOF-{number}"):
                pass  # the head of the answer is there, so the call is
        refused = answer(found.post("tools/call", 999, **calls("true")))
        assert "again" in refused["error"]["message"]
        assert answer(found.post("ping", 1000))["result"] == {}
        assert found.http.delete(server.url).status_code == 200
        wait_until(lambda: boxes("mcp-many") == [])
        assert list(worktree.glob("PROOF*")) == []


def test_a_session_that_is_ended_is_gone(worktree: Path) -> None:
    """DELETE ends running calls and the box; the name of the session is worth nothing then."""
    with served(worktree, "--exec-id", "mcp-gone") as server, wire(server) as found:
        with found.asked(1, "touch begun; sleep 60") as response:
            wait_until((worktree / "begun").exists)
            assert boxes("mcp-gone")
            assert found.http.delete(server.url).status_code == 200
            assert response.read().count(b"data: {") == 0
        wait_until(lambda: boxes("mcp-gone") == [])
        late = found.post("tools/list", 2)
        assert late.status_code == 404 and "initialize" in fault(late)
        assert found.http.get(server.url).status_code == 404
        with wire(server) as next_one:
            assert next_one.command(1, "echo on") == "on\n"


def test_a_session_that_nobody_uses_ends(worktree: Path) -> None:
    """After a time without requests its box is gone; one that listens is not left."""
    with served(worktree, "--exec-id", "mcp-idle", "--session-idle", "5") as server:
        with wire(server) as listens, listens.http.stream("GET", server.url) as stream:
            assert stream.status_code == 200
            listens.command(1, "true")
            with wire(server) as left:
                left.command(1, "true")
                wait_until(lambda: boxes("mcp-idle-2-") == [])
                assert left.post("ping", 2).status_code == 404
            assert boxes("mcp-idle-1-")
            assert answer(listens.post("ping", 2))["result"] == {}


def test_there_are_so_many_sessions_and_no_more(worktree: Path) -> None:
    """One too many is refused in words; when another has ended there is room at once."""
    with served(worktree, "--sessions", "1") as server:
        with wire(server) as first, newcomer(server) as late:
            refused = late.greet()
            assert refused.status_code == 503 and "--sessions" in fault(refused)
            assert first.command(1, "echo a") == "a\n"
        with wire(server) as second:
            assert second.command(1, "echo b") == "b\n"


def test_a_box_that_can_not_be_had_is_told(worktree: Path) -> None:
    """The client is told why, so is the person; the server serves on."""
    with served(worktree, "--image", "there-is-no-such-image") as server:
        for _ in range(2):
            with wire(server) as found:
                refused = answer(found.post("tools/list", 1))
                assert "there-is-no-such-image" in refused["error"]["message"]
        server.line(r"(there-is-no-such-image)")
        assert server.process.poll() is None
        assert server.end(signal.SIGINT).startswith("130: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything(worktree: Path, number: signal.Signals) -> None:
    """With a call that runs and a stream that is listened to: the usual code, and no box."""
    name = f"mcp-{number.name.lower()}"
    with served(worktree, "--exec-id", name) as server:
        with wire(server) as found, found.http.stream("GET", server.url):
            with found.asked(1, "touch begun; sleep 60"):
                wait_until((worktree / "begun").exists)
                assert boxes(name)
                said = server.end(number)
                assert said.startswith(f"{128 + number}: ") and "ended by" in said
                assert "Traceback" not in said and "Cancel" not in said, said
                assert boxes(name) == []


def test_what_a_killed_server_left_is_swept(worktree: Path) -> None:
    """After `kill -9` the reaper removes box and files."""
    state = {"EXECUTOR_STATE_DIR": str(worktree.parent / "state")}
    with served(worktree, "--exec-id", "mcp-killed", **state) as server:
        with wire(server) as found:
            found.command(1, "true")
            assert boxes("mcp-killed")
            server.end(signal.SIGKILL)
    command = [sys.executable, "-m", "executor", "reap"]
    subprocess.run(command, check=True, env={**os.environ, **state}, timeout=SECONDS)
    assert boxes("mcp-killed") == []
    assert list((worktree.parent / "state" / "controllers").iterdir()) == []


def test_who_does_not_read_holds_up_nobody_else(worktree: Path) -> None:
    """A client takes nothing of its large answers: other sessions go on, and the end comes."""
    (worktree / "big.png").write_bytes(PNG + os.urandom(3 << 20))
    with served(worktree) as server, wire(server) as deaf, wire(server) as other:
        asked = {"name": "read_file", "arguments": {"path": "big.png"}}
        body = json.dumps(message("tools/call", 1, **asked)).encode()
        request = head(server, len(body), deaf.http.headers["mcp-session-id"]) + body
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", server.port))
            raw.sendall(request * 5)
            wait_until(lambda: unsent(server.port, raw.getsockname()[1]) > 1 << 20)
            assert other.command(1, "echo here") == "here\n"
            said = server.end(signal.SIGTERM)
            assert said.startswith("143: ") and "Traceback" not in said, said


def unsent(port: int, peer: int) -> int:
    """Bytes that a connection's one end, with this port, has for the other, which takes none."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues, *_ = line.split()
        if here.endswith(f":{port:04X}") and there.endswith(f":{peer:04X}"):
            return int(queues.split(":")[0], 16)
    return 0


# ─── who is kept out ────────────────────────────────────────────────────────────────


def test_it_is_bound_to_the_loopback(one: Served) -> None:
    """Nothing listens on that port but under this machine's own address."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    listening = {row[1] for row in rows if row[3] == "0A"}
    assert {row for row in listening if row.endswith(f":{one.port:04X}")} == {
        f"0100007F:{one.port:04X}"
    }


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN} x", 401),
        (f"Bearer {TOKEN.upper()}", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("Bearer \xe9\xff", 401),
        (f"bearer {TOKEN}", 200),
    ],
)
def test_only_the_token_lets_in(one: Served, shown: str | None, status: int) -> None:
    """Everything else begins no session, and is told what to send, not what is right."""
    headers = {"accept": BOTH}
    if shown is not None:
        headers["authorization"] = shown
    given = {name: value.encode("latin-1") for name, value in headers.items()}
    with httpx.Client(headers=given, timeout=SECONDS) as http:  # type: ignore[arg-type]
        found = http.post(one.url, json=message("initialize", 0, **GREETING))
        ended(one, found)
        assert found.status_code == status
        assert TOKEN not in found.text
        if status == 401:
            assert found.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer" in fault(found)
            assert "mcp-session-id" not in found.headers


def test_a_session_is_no_way_around_the_token(one: Served) -> None:
    """Who knows a session's name and no token gets nothing of it, and ends nothing."""
    with wire(one) as found:
        name = {"mcp-session-id": found.http.headers["mcp-session-id"], "accept": BOTH}
        for method in ("GET", "POST", "DELETE", "PUT"):
            assert httpx.request(method, one.url, headers=name).status_code == 401
        assert answer(found.post("ping", 1))["result"] == {}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:PORT"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"host": "[::1"}, 421),
        ({"host": "127.0.0.1:1"}, 421),
        ({"host": "127.0.0.1:PORT.evil.example"}, 421),
        ({"host": "localhost:PORT"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:1"}, 403),
        ({"origin": "https://127.0.0.1:PORT"}, 403),
        ({"origin": "http://127.0.0.1:PORT"}, 200),
    ],
)
def test_pages_of_other_sites_are_kept_out(
    one: Served, headers: dict[str, str], status: int
) -> None:
    """A name that leads here, or a page's own origin, is refused even with the token."""
    given = {name: value.replace("PORT", str(one.port)) for name, value in headers.items()}
    with newcomer(one) as stranger:
        body = message("initialize", 0, **GREETING)
        found = stranger.http.post(one.url, json=body, headers=given)
        ended(one, found)
        assert found.status_code == status


def test_names_of_sessions_are_not_guessed(one: Served) -> None:
    """They differ wholly, and one that was never given out is refused."""
    with wire(one) as first, wire(one) as second:
        names = [each.http.headers["mcp-session-id"] for each in (first, second)]
        assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
        assert names[0] != names[1]
        for name in ("0" * 32, names[0][:-1], names[0] + "0", "", "x" * 10_000):
            first.http.headers["mcp-session-id"] = name
            assert first.post("tools/list", 1).status_code == 404
        first.http.headers["mcp-session-id"] = names[0]
        assert answer(first.post("ping", 2))["result"] == {}


@pytest.mark.parametrize("path", ["/", "/mcp/", "/mcp/x", "/.well-known/oauth-protected-resource"])
def test_there_is_one_path(one: Served, path: str) -> None:
    """Everything else is not there, with a token or without one."""
    url = f"http://127.0.0.1:{one.port}{path}"
    assert httpx.get(url).status_code == 404
    with newcomer(one) as stranger:
        found = stranger.http.post(url, json={})
        assert found.status_code == 404 and "/mcp" in fault(found)


def test_what_is_no_request_is_refused(one: Served) -> None:
    """Neither breaks a session, nor begins one."""
    with wire(one) as found:
        name = found.http.headers["mcp-session-id"]
        bodies = (b"nonsense", b"[]", b"\xff\xfe", b"{}", b"", b"[" * 100_000, b'{"id": "\\ud800"}')
        for body in bodies:
            bad = found.http.post(
                one.url, content=body, headers={"content-type": "application/json"}
            )
            assert bad.status_code == 400, body
            assert bad.headers.get("mcp-session-id", name) == name
        for method in ("PUT", "PATCH", "HEAD", "OPTIONS"):
            assert found.http.request(method, one.url).status_code == 405
        plain = found.http.post(one.url, content=b"{}", headers={"content-type": "text/plain"})
        assert plain.status_code == 400
        odd = {"mcp-protocol-version": "2099-01-01"}
        found.http.headers.update(odd)
        refused = found.post("tools/list", 1)
        assert refused.status_code == 400
        assert "2025-06-18" in refused.json()["error"]["data"]["supported"]
        del found.http.headers["mcp-protocol-version"]
        assert answer(found.post("tools/lists", 1))["error"]["code"] == -32601
        assert answer(found.post("ping", 2))["result"] == {}


def test_the_largest_file_passes_and_a_larger_request_does_not(one: Served) -> None:
    """Some twenty megabytes are written; what is larger than any may be is not even read."""
    with wire(one) as found:
        given = {"path": "large.txt", "content": "0123456789abcde\n" * (20 << 16)}
        wrote = answer(found.post("tools/call", 1, name="write_file", arguments=given))
        assert not wrote["result"]["isError"], wrote["result"]["content"][0]["text"][:500]
        size = found.command(2, "wc -c < large.txt; rm large.txt")
        assert size.strip() == str(20 << 20)
    with contextlib.closing(socket.create_connection(("127.0.0.1", one.port))) as raw:
        raw.sendall(head(one, mcp_http.MOST_BODY + 1))
        assert received(raw).startswith(b"HTTP/1.1 413 ")

    def pieces() -> Iterator[bytes]:
        for _ in range((mcp_http.MOST_BODY >> 20) + 1):
            yield bytes(1 << 20)

    with newcomer(one) as stranger:
        headers = {"content-type": "application/json"}
        assert stranger.http.post(one.url, content=pieces(), headers=headers).status_code == 413


# ─── slow and many ──────────────────────────────────────────────────────────────────


def test_slow_requests_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not come is refused, a head that does not come is not waited for."""

    async def run() -> None:
        async with serving(monkeypatch, BODY_SECONDS=0.2, HEAD_SECONDS=0.2) as port:
            assert b" 408 " in (await exchanged(port, begun(port) + b"{")).splitlines()[0]
            assert await exchanged(port, b"") == b""
            assert await exchanged(port, b"POST /mcp HTTP/1.1\r\nHost: ") == b""

    asyncio.run(run())


def test_a_refused_body_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the token the connection ends with the refusal, however much is still to come."""

    async def run() -> None:
        async with serving(monkeypatch) as port:
            bad = begun(port).replace(TOKEN.encode(), b"wrong")
            answers = (await exchanged(port, bad)).splitlines()
            assert b" 401 " in answers[0] and b"connection: close" in answers

    asyncio.run(run())


def test_there_are_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is closed at once; when another has gone there is room."""

    async def run() -> None:
        async with serving(monkeypatch, MOST_CONNECTIONS=3) as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            request = begun(port, "Content-Type: application/json", f"Accept: {BOTH}")
            assert await exchanged(port, request) == b""
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            whole = request.replace(b"Content-Length: 1000", b"Content-Length: 2") + b"{}"
            async with asyncio.timeout(SECONDS):
                while not (found := await exchanged(port, whole)):
                    await asyncio.sleep(0)
            assert b" 400 " in found.splitlines()[0]

    asyncio.run(run())


# ─── the token's file, and usage ────────────────────────────────────────────────────


def test_a_token_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """Where there is no file, one is made that nobody else can read; then it is the token."""
    file = tmp_path / "token"
    token = token_of(file)
    assert len(token) >= 40 and token_of(file) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token_of(tmp_path / "new" / "other") != token
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"", 0o600, "holds no token"),
        (b"\n", 0o600, "holds no token"),
        (b"x" * 15 + b"\n", 0o600, "16 or more"),
        (b"x" * 16 + b" y", 0o600, "without spaces"),
        (b"\xe9" * 20, 0o600, "ASCII"),
        (b"x" * 5000, 0o600, "holds no token"),
        (TOKEN.encode(), 0o640, "chmod 600"),
        (TOKEN.encode(), 0o604, "chmod 600"),
        (TOKEN.encode(), 0o602, "chmod 600"),
    ],
)
def test_a_token_that_is_none_is_refused(
    tmp_path: Path, content: bytes, mode: int, reason: str
) -> None:
    """One that is short, or that others can read, with what to do, and without what it is."""
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=reason) as caught:
        token_of(file)
    assert TOKEN not in str(caught.value)


def test_what_is_no_file_is_no_token(tmp_path: Path) -> None:
    """A directory, a pipe that nobody writes, and a place that can't be."""
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path, tmp_path / "pipe", tmp_path / "pipe" / "token"):
        with pytest.raises(ConfigError, match="--token-file"):
            token_of(file)


def test_bad_usage_is_said(worktree: Path) -> None:
    """Options that make no sense, or a token that the loop could change, end it at once."""
    (worktree / "token").write_text(TOKEN)
    (worktree / "token").chmod(0o600)
    outside = str(worktree.parent / "token")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        for options, reason in (
            (("--http", "0"), "--token-file FILE"),
            (("--sessions", "2"), "only with --http"),
            (("--token-file", outside), "only with --http"),
            (("--http", "0", "--token-file", str(worktree / "token")), "lies in the worktree"),
            (("--http", "0", "--token-file", outside, "--session-idle", "0"), "above 0"),
            (("--http", "0", "--token-file", outside, "--session-idle", "nan"), "above 0"),
            (("--http", "70000", "--token-file", outside), "65535"),
            (("--http", port, "--token-file", outside), "can't be had: Address already in use"),
        ):
            command = [sys.executable, "-m", "executor", "mcp", "--worktree", str(worktree)]
            done = subprocess.run(
                [*command, *options], capture_output=True, text=True, timeout=SECONDS, check=False
            )
            assert done.returncode == 2 and reason in done.stderr, done.stderr
            assert done.stdout == "" and TOKEN not in done.stderr


def test_the_configurations_of_clients_can_be_copied(one: Served, tmp_path: Path) -> None:
    """The server's command in the README starts one, and each client's block reaches it."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    section = readme.split("\n### Over HTTP\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```(sh|json|toml)\n(.*?)```", section, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "json", "toml", "json", "json"]
    (command,) = [line for line in blocks[0][1].splitlines() if line.startswith("executor mcp")]
    port = re.search(r"--http (\d+)", command)
    assert port is not None
    for kind, text in blocks[1:]:
        known = json.loads(text) if kind == "json" else tomllib.loads(text)
        known.pop("inputs", None)
        (servers,) = known.values()
        given = servers["sandbox"]
        assert given["url"] == f"http://127.0.0.1:{port[1]}/mcp"
        if kind == "toml":
            assert given["bearer_token_env_var"] == "EXECUTOR_MCP_TOKEN"
            continue
        header = given["headers"]["Authorization"]
        header = re.sub(r"\$\{[\w:-]+\}", one.token, header)
        url = given["url"].replace(port[1], str(one.port))
        found = httpx.post(
            url,
            json=message("initialize", 0, **GREETING),
            headers={"authorization": header, "accept": BOTH},
            timeout=SECONDS,
        )
        ended(one, found)
        assert found.status_code == 200
