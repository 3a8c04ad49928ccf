"""Other people's containers on the same engine are none of our business."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"  # its reaper is an image of a registry

from testcontainers.core.container import DockerContainer

from executor.model import LoopSpec
from executor.sandbox.engine import Engine
from executor.sandbox.images import ensure_image
from executor.sandbox.reaper import reap
from executor.settings import Settings
from tests.conftest import make_worktree, open_docker_box


@pytest.fixture
def neighbour() -> Iterator[DockerContainer]:
    """A container that somebody else runs, under a name that could be one of ours."""

    async def image() -> str:
        async with await Engine.connect(Settings.load()) as engine:
            return await ensure_image(engine, "base")

    container = DockerContainer(asyncio.run(image()), command="sleep 600")
    with container.with_name("executor-neighbour-0") as started:
        yield started


def test_a_loop_and_the_reaper_leave_a_neighbour_alone(
    neighbour: DockerContainer, tmp_path: Path
) -> None:
    """Casebook H67 and H68: a foreign container is untouched, its name is in nobody's way."""
    root = make_worktree(tmp_path / "worktree")
    state = tmp_path / "state"

    async def run() -> str:
        spec = LoopSpec(worktree=root, exec_id="neighbour-0")
        async with open_docker_box(spec, state) as sandbox:
            await sandbox.request("stat", {"path": "."}, timeout=10)
            name = sandbox.name
        async with await Engine.connect(Settings.load()) as engine:
            await reap(engine, state)
        return name

    assert asyncio.run(run()) != "executor-neighbour-0"
    code, output = neighbour.exec(["echo", "alive"])
    assert (code, output) == (0, b"alive\n")
