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
    contestants: Mapping[str, Attempt], rounds: int, ticks: Ticks, warm: int = 3, block: int = 1
) -> dict[str, Sample]:
    """Contestants in turns of `block` attempts, each round begun by another one.

    An agent's calls follow one another. Where a turn is more than one attempt, a first one
    that does not count takes the caches over from the contestant before.

    Args:
        contestants: by name.
        rounds: how many attempts of each count; a multiple of `block`.
        ticks: shows progress.
        warm: attempts before that do not count.
        block: attempts a turn.
    """
    names = list(contestants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        for _ in range(warm):
            await contestants[name]()
    for number in range(max(rounds // block, 1)):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if block > 1:
                await contestants[name]()
            found[name] += [await contestants[name]() for _ in range(block)]
        ticks((number + 1) * block, rounds)
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
