"""Group C: sockets, terminals, leases and the agent's priority, attacked from inside."""

from __future__ import annotations

import json
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from executor.model import LoopSpec
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.security.numbers import CALLS
from tests.security.probes import PRELUDE, probe
from tests.security.test_b_privileges import CHILD

NO_FAMILY = {"EPERM", "EAFNOSUPPORT"}
FAMILIES = {
    **{"KEY": 15, "PACKET": 17, "RXRPC": 33, "ALG": 38, "VSOCK": 40, "TIPC": 30, "CAN": 29},
    **{"BLUETOOTH": 31, "NFC": 39, "XDP": 44, "SMC": 43, "QIPCRTR": 42, "RDS": 21, "LLC": 26},
    **{"AX25": 3, "IPX": 4, "X25": 9, "PPPOX": 24, "IB": 27, "MPLS": 28, "IUCV": 32, "KCM": 41},
    **{"CAIF": 37, "PHONET": 35, "IEEE802154": 36, "MCTP": 45, "ROSE": 11, "DECNET": 12},
}
UNPROTECTED = "process 1 has no protection from inside there: the host's watchdog ends the box"


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    """An event loop in a thread."""
    with LoopThread() as thread:
        yield thread


def open_box(thread: LoopThread, directory: Path, **changes: Any) -> Box:
    """A box of a test's own; it lives as long as the thread."""
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, **changes)
    return Box(thread, thread.enter(open_docker_box(spec, directory / "state")), root, "docker")


def leave(box: Box, script: str) -> str:
    """Leaves a Python program running in the background; returns the first line that it said."""
    (box.root / "left.py").write_text(script)
    python = "/opt/executor/bin/python3 -I -S -B left.py"
    said = box.run(f"rm -f said; {python} > said 2>&1 & until grep . said; do sleep .05; done", 20)
    assert said.code == 0, said
    return said.out.decode().splitlines()[0]


# ─── families ───────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("C1", "C2", "C3", "C6")
@pytest.mark.parametrize("upper", [0, 1, 0xFFFFFFFF], ids=["clean", "one", "ones"])
def test_only_four_families_of_sockets(hostile: Box, upper: int) -> None:
    """C1, C2, C3, C6: no other family, of any type, whatever stands in the upper 32 bits."""
    code = f"""
    families, upper = {FAMILIES!r}, {upper} << 32
    types = (1, 2, 3, 5, 0x80000 | 5, upper | 5)
    tell({{name: sorted({{str(call("socket", upper | family, kind, 0)) for kind in types}})
          for name, family in families.items()}})
    """
    found = probe(hostile, CALLS + dedent(code))
    assert {name: said for name, said in found.items() if not set(said) <= NO_FAMILY} == {}


@pytest.mark.statement("C4", "C6")
@pytest.mark.parametrize("upper", [0, 1, 0xFFFFFFFF], ids=["clean", "one", "ones"])
def test_only_routes_by_netlink(hostile: Box, runtime: str, upper: int) -> None:
    """C4, C6: netlink has its route protocol, so that interfaces can be listed, and no other."""
    code = f"""
    import socket
    upper = {upper} << 32
    protocols = (6, 9, 12, 16, 21)
    tell([[call("socket", upper | 16, kind, upper | protocol) for protocol in protocols
           for kind in (2, 3, upper | 0x80003)],
          call("socket", upper | 16, 3, upper), [name for _, name in socket.if_nameindex()]])
    """
    refused, route, interfaces = probe(hostile, CALLS + dedent(code))
    other = {"EPROTONOSUPPORT"} if runtime == "runsc" else set()
    assert set(refused) <= {"EPERM", *other}
    assert isinstance(route, int)
    assert interfaces == ["lo"]


@pytest.mark.statement("C5", "C6")
@pytest.mark.parametrize("upper", [0, 1, 0xFFFFFFFF], ids=["clean", "one", "ones"])
def test_only_tcp_and_udp(hostile: Box, runtime: str, upper: int) -> None:
    """C5, C6: no raw and packet sockets, and no other protocol by way of the two families."""
    code = f"""
    upper = {upper} << 32
    raw = [call("socket", upper | family, upper | kind, upper | protocol)
           for family in (2, 10) for kind in (3, 10, 0x80003) for protocol in (0, 1, 6, 17, 255)]
    # SCTP, DCCP, UDP-Lite, L2TP, SMC, MPTCP: by their own numbers, in families that pass.
    other = [call("socket", upper | family, upper | kind, upper | protocol)
             for family in (2, 10) for kind, protocol in
             ((1, 132), (5, 132), (6, 33), (2, 136), (2, 115), (1, 256), (1, 262), (4, 0))]
    good = [call("socket", upper | family, upper | kind, upper | protocol)
            for family in (2, 10) for kind, protocol in ((1, 0), (1, 6), (2, 0), (2, 17))]
    tell([raw, other, [isinstance(one, int) for one in good]])
    """
    raw, other, good = probe(hostile, CALLS + dedent(code))
    own = {"EPROTONOSUPPORT", "EINVAL", "ESOCKTNOSUPPORT"} if runtime == "runsc" else set()
    assert set(raw) <= {"EPERM", *own}
    assert set(other) <= {"EPERM", *own}
    assert all(good)


@pytest.mark.statement("C3")
def test_pairs_are_unix_only(hostile: Box, runtime: str) -> None:
    """C3: `socketpair` makes Unix sockets and nothing else."""
    code = """
    space = ctypes.create_string_buffer(8)
    tell([call("socketpair", family, 1, 0, space) for family in (1, 2, 10, 16, 30, 38 | 1 << 32)])
    """
    unix, *others = probe(hostile, CALLS + dedent(code))
    assert unix == 0
    own = {"ESOCKTNOSUPPORT", "EPROTONOSUPPORT", "ENOTSUP"} if runtime == "runsc" else set()
    assert set(others) <= {"EPERM", *own, *(NO_FAMILY if own else ())}


@pytest.mark.statement("C3")
def test_nothing_is_put_on_top_of_tcp(hostile: Box, runtime: str) -> None:
    """C3: no second protocol on a TCP connection, the kernel's TLS neither; options work."""
    code = """
    import socket
    server, client = socket.socket(), socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    client.connect(server.getsockname())
    upper = 1 << 32
    names = (b"tls", b"smc", b"mptcp", b"espintcp")
    tell([[call("setsockopt", client.fileno(), dirty | 6, dirty | 31, name, len(name))
           for name in names for dirty in (0, upper)],
          attempt(client.setsockopt, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
          attempt(client.setsockopt, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)])
    """
    refused, *works = probe(hostile, CALLS + dedent(code))
    # gVisor knows no such option and says that it is done.
    assert set(refused) == ({"EPERM"} if runtime == "runc" else set(refused) & {0, "ENOPROTOOPT"})
    assert works == [None, None]


@pytest.mark.statement("I2", "C3", "C6")
@pytest.mark.parametrize("upper", [0, 1], ids=["clean", "one"])
def test_no_socket_holds_a_program(hostile: Box, runtime: str, upper: int) -> None:
    """No filter is compiled for a socket, in memory that nobody counts; other options work."""
    code = f"""
    import socket, struct
    UPPER = {upper} << 32
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0) * 64)
    space = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 64, ctypes.addressof(program)))
    stream, datagram = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    pair, _ = socket.socketpair()
    def option(one, level, name):
        return call("setsockopt", one.fileno(), UPPER | level, UPPER | name, space, 300)
    tell([
        [option(one, 1, name) for one in (stream, datagram, pair) for name in (26, 50, 51, 52)],
        [option(stream, 6, name) for name in (14, 32, 38)] + [option(datagram, 17, 100)],
        attempt(stream.setsockopt, 1, socket.SO_RCVTIMEO, struct.pack("qq", 1, 0)),
        attempt(stream.setsockopt, 1, socket.SO_RCVBUF, 9000),
        attempt(stream.setsockopt, 6, socket.TCP_KEEPIDLE, 60),
        attempt(datagram.setsockopt, 0, socket.IP_TTL, 3),
    ])
    """
    filters, signatures, *works = probe(hostile, CALLS + dedent(code))
    if runtime == "runc":
        assert set(filters) == {"EPERM"}
        assert set(signatures) == {"EPERM"}
    else:  # its own kernel's memory is the box's
        assert set(filters + signatures) <= {0, "EINVAL", "ENOPROTOOPT", "ENOTSUP", "EPERM"}
    assert works == [None] * 4


@pytest.mark.statement("D3", runsc="gVisor merges no pages")
def test_no_memory_is_merged_with_that_of_others(hostile: Box) -> None:
    """Neither a range nor the whole of a process: what was merged tells by its timing."""
    code = """
    import mmap
    memory = mmap.mmap(-1, 1 << 16)
    tell([attempt(memory.madvise, 12), call("prctl", 67, 1, 0, 0, 0),
          call("prctl", 1 << 32 | 67, 1, 0, 0, 0), attempt(memory.madvise, 14),
          call("prctl", 4, 1, 0, 0, 0)])
    """
    assert probe(hostile, CALLS + dedent(code)) == ["EPERM", "EPERM", "EPERM", None, 0]


@pytest.mark.statement("C7")
def test_abstract_sockets_of_others_are_out_of_reach(
    hostile: Box, runtime: str, tmp_path: Path, loop_thread: LoopThread
) -> None:
    """C7: what listens under an abstract name outside or in another box refuses nobody inside."""
    name = f"executor-test-{uuid.uuid4().hex}"
    serve = f"""
    import socket, time
    server = socket.socket(socket.AF_UNIX)
    server.bind("\\0{name}-box")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("\\0{name}-box")
    print("connected", flush=True)
    time.sleep(60)
    """
    other = open_box(loop_thread, tmp_path, runtime=runtime, exec_id="neighbour")
    leave(other, dedent(serve))
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(f"\0{name}-host")
        server.listen()
        client.connect(f"\0{name}-host")
        code = f"""
        import socket
        tell([attempt(socket.socket(socket.AF_UNIX, kind).connect, "\\0{name}-" + place)
              for place in ("host", "box") for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)])
        """
        assert probe(hostile, dedent(code)) == ["ECONNREFUSED"] * 4


@pytest.mark.statement("C8")
def test_no_socket_lies_in_the_file_system(
    runtime: str, tmp_path: Path, loop_thread: LoopThread
) -> None:
    """C8: a new box holds no socket of an engine, an agent, a desktop or a bus; own ones work."""
    box = open_box(loop_thread, tmp_path, runtime=runtime, exec_id="sockets")
    code = """
    import socket, stat
    def sockets():
        found = []
        for directory, names, files in os.walk("/", onerror=None):
            if directory == "/":
                names[:] = [name for name in names if name not in ("proc", "sys")]
            for name in files:
                path = os.path.join(directory, name)
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    found.append(path)
        return found
    before = sockets()
    socket.socket(socket.AF_UNIX).bind("/tmp/own")
    ends = ("_SOCK", "_HOST", "DISPLAY", "_ADDRESS")
    names = [name for name in os.environ if name.endswith(ends)]
    tell([before, sockets(), names])
    """
    before, after, names = probe(box, dedent(code))
    assert (before, after, names) == ([], ["/tmp/own"], [])


# ─── terminals ──────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("C10")
def test_nothing_is_typed_into_a_terminal(hostile: Box, runtime: str) -> None:
    """C10: a command opens no terminal but one of its own, and can't type into that either."""
    code = """
    import select
    found = {"tty": attempt(os.open, "/dev/tty", os.O_RDWR),
             "console": attempt(os.open, "/dev/console", os.O_RDWR),
             "pts": sorted(os.listdir("/dev/pts"))}
    master, slave = os.openpty()
    name = os.ttyname(slave)
    upper = 1 << 32
    def steal():
        os.setsid()
        call("ioctl", slave, 0x540E, 0)
        own = attempt(os.open, "/dev/tty", os.O_RDWR)
        handles = [slave, own] if isinstance(own, int) else [slave]
        return [call("ioctl", handle, request, b"x") for handle in handles
                for request in (0x5412, upper | 0x5412, 0x541C, upper | 0x541C)]
    def discipline():
        return call("ioctl", slave, 0x5423, ctypes.byref(ctypes.c_int(2)))
    found["steal"] = child(steal)
    found["discipline"] = discipline()
    found["typed"] = select.select([slave], [], [], 0)[0] != []
    os.write(master, b"echo\\n")
    found["works"] = os.read(slave, 10).decode()
    found["size"] = list(os.get_terminal_size(slave))
    tell(found)
    """
    found = probe(hostile, CALLS + CHILD + dedent(code))
    assert found["tty"] in ("ENXIO", "ENOENT", "EIO")
    assert found["console"] in ("ENOENT", "EACCES", "EPERM")
    assert set(found["pts"]) <= {"ptmx"}
    assert not found["typed"]
    assert found["works"] == "echo\n"
    assert found["size"] == [0, 0]
    if runtime == "runsc":  # there is no such request in it
        assert set(found["steal"]) | {found["discipline"]} == {"ENOTTY"}
    else:
        assert set(found["steal"]) | {found["discipline"]} == {"EPERM"}


def test_attributes_of_files_stay_as_they_are(hostile: Box, runtime: str) -> None:
    """No flag or project of a worktree file is changed, so nothing of it is left outside."""
    code = """
    handle = os.open("/workspace", os.O_RDONLY)
    flags, project = ctypes.c_long(), ctypes.create_string_buffer(28)
    tell([call("ioctl", handle, 0x80086601, ctypes.byref(flags)),
          call("ioctl", handle, 0x801C581F, project),
          *(call("ioctl", handle, dirty | request, data) for dirty in (0, 1 << 32)
            for request, data in ((0x40086602, ctypes.byref(flags)), (0x401C5820, project)))])
    """
    *read, one, two, three, four = probe(hostile, CALLS + dedent(code))
    assert set(read) <= {0, "ENOTTY", "ENOTSUP", "EOPNOTSUPP"}
    refused = {"EPERM"} if runtime == "runc" else {"EPERM", "ENOTTY"}
    assert {one, two, three, four} <= refused


# ─── leases and locks ───────────────────────────────────────────────────────────────────


@pytest.mark.statement("C11", "G16")
def test_no_file_can_be_leased_and_every_lock_works(hostile: Box, runtime: str) -> None:
    """C11: leases and notification are refused, locks of every kind are not, `cat` never waits."""
    code = """
    import fcntl, struct
    os.chdir("/workspace")
    with open("leased", "w") as file:
        file.write("content")
    handle = os.open("leased", os.O_RDONLY)
    upper = 1 << 32
    found = {"lease": [call("fcntl", handle, upper * dirty | command, kind)
                       for dirty in (0, 1) for command in (1024, 1040) for kind in (0, 1)],
             "notify": call("fcntl", os.open(".", os.O_RDONLY), 1026, 0x80000002)}
    file = open("locked", "w")
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    found["locks"] = [attempt(fcntl.flock, file, fcntl.LOCK_EX),
                      attempt(fcntl.flock, file, fcntl.LOCK_UN),
                      attempt(fcntl.lockf, file, fcntl.LOCK_EX | fcntl.LOCK_NB),
                      attempt(fcntl.lockf, file, fcntl.LOCK_UN)]
    found["open file locks"] = [call("fcntl", file.fileno(), command, lock) for command in (37, 38)]
    found["others"] = [isinstance(attempt(fcntl.fcntl, file, command, 0), int)
                       for command in (1, 3, 1030)]
    tell(found)
    sys.stdout.flush()
    signal.alarm(60)
    signal.pause()
    """
    found = json.loads(leave(hostile, PRELUDE + CALLS + dedent(code)))
    own = {"EINVAL", "ENOSYS"} if runtime == "runsc" else set()
    assert {*found.pop("lease"), found.pop("notify")} <= {"EPERM", *own}
    assert found.pop("others") == [True] * 3
    if runtime == "runc":
        assert found.pop("open file locks") == [0, 0]
    assert found["locks"] == [None] * 4
    # On the host, while the process inside still holds all that it could get hold of.
    assert subprocess.check_output(["cat", hostile.root / "leased"], timeout=5) == b"content"


# ─── the agent's priority ───────────────────────────────────────────────────────────────


@pytest.mark.statement("C12", runsc=UNPROTECTED)
def test_process_1_keeps_its_priority(hostile: Box) -> None:
    """C12: limits, scheduling, affinity and priority of process 1 are out of reach."""
    code = """
    zero = ctypes.create_string_buffer(64)
    one = ctypes.byref(ctypes.c_ulong(1))
    idle = ctypes.create_string_buffer((48).to_bytes(4, "little") + (5).to_bytes(4, "little"), 48)
    before = [os.getpriority(0, 1), os.sched_getscheduler(1), sorted(os.sched_getaffinity(1))]
    refused = []
    for upper in (0, 1 << 32, 0xFFFFFFFF << 32):
        pid = upper | 1
        refused += [
            call("prlimit64", pid, 7, zero, 0), call("prlimit64", pid, 9, 0, zero),
            call("sched_setscheduler", pid, 5, zero), call("sched_setparam", pid, zero),
            call("sched_setattr", pid, idle, 0), call("sched_setaffinity", pid, 8, one),
            call("ioprio_set", upper | 1, pid, 0x6000), call("ioprio_set", upper | 2, 1, 0x6000),
            call("ioprio_set", upper | 2, 0, 0x6000), call("ioprio_set", upper | 3, 1000, 0x6000),
            call("setpriority", upper, pid, 19), call("setpriority", upper | 1, 0, 19),
            call("setpriority", upper | 1, 1, 19), call("setpriority", upper | 2, 1000, 19),
            call("setpriority", upper | 2, 0, 19),
        ]
    after = [os.getpriority(0, 1), os.sched_getscheduler(1), sorted(os.sched_getaffinity(1))]
    tell([refused, before, after])
    """
    refused, before, after = probe(hostile, CALLS + dedent(code))
    assert refused == ["EPERM"] * 45
    assert before == after
    assert before[:2] == [0, 0]


@pytest.mark.statement("C12")
def test_everything_else_can_be_scheduled(hostile: Box, runtime: str) -> None:
    """C12: oneself, children and threads keep all of it: nice, prlimit, affinity, policies."""
    code = """
    import resource, threading, time
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), done.wait()))
    thread.start()
    ready.wait()
    found = {}
    for name, one in (("self", 0), ("own pid", os.getpid()), ("child", pid),
                      ("thread", thread.native_id)):
        core = min(os.sched_getaffinity(one))
        steps = [attempt(os.sched_setaffinity, one, {core}), attempt(os.setpriority, 0, one, 5)]
        if name != "thread":
            steps.append(attempt(lambda: resource.prlimit(one, resource.RLIMIT_NOFILE, (99, 99))))
        if not GVISOR:
            batch = os.sched_param(0)
            steps += [attempt(os.sched_setscheduler, one, 3, batch),
                      attempt(os.sched_setparam, one, batch),
                      call("ioprio_set", 1, one, 0x4007) or None]
        found[name] = [step if isinstance(step, str) and step[0] == "E" else "ok" for step in steps]
    done.set()
    os.close(writer)
    os.waitpid(pid, 0)
    tell(found)
    """
    gvisor = f"GVISOR = {runtime == 'runsc'}\n"
    found = probe(hostile, CALLS + gvisor + dedent(code))
    assert {step for steps in found.values() for step in steps} == {"ok"}, found
    tools = hostile.run(
        "nice -n 3 nice; (sleep 9 & renice -n 4 -p $! && kill $!) >/dev/null && echo ok"
    )
    assert tools.out.split() == [b"3", b"ok"], tools


# ─── strict ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("I14")
def test_strict_takes_no_native_requests(
    runtime: str, tmp_path: Path, loop_thread: LoopThread
) -> None:
    """I14: in `strict`, `io_setup` can't use up the machine's one limit of requests."""
    box = open_box(loop_thread, tmp_path, runtime=runtime, seccomp="strict", exec_id="strict")
    counter = Path("/proc/sys/fs/aio-nr")
    before = int(counter.read_text())
    code = 'tell([call("io_setup", 1000, ctypes.byref(ctypes.c_ulong(0))) for _ in range(20)])'
    held = CALLS + code
    found = probe(box, held)
    if runtime == "runc":
        assert set(found) == {"EPERM"}
    # gVisor answers with requests of its own, of which the machine's counter knows nothing.
    assert int(counter.read_text()) <= before + 1000


@pytest.mark.statement("C1", "C12", runsc="its form of the profile: test_g_remount")
def test_strict_refuses_what_debuggers_need(tmp_path: Path, loop_thread: LoopThread) -> None:
    """`strict`: no tracing, fixed addresses, pipes without copies, own filters; else as before."""
    box = open_box(loop_thread, tmp_path, runtime="runc", seccomp="strict", exec_id="strict")
    assert box.sandbox.capabilities["seccomp"] == "strict (ours)"
    code = """
    import subprocess
    space = ctypes.create_string_buffer(64)
    tell({
        "ptrace": [call("ptrace", request, 0, 0, 0) for request in (0, 16, 0x4206)],
        "memory": [call("process_vm_readv", os.getpid(), space, 1, space, 1, 0),
                   call("process_vm_writev", os.getpid(), space, 1, space, 1, 0)],
        "personality": call("personality", 0x40000),
        "pipes": [call("vmsplice", 1, 0, 0, 0), call("tee", 0, 1, 1, 0)],
        "socket": call("socket", 38, 5, 0), "agent": call("setpriority", 0, 1, 9),
        "filters": [call("seccomp", 1, 0, 0), call("prctl", 22, 2, 0, 0, 0)],
        "works": [call("personality", 0xFFFFFFFF), subprocess.run(["true"]).returncode],
    })
    """
    found = probe(box, CALLS + dedent(code))
    assert found.pop("works") == [0, 0]
    assert found.pop("filters") == ["EINVAL", "EINVAL"], "as on a kernel that has none"
    refused = [
        one for said in found.values() for one in (said if isinstance(said, list) else [said])
    ]
    assert refused == ["EPERM"] * 10


@pytest.mark.statement("C12", runsc="gVisor has no fixed addresses to offer")
def test_standard_serves_debuggers(hostile: Box) -> None:
    """`standard`: a child can be traced and read, and addresses can be fixed, as gdb does."""
    code = """
    pid = os.fork()
    if pid == 0:
        traced = call("ptrace", 0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(traced)
    os.waitpid(pid, os.WUNTRACED)
    space, number = ctypes.create_string_buffer(8), ctypes.c_ulong(0x1234)
    mine = (ctypes.c_ulong * 2)(ctypes.addressof(space), 8)
    theirs = (ctypes.c_ulong * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    read = call("process_vm_readv", pid, mine, 1, theirs, 1, 0)
    resumed = call("ptrace", 7, pid, 0, 0)
    fixed = call("personality", 0x40000)
    tell([read, resumed, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), fixed])
    """
    assert probe(hostile, CALLS + dedent(code)) == [8, 0, 0, 0]
