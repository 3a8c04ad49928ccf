"""Boxes under gVisor: what is as elsewhere, what its kernel does in another way.

The box's other tests run over it, too, with `pytest --runtime runsc`; what can't hold there
is marked `runc_only` with the reason, and what takes its place is here.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.errors import AgentLost, Code
from executor.model import Limits, LoopSpec
from executor.sandbox import connection
from executor.sandbox.engine import Engine
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.loops import Work, open_work

RUNTIME = "runsc"
SLACK = 5.0
"""Seconds on top of a deadline that a busy machine may take to tell."""


@pytest.fixture(scope="module", autouse=True)
def there_is_gvisor() -> None:
    """Skips aloud where the engine has no gVisor."""

    async def runtimes() -> tuple[str, ...]:
        async with await Engine.connect(Settings.load()) as engine:
            return engine.facts.runtimes

    if RUNTIME not in asyncio.run(runtimes()):
        pytest.skip(f"the engine has no runtime {RUNTIME}; scripts/gvisor.sh installs it")


def open_runsc(
    thread: LoopThread, directory: Path, limits: Limits = LIMITS, exec_id: str = "runsc"
) -> Box:
    """A box under gVisor, open until the thread ends."""
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=limits, exec_id=exec_id, runtime=RUNTIME)
    return Box(thread, thread.enter(open_docker_box(spec, directory / "state")), root, "docker")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One box for the module."""
    with LoopThread() as thread:
        yield open_runsc(thread, tmp_path_factory.mktemp("runsc"))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that are opened after this are listened to often, and not long."""
    monkeypatch.setattr(connection, "PING_INTERVAL", 0.1)
    monkeypatch.setattr(connection, "PING_PATIENCE", 2.0)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """A loop whose boxes are replaced when they are lost."""
    with open_work("docker", tmp_path, change=lambda spec: replace(spec, runtime=RUNTIME)) as made:
        yield made


# ─── the kernel is another one ──────────────────────────────────────────────────────


def test_gvisor_answers_and_no_claim_is_made_beyond_it(box: Box) -> None:
    """The box says that its kernel is its own, and which of our profiles is in force in it."""
    assert box.run("cat /proc/version").out.startswith(b"Linux version 4.4.0 ")
    assert os.uname().release.split("-")[0] != "4.4.0", "the machine's own"
    found = box.sandbox.capabilities
    assert (found["runtime"], found["own_kernel"]) == (RUNTIME, True)
    assert found["seccomp"].startswith("standard for gVisor (ours: ")
    assert (found["agent_protection"], found["path_resolution"]) == ("watchdog", "walk")
    assert found["pids"] == LIMITS.pids


def test_paths_are_walked_since_there_is_no_openat2(box: Box) -> None:
    """G1 by the walk: links, `..` and magic links lead nowhere outside, files are still found."""
    code = (
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.syscall(437, 0, 0, 0, 0), "
    )
    code += "ctypes.get_errno())"
    ran = box.run(None, argv=["python3"], script=".py", body=code.encode())
    assert ran.out == b"-1 38\n"
    box.run("mkdir -p d/e; echo inside > d/e/f; ln -s d/e good; ln -s /etc bad; ln -s / root")
    assert box.request("stat", {"path": "good/f"}).value["size"] == len("inside\n")
    for path in ("bad/passwd", "root/etc/passwd", "d/../../etc/passwd", "/proc/self/root/etc"):
        with pytest.raises(Exception, match="leads out of") as caught:
            box.request("stat", {"path": path})
        assert caught.value.code is Code.INVALID_PATH, path  # type: ignore[attr-defined]


# ─── process 1 can be killed and stopped from inside: the host sees to it ────────────


@pytest.mark.statement("J7")
def test_what_ends_processes_by_name_spares_the_agent(box: Box) -> None:
    """gVisor delivers every signal to process 1: all but KILL and STOP are ignored by it, and
    `pkill -9 python3`, which a model may well say, does not mean it."""
    signals = "HUP INT QUIT TERM USR1 USR2 PIPE ALRM SEGV ABRT 40"
    command = f"for s in {signals}; do kill -$s 1; done; pkill -9 python3; killall python3; echo ok"
    assert box.run(command).out == b"ok\n"
    assert box.run("echo still here").out == b"still here\n"
    assert box.run("kill -TERM $$; echo survived").value["signal"] == "SIGTERM"


STORMS = {
    "kill": "kill -9 1",
    "stop": "kill -STOP 1",
    "stop all": "while :; do kill -STOP -1; done",
    "continue": "for i in $(seq 200); do kill -STOP 1; kill -CONT 1; done",
    "interrupt": "for i in $(seq 200); do kill -INT 1; done",
    "kill all": "python3 -c 'import os; os.kill(-1, 9)'",
}


@pytest.mark.statement("J7", "J11")
@pytest.mark.parametrize("storm", STORMS)
def test_a_storm_of_signals_ends_in_time(
    work: Work, monkeypatch: pytest.MonkeyPatch, storm: str
) -> None:
    """The call is answered within its deadline, a lost box is said to be lost and never looks
    like success, and the next call works."""
    monkeypatch.setattr(connection, "CANCEL_MARGIN", 3.0)
    begun = time.monotonic()
    result = work.call(
        "run_command", command=f"{STORMS[storm]}; sleep 1; echo after", timeout_ms=2000
    )
    assert time.monotonic() - begun < 2 + 2 + 3 + SLACK
    if result.code is Code.SANDBOX_LOST:
        assert result.is_error
        assert work.opened[0].error is not None
    else:
        assert result.structured is not None, result.content
    if storm in ("kill", "stop"):
        assert result.code is Code.SANDBOX_LOST
        text = "137" if storm == "kill" else "not ended by the agent"
        assert text in str(work.opened[0].error)
    following = work.call("run_command", command="echo next")
    assert following.structured is not None, following.content
    assert following.structured["stdout"] == "next\n"


THIEF = r"""
import os, time
for number in os.listdir("/proc/1/fd"):
    path = f"/proc/1/fd/{number}"
    try:
        if os.readlink(path).startswith("host:"):
            if os.fork() == 0:
                file = os.open(path, os.O_RDONLY)
                while True:
                    try:
                        os.read(file, 65536)
                    except BlockingIOError:  # the agent's end does not wait: try again
                        pass
    except OSError:
        pass
open("/workspace/stealing", "w").close()
time.sleep(60)
"""
FORGER = r"""
import os, struct
reply = b'{"ok": {"exit_code": 0}}'
for number in os.listdir("/proc/1/fd"):
    path = f"/proc/1/fd/{number}"
    try:
        if os.readlink(path).startswith("host:"):
            file = os.open(path, os.O_WRONLY)
            os.write(file, struct.pack("!BII", 21, 9999, len(reply)) + reply)
    except OSError:
        pass
"""


@pytest.mark.parametrize("code", [THIEF, FORGER], ids=["thief", "forger"])
def test_a_stream_that_a_command_reaches_is_lost_and_nothing_more(
    watched: None, work: Work, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """J8 does not hold here: gVisor lets a command open the agent's descriptors. Whoever reads
    or writes on them loses the box, in time and with a typed error; the next one works."""
    monkeypatch.setattr(connection, "CANCEL_MARGIN", 3.0)
    work.write("attack.py", code)
    begun = time.monotonic()
    result = work.call("run_command", command="python3 attack.py", timeout_ms=3000)
    first = work.opened[0]
    if first.error is None:  # it was answered before the theft told
        result = work.call("run_command", command="sleep 5", timeout_ms=6000)
    assert result.code in (Code.SANDBOX_LOST, Code.PROTOCOL_ERROR), result.content
    assert time.monotonic() - begun < 30
    assert work.call("run_command", command="echo next").structured is not None
    assert len(work.opened) > 1


# ─── limits ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("I2")
def test_a_box_without_memory_is_lost_and_the_cause_is_named(work: Work) -> None:
    """The whole box is one process to the host's kernel: memory ends it, not one command."""
    result = work.call("run_command", command="python3 -c 'x = bytearray(2 << 30)'")
    assert result.code is Code.SANDBOX_LOST
    assert "memory" in str(work.opened[0].error)
    following = work.call("run_command", command="echo next")
    assert following.structured is not None and following.structured["stdout"] == "next\n"


@pytest.mark.statement("I1")
def test_the_limit_of_processes_is_the_boxs_own(loop_thread: LoopThread, tmp_path: Path) -> None:
    """`nproc` counts the processes of one box here: forks are refused, and another box of the
    same uid has all of its own."""
    limits = Limits(memory="512m", pids=40)
    box = open_runsc(loop_thread, tmp_path / "first", limits, "first")
    other = open_runsc(loop_thread, tmp_path / "second", limits, "second")
    future = box.start("for i in $(seq 60); do sleep 995 & done; wait", 10)
    assert other.run("for i in $(seq 20); do sleep 1 & done; wait; echo ok", 30).out == b"ok\n"
    ran = future.result(60)
    assert (ran.value["timed_out"], ran.value["limit"]) == (True, "pids"), ran
    assert box.run("echo next").out == b"next\n"


@pytest.mark.statement("I1")
def test_a_fork_bomb_is_cleared(loop_thread: LoopThread, tmp_path: Path) -> None:
    """A signal to all is not one moment here: it is sent until nobody is left."""
    box = open_runsc(loop_thread, tmp_path, Limits(memory="512m", pids=48), "bomb")
    box.run(":(){ :|:& };:", 2)
    for _ in range(20):  # a command that happens to find a free place clears nothing
        assert box.run("echo next").out == b"next\n"
        if int(box.run("ls -d /proc/[0-9]* | wc -l").out or 48) < 8:
            return
    raise AssertionError("the bomb goes on")


@pytest.mark.statement("I7")
def test_cores_are_limited_as_the_host_counts_them(loop_thread: LoopThread, tmp_path: Path) -> None:
    """Two busy processes get half a core of the host; gVisor itself counts otherwise."""
    box = open_runsc(loop_thread, tmp_path, Limits(memory="256m", cpus=0.5), "half")
    before = _host_seconds(box.sandbox.id)
    box.run(
        "timeout 4 sh -c 'while :; do :; done' & timeout 4 sh -c 'while :; do :; done'; wait", 30
    )
    used = _host_seconds(box.sandbox.id) - before
    assert used < 4 * 0.5 * 1.6


def _host_seconds(id: str) -> float:
    """Seconds of a core that the engine says a container has used."""
    done = subprocess.run(
        ["docker", "inspect", "--format", "{{.State.Pid}}", id],
        capture_output=True,
        check=True,
        timeout=30,
        text=True,
    )
    lines = Path(f"/proc/{done.stdout.strip()}/cgroup").read_text().splitlines()
    groups = {name: path for line in lines for _, names, path in [line.split(":", 2)]
              for name in names.split(",")}  # fmt: skip
    if "cpuacct" in groups:
        file = Path(f"/sys/fs/cgroup/cpuacct{groups['cpuacct']}/cpuacct.usage")
        return int(file.read_text()) / 1e9
    stat = Path(f"/sys/fs/cgroup{groups['']}/cpu.stat").read_text().split()
    return int(stat[stat.index("usage_usec") + 1]) / 1e6


def test_calls_that_end_at_once_cost_nobody_the_box(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Twenty commands that run into their time are all answered, by one box."""
    box = open_runsc(loop_thread, tmp_path, Limits(memory="1g", pids=256), "crowd")
    futures = [box.start("sleep 994 & sleep 994", 4, grace=1.0) for _ in range(20)]
    assert all(future.result(60).value["timed_out"] for future in futures)
    assert box.run("ps ax -o args | grep -c '[s]leep 994'").out == b"0\n"


# ─── the product on it ──────────────────────────────────────────────────────────────


def test_the_command_line_runs_on_it(tmp_path: Path) -> None:
    """`executor run --runtime runsc` answers every call, and leaves no container."""
    root = make_worktree(tmp_path / "worktree")
    calls = [
        {"id": "1", "name": "write_file", "input": {"path": "a.py", "content": "print(6 * 7)\n"}},
        {"id": "2", "name": "run_command", "input": {"command": "python3 a.py"}},
        {"id": "3", "name": "grep", "input": {"pattern": "print"}},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "executor", "run", "--runtime", RUNTIME, "--worktree", str(root)],
        input="".join(json.dumps(call) + "\n" for call in calls),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "EXECUTOR_STATE_DIR": str(tmp_path / "state")},
        check=False,
    )
    results: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["is_error"] for one in results] == [False] * 3, (done.stdout, done.stderr)
    assert "42" in results[1]["content"]
    assert (root / "a.py").stat().st_uid == root.stat().st_uid


def test_a_lost_box_of_the_lower_layer_is_typed(loop_thread: LoopThread, tmp_path: Path) -> None:
    """Without a loop around it the error says what happened."""
    box = open_runsc(loop_thread, tmp_path, exec_id="typed")
    with pytest.raises(AgentLost, match="ended with code 137"):
        box.run("kill -9 1; sleep 5", 10)
    with pytest.raises(AgentLost):
        box.run("true")
