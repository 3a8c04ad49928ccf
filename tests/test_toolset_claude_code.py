"""The `claude-code` toolset: names, schemas, texts, and what its tools say and do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor import toolsets
from executor.approvals import CallableApprover
from executor.catalog import PACKAGED, load, parse
from executor.errors import Code
from executor.hooks import Hook, HookEvent, Hooks, Occasion, Reply
from executor.model import ApprovalAnswer, ApprovalRequest, Limits
from executor.session import Session
from executor.tool import Context, Outcome, Surroundings, schema_of
from executor.toolsets import claude_code, texts
from tests.loops import Work, open_work
from tests.test_catalog import TEXT

CATALOG = load()
TOOLS = {tool.name: tool for tool in toolsets.registry("claude-code", CATALOG).all()}
SEED = texts.names("claude-code")
HIDDEN = {"Bash": {"dangerously_disable_sandbox"}}
ADDED = {"Read": {"pages"}}
"""Arguments that the seed's text speaks of and its schema does not have."""
NOTE = "<system-reminder>Warning: the file exists but the contents are empty (0 bytes)."


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """One loop for all tests that leave it as it was."""
    with opened(tmp_path_factory.mktemp("claude-code")) as work:
        yield work


@pytest.fixture
def work(shared: Work) -> Work:
    """A worktree with a few files, none of which the loop has read."""
    subprocess.run(["find", str(shared.root), "-mindepth", "1", "-delete"], check=True)
    shared.loop.session.clear_reads()
    shared.write("src/a.py", "import os\ndef foo():\n    return 1\n\ndef bar():\n    foo()\n")
    shared.write("src/b.js", "function foo() {\n  x\n}\n")
    shared.write("notes.txt", "nothing\n")
    return shared


def opened(directory: Path, more: str = "", mode: str = "bypass", **company: Any) -> Any:
    catalog = parse([(PACKAGED, TEXT), ("my", more)])
    return open_work(
        "local",
        directory,
        change=lambda spec: replace(spec, toolset="claude-code", mode=mode),
        catalog=catalog,
        **company,
    )


def surroundings(**more: Any) -> Surroundings:
    toolset = CATALOG.toolsets["claude-code"]
    given: dict[str, Any] = {"lane": "no-net", "roots": (), "box": None, **more}
    return Surroundings("test", Session(), Limits(), toolset=toolset, **given)


# ─── what the model is shown ────────────────────────────────────────────────────────


def test_every_tool_of_the_seed_is_there() -> None:
    """Names are the seed's; five of them have no schema there."""
    assert SEED.keys() <= TOOLS.keys()
    without = {"AskUserQuestion", "NotebookEdit", "Skill", "WebFetch", "WebSearch"}
    assert TOOLS.keys() - SEED.keys() == without


@pytest.mark.parametrize("name", sorted(TOOLS.keys() & SEED.keys()))
def test_schemas_are_the_seeds(name: str) -> None:
    """The schema is the seed's, word for word, without what is hidden from the model."""
    properties = {
        key: part
        for key, part in TOOLS[name].schema["properties"].items()
        if key not in ADDED.get(name, ())
    }
    assert {**TOOLS[name].schema, "properties": properties} == SEED[name]


@pytest.mark.parametrize("name", sorted(TOOLS.keys() & SEED.keys()))
def test_what_is_shown_is_what_is_checked(name: str) -> None:
    """The arguments that are taken are those of the schema, of the same types."""
    checked = schema_of(TOOLS[name].arguments)["properties"]
    shown = SEED[name]["properties"]
    more = HIDDEN.get(name, set()) | ADDED.get(name, set())
    assert checked.keys() - more == shown.keys()
    for key, part in shown.items():
        assert checked[key].get("type") == part["type"], key
        assert checked[key].get("enum") == part.get("enum"), key
    # What the seed calls required and gives a default may be left out.
    required = {key for key in SEED[name].get("required", ()) if "default" not in shown[key]}
    assert set(schema_of(TOOLS[name].arguments).get("required", ())) == required


def test_only_the_schemas_that_say_so_speak_of_more_arguments() -> None:
    """`additionalProperties` is where the seed has it, and nowhere else."""
    said = {name: tool.schema.get("additionalProperties") for name, tool in TOOLS.items()}
    assert said.pop("EnterPlanMode") is False
    assert said.pop("ExitPlanMode") is True
    assert {said[name] for name in said.keys() & SEED.keys()} == {None}


@pytest.mark.parametrize("name", claude_code.CHANGES)
def test_every_change_of_a_text_is_about_something(name: str) -> None:
    """A passage that is replaced is in the seed's text once, and has a reason."""
    for change in claude_code.CHANGES[name]:
        assert texts.text("claude-code", name).count(change.old) == 1
        assert change.why


def test_a_change_of_what_is_not_said_is_a_fault() -> None:
    """The list of changes can't silently lose its text."""
    with pytest.raises(ValueError, match="does not say 'gone'"):
        texts.changed("a text", [texts.Change("gone", "", "")])


@pytest.mark.parametrize("name", sorted(TOOLS.keys() & SEED.keys()))
def test_descriptions_are_the_seeds_but_for_the_changes(name: str) -> None:
    """Every line of the shown text is one of the seed's, or one that a change put there."""
    changes = claude_code.CHANGES.get(name, ())
    known = texts.text("claude-code", name)
    for change in changes:
        known = known.replace(change.old, change.new)
    assert TOOLS[name].description == known


@pytest.mark.parametrize(
    "false",
    [
        "user's profile",
        "docker",
        "gh pr create",
        "/tasks",
        "all files on the machine",
        "Agent tool",
    ],
)
def test_nothing_is_said_that_is_false_in_a_box(false: str) -> None:
    """No text promises what the box does not have."""
    for tool in TOOLS.values():
        assert false not in tool.description, tool.name


def test_a_paragraph_tells_of_the_loops_box() -> None:
    """Mount path, network, limits and runtime are those of the loop."""
    around = surroundings(runtime="runsc")
    describe = TOOLS["Bash"].describe
    assert describe is not None
    paragraph = describe(around).rpartition("\n\n")[2]
    for part in ("/workspace", "no network", "4 GiB of memory", "2 CPUs", "512 proc", "runsc"):
        assert part in paragraph
    read = TOOLS["Read"].describe
    assert read is not None and "/workspace" in read(around).rpartition("\n\n")[2]


def test_what_a_loop_can_not_do_is_said() -> None:
    """Reading says that pictures are not shown, writing that the worktree can't be changed."""
    usual, other = surroundings(), replace(surroundings(), text_only=True, read_only=True)
    for name, said in (
        ("Read", "Pictures are described in this session"),
        ("Write", "can't be changed in this session"),
        ("Edit", "can't be changed in this session"),
    ):
        describe = TOOLS[name].describe
        assert describe is not None
        assert said in describe(other) and said not in describe(usual)


def test_bash_tells_the_timeout_of_the_loops_commands() -> None:
    """A loop's own default stands in the text instead of the usual one."""
    around = replace(surroundings(), limits=Limits(call_timeout=7.5))
    assert "commands will timeout after 7500ms." in claude_code.describe_bash(around)
    assert "commands will timeout after 120000ms" in claude_code.describe_bash(surroundings())


class Kinds:
    """Agents of one kind, none of which is ever started."""

    def types(self) -> dict[str, str]:
        return {"Explore": "looks"}

    async def run(self, context: Context, given: Any) -> Outcome:
        raise AssertionError("nobody asks for it")


def test_task_is_spoken_of_where_agents_can_be_started() -> None:
    """Glob and Grep name the Task tool to loops that have it, and only to them."""
    assert "Task tool" in claude_code.description("Glob", surroundings(agents=Kinds()))
    assert "Task tool" in claude_code.description("Grep", surroundings(agents=Kinds()))
    assert "Task tool" not in claude_code.description("Glob", surroundings())


def test_task_lists_the_agents_of_the_loop() -> None:
    """The list of the text is that of the loop's agents; nothing else of it changes."""
    told = claude_code.describe_task(surroundings(agents=Kinds()))
    assert "have access to:\n- Explore: looks\n\nWhen using the Task tool" in told
    assert told.endswith("to write code or just to do research")


@pytest.mark.parametrize(
    ("name", "size"), [("Read", 100_000), ("Grep", 20_000), ("Glob", 30_000), ("Bash", 30_000)]
)
def test_limits_are_the_seeds_in_characters(name: str, size: int) -> None:
    """What is shown is counted in characters, as the seed counts."""
    entry = TOOLS[name].entry
    assert (entry.max_output_bytes, entry.unit) == (size, "characters")


def test_the_timeout_that_bash_tells_is_the_one_that_holds() -> None:
    """A catalog that lowers the ceiling changes the argument's text."""
    catalog = parse([(PACKAGED, TEXT), ("my", "[tools.run_command]\nmax_timeout_ms = 300000\n")])
    tool = toolsets.registry("claude-code", catalog).get("Bash")
    assert tool is not None
    part = tool.schema["properties"]["timeout"]
    assert part["description"] == "Optional timeout in milliseconds (max 300000)"


@pytest.mark.parametrize(
    ("form", "keys"),
    [
        ("anthropic", {"name", "description", "input_schema"}),
        ("openai", {"type", "function"}),
        ("mcp", {"name", "description", "inputSchema"}),
    ],
)
def test_the_command_line_prints_the_tools(form: str, keys: set[str]) -> None:
    """`executor tools` prints what a model gets, in the order of the toolset."""
    argv = [sys.executable, "-m", "executor", "tools", "--toolset", "claude-code"]
    done = subprocess.run(
        [*argv, "--format", form], capture_output=True, text=True, timeout=60, check=True
    )
    printed = json.loads(done.stdout)
    assert all(set(tool) == keys for tool in printed)
    names = [tool.get("name") or tool["function"]["name"] for tool in printed]
    assert names[:6] == ["Read", "Write", "Edit", "Glob", "Grep", "Bash"]


def test_the_command_line_says_why_a_tool_is_missing() -> None:
    """With --all what the loop type takes away is printed, with the reason."""
    argv = [sys.executable, "-m", "executor", "tools", "--toolset", "claude-code", "--all"]
    done = subprocess.run(
        [*argv, "--loop-type", "plan"], capture_output=True, text=True, timeout=60, check=True
    )
    reasons = {tool["name"]: tool["disabled"] for tool in json.loads(done.stdout)}
    assert reasons["Bash"] == "loops of type plan don't have it"
    assert reasons["Read"] is None


# ─── Read ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/workspace/notes.txt", "notes.txt", "./src/../notes.txt"])
def test_a_line_has_its_number_and_a_tab(work: Work, path: str) -> None:
    """Absolute or relative, the path means the file, and its lines are numbered from 1."""
    assert work.call("Read", file_path=path).content == "     1\tnothing"


@pytest.mark.parametrize(
    ("given", "first"), [({}, 1), ({"offset": 0}, 1), ({"offset": 1}, 1), ({"offset": 5}, 5)]
)
def test_offset_counts_from_one_and_zero_is_the_start(
    work: Work, given: dict[str, int], first: int
) -> None:
    """The seed's own default, 0, reads from the start."""
    text = work.call("Read", file_path="src/a.py", **given).content
    assert str(text).startswith(f"     {first}\t")


def test_a_negative_offset_is_refused(work: Work) -> None:
    """There is no line before the first."""
    result = work.call("Read", file_path="src/a.py", offset=-1)
    assert result.code is Code.INVALID_ARGUMENTS
    assert "offset must be 0 or more" in str(result.content)


def test_an_empty_file_is_a_reminder(work: Work) -> None:
    """It has no lines, so a reminder says so; writing it needs no other reading."""
    work.write("empty", "")
    result = work.call("Read", file_path="empty")
    assert str(result.content).startswith(NOTE) and not result.is_error
    assert not work.call("Write", file_path="empty", content="x").is_error


def test_long_lines_and_long_files_are_cut_aloud(work: Work) -> None:
    """A line is cut after 2000 characters, a file after 2000 lines."""
    work.write("long", "é" * 2500 + "\n" + "x\n" * 2500)
    text = str(work.call("Read", file_path="long").content)
    assert "é" * 2000 + "... [line is 2500 characters]" in text
    assert text.endswith("[501 more lines; continue with offset=2001]")


def test_all_of_the_box_can_be_read_but_not_its_hidden_parts(work: Work, tmp_path: Path) -> None:
    """Paths outside the worktree are read; /proc, /dev and the like are not."""
    outside = tmp_path / "outside.txt"
    outside.write_text("outside\n")
    assert work.call("Read", file_path=str(outside)).content == "     1\toutside"
    for path in ("/proc/self/environ", "/dev/zero", "/sys/kernel/notes"):
        assert work.call("Read", file_path=path).code is Code.INVALID_PATH


# ─── Edit, Write ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        (
            "Edit",
            {"file_path": "src/a.py", "old_string": "1", "new_string": "2"},
            "Must read file before editing",
        ),
        ("Write", {"file_path": "src/a.py", "content": ""}, "Must Read before overwriting"),
    ],
)
def test_nothing_is_changed_unread(work: Work, name: str, given: dict[str, Any], said: str) -> None:
    """Edit and Write of a file that was not read say so in the words of this toolset."""
    before = (work.root / "src/a.py").read_text()
    result = work.call(name, **given)
    assert result.code is Code.NOT_READ
    assert said in str(result.content)
    assert (work.root / "src/a.py").read_text() == before


def test_a_file_that_was_read_is_edited(work: Work) -> None:
    """The result names the file by its path in the box; readings last as long as the loop."""
    work.call("Read", file_path="src/a.py")
    work.thread.run(work.loop.next_iteration())
    first = work.call("Edit", file_path="/workspace/src/a.py", old_string="1", new_string="2")
    assert first.content == "Replaced 1 occurrence(s) in /workspace/src/a.py"
    result = work.call(
        "Edit", file_path="src/a.py", old_string="foo", new_string="baz", replace_all=True
    )
    assert result.content == "Replaced 2 occurrence(s) in /workspace/src/a.py"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("foo", "bar", Code.AMBIGUOUS),
        ("nope", "bar", Code.NO_MATCH),
        ("foo", "foo", Code.INVALID_ARGUMENTS),
        ("", "foo", Code.INVALID_ARGUMENTS),
    ],
)
def test_edits_that_do_not_fit_are_refused(work: Work, old: str, new: str, code: Code) -> None:
    """Ambiguous, missing, empty and idle edits change nothing and name no other toolset's tool."""
    work.call("Read", file_path="src/a.py")
    result = work.call("Edit", file_path="src/a.py", old_string=old, new_string=new)
    assert result.code in (code, Code.AMBIGUOUS)
    assert "edit_file" not in str(result.content) and "write_file" not in str(result.content)


def test_an_edit_of_what_changed_meanwhile_is_a_conflict(work: Work) -> None:
    """The content decides, not the time."""
    work.call("Read", file_path="src/a.py")
    work.write("src/a.py", "other\n")
    result = work.call("Edit", file_path="src/a.py", old_string="other", new_string="x")
    assert result.code is Code.CONFLICT
    assert "/workspace/src/a.py changed since it was read" in str(result.content)


def test_writes_make_files_in_the_worktree_and_in_tmp(work: Work, tmp_path: Path) -> None:
    """Missing directories are made; what is not for writing is refused with where it is."""
    made = work.call("Write", file_path="deep/new/file.txt", content="é\n")
    assert made.content == "Wrote 3 bytes to /workspace/deep/new/file.txt"
    refused = work.call("Write", file_path="/etc/executor-test", content="")
    assert refused.code is Code.INVALID_PATH
    assert "/workspace, /tmp and" in str(refused.content)


# ─── Glob ───────────────────────────────────────────────────────────────────────────


def test_the_newest_file_comes_first(work: Work) -> None:
    """Files are sorted by their time of modification, ties by path, as absolute paths."""
    for age, name in enumerate(("notes.txt", "src/b.js", "src/a.py")):
        os.utime(work.root / name, (1000 - age, 1000 - age))
    os.utime(work.write("same.txt", ""), (1000, 1000))
    result = work.call("Glob", pattern="**/*")
    assert str(result.content).split("\n") == [
        "/workspace/notes.txt",
        "/workspace/same.txt",
        "/workspace/src/b.js",
        "/workspace/src/a.py",
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"pattern": "*.py", "path": "/workspace/src"}, "/workspace/src/a.py"),
        ({"pattern": "/workspace/src/*.py"}, "/workspace/src/a.py"),
        ({"pattern": "*.{py,rs}", "path": "src"}, "/workspace/src/a.py"),
        ({"pattern": "*.py"}, "No matches found"),
    ],
)
def test_names_are_found_below_a_directory(work: Work, given: dict[str, str], found: str) -> None:
    """The pattern is from `path`, from the working directory, or absolute."""
    assert work.call("Glob", **given).content == found


# ─── Grep ───────────────────────────────────────────────────────────────────────────

A = "/workspace/src/a.py"
B = "/workspace/src/b.js"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"pattern": "foo"}, [A, B]),
        ({"pattern": "foo", "output_mode": "files_with_matches"}, [A, B]),
        ({"pattern": "foo", "output_mode": "count"}, [f"{A}:2", f"{B}:1"]),
        (
            {"pattern": "foo", "output_mode": "content"},
            [f"{A}:2:def foo():", f"{A}:6:    foo()", f"{B}:1:function foo() {{"],
        ),
        (
            {"pattern": "foo", "output_mode": "content", "-n": False},
            [f"{A}:def foo():", f"{A}:    foo()", f"{B}:function foo() {{"],
        ),
        ({"pattern": "FOO"}, ["No matches found"]),
        ({"pattern": "FOO", "-i": True}, [A, B]),
        ({"pattern": "foo", "glob": "*.js"}, [B]),
        ({"pattern": "foo", "glob": "*.{js,ts}"}, [B]),
        ({"pattern": "foo", "type": "py"}, [A]),
        ({"pattern": "foo", "type": "py", "glob": "*.js"}, ["No matches found"]),
        ({"pattern": "foo", "path": "src/b.js"}, [B]),
        ({"pattern": "foo", "path": "/workspace/src"}, [A, B]),
        (
            {"pattern": "bar", "output_mode": "content", "-A": 1},
            [f"{A}:5:def bar():", f"{A}-6-    foo()"],
        ),
        (
            {"pattern": "return", "output_mode": "content", "-B": 1},
            [f"{A}-2-def foo():", f"{A}:3:    return 1"],
        ),
        (
            {"pattern": "bar", "output_mode": "content", "-C": 1, "-A": 0},
            [f"{A}-4-", f"{A}:5:def bar():"],
        ),
        ({"pattern": "bar", "-A": 3, "-B": 3, "-C": 3}, [A]),
        (
            {"pattern": r"foo\(\) \{.*?\}", "multiline": True, "output_mode": "content"},
            [f"{B}:1:function foo() {{", f"{B}:2:  x", f"{B}:3:}}"],
        ),
        ({"pattern": r"foo\(\) \{.*?\}"}, ["No matches found"]),
        ({"pattern": "foo", "head_limit": 0}, [A, B]),
        ({"pattern": "foo", "offset": 1}, [B]),
        (
            {"pattern": "foo", "head_limit": 1},
            [A, "[1 more entries; continue with offset=1 or narrow the search]"],
        ),
        (
            {"pattern": "foo", "output_mode": "content", "head_limit": 1, "offset": 1},
            [
                f"{A}:6:    foo()",
                "[1 more entries; continue with offset=2 or narrow the search]",
            ],
        ),
        ({"pattern": "foo", "offset": 7}, ["No entries from 7 on"]),
    ],
)
def test_a_search_has_the_seeds_arguments(
    work: Work, given: dict[str, Any], expected: list[str]
) -> None:
    """Each of the thirteen arguments does what ripgrep does; entries are sorted by path."""
    result = work.call("Grep", **given)
    assert not result.is_error
    assert str(result.content).split("\n") == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pattern": "fo("}, "unclosed group. Correct it, or escape what is meant literally."),
        ({"pattern": "a\nb"}, "Use multiline: true."),
        ({"pattern": "foo", "type": "zzz"}, "There is no file type 'zzz'."),
        ({"pattern": "foo", "type": "zzz", "output_mode": "count"}, "There is no file type"),
        ({"pattern": "foo", "output_mode": "lines"}, "must be one of 'content'"),
        ({"pattern": "foo", "head_limit": -1}, "head_limit must be 0 or more"),
        ({"pattern": "foo", "-A": "1"}, "-A must be a whole number"),
        ({"pattern": "foo", "-X": 1}, "-X is not an argument"),
    ],
)
def test_a_search_that_can_not_be_made_says_why(
    work: Work, given: dict[str, Any], said: str
) -> None:
    """The refusal names what is wrong and the mend that this toolset has."""
    result = work.call("Grep", **given)
    assert result.code is Code.INVALID_ARGUMENTS
    assert said in str(result.content)


@pytest.mark.parametrize("mode", ["content", "files_with_matches", "count"])
def test_a_search_is_cut_between_entries_and_goes_on(work: Work, mode: str) -> None:
    """Each entry is shown once when every page begins where the last one said."""
    for number in range(900):
        work.write(f"many/{'n' * 60}{number:04}.txt", "needle\n")
    seen: list[str] = []
    given: dict[str, Any] = {"pattern": "needle", "output_mode": mode}
    while True:
        result = work.call("Grep", **given, offset=len(seen))
        assert len(str(result.content)) <= 20_000
        lines = str(result.content).split("\n")
        entries = [line for line in lines if line.startswith("/workspace/many/")]
        seen += entries
        if not result.truncated:
            break
        left = rf"\[({900 - len(seen)} )?more entries; continue with offset={len(seen)} or "
        assert re.match(left, lines[-1])
    assert len(seen) == 900
    assert seen == sorted(set(seen))


def test_ignored_matches_are_told_in_every_mode(work: Work) -> None:
    """When nothing else matches, what .gitignore hides is said, with its path in the box."""
    work.write(".gitignore", "out/\n")
    work.write("out/x.txt", "hidden needle\n")
    for mode in ("content", "files_with_matches", "count"):
        text = str(work.call("Grep", pattern="needle", output_mode=mode).content)
        assert text.startswith("No matches found\n[1 match hidden by .gitignore (/workspace/out/x")


def test_denied_files_are_in_no_list(tmp_path: Path) -> None:
    """A rule that denies to read a file hides its matches in every mode, and says so."""
    with opened(tmp_path, "[permissions]\ndeny = ['Read(secret*)']\n") as work:
        work.write("secret.txt", "needle\n")
        work.write("open.txt", "needle\n")
        for mode in ("content", "files_with_matches", "count"):
            text = str(work.call("Grep", pattern="needle", output_mode=mode).content)
            assert "/workspace/open.txt" in text and "secret" not in text
            assert "1 file left out: rules deny to read it." in text


# ─── Bash ───────────────────────────────────────────────────────────────────────────


def test_both_streams_are_one_in_their_order(work: Work) -> None:
    """stdout and stderr come through one pipe, so their order is exact."""
    command = "for i in 1 2 3; do echo o$i; echo e$i >&2; done"
    for _ in range(5):
        result = work.call("Bash", command=command)
        assert result.content == "o1\ne1\no2\ne2\no3\ne3\n"
    assert result.structured is not None
    assert (result.structured["merged"], result.structured["stderr"]) == (True, "")


def test_a_command_that_fails_says_its_code_first(work: Work) -> None:
    """The exit code stands before the output."""
    result = work.call("Bash", command="echo out; exit 3")
    assert (result.is_error, result.content) == (True, "Exit code: 3\nout\n")


def test_relative_paths_begin_where_the_last_command_ended(work: Work) -> None:
    """Read, Glob, Grep and the next command follow `cd`."""
    work.call("Bash", command="cd src")
    try:
        assert str(work.call("Read", file_path="a.py", limit=1).content).startswith("     1\t")
        assert work.call("Glob", pattern="*.py").content == A
        assert work.call("Grep", pattern="foo", glob="*.js").content == B
        assert work.call("Glob", pattern="*.txt", path="..").content == "/workspace/notes.txt"
    finally:
        work.call("Bash", command="cd ..")


@pytest.mark.parametrize("timeout", [0, -1, 600_001, "5"])
def test_a_timeout_out_of_bounds_is_refused(work: Work, timeout: Any) -> None:
    """It is neither lowered nor ignored."""
    result = work.call("Bash", command="true", timeout=timeout)
    assert result.code is Code.INVALID_ARGUMENTS
    assert "timeout" in str(result.content)


def test_a_command_is_ended_at_its_timeout(work: Work) -> None:
    """What it printed until then is shown."""
    result = work.call("Bash", command="echo begun; sleep 30", timeout=300)
    assert result.code is Code.TIMEOUT
    assert result.content == "Command timed out after 300ms\nbegun\n"


def test_long_output_is_cut_in_characters(work: Work) -> None:
    """30,000 characters are shown, however many bytes they are."""
    whole = work.call("Bash", command="printf 'é%.0s' $(seq 30000)")
    assert (len(str(whole.content)), whole.truncated) == (30_000, False)
    cut = work.call("Bash", command="printf 'é%.0s' $(seq 30001)")
    assert len(str(cut.content)) <= 30_000
    assert cut.truncated and "bytes left out" in str(cut.content)


# ─── what is hidden from the model ──────────────────────────────────────────────────


def test_the_sandbox_is_never_turned_off(work: Work) -> None:
    """True is refused, false is taken; the model is not told of it."""
    assert "dangerously_disable_sandbox" not in json.dumps(TOOLS["Bash"].schema)
    assert not work.call("Bash", command="true", dangerously_disable_sandbox=False).is_error
    result = work.call("Bash", command="touch ran", dangerously_disable_sandbox=True)
    assert result.code is Code.PERMISSION_DENIED
    assert "the sandbox can't be turned off" in str(result.content)
    assert not (work.root / "ran").exists()


@pytest.mark.parametrize("mode", ["default", "bypass", "plan"])
def test_nobody_is_asked_to_turn_the_sandbox_off(tmp_path: Path, mode: str) -> None:
    """The refusal comes before the question."""
    asked: list[ApprovalRequest] = []

    def decide(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    with opened(tmp_path, mode=mode, approver=CallableApprover(decide)) as work:
        result = work.call("Bash", command="make", dangerously_disable_sandbox=True)
    assert (result.code, asked) == (Code.PERMISSION_DENIED, [])


SED = {"file_path": "notes.txt", "new_content": "something\n"}


def test_a_model_can_not_pass_a_files_new_content_as_a_command(work: Work) -> None:
    """The hidden argument is no argument for it, whatever the mode."""
    assert "_simulated_sed_edit" not in json.dumps(TOOLS["Bash"].schema)
    result = work.call("Bash", command="ls", _simulated_sed_edit=SED)
    assert result.code is Code.INVALID_ARGUMENTS
    assert "_simulated_sed_edit is not an argument" in str(result.content)
    assert (work.root / "notes.txt").read_text() == "nothing\n"


def test_no_hook_passes_it_either(tmp_path: Path) -> None:
    """Only who was asked about the call may write in its place."""

    def before(occasion: Occasion) -> Reply:
        return Reply(updated_input={"command": "ls", "_simulated_sed_edit": SED})

    with opened(tmp_path, hooks=Hooks([Hook(HookEvent.BEFORE, before)])) as work:
        work.write("notes.txt", "nothing\n")
        result = work.call("Bash", command="ls")
        assert result.code is Code.INVALID_ARGUMENTS
        assert (work.root / "notes.txt").read_text() == "nothing\n"


def modifying(edit: dict[str, Any], asked: list[ApprovalRequest]) -> CallableApprover:
    """Approves every command, but with the content that a preview has made."""

    def decide(request: ApprovalRequest) -> ApprovalAnswer:
        asked.append(request)
        given = {**request.arguments, "_simulated_sed_edit": edit}
        return ApprovalAnswer(approved=True, modified_arguments=given)

    return CallableApprover(decide)


COMMAND = "sed -i s/nothing/something/ notes.txt"


def sed(
    directory: Path, edit: dict[str, Any], more: str = "", read: bool = True
) -> tuple[Any, str, list[ApprovalRequest]]:
    """The result of a `sed` that somebody changed, the file after it, and what was asked."""
    asked: list[ApprovalRequest] = []
    approver = modifying(edit, asked)
    with opened(directory, more, mode="default", approver=approver) as work:
        work.write("notes.txt", "nothing\n")
        if read:
            work.call("Read", file_path="notes.txt")
        result = work.call("Bash", command=COMMAND)
        return result, (work.root / "notes.txt").read_text(), asked


def test_an_approver_may_write_what_a_preview_showed(tmp_path: Path) -> None:
    """The file gets that content, and no command is run."""
    result, text, asked = sed(tmp_path, {**SED, "new_content": "from the preview\n"})
    assert (result.content, text) == (
        "Wrote 17 bytes to /workspace/notes.txt",
        "from the preview\n",
    )
    assert [request.action for request in asked] == [COMMAND]


def test_it_is_a_write_and_needs_a_reading(tmp_path: Path) -> None:
    """A file that the loop has not read is not overwritten by it."""
    result, text, _ = sed(tmp_path, SED, read=False)
    assert (result.code, text) == (Code.NOT_READ, "nothing\n")


def test_it_is_judged_as_a_write(tmp_path: Path) -> None:
    """A rule that denies to edit the file holds, though the command was approved."""
    result, text, _ = sed(tmp_path, SED, "[permissions]\ndeny = ['Edit(*.txt)']\n")
    assert (result.code, text) == (Code.PERMISSION_DENIED, "nothing\n")


def test_it_stays_within_what_can_be_written(tmp_path: Path) -> None:
    """No path outside of what the toolset writes is reached by it."""
    result, text, _ = sed(tmp_path, {**SED, "file_path": "/etc/passwd"})
    assert (result.code, text) == (Code.INVALID_PATH, "nothing\n")


# ─── todos, questions ───────────────────────────────────────────────────────────────


def test_todos_say_which_one_is_active(work: Work) -> None:
    """The text is the seed's; more than one in progress is refused."""
    one = {"content": "Run tests", "status": "in_progress", "activeForm": "Running tests"}
    assert work.call("TodoWrite", todos=[one]).content == (
        "Todo list updated. Active: Running tests"
    )
    assert work.call("TodoWrite", todos=[]).content == "Todo list updated."
    two = work.call("TodoWrite", todos=[one, one])
    assert two.content == "Exactly one task should be in_progress at a time"
    assert two.is_error


def test_plan_mode_is_entered_and_left_by_its_own_names(tmp_path: Path) -> None:
    """In plan mode Read works and Write does not; unknown arguments of ExitPlanMode are ignored."""
    with opened(tmp_path) as work:
        entered = work.call("EnterPlanMode")
        assert "/run/executor/plans/test.md" in str(entered.content)
        assert work.call("Write", file_path="x", content="").code is Code.PERMISSION_DENIED
        assert work.call("Bash", command="ls").code is None
        assert work.call("EnterPlanMode", x=1).code is Code.INVALID_ARGUMENTS
        left = work.call("ExitPlanMode", unknown=1)
        assert left.code is not Code.INVALID_ARGUMENTS


def test_rules_take_the_names_of_the_toolset(tmp_path: Path) -> None:
    """`Bash(rm *)` and `Read(secret)` hold for the tools that are called so."""
    more = "[permissions]\ndeny = ['Bash(rm *)', 'Read(secret)', 'TodoWrite']\n"
    with opened(tmp_path, more) as work:
        work.write("secret", "x\n")
        for name, given in (
            ("Bash", {"command": "ls && rm secret"}),
            ("Read", {"file_path": "/workspace/secret"}),
            ("TodoWrite", {"todos": []}),
        ):
            assert work.call(name, **given).code is Code.PERMISSION_DENIED, name
        assert (work.root / "secret").exists()
