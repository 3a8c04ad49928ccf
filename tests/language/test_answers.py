"""Answers of language servers: what has the protocol's shape is a value, all else is refused."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.language import answers
from executor.language.answers import (
    LARGEST,
    MOST,
    BadAnswer,
    Edit,
    Extent,
    Renaming,
    Target,
    diagnostics,
    hover_text,
    renaming,
    symbols,
    targets,
)
from executor.text import visible
from tests.fuzzing import cases

URI = "file:///workspace/a.py"


def part(line: int, character: int, end_line: int, end_character: int) -> dict[str, Any]:
    """A `Range`."""
    start = {"line": line, "character": character}
    return {"start": start, "end": {"line": end_line, "character": end_character}}


PART = part(1, 2, 1, 5)
EXTENT = Extent(1, 2, 1, 5)

# ─── any JSON ───────────────────────────────────────────────────────────────────────

NAMES = (
    *("uri", "range", "start", "end", "line", "character", "targetUri", "targetRange"),
    *("targetSelectionRange", "name", "kind", "selectionRange", "children", "location"),
    *("contents", "value", "language", "message", "severity", "source", "code", "newText"),
    *("changes", "documentChanges", "textDocument", "edits", "snippet", "oldUri", "newUri"),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([URI, "create", "rename", "delete", "file:///%00", "\ud800", "a\nb\x1b[2J"]),
)


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.one_of(st.sampled_from(NAMES), st.text(max_size=5))
    return st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=5))


ANY = st.recursive(SCALARS, _deeper, max_leaves=30)

SHAPED: list[Any] = [
    {"uri": URI, "range": PART},
    [{"targetUri": URI, "targetRange": PART, "targetSelectionRange": PART}],
    [{"name": "n", "kind": 5, "selectionRange": PART, "children": [{"name": "m", "range": PART}]}],
    [{"name": "n", "kind": 12, "location": {"uri": URI, "range": PART}}],
    {"contents": [{"kind": "markdown", "value": "v"}, "w", {"language": "c", "value": "x"}]},
    [{"range": PART, "message": "m", "severity": 2, "source": "s", "code": 3}],
    {"changes": {URI: [{"range": PART, "newText": "n"}]}},
    {
        "documentChanges": [
            {"textDocument": {"uri": URI}, "edits": [{"range": PART, "newText": "n"}]},
            {"kind": "rename", "oldUri": URI, "newUri": URI},
            {"kind": "create", "uri": URI},
        ]
    },
]


@st.composite
def nearly(draw: st.DrawFn) -> Any:
    """An answer of the right shape, of which a part was replaced by something else."""
    whole = json.loads(json.dumps(draw(st.sampled_from(SHAPED))))
    held: Any = whole
    while True:
        keys = list(held) if isinstance(held, dict) else list(range(len(held)))
        if not keys:
            return whole
        key = draw(st.sampled_from(keys))
        if not isinstance(held[key], dict | list) or draw(st.integers(0, 3)) == 0:
            held[key] = draw(ANY)
            return whole
        held = held[key]


READERS: dict[str, Callable[[Any], Any]] = {
    "targets": targets,
    "hover": hover_text,
    "symbols": lambda result: symbols(result, URI),
    "diagnostics": lambda result: diagnostics(result, URI),
    "renaming": renaming,
}


def require_sound(value: Any) -> None:
    """What a reader gave is of the types that it says, and harmless."""
    if value is None:
        return
    if isinstance(value, str):
        assert value == visible(value) and value.strip()
        return
    if isinstance(value, Renaming):
        edits = [edit for some in value.files.values() for edit in some]
        assert all(isinstance(uri, str) for uri in value.files)
        assert all(isinstance(edit.new_text, str) for edit in edits)
        assert all(text == visible(text) and "\n" not in text for text in value.others)
        extents = [edit.extent for edit in edits]
    else:
        assert all(isinstance(target.uri, str) for target in value)
        assert all(one.text == visible(one.text) and "\n" not in one.text for one in value)
        extents = [target.extent for target in value]
    for extent in extents:
        numbers = extent.line, extent.character, extent.end_line, extent.end_character
        assert all(type(number) is int and 0 <= number <= LARGEST for number in numbers)
        assert numbers[:2] <= numbers[2:]


@pytest.mark.fuzz
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@cases(300)
@given(answer=st.one_of(ANY, nearly()))
def test_any_json_is_read_or_refused(reader: Callable[[Any], Any], answer: Any) -> None:
    """No answer raises anything else than that it can't be used, in one line."""
    try:
        require_sound(reader(answer))
    except BadAnswer as error:
        assert str(error) and len(str(error)) < 100 and "\n" not in str(error)


@pytest.mark.parametrize("answer", SHAPED, ids=range(len(SHAPED)))
def test_each_shape_is_somebodys(answer: Any) -> None:
    """The made-up answers above begin with ones that a reader does take."""
    taken = []
    for reader in READERS.values():
        with contextlib.suppress(BadAnswer):
            found = reader(answer)
            taken.append(found.files if isinstance(found, Renaming) else found)
    assert any(taken)


# ─── places ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "result",
    [
        {"uri": URI, "range": PART},
        [{"uri": URI, "range": PART}],
        [{"uri": URI, "range": PART}, {"uri": URI, "range": dict(PART)}],
        [{"targetUri": URI, "targetRange": part(0, 0, 9, 9), "targetSelectionRange": PART}],
        [{"targetUri": URI, "targetRange": PART}],
    ],
)
def test_places_in_every_shape(result: Any) -> None:
    """A location, a list of them, links; what is said twice is there once."""
    assert targets(result) == [Target(URI, EXTENT)]


def test_no_places() -> None:
    """Nothing found is nothing, not an error."""
    assert targets(None) == targets([]) == []


def test_places_keep_their_order_and_have_a_bound() -> None:
    """The first ten thousand, as they came."""
    many = [{"uri": URI, "range": part(line, 0, line, 1)} for line in range(MOST + 5)]
    found = targets(many)
    assert [target.extent.line for target in found] == list(range(MOST))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (part(3, 4, 1, 2), Extent(1, 2, 3, 4)),
        (part(-1, -1, 2**40, 10**400), Extent(0, 0, LARGEST, LARGEST)),
        ({"start": {"line": 1.0, "character": 2.0}, "end": PART["end"]}, EXTENT),
    ],
)
def test_numbers_are_brought_to_what_may_be(given_: Any, expected: Extent) -> None:
    """Turned round, negative, too large, or written as a float."""
    assert targets({"uri": URI, "range": given_})[0].extent == expected


@pytest.mark.parametrize(
    "wrong", [True, "1", 1.5, None, float("nan"), float("inf"), [], {}], ids=repr
)
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    """A truth value, a text, half a line."""
    bad = {"start": {"line": wrong, "character": 0}, "end": PART["end"]}
    with pytest.raises(BadAnswer, match="whole numbers"):
        targets({"uri": URI, "range": bad})


# ─── symbols ────────────────────────────────────────────────────────────────────────


def symbol(name: str, kind: Any = 12, line: int = 0, *children: Any) -> dict[str, Any]:
    """A `DocumentSymbol`."""
    found = {"name": name, "kind": kind, "range": part(line, 0, line + 9, 0)}
    return {**found, "selectionRange": part(line, 4, line, 7), "children": list(children)}


def test_symbols_are_listed_with_those_inside_of_them() -> None:
    """Each with its kind in words, at its name, what is inside indented below it."""
    tree = [
        symbol("A", 5, 0, symbol("run", 6, 1, symbol("inner", 12, 2)), symbol("x", 13, 4)),
        symbol("B", 22, 9),
        symbol("C", 99, 10),
    ]
    found = symbols(tree, URI)
    assert [one.text for one in found] == [
        "class A",
        "  method run",
        "    function inner",
        "  variable x",
        "enum member B",
        "symbol C",
    ]
    assert [one.extent.line for one in found] == [0, 1, 2, 4, 9, 10]
    assert {one.uri for one in found} == {URI}
    assert found[0].extent == Extent(0, 4, 0, 7)


def test_flat_symbols_have_their_own_place() -> None:
    """`SymbolInformation`, as older servers send it."""
    flat = [{"name": "f", "kind": 12, "location": {"uri": URI, "range": PART}}]
    assert symbols(flat, "file:///workspace/other.py") == [Target(URI, EXTENT, "function f")]


def test_a_name_acts_nowhere() -> None:
    """Escapes and line ends in a name are shown, and a long one is cut."""
    (one,) = symbols([symbol("a\x1b[2J\nb\u202e")], URI)
    assert one.text == "function a\\x1b[2J\\nb\\u202e"
    (long,) = symbols([symbol("n" * 5000)], URI)
    assert len(long.text) < 300 and long.text.endswith("…")


def test_symbols_are_bounded_in_depth_and_number() -> None:
    """A hundred thousand levels and as many symbols take no stack and no second."""
    deep: dict[str, Any] = symbol("x")
    for _ in range(100_000):
        deep = symbol("x", 12, 0, deep)
    began = time.process_time()
    found = symbols([deep], URI)
    assert len(found) == MOST
    assert max(len(one.text) for one in found) < 60
    assert len(symbols([symbol("x")] * 100_000, URI)) == MOST
    assert time.process_time() - began < 1
    while deep["children"]:  # freed from the outside in, which needs no stack either
        deep = deep["children"].pop()


def test_a_hole_in_a_list_is_refused() -> None:
    """A null among symbols is no end of them."""
    with pytest.raises(BadAnswer, match="a symbol is no object"):
        symbols([symbol("a"), None, symbol("b")], URI)


# ─── texts ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({"kind": "markdown", "value": "**x**\n"}, "**x**"),
        ("plain", "plain"),
        ({"language": "python", "value": "def f()"}, "```python\ndef f()\n```"),
        (["a", {"language": "c", "value": "  int x;"}, ""], "a\n\n```c\n  int x;\n```"),
        ([], None),
        ("", None),
        (" \n", None),
        ({"language": "c", "value": " "}, None),
        (None, None),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
    ],
)
def test_what_is_said_of_a_place(contents: Any, expected: str | None) -> None:
    """Every shape that a hover may have; nothing to say is None."""
    assert hover_text({"contents": contents, "range": PART}) == expected


def test_nothing_is_said() -> None:
    """No hover at all."""
    assert hover_text(None) is None


def diagnostic(line: int, message: Any, **more: Any) -> dict[str, Any]:
    """A `Diagnostic`."""
    return {"range": part(line, 0, line, 1), "message": message, **more}


def test_diagnostics_begin_with_the_worst() -> None:
    """Errors before warnings, of each the first in the file; one without a severity is an error."""
    found = diagnostics(
        [
            diagnostic(1, "hint", severity=4),
            diagnostic(9, "late", severity=1, source="ty", code="E1"),
            diagnostic(2, "odd", severity=7, code=5),
            diagnostic(3, "warned", severity=2, source="ty"),
            diagnostic(0, "told", severity=3),
        ],
        URI,
    )
    assert [one.text for one in found] == [
        "error: odd (5)",
        "error: late (ty E1)",
        "warning: warned (ty)",
        "information: told",
        "hint: hint",
    ]
    assert {one.uri for one in found} == {URI}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("not assignable\n\xa0\xa0  to\tint", "error: not assignable to int"),
        ({"kind": "markdown", "value": "`x` unknown"}, "error: `x` unknown"),
        ("a\x1b]0;t\x07", "error: a\\x1b]0;t\\x07"),
    ],
)
def test_a_message_is_one_line(message: Any, expected: str) -> None:
    """However it was broken and indented, and whatever would act in it."""
    assert diagnostics([diagnostic(0, message)], URI)[0].text == expected


def test_a_long_message_is_cut() -> None:
    """A megabyte of message is shown in part."""
    (one,) = diagnostics([diagnostic(0, "x " * (1 << 19), code="c" * 5000)], URI)
    assert len(one.text) < answers.MAX_MESSAGE + answers.MAX_NAME + 20


def test_no_diagnostics() -> None:
    """None sent is none there."""
    assert diagnostics(None, URI) == diagnostics([], URI) == []


# ─── renaming ───────────────────────────────────────────────────────────────────────

EDIT = {"range": PART, "newText": "n"}


@pytest.mark.parametrize(
    "result",
    [
        {"changes": {URI: [EDIT]}},
        {"documentChanges": [{"textDocument": {"uri": URI, "version": 3}, "edits": [EDIT]}]},
        {
            "changes": {URI: [EDIT, EDIT]},
            "documentChanges": [{"textDocument": {"uri": URI}, "edits": [EDIT]}],
        },
        {
            "documentChanges": [
                {"textDocument": {"uri": URI}, "edits": [{**EDIT, "annotationId": "a"}]}
            ],
            "changeAnnotations": {"a": {"label": "x"}},
        },
        {
            "documentChanges": [
                {
                    "textDocument": {"uri": URI},
                    "edits": [{"range": PART, "snippet": {"kind": "snippet", "value": "n"}}],
                }
            ]
        },
    ],
)
def test_edits_in_every_shape(result: Any) -> None:
    """Changes by file, changes of documents, which go first, with annotations or snippets."""
    assert renaming(result) == Renaming({URI: (Edit(EXTENT, "n"),)}, ())


def test_what_else_is_done_is_said() -> None:
    """Files made, moved and deleted, in words; edits of one file from several steps together."""
    found = renaming(
        {
            "documentChanges": [
                {"textDocument": {"uri": URI}, "edits": [EDIT]},
                {"kind": "rename", "oldUri": URI, "newUri": "file:///workspace/b%20c.py"},
                {"kind": "create", "uri": "file:///usr/x\n"},
                {"kind": "delete", "uri": "jdt://contents/A.class"},
                {"textDocument": {"uri": URI}, "edits": [EDIT]},
            ]
        }
    )
    assert found.others == (
        "renames a.py to b c.py",
        "creates /usr/x\\n",
        "deletes jdt://contents/A.class",
    )
    assert len(found.files[URI]) == 2


@pytest.mark.parametrize("result", [None, {}, {"changes": None}, {"changes": {}}])
def test_nothing_to_rename(result: Any) -> None:
    """No edit is no error."""
    assert renaming(result) == Renaming({}, ())


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"documentChanges": [{"kind": "burn", "uri": URI}]}, "no known kind"),
        ({"documentChanges": [{"kind": []}]}, "no known kind"),
        ({"changes": {URI: [{"range": PART}]}}, "new text is no text"),
        ({"changes": []}, "changes by file is no object"),
        ("x", "a change of files is no object"),
    ],
)
def test_what_is_wrong_is_said(result: Any, said: str) -> None:
    """Which part of the answer has not the protocol's shape."""
    with pytest.raises(BadAnswer, match=said):
        renaming(result)


def test_edits_have_a_bound() -> None:
    """Ten thousand of them in all files together."""
    many = {f"{URI}{number}": [EDIT] * 1000 for number in range(20)}
    found = renaming({"changes": many})
    assert sum(map(len, found.files.values())) == MOST


def test_what_else_is_done_has_a_bound() -> None:
    """The first of ten thousand files that are made, and how many there are."""
    made = [{"kind": "create", "uri": f"file:///workspace/{number}"} for number in range(9000)]
    others = renaming({"documentChanges": made}).others
    assert len(others) == answers.MOST_OTHERS + 1
    assert others[0] == "creates 0" and "9000" in others[-1]
