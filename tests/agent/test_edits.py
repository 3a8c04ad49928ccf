"""Several edits of one file in one operation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.agent.operation import Failure
from tests.agent.driver import Tree

PIECES = st.text("ab\n\r", max_size=3)
EDITS = st.lists(st.tuples(PIECES.filter(bool), PIECES, st.booleans()), min_size=1, max_size=4)


def edited(tree: Tree, name: str, edits: list[tuple[str, str, bool]]) -> dict[str, Any]:
    """The reply to all of the edits at once."""
    body = "".join(old + new for old, new, _ in edits).encode()
    sizes = [[len(old.encode()), len(new.encode()), everywhere] for old, new, everywhere in edits]
    reply, _ = tree.call("edit", body, path=name, edits=sizes, expect=tree.hash(name))
    return reply


def one_by_one(tree: Tree, name: str, edits: list[tuple[str, str, bool]]) -> int:
    """Replacements of the same edits, each an operation of its own."""
    count = 0
    for edit in edits:
        count += edited(tree, name, [edit])["replacements"]
    return count


@settings(deadline=None)
@given(st.text("ab\n\r", max_size=30), EDITS)
def test_edits_at_once_are_the_edits_one_by_one(
    text: str, edits: list[tuple[str, str, bool]]
) -> None:
    """All of them come to the same content, or the file is as it was."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Tree(Path(directory))
        try:
            check(tree, text, edits)
        finally:
            tree.workspace.close()


def check(tree: Tree, text: str, edits: list[tuple[str, str, bool]]) -> None:
    for name in ("at-once", "one-by-one"):
        tree.write(name, text)
    try:
        count = one_by_one(tree, "one-by-one", edits)
    except Failure:
        with pytest.raises(Failure):
            edited(tree, "at-once", edits)
        assert (tree.path / "at-once").read_bytes() == text.encode()
        return
    reply = edited(tree, "at-once", edits)
    content = (tree.path / "at-once").read_bytes()
    assert content == (tree.path / "one-by-one").read_bytes()
    assert reply["replacements"] == count
    assert (reply["original_size"], reply["size"]) == (len(text), len(content))


def test_the_edit_that_does_not_fit_is_named(tree: Tree) -> None:
    """Which of them it is, and that nothing was changed, is in the message."""
    tree.write("f", "one two\n")
    with pytest.raises(Failure, match=r"Edit 2 of 3: old_string not found.* Nothing was changed"):
        edited(tree, "f", [("one", "1", False), ("three", "3", False), ("two", "2", False)])
    assert (tree.path / "f").read_text() == "one two\n"
