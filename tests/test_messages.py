"""The client of the Messages API, over real sockets: whole replies, or an error that says why."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.errors import ConfigError, ModelError, ModelRefused, ModelUnavailable
from executor.messages import Events, Message, MessagesApi, Reply, Usage
from tests.driver import LoopThread
from tests.messages_server import (
    KEY,
    Answer,
    Hangup,
    MessagesServer,
    Say,
    Silent,
    Status,
    Stream,
    call,
    event,
    events,
    in_order,
    serving,
    text,
)

QUESTION = [{"role": "user", "content": "What is in the tree?"}]
TOOL = {"name": "read_file", "description": "Reads", "input_schema": {"type": "object"}}
BOTH = Say.of("Let me look: ä€𝄞.", call("c1", "read_file", path="ä/€.txt", lines=[1, 2]))


class Client:
    """A client and its server, used without `async`."""

    def __init__(self, thread: LoopThread, *answers: Answer, **more: Any) -> None:
        self.thread = thread
        self.server: MessagesServer = thread.enter(serving(in_order(*answers)))
        quick = {"first_wait": 0.001, "silence": 20.0, "patience": 60.0}
        self.api = MessagesApi(KEY, self.server.url, "model-1", **{**quick, **more})

    def ask(self, **more: Any) -> Reply:
        """The reply to the question."""
        return self.thread.run(self.create(**more))

    async def create(self, **more: Any) -> Reply:
        """The same, for tasks."""
        arguments: dict[str, Any] = {
            "system": "You look.",
            "tools": [TOOL],
            "model": None,
            "max_tokens": 100,
            **more,
        }
        return await self.api.create(QUESTION, **arguments)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("cut", [0, 1, 7])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_reply_is_whole(loop_thread: LoopThread, stream: bool, cut: int, line_end: str) -> None:
    """Text and calls arrive as they were made, however the bytes are cut and lines end."""
    client = Client(loop_thread, replace(BOTH, cut=cut, line_end=line_end), stream=stream)
    reply = client.ask()
    assert reply.content == BOTH.blocks
    assert (reply.stop_reason, reply.model) == ("tool_use", "model-of-the-server")
    assert reply.usage == Usage(7, 5)
    assert reply.text == "Let me look: ä€𝄞." and [one["id"] for one in reply.calls] == ["c1"]


def test_request_is_as_the_protocol_has_it(loop_thread: LoopThread) -> None:
    """Key and version are headers; messages, system and tools are the body."""
    client = Client(loop_thread, Say.of("Nothing."))
    client.ask(model="model-2")
    (request,) = client.server.requests
    assert request.path == "/v1/messages"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert request.body == {
        "model": "model-2",
        "max_tokens": 100,
        "messages": QUESTION,
        "stream": True,
        "system": "You look.",
        "tools": [TOOL],
    }


def test_empty_system_and_tools_are_left_out(loop_thread: LoopThread) -> None:
    """What is empty is not sent: servers refuse empty texts and lists."""
    client = Client(loop_thread, Say.of("Nothing."))
    client.ask(system="", tools=[])
    assert client.server.requests[0].body.keys() == {"model", "max_tokens", "messages", "stream"}


def test_lone_surrogates_are_sent_as_question_marks(loop_thread: LoopThread) -> None:
    """A file name that is no UTF-8 does not fail the request that tells of it."""
    client = Client(loop_thread, Say.of("Nothing."))
    client.ask(system="a\udcff.txt")
    assert client.server.requests[0].body["system"] == "a?.txt"


def test_reply_may_hold_what_is_not_known(loop_thread: LoopThread) -> None:
    """Unknown events, deltas and blocks are no error; blocks are repeated as they came."""
    thought = {"type": "thinking", "thinking": ""}
    start = {"type": "content_block_start", "index": 0, "content_block": thought}
    deltas = [
        {"type": "thinking_delta", "thinking": "Hm."},
        {"type": "signature_delta", "signature": "s"},
        {"type": "new_delta", "new": 1},
    ]
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": None}},
        {"type": "news"},
        start,
    ]
    told += [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    told += [{"type": "content_block_stop", "index": 0}, {"type": "message_stop"}]
    stream = Stream(b": a comment\n\n" + b"".join(event(one) for one in told))
    reply = Client(loop_thread, stream).ask()
    assert reply.content == ({"type": "thinking", "thinking": "Hm.", "signature": "s"},)
    assert reply.usage == Usage() and reply.stop_reason is None


# ─── what passes ────────────────────────────────────────────────────────────────────

_HALF = b"".join(list(events(BOTH))[:5])
_TOLD = event({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
PASSING: dict[str, Answer] = {
    **{str(code): Status(code) for code in (408, 429, 500, 502, 503, 504, 529)},
    "hangup": Hangup(),
    "half a stream": Stream(_HALF),
    "half an event": Stream(_HALF[:-20]),
    "an error event": Stream(_HALF + _TOLD),
    "no json": Stream(b"data: {\n\n"),
    "no event": Stream(b"data: [1]\n\n"),
    "delta of no block": Stream(
        event({"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta"}})
    ),
    "blocks that can't be ordered": Stream(
        event(
            {"type": "content_block_start", "index": "a", "content_block": {"type": "x"}},
        )
        + event({"type": "content_block_start", "index": 1, "content_block": {"type": "x"}})
        + event({"type": "message_stop"})
    ),
    "block without an end": Stream(
        event({"type": "content_block_start", "index": 0, "content_block": call("x", "ls")})
        + event({"type": "message_stop"})
    ),
    "call without a name": Stream(
        event(
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": "x", "input": {}},
            }
        )
        + event({"type": "content_block_stop", "index": 0})
        + event({"type": "message_stop"})
    ),
}


@pytest.mark.parametrize("answer", PASSING.values(), ids=PASSING.keys())
def test_passing_faults_are_tried_again(loop_thread: LoopThread, answer: Answer) -> None:
    """What may pass is tried again, and nothing of the broken try is in the reply."""
    client = Client(loop_thread, answer, BOTH)
    assert client.ask().content == BOTH.blocks
    assert len(client.server.requests) == 2


def test_tries_are_bounded(loop_thread: LoopThread) -> None:
    """After the last try the error says what the far end said, and its status."""
    client = Client(loop_thread, Status(529), tries=3)
    with pytest.raises(ModelUnavailable, match=r"in 3 tries.*HTTP 529.*too busy") as caught:
        client.ask()
    assert caught.value.status == 529
    assert len(client.server.requests) == 3


def test_retry_after_is_obeyed(loop_thread: LoopThread) -> None:
    """The far end's own time is waited, not ours: an hour of ours would not end here."""
    client = Client(loop_thread, Status(429, headers={"retry-after": "0"}), BOTH, first_wait=3600.0)
    assert client.ask().content == BOTH.blocks


def test_wait_for_retry_after_ends_with_patience(loop_thread: LoopThread) -> None:
    """However long the far end wants us to wait, the request ends in time."""
    client = Client(loop_thread, Status(429, headers={"retry-after": "9999"}), patience=0.5)
    with pytest.raises(ModelUnavailable, match=r"within 0\.5 s"):
        client.ask()
    assert len(client.server.requests) == 1


def test_silence_is_bounded(loop_thread: LoopThread) -> None:
    """A far end that says nothing fails a try after the time of silence."""
    client = Client(loop_thread, Silent(), tries=2, silence=0.2)
    with pytest.raises(ModelUnavailable, match=r"nothing came for 0\.2 s"):
        client.ask()
    assert len(client.server.requests) == 2


def test_drops_do_not_keep_a_request_alive(loop_thread: LoopThread) -> None:
    """A far end that says a little again and again, and never all, is left in time."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        writer.write(head)
        while not reader.at_eof() and not writer.is_closing():
            writer.write(b": wait\n\n")
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.read()

    async def asked() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        api = MessagesApi(KEY, f"http://127.0.0.1:{port}", "m", silence=5.0, patience=1.0)
        async with server:
            await api.create(QUESTION, system="", tools=[], model=None, max_tokens=5)

    with pytest.raises(ModelUnavailable, match="no whole reply within 1 s"):
        loop_thread.run(asked())


def test_key_is_not_sent_where_tls_fails(loop_thread: LoopThread) -> None:
    """A far end that does not speak TLS where the address says so gets no key."""
    received = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(65536))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        received.extend(await reader.read())
        writer.close()

    async def asked() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        api = MessagesApi(KEY, f"https://127.0.0.1:{port}", "m", tries=2, first_wait=0.001)
        async with server:
            await api.create(QUESTION, system="", tools=[], model=None, max_tokens=5)

    with pytest.raises(ModelUnavailable, match="ConnectError"):
        loop_thread.run(asked())
    assert received and KEY.encode() not in received


def test_nobody_listens(loop_thread: LoopThread) -> None:
    """An address where nobody answers is an error, not a hang."""
    api = MessagesApi(KEY, "http://127.0.0.1:1", "m", tries=2, first_wait=0.001)
    asked = api.create(QUESTION, system="", tools=[], model=None, max_tokens=5)
    with pytest.raises(ModelUnavailable, match="ConnectError"):
        loop_thread.run(asked)


def test_cancelling_ends_the_connection(loop_thread: LoopThread) -> None:
    """A request that is cancelled is gone from the far end, too."""
    client = Client(loop_thread, Silent())

    async def cancelled() -> None:
        task = asyncio.create_task(client.create())
        await client.server.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            await client.server.left.wait()

    loop_thread.run(cancelled())


# ─── what does not ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413])
def test_refusals_are_not_repeated(loop_thread: LoopThread, code: int) -> None:
    """A request that the far end does not take is made once."""
    body = '{"type":"error","error":{"type":"invalid_request_error","message":"no \\u001b[31m"}}'
    client = Client(loop_thread, Status(code, body))
    with pytest.raises(ModelRefused, match=r"no \\x1b\[31m") as caught:
        client.ask()
    assert caught.value.status == code
    assert len(client.server.requests) == 1


def test_redirects_are_not_followed(loop_thread: LoopThread) -> None:
    """The key goes to the one address that was given and nowhere else."""
    client = Client(loop_thread, Status(307, "", {"location": "http://127.0.0.1:1/"}))
    with pytest.raises(ModelRefused, match="HTTP 307"):
        client.ask()


def test_refusal_in_a_stream(loop_thread: LoopThread) -> None:
    """An error event of a lasting kind ends the request at once."""
    told = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    client = Client(loop_thread, Stream(event(told)))
    with pytest.raises(ModelRefused, match="too long"):
        client.ask()
    assert len(client.server.requests) == 1


def test_no_model_is_named(loop_thread: LoopThread) -> None:
    """Without a name of a model nothing is sent."""
    client = Client(loop_thread, BOTH)
    client.api = replace(client.api, model=None)
    with pytest.raises(ModelRefused, match="No model was named"):
        client.ask()
    assert not client.server.requests


def test_cut_input_is_empty(loop_thread: LoopThread) -> None:
    """A call that the longest reply has cut has no input, and the stop reason says why."""
    block = {"type": "tool_use", "id": "x", "name": "write_file", "input": {}}
    part = {"type": "input_json_delta", "partial_json": '{"path": "a'}
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": part},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        {"type": "message_stop"},
    ]
    reply = Client(loop_thread, Stream(b"".join(event(one) for one in told))).ask()
    assert (reply.stop_reason, reply.calls) == ("max_tokens", (block,))


def _called(part: str, reason: str = "tool_use") -> Stream:
    """A message with one call, of whose input this is said."""
    block = {"type": "tool_use", "id": "x", "name": "test", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": part}
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}},
        {"type": "message_stop"},
    ]
    return Stream(b"".join(event(one) for one in told))


@pytest.mark.parametrize("part", ["{", "[1]", '"x"', "null", '{"a": NaN}', '{"a":' + "[" * 10**5])
def test_input_that_is_no_object_is_said(loop_thread: LoopThread, part: str) -> None:
    """A call whose input can't be read is not taken for one without arguments."""
    reply = Client(loop_thread, _called(part)).ask()
    assert [block["input"] for block in reply.calls] == [{}] and reply.unread == {"x"}
    assert not Client(loop_thread, _called("{}")).ask().unread


def test_what_can_not_be_sent(loop_thread: LoopThread) -> None:
    """A conversation that is no JSON is refused before anything is sent."""
    client = Client(loop_thread, BOTH)
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    for bad in (deep, float("nan")):
        with pytest.raises(ModelRefused, match="can't be sent"):
            client.ask(tools=[{**TOOL, "input_schema": bad}])
    assert not client.server.requests


# ─── the key ────────────────────────────────────────────────────────────────────────


_DELTA = {"type": "content_block_delta", "index": KEY, "delta": {"type": "text_delta", "text": ""}}


@pytest.mark.parametrize(
    "told", [_DELTA, {"type": "error", "error": {"type": f"\x1b{KEY}", "message": KEY}}]
)
def test_key_is_not_repeated(loop_thread: LoopThread, told: dict[str, Any]) -> None:
    """Whatever a stream puts it into, the error shows neither the key nor what acts on screens."""
    with pytest.raises(ModelError) as caught:
        Client(loop_thread, Stream(event(told)), tries=1).ask()
    assert KEY not in str(caught.value) and "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_key_is_shown_nowhere(loop_thread: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the client's text, in logs, or in an error that the far end repeats it in."""
    caplog.set_level(logging.DEBUG)
    body = json.dumps({"error": {"type": "authentication_error", "message": f"bad key {KEY}"}})
    client = Client(loop_thread, Status(401, body))
    with pytest.raises(ModelRefused) as caught:
        client.ask()
    said = f"{caught.value}{client.api!r}{caught.value.__cause__!r}"
    assert "bad key …" in said
    assert KEY not in said
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"api_key": " "}, "api_key"),
        ({"api_key": "sk\nx"}, "api_key"),
        ({"base_url": "ftp://host"}, "no address"),
        ({"base_url": "https://"}, "no address"),
        ({"base_url": "https://host/?a=b"}, "no address"),
        ({"base_url": "https://me:secret@host"}, "a name or a password"),
        ({"base_url": "http://example.org"}, "in the clear"),
        ({"tries": 0}, "tries"),
        ({"silence": 0.0}, "silence"),
        ({"patience": float("inf")}, "patience"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], fault: str) -> None:
    """What can't be used is said before anything is sent, without the key or a password."""
    with pytest.raises(ConfigError, match=fault) as caught:
        MessagesApi(**{"api_key": KEY, **given})
    assert KEY not in str(caught.value) and "secret" not in str(caught.value)


# ─── events ─────────────────────────────────────────────────────────────────────────


@settings(max_examples=200)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(1, 9), min_size=1),
)
def test_pieces_may_end_anywhere(said: list[str], end: str, sizes: list[int]) -> None:
    """The events are the same wherever the bytes are cut, in a character or a line's end."""
    data = "".join(f"event: x{end}data: {one}{end}{end}" for one in said).encode()
    reader = Events()
    found: list[str] = []
    at = number = 0
    while at < len(data):
        size = sizes[number % len(sizes)]
        found += reader.take(data[at : at + size])
        at, number = at + size, number + 1
    assert found == said


def test_small_pieces_take_little_time() -> None:
    """The work grows with the bytes, not with the bytes times the pieces that they come in."""
    delta = event({"type": "x", "text": "x" * (8 << 20)})
    started = time.process_time()
    reader = Events()
    assert sum(len(list(reader.take(delta[at : at + 64]))) for at in range(0, len(delta), 64)) == 1
    message = Message()
    message.take({"type": "content_block_start", "index": 0, "content_block": text("")})
    part = {"type": "text_delta", "text": "x" * 100}
    for _ in range(100_000):
        message.take({"type": "content_block_delta", "index": 0, "delta": part})
    message.take({"type": "content_block_stop", "index": 0})
    assert len(message.reply().text) == 10_000_000
    assert time.process_time() - started < 10


def test_lines_of_an_event_are_joined() -> None:
    """Several data lines of one event are one text; comments and other fields are none."""
    data = b": hi\nid: 3\ndata: a\ndata:b\n\n\ndata\n\n"
    assert list(Events().take(data)) == ["a\nb"]


def test_sum_of_usage() -> None:
    """Numbers add up; what is no number counts as nothing."""
    told = {"input_tokens": 3, "output_tokens": True, "cache_read_input_tokens": 2, "x": 9}
    assert Usage.of(told) + Usage(1, 1, 1, 1) == Usage(4, 1, 3, 1)
    assert Usage.of("none") == Usage()
    assert text("x") == {"type": "text", "text": "x"}
