"""Call lines → the calls of a turn, and refusals for what is no call. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from executor.errors import Code
from executor.frontends.reading import MAX_LINE
from executor.model import Call, Result


@dataclass(frozen=True, slots=True)
class Iteration:
    """The host says that another iteration of its loop begins."""


Item: TypeAlias = Call | Result | Iteration
"""A call, the result that stands in for something that is none, or an event."""

_CALL_KEYS = frozenset({"id", "name", "input", "type"})
_TOO_LONG = (
    f"the line is longer than {MAX_LINE >> 20} MiB and was not read; give its calls a line each, "
    "or less in one call"
)


class Lines:
    """Reads the lines of one run; an id may be used once in it."""

    def __init__(self) -> None:
        self._number = 0
        self._ids: set[str] = set()

    def read(self, line: bytes) -> list[Item]:
        """The items of one line: a call, an array of calls, a message, or an event.

        Args:
            line: as `reading.lines` has it, with or without its end.
        """
        self._number += 1
        if not line.strip():
            return []
        if len(line) > MAX_LINE:
            return [self._refused(None, None, _TOO_LONG)]
        try:
            value = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
        except UnicodeDecodeError:
            return [self._refused(None, None, "the line is not valid UTF-8")]
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            return [self._refused(None, None, f"the line is not valid JSON: {reason}")]
        if isinstance(value, list):
            return [self._item(part, strict=True) for part in value]
        if isinstance(value, dict) and "name" not in value and "content" in value:
            return self._message(value["content"])
        if isinstance(value, dict) and "event" in value and "name" not in value:
            return [self._event(value)]
        return [self._item(value, strict=True)]

    def _message(self, content: Any) -> list[Item]:
        blocks = content if isinstance(content, list) else []
        return [
            self._item(block, strict=False)
            for block in blocks
            if isinstance(block, dict) and block.get("type") == "tool_use"
        ]

    def _event(self, value: Mapping[str, Any]) -> Item:
        if value == {"event": "iteration"}:
            return Iteration()
        return self._refused(None, None, 'the only event is {"event": "iteration"}, alone')

    def _item(self, value: Any, *, strict: bool) -> Item:
        if not isinstance(value, dict):
            return self._refused(None, None, 'a call is an object {"id", "name", "input"}')
        id, name = _text(value.get("id")), _text(value.get("name"))
        fault = _kind_fault(value) or self._fault(id, name, value, strict)
        if fault is not None:
            return self._refused(id, name, fault)
        assert id is not None and name is not None, "checked with the faults"
        self._ids.add(id)
        return Call(id, name, value["input"])

    def _fault(
        self, id: str | None, name: str | None, value: Mapping[str, Any], strict: bool
    ) -> str | None:
        if id is None:
            return "id is missing or empty; give each call a text that no other call has"
        if id in self._ids:
            return f"id {id!r} was used before; each call of a run needs its own"
        if name is None:
            return "name is missing or empty; give the tool's name"
        if not isinstance(value.get("input"), dict):
            return "input must be an object with the tool's arguments"
        unknown = sorted(value.keys() - _CALL_KEYS) if strict else []
        if unknown:
            return f"unknown field {unknown[0]!r}; a call has id, name and input"
        return None

    def _refused(self, id: str | None, name: str | None, reason: str) -> Result:
        return Result(
            id,
            name,
            f"Line {self._number}: {reason}.",
            is_error=True,
            code=Code.INVALID_ARGUMENTS,
            details={"line": self._number},
        )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _kind_fault(value: Mapping[str, Any]) -> str | None:
    """An id or a name that is there and is no text."""
    for key in ("id", "name"):
        if value.get(key) is not None and not isinstance(value[key], str):
            return f"{key} must be text in quotes"
    return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
