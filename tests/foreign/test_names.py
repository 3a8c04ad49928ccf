"""Names and schemas of foreign tools."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, strategies

from executor.errors import ToolError
from executor.foreign import schemas
from executor.foreign.names import LONGEST, both, holds, may_have, name_of, named

SLOW = "^(([\\s\\S])+)+\\x00$"
JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
    max_leaves=30,
)


@given(strategies.lists(strategies.text(), max_size=20))
def test_names_are_fit_and_differ(tools: list[str]) -> None:
    """Whatever servers call their tools, names have the characters and length that they may."""
    found = named("a-server", tools)
    assert len(found) == len(set(found.values()))
    for name in found:
        assert len(name) <= LONGEST
        assert name.isascii()
        assert name.replace("_", "").replace("-", "").isalnum()


def test_names_that_become_the_same_are_told_apart() -> None:
    """Tools whose names become the same, or that are taken, have names of their own."""
    found = named("s", ["a b", "a/b", "c"], taken=["mcp__s__c"])
    assert sorted(found.values()) == ["a b", "a/b", "c"]
    assert "mcp__s__c" not in found
    long = {name_of("s", "x" * 90 + end) for end in "ab"}
    assert len(long) == 2


def test_lists_hold_names_and_patterns() -> None:
    """A list has a foreign tool by its whole name, or by a pattern of its server."""
    assert holds(["mcp__s__*"], "mcp__s__a__b")
    assert not holds(["mcp__s__*"], "mcp__s2__a")
    assert not holds(["*"], "mcp__s__a")
    assert both(["mcp__*", "read_file"], ["mcp__s__a", "grep"]) == ("mcp__s__a",)
    assert may_have(["mcp__s__a"], "s")
    assert may_have(["mcp__*"], "s")
    assert not may_have(["mcp__s__a", "read_file"], "t")
    assert may_have(None, "t")


@given(JSON)
def test_any_schema_is_shown_as_an_object_or_refused(schema: Any) -> None:
    """Whatever a server calls a schema, the model is shown one of an object, and calls are."""
    shown = schemas.shown(schema)
    assert shown["type"] == "object"
    assert isinstance(shown["properties"], dict)
    json.dumps(shown)
    try:
        schemas.checked("tool", schema, {"a": 1})
    except ToolError as error:
        assert "Invalid arguments for tool" in str(error)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        {"patternProperties": {"^(a+)+$": {"type": "string"}}, "additionalProperties": False},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 9}}, "$ref": "#/$defs/a"},
        {
            "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 8} for n in range(12)}
            | {"a12": {}},
            "$ref": "#/$defs/a0",
        },
        {"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}},
        {"$dynamicRef": "#nowhere"},
        {"properties": {"a": {"$ref": "#/$defs"}}, "$defs": {"type": "string", "pattern": SLOW}},
        {
            "properties": {"a": {"$ref": "#/$defs/q/const"}},
            "$defs": {"q": {"const": {"type": "string", "pattern": SLOW}}},
        },
        {
            "properties": {
                "a": {
                    "$schema": "http://json-schema.org/draft-07/schema#",
                    "allOf": [{"type": "string", "pattern": SLOW}],
                }
            }
        },
        {"type": 7},
    ],
)
def test_no_schema_holds_a_call_up(schema: Any) -> None:
    """Slow expressions, circles, bombs and far references end soon, and the call goes on."""
    began = time.monotonic()
    given = {"a": "a" * 50 + "!"}
    assert schemas.checked("tool", schema, given) == given
    assert time.monotonic() - began < 20, "the expression alone would take years"


@pytest.mark.parametrize("given", [5, None, {"a": float("nan")}, {"a": "\ud800"}])
def test_arguments_are_json(given: Any) -> None:
    """What is no object of JSON is sent to no server."""
    with pytest.raises(ToolError, match="Invalid arguments"):
        schemas.checked("tool", True, given)
