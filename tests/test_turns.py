"""Turns over a real agent: whatever runs together, the results are those of the model's order."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.controller import OpenBox
from executor.errors import Code, SandboxError
from executor.model import Call, CallStarted, Event, Finished, LoopSpec, Output, Result
from executor.tool import Answer, OnOutput
from tests.driver import ARGUMENTS
from tests.loops import Work, open_work

Given = tuple[str, dict[str, Any]]


CHANGES = ("write", "edit", "delete", "move", "run")
QUIET = 150
"""Rounds of the event loop without a request or an answer after which none will come."""


@dataclass
class Slowed:
    """A box whose operations take their time: by a seed, or those that one wants last.

    Attributes:
        held: operations that wait until nothing else is going on.
        random: how long the others take; None = no longer than they do.
        asked: names of all operations so far.
    """

    box: Any
    held: tuple[str, ...] = ()
    random: random.Random | None = None
    asked: list[str] = field(default_factory=list)
    moves: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.box, name)

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Answer:
        """As the box, later."""
        self.asked.append(op)
        self.moves += 1
        if op in self.held:
            await self._quiet()
        await self._pause()
        try:
            return await self.box.request(op, arguments, body, timeout=timeout, on_output=on_output)
        finally:
            await self._pause()
            self.moves += 1

    async def _quiet(self) -> None:
        """Until nothing else has begun or ended for a while."""
        moves, rounds = self.moves, 0
        while rounds < QUIET:
            await asyncio.sleep(0)
            rounds = rounds + 1 if moves == self.moves else 0
            moves = self.moves

    async def _pause(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 3, 20)) if self.random else 0):
            await asyncio.sleep(0)


@dataclass
class Twins:
    """Two loops over two copies of one tree: one in the model's order, one as it comes."""

    ordered: Work
    free: Work
    slowed: Slowed


def slow(work: Work) -> Slowed:
    """Put delays between a loop and its box."""
    seat: Any = work.loop._seat
    seat._box = slowed = Slowed(seat._box)
    return slowed


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """Both loops, for all tests."""
    with ExitStack() as stack:
        works = [
            stack.enter_context(open_work("local", tmp_path_factory.mktemp(name)))
            for name in ("ordered", "free")
        ]
        yield Twins(works[0], works[1], slow(works[1]))


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """A loop of its own for each test."""
    with open_work("local", tmp_path) as opened:
        yield opened


# ─── the same results ───────────────────────────────────────────────────────────────

FILES = {"a": "one\n", "b": "two\n", "d/a": "three\n", "d/e/c": "four\n", ".gitignore": "*.log\n"}
LINKS = {"link": "a", "d/up": "../b", "dir": "d", "chain": "link", "dead": "new/x"}


def plant(root: Path) -> None:
    """The tree that every turn begins with."""
    for entry in root.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    os.link(root / "b", root / "hard")


def tree(root: Path) -> dict[str, Any]:
    """All that is in a worktree."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        else:
            found[name] = path.read_bytes() if path.is_file() else "directory"
    return found


def shown(result: Result, root: Path) -> tuple[Any, ...]:
    """What has to be the same, wherever the tree is and whenever it was made."""
    structured = dict(result.structured or {})
    for name in ("modified", "duration"):
        structured.pop(name, None)
    for entry in structured.get("entries", ()):
        entry.pop("modified", None)
    here = str(root)
    return (
        str(result.content).replace(here, "ROOT"),
        result.code,
        str(structured).replace(here, "ROOT"),
    )


PATHS = st.sampled_from(
    [*FILES, *LINKS, "hard", "new", "new/x", "new/y", "dir/a", "dir/e/c", "d", "d/e", "dir/new", "x"]
)
PLACES = st.sampled_from([".", "d", "dir", "d/e", "new"])
WORDS = st.sampled_from(["one", "two", "three", "four", "five\n"])
COMMANDS = st.one_of(
    st.builds("cat {} {}".format, PATHS, PATHS),
    st.builds("ls {}".format, PLACES),
    st.builds("grep -r e {} | sort".format, PLACES),
    st.builds("echo more >> {}".format, PATHS),
    st.builds("rm -rf {}".format, PATHS),
    st.builds("ln -sfn {} {}".format, PATHS, st.sampled_from(["link", "x", "new", "dir"])),
    st.builds("mv {} {}".format, PATHS, PATHS),
    st.builds("mkdir -p {} && cd {} && pwd -P".format, PLACES, PLACES),
    st.builds("cd {}; ls".format, PLACES),
    st.sampled_from(["pwd -P", "git status", "find . -type f | sort", "wc -l < a", "cd /tmp; ls a"]),
)


def call(name: str, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Given]:
    """Calls of one tool."""
    return st.tuples(st.just(name), st.fixed_dictionaries(given))


READS = st.one_of(
    call("read_file", path=PATHS),
    call("grep", pattern=WORDS, path=st.one_of(PLACES, PATHS)),
    call("glob", pattern=st.sampled_from(["**/*", "*", "**/x"]), path=PLACES),
    call("list_directory", path=PLACES, recursive=st.booleans()),
)
WRITES = st.one_of(
    call("write_file", path=PATHS, content=WORDS),
    call("edit_file", path=PATHS, old_string=WORDS, new_string=WORDS),
    call("delete_file", path=PATHS, recursive=st.booleans()),
    call("move_file", **{"from": PATHS, "to": PATHS, "overwrite": st.booleans()}),
)
OTHERS = st.one_of(
    call("run_command", command=COMMANDS),
    call("complete_task", summary=WORDS),
    call("todo_write", todos=st.just([])),
    call("read_file", path=st.just("../x")),
    call("nope", path=PATHS),
)


SCHEDULES = st.tuples(
    st.integers(0, 1 << 30), st.sampled_from([(), CHANGES, ("read", "grep", "glob", "list")])
)


def compare(twins: Twins, schedule: tuple[int, tuple[str, ...]], calls: list[Given]) -> None:
    """Both loops give the same results and leave the same tree."""
    ordered, free = twins.ordered, twins.free
    for work in (ordered, free):
        plant(work.root)
        work.loop.session.clear_reads()
        work.call("run_command", command=f"cd {work.root}")
        # What was read before may be changed.
        work.turn(*(("read_file", {"path": path}) for path in FILES))
    last = [position for position, (name, _) in enumerate(calls) if name == "complete_task"]
    order = [position for position in range(len(calls)) if position not in last] + last
    expected: dict[int, Any] = {}
    for position in order:
        name, given_arguments = calls[position]
        result = ordered.call(name, **given_arguments)
        expected[position] = shown(result, ordered.root)
    twins.slowed.random, twins.slowed.held = random.Random(schedule[0]), schedule[1]
    results = [shown(result, free.root) for result in free.turn(*calls)]
    twins.slowed.random, twins.slowed.held = None, ()
    assert results == [expected[position] for position in range(len(calls))]
    assert tree(free.root) == tree(ordered.root)
    assert free.loop.session.completed == ordered.loop.session.completed
    assert free.loop.session.cwd.removeprefix(str(free.root)) == (
        ordered.loop.session.cwd.removeprefix(str(ordered.root))
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedule=SCHEDULES, calls=st.lists(st.one_of(READS, WRITES), max_size=12))
def test_file_tools_in_any_schedule_do_what_the_order_does(
    twins: Twins, schedule: tuple[int, tuple[str, ...]], calls: list[Given]
) -> None:
    """Reads, writes, moves, deletes, through links too: the results and the tree are the same."""
    compare(twins, schedule, calls)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schedule=SCHEDULES, calls=st.lists(st.one_of(READS, WRITES, OTHERS), max_size=8))
def test_commands_in_any_schedule_do_what_the_order_does(
    twins: Twins, schedule: tuple[int, tuple[str, ...]], calls: list[Given]
) -> None:
    """With commands, links that they make, and changes of directory, too."""
    compare(twins, schedule, calls)


FREE: tuple[int, tuple[str, ...]] = (0, ())
READ_A = ("read_file", {"path": "a"})


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(
            [
                ("move_file", {"from": "dir", "to": "fresh"}),
                ("edit_file", {"path": "fresh/a", "old_string": "three", "new_string": "3"}),
                ("read_file", {"path": "d/a"}),
            ],
            id="a move makes a path lead to a file that another call reads",
        ),
        pytest.param(
            [
                ("run_command", {"command": "ln -s d fresh"}),
                ("edit_file", {"path": "fresh/a", "old_string": "three", "new_string": "3"}),
                ("read_file", {"path": "d/a"}),
            ],
            id="so does a command",
        ),
        pytest.param(
            [
                ("run_command", {"command": "echo more >> hard"}),
                ("read_file", {"path": "b"}),
                ("grep", {"pattern": "more", "path": "d"}),
                ("edit_file", {"path": "b", "old_string": "two", "new_string": "2"}),
            ],
            id="a command writes through one hard link, others use the other",
        ),
        pytest.param(
            [
                ("write_file", {"path": "new/x", "content": "x"}),
                ("read_file", {"path": "new/y"}),
                ("glob", {"pattern": "*", "path": "."}),
                ("list_directory", {"path": "."}),
            ],
            id="a directory that is made changes why another file is missing",
        ),
        pytest.param(
            [
                ("delete_file", {"path": "a"}),
                ("glob", {"pattern": "**/*", "path": "d"}),
                ("read_file", {"path": "chain"}),
            ],
            id="links in a directory lead to what is deleted elsewhere",
        ),
        pytest.param(
            [
                ("write_file", {"path": "d/.gitignore", "content": "c"}),
                ("glob", {"pattern": "*", "path": "d/e"}),
                ("grep", {"pattern": "four", "path": "dir/e"}),
            ],
            id="an ignore file above what is searched",
        ),
        pytest.param(
            [
                ("read_file", {"path": "chain"}),
                ("edit_file", {"path": "link", "old_string": "one", "new_string": "1"}),
                ("grep", {"pattern": "1", "path": "chain"}),
                READ_A,
            ],
            id="several links to one file",
        ),
        pytest.param(
            [
                ("run_command", {"command": "cd d"}),
                ("run_command", {"command": "cat a"}),
                ("edit_file", {"path": "d/a", "old_string": "three", "new_string": "3"}),
                ("run_command", {"command": "cat a; cd .."}),
                ("run_command", {"command": "cat a"}),
            ],
            id="commands run in the directory of their place in the order",
        ),
        pytest.param(
            [
                ("run_command", {"command": "cd d/e"}),
                ("run_command", {"command": "pwd -P"}),
                ("move_file", {"from": "d", "to": "moved"}),
                ("run_command", {"command": "cat c; true"}),
            ],
            id="a directory is moved from under the commands",
        ),
        pytest.param(
            [
                ("complete_task", {"summary": "first"}),
                ("edit_file", {"path": "a", "old_string": "one", "new_string": "1"}),
                READ_A,
            ],
            id="completion is last",
        ),
    ],
)
@pytest.mark.parametrize("held", [(), CHANGES, ("read", "grep", "glob", "list")])
def test_calls_that_depend_on_each_other_in_less_plain_ways(
    twins: Twins, held: tuple[str, ...], calls: list[Given]
) -> None:
    """Links, directories and ignore files make dependences, too; the worst schedule is tried."""
    compare(twins, (0, held), calls)
