"""F: connections that a real box opens, when nobody reads them and when the box is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from executor.agent.frame import MAX_CONNECTIONS, WINDOW
from executor.bytestream import StreamClosed
from executor.errors import SandboxError
from executor.model import LoopSpec
from executor.sandbox.box import Host, Sandbox, open_box
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import Identity
from executor.settings import Settings
from tests.conftest import make_worktree
from tests.driver import Box, LoopThread, wait_until
from tests.security.probes import probe

MIB = 1 << 20
FILL = f"""
import select, socket, time
ends, sent = [], {{}}
for number in range({MAX_CONNECTIONS + 40}):
    one = socket.create_connection(("127.0.0.1", 3128), timeout=20)
    one.setblocking(False)
    ends.append(one)
    sent[one] = 0
data = b"x" * 65536
last = time.monotonic()
while time.monotonic() - last < 3:  # far longer than the watch over sockets needs to be sure
    for one in select.select([], ends, [], 0.5)[1]:
        try:
            sent[one] += one.send(data)
            last = time.monotonic()
        except BlockingIOError:
            pass
tell(sum(sent.values()))
"""
"""Sends over more connections than are carried until nothing has been taken for three seconds."""


class Stalled:
    """Serves connections by never reading; tells how each ended."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.ended: list[Any] = []

    async def serve(self, stream: Any, name: str) -> None:
        """One connection."""
        self.streams.append(stream)
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            self.ended.append(type(error))
            raise


@asynccontextmanager
async def opened(
    runtime: str, directory: Path, stalled: Stalled
) -> AsyncIterator[tuple[Engine, Sandbox]]:
    """A box of the usual limits whose proxy is served so."""
    spec = LoopSpec(
        make_worktree(directory / "worktree"), exec_id="filling", runtime=runtime, quota="none"
    )
    (directory / "state").mkdir()
    async with await Engine.connect(Settings.load()) as engine:
        with Identity.claim(directory / "state") as identity:
            host = Host(engine, identity, lane="net", serve=stalled.serve)
            async with open_box(host, spec) as sandbox:
                yield engine, sandbox


@pytest.mark.statement("F11", "J5")
def test_a_box_that_fills_its_connections_is_bounded_and_dies_clean(
    runtime: str, tmp_path: Path
) -> None:
    """Its commands live on, the host keeps a window for each; the box's end is everybody's."""
    stalled = Stalled()
    with LoopThread() as thread:
        engine, sandbox = thread.enter(opened(runtime, tmp_path, stalled))
        box = Box(thread, sandbox, tmp_path / "worktree", "docker")
        innocent = box.start("sleep 1000", 1100)
        sent = probe(box, FILL, timeout=100)
        assert len(stalled.streams) == MAX_CONNECTIONS
        assert sandbox.error is None
        assert not innocent.done()
        held = [len(stream._buffer) for stream in stalled.streams]
        print(f"{sent / MIB:.0f} MiB were sent, the host holds {sum(held) / MIB:.0f}")
        assert max(held) <= WINDOW
        assert sent > sum(held) > MIB

        assert not stalled.ended  # what was sent is still on its way to those who do not read
        thread.run(engine.kill(sandbox.id))
        with pytest.raises(SandboxError):
            innocent.result(60)
        wait_until(lambda: len(stalled.ended) == len(stalled.streams), what="the end of all")
        with pytest.raises(StreamClosed, match="the box is lost"):
            thread.run(stalled.streams[-1].read())
