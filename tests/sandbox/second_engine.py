"""A second Docker engine beside the machine's, for tests that kill or restart an engine.

It has its own data, state, pid file and network, and a `dockerd` of its own that ends with
the thread that started it. Needs root.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from executor.sandbox import images
from executor.sandbox.engine import Engine
from executor.sandbox.recipes import load_recipe
from executor.sandbox.runtime import python_reference
from executor.settings import Settings

PATIENCE = 60.0
"""Seconds in which an engine must have come up or ended."""
_POLL = 0.05


class SecondEngine:
    """One engine: data that outlives its process, and a process that can be ended.

    Attributes:
        address: of its socket, as `DOCKER_HOST` takes it.
        directory: everything that is its own.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "docker.sock"
        self.address = f"unix://{self.socket}"
        self._configuration = directory / "daemon.json"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> Settings:
        """How it is reached; the state directory is one of its own."""
        return Settings(docker_host=self.address, state_directory=self.directory / "state")

    def configure(self, **configuration: Any) -> None:
        """What `daemon.json` says from the next start on, with `_` for `-`."""
        options = {name.replace("_", "-"): value for name, value in configuration.items()}
        self._configuration.write_text(json.dumps(options))

    def start(self) -> None:
        """Starts `dockerd` and waits until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.directory / "log").read_text("utf-8", "replace")[-2000:]
                raise RuntimeError(f"the second engine did not come up: {said}")
            time.sleep(_POLL)

    def _command(self) -> list[str]:
        own = self.directory
        return [
            # It must not outlive the tests, however they end.
            *("setpriv", "--pdeathsig", "TERM"),
            # Two engines would fight over one set of firewall rules.
            *("unshare", "--net"),
            *("dockerd", "--host", self.address, "--config-file", str(self._configuration)),
            *("--data-root", str(own / "data"), "--exec-root", str(own / "exec")),
            *("--pidfile", str(own / "pid"), "--bridge", "none", "--iptables=false"),
        ]

    def _answers(self) -> bool:
        return self.docker("version", check=False).returncode == 0

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        """Runs Docker's command line against this engine."""
        return subprocess.run(
            ["docker", "--host", self.address, *arguments],
            capture_output=True,
            check=check,
            timeout=PATIENCE,
        )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends `dockerd` by a signal; with live-restore its containers go on."""
        assert self._process is not None, "it is started first"
        self._process.send_signal(number)
        self._process.wait(PATIENCE)

    def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it by a signal and starts it again."""
        self.kill(number)
        self.start()

    def close(self) -> None:
        """Ends it with all its containers, and takes away what it mounted and wrote."""
        if self._process is not None and self._process.poll() is None:
            listed = self.docker("ps", "--all", "--quiet", check=False).stdout.decode().split()
            with suppress(subprocess.SubprocessError):
                self.docker("rm", "--force", "--volumes", *listed, check=False)
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._end_processes()
        for mount in reversed(_mounts_below(self.directory)):
            subprocess.run(["umount", "--lazy", mount], check=False, timeout=PATIENCE)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end_processes(self) -> None:
        """Shims, and what their containers run: both outlive a `dockerd` that was killed."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                own = words[0].startswith((b"dockerd", b"containerd", b"/usr/bin/containerd-shim"))
                if own and any(os.fsencode(self.directory) in word for word in words):
                    os.kill(int(entry.name), signal.SIGKILL)


def _mounts_below(directory: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines]
    return [point for point in points if Path(point).is_relative_to(directory)]


def missing() -> str | None:
    """Why there can be no second engine here; None when there can be one."""
    if os.geteuid() != 0:
        return "a second engine needs root"
    for program in ("dockerd", "docker", "unshare", "setpriv"):
        if shutil.which(program) is None:
            return f"a second engine needs {program}"
    return None


@contextmanager
def second_engine(
    kind: type[SecondEngine] = SecondEngine, *, is_filled: bool = True, **configuration: Any
) -> Iterator[SecondEngine]:
    """A running engine, gone at the end; skips the test where there can be none.

    Args:
        kind: how it is started.
        is_filled: it has the base image and the runtime volume of the machine's engine.
        configuration: of `daemon.json`, with `_` for `-`.
    """
    if reason := missing():
        pytest.skip(reason)
    # Sockets have short names.
    directory = Path(tempfile.mkdtemp(prefix="engine-", dir="/tmp"))
    engine = kind(directory)
    engine.configure(**configuration)
    try:
        engine.start()
        if is_filled:
            fill(engine)
        yield engine
    finally:
        engine.close()


def fill(engine: SecondEngine) -> None:
    """Carries base image and Python over from the machine's engine; fills the volume."""

    async def names() -> list[str]:
        async with await Engine.connect(Settings.load()) as first:
            await images.ensure_runtime(first)
            base = await images.ensure_image(first, "base")
            reference = load_recipe("base").reference
            return [reference, python_reference(base)]

    async def complete() -> None:
        async with await Engine.connect(engine.settings) as second:
            await images.ensure_runtime(second)

    save = subprocess.Popen(["docker", "save", *asyncio.run(names())], stdout=subprocess.PIPE)
    with save:
        subprocess.run(
            ["docker", "--host", engine.address, "load"],
            stdin=save.stdout,
            capture_output=True,
            check=True,
            timeout=5 * PATIENCE,
        )
    assert save.returncode == 0, "docker save failed"
    asyncio.run(complete())
