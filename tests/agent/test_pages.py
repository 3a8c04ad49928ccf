"""PDF files in the agent: the process that takes them apart, and what is believed of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent import pages, pdf_program, pictures
from executor.agent.files import digest
from executor.tools import rich
from tests import pictures as samples
from tests.agent.driver import Tree, changed, drain
from tests.local_box import PDF
from tests.pictures import pdf

ROOM = {"first": 0, "last": 0, "max_pages": 20, "max_bytes": 1000, "picture_bytes": 100_000}


def test_pages_of_a_file(tree: Tree) -> None:
    """Text and picture of each page come in their order, with the facts of the file."""
    tree.write("a.pdf", pdf("one", "two"))
    value, data = tree.call("read_pages", path="a.pdf", **ROOM)
    assert [(part["kind"], part["page"]) for part in value["parts"]] == [
        ("page", 1),
        ("picture", 1),
        ("page", 2),
        ("picture", 2),
    ]
    assert data.startswith(b"one\x89PNG")
    assert (value["pages"], value["hash"]) == (2, digest(pdf("one", "two")))


def test_pictures_are_made_to_fit(tree: Tree) -> None:
    """A page whose picture has no room is made smaller, and left out if that does not help."""
    tree.write("a.pdf", pdf("a long line of text"))
    value, data = tree.call("read_pages", path="a.pdf", **{**ROOM, "picture_bytes": 9000})
    width = int.from_bytes(data.partition(b"IHDR")[2][:4])
    assert 0 < width < pdf_program.SIDE
    value, data = tree.call("read_pages", path="a.pdf", **{**ROOM, "picture_bytes": 50})
    assert value["parts"][1] == {"kind": "picture", "page": 1, "length": 0, "left_out": 1}


def test_text_without_room_is_counted(tree: Tree) -> None:
    """What of the text has no room is counted."""
    tree.write("a.pdf", pdf("one", "two"))
    value, data = tree.call(
        "read_pages", path="a.pdf", **{**ROOM, "max_bytes": 4, "picture_bytes": 0}
    )
    assert data == b"onet"
    assert [part["left_out"] for part in value["parts"]] == [0, 2]


def test_pages_are_drawn_as_long_as_there_is_time(tree: Tree) -> None:
    """When the time to draw is over there is the text of the pages that are left."""
    tree.write("a.pdf", pdf("one", "two"))
    value, data = tree.call("read_pages", path="a.pdf", **ROOM, seconds=0)
    assert data == b"onetwo"
    assert [part["left_out"] for part in value["parts"]] == [0, 2, 0, 2]


def test_no_picture_is_larger_than_models_take(tree: Tree) -> None:
    """A page that has all the room is made smaller, too, if its picture can't be sent."""
    noise = random.Random(1).randbytes(700 * 700 * 3)
    tree.write("a.pdf", samples.drawn(700, 700, zlib.compress(noise, 1)))
    room = {**ROOM, "picture_bytes": 6 << 20}
    value, _ = tree.call("read_pages", path="a.pdf", **room)
    assert 1 << 20 < value["parts"][1]["length"] <= pdf_program.MOST_PICTURE == rich.MOST_BYTES


def test_without_the_library(tree: Tree) -> None:
    """Where the runtime has no PDFium the refusal says what to do instead."""
    tree.write("a.pdf", pdf("x"))
    tree.workspace.pdf = (PDF[0], "/nowhere/libpdfium.so")
    failure = tree.failure("read_pages", path="a.pdf", **ROOM)
    assert failure.code == "UNSUPPORTED"
    assert "pdftotext" in failure.message


LIES = [
    [["page", 1, 1, 0]],
    [["page", 1, 0, -1]],
    [["page", 1 << 70, 0, 0]],
    [["page", 1, 0, 0]] * 41,
]
"""Parts that are not what follows, or could not be."""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('no JSON')", "no sense"),
        ("print('[]')", "no sense"),
        ("print('{\"parts\": [[1]]}')", "no sense"),
        ("print('[' * 100000)", "no sense"),
        ('print(\'{"pages": "x"}\')', "no sense"),
        ('print(\'{"fault": "?"}\')', "no pages"),
        *((f"print({json.dumps({'pages': 1, 'parts': parts})!r})", "no sense") for parts in LIES),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("print('x' * (1 << 20))", "too much"),
    ],
)
def test_a_program_is_not_believed(tree: Tree, tmp_path: Path, code: str, said: str) -> None:
    """Whatever the process writes, and however it ends, it is an answer or a typed failure."""
    program = tmp_path / "program.py"
    program.write_text(code)
    tree.write("a.pdf", pdf("x"))
    with changed(pages, PROGRAM=str(program)):
        failure = tree.failure("read_pages", path="a.pdf", **ROOM)
    assert failure.code in ("EXECUTION_ERROR", "TOO_LARGE")
    assert said in failure.message


CONFINED = """
import json, os, resource, sys
sys.path.insert(0, {directory!r})
import pdf_program
pdf_program.confine()
found = {{}}
def tried(name, action):
    try:
        action()
        found[name] = True
    except (OSError, MemoryError, ValueError):
        found[name] = False
tried("memory", lambda: bytearray(2 << 30))
tried("files", lambda: [os.open("/dev/null", os.O_RDONLY) for _ in range(9)])
tried("writes", lambda: os.write(os.open({file!r}, os.O_WRONLY), b"x"))
tried("more", lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)))
tried("processes", os.fork)
print(json.dumps(found))
"""


def test_the_process_is_confined(tmp_path: Path) -> None:
    """It gets no more memory, descriptors or processes than it needs, and writes no file."""
    directory = str(Path(pdf_program.__file__).parent)
    file = tmp_path / "file"
    file.write_bytes(b"")
    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + CONFINED.format(
        directory=directory, file=str(file)
    )
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    found = json.loads(run.stdout.splitlines()[0])
    # Root with all its capabilities may raise its limits and have any number of processes.
    own = ("memory", "files", "writes") if os.getuid() == 0 else tuple(found)
    assert not any(found[name] for name in own)
    assert file.read_bytes() == b""


def test_a_picture_of_the_program_is_looked_at(tree: Tree, tmp_path: Path) -> None:
    """What the process gives as a picture has to be a whole one."""
    program = tmp_path / "program.py"
    cut = samples.PNG[:-1]
    said = json.dumps({"pages": 1, "parts": [["picture", 1, len(cut), 0]]}).encode() + b"\n" + cut
    program.write_text(f"import sys; sys.stdout.buffer.write({said!r})")
    tree.write("a.pdf", pdf("x"))
    with changed(pages, PROGRAM=str(program)):
        failure = tree.failure("read_pages", path="a.pdf", **ROOM)
    assert "no sense" in failure.message


@given(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.binary(min_size=324, max_size=324))
def test_pixels_become_a_png(width: int, height: int, is_grey: bool, data: bytes) -> None:
    """Rows of blue, green and red become a PNG file of the same pixels."""
    stride = -(-3 * width // 4) * 4
    rows = [data[36 * number : 36 * number + 3 * width] for number in range(height)]
    if is_grey:
        rows = [bytes(value for value in row[::3] for _ in range(3)) for row in rows]
    pixels = b"".join(row.ljust(stride, b"\xee") for row in rows)
    found = pdf_program.png(pixels, width, height, stride)
    drain(step for step in pictures.looked_through(found))
    unpacked = zlib.decompress(found[41:-16])
    grey = all(row[::3] == row[1::3] == row[2::3] for row in rows)
    assert len(unpacked) == height * (1 + width * (1 if grey else 3))
    step = len(unpacked) // height
    for number, row in enumerate(rows):
        shown = unpacked[number * step + 1 : (number + 1) * step]
        if grey:
            assert shown == row[::3]
        else:
            assert (shown[::3], shown[1::3], shown[2::3]) == (row[2::3], row[1::3], row[::3])
