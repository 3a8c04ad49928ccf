"""Casebook H71 to H76: how a box starts, whose its files are, what it has and what time it is."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.errors import SandboxUnavailable
from executor.model import Limits, LoopSpec
from executor.sandbox import box as box_module
from executor.sandbox.engine import Engine
from executor.sandbox.images import ensure_image
from executor.settings import Settings
from tests.conftest import UID, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.loops import Work, open_work


def docker(*arguments: str) -> str:
    """What Docker's command line prints."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, check=True, timeout=280, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """One loop for what does not change it."""
    with open_work("docker", tmp_path_factory.mktemp("life")) as opened:
        yield opened


# ─── 71: starting ───────────────────────────────────────────────────────────────────


@pytest.fixture
def failing_image() -> Iterator[str]:
    """An image whose own program ends at once with code 3."""

    async def base() -> str:
        async with await Engine.connect(Settings.load()) as engine:
            return await ensure_image(engine, "base")

    name = "executor-test-failing:1"
    container = docker("create", "--network", "none", asyncio.run(base()), "true")
    try:
        docker("commit", "--change", 'ENTRYPOINT ["sh", "-c", "exit 3"]', container, name)
    finally:
        docker("rm", container)
    try:
        yield name
    finally:
        docker("rmi", name)


def test_an_images_own_program_is_not_started(
    failing_image: str, loop_thread: LoopThread, tmp_path: Path
) -> None:
    """Casebook H71: an entry point that exits 3 at once keeps no box from starting."""
    root = make_worktree(tmp_path / "worktree")
    spec = LoopSpec(worktree=root, image=failing_image, exec_id="failing")
    sandbox = loop_thread.enter(open_docker_box(spec, tmp_path / "state"))
    assert Box(loop_thread, sandbox, root, "docker").run("echo here").out == b"here\n"


SLOW = Limits(memory="256m", cpus=0.02)
"""A fiftieth of a core: what takes 40 ms elsewhere takes two seconds here."""


def test_an_agent_that_starts_late_is_waited_for(loop_thread: LoopThread, tmp_path: Path) -> None:
    """Casebook H71: seconds are nothing against the minute that a start has."""
    root = make_worktree(tmp_path / "worktree")
    spec = LoopSpec(worktree=root, exec_id="slow", limits=SLOW)
    sandbox = loop_thread.enter(open_docker_box(spec, tmp_path / "state"))
    assert Box(loop_thread, sandbox, root, "docker").request("stat", {"path": "."}).value


def test_an_agent_that_never_comes_up_is_named_so(
    loop_thread: LoopThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Casebook H71: a start that takes too long says so, with the limit; nothing is left."""
    monkeypatch.setattr(box_module, "START_TIMEOUT", 0.1)
    spec = LoopSpec(make_worktree(tmp_path / "worktree"), exec_id="slow", limits=SLOW)
    with pytest.raises(SandboxUnavailable, match=r"did not come up within 0\.1 s"):
        loop_thread.enter(open_docker_box(spec, tmp_path / "state"))
    label = f"label=executor.state={tmp_path / 'state'}"
    assert docker("ps", "-aq", "--filter", label) == ""
    assert list((tmp_path / "state/controllers").iterdir()) == []


# ─── 72: whose files ────────────────────────────────────────────────────────────────


def test_all_that_is_made_inside_belongs_to_the_worktrees_owner(work: Work) -> None:
    """Casebook H72: by tools, by commands, by edits of a person's own file."""
    work.write("mine.txt", "one\n")
    work.call("write_file", path="n1/deep/file", content="x")
    assert work.call("run_command", command="touch n2; mkdir d; umask").content == "0022\n"
    work.call("read_file", path="mine.txt")
    edit = work.call("edit_file", path="mine.txt", old_string="one", new_string="two")
    assert edit.code is None, edit.content
    owner = work.root.stat()
    assert owner.st_uid == (UID if os.geteuid() == 0 else os.geteuid())
    for path in work.root.rglob("*"):
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (owner.st_uid, owner.st_gid), path


# ─── 74: HOME ───────────────────────────────────────────────────────────────────────


def test_home_is_there_and_is_nobodys_real_one(work: Work) -> None:
    """Casebook H74: it can be written, lies outside the worktree, and takes git's settings;
    the files of the person who runs the controller stay as they are."""
    mine = Path.home() / ".gitconfig"
    before = mine.read_bytes() if mine.exists() else None
    command = (
        "echo $HOME; touch $HOME/x && git config --global a.b c && git config --global a.b; "
        "python3 -c 'import tempfile; tempfile.mkdtemp()' && echo made"
    )
    assert work.call("run_command", command=command).content == "/home/sandbox\nc\nmade\n"
    assert not (work.root / ".gitconfig").exists()
    assert (mine.read_bytes() if mine.exists() else None) == before


# ─── 75: file systems in memory ─────────────────────────────────────────────────────


def test_programs_start_from_tmp_and_shared_memory_has_its_size(work: Work) -> None:
    """Casebook H75: /tmp is executable, and /dev/shm as large as its share of the memory,
    which is 256 MiB at the default of 4 GiB."""
    run = (
        "cp /bin/true ${TMPDIR:-/tmp}/t && ${TMPDIR:-/tmp}/t; echo $?; df -k --output=size /dev/shm"
    )
    content = str(work.call("run_command", command=run).content).split()
    assert content == ["0", "1K-blocks", str(work.loop.spec.limits.memory_bytes // 16 // 1024)]


# ─── 76: clocks ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shift", [3600, -3600])
def test_clocks_that_differ_make_no_file_stale(work: Work, shift: int) -> None:
    """Casebook H76: a file whose times are an hour ahead or behind is read, edited, and
    edited again: what counts is the content."""
    path = work.write("clock.txt", "1\n")
    assert work.call("read_file", path="clock.txt").code is None
    for old, new in (("1", "2"), ("2", "3")):
        moment = path.stat().st_mtime + shift
        os.utime(path, (moment, moment))
        edit = work.call("edit_file", path="clock.txt", old_string=old, new_string=new)
        assert edit.code is None, edit.content
    assert path.read_text() == "3\n"


def test_the_time_zone_is_steady(work: Work) -> None:
    """Casebook H76: it is UTC whatever the host's is."""
    command = "date +%Z; sh -c 'date +%Z'"
    assert work.call("run_command", command=command).content == "UTC\nUTC\n"
