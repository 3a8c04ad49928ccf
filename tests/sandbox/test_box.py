"""A whole box on the real engine: what is in force, what attacks come to, what is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.errors import (
    AgentLost,
    Code,
    ConfigError,
    ImageNotFound,
    SandboxError,
    SandboxUnavailable,
    ToolError,
)
from executor.model import Limits, LoopSpec
from executor.sandbox import connection as connection_module
from executor.sandbox import images
from executor.sandbox.box import SCRATCH
from executor.sandbox.container import LABEL_LOOP
from executor.sandbox.engine import Engine
from executor.sandbox.runtime import silent
from executor.settings import Settings
from tests.conftest import docker_box, make_worktree, open_docker_box
from tests.driver import Box, LoopThread


def inspected(box: Box) -> dict[str, Any]:
    """The engine's view of a box."""
    done = subprocess.run(
        ["docker", "inspect", box.sandbox.id], capture_output=True, check=True, timeout=30
    )
    value = json.loads(done.stdout)[0]
    assert isinstance(value, dict)
    return value


def names_of(exec_id: str) -> list[str]:
    """Containers of a loop, running or not."""
    done = subprocess.run(
        ["docker", "ps", "-aq", "--filter", f"label=executor.loop={exec_id}"],
        capture_output=True,
        check=True,
        timeout=30,
        text=True,
    )
    return done.stdout.split()


# ─── process 1 is out of reach: each sentence was tried on one engine, and is tried here ───


PROBE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, function):
    try:
        function()
        print(name, "ok")
    except OSError as error:
        print(name, error.errno)
attempt("fd", lambda: os.listdir("/proc/1/fd"))
attempt("mem", lambda: open("/proc/1/mem", "rb"))
attempt("environ", lambda: open("/proc/1/environ", "rb").read())
attempt("cwd", lambda: os.readlink("/proc/1/cwd"))
if libc.ptrace(16, 1, 0, 0) < 0:
    print("ptrace", ctypes.get_errno())
for number in (9, 19, 15, 2, 3, 1):
    os.kill(1, number)
print("alive")
"""


@pytest.mark.runc_only("gVisor lets a command list and open the descriptors of process 1")
def test_process_1_is_closed_to_its_children(container: Box) -> None:
    """Statement J8: descriptors, memory, environment and tracing of the agent are refused."""
    ran = container.run(None, argv=["python3"], script=".py", body=PROBE.encode())
    lines = dict(line.split(" ") for line in ran.out.decode().splitlines() if " " in line)
    assert lines == dict.fromkeys(("fd", "mem", "environ", "cwd"), "13") | {"ptrace": "1"}, ran


@pytest.mark.runc_only("gVisor delivers KILL and STOP to process 1")
def test_signals_from_inside_do_nothing_to_process_1(container: Box) -> None:
    """Statement J7 on runc: KILL, STOP, TERM, INT, QUIT and HUP leave the agent as it was."""
    command = "for s in KILL STOP TERM INT QUIT HUP USR1 PIPE ALRM; do kill -$s 1; done; echo ok"
    assert container.run(command).out == b"ok\n"
    assert container.run("echo still here").out == b"still here\n"


def test_killing_everything_ends_the_command_alone(container: Box) -> None:
    """Statement J11: `kill -9 -1` costs the caller's own processes; the next call works."""
    container.run("python3 -c 'import os; os.kill(-1, 9)'")
    assert container.run("echo next").out == b"next\n"


def test_a_loop_that_stops_everything_ends_with_its_timeout(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Statement J11: a loop of `kill -STOP -1` is answered; then the box serves or is lost."""
    box = docker_box(loop_thread, tmp_path, exec_id="stopper")
    ran = box.run("while :; do kill -STOP -1; done", 1)
    assert ran.value["timed_out"]
    assert box.run("echo next").out == b"next\n"


def test_a_frozen_box_is_lost_within_the_watchdogs_time(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box whose agent does not answer is killed, and the waiting call is told why."""
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 0.2)
    monkeypatch.setattr(connection_module, "PING_PATIENCE", 1.0)
    box = docker_box(loop_thread, tmp_path, exec_id="frozen")
    future = box.start("touch up; sleep 60", 50)
    box.run("until [ -e up ]; do sleep .02; done")
    subprocess.run(["docker", "pause", box.sandbox.id], check=True, timeout=30)
    with pytest.raises(AgentLost, match=r"did not answer for 1 s .*paused"):
        future.result(30)
    with pytest.raises(AgentLost):
        box.run("true")


@pytest.mark.parametrize("round_", range(20))
def test_a_process_that_sheds_every_mark_is_ended(container: Box, round_: int) -> None:
    """Statement I16: forking and calling setsid each generation, with no environment, TERM
    ignored: nothing is left after the timeout, and background processes of others live on."""
    container.run("setsid sleep 996 > /dev/null 2>&1 &")
    hydra = (
        "import os,signal,time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "    open('hydra','w').write(str(time.monotonic()))\n"
    )
    ran = container.run(f'env -i $(command -v python3) -c "{hydra}"; sleep 60', 0.5, grace=0.2)
    assert ran.value["timed_out"]
    listing = container.run("ps axo args").out.decode()
    assert "fork" not in listing, listing
    assert "sleep 996" in listing, listing
    container.run("pkill -f 'sleep 996'")


# ─── limits ─────────────────────────────────────────────────────────────────────────


@pytest.mark.runc_only("memory ends a box of gVisor as a whole")
def test_the_memory_limit_kills_the_command_and_is_named(container: Box) -> None:
    """Statement I2: the command dies, the agent lives, the result says why."""
    ran = container.run("python3 -c 'x = bytearray(2 << 30)'")
    assert (ran.value["oom"], ran.value["limit"]) == (True, "memory")
    assert container.run("echo next").value["limit"] is None


def test_a_fork_bomb_stops_at_the_limit_and_is_cleared(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Statement I1: forks are refused at the limit; the next command finds room again."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="512m", pids=64), "bomb")
    box.run(":(){ :|:& };:", 2)
    ran = box.run("echo next")
    assert ran.out == b"next\n"
    ran = box.run("for i in $(seq 200); do sleep 995 & done; wait", 3)
    assert ran.value["limit"] == "pids"
    assert box.run("echo next").out == b"next\n"


def test_full_tmpfs_kill_no_agent(container: Box) -> None:
    """Statements I3 and I15: every tmpfs stops at its size; commands go on."""
    fill = "for d in /tmp /var/tmp $HOME /dev/shm /run/executor; do cat /dev/zero > $d/fill; done"
    ran = container.run(f"{fill}; df | awk '$4 == 0' | wc -l")
    assert b"No space left on device" in ran.err
    ran = container.run("cat /dev/zero > /tmp/more")
    assert ran.value["limit"] == "disk"
    assert container.run("yes | head -c 1000000 | wc -c").out == b"1000000\n"
    flood = container.run("yes | head -c 3000000", head=100, tail=100)
    assert flood.value["stdout"]["total"] == 3_000_000
    container.run("rm -f /tmp/fill /tmp/more /var/tmp/fill $HOME/fill /dev/shm/fill")
    assert container.run(f"rm -f {SCRATCH}/fill; echo ok").out == b"ok\n"


@pytest.mark.runc_only("gVisor counts a waiting process as running")
def test_cpu_time_is_held_to_the_limit(loop_thread: LoopThread, tmp_path: Path) -> None:
    """Statement I7: two busy processes share half a core."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="256m", cpus=0.5), "half")
    spin = "timeout 4 sh -c 'while :; do :; done'"
    ran = box.run(f"{spin} & {spin} & wait; times", 60)
    minutes, seconds = ran.out.decode().split()[2].rstrip("s").split("m")
    assert float(minutes) * 60 + float(seconds) < 4 * 0.5 * 1.5


@pytest.mark.runc_only("/proc/self/status of gVisor tells less")
def test_isolation_that_was_asked_for_is_there(container: Box) -> None:
    """No capability, no new privileges, seccomp on, only loopback, read-only root, own uid."""
    status = container.run("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status").out.decode()
    found = dict(line.replace("\t", " ").split(": ") for line in status.splitlines())
    assert {name: int(value, 16) for name, value in found.items()} == {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0),
        "NoNewPrivs": 1,
        "Seccomp": 2,
    }
    assert container.run("ls /sys/class/net").out == b"lo\n"
    for directory in ("/", "/etc", "/usr", "/opt/executor"):
        assert b"Read-only file system" in container.run(f"touch {directory}/x").err, directory
    assert container.run("id -u; id -un; echo $HOME").out == b"1000\nsandbox\n/home/sandbox\n"


def test_nothing_of_the_hosts_environment_is_inside(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Casebook O105 and statement L1: a secret of the controller's environment is nowhere."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-7f3a")
    box = docker_box(loop_thread, tmp_path, exec_id="secret")
    ran = box.run("env; cat /proc/*/environ | tr '\\0' '\\n'; ls -a / $HOME /run /var/run")
    assert b"canary-7f3a" not in ran.out
    assert b"docker.sock" not in ran.out
    assert "canary-7f3a" not in json.dumps(inspected(box))


# ─── life and loss ──────────────────────────────────────────────────────────────────


def _lost(box: Box, kill: Callable[[], object]) -> SandboxError:
    future = box.start("touch up; sleep 60", 50)
    box.run("until [ -e up ]; do sleep .02; done")
    kill()
    with pytest.raises(SandboxError) as caught:
        future.result(15)
    return caught.value


def test_a_box_removed_by_another_hand_is_a_typed_error(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Casebook H69: `docker rm -f` in mid-call ends the call at once, with the cause."""
    box = docker_box(loop_thread, tmp_path, exec_id="removed")
    remove = ["docker", "rm", "-f", box.sandbox.id]
    error = _lost(box, lambda: subprocess.run(remove, check=True, capture_output=True, timeout=30))
    assert error.code is Code.SANDBOX_LOST
    with pytest.raises(AgentLost):
        box.request("stat", {"path": "."})
    assert (box.root / "up").exists()


def test_killing_the_agent_from_outside_is_a_typed_error(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """The engine's word on the exit is in the message."""
    box = docker_box(loop_thread, tmp_path, exec_id="killed")
    pid = inspected(box)["State"]["Pid"]
    error = _lost(box, lambda: os.kill(pid, signal.SIGKILL))
    assert "ended with code 137" in str(error)


@pytest.mark.runc_only("memory ends a box of gVisor as a whole")
def test_an_earlier_kill_for_memory_is_no_cause(loop_thread: LoopThread, tmp_path: Path) -> None:
    """The engine's `OOMKilled` is for ever; a later loss is not put down to it."""
    box = docker_box(loop_thread, tmp_path, exec_id="sticky")
    assert box.run("python3 -c 'x = bytearray(2 << 30)'").value["oom"]
    pid = inspected(box)["State"]["Pid"]
    error = _lost(box, lambda: os.kill(pid, signal.SIGKILL))
    assert "it ran out of memory" not in str(error)


def test_the_lease_ends_a_box_that_hears_nothing(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statement M5: without pings the agent ends its box, although the stream is open."""
    monkeypatch.setattr("executor.sandbox.box.LEASE", 1.5)
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 30.0)
    box = docker_box(loop_thread, tmp_path, exec_id="lease")
    done = subprocess.run(
        ["docker", "wait", box.sandbox.id], capture_output=True, timeout=30, check=True
    )
    assert done.stdout == b"0\n"


def test_a_pause_longer_than_the_lease_ends_nothing(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pings that waited through a pause are read before the lease is judged."""
    monkeypatch.setattr("executor.sandbox.box.LEASE", 2.0)
    monkeypatch.setattr(connection_module, "PING_SUSPICION", 60.0)
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 0.2)
    box = docker_box(loop_thread, tmp_path, exec_id="pause")
    subprocess.run(["docker", "pause", box.sandbox.id], check=True, timeout=30)
    loop_thread.run(asyncio.sleep(4))  # the fault under test is the passing of time itself
    subprocess.run(["docker", "unpause", box.sandbox.id], check=True, timeout=30)
    assert box.run("echo here").out == b"here\n"


def test_closing_leaves_nothing(tmp_path: Path) -> None:
    """After the context: no container, no generated file, no lock."""
    root = make_worktree(tmp_path / "worktree")
    state = tmp_path / "state"

    async def run() -> str:
        spec = LoopSpec(worktree=root, exec_id="closing-box")
        async with open_docker_box(spec, state) as sandbox:
            await sandbox.request("stat", {"path": "."}, timeout=10)
            return sandbox.id

    asyncio.run(run())
    assert names_of("closing-box") == []
    assert list(state.glob("controllers/*")) == []


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6])
def test_cancelling_while_a_box_opens_leaves_nothing(tmp_path: Path, delay: float) -> None:
    """Wherever opening is cut off, its container and files are removed."""
    root = make_worktree(tmp_path / "worktree")
    state = tmp_path / "state"
    exec_id = f"cancel-{int(delay * 100)}"

    async def run() -> None:
        async with open_docker_box(LoopSpec(worktree=root, exec_id=exec_id), state):
            await asyncio.Event().wait()

    async def scene() -> None:
        task = asyncio.ensure_future(run())
        await asyncio.sleep(delay)  # the moment is the parameter of this test
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)

    asyncio.run(scene())
    assert names_of(exec_id) == []
    assert list(state.glob("controllers/*")) == []


async def cancelled_to_the_end(task: asyncio.Task[None]) -> None:
    """Cancel the task in every round of the loop until it gives in, at most a minute."""
    async with asyncio.timeout(60):
        while not task.done():
            task.cancel()
            await asyncio.sleep(0.001)
    assert task.cancelled()


def test_cancelling_again_and_again_leaves_no_open_box(tmp_path: Path) -> None:
    """However often a task is cancelled: its box is gone when the task has ended."""
    root = make_worktree(tmp_path / "worktree")
    state = tmp_path / "state"

    async def scene() -> None:
        opened = asyncio.Event()

        async def use() -> None:
            async with open_docker_box(LoopSpec(worktree=root, exec_id="again-box"), state):
                opened.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(use())
        await asyncio.wait_for(opened.wait(), 60)
        await cancelled_to_the_end(task)
        assert names_of("again-box") == []

    asyncio.run(scene())
    assert list(state.glob("controllers/*")) == []


def test_cancelling_again_and_again_leaves_no_container_in_the_making() -> None:
    """A container that is being made is waited for and removed, however often it is cancelled."""
    name = f"making-{os.getpid()}"
    making = asyncio.Event()

    class Told(Engine):
        async def _call(self, what: str, function: Any, *arguments: Any, **more: Any) -> Any:
            loop = asyncio.get_running_loop()

            def told(*arguments: Any) -> Any:
                if what.startswith("create container"):
                    loop.call_soon_threadsafe(making.set)
                return function(*arguments)

            return await super()._call(what, told, *arguments, **more)

    async def make(engine: Engine) -> None:
        image = await images.ensure_image(engine, "base", silent)
        request = {"Image": image, "Cmd": ["true"], "Labels": {LABEL_LOOP: name}}
        await engine.create(f"executor-test-{name}", request)

    async def scene() -> None:
        engine = await Told.connect(Settings.load())
        task = asyncio.ensure_future(make(engine))
        await asyncio.wait_for(making.wait(), 60)
        await cancelled_to_the_end(task)
        await engine.close()
        # What was still asked of the engine has been answered then.
        await asyncio.to_thread(engine._pool.shutdown)
        assert names_of(name) == []

    try:
        asyncio.run(scene())
    finally:
        for id in names_of(name):
            subprocess.run(["docker", "rm", "-f", id], check=True, timeout=30)


def test_a_killed_controller_ends_its_box(tmp_path: Path) -> None:
    """EOF on the stream ends the agent: SIGKILL of the controller stops the box by itself."""
    root = make_worktree(tmp_path / "worktree")
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from executor.model import LoopSpec\n"
        "from tests.conftest import open_docker_box\n"
        "async def main():\n"
        f"    spec = LoopSpec(worktree={str(root)!r}, exec_id='orphan')\n"
        f"    async with open_docker_box(spec, Path({str(tmp_path / 'state')!r})) as box:\n"
        "        print(box.id, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    with child:
        id = child.stdout.readline().strip()
        begun = time.monotonic()
        child.kill()
    done = subprocess.run(["docker", "wait", id], capture_output=True, timeout=30, check=True)
    assert done.stdout == b"0\n"
    assert time.monotonic() - begun < 20
    subprocess.run(["docker", "rm", "-f", id], capture_output=True, check=True, timeout=30)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"image": "nope.invalid/x:1"}, ImageNotFound, "nope.invalid/x:1 is not on the engine"),
        ({"runtime": "nope"}, (ConfigError, SandboxUnavailable), "nope"),
        ({"worktree": "/nonexistent/w"}, ConfigError, "/nonexistent/w"),
        ({"worktree": "/etc/hostname"}, ConfigError, "/etc/hostname"),
        ({"worktree": "/etc"}, ConfigError, "/etc"),
    ],
)
def test_what_can_not_be_opened_is_refused_with_the_reason(
    tmp_path: Path, change: dict[str, Any], error: Any, text: str
) -> None:
    """Each kind of bad request has its own error, and leaves nothing."""
    root = make_worktree(tmp_path / "worktree")

    async def run() -> None:
        spec = LoopSpec(**{"worktree": root, "exec_id": "refused-box", **change})
        async with open_docker_box(spec, tmp_path / "state"):
            pass

    with pytest.raises(error, match=text):
        asyncio.run(run())
    assert names_of("refused-box") == []


def test_python_environments_are_made_in_a_box(container: Box) -> None:
    """Though the root is read-only; pip outside of one says what to do."""
    show = "/tmp/v/bin/python -c 'import sys; print(sys.prefix)'"
    made = container.run(f"python3 -m venv --without-pip /tmp/v && {show}; rm -r /tmp/v", 120)
    assert made.out == b"/tmp/v\n", made.err
    refused = container.run("pip install nothing", 120)
    assert refused.code == 1 and b"python3 -m venv" in refused.err


def test_files_made_inside_belong_to_the_worktrees_owner(container: Box) -> None:
    """Casebook H72: on the host everything is the owner's, with the usual mode."""
    container.run("touch made; mkdir madedir; umask")
    status = (container.root / "made").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1000, 1000, 0o644)


def test_an_unknown_operation_costs_nothing(container: Box) -> None:
    """The agent answers what it does not know with an error and goes on."""
    with pytest.raises(ToolError) as caught:
        container.request("nope", {})
    assert caught.value.code is Code.INTERNAL
    assert container.run("echo ok").out == b"ok\n"
