"""The loop of a client's session: opened beside its first messages, kept until its last one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from executor.errors import SandboxError
from executor.loop import Loop

AGAIN_SECONDS = 3.0
"""After which a box that could not be had is tried again, for whoever asks then."""

Keep: TypeAlias = Callable[[asyncio.Future[Loop], asyncio.Event], Coroutine[Any, Any, None]]
"""Opens a loop, gives it to the future, and closes it once the event is set."""


class KeptLoop:
    """A loop that is there when it is asked for.

    Args:
        keep: opens and closes it.
    """

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._opened: asyncio.Future[Loop] = asyncio.get_running_loop().create_future()
        self._end = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._failed_at = 0.0

    @property
    def is_begun(self) -> bool:
        """Somebody has asked for it."""
        return self._keeping is not None

    def begin(self) -> None:
        """Open it, if nobody has begun to, or closed it, beside all else.

        What stood in the way of a box may be gone a while later: then it is begun once more.
        """
        if self._end.is_set() or not (self._keeping is None or self._may_be_had_now()):
            return
        if self._keeping is not None:
            self._opened = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(self._opened, self._end))
        self._keeping.add_done_callback(self._over)

    def _may_be_had_now(self) -> bool:
        if not self._opened.done() or not isinstance(self._opened.exception(), SandboxError):
            return False
        return asyncio.get_running_loop().time() - self._failed_at >= AGAIN_SECONDS

    def _over(self, keeping: asyncio.Task[None]) -> None:
        error = None if keeping.cancelled() else keeping.exception()
        if error is not None and not self._opened.done():
            self._failed_at = asyncio.get_running_loop().time()
            self._opened.set_exception(error)
            self._opened.exception()  # retrieved here: the client may ask for nothing

    async def opened(self) -> Loop:
        """It, once it is open.

        Raises:
            ConfigError: the specification is wrong.
            SandboxError: no box could be had.
        """
        self.begin()
        return await asyncio.shield(self._opened)

    async def close(self) -> Exception | None:
        """Close it, however far it has come; what went wrong with it, if anything did."""
        self._end.set()
        if self._keeping is None:
            return None
        if not self._opened.done():
            self._keeping.cancel()  # nobody waits for it any more
        await asyncio.wait({self._keeping})
        if self._keeping.cancelled():
            return None
        failure = self._keeping.exception()
        assert failure is None or isinstance(failure, Exception)
        return failure

    async def __aenter__(self) -> KeptLoop:
        """Begins to open it."""
        self.begin()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Closes it.

        Raises:
            ConfigError: it could not be opened.
            SandboxError: likewise, or not all that it made came back.
        """
        failure = await self.close()
        if failure is None:
            return
        if error is None:
            raise failure
        if self._opened.exception() is None:
            error.add_note(str(failure))
