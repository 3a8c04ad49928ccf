"""What goes on in the background: started, read, listed and ended through a whole loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from executor import background as registry
from executor.background import Background, Listed, Status, Written
from executor.catalog import SpillLimits, load
from executor.errors import AgentLost, Code, ToolError
from executor.loop import Loop
from executor.model import (
    BackgroundEnded,
    BackgroundStarted,
    Event,
    LoopSpec,
    Result,
)
from executor.sandbox.reaper import Identity
from executor.sandbox.spill import opened
from executor.scheduling import SESSION, intent_of
from executor.tool import Context, Order
from tests.agent.driver import changed
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread, wait_until
from tests.loops import Work, open_work, opener
from tests.test_catalog import with_user_file

TRANSPORTS = ["local", "docker"]
NUMBERS = itertools.count(7_310_001)
"""Seconds that processes of these tests sleep: each is found by its own."""


@pytest.fixture(scope="module", params=TRANSPORTS)
def work(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Work]:
    """One loop a module, over each transport."""
    with open_work(request.param, tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Work]:
    """A loop of its own."""
    with open_work("local", tmp_path) as made:
        yield made


def started(work: Work, command: str, **more: Any) -> str:
    """The id of a task."""
    result = work.call("run_command", command=command, run_in_background=True, **more)
    assert result.is_error is False, result.content
    assert result.structured is not None
    task_id = result.structured["task_id"]
    assert result.content == f"Background task started: {task_id}"
    assert isinstance(task_id, str)
    return task_id


def task_of(result: Result) -> dict[str, Any]:
    """The task's part of what `task_output` says."""
    assert result.structured is not None
    task = result.structured["task"]
    assert isinstance(task, dict)
    return task


def calling(work: Work, name: str, **given: Any) -> concurrent.futures.Future[Result]:
    """A call that is not waited for."""
    call = work.make(name, given)
    return asyncio.run_coroutine_threadsafe(work.loop.execute(call), work.thread.loop)


def listed(work: Work) -> tuple[Listed, ...]:
    return work.thread.run(work.loop.tasks())


def sleeping(number: int) -> bool:
    """Whether a process of this machine sleeps so long, in whatever box."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", b"%d" % number]:
                    return True
    return False


# ─── task_output ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "status", "exit_code", "header", "output"),
    [
        ("echo a; echo b >&2", "completed", 0, "completed, exit code 0", "a\n\n\nSTDERR:\nb\n"),
        ("echo a; exit 3", "failed", 3, "failed, exit code 3", "a\n"),
        ("true", "completed", 0, "completed, exit code 0", ""),
        ("kill -KILL $$", "failed", None, "failed\nKilled by signal SIGKILL", ""),
    ],
)
def test_a_task_is_read_when_it_has_ended(
    work: Work, command: str, status: str, exit_code: int | None, header: str, output: str
) -> None:
    """Waiting is the default; text and data say how it ended and what it printed."""
    task_id = started(work, command)
    result = work.call("task_output", task_id=task_id)
    assert result.structured == {
        "retrieval_status": "success",
        "task": {
            "output": output,
            "is_completed": True,
            "exit_code": exit_code,
            "status": status,
        },
    }
    assert result.content == "\n".join(filter(None, (f"{task_id}: {header}", output)))
    assert (result.is_error, result.truncated) == (False, False)


def test_a_running_task_is_looked_at_and_waited_for(work: Work) -> None:
    """Without waiting it is not ready, waiting too short is a timeout; what it has printed
    so far is shown in both cases, and nothing of it is used up."""
    task_id = started(work, "echo first; until [ -e go ]; do sleep 0.05; done; echo second")
    wait_until(lambda: task_of(peeked(work, task_id))["output"] == "first\n")
    result = peeked(work, task_id)
    assert result.structured is not None
    assert result.structured["retrieval_status"] == "not_ready"
    assert result.content == f"{task_id}: running\nfirst\n"
    result = work.call("task_output", task_id=task_id, timeout=50)
    assert result.structured is not None
    assert result.structured["retrieval_status"] == "timeout"
    assert result.content == f"{task_id}: still running after 50 ms\nfirst\n"
    assert task_of(result)["is_completed"] is False
    work.write("go", "")
    assert task_of(work.call("task_output", task_id=task_id))["output"] == "first\nsecond\n"
    (work.root / "go").unlink()


def peeked(work: Work, task_id: str) -> Result:
    return work.call("task_output", task_id=task_id, block=False)


def test_many_wait_for_one_task_and_one_of_them_is_cancelled(work: Work) -> None:
    """All see its end; who no longer waits ends nothing but the waiting."""
    task_id = started(work, "until [ -e go ]; do sleep 0.05; done; echo over")
    waiting = [calling(work, "task_output", task_id=task_id) for _ in range(4)]
    given_up = work.make("task_output", {"task_id": task_id})

    async def cancelled() -> None:
        task = asyncio.ensure_future(work.loop.execute(given_up))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    work.thread.run(cancelled())
    assert task_of(peeked(work, task_id))["status"] == "running"
    work.write("go", "")
    assert [task_of(one.result(30))["output"] for one in waiting] == ["over\n"] * 4
    (work.root / "go").unlink()


@pytest.mark.parametrize("name", ["task_output", "kill_shell"])
def test_an_unknown_id_is_named_with_the_known_ones(local: Work, name: str) -> None:
    """NOT_FOUND, and what there is: nothing, then the one that was started."""
    key = "task_id" if name == "task_output" else "shell_id"
    result = local.call(name, **{key: "bash_1"})
    assert (result.code, result.is_error) == (Code.NOT_FOUND, True)
    assert result.content == "There is no background task 'bash_1': none was started."
    started(local, "true")
    result = local.call(name, **{key: "bash_7\x1b"})
    assert result.content == "There is no background task 'bash_7\\x1b': known are bash_1."


# ─── start ──────────────────────────────────────────────────────────────────────────


def test_a_task_that_can_not_start_is_no_task(local: Work) -> None:
    """The call fails as it would without going on in the background; nothing is listed."""
    result = local.call("run_command", command="true\0", run_in_background=True)
    assert (result.code, listed(local)) == (Code.INVALID_ARGUMENTS, ())


def test_a_task_leaves_the_working_directory_of_the_loop(work: Work) -> None:
    """It begins where the loop is, and where it goes is its own affair."""
    work.write("sub/deep/x", "")
    work.call("run_command", command="cd sub")
    task_id = started(work, "pwd; cd deep")
    output = task_of(work.call("task_output", task_id=task_id))["output"]
    assert output.endswith("/sub\n")
    assert str(work.call("run_command", command="pwd; cd ..").content).endswith("/sub\n")


def test_a_timeout_that_was_given_holds(work: Work) -> None:
    """Without one a task has none; with one it is ended, and says so."""
    task_id = started(work, "echo x; sleep 600", timeout_ms=300)
    result = work.call("task_output", task_id=task_id)
    assert str(result.content).startswith(f"{task_id}: failed\nCommand timed out after 300ms\nx")
    result = work.call("run_command", command="true", run_in_background=True, timeout_ms=600_001)
    assert result.code is Code.INVALID_ARGUMENTS


def test_there_are_so_many_tasks_and_no_more(local: Work) -> None:
    """One more is refused with LIMIT while all run; an ended one makes room for a new one."""
    with changed(registry, MAX_TASKS=3):
        ids = [started(local, "sleep 600") for _ in range(3)]
        result = local.call("run_command", command="sleep 600", run_in_background=True)
        assert result.code is Code.LIMIT and "kill_shell" in str(result.content)
        local.call("kill_shell", shell_id=ids[1])
        ids.append(started(local, "sleep 600"))
        assert [one.id for one in listed(local)] == [ids[0], ids[2], ids[3]]
    for task_id in (ids[0], ids[2], ids[3]):
        local.call("kill_shell", shell_id=task_id)


def test_a_hundred_tasks_run_at_a_time(local: Work) -> None:
    """All of them are there, each with its own output, and each can be ended."""
    ids = [started(local, f"echo {number}; sleep 600") for number in range(100)]
    assert local.call("run_command", command="x", run_in_background=True).code is Code.LIMIT
    wait_until(lambda: task_of(peeked(local, ids[-1]))["output"] == "99\n")
    assert [task_of(peeked(local, one))["output"] for one in ids[:3]] == ["0\n", "1\n", "2\n"]
    killed = local.turn(*[("kill_shell", {"shell_id": task_id}) for task_id in ids])
    assert {result.code for result in killed} == {None}
    assert {one.status for one in listed(local)} == {Status.KILLED}


# ─── kill_shell ─────────────────────────────────────────────────────────────────────


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


def is_serving(work: Work, task_id: str) -> bool:
    return "Serving" in task_of(peeked(work, task_id))["output"]


def test_killing_a_server_frees_its_port(work: Work) -> None:
    """G64: the shell's child goes too, and the same command can be started again."""
    port = free_port()
    command = f"sh -c 'python3 -u -m http.server {port} --bind 127.0.0.1 & wait' 2>&1"
    for _ in range(2):
        task_id = started(work, command)
        wait_until(partial(is_serving, work, task_id))
        result = work.call("kill_shell", shell_id=task_id)
        assert result.content == f"Successfully killed shell: {task_id}"
        assert result.structured is not None and result.structured["status"] == "killed"
        task = task_of(work.call("task_output", task_id=task_id))
        assert (task["status"], task["is_completed"]) == ("killed", True)
        assert "Serving" in task["output"], "what it had printed is kept"


@pytest.mark.runc_only("this machine does not list the processes of gVisor")
def test_what_does_not_heed_term_is_killed(work: Work) -> None:
    """A whole tree that ignores TERM, with one in a session of its own, is gone."""
    number = next(NUMBERS)
    task_id = started(work, f"trap '' TERM; setsid sleep {number} & sleep {number} & wait; wait")
    wait_until(lambda: sleeping(number))
    assert work.call("kill_shell", shell_id=task_id).code is None
    assert not sleeping(number)


def test_what_ends_well_on_term_was_killed_all_the_same(work: Work) -> None:
    """The status is who ended it, whatever exit code it chose."""
    task_id = started(
        work,
        "exec 2>/dev/null; trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done",
    )
    wait_until(lambda: task_of(peeked(work, task_id))["output"] == "up\n")
    result = work.call("kill_shell", shell_id=task_id)
    assert result.content == f"Successfully killed shell: {task_id}"
    task = task_of(work.call("task_output", task_id=task_id))
    assert task == {"output": "up\nbye\n", "is_completed": True, "exit_code": 0, "status": "killed"}


def test_a_start_that_is_cancelled_leaves_no_task(local: Work) -> None:
    """A call that is given up as it begins has started nothing that nobody knows of."""
    numbers = [next(NUMBERS) for _ in range(8)]

    async def give_up(number: int, rounds: int) -> None:
        given = {"command": f"sleep {number}", "run_in_background": True}
        task = asyncio.ensure_future(local.loop.execute(local.make("run_command", given)))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    for rounds, number in enumerate(numbers):
        local.thread.run(give_up(number, rounds))
    known = {one.description for one in listed(local)}
    lost = [number for number in numbers if f"sleep {number}" not in known]
    assert lost, "at least the first was cancelled before it began"
    wait_until(lambda: not any(map(sleeping, lost)))


def test_killing_what_has_ended_says_so(work: Work) -> None:
    """Nothing is done, and how it ended is told; what it had left running is ended."""
    task_id = started(work, "exit 4")
    work.call("task_output", task_id=task_id)
    result = work.call("kill_shell", shell_id=task_id)
    assert result.content == f"{task_id} has already ended (failed, exit code 4); nothing was done"
    assert (result.is_error, result.code) == (False, None)
    number = next(NUMBERS)
    task_id = started(work, f"sleep {number} & exit 0")
    work.call("task_output", task_id=task_id)
    wait_until(lambda: sleeping(number))  # a shell becomes the sleep, and for a moment neither is
    assert ("process", 1) in [
        (one.kind, one.processes) for one in listed(work) if one.id == task_id
    ]
    result = work.call("kill_shell", shell_id=task_id)
    assert str(result.content).endswith("what it had left running was ended (1 process)")
    assert not sleeping(number)


# ─── what is listed ─────────────────────────────────────────────────────────────────


@pytest.mark.runc_only("this machine does not list the processes of gVisor")
def test_what_calls_left_running_is_listed_and_can_be_ended(work: Work) -> None:
    """F45: children of a call that has ended have an id; ending one leaves the others, and
    running tasks, alone."""
    first, second, third = (next(NUMBERS) for _ in range(3))
    work.call("run_command", command=f"sleep {first} & echo hi")
    work.call("run_command", command=f"(sleep {second} & sleep {second} &) ; echo hi")
    task_id = started(work, f"sleep {third}", description="a long sleep")
    wanted = {f"sleep {first}", f"sleep {second}"}
    # What has been forked has to become a sleep first.
    wait_until(lambda: wanted <= {one.description for one in listed(work)})
    found = {one.description: one for one in listed(work)}
    assert found["a long sleep"] == Listed(task_id, "task", "a long sleep", Status.RUNNING)
    one, two = found[f"sleep {first}"], found[f"sleep {second}"]
    assert (one.kind, one.processes, two.processes) == ("process", 1, 2)
    result = work.call("kill_shell", shell_id=two.id)
    assert result.content == f"Ended what {two.id} had left running: 2 processes"
    assert (sleeping(first), sleeping(second), sleeping(third)) == (True, False, True)
    for shell_id in (one.id, task_id):
        assert work.call("kill_shell", shell_id=shell_id).code is None
    assert not sleeping(first) and not sleeping(third)
    result = work.call("kill_shell", shell_id=one.id)
    assert (result.code, result.content) == (Code.NOT_FOUND, f"{one.id} has left nothing running.")


# ─── events ─────────────────────────────────────────────────────────────────────────


def test_a_task_that_ends_by_itself_is_told(local: Work) -> None:
    """Start and end come as events of the loop, between calls, without anybody asking."""
    seen: list[Event] = []
    is_over = threading.Event()

    async def listen() -> None:
        async for event in local.loop.events():
            if isinstance(event, BackgroundStarted | BackgroundEnded):
                seen.append(event)
            if isinstance(event, BackgroundEnded):
                is_over.set()

    listening = asyncio.run_coroutine_threadsafe(listen(), local.thread.loop)
    task_id = started(local, "sleep 0.2; exit 5", description="fails")
    assert is_over.wait(20)
    listening.cancel()
    told = [replace(event, exec_id="", seq=0, monotonic_ms=0.0) for event in seen]
    assert told == [
        BackgroundStarted(task_id=task_id, description="fails"),
        BackgroundEnded(task_id=task_id, status="failed", exit_code=5),
    ]


# ─── how long it lives ──────────────────────────────────────────────────────────────


@pytest.mark.runc_only("this machine does not list the processes of gVisor")
@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_task_lives_as_long_as_its_loop(kind: str, tmp_path: Path) -> None:
    """G65: it goes on while other calls are made, and is gone once the loop is closed."""
    number = next(NUMBERS)
    with open_work(kind, tmp_path) as work:
        command = f"sleep {number} & while :; do date +%s%N > hb; sleep 0.05; done"
        started(work, command)
        beats = set[str]()

        def goes_on() -> bool:
            beats.add(str(work.call("run_command", command="cat hb").content))
            return len(beats) > 3

        wait_until(goes_on)
        assert sleeping(number)
    assert not sleeping(number)


def test_a_task_keeps_an_idle_box_and_its_end_gives_it_free(tmp_path: Path) -> None:
    """M7: a box is not idle while a task of the loop runs in it."""
    limits = replace(LIMITS, idle_seconds=0.2)
    with open_work("local", tmp_path, limits) as work:
        task_id = started(work, "sleep 1; echo done")
        result = work.call("task_output", task_id=task_id)
        assert task_of(result)["output"] == "done\n"
        assert (result.details, len(work.opened)) == (None, 1)
        wait_until(lambda: work.opened[0].error is not None)
        assert task_of(work.call("task_output", task_id=task_id))["output"] == "done\n"


def test_a_task_whose_box_is_lost_is_lost_with_the_reason(local: Work) -> None:
    """The next calls say so; what an ended one had printed is still there."""
    ended = started(local, "echo kept")
    local.call("task_output", task_id=ended)
    task_id = started(local, "echo x; sleep 600")
    connection = local.opened[0]._connection  # type: ignore[attr-defined]
    local.thread.loop.call_soon_threadsafe(connection.lose, AgentLost("ended from outside"))
    result = local.call("task_output", task_id=task_id)
    assert str(result.content).startswith(f"{task_id}: lost\nlost: ended from outside")
    assert task_of(result)["status"] == "lost" and task_of(result)["is_completed"] is True
    assert task_of(local.call("task_output", task_id=ended))["output"] == "kept\n"
    result = local.call("kill_shell", shell_id=task_id)
    assert str(result.content).startswith(f"{task_id} has already ended (lost); nothing was done")


# ─── long outputs ───────────────────────────────────────────────────────────────────


def test_a_long_output_is_cut_in_the_middle_and_kept(tmp_path: Path) -> None:
    """Beginning and end are shown, and all is kept: of a running one what there is so far.

    A later look takes the place of the one before.
    """
    root = make_worktree(tmp_path / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test")
    with Identity.claim(tmp_path / "state") as identity:
        with opened(identity, "test", SpillLimits()) as results, LoopThread() as thread:
            loop = Loop(spec, load(), opener("local", tmp_path), spill=results)
            thread.enter(loop._opened())
            work = Work(thread, loop, root, "local")
            task_id = started(work, "seq 100000; until [ -e go ]; do sleep 0.05; done")
            wait_until(lambda: "\n100000\n" in task_of(peeked(work, task_id))["output"])
            running = peeked(work, task_id)
            assert running.truncated and running.spill is not None
            assert f"bytes left out; full text: {running.spill}]" in str(running.content)
            (kept,) = results.directory.iterdir()
            assert kept.name == Path(running.spill).name and kept.stat().st_size == 588_895
            looked = peeked(work, task_id)
            assert f"it takes the place of {kept.name}" in str(looked.content)
            assert len(list(results.directory.iterdir())) == 1
            (root / "go").touch()
            result = work.call("task_output", task_id=task_id)
            output = task_of(result)["output"]
            assert output.startswith("1\n2\n") and output.endswith("\n99999\n100000\n")
            assert result.truncated and result.total_bytes == 588_895
            assert result.spill is not None and result.spill in str(result.content)
            assert len(str(result.content)) <= load().tools["task_output"].max_output_bytes


def test_what_a_running_task_has_written_over_is_counted(tmp_path: Path) -> None:
    """Of 40 MB that a task has printed, and goes on to, both ends are kept, with a mark."""
    root = make_worktree(tmp_path / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test")
    with Identity.claim(tmp_path / "state") as identity:
        with opened(identity, "test", SpillLimits()) as results, LoopThread() as thread:
            loop = Loop(spec, load(), opener("local", tmp_path), spill=results)
            thread.enter(loop._opened())
            work = Work(thread, loop, root, "local")
            command = "seq 1 5000000; echo 40 MB; until [ -e go ]; do seq 9; sleep 0.02; done"
            task_id = started(work, command)
            wait_until(lambda: "40 MB" in task_of(peeked(work, task_id))["output"])
            running = peeked(work, task_id)
            assert running.spill is not None and running.total_bytes is not None
            (kept,) = results.directory.iterdir()
            data = kept.read_bytes()
            assert data.startswith(b"1\n2\n") and b"\n5000000\n40 MB\n" in data
            assert len(data) <= (16 << 20) + 100 and b" bytes were not kept]\n" in data
            assert "bytes were not kept" in str(running.content)
            (root / "go").touch()
            work.call("task_output", task_id=task_id)


def test_what_is_cut_by_the_asking_tools_limit_alone_is_kept_too(tmp_path: Path) -> None:
    """What ran had room enough for its output, and who asks for it has not."""
    catalog = load()
    small = replace(catalog.tools["task_output"], max_output_bytes=2000)
    catalog = replace(catalog, tools={**catalog.tools, "task_output": small})
    root = make_worktree(tmp_path / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test")
    with Identity.claim(tmp_path / "state") as identity:
        with opened(identity, "test", SpillLimits()) as results, LoopThread() as thread:
            loop = Loop(spec, catalog, opener("local", tmp_path), spill=results)
            thread.enter(loop._opened())
            work = Work(thread, loop, root, "local")
            task_id = started(work, "seq 2000")
            result = work.call("task_output", task_id=task_id)
            again = work.call("task_output", task_id=task_id)
            assert result.truncated and result.spill == again.spill
            (kept,) = results.directory.iterdir()
            assert kept.read_text() == "".join(f"{n}\n" for n in range(1, 2001))
            results._limits = replace(results._limits, files=1)
            work.call("run_command", command="seq 100000")
            result = work.call("task_output", task_id=task_id)
            assert result.spill is None
            assert "1.txt was dropped to make room" in str(result.content)


# ─── other kinds of tasks ───────────────────────────────────────────────────────────


class Agent:
    """A task that is no command."""

    exit_code = None

    def __init__(self, task_id: str) -> None:
        self.id = task_id
        self.description = "an agent"
        self.status = Status.RUNNING
        self._over = asyncio.Event()

    async def wait(self) -> None:
        """Until it is killed."""
        await self._over.wait()

    async def output(self, context: Any) -> Written:
        """Always the same."""
        return Written("word " * 50_000)

    async def kill(self) -> str | None:
        """End it."""
        self.status = Status.KILLED
        self._over.set()
        return None


def test_whatever_registers_is_read_and_ended_through_the_same_tools(local: Work) -> None:
    """An agent's id goes where a command's goes, and its long text is cut like any other."""
    background = local.loop.session.background

    async def add() -> None:
        background.add(Agent(background.new_id("agent")))

    local.thread.run(add())
    result = local.call("task_output", task_id="agent_1", block=False)
    assert str(result.content).startswith("agent_1: running\nword word") and result.truncated
    assert local.call("kill_shell", shell_id="agent_1").content == (
        "Successfully killed shell: agent_1"
    )
    assert [one.status for one in listed(local)] == [Status.KILLED]


@pytest.mark.parametrize("kind", ["spec", "phase", "code"])
def test_what_nobody_could_read_is_not_started(kind: str, tmp_path: Path) -> None:
    """A loop whose type has no task_output starts no background task, and says why."""
    with open_work("local", tmp_path, change=lambda spec: replace(spec, loop_type=kind)) as made:
        refused = made.call("run_command", command="touch x", run_in_background=True)
        assert refused.code is Code.INVALID_ARGUMENTS
        assert "no tool to read or end what runs in the background" in str(refused.content)
        assert listed(made) == () and not (made.root / "x").exists()
        assert not made.call("run_command", command="true", run_in_background=False).is_error


def test_a_type_with_task_output_may_start_tasks(tmp_path: Path) -> None:
    """What decides is whether the loop has the tool, in toolsets of the catalog's too."""
    toml = '[loop_types.runner]\ntools = ["run_command", "task_output"]\n'
    catalog = with_user_file(toml)
    with open_work(
        "local", tmp_path, catalog=catalog, change=lambda spec: replace(spec, loop_type="runner")
    ) as made:
        assert task_of(made.call("task_output", task_id=started(made, "true")))["exit_code"] == 0
    catalog = with_user_file("[tools.task_output]\nenabled = false\n")
    (tmp_path / "other").mkdir()
    with open_work(
        "local",
        tmp_path / "other",
        catalog=catalog,
        change=lambda spec: replace(spec, toolset="claude-code"),
    ) as made:
        refused = made.call("Bash", command="true", run_in_background=True)
        assert refused.code is Code.INVALID_ARGUMENTS


def test_ids_are_counted_by_kind() -> None:
    """The numbers of one kind don't depend on the others."""
    background = Background()
    kinds = ("bash", "agent", "bash", "agent")
    assert [background.new_id(kind) for kind in kinds] == ["bash_1", "agent_1", "bash_2", "agent_2"]


def test_ended_tasks_make_room_oldest_first() -> None:
    """Of many that have ended the first is forgotten; while all run there is no room."""
    background = Background()
    tasks = [Agent(f"agent_{number}") for number in range(registry.MAX_TASKS)]
    for task in tasks:
        background.require_room()
        background.add(task)
    with pytest.raises(ToolError) as caught:
        background.require_room()
    assert caught.value.code is Code.LIMIT
    tasks[5].status = tasks[7].status = Status.COMPLETED
    background.require_room()
    assert background.get("agent_5") is None and background.get("agent_7") is tasks[7]


# ─── order ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", ["ls", "tail -f log", "touch a"])
def test_what_is_about_tasks_waits_for_their_start(local: Work, command: str) -> None:
    """However harmless the command: a turn may start a task and read it."""
    tool = local.loop.registry.get("run_command")
    assert tool is not None
    arguments = tool.parse({"command": command, "run_in_background": True})
    context = Context("1", tool.entry, local.loop._surroundings)
    intent = intent_of(tool, arguments, context)
    assert (intent.order, intent.beside) == (Order.UNSAFE, SESSION)
    results = local.turn(
        ("run_command", {"command": "echo hi", "run_in_background": True}),
        ("task_output", {"task_id": f"bash_{len(listed(local)) + 1}"}),
    )
    assert task_of(results[1])["output"] == "hi\n"


def test_bash_takes_milliseconds_and_runs_in_the_background(local: Work) -> None:
    """The arguments of the `claude-code` toolset's command do the same."""
    from executor.tools import commands

    given = commands.Bash.model_validate(
        {"command": "sleep 600", "timeout": 100, "description": "x"}, strict=True
    )
    tool = local.loop.registry.get("run_command")
    assert tool is not None
    context = Context("1", tool.entry, local.loop._surroundings)
    outcome = local.thread.run(commands.bash(context, given))
    assert (outcome.code, outcome.is_error) == (Code.TIMEOUT, True)
    assert str(outcome.content).startswith("Command timed out after 100ms\n")
    given = given.model_copy(update={"timeout": None, "run_in_background": True})
    outcome = local.thread.run(commands.bash(context, given))
    assert outcome.content == "Background task started: bash_1"
    given = given.model_copy(update={"timeout": 600_001})
    with pytest.raises(ToolError, match="timeout is 600001, and at most 600000 is allowed"):
        local.thread.run(commands.bash(context, given))
