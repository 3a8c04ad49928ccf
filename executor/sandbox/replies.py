"""What an operation's answer must look like before a tool may read it.

The agent is not believed: fields that are missing or of the wrong type would fail
somewhere in a tool, where they could not be told from a fault of ours. Fields that no
tool reads are let through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from executor.errors import ProtocolError

Test: TypeAlias = Callable[[Any], bool]

_ABSENT = object()

MAX_KEY = 1 << 14
"""Characters; every key is kept as long as its loop."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields that are read of an answer.

    Attributes:
        fields: name → what its value has to be.
        fits: whether fields and data go together.
    """

    fields: Mapping[str, Test]
    fits: Callable[[dict[str, Any], bytes], bool] | None = None

    def check(self, value: dict[str, Any], data: bytes) -> None:
        """Let the answer through, or refuse it.

        Raises:
            ProtocolError: no agent of ours answers so.
        """
        for name, is_right in self.fields.items():
            if not is_right(value.get(name, _ABSENT)):
                raise ProtocolError(f"an answer whose {name} is missing or of a wrong type")
        if self.fits is not None and not self.fits(value, data):
            raise ProtocolError("an answer whose data are not what its fields say")


def shape_of(op: str, arguments: Mapping[str, Any]) -> Shape | None:
    """The shape of the answer to this request; None where nothing is read of it."""
    if op == "read" and arguments.get("encoding") == "base64":
        return _READ_RAW
    return _SHAPES.get(op)


# ─── values ─────────────────────────────────────────────────────────────────────────


def _count(value: Any) -> bool:
    # A truth value is no number, and a number of 4,000 digits is no size.
    return type(value) is int and 0 <= value < 1 << 63


def _flag(value: Any) -> bool:
    return value is True or value is False


def _text(value: Any) -> bool:
    return type(value) is str


def _texts(value: Any) -> bool:
    return type(value) is list and all(map(_text, value))


def _maybe_count(value: Any) -> bool:
    return value is None or _count(value)


def _maybe_text(value: Any) -> bool:
    return value is None or type(value) is str


def _key(value: Any) -> bool:
    """Something to tell files apart by; an agent need not give it."""
    return value is None or value is _ABSENT or (_text(value) and len(value) <= MAX_KEY)


def _clips(value: Any) -> bool:
    return type(value) is list and all(
        type(clip) is list and len(clip) == 2 and _count(clip[0]) and _maybe_count(clip[1])
        for clip in value
    )


# ─── fields and data ────────────────────────────────────────────────────────────────

_RECORDS = re.compile(
    rb"(?:[fdlLo]\x1f[0-9]{1,20}\x1f-?[0-9]{1,20}\x1f[^\x1f\0]*\x1f[^\0]+\0)*", re.DOTALL
)


def _is_read(value: dict[str, Any], data: bytes) -> bool:
    first: int = value["first"]
    if first < 1:
        return False
    clipped = value["clipped"]
    if not clipped:
        return True
    end = first + data.count(b"\n") + 1
    return all(first <= number < end for number, _ in clipped)


def _is_listing(value: dict[str, Any], data: bytes) -> bool:
    return _RECORDS.fullmatch(data) is not None


def _is_run(value: dict[str, Any], data: bytes) -> bool:
    streams = [value.get("stdout"), value.get("stderr")]
    return all(stream is None or _is_stream(stream) for stream in streams)


def _is_stream(value: Any) -> bool:
    return type(value) is dict and all(
        _count(value.get(name)) for name in ("total", "head", "tail")
    )


_READ_RAW = Shape({"size": _count, "modified": _text, "hash": _maybe_text, "key": _key})

_SHAPES: dict[str, Shape] = {
    "read": Shape(
        {
            "size": _count,
            "modified": _text,
            "hash": _maybe_text,
            "key": _key,
            "first": _count,
            "lines": _count,
            "total_lines": _maybe_count,
            "more": _flag,
            "clipped": _clips,
            "invalid": _flag,
        },
        _is_read,
    ),
    "write": Shape({"size": _count, "hash": _maybe_text, "key": _key, "created": _flag}),
    "edit": Shape({"size": _count, "hash": _maybe_text, "key": _key, "replacements": _count}),
    "stat": Shape({"key": _key}),
    "list": Shape(
        {
            "total": _maybe_count,
            "hidden": _count,
            "truncated": _flag,
            "unreadable": _texts,
        },
        _is_listing,
    ),
    "delete": Shape({"deleted": _count, "truncated": _flag}),
    "glob": Shape({"total": _count, "ignored": _count, "note": _maybe_text}),
    "grep": Shape(
        {
            "matches": _count,
            "files": _count,
            "ignored": _count,
            "clipped": _flag,
            "truncated": _flag,
            "partial": _flag,
            "warnings": _texts,
            "total_bytes": _count,
        }
    ),
    "run": Shape(
        {
            "exit_code": _maybe_count,
            "signal": _maybe_text,
            "timed_out": _flag,
            "oom": _flag,
            "limit": _maybe_text,
            "cwd": _text,
            "notes": _texts,
            "shell": _maybe_text,
            "interpreter": _maybe_text,
        },
        _is_run,
    ),
}
