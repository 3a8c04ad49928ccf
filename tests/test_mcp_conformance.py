"""The protocol's own conformance scenarios, as far as they are about what this project has.

Others want a server with the tools, prompts and resources of the scenarios themselves.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mcp_clients import boxes, with_file
from tests.mcp_http_clients import Served, served

PACKAGE = "@modelcontextprotocol/conformance@0.1.16"
OLDEST = 20
"""The version of Node from which they run."""
HERE = Path(__file__).parent
SECONDS = 240
SERVER = (
    *("server-initialize", "logging-set-level", "ping", "tools-list", "tools-call-error"),
    *("resources-list", "server-sse-multiple-streams"),
)
CLIENT = ("initialize", "tools_call")
NAME = "mcp-conformance"
CLIENTS = 16
"""Sessions at a time: the scenarios leave theirs open."""


def _version() -> int:
    """Of Node; 0 where there is none that can run packages."""
    if shutil.which("npx") is None:
        return 0
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)", said)
    return int(found[1]) if found else 0


pytestmark = pytest.mark.skipif(_version() < OLDEST, reason=f"no npx with Node {OLDEST} here")


def conformance(*options: str, **environment: str) -> str:
    """What a scenario says, having come to its checks."""
    given = {**os.environ, **environment}
    given["NODE_OPTIONS"] = f"--import {(HERE / 'mcp_conformance.mjs').as_uri()}"
    done = subprocess.run(
        ["npx", "-y", PACKAGE, *options],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=given,
    )
    said = done.stdout + done.stderr
    assert re.search(r"Passed: [1-9]\d*/", said), said
    return said


def as_client(scenario: str) -> str:
    """What a scenario says of a loop whose tools are those of the scenario's server."""
    client = f"{sys.executable} {HERE / 'mcp_conformance_client.py'}"
    limit = str((SECONDS - 60) * 1000)
    return conformance("client", "--command", client, "--scenario", scenario, "--timeout", limit)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all scenarios."""
    worktree = with_file(tmp_path_factory.mktemp("conformance"))
    with served(worktree, "--exec-id", NAME, "--sessions", str(CLIENTS)) as found:
        yield found
        assert found.end(signal.SIGTERM).startswith("143: ")
    assert boxes(NAME) == []


@pytest.mark.parametrize("scenario", SERVER)
def test_the_server_passes(server: Served, scenario: str) -> None:
    """Every check of the scenario."""
    said = conformance(
        "server", "--url", server.url, "--scenario", scenario, MCP_TOKEN=server.token
    )
    assert ", 0 failed, 0 warnings" in said, said


@pytest.mark.parametrize("scenario", CLIENT)
def test_a_loop_with_its_server_passes(scenario: str) -> None:
    """Every check."""
    said = as_client(scenario)
    assert "OVERALL: PASSED" in said, said


def test_a_loop_asks_for_the_rest_of_an_answer() -> None:
    """It says what it has had, and comes not sooner than it was told; a busy machine comes late."""
    said = as_client("sse-retry")
    for check in ("client-sse-graceful-reconnect", "client-sse-last-event-id"):
        assert re.search(rf"\[{check} *\] \S*SUCCESS", said), said
    assert "too early" not in said
