"""I: limits of a box's resources, exhausted from inside and measured from the host."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.errors import AgentLost, Code, ConfigError, SandboxError
from executor.model import Limits, LoopSpec
from executor.sandbox.container import memory_files
from executor.sandbox.facts import EngineFacts
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.loops import Work, open_work
from tests.security.probes import PRELUDE, PYTHON, probe


def _box(
    thread: LoopThread,
    directory: Path,
    runtime: str,
    limits: Limits = LIMITS,
    uid: int | None = None,
    exec_id: str = "limits",
) -> Box:
    root = make_worktree(directory / "worktree")
    if uid is not None:
        os.chown(root, uid, uid)
    spec = LoopSpec(worktree=root, limits=limits, exec_id=exec_id, runtime=runtime)
    sandbox = thread.enter(open_docker_box(spec, directory / "state"))
    return Box(thread, sandbox, root, "docker")


@pytest.fixture(scope="module")
def work(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A loop with all its tools, over each runtime."""
    directory = tmp_path_factory.mktemp(runtime)
    with open_work(
        "docker", directory, Limits(memory="1g", pids=256), lambda s: replace(s, runtime=runtime)
    ) as opened:
        yield opened


def box_of(work: Work) -> Box:
    """The box that the loop has now."""
    sandbox: Any = work.opened[-1]
    return Box(work.thread, sandbox, work.root, "docker")


class Group:
    """The control group of a box, as the host sees it; version 1 or 2."""

    def __init__(self, box: Box) -> None:
        self.inspected = json.loads(
            subprocess.run(
                ["docker", "inspect", box.sandbox.id], capture_output=True, check=True, timeout=30
            ).stdout
        )[0]
        self.pid = int(self.inspected["State"]["Pid"])
        self._places: dict[str, Path] = {}
        for line in Path(f"/proc/{self.pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for name in controllers.split(","):
                base = Path("/sys/fs/cgroup") / name
                self._places[name] = Path(f"{base}{path}")

    def number(self, old: str, new: str) -> int:
        """A number by its file of version 1 (`controller/file`), or of version 2."""
        controller, _, file = old.partition("/")
        place = self._places.get(controller)
        text = (place / file if place else self._places[""] / new).read_text()
        return int(text.split()[0])

    def pids(self) -> int:
        """Processes and threads that there are on the host."""
        return self.number("pids/pids.current", "pids.current")

    def memory(self) -> int:
        """Bytes that are in use."""
        return self.number("memory/memory.usage_in_bytes", "memory.current")

    def processor(self) -> float:
        """Seconds of processor time that were used."""
        if "cpuacct" in self._places:
            return self.number("cpuacct/cpuacct.usage", "") / 1e9
        lines = (self._places[""] / "cpu.stat").read_text().split()
        return int(lines[1]) / 1e6


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _until(holds: Any, seconds: float = 30) -> None:
    """Waits for what nothing else tells."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


# ─── processes ──────────────────────────────────────────────────────────────────────

BOMB = """
import os
open("/workspace/up", "w").close()
while True:
    try:
        os.fork()
    except OSError as error:
        open("/workspace/refused", "a").write(str(error.errno))
"""


@pytest.mark.statement("I1")
def test_a_fork_bomb_disturbs_no_other_box(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Forks are refused at the limit, another box works on, and nothing is left.

    gVisor has no limit of processes of its own. The engine's holds its threads on the host;
    the memory that the processes take may end that box first, which is told.
    """
    limits = Limits(memory="256m", pids=64)
    bomber = _box(loop_thread, tmp_path / "a", runtime, limits, exec_id="bomber")
    other = _box(loop_thread, tmp_path / "b", runtime, exec_id="bystander")
    group = Group(bomber)
    ceiling = 64 if runtime == "runc" else 4096
    future = bomber.start(None, 4, argv=["python3"], script=".py", body=BOMB.encode(), grace=0.5)
    _until((bomber.root / "up").exists)
    times, most = [], 0
    for _ in range(5):
        began = time.monotonic()
        assert other.run("true").code == 0
        times.append(time.monotonic() - began)
        most = max(most, group.pids() if Path(f"/proc/{group.pid}").exists() else 0)
    assert sorted(times)[2] < 2 and most <= ceiling, (times, most)
    try:
        ran = future.result(60)
    except AgentLost as error:
        assert runtime == "runsc" and "memory" in str(error), error
        _until(lambda: not Path(f"/proc/{group.pid}").exists())
        return
    assert ran.value["timed_out"]
    if runtime == "runc":
        assert ran.value["limit"] == "pids"
        assert (bomber.root / "refused").read_text().startswith("11")
        _until(lambda: group.pids() == 1)  # the agent; the others are killed, and take time to die
    assert bomber.run("echo next").out == b"next\n"


@pytest.mark.statement("I10")
def test_nothing_of_a_command_outlives_its_timeout(work: Work) -> None:
    """Children in sessions, groups and daemons of their own are gone; earlier ones live."""
    box = box_of(work)
    box.run("setsid sleep 1998 > /dev/null 2>&1 &")
    ran = box.run(
        "sleep 999 & setsid sleep 999 & nohup sleep 999 & (setsid sh -c 'sleep 999 & sleep 999' &)"
        " & setsid -f sh -c 'trap \"\" TERM HUP; sleep 999'; disown -a;"
        " env -i setsid sh -c 'exec -a kworker sleep 999' & (exec -a '' sleep 999) & sleep 999",
        1,
        grace=0.5,
    )
    assert ran.value["timed_out"] and not ran.value["notes"]
    listing = box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out.decode()
    assert "999" not in listing, listing
    assert listing.count("sleep 1998") == 1
    box.run("pkill -f 'sleep 1998'")


STUCK = {
    "ignores TERM": "trap '' TERM INT HUP; while :; do sleep 99; done",
    "is stopped": "kill -STOP $$; sleep 99",
    "stops all it has": "sleep 99 & kill -STOP $!; kill -STOP $$",
    "is traced": "true",
    "waits for a child of vfork": "true",
}
VFORK = """
import ctypes, os
libc = ctypes.CDLL(None)
if libc.vfork() == 0:  # the parent is in uninterruptible sleep until the child is gone
    libc.pause()
"""
TRACED = """
import ctypes, os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    signal.pause()
ctypes.CDLL(None).ptrace(16, child, 0, 0)
os.waitpid(child, 0)
signal.pause()
"""


@pytest.mark.statement("I11")
@pytest.mark.parametrize("kind", STUCK)
def test_a_process_that_does_not_end_is_ended(work: Work, kind: str) -> None:
    """The answer comes within the grace and 5 s, whatever state the process is in.

    Uninterruptible sleep can't be had for longer here than vfork's: the worktree is on a
    local disk and there is no FUSE. What a process in it costs is bounded by
    `commands.GIVE_UP`.
    """
    box = box_of(work)
    script = {"is traced": TRACED, "waits for a child of vfork": VFORK}.get(kind)
    began = time.monotonic()
    if script is None:
        ran = box.run(STUCK[kind], 0.5, grace=0.5)
    else:
        body = script.encode()
        ran = box.run(None, 0.5, argv=["python3"], script=".py", body=body, grace=0.5)
    assert ran.value["timed_out"] and "stuck" not in str(ran.value["notes"]), ran
    assert time.monotonic() - began < 0.5 + 0.5 + 5
    assert box.run("echo next").out == b"next\n"
    assert "script-" not in box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out.decode()


@pytest.mark.statement("I12")
def test_a_thousand_commands_leave_no_zombie_and_no_wrong_status(work: Work, runtime: str) -> None:
    """Each leaves an orphan that ends in its own time; every exit code is the command's.

    A hundred over gVisor, where a command of this kind takes a tenth of a second.
    """
    box = box_of(work)
    wanted = [number % 256 for number in range(1000 if runtime == "runc" else 100)]
    command = "(sleep 0.0{} & ) ; exit {}"
    found: list[int | None] = []
    for start in range(0, len(wanted), 8):
        codes = wanted[start : start + 8]
        futures = [box.start(command.format(code % 4, code)) for code in codes]
        found += [future.result(60).code for future in futures]
    assert found == wanted
    _until(lambda: box.run("pgrep -x sleep").code == 1, 10)
    states = "grep -h '^State' /proc/[0-9]*/status; true"
    assert "Z" not in box.run(states).out.decode().replace("(zombie)", "")


HYDRA = """
import ctypes, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
prctl = ctypes.CDLL(None).prctl
beat = os.open(f"/workspace/beat-{sys.argv[1]}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    prctl(4, 0)  # not dumpable: its environment can't be read
    os.write(beat, b".")
"""


@pytest.mark.statement("I16")
def test_a_process_that_sheds_every_mark_is_gone_in_fifty_of_fifty(
    work: Work, runtime: str
) -> None:
    """Forking, setsid each generation, no environment, TERM ignored; several at a time.

    One that a slow machine had not started before its timeout is no try; the next get longer.
    """
    box = box_of(work)
    (work.root / "hydra.py").write_text(HYDRA)
    box.run("setsid sleep 1996 > /dev/null 2>&1 &")
    at_once, seconds = (5, 0.5) if runtime == "runc" else (10, 1.5)  # to start the Pythons
    tried = 0
    while tried < 50:
        command = "env -i $(command -v python3) hydra.py {}; sleep 120"
        futures = [box.start(command.format(i), seconds, grace=0.2) for i in range(at_once)]
        answers = [future.result(120).value for future in futures]
        assert all(answer["timed_out"] for answer in answers)
        notes = [note for answer in answers for note in answer["notes"]]
        assert not [note for note in notes if "could not be ended" in note], notes
        listing = box.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").out.decode()
        beats = {beat: beat.stat().st_size for beat in work.root.glob("beat-*")}
        assert "hydra" not in listing, (tried, listing)
        assert "sleep 1996" in listing, (tried, listing)
        assert {beat: beat.stat().st_size for beat in beats} == beats
        ran = sum(size > 0 for size in beats.values())
        if ran < at_once:
            seconds *= 2
            assert seconds < 60, f"{ran} of {at_once} had started after half of {seconds} s"
        tried += ran
        for beat in beats:
            beat.unlink()
    box.run("pkill -f 'sleep 1996'")


# ─── memory ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("I2")
def test_twice_the_memory_kills_and_is_told(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """The command dies and the result says why; over gVisor the box does. No swap is used."""
    limit = 128 << 20
    box = _box(loop_thread, tmp_path, runtime, Limits(memory=limit, pids=64))
    group = Group(box)
    if "memory" in group._places:  # version 1 counts both together
        assert group.number("memory/memory.memsw.limit_in_bytes", "") == limit
    else:
        assert group.number("", "memory.swap.max") == 0
    assert group.number("memory/memory.limit_in_bytes", "memory.max") == limit
    hog = f"x = bytearray({2 * limit}); print(sum(x[::4096]))"
    if runtime == "runsc":
        with pytest.raises(SandboxError, match="ran out of memory") as caught:
            box.run(f"python3 -c '{hog}'", 60)
        assert caught.value.code is Code.SANDBOX_LOST
        return
    ran = box.run(f"python3 -c '{hog}'", 60)
    assert (ran.value["oom"], ran.value["limit"]) == (True, "memory")
    assert group.number("memory/memory.max_usage_in_bytes", "memory.peak") <= limit
    assert box.run("echo next").out == b"next\n"
    assert Group(box).inspected["State"]["Running"]


@pytest.mark.statement("I3")
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/var/tmp", "/home/sandbox", "/run"])
def test_a_full_tmpfs_says_so_and_counts_as_memory(
    runtime: str, loop_thread: LoopThread, tmp_path: Path, place: str
) -> None:
    """No space left at its size, which is the box's memory on the host, and free again after.

    A box of its own: gVisor gives back by and by what was in use before.
    """
    box = _box(loop_thread, tmp_path, runtime, Limits(memory="1g", pids=64))
    size = memory_files(1 << 30)[place]
    group = Group(box)
    before = group.memory()
    ran = box.run(f"cat /dev/zero > {place}/fill; stat -c %s {place}/fill")
    assert b"No space left on device" in ran.err
    filled = int(ran.out)
    assert size - (1 << 20) <= filled <= size
    assert group.memory() - before > 0.9 * filled
    assert box.run(f"rm {place}/fill; echo ok").out == b"ok\n"
    _until(lambda: group.memory() - before < filled / 2, 20)


@pytest.mark.statement("I15")
def test_full_tmpfs_kill_commands_at_most(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Everything in memory is full and commands start and take memory: the agent serves on.

    Over gVisor the command's end is the box's, since its memory is one; that is told.
    """
    box = _box(loop_thread, tmp_path, runtime, Limits(memory="256m", pids=128))
    box.run(
        "for d in /tmp /var/tmp $HOME /dev/shm /run /run/executor;"
        " do cat /dev/zero > $d/fill; done 2>/dev/null"
    )
    try:
        _serve_on(box)
    except SandboxError as error:
        assert runtime == "runsc" and "ran out of memory" in str(error), error
    else:
        assert box.sandbox.error is None


def _serve_on(box: Box) -> None:
    """Commands that take memory, and calls that the agent answers by itself."""
    for _ in range(4):
        futures = [box.start("head -c 40m /dev/zero | tail -c 40m | wc -c") for _ in range(3)]
        ended = [future.result(60).value for future in futures]
        assert all(value["oom"] or value["exit_code"] == 0 for value in ended), ended
        assert box.run("echo 'here'; cd .").out == b"here\n"
        assert box.request("list", {"path": "."}).value["entries"] == 0
    flood = box.run("yes | head -c 3000000", head=100, tail=100)
    assert flood.value["stdout"]["total"] == 3_000_000


SEGMENTS = """
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
left = 0
for _ in range(16):
    child = os.fork()
    if child == 0:
        segment = libc.shmget(0, 16 << 20, 0o1600)
        ctypes.memset(libc.shmat(segment, None, 0), 1, 16 << 20)
        os._exit(0)
    left += os.waitpid(child, 0)[1] == 0
tell(left)
"""


@pytest.mark.statement("I15")
def test_memory_that_nobody_holds_is_given_back(
    runtime: str, loop_thread: LoopThread, tmp_path: Path, facts: EngineFacts
) -> None:
    """System V segments of 256 MiB in all, one after the other: each goes with its process."""
    if facts.userns:
        pytest.skip("in a user namespace the kernel lets nobody set kernel.shm_rmid_forced")
    box = _box(loop_thread, tmp_path, runtime, Limits(memory="256m", pids=64))
    if runtime == "runsc":
        with pytest.raises(SandboxError, match="ran out of memory"):
            probe(box, SEGMENTS)
        return
    assert probe(box, SEGMENTS) == 16
    assert Group(box).memory() < 64 << 20
    ran = box.run("python3 -c 'x = bytearray(100 << 20)'")
    assert (ran.code, ran.value["limit"]) == (0, None)


QUEUES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
message = ctypes.create_string_buffer(8008)
message[0] = 1
made = [0, 0]
while made[0] < 40_000 and (queue := libc.msgget(0, 0o600)) >= 0:
    made[0] += 1
    while libc.msgsnd(queue, message, 8000, 0o4000) == 0:
        pass
while made[1] < 40_000 and libc.semget(0, 250, 0o600) >= 0:
    made[1] += 1
tell([*made, errno.errorcode[ctypes.get_errno()]])
"""


@pytest.mark.statement("I15", runsc="its kernel's own limits, in memory of the box")
def test_what_no_process_holds_is_little(
    runtime: str, loop_thread: LoopThread, tmp_path: Path, facts: EngineFacts
) -> None:
    """Message queues and semaphores outlive their process: together they leave room for others."""
    if facts.userns:
        pytest.skip("in a user namespace the kernel lets nobody set kernel.msgmni")
    box = _box(loop_thread, tmp_path, runtime, Limits(memory="256m", pids=64))
    assert probe(box, QUEUES) == [512, 128, "ENOSPC"]
    assert Group(box).memory() < 48 << 20
    ran = box.run("python3 -c 'x = bytearray(100 << 20)'")
    assert (ran.code, ran.value["limit"]) == (0, None)


@pytest.mark.statement("I15")
def test_tmpfs_of_more_than_half_the_memory_are_refused() -> None:
    """Whatever is asked for: all of it together is at most half of the limit."""
    for path in ("/tmp", "/dev/shm", "/run"):
        with pytest.raises(ConfigError, match="more than half"):
            memory_files(1 << 30, sizes={path: 600 << 20})
    with pytest.raises(ConfigError, match="more than half"):
        memory_files(1 << 30, ["/data"], {"/data": 400 << 20})


# ─── descriptors, processor ─────────────────────────────────────────────────────────

DESCRIPTORS = """
import resource
held = []
def fill(make):
    try:
        while True:
            held.append(make())
    except OSError as error:
        return [errno.errorcode[error.errno], len(held)]
told = [fill(lambda: os.open("/dev/null", os.O_RDONLY)), fill(os.pipe)]
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100000, 100000))
    told.append("raised")
except (OSError, ValueError):
    told.append("refused")
tell(told)
"""


@pytest.mark.statement("I6")
def test_descriptors_run_out_in_the_process_alone(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """EMFILE at the limit, which can't be raised; the host has them back afterwards."""
    box = _box(loop_thread, tmp_path, runtime, Limits(memory="256m", open_files=4000))
    before = int(Path("/proc/sys/fs/file-nr").read_text().split()[0])
    first, second, raised = probe(box, DESCRIPTORS)
    assert first[0] == second[0] == "EMFILE" and 3900 <= first[1] <= 4000
    assert raised == "refused"
    assert box.run("ulimit -n").out == b"4000\n"
    _until(lambda: int(Path("/proc/sys/fs/file-nr").read_text().split()[0]) < before + 3000, 10)


@pytest.mark.statement("I7")
def test_sixty_four_busy_processes_get_no_more_than_their_share(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Over ten seconds: at most 1.1 times the cores that were given, as the kernel counts.

    gVisor's kernel shares them with its processes: its agent may be too slow to end them in
    time, and then the host ends the box.
    """
    cpus = 0.5
    box = _box(loop_thread, tmp_path, runtime, Limits(memory="512m", pids=256, cpus=cpus))
    spin = "touch up; for i in $(seq 64); do (while :; do :; done) & done; wait"
    future = box.start(spin, 12, grace=0.5)
    _until((box.root / "up").exists)
    group = Group(box)
    began, used = time.monotonic(), group.processor()
    loop_thread.run(_pause(10))  # what is measured is a rate
    share = (group.processor() - used) / (time.monotonic() - began)
    assert 0.2 * cpus < share <= 1.1 * cpus, share
    try:
        assert future.result(60).value["timed_out"]
    except AgentLost as error:
        assert runtime == "runsc" and "not ended by the agent" in str(error), error
    else:
        assert box.run("echo next").out == b"next\n"


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


# ─── output ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("I8")
def test_endless_output_is_capped_counted_and_logged_nowhere(work: Work, runtime: str) -> None:
    """Ten seconds of `yes`: head and tail in the result's size, and hardly any memory here."""
    # Over gVisor a pipe may carry no more than a megabyte a second, on a busy machine.
    seconds, least = (10, 10**8) if runtime == "runc" else (4, 10**6)
    command = f"echo first; timeout {seconds} yes; echo last"
    work.call("run_command", command="head -c 3000000 /dev/zero | tr '\\0' y")
    before = resident()
    result = work.call("run_command", command=command)
    growth = resident() - before
    text = str(result.content)
    assert result.truncated and result.total_bytes and result.total_bytes > least
    assert len(text) <= 100_000
    assert text.startswith("first\ny\n") and text.rstrip().endswith("last")
    assert "bytes left out]" in text
    assert growth < 4 * 100_000 + (1 << 20), growth
    inspected = Group(box_of(work)).inspected
    assert inspected["HostConfig"]["LogConfig"]["Type"] == "none" and not inspected["LogPath"]


@pytest.mark.statement("I9")
@pytest.mark.parametrize(
    "command",
    [
        "head -c 16M /dev/zero",
        "head -c {size} /dev/zero | tr '\\0' '\\377'",
        "head -c 16M /dev/zero | tr '\\0' a",
        "head -c 300k /dev/urandom; head -c 300k /dev/urandom >&2",
        "printf '\\355\\240\\200\\360\\237\\230'; printf '\\200\\300\\0\\33[2J' >&2",
    ],
)
def test_any_bytes_make_a_valid_answer(work: Work, runtime: str, command: str) -> None:
    """One line of 1 GiB, bytes that are no text, halves of characters: JSON, never a fault."""
    command = command.replace("{size}", "1G" if runtime == "runc" else "16M")
    result = work.call("run_command", command=command)
    assert not result.is_error, result.content
    line = result.to_line()
    line.encode()
    again = json.loads(line)
    assert again["content"] == result.content and len(str(result.content)) <= 100_000
    size = {"1G": 1 << 30, "16M": 16 << 20}.get(command.split()[2])
    if size is not None:
        assert result.truncated and result.total_bytes == size


# ─── neighbours ─────────────────────────────────────────────────────────────────────

EXHAUST = """
import time
INOTIFY, SIGQUEUE, MQ_OPEN = (26, 138, 180) if IS_ARM else (294, 129, 240)
def until_refused(act, most):
    for number in range(most):
        answer = act(number)
        if isinstance(answer, str):
            return [answer, number]
    return ["none", most]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
information = (ctypes.c_int * 32)()
information[0], information[2] = signal.SIGRTMIN, -1
attributes = (ctypes.c_long * 8)(0, 10, 8192, 0)
told = {
    "inotify": until_refused(lambda n: syscall(INOTIFY, 0), MOST["inotify"]),
    "signals": until_refused(
        lambda n: syscall(SIGQUEUE, os.getpid(), int(signal.SIGRTMIN), information), MOST["signals"]
    ),
    "queues": until_refused(
        lambda n: syscall(MQ_OPEN, b"q%d" % n, os.O_CREAT | os.O_RDWR, 0o600, attributes),
        MOST["queues"],
    ),
    "keys": syscall(217 if IS_ARM else 248, b"user", b"k", b"v", 1, -3),
}
print(json.dumps(told), flush=True)
if HOLD:
    open("/workspace/held", "w").write(json.dumps(told))
    time.sleep(60)
"""
ALL = {"inotify": 5000, "signals": 200_000, "queues": 100}
SOME = {"inotify": 200, "signals": 2000, "queues": 20}
FEW = {"inotify": 3, "signals": 3, "queues": 1}


def _script(most: dict[str, int], *, hold: bool) -> str:
    return f"MOST, HOLD = {most!r}, {hold}\n{EXHAUST}"


@pytest.mark.statement("I13")
def test_what_one_uid_exhausts_another_still_has(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Inotify instances, pending signals and message queues are counted by uid, and keys are
    refused. Pseudo-terminals are counted for the whole machine: see `docs/security.md`."""
    if os.geteuid() != 0:
        pytest.skip("only root can give worktrees to other users")
    one = _box(loop_thread, tmp_path / "one", runtime, uid=61001, exec_id="one")
    two = _box(loop_thread, tmp_path / "two", runtime, uid=61002, exec_id="two")
    body = (PRELUDE + _script(ALL if runtime == "runc" else SOME, hold=True)).encode()
    future = one.start(None, 60, argv=PYTHON, script=".py", body=body)
    _until((one.root / "held").exists, 40)
    held = json.loads((one.root / "held").read_text() or "{}")
    found = probe(two, _script(FEW, hold=False))
    assert {found[name][0] for name in FEW} <= {"none", "ENOSYS"}, found
    assert found["keys"] in ("EPERM", "ENOSYS", "EACCES")
    if runtime == "runc":
        assert held["inotify"][0] == "EMFILE" and held["queues"][0] == "EMFILE", held
        assert held["signals"][0] == "EAGAIN", held
        # The same uid is the same account: that the limits were reached is seen there.
        three = _box(loop_thread, tmp_path / "three", runtime, uid=61001, exec_id="three")
        shared = probe(three, _script(FEW, hold=False))
        assert {shared[name][0] for name in FEW} == {"EMFILE", "EAGAIN"}, shared
    future.cancel()
