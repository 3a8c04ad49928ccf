"""Memory: a flood of output, an idle agent, many idle loops."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks import report
from benchmarks.processes import Growth, Resident, parent, resident
from benchmarks.report import Row
from benchmarks.stage import Stage, ask
from executor.loop import Loop

MIB = 1 << 20
FLOOD = 1 << 30
GROWTH_BUDGET = 64
IDLE_BUDGET = 14
LOOPS = 50
OPENING_TOGETHER = 5


async def flood(stage: Stage) -> list[Row]:
    """One gibibyte of output: what host and agent grow by while it passes."""
    command = f"yes | head -c {FLOOD}"
    async with stage.loop(stage.worktree("flood")) as loop:
        await ask(loop, "run_command", command="yes | head -c 1M")
        tick = stage.ticks("1 GiB of output")
        tick(0, 1)
        started = time.perf_counter()
        with Growth(os.getpid()) as host, Growth(stage.agent_pid(loop)) as agent:
            result = await ask(loop, "run_command", command=command)
        seconds = time.perf_counter() - started
        tick(1, 1)
    whole = result.total_bytes == FLOOD
    return [
        report.within(
            "1 GiB of output: growth of the host process", host.bytes / MIB, GROWTH_BUDGET, "MiB"
        ),
        report.within("  growth of the agent", agent.bytes / MIB, GROWTH_BUDGET, "MiB"),
        Row(
            "  time, and bytes counted",
            f"{seconds:.2f} s, {'all' if whole else result.total_bytes} counted",
            reason="what is kept of the output is in an unlinked file of at most 16 MiB, which "
            "counts as the box's memory, not as the agent's",
        ),
    ]


async def idle(stage: Stage) -> list[Row]:
    """Process 1 of a box that was just opened, and of one that has worked."""
    async with stage.loop(stage.worktree("idle")) as loop:
        tick = stage.ticks("idle agent")
        pid = stage.agent_pid(loop)
        fresh = resident(pid)
        rounds = stage.rounds(200)
        for number in range(rounds):
            await ask(loop, "run_command", command="true")
            await ask(loop, "write_file", path="a.txt", content=f"{number}\n")
            await ask(loop, "read_file", path="a.txt")
            await ask(loop, "grep", pattern="nothing")
            tick(number + 1, rounds)
        worked = resident(pid)
    name = "idle agent, resident"
    return [
        report.within(f"{name}, just opened", fresh.rss / MIB, IDLE_BUDGET, "MiB"),
        Row("  proportional / its own", _parts(fresh)),
        report.within(f"{name}, after {4 * rounds} calls", worked.rss / MIB, IDLE_BUDGET, "MiB"),
        Row("  proportional / its own", _parts(worked)),
    ]


def _parts(memory: Resident) -> str:
    if not memory.pss:
        return "not readable without root"
    return f"{memory.pss / MIB:.3g} / {memory.unique / MIB:.3g} MiB"


async def many(stage: Stage) -> list[Row]:
    """Fifty loops open at once, each idle after one command."""
    tick = stage.ticks(f"{LOOPS} idle loops")
    turns = asyncio.Semaphore(OPENING_TOGETHER)
    opened: list[Loop] = []
    before = _available()
    started = time.perf_counter()
    async with AsyncExitStack() as stack:

        async def one(number: int) -> None:
            async with turns:
                worktree = stage.worktree(f"many-{number}")
                loop = await stack.enter_async_context(stage.loop(worktree, memory="256m"))
                await ask(loop, "run_command", command="true")
                opened.append(loop)
                tick(len(opened), LOOPS)

        await asyncio.gather(*(one(number) for number in range(LOOPS)))
        seconds = time.perf_counter() - started
        used = before - _available()
        pids = [stage.agent_pid(loop) for loop in opened]
        agents = [resident(pid) for pid in pids]
        shims = [resident(parent(pid)) for pid in pids]
    rows = [
        Row(
            f"{LOOPS} idle loops: memory a loop, all of it",
            f"{used / LOOPS / MIB:.3g} MiB",
            reason="the machine's available memory before and after, divided by the loops; the "
            "engine, its shim and the kernel's part are in it",
        ),
        Row("  opened, each with a first result", f"{seconds:.1f} s"),
    ]
    if agents[0].pss:
        rows.insert(1, Row("  agent, its own memory", f"{_mean(agents):.3g} MiB"))
        rows.insert(2, Row("  the engine's shim, its own memory", f"{_mean(shims):.3g} MiB"))
    return rows


def _mean(parts: list[Resident]) -> float:
    return sum(part.unique for part in parts) / len(parts) / MIB


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise OSError("this kernel does not tell the available memory")
