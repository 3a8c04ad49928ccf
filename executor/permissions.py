"""(mode, rules, call) → allow, ask or deny."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from executor.model import Access
from executor.tool import Context, Tool


class Mode(StrEnum):
    """How much a loop may do without asking."""

    DEFAULT = "default"
    PLAN = "plan"
    ACCEPT_EDITS = "acceptEdits"
    BYPASS = "bypass"


class Verdict(StrEnum):
    """What is to happen with a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_ALLOW, _ASK, _DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY

_MATRIX: dict[Access, dict[Mode, Verdict]] = {
    access: dict(zip(Mode, row, strict=True))
    for access, row in {
        # default, plan, acceptEdits, bypass
        Access.READ: (_ALLOW, _ALLOW, _ALLOW, _ALLOW),
        Access.SESSION: (_ALLOW, _ALLOW, _ALLOW, _ALLOW),
        Access.WRITE: (_ASK, _DENY, _ALLOW, _ALLOW),
        Access.EXEC: (_ASK, _DENY, _ASK, _ALLOW),
        Access.NETWORK: (_ASK, _DENY, _ASK, _ALLOW),
    }.items()
}

_EXCEPTIONS: dict[tuple[str, Mode], Verdict] = {
    # Deleting can't be taken back by an edit, so accepting edits does not cover it.
    ("delete_file", Mode.ACCEPT_EDITS): _ASK,
    # Made for small computations in the box: runs without a question.
    ("run_code", Mode.DEFAULT): _ALLOW,
    ("run_code", Mode.ACCEPT_EDITS): _ALLOW,
}


def decide(mode: Mode, access: Access, tool: str) -> Verdict:
    """What the mode says about a call.

    Args:
        mode: of the loop.
        access: what the tool touches.
        tool: its canonical name.
    """
    return _EXCEPTIONS.get((tool, mode)) or _MATRIX[access][mode]


# ─── a call ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to happen with a call, and why.

    Attributes:
        verdict: allow, ask or deny.
        reason: a sentence for the model or the person who is asked.
        rule: the rule that decided; None = the mode did.
        allowing: rules that would allow this call and its like.
    """

    verdict: Verdict
    reason: str = ""
    rule: str | None = None
    allowing: tuple[str, ...] = ()


_ALLOWED = Judgement(Verdict.ALLOW)


async def judge(tool: Tool, arguments: Any, context: Context) -> Judgement:
    """What the loop's mode and rules say about a call.

    Args:
        tool: the tool.
        arguments: checked.
        context: of the call; the agent is asked what paths lead to, where rules need it.
    """
    session = context.session
    mode = Mode(session.mode)
    if mode is Mode.BYPASS and not session.rules:
        return _ALLOWED
    verdict = decide(mode, tool.access, tool.canonical)
    if verdict is Verdict.DENY:
        return Judgement(verdict, f"mode {mode} changes nothing. Read and search instead.")
    if verdict is Verdict.ASK:
        return Judgement(verdict, f"mode {mode} asks before {tool.access}", None, (tool.name,))
    return _ALLOWED
