"""What is wrong with values by a stranger's schema: bounded work whatever the schema is. Pure.

The schema may be of any draft, and need not be well formed. No expression of it is run, nothing
is fetched, and each look at anything costs a step. Only what is certain is a fault: what can't be
told here is left to the server, which checks its arguments itself. So each verdict says whether
it is sure, and a schema that has something else inside `not`, `oneOf` or `if` refuses nothing.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from executor.foreign.keywords import FORMS, SINCE, TYPES, draft, is_old
from executor.foreign.names import LONGEST
from executor.text import visible

MAX_STEPS = 50_000
"""Looks at keywords, names and values, in all; a tenth of a second or two."""
MAX_LEVEL = 120
"""Schemas inside each other that are followed, references among them."""
MAX_FAULTS = 5
MAX_SHOWN = 60
"""Characters of a value that are shown in a fault."""
MAX_TOLD = 300
"""Characters of a fault."""
MAX_BITS = 256
"""Bits of a whole number that is shown: the time to write one grows with the square of its size."""
_WHOLE = 6
"""The draft from which 1.0 is an integer."""
_NO_NAMES: Mapping[str, str] = MappingProxyType({})
_NONE = "has none of the forms that it may have"

Fault: TypeAlias = tuple[str, str]
"""Where, as names divided by dots, or `input`; and what, as words that follow it."""
_Place: TypeAlias = tuple[str | int, ...]

_UNTOLD = frozenset(
    (
        "pattern",
        "patternProperties",
        "format",
        "uniqueItems",
        "contains",
        "propertyNames",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
    )
)
"""Keywords that a stranger can make slow, or that hardly a tool has; they are not checked here."""


class _TooMuch(Exception):
    """So many steps that the rest is left to the server."""


@dataclass(slots=True)
class _Verdict:
    """What a schema says of a value.

    Attributes:
        faults: all of them certain.
        is_sure: where there is no fault, there is none that could not be told.
    """

    faults: list[tuple[_Place, str]] = field(default_factory=list)
    is_sure: bool = True

    @property
    def is_full(self) -> bool:
        """There are as many faults as anybody is told."""
        return len(self.faults) == MAX_FAULTS

    def add(self, other: _Verdict) -> None:
        """Take over what another part of the schema says."""
        self.faults += other.faults[: MAX_FAULTS - len(self.faults)]
        self.is_sure = self.is_sure and other.is_sure


@dataclass(frozen=True, slots=True)
class _At:
    """What a keyword is judged with.

    Attributes:
        schema: that has the keyword.
        value, place: that it is about.
        level: of the schemas in it.
    """

    schema: Mapping[str, Any]
    value: Any
    place: _Place
    level: int


def faults_of(value: Any, schema: Any, shown: Mapping[str, str] = _NO_NAMES) -> list[Fault]:
    """What is certainly wrong with a value.

    Args:
        value: JSON, nested a hundred levels at most.
        schema: of whatever shape.
        shown: a property of the value → its name in faults, where that is another.

    Returns:
        At most `MAX_FAULTS`; none where finding them takes too many steps.
    """
    judge = _Judge(schema, shown)
    try:
        found = judge.judged(schema, value, (), 0).faults
    except _TooMuch:
        return []
    return [(judge.where(place) or "input", visible(text)[:MAX_TOLD]) for place, text in found]


class _Judge:
    """Judges values by one schema.

    Args:
        root: the whole schema, which references are looked up in.
        shown: see `faults_of`.
    """

    def __init__(self, root: Any, shown: Mapping[str, str]) -> None:
        self._root = root
        known = root if isinstance(root, Mapping) else {}
        self._draft, self._is_old = draft(known), is_old(known)
        self._shown = shown
        self._left = MAX_STEPS
        self._found: dict[str, Any] = {}

    def where(self, place: _Place, begin: int = 0) -> str:
        """The names on the way to a place, from that level on; none = it is there."""
        names = [str(part)[:LONGEST] for part in place[begin:]]
        if names and begin == 0:
            names[0] = self._shown.get(str(place[0]), names[0])
        return visible(".".join(names))[:100]

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooMuch

    def judged(self, schema: Any, value: Any, place: _Place, level: int) -> _Verdict:
        """What a schema, or whatever stands where one should, says of a value."""
        self._spend(1)
        if level > MAX_LEVEL:
            raise _TooMuch
        if schema is False:
            return _fault(place, "is not allowed")
        if not isinstance(schema, Mapping):
            return _Verdict(is_sure=schema is True)
        if self._begins_anew(schema):
            return _Verdict(is_sure=False)  # its references would begin elsewhere
        self._spend(len(schema))
        verdict, at = _Verdict(), _At(schema, value, place, level + 1)
        is_alone = self._is_old and "$ref" in schema
        for key in ("$ref",) if is_alone else schema:
            verdict.add(self._by_keyword(key, at))
            if verdict.is_full:
                break
        return verdict

    def _begins_anew(self, part: Mapping[str, Any]) -> bool:
        """It has a name of its own, which references in it begin at."""
        if part is self._root:
            return False
        return "$id" in part or (self._is_old and isinstance(part.get("id"), str))

    def _by_keyword(self, key: str, at: _At) -> _Verdict:
        given = at.schema[key]
        if key in _UNTOLD or SINCE.get(key, 0) > self._draft:
            return _Verdict(is_sure=False)
        if isinstance(given, list | Mapping):
            self._spend(len(given))
        is_old_items = key == "items" and isinstance(given, list)
        if key in FORMS and not is_old_items and not FORMS[key](given):
            return _Verdict(is_sure=False)
        if key == "type" and "integer" in given and self._draft < _WHOLE and _is_whole(at.value):
            return _Verdict(is_sure=False)
        if key in _PLAIN:
            kind, text_of = _PLAIN[key]
            text = text_of(given, at.value, at.schema) if _is_type(at.value, kind) else None
            return _Verdict() if text is None else _fault(at.place, text)
        if key in _DEEP:
            kind, judge = _DEEP[key]
            if _is_type(at.value, kind):
                return judge(self, given, at)
        return _Verdict()

    # ─── keywords that look further ───

    def _enum(self, given: Any, at: _At) -> _Verdict:
        if any(self._is_same(one, at.value) for one in given):
            return _Verdict()
        few = ", ".join(_said(one) for one in given[:20])
        more = " and others" if len(given) > 20 else ""
        return _fault(at.place, f"must be one of {few}{more}, not {_said(at.value)}")

    def _const(self, given: Any, at: _At) -> _Verdict:
        if self._is_same(given, at.value):
            return _Verdict()
        return _fault(at.place, f"must be {_said(given)}, not {_said(at.value)}")

    def _is_same(self, one: Any, other: Any) -> bool:
        """The same JSON: a number is never a truth value."""
        self._spend(1)
        if isinstance(one, bool) or isinstance(other, bool):
            return one is other
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            self._spend(len(one))
            return one.keys() == other.keys() and all(
                self._is_same(part, other[name]) for name, part in one.items()
            )
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(self._is_same, one, other))
        return bool(one == other)

    def _multiple_of(self, given: Any, at: _At) -> _Verdict:
        if isinstance(given, float) or isinstance(at.value, float):
            return _Verdict(is_sure=False)  # computers don't agree on 0.3 and 0.1
        if at.value % given == 0:
            return _Verdict()
        return _fault(at.place, f"must be a multiple of {_said(given)}, not {_said(at.value)}")

    def _required(self, given: Any, at: _At) -> _Verdict:
        missing = [name for name in given if name not in at.value]
        return _Verdict([((*at.place, name), "is required") for name in missing[:MAX_FAULTS]])

    def _properties(self, given: Any, at: _At) -> _Verdict:
        verdict = _Verdict()
        for name, part in given.items():
            if name in at.value:
                verdict.add(self.judged(part, at.value[name], (*at.place, name), at.level))
        return verdict

    def _additional_properties(self, given: Any, at: _At) -> _Verdict:
        if "patternProperties" in at.schema:
            return _Verdict(is_sure=False)
        self._spend(len(at.value))
        known = at.schema.get("properties", {})
        if not isinstance(known, Mapping):
            return _Verdict(is_sure=False)
        others = [name for name in at.value if name not in known]
        verdict = _Verdict()
        for name in others:
            if verdict.is_full:
                break
            place = (*at.place, name)
            if given is False:
                verdict.add(_fault(place, "is not a property that may be given"))
            else:
                verdict.add(self.judged(given, at.value[name], place, at.level))
        return verdict

    def _prefix_items(self, given: Any, at: _At) -> _Verdict:
        verdict = _Verdict()
        for number, (part, one) in enumerate(zip(given, at.value, strict=False)):
            verdict.add(self.judged(part, one, (*at.place, number), at.level))
        return verdict

    def _items(self, given: Any, at: _At) -> _Verdict:
        if isinstance(given, list):  # as until draft 2019-09
            verdict = self._prefix_items(given, at)
            begin, rest = len(given), at.schema.get("additionalItems", True)
        else:
            first = at.schema.get("prefixItems", [])
            verdict = _Verdict(is_sure=isinstance(first, list))
            begin, rest = (len(first) if verdict.is_sure else len(at.value)), given
        for number in range(begin, len(at.value)):
            if verdict.is_full:
                break
            verdict.add(self.judged(rest, at.value[number], (*at.place, number), at.level))
        return verdict

    def _all_of(self, given: Any, at: _At) -> _Verdict:
        verdict = _Verdict()
        for part in given:
            verdict.add(self.judged(part, at.value, at.place, at.level))
        return verdict

    def _any_of(self, given: Any, at: _At) -> _Verdict:
        is_possible = False
        first = _Verdict()
        for part in given:
            verdict = self.judged(part, at.value, at.place, at.level)
            if not verdict.faults and verdict.is_sure:
                return _Verdict()
            is_possible = is_possible or not verdict.faults
            first = first if first.faults else verdict
        return _Verdict(is_sure=False) if is_possible else self._none(first, at)

    def _one_of(self, given: Any, at: _At) -> _Verdict:
        possible = sure = 0
        first = _Verdict()
        for part in given:
            verdict = self.judged(part, at.value, at.place, at.level)
            possible += not verdict.faults
            sure += not verdict.faults and verdict.is_sure
            first = first if first.faults else verdict
        if not possible:
            return self._none(first, at)
        if sure > 1:
            return _fault(at.place, "fits more than one of the forms of which it must have one")
        return _Verdict(is_sure=possible == sure)

    def _none(self, first: _Verdict, at: _At) -> _Verdict:
        """No form fits; what is wrong by the first one."""
        place, text = first.faults[0]
        where = self.where(place, len(at.place))
        why = f"{where} {text}" if where else text
        return _fault(at.place, f"{_NONE}; by the first: {why}"[:MAX_TOLD])

    def _not(self, given: Any, at: _At) -> _Verdict:
        verdict = self.judged(given, at.value, at.place, at.level)
        if verdict.faults:
            return _Verdict()
        if verdict.is_sure:
            return _fault(at.place, "has a form that it must not have")
        return _Verdict(is_sure=False)

    def _if(self, given: Any, at: _At) -> _Verdict:
        verdict = self.judged(given, at.value, at.place, at.level)
        if not verdict.faults and not verdict.is_sure:
            return _Verdict(is_sure=False)
        then = at.schema.get("else" if verdict.faults else "then", True)
        return self.judged(then, at.value, at.place, at.level)

    def _ref(self, given: Any, at: _At) -> _Verdict:
        if given not in self._found:
            self._found[given] = self._looked_up(given)
        return self.judged(self._found[given], at.value, at.place, at.level)

    def _looked_up(self, reference: str) -> Any:
        """What a reference within the schema points at; None = nothing."""
        names = pointed(reference)
        if names is None:
            return None
        self._spend(len(names))
        one = self._root
        for name in names:
            if isinstance(one, Mapping) and self._begins_anew(one):
                return None
            if isinstance(one, Mapping):
                one = one.get(name)
            elif isinstance(one, list) and name.isdecimal() and len(name) < 6:
                one = one[int(name)] if int(name) < len(one) else None
            else:
                return None
        return one


def pointed(reference: str) -> tuple[str, ...] | None:
    """The names on the way to what a reference points at; None = it leads elsewhere."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    names = urllib.parse.unquote(reference[1:]).split("/")[1:]
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in names)


# ─── keywords that look at one value ───


def _type(given: Any, value: Any, schema: Mapping[str, Any]) -> str | None:
    names = given if isinstance(given, list) else [given]
    if any(_is_type(value, name) for name in names):
        return None
    return f"must be of type {' or '.join(names)}, not {_said(value)}"


def _minimum(given: Any, value: Any, schema: Mapping[str, Any]) -> str | None:
    if schema.get("exclusiveMinimum") is True:  # as in draft 4
        return _exclusive_minimum(given, value, schema)
    return f"must be at least {_said(given)}, not {_said(value)}" if value < given else None


def _maximum(given: Any, value: Any, schema: Mapping[str, Any]) -> str | None:
    if schema.get("exclusiveMaximum") is True:  # as in draft 4
        return _exclusive_maximum(given, value, schema)
    return f"must be at most {_said(given)}, not {_said(value)}" if value > given else None


def _exclusive_minimum(given: Any, value: Any, schema: Mapping[str, Any]) -> str | None:
    return f"must be greater than {_said(given)}, not {_said(value)}" if value <= given else None


def _exclusive_maximum(given: Any, value: Any, schema: Mapping[str, Any]) -> str | None:
    return f"must be less than {_said(given)}, not {_said(value)}" if value >= given else None


def _at_least(noun: str) -> Callable[[Any, Any, Any], str | None]:
    def text_of(given: Any, value: Any, schema: Any) -> str | None:
        has = len(value)
        return f"must have at least {_said(given)} {noun}, not {has}" if has < given else None

    return text_of


def _at_most(noun: str) -> Callable[[Any, Any, Any], str | None]:
    def text_of(given: Any, value: Any, schema: Any) -> str | None:
        has = len(value)
        return f"must have at most {_said(given)} {noun}, not {has}" if has > given else None

    return text_of


_PLAIN: Mapping[str, tuple[str, Callable[[Any, Any, Any], str | None]]] = {
    "type": ("", _type),
    "minimum": ("number", _minimum),
    "maximum": ("number", _maximum),
    "exclusiveMinimum": ("number", _exclusive_minimum),
    "exclusiveMaximum": ("number", _exclusive_maximum),
    "minLength": ("string", _at_least("characters")),
    "maxLength": ("string", _at_most("characters")),
    "minItems": ("array", _at_least("items")),
    "maxItems": ("array", _at_most("items")),
    "minProperties": ("object", _at_least("properties")),
    "maxProperties": ("object", _at_most("properties")),
}
"""The type of value that a keyword is about (empty = any), and the text of its fault."""

_DEEP: Mapping[str, tuple[str, Callable[..., _Verdict]]] = {
    "$ref": ("", _Judge._ref),
    "enum": ("", _Judge._enum),
    "const": ("", _Judge._const),
    "multipleOf": ("number", _Judge._multiple_of),
    "required": ("object", _Judge._required),
    "properties": ("object", _Judge._properties),
    "additionalProperties": ("object", _Judge._additional_properties),
    "prefixItems": ("array", _Judge._prefix_items),
    "items": ("array", _Judge._items),
    "allOf": ("", _Judge._all_of),
    "anyOf": ("", _Judge._any_of),
    "oneOf": ("", _Judge._one_of),
    "not": ("", _Judge._not),
    "if": ("", _Judge._if),
}


def _is_type(value: Any, name: str) -> bool:
    """Whether a value is of a type of JSON; an empty name is any."""
    if not name:
        return True
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and _is_whole(value):
        return True
    return isinstance(value, TYPES[name])


def _is_whole(value: Any) -> bool:
    """It is written with a point, and is a whole number."""
    return isinstance(value, float) and value.is_integer()


def _fault(place: _Place, text: str) -> _Verdict:
    return _Verdict([(place, text)])


def _said(value: Any) -> str:
    """A value in a few words, however large it is."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_SHOWN else repr(value[:MAX_SHOWN]) + "…"
    if type(value) is int and value.bit_length() > MAX_BITS:
        return "a number of very many digits"
    return json.dumps(value)[:MAX_SHOWN]
