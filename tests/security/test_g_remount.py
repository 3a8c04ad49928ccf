"""What is mounted read-only stays so: no command gets a namespace in which it may remount.

Whoever has a user namespace may, in it, make a read-only mount writable, and files that have
the box's uid outside could be changed there. A filter of system calls is what prevents it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from executor.model import RESULTS, Directory, LoopSpec
from executor.sandbox import seccomp
from executor.sandbox.box import Host, NotStarted, Sandbox, open_box
from executor.sandbox.connection import Connection
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import Identity
from executor.settings import Settings
from tests.conftest import LIMITS, UID, make_worktree
from tests.driver import Box, LoopThread
from tests.security.numbers import CALLS
from tests.security.probes import probe
from tests.terminals import Machine

KEPT = "kept\n"
ATTACK = """
import struct
NEW_USER_AND_MOUNTS = 0x10020000
def entered(way):
    "The answer in this process, which may be the new one, and whether it is."
    if way == "unshare":
        return call("unshare", NEW_USER_AND_MOUNTS)
    if way == "clone":
        return call("clone", NEW_USER_AND_MOUNTS | 17, 0, 0, 0, 0)
    given = struct.pack("8Q", NEW_USER_AND_MOUNTS, 0, 0, 0, 17, 0, 0, 0)
    return call("clone3", ctypes.create_string_buffer(given), 64)
def harm(target, file):
    "What comes of making a mount writable and of writing into it; the runtime is only opened."
    ways = [call("mount", 0, target.encode(), 0, flags, 0) for flags in (0x1020, 0x20, 0x0)]
    ways += [call("umount2", target.encode(), flags) for flags in (0, 2)]
    found = [str(one) for one in ways]
    is_ours = not target.startswith("/opt")
    if is_ours:
        attempt(os.chmod, file, 0o600)
    handle = attempt(os.open, file, os.O_WRONLY | os.O_APPEND)
    if isinstance(handle, int) and is_ours:
        os.write(handle, b"changed")
    return [found, handle if isinstance(handle, str) else "OPENED"]
found = {}
for way in ("plain", "unshare", "clone", "clone3"):
    reader, writer = os.pipe()
    if os.fork() == 0:
        said = entered(way) if way != "plain" else "none"
        if said in ("none", 0) or isinstance(said, str):
            os.write(writer, json.dumps([said, {t: harm(t, f) for t, f in PLACES}]).encode())
        os._exit(0)
    os.close(writer)
    found[way] = json.loads(os.read(reader, 65536))
    os.close(reader)
tell(found)
"""
"""Every way into a user namespace, and what can be done from there; `PLACES` goes before."""


@asynccontextmanager
async def _opened(spec: LoopSpec, state: Path, results: Path) -> AsyncIterator[Sandbox]:
    async with await Engine.connect(Settings.load()) as engine:
        with Identity.claim(state) as identity:
            async with open_box(Host(engine, identity, results=results), spec) as sandbox:
                yield sandbox


def _filled(directory: Path, uid: int) -> Path:
    """A directory of the box's uid with a file that everybody may write."""
    directory.mkdir(exist_ok=True)
    file = directory / "file"
    file.write_text(KEPT)
    for path, mode in ((directory, 0o755), (file, 0o666)):
        path.chmod(mode)
        os.chown(path, uid, uid)
    return directory


@pytest.mark.statement("G9", "B4", "B6")
@pytest.mark.parametrize("uid", [UID, 0])
def test_nothing_read_only_can_be_made_writable(runtime: str, tmp_path: Path, uid: int) -> None:
    """Results, added directories, skills, git's entry, the runtime: refused, and unchanged."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to the box's uid")
    tmp_path.chmod(0o755)
    root = make_worktree(tmp_path / "worktree")
    os.chown(root, uid, uid)
    (root / ".git").write_text("gitdir: /nowhere\n")
    os.chown(root / ".git", uid, uid)
    beside, skills, results = (
        _filled(tmp_path / name, uid) for name in ("beside", "skills", "results")
    )
    spec = LoopSpec(
        worktree=root,
        limits=LIMITS,
        exec_id="remount",
        runtime=runtime,
        add_dirs=(Directory(beside, "beside"),),
        skills=(skills,),
    )
    places = [
        (RESULTS, f"{RESULTS}/file"),
        *((one.mount, f"{one.mount}/file") for one in spec.directories),
        ("/workspace/.git", "/workspace/.git"),
        ("/opt/executor", "/opt/executor/hash"),
    ]
    with LoopThread() as thread:
        sandbox = thread.enter(_opened(spec, tmp_path / "state", results))
        box = Box(thread, sandbox, root, "docker")
        seen = box.run("; ".join(f"cat {file} >/dev/null || exit 9" for _, file in places))
        assert seen.code == 0, seen
        found = probe(box, CALLS + f"\nPLACES = {places!r}\n" + ATTACK)
        answers = {way: said for way, (said, _) in found.items()}
        assert answers == {
            "plain": "none",
            "unshare": "EPERM",
            "clone": "EPERM",
            "clone3": "ENOSYS",
        }
        for way, (_, harm) in found.items():
            for target, (mounting, opening) in harm.items():
                assert set(mounting) == {"EPERM"}, (way, target, mounting)
                assert opening in ("EROFS", "EACCES", "EPERM", "ENOENT"), (way, target, opening)
    for directory in (beside, skills, results):
        assert (directory / "file").read_text() == KEPT
        assert (directory / "file").stat().st_mode & 0o777 == 0o666
    assert (root / ".git").read_text() == "gitdir: /nowhere\n"


@pytest.mark.statement("B4", "B6", "J8")
def test_a_persons_shell_has_no_way_there_either(runtime: str, tmp_path: Path) -> None:
    """`executor shell` starts beside process 1, where gVisor takes up no profile at all."""
    machine = Machine(tmp_path)
    script = "unshare -Urm true; echo $?; mount -o remount,rw,bind /opt/executor; echo $?\n"
    place = ("--worktree", str(machine.worktree), "--runtime", runtime)
    done = machine.run("shell", *place, text=script)
    numbers = [line for line in done.stdout.split() if line.isdigit()]
    assert len(numbers) == 2 and "0" not in numbers, (done.stdout, done.stderr)
    assert "not permitted" in (done.stdout + done.stderr)


@pytest.mark.statement("B4", "A4")
def test_a_box_that_is_not_confined_is_not_used(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What READY says of it decides, whatever the engine says about its runtime."""
    hello = Connection.hello

    async def unconfined(self: Connection, *arguments: Any) -> dict[str, Any]:
        ready = await hello(self, *arguments)
        assert ready[seccomp.CONFINED] is True
        return {**ready, seccomp.CONFINED: False}

    monkeypatch.setattr(Connection, "hello", unconfined)
    spec = LoopSpec(worktree=make_worktree(tmp_path / "worktree"), limits=LIMITS, exec_id="open")
    results = _filled(tmp_path / "results", os.geteuid())

    async def scene() -> None:
        async with _opened(replace(spec, runtime=runtime), tmp_path / "state", results):
            pytest.fail("it was opened")

    with pytest.raises(NotStarted, match=r"namespaces and mounts.*--oci-seccomp"):
        asyncio.run(scene())


@pytest.mark.statement("B4", "B6", "B10", "B11", "B12")
@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_the_runtime_refuses_by_itself(runtime: str, tmp_path: Path, profile: str) -> None:
    """The profile is in force before the agent's own filter, and `capabilities` says so."""
    spec = LoopSpec(worktree=make_worktree(tmp_path / "w"), limits=LIMITS, exec_id="own")
    spec = replace(spec, runtime=runtime, seccomp=profile)
    results = _filled(tmp_path / "results", os.geteuid())
    with LoopThread() as thread:
        sandbox = thread.enter(_opened(spec, tmp_path / "state", results))
        box = Box(thread, sandbox, tmp_path / "w", "docker")
        code = """
        tell([call("keyctl", 0, -4, 1), call("add_key", b"user", b"name", b"x", 1, -4),
              call("io_uring_setup", 4, 0), call("bpf", 0, 0, 0),
              call("ptrace", 0x4206, 0, 0, 0), call("tee", 0, 1, 1, 0)])
        """
        # None of these is in the agent's own filter.
        found = probe(box, CALLS + dedent(code))
        assert found[:4] == ["EPERM"] * 4
        assert (found[4:] == ["EPERM"] * 2) is (profile == "strict"), found
        words = {"runc": f"{profile} (ours)", "runsc": f"{profile} for gVisor (ours: "}[runtime]
        assert sandbox.capabilities["seccomp"].startswith(words)


@pytest.mark.statement("G9")
@pytest.mark.parametrize("mode", [0o444, 0o644, 0o666])
def test_truncating_what_is_read_only(runtime: str, tmp_path: Path, mode: int) -> None:
    """The open fails; gVisor empties the file all the same if its mode lets the caller write."""
    if os.geteuid() != 0:
        pytest.skip("only root can have files that are not the box's")
    tmp_path.chmod(0o755)
    beside = _filled(tmp_path / "beside", 0)
    (beside / "file").chmod(mode)
    spec = LoopSpec(
        worktree=make_worktree(tmp_path / "worktree"),
        limits=LIMITS,
        exec_id="truncate",
        runtime=runtime,
        add_dirs=(Directory(beside, "beside"),),
    )
    with LoopThread() as thread:
        sandbox = thread.enter(_opened(spec, tmp_path / "state", _filled(tmp_path / "r", 0)))
        box = Box(thread, sandbox, tmp_path / "worktree", "docker")
        code = 'tell(attempt(os.open, "/workspaces/beside/file", os.O_WRONLY | os.O_TRUNC))'
        assert probe(box, code) in ("EROFS", "EACCES")
    is_emptied = runtime == "runsc" and mode & 0o002 != 0
    assert (beside / "file").read_text() in ((KEPT, "") if is_emptied else (KEPT,))
