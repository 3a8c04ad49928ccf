"""What the tools say and do, through a whole loop, over both transports."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest

from executor.errors import Code
from executor.model import Call, Result
from tests.loops import Work, open_work


@pytest.fixture(scope="module", params=["local", "docker"])
def work(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Work]:
    """One loop a module, over each transport."""
    with open_work(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


def refused(result: Result, code: Code, *words: str) -> None:
    assert (result.is_error, result.code) == (True, code), result.content
    for word in words:
        assert word in str(result.content)


# ─── read_file ──────────────────────────────────────────────────────────────────────


def test_lines_are_numbered_as_the_seed_says(work: Work) -> None:
    """Six columns of number, a separator, the line as it is; data beside it is raw."""
    work.write("r.txt", "a\n\tb\n")
    result = work.call("read_file", path="r.txt")
    assert result.content == "     1│a\n     2│\tb"
    assert result.structured is not None
    modified = result.structured.pop("modified")
    digest = result.structured.pop("hash")
    assert modified.endswith("Z") and "T" in modified and len(digest) == 32
    assert result.structured == {
        "content": "a\n\tb",
        "size": 5,
        "lines": 2,
        "total_lines": 2,
        "encoding": "utf-8",
    }
    assert (result.truncated, result.total_bytes) == (False, 5)


def test_a_part_says_how_to_go_on(work: Work) -> None:
    """Offset and limit show their lines; what follows is counted, with the next offset."""
    work.write("r.txt", "".join(f"line {number}\n" for number in range(1, 11)))
    result = work.call("read_file", path="r.txt", offset=3, limit=2)
    assert result.content == "     3│line 3\n     4│line 4\n[6 more lines; continue with offset=5]"
    assert result.truncated is True
    last = work.call("read_file", path="r.txt", offset=9, limit=1)
    assert str(last.content).endswith("[1 more line; continue with offset=10]")
    assert work.call("read_file", path="r.txt", offset=10).truncated is False


def test_offset_beyond_the_end_counts_the_lines(work: Work) -> None:
    """There is no empty success: the error says how many lines there are."""
    work.write("r.txt", "a\nb\n")
    for offset in (3, 99):
        refused(
            work.call("read_file", path="r.txt", offset=offset), Code.INVALID_ARGUMENTS, "2 lines"
        )


def test_an_empty_file_is_said_to_be_empty(work: Work) -> None:
    """Nothing is numbered where nothing is."""
    work.write("empty", "")
    result = work.call("read_file", path="empty")
    assert result.content == "empty (0 bytes)"
    assert result.structured is not None and result.structured["lines"] == 0
    assert result.is_error is False


def test_a_long_line_is_cut_with_its_length(work: Work) -> None:
    """The first 2000 characters, then how long the line is; the next line follows."""
    work.write("r.txt", "é" * 5_000 + "\nend\n")
    result = work.call("read_file", path="r.txt")
    assert result.content == ("     1│" + "é" * 2000 + "... [line is 5000 characters]\n     2│end")
    assert result.truncated is True


def test_bytes_that_are_no_utf8_are_marked(work: Work) -> None:
    """Latin-1 is shown with replacement marks and a notice, and an edit keeps its bytes."""
    path = work.write("latin", b"v=1\n# na\xefve\n")
    path.chmod(0o666)
    result = work.call("read_file", path="latin")
    assert result.content == (
        "     1│v=1\n     2│# na\ufffdve\n[not valid UTF-8 (Latin-1?); edits stay byte-exact]"
    )
    edit = work.call("edit_file", path="latin", old_string="v=1", new_string="v=2")
    assert edit.is_error is False, edit.content
    assert path.read_bytes() == b"v=2\n# na\xefve\n"


def test_base64_is_the_whole_file(work: Work) -> None:
    """Bytes travel exactly, up to 1 MiB."""
    data = bytes(range(256)) * 10
    work.write("bin", data)
    result = work.call("read_file", path="bin", encoding="base64")
    assert base64.b64decode(str(result.content)) == data
    assert result.structured is not None and result.structured["encoding"] == "base64"
    work.write("big", b"x" * (1 << 20) + b"x")
    refused(work.call("read_file", path="big", encoding="base64"), Code.TOO_LARGE)
    refused(work.call("read_file", path="bin"), Code.UNSUPPORTED, "binary", "base64")


# ─── write_file ─────────────────────────────────────────────────────────────────────


def test_a_new_file_is_written_with_its_parents(work: Work) -> None:
    """Parents are made by default; the text counts bytes."""
    result = work.call("write_file", path="w/x/y.txt", content="é\n")
    assert result.content == "Wrote 3 bytes to w/x/y.txt"
    assert result.structured == {"path": "w/x/y.txt", "size": 3, "created": True}
    assert (work.root / "w/x/y.txt").read_bytes() == b"\xc3\xa9\n"
    missing = work.call("write_file", path="no/x", content="", createDirs=False)
    refused(missing, Code.FILE_NOT_FOUND, "no")


def test_overwriting_needs_a_whole_reading(work: Work) -> None:
    """Unread and partly read files are not overwritten; read ones and own ones are."""
    path = work.write("o.txt", "".join(f"{number}\n" for number in range(100)))
    path.chmod(0o666)
    refused(work.call("write_file", path="o.txt", content="x"), Code.NOT_READ, "read_file")
    work.call("read_file", path="o.txt", limit=2)
    refused(work.call("write_file", path="o.txt", content="x"), Code.NOT_READ, "only a part")
    work.call("read_file", path="o.txt", offset=3)
    assert work.call("write_file", path="o.txt", content="mine\n").is_error is False
    assert work.call("write_file", path="o.txt", content="again\n").is_error is False
    path.write_text("theirs\n")
    refused(work.call("write_file", path="o.txt", content="x"), Code.CONFLICT, "changed")
    assert path.read_text() == "theirs\n"


def test_base64_content_is_written_as_bytes(work: Work) -> None:
    """Encoded content becomes its bytes; a byte order mark is not added to them."""
    data = b"\xff\xfe\0"
    given = base64.b64encode(data).decode()
    assert work.call("write_file", path="w64", content=given, encoding="base64").is_error is False
    assert (work.root / "w64").read_bytes() == data


# ─── edit_file ──────────────────────────────────────────────────────────────────────


def test_an_edit_needs_a_reading_and_says_the_seeds_words(work: Work) -> None:
    """The seed's texts, each with its code."""
    work.write("e.txt", "a = 1\nb = 1\n").chmod(0o666)
    given: dict[str, Any] = {"path": "e.txt", "old_string": "1", "new_string": "2"}
    refused(
        work.call("edit_file", **given),
        Code.NOT_READ,
        "Must read_file before editing. Read the file first to see current content.",
    )
    work.call("read_file", path="e.txt", limit=1)
    refused(
        work.call("edit_file", **given),
        Code.AMBIGUOUS,
        "old_string found 2 times",
        "Use replace_all=true or provide more context.",
    )
    refused(
        work.call("edit_file", **{**given, "old_string": "zz"}),
        Code.NO_MATCH,
        "old_string not found in file. Make sure it matches exactly including whitespace.",
    )
    result = work.call("edit_file", **given, replace_all=True)
    assert result.content == "Replaced 2 occurrence(s) in e.txt"
    assert result.structured is not None
    assert {key: result.structured[key] for key in ("path", "replacements", "size")} == {
        "path": "e.txt",
        "replacements": 2,
        "size": 12,
    }
    assert work.call("edit_file", path="e.txt", old_string="a =", new_string="c =").code is None


def test_an_empty_old_string_is_refused(work: Work) -> None:
    """It would match everywhere; nothing is created either."""
    for path in ("e.txt", "not-there"):
        result = work.call("edit_file", path=path, old_string="", new_string="x")
        assert result.is_error is True
    assert not (work.root / "not-there").exists()


def test_fifty_edits_at_once_all_end_in_the_file(work: Work) -> None:
    """Every edit that reported success is in the file."""
    path = work.write("n.txt", "".join(f"n={number};\n" for number in range(50)))
    path.chmod(0o666)
    work.call("read_file", path="n.txt")
    calls = [
        Call(
            f"n{number}",
            "edit_file",
            {"path": "n.txt", "old_string": f"n={number};", "new_string": f"n={number}!"},
        )
        for number in range(50)
    ]

    async def at_once() -> list[Result]:
        return list(await asyncio.gather(*(work.loop.execute(call) for call in calls)))

    results = work.thread.run(at_once())
    assert [result.code for result in results] == [None] * 50
    assert path.read_text() == "".join(f"n={number}!\n" for number in range(50))


# ─── directories ────────────────────────────────────────────────────────────────────


def test_a_listing_shows_kinds_and_says_what_is_hidden(work: Work) -> None:
    """Names, `dir/`, `link -> target`; hidden ones are counted, or shown when asked for."""
    work.write("l/b.txt", "12345")
    work.write("l/a/deep.txt", "")
    work.write("l/.hidden", "")
    (work.root / "l/link").symlink_to("b.txt")
    (work.root / "l/dead").symlink_to("nowhere")
    result = work.call("list_directory", path="l")
    assert result.content == (
        "a/\nb.txt\ndead -> nowhere (broken)\nlink -> b.txt\n"
        "[1 hidden not shown; includeHidden=true shows them]"
    )
    assert result.structured is not None
    entries = {entry["name"]: entry for entry in result.structured["entries"]}
    assert {name: entry["type"] for name, entry in entries.items()} == {
        "a": "directory",
        "b.txt": "file",
        "dead": "symlink",
        "link": "symlink",
    }
    assert entries["b.txt"]["size"] == 5 and entries["b.txt"]["modified"].endswith("Z")
    assert ".hidden" in str(work.call("list_directory", path="l", includeHidden=True).content)
    deep = work.call("list_directory", path="l", recursive=True)
    assert "a/deep.txt" in str(deep.content)
    flat = work.call("list_directory", path="l", recursive=True, max_depth=1)
    assert "deep" not in str(flat.content)


def test_an_empty_directory_is_said_to_be_empty(work: Work) -> None:
    """There is a text even where there is nothing."""
    (work.root / "nothing").mkdir()
    result = work.call("list_directory", path="nothing")
    assert (result.content, result.structured) == ("empty directory", {"entries": [], "hidden": 0})


def test_delete_forgets_and_move_carries_what_was_read(work: Work) -> None:
    """After a move the file counts as read under its new name; after a delete it does not."""
    (work.root / "m").mkdir()
    (work.root / "m").chmod(0o777)
    work.call("write_file", path="m/a.txt", content="one\n")
    moved = work.call("move_file", **{"from": "m/a.txt", "to": "m/b.txt"})
    assert moved.content == "Moved m/a.txt to m/b.txt"
    assert moved.structured == {"from": "m/a.txt", "to": "m/b.txt"}
    edit = work.call("edit_file", path="m/b.txt", old_string="one", new_string="two")
    assert edit.is_error is False
    deleted = work.call("delete_file", path="m/b.txt")
    assert deleted.content == "Deleted m/b.txt"
    assert deleted.structured == {"deleted": ["m/b.txt"], "count": 1}
    work.write("m/b.txt", "new\n").chmod(0o666)
    refused(work.call("write_file", path="m/b.txt", content="x"), Code.NOT_READ)


def test_a_tree_is_deleted_only_when_asked_for(work: Work) -> None:
    """A directory needs recursive; the root and `.git` are refused."""
    work.call("write_file", path="t/x/y.txt", content="")
    assert work.call("delete_file", path="t").is_error is True
    result = work.call("delete_file", path="t", recursive=True)
    assert result.structured is not None
    assert result.structured["deleted"] == ["t/x/y.txt", "t/x", "t"]
    assert work.call("delete_file", path=".", recursive=True).is_error is True


# ─── commands ───────────────────────────────────────────────────────────────────────


def test_a_command_is_shown_as_the_seed_says(work: Work) -> None:
    """Output as it is; stderr under its heading; the exit code first when it is not 0."""
    assert work.call("run_command", command="echo hi").content == "hi\n"
    assert work.call("run_command", command="echo e >&2").content == "e\n"
    both = work.call("run_command", command="echo o; echo e >&2; exit 3")
    assert both.content == "Exit code: 3\no\n\n\nSTDERR:\ne\n"
    refused(both, Code.EXECUTION_ERROR)
    silent = work.call("run_command", command="true")
    assert (silent.content, silent.is_error) == ("", False)


def test_a_command_as_data(work: Work) -> None:
    """Every fact has its key, and an empty stream is an empty text."""
    result = work.call("run_command", command="printf x; exit 1")
    assert result.structured is not None
    cwd, shell = result.structured.pop("cwd"), result.structured.pop("shell")
    assert shell in ("bash", "sh") and cwd == ("/workspace" if work.kind == "docker" else cwd)
    assert result.structured == {
        "exit_code": 1,
        "signal": None,
        "timed_out": False,
        "oom": False,
        "limit": None,
        "lane": "no-net",
        "merged": False,
        "stdout": "x",
        "stderr": "",
        "notes": [],
    }
    assert (result.truncated, result.total_bytes) == (False, 1)


def test_a_timeout_is_said_and_keeps_what_was_printed(work: Work) -> None:
    """The text begins with the timeout as it was given."""
    result = work.call("run_command", command="echo partial; sleep 60", timeout_ms=300)
    refused(result, Code.TIMEOUT)
    assert result.content == "Command timed out after 300ms\npartial\n"
    assert result.structured is not None and result.structured["timed_out"] is True


def test_a_flood_keeps_both_ends(work: Work) -> None:
    """Head and tail stay, the middle is counted, the whole size is known."""
    result = work.call("run_command", command="yes | head -c 5000000; echo END; exit 7")
    refused(result, Code.EXECUTION_ERROR)
    text = str(result.content)
    assert text.startswith("Exit code: 7\ny\ny\n") and text.endswith("y\nEND\n")
    assert "bytes left out]" in text
    assert (result.truncated, result.total_bytes) == (True, 5_000_004)
    assert len(text) <= 100_000


def test_output_that_is_no_utf8_is_shown(work: Work) -> None:
    """Odd bytes become replacement marks; a character in two pieces stays whole."""
    assert work.call("run_command", command=r"printf 'ok\377\376\n'").content == "ok\ufffd\ufffd\n"
    late = work.call("run_command", command=r"printf '\343'; sleep .2; printf '\201\202\n'")
    assert late.content == "あ\n"


def test_the_directory_lasts_and_is_told(work: Work) -> None:
    """`cd` holds for the next command, not for file tools, and leaving is said."""
    work.write("cd/sub/x.txt", "x\n")
    first = work.call("run_command", command="cd cd/sub")
    assert first.structured is not None and first.structured["cwd"].endswith("/cd/sub")
    assert work.call("run_command", command="ls").content == "x.txt\n"
    assert work.loop.session.cwd.endswith("/cd/sub")
    refused(work.call("read_file", path="x.txt"), Code.FILE_NOT_FOUND)
    away = work.call("run_command", command="cd /")
    assert away.structured is not None and away.structured["notes"]
    assert "where the command ended, is outside the worktree" in str(away.content)
    assert "cd" in str(work.call("run_command", command="ls").content)


def test_a_killed_command_names_the_signal(work: Work) -> None:
    """A command that ends by a signal has no exit code, and says which signal."""
    result = work.call("run_command", command="kill -9 $$")
    refused(result, Code.EXECUTION_ERROR, "Killed by signal SIGKILL")
    assert result.structured is not None
    assert (result.structured["exit_code"], result.structured["signal"]) == (None, "SIGKILL")


def test_code_runs_with_arguments_and_environment(work: Work) -> None:
    """Python and bash get args, env and the worktree's root; the result has both spellings."""
    code = "import os, sys; print(sys.argv[1:], os.environ['A']); sys.exit(2)"
    result = work.call("run_code", language="python", code=code, args=["x y"], env={"A": "b"})
    refused(result, Code.EXECUTION_ERROR)
    assert result.content == "Exit code: 2\n['x y'] b\n"
    assert result.structured is not None
    assert (result.structured["exit_code"], result.structured["exitCode"]) == (2, 2)
    assert result.structured["duration"] > 0 and result.structured["interpreter"]
    bash = work.call("run_code", language="bash", code='echo "$1"; pwd', args=["é"])
    assert str(bash.content).startswith("é\n/")


def test_large_code_and_commands_are_taken(work: Work) -> None:
    """Payloads beyond one argument's size go through unharmed."""
    big = "x" * 300_000
    assert work.call("run_command", command=f": {big}; echo ok").content == "ok\n"
    code = f"print(len('{big}'))"
    assert work.call("run_code", language="python", code=code).content == "300000\n"


# ─── turns and events ───────────────────────────────────────────────────────────────


def test_a_turn_answers_in_the_order_of_its_calls(work: Work) -> None:
    """Whatever ran when, the results stand in the order of the calls."""
    results = work.turn(
        ("complete_task", {"summary": "first in the list, last to run"}),
        ("write_file", {"path": "turn.txt", "content": "written\n"}),
        ("read_file", {"path": "turn.txt"}),
        ("nope", {}),
        ("run_command", {"command": "cat turn.txt"}),
    )
    assert [result.name for result in results] == [
        *("complete_task", "write_file", "read_file", "nope", "run_command")
    ]
    assert results[2].content == "     1│written"
    assert results[4].content == "written\n"
    assert work.loop.completed == "first in the list, last to run"


def test_events_tell_a_turn(work: Work) -> None:
    """Start, live output, completion and results, numbered, results in order."""
    events = work.events(
        ("complete_task", {"summary": "s"}), ("run_command", {"command": "echo live"})
    )
    kinds = [type(event).__name__ for event in events]
    assert [kind for kind in kinds if kind not in ("LaneOpened", "Output")] == [
        *("CallStarted", "CallStarted", "TaskCompleted", "Finished", "Finished")
    ]
    assert "".join(getattr(event, "text", "") for event in events) == "live\n"
    assert [event.seq for event in events] == list(
        range(events[0].seq, events[0].seq + len(events))
    )
    assert all(event.exec_id == "test" for event in events)
    names = [event.result.name for event in events if hasattr(event, "result")]
    assert names == ["complete_task", "run_command"]


# ─── glob and grep ──────────────────────────────────────────────────────────────────


def test_glob_lists_paths_and_counts_what_is_ignored(work: Work) -> None:
    """Relative paths in order; files that .gitignore hides are counted, never silent."""
    for name in ("s/.gitignore", "s/a.ts", "s/.hidden.ts", "s/dist/b.ts", "s/x.py"):
        work.write(name, "dist/\n")
    found = work.call("glob", pattern="**/*.ts", path="s")
    assert found.content == "s/.hidden.ts\ns/a.ts\n[1 ignored by .gitignore]"
    assert found.structured == {
        "matches": ["s/.hidden.ts", "s/a.ts"],
        "total": 2,
        "ignored": 1,
    }
    none = work.call("glob", pattern="s/**/*.rs")
    assert (none.content, none.is_error, none.truncated) == ("No matches found", False, False)
    hidden = str(work.call("glob", pattern="s/dist/*.ts").content)
    assert "s/dist/b.ts" in hidden or "1 match hidden by .gitignore" in hidden


def test_grep_shows_lines_with_context(work: Work) -> None:
    """Matches as ripgrep prints them, two lines of context by default, paths relative."""
    work.write("g/a.txt", "1\n2\n3\nneedle\n5\n6\n7\n")
    work.write("g/b.py", "NEEDLE (\r\n")
    found = work.call("grep", pattern="needle", path="g")
    assert found.content == ("g/a.txt-2-2\ng/a.txt-3-3\ng/a.txt:4:needle\ng/a.txt-5-5\ng/a.txt-6-6")
    assert found.structured == {
        "matches": 1,
        "files": 1,
        "partial": False,
        "ignored": 0,
        "warnings": [],
    }
    bare = work.call("grep", pattern="needle", path="g", context=0, ignore_case=True)
    assert bare.content == "g/a.txt:4:needle\ng/b.py:1:NEEDLE ("
    only = work.call("grep", pattern="e$|\\($", path="g", file_pattern="*.py", context=0)
    assert only.content == "g/b.py:1:NEEDLE ("
    literal = work.call("grep", pattern="(", path="g", literal=True, context=0)
    assert literal.content == "g/b.py:1:NEEDLE ("


def test_grep_tells_its_three_ends_apart(work: Work) -> None:
    """Nothing found is a success, a bad regex is an error with ripgrep's words."""
    work.write("g/a.txt", "x\n")
    none = work.call("grep", pattern="zzz", path="g")
    assert (none.content, none.is_error) == ("No matches found", False)
    refused(work.call("grep", pattern="(", path="g"), Code.INVALID_ARGUMENTS, "unclosed group")
    refused(work.call("grep", pattern="x", path="nope"), Code.FILE_NOT_FOUND, "nope")


def test_grep_stops_at_max_results_and_says_so(work: Work) -> None:
    """More matches than asked for are left out, and that is said."""
    work.write("g/many.txt", "hit\n" * 50)
    found = work.call("grep", pattern="hit", path="g/many.txt", context=0, max_results=3)
    lines = str(found.content).splitlines()
    assert len(lines) == 4 and lines[3].startswith("[more matches were left out")
    assert found.truncated is True


def test_grep_says_what_gitignore_hides(work: Work) -> None:
    """Matches that are only in ignored files are counted, never denied."""
    work.write("li/.gitignore", "*.log\n")
    work.write("li/a.log", "q1\n")
    found = work.call("grep", pattern="q1", path="li")
    assert found.content == (
        "No matches found\n"
        "[1 match hidden by .gitignore (li/a.log); give the file as path to search it]"
    )
    assert found.structured is not None and found.structured["ignored"] == 1
    assert work.call("grep", pattern="q1", path="li/a.log").content == "li/a.log:1:q1"


def test_odd_names_are_shown_alike_and_taken_back(work: Work) -> None:
    """List, glob and grep spell them so that reading finds them; data hold the real name."""
    real = b"a\n\x1b\t\xff".decode("utf-8", "surrogateescape")
    spelling = "a\\x0a\\x1b\\x09\\xff"
    work.write(f"odd/{real}", "needle\n")
    listed = work.call("list_directory", path="odd")
    assert listed.content == spelling
    assert listed.structured is not None and listed.structured["entries"][0]["name"] == real
    globbed = work.call("glob", pattern="odd/*")
    assert globbed.content == f"odd/{spelling}"
    assert globbed.structured is not None and globbed.structured["matches"] == [f"odd/{real}"]
    assert work.call("grep", pattern="needle", path="odd").content == f"odd/{spelling}:1:needle"
    assert work.call("read_file", path=f"odd/{spelling}").content == "     1│needle"
    assert work.call("delete_file", path=f"odd/{spelling}").content == f"Deleted odd/{spelling}"


def test_arguments_that_contradict_each_other_are_refused(work: Work) -> None:
    """A depth of a flat list, a file with a slash at its end, and padding that is too long."""
    flat = work.call("list_directory", recursive=False, max_depth=2)
    refused(flat, Code.INVALID_ARGUMENTS, "recursive=true")
    refused(work.call("write_file", path="newf/", content="x"), Code.INVALID_PATH, "slash")
    assert not (work.root / "newf").exists()
    padded = work.call("write_file", path="p64", content="QUJE=", encoding="base64")
    refused(padded, Code.INVALID_ARGUMENTS, "base64")
    work.write("here.txt", "x")
    same = work.call("move_file", **{"from": "here.txt", "to": "here.txt"})
    refused(same, Code.INVALID_ARGUMENTS, "the same")
    refused(work.call("move_file", **{"from": "here.txt", "to": "new/"}), Code.INVALID_PATH)


def test_a_large_flat_directory_is_counted_and_a_way_on_given(work: Work) -> None:
    """The total is told, and that a glob with a prefix finds the rest."""
    directory = work.root / "flat"
    directory.mkdir()
    for number in range(10_050):
        (directory / f"{number:05}").touch()
    result = work.call("list_directory", path="flat")
    shown = len(result.structured["entries"]) if result.structured is not None else 0
    assert str(result.content).endswith(
        f"[only the first {shown} entries are shown, {10_050 - shown} more are not; "
        "use glob with a prefix (a*)]"
    )
    assert result.truncated is True
