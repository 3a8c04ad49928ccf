"""Loops: opening, losing a box and going on, ending in time, cancelling, leaving nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from executor.controller import Controller
from executor.errors import Code, ConfigError, ProtocolError, SandboxUnavailable
from executor.lane import OpenBox, Opener
from executor.model import Call, LaneLost, LaneOpened, Limits, LoopSpec, Result
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.driver import ARGUMENTS, LoopThread
from tests.loops import Work, noted, open_work, opener
from tests.scripted import open_scripted_box


@pytest.fixture(params=["local", "docker"])
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Work]:
    """A loop of its own for each test, over each transport."""
    with open_work(request.param, tmp_path) as opened:
        yield opened


def lose_box(work: Work) -> None:
    """End the open box from outside, and wait until that is known."""
    box = work.opened[-1]
    work.thread.loop.call_soon_threadsafe(box._connection.closed, "ended from outside")  # type: ignore[attr-defined]

    async def known() -> None:
        async with asyncio.timeout(10):
            while box.error is None:
                await asyncio.sleep(0)

    work.thread.run(known())


def test_a_lost_box_is_replaced_by_the_next_call(work: Work) -> None:
    """The next call runs in a new box on the same files and says what is gone."""
    work.call("run_command", command="mkdir -p d && cd d && echo kept > file")
    lose_box(work)
    result = work.call("run_command", command="cat d/file")
    assert str(result.content).startswith("kept\n[the sandbox was lost (ended from outside")
    assert "processes, /tmp and the working directory are gone" in str(result.content)
    assert result.details is not None and "ended from outside" in result.details["sandbox_lost"]
    assert len(work.opened) == 2
    assert work.call("run_command", command="cat d/file").content == "kept\n"


def test_calls_at_once_open_one_new_box(work: Work) -> None:
    """Calls that find the box lost share its replacement, and one of them tells of it."""
    lose_box(work)
    results = work.turn(*[("list_directory", {})] * 5)
    assert [result.code for result in results] == [None] * 5
    assert len(work.opened) == 2
    assert [result.details for result in results].count(None) == 4


def test_a_call_in_flight_ends_when_the_box_is_lost(work: Work) -> None:
    """The running call gets SANDBOX_LOST with the cause; the loop goes on."""
    call = Call("sleep", "run_command", {"command": "echo started > mark; sleep 100"})
    future = asyncio.run_coroutine_threadsafe(work.loop.execute(call), work.thread.loop)
    wait_for(work.root / "mark")
    lose_box(work)
    result = future.result(30)
    assert (result.code, result.is_error) == (Code.SANDBOX_LOST, True)
    assert "ended from outside" in str(result.content)
    assert "the next call opens a new sandbox on the same worktree" in str(result.content)
    assert result.details is not None and "ended from outside" in result.details["sandbox_lost"]
    assert work.call("run_command", command="cat mark").code is None


def test_a_loss_is_told_once_and_to_the_call_that_has_the_new_box(tmp_path: Path) -> None:
    """A call that finds no engine does not use up the notice; one after the next has none."""
    inner = opener("local", tmp_path)
    is_there = [True]

    @asynccontextmanager
    async def sometimes(spec: LoopSpec) -> AsyncIterator[OpenBox]:
        if not is_there[0]:
            raise SandboxUnavailable("no engine today")
        async with inner(spec) as box:
            yield box

    with open_loop(tmp_path, sometimes) as work:
        lose_box(work)
        is_there[0] = False
        refused = work.call("run_command", command="true")
        assert (refused.code, refused.content) == (Code.SANDBOX_UNAVAILABLE, "no engine today")
        is_there[0] = True
        assert "ended from outside" in str(work.call("run_command", command="true").content)
        assert work.call("run_command", command="echo").content == "\n"


@contextmanager
def open_loop(directory: Path, inner: Opener, limits: Limits = LIMITS) -> Iterator[Work]:
    """A loop whose boxes this opener opens."""
    root, opened = make_worktree(directory / "worktree"), list[OpenBox]()
    with LoopThread() as thread:
        controller = thread.enter(Controller(opener=noted(opened, inner)))
        loop = thread.enter(controller.open(LoopSpec(worktree=root, limits=limits)))
        yield Work(thread, loop, root, "local", opened)


# ─── a box that nobody uses ─────────────────────────────────────────────────────────

IDLE = 0.3
GIVEN_BACK = "the box was given back after 0.3 s without a call"


class Watched:
    """Opens boxes, and says when one has been given back.

    Attributes:
        closed: set when the last box that was opened is closed.
    """

    def __init__(self, inner: Opener) -> None:
        self._inner = inner
        self.closed = threading.Event()
        self.leave = asyncio.Event()
        self.leave.set()

    @asynccontextmanager
    async def open(self, spec: LoopSpec) -> AsyncIterator[OpenBox]:
        """A box; closing it takes until `leave` is set."""
        async with self._inner(spec) as box:
            self.closed.clear()
            yield box
            self.closed.set()
            await self.leave.wait()


def test_an_idle_box_is_given_back_and_the_next_call_is_told(tmp_path: Path) -> None:
    """Statement M6: opened and never used, it goes by itself; a call opens a new one, which
    begins at the root and says why; events tell of both, with a cause that is no error."""
    watched = Watched(opener("local", tmp_path))
    with open_loop(tmp_path, watched.open, Limits(idle_seconds=IDLE)) as work:
        assert watched.closed.wait(20)
        work.call("run_command", command="mkdir -p d && cd d && echo kept > f")
        assert watched.closed.wait(20)
        events = work.events(("run_command", {"command": "pwd; cat d/f"}))
        result = events[-1].result  # type: ignore[union-attr]
        assert result.content == (
            f"{work.root}\nkept\n[the sandbox is a new one ({GIVEN_BACK}): processes, /tmp and "
            "the working directory are gone, files in /workspace are intact]"
        )
        assert (result.is_error, result.details) == (False, {"sandbox_given_back": GIVEN_BACK})
        lanes = [event for event in events if isinstance(event, LaneLost | LaneOpened)]
        kinds = [type(event).__name__ for event in lanes]
        assert kinds == ["LaneOpened", *["LaneLost", "LaneOpened"] * 2]
        assert {event.cause for event in lanes if isinstance(event, LaneLost)} == {GIVEN_BACK}
        assert len(work.opened) == 3
    assert [box.error is not None for box in work.opened] == [True] * 3


def test_a_call_counts_as_use_for_as_long_as_it_runs(tmp_path: Path) -> None:
    """Statement M7: a command longer than the idle time keeps its box, and the time begins
    anew at its end; one of two that ends earlier takes nothing from the other."""
    watched = Watched(opener("local", tmp_path))
    with open_loop(tmp_path, watched.open, Limits(idle_seconds=IDLE)) as work:
        sleep = asyncio.run_coroutine_threadsafe(
            work.loop.execute(Call("s", "run_command", {"command": "sleep 1.2; echo done"})),
            work.thread.loop,
        )
        short = work.call("run_command", command="true")
        result = sleep.result(20)
        assert (result.content, result.details, short.details) == ("done\n", None, None)
        assert len(work.opened) == 1
        assert watched.closed.wait(20)


def test_a_call_that_comes_while_a_box_is_given_back_waits_for_a_new_one(tmp_path: Path) -> None:
    """Statement M6: nothing is sent to a box that is being removed."""
    watched = Watched(opener("local", tmp_path))
    with open_loop(tmp_path, watched.open, Limits(idle_seconds=IDLE)) as work:
        work.thread.loop.call_soon_threadsafe(watched.leave.clear)
        assert watched.closed.wait(20)
        call = Call("1", "run_command", {"command": "echo hi"})
        future = asyncio.run_coroutine_threadsafe(work.loop.execute(call), work.thread.loop)
        with pytest.raises(TimeoutError):
            future.result(0.2)
        work.thread.loop.call_soon_threadsafe(watched.leave.set)
        assert str(future.result(20).content).startswith("hi\n[the sandbox is a new one")
        assert len(work.opened) == 2


def test_closing_a_loop_while_its_box_is_given_back_waits_for_that(tmp_path: Path) -> None:
    """Statement M6: the end of the loop and the end of its idle box do not get in each
    other's way."""
    watched = Watched(opener("local", tmp_path))
    with open_loop(tmp_path, watched.open, Limits(idle_seconds=IDLE)) as work:
        work.thread.loop.call_soon_threadsafe(watched.leave.clear)
        assert watched.closed.wait(20)
        work.thread.loop.call_later(0.2, watched.leave.set)
    assert [box.error is not None for box in work.opened] == [True]


def test_without_an_idle_time_a_box_is_kept(work: Work) -> None:
    """Nothing is given back unless it was asked for: there is not even a timer."""
    work.call("run_command", command="true")
    assert (work.loop._lane._idle, len(work.opened)) == (None, 1)


def test_what_was_read_is_known_after_a_loss(work: Work) -> None:
    """Files are the same, so a reading before the loss still counts."""
    work.call("write_file", path="a.txt", content="one\n")
    lose_box(work)
    edit = work.call("edit_file", path="a.txt", old_string="one", new_string="two")
    assert edit.code is None, edit.content
    assert (work.root / "a.txt").read_text() == "two\n"


@pytest.mark.parametrize("read", [["real", "link"], ["real"], ["link"]])
@pytest.mark.parametrize("edited", [["link", "real"], ["real", "link", "real"]])
def test_names_of_one_file_share_one_reading(
    work: Work, read: list[str], edited: list[str]
) -> None:
    """What is read by one name may be changed by another, and then by the first again."""
    work.write("real", "0\n")
    (work.root / "link").symlink_to("real")
    for name in read:
        assert work.call("read_file", path=name).code is None
    for number, name in enumerate(edited):
        result = work.call(
            "edit_file", path=name, old_string=str(number), new_string=str(number + 1)
        )
        assert result.code is None, result.content
    assert (work.root / "real").read_text() == f"{len(edited)}\n"
    assert (work.root / "link").is_symlink()


def test_a_file_written_by_one_name_is_known_by_another(work: Work) -> None:
    """Through a linked directory it is the same file, for edits and for overwriting."""
    work.call("write_file", path="dir/f", content="one\n")
    (work.root / "dl").symlink_to("dir")
    edit = work.call("edit_file", path="dl/f", old_string="one", new_string="two")
    assert edit.code is None, edit.content
    over = work.call("write_file", path="dir/f", content="three\n")
    assert over.code is None, over.content
    assert (work.root / "dir/f").read_text() == "three\n"


def test_a_change_from_outside_is_found_by_every_name(work: Work) -> None:
    """A shared reading does not entitle to change what was not seen."""
    work.write("real", "one\n")
    (work.root / "link").symlink_to("real")
    work.call("read_file", path="real")
    work.write("real", "one more\n")
    for name in ("link", "real"):
        result = work.call("edit_file", path=name, old_string="one", new_string="two")
        assert result.code is Code.CONFLICT
    assert (work.root / "real").read_text() == "one more\n"


def test_the_next_iteration_forgets_what_was_read(work: Work) -> None:
    """A file must be read again then; before, nothing is forgotten by itself."""
    work.call("write_file", path="a.txt", content="one\n")
    work.thread.run(work.loop.next_iteration())
    edit = {"path": "a.txt", "old_string": "one", "new_string": "two"}
    assert work.call("edit_file", **edit).code is Code.NOT_READ
    work.call("read_file", path="a.txt")
    assert work.call("edit_file", **edit).code is None


def test_a_cancelled_call_ends_in_the_box(work: Work) -> None:
    """Cancelling the awaiting task ends the command; the next call works."""
    call = Call("1", "run_command", {"command": "echo > began; sleep 5.125; echo > PROOF"})

    async def cancel() -> None:
        task = asyncio.ensure_future(work.loop.execute(call))
        async with asyncio.timeout(20):
            while not (work.root / "began").exists():
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    work.thread.run(cancel())
    running = work.call("run_command", command=f"{ARGUMENTS} | grep -c 'sleep 5[.]125'")
    assert str(running.content).split()[-1] == "0"
    assert not (work.root / "PROOF").exists()


def test_leaving_a_stream_early_cancels_its_calls(work: Work) -> None:
    """Who stops listening ends the turn."""
    calls = [
        Call("1", "run_command", {"command": "echo hi; sleep 100"}),
        Call("2", "run_command", {"command": "echo > second"}),
    ]

    async def leave() -> None:
        stream = work.loop.stream(calls)
        async for event in stream:
            if hasattr(event, "text"):
                break
        await stream.aclose()  # type: ignore[attr-defined]

    work.thread.run(leave(), timeout=30)
    assert work.call("run_command", command="true").code is None
    assert not (work.root / "second").exists()


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_a_loop_ends_in_time(kind: str, tmp_path: Path) -> None:
    """A command is ended when the loop's time is over, and later calls are answered so."""
    # The opening of the box is in the loop's time.
    seconds = 2 if kind == "local" else 8
    with open_work(kind, tmp_path, Limits(memory="256m", max_seconds=seconds)) as work:
        began = time.monotonic()
        result = work.call("run_command", command="echo begun; sleep 100")
        assert (result.code, time.monotonic() - began < seconds + 6) == (Code.TIMEOUT, True)
        assert str(result.content).endswith("ms\nbegun\n[the loop's time is over]")
        later = work.call("read_file", path="x")
        assert later.code is Code.TIMEOUT
        over = f"The loop's time of {seconds} s is over; no more calls are run."
        assert later.content == over


@pytest.mark.parametrize("kind", ["docker"])
def test_a_call_timeout_is_the_default_of_commands(kind: str, tmp_path: Path) -> None:
    """`call_timeout` holds where a call names none."""
    with open_work(kind, tmp_path, Limits(memory="256m", call_timeout=0.4)) as work:
        result = work.call("run_command", command="sleep 100")
        assert result.content == "Command timed out after 400ms\n"
        assert work.call("run_command", command="sleep .6", timeout_ms=5000).code is None


@pytest.mark.parametrize("kind", ["docker"])
def test_limits_of_the_box_are_named(kind: str, tmp_path: Path) -> None:
    """Out of memory, processes and space have their codes, and the sentence names the limit."""
    with open_work(kind, tmp_path, Limits(memory="256m", pids=64)) as work:
        eat = work.call("run_code", language="python", code="x = bytearray(1 << 30)")
        assert_limit(eat, Code.OUT_OF_MEMORY, "killed: the memory limit of 256 MiB was reached")
        assert eat.structured is not None
        assert (eat.structured["oom"], eat.structured["limit"]) == (True, "memory")
        many = work.call("run_command", command="for i in $(seq 200); do sleep 9 & done; wait")
        assert_limit(many, Code.LIMIT, "the process limit of 64 was reached")
        full = work.call("run_command", command="head -c 900000000 /dev/zero > /dev/shm/z")
        assert_limit(full, Code.NO_SPACE, "no space left")
        assert work.call("run_command", command="rm -f /dev/shm/z; echo ok").content == "ok\n"


def assert_limit(result: Result, code: Code, sentence: str) -> None:
    assert (result.is_error, result.code) == (True, code), result.content
    assert sentence in str(result.content)


def test_an_answer_that_makes_no_sense_costs_its_box_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Statement J2: the call is a PROTOCOL_ERROR without a traceback, the next has a new box."""
    honest = opener("local", tmp_path)
    opened: list[OpenBox] = []

    @asynccontextmanager
    async def lying_first(spec: LoopSpec) -> AsyncIterator[OpenBox]:
        lying = open_scripted_box(lambda arguments: ({"lines": "many"}, b"x"))
        async with honest(spec) if opened else lying as box:
            opened.append(box)
            yield box

    spec = LoopSpec(worktree=make_worktree(tmp_path / "w"))
    (tmp_path / "w" / "a.txt").write_text("one\n")
    call = Call("1", "read_file", {"path": "a.txt"})
    with LoopThread() as thread, caplog.at_level(logging.WARNING):
        loop = thread.enter(thread.enter(Controller(opener=lying_first)).open(spec))
        result = thread.run(loop.execute(call))
        assert (result.code, result.is_error) == (Code.PROTOCOL_ERROR, True)
        assert isinstance(opened[0].error, ProtocolError)
        again = thread.run(loop.execute(call))
    assert str(again.content).startswith("     1│one\n[the sandbox was lost (the agent broke")
    assert (again.code, len(opened), caplog.text) == (None, 2, "")


# ─── without a box ──────────────────────────────────────────────────────────────────


@asynccontextmanager
async def no_box(spec: LoopSpec) -> AsyncIterator[OpenBox]:
    raise SandboxUnavailable("there is none today")
    yield


def test_a_specification_is_refused_with_all_faults(tmp_path: Path) -> None:
    """Every fault of a specification comes at once, before anything is opened."""
    spec = LoopSpec(
        worktree=tmp_path / "none", limits=Limits(memory="1k"), toolset="x", mode="y", exec_id="Z"
    )
    with LoopThread() as thread:
        controller = thread.enter(Controller(opener=no_box))
        with pytest.raises(ConfigError) as caught:
            thread.enter(controller.open(spec))
    assert len(caught.value.faults) == 5


def test_no_box_is_raised_and_the_name_is_free_again(tmp_path: Path) -> None:
    """A loop whose box can't be had never opens, and its name can be used again."""
    spec = LoopSpec(worktree=make_worktree(tmp_path / "w"), exec_id="same")
    with LoopThread() as thread:
        controller = thread.enter(Controller(opener=no_box))
        for _ in range(2):
            with pytest.raises(SandboxUnavailable, match="there is none today"):
                thread.enter(controller.open(spec))


def test_a_name_is_used_once_at_a_time(tmp_path: Path) -> None:
    """Two open loops can't have one name; generated names differ."""
    spec = LoopSpec(worktree=make_worktree(tmp_path / "w"), exec_id="same")
    with LoopThread() as thread:
        controller = thread.enter(Controller(opener=opener("local", tmp_path)))
        thread.enter(controller.open(spec))
        with pytest.raises(ConfigError, match="'same' is open"):
            thread.enter(controller.open(spec))
        unnamed = replace(spec, exec_id=None)
        loops = [thread.enter(controller.open(unnamed)) for _ in range(2)]
        assert loops[0].exec_id != loops[1].exec_id


def test_a_closed_controller_opens_nothing_until_it_is_entered_again(tmp_path: Path) -> None:
    """After its end it says what to do, and it can be used once more."""
    spec = LoopSpec(make_worktree(tmp_path / "worktree"), limits=LIMITS)

    async def work() -> object:
        controller = Controller(replace(Settings.load(), state_directory=tmp_path / "state"))
        async with controller:
            pass
        with pytest.raises(RuntimeError, match="open the controller first"):
            async with controller.open(spec):
                raise AssertionError("it is closed")
        async with controller, controller.open(spec) as loop:
            return (await loop.execute(Call("1", "run_command", {"command": "echo on"}))).content

    assert asyncio.run(work()) == "on\n"


def test_events_are_numbered_once_from_the_first(work: Work) -> None:
    """What was told while nobody listened has the number that it had then."""
    told = work.events(("list_directory", {}))
    assert isinstance(told[0], LaneOpened)
    assert [event.seq for event in told] == [*range(1, len(told) + 1)]
    assert [event.monotonic_ms for event in told] == sorted(event.monotonic_ms for event in told)


def test_a_controller_must_be_entered(tmp_path: Path) -> None:
    """Opening a loop before the controller is open is a plain mistake and says so."""
    spec = LoopSpec(worktree=make_worktree(tmp_path / "w"))
    with LoopThread() as thread, pytest.raises(RuntimeError, match="async with Controller"):
        thread.enter(Controller().open(spec))


def wait_for(path: Path) -> None:
    """Until the file is there, at most 20 seconds."""
    until = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.01)
