"""Agents below a loop: each a conversation with a model, over a loop and a box of its own.

An agent is never wider than the loop that starts it. It has that loop's image, runtime and
limits, no mode that asks less, the rules that it has at that moment, and of its tools those of
the agent's type. It works in a copy of the worktree that is merged back when it has ended, or
sees the worktree itself and can't change it (`sandbox.copies`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from executor.background import Status, Written
from executor.catalog import AgentEntry
from executor.errors import (
    Code,
    ConfigError,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    SandboxError,
    ToolError,
)
from executor.foreign.names import both
from executor.messages import Model, Reply, Usage
from executor.model import (
    Block,
    Call,
    CallStarted,
    Directory,
    Event,
    Finished,
    GitOptions,
    LoopSpec,
    Output,
    Progress,
    Result,
    Warned,
)
from executor.permissions import Mode
from executor.results import with_notices
from executor.rules import FOREIGN
from executor.sandbox.copies import Ground, Merged
from executor.sandbox.mirror import Moved
from executor.session import Session
from executor.text import one_line
from executor.tool import Context, Outcome
from executor.tools.agents import Task

DEFAULT_TURNS = 50
MAX_TOKENS = 16_000
"""Of one message of an agent."""
MAX_RUNNING = 10
"""Agents of one loop, and of its agents, that run at a time: each has a box."""
MARGIN = 10.0
"""Seconds that an agent's loop may take longer than the agent: its box has to be opened."""
MAX_NAME = 40
"""Characters of a loop's name in the names of its agents' loops."""
MAX_NAMED = 100
"""Characters that a refusal repeats of a name that there is not."""
MAX_KNOWN = 100
"""Agents of one loop whose messages are kept; the oldest that has ended makes room."""
NOT_FOR_AGENTS = frozenset(
    {"complete_task", "query_loop", "share_data", "enter_plan_mode", "exit_plan_mode"}
)
"""What speaks for the loop as a whole."""

log = logging.getLogger(__name__)

_CUT = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Stop reasons of messages that are not whole."""
_WIDTH = (Mode.PLAN, Mode.DEFAULT, Mode.ACCEPT_EDITS, Mode.BYPASS)
"""Modes, each asking less than those before it."""
_PASSED_BY = (CallStarted, Finished, Output, Progress)


class Child(Protocol):
    """A loop of an agent."""

    @property
    def session(self) -> Session:
        """Its memory."""

    def definitions(self) -> tuple[dict[str, Any], ...]:
        """Its tools, as the model's API takes them."""

    def stream(self, calls: Sequence[Call]) -> AsyncIterator[Event]:
        """Run the calls of one turn and tell what happens."""


MakeGround: TypeAlias = Callable[[str, bool], AbstractAsyncContextManager[Ground]]
"""(name, is_copy) → where an agent works."""
OpenChild: TypeAlias = Callable[[LoopSpec, Ground], AbstractAsyncContextManager[Child]]
"""Opens a loop there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """What agents have from the loop that starts them.

    Attributes:
        spec: of the loop.
        kinds: types of agents, by name.
        known: shown or canonical name of a tool → canonical name.
        model: answers their messages.
        ground: makes the place where one works.
        open: opens a loop there.
        running: the agents of the topmost loop and of all below it; some may have ended.
    """

    spec: LoopSpec
    kinds: Mapping[str, AgentEntry]
    known: Mapping[str, str]
    model: Model
    ground: MakeGround
    open: OpenChild
    running: list[Agent]


@dataclass(slots=True)
class Agent:
    """One agent, running or ended.

    Attributes:
        id: as `agent_1`.
        kind: its type.
        model: name of its model; None = the client's own.
        tools: canonical names; None = all that its loop has.
        messages: all so far, for when it is resumed.
        usage: tokens so far.
        turns: messages of the model so far.
        is_running: it has not ended.
        doing: what it does at the moment, for people.
    """

    id: str
    kind: str
    model: str | None
    tools: frozenset[str] | None
    messages: list[dict[str, Any]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    is_running: bool = False
    doing: str = "starting"


@dataclass(frozen=True, slots=True)
class _Ended:
    """How an agent ended.

    Attributes:
        text: what it said at last.
        notices: what else has to be known.
        code: why it failed; None = it did not.
    """

    text: str
    notices: tuple[str, ...] = ()
    code: Code | None = None


class Subagents:
    """The agents of one loop; see `executor.tool.Agents`.

    Args:
        parent: what they have from it.

    Raises:
        ConfigError: a type of agents names tools that there are not.
    """

    def __init__(self, parent: Parent) -> None:
        faults = [
            f"agents.{name}.tools: there is no tool {tool!r}; names of tools are "
            f"{', '.join(sorted(parent.known))}"
            for name, kind in parent.kinds.items()
            for tool in kind.tools
            if tool != "*" and tool not in parent.known and not tool.startswith(FOREIGN)
        ]
        if faults:
            raise ConfigError(faults)
        self._parent = parent
        self._agents: dict[str, Agent] = {}

    def types(self) -> Mapping[str, str]:
        """Name → description of the types of agents."""
        return {
            name: f"{kind.description} (Tools: {', '.join(kind.tools)})"
            for name, kind in self._parent.kinds.items()
        }

    async def run(self, context: Context, given: Task) -> Outcome:
        """Start an agent, or go on with one.

        Raises:
            ToolError: NOT_FOUND, no such type or agent; INVALID_ARGUMENTS; PERMISSION_DENIED, it
                would change something in plan mode; CONFLICT, it is running; LIMIT.
            SandboxError: it could not have a box.
        """
        kind = self._kind(context, given.subagent_type)
        running = self._parent.running
        running[:] = [agent for agent in running if agent.is_running]
        if len(running) >= MAX_RUNNING:
            raise ToolError(
                Code.LIMIT,
                f"{MAX_RUNNING} agents are running, those that agents have started among them; "
                "wait for one to end, or do the work yourself.",
            )
        if given.run_in_background:
            context.session.background.require_room()
        agent = self._resumed(given) if given.resume else self._new(context, given, kind)
        agent.messages.append({"role": "user", "content": given.prompt})
        agent.is_running = True
        running.append(agent)
        work = _Work(self._parent, agent, kind, context, given.max_turns or DEFAULT_TURNS)
        if not given.run_in_background:
            try:
                return await work.done()
            except BaseException:
                # What it has changed was not brought back: it can't go on as if it were.
                self._agents.pop(agent.id, None)
                raise
            finally:
                agent.is_running = False
        task = _Running(agent, given.description, work)
        context.session.background.add(task)
        context.session.keep_running(task.run(context, self._forget))
        return Outcome(
            f"Background agent started: {agent.id}",
            {"agent_id": agent.id, "status": Status.RUNNING},
        )

    def _forget(self, agent: Agent) -> None:
        self._agents.pop(agent.id, None)

    def _kind(self, context: Context, name: str) -> AgentEntry:
        kind = self._parent.kinds.get(name)
        if kind is None:
            known = ", ".join(self._parent.kinds)
            raise ToolError(
                Code.NOT_FOUND, f"There is no type of agents {_named(name)}. Types: {known}."
            )
        if context.session.mode == Mode.PLAN and kind.isolation != "read-only":
            readers = [n for n, k in self._parent.kinds.items() if k.isolation == "read-only"]
            raise ToolError(
                Code.PERMISSION_DENIED,
                f"Plan mode changes nothing, and agents of type {name} may. Types that only look: "
                f"{', '.join(readers) or 'none'}.",
            )
        return kind

    def _new(self, context: Context, given: Task, kind: AgentEntry) -> Agent:
        tools = _narrowed(self._tools(kind.tools), self._allowed(given))
        if len(self._agents) >= MAX_KNOWN:
            oldest = next((one for one in self._agents.values() if not one.is_running), None)
            if oldest is not None:
                del self._agents[oldest.id]
        name = context.session.background.new_id("agent")
        agent = Agent(name, given.subagent_type, given.model or kind.model, tools)
        self._agents[name] = agent
        return agent

    def _resumed(self, given: Task) -> Agent:
        agent = self._agents.get(given.resume or "")
        if agent is None:
            known = ", ".join(self._agents) or "none"
            raise ToolError(
                Code.NOT_FOUND,
                f"There is no agent {_named(given.resume)} to go on with. Known agents: {known}.",
            )
        if agent.is_running:
            raise ToolError(
                Code.CONFLICT, f"{agent.id} is running. Wait for its end, then resume it."
            )
        if agent.kind != given.subagent_type:
            raise ToolError(
                Code.INVALID_ARGUMENTS,
                f"{agent.id} is of type {agent.kind}; name that type to resume it.",
            )
        agent.tools = _narrowed(agent.tools, self._allowed(given))
        agent.model = given.model or agent.model
        return agent

    def _allowed(self, given: Task) -> frozenset[str] | None:
        if given.allowed_tools is None:
            return None
        known = self._parent.known
        unknown = [n for n in given.allowed_tools if n not in known and not n.startswith(FOREIGN)]
        if unknown:
            raise ToolError(
                Code.INVALID_ARGUMENTS,
                f"allowed_tools: there is no tool {_named(unknown[0])}. Names of tools are "
                f"{', '.join(sorted(self._parent.known))}.",
            )
        return self._tools(given.allowed_tools)

    def _tools(self, names: Sequence[str]) -> frozenset[str] | None:
        if "*" in names:
            return None
        return frozenset(self._parent.known.get(name, name) for name in names)


def _named(text: str | None) -> str:
    return repr(one_line(text or "", MAX_NAMED))


def _narrowed(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return one if other is None else other
    return frozenset(both(one, other))


# ─── one agent at work ──────────────────────────────────────────────────────────────


class _Work:
    """One run of an agent, from its ground to its outcome."""

    def __init__(
        self, parent: Parent, agent: Agent, kind: AgentEntry, context: Context, turns: int
    ) -> None:
        self._parent = parent
        self._agent = agent
        self._kind = kind
        self._context = context
        self._turns = turns
        self.is_merging = False
        self._seconds = context.entry.timeout_ms / 1000
        if context.time_left is not None:
            self._seconds = min(self._seconds, context.time_left)

    async def done(self) -> Outcome:
        """Run it to its end.

        Raises:
            ToolError, SandboxError: it could not begin.
        """
        agent = self._agent
        is_copy = self._kind.isolation == "copy" and not self._parent.spec.read_only
        merged: Merged | None = None
        async with AsyncExitStack() as stack:
            ground = await self._grounded(stack, is_copy)
            try:
                async with self._parent.open(self._spec(ground, is_copy), ground) as child:
                    ended = _left_running(child, await self._ended(child, is_copy))
            except ConfigError as error:
                raise ToolError(
                    Code.EXECUTION_ERROR,
                    f"The agent's loop can't be opened: {one_line(str(error))}",
                ) from error
            # Its box is gone: nothing changes any more what is brought back, all of it from here.
            self.is_merging = is_copy
            spill = self._context.loop.spill
            try:
                merged = await ground.merge(spill.most if spill is not None else 0)
            except (OSError, Moved) as error:
                said = f"its changes were not all brought back ({one_line(str(error))})"
                ended = replace(ended, notices=(*ended.notices, said), code=Code.CONFLICT)
        if ground.kept is not None:
            said = f"agent {agent.id}: not all came back; what it had is kept in {ground.kept}/tree"
            self._context.tell(Warned(message=said, call_id=self._context.call_id))
            ended = replace(ended, notices=(*ended.notices, "its copy is kept for the user"))
        told = await self._told(merged) if merged is not None else []
        structured = {
            "agent_id": agent.id,
            "status": Status.COMPLETED if ended.code is None else Status.FAILED,
            "turns": agent.turns,
            "usage": dataclasses.asdict(agent.usage),
            "merged": None if merged is None else _counts(merged, told),
        }
        notices = [*ended.notices, *_summary(merged, told), f"agent id: {agent.id}"]
        return Outcome(
            with_notices(ended.text, notices),
            structured,
            is_error=ended.code is not None,
            code=ended.code,
        )

    async def _grounded(self, stack: AsyncExitStack, is_copy: bool) -> Ground:
        try:
            return await stack.enter_async_context(self._parent.ground(self._agent.id, is_copy))
        except (OSError, Moved, ConfigError) as error:
            raise ToolError(
                Code.EXECUTION_ERROR,
                f"The agent can't have a worktree of its own: {one_line(str(error))}. Do the work "
                "yourself, or use an agent that only reads.",
            ) from error

    def _set_up(self, is_copy: bool) -> dict[str, Any]:
        """What its boxes are set up with. What only looks could not write what a set-up writes
        to the worktree, and finds it there."""
        parent = self._parent.spec
        if is_copy or parent.read_only:
            return {}
        return {"setup": None, "egress": replace(parent.egress, setup_hosts=())}

    def _spec(self, ground: Ground, is_copy: bool) -> LoopSpec:
        """The agent's loop: its parent's, and nothing wider than that."""
        parent, loop = self._parent.spec, self._context.loop
        rules = self._context.session.rules
        own = self._agent.tools
        every = {*self._parent.known.values(), f"{FOREIGN}*"}
        tools = set(every if own is None else own) - NOT_FOR_AGENTS
        if parent.tools is not None:
            tools = set(both(tools, parent.tools))
        return replace(
            parent,
            worktree=ground.worktree,
            exec_id=f"{_short(loop.exec_id)}-{self._agent.id.replace('_', '-')}",
            agent_id=self._agent.id,
            depth=loop.depth + 1,
            chain_id=loop.chain_id,
            mode=self._mode(),
            allow=tuple(rule.text for rule in rules.allow),
            ask=tuple(rule.text for rule in rules.ask),
            deny=tuple(rule.text for rule in rules.deny),
            tools=tuple(sorted(tools)),
            read_only=not is_copy,
            **self._set_up(is_copy),
            add_dirs=_beside(parent, is_writable=is_copy),
            quota="none" if parent.quota == "none" else "watch",
            # Its changes are merged into its loop's worktree, and committed there.
            git=GitOptions(sharing="hidden"),
            repo=None,
            branch=None,
            # What ends it is the timeout here; the loop's own is for what that can't end.
            limits=replace(parent.limits, max_seconds=self._seconds + MARGIN),
        )

    def _mode(self) -> str:
        """The mode of its type, or that of its parent now, where that asks more."""
        wanted = Mode(self._kind.mode or Mode.BYPASS)
        return min(wanted, Mode(self._context.session.mode), key=_WIDTH.index).value

    # ── the conversation ──

    async def _ended(self, child: Child, is_copy: bool) -> _Ended:
        """Talk until the model has no more calls; what ends it otherwise is said."""
        try:
            async with asyncio.timeout(self._seconds):
                return await self._talk(child, is_copy)
        except TimeoutError:
            said = f"it was ended after {self._seconds:g} s"
            return _Ended(self._last_words(), (said,), Code.TIMEOUT)
        except ModelError as error:
            is_passing = isinstance(error, ModelUnavailable)
            code = Code.NETWORK_ERROR if is_passing else Code.EXECUTION_ERROR
            text = f"The agent's model could not be asked: {error}"
            words = self._last_words()
            return _Ended(f"{text}\n\n{words}" if words else text, (), code)

    async def _talk(self, child: Child, is_copy: bool) -> _Ended:
        agent = self._agent
        for number in range(1, self._turns + 1):
            agent.doing = f"turn {number}: asking the model"
            reply = await self._asked(child, is_copy)
            agent.turns += 1
            agent.usage += reply.usage
            if reply.stop_reason == "refusal":
                # What it began is not to be used, and not to be sent back.
                return _last(reply)
            content = [block for block in reply.content if not _is_blank(block)]
            if content:
                agent.messages.append({"role": "assistant", "content": content})
            if not reply.calls and reply.stop_reason != "pause_turn":
                return _last(reply)
            if reply.calls:
                await self._answer(child, reply)
        said = (
            f"it was ended after {self._turns} turns (max_turns); it can go on with "
            f"resume: {agent.id}"
        )
        return _Ended(self._last_words(), (said,), Code.LIMIT)

    async def _asked(self, child: Child, is_copy: bool) -> Reply:
        """The model's next message.

        Raises:
            ModelError: there is none. So it is too where a model of the host's own fails: what
                the agent has done is brought back then.
        """
        try:
            return await self._parent.model.create(
                tuple(self._agent.messages),
                system=_system(self._kind, is_copy=is_copy),
                tools=child.definitions(),
                model=self._agent.model,
                max_tokens=MAX_TOKENS,
            )
        except ModelError:
            raise
        except Exception as error:
            # Its text is neither shown nor logged: it may hold a key.
            log.error("the model of an agent failed: %s", type(error).__name__)
            raise ModelRefused(f"its client failed ({type(error).__name__}).") from None

    async def _answer(self, child: Child, reply: Reply) -> None:
        """Run the calls of a message; their results are the next one, also if it is ended."""
        made = [Call(block["id"], block["name"], block["input"]) for block in reply.calls]
        why = dict.fromkeys(reply.unread, "its input was no JSON object, so it was not run")
        if reply.stop_reason in _CUT:
            why[made[-1].id] = "the message was cut at its longest before this call was whole"
        calls = [call for call in made if call.id not in why]
        blocks: list[Block] = []
        child.session.mode = self._mode()
        try:
            if calls:
                async for event in child.stream(calls):
                    self._pass_on(event)
                    if isinstance(event, Finished):
                        blocks.append(_tool_result(event.result))
        finally:
            # Were it resumed, no call may be without a result.
            blocks += [_unanswered(call, "it was ended") for call in calls[len(blocks) :]]
            blocks += [_unanswered(call, why[call.id]) for call in made if call.id in why]
            self._agent.messages.append({"role": "user", "content": blocks})

    def _pass_on(self, event: Event) -> None:
        """What happens in the agent's loop, as far as it is for whoever watches its parent."""
        if isinstance(event, CallStarted):
            self._agent.doing = f"turn {self._agent.turns}: {event.call.name}"
            self._context.progress(f"{self._agent.id}: {event.call.name}")
        elif not isinstance(event, _PASSED_BY):
            self._context.tell(event)

    def _last_words(self) -> str:
        """What the agent said last, where it said anything."""
        for message in reversed(self._agent.messages):
            if message["role"] == "assistant":
                text = Reply(tuple(message["content"])).text
                if text:
                    return text
        return ""

    # ── what was brought back ──

    async def _told(self, merged: Merged) -> list[dict[str, Any]]:
        """The conflicts, each with where the agent's version is kept."""
        spill = self._context.loop.spill
        told: list[dict[str, Any]] = []
        for conflict in merged.conflicts:
            kept = None
            if spill is not None and conflict.data is not None:
                kept = await spill.keep(conflict.data)
            told.append(
                {
                    "path": conflict.path,
                    "kept": None if kept is None else kept.path,
                    "left_out": conflict.left_out,
                }
            )
        return told


def _beside(spec: LoopSpec, *, is_writable: bool) -> tuple[Directory, ...]:
    """The directories that a loop has beside its worktree, but those of skills."""
    own = spec.directories[: len(spec.add_dirs)]
    return tuple(replace(one, is_writable=one.is_writable and is_writable) for one in own)


def _short(exec_id: str) -> str:
    """A name that leaves room for an agent's, and is still this loop's alone."""
    if len(exec_id) <= MAX_NAME:
        return exec_id
    mark = hashlib.sha256(exec_id.encode()).hexdigest()[:8]
    return f"{exec_id[: MAX_NAME - 9]}-{mark}"


def _last(reply: Reply) -> _Ended:
    notices = ("its answer was cut at its longest",) if reply.stop_reason in _CUT else ()
    if reply.stop_reason == "refusal":
        return _Ended(reply.text, ("its model refused to go on",), Code.EXECUTION_ERROR)
    return _Ended(reply.text or "The agent ended without a word.", notices)


def _tool_result(result: Result) -> Block:
    return {
        "type": "tool_result",
        "tool_use_id": result.id,
        "content": result.content,
        "is_error": result.is_error,
    }


def _left_running(child: Child, ended: _Ended) -> _Ended:
    """The same, with what goes on beside the agent and is ended with it."""
    tasks = child.session.background.all()
    names = ", ".join(task.id for task in tasks if task.status is Status.RUNNING)
    if not names:
        return ended
    said = f"{names} of its background tasks did not end before it and was ended with it"
    return replace(ended, notices=(*ended.notices, said))


def _is_blank(block: Block) -> bool:
    """The API takes no texts back that are empty or nothing but spaces."""
    return block["type"] == "text" and not block["text"].strip()


def _unanswered(call: Call, why: str) -> Block:
    """The result of a call that has none."""
    return _tool_result(Result(call.id, call.name, f"There is no result: {why}.", is_error=True))


def _system(kind: AgentEntry, *, is_copy: bool) -> str:
    """What an agent is told of itself."""
    place = (
        "The worktree is /workspace. It is a copy of your own; what you change in it is merged "
        "back when you have ended."
        if is_copy
        else "The worktree is /workspace. You can look at all of it and change nothing in it."
    )
    return "\n\n".join(
        [
            "You are an agent that another one has started for one task. Do what it asks and "
            "nothing beyond. Nobody reads what you say on the way: your last message, the one "
            "without a call of a tool, is your report.",
            *([kind.prompt] if kind.prompt else []),
            place,
        ]
    )


def _counts(merged: Merged, told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "written": merged.written,
        "removed": merged.removed,
        "conflicts": list(told),
        "failed": list(merged.failed),
        "left": merged.count,
    }


def _summary(merged: Merged | None, told: Sequence[Mapping[str, Any]]) -> list[str]:
    """What came of its changes, in words."""
    if merged is None:
        return []
    lines = [f"its changes are in the worktree: {merged.written} written, {merged.removed} removed"]
    for one in told:
        where = f"; the agent's is kept in {one['kept']}" if one["kept"] else ""
        what = f"{one['path']} was changed by others meanwhile and is theirs"
        lines.append(f"conflict: {what}{where}")
    lines += [f"not brought back: {failed}" for failed in merged.failed]
    more = merged.count - len(told) - len(merged.failed)
    return [*lines, f"{more} more were not brought back"] if more > 0 else lines


# ─── in the background ──────────────────────────────────────────────────────────────


class _Running:
    """An agent that goes on after its call; see `executor.background.BackgroundTask`."""

    def __init__(self, agent: Agent, description: str, work: _Work) -> None:
        self.id = agent.id
        self.description = description
        self.status = Status.RUNNING
        self.exit_code: int | None = None
        self._agent = agent
        self._work = work
        self._done = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._is_killed = False
        self._outcome: Outcome | None = None

    async def run(self, context: Context, forget: Callable[[Agent], None]) -> None:
        """Run it to its end. Cancelled, it is killed."""
        self._task = asyncio.current_task()
        try:
            if not self._is_killed:
                await self._finish()
        except BaseException:
            forget(self._agent)
            self.status = Status.KILLED
            if not self._is_killed:
                raise
        finally:
            self._agent.is_running = False
            self._done.set()
            context.session.background.ended(self)

    async def _finish(self) -> None:
        try:
            self._outcome = await self._work.done()
        except (ToolError, SandboxError) as error:
            self._outcome = Outcome(str(error), is_error=True, code=error.code)
        except Exception as error:
            log.exception("the agent %s failed", self.id)
            said = f"The agent failed inside the executor ({type(error).__name__})."
            self._outcome = Outcome(said, is_error=True, code=Code.INTERNAL)
        self.status = Status.FAILED if self._outcome.is_error else Status.COMPLETED

    async def wait(self) -> None:
        """Until it has ended."""
        await self._done.wait()

    async def output(self, context: Any) -> Written:
        """Its report; before that, how far it is."""
        outcome = self._outcome
        if outcome is None:
            doing = self._agent.doing if self.status is Status.RUNNING else "killed"
            return Written(f"{self._agent.id} ({self._agent.kind}): {doing}")
        causes = (f"Agent failed: {outcome.code}",) if outcome.code is not None else ()
        return Written(str(outcome.content), causes=causes)

    async def kill(self) -> str | None:
        """End it: its request, its box, and its copy with what it has changed."""
        if self.status is not Status.RUNNING:
            return None
        self._is_killed = True
        if self._task is not None:
            self._task.cancel()
        await self._done.wait()
        if self._work.is_merging:
            return f"{self.id} was at its end already: what it had changed was brought back"
        return "what it had changed was not brought back"
