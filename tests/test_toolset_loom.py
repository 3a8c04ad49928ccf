"""The `loom` toolset: results are JSON, edits are all made or none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from executor import toolsets
from executor.catalog import load
from executor.errors import Code
from executor.model import Result
from tests.loops import Work, open_work

TOOLS = {tool.name: tool for tool in toolsets.registry("loom", load()).all()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """One loop for all tests."""
    directory = tmp_path_factory.mktemp("loom")
    with open_work("local", directory, change=lambda spec: replace(spec, toolset="loom")) as work:
        yield work


@pytest.fixture
def work(shared: Work) -> Work:
    """A worktree with one file, which the loop has not read."""
    subprocess.run(["find", str(shared.root), "-mindepth", "1", "-delete"], check=True)
    shared.loop.session.clear_reads()
    shared.write("src/a.py", "one\ntwo\nthree\n")
    return shared


def value(result: Result) -> Any:
    """What the model is told, which is also what the host has as data."""
    assert json.loads(str(result.content)) == result.structured
    return result.structured


def edit(work: Work, path: str, *edits: tuple[str, str] | tuple[str, str, bool]) -> Result:
    given = [
        {"old_str": old, "new_str": new, **({"replace_all": True} if more else {})}
        for old, new, *more in edits
    ]
    return work.call("edit_file", path=path, edits=given)


def test_the_toolset_has_the_seeds_tools() -> None:
    """Files, commands, a second model, searches."""
    assert list(TOOLS) == ["read_file", "list_files", "edit_file", "bash", "oracle", "web_search"]


@pytest.mark.parametrize(
    ("name", "required", "optional"),
    [
        ("read_file", ["path"], ["max_bytes"]),
        ("list_files", [], ["root", "max_results"]),
        ("edit_file", ["path", "edits"], []),
        ("bash", ["command"], ["cwd", "timeout_secs"]),
        ("oracle", ["query"], []),
        ("web_search", ["query"], ["max_results"]),
    ],
)
def test_arguments_are_those_of_the_decision(
    name: str, required: list[str], optional: list[str]
) -> None:
    """Names, and which of them may be left out."""
    schema = TOOLS[name].schema
    assert schema.get("required", []) == required
    assert list(schema["properties"]) == [*required, *optional]


def test_bounds_are_in_the_schema() -> None:
    """A model reads what is refused."""
    seconds = TOOLS["bash"].schema["properties"]["timeout_secs"]
    assert (seconds["minimum"], seconds["maximum"]) == (1, 300)
    piece = TOOLS["edit_file"].schema["properties"]["edits"]["items"]
    assert piece["required"] == ["old_str", "new_str"]
    assert list(piece["properties"]) == ["old_str", "new_str", "replace_all"]


# ─── read_file ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "contents"),
    [
        (b"one\r\ntwo\n\nend", "one\r\ntwo\n\nend"),
        (b"", ""),
        (b"\n", "\n"),
        (b"\xef\xbb\xbfx\n", "x\n"),
        ("é\n".encode("utf-16"), "é\n"),
        (b"caf\xe9\n", "caf\ufffd\n"),
    ],
)
def test_contents_are_raw(work: Work, data: bytes, contents: str) -> None:
    """No line numbers; line ends and the last line's end are as in the file."""
    work.write("f", data)
    result = work.call("read_file", path="f")
    assert value(result) == {"path": "f", "contents": contents, "truncated": False}


@pytest.mark.parametrize(
    ("data", "most", "contents"),
    [
        ("one\ntwo\nthree\n", 9, "one\ntwo"),
        ("one\ntwo\nthree\n", 13, "one\ntwo\nthree"),
        ("x" * 100, 10, "x" * 10),
        ("é" * 100, 11, "é" * 5),
    ],
)
def test_a_long_file_is_cut_and_said(work: Work, data: str, most: int, contents: str) -> None:
    """Between lines where there are any, never inside a character, never more than asked for."""
    work.write("f", data)
    result = work.call("read_file", path="f", max_bytes=most)
    told = value(result)
    assert told["contents"] == contents or len(data.encode()) <= most + 1
    assert len(told["contents"].encode()) <= most
    assert told["truncated"] is result.truncated is True
    assert result.total_bytes == len(data.encode())


def test_a_mebibyte_is_read_by_default(work: Work) -> None:
    """Up to the default a file is whole; one byte more and it is cut."""
    for size, is_cut in ((1 << 20, False), ((1 << 20) + 1, True)):
        work.write("f", "x" * (size - 1) + "\n")
        assert value(work.call("read_file", path="f"))["truncated"] is is_cut


def test_what_is_no_text_is_refused(work: Work) -> None:
    """The refusal names a tool that this toolset has."""
    work.write("f", b"\0\1\2")
    result = work.call("read_file", path="f")
    assert result.code is Code.UNSUPPORTED
    assert "Use bash to look at it." in str(result.content)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("none", Code.FILE_NOT_FOUND),
        ("src", Code.NOT_A_FILE),
        ("../x", Code.INVALID_PATH),
        ("/etc/hostname", Code.INVALID_PATH),
    ],
)
def test_paths_are_held_to_the_workspace(work: Work, path: str, code: Code) -> None:
    """Traversal, what is outside, and what is not there are refused."""
    assert work.call("read_file", path=path).code is code


# ─── list_files ─────────────────────────────────────────────────────────────────────


def test_entries_are_paths_and_whether_they_are_directories(work: Work) -> None:
    """Of one directory, hidden ones too, from the workspace's root, in order."""
    work.write(".hidden", "")
    work.write("b", "")
    assert value(work.call("list_files")) == {
        "entries": [
            {"path": ".hidden", "is_dir": False},
            {"path": "b", "is_dir": False},
            {"path": "src", "is_dir": True},
        ]
    }
    assert value(work.call("list_files", root="src"))["entries"] == [
        {"path": "src/a.py", "is_dir": False}
    ]


def test_a_long_list_is_cut_and_said(work: Work) -> None:
    """At most `max_results` entries, and how many there are in all."""
    for number in range(1200):
        work.write(f"many/{number:04}", "")
    result = work.call("list_files", root="many", max_results=2)
    told = value(result)
    assert [entry["path"] for entry in told["entries"]] == ["many/0000", "many/0001"]
    assert (told["truncated"], told["total"], result.truncated) == (True, 1200, True)
    whole = work.call("list_files", root="many")
    assert whole.structured is not None
    assert len(whole.structured["entries"]) == 1000


# ─── edit_file ──────────────────────────────────────────────────────────────────────


def test_all_edits_are_made_one_after_the_other(work: Work) -> None:
    """A later edit sees what an earlier one has made; sizes before and after are told."""
    work.call("read_file", path="src/a.py")
    result = edit(work, "src/a.py", ("one", "1"), ("1\ntwo", "1 2"), ("e", "E", True))
    assert (work.root / "src/a.py").read_text() == "1 2\nthrEE\n"
    assert value(result) == {
        "path": "src/a.py",
        "edits_applied": 4,
        "original_bytes": 14,
        "new_bytes": 10,
    }


@pytest.mark.parametrize(
    ("edits", "code", "said"),
    [
        ([("one", "1"), ("nope", "x")], Code.NO_MATCH, "Edit 2 of 2: old_str not found"),
        ([("one", "1"), ("t", "x")], Code.AMBIGUOUS, "Edit 2 of 2:"),
        ([("one", "one"), ("two", "2")], Code.INVALID_ARGUMENTS, "Edit 1 of 2: no change"),
        ([("one", "1"), ("", "x")], Code.INVALID_ARGUMENTS, "has to be the only edit"),
        ([("", "x")], Code.INVALID_ARGUMENTS, "src/a.py has 14 bytes"),
        ([], Code.INVALID_ARGUMENTS, "edits"),
    ],
)
def test_edits_are_all_made_or_none(
    work: Work, edits: list[tuple[str, str]], code: Code, said: str
) -> None:
    """One edit that does not fit leaves the file as it is, and is named."""
    work.call("read_file", path="src/a.py")
    result = edit(work, "src/a.py", *edits)
    assert result.code is code, result.content
    assert said in str(result.content)
    assert (work.root / "src/a.py").read_text() == "one\ntwo\nthree\n"


def test_an_empty_old_text_makes_a_file(work: Work) -> None:
    """Where there is none, with its directories, or where it is empty; the file is known then."""
    assert value(edit(work, "new/x.py", ("", "x = 1\n"))) == {
        "path": "new/x.py",
        "edits_applied": 1,
        "original_bytes": 0,
        "new_bytes": 6,
    }
    assert not edit(work, "new/x.py", ("1", "2")).is_error
    work.write("empty", "")
    assert not edit(work, "empty", ("", "filled\n")).is_error
    assert (work.root / "empty").read_text() == "filled\n"


def test_a_file_has_to_be_read_before_it_is_edited(work: Work) -> None:
    """Unread, or changed since: nothing is edited. A part that was read is enough."""
    assert edit(work, "src/a.py", ("one", "1")).code is Code.NOT_READ
    work.call("read_file", path="src/a.py", max_bytes=4)
    work.write("src/a.py", "one\nother\n")
    assert edit(work, "src/a.py", ("one", "1"), ("other", "2")).code is Code.CONFLICT
    work.call("read_file", path="src/a.py", max_bytes=4)
    assert not edit(work, "src/a.py", ("one", "1"), ("other", "2")).is_error


# ─── bash ───────────────────────────────────────────────────────────────────────────


def test_streams_and_exit_code_are_apart(work: Work) -> None:
    """A command's result is its five values; another code than 0 is an error."""
    result = work.call("bash", command="echo out; echo err >&2; exit 2")
    assert value(result) == {
        "exit_code": 2,
        "stdout": "out\n",
        "stderr": "err\n",
        "timed_out": False,
        "truncated": False,
    }
    assert result.code is Code.EXECUTION_ERROR


def test_every_command_begins_in_the_root_or_in_cwd(work: Work) -> None:
    """A `cd` does not outlast its call; a directory that is none is refused."""
    assert value(work.call("bash", command="cd src; ls"))["stdout"] == "a.py\n"
    assert value(work.call("bash", command="ls"))["stdout"] == "src\n"
    assert value(work.call("bash", command="ls", cwd="src"))["stdout"] == "a.py\n"
    assert value(work.call("bash", command="ls", cwd="/workspace/src"))["stdout"] == "a.py\n"
    assert work.call("bash", command="ls", cwd="none").code is Code.FILE_NOT_FOUND
    assert work.call("bash", command="ls", cwd="..").code is Code.INVALID_PATH


def test_a_command_is_ended_at_its_timeout(work: Work) -> None:
    """What it printed until then is told, and that it was ended."""
    result = work.call("bash", command="echo begun; sleep 60", timeout_secs=1)
    told = value(result)
    assert (told["stdout"], told["timed_out"], told["exit_code"]) == ("begun\n", True, None)
    assert result.code is Code.TIMEOUT
    assert work.call("bash", command="true", timeout_secs=301).code is Code.INVALID_ARGUMENTS


@pytest.mark.parametrize("other", ["", "e"])
def test_each_stream_has_a_room_of_its_own(work: Work, other: str) -> None:
    """256 KiB of a stream are shown, whatever the other holds; how much is missing is said."""
    size = 300_000
    command = f"printf begun; head -c {size} /dev/zero | tr '\\0' x; printf done"
    result = work.call("bash", command=f"{command}; printf '{other}' >&2")
    told = value(result)
    assert (told["truncated"], told["stderr"]) == (True, other)
    stdout = told["stdout"]
    assert stdout.startswith("begunxx") and stdout.endswith("xxdone")
    assert len(stdout) <= 1 << 18
    kept = len(stdout.replace("\n", "")) - len(f"[{size} bytes left out]")
    missing = int(stdout.partition("[")[2].partition(" ")[0])
    assert abs(missing + kept - (size + 9)) <= 2


def test_a_stream_up_to_its_room_is_whole(work: Work) -> None:
    """Both streams may be full."""
    command = "head -c 260000 /dev/zero | tr '\\0' x"
    told = value(work.call("bash", command=f"{command}; {command} >&2"))
    assert (len(told["stdout"]), len(told["stderr"]), told["truncated"]) == (260000, 260000, False)


def test_a_later_call_is_judged_by_rules_on_commands(work: Work) -> None:
    """A rule for `run_command`, or for `bash`, holds for this toolset's shell."""
    before = work.loop.session.rules
    for rule in ("bash(rm *)", "run_command(rm *)"):
        known = before.known
        work.loop.session.rules = type(before).parse(deny=[rule], known=known)
        try:
            result = work.call("bash", command="rm src/a.py", cwd="src")
        finally:
            work.loop.session.rules = before
        assert result.code is Code.PERMISSION_DENIED
