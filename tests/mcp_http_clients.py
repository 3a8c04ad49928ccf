"""A server of `executor mcp --http`, and the bare requests of its clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from executor.frontends import mcp_http
from executor.frontends.mcp_server import LoopServer
from executor.frontends.options import HttpTerms
from executor.loop import Loop
from tests.mcp_clients import GREETING, SECONDS

TOKEN = "a-token-of-the-tests-0123456789"
BOTH = "application/json, text/event-stream"


class Served:
    """A server, and what it has said to people."""

    def __init__(self, process: subprocess.Popen[str], token: str) -> None:
        self.process = process
        self.token = token
        self.said: list[str] = []
        self._news = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.url = self.line(r"serving on (http://127\.0\.0\.1:\d+/mcp)")
        self.port = int(self.url.split(":")[2].split("/")[0])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.said.append(line)
                self._news.notify_all()
        with self._news:
            self.said.append("(the end)")
            self._news.notify_all()

    def line(self, pattern: str) -> str:
        """What a group of the pattern is in a line that was or will be said."""

        def found() -> re.Match[str] | None:
            matches = (re.search(pattern, line) for line in self.said)
            return next((match for match in matches if match is not None), None)

        with self._news:
            self._news.wait_for(lambda: found() or "(the end)" in self.said, SECONDS)
            match = found()
        assert match is not None, self.said
        return match[match.re.groups]

    def end(self, number: signal.Signals) -> str:
        """Its exit code and all that it has said, after a signal."""
        self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        self._reading.join(SECONDS)
        return f"{code}: {''.join(self.said)}"


@contextlib.contextmanager
def served(worktree: Path, *options: str, **environment: str) -> Iterator[Served]:
    """A server over this worktree; ended at the end, however it goes."""
    file = worktree.parent / "token"
    if not file.exists():
        file.write_text(TOKEN + "\n")
        file.chmod(0o600)
    command = [sys.executable, "-m", "executor", "mcp", "--worktree", str(worktree)]
    command += ["--http", "0", "--token-file", str(file), *options]
    given = {**os.environ, **environment}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=given) as process:
        try:
            yield Served(process, TOKEN)
        finally:
            process.terminate()  # which leaves no box
            try:
                process.wait(SECONDS)
            finally:
                process.kill()


class Wire:
    """The bare requests of a client."""

    def __init__(self, server: Served) -> None:
        self.server = server
        headers = {"authorization": f"Bearer {server.token}", "accept": BOTH}
        self.http = httpx.Client(headers=headers, timeout=SECONDS)

    def post(self, method: str, number: int | None = None, **params: Any) -> httpx.Response:
        """One message."""
        return self.http.post(self.server.url, json=message(method, number, **params))

    def greet(self) -> httpx.Response:
        """Begin a session, if there is one to be had."""
        found = self.post("initialize", 0, **GREETING)
        if found.status_code == 200:
            self.http.headers["mcp-session-id"] = found.headers["mcp-session-id"]
            assert self.post("notifications/initialized").status_code == 202
        return found

    def command(self, number: int, command: str) -> str:
        """What a command prints."""
        result = answer(self.post("tools/call", number, **calls(command)))["result"]
        return str(result["content"][0]["text"])

    @contextlib.contextmanager
    def asked(self, number: int, command: str) -> Iterator[httpx.Response]:
        """An answer that is still to come, to such a request."""
        body = message("tools/call", number, **calls(command))
        with self.http.stream("POST", self.server.url, json=body) as response:
            yield response


def message(method: str, number: int | None = None, **params: Any) -> dict[str, Any]:
    """A request, or a notification."""
    found: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return found if number is None else {**found, "id": number}


def calls(command: str) -> dict[str, Any]:
    """Parameters of a call that runs a command."""
    return {"name": "run_command", "arguments": {"command": command}}


def answer(response: httpx.Response) -> dict[str, Any]:
    """The last message of a response."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    found: dict[str, Any] = json.loads(lines[-1][len("data: ") :])
    return found


@contextlib.contextmanager
def newcomer(server: Served) -> Iterator[Wire]:
    """A client that has begun no session."""
    found = Wire(server)
    with found.http:
        yield found


@contextlib.contextmanager
def wire(server: Served) -> Iterator[Wire]:
    """A client with a session, which it ends."""
    with newcomer(server) as found:
        assert found.greet().status_code == 200
        yield found
        with contextlib.suppress(httpx.TransportError):  # it may be the end of the server, too
            assert found.http.delete(server.url).status_code in (200, 404)


def ended(server: Served, response: httpx.Response) -> None:
    """End the session that this began, if it did."""
    if (name := response.headers.get("mcp-session-id")) is not None:
        headers = {"authorization": f"Bearer {server.token}", "mcp-session-id": name}
        assert httpx.delete(server.url, headers=headers, timeout=SECONDS).status_code == 200


def fault(response: httpx.Response) -> str:
    """What a refusal says."""
    text: str = response.json()["error"]["message"]
    return text


def head(server: Served, size: int, session: str | None = None) -> bytes:
    """Of a bare request with the right token."""
    lines = ["POST /mcp HTTP/1.1", f"Host: 127.0.0.1:{server.port}", f"Accept: {BOTH}"]
    lines += [f"Authorization: Bearer {server.token}", "Content-Type: application/json"]
    lines += [f"Content-Length: {size}"]
    lines += [f"Mcp-Session-Id: {session}"] if session is not None else []
    return "\r\n".join([*lines, "", ""]).encode()


def received(raw: socket.socket) -> bytes:
    """All that comes until the other end is closed."""
    raw.settimeout(SECONDS)
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := raw.recv(1 << 16):
            data += piece
    return data


@contextlib.asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, **limits: float) -> AsyncIterator[int]:
    """The port of a server in this process, with limits that a test can wait for."""
    for name, value in limits.items():
        monkeypatch.setattr(mcp_http, name, value)
    said: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(mcp_http, "say", lambda text: said.set_result(int(text.split(":")[2][:-4])))

    async def keep(opened: asyncio.Future[Loop], end: asyncio.Event) -> None:
        await end.wait()

    def new(opened: Callable[[], Any]) -> LoopServer:
        return LoopServer(opened, "1")

    terms = HttpTerms(0, Path("none"), sessions=2, idle=SECONDS)
    task = asyncio.create_task(mcp_http.serve(terms, TOKEN, lambda: keep, new))
    try:
        yield await said
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def exchanged(port: int, sent: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        async with asyncio.timeout(SECONDS):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def begun(port: int, *more: str) -> bytes:
    """The head of a request with the right token and a body that is longer than what comes."""
    lines = ["POST /mcp HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {TOKEN}"]
    return "\r\n".join([*lines, "Content-Length: 1000", *more, "", ""]).encode()
