"""Functions of the host's that decide something: bounded, and not believed to be well-behaved.

They may never end, ignore that they are cancelled, cancel themselves, or hand out what is no
JSON. None of that may hold up a loop, the end of the program, or be taken for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, NoReturn, TypeAlias, TypeVar

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds that something cancelled may take to end; after that it is left to itself."""
MOST_IDLE = 8
"""Threads that are kept for the next calls."""


class TooLate(Exception):
    """There was no answer in time."""


class Unusable(Exception):
    """What was answered is none; the text says why."""


async def called(function: Callable[..., Any], argument: Any) -> Any:
    """The result of a function, async or not; one that is not is called in a thread.

    The thread is a daemon, and no other's while it works: one that never ends takes no place of
    others, and the program ends without it.
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

    def work() -> Callable[[], None]:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = context.run(function, argument)
        except BaseException as error:
            # No future can hold a StopIteration.
            is_kept = not isinstance(error, StopIteration)
            failure = error if is_kept else RuntimeError(f"it raised {error!r}")

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, failure)

        return tell

    _put_to_work(work)
    return await answer


_Work: TypeAlias = Callable[[], Callable[[], None]]
"""What a thread does; what it returns tells of it, once the thread is free again."""
_IDLE: list[SimpleQueue[_Work]] = []
"""How threads that have ended their work get more: a start would cost more than most of it."""
os.register_at_fork(after_in_child=_IDLE.clear)


def _put_to_work(work: _Work) -> None:
    try:
        queue = _IDLE.pop()
    except IndexError:
        queue = SimpleQueue()
        threading.Thread(target=_serve, args=(queue,), name="callable", daemon=True).start()
    queue.put(work)


def _serve(queue: SimpleQueue[_Work]) -> None:
    is_idle = True
    while is_idle:
        tell = queue.get()()
        is_idle = len(_IDLE) < MOST_IDLE
        if is_idle:
            _IDLE.append(queue)
        tell()
        del tell  # it holds the result


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
            task.add_done_callback(forget)
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE)
    if is_late:
        raise TooLate
    if task.cancelled():
        raise Unusable("it cancelled itself")
    return task.result()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def forget(task: asyncio.Future[Any]) -> None:
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
