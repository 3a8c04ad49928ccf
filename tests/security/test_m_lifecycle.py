"""Statements M3 to M7 and J12: controllers that die, engines in trouble, boxes that others end.

Casebook group H.
"""

from __future__ import annotations

import asyncio
import multiprocessing.connection
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from executor import controller as controller_module
from executor.catalog import load
from executor.controller import Controller
from executor.errors import Code, SandboxError
from executor.loop import Loop
from executor.model import Call, Finished, Limits, LoopSpec, Result
from executor.sandbox import box as box_module
from executor.sandbox import connection as connection_module
from executor.sandbox import engine as engine_module
from executor.sandbox.container import LABEL_STATE
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import Reaped, reap
from executor.settings import Settings
from tests.conftest import make_worktree
from tests.driver import LoopThread
from tests.sandbox import victim
from tests.sandbox.engine_proxy import ENGINE, Cut, Instead, Request, engine_proxy
from tests.sandbox.second_engine import SecondEngine, missing, second_engine
from tests.sandbox.victim import LIMITS

PROMPTLY = 10.0
"""Seconds within which a call that runs in a lost box has its error."""
LEASE = 3.0
"""Seconds of a lease in tests that wait for its end."""
LIFE = 60
AT_A_TIME = 4
"""Controllers that are killed beside each other."""


@pytest.fixture(scope="module")
def second() -> Iterator[SecondEngine]:
    """An engine of our own that may be killed; its boxes outlive it."""
    with second_engine(live_restore=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def quiet(request: pytest.FixtureRequest) -> str:
    """The address of an engine that nobody else uses; the machine's where there is none."""
    if missing() is not None:
        return ENGINE
    engine: SecondEngine = request.getfixturevalue("second")
    return engine.address


def settings(address: str, directory: Path) -> Settings:
    """A controller's settings, with its state below the directory."""
    return Settings(docker_host=address, state_directory=directory / "state")


def docker(*arguments: str, address: str = ENGINE) -> str:
    """What Docker's command line prints."""
    command = ["docker", "--host", address, *arguments]
    return subprocess.run(
        command, capture_output=True, check=True, timeout=LIFE, text=True
    ).stdout.strip()


def boxes(directory: Path, address: str = ENGINE) -> list[str]:
    """Ids of all containers of the state directory below this one."""
    label = f"label={LABEL_STATE}={directory / 'state'}"
    return docker("ps", "-aq", "--no-trunc", "--filter", label, address=address).split()


def sweep(address: str, directory: Path) -> Reaped:
    """One pass of the reaper, as `executor reap` makes it."""

    async def run() -> Reaped:
        given = settings(address, directory)
        async with await Engine.connect(given) as engine:
            return await reap(engine, given.state_directory)

    return asyncio.run(run())


def wait_until(is_so: Callable[[], bool], seconds: float = LIFE, what: str = "it") -> None:
    """Until something is so that nothing tells of."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come about within {seconds:g} s"
        time.sleep(0.02)


# ─── M3: killed anywhere ────────────────────────────────────────────────────────────


def spec_of(directory: Path, **more: Any) -> LoopSpec:
    """A loop over `directory/worktree`, which has a file of ours already."""
    root = make_worktree(directory / "worktree")
    (root / "kept.txt").write_text("kept\n")
    return LoopSpec(**{"worktree": root, "limits": LIMITS, **more})


def processes_with(word: str) -> list[str]:
    """Command lines on this machine that hold the word, whatever box they run in."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if word in line:
                    found.append(line)
    return found


def leftovers(directory: Path, address: str, marker: int) -> list[str]:
    """What a controller of this directory has left, after the reaper was there."""
    found = [f"container {id}" for id in boxes(directory, address)]
    found += [f"file {path}" for path in (directory / "state").glob("controllers/*")]
    found += [f"process {line}" for line in processes_with(str(marker))]
    files = victim.worktree_files(directory / "worktree")
    found += [f"{name}: {text!r}" for name, text in files.items() if victim.KEPT[name] != text]
    return found + ([] if "kept.txt" in files else ["kept.txt is gone"])


Step: TypeAlias = tuple[str, int]
"""A kind of request, and which of its kind in one life: requests may overtake each other."""


def kind_of(request: Request) -> str:
    """The request without what differs from one life to the next."""
    path = re.sub(r"\?.*|sha256:", "", request.path)
    return f"{request.method} {re.sub('[0-9a-f]{64}', 'ID', path)}"


class Crash:
    """A life that is killed at one request.

    Args:
        directory: everything of it is in there.
        address: of the engine behind the proxy.
        moment: `before` the engine has the request, `during` it, `after` its answer.
        step: what it is killed at; None = it lives to its end.
    """

    def __init__(self, directory: Path, address: str, moment: str, step: Step | None) -> None:
        self.directory = directory
        self.address = address
        self.moment = moment
        self.step = step
        self.steps: list[Step] = []
        self.marker = random.randrange(10**7, 10**8)
        self.killed_at: Request | None = None
        directory.mkdir()
        answered = threading.Event()
        with engine_proxy(address) as proxy:

            async def note(request: Request) -> None:
                if request == self.killed_at:
                    answered.set()

            proxy.after = note
            setattr(proxy, moment, self._kill)
            given = (settings(proxy.address, directory), spec_of(directory), self.marker)
            self.process = victim.context().Process(target=victim.live, args=given)
            self.process.start()
            self.process.join(LIFE)
            assert self.process.exitcode is not None, "the controller hangs"
            if moment == "during" and self.killed_at is not None:
                assert answered.wait(LIFE), "the engine never answered"

    async def _kill(self, request: Request) -> None:
        kind = kind_of(request)
        self.steps.append((kind, [step[0] for step in self.steps].count(kind) + 1))
        if self.steps[-1] != self.step:
            return
        self.killed_at = request
        self.process.kill()
        await asyncio.to_thread(multiprocessing.connection.wait, [self.process.sentinel])
        if self.moment != "during":
            raise Cut
        # While the engine is still at it: what is not made yet can't be found.
        await asyncio.to_thread(sweep, self.address, self.directory)

    def left(self) -> list[str]:
        """What is left after one pass of the reaper."""
        sweep(self.address, self.directory)
        point = f"{self.moment} {self.killed_at}"
        left = leftovers(self.directory, self.address, self.marker)
        return [f"{point}: {one}" for one in left]


@pytest.fixture(scope="module")
def whole_life(quiet: str, tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """The engine requests of a controller that nobody kills."""
    crash = Crash(tmp_path_factory.mktemp("whole") / "life", quiet, "before", None)
    assert boxes(crash.directory, quiet) == [], "it cleans up by itself"
    assert victim.worktree_files(crash.directory / "worktree") == victim.KEPT
    assert {"POST /containers/create", "DELETE /containers/ID"} < {kind for kind, _ in crash.steps}
    return crash.steps


@pytest.mark.statement("M3")
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_controller_killed_at_any_engine_request_leaves_nothing(
    whole_life: list[Step], quiet: str, tmp_path: Path, moment: str
) -> None:
    """M3, casebook H67: SIGKILL at each request, before the engine has it, while it is at
    it, and before its answer arrives; after one pass of the reaper nothing is left."""
    before = anonymous_volumes(quiet)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        crashes = list(
            pool.map(
                lambda number: Crash(tmp_path / str(number), quiet, moment, whole_life[number]),
                range(len(whole_life)),
            )
        )
        left = [line for lines in pool.map(Crash.left, crashes) for line in lines]
    assert left == []
    assert [crash.step for crash in crashes if crash.killed_at is None] == []
    assert anonymous_volumes(quiet) - before == set()


def anonymous_volumes(address: str) -> set[str]:
    """Volumes that the engine named itself and that nothing uses."""
    listed = docker("volume", "ls", "-q", "-f", "dangling=true", address=address).split()
    return {name for name in listed if re.fullmatch("[0-9a-f]{64}", name)}


@pytest.mark.statement("M3")
def test_a_controller_cancelled_at_any_engine_request_leaves_nothing_at_all(
    whole_life: list[Step], quiet: str, tmp_path: Path
) -> None:
    """M3: a cancellation during any request cleans up before it is passed on; no reaper."""

    async def cancelled(directory: Path, step: Step) -> list[str]:
        directory.mkdir()
        marker, seen = random.randrange(10**7, 10**8), []
        loop = asyncio.get_running_loop()
        with engine_proxy(quiet) as proxy:

            async def cancel(request: Request) -> None:
                kind = kind_of(request)
                seen.append(kind)
                if (kind, seen.count(kind)) == step:
                    loop.call_soon_threadsafe(task.cancel)

            proxy.during = cancel
            given = settings(proxy.address, directory)
            task = asyncio.ensure_future(victim.life(given, spec_of(directory), marker))
            await asyncio.wait({task}, timeout=LIFE)
            assert task.cancelled(), (step, seen)
        return await asyncio.to_thread(leftovers, directory, quiet, marker)

    for number, step in enumerate(whole_life):
        # What is asked for beside the work (the first sweep) ends with it, not by it.
        assert (step, asyncio.run(cancelled(tmp_path / str(number), step))) == (step, [])


@pytest.mark.statement("M3")
def test_a_controller_killed_while_the_runtime_is_built_hurts_nobody(
    second: SecondEngine, tmp_path: Path
) -> None:
    """M3: whatever a killed builder leaves half done, the next controller makes whole."""
    volume = second.docker("volume", "ls", "-q", "-f", "label=executor.kind=runtime")
    name = volume.stdout.decode().strip()
    second.docker("volume", "rm", name)
    steps = building = Crash(tmp_path / "whole", second.address, "before", None).steps
    building = [step for step in steps if step[0].split()[0] != "GET"][:4]
    assert [kind.split("?")[0] for kind, _ in building][:2] == [
        "POST /volumes/create",
        "POST /containers/create",
    ], steps
    for number, step in enumerate([building[0], building[1], building[3]]):
        second.docker("volume", "rm", name)
        crash = Crash(tmp_path / str(number), second.address, "after", step)
        assert (crash.killed_at is not None, crash.left()) == (True, []), step
        listed = second.docker("ps", "-aq", "-f", "label=executor.kind=build").stdout
        assert listed == b"", step
        again = Crash(tmp_path / f"again{number}", second.address, "before", None)
        assert victim.worktree_files(again.directory / "worktree") == victim.KEPT, step


# ─── loops of this process ──────────────────────────────────────────────────────────


class Open:
    """A loop that is used without `async`.

    Attributes:
        loop: it.
        root: its worktree.
    """

    def __init__(self, thread: LoopThread, directory: Path, address: str, **more: Any) -> None:
        self.thread = thread
        self.directory = directory
        self.controller = thread.enter(Controller(settings(address, directory), load()))
        self.loop = self.another(**more)
        self.root = directory / "worktree"

    def another(self, **more: Any) -> Loop:
        """One more loop of the same controller, in the same worktree."""
        return self.thread.enter(self.controller.open(spec_of(self.directory, **more)))

    @property
    def box(self) -> Any:
        """The open box."""
        return self.loop._lane._box

    def begin(self, name: str, **given: Any) -> Future[Result]:
        """A call that is not waited for."""
        call = Call("1", name, given)
        return asyncio.run_coroutine_threadsafe(self.loop.execute(call), self.thread.loop)

    def begin_long(self) -> Future[Result]:
        """A command that runs until somebody ends it, when it has begun."""
        up = self.root / "up"
        up.unlink(missing_ok=True)
        future = self.begin("run_command", command="echo > up; sleep 1000", timeout_ms=600_000)
        wait_until(lambda: up.exists() or future.done(), what="the command")
        assert not future.done(), future.result()
        return future

    def call(self, name: str, **given: Any) -> Result:
        """A call's result."""
        return self.begin(name, **given).result(LIFE)

    def wait_for_loss(self) -> None:
        """Until the loss of the open box is known."""
        box = self.box
        wait_until(lambda: box.error is not None, PROMPTLY, "the loss")


def assert_lost(future: Future[Result], cause: str, seconds: float = PROMPTLY) -> None:
    """The call ends promptly, by a typed error that names the cause."""
    result = future.result(seconds)
    assert (result.code, result.is_error) == (Code.SANDBOX_LOST, True), result
    assert re.search(cause, str(result.content)), result.content


def assert_new_box(open_: Open, cause: str) -> None:
    """The next call works in a new box and says why, the one after it says nothing."""
    result = open_.call("run_command", command="cat kept.txt; pwd; ls /tmp")
    assert result.code is None, result.content
    content = str(result.content)
    assert content.startswith("kept\n/workspace\n[the sandbox was lost ("), content
    assert re.search(cause, content), content
    assert "processes, /tmp and the working directory are gone" in content
    assert open_.call("read_file", path="kept.txt").content == "     1│kept"


def status_of(id: str, address: str = ENGINE) -> str:
    """Whether a container runs, as the engine says; `gone` when it has none."""
    with suppress(subprocess.CalledProcessError):
        return docker("inspect", "-f", "{{.State.Status}}", id, address=address)
    return "gone"


def wait_for_end(id: str, seconds: float, address: str = ENGINE) -> None:
    """Until a container has ended or is gone."""
    wait_until(lambda: status_of(id, address) in ("exited", "gone"), seconds, "the box's end")


# ─── M5: nobody at the other end ────────────────────────────────────────────────────


@pytest.mark.statement("M5")
def test_the_box_of_a_killed_controller_ends_by_itself(runtime: str, tmp_path: Path) -> None:
    """M5, casebook H67: SIGKILL while a command runs ends the stream, and that the box,
    long before the lease; what is left of it is the next sweep's."""
    spec = spec_of(tmp_path, runtime=runtime)
    with victim.served(settings(ENGINE, tmp_path), spec) as controller:
        controller.begin("run_command", command="echo > up; sleep 1000", timeout_ms=600_000)
        wait_until((tmp_path / "worktree/up").exists)
        (id,) = boxes(tmp_path)
        controller.process.kill()
        wait_for_end(id, PROMPTLY)
    assert sweep(ENGINE, tmp_path).containers == (id,)
    assert leftovers_of(tmp_path) == []


def generated(directory: Path) -> list[str]:
    """Names of boxes whose generated files are there.

    What a loop keeps of long outputs is no box's, and stays for the next one.
    """
    found = (directory / "state/controllers").glob("*/*")
    return [path.name for path in found if path.is_dir() and not path.name.startswith("results-")]


def leftovers_of(directory: Path) -> list[str]:
    """Containers and generated files."""
    return boxes(directory) + [str(path) for path in (directory / "state/controllers").iterdir()]


@pytest.mark.statement("M5")
def test_the_box_of_a_stopped_controller_ends_by_its_lease(runtime: str, tmp_path: Path) -> None:
    """M5: SIGSTOP ends no stream; without pings the box ends itself. The controller, when
    it goes on, has a typed error with the cause, and a new box for the next call."""
    spec = spec_of(tmp_path, runtime=runtime)
    with victim.served(settings(ENGINE, tmp_path), spec, LEASE) as controller:
        assert controller.call("run_command", command="true").code is None
        controller.begin("run_command", command="echo > up; sleep 1000", timeout_ms=600_000)
        wait_until((tmp_path / "worktree/up").exists)
        (id,) = boxes(tmp_path)
        assert controller.process.pid is not None
        os.kill(controller.process.pid, signal.SIGSTOP)
        try:
            wait_for_end(id, LEASE + PROMPTLY)
        finally:
            os.kill(controller.process.pid, signal.SIGCONT)
        result = controller.result()
        assert result.code is Code.SANDBOX_LOST
        assert "no word from the host for 3 s" in str(result.content)
        again = controller.call("run_command", command="cat kept.txt")
        assert str(again.content).startswith("kept\n[the sandbox was lost ("), again.content
        controller.end()
    assert leftovers_of(tmp_path) == []


@pytest.mark.statement("M5")
def test_a_pause_longer_than_the_lease_ends_no_box_whose_host_lives(
    runtime: str, loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M5: after a pause the pings that wait are read before the lease is judged."""
    monkeypatch.setattr(box_module, "LEASE", 1.5)
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 0.2)
    monkeypatch.setattr(connection_module, "PING_SUSPICION", 60.0)
    monkeypatch.setattr(connection_module, "PING_PATIENCE", 60.0)
    open_ = Open(loop_thread, tmp_path, ENGINE, runtime=runtime)
    future = open_.begin_long()
    hand("pause", open_.box.id)
    loop_thread.run(asyncio.sleep(4))  # the fault under test is the passing of time itself
    docker("unpause", open_.box.id)
    # Two looks of the agent at its lease, then the box must still be the same.
    loop_thread.run(asyncio.sleep(2.5))
    assert open_.call("run_command", command="echo here").content == "here\n"
    assert not future.done()


@pytest.mark.statement("M5")
def test_the_lease_ends_a_box_when_the_engine_lives_on_without_its_host(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M5: the stream is cut where the engine can't notice, as between two machines, and the
    engine can't be asked for anything: the call has its error, and the lease ends the box."""
    monkeypatch.setattr(box_module, "LEASE", LEASE)
    with engine_proxy() as proxy:
        open_ = Open(loop_thread, tmp_path, proxy.address)
        id, future = open_.box.id, open_.begin_long()
        proxy.refuse()
        proxy.cut(is_far_kept=True)
        assert_lost(future, "stream to the box ended.*engine can't be asked why")
        wait_for_end(id, LEASE + PROMPTLY)
        proxy.listen()
        assert_new_box(open_, "stream to the box ended")
        loop_thread.run(loop_thread.stack.aclose())


# ─── M5: the engine in trouble ──────────────────────────────────────────────────────


@pytest.mark.statement("M5")
def test_an_engine_that_cannot_be_reached_disturbs_no_box(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Casebook H69: with the socket gone and the stream alive, calls go on as before."""
    with engine_proxy() as proxy:
        open_ = Open(loop_thread, tmp_path, proxy.address)
        id, future = open_.box.id, open_.begin_long()
        asked = len(proxy.requests)
        proxy.refuse()
        for _ in range(3):
            assert open_.call("run_command", command="cat kept.txt").content == "kept\n"
        assert (open_.box.id, future.done(), len(proxy.requests)) == (id, False, asked)
        proxy.listen()
        loop_thread.run(loop_thread.stack.aclose())
    assert leftovers_of(tmp_path) == []


@pytest.mark.statement("M5")
def test_an_engine_that_is_gone_is_one_typed_error_and_then_forgotten(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Casebook H69: the stream is cut and nothing listens: the call in flight ends, later
    ones say that there is no engine, and when it is back the next one has a new box. What
    could not be removed meanwhile is swept."""
    monkeypatch.setattr(controller_module, "SWEEP_INTERVAL", 0.5)
    with engine_proxy() as proxy:
        open_ = Open(loop_thread, tmp_path, proxy.address)
        id, future = open_.box.id, open_.begin_long()
        proxy.refuse()
        proxy.cut()
        assert_lost(future, "stream to the box ended.*No container engine can be used")
        for _ in range(2):
            result = open_.begin("read_file", path="kept.txt").result(PROMPTLY)
            assert result.code is Code.SANDBOX_UNAVAILABLE
            assert "nothing listens there. Start Docker" in str(result.content)
        wait_for_end(id, PROMPTLY)
        proxy.listen()
        assert_new_box(open_, "stream to the box ended")
        wait_until(lambda: boxes(tmp_path) == [open_.box.id], what="the sweep")
        loop_thread.run(loop_thread.stack.aclose())
    assert leftovers_of(tmp_path) == []


@pytest.mark.statement("M5")
def test_an_engine_that_answers_nothing_is_asked_once(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M5: an engine that takes requests and never answers is a typed error after the time
    that one request has; it is not asked again, and the box that is open works on."""
    is_deaf = threading.Event()

    async def hold(request: Request) -> None:
        while is_deaf.is_set():
            await asyncio.sleep(0.05)

    with engine_proxy(before=hold) as proxy:
        open_ = Open(loop_thread, tmp_path, proxy.address)
        assert open_.controller._host is not None
        monkeypatch.setattr(engine_module, "REQUEST_TIMEOUT", 1)
        monkeypatch.setattr(open_.controller._host.engine._client, "timeout", 1)
        is_deaf.set()
        asked = len(proxy.requests)
        with pytest.raises(SandboxError, match=r"it gave no answer within 1 s"):
            open_.another()
        # The image and the base of the runtime were asked for, each once.
        assert len(proxy.requests) - asked <= 2
        assert open_.call("run_command", command="cat kept.txt").content == "kept\n"
        is_deaf.clear()
        monkeypatch.undo()
        loop_thread.run(loop_thread.stack.aclose())


@pytest.mark.statement("M5")
@pytest.mark.parametrize("live_restore", [True, False])
def test_an_engine_that_is_restarted_costs_the_box_and_no_more(
    second: SecondEngine,
    loop_thread: LoopThread,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    live_restore: bool,
) -> None:
    """M5, casebook H69: killed under a box that it leaves running (which gets no end of its
    stream and is ended by its lease), or stopped with all its boxes: a typed error within
    ten seconds, nothing hangs, and the loop goes on in a new box when the engine is back."""
    monkeypatch.setattr(box_module, "LEASE", LEASE)
    monkeypatch.setattr(controller_module, "SWEEP_INTERVAL", 0.5)
    second.configure(live_restore=live_restore)
    second.restart()
    open_ = Open(loop_thread, tmp_path, second.address)
    id, future = open_.box.id, open_.begin_long()
    process = Path("/proc", docker("inspect", "-f", "{{.State.Pid}}", id, address=second.address))
    second.kill(signal.SIGKILL if live_restore else signal.SIGTERM)
    assert_lost(future, "stream to the box ended")
    assert process.exists() or not live_restore, "it goes on without the engine"
    result = open_.begin("read_file", path="kept.txt").result(PROMPTLY)
    assert result.code is Code.SANDBOX_UNAVAILABLE
    wait_until(lambda: not process.exists(), LEASE + PROMPTLY, "the box's end")
    second.start()
    assert_new_box(open_, "stream to the box ended")
    wait_until(lambda: boxes(tmp_path, second.address) == [open_.box.id], what="the sweep")
    loop_thread.run(loop_thread.stack.aclose())
    assert boxes(tmp_path, second.address) == []


# ─── M5: another hand at the box ────────────────────────────────────────────────────

HANDS = {
    "rm --force": "removed by another hand",
    "stop": r"it ended with code 137",
    "kill": r"it ended with code 137",
    "pause": "it is paused, by another hand",
}


def hand(action: str, id: str) -> None:
    """Does it, again if need be: a busy machine's kernel does not always freeze in time."""
    command = ["docker", *action.split(), id]
    wait_until(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)


@pytest.mark.statement("M5")
def test_a_box_that_another_hand_ends_in_mid_call_is_a_typed_error(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Casebook H69: removed, stopped, killed or paused while a command runs: the call ends
    within ten seconds with the cause, and the next one has a new box and says so."""
    open_ = Open(loop_thread, tmp_path, ENGINE, runtime=runtime)
    for action, cause in HANDS.items():
        id, future = open_.box.id, open_.begin_long()
        hand(action, id)
        assert_lost(future, cause)
        wait_for_end(id, PROMPTLY)
        assert_new_box(open_, cause)
        assert boxes(tmp_path) == [open_.box.id], action


@pytest.mark.statement("M5")
def test_a_box_that_another_hand_ends_between_calls_is_replaced(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Casebook H69: the call that finds the box gone works in a new one, and names the
    cause; the worktree is as it was."""
    open_ = Open(loop_thread, tmp_path, ENGINE, runtime=runtime)
    for action, cause in HANDS.items():
        if action != "pause":
            hand(action, open_.box.id)
            open_.wait_for_loss()
            assert_new_box(open_, cause)
            assert boxes(tmp_path) == [open_.box.id], action


@pytest.mark.statement("M5", runsc="process 1 of the container is gVisor's, which has other limits")
def test_an_agent_that_runs_out_of_memory_is_named_so(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """M5: the box of uid 0 can make its agent the first victim of the memory limit; the
    loss is told with that cause, and the next call works."""
    limits = Limits(memory="64m", pids=128)
    open_ = Open(loop_thread, tmp_path, ENGINE, uid=0, limits=limits)
    # The kernel takes the largest of those with the same mark: all others are small.
    fill = "for d in /tmp /var/tmp $HOME /dev/shm; do cat /dev/zero > $d/z; done 2> /dev/null"
    eat = "sh -c 'x=$(head -c 1500000 /dev/zero | tr \"\\0\" x); sleep 100; echo $x' &"
    command = f"echo 1000 > /proc/1/oom_score_adj; {fill}; for i in $(seq 60); do {eat} done; wait"
    future = open_.begin("run_command", command=command)
    assert_lost(future, "it ran out of memory", LIFE)
    assert_new_box(open_, "it ran out of memory")


# ─── J12: a second client at the stream ─────────────────────────────────────────────


def attached(id: str) -> socket.socket:
    """A second client of a container's stream, as `docker attach` makes it."""

    async def attach() -> socket.socket:
        async with await Engine.connect(Settings.load()) as engine:
            return await engine.attach(id)

    return asyncio.run(attach())


@pytest.mark.statement("J12")
def test_a_second_client_that_types_costs_that_loop_only(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """J12: what it types is no frame; the box ends with that cause, others go on."""
    open_ = Open(loop_thread, tmp_path, ENGINE, runtime=runtime)
    other = open_.another()
    future = open_.begin_long()
    with attached(open_.box.id) as intruder:
        intruder.sendall(b"ls -l\n" * 10)
        result = future.result(PROMPTLY)
    assert result.code is Code.PROTOCOL_ERROR
    assert "another client may be attached to it" in str(result.content), result.content
    assert_new_box(open_, "another client may be attached to it")
    fine = loop_thread.run(other.execute(Call("1", "run_command", {"command": "cat kept.txt"})))
    assert fine.content == "kept\n"


@pytest.mark.statement("J12")
def test_a_second_client_that_leaves_costs_that_loop_only(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """J12: when it goes, the engine closes the box's input, and the box ends."""
    open_ = Open(loop_thread, tmp_path, ENGINE, runtime=runtime)
    other = open_.another()
    future = open_.begin_long()
    attached(open_.box.id).close()
    if wait_for_result(future):
        assert_lost(future, "another client of the engine closed its input")
        assert_new_box(open_, "another client of the engine closed its input")
    fine = loop_thread.run(other.execute(Call("1", "run_command", {"command": "cat kept.txt"})))
    assert fine.content == "kept\n"


def wait_for_result(future: Future[Result]) -> bool:
    """Whether the call ends within some seconds."""
    with suppress(TimeoutError):
        future.result(5)
    return future.done()


@pytest.mark.statement("J12")
def test_a_second_client_that_reads_nothing_costs_that_loop_only(
    runtime: str, loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J12: the engine stops carrying output when one client takes none; the box counts as
    lost, with this among the causes, and others go on."""
    open_ = Open(loop_thread, tmp_path, ENGINE, runtime=runtime)
    other = open_.another()
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 1.0)
    monkeypatch.setattr(connection_module, "PING_PATIENCE", 4.0)
    command = {"command": "head -c 64000000 /dev/zero | tr '\\0' x", "timeout_ms": 600_000}

    async def flood() -> Result:
        async for event in open_.loop.stream([Call("1", "run_command", command)]):
            if isinstance(event, Finished):
                return event.result
        raise AssertionError("no result")

    with attached(open_.box.id):
        result = loop_thread.run(flood(), LIFE)
    assert result.code is Code.SANDBOX_LOST, str(result.content)[-300:]
    assert "another client attached to it takes no output" in str(result.content)
    assert_new_box(open_, "another client attached to it takes no output")
    fine = loop_thread.run(other.execute(Call("1", "run_command", {"command": "cat kept.txt"})))
    assert fine.content == "kept\n"


# ─── what closing can't do ──────────────────────────────────────────────────────────


@pytest.mark.statement("M3")
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_box_that_can_not_be_removed_is_ended_and_swept_later(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """M3: the engine refuses, or is cut off while it is asked: nothing runs any more, and
    the same controller's next sweep removes container and files although it lives."""
    monkeypatch.setattr(controller_module, "SWEEP_INTERVAL", 0.3)
    is_willing = threading.Event()

    async def refuse(request: Request) -> Instead | None:
        if is_willing.is_set() or request.method != "DELETE":
            return None
        if is_cut:
            raise Cut
        return Instead(500, "driver failed to remove root filesystem: device or resource busy")

    with engine_proxy(before=refuse) as proxy:
        open_ = Open(loop_thread, tmp_path, proxy.address)
        other = open_.another(exec_id="other")
        id = open_.box.id
        loop_thread.run(open_.loop._lane.close())
        wait_for_end(id, PROMPTLY)
        assert id in boxes(tmp_path), "it could not be removed"
        assert open_.controller._host is not None
        identity = open_.controller._host.identity
        assert [name for name in identity.left if name.startswith("executor-loop-")]
        is_willing.set()
        kept: Any = other._lane._box
        wait_until(lambda: boxes(tmp_path) == [kept.id], what="the sweep")
        wait_until(lambda: identity.left == set(), what="forgetting it")
        assert generated(tmp_path) == [kept.name]
        fine = loop_thread.run(other.execute(Call("1", "run_command", {"command": "cat kept.txt"})))
        assert fine.content == "kept\n"
        loop_thread.run(loop_thread.stack.aclose())
    assert leftovers_of(tmp_path) == []


@pytest.mark.statement("M3")
@pytest.mark.parametrize("is_done", [True, False])
def test_a_removal_that_another_hand_has_begun_is_waited_for(
    loop_thread: LoopThread,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_done: bool,
) -> None:
    """M3: the engine says that the box is being removed already: closing waits until it is
    gone; one that stays is not taken for gone, but told and left to the sweep."""
    monkeypatch.setattr(engine_module, "REMOVAL_PATIENCE", LIFE if is_done else 0.3)

    async def answer_first(request: Request) -> Instead | None:
        if request.method != "DELETE":
            return None
        if is_done:
            removal = ("rm", "--force", request.path.split("/")[2].split("?")[0])
            removals.append(asyncio.create_task(asyncio.to_thread(docker, *removal)))
        return Instead(409, "removal of this container is already in progress")

    removals: list[asyncio.Task[str]] = []
    with engine_proxy(before=answer_first) as proxy:
        open_ = Open(loop_thread, tmp_path, proxy.address)
        name = open_.box.name
        loop_thread.run(open_.loop._lane.close(), LIFE)
        if is_done:
            assert (boxes(tmp_path), generated(tmp_path)) == ([], [])
        else:
            assert (len(boxes(tmp_path)), generated(tmp_path)) == (1, [name])
        assert (f"the box {name} is left to the next sweep" in caplog.text) is not is_done
        loop_thread.run(loop_thread.stack.aclose())
    sweep(ENGINE, tmp_path)
    assert leftovers_of(tmp_path) == []


@pytest.mark.statement("M3")
def test_an_interrupted_run_says_what_it_had_to_leave(tmp_path: Path) -> None:
    """M3: Ctrl-C where the engine removes nothing: one line names what is left, and the next
    sweep takes it."""

    async def refuse(request: Request) -> Instead | None:
        return Instead(500, "device or resource busy") if request.method == "DELETE" else None

    root = make_worktree(tmp_path / "worktree")
    with engine_proxy(before=refuse) as proxy:
        process = subprocess.Popen(
            [sys.executable, "-m", "executor", "run", "--worktree", str(root)],
            env={
                **os.environ,
                "DOCKER_HOST": proxy.address,
                "EXECUTOR_STATE_DIR": str(tmp_path / "state"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin and process.stdout
        process.stdin.write('{"id": "1", "name": "list_directory", "input": {}}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIFE)
    assert process.returncode == 130
    pattern = (
        r"executor: ended by Ctrl-C; what was opened is cleaned away, but the box "
        r"executor-loop-\w+-\w+ is left to the next sweep"
    )
    assert re.fullmatch(pattern, said.splitlines()[-1]), said
    assert len(boxes(tmp_path)) == 1
    assert len(sweep(ENGINE, tmp_path).containers) == 1
    assert leftovers_of(tmp_path) == []


def test_an_engine_that_never_answers_does_not_keep_the_process(tmp_path: Path) -> None:
    """M3: what an engine was asked for and nobody waits for any more does not hold up the
    end of the process until the request's own time is over."""

    async def hold(request: Request) -> None:
        if request.path.startswith("/containers/json"):
            await asyncio.sleep(10 * LIFE)

    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from executor.sandbox.engine import Engine\n"
        "from executor.settings import Settings\n"
        "async def main():\n"
        "    settings = Settings(docker_host=sys.argv[1], state_directory=Path(sys.argv[2]))\n"
        "    async with await Engine.connect(settings) as engine:\n"
        "        await asyncio.wait_for(engine.list_containers({}), 0.5)\n"
        "asyncio.run(main())\n"
    )
    with engine_proxy(before=hold) as proxy:
        done = subprocess.run(
            [sys.executable, "-c", script, proxy.address, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=LIFE / 2,
            check=False,
        )
    assert done.stderr.rstrip().endswith("TimeoutError"), done.stderr


@pytest.mark.statement("M3")
@pytest.mark.parametrize("moment", ["during", "after"])
def test_a_container_whose_making_was_never_answered_is_removed(
    loop_thread: LoopThread, tmp_path: Path, moment: str
) -> None:
    """M3: the connection breaks while the engine makes the container: opening fails by a
    typed error, and what was made is found by its name and removed."""
    created = threading.Event()

    async def cut(request: Request) -> None:
        if kind_of(request) == "POST /containers/create":
            created.set()
            raise Cut

    with engine_proxy() as proxy:
        setattr(proxy, moment, cut)
        with pytest.raises(SandboxError, match="could not create container"):
            Open(loop_thread, tmp_path, proxy.address)
        assert created.is_set()
        if moment == "after":
            assert boxes(tmp_path) == []
        loop_thread.run(loop_thread.stack.aclose())
    # The engine may have been at it still when nobody waited any more: it is the sweep's.
    wait_until(lambda: not sweep(ENGINE, tmp_path).containers and boxes(tmp_path) == [])
    assert leftovers_of(tmp_path) == []


@pytest.mark.statement("M3")
def test_a_box_that_never_starts_is_removed(
    quiet: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """M3, casebook H71: created and refused at its start: the engine's reason is told, and
    no container and no file is left."""

    async def refuse(request: Request) -> Instead | None:
        is_start = kind_of(request) == "POST /containers/ID/start"
        return Instead(500, "no space left on this engine") if is_start else None

    with engine_proxy(quiet, before=refuse) as proxy:
        with pytest.raises(SandboxError, match=r"could not start container .* no space left"):
            Open(loop_thread, tmp_path, proxy.address)
        assert boxes(tmp_path, quiet) == []
        assert generated(tmp_path) == []
        loop_thread.run(loop_thread.stack.aclose())
    assert leftovers_of(tmp_path) == []


# ─── M4: two controllers, and others ────────────────────────────────────────────────


@pytest.fixture
def strangers() -> Iterator[list[str]]:
    """Running and ended containers of somebody else, with labels that look like ours."""
    image = docker("images", "-q", "--filter", "label=executor.kind=base").split()[0]
    labels = [
        ["executor.controllers=0123456789abcdef", "executor.boot=x", "executor.state=/tmp"],
        ["Executor.Controller=0123456789abcdef", "executor.expires=1"],
        ["com.example.executor.controller=1", "executor.loop=mine", "executor.expires=1"],
    ]
    ids = []
    try:
        for number, some in enumerate(labels):
            given = [word for label in some for word in ("--label", label)]
            command = "true" if number == 2 else "sleep 600"
            run = ("run", "-d", "--network", "none", "--name", f"executor-stranger-{number}")
            ids.append(docker(*run, *given, image, "sh", "-c", command))
        yield ids
    finally:
        for id in ids:
            docker("rm", "-f", id)


@pytest.mark.statement("M4")
def test_only_the_boxes_of_the_dead_are_swept(
    strangers: list[str], loop_thread: LoopThread, tmp_path: Path
) -> None:
    """M4, casebook H67: three loops of a killed controller are cleared away by one that
    starts after it; a living controller of the same state directory, one of another, and
    containers that only look like ours keep theirs."""
    ours, far = tmp_path / "ours", tmp_path / "far"
    for directory in (ours, far):
        directory.mkdir()
    alive = Open(loop_thread, ours, ENGINE)
    elsewhere = Open(loop_thread, far, ENGINE)
    killed: list[str] = []
    for _ in range(3):
        with victim.served(settings(ENGINE, ours), spec_of(ours)) as controller:
            controller.call("run_command", command="true")
            killed += [id for id in boxes(ours) if id not in (alive.box.id, *killed)]
            os.kill(controller.process.pid or 0, signal.SIGSTOP)
            # A stopped controller lives: its lock says so, whatever else it does not say.
            assert not set(sweep(ENGINE, ours).containers) & {*killed[-1:], alive.box.id}
            controller.process.kill()
            controller.process.join(LIFE)
    assert len(killed) == 3
    successor = Open(loop_thread, ours, ENGINE)
    wait_until(lambda: set(boxes(ours)) == {alive.box.id, successor.box.id}, what="the sweep")
    for other in (alive, elsewhere, successor):
        assert other.call("run_command", command="cat kept.txt").content == "kept\n"
    assert [status_of(id) for id in strangers] == ["running", "running", "exited"]


@pytest.mark.statement("M4")
def test_twenty_loops_at_once_beside_a_name_that_is_taken(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Casebook H68: the first name that we choose is a stranger's: that one is left alone,
    another name is taken, and all of twenty loops start."""
    tokens = iter(["cafe0001"])
    real = secrets.token_hex

    def chosen(count: int) -> str:
        return next(tokens, None) or real(count) if count == 4 else real(count)

    monkeypatch.setattr(secrets, "token_hex", chosen)
    image = docker("images", "-q", "--filter", "label=executor.kind=base").split()[0]
    taken = "executor-first-cafe0001"
    stranger = docker("run", "-d", "--network", "none", "--name", taken, image, "sleep", "600")
    try:
        first = Open(loop_thread, tmp_path, ENGINE, exec_id="first")
        assert first.box.name != taken

        async def many() -> list[Result]:
            async def one(number: int) -> Result:
                spec = spec_of(tmp_path, exec_id=f"many-{number}")
                async with first.controller.open(spec) as loop:
                    opened.add(number)
                    if len(opened) == 20:
                        all_open.set()
                    await asyncio.wait_for(all_open.wait(), 2 * LIFE)
                    return await loop.execute(Call("1", "read_file", {"path": "kept.txt"}))

            opened: set[int] = set()
            all_open = asyncio.Event()
            return list(await asyncio.gather(*map(one, range(20))))

        results = loop_thread.run(many(), 3 * LIFE)
        assert [result.content for result in results] == ["     1│kept"] * 20
        assert status_of(stranger) == "running"
        assert boxes(tmp_path) == [first.box.id]
    finally:
        docker("rm", "-f", stranger)


# ─── M6, M7: a box that nobody uses ─────────────────────────────────────────────────


@pytest.mark.statement("M6")
def test_a_box_that_is_never_used_is_given_back(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """M6: opened and left alone, the container is removed, with what ran in it; the first
    call has a new one and is told why, and so is a call after the next idle time."""
    limits = Limits(memory="256m", idle_seconds=0.5)
    open_ = Open(loop_thread, tmp_path, ENGINE, runtime=runtime, limits=limits)
    for _ in range(2):
        wait_until(lambda: boxes(tmp_path) == [], what="giving back")
        wait_until(lambda: generated(tmp_path) == [], what="the files' end")
        result = open_.call("run_command", command="cat kept.txt; ls /tmp; echo > /tmp/gone")
        assert result.content == (
            "kept\n[the sandbox is a new one (the box was given back after 0.5 s without a "
            "call): processes, /tmp and the working directory are gone, files in /workspace "
            "are intact]"
        )
        assert (result.code, result.is_error) == (None, False)


@pytest.mark.statement("M7")
def test_a_running_call_is_use_and_what_runs_in_the_background_is_not(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """M7: a command that runs four times as long as the idle time ends as usual, in the
    same box; a process that it left running does not keep the box."""
    marker = random.randrange(10**7, 10**8)
    limits = Limits(memory="256m", idle_seconds=0.5)
    open_ = Open(loop_thread, tmp_path, ENGINE, limits=limits)
    id = open_.box.id
    command = f"setsid sleep {marker} > /dev/null 2>&1 & sleep 2; echo done"
    result = open_.call("run_command", command=command)
    assert (result.content, result.details) == ("done\n", None)
    assert id in boxes(tmp_path) or boxes(tmp_path) == []
    wait_until(lambda: boxes(tmp_path) == [], what="giving back")
    assert processes_with(str(marker)) == []
