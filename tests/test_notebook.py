"""notebook_edit through a loop: one cell changes, and nothing else."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.errors import Code
from tests.loops import Work, open_work


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """A loop over an agent process, with the notebook `n.ipynb` that it has read."""
    with open_work("local", tmp_path) as found:
        found.write("n.ipynb", TEXT)
        found.call("read_file", path="n.ipynb")
        yield found


STREAM = {"output_type": "stream", "name": "stdout", "text": ["1\n"]}
CODE = {"cell_type": "code", "execution_count": 3, "id": "b", "metadata": {"tags": ["é"]}}
BOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# Überschrift\n", "é"]},
        {**CODE, "outputs": [STREAM], "source": ["x = 1\n", "print(x)"]},
        {"cell_type": "markdown", "id": "c", "metadata": {}, "source": "text"},
    ],
    "metadata": {"z": 1, "a": "é"},
    "nbformat": 4,
    "nbformat_minor": 5,
}
TEXT = json.dumps(BOOK, indent=1, ensure_ascii=False) + "\n"


def changes(before: str, after: str) -> list[str]:
    """The lines of a diff that say what changed."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def test_only_the_cell_changes(work: Work) -> None:
    """The diff of a replaced cell shows its source, outputs and count, and no other line."""
    result = work.call(
        "notebook_edit", notebook_path="n.ipynb", cell_id="b", new_source="y = 'ß'\n"
    )
    assert result.code is None, result.content
    after = (work.root / "n.ipynb").read_text()
    assert changes(TEXT, after) == [
        '-   "execution_count": 3,',
        '+   "execution_count": null,',
        '-   "outputs": [',
        "-    {",
        '-     "output_type": "stream",',
        '-     "name": "stdout",',
        '-     "text": [',
        '-      "1\\n"',
        "-     ]",
        "-    }",
        "-   ],",
        '+   "outputs": [],',
        '-    "x = 1\\n",',
        '-    "print(x)"',
        "+    \"y = 'ß'\\n\"",
    ]


@pytest.mark.parametrize(
    ("given", "names", "sources"),
    [
        ({"cell_id": "a", "new_source": "n"}, "abc", ["n", "x = 1\nprint(x)", "text"]),
        ({"cell_id": "c", "new_source": "n"}, "abc", [None, None, "n"]),
        ({"cell_id": "a", "new_source": "", "edit_mode": "delete"}, "bc", [None, "text"]),
        ({"cell_id": "c", "new_source": "", "edit_mode": "delete"}, "ab", [None, None]),
        (
            {"cell_id": "a", "new_source": "n", "edit_mode": "insert", "cell_type": "code"},
            "a?bc",
            [None, "n", None, None],
        ),
        (
            {"new_source": "n", "edit_mode": "insert", "cell_type": "markdown"},
            "?abc",
            ["n", None, None, None],
        ),
    ],
)
def test_modes(work: Work, given: dict[str, Any], names: str, sources: list[str | None]) -> None:
    """A cell is replaced, inserted after another or first, or deleted."""
    result = work.call("notebook_edit", notebook_path="n.ipynb", **given)
    assert result.code is None, result.content
    book = json.loads((work.root / "n.ipynb").read_text())
    found = [cell["id"] if cell["id"] in "abc" else "?" for cell in book["cells"]]
    assert "".join(found) == names
    for cell, source in zip(book["cells"], sources, strict=True):
        assert source is None or "".join(cell["source"]) == source
    assert result.structured is not None
    assert result.structured["cells"] == len(names)


def test_cells_without_ids_have_names(work: Work) -> None:
    """Where cells have no ids they are called by their place, as reading shows them."""
    cells = [{name: cell[name] for name in cell if name != "id"} for cell in BOOK["cells"]]  # type: ignore[attr-defined]
    work.write("old.ipynb", json.dumps({**BOOK, "cells": cells, "nbformat_minor": 4}))
    assert "cell cell-1: code" in str(work.call("read_file", path="old.ipynb").content)
    work.call("notebook_edit", notebook_path="old.ipynb", cell_id="cell-1", new_source="n")
    book = json.loads((work.root / "old.ipynb").read_text())
    assert book["cells"][1]["source"] == ["n"]


def test_a_change_needs_a_reading(work: Work) -> None:
    """A notebook that was not read is not changed, nor one that has changed since."""
    work.write("other.ipynb", TEXT)
    given = {"cell_id": "b", "new_source": "n"}
    result = work.call("notebook_edit", notebook_path="other.ipynb", **given)
    assert result.code is Code.NOT_READ
    work.write("n.ipynb", TEXT.replace("Über", "Unter"))
    result = work.call("notebook_edit", notebook_path="n.ipynb", **given)
    assert result.code is Code.CONFLICT
    assert (work.root / "n.ipynb").read_text() == TEXT.replace("Über", "Unter")


def test_changes_follow_each_other(work: Work) -> None:
    """After a change the next one needs no reading."""
    for cell in "abc":
        result = work.call("notebook_edit", notebook_path="n.ipynb", cell_id=cell, new_source="n")
        assert result.code is None, result.content


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"new_source": "n"}, "cell_id is required for edit_mode replace"),
        ({"new_source": "n", "edit_mode": "delete"}, "cell_id is required for edit_mode delete"),
        ({"new_source": "n", "edit_mode": "insert"}, "cell_type is required"),
        ({"new_source": "n", "edit_mode": "append"}, "must be one of"),
        ({"new_source": "n", "cell_type": "raw", "cell_id": "a"}, "must be one of"),
        ({"cell_id": "a"}, "new_source is required"),
        ({"cell_id": "c", "new_source": "text"}, "no change"),
    ],
)
def test_incomplete_arguments(work: Work, given: dict[str, Any], said: str) -> None:
    """What says too little is refused with what is missing."""
    result = work.call("notebook_edit", notebook_path="n.ipynb", **given)
    assert result.code is Code.INVALID_ARGUMENTS
    assert said in str(result.content)
    assert (work.root / "n.ipynb").read_text() == TEXT


def test_an_unknown_cell_is_told_with_those_there_are(work: Work) -> None:
    """The refusal of an unknown id names the ids of the notebook."""
    result = work.call("notebook_edit", notebook_path="n.ipynb", cell_id="x", new_source="n")
    assert result.code is Code.NO_MATCH
    assert "The ids are: a, b, c." in str(result.content)
