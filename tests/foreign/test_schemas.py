"""What models are shown of foreign schemas: JSON Schema 2020-12 under names that they may have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from jsonschema.validators import Draft202012Validator
from mcp_types import JSONRPCResponse

from executor.errors import ToolError
from executor.foreign import schemas
from executor.foreign.bounds import parsed
from executor.foreign.names import is_fit
from tests.foreign.odd_schemas import SCHEMAS

OLD = "http://json-schema.org/draft-07/schema#"


def parts_of(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in JSON."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from parts_of(one)


def shown(properties: Any, **more: Any) -> Any:
    """The arguments as a model is shown them."""
    return schemas.shown({"type": "object", "properties": properties, **more})["properties"]


@given(SCHEMAS)
def test_what_is_shown_is_json_schema(schema: Any) -> None:
    """Whatever a server sends, what a model is shown is taken by its interface."""
    made = schemas.shown(schema)
    Draft202012Validator.check_schema(made)
    json.dumps(made, allow_nan=False).encode()
    assert all(map(is_fit, made["properties"]))
    for part in parts_of(made):
        reference = part.get("$ref")
        assert not isinstance(reference, str) or reference.startswith("#")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (5, {}),
        ({"type": "strin", "title": "t"}, {"title": "t"}),
        ({"type": "string", "required": True}, {"type": "string"}),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": False}, {"maximum": 1}),
        (
            {"items": [{"type": "string"}, 5], "additionalItems": False},
            {"prefixItems": [{"type": "string"}, {}], "items": False},
        ),
        ({"$ref": "http://127.0.0.1/x", "title": "t"}, {"title": "t"}),
        ({"$ref": "#/nowhere"}, {}),
        ({"title": "a\u202e"}, {"title": "a\\u202e"}),
    ],
)
def test_old_and_odd_forms_are_made_good(given: Any, made: Any) -> None:
    """Old forms are shown as today's, and what is no form of any keyword is left out alone."""
    assert shown({"a": given, "b": {"type": "string"}}) == {"a": made, "b": {"type": "string"}}


def test_numbers_that_nobody_has_bound_nothing() -> None:
    """A number that no double has is null in what a server sends, and null is no bound."""
    line = b'{"jsonrpc": "2.0", "id": 1, "result": {"a": {"maximum": 1e999, "default": [NaN]}}}'
    message = parsed(line)
    assert isinstance(message, JSONRPCResponse)
    assert shown(message.result) == {"a": {"default": [None]}}


def test_arguments_have_names_that_models_may_have() -> None:
    """An argument whose name a model can't write has another, which is its own in the call."""
    properties = {
        "$top": {"type": "integer"},
        "foo bar": {"type": "string", "description": "what"},
        "foo_bar": {"type": "string"},
        "\u202e\U000e0041x": True,
        "": {},
        "n" * 100: {},
    }
    schema = {"properties": properties, "required": ["$top", "foo bar"]}
    made = schemas.shown(schema)
    names = schemas.names_of(schema)
    assert all(map(is_fit, made["properties"]))
    assert len(made["properties"]) == len(properties)
    assert made["required"][0] == "_top"
    spaced = made["required"][1]
    assert spaced != "foo_bar"
    assert names[spaced] == "foo bar"
    described = made["properties"][spaced]["description"]
    assert described == "what (The server calls it foo bar)"
    given = {"_top": 1, spaced: "a", "foo_bar": "b"}
    found = schemas.checked("t", schema, given)
    assert found == {"$top": 1, "foo bar": "a", "foo_bar": "b"}
    with pytest.raises(ToolError, match="_top must be of type integer, not 'x'"):
        schemas.checked("t", schema, {**given, "_top": "x"})


def test_arguments_are_given_under_one_name() -> None:
    """An argument may be given under its server's name too, and not under both."""
    schema = {"properties": {"$top": {"type": "integer"}}}
    assert schemas.checked("t", schema, {"_top": 1}) == {"$top": 1}
    assert schemas.checked("t", schema, {"$top": 1}) == {"$top": 1}
    with pytest.raises(ToolError, match="t: _top is given twice, under the server's name too"):
        schemas.checked("t", schema, {"_top": 1, "$top": 2})


def test_faults_have_the_names_that_a_model_has() -> None:
    """A refusal names an argument as it is shown, whatever is wrong in it and in which form."""
    long = "n" * 70
    inner = {"type": "object", "properties": {"$k": {"type": "integer"}}}
    schema = {"properties": {"$top": inner, long: {}}, "required": [long]}
    [_, fit] = schemas.shown(schema)["properties"]
    with pytest.raises(ToolError) as caught:
        schemas.checked("t", schema, {"_top": {"$k": "x"}})
    assert str(caught.value) == (
        f"Invalid arguments for t: _top.$k must be of type integer, not 'x'; {fit} is required."
    )
    forms = {"properties": {"$top": {}}, "anyOf": [{"required": ["$top"]}, {"required": ["b"]}]}
    with pytest.raises(ToolError, match=r"form.* may have; by the first: _top is required\.$"):
        schemas.checked("t", forms, {})


def test_what_the_top_may_not_have_is_told_in_words() -> None:
    """What interfaces don't take at the top of a schema, and calls are held to, is told."""
    forms = [{"required": ["a"]}, {"required": ["b\u202e"]}]
    schema = {"properties": {"a": {"anyOf": forms}}, "anyOf": forms, "not": {"required": ["c"]}}
    made = schemas.shown(schema)
    assert made["description"] == (
        'Its schema has also {"anyOf": [{"required": ["a"]}, {"required": ["b\\u202e"]}], '
        '"not": {"required": ["c"]}}'
    )
    assert set(made) == {"type", "properties", "description"}
    assert set(made["properties"]["a"]) == {"anyOf"}
    old = {"$schema": OLD, "$ref": "#/definitions/x", "anyOf": forms, "definitions": {"x": {}}}
    assert "description" not in schemas.shown(old)
    large = schemas.shown({"anyOf": [{"required": ["a" * 60]}] * 500})
    assert len(large["description"]) == schemas.MAX_WORDS


@pytest.mark.parametrize(
    ("keyword", "value", "written"),
    [
        ("enum", ["\n", "\r\n"], r'["\n", "\r\n"]'),
        ("const", "a\u200cb", r'"a\u200cb"'),
        ("enum", [{"a\x1b": 1}], r'[{"a\u001b": 1}]'),
    ],
)
def test_values_that_hide_something_are_told_as_json(
    keyword: str, value: Any, written: str
) -> None:
    """A value that can't be shown as it is can be sent as it is told."""
    made = shown({"a": {keyword: value}})["a"]
    assert made == {"description": f'Its schema has also {{"{keyword}": {written}}}'}
    assert json.loads(written) == value
    assert shown({"a": {keyword: ["b\n"]}})["a"] == {keyword: ["b\n"]}


def test_unfit_names_further_in_are_told_in_words() -> None:
    """A schema inside another whose names a model can't have allows anything, and says them."""
    inner = {
        "type": "object",
        "properties": {"foo bar": {"type": "string"}},
        "required": ["foo bar"],
    }
    made = shown({"a": {"type": "array", "items": inner}})["a"]["items"]
    assert made["type"] == "object"
    assert "properties" not in made
    assert '"required": ["foo bar"]' in made["description"]


def test_expressions_are_told_in_words() -> None:
    """An expression is shown as text: no interface has to know its kind of them."""
    made = shown({"a": {"type": "string", "description": "what", "pattern": "^\\p{L}$"}})["a"]
    assert made == {
        "type": "string",
        "description": 'what (Its schema has also {"pattern": "^\\\\p{L}$"})',
    }
    wide = {"patternProperties": {"(": {}}, "additionalProperties": False, "properties": {"b": {}}}
    assert set(shown({"a": wide})["a"]) == {"properties", "description"}


def test_references_lead_to_where_things_are_shown() -> None:
    """A reference follows what it points at, and is left out where that is not shown."""
    properties = {
        "a": {"items": [{"type": "string"}]},
        "b": {"$ref": "#/properties/a/items/0"},
        "c": {"$ref": "#/$defs/x~1y%20z"},
        "d": {"$ref": "#"},
        "e": {"$ref": "#/allOf/0"},
        "foo bar": {"type": "integer"},
        "f": {"$ref": "#/properties/foo bar"},
        "g": {"$ref": "#/$defs"},
    }
    made = shown(properties, allOf=[{"type": "object"}], **{"$defs": {"x/y z": {"type": "null"}}})
    assert made["b"] == {"$ref": "#/properties/a/prefixItems/0"}
    assert made["c"] == {"$ref": "#/$defs/x~1y%20z"}
    assert made["d"] == {"$ref": "#"}
    assert made["f"] == {"$ref": "#/properties/foo_bar"}
    assert made["e"] == made["g"] == {}


def test_beside_a_reference_old_drafts_have_nothing() -> None:
    """In old drafts only words count beside a reference, and its definitions are kept."""
    made = schemas.shown(
        {
            "$schema": OLD,
            "$ref": "#/definitions/x",
            "minProperties": 9,
            "definitions": {"x": {"$ref": "#/definitions/x", "type": "string", "title": "t"}},
        }
    )
    assert made == {
        "type": "object",
        "properties": {},
        "$ref": "#/definitions/x",
        "definitions": {"x": {"$ref": "#/definitions/x", "title": "t"}},
    }


@pytest.mark.parametrize("name", ["required", "properties", "$defs", "items", "pattern", "$ref"])
def test_arguments_may_be_called_like_keywords(name: str) -> None:
    """An argument that has the name of a keyword is an argument."""
    schema = {"properties": {name: {"type": "object", "properties": {name: {"type": "string"}}}}}
    made = schemas.shown(schema)
    [(fit, part)] = made["properties"].items()
    assert part["type"] == "object"
    good = {fit: {name: "a"}}
    assert schemas.checked("t", schema, good) == {name: {name: "a"}}
    with pytest.raises(ToolError):
        schemas.checked("t", schema, {fit: {name: 5}})


def test_deep_arguments_are_refused() -> None:
    """Arguments that no server reads are refused before they are sent."""
    given: Any = {}
    for _ in range(99):
        given = {"a": given}
    assert schemas.checked("t", True, given) == given
    with pytest.raises(ToolError, match="nested deeper than 100 levels"):
        schemas.checked("t", True, {"a": given})
