"""Turns over a real agent: whatever runs together, the results are those of the model's order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import Code, StreamBroken
from executor.model import (
    Call,
    CallStarted,
    Event,
    Finished,
    Output,
    Result,
    TaskCompleted,
    Warned,
)
from executor.scheduling import MAX_PARALLEL
from executor.tool import Answer, Arguments, Context, OnOutput, Order, Outcome
from executor.turn import Feed
from tests.driver import ARGUMENTS
from tests.loops import Work, open_work

Given = tuple[str, dict[str, Any]]


CHANGES = ("write", "edit", "delete", "move", "run")
QUIET = 50
"""Rounds of the event loop without a request under way after which none will come."""


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
    under_way: int = 0

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
        if op in self.held:
            await self._quiet()
        self.under_way += 1
        await self._pause()
        try:
            answer: Answer = await self.box.request(
                op, arguments, body, timeout=timeout, on_output=on_output
            )
            return answer
        finally:
            await self._pause()
            self.under_way -= 1

    async def _quiet(self) -> None:
        """Until nothing else is under way, and nothing comes."""
        rounds = 0
        while rounds < QUIET:
            await asyncio.sleep(0)
            rounds = 0 if self.under_way else rounds + 1

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
    seat: Any = work.loop._lane
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
    [
        *FILES,
        *LINKS,
        "hard",
        "new",
        "new/x",
        "new/y",
        "dir/a",
        "dir/e/c",
        "d",
        "d/e",
        "dir/new",
        "x",
    ]
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
    st.sampled_from(
        ["pwd -P", "git status", "find . -type f | sort", "wc -l < a", "cd /tmp; ls a"]
    ),
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
                ("delete_file", {"path": "b"}),
                ("glob", {"pattern": "**/*", "path": "d"}),
                ("read_file", {"path": "d/up"}),
            ],
            id="links in a directory lead to what is deleted elsewhere",
        ),
        pytest.param(
            [
                ("write_file", {"path": ".gitignore", "content": "a"}),
                ("glob", {"pattern": "**/*", "path": "d"}),
                ("grep", {"pattern": "r", "path": "dir"}),
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
                ("delete_file", {"path": "link"}),
                ("read_file", {"path": "chain"}),
                READ_A,
            ],
            id="a link in the middle of a chain is deleted",
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
                ("edit_file", {"path": "d/up", "old_string": "two", "new_string": "2"}),
                ("move_file", {"from": "d/up", "to": "b", "overwrite": True}),
                ("read_file", {"path": "b"}),
            ],
            id="a link is moved onto the file that it leads to",
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


# ─── what runs together ─────────────────────────────────────────────────────────────


@dataclass
class Gated:
    """A box that holds operations back until they may go.

    Attributes:
        holds: given an operation and its arguments, what it waits for; None = nothing.
        begun: paths, or commands, of the operations that were asked for.
    """

    box: Any
    holds: Callable[[str, str], asyncio.Event | None]
    begun: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.box, name)

    async def request(
        self, op: str, arguments: dict[str, Any], body: bytes = b"", **more: Any
    ) -> Answer:
        """As the box, when it may."""
        what = str(arguments.get("path", arguments.get("command", "")))
        self.begun.append(what)
        gate = self.holds(op, what)
        if gate is not None:
            async with asyncio.timeout(30):
                await gate.wait()
        answer: Answer = await self.box.request(op, arguments, body, **more)
        return answer


def gate(work: Work, holds: Callable[[str, str], asyncio.Event | None]) -> Gated:
    """Put gates between a loop and its box."""
    seat: Any = work.loop._lane
    seat._box = gated = Gated(seat._box, holds)
    return gated


def test_the_example_of_the_specification_runs_as_it_says(work: Work) -> None:
    """[Read A, Edit B, Read C, Bash "ls"]: B is edited only after C was read; `ls` sees it."""
    for name in "abc":
        work.write(name, f"{name}\n")
    work.call("read_file", path="b")
    read_c = asyncio.Event()

    def holds(op: str, what: str) -> asyncio.Event | None:
        if (op, what) == ("read", "c"):
            work.thread.loop.call_soon(read_c.set)
        return read_c if op == "edit" else None

    gated = gate(work, holds)
    results = work.turn(
        ("read_file", {"path": "a"}),
        ("edit_file", {"path": "b", "old_string": "b", "new_string": "long"}),
        ("read_file", {"path": "c"}),
        ("run_command", {"command": "wc -c b"}),
    )
    assert [result.is_error for result in results] == [False] * 4
    assert results[3].content == "5 b\n"
    assert gated.begun[-1] == "wc -c b"


def test_as_many_calls_run_together_as_may(work: Work) -> None:
    """Ten reads are in the box before one is answered, and the eleventh is not."""
    all_there = asyncio.Event()

    def holds(op: str, what: str) -> asyncio.Event:
        if len(gated.begun) == MAX_PARALLEL:
            work.thread.loop.call_later(0, work.thread.loop.call_soon, all_there.set)
            seen.append(len(gated.begun))
        return all_there

    seen: list[int] = []
    gated = gate(work, holds)
    work.turn(*(("read_file", {"path": f"f{number}"}) for number in range(25)))
    assert seen == [MAX_PARALLEL]
    assert len(gated.begun) == 25


def test_fifty_edits_of_one_file_at_once_are_all_there(work: Work) -> None:
    """In one turn, and by fifty tasks that know nothing of each other."""
    for run_together in (True, False):
        work.write("f", "".join(f"n={number};\n" for number in range(50)))
        work.call("read_file", path="f")
        edits = [
            ("edit_file", {"path": "f", "old_string": f"n={n};", "new_string": f"n={n}!"})
            for n in range(50)
        ]

        async def at_once(edits: list[Given] = edits) -> list[Result]:
            calls = [work.make(name, given) for name, given in edits]
            return await asyncio.gather(*map(work.loop.execute, calls))

        results = work.turn(*edits) if run_together else work.thread.run(at_once())
        assert [result.code for result in results] == [None] * 50
        assert (work.root / "f").read_text() == "".join(f"n={n}!\n" for n in range(50))


def test_results_are_told_in_the_order_of_the_calls(work: Work) -> None:
    """However they end: a result waits until those before it were told."""
    work.write("a", "a")
    second = asyncio.Event()

    def holds(op: str, what: str) -> asyncio.Event | None:
        if what == "a":
            work.thread.loop.call_soon(second.set)
        return second if what == "missing" else None

    gate(work, holds)
    events = work.events(("read_file", {"path": "missing"}), ("read_file", {"path": "a"}))
    told = [
        event.call.id if isinstance(event, CallStarted) else event.result.id
        for event in events
        if isinstance(event, CallStarted | Finished)
    ]
    assert told == ["call0", "call1", "call0", "call1"]


def test_paths_are_looked_up_only_where_it_matters(work: Work) -> None:
    """Not for reads alone, nor for one call, nor where it is unknown what is written anyway."""
    read, read_2 = ("read_file", {"path": "a"}), ("read_file", {"path": "b"})
    write = ("write_file", {"path": "c", "content": ""})
    slowed = slow(work)
    for calls, expected in (
        ([read, read_2], 0),
        ([write], 0),
        ([("run_command", {"command": "sh -c $X"}), read], 0),
        ([write, read, read_2], 1),
    ):
        slowed.asked.clear()
        work.turn(*calls)
        assert slowed.asked.count("resolve") == expected


# ─── failures and cancellation ──────────────────────────────────────────────────────


def added(work: Work, name: str, run: Callable[..., Awaitable[Outcome]], order: Order) -> None:
    """One more tool, that the host has."""
    entry = work.loop.registry.get("complete_task")
    assert entry is not None
    tool = replace(entry, name=name, run=run, order=order, arguments=Arguments, unavailable=None)
    work.loop.registry.register(tool)


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError(), BrokenPipeError()])
def test_a_failing_tool_costs_its_own_call(work: Work, error: BaseException) -> None:
    """Whatever it raises, calls beside it and after it are answered."""
    work.write("a", "a\n")

    async def broken(context: Context, given: Any) -> Outcome:
        await context.ask("stat", {"path": ""})
        raise error

    added(work, "broken", broken, Order.SAFE)
    results = work.turn(
        ("run_command", {"command": "sleep 0.01; cat a"}),
        ("broken", {}),
        ("write_file", {"path": "b", "content": "b"}),
        ("read_file", {"path": "b"}),
    )
    assert [result.code for result in results] == [None, Code.INTERNAL, None, None]


def test_cancelled_calls_are_answered_with_what_they_had_come_to(work: Work) -> None:
    """A running command's output is kept; what has not begun is said to; the loop goes on."""
    calls = [
        Call("run", "run_command", {"command": "echo some; echo > began; sleep 100.25"}),
        Call("next", "write_file", {"path": "next", "content": ""}),
    ]

    async def cancel() -> list[Event]:
        found = []
        async for event in work.loop.stream(calls):
            found.append(event)
            if isinstance(event, Output):
                assert work.loop.cancel("nobody") == 0
                assert work.loop.cancel() == 2
        return found

    results = [event.result for event in work.thread.run(cancel()) if isinstance(event, Finished)]
    assert [result.code for result in results] == [Code.CANCELLED] * 2
    assert str(results[0].content).startswith("Command cancelled\nsome\n")
    assert results[0].structured is not None
    assert results[0].structured["stdout"] == "some\n"
    assert results[1].content == "The call was cancelled before it began."
    assert not (work.root / "next").exists()
    assert is_still(work, "sleep 100.25")
    assert work.loop.cancel() == 0


def test_one_call_can_be_cancelled_beside_others(work: Work) -> None:
    """Others of the turn, those behind it too, have their results."""

    async def run(context: Context, given: Any) -> Outcome:
        context.tell(Warned(message="began"))
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    added(work, "wait", run, Order.UNSAFE)
    calls = [Call("w", "wait", {}), Call("n", "write_file", {"path": "next", "content": "x"})]

    async def cancel() -> list[Result]:
        found = []
        async for event in work.loop.stream(calls):
            if isinstance(event, Warned):
                assert work.loop.cancel("w") == 1
            if isinstance(event, Finished):
                found.append(event.result)
        return found

    first, second = work.thread.run(cancel())
    assert (first.code, first.content) == (Code.CANCELLED, "The call was cancelled while it ran.")
    assert second.code is None
    assert (work.root / "next").read_text() == "x"


def is_still(work: Work, command: str) -> bool:
    """No process of the box has these arguments, and no call is running."""
    pattern = f"{command[:-1]}[{command[-1]}]"
    found = work.call("run_command", command=f"{ARGUMENTS} | grep -c '{pattern}'; true")
    seat: Any = work.loop._lane
    return str(found.content) == "0\n" and seat._users == 0


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rounds=st.integers(0, 400),
    how=st.sampled_from(["task", "stream", "calls"]),
    calls=st.lists(
        st.one_of(READS, WRITES, call("run_command", command=st.just("echo x; sleep 200.75"))),
        min_size=1,
        max_size=8,
    ),
)
def test_cancelling_at_any_moment_leaves_nothing_running(
    twins: Twins, rounds: int, how: str, calls: list[Given]
) -> None:
    """The task, the stream's reader, or the calls: nothing of them runs, the next call does."""
    work = twins.free
    plant(work.root)
    made = [work.make(name, given_arguments) for name, given_arguments in calls]

    async def after(rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def cancel() -> None:
        if how == "stream":
            stream = work.loop.stream(made)
            async for _ in stream:
                await after(rounds // len(calls))
                break
            await stream.aclose()  # type: ignore[attr-defined]
            return
        task = asyncio.ensure_future(work.loop.turn(made))
        await after(rounds + 1)  # before that there is no turn whose calls could be cancelled
        if how == "calls":
            work.loop.cancel()
            codes = [result.code for result in await task]
            assert len(codes) == len(calls)
            return
        task.cancel()
        await asyncio.wait({task})

    work.thread.run(cancel(), timeout=60)
    assert is_still(work, "sleep 200.75")
    assert work.loop._running == []


# ─── calls of a message that a model is still streaming ─────────────────────────────


def block(index: int, name: str, **given: Any) -> list[dict[str, Any]]:
    """The events of one call."""
    opened = {"type": "tool_use", "id": f"call{index}", "name": name, "input": {}}
    text = {"type": "input_json_delta", "partial_json": json.dumps(given)}
    return [
        {"type": "content_block_start", "index": index, "content_block": opened},
        {"type": "content_block_delta", "index": index, "delta": text},
        {"type": "content_block_stop", "index": index},
    ]


STOP = {"type": "message_stop"}


@dataclass
class Message:
    """A message that is streamed step by step, each when the loop has told of something."""

    steps: list[Any]
    told: list[Event] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Events, and in between waiting for what functions among them want to have seen."""
        for step in self.steps:
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, dict):
                yield step
                continue
            async with asyncio.timeout(30):
                while not any(map(step, self.told)):
                    self.changed.clear()
                    await self.changed.wait()

    async def played(self, work: Work) -> list[Result]:
        """The results of its calls."""
        try:
            async for event in work.loop.stream_model(self.events()):
                self.told.append(event)
                self.changed.set()
        except StreamBroken as error:
            self.broken = error
        return [event.result for event in self.told if isinstance(event, Finished)]


def finished(event: Event) -> bool:
    """A call has its result."""
    return isinstance(event, Finished)


def printed(event: Event) -> bool:
    """A command has printed something."""
    return isinstance(event, Output)


def completed(event: Event) -> bool:
    """The task is complete."""
    return isinstance(event, TaskCompleted)


def test_a_call_runs_when_its_block_has_ended(work: Work) -> None:
    """The first result is there before the model has said more."""
    message = Message(
        [
            *block(0, "write_file", path="a", content="a\n"),
            finished,
            *block(1, "edit_file", path="a", old_string="a", new_string="b"),
            *block(2, "read_file", path="a"),
            STOP,
        ]
    )
    results = work.thread.run(message.played(work))
    assert [result.id for result in results] == ["call0", "call1", "call2"]
    assert [result.code for result in results] == [None] * 3
    assert results[2].content == "     1│b"


def test_chunks_of_openai_run_the_same_calls(work: Work) -> None:
    """Another form of the same."""

    async def chunks() -> AsyncIterator[dict[str, Any]]:
        for number in range(2):
            function = {"name": "write_file", "arguments": '{"path": "a", "content": "x"}'}
            call = {"index": number, "id": f"c{number}", "function": function}
            yield {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}

    async def played() -> list[Result]:
        events = [event async for event in work.loop.stream_model(chunks(), "openai")]
        return [event.result for event in events if isinstance(event, Finished)]

    results = work.thread.run(played())
    assert [(result.id, result.code) for result in results] == [("c0", None), ("c1", None)]


def test_the_last_call_waits_for_the_end_of_the_message(work: Work) -> None:
    """`complete_task` runs after a call that the model makes later."""
    message = Message(
        [
            *block(0, "complete_task", summary="done"),
            *block(1, "write_file", path="a", content="a"),
            lambda event: isinstance(event, CallStarted) and event.call.id == "call1",
            STOP,
        ]
    )
    work.thread.run(message.played(work))
    order = [event.call.id for event in message.told if isinstance(event, CallStarted)]
    assert order == ["call1", "call0"]
    assert work.loop.completed == "done"


def test_an_input_that_is_no_json_is_answered(work: Work) -> None:
    """The call has an error result, the others run."""
    faulty = block(0, "write_file")
    faulty[1]["delta"]["partial_json"] = '{"path": "a'
    message = Message([*faulty, *block(1, "write_file", path="b", content=""), STOP])
    first, second = work.thread.run(message.played(work))
    assert (first.id, first.code) == ("call0", Code.INVALID_ARGUMENTS)
    assert "not a JSON object" in str(first.content)
    assert (second.id, second.code) == ("call1", None)


ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ([ERROR], "Overloaded"),
        ([OSError("connection reset")], "connection reset"),
        ([asyncio.CancelledError()], "CancelledError"),
        ([], "ended before the message did"),
        ([block(9, "glob")[0], STOP], "ended within a block"),
    ],
)
def test_a_broken_stream_tells_what_was_done(work: Work, fault: list[Any], reason: str) -> None:
    """Nothing more starts, reads are ended, a running change runs to its end and is told."""
    work.write("pipe-free", "")
    message = Message(
        [
            *block(0, "write_file", path="a", content="a"),
            finished,
            *block(1, "wait"),
            *block(2, "run_command", command="echo begun; until [ -e go ]; do :; done; echo > end"),
            printed,
            *block(3, "write_file", path="b", content="b"),
            *fault,
        ]
    )
    ended = asyncio.Event()

    async def wait(context: Context, given: Any) -> Outcome:
        try:
            await ended.wait()
        finally:
            (work.root / "go").touch()  # only now can the command end
        raise AssertionError

    added(work, "wait", wait, Order.SAFE)
    results = work.thread.run(message.played(work), timeout=60)
    assert [(result.id, result.code) for result in results] == [("call0", None), ("call2", None)]
    assert message.broken.results == tuple(results)
    assert message.broken.unanswered == ("call1", "call3")
    assert reason in str(message.broken)
    assert (work.root / "end").exists() and not (work.root / "b").exists()
    assert work.call("read_file", path="a").code is None


def test_leaving_a_models_stream_early_ends_all(work: Work) -> None:
    """The calls, in the box too, and the reading of the model's events."""
    reading_ended = asyncio.Event()

    async def events() -> AsyncIterator[dict[str, Any]]:
        try:
            for event in block(0, "run_command", command="echo begun; sleep 300.25"):
                yield event
            await asyncio.get_running_loop().create_future()
        finally:
            reading_ended.set()

    async def leave() -> None:
        stream = work.loop.stream_model(events())
        async for event in stream:
            if isinstance(event, Output):
                break
        await stream.aclose()  # type: ignore[attr-defined]
        assert reading_ended.is_set()

    work.thread.run(leave(), timeout=60)
    assert is_still(work, "sleep 300.25")


# ─── all events of a loop ───────────────────────────────────────────────────────────


def test_a_watcher_hears_every_turn(work: Work) -> None:
    """Of `execute`, `turn` and `stream`, with one numbering, until the loop is closed."""

    async def watch() -> list[Event]:
        found = []
        async for event in events:
            found.append(event)
            if isinstance(event, TaskCompleted):
                break
        return found

    events = work.loop.events()
    watching = asyncio.run_coroutine_threadsafe(watch(), work.thread.loop)
    work.call("run_command", command="echo hi")
    work.turn(("read_file", {"path": "x"}), ("read_file", {"path": "y"}))
    streamed = work.events(("complete_task", {"summary": "done"}))
    found = watching.result(30)
    assert [type(event) for event in found if not isinstance(event, Output)] == [
        *[CallStarted, Finished],
        *[CallStarted, CallStarted, Finished, Finished],
        *[CallStarted, TaskCompleted],
    ]
    assert any(isinstance(event, Output) and event.text == "hi\n" for event in found)
    numbers = [event.seq for event in found]
    assert numbers == sorted(set(numbers))
    assert found[-1] in streamed


def test_a_slow_watcher_loses_output_first_and_is_told() -> None:
    """What is dropped is counted; other events go only when there is no output left."""

    async def read() -> list[Event]:
        feed = Feed(most=3)
        for number in range(5):
            feed.put(Output(call_id="1", channel="stdout", text=str(number)))
        for number in range(4):
            feed.put(Warned(message=str(number)))
        feed.close()
        found: list[Event] = []
        while (event := await feed.next()) is not None:
            if (left_out := feed.left_out()) is not None:
                found.append(left_out)
            found.append(event)
        return found

    messages = [event.message for event in asyncio.run(read()) if isinstance(event, Warned)]
    assert messages == ["6 events were left out here: they were not read in time", "1", "2", "3"]
