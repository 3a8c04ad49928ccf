"""Lines of a client of the Model Context Protocol: what is a message, and what is answered else."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage

from executor.errors import ConfigError
from executor.frontends import mcp_stdio, reading
from executor.frontends.mcp_messages import MAX_MESSAGES, Refusal, read
from executor.frontends.reading import MAX_LINE

PARSE, INVALID = types.PARSE_ERROR, types.INVALID_REQUEST


def found(line: bytes) -> list[Any]:
    """Ids of the requests in a line, methods of its notifications, code and id of refusals."""
    return [_shown(item) for item in read(line)]


def _shown(item: SessionMessage) -> Any:
    body = item.message
    if isinstance(body, types.JSONRPCError) and isinstance(item, Refusal):
        return body.error.code, body.id
    return body.method if isinstance(body, types.JSONRPCNotification) else body.id


def call(argument: bytes) -> bytes:
    """A request with this argument, as it stands in the line."""
    return b'{"jsonrpc": "2.0", "id": 7, "method": "x", "params": {"y": ' + argument + b"}}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"", []),
        (b" \r", []),
        (call(b"1"), [7]),
        (call(b'"\xc3\xa9"') + b"\r", [7]),
        (b"\xef\xbb\xbf" + call(b"1"), [7]),
        (b'{"jsonrpc": "2.0", "method": "m"}', ["m"]),
        (b'{"jsonrpc": "2.0", "method": "m", "params": {"id": 1.5}}', ["m"]),
        (b'{"jsonrpc": "2.0", "method": "m", "params": {"x": "\\u0069d"}}', ["m"]),
        (b'{"jsonrpc": "2.0", "id": "a", "result": {}}', ["a"]),
    ],
)
def test_messages_are_read(line: bytes, expected: list[Any]) -> None:
    """With any end of a line, and a mark of the encoding before them."""
    assert found(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"nonsense", (PARSE, None)),
        (call(b"1")[:-1], (PARSE, None)),
        (call(b'"\\ud83d"'), (PARSE, 7)),
        (call(b'"\xff"'), (PARSE, 7)),
        (call(b"[" * 300 + b"]" * 300), (PARSE, 7)),
        (call(b"[" * 5000 + b"]" * 5000), (PARSE, None)),
        (b'{"id": "\\ud800", "method": "m"}', (PARSE, None)),
        (b'{"id": 7, "method": "m"}', (INVALID, 7)),
        (b'{"jsonrpc": "1.0", "id": 7, "method": "m"}', (INVALID, 7)),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "m", "params": [1]}', (INVALID, "a")),
        (b'{"jsonrpc": "2.0", "id": 7, "method": 5}', (INVALID, 7)),
        (b'{"jsonrpc": "2.0", "method": 5}', (INVALID, None)),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "m"}', (INVALID, None)),
        (b'{"jsonrpc": "2.0", "id": true, "method": "m"}', (INVALID, None)),
        (b'{"jsonrpc": "2.0", "id": null, "method": "m"}', (INVALID, None)),
        (b'{"jsonrpc": "2.0", "\\u0069d": 1.5, "method": "m"}', (INVALID, None)),
        (b"{}", (INVALID, None)),
        (b"[]", (INVALID, None)),
        (b"5", (INVALID, None)),
    ],
)
def test_who_may_wait_for_an_answer_gets_one(line: bytes, expected: tuple[int, Any]) -> None:
    """What is no message is refused, by its id where that can be found."""
    assert found(line) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        b'{"method": "m"}',
        b'{"jsonrpc": "2.0", "method": "m", "params": [1]}',
        b'{"jsonrpc": "2.0", "method": "m", "params": {"x": "\\ud83d"}}',
        b'{"jsonrpc": "2.0", "id": 7, "result": 5}',
        b'{"jsonrpc": "2.0", "id": 7, "error": 5}',
        b'{"id": 7, "error": {"code": -1, "message": "\\ud83d"}}',
    ],
)
def test_nobody_waits_for_an_answer_to_these(line: bytes) -> None:
    """Wrong notifications and wrong answers: two who answer each other's would never end."""
    assert found(line) == []


def test_an_array_is_each_of_its_messages() -> None:
    """One version of the protocol sends them so; a wrong one takes nothing from the others."""
    one, other = call(b"1"), b'{"jsonrpc": "2.0", "method": "m"}'
    line = b"[" + b", ".join([one, b"5", other, b"[]", one.replace(b"7", b'"8"')]) + b"]"
    assert found(line) == [7, (INVALID, None), "m", (INVALID, None), "8"]


def test_an_array_has_so_many_messages_and_no_more() -> None:
    """A longer one is one refusal: an answer to each of millions would take all the memory."""
    many = [b"1"] * MAX_MESSAGES
    assert found(b"[" + b",".join(many) + b"]") == [(INVALID, None)] * MAX_MESSAGES
    (refusal,) = read(b"[" + b"1," * 10**6 + b"1]")
    assert isinstance(refusal.message, types.JSONRPCError) and refusal.message.id is None
    assert refusal.message.error.code == INVALID
    assert "at most 1000 messages" in refusal.message.error.message


@given(st.binary() | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(
    lambda value: json.dumps(value).encode()))  # fmt: skip
def test_every_line_is_read(line: bytes) -> None:
    """Whatever it is, what is answered can be sent."""
    for item in read(line):
        assert item.message.model_dump_json(by_alias=True, exclude_unset=True)


# ─── their lines ────────────────────────────────────────────────────────────────────


def piped(*pieces: bytes) -> int:
    """The end of a pipe that these can be read from, and no more."""
    source, sink = os.pipe()
    with os.fdopen(sink, "wb") as stream:
        stream.writelines(pieces)
    return source


async def lines(source: int) -> list[bytes]:
    """All lines."""
    return [line async for line in reading.lines(source)]


def test_what_is_not_whole_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is too long is cut at its end, never in its middle, and is known by that."""
    monkeypatch.setattr(reading, "MAX_LINE", 100)
    whole, long = b"x" * 100, b'{"id": 7, "x": "' + b"x" * 100 + b'"}'
    source = piped(whole + b"\n", long + b"\n", b"\n", b"the end")
    assert asyncio.run(lines(source)) == [whole, long[:101], b"", b"the end"]
    os.close(source)


@pytest.mark.parametrize(("key", "id"), [(b'"id": 7, ', 7), (b"", None)])
def test_a_line_that_was_cut_is_refused(key: bytes, id: int | None) -> None:
    """By its id if that comes before the cut, and never taken for what needs no answer."""
    line = b"{" + key + b'"method": "m", "params": {"x": "' + b"x" * MAX_LINE
    assert found(line) == [(INVALID, id)]


@pytest.mark.parametrize(
    ("id", "kept", "known"),
    [
        (b"123456", 3, None),
        (b"123456", 6, None),
        (b"-15", 2, None),
        (b"1.5", 1, None),
        (b"1.5", 2, None),
        (b"1e3", 3, None),
        (b'"123456"', 4, None),
        (b'"123456"', 8, "123456"),
        (b"123456,", 7, 123456),
        (b"123456 ", 7, 123456),
    ],
)
def test_half_an_id_is_none(id: bytes, kept: int, known: int | str | None) -> None:
    """What was cut may be the end of a number: the id of another request is worse than no id."""
    rest = b'", "id": ' + id[:kept]
    line = b'{"method": "m", "x": "'
    line += b"x" * (MAX_LINE + 1 - len(line) - len(rest)) + rest
    assert len(line) == MAX_LINE + 1
    assert found(line) == [(INVALID, known)]


def test_a_descriptor_that_does_not_block_is_waited_for() -> None:
    """Who shares it with the client may have made it so; that is not its end."""

    async def run() -> None:
        source, sink = os.pipe()
        os.set_blocking(source, False)
        os.write(sink, b"first\n")
        every = reading.lines(source)
        assert await anext(every) == b"first"
        following = asyncio.ensure_future(anext(every))
        await asyncio.sleep(0)
        os.write(sink, b"sec")
        os.write(sink, b"ond\n")
        assert await following == b"second"
        os.close(sink)
        assert [line async for line in every] == []
        os.close(source)

    asyncio.run(run())


# ─── the connection ─────────────────────────────────────────────────────────────────


async def exchanged(*sent: dict[str, Any] | bytes) -> list[dict[str, Any]]:
    """What a client is told that sends these, where the server takes all and answers nothing."""
    source = piped(*(_line(one) for one in sent))
    answers, sink = os.pipe()
    async with mcp_stdio.messages(source, sink) as (incoming, outgoing):
        async with incoming, outgoing:
            async for _ in incoming:
                pass
    os.close(source)
    os.close(sink)
    with os.fdopen(answers, "rb") as stream:
        return [json.loads(line) for line in stream]


def _line(message: dict[str, Any] | bytes) -> bytes:
    return (message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n"


def request(id: int | str) -> dict[str, Any]:
    """One."""
    return {"jsonrpc": "2.0", "id": id, "method": "ping"}


def cancelled(id: int | str) -> dict[str, Any]:
    """It is not waited for any more."""
    return {"jsonrpc": "2.0", "method": mcp_stdio.CANCELLED, "params": {"requestId": id}}


def errors(told: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """Code and id of each answer, all of which are errors."""
    return [(one["error"]["code"], one["id"]) for one in told]


def test_what_is_no_message_is_answered_beside_the_server() -> None:
    """The connection goes on, and what is a message comes through."""
    told = asyncio.run(exchanged(b"nonsense", request(1), b"\xff", b"", call(b'"\\ud83d"')))
    assert errors(told) == [(PARSE, None), (PARSE, None), (PARSE, 7)]


@pytest.mark.parametrize("other", [7, "7"])
def test_an_id_is_that_of_one_request(other: int | str) -> None:
    """Until it is answered; the refusal of another one is no answer to it."""
    told = asyncio.run(exchanged(request(7), request(other), request(other)))
    assert errors(told) == [(INVALID, other)] * 2
    told = asyncio.run(exchanged(request(7), cancelled(other), request(other)))
    assert told == []


@pytest.mark.parametrize("spelled", [int, str])
def test_who_is_cancelled_makes_room(spelled: Any) -> None:
    """However the id is spelled: the SDK hears both."""
    many = mcp_stdio.MAX_UNANSWERED
    sent = [each for id in range(many) for each in (request(id), cancelled(spelled(id)))]
    later = [request(many + id) for id in range(many)]
    told = asyncio.run(exchanged(*sent, *later, request("one more")))
    assert errors(told) == [(types.INTERNAL_ERROR, "one more")]


def test_what_can_not_be_read_is_said() -> None:
    """It is not taken for the end of the input."""

    async def run() -> None:
        source, (answers, sink) = os.open(os.curdir, os.O_RDONLY), os.pipe()
        with pytest.raises(ConfigError, match="stdin can't be read: Is a directory"):
            async with mcp_stdio.messages(source, sink) as (incoming, outgoing):
                async with incoming, outgoing:
                    assert [message async for message in incoming] == []
        for descriptor in (source, answers, sink):
            os.close(descriptor)

    asyncio.run(run())


async def heard(source: int) -> list[int | str]:
    """Ids of the requests that come to the server until the input has ended; it answers none."""
    answers, sink = os.pipe()
    ids: list[int | str] = []
    async with mcp_stdio.messages(source, sink) as (incoming, outgoing):
        async with incoming, outgoing:
            async for item in incoming:
                assert isinstance(item, SessionMessage)
                assert isinstance(item.message, types.JSONRPCRequest)
                ids.append(item.message.id)
    for descriptor in (answers, sink):
        os.close(descriptor)
    return ids


def test_a_client_that_has_not_read_all_may_go() -> None:
    """What it was sent on its socket lies there unread: the kernel calls that a reset."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(_line(request(1)))
            ours.sendall(b"an answer")
        assert asyncio.run(heard(ours.fileno())) == [1]


def test_an_error_of_input_is_the_end() -> None:
    """A terminal has it whose other side is closed while it is read; so has memory at 0."""
    source = os.open("/proc/self/mem", os.O_RDONLY)
    with pytest.raises(OSError, match="Input/output error"):
        os.read(source, 1)
    assert asyncio.run(heard(source)) == []
    os.close(source)
