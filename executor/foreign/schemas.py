"""Schemas of foreign tools: what a model is shown of them, and what its arguments are held to.

A schema is a stranger's text, of any draft of JSON Schema or none. What a model's interface
refuses, it refuses with the whole request: so a model is shown only what JSON Schema 2020-12 has,
under names that interfaces take. What can't be shown as a keyword is told in words.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from executor.foreign.faults import faults_of, pointed
from executor.foreign.keywords import BY_NAME, FORMS, IN_LISTS, IN_ONE, is_old
from executor.foreign.names import is_fit, properties_named
from executor.text import json_line, one_line, visible
from executor.tool import invalid_arguments

MAX_BYTES = 64 << 10
"""Bytes of a schema as JSON."""
MAX_DEPTH = 32
"""Levels of objects and lists in a schema."""
MAX_ARGUMENTS = 16 << 20
"""Bytes of the arguments of one call as JSON."""
MAX_LEVELS = 100
"""Levels of objects and lists in the arguments of one call; few servers read more."""
MAX_WORDS = 2000
"""Characters of a part that is told in words."""

_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else")
"""Keywords that models' interfaces don't take at the top of a schema; there they are told."""
_TOLD = ("pattern", "patternProperties", "dependencies", "dependentRequired")
"""Keywords that are told in words: interfaces refuse expressions that their own kind of them does
not know, and the other two have names in them or are of old drafts."""
_BESIDE = ("$ref", "$defs", "definitions", "title", "description", "default")
"""What counts beside a reference in old drafts, or does no harm there."""
_EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_INCLUSIVE = {bound: exclusive for exclusive, bound in _EXCLUSIVE.items()}
_Way: TypeAlias = tuple[str, ...]
"""The names on the way to a part of a schema."""


class Odd(ValueError):
    """No schema that a model could be shown; the text says why."""


def bounded(schema: Any) -> None:
    """Refuse a schema that is too large.

    Raises:
        Odd: why.
    """
    if depth(schema) > MAX_DEPTH:
        raise Odd(f"its schema is nested deeper than {MAX_DEPTH} levels")
    size = len(json.dumps(schema).encode())
    if size > MAX_BYTES:
        raise Odd(f"its schema has {size} bytes; at most {MAX_BYTES} are taken")


def depth(value: Any, most: int = MAX_DEPTH) -> int:
    """How many objects and lists are inside each other; no more is counted than is too deep."""
    levels, parts = 0, [value] if isinstance(value, dict | list) else []
    while parts and levels <= most:
        levels += 1
        parts = [
            inner
            for part in parts
            for inner in (part.values() if isinstance(part, dict) else part)
            if isinstance(inner, dict | list)
        ]
    return levels


# ─── what a model is shown ───


def shown(schema: Any) -> dict[str, Any]:
    """The schema as a model is given it: always one of an object, and of JSON Schema 2020-12.

    Raises:
        Odd: it is too large, or its properties can't be told apart.
    """
    bounded(schema)
    if not isinstance(schema, Mapping):
        return {"type": "object", "properties": {}}
    made = _Showing(schema).made()
    properties, required = made.pop("properties", {}), made.pop("required", [])
    kept = {**made, "type": "object", "properties": properties}
    if required:
        kept["required"] = required
    return kept


def names_of(schema: Any) -> dict[str, str]:
    """Name for the model → name of the server, of each argument whose name a model can't have.

    Raises:
        Odd: two of them can't be told apart.
    """
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping):
        return {}
    found = properties_named(properties)
    if len(found) < sum(not is_fit(name) for name in properties):
        raise Odd("its arguments have names that can't be told apart")
    return found


class _Showing:
    """Makes the shown form of one schema.

    Args:
        root: the whole schema.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._is_old = is_old(root)
        self._renamed = {server: name for name, server in names_of(root).items()}
        self._root = root
        self._ways: dict[_Way, _Way] = {}
        self._references: list[tuple[dict[str, Any], str]] = []

    def made(self) -> dict[str, Any]:
        """The shown form."""
        self._ways[()] = ()
        made = self._object(self._root, (), ())
        for part, reference in self._references:
            way = pointed(reference)
            if way is not None and way in self._ways:
                part["$ref"] = "#" + "".join(map(_as_pointer, self._ways[way]))
        return made

    def _schema(self, given: Any, old: _Way, new: _Way) -> Any:
        """A part that stands where a schema has to; whatever else stands there allows anything.

        Args:
            given: the part.
            old, new: the ways to it in the server's schema and in the shown one.
        """
        self._ways[old] = new
        if not isinstance(given, Mapping):
            return given if isinstance(given, bool) else {}
        properties = given.get("properties")
        if isinstance(properties, Mapping) and not all(map(is_fit, properties)):
            return _in_words(given)
        return self._object(given, old, new)

    def _object(self, given: Mapping[str, Any], old: _Way, new: _Way) -> dict[str, Any]:
        made: dict[str, Any] = {}
        told: dict[str, Any] = {}
        for key, name, value in _modern(given, is_old=self._is_old):
            if _is_told(key, value, is_top=old == ()):
                told[key] = value
            elif name not in FORMS or FORMS[name](value):
                self._add(made, name, value, (*old, key), (*new, name))
        if told:
            _tell(made, f"Its schema has also {json_line(told)}")
        return made

    def _add(self, made: dict[str, Any], name: str, value: Any, old: _Way, new: _Way) -> None:
        """One more keyword, well formed."""
        if name in IN_ONE:
            made[name] = self._schema(value, old, new)
        elif name in IN_LISTS:
            made[name] = [
                self._schema(part, (*old, str(number)), (*new, str(number)))
                for number, part in enumerate(value)
            ]
        elif old == ("properties",):
            made[name] = self._arguments(value)
        elif name in BY_NAME:
            made[name] = {
                visible(one): self._schema(part, (*old, one), (*new, visible(one)))
                for one, part in value.items()
            }
        elif old == ("required",):
            made[name] = list(dict.fromkeys(self._renamed.get(one, visible(one)) for one in value))
        elif name == "$ref":
            self._references.append((made, value))
        else:
            made[visible(name)] = _visible(value)

    def _arguments(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """The schemas of the arguments, by names that a model may have."""
        found: dict[str, Any] = {}
        for own, part in value.items():
            name = self._renamed.get(own, own)
            made = self._schema(part, ("properties", own), ("properties", name))
            if name != own:
                made = made if isinstance(made, dict) else {}
                _tell(made, f"The server calls it {own}")
            found[name] = made
        return found


def _modern(given: Mapping[str, Any], *, is_old: bool) -> Iterator[tuple[str, str, Any]]:
    """The server's keyword, its name in JSON Schema 2020-12 and its value there, of each shown."""
    for key, value in given.items():
        if key.startswith("$") and key not in ("$ref", "$defs", "$comment"):
            continue
        if is_old and "$ref" in given and key not in _BESIDE:
            continue
        if key in ("additionalProperties", "unevaluatedProperties"):
            if "patternProperties" not in given:
                yield key, key, value
        elif key == "items" and isinstance(value, list):
            yield key, "prefixItems", value
        elif key == "additionalItems":
            if isinstance(given.get("items"), list):
                yield key, "items", value
        elif key in _EXCLUSIVE and value is True:
            yield key, key, given.get(_EXCLUSIVE[key])
        elif key == "required" and isinstance(value, list):
            yield key, key, list(dict.fromkeys(one for one in value if isinstance(one, str)))
        elif key not in _INCLUSIVE or given.get(_INCLUSIVE[key]) is not True:
            yield key, key, value


def _is_told(key: str, value: Any, *, is_top: bool) -> bool:
    """A keyword is told in words: it can't be shown, or its values could not be sent as shown."""
    if key in ("enum", "const"):
        return bool(_visible(value) != value)
    return key in _TOLD or (is_top and key in _AT_THE_TOP)


def _in_words(given: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of properties whose names a model can't have: allows anything, and tells it."""
    kept = ("type", "title", "description")
    made = {key: _visible(given[key]) for key in kept if key in given and FORMS[key](given[key])}
    _tell(made, f"Its schema is {json_line(given)}")
    return made


def _tell(made: dict[str, Any], text: str) -> None:
    """Say more in a schema's description."""
    said, more = made.get("description"), one_line(text, MAX_WORDS)
    made["description"] = f"{said} ({more})" if said else more


def _as_pointer(name: str) -> str:
    escaped = name.replace("~", "~0").replace("/", "~1")
    return "/" + urllib.parse.quote(escaped, safe="~$!'()*+,;=:@&")


def _visible(value: Any) -> Any:
    """The same with control characters shown in the texts that a model reads."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(key): _visible(part) for key, part in value.items()}
    return [_visible(part) for part in value] if isinstance(value, list) else value


# ─── what its arguments are held to ───


def checked(tool: str, schema: Any, given: Any) -> dict[str, Any]:
    """The arguments of a call, as the server's schema wants them as far as can be told here.

    Args:
        tool: its name, for the refusal.
        schema: the server's own; whatever it sent.
        given: of the model. Nulls stay.

    Returns:
        The arguments under the server's names.

    Raises:
        ToolError: INVALID_ARGUMENTS, with the faults.
    """
    if not isinstance(given, Mapping):
        raise invalid_arguments(tool, [("input", "must be an object of arguments")])
    names = names_of(schema)
    said: Mapping[str, Any] = given
    if twice := [name for name, own in names.items() if name in said and own in said]:
        text = "is given twice, under the server's name too; give it once, under this name"
        raise invalid_arguments(tool, [(name, text) for name in twice])
    arguments = {names.get(name, name): value for name, value in said.items()}
    if (fault := _unsendable(arguments)) is not None:
        raise invalid_arguments(tool, [("input", fault)])
    shown_as = {own: name for name, own in names.items()}
    if isinstance(schema, Mapping) and (faults := faults_of(arguments, schema, shown_as)):
        raise invalid_arguments(tool, faults)
    return arguments


def _unsendable(arguments: dict[str, Any]) -> str | None:
    """Why arguments can be sent to no server."""
    try:
        size = len(json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError):
        return "must be JSON: valid Unicode, finite numbers, not nested without an end"
    if size > MAX_ARGUMENTS:
        return f"has {size} bytes; at most {MAX_ARGUMENTS} are sent"
    if depth(arguments, MAX_LEVELS) > MAX_LEVELS:
        return f"is nested deeper than {MAX_LEVELS} levels; send flatter arguments"
    return None
