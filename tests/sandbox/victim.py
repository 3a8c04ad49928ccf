"""A controller in a process of its own, for tests that stop it or kill it anywhere.

Processes come from a fork server that has everything imported: there are many of them.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from executor.catalog import load
from executor.controller import Controller
from executor.model import Call, Limits, LoopSpec, Result
from executor.sandbox import box
from executor.settings import Settings

LIMITS = Limits(memory="256m", cpus=1, pids=64)
KEPT = {"kept.txt": "kept\n", "made.txt": "made\n", "ran.txt": "ran\n"}
"""What is in the worktree when the life is over: there before, by a tool, by a command."""

_context = multiprocessing.get_context("forkserver")


def context() -> ForkServerContext:
    """Makes processes that have the controller imported."""
    _context.set_forkserver_preload([__name__, "docker", "tenacity", "requests"])
    return _context


def live(settings: Settings, spec: LoopSpec, marker: int) -> None:
    """A whole life: open, write, run, leave something running, close.

    Args:
        settings: of the controller.
        spec: of its loop.
        marker: seconds that a background process sleeps; it is found by them.
    """
    _be_quiet()
    # An engine that was cut off under it is no fault of the test.
    with suppress(Exception):
        asyncio.run(life(settings, spec, marker))


async def life(settings: Settings, spec: LoopSpec, marker: int) -> None:
    """What `live` does."""
    async with Controller(settings, load()) as controller:
        async with controller.open(spec) as loop:
            call = {"path": "made.txt", "content": "made\n"}
            await loop.execute(Call("1", "write_file", call))
            command = f"setsid sleep {marker} > /dev/null 2>&1 & echo ran > ran.txt"
            await loop.execute(Call("2", "run_command", {"command": command}))


def serve(settings: Settings, spec: LoopSpec, lease: float, pipe: Any) -> None:
    """A loop that makes the calls that come through the pipe, and answers with the results.

    Args:
        settings: of the controller.
        spec: of its loop.
        lease: of its boxes, in seconds.
        pipe: takes (name, input), gives results; None ends the loop.
    """
    _be_quiet()
    box.LEASE = lease

    async def main() -> None:
        loop_ = asyncio.get_running_loop()
        async with Controller(settings, load()) as controller:
            async with controller.open(spec) as loop:
                pipe.send(loop.exec_id)
                while (given := await loop_.run_in_executor(None, pipe.recv)) is not None:
                    pipe.send(await loop.execute(Call("1", *given)))

    asyncio.run(main())


def _be_quiet() -> None:
    """What is logged by a process that is to be killed is nobody's concern."""
    logging.disable()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)


class Served:
    """A controller process that is given calls.

    Attributes:
        process: it.
    """

    def __init__(self, process: ForkServerProcess, pipe: Any) -> None:
        self.process = process
        self._pipe = pipe

    def begin(self, name: str, **given: Any) -> None:
        """A call that is not waited for."""
        self._pipe.send((name, given))

    def result(self, timeout: float = 60) -> Result:
        """What it came to."""
        assert self._pipe.poll(timeout), "no result came"
        result = self._pipe.recv()
        assert isinstance(result, Result)
        return result

    def call(self, name: str, **given: Any) -> Result:
        """A call's result."""
        self.begin(name, **given)
        return self.result()

    def end(self) -> None:
        """Let it close its loop."""
        self._pipe.send(None)
        self.process.join(60)


@contextmanager
def served(settings: Settings, spec: LoopSpec, lease: float = 30.0) -> Iterator[Served]:
    """An open loop in a process of its own; killed at the end if it still lives."""
    near, far = context().Pipe()
    process = context().Process(target=serve, args=(settings, spec, lease, far))
    process.start()
    far.close()
    try:
        assert near.poll(60), "the loop did not open"
        near.recv()
        yield Served(process, near)
    finally:
        process.kill()
        process.join(30)


def worktree_files(root: Path) -> dict[str, str]:
    """Name → content of everything in a worktree without directories."""
    return {path.name: path.read_text() for path in root.iterdir()}
