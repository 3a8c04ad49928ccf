"""Servers that others wrote, from their registries, in a container."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from executor.catalog_servers import McpEntry
from executor.model import Progress
from tests.foreign.test_client import names, said
from tests.loops import Work, open_work
from tests.servers_image import servers_image

__all__ = ["servers_image"]


@pytest.fixture(scope="module")
def real(servers_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """A loop with five servers."""
    servers = {
        "time": McpEntry(command=("mcp-server-time", "--local-timezone", "UTC")),
        "git": McpEntry(command=("mcp-server-git",)),
        "everything": McpEntry(command=("mcp-server-everything",)),
        "files": McpEntry(command=("mcp-server-filesystem", "/workspace")),
        "memory": McpEntry(
            command=("mcp-server-memory",),
            environment={"MEMORY_FILE_PATH": "/workspace/memory.json"},
        ),
    }
    directory = tmp_path_factory.mktemp("real")
    with open_work(
        "docker",
        directory,
        change=lambda spec: replace(
            spec, image=servers_image, limits=replace(spec.limits, memory="1g")
        ),
        mcp=servers,
    ) as work:
        assert "notices" not in work.loop.capabilities or not [
            one for one in work.loop.capabilities["notices"] if "MCP" in one
        ], work.loop.capabilities["notices"]
        yield work


def test_the_time_server_tells_the_time(real: Work) -> None:
    """A Python server answers, and only reads."""
    result = real.call("mcp__time__get_current_time", timezone="UTC")
    assert json.loads(said(result))["timezone"] == "UTC"


def test_the_git_server_sees_the_worktree(real: Work) -> None:
    """A server in the box works on what commands have made there."""
    made = real.call("run_command", command="git init -q /workspace/repo")
    assert not made.is_error, said(made)
    result = real.call("mcp__git__git_status", repo_path="/workspace/repo")
    assert "No commits yet" in said(result)


def test_the_file_server_writes_into_the_worktree(real: Work) -> None:
    """What a server writes is in the worktree."""
    result = real.call("mcp__files__write_file", path="/workspace/new.txt", content="of a server")
    assert not result.is_error, said(result)
    assert (real.root / "new.txt").read_text() == "of a server"


def test_the_memory_server_remembers(real: Work) -> None:
    """Data of a server is data of the result."""
    entities = [{"name": "Ada", "entityType": "person", "observations": ["counts"]}]
    assert not real.call("mcp__memory__create_entities", entities=entities).is_error
    result = real.call("mcp__memory__read_graph")
    assert result.structured is not None
    assert result.structured["entities"][0]["name"] == "Ada"


def test_the_server_of_everything_gives_every_kind(real: Work) -> None:
    """Text, pictures, resources and progress of the reference server arrive."""
    shown = names(real)
    assert "mcp__everything__echo" in shown
    assert "hello" in said(real.call("mcp__everything__echo", message="hello"))
    picture = real.call("mcp__everything__get-tiny-image")
    assert "image" in [block["type"] for block in picture.content if isinstance(block, dict)]
    given = {"duration": 1, "steps": 2}
    name = next(one for one in shown if "long-running" in one)
    events = real.events((name, given))
    assert [one for one in events if isinstance(one, Progress)]
