"""Notebooks in the agent: a change of one cell, and the JSON whose ranges it rests on."""

from __future__ import annotations

import base64
import json
from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent import notebooks, ranges
from executor.agent.operation import Failure
from tests.agent.driver import Tree, changed, snapshot
from tests.pictures import PNG

T = TypeVar("T")


def done(steps: Generator[None, Any, T]) -> T:
    """What a generator comes to."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found: T = stop.value
            return found


# ─── JSON ───────────────────────────────────────────────────────────────────────────

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=30,
)


def rebuilt(data: bytes, value: ranges.Value) -> Any:
    """What a value stands for, made of the ranges of those in it."""
    if value.kind == "object":
        return {key: rebuilt(data, item) for key, _, item in value.members}
    if value.kind == "array":
        return [rebuilt(data, item) for item in value.items]
    return ranges.decoded(data, value)


@given(JSON, st.sampled_from([None, 1, "\t"]), st.booleans(), st.integers(0, 12))
def test_ranges_lead_to_what_json_reads(
    value: Any, indent: int | str | None, escapes: bool, depth: int
) -> None:
    """The ranges of a text hold what `json` reads of it, at any depth."""
    for _ in range(depth):
        value = [value]
    text = json.dumps(value, indent=indent, ensure_ascii=escapes)
    data = text.encode("utf-8", "replace")
    with changed(ranges, KEPT_DEPTH=1000):
        found = done(ranges.scan(data))
    assert repr(rebuilt(data, found)) == repr(json.loads(data))
    assert repr(ranges.decoded(data, done(ranges.scan(data)))) == repr(json.loads(data))


@given(JSON, st.data())
def test_what_json_refuses_is_refused(value: Any, data: st.DataObject) -> None:
    """A text with one character more or less is JSON here exactly if it is for `json`."""
    text = json.dumps([[[[[[[[[value, value]]]]]]]]])
    at = data.draw(st.integers(0, len(text)))
    more = data.draw(st.sampled_from(["", ",", "]", "}", "[", "{", '"', "\\", "1", "x", ":", "\n"]))
    damaged = text[:at] + more + text[at + (not more) :]
    try:
        json.loads(damaged)
    except ValueError:
        with pytest.raises(ranges.Broken):
            done(ranges.scan(damaged.encode()))
    else:
        done(ranges.scan(damaged.encode()))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 201 + b"]" * 201, "deeper"),
        (b'["\xff"]', "UTF-8"),
        (b"{} {}", "follows"),
        (b'{"a": 1', "too early"),
    ],
)
def test_broken_texts_say_why(text: bytes, reason: str) -> None:
    """What is no JSON is refused with the reason."""
    with pytest.raises(ranges.Broken, match=reason):
        done(ranges.scan(text))


def test_a_million_numbers_are_passed_over(tree: Tree) -> None:
    """A table in an output is looked through in steps, and nothing of it is kept."""
    table = b"[" + b"1.5, " * 1_000_000 + b"2]"
    data = b"[" * 9 + table + b"]" * 9
    steps = ranges.scan(data)
    assert sum(1 for _ in steps) > 10
    with changed(ranges, MAX_VALUES=20):
        done(ranges.scan(data))
        with pytest.raises(ranges.TooMuch):
            done(ranges.scan(b"[" + b"1, " * 20 + b"2]"))


# ─── a notebook that is valid ───────────────────────────────────────────────────────

TEXT = st.text(st.sampled_from('ab \n"\\é\u2028{}😀\r\t'), max_size=12)
_CODE = {"cell_type", "metadata", "source", "outputs", "execution_count"}
_OTHER = {"cell_type", "metadata", "source"}


def require_valid(notebook: dict[str, Any]) -> None:
    """The rules of nbformat 4 that a change of a cell could break."""
    assert notebook["nbformat"] == 4
    has_ids = notebook["nbformat_minor"] >= 5
    names = [cell.get("id") for cell in notebook["cells"]]
    assert not has_ids or (None not in names and len(set(names)) == len(names))
    for cell in notebook["cells"]:
        is_code = cell["cell_type"] == "code"
        needed = (_CODE if is_code else _OTHER) | ({"id"} if has_ids else set())
        may = set() if is_code else {"attachments"}
        assert needed <= cell.keys() <= needed | may
        assert type(cell["source"]) is str or all(type(one) is str for one in cell["source"])


@st.composite
def cells(draw: st.DrawFn, number: int, minor: int, is_list: bool) -> dict[str, Any]:
    """A valid cell."""
    source = draw(TEXT)
    cell: dict[str, Any] = {
        "cell_type": draw(st.sampled_from(["code", "markdown", "raw"])),
        "metadata": draw(st.sampled_from([{}, {"tags": ["é"]}])),
        "source": source.splitlines(keepends=True) if is_list else source,
    }
    if minor >= 5:
        cell["id"] = f"c{number}"
    if cell["cell_type"] == "code":
        cell["execution_count"] = draw(st.sampled_from([None, 7]))
        stream = {"output_type": "stream", "name": "stdout", "text": ["x\n"]}
        cell["outputs"] = draw(st.sampled_from([[], [stream]]))
    elif draw(st.booleans()):
        cell["attachments"] = {"a.png": {"image/png": "AAAA"}}
    return cell


@st.composite
def books(draw: st.DrawFn) -> dict[str, Any]:
    """A valid notebook, its keys in any order."""
    minor, is_list = draw(st.sampled_from([4, 5])), draw(st.booleans())
    count = draw(st.integers(0, 4))
    found: dict[str, Any] = {
        "cells": [draw(cells(number, minor, is_list)) for number in range(count)],
        "metadata": draw(st.sampled_from([{}, {"title": "é"}])),
        "nbformat": 4,
        "nbformat_minor": minor,
    }
    if draw(st.booleans()):
        found["cells"] = [
            dict(draw(st.permutations(list(cell.items())))) for cell in found["cells"]
        ]
        found = dict(draw(st.permutations(list(found.items()))))
    return found


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """A valid notebook as some program writes it."""
    indent = draw(st.sampled_from([1, 2, "\t", None]))
    tight = (",", ":") if indent is None and draw(st.booleans()) else None
    escapes = draw(st.booleans())
    text = json.dumps(draw(books()), indent=indent, separators=tight, ensure_ascii=escapes)
    text += draw(st.sampled_from(["", "\n"]))
    return (text.replace("\n", "\r\n") if draw(st.booleans()) else text).encode()


def edited(data: bytes, source: str, **arguments: Any) -> notebooks.Edited | None:
    """The notebook after a change; None if it would change nothing."""
    try:
        return notebooks.changed(done(notebooks.parsed(data)), arguments, source)
    except Failure as failure:
        assert failure.message.startswith("no change"), failure.message
        return None


@given(written(), TEXT, st.sampled_from([None, "code", "markdown"]), st.data())
def test_replacing_a_cell(data: bytes, source: str, kind: str | None, draw: st.DataObject) -> None:
    """A replaced cell has the new source in the old form; all bytes around it are the same."""
    book = done(notebooks.parsed(data))
    if not book.cells:
        return
    at = draw.draw(st.integers(0, len(book.cells) - 1))
    result = edited(data, source, mode="replace", cell=book.cells[at].name, type=kind)
    if result is None:
        return
    value = book.cells[at].value
    assert result.text.startswith(data[: value.start])
    assert result.text.endswith(data[value.end :])
    old, new = json.loads(data)["cells"][at], json.loads(result.text)["cells"][at]
    require_valid(json.loads(result.text))
    assert "".join(new["source"]) == source
    assert type(new["source"]) is type(old["source"])
    assert new["cell_type"] == (kind or old["cell_type"])
    assert new["metadata"] == old["metadata"]
    assert new.get("id") == old.get("id")
    if new["cell_type"] == "code":
        assert (new["outputs"], new["execution_count"]) == ([], None)


@given(written(), TEXT, st.sampled_from(["code", "markdown"]), st.data())
def test_inserting_and_deleting(data: bytes, source: str, kind: str, draw: st.DataObject) -> None:
    """A cell that is inserted and deleted again leaves the bytes of all the others."""
    book = done(notebooks.parsed(data))
    names = [cell.name for cell in book.cells]
    after = draw.draw(st.sampled_from([None, *names]))
    result = edited(data, source, mode="insert", cell=after, type=kind)
    assert result is not None
    require_valid(json.loads(result.text))
    cells_now = json.loads(result.text)["cells"]
    at = names.index(after) + 1 if after is not None else 0
    assert "".join(cells_now[at]["source"]) == source
    assert cells_now[:at] + cells_now[at + 1 :] == json.loads(data)["cells"]
    name = done(notebooks.parsed(result.text)).cells[at].name
    back = edited(result.text, "", mode="delete", cell=name)
    assert back is not None
    if names:
        assert back.text == data
    assert json.loads(back.text) == json.loads(data)


@given(books(), TEXT, st.sampled_from(["code", "markdown"]))
def test_jupyter_would_write_the_same(book: dict[str, Any], source: str, kind: str) -> None:
    """In a notebook that Jupyter has written, a new cell is written as Jupyter writes it."""
    if any(type(cell["source"]) is str for cell in book["cells"]):
        return
    text = json.dumps(book, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    result = edited(text.encode(), source, mode="insert", cell=None, type=kind)
    assert result is not None
    again = json.dumps(json.loads(result.text), indent=1, sort_keys=True, ensure_ascii=False)
    assert result.text.decode() == again + "\n"


# ─── what is refused ────────────────────────────────────────────────────────────────

CELL = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["x"]}


def book_of(*given: dict[str, Any], **fields: Any) -> bytes:
    """A notebook of these cells."""
    book = {"cells": list(given), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps({**book, **fields}, indent=1).encode()


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b'{"nbformat": 3, "nbformat_minor": 0, "worksheets": []}', "UNSUPPORTED", "nbformat 3"),
        (book_of(nbformat="4"), "EXECUTION_ERROR", "nbformat"),
        (b"", "EXECUTION_ERROR", "too early"),
        (b"[]", "EXECUTION_ERROR", "not an object"),
        (b'{\n<<<<<<< HEAD\n"cells": []}', "EXECUTION_ERROR", "line 2"),
        (book_of(cells={}), "EXECUTION_ERROR", "list of cells"),
        (book_of({**CELL, "source": 1}), "EXECUTION_ERROR", "source"),
        (book_of({**CELL, "cell_type": "x"}), "EXECUTION_ERROR", "cell_type"),
        (book_of(CELL).replace(b'"id"', b'"source": "y", "id"'), "EXECUTION_ERROR", "twice"),
        (book_of(CELL, CELL), "AMBIGUOUS", "2 cells"),
        (book_of({**CELL, "id": "a\n"}), "NO_MATCH", "The ids are: cell-0."),
        (book_of({**CELL, "id": "a" * 65}), "NO_MATCH", "The ids are: cell-0."),
        (book_of({**CELL, "id": "b"}), "NO_MATCH", "The ids are: b."),
        (book_of(), "NO_MATCH", "no cells"),
        (book_of(CELL), "INVALID_ARGUMENTS", "no change"),
    ],
)
def test_refusals(tree: Tree, data: bytes, code: str, said: str) -> None:
    """What is no notebook, or names no cell, is refused by its reason; nothing changes."""
    tree.write("n.ipynb", data)
    before = snapshot(tree.path)
    asked = {"path": "n.ipynb", "expect": tree.hash("n.ipynb"), "mode": "replace", "cell": "a"}
    failure = tree.failure("edit_notebook", b"x", **asked)
    assert failure.code == code
    assert said in failure.message
    assert snapshot(tree.path) == before


@pytest.mark.parametrize(("expect", "code"), [(None, "NOT_READ"), ("0" * 32, "CONFLICT")])
def test_only_what_was_read_is_changed(tree: Tree, expect: str | None, code: str) -> None:
    """A notebook that was not read, or has changed since, is not changed."""
    tree.write("n.ipynb", book_of(CELL))
    before = snapshot(tree.path)
    asked = {"path": "n.ipynb", "expect": expect, "mode": "delete", "cell": "a"}
    assert tree.failure("edit_notebook", **asked).code == code
    assert snapshot(tree.path) == before


def test_a_name_that_two_cells_have_is_neither(tree: Tree) -> None:
    """A cell whose id looks like the place of another one is not taken for it."""
    nameless = {key: value for key, value in CELL.items() if key != "id"}
    tree.write("n.ipynb", book_of({**CELL, "id": "cell-1"}, nameless))
    asked = {"path": "n.ipynb", "expect": tree.hash("n.ipynb"), "mode": "delete", "cell": "cell-1"}
    assert tree.failure("edit_notebook", **asked).code == "AMBIGUOUS"


# ─── reading ────────────────────────────────────────────────────────────────────────


def output_of(**data: Any) -> dict[str, Any]:
    """An output with these forms; `_` stands for the slash."""
    forms = {name.replace("_", "/"): value for name, value in data.items()}
    return {"output_type": "display_data", "metadata": {}, "data": forms}


def code_of(*outputs: dict[str, Any]) -> dict[str, Any]:
    """A code cell with these outputs."""
    fields = {"cell_type": "code", "execution_count": 2, "outputs": list(outputs)}
    return {**CELL, **fields}


PICTURE = base64.encodebytes(PNG).decode()
TRACE = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[0m: v"]}
STREAM = {"output_type": "stream", "name": "stderr", "text": ["1\n", "2\n"]}


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        (STREAM, [("output", "stderr", b"1\n2\n")]),
        (TRACE, [("output", "error", b"E: v")]),
        ({**TRACE, "traceback": []}, [("output", "error", b"E: v")]),
        (output_of(text_plain=["a"], text_html="<b>"), [("output", "text/plain", b"a")]),
        (output_of(text_html="<b>"), [("output", "text/html", b"<b>")]),
        (output_of(application_json={}), [("output", "application/json", b"{}")]),
        (output_of(application_x="?"), [("output", "other", b"application/x")]),
        (output_of(image_png=PICTURE), [("picture", "image/png", PNG)]),
        (output_of(image_jpeg=PICTURE), [("picture", "image/png", PNG)]),
        (output_of(image_png="AAAA", text_plain="a"), [("output", "text/plain", b"a")]),
        (output_of(image_png=PICTURE[:40]), [("output", "other", b"image/png")]),
        (output_of(image_png="?"), [("output", "other", b"image/png")]),
        ({"output_type": "display_data", "metadata": {}}, []),
        ([], []),
    ],
)
def test_outputs_are_read(tree: Tree, output: Any, parts: list[tuple[str, str, bytes]]) -> None:
    """Each kind of output is a text or a picture, by what it holds."""
    tree.write("n.ipynb", book_of(code_of(output)).replace(b"\x1b", b"\\u001b"))
    value, data = tree.call("read_notebook", path="n.ipynb")
    found = []
    for part in value["parts"]:
        found.append((part["kind"], part["what"], data[: part["length"]]))
        data = data[part["length"] :]
    assert found == [("source", "code", b"x"), *parts]
    assert data == b""


def test_a_terminals_controls_are_left_out(tree: Tree) -> None:
    """Of an output neither colours, nor movements, nor the targets of links are shown."""
    text = "\x1b[1;31mred\x1b[0m\x1b[2K\x1b]8;;http://x\x07link\x1b]8;;\x1b\\\x1b[?25l"
    stream = {"output_type": "stream", "name": "stdout", "text": text}
    cell = {**CELL, "cell_type": "code", "execution_count": None, "outputs": [stream]}
    tree.write("n.ipynb", book_of(cell))
    _, data = tree.call("read_notebook", path="n.ipynb")
    assert data == b"xredlink"


def test_attached_pictures_are_shown(tree: Tree) -> None:
    """Pictures within a cell of text come after it."""
    forms = {"image/png": base64.b64encode(PNG).decode()}
    attached = {"a.png": forms, "b.txt": {"text/plain": "x"}, "c.png": {"image/png": "!"}}
    tree.write("n.ipynb", book_of({**CELL, "attachments": attached}))
    value, data = tree.call("read_notebook", path="n.ipynb")
    assert [(part["kind"], part["what"]) for part in value["parts"]] == [
        ("source", "markdown"),
        ("picture", "image/png"),
    ]
    assert data == b"x" + PNG


def test_what_has_no_room_is_counted(tree: Tree) -> None:
    """Of long outputs, many cells and many pictures as much is given as is asked for."""
    long = {**STREAM, "text": "é" * 100}
    tree.write("n.ipynb", book_of(code_of(long, output_of(image_png=PICTURE)), CELL, CELL))
    value, data = tree.call(
        "read_notebook", path="n.ipynb", max_bytes=120, part_bytes=31, pictures=0
    )
    assert [part["left_out"] for part in value["parts"]] == [0, 170, len(PNG)]
    assert data == b"x" + "é".encode() * 15
    assert (value["cells"], value["shown"]) == (3, 1)
