"""Connections that the agent carries: a real agent, real sockets, and the host's channels."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from executor.agent.frame import MAX_CONNECTIONS, WINDOW
from executor.agent.proxy import BUFFER
from executor.bytestream import StreamClosed
from executor.errors import Code, SandboxError, ToolError
from executor.sandbox.box import Sandbox
from executor.sandbox.channels import Channel
from tests.local_box import free_port, open_local_box

SOON = 60.0
MIB = 1 << 20
LARGE = random.Random(6).randbytes(8 * MIB)
"""More than all buffers on the way hold."""
RESET = struct.pack("ii", 1, 0)


def in_time(work: Awaitable[None]) -> None:
    """Run it, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(SOON):
            await work

    asyncio.run(bounded())


async def until(is_so: Callable[[], bool]) -> None:
    """Until something is so that nothing tells of; the test's own limit bounds it."""
    while not is_so():
        await asyncio.sleep(0.005)


@dataclass
class Place:
    """An agent with a proxy, and the host's ends of the connections to it.

    Attributes:
        served: those that the host has taken, in turn.
        ended: set, lets what serves them return.
    """

    box: Sandbox
    port: int
    served: asyncio.Queue[Channel]
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def client(self, buffer: int = 0) -> socket.socket:
        """A program's connection to the proxy."""
        made = socket.socket()
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self.port))
        return made

    async def pair(self, buffer: int = 0) -> tuple[socket.socket, Channel]:
        """A connection: the program's end, and the host's."""
        client = await self.client(buffer)
        return client, await self.served.get()

    async def turn(self) -> None:
        """A call and its answer: whatever the agent had to do before is done."""
        await self.box.request("stat", {"path": "."}, timeout=30)

    def open(self) -> int:
        """Connections that the host counts as open."""
        return len(self.box._connection.channels._open)

    def pid(self) -> int:
        """The agent's."""
        return int(self.box._connection._ready.result()["pid"])

    def descriptors(self) -> int:
        """Those that the agent has open."""
        return len(os.listdir(f"/proc/{self.pid()}/fd"))


@asynccontextmanager
async def placed(directory: Path) -> AsyncIterator[Place]:
    """An agent whose proxy is served by the test."""
    for name in ("root", "scratch"):
        (directory / name).mkdir()
    served: asyncio.Queue[Channel] = asyncio.Queue()
    ended = asyncio.Event()

    async def serve(stream: Any) -> None:
        served.put_nowait(stream)
        await ended.wait()

    port = free_port()
    opened = open_local_box(directory / "root", directory / "scratch", serve=serve, port=port)
    async with opened as box:
        yield Place(box, port, served, ended)


async def received(client: socket.socket) -> bytes:
    """All that comes until the end."""
    data = bytearray()
    while piece := await asyncio.get_running_loop().sock_recv(client, 1 << 16):
        data += piece
    return bytes(data)


async def read(stream: Channel) -> bytes:
    """All that comes until the end."""
    data = bytearray()
    while piece := await stream.read():
        data += piece
    return bytes(data)


def sending(client: socket.socket, data: bytes) -> asyncio.Task[None]:
    """Sends it and says the end."""

    async def work() -> None:
        await asyncio.get_running_loop().sock_sendall(client, data)
        client.shutdown(socket.SHUT_WR)

    return asyncio.create_task(work())


def test_both_directions_carry_everything_and_end_by_themselves(tmp_path: Path) -> None:
    """What a client sends after the answer's end arrives too, and then nothing is left open."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            before = place.descriptors()
            client, stream = await place.pair()
            await stream.write(b"first")
            await stream.write_eof()
            assert await received(client) == b"first"
            sent = sending(client, LARGE)
            assert hashlib.sha256(await read(stream)).digest() == hashlib.sha256(LARGE).digest()
            await sent
            client.close()
            await until(lambda: not place.open())
            await place.turn()
            assert place.descriptors() == before
            with pytest.raises(StreamClosed):
                await stream.write(b"x")

    in_time(work())


def test_a_host_that_does_not_read_stops_the_client(tmp_path: Path) -> None:
    """It holds a window and no byte more, and calls are answered; then all of it arrives."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            client, stream = await place.pair()
            sent = sending(client, LARGE)
            await until(lambda: len(stream._buffer) >= WINDOW)
            for _ in range(3):
                await place.turn()
            assert len(stream._buffer) == WINDOW
            assert not sent.done()
            assert await read(stream) == LARGE
            await sent
            client.close()

    in_time(work())


def test_a_client_that_does_not_read_stops_the_host(tmp_path: Path) -> None:
    """What the agent and its socket hold is bounded; another connection goes on; all arrives."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            client, stream = await place.pair(buffer=BUFFER)
            writing = asyncio.create_task(stream.write(LARGE))
            await until(lambda: not stream._credit and len(stream._data) < len(LARGE))
            for _ in range(3):
                await place.turn()
            assert not writing.done()
            # A window in the agent, and twice a buffer, which Linux doubles, on either side.
            assert len(LARGE) - len(stream._data) <= WINDOW + 8 * BUFFER

            other, beside = await place.pair()
            await beside.write(b"beside")
            await beside.write_eof()
            assert await received(other) == b"beside"
            receiving = asyncio.create_task(received(client))
            await writing
            await stream.write_eof()
            assert await receiving == LARGE
            client.close()
            other.close()

    in_time(work())


def test_a_reset_is_one_on_the_other_side(tmp_path: Path) -> None:
    """The host's reader and writer are told; a client of a connection that the host ends too."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            client, stream = await place.pair()
            writing = asyncio.create_task(stream.write(LARGE))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
            with pytest.raises(StreamClosed, match="reset"):
                await stream.read()
            with pytest.raises(StreamClosed, match="reset"):
                await writing

            client, stream = await place.pair()
            stream.abort("enough")
            stream.abort("enough")
            with pytest.raises(ConnectionResetError):
                await received(client)
            client.close()
            await until(lambda: not place.open())
            await place.turn()

    in_time(work())


def test_more_connections_than_are_carried_wait_for_a_place(tmp_path: Path) -> None:
    """The sixty-fifth is connected, and served once another has ended."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            pairs = [await place.pair() for _ in range(MAX_CONNECTIONS)]
            waiting = [await place.client() for _ in range(6)]
            for _ in range(3):
                await place.turn()
            assert place.open() == MAX_CONNECTIONS
            assert place.served.empty()
            for (client, stream), _ in zip(pairs, waiting, strict=False):
                client.close()
                assert await stream.read() == b""
                await stream.write_eof()
                await place.served.get()
            await place.turn()
            assert place.open() == MAX_CONNECTIONS
            for client in (*(client for client, _ in pairs), *waiting):
                client.close()

    in_time(work())


def test_clients_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    """A hundred that were reset, most while they waited, and one more is served as the first."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            before = place.descriptors()
            for client in [await place.client() for _ in range(MAX_CONNECTIONS + 40)]:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
            place.ended.set()  # whoever was served is over at once
            client = await place.client()
            client.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert await received(client) == b""
            client.close()
            await until(lambda: not place.open())
            await place.turn()
            assert place.descriptors() == before
            assert place.box.error is None

    in_time(work())


MANY = 8
EACH = 2 * MIB


@pytest.mark.parametrize("is_upload", [True, False], ids=["to the host", "to the box"])
def test_connections_take_turns(tmp_path: Path, *, is_upload: bool) -> None:
    """When the first of eight equal transfers is done, each other has had a quarter of its own."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            pairs = [await place.pair() for _ in range(MANY)]
            got = [0] * MANY
            first: list[int] = []

            async def take(number: int, take: Callable[[], Awaitable[bytes]]) -> None:
                while piece := await take():
                    got[number] += len(piece)
                first[:] = first or got

            async def give(stream: Channel) -> None:
                await stream.write(bytes(EACH))
                await stream.write_eof()

            loop = asyncio.get_running_loop()
            async with asyncio.TaskGroup() as group:
                for number, (client, stream) in enumerate(pairs):
                    if is_upload:
                        sending(client, bytes(EACH))
                        group.create_task(take(number, stream.read))
                    else:
                        group.create_task(give(stream))
                        far = client
                        group.create_task(
                            take(number, lambda far=far: loop.sock_recv(far, 1 << 16))  # type: ignore[misc]
                        )
            assert got == [EACH] * MANY
            assert min(first) >= EACH // 4
            for client, _ in pairs:
                client.close()

    in_time(work())


def test_calls_output_and_connections_share_the_stream(tmp_path: Path) -> None:
    """Beside a flood of live output and of a connection, calls are answered and bytes arrive."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            client, stream = await place.pair()
            live = carried = 0

            def on_output(channel: str, data: bytes) -> None:
                nonlocal live
                live += len(data)

            async def carry() -> None:
                nonlocal carried
                while piece := await stream.read():
                    carried += len(piece)

            async def pour() -> None:
                while True:
                    await asyncio.get_running_loop().sock_sendall(client, bytes(1 << 16))

            given: dict[str, Any] = {"timeout": 50, "merge": False, "head": 9, "tail": 9}
            given |= {"stream": True, "grace": 0.1, "environment": {}}
            given |= {"command": "yes", "argv": None, "cwd": None}
            flood = asyncio.create_task(place.box.request("run", given, on_output=on_output))
            tasks = [asyncio.create_task(carry()), asyncio.create_task(pour())]
            for _ in range(10):
                before = live, carried
                await until(lambda seen=before: live > seen[0] and carried > seen[1])  # type: ignore[misc]
                await place.turn()
            assert place.box.error is None
            flood.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(flood, *tasks, return_exceptions=True)
            client.close()

    in_time(work())


def test_an_agent_that_is_killed_ends_its_connections(tmp_path: Path) -> None:
    """Reader, writer, dialler and what serves them: each is told, and nothing is left."""

    async def work() -> None:
        with suppress(SandboxError):
            async with placed(tmp_path) as place:
                client, stream = await place.pair()
                writing = asyncio.create_task(stream.write(LARGE))
                await until(lambda: not stream._credit)
                os.kill(place.pid(), signal.SIGKILL)
                with pytest.raises(StreamClosed, match="the box is lost"):
                    await stream.read()
                with pytest.raises(StreamClosed, match="the box is lost"):
                    await writing
                with pytest.raises(SandboxError):
                    await place.box.dial(1)
                await place.box._connection.channels.finish()
                assert not place.box._connection.channels._tasks
                client.close()

    in_time(work())


# ─── to programs in the box ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_host_reaches_a_server_of_the_box(tmp_path: Path, address: str) -> None:
    """On IPv4 or on IPv6 alone: all bytes there and back, and the end in each direction."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def work() -> None:
        async with placed(tmp_path) as place, await asyncio.start_server(echo, address, 0) as near:
            stream: Any = await place.box.dial(near.sockets[0].getsockname()[1])
            reading = asyncio.create_task(read(stream))
            await stream.write(LARGE)
            await stream.write_eof()
            assert await reading == LARGE
            await until(lambda: not place.open())

    in_time(work())


def test_a_port_where_nobody_listens_is_refused(tmp_path: Path) -> None:
    """With a sentence that says what to do; a port that is none too, and none stays open."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            with pytest.raises(ToolError, match="start the server first") as caught:
                await place.box.dial(free_port())
            assert caught.value.code == Code.NETWORK_ERROR
            for port in (0, -1, 65536):
                with pytest.raises(ToolError, match="is no port"):
                    await place.box.dial(port)
            await until(lambda: not place.open())

    in_time(work())


def test_a_server_that_takes_nobody_costs_its_own_dial(tmp_path: Path) -> None:
    """It is given up in time or when nobody waits any more; the next one goes through."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            before = place.descriptors()
            with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
                port = full.getsockname()[1]
                filling = [socket.socket() for _ in range(3)]
                for one in filling:
                    one.setblocking(False)
                    one.connect_ex(("127.0.0.1", port))
                with pytest.raises(ToolError, match="did not answer within") as caught:
                    await place.box.dial(port, timeout=0.1)
                assert caught.value.code == Code.TIMEOUT
                dialling = asyncio.create_task(place.box.dial(port))
                await until(lambda: place.open() > 0)
                await place.turn()
                dialling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await dialling
                await until(lambda: not place.open())
                await place.turn()
                assert place.descriptors() == before
                for one in filling:
                    one.close()
            with socket.create_server(("127.0.0.1", 0)) as listening:
                (await place.box.dial(listening.getsockname()[1])).abort()
                await until(lambda: not place.open())

    in_time(work())


def test_too_many_dials_are_a_limit(tmp_path: Path) -> None:
    """One more than may be open is refused at once; one that has ended makes room."""

    async def work() -> None:
        async with placed(tmp_path) as place:
            with socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS + 8) as listening:
                port = listening.getsockname()[1]
                streams = [await place.box.dial(port) for _ in range(MAX_CONNECTIONS)]
                with pytest.raises(ToolError) as caught:
                    await place.box.dial(port)
                assert caught.value.code == Code.LIMIT
                streams[0].abort()
                await until(lambda: place.open() < MAX_CONNECTIONS)
                await place.box.dial(port)

    in_time(work())
