"""What the benchmarks share: temporary worktrees, the engine beside us, the open controller."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from benchmarks.timing import Ticks
from executor import Call, Controller, Limits, LoopSpec
from executor.loop import Loop
from executor.model import Result

PLAIN_UID = 1000


class NotRun(Exception):
    """A benchmark could not be run; says why."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a benchmark is given.

    Attributes:
        controller: open.
        engine: the Docker SDK's client, for what is compared with and for looking.
        image: id of the image that boxes are made from.
        directory: temporary, for worktrees.
        share: part of the usual number of rounds; 1 = all.
        ticks: makes the progress of a benchmark's part visible.
    """

    controller: Controller
    engine: docker.DockerClient
    image: str
    directory: Path
    share: float
    ticks: Callable[[str], Ticks]

    def rounds(self, usual: int) -> int:
        """Rounds to be measured."""
        return max(int(usual * self.share), 3)

    def worktree(self, name: str) -> Path:
        """A new empty directory, owned by somebody who is not root."""
        path = self.directory / name
        path.mkdir()
        own(path)
        return path

    @contextlib.asynccontextmanager
    async def loop(self, worktree: Path, **limits: Any) -> AsyncIterator[Loop]:
        """An open loop."""
        spec = LoopSpec(
            worktree=worktree,
            limits=Limits(**limits),
            exec_id=f"bench-{secrets.token_hex(4)}",
        )
        async with self.controller.open(spec) as loop:
            yield loop

    def container(self, loop: Loop) -> Container:
        """The container of a loop, fresh from the engine."""
        label = f"executor.loop={loop.exec_id}"
        [found] = self.engine.containers.list(filters={"label": label})
        return found

    def agent_pid(self, loop: Loop) -> int:
        """Process 1 of the loop's box, as the host numbers it."""
        return int(self.container(loop).attrs["State"]["Pid"])

    @contextlib.contextmanager
    def idle_container(self) -> Iterator[Container]:
        """A plain container of the same image that sleeps: what `docker exec` is tried on."""
        container = self.engine.containers.run(
            self.image, ["sleep", "infinity"], detach=True, network_mode="none", init=True
        )
        try:
            yield container
        finally:
            container.remove(force=True)

    @contextlib.contextmanager
    def attached_container(self, *command: str) -> Iterator[socket.socket]:
        """The attach stream of a plain container that runs this, without anything of ours."""
        api = self.engine.api
        created = api.create_container(
            self.image,
            list(command),
            stdin_open=True,
            host_config=api.create_host_config(network_mode="none"),
        )
        try:
            asked = {"stdin": 1, "stdout": 1, "stream": 1}
            wrapped = api.attach_socket(created["Id"], params=asked)
            stream: socket.socket = wrapped._sock
            api.start(created["Id"])
            with stream:
                yield stream
        finally:
            api.remove_container(created["Id"], force=True)


def own(path: Path) -> None:
    """Give a path to the plain user, where root runs the benchmarks."""
    if os.geteuid() == 0:
        os.chown(path, PLAIN_UID, PLAIN_UID)


async def ask(loop: Loop, name: str, **given: Any) -> Result:
    """One call that has to succeed.

    Raises:
        NotRun: it failed.
    """
    result = await loop.execute(Call(secrets.token_hex(4), name, given))
    if result.is_error:
        raise NotRun(f"{name}: {str(result.content)[:300]}")
    return result


def docker_cli() -> str:
    """The `docker` program.

    Raises:
        NotRun: there is none.
    """
    found = shutil.which("docker")
    if found is None:
        raise NotRun("there is no docker program on this machine to compare with")
    return found


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A directory for worktrees; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="executor-bench-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
