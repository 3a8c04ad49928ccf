"""Specification 2 (workspace), statement by statement, as `test_conformance` has others."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from executor.approvals import CallableApprover
from executor.errors import Code
from executor.model import ApprovalAnswer, ApprovalRequest, Result
from executor.permissions import Mode, Verdict, decide
from executor.tool import Registry, Tool
from tests.loops import Work, open_work
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

SIX = ("list_directory", "read_file", "write_file", "delete_file", "move_file", "run_code")


def read(path: str = "a.txt", **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "read_file", {"path": path, **more}


def write(path: str, content: str, **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "write_file", {"path": path, "content": content, **more}


def delete(path: str, **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "delete_file", {"path": path, **more}


def move(source: str, target: str, **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "move_file", {"from": source, "to": target, **more}


def code(language: str, text: str, **more: Any) -> tuple[str, Mapping[str, Any]]:
    return "run_code", {"language": language, "code": text, **more}


def has_arguments(name: str, required: list[str], *optional: str) -> Is:
    """The specification's arguments are there, and as many of them required as it says."""

    def holds() -> bool:
        schema = tools("standard")[name].schema
        return schema.get("required", []) == required and set(optional) <= set(schema["properties"])

    return Is(f"2-{name.replace('_', '-')}-arguments", holds)


def mode_says(key: str, name: str, verdict: Verdict) -> Is:
    def holds() -> bool:
        tool = tools("standard")[name]
        return decide(Mode.DEFAULT, tool.access, tool.canonical) is verdict

    return Is(key, holds)


ALL_BYTES = base64.b64encode(bytes(range(256))).decode()
TREE = [write("d/e/f.txt", "1"), write("d/g.txt", "2")]

WORKSPACE: tuple[Row, ...] = (
    # list_directory.
    has_arguments("list_directory", [], "path", "recursive", "includeHidden"),
    Says(
        "2-list-directory-recursive",
        [*TREE, ("list_directory", {"path": "d", "recursive": True})],
        text="e/\ne/f.txt\ng.txt",
    ),
    Says(
        "2-list-directory-recursive-default",
        [*TREE, ("list_directory", {"path": "d"})],
        text="e/\ng.txt",
    ),
    Says(
        "2-list-directory-include-hidden",
        [write("d/.h", ""), ("list_directory", {"path": "d", "includeHidden": True})],
        text=".h",
    ),
    Says(
        "2-list-directory-include-hidden-default",
        [write("d/.h", ""), ("list_directory", {"path": "d"})],
        text=r"empty directory\n\[1 hidden not shown; .*",
        facts={"entries": [], "hidden": 1},
    ),
    Elsewhere(
        "2-list-directory-recursive-bounds",
        "agent/test_files",
        "test_depth_and_links_bound_a_listing",
    ),
    Elsewhere(
        "2-list-directory-entries", "test_conformance_2", "test_entries_have_the_four_fields"
    ),
    Says(
        "2-list-directory-auto",
        [("list_directory", {"path": "src"})],
        text="x.py\ny.js",
        mode="default",
    ),
    # read_file.
    has_arguments("read_file", ["path"], "encoding"),
    Says(
        "2-read-file-utf-8",
        [read(encoding="utf-8")],
        facts={"content": "alpha\nbeta", "size": 11},
    ),
    Says("2-read-file-encoding-default", [read()], facts={"encoding": "utf-8"}),
    Says(
        "2-read-file-base64",
        [write("bytes", ALL_BYTES, encoding="base64"), read("bytes", encoding="base64")],
        text=re.escape(ALL_BYTES),
        facts={"content": ALL_BYTES, "size": 256, "encoding": "base64"},
    ),
    Says("2-read-file-other-encoding", [read(encoding="latin-1")], code=Code.INVALID_ARGUMENTS),
    Elsewhere("2-read-file-modified", "test_conformance_2", "test_times_are_iso_8601_in_utc"),
    Elsewhere("2-read-file-base64-limit", "test_tools", "test_base64_is_the_whole_file"),
    Says("2-read-file-auto", [read()], facts={"size": 11}, mode="default"),
    # write_file.
    has_arguments("write_file", ["path", "content"], "encoding", "createDirs"),
    Says(
        "2-write-file",
        [write("n.txt", "é")],
        facts={"path": "n.txt", "size": 2},
        after={"n.txt": "é"},
    ),
    Says("2-write-file-utf-8", [write("n.txt", "aGk=", encoding="utf-8")], after={"n.txt": "aGk="}),
    Says(
        "2-write-file-base64",
        [write("n.txt", "aGk=", encoding="base64")],
        facts={"path": "n.txt", "size": 2},
        after={"n.txt": "hi"},
    ),
    Says(
        "2-write-file-bad-base64",
        [write("n.txt", "a", encoding="base64")],
        code=Code.INVALID_ARGUMENTS,
    ),
    Says("2-write-file-create-dirs-default", [write("p/q/n", "")], after={"p/q/n": ""}),
    Says("2-write-file-create-dirs", [write("p/q/n", "", createDirs=True)], after={"p/q/n": ""}),
    Says(
        "2-write-file-create-dirs-false",
        [write("p/q/n", "", createDirs=False)],
        code=Code.FILE_NOT_FOUND,
        text=".*p/q.*",
    ),
    Says("2-write-file-new-is-auto", [write("n.txt", "x")], after={"n.txt": "x"}, mode="default"),
    Says(
        "2-write-file-over-is-asked",
        [read(), write("a.txt", "x")],
        code=Code.APPROVAL_REQUIRED,
        after={"a.txt": FILES["a.txt"]},
        mode="default",
    ),
    # delete_file.
    has_arguments("delete_file", ["path"], "recursive"),
    Says(
        "2-delete-file",
        [write("d/g.txt", ""), delete("d/g.txt")],
        facts={"deleted": ["d/g.txt"], "count": 1},
    ),
    Says(
        "2-delete-file-recursive",
        [TREE[0], delete("d", recursive=True)],
        facts={"deleted": ["d/e/f.txt", "d/e", "d"], "count": 3},
    ),
    Says(
        "2-delete-file-recursive-default",
        [*TREE, delete("d")],
        code=Code.NOT_A_FILE,
        text=".*Use recursive=true.*",
        after={"d/g.txt": "2"},
    ),
    Says("2-delete-file-missing", [delete("none")], code=Code.FILE_NOT_FOUND),
    Says("2-delete-file-escape", [delete("../x")], code=Code.INVALID_PATH),
    Says(
        "2-delete-file-is-always-asked",
        [write("n.txt", ""), delete("n.txt")],
        code=Code.APPROVAL_REQUIRED,
        after={"n.txt": ""},
        mode="default",
    ),
    # move_file.
    has_arguments("move_file", ["from", "to"], "overwrite"),
    Says(
        "2-move-file",
        [move("a.txt", "new/b.txt")],
        facts={"from": "a.txt", "to": "new/b.txt"},
        after={"new/b.txt": FILES["a.txt"]},
    ),
    Says(
        "2-move-file-overwrite-default",
        [move("a.txt", "b.txt")],
        code=Code.EXISTS,
        after={"a.txt": FILES["a.txt"], "b.txt": FILES["b.txt"]},
    ),
    Says(
        "2-move-file-overwrite",
        [move("a.txt", "b.txt", overwrite=True)],
        facts={"from": "a.txt", "to": "b.txt"},
        after={"b.txt": FILES["a.txt"]},
    ),
    Says("2-move-file-missing", [move("none", "x")], code=Code.FILE_NOT_FOUND),
    Says("2-move-file-directory", [move("src", "lib")], after={"lib/x.py": FILES["src/x.py"]}),
    Says("2-move-file-is-auto", [move("a.txt", "n")], after={"n": FILES["a.txt"]}, mode="default"),
    Says(
        "2-move-file-over-is-asked",
        [move("a.txt", "b.txt", overwrite=True)],
        code=Code.APPROVAL_REQUIRED,
        after={"b.txt": FILES["b.txt"]},
        mode="default",
    ),
    # run_code.
    has_arguments("run_code", ["language", "code"], "args", "env", "timeout"),
    Says("2-run-code-python", [code("python", "print(6 * 7)")], text="42\n"),
    Says("2-run-code-bash", [code("bash", "a=(1 2); echo ${a[1]}")], text="2\n"),
    Says("2-run-code-other-language", [code("ruby", "p 1")], code=Code.INVALID_ARGUMENTS),
    Says(
        "2-run-code-args",
        [code("python", "import sys; print(sys.argv[1:])", args=["a b", "-c"])],
        text=re.escape("['a b', '-c']\n"),
    ),
    Says("2-run-code-env", [code("bash", "echo $A", env={"A": "x y"})], text="x y\n"),
    Says(
        "2-run-code-env-path",
        [code("python", "import os; print(os.environ['PATH'])", env={"PATH": "/nothing"})],
        text="/nothing\n",
    ),
    Says(
        "2-run-code-env-names",
        [code("bash", "", env={"A B": "1", "EXECUTOR_CALL": "1"}, args=["", "\0"])],
        code=Code.INVALID_ARGUMENTS,
        text="Invalid arguments for run_code: env: 'A B' is not a variable name; "
        "env: EXECUTOR_CALL is reserved for the executor; args.1: it holds a NUL character.",
    ),
    Says("2-run-code-env-is-text", [code("bash", "", env={"A": 1})], code=Code.INVALID_ARGUMENTS),
    Says(
        "2-run-code-result",
        [code("bash", "echo o; echo e >&2")],
        facts={"stdout": "o\n", "stderr": "e\n", "exitCode": 0},
    ),
    Says(
        "2-run-code-exit-code",
        [code("python", "raise SystemExit(4)")],
        code=Code.EXECUTION_ERROR,
        text="Exit code: 4\n",
        facts={"exitCode": 4},
    ),
    Says(
        "2-run-code-timeout-in-seconds",
        [code("python", "import time; time.sleep(60)", timeout=0.3)],
        code=Code.TIMEOUT,
        text="Command timed out after 300ms\n",
        facts={"exitCode": None, "timed_out": True},
    ),
    Is("2-run-code-timeout-default", lambda: CATALOG.tools["run_code"].timeout_ms == 60_000),
    Says(
        "2-run-code-timeout-too-long", [code("bash", "", timeout=601)], code=Code.INVALID_ARGUMENTS
    ),
    Says("2-run-code-timeout-zero", [code("bash", "", timeout=0)], code=Code.INVALID_ARGUMENTS),
    Elsewhere("2-run-code-duration", "test_conformance_2", "test_the_duration_is_in_milliseconds"),
    mode_says("2-run-code-auto", "run_code", Verdict.ALLOW),
    Says("2-run-code-auto-runs", [code("python", "print(1)")], text="1\n", mode="default"),
    Elsewhere("2-run-code-no-network", "security/test_e_network", "test_only_loopback_exists"),
    Elsewhere(
        "2-run-code-memory",
        "security/test_i_limits",
        "test_twice_the_memory_kills_and_is_told",
    ),
    Elsewhere(
        "2-run-code-processors",
        "security/test_i_limits",
        "test_sixty_four_busy_processes_get_no_more_than_their_share",
    ),
    Elsewhere(
        "2-run-code-no-other-files",
        "security/test_g_files",
        "test_only_the_listed_places_can_be_written",
    ),
    # Web access.
    Elsewhere("2-web-fetch", "test_web", "test_text_is_shown_as_it_is_with_its_status"),
    Elsewhere("2-web-fetch-post", "test_web", "test_a_post_sends_its_body_and_headers"),
    Elsewhere("2-web-fetch-auto-on-allowlist", "test_web", "test_who_is_asked"),
    Says(
        "2-web-fetch-without-egress",
        [("web_fetch", {"url": "https://example.org/"})],
        code=Code.NETWORK_DENIED,
    ),
    Elsewhere("2-web-search", "test_search", "test_results_are_text_and_data"),
    Says("2-web-search-without-key", [("web_search", {"query": "x"})], code=Code.DISABLED),
    # Tool and registry.
    Is(
        "2-tool-has-its-parts",
        lambda: (
            {"name", "description", "schema", "output_schema", "run"}
            <= {part.name for part in fields(Tool)}
        ),
    ),
    Elsewhere("2-tool-of-ones-own", "test_registry", "test_a_function_becomes_a_tool"),
    Elsewhere("2-tool-requires-approval", "test_registry", "test_modes_hold_for_it_by_its_access"),
    Elsewhere(
        "2-registry-register-get-list",
        "test_registry",
        "test_a_registry_lists_in_order_and_gives_by_name",
    ),
    Is(
        "2-registry-to-openai-functions",
        lambda: all(
            set(function) == {"name", "description", "parameters"}
            for function in Registry.from_tools(tools("standard").values()).to_openai_functions()
        ),
    ),
    # Approvals.
    Is(
        "2-approval-request",
        lambda: {"step_id", "tool", "arguments", "reason"} <= set(ApprovalRequest.__slots__),
    ),
    Is(
        "2-approval-answer",
        lambda: {"approved", "modified_arguments"} <= set(ApprovalAnswer.__slots__),
    ),
    Elsewhere(
        "2-approval-shows-details", "test_approvals", "test_a_request_says_what_would_run_and_why"
    ),
    Elsewhere("2-approval-pauses", "test_approvals", "test_nobody_answering_is_a_no"),
    Elsewhere("2-approval-resumes", "test_approvals", "test_an_approved_call_runs_once"),
    Elsewhere("2-approval-aborts", "test_approvals", "test_a_denial_is_that_calls_alone"),
    Elsewhere(
        "2-approval-modified-args", "test_approvals", "test_modified_arguments_go_round_again"
    ),
    Elsewhere("2-approval-dialog", "test_asking", "test_a_call_asks_at_its_terminal"),
    Elsewhere(
        "2-approval-dynamic",
        "test_permissions",
        "test_default_mode_asks_before_anything_is_lost",
    ),
    Elsewhere(
        "2-approval-of-what-was-new",
        "test_approvals",
        "test_a_file_that_appears_meanwhile_is_not_overwritten",
    ),
    # Errors.
    Is(
        "2-error-has-code-message-details",
        lambda: {"is_error", "code", "content", "details"} <= set(Result.__slots__),
    ),
    Says("2-error-invalid-path", [read("../../etc/passwd")], code=Code.INVALID_PATH),
    Says("2-error-invalid-path-malformed", [read("a\0b")], code=Code.INVALID_PATH),
    Says("2-error-file-not-found", [read("none")], code=Code.FILE_NOT_FOUND),
    Elsewhere(
        "2-error-permission-denied",
        "test_conformance_2",
        "test_a_file_that_can_not_be_read_or_written_is_permission_denied",
    ),
    Says("2-error-timeout", [code("bash", "sleep 60", timeout=0.2)], code=Code.TIMEOUT),
    Says("2-error-execution-error", [code("bash", "exit 1")], code=Code.EXECUTION_ERROR),
    # Future tools that are there all the same.
    Elsewhere("2-future-run-tests", "test_projects", "test_what_the_worktree_has_is_found"),
    Elsewhere(
        "2-future-format-code",
        "test_registry",
        "test_a_command_of_the_catalog_is_a_tool_of_every_toolset",
    ),
)


def of(kind: type[Any]) -> list[Any]:
    return [pytest.param(row, id=row.key) for row in WORKSPACE if isinstance(row, kind)]


@pytest.fixture(scope="module", params=["local", "docker"])
def loops(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loops]:
    """One loop for each mode, over each transport."""
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


EACH = [(name, key) for name in SIX for key in tools("standard")[name].schema["properties"]]


@pytest.mark.parametrize(("name", "key"), EACH)
def test_no_argument_takes_another_type(name: str, key: str) -> None:
    """A value of another JSON type is refused, and the argument is named as it is shown."""
    kind = tools("standard")[name].schema["properties"][key]["type"]
    wrong = 7 if kind == "string" else "7"
    assert f"{key} must be" in refused("standard", name, {key: wrong})


@pytest.mark.parametrize(
    ("spelled", "snake"), [("createDirs", "create_dirs"), ("includeHidden", "include_hidden")]
)
def test_both_spellings_at_once_are_refused(spelled: str, snake: str) -> None:
    """The specification's spelling is shown, the other is understood, both are one too many."""
    name = "write_file" if spelled == "createDirs" else "list_directory"
    given = {"path": "x", "content": ""} if name == "write_file" else {}
    assert spelled in tools("standard")[name].schema["properties"]
    for one in (spelled, snake):
        assert tools("standard")[name].parse({**given, one: True}).model_dump()[snake] is True
    assert "give one of the two" in refused("standard", name, {**given, spelled: True, snake: True})


# ─── what rows can't say ────────────────────────────────────────────────────────────


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """A loop of its own, over an agent on this machine."""
    with open_work("local", tmp_path) as opened:
        yield opened


def moment(text: Any) -> datetime:
    """A time that ends in Z."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(text)), text
    return datetime.fromisoformat(str(text))


def test_entries_have_the_four_fields(work: Work) -> None:
    """Name, type, size and time of a file, a directory and a link; the link is itself."""
    work.write("l/f", "12345")
    (work.root / "l/d").mkdir()
    (work.root / "l/s").symlink_to("f")
    result = work.call("list_directory", path="l")
    entries = {entry["name"]: entry for entry in (result.structured or {})["entries"]}
    assert {name: entry["type"] for name, entry in entries.items()} == {
        "f": "file",
        "d": "directory",
        "s": "symlink",
    }
    assert entries["f"]["size"] == 5 and entries["s"]["size"] == 1
    for entry in entries.values():
        moment(entry["modified"])


def test_times_are_iso_8601_in_utc(work: Work) -> None:
    """`modified` is the file's time, in milliseconds, with a Z."""
    path = work.write("f", "x")
    result = work.call("read_file", path="f")
    told = moment((result.structured or {})["modified"]).timestamp()
    assert abs(told - path.stat().st_mtime) < 0.002


def test_the_duration_is_in_milliseconds(work: Work) -> None:
    """Of a run that sleeps for a fifth of a second: no less, and not in seconds."""
    result = work.call("run_code", language="bash", code="sleep 0.2")
    duration = (result.structured or {})["duration"]
    assert 200 <= duration <= result.duration_ms


def test_a_file_that_can_not_be_read_or_written_is_permission_denied(tmp_path: Path) -> None:
    """In a box, where nobody is root: the file's own rights hold."""
    with open_work("docker", tmp_path) as work:
        work.call("run_command", command="echo x > f; chmod 000 f; mkdir d; chmod 555 d")
        assert work.call("read_file", path="f").code is Code.PERMISSION_DENIED
        assert work.call("write_file", path="d/n", content="").code is Code.PERMISSION_DENIED
        work.call("run_command", command="chmod 755 d")


def test_an_approvers_arguments_run_instead_of_the_models(tmp_path: Path) -> None:
    """The flow of the specification: a call pauses, somebody changes it, it goes on."""
    seen: list[ApprovalRequest] = []

    class Person:
        """Looks at what would run, and gives something else."""

        async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
            seen.append(request)
            return ApprovalAnswer(approved=True, modified_arguments={"path": "b"})

        async def answer(self, questions: Any) -> Any:
            raise AssertionError("no question was expected")

    with open_work(
        "local", tmp_path, change=lambda spec: replace(spec, mode="default"), approver=Person()
    ) as work:
        for name in "ab":
            work.write(name, name)
        result = work.call("delete_file", path="a")
        assert result.content == "Deleted b", result.content
        assert (work.root / "a").exists() and not (work.root / "b").exists()
        (request,) = seen
        assert (request.tool, dict(request.arguments)) == ("delete_file", {"path": "a"})
        assert request.step_id == result.id and request.reason


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        (
            "share_data",
            {"target_exec_ids": [], "data_type": "t", "data": 1},
            "target_exec_ids must have 1 or more entries, not 0",
        ),
        (
            "create_spec",
            {"name": "", "title": "t", "overview": "o", "phases": []},
            "name must have 1 or more characters, not 0; phases must have 3 or more entries, not 0",
        ),
        ("run_code", {"language": "bash", "code": "", "timeout": 0}, "must be more than 0, not 0"),
        ("todo_write", {"todos": ["x"]}, "todos.0 must be an object, not the text 'x'"),
    ],
)
def test_every_fault_is_told_in_the_same_words(
    name: str, given: Mapping[str, Any], expected: str
) -> None:
    """What a refusal says can be read as a sentence that begins with the argument."""
    assert expected in refused("standard", name, given)


def test_a_description_is_told_to_whoever_decides(tmp_path: Path) -> None:
    """What the model says that its command does stands beside the command itself."""
    seen: list[ApprovalRequest] = []

    def decides(request: ApprovalRequest) -> bool:
        seen.append(request)
        return False

    with open_work(
        "local",
        tmp_path,
        change=lambda spec: replace(spec, mode="default"),
        approver=CallableApprover(decides),
    ) as work:
        work.call("run_command", command="make all", description="Build everything")
    (request,) = seen
    assert (request.action, request.description) == ("make all", "Build everything")
