"""Calls and results as people are shown them: plain text in which nothing acts."""

from __future__ import annotations

import json

from executor.model import Call, Result
from executor.text import one_line, visible

MAX_SUBJECT = 60
"""Characters of what a call is about."""
MAX_NAME = 200


def render_tool_use(call: Call) -> str:
    """What is called and what it is about, on one short line."""
    return f"{one_line(call.name, MAX_NAME)} {_subject(call)}".rstrip()


def render_tool_result(result: Result, call: Call | None = None) -> str:
    """How the call went, on one short line.

    Args:
        result: of the call.
        call: None = what was sent is no call.
    """
    mark = f"✗ {result.code}" if result.is_error else "✓"
    what = render_tool_use(call) if call is not None else one_line(result.name or "?", MAX_NAME)
    return f"{mark} {what} {result.duration_ms:.1f} ms"


def render_content(result: Result) -> str:
    """All that the model is shown, with a line end; empty where that is nothing."""
    text = visible(raw_content(result))
    return text.removesuffix("\n") + "\n" if text else ""


def raw_content(result: Result) -> str:
    """All that the model is shown, as it is."""
    return result.content if isinstance(result.content, str) else json.dumps(result.content)


def _subject(call: Call) -> str:
    for name in (
        "path",
        "file_path",
        "notebook_path",
        "skill",
        "command",
        "pattern",
        "from",
        "language",
        "summary",
    ):
        value = call.input.get(name)
        if isinstance(value, str):
            return one_line(value.replace("\n", " "), MAX_SUBJECT)
    return ""
