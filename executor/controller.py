"""Loops: opened over a worktree, given calls, closed with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import secrets
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from executor import results, skills, toolsets
from executor.audit import AuditLog
from executor.background import Listed
from executor.catalog import Catalog, load
from executor.coordination import Coordinator, LocalCoordinator, Member, Message
from executor.errors import Code, ConfigError, EngineError, SandboxError, StreamBroken, ToolError
from executor.hooks import Hooks
from executor.model import (
    MOUNT,
    Access,
    Artifact,
    Call,
    CallStarted,
    CommandQueued,
    Event,
    Finished,
    LaneLost,
    LaneOpened,
    LoopSpec,
    Result,
    Todo,
    Warned,
    plain,
)
from executor.paths import Added
from executor.permissions import Mode, check_paths, check_patterns, restrictions
from executor.pipeline import Answered, Emit, Pipeline
from executor.rules import Rule, Rules
from executor.sandbox import copies, gate, spill
from executor.sandbox.box import Host, loop_quota, open_box, worktree_of
from executor.sandbox.completion import to_completion
from executor.sandbox.copies import Ground
from executor.sandbox.engine import OVERRIDE, Engine, address_fault
from executor.sandbox.images import Progress
from executor.sandbox.ownership import Worktree, open_own
from executor.sandbox.quota import Quota
from executor.sandbox.reaper import Identity, reap
from executor.sandbox.runtime import silent
from executor.scheduling import Intent, intent_of
from executor.session import Session
from executor.settings import Settings
from executor.streaming import Format, Reader, reader_of
from executor.text import one_line
from executor.tool import (
    Agents,
    Answer,
    Approver,
    Context,
    FileRead,
    Modifier,
    OnOutput,
    Operations,
    Order,
    PermissionGranted,
    QueueCommand,
    Registry,
    Spill,
    Surroundings,
    Tool,
)
from executor.tools.agents import MAX_DEPTH
from executor.tools.background import AWAIT, listed
from executor.tools.projects import VALIDATE
from executor.turn import MAX_QUEUED_EVENTS, Crew, Feed, Turn

if TYPE_CHECKING:
    from executor.messages import Model

DAY = 86400.0
LANE = "no-net"
"""The lane of every box so far: they all have the same policy, no network."""
OVERTIME = 3.0
"""Seconds that a call which is being ended may go on after the loop's time is over."""
RESTRICT_TIMEOUT = 10.0
"""Seconds that the agent may take to take up what the rules deny."""
SWEEP_INTERVAL = 300.0
"""Seconds between two looks for what dead controllers left behind."""
SWEEP_PATIENCE = 10.0
"""Seconds that closing a controller waits for its first look."""

log = logging.getLogger(__name__)

_NO_BOX = (Code.SANDBOX_LOST, Code.SANDBOX_UNAVAILABLE, Code.PROTOCOL_ERROR)


class OpenBox(Operations, Protocol):
    """A box as the sandbox layer hands it out."""

    @property
    def name(self) -> str:
        """Of the container."""

    @property
    def capabilities(self) -> dict[str, Any]:
        """What isolation is really there."""

    @property
    def error(self) -> SandboxError | None:
        """Why the box is lost; None while it lives."""

    async def mourned(self) -> SandboxError | None:
        """`error`, once the cause was looked for."""


Opener: TypeAlias = Callable[[LoopSpec], AbstractAsyncContextManager[OpenBox]]
"""Opens a box for a loop; leaving the context removes it."""

Source: TypeAlias = Callable[[], Worktree]
"""Opens a loop's worktree as its boxes have it."""


@dataclass(frozen=True, slots=True)
class Company:
    """Whom and what the host gives to its loops.

    Attributes:
        tools: the user's own, beside those of the toolset.
        hooks: what the host wants to see or stop.
        approver: who decides and answers; None = nobody can be asked.
        leader: who decides on plans in their own time; None = the approver does.
    """

    tools: tuple[Tool, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    approver: Approver | None = None
    leader: Approver | None = None


class Loop:
    """One open loop. Made by `Controller.open`."""

    def __init__(
        self,
        spec: LoopSpec,
        catalog: Catalog,
        opener: Opener,
        company: Company | None = None,
        member: Member | None = None,
        spill: Spill | None = None,
        agents: Agents | None = None,
    ) -> None:
        company = company or Company()
        self.spec = spec
        self.session = Session()
        self.session.mode = spec.mode
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
            allowed = tuple(name for name in spec.tools if allowed is None or name in allowed)
            label = label or "subagent"
        self.pipeline = Pipeline(self.registry, allowed, label, company.hooks)
        self._turns = self._nested_calls = 0
        self._member = member
        self._seat = _Seat(spec, opener, self.session, self._announce)
        self._surroundings = Surroundings(
            exec_id=self.exec_id,
            session=self.session,
            limits=spec.limits,
            lane=LANE,
            toolset=toolset,
            roots=_names_of(spec.worktree),
            box=self._seat,
            seccomp=spec.seccomp,
            tenant=spec.tenant,
            approver=company.approver,
            approval_timeout=catalog.permissions.timeout,
            prompts=catalog.prompts,
            peers=member,
            leader=company.leader,
            text_only=spec.text_only,
            require_validation=kind is not None and kind.require_validation,
            agent_id=spec.agent_id,
            depth=spec.depth,
            chain_id=spec.chain_id or self.exec_id,
            spill=spill,
            agents=agents,
            runtime=spec.runtime,
            read_only=spec.read_only,
            skills=skills.load(spec.skill_directories),
            worktree_skills=spec.worktree_skills,
            call=self._nested,
            added=tuple(
                Added(one.mount, _names_of(one.path), one.is_writable) for one in spec.directories
            ),
        )
        self._started = time.monotonic()
        self._seconds = spec.limits.max_seconds or DAY
        self._deadline = self._started + self._seconds
        self._sequence = 0
        self._told = 0
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
    def capabilities(self) -> dict[str, Any]:
        """What isolation the open box really has."""
        return self._seat.capabilities

    @contextlib.contextmanager
    def attended(self) -> Iterator[str]:
        """A person is in the box for as long as this lasts: it is not given back as idle.

        Yields the name of its container.
        """
        with self._seat.in_use():
            yield self._seat.name

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
        return tool.describe(self._surroundings) if tool.describe else tool.description

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

    async def tasks(self) -> tuple[Listed, ...]:
        """What goes on beside the calls: background tasks, those that have ended too, and what
        calls that have ended left running. `kill_shell` ends each of them by its id.

        Raises:
            SandboxError: the box was lost meanwhile.
        """
        return await listed(self._surroundings, is_open=self._seat.is_open)

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
            feed.put(self._stamped(unheard))
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
            answers = await turn.run()
        await self._end_turn(answers)
        return [answered.result for answered in answers]

    async def _model_turn(
        self, events: AsyncIterable[Mapping[str, Any]], reader: Reader, emit: Emit
    ) -> None:
        with self._new_run(emit) as turn:
            answers = await turn.run_with(events, reader)
        await self._end_turn(answers)
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
                execute=lambda call: self._execute(call, emit, turn_id),
                foresee=lambda call: self._foreseen(call, turn_id),
                box=self._seat,
                tell=lambda event: self._tell(event, emit),
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
        context = Context(call.id, tool.entry, self._surroundings, turn_id=turn_id, tool=tool.name)
        return intent_of(tool, arguments, context)

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

    async def _end_turn(self, answers: Sequence[Answered]) -> None:
        """What comes once a turn: changes of the loop, in order, then the hook."""
        for answered in answers:
            self._modify(answered.modifiers)
        uses = [found.use for found in answers if found.has_mutated and found.use is not None]
        if uses:
            for warning in await self.pipeline.hooks.after_turn(uses):
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

    async def _execute(self, call: Call, emit: Emit | None, turn_id: str) -> Answered:
        self._tell(CallStarted(call=call), emit)
        tell = functools.partial(self._tell, emit=emit) if emit or self._watching else None
        left = self._deadline - time.monotonic()
        if left <= 0:
            return Answered(self._time_is_over(call))
        with self._seat.in_use():
            answered = await self.pipeline.answer(call, self._surroundings, tell, left, turn_id)
        self._invalidate(answered, turn_id)
        return replace(answered, result=self._outlook(call, answered.result))

    def _invalidate(self, answered: Answered, turn_id: str) -> None:
        """What was validated has to be validated again once something may have changed it."""
        use = answered.use
        if self.session.validated is None or use is None or use.canonical == VALIDATE:
            return
        tool = self.registry.get(use.tool)
        has_run = answered.has_mutated or (tool is not None and tool.access is Access.EXEC)
        if has_run and use.is_mutating:
            intent = self._foreseen(Call(use.call_id, use.tool, use.input), turn_id)
            if intent.writes_all or intent.writes_somewhere:
                self.session.validated = None

    async def _nested(self, context: Context, canonical: str, given: Mapping[str, Any]) -> Answered:
        """See `executor.tool.MakeCall`."""
        self._nested_calls += 1
        named = (tool.name for tool in self.registry.all() if tool.canonical == canonical)
        call = Call(f"{context.call_id}.{self._nested_calls}", next(named, canonical), given)
        return await self.pipeline.answer(
            call, self._surroundings, context.emit, context.time_left, context.turn_id
        )

    def _outlook(self, call: Call, result: Result) -> Result:
        """The result of a call, with what the loop has to know about its box."""
        if result.code in _NO_BOX:
            if time.monotonic() >= self._deadline:
                return self._time_is_over(call)
            return _with_outlook(result) if result.code is Code.SANDBOX_LOST else result
        if self._seat.replaced != self._told and self._seat.gone is not None:
            self._told = self._seat.replaced
            return _with_notice(result, self._seat.gone)
        return result

    def _time_is_over(self, call: Call) -> Result:
        message = f"The loop's time of {plain(self._seconds)} s is over; no more calls are run."
        elapsed = (time.monotonic() - self._deadline) * 1000
        return results.refusal(call, Code.TIMEOUT, message, max(elapsed, 0.0))

    def _announce(self, event: Event) -> None:
        if not self._listeners:
            self._unheard.append(event)
        event = self._stamped(event)
        for emit in (*self._listeners, *(feed.put for feed in self._watching)):
            emit(event)

    def _stamped(self, event: Event) -> Event:
        self._sequence += 1
        since = (time.monotonic() - self._started) * 1000
        return replace(event, exec_id=self.exec_id, seq=self._sequence, monotonic_ms=since)

    async def _end_in_time(self) -> None:
        """Take the box away when the loop's time is over, whatever still runs in it."""
        await asyncio.sleep(max(self._deadline + OVERTIME - time.monotonic(), 0.0))
        await self._seat.close()

    def _end_watching(self) -> None:
        for feed in self._watching:
            feed.close()

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Loop]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.session.background.close)
            stack.push_async_callback(self._seat.close)
            await self._seat.open()
            watch = asyncio.create_task(self._end_in_time())
            stack.callback(watch.cancel)
            stack.callback(self._end_watching)
            stack.push_async_callback(self.session.stop)
            yield self


@dataclass(frozen=True, slots=True)
class _Gone:
    """What became of a box that was replaced.

    Attributes:
        cause: as `LaneLost` has it.
        is_lost: nobody of ours wanted it to end.
    """

    cause: str
    is_lost: bool

    @property
    def notice(self) -> str:
        """What the loop has to know about its new box."""
        what = f"was lost ({self.cause})" if self.is_lost else f"is a new one ({self.cause})"
        more = " and a new one was opened on the same worktree" if self.is_lost else ""
        return (
            f"the sandbox {what}{more}: processes, /tmp and the working directory are gone, "
            f"files in {MOUNT} are intact"
        )


class _Seat:
    """The loop's place for a box. A box that is gone is replaced when a call needs one.

    It goes when it is lost, and when no call has been running for `Limits.idle_seconds`.
    A background task counts as a call; what a call left running does not, and goes with the box.

    Attributes:
        replaced: how many boxes are gone and replaced.
        gone: what became of the last of them; None = there was no other box yet.
    """

    def __init__(self, spec: LoopSpec, opener: Opener, session: Session, announce: Emit) -> None:
        self.replaced = 0
        self.gone: _Gone | None = None
        self._spec = spec
        self._opener = opener
        self._session = session
        self._announce = announce
        self._lock = asyncio.Lock()
        self._box: OpenBox | None = None
        self._is_vacant = False
        self._stack = AsyncExitStack()
        self._is_closed = False
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._giving_back: asyncio.Task[None] | None = None
        self._restricted: tuple[Rule, ...] = ()

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._box.capabilities if self._box is not None else {}

    @property
    def is_open(self) -> bool:
        """There is a box, and it lives."""
        return self._box is not None and self._box.error is None

    @property
    def name(self) -> str:
        """Of the open box's container; empty while there is none."""
        return self._box.name if self._box is not None else ""

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """A call runs for as long as this lasts; the box is not given back meanwhile."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield
        finally:
            self._users -= 1
            self._count_idle_time()

    async def ready(self) -> None:
        """See `Box.ready`."""
        if self._box is None or self._box.error is not None:
            await self.open()
        elif self._restricted is not self._session.rules.deny:
            async with self._lock:
                await self._restrict(self._box)

    async def _restrict(self, box: OpenBox) -> None:
        """Tell the agent what the rules deny to files; it looks at what it opens.

        Raises:
            SandboxError: it did not take it, so the box must not be used.
        """
        rules = self._session.rules
        told = restrictions(rules)
        if any(told.values()) or self._restricted:
            try:
                await box.request("restrict", told, timeout=RESTRICT_TIMEOUT)
            except ToolError as error:
                raise SandboxError(f"the agent did not take the loop's rules: {error}") from error
        self._restricted = rules.deny

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Answer:
        """See `Operations.request`."""
        box = self._box
        if box is None or box.error is not None:
            box = await self.open()
        # A background task is use of the box after its call, too.
        with self.in_use() if op == AWAIT else contextlib.nullcontext():
            return await box.request(op, arguments, body, timeout=timeout, on_output=on_output)

    async def open(self) -> OpenBox:
        """The open box, after opening one if there is none. Callers at once share it.

        Raises:
            SandboxError: none could be opened.
        """
        async with self._lock:
            if self._is_closed:
                raise SandboxError("the loop is closed")
            box = self._box
            if box is not None and box.error is None:
                return box
            if box is not None:
                error = await box.mourned()
                await self._vacate(_Gone(str(error), is_lost=True))
            box = await self._stack.enter_async_context(self._opener(self._spec))
            try:
                self._restricted = ()
                await self._restrict(box)
            except BaseException:
                await self._leave()
                raise
            self._box = box
            if self._is_vacant:
                self._is_vacant = False
                self.replaced += 1
            self._announce(LaneOpened(lane=LANE, sandbox=box.name))
            self._count_idle_time()
            return box

    async def _vacate(self, gone: _Gone) -> None:
        """Have no box; the lock is held."""
        self._box = None
        self._is_vacant = True
        self.gone = gone
        # A new box starts at the root.
        self._session.cwd = MOUNT
        self._announce(LaneLost(lane=LANE, cause=gone.cause))
        await self._leave()

    async def _leave(self) -> None:
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        except SandboxError as error:
            reason = one_line(str(error))
            log.warning("the box could not be removed and is left to the reaper: %s", reason)

    def _count_idle_time(self) -> None:
        """From now on nothing runs, unless something does."""
        seconds = self._spec.limits.idle_seconds
        if seconds is None or self._users or self._box is None or self._is_closed:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(seconds, self._on_idle, seconds)

    def _on_idle(self, seconds: float) -> None:
        self._idle = None
        self._giving_back = asyncio.ensure_future(self._give_back(seconds))

    async def _give_back(self, seconds: float) -> None:
        """Remove a box that nobody uses. A call that comes meanwhile waits for a new one."""
        async with self._lock:
            if self._users or self._box is None or self._is_closed:
                return
            error = self._box.error
            cause = f"the box was given back after {plain(seconds)} s without a call"
            gone = _Gone(cause, False) if error is None else _Gone(str(error), True)
            await self._vacate(gone)

    async def close(self) -> None:
        """Remove the box. Nothing is opened after this."""
        self._is_closed = True
        if self._idle is not None:
            self._idle.cancel()
        await to_completion(self._close())

    async def _close(self) -> None:
        async with self._lock:
            self._box = None
            await self._leave()
        if self._giving_back is not None:
            await asyncio.wait({self._giving_back})


def _with_outlook(result: Result) -> Result:
    """The result of a call whose box was lost under it, with what comes next."""
    outlook = (
        "the next call opens a new sandbox on the same worktree: files there are intact, "
        "processes and /tmp are gone"
    )
    cause = str(result.content)
    details = {**(result.details or {}), "sandbox_lost": cause}
    return replace(result, content=results.with_notices(cause, [outlook]), details=details)


def _with_notice(result: Result, gone: _Gone) -> Result:
    """The result, with what the loop has to know about its new box."""
    content: Any = result.content
    if isinstance(content, str):
        content = results.with_notices(content, [gone.notice])
    else:
        content = [*content, {"type": "text", "text": f"[{gone.notice}]"}]
    key = "sandbox_lost" if gone.is_lost else "sandbox_given_back"
    return replace(result, content=content, details={**(result.details or {}), key: gone.cause})


def _names_of(directory: Path | str) -> tuple[str, ...]:
    """Names that a directory has on the host; a host's prompt may use them."""
    given = os.path.abspath(directory)
    return tuple(root for root in dict.fromkeys((given, os.path.realpath(given))) if root != "/")


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
    ) -> None:
        self.settings = settings if settings is not None else Settings.load()
        self.catalog = catalog if catalog is not None else load(self.settings.config_file)
        self._opener = opener
        self._host: Host | None = None
        self._progress = progress
        self._coordinator: Coordinator = coordinator or LocalCoordinator()
        before = Hooks.from_catalog(self.catalog.hooks)
        own = _own(tools, self.catalog)
        self._company = Company(own, before + (hooks or Hooks()), approver, leader)
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
            if error is not None and self._host is not None:
                for name in sorted(self._host.identity.left):
                    error.add_note(f"the box {name} is left to the next sweep")

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

    @contextlib.asynccontextmanager
    async def _loop(self, spec: LoopSpec, ground: Ground | None = None) -> AsyncIterator[Loop]:
        """A loop; of an agent, if a ground is given."""
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
                self._boxes(spec, ground) as (opener, spill, source),
            ):
                agents = self._agents(spec, source)
                loop = Loop(spec, self.catalog, opener, self._company, member, spill, agents)
                async with loop._opened():
                    yield loop
        finally:
            self._open.discard(exec_id)

    def _joined(
        self, spec: LoopSpec, ground: Ground | None
    ) -> AbstractAsyncContextManager[Member | None]:
        """What makes a loop one of those that speak with each other; an agent is its loop's."""
        if ground is not None:
            return contextlib.nullcontext()
        return self._coordinator.join(spec.tenant, str(spec.exec_id))

    @contextlib.asynccontextmanager
    async def _boxes(
        self, spec: LoopSpec, ground: Ground | None
    ) -> AsyncIterator[tuple[Opener, Spill | None, Source]]:
        """Opens the loop's boxes, over what lasts from the first of them to the last.

        Yields also what opens the worktree as these boxes have it.
        """
        assert self._opener is not None, "the controller is open"
        if self._host is None:
            yield self._opener, None, functools.partial(open_own, Path(spec.worktree).resolve())
            return
        identity = self._host.identity
        async with self._quota(self._host, spec, ground) as quota:
            with spill.opened(identity, str(spec.exec_id), self.catalog.spill) as results:
                host = replace(self._host, quota=quota, results=results.directory)
                source = functools.partial(worktree_of, host, spec)
                yield functools.partial(open_box, host), results, source

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

    def _agents(self, spec: LoopSpec, source: Source) -> Agents | None:
        """What starts agents below a loop; None = nothing does."""
        if self._model is None or spec.depth >= MAX_DEPTH:
            return None
        from executor.subagents import Parent, Subagents

        known = toolsets.names(self.catalog)
        for tool in self._company.tools:
            known |= {tool.name: tool.canonical, tool.canonical: tool.canonical}
        return Subagents(
            Parent(
                spec=spec,
                kinds=self.catalog.agents,
                known=known,
                model=self._model,
                ground=functools.partial(self._ground, spec, source),
                open=self._loop,
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
        async with copies.copied(source, directory) as ground:
            yield ground

    def _check(self, spec: LoopSpec) -> None:
        faults = [*spec.faults(), *self.catalog.faults(spec)]
        if spec.mode not in set(Mode):
            faults.append(f"mode: there is no {spec.mode!r}; use one of {', '.join(Mode)}")
        try:
            rules_of(spec, self.catalog, self._company.tools)
        except ConfigError as error:
            faults += error.faults
        try:
            self._company.hooks.check(_names_of(spec.worktree))
        except ConfigError as error:
            faults += error.faults
        if faults:
            raise ConfigError(faults)


def _model_of(settings: Settings) -> Model:
    """The model that the settings name; its library is loaded only then.

    Raises:
        ConfigError: key or address can't be used.
    """
    from executor.messages import MessagesApi

    assert settings.model_key is not None, "there is a key"
    api = MessagesApi(settings.model_key, model=settings.model_name)
    return api if settings.model_url is None else replace(api, base_url=settings.model_url)


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


def rules_of(spec: LoopSpec, catalog: Catalog, tools: Iterable[Tool] = ()) -> Rules:
    """The rules of a loop: the catalog's, then its own.

    Args:
        spec: of the loop.
        catalog: has rules for every loop, and those that a plan's prompts stand for.
        tools: the host's own, which rules may name.

    Raises:
        ConfigError: with every bad rule, named.
    """
    known = toolsets.names(catalog)
    for tool in tools:
        known |= {tool.name: tool.canonical, tool.canonical: tool.canonical}
    more = catalog.permissions
    rules = Rules.parse(
        [*more.allow, *spec.allow], [*more.ask, *spec.ask], [*more.deny, *spec.deny], known
    )
    Rules.parse([rule for prompted in catalog.prompts.values() for rule in prompted], known=known)
    check_paths(rules)
    return rules


@contextlib.asynccontextmanager
async def _swept(engine: Engine, state: Path, identity: Identity) -> AsyncIterator[None]:
    """Clears away what dead controllers left, now and then again, beside the work."""

    async def sweep() -> None:
        try:
            reaped = await reap(engine, state, identity)
        except EngineError as error:
            log.warning("left-overs could not be looked for: %s", one_line(str(error)))
            return
        for failure in reaped.failures:
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
