"""Servers that run on the host, by the user's own word."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executor.bytestream import StreamClosed
from executor.errors import Code, ToolError
from executor.foreign import hosted
from executor.served import MAX_STDERR, Program
from tests.driver import wait_until

OPENS_ONE = """
import asyncio, os, signal
from executor.foreign import hosted
from executor.served import Program

async def main():
    served = await hosted.start(Program(("sleep", "987")))
    print(served._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_it_ends_with_a_controller_that_is_killed() -> None:
    """A server of the host is gone when the executor was killed."""
    found = subprocess.run(
        [sys.executable, "-c", OPENS_ONE], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == -signal.SIGKILL, found.stderr
    place = Path(f"/proc/{int(found.stdout)}/stat")

    def is_gone() -> bool:
        try:
            return place.read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(is_gone, 10)


def test_its_group_ends_with_it_and_its_words_are_kept() -> None:
    """What it started in its group is killed, its exit code told, and the end of stderr kept."""

    async def run() -> None:
        script = "sleep 987 & echo $!; head -c 100000 /dev/zero | tr '\\0' x >&2; read line; exit 5"
        served = await hosted.start(Program(("sh", "-c", script)))
        child = int((await served.stream.read()).decode())
        await served.stream.write(b"go on\n")
        async with asyncio.timeout(10):
            while (await served.state()).is_running:
                await asyncio.sleep(0)
        state = await served.end()
        assert (state.is_running, state.exit_code) == (False, 5)
        assert state.stderr == b"x" * MAX_STDERR
        assert await served.end() == state
        with pytest.raises(StreamClosed):
            await served.stream.write(b"more")
        with pytest.raises(StreamClosed):
            await served.stream.read()
        wait_until(lambda: not _runs(child), 10)

    asyncio.run(run())


def test_one_that_ignores_signals_is_killed() -> None:
    """A server that does not end by itself is killed after its grace."""

    async def run() -> None:
        script = "trap '' TERM; echo on; while :; do sleep 1; done"
        served = await hosted.start(Program(("sh", "-c", script)))
        assert await served.stream.read() == b"on\n"
        state = await served.end(0.2)
        assert state.signal == "SIGKILL"

    asyncio.run(run())


def test_a_program_that_is_not_there_is_said() -> None:
    """A program that the host does not have is named."""
    with pytest.raises(ToolError, match="no-such-program") as caught:
        asyncio.run(hosted.start(Program(("no-such-program",))))
    assert caught.value.code is Code.NOT_FOUND


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
