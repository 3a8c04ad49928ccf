"""The `standard` toolset: snake_case names, text for the model and data for the host."""

from __future__ import annotations

from executor.tool import Order
from executor.tools import (
    background,
    commands,
    consent,
    files,
    loops,
    notebook,
    planning,
    projects,
    search,
)
from executor.toolsets.building import Shown

NAME = "standard"

SAFE, LAST = Order.SAFE, Order.LAST

TOOLS: tuple[Shown, ...] = (
    Shown(
        name="read_file",
        arguments=files.ReadFile,
        run=files.read_file,
        order=SAFE,
        actions=files.reads_file,
    ),
    Shown(
        name="write_file",
        arguments=files.WriteFile,
        run=files.write_file,
        actions=files.writes_file,
        can_be_tried=True,
    ),
    Shown(
        name="edit_file",
        arguments=files.EditFile,
        run=files.edit_file,
        actions=files.writes_file,
        can_be_tried=True,
    ),
    Shown(
        name="notebook_edit",
        arguments=notebook.NotebookEdit,
        run=notebook.notebook_edit,
        actions=notebook.edits_notebook,
        can_be_tried=True,
    ),
    Shown(
        name="list_directory",
        arguments=files.ListDirectory,
        run=files.list_directory,
        order=SAFE,
        actions=files.lists_directory,
    ),
    Shown(
        name="delete_file",
        arguments=files.DeleteFile,
        run=files.delete_file,
        actions=files.deletes_file,
        can_be_tried=True,
    ),
    Shown(
        name="move_file",
        arguments=files.MoveFile,
        run=files.move_file,
        actions=files.moves_file,
        can_be_tried=True,
    ),
    Shown(
        name="glob",
        arguments=search.Glob,
        run=search.glob,
        order=SAFE,
        actions=search.lists_names,
    ),
    Shown(
        name="grep",
        arguments=search.Grep,
        run=search.grep,
        order=SAFE,
        actions=search.searches,
    ),
    Shown(
        name="run_command",
        arguments=commands.RunCommand,
        run=commands.run_command,
        actions=commands.runs_command,
        prepare=background.readable,
    ),
    Shown(
        name="run_command_isolated",
        arguments=commands.RunCommand,
        run=commands.run_command_isolated,
        actions=commands.runs_command,
        prepare=background.readable,
    ),
    Shown(
        name="task_output",
        arguments=background.TaskOutput,
        run=background.task_output,
        order=SAFE,
    ),
    # What comes after it may need the port or the file that the task holds: in order.
    Shown(name="kill_shell", arguments=background.KillShell, run=background.kill_shell),
    Shown(
        name="build",
        arguments=projects.ProjectCommand,
        run=projects.build,
        actions=projects.runs_command,
        prepare=projects.build_command,
    ),
    Shown(
        name="test",
        arguments=projects.ProjectCommand,
        run=projects.test,
        actions=projects.runs_command,
        prepare=projects.test_command,
    ),
    Shown(
        name="validate",
        arguments=projects.ProjectCommand,
        run=projects.validate,
        actions=projects.runs_command,
        prepare=projects.validate_command,
    ),
    Shown(
        name="run_code",
        arguments=commands.RunCode,
        run=commands.run_code,
        actions=commands.runs_code,
    ),
    Shown(
        name="query_loop",
        arguments=loops.QueryLoop,
        run=loops.query_loop,
        order=SAFE,
        unavailable=loops.alone,
    ),
    Shown(
        name="share_data",
        arguments=loops.ShareData,
        run=loops.share_data,
        unavailable=loops.alone,
    ),
    Shown(
        name="ask_user_question",
        arguments=consent.AskUserQuestion,
        run=consent.ask_user_question,
        order=Order.BARRIER,
    ),
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
