"""A recorded session of each toolset, through the real command line, result by result."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest

from executor import toolsets
from executor.catalog import load
from tests.replaying import expected, replay, told, turns

TOOLSETS = ("standard", "claude-code", "loom")
CALLS = 40


@pytest.mark.parametrize("toolset", TOOLSETS)
def test_every_result_is_as_recorded(tmp_path: Path, toolset: str) -> None:
    """Content, error, code and data of 40 calls are those of the recording, in its order."""
    found = [told(result) for result in replay(toolset, tmp_path)]
    recorded = expected(toolset)
    different = [
        "\n".join(difflib.ndiff(_lines(before), _lines(after)))
        for before, after in zip(recorded, found, strict=True)
        if before != after
    ]
    assert not different, "\n\n".join(different)


def _lines(result: object) -> list[str]:
    return json.dumps(result, indent=1, ensure_ascii=False).splitlines()


@pytest.mark.parametrize("toolset", TOOLSETS)
def test_a_recording_is_a_whole_session(toolset: str) -> None:
    """It has 40 calls in turns of one to eight, uses every tool, and some are refused."""
    recorded = list(turns(toolset))
    assert sum(map(len, recorded)) == CALLS
    sizes = [len(turn) for turn in recorded]
    assert (min(sizes), max(sizes)) == (1, 8)
    used = {call["name"] for turn in recorded for call in turn}
    there = {tool.name for tool in toolsets.registry(toolset, load()).all()}
    assert there - used <= UNUSED.get(toolset, set())
    codes = {result["code"] for result in expected(toolset)}
    assert {None, "NOT_READ", "NO_MATCH", "PERMISSION_DENIED", "APPROVAL_REQUIRED"} <= codes


UNUSED = {
    "standard": {
        *("run_command_isolated", "build", "validate", "delete_file"),
        *("create_spec", "create_phase", "query_loop", "share_data"),
        # The recording's worktree belongs to no repository.
        *("git_status", "git_diff", "git_log", "git_commit", "git_push"),
        # The recording's loop reaches nothing outside, and has no keys.
        *("web_fetch", "web_search"),
        # The recording's box has no language server.
        "lsp",
    },
    "claude-code": {"Skill", "WebFetch", "WebSearch", "LSP"},
    "loom": {"web_search", "oracle"},
}
"""Tools that stand for others of the session, or that such a loop does not have."""
