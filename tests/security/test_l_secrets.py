"""L: no secret of the controller is in a box, and there is none of ours to be found."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from executor.errors import Code, SandboxError
from executor.model import LoopSpec
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.security.probes import probe

CANARY = "canary-d41d8cd98f00"
NAMES = (
    *("OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "DOCKER_HOST_X"),
    *("LD_PRELOAD_X", "PYTHONSTARTUP_X", "EXECUTOR_SECRET", "HTTPS_PROXY", "GIT_ASKPASS"),
)
SEARCH = """
import glob
found = []
NEEDLE = bytes.fromhex(NEEDLE_HEX)
def look(path):
    try:
        with open(path, "rb") as file:
            if NEEDLE in file.read(4 << 20):
                found.append(path)
    except OSError:
        pass
for place in ("/workspace", "/tmp", "/var/tmp", "/run", "/home", "/etc", "/root", "/opt/executor"):
    for directory, _, names in os.walk(place):
        for name in names:
            look(directory + "/" + name)
for name in ("environ", "cmdline", "status", "mountinfo", "maps", "cgroup", "comm", "auxv"):
    for path in glob.glob("/proc/[0-9]*/" + name):
        look(path)
# What a process can read of its own memory is what it was started with.
for line in open("/proc/self/maps"):
    if "[stack]" in line:
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
        with open("/proc/self/mem", "rb", 0) as memory:
            memory.seek(start)
            if NEEDLE in memory.read(end - start):
                found.append("stack")
tell([found, dict(os.environ)])
"""


def _box(thread: LoopThread, directory: Path, runtime: str, exec_id: str = "secrets") -> Box:
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id=exec_id, runtime=runtime)
    sandbox = thread.enter(open_docker_box(spec, directory / "state"))
    return Box(thread, sandbox, root, "docker")


def _engine(*arguments: str) -> str:
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, check=True, timeout=30, text=True
    )
    return done.stdout


@pytest.mark.statement("L1")
def test_no_value_of_the_controllers_environment_is_anywhere(
    runtime: str, loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a process, a file, the stack, the engine's record, the image or a log."""
    for name in NAMES:
        monkeypatch.setenv(name, f"{CANARY}-{name}")
    box = _box(loop_thread, tmp_path, runtime)
    needle = f"NEEDLE_HEX = '{CANARY.encode().hex()}'\n"
    found, environment = probe(box, needle + SEARCH, 60)
    own = {path for path in found if "executor/script-" in path}
    assert set(found) == own, found  # the probe's own text does not even hold it
    assert not set(environment) & set(NAMES)
    assert (
        CANARY
        not in box.run("env; set; export -p; cat /proc/*/environ | tr '\\0' '\\n'").out.decode()
    )
    inspected = json.loads(_engine("inspect", box.sandbox.id))[0]
    assert CANARY not in json.dumps(inspected)
    assert CANARY not in _engine("history", "--no-trunc", inspected["Image"])
    assert inspected["HostConfig"]["LogConfig"]["Type"] == "none"
    assert not inspected["LogPath"]
    state = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert state and not [path for path in state if CANARY.encode() in path.read_bytes()]


@pytest.mark.statement("L1")
def test_what_a_loop_is_given_is_its_own(
    runtime: str, loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call's environment is in its own processes: neither in later calls nor in process 1."""
    monkeypatch.setenv("GIVEN", "never")
    box = _box(loop_thread, tmp_path, runtime)
    assert box.run("printenv GIVEN", environment={"GIVEN": CANARY}).out.decode() == f"{CANARY}\n"
    assert box.run("printenv GIVEN").code == 1
    seen = box.run("cat /proc/*/environ /proc/1/environ 2>/dev/null | tr '\\0' '\\n'; true").out
    assert CANARY.encode() not in seen and b"never" not in seen


STREAM = """
fds = attempt(os.listdir, "/proc/1/fd")
opened = {}
for number in fds if isinstance(fds, list) else range(64):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        path = "/proc/1/fd/%s" % number
        handle = attempt(os.open, path, flags | os.O_NONBLOCK)
        if isinstance(handle, int):
            opened[path] = attempt(os.readlink, path)
            os.close(handle)
GETFD, PIDFD = 438, syscall(434, 1, 0)
taken = [syscall(GETFD, PIDFD, n, 0) for n in range(64)] if isinstance(PIDFD, int) else []
tell({
    "listed": fds,
    "opened": opened,
    "taken": [fd for fd in taken if isinstance(fd, int)],
    "own": sorted(os.readlink("/proc/self/fd/%d" % n) for n in (0, 1, 2)),
    "memory": attempt(os.open, "/proc/1/mem", os.O_RDONLY),
    "environ": attempt(lambda: open("/proc/1/environ", "rb").read().decode()),
    "trace": syscall(117 if IS_ARM else 101, 16, 1, 0, 0),
})
"""


@pytest.mark.statement("L6")
def test_there_is_no_token_and_no_way_to_the_stream(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """No descriptor of the agent can be opened or taken, and nothing of it is a secret.

    Over gVisor its descriptors can be opened. What can be written there is what the agent
    could write: see the next test.
    """
    box = _box(loop_thread, tmp_path, runtime)
    told = probe(box, STREAM)
    assert told["taken"] == []
    assert told["memory"] == "EACCES" and told["trace"] == "EPERM"
    assert not any("host" in link or "socket" in link for link in told["own"])
    if runtime == "runc":
        assert (told["listed"], told["opened"], told["environ"]) == ("EACCES", {}, "EACCES")
    names = {line.partition("=")[0] for line in told["environ"].split("\0") if "=" in line}
    assert not names & set(os.environ) - {"PATH", "HOME", "LANG", "HOSTNAME"}
    shown = box.run("env; cat /proc/self/cmdline /proc/1/cmdline | tr '\\0' ' '").out.decode()
    assert not [word for word in ("token", "secret", "password", "key=") if word in shown.lower()]


FORGE = """
frame = b'{"ok": {"exit_code": 0}}'
for number in attempt(os.listdir, "/proc/1/fd"):
    handle = attempt(os.open, "/proc/1/fd/" + number, os.O_WRONLY | os.O_NONBLOCK)
    if isinstance(handle, int) and int(number) > 2:
        attempt(os.write, handle, b"\\xff" * 64)
tell(0)
"""


@pytest.mark.statement("L6")
def test_a_forged_frame_costs_its_own_box_alone(
    runtime: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Who gets at the stream, as under gVisor, is believed nothing: that box ends, no other."""
    victim = _box(loop_thread, tmp_path / "a", runtime, "forger")
    other = _box(loop_thread, tmp_path / "b", runtime, "bystander")
    if runtime == "runc":
        assert victim.run("for f in /proc/1/fd/*; do echo x > $f; done").code != 0
        assert victim.run("echo next").out == b"next\n"
    else:
        with pytest.raises(SandboxError) as caught:
            probe(victim, FORGE)
            victim.run("sleep 5")
        assert caught.value.code in (Code.PROTOCOL_ERROR, Code.SANDBOX_LOST)
    assert other.run("echo here").out == b"here\n"
