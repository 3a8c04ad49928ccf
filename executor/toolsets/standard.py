"""The `standard` toolset: snake_case names, text for the model and data for the host."""

from __future__ import annotations

import inspect
from typing import NamedTuple

from executor.catalog import Catalog, ToolEntry
from executor.model import Limits, plain
from executor.tool import Arguments, Registry, Run, Tool, schema_of
from executor.tools import commands, files, planning, search

NAME = "standard"


class _Entry(NamedTuple):
    name: str
    arguments: type[Arguments]
    run: Run
    is_safe: bool = False
    is_last: bool = False


_TOOLS = (
    _Entry("read_file", files.ReadFile, files.read_file, is_safe=True),
    _Entry("write_file", files.WriteFile, files.write_file),
    _Entry("edit_file", files.EditFile, files.edit_file),
    _Entry("list_directory", files.ListDirectory, files.list_directory, is_safe=True),
    _Entry("delete_file", files.DeleteFile, files.delete_file),
    _Entry("move_file", files.MoveFile, files.move_file),
    _Entry("glob", search.Glob, search.glob, is_safe=True),
    _Entry("grep", search.Grep, search.grep, is_safe=True),
    _Entry("run_command", commands.RunCommand, commands.run_command),
    _Entry("run_code", commands.RunCode, commands.run_code),
    _Entry("complete_task", planning.CompleteTask, planning.complete_task, is_last=True),
)


def registry(catalog: Catalog, limits: Limits | None = None) -> Registry:
    """The tools in the order in which the model sees them.

    Args:
        catalog: the checked catalog.
        limits: of the loop; its call timeout stands in the descriptions.
    """
    limits = limits or Limits()
    return Registry.from_tools(_tool(item, catalog.tools[item.name], limits) for item in _TOOLS)


def _tool(item: _Entry, entry: ToolEntry, limits: Limits) -> Tool:
    schema = schema_of(item.arguments)
    for name, per_second in (("timeout_ms", 1000), ("timeout", 1)):
        part = schema["properties"].get(name)
        if part is None:
            continue
        default = limits.call_timeout or entry.timeout_ms / 1000
        part["description"] = part["description"].format(default=plain(default * per_second))
        if entry.max_timeout_ms is not None:
            part["maximum"] = entry.max_timeout_ms * per_second // 1000
    return Tool(
        name=item.name,
        description=entry.description or inspect.getdoc(item.run) or "",
        schema=schema,
        arguments=item.arguments,
        run=item.run,
        canonical=item.name,
        entry=entry,
        is_safe=item.is_safe,
        is_last=item.is_last,
    )
