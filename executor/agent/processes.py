"""The one place that starts, reaps and ends processes.

Nothing else in the agent waits for a child: any mixture of waits loses exit codes.
"""

import os
import signal
import time
from contextlib import suppress

from .operation import Failure

MARKER = "EXECUTOR_CALL"
"""Environment variable that names the call which a process belongs to."""

IS_INIT = os.getpid() == 1
"""Whether every process here is ours to end. `kill(-1)` is never used elsewhere."""

MAX_FREEZES = 50
"""Times that everything is told to stop before what still runs is put up with."""

_STILL = ("T", "t", "D")
_TICKS = os.sysconf("SC_CLK_TCK")
_RESET = [signal.SIGPIPE, signal.SIGXFSZ]


def now_in_ticks() -> int:
    """The present in the unit of a process's start time."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def spawn(
    program: str,
    argv: list[str],
    environment: dict[str, str],
    directory: str,
    out: int,
    err: int,
) -> int:
    """Start the program in this file in its own session, with nothing on its input.

    `posix_spawn` is vfork: a third faster than fork and exec for a process of our size.
    It can't change the directory, so the agent itself goes there and back.

    Returns:
        The process id. SIGCHLD will tell its end; only `reap` may wait for it.

    Raises:
        OSError: the program can't be started; `EAGAIN` is the process limit.
    """
    os.chdir(directory)
    try:
        pid = os.posix_spawn(
            program,
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ],
            setsid=True,
            setsigdef=_RESET,
        )
    finally:
        os.chdir("/")
    _prefer_as_victim(pid)
    return pid


def _prefer_as_victim(pid: int) -> None:
    """When memory runs out the command shall die, not the agent."""
    try:
        handle = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(handle, b"1000")
        finally:
            os.close(handle)
    except OSError:
        pass  # it has ended already, or the runtime has no such file


def reap() -> list[tuple[int, int]]:
    """Every child that has ended: (pid, exit code or negative signal number)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return ended
        if info is None:
            return ended
        status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        ended.append((info.si_pid, status))


# ─── whose a process is ─────────────────────────────────────────────────────────────


class Process:
    """One line of `/proc`, as far as attribution needs it."""

    __slots__ = ("_marker", "group", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.start = int(fields[19])
        self._marker: str | None = None

    @property
    def marker(self) -> str:
        """The call that its environment names; empty if it shows none."""
        if self._marker is None:
            prefix = MARKER.encode() + b"="
            entries = _read(f"/proc/{self.pid}/environ").split(b"\0")
            found = [entry[len(prefix) :] for entry in entries if entry.startswith(prefix)]
            self._marker = found[0].decode("utf-8", "replace") if found else ""
        return self._marker


def scan() -> dict[int, Process]:
    """Every process but the agent and the dead ones, by pid."""
    found: dict[int, Process] = {}
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        stat = _read(f"/proc/{name}/stat")
        # The name in brackets may hold anything, brackets and spaces included.
        fields = stat[stat.rfind(b")") + 2 :].split()
        if len(fields) < 20 or fields[0] in (b"Z", b"X"):
            continue
        found[int(name)] = Process(int(name), fields)
    return found


def _read(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(handle, 1 << 20)
    except OSError:
        return b""
    finally:
        os.close(handle)


class Owner:
    """What is known of the processes of one call.

    Args:
        leader: pid of its first process, which leads a session of its own.
        marker: the value of `MARKER` in its environment.
        start: ticks; nothing that began earlier belongs to it.
    """

    __slots__ = ("known", "leader", "marker", "start")

    def __init__(self, leader: int, marker: str, start: int) -> None:
        self.leader = leader
        self.marker = marker
        self.start = start
        self.known: set[tuple[int, int]] = set()

    def has(self, process: Process) -> bool:
        """Whether the process by itself shows that it belongs here."""
        return (
            self.leader in (process.session, process.group)
            or (process.pid, process.start) in self.known
            or process.marker == self.marker
        )

    def is_of_sibling(self, process: Process) -> bool:
        """Whether it carries the marker of another call of this box."""
        box = self.marker.partition("-")[0] + "-"
        return process.marker != self.marker and process.marker.startswith(box)


def members(owner: Owner, others: list[Owner], processes: dict[int, Process]) -> dict[int, Process]:
    """The processes of one call: by session, marker, parent, or as orphans of its time.

    A hostile command can shed every one of these but the time; then an orphan that no
    other call can claim and that is not older than the call is taken to be its own.
    Best effort: the box is the bound.
    """
    verdicts: dict[int, bool] = {}

    def is_member(process: Process) -> bool:
        verdict = verdicts.get(process.pid)
        if verdict is None:
            verdicts[process.pid] = False  # a cycle can't be; a reused pid could look like one
            verdict = verdicts[process.pid] = judge(process)
        return verdict

    def judge(process: Process) -> bool:
        if process.start < owner.start:
            return False
        if owner.has(process):
            return True
        if owner.is_of_sibling(process) or any(other.has(process) for other in others):
            return False
        parent = processes.get(process.parent)
        if parent is not None:
            return is_member(parent)
        return IS_INIT and process.parent == 1

    found = {pid: process for pid, process in processes.items() if is_member(process)}
    owner.known.update((process.pid, process.start) for process in found.values())
    return found


# ─── ending ─────────────────────────────────────────────────────────────────────────


def send(pid: int, number: int) -> None:
    """Signal one process; one that is gone is fine."""
    with suppress(OSError):
        os.kill(pid, number)


def terminate(owner: Owner, others: list[Owner]) -> None:
    """Ask every process of a call to end, stopped ones too."""
    for pid in members(owner, others, scan()):
        send(pid, signal.SIGTERM)
        send(pid, signal.SIGCONT)


def kill(owner: Owner, others: list[Owner]) -> int:
    """End every process of a call at once; the number that was still there.

    A plain look at `/proc` misses a process that forks and calls setsid in each
    generation: it may never be there when its turn comes. So nothing is believed to be
    gone on a plain look. Either all of the box goes in one `kill(-1)`, or, if something
    else runs there, everything is frozen, looked at, and the rest is let go again.
    """
    processes = scan()
    found = members(owner, others, processes)
    if not IS_INIT:
        for pid in found:
            send(pid, signal.SIGKILL)
    elif not others and len(found) == len(processes):
        send(-1, signal.SIGKILL)
    else:
        found = _kill_frozen(owner, others, processes)
    return len(found)


def _kill_frozen(
    owner: Owner, others: list[Owner], before: dict[int, Process]
) -> dict[int, Process]:
    stopped = {pid for pid, process in before.items() if process.state in _STILL}
    for _ in range(MAX_FREEZES):
        send(-1, signal.SIGSTOP)
        processes = scan()
        if all(process.state in _STILL for process in processes.values()):
            break  # otherwise one was not yet stopped, or another woke it up in time
    found = members(owner, others, processes)
    for pid in found:
        send(pid, signal.SIGKILL)
    for pid in processes:
        if pid not in found and pid not in stopped:
            send(pid, signal.SIGCONT)
    return found


def kill_everything() -> None:
    """The loop is over: nothing that it started may live on."""
    if IS_INIT:
        send(-1, signal.SIGKILL)


def start_failure(error: OSError, program: str) -> Failure:
    """Why a program could not be started, for the model."""
    import errno

    if error.errno == errno.EAGAIN:
        message = "no process could be started: the process limit is reached"
        return Failure("LIMIT", message, {"limit": "pids"})
    if error.errno == errno.ENOMEM:
        return Failure("OUT_OF_MEMORY", "no process could be started: no memory is left")
    if error.errno == errno.E2BIG:
        return Failure("TOO_LARGE", "the arguments and environment are too long to start a program")
    if error.errno == errno.ENOENT:
        return Failure("NOT_FOUND", f"{program}: there is no such program in this image")
    return Failure(
        "EXECUTION_ERROR", f"{program} can't be started: {os.strerror(error.errno or 0)}"
    )
