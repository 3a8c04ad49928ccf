"""Reading of pictures and notebooks, through a loop."""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.errors import Code, ProtocolError
from executor.model import Result
from executor.sandbox.replies import shape_of
from tests import pictures
from tests.loops import Work, open_work


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """A loop over an agent process."""
    with open_work("local", tmp_path) as found:
        yield found


def image_of(data: bytes, media: str) -> dict[str, Any]:
    """The block of a picture."""
    source = {"type": "base64", "media_type": media, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


# ─── pictures ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "media"),
    [
        (pictures.PNG, "image/png"),
        (pictures.JPEG, "image/jpeg"),
        (pictures.GIF, "image/gif"),
        (pictures.WEBP, "image/webp"),
    ],
)
@pytest.mark.parametrize("name", ["a.png", "a.txt", "a"])
def test_a_picture_is_a_block(work: Work, data: bytes, media: str, name: str) -> None:
    """A picture is given as a block of its true type, whatever its name says."""
    work.write(name, data)
    result = work.call("read_file", path=name)
    assert result.content == [image_of(data, media)]
    assert result.structured is not None
    assert (result.structured["width"], result.structured["height"]) == (3, 2)


def test_damaged_and_other_files_are_no_blocks(work: Work) -> None:
    """Text named as a picture is text, a cut picture is an error, as is what is no picture."""
    work.write("x.png", "<svg/>")
    assert work.call("read_file", path="x.png").content == "     1│<svg/>"
    work.write("cut.png", pictures.PNG[:40])
    cut = work.call("read_file", path="cut.png")
    assert (cut.code, "damaged" in str(cut.content)) == (Code.EXECUTION_ERROR, True)
    work.write("t.txt", b"a\0b")
    assert "binary, 3 bytes" in str(work.call("read_file", path="t.txt").content)


def test_lines_of_a_picture_are_refused(work: Work) -> None:
    """offset and limit count lines, which a picture does not have."""
    work.write("a.png", pictures.PNG)
    result = work.call("read_file", path="a.png", offset=1)
    assert result.code is Code.INVALID_ARGUMENTS
    assert "leave offset and limit out" in str(result.content)


def test_a_picture_that_was_seen_may_be_written_over(work: Work) -> None:
    """Seeing a picture is reading it whole."""
    work.write("a.png", pictures.PNG)
    assert work.call("write_file", path="a.png", content="x").code is Code.NOT_READ
    work.call("read_file", path="a.png")
    assert work.call("write_file", path="a.png", content="x").code is None


def test_an_empty_file_is_no_picture(tmp_path: Path) -> None:
    """An empty file with the name of a picture is an error in every toolset, and may be filled."""
    for toolset, read, write in [
        ("standard", "read_file", "write_file"),
        ("claude-code", "Read", "Write"),
        ("loom", "read_file", "edit_file"),
    ]:
        change = functools.partial(replace, toolset=toolset)
        with open_work("local", tmp_path / toolset, change=change) as work:
            for name in ("e.png", "E.JPG", "e.pdf"):
                path = str(work.write(name, ""))
                given = {"file_path": path} if toolset == "claude-code" else {"path": name}
                result = work.call(read, **given)
                assert (result.code, "empty" in str(result.content)) == (Code.EXECUTION_ERROR, True)
                new = {"edits": [{"old_str": "", "new_str": "x"}]}
                more = new if toolset == "loom" else {"content": "x"}
                assert work.call(write, **given, **more).code is None


def test_too_many_bytes_are_refused(work: Work) -> None:
    """A picture that can't be sent and has no smaller form is refused with what to do."""
    work.write("a.gif", pictures.GIF + bytes(4 << 20))
    result = work.call("read_file", path="a.gif")
    assert result.code is Code.TOO_LARGE
    assert "Use run_command to make a smaller one of it, " in str(result.content)


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_a_picture_that_is_too_large_is_shown_smaller(tmp_path: Path, kind: str) -> None:
    """It is scaled in the box, and what it is of is said; to write it over it need not be seen."""
    with open_work(kind, tmp_path) as work:
        work.write("a.png", pictures.png(9000, 3000))
        result = work.call("read_file", path="a.png")
        written = work.call("write_file", path="a.png", content="x")
    assert isinstance(result.content, list), result.content
    picture, note = result.content
    data = base64.b64decode(picture["source"]["data"])
    assert (data[16:20], data[20:24]) == ((1568).to_bytes(4), (523).to_bytes(4))
    assert "9000x3000 pixels" in note["text"]
    assert result.structured is not None
    assert (result.structured["width"], result.structured["scaled"]) == (9000, True)
    assert written.code is None


def test_loops_of_text_are_told(tmp_path: Path) -> None:
    """A loop that is given text only is told what the picture is, and gets none."""
    book = book_of({"output_type": "display_data", "data": {"image/png": PICTURE}, "metadata": {}})
    with open_work("local", tmp_path, change=lambda spec: replace(spec, text_only=True)) as work:
        work.write("a.png", pictures.PNG)
        work.write("n.ipynb", book)
        seen = work.call("read_file", path="a.png").content
        cells = work.call("read_file", path="n.ipynb").content
    told = f"image/png, 3x2 pixels, {len(pictures.PNG)} bytes"
    assert seen == [
        {"type": "text", "text": f"[picture: {told}; not sent, this loop is given text only]"}
    ]
    assert isinstance(cells, list)
    assert [block["type"] for block in cells] == ["text"]
    assert "image/png" in cells[0]["text"]


# ─── notebooks ──────────────────────────────────────────────────────────────────────

PICTURE = base64.b64encode(pictures.PNG).decode()
STREAM = {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}


def book_of(*outputs: dict[str, Any], source: str = "print(1)") -> str:
    """A notebook of one code cell with these outputs."""
    cell: dict[str, Any] = {"cell_type": "code", "id": "b", "metadata": {}, "source": [source]}
    cell |= {"execution_count": 3, "outputs": list(outputs)}
    metadata = {"language_info": {"name": "python"}}
    fields = {"cells": [cell], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(fields, indent=1)


def test_cells_are_shown_with_their_outputs(work: Work) -> None:
    """A notebook is shown by cells: sources and outputs as text, pictures as blocks between."""
    shown = {"output_type": "display_data", "data": {"image/png": PICTURE}, "metadata": {}}
    work.write("n.ipynb", book_of(STREAM, shown, {**STREAM, "name": "stderr"}))
    result = work.call("read_file", path="n.ipynb")
    assert result.content == [
        {
            "type": "text",
            "text": "─── cell b: code (python) [3] ───\nprint(1)\n[output of cell b: stdout]\n1\n2",
        },
        image_of(pictures.PNG, "image/png"),
        {"type": "text", "text": "[output of cell b: stderr]\n1\n2"},
    ]
    assert not result.truncated


def test_lines_of_a_notebook_can_be_read(work: Work) -> None:
    """With offset or limit a notebook is the text that it is."""
    work.write("n.ipynb", book_of(STREAM))
    result = work.call("read_file", path="n.ipynb", limit=1)
    assert str(result.content).startswith("     1│{\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"nbformat": 3, "nbformat_minor": 0}', "nbformat 3"),
        ("{\n<<<<<<< HEAD\n", "line 2"),
        ("", "not a valid notebook"),
    ],
)
def test_what_is_no_notebook_is_text(work: Work, text: str, said: str) -> None:
    """A notebook that can't be shown by cells is shown as text, with the reason."""
    work.write("n.ipynb", text)
    result = work.call("read_file", path="n.ipynb")
    assert result.code is None
    assert said in str(result.content)


def test_a_long_notebook_is_kept_whole(work: Work) -> None:
    """What of a notebook does not fit is said, and all of it counts as read only if it did."""
    work.write("n.ipynb", book_of(source="x" * 200_000))
    result = work.call("read_file", path="n.ipynb")
    assert result.truncated
    assert work.call("write_file", path="n.ipynb", content="x").code is Code.NOT_READ
    work.write("n.ipynb", book_of(STREAM))
    work.call("read_file", path="n.ipynb")
    assert work.call("write_file", path="n.ipynb", content="x").code is None


# ─── an agent that is not ours ──────────────────────────────────────────────────────

FILE = {"size": 2, "modified": "", "hash": "h", "key": None}
PART = {"kind": "source", "cell": "a", "what": "code", "count": 1, "length": 2, "left_out": 0}
BOOK = {**FILE, "cells": 1, "shown": 1, "language": None, "parts": [PART]}
IMAGE = {**FILE, "media_type": "image/png", "width": 1, "height": 1, "scaled": False}


@pytest.mark.parametrize(
    ("op", "value", "is_fine"),
    [
        ("read_image", IMAGE, True),
        ("read_image", {**IMAGE, "size": 3}, False),
        ("read_image", {**IMAGE, "size": 3, "scaled": True}, True),
        ("read_image", {**IMAGE, "width": "1"}, False),
        ("read_notebook", BOOK, True),
        ("read_notebook", {**BOOK, "parts": [{**PART, "length": 1}]}, False),
        ("read_notebook", {**BOOK, "parts": [{**PART, "kind": "x"}]}, False),
        ("read_notebook", {**BOOK, "parts": [{**PART, "more": 1}]}, False),
        ("read_notebook", {**BOOK, "parts": [PART, *[{**PART, "length": 0}] * 1500]}, False),
        ("read_notebook", {**BOOK, "language": 1}, False),
    ],
)
def test_answers_are_looked_at(op: str, value: dict[str, Any], is_fine: bool) -> None:
    """An answer that no agent of ours gives is refused before a tool reads it."""
    shape = shape_of(op, {})
    assert shape is not None
    if is_fine:
        shape.check(value, b"ab")
    else:
        with pytest.raises(ProtocolError):
            shape.check(value, b"ab")


# ─── PDF files ──────────────────────────────────────────────────────────────────────


def texts_of(result: Result) -> list[str]:
    """The text blocks of a result."""
    assert isinstance(result.content, list), result.content
    return [block["text"] for block in result.content if block["type"] == "text"]


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_pages_are_text_and_pictures(tmp_path: Path, kind: str) -> None:
    """Each page of a PDF file is its text and a picture of it, in a real box too."""
    with open_work(kind, tmp_path) as work:
        work.write("a.pdf", pictures.pdf("first", "second"))
        result = work.call("read_file", path="a.pdf")
        left = work.call("run_command", command="ps -eo args | grep -c '[p]df_program'; true")
    assert str(left.content).split() == ["0"]
    assert texts_of(result) == ["─── page 1 of 2 ───\nfirst", "─── page 2 of 2 ───\nsecond"]
    assert isinstance(result.content, list)
    assert [block["type"] for block in result.content] == ["text", "image"] * 2
    source = result.content[1]["source"]
    data = base64.b64decode(source["data"])
    assert source["media_type"] == "image/png"
    assert data[16:24] == (1568).to_bytes(4) + (784).to_bytes(4)
    assert len(set(zlib.decompress(data[41:-16]))) > 2, "the page is blank"
    assert result.structured is not None
    assert result.structured["pages"] == 2


@pytest.mark.parametrize(
    ("pages", "shown"), [("2", [2]), ("1-2", [1, 2]), ("3-9", [3]), ("1-20", [1, 2, 3])]
)
def test_a_range_of_pages(work: Work, pages: str, shown: list[int]) -> None:
    """`pages` takes a page or a range; what is behind the last page is not there."""
    work.write("a.pdf", pictures.pdf("x", "y", "z"))
    told = texts_of(work.call("read_file", path="a.pdf", pages=pages))
    assert [text.splitlines()[0] for text in told] == [f"─── page {one} of 3 ───" for one in shown]


@pytest.mark.parametrize(
    ("data", "pages", "code", "said"),
    [
        (b"%PDF-1.4\ngarbage", None, Code.EXECUTION_ERROR, "damaged"),
        (pictures.pdf("x", trailer=pictures.LOCKED), None, Code.UNSUPPORTED, "password"),
        (pictures.pdf(*"x" * 500), None, Code.TOO_LARGE, "500 pages; at most 20"),
        (pictures.pdf(*"x" * 500), "7-400", Code.TOO_LARGE, "pages=7-26"),
        (pictures.pdf("x"), "2", Code.INVALID_ARGUMENTS, "has 1 pages"),
        (pictures.pdf(), None, Code.EXECUTION_ERROR, "no pages"),
        (pictures.pdf("x"), "0", Code.INVALID_ARGUMENTS, "for example 3 or 1-5"),
        (pictures.pdf("x"), "5-3", Code.INVALID_ARGUMENTS, "for example 3 or 1-5"),
        (pictures.pdf("x"), "1,2", Code.INVALID_ARGUMENTS, "for example 3 or 1-5"),
        (b"text", "1", Code.INVALID_ARGUMENTS, "pages is for PDF files"),
        (pictures.PNG, "1", Code.INVALID_ARGUMENTS, "pages is for PDF files"),
    ],
)
def test_what_can_not_be_shown(
    work: Work, data: bytes, pages: str | None, code: Code, said: str
) -> None:
    """A PDF file that can't be shown is refused by its reason, and the loop goes on."""
    work.write("a.pdf", data)
    result = work.call("read_file", path="a.pdf", **({} if pages is None else {"pages": pages}))
    assert result.code is code, result.content
    assert said in str(result.content)
    work.write("b.pdf", pictures.pdf("fine"))
    assert "fine" in texts_of(work.call("read_file", path="b.pdf"))[0]


def test_a_pdf_is_text_for_loops_of_text(tmp_path: Path) -> None:
    """A loop that is given text only gets the text of the pages, and no pictures are made."""
    with open_work("local", tmp_path, change=lambda spec: replace(spec, text_only=True)) as work:
        work.write("a.pdf", pictures.pdf("only"))
        content = work.call("read_file", path="a.pdf").content
    assert content == [{"type": "text", "text": "─── page 1 of 1 ───\nonly"}]


@pytest.mark.parametrize("page", ["[0 0 1000000 1000000]", "[0 0 0.001 99999]", "[0 0 0 0]"])
def test_pages_of_any_size(work: Work, page: str) -> None:
    """However large a page says that it is, its picture has at most 1568 pixels a side."""
    work.write("a.pdf", pictures.pdf("x", page=f"/MediaBox {page}"))
    result = work.call("read_file", path="a.pdf")
    assert isinstance(result.content, list), result.content
    for block in result.content:
        if block["type"] == "image":
            data = base64.b64decode(block["source"]["data"])
            assert max(int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) <= 1568


def unpacking() -> bytes:
    """A PDF file whose page is drawn by half a gigabyte of text in a few hundred kilobytes."""
    line = zlib.compress(b"q " * (1 << 28), 9)
    packed = f"<< /Filter /FlateDecode /Length {len(line)} >>\nstream\n{line.decode('latin-1')}"
    return pictures.of_objects(
        [
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Resources << >> /Contents 4 0 R >>",
            f"{packed}\nendstream",
        ]
    )


def test_what_would_take_all_memory_does_not_take_the_box(tmp_path: Path) -> None:
    """Two files at once that need more than the box has: their calls fail, others go on."""
    with open_work("docker", tmp_path) as work:
        work.write("a.pdf", unpacking())
        asked = ("read_file", {"path": "a.pdf"})
        *failed, found = work.turn(asked, asked, ("glob", {"pattern": "*"}))
        after = work.call("run_command", command="ps -eo args | grep -c '[p]df_program'; true")
    assert {result.code for result in failed} <= {Code.EXECUTION_ERROR, Code.TIMEOUT}
    assert (found.code, str(after.content).split()) == (None, ["0"])
    assert len(work.opened) == 1


def test_a_bomb_costs_its_own_call(work: Work) -> None:
    """A page of 60,000 x 60,000 pixels ends its own process, or is left blank; the loop goes on."""
    work.write("a.pdf", pictures.drawn(60_000, 60_000, zlib.compress(bytes(60_000 * 1000), 9)))
    result = work.call("read_file", path="a.pdf")
    assert result.code in (None, Code.EXECUTION_ERROR, Code.TIMEOUT), result.content
    work.write("b.pdf", pictures.pdf("fine"))
    assert "fine" in texts_of(work.call("read_file", path="b.pdf"))[0]


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.png", pictures.PNG), ("a.pdf", pictures.pdf("secret")), ("a.ipynb", book_of(STREAM))],
)
def test_what_rules_deny_is_not_shown(tmp_path: Path, name: str, data: bytes | str) -> None:
    """A rule against reading holds for pictures, PDF files and notebooks, by links too."""
    deny = ("read_file(/secret/)",)
    with open_work("local", tmp_path, change=lambda spec: replace(spec, deny=deny)) as work:
        work.write(f"secret/{name}", data)
        (work.root / name).symlink_to(f"secret/{name}")
        for path in (f"secret/{name}", name):
            result = work.call("read_file", path=path)
            assert result.code is Code.PERMISSION_DENIED, result.content
        change = {"notebook_path": name, "cell_id": "b", "new_source": ""}
        assert work.call("notebook_edit", **change).code is Code.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("toolset", "name", "argument"),
    [("claude-code", "Read", "file_path"), ("loom", "read_file", "path")],
)
def test_every_toolset_shows_pictures_and_pages(
    tmp_path: Path, toolset: str, name: str, argument: str
) -> None:
    """The reading tool of each toolset gives pictures and pages as blocks."""
    with open_work("local", tmp_path, change=lambda spec: replace(spec, toolset=toolset)) as work:
        work.write("a", pictures.GIF)
        work.write("b", pictures.pdf("text"))
        seen = work.call(name, **{argument: f"{work.root}/a" if toolset != "loom" else "a"})
        pages = work.call(name, **{argument: f"{work.root}/b" if toolset != "loom" else "b"})
    assert seen.content == [image_of(pictures.GIF, "image/gif")]
    assert texts_of(pages) == ["─── page 1 of 1 ───\ntext"]
