"""Boxes over both transports: a bare agent process, and a container."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from executor.model import Limits, LoopSpec
from executor.sandbox.box import Host, Sandbox, open_box
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import Identity
from executor.settings import Settings
from tests.driver import Box, LoopThread
from tests.local_box import open_local_box

pytest_plugins = ["tests.statements", "tests.fuzzing"]

RUNTIME: list[str] = []
"""The engine's runtime for boxes of tests that name none: `--runtime`."""
UID = 1000
LIMITS = Limits(memory="512m", cpus=2, pids=128)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--runtime NAME`, which runs every test of a box over that runtime."""
    parser.addoption("--runtime", help="the engine's runtime for boxes, e.g. runsc")


def pytest_configure(config: pytest.Config) -> None:
    """Takes the option up."""
    config.addinivalue_line("markers", "runc_only(reason): can't hold with `--runtime runsc`")
    RUNTIME[:] = [name for name in (config.getoption("--runtime"),) if name]
    # A run in the background of a shell, or under nohup, ignores these, and so would the
    # programs that the tests start and send them to.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What gVisor does in another way is skipped aloud; `sandbox/test_runsc.py` has its own."""
    for item in items:
        marker = item.get_closest_marker("runc_only")
        if marker is not None and RUNTIME and RUNTIME[0].startswith("runsc"):
            item.add_marker(pytest.mark.skip(reason=marker.args[0]))


@asynccontextmanager
async def open_docker_box(spec: LoopSpec, state: Path) -> AsyncIterator[Sandbox]:
    """A box of its own engine connection and identity."""
    if RUNTIME and spec.runtime is None:
        spec = replace(spec, runtime=RUNTIME[0])
    engine = await Engine.connect(Settings.load())
    async with engine:
        with Identity.claim(state) as identity:
            async with open_box(Host(engine, identity), spec) as sandbox:
                yield sandbox


def make_worktree(path: Path) -> Path:
    """An empty directory that belongs to an ordinary user where we may give it away."""
    path.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(path, UID, UID)
    return path


def docker_box(
    thread: LoopThread, directory: Path, limits: Limits = LIMITS, exec_id: str = "test"
) -> Box:
    """A box over the worktree `directory/worktree`; open until the thread ends."""
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=limits, exec_id=exec_id)
    sandbox = thread.enter(open_docker_box(spec, directory / "state"))
    return Box(thread, sandbox, root, "docker")


def local_box(thread: LoopThread, directory: Path) -> Box:
    """An agent process over `directory/worktree`; open until the thread ends."""
    root, scratch = directory / "worktree", directory / "scratch"
    root.mkdir()
    scratch.mkdir()
    return Box(thread, thread.enter(open_local_box(root, scratch)), root, "local")


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    """An event loop in a thread."""
    with LoopThread() as thread:
        yield thread


@pytest.fixture(scope="module", params=["local", "docker"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One box a module, over each transport: what holds for one has to hold for the other."""
    directory = tmp_path_factory.mktemp(request.param)
    with LoopThread() as thread:
        yield (local_box if request.param == "local" else docker_box)(thread, directory)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One container a module."""
    with LoopThread() as thread:
        yield docker_box(thread, tmp_path_factory.mktemp("docker"))
