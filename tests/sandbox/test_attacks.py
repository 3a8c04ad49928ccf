"""Attacks of one command on the agent and on its neighbours: each was a fault once."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import resource
import signal
from pathlib import Path

import pytest

from executor.errors import Code, ToolError
from executor.model import Limits
from tests.conftest import docker_box
from tests.driver import Box, LoopThread, wait_until

FIND = "f=$(trap -p EXIT | grep -o '/run/executor/cwd-[0-9a-f]*' | head -1)"
"""How a command learns where the agent will read its directory."""


def test_an_end_by_a_nameless_signal_is_told(container: Box) -> None:
    """A real-time signal has a number only; the agent lives through it."""
    assert container.run("kill -40 $$").value["signal"] == "SIGRTMIN+6"
    assert container.run("echo next").out == b"next\n"


def test_a_trap_at_the_agents_own_files_holds_nothing_up(container: Box) -> None:
    """A command that puts a pipe where its directory is written only loses the directory."""
    ran = container.run(f"{FIND}; trap - EXIT; mkfifo $f")
    assert (ran.code, ran.value["cwd"]) == (0, "/workspace")
    names = "for i in $(seq 60); do mkfifo /run/executor/script-$i.py /run/executor/cwd-$i; done"
    container.run(names)
    ran = container.run(None, argv=["python3"], script=".py", body=b"print(1)")
    assert ran.out == b"1\n"
    assert container.run("cd .; echo ok").out == b"ok\n"
    container.run("rm -f /run/executor/script-* /run/executor/cwd-*")


def test_a_lie_about_the_directory_is_no_directory(container: Box) -> None:
    """What a command writes in the agent's file is a directory, or it is ignored."""
    ran = container.run(f"{FIND}; trap - EXIT; head -c 100000 /dev/urandom > $f")
    assert ran.value["cwd"] == "/workspace"


def test_a_directory_that_may_not_be_entered_is_left(container: Box) -> None:
    """The next command begins at the root, which is said; a named directory is an error."""
    ran = container.run("mkdir -p closed; cd closed; chmod 000 .")
    assert "may not be entered" in ran.value["notes"][0]
    assert container.run("pwd").out == b"/workspace\n"
    container.run("chmod 755 closed; cd closed")
    (container.root / "closed").chmod(0)
    ran = container.run("pwd")
    assert (ran.out, len(ran.value["notes"])) == (b"/workspace\n", 1)
    with pytest.raises(ToolError, match="may not be entered") as caught:
        container.run("pwd", cwd="closed")
    assert caught.value.code is Code.PERMISSION_DENIED
    container.run("chmod 755 closed")


def test_a_directory_that_became_a_link_is_left(container: Box) -> None:
    """A working directory that was swapped for a link out of the worktree is not followed."""
    container.run("mkdir -p swapped; cd swapped")
    (container.root / "swapped").rmdir()
    (container.root / "swapped").symlink_to("/etc")
    ran = container.run("pwd -P")
    assert ran.out == b"/workspace\n"
    assert "leads out of the worktree" in ran.value["notes"][0]


def test_a_worktree_that_may_not_be_entered_is_named(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """The reason is the worktree's, not a program's."""
    box = docker_box(loop_thread, tmp_path, exec_id="closed")
    box.root.chmod(0)
    for command in ("true", "echo 'x'"):
        with pytest.raises(ToolError, match="/workspace may not be entered") as caught:
            box.run(command)
        assert caught.value.code is Code.PERMISSION_DENIED
    box.root.chmod(0o755)


@pytest.mark.runc_only("gVisor starts 30 programs a second, not 500")
def test_a_hundred_calls_that_end_at_once_cost_nobody_the_box(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """One look serves all calls that are being ended: the agent goes on answering."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="1g", pids=512), "crowd")
    futures = [box.start("sleep 994 & sleep 994", 2, grace=1.0) for _ in range(120)]
    while not all(future.done() for future in futures):
        assert box.run("echo here").out == b"here\n"
    assert all(future.result().value["timed_out"] for future in futures)
    assert box.run("ps ax -o args | grep -c '[s]leep 994'").out == b"0\n"


def test_job_control_beside_a_timeout_is_not_disturbed(container: Box) -> None:
    """Ending one call must not show another call's children as stopped."""
    container.run("rm -f stop")
    watched = container.start(
        "set -m; while [ ! -e stop ]; do sleep 0.2; c=$?; [ $c = 0 ] || echo wrong $c; done"
    )
    for _ in range(4):
        assert container.run("sleep 993 & sleep 993", 0.3).value["timed_out"]
    container.run("touch stop")
    ran = watched.result(30)
    assert (ran.out, ran.err) == (b"", b"")


def test_a_forged_marker_of_a_later_call_protects_nothing(container: Box) -> None:
    """Only calls that there were can have background processes."""
    command = "EXECUTOR_CALL=${EXECUTOR_CALL%-*}-999999 setsid sleep 992 & sleep 60"
    assert container.run(command, 0.5).value["timed_out"]
    assert container.run("ps ax -o args | grep -c '[s]leep 992'").out == b"0\n"


@pytest.mark.runc_only("400 generations take gVisor longer than the call has")
def test_a_very_deep_tree_of_processes_is_ended(loop_thread: LoopThread, tmp_path: Path) -> None:
    """Four hundred generations that all wait: the agent climbs them without recursion."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="1g", pids=512), "deep")
    code = (
        "import os, time\n"
        "for _ in range(400):\n"
        "    if os.fork(): os.wait(); os._exit(0)\n"
        "open('bottom', 'w').close()\n"
        "time.sleep(60)\n"
    )
    future = box.start(None, 100, argv=["python3"], script=".py", body=code.encode())
    wait_until((box.root / "bottom").exists)
    future.cancel()
    wait_until(lambda: box.run("ps ax | wc -l").out.strip() < b"6")


@pytest.mark.parametrize("spoiler", ["chmod 000 /run/executor", "cat /dev/zero > /run/executor/x"])
def test_output_without_room_for_a_spool_is_never_made_up(
    loop_thread: LoopThread, tmp_path: Path, spoiler: str
) -> None:
    """Head and tail are true pieces of the output, and never overlap."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="256m"), "spool")
    box.run(f"{spoiler} 2>/dev/null")
    for count, head, tail in ((13_000, 50_000, 50_000), (300_000, 40_000, 40_000)):
        ran = box.run(f"seq {count}", head=head, tail=tail)
        text = b"".join(b"%d\n" % number for number in range(1, count + 1))
        kept = ran.value["stdout"]
        assert kept["total"] == len(text)
        assert kept["head"] + kept["tail"] <= kept["total"]
        assert text.startswith(ran.out[: kept["head"]])
        assert text.endswith(ran.out[kept["head"] :])


def test_a_full_scratch_directory_moves_no_command(loop_thread: LoopThread, tmp_path: Path) -> None:
    """Where the directory can't be written down the old one stays, without a false note."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="256m"), "scratch")
    box.run("mkdir -p d; cd d")
    box.run("cat /dev/zero > /run/executor/x 2>/dev/null")
    ran = box.run("echo 'hi'; cd /tmp")
    assert ran.value["cwd"] == "/workspace/d"
    assert ran.value["notes"] == []


def test_many_large_answers_are_sent_one_after_the_other(
    loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Sixty readings of 1 MB at once stay within a small box's memory."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="64m"), "answers")
    (box.root / "big").write_bytes(bytes(1_000_000))
    arguments = {"path": "big", "encoding": "base64"}

    async def all_at_once() -> list[int]:
        answers = await asyncio.gather(
            *(box.sandbox.request("read", dict(arguments), timeout=60) for _ in range(100))
        )
        return [len(answer.data) for answer in answers]

    assert loop_thread.run(all_at_once()) == [1_000_000] * 100
    assert not re.search(b"oom_kill [1-9]", box.run("cat /sys/fs/cgroup/memory*/*oom*").out)


COUNTED = """
import ctypes, json, resource
libc, timer, made = ctypes.CDLL(None), ctypes.c_void_p(), 0
while made < 10_000 and libc.timer_create(0, None, ctypes.byref(timer)) == 0:
    made += 1
limits = {}
for kind in (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE):
    soft, hard = limits[kind] = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (soft, hard + 1))
        limits[kind] = "raised"
    except (OSError, ValueError):
        pass
queues = 0
while queues < 100 and libc.mq_open(b"/queue-%d" % queues, 0o102, 0o600, None) >= 0:
    queues += 1
print(json.dumps([made, queues, *limits.values()]))
"""


@pytest.mark.runc_only("gVisor counts by itself, nothing of the host's")
def test_what_is_counted_by_uid_stays_below_a_persons_limits(container: Box) -> None:
    """A box of one's own uid can't use up the signals and queues that one has outside."""
    ran = container.run(None, 20, argv=["python3"], script=".py", body=COUNTED.encode())
    made, queues, signals, size = json.loads(ran.out)
    assert 4000 < made <= 4096
    assert 0 < queues < 6
    assert signals == [4096, 4096] and size == [400 << 10, 400 << 10]
    for kind, most in ((resource.RLIMIT_SIGPENDING, 4096), (resource.RLIMIT_MSGQUEUE, 400 << 10)):
        outside = resource.getrlimit(kind)[0]
        assert outside in (resource.RLIM_INFINITY,) or outside > most


TRACED = """
import ctypes, os, signal, sys
assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0
os.kill(os.getpid(), signal.SIGUSR1) if SIGNAL else os.execv("/bin/true", ["true"])
"""


@pytest.mark.parametrize("way", [0, 1], ids=["exec", "signal"])
def test_nobody_makes_the_agent_a_debugger(container: Box, way: int) -> None:
    """A command that has its parent trace it is ended, and was not reported as ended before."""
    body = TRACED.replace("SIGNAL", str(way)).encode()
    for _ in range(3):
        ran = container.run(None, 10, argv=["python3"], script=".py", body=body)
        assert (ran.value["signal"], ran.value["timed_out"]) == ("SIGKILL", False)
    states = container.run("grep -h ^State /proc/[0-9]*/status").out
    assert b"tracing" not in states and b"zombie" not in states


@pytest.mark.runc_only("gVisor has no leases")
def test_a_leased_program_holds_up_nothing(container: Box) -> None:
    """Starting a program that is leased outside ends with the command's own time limit.

    Inside nobody can take a lease (C11); the worktree's owner outside still may.
    """
    container.run("mkdir -p bin; cp /bin/true bin/leased")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    handle = os.open(container.root / "bin" / "leased", os.O_RDONLY)
    try:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        path = {"PATH": "/workspace/bin:/usr/bin:/bin"}
        ran = container.run("leased", 0.5, environment=path)
        assert ran.value["timed_out"], ran
        assert container.run("echo next").out == b"next\n"
    finally:
        os.close(handle)
        signal.signal(signal.SIGIO, before)
