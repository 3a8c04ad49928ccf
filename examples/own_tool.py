"""A tool of one's own, beside those of a toolset: `python examples/own_tool.py`.

It runs in this process, and reaches the loop's worktree only through its context. Rules,
hooks, permission modes and loop types hold for it as for any other tool.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from executor import Call, Context, Controller, LoopSpec, Result, Touches, custom_tool


class CountWords(BaseModel):
    """Arguments of `count_words`."""

    path: str = Field(description="File in the worktree")


def reads(context: Context, given: CountWords) -> Sequence[Touches]:
    """What a call is going to do: a rule like `read_file(*.env)` then holds for it, too."""
    return [Touches(context.path(given.path), "read")]


@custom_tool(access="read", actions=reads)
async def count_words(context: Context, given: CountWords) -> dict[str, Any]:
    """Count the words of a text file."""
    path = context.path(given.path)
    answer = await context.ask("read", {"path": path, "encoding": "base64"})
    return {"path": given.path, "words": len(answer.data.split())}


async def counted(controller: Controller, worktree: Path) -> Result:
    """The result of one call of the tool, in a loop that is opened for it."""
    async with controller.open(LoopSpec(worktree=worktree)) as loop:
        return await loop.execute(Call("1", "count_words", {"path": "poem.txt"}))


async def main() -> None:
    """Count the words of a file that is made for it."""
    with tempfile.TemporaryDirectory(prefix="own-tool-") as directory:
        worktree = Path(directory)
        (worktree / "poem.txt").write_text("So much depends\nupon a red wheel barrow\n")
        async with Controller(tools=[count_words]) as controller:
            result = await counted(controller, worktree)
    print(result.content)


if __name__ == "__main__":
    asyncio.run(main())
