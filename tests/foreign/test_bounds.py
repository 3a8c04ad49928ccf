"""What a server may send: values, junk, requests and messages, and numbers that nobody has."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest

from executor.foreign import bounds
from executor.foreign.bounds import MAX_ASKED, MAX_PARTS, Measure, TooMuch, parsed
from executor.foreign.lines import Ends, over_lines, written
from tests.language.test_messages import Pipes

NOTICE = b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\n'


def fault_after(*data: bytes) -> str | None:
    """Why a connection was ended after a program had written this, and then nothing more."""

    async def run() -> str | None:
        pipes = Pipes()
        pipes.say(*data, b"")
        async with over_lines("s", pipes) as ends:
            async for _ in ends.read:
                pass
            assert ends.over.is_set()
            return ends.fault

    return asyncio.run(asyncio.wait_for(run(), 60))


def response(value: bytes) -> bytes:
    return b'{"jsonrpc": "2.0", "id": 1, "result": {"a": %b}}\n' % value


@pytest.mark.parametrize("one", [b"[],", b"{},", b"1,", b'"",', b'{"a":1},'])
def test_a_message_of_too_many_values_ends_the_server(one: bytes) -> None:
    """Values that cost far more than their bytes are not read, whatever they are."""
    line = response(b"[" + one * MAX_PARTS + b"1]")
    counted = "parts (texts, lists, objects, commas)"
    assert fault_after(line) == f"it sent a message of more than {MAX_PARTS} {counted}"


def test_texts_of_many_braces_and_commas_are_taken() -> None:
    """What is inside of a text costs nothing, with quotes in it or not."""
    text = rb"[{,\"" * MAX_PARTS
    assert fault_after(response(b'"' + text + b'"')) is None


def test_a_message_that_never_ends_its_text_is_looked_at_once() -> None:
    """What is no JSON is no message, and found out without trying each of its quotes."""
    measure = Measure("s")
    line = rb"{,[\"" * 1_000_000
    assert len(list(bounds._PART.finditer(line))) == len("{,[") + 1
    with pytest.raises(ValueError, match="Expecting"):
        parsed(line)
    measure.no_message(line)
    assert measure.junk_bytes == len(line)


def test_junk_is_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some lines that are no messages are passed over; too many, or too large ones, end it."""
    assert fault_after(b"starting\n" * 1000) is None
    fault = fault_after(b"starting\n" * 1001)
    assert fault == "it sent more than 1000 lines that are no messages in a minute"
    monkeypatch.setattr(bounds, "MAX_JUNK_BYTES", 100)
    assert fault_after(b"x" * 60 + b"\n") is None
    fault = fault_after(b"x" * 60 + b"\n", b"x" * 60 + b"\n")
    assert fault == "it sent more than 100 bytes that are no messages in a minute"
    monkeypatch.setattr(bounds, "MINUTE", -1.0)
    assert fault_after(b"x" * 60 + b"\n", b"x" * 60 + b"\n") is None
    assert fault_after(b"starting\n" * 1001) is None


def test_messages_are_bounded_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of good messages ends the server."""
    monkeypatch.setattr(bounds, "MAX_MESSAGES", 50)
    assert fault_after(NOTICE * 50) is None
    assert fault_after(NOTICE * 51) == "it sent more than 50 messages in a minute"
    monkeypatch.setattr(bounds, "MINUTE", -1.0)
    assert fault_after(NOTICE * 51) is None


def test_requests_without_answers_are_bounded() -> None:
    """As many requests as are answered may come, and no more."""
    measure = Measure("s")
    request = JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")
    for _ in range(3 * MAX_ASKED):
        measure.take(request)
        measure.answered()
    for _ in range(MAX_ASKED):
        measure.take(request)
    measure.take(JSONRPCNotification(jsonrpc="2.0", method="notifications/message"))
    with pytest.raises(TooMuch, match="took no answers"):
        measure.take(request)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "1" * 401])
def test_numbers_that_nobody_has_are_null(number: str) -> None:
    """A number that no double has is null, wherever it is; others are what they are."""
    message = parsed(response(b'[{"b": [%b, 1, 2.5, true]}]' % number.encode()))
    assert _result(message) == {"a": [{"b": [None, 1, 2.5, True]}]}
    assert math.isfinite(_result(parsed(response(b"1" * 300)))["a"])


def _result(message: Any) -> dict[str, Any]:
    result: dict[str, Any] = message.result
    return result


def test_ends_keep_the_first_fault() -> None:
    """Why a connection was ended is what was said first."""

    async def run() -> Ends:
        async with over_lines("s", Pipes()) as ends:
            ends.end("first")
            ends.end("second")
            return ends

    assert asyncio.run(run()).fault == "first"


def test_a_request_that_no_text_can_have_is_answered_here() -> None:
    """The next one is written as ever."""
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}

    async def run() -> None:
        into, out = anyio.create_memory_object_stream[SessionMessage | Exception](1)
        with into, out:
            for params in (deep, {"a": "\ud800"}):
                request = JSONRPCRequest(jsonrpc="2.0", id=7, method="a", params=params)
                assert await written(request, into) is None
                answer = await out.receive()
                assert isinstance(answer, SessionMessage)
                assert isinstance(answer.message, JSONRPCError)
                assert answer.message.id == 7
                assert "can't be written as JSON" in answer.message.error.message
            fine = JSONRPCRequest(jsonrpc="2.0", id=8, method="a", params={})
            assert (await written(fine, into) or "").startswith("{")

    asyncio.run(asyncio.wait_for(run(), 60))
