"""Boxes as a user gets them, over each runtime that the engine has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from executor.model import LoopSpec
from executor.sandbox.engine import Engine
from executor.sandbox.facts import EngineFacts
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread


@pytest.fixture(scope="session")
def facts() -> EngineFacts:
    """What the engine says about itself."""

    async def ask() -> EngineFacts:
        async with await Engine.connect(Settings.load()) as engine:
            return engine.facts

    return asyncio.run(ask())


@pytest.fixture(scope="session", params=["runc", "runsc"])
def runtime(request: pytest.FixtureRequest, facts: EngineFacts) -> str:
    """Each runtime; the one that the engine does not have is skipped aloud."""
    name = str(request.param)
    if name not in facts.runtimes:
        pytest.skip(f"the engine has no runtime {name}; scripts/gvisor.sh installs it")
    return name


@pytest.fixture(scope="module")
def hostile(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One box a module and runtime, for code that attacks it."""
    directory = tmp_path_factory.mktemp(runtime)
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="hostile", runtime=runtime)
    with LoopThread() as thread:
        sandbox = thread.enter(open_docker_box(spec, directory / "state"))
        yield Box(thread, sandbox, root, "docker")
