"""Clean-up that is done to its end, however often its caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_completion(
    work: Coroutine[Any, Any, T], on_cancel: Callable[[], object] = lambda: None
) -> T:
    """The result of the work; a cancellation is passed on only after the work has ended.

    The work itself has to be bounded: nothing ends it from here.

    Args:
        work: it.
        on_cancel: called at each cancellation, for work that can be told to end soon.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
            on_cancel()
    if cancellation is None:
        return task.result()
    failure = None if task.cancelled() else task.exception()
    raise cancellation from failure
