"""What a real server said once, replayed: no registry and no image is needed for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from executor.catalog_servers import McpEntry
from executor.errors import Code
from tests.foreign.test_client import said
from tests.loops import open_work

HERE = Path(__file__).parent
REPLAY = (HERE / "stubs" / "replay.py").read_text()
TIME = (HERE / "recorded" / "time.jsonl").read_text()


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_the_recorded_time_server(tmp_path: Path, kind: str) -> None:
    """Tools, a result and an error of `mcp-server-time`, as it said them in version 2026.8.18."""
    entry = McpEntry(command=("python3", "-c", REPLAY, TIME))
    with open_work(kind, tmp_path, mcp={"time": entry}) as work:
        shown = {one["name"]: one["input_schema"] for one in work.loop.definitions()}
        assert shown["mcp__time__convert_time"]["required"] == [
            "source_timezone",
            "time",
            "target_timezone",
        ]
        given = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        result = work.call("mcp__time__convert_time", **given)
        assert json.loads(said(result))["time_difference"] == "+9.0h"
        refused = work.call("mcp__time__get_current_time", timezone="Nowhere/None")
        assert refused.code is Code.EXECUTION_ERROR
        assert "Invalid timezone" in said(refused)
