"""Clean-up that is done to its end, however often its caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_completion(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work; a cancellation is passed on only after the work has ended.

    The work itself has to be bounded: nothing ends it from here.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is None:
        return task.result()
    failure = None if task.cancelled() else task.exception()
    raise cancellation from failure
