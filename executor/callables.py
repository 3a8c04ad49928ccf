"""Functions of the host's that decide something: bounded, and not believed to be well-behaved.

They may never end, ignore that they are cancelled, cancel themselves, or hand out what is no
JSON. None of that may hold up a loop, the end of the program, or be taken for an answer.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds that something cancelled may take to end; after that it is left to itself."""


class TooLate(Exception):
    """There was no answer in time."""


class Unusable(Exception):
    """What was answered is none; the text says why."""


async def called(function: Callable[..., Any], argument: Any) -> Any:
    """The result of a function, async or not; one that is not is called in a thread.

    The thread is a daemon of its own: one that never ends takes no place of others, and the
    program ends without it.
    """
    if inspect.iscoroutinefunction(function):
        return await function(argument)
    result = await _in_thread(function, argument)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(function: Callable[..., Any], argument: Any) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(function, argument)
        except StopIteration as error:  # which no future can hold
            failure = RuntimeError(f"it raised {error!r}")
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=work, name="callable", daemon=True).start()
    return await answer


async def bounded(work: Awaitable[T], seconds: float) -> T:
    """The result of the work, if it comes in time.

    Args:
        work: it is cancelled when its time is over, or when whoever waits is cancelled.
        seconds: how long it may take.

    Raises:
        TooLate: it took longer.
        Unusable: it cancelled itself.
        Exception: whatever it raised.
    """
    task = asyncio.ensure_future(_awaited(work))
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        is_late = not task.done()
        if is_late:
            task.add_done_callback(_forget)
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE)
    if is_late:
        raise TooLate
    if task.cancelled():
        raise Unusable("it cancelled itself")
    return task.result()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _forget(task: asyncio.Future[Any]) -> None:
    """What it came to when nobody waited any more is nobody's fault."""
    if not task.cancelled():
        task.exception()


def is_cancelled() -> bool:
    """Whether somebody else has cancelled the task that runs; else it did so itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def own_json(value: Any) -> dict[str, Any]:
    """A copy of a JSON object that nobody else has a hand on.

    Raises:
        Unusable: it is no object, or holds what JSON can't.
    """
    if not isinstance(value, Mapping):
        raise Unusable(f"{type(value).__name__} where an object of arguments belongs")
    try:
        text = json.dumps(dict(value), allow_nan=False)
        copied: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise Unusable("arguments that are nested too deep") from None
    except Exception as error:  # whatever a mapping of the host's raises, too
        raise Unusable(f"arguments that are no JSON ({error!s:.200})") from None
    return copied


def refuse_constant(name: str) -> NoReturn:
    """For `json.loads`: NaN and infinities are no JSON.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is no JSON")
