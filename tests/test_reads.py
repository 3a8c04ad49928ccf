"""Read before change: what the loop has to have seen of a file before it changes it.

Each row is a short story: calls of the loop and what happens to files meanwhile, and what
the last call comes to. The content's hash decides; times are only told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

from executor.catalog import load
from executor.errors import Code
from executor.loop import Loop
from executor.model import Call, LoopSpec, Result
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread
from tests.loops import opener


class Story:
    """A loop over an agent process, and files that others change."""

    def __init__(self, thread: LoopThread, loop: Loop, root: Path) -> None:
        self._thread = thread
        self.loop = loop
        self.root = root
        self._number = 0

    def call(self, name: str, **given: Any) -> Result:
        """One call of the loop."""
        self._number += 1
        return self._thread.run(self.loop.execute(Call(f"c{self._number}", name, given)))

    def put(self, name: str, text: str) -> Path:
        """A file that somebody else makes or changes."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def read(self, name: str, **given: Any) -> Result:
        """The loop reads a file."""
        return self.call("read_file", path=name, **given)

    def write(self, name: str, text: str = "written\n") -> Result:
        """The loop writes a file over."""
        return self.call("write_file", path=name, content=text)

    def edit(self, name: str, old: str = "line 1\n", new: str = "changed\n") -> Result:
        """The loop edits a file."""
        return self.call("edit_file", path=name, old_string=old, new_string=new)

    def iterate(self) -> None:
        """The next iteration of the loop begins."""
        self._thread.run(self.loop.next_iteration())


LINES = "".join(f"line {number}\n" for number in range(1, 101))


@contextmanager
def told(directory: Path, reads: Literal["iteration", "loop"] = "iteration") -> Iterator[Story]:
    """A story in a worktree with the file `f` of 100 lines and an empty one."""
    root = make_worktree(directory / "worktree")
    catalog = load()
    toolset = replace(catalog.toolsets["standard"], reads=reads)
    catalog = replace(catalog, toolsets={"standard": toolset})
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test")
    with LoopThread() as thread:
        loop = Loop(spec, catalog, opener("local", directory))
        thread.enter(loop._opened())
        story = Story(thread, loop, root)
        story.put("f", LINES)
        story.put("empty", "")
        yield story


def appended(story: Story) -> None:
    with (story.root / "f").open("a") as file:
        file.write("theirs\n")


def touched(story: Story) -> None:
    os.utime(story.root / "f", (1, 1))


def rewritten(story: Story) -> None:
    """Other content under the same size and time."""
    path = story.root / "f"
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    path.write_text(LINES.replace("line 50\n", "LINE 50\n"))
    os.utime(path, ns=times)


def replaced(story: Story) -> None:
    """The same content in another file."""
    story.put("g", LINES).rename(story.root / "f")


Step: TypeAlias = Callable[[Story], Any]
LINE_1 = {"limit": 1}
STORIES: dict[str, tuple[list[Step], Step, Code | None]] = {
    "edit of what was never read": ([], lambda s: s.edit("f"), Code.NOT_READ),
    "write over what was never read": ([], lambda s: s.write("f"), Code.NOT_READ),
    "write of a new file": ([], lambda s: s.write("new"), None),
    "write over an empty file that was never read": (
        [],
        lambda s: s.write("empty"),
        Code.NOT_READ,
    ),
    "write over an empty file": ([lambda s: s.read("empty")], lambda s: s.write("empty"), None),
    "edit after a whole read": ([lambda s: s.read("f")], lambda s: s.edit("f"), None),
    "write after a whole read": ([lambda s: s.read("f")], lambda s: s.write("f"), None),
    "write after a read as base64": (
        [lambda s: s.read("f", encoding="base64")],
        lambda s: s.write("f"),
        None,
    ),
    "edit of a line that was read": (
        [lambda s: s.read("f", offset=1, limit=2)],
        lambda s: s.edit("f"),
        None,
    ),
    "edit of a line outside of what was read": (
        [lambda s: s.read("f", offset=50, limit=2)],
        lambda s: s.edit("f"),
        None,
    ),
    "write after a part": (
        [lambda s: s.read("f", **LINE_1)],
        lambda s: s.write("f"),
        Code.NOT_READ,
    ),
    "write after all parts": (
        [lambda s: s.read("f", limit=60), lambda s: s.read("f", offset=61)],
        lambda s: s.write("f"),
        None,
    ),
    "write after parts with a gap": (
        [lambda s: s.read("f", limit=60), lambda s: s.read("f", offset=62)],
        lambda s: s.write("f"),
        Code.NOT_READ,
    ),
    "write after parts of two contents": (
        [lambda s: s.read("f", limit=60), appended, lambda s: s.read("f", offset=61)],
        lambda s: s.write("f"),
        Code.NOT_READ,
    ),
    "grep is no reading": (
        [lambda s: s.call("grep", pattern="line", path="f")],
        lambda s: s.edit("f"),
        Code.NOT_READ,
    ),
    "a command that prints it is no reading": (
        [lambda s: s.call("run_command", command="cat f")],
        lambda s: s.edit("f"),
        Code.NOT_READ,
    ),
    "edit of an own file": ([lambda s: s.write("new", LINES)], lambda s: s.edit("new"), None),
    "write after an own write": ([lambda s: s.write("new")], lambda s: s.write("new"), None),
    "edit after an own edit": (
        [lambda s: s.read("f"), lambda s: s.edit("f")],
        lambda s: s.edit("f", "line 2\n"),
        None,
    ),
    "write after a part and an own edit": (
        [lambda s: s.read("f", **LINE_1), lambda s: s.edit("f")],
        lambda s: s.write("f"),
        Code.NOT_READ,
    ),
    "edit of what another has changed": (
        [lambda s: s.read("f"), appended],
        lambda s: s.edit("f"),
        Code.CONFLICT,
    ),
    "edit of a part while another changed the rest": (
        [lambda s: s.read("f", **LINE_1), appended],
        lambda s: s.edit("f"),
        Code.CONFLICT,
    ),
    "write over what a command has changed": (
        [lambda s: s.read("f"), lambda s: s.call("run_command", command="echo x >> f")],
        lambda s: s.write("f"),
        Code.CONFLICT,
    ),
    "other content of the same size and time": (
        [lambda s: s.read("f"), rewritten],
        lambda s: s.edit("f"),
        Code.CONFLICT,
    ),
    "another time and the same content": (
        [lambda s: s.read("f"), touched],
        lambda s: s.edit("f"),
        None,
    ),
    "another file of the same content": (
        [lambda s: s.read("f"), replaced],
        lambda s: s.edit("f"),
        None,
    ),
    "reading again mends a conflict": (
        [lambda s: s.read("f"), appended, lambda s: s.edit("f"), lambda s: s.read("f")],
        lambda s: s.edit("f"),
        None,
    ),
    "an edit that failed leaves the reading": (
        [lambda s: s.read("f"), lambda s: s.edit("f", "not there")],
        lambda s: s.edit("f"),
        None,
    ),
    "a file made again after its deletion by the loop": (
        [
            lambda s: s.read("f"),
            lambda s: s.call("delete_file", path="f"),
            lambda s: s.put("f", LINES),
        ],
        lambda s: s.edit("f"),
        Code.NOT_READ,
    ),
    "a moved file": (
        [lambda s: s.read("f"), lambda s: s.call("move_file", **{"from": "f", "to": "d/g"})],
        lambda s: s.edit("d/g"),
        None,
    ),
    "a new file in the place of a moved one": (
        [
            lambda s: s.read("f"),
            lambda s: s.call("move_file", **{"from": "f", "to": "g"}),
            lambda s: s.put("f", LINES),
        ],
        lambda s: s.edit("f"),
        Code.NOT_READ,
    ),
    "a file of a moved directory": (
        [
            lambda s: s.put("d/f", LINES),
            lambda s: s.read("d/f"),
            lambda s: s.call("move_file", **{"from": "d", "to": "e"}),
        ],
        lambda s: s.write("e/f"),
        None,
    ),
    "a file that was moved over another": (
        [
            lambda s: s.put("g", "other\n"),
            lambda s: s.read("g"),
            lambda s: s.call("move_file", **{"from": "f", "to": "g", "overwrite": True}),
        ],
        lambda s: s.edit("g"),
        Code.NOT_READ,
    ),
    "by a link to what was read": (
        [lambda s: s.read("f"), lambda s: (s.root / "l").symlink_to("f")],
        lambda s: s.edit("l"),
        None,
    ),
    "by the absolute path of what was read": (
        [lambda s: s.read("f")],
        lambda s: s.edit("/workspace/f"),
        None,
    ),
    "by another spelling of what was read": (
        [lambda s: s.read("./d/../f")],
        lambda s: s.edit("f"),
        None,
    ),
    "after the next iteration": (
        [lambda s: s.read("f"), lambda s: s.iterate()],
        lambda s: s.edit("f"),
        Code.NOT_READ,
    ),
    "an own file after the next iteration": (
        [lambda s: s.write("new", LINES), lambda s: s.iterate()],
        lambda s: s.edit("new"),
        Code.NOT_READ,
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_what_was_seen_decides_what_may_be_changed(tmp_path: Path, name: str) -> None:
    """The last call of each story is let through or refused as the row says."""
    steps, last, expected = STORIES[name]
    with told(tmp_path) as story:
        for step in steps:
            step(story)
        before = {path: path.read_bytes() for path in story.root.rglob("*") if path.is_file()}
        result = last(story)
        assert result.code is expected, result.content
        if expected is not None:
            assert {path: path.read_bytes() for path in before} == before


def test_a_toolset_may_keep_readings_for_the_whole_loop(tmp_path: Path) -> None:
    """With reads = "loop" the next iteration forgets nothing."""
    with told(tmp_path, "loop") as story:
        story.read("f")
        story.iterate()
        assert story.edit("f").code is None


def test_a_conflict_tells_the_times(tmp_path: Path) -> None:
    """The refusal says when the file was modified and as of when it was read, in ISO 8601."""
    with told(tmp_path) as story:
        os.utime(story.root / "f", (1_000_000_000, 1_000_000_000))
        read = story.read("f")
        assert read.structured is not None
        assert read.structured["modified"] == "2001-09-09T01:46:40.000Z"
        appended(story)
        os.utime(story.root / "f", (1_100_000_000, 1_100_000_000))
        refused = story.edit("f")
        assert refused.content == (
            "f changed since it was read (modified at 2004-11-09T11:33:20.000Z; as it was read: "
            "2001-09-09T01:46:40.000Z). Read it again."
        )
        assert refused.details == {
            "modified": "2004-11-09T11:33:20.000Z",
            "modified_when_read": "2001-09-09T01:46:40.000Z",
        }


def test_a_conflict_under_the_same_time_tells_none(tmp_path: Path) -> None:
    """Where the time says nothing, the refusal says only that the content is another."""
    with told(tmp_path) as story:
        story.read("f")
        rewritten(story)
        assert story.edit("f").content == "f changed since it was read. Read it again."
