"""Tools and results of a loop as the Model Context Protocol has them. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from executor.loop import Loop
from executor.model import Access, Block, Result
from executor.tool import Tool

_BULKY = frozenset({"stdout", "stderr"})
"""What structured results of commands have beside the text that says the same."""


def tools_of(loop: Loop) -> list[types.Tool]:
    """The definitions of a loop's tools."""
    disabled = loop.disabled()
    return [tool_of(loop, tool) for tool in loop.registry.all() if tool.name not in disabled]


def tool_of(loop: Loop, tool: Tool) -> types.Tool:
    """A tool's definition in this loop."""
    return types.Tool(
        name=tool.name,
        description=sendable(loop.description(tool)),
        input_schema=dict(tool.schema),
        annotations=annotations_of(tool),
    )


def annotations_of(tool: Tool) -> types.ToolAnnotations:
    """What clients may tell people of a tool. All of it happens in the box."""
    is_reading = tool.access is Access.READ
    return types.ToolAnnotations(
        read_only_hint=is_reading,
        destructive_hint=not is_reading and tool.is_mutating,
        open_world_hint=tool.access is Access.NETWORK,
    )


def answer_of(
    result: Result, link: types.ResourceLink | None = None, *, with_structured: bool
) -> types.CallToolResult:
    """What a call came to.

    Args:
        result: of the loop.
        link: to the whole of it, which is not shown.
        with_structured: the same as data, too; without what commands printed, which is in the
            text (decisions, row 24).
    """
    content = result.content
    blocks: Sequence[Block] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    structured = None
    if with_structured and result.structured is not None:
        structured = {key: one for key, one in result.structured.items() if key not in _BULKY}
    links = [] if link is None else [link]
    return types.CallToolResult(
        content=[*(_block(block) for block in blocks), *links],
        structured_content=sendable(structured),
        is_error=result.is_error,
    )


def _block(block: Block) -> types.TextContent | types.ImageContent:
    source = block.get("source", {})
    if block["type"] == "image" and source.get("type") == "base64":
        return types.ImageContent(type="image", data=source["data"], mime_type=source["media_type"])
    text = block["text"] if block["type"] == "text" else json.dumps(block, ensure_ascii=False)
    return types.TextContent(type="text", text=sendable(text))


def sendable(value: Any) -> Any:
    """The value with every half of a character, as odd file names have them, as an escape.

    JSON has a way to write them, but many readers of JSON end the connection over it. A name with
    bytes that are no text is written as the tools take it.
    """
    if isinstance(value, str):
        return value if value.isascii() else _whole(value)
    if isinstance(value, dict):
        return {sendable(key): sendable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [sendable(one) for one in value]
    return value


def _whole(text: str) -> str:
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # halves that stand for no byte
        return text.encode("utf-8", "backslashreplace").decode()


def fault(code: int, text: str, data: Any = None) -> MCPError:
    """An error of the protocol that can be sent.

    Args:
        code: of JSON-RPC.
        text: says what is wrong, and what to do.
        data: for programs.
    """
    return MCPError(code, sendable(text), sendable(data))
