"""A server on this machine that speaks the Messages API: real sockets, and what goes wrong on them.

It answers each request with the next of its answers, or with what a function makes of the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

KEY = "sk-test-0123456789"
USAGE = {"input_tokens": 7, "output_tokens": 5}


def text(said: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": said}


def call(id: str, name: str, /, **given: Any) -> dict[str, Any]:
    """A block that calls a tool."""
    return {"type": "tool_use", "id": id, "name": name, "input": given}


@dataclass(frozen=True)
class Say:
    """A whole message.

    Attributes:
        blocks: its content.
        stop_reason: None = as the blocks imply.
        cut: bytes that are sent at a time; 0 = all at once.
        line_end: of the stream's lines.
    """

    blocks: tuple[dict[str, Any], ...]
    stop_reason: str | None = None
    cut: int = 0
    line_end: str = "\n"

    @classmethod
    def of(cls, *blocks: dict[str, Any] | str, **more: Any) -> Say:
        """The message with these blocks."""
        return cls(tuple(text(one) if isinstance(one, str) else one for one in blocks), **more)

    @property
    def reason(self) -> str:
        """Its stop reason."""
        calls = any(block["type"] == "tool_use" for block in self.blocks)
        return self.stop_reason or ("tool_use" if calls else "end_turn")


@dataclass(frozen=True)
class Status:
    """An answer that is none."""

    code: int
    body: str = '{"type":"error","error":{"type":"overloaded_error","message":"too busy"}}'
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """A stream of exactly these bytes, after which the connection ends."""

    data: bytes


@dataclass(frozen=True)
class Silent:
    """Nothing, for as long as the other side waits."""


@dataclass(frozen=True)
class Hangup:
    """The connection ends without a byte."""


@dataclass(frozen=True)
class Together:
    """An answer that is given when so many requests wait for such a one."""

    count: int
    answer: Say


Answer: TypeAlias = Say | Status | Stream | Silent | Hangup | Together
Script: TypeAlias = Callable[["Request"], Answer]


@dataclass(frozen=True)
class Request:
    """What was asked.

    Attributes:
        path, headers: of the request; names of headers in lower case.
        body: its JSON.
    """

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def said(self) -> Any:
        """The content of the last message."""
        return self.body["messages"][-1]["content"]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The results of tools in the last message."""
        return [block for block in self.said if block["type"] == "tool_result"]

    @property
    def tools(self) -> list[str]:
        """Names of the tools."""
        return [tool["name"] for tool in self.body.get("tools", ())]


class MessagesServer:
    """The server. Made by `serving`.

    Attributes:
        requests: all so far.
        script: what it answers.
        url: its address.
        waiting: set while a request is answered with silence.
        left: set when the other side has gone from one of these.
    """

    def __init__(self, script: Script) -> None:
        self.requests: list[Request] = []
        self.url = ""
        self.waiting = asyncio.Event()
        self.left = asyncio.Event()
        self.script = script
        self._held = 0
        self._all_held = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; it carries one request."""
        task = asyncio.current_task()
        assert task is not None, "a server runs in tasks"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await _request(reader)
            self.requests.append(request)
            await self._answer(self.script(request), request, reader, writer)
        writer.close()

    async def _answer(
        self,
        answer: Answer,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        match answer:
            case Say():
                for piece in _pieces(answer, is_stream=request.body["stream"]):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
            case Together(count, inner):
                self._held += 1
                if self._held == count:
                    self._all_held.set()
                await self._all_held.wait()
                await self._answer(inner, request, reader, writer)
            case Status(code, body, headers):
                more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                size = len(body.encode())
                head = f"HTTP/1.1 {code} x\r\n{more}content-length: {size}\r\n\r\n"
                writer.write(f"{head}{body}".encode())
            case Stream(data):
                writer.write(_HEAD + data)
            case Silent():
                self.waiting.set()
                await reader.read()
                self.left.set()
            case Hangup():
                pass

    async def close(self) -> None:
        """End every connection."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Request(first.split()[1], headers, json.loads(body))


def _pieces(answer: Say, *, is_stream: bool) -> Iterator[bytes]:
    """What is written, piece by piece."""
    if is_stream:
        data = _HEAD + b"".join(events(answer))
    else:
        fields = {**_fields(answer), "content": list(answer.blocks)}
        body = json.dumps({**fields, "usage": USAGE}).encode()
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        data = b"HTTP/1.1 200 OK\r\n" + head.encode() + body
    size = answer.cut or len(data)
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _fields(answer: Say) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "model-of-the-server",
        "stop_reason": answer.reason,
    }


def events(answer: Say) -> Iterator[bytes]:
    """The message as the events of a stream."""
    start = {**_fields(answer), "stop_reason": None, "content": [], "usage": USAGE}
    found: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(answer.blocks):
        found += _block_events(index, block)
    ending = {"stop_reason": answer.reason, "stop_sequence": None}
    found.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 5}})
    found.append({"type": "message_stop"})
    for one in found:
        yield event(one, answer.line_end)


def event(data: Mapping[str, Any], line_end: str = "\n") -> bytes:
    """One event of a stream."""
    line = json.dumps(data, ensure_ascii=False)
    return f"event: {data['type']}{line_end}data: {line}{line_end}{line_end}".encode()


def _block_events(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    deltas: Sequence[dict[str, Any]]
    if block["type"] == "text":
        empty, said = text(""), block["text"]
        middle = len(said) // 2
        deltas = [{"type": "text_delta", "text": part} for part in (said[:middle], said[middle:])]
    else:
        empty = {**block, "input": {}}
        whole = json.dumps(block["input"])
        middle = len(whole) // 2
        deltas = [
            {"type": "input_json_delta", "partial_json": part}
            for part in ("", whole[:middle], whole[middle:])
        ]
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def in_order(*answers: Answer) -> Script:
    """A script that gives these, one after the other; the last one again and again."""
    left = list(answers)

    def script(request: Request) -> Answer:
        return left.pop(0) if len(left) > 1 else left[0]

    return script


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[MessagesServer]:
    """A server that answers by a script; it and its connections are gone at the end."""
    messages = MessagesServer(script)
    server = await asyncio.start_server(messages.handle, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    messages.url = f"http://{host}:{port}"
    try:
        yield messages
    finally:
        server.close()
        await messages.close()
        await server.wait_closed()
