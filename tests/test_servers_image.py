"""What the image `servers` has, in a box as loops have it: read-only, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from executor.model import LoopSpec
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.servers_image import servers_image

__all__ = ["servers_image"]

INITIALIZE = (
    '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    '"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}'
)


@pytest.fixture(scope="module")
def box(servers_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A box of that image."""
    directory = tmp_path_factory.mktemp("servers")
    root = make_worktree(directory / "worktree")
    limits = replace(LIMITS, memory="1g")
    spec = LoopSpec(worktree=root, image=servers_image, exec_id="servers", limits=limits)
    with LoopThread() as thread:
        sandbox = thread.enter(open_docker_box(spec, directory / "state"))
        yield Box(thread, sandbox, root, "docker")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("jedi-language-server --version", "0.46.0"),
        ("pyright --version", "pyright 1.1.414"),
        ("typescript-language-server --version", "4.4.1"),
        ("tsc --version", "Version 5.9.3"),
        ("clangd --version", "clangd version"),
        ("gopls version", "golang.org/x/tools/gopls"),
    ],
)
def test_language_server_runs_in_the_box(box: Box, command: str, said: str) -> None:
    """Its program is on the path, and is of the version that the list has."""
    ran = box.run(command, 60, cwd="")
    assert (ran.code, said in ran.out.decode()) == (0, True), ran.err.decode()


@pytest.mark.parametrize(
    "server",
    [
        *("mcp-server-time --local-timezone UTC", "mcp-server-git", "mcp-server-everything"),
        *("mcp-server-filesystem /workspace", "mcp-server-memory"),
    ],
)
def test_mcp_server_answers_in_the_box(box: Box, server: str) -> None:
    """It answers `initialize` over its stdout."""
    script = (
        f"coproc S {{ {server}; }}; echo '{INITIALIZE}' >&\"${{S[1]}}\"; "
        'read -rt 30 line <&"${S[0]}"; kill "$S_PID"; echo "$line"'
    )
    ran = box.run(script, 60, cwd="")
    assert '"protocolVersion":"2025-06-18"' in ran.out.decode(), ran.err.decode()


def test_tools_of_a_worktree_has_those_of_its_mcp_servers(
    servers_image: str, tmp_path: Path
) -> None:
    """Servers of the catalog are asked in the loop that is opened; one that is not there is a
    sentence on stderr, and costs its own tools alone."""
    worktree = make_worktree(tmp_path / "worktree")
    config = tmp_path / "my.toml"
    config.write_text(
        '[mcp.time]\ncommand = ["mcp-server-time", "--local-timezone", "UTC"]\n'
        '[mcp.gone]\ncommand = ["no-such-server"]\n'
    )
    command = [sys.executable, "-m", "executor", "tools", "--format", "mcp"]
    options = ["--worktree", str(worktree), "--config", str(config), "--image", servers_image]
    ran = subprocess.run([*command, *options], capture_output=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    names = {tool["name"] for tool in json.loads(ran.stdout)}
    foreign = {"mcp__time__get_current_time", "mcp__time__convert_time"}
    assert {name for name in names if name.startswith("mcp__")} == foreign
    assert "read_file" in names
    assert "no-such-server" in ran.stderr.decode()
