"""The client that the protocol's conformance scenarios start: one loop, one call to their server.

The scenario's name is in MCP_CONFORMANCE_SCENARIO, the server's address the last argument.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

CALLS = {
    "tools_call": ("add_numbers", '{"a": 1, "b": 2}'),
    "sse-retry": ("test_reconnection", "{}"),
}


def command_of(scenario: str, url: str, directory: Path) -> list[str]:
    """The command line of `executor` that plays this scenario's client."""
    config, worktree = directory / "executor.toml", directory / "worktree"
    worktree.mkdir()
    config.write_text(f'[mcp.conformance]\nurl = "{url}"\n')
    host = f"localhost:{urlsplit(url).port}"
    reach = ["--egress", host, "--egress-private", "localhost"]
    common = ["--worktree", str(worktree), "--config", str(config), *reach]
    executor = [sys.executable, "-m", "executor"]
    if scenario not in CALLS:
        return [*executor, "tools", *common]
    tool, arguments = CALLS[scenario]
    return [*executor, "call", f"mcp__conformance__{tool}", arguments, *common]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
        command = command_of(scenario, sys.argv[-1], Path(temporary))
        sys.exit(subprocess.run(command, check=False).returncode)
