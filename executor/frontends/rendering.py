"""Calls and results as people are shown them: plain text in which nothing acts."""

from __future__ import annotations

from executor.model import Block, Call, Result
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
    """All that the model is shown, as it is; of what is no text, what it is."""
    if isinstance(result.content, str):
        return result.content
    return "\n".join(_shown(block) for block in result.content)


def _shown(block: Block) -> str:
    if block.get("type") == "text":
        return str(block["text"])
    source = block.get("source", {})
    data = str(source.get("data", ""))
    size = len(data) * 3 // 4 - data[-2:].count("=")
    return f"[{block.get('type')}: {source.get('media_type')}, {size:,} bytes]"


def _subject(call: Call) -> str:
    operation = call.input.get("operation")
    said = one_line(operation, MAX_SUBJECT) if isinstance(operation, str) else ""
    return f"{said} {_thing(call)}".strip()


def _thing(call: Call) -> str:
    for name in (
        "path",
        "file_path",
        "notebook_path",
        "skill",
        "command",
        "pattern",
        "url",
        "query",
        "from",
        "language",
        "summary",
        "description",
        "task_id",
        "shell_id",
        "target_exec_id",
    ):
        value = call.input.get(name)
        if isinstance(value, str):
            return one_line(value.replace("\n", " "), MAX_SUBJECT)
    return ""
