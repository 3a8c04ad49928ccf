"""The protocol's frames: what a server may send, and what becomes of those who wait for it."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from executor.bytestream import StreamClosed
from executor.language import messages
from executor.language.messages import Ended, Peer, Refused


class Pipes:
    """A connection whose other end is the test."""

    def __init__(self) -> None:
        self._coming: asyncio.Queue[bytes] = asyncio.Queue()
        self._said = bytearray()
        self._news = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()

    # ── the near end ──

    async def read(self, most: int = 1 << 16) -> bytes:
        data = await self._coming.get()
        if data == b"!":
            raise StreamClosed("it is gone")
        return data

    async def write(self, data: bytes) -> None:
        await self.takes.wait()
        self._said += data
        self._news.set()

    async def write_eof(self) -> None:
        raise AssertionError("nobody says that")

    def abort(self, reason: str = "") -> None:
        raise AssertionError("nobody does that")

    # ── the test's end ──

    def say(self, *data: bytes) -> None:
        """Let the near end read these pieces."""
        for piece in data:
            self._coming.put_nowait(piece)

    def tell(self, **message: Any) -> None:
        """Send a message."""
        self.say(frame(message))

    async def heard(self) -> Any:
        """The next message of the near end."""
        while b"\r\n\r\n" not in self._said:
            await self._more()
        head, _, rest = bytes(self._said).partition(b"\r\n\r\n")
        size = int(head.removeprefix(b"Content-Length: "))
        while len(self._said) < len(head) + 4 + size:
            await self._more()
        rest = bytes(self._said[len(head) + 4 :])
        self._said = bytearray(rest[size:])
        message = json.loads(rest[:size])
        assert message.pop("jsonrpc") == "2.0"
        return message

    async def _more(self) -> None:
        self._news.clear()
        await self._news.wait()


def frame(message: Any) -> bytes:
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Listener:
    """Has what a peer was told and asked."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def hear(self, method: str, params: Any) -> None:
        self.heard.append((method, params))

    def answer(self, method: str, params: Any) -> Any:
        if method == "no":
            raise Refused(-32601, "there is no such thing")
        return [method, params]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Pipes, Peer, Listener]]:
    pipes, listener = Pipes(), Listener()
    peer = Peer(pipes, listener.answer, listener.hear)
    try:
        yield pipes, peer, listener
    finally:
        await peer.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_answers_find_those_who_asked() -> None:
    """In any order; what was asked by nobody is left out."""

    async def test() -> None:
        async with connected() as (pipes, peer, _):
            first = asyncio.ensure_future(peer.request("a", {"x": 1}))
            second = asyncio.ensure_future(peer.request("b", None))
            asked = [await pipes.heard(), await pipes.heard()]
            assert [(one["method"], one["params"]) for one in asked] == [
                ("a", {"x": 1}),
                ("b", None),
            ]
            for stray in (999, "1", True, None, 1.0, [1]):
                pipes.tell(id=stray, result="stray")
            pipes.tell(id=asked[1]["id"], result="for b")
            pipes.tell(id=asked[0]["id"], error={"code": -32801, "message": "later\x1b[2J"})
            assert await second == "for b"
            with pytest.raises(Refused) as refused:
                await first
            assert refused.value.code == -32801
            assert refused.value.message == "later\\x1b[2J"

    run(test())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_message_comes_in_any_pieces(size: int) -> None:
    """Headers in any case and order, and what the body holds is counted in bytes."""

    async def test() -> None:
        async with connected() as (pipes, peer, _):
            asked = asyncio.ensure_future(peer.request("a", None))
            number = (await pipes.heard())["id"]
            body = json.dumps({"id": number, "result": "ü😀"}, ensure_ascii=False).encode()
            head = b"Content-Type: x; charset=utf-8\r\ncontent-LENGTH:%d\r\n\r\n" % len(body)
            data = frame({"method": "m"}) + head + body
            pipes.say(*(data[at : at + size] for at in range(0, len(data), size)))
            assert await asked == "ü😀"

    run(test())


def test_requests_of_the_server_are_answered() -> None:
    """Under the id that they have; what has none is a notification."""

    async def test() -> None:
        async with connected() as (pipes, _peer, listener):
            pipes.tell(id="x", method="ask", params=[1])
            pipes.tell(id=7, method="no")
            pipes.tell(method="tell", params={"a": 1})
            pipes.tell(id={}, method="ask")
            pipes.tell(id=8, method="ask")
            assert await pipes.heard() == {"id": "x", "result": ["ask", [1]]}
            refused = {"code": -32601, "message": "there is no such thing"}
            assert await pipes.heard() == {"id": 7, "error": refused}
            assert await pipes.heard() == {"id": 8, "result": ["ask", None]}
            assert listener.heard == [("tell", {"a": 1})]

    run(test())


def test_who_no_longer_waits_says_so() -> None:
    """An answer that comes all the same is nobody's."""

    async def test() -> None:
        async with connected() as (pipes, peer, _):
            asked = asyncio.ensure_future(peer.request("a", None))
            number = (await pipes.heard())["id"]
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            told = {"method": "$/cancelRequest", "params": {"id": number}}
            assert await pipes.heard() == told
            pipes.tell(id=number, result="late")
            again = asyncio.ensure_future(peer.request("b", None))
            pipes.tell(id=(await pipes.heard())["id"], result="in time")
            assert await again == "in time"

    run(test())


BAD = {
    "no length": (b"Content-Type: x\r\n\r\n{}", "a header without a length"),
    "text": (b"Traceback (most recent call last):\n" * 200, "what is no message"),
    "an endless header": (b"Content-Length: 2\r\nX: " + b"x" * 5000, "what is no message"),
    "a long header": (b"X: " + b"x" * 5000 + b"\r\nContent-Length: 2\r\n\r\n{}", "no message"),
    "too much": (b"Content-Length: 9999999999\r\n\r\n", "a message of 9999999999 bytes"),
    "much too much": (b"Content-Length: 99999999999999\r\n\r\n", "a header without a length"),
    "less than nothing": (b"Content-Length: -1\r\n\r\n", "a header without a length"),
    "no JSON": (b"Content-Length: 3\r\n\r\n{x}", "is no JSON: {x}"),
    "no UTF-8": (b'Content-Length: 3\r\n\r\n"\xff"', "is no JSON"),
    "deep": (b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000, "is no JSON"),
    "a long number": (b"Content-Length: 10000\r\n\r\n" + b"1" * 10_000, "is no JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_message_ends_the_server(name: str) -> None:
    """Those who wait are told, and so is everybody who asks afterwards."""
    data, fault = BAD[name]

    async def test() -> None:
        async with connected() as (pipes, peer, _):
            asked = asyncio.ensure_future(peer.request("a", None))
            await pipes.heard()
            pipes.say(data)
            with pytest.raises(Ended):
                await asked
            assert peer.over.is_set()
            assert peer.fault is not None and fault in peer.fault
            assert peer.fault.isprintable()
            with pytest.raises(Ended):
                await peer.request("b", None)
            peer.notify("c", None)

    run(test())


@pytest.mark.parametrize("end", [b"", b"!"], ids=["closed", "aborted"])
@pytest.mark.parametrize("before", [b"", b"Content-Le", b"Content-Length: 10\r\n\r\n{"])
def test_an_end_is_told(end: bytes, before: bytes) -> None:
    """Nobody has done wrong where a server ends, even in the middle of a message."""

    async def test() -> None:
        async with connected() as (pipes, peer, _):
            asked = [asyncio.ensure_future(peer.request("a", None)) for _ in range(3)]
            await pipes.heard()
            pipes.say(*([before] if before else []), end)
            for one in asked:
                with pytest.raises(Ended):
                    await one
            assert peer.over.is_set() and peer.fault is None

    run(test())


def test_odd_messages_are_left_out() -> None:
    """What is JSON and no message costs nothing."""

    async def test() -> None:
        async with connected() as (pipes, peer, listener):
            odd: list[Any] = [1, "x", None, [], {}, {"id": 99}, {"method": 3}]
            for one in (*odd, [{"method": "in a batch"}]):
                pipes.say(frame(one))
            pipes.tell(method="told")
            asked = asyncio.ensure_future(peer.request("a", None))
            pipes.tell(id=(await pipes.heard())["id"], error={"code": "x", "message": {}})
            with pytest.raises(Refused, match="it gave no reason"):
                await asked
            assert listener.heard == [("told", None)]

    run(test())


def test_a_server_that_takes_no_answers_is_ended() -> None:
    """They are not kept for it without a bound."""

    async def test() -> None:
        async with connected() as (pipes, peer, _):
            pipes.takes.clear()
            for number in range(messages.MAX_ANSWERING + 1):
                pipes.tell(id=number, method="ask")
            await peer.over.wait()
            assert peer.fault == "it asked more than 100 times and took no answers"

    run(test())


@pytest.mark.parametrize("length", [messages.MAX_ID, messages.MAX_ID + 1])
def test_an_id_has_a_bound(length: int) -> None:
    """It comes back in the answer, where a character may take six bytes."""

    async def test() -> None:
        async with connected() as (pipes, peer, _):
            name = "é" * length
            pipes.tell(id=name, method="ask")
            if length <= messages.MAX_ID:
                assert (await pipes.heard())["id"] == name
                return
            await peer.over.wait()
            assert (
                peer.fault == f"it asked with an id of {length} characters; 200 are taken at most"
            )

    run(test())


def test_what_can_not_be_said_is_not_waited_for() -> None:
    """Whoever wanted to ask it is told, and nobody else is at the end."""

    async def test() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: told.append(fault))
        async with connected() as (_, peer, _listener):
            with pytest.raises(TypeError):
                await peer.request("a", object())
        gc.collect()
        assert told == []

    run(test())


def test_small_messages_are_read_no_further_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs time, however little it says."""
    monkeypatch.setattr(messages, "MAX_UNASKED", 1 << 18)

    async def test() -> None:
        async with connected() as (pipes, _peer, listener):
            message = {"method": "m"}
            some = (1 << 18) // (len(json.dumps(message)) + messages.COST)
            pipes.say(frame(message) * 3 * some)
            while len(listener.heard) < some:
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(listener.heard) == some

    run(test())


def test_what_nobody_asked_for_is_read_no_further() -> None:
    """Until somebody asks; a flood instead of an answer ends the server."""

    async def test() -> None:
        async with connected() as (pipes, peer, listener):
            piece = frame({"method": "log", "params": "x" * (1 << 20)})
            some = messages.MAX_UNASKED // len(piece) + 1
            for _ in range(3 * some):
                pipes.say(piece)
            asked = asyncio.ensure_future(peer.request("a", None))
            with pytest.raises(Ended):
                await asked
            assert peer.fault == f"it sent more than {messages.MAX_UNASKED} bytes and no answer"
            assert some <= len(listener.heard) <= some + 1

    run(test())


def test_a_chatty_server_is_heard_again_when_it_is_asked() -> None:
    """Nothing of what it has said meanwhile is lost."""

    async def test() -> None:
        async with connected() as (pipes, peer, listener):
            piece = frame({"method": "log", "params": "x" * (1 << 20)})
            some = messages.MAX_UNASKED // len(piece) + 1
            for _ in range(some):
                pipes.say(piece)
            pipes.tell(method="the last")
            while len(listener.heard) < some - 1:
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert listener.heard[-1][0] == "log", "it was read no further"
            asked = asyncio.ensure_future(peer.request("a", None))
            pipes.tell(id=(await pipes.heard())["id"], result="heard")
            assert await asked == "heard"
            assert listener.heard[-1][0] == "the last"

    run(test())


def test_closing_leaves_nobody_waiting() -> None:
    """Those who asked are told, and no task is left."""

    async def test() -> None:
        before = asyncio.all_tasks()
        async with connected() as (pipes, peer, _):
            asked = asyncio.ensure_future(peer.request("a", None))
            await pipes.heard()
        with pytest.raises(Ended):
            await asked
        assert asyncio.all_tasks() == before

    run(test())
