"""Loops for tests: opened over either transport, used without `async`."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from executor.catalog import Catalog, load
from executor.controller import Controller
from executor.lane import OpenBox, Opener
from executor.loop import Loop
from executor.model import Call, Event, Limits, LoopSpec, Result
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import LoopThread
from tests.local_box import open_local_box


def opener(kind: str, directory: Path) -> Opener:
    """Opens boxes of the transport, each with a scratch directory of its own."""
    numbers = itertools.count()

    @asynccontextmanager
    async def local(spec: LoopSpec) -> AsyncIterator[OpenBox]:
        scratch = directory / f"scratch{next(numbers)}"
        scratch.mkdir()
        async with open_local_box(Path(spec.worktree), scratch) as box:
            yield box

    @asynccontextmanager
    async def docker(spec: LoopSpec) -> AsyncIterator[OpenBox]:
        async with open_docker_box(spec, directory / "state") as box:
            yield box

    return local if kind == "local" else docker


@dataclass
class Work:
    """An open loop.

    Attributes:
        loop: it.
        root: its worktree on this machine.
        kind: `local` or `docker`.
        opened: the boxes that were opened for it, in order.
    """

    thread: LoopThread
    loop: Loop
    root: Path
    kind: str
    opened: list[OpenBox] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def call(self, name: str, /, **given: Any) -> Result:
        """The result of one call."""
        return self.thread.run(self.loop.execute(self.make(name, given)))

    def make(self, name: str, given: dict[str, Any]) -> Call:
        """A call with an id of its own."""
        return Call(f"call{next(self.numbers)}", name, given)

    def turn(self, *calls: tuple[str, dict[str, Any]]) -> list[Result]:
        """The results of one turn."""
        made = [self.make(name, given) for name, given in calls]
        return self.thread.run(self.loop.turn(made))

    def events(self, *calls: tuple[str, dict[str, Any]]) -> list[Event]:
        """What a turn told."""
        made = [self.make(name, given) for name, given in calls]

        async def collect() -> list[Event]:
            return [event async for event in self.loop.stream(made)]

        return self.thread.run(collect())

    def write(self, name: str, data: bytes | str) -> Path:
        """A file of the worktree's owner, made from outside."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        owner = self.root.stat()
        while path != self.root:
            os.chown(path, owner.st_uid, owner.st_gid)
            path = path.parent
        return self.root / name


def noted(work: list[OpenBox], inner: Opener) -> Opener:
    """The same opener, which notes every box that it opened."""

    @asynccontextmanager
    async def open_noted(spec: LoopSpec) -> AsyncIterator[OpenBox]:
        async with inner(spec) as box:
            work.append(box)
            yield box

    return open_noted


@contextmanager
def open_work(
    kind: str,
    directory: Path,
    limits: Limits = LIMITS,
    change: Callable[[LoopSpec], LoopSpec] = lambda spec: spec,
    catalog: Catalog | None = None,
    **company: Any,
) -> Iterator[Work]:
    """A loop over `directory/worktree`; gone at the end.

    Args:
        kind: `local` or `docker`.
        directory: for the worktree and all else.
        limits: of the loop.
        change: makes another specification of the usual one.
        catalog: None = the packaged one.
        company: more for the controller: tools, hooks, approver.
    """
    root = make_worktree(directory / "worktree")
    spec = change(LoopSpec(worktree=root, limits=limits, exec_id="test"))
    opened: list[OpenBox] = []
    with LoopThread() as thread:
        controller = thread.enter(
            Controller(
                replace(Settings.load(), state_directory=directory / "state"),
                catalog if catalog is not None else load(),
                opener=noted(opened, opener(kind, directory)),
                **company,
            )
        )
        loop = thread.enter(controller.open(spec))
        yield Work(thread, loop, root, kind, opened)
