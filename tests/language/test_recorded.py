"""What was asked of each real language server once, asked again: the answers are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.language.desks import open_desk
from tests.language.exchanges import RECORDED, file_of, play
from tests.language.projects import PROJECTS, Project
from tests.servers_image import servers_image

__all__ = ["servers_image"]


def test_every_server_has_its_exchange() -> None:
    """And there is no file of another one."""
    names = {file_of(project).name for project in PROJECTS}
    assert {path.name for path in RECORDED.iterdir()} == names


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.server)
def test_recorded_exchange(servers_image: str, tmp_path: Path, project: Project) -> None:
    """Step by step, from a worktree that is empty at first."""
    recorded = json.loads(file_of(project).read_text())
    with open_desk(servers_image, tmp_path, project, empty=True) as desk:
        for step, made in zip(recorded, play(desk, iter(recorded)), strict=True):
            assert made == step
