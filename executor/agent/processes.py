"""The one place that starts, reaps and ends processes.

Nothing else in the agent waits for a child: any mixture of waits loses exit codes.
"""

import os
import signal
import time
from contextlib import suppress
from functools import cache

from .operation import Failure

MARKER = "EXECUTOR_CALL"
"""Environment variable that names the call which a process belongs to."""

IS_INIT = os.getpid() == 1
"""Whether every process here is ours to end. `kill(-1)` is never used elsewhere."""

MAX_FREEZES = 50
"""Times that everything is told to stop before what still runs is put up with."""

_LONGEST_MARKER = 100
"""Bytes; ours have a name of a box and the number of a call."""
_ENVIRONMENT = 1 << 16
"""Bytes of an environment in which a marker is looked for; it is put first. To read a megabyte
takes the kernel milliseconds, and a hundred processes with as much held the agent up for good."""
_WHOLE = 1 << 20
"""Bytes that are asked for over gVisor. Measured, not understood: with less, ten processes that
fork without an end outlived the time of their calls in every third run, with this in none."""
_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
_STOPPED = ("T", "t")
_STILL = (*_STOPPED, "D")
_DEAD = (b"Z", b"X")
_TICKS = os.sysconf("SC_CLK_TCK")
RESET = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""Commands begin with every signal at its default; the agent ignores most of them."""


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
    source: int = -1,
    files: tuple[int, ...] = (),
) -> int:
    """Start the program in this file in its own session, with nothing or `source` on its input.

    `posix_spawn` is vfork: a third faster than fork and exec for a process of our size.
    It can't change the directory, so the agent itself goes there and back. Descriptors of
    `files` are let through for this moment, in which nothing else can start.

    Returns:
        The process id. SIGCHLD will tell its end; only `reap` may wait for it.

    Raises:
        OSError: the program can't be started; `EAGAIN` is the process limit.
        Failure: the program's file is leased: starting it would hold up the agent.
    """
    _refuse_lease(program)
    os.chdir(directory)
    try:
        for file in files:
            os.set_inheritable(file, True)
        pid = os.posix_spawn(
            program,
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
                if source < 0
                else (os.POSIX_SPAWN_DUP2, source, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ],
            setsid=True,
            setsigdef=RESET,
        )
    finally:
        os.chdir("/")
        for file in files:
            os.set_inheritable(file, False)
    prefer_as_victim(pid)
    return pid


def _refuse_lease(program: str) -> None:
    """A lease of another process makes every ordinary open wait, for 45 s by default.

    There is a moment between this look and the start; the system call filter is what
    closes it, by refusing leases.
    """
    try:
        os.close(os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except BlockingIOError as error:
        message = f"{program} is held by another process (a lease); end that process"
        raise Failure("EXECUTION_ERROR", message) from error
    except OSError:
        pass  # a program may be started without being readable


def prefer_as_victim(pid: int) -> None:
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
        if info.si_code not in _ENDS or (
            # gVisor calls a stop an end, by a signal that there is not.
            info.si_code != os.CLD_EXITED and info.si_status > signal.SIGRTMAX
        ):
            # It has made the agent its tracer, whom nobody asks, and now waits for it.
            send(info.si_pid, signal.SIGKILL)
            continue
        status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        ended.append((info.si_pid, status))


def has_children() -> bool:
    """Whether anything that was started here is left; orphans come to process 1."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


# ─── whose a process is ─────────────────────────────────────────────────────────────


class Process:
    """One line of `/proc`, as far as attribution needs it."""

    __slots__ = ("group", "marker", "parent", "pid", "session", "start", "state")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0].decode()
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.start = int(fields[19])
        self.marker: str | None = None


class Look:
    """One look at every process but the agent and the dead ones.

    Attributes:
        processes: by pid.
        guests: those of them that are none of ours, see `guests_among`.
        is_exact: nothing was started while the look lasted, so nothing was missed. A
            process that forks in each generation may never be there when its turn comes.
    """

    __slots__ = ("guests", "is_exact", "processes")

    def __init__(self) -> None:
        before = _last_pid()
        self.processes = scan()
        self.guests = guests_among(self.processes)
        # Outside a container the whole machine starts processes, and nothing is at stake.
        self.is_exact = not IS_INIT or (bool(before) and before == _last_pid())

    def youngest_first(self) -> list[int]:
        """The pids, every process before its parent."""
        depths: dict[int, int] = {}
        for start in self.processes:
            line = []
            pid = start
            while pid in self.processes and pid not in depths:
                depths[pid] = 0  # a reused pid could look like a cycle
                line.append(pid)
                pid = self.processes[pid].parent
            base = depths.get(pid, 0)
            for distance, member in enumerate(reversed(line), 1):
                depths[member] = base + distance
        return sorted(self.processes, key=lambda pid: -depths[pid])


def _last_pid() -> bytes:
    """The number that was given to the newest process of this pid namespace.

    gVisor says 0. There it is the highest number that is listed: the dead stay on the list
    until they are reaped, and orphans are reaped by nobody while the agent looks.
    """
    last = _newest()
    if last != b"0":
        return last
    return b"%d" % max(int(name) for name in os.listdir("/proc") if name.isdigit())


def _newest() -> bytes:
    """What the kernel says is the number of the newest process."""
    return read("/proc/loadavg").rpartition(b" ")[2].strip()


@cache
def _is_gvisor() -> bool:
    """Its kernel gives no number of the newest process."""
    return _newest() == b"0"


def scan() -> dict[int, Process]:
    """Every process but the agent and the dead ones, by pid."""
    found: dict[int, Process] = {}
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        stat = read(f"/proc/{name}/stat")
        # The name in brackets may hold anything, brackets and spaces included.
        fields = stat[stat.rfind(b")") + 2 :].split()
        # gVisor lists no thread of such a process, and a forker leaves thousands of dead.
        is_odd = len(fields) > 17 and fields[0] in _DEAD and int(fields[17]) > 1
        if is_odd and not _is_gvisor():
            fields[0] = _state_of_threads(name)
        if len(fields) < 20 or fields[0] in _DEAD:
            continue
        found[int(name)] = Process(int(name), fields)
    return found


def _state_of_threads(pid: str) -> bytes:
    """Of a process whose first thread has ended: it looks dead, and the others go on.

    One that runs counts more than those that are stopped.
    """
    states: list[bytes] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            stat = read(f"/proc/{pid}/task/{thread}/stat")
            states += stat[stat.rfind(b")") + 2 :].split()[:1]
    living = [state for state in states if state not in _DEAD]
    return min(living, key=lambda state: state.decode() in _STILL) if living else b"X"


def guests_among(found: dict[int, Process]) -> set[int]:
    """Processes that the engine started beside process 1: a person's shell and what it runs.

    Their ancestry ends outside of the box. What a command starts can't get there: its
    orphans come to process 1.
    """
    if not IS_INIT:  # outside a container the ancestry of everything may end so
        return set()
    guests = {pid for pid, process in found.items() if process.parent == 0}
    more = guests
    while more:
        more = {pid for pid, one in found.items() if one.parent in guests} - guests
        guests = guests | more
    return guests


def read(path: str, most: int = _WHOLE) -> bytes:
    """The beginning of a file of the kernel's; nothing where it can't be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(handle, most)
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

    __slots__ = ("leader", "marker", "start")

    def __init__(self, leader: int, marker: str, start: int) -> None:
        self.leader = leader
        self.marker = marker
        self.start = start


class Attribution:
    """Says for each process which of the running calls it belongs to.

    By session, group, marker and parent. A hostile command can shed all of these; then
    an orphan that no running call can claim, and that is not older than a call which is
    being ended, is taken to be of the youngest such call. Best effort: the box is the
    bound.

    Args:
        box: what the markers of this box begin with.
    """

    def __init__(self, box: str) -> None:
        self._prefix = f"{box}-"
        self._known: dict[tuple[int, int], Owner] = {}
        self._markers: dict[tuple[int, int], str] = {}
        self._unmarked: set[tuple[int, int]] = set()

    def clear(self) -> None:
        """Forget what was seen, when no call is being ended."""
        self._known.clear()
        self._markers.clear()

    def owned(
        self, look: Look, running: list[Owner], ending: list[Owner], last_channel: int
    ) -> dict[Owner, list[int]]:
        """The processes of every call, by its owner.

        Args:
            look: the processes that there are.
            running: every call that has no answer yet.
            ending: those of them that are being ended.
            last_channel: the newest call; a marker that names a later one is a forgery.
        """
        self._unmarked.clear()
        leaders = {owner.leader: owner for owner in running}
        markers = {owner.marker: owner for owner in running}
        youngest = sorted(ending, key=lambda owner: -owner.start)
        verdicts: dict[int, Owner | None] = {}

        def judge(process: Process) -> Owner | None:
            """Climbs to the first ancestor of which something is known."""
            line: list[Process] = []
            verdict: Owner | None = None
            while process.pid not in verdicts:
                verdicts[process.pid] = verdict = self._evident(process, leaders, markers)
                if verdict is not None or self._is_of_ended_call(process, last_channel):
                    break
                line.append(process)
                parent = look.processes.get(process.parent)
                if parent is None:
                    if IS_INIT and process.parent == 1:
                        verdict = next((o for o in youngest if o.start <= process.start), None)
                    break
                process = parent
            else:
                verdict = verdicts[process.pid]
            for member in reversed(line):
                if verdict is not None and member.start < verdict.start:
                    verdict = None
                verdicts[member.pid] = verdict
            return verdict

        found: dict[Owner, list[int]] = {owner: [] for owner in running}
        for process in look.processes.values():
            if process.pid in look.guests:
                continue
            owner = judge(process)
            if owner is not None:
                self._known[process.pid, process.start] = owner
                found[owner].append(process.pid)
        return found

    def _evident(
        self, process: Process, leaders: dict[int, Owner], markers: dict[str, Owner]
    ) -> Owner | None:
        owner = leaders.get(process.session) or leaders.get(process.group)
        if owner is None:
            owner = self._known.get((process.pid, process.start))
        if owner is None or markers.get(owner.marker) is not owner:
            owner = markers.get(self._marker(process))
        return owner if owner is not None and process.start >= owner.start else None

    def _is_of_ended_call(self, process: Process, last_channel: int) -> bool:
        """Whether it is a background process of a call that has had its answer."""
        return self._named_call(process, last_channel) is not None

    def _named_call(self, process: Process, last_channel: int) -> int | None:
        """The call that its marker names."""
        marker = self._marker(process)
        channel = marker.removeprefix(self._prefix)
        is_ours = channel != marker and channel.isdecimal() and len(channel) < 12
        return int(channel) if is_ours and int(channel) <= last_channel else None

    def call_of(self, look: Look, process: Process, last_channel: int) -> int:
        """The call that started a process, by its marker or an ancestor's; 0 = unknown."""
        seen: set[int] = set()
        while process.pid not in seen:
            call = self._named_call(process, last_channel)
            if call is not None:
                return call
            seen.add(process.pid)
            process = look.processes.get(process.parent, process)
        return 0

    def _marker(self, process: Process) -> str:
        key = process.pid, process.start
        marker = "" if key in self._unmarked else self._markers.get(key)
        if marker is None:
            most = _WHOLE if _is_gvisor() else _ENVIRONMENT
            content = b"\0" + read(f"/proc/{process.pid}/environ", most)
            _, _, rest = content.partition(b"\0" + MARKER.encode() + b"=")
            marker = rest[:_LONGEST_MARKER].partition(b"\0")[0].decode("utf-8", "replace")
            if marker:  # one that has not yet called exec shows nothing, for the moment
                self._markers[key] = marker
            elif not _is_gvisor():
                self._unmarked.add(key)
        return marker


# ─── ending ─────────────────────────────────────────────────────────────────────────


def send(pid: int, number: int) -> None:
    """Signal one process; one that is gone is fine."""
    with suppress(OSError):
        os.kill(pid, number)


def freeze() -> tuple[Look, set[int]]:
    """Stop everything in the box; the look at it, and what had been stopped before."""
    stopped = {pid for pid, process in scan().items() if process.state in _STOPPED}
    for _ in range(MAX_FREEZES):
        send(-1, signal.SIGSTOP)
        look = Look()
        if look.is_exact and all(p.state in _STILL for p in look.processes.values()):
            break  # otherwise one was not yet stopped, or another woke it up in time
    return look, stopped


def thaw(look: Look, but: set[int]) -> None:
    """Let everything go on. Children first: a shell would notice a child that is stopped.

    A person's shell goes on whoever stopped it: it could not end otherwise.
    """
    for pid in look.youngest_first():
        if pid not in but or pid in look.guests:
            send(pid, signal.SIGCONT)


def kill_all_but_guests() -> bool:
    """Kill whatever commands have left; whether there was nothing."""
    found = scan()
    guests = guests_among(found)
    if not guests:
        send(-1, signal.SIGKILL)
    for pid in found.keys() - guests:
        send(pid, signal.SIGKILL)
    return found.keys() == guests


def kill_everything() -> None:
    """The loop is over: nothing that it started may live on."""
    if IS_INIT:
        send(-1, signal.SIGKILL)


def signal_name(number: int) -> str:
    """`SIGKILL` and the like; real-time signals have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


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
