"""A model that answers messages: what a subagent needs of one, and the Messages API over HTTP.

`Model` is all that the rest of the package knows. `MessagesApi` speaks Anthropic's Messages API,
with a stream of server-sent events or without one. A request changes nothing at the far end, so
one that failed for a passing reason is made again, some times, as late as the far end asks for.
The key is sent in one header, to the one base URL; no redirect is followed.
"""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol, TypeAlias

import httpx
import tenacity

from executor.errors import ConfigError, ModelError, ModelRefused, ModelUnavailable
from executor.model import Block
from executor.text import one_line

VERSION = "2023-06-01"
"""Of the protocol, as its header names it."""
MAX_REPLY = 32 << 20
"""Bytes of one reply, and of one event of a stream."""
MAX_SAID = 500
"""Characters of what the far end says about an error."""
LONGEST_WAIT = 60.0
"""Seconds that are waited between two tries, whatever the far end asks for."""
_PASSING = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
"""Status codes after which the same request may do better."""
_PASSING_KINDS = frozenset({"overloaded_error", "api_error", "rate_limit_error", "timeout_error"})
"""The same as a stream names them."""
_SECONDS = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply or of several.

    Attributes:
        input, output: tokens taken in and made.
        cache_read, cache_written: tokens of the input that a cache had, and that went into it.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_written: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_written + other.cache_written,
        )

    @classmethod
    def of(cls, given: Any) -> Usage:
        """Of a reply's `usage`; what is missing or no number counts as 0."""
        names = (
            *("input_tokens", "output_tokens"),
            *("cache_read_input_tokens", "cache_creation_input_tokens"),
        )
        found = given if isinstance(given, Mapping) else {}
        numbers = [found.get(name) for name in names]
        return cls(*(number if type(number) is int and number > 0 else 0 for number in numbers))


@dataclass(frozen=True, slots=True)
class Reply:
    """One message of a model.

    Attributes:
        content: its blocks, as the next request repeats them.
        stop_reason: why it ended: `end_turn`, `tool_use`, `max_tokens`, `pause_turn`, …
        usage: tokens of this request.
        model: that made it.
        unread: ids of the calls whose input was no JSON object; it is empty in `content`.
    """

    content: tuple[Block, ...]
    stop_reason: str | None = None
    usage: Usage = Usage()
    model: str = ""
    unread: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """What it says, its text blocks one after the other."""
        return "".join(str(block["text"]) for block in self.content if block["type"] == "text")

    @property
    def calls(self) -> tuple[Block, ...]:
        """The blocks that call tools."""
        return tuple(block for block in self.content if block["type"] == "tool_use")


class Model(Protocol):
    """Whatever answers messages."""

    async def create(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        system: str,
        tools: Sequence[Mapping[str, Any]],
        model: str | None,
        max_tokens: int,
    ) -> Reply:
        """The next message.

        Args:
            messages: all before it, `{role, content}`, the user's first.
            system: what the model is told beside them; empty = nothing.
            tools: as Anthropic's API takes them.
            model: its name; None = the client's own.
            max_tokens: the longest reply.

        Raises:
            ModelError: there is none.
        """
        ...


# ─── the Messages API ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MessagesApi:
    """Anthropic's Messages API over HTTP. An async context manager is not needed.

    Attributes:
        api_key: sent to `base_url` and to nobody else; shown nowhere.
        base_url: without `/v1/messages`. Plain HTTP only to this machine.
        model: the name that is asked for when a request names none.
        stream: ask for a stream of events, which shows early that the far end is alive.
        silence: seconds without a byte after which a try has failed.
        patience: seconds that one request may take, with all its tries.
        tries: how often it is made, the first time counted.
        first_wait: seconds before the second try, twice as many before each further one.
    """

    api_key: str = field(repr=False)
    base_url: str = "https://api.anthropic.com"
    model: str | None = None
    stream: bool = True
    silence: float = 120.0
    patience: float = 600.0
    tries: int = 5
    first_wait: float = 0.5

    def __post_init__(self) -> None:
        """Looks at what was given.

        Raises:
            ConfigError: the key or the address can't be used; the key is not shown.
        """
        faults: list[str] = []
        if not self.api_key.strip() or not self.api_key.isascii() or not self.api_key.isprintable():
            faults.append("api_key: is empty or no plain text; give the key as it was issued")
        faults += address_faults(self.base_url)
        if self.tries < 1:
            faults.append(f"tries: {self.tries} is too small; give 1 or more")
        for name in ("silence", "patience"):
            if not 0 < getattr(self, name) < math.inf:
                faults.append(f"{name}: {getattr(self, name)} is no number of seconds; give one")
        if faults:
            raise ConfigError(faults)

    async def create(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        system: str,
        tools: Sequence[Mapping[str, Any]],
        model: str | None,
        max_tokens: int,
    ) -> Reply:
        """See `Model.create`.

        Raises:
            ModelRefused: the far end does not take the request; the same one fails again.
            ModelUnavailable: no whole reply came, after all tries or within `patience`.
        """
        name = model or self.model
        if name is None:
            raise ModelRefused(
                "No model was named; name one in the call, for its agent's type "
                "(agents.TYPE.model), or for all of them (ANTHROPIC_MODEL, --model)."
            )
        body: dict[str, Any] = {
            "model": name,
            "max_tokens": max_tokens,
            "messages": list(messages),
            "stream": self.stream,
        }
        if system:
            body["system"] = system
        if tools:
            body["tools"] = list(tools)
        data = _encoded(body)
        try:
            async with asyncio.timeout(self.patience):
                return await self._tried(data)
        except TimeoutError:
            raise ModelUnavailable(
                f"The model gave no whole reply within {self.patience:g} s."
            ) from None

    async def _tried(self, body: bytes) -> Reply:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_Passing),
            stop=tenacity.stop_after_attempt(self.tries),
            wait=self._wait,
            reraise=True,
        )
        async with self._client() as client:
            try:
                return await retrying(self._try, client, body)
            except _Passing as error:
                raise ModelUnavailable(
                    f"The model could not be had in {self.tries} tries. The last one: {error}",
                    error.status,
                ) from None

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds before the next try: what the far end asks for, else more each time."""
        waits = tenacity.wait_exponential(multiplier=self.first_wait, max=LONGEST_WAIT)
        wait = float(waits(state)) * random.uniform(1.0, 1.2)
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after if isinstance(error, _Passing) else None
        return wait if asked is None else min(asked, LONGEST_WAIT)

    def _client(self) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        headers = {
            "x-api-key": self.api_key,
            "anthropic-version": VERSION,
            "content-type": "application/json",
            # Nothing is unpacked here, so that what is counted is what is kept.
            "accept-encoding": "identity",
        }
        return httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(self.silence, connect=min(self.silence, 30.0)),
            follow_redirects=False,
            # What the environment says is read in `settings` alone.
            trust_env=False,
        )

    async def _try(self, client: httpx.AsyncClient, body: bytes) -> Reply:
        """One try.

        Raises:
            _Passing: the next one may do better.
            ModelRefused: it will not.
        """
        url = f"{self.base_url.rstrip('/')}/v1/messages"
        try:
            async with client.stream("POST", url, content=body) as response:
                if response.status_code != 200:
                    await self._refused(response)
                kind = response.headers.get("content-type", "").lower()
                if kind.startswith("text/event-stream"):
                    return await _streamed(response, self._shown)
                return _whole(await _read(response, MAX_REPLY))
        except httpx.TimeoutException:
            raise _Passing(f"nothing came for {self.silence:g} s.") from None
        except (httpx.TransportError, httpx.StreamError) as error:
            said = self._shown(str(error)) or "no reason was given"
            raise _Passing(f"{type(error).__name__}, {said}.") from None

    async def _refused(self, response: httpx.Response) -> NoReturn:
        status = response.status_code
        data = await _read(response, 64 << 10, is_cut=True)
        said = f"HTTP {status}, {self._shown(_message_of(data))}"
        if status in _PASSING:
            raise _Passing(said, status, _seconds(response.headers.get("retry-after")))
        raise ModelRefused(f"The model's server refuses the request: {said}", status)

    def _shown(self, text: str) -> str:
        """What the far end says, on one line, without the key that it may have repeated."""
        return one_line(text.replace(self.api_key, "…"), MAX_SAID)


class _Passing(Exception):
    """A try failed for a reason that may pass."""

    def __init__(self, said: str, status: int | None = None, after: float | None = None) -> None:
        super().__init__(said)
        self.status = status
        self.retry_after = after


def address_faults(address: str) -> list[str]:
    """What is wrong with the base address of an API that a key is sent to."""
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        return [f"base_url: {address!r} is no address; write https://host"]
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        return [f"base_url: {str(url.host)!r} is no address; write https://host"]
    if url.userinfo:
        return ["base_url: holds a name or a password; leave them out"]
    if url.scheme == "http" and not _is_here(url.host):
        return [f"base_url: the key would go to {url.host} in the clear; use https"]
    return []


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _encoded(body: Mapping[str, Any]) -> bytes:
    """The request as JSON.

    Raises:
        ModelRefused: it can't be written as such.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise ModelRefused(
            f"What was said so far can't be sent ({type(error).__name__}): a call in it is nested "
            "too deeply, or holds what is no JSON. Start anew."
        ) from None
    # Names in a box need not be UTF-8; what is no character can't be sent as one.
    return text.encode("utf-8", "replace")


def _seconds(text: str | None) -> float | None:
    """`Retry-After` as seconds; None = it says none. A date is not read: clocks differ."""
    match = _SECONDS.fullmatch((text or "").strip())
    return None if match is None else float(match[0])


async def _read(response: httpx.Response, most: int, *, is_cut: bool = False) -> bytes:
    data = bytearray()
    async for piece in response.aiter_raw():
        data += piece
        if len(data) > most:
            if is_cut:
                break
            raise ModelRefused(f"The model's reply has more than {most} bytes.")
    return bytes(data[:most])


def _message_of(data: bytes) -> str:
    """What an error's body says."""
    try:
        error = json.loads(data)["error"]
        return f"{error['type']}: {error['message']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return data.decode("utf-8", "replace").strip() or "without a word"


# ─── a reply that comes in one piece ────────────────────────────────────────────────


def _whole(data: bytes) -> Reply:
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise _Passing("the reply is no JSON.") from None
    if not isinstance(given, dict) or not isinstance(given.get("content"), list):
        raise _Passing("the reply is no message.")
    return _reply(given, given["content"])


def _reply(given: Mapping[str, Any], content: Sequence[Any]) -> Reply:
    """The reply of a message's fields.

    Raises:
        _Passing: a block is none.
    """
    for block in content:
        is_sound = isinstance(block, dict) and isinstance(block.get("type"), str)
        if not is_sound or not _is_complete(block):
            raise _Passing("a block of the reply is not whole.")
    reason = given.get("stop_reason")
    return Reply(
        content=tuple(content),
        stop_reason=reason if isinstance(reason, str) else None,
        usage=Usage.of(given.get("usage")),
        model=str(given.get("model", "")),
    )


_PARTS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "tool_use": {"id": str, "name": str, "input": dict},
}


def _is_complete(block: Mapping[str, Any]) -> bool:
    parts = _PARTS.get(block["type"], {})
    return all(isinstance(block.get(name), kind) for name, kind in parts.items())


# ─── a reply that comes as events ───────────────────────────────────────────────────

Shown: TypeAlias = Callable[[str], str]


class Events:
    """Bytes of server-sent events → their data. Pieces may end anywhere. Pure."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line: list[str] = []
        self._after_return = False
        self._data: list[str] = []
        self._size = 0

    def take(self, piece: bytes) -> Iterator[str]:
        """The data of the events that this piece completes.

        Raises:
            ModelRefused: an event is too large.
        """
        text = self._decoder.decode(piece)
        if self._after_return and text:
            # A line's end came in two pieces.
            text = text.removeprefix("\n")
            self._after_return = False
        self._after_return = self._after_return or text.endswith("\r")
        *lines, last = re.split(r"\r\n|\r|\n", text)
        if lines:
            lines[0] = "".join([*self._line, lines[0]])
            self._line.clear()
        for line in lines:
            if line or self._data:
                yield from self._end(line)
        self._line.append(last)
        self._size += len(text)
        if self._size > MAX_REPLY:
            raise ModelRefused(f"The model's reply has an event of more than {MAX_REPLY} bytes.")

    def _end(self, line: str) -> Iterator[str]:
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif not line:
            if self._data:
                yield "\n".join(self._data)
            self._data.clear()
            self._size = 0


class Message:
    """The events of one message → its reply. Pure."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._usage = Usage()
        self._blocks: dict[int, dict[str, Any]] = {}
        # Pieces of the blocks that have not ended, by what they are pieces of.
        self._pieces: dict[int, dict[str, list[str]]] = {}
        self._unread: set[str] = set()
        self.is_done = False

    def take(self, event: Mapping[str, Any], shown: Shown = str) -> None:
        """One more event; kinds that are not known are passed over.

        Raises:
            _Passing, ModelRefused: the far end tells of an error.
            KeyError, TypeError, ValueError: it is not what it should be.
        """
        match event["type"]:
            case "message_start":
                self._fields = dict(event["message"])
                self._usage = Usage.of(self._fields.get("usage"))
            case "content_block_start":
                index = event["index"]
                if type(index) is not int:
                    raise TypeError("index")
                self._blocks[index], self._pieces[index] = dict(event["content_block"]), {}
            case "content_block_delta":
                self._grow(event["index"], event["delta"])
            case "content_block_stop":
                self._finish(event["index"])
            case "message_delta":
                self._fields |= event["delta"]
                later = Usage.of(event.get("usage"))
                self._usage = replace(self._usage, output=later.output or self._usage.output)
            case "message_stop":
                self.is_done = True
            case "error":
                _raise_told(event["error"], shown)

    def _grow(self, index: int, delta: Mapping[str, Any]) -> None:
        name = _GROWING.get(delta["type"])
        if name is not None:
            self._pieces[index].setdefault(name, []).append(delta[name])

    def _finish(self, index: int) -> None:
        block = self._blocks[index]
        for name, pieces in self._pieces.pop(index).items():
            text = "".join(pieces)
            if name != "partial_json":
                block[name] = block.get(name, "") + text
            elif text.strip() and not self._read(block, text):
                self._unread.add(block["id"])

    def _read(self, block: dict[str, Any], text: str) -> bool:
        """The input of a call; whoever runs it tells the model where that can't be read."""
        try:
            given = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            given = None
        block["input"] = given if isinstance(given, dict) else {}
        return isinstance(given, dict)

    def reply(self) -> Reply:
        """All of it.

        Raises:
            _Passing: a block is not whole.
        """
        if self._pieces:
            raise _Passing("a block of the reply has not ended.")
        content = [self._blocks[index] for index in sorted(self._blocks)]
        reply = _reply(self._fields, content)
        return replace(reply, usage=self._usage, unread=frozenset(self._unread))


_GROWING = {
    "text_delta": "text",
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


def _no_constant(name: str) -> NoReturn:
    """JSON has no NaN and nothing infinite, and they can't be sent back."""
    raise ValueError(name)


def _raise_told(error: Any, shown: Shown) -> NoReturn:
    kind = str(error["type"])
    said = f"{shown(kind)}: {shown(str(error.get('message', '')))}"
    if kind in _PASSING_KINDS:
        raise _Passing(said)
    raise ModelRefused(f"The model's server ended the reply: {said}")


async def _streamed(response: httpx.Response, shown: Shown) -> Reply:
    events, message = Events(), Message()
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > MAX_REPLY:
            raise ModelRefused(f"The model's reply has more than {MAX_REPLY} bytes.")
        for data in events.take(piece):
            try:
                message.take(json.loads(data), shown)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                # The error's own text may repeat what came, the key among it.
                name = type(error).__name__
                raise _Passing(f"an event is not what it should be ({name}).") from None
            if message.is_done:
                return message.reply()
    raise _Passing("the stream ended before the message did.")


__all__ = ["MessagesApi", "Model", "ModelError", "Reply", "Usage"]
