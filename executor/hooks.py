"""What the host wants to see or to stop: callables and commands around each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from executor.tool import Context, Outcome, Tool


@dataclass(frozen=True, slots=True)
class Use:
    """A call, as hooks see it.

    Attributes:
        tool: name as the model calls it.
        canonical: name in the catalog.
        input: the arguments as given.
        call_id, turn_id, exec_id: whose it is.
        cwd: where commands start, as seen in the box.
        is_mutating: it may have changed the worktree.
    """

    tool: str
    canonical: str
    input: Mapping[str, Any]
    call_id: str
    turn_id: str
    exec_id: str
    cwd: str
    is_mutating: bool

    @classmethod
    def of(cls, tool: Tool, given: Mapping[str, Any], context: Context) -> Use:
        """The use that a pipeline is about to make of a tool."""
        return cls(
            tool.name,
            tool.canonical,
            given,
            context.call_id,
            context.turn_id,
            context.loop.exec_id,
            context.cwd,
            tool.is_mutating,
        )


class Hooks:
    """The hooks of one loop, in order."""

    def __init__(self, hooks: Sequence[Any] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    async def before(self, use: Use) -> Mapping[str, Any] | None:
        """PreToolUse: other arguments for the call, or None.

        Raises:
            ToolError: REJECTED, with the reason for the model.
        """
        return None

    async def after(self, use: Use, outcome: Outcome) -> tuple[list[str], list[str]]:
        """PostToolUse → notes for the model, warnings for the host."""
        return [], []

    async def after_failure(self, use: Use, error: BaseException) -> list[str]:
        """PostToolUseFailure → warnings for the host."""
        return []

    async def after_turn(self, uses: Sequence[Use]) -> list[str]:
        """PostTools, once a turn, after mutating calls that succeeded → warnings."""
        return []
