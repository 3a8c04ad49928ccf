"""Group D: /proc, /sys, devices, control groups and core dumps, attacked from inside.

Each attack runs as the uid of an ordinary worktree and as uid 0, which file modes do not
hold back.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import os
import stat
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from executor.errors import SandboxError
from executor.model import LoopSpec
from executor.sandbox.container import masked_paths
from executor.sandbox.engine import Engine
from executor.sandbox.facts import EngineFacts
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.sandbox import tiny
from tests.security.probes import PRELUDE, PYTHON, probe

REFUSED = {"EROFS", "EACCES", "EPERM"}
GVISORS = [
    "/proc/sys/kernel/yama/ptrace_scope",
    *("/proc/sys/fs/nr_open", "/proc/sys/net/ipv4/ip_local_port_range"),
    *(f"/proc/sys/net/ipv4/tcp_{name}" for name in ("recovery", "rmem", "sack", "wmem")),
]
"""Settings of gVisor's own kernel that uid 0 of its box may write."""
SECRETIVE = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/interrupts")
SECRETIVE_TREES = ("/sys/firmware", "/sys/devices/virtual/powercap")


@pytest.fixture(scope="module", params=[1000, 0], ids=["uid1000", "uid0"])
def box(
    request: pytest.FixtureRequest, runtime: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    """One box a module, runtime and uid."""
    directory = tmp_path_factory.mktemp(f"{runtime}-{request.param}")
    root = make_worktree(directory / "worktree")
    if os.geteuid() == 0:
        os.chown(root, request.param, request.param)
    elif request.param != root.stat().st_uid:
        pytest.skip("only root may give a worktree away")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="kernel", runtime=runtime)
    with LoopThread() as thread:
        sandbox = thread.enter(open_docker_box(spec, directory / "state"))
        opened = Box(thread, sandbox, root, "docker")
        assert opened.run("id -u").out == f"{root.stat().st_uid}\n".encode()
        yield opened


def is_gvisor(box: Box) -> bool:
    """The kernel that the box sees is gVisor's, not the machine's."""
    return bool(box.sandbox.capabilities["own_kernel"])


def written(box: Box, paths: list[str]) -> dict[str, Any]:
    """Path → what came of opening it for writing and writing into it."""
    code = """
def write(path):
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.write(fd, b"1")
    finally:
        os.close(fd)
tell({path: attempt(write, path) for path in PATHS})
"""
    found = probe(box, f"PATHS = {paths!r}\n{code}")
    assert isinstance(found, dict)
    return found


# ─── D1, D2 ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("D1")
def test_kernel_settings_can_not_be_written(box: Box) -> None:
    """D1: what would run a program on the host, and every memory setting, is read-only."""
    settings = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe"]
    settings += ["/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/hotplug"]
    settings += [f"/proc/sys/vm/{name}" for name in sorted(os.listdir("/proc/sys/vm"))]
    # One that this machine has not can't be written either.
    allowed = {path: REFUSED | ({"ENOENT"} if _lacks(box, path) else set()) for path in settings}
    found = written(box, settings)
    assert {path: got for path, got in found.items() if got not in allowed[path]} == {}
    assert probe(box, "tell(attempt(os.mkdir, '/proc/sys/x'))") in REFUSED | {"ENOENT"}


def _lacks(box: Box, path: str) -> bool:
    return is_gvisor(box) or not os.path.exists(path)


@pytest.mark.statement("D1")
def test_no_setting_anywhere_can_be_written(box: Box) -> None:
    """D1: not one file below /proc/sys opens for writing, whatever its mode says.

    gVisor's own kernel has a few for uid 0; those of the machine stay what they were.
    """
    before = {path: path.read_bytes() for path in map(Path, GVISORS) if path.exists()}
    code = """
opened = []
for directory, _, names in os.walk("/proc/sys"):
    for name in names:
        path = os.path.join(directory, name)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            opened.append(path)
            os.write(fd, b"3")
        except OSError:
            pass
tell(opened)
"""
    opened = set(probe(box, code))
    assert opened <= (set(GVISORS) if is_gvisor(box) and box.root.stat().st_uid == 0 else set())
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.statement("D2")
def test_no_sysrq(box: Box) -> None:
    """D2: the trigger that could reboot the machine can't be written."""
    got = written(box, ["/proc/sysrq-trigger"])["/proc/sysrq-trigger"]
    # gVisor's has nothing behind it: it opens for uid 0, and writing fails.
    gvisor = {"EIO"} if is_gvisor(box) else set()
    lacking = {"ENOENT"} if _lacks(box, "/proc/sysrq-trigger") else set()
    assert got in REFUSED | gvisor | lacking


# ─── D3, D4 ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("D3")
def test_what_tells_of_the_machine_is_empty(box: Box) -> None:
    """D3: the kernel's memory, keys, timers, interrupts, firmware and power show nothing."""
    code = f"""
def read(path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return len(os.read(fd, 4096))
    finally:
        os.close(fd)
files = {{path: attempt(read, path) for path in {SECRETIVE!r}}}
trees = {{path: attempt(os.listdir, path) for path in {SECRETIVE_TREES!r}}}
tell([files, trees])
"""
    files, trees = probe(box, code)
    assert {path: got for path, got in files.items() if got not in (0, "ENOENT", "EACCES")} == {}
    assert {path: got for path, got in trees.items() if got not in ([], "ENOENT", "EACCES")} == {}


@pytest.mark.statement("D4", runsc="gVisor masks nothing, since its own kernel shows nothing there")
def test_masks_are_the_real_devices(box: Box, facts: EngineFacts) -> None:
    """D4: a masked file is the null device itself, a masked directory an empty file system."""
    code = f"""
found = {{}}
for path in {masked_paths(facts)!r}:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        continue
    content = os.listdir(path) if os.path.isdir(path) else None
    found[path] = [status.st_mode, status.st_rdev, status.st_dev, content]
tell([found, os.stat("/proc").st_dev, os.stat("/sys").st_dev])
"""
    found, *kernels = probe(box, code)
    assert found, "some of them exist on every kernel"
    for path, (mode, device, place, content) in found.items():
        if stat.S_ISDIR(mode):
            assert content == [] and place not in kernels, path
        else:
            assert stat.S_ISCHR(mode) and device == os.makedev(1, 3), path
    there = {path for path in masked_paths(facts) if os.path.exists(path)}
    assert set(found) >= there - {"/proc/kcore"}, "what this machine has is masked"


@pytest.mark.statement("D4", runsc="gVisor masks nothing, since its own kernel shows nothing there")
def test_a_mask_can_not_be_taken_off(box: Box) -> None:
    """D4: a masked file keeps nothing that is written, and its mount can't be removed."""
    code = """
UMOUNT2 = 39 if IS_ARM else 166
fd = os.open("/proc/keys", os.O_RDWR)
os.write(fd, b"x")
os.lseek(fd, 0, 0)
tell([len(os.read(fd, 10)), syscall(UMOUNT2, b"/proc/keys", 2), attempt(os.remove, "/proc/keys")])
"""
    length, unmounted, removed = probe(box, code)
    assert length == 0
    assert unmounted in ("EPERM", "ENOSYS")
    assert removed in ("EPERM", "EBUSY", "EACCES", "EROFS")


PRESSED = """
pid = os.fork()
if not pid:
    for name in ("cpu", "io", "memory"):
        for _ in range(2000):
            try:
                os.write(os.open("/proc/pressure/" + name, os.O_RDWR), b"some 500000 2000000\\0")
            except OSError:
                break
    os.kill(os.getpid(), signal.SIGKILL)
print(attempt(os.listdir, "/proc/pressure"), os.WTERMSIG(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.statement("D3", "I11")
def test_nothing_is_told_or_asked_of_the_machines_pressure(box: Box) -> None:
    """A process that would have the kernel watch it thousandfold dies as fast as any other."""
    body = (PRELUDE + PRESSED).encode()
    ran = box.run(None, 10, argv=PYTHON, script=".py", body=body)
    assert ran.out.decode().strip() in ("[] 9", "ENOENT 9"), (ran.out, ran.value)


# ─── D5 ─────────────────────────────────────────────────────────────────────────────


CGROUPS = """
ROOT = "/sys/fs/cgroup"
NAMES = ("memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cgroup.procs",
         "tasks", "release_agent", "notify_on_release", "pids.max", "cpu.max", "devices.allow",
         "cgroup.subtree_control", "cpu.cfs_quota_us", "freezer.state")
def append(path):
    fd = os.open(path, os.O_WRONLY)
    try:
        return os.write(fd, b"999999999999")
    finally:
        os.close(fd)
found, made = {}, {}
for directory, folders, names in os.walk(ROOT):
    made[directory] = attempt(os.mkdir, directory + "/x")
    folders[:] = [name for name in folders if name != "x"]
    for name in NAMES:
        found[directory + "/" + name] = attempt(append, directory + "/" + name)
tell([found, made, os.statvfs(ROOT).f_flag & os.ST_RDONLY])
"""
LIMIT_FILES = (
    "/sys/fs/cgroup/memory/docker/{}/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/docker/{}/memory.memsw.limit_in_bytes",
    "/sys/fs/cgroup/pids/docker/{}/pids.max",
    "/sys/fs/cgroup/cpu/docker/{}/cpu.cfs_quota_us",
    "/sys/fs/cgroup/docker/{}/memory.max",
    "/sys/fs/cgroup/docker/{}/pids.max",
    "/sys/fs/cgroup/system.slice/docker-{}.scope/memory.max",
    "/sys/fs/cgroup/system.slice/docker-{}.scope/pids.max",
)
"""Where a machine's own control groups hold a box, by version and driver."""


def limits_outside(box: Box) -> dict[str, str]:
    """The limits of a box as the machine's own kernel has them."""
    paths = [Path(name.format(box.sandbox.id)) for name in LIMIT_FILES]
    return {str(path): path.read_text() for path in paths if path.exists()}


@pytest.mark.statement("D5")
def test_control_groups_can_not_be_written(box: Box) -> None:
    """D5: no group is made, no limit is raised, no process moved, no program named.

    Under gVisor uid 0 may write the groups of gVisor's own kernel, which hold nothing: the
    machine's groups, where the limits are, can't be seen from inside.
    """
    before = limits_outside(box)
    found, made, is_read_only = probe(box, CGROUPS)
    if not (is_gvisor(box) and box.root.stat().st_uid == 0):
        refused = REFUSED | {"ENOENT"}
        assert {path: got for path, got in found.items() if got not in refused} == {}
        assert {path: got for path, got in made.items() if got not in REFUSED} == {}
    assert is_read_only == os.ST_RDONLY
    assert limits_outside(box) == before
    assert not before or f"{LIMITS.memory_bytes}\n" in before.values()


# ─── D6 ─────────────────────────────────────────────────────────────────────────────

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
LINKS = {"fd", "stdin", "stdout", "stderr", "core", "ptmx"}


def devices(box: Box) -> list[tuple[str, int, int]]:
    """Name below /dev, mode and number of everything that is there."""
    code = """
found = []
for directory, folders, names in os.walk("/dev"):
    if directory.startswith(("/dev/fd", "/dev/pts")):
        continue
    for name in folders + names:
        status = os.lstat(os.path.join(directory, name))
        found.append([os.path.relpath(os.path.join(directory, name), "/dev"),
                      status.st_mode, status.st_rdev])
tell(found)
"""
    return [(name, mode, number) for name, mode, number in probe(box, code)]


@pytest.mark.statement("D6")
def test_only_harmless_devices_exist(box: Box) -> None:
    """D6: five devices and the terminal by their numbers; no block device, no kvm."""
    known = {**DEVICES, "tty": (5, 0)}
    if is_gvisor(box):
        # gVisor's kernel has these two; the next test says what they are worth.
        known |= {"fuse": (10, 229), "net/tun": (10, 200)}
    folders = {"pts", "shm", "mqueue"} | ({"net"} if is_gvisor(box) else set())
    for name, mode, number in devices(box):
        if stat.S_ISCHR(mode):
            assert (os.major(number), os.minor(number)) == known.get(name), name
        elif stat.S_ISLNK(mode):
            assert name in LINKS, name
        else:
            assert stat.S_ISDIR(mode) and name in folders, name


@pytest.mark.statement("D6")
def test_no_device_of_the_host_opens(box: Box) -> None:
    """D6: under gVisor `fuse` and `tun` are its own, and without capabilities do nothing."""
    code = """
import fcntl, struct
MOUNT = 40 if IS_ARM else 165
found = {}
for name in ("kvm", "fuse", "net/tun", "mem", "kmem", "port", "vda", "sda", "loop0", "loop-control",
             "mapper/control", "kmsg", "vhost-net", "vhost-vsock", "dri/card0", "btrfs-control"):
    found[name] = attempt(os.open, "/dev/" + name, os.O_RDWR)
effects = {}
if isinstance(found["net/tun"], int):
    request = struct.pack("16sH22x", b"tun0", 1)
    effects["tun"] = attempt(fcntl.ioctl, found["net/tun"], 0x400454CA, request)
if isinstance(found["fuse"], int):
    options = f"fd={found['fuse']},rootmode=40000,user_id=0,group_id=0".encode()
    effects["fuse"] = syscall(MOUNT, b"fuse", b"/tmp", b"fuse", 0, options)
tell([found, effects])
"""
    found, effects = probe(box, code)
    opened = {name for name, got in found.items() if isinstance(got, int)}
    assert opened <= ({"fuse", "net/tun"} if is_gvisor(box) else set())
    assert set(effects.values()) <= {"EPERM", "EINVAL", "ENOSYS"}
    assert len(effects) == len(opened)


@pytest.mark.statement("D6")
def test_no_device_is_made(box: Box) -> None:
    """D6: no device can be made and opened, wherever files can be made.

    gVisor makes the node of a block device, behind which there is nothing.
    """
    code = """
import stat
found = {}
for place in ("/dev", "/tmp", "/workspace", "/dev/shm", "/run/executor"):
    path = place + "/disk"
    found[place] = attempt(os.mknod, path, stat.S_IFBLK | 0o666, os.makedev(7, 0))
    if found[place] is None:
        found[place] = attempt(os.open, path, os.O_RDWR)
        os.remove(path)
tell(found)
"""
    assert set(probe(box, code).values()) <= REFUSED | ({"ENXIO"} if is_gvisor(box) else set())


# ─── D7 ─────────────────────────────────────────────────────────────────────────────

PATTERN = Path("/proc/sys/kernel/core_pattern")
CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"
LOWER = "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"
CRASHES = {
    "plain": CRASH,
    # To a kernel with a helper, 0 is no limit, and everybody may set it.
    "lowered": f"{LOWER}\n{CRASH}",
    "raised": f"""
try:
    resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
except ValueError:
    pass
{CRASH}""",
    "by the old call": f"""
both = (ctypes.c_ulong * 2)(0, 0)
syscall(163 if IS_ARM else 160, 1 << 32 | 4, both)
{CRASH}""",
    "with garbage": f"""
both = (ctypes.c_ulong * 2)(0, 0)
for place in (0, 1 << 32, 7 << 40):
    syscall(261 if IS_ARM else 302, place, place | 4, both, 0)
{CRASH}""",
    "by the parent": f"""
child = os.fork()
if child == 0:
    signal.sigwait([signal.SIGTERM])
    {CRASH}
attempt(resource.prlimit, child, resource.RLIMIT_CORE, (0, 0))
os.kill(child, signal.SIGTERM)
os.waitpid(child, 0)
{CRASH}""",
}


@contextmanager
def core_helper(directory: Path) -> Iterator[Path]:
    """Has the kernel start a program for each core dump, which writes a line; undone after.

    The setting is the whole machine's: one test at a time, and what was there comes back.
    """
    log, script = directory / "log", directory / "helper"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec cat > /dev/null\n')
    script.chmod(0o755)
    log.touch()
    with Path("/tmp/executor-core-pattern.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = PATTERN.read_text()
        try:
            try:
                PATTERN.write_text(f"|{script} %e")
            except OSError as error:
                pytest.skip(f"the core pattern can't be set here: {error.strerror}")
            if len(PATTERN.read_text().strip()) != len(f"|{script} %e"):
                pytest.skip("the directory's name is too long for a core pattern")
            yield log
        finally:
            PATTERN.write_text(before)


def crash(name: str, code: str) -> str:
    """A program that crashes under a name of its own, for `PYTHON`."""
    start = "import resource\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    named = f"open('/proc/self/comm', 'w').write({name!r})\n"
    return PRELUDE + start + named + code


def crash_on_host(name: str) -> None:
    """A crash outside of any box, which the helper has to hear of: the trap works."""
    subprocess.run([sys.executable, "-c", crash(name, CRASH)], check=False, timeout=30)


def names_of_crashes(log: Path, last: str) -> list[str]:
    """What the helper heard of, once it has heard of the last one; bounded."""
    deadline = time.monotonic() + 10
    while last not in (names := log.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return names


@pytest.mark.statement("D7")
def test_the_limit_that_keeps_the_helper_away(box: Box) -> None:
    """D7: one byte, soft and hard, says to a kernel not to start it; no file appears, either."""
    core = "import resource\ntell(list(resource.getrlimit(resource.RLIMIT_CORE)))"
    assert probe(box, core) == [1, 1]
    box.run("ulimit -c 0; kill -SEGV $$")
    assert [path.name for path in box.root.iterdir() if "core" in path.name] == []


@pytest.mark.statement("D7", runsc="a crash in there is one of gVisor's own kernel's processes")
def test_who_wants_no_core_dumps_is_told_that_there_are_none(box: Box) -> None:
    """D7: sanitizers and keepers of keys end when they can't set it; it stays what it was."""
    code = f"import resource\n{LOWER}\ntell(list(resource.getrlimit(resource.RLIMIT_CORE)))"
    assert probe(box, code) == [1, 1]
    others = (
        "import resource\n"
        + """
found = {}
for kind in range(16):
    if kind != resource.RLIMIT_CORE:
        now = resource.getrlimit(kind)
        found[kind] = attempt(resource.setrlimit, kind, now)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
tell([found, list(resource.getrlimit(resource.RLIMIT_NOFILE))])
"""
    )
    found, files = probe(box, others)
    assert set(found.values()) == {None} and files == [100, 200]


@pytest.mark.statement("D7")
@pytest.mark.parametrize("way", CRASHES)
def test_a_crash_starts_no_helper_of_the_host(
    box: Box, way: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """D7: a helper that hears of crashes of the host hears of none in a box."""
    if os.geteuid() != 0:
        pytest.skip("only root may have a helper for core dumps")
    inside, outside = f"in-{uuid.uuid4().hex[:8]}", f"out-{uuid.uuid4().hex[:8]}"
    with core_helper(tmp_path_factory.mktemp("core")) as log:
        for _ in range(2):
            body = crash(inside, CRASHES[way]).encode()
            ran = box.run(None, argv=PYTHON, script=".py", body=body)
            assert ran.value["signal"] == "SIGSEGV", (ran.value, ran.err)
        crash_on_host(outside)
        names = names_of_crashes(log, outside)
    if outside not in names:
        pytest.skip("this machine's kernel starts no helper")
    assert inside not in names


# ─── D8 ─────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def image_with_link(engine: Engine, name: str, target: str) -> AsyncIterator[str]:
    """An image in which a link stands in place of a file system of the kernel."""
    buffer = io.BytesIO(tiny.root_file_system())
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, target
        tar.addfile(link)
    reference = f"executor-test-{uuid.uuid4().hex[:12]}:link"
    await engine.import_image(reference, [buffer.getvalue()], [f"LABEL {tiny.LABEL}=tiny"])
    try:
        yield reference
    finally:
        assert await engine.remove_image(reference)


TRAPS = ("/workspace/trap", "/tmp/{canary}")
LOOK = """
for path in /proc /sys /dev; do printf '%s ' $path; stat -f -c %T $path; done
ls -d /proc/self/fd /sys/class /dev/null
"""


@pytest.mark.statement("D8")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((name, target) for name in ("proc", "sys", "dev") for target in TRAPS),
        ("proc", "../../../../{canary}"),
        ("dev", "."),
    ],
)
def test_an_image_with_a_link_for_a_kernels_place(
    tmp_path: Path, runtime: str, name: str, target: str
) -> None:
    """D8: it is refused, or gets the real ones; the host and the worktree stay as they were."""
    canary = f"executor-canary-{uuid.uuid4().hex[:8]}"
    target = target.format(canary=canary)
    root = make_worktree(tmp_path / "worktree")

    async def run() -> str:
        async with tiny.engine() as engine, image_with_link(engine, name, target) as image:
            spec = LoopSpec(
                worktree=root, limits=LIMITS, exec_id="link", runtime=runtime, image=image
            )
            with LoopThread() as thread:
                return await asyncio.to_thread(look, thread, spec, tmp_path / "state")

    said = asyncio.run(run())
    if said != "refused":
        assert said.split()[:6] == ["/proc", "proc", "/sys", "sysfs", "/dev", "tmpfs"], said
        assert "/proc/self/fd" in said and "/dev/null" in said
    assert list(root.iterdir()) == []
    assert not any(os.path.lexists(Path(place) / canary) for place in ("/", "/tmp"))


def look(thread: LoopThread, spec: LoopSpec, state: Path) -> str:
    """What a box of the image says, or that there is none."""
    try:
        box = Box(thread, thread.enter(open_docker_box(spec, state)), Path(spec.worktree), "docker")
    except SandboxError:
        return "refused"
    return box.run(LOOK).out.decode()


def test_the_names_of_errors_are_known() -> None:
    """The probes report errors by name; a name that does not exist would allow nothing."""
    assert all(hasattr(errno, name) for name in REFUSED)
