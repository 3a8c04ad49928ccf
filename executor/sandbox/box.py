"""One box from its first engine call to the proof that it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from executor.audit import AuditLog
from executor.bytestream import ByteStream
from executor.catalog import Policy
from executor.errors import AgentLost, ConfigError, EngineError, SandboxError, SandboxUnavailable
from executor.model import LANE, MOUNT, PLANS, RESULTS, LoopSpec
from executor.sandbox import (
    allowance,
    bridge,
    capabilities,
    container,
    gate,
    images,
    inspection,
    ownership,
    podman,
    quota,
    seccomp,
    serving,
    targets,
)
from executor.sandbox.caches import PLACE, Caches
from executor.sandbox.certificates import read as read_certificates
from executor.sandbox.channels import DIAL_TIMEOUT, Accept
from executor.sandbox.completion import to_completion
from executor.sandbox.connection import Answer, Connection, OnOutput
from executor.sandbox.container import LABEL_CONTROLLER
from executor.sandbox.engine import Engine, NameTaken, status
from executor.sandbox.environment import PROXY_PORT, command_environment, environment_notices
from executor.sandbox.facts import EngineFacts
from executor.sandbox.quota import Quota
from executor.sandbox.reaper import Identity
from executor.sandbox.recipes import Recipes
from executor.sandbox.runtime import silent
from executor.sandbox.stream import AttachedStream
from executor.served import Program, Served

START_TIMEOUT = 60.0
"""Seconds from the container's start to the agent's READY. Images are there before."""
LEASE = 30.0
"""Seconds without a ping after which the agent ends its box."""
INSPECT_TIMEOUT = 3.0
"""Seconds that may go into finding out why a box was lost."""
STATE_PATIENCE = 1.0
"""Seconds of these that the engine has to notice the end of a box whose stream has ended."""
REMOVE_TIMEOUT = 30.0
"""Seconds that the engine has to remove a box; what takes longer is left to the sweep."""
KILL_TIMEOUT = 5.0
"""Seconds that are waited for the engine to kill a box."""
OURS = ("build.lock", PLACE, "git", "kept", "quota", "uids")
"""What of the state directory no worktree may be, contain or lie in."""
DAY = 86400.0
SCRATCH = "/run/executor"
GVISOR_NETWORK = "cannot run with network enabled in root network namespace"
"""What gVisor says on newer kernels, for whose network it takes every box's."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Host:
    """What boxes are opened with: the engine, whose they are, where state is kept.

    Attributes:
        progress: told about progress when an image or the runtime has to be built.
        policy: what engine and runtime have to offer.
        quota: the loop's, where several boxes of one loop share it; None = a box's own.
        results: the directory of the loop's long outputs; None = there is none.
        git: what the loop has of git; None = it is covered.
        git_settings: git's configuration in a box with a proxy, or without one, after the
            image's own.
        notices: what else a person should be told, one sentence each.
        network: `none`, or `bridge`, which is unprotected (see `sandbox.bridge`).
        lane: the kind of box.
        serve: serves the connections that programs in the box open to its proxy, given the
            box's name; None = the box has no proxy. It is cancelled when the box ends.
    """

    engine: Engine
    identity: Identity
    progress: images.Progress = silent
    policy: Policy = field(default_factory=Policy)
    quota: Quota | None = None
    results: Path | None = None
    git: container.GitView | None = None
    git_settings: Callable[[bool], bytes] = lambda has_proxy: b""
    notices: tuple[str, ...] = ()
    network: str = "none"
    lane: str = LANE
    serve: Callable[[ByteStream, str], Awaitable[None]] | None = None


class Sandbox:
    """An open box. Made by `open_box`.

    Attributes:
        id: the container's id.
        name: the container's name.
        lane: the kind of box.
        capabilities: what isolation is really there, for a person and for a program.
        had_memory_kill: a command of it was ended for memory.
    """

    def __init__(
        self,
        id: str,
        name: str,
        connection: Connection,
        capabilities: dict[str, Any],
        lane: str = LANE,
    ) -> None:
        self.had_memory_kill = False
        self.lane = lane
        self.id = id
        self.name = name
        self.capabilities = capabilities
        self._connection = connection

    @property
    def error(self) -> SandboxError | None:
        """Why the box is lost; None while it lives."""
        return self._connection.error

    async def mourned(self) -> SandboxError | None:
        """`error`, once the engine was asked for the cause; bounded."""
        if self._connection.error is not None:
            await self._connection.mourned.wait()
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

    async def dial(self, port: int, timeout: float = DIAL_TIMEOUT) -> ByteStream:
        """Connect to a port of the box's loopback; see `Channels.dial`."""
        return await self._connection.channels.dial(port, timeout)

    async def serve(self, program: Program) -> Served:
        """Start a program, to be spoken to over its stdin and stdout; see `serving.start`."""
        return await serving.start(self, self._connection.channels, program)


@contextlib.asynccontextmanager
async def open_box(host: Host, spec: LoopSpec) -> AsyncIterator[Sandbox]:
    """A box for the loop, and its removal whatever happens meanwhile.

    Raises:
        ConfigError: the worktree, the image or the limits can't be used.
        UnsafeRuntime: engine or runtime are not what the policy demands.
        ImageNotFound: the image is not on the engine.
        ImageNotAllowed: the policy does not allow it.
        SandboxUnavailable: the box could not be started, or is not what was asked for.
    """
    async with contextlib.AsyncExitStack() as stack:
        if host.quota is None:
            host = replace(host, quota=await stack.enter_async_context(loop_quota(host, spec)))
        opening = _Opening(host, spec)
        stack.push_async_callback(opening.close_surely)
        try:
            sandbox = await opening.open()
        except (NotStarted, NameTaken) as error:
            # A runtime volume whose filling was cut short looks whole from outside. And a
            # name may be somebody else's: the next one is another.
            await opening.close_surely()
            opening = _Opening(host, spec, is_repair=isinstance(error, NotStarted))
            stack.push_async_callback(opening.close_surely)
            sandbox = await opening.open()
        yield sandbox


def loop_quota(host: Host, spec: LoopSpec) -> contextlib.AbstractAsyncContextManager[Quota]:
    """What keeps a loop within its worktree's limits; to last longer than its boxes."""
    is_local = host.engine.facts.is_local
    forbidden = forbidden_places(host.engine, host.identity)
    return quota.opened(spec, host.identity, is_local, forbidden, host.progress)


def loop_claims(host: Host, spec: LoopSpec) -> contextlib.AbstractContextManager[None]:
    """What tells other loops, and who comes after a crash, of the loop's directories."""
    forbidden = forbidden_places(host.engine, host.identity)
    return quota.claimed(spec, host.identity, forbidden)


def worktree_of(host: Host, spec: LoopSpec) -> ownership.Worktree:
    """Opens a loop's worktree as its boxes have it; the caller closes it.

    Raises:
        ConfigError: it can't be used.
    """
    placed = host.quota.place() if host.quota is not None else None
    if placed is not None:
        return placed
    return ownership.open_worktree(spec.worktree, forbidden_places(host.engine, host.identity))


def forbidden_places(engine: Engine, identity: Identity) -> list[Path]:
    """Places of ours and of the engine's that no worktree may be in."""
    # Worktrees that are made for loops lie in the state directory, and nothing else does.
    state = identity.state
    forbidden = [state / name for name in (*OURS, "controllers")]
    if engine.facts.root_directory:
        forbidden.append(Path(engine.facts.root_directory))
    if engine.facts.is_local:
        forbidden.append(Path(engine.facts.address.removeprefix("unix://")))
    return forbidden


def users_of(facts: EngineFacts) -> ownership.UserMap:
    """Which uids the engine's boxes have."""
    return ownership.user_map(facts, ownership.owner_of_socket(facts))


def admit(host: Host, spec: LoopSpec) -> tuple[gate.Admission, Recipes]:
    """Refuses boxes that the policy does not allow, before anything is opened for them.

    Returns:
        The admission, and the images of our own that it was judged by.

    Raises:
        UnsafeRuntime: the runtime is not what the policy demands.
        ImageNotAllowed: the policy does not allow the image.
        ConfigError: the box must not have the network, or can't; the engine lacks its runtime.
    """
    facts = host.engine.facts
    admission = gate.admit(host.policy, facts, spec.runtime)
    ours = images.recipes(host.engine)
    allowance.require_allowed(host.policy, spec.image, ours.names())
    if faults := container.runtime_faults(admission.runtime, facts):
        raise ConfigError(faults)
    if host.network == bridge.NETWORK and (
        faults := bridge.faults(host.policy, facts, admission.runtime or "", host.lane)
    ):
        raise ConfigError(faults)
    return admission, ours


class NotStarted(SandboxUnavailable):
    """The container was made, but its agent did not come up."""


class _Opening:
    """The steps of opening one box; `close` undoes whatever was done so far."""

    def __init__(self, host: Host, spec: LoopSpec, *, is_repair: bool = False) -> None:
        self.is_repair = is_repair
        self.engine = host.engine
        self.identity = host.identity
        self.progress = host.progress
        self.policy = host.policy
        self.quota = host.quota or Quota()
        self.results = host.results
        self.git = host.git
        self.has_proxy = host.serve is not None
        self.git_settings = host.git_settings(self.has_proxy)
        self.caches = Caches()
        self.notices = host.notices
        self.network = host.network
        if self.network == bridge.NETWORK:
            self.notices += (bridge.NOTICE.format(lane=host.lane),)
        self.lane = host.lane
        self.serve = host.serve
        self.beside: list[ownership.Worktree] = []
        self.admission, self.ours = admit(host, spec)
        self.spec = replace(spec, runtime=self.admission.runtime)
        self.users = ownership.SAME
        nonce = secrets.token_hex(4)
        self.name = f"executor-{spec.exec_id}-{nonce}"
        self.nonce = nonce
        self.identity.hold(self.name)
        self.id: str | None = None
        self.is_asked_for = False
        self.worktree: ownership.Worktree | None = None
        self.connection: Connection | None = None
        self.mourning: asyncio.Task[None] | None = None
        self.look: asyncio.Task[None] | None = None
        self.is_paused = False
        self.is_closing = False
        self.has_run_out = False
        self.sandbox: Sandbox | None = None

    # ── open ──

    async def open(self) -> Sandbox:
        """Create, attach, start, meet the agent."""
        facts = self.engine.facts
        await self._record_overrides()
        await self.quota.admit(self.name)
        self.worktree = worktree_of(Host(self.engine, self.identity, quota=self.quota), self.spec)
        for directory in self.spec.directories:
            forbidden = forbidden_places(self.engine, self.identity)
            self.beside.append(ownership.open_beside(directory.path, forbidden))
        self.users = users_of(facts)
        owner = ownership.owner_of(self.worktree, self.spec.uid, self.users)
        found, runtime = await images.ensure(
            self.engine, self.spec.image, self.progress, repair=self.is_repair, ours=self.ours
        )
        image = await self._usable(found)
        outside = self.users.outside(owner) or owner
        self.caches = await Caches.open(
            self.identity.state, self.spec.tenant, outside, self.spec.caches
        )
        plan = self._plan(owner, image, runtime.volume)
        request = container.create_request(plan)
        warnings: list[str] = []
        self.is_asked_for = True
        self.id = await self.engine.create(self.name, request, warnings.append)
        if faults := inspection.warning_faults(warnings):
            raise inspection.PolicyMismatch(faults)
        self._check()
        connection = self.connection = Connection(
            runtime.hash, self._on_lost, self._on_silence, self._accept()
        )
        raw, made = await asyncio.gather(self.engine.attach(self.id), self.engine.inspect(self.id))
        await AttachedStream.over(raw, connection)
        if podman.is_podman(self.engine.facts):
            made = podman.spelled(request, made)
        inspection.check_read_back(request, made)
        await self._start(connection)
        self._check()
        try:
            ready = await connection.hello(self._settings(owner, image), START_TIMEOUT)
        except AgentLost as error:
            raise NotStarted(f"The box did not come up: {error}") from error
        if fault := seccomp.unconfined(ready):
            raise NotStarted(fault)
        self.worktree.check_mounted(ready.get("mounted"), plan.files.passwd)
        for mounted, one in zip(self.beside, plan.beside, strict=True):
            mounted.check_mounted(ready.get("mounted"), plan.files.passwd, one.target)
        ownership.check_stores(ready.get("mounted"), plan)
        if facts.apparmor or facts.selinux:
            # Which profile is in force is known once it runs.
            made = await self.engine.inspect(self.id)
        is_there = {
            **self._capabilities(owner, warnings, request, made),
            "seccomp": seccomp.described(self.spec, facts, ready),
        }
        self.sandbox = Sandbox(self.id, self.name, connection, is_there, self.lane)
        self.quota.guard(connection.lose, self.name)
        return self.sandbox

    async def _usable(self, found: dict[str, Any]) -> container.Image:
        """The image that the engine found, unless no box can be made of it."""
        image = container.Image.of(found)
        container.require_usable(image)
        self.notices += images.notices(self.spec.image, found, self.engine.facts)
        if self.spec.image not in self.ours.names():
            allowance.require_same(self.spec.image, found)
            more = [directory.mount for directory in self.spec.directories]
            await targets.require_plain(self.engine, image, self.spec.image, self._labels(), more)
        return image

    def _check(self) -> None:
        """Paths still lead to the directories that were opened."""
        for opened in (self.worktree, *self.beside):
            if opened is not None:
                opened.check()

    def _labels(self) -> dict[str, str]:
        lifetime = (self.spec.limits.max_seconds or DAY) + START_TIMEOUT + LEASE
        return self.identity.labels(str(self.spec.exec_id), self.spec.tenant, lifetime)

    def _plan(self, owner: container.Owner, image: container.Image, volume: str) -> container.Plan:
        assert self.worktree is not None, "the worktree is opened first"
        directory = self.identity.files_directory(self.name)
        return container.Plan(
            spec=self.spec,
            worktree=self.worktree.path,
            owner=owner,
            image=image,
            runtime_volume=volume,
            files=ownership.write_files(
                directory,
                owner,
                self.worktree.git,
                self.users.outside(owner),
                self.git_settings,
                self._certificates(),
            ),
            labels=self._labels(),
            facts=self.engine.facts,
            ceilings=ownership.ceilings(),
            seccomp=seccomp.write(self.spec, self.engine.facts, directory),
            apparmor=self.policy.apparmor_profile,
            results=self.results,
            beside=self._beside(directory, owner),
            git=self.git,
            caches=tuple(
                container.Beside(cache.path, cache.target, read_only=False)
                for cache in self.caches.opened
            ),
            network=self.network,
        )

    def _certificates(self) -> bytes | None:
        file = self.spec.egress.ca_file
        return read_certificates(file) if file is not None and self.has_proxy else None

    def _beside(self, files: Path, owner: container.Owner) -> tuple[container.Beside, ...]:
        outside = self.users.outside(owner) or owner
        return tuple(
            container.Beside(
                source=opened.path,
                target=directory.mount,
                read_only=not directory.is_writable,
                git=ownership.cover_git(files, opened.git, outside),
            )
            for directory, opened in zip(self.spec.directories, self.beside, strict=True)
        )

    async def _record_overrides(self) -> None:
        """What is allowed by name only is on record before anything is opened."""
        log = AuditLog(self.identity.state)
        for name in self.admission.overrides:
            facts = {
                "option": f"controller.{name}",
                "runtime": self.spec.runtime or self.engine.facts.default_runtime,
                "loop": self.spec.exec_id,
                "tenant": self.spec.tenant,
                "controller": self.identity.id,
            }
            await asyncio.to_thread(log.append, "override", **facts)

    async def _start(self, connection: Connection) -> None:
        assert self.id is not None, "the container is created first"
        try:
            await self.engine.start(self.id)
        except EngineError as error:
            said = connection.stderr.decode("utf-8", "replace").strip()
            text = f"The box could not be started: {error}" + (f" ({said[-500:]})" if said else "")
            if GVISOR_NETWORK in text:
                text += ". Give this runtime the argument --network=none, as scripts/gvisor.sh does"
            raise NotStarted(text) from error

    def _accept(self) -> Accept | None:
        """What serves the connections to this box's proxy."""
        serve = self.serve
        return None if serve is None else lambda stream: serve(stream, self.name)

    def _settings(self, owner: container.Owner, image: container.Image) -> dict[str, Any]:
        """What the agent is told in HELLO."""
        user = ownership.user_name(owner)
        return {
            "lease": LEASE,
            "root": MOUNT,
            "scratch": SCRATCH,
            "box": self.nonce,
            "memory": self.spec.limits.memory_bytes,
            "environment": command_environment(
                self.spec, user, image.environment, has_proxy=self.has_proxy
            ),
            "roots": self._roots(),
            **({"proxy": PROXY_PORT} if self.serve is not None else {}),
        }

    def _roots(self) -> list[dict[str, Any]]:
        """Where absolute paths of file tools lead, besides the worktree; see `agent.roots`."""
        return [
            {"path": RESULTS},
            {"path": PLANS, "write": True, "make": True},
            *({"path": path, "write": True, "box": True} for path in ("/tmp", container.HOME)),
            *({"path": d.mount, "write": d.is_writable} for d in self.spec.directories),
        ]

    def _capabilities(
        self,
        owner: container.Owner,
        warnings: list[str],
        request: dict[str, Any],
        made: dict[str, Any],
    ) -> dict[str, Any]:
        """See `capabilities` for what the keys mean."""
        assert self.worktree is not None, "the worktree is opened first"
        facts = self.engine.facts
        notices = ownership.notices(self.worktree, owner, self.users)
        notices += [*self.quota.notices, *self.notices, *self.caches.notices, *warnings]
        notices += environment_notices(self.spec)
        weaker = (f"Podman: {text}" for text in podman.weaknesses(facts))
        about_engine = [*self.admission.warnings, *weaker]
        return {
            **capabilities.describe(
                facts, request, made, self.users.outside(owner), notices, about_engine
            ),
            "quota": self.quota.described,
            "git": self.git.described if self.git is not None else "none",
        }

    # ── loss and close ──

    def _on_silence(self, seconds: float) -> None:
        """The agent is silent: perhaps the engine knows why, and nobody has to wait longer."""
        if self.id is not None and not self.is_closing:
            self.look = asyncio.ensure_future(self._look_at_silence(self.id, seconds))

    async def _look_at_silence(self, id: str, seconds: float) -> None:
        assert self.connection is not None, "somebody was listening to it"
        try:
            async with asyncio.timeout(INSPECT_TIMEOUT):
                state = (await self.engine.inspect(id)).get("State") or {}
        except (TimeoutError, EngineError):
            return  # it may still answer; the connection decides
        if state.get("Paused") or not state.get("Running", True):
            self.connection.lose(AgentLost(f"the agent did not answer for {seconds:g} s"))

    def _on_lost(self, error: SandboxError) -> None:
        self.mourning = asyncio.ensure_future(self._mourn(error))

    async def _mourn(self, error: SandboxError) -> None:
        """Find the cause, make sure that the box ends, and tell everyone who waits."""
        assert self.connection is not None, "only a connection can be lost"
        if self.is_closing:
            self.connection.fail_waiting(error)
            return
        if self.id is not None and isinstance(error, AgentLost):
            error = AgentLost(await self._cause(str(error)))
        self.connection.fail_waiting(error)
        await self._kill()

    async def _cause(self, reason: str) -> str:
        """The engine's view of a box whose stream ended."""
        assert self.id is not None and self.connection is not None, "there is a container"
        try:
            async with asyncio.timeout(INSPECT_TIMEOUT):
                state = await self._last_state(self.id)
        except TimeoutError:
            return f"{reason} (the engine does not answer)"
        except EngineError as error:
            if status(error) == 404:
                return f"the box is gone from the engine: removed by another hand ({reason})"
            return f"{reason} (the engine can't be asked why: {str(error)[:300]})"
        said = self.connection.stderr.decode("utf-8", "replace").strip().splitlines()[-3:]
        facts = []
        self.has_run_out = bool(state.get("OOMKilled"))
        if self.has_run_out:
            # The engine never takes this back: a command that was killed for it is enough.
            before = self.sandbox is not None and self.sandbox.had_memory_kill
            facts.append("memory ran out in it before" if before else "it ran out of memory")
        self.is_paused = bool(state.get("Paused"))
        if self.is_paused:
            facts.append("it is paused, by another hand")
        if state.get("Status") in ("exited", "dead"):
            facts.append(f"it ended with code {state.get('ExitCode')}")
        if state.get("Error"):
            facts.append(str(state["Error"])[:300])
        if said and said[-1].endswith("the stream ended"):
            facts.append("another client of the engine closed its input")
        if said:
            facts.append("last words: " + " / ".join(said)[-500:])
        return reason + (f" ({'; '.join(facts)})" if facts else "")

    async def _last_state(self, id: str) -> dict[str, Any]:
        """What the engine says of the box, if possible when it has noticed its end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + STATE_PATIENCE
        while True:
            state = dict((await self.engine.inspect(id)).get("State") or {})
            is_open = state.get("Status") not in ("exited", "dead", "paused")
            if not is_open or loop.time() > until:
                return state
            await asyncio.sleep(0.02)

    async def close_surely(self) -> None:
        """`close`, to its end, however often the caller is cancelled meanwhile."""
        await to_completion(self.close())

    async def close(self) -> None:
        """Undo everything; the box and its generated files are gone after this.

        What the engine does not remove in time is killed, logged, and left to the sweep.
        """
        self.is_closing = True
        if self.look is not None:
            self.look.cancel()
        was_lost = self.connection is not None and self.connection.error is not None
        if self.connection is not None:
            self.connection.close()
            await self.connection.channels.finish()
        if self.mourning is not None:
            await asyncio.wait({self.mourning})
        await self._compare(was_lost=was_lost)
        is_gone = False
        try:
            if is_gone := await self._remove():
                self.id, self.is_asked_for = None, False
                self.identity.discard_files(self.name)
                self.quota.release(self.name)
        finally:
            await self.caches.close(tend=is_gone)
            self.identity.let_go(self.name)
            for opened in (self.worktree, *self.beside):
                if opened is not None:
                    opened.close()

    async def _compare(self, *, was_lost: bool) -> None:
        """Tell what the engine saw and no result did: an agent can lie about its commands.

        The engine knows of memory that ran out only when the box has ended.
        """
        if self.sandbox is None or self.id is None or self.sandbox.had_memory_kill:
            return
        if not was_lost:
            if not await self._kill():
                return
            with contextlib.suppress(TimeoutError, EngineError):
                async with asyncio.timeout(INSPECT_TIMEOUT):
                    made = await self.engine.inspect(self.id)
                self.has_run_out = bool((made.get("State") or {}).get("OOMKilled"))
        if self.has_run_out:
            log.warning(
                "memory ran out in the box %s, and no command was reported as killed for it: "
                "what it reported as done may not be",
                self.name,
            )

    async def _remove(self) -> bool:
        """Removes the container, if there is one; False = it may still be there."""
        try:
            async with asyncio.timeout(REMOVE_TIMEOUT):
                id = self.id or await self._made()
                if id is not None:
                    await self.engine.remove(id)
        except (TimeoutError, EngineError) as error:
            reason = str(error) or f"no answer within {REMOVE_TIMEOUT:g} s"
            log.warning("the box %s is left to the next sweep: %s", self.name, reason)
            self.identity.left.add(self.name)
            await self._kill()
            return False
        return True

    async def _made(self) -> str | None:
        """The id of a container that the engine made although its answer never came."""
        if not self.is_asked_for:
            return None
        try:
            made = await self.engine.inspect(self.name)
        except EngineError as error:
            if status(error) == 404:
                return None
            raise
        # One of another hand may bear this name; that may be why ours was refused.
        labels = (made.get("Config") or {}).get("Labels") or {}
        return str(made["Id"]) if labels.get(LABEL_CONTROLLER) == self.identity.id else None

    async def _kill(self) -> bool:
        """Ends what runs in the box; False = the engine did not do it."""
        if self.id is None:
            return True
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                if self.is_paused:
                    # gVisor ends nothing that is paused, and an engine waits 10 s for it.
                    await self.engine.unpause(self.id)
                await self.engine.kill(self.id)
        except (TimeoutError, EngineError):
            return False
        return True
