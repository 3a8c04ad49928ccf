"""What is wrong with values by foreign schemas: nothing but what is certain, with bounded work."""

from __future__ import annotations

import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema.exceptions import SchemaError, _WrappedReferencingError
from jsonschema.validators import (
    Draft3Validator,
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from referencing import Registry

from executor.foreign import faults
from executor.foreign.faults import MAX_FAULTS, MAX_STEPS, MAX_TOLD, faults_of
from tests.foreign.odd_schemas import GOOD, SCHEMAS, VALUES

UNTOLD = ("pattern", "uniqueItems", "contains", "multipleOf", "format", "$ref")
"""In the schemas of the tests, what may be wrong and is left to the server."""
OLD: dict[Any, str] = {
    Draft3Validator: "http://json-schema.org/draft-03/schema#",
    Draft4Validator: "http://json-schema.org/draft-04/schema#",
    Draft6Validator: "http://json-schema.org/draft-06/schema#",
    Draft7Validator: "http://json-schema.org/draft-07/schema#",
    Draft201909Validator: "https://json-schema.org/draft/2019-09/schema",
}
"""How a schema says that it is of an old draft, by the validator of that."""
BIG = 10**5000
MANY = "a number of very many digits"
NULLS = {"anyOf": [{"type": "null"}] * 90}


@settings(max_examples=500)
@given(GOOD, VALUES)
def test_faults_are_those_of_json_schema(schema: Any, value: Any) -> None:
    """What is told is wrong by JSON Schema, and what is not told is right or left to the server."""
    found = faults_of(value, schema)
    is_right = right_by(Draft202012Validator, schema, value)
    if found:
        assert is_right is not True
    elif not any(name in repr(schema) for name in UNTOLD):
        assert is_right is not False


@pytest.mark.parametrize("judge", OLD)
@given(schema=GOOD.filter(lambda one: isinstance(one, dict)), value=VALUES)
def test_faults_are_those_of_the_draft_of_a_schema(judge: Any, schema: Any, value: Any) -> None:
    """What is told is wrong by the draft that a schema says it is of."""
    schema = {**schema, "$schema": OLD[judge]}
    if faults_of(value, schema):
        assert right_by(judge, schema, value) is not True


def right_by(judge: Any, schema: Any, value: Any) -> bool | None:
    """What a validator says; None = it can't tell."""
    try:
        judge.check_schema(schema)
        return bool(judge(schema, registry=Registry()).is_valid(value))
    except (SchemaError, _WrappedReferencingError, RecursionError):
        return None


@pytest.mark.parametrize(
    ("judge", "schema", "value"),
    [
        (Draft201909Validator, {"prefixItems": [{"type": "string"}]}, [1]),
        (Draft7Validator, {"prefixItems": [{"type": "string"}], "items": {"minimum": 0}}, [1]),
        (Draft7Validator, {"items": {"prefixItems": [{"type": "string"}]}}, [[1]]),
        (Draft6Validator, {"if": {"type": "integer"}, "then": {"minimum": 9}}, 2),
        (Draft4Validator, {"if": {"type": "integer"}, "then": {"minimum": 9}}, 2),
        (Draft4Validator, {"const": 1}, 2),
        (Draft4Validator, {"not": {"not": {"const": 1}}}, 2),
        (Draft4Validator, {"not": {"type": "integer"}}, 1.0),
        (Draft4Validator, {"oneOf": [{"type": "integer"}, {"enum": [1.0, "a"]}]}, 1.0),
        (Draft3Validator, {"not": {"type": "integer"}}, 1),
        (
            Draft4Validator,
            {
                "definitions": {"c": {"type": "null"}},
                "properties": {
                    "a": {
                        "id": "http://x/y",
                        "definitions": {"c": {}},
                        "allOf": [{"$ref": "#/definitions/c"}],
                    }
                },
            },
            {"a": 1},
        ),
    ],
)
def test_old_drafts_have_what_they_have(judge: Any, schema: Any, value: Any) -> None:
    """What a draft does not have, or has otherwise, refuses nothing that is right by it."""
    schema = {**schema, "$schema": OLD[judge]}
    assert right_by(judge, schema, value)
    assert faults_of(value, schema) == []


def test_references_do_not_lead_through_names_of_others() -> None:
    """What a reference means beyond a part that has a name of its own is left to the server."""
    inner = {"$id": "http://x/", "$defs": {"b": {"$ref": "#/$defs/c"}, "c": True}}
    schema = {"$ref": "#/$defs/a/$defs/b", "$defs": {"a": inner, "c": False}}
    assert right_by(Draft202012Validator, schema, 1)
    assert faults_of(1, schema) == []
    named = {"properties": {"id": {"type": "null"}, "a": {"$ref": "#/properties/id"}}}
    old = {"$schema": OLD[Draft4Validator], **named}
    assert faults_of({"a": 1}, old) == [("a", "must be of type null, not 1")]


@given(SCHEMAS, VALUES)
def test_no_schema_is_too_odd(schema: Any, value: Any) -> None:
    """Whatever stands where a schema should, there is an answer."""
    assert len(faults_of(value, schema)) <= MAX_FAULTS


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": "integer"}, 1.5, "must be of type integer, not 1.5"),
        ({"type": ["integer", "null"]}, True, "must be of type integer or null, not true"),
        ({"type": "integer"}, 1.0, None),
        ({"type": "strin"}, 5, None),
        ({"enum": ["a", 1]}, True, "must be one of 'a', 1, not true"),
        ({"const": {"a": [1]}}, {"a": [1.0]}, None),
        ({"minimum": 1}, 0, "must be at least 1, not 0"),
        ({"minimum": 0, "exclusiveMinimum": True}, 1, None),
        ({"minimum": 0, "exclusiveMinimum": True}, 0, "must be greater than 0, not 0"),
        ({"maximum": 0, "exclusiveMaximum": True}, 0, "must be less than 0, not 0"),
        ({"maxLength": 1e300}, "ab", None),
        ({"multipleOf": 3}, 4, "must be a multiple of 3, not 4"),
        ({"multipleOf": 0.1}, 0.3, None),
        ({"maxLength": 1}, "ab", "must have at most 1 characters, not 2"),
        ({"not": {"pattern": "^b"}}, "a", None),
        ({"not": {"format": "uri"}}, "a", None),
        ({"not": {"type": "string"}}, "a", "has a form that it must not have"),
        ({"oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "a", None),
        ({"oneOf": [{"type": "string"}, {}]}, "a", "fits more than one"),
        ({"if": {"pattern": "^b"}, "then": {"maxLength": 0}}, "a", None),
        ({"if": {"type": "string"}, "then": {"maxLength": 0}}, "a", "must have at most 0"),
        ({"items": [{"type": "null"}], "additionalItems": False}, [None, 1], "is not allowed"),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"a": 1}, None),
        ({"$id": "http://a/b", "$ref": "#/$defs/a", "$defs": {"a": False}}, 1, "is not allowed"),
        ({"allOf": [{"$id": "b", "$ref": "#/$defs/a"}], "$defs": {"a": False}}, 1, None),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "null"}}}, 1, "must be of type"),
    ],
)
def test_faults_are_told(schema: Any, value: Any, fault: str | None) -> None:
    """Each fault says what must be, and old forms of keywords are understood."""
    found = faults_of(value, schema)
    if fault is None:
        assert found == []
    else:
        [(place, text)] = found
        assert place in ("input", "1")
        assert text.startswith(fault)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "null"}, f"must be of type null, not {MANY}"),
        ({"enum": [1, -BIG]}, f"must be one of 1, {MANY}, not {MANY}"),
        ({"const": 1}, f"must be 1, not {MANY}"),
        ({"maximum": 1.5}, f"must be at most 1.5, not {MANY}"),
        ({"exclusiveMaximum": 1.5}, f"must be less than 1.5, not {MANY}"),
        ({"multipleOf": 3}, f"must be a multiple of 3, not {MANY}"),
    ],
)
def test_large_numbers_are_not_written_out(schema: Any, fault: str) -> None:
    """No fault takes the time that the digits of its number would; Python refuses so many."""
    assert faults_of(BIG, schema) == [("input", fault)]


def test_beside_a_reference_old_drafts_have_nothing() -> None:
    """What stands beside a reference counts in the drafts since 2019-09 alone."""
    part = {"$ref": "#/definitions/x", "type": "string"}
    schema = {"properties": {"d": part}, "definitions": {"x": {"type": "integer"}}}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    assert faults_of({"d": 5}, old) == []
    assert faults_of({"d": 5}, schema) == [("d", "must be of type string, not 5")]


def test_forms_are_told_by_the_first() -> None:
    """A value that has none of its forms is told what is wrong by the first of them."""
    forms = [{"properties": {"b": {"type": "null"}}}, {"type": "string"}]
    told = "has none of the forms that it may have; by the first: b must be of type null, not 1"
    for kind in ("anyOf", "oneOf"):
        assert faults_of({"a": {"b": 1}}, {"properties": {"a": {kind: forms}}}) == [("a", told)]
    nested: dict[str, Any] = {"type": "null"}
    for _ in range(50):
        nested = {"anyOf": [nested]}
    [(_, text)] = faults_of(1, nested)
    assert len(text) == MAX_TOLD


def test_places_and_names_are_told() -> None:
    """A fault says where it is, and what is missing or too much has its own name."""
    part = {"properties": {"b": {}}, "required": ["b"], "additionalProperties": False}
    schema = {"properties": {"a": {"items": part}}}
    assert faults_of({"a": [{"b": 1}, {"c\x1b": 1}]}, schema) == [
        ("a.1.b", "is required"),
        ("a.1.c\\x1b", "is not a property that may be given"),
    ]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"anyOf": [{"$ref": "#/$defs/b"}] * 200}, "$defs": {"b": NULLS}}, [1] * 3000),
        ({"items": {"enum": list(range(10_000))}}, [-1] * 100_000),
        ({"items": {"const": [1] * 9999}}, [[1] * 9998 + [2]] * 3000),
        ({"items": {"required": [str(n) for n in range(9999)]}}, [dict.fromkeys("ab")] * 9),
        ({"items": {}}, [1] * 1_000_000),
        ({"additionalProperties": {"type": "integer"}}, {str(n): n for n in range(100_000)}),
        ({"items": {"items": {"anyOf": [{"type": "null"}]}}}, [[1] * 9] * 9000),
        ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 9}}, "$ref": "#/$defs/a"}, 1),
    ],
)
def test_work_is_bounded(schema: Any, value: Any) -> None:
    """No schema and no value takes more than so many steps, and each step is a few calls."""
    calls = 0

    def counted(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == faults.__file__

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        faults_of(value, schema)
    finally:
        sys.setprofile(before)
    assert calls < 10 * MAX_STEPS


def test_faults_hold_no_copies_of_what_they_are_about() -> None:
    """Thousands of faults of a large value take no memory to speak of."""
    schema = {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 200}}, "$defs": {"b": NULLS}}
    value = {"a": "b" * 300_000}
    tracemalloc.start()
    try:
        faults_of(value, schema)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_levels_are_bounded() -> None:
    """A value as deep as arguments may be is judged as far as the levels go, and never fails."""
    value: Any = 5
    for _ in range(100):
        value = {"a": value}
    part = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    assert faults_of(value, part) == []
    for _ in range(50):
        value = value["a"]
    [(place, text)] = faults_of(value, part)
    assert place.startswith("a.a.a.a")
    assert text == "must be of type object, not 5"
