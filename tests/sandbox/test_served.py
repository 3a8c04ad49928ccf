"""Servers as the host has them: an agent that lies, lost boxes, lanes, a killed controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.agent import frame
from executor.agent.frame import WINDOW, Parser, encode, encode_json
from executor.bytestream import StreamClosed
from executor.catalog import load
from executor.controller import Controller
from executor.errors import Code, ProtocolError, SandboxError, ToolError
from executor.model import LANE, Limits, LoopSpec
from executor.sandbox import box as box_module
from executor.sandbox.box import Sandbox
from executor.sandbox.connection import Connection
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import reap
from executor.served import MAX_STDERR, Program, Served, State
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.driver import wait_until
from tests.loops import Work, open_work
from tests.sandbox import victim
from tests.sandbox.test_connection import Script, outcome_of, play, reply

CAT = Program(("cat",))
RUNS: dict[str, Any] = {"running": True, "exit_code": None, "signal": None, "oom": False}
ENDED: dict[str, Any] = {**RUNS, "running": False, "exit_code": 0}


# ─── an agent that lies ─────────────────────────────────────────────────────────────


def answered(op: str, asked: dict[str, Any], value: Any, data: bytes = b"") -> Any:
    """What a request comes to that is answered so."""

    async def scene(connection: Connection, script: Script) -> Any:
        call = asyncio.ensure_future(connection.request(op, asked))
        await asyncio.sleep(0)
        for piece in frame.split(data):
            connection.received(encode(frame.DATA, 1, piece))
        connection.received(reply({"ok": value}))
        try:
            return await call
        except SandboxError as error:
            return error

    return play(scene)


PROGRAMS = {"programs": ["sh", "cat"]}
LIES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "no number": ("serve", {}, {}),
    "a number that is a text": ("serve", {}, {"server": "1"}),
    "a number that is a flag": ("serve", {}, {"server": True}),
    "a negative number": ("serve", {}, {"server": -1}),
    "more than the number": ("serve", {}, {"server": 1, "pid": 2}),
    "a state without a field": ("server_state", {}, {"running": True}),
    "running and over": ("server_state", {}, {**RUNS, "exit_code": 0}),
    "running and killed": ("server_state", {}, {**RUNS, "signal": "SIGKILL"}),
    "running and out of memory": ("server_state", {}, {**RUNS, "oom": True}),
    "over in no way": ("server_state", {}, {**RUNS, "running": False}),
    "over in two ways": ("server_state", {}, {**ENDED, "signal": "SIGKILL"}),
    "a code that is a text": ("server_state", {}, {**ENDED, "exit_code": "\x1b[2J"}),
    "a signal with a control sequence": (
        "server_state",
        {},
        {**ENDED, "exit_code": None, "signal": "\x1b[2J"},
    ),
    "a flag that is a number": ("server_state", {}, {**RUNS, "running": 1}),
    "ended and running": ("server_end", {}, RUNS),
    "programs nobody asked about": ("shell", {}, {"shell": "sh", "programs": []}),
    "programs that are missing": ("shell", PROGRAMS, {"shell": "sh"}),
    "a program nobody asked for": ("shell", PROGRAMS, {"shell": "sh", "programs": ["rm"]}),
    "a program twice": ("shell", PROGRAMS, {"shell": "sh", "programs": ["sh", "sh"]}),
    "a program that is no text": ("shell", PROGRAMS, {"shell": "sh", "programs": [["sh"]]}),
    "programs in a text": ("shell", PROGRAMS, {"shell": "sh", "programs": "sh"}),
}


@pytest.mark.parametrize("name", LIES)
def test_what_no_agent_of_ours_says_of_a_server_costs_the_box(name: str) -> None:
    """Statement J2: an answer of another shape is a protocol error, and is shown as text."""
    error = answered(*LIES[name])
    assert isinstance(error, ProtocolError), error
    assert "\x1b" not in str(error)


@pytest.mark.parametrize("op", ["server_state", "server_end"])
def test_more_stderr_than_is_kept_costs_the_box(op: str) -> None:
    """To the bound it is taken, one byte more is not."""
    assert len(answered(op, {}, ENDED, bytes(MAX_STDERR)).data) == MAX_STDERR
    assert isinstance(answered(op, {}, ENDED, bytes(MAX_STDERR + 1)), ProtocolError)


def test_the_start_of_a_server_has_no_data() -> None:
    """Not a byte comes with its number."""
    assert isinstance(answered("serve", {}, {"server": 1}, b"x"), ProtocolError)
    assert isinstance(outcome_of(reply({"ok": {}}, 9)), ProtocolError)


class Far:
    """The agent's side of a scripted connection: what came, one frame after the other."""

    def __init__(self, connection: Connection, script: Script) -> None:
        self.connection = connection
        self._script = script
        self._parser = Parser(frame.TO_AGENT)
        self._frames: list[tuple[int, int, bytes]] = []

    async def next(self, kind: int) -> tuple[int, Any]:
        """Channel and JSON of the next frame of a kind; `play` bounds the wait."""
        while True:
            sent, self._script.sent = self._script.sent, b""
            self._frames += [(a, b, bytes(c)) for a, b, c in self._parser.feed(sent)]
            while self._frames:
                found, channel, payload = self._frames.pop(0)
                if found == kind:
                    return channel, json.loads(payload) if payload else None
            await asyncio.sleep(0.001)

    async def call(self, op: str) -> tuple[int, dict[str, Any]]:
        """Channel and arguments of the next call, which is of this operation."""
        channel, value = await self.next(frame.CALL)
        assert op in json.dumps(value), value
        return channel, value

    def answer(self, channel: int, value: dict[str, Any]) -> None:
        """Answer a call."""
        self.connection.received(reply({"ok": value}, channel))


Scene = Callable[[Sandbox, Far], Awaitable[Any]]


def act(scene: Scene) -> Any:
    """Play a scene with a box of a scripted agent."""

    async def run(connection: Connection, script: Script) -> Any:
        script.sent = b""
        return await scene(Sandbox("s", "s", connection, {}), Far(connection, script))

    return play(run)


async def started(box: Sandbox, far: Far) -> Served:
    """A server that the agent has started and connected."""
    starting = asyncio.ensure_future(box.serve(CAT))
    channel, _ = await far.call("serve")
    far.answer(channel, {"server": 3})
    number, to = await far.next(frame.DIAL)
    assert to == {"server": 3}
    far.connection.received(encode_json(frame.GRANT, number, {"bytes": WINDOW}))
    return await starting


def test_a_server_whose_pipes_are_refused_is_ended() -> None:
    """An agent that does not connect what it started is told to end it, and the caller why."""

    async def scene(box: Sandbox, far: Far) -> str:
        starting = asyncio.ensure_future(box.serve(CAT))
        channel, _ = await far.call("serve")
        far.answer(channel, {"server": 3})
        number, _ = await far.next(frame.DIAL)
        far.connection.received(encode_json(frame.ABORT, number, {"reason": "no\x1b[2J"}))
        channel, _ = await far.call("server_end")
        assert not starting.done()
        far.answer(channel, ENDED)
        with pytest.raises(ToolError) as caught:
            await starting
        assert caught.value.code is Code.EXECUTION_ERROR
        assert box.error is None
        return str(caught.value)

    said = act(scene)
    assert "can't be connected" in said
    assert "\x1b" not in said


def test_a_start_that_is_cancelled_while_it_connects_leaves_no_server() -> None:
    """It is ended before the cancellation goes on."""

    async def scene(box: Sandbox, far: Far) -> None:
        starting = asyncio.ensure_future(box.serve(CAT))
        channel, _ = await far.call("serve")
        far.answer(channel, {"server": 3})
        await far.next(frame.DIAL)
        starting.cancel()
        channel, _ = await far.call("server_end")
        assert not starting.done()
        far.answer(channel, ENDED)
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert box.error is None

    act(scene)


def test_a_start_that_is_cancelled_before_its_answer_leaves_no_server() -> None:
    """One that was started all the same is ended, and its number is nobody's."""

    async def scene(box: Sandbox, far: Far) -> None:
        starting = asyncio.ensure_future(box.serve(CAT))
        channel, _ = await far.call("serve")
        starting.cancel()
        await far.next(frame.CANCEL)
        far.answer(channel, {"server": 3})
        channel, _ = await far.call("server_end")
        far.answer(channel, ENDED)
        with pytest.raises(asyncio.CancelledError) as caught:
            await starting
        assert caught.value.args == ()

    act(scene)


def test_the_end_is_asked_for_once() -> None:
    """Whoever asks again has the same end, and so has who asks how it is."""

    async def scene(box: Sandbox, far: Far) -> None:
        server = await started(box, far)
        ends = [asyncio.ensure_future(server.end(1)) for _ in range(2)]
        channel, _ = await far.call("server_end")
        ends[0].cancel()
        far.answer(channel, {**ENDED, "exit_code": 5})
        with pytest.raises(asyncio.CancelledError):
            await ends[0]
        assert await ends[1] == await server.state() == State(is_running=False, exit_code=5)

    act(scene)


def test_a_lost_box_is_said_at_once() -> None:
    """State, end, reading and writing raise, and nothing waits."""

    async def scene(box: Sandbox, far: Far) -> None:
        server = await started(box, far)
        asking = asyncio.ensure_future(server.state())
        await far.call("server_state")
        far.connection.closed("gone")
        async with asyncio.timeout(1):
            for work in (asking, server.state(), server.end(30), server.end(30)):
                with pytest.raises(SandboxError):
                    await work
            with pytest.raises(SandboxError):
                await box.serve(CAT)
            with pytest.raises(StreamClosed):
                await server.stream.read()
            with pytest.raises(StreamClosed):
                await server.stream.write(b"x")

    act(scene)


# ─── lanes ──────────────────────────────────────────────────────────────────────────


def test_a_box_that_only_a_server_uses_is_given_back_and_opened_anew(tmp_path: Path) -> None:
    """The server goes with its box; the next start has a new one."""

    async def play_it(work: Work) -> None:
        serve = work.loop._lanes.serve
        server = await serve(LANE, CAT)
        await server.stream.write(b"on\n")
        assert await server.stream.read() == b"on\n"
        async with asyncio.timeout(20):
            while work.loop._lane.is_open:
                await asyncio.sleep(0.02)
        with pytest.raises(SandboxError):
            await server.state()
        with pytest.raises(SandboxError):
            await server.end()
        again = await serve(LANE, CAT)
        assert (await again.state()).is_running

    with open_work("local", tmp_path, replace(LIMITS, idle_seconds=0.3)) as work:
        work.thread.run(play_it(work))
        assert len(work.opened) == 2


def test_a_tool_starts_servers_in_the_box_of_its_lane(tmp_path: Path) -> None:
    """What surrounds a call of a lane starts them there, with the worktree for a directory."""

    async def words(work: Work) -> bytes:
        serve = work.loop._surroundings.in_lane(LANE).serve
        assert serve is not None
        server = await serve(Program(("sh", "-c", "cat here")))
        found = await server.stream.read()
        await server.end(0.2)
        return found

    with open_work("local", tmp_path) as work:
        work.write("here", "in the worktree\n")
        assert work.thread.run(words(work)) == b"in the worktree\n"


def test_each_new_box_says_which_programs_it_has(tmp_path: Path) -> None:
    """Those that are wanted are asked for with the shell, for each lane."""
    with open_work("local", tmp_path, replace(LIMITS, idle_seconds=0.2)) as work:
        work.loop.session.wanted_programs = ("cat", "no-such-server")
        wait_until(lambda: not work.loop._lane.is_open)
        work.call("glob", pattern="*")
        assert work.loop.session.programs == {LANE: frozenset({"cat"})}


# ─── a controller that is killed ────────────────────────────────────────────────────


def hold(settings: Settings, spec: LoopSpec, marker: int, pipe: Any) -> None:
    """A controller with a server, until it is killed."""
    victim._be_quiet()
    box_module.LEASE = 3.0

    async def main() -> None:
        async with Controller(settings, load()) as controller, controller.open(spec) as loop:
            await loop._lanes.serve(LANE, Program(("sleep", str(marker))))
            pipe.send("started")
            await asyncio.Event().wait()

    asyncio.run(main())


def is_there(marker: int) -> bool:
    """A process of this machine sleeps so long."""
    words = f"sleep\0{marker}\0".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == words:
                return True
        except OSError:
            continue
    return False


def test_the_servers_of_a_killed_controller_end(tmp_path: Path) -> None:
    """KILL leaves it no time to end them: the box does, as it ends."""
    spec = LoopSpec(make_worktree(tmp_path / "worktree"), Limits(memory="256m"), exec_id="held")
    settings = replace(Settings.load(), state_directory=tmp_path / "state")
    marker = 971_000_000 + tmp_path.stat().st_ino % 999_983
    near, far = victim.context().Pipe()
    process = victim.context().Process(target=hold, args=(settings, spec, marker, far))
    process.start()
    try:
        assert near.poll(60), "the server did not start"
        assert near.recv() == "started"
        assert is_there(marker)
    finally:
        process.kill()
        process.join(30)
    wait_until(lambda: not is_there(marker))

    async def swept() -> int:
        async with await Engine.connect(settings) as engine:
            return len((await reap(engine, settings.state_directory)).containers)

    assert asyncio.run(swept()) == 1
