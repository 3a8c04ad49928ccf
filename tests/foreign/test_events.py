"""Events over HTTP: passed on whole, bounded, and asked for again neither at once nor never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import pytest

from executor.foreign import bounds
from executor.foreign import events as events_module
from executor.foreign.bounds import Measure
from executor.foreign.events import Broken, events
from executor.foreign.lines import joined
from executor.foreign.remote import MARGIN, MAX_OPENED, _Adapter

CALL = {"jsonrpc": "2.0", "id": 5, "method": "tools/call"}


def read(*pieces: bytes) -> list[bytes]:
    """The events of a stream that is cut so."""

    async def cut() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def run() -> list[bytes]:
        return [one async for one in events(cut())]

    return asyncio.run(run())


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_whole_however_they_are_cut(end: bytes) -> None:
    """Each event comes as a whole, whatever ends its lines, and the last one without an end too."""
    data = end.join((b"event: message", b"data: a", b"data: b", b"", b": c", b"", b"data: d"))
    expected = [b"event: message\ndata: a\ndata: b\n\n", b": c\n\n", b"data: d\n"]
    assert read(data) == expected
    assert read(*(data[at : at + 1] for at in range(len(data)))) == expected


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        (b"0", b"100"),
        (b"500", b"500"),
        (b"5000", b"5000"),
        (b"9" * 5000, b"60000"),
        (b"soon", None),
    ],
)
def test_a_server_is_asked_again_neither_at_once_nor_never(
    asked: bytes, waits: bytes | None
) -> None:
    """What a server says of when to ask again is kept between a tenth of a second and a minute."""
    expected = b"retry: " + (waits or asked) + b"\n\n"
    assert read(b"retry: " + asked + b"\n\n") == [expected]


def test_an_event_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many bytes, lines or values of an event are refused; of two events they may be more."""
    monkeypatch.setattr(events_module, "MAX_LINE", 100)
    monkeypatch.setattr(events_module, "MAX_PARTS", 10)
    monkeypatch.setattr(bounds, "MAX_PARTS", 10)
    assert len(read(b"data: " + b"x" * 80 + b"\n\n", b"data: " + b"x" * 80 + b"\n\n")) == 2
    for pieces, told in (
        ([b"x" * 101], "more than 100 bytes"),
        ([b"x" * 80 + b"\n", b"x" * 80 + b"\n"], "more than 100 bytes"),
        ([b"x\n"] * 11, "more than 10 lines"),
        ([b"data: [" + b"1," * 11 + b"1]\n\n"], "more than 10 parts"),
    ):
        with pytest.raises(Broken, match=told):
            read(*pieces)


def test_streams_are_opened_a_bounded_number_of_times() -> None:
    """A server's own stream is not opened for ever, and may say nothing as long as it likes."""
    limits: list[Any] = []

    async def run() -> None:
        async with _client(limits, 60) as client:
            own = [(await client.get("/")).status_code for _ in range(MAX_OPENED + 1)]
            assert own == [200] * MAX_OPENED + [405]
            await client.post("/", json=CALL)

    asyncio.run(run())
    assert [one["read"] for one in limits] == [None] * MAX_OPENED + [7.0]


def test_the_rest_of_an_answer_is_asked_for_until_its_time_is_up() -> None:
    """When an answer may not come any more, that is said in place of its rest."""

    async def run() -> str:
        async with _client([], 1 - MARGIN) as client, asyncio.timeout(60):
            await client.post("/", json=CALL)
            while not (rest := (await client.get("/")).text):
                pass
            return rest

    told = asyncio.run(run())
    assert '"id": 5' in told
    assert "took longer than 1 seconds" in told


def _client(limits: list[Any], seconds: float) -> httpx2.AsyncClient:
    """Asks a server that says nothing; the limits of each request are put into the list."""

    def answer(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"])
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"")

    adapter = _Adapter(httpx.MockTransport(answer), joined()[0], Measure("s"), seconds)
    return httpx2.AsyncClient(transport=adapter, base_url="http://a", timeout=7.0)
