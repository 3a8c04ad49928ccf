"""The main job on Podman's Docker-compatible socket, and what is weaker there."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.catalog import load
from executor.controller import Controller
from executor.doctor import judge
from executor.errors import SandboxUnavailable
from executor.loop import Loop
from executor.model import Call, Limits, LoopSpec, Result
from executor.sandbox import podman
from executor.sandbox.container import Ceilings, create_request
from executor.sandbox.engine import Engine
from executor.sandbox.facts import parse_facts
from executor.sandbox.inspection import read_back_faults
from executor.sandbox.reaper import Identity, reap
from tests.conftest import make_worktree
from tests.driver import LoopThread
from tests.sandbox import engines
from tests.sandbox.podman_engine import PodmanEngine, podman_engine
from tests.sandbox.tiny import plan

LIMITS = Limits(memory="256m", cpus=1, pids=64)


@pytest.fixture(scope="module")
def engine() -> Iterator[PodmanEngine]:
    """A Podman of this module's own."""
    with podman_engine() as running:
        yield running


class Work:
    """An open loop on Podman."""

    def __init__(self, thread: LoopThread, loop: Loop, root: Path) -> None:
        self.thread = thread
        self.loop = loop
        self.root = root

    def call(self, name: str, **given: Any) -> Result:
        """The result of one call."""
        return self.thread.run(self.loop.execute(Call("call", name, given)))

    def out(self, command: str, **given: Any) -> dict[str, Any]:
        """What a command came to."""
        result = self.call("run_command", command=command, **given)
        assert result.structured is not None, result.content
        return result.structured


def spec(root: Path, exec_id: str, **more: Any) -> LoopSpec:
    return LoopSpec(worktree=root, limits=LIMITS, exec_id=exec_id, **more)


@pytest.fixture(scope="module")
def work(engine: PodmanEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """One loop for the module."""
    root = make_worktree(tmp_path_factory.mktemp("podman") / "worktree")
    with LoopThread() as thread:
        controller = thread.enter(Controller(engine.settings, load()))
        yield Work(thread, thread.enter(controller.open(spec(root, "work"))), root)


def test_the_main_job_is_done(work: Work) -> None:
    """Writing, reading, editing, searching and running work as on Docker."""
    assert not work.call("write_file", path="src/a.py", content="def f():\n    return 1\n").is_error
    assert "return 1" in str(work.call("read_file", path="src/a.py").content)
    edit = work.call("edit_file", path="src/a.py", old_string="1", new_string="42")
    assert not edit.is_error, edit.content
    assert "src/a.py" in str(work.call("grep", pattern="return 4.").content)
    assert "src/a.py" in str(work.call("glob", pattern="**/*.py").content)
    ran = work.out("python3 -c 'import sys; sys.path.append(\"src\"); import a; print(a.f())'")
    assert (ran["exit_code"], ran["stdout"]) == (0, "42\n")
    status = (work.root / "src" / "a.py").stat()
    assert (status.st_uid, status.st_gid) == (work.root.stat().st_uid, work.root.stat().st_gid)


def test_limits_are_in_force(work: Work) -> None:
    """Memory, processes, time and output are limited, and the result says by which limit."""
    assert work.out("python3 -c 'x = bytearray(1 << 30)'")["limit"] == "memory"
    forks = work.out("for i in $(seq 90); do sleep 995 & done; wait", timeout_ms=3000)
    assert (forks["limit"], forks["timed_out"]) == ("pids", True)
    assert work.out("sleep 60", timeout_ms=1000)["timed_out"]
    flood = work.call("run_command", command="yes | head -c 5000000")
    assert flood.truncated
    assert work.out("cat /dev/zero > /tmp/fill")["limit"] == "disk"
    assert work.out("rm /tmp/fill; ps ax | grep -c '[s]leep 995'")["stdout"] == "0\n"


ISOLATION = r"""
import ctypes, errno, json, os, socket
def attempt(function, *arguments):
    try:
        return function(*arguments) and "done"
    except OSError as error:
        return errno.errorcode[error.errno]
status = dict(line.split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
print(json.dumps({
    "capabilities": [int(status[f"Cap{one}"], 16) for one in ("Inh", "Prm", "Eff", "Bnd", "Amb")],
    "privileges": [status["NoNewPrivs"].strip(), status["Seccomp"].strip()],
    "families": [attempt(socket.socket, family, socket.SOCK_RAW) for family in (38, 40, 17)],
    "interfaces": os.listdir("/sys/class/net"),
    "root": [attempt(open, path, "w") for path in ("/x", "/etc/x", "/opt/executor/x")],
    "hidden": [open("/proc/timer_list").read(), os.listdir("/sys/firmware")],
    "kernel": attempt(open, "/proc/sys/kernel/core_pattern", "w"),
}))
"""


def test_the_isolation_that_is_claimed_is_there(work: Work) -> None:
    """No capability, our system call filter, no network, nothing of the image to be written."""
    ran = work.call("run_code", language="python", code=ISOLATION)
    assert ran.structured is not None
    assert json.loads(ran.structured["stdout"]) == {
        "capabilities": [0] * 5,
        "privileges": ["1", "2"],
        "families": ["EPERM"] * 3,
        "interfaces": ["lo"],
        "root": ["EROFS"] * 3,
        "hidden": ["", []],
        "kernel": "EROFS",
    }


def test_what_is_weaker_is_told(engine: PodmanEngine, work: Work) -> None:
    """The open loop's capabilities and `doctor` name each weakness; Docker has none."""

    async def facts() -> Any:
        async with await Engine.connect(engine.settings) as connected:
            return connected.facts

    found = asyncio.run(facts())
    weaknesses = podman.weaknesses(found)
    assert weaknesses
    (row,) = [finding for finding in judge(found) if finding.name == "podman"]
    for text in weaknesses:
        assert f"Podman: {text}" in work.loop.capabilities["notices"]
        assert text in row.text


def test_closing_leaves_nothing(engine: PodmanEngine, tmp_path: Path) -> None:
    """After the loop there is no container of it."""
    root = make_worktree(tmp_path / "worktree")

    async def scene() -> Result:
        async with (
            Controller(engine.settings, load()) as controller,
            controller.open(spec(root, "closing")) as loop,
        ):
            return await loop.execute(Call("1", "run_command", {"command": "sleep 994 & echo hi"}))

    assert asyncio.run(scene()).is_error is False
    assert engine.podman("ps", "-aq", "--filter", "label=executor.loop=closing") == ""


def test_a_runtime_by_name_is_refused(engine: PodmanEngine, tmp_path: Path) -> None:
    """Podman's API drops the name of a runtime: a box on another one is never started."""
    root = make_worktree(tmp_path / "worktree")

    async def scene() -> None:
        async with (
            Controller(engine.settings, load()) as controller,
            controller.open(spec(root, "other", runtime="runsc")),
        ):
            pass

    with pytest.raises(SandboxUnavailable, match="Runtime"):
        asyncio.run(scene())
    assert engine.podman("ps", "-aq", "--filter", "label=executor.loop=other") == ""


ORPHAN = """
import asyncio, sys
from pathlib import Path
from executor.catalog import load
from executor.controller import Controller
from executor.model import Call, Limits, LoopSpec
from executor.settings import Settings

async def main():
    settings = Settings(docker_host=sys.argv[1], state_directory=Path(sys.argv[2]))
    spec = LoopSpec(sys.argv[3], Limits(memory="256m"), exec_id="orphan")
    async with Controller(settings, load()) as controller, controller.open(spec) as loop:
        print("open", flush=True)
        await loop.execute(Call("1", "run_command", {"command": "sleep 900"}))

asyncio.run(main())
"""


def test_a_killed_controller_takes_its_box_along(engine: PodmanEngine, tmp_path: Path) -> None:
    """The stream's end ends the box well before its lease; the next sweep removes it."""
    root = make_worktree(tmp_path / "worktree")
    arguments = [str(engine.settings.docker_host), str(tmp_path / "state"), str(root)]
    command = [sys.executable, "-c", ORPHAN, *arguments]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "open\n"
        child.kill()
    listed = ("ps", "-aq", "--no-trunc", "--filter", "label=executor.loop=orphan")
    id = engine.podman(*listed).strip()
    begun = time.monotonic()
    engine.podman("wait", id)
    assert time.monotonic() - begun < 20

    async def sweep() -> None:
        async with await Engine.connect(engine.settings) as connected:
            with Identity.claim(tmp_path / "state") as identity:
                await reap(connected, tmp_path / "state", identity)

    asyncio.run(sweep())
    assert engine.podman(*listed) == ""


# ─── words, without an engine ───────────────────────────────────────────────────────


def podman_plan() -> Any:
    """A plan for Podman, with the profile as a path."""
    return plan(
        facts=parse_facts("unix:///run/podman/podman.sock", *engines.PODMAN_4),
        seccomp="/state/seccomp.json",
        ceilings=Ceilings(processes=20_000),
    )


def reply_to(request: dict[str, Any]) -> dict[str, Any]:
    """What Podman 4.3 answered about such a request, captured and shortened."""
    host = copy.deepcopy(request["HostConfig"])
    points = [
        {
            "Type": one["Type"],
            "Name": one["Source"] if one["Type"] == "volume" else None,
            "Source": one["Source"],
            "Destination": one["Target"],
            "RW": not one["ReadOnly"],
            "Propagation": "rprivate",
        }
        for one in host["Mounts"]
    ]
    binds = [
        f"{one['Source']}:{one['Target']}:{'ro' if one['ReadOnly'] else 'rw'},rprivate,"
        + ("nosuid,nodev,rbind" if one["Type"] == "volume" else "bind")
        for one in host["Mounts"]
    ]
    host |= {
        "Binds": binds,
        "Mounts": None,
        "MaskedPaths": None,
        "ReadonlyPaths": None,
        "CgroupnsMode": "",
        "IpcMode": "shareable",
        "PidMode": "private",
        "UTSMode": "private",
        "Runtime": "oci",
        "CapDrop": ["AUDIT_WRITE", "MKNOD", "NET_RAW", *sorted(podman._DEFAULT_CAPABILITIES)],
        "CpuPeriod": 100_000,
        "CpuQuota": host["NanoCpus"] // 10_000,
        "Ulimits": [
            {**one, "Name": f"RLIMIT_{one['Name'].upper()}"} for one in reversed(host["Ulimits"])
        ],
        "Tmpfs": {
            path: options.replace("U", "uid=1000,gid=1000").replace("notmpcopyup", "rprivate")
            for path, options in host["Tmpfs"].items()
        },
    }
    config = {
        **request,
        "NetworkDisabled": None,
        "StdinOnce": False,
        "StopSignal": "9",
        "Env": [*request["Env"], "TERM=xterm", "container=podman", "HOSTNAME=sandbox"],
        "Healthcheck": {"Test": ["NONE"], "Interval": 30_000_000_000, "Retries": 3},
    }
    return {"Image": request["Image"], "Config": config, "HostConfig": host, "Mounts": points}


def test_options_that_podman_refuses_are_not_sent() -> None:
    """Owners and numbers of inodes of files in memory; `nproc` is never above the machine's."""
    host = create_request(podman_plan())["HostConfig"]
    for options in host["Tmpfs"].values():
        assert "uid=" not in options
        assert "nr_inodes" not in options
        assert "size=" in options
    assert {"Name": "nproc", "Soft": 20_000, "Hard": 20_000} in host["Ulimits"]
    docker = create_request(plan())["HostConfig"]["Ulimits"]
    assert not [one for one in docker if one["Name"] == "nproc"]


def test_podmans_words_for_the_same_are_no_mismatch() -> None:
    """A6 on Podman: the captured reply has no faults once it is spelled in Docker's words."""
    request = create_request(podman_plan())
    reply = reply_to(request)
    assert read_back_faults(request, reply)
    assert read_back_faults(request, podman.spelled(request, reply)) == []


def _host(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda reply: reply["HostConfig"].update(changes)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("CapDrop", _host(CapDrop=["MKNOD"])),
        ("CapAdd", _host(CapAdd=["SYS_ADMIN"])),
        ("SecurityOpt", _host(SecurityOpt=["no-new-privileges", "seccomp=unconfined"])),
        ("SecurityOpt", _host(SecurityOpt=[])),
        ("IpcMode", _host(IpcMode="host")),
        ("PidMode", _host(PidMode="host")),
        ("UTSMode", _host(UTSMode="host")),
        ("CgroupnsMode", _host(CgroupnsMode="host")),
        ("NetworkMode", _host(NetworkMode="slirp4netns")),
        ("MaskedPaths", _host(MaskedPaths=["/proc/kcore"])),
        ("Memory", _host(Memory=0)),
        ("PidsLimit", _host(PidsLimit=2048)),
        ("CpuPeriod", _host(CpuQuota=0)),
        ("Ulimits", _host(Ulimits=[])),
        ("Tmpfs", _host(Tmpfs={})),
        ("Binds", lambda reply: reply["HostConfig"]["Binds"].append("/:/host:rw,rprivate,rbind")),
        ("Binds", lambda reply: reply["HostConfig"]["Binds"].pop()),
        ("Env", lambda reply: reply["Config"]["Env"].append("LD_PRELOAD=/x.so")),
        ("StopSignal", lambda reply: reply["Config"].update(StopSignal="15")),
        ("Healthcheck", lambda reply: reply["Config"].update(Healthcheck={"Test": ["CMD", "x"]})),
    ],
)
def test_what_podman_changed_is_found(
    name: str, change: Callable[[dict[str, Any]], object]
) -> None:
    """A6 on Podman: another spelling hides no other value."""
    request = create_request(podman_plan())
    reply = reply_to(request)
    change(reply)
    faults = read_back_faults(request, podman.spelled(request, reply))
    assert any(name in fault for fault in faults), faults


@pytest.mark.parametrize("options", ["rw,rprivate,rbind", "rw,bind", "rw,rshared,bind"])
def test_a_mount_of_another_kind_is_found(options: str) -> None:
    """A recursive or shared worktree is not the one that was asked for."""
    request = create_request(podman_plan())
    reply = reply_to(request)
    binds = reply["HostConfig"]["Binds"]
    source, target, _ = binds[0].rsplit(":", 2)
    binds[0] = f"{source}:{target}:{options}"
    assert read_back_faults(request, podman.spelled(request, reply))


def test_a_long_output_is_kept_where_only_the_host_writes(work: Work) -> None:
    """The loop reads the whole of it, and its commands can't change it."""
    result = work.call("run_command", command="seq 200000")
    assert result.spill is not None
    read = work.call("read_file", path=result.spill, offset=150_000, limit=1)
    assert str(read.content).startswith("150000│150000\n"), read.content
    ran = work.out(f"echo x > {result.spill}; rm -f {result.spill}; exit 0")
    assert ran["stderr"].count("Read-only file system") == 2
