"""Made-up frames, answers and streams: nothing but typed errors, and little memory.

Without an engine. About 13,000 cases; `make fuzz` tries a million.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from executor.agent import frame
from executor.agent.frame import (
    FROM_BOX,
    HEADER,
    MAX_PAYLOAD,
    WINDOW,
    FrameError,
    Parser,
    encode,
    encode_json,
)
from executor.agent.service import Service
from executor.bytestream import ByteStream, StreamClosed
from executor.errors import Code, SandboxError, ToolError
from executor.sandbox.attach import Demultiplexer
from executor.sandbox.connection import Answer, Connection
from executor.sandbox.replies import shape_of
from executor.sandbox.stream import BUFFER, AttachedStream
from tests.fuzzing import cases
from tests.scripted import Deaf

T = TypeVar("T")

pytestmark = [pytest.mark.fuzz, pytest.mark.statement("J2")]

# ─── what is made up ────────────────────────────────────────────────────────────────

CHAOS = st.binary(min_size=24, max_size=160)
"""Choices, one a byte. Drawing each by a strategy of its own would take ten times as long."""
MADE_UP: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 255, 256, 1 << 63, 10**30, 1.5, math.nan, math.inf, -0.0),
    *("", "x", "ok", "/workspace", "SIGKILL", "memory", "TIMEOUT", "\ud800", "\udc80", "\0"),
    *("\x1b]0;x\x07", "%s%n", "{0.__class__}", "../..", "/etc/shadow", "x" * 5000),
    *([], {}, [[1, 2]], {"total": 2, "head": 1, "tail": 1}, {"total": 1, "head": 9, "tail": 0}),
]
NAMES = ("ok", "error", "code", "message", "details", "reason", "hash", "size", "cwd", "\ud800")
RAW_JSON = (
    *(b"[" * 5000, b'{"ok":' * 2000, b'{"error":' + b"[" * 900 + b"]" * 900 + b"}"),
    *(b'{"ok":{"a":NaN}}', b'{"ok":{"a":-Infinity}}', b'{"ok":{"a":1e999}}'),
    *(b'{"ok":{"a":' + b"9" * 4400 + b"}}", b'{"ok":{},"ok":[]}', b'{"ok":{}}garbage'),
    *(b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"ok":{"\\ud800":"\\udfff"}}', b"", b"null"),
    b'{"ok":{' + b",".join(b'"%d":0' % number for number in range(1000)) + b"}}",
)
CARRYING = frame.CARRIED | {frame.OPEN, frame.DIAL}
GRANTS = (1, 7, 1 << 16, WINDOW, 1, 7, 0, -1, True, WINDOW + 1, 1 << 63, 1.5, None, "1")
LENGTHS = (0, 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 1 << 31, 0xFFFFFFFF)


class Chaos:
    """Turns the bytes of one case into choices; zeros follow the last."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def number(self, end: int) -> int:
        """Something below `end`, at most 256."""
        return next(self._bytes, 0) % end

    def among(self, things: Sequence[T]) -> T:
        """One of them."""
        return things[self.number(len(things))]

    def value(self, levels: int = 3) -> Any:
        """Any JSON, and what only looks like it."""
        kind = self.number(4) if levels else 0
        if kind < 2:
            return self.among(MADE_UP)
        if kind == 2:
            return [self.value(levels - 1) for _ in range(self.number(4))]
        return {self.among(NAMES): self.value(levels - 1) for _ in range(self.number(5))}

    def payload(self) -> bytes:
        """JSON, nearly JSON, or neither."""
        kind = self.number(5)
        if kind == 0:
            return self.raw(40)
        if kind == 1:
            return self.among(RAW_JSON)
        if kind == 2:
            return as_json({self.among(("ok", "error")): self.value()})
        return as_json(self.value())

    def raw(self, most: int) -> bytes:
        """Bytes as they are."""
        return bytes(islice(self._bytes, self.number(most)))

    def frames(self, kinds: Sequence[int]) -> bytes:
        """A few frames, most of them whole."""
        return b"".join(self._frame(kinds) for _ in range(1 + self.number(6)))

    def _frame(self, kinds: Sequence[int]) -> bytes:
        shape = self.number(12)
        if shape == 0:
            return self.raw(30)
        kind = self.among(kinds) if shape > 1 else self.number(256)
        if shape > 5 and kind in CARRYING:
            return self._carried(kind, 1 << 16 if kinds is TO_HOST else 40)
        channel = self.number(7) if shape != 2 else 0xFFFFFFFF - self.number(2)
        if shape == 3:
            return HEADER.pack(kind, channel, self.among(LENGTHS)) + self.raw(20)
        return encode(kind, channel, self.payload())

    def _carried(self, kind: int, most: int) -> bytes:
        """A frame of a connection that may be open, nearly as it has to be."""
        channel = FROM_BOX + self.number(3) if self.number(4) else 1 + self.number(4)
        payload = b""
        if kind == frame.GRANT:
            payload = as_json({"bytes": self.among(GRANTS)})
        elif kind == frame.DIAL:
            payload = as_json({"port": self.among(MADE_UP)})
        elif kind == frame.ABORT:
            payload = as_json({"reason": self.among(MADE_UP) if self.number(2) else "x"})
        elif kind == frame.PUSH:
            payload = self.raw(40) if self.number(3) else bytes(most)
        return encode(kind, channel, payload)

    def cut(self, data: bytes) -> list[bytes]:
        """The data in pieces."""
        places = [self.number(256) * len(data) // 255 for _ in range(self.number(5))]
        borders = [0, *sorted(places), len(data)]
        return [data[start:end] for start, end in pairwise(borders)]


def as_json(value: Any) -> bytes:
    """What an agent could send for the value, its NaN and half characters too."""
    return json.dumps(value).encode()


TO_HOST = sorted(frame.TO_HOST)
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("run", {"head": 8, "tail": 8}),
    ("read", {"max_bytes": 10, "line_chars": 5}),
    ("read", {"encoding": "base64"}),
    ("list", {"max_entries": 3}),
    ("glob", {"max_results": 3}),
    ("grep", {"max_bytes": 10, "line_chars": 5}),
    ("read_image", {"max_bytes": 10}),
    *((op, {"max_bytes": 10, "picture_bytes": 10}) for op in ("read_pages", "read_notebook")),
    ("edit_notebook", {}),
    *((op, {"head": 8, "tail": 8}) for op in ("await_task", "peek")),
    *((op, {}) for op in ("begin", "stop_task", "left", "end_left")),
    ("sweep", {"known": "0" * 32}),
    *((op, {}) for op in ("write", "edit", "stat", "delete", "move", "unknown")),
]
LOOP = asyncio.new_event_loop()
"""One for all cases: opening one takes longer than a case."""


def in_loop(scene: Callable[[], Any]) -> Any:
    """The outcome of an `async` scene, which no error of asyncio's own may hide."""
    faults: list[Any] = []
    LOOP.set_exception_handler(lambda loop, context: faults.append(context))
    outcome = LOOP.run_until_complete(asyncio.wait_for(scene(), 20))
    assert faults == []
    return outcome


async def echo(stream: ByteStream) -> None:
    """Serves a connection: sends back what it gets."""
    while data := await stream.read():
        await stream.write(data)


def connect(writer: Any = None) -> Connection:
    """A connection whose agent is up, and whose box has a proxy."""
    connection = Connection(
        None,
        lambda error: connection.fail_waiting(error),  # noqa: PLW0108 (it is not there yet)
        accept=echo,
    )
    connection.connected(writer or Deaf())
    connection.received(encode_json(frame.READY, 0, {"hash": ""}))
    return connection


# ─── the connection ─────────────────────────────────────────────────────────────────


@cases(5000)
@given(CHAOS)
def test_made_up_frames_end_in_answers_or_typed_errors(data: bytes) -> None:
    """Every call gets an answer or a typed error, and the box beside it answers as before."""
    chaos = Chaos(data)
    asked = [chaos.among(ASKED) for _ in range(chaos.number(7))]
    sent = chaos.cut(chaos.frames(TO_HOST))

    async def scene() -> None:
        connection, beside = connect(), connect()
        calls = [
            asyncio.ensure_future(connection.request(op, dict(given), on_output=lambda *_: None))
            for op, given in asked
        ]
        other = asyncio.ensure_future(beside.request("move", {}))
        dials = [asyncio.ensure_future(dialled(connection)) for _ in asked[:2]]
        await asyncio.sleep(0)
        for piece in sent:
            connection.received(piece)
            await asyncio.sleep(0)
            held = connection.channels._open.values()
            assert all(len(one._buffer) <= WINDOW for one in held)
        connection.closed("the end")
        await connection.channels.finish()
        for ended in await asyncio.gather(*dials, return_exceptions=True):
            assert isinstance(ended, ToolError | SandboxError | StreamClosed | None), repr(ended)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, Answer | ToolError | SandboxError), repr(outcome)
            assert_plain(outcome)
        beside.received(encode_json(frame.REPLY, 1, {"ok": {}}))
        assert (await other).value == {}
        assert beside.error is None
        beside.close()

    in_loop(scene)


async def dialled(connection: Connection) -> None:
    """Connects to a port of the box and speaks with whoever answers, to the end."""
    stream = await connection.channels.dial(80)
    await stream.write(b"hello")
    while await stream.read():
        pass


def assert_plain(outcome: Any) -> None:
    """What is told of a box can be written as JSON, and its words are capped."""
    if isinstance(outcome, ToolError):
        assert outcome.code in set(Code)
        json.dumps(outcome.details, allow_nan=False)
    if isinstance(outcome, BaseException):
        assert len(str(outcome)) < 9000


@cases(1500)
@given(CHAOS)
def test_frames_are_the_same_however_they_are_cut(data: bytes) -> None:
    """A parser that is fed in pieces finds what one finds that is fed at once, and no more."""
    chaos = Chaos(data)
    sent = chaos.frames(TO_HOST)

    def found(pieces: list[bytes]) -> tuple[list[tuple[int, int, bytes]], bool]:
        parser = Parser(frame.TO_HOST)
        frames: list[tuple[int, int, bytes]] = []
        try:
            for piece in pieces:
                frames += parser.feed(piece)
        except FrameError:
            return frames, True
        return frames, False

    whole, piecewise = found([sent]), found(chaos.cut(sent))
    assert piecewise[1] == whole[1]
    # Before a fault the pieces may have brought more: what is fed at once is refused at once.
    assert piecewise[0][: len(whole[0])] == whole[0]


# ─── what the answer to each operation may be ───────────────────────────────────────


def fields_of(op: str, given: dict[str, Any]) -> list[str]:
    """The names that an answer to the request may have."""
    shape = shape_of(op, given)
    return sorted(shape.fields.keys() | shape.others) if shape is not None else ["x"]


GOOD: tuple[Any, ...] = (
    0,
    1,
    None,
    True,
    False,
    "",
    "/workspace",
    [],
    "SIGKILL",
    "memory",
    "0" * 32,
)
DATA = (b"", b"", b"x", b"\0", b"a\nb", b"f\x1f1\x1f1\x1f\x1fa\0", b"1\x1f1\x1f1\x1fa\0")


@cases(4000)
@given(CHAOS)
def test_an_answer_of_any_values_is_let_through_or_refused(made: bytes) -> None:
    """Each operation's answer passes its shape, or the box is lost by a typed error."""
    chaos = Chaos(made)
    op, given = chaos.among(ASKED)
    value = {
        name: chaos.among(GOOD) if chaos.number(8) else chaos.value(1)
        for name in fields_of(op, given)
    }
    data = chaos.among(DATA) if chaos.number(4) else chaos.raw(30)

    async def scene() -> None:
        connection = connect()
        call = asyncio.ensure_future(connection.request(op, dict(given)))
        await asyncio.sleep(0)
        pieces = encode(frame.DATA, 1, data) if data else b""
        connection.received(pieces + encode(frame.REPLY, 1, as_json({"ok": value})))
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(outcome, Answer | SandboxError), repr(outcome)
        if isinstance(outcome, Answer):
            assert_believable(op, outcome.value)
        connection.close()

    in_loop(scene)


def assert_believable(op: str, value: dict[str, Any]) -> None:
    """No number that a tool would choke on, no success that was none."""
    for part in value.values():
        assert not isinstance(part, float) or math.isfinite(part)
    if op == "run" and value["exit_code"] == 0 and not value["timed_out"]:
        assert value["oom"] is False or value.get("cancelled") is True


# ─── the attach stream ──────────────────────────────────────────────────────────────


@cases(1500)
@given(CHAOS)
def test_the_demultiplexer_gives_what_the_engine_sent(made: bytes) -> None:
    """Streams come out byte for byte however they are cut; noise is data or a ValueError."""
    chaos = Chaos(made)
    sent = [(1 + chaos.number(2), chaos.raw(50)) for _ in range(chaos.number(8))]
    data = b"".join(bytes([n, 0, 0, 0]) + len(body).to_bytes(4, "big") + body for n, body in sent)
    demultiplexer = Demultiplexer()
    got = {1: b"", 2: b""}
    for piece in chaos.cut(data):
        for number, part in demultiplexer.feed(piece):
            got[number] += part
    for number in (1, 2):
        assert got[number] == b"".join(body for n, body in sent if n == number)
    try:
        demultiplexer.feed(chaos.raw(200))
    except ValueError as error:
        assert "no frame of an attach stream" in str(error)


@cases(500)
@given(CHAOS)
def test_a_made_up_attach_stream_costs_its_box_alone(made: bytes) -> None:
    """Whatever comes out of the socket, the connection lives or is lost by a typed error."""
    chaos = Chaos(made)
    inner = chaos.frames(TO_HOST)[: 1 << 14]
    header = bytes([1 + chaos.number(3), 0, 0, 0]) + len(inner).to_bytes(4, "big")
    data = (header if chaos.number(4) else b"") + inner

    async def scene() -> None:
        connection = connect()
        stream = AttachedStream(connection)
        view = stream.get_buffer(-1)
        view[: len(data)] = data
        stream.buffer_updated(len(data))
        assert connection.error is None or isinstance(connection.error, SandboxError)
        connection.close()

    in_loop(scene)


# ─── memory ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("J1")
@pytest.mark.parametrize("length", [MAX_PAYLOAD + 1, 1 << 31, 0xFFFFFFFF])
@pytest.mark.parametrize("kind", sorted(frame.TO_HOST))
def test_a_false_length_reserves_nothing(kind: int, length: int) -> None:
    """A header alone ends the box: nothing is kept for the bytes that it promises."""

    async def scene() -> int:
        connection = connect()
        tracemalloc.start()
        try:
            connection.received(HEADER.pack(kind, 0, length) + bytes(BUFFER))
            connection.received(bytes(BUFFER))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert isinstance(connection.error, SandboxError)

    assert in_loop(scene) < 1 << 20


@pytest.mark.statement("J1")
def test_an_unfinished_frame_is_all_that_is_held() -> None:
    """A frame that never ends holds its megabyte, however many calls wait."""

    async def scene() -> int:
        connection = connect()
        calls = [asyncio.ensure_future(connection.request("read", {})) for _ in range(50)]
        await asyncio.sleep(0)
        tracemalloc.start()
        try:
            connection.received(HEADER.pack(frame.REPLY, 1, MAX_PAYLOAD))
            for _ in range(15):
                connection.received(bytes(BUFFER))
            assert connection.error is None
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            connection.close()
            await asyncio.gather(*calls, return_exceptions=True)

    assert in_loop(scene) < 4 << 20


HUGE = {
    "a million zeros": b'{"ok":{"clipped":[' + b"0," * 500_000 + b"0]}}",
    "many keys": b'{"ok":{' + b",".join(b'"%x":0' % n for n in range(100_000)) + b"}}",
    "many levels": b'{"ok":{"a":' + b"[" * 500_000,
    "a long number": b'{"ok":{"a":' + b"1" * 1_000_000 + b"}}",
    "a long fraction": b'{"ok":{"a":0.' + b"1" * 1_000_000 + b"}}",
    "many duplicates": b'{"ok":{' + b'"a":0,' * 150_000 + b'"a":0}}',
    "a long word": b'{"error":{"code":"TIMEOUT","message":"' + b"%s" * 500_000 + b'"}}',
}


@pytest.mark.parametrize("name", HUGE)
def test_an_answer_as_long_as_a_frame_stays_within_bounds(name: str) -> None:
    """A megabyte of JSON costs less than 40 MB of memory, and ends typed."""

    async def scene() -> tuple[int, Any]:
        connection = connect()
        call = asyncio.ensure_future(connection.request("read", {}))
        await asyncio.sleep(0)
        tracemalloc.start()
        try:
            connection.received(encode(frame.REPLY, 1, HUGE[name]))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        connection.closed("the end")
        return peak, (await asyncio.gather(call, return_exceptions=True))[0]

    peak, outcome = in_loop(scene)
    assert isinstance(outcome, ToolError | SandboxError)
    assert len(str(outcome)) < 9000
    assert peak < 40 << 20


# ─── the agent's own input ──────────────────────────────────────────────────────────


class Ended(BaseException):
    """The agent gave up, with its reason."""


class Mortal(Service):
    """The agent's loop, which raises where the real one leaves its process."""

    def end(self, reason: str) -> Any:
        """See `Service.end`."""
        raise Ended(reason)


TO_AGENT = sorted(frame.TO_AGENT)
CALLS = ("read", "stat", "list", "nothing", "")


def calls(chaos: Chaos) -> bytes:
    """A call that could be the host's but for its arguments."""
    names = ("path", "body", "offset", "max_bytes", "op")
    given = {chaos.among(names): chaos.value(1) for _ in range(chaos.number(4))}
    return encode_json(frame.CALL, chaos.number(3), {"op": chaos.among(CALLS), **given})


def connected(service: Service, client: socket.socket) -> None:
    """The agent carries a connection of a client, which has sent something."""
    service._carry().listen(0)
    client.connect(service.proxy.listeners[0].getsockname())
    client.send(b"hello")
    service.proxy._accept(service.proxy.listeners[0])


TWICE = b"\0\1\0\0\0\0\0\0\1\6x\1\xa4\1\6\x8e\1\\\1\0\0\0\0\0"
"""The host dials twice by one number, which is one of the box's."""


@cases(800)
@given(CHAOS)
@example(TWICE)
def test_the_agent_serves_or_ends_with_a_reason(made: bytes) -> None:
    """No input makes the agent deaf: it goes on reading, or says why it ends."""
    chaos = Chaos(made)
    is_greeted = chaos.number(2)
    data = calls(chaos) * chaos.number(2) + chaos.frames(TO_AGENT)
    source, near = os.pipe()
    far, sink = os.pipe()
    service = Mortal(source, sink)
    client = socket.socket()
    try:
        if is_greeted:
            service._on_hello(HELLO)
            if chaos.number(2):
                connected(service, client)
        os.write(near, data or b"\0")
        service._on_input(0)
        for _ in range(20):
            service._advance_tasks()
            for descriptor, events in service._ready(0):
                if descriptor in service.reactions:
                    service.reactions[descriptor](events)
    except Ended as ended:
        assert str(ended)
        told = Parser(frame.TO_HOST).feed(os.read(far, 1 << 20) if data else b"")
        assert not told or told[-1][0] in frame.TO_HOST
    finally:
        client.close()
        if service.proxy is not None:
            ends = [*service.proxy.listeners, *(c.socket for c in service.proxy.carried.values())]
            for end in filter(None, ends):
                end.close()
        service.poll.close()
        for descriptor in (source, near, far, sink):
            os.close(descriptor)
        if service.workspace is not None:
            service.workspace.close()


EMPTY = Path("/proc/self/fdinfo")
"""A directory in which nothing can be made, changed or deleted."""
HELLO = {
    **{"lease": 30.0, "root": str(EMPTY), "scratch": str(EMPTY), "box": "b"},
    **{"environment": {"PATH": "/usr/bin:/bin"}},
}
