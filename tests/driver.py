"""Boxes for tests that are written without `async`: a loop in a thread, and a shorthand."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from executor.sandbox.box import Sandbox
from executor.sandbox.connection import Answer

T = TypeVar("T")

ARGUMENTS = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
"""Shell words that list the arguments of every process; a bare machine has no `ps`."""


def wait_until(is_so: Callable[[], bool], seconds: float = 60, what: str = "it") -> None:
    """Until something is so that nothing tells of."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not come about within {seconds:g} s"
        time.sleep(0.02)


class LoopThread:
    """An event loop that runs for as long as the `with` lasts; everything on it is bounded."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.stack = AsyncExitStack()

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.stack.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float = 120) -> T:
        """The coroutine's result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter an async context; it is left when this ends."""
        return self.run(self.stack.enter_async_context(context))


@dataclass(frozen=True)
class Ran:
    """What a command came to."""

    value: dict[str, Any]
    out: bytes
    err: bytes

    @property
    def code(self) -> int | None:
        """Its exit code."""
        code = self.value["exit_code"]
        assert code is None or isinstance(code, int)
        return code


class Box:
    """An open sandbox.

    Attributes:
        root: the worktree on this machine.
        kind: `local` or `docker`.
    """

    def __init__(self, thread: LoopThread, sandbox: Sandbox, root: Path, kind: str) -> None:
        self.thread = thread
        self.sandbox = sandbox
        self.root = root
        self.kind = kind

    def request(self, op: str, arguments: dict[str, Any], body: bytes = b"") -> Answer:
        """One operation."""
        return self.thread.run(self.sandbox.request(op, arguments, body, timeout=60))

    def start(
        self, command: str | None, timeout: float | None = 30, **more: Any
    ) -> concurrent.futures.Future[Ran]:
        """A command that is not waited for."""
        return asyncio.run_coroutine_threadsafe(self._run(command, timeout, more), self.thread.loop)

    def run(self, command: str | None, timeout: float | None = 30, **more: Any) -> Ran:
        """A command's outcome."""
        return self.thread.run(self._run(command, timeout, more))

    async def _run(self, command: str | None, timeout: float | None, more: dict[str, Any]) -> Ran:
        body = more.pop("body", b"")
        on_output = more.pop("on_output", None)
        arguments: dict[str, Any] = {
            "command": command,
            "argv": None,
            "cwd": None,
            "environment": {},
            "timeout": timeout,
            "grace": 1.0,
            "merge": False,
            "head": 50_000,
            "tail": 50_000,
            "stream": on_output is not None,
            **more,
        }
        answer = await self.sandbox.request(
            "run", arguments, body, timeout=timeout, on_output=on_output
        )
        kept = answer.value["stdout"]
        border = kept["head"] + kept["tail"]
        return Ran(answer.value, answer.data[:border], answer.data[border:])
