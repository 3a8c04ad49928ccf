"""The operations on files: what they give, and that they change nothing they were not asked to."""

from __future__ import annotations

import base64
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from executor.agent import files, text, workspace
from executor.agent.frame import REPLY, encode_json
from executor.agent.operation import Failure
from tests.agent.driver import Tree, as_nobody, changed, snapshot

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make another's files")

BOM = b"\xef\xbb\xbf"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def resident() -> int:
    """Bytes of memory that this process holds."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ─── read ───────────────────────────────────────────────────────────────────────────


def test_read_gives_lines_and_everything_about_the_file(tree: Tree) -> None:
    """A small file comes whole, with size, time, hash and line counts."""
    path = tree.write("d/f", "one\n\ttwo\nthree\n")
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    assert tree.call("read", path="d/f") == (
        {
            "size": 15,
            "modified": "2023-11-14T22:13:20.123Z",
            "hash": files.digest(b"one\n\ttwo\nthree\n"),
            "first": 1,
            "lines": 3,
            "total_lines": 3,
            "more": False,
            "cut_by": None,
            "clipped": [],
            "bom": False,
            "encoding": "utf-8",
            "invalid": False,
            "whole": True,
            "key": "d/f",
        },
        b"one\n\ttwo\nthree",
    )


def read(tree: Tree, content: bytes, **arguments: Any) -> tuple[dict[str, Any], bytes]:
    """Read a file of this content."""
    tree.write("f", content)
    return tree.call("read", path="f", **arguments)


@pytest.mark.parametrize(
    ("content", "lines", "data"),
    [
        (b"", 0, b""),
        (BOM, 0, b""),
        (b"\n", 1, b""),
        (b"\n\n", 2, b"\n"),
        (b"a", 1, b"a"),
        (b"a\nb", 2, b"a\nb"),
        (b"a\r\nb\r\n", 2, b"a\nb"),
        (b"a\r\nb\n", 2, b"a\nb"),
        (b"a\rb\rc", 1, b"a\rb\rc"),
        (b"a\r\r\nb\r", 2, b"a\r\nb\r"),
        (BOM + b"a\n", 1, b"a"),
        (b"a\x0c\x0b\x1cb\xc2\x85\xe2\x80\xa8c\n", 1, b"a\x0c\x0b\x1cb\xc2\x85\xe2\x80\xa8c"),
    ],
)
def test_lines_end_at_line_feeds_only(tree: Tree, content: bytes, lines: int, data: bytes) -> None:
    """CR LF counts as one end, a lone CR or any other separator as none, an end begins no line."""
    reply, shown = read(tree, content)
    assert (reply["lines"], reply["total_lines"], shown) == (lines, lines, data)
    assert (reply["whole"], reply["more"]) == (True, False)


def test_25_beyond_the_end_empty_and_bad_offsets_are_told_apart(tree: Tree) -> None:
    """No line is invented: the count is given, and 0 and negative offsets are refused."""
    for offset in (3, 99):
        reply, data = read(tree, b"a\nb\n", offset=offset)
        assert (reply["lines"], reply["total_lines"], reply["more"], data) == (0, 2, False, b"")
        assert not reply["whole"]
    reply, _ = read(tree, b"")
    assert (reply["size"], reply["lines"], reply["total_lines"]) == (0, 0, 0)
    for arguments in ({"offset": 0}, {"offset": -1}, {"limit": 0}):
        assert tree.failure("read", path="f", **arguments).code == "INVALID_ARGUMENTS"


def test_a_part_is_cut_by_lines_or_bytes_and_says_which(tree: Tree) -> None:
    """Whole lines only, at least one, and whether more follow."""
    content = b"".join(b"line %03d\n" % number for number in range(100))
    reply, data = read(tree, content, offset=99, limit=5)
    assert (data, reply["more"], reply["cut_by"]) == (b"line 098\nline 099", False, None)
    reply, data = read(tree, content, offset=2, limit=2)
    assert (data, reply["more"], reply["cut_by"]) == (b"line 001\nline 002", True, "limit")
    reply, data = read(tree, content, max_bytes=17)
    assert (data, reply["more"], reply["cut_by"]) == (b"line 000\nline 001", True, "bytes")
    reply, data = read(tree, content, max_bytes=3)
    assert (data, reply["lines"], reply["cut_by"]) == (b"line 000", 1, "bytes")
    assert not reply["whole"]


def test_23_a_huge_line_is_clipped_with_its_length(tree: Tree) -> None:
    """5 000 000 characters become 2000 with the full length beside; line 2 is untouched."""
    for line in (b"a" * 5_000_000, "ä".encode() * 2_500_000):
        reply, data = read(tree, line + b"\nend\n")
        length = len(line.decode())
        assert data == line.decode()[:2000].encode() + b"\nend"
        assert reply["clipped"] == [[1, length]]
        assert (reply["total_lines"], reply["whole"], reply["more"]) == (2, False, False)


def test_a_line_is_clipped_between_characters(tree: Tree) -> None:
    """Characters of two and four bytes are kept whole, bytes that are no UTF-8 as they are."""
    reply, data = read(tree, "aä😀z\r\n".encode(), line_chars=3)
    assert (data, reply["clipped"]) == ("aä😀".encode(), [[1, 4]])
    reply, data = read(tree, b"\xff\xfeabc\xe4\n", line_chars=4)
    assert (data, reply["clipped"], reply["invalid"]) == (b"\xff\xfeab", [[1, 6]], True)
    reply, data = read(tree, b"\x80" * 100, line_chars=4)
    assert len(data) == 4


def test_22_special_files_are_refused_at_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3, G16: FIFO, device, socket, directory and links to them are named, by every operation."""
    os.mkfifo(tree.path / "p")
    (tree.path / "lp").symlink_to("p")
    (tree.path / "d").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tree.path)
        listener.bind("s")
    kinds = {"p": "FIFO", "lp": "FIFO", "d": "directory", "s": "socket"}
    if os.getuid() == 0:
        os.mknod(tree.path / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        kinds["zero"] = "character device"
    start = time.monotonic()
    for path, kind in kinds.items():
        failures = [
            tree.failure("read", path=path),
            tree.failure("read", path=path, encoding="base64"),
            tree.failure("write", b"x", path=path, expect="0"),
            tree.failure("edit", b"ab", path=path, expect="0", old=1),
        ]
        assert {failure.code for failure in failures} == {"NOT_A_FILE"}
        assert all(kind in failure.message for failure in failures)
    assert time.monotonic() - start < 20, "a pipe would be waited for without end"
    assert stat.S_ISFIFO((tree.path / "p").stat().st_mode)


def test_a_leased_file_does_not_hold_up_anyone(tree: Tree) -> None:
    """G16: a file under a write lease is an error at once, not a wait of 45 s."""
    import fcntl
    import signal

    path = tree.write("f", "x")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        start = time.monotonic()
        assert "try again" in tree.failure("read", path="f").message
        assert time.monotonic() - start < 20
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_27_binary_and_images_are_told_by_content(tree: Tree) -> None:
    """The name decides nothing: bytes do, and the refusal says type and size."""
    tree.write("x.png", "<svg/>")
    tree.write("x.jpg", PNG)
    tree.write("e.png", b"")
    tree.write("half.png", PNG[:40])
    tree.write("t.txt", b"a\0b")
    tree.write("gif.txt", "GIF89a is a format\n")
    tree.write("x.gif", b"GIF89a\x01\0\x01\0\0\0\0;")
    tree.write("x.webp", b"RIFF\x1a\0\0\0WEBPVP8L")
    tree.write("x.jpeg", b"\xff\xd8\xff\xe0\0\x10JFIF\0")
    tree.write("d.pdf", "%PDF-1.4\ngarbage")
    for name in ("x.png", "e.png", "gif.txt"):
        assert tree.call("read", path=name)[0]["whole"]
    said = {
        name: (tree.failure("read", path=name).details or {})["media_type"]
        for name in ("x.jpg", "half.png", "t.txt", "x.gif", "x.webp", "x.jpeg", "d.pdf")
    }
    assert said == {
        "x.jpg": "image/png",
        "half.png": "image/png",
        "t.txt": None,
        "x.gif": "image/gif",
        "x.webp": "image/webp",
        "x.jpeg": "image/jpeg",
        "d.pdf": "application/pdf",
    }
    failure = tree.failure("read", path="t.txt")
    assert failure.code == "UNSUPPORTED"
    assert "binary, 3 bytes" in failure.message
    assert "base64" in failure.message


def test_28_a_huge_sparse_file_is_read_no_further_than_asked(tree: Tree) -> None:
    """Line 1 of 2 GB takes less than half a second of work, and no memory for the rest."""
    tree.write("s", "head\n")
    os.truncate(tree.path / "s", 2 << 30)
    before, start = resident(), time.process_time()
    reply, data = tree.call("read", path="s", offset=1, limit=1)
    assert time.process_time() - start < 0.5
    assert resident() - before < 50 << 20
    assert (data, reply["more"], reply["cut_by"]) == (b"head", True, "limit")
    assert (reply["hash"], reply["total_lines"], reply["size"]) == (None, None, 2 << 30)
    assert tree.failure("read", path="s").code == "UNSUPPORTED"
    assert tree.failure("read", path="s", encoding="base64").code == "TOO_LARGE"


def test_a_line_without_end_is_given_up_after_a_bound(tree: Tree) -> None:
    """G5: the start of a line of a terabyte is shown; its length stays unknown."""
    tree.write("s", b"a" * 10_000)
    os.truncate(tree.path / "s", 1 << 40)
    start = time.monotonic()
    reply, data = tree.call("read", path="s")
    assert time.monotonic() - start < 10
    assert (data, reply["clipped"], reply["more"]) == (b"a" * 2000, [[1, None]], True)


@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_large_files_are_read_like_small_ones(tree: Tree, size: int) -> None:
    """Reading in pieces gives what reading at once gives, wherever the pieces end."""
    line = "zeile ä😀 %d\r\n".encode()
    content = BOM + b"".join(line % number for number in range(size // 15))
    tree.write("big", content)
    total = content.count(b"\n")
    expected = content[3:].replace(b"\r\n", b"\n").split(b"\n")
    for offset, limit in ((1, 10), (total - 4, 10), (total // 2, 3), (total + 1, 5)):
        reply, data = tree.call("read", path="big", offset=offset, limit=limit)
        assert data == b"\n".join(expected[offset - 1 : min(offset - 1 + limit, total)])
        assert (reply["total_lines"], reply["hash"]) == (total, files.digest(content))
        assert (reply["bom"], reply["invalid"], reply["whole"]) == (True, False, False)
        assert reply["more"] == (offset + limit - 1 < total)
    assert tree.call("read", path="big", max_bytes=size * 2, limit=size)[0]["whole"]


window = st.builds(
    text.Window,
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 60),
    st.integers(1, 8),
)
texts = st.lists(
    st.sampled_from([b"a", b"bb\n", b"\n", b"\r\n", b"\r", "ä".encode(), "😀\n".encode(), b"\xff"]),
    max_size=30,
).map(b"".join)


@given(content=texts, view=window, cuts=st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_pieces_and_whole_texts_give_the_same_lines(
    content: bytes, view: text.Window, cuts: list[int]
) -> None:
    """The reader of pieces and the reader of whole texts are equal for every text and cut."""
    lines = text.Lines(view)
    position = number = 0
    while position < len(content):
        size = cuts[number % len(cuts)]
        lines.feed(content[position : position + size])
        position += size
        number += 1
    assert lines.finish(ended=True) == text.show(content, view)


@given(content=texts, cuts=st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_validity_does_not_depend_on_pieces(content: bytes, cuts: list[int]) -> None:
    """A character that is cut between two pieces is valid, one that is cut at the end is not."""
    for data in (content, "aä😀".encode(), content + b"\xf0\x9f"):
        seen = text.Utf8()
        position = number = 0
        while position < len(data):
            size = cuts[number % len(cuts)]
            seen.feed(data[position : position + size])
            position += size
            number += 1
        try:
            data.decode()
            valid = True
        except UnicodeDecodeError:
            valid = False
        assert seen.finish(ended=True) == valid


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_shown_and_edited_as_text(tree: Tree, codec: str) -> None:
    """A file with a UTF-16 mark reads as text; an edit keeps mark, encoding and line ends."""
    mark = "\ufeff".encode(codec)
    tree.write("u", mark + "hällo\r\n😀 two\r\n".encode(codec))
    reply, data = tree.call("read", path="u")
    assert data.decode() == "hällo\n😀 two"
    assert (reply["encoding"], reply["bom"], reply["invalid"]) == ("utf-16", True, False)
    tree.edit("u", "hällo\n😀".encode(), "hä\nx\n😀😀".encode())
    assert (tree.path / "u").read_bytes() == mark + "hä\r\nx\r\n😀😀 two\r\n".encode(codec)


def test_base64_gives_all_bytes_of_a_small_file(tree: Tree) -> None:
    """Every byte comes as it is; over the limit nothing comes and the limit is named."""
    content = bytes(range(256)) * 10
    tree.write("b", content)
    reply, data = tree.call("read", path="b", encoding="base64")
    assert (data, reply["size"], reply["hash"]) == (content, 2560, files.digest(content))
    tree.write("b", b"x" * (1 << 20))
    assert len(tree.call("read", path="b", encoding="base64")[1]) == 1 << 20
    tree.write("b", b"x" * ((1 << 20) + 1))
    assert tree.failure("read", path="b", encoding="base64").code == "TOO_LARGE"
    assert len(tree.call("read", path="b", encoding="base64", max_raw_bytes=5 << 20)[1]) > 1 << 20


def test_files_that_state_no_size_are_read(tmp_path: Path) -> None:
    """A file of the kernel says 0 bytes and has more."""
    system = workspace.Workspace("/proc/sys/kernel", "/proc/sys/kernel")
    reply, data = files._read_long(system, "ostype", text.Window(1, 10, 1000, 100)), b""
    try:
        while True:
            next(reply)
    except StopIteration as stop:
        reply, data = stop.value
    assert (reply["size"], data) == (6, b"Linux")
    system.close()


@pytest.mark.parametrize("seconds", [-1, 0, 2**33, 253402300800, 2**55])
def test_every_time_can_be_said(seconds: int) -> None:
    """Times before 1970 and far away give text, never an error."""
    assert re.fullmatch(r"-?\d+-\d\d-\d\dT[\d:]+\.\d{3}Z", files.time_text(seconds * 10**9))


# ─── edit ───────────────────────────────────────────────────────────────────────────


def edited(tree: Tree, content: bytes, old: bytes, new: bytes, everywhere: bool = False) -> bytes:
    """The content after an edit."""
    tree.write("f", content)
    reply, _ = tree.edit("f", old, new, everywhere=everywhere)
    result = (tree.path / "f").read_bytes()
    assert (reply["size"], reply["hash"]) == (len(result), files.digest(result))
    return result


@pytest.mark.parametrize("everywhere", [False, True])
def test_1_text_with_line_feeds_matches_a_crlf_file(tree: Tree, everywhere: bool) -> None:
    """The line ends of the file match and stay, also in lines that the edit adds."""
    content = b"one\r\n\ttwo\r\nthree\r\n"
    result = edited(tree, content, b"one\n\ttwo", b"ONE\n\tTWO", everywhere)
    assert result == b"ONE\r\n\tTWO\r\nthree\r\n"
    result = edited(tree, content, b"one\n\ttwo\n", b"1\n2\n3\n", everywhere)
    assert result == b"1\r\n2\r\n3\r\nthree\r\n"
    assert edited(tree, content, b"\n\ttwo", b"", everywhere) == b"one\r\nthree\r\n"
    assert edited(tree, content, b"one\r\n\ttwo", b"x\ny", everywhere) == b"x\r\ny\r\nthree\r\n"


def test_3_line_ends_of_the_new_text_become_those_of_the_place(tree: Tree) -> None:
    """No CR is doubled, no lone LF comes into a CRLF file, no CR into an LF file."""
    tree.write("f", b"a\r\nb\r\n")
    tree.edit("f", b"b", b"b\r\nc")
    tree.edit("f", b"a", b"a\nz")
    assert (tree.path / "f").read_bytes() == b"a\r\nz\r\nb\r\nc\r\n"
    assert edited(tree, b"a\nb\n", b"b", b"b\r\nc") == b"a\nb\nc\n"
    assert edited(tree, b"a\nb\n", b"a\r\nb", b"x\r\ny") == b"x\ny\n"
    tree.call("write", b"p\r\nq\n", path="g", expect=None)
    assert (tree.path / "g").read_bytes() == b"p\r\nq\n"


@pytest.mark.parametrize(
    ("content", "old", "new", "result"),
    [
        (b"a\nb\r\nc\n", b"b", b"b\nx", b"a\nb\r\nx\r\nc\n"),
        (b"a\r\nb\nc\r\n", b"b", b"b\nx", b"a\r\nb\nx\nc\r\n"),
        (b"a\r\nb\nc\n", b"a\nb\nc", b"a\nB\nc", b"a\r\nB\nc\n"),
        (b"a\r\nb\nc\n", b"a\nb\nc", b"x\na\nb\nc", b"x\r\na\r\nb\nc\n"),
        (b"a\r\nb\nc\r\nd", b"a\nb\nc\nd", b"a\nc\nd", b"a\r\nc\r\nd"),
        (b"a\r\nb", b"b", b"b\nc", b"a\r\nb\r\nc"),
        (b"a", b"a", b"x\r\ny", b"x\r\ny"),
        (b"a\rb\r", b"a", b"x", b"x\rb\r"),
        (b"\n\n\r\n\n", b"\n\n\n\n", b"\nx", b"\nx"),
        (b"x\r\n\r\ny\n", b"x\n\ny", b"x\ny", b"x\r\ny\n"),
    ],
)
def test_mixed_line_ends_stay_where_they_are(
    tree: Tree, content: bytes, old: bytes, new: bytes, result: bytes
) -> None:
    """Each line keeps its own end; an added line takes that of the place."""
    assert edited(tree, content, old, new) == result


def test_line_ends_are_changed_by_no_edit(tree: Tree) -> None:
    """However old and new text are written: the line ends are the file's own."""
    for content, old, new in (
        (b"a\r\nb\r\n", b"a\r\nb\r\n", b"a\nb\n"),
        (b"a\nb\n", b"a\nb", b"a\r\nb"),
    ):
        tree.write("f", content)
        failure = tree.edit_failure("f", old, new)
        assert "no change" in failure.message
        assert "Use run_command to change line ends" in failure.message


def test_a_file_has_one_key_by_whatever_path(tree: Tree) -> None:
    """Through links of files and directories, before and after changes, short or long."""
    tree.write("d/f", "a\n")
    (tree.path / "l").symlink_to("d/f")
    (tree.path / "dl").symlink_to("d")
    for path in ("d/f", "l", "dl/f", "dl/../d/f"):
        for encoding in ("utf-8", "base64"):
            assert tree.call("read", path=path, encoding=encoding)[0]["key"] == "d/f"
        assert tree.call("stat", path=path)[0]["key"] == "d/f"
        assert tree.edit(path, b"a", b"b")[0]["key"] == "d/f"
        assert tree.overwrite(path, b"a\n")[0]["key"] == "d/f"
    assert tree.call("write", b"", path="dl/new", expect=None)[0]["key"] == "d/new"
    long = "/".join(["n" * 100] * 3)
    tree.write(long, "x")
    key = tree.call("read", path=long)[0]["key"]
    assert len(key) <= 200 and key == tree.edit(long, b"x", b"y")[0]["key"]


def test_names_are_taken_back_as_they_are_shown(tree: Tree) -> None:
    """`\\xHH` stands for a byte where only that file exists; a real name stands for itself."""
    real = os.fsdecode(b"d\x0a/f\xff\x1b\\x41")
    tree.write(real, "odd\n")
    spelling = "d\\x0a/f\\xff\\x1b\\x5cx41"
    assert tree.call("read", path=spelling)[1] == b"odd"
    assert tree.call("read", path=spelling)[0]["key"] == real
    assert tree.call("list", path="d\\x0a")[0]["entries"] == 1
    assert tree.call("grep", pattern="odd", path="d\\x0a")[0]["matches"] == 1
    assert tree.call("glob", pattern="*", path="d\\x0a")[0]["matches"] == 1
    assert tree.call("write", b"n", path="d\\x0a/new\\x09", expect=None)[0]["created"]
    assert (tree.path / "d\n" / "new\\x09").read_bytes() == b"n"
    tree.write("a\\x41", "literal")
    tree.write("aA", "decoded")
    assert tree.call("read", path="a\\x41")[1] == b"literal"
    assert tree.failure("read", path="\\x2e\\x2e/x").code == "FILE_NOT_FOUND"
    tree.call("move", **{"from": spelling, "to": "plain"})
    tree.call("delete", path="d\\x0a", recursive=True)
    assert sorted(os.listdir(tree.path)) == ["aA", "a\\x41", "plain"]


def test_4_the_byte_order_mark_belongs_to_the_file(tree: Tree) -> None:
    """It is not shown, not doubled, not lost, and never gained."""
    tree.write("f", BOM + b"alpha\r\nbeta\r\n")
    reply, data = tree.call("read", path="f")
    assert (data, reply["bom"]) == (b"alpha\nbeta", True)
    assert tree.edit("f", b"alpha", b"ALPHA")[0]["first_line"] == 1
    assert (tree.path / "f").read_bytes() == BOM + b"ALPHA\r\nbeta\r\n"
    tree.edit("f", BOM + b"ALPHA", BOM + b"a")
    assert (tree.path / "f").read_bytes() == BOM + b"a\r\nbeta\r\n"
    tree.edit("f", b"a\nb", BOM + b"x\nb")
    assert (tree.path / "f").read_bytes() == BOM + b"x\r\nbeta\r\n"
    assert tree.overwrite("f", b"x\n")[0]["size"] == 5
    assert (tree.path / "f").read_bytes() == BOM + b"x\n"
    tree.overwrite("f", BOM + b"y\n")
    assert (tree.path / "f").read_bytes() == BOM + b"y\n"
    tree.overwrite("f", b"z\n", keep_bom=False)
    assert (tree.path / "f").read_bytes() == b"z\n"
    tree.overwrite("f", BOM + b"z\n")
    assert (tree.path / "f").read_bytes() == b"z\n"
    assert edited(tree, b"ab\n", b"a", BOM + b"x") == b"xb\n"
    tree.write("f", BOM + b"x")
    assert tree.edit_failure("f", BOM, b"").code == "INVALID_ARGUMENTS"


def test_6_tabs_match_and_spaces_in_their_place_are_hinted_at(tree: Tree) -> None:
    """What is read can be edited; text that differs in whitespace only is named by its line."""
    tree.write("f", "\tif x:\n\t\ty\n")
    shown = tree.call("read", path="f")[1].split(b"\n")
    failure = tree.edit_failure("f", b"        y", b"z")
    assert failure.code == "NO_MATCH"
    assert failure.message.startswith(text.NOT_FOUND)
    assert "whitespace: line 2 is '\\t\\ty'" in failure.message
    tree.edit("f", shown[1], b"\t\tz")
    assert (tree.path / "f").read_bytes() == b"\tif x:\n\t\tz\n"


def test_other_near_misses_are_hinted_at(tree: Tree) -> None:
    """Copied line numbers and a line that is there with others around it are named."""
    tree.write("f", "def f():\n    return value\n")
    said = tree.edit_failure("f", "     1│def f():\n     2│    return x".encode(), b"").message
    assert "line numbers" in said
    assert "line 2" in tree.edit_failure("f", b"def g():\n    return value", b"").message
    assert tree.edit_failure("f", b"zz", b"").message == text.NOT_FOUND


@pytest.mark.parametrize("everywhere", [False, True])
def test_8_no_character_of_the_new_text_is_special(tree: Tree, everywhere: bool) -> None:
    """Dollars, backslashes and group names appear as written."""
    new = b"$$1 $& $` $' \\1 \\n \\g<0> \\\\ {0} %s"
    assert edited(tree, b"cost=A\nA\n", b"cost=A", new, everywhere) == new + b"\nA\n"
    assert edited(tree, b"x=A\nA\n", b"A", new, True) == b"x=" + new + b"\n" + new + b"\n"


@pytest.mark.parametrize("everywhere", [False, True])
def test_9_an_empty_old_text_is_an_error(tree: Tree, everywhere: bool) -> None:
    """In a file, an empty file and a missing one; nothing is made."""
    tree.write("f", "aXb")
    tree.write("empty", "")
    before = snapshot(tree.path)
    for path in ("f", "empty", "missing"):
        arguments: dict[str, Any] = {"path": path, "expect": "0", "replace_all": everywhere}
        failure = tree.failure("edit", b"-", old=0, **arguments)
        assert failure.code == "INVALID_ARGUMENTS"
        assert "write_file" in failure.message
    assert snapshot(tree.path) == before


def test_12_an_edit_goes_through_links_and_leaves_them(tree: Tree) -> None:
    """The file at the end of the chain changes, the links keep their text, none leads out."""
    tree.write("e/real", "v=1\n")
    (tree.path / "d").mkdir()
    (tree.path / "d/l1").symlink_to("../e/real")
    (tree.path / "d/l2").symlink_to("l1")
    (tree.path / "out").symlink_to("/etc/hostname")
    tree.edit("d/l2", b"1", b"2")
    assert (tree.path / "e/real").read_bytes() == b"v=2\n"
    assert [os.readlink(tree.path / "d" / name) for name in ("l1", "l2")] == ["../e/real", "l1"]
    tree.overwrite("d/l1", b"v=3\n")
    assert (tree.path / "e/real").read_bytes() == b"v=3\n"
    before = Path("/etc/hostname").read_bytes()
    assert tree.failure("edit", b"ab", path="out", expect="0", old=1).code == "INVALID_PATH"
    assert tree.failure("write", b"x", path="out", expect="0").code == "INVALID_PATH"
    assert Path("/etc/hostname").read_bytes() == before
    assert (tree.path / "out").is_symlink()


def test_writing_a_dead_link_makes_the_file_it_leads_to(tree: Tree) -> None:
    """The link stays; a dead link that leads out is refused."""
    (tree.path / "l").symlink_to("new/f")
    (tree.path / "out").symlink_to("../new")
    assert tree.call("write", b"x", path="l", expect=None)[0]["created"]
    assert (tree.path / "new/f").read_bytes() == b"x"
    assert tree.failure("write", b"x", path="out").code == "INVALID_PATH"
    assert sorted(os.listdir(tree.path.parent)) == ["workspace"]


@pytest.mark.parametrize(
    "rest", [b"# na\xefve\n", b"\xc4\xe3\xba\xc3\r\n", b"\0\x01\xff", b"\xed\xa0\x80"]
)
def test_13_bytes_in_any_encoding_survive_an_edit_elsewhere(tree: Tree, rest: bytes) -> None:
    """Latin-1, GBK, NUL and half surrogates around the place stay as they are."""
    assert edited(tree, rest + b"v=1\n" + rest, b"v=1", b"v=2") == rest + b"v=2\n" + rest


def test_14_of_edits_at_once_none_is_lost(tree: Tree) -> None:
    """Of 50 edits that take turns, each that succeeds is in the file and the rest is told so."""
    tree.write("f", b"".join(b"n=%d;\n" % number for number in range(50)))
    expect = tree.hash("f")
    running = {}
    for number in range(50):
        old, new = b"n=%d;" % number, b"n=%d!" % number
        arguments = {"path": "f", "expect": expect, "old": len(old)}
        running[number] = files.edit(tree.workspace, arguments, old + new)
    outcome: dict[int, str] = {}
    while running:
        for number in list(running):
            try:
                next(running[number])
            except StopIteration:
                outcome[number] = "ok"
                del running[number]
            except Failure as failure:
                outcome[number] = failure.code
                assert "changed" in failure.message
                del running[number]
    content = (tree.path / "f").read_bytes()
    for number, said in outcome.items():
        assert (b"n=%d!" % number in content) == (said == "ok")
    assert set(outcome.values()) == {"ok", "CONFLICT"}


def test_large_writes_that_take_turns_do_not_mix(tree: Tree) -> None:
    """Of two overwrites of 3 MB that take turns one wins whole, the other is told."""
    tree.write("f", b"0" * 3_000_000)
    expect = tree.hash("f")
    running = [
        files.write(tree.workspace, {"path": "f", "expect": expect}, letter * 3_000_000)
        for letter in (b"1", b"2")
    ]
    outcome = []
    while running:
        for steps in list(running):
            try:
                next(steps)
            except StopIteration:
                outcome.append("ok")
                running.remove(steps)
            except Failure as failure:
                outcome.append(failure.code)
                running.remove(steps)
    assert sorted(outcome) == ["CONFLICT", "ok"]
    assert len(set((tree.path / "f").read_bytes())) == 1
    assert os.listdir(tree.path) == ["f"]


def test_16_what_was_not_read_or_has_changed_is_refused(tree: Tree) -> None:
    """No hash, an old hash and a file that another process wrote meanwhile are told apart."""
    tree.write("f", "a\n")
    old = tree.hash("f")
    arguments: dict[str, Any] = {"path": "f", "old": 1}
    assert tree.failure("edit", b"ab", expect=None, **arguments).code == "NOT_READ"
    assert tree.failure("write", b"x", path="f", expect=None).code == "NOT_READ"
    with (tree.path / "f").open("ab") as file:
        file.write(b"more\n")
    before = snapshot(tree.path)
    assert tree.failure("edit", b"ab", expect=old, **arguments).code == "CONFLICT"
    assert tree.failure("write", b"x", path="f", expect=old).code == "CONFLICT"
    assert snapshot(tree.path) == before
    assert tree.failure("edit", b"ab", path="gone", expect=old, old=1).code == "FILE_NOT_FOUND"
    reply = tree.call("write", b"1", path="new", expect=None)[0]
    reply = tree.call("edit", b"12", path="new", expect=reply["hash"], old=1)[0]
    tree.call("write", b"3", path="new", expect=reply["hash"])
    assert (tree.path / "new").read_bytes() == b"3"


def test_17_no_change_is_no_success(tree: Tree) -> None:
    """Equal texts are an error; where they are absent that is what is said."""
    tree.write("f", "a\n")
    assert "no change" in tree.edit_failure("f", b"a", b"a").message
    assert "no change" in tree.edit_failure("f", b"a", b"a", everywhere=True).message
    assert tree.edit_failure("f", b"zz", b"zz").code == "NO_MATCH"


@pytest.mark.parametrize("size", [131_072, 300_000, 5_000_000])
def test_19_large_contents_and_texts_work(tree: Tree, size: int) -> None:
    """Sizes beyond what a command line can carry are written and edited."""
    content = (b"'\"$\\`\n" * (size // 6 + 1))[:size]
    tree.call("write", content, path="f", expect=None)
    assert (tree.path / "f").read_bytes() == content
    old = content[:150_000]
    tree.write("f", b"<" + old.replace(b"\n", b"\r\n") + b"|\n>")
    tree.edit("f", old + b"|", b"x\ny")
    assert (tree.path / "f").read_bytes() == b"<x\r\ny\n>"


def test_20_nothing_is_unescaped(tree: Tree) -> None:
    """HTML entities reach the disk as written."""
    content = b"a &lt;b&gt; &amp;&apos; &#36;"
    tree.call("write", content, path="f", expect=None)
    tree.edit("f", b"&lt;", b"&amp;lt;")
    assert (tree.path / "f").read_bytes() == content.replace(b"&lt;", b"&amp;lt;")


def test_21_a_file_over_the_limit_is_refused_before_it_is_read(tree: Tree) -> None:
    """3 GB are refused with the limit named, and with neither work nor memory spent on them."""
    tree.write("big", "")
    os.truncate(tree.path / "big", 3 << 30)
    before, start = resident(), time.process_time()
    for op, limit in (("edit", "32 MiB"), ("write", "64 MiB")):
        failure = tree.failure(op, b"ab", path="big", expect="0", old=1)
        assert (failure.code, limit in failure.message) == ("TOO_LARGE", True)
    assert time.process_time() - start < 0.5
    assert resident() - before < 64 << 20


def test_more_than_one_match_is_told_with_its_lines(tree: Tree) -> None:
    """The count and the lines are given, and replace_all replaces them all."""
    tree.write("f", "x\n\na x\nb\nx x\n")
    failure = tree.edit_failure("f", b"x", b"y")
    assert failure.code == "AMBIGUOUS"
    assert failure.message == (
        "old_string found 4 times (lines 1, 3, 5, 5). Use replace_all=true or provide more context."
    )
    assert tree.edit("f", b"x", b"y", everywhere=True)[0]["replacements"] == 4
    tree.write("f", b"a\nb\na\r\nb\r\n")
    assert tree.edit_failure("f", b"a\nb", b"c").details == {"count": 2, "lines": [1, 3]}
    tree.write("f", "x\n" * 1000)
    assert "lines 1, 2" in (said := tree.edit_failure("f", b"x", b"y").message)
    assert len(said) < 300


def test_a_million_replacements_do_not_hold_up_the_agent(tree: Tree) -> None:
    """Replacing everywhere is quick where line ends are alike, and bounded where they differ."""
    tree.write("f", b"ab\n" * 1_000_000)
    start = time.process_time()
    reply, _ = tree.edit("f", b"a", b"xy", everywhere=True)
    assert (reply["replacements"], reply["size"]) == (1_000_000, 4_000_000)
    assert time.process_time() - start < 1
    tree.write("f", b"ab\n" * 1_000_000 + b"\r\n")
    assert tree.edit("f", b"a", b"x", everywhere=True)[0]["replacements"] == 1_000_000
    assert tree.edit_failure("f", b"b\n", b"c\n", everywhere=True).code == "TOO_LARGE"
    assert tree.edit_failure("f", b"b\n", b"c\n").code == "AMBIGUOUS"
    assert time.process_time() - start < 5


ends = st.sampled_from([b"\n", b"\r\n"])
words = st.sampled_from([b"a", b"b", b"ab", b"", b" ", b"\r", b"\xff", "ä".encode()])


@given(
    lines=st.lists(st.tuples(words, ends), max_size=12),
    last=words,
    at=st.integers(0, 30),
    length=st.integers(1, 8),
    new=st.lists(st.one_of(words, ends), max_size=6).map(b"".join),
    everywhere=st.booleans(),
    step=st.sampled_from([2, 3, 7, 1000]),
)
def test_an_edit_changes_its_places_and_nothing_else(
    lines: list[tuple[bytes, bytes]],
    last: bytes,
    at: int,
    length: int,
    new: bytes,
    everywhere: bool,
    step: int,
) -> None:
    """With line ends made equal, an edit is `bytes.replace`; every line end outside stays."""
    content = b"".join(word + end for word, end in lines) + last
    bare = content.replace(b"\r\n", b"\n")
    old = bare[at : at + length]
    if not old or b"\r" in old or b"\r" in new.replace(b"\r\n", b"\n"):
        return
    try:
        with changed(text, _STEP=step, _LINES_STEP=2, _SLICE=2):
            result = text.finished(text.replace(content, old, new, everywhere=everywhere))
    except Failure as failure:
        count = bare.count(old)
        if failure.code == "AMBIGUOUS":
            assert count > 1 and not everywhere
        else:
            assert "no change" in failure.message
            assert new.replace(b"\r\n", b"\n") == old
        return
    expected = bare.replace(old, new.replace(b"\r\n", b"\n"))
    if b"\r\n" in bare or b"\r\n" in expected:
        return  # a lone CR stands before a line's end: made equal, the two can't be told apart
    assert result.text.replace(b"\r\n", b"\n") == expected
    assert result.replacements == bare.count(old)
    first = bare.find(old)
    end = bare.rfind(old) + len(old) if everywhere else first + len(old)
    ends_before = _ends(content)[: bare.count(b"\n", 0, first)]
    assert _ends(result.text)[: len(ends_before)] == ends_before
    ends_after = _ends(content)[bare.count(b"\n", 0, end) :] if result.replacements == 1 else []
    assert _ends(result.text)[len(_ends(result.text)) - len(ends_after) :] == ends_after


def _ends(content: bytes) -> list[bytes]:
    return re.findall(rb"\r?\n", content)


@given(
    before=st.binary(max_size=20),
    old=st.binary(min_size=1, max_size=4).filter(lambda old: b"\n" not in old),
    after=st.binary(max_size=20),
    new=st.binary(max_size=6).filter(lambda new: b"\n" not in new),
    step=st.sampled_from([2, 3, 1000]),
)
def test_without_line_ends_an_edit_is_exact_to_the_byte(
    before: bytes, old: bytes, after: bytes, new: bytes, step: int
) -> None:
    """Any bytes around and inside: the result is what `bytes.replace` gives."""
    content = before + old + after
    if content.startswith((BOM, b"\xff\xfe", b"\xfe\xff")) or BOM in old + new or old == new:
        return
    with changed(text, _STEP=step, _LINES_STEP=2):
        edited = text.finished(text.replace(content, old, new, everywhere=True))
    assert edited.text == content.replace(old, new)


@given(
    content=st.lists(st.sampled_from([b"a", b"b", b"\n"]), max_size=60).map(b"".join),
    old=st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=4).map(b"".join),
    step=st.sampled_from([2, 5, 1000]),
)
def test_places_that_overlap_are_taken_from_the_left(content: bytes, old: bytes, step: int) -> None:
    """However a text is portioned, its places are those of `bytes.count` and `bytes.find`."""
    with changed(text, _STEP=step, _LINES_STEP=2):
        places = text.finished(text._find(content, old, old))
    found = [place for place in places if place is not None]
    assert len(found) == places.count == content.count(old)
    end = 0
    for place in found:
        at = content.find(old, end)
        assert place == (at, at + len(old))
        end = place[1]


@given(
    content=st.text(st.characters(), max_size=40),
    cuts=st.integers(4, 9),
    codec=st.sampled_from(["utf-16-le", "utf-16-be"]),
)
def test_utf_16_may_come_in_any_pieces(content: str, cuts: int, codec: str) -> None:
    """Characters of two and four bytes, and halves of such, are the same wherever pieces end."""
    data = ("\ufeff" + content).encode(codec, "surrogatepass")
    assume(data[:4] != b"\xff\xfe\0\0")  # which is how UTF-32 begins
    with changed(text, _STEP=cuts):
        decoded = text.finished(text.from_utf16(data))
        assert decoded is not None
        # Two halves that stand beside each other are one character.
        assert decoded == data[2:].decode(codec, "surrogatepass").encode("utf-8", "surrogatepass")
        assert text.finished(text.to_utf16(decoded, codec, data[:2])) == data
        assert text.finished(text.from_utf16(data + b"x")) is None


def test_edits_of_large_files_give_way(tree: Tree) -> None:
    """Searching, comparing and replacing look at no more than a step of the text at once."""
    size = 4 << 20
    steps = size // text._STEP
    for content, old, new, passes in (
        (b"x" * size + b"END", b"END", b"NEW", 2),
        (b"ab\n" * (size // 3), b"a", b"c", 2),
        (b"a" * size, b"aa", b"b", 2),
        (b"ab\r\n" * (size // 4), b"b\na", b"c\nd", 4),
        (b"ab\r\n" * (size // 4) + b"x\n", b"b\na", b"c\nd", 4),
        (b"\xff\xfe" + "ab\n".encode("utf-16-le") * (size // 6), b"b\na", b"c\nd", 4),
    ):
        tree.write("f", content)
        arguments = {"path": "f", "expect": tree.hash("f"), "replace_all": True, "old": len(old)}
        assert tree.pauses("edit", old + new, **arguments) > passes * steps


def test_mixed_line_ends_of_many_lines_are_compared_in_steps(tree: Tree) -> None:
    """Up to a limit that is said, and with the same result as in one step."""
    old = b"".join(b"line %d\n" % number for number in range(12_000))
    new = old.replace(b"line 6000\n", b"changed\nadded\n")
    content = old.replace(b"7\n", b"7\r\n")
    tree.write("f", content)
    arguments = {"path": "f", "expect": tree.hash("f"), "old": len(old)}
    assert tree.pauses("edit", old + new, **arguments) > 3 * len(old) // text._SLICE // 11
    assert (tree.path / "f").read_bytes() == new.replace(b"7\n", b"7\r\n")
    tree.write("f", b"a\n" * 100_000 + b"b\r\n")
    failure = tree.edit_failure("f", b"a\n" * 100_000 + b"b\n", b"c\n")
    assert (failure.code, "100001 lines" in failure.message) == ("TOO_LARGE", True)


def test_a_text_without_a_near_line_end_is_searched_once(tree: Tree) -> None:
    """What a place's line ends with is not looked for again for each of many places."""
    content = b"\n" + b"ab " * 20_000 + b"\r\n"
    tree.write("f", content)
    assert tree.edit("f", b"ab", b"c\nd", everywhere=True)[0]["replacements"] == 20_000
    assert (tree.path / "f").read_bytes() == content.replace(b"ab", b"c\r\nd")
    near = text._Near(b"x\r\n" + b"ab " * 9)
    assert [near.line_end(at, at + 2) for at in range(3, 30, 3)] == [b"\r\n"] * 9


def test_many_lines_are_taken_in_steps(tree: Tree) -> None:
    """A file of line ends only gives way as often as any other, however many are asked for."""
    tree.write("f", b"\n" * (1 << 20))
    tree.write("small", b"\n" * 200_000)
    assert tree.pauses("read", path="f", limit=1 << 30) >= 100_000 // text._LINES_STEP
    assert tree.pauses("read", path="small", limit=1 << 30) >= 100_000 // text._LINES_STEP
    assert tree.pauses("read", path="f", offset=900_000) >= (1 << 20) // text._STEP
    whole = tree.call("read", path="small", limit=1 << 30, max_bytes=1 << 20)
    assert (whole[0]["lines"], whole[0]["total_lines"], len(whole[1])) == (200_000,) * 2 + (
        199_999,
    )
    assert tree.call("read", path="f", offset=900_000, limit=2)[0]["first"] == 900_000


def test_large_utf_16_is_read_like_small(tree: Tree) -> None:
    """In pieces, with the same lines; what is no UTF-16 after all is binary."""
    lines = [f"line {number} \U0001f600" for number in range(20_000)]
    data = ("\ufeff" + "\r\n".join(lines)).encode("utf-16-le")
    tree.write("f", data)
    reply, shown = tree.call("read", path="f", offset=19_000, limit=2)
    assert shown.decode().split("\n") == lines[18_999:19_001]
    assert (reply["total_lines"], reply["encoding"], reply["bom"]) == (20_000, "utf-16", True)
    assert (reply["invalid"], reply["hash"]) == (False, files.digest(data))
    assert tree.pauses("read", path="f") > len(data) // (1 << 20)
    tree.write("f", data + b"x")
    assert tree.failure("read", path="f").code == "UNSUPPORTED"


# ─── write ──────────────────────────────────────────────────────────────────────────


def test_a_new_file_is_made_with_its_directories(tree: Tree) -> None:
    """Mode 0644, parents made, and without create_dirs the missing parent is named."""
    before = os.umask(0o022)
    try:
        reply, _ = tree.call("write", b"x\n", path="a/b/f", expect=None)
    finally:
        os.umask(before)
    digest = files.digest(b"x\n")
    assert reply == {"size": 2, "hash": digest, "created": True, "key": "a/b/f"}
    assert stat.S_IMODE((tree.path / "a/b/f").stat().st_mode) == 0o644
    failure = tree.failure("write", b"x", path="no/such/f", create_dirs=False)
    assert (failure.code, "no directory no/such" in failure.message) == ("FILE_NOT_FOUND", True)
    assert not (tree.path / "no").exists()
    assert tree.failure("write", b"x", path="a/").code == "INVALID_PATH"
    assert tree.failure("write", b"x", path="a/b/f/g").code == "INVALID_PATH"
    assert tree.failure("write", b"x", path="a/b/f", create_only=True, expect="0").code == "EXISTS"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o640, 0o444])
def test_a_replaced_file_keeps_its_mode_and_attributes(tree: Tree, mode: int) -> None:
    """Permission bits stay, among them those to execute; so do user attributes."""
    path = tree.write("f", "#!/bin/sh\n")
    path.chmod(mode)
    try:
        os.setxattr(path, "user.note", b"kept")
        attributes = True
    except OSError:
        attributes = False
    if mode == 0o444 and os.getuid() != 0:
        assert tree.failure("write", b"x", path="f", expect=tree.hash("f")).code
        return
    tree.edit("f", b"sh", b"bash")
    tree.overwrite("f", b"x")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert not attributes or os.getxattr(path, "user.note") == b"kept"


def test_a_hard_link_is_broken_by_writing(tree: Tree, tmp_path: Path) -> None:
    """G4: the other name keeps the old content."""
    other = tmp_path / "other"
    other.write_bytes(b"old\n")
    os.link(other, tree.path / "f")
    tree.edit("f", b"old", b"new")
    assert (other.read_bytes(), (tree.path / "f").read_bytes()) == (b"old\n", b"new\n")


def test_without_room_the_old_file_stays(tree: Tree) -> None:
    """A write that the kernel stops half-way changes nothing and leaves nothing beside."""
    tree.write("f", "old")
    expect = tree.hash("f")
    before = snapshot(tree.path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    content = b"x" * 100_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        failures = [
            tree.failure("write", content, path="f", expect=expect),
            tree.failure("edit", b"old" + content, path="f", expect=expect, old=3),
            tree.failure("write", content, path="d/e/f"),
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {failure.code for failure in failures} == {"LIMIT"}
    assert snapshot(tree.path) == before


def test_a_full_file_system_keeps_the_old_content(tmp_path: Path) -> None:
    """On a real file system of 1 MiB, 4 MiB do not fit and the old content stays."""
    root = tmp_path / "small"
    root.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount a file system")
    try:
        tree = Tree(root)
        tree.write("f", "old")
        failure = tree.failure("write", b"x" * (4 << 20), path="f", expect=tree.hash("f"))
        assert failure.code == "NO_SPACE"
        assert os.listdir(root) == ["f"]
        assert (root / "f").read_bytes() == b"old"
        tree.workspace.close()
    finally:
        subprocess.run(["umount", str(root)], check=True)


def test_a_cancelled_write_leaves_nothing(tree: Tree) -> None:
    """Closed in the middle, an overwrite has changed nothing and left no temporary file."""
    tree.write("f", "old")
    before = snapshot(tree.path)
    steps = files.write(tree.workspace, {"path": "f", "expect": tree.hash("f")}, b"x" * (9 << 20))
    next(steps)
    next(steps)
    assert len(os.listdir(tree.path)) == 2
    steps.close()
    assert snapshot(tree.path) == before
    steps = files.write(tree.workspace, {"path": "new/f"}, b"x" * (9 << 20))
    next(steps)
    steps.close()
    assert snapshot(tree.path) == before


@needs_root
def test_where_a_rename_is_impossible_the_file_itself_is_written(public: Tree) -> None:
    """In a directory that can't be written the content changes in place: same inode, no rest."""
    path = public.write("d/f", "old content\n")
    path.chmod(0o666)
    before = path.stat()

    def act() -> None:
        for content in (b"new\n", b"longer than the old content\n"):
            public.overwrite("d/f", content)
            assert path.read_bytes() == content
        public.edit("d/f", b"old", b"new")
        assert (path.stat().st_ino, path.stat().st_uid) == (before.st_ino, before.st_uid)

    as_nobody(act)
    assert os.listdir(path.parent) == ["f"]


@needs_root
def test_a_foreign_file_keeps_its_owner(public: Tree) -> None:
    """Where a new file would belong to someone else, the old one is written in place."""
    path = public.write("f", "old\n")
    path.chmod(0o666)
    before = path.stat()
    as_nobody(lambda: public.edit("f", b"old", b"new") and None)
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_ino) == (
        before.st_uid,
        before.st_gid,
        before.st_ino,
    )
    assert path.read_bytes() == b"new\n"
    assert os.listdir(public.path) == ["f"]


@needs_root
def test_a_hard_link_is_never_written_in_place(public: Tree) -> None:
    """G4: where the link can't be broken the write is refused, and the other name is unchanged."""
    path = public.write("d/f", "old\n")
    path.chmod(0o666)
    os.link(path, public.path.parent / "other")

    def act() -> None:
        failure = public.failure("write", b"x", path="d/f", expect=public.hash("d/f"))
        assert (failure.code, "hard links" in failure.message) == ("PERMISSION_DENIED", True)

    as_nobody(act)
    assert (public.path.parent / "other").read_bytes() == b"old\n"


def test_a_write_protected_file_is_not_replaced(public: Tree) -> None:
    """What a command could not write, the operations do not write either."""
    path = public.write("f", "old\n")
    path.chmod(0o444)
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)

    def act() -> None:
        expect = public.hash("f")
        failure = public.failure("write", b"x", path="f", expect=expect)
        assert failure.code == "PERMISSION_DENIED"
        failure = public.failure("edit", b"ox", path="f", expect=expect, old=1)
        assert failure.code == "PERMISSION_DENIED"
        (public.path / "shut").mkdir(mode=0o555)
        assert public.failure("write", b"x", path="shut/f").code == "PERMISSION_DENIED"
        assert public.failure("write", b"x", path="shut/d/f").code == "PERMISSION_DENIED"

    as_nobody(act)
    assert path.read_bytes() == b"old\n"


# ─── list ───────────────────────────────────────────────────────────────────────────


def listed(tree: Tree, path: str = "", **arguments: Any) -> tuple[dict[str, Any], list[list[str]]]:
    """The reply, and per entry: type, target and path."""
    reply, data = tree.call("list", path=path, **arguments)
    records = [record.split(b"\x1f", 4) for record in data.split(b"\0") if record]
    assert reply["entries"] == len(records)
    return reply, [[os.fsdecode(record[index]) for index in (0, 3, 4)] for record in records]


def test_a_listing_says_type_size_time_and_target(tree: Tree) -> None:
    """Each record holds what lstat says; links are not followed, dead ones marked."""
    path = tree.write("f", "12345")
    os.utime(path, ns=(0, 1_234_567_890))
    (tree.path / "d").mkdir()
    (tree.path / "l").symlink_to("f")
    (tree.path / "dead").symlink_to("no\x1fwhere")
    (tree.path / "loop").symlink_to("loop")
    os.mkfifo(tree.path / "p")
    _, data = tree.call("list", path=".")
    assert data.split(b"\0")[-3:] == [data.split(b"\0")[-3], data.split(b"\0")[-2], b""]
    assert b"f\x1f5\x1f1234567890\x1f\x1ff\0" in data
    _, entries = listed(tree)
    assert entries == [
        ["d", "", "d"],
        ["L", "no?where", "dead"],
        ["f", "", "f"],
        ["l", "f", "l"],
        ["L", "loop", "loop"],
        ["o", "", "p"],
    ]


def test_hidden_entries_are_counted_or_shown(tree: Tree) -> None:
    """Without include_hidden they are a number; with it `.git` is a name and never entered."""
    for name in (".hidden/x", ".env", "a", ".git/config", "sub/.git/HEAD"):
        tree.write(name, "")
    reply, entries = listed(tree, recursive=True)
    assert ([entry[2] for entry in entries], reply["hidden"]) == (["a", "sub"], 4)
    reply, entries = listed(tree, recursive=True, include_hidden=True)
    names = [entry[2] for entry in entries]
    assert names == [".env", ".git", ".hidden", ".hidden/x", "a", "sub", "sub/.git"]
    assert reply["hidden"] == 0


def test_entries_come_in_the_order_of_their_bytes(tree: Tree) -> None:
    """Sorted by the whole path, so that `a-b` and `a.txt` come before `a/x`."""
    names = ["a/x", "a-b", "a.txt", "a0", "B", "\udcff", "ü/é", "ü!", "new\nline", "-rf", "[id]/p"]
    for name in names:
        tree.write(name, "")
    _, entries = listed(tree, recursive=True)
    found = [entry[2] for entry in entries]
    assert found == sorted(found, key=os.fsencode)
    assert set(names) < set(found)
    for count in range(1, len(found)):
        reply, entries = listed(tree, recursive=True, max_entries=count)
        assert ([entry[2] for entry in entries], reply["truncated"]) == (found[:count], True)
    assert not listed(tree, recursive=True, max_entries=len(found))[0]["truncated"]


def test_a_large_directory_is_sorted_in_portions(tree: Tree) -> None:
    """The order is that of all names, and neither sorting nor looking keeps the agent."""
    names = [f"{number * 7919 % 5000:x}" for number in range(5000)]
    for name in names[:4000]:
        tree.write(f"d/{name}", "")
    for name in names[4000:]:
        (tree.path / "d" / name).mkdir()
        tree.write(f"d/{name}/x", "")
    arguments = {"path": "d", "recursive": True}
    paths = [record[2] for record in listed(tree, "d", recursive=True)[1]]
    assert paths == sorted([*names, *(f"{name}/x" for name in names[4000:])])
    assert tree.pauses("list", **arguments) >= 2 * 5000 // 500
    assert tree.call("list", path="d", max_entries=10)[0]["truncated"]


def test_a_listing_is_bounded_in_bytes(tree: Tree) -> None:
    """Where paths are long, fewer entries are listed, and that is said."""
    fd = os.dup(tree.workspace.directory)
    for _ in range(120):
        os.mkdir("d" * 255, dir_fd=fd)
        inner = os.open("d" * 255, os.O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    for number in range(200):
        os.mknod(f"{number}", dir_fd=fd)
    os.close(fd)
    reply, data = tree.call("list", path="", recursive=True)
    assert reply["truncated"] and 4 << 19 < len(data) <= 4 << 20
    reply, data = tree.call("delete", path="d" * 255, recursive=True)
    assert reply == {"deleted": 320, "truncated": True} and len(data) <= 256 << 10


def test_depth_and_links_bound_a_listing(tree: Tree) -> None:
    """max_depth counts directories, and links that lead up are names like any other."""
    tree.write("t/a/f", "1\n")
    (tree.path / "t/a/up").symlink_to("..")
    (tree.path / "t/self").symlink_to(".")
    (tree.path / "t/dead").symlink_to("nowhere")
    _, entries = listed(tree, "t", recursive=True, max_depth=5)
    assert entries == [
        ["d", "", "a"],
        ["f", "", "a/f"],
        ["l", "..", "a/up"],
        ["L", "nowhere", "dead"],
        ["l", ".", "self"],
    ]
    assert [entry[2] for entry in listed(tree, recursive=True, max_depth=2)[1]] == [
        *("t", "t/a", "t/dead", "t/self")
    ]
    assert [entry[2] for entry in listed(tree, "t/self/a/up/a")[1]] == ["f", "up"]


def test_a_very_deep_tree_is_listed_as_far_as_it_goes(tree: Tree) -> None:
    """G6: 400 levels end by the limit with a marker; deleting them works."""
    fd = os.dup(tree.workspace.directory)
    for _ in range(400):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    reply, entries = listed(tree, recursive=True)
    assert reply["truncated"]
    assert len(entries) == 128
    assert tree.call("delete", path="d", recursive=True)[0] == {"deleted": 400, "truncated": False}


def test_what_is_no_directory_is_not_listed(tree: Tree) -> None:
    """A file, a missing path and a path that leads out are told apart."""
    tree.write("f", "")
    (tree.path / "out").symlink_to("/etc")
    assert tree.failure("list", path="f").code == "INVALID_PATH"
    assert tree.failure("list", path="none").code == "FILE_NOT_FOUND"
    assert tree.failure("list", path="out").code == "INVALID_PATH"


def test_unreadable_directories_are_named(public: Tree) -> None:
    """The rest is listed all the same."""
    public.write("a/x", "")
    public.write("shut/x", "").parent.chmod(0)

    def act() -> None:
        reply, entries = listed(public, recursive=True)
        assert [entry[2] for entry in entries] == ["a", "a/x", "shut"]
        assert reply["unreadable"] == ["shut"]

    as_nobody(act)


# ─── delete ─────────────────────────────────────────────────────────────────────────


def deleted(tree: Tree, path: str, **arguments: Any) -> list[str]:
    """The paths that were deleted."""
    reply, data = tree.call("delete", path=path, **arguments)
    paths = [os.fsdecode(path) for path in data.split(b"\0")]
    assert reply["deleted"] == len(paths)
    return paths


def test_97_deleting_never_follows_a_link(tree: Tree) -> None:
    """Links go, what they lead to stays; a directory only with recursive."""
    tree.write("t", "k")
    (tree.path / "l").symlink_to("t")
    (tree.path / "d").symlink_to("nowhere")
    (tree.path / "z/y").mkdir(parents=True)
    (tree.path / "z/l").symlink_to("../t")
    (tree.path / "ld").symlink_to("z")
    assert deleted(tree, "l") == ["l"]
    assert deleted(tree, "d") == ["d"]
    assert deleted(tree, "ld/") == ["ld"]
    failure = tree.failure("delete", path="z")
    assert (failure.code, "recursive" in failure.message) == ("NOT_A_FILE", True)
    assert deleted(tree, "./z", recursive=True) == ["z/l", "z/y", "z"]
    assert os.listdir(tree.path) == ["t"]


def test_97_the_root_and_its_git_are_not_deleted(tree: Tree) -> None:
    """Whatever the spelling: dots, links, absolute paths."""
    tree.write(".git/config", "")
    tree.write("d/f", "")
    (tree.path / "here").symlink_to(".")
    root = tree.workspace.root
    spelled = ("", ".", "d/..", "/", root, ".git", ".git/", "./.git", "here/.git", f"{root}/.git")
    for path in spelled:
        assert tree.failure("delete", path=path, recursive=True).code == "INVALID_PATH", path
    assert tree.failure("move", **{"from": ".git", "to": "x"}).code == "INVALID_PATH"
    assert (tree.path / ".git/config").exists()
    assert deleted(tree, "here") == ["here"]


def test_names_are_literal_and_odd_ones_work(tree: Tree) -> None:
    """G8: stars and brackets delete the file of that name only."""
    for name in ("*", "[a]", "a", "-rf", "new\nline", "\udcff"):
        tree.write(name, "")
    for name in ("*", "[a]", "-rf", "new\nline", "\udcff"):
        assert deleted(tree, name) == [name]
    assert os.listdir(tree.path) == ["a"]
    failure = tree.failure("delete", path="b")
    assert failure.code == "FILE_NOT_FOUND"


def test_many_deleted_paths_are_counted(tree: Tree) -> None:
    """Of 1500 paths 1000 are listed, children before parents, and the number is right."""
    for number in range(1499):
        tree.write(f"d/{number % 7}/{number}", "")
    reply, data = tree.call("delete", path="d", recursive=True)
    paths = data.decode().split("\0")
    assert reply == {"deleted": 1499 + 7 + 1, "truncated": True}
    assert len(paths) == 1000
    for index, path in enumerate(paths):
        assert not any(below.startswith(path + "/") for below in paths[index:])


@needs_root
def test_a_partial_deletion_is_an_error_that_lists_both(public: Tree) -> None:
    """What went and what stayed is told with reasons; what could go is gone."""
    for name in ("d/a", "d/shut/x", "d/z/y"):
        public.write(name, "")
    for path in ("d", "d/z"):
        os.chown(public.path / path, 65534, 65534)
    (public.path / "d/shut").chmod(0o755)

    def act() -> None:
        failure = public.failure("delete", path="d", recursive=True)
        assert failure.code == "PERMISSION_DENIED"
        details = failure.details or {}
        assert sorted(details["deleted"]) == ["d/a", "d/z", "d/z/y"]
        assert [entry["path"] for entry in details["failed"]] == ["d/shut/x"]
        assert public.failure("delete", path="d/shut/x").code == "PERMISSION_DENIED"

    as_nobody(act)
    assert sorted(str(path.relative_to(public.path)) for path in public.path.rglob("*")) == [
        *("d", "d/shut", "d/shut/x")
    ]


@needs_root
def test_what_a_partial_deletion_tells_fits_into_a_frame(public: Tree) -> None:
    """However long the paths are and however they must be escaped; how many went is right."""
    name = os.fsdecode(b"\xff" * 240)
    for directory in ("d", "d/go", "d/stay"):
        (public.path / directory).mkdir()
        os.chown(public.path / directory, 65534, 65534)
    for number in range(990):
        public.write(f"d/go/{name}{number}", "")
    for number in range(30):
        public.write(f"d/stay/{name}{number}", "")
    (public.path / "d/stay").chmod(0o555)

    def act() -> None:
        failure = public.failure("delete", path="d", recursive=True)
        assert failure.code == "PERMISSION_DENIED"
        details = failure.details or {}
        assert details["count"] == 991 and 100 < len(details["deleted"]) < 991
        assert len(details["failed"]) == 20
        encode_json(REPLY, 1, {"error": [failure.code, failure.message, details]})

    as_nobody(act)


def test_deleting_gives_way(tree: Tree) -> None:
    """Files, and directories that are empty, are removed a hundred at a time at most."""
    for number in range(1000):
        tree.write(f"f/{number}", "")
        (tree.path / "d" / str(number)).mkdir(parents=True)
    assert tree.pauses("delete", path="f", recursive=True) >= 10
    assert tree.pauses("delete", path="d", recursive=True) >= 1000
    assert os.listdir(tree.path) == []


def test_a_mount_is_neither_entered_nor_removed(tree: Tree, tmp_path: Path) -> None:
    """A bind mount below the deleted directory keeps its content and is reported."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"")
    tree.write("d/f", "")
    point = tree.path / "d" / "a mount"
    point.mkdir()
    command = ["mount", "--bind", str(outside), str(point)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount")
    try:
        failure = tree.failure("delete", path="d", recursive=True)
        assert (failure.details or {})["failed"][0]["path"] == "d/a mount"
        assert "mount" in failure.message
        assert tree.failure("delete", path="d/a mount", recursive=True).code == "PERMISSION_DENIED"
        failure = tree.failure("move", **{"from": "d/a mount", "to": "x"})
        assert failure.code == "PERMISSION_DENIED"
    finally:
        subprocess.run(["umount", str(point)], check=True)
    assert os.listdir(outside) == ["kept"]
    assert os.listdir(tree.path / "d") == ["a mount"]


# ─── move ───────────────────────────────────────────────────────────────────────────


def moved(tree: Tree, source: str, target: str, **arguments: Any) -> None:
    """Move, which must succeed."""
    assert tree.call("move", **{"from": source, "to": target}, **arguments) == ({}, b"")


def unmoved(tree: Tree, source: str, target: str, **arguments: Any) -> str:
    """The code of a move that must fail and change nothing."""
    before = snapshot(tree.path)
    code = tree.failure("move", **{"from": source, "to": target}, **arguments).code
    assert snapshot(tree.path) == before
    return code


def test_files_links_and_directories_are_moved(tree: Tree) -> None:
    """Parents are made, a link moves as a link, a directory with all in it."""
    tree.write("f", "x")
    tree.write("d/e", "y")
    (tree.path / "l").symlink_to("d")
    moved(tree, "f", "new/deep/g")
    moved(tree, "l", "new/l")
    moved(tree, "d", "D")
    moved(tree, "D/", "moved/")
    assert (tree.path / "new/deep/g").read_bytes() == b"x"
    assert os.readlink(tree.path / "new/l") == "d"
    assert (tree.path / "moved/e").read_bytes() == b"y"
    assert sorted(os.listdir(tree.path)) == ["moved", "new"]


def test_nothing_is_replaced_unless_told(tree: Tree) -> None:
    """Existing targets are errors; overwrite replaces files, never directories."""
    tree.write("a", "a")
    tree.write("b", "b")
    tree.write("d/x", "")
    (tree.path / "e").mkdir()
    assert unmoved(tree, "a", "b") == "EXISTS"
    assert unmoved(tree, "a", "d") == unmoved(tree, "a", "d", overwrite=True) == "EXISTS"
    assert unmoved(tree, "e", "a", overwrite=True) == "EXISTS"
    assert unmoved(tree, "d", "e", overwrite=True) == "EXISTS"
    moved(tree, "a", "b", overwrite=True)
    assert (tree.path / "b").read_bytes() == b"a"


def test_moves_that_make_no_sense_change_nothing(tree: Tree) -> None:
    """Missing, outside, into itself, onto itself, and a file to a name with a slash."""
    tree.write("f", "x")
    tree.write("d/e", "")
    (tree.path / "out").symlink_to("/tmp")
    assert unmoved(tree, "none", "new/x") == "FILE_NOT_FOUND"
    assert unmoved(tree, "f", "../f") == unmoved(tree, "f", "out/f") == "INVALID_PATH"
    assert unmoved(tree, "d", "d/a/b") == "INVALID_ARGUMENTS"
    assert unmoved(tree, "f", "./f", overwrite=True) == "INVALID_ARGUMENTS"
    assert unmoved(tree, "f", "new/") == "INVALID_PATH"
    assert unmoved(tree, ".", "x") == unmoved(tree, "f", ".") == "INVALID_PATH"
    assert unmoved(tree, "f", "f/g") == "INVALID_PATH"


def test_moving_one_hard_link_onto_another_leaves_one(tree: Tree) -> None:
    """The kernel would do nothing and call it a success."""
    tree.write("a", "x")
    os.link(tree.path / "a", tree.path / "b")
    moved(tree, "a", "b", overwrite=True)
    assert os.listdir(tree.path) == ["b"]


# ─── stat ───────────────────────────────────────────────────────────────────────────


def test_stat_says_what_is_there(tree: Tree) -> None:
    """Files, directories and special files; what is missing or a dead link does not exist."""
    tree.write("f", "123")
    (tree.path / "l").symlink_to("f")
    (tree.path / "dead").symlink_to("none")
    os.mkfifo(tree.path / "p")
    found = {
        path: tree.call("stat", path=path)[0] for path in ("f", "l", "", "p", "none", "f/x", "dead")
    }
    assert {path: reply["type"] for path, reply in found.items()} == {
        **{"f": "f", "l": "f", "": "d", "p": "o"},
        **dict.fromkeys(("none", "f/x", "dead")),
    }
    assert found["l"] == {**found["f"], "type": "f", "size": 3, "hash": None, "key": "f"}
    assert found["l"]["mark"] != found["p"]["mark"] and found["dead"]["mark"] is None
    link = tree.call("stat", path="dead", follow=False)[0]
    assert link["exists"] and link["type"] == "l" and link["mark"]
    assert not found["dead"]["exists"]
    assert tree.failure("stat", path="../x").code == "INVALID_PATH"


def test_the_file_operations_load_little() -> None:
    """An idle box pays for every module: none of the heavy ones is loaded."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import agent.files; "
        "print(' '.join(sorted(sys.modules)))"
    )
    package = Path(files.__file__).parent.parent
    argv = [sys.executable, "-I", "-S", "-B", "-c", code, str(package)]
    done = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60)
    heavy = {
        "typing",
        "re",
        "collections",
        "dataclasses",
        "hashlib",
        "pathlib",
        "shutil",
        "inspect",
    }
    assert not heavy & set(done.stdout.split())


def test_no_operation_leaves_a_descriptor_open(tree: Tree) -> None:
    """Successes and failures of every operation, and generators that are closed early."""
    tree.write("d/f", "x" * 400_000)
    os.mkfifo(tree.path / "p")
    before = sorted(os.listdir("/proc/self/fd"))
    tree.call("read", path="d/f")
    for op, arguments in (
        ("read", {"path": "p"}),
        ("write", {"path": "d/f", "expect": "0"}),
        ("write", {"path": "d"}),
        ("edit", {"path": "d/f", "expect": "0", "old": 1}),
        ("list", {"path": "p"}),
        ("delete", {"path": "d"}),
        ("move", {"from": "d/f", "to": "p"}),
        ("stat", {"path": "../x"}),
    ):
        tree.failure(op, b"ab", **arguments)
    steps = files.read(tree.workspace, {"path": "d/f"}, b"")
    assert not isinstance(steps, tuple)
    next(steps)
    steps.close()
    for operation in ("list", "delete"):
        steps = files.OPERATIONS[operation](tree.workspace, {"path": "d", "recursive": True}, b"")
        assert not isinstance(steps, tuple)
        next(steps, None)
        steps.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
