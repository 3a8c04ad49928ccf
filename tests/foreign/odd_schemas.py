"""Schemas as servers may send them: well formed, of old drafts, or of nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies
from hypothesis.strategies import SearchStrategy

NAMES = strategies.sampled_from(["a", "b", "foo bar", "$top", "\u202ex", "a/b", "~", "", "\ud800"])
TYPES = ["string", "integer", "number", "object", "array", "null", "boolean", "strin"]
VALUES: SearchStrategy[Any] = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers(-3, 3)
    | strategies.sampled_from([0.5, 1.0, "", "a", "bb", "\x1b"]),
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(NAMES.filter(str.isascii), inner, max_size=3)
    ),
    max_leaves=6,
)
NUMBERS = strategies.integers(-2, 3) | strategies.sampled_from([0.5, 1.0])
COUNTS = strategies.integers(0, 3)
REFERENCES = strategies.sampled_from(
    ["#", "#/$defs/a", "#/properties/a", "#/$defs", "#/$defs/a/items/0", "#/$defs/a/const", "#x"]
)


def keywords(inner: SearchStrategy[Any], values: SearchStrategy[Any]) -> dict[str, Any]:
    """Keywords and well formed values of them.

    Args:
        inner: schemas in them.
        values: of constants.
    """
    several = strategies.lists(inner, min_size=1, max_size=3)
    by_name = strategies.dictionaries(strategies.sampled_from(["a", "b", "c"]), inner, max_size=3)
    return {
        "type": strategies.sampled_from(TYPES[:7])
        | strategies.lists(strategies.sampled_from(TYPES[:7]), min_size=1, max_size=3, unique=True),
        "enum": strategies.lists(values, max_size=3),
        "const": values,
        "properties": by_name,
        "$defs": by_name,
        "required": strategies.lists(strategies.sampled_from(["a", "b"]), max_size=2, unique=True),
        "additionalProperties": inner,
        "items": inner,
        "prefixItems": several,
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), COUNTS),
        **dict.fromkeys(("minProperties", "maxProperties"), COUNTS),
        "multipleOf": strategies.sampled_from([1, 2, 0.5]),
        "pattern": strategies.sampled_from(["^a", "b$"]),
        "uniqueItems": strategies.booleans(),
        "format": strategies.sampled_from(["date", "uri"]),
        "contains": inner,
        "$ref": strategies.just("#/$defs/a"),
    }


def few(found: dict[str, Any]) -> SearchStrategy[dict[str, Any]]:
    """Objects with some of the keywords."""
    one = strategies.sampled_from(sorted(found))
    return strategies.lists(one, max_size=4, unique=True).flatmap(
        lambda names: strategies.fixed_dictionaries({name: found[name] for name in names})
    )


GOOD: SearchStrategy[Any] = strategies.recursive(
    strategies.booleans() | few(keywords(strategies.just({}), VALUES)),
    lambda inner: few(keywords(inner, VALUES)),
    max_leaves=8,
)
"""Well formed schemas of draft 2020-12."""


def _odd(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    junk = VALUES | strategies.sampled_from(["(", TYPES[7], True])
    known = keywords(inner, VALUES)
    other = {
        name: strategy | junk | strategies.dictionaries(NAMES, inner, max_size=2)
        for name, strategy in known.items()
    }
    more = {
        "$ref": REFERENCES,
        "$schema": strategies.sampled_from(
            ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"]
        ),
        "items": strategies.lists(inner, max_size=2) | inner,
        "required": strategies.lists(NAMES, max_size=3) | strategies.booleans(),
        "patternProperties": strategies.dictionaries(NAMES, inner, max_size=2),
        "dependencies": junk,
        "description": strategies.text() | junk,
        "x-\u202e": junk,
    }
    return few({**other, **more, **dict.fromkeys(("$id", "$anchor", "default", "nullable"), junk)})


SCHEMAS: SearchStrategy[Any] = strategies.recursive(VALUES, _odd, max_leaves=8)
"""Schemas of whatever shape."""
