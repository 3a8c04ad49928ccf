"""What a command has printed, and what became of it: the agent's answers, read.

Shared by commands that are waited for and by those that go on in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from executor.errors import Code, SandboxError, ToolError
from executor.model import Limits, Spilled
from executor.results import HEADING, Captured
from executor.tool import Answer, Context

GRACE = 2.0
"""Seconds between TERM and KILL for a command that is ended."""
PIECE = 1 << 20
"""Bytes of an ended command's output that are asked for at a time."""
FETCH_TIMEOUT = 30.0
"""Seconds that one piece may take."""
KEEP_TIMEOUT = 60.0
"""Seconds that all of them may take; an output that takes longer is not kept."""


def captured(answer: Answer) -> tuple[Captured, Captured]:
    """Standard output and standard error; the second is empty where both were one pipe."""
    found: list[Captured] = []
    position = 0
    for name in ("stdout", "stderr"):
        sizes = answer.value.get(name) or {"total": 0, "head": 0, "tail": 0}
        middle = position + sizes["head"]
        end = middle + sizes["tail"]
        data = answer.data
        found.append(Captured(data[position:middle], data[middle:end], sizes["total"]))
        position = end
    return found[0], found[1]


# ─── what does not fit ──────────────────────────────────────────────────────────────


async def kept(
    context: Context, answer: Answer, task: str | None = None, instead_of: str | None = None
) -> Spilled | None:
    """Keep the whole output where the loop can read it; None if it can't be kept.

    Args:
        context: of the call.
        answer: of the agent, with what can be fetched.
        task: id of the task whose output so far it is; None = of a command that has ended.
        instead_of: see `Spill.keep`.
    """
    spill = context.loop.spill
    if spill is None:
        return None
    missing: list[int] = []
    try:
        async with (
            asyncio.timeout(KEEP_TIMEOUT),
            aclosing(_whole(context, answer, spill.most, missing, task)) as pieces,
        ):
            spilled = await spill.keep(pieces, instead_of)
    except (ToolError, SandboxError, TimeoutError):
        # The command has ended; that its output is gone must not hide what became of it.
        return None
    if spilled is not None and missing:
        said = f"{sum(missing)} bytes were not kept"
        spilled = replace(spilled, notice="; ".join(filter(None, (said, spilled.notice))))
    return spilled


async def _whole(
    context: Context, answer: Answer, most: int, missing: list[int], task: str | None
) -> AsyncGenerator[bytes, None]:
    """All of both streams that is kept, laid out as the model is shown them.

    Args:
        context: of the call.
        answer: of the agent, which holds ends of the streams, or all of them.
        most: bytes that have a place.
        missing: takes the numbers of bytes that are not there.
        task: see `kept`.
    """
    shelf = answer.value.get("shelf")
    streams = dict(zip(("stdout", "stderr"), captured(answer), strict=True))
    if shelf is None:
        parts = [stream.head + stream.tail for stream in streams.values()]
        yield HEADING.encode().join(part for part in parts if part)
        return
    names = [name for name in streams if shelf.get(name, [0])[0]]
    room = (most - _MARKS) // max(len(names), 1)
    where = {"shelf": shelf["number"]} if task is None else {"task": task}
    try:
        for number, name in enumerate(names):
            if number:
                yield HEADING.encode()
            async for piece in _stream(context, where, shelf[name], name, room, missing):
                yield piece
    finally:
        done = {**where, "size": 0}
        with suppress(ToolError, SandboxError):
            if task is None:
                await context.loop.box.request("fetch", done, timeout=FETCH_TIMEOUT)


_MARKS = 1000
"""Bytes for what stands between streams, and where something is missing."""


async def _stream(
    context: Context,
    where: dict[str, Any],
    sizes: Sequence[int],
    name: str,
    room: int,
    missing: list[int],
) -> AsyncIterator[bytes]:
    """One stream, piece by piece: beginning and end, and a mark where bytes are missing.

    Of a task that runs, more may go missing meanwhile: it writes over its oldest output.
    """
    total, head, tail = sizes
    if head + tail > room:
        tail = min(room // 2, tail or total)
        head = min(room - tail, head)
    for start, end in ((0, head), (max(total - tail, head), total)):
        if start > head:
            missing.append(start - head)
            yield _gap(start - head)
        position = start
        while position < end:
            size = min(PIECE, end - position)
            asked = {**where, "stream": name, "position": position, "size": size}
            piece = await context.loop.box.request("fetch", asked, timeout=FETCH_TIMEOUT)
            skipped = min(piece.value["next"], end) - position - size
            if skipped > 0 and "task" in where:
                missing.append(skipped)
                yield _gap(skipped)
                position += skipped
                skipped = 0
            yield piece.data
            position += size
            if skipped:
                # It can't read its own file, or is none of ours: ask it nothing more.
                missing.append(end - position)
                return


def _gap(size: int) -> bytes:
    """What stands where bytes are missing."""
    return f"\n[{size} bytes were not kept]\n".encode()


# ─── why it failed ──────────────────────────────────────────────────────────────────

_LIMITS: dict[str, tuple[Code, Callable[[Limits], str]]] = {
    "memory": (
        Code.OUT_OF_MEMORY,
        lambda limits: f"killed: the memory limit of {_size(limits.memory_bytes)} was reached",
    ),
    "pids": (Code.LIMIT, lambda limits: f"the process limit of {limits.pids} was reached"),
    "disk": (Code.NO_SPACE, lambda limits: "no space left"),
    "output": (Code.LIMIT, lambda limits: "the output limit was reached"),
}


def causes(value: dict[str, Any], timeout: float, limits: Limits) -> list[str]:
    """Why the command counts as failed, the first thing that the model reads."""
    found: list[str] = []
    if value["timed_out"]:
        found.append(f"Command timed out after {round(timeout * 1000)}ms")
    elif value.get("cancelled") is True:
        found.append("Command cancelled")
    elif value["exit_code"] is not None:
        found.append(f"Exit code: {value['exit_code']}")
    else:
        found.append(f"Killed by signal {value['signal']}")
    limit = _LIMITS.get(value["limit"])
    if limit is not None:
        found.append(limit[1](limits))
    return found


def code_of(value: dict[str, Any]) -> Code:
    """The code of a command that counts as failed."""
    if value["timed_out"]:
        return Code.TIMEOUT
    if value.get("cancelled") is True:
        return Code.CANCELLED
    limit = _LIMITS.get(value["limit"])
    return limit[0] if limit is not None else Code.EXECUTION_ERROR


def _size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            number = size / unit
            return f"{number:.0f} {name}" if number == int(number) else f"{number:.1f} {name}"
    return f"{size} bytes"
