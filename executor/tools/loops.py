"""Other loops: ask one, give data to some."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from executor.errors import Code, ToolError
from executor.results import Limit, clip_text, size_of
from executor.tool import Arguments, Context, Outcome, Peers, Positive, Surroundings, Text


def alone(loop: Surroundings) -> str | None:
    """Why a loop has no others to speak to."""
    return None if loop.peers is not None else "this loop runs without others"


def _peers(context: Context) -> Peers:
    if context.loop.peers is None:
        raise ToolError(Code.DISABLED, "This loop runs without others.")
    return context.loop.peers


class QueryLoop(Arguments):
    """Arguments of `query_loop`."""

    target_exec_id: Text = Field(description="Execution ID of the loop to query")
    question: Text = Field(description="Question to ask")
    timeout_ms: Positive | None = Field(None, description="Timeout for reply (default: {default})")


async def query_loop(context: Context, given: QueryLoop) -> Outcome:
    """Ask another running loop a question. Returns their reply."""
    milliseconds = given.timeout_ms or context.entry.timeout_ms
    longest = context.entry.max_timeout_ms
    if longest is not None and milliseconds > longest:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"timeout_ms is {milliseconds}, and at most {longest} is allowed; ask again instead.",
        )
    timeout = milliseconds / 1000
    if context.time_left is not None:
        timeout = min(timeout, context.time_left)
    reply = await _peers(context).query(given.target_exec_id, given.question, timeout)
    clip = clip_text(reply, Limit.of(context), context.entry.keep)
    return Outcome(reply, {"reply": clip.text}, total_bytes=size_of(reply))


class ShareData(Arguments):
    """Arguments of `share_data`."""

    target_exec_ids: Annotated[list[Text], Field(min_length=1)] = Field(
        description="Execution IDs of loops to share with"
    )
    data_type: Text = Field(description="Type of data (e.g., 'api_schema', 'config')")
    data: Any = Field(description="Data to share (JSON)")


async def share_data(context: Context, given: ShareData) -> Outcome:
    """Share data with other loops (e.g., API schemas, config values)."""
    targets = list(dict.fromkeys(given.target_exec_ids))
    await _peers(context).share(targets, given.data_type, given.data)
    return Outcome(
        f"Shared {given.data_type} to {len(targets)} loops",
        {"data_type": given.data_type, "targets": targets},
    )
