"""The test image `servers`: real servers of languages and of MCP, for a loop's `--image`."""

from __future__ import annotations

import asyncio
import fcntl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from executor.sandbox.engine import Engine
from executor.sandbox.rootfs import NO_BOOTSTRAPPER, bootstrapper
from executor.settings import Settings
from tests.security.images import build

_LOCK = Path(tempfile.gettempdir()) / "executor-test-images.lock"
_LOCK_SECONDS = 900.0


@pytest.fixture(scope="session")
def servers_image(request: pytest.FixtureRequest) -> str:
    """The image's reference on the engine; made when it is missing, by one process at a time."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")

    def tell(line: str) -> None:
        if reporter is not None:
            reporter.write_line(line)

    if bootstrapper() is None:
        pytest.skip(NO_BOOTSTRAPPER)
    with _alone():
        return asyncio.run(_ensured(tell))


async def _ensured(tell: build.Tell) -> str:
    async with await Engine.connect(Settings.load()) as engine:
        return await build.ensure(engine, "servers", tell)


@contextmanager
def _alone() -> Iterator[None]:
    """Holds a lock that the kernel frees when its process ends."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with _LOCK.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, f"{_LOCK} is held by another process"
                time.sleep(0.2)
        yield
