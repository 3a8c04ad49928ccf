"""A program for tests: puts what its argument says to the person at the terminal.

`python -m tests.asker '{"requests": [...], "questions": [...], "seconds": 5}'`; each answer is
one line `ANSWER …` on standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from dataclasses import asdict
from typing import Any

from executor.errors import ToolError
from executor.frontends.asking import terminal
from executor.model import ApprovalRequest, Option, Question

PLAIN: dict[str, Any] = {
    "id": "a",
    "step_id": "1",
    "exec_id": "test",
    "tool": "run_command",
    "arguments": {},
    "action": "ls",
    "description": None,
    "reason": "mode default asks before commands",
    "timeout": 600,
    "arguments_hash": "hash",
}


async def _said(answer: Awaitable[Any], seconds: float | None, name: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            said = await answer
            told = said if isinstance(said, dict) else asdict(said)
    except ToolError as error:
        told = {"code": error.code, "message": str(error)}
    except TimeoutError:
        told = {"timeout": True}
    print(f"ANSWER {name} {json.dumps(told)}", flush=True)


async def main(given: dict[str, Any]) -> None:
    """Ask all at once."""
    approver = terminal()
    if approver is None:
        print("ANSWER none", flush=True)
        return
    seconds = given.get("seconds")
    tasks = []
    for changes in given.get("requests", ()):
        request = ApprovalRequest(**{**PLAIN, **changes})
        tasks.append(_said(approver.approve(request), seconds, request.id))
    if "questions" in given:
        questions = [
            Question(**{**item, "options": tuple(Option(*pair) for pair in item["options"])})
            for item in given["questions"]
        ]
        tasks.append(_said(approver.answer(questions), seconds, "questions"))
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
