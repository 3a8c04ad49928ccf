"""(mode, access, tool) → allow, ask or deny. Pure."""

from __future__ import annotations

from enum import StrEnum

from executor.model import Access


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
