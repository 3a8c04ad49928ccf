"""Where the values of a JSON text lie in it.

Whoever changes one value of a file that others wrote must leave all other bytes as they are,
so a text is not decoded and written anew: it is looked through for the ranges of its values.
It is checked as strictly as `json` checks it (which takes NaN and Infinity, too), by an
iteration that gives way: neither its size nor its depth can hold up the agent.
"""

from __future__ import annotations

import codecs
import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, TypeAlias, TypeVar

    T = TypeVar("T")
    Pausing: TypeAlias = Generator[None, Any, T]

MAX_DEPTH = 200
KEPT_DEPTH = 8
"""Deeper values are checked, and not kept."""
MAX_VALUES = 300_000
"""Values that are kept of one text."""

_STEP = 256 << 10
_TOKENS = 2000
_BOM = b"\xef\xbb\xbf"

_SPACE = rb"[ \t\r\n]*+"
_TEXT = rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_PLAIN_VALUE = rb"(?:true|false|null|NaN|-?Infinity|" + _NUMBER + rb")"
_GAP = re.compile(_SPACE)
_BODY = re.compile(_TEXT)
_PLAIN = re.compile(_PLAIN_VALUE)


def _listed(value: bytes) -> bytes:
    """The pattern of any number of these, each with the comma after it."""
    return rb"(?:" + value + _SPACE + rb"," + _SPACE + rb")*+"


def _flat(first: bytes, value: bytes, last: bytes) -> bytes:
    """The pattern of a container of these, or of nothing."""
    some = _listed(value) + value
    return first + _SPACE + rb"(?:" + some + _SPACE + rb")?+" + last


_LEAF = rb'(?:"' + _TEXT + rb'"|' + _PLAIN_VALUE + rb")"
_MEMBER = rb'"' + _TEXT + rb'"' + _SPACE + rb":" + _SPACE
_ANY = rb"(?:" + _LEAF + rb"|" + _flat(rb"\{", _MEMBER + _LEAF, rb"\}") + rb"|"
_ANY += _flat(rb"\[", _LEAF, rb"\]") + rb")"
_ITEMS = re.compile(_listed(_ANY))
_MEMBERS = re.compile(_listed(_MEMBER + _ANY))
"""Many values at once, where none is kept: tables of numbers have a million."""


class Broken(Exception):
    """It is no JSON.

    Args:
        at: offset of the byte that does not belong there.
        reason: what is wrong with it.
    """

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason


class TooMuch(Exception):
    """It has more values than are kept."""


class Value:
    """One value.

    Attributes:
        kind: `object`, `array`, `string` or `plain` (numbers, true, false, null).
        start, end: its range, brackets and quotes among it.
        items: the values of an array.
        members: of an object: key, where the key begins, value; in their order.
    """

    __slots__ = ("end", "items", "kind", "members", "start")

    def __init__(self, kind: str, start: int, end: int) -> None:
        self.kind = kind
        self.start = start
        self.end = end
        self.items: list[Value] = []
        self.members: list[tuple[str, int, Value]] = []

    def get(self, name: str) -> Value | None:
        """The member of this name; the last one, as readers of JSON take it."""
        found = None
        for key, _, value in self.members:
            if key == name:
                found = value
        return found


def decoded(data: bytes, value: Value) -> Any:
    """What a value stands for."""
    return json.loads(data[value.start : value.end])


def scan(data: bytes) -> Pausing[Value]:
    """The value that a text is, with those in it.

    Raises:
        Broken: it is no JSON.
        TooMuch: it has too many values.
    """
    yield from _require_utf8(data)
    scanner = _Scanner(data)
    at = len(_BOM) if data.startswith(_BOM) else 0
    count = 0
    while True:
        count += 1
        if count % _TOKENS == 0:
            yield None
        at = yield from scanner.begin(_gap(data, at))
        if scanner.is_open:
            continue
        at = yield from scanner.end(at)
        if not scanner.stack:
            break
    at = _gap(data, at)
    if at != len(data):
        raise Broken(at, "something follows the end")
    return scanner.root


def _gap(data: bytes, at: int) -> int:
    match = _GAP.match(data, at)
    return at if match is None else match.end()


def _require_utf8(data: bytes) -> Pausing[None]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _STEP):
        if start:
            yield None
        try:
            decoder.decode(data[start : start + _STEP], start + _STEP >= len(data))
        except UnicodeDecodeError as error:
            raise Broken(start + error.start, "it is not UTF-8") from None


class _Scanner:
    """Values as they begin and end, one after the other.

    Attributes:
        root: the outermost.
        stack: the containers that have begun and not ended.
        is_open: what began last is a container, and the value that comes next is its first.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.root = Value("plain", 0, 0)
        self.stack: list[Value] = []
        self.is_open = False
        self._key: tuple[str, int] = ("", 0)
        self._kept = 0

    def begin(self, at: int) -> Pausing[int]:
        """Take the value that begins here; of a container no more than its beginning."""
        mark = self._data[at : at + 1]
        self.is_open = False
        if mark in (b"{", b"["):
            return (yield from self._open(at, "object" if mark == b"{" else "array"))
        if mark == b'"':
            end = yield from self._string(at)
            self._add(Value("string", at, end))
            return end
        match = _PLAIN.match(self._data, at)
        if match is None:
            raise Broken(at, "a value is missing" if mark else "it ends too early")
        self._add(Value("plain", at, match.end()))
        return match.end()

    def end(self, at: int) -> Pausing[int]:
        """After a value: close what ends here; where the next value begins."""
        while self.stack:
            at = _gap(self._data, at)
            mark = self._data[at : at + 1]
            if mark == b",":
                return (yield from self._next(_gap(self._data, at + 1)))
            if mark != self._closing:
                what = "a comma is missing" if mark else "it ends too early"
                raise Broken(at, what)
            at += 1
            self.stack.pop().end = at
        return at

    @property
    def _closing(self) -> bytes:
        return b"}" if self.stack[-1].kind == "object" else b"]"

    def _open(self, at: int, kind: str) -> Pausing[int]:
        if len(self.stack) >= MAX_DEPTH:
            raise Broken(at, f"it is deeper than {MAX_DEPTH} levels")
        value = Value(kind, at, at)
        self._add(value)
        self.stack.append(value)
        at = _gap(self._data, at + 1)
        if self._data[at : at + 1] == self._closing:
            self.stack.pop().end = at + 1
            return at + 1
        self.is_open = True
        return (yield from self._next(at))

    def _next(self, at: int) -> Pausing[int]:
        """Take the key, if it is an object that goes on here; where its value begins."""
        is_object = self.stack[-1].kind == "object"
        if len(self.stack) > KEPT_DEPTH:
            at = yield from self._pass_over(at, _MEMBERS if is_object else _ITEMS)
        if not is_object:
            return at
        if self._data[at : at + 1] != b'"':
            raise Broken(at, "a key is missing")
        end = yield from self._string(at)
        if len(self.stack) <= KEPT_DEPTH:
            self._key = (json.loads(self._data[at:end]), at)
        at = _gap(self._data, end)
        if self._data[at : at + 1] != b":":
            raise Broken(at, "a colon is missing")
        return _gap(self._data, at + 1)

    def _pass_over(self, at: int, pattern: re.Pattern[bytes]) -> Pausing[int]:
        """Where the values that the pattern knows are over; there are more after them."""
        while (match := pattern.match(self._data, at, at + _STEP)) and match.end() > at:
            at = match.end()
            yield None
        return at

    def _add(self, value: Value) -> None:
        if not self.stack:
            self.root = value
        elif len(self.stack) <= KEPT_DEPTH:
            self._kept += 1
            if self._kept > MAX_VALUES:
                raise TooMuch
            parent = self.stack[-1]
            if parent.kind == "object":
                parent.members.append((*self._key, value))
            else:
                parent.items.append(value)

    def _string(self, at: int) -> Pausing[int]:
        """Where the text that begins here ends."""
        at += 1
        while True:
            match = _BODY.match(self._data, at, at + _STEP)
            end = at if match is None else match.end()
            if self._data[end : end + 1] == b'"':
                return end + 1
            if end == at:
                raise Broken(at, "a text does not end, or holds what has to be escaped")
            at = end
            yield None
