"""The change of one cell of a Jupyter notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from executor.errors import Code, ToolError
from executor.results import shown_name
from executor.tool import Action, Arguments, Context, Outcome, Path, Text, Touches
from executor.tools import files


class NotebookEdit(Arguments):
    """Arguments of `notebook_edit`."""

    path: Path = Field(
        alias="notebook_path", description="Path of the notebook (.ipynb) relative to worktree"
    )
    new_source: Text = Field(description="New source of the cell; of no use for delete")
    cell_id: Text | None = Field(
        None,
        description="Id of the cell, as read_file shows it. For insert: the new cell comes after "
        "it, or first if it is left out",
    )
    cell_type: Literal["code", "markdown"] | None = Field(
        None, description="Type of the cell (default: as it is). Required for insert"
    )
    edit_mode: Literal["replace", "insert", "delete"] | None = Field(
        None, description="What to do (default: replace)"
    )


def edits_notebook(context: Context, given: NotebookEdit) -> Sequence[Action]:
    """What `notebook_edit` is going to do."""
    return [Touches(context.path_to_write(given.path), "write")]


_DONE = {
    "replace": "Replaced the source of cell {cell}",
    "insert": "Inserted cell {cell}",
    "delete": "Deleted cell {cell}",
}


async def notebook_edit(context: Context, given: NotebookEdit) -> Outcome:
    """Replace, insert or delete one cell of a Jupyter notebook. Requires prior read_file call.

    Nothing but this cell changes in the file. A code cell whose source is replaced loses its
    outputs. Cells without an id are called cell-0, cell-1, ... by their place.
    """
    path = files.file_path(context, given.path)
    mode = given.edit_mode or "replace"
    _require_complete(given, mode)
    source = "" if mode == "delete" else given.new_source
    asked = {"path": path, "mode": mode, "cell": given.cell_id, "type": given.cell_type}
    async with context.session.lock(path):
        try:
            answer = await files.change(
                context, "edit_notebook", asked, source.encode(), files.seen_hash
            )
        except ToolError as error:
            if error.code is Code.NOT_READ:
                raise ToolError(Code.NOT_READ, files.NOT_READ, error.details) from error
            raise
        value = answer.value
        context.session.edited(path, value["hash"], value.get("key"))
    name = shown_name(context.shown(path))
    done = _DONE[mode].format(cell=shown_name(value["cell"]))
    facts = {
        "path": path,
        "edit_mode": mode,
        "cell_id": value["cell"],
        "cell_type": value["type"],
        "cells": value["cells"],
        "size": value["size"],
        "hash": value["hash"],
    }
    return Outcome(f"{done} in {name}, which has {value['cells']} cells now", facts)


def _require_complete(given: NotebookEdit, mode: str) -> None:
    """Refuse what says too little, or what could not be done."""
    if mode == "insert" and given.cell_type is None:
        raise ToolError(Code.INVALID_ARGUMENTS, "cell_type is required for edit_mode insert.")
    if mode != "insert" and given.cell_id is None:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"cell_id is required for edit_mode {mode}; read_file shows the ids.",
        )
