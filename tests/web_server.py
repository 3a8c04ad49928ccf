"""A server on this machine that says what it is told to, byte for byte, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Asked:
    """A request as it came.

    Attributes:
        line: its first line.
        headers: by their names in lower case.
        body: as long as `Content-Length` says.
    """

    line: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """What is asked for."""
        return self.line.split(" ")[1]


Answer: TypeAlias = bytes | Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """A server that listens.

    Attributes:
        port: of 127.0.0.1.
        answers: path → what is sent, by itself or by a function.
        asked: requests so far.
    """

    port: int
    answers: dict[str, Answer]
    asked: list[Asked] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, one answer."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await _read(reader)
            self.asked.append(request)
            answer = self.answers.get(request.path.partition("?")[0], reply(b"none", status=404))
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(request, writer)
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked:
    line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    pairs = (one.partition(":") for one in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Asked(line, headers, await reader.readexactly(int(headers.get("content-length", 0))))


def reply(
    body: bytes = b"", kind: str | None = "text/plain", status: int = 200, **headers: str
) -> bytes:
    """A whole answer; an underscore in a header's name stands for a hyphen."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"Content-Type: {kind}"] if kind is not None else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def redirect(to: str, status: int = 302) -> bytes:
    """An answer that leads elsewhere."""
    return reply(b"", None, status, Location=to)


@contextlib.asynccontextmanager
async def site(
    answers: Mapping[str, Answer], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    """A server with these answers, until the end."""
    made = Site(0, dict(answers))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
