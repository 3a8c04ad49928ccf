"""Specification 1 (task daemon), statement by statement, as `test_conformance` has others."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.controller import Controller
from executor.coordination import Query, Share
from executor.errors import Code
from executor.loop import Loop
from executor.model import Call, LoopSpec, Result
from executor.settings import Settings
from executor.tool import Order, Registry
from tests.conftest import LIMITS, make_worktree
from tests.loops import Work, open_work, opener
from tests.test_conformance import (
    CATALOG,
    FILES,
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

TEN = (
    "read_file",
    "write_file",
    "edit_file",
    "list_directory",
    "glob",
    "grep",
    "run_command",
    "query_loop",
    "share_data",
    "complete_task",
)


def read(path: str = "a.txt", **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "read_file", {"path": path, **more}


def edit(old: str, new: str, path: str = "a.txt", **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "edit_file", {"path": path, "old_string": old, "new_string": new, **more}


def write(path: str, content: str) -> tuple[str, Mapping[str, Any]]:
    return "write_file", {"path": path, "content": content}


def grep(pattern: str, **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "grep", {"pattern": pattern, **more}


def run(command: str, **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "run_command", {"command": command, **more}


def order_is(name: str, order: Order) -> Is:
    return Is(f"1-{name.replace('_', '-')}-order", lambda: tools("standard")[name].order is order)


NUMBERED = "     1│alpha\n     2│beta"
LONG = "x" * 2001

TASKDAEMON: tuple[Row, ...] = (
    # ToolContext.
    Elsewhere(
        "1-context-is-one-worktree",
        "test_contract",
        "test_no_path_leads_out_of_the_worktree",
    ),
    Elsewhere(
        "1-context-takes-absolute-paths",
        "test_contract",
        "test_the_host_path_of_the_worktree_is_understood",
    ),
    Says(
        "1-error-sandbox-violation",
        [read("../x")],
        code=Code.INVALID_PATH,
        text=re.escape("The path '../x' leads out of the worktree. The root is ") + ".*",
    ),
    Says(
        "1-error-sandbox-violation-absolute",
        [read("/etc/passwd")],
        code=Code.INVALID_PATH,
        text=".*is outside the worktree.*",
    ),
    Elsewhere(
        "1-context-follows-links-first", "test_contract", "test_no_path_leads_out_of_the_worktree"
    ),
    Elsewhere(
        "1-context-track-read", "test_reads", "test_what_was_seen_decides_what_may_be_changed"
    ),
    Elsewhere("1-context-clear-reads", "test_cli", "test_an_iteration_clears_what_was_read"),
    # Tool, ToolResult, ToolDefinition.
    Is(
        "1-tool-has-name-description-schema",
        lambda: all(
            tools("standard")[name].description
            and tools("standard")[name].schema["type"] == "object"
            for name in TEN
        ),
    ),
    Is(
        "1-result-has-content-and-is-error",
        lambda: {"content", "is_error"} <= set(Result.__slots__),
    ),
    Is(
        "1-definition-anthropic-schema",
        lambda: (
            set(Registry.from_tools(tools("standard").values()).definitions()[0])
            == {"name", "description", "input_schema"}
        ),
    ),
    Elsewhere("1-schemas-word-for-word", "test_tools_schema", "test_schemas_are_the_seeds"),
    Elsewhere(
        "1-descriptions-word-for-word", "test_tools_schema", "test_descriptions_are_the_seeds"
    ),
    # read_file.
    Says("1-read-file", [read()], text=NUMBERED),
    Says("1-read-file-offset", [read(offset=2)], text="     2│beta"),
    Says("1-read-file-limit", [read(limit=1)], text="     1│alpha\n.*continue with offset=2.*"),
    Says("1-read-file-offset-default", [read(offset=1)], text=NUMBERED),
    Says("1-read-file-offset-zero", [read(offset=0)], code=Code.INVALID_ARGUMENTS),
    Says("1-read-file-limit-zero", [read(limit=0)], code=Code.INVALID_ARGUMENTS),
    Says(
        "1-read-file-limit-default",
        [run("seq 2001 > seq.txt"), read("seq.txt")],
        text=r".*\n  2000│2000\n\[1 more line; continue with offset=2001\]",
        facts={"lines": 2000, "total_lines": 2001},
    ),
    Says(
        "1-read-file-long-line",
        [write("long.txt", LONG), read("long.txt")],
        text=re.escape(f"     1│{LONG[:2000]}... [line is 2001 characters]"),
    ),
    Says(
        "1-read-file-line-of-2000",
        [write("long.txt", LONG[:2000]), read("long.txt")],
        text=f"     1│{LONG[:2000]}",
    ),
    Says(
        "1-read-file-missing",
        [read("none")],
        code=Code.FILE_NOT_FOUND,
        text="none does not exist in /workspace.*",
    ),
    Says("1-read-file-path-required", [("read_file", {})], code=Code.INVALID_ARGUMENTS),
    Says("1-read-file-beyond-the-end", [read(offset=3)], code=Code.INVALID_ARGUMENTS),
    Elsewhere("1-read-file-not-utf-8", "test_tools", "test_bytes_that_are_no_utf8_are_marked"),
    Elsewhere("1-read-file-empty", "test_tools", "test_an_empty_file_is_said_to_be_empty"),
    Says(
        "1-read-file-line-ends",
        [run("printf 'a\\r\\nb' > r"), read("r")],
        text="     1│a\n     2│b",
    ),
    Says("1-read-file-directory", [read("src")], code=Code.NOT_A_FILE),
    order_is("read_file", Order.SAFE),
    # write_file.
    Says(
        "1-write-file",
        [write("d/e/n.txt", "é\n")],
        text="Wrote 3 bytes to d/e/n.txt",
        after={"d/e/n.txt": "é\n"},
    ),
    Says(
        "1-write-file-over-unread",
        [write("a.txt", "x")],
        code=Code.NOT_READ,
        after={"a.txt": FILES["a.txt"]},
    ),
    Says("1-write-file-over-read", [read(), write("a.txt", "x")], after={"a.txt": "x"}),
    Says("1-write-file-escape", [write("../x", "")], code=Code.INVALID_PATH),
    Says(
        "1-write-file-content-required",
        [("write_file", {"path": "x"})],
        code=Code.INVALID_ARGUMENTS,
    ),
    Says(
        "1-write-file-absolute-path",
        [write("/workspace/n.txt", "x")],
        text="Wrote 1 bytes to n.txt",
        after={"n.txt": "x"},
    ),
    order_is("write_file", Order.UNSAFE),
    # edit_file.
    Says(
        "1-edit-file",
        [read(), edit("alpha", "A")],
        text=re.escape("Replaced 1 occurrence(s) in a.txt"),
        after={"a.txt": "A\nbeta\n"},
    ),
    Says(
        "1-edit-file-not-read",
        [edit("alpha", "A")],
        code=Code.NOT_READ,
        text="Must read_file before editing. Read the file first to see current content.",
    ),
    Says(
        "1-edit-file-not-found",
        [read(), edit("zeta", "A")],
        code=Code.NO_MATCH,
        text="old_string not found in file. Make sure it matches exactly including whitespace.*",
    ),
    Says(
        "1-edit-file-ambiguous",
        [read("b.txt"), edit("two", "2", "b.txt")],
        code=Code.AMBIGUOUS,
        text="old_string found 2 times.*Use replace_all=true or provide more context.*",
        after={"b.txt": FILES["b.txt"]},
    ),
    Says(
        "1-edit-file-replace-all",
        [read("b.txt"), edit("two", "2", "b.txt", replace_all=True)],
        text=re.escape("Replaced 2 occurrence(s) in b.txt"),
        after={"b.txt": "one\n2\n2\n"},
    ),
    Says(
        "1-edit-file-replace-all-default",
        [read("b.txt"), edit("two", "2", "b.txt", replace_all=False)],
        code=Code.AMBIGUOUS,
    ),
    Says(
        "1-edit-file-replace-all-of-one",
        [read(), edit("alpha", "A", replace_all=True)],
        text=re.escape("Replaced 1 occurrence(s) in a.txt"),
    ),
    Says("1-edit-file-missing", [edit("a", "b", "none")], code=Code.FILE_NOT_FOUND),
    Says("1-edit-file-escape", [edit("a", "b", "../x")], code=Code.INVALID_PATH),
    Elsewhere("1-edit-file-new-string-is-literal", "test_casebook", "test_a8_new_text_is_literal"),
    Says("1-edit-file-own-write", [write("n", "x"), edit("x", "y", "n")], after={"n": "y"}),
    Says("1-edit-file-same-text", [read(), edit("alpha", "alpha")], code=Code.INVALID_ARGUMENTS),
    Says("1-edit-file-empty-old-string", [read(), edit("", "x")], code=Code.INVALID_ARGUMENTS),
    Says(
        "1-edit-file-changed-meanwhile",
        [read(), run("echo more >> a.txt"), edit("alpha", "A")],
        code=Code.CONFLICT,
        text="a.txt changed since it was read.*Read it again.*",
    ),
    order_is("edit_file", Order.UNSAFE),
    # list_directory.
    Says(
        "1-list-directory",
        [("list_directory", {})],
        text="a.txt\nb.txt\nc.txt\nempty.txt\nsrc/",
    ),
    Says("1-list-directory-path", [("list_directory", {"path": "src"})], text="x.py\ny.js"),
    Says(
        "1-list-directory-path-default", [("list_directory", {"path": "."})], text="a.txt\n.*src/"
    ),
    Says("1-list-directory-escape", [("list_directory", {"path": ".."})], code=Code.INVALID_PATH),
    Says(
        "1-list-directory-missing", [("list_directory", {"path": "none"})], code=Code.FILE_NOT_FOUND
    ),
    Says(
        "1-list-directory-hidden",
        [write(".h", ""), ("list_directory", {})],
        text=r".*src/\n\[1 hidden not shown; includeHidden=true shows them\]",
    ),
    Elsewhere(
        "1-list-directory-empty", "test_tools", "test_an_empty_directory_is_said_to_be_empty"
    ),
    Says(
        "1-list-directory-of-a-file",
        [("list_directory", {"path": "a.txt"})],
        code=Code.INVALID_PATH,
        text="a.txt is a regular file, not a directory.*",
    ),
    order_is("list_directory", Order.SAFE),
    # glob.
    Says("1-glob", [("glob", {"pattern": "**/*.py"})], text="src/x.py"),
    Says("1-glob-path", [("glob", {"pattern": "*.js", "path": "src"})], text="src/y.js"),
    Says(
        "1-glob-path-default",
        [("glob", {"pattern": "*.txt"})],
        text="a.txt\nb.txt\nc.txt\nempty.txt",
    ),
    Says("1-glob-nothing", [("glob", {"pattern": "*.zzz"})], text="No matches found"),
    Says(
        "1-glob-1000",
        [run("mkdir many; cd many; touch $(seq -w 1 1003)"), ("glob", {"pattern": "many/*"})],
        text=r"many/0001\n.*\nmany/1000\n\[3 more matches; narrow the pattern or give a path\]",
        facts={"total": 1003},
    ),
    Says("1-glob-escape", [("glob", {"pattern": "*", "path": ".."})], code=Code.INVALID_PATH),
    Says("1-glob-pattern-stays-inside", [("glob", {"pattern": "../*"})], code=Code.INVALID_PATH),
    Says("1-glob-files-only", [("glob", {"pattern": "s*"})], text="No matches found"),
    order_is("glob", Order.SAFE),
    # grep.
    Says(
        "1-grep",
        [write("g/n.txt", "1\n2\n3\nhit\n5\n6\n7\n"), grep("hi.", path="g")],
        text="g/n.txt-2-2\ng/n.txt-3-3\ng/n.txt:4:hit\ng/n.txt-5-5\ng/n.txt-6-6",
    ),
    Says(
        "1-grep-context",
        [write("g/n.txt", "1\n2\n3\nhit\n5\n6\n7\n"), grep("hi.", path="g", context=1)],
        text="g/n.txt-3-3\ng/n.txt:4:hit\ng/n.txt-5-5",
    ),
    Says("1-grep-file", [grep("beta", path="a.txt", context=0)], text="a.txt:2:beta"),
    Says("1-grep-path-default", [grep("foo", context=0)], text="src/x.py:1:.*\nsrc/y.js:1:.*"),
    Says(
        "1-grep-file-pattern",
        [grep("foo", file_pattern="*.js")],
        text=re.escape("src/y.js:1:function foo() {}"),
    ),
    Says("1-grep-nothing", [grep("zzz")], text="No matches found"),
    Says("1-grep-bad-regex", [grep("(")], code=Code.INVALID_ARGUMENTS, text=".*unclosed group.*"),
    Says(
        "1-grep-100-matches-a-file",
        [run("yes hit | head -n 101 > many.txt"), grep("hit", path="many.txt", context=0)],
        text=r"many.txt:1:hit\n.*many.txt:100:hit\n\[.*\[many.txt: only the first 100 matches\]",
        facts={"matches": 100},
    ),
    Says("1-grep-escape", [grep("x", path="..")], code=Code.INVALID_PATH),
    Says(
        "1-grep-hidden-files",
        [write(".h", "foo\n"), grep("foo", file_pattern=".h")],
        text=".h:1:foo",
    ),
    Says("1-grep-pattern-with-a-dash", [write("o", "a -x\n"), grep("-x")], text="o:1:a -x"),
    Says("1-grep-missing", [grep("x", path="none")], code=Code.FILE_NOT_FOUND),
    order_is("grep", Order.SAFE),
    # run_command.
    Says("1-run-command", [run("cat a.txt")], text="alpha\nbeta\n", facts={"exit_code": 0}),
    Says("1-run-command-stderr-alone", [run("echo e >&2")], text="e\n"),
    Says("1-run-command-both", [run("echo o; echo e >&2")], text="o\n\n\nSTDERR:\ne\n"),
    Says(
        "1-run-command-exit-code",
        [run("echo o; exit 3")],
        code=Code.EXECUTION_ERROR,
        text="Exit code: 3\no\n",
    ),
    Says(
        "1-run-command-signal",
        [run("kill -9 $$")],
        code=Code.EXECUTION_ERROR,
        text="Killed by signal SIGKILL\n",
    ),
    Says(
        "1-run-command-timeout",
        [run("sleep 60", timeout_ms=200)],
        code=Code.TIMEOUT,
        text="Command timed out after 200ms\n",
    ),
    Is(
        "1-run-command-timeout-default",
        lambda: CATALOG.tools["run_command"].timeout_ms == 120_000,
    ),
    Says(
        "1-run-command-timeout-too-long",
        [run("true", timeout_ms=600_001)],
        code=Code.INVALID_ARGUMENTS,
    ),
    Elsewhere("1-run-command-30000-characters", "test_tools", "test_a_flood_keeps_both_ends"),
    Elsewhere("1-run-command-directory", "test_tools", "test_the_directory_lasts_and_is_told"),
    Elsewhere(
        "1-run-command-shell", "test_casebook", "test_f53_the_shell_is_the_only_judge_of_syntax"
    ),
    Says("1-run-command-says-nothing", [run("true")], text="", facts={"exit_code": 0}),
    Elsewhere(
        "1-run-command-timeout-ends-all", "test_casebook", "test_f47_a_timeout_ends_every_process"
    ),
    Elsewhere(
        "1-run-command-input-is-empty", "test_casebook", "test_f50_f51_nobody_is_at_the_terminal"
    ),
    order_is("run_command", Order.UNSAFE),
    # Coordination. Two loops that speak are below.
    Says(
        "1-query-loop-unknown",
        [("query_loop", {"target_exec_id": "gone", "question": "?"})],
        code=Code.NOT_FOUND,
    ),
    Is("1-query-loop-timeout-default", lambda: CATALOG.tools["query_loop"].timeout_ms == 30_000),
    Says(
        "1-query-loop-timeout-too-long",
        [("query_loop", {"target_exec_id": "x", "question": "?", "timeout_ms": 600_001})],
        code=Code.INVALID_ARGUMENTS,
    ),
    Elsewhere(
        "1-query-loop-answered", "test_conformance_1", "test_a_loop_asks_another_and_gets_its_reply"
    ),
    Elsewhere(
        "1-query-loop-no-answer",
        "test_conformance_1",
        "test_a_question_without_an_answer_times_out",
    ),
    order_is("query_loop", Order.SAFE),
    Says(
        "1-share-data-unknown",
        [("share_data", {"target_exec_ids": ["gone"], "data_type": "t", "data": {}})],
        code=Code.NOT_FOUND,
        facts={},
    ),
    Elsewhere("1-share-data", "test_conformance_1", "test_data_of_any_json_reaches_every_target"),
    Elsewhere(
        "1-share-data-all-or-none", "test_coordination", "test_data_is_shared_with_all_or_none"
    ),
    order_is("share_data", Order.UNSAFE),
    Elsewhere("1-alert-of-the-host", "test_coordination", "test_the_host_alerts_and_stops"),
    Says(
        "1-complete-task",
        [("complete_task", {"summary": "all green"})],
        text="Task marked complete: all green",
        facts={"completed": True},
    ),
    Says("1-complete-task-summary-required", [("complete_task", {})], code=Code.INVALID_ARGUMENTS),
    Elsewhere("1-complete-task-is-a-flag", "test_pipeline", "test_complete_task_is_remembered"),
    Elsewhere(
        "1-complete-task-validation-passes",
        "test_planning",
        "test_completion_can_demand_a_validation",
    ),
    order_is("complete_task", Order.LAST),
    # ToolExecutor.
    Is("1-executor-has-the-standard-tools", lambda: set(TEN) <= tools("standard").keys()),
    Elsewhere(
        "1-executor-definitions",
        "test_tools_schema",
        "test_definitions_have_the_shapes_of_their_apis",
    ),
    Says(
        "1-executor-unknown-tool",
        [("nope", {})],
        code=Code.UNKNOWN_TOOL,
        text="Unknown tool: nope.*",
    ),
    Says("1-executor-no-prefix", [read("none")], code=Code.FILE_NOT_FOUND, text="(?!Tool error).*"),
    Elsewhere(
        "1-executor-execute-all", "test_conformance_1", "test_results_have_the_ids_of_their_calls"
    ),
    Elsewhere(
        "1-executor-failure-is-a-result", "test_turns", "test_a_failing_tool_costs_its_own_call"
    ),
    Elsewhere(
        "1-executor-missing-arguments", "test_conformance_1", "test_every_missing_argument_is_named"
    ),
    Elsewhere(
        "1-executor-arguments-of-another-type",
        "test_conformance_1",
        "test_no_argument_takes_another_type",
    ),
    Elsewhere(
        "1-executor-unknown-arguments",
        "test_contract",
        "test_arguments_that_do_not_exist_are_refused",
    ),
    # Loop types.
    Is(
        "1-loop-type-phase",
        lambda: set(TEN[:7] + TEN[9:]) <= set(CATALOG.loop_types["phase"].tools),
    ),
    Is(
        "1-loop-type-plan",
        lambda: (
            {"read_file", "write_file", "glob", "grep", "complete_task"}
            <= set(CATALOG.loop_types["plan"].tools)
            and "run_command" not in CATALOG.loop_types["plan"].tools
        ),
    ),
    Elsewhere("1-loop-type-is-the-whole-set", "test_pipeline", "test_loop_types_take_tools_away"),
)


def of(kind: type[Any]) -> list[Any]:
    return [pytest.param(row, id=row.key) for row in TASKDAEMON if isinstance(row, kind)]


@pytest.fixture(scope="module", params=["local", "docker"])
def loops(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loops]:
    """One loop for all rows, over each transport."""
    with ExitStack() as stack:
        yield Loops(request.param, tmp_path_factory.mktemp(request.param), stack)


@pytest.mark.parametrize("row", of(Says))
def test_calls_come_to_what_the_statement_says(loops: Loops, tmp_path: Path, row: Says) -> None:
    """The last result of the row's calls is as the row says, and so are the files."""
    check(row, loops, tmp_path)


@pytest.mark.parametrize("row", of(Is))
def test_what_is_looked_at_is_so(row: Is) -> None:
    """What the row says of tools, schemas and texts holds."""
    assert row.holds()


@pytest.mark.parametrize("row", of(Elsewhere))
def test_the_statement_has_its_test(row: Elsewhere) -> None:
    """The test that the row names is there, under this name."""
    assert row.function in functions_of(row.file)


EACH = [(name, key) for name in TEN for key in tools("standard")[name].schema["properties"]]


@pytest.mark.parametrize(("name", "key"), [pair for pair in EACH if pair != ("share_data", "data")])
def test_no_argument_takes_another_type(name: str, key: str) -> None:
    """A value of another JSON type is refused, and the argument is named as it is shown."""
    kind = tools("standard")[name].schema["properties"][key]["type"]
    wrong = 7 if kind == "string" else "7"
    assert f"{key} must be" in refused("standard", name, {key: wrong})


@pytest.mark.parametrize("name", TEN)
def test_every_missing_argument_is_named(name: str) -> None:
    """All that the specification requires is required, and no more."""
    needed = tools("standard")[name].schema.get("required", [])
    if needed:
        said = refused("standard", name, {})
        assert [key for key in needed if f"{key} is required" not in said] == []
    else:
        tools("standard")[name].parse({})


# ─── loops that speak to each other ─────────────────────────────────────────────────


@asynccontextmanager
async def two_loops(directory: Path) -> AsyncIterator[tuple[Loop, Loop]]:
    """Two loops of one controller, over agents on this machine."""
    settings = replace(Settings.load(), state_directory=directory / "state")
    async with Controller(settings, CATALOG, opener=opener("local", directory)) as controller:
        specs = [
            LoopSpec(worktree=make_worktree(directory / name), limits=LIMITS, exec_id=name)
            for name in ("asker", "asked")
        ]
        async with controller.open(specs[0]) as asker, controller.open(specs[1]) as asked:
            yield asker, asked


def test_a_loop_asks_another_and_gets_its_reply(tmp_path: Path) -> None:
    """The reply is the result's text; the one that is asked learns who asks what."""

    async def work() -> None:
        async with two_loops(tmp_path) as (asker, asked):
            given = {"target_exec_id": "asked", "question": "which port?"}
            asking = asyncio.create_task(asker.execute(Call("1", "query_loop", given)))
            async for message in asked.inbox():
                assert isinstance(message, Query)
                assert (message.sender, message.question) == ("asker", "which port?")
                await asked.answer(message.id, "8080")
                break
            result = await asking
            assert (result.content, result.is_error) == ("8080", False)
            assert result.structured == {"reply": "8080"}

    asyncio.run(work())


def test_a_question_without_an_answer_times_out(tmp_path: Path) -> None:
    """After `timeout_ms`, with that number."""

    async def work() -> None:
        async with two_loops(tmp_path) as (asker, _):
            given = {"target_exec_id": "asked", "question": "?", "timeout_ms": 100}
            result = await asker.execute(Call("1", "query_loop", given))
            assert result.code is Code.TIMEOUT
            assert "asked did not answer within 100ms" in str(result.content)

    asyncio.run(work())


@pytest.mark.parametrize("data", [{"port": 1}, [1, "é"], "text", 7, None, True])
def test_data_of_any_json_reaches_every_target(tmp_path: Path, data: Any) -> None:
    """Each target has the type and the data; the text counts the loops."""

    async def work() -> None:
        async with two_loops(tmp_path) as (asker, asked):
            given = {"target_exec_ids": ["asked"], "data_type": "api_schema", "data": data}
            result = await asker.execute(Call("1", "share_data", given))
            assert (result.content, result.is_error) == ("Shared api_schema to 1 loops", False)
            async for message in asked.inbox():
                assert message == Share("asker", "api_schema", data)
                break

    asyncio.run(work())


def test_results_have_the_ids_of_their_calls(tmp_path: Path) -> None:
    """A turn answers every call under its id, in the order of the calls."""

    async def work() -> None:
        async with two_loops(tmp_path) as (loop, _):
            calls = [
                Call("b", "complete_task", {"summary": "s"}),
                Call("a", "nope", {}),
                Call("c", "write_file", {"path": "x", "content": ""}),
            ]
            results = await loop.turn(calls)
            assert [(result.id, result.name) for result in results] == [
                ("b", "complete_task"),
                ("a", "nope"),
                ("c", "write_file"),
            ]

    asyncio.run(work())


# ─── timeouts ───────────────────────────────────────────────────────────────────────

SECONDS: Mapping[tuple[str, str], float] = {
    ("standard", "run_command"): 120,
    ("standard", "run_command_isolated"): 120,
    ("standard", "build"): 600,
    ("standard", "test"): 600,
    ("standard", "validate"): 600,
    ("standard", "run_code"): 60,
    ("claude-code", "Bash"): 120,
    ("loom", "bash"): 60,
}
"""What the specifications give a command that asks for no time of its own; for run_code S2,
for build, test and validate S4, for Bash S5, for bash the decision where S3 is silent."""


@pytest.mark.parametrize("toolset", ["standard", "claude-code", "loom"])
def test_a_command_without_a_timeout_has_the_default(tmp_path: Path, toolset: str) -> None:
    """The box is told the seconds of the specification, and those of the loop where it says so."""
    for limit in (None, 7.0):
        limits = replace(LIMITS, call_timeout=limit)
        directory = tmp_path / str(limit)
        directory.mkdir()
        change = functools.partial(replace, toolset=toolset)
        with open_work("local", directory, limits, change) as work:
            told = dict(_timeouts(work, toolset))
        expected = {name: seconds for (known, name), seconds in SECONDS.items() if known == toolset}
        assert told == (expected if limit is None else dict.fromkeys(expected, limit))


def _timeouts(work: Work, toolset: str) -> Iterator[tuple[str, float]]:
    """The seconds that the box is told for each tool."""
    box: Any = work.loop._surroundings.box
    inner, seen = box.request, list[float]()

    async def noting(op: str, arguments: Any, *rest: Any, **more: Any) -> Any:
        if op == "run":
            seen.append(arguments["timeout"])
        return await inner(op, arguments, *rest, **more)

    box.request = noting
    for known, name in SECONDS:
        if known == toolset:
            given = {"language": "bash", "code": ":"} if name == "run_code" else {"command": ":"}
            assert not work.call(name, **given).is_error
            yield name, seen.pop()
