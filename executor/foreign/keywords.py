"""The keywords of JSON Schema 2020-12, and what their values have to be. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (Mapping,),
}
"""The types of JSON and their Python ones."""

_DRAFT = re.compile(r"draft-0([3-7])\b")
_DRAFT_2019 = 8
"""The first draft where what stands beside `$ref` counts."""
_NEWEST = 9
SINCE: Mapping[str, int] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "not", "required", "multipleOf"), 4),
    **dict.fromkeys(("minProperties", "maxProperties"), 4),
    **dict.fromkeys(("const", "exclusiveMinimum", "exclusiveMaximum"), 6),
    "if": 7,
    "prefixItems": _NEWEST,
}
"""The draft from which a keyword is what it is in JSON Schema 2020-12, as `draft` counts them."""


def draft(schema: Mapping[str, Any]) -> int:
    """The draft that it says it is of: 3 to 7, 8 = 2019-09, 9 = 2020-12 or it says nothing."""
    dialect = schema.get("$schema")
    if not isinstance(dialect, str):
        return _NEWEST
    if (found := _DRAFT.search(dialect)) is not None:
        return int(found[1])
    return _DRAFT_2019 if "draft/2019-09/" in dialect else _NEWEST


def is_old(schema: Mapping[str, Any]) -> bool:
    """It says that it is of a draft where what stands beside `$ref` does not count."""
    return draft(schema) < _DRAFT_2019


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)  # no truth value


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _are_names(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, bool | Mapping)


def _are_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and _are_names(names) and all(name in TYPES for name in names)


IN_ONE = (
    "additionalProperties",
    "items",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
)
"""Keywords with one schema."""
IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords with a list of schemas."""
BY_NAME = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords with schemas by names that are anything."""

_COUNTS = (
    "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains"
)
_TEXTS = "title description $comment format contentMediaType contentEncoding $ref"

FORMS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(IN_ONE, _is_schema),
    **dict.fromkeys(IN_LISTS, _are_schemas),
    **dict.fromkeys(BY_NAME, _is_map),
    **dict.fromkeys(_COUNTS.split(), _is_count),
    **dict.fromkeys(_TEXTS.split(), _is_text),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_truth),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "type": _are_types,
    "enum": _is_list,
    "examples": _is_list,
    "required": _are_names,
}
"""Whether a keyword's value is one, for each keyword that is shown or judged, and whose
value can't be anything."""
