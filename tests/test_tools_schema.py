"""What models are shown: names, order, descriptions and schemas of the `standard` toolset."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest

from executor import toolsets
from executor.catalog import PACKAGED, load, parse
from executor.errors import ConfigError
from executor.model import Limits
from executor.tool import Registry, schema_of
from executor.tools import commands

TOOLS = toolsets.registry("standard", load())
SCHEMAS = {tool.name: tool.schema for tool in TOOLS.all()}

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}


def text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


def number(description: str) -> dict[str, str]:
    return {"type": "integer", "description": description}


PATH = text("File path relative to worktree")

# Properties and required names, word for word where the seed gives words.
SEED: dict[str, tuple[dict[str, dict[str, Any]], list[str]]] = {
    "read_file": (
        {
            "path": PATH,
            "offset": number("Line number to start reading from (1-indexed)"),
            "limit": number("Max lines to read (default: 2000)"),
            "encoding": {"type": "string", "enum": ["utf-8", "base64"]},
            "pages": TEXT,
        },
        ["path"],
    ),
    "write_file": (
        {
            "path": PATH,
            "content": text("Content to write"),
            "encoding": {"type": "string", "enum": ["utf-8", "base64"]},
            "createDirs": FLAG,
        },
        ["path", "content"],
    ),
    "edit_file": (
        {
            "path": PATH,
            "old_string": text("Exact string to find and replace"),
            "new_string": text("Replacement string"),
            "replace_all": {
                "type": "boolean",
                "description": "Replace all occurrences (default: false)",
            },
        },
        ["path", "old_string", "new_string"],
    ),
    "notebook_edit": (
        {
            "notebook_path": TEXT,
            "new_source": TEXT,
            "cell_id": TEXT,
            "cell_type": {"type": "string", "enum": ["code", "markdown"]},
            "edit_mode": {"type": "string", "enum": ["replace", "insert", "delete"]},
        },
        ["notebook_path", "new_source"],
    ),
    "list_directory": (
        {
            "path": text("Directory path relative to worktree (default: .)"),
            "recursive": FLAG,
            "includeHidden": FLAG,
        },
        [],
    ),
    "delete_file": ({"path": TEXT, "recursive": FLAG}, ["path"]),
    "move_file": ({"from": TEXT, "to": TEXT, "overwrite": FLAG}, ["from", "to"]),
    "glob": (
        {
            "pattern": text("Glob pattern to match"),
            "path": text("Base directory (default: worktree root)"),
        },
        ["pattern"],
    ),
    "grep": (
        {
            "pattern": text("Regex pattern to search for"),
            "path": text("File or directory to search (default: worktree)"),
            "file_pattern": text("Glob to filter files (e.g., *.rs)"),
            "context": number("Lines of context around matches (default: 2)"),
            "ignore_case": FLAG,
            "literal": FLAG,
            "max_results": {"type": "integer"},
        },
        ["pattern"],
    ),
    "lsp": (
        {
            "operation": {
                "type": "string",
                "enum": [
                    "goto_definition",
                    "hover",
                    "find_references",
                    "diagnostics",
                    "document_symbols",
                    "rename_preview",
                ],
            },
            "path": PATH,
            "line": {"type": "integer", "minimum": 1},
            "column": {"type": "integer", "minimum": 1},
            "new_name": {"type": "string", "minLength": 1},
        },
        ["operation", "path"],
    ),
    "run_command": (
        {
            "command": text("Shell command to execute"),
            "timeout_ms": number("Timeout in milliseconds (default: 120000)"),
        },
        ["command"],
    ),
    "run_command_isolated": (
        {
            "command": text("Shell command to execute"),
            "timeout_ms": number("Timeout in milliseconds (default: 120000)"),
        },
        ["command"],
    ),
    "task_output": (
        {
            "task_id": text("The task ID to get output from"),
            "block": FLAG,
            "timeout": {"type": "number", "minimum": 0, "maximum": 600000},
        },
        ["task_id"],
    ),
    "kill_shell": (
        {"shell_id": text("The ID of the background shell to kill")},
        ["shell_id"],
    ),
    **dict.fromkeys(
        ("build", "test", "validate"),
        (
            {
                "command": TEXT,
                "timeout_ms": number("Timeout in milliseconds (default: 600000)"),
            },
            [],
        ),
    ),
    "run_code": (
        {
            "language": {"type": "string", "enum": ["python", "bash"]},
            "code": TEXT,
            "args": {"type": "array", "items": TEXT},
            "env": {"type": "object", "additionalProperties": TEXT},
            "timeout": {"type": "number"},
        },
        ["language", "code"],
    ),
    "git_status": ({}, []),
    "git_diff": (
        {
            "paths": {"type": "array", "items": TEXT},
            "staged": {"type": "boolean"},
            "ref": TEXT,
            "stat": {"type": "boolean"},
        },
        [],
    ),
    "git_log": (
        {
            "max_count": {"type": "integer", "minimum": 1, "maximum": 1000},
            "ref": TEXT,
            "paths": {"type": "array", "items": TEXT},
            "oneline": {"type": "boolean"},
        },
        [],
    ),
    "git_commit": (
        {
            "message": TEXT,
            "paths": {"type": "array", "items": TEXT},
            "all": {"type": "boolean"},
        },
        ["message"],
    ),
    "git_push": ({"remote": TEXT, "branch": TEXT}, []),
    "web_fetch": (
        {
            "url": TEXT,
            "method": {"type": "string", "enum": ["GET", "POST"]},
            "headers": {"type": "object", "additionalProperties": {"type": "string"}},
            "body": TEXT,
            "timeout": {"type": "number"},
        },
        ["url"],
    ),
    "web_search": ({"query": TEXT, "numResults": {"type": "integer"}}, ["query"]),
    "query_loop": (
        {
            "target_exec_id": text("Execution ID of the loop to query"),
            "question": text("Question to ask"),
            "timeout_ms": number("Timeout for reply (default: 30000)"),
        },
        ["target_exec_id", "question"],
    ),
    "share_data": (
        {
            "target_exec_ids": {
                "type": "array",
                "items": TEXT,
                "description": "Execution IDs of loops to share with",
            },
            "data_type": text("Type of data (e.g., 'api_schema', 'config')"),
            "data": {"description": "Data to share (JSON)"},
        },
        ["target_exec_ids", "data_type", "data"],
    ),
    "ask_user_question": ({"questions": {"type": "array"}}, ["questions"]),
    "todo_write": (
        {
            "todos": {
                "type": "array",
                "description": "The complete list of todos (replaces existing list)",
            }
        },
        ["todos"],
    ),
    "create_plan": (
        {"title": TEXT, "overview": TEXT, "specs": {"type": "array"}},
        ["title", "overview", "specs"],
    ),
    "create_spec": (
        {
            "name": TEXT,
            "title": TEXT,
            "overview": TEXT,
            "phases": {"type": "array", "minItems": 3, "maxItems": 7},
        },
        ["name", "title", "overview", "phases"],
    ),
    "create_phase": (
        {
            "name": TEXT,
            "title": TEXT,
            "objective": TEXT,
            "tasks": {"type": "array"},
            "validation_command": TEXT,
        },
        ["name", "title", "objective", "tasks", "validation_command"],
    ),
    "complete_task": (
        {"summary": text("Brief summary of what was accomplished")},
        ["summary"],
    ),
}

DESCRIPTIONS = {
    "read_file": "Read a file's contents with line numbers. Required before editing.",
    "edit_file": "Replace a specific string in a file. Requires prior read_file call.",
    "list_directory": "List files and directories in a path.",
    "glob": "Find files matching a glob pattern (e.g., **/*.rs)",
    "grep": "Search file contents with regex. Returns matching lines with context.",
    "run_command": "Execute a shell command in the worktree. Use for git, build tools, tests.",
    "run_command_isolated": "Execute command without network",
    "build": "Run build command",
    "test": "Run test suite",
    "validate": "Run validation command",
    "query_loop": "Ask another running loop a question. Returns their reply.",
    "share_data": "Share data with other loops (e.g., API schemas, config values).",
    "create_plan": "Create plan with specs. Structured output - no markdown parsing.",
    "create_spec": "Create spec with phases. Structured output - no markdown parsing.",
    "create_phase": "Create phase with tasks. Structured output - no markdown parsing.",
    "complete_task": "Signal that the current task/phase is complete. Only use when validation "
    "passes.",
}


def test_names_come_in_a_steady_order() -> None:
    """The toolset has exactly these tools, in this order."""
    assert TOOLS.list() == tuple(SEED)


@pytest.mark.parametrize("name", SEED)
def test_schemas_are_the_seeds(name: str) -> None:
    """Every property that a seed gives is there as the seed writes it; required ones agree."""
    properties, required = SEED[name]
    schema = SCHEMAS[name]
    assert schema["type"] == "object"
    assert schema.get("required", []) == required
    for key, expected in properties.items():
        found = schema["properties"][key]
        assert {part: found.get(part) for part in expected} == expected, key


@pytest.mark.parametrize("name", SEED)
def test_schemas_are_plain(name: str) -> None:
    """Nothing is shown that validation does not mean: no titles, nulls, defaults, unknowns."""
    schema = SCHEMAS[name]
    assert schema["additionalProperties"] is False
    for part in schema["properties"].values():
        assert part.get("type") != "null" and part["description"]
        assert not {"title", "default", "anyOf"} & part.keys()


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_are_the_seeds(name: str) -> None:
    """The description begins with the seed's sentence; what follows is a paragraph of its own."""
    tool = TOOLS.get(name)
    assert tool is not None
    assert tool.description.partition("\n\n")[0] == DESCRIPTIONS[name]


def test_timeouts_in_schemas_are_the_ones_that_hold() -> None:
    """Default and ceiling of a command's timeout are those of catalog and limits."""
    packaged = (PACKAGED, standard_text())
    catalog = parse([packaged, ("my", "[tools.run_command]\nmax_timeout_ms = 300000\n")])
    tools = toolsets.registry("standard", catalog, Limits(call_timeout=7))
    part = _schema(tools, "run_command")["properties"]["timeout_ms"]
    assert (part["description"], part["maximum"]) == (
        "Timeout in milliseconds (default: 7000)",
        300_000,
    )
    assert SCHEMAS["run_code"]["properties"]["timeout"]["maximum"] == 600


def test_a_schema_that_is_changed_is_nobody_elses() -> None:
    """Schemas are made once; what one loop does to its copy stays with it."""
    first, second = (schema_of(commands.RunCommand) for _ in range(2))
    assert first == second
    first["properties"]["command"]["description"] = "changed"
    assert second == schema_of(commands.RunCommand) != first


def test_a_catalog_description_replaces_the_text() -> None:
    """The user's words win over the tool's own."""
    catalog = parse([(PACKAGED, standard_text()), ("my", '[tools.glob]\ndescription = "Mine"\n')])
    tool = toolsets.registry("standard", catalog).get("glob")
    assert tool is not None and tool.description == "Mine"


def test_definitions_have_the_shapes_of_their_apis() -> None:
    """Anthropic's form has input_schema, the bare function form has parameters."""
    anthropic, function = TOOLS.definitions()[0], TOOLS.to_openai_functions()[0]
    assert set(anthropic) == {"name", "description", "input_schema"}
    assert set(function) == {"name", "description", "parameters"}
    assert anthropic["input_schema"] == function["parameters"] == SCHEMAS["read_file"]


def test_a_name_is_registered_once() -> None:
    """A second tool of a name is a fault that names both, unless it is to replace the first."""
    registry = Registry.from_tools(TOOLS.all())
    tool = TOOLS.all()[0]
    with pytest.raises(ConfigError, match=r"two tools are called 'read_file': .*read_file and"):
        registry.register(tool)
    registry.register(tool, replace=True)
    assert registry.list() == TOOLS.list()


def standard_text() -> str:
    return resources.files("executor").joinpath(PACKAGED).read_text("utf-8")


def _schema(registry: Registry, name: str) -> Any:
    tool = registry.get(name)
    assert tool is not None
    return tool.schema
