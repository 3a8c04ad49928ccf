"""What an operation's answer must look like before a tool may read it.

The agent is not believed: fields that are missing or of the wrong type would fail
somewhere in a tool, where they could not be told from a fault of ours. Fields that no
agent of ours sends, and more data than were asked for, are refused too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from executor.errors import ProtocolError
from executor.served import MAX_STDERR

Test: TypeAlias = Callable[[Any], bool]

_ABSENT = object()

MAX_DATA = 40 << 20
"""Bytes of data that may wait for their answers: twice a spool's kept halves, and some.
An agent sends the data of an answer and the answer in one go, so they are one answer's."""
MAX_KEY = 1 << 14
"""Characters; every key is kept as long as its loop."""
MAX_DIRECTORY = 1 << 16
"""Characters of a working directory, which goes back to the agent with the next command."""
MAX_WORD = 1 << 13
"""Characters of a text that the model may be shown and that tells one thing."""
MAX_REMARKS = 1 << 18
"""Characters of all remarks on an answer: what an agent of ours adds at the most, and some.
They are shown beside the text, which alone is cut to what the model may have."""
MAX_NOTES = 1 << 14
"""Characters of all remarks on a command."""
MAX_RAW = 8 << 20
"""Bytes of a file that is read as it is, at the most."""
MAX_RECORDS = 5 << 20
"""Bytes of a listing: what an agent of ours sends at the most, and some."""
MAX_SWEPT = 6 << 20
"""Bytes of a sweep's records: what an agent of ours sends at the most."""
MAX_SWEPT_FILES = 50_000
"""Files of one sweep; each becomes an object of the host."""
MAX_LEFT = 200
"""Calls of which is said what they left running."""
MAX_PATHS = 1000
MAX_PARTS = 1500
"""Texts and pictures of one notebook."""
MAX_ENTRIES = 10_000
"""Records of an answer where the request does not say how many."""
SLACK = 1 << 20
"""Bytes of data over what was asked for: the first line comes whole, with its labels."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields that are read of an answer.

    Attributes:
        fields: name → what its value has to be.
        others: fields that may be there and are not read.
        fits: whether fields and data go together.
    """

    fields: Mapping[str, Test]
    others: frozenset[str] = frozenset()
    fits: Callable[[dict[str, Any], bytes], bool] | None = None

    def check(self, value: dict[str, Any], data: bytes) -> None:
        """Let the answer through, or refuse it.

        Raises:
            ProtocolError: no agent of ours answers so.
        """
        for name, is_right in self.fields.items():
            if not is_right(value.get(name, _ABSENT)):
                raise ProtocolError(f"an answer whose {name} is missing or of a wrong type")
        if not (value.keys() <= self.fields.keys() | self.others):
            raise ProtocolError("an answer with fields that it does not have")
        if self.fits is not None and not self.fits(value, data):
            raise ProtocolError("an answer whose data are not what its fields say")


def shape_of(op: str, arguments: Mapping[str, Any]) -> Shape | None:
    """The shape of the answer to this request; None where nothing is read of it."""
    if op == "read" and arguments.get("encoding") == "base64":
        return _READ_RAW
    if op == "shell" and "programs" in arguments:
        return _shell_and(arguments["programs"])
    if op == "sweep":
        return _sweep_beside(arguments["known"])
    return _SHAPES.get(op)


def most_data(op: str, arguments: Mapping[str, Any]) -> int:
    """Bytes of data that the answer to this request may have."""
    if op in ("run", "await_task", "peek"):
        return 2 * (_asked(arguments, "head") + _asked(arguments, "tail"))
    if op == "read" and arguments.get("encoding") == "base64":
        return MAX_RAW
    if op == "fetch":
        return _asked(arguments, "size")
    if op == "read_image":
        return _asked(arguments, "max_bytes")
    if op in ("read_pages", "read_notebook"):
        return _asked(arguments, "max_bytes") + _asked(arguments, "picture_bytes")
    if op in ("read", "grep"):
        return _asked(arguments, "max_bytes") + 4 * _asked(arguments, "line_chars") + SLACK
    return _MOST.get(op, MAX_DATA)


_MOST = (
    {"list": MAX_RECORDS, "sweep": MAX_SWEPT}
    | dict.fromkeys(
        (
            *("write", "edit", "edit_notebook", "stat", "move", "resolve", "restrict", "shell"),
            *("begin", "stop_task", "left", "end_left", "serve"),
        ),
        0,
    )
    | dict.fromkeys(("server_state", "server_end"), MAX_STDERR)
)


def _asked(arguments: Mapping[str, Any], name: str) -> int:
    return int(arguments.get(name) or 0)


def most_records(op: str, arguments: Mapping[str, Any]) -> int | None:
    """Records that its data may have; each becomes an object of the host."""
    if op == "glob":
        return int(arguments.get("max_results") or MAX_PATHS)
    if op == "list":
        return int(arguments.get("max_entries") or MAX_ENTRIES)
    if op == "sweep":
        return MAX_SWEPT_FILES
    return MAX_PATHS if op == "delete" else None


# ─── values ─────────────────────────────────────────────────────────────────────────


def _count(value: Any) -> bool:
    # A truth value is no number, and a number of 4,000 digits is no size.
    return type(value) is int and 0 <= value < 1 << 63


def _exit_code(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value <= 255)


def _flag(value: Any) -> bool:
    return value is True or value is False


def _text(value: Any) -> bool:
    return type(value) is str


def _word(value: Any) -> bool:
    return _text(value) and len(value) <= MAX_WORD


def _remarks(value: Any, most: int = MAX_REMARKS) -> bool:
    # Each of them has its own line, and many empty ones are many lines.
    return (
        type(value) is list and all(map(_text, value)) and sum(map(len, value)) + len(value) <= most
    )


def _notes(value: Any) -> bool:
    return _remarks(value, MAX_NOTES)


def _maybe_count(value: Any) -> bool:
    return value is None or _count(value)


def _maybe_word(value: Any) -> bool:
    return value is None or _word(value)


def _maybe_remark(value: Any) -> bool:
    return value is None or _remarks([value])


def _key(value: Any) -> bool:
    """Something to tell files apart by; an agent need not give it."""
    return value is None or value is _ABSENT or (_text(value) and len(value) <= MAX_KEY)


_PLACE: Mapping[str, Test] = {
    "path": _text,
    "own": _text,
    "state": lambda value: value in ("there", "missing", "outside", "unclear"),
    "kind": lambda value: value in (None, "f", "d", "l", "o"),
    "key": _key,
    "shared": _flag,
    "missing": _maybe_remark,
    "links": _remarks,
}


def _places(value: Any) -> bool:
    return type(value) is list and all(
        type(place) is dict
        and place.keys() == _PLACE.keys()
        and all(is_right(place[name]) for name, is_right in _PLACE.items())
        for place in value
    )


def _shelf(value: Any) -> bool:
    """Where the whole output can be fetched; an agent need not keep it."""
    if value is None or value is _ABSENT:
        return True
    return (
        type(value) is dict
        and _count(value.get("number"))
        and value.keys() <= {"number", "stdout", "stderr"}
        and all(map(_is_kept, (value[name] for name in value.keys() - {"number"})))
    )


def _is_kept(value: Any) -> bool:
    """[total, bytes of the beginning, bytes of the end]."""
    if type(value) is not list or len(value) != 3 or not all(map(_count, value)):
        return False
    total, head, tail = value
    return bool(head + tail <= total)


def _directory(value: Any) -> bool:
    return _text(value) and value.startswith("/") and len(value) <= MAX_DIRECTORY


_SIGNAL = re.compile(r"SIG[A-Z0-9+-]{1,20}")
_LIMITS = frozenset({"memory", "pids", "disk", "output"})


def _signal(value: Any) -> bool:
    return value is None or (_text(value) and _SIGNAL.fullmatch(value) is not None)


def _limit(value: Any) -> bool:
    return value is None or (_text(value) and value in _LIMITS)


def _clips(value: Any) -> bool:
    return type(value) is list and all(
        type(clip) is list and len(clip) == 2 and _count(clip[0]) and _maybe_count(clip[1])
        for clip in value
    )


# ─── fields and data ────────────────────────────────────────────────────────────────

_RECORDS = re.compile(
    rb"(?:[fdlLo]\x1f[0-9]{1,20}\x1f-?[0-9]{1,20}\x1f[^\x1f\0]*\x1f[^\0]+\0)*+", re.DOTALL
)
"""Possessive, or each record costs a hundred bytes until the last one has been looked at."""

_SWEPT = re.compile(
    rb"(?:-?[0-9]{1,20}\x1f[0-9]{1,20}\x1f[0-9]{1,20}\x1f"
    rb"(?=[^\0]{1,8192}\0)(?:(?!\.\.?/)[^/\0]++/)*+(?:(?!\.\.?\0)[^/\0]++)?+\0)*+",
    re.DOTALL,
)
"""Each path is one below the worktree, spelled in the only way that there is, a directory's with
a slash at its end."""


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
    if value["exit_code"] is not None and value["signal"] is not None:
        return False
    # A command that ended well met no limit, and one that was killed for memory did.
    if value["oom"] is not (value["limit"] == "memory"):
        return False
    is_over = not (value["timed_out"] or value.get("cancelled") is True)
    if is_over and value["exit_code"] == 0 and value["limit"] is not None:
        return False
    streams = [value[name] for name in ("stdout", "stderr") if value.get(name) is not None]
    return all(map(_is_stream, streams)) and len(data) == sum(
        stream["head"] + stream["tail"] for stream in streams
    )


def _is_state(value: dict[str, Any], data: bytes) -> bool:
    has_code, has_signal = value["exit_code"] is not None, value["signal"] is not None
    if value["running"]:
        return not (has_code or has_signal or value["oom"])
    return has_code is not has_signal


def _is_end(value: dict[str, Any], data: bytes) -> bool:
    return not value["running"] and _is_state(value, data)


def _shell_and(programs: Collection[str]) -> Shape:
    """The answer where it was asked which of these programs there are."""

    def are_asked_for(value: Any) -> bool:
        return (
            type(value) is list
            and all(map(_text, value))
            and len(value) == len(set(value))
            and set(value) <= set(programs)
        )

    return Shape({"shell": _maybe_word, "programs": are_asked_for})


_MARK = re.compile(r"[0-9a-f]{32}")


def _sweep_beside(known: str) -> Shape:
    """The answer to a host that knows what had this mark."""

    def is_mark(value: Any) -> bool:
        return _text(value) and _MARK.fullmatch(value) is not None

    def is_swept(value: dict[str, Any], data: bytes) -> bool:
        if value["mark"] == known:
            return not data
        return data.count(b"\0") == value["files"] and _SWEPT.fullmatch(data) is not None

    fields: Mapping[str, Test] = {
        "mark": is_mark,
        "files": lambda value: _count(value) and value <= MAX_SWEPT_FILES,
        "truncated": _flag,
        "now": _count,
    }
    return Shape(fields, fits=is_swept)


def _is_peek(value: dict[str, Any], data: bytes) -> bool:
    streams = [value[name] for name in value.keys() - {"shelf"}]
    return all(map(_is_stream, streams)) and len(data) == sum(
        stream["head"] + stream["tail"] for stream in streams
    )


_LEFT: Mapping[str, Test] = {
    "call": _count,
    "task": _maybe_word,
    "processes": _count,
    "command": _word,
}


def _left(value: Any) -> bool:
    return _are_rows(value, MAX_LEFT, _LEFT)


def _are_rows(value: Any, most: int, fields: Mapping[str, Test]) -> bool:
    """A list of at most so many objects, each with exactly these fields."""
    return (
        type(value) is list
        and len(value) <= most
        and all(
            type(one) is dict
            and one.keys() == fields.keys()
            and all(is_right(one[name]) for name, is_right in fields.items())
            for one in value
        )
    )


def _is_stream(value: Any) -> bool:
    return (
        type(value) is dict
        and value.keys() == {"total", "head", "tail"}
        and all(map(_count, value.values()))
        and value["head"] + value["tail"] <= value["total"]
    )


_PART: Mapping[str, Test] = {
    "kind": lambda value: value in ("source", "output", "picture"),
    "cell": _word,
    "what": _word,
    "count": _maybe_count,
    "length": _count,
    "left_out": _count,
}


def _parts(value: Any) -> bool:
    return _are_rows(value, MAX_PARTS, _PART) and _remarks(
        [part[name] for part in value for name in ("cell", "what")]
    )


_PAGE: Mapping[str, Test] = {
    "kind": lambda value: value in ("page", "picture", "damaged"),
    "page": _count,
    "length": _count,
    "left_out": _count,
}


def _pages(value: Any) -> bool:
    return _are_rows(value, MAX_PARTS, _PAGE)


def _is_parted(value: dict[str, Any], data: bytes) -> bool:
    return bool(sum(part["length"] for part in value["parts"]) == len(data))


def _is_whole_or_scaled(value: dict[str, Any], data: bytes) -> bool:
    return bool(value["scaled"] or value["size"] == len(data))


_FILE: Mapping[str, Test] = {
    "size": _count,
    "modified": _word,
    "hash": _maybe_word,
    "key": _key,
}
_NOT_READ = frozenset({"cut_by", "whole", "bom", "encoding"})
_READ_RAW = Shape({"size": _count, "modified": _word, "hash": _maybe_word, "key": _key})

_RUN = Shape(
    {
        "exit_code": _exit_code,
        "signal": _signal,
        "timed_out": _flag,
        "oom": _flag,
        "limit": _limit,
        "cwd": _directory,
        "notes": _notes,
        "shell": _maybe_word,
        "interpreter": _maybe_word,
        "shelf": _shelf,
    },
    frozenset({"cancelled", "stdout", "stderr"}),
    _is_run,
)

_STATE: Mapping[str, Test] = {
    "running": _flag,
    "exit_code": _exit_code,
    "signal": _signal,
    "oom": _flag,
}

_SHAPES: dict[str, Shape] = {
    "read": Shape(
        {
            "size": _count,
            "modified": _word,
            "hash": _maybe_word,
            "key": _key,
            "first": _count,
            "lines": _count,
            "total_lines": _maybe_count,
            "more": _flag,
            "clipped": _clips,
            "invalid": _flag,
        },
        _NOT_READ,
        _is_read,
    ),
    "read_image": Shape(
        {**_FILE, "media_type": _word, "width": _count, "height": _count, "scaled": _flag},
        fits=_is_whole_or_scaled,
    ),
    "read_pages": Shape({**_FILE, "pages": _count, "parts": _pages}, fits=_is_parted),
    "read_notebook": Shape(
        {**_FILE, "cells": _count, "shown": _count, "language": _maybe_word, "parts": _parts},
        fits=_is_parted,
    ),
    "edit_notebook": Shape(
        {"size": _count, "hash": _maybe_word, "key": _key}
        | {"cell": _word, "type": _word, "cells": _count}
    ),
    "write": Shape({"size": _count, "hash": _maybe_word, "key": _key, "created": _flag}),
    "edit": Shape(
        {"size": _count, "hash": _maybe_word, "key": _key, "replacements": _count},
        frozenset({"first_line", "original_size"}),
    ),
    "move": Shape({}),
    "stat": Shape(
        {"key": _key, "exists": _flag, "mark": _maybe_word},
        frozenset({"type", "size", "hash", "modified"}),
    ),
    "restrict": Shape({}),
    "shell": Shape({"shell": _maybe_word}),
    "fetch": Shape({"next": _count}),
    "resolve": Shape({"places": _places}),
    "list": Shape(
        {
            "total": _maybe_count,
            "hidden": _count,
            "truncated": _flag,
            "unreadable": _remarks,
        },
        frozenset({"entries"}),
        _is_listing,
    ),
    "delete": Shape({"deleted": _count, "truncated": _flag}),
    "glob": Shape(
        {"total": _count, "ignored": _count, "note": _maybe_remark},
        frozenset({"matches", "truncated"}),
    ),
    "grep": Shape(
        {
            "matches": _count,
            "files": _count,
            "ignored": _count,
            "clipped": _flag,
            "truncated": _flag,
            "partial": _flag,
            "warnings": _remarks,
            "total_bytes": _count,
        },
        frozenset({"shown"}),
    ),
    "run": _RUN,
    "await_task": _RUN,
    "peek": Shape({"shelf": _shelf}, frozenset({"stdout", "stderr"}), _is_peek),
    "begin": Shape({"call": _count}),
    "stop_task": Shape({}),
    "left": Shape({"calls": _left}),
    "end_left": Shape({"ended": _count}),
    "serve": Shape({"server": _count}),
    "server_state": Shape(_STATE, fits=_is_state),
    "server_end": Shape(_STATE, fits=_is_end),
}
