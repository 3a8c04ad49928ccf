"""The `standard` toolset: snake_case names, text for the model and data for the host."""

from __future__ import annotations

from executor.tool import Order
from executor.tools import commands, files, planning, search
from executor.toolsets.building import Shown

NAME = "standard"

SAFE, LAST = Order.SAFE, Order.LAST

TOOLS: tuple[Shown, ...] = (
    Shown(name="read_file", arguments=files.ReadFile, run=files.read_file, order=SAFE),
    Shown(name="write_file", arguments=files.WriteFile, run=files.write_file),
    Shown(name="edit_file", arguments=files.EditFile, run=files.edit_file),
    Shown(
        name="list_directory",
        arguments=files.ListDirectory,
        run=files.list_directory,
        order=SAFE,
    ),
    Shown(name="delete_file", arguments=files.DeleteFile, run=files.delete_file),
    Shown(name="move_file", arguments=files.MoveFile, run=files.move_file),
    Shown(name="glob", arguments=search.Glob, run=search.glob, order=SAFE),
    Shown(name="grep", arguments=search.Grep, run=search.grep, order=SAFE),
    Shown(name="run_command", arguments=commands.RunCommand, run=commands.run_command),
    Shown(name="run_code", arguments=commands.RunCode, run=commands.run_code),
    Shown(name="todo_write", arguments=planning.TodoWrite, run=planning.todo_write),
    Shown(name="create_plan", arguments=planning.CreatePlan, run=planning.create_plan),
    Shown(name="create_spec", arguments=planning.CreateSpec, run=planning.create_spec),
    Shown(name="create_phase", arguments=planning.CreatePhase, run=planning.create_phase),
    Shown(
        name="complete_task",
        arguments=planning.CompleteTask,
        run=planning.complete_task,
        order=LAST,
        unavailable=planning.not_validated,
    ),
)
