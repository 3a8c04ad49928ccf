"""Rules that every tool obeys, over the whole catalog and both transports."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from executor import toolsets
from executor.catalog import load
from executor.errors import Code
from executor.model import Result
from executor.results import size_of
from executor.tool import Order
from tests.loops import Work, open_work
from tests.words import with_words

CATALOG = load()
TOOLS = {tool.name: tool for tool in toolsets.registry("standard", CATALOG).all()}

CELL = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "1"}
NOTEBOOK = json.dumps({"cells": [CELL], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})

SAMPLES: dict[str, dict[str, Any]] = {
    "read_file": {"path": "d/a.txt"},
    "write_file": {"path": "d/new.txt", "content": "new\n"},
    "edit_file": {"path": "d/a.txt", "old_string": "two", "new_string": "2"},
    "notebook_edit": {"notebook_path": "d/n.ipynb", "cell_id": "a", "new_source": "2"},
    "list_directory": {"path": "d"},
    "delete_file": {"path": "d/gone.txt"},
    "move_file": {"from": "d/from.txt", "to": "d/e/to.txt"},
    "glob": {"pattern": "**/*.txt"},
    "grep": {"pattern": "two"},
    "lsp": {
        "operation": "goto_definition",
        "path": "d/a.txt",
        "line": 2,
        "column": 1,
        "new_name": "new",
    },
    "run_command": {"command": "cat d/a.txt"},
    "run_command_isolated": {"command": "cat d/a.txt"},
    "task_output": {"task_id": "bash_0"},
    "kill_shell": {"shell_id": "bash_0"},
    "build": {"command": "cat d/a.txt"},
    "test": {"command": "cat d/a.txt"},
    "validate": {"command": "cat d/a.txt"},
    "run_code": {"language": "bash", "code": "cat d/a.txt"},
    "git_status": {},
    "git_diff": {"paths": ["d"], "staged": False, "ref": "HEAD", "stat": True},
    "git_log": {"max_count": 1, "paths": ["d"], "oneline": True},
    "git_commit": {"message": "m", "paths": ["d"], "all": True},
    "git_push": {"remote": "origin", "branch": "main"},
    "query_loop": {"target_exec_id": "other", "question": "which port?"},
    "share_data": {"target_exec_ids": ["other"], "data_type": "config", "data": {"port": 1}},
    "ask_user_question": {
        "questions": [
            {
                "question": "Which one?",
                "header": "Choice",
                "options": [
                    {"label": "a", "description": "the first"},
                    {"label": "b", "description": "the second"},
                ],
            }
        ]
    },
    "todo_write": {"todos": [{"content": "Run tests", "status": "pending"}]},
    "create_plan": {
        "title": "t",
        "overview": "o",
        "specs": [{"name": "a", "title": "t", "description": "d"}],
    },
    "create_spec": {
        "name": "s",
        "title": "t",
        "overview": "o",
        "phases": [{"name": n, "title": "t", "description": "d"} for n in "abc"],
    },
    "create_phase": {
        "name": "p",
        "title": "t",
        "objective": "o",
        "tasks": [{"description": "d"}],
        "validation_command": "true",
    },
    "complete_task": {"summary": "done"},
    "web_fetch": {"url": "http://localhost:9/"},
    "web_search": {"query": "sandboxes"},
}
ALONE = {"query_loop": Code.NOT_FOUND, "share_data": Code.NOT_FOUND}
ALONE["git_push"] = Code.DISABLED
ALONE["web_fetch"] = ALONE["web_search"] = Code.NETWORK_ERROR
ALONE["ask_user_question"] = Code.APPROVAL_REQUIRED
ALONE["task_output"] = ALONE["kill_shell"] = Code.NOT_FOUND
"""What the samples of tools come to that need somebody else."""

WRONG: dict[str, Any] = {
    "string": 7,
    "integer": "7",
    "number": "7",
    "boolean": "true",
    "array": "a",
    "object": "a",
}

PATHS = [
    (name, key)
    for name, tool in TOOLS.items()
    for key in tool.schema["properties"]
    if key in ("path", "from", "to")
]
NUMBERS = [
    (name, key)
    for name, tool in TOOLS.items()
    for key, part in tool.schema["properties"].items()
    if part.get("type") in ("integer", "number")
]
PROPERTIES = [
    (name, key)
    for name, tool in TOOLS.items()
    for key, part in tool.schema["properties"].items()
    if "type" in part  # what is shared between loops may be any JSON
]


@pytest.fixture(scope="module", params=["local", "docker"])
def work(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Work]:
    """One loop a module, over each transport."""
    directory = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        # A provider of search that does not answer.
        patch.setenv("EXECUTOR_SERPER_KEY", "k" * 40)
        patch.setenv("EXECUTOR_SERPER_URL", "http://127.0.0.1:9")
        opened = stack.enter_context(open_work(request.param, directory, catalog=with_words()))
        if request.param == "local":
            os.chown(opened.root, os.getuid(), os.getgid())  # git asks whose it is
        begun = opened.call(
            "run_command",
            command="git init -q && git config user.name A && git config user.email a@b && "
            "git commit -q --allow-empty -m first",
        )
        assert begun.is_error is False, begun.content
        yield opened


def prepared(work: Work) -> Work:
    """The worktree that the samples are about, as it was at first."""
    for name in ("d/a.txt", "d/gone.txt", "d/from.txt"):
        work.write(name, "one\ntwo\nthree\n")
    work.write("d/n.ipynb", NOTEBOOK)
    for name in ("d/new.txt", "d/e/to.txt"):
        (work.root / name).unlink(missing_ok=True)
    for path in (work.root / "d", *(work.root / "d").iterdir()):
        path.chmod(0o777 if path.is_dir() else 0o666)
    for name in ("d/new.txt", "d/e/to.txt"):
        work.loop.session.forget(name)
    for name in ("d/a.txt", "d/n.ipynb"):
        work.call("read_file", path=name)
    return work


def check_form(work: Work, result: Result) -> None:
    """What holds for every result."""
    line = json.loads(result.to_line())
    assert line["is_error"] is (line["code"] is not None)
    assert isinstance(line["content"], str)
    assert line["duration_ms"] > 0
    assert line["spill"] is None
    assert str(work.root) not in result.to_line() or work.kind == "local"


def test_catalog_and_toolset_name_the_same_tools() -> None:
    """Every tool has an entry and a sample; every entry is shown by some toolset."""
    assert set(TOOLS) == set(SAMPLES)
    shown = {
        tool.canonical
        for name in CATALOG.toolsets
        for tool in toolsets.registry(name, CATALOG).all()
    }
    assert shown == set(CATALOG.tools)


@pytest.mark.parametrize("name", TOOLS)
def test_a_good_call_succeeds(work: Work, name: str) -> None:
    """The sample call works, has text and data, and stays within its limit."""
    result = prepared(work).call(name, **SAMPLES[name])
    if name in ALONE:
        assert result.code is ALONE[name], result.content
        check_form(work, result)
        return
    assert (result.is_error, result.code) == (False, None), result.content
    assert isinstance(result.content, str) and result.content
    assert isinstance(result.structured, dict)
    assert size_of(result.content) <= TOOLS[name].entry.max_output_bytes
    assert result.truncated is False
    check_form(work, result)


@pytest.mark.parametrize("name", TOOLS)
def test_arguments_that_do_not_exist_are_refused(work: Work, name: str) -> None:
    """An unknown argument is named."""
    result = work.call(name, **SAMPLES[name], frobnicate=1)
    assert result.code is Code.INVALID_ARGUMENTS
    assert "frobnicate is not an argument" in str(result.content)
    check_form(work, result)


@pytest.mark.parametrize(
    "name", [name for name, tool in TOOLS.items() if "required" in tool.schema]
)
def test_arguments_that_are_missing_are_all_named(work: Work, name: str) -> None:
    """Every required argument that is not there is named."""
    result = work.call(name)
    assert result.code is Code.INVALID_ARGUMENTS
    for key in TOOLS[name].schema["required"]:
        assert f"{key} is required" in str(result.content)


@pytest.mark.parametrize(("name", "key"), PROPERTIES)
def test_wrong_types_are_refused_with_the_field(work: Work, name: str, key: str) -> None:
    """No argument takes a value of another JSON type."""
    kind = TOOLS[name].schema["properties"][key]["type"]
    result = work.call(name, **{**SAMPLES[name], key: WRONG[kind]})
    assert result.code is Code.INVALID_ARGUMENTS
    assert f"{key} must be" in str(result.content)


@pytest.mark.parametrize(("name", "key"), NUMBERS)
@pytest.mark.parametrize(
    "number", [2**53, 2**63, -(2**63), pytest.param(10**5000, id="huge"), 1e300]
)
def test_numbers_of_any_size_are_refused_before_the_box(
    work: Work, name: str, key: str, number: float
) -> None:
    """A number beyond its bound is the caller's fault and costs no box."""
    boxes = len(work.opened)
    result = work.call(name, **{**SAMPLES[name], key: number})
    assert result.code is Code.INVALID_ARGUMENTS, result.content
    assert key in str(result.content)
    assert work.call("read_file", path="d/a.txt").code is None
    assert len(work.opened) == boxes


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_the_largest_number_allowed_is_served(work: Work, name: str, key: str) -> None:
    """What the schema allows, the box takes; only a place can be beyond the end of a file."""
    boxes = len(work.opened)
    most = TOOLS[name].schema["properties"][key]["maximum"]
    more = {"recursive": True} if key == "max_depth" else {}
    result = prepared(work).call(name, **{**SAMPLES[name], **more, key: most})
    if key == "offset":
        assert "beyond the end: the file has 3 lines" in str(result.content)
    elif key in ("line", "column"):
        assert re.search(rf"no {key} {most}.* has 3 (lines|characters)", str(result.content))
    else:
        assert result.code is ALONE.get(name), result.content
    assert len(work.opened) == boxes


@pytest.mark.parametrize(("name", "key"), PATHS)
@pytest.mark.parametrize(
    "path", ["../x", "/etc/hostname", "d/../../x", "a\0b", "/", "/workspace/../etc", "out/x.txt"]
)
def test_no_path_leads_out_of_the_worktree(work: Work, name: str, key: str, path: str) -> None:
    """Lexically or through a link, what is outside is INVALID_PATH, and the root is named."""
    out = prepared(work).root / "out"
    if not out.is_symlink():
        out.symlink_to("/etc")
    result = work.call(name, **{**SAMPLES[name], key: path})
    assert result.code is Code.INVALID_PATH, result.content
    assert "/workspace" in str(result.content) or work.kind == "local"
    check_form(work, result)


@pytest.mark.parametrize(("name", "key"), PATHS)
def test_the_host_path_of_the_worktree_is_understood(work: Work, name: str, key: str) -> None:
    """An absolute path below the mount, or below the host's worktree, means the same file."""
    for root in ("/workspace", str(work.root)):
        prepared(work)
        given = SAMPLES[name].get(key, "")
        result = work.call(name, **{**SAMPLES[name], key: f"{root}/{given}"})
        assert result.is_error is False, result.content
        assert str(work.root) not in result.to_line()
        (work.root / "d/new.txt").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("read_file", {"path": "none"}),
        ("edit_file", {"path": "none", "old_string": "a", "new_string": "b"}),
        ("list_directory", {"path": "none"}),
        ("delete_file", {"path": "none"}),
        ("move_file", {"from": "none", "to": "other"}),
        ("glob", {"pattern": "*", "path": "none"}),
        ("grep", {"pattern": "x", "path": "none"}),
        ("write_file", {"path": "none/x", "content": "", "createDirs": False}),
        ("lsp", {"operation": "document_symbols", "path": "none.txt"}),
    ],
)
def test_what_is_not_there_is_file_not_found(work: Work, name: str, given: dict[str, Any]) -> None:
    """A missing path is an error with its name, never an empty success."""
    result = work.call(name, **given)
    assert result.code is Code.FILE_NOT_FOUND, result.content
    assert "none" in str(result.content)
    check_form(work, result)


@pytest.mark.parametrize("name", ["read_file", "list_directory", "glob", "grep", "run_command"])
def test_long_output_is_cut_and_said(work: Work, name: str) -> None:
    """More output than the limit is cut to the limit; `truncated` is true and the text says so."""
    long = work.root / "long"
    if not long.exists():
        work.write("long/file.txt", "needle in a long line of hay\n" * 20_000)
        for number in range(1500):
            work.write(f"long/many/{'name' * 20}-{number}.txt", "x")
    given: dict[str, dict[str, Any]] = {
        "read_file": {"path": "long/file.txt", "limit": 20_000},
        "list_directory": {"path": "long/many"},
        "glob": {"pattern": "long/many/*"},
        "grep": {"pattern": "needle|x", "path": "long", "context": 0},
        "run_command": {"command": "cat long/file.txt; ls long/many"},
    }
    result = work.call(name, **given[name])
    assert result.is_error is False, result.content
    assert result.truncated is True
    text = str(result.content)
    assert size_of(text) <= TOOLS[name].entry.max_output_bytes
    said = ("more", "only the first")
    assert "left out" in text or any(words in text.splitlines()[-1] for words in said)


def test_output_up_to_the_limit_is_whole(work: Work) -> None:
    """Room for messages is only taken where there are any."""
    size = TOOLS["run_command"].entry.max_output_bytes - 100
    result = work.call("run_command", command=f"head -c {size} /dev/zero | tr '\\0' x")
    assert (result.content, result.truncated) == ("x" * size, False)
    failed = work.call("run_command", command=f"head -c {size} /dev/zero | tr '\\0' x; false")
    assert (failed.content, failed.truncated) == ("Exit code: 1\n" + "x" * size, False)


def test_access_and_safety_agree() -> None:
    """What reads may run beside others, what changes the worktree may not."""
    for tool in TOOLS.values():
        if tool.access in ("read", "write", "exec"):
            assert (tool.order is Order.SAFE) == (tool.access == "read"), tool.name
