"""`python -m benchmarks`: measure, print the table, with `--write` keep it in docs.

Every ratio is from one run in which both sides took turns. Exit code 0 also when a budget
was missed (it is said, with the reason); 1 when a benchmark could not be run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import docker
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import egress, language, memory, report, speed
from benchmarks.report import Row, Verdict
from benchmarks.stage import NotRun, Stage, temporary
from benchmarks.timing import Ticks
from executor import Controller
from executor.errors import ExecutorError
from executor.sandbox import images
from executor.sandbox.engine import Engine
from executor.settings import Settings

T = TypeVar("T")

REPORT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BENCHMARKS: dict[str, Callable[[Stage], Awaitable[list[Row]]]] = {
    "read": speed.reads,
    "pipeline": speed.pipeline,
    "command": speed.commands,
    "cold": speed.cold_starts,
    "grep": speed.searches,
    "git": speed.statuses,
    "egress": egress.through_the_broker,
    "lsp": language.look_ups,
    "flood": memory.flood,
    "idle": memory.idle,
    "many": memory.many,
}
NOTE = (
    "Written by `python -m benchmarks --write`. Both sides of a ratio took turns in one run, so "
    "ratios can be compared with other machines; absolute times can't. Times are medians of at "
    "least {rounds} attempts ({cold} for cold starts, {downloads} for downloads). The load at the "
    "start tells whether the machine had other work: then everything is slower, and short calls "
    "suffer most."
)

WIDTH = 160
"""Columns of the table where the output is no terminal."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
err = Console(stderr=True, highlight=False)


def main() -> int:
    """Run the benchmarks; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(BENCHMARKS)} (all)")
    parser.add_argument("--write", action="store_true", help="keep the table in docs")
    parser.add_argument("--share", type=float, default=1.0, help="part of the rounds (1)")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    names = given.names or list(BENCHMARKS)
    try:
        facts, rows = asyncio.run(until_signal(measure(names, given.share)))
    except ExecutorError as error:
        err.print(f"benchmarks: {error}", style="red", markup=False)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        err.print("benchmarks: interrupted; everything temporary was removed")
        return 130
    show(facts, rows)
    if given.write:
        given_rounds = {"cold": speed.COLD_ROUNDS, "downloads": egress.DOWNLOADS}
        note = NOTE.format(rounds=speed.ROUNDS, **given_rounds)
        report.write(REPORT, facts, rows, note)
        err.print(f"written to docs/{REPORT.name}")
    return 1 if any(row.verdict is Verdict.FAILED for row in rows) else 0


async def until_signal(work: Coroutine[Any, Any, T]) -> T:
    """Run the work; the first signal cancels it, and its clean-up is left in peace."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())
    return await task


async def measure(names: list[str], share: float) -> tuple[list[tuple[str, str]], list[Row]]:
    """The machine's facts and the rows.

    Raises:
        ExecutorError: there is no engine or no image.
    """
    settings = Settings.load()
    engine = docker.DockerClient(base_url=settings.docker_host) if settings.docker_host else None
    engine = engine or docker.from_env()
    rows: list[Row] = []
    with _progress() as progress, temporary() as directory:
        async with Controller(settings) as controller:
            async with await Engine.connect(settings) as plain:
                image = await images.ensure_image(plain, "base")
            facts = report.machine(engine.info())

            def ticks(what: str) -> Ticks:
                task = progress.add_task(what, total=None)
                return lambda done, total: progress.update(task, completed=done, total=total)

            stage = Stage(controller, engine, image, directory, share, ticks)
            for name in names:
                rows += await _one(name, stage)
    engine.close()
    return facts, rows


async def _one(name: str, stage: Stage) -> list[Row]:
    try:
        return await BENCHMARKS[name](stage)
    except (NotRun, ExecutorError, OSError, docker.errors.DockerException) as error:
        return [Row(name, "", verdict=Verdict.FAILED, reason=str(error))]


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=not os.environ.get("CI"),
    )


def show(facts: list[tuple[str, str]], rows: list[Row]) -> None:
    """Print the report."""
    console.print(", ".join(f"{name}: {value}" for name, value in facts), style="dim")
    console.print(report.table(rows))
    for name, reason in report.reasons(rows):
        console.print(f"{name}: {reason}.", markup=False)
    missed = sum(row.verdict is Verdict.MISSED for row in rows)
    held = sum(row.verdict is Verdict.HELD for row in rows)
    console.print(f"{held} budgets held, {missed} missed")


if __name__ == "__main__":
    sys.exit(main())
