"""What a model streams → calls, each as soon as its block has ended. Pure.

A reader takes the events of one message, one by one, and says which calls they complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from executor.callables import refuse_constant
from executor.model import Call

Format: TypeAlias = Literal["anthropic", "openai"]


class StreamFault(Exception):
    """The events are not those of a whole message."""


@dataclass(frozen=True, slots=True)
class Block:
    """A call whose block has ended.

    Attributes:
        call: of the model.
        fault: why its input can't be used, for the model; None = it can. The input is empty
            then.
    """

    call: Call
    fault: str | None = None


class Reader(Protocol):
    """Reads one message of a model."""

    @property
    def is_done(self) -> bool:
        """The message has ended; whatever still comes is not read."""

    def take(self, event: Any) -> list[Block]:
        """The calls that one more event completes, in order.

        Raises:
            StreamFault: the stream is broken, or says so.
        """


def reader_of(form: Format) -> Reader:
    """A reader of one message.

    Args:
        form: whose events they are: Anthropic's Messages or OpenAI's chat completions.
    """
    return AnthropicReader() if form == "anthropic" else OpenAIReader()


@dataclass(slots=True)
class _Open:
    """A block that has not ended."""

    id: str
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)

    def block(self) -> Block:
        """What it came to."""
        text = "".join(self.pieces)
        if not text.strip():
            return Block(Call(self.id, self.name, self.given))
        try:
            return Block(Call(self.id, self.name, _object(text)))
        except (ValueError, RecursionError) as error:
            return Block(Call(self.id, self.name, {}), _unusable(self.name, str(error)))


def _unusable(name: str, reason: str) -> str:
    return (
        f"The input of {name} is not a JSON object ({reason}); nothing was run. "
        "Send the call again, with its whole input as one JSON object."
    )


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text, parse_constant=refuse_constant)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    return value


class AnthropicReader:
    """Reads the events of Anthropic's Messages API, as dicts."""

    def __init__(self) -> None:
        self.is_done = False
        self._has_begun = False
        self._open: dict[int, _Open] = {}
        self._closed: set[int] = set()

    def take(self, event: Any) -> list[Block]:
        """See `Reader.take`. Events and blocks of other kinds are passed over."""
        try:
            match event["type"]:
                case "message_start":
                    self._start()
                case "content_block_start":
                    self._begin(event["index"], event["content_block"])
                case "content_block_delta":
                    self._continue(event["index"], event["delta"])
                case "content_block_stop":
                    return self._end(event["index"])
                case "message_stop":
                    self._finish()
                case "error":
                    raise StreamFault(_said(event.get("error")))
        except (KeyError, TypeError, AttributeError) as error:
            raise StreamFault(f"an event that can't be read ({error!r:.200})") from error
        return []

    def _start(self) -> None:
        if self._has_begun:
            # Somebody on the way has asked again: calls of it may have run.
            raise StreamFault("the message begins twice")
        self._has_begun = True

    def _begin(self, index: int, block: Mapping[str, Any]) -> None:
        if block["type"] != "tool_use":
            return
        if index in self._open or index in self._closed:
            raise StreamFault(f"block {index} begins twice")
        # Most send the input in deltas, some whole at the start.
        given = block.get("input") or {}
        self._open[index] = _Open(_name(block["id"]), _name(block["name"]), given)

    def _end(self, index: int) -> list[Block]:
        found = self._open.pop(index, None)
        if found is None:
            return []
        self._closed.add(index)
        return [found.block()]

    def _continue(self, index: int, delta: Mapping[str, Any]) -> None:
        found = self._open.get(index)
        if index in self._closed and delta["type"] == "input_json_delta":
            raise StreamFault(f"block {index} goes on after its end")
        if found is not None and delta["type"] == "input_json_delta":
            found.pieces.append(_text(delta["partial_json"]))

    def _finish(self) -> None:
        if self._open:
            raise StreamFault("the message ended within a block")
        self.is_done = True


class OpenAIReader:
    """Reads the chunks of OpenAI's chat completions, as dicts; the first choice of each.

    They have no end of a call: one is over when another has begun and its arguments are a
    whole object, which nothing can be added to, or when the message ends.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._open: dict[int, _Open] = {}
        self._closed: set[int] = set()

    def take(self, event: Any) -> list[Block]:
        """See `Reader.take`."""
        try:
            if event.get("error"):
                raise StreamFault(_said(event["error"]))
            found: list[Block] = []
            for choice in event.get("choices") or ():
                if choice.get("index", 0) == 0 and not self.is_done:
                    found += self._take_choice(choice)
            return found
        except (KeyError, TypeError, AttributeError) as error:
            raise StreamFault(f"a chunk that can't be read ({error!r:.200})") from error

    def _take_choice(self, choice: Mapping[str, Any]) -> list[Block]:
        found: list[Block] = []
        for delta in (choice.get("delta") or {}).get("tool_calls") or ():
            index = delta["index"]
            if index in self._closed:
                _require_empty(index, delta)
                continue
            if index not in self._open:
                found += self._whole_before(index)
                self._open[index] = _Open(f"call_{index}", "")
            self._continue(self._open[index], delta)
        reason = choice.get("finish_reason")
        if reason is not None:
            self.is_done = True
            found += [self._last(call, reason) for _, call in sorted(self._open.items())]
            self._open.clear()
        return found

    def _continue(self, call: _Open, delta: Mapping[str, Any]) -> None:
        call.id = _text(delta.get("id") or call.id)
        function = delta.get("function") or {}
        call.name += _text(function.get("name") or "")
        call.pieces.append(_text(function.get("arguments") or ""))

    def _whole_before(self, index: int) -> list[Block]:
        """The open calls before this one that can't go on, up to the first that can."""
        found: list[Block] = []
        for other, call in sorted(self._open.items()):
            block = call.block()
            if other > index or block.fault is not None or not any(call.pieces):
                break
            found.append(block)
            self._closed.add(other)
            del self._open[other]
        return found

    def _last(self, call: _Open, reason: str) -> Block:
        """A call that the message's end completes, or cuts off."""
        block = call.block()
        if reason in ("length", "content_filter") and not any(call.pieces):
            return Block(block.call, _unusable(call.name, f"it was cut off: {reason}"))
        return block


def _require_empty(index: int, delta: Mapping[str, Any]) -> None:
    """Some send a last piece with nothing in it."""
    if ((delta.get("function") or {}).get("arguments") or "").strip():
        raise StreamFault(f"tool call {index} goes on after its end")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text belongs")
    return value


def _name(value: Any) -> str:
    if not _text(value):
        raise TypeError("nothing where a name belongs")
    return str(value)


def _said(error: Any) -> str:
    if isinstance(error, Mapping):
        return f"{error.get('type')}: {error.get('message')}"[:1000]
    return str(error)[:1000]
