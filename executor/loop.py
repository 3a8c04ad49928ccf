"""A loop: calls of one model's turn after turn, answered over one worktree."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor import results, skills, toolsets
from executor.background import Listed
from executor.catalog import Catalog
from executor.catalog_servers import McpEntry
from executor.coordination import Member, Message
from executor.errors import Code, ConfigError, StreamBroken, ToolError
from executor.foreign.names import both, may_have
from executor.hooks import Hooks, Use
from executor.lane import Gone, Opener
from executor.lanes import COMMANDS, Attended, Lanes, Outfit, lane_of, notice
from executor.language.servers import LanguageServers
from executor.model import (
    LANE,
    Access,
    Artifact,
    Call,
    CallStarted,
    CommandQueued,
    Event,
    Finished,
    LoopSpec,
    Result,
    Todo,
    Warned,
    plain,
)
from executor.paths import Added
from executor.permissions import check_paths, check_patterns, unreadable
from executor.pipeline import Answered, Emit, Pipeline
from executor.redaction import RedactedBox, RedactedSpill, redacted
from executor.rules import Rules
from executor.sandbox.completion import to_completion
from executor.scheduling import Intent, intent_of
from executor.session import Session
from executor.streaming import Format, Reader, reader_of
from executor.tool import (
    Agents,
    Approver,
    Context,
    FileRead,
    KeptOutputs,
    Modifier,
    Order,
    PermissionGranted,
    QueueCommand,
    Registry,
    Surroundings,
    Tool,
    Web,
)
from executor.tools.background import listed
from executor.tools.projects import VALIDATE
from executor.turn import MAX_QUEUED_EVENTS, Crew, Feed, Turn

if TYPE_CHECKING:
    from executor.foreign.servers import McpServers
    from executor.git.history import History
    from executor.git.report import Report

DAY = 86400.0
OVERTIME = 3.0
"""Seconds that a call which is being ended may go on after the loop's time is over."""

_NO_BOX = (Code.SANDBOX_LOST, Code.SANDBOX_UNAVAILABLE, Code.PROTOCOL_ERROR)


@dataclass(frozen=True, slots=True)
class Company:
    """Whom and what the host gives to its loops.

    Attributes:
        tools: the user's own, beside those of the toolset.
        hooks: what the host wants to see or stop.
        approver: who decides and answers; None = nobody can be asked.
        leader: who decides on plans in their own time; None = the approver does.
        web: whom tools ask on the host.
        mcp: MCP servers beside those of the catalog, by name; one of the same name replaces it.
    """

    tools: tuple[Tool, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    approver: Approver | None = None
    leader: Approver | None = None
    web: Web = field(default_factory=Web)
    mcp: Mapping[str, McpEntry] = field(default_factory=dict)


class Loop:
    """One open loop. Made by `Controller.open`."""

    def __init__(
        self,
        spec: LoopSpec,
        catalog: Catalog,
        opener: Opener | Outfit,
        company: Company | None = None,
        member: Member | None = None,
        spill: KeptOutputs | None = None,
        agents: Agents | None = None,
        history: History | None = None,
    ) -> None:
        company = company or Company()
        self.spec = spec
        self.session = Session()
        self.session.mode = spec.mode
        self.session.wanted_programs = _wanted_programs(catalog)
        self.session.rules = rules_of(spec, catalog, company.tools)
        self.session.background.announce = self._announce
        self.registry: Registry = toolsets.registry(spec.toolset, catalog, spec.limits)
        toolset = catalog.toolsets[spec.toolset]
        for tool in company.tools:
            entry = toolset.limited(tool.canonical, tool.entry)
            self.registry.register(replace(tool, entry=entry))
        check_patterns(self.session.rules, self.registry.all())
        kind = catalog.loop_types[spec.loop_type] if spec.loop_type is not None else None
        allowed = kind.tools if kind is not None else None
        label = spec.loop_type
        if spec.tools is not None:
            allowed = spec.tools if allowed is None else both(spec.tools, allowed)
            label = label or "subagent"
        self.pipeline = Pipeline(self.registry, allowed, label, company.hooks, toolset.tools)
        self._mcp: McpServers | None = None
        self._mcp_entries = {
            name: entry
            for name, entry in {**catalog.mcp, **company.mcp}.items()
            if entry.enabled and may_have(allowed, name) and may_have(toolset.tools, name)
        }
        self._mcp_notices: list[str] = []
        self._turns = self._nested_calls = 0
        self._nested_uses: list[Use] = []
        self._member = member
        self._history = history
        self._kept = spill
        outfit = opener if isinstance(opener, Outfit) else Outfit.of(opener)
        self._secrets = secrets = outfit.secrets
        self._lanes = Lanes(spec, catalog, outfit, self.session, self._announce)
        self._lane = self._lanes.main
        named = (tool for tool in self.registry.all() if tool.canonical == COMMANDS)
        self._commands = next(map(lane_of, named), LANE)
        self._languages = LanguageServers(catalog.languages)
        beside: dict[str, Surroundings] = {}
        main = Surroundings(
            exec_id=self.exec_id,
            session=self.session,
            limits=self._lanes.terms(LANE).limits,
            lane=LANE,
            toolset=toolset,
            roots=names_of(spec.worktree),
            box=self._lane,
            seccomp=spec.seccomp,
            tenant=spec.tenant,
            approver=company.approver,
            approval_timeout=catalog.permissions.timeout,
            prompts=catalog.prompts,
            peers=member,
            leader=company.leader,
            web=company.web,
            text_only=spec.text_only,
            require_validation=kind is not None and kind.require_validation,
            agent_id=spec.agent_id,
            depth=spec.depth,
            chain_id=spec.chain_id or self.exec_id,
            spill=RedactedSpill(spill, secrets) if spill and secrets else spill,
            agents=agents,
            runtime=self._lanes.terms(LANE).runtime,
            read_only=spec.read_only,
            skills=skills.load(spec.skill_directories, spec.writable),
            worktree_skills=spec.worktree_skills,
            call=self._nested,
            reads_tasks=self.pipeline.has("task_output"),
            no_git=_no_git(spec, history),
            added=tuple(
                Added(one.mount, names_of(one.path), one.is_writable) for one in spec.directories
            ),
            egress=outfit.broker,
            secrets=secrets,
            dial=functools.partial(self._lanes.dial, self._commands),
            languages=self._languages,
            beside=beside,
            lanes=tuple(self._lanes.boxes) if self._lanes.are_several else (),
        )
        beside |= {name: self._in_lane(main, name) for name in (LANE, *catalog.lanes)}
        self._surroundings = beside[LANE]
        self._started = time.monotonic()
        self._seconds = spec.limits.max_seconds or DAY
        self._deadline = self._started + self._seconds
        self._sequence = 0
        self._told: dict[str, int] = {}
        self._has_told_of_lanes = not self._lanes.are_several
        self._listeners: list[Emit] = []
        self._watching: list[Feed] = []
        self._running: list[Turn] = []
        self._unheard: list[Event] = []

    @property
    def exec_id(self) -> str:
        """The loop's name."""
        return self.spec.exec_id or ""

    @property
    def is_over(self) -> bool:
        """The loop's time is over; no more calls are run."""
        return time.monotonic() >= self._deadline

    @property
    def completed(self) -> str | None:
        """What the model said on `complete_task`; None before."""
        return self.session.completed

    @property
    def report(self) -> Report | None:
        """What the loop made and left, once it is closed; None before."""
        return self._history.report if self._history is not None else None

    @property
    def capabilities(self) -> dict[str, Any]:
        """What isolation the open box really has; in `lanes`, what those of other lanes have."""
        found = self._lanes.capabilities
        told = [*self._mcp_notices, *(self._mcp.notices if self._mcp is not None else ())]
        return {**found, "notices": [*found.get("notices", ()), *told]} if told else found

    def attended(self) -> contextlib.AbstractAsyncContextManager[Attended]:
        """A person is in the box of commands for as long as this lasts: see `Lanes.attended`."""
        return self._lanes.attended(self._commands)

    def definitions(self) -> tuple[dict[str, Any], ...]:
        """The loop's enabled tools as Anthropic's API takes them."""
        return tuple(
            {
                "name": tool.name,
                "description": self.description(tool),
                "input_schema": tool.schema,
            }
            for tool in self.pipeline.enabled(self._surroundings)
        )

    def description(self, tool: Tool) -> str:
        """What the model reads of a tool in this loop."""
        return tool.describe(self._around(tool)) if tool.describe else tool.description

    def disabled(self) -> dict[str, str]:
        """The tools that the model is not shown, each with the reason."""
        return self.pipeline.disabled(self._surroundings)

    @property
    def mode(self) -> str:
        """The permission mode; plan mode changes it."""
        return self.session.mode

    @property
    def todos(self) -> tuple[Todo, ...]:
        """The model's own list, as it last wrote it."""
        return self.session.todos

    def artifacts(self) -> tuple[Artifact, ...]:
        """The plans, specs and phases that the model made, in order."""
        return tuple(self.session.artifacts)

    async def inbox(self) -> AsyncIterator[Message]:
        """What other loops and the host send: questions, data, alerts, a wish to stop."""
        if self._member is not None:
            async for message in self._member.inbox():
                yield message

    async def answer(self, query_id: str, text: str) -> None:
        """Answer a question of another loop.

        Raises:
            ToolError: NOT_FOUND, nobody waits for it; LIMIT, too large.
        """
        if self._member is None:
            raise ToolError(Code.NOT_FOUND, "This loop runs without others.")
        await self._member.answer(query_id, text)

    def allow(self, rule: str) -> None:
        """Allow what a permission rule names, until the loop ends.

        Raises:
            ConfigError: it is no rule.
        """
        self.session.rules = self.session.rules.allowing(rule)

    def change_egress(self, hosts: Iterable[str]) -> None:
        """Let the loop reach these hosts from now on, instead of those before.

        Connections to what is not among them are ended. It holds for the loop's agents, too; the
        set-up keeps its own list, as secrets keep their hosts.

        Args:
            hosts: as `EgressOptions.hosts` has them; none = nothing can be reached.

        Raises:
            ConfigError: with every fault of them, or the loop was opened without any host, so
                that its boxes have no way out; nothing was changed.
        """
        broker = self._surroundings.egress
        if broker is None or not self.spec.egress.hosts:
            raise ConfigError(
                "egress: the loop was opened without any host, so its boxes have no way out; "
                "open it with at least one"
            )
        broker.change(hosts)

    async def tasks(self) -> tuple[Listed, ...]:
        """What goes on beside the calls: background tasks, those that have ended too, and what
        calls that have ended left running. `kill_shell` ends each of them by its id.

        Raises:
            SandboxError: a box was lost meanwhile.
        """
        return await listed(self.session, self._lanes.open_ones())

    def kept(self) -> dict[str, int]:
        """The long outputs that are kept now, oldest first: the path as seen in the boxes → bytes.

        Those that rules deny to read, or want somebody asked about, are not among them.
        """
        if self._kept is None:
            return {}
        kept, rules = self._kept.kept(), self.session.rules
        for some in (rules.deny, rules.ask):
            for path in unreadable(replace(rules, deny=some), kept) if some else ():
                kept.pop(path, None)
        return kept

    async def read_kept(self, path: str, start: int, size: int) -> bytes:
        """Some bytes of one of them, as it was kept: without values of secrets.

        Args:
            path: as `kept` has it.
            start: the first byte.
            size: how many; there are fewer where it ends before.

        Raises:
            KeyError: it is not among them, or no longer.
        """
        if self._kept is None or path not in self.kept():
            raise KeyError(path)
        return await self._kept.read(path, start, size)

    def queued(self) -> tuple[str, ...]:
        """Texts that tools want said in the host's next turn; taken once."""
        texts = tuple(self.session.queued)
        self.session.queued.clear()
        return texts

    def mark_read(self, path: str, digest: str) -> None:
        """The caller has seen the whole file itself, so it may be changed.

        Args:
            path: as a model would write it.
            digest: its content hash, as `read_file` reports it; a file that changed since
                is not overwritten.
        """
        self.session.knows(self._surroundings.reach.to_read(path), digest)

    async def next_iteration(self) -> None:
        """Another iteration of the loop begins, with nothing of the last one in its prompt.

        In toolsets whose catalog entry says `reads = "iteration"` every file has to be read
        again before it is changed; elsewhere nothing happens.
        """
        if self._surroundings.toolset.reads == "iteration":
            self.session.clear_reads()

    async def execute(self, call: Call) -> Result:
        """Run one call. Every failure is a result; only cancellation is raised."""
        answered = await self._execute(call, None, self._new_turn())
        await self._end_turn([answered])
        self._tell(Finished(result=answered.result), None)
        return answered.result

    async def turn(self, calls: Iterable[Call]) -> list[Result]:
        """Run the calls of one assistant turn: reads together, changes one by one.

        Returns:
            The results in the order of the calls.
        """
        return await self._turn(list(calls), None)

    def stream(self, calls: Iterable[Call]) -> AsyncIterator[Event]:
        """Run the calls of one turn and tell what happens; leaving early cancels them.

        `Finished` comes once for each call, in the order of the calls.
        """
        made = list(calls)
        return self._streamed(lambda emit: self._turn(made, emit))

    def stream_model(
        self, events: AsyncIterable[Mapping[str, Any]], form: Format = "anthropic"
    ) -> AsyncIterator[Event]:
        """Run the calls of a message while a model still streams it, and tell what happens.

        Each call starts when its block has ended and the calls before it allow it; those that
        come last in a turn wait for the message's end. Leaving early cancels all.

        Args:
            events: the events of one message, as dicts.
            form: `anthropic`, events of the Messages API; `openai`, chunks of chat completions.

        Raises:
            StreamBroken: the events ended, failed, or told of an error before the message's
                end; holds the results of the calls that ended. What changed nothing was
                ended for it, what changed something has run to its end.
        """
        reader = reader_of(form)
        return self._streamed(lambda emit: self._model_turn(events, reader, emit))

    def events(self) -> AsyncIterator[Event]:
        """All events of the loop from now on, of every turn; ends when the loop is closed.

        A reader who is too slow misses events, live output first, and is told so.
        """
        feed = Feed(MAX_QUEUED_EVENTS)
        self._watching.append(feed)
        return self._watched(feed)

    def runs_beside(self, call: Call) -> bool:
        """The call changes nothing that another one sees, as far as can be told beforehand: it may
        run beside others like it. One that will be refused is such a call, too."""
        intent = self._foreseen(call, "")
        return intent.order is Order.SAFE and not (intent.writes_all or intent.writes_somewhere)

    def cancel(self, *ids: str) -> int:
        """End calls of the turns that are running; each gets a CANCELLED result.

        Args:
            ids: of the calls; none = all of them, those that have not begun too.

        Returns:
            How many calls there were. What a command had printed is in its result.
        """
        return sum(turn.cancel(ids) for turn in tuple(self._running))

    # ─── behind them ───

    async def _streamed(
        self, running: Callable[[Emit], Coroutine[Any, Any, object]]
    ) -> AsyncIterator[Event]:
        """What is told while that runs; it is cancelled if nobody listens to the end."""
        feed = Feed()
        for unheard in self._unheard:
            feed.put(unheard)
        self._unheard.clear()
        self._listeners.append(feed.put)
        task = asyncio.create_task(running(feed.put))
        task.add_done_callback(lambda _: feed.close())
        try:
            while (event := await feed.next()) is not None:
                yield event
            await task
        finally:
            self._listeners.remove(feed.put)
            task.cancel()
            await asyncio.wait({task})

    async def _watched(self, feed: Feed) -> AsyncIterator[Event]:
        try:
            while (event := await feed.next()) is not None:
                if (warned := feed.left_out()) is not None:
                    yield self._stamped(warned)
                yield event
        finally:
            self._watching.remove(feed)

    async def _turn(self, calls: Sequence[Call], emit: Emit | None) -> list[Result]:
        with self._new_run(emit) as turn:
            for call in calls:
                turn.add(call)
            turn.close()
            answers = await self._ended(turn, turn.run())
        return [answered.result for answered in answers]

    async def _model_turn(
        self, events: AsyncIterable[Mapping[str, Any]], reader: Reader, emit: Emit
    ) -> None:
        with self._new_run(emit) as turn:
            answers = await self._ended(turn, turn.run_with(events, reader))
        if turn.fault is not None:
            raise StreamBroken(
                str(turn.fault) or type(turn.fault).__name__,
                [answered.result for answered in answers],
                [call.id for call in turn.unanswered],
            ) from turn.fault

    @contextlib.contextmanager
    def _new_run(self, emit: Emit | None) -> Iterator[Turn]:
        """A turn that `cancel` knows of for as long as this lasts."""
        turn_id = self._new_turn()
        turn = Turn(
            Crew(
                execute=lambda call, begun: self._execute(call, emit, turn_id, begun),
                foresee=lambda call: self._foreseen(call, turn_id),
                box=self._lane,
                tell=lambda event: self._tell(event, emit),
                lane=lambda call: self._lane_of(call.name),
            )
        )
        self._running.append(turn)
        try:
            yield turn
        finally:
            self._running.remove(turn)

    def _foreseen(self, call: Call, turn_id: str) -> Intent:
        """What the call is going to do; nothing if it will be refused."""
        found = self.pipeline.foreseen(call)
        if found is None:
            return Intent(Order.SAFE)
        tool, arguments = found
        around = self._around(tool)
        context = Context(call.id, tool.entry, around, turn_id=turn_id, tool=tool.name)
        intent = intent_of(tool, arguments, context)
        if around.lane in around.lanes and around.lane not in self.session.shells:
            return intent.blind(tool)  # nobody knows yet how its shell reads a command line
        return intent if around.lane == LANE else intent.apart()  # `no-net` is looked at

    def _in_lane(self, main: Surroundings, name: str) -> Surroundings:
        """What calls of a lane share."""
        terms = self._lanes.terms(name)
        box = self._lanes.boxes[terms.lane]
        return replace(
            main,
            lane=terms.lane,
            box=RedactedBox(box, self._secrets) if self._secrets else box,
            limits=terms.limits,
            runtime=terms.runtime,
            is_bridged=terms.network == "bridge",
            serve=functools.partial(self._lanes.serve, terms.lane),
        )

    def _around(self, tool: Tool | None) -> Surroundings:
        """What a call of the tool is given; of no tool, what any is."""
        return self._surroundings if tool is None else self._surroundings.in_lane(lane_of(tool))

    def _lane_of(self, name: str) -> str | None:
        """Where a tool runs; None = there is no such tool."""
        tool = self.registry.get(name)
        return None if tool is None else self._around(tool).lane

    @contextlib.asynccontextmanager
    async def _seat(self, context: Context) -> AsyncIterator[None]:
        """A place in the lane that the call's tool is meant for, whatever box that has."""
        tool = self.registry.get(context.tool)
        queue = self._lanes.queue(LANE if tool is None else lane_of(tool))
        async with queue.place(context.progress):
            yield

    def _tell(self, event: Event, emit: Emit | None) -> None:
        """Tell the stream of a turn, and whoever watches the loop."""
        if emit is None and not self._watching:
            return
        event = self._stamped(event)
        if emit is not None:
            emit(event)
        for feed in self._watching:
            feed.put(event)

    def _new_turn(self) -> str:
        self._turns += 1
        return f"turn-{self._turns}"

    async def _ended(self, turn: Turn, running: Awaitable[list[Answered]]) -> list[Answered]:
        """What the calls came to, and what comes once a turn, of a cancelled one too."""
        try:
            answers = await running
        except asyncio.CancelledError:
            await self._end_turn(turn.answers, is_cancelled=True)
            raise
        await self._end_turn(answers)
        return answers

    async def _end_turn(self, answers: Sequence[Answered], *, is_cancelled: bool = False) -> None:
        """What comes once a turn: changes of the loop, in order, then the hook."""
        if self._mcp is not None and not is_cancelled:
            await self._mcp.refresh(self.registry)
        for answered in answers:
            self._modify(answered.modifiers)
        uses = [found.use for found in answers if found.has_mutated and found.use is not None]
        uses += self._nested_uses
        self._nested_uses.clear()
        if uses:
            hooks = self.pipeline.hooks
            for warning in await hooks.after_turn(uses, is_cancelled=is_cancelled):
                self._announce(Warned(message=warning))
            if self._history is not None and not is_cancelled:
                for warning in await self._history.after_turn(self._lane, uses):
                    self._announce(Warned(message=warning))

    def _modify(self, modifiers: Iterable[Modifier]) -> None:
        """Apply what tools want changed in the loop."""
        for modifier in modifiers:
            match modifier:
                case FileRead(path, digest):
                    self.session.knows(path, digest)
                case PermissionGranted(rule):
                    try:
                        self.allow(rule)
                    except ConfigError as error:
                        self._announce(Warned(message=f"nothing was granted: {error}"))
                case QueueCommand(text):
                    self.session.queued.append(text)
                    self._announce(CommandQueued(text=text))

    async def _execute(
        self,
        call: Call,
        emit: Emit | None,
        turn_id: str,
        begun: Callable[[], object] | None = None,
    ) -> Answered:
        self._tell(CallStarted(call=call), emit)
        tell = functools.partial(self._tell, emit=emit) if emit or self._watching else None
        left = self._deadline - time.monotonic()
        lane = self._lane_of(call.name)
        if left <= 0:
            return Answered(replace(self._time_is_over(call), lane=lane))
        around = self._around(self.registry.get(call.name))
        with self._lanes.in_use(around.lane):
            try:
                answered = await self.pipeline.answer(
                    call, around, tell, left, turn_id, begun, self._seat
                )
            except asyncio.CancelledError:
                self._doubt(call, turn_id)  # nobody knows how far it has come
                raise
        self._invalidate(answered, turn_id)
        result = self._outlook(call, answered.result, around.lane)
        result = redacted(replace(result, lane=lane), self._secrets)
        return replace(answered, result=result)

    def _invalidate(self, answered: Answered, turn_id: str) -> None:
        """What was validated has to be validated again once something may have changed it."""
        use = answered.use
        if self.session.validated is None or use is None or use.canonical == VALIDATE:
            return
        tool = self.registry.get(use.tool)
        has_run = answered.has_mutated or (tool is not None and tool.access is Access.EXEC)
        if has_run and use.is_mutating:
            self._doubt(Call(use.call_id, use.tool, use.input), turn_id)

    def _doubt(self, call: Call, turn_id: str) -> None:
        """A call that may have changed something has run, at least in part."""
        if self.session.validated is not None:
            intent = self._foreseen(call, turn_id)
            if intent.writes_all or intent.writes_somewhere:
                self.session.validated = None

    async def _nested(self, context: Context, canonical: str, given: Mapping[str, Any]) -> Answered:
        """See `executor.tool.MakeCall`."""
        self._nested_calls += 1
        named = (tool for tool in self.registry.all() if tool.canonical == canonical)
        tool = next(named, None)
        name = canonical if tool is None else tool.name
        call = Call(f"{context.call_id}.{self._nested_calls}", name, given)
        around = self._around(tool)
        # It waits for no place: the call that makes it has one, which might be the last.
        with self._lanes.in_use(around.lane):
            answered = await self.pipeline.answer(
                call, around, context.emit, context.time_left, context.turn_id
            )
        answered = replace(answered, result=replace(answered.result, lane=self._lane_of(name)))
        self._invalidate(answered, context.turn_id)
        if answered.has_mutated and answered.use is not None:
            self._nested_uses.append(answered.use)
        return answered

    def _outlook(self, call: Call, result: Result, name: str) -> Result:
        """The result of a call, with what the loop has to know about the box of its lane."""
        lane = self._lanes.boxes[name]
        if result.code in _NO_BOX:
            if time.monotonic() >= self._deadline:
                return self._time_is_over(call)
            return _with_outlook(result) if result.code is Code.SANDBOX_LOST else result
        if lane.replaced != self._told.get(name, 0) and lane.gone is not None:
            self._told[name] = lane.replaced
            result = _with_notice(result, lane.gone)
        if not self._has_told_of_lanes and name != LANE and lane.is_open:
            self._has_told_of_lanes = True
            result = _with_lanes(
                result, self._lanes.described(self.pipeline.enabled(self._surroundings))
            )
        return result

    def _time_is_over(self, call: Call) -> Result:
        message = f"The loop's time of {plain(self._seconds)} s is over; no more calls are run."
        elapsed = (time.monotonic() - self._deadline) * 1000
        return results.refusal(call, Code.TIMEOUT, message, max(elapsed, 0.0))

    def _announce(self, event: Event) -> None:
        event = self._stamped(event)
        if not self._listeners:
            self._unheard.append(event)
        for emit in (*self._listeners, *(feed.put for feed in self._watching)):
            emit(event)

    def _stamped(self, event: Event) -> Event:
        self._sequence += 1
        since = (time.monotonic() - self._started) * 1000
        event = redacted(event, self._secrets)
        return replace(event, exec_id=self.exec_id, seq=self._sequence, monotonic_ms=since)

    async def _end_in_time(self) -> None:
        """Take the box away when the loop's time is over, whatever still runs in it."""
        await asyncio.sleep(max(self._deadline + OVERTIME - time.monotonic(), 0.0))
        await self._lanes.close()

    def _end_watching(self) -> None:
        for feed in self._watching:
            feed.close()

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Loop]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.session.background.close)
            stack.push_async_callback(self._lanes.close)
            stack.push_async_callback(self._languages.close)
            watch = asyncio.create_task(self._end_in_time())
            stack.callback(watch.cancel)
            await self._lane.open()
            stack.push_async_callback(self._bring_history_home)
            await self._open_mcp(stack)
            stack.callback(watch.cancel)
            stack.callback(self._end_watching)
            stack.push_async_callback(self.session.stop)
            yield self

    async def _open_mcp(self, stack: AsyncExitStack) -> None:
        """Start the MCP servers, and have their tools; what is wrong with one is said."""
        if not self._mcp_entries:
            return
        try:
            from executor.foreign.secrets import variables_of
            from executor.foreign.servers import McpServers, register_mcp_tools
        except ImportError as error:
            text = f"MCP servers are not started: {error}; install executor[mcp]"
            self._mcp_notices.append(text)
            self._announce(Warned(message=text))
            return
        entries = self._mcp_entries
        variables = variables_of(entries)
        servers = McpServers(entries, self._surroundings, self._announce, variables)
        self._mcp = servers
        stack.push_async_callback(_to_completion_of, servers.close)
        await register_mcp_tools(self.registry, servers)

    async def _bring_history_home(self) -> None:
        """What was committed leaves the box while there still is one."""
        if self._history is not None:
            is_open = self._lane.is_open
            await to_completion(self._history.collect(self._lane, is_open=is_open))


async def _to_completion_of(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Clean-up that is done to its end."""
    await to_completion(work())


def _wanted_programs(catalog: Catalog) -> tuple[str, ...]:
    """The programs of language servers that each new box is asked for."""
    entries = (entry for entry in catalog.languages.values() if entry.enabled)
    names = dict.fromkeys(words[0] for entry in entries for words in entry.commands if words)
    return tuple(names)


def _no_git(spec: LoopSpec, history: History | None) -> str | None:
    """Why the boxes of a loop have no git; an outline, and an agent, have no history."""
    if history is not None:
        return history.no_git
    return "git is hidden from this loop" if spec.git.sharing == "hidden" else None


def _with_outlook(result: Result) -> Result:
    """The result of a call whose box was lost under it, with what comes next."""
    outlook = (
        "the next call opens a new sandbox on the same worktree: files there are intact, "
        "processes and /tmp are gone"
    )
    cause = str(result.content)
    details = {**(result.details or {}), "sandbox_lost": cause}
    return replace(result, content=results.with_notices(cause, [outlook]), details=details)


def _with_notice(result: Result, gone: Gone) -> Result:
    """The result, with what the loop has to know about its new box."""
    key = "sandbox_lost" if gone.is_lost else "sandbox_given_back"
    return _noted(result, gone.notice, {key: gone.cause})


def _with_lanes(result: Result, described: dict[str, list[str]]) -> Result:
    """The result of the first call that ran elsewhere than in `no-net`, with what runs where."""
    return _noted(result, notice(described), {"lanes": described})


def _noted(result: Result, said: str, more: dict[str, Any]) -> Result:
    content: Any = result.content
    if isinstance(content, str):
        content = results.with_notices(content, [said])
    else:
        content = [*content, {"type": "text", "text": f"[{said}]"}]
    return replace(result, content=content, details={**(result.details or {}), **more})


def names_of(directory: Path | str) -> tuple[str, ...]:
    """Names that a directory has on the host; a host's prompt may use them."""
    given = os.path.abspath(directory)
    return tuple(root for root in dict.fromkeys((given, os.path.realpath(given))) if root != "/")


def rules_of(spec: LoopSpec, catalog: Catalog, tools: Iterable[Tool] = ()) -> Rules:
    """The rules of a loop: the catalog's, then its own.

    Args:
        spec: of the loop.
        catalog: has rules for every loop, and those that a plan's prompts stand for.
        tools: the host's own, which rules may name.

    Raises:
        ConfigError: with every bad rule, named.
    """
    known = toolsets.names(catalog, tools)
    more = catalog.permissions
    rules = Rules.parse(
        [*more.allow, *spec.allow], [*more.ask, *spec.ask], [*more.deny, *spec.deny], known
    )
    Rules.parse([rule for prompted in catalog.prompts.values() for rule in prompted], known=known)
    check_paths(rules)
    return rules
