"""Clients of `executor mcp` over stdin and stdout, and what those over HTTP share with them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.conftest import make_worktree

SECONDS = 60.0
SERVER = ("-m", "executor", "mcp", "--worktree")
ABOUT = {"name": "test", "version": "1"}
GREETING = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": ABOUT}


def with_file(directory: Path) -> Path:
    """A worktree with one file, in the directory."""
    root = make_worktree(directory / "worktree")
    (root / "a.txt").write_text("one\ntwo\n")
    shutil.chown(root / "a.txt", root.stat().st_uid, root.stat().st_gid)
    return root


def boxes(name: str) -> list[str]:
    """Names of the containers of loops whose names begin so."""
    asked = ["docker", "ps", "-a", "--format", "{{.Names}}"]
    asked += ["--filter", f"name=executor-{name}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()


def text_of(result: types.CallToolResult) -> str:
    """The text of a result that is one text."""
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


class Progress:
    """What a client is told of a call: its handler of progress.

    Attributes:
        told: numbers and messages.
        first: there is one.
    """

    def __init__(self) -> None:
        self.told: list[tuple[float, str | None]] = []
        self.first = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """A notification."""
        self.told.append((progress, message))
        self.first.set()


@contextlib.asynccontextmanager
async def client(worktree: Path, *options: str, **handlers: Any) -> AsyncIterator[ClientSession]:
    """The SDK's client of a server over this worktree."""
    given = StdioServerParameters(
        command=sys.executable,
        args=[*SERVER, str(worktree), *options],
        env={**os.environ},
    )
    async with asyncio.timeout(SECONDS), stdio_client(given) as (incoming, outgoing):
        async with ClientSession(incoming, outgoing, **handlers) as session:
            await session.initialize()
            yield session


class Wire:
    """A server, and the bare messages of a client."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._buffer = b""

    def send(self, message: dict[str, Any] | bytes) -> None:
        """One line."""
        assert self.process.stdin is not None
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(text + b"\n")
        self.process.stdin.flush()

    def request(self, number: int, method: str, **params: Any) -> None:
        """A request."""
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def call(self, number: int, command: str) -> None:
        """A request to run a command."""
        self.request(number, "tools/call", name="run_command", arguments={"command": command})

    def cancel(self, number: int) -> None:
        """Say that the answer to a request is not wanted any more."""
        params = {"requestId": number, "reason": "enough"}
        method = "notifications/cancelled"
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def receive(self) -> dict[str, Any]:
        """The next message; each line is one."""
        assert self.process.stdout is not None
        until = time.monotonic() + SECONDS
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            assert ready, "the server says nothing"
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, "the server has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        assert found["jsonrpc"] == "2.0"
        return found

    def greet(self) -> dict[str, Any]:
        """The handshake."""
        self.request(0, "initialize", **GREETING)
        found = self.receive()
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return found


@contextlib.contextmanager
def served(worktree: Path, *options: str) -> Iterator[Wire]:
    """A server over this worktree; ended at the end, however it goes."""
    command = [sys.executable, *SERVER, str(worktree), *options]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield Wire(process)
        finally:
            process.kill()
