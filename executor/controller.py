"""Controllers: connect to the engine, open loops over worktrees, leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from executor import toolsets
from executor.audit import AuditLog
from executor.catalog import Catalog, OracleOptions, WebSearchOptions, load
from executor.catalog_servers import McpEntry
from executor.coordination import Coordinator, LocalCoordinator, Member
from executor.egress import options as egress
from executor.egress.secrets import Secrets
from executor.errors import ConfigError, EngineError, SandboxUnavailable
from executor.foreign.secrets import is_veiled, secrets_of, variables_of
from executor.hooks import Hooks
from executor.lane import OpenBox, Opener
from executor.lanes import Outfit, Terms, terms_of
from executor.loop import Company, Loop, names_of, rules_of
from executor.model import LoopSpec
from executor.permissions import Mode
from executor.sandbox import copies, gate, spill
from executor.sandbox.box import (
    Host,
    admit,
    forbidden_places,
    loop_claims,
    loop_quota,
    open_box,
    users_of,
    worktree_of,
)
from executor.sandbox.completion import to_completion
from executor.sandbox.copies import Ground
from executor.sandbox.engine import OVERRIDE, Engine, address_fault
from executor.sandbox.images import Progress
from executor.sandbox.ownership import SAME, Worktree, open_own
from executor.sandbox.quota import Quota
from executor.sandbox.reaper import Identity, reap
from executor.sandbox.runtime import silent
from executor.settings import Settings
from executor.text import one_line
from executor.tool import Agents, Approver, KeptOutputs, Registry, SecondModel, Tool, Web
from executor.tools.agents import MAX_DEPTH

if TYPE_CHECKING:
    from executor.egress.broker import Broker
    from executor.git.history import History, Surroundings
    from executor.git.records import Entry
    from executor.messages import Model
    from executor.search import Provider
    from executor.subagents import Agent

SWEEP_INTERVAL = 300.0
"""Seconds between two looks for what dead controllers left behind."""
SWEEP_PATIENCE = 10.0
"""Seconds that closing a controller waits for its first look."""

log = logging.getLogger(__name__)

Source: TypeAlias = Callable[[], Worktree]
"""Opens a loop's worktree as its boxes have it."""


@dataclass(frozen=True, slots=True)
class _Boxes:
    """What a loop's boxes are opened with.

    Attributes:
        spec: the loop's, with its worktree.
        outfit: opens them.
        source: opens the worktree as they have it.
        results: where long outputs are kept.
        history: of its worktree's repository.
    """

    spec: LoopSpec
    outfit: Outfit
    source: Source
    results: KeptOutputs | None = None
    history: History | None = None


class Controller:
    """Opens loops. An async context manager; what it opened is gone when it ends.

    Args:
        settings: how to reach the engine; None = from the environment.
        catalog: tools and limits; None = the packaged catalog with the user's file.
        opener: opens boxes; None = containers on the engine of the settings.
        progress: told what takes long while a box is opened.
        tools: the host's own tools, for every loop.
        hooks: callables and commands around each call; those of the catalog come first.
        approver: who decides and answers; None = nobody can be asked.
        coordinator: the way between loops; None = one for the loops of this controller.
        leader: who decides on plans in their own time; None = the approver does, at once.
        model: answers the messages of subagents; None = the Messages API, if the settings have
            its key. Without any, loops start no agents.
        mcp: MCP servers beside those of the catalog, by name; one of the same name replaces it.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        catalog: Catalog | None = None,
        *,
        opener: Opener | None = None,
        progress: Progress = silent,
        tools: Sequence[Tool] = (),
        hooks: Hooks | None = None,
        approver: Approver | None = None,
        coordinator: Coordinator | None = None,
        leader: Approver | None = None,
        model: Model | None = None,
        mcp: Mapping[str, McpEntry] | None = None,
    ) -> None:
        self.settings = settings if settings is not None else Settings.load()
        self.catalog = catalog if catalog is not None else load(self.settings.config_file)
        self._opener = opener
        self._host: Host | None = None
        self._progress = progress
        self._coordinator: Coordinator = coordinator or LocalCoordinator()
        before = Hooks.from_catalog(self.catalog.hooks)
        own = _own(tools, self.catalog)
        web = _web_of(self.settings, self.catalog, model)
        servers = dict(mcp or {})
        self._mcp = {**self.catalog.mcp, **servers}
        self._company = Company(own, before + (hooks or Hooks()), approver, leader, web, servers)
        self._model = model
        self._open: set[str] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Controller:
        """Connects to the engine and begins to clear away what dead controllers left.

        Raises:
            EngineUnavailable: nothing answers, or what answers can't be used.
            UnsafeRuntime: what answers is not as safe as the catalog's policy demands.
        """
        if self._model is None and self.settings.model_key is not None:
            self._model = _model_of(self.settings)
        if self._opener is None:
            async with AsyncExitStack() as stack:
                self._opener = await self._connect(stack)
                self._stack = stack.pop_all()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Closes all; what could not be cleaned away is noted on what ended it."""
        try:
            await self._stack.aclose()
        finally:
            if self._host is not None:
                if error is not None:
                    for name in sorted(self._host.identity.left):
                        error.add_note(f"the box {name} is left to the next sweep")
                self._host = self._opener = None

    async def _connect(self, stack: AsyncExitStack) -> Opener:
        engine = await stack.enter_async_context(await Engine.connect(self.settings))
        policy = self.catalog.controller
        gate.judge_engine(policy, engine.facts).check()
        state = self.settings.state_directory
        try:
            identity = stack.enter_context(Identity.claim(state))
        except OSError as error:
            raise ConfigError(
                f"state directory: {state} can't be used ({error.strerror}); "
                "set EXECUTOR_STATE_DIR to one that can be written"
            ) from error
        if (fault := address_fault(self.settings)) is not None:
            # It was connected to all the same: somebody has allowed it by name.
            told = {"option": OVERRIDE, "reason": fault, "controller": identity.id}
            await asyncio.to_thread(AuditLog(state).append, "override", **told)
        await stack.enter_async_context(_swept(engine, state, identity))
        self._host = Host(engine, identity, self._progress, policy)
        return functools.partial(open_box, self._host)

    @contextlib.asynccontextmanager
    async def open(self, spec: LoopSpec) -> AsyncIterator[Loop]:
        """A loop with an open box.

        Args:
            spec: its worktree and how it is boxed.

        Raises:
            ConfigError: the specification is wrong; holds every fault.
            NotReturned: at the end, with quota `loop-ext4`: not all came back.
            SandboxError: no box could be had.
        """
        async with self._loop(spec) as loop:
            yield loop

    async def collect(self, entry: Entry) -> None:
        """Take out of a box what a loop whose controller died, or whose box was lost, has made.

        Args:
            entry: locked by the caller.

        Raises:
            ConfigError: its repository is gone.
            Refused: what it has made is not taken over.
            SandboxError: no box could be had.
        """
        from executor.git import asking
        from executor.git.program import Git

        if self._host is None:
            raise SandboxUnavailable("Without an engine no box can be asked for it.")
        host = self._host
        name = f"asking-{entry.name[:80]}"
        directory = host.identity.files_directory(name)
        try:
            question = asking.prepared(entry, directory, users_of(host.engine.facts))
            host = replace(host, git=question.view, quota=question.quota)
            async with open_box(host, question.spec) as box:
                await asking.ask(Git.find(self.settings.git_program), box, entry)
        finally:
            host.identity.discard_files(name)

    @contextlib.asynccontextmanager
    async def outlined(self, spec: LoopSpec) -> AsyncIterator[Loop]:
        """A loop without a box, for its definitions and what is disabled; calls can't be run.

        Args:
            spec: of the loop; its worktree is not looked at.

        Raises:
            ConfigError: the specification names what there is not.
        """
        spec = spec.with_exec_id(spec.exec_id or "outline")
        source = functools.partial(open_own, Path(spec.worktree))
        async with self._joined(spec, None) as member, self._outfitted(spec, None) as known:
            agents = self._agents(spec, source, [], known.broker)
            outfit = replace(known, openers=lambda terms: _no_box)
            yield Loop(spec, self.catalog, outfit, self._company, member, None, agents)

    @contextlib.asynccontextmanager
    async def _loop(
        self,
        spec: LoopSpec,
        ground: Ground | None = None,
        running: list[Agent] | None = None,
        above: Broker | None = None,
    ) -> AsyncIterator[Loop]:
        """A loop; of an agent, if a ground is given, and the broker of the loop above it."""
        if self._opener is None:
            raise RuntimeError("open the controller first: async with Controller() as controller")
        self._check(spec)
        exec_id = spec.exec_id or f"loop-{secrets.token_hex(6)}"
        if exec_id in self._open:
            raise ConfigError(f"exec_id: a loop {exec_id!r} is open; give another name")
        self._open.add(exec_id)
        try:
            spec = spec.with_exec_id(exec_id)
            async with (
                self._joined(spec, ground) as member,
                self._boxes(spec, ground, above) as boxes,
            ):
                spec = boxes.spec
                running = [] if running is None else running
                agents = self._agents(spec, boxes.source, running, boxes.outfit.broker)
                await self._note_servers(spec)
                loop = Loop(
                    spec,
                    self.catalog,
                    boxes.outfit,
                    self._company,
                    member,
                    boxes.results,
                    agents,
                    boxes.history,
                )
                async with loop._opened():
                    yield loop
        finally:
            self._open.discard(exec_id)

    async def _note_servers(self, spec: LoopSpec) -> None:
        """Note the MCP servers that will run on the host: nothing confines them."""
        state = self.settings.state_directory
        for name, entry in self._mcp.items():
            if entry.enabled and entry.where == "host" and entry.url is None:
                told = {"option": f"mcp.{name}.where", "reason": "the server runs on the host"}
                told |= {"exec_id": str(spec.exec_id), "command": entry.command[0]}
                state.mkdir(mode=0o700, parents=True, exist_ok=True)
                await asyncio.to_thread(AuditLog(state).append, "override", **told)

    def _joined(
        self, spec: LoopSpec, ground: Ground | None
    ) -> AbstractAsyncContextManager[Member | None]:
        """What makes a loop one of those that speak with each other; an agent is its loop's."""
        if ground is not None:
            return contextlib.nullcontext()
        return self._coordinator.join(spec.tenant, str(spec.exec_id))

    @contextlib.asynccontextmanager
    async def _boxes(
        self, spec: LoopSpec, ground: Ground | None, above: Broker | None
    ) -> AsyncIterator[_Boxes]:
        """Opens the loop's boxes, over what lasts from the first of them to the last."""
        assert self._opener is not None, "the controller is open"
        if self._host is None:
            source = functools.partial(open_own, Path(spec.worktree).resolve())
            async with self._outfitted(spec, None, above) as outfit:
                yield _Boxes(spec, outfit, source)
            return
        from executor.git.history import History

        host = self._host
        async with AsyncExitStack() as stack:
            history = None
            if ground is None:
                around = await self._surroundings(host, spec)
                history = await stack.enter_async_context(History.opened(spec, around))
                spec = history.spec
            quota = await stack.enter_async_context(self._quota(host, spec, ground))
            results = stack.enter_context(
                spill.opened(host.identity, str(spec.exec_id), self.catalog.spill)
            )
            host = replace(host, quota=quota, results=results.directory)
            if history is not None:
                await history.place(quota)
                stack.push_async_callback(history.settle)
                host = replace(
                    host,
                    git=history.view,
                    git_settings=history.git_settings,
                    notices=tuple(history.notices),
                )
            source = functools.partial(worktree_of, host, spec)
            # What is carried ends after the last box, and before what it is written to.
            outfit = await stack.enter_async_context(self._outfitted(spec, host, above))
            yield _Boxes(spec, outfit, source, results, history)

    @contextlib.asynccontextmanager
    async def _outfitted(
        self, spec: LoopSpec, host: Host | None, above: Broker | None = None
    ) -> AsyncIterator[Outfit]:
        """What opens a loop's boxes, with the loop's broker, if it may reach anything.

        Args:
            spec: of the loop.
            host: has what all of its boxes have; None = they are the opener's own matter.
            above: of the loop that this one is an agent of.
        """
        terms = terms_of(spec, self.catalog)
        if host is not None:
            for one in dict.fromkeys(terms.values()):
                # A lane whose box can't be had is no matter of the first call that needs it.
                admit(_host_of(host, one), one.specified(spec))
        given = (*spec.secrets, *secrets_of(self._mcp, variables_of(self._mcp)))
        values = Secrets.of(given) if given else None
        options = spec.egress
        async with AsyncExitStack() as stack:
            broker = None
            if options.hosts or options.setup_hosts:
                from executor.egress.broker import Broker

                broker = Broker(
                    options,
                    exec_id=str(spec.exec_id),
                    tenant=spec.tenant,
                    journal=AuditLog(self.settings.state_directory),
                    secrets=values,
                    open_lanes=[one.lane for one in terms.values() if one.network == "broker"],
                    above=above,
                )
                await stack.enter_async_context(broker)

            def opener_of(one: Terms) -> Opener:
                opener = self._opener
                assert opener is not None, "the controller is open"
                if host is not None:
                    serve = None
                    if broker is not None and one.has_proxy(spec):
                        serve = functools.partial(broker.serve, one.lane)
                    lane = replace(_host_of(host, one), serve=serve)
                    opener = functools.partial(open_box, lane)
                return opener if values is None else _with_placeholders(opener, values)

            yield Outfit(opener_of, broker, values, self._tell)

    def _tell(self, line: str) -> None:
        """A line of a set-up."""
        self._progress(f"setup: {line}", None, None)

    async def _surroundings(self, host: Host, spec: LoopSpec) -> Surroundings:
        """What the loop's history has to know about where it is."""
        from executor.git.history import Surroundings

        facts = host.engine.facts
        runtime = gate.admit(host.policy, facts, spec.runtime).runtime or facts.default_runtime
        users = users_of(facts)
        may_chown = os.geteuid() == 0 and users == SAME
        return Surroundings(
            state=host.identity.state,
            controller=host.identity.id,
            forbidden=tuple(forbidden_places(host.engine, host.identity)),
            users=users,
            is_gvisor=facts.is_gvisor(runtime),
            uids=self.catalog.controller.uids if may_chown else None,
            program=self.settings.git_program,
            claimed=functools.partial(loop_claims, host),
        )

    @contextlib.asynccontextmanager
    async def _quota(
        self, host: Host, spec: LoopSpec, ground: Ground | None
    ) -> AsyncIterator[Quota]:
        if ground is None:
            async with loop_quota(host, spec) as quota:
                yield quota
            return
        quota = ground.quota(spec)
        try:
            yield quota
        finally:
            await to_completion(quota.close())

    def _agents(
        self, spec: LoopSpec, source: Source, running: list[Agent], broker: Broker | None
    ) -> Agents | None:
        """What starts agents below a loop; None = nothing does."""
        if self._model is None or spec.depth >= MAX_DEPTH:
            return None
        from executor.subagents import Parent, Subagents

        return Subagents(
            Parent(
                spec=spec,
                kinds=self.catalog.agents,
                known=toolsets.names(self.catalog, self._company.tools),
                model=self._model,
                ground=functools.partial(self._ground, spec, source),
                open=functools.partial(self._loop, running=running, above=broker),
                running=running,
            )
        )

    @contextlib.asynccontextmanager
    async def _ground(
        self, spec: LoopSpec, source: Source, name: str, is_copy: bool
    ) -> AsyncIterator[Ground]:
        """Where an agent below a loop works."""
        if not is_copy:
            yield copies.shared(source)
            return
        name = f"copy-{str(spec.exec_id)[:40]}-{name}-{secrets.token_hex(4)}"
        if self._host is not None:
            directory = self._host.identity.files_directory(name)
        else:
            directory = self.settings.state_directory / name
            directory.mkdir(mode=0o700, parents=True)
        kept = self.settings.state_directory / "kept"
        async with copies.copied(source, directory, kept) as ground:
            yield ground

    def _check(self, spec: LoopSpec) -> None:
        faults = [*spec.faults(), *self.catalog.faults(spec), *egress.faults(spec)]
        if spec.mode not in set(Mode):
            faults.append(f"mode: there is no {spec.mode!r}; use one of {', '.join(Mode)}")
        try:
            rules_of(spec, self.catalog, self._company.tools)
        except ConfigError as error:
            faults += error.faults
        try:
            self._company.hooks.check(name for root in spec.writable for name in names_of(root))
        except ConfigError as error:
            faults += error.faults
        if faults:
            raise ConfigError(faults)


def _no_box(spec: LoopSpec) -> NoReturn:
    raise SandboxUnavailable("This loop is an outline: it has no box, and none can be opened.")


def _model_of(settings: Settings) -> Model:
    """The model that the settings name; its library is loaded only then.

    Raises:
        ConfigError: key or address can't be used.
    """
    from executor.messages import MessagesApi

    assert settings.model_key is not None, "there is a key"
    api = MessagesApi(settings.model_key, model=settings.model_name)
    return api if settings.model_url is None else replace(api, base_url=settings.model_url)


def _web_of(settings: Settings, catalog: Catalog, model: Model | None) -> Web:
    """Whom tools ask on this machine, as far as settings and catalog have keys and names.

    Args:
        settings: have the keys.
        catalog: says who is asked.
        model: that the host has given; None = the settings' one.

    Raises:
        ConfigError: a key or an address can't be used.
    """
    search = _provider_of(settings, catalog.web_search)
    oracle = _oracle_of(settings, catalog.oracle, model)
    web = Web(no_search=search) if isinstance(search, str) else Web(search)
    web = replace(web, results=catalog.web_search.results)
    if isinstance(oracle, str):
        return replace(web, no_oracle=oracle)
    return replace(web, oracle=oracle)


def _provider_of(settings: Settings, options: WebSearchOptions) -> Provider | str:
    """Who searches, or why nobody does."""
    if options.provider == "google":
        engine = options.engine or settings.google_search_engine
        if settings.google_search_key is None:
            return "there is no key for Google's search (EXECUTOR_GOOGLE_SEARCH_KEY is not set)"
        if engine is None:
            return (
                "no search engine of Google's is named (web_search.engine in the catalog, or "
                "EXECUTOR_GOOGLE_SEARCH_ENGINE)"
            )
        from executor.search import GoogleSearch

        google = GoogleSearch(settings.google_search_key, engine=engine)
        url = settings.google_search_url
        return google if url is None else replace(google, base_url=url)
    if settings.serper_key is None:
        return "there is no key for Serper's search (EXECUTOR_SERPER_KEY is not set)"
    from executor.search import SerperSearch

    serper = SerperSearch(settings.serper_key)
    url = settings.serper_url
    return serper if url is None else replace(serper, base_url=url)


def _oracle_of(
    settings: Settings, options: OracleOptions, model: Model | None
) -> SecondModel | str:
    """The second model, or why there is none."""
    if options.model is None:
        return "no second model is named (oracle.model in the catalog)"
    if model is None and settings.model_key is None:
        return "there is no key for a second model (ANTHROPIC_API_KEY is not set)"
    asked = model if model is not None else _model_of(settings)
    return SecondModel(asked, options.model, options.max_tokens, options.prompt)


def _with_placeholders(opener: Opener, values: Secrets) -> Opener:
    """The same opener, whose boxes have placeholders in the variables of secrets."""

    def opened(spec: LoopSpec) -> AbstractAsyncContextManager[OpenBox]:
        shown = {k: v for k, v in values.placeholders.items() if not is_veiled(k)}
        environment = {**spec.environment, **shown}
        return opener(replace(spec, environment=environment))

    return opened


def _own(tools: Iterable[Tool], catalog: Catalog) -> tuple[Tool, ...]:
    """The host's own tools.

    Raises:
        ConfigError: two have the same name, or one has a name of the catalog's: rules and
            modes that are meant for that tool would hold for it.
    """
    own = Registry.from_tools(tools).all()
    faults = [
        f"tool {tool.name}: the catalog has a tool {name}, for which rules and modes are meant; "
        "give it another name"
        for tool in own
        for name in dict.fromkeys((tool.name, tool.canonical))
        if name in catalog.tools and tool.entry is not catalog.tools[name]
    ]
    if faults:
        raise ConfigError(faults)
    return own


@contextlib.asynccontextmanager
async def _swept(engine: Engine, state: Path, identity: Identity) -> AsyncIterator[None]:
    """Clears away what dead controllers left, now and then again, beside the work."""

    # Records of those whose boxes are gone for certain: after the boxes.
    from executor.git import records
    from executor.git.tidying import tidy

    async def sweep() -> None:
        try:
            reaped = await reap(engine, state, identity, tidy)
        except EngineError as error:
            log.warning("left-overs could not be looked for: %s", one_line(str(error)))
            return
        for failure in (*reaped.failures, *await asyncio.to_thread(records.recover, state)):
            log.warning("left over: %s", one_line(failure))

    async def again() -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL)
            await sweep()

    first = asyncio.create_task(sweep())
    later = asyncio.create_task(again())
    try:
        yield
    finally:
        later.cancel()
        await asyncio.wait({first}, timeout=SWEEP_PATIENCE)
        first.cancel()
        await asyncio.wait({first, later})


def _host_of(host: Host, terms: Terms) -> Host:
    """What the boxes of a lane are opened with, but for their way out."""
    network = "bridge" if terms.network == "bridge" else "none"
    return replace(host, lane=terms.lane, network=network)
