"""Directories for the agent's operations, resolved in both ways."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.driver import Tree


@pytest.fixture(params=["openat2", "walk"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    """An empty workspace; paths are resolved by the kernel, and by walking."""
    beneath = request.param == "openat2"
    root = tmp_path / "workspace"
    root.mkdir()
    found = Tree(root, beneath=beneath)
    assert not beneath or found.workspace.beneath, "this kernel has no openat2"
    yield found
    found.workspace.close()


@pytest.fixture
def public() -> Iterator[Tree]:
    """A workspace that belongs to nobody, in a directory that everybody can enter."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        root = Path(directory) / "workspace"
        root.mkdir()
        if os.getuid() == 0:
            os.chown(root, 65534, 65534)
        found = Tree(root)
        yield found
        found.workspace.close()
