"""Group B: privileges, namespaces and the surface of the kernel, attacked from inside."""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import docker
import pytest

from executor.model import LoopSpec
from executor.served import Program
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.security.numbers import CALLS
from tests.security.probes import PRELUDE, probe

REFUSED = {"EPERM", "ENOSYS"}
OWN_KERNEL = "the kernel that is asked is gVisor's own, the host's is not reached"
CANARY = "EXECUTOR_TEST_CANARY"
IS_X86 = platform.machine() == "x86_64"
CHILD = """
def child(function):
    "What the function came to in a process of its own, which may die of it."
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, json.dumps(function()).encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 65536)
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(said) if said else status
"""
"""Code for probes; a process that died is its negative signal number."""


@pytest.fixture(scope="module", autouse=True)
def canary() -> Iterator[None]:
    """A secret in the environment of the process that opens the boxes."""
    os.environ[CANARY] = "canary-8cf0e1b3"
    yield
    del os.environ[CANARY]


@contextmanager
def open_box(directory: Path, runtime: str, name: str, root: Path | None = None) -> Iterator[Box]:
    """A box of a test's own."""
    root = root or make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id=name, runtime=runtime)
    with LoopThread() as thread:
        sandbox = thread.enter(open_docker_box(spec, directory / "state"))
        yield Box(thread, sandbox, root, "docker")


def status_fields(text: str) -> dict[str, str]:
    """`/proc/self/status` as a table."""
    return {name: value.strip() for name, _, value in (x.partition(":") for x in text.splitlines())}


# ─── privileges ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("B1")
def test_a_command_has_no_capability(hostile: Box) -> None:
    """B1: every capability set in `/proc/self/status` is 0."""
    fields = status_fields(hostile.run("cat /proc/self/status").out.decode())
    sets = {name: int(value, 16) for name, value in fields.items() if name.startswith("Cap")}
    assert {"CapInh", "CapPrm", "CapEff", "CapBnd"} <= sets.keys()
    assert set(sets.values()) == {0}


async def _printed(box: Box, program: Program) -> bytes:
    """All that a server prints."""
    server = await box.sandbox.serve(program)
    pieces = []
    while piece := await server.stream.read():
        pieces.append(piece)
    await server.end(0.2)
    return b"".join(pieces)


@pytest.mark.statement("B2")
def test_every_process_has_the_filter(hostile: Box, runtime: str) -> None:
    """B2: commands, what they leave running, engine execs and servers are all filtered."""
    look = "cat /proc/self/status"
    left = f"sh -c 'sleep 0; {look}' & wait; setsid {look}"
    own = hostile.run(look).out.decode()
    later = hostile.run(left).out.decode().split("Name:")
    client = docker.from_env()
    try:
        container = client.containers.get(hostile.sandbox.id)
        executed = container.exec_run(["cat", "/proc/self/status"]).output
    finally:
        client.close()
    assert isinstance(executed, bytes)
    served = hostile.thread.run(_printed(hostile, Program(("cat", "/proc/self/status"))))
    texts = [own, *(f"Name:{text}" for text in later if text), executed.decode(), served.decode()]
    assert len(texts) == 5
    for fields in map(status_fields, texts):
        if runtime == "runc":
            assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert int(fields["CapEff"], 16) == 0
    # gVisor's files do not show it, and no filter of the host's is claimed there.
    no_new_privileges = 'tell([call("prctl", 39, 0, 0, 0, 0)])'
    assert probe(hostile, CALLS + no_new_privileges) == [1]


@pytest.mark.statement("B3")
def test_a_set_uid_program_changes_nothing(hostile: Box) -> None:
    """B3: the uid is the worktree owner's, also in a set-uid root program."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a set-uid root program")
    assert hostile.run("cp $(command -v id) elevated && id -u").out.split() == [b"1000"]
    program = hostile.root / "elevated"
    os.chown(program, 0, 0)
    program.chmod(0o6755)
    assert program.stat().st_mode & stat.S_ISUID
    ran = hostile.run("./elevated -u; ./elevated -ru; ./elevated -g")
    assert ran.out.split() == [b"1000"] * 3, ran
    program.unlink()


@pytest.mark.statement("B3", "B1")
def test_the_box_of_roots_worktree_has_no_capability(runtime: str, tmp_path: Path) -> None:
    """B3: uid 0 inside is without capabilities, and `capabilities` says that it is uid 0."""
    if os.geteuid() != 0:
        pytest.skip("only root has a worktree of root's")
    root = tmp_path / "worktree"
    root.mkdir()
    with open_box(tmp_path, runtime, "root", root) as box:
        ran = box.run("id -u; grep CapEff /proc/self/status; chown 1:1 . || echo refused")
        assert ran.out.split() == [b"0", b"CapEff:", b"0" * 16, b"refused"]
        assert box.sandbox.capabilities["user"] == "0:0"
        assert any("root" in notice for notice in box.sandbox.capabilities["notices"])


# ─── namespaces ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("B4")
def test_no_user_namespace_can_be_made(hostile: Box) -> None:
    """B4: `unshare` and `clone` of any namespace give EPERM, `clone3` gives ENOSYS."""
    code = """
    flags = [0x10000000, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000]
    tell({
        "unshare": [child(lambda: call("unshare", flag)) for flag in (*flags, 0x80)],
        "clone": [call("clone", flag | 17, 0, 0, 0, 0) for flag in flags],
        "dirty": [call("clone", flag | 17 | 1 << 40, 0, 0, 0, 0) for flag in flags],
        "clone3": call("clone3", ctypes.create_string_buffer(88), 88),
    })
    """
    assert probe(hostile, CALLS + CHILD + dedent(code)) == {
        "unshare": ["EPERM"] * 8,
        "clone": ["EPERM"] * 7,
        "dirty": ["EPERM"] * 7,
        "clone3": "ENOSYS",
    }


@pytest.mark.statement("B5")
def test_no_namespace_can_be_entered(hostile: Box) -> None:
    """B5: `setns` on whatever namespace file can be opened, and on a pidfd, is refused."""
    code = """
    import glob
    found = {}
    for path in glob.glob("/proc/*/ns/*"):
        handle = attempt(os.open, path, os.O_RDONLY)
        if isinstance(handle, int):
            found[path] = child(lambda: call("setns", handle, 0))
            os.close(handle)
    handle = call("pidfd_open", os.getpid(), 0)
    found["pidfd"] = call("setns", handle, 0x20000) if isinstance(handle, int) else handle
    tell(found)
    """
    found = probe(hostile, CALLS + CHILD + dedent(code))
    assert len(found) > 5
    # EINVAL is gVisor's word for the user namespace that the process is in already.
    assert set(found.values()) <= {"EPERM", "ENOSYS", "EINVAL"}, found


@pytest.mark.statement("B6")
def test_nothing_can_be_mounted(hostile: Box) -> None:
    """B6: neither the old calls nor the new ones."""
    code = """
    space = ctypes.create_string_buffer(64)
    tell({
        "mount": call("mount", b"none", b"/tmp", b"tmpfs", 0, 0),
        "bind": call("mount", b"/etc", b"/tmp", 0, 4096, 0),
        "remount": call("mount", b"none", b"/", 0, 32, 0),
        "umount2": call("umount2", b"/etc/passwd", 2),
        "fsopen": call("fsopen", b"tmpfs", 0),
        "open_tree": call("open_tree", -100, b"/", 1),
        "move_mount": call("move_mount", -100, b"/tmp", -100, b"/var/tmp", 0),
        "mount_setattr": call("mount_setattr", -100, b"/", 0, space, 32),
        "pivot_root": call("pivot_root", b"/tmp", b"/tmp"),
    })
    """
    found = probe(hostile, CALLS + dedent(code))
    assert set(found.values()) <= REFUSED, found


@pytest.mark.statement("B7")
def test_no_chroot(hostile: Box) -> None:
    """B7: `chroot` gives EPERM."""
    assert probe(hostile, CALLS + 'tell(call("chroot", b"/tmp"))') == "EPERM"


@pytest.mark.statement("B8")
def test_no_device_node_can_be_made(hostile: Box, runtime: str) -> None:
    """B8: no device reaches the worktree, not even the node 0:0; fifos and sockets work."""
    code = """
    import socket, stat
    os.chdir("/workspace")
    def node(name, mode, device):
        return call("mknodat", -100, name, mode | 0o600, device)
    found = {
        "null": node(b"null", stat.S_IFCHR, 0x103),
        "whiteout": node(b"whiteout", stat.S_IFCHR, 0),
        "disk": node(b"disk", stat.S_IFBLK, 0x801),
        "fifo": node(b"fifo", stat.S_IFIFO, 0),
        "file": node(b"file", 0, 0),
        "rename": call("renameat2", -100, b"file", -100, b"moved", 4),
        "socket": attempt(socket.socket(socket.AF_UNIX).bind, "socket"),
    }
    tell(found)
    """
    found = probe(hostile, CALLS + dedent(code))
    made = {path.name: path.lstat().st_mode for path in hostile.root.iterdir()}
    for name in ("fifo", "file", "socket"):
        (hostile.root / name).unlink(missing_ok=True)
    refused = REFUSED if runtime == "runc" else {*REFUSED, "EINVAL"}
    assert {found.pop(name) for name in ("null", "whiteout", "disk", "rename")} <= refused
    assert found == {"fifo": 0, "file": 0, "socket": None}
    assert not any(stat.S_ISCHR(mode) or stat.S_ISBLK(mode) for mode in made.values())
    assert stat.S_ISREG(made["file"])
    if runtime == "runc":  # gVisor keeps fifos to itself
        assert stat.S_ISFIFO(made["fifo"])


@pytest.mark.statement("B9")
def test_no_file_is_opened_by_handle(hostile: Box) -> None:
    """B9: handles can neither be had nor opened."""
    code = """
    space, number = ctypes.create_string_buffer(136), ctypes.c_int()
    tell([call("open_by_handle_at", -100, space, 0),
          call("name_to_handle_at", -100, b"/workspace", space, ctypes.byref(number), 0)])
    """
    # gVisor has no handles at all: ENOTSUP.
    assert set(probe(hostile, CALLS + dedent(code))) <= {"EPERM", "ENOTSUP", "EOPNOTSUPP"}


@pytest.mark.statement("B10")
def test_the_machine_can_not_be_governed(hostile: Box, runtime: str) -> None:
    """B10: no programs, counters, modules, kernels, restarts, swap, quotas, log, accounts."""
    code = """
    space = ctypes.create_string_buffer(4096)
    found = {
        "bpf": call("bpf", 0, space, 48),
        "perf_event_open": call("perf_event_open", space, 0, -1, -1, 0),
        "init_module": call("init_module", space, 16, b""),
        "finit_module": call("finit_module", 0, b"", 0),
        "delete_module": call("delete_module", b"none", 0),
        "kexec_load": call("kexec_load", 0, 0, 0, 0),
        "reboot": call("reboot", 0xFEE1DEAD, 672274793, 0x89ABCDEF, 0),
        "swapon": call("swapon", b"/tmp/none", 0),
        "quotactl": call("quotactl", 0x80000700, b"/dev/none", 0, space),
        "acct": call("acct", b"/tmp/account"),
        "syslog": call("syslog", 3, space, 4096),
    }
    tell([found, space.value.decode("utf-8", "replace")])
    """
    found, log = probe(hostile, CALLS + dedent(code))
    if runtime == "runsc":
        assert log == "", "it has a log of its own, which is not to be had either"
    assert set(found.values()) <= REFUSED, found


@pytest.mark.statement("B11")
def test_no_keyring(hostile: Box, runtime: str) -> None:
    """B11: nothing can be put into or read out of the kernel's keyrings."""
    code = """
    tell({"add_key": call("add_key", b"user", b"name", b"secret", 6, -4),
          "request_key": call("request_key", b"user", b"name", 0, -4),
          "keyctl": call("keyctl", 0, -4, 1)})
    """
    found = probe(hostile, CALLS + dedent(code))
    if runtime == "runsc":
        found.pop("keyctl")  # a number of gVisor's own, which nothing can be added to
        assert set(found.values()) <= {*REFUSED, "EACCES"}, found
    else:
        assert found == dict.fromkeys(found, "EPERM")


@pytest.mark.statement("B12")
def test_no_faults_in_user_space_and_no_rings(hostile: Box) -> None:
    """B12: `userfaultfd` in all its modes and the three calls of io_uring are refused."""
    code = """
    space = ctypes.create_string_buffer(256)
    tell([*(call("userfaultfd", flags) for flags in (0, 1, 0x800)),
          call("io_uring_setup", 4, space), call("io_uring_enter", 0, 0, 0, 0, 0, 0),
          call("io_uring_register", 0, 0, 0, 0)])
    """
    assert set(probe(hostile, CALLS + dedent(code))) <= REFUSED


# ─── other processes ────────────────────────────────────────────────────────────────────


@pytest.mark.statement("B13")
def test_only_own_processes_are_there(runtime: str, tmp_path: Path) -> None:
    """B13: `/proc` lists the box's processes, and `kill(-1, 9)` ends no other box's."""
    with (
        open_box(tmp_path / "victim", runtime, "victim") as victim,
        open_box(tmp_path / "killer", runtime, "killer") as killer,
    ):
        victim.run("sleep 300 >/dev/null 2>&1 &")
        listed = "grep -lx sleep /proc/[0-9]*/comm"
        before = victim.run(listed).out
        assert len(before.split()) == 1
        names = set(killer.run("cat /proc/[0-9]*/comm").out.split())
        assert names <= {b"executor", b"sh", b"bash", b"dash", b"cat"}, names
        attack = probe(killer, "tell([attempt(os.kill, -1, 9), attempt(os.kill, 2, 0)])")
        assert attack[0] in (None, "ESRCH")
        assert victim.run(listed).out == before


@pytest.mark.statement("B14")
def test_process_1_shows_nothing_of_the_outside(hostile: Box) -> None:
    """B14: root, directory and environment of process 1 are the box's, without a secret."""
    code = """
    tell([*(attempt(os.readlink, f"/proc/1/{name}") for name in ("root", "cwd", "exe")),
          attempt(lambda: open("/proc/1/environ").read()),
          attempt(lambda: open("/proc/1/cmdline").read()),
          attempt(os.listdir, "/proc/1/root")])
    """
    root, directory, program, environment, line, listing = probe(hostile, dedent(code))
    assert root in ("EACCES", "/")
    assert directory in ("EACCES", "/")
    assert program == "EACCES" or program.startswith("/opt/executor/")
    assert os.environ[CANARY] not in environment + line
    assert CANARY not in environment
    assert listing == "EACCES" or "workspace" in listing


@pytest.mark.statement("B14", runsc="process 1 has no protection from inside there")
def test_process_1_can_not_be_looked_into(hostile: Box) -> None:
    """B14: not dumpable: its memory, descriptors and state are closed to its own uid."""
    code = """
    space = ctypes.create_string_buffer(64)
    vector = (ctypes.c_ulong * 2)(ctypes.addressof(space), 8)
    where = (ctypes.c_ulong * 2)(0x400000, 8)
    names = ("environ", "mem", "maps", "fd", "ns/net", "root", "syscall", "auxv", "io")
    tell({
        "files": [attempt(os.open, f"/proc/1/{name}", os.O_RDONLY) for name in names],
        "ptrace": [call("ptrace", request, 1, 0, 0) for request in (16, 0x4206)],
        "vm": [call("process_vm_readv", 1, vector, 1, where, 1, 0),
               call("process_vm_writev", 1, vector, 1, where, 1, 0)],
        "other": [call("kcmp", 1, os.getpid(), 0, 0, 0),
                  call("process_madvise", call("pidfd_open", 1, 0), where, 1, 20, 0),
                  call("process_mrelease", call("pidfd_open", 1, 0), 0),
                  call("pidfd_getfd", call("pidfd_open", 1, 0), 0, 0),
                  call("prctl", 62, 1, 1, 0, 0)],
    })
    """
    found = probe(hostile, CALLS + dedent(code))
    # `fd` and `ns` may be opened as directories, but what is in them may not.
    assert set(found["files"]) <= {"EACCES", "EPERM"}, found
    assert found["ptrace"] == ["EPERM"] * 2
    assert found["vm"] == ["EPERM"] * 2
    assert found["other"] == ["EPERM"] * 5


@pytest.mark.statement("B15")
def test_no_descriptor_is_inherited(hostile: Box) -> None:
    """B15: a command has its three descriptors, and none leads out of the container."""
    command = "for f in /proc/self/fd/*; do readlink $f; done; ls -l /proc/self/fd"
    links = hostile.run(command).out.decode().splitlines()
    found = [line.rsplit(" -> ")[-1] for line in links if "/" in line or ":[" in line]
    assert found
    for target in found:
        inside = ("/dev/null", "pipe:[", "/dev/pts/", "/workspace", "/run/executor", "/proc/")
        assert target.startswith(inside), found
    numbers = probe(hostile, 'tell(sorted(map(int, os.listdir("/proc/self/fd"))))')
    assert numbers in ([0, 1, 2], [0, 1, 2, 3]), numbers  # 3: the directory itself


# ─── other machines' calls ──────────────────────────────────────────────────────────────

PROGRAM_32 = """
code = bytes.fromhex("b801000000bb2a000000cd80")  # exit(42), the 32-bit way
def make(path):
    import struct
    base, size = 0x08048000, 52 + 32 + len(code)
    head = b"\\x7fELF\\1\\1\\1" + bytes(9) + struct.pack(
        "<HHIIIIIHHHHHH", 2, 3, 1, base + 84, 52, 0, 0, 52, 32, 1, 40, 0, 0)
    part = struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 4096)
    with open(path, "wb") as file:
        file.write(head + part + code)
    os.chmod(path, 0o755)
def run_32(path):
    pid = os.fork()
    if pid == 0:
        try:
            os.execv(path, [path])
        except OSError as error:
            os._exit(100 if error.errno == errno.ENOEXEC else 101)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def jump_32():
    import mmap
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(code)
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    pid = os.fork()
    if pid == 0:
        ctypes.CFUNCTYPE(None)(start)()
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
"""Code for probes: a 32-bit program, and a 32-bit call out of a 64-bit one."""


@pytest.mark.statement("B17", runsc=f"32-bit programs do not start there, and {OWN_KERNEL}")
@pytest.mark.skipif(not IS_X86, reason="only x86-64 has a second, 32-bit set of calls like this")
def test_32_bit_programs_die(hostile: Box, tmp_path: Path) -> None:
    """B17: an i386 program and an `int 0x80` die of SIGSYS; outside, the same ones run."""
    code = PROGRAM_32 + "\nmake('PATH'); tell([run_32('PATH'), jump_32()])"
    outside = [sys.executable, "-c", PRELUDE + code.replace("PATH", str(tmp_path / "program"))]
    done = subprocess.run(outside, capture_output=True, text=True, check=True)
    # 100: this machine's kernel has no 32-bit programs; then there is nothing to close.
    assert done.stdout.strip() in ("[42, 42]", "[100, -11]")
    inside = probe(hostile, code.replace("PATH", "/workspace/program"))
    assert inside == ([-31, -31] if done.stdout.strip() == "[42, 42]" else [100, -11])


@pytest.mark.statement("B18")
@pytest.mark.skipif(not IS_X86, reason="x32 is a kind of x86-64")
def test_x32_calls_do_not_exist(hostile: Box) -> None:
    """B18: a call with the x32 bit dies of SIGSYS or gives ENOSYS, for plain and x32 numbers."""
    code = """
    numbers = (39, 41, 101, 512, 520, 547)
    tell([child(lambda: syscall(0x40000000 | number, 1, 1, 0)) for number in numbers])
    """
    assert set(probe(hostile, CHILD + dedent(code))) <= {-31, "ENOSYS"}
