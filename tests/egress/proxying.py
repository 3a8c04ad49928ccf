"""A broker with real connections on both sides: what the tests of the proxy stand on."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executor.audit import AuditLog
from executor.egress import Broker, Dialler, Patience, Waits
from executor.egress.secrets import Secrets
from executor.egress.streams import SocketStream
from executor.model import EgressOptions

SOON = 20.0
BOX = "executor-box-1"
NAME = "upstream.example"


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run it, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(SOON * 2):
            await work

    asyncio.run(bounded())


class Names:
    """A name server: answers what it is told, and remembers what it was asked."""

    def __init__(self, **answers: str | Sequence[str]) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []

    def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        found = self.answers.get(name)
        if callable(found):
            found = found()
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found] if isinstance(found, str) else list(found)


@dataclass
class Client:
    """The far end of a connection to the proxy, as a program in a box has it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served: asyncio.Task[None]

    async def send(self, data: bytes) -> None:
        """Sends all of it."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        """The head of one answer."""
        async with asyncio.timeout(SOON):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def rest(self) -> bytes:
        """Everything until the proxy ends the connection."""
        async with asyncio.timeout(SOON):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Sends it; the answer up to the connection's end: status, headers, body."""
        await self.send(data)
        return parts(await self.rest())

    async def refusal(self, data: bytes) -> tuple[int, dict[str, Any]]:
        """Sends it; status and JSON body of an answer of the proxy itself."""
        status, headers, body = await self.ask(data)
        said = json.loads(body)
        assert headers["content-type"] == "application/json"
        assert headers["x-executor-egress"] == said["reason"]
        return status, said

    def close(self) -> None:
        """Ends it."""
        self.writer.close()


def parts(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a whole answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, body


@dataclass
class Proxy:
    """A broker, its name server, and the boxes that speak to it."""

    broker: Broker
    names: Names
    log: AuditLog
    clients: list[Client] = field(default_factory=list)

    async def open(self, lane: str = "net", sandbox: str = BOX) -> Client:
        """One more connection of a box."""
        near, far = socket.socketpair()
        stream = SocketStream(*await asyncio.open_connection(sock=near))
        served = asyncio.create_task(self.broker.serve(lane, stream, sandbox))
        client = Client(*await asyncio.open_connection(sock=far), served)
        self.clients.append(client)
        return client

    async def lines(self) -> list[dict[str, Any]]:
        """What is in the journal, once all is in it; the connections are ended."""
        for client in self.clients:
            client.close()
        await self.broker.aclose()
        if not self.log.path.exists():
            return []
        return [json.loads(line) for line in self.log.path.read_text().splitlines()]


QUICK = Patience(resolve=2.0, connect=1.0, dial=3.0)


@asynccontextmanager
async def proxy(
    state: Path,
    *hosts: str,
    private: Sequence[str] = (NAME,),
    waits: Waits | None = None,
    patience: Patience = QUICK,
    secrets: Secrets | None = None,
    **options: Any,
) -> AsyncIterator[Proxy]:
    """A broker that allows these hosts to lane `net`; `upstream.example` is this machine."""
    names = Names()
    names.answers[NAME] = "127.0.0.1"
    log = AuditLog(state)
    broker = Broker(
        EgressOptions(hosts=hosts, private=tuple(private), **options),
        exec_id="loop-1",
        tenant="tenant-1",
        journal=log,
        secrets=secrets,
        dialler=Dialler(names, patience),
        open_lanes=("net",),
        waits=waits,
    )
    made = Proxy(broker, names, log)
    async with broker:
        yield made
        for client in made.clients:
            client.close()


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """A server on the loopback, and all bytes that have reached it."""

    port: int = 0
    seen: bytearray = field(default_factory=bytearray)
    connections: int = 0


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Runs `answer` for each connection; ends them when it is left."""
    made = Server()
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()


def saying(made: bytes, seen: list[bytes] | None = None) -> Answer:
    """Reads one head, with the body that it announces, and answers with these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        length = parts(request.replace(b" ", b" 0 ", 1))[1].get("content-length", "0")
        request += await reader.readexactly(int(length))
        if seen is not None:
            seen.append(request)
        writer.write(made)
        await writer.drain()

    return answer


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


def certificate(directory: Path, name: str = NAME) -> tuple[Path, Path]:
    """A certificate for a name, signed by itself, and its key."""
    made, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(made)),
        ],
        check=True,
        capture_output=True,
    )
    return made, key


def get(server: Server, path: str = "/", more: str = "", method: str = "GET") -> bytes:
    """A plain request for the server, by its name."""
    host = f"{NAME}:{server.port}"
    return f"{method} http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


def client_hello(server: str | None, **settings: Any) -> bytes:
    """What OpenSSL sends first to a server of this name."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for name, value in settings.items():
        setattr(context, name, value)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=server)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()
