"""Turns "ask" into a decision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from executor.errors import Code, ToolError
from executor.permissions import Judgement
from executor.tool import Arguments, Context, Tool


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """What an approval is bound to: SHA-256 of the tool's name and its arguments."""
    text = json.dumps([tool, arguments], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


async def decide(
    tool: Tool,
    given: Mapping[str, Any],
    arguments: Arguments,
    context: Context,
    judgement: Judgement,
) -> Mapping[str, Any] | None:
    """Have a call approved.

    Args:
        tool: the tool.
        given: its arguments as given; what an approval is bound to.
        arguments: the same, checked.
        context: of the call.
        judgement: why it has to be asked.

    Returns:
        Other arguments that are to run instead; None = run these.

    Raises:
        ToolError: REJECTED; TIMEOUT; APPROVAL_REQUIRED, there is no one to ask.
    """
    raise ToolError(
        Code.APPROVAL_REQUIRED,
        f"{tool.name} needs approval ({judgement.reason}), and there is no one to ask. "
        f"It would be allowed by the rule {' or '.join(judgement.allowing)}.",
        {"mode": context.session.mode, "allowed_by": list(judgement.allowing)},
    )
