"""The five stages of a call: enabled, permitted, valid, executed, result. In this order."""

from __future__ import annotations

import asyncio
import copy
import difflib
import logging
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import BaseModel

from executor import approvals, results
from executor.callables import is_cancelled
from executor.errors import Code, Partial, SandboxError, ToolError
from executor.foreign.names import holds
from executor.hooks import Hooks, Use
from executor.model import Access, Call, Event, Result, Warned
from executor.permissions import Judgement, Verdict, judge
from executor.redaction import redact_error, redacted
from executor.rules import FOREIGN
from executor.text import beginning, one_line
from executor.tool import (
    MAX_NAME,
    Context,
    Modifier,
    Outcome,
    Registry,
    Surroundings,
    Tool,
)

Emit: TypeAlias = Callable[[Event], None]
Seat: TypeAlias = Callable[[Context], AbstractAsyncContextManager[None]]
"""A place to run in, which may have to be waited for; raises ToolError: there is none."""

MAX_TRACE = 10_000
"""Characters of a traceback in the log."""
MAX_ROUNDS = 4
"""How often hooks and approvers may change the arguments of one call."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a call came to.

    Attributes:
        result: of the call.
        modifiers: what it changes in the loop.
        use: what ran; None = nothing did.
    """

    result: Result
    modifiers: tuple[Modifier, ...] = ()
    use: Use | None = None

    @property
    def has_mutated(self) -> bool:
        """It ran, succeeded, and may have changed the worktree."""
        return self.use is not None and self.use.is_mutating and not self.result.is_error


class Pipeline:
    """Answers the calls of one loop.

    Args:
        registry: the tools under the names that the model uses.
        allowed: canonical names that the loop's type has, and patterns of MCP tools; None = all.
        loop_type: its name, for refusals.
        hooks: what the host wants to see or stop.
        foreign: MCP tools that the loop's toolset has, by name or pattern; None = all.
    """

    def __init__(
        self,
        registry: Registry,
        allowed: Collection[str] | None = None,
        loop_type: str | None = None,
        hooks: Hooks | None = None,
        foreign: Collection[str] | None = None,
    ) -> None:
        self._foreign = foreign
        self._registry = registry
        self._loop_type = loop_type
        self.hooks = hooks if hooks is not None else Hooks()
        self._allowed = allowed

    def has(self, canonical: str) -> bool:
        """Whether the loop's type and the catalog leave it this tool of its toolset."""
        tools = (tool for tool in self._registry.all() if tool.canonical == canonical)
        return any(self._settled(tool) is None for tool in tools)

    def enabled(self, loop: Surroundings) -> tuple[Tool, ...]:
        """The tools that the model is shown."""
        return tuple(t for t in self._registry.all() if self._reason(t, loop) is None)

    def disabled(self, loop: Surroundings) -> dict[str, str]:
        """The other tools, each with the reason."""
        reasons = {tool.name: self._reason(tool, loop) for tool in self._registry.all()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def _reason(self, tool: Tool, loop: Surroundings) -> str | None:
        reason = self._settled(tool)
        if reason is None and tool.unavailable is not None:
            return tool.unavailable(loop.in_lane(tool.entry.lane))
        return reason

    def _settled(self, tool: Tool) -> str | None:
        """Why the loop never has a tool; tools may be registered while it is open."""
        if not tool.entry.enabled:
            return "it is switched off in the catalog"
        if self._allowed is not None and not holds(self._allowed, tool.canonical):
            return f"loops of type {self._loop_type} don't have it"
        is_foreign = self._foreign is not None and tool.canonical.startswith(FOREIGN)
        if is_foreign and not holds(self._foreign or (), tool.canonical):
            return "the loop's toolset doesn't name it"
        return None

    def foreseen(self, call: Call) -> tuple[Tool, BaseModel] | None:
        """The tool and the checked arguments of a call; None = it will be refused anyway.

        What a tool itself says of its being unavailable may change within the turn, and is
        not asked for.
        """
        tool = self._registry.get(call.name)
        if tool is None or self._settled(tool) is not None:
            return None
        try:
            return tool, tool.parse(call.input)
        except Exception:  # `answer` meets it again, and says what it is
            return None

    async def answer(
        self,
        call: Call,
        loop: Surroundings,
        emit: Emit | None = None,
        time_left: float | None = None,
        turn_id: str = "",
        begun: Callable[[], object] | None = None,
        seat: Seat | None = None,
    ) -> Answered:
        """The result of a call. Raises nothing but cancellation.

        Args:
            call: of the model.
            loop: what it runs in, in the lane of the tool.
            emit: takes the call's events.
            time_left: seconds until the loop ends.
            turn_id: of its turn.
            begun: is called when the tool itself is about to run.
            seat: is taken while it runs, once it is permitted; None = it needs none.
        """
        started = time.perf_counter()
        use: Use | None = None
        try:
            tool = self._enabled(call.name, loop)
            context = Context(call.id, tool.entry, loop, emit, time_left, turn_id, tool.name)
            arguments, given = await self._permitted(tool, call.input, context)
            async with nullcontext() if seat is None else seat(context):
                _take_off(context, started)
                if begun is not None:
                    begun()
                use = Use.of(tool, given, context)
                outcome = await self._executed(tool, context, arguments, use)
        except (ToolError, SandboxError) as error:
            redact_error(error, loop.secrets)
            details = error.details if isinstance(error, ToolError) else None
            code, message = error.code, str(error)
            return Answered(results.refusal(call, code, message, _since(started), details), (), use)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            redact_error(error, loop.secrets)
            # On one line, and shown escaped: the exception may hold text of the box.
            trace = one_line("".join(traceback.format_exception(error)), MAX_TRACE)
            log.error("call %r of tool %r failed: %s", call.id, call.name, trace)
            message = f"The tool failed inside the executor ({type(error).__name__})."
            return Answered(results.refusal(call, Code.INTERNAL, message, _since(started)), (), use)
        return Answered(results.result_of(call, outcome, _since(started)), outcome.modifiers, use)

    # Stage 1.
    def _enabled(self, name: str, loop: Surroundings) -> Tool:
        tool = self._registry.get(name)
        if tool is None:
            names = [known.name for known in self.enabled(loop)]
            near = difflib.get_close_matches(name, names, n=3)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"Tools: {', '.join(names)}."
            raise ToolError(Code.UNKNOWN_TOOL, f"Unknown tool: {beginning(name, MAX_NAME)}. {hint}")
        reason = self._reason(tool, loop)
        if reason is not None:
            names = [known.name for known in self.enabled(loop)]
            raise ToolError(
                Code.DISABLED, f"{name} is disabled: {reason}. Tools: {', '.join(names)}."
            )
        return tool

    # Stages 2 and 3. Nobody is asked about a call that can't be run.
    async def _permitted(
        self, tool: Tool, given: Mapping[str, Any], context: Context
    ) -> tuple[BaseModel, Mapping[str, Any]]:
        """The arguments that may run, checked and as given.

        They are a copy: what waits for a decision must not change meanwhile.
        """
        approved: str | None = None
        is_approvers = False
        for number in range(MAX_ROUNDS):
            _refuse_whole(tool, context)
            await _know_shell(tool, context)
            given = given if number else _own(tool, given)
            arguments = tool.parse(given, is_approvers=is_approvers)
            context.judged = None
            if tool.prepare is not None and (more := await tool.prepare(context, arguments)):
                given = {**given, **more}
                arguments = tool.parse(given, is_approvers=is_approvers)
            judgement = await judge(tool, arguments, context)
            if judgement.verdict is Verdict.DENY:
                raise _denied(tool, judgement)
            if judgement.verdict is Verdict.ASK:
                fingerprint = approvals.fingerprint(tool.name, given)
                if approved != fingerprint:
                    modified = await approvals.decide(tool, given, arguments, context, judgement)
                    if modified is not None:
                        given, approved = modified, approvals.fingerprint(tool.name, modified)
                        is_approvers = True
                        continue
                    approved = fingerprint
            context.is_approved = judgement.verdict is Verdict.ASK
            if not self.hooks:
                return arguments, given
            replaced = await self.hooks.before(Use.of(tool, given, context))
            if replaced is None:
                return arguments, given
            given, is_approvers = replaced, False
        raise ToolError(
            Code.REJECTED,
            f"The arguments of {tool.name} were changed {MAX_ROUNDS} times by hooks or approvers "
            "without an end; nothing was run.",
        )

    # Stage 4.
    async def _executed(
        self, tool: Tool, context: Context, arguments: BaseModel, use: Use
    ) -> Outcome:
        if not self.hooks:
            return await _fitted(tool, context, arguments)
        try:
            # Hooks see what the model will, not what was too long for it.
            outcome = await _fitted(tool, context, arguments)
        except BaseException as error:
            for warning in await self.hooks.after_failure(use, error):
                context.tell(Warned(message=warning, call_id=context.call_id))
            raise
        try:
            notes, warnings = await self.hooks.after(use, outcome)
        except asyncio.CancelledError as error:
            error.args = (*error.args, Partial(outcome))  # it has run, and this is what it said
            raise
        for warning in warnings:
            context.tell(Warned(message=warning, call_id=context.call_id))
        return results.noted(outcome, notes)


async def _fitted(tool: Tool, context: Context, arguments: BaseModel) -> Outcome:
    """What the tool came to: masked before it is cut."""
    outcome = redacted(await tool.run(context, arguments), context.loop.secrets)
    return await results.fitted(outcome, context)


def _take_off(context: Context, started: float) -> None:
    """What the decision took is gone from the time that the loop has.

    Raises:
        ToolError: TIMEOUT, nothing is left of it.
    """
    if context.time_left is None:
        return
    context.time_left -= time.perf_counter() - started
    if context.time_left <= 0:
        text = "The loop's time was over before the call was permitted; nothing was run."
        raise ToolError(Code.TIMEOUT, text)


async def _know_shell(tool: Tool, context: Context) -> None:
    """Open the box of a lane for its first command: it is judged as that box's shell reads it.

    Raises:
        SandboxError: it could not be opened.
    """
    loop = context.loop
    is_first = loop.lane in loop.lanes and loop.lane not in context.session.shells
    if is_first and tool.access is Access.EXEC:
        context.progress(f"opening the sandbox of lane {loop.lane}")
        await loop.box.ready()


def _own(tool: Tool, given: Any) -> Any:
    """The arguments, with nothing in them that anybody else can change.

    Raises:
        ToolError: INVALID_ARGUMENTS.
    """
    try:
        return copy.deepcopy(given)
    except RecursionError:
        fault = "they are nested too deep"
    except Exception as error:  # they are the host's own, and no JSON
        fault = f"they are no JSON ({type(error).__name__})"
    raise ToolError(Code.INVALID_ARGUMENTS, f"Invalid arguments for {tool.name}: {fault}.")


def _refuse_whole(tool: Tool, context: Context) -> None:
    """A deny rule for the whole tool comes before the look at its arguments."""
    rules = context.session.rules
    rule = rules.denies_whole(tool.name, tool.canonical) if rules.deny else None
    if rule is not None:
        raise ToolError(
            Code.PERMISSION_DENIED,
            f"{tool.name} is not allowed: the rule {rule} denies it.",
            {"rule": rule},
        )


def _denied(tool: Tool, judgement: Judgement) -> ToolError:
    details = {"rule": judgement.rule} if judgement.rule is not None else None
    return ToolError(
        Code.PERMISSION_DENIED, f"{tool.name} is not allowed: {judgement.reason}", details
    )


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
