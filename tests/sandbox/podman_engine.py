"""A Podman of its own for tests: its service, its storage, nothing of the machine's."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from executor.sandbox import images
from executor.sandbox.engine import Engine
from executor.sandbox.recipes import load_recipe
from executor.sandbox.runtime import python_reference
from executor.settings import Settings

PATIENCE = 120.0
"""Seconds that one step of Podman may take on a busy machine."""
_POLL = 0.1
_CONFIGURATION = '[engine]\nlock_type = "file"\n'
"""Locks in shared memory would be the machine's Podman's, too."""


class PodmanEngine:
    """Podman's service on a socket.

    Attributes:
        settings: how it is reached.
        directory: everything that is its own.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "podman.sock"
        self.settings = Settings(
            docker_host=f"unix://{self.socket}", state_directory=directory / "state"
        )
        (directory / "containers.conf").write_text(_CONFIGURATION)
        (directory / "tmp").mkdir()
        self._environment = {
            **os.environ,
            "CONTAINERS_CONF": str(directory / "containers.conf"),
            "TMPDIR": str(directory / "tmp"),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def _command(self, *arguments: str) -> list[str]:
        own = self.directory
        return [
            *("podman", "--root", str(own / "root"), "--runroot", str(own / "run")),
            *("--tmpdir", str(own / "libpod"), "--runtime", "runc"),
            # crun refuses control groups of both versions at once.
            *("--cgroup-manager", "cgroupfs", "--events-backend", "file"),
            *arguments,
        ]

    def start(self) -> None:
        """Starts the service and waits until it answers."""
        serve = self._command("system", "service", "--time=0", str(self.settings.docker_host))
        with (self.directory / "log").open("ab") as log:
            # It must not outlive the tests, however they end.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *serve],
                stdout=log,
                stderr=log,
                env=self._environment,
                # Its monitor leaves a file where it was started when memory runs out in a box.
                cwd=self.directory,
            )
        deadline = time.monotonic() + PATIENCE
        while not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.directory / "log").read_text("utf-8", "replace")[-2000:]
                raise RuntimeError(f"Podman did not come up: {said}")
            time.sleep(_POLL)

    def podman(self, *arguments: str, stdin: int | None = None) -> str:
        """Runs Podman's command line on the same storage; returns what it printed."""
        done = subprocess.run(
            self._command(*arguments),
            stdin=stdin,
            capture_output=True,
            check=True,
            timeout=PATIENCE,
            env=self._environment,
        )
        return done.stdout.decode()

    def fill(self) -> None:
        """Carries base image and Python over from the machine's engine; fills the volume."""
        save = subprocess.Popen(
            ["docker", "save", *asyncio.run(_references())], stdout=subprocess.PIPE
        )
        with save:
            assert save.stdout is not None
            self.podman("load", stdin=save.stdout.fileno())
        assert save.returncode == 0, "docker save failed"

        async def complete() -> None:
            async with await Engine.connect(self.settings) as engine:
                await images.ensure_runtime(engine)

        asyncio.run(complete())

    def close(self) -> None:
        """Ends it with all its containers, and takes away what it mounted and wrote."""
        with suppress(subprocess.SubprocessError):
            self.podman("rm", "--all", "--force", "--time", "0")
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            point = line.split()[4]
            if Path(point).is_relative_to(self.directory):
                subprocess.run(["umount", "--lazy", point], check=False, timeout=PATIENCE)
        shutil.rmtree(self.directory, ignore_errors=True)


async def _references() -> list[str]:
    async with await Engine.connect(Settings.load()) as engine:
        await images.ensure_runtime(engine)
        base = await images.ensure_image(engine, "base")
        return [load_recipe("base").reference, python_reference(base)]


def missing() -> str | None:
    """Why there can be no Podman here; None when there can be one."""
    if os.geteuid() != 0:
        return "a Podman of its own needs root: without it nothing limits its containers"
    for program in ("podman", "runc", "docker", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not installed; scripts/podman.sh installs Podman"
    return None


@contextmanager
def podman_engine() -> Iterator[PodmanEngine]:
    """A running Podman with our images, gone at the end; skips where there can be none."""
    if reason := missing():
        pytest.skip(reason)
    # Sockets have short names.
    engine = PodmanEngine(Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp")))
    try:
        engine.start()
        engine.fill()
        yield engine
    finally:
        engine.close()
