"""G: the file system and the file tools, attacked from inside and looked at from the host.

What is *outside* a worktree for a process of the box is the rest of the box: nothing of the
host's can be named from in there. So the canaries of the races lie in the box's `/tmp`.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import executor
from executor.errors import (
    AgentLost,
    Code,
    ConfigError,
    SandboxUnavailable,
    ToolError,
)
from executor.model import Limits, LoopSpec, Result
from executor.sandbox import connection as connection_module
from executor.sandbox import targets
from executor.sandbox.box import Host, open_box
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import Identity
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread, Ran
from tests.loops import Work, open_work
from tests.sandbox import tiny
from tests.security.probes import probe

PROMPT = 0.1
"""Seconds within which what can't be opened has to be refused."""
FLIPS = 100_000
TREES = {"runc": (100_000, 10_000), "runsc": (8_000, 500)}
"""Files side by side, directories in each other. A million files take minutes to make, and
gVisor half a millisecond to open one; the tools' limits are far below all of these."""


@pytest.fixture(scope="module")
def work(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A loop with all its tools, over each runtime."""
    directory = tmp_path_factory.mktemp(runtime)
    with open_work(
        "docker", directory, Limits(memory="1g", pids=128), lambda s: replace(s, runtime=runtime)
    ) as opened:
        yield opened


def box_of(work: Work) -> Box:
    """The box that the loop has now."""
    sandbox: Any = work.opened[-1]
    return Box(work.thread, sandbox, work.root, "docker")


def told(box: Box, command: str, **more: Any) -> str:
    """What a command that must succeed printed."""
    ran = box.run(command, **more)
    assert ran.code == 0, (ran.value, ran.out[-500:], ran.err[-500:])
    return ran.out.decode()


def quickest(attempt: Callable[[], Any], tries: int = 5) -> tuple[float, Any]:
    """Seconds of the quickest of some tries, since this machine is shared; its outcome."""
    found = []
    for _ in range(tries):
        began = time.monotonic()
        outcome = attempt()
        found.append((time.monotonic() - began, outcome))
    return min(found, key=lambda one: one[0])


# ─── out of the worktree ────────────────────────────────────────────────────────────

LINKS = {
    "file": "/etc/passwd",
    "relative": "../../etc/passwd",
    "up": "../../../../../../etc",
    "root": "/",
    "proc": "/proc/self/root",
    "proc-file": "/proc/self/root/etc/passwd",
    "cwd": "/proc/self/cwd/../etc",
    "agent": "/proc/1/root/etc",
    "descriptor": "/proc/self/fd/0",
    "chain": "up",
    "tmp": "/tmp",
}
ESCAPES = [
    *(f"links/{name}" for name in ("file", "relative", "proc-file", "descriptor")),
    *(f"links/{name}/passwd" for name in ("up", "agent", "cwd")),
    *("links/root/etc/passwd", "links/proc/etc/passwd", "links/chain/passwd", "links/tmp/secret"),
    *("../etc/passwd", "links/../../etc/passwd", "/etc/passwd", "/proc/self/root/etc/passwd"),
    *("/workspace/../etc/passwd", "//etc/passwd"),
]


@pytest.fixture(scope="module")
def linked(work: Work) -> Work:
    """A worktree with links to outside, made from inside, and a canary out there."""
    (work.root / "links").mkdir(mode=0o777)
    (work.root / "links").chmod(0o777)
    lines = [f"ln -s {target} links/{name}" for name, target in LINKS.items()]
    told(box_of(work), "; ".join([*lines, "echo canary > /tmp/secret"]))
    work.write("plain", "plain\n")
    return work


@pytest.mark.statement("G1")
@pytest.mark.parametrize("path", ESCAPES)
def test_no_tool_follows_a_path_out_of_the_worktree(linked: Work, path: str) -> None:
    """Reading, listing, searching, writing, editing, deleting and moving are all refused."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": path}),
        ("read_file", {"path": path, "encoding": "base64"}),
        ("write_file", {"path": path, "content": "pwned"}),
        ("write_file", {"path": path + "/new/file", "content": "pwned"}),
        ("edit_file", {"path": path, "old_string": "root", "new_string": "pwned"}),
        ("list_directory", {"path": path}),
        ("grep", {"pattern": ".", "path": path}),
        ("glob", {"pattern": path}),
        ("move_file", {"from": "plain", "to": path + "/moved"}),
    ]
    if "/" in path.removeprefix("links/"):  # a link itself may be deleted and moved
        calls += [
            ("delete_file", {"path": path}),
            ("move_file", {"from": path, "to": "stolen"}),
        ]
    for name, given in calls:
        result = linked.call(name, **given)
        text = str(result.content)
        # A glob matches names and opens nothing: the link's own name is in the worktree.
        assert name == "glob" or result.code is Code.INVALID_PATH, (name, text)
        assert "root:x:" not in text and "canary\n" not in text, (name, text)
    assert (linked.root / "plain").read_text() == "plain\n"
    assert told(box_of(linked), "cat /tmp/secret; ls /tmp/new 2>&1 || true").startswith("canary\n")


RACER = """
import shutil, time
os.makedirs("/tmp/canary/new", exist_ok=True)
for name in ("file", "new/file"):
    with open("/tmp/canary/" + name, "w") as file: file.write("CANARY")
os.chdir("/workspace/race")
RENAMEAT2, EXCHANGE, HERE = (276 if IS_ARM else 316), 2, -100
fast = syscall(RENAMEAT2, HERE, b"spot", HERE, b"other", EXCHANGE) == 0
def begin_anew():
    for name in ("spot", "other", "third"):
        os.unlink(name) if os.path.islink(name) else shutil.rmtree(name, ignore_errors=True)
    os.makedirs("spot/new", exist_ok=True)
    for name in ("spot/file", "spot/new/file"):
        with open(name, "w") as file: file.write("CURRENT")
    os.path.lexists("other") or os.symlink("/tmp/canary", "other")
open("ready", "w").close()
flips = 0
while not os.path.exists("stop") or flips < (FLIPS if fast else 0):
    for _ in range(500):
        if fast:
            syscall(RENAMEAT2, HERE, b"spot", HERE, b"other", EXCHANGE)
        else:  # through moments in which nothing is there, and a write makes a directory
            try:
                os.rename("spot", "third"); os.rename("other", "spot"); os.rename("third", "other")
            except OSError:
                begin_anew()
        flips += 1
tell([fast, flips])
"""
HOST_RACER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.chdir(sys.argv[1])
open("ready", "w").close()
flips = 0
while not os.path.exists("stop") or flips < int(sys.argv[2]):
    for _ in range(500):
        flips += libc.renameat2(-100, b"spot", -100, b"other", 2) == 0
print(flips)
"""


def _race(box: Box, spot: str, is_over: Callable[[], bool]) -> int:
    """File operations on a path that flips, until it is over; how many were tried.

    More than a hundred, however busy the machine is.
    """
    tried = 0
    while tried <= 100 or not is_over():
        for op, arguments, body in (
            ("write", {"path": f"{spot}/file", "expect": "0" * 32}, b"PWNED"),
            ("write", {"path": f"{spot}/made{tried}"}, b"PWNED"),
            ("write", {"path": f"{spot}/new/d{tried}/file"}, b"PWNED"),
            ("write", {"path": f"{spot}/../spot/file", "expect": "0" * 32}, b"PWNED"),
            ("edit", {"path": f"{spot}/file", "expect": "0" * 32, "old": 1}, b"CP"),
            ("read", {"path": f"{spot}/file"}, b""),
            ("list", {"path": spot, "recursive": True}, b""),
            ("move", {"from": f"{spot}/file", "to": f"{spot}/moved", "overwrite": True}, b""),
            ("move", {"from": f"{spot}/moved", "to": f"{spot}/file", "overwrite": True}, b""),
            ("delete", {"path": f"{spot}/new", "recursive": True}, b""),
        ):
            tried += 1
            try:
                answer = box.request(op, dict(arguments), body)
            except ToolError as error:
                assert error.code is not Code.INTERNAL, (op, error)
            else:
                assert b"CANARY" not in answer.data, (op, arguments)
    return tried


def _prepare_race(work: Work, name: str) -> Path:
    race = work.root / name
    work.write(f"{name}/spot/file", "CURRENT")
    work.write(f"{name}/spot/new/file", "CURRENT")
    (race / "other").symlink_to("/tmp/canary")
    return race


def _require_untouched(box: Box) -> None:
    listing = told(box, "cd /tmp/canary; find . -type f -exec grep -H . {} +; find . -type d")
    wanted = ["./file:CANARY", "./new/file:CANARY", ".", "./new"]
    assert sorted(listing.splitlines()) == sorted(wanted)


@pytest.mark.statement("G2")
def test_a_directory_that_flips_to_a_link_inside_never_leads_outside(
    work: Work, runtime: str
) -> None:
    """A process of the box exchanges directory and link as fast as it can, 10^5 times."""
    box = box_of(work)
    race = _prepare_race(work, "race")
    code = RACER.replace("FLIPS", str(FLIPS))
    future = work.thread.loop.run_in_executor(None, probe, box, code, 90)  # not to wait for it
    _until((race / "ready").exists)
    until = time.monotonic() + 4
    try:
        tried = _race(box, "race/spot", lambda: time.monotonic() > until)
    finally:
        (race / "stop").touch()
    fast, flips = work.thread.run(_wait_for(future))
    assert tried > 100 and flips >= (FLIPS if fast else 2000), (tried, flips)
    assert fast or runtime == "runsc"
    _require_untouched(box)


async def _wait_for(future: Any) -> Any:
    return await future


def _until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for what nothing else tells."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


@pytest.mark.statement("G2")
def test_a_directory_that_flips_to_a_link_on_the_host_never_leads_outside(work: Work) -> None:
    """The same with 10^5 exchanges from the host: the fastest race that there can be."""
    box = box_of(work)
    told(
        box, "mkdir -p /tmp/canary/new; printf CANARY | tee /tmp/canary/file > /tmp/canary/new/file"
    )
    race = _prepare_race(work, "host-race")
    command = [sys.executable, "-c", HOST_RACER, str(race), str(FLIPS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as racer:
        _until((race / "ready").exists)
        until = time.monotonic() + 3
        try:
            tried = _race(box, "host-race/spot", lambda: time.monotonic() > until)
        finally:
            (race / "stop").touch()
        out = racer.communicate(timeout=60)[0]
    assert tried > 100 and int(out) >= FLIPS
    _require_untouched(box)


# ─── special files, links, sizes ────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def special(work: Work) -> Work:
    """A worktree with a fifo, a socket and a directory, and a device that the host made."""
    told(box_of(work), "mkdir -p special/directory; mkfifo special/fifo")
    place = os.getcwd()
    os.chdir(work.root / "special")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    os.chdir(place)
    if os.geteuid() == 0:
        for name, number in (("zero", os.makedev(1, 5)), ("tty", os.makedev(5, 0))):
            os.mknod(work.root / "special" / name, stat.S_IFCHR | 0o666, number)
        os.mknod(work.root / "special/disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    return work


@pytest.mark.statement("G3", "G16")
@pytest.mark.parametrize("name", ["fifo", "socket", "directory", "zero", "tty", "disk"])
def test_special_files_are_refused_at_once(special: Work, name: str) -> None:
    """No tool opens what could make it wait: not a regular file, within a tenth of a second."""
    path = f"special/{name}"
    if not (special.root / path).exists():
        pytest.skip("only root makes devices")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": path}),
        ("read_file", {"path": path, "encoding": "base64"}),
        ("write_file", {"path": path, "content": "x"}),
        ("edit_file", {"path": path, "old_string": "x", "new_string": "y"}),
    ]
    for tool, given in calls:
        seconds, result = quickest(partial(special.call, tool, **given))
        assert result.code in (Code.NOT_A_FILE, Code.PERMISSION_DENIED), (tool, result.content)
        assert seconds < PROMPT, (tool, seconds)
    if name != "directory":
        seconds, result = quickest(lambda: special.call("grep", pattern="x", path=path))
        assert seconds < 5 * PROMPT, seconds  # it starts a program
    assert (special.root / path).exists()


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """A lease on the file by this process: whoever opens it waits until it is given up."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)


@pytest.mark.statement("G16")
def test_a_leased_file_holds_up_no_agent(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error at once. Over gVisor, whose kernel waits in the agent's place, the watchdog's."""
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 0.2)
    monkeypatch.setattr(connection_module, "PING_PATIENCE", 2.0)
    with LoopThread() as thread:
        box = _box(thread, tmp_path, runtime)
        path = box.root / "leased"
        path.write_text("held\n")
        os.chown(path, box.root.stat().st_uid, -1)
        with leased(path):
            if runtime == "runsc":
                with pytest.raises(AgentLost, match="did not answer"):
                    box.request("read", {"path": "leased"})
                return
            for op in ("read", "write", "edit"):

                def attempt(op: str = op) -> ToolError:
                    arguments = {"path": "leased", "expect": "0" * 32, "old": 1}
                    with pytest.raises(ToolError) as caught:
                        box.request(op, arguments, b"xy")
                    return caught.value

                seconds, error = quickest(attempt)
                assert seconds < PROMPT and "held by another process" in str(error)
        assert box.request("read", {"path": "leased"}).data == b"held"


def _box(
    thread: LoopThread, directory: Path, runtime: str, limits: Limits = LIMITS, **more: Any
) -> Box:
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=limits, exec_id="files", runtime=runtime, **more)
    sandbox = thread.enter(open_docker_box(spec, directory / "state"))
    return Box(thread, sandbox, root, "docker")


@pytest.mark.statement("G4")
def test_a_hard_link_to_an_outside_file_is_broken(work: Work, tmp_path: Path) -> None:
    """Writing and editing put a new file in the link's place; the outside one keeps its bytes."""
    work.write("hard/x", "")
    for name, change in (
        ("write_file", {"content": "pwned\n"}),
        ("edit_file", {"old_string": "outside", "new_string": "pwned"}),
    ):
        outside = tmp_path / name
        outside.write_text("outside\n")
        os.chown(outside, work.root.stat().st_uid, -1)
        os.link(outside, work.root / "hard" / name)
        assert work.call("read_file", path=f"hard/{name}").is_error is False
        assert work.call(name, path=f"hard/{name}", **change).is_error is False
        assert outside.read_text() == "outside\n"
        assert (work.root / "hard" / name).read_text() == "pwned\n"
        assert outside.stat().st_nlink == 1


def resident(pid: int | str = "self") -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.statement("G5")
def test_huge_and_growing_files_cost_no_more_than_their_cap(work: Work, runtime: str) -> None:
    """1 TiB of holes and a file that grows as it is read: a cut answer, and no more memory."""
    huge = work.write("huge", b"line of text\n" * 100_000)
    os.truncate(huge, 1 << 40)
    told(box_of(work), "(while [ ! -e enough ]; do yes text | head -c 5000000; done >> grown) &")
    _until(lambda: (work.root / "grown").exists() and (work.root / "grown").stat().st_size > 10**7)

    def all_of_it() -> list[Result]:
        return [
            work.call("read_file", path="huge"),
            work.call("read_file", path="huge", encoding="base64"),
            work.call("read_file", path="grown"),
            work.call("grep", pattern="text", path="grown"),
        ]

    all_of_it()
    host, agent = resident(), _agent_memory(work, runtime)
    for _ in range(5):
        text, raw, grown, hits = all_of_it()
        assert text.truncated and len(text.content) <= 100_000, text.content[-200:]
        assert raw.code is Code.TOO_LARGE
        assert grown.truncated and hits.truncated
        assert max(len(grown.content), len(hits.content)) <= 100_000
    (work.root / "enough").touch()
    assert resident() - host < 2 << 20
    assert _agent_memory(work, runtime) - agent < 8 << 20
    huge.unlink()
    _until(lambda: told(box_of(work), "pgrep -f '[y]es text' || true") == "")
    (work.root / "grown").unlink()


def _agent_memory(work: Work, runtime: str) -> int:
    line = told(box_of(work), "grep VmRSS /proc/1/status")
    return int(line.split()[1]) << 10


@contextmanager
def quick_directory(path: Path) -> Iterator[Path]:
    """A directory in memory where we may mount one: a hundred thousand files are made there."""
    path.mkdir()
    if os.geteuid() == 0:
        subprocess.run(["mount", "-t", "tmpfs", "executor-test", path], check=True, timeout=30)
    try:
        yield path
    finally:
        subprocess.run(["rm", "-rf", path / "worktree"], check=True, timeout=120)
        if os.geteuid() == 0:
            subprocess.run(["umount", path], check=True, timeout=30)


@pytest.mark.statement("G6")
def test_wide_deep_and_looped_trees_end_by_their_limits(runtime: str, tmp_path: Path) -> None:
    """Very many files, very deep directories, links in circles: cut answers that say so."""
    files, depth = TREES[runtime]
    limits = Limits(memory="1g", pids=128)
    with (
        quick_directory(tmp_path / "quick") as directory,
        open_work("docker", directory, limits, lambda s: replace(s, runtime=runtime)) as work,
    ):
        _make_wide(work.root / "wide", files)
        _make_deep(work.root / "deep", depth, work.root.stat().st_uid)
        for name in ("wide", "deep", "."):
            listed = work.call("list_directory", path=name, recursive=True)
            assert listed.truncated, (name, listed.content[-300:])
            assert len(listed.content) <= 30_000
        globbed = work.call("glob", pattern="wide/f*")
        assert globbed.truncated and len(globbed.content) <= 50_000
        globbed = work.call("glob", path="deep", pattern="**/f*")
        assert globbed.code is None and "too deep" in globbed.content
        for name in ("wide", "deep"):
            result = work.call("grep", pattern="nothing", path=name)
            assert result.code is None, result.content
        assert work.call("read_file", path="wide/self/self/a").code is Code.INVALID_PATH
        gone = work.call("delete_file", path="deep", recursive=True)
        assert gone.is_error is False, gone.content
        assert not (work.root / "deep").exists()


def _make_wide(path: Path, files: int) -> None:
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    for number in range(files):
        os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
    for name, target in (("self", "."), ("a", "b"), ("b", "a")):
        os.symlink(target, path / name)


def _make_deep(path: Path, depth: int, owner: int) -> None:
    path.mkdir()
    os.chown(path, owner, owner)
    here = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        os.chown("d", owner, owner, dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


@pytest.mark.statement("G7")
@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("grep", {"pattern": "(a+)+$"}),
        ("grep", {"pattern": "(a|aa|a?)*b"}),
        ("grep", {"pattern": "(.*a){25}b"}),
        ("grep", {"pattern": "a", "file_pattern": "*a*a*a*a*a*a*a*a*a*b"}),
        ("glob", {"pattern": "*a" * 60 + "b"}),
        ("glob", {"pattern": "{a,aa}" * 40 + "b"}),
        ("glob", {"pattern": "**/" * 50 + "b"}),
    ],
)
def test_no_pattern_costs_the_host_anything(work: Work, tool: str, given: dict[str, Any]) -> None:
    """Whatever a pattern costs, it costs the box; other calls are answered meanwhile."""
    lines = "a" * 5000 + "!\n"
    if not (work.root / "costly").exists():
        work.write("costly/" + "a" * 200, lines * 20)
    began, processor = time.monotonic(), time.process_time()
    slow, beside = work.turn(
        (tool, {**given, "path": "costly"}), ("run_command", {"command": "echo beside"})
    )
    assert beside.content == "beside\n", beside
    assert slow.code in (None, Code.INVALID_ARGUMENTS, Code.LIMIT, Code.TIMEOUT), slow.content
    assert time.monotonic() - began < 20
    assert time.process_time() - processor < 1


@pytest.mark.statement("G7")
def test_a_search_that_takes_too_long_is_killed_in_the_box(work: Work) -> None:
    """A pattern that takes minutes to compile: the time is up, and no program is left."""
    box = box_of(work)
    work.write("costly/x", "aaa\n")
    began = time.monotonic()
    arguments = {"pattern": "((a{1,100}){1,100}){1,100}b", "path": "costly", "max_bytes": 1000}
    with pytest.raises((ToolError, TimeoutError)) as caught:
        work.thread.run(box.sandbox.request("grep", arguments, timeout=1.5))
    assert getattr(caught.value, "code", Code.TIMEOUT) is Code.TIMEOUT
    assert time.monotonic() - began < 12
    _until(lambda: "rg" not in told(box, "ps axo comm").split(), 10)


# ─── names ──────────────────────────────────────────────────────────────────────────

NAMES = [
    *(b"new\nline", b"\x1b[31mred\x1b[0m", b"\x1b]0;title\x07", b"not-utf8-\xff\xfe"),
    *(b"-rf", b"--help", b"n" * 255, "\u202egnp.exe".encode(), b"c1-\xc2\x9b31m", b" "),
    *(b"back\\slash", b"quote'\"", b"tab\t", b"$(touch pwned)", b"\\x41", b"star*?[a]"),
]


@pytest.mark.statement("G8")
@pytest.mark.parametrize("name", NAMES)
def test_odd_names_survive_and_are_shown_without_control_characters(
    work: Work, name: bytes
) -> None:
    """Made inside, listed, read, edited, moved and deleted by the tools under its own name."""
    code = (
        f"os.makedirs('odd', exist_ok=True); open({b'odd/' + name!r}, 'w').write('text'); tell(0)"
    )
    probe(box_of(work), code)
    listed = work.call("list_directory", path="odd")
    entries = listed.structured["entries"] if listed.structured else []
    assert [os.fsencode(entry["name"]) for entry in entries] == [name]
    shown = [
        listed,
        work.call("glob", pattern="odd/*"),
        work.call("grep", pattern="text", path="odd"),
    ]
    path = "odd/" + os.fsdecode(name)
    shown.append(work.call("read_file", path=path))
    assert str(shown[-1].content).endswith("text"), shown[-1].content
    change = {"old_string": "text", "new_string": "changed"}
    shown.append(work.call("edit_file", path=path, **change))
    shown.append(work.call("move_file", **{"from": path, "to": path[:-1] + "!"}))
    shown.append(work.call("read_file", path=path))
    moved = os.fsencode(work.root) + b"/" + os.fsencode(path[:-1] + "!")
    with open(moved) as file:
        assert file.read() == "changed"
    shown.append(work.call("delete_file", path=path[:-1] + "!"))
    assert os.listdir(work.root / "odd") == []
    codes = [result.code for result in shown]
    assert codes == [None] * 6 + [Code.FILE_NOT_FOUND, None], [one.content for one in shown]
    text = "".join(str(result.content) for result in shown)
    controls = {c for c in text if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"}
    assert not controls and not any("\ud800" <= c <= "\udfff" for c in text), text
    if b"\n" in name:
        assert "new\\x0aline" in text
    assert not (work.root / "pwned").exists()


# ─── what may be written ────────────────────────────────────────────────────────────

WRITABLE = ("/workspace", "/tmp", "/var/tmp", "/home/sandbox", "/run", "/dev/shm", "/dev/mqueue")
WRITER = """
made, odd = [], []
for place, names, _ in os.walk("/", followlinks=False):
    names[:] = [n for n in names if not (place == "/" and n in ("proc", "sys"))]
    path = place.rstrip("/") + "/executor-probe"
    answer = attempt(os.open, path, os.O_CREAT | os.O_WRONLY)
    if isinstance(answer, int):
        os.close(answer)
        made.append(place)
        os.unlink(path)
    elif answer not in ("EROFS", "EACCES", "EPERM", "ENOENT"):
        odd.append([place, answer])
licence = "/opt/executor/licences/" + sorted(os.listdir("/opt/executor/licences"))[0]
size = os.stat(licence).st_size
files = {attempt(os.open, licence, flags | os.O_TRUNC) for flags in (os.O_RDONLY, os.O_RDWR)}
for path in ("/etc/passwd", "/etc/hosts", "/bin/sh", "/opt/executor/agent/service.py", licence):
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND):
        files.add(attempt(os.open, path, flags))
    for act in (os.unlink, os.rmdir):
        files.add(attempt(act, path))
    files.add(attempt(os.chmod, path, 0o777))
    files.add(attempt(os.truncate, path, 1))
    files.add(attempt(os.rename, path, path + "-"))
files.add(None if os.stat(licence).st_size == size else "TRUNCATED")
tell([made, odd, [str(one) for one in files - {None}]])
"""


@pytest.mark.statement("G9")
@pytest.mark.parametrize("uid", [None, 0])
def test_only_the_listed_places_can_be_written(
    runtime: str, tmp_path: Path, uid: int | None
) -> None:
    """A file can be made in the worktree and in tmpfs alone, also by a box of uid 0."""
    with LoopThread() as thread:
        box = _box(thread, tmp_path, runtime, uid=uid)
        made, odd, files = probe(box, WRITER, 60)
    # gVisor's /dev is memory of its own kernel, so of the box, whatever is asked for.
    allowed = (*WRITABLE, "/dev") if (runtime, uid) == ("runsc", 0) else WRITABLE
    stray = [p for p in made if not any(p == w or p.startswith(w + "/") for w in allowed)]
    assert not stray and not odd, (stray, odd)
    assert "/tmp" in made and (uid == 0 or "/workspace" in made)
    assert set(files) <= {"EROFS", "EACCES", "EPERM", "EBUSY", "ENOTDIR", "ETXTBSY"}, files
    assert "EROFS" in files


@pytest.mark.statement("G10")
def test_a_volume_of_an_image_is_a_tmpfs_with_a_size(runtime: str, tmp_path: Path) -> None:
    """`VOLUME /data` gives no directory on the host: it is full at its share of the memory."""
    root = make_worktree(tmp_path / "worktree")

    async def scene() -> tuple[str, list[dict[str, Any]], set[str], set[str]]:
        async with tiny.engine() as engine, tiny.tiny_image(engine, ["VOLUME /data"]) as image:
            before = _volumes()
            spec = LoopSpec(
                worktree=root,
                limits=LIMITS,
                exec_id="volume",
                runtime=runtime,
                image=image.reference,
            )
            async with open_docker_box(spec, tmp_path / "state") as sandbox:
                ran = await _ran(sandbox, "dd if=/dev/zero of=/data/x bs=1M; df /data")
                made = await engine.inspect(sandbox.id)
                during = _volumes()
            return (
                (ran.out + ran.err).decode(),
                made["Mounts"],
                during - before,
                _volumes() - before,
            )

    said, mounts, during, after = asyncio.run(scene())
    assert "No space left on device" in said
    size = [int(line.split()[1]) for line in said.splitlines() if line.endswith("/data")]
    assert size and size[0] << 10 <= LIMITS.memory_bytes // 16
    kinds = {(mount["Type"], mount.get("Name", "")) for mount in mounts if mount["Type"] != "bind"}
    assert len(kinds) == 1, "the runtime's volume alone"
    assert not during and not after


def _volumes() -> set[str]:
    """Volumes without a name of ours: what an image's VOLUME would make."""
    done = subprocess.run(
        ["docker", "volume", "ls", "-q"], capture_output=True, check=True, timeout=30, text=True
    )
    return {name for name in done.stdout.split() if len(name) == 64}


@pytest.mark.statement("G11")
def test_set_uid_bits_gain_nothing(work: Work) -> None:
    """A set-uid program of the worktree runs as its caller; capabilities can't be attached."""
    code = """
import shutil, subprocess
shutil.copy("/usr/bin/id", "suid-id")
os.chmod("suid-id", 0o6755)
value = bytes.fromhex("0100000200200000000000000000000000000000")
told = {"mode": os.stat("suid-id").st_mode & 0o7777}
told["capability"] = attempt(os.setxattr, "suid-id", "security.capability", value)
told["trusted"] = attempt(os.setxattr, "suid-id", "trusted.x", b"y")
told["ids"] = subprocess.run(["./suid-id"], capture_output=True, text=True).stdout
told["chown"] = attempt(os.chown, "suid-id", 0, 0)
tell(told)
"""
    found = probe(box_of(work), code)
    uid = work.root.stat().st_uid
    assert f"uid={uid}" in found["ids"] and "euid" not in found["ids"]
    assert found["capability"] in ("EPERM", "EOPNOTSUPP", "ENOTSUP")
    assert found["trusted"] in ("EPERM", "EOPNOTSUPP", "ENOTSUP")
    assert found["chown"] == "EPERM"
    assert (work.root / "suid-id").stat().st_uid == uid, "never another's, so never root's"
    # A root-owned set-uid program that lies in the worktree is no way up either.
    if os.geteuid() == 0:
        planted = work.root / "planted"
        shutil.copy("/usr/bin/id", planted)
        os.chown(planted, 0, 0)
        planted.chmod(0o4755)
        assert "euid" not in told(box_of(work), "./planted")
        planted.unlink()


@pytest.mark.statement("G11")
def test_writing_by_a_tool_drops_set_uid_bits(work: Work) -> None:
    """What `write_file` and `edit_file` leave is never set-uid or set-gid."""
    for name, change in (
        ("write_file", {"content": "new\n"}),
        ("edit_file", {"old_string": "old", "new_string": "new"}),
    ):
        path = work.write("bits", "old\n")
        path.chmod(0o6755)
        work.call("read_file", path="bits")
        assert work.call(name, path="bits", **change).is_error is False
        assert stat.S_IMODE(path.stat().st_mode) == 0o755


# ─── mounts ─────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _image_with_links(engine: Engine, links: dict[str, str]) -> AsyncIterator[str]:
    content = io.BytesIO(tiny.root_file_system())
    with tarfile.open(fileobj=content, mode="a") as tar:
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    name = f"executor-test-{uuid.uuid4().hex[:12]}:links"
    await engine.import_image(name, [content.getvalue()], [f"LABEL {tiny.LABEL}=links"])
    try:
        yield name
    finally:
        await engine.remove_image(name)


async def _pwd(directory: Path, links: dict[str, str], runtime: str = "runc") -> str:
    """Opens a box of an image with these links; where a command of it runs."""
    async with tiny.engine() as engine, _image_with_links(engine, links) as image:
        spec = LoopSpec(
            worktree=make_worktree(directory / "worktree"),
            limits=LIMITS,
            exec_id="links",
            image=image,
            runtime=runtime,
        )
        async with open_docker_box(spec, directory / "state") as sandbox:
            return (await _ran(sandbox, "pwd -P; touch /tmp/x")).out.decode()


async def _ran(sandbox: Any, command: str) -> Ran:
    box = Box.__new__(Box)
    box.sandbox = sandbox
    return await box._run(command, 60, {})


@pytest.mark.statement("G12")
@pytest.mark.parametrize(
    "links",
    [
        {"workspace": "/etc"},
        {"workspace": "../../../../tmp/made"},
        {"var": "/workspace", "run": "/workspace", "home": "/workspace/made", "opt": "workspace"},
    ],
)
def test_an_image_that_leads_mounts_elsewhere_is_refused(
    tmp_path: Path, links: dict[str, str]
) -> None:
    """Links in the way of mounts: no box, and nothing is made in the worktree or beside it."""
    with pytest.raises(ConfigError) as caught:
        asyncio.run(_pwd(tmp_path, links))
    for name in links:
        assert f"has a link at '/{name}' that leads to" in str(caught.value)
    assert os.listdir(tmp_path / "worktree") == []
    assert not os.path.lexists("/tmp/made")


@pytest.mark.statement("G12")
@pytest.mark.parametrize(
    ("path", "target", "is_refused"),
    [
        *((place, "/tmp", True) for place in ("/workspace", "/proc", "/sys", "/dev")),
        *((place, "/workspace", True) for place in targets.places([])),
        *((place, "/workspace/made", True) for place in targets.places(["/data/deep"])),
        *((place, "/usr/x", False) for place in ("/home", "/opt", "/tmp", "/etc/passwd")),
        ("/home", "/workspaces", False),
    ],
)
def test_links_are_judged_by_where_they_lead(path: str, target: str, is_refused: bool) -> None:
    """Into the worktree, or in the place of it or of the kernel's file systems: refused."""
    assert bool(targets.link_faults("image", {path: target})) is is_refused


@pytest.mark.statement("G12")
def test_an_image_with_harmless_links_is_served(tmp_path: Path, runtime: str) -> None:
    """Links of an image that lead within the image are as good as directories."""
    links = {"etc/passwd": "/nowhere/passwd", "lib/links": "/workspace"}
    if runtime == "runc":  # gVisor makes no mount point through a dead link, and says so
        links["home"] = "usr/home"
    assert asyncio.run(_pwd(tmp_path, links, runtime)) == "/workspace\n"
    assert os.listdir(tmp_path / "worktree") == []


@pytest.mark.statement("G13")
def test_no_code_copies_files_through_the_engine() -> None:
    """No call of the engine's that would follow what a container wrote, in any spelling."""
    package = Path(executor.__file__).parent
    calls = r"put_archive|get_archive|export_container|docker cp|\.(export|copy|get_image|diff)\("
    engine = (package / "sandbox/engine.py").read_text()
    routes = re.findall(r"/containers/[^\"']*/(?:archive|export|copy|changes)", engine)
    assert routes == ["/containers/{0}/archive"], "one, and it asks for no content"
    assert re.search(r"client\.head\(\s*client\._url\(\"/containers/\{0\}/archive\"", engine)
    looks = []
    for path in sorted(package.rglob("*.py")):
        code = "\n".join(_code_lines(path))
        if path.name == "engine.py":
            assert not re.search(r"_client\.(put|get|export)\w*archive|_client\.export", code)
        elif found := re.findall(calls, code):
            assert path.parts[-2:] == ("agent", "text.py"), (path, found)
        looks += [path.name] * bool(re.search(r"(?:\.|def )image_entry\(", code))
    assert looks == ["engine.py", "targets.py"], "only containers that never ran are looked at"


def _code_lines(path: Path) -> list[str]:
    """Lines without those of docstrings and comments."""
    text = re.sub(r'"""[\s\S]*?"""', "", path.read_text())
    return [
        line.partition("  #")[0] for line in text.splitlines() if not line.strip().startswith("#")
    ]


class Swapping(Engine):
    """An engine during whose requests somebody plays with the worktree's path."""

    before: Callable[[str], None]
    after: Callable[[str], None]

    async def create(self, *arguments: Any, **more: Any) -> str:
        """The same, with the swaps around it."""
        self.before("create")
        id = await super().create(*arguments, **more)
        self.after("create")
        return id

    async def start(self, id: str) -> None:
        """The same, with the swaps around it."""
        self.before("start")
        await super().start(id)
        self.after("start")


@pytest.mark.statement("G14")
@pytest.mark.parametrize("when", ["create", "start"])
@pytest.mark.parametrize("is_put_back", [False, True])
def test_a_worktree_that_is_swapped_meanwhile_gets_no_command(
    runtime: str, tmp_path: Path, when: str, is_put_back: bool
) -> None:
    """The path leads to another directory while the engine follows it, and perhaps back."""
    if runtime == "runsc" and is_put_back and when == "start":
        pytest.skip("gVisor has inode numbers of its own: what it mounted can't be compared")
    root = make_worktree(tmp_path / "worktree")
    victim = make_worktree(tmp_path / "victim")
    (victim / "secret").write_text("secret")
    aside = tmp_path / "aside"

    def swap(step: str) -> None:
        if step == when and not aside.exists():
            root.rename(aside)
            root.symlink_to(victim)

    def put_back(step: str) -> None:
        if step == when and is_put_back and aside.exists():
            root.unlink()
            aside.rename(root)

    async def scene() -> str:
        engine = await Swapping.connect(Settings.load())
        assert isinstance(engine, Swapping)
        engine.before, engine.after = swap, put_back
        async with engine:
            with Identity.claim(tmp_path / "state") as identity:
                spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="swap", runtime=runtime)
                async with open_box(Host(engine, identity), spec) as sandbox:
                    return (await _ran(sandbox, "ls; touch /workspace/made")).out.decode()

    if when == "create" and is_put_back:
        # The engine follows the path at the start once more: then it is the right one.
        assert asyncio.run(scene()) == ""
    else:
        with pytest.raises(SandboxUnavailable, match=r"replaced|is gone"):
            asyncio.run(scene())
    assert os.listdir(victim) == ["secret"]


# ─── one policy ─────────────────────────────────────────────────────────────────────

DENIED = [
    *(".git", ".git/config", ".git/hooks/pre-commit", ".git/new"),
    *("foreign/file", "foreign/new", "unwritable/file"),
    *("/etc/passwd", "/etc/new", "/opt/executor/agent/service.py", "/opt/executor/new"),
    *("/usr/bin/env", "/usr/new", "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup/new"),
]
UNREADABLE = ["secret/file", "secret", "closed", ".git/config", ".git/hooks/pre-commit"]
ALLOWED = ["free/file", "free/new", "free/deeper/new", "new"]


@pytest.fixture(scope="module")
def guarded(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A loop over a repository with files of another owner in it."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files of another owner")
    directory = tmp_path_factory.mktemp(f"guarded-{runtime}")
    root = make_worktree(directory / "worktree")
    for name, mode in (
        *((".git/config", 0o644), (".git/hooks/pre-commit", 0o755)),
        *(("foreign/file", 0o644), ("secret/file", 0o600), ("closed", 0o600)),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("private\n")
        path.chmod(mode)
    (root / "secret").chmod(0o700)
    for name in ("free/file", "unwritable/file"):
        path = root / name
        path.parent.mkdir()
        path.write_text("free\n")
        os.chown(path, 1000, 1000)
        os.chown(path.parent, 1000, 1000)
    (root / "unwritable/file").chmod(0o444)
    with open_work("docker", directory, LIMITS, lambda s: replace(s, runtime=runtime)) as opened:
        yield opened


def _tree(root: Path) -> dict[str, tuple[Any, ...]]:
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            path.lstat().st_uid,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in root.rglob("*")
    }


@pytest.mark.statement("G15", "H1", "H2", "H13")
@pytest.mark.parametrize("path", DENIED)
def test_what_may_not_be_written_is_so_for_tools_and_commands(guarded: Work, path: str) -> None:
    """Writing, editing, deleting and moving by a tool fail, and so do shell commands."""
    before = _tree(guarded.root)
    guarded.call("read_file", path=path)
    tried = [
        guarded.call("write_file", path=path, content="x"),
        guarded.call("edit_file", path=path, old_string="p", new_string="x"),
    ]
    commands = [f"echo x > {path}", f"printf x >> {path}"]
    if path != "unwritable/file":  # one's own file, which may be deleted
        tried += [
            guarded.call("delete_file", path=path, recursive=True),
            guarded.call("move_file", **{"from": path, "to": "stolen"}),
        ]
        commands += [f"test -e {path} && rm -r {path}", f"mv {path} /tmp/stolen"]
    if path == ".git":
        commands += ["mkdir -p .git/hooks", "ln -sf x .git", "mv free .git", "rmdir .git"]
    tried += [guarded.call("run_command", command=command) for command in commands]
    assert all(result.is_error for result in tried), [str(one.content) for one in tried]
    assert _tree(guarded.root) == before


@pytest.mark.statement("G15", "H2")
@pytest.mark.parametrize("path", UNREADABLE)
def test_what_may_not_be_read_is_so_for_tools_and_commands(guarded: Work, path: str) -> None:
    """Nothing private is in what reading, listing, searching or a shell command show."""
    results = [
        guarded.call("read_file", path=path),
        guarded.call("read_file", path=path, encoding="base64"),
        guarded.call("run_command", command=f"cat {path}"),
        guarded.call("run_command", command=f"cp -r {path} copied"),
    ]
    assert all(result.is_error for result in results), [str(one.content) for one in results]
    results += [
        guarded.call("grep", pattern="private", path=path),
        guarded.call("list_directory", path=path, recursive=True),
        guarded.call("run_command", command=f"grep -r private {path}"),
    ]
    shown = "".join(str(result.content) for result in results)
    assert "private\n" not in shown and "cHJpdmF0ZQ" not in shown
    shutil.rmtree(guarded.root / "copied", ignore_errors=True)


@pytest.mark.statement("G15")
@pytest.mark.parametrize("path", ALLOWED)
def test_what_may_be_written_is_so_for_tools_and_commands(guarded: Work, path: str) -> None:
    """The other half of the table: otherwise refusing everything would pass."""
    guarded.call("read_file", path=path)
    assert not guarded.call("write_file", path=path, content="tool\n").is_error
    assert guarded.call("run_command", command=f"cat {path}").content == "tool\n"
    assert not guarded.call("run_command", command=f"echo command > {path}").is_error
    assert str(guarded.call("read_file", path=path).content).endswith("command")


# ─── paths that cost ────────────────────────────────────────────────────────────────


@pytest.mark.statement("G6")
def test_no_path_keeps_the_agent_from_its_other_calls(work: Work) -> None:
    """Every part of a long path that exists in an odd spelling was looked up anew: a minute."""
    box = box_of(work)
    here = os.open(work.root, os.O_RDONLY)
    for _ in range(1300):
        os.mkdir("\\x", dir_fd=here)
        below = os.open("\\x", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        for op in ("read", "stat", "write", "delete", "list"):
            began = time.monotonic()
            with suppress(ToolError):
                box.request(op, {"path": "\\x/" * 1300 + "\\x00"}, b"")
            assert time.monotonic() - began < 5, op
    finally:
        subprocess.run(["rm", "-rf", work.root / "\\x"], check=True, timeout=60)
