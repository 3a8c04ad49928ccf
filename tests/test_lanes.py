"""Lanes: which boxes a loop has, what runs in which, who waits, and what is common to them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.catalog import Catalog, LaneEntry, load
from executor.controller import Controller
from executor.errors import AgentLost, Code, ConfigError, SandboxUnavailable, ToolError
from executor.lane import OpenBox
from executor.lanes import Lanes, Outfit, Queue, Terms, lane_of, terms_of
from executor.model import (
    MOUNT,
    Call,
    EgressOptions,
    Event,
    Finished,
    LaneLost,
    LaneOpened,
    Limits,
    LoopSpec,
    Progress,
    Result,
    Secret,
    Warned,
)
from executor.sandbox.container import LABEL_CONTROLLER
from executor.served import Program
from executor.session import Session
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread
from tests.loops import Work, open_work, opener


def with_lanes(**tables: LaneEntry) -> Catalog:
    """The packaged catalog with other lanes; `no_net` is `no-net`."""
    catalog = load()
    lanes: dict[Any, LaneEntry] = dict(catalog.lanes)
    lanes.update((name.replace("_", "-"), entry) for name, entry in tables.items())
    return replace(catalog, lanes=lanes)


APART = with_lanes(net=LaneEntry(pids=200))
"""Commands run in a box of their own."""


def result_of(events: list[Event]) -> Any:
    """The result of the one call whose events these are."""
    (result,) = [event.result for event in events if isinstance(event, Finished)]
    return result


def spec(**given: Any) -> LoopSpec:
    """A specification that opens nothing."""
    return LoopSpec(worktree=".", exec_id="lanes", **given)


def lanes_of(given: LoopSpec, catalog: Catalog) -> list[tuple[str, ...]]:
    """The lanes that share each box."""
    shared: dict[str, list[str]] = {}
    for name, terms in terms_of(given, catalog).items():
        shared.setdefault(terms.lane, []).append(name)
    return [tuple(names) for names in shared.values()]


# ─── which there are ────────────────────────────────────────────────────────────────

HOSTS = EgressOptions(hosts=("files.example.org",))


@pytest.mark.parametrize(
    ("given", "catalog", "boxes"),
    [
        (spec(), load(), [("no-net", "net", "heavy")]),
        (spec(image="heavy"), load(), [("no-net", "net", "heavy")]),
        (spec(egress=HOSTS), load(), [("no-net",), ("net", "heavy")]),
        (
            spec(egress=EgressOptions(setup_hosts=("files.example.org",)), setup="true"),
            load(),
            [("no-net", "net", "heavy")],
        ),
        (spec(), with_lanes(heavy=LaneEntry("broker", "heavy")), [("no-net", "net"), ("heavy",)]),
        (
            spec(image="heavy"),
            with_lanes(heavy=LaneEntry(image="heavy")),
            [("no-net", "net", "heavy")],
        ),
        (
            spec(egress=HOSTS),
            with_lanes(heavy=LaneEntry("broker", memory="8g")),
            [("no-net",), ("net",), ("heavy",)],
        ),
        (spec(), with_lanes(heavy=LaneEntry("bridge")), [("no-net", "net"), ("heavy",)]),
        (spec(), with_lanes(net=LaneEntry(slots=2, queue=3)), [("no-net", "net", "heavy")]),
    ],
)
def test_lanes_whose_boxes_would_be_alike_share_one(
    given: LoopSpec, catalog: Catalog, boxes: list[tuple[str, ...]]
) -> None:
    """Image, runtime, limits and the network as it really is make a box; places don't."""
    assert lanes_of(given, catalog) == boxes


def test_a_lane_overrides_what_it_names_and_nothing_else() -> None:
    """The loop's own image and limits are those of a lane that says nothing of them."""
    catalog = with_lanes(heavy=LaneEntry("broker", memory="8g", cpus=4.0))
    given = spec(image="debian:12-slim", runtime="runsc", limits=Limits(memory="1g", pids=99))
    heavy = terms_of(given, catalog)["heavy"]
    assert (heavy.limits.memory, heavy.limits.cpus, heavy.limits.pids) == ("8g", 4.0, 99)
    assert (heavy.image, heavy.runtime) == ("debian:12-slim", "runsc")
    made = heavy.specified(given)
    assert (made.limits, made.image, made.exec_id) == (heavy.limits, heavy.image, "lanes")


def test_limits_that_no_box_can_have_are_named_with_their_lane() -> None:
    """The sentence says which lane; a fault of the loop's own limits is not said again."""
    with pytest.raises(ConfigError) as caught:
        terms_of(spec(limits=Limits(pids=1)), with_lanes(heavy=LaneEntry(memory="1m")))
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["lanes.heavy.memory"]


@pytest.mark.parametrize(
    ("given", "lane", "has_proxy"),
    [
        (spec(egress=HOSTS), "net", True),
        (spec(egress=HOSTS), "no-net", False),
        (spec(egress=HOSTS, setup="true"), "no-net", True),
        (spec(setup="true"), "no-net", False),
        (spec(egress=EgressOptions(setup_hosts=("a.example",)), setup="true"), "net", True),
    ],
)
def test_a_box_has_a_proxy_where_something_may_be_reached(
    given: LoopSpec, lane: str, has_proxy: bool
) -> None:
    """Lanes without a network have one for the set-up alone, if that may reach anything."""
    assert terms_of(given, load())[lane].has_proxy(given) is has_proxy


def test_the_isolated_command_has_no_network_whatever_the_catalog_says(tmp_path: Path) -> None:
    """Its lane is `no-net`, and other tools' lane is what the catalog says."""
    catalog = load()
    moved = replace(catalog.tools["run_command_isolated"], lane="net")
    catalog = replace(catalog, tools={**catalog.tools, "run_command_isolated": moved})
    with open_work("local", tmp_path, catalog=catalog) as work:
        tools = {tool.canonical: lane_of(tool) for tool in work.loop.registry.all()}
    assert tools["run_command_isolated"] == tools["read_file"] == "no-net"
    assert tools["run_command"] == "net"


def test_calls_of_a_lane_know_whether_its_box_is_bridged(tmp_path: Path) -> None:
    """What the model is told of the box's network depends on it."""
    with open_work("local", tmp_path, catalog=with_lanes(heavy=LaneEntry("bridge"))) as work:
        around = work.loop._surroundings
        assert [around.in_lane(lane).is_bridged for lane in ("no-net", "net", "heavy")] == [
            *(False, False, True)
        ]


# ─── who waits ──────────────────────────────────────────────────────────────────────


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


class Line:
    """Calls that want a place of one lane, and hold it until they are let go."""

    def __init__(self, slots: int, most: int = 100) -> None:
        self.queue = Queue("heavy", slots, most)
        self.running: list[str] = []
        self.said: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def call(self, name: str) -> asyncio.Task[None]:
        """A call that comes now."""
        self.gates[name] = asyncio.Event()
        return asyncio.create_task(self._run(name))

    async def _run(self, name: str) -> None:
        async with self.queue.place(self.said.append):
            self.running.append(name)
            await self.gates[name].wait()
            self.running.remove(name)


def test_calls_run_in_the_order_of_their_coming_as_places_are_free() -> None:
    """One at a time, where there is one place; those that wait say how many are before them."""

    async def play() -> None:
        line = Line(1)
        tasks = [line.call(name) for name in "abc"]
        await settle()
        assert line.running == ["a"]
        assert line.said == [
            "waiting for a place in lane heavy, 0 before",
            "waiting for a place in lane heavy, 1 before",
        ]
        for name, following in (("a", ["b"]), ("b", ["c"]), ("c", [])):
            line.gates[name].set()
            await settle()
            assert line.running == following
        await asyncio.gather(*tasks)
        again = line.call("d")
        await settle()
        assert line.running == ["d"] and len(line.said) == 2
        line.gates["d"].set()
        await again

    asyncio.run(play())


def test_a_call_that_is_cancelled_leaves_the_queue() -> None:
    """Whoever came after it moves up, also when its turn came in the same moment."""

    async def play() -> None:
        line = Line(1)
        first, second, third = [line.call(name) for name in "abc"]
        await settle()
        second.cancel()
        line.gates["a"].set()
        await settle()
        assert line.running == ["c"] and second.cancelled() and first.done()
        fourth, fifth = line.call("d"), line.call("e")
        await settle()
        line.gates["c"].set()
        while not third.done():
            await asyncio.sleep(0)
        fourth.cancel()  # the place is its own by now
        await settle()
        assert line.running == ["e"]
        line.gates["e"].set()
        await fifth
        assert line.queue._free == 1

    asyncio.run(play())


def test_a_call_that_is_cancelled_as_a_place_becomes_free_is_passed_over() -> None:
    """Whoever held the place gives it to the next, and nothing fails or is lost."""

    async def play() -> None:
        line = Line(1)
        first, second, third = [line.call(name) for name in "abc"]
        await settle()
        line.gates["a"].set()
        second.cancel()  # the first one ends before the second knows of it
        await asyncio.wait({first, second})
        assert first.exception() is None and second.cancelled()
        await settle()
        assert line.running == ["c"]
        line.gates["c"].set()
        await third
        assert line.queue._free == 1

    asyncio.run(play())


def test_more_than_may_wait_are_refused() -> None:
    """LIMIT, with how many run and wait, and what to do."""

    async def play() -> str:
        line = Line(1, 2)
        tasks = [line.call(name) for name in "abc"]
        await settle()
        with pytest.raises(ToolError) as caught:
            async with line.queue.place(line.said.append):
                pass
        assert caught.value.code is Code.LIMIT
        for name in "abc":
            line.gates[name].set()
        await asyncio.gather(*tasks)
        return str(caught.value)

    said = asyncio.run(play())
    assert "lane heavy is full: 1 of its calls run and 2 wait" in said and "not run" in said


def test_a_call_of_a_loop_waits_for_its_lane_and_says_so(tmp_path: Path) -> None:
    """Two commands at once in a lane of one place: one after the other; more are refused."""
    catalog = with_lanes(net=LaneEntry("broker", slots=1, queue=1))
    with open_work("local", tmp_path, catalog=catalog) as work:
        results, events = work.thread.run(_three_at_once(work))
    ended = [result for result in results if not result.is_error]
    refused = [result for result in results if result.is_error]
    assert len(ended) == 2 and [result.code for result in refused] == [Code.LIMIT]
    assert {result.lane for result in results} == {"no-net"}
    said = [event.message for event in events if isinstance(event, Progress)]
    assert said == ["waiting for a place in lane net, 0 before"]
    # The second began when the first had ended.
    lines = (work.root / "log").read_text().split()
    assert lines == ["in", "out", "in", "out"]


async def _three_at_once(work: Work) -> tuple[list[Result], list[Any]]:
    line = "echo in >> log; sleep 0.3; echo out >> log"
    calls = [work.make("run_command", {"command": line}) for _ in range(3)]
    watching = work.loop.events()
    seen: list[Any] = []

    async def watch() -> None:
        async for event in watching:
            seen.append(event)

    watcher = asyncio.create_task(watch())
    results = await asyncio.gather(*(work.loop.execute(call) for call in calls))
    watcher.cancel()
    await asyncio.wait({watcher})
    return results, seen


# ─── boxes that are opened, replaced and closed ─────────────────────────────────────


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Work]:
    """A loop whose commands have a box of their own."""
    with open_work("local", tmp_path, catalog=APART) as work:
        yield work


def test_a_lane_opens_its_box_on_first_use_and_says_so(apart: Work) -> None:
    """Progress, an event with the lane's name, one notice a loop, and the lane in each result."""
    assert len(apart.opened) == 1
    read = apart.call("write_file", path="a.txt", content="x\n")
    assert (len(apart.opened), read.lane) == (1, "no-net")
    events = apart.events(("run_command", {"command": "cat a.txt"}))
    assert len(apart.opened) == 2
    opened = [event.lane for event in events if isinstance(event, LaneOpened)]
    assert opened[-1:] == ["net"] and opened.count("net") == 1
    assert "opening the sandbox of lane net" in [
        event.message for event in events if isinstance(event, Progress)
    ]
    first = result_of(events)
    assert first.lane == first.structured["lane"] == "net"
    assert "lane net runs" in first.content and "run_command" in first.details["lanes"]["net"]
    assert "/tmp, the home directory and processes are not" in first.content
    second = apart.call("run_command", command="echo y")
    assert (second.content, second.details) == ("y\n", None)
    isolated: Any = apart.call("run_command_isolated", command="echo z")
    assert isolated.lane == isolated.structured["lane"] == "no-net" and len(apart.opened) == 2


def test_a_tool_that_is_not_there_has_no_lane(apart: Work) -> None:
    """Null, and nothing is opened for it."""
    assert apart.call("nope").lane is None
    assert len(apart.opened) == 1


def test_there_is_one_working_directory(apart: Work) -> None:
    """Where a command of one lane ended, the next one begins, in whichever lane it is."""
    apart.call("run_command", command="mkdir -p d/e && cd d")
    assert apart.call("run_command_isolated", command="pwd && cd e").content == f"{apart.root}/d\n"
    assert apart.call("run_command", command="pwd").content == f"{apart.root}/d/e\n"
    assert apart.call("run_command_isolated", command="pwd").content == f"{apart.root}/d/e\n"
    assert apart.loop.session.cwd == f"{apart.root}/d/e"


def _lose(work: Work, number: int) -> None:
    async def lose() -> None:
        box: Any = work.opened[number]
        box._connection.lose(AgentLost("it was killed"))

    work.thread.run(lose())


def test_a_lost_box_is_replaced_and_the_others_stay(apart: Work) -> None:
    """The result says whose it was; what runs in the other lane goes on, and so does the cwd."""
    apart.call("write_file", path="a.txt", content="x\n")
    apart.call("run_command", command="mkdir d && cd d")
    _lose(apart, 1)
    assert apart.call("read_file", path="a.txt").details is None
    events = apart.events(("run_command", {"command": "pwd"}))
    result = result_of(events)
    assert [event.lane for event in events if isinstance(event, LaneLost)] == ["net"]
    assert result.content.startswith(f"{apart.root}/d\n")
    assert "the sandbox of lane net was lost (it was killed)" in result.content
    assert "working directory" not in result.content
    assert result.details["sandbox_lost"] == "it was killed"
    assert len(apart.opened) == 3 and apart.opened[0].error is None
    _lose(apart, 0)
    assert "of lane no-net was lost" in str(apart.call("read_file", path="a.txt").content)


def test_a_file_that_another_lane_changed_is_not_overwritten(apart: Work) -> None:
    """What an edit rests on is the file's content, wherever it was changed."""
    apart.call("write_file", path="a.txt", content="one\n")
    apart.call("run_command", command="echo two > a.txt")
    edit = {"path": "a.txt", "old_string": "two", "new_string": "three"}
    refused = apart.call("edit_file", **edit)
    assert refused.is_error and refused.code is not Code.INVALID_ARGUMENTS, refused
    apart.call("read_file", path="a.txt")
    assert apart.call("edit_file", **edit).is_error is False


@pytest.mark.parametrize(
    ("tool", "command", "writes_all"),
    [
        ("run_command", "echo x > /tmp/link", True),
        ("run_command", "echo x > a.txt", False),
        ("run_command", "cat /etc/hosts 2> /dev/null > a.txt", False),
        ("run_command_isolated", "echo x > /tmp/link", False),
    ],
)
def test_where_a_path_beside_the_worktree_leads_is_unknown_in_other_lanes(
    apart: Work, tool: str, command: str, writes_all: bool
) -> None:
    """Turns look at `no-net`; what has the same name in the other box may be a link to a file."""
    apart.call("run_command", command="true")  # its shell is known
    apart.loop.session.cwd = MOUNT  # as in a container
    intent = apart.loop._foreseen(apart.make(tool, {"command": command}), "turn-1")
    assert intent.writes_all is writes_all and intent.paths


def test_a_background_task_is_read_and_ended_in_its_own_lane(apart: Work) -> None:
    """`task_output` and `kill_shell` are of `no-net`; what they ask for is of `net`."""
    made: Any = apart.call("run_command", command="echo here; sleep 60", run_in_background=True)
    assert made.structured["lane"] == "net"
    task = made.structured["task_id"]
    read: Any = apart.call("task_output", task_id=task, block=False)
    assert read.lane == "no-net" and read.structured["task"]["status"] == "running"
    assert apart.call("kill_shell", shell_id=task).is_error is False
    ended: Any = apart.call("task_output", task_id=task)
    assert ended.structured["task"]["output"] == "here\n"
    assert ended.structured["task"]["status"] == "killed"


def test_what_a_call_left_running_is_ended_where_it_runs(apart: Work) -> None:
    """Its id has the lane's name in it; other numbers and lanes are nobody's."""
    apart.call("run_command", command="sleep 61 >/dev/null 2>&1 &")
    (left,) = apart.thread.run(apart.loop.tasks())
    assert left.id.startswith("call_net_") and left.kind == "process"
    for wrong in (left.id.replace("net", "heavy"), left.id.replace("net_", ""), "call_net_"):
        assert apart.call("kill_shell", shell_id=wrong).code is Code.NOT_FOUND
    assert apart.call("kill_shell", shell_id=left.id).is_error is False
    assert apart.thread.run(apart.loop.tasks()) == ()


def test_an_unused_lane_is_given_back_and_the_other_stays(tmp_path: Path) -> None:
    """A background task of `net` keeps its box; `no-net`, which nobody uses, is opened anew."""
    limits = replace(LIMITS, idle_seconds=0.3)
    with open_work("local", tmp_path, limits, catalog=APART) as work:
        work.call("run_command", command="sleep 60", run_in_background=True)
        work.thread.run(_until(lambda: not work.loop._lane.is_open))
        assert work.loop._lanes.boxes["net"].is_open
        again = work.call("glob", pattern="*")
        assert "the sandbox of lane no-net is a new one" in str(again.content)
        assert len(work.opened) == 3


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.02)


class ScriptedBox:
    """A box that answers what opening one asks for."""

    name = "scripted"
    error = None

    def __init__(self, shell: str, notices: tuple[str, ...] = ()) -> None:
        self.shell = shell
        self.capabilities = {"notices": notices}
        self.is_being_set_up = asyncio.Event()

    async def request(self, op: str, *_: Any, **__: Any) -> Any:
        """The shell's name; a set-up, which does not end."""
        if op == "run":
            self.is_being_set_up.set()
            await asyncio.get_running_loop().create_future()
        assert op == "shell"
        return self

    @property
    def value(self) -> dict[str, Any]:
        """The answer."""
        return {"shell": self.shell, "programs": []}

    async def mourned(self) -> None:
        """It lives."""

    async def dial(self, port: int) -> Any:
        """Nothing listens."""
        raise ToolError(Code.NETWORK_ERROR, f"nothing listens on port {port}")

    async def serve(self, program: Program) -> Any:
        """There is no program."""
        raise ToolError(Code.NOT_FOUND, f"{program.argv[0]}: there is no such program")


class Boxes:
    """Opens scripted boxes; closing one takes until all are being closed."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.closing: list[str] = []
        self.closed: list[str] = []
        self.all_closing = asyncio.Event()

    def of(self, terms: Terms) -> Any:
        """The opener of a lane."""

        @asynccontextmanager
        async def opened(_: LoopSpec) -> AsyncIterator[OpenBox]:
            box: Any = ScriptedBox({"net": "dash"}.get(terms.lane, "bash"))
            yield box
            self.closing.append(terms.lane)
            if len(self.closing) == 3:
                self.all_closing.set()
            await self.all_closing.wait()
            self.closed.append(terms.lane)
            if terms.lane == self.fails:
                raise RuntimeError("it could not be removed")

        return opened


THREE = with_lanes(net=LaneEntry(pids=200), heavy=LaneEntry(pids=300))


@pytest.mark.parametrize("how", ["plainly", "cancelled", "failing"])
def test_all_lanes_are_closed_at_once_whatever_happens(how: str) -> None:
    """Each close waits for the others to have begun; a failure or a cancellation stops none."""

    async def play() -> None:
        boxes, session = Boxes("net" if how == "failing" else ""), Session()
        lanes = Lanes(spec(), THREE, Outfit(boxes.of), session, lambda event: None)
        for lane in lanes.boxes.values():
            await lane.open()
        assert session.shells == {"no-net": "bash", "net": "dash", "heavy": "bash"}
        ending = asyncio.create_task(lanes.close())
        if how == "cancelled":
            await asyncio.sleep(0)
            ending.cancel()
        async with asyncio.timeout(5):
            (end,) = await asyncio.gather(ending, return_exceptions=True)
        assert sorted(boxes.closed) == ["heavy", "net", "no-net"]
        kinds = {"plainly": type(None), "cancelled": asyncio.CancelledError}
        assert isinstance(end, kinds.get(how, RuntimeError))

    asyncio.run(play())


def _of_two(boxes: dict[str, Any]) -> tuple[Outfit, Catalog]:
    """Opens these boxes, of `no-net` and of `net`."""

    @asynccontextmanager
    async def opened(lane: str) -> AsyncIterator[OpenBox]:
        yield boxes[lane]

    return Outfit(lambda terms: lambda _: opened(terms.lane)), APART


def test_closing_a_loop_ends_a_set_up_that_goes_on() -> None:
    """Nobody waits for its end; the call that opened the box is told why it has none."""

    async def play() -> str:
        box = ScriptedBox("bash")
        outfit, catalog = _of_two({"net": box})
        lanes = Lanes(spec(setup="sleep 600"), catalog, outfit, Session(), lambda event: None)
        opening = asyncio.create_task(lanes.boxes["net"].open())
        async with asyncio.timeout(20):
            await box.is_being_set_up.wait()
            await lanes.close()
        assert opening.done() and asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(SandboxUnavailable) as caught:
            await opening
        return str(caught.value)

    assert "before the set-up had ended" in asyncio.run(play())


def test_a_notice_of_the_first_box_is_not_repeated_for_the_others() -> None:
    """What is particular to a lane is told with its name."""

    async def play() -> list[str]:
        told: list[Event] = []
        outfit, catalog = _of_two(
            {
                "no-net": ScriptedBox("bash", ("of all",)),
                "net": ScriptedBox("bash", ("of all", "of one")),
            }
        )
        lanes = Lanes(spec(), catalog, outfit, Session(), told.append)
        for lane in lanes.boxes.values():
            await lane.open()
        await lanes.close()
        return [event.message for event in told if isinstance(event, Warned)]

    assert asyncio.run(play()) == ["lane net: of one"]


def test_nothing_listens_in_a_lane_that_is_not_open() -> None:
    """The error names the lane (decisions, row 78); no box is opened to find that out."""

    async def play() -> list[str]:
        boxes = Boxes()
        lanes = Lanes(spec(), THREE, Outfit(boxes.of), Session(), lambda event: None)
        said: list[str] = []
        for is_open in (False, True):
            if is_open:
                await lanes.boxes["net"].open()
            with pytest.raises(ToolError) as caught:
                await lanes.dial("net", 8131)
            said.append(str(caught.value))
            assert caught.value.code is Code.NETWORK_ERROR
        boxes.all_closing.set()
        await lanes.close()
        assert boxes.closed == ["net"]
        return said

    closed, opened = asyncio.run(play())
    assert "port 8131 in the sandbox of lane net, which is not open" in closed
    assert opened == "nothing listens on port 8131 (in the sandbox of lane net)"


def test_a_set_up_runs_in_each_new_box_and_a_failed_one_opens_none(tmp_path: Path) -> None:
    """Of every lane and of what takes a lost one's place; a failure is the call's error."""
    line = "test ! -e stop && echo set >> log"

    def change(given: LoopSpec) -> LoopSpec:
        return replace(given, setup=line)

    with open_work("local", tmp_path, catalog=APART, change=change) as work:
        log = work.root / "log"
        assert log.read_text() == "set\n"
        work.call("run_command", command="true")
        assert log.read_text() == "set\n" * 2
        _lose(work, 1)
        work.call("run_command", command="true")
        assert log.read_text() == "set\n" * 3
        _lose(work, 2)
        work.write("stop", "")
        failed = work.call("run_command", command="echo ran >> log")
        assert failed.is_error and "exit code 1" in str(failed.content)
        assert (failed.lane, log.read_text()) == ("net", "set\n" * 3)
        assert work.call("read_file", path="log").is_error is False


def test_boxes_have_placeholders_and_the_loop_has_the_secret(tmp_path: Path) -> None:
    """Every lane finds the same placeholder; the value is in none."""
    secret = Secret("TOKEN", "a-value-of-some-length", ("files.example.org",))
    seen: list[str] = []
    root = make_worktree(tmp_path / "worktree")
    inner = opener("local", tmp_path)

    def recording(given: LoopSpec) -> Any:
        seen.append(given.environment["TOKEN"])
        return inner(given)

    given = LoopSpec(worktree=root, limits=LIMITS, secrets=(secret,), egress=HOSTS)
    with LoopThread() as thread:
        settings = replace(Settings.load(), state_directory=tmp_path / "state")
        controller = thread.enter(Controller(settings, load(), opener=recording))
        loop = thread.enter(controller.open(given))
        result = thread.run(loop.execute(Call("1", "run_command", {"command": "true"})))
        assert result.lane == "net" and loop._surroundings.egress is not None
    assert len(seen) == 2 and len(set(seen)) == 1
    assert seen[0].startswith("executor-secret-") and secret.value not in seen[0]


def test_what_a_loop_may_reach_is_changed_while_it_runs(tmp_path: Path) -> None:
    """Tools describe what holds; a faulty list changes nothing, and no box gets a way out later."""

    def reaching(given: LoopSpec) -> LoopSpec:
        return replace(given, egress=HOSTS, toolset="claude-code")

    with open_work("local", tmp_path / "a", change=reaching) as work:
        tool = work.loop.registry.get("Bash")
        assert tool is not None
        assert f"reaches {HOSTS.hosts[0]} and nothing else" in work.loop.description(tool)
        work.loop.change_egress(["other.example:8443"])
        with pytest.raises(ConfigError, match="every host there is"):
            work.loop.change_egress(["*", "third.example"])
        assert "reaches other.example:8443 and nothing else" in work.loop.description(tool)
        work.loop.change_egress([])
        assert "reaches" not in work.loop.description(tool)
    with open_work("local", tmp_path / "b") as work:
        with pytest.raises(ConfigError, match="open it with at least one"):
            work.loop.change_egress(["other.example"])


# ─── real boxes ─────────────────────────────────────────────────────────────────────


def test_two_real_boxes_over_one_worktree(tmp_path: Path) -> None:
    """Limits differ; files, spilled results and tasks are shared; one is replaced; none stays."""
    catalog = with_lanes(net=LaneEntry(memory="300m"))
    with open_docker_work(tmp_path, catalog) as work:
        limit = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"
        found = {
            tool: str(work.call(tool, command=f"({limit}) 2>/dev/null; true").content).split("\n")[
                0
            ]
            for tool in ("run_command", "run_command_isolated")
        }
        assert found["run_command"] == str(300 << 20) != found["run_command_isolated"]
        names = {lane.name for lane in work.loop._lanes.boxes.values()}
        assert len(names) == 2

        work.call("write_file", path="a.txt", content="x\n")
        assert work.call("run_command", command="cat a.txt").content == "x\n"
        work.call("run_command", command="echo t > /tmp/t")
        assert work.call("run_command_isolated", command="cat /tmp/t").is_error
        long = work.call("run_command", command="seq 100000")
        assert long.spill and work.call("read_file", path=long.spill, limit=3).is_error is False

        task: Any = work.call("run_command", command="seq 60000; sleep 60", run_in_background=True)
        task_id = task.structured["task_id"]
        read: Any = work.call("task_output", task_id=task_id, block=False)
        assert read.structured["task"]["status"] == "running" and read.is_error is False

        box = work.loop._lanes.boxes["net"].name
        subprocess.run(["docker", "kill", box], check=True, capture_output=True)
        work.thread.run(_until(lambda: not work.loop._lanes.boxes["net"].is_open))
        assert work.call("read_file", path="a.txt").is_error is False
        after = work.call("run_command", command="cat a.txt")
        assert str(after.content).startswith("x\n") and "lane net was lost" in str(after.content)
        lost: Any = work.call("task_output", task_id=task_id)
        assert lost.structured["task"]["status"] == "lost"
        assert work.loop._lane.replaced == 0
        controller = _controller_of(work.loop._lane.name)
        assert len(_containers(controller)) == 2
    assert _containers(controller) == []


@contextmanager
def open_docker_work(directory: Path, catalog: Catalog) -> Iterator[Work]:
    """A loop over containers, opened as the product opens them."""
    root = make_worktree(directory / "worktree")
    with LoopThread() as thread:
        settings = replace(Settings.load(), state_directory=directory / "state")
        controller = thread.enter(Controller(settings, catalog))
        loop = thread.enter(controller.open(LoopSpec(worktree=root, limits=LIMITS)))
        yield Work(thread, loop, root, "docker")


def _controller_of(name: str) -> str:
    form = f'{{{{index .Config.Labels "{LABEL_CONTROLLER}"}}}}'
    done = subprocess.run(
        ["docker", "inspect", "-f", form, name], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _containers(controller: str) -> list[str]:
    chosen = f"label={LABEL_CONTROLLER}={controller}"
    done = subprocess.run(
        ["docker", "ps", "-aq", "--filter", chosen], check=True, capture_output=True, text=True
    )
    return done.stdout.split()
