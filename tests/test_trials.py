"""Nobody is asked about a change that would be refused anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.errors import Code
from executor.model import ApprovalAnswer
from tests.agent.driver import snapshot
from tests.test_approvals import Recorder, scene

NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
CELL = {
    "notebook_path": "n.ipynb",
    "new_source": "1",
    "cell_type": "code",
    "edit_mode": "insert",
}
READ: tuple[str, dict[str, Any]] = ("read_file", {"path": "f"})


def worktree(directory: Path) -> Path:
    """Two files, a directory with one, and a notebook."""
    root = directory / "worktree"
    (root / "d").mkdir(parents=True)
    (root / "f").write_text("one\ntwo\ntwo\n")
    (root / "g").write_text("g\n")
    (root / "d/h").write_text("h\n")
    (root / "n.ipynb").write_text(NOTEBOOK)
    return root


def edit(old: str, new: str) -> tuple[str, dict[str, Any]]:
    return "edit_file", {"path": "f", "old_string": old, "new_string": new}


@pytest.mark.parametrize(
    ("calls", "code"),
    [
        ([edit("one", "1")], Code.NOT_READ),
        ([READ, edit("three", "3")], Code.NO_MATCH),
        ([READ, edit("two", "2")], Code.AMBIGUOUS),
        ([READ, edit("one", "one")], Code.INVALID_ARGUMENTS),
        ([("write_file", {"path": "f", "content": "x"})], Code.NOT_READ),
        ([("write_file", {"path": "d", "content": "x"})], Code.NOT_A_FILE),
        ([("delete_file", {"path": "none"})], Code.FILE_NOT_FOUND),
        ([("delete_file", {"path": "d"})], Code.NOT_A_FILE),
        ([("move_file", {"from": "none", "to": "x"})], Code.FILE_NOT_FOUND),
        ([("move_file", {"from": "f", "to": "g"})], Code.EXISTS),
        ([("move_file", {"from": "f", "to": "d", "overwrite": True})], Code.EXISTS),
        ([("move_file", {"from": "d", "to": "d/e"})], Code.INVALID_ARGUMENTS),
        ([("notebook_edit", CELL)], Code.NOT_READ),
    ],
)
def test_what_would_be_refused_is_not_asked_about(
    tmp_path: Path, calls: list[tuple[str, dict[str, Any]]], code: Code
) -> None:
    """The refusal is that of the call itself, and nothing was changed to find it out."""
    root = worktree(tmp_path)
    before = snapshot(root)
    recorder = Recorder()
    results, _ = scene(tmp_path, recorder, *calls, ask=("write_file", "move_file", "delete_file"))
    assert (results[-1].code, recorder.requests) == (code, []), results[-1].content
    assert snapshot(root) == before


@pytest.mark.parametrize("is_approved", [True, False])
@pytest.mark.parametrize(
    ("call", "made"),
    [
        (edit("one", "1"), "f"),
        (("write_file", {"path": "f", "content": "x"}), "f"),
        (("write_file", {"path": "new/deep/x", "content": "x"}), "new/deep/x"),
        (("move_file", {"from": "f", "to": "new/deep/x"}), "new/deep/x"),
        (("move_file", {"from": "f", "to": "g", "overwrite": True}), "g"),
        (("delete_file", {"path": "f"}), None),
        (("delete_file", {"path": "d", "recursive": True}), None),
    ],
)
def test_what_can_be_done_is_done_once_it_is_approved(
    tmp_path: Path, call: tuple[str, dict[str, Any]], made: str | None, is_approved: bool
) -> None:
    """One question; a no leaves all as it was, directories on the way included."""
    root = worktree(tmp_path)
    before = snapshot(root)
    recorder = Recorder(ApprovalAnswer(approved=is_approved))
    results, _ = scene(tmp_path, recorder, READ, call, ask=("write_file", "move_file"))
    assert len(recorder.requests) == 1
    if is_approved:
        assert results[-1].code is None, results[-1].content
        assert snapshot(root) != before
        assert made is None or (root / made).is_file()
    else:
        assert results[-1].code is Code.REJECTED
        assert snapshot(root) == before


def test_a_trial_is_no_reading_and_no_writing(tmp_path: Path) -> None:
    """What was refused is not known to the loop afterwards."""
    worktree(tmp_path)
    recorder = Recorder(ApprovalAnswer(approved=False))
    calls = [READ, edit("one", "1"), edit("one", "1")]
    results, _ = scene(tmp_path, recorder, *calls)
    assert [result.code for result in results] == [None, Code.REJECTED, None]
