"""Carried connections against an agent that lies: the host keeps little, and the box is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from executor.agent import frame
from executor.agent.frame import FROM_BOX, MAX_CONNECTIONS, WINDOW, Parser, encode, encode_json
from executor.bytestream import ByteStream, StreamClosed
from executor.errors import ProtocolError, ToolError
from executor.sandbox.channels import LATE, PIECE, Accept
from executor.sandbox.connection import Connection
from tests.scripted import Deaf

A = FROM_BOX
OPEN = encode(frame.OPEN, A)
SHUT = encode(frame.SHUT, A)
PUSH = encode(frame.PUSH, A, bytes(PIECE))


def grant(value: Any) -> bytes:
    """A GRANT of anything."""
    return encode_json(frame.GRANT, A, {"bytes": value})


BREACHES = {
    "more than was granted": OPEN + PUSH * (WINDOW // PIECE + 1),
    "an empty piece": OPEN + encode(frame.PUSH, A),
    "a piece over the cap": OPEN + encode(frame.PUSH, A, bytes(PIECE + 1)),
    "a channel that is not open": PUSH,
    "the end of one that is not open": SHUT,
    "a grant for one that is not open": grant(1),
    "a channel twice": OPEN + OPEN,
    "a channel of the host's numbers": encode(frame.OPEN, 1),
    "too many": b"".join(encode(frame.OPEN, A + i) for i in range(MAX_CONNECTIONS + 1)),
    "bytes after the end": OPEN + SHUT + encode(frame.PUSH, A, b"x"),
    "two ends": OPEN + SHUT + SHUT,
    "a frame after ABORT": OPEN + encode_json(frame.ABORT, A, {"reason": ""}) + SHUT,
    "a grant over a window": OPEN + grant(WINDOW) + grant(1),
    "a reason that is no text": OPEN + encode_json(frame.ABORT, A, {"reason": 1}),
    "a long reason": OPEN + encode_json(frame.ABORT, A, {"reason": "x" * 9999}),
    **{f"a grant of {v!r}": OPEN + grant(v) for v in (0, -1, True, "1", 1.5, None, 1 << 63)},
}


async def silent(stream: ByteStream) -> None:
    """Serves a connection by never reading it."""
    await asyncio.Event().wait()


@pytest.mark.statement("J5")
@pytest.mark.parametrize("what", BREACHES)
def test_what_an_agent_may_not_say_of_a_connection_costs_the_box(what: str) -> None:
    """Each breach loses the box, and nothing that served its connections is left."""

    async def run() -> Connection:
        connection = Connection(None, lambda error: None, accept=silent)
        connection.connected(Deaf())
        connection.received(BREACHES[what])
        connection.fail_waiting(connection.error or ProtocolError("nothing"))
        await connection.channels.finish()
        assert len(asyncio.all_tasks()) == 1
        return connection

    error = asyncio.run(run()).error
    assert isinstance(error, ProtocolError)
    assert "broke the protocol" in str(error)


class Taken:
    """A far end that keeps the frames which it was sent."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, bytes]] = []
        self._parser = Parser(frame.TO_AGENT)

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.frames += self._parser.feed(data)

    def close(self) -> None:
        """The stream ends; there is no process that would have to."""

    def take(self) -> list[tuple[int, int, bytes]]:
        """What has come since the last time."""
        found, self.frames = self.frames, []
        return found


@asynccontextmanager
async def connected(accept: Accept) -> AsyncIterator[tuple[Connection, Taken]]:
    """A connection, and what it has sent; nothing of it is left at the end."""
    connection, far = Connection(None, lambda error: None, accept=accept), Taken()
    connection.connected(far)
    yield connection, far
    connection.close()
    await connection.channels.finish()
    connection.fail_waiting(connection.error or ProtocolError("nothing"))
    assert len(asyncio.all_tasks()) == 1


async def settled() -> None:
    """Everything that can go on without the far end has."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_the_end_of_the_box_cancels_who_serves_and_tells_who_dialled() -> None:
    """A served stream reads what was pushed until then; a dialled one is closed."""
    seen: list[Any] = []

    async def serve(stream: ByteStream) -> None:
        try:
            seen.append(await stream.read())
            await stream.read()
        except BaseException as error:
            seen.append(type(error))
            raise

    async def run() -> None:
        async with connected(serve) as (connection, far):
            dialling = asyncio.create_task(connection.channels.dial(80))
            await settled()
            number = far.frames[0][1]
            assert far.frames[0] == (frame.DIAL, number, b'{"port":80}')
            connection.received(encode_json(frame.GRANT, number, {"bytes": WINDOW}))
            reading = asyncio.create_task((await dialling).read())
            connection.received(OPEN + encode(frame.PUSH, A, b"hi"))
            await settled()
            connection.close()
            with pytest.raises(StreamClosed, match="the box is lost"):
                await reading

    asyncio.run(run())
    assert seen == [b"hi", asyncio.CancelledError]


def test_connections_take_turns_and_wait_while_the_stream_takes_nothing() -> None:
    """Nothing is written to a full stream, not even a grant; then each has a piece in turn."""

    async def serve(stream: ByteStream) -> None:
        await stream.write(bytes(3 * PIECE))
        await asyncio.Event().wait()

    async def run() -> None:
        async with connected(serve) as (connection, far):
            connection.pause()
            numbers = [A, A + 1, A + 2]
            for number in numbers:
                opened = encode(frame.OPEN, number)
                connection.received(opened + encode_json(frame.GRANT, number, {"bytes": WINDOW}))
            await settled()
            assert far.take() == []
            connection.resume()
            found = far.take()
            pushed = [number for kind, number, _ in found if kind == frame.PUSH]
            assert pushed == numbers * 3
            granted = [(kind, number) for kind, number, _ in found if kind == frame.GRANT]
            assert granted == [(frame.GRANT, number) for number in numbers]

    asyncio.run(run())


@pytest.mark.parametrize("end", ["cancelled", "can't be sent"])
def test_a_waiting_call_that_is_not_sent_keeps_no_connection(end: str) -> None:
    """The stream takes bytes again, and the call ends in the same tick: connections go on."""

    async def serve(stream: ByteStream) -> None:
        await stream.write(bytes(PIECE))
        await asyncio.Event().wait()

    async def run() -> None:
        async with connected(serve) as (connection, far):
            connection.pause()
            name = "x" if end == "cancelled" else "x" * (frame.MAX_PAYLOAD + 1)
            call = asyncio.ensure_future(connection.request("any", {"name": name}))
            opened = encode(frame.OPEN, A)
            connection.received(opened + encode_json(frame.GRANT, A, {"bytes": WINDOW}))
            await settled()
            assert far.take() == []
            connection.resume()
            if end == "cancelled":
                call.cancel()
            with pytest.raises(asyncio.CancelledError if end == "cancelled" else ToolError):
                await call
            await settled()
            assert frame.PUSH in [kind for kind, _, _ in far.take()]

    asyncio.run(run())


def test_more_is_granted_as_it_is_read() -> None:
    """Half a window at a time: what is pushed and not read is never more than one."""
    go = asyncio.Event()

    async def serve(stream: ByteStream) -> None:
        await go.wait()
        while await stream.read(1):
            pass

    async def run() -> None:
        async with connected(serve) as (connection, far):
            connection.received(OPEN + PUSH * (WINDOW // PIECE))
            await settled()
            assert far.take() == [(frame.GRANT, A, b'{"bytes":%d}' % WINDOW)]
            go.set()
            await settled()
            half = b'{"bytes":%d}' % (WINDOW // 2)
            assert far.take() == [(frame.GRANT, A, half)] * 2

    asyncio.run(run())


def test_an_end_that_both_sides_say_at_once_is_one() -> None:
    """Each side's ABORT is answered once, and the number is free for no other frame."""

    async def serve(stream: ByteStream) -> None:
        stream.abort("enough")

    async def run() -> None:
        async with connected(serve) as (connection, far):
            connection.received(OPEN)
            await settled()
            assert [kind for kind, _, _ in far.take()] == [frame.GRANT, frame.ABORT]
            # What was under way when it learnt of it is dropped; its own ABORT is the end.
            connection.received(encode(frame.SHUT, A) + encode_json(frame.ABORT, A, {"reason": ""}))
            assert connection.error is None
            assert not connection.channels._open
            assert far.take() == []
            connection.received(OPEN)
            assert isinstance(connection.error, ProtocolError)

    asyncio.run(run())


def test_a_flood_of_connections_leaves_nothing_behind() -> None:
    """Ten thousand that end at once are served and forgotten, and none is left."""
    served = 0

    async def serve(stream: ByteStream) -> None:
        nonlocal served
        served += 1
        await stream.read()

    async def run() -> None:
        async with connected(serve) as (connection, far):
            for start in range(A, A + 10_000, 50):
                numbers = range(start, start + 50)
                ends = (encode_json(frame.ABORT, one, {"reason": ""}) for one in numbers)
                opens = (encode(frame.OPEN, one) for one in numbers)
                connection.received(b"".join((*opens, *ends)))
                await settled()
                assert not connection.channels._open
                assert not connection.channels._tasks
                far.take()
            assert connection.error is None

    asyncio.run(run())
    assert served <= 10_000


def test_late_frames_are_dropped_within_bounds() -> None:
    """After both ends some grants may still come, but not for ever."""

    async def serve(stream: ByteStream) -> None:
        await stream.read()
        await stream.write_eof()

    async def run() -> None:
        async with connected(serve) as (connection, far):
            connection.received(OPEN + SHUT)
            await settled()
            assert far.take()[-1] == (frame.SHUT, A, b"")
            assert not connection.channels._open
            connection.received(grant(1) * LATE)
            assert connection.error is None
            connection.received(grant(1))
            assert isinstance(connection.error, ProtocolError)

    asyncio.run(run())
