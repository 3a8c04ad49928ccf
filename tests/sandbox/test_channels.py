"""Carried connections against an agent that lies: the host keeps little, and the box is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executor.agent import frame
from executor.agent.frame import FROM_BOX, MAX_CONNECTIONS, WINDOW, encode, encode_json
from executor.bytestream import ByteStream, StreamClosed
from executor.errors import ProtocolError
from executor.sandbox.connection import Connection
from tests.scripted import Deaf

A = FROM_BOX
OPEN = encode(frame.OPEN, A)
SHUT = encode(frame.SHUT, A)
PUSH = encode(frame.PUSH, A, bytes(1 << 16))


def grant(value: Any) -> bytes:
    """A GRANT of anything."""
    return encode_json(frame.GRANT, A, {"bytes": value})


BREACHES = {
    "more than was granted": OPEN + PUSH * 5,
    "an empty piece": OPEN + encode(frame.PUSH, A),
    "a piece over the cap": OPEN + encode(frame.PUSH, A, bytes((1 << 16) + 1)),
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
        connection.pause()  # the stream takes nothing, so that OPEN was granted nothing yet
        connection.connected(Deaf())
        connection.resume()
        connection.received(BREACHES[what])
        connection.fail_waiting(connection.error or ProtocolError("nothing"))
        await connection.channels.finish()
        assert len(asyncio.all_tasks()) == 1
        return connection

    error = asyncio.run(run()).error
    assert isinstance(error, ProtocolError)
    assert "broke the protocol" in str(error)


def test_bytes_come_and_the_end_of_the_box_ends_the_reader() -> None:
    """A served stream reads what was pushed, and StreamClosed once the box is lost."""
    seen: list[Any] = []

    async def serve(stream: ByteStream) -> None:
        try:
            seen.append(await stream.read())
            await stream.read()
        except (StreamClosed, asyncio.CancelledError) as error:
            seen.append(type(error))
            raise

    async def run() -> None:
        connection = Connection(None, lambda error: None, accept=serve)
        connection.connected(Deaf())
        connection.received(OPEN + encode(frame.PUSH, A, b"hi"))
        for _ in range(3):
            await asyncio.sleep(0)
        connection.close()
        await connection.channels.finish()

    asyncio.run(run())
    assert seen[0] == b"hi"
    assert seen[1] in (StreamClosed, asyncio.CancelledError)
