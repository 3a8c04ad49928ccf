"""What a loop says about its own work."""

from __future__ import annotations

from pydantic import Field

from executor.model import TaskCompleted
from executor.tool import Arguments, Context, Outcome, Text


class CompleteTask(Arguments):
    """Arguments of `complete_task`."""

    summary: Text = Field(description="Brief summary of what was accomplished")


async def complete_task(context: Context, given: CompleteTask) -> Outcome:
    """Signal that the current task/phase is complete. Only use when validation passes."""
    context.session.completed = given.summary
    if context.emit is not None:
        context.emit(TaskCompleted(summary=given.summary))
    return Outcome(
        f"Task marked complete: {given.summary}", {"completed": True, "summary": given.summary}
    )
