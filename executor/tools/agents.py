"""Subagents as a tool: what a model asks for. How they run is `executor.subagents`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from executor.tool import Action, Arguments, Context, Outcome, Positive, Surroundings, Text, Touches

MAX_DEPTH = 3
"""How many agents may be above one another, the loop itself not counted."""


class Task(Arguments):
    """Arguments of `task`."""

    description: Text = Field(description="A short (3-5 word) description of the task")
    prompt: Text = Field(min_length=1, description="The task for the agent to perform")
    subagent_type: Text = Field(description="The type of agent to use for this task")
    model: Text | None = Field(None, description="Name of the model to use (default: the type's)")
    resume: Text | None = Field(
        None, description="Id of an agent that has ended, to go on with what it knows"
    )
    run_in_background: bool | None = Field(
        None, description="Go on without it; task_output has its result"
    )
    max_turns: Positive | None = Field(
        None, description="How many turns the agent may take (default: 50)"
    )
    allowed_tools: list[Text] | None = Field(
        None, description="Names of the tools that it may use (default: its type's)"
    )


async def task(context: Context, given: Task) -> Outcome:
    """Launch a new agent to handle complex, multi-step tasks autonomously."""
    agents = context.loop.agents
    assert agents is not None, "the tool is disabled without"
    return await agents.run(context, given)


def starts_agent(context: Context, given: Task) -> Sequence[Action]:
    """What `task` is going to do: the agent sees the worktree as it is when the call starts.

    What it changes is brought back entry by entry, and never over what others changed
    meanwhile; so agents of one turn run side by side.
    """
    return [Touches("", "list", subtree=True)]


def childless(loop: Surroundings) -> str | None:
    """Why a loop can't start agents."""
    if loop.depth >= MAX_DEPTH:
        return f"agents are started at most {MAX_DEPTH} deep; do the work yourself"
    if loop.agents is None:
        return (
            "no model was given that agents could ask (ANTHROPIC_API_KEY, or Controller(model=...))"
        )
    return None


def with_types(text: str, heading: str = "Types of agents:") -> DescribeTypes:
    """A description that goes on with the types of agents that a loop can start.

    Args:
        text: what stands before them.
        heading: what stands over the list.
    """
    return DescribeTypes(text, heading)


class DescribeTypes:
    """Makes the description of `task` for one loop."""

    def __init__(self, text: str, heading: str) -> None:
        self._text = text
        self._heading = heading

    def __call__(self, loop: Surroundings) -> str:
        """The text, and the list."""
        if loop.agents is None:
            return self._text
        lines = [f"- {name}: {said}" for name, said in loop.agents.types().items()]
        return "\n".join([self._text, "", self._heading, *lines])
