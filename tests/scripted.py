"""A box whose agent is written by the test: bytes that answer each call, or none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from executor.agent import frame
from executor.agent.frame import Parser, encode, encode_json
from executor.sandbox.box import Sandbox
from executor.sandbox.connection import Connection

Say: TypeAlias = Callable[[dict[str, Any]], tuple[Any, bytes]]
"""The arguments of a call → what is said for its `ok`, and the data before it."""


class Deaf:
    """A far end that takes everything and says nothing."""

    def write(self, data: bytes) -> None:
        """Take what the host sends."""

    def close(self) -> None:
        """The stream ends; there is no process that would have to."""


class Agent:
    """The far end of a connection. Pings are echoed, a shell is named, the script says the rest."""

    def __init__(self, connection: Connection, say: Say) -> None:
        self._connection = connection
        self._say = say
        self._parser = Parser(frame.TO_AGENT)
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        """Take what the host sends, and answer it in the loop's next round."""
        for kind, channel, payload in self._parser.feed(data):
            if kind == frame.PING:
                self._answer(encode(frame.PONG, channel, payload))
            elif kind == frame.CALL:
                call = json.loads(payload)
                is_first = call["op"] == "shell"  # which every box is asked
                value, bulk = (
                    ({"shell": "bash", "programs": []}, b"") if is_first else self._say(call)
                )
                pieces = [encode(frame.DATA, channel, piece) for piece in frame.split(bulk)]
                reply = encode_json(frame.REPLY, channel, {"ok": value})
                self._answer(b"".join([*pieces, reply]))

    def _answer(self, data: bytes) -> None:
        self._loop.call_soon(self._connection.received, data)

    def close(self) -> None:
        """The stream ends; there is no process that would have to."""


@asynccontextmanager
async def open_scripted_box(say: Say) -> AsyncIterator[Sandbox]:
    """A box that says what the script says."""
    connection = Connection(None, lambda error: connection.fail_waiting(error))  # noqa: PLW0108 (it is not there yet)
    connection.connected(Agent(connection, say))
    connection.received(encode_json(frame.READY, 0, {"hash": ""}))
    try:
        await connection.hello({}, timeout=5)
        yield Sandbox("scripted", "scripted", connection, {})
    finally:
        connection.close()
