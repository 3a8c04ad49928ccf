"""The specifications of tools, statement by statement.

A row is one statement of a specification: a call and what becomes of it, something that is
looked at, or the test that has it. Where the statement does not hold here, the row says what
does, and `docs/conformance.md` says why. Keys begin with the specification's number.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from executor import toolsets
from executor.catalog import Catalog, Unit, load
from executor.errors import Code, ToolError
from executor.model import MOUNT, Access
from executor.permissions import Mode, Verdict, decide
from executor.tool import Context, Order, Registry, Surroundings, Tool
from tests.loops import Work, open_work

CATALOG: Catalog = load()
NAMES = {"1": "standard", "2": "standard", "3": "loom", "4": "standard", "5": "claude-code"}
TESTS = Path(__file__).parent


@functools.cache
def tools(toolset: str) -> Mapping[str, Tool]:
    return {tool.name: tool for tool in toolsets.registry(toolset, CATALOG).all()}


# ─── rows ───────────────────────────────────────────────────────────────────────────

Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Says:
    """What becomes of calls.

    Attributes:
        key: of the statement.
        calls: made one after the other; the last one's result is looked at.
        text: a regular expression that all of its content matches; None = any.
        code: of its error; None = it is none.
        facts: parts of its data.
        after: file → what is in it afterwards.
        mode: of the loop.
    """

    key: str
    calls: Sequence[Call]
    text: str | None = None
    code: Code | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    mode: str = "bypass"


@dataclass(frozen=True)
class Is:
    """Something that is looked at."""

    key: str
    holds: Callable[[], bool]


@dataclass(frozen=True)
class Elsewhere:
    """The test that has the statement: file and function."""

    key: str
    file: str
    function: str


Row = Says | Is | Elsewhere

FILES = {
    "a.txt": "alpha\nbeta\n",
    "b.txt": "one\ntwo\ntwo\n",
    "c.txt": "gamma\n",
    "src/x.py": "def foo():\n    pass\n",
    "src/y.js": "function foo() {}\n",
    "empty.txt": "",
}


def read(path: str = "a.txt", **more: Any) -> Call:
    return "Read", {"file_path": path, **more}


def edit(old: str, new: str, path: str = "a.txt", **more: Any) -> Call:
    return "Edit", {"file_path": path, "old_string": old, "new_string": new, **more}


def grep(pattern: str, **more: Any) -> Call:
    return "Grep", {"pattern": pattern, **{key.replace("_", "-"): v for key, v in more.items()}}


def bash(command: str, **more: Any) -> Call:
    return "Bash", {"command": command, **more}


def todo(*states: str) -> Call:
    items = [{"content": f"item {n}", "status": state} for n, state in enumerate(states)]
    return "TodoWrite", {"todos": items}


NOTEBOOK = (
    '{"cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "x = 1"}], '
    '"metadata": {}, "nbformat": 4, "nbformat_minor": 5}\n'
)


def notebook_edit(cell: str, source: str) -> Call:
    return "NotebookEdit", {"notebook_path": "n.ipynb", "cell_id": cell, "new_source": source}


def loom_edit(path: str, *edits: tuple[str, str]) -> Call:
    return "edit_file", {"path": path, "edits": [{"old_str": o, "new_str": n} for o, n in edits]}


def shown(tool: str, toolset: str = "claude-code") -> Mapping[str, Any]:
    found: Mapping[str, Any] = tools(toolset)[tool].schema
    return found


def is_shown(tool: str, required: Sequence[str], *optional: str) -> Callable[[], bool]:
    """The tool has these arguments, and no others."""

    def holds() -> bool:
        schema = shown(tool)
        names = list(schema["properties"])
        return schema.get("required", []) == list(required) and set(names) == {
            *required,
            *optional,
        }

    return holds


def has_order(tool: str, order: Order) -> Callable[[], bool]:
    return lambda: tools("claude-code")[tool].order is order


def limit(tool: str, size: int) -> Callable[[], bool]:
    def holds() -> bool:
        entry = tools("claude-code")[tool].entry
        return (entry.max_output_bytes, entry.unit) == (size, Unit.CHARACTERS)

    return holds


def says(tool: str, sentence: str) -> Callable[[], bool]:
    return lambda: sentence in tools("claude-code")[tool].description


def mode_says(tool: str, mode: Mode, verdict: Verdict) -> Callable[[], bool]:
    def holds() -> bool:
        found = tools("claude-code")[tool]
        return decide(mode, found.access, found.canonical) is verdict

    return holds


# ─── specification 3 ────────────────────────────────────────────────────────────────

LOOM: tuple[Row, ...] = (
    Is(
        "3-tool-has-name-description-schema",
        lambda: all(
            tool.name and tool.description and tool.schema["type"] == "object"
            for tool in tools("loom").values()
        ),
    ),
    Elsewhere(
        "3-registry-register-get-list",
        "test_registry",
        "test_a_registry_lists_in_order_and_gives_by_name",
    ),
    Elsewhere(
        "3-registry-name-twice",
        "test_registry",
        "test_a_name_is_registered_once_unless_it_is_to_be_replaced",
    ),
    Is(
        "3-tools-of-files-and-commands",
        lambda: (
            list(tools("loom"))
            == [
                "read_file",
                "list_files",
                "edit_file",
                "bash",
                "oracle",
                "web_search",
            ]
        ),
    ),
    Elsewhere("3-oracle", "test_web", "test_the_oracle_answers_or_says_why_not"),
    Elsewhere("3-web-search-google", "test_search", "test_google_is_asked_as_its_api_has_it"),
    Elsewhere("3-web-search-serper", "test_search", "test_serper_is_asked_as_its_api_has_it"),
    Says(
        "3-read-file-contents",
        [("read_file", {"path": "a.txt"})],
        facts={"path": "a.txt", "contents": "alpha\nbeta\n", "truncated": False},
    ),
    Says(
        "3-read-file-truncates-large-files",
        [("read_file", {"path": "a.txt", "max_bytes": 7})],
        facts={"contents": "alpha", "truncated": True},
    ),
    Elsewhere(
        "3-read-file-default-size", "test_toolset_loom", "test_a_mebibyte_is_read_by_default"
    ),
    Says("3-read-file-missing", [("read_file", {"path": "none"})], code=Code.FILE_NOT_FOUND),
    Says(
        "3-list-files-of-root",
        [("list_files", {})],
        facts={
            "entries": [
                {"path": "a.txt", "is_dir": False},
                {"path": "b.txt", "is_dir": False},
                {"path": "c.txt", "is_dir": False},
                {"path": "empty.txt", "is_dir": False},
                {"path": "src", "is_dir": True},
            ]
        },
    ),
    Says(
        "3-list-files-of-directory",
        [("list_files", {"root": "src", "max_results": 1})],
        facts={"entries": [{"path": "src/x.py", "is_dir": False}], "truncated": True, "total": 2},
    ),
    Says("3-list-files-validates-path", [("list_files", {"root": "../"})], code=Code.INVALID_PATH),
    Says(
        "3-edit-file-replaces-snippets",
        [("read_file", {"path": "a.txt"}), loom_edit("a.txt", ("alpha", "A"), ("beta", "B"))],
        facts={"path": "a.txt", "edits_applied": 2, "original_bytes": 11, "new_bytes": 4},
        after={"a.txt": "A\nB\n"},
    ),
    Says(
        "3-edit-file-is-atomic",
        [("read_file", {"path": "a.txt"}), loom_edit("a.txt", ("alpha", "A"), ("nope", "B"))],
        code=Code.NO_MATCH,
        after={"a.txt": FILES["a.txt"]},
    ),
    Says(
        "3-edit-file-makes-files",
        [loom_edit("new.txt", ("", "made\n"))],
        after={"new.txt": "made\n"},
    ),
    Says("3-edit-file-needs-a-reading", [loom_edit("a.txt", ("alpha", "A"))], code=Code.NOT_READ),
    Says(
        "3-bash-runs",
        [("bash", {"command": "echo o; echo e >&2"})],
        facts={
            "exit_code": 0,
            "stdout": "o\n",
            "stderr": "e\n",
            "timed_out": False,
            "truncated": False,
        },
    ),
    Says(
        "3-bash-timeout",
        [("bash", {"command": "sleep 60", "timeout_secs": 1})],
        code=Code.TIMEOUT,
        facts={"timed_out": True, "exit_code": None},
    ),
    Says(
        "3-bash-timeout-has-a-ceiling",
        [("bash", {"command": "true", "timeout_secs": 301})],
        code=Code.INVALID_ARGUMENTS,
    ),
    Elsewhere("3-bash-truncates", "test_toolset_loom", "test_each_stream_has_a_room_of_its_own"),
    Is("3-bash-is-mutating", lambda: tools("loom")["bash"].is_mutating),
    Is("3-edit-file-is-mutating", lambda: tools("loom")["edit_file"].is_mutating),
    Is(
        "3-readers-are-not-mutating",
        lambda: not any(tools("loom")[name].is_mutating for name in ("read_file", "list_files")),
    ),
    Elsewhere(
        "3-post-tools-hook-after-mutating-turn",
        "test_hooks",
        "test_the_turns_hook_is_told_of_the_calls_it_matches",
    ),
    Says("3-security-traversal", [("read_file", {"path": "src/../../x"})], code=Code.INVALID_PATH),
    Says("3-security-root", [("read_file", {"path": "/etc/passwd"})], code=Code.INVALID_PATH),
    Says("3-security-cwd", [("bash", {"command": "ls", "cwd": "/tmp"})], code=Code.INVALID_PATH),
    Elsewhere(
        "3-flow-results-in-order", "test_turns", "test_results_are_told_in_the_order_of_the_calls"
    ),
    Says(
        "3-result-is-json",
        [("read_file", {"path": "c.txt"})],
        text=re.escape('{"path": "c.txt", "contents": "gamma\\n", "truncated": false}'),
    ),
    Elsewhere(
        "3-adding-a-tool", "test_registry", "test_a_tool_of_ones_own_is_called_like_any_other"
    ),
)


# ─── specification 5 ────────────────────────────────────────────────────────────────

A = "/workspace/a.txt"
CLAUDE: tuple[Row, ...] = (
    # The pipeline.
    Says("5-stage-1-disabled", [("Nope", {})], code=Code.UNKNOWN_TOOL, text="Unknown tool: Nope.*"),
    Elsewhere("5-stage-1-says-why", "test_pipeline", "test_loop_types_take_tools_away"),
    Elsewhere(
        "5-stage-2-user-denied-permission", "test_approvals", "test_a_denial_is_that_calls_alone"
    ),
    Says(
        "5-stage-3-validation",
        [("Read", {})],
        code=Code.INVALID_ARGUMENTS,
        text=".*file_path is required.*",
    ),
    Says(
        "5-stage-3-unknown-argument",
        [read(limits=1)],
        code=Code.INVALID_ARGUMENTS,
        text=".*limits is not an argument of this tool; did you mean limit.*",
    ),
    Says("5-stage-3-null-is-absent", [read(limit=None)], text=r"     1\talpha\n     2\tbeta"),
    Says("5-stage-3-whole-float-is-an-integer", [read(limit=1.0)], text=r"     1\talpha\n.*"),
    Says("5-stage-3-no-number-from-text", [read(limit="1")], code=Code.INVALID_ARGUMENTS),
    Elsewhere("5-hooks-pre-tool-use", "test_hooks", "test_a_rejection_ends_the_round"),
    Elsewhere("5-hooks-post-tool-use", "test_hooks", "test_a_note_is_added_after_a_call"),
    Elsewhere(
        "5-hooks-post-tool-use-failure",
        "test_hooks",
        "test_a_note_stands_beside_the_result_and_a_failure_is_told",
    ),
    Is(
        "5-default-result-size",
        lambda: tools("claude-code")["Write"].entry.max_output_bytes == 30_000,
    ),
    Is("5-output-schema-is-optional", lambda: tools("claude-code")["Read"].output_schema is None),
    Is(
        "5-description-varies-with-context",
        lambda: tools("claude-code")["Bash"].describe is not None,
    ),
    # Read before edit.
    Says(
        "5-edit-not-read",
        [edit("alpha", "x")],
        code=Code.NOT_READ,
        text="Must read file before editing.*",
    ),
    Says(
        "5-edit-modified-since-read",
        [read(), bash("echo more >> a.txt"), edit("alpha", "x", A)],
        code=Code.CONFLICT,
        text=f"{A} changed since it was read.*",
    ),
    Says(
        "5-edit-same-content-is-not-modified",
        [read(), bash("touch a.txt"), edit("alpha", "x")],
        after={"a.txt": "x\nbeta\n"},
    ),
    Says(
        "5-edit-after-partial-read",
        [read(limit=1), edit("beta", "x")],
        after={"a.txt": "alpha\nx\n"},
    ),
    Says(
        "5-edit-after-own-edit",
        [read(), edit("alpha", "x"), edit("x", "y")],
        after={"a.txt": "y\nbeta\n"},
    ),
    Elsewhere(
        "5-reads-are-kept", "test_reads", "test_a_toolset_may_keep_readings_for_the_whole_loop"
    ),
    # Context, output, modifiers, registry.
    Is(
        "5-context-has-its-fields",
        lambda: (
            {
                "call_id",
                "turn_id",
                "cwd",
                "session",
                "loop",
                "emit",
                "progress",
            }
            <= set(dir(Context))
            and {"agent_id", "depth", "chain_id", "added"} <= set(Surroundings.__slots__)
        ),
    ),
    Is(
        "5-registry-has-its-functions",
        lambda: (
            {
                "register",
                "get",
                "all",
                "definitions",
                "from_tools",
                "list",
                "to_openai_functions",
            }
            <= set(dir(Registry))
        ),
    ),
    Elsewhere(
        "5-register-all-tools",
        "test_registry",
        "test_all_tools_of_a_toolset_are_registered_at_once",
    ),
    Elsewhere(
        "5-oversized-keep-end-start-both", "test_spill", "test_each_layout_says_where_the_whole_is"
    ),
    Elsewhere("5-oversized-counts-characters", "test_spill", "test_a_toolset_counts_in_characters"),
    # Read.
    Is("5-read-arguments", is_shown("Read", ["file_path"], "offset", "limit", "pages")),
    Is("5-read-limit", limit("Read", 100_000)),
    Is("5-read-is-safe", has_order("Read", Order.SAFE)),
    Says("5-read-cat-n-format", [read()], text=r"     1\talpha\n     2\tbeta"),
    Says("5-read-absolute-path", [read(A)], text=r"     1\talpha\n     2\tbeta"),
    Says("5-read-offset-and-limit", [read(offset=2, limit=1)], text=r"     2\tbeta"),
    Says("5-read-offset-zero", [read(offset=0, limit=1)], text=r"     1\talpha\n\[1 more line; .*"),
    Says("5-read-offset-negative", [read(offset=-1)], code=Code.INVALID_ARGUMENTS),
    Says("5-read-limit-zero", [read(limit=0)], code=Code.INVALID_ARGUMENTS),
    Says("5-read-missing-file", [read("none")], code=Code.FILE_NOT_FOUND),
    Says("5-read-directory", [read("src")], code=Code.NOT_A_FILE, text=".*use ls in Bash.*"),
    Says(
        "5-read-empty-file",
        [read("empty.txt")],
        text="<system-reminder>Warning: the file exists but the contents are empty.*",
    ),
    Elsewhere(
        "5-read-2000-lines-2000-characters",
        "test_toolset_claude_code",
        "test_long_lines_and_long_files_are_cut_aloud",
    ),
    Elsewhere(
        "5-read-temporary-paths",
        "test_toolset_claude_code",
        "test_all_of_the_box_can_be_read_but_not_its_hidden_parts",
    ),
    Says("5-read-structured", [read()], facts={"content": "alpha\nbeta", "size": 11, "lines": 2}),
    # Edit.
    Is(
        "5-edit-arguments",
        is_shown("Edit", ["file_path", "old_string", "new_string"], "replace_all"),
    ),
    Is(
        "5-edit-replace-all-default",
        lambda: shown("Edit")["properties"]["replace_all"]["default"] is False,
    ),
    Is("5-edit-is-unsafe", has_order("Edit", Order.UNSAFE)),
    Is("5-edit-tells-the-prefix", says("Edit", "spaces + line number + tab")),
    Says(
        "5-edit-replaces",
        [read(), edit("alpha", "x")],
        after={"a.txt": "x\nbeta\n"},
        text=re.escape(f"Replaced 1 occurrence(s) in {A}"),
        facts={"replacements": 1, "size": 7},
    ),
    Says(
        "5-edit-not-unique",
        [read("b.txt"), edit("two", "x", "b.txt")],
        code=Code.AMBIGUOUS,
        after={"b.txt": FILES["b.txt"]},
    ),
    Says(
        "5-edit-all",
        [read("b.txt"), edit("two", "x", "b.txt", replace_all=True)],
        after={"b.txt": "one\nx\nx\n"},
    ),
    Says("5-edit-not-found", [read(), edit("nope", "x")], code=Code.NO_MATCH),
    Says("5-edit-same-text", [read(), edit("alpha", "alpha")], code=Code.INVALID_ARGUMENTS),
    Says("5-edit-missing-file", [edit("a", "b", "none")], code=Code.FILE_NOT_FOUND),
    # Write.
    Is("5-write-arguments", is_shown("Write", ["file_path", "content"])),
    Is("5-write-is-unsafe", has_order("Write", Order.UNSAFE)),
    Says(
        "5-write-new-file",
        [("Write", {"file_path": "d/n.txt", "content": "x"})],
        text="Wrote 1 bytes to /workspace/d/n.txt",
        after={"d/n.txt": "x"},
    ),
    Says(
        "5-write-over-unread",
        [("Write", {"file_path": "a.txt", "content": "x"})],
        code=Code.NOT_READ,
        after={"a.txt": FILES["a.txt"]},
    ),
    Says(
        "5-write-over-read",
        [read(), ("Write", {"file_path": A, "content": "x"})],
        after={"a.txt": "x"},
    ),
    Says(
        "5-write-over-partly-read",
        [read(limit=1), ("Write", {"file_path": A, "content": "x"})],
        code=Code.NOT_READ,
    ),
    # Glob.
    Is("5-glob-arguments", is_shown("Glob", ["pattern"], "path")),
    Is("5-glob-limit", limit("Glob", 30_000)),
    Is("5-glob-is-safe", has_order("Glob", Order.SAFE)),
    Elsewhere(
        "5-glob-sorted-by-modification",
        "test_toolset_claude_code",
        "test_the_newest_file_comes_first",
    ),
    Says("5-glob-double-star", [("Glob", {"pattern": "**/*.js"})], text="/workspace/src/y.js"),
    Says("5-glob-prefix", [("Glob", {"pattern": "src/**/*.py"})], text="/workspace/src/x.py"),
    Says(
        "5-glob-path",
        [("Glob", {"pattern": "*.py", "path": "/workspace/src"})],
        text="/workspace/src/x.py",
    ),
    Says(
        "5-glob-default-is-cwd",
        [bash("cd src"), ("Glob", {"pattern": "*.py"})],
        text="/workspace/src/x.py",
    ),
    Says("5-glob-nothing", [("Glob", {"pattern": "*.zzz"})], text="No matches found"),
    # Grep.
    Is(
        "5-grep-arguments",
        is_shown(
            "Grep",
            ["pattern"],
            "path",
            "glob",
            "type",
            "output_mode",
            "multiline",
            "-i",
            "-n",
            "-A",
            "-B",
            "-C",
            "head_limit",
            "offset",
        ),
    ),
    Is("5-grep-limit", limit("Grep", 20_000)),
    Is("5-grep-is-safe", has_order("Grep", Order.SAFE)),
    Says("5-grep-default-mode", [grep("foo")], text="/workspace/src/x.py\n/workspace/src/y.js"),
    Elsewhere(
        "5-grep-every-argument", "test_toolset_claude_code", "test_a_search_has_the_seeds_arguments"
    ),
    Elsewhere(
        "5-grep-every-fault",
        "test_toolset_claude_code",
        "test_a_search_that_can_not_be_made_says_why",
    ),
    Says(
        "5-grep-regex",
        [("Grep", {"pattern": r"function\s+\w+", "output_mode": "content"})],
        text=re.escape("/workspace/src/y.js:1:function foo() {}"),
    ),
    Says(
        "5-grep-braces-need-escaping", [("Grep", {"pattern": r"\{\}"})], text="/workspace/src/y.js"
    ),
    Says(
        "5-grep-default-is-cwd",
        [bash("cd src"), ("Grep", {"pattern": "foo|alpha"})],
        text="/workspace/src/x.py\n/workspace/src/y.js",
    ),
    Says("5-grep-of-one-file", [("Grep", {"pattern": "beta", "path": "a.txt"})], text=A),
    # Bash.
    Is(
        "5-bash-arguments",
        is_shown("Bash", ["command"], "description", "timeout", "run_in_background"),
    ),
    Is("5-bash-limit", limit("Bash", 30_000)),
    Is(
        "5-bash-timeouts",
        lambda: (
            (
                tools("claude-code")["Bash"].entry.timeout_ms,
                tools("claude-code")["Bash"].entry.max_timeout_ms,
            )
            == (120_000, 600_000)
        ),
    ),
    Is("5-bash-says-its-default-timeout", says("Bash", "commands will timeout after 120000ms")),
    Says("5-bash-output", [bash("echo out")], text="out\n", facts={"exit_code": 0}),
    Says(
        "5-bash-failure-is-an-error",
        [bash("echo out; exit 4")],
        code=Code.EXECUTION_ERROR,
        text="Exit code: 4\nout\n",
        facts={"exit_code": 4},
    ),
    Says("5-bash-description", [bash("echo out", description="Says out")], text="out\n"),
    Says("5-bash-cwd-persists", [bash("cd src"), bash("ls")], text="x.py\ny.js\n"),
    Says(
        "5-bash-variables-do-not-persist",
        [bash("export X=1"), bash("echo [$X]")],
        text=re.escape("[]\n"),
    ),
    Says(
        "5-bash-timeout",
        [bash("sleep 60", timeout=200)],
        code=Code.TIMEOUT,
        text="Command timed out after 200ms\n?",
    ),
    Says("5-bash-timeout-too-long", [bash("true", timeout=600_001)], code=Code.INVALID_ARGUMENTS),
    Says(
        "5-bash-merged",
        [bash("echo 1; echo 2 >&2; echo 3")],
        text="1\n2\n3\n",
        facts={"merged": True, "stderr": ""},
    ),
    Says("5-bash-disable-sandbox-false", [bash("true", dangerously_disable_sandbox=False)]),
    Says(
        "5-bash-disable-sandbox-true",
        [bash("true", dangerously_disable_sandbox=True)],
        code=Code.PERMISSION_DENIED,
        text=r"the sandbox can't be turned off\..*",
    ),
    Says(
        "5-bash-simulated-sed-edit-of-a-model",
        [
            (
                "Bash",
                {"command": "ls", "_simulated_sed_edit": {"file_path": "a", "new_content": ""}},
            ),
        ],
        code=Code.INVALID_ARGUMENTS,
    ),
    Elsewhere(
        "5-bash-simulated-sed-edit-of-an-approver",
        "test_toolset_claude_code",
        "test_an_approver_may_write_what_a_preview_showed",
    ),
    Elsewhere(
        "5-bash-read-only-commands", "test_permissions", "test_commands_that_only_read_need_no_rule"
    ),
    Says(
        "5-bash-asks-in-default-mode", [bash("make")], code=Code.APPROVAL_REQUIRED, mode="default"
    ),
    Says("5-bash-reads-in-default-mode", [bash("ls src")], text="x.py\ny.js\n", mode="default"),
    Elsewhere(
        "5-bash-background",
        "test_background",
        "test_bash_takes_milliseconds_and_runs_in_the_background",
    ),
    # TaskOutput and KillShell.
    Is("5-task-output-arguments", is_shown("TaskOutput", ["task_id", "block", "timeout"])),
    Is(
        "5-task-output-timeout-bounds",
        lambda: (
            {
                key: shown("TaskOutput")["properties"]["timeout"][key]
                for key in ("default", "minimum", "maximum")
            }
            == {"default": 30_000, "minimum": 0, "maximum": 600_000}
        ),
    ),
    Is("5-task-output-is-safe", has_order("TaskOutput", Order.SAFE)),
    Says(
        "5-task-output-defaults",
        [
            bash("echo done", run_in_background=True),
            ("TaskOutput", {"task_id": "bash_1"}),
        ],
        facts={"retrieval_status": "success"},
    ),
    Says(
        "5-task-output-unknown",
        [("TaskOutput", {"task_id": "x", "block": True, "timeout": 1})],
        code=Code.NOT_FOUND,
    ),
    Is("5-kill-shell-arguments", is_shown("KillShell", ["shell_id"])),
    Says(
        "5-kill-shell",
        [
            bash("sleep 60", run_in_background=True),
            ("KillShell", {"shell_id": "bash_1"}),
        ],
        text="Successfully killed shell: bash_1",
    ),
    Says("5-kill-shell-unknown", [("KillShell", {"shell_id": "x"})], code=Code.NOT_FOUND),
    # TodoWrite.
    Is("5-todo-arguments", is_shown("TodoWrite", ["todos"])),
    Is(
        "5-todo-items",
        lambda: (
            shown("TodoWrite")["properties"]["todos"]["items"]["required"]
            == [
                "content",
                "status",
            ]
        ),
    ),
    Is("5-todo-is-unsafe", has_order("TodoWrite", Order.UNSAFE)),
    Says(
        "5-todo-active", [todo("in_progress", "pending")], text="Todo list updated. Active: item 0"
    ),
    Says(
        "5-todo-active-form",
        [
            (
                "TodoWrite",
                {
                    "todos": [
                        {
                            "content": "Run tests",
                            "status": "in_progress",
                            "activeForm": "Running tests",
                        },
                    ]
                },
            )
        ],
        text="Todo list updated. Active: Running tests",
    ),
    Says("5-todo-none-active", [todo("pending", "completed")], text=r"Todo list updated\."),
    Says(
        "5-todo-two-active",
        [todo("in_progress", "in_progress")],
        code=Code.INVALID_ARGUMENTS,
        text="Exactly one task should be in_progress at a time",
    ),
    Says(
        "5-todo-replaces",
        [todo("pending", "pending"), ("TodoWrite", {"todos": []})],
        facts={"todos": []},
    ),
    Says("5-todo-status-is-closed", [todo("started")], code=Code.INVALID_ARGUMENTS),
    # Plan mode.
    Is(
        "5-enter-plan-mode-schema",
        lambda: (
            shown("EnterPlanMode")
            == {
                "type": "object",
                "additionalProperties": False,
                "properties": {},
            }
        ),
    ),
    Is("5-enter-plan-mode-nothing-passes", has_order("EnterPlanMode", Order.BARRIER)),
    Says(
        "5-enter-plan-mode-no-arguments", [("EnterPlanMode", {"x": 1})], code=Code.INVALID_ARGUMENTS
    ),
    Says(
        "5-plan-mode-denies-writes",
        [
            ("EnterPlanMode", {}),
            ("Write", {"file_path": "new.txt", "content": ""}),
        ],
        code=Code.PERMISSION_DENIED,
    ),
    Says(
        "5-plan-mode-denies-commands",
        [("EnterPlanMode", {}), bash("make")],
        code=Code.PERMISSION_DENIED,
    ),
    Says(
        "5-plan-mode-allows-reading-commands",
        [("EnterPlanMode", {}), bash("ls src")],
        text="x.py\ny.js\n",
    ),
    Is(
        "5-exit-plan-mode-arguments",
        is_shown(
            "ExitPlanMode",
            [],
            "allowedPrompts",
            "pushToRemote",
            "remoteSessionId",
            "remoteSessionTitle",
            "remoteSessionUrl",
        ),
    ),
    Is(
        "5-exit-plan-mode-takes-more", lambda: shown("ExitPlanMode")["additionalProperties"] is True
    ),
    Is(
        "5-exit-plan-mode-prompts-are-closed",
        lambda: (
            shown("ExitPlanMode")["properties"]["allowedPrompts"]["items"]["additionalProperties"]
            is False
        ),
    ),
    Is("5-exit-plan-mode-nothing-passes", has_order("ExitPlanMode", Order.BARRIER)),
    # Questions.
    Is("5-ask-user-question-nothing-passes", has_order("AskUserQuestion", Order.BARRIER)),
    Is("5-ask-user-question-arguments", is_shown("AskUserQuestion", ["questions"])),
    Says(
        "5-ask-user-question-nobody-there",
        [
            (
                "AskUserQuestion",
                {
                    "questions": [
                        {
                            "question": "Which?",
                            "header": "Choice",
                            "options": [
                                {"label": "A", "description": "a"},
                                {"label": "B", "description": "b"},
                            ],
                        }
                    ]
                },
            )
        ],
        code=Code.APPROVAL_REQUIRED,
    ),
    Says(
        "5-ask-user-question-one-option",
        [
            (
                "AskUserQuestion",
                {
                    "questions": [
                        {
                            "question": "Which?",
                            "header": "Choice",
                            "options": [{"label": "A", "description": "a"}],
                        }
                    ]
                },
            )
        ],
        code=Code.INVALID_ARGUMENTS,
    ),
    # NotebookEdit, Task, Skill.
    Is(
        "5-notebook-edit-arguments",
        is_shown(
            "NotebookEdit",
            ["notebook_path", "new_source"],
            "cell_id",
            "cell_type",
            "edit_mode",
        ),
    ),
    Is("5-notebook-edit-is-unsafe", has_order("NotebookEdit", Order.UNSAFE)),
    Says(
        "5-notebook-edit-replaces-a-cell",
        [("Write", {"file_path": "n.ipynb", "content": NOTEBOOK}), notebook_edit("a", "y = 2")],
        text="Replaced the source of cell a in /workspace/n.ipynb.*",
        after={"n.ipynb": NOTEBOOK.replace("x = 1", "y = 2")},
    ),
    Says(
        "5-notebook-edit-unknown-cell",
        [("Write", {"file_path": "n.ipynb", "content": NOTEBOOK}), notebook_edit("z", "y = 2")],
        code=Code.NO_MATCH,
        after={"n.ipynb": NOTEBOOK},
    ),
    Is(
        "5-task-arguments",
        is_shown(
            "Task",
            ["description", "prompt", "subagent_type"],
            "model",
            "resume",
            "run_in_background",
            "max_turns",
            "allowed_tools",
        ),
    ),
    Is("5-task-is-safe", has_order("Task", Order.SAFE)),
    Says(
        "5-task-without-a-model-is-disabled",
        [("Task", {"description": "d", "prompt": "p", "subagent_type": "Explore"})],
        code=Code.DISABLED,
        text="Task is disabled: no model was given.*",
    ),
    Is("5-skill-arguments", is_shown("Skill", ["skill"], "args")),
    Is("5-skill-nothing-passes", has_order("Skill", Order.BARRIER)),
    Says(
        "5-skill-without-skills-is-disabled",
        [("Skill", {"skill": "commit"})],
        code=Code.DISABLED,
        text="Skill is disabled: the loop was opened without skills.*",
    ),
    Elsewhere("5-read-images", "test_rich", "test_a_picture_is_a_block"),
    Elsewhere("5-read-pdf-text-and-pictures", "test_rich", "test_pages_are_text_and_pictures"),
    Elsewhere("5-read-pdf-pages", "test_rich", "test_a_range_of_pages"),
    Elsewhere("5-read-notebooks", "test_rich", "test_cells_are_shown_with_their_outputs"),
    Elsewhere("5-notebook-edit-modes", "test_notebook", "test_modes"),
    Elsewhere("5-notebook-edit-needs-a-reading", "test_notebook", "test_a_change_needs_a_reading"),
    Elsewhere(
        "5-task-result-is-the-last-message", "test_agents", "test_result_is_the_last_message"
    ),
    Elsewhere(
        "5-task-types-in-the-description", "test_agents", "test_types_stand_in_the_description"
    ),
    Elsewhere(
        "5-task-model", "test_agents", "test_model_is_the_calls_then_the_types_then_the_clients"
    ),
    Elsewhere("5-task-resume", "test_agents", "test_resumed_agent_knows_what_was_said"),
    Elsewhere("5-task-run-in-background", "test_agents", "test_background"),
    Elsewhere("5-task-max-turns", "test_agents", "test_turns_are_bounded"),
    Elsewhere("5-task-allowed-tools", "test_agents", "test_allowed_tools_narrow"),
    Elsewhere("5-task-agents-run-side-by-side", "test_agents", "test_agents_run_side_by_side"),
    Elsewhere(
        "5-task-output-of-agents", "test_agents", "test_tools_of_background_tasks_take_agents"
    ),
    Elsewhere("5-skill-result", "test_skills", "test_body_is_the_result"),
    Elsewhere("5-skill-listed-in-the-description", "test_skills", "test_description_lists_skills"),
    Elsewhere("5-skill-unknown", "test_skills", "test_unknown_skill"),
    Elsewhere("5-exit-plan-mode-reads-the-plan-file", "test_consent", "test_no_plan"),
    Elsewhere(
        "5-exit-plan-mode-restores-the-mode", "test_consent", "test_approved_plan_restores_the_mode"
    ),
    Elsewhere("5-exit-plan-mode-grants-prompts", "test_consent", "test_prompts_become_rules"),
    Elsewhere("5-exit-plan-mode-leader-approval", "test_consent", "test_leader_decides_later"),
    Elsewhere(
        "5-exit-plan-mode-push-to-remote", "test_consent", "test_arguments_of_the_specification"
    ),
    Elsewhere("5-ask-user-question-answers", "test_consent", "test_answers"),
    # Concurrency.
    Elsewhere(
        "5-execution-flow-example",
        "test_turns",
        "test_the_example_of_the_specification_runs_as_it_says",
    ),
    Elsewhere("5-execution-flow-order", "test_scheduling", "test_the_example_of_the_specification"),
    Elsewhere("5-streaming-execution", "test_turns", "test_a_call_runs_when_its_block_has_ended"),
    # Modes, as decided: the seed's own code is not followed.
    Is("5-mode-default-reads", mode_says("Read", Mode.DEFAULT, Verdict.ALLOW)),
    Is("5-mode-default-asks-before-edits", mode_says("Edit", Mode.DEFAULT, Verdict.ASK)),
    Is("5-mode-default-asks-before-commands", mode_says("Bash", Mode.DEFAULT, Verdict.ASK)),
    Is("5-mode-plan-reads", mode_says("Grep", Mode.PLAN, Verdict.ALLOW)),
    Is("5-mode-plan-todos", mode_says("TodoWrite", Mode.PLAN, Verdict.ALLOW)),
    Is("5-mode-accept-edits-edits", mode_says("Edit", Mode.ACCEPT_EDITS, Verdict.ALLOW)),
    Is(
        "5-mode-accept-edits-asks-before-commands",
        mode_says("Bash", Mode.ACCEPT_EDITS, Verdict.ASK),
    ),
    Is("5-mode-bypass-commands", mode_says("Bash", Mode.BYPASS, Verdict.ALLOW)),
    Elsewhere(
        "5-permissions-are-granted-by-pattern",
        "test_permissions",
        "test_rules_can_be_granted_while_the_loop_is_open",
    ),
    Is(
        "5-access-of-tools",
        lambda: (
            {
                name: tool.access
                for name, tool in tools("claude-code").items()
                if name in ("Read", "Write", "Bash", "TodoWrite")
            }
            == {
                "Read": Access.READ,
                "Write": Access.WRITE,
                "Bash": Access.EXEC,
                "TodoWrite": Access.SESSION,
            }
        ),
    ),
    Is(
        "5-web-tools-and-lsp",
        lambda: {"WebFetch", "WebSearch", "LSP"} <= tools("claude-code").keys(),
    ),
    Is("5-lsp-arguments", is_shown("LSP", ["operation", "file_path", "line", "column"])),
    Is(
        "5-lsp-operations",
        lambda: (
            shown("LSP")["properties"]["operation"]["enum"]
            == ["goto_definition", "hover", "find_references"]
        ),
    ),
    Is("5-lsp-is-safe", has_order("LSP", Order.SAFE)),
    Is("5-mode-plan-lsp", mode_says("LSP", Mode.PLAN, Verdict.ALLOW)),
    Is("5-mode-default-lsp", mode_says("LSP", Mode.DEFAULT, Verdict.ALLOW)),
    Elsewhere(
        "5-web-fetch",
        "test_web",
        "test_a_prompt_about_a_page_is_answered_by_the_second_model",
    ),
    Elsewhere("5-web-search", "test_search", "test_domains_are_filtered_exactly_and_below"),
)

ROWS = (*LOOM, *CLAUDE)


def of(kind: type[Any]) -> list[Any]:
    return [pytest.param(row, id=row.key) for row in ROWS if isinstance(row, kind)]


# ─── loops ──────────────────────────────────────────────────────────────────────────


@dataclass
class Loops:
    """One loop for each toolset and mode, opened when it is first needed.

    Attributes:
        kind: of their boxes: `local` or `docker`.
        directory: for their worktrees.
        stack: closes them.
        opened: by toolset and mode.
    """

    kind: str
    directory: Path
    stack: ExitStack
    opened: dict[tuple[str, str], Work] = field(default_factory=dict)

    def work(self, toolset: str, mode: str) -> Work:
        """The loop, over a worktree as it is before every row."""
        found = self.opened.get((toolset, mode))
        if found is None:
            place = self.directory / f"{toolset}-{mode}"
            made = open_work(
                self.kind, place, change=lambda spec: replace(spec, toolset=toolset, mode=mode)
            )
            found = self.opened[toolset, mode] = self.stack.enter_context(made)
        subprocess.run(["find", str(found.root), "-mindepth", "1", "-delete"], check=True)
        for name, text in FILES.items():
            found.write(name, text)
        found.loop.session.clear_reads()
        found.loop.session.mode = mode
        found.loop.session.cwd = MOUNT
        return found


@pytest.fixture(scope="module", params=["local", "docker"])
def loops(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loops]:
    """The loops of all rows, over each transport."""
    with ExitStack() as stack:
        yield Loops(request.param, tmp_path_factory.mktemp(request.param), stack)


MOVING = ("cd ", "run_in_background", "EnterPlanMode")
"""What leaves a loop otherwise than it was: such a row has one of its own."""


@contextmanager
def loop_for(row: Says, loops: Loops, directory: Path) -> Iterator[Work]:
    toolset = NAMES[row.key[0]]
    if not any(part in str(row.calls) for part in MOVING):
        yield loops.work(toolset, row.mode)
        return
    with ExitStack() as stack:
        yield Loops(loops.kind, directory, stack).work(toolset, row.mode)


@pytest.mark.parametrize("row", of(Says))
def test_calls_come_to_what_the_statement_says(loops: Loops, tmp_path: Path, row: Says) -> None:
    """The last result of the row's calls is as the row says, and so are the files."""
    check(row, loops, tmp_path)


def check(row: Says, loops: Loops, tmp_path: Path) -> None:
    """Make the row's calls, and compare what they come to with what it says."""
    with loop_for(row, loops, tmp_path) as work:
        *before, (name, given) = row.calls
        for first, arguments in before:
            assert not work.call(first, **arguments).is_error
        result = work.call(name, **given)
        assert result.code is row.code, result.content
        if row.text is not None:
            assert re.fullmatch(row.text, str(result.content), re.DOTALL), result.content
        facts = result.structured or {}
        assert {key: facts.get(key) for key in row.facts} == dict(row.facts)
        after = {path: (work.root / path).read_text() for path in row.after}
        assert after == dict(row.after)


@pytest.mark.parametrize("row", of(Is))
def test_what_is_looked_at_is_so(row: Is) -> None:
    """What the row says of tools, schemas and texts holds."""
    assert row.holds()


@pytest.mark.parametrize("row", of(Elsewhere))
def test_the_statement_has_its_test(row: Elsewhere) -> None:
    """The test that the row names is there, under this name."""
    assert row.function in functions_of(row.file)


@functools.cache
def functions_of(name: str) -> frozenset[str]:
    """The functions of a file of tests."""
    tree = ast.parse((TESTS / f"{name}.py").read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_statement_has_one_row() -> None:
    """Keys are distinct, name their specification, and can be written anywhere."""
    keys = [row.key for row in ROWS]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[35](-[a-z0-9]+)+", key) for key in keys)


@pytest.mark.parametrize("toolset", ["loom", "claude-code"])
def test_every_tool_has_a_row(toolset: str) -> None:
    """No tool of a toolset is left out silently."""
    told = " ".join(f"{row.key}-" for row in ROWS)
    for name in tools(toolset):
        spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower().replace("_", "-")
        part = {"todo-write": "todo"}.get(spelled, spelled)
        assert f"-{part}-" in told, name


# ─── every argument of every tool ───────────────────────────────────────────────────

WRONG: Mapping[str, Any] = {
    "string": 7,
    "integer": "7",
    "number": "7",
    "boolean": "true",
    "array": "a",
    "object": "a",
}
EACH = [(toolset, name) for toolset in ("claude-code", "loom") for name in tools(toolset)]
EACH_ARGUMENT = [
    (toolset, name, key)
    for toolset, name in EACH
    for key in tools(toolset)[name].schema["properties"]
]


def refused(toolset: str, name: str, given: Mapping[str, Any]) -> str:
    """What is said of arguments that are refused."""
    with pytest.raises(ToolError) as caught:
        tools(toolset)[name].parse(given)
    assert caught.value.code is Code.INVALID_ARGUMENTS
    return str(caught.value)


@pytest.mark.parametrize(("toolset", "name", "key"), EACH_ARGUMENT)
def test_no_argument_takes_another_type(toolset: str, name: str, key: str) -> None:
    """A value of another JSON type is refused, and the argument is named as it is shown."""
    kind = tools(toolset)[name].schema["properties"][key]["type"]
    assert f"{key} must be" in refused(toolset, name, {key: WRONG[kind]})


@pytest.mark.parametrize(("toolset", "name"), EACH)
def test_arguments_that_are_missing_or_unknown_are_all_named(toolset: str, name: str) -> None:
    """Every fault is told at once; what the schema opens to more takes more."""
    schema = tools(toolset)[name].schema
    if schema.get("additionalProperties") is True:
        tools(toolset)[name].parse({"frobnicate": 1})
        return
    said = refused(toolset, name, {"frobnicate": 1})
    assert "frobnicate is not an argument" in said
    needed = [
        key for key in schema.get("required", ()) if "default" not in schema["properties"][key]
    ]
    assert [key for key in needed if f"{key} is required" not in said] == []
