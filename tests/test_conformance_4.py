"""The fourth specification of tools, statement by statement, as `test_conformance.py` does it.

A row is one statement: a call and what becomes of it, something that is looked at, or the test
that has it. `docs/conformance.md` says where the statement does not hold, and why.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from executor.catalog import PACKAGED, load, parse
from executor.errors import Code
from executor.session import Session
from executor.tool import Order
from tests.loops import Work, open_work
from tests.test_conformance import (
    FILES,
    Call,
    Elsewhere,
    Is,
    Loops,
    Row,
    Says,
    check,
    functions_of,
    refused,
    tools,
)
from tests.test_registry import S4_CATALOG

CATALOG = load()
WRITTEN: Mapping[str, Mapping[str, Any]] = tomllib.loads(S4_CATALOG)["tools"]
"""The specification's own catalog file."""

TEXT: Mapping[str, Any] = {"type": "string"}
NUMBER: Mapping[str, Any] = {"type": "integer"}
FLAG: Mapping[str, Any] = {"type": "boolean"}


def listed(required: Sequence[str], *optional: str, **more: Any) -> dict[str, Any]:
    """A list of objects, all of whose properties are texts unless it says otherwise."""
    properties = {**dict.fromkeys((*required, *optional), TEXT), **more}
    items = {"type": "object", "properties": properties, "required": [*required]}
    return {"type": "array", "items": items}


NAMED = ("name", "title", "description")
DEFINITIONS: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]] = {
    "read_file": ({"path": TEXT, "offset": NUMBER, "limit": NUMBER}, ["path"]),
    "write_file": ({"path": TEXT, "content": TEXT}, ["path", "content"]),
    "edit_file": (
        {"path": TEXT, "old_string": TEXT, "new_string": TEXT, "replace_all": FLAG},
        ["path", "old_string", "new_string"],
    ),
    "glob": ({"pattern": TEXT, "path": TEXT}, ["pattern"]),
    "grep": (
        {"pattern": TEXT, "path": TEXT, "file_pattern": TEXT, "context": NUMBER},
        ["pattern"],
    ),
    "run_command": ({"command": TEXT, "timeout_ms": NUMBER}, ["command"]),
    "complete_task": ({"summary": TEXT}, ["summary"]),
    "create_plan": (
        {
            "title": TEXT,
            "overview": TEXT,
            "specs": listed(NAMED, dependencies={"type": "array", "items": TEXT}),
        },
        ["title", "overview", "specs"],
    ),
    "create_spec": (
        {
            "name": TEXT,
            "title": TEXT,
            "overview": TEXT,
            "phases": {**listed(NAMED, "validation"), "minItems": 3, "maxItems": 7},
        },
        ["name", "title", "overview", "phases"],
    ),
    "create_phase": (
        {
            "name": TEXT,
            "title": TEXT,
            "objective": TEXT,
            "tasks": listed(
                ["description"],
                "file",
                action={"type": "string", "enum": ["create", "modify", "delete"]},
            ),
            "validation_command": TEXT,
        },
        ["name", "title", "objective", "tasks", "validation_command"],
    ),
}
"""Properties of each tool's schema, and those that are required, in their order."""

DESCRIPTIONS = {
    "create_plan": "Create plan with specs. Structured output - no markdown parsing.",
    "create_spec": "Create spec with phases. Structured output - no markdown parsing.",
    "create_phase": "Create phase with tasks. Structured output - no markdown parsing.",
    "run_command_isolated": "Execute command without network",
    "build": "Run build command",
    "test": "Run test suite",
    "validate": "Run validation command",
}
"""Those that no other specification words otherwise."""

LOOPS = {
    "plan": ["read_file", "write_file", "glob", "grep", "create_plan", "complete_task"],
    "spec": [
        *("read_file", "write_file", "edit_file", "list_directory", "glob", "grep"),
        *("run_command", "create_spec", "complete_task"),
    ],
    "phase": [
        *("read_file", "write_file", "edit_file", "list_directory", "glob", "grep"),
        *("run_command", "create_phase", "complete_task"),
    ],
    "code": [
        *("read_file", "write_file", "edit_file", "list_directory", "glob", "grep"),
        *("run_command", "build", "test", "complete_task"),
    ],
}


def has(expected: Any, found: Any) -> bool:
    """What is shown has all that the specification writes; texts and bounds may be added."""
    if isinstance(expected, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and has(value, found[key]) for key, value in expected.items()
        )
    return bool(expected == found)


def defined(name: str) -> Callable[[], bool]:
    """The tool has the arguments, types, bounds and required names of its definition."""

    def holds() -> bool:
        properties, required = DEFINITIONS[name]
        schema = tools("standard")[name].schema
        return has({"type": "object", "properties": properties, "required": required}, schema)

    return holds


def catalogued(name: str) -> Callable[[], bool]:
    """Lane, timeout and limit are those of the specification's catalog."""

    def holds() -> bool:
        entry, written = CATALOG.tools[name], WRITTEN[name]
        values = {key: getattr(entry, key) for key in written if key != "description"}
        return {key: str(value) for key, value in values.items()} == {
            key: str(written[key]) for key in values
        }

    return holds


def has_tools(kind: str) -> Callable[[], bool]:
    return lambda: list(CATALOG.loop_types[kind].tools) == LOOPS[kind]


def says(name: str) -> Callable[[], bool]:
    return lambda: tools("standard")[name].description.startswith(DESCRIPTIONS[name])


def is_refused(name: str, given: Mapping[str, Any], said: str) -> Callable[[], bool]:
    return lambda: said in refused("standard", name, given)


def read(path: str = "a.txt", **more: Any) -> Call:
    return "read_file", {"path": path, **more}


def write(path: str, content: str) -> Call:
    return "write_file", {"path": path, "content": content}


def edit(old: str, new: str, path: str = "a.txt", **more: Any) -> Call:
    return "edit_file", {"path": path, "old_string": old, "new_string": new, **more}


def grep(pattern: str, **more: Any) -> Call:
    return "grep", {"pattern": pattern, **more}


def run(command: str, **more: Any) -> Call:
    return "run_command", {"command": command, **more}


def glob(pattern: str, **more: Any) -> Call:
    return "glob", {"pattern": pattern, **more}


ESCAPES = "ln -s /etc/passwd out; ln -s /etc outside; ln -s src/x.py inside"
WRITES_ALL = "[tools.read_file]\nmax_output_bytes = 2000\ntimeout_ms = 7\nlane = 'heavy'\n"


def changed(text: str) -> Any:
    packaged = resources.files("executor").joinpath(PACKAGED).read_text("utf-8")
    return parse([(PACKAGED, packaged), ("my.toml", text)])


CATALOG_ROWS: tuple[Row, ...] = (
    Elsewhere(
        "4-catalog-file-loads",
        "test_registry",
        "test_a_catalog_as_the_fourth_specification_writes_it_loads",
    ),
    Is(
        "4-catalog-keys-win",
        lambda: (
            (entry := changed(WRITES_ALL).tools["read_file"]).max_output_bytes == 2000
            and (entry.timeout_ms, entry.lane) == (7, "heavy")
        ),
    ),
    Elsewhere(
        "4-catalog-description-is-shown",
        "test_tools_schema",
        "test_a_catalog_description_replaces_the_text",
    ),
    Is(
        "4-catalog-limit-where-none-is-written",
        lambda: all(
            CATALOG.tools[name].max_output_bytes == 30_000
            for name in WRITTEN
            if "max_output_bytes" not in WRITTEN[name]
        ),
    ),
    Is("4-catalog-read-file", catalogued("read_file")),
    Is("4-catalog-write-file", catalogued("write_file")),
    Is("4-catalog-edit-file", catalogued("edit_file")),
    Is("4-catalog-list-directory", catalogued("list_directory")),
    Is("4-catalog-glob", catalogued("glob")),
    Is("4-catalog-grep", catalogued("grep")),
    Is("4-catalog-run-command", catalogued("run_command")),
    Is("4-catalog-run-command-isolated", catalogued("run_command_isolated")),
    Is("4-catalog-web-fetch", catalogued("web_fetch")),
    Is("4-catalog-web-search", catalogued("web_search")),
    Is("4-catalog-build", catalogued("build")),
    Is("4-catalog-test", catalogued("test")),
    Is("4-catalog-validate", catalogued("validate")),
    Is("4-catalog-complete-task", catalogued("complete_task")),
    Is("4-catalog-create-plan", catalogued("create_plan")),
    Is("4-catalog-create-spec", catalogued("create_spec")),
    Is("4-catalog-create-phase", catalogued("create_phase")),
)

DEFINITION_ROWS: tuple[Row, ...] = (
    Elsewhere(
        "4-definitions-have-name-description-input-schema",
        "test_tools_schema",
        "test_definitions_have_the_shapes_of_their_apis",
    ),
    Is("4-read-file-arguments", defined("read_file")),
    Is("4-write-file-arguments", defined("write_file")),
    Is("4-edit-file-arguments", defined("edit_file")),
    Is("4-glob-arguments", defined("glob")),
    Is("4-grep-arguments", defined("grep")),
    Is("4-run-command-arguments", defined("run_command")),
    Is("4-complete-task-arguments", defined("complete_task")),
    Is("4-create-plan-arguments", defined("create_plan")),
    Is("4-create-spec-arguments", defined("create_spec")),
    Is("4-create-phase-arguments", defined("create_phase")),
    Is("4-create-plan-description", says("create_plan")),
    Is("4-create-spec-description", says("create_spec")),
    Is("4-create-phase-description", says("create_phase")),
    Is("4-run-command-isolated-description", says("run_command_isolated")),
    Is("4-build-description", says("build")),
    Is("4-test-description", says("test")),
    Is("4-validate-description", says("validate")),
    Elsewhere(
        "4-descriptions-of-the-first-specification",
        "test_tools_schema",
        "test_descriptions_are_the_seeds",
    ),
)

FILE_ROWS: tuple[Row, ...] = (
    # read_file
    Says("4-read-file-numbers-lines", [read()], text="     1│alpha\n     2│beta"),
    Says("4-read-file-offset-is-1-indexed", [read(offset=1, limit=1)], text="     1│alpha\n.*"),
    Says("4-read-file-offset", [read(offset=2)], text="     2│beta"),
    Is("4-read-file-offset-zero", is_refused("read_file", {"path": "a", "offset": 0}, "offset")),
    Says("4-read-file-offset-beyond-end", [read(offset=9)], code=Code.INVALID_ARGUMENTS),
    Says("4-read-file-limit", [read(limit=1)], text="     1│alpha\n.1 more line; .*"),
    Says(
        "4-read-file-limit-default",
        [run("seq 2001 > long.txt"), read("long.txt")],
        facts={"lines": 2000, "total_lines": 2001},
        text=".*  2000│2000\n.1 more line; continue with offset=2001.",
    ),
    Says(
        "4-read-file-line-of-2000-characters",
        [run("printf '%02000d\\n%02001d\\n' 0 0 > wide.txt"), read("wide.txt")],
        text=r"     1│0{2000}\n     2│0{2000}\.\.\. \[line is 2001 characters\]",
    ),
    Says("4-read-file-missing", [read("none")], code=Code.FILE_NOT_FOUND),
    # write_file
    Says(
        "4-write-file-tells-bytes",
        [write("new.txt", "é\n")],
        text="Wrote 3 bytes to new.txt",
        facts={"path": "new.txt", "size": 3, "created": True},
    ),
    Says("4-write-file-creates-parents", [write("x/y/z", "1")], after={"x/y/z": "1"}),
    Says(
        "4-write-file-over-unread",
        [write("a.txt", "x")],
        code=Code.NOT_READ,
        after={"a.txt": FILES["a.txt"]},
    ),
    Says("4-write-file-over-read", [read(), write("a.txt", "x")], after={"a.txt": "x"}),
    # edit_file
    Says(
        "4-edit-file-replaces",
        [read(), edit("alpha", "x")],
        text=r"Replaced 1 occurrence\(s\) in a.txt",
        after={"a.txt": "x\nbeta\n"},
    ),
    Says(
        "4-edit-file-not-found",
        [read(), edit("nope", "x")],
        code=Code.NO_MATCH,
        text="old_string not found in file.*",
        after={"a.txt": FILES["a.txt"]},
    ),
    Says(
        "4-edit-file-found-several-times",
        [read("b.txt"), edit("two", "x", "b.txt")],
        code=Code.AMBIGUOUS,
        text="old_string found 2 times.*replace_all.*",
        after={"b.txt": FILES["b.txt"]},
    ),
    Says(
        "4-edit-file-replace-all-default",
        [read("b.txt"), edit("two", "x", "b.txt", replace_all=False)],
        code=Code.AMBIGUOUS,
    ),
    Says(
        "4-edit-file-replace-all",
        [read("b.txt"), edit("two", "x", "b.txt", replace_all=True)],
        after={"b.txt": "one\nx\nx\n"},
    ),
    Says("4-edit-file-missing", [edit("a", "b", "none")], code=Code.FILE_NOT_FOUND),
    # list_directory
    Says("4-list-directory-default", [("list_directory", {})], text="a.txt\nb.txt\n.*src/"),
    Says("4-list-directory-path", [("list_directory", {"path": "src"})], text="x.py\ny.js"),
    # glob
    Says("4-glob-example", [glob("**/*.py")], text="src/x.py"),
    Says("4-glob-default-is-worktree", [glob("*.txt")], text="a.txt\nb.txt\nc.txt\nempty.txt"),
    Says("4-glob-path", [glob("*.js", path="src")], text="src/y.js"),
    Says("4-glob-nothing", [glob("*.rs")], text="No matches found"),
    # grep
    Says("4-grep-shows-line-numbers", [grep("gamma")], text="c.txt:1:gamma"),
    Says("4-grep-takes-a-regex", [grep("^g.m+a$")], text="c.txt:1:gamma"),
    Says("4-grep-path-is-a-file", [grep("beta", path="a.txt", context=0)], text="a.txt:2:beta"),
    Says("4-grep-path-is-a-directory", [grep("def", path="src", context=0)], text="src/x.py:1:.*"),
    Says(
        "4-grep-file-pattern",
        [grep("foo", file_pattern="*.js", context=0)],
        text=r"src/y.js:1:function foo\(\) \{\}",
    ),
    Says("4-grep-context", [grep("beta", context=1)], text="a.txt-1-alpha\na.txt:2:beta"),
    Says("4-grep-nothing", [grep("zzz")], text="No matches found"),
    Is("4-grep-needs-a-pattern", is_refused("grep", {}, "pattern is required")),
)

COMMAND_ROWS: tuple[Row, ...] = (
    Says("4-run-command-is-a-shells", [run("echo $((1 + 1)) | tr 2 3")], text="3\n"),
    Says("4-run-command-in-the-worktree", [run("ls src")], text="x.py\ny.js\n"),
    Says(
        "4-run-command-timeout-ms",
        [run("sleep 60", timeout_ms=200)],
        code=Code.TIMEOUT,
        text="Command timed out after 200ms.*",
    ),
    Is(
        "4-run-command-timeout-ms-default",
        lambda: (
            tools("standard")["run_command"].schema["properties"]["timeout_ms"]["description"]
            == "Timeout in milliseconds (default: 120000)"
        ),
    ),
    Says(
        "4-run-command-lane",
        [run("true")],
        facts={"lane": "no-net"},
    ),
    Says(
        "4-run-command-failure", [run("exit 3")], code=Code.EXECUTION_ERROR, text="Exit code: 3.*"
    ),
    Says(
        "4-run-command-isolated-runs",
        [("run_command_isolated", {"command": "echo out"})],
        text="out\n",
        facts={"lane": "no-net"},
    ),
    Elsewhere("4-run-command-cut-to-its-limit", "test_tools", "test_a_flood_keeps_both_ends"),
    Says(
        "4-build-runs",
        [write("Makefile", "build:\n\t@echo built\n"), ("build", {})],
        text="built\n.*ran: make build.*",
        facts={"command": "make build"},
    ),
    Says(
        "4-test-runs",
        [write("Makefile", "test:\n\t@echo tested\n"), ("test", {})],
        text="tested\n.*ran: make test.*",
        facts={"command": "make test"},
    ),
    Says(
        "4-validate-runs",
        [write("Makefile", "validate:\n\t@exit 1\n"), ("validate", {})],
        code=Code.EXECUTION_ERROR,
        facts={"command": "make validate"},
    ),
    Elsewhere(
        "4-build-test-validate-find-the-command",
        "test_projects",
        "test_what_the_worktree_has_is_found",
    ),
    # complete_task
    Says(
        "4-complete-task-signals",
        [("complete_task", {"summary": "all done"})],
        text="Task marked complete: all done",
        facts={"completed": True, "summary": "all done"},
    ),
    Is("4-complete-task-runs-last", lambda: tools("standard")["complete_task"].order is Order.LAST),
    # Artifacts
    Elsewhere("4-create-plan-makes", "test_planning", "test_artifacts_are_kept_and_told"),
    Elsewhere("4-create-plan-refuses", "test_planning", "test_faulty_artifacts_are_refused"),
    Says(
        "4-create-spec-three-to-seven-phases",
        [("create_spec", {"name": "n", "title": "t", "overview": "o", "phases": []})],
        code=Code.INVALID_ARGUMENTS,
        text=".*phases.*3.*",
    ),
    Says(
        "4-create-phase-action-is-closed",
        [
            (
                "create_phase",
                {
                    "name": "n",
                    "title": "t",
                    "objective": "o",
                    "tasks": [{"description": "d", "action": "rename"}],
                    "validation_command": "make",
                },
            )
        ],
        code=Code.INVALID_ARGUMENTS,
        text=".*tasks.0.action.*",
    ),
)

ROUTING_ROWS: tuple[Row, ...] = (
    Says("4-unknown-tool", [("nope", {})], code=Code.UNKNOWN_TOOL, text="Unknown tool: nope.*"),
    Elsewhere("4-results-find-their-calls", "test_cli", "test_run_answers_every_line_in_order"),
    Elsewhere(
        "4-calls-run-side-by-side", "test_turns", "test_results_are_told_in_the_order_of_the_calls"
    ),
    # Paths
    Says("4-path-relative", [read("src/x.py", limit=1)], text="     1│def foo.*"),
    Says("4-path-absolute-in-worktree", [read("/workspace/a.txt")], text="     1│alpha\n.*"),
    Says("4-path-absolute-outside", [read("/etc/passwd")], code=Code.INVALID_PATH),
    Says("4-path-traversal", [read("src/../../x")], code=Code.INVALID_PATH),
    Says(
        "4-path-traversal-of-what-is-not-there", [write("no/../../x", "")], code=Code.INVALID_PATH
    ),
    Says("4-path-link-outside", [run(ESCAPES), read("out")], code=Code.INVALID_PATH),
    Says(
        "4-path-link-to-write-outside",
        [run(ESCAPES), write("outside/x", "")],
        code=Code.INVALID_PATH,
    ),
    Says("4-path-link-inside", [run(ESCAPES), read("inside", limit=1)], text="     1│def foo.*"),
    # Readings
    Says(
        "4-reads-edit-needs-one",
        [edit("alpha", "x")],
        code=Code.NOT_READ,
        text="Must read_file before editing.*",
        after={"a.txt": FILES["a.txt"]},
    ),
    Says(
        "4-reads-are-normalized",
        [read("/workspace/src/../a.txt"), edit("alpha", "x", "./a.txt")],
        after={"a.txt": "x\nbeta\n"},
    ),
    Says(
        "4-reads-count-for-their-file-alone",
        [read("b.txt"), edit("alpha", "x")],
        code=Code.NOT_READ,
    ),
    Is("4-reads-can-be-cleared", lambda: callable(Session.clear_reads)),
    Elsewhere(
        "4-reads-cleared-at-an-iteration", "test_cli", "test_an_iteration_clears_what_was_read"
    ),
)

LOOP_ROWS: tuple[Row, ...] = (
    Is("4-loop-types", lambda: set(CATALOG.loop_types) == set(LOOPS)),
    Is("4-loop-type-plan", has_tools("plan")),
    Is("4-loop-type-spec", has_tools("spec")),
    Is("4-loop-type-phase", has_tools("phase")),
    Is("4-loop-type-code", has_tools("code")),
    Elsewhere(
        "4-loop-type-plan-has-no-commands", "test_pipeline", "test_loop_types_take_tools_away"
    ),
    Elsewhere("4-loop-type-is-shown", "test_cli", "test_tools_shows_why_a_tool_is_missing"),
)

ROWS = (
    *CATALOG_ROWS,
    *DEFINITION_ROWS,
    *FILE_ROWS,
    *COMMAND_ROWS,
    *ROUTING_ROWS,
    *LOOP_ROWS,
)


def of(kind: type[Any]) -> list[Any]:
    return [pytest.param(row, id=row.key) for row in ROWS if isinstance(row, kind)]


@pytest.fixture(scope="module", params=["local", "docker"])
def loops(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loops]:
    """The loop of all rows, over each transport."""
    with ExitStack() as stack:
        yield Loops(request.param, tmp_path_factory.mktemp(request.param), stack)


@pytest.mark.parametrize("row", of(Says))
def test_calls_come_to_what_the_statement_says(loops: Loops, tmp_path: Path, row: Says) -> None:
    """The last result of the row's calls is as the row says, and so are the files."""
    check(row, loops, tmp_path)


@pytest.mark.parametrize("row", of(Is))
def test_what_is_looked_at_is_so(row: Is) -> None:
    """What the row says of catalog, definitions and loop types holds."""
    assert row.holds()


@pytest.mark.parametrize("row", of(Elsewhere))
def test_the_statement_has_its_test(row: Elsewhere) -> None:
    """The test that the row names is there, under this name."""
    assert row.function in functions_of(row.file)


def test_every_statement_has_one_row() -> None:
    """Keys are distinct, and every tool and definition of the specification has its rows."""
    keys = [row.key for row in ROWS]
    assert len(set(keys)) == len(keys)
    for name in WRITTEN:
        assert f"4-catalog-{name.replace('_', '-')}" in keys
    for name in DEFINITIONS:
        assert f"4-{name.replace('_', '-')}-arguments" in keys
    assert {f"4-loop-type-{kind}" for kind in LOOPS} <= set(keys)


# ─── what a configuration gives back ────────────────────────────────────────────────

AS_WRITTEN = """
[toolsets.standard]
line_separator = "|"
[tools.read_file]
max_output_bytes = 1000
"""


@pytest.fixture(scope="module")
def as_written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A loop whose catalog says what the specification's code does."""
    with open_work("local", tmp_path_factory.mktemp("as"), catalog=changed(AS_WRITTEN)) as work:
        yield work


def test_the_separator_can_be_the_specifications(as_written: Work) -> None:
    """Six columns, `|`, the line: what its program prints, by one key of the catalog."""
    as_written.write("a.txt", "alpha\nbeta\n")
    assert as_written.call("read_file", path="a.txt").content == "     1|alpha\n     2|beta"


def test_a_limit_of_the_catalog_holds(as_written: Work) -> None:
    """More than `max_output_bytes` is not shown, and the result says where it goes on."""
    as_written.write("b.txt", "0123456789\n" * 200)
    result = as_written.call("read_file", path="b.txt")
    assert result.truncated and len(str(result.content).encode()) <= 1000
    assert "continue with offset=" in str(result.content)
