"""One box from its first engine call to the proof that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.errors import AgentLost, EngineError, SandboxError, SandboxUnavailable
from executor.model import MOUNT, LoopSpec
from executor.sandbox import container, images, inspection, ownership
from executor.sandbox.completion import to_completion
from executor.sandbox.connection import Answer, Connection, OnOutput
from executor.sandbox.engine import Engine
from executor.sandbox.environment import command_environment
from executor.sandbox.reaper import Identity
from executor.sandbox.runtime import silent
from executor.sandbox.stream import AttachedStream

START_TIMEOUT = 60.0
"""Seconds from the container's start to the agent's READY. Images are there before."""
LEASE = 30.0
"""Seconds without a ping after which the agent ends its box."""
INSPECT_TIMEOUT = 3.0
"""Seconds that may go into finding out why a box was lost."""
DAY = 86400.0
SCRATCH = "/run/executor"


@dataclass(frozen=True, slots=True)
class Host:
    """What boxes are opened with: the engine, whose they are, where state is kept.

    Attributes:
        progress: told about progress when an image or the runtime has to be built.
    """

    engine: Engine
    identity: Identity
    progress: images.Progress = silent


class Sandbox:
    """An open box. Made by `open_box`.

    Attributes:
        id: the container's id.
        name: the container's name.
        lane: the kind of box.
        capabilities: what isolation is really there, for a person and for a program.
        had_memory_kill: a command of it was ended for memory.
    """

    lane = "no-net"

    def __init__(
        self, id: str, name: str, connection: Connection, capabilities: dict[str, Any]
    ) -> None:
        self.had_memory_kill = False
        self.id = id
        self.name = name
        self.capabilities = capabilities
        self._connection = connection

    @property
    def error(self) -> SandboxError | None:
        """Why the box is lost; None while it lives."""
        return self._connection.error

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Answer:
        """Have one operation of the agent done; see `Connection.request`."""
        answer = await self._connection.request(
            op,
            arguments,
            body,
            timeout=timeout,
            grace=float(arguments.get("grace", 0.0)),
            on_output=on_output,
        )
        if answer.value.get("oom") is True:
            self.had_memory_kill = True
        return answer


@contextlib.asynccontextmanager
async def open_box(host: Host, spec: LoopSpec) -> AsyncIterator[Sandbox]:
    """A box for the loop, and its removal whatever happens meanwhile.

    Raises:
        ConfigError: the worktree, the image or the limits can't be used.
        ImageNotFound: the image is not on the engine.
        SandboxUnavailable: the box could not be started, or is not what was asked for.
    """
    async with contextlib.AsyncExitStack() as stack:
        opening = _Opening(host, spec)
        stack.push_async_callback(opening.close_surely)
        try:
            sandbox = await opening.open()
        except NotStarted:
            # A runtime volume whose filling was cut short looks whole from outside.
            await opening.close_surely()
            opening = _Opening(host, spec, is_repair=True)
            stack.push_async_callback(opening.close_surely)
            sandbox = await opening.open()
        yield sandbox


class NotStarted(SandboxUnavailable):
    """The container was made, but its agent did not come up."""


class _Opening:
    """The steps of opening one box; `close` undoes whatever was done so far."""

    def __init__(self, host: Host, spec: LoopSpec, *, is_repair: bool = False) -> None:
        self.is_repair = is_repair
        self.engine = host.engine
        self.identity = host.identity
        self.progress = host.progress
        self.spec = spec
        nonce = secrets.token_hex(4)
        self.name = f"executor-{spec.exec_id}-{nonce}"
        self.nonce = nonce
        self.files_name = f"{spec.exec_id}-{nonce}"
        self.id: str | None = None
        self.worktree: ownership.Worktree | None = None
        self.connection: Connection | None = None
        self.mourning: asyncio.Task[None] | None = None
        self.is_closing = False
        self.sandbox: Sandbox | None = None

    # ── open ──

    async def open(self) -> Sandbox:
        """Create, attach, start, meet the agent."""
        facts = self.engine.facts
        forbidden = [self.identity.state]
        if facts.root_directory:
            forbidden.append(Path(facts.root_directory))
        if facts.is_local:
            forbidden.append(Path(facts.address.removeprefix("unix://")))
        self.worktree = ownership.open_worktree(self.spec.worktree, forbidden)
        owner = ownership.owner_of(self.worktree, self.spec.uid)
        image_id, runtime = await asyncio.gather(
            images.ensure_image(self.engine, self.spec.image, self.progress),
            images.ensure_runtime(self.engine, self.progress, repair=self.is_repair),
        )
        image = container.Image.of(await self.engine.inspect_image(image_id) or {})
        request = container.create_request(self._plan(owner, image, runtime.volume))
        warnings: list[str] = []
        self.id = await self.engine.create(self.name, request, warnings.append)
        if faults := inspection.warning_faults(warnings):
            raise inspection.PolicyMismatch(faults)
        self.worktree.check()
        connection = self.connection = Connection(runtime.hash, self._on_lost)
        raw, made = await asyncio.gather(self.engine.attach(self.id), self.engine.inspect(self.id))
        await AttachedStream.over(raw, connection)
        inspection.check_read_back(request, made)
        await self._start(connection)
        self.worktree.check()
        try:
            await connection.hello(self._settings(owner, image), START_TIMEOUT)
        except AgentLost as error:
            raise NotStarted(f"The box did not come up: {error}") from error
        capabilities = self._capabilities(owner, warnings)
        self.sandbox = Sandbox(self.id, self.name, connection, capabilities)
        return self.sandbox

    def _plan(self, owner: container.Owner, image: container.Image, volume: str) -> container.Plan:
        assert self.worktree is not None, "the worktree is opened first"
        directory = self.identity.files_directory(self.files_name)
        lifetime = (self.spec.limits.max_seconds or DAY) + START_TIMEOUT + LEASE
        return container.Plan(
            spec=self.spec,
            worktree=self.worktree.path,
            owner=owner,
            image=image,
            runtime_volume=volume,
            files=ownership.write_files(directory, owner, self.worktree.git),
            labels=self.identity.labels(str(self.spec.exec_id), self.spec.tenant, lifetime),
            facts=self.engine.facts,
            ceilings=ownership.ceilings(),
        )

    async def _start(self, connection: Connection) -> None:
        assert self.id is not None, "the container is created first"
        try:
            await self.engine.start(self.id)
        except EngineError as error:
            said = connection.stderr.decode("utf-8", "replace").strip()
            raise NotStarted(
                f"The box could not be started: {error}" + (f" ({said[-500:]})" if said else "")
            ) from error

    def _settings(self, owner: container.Owner, image: container.Image) -> dict[str, Any]:
        """What the agent is told in HELLO."""
        user = ownership.user_name(owner)
        return {
            "lease": LEASE,
            "root": MOUNT,
            "scratch": SCRATCH,
            "box": self.nonce,
            "environment": command_environment(self.spec, user, image.environment),
        }

    def _capabilities(self, owner: container.Owner, warnings: list[str]) -> dict[str, Any]:
        assert self.worktree is not None, "the worktree is opened first"
        facts = self.engine.facts
        limits = self.spec.limits
        return {
            "engine": f"{facts.name} {facts.version}",
            "runtime": self.spec.runtime or facts.default_runtime,
            "cgroup": facts.cgroup_version,
            "user": str(owner),
            "network": "none",
            "memory": limits.memory_bytes,
            "swap": 0,
            "cpus": min(limits.cpus, facts.cpus),
            "pids": limits.pids,
            "seccomp": "engine default" if "seccomp" in facts.security else "none",
            "git": "none",
            "notices": [*ownership.notices(self.worktree, owner), *warnings],
        }

    # ── loss and close ──

    def _on_lost(self, error: SandboxError) -> None:
        self.mourning = asyncio.ensure_future(self._mourn(error))

    async def _mourn(self, error: SandboxError) -> None:
        """Find the cause, make sure that the box ends, and tell everyone who waits."""
        assert self.connection is not None, "only a connection can be lost"
        if self.is_closing:
            self.connection.fail_waiting(error)
            return
        if self.id is not None and isinstance(error, AgentLost):
            with contextlib.suppress(TimeoutError, EngineError):
                async with asyncio.timeout(INSPECT_TIMEOUT):
                    error = AgentLost(await self._cause(str(error)))
        self.connection.fail_waiting(error)
        if self.id is not None:
            with contextlib.suppress(EngineError):
                await self.engine.kill(self.id)

    async def _cause(self, reason: str) -> str:
        """The engine's view of a box whose stream ended."""
        assert self.id is not None and self.connection is not None, "there is a container"
        try:
            state = (await self.engine.inspect(self.id)).get("State") or {}
        except EngineError:
            return f"the box is gone from the engine: removed by another hand ({reason})"
        said = self.connection.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
        facts = []
        if state.get("OOMKilled"):
            # The engine never takes this back: a command that was killed for it is enough.
            before = self.sandbox is not None and self.sandbox.had_memory_kill
            facts.append("memory ran out in it before" if before else "it ran out of memory")
        if state.get("Paused"):
            facts.append("it is paused")
        if state.get("Status") in ("exited", "dead"):
            facts.append(f"it ended with code {state.get('ExitCode')}")
        if state.get("Error"):
            facts.append(str(state["Error"])[:300])
        if said:
            facts.append("last words: " + " / ".join(said)[-500:])
        return reason + (f" ({'; '.join(facts)})" if facts else "")

    async def close_surely(self) -> None:
        """`close`, to its end, however often the caller is cancelled meanwhile."""
        await to_completion(self.close())

    async def close(self) -> None:
        """Undo everything; the box and its generated files are gone after this."""
        self.is_closing = True
        if self.connection is not None:
            self.connection.close()
        if self.mourning is not None:
            await asyncio.wait({self.mourning})
        try:
            if self.id is not None:
                await self.engine.remove(self.id)
            self.identity.discard_files(self.files_name)
        finally:
            if self.worktree is not None:
                self.worktree.close()
