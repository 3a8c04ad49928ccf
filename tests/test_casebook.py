"""Faults that users of such tools met, each through a whole loop, over both transports.

The numbers are those of the casebook; `test_tools` and `test_controller` hold those that
belong to a tool's ordinary contract.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.errors import Code
from executor.model import Result
from tests.conftest import LIMITS
from tests.loops import Work, open_work
from tests.pictures import LOCKED, PNG, pdf

PROMPT = 10.0
"""Seconds that "promptly" means on a busy machine: what hangs would take a minute or more."""


@pytest.fixture(scope="module", params=["local", "docker"])
def work(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Work]:
    """One loop a module, over each transport."""
    with open_work(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


def edit(work: Work, name: str, data: bytes, old: str, new: str, **more: Any) -> Result:
    """One edit of a file with these bytes, after a reading."""
    work.write(name, data)
    work.call("read_file", path=name, limit=1)
    return work.call("edit_file", path=name, old_string=old, new_string=new, **more)


def content(work: Work, name: str) -> bytes:
    return (work.root / name).read_bytes()


def out(work: Work, command: str, **more: Any) -> str:
    result = work.call("run_command", command=command, **more)
    assert result.structured is not None, result.content
    return str(result.structured["stdout"])


# ─── A: edit and write ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("replace_all", [False, True])
def test_a1_lf_text_matches_a_crlf_file(work: Work, replace_all: bool) -> None:
    """Old text with LF matches CRLF lines, and the new text gets the place's line ends."""
    data = b"one\r\n\ttwo\r\nthree\r\n"
    result = edit(work, "f", data, "one\n\ttwo", "ONE\n\tTWO\nmore", replace_all=replace_all)
    assert result.is_error is False, result.content
    assert content(work, "f") == b"ONE\r\n\tTWO\r\nmore\r\nthree\r\n"


def test_a3_line_ends_are_translated_once_and_never_by_write(work: Work) -> None:
    """No CR CR LF, no mixture; write_file writes what it was given."""
    edit(work, "f", b"a\r\nb\r\n", "b", "b\r\nc")
    work.call("edit_file", path="f", old_string="a", new_string="a\nz")
    assert content(work, "f") == b"a\r\nz\r\nb\r\nc\r\n"
    work.call("write_file", path="g3", content="p\r\nq\n")
    assert content(work, "g3") == b"p\r\nq\n"


def test_a4_a_byte_order_mark_is_the_files_own(work: Work) -> None:
    """It is not shown, is kept by edits and overwrites, and never invented."""
    work.write("f", b"\xef\xbb\xbfalpha\r\nbeta\r\n")
    assert work.call("read_file", path="f").content == "     1│alpha\n     2│beta"
    work.call("edit_file", path="f", old_string="alpha", new_string="ALPHA")
    assert content(work, "f") == b"\xef\xbb\xbfALPHA\r\nbeta\r\n"
    assert work.call("write_file", path="f", content="x\n").is_error is False
    assert content(work, "f") == b"\xef\xbb\xbfx\n"


def test_a6_tabs_are_bytes(work: Work) -> None:
    """Text copied from a reading matches; spaces in place of a tab are named as the reason."""
    data = b"\tif x:\n\t\ty\n"
    shown = str(edit(work, "f", data, "zz", "z").content)
    assert "not found" in shown
    wrong = work.call("edit_file", path="f", old_string="        if x:", new_string="q")
    assert wrong.code is Code.NO_MATCH
    assert "whitespace" in str(wrong.content) and "line 1" in str(wrong.content)
    read = str(work.call("read_file", path="f").content)
    copied = "\n".join(line.split("│", 1)[1] for line in read.split("\n"))
    work.call("edit_file", path="f", old_string=copied, new_string="\tif z:\n\t\ty")
    assert content(work, "f") == b"\tif z:\n\t\ty\n"


@pytest.mark.parametrize("replace_all", [False, True])
def test_a9_an_empty_old_text_is_an_error_everywhere(work: Work, replace_all: bool) -> None:
    """In a file, an empty one and a missing one: nothing changes and nothing is made."""
    work.write("f9", "aXb")
    work.write("empty9", "")
    for name in ("f9", "empty9", "none9"):
        work.call("read_file", path=name)
        given = {"path": name, "old_string": "", "new_string": "-", "replace_all": replace_all}
        result = work.call("edit_file", **given)
        assert result.code is Code.INVALID_ARGUMENTS and "old_string is empty" in str(
            result.content
        )
    assert (content(work, "f9"), content(work, "empty9")) == (b"aXb", b"")
    assert not (work.root / "none9").exists()


@pytest.mark.parametrize(("old", "replace_all"), [("cost=A", False), ("A", True)])
def test_a8_new_text_is_literal(work: Work, old: str, replace_all: bool) -> None:
    """Dollar signs, backslashes and group names are only characters."""
    new = "$$1 $& $` $' \\1 \\n \\g<0>"
    edit(work, "f", b"cost=A\nA\n", old, new, replace_all=replace_all)
    assert content(work, "f") == b"cost=A\nA\n".replace(old.encode(), new.encode())


def test_a12_links_stay_links(work: Work) -> None:
    """The target is edited through links; a link out of the worktree is refused."""
    work.write("e/real", "v=1\n")
    work.write("d/x", "")
    (work.root / "d/l1").symlink_to("../e/real")
    (work.root / "d/l2").symlink_to("l1")
    (work.root / "d/away").symlink_to("/etc/hostname")
    work.call("read_file", path="d/l2")
    result = work.call("edit_file", path="d/l2", old_string="1", new_string="2")
    assert result.is_error is False, result.content
    assert content(work, "e/real") == b"v=2\n"
    assert os.readlink(work.root / "d/l2") == "l1"
    for name in ("read_file", "edit_file"):
        more = {"old_string": "a", "new_string": "b"} if name == "edit_file" else {}
        assert work.call(name, path="d/away", **more).code is Code.INVALID_PATH


def test_a13_bytes_in_another_encoding_stay(work: Work) -> None:
    """An edit elsewhere in a Latin-1 file keeps its bytes."""
    assert edit(work, "f13", b"v=1\n# na\xefve\n", "v=1", "v=2").is_error is False
    assert content(work, "f13") == b"v=2\n# na\xefve\n"


def test_a14_of_edits_that_are_issued_together_none_is_lost(work: Work) -> None:
    """Fifty edits of one turn: all that report success are in the file."""
    work.write("f14", "".join(f"n={number};\n" for number in range(50)))
    work.call("read_file", path="f14")
    given = [
        {"path": "f14", "old_string": f"n={number};", "new_string": f"n={number}!"}
        for number in range(50)
    ]
    results = work.turn(*(("edit_file", arguments) for arguments in given))
    assert [result.code for result in results] == [None] * 50
    assert content(work, "f14").decode() == "".join(f"n={number}!\n" for number in range(50))


def test_a16_what_was_read_may_be_changed(work: Work) -> None:
    """Own new files and parts that were seen may be edited; the unread and the changed may not."""
    assert work.call("write_file", path="own16", content="a\n").is_error is False
    own = work.call("edit_file", path="own16", old_string="a", new_string="b")
    assert own.is_error is False
    work.write("part16", "".join(f"line {number}.\n" for number in range(100)))
    seen: dict[str, Any] = {"path": "part16", "old_string": "line 1.", "new_string": "x"}
    assert work.call("edit_file", **seen).code is Code.NOT_READ
    work.call("read_file", path="part16", limit=2)
    assert work.call("edit_file", **seen).is_error is False
    assert work.call("write_file", path="part16", content="x").code is Code.NOT_READ
    work.call("read_file", path="part16")
    with (work.root / "part16").open("a") as file:
        file.write("theirs\n")
    assert work.call("write_file", path="part16", content="x").code is Code.CONFLICT
    assert content(work, "part16").endswith(b"theirs\n")


def test_a17_no_change_is_an_error(work: Work) -> None:
    """Equal texts change nothing, and absent ones are said to be absent."""
    before = work.write("f", "a\n").stat()
    same = edit(work, "f2", b"a\n", "a", "a")
    assert same.is_error is True and "no change" in str(same.content).lower()
    absent = edit(work, "f2", b"a\n", "zz", "zz")
    assert absent.code is Code.NO_MATCH
    assert (work.root / "f").stat().st_ino == before.st_ino


@pytest.mark.parametrize("size", [131_072, 300_000, 5_000_000])
def test_a19_large_contents_go_through(work: Work, size: int) -> None:
    """Content of any size arrives byte for byte, quotes and dollars included."""
    unit = "'\"$\\`\n"
    text = (unit * (size // len(unit) + 1))[:size]
    (work.root / "big").unlink(missing_ok=True)
    work.loop.session.forget("big")
    assert work.call("write_file", path="big", content=text).is_error is False
    assert content(work, "big") == text.encode()
    old = text[:150_000] if size > 300_000 else text
    result = work.call("edit_file", path="big", old_string=old, new_string="x", replace_all=True)
    assert result.is_error is False, result.content


def test_a20_entities_are_only_text(work: Work) -> None:
    """Nothing is decoded on the way to the disk or to the shell."""
    text = "a &lt;b&gt; &amp;&apos; &#36;"
    work.call("write_file", path="entities", content=text)
    assert content(work, "entities") == text.encode()
    assert out(work, "echo '&gt;'") == "&gt;\n"


def test_a21_huge_files_are_refused_or_searched_in_time(work: Work) -> None:
    """An edit is refused at once with the limit, and the next call works."""
    path = work.write("huge", "k=1\n")
    os.truncate(path, 3 << 30)
    work.call("read_file", path="huge", limit=1)
    began = time.monotonic()
    result = work.call("edit_file", path="huge", old_string="k=1", new_string="k=2")
    assert time.monotonic() - began < PROMPT
    assert result.code is Code.TOO_LARGE and "MiB" in str(result.content)
    assert work.call("grep", pattern="k=1", path="huge").is_error is False
    assert out(work, "echo ok") == "ok\n"
    path.unlink()


# ─── B: read ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "link to the fifo", "/dev/zero"])
def test_b22_special_files_never_hang(work: Work, kind: str) -> None:
    """What is no regular file is refused at once, by reading, editing and searching alike."""
    work.write("special/x", "")
    path = work.root / "special" / kind.rsplit("/", maxsplit=1)[-1].replace(" ", "-")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        place = os.getcwd()
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
        os.chdir(place)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("fifo" if "link" in kind else kind)
    began = time.monotonic()
    name = f"special/{path.name}"
    assert work.call("read_file", path=name).code in (Code.NOT_A_FILE, Code.INVALID_PATH)
    given = {"old_string": "a", "new_string": "b"}
    assert work.call("edit_file", path=name, **given).is_error is True
    work.call("grep", pattern="x", path=name)
    assert time.monotonic() - began < PROMPT


def test_b23_a_line_of_megabytes_is_clipped(work: Work) -> None:
    """One line can't flood the context, and the next line is there."""
    work.write("long", "a" * 5_000_000 + "\nend\n")
    result = work.call("read_file", path="long")
    text = str(result.content)
    assert len(text) < 10_000 and result.truncated is True
    assert "... [line is 5000000 characters]" in text and text.endswith("     2│end")


def test_b25_beyond_the_end_and_empty_are_told_apart(work: Work) -> None:
    """No line is invented: the number of lines is said, and offsets begin at 1."""
    work.write("f25", "a\nb\n")
    for offset in (3, 99):
        result = work.call("read_file", path="f25", offset=offset)
        assert result.is_error is True and "2 lines" in str(result.content)
    work.write("g25", "")
    assert work.call("read_file", path="g25").content == "empty (0 bytes)"
    for offset in (0, -1):
        assert work.call("read_file", path="f25", offset=offset).code is Code.INVALID_ARGUMENTS


def test_b27_images_are_never_guessed_from_names(work: Work) -> None:
    """Text named .png is text, a PNG named .jpg a PNG; a cut one and binary data are errors."""
    work.write("x.png", "<svg/>")
    assert work.call("read_file", path="x.png").content == "     1│<svg/>"
    work.write("x.jpg", PNG)
    content = work.call("read_file", path="x.jpg").content
    assert isinstance(content, list)
    assert content[0]["source"]["media_type"] == "image/png"
    for name, data in (("cut.png", PNG[: len(PNG) // 2]), ("t.txt", b"a\0b")):
        work.write(name, data)
        result = work.call("read_file", path=name)
        assert result.code in (Code.EXECUTION_ERROR, Code.UNSUPPORTED), result.content
        assert isinstance(result.content, str)
    assert "3 bytes" in str(work.call("read_file", path="t.txt").content)
    work.write("e.png", "")
    empty = work.call("read_file", path="e.png")
    assert (empty.code, "empty (0 bytes)" in str(empty.content)) == (Code.EXECUTION_ERROR, True)


def test_b30_damaged_and_locked_pdf_files_are_typed(work: Work) -> None:
    """Damaged, locked and long PDF files are told apart; the loop goes on."""
    for name, data, code, said in (
        ("d.pdf", b"%PDF-1.4\ngarbage", Code.EXECUTION_ERROR, "damaged"),
        ("p.pdf", pdf("x", trailer=LOCKED), Code.UNSUPPORTED, "a password is needed"),
        ("l.pdf", pdf(*"x" * 500), Code.TOO_LARGE, "500 pages; at most 20 can be shown"),
    ):
        work.write(name, data)
        result = work.call("read_file", path=name)
        assert result.code is code, result.content
        assert said in str(result.content)
    content = work.call("read_file", path="l.pdf", pages="499-500").content
    assert isinstance(content, list)
    assert [block["type"] for block in content] == ["text", "image"] * 2


def test_b28_one_line_of_a_huge_file_is_quick(work: Work) -> None:
    """The first line of 2 GiB comes at once."""
    path = work.write("sparse", "head\n")
    os.truncate(path, 2 << 30)
    began = time.monotonic()
    result = work.call("read_file", path="sparse", offset=1, limit=1)
    assert time.monotonic() - began < PROMPT
    assert str(result.content).startswith("     1│head\n[more lines; continue with offset=2")
    path.unlink()


# ─── D, E: search ───────────────────────────────────────────────────────────────────


def test_d33_brackets_in_folder_names_are_found(work: Work) -> None:
    """A bracket part that exists literally is taken literally first."""
    name = "app/[locale]/(auth)/page.tsx"
    work.write(name, "x\n")
    for given in (
        {"pattern": "app/[locale]/(auth)/**"},
        {"pattern": "**/*.tsx", "path": "app/[locale]"},
    ):
        assert work.call("glob", **given).content == name
    assert work.call("read_file", path=name).content == "     1│x"
    listed = work.call("list_directory", path="app/[locale]/(auth)")
    assert listed.content == "page.tsx"


def test_d34_hidden_and_ignored_files_never_vanish_without_a_word(work: Work) -> None:
    """Hidden files are found; ignored ones are counted, or found when their directory is named."""
    for name in (".github/workflows/ci.yml", ".hidden.ts", "a.ts", "dist/b.ts"):
        work.write("d34/" + name, "x\n")
    work.write("d34/.gitignore", "dist/\n")
    found = work.call("glob", pattern=".github/workflows/*.yml", path="d34")
    assert found.content == "d34/.github/workflows/ci.yml"
    found = work.call("glob", pattern="**/*.ts", path="d34")
    assert found.content == "d34/.hidden.ts\nd34/a.ts\n[1 ignored by .gitignore]"
    for given in ({"pattern": "dist/*.ts", "path": "d34"}, {"pattern": "d34/dist/*.ts"}):
        text = str(work.call("glob", **given).content)
        assert "d34/dist/b.ts" in text or "1 match hidden by .gitignore" in text


@pytest.mark.parametrize("pattern", ["{" * 20_000, "{a,b}" * 8 + "x" * 90_000, "{a,b}" * 9])
def test_d_no_pattern_keeps_the_box_from_its_other_calls(work: Work, pattern: str) -> None:
    """What would take long to understand is refused at once; what runs beside it goes on."""
    results = work.turn(
        ("glob", {"pattern": pattern}),
        ("grep", {"pattern": "x", "file_pattern": pattern}),
        ("read_file", {"path": "d34/a.ts"}),
    )
    codes = [result.code for result in results]
    assert codes == [Code.INVALID_ARGUMENTS, Code.INVALID_ARGUMENTS, None]
    assert all(result.duration_ms < 1000 * PROMPT for result in results)


def test_d36_links_upward_end(work: Work) -> None:
    """Cycles are not entered; a dead link is no error."""
    work.write("t/a/f", "1\n")
    for name, target in (("t/a/up", ".."), ("t/self", "."), ("t/dead", "nowhere")):
        (work.root / name).symlink_to(target)
    assert work.call("glob", pattern="t/**/f").content == "t/a/f"
    listed = work.call("list_directory", path="t", recursive=True, max_depth=5)
    assert str(listed.content).split("\n").count("a/f") == 1
    assert "dead -> nowhere (broken)" in str(listed.content)
    assert work.call("grep", pattern="1", path="t").content == "t/a/f:1:1"


def test_e39_the_three_ends_of_a_search_are_told_apart(work: Work) -> None:
    """A bad regex, no match and an unreadable file: error, success, and a match with a warning."""
    work.write("e39/a", "hit (\n")
    work.write("e39/b", "hit\n").chmod(0)
    bad = work.call("grep", pattern="(", path="e39")
    assert bad.code is Code.INVALID_ARGUMENTS and "unclosed group" in str(bad.content)
    none = work.call("grep", pattern="zzz", path="e39/a")
    assert (none.is_error, none.content) == (False, "No matches found")
    assert work.call("grep", pattern="x", path="e39/none").code is Code.FILE_NOT_FOUND
    literal = work.call("grep", pattern="(", path="e39", literal=True)
    assert str(literal.content).startswith("e39/a:1:hit (")
    found = work.call("grep", pattern="hit", path="e39")
    assert found.is_error is False and found.structured is not None
    if out(work, "cat e39/b") != "hit\n":  # for root nothing is unreadable
        assert str(found.content).startswith("e39/a:1:hit (\n[")
        assert "e39/b" in str(found.structured["warnings"])


def test_e40_a_hit_in_a_minified_line_is_shown_with_its_surroundings(work: Work) -> None:
    """The reply is short and holds the hit, some text at both sides, and how long it is."""
    work.write("min.js", "a" * 500_000 + "NEEDLE" + "b" * 500_000 + "\n")
    for context in (0, 1):
        text = str(work.call("grep", pattern="NEEDLE", path="min.js", context=context).content)
        assert "aNEEDLEb" in text and len(text) < 2000
        assert "min.js:1:" in text and "characters]" in text


def test_e42_a_line_ends_before_its_carriage_return(work: Work) -> None:
    """`$` matches in CRLF files, and no CR is shown."""
    work.write("e42", "foo\r\nbar\r\n")
    for pattern, shown in (("foo$", "e42:1:foo"), ("^bar$", "e42:2:bar")):
        result = work.call("grep", pattern=pattern, path="e42", context=0)
        assert result.content == shown


def test_e43_encodings_and_binary_files(work: Work) -> None:
    """UTF-16 is searched; of a binary file only the fact is told."""
    work.write("enc/u16", b"\xff\xfeh\0i\0t\0\n\0")
    work.write("enc/bin", b"hit\n\0\0\nhit\n")
    text = str(work.call("grep", pattern="hit", path="enc").content)
    assert "enc/u16:1:hit" in text and "binary file matches" in text
    assert "\0" not in text


@pytest.mark.runc_only("memory ends a box of gVisor as a whole")
def test_a_search_that_memory_ran_out_for_says_so(tmp_path: Path) -> None:
    """A line that is larger than the memory of the box: the call fails clearly, the box lives."""
    with open_work("docker", tmp_path, limits=replace(LIMITS, memory="64m")) as small:
        small.write("deep/x", "x\n")
        with (small.root / "deep/line").open("wb") as file:
            for _ in range(128):
                file.write(b"a" * (1 << 20))
        result = small.call("grep", pattern="b", path="deep")
        assert result.code is Code.OUT_OF_MEMORY, result.content
        assert "memory of the sandbox was used up" in str(result.content)
        assert small.call("grep", pattern="x", path="deep/x").content == "deep/x:1:x"


# ─── F: commands ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60 & echo hi",
        "(while :; do echo n; sleep .1; done) & echo hi",
        "setsid sleep 60 & echo hi",
        "nohup sleep 60 & echo hi",
    ],
)
def test_f45_a_background_child_holds_nothing_up(work: Work, command: str) -> None:
    """The call ends when its shell ends."""
    began = time.monotonic()
    result = work.call("run_command", command=command)
    assert time.monotonic() - began < PROMPT
    assert result.is_error is False and "hi\n" in str(result.content)


def test_f47_a_timeout_ends_every_process(work: Work) -> None:
    """Nothing of a timed out command goes on; what it wrote before stays."""
    command = "echo kept > before; (sleep 1.5; touch PROOF) & setsid sh -c 'sleep 1.5; touch PROOF'"
    assert work.call("run_command", command=command, timeout_ms=300).code is Code.TIMEOUT
    assert out(work, "sleep 2; ls PROOF 2>/dev/null; cat before") == "kept\n"


@pytest.mark.parametrize(
    ("command", "code", "shown"),
    [
        ("cat", 0, ""),
        ("read x; echo $?", 0, "1\n"),
        ("[ -t 0 ]; echo $?", 0, "1\n"),
        ("[ -t 1 ]; echo $?", 0, "1\n"),
        (": < /dev/tty", None, ""),
    ],
)
def test_f50_f51_nobody_is_at_the_terminal(
    work: Work, command: str, code: int | None, shown: str
) -> None:
    """Programs that wait for input, or want a terminal, end promptly."""
    began = time.monotonic()
    result = work.call("run_command", command=command)
    assert time.monotonic() - began < PROMPT
    assert result.structured is not None
    assert result.structured["stdout"] == shown
    found = result.structured["exit_code"]
    assert found == code if code is not None else found != 0


@pytest.mark.parametrize(
    "command", ["python3 -c 'input()'", "ssh -o ConnectTimeout=1 x@127.0.0.1", "sudo -v"]
)
def test_f50_f51_programs_that_ask_somebody_fail(work: Work, command: str) -> None:
    """Input, host key or password: the program ends with its own error, or is not there."""
    began = time.monotonic()
    result = work.call("run_command", command=command)
    assert time.monotonic() - began < 5
    assert result.structured is not None and result.structured["exit_code"] not in (0, None)
    if "input" in command:
        assert "EOFError" in result.structured["stderr"] or result.structured["exit_code"] == 127


HISTORY = r"""
git init -q repo && git -C repo config user.name a && git -C repo config user.email a@b.c
head='commit refs/heads/main\ncommitter a <a@b.c> %d +0000\n'
i=0; while [ $i -lt 500 ]; do i=$((i + 1))
printf "${head}data 4\\nc%03d\\nM 644 inline f\\ndata 4\\n%04d\\n" $((1000000000 + i)) $i $i
done | git -C repo fast-import --quiet
git -C repo symbolic-ref HEAD refs/heads/main
git -C repo reset -q --hard && git -C repo rev-list --count HEAD
"""


def test_f51_git_never_waits_for_a_pager_or_an_editor(work: Work) -> None:
    """A log comes whole; what needs an editor fails at once, names it, and changes nothing."""
    if not out(work, "command -v git"):
        pytest.skip("there is no git here")
    assert out(work, HISTORY) == "500\n"
    log = work.call("run_command", command="git -C repo log")
    assert log.structured is not None and log.structured["exit_code"] == 0
    assert log.duration_ms < 5000
    assert log.structured["stdout"].count("\ncommit ") == 499
    before = out(work, "git -C repo rev-parse HEAD; echo x > repo/new; git -C repo add new")
    for command in ("commit", "rebase -i HEAD~2"):
        if "rebase" in command:
            assert out(work, "git -C repo reset -q --hard && git -C repo status --short") == ""
        result = work.call("run_command", command=f"git -C repo {command}")
        assert result.structured is not None and result.structured["exit_code"] not in (0, None)
        assert result.duration_ms < 5000
        said = result.structured["stderr"]
        named = "No editor can run here" if work.kind == "docker" else "EDITOR"
        assert named in said, said
        assert out(work, "git -C repo rev-parse HEAD") == before
        assert "rebase" not in out(work, "git -C repo status")


def test_f53_the_shell_is_the_only_judge_of_syntax(work: Work) -> None:
    """What runs as a script runs; a real error is the shell's own, with its exit code."""
    if out(work, "command -v bash"):
        assert out(work, "shopt -s extglob\nls !(zz) >/dev/null && echo y") == "y\n"
    broken = work.call("run_command", command="for i in 1; do")
    assert broken.structured is not None
    assert broken.structured["exit_code"] == 2 and "syntax" in broken.structured["stderr"].lower()


def test_f55_a_deleted_directory_is_survived(work: Work) -> None:
    """The next call runs in the root, which is said; variables do not last."""
    out(work, "mkdir -p gone && cd gone")
    deleted = work.call("run_command", command="rm -rf ../gone")
    result = work.call("run_command", command="export V=1; pwd")
    assert deleted.structured is not None and result.structured is not None
    assert "next one begins in" in str(deleted.structured["notes"] + result.structured["notes"])
    assert result.structured["stdout"] == result.structured["cwd"] + "\n"
    assert out(work, "echo ${V-unset}") == "unset\n"
    work.call("run_command", command="cd nope")
    assert out(work, "pwd") == result.structured["stdout"]


def test_f48_any_bytes_are_shown_somehow(work: Work) -> None:
    """Random bytes neither fail nor flood; among them may be what a last line warns of."""
    result = work.call("run_command", command="head -c 100000 /dev/urandom")
    assert result.is_error is False
    output, _, warning = str(result.content).rpartition("\n[")
    shown = output if "characters in this text" in warning else str(result.content)
    assert len(shown.encode()) <= 100_000


def test_f57_an_endless_flood_times_out_like_anything_else(work: Work) -> None:
    """Its head and tail are kept, and the next command is prompt."""
    result = work.call("run_command", command="yes", timeout_ms=1000)
    assert result.code is Code.TIMEOUT and result.truncated is True
    assert (result.total_bytes or 0) > len(str(result.content)) > 1000
    began = time.monotonic()
    assert out(work, "echo ok") == "ok\n"
    assert time.monotonic() - began < PROMPT


def test_f59_separate_streams_hold_their_own_order(work: Work) -> None:
    """Each stream is whole and in order."""
    result = work.call("run_command", command="for i in 1 2 3; do echo o$i; echo e$i >&2; done")
    assert result.structured is not None
    assert result.structured["stdout"] == "o1\no2\no3\n"
    assert result.structured["stderr"] == "e1\ne2\ne3\n"


@pytest.mark.parametrize(
    ("command", "code", "stdout", "stderr"),
    [
        ("true", 0, "", ""),
        ("exit 1", 1, "", ""),
        ("echo e >&2", 0, "", "e\n"),
        # Longer than a ping and the patience for its answer.
        ("sleep 12; echo ok", 0, "ok\n", ""),
    ],
)
def test_f60_silence_is_no_fault(
    work: Work, command: str, code: int, stdout: str, stderr: str
) -> None:
    """Nothing printed is an empty text, and a command may be silent for long."""
    result = work.call("run_command", command=command, timeout_ms=120_000)
    assert result.structured is not None
    found = [result.structured[key] for key in ("exit_code", "stdout", "stderr")]
    assert found == [code, stdout, stderr]
    assert result.duration_ms < 1000 * (PROMPT + 12 * ("sleep" in command))


def test_f61_text_is_utf8(work: Work) -> None:
    """Characters are counted as characters."""
    assert out(work, "printf é | wc -m").strip() == "1"
    assert out(work, "s=é; echo ${#s}") == ("1\n" if out(work, "command -v bash") else "2\n")
    code = "print(chr(0x2197))"
    assert work.call("run_code", language="python", code=code).content == "↗\n"


def test_f62_a_background_job_eats_no_later_command(work: Work) -> None:
    """Commands share no input."""
    work.call("run_command", command="cat > /dev/null &")
    assert out(work, "echo one") == "one\n"
    assert out(work, "echo two") == "two\n"


# ─── L: delete ──────────────────────────────────────────────────────────────────────


def test_l97_delete_never_follows_a_link(work: Work) -> None:
    """Links go, their targets stay; a full directory, the root and `.git` are refused."""
    for name in ("del/t", "del/z/y/x", "del/.git/config"):
        work.write(name, "k\n")
    for name, target in (("del/l", "t"), ("del/d", "nowhere"), ("del/z/l", "../t")):
        (work.root / name).symlink_to(target)
    for name in ("del/l", "del/d"):
        assert work.call("delete_file", path=name).is_error is False
    assert work.call("delete_file", path="del/z").is_error is True
    assert work.call("delete_file", path="del/z", recursive=True).is_error is False
    assert content(work, "del/t") == b"k\n"
    assert not (work.root / "del/z").exists()
    for name in (".", "/workspace"):
        assert work.call("delete_file", path=name, recursive=True).is_error is True
    assert work.call("delete_file", path=".git", recursive=True).is_error is True


def test_moves_do_not_overwrite_unless_told(work: Work) -> None:
    """A taken name is EXISTS, a directory is never entered implicitly, links move as links."""
    work.write("mv/a", "a\n")
    work.write("mv/b", "b\n")
    work.write("mv/dir/x", "")
    (work.root / "mv/l").symlink_to("a")
    assert work.call("move_file", **{"from": "mv/a", "to": "mv/b"}).code is Code.EXISTS
    assert work.call("move_file", **{"from": "mv/a", "to": "mv/dir"}).code is Code.EXISTS
    moved = work.call("move_file", **{"from": "mv/a", "to": "mv/b", "overwrite": True})
    assert moved.is_error is False and content(work, "mv/b") == b"a\n"
    assert work.call("move_file", **{"from": "mv/l", "to": "mv/new/l"}).is_error is False
    assert os.readlink(work.root / "mv/new/l") == "a"
