"""Contestants take turns, so that a busy machine is equally hard on all of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TypeAlias

Attempt: TypeAlias = Callable[[], Awaitable[float]]
"""Does the work once; the seconds that count."""
Ticks: TypeAlias = Callable[[int, int], None]
"""Told the rounds done and the rounds in all."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of many attempts."""

    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        """The median."""
        return median(self.seconds)

    @property
    def p95(self) -> float:
        """Nineteen of twenty attempts were no slower."""
        return quantiles(self.seconds, n=20)[-1]


async def alternately(
    contestants: Mapping[str, Attempt], rounds: int, ticks: Ticks, warm: int = 3
) -> dict[str, Sample]:
    """Each contestant once a round, each round begun by another one.

    Args:
        contestants: by name.
        rounds: how many of them count.
        ticks: shows progress.
        warm: rounds before that do not count.
    """
    names = list(contestants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds = await contestants[name]()
            if number >= 0:
                found[name].append(seconds)
        ticks(max(number + 1, 0), rounds)
    return {name: Sample(tuple(seconds)) for name, seconds in found.items()}


def blocking(work: Callable[[], object]) -> Attempt:
    """An attempt out of a function that blocks."""

    async def attempt() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return attempt


def awaited(work: Callable[[], Awaitable[object]]) -> Attempt:
    """An attempt out of a coroutine function."""

    async def attempt() -> float:
        started = time.perf_counter()
        await work()
        return time.perf_counter() - started

    return attempt
