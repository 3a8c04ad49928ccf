"""A real agent process on this machine, without a container: the `local` transport.

Only for tests. The product has no path that runs a command on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import secrets
import shutil
import socket
import sys
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import executor.agent
from executor.errors import SandboxError
from executor.sandbox.box import Sandbox
from executor.sandbox.channels import Accept
from executor.sandbox.connection import Connection


def _library() -> str:
    """The PDFium that is installed with the tests."""
    found = importlib.util.find_spec("pypdfium2_raw")
    assert found is not None, "the package pypdfium2 is installed with the tests"
    assert found.origin is not None
    return str(Path(found.origin).with_name("libpdfium.so"))


AGENT = Path(executor.agent.__file__).parent
PDF = (sys.executable, _library())
MARKUP = (sys.executable, sysconfig.get_path("purelib"))
RIPGREP = shutil.which("rg", path=str(Path(sys.executable).parent))


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ChildStream:
    """The agent's pipes as the writing and reading end of a `Connection`."""

    def __init__(self, child: asyncio.subprocess.Process, connection: Connection) -> None:
        self._child = child
        self._connection = connection
        self._tasks = [
            asyncio.ensure_future(self._read(child.stdout, connection.received)),
            asyncio.ensure_future(self._read(child.stderr, connection.received_stderr)),
        ]
        connection.connected(self)

    async def _read(self, pipe: asyncio.StreamReader | None, take: Any) -> None:
        assert pipe is not None
        while data := await pipe.read(1 << 16):
            take(data)
        if take == self._connection.received:
            self._connection.closed("the agent's output ended")

    def write(self, data: bytes) -> None:
        """Send to the agent."""
        assert self._child.stdin is not None
        self._child.stdin.write(data)

    def close(self) -> None:
        """End the stream."""
        assert self._child.stdin is not None
        self._child.stdin.close()


@contextlib.asynccontextmanager
async def open_local_box(
    root: Path, scratch: Path, lease: float = 30.0, serve: Accept | None = None, port: int = 0
) -> AsyncIterator[Sandbox]:
    """An agent over `root`; it and what it started are gone at the end.

    Args:
        serve: serves connections to the agent's proxy; None = it has none.
        port: where it listens; 0 = a free one. Commands find it in `HTTP_PROXY`.
    """
    port = port or free_port()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        "-B",
        str(AGENT),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
    )
    connection = Connection(
        None,
        lambda error: connection.fail_waiting(error),  # noqa: PLW0108 (it is not there yet)
        accept=serve,
    )
    ChildStream(child, connection)
    try:
        await connection.hello(
            {
                "lease": lease,
                "root": str(root),
                "scratch": str(scratch),
                # Processes are told apart by it, and others may run these tests beside.
                "box": f"local-{secrets.token_hex(4)}",
                "ripgrep": RIPGREP,
                "pdf": PDF,
                "markup": MARKUP,
                "environment": {
                    "PATH": "/usr/local/bin:/usr/bin:/bin",
                    "HOME": str(scratch),
                    "LANG": "C.UTF-8",
                    "LC_ALL": "C.UTF-8",
                    **({"HTTP_PROXY": f"http://127.0.0.1:{port}"} if serve else {}),
                },
                **({"proxy": port} if serve else {}),
            },
            timeout=20,
        )
        if serve is not None:
            await connection.request("shell", {})  # HELLO has been read, and the proxy listens
        yield Sandbox("local", "local", connection, {})
    finally:
        with contextlib.suppress(SandboxError):
            connection.close()
        await connection.channels.finish()
        async with asyncio.timeout(10):
            await child.wait()
