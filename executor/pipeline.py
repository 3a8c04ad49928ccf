"""The five stages of a call: enabled, permitted, valid, executed, result. In this order."""

from __future__ import annotations

import difflib
import logging
import time
import traceback
from collections.abc import Callable, Collection
from typing import TypeAlias

from executor import results
from executor.errors import Code, SandboxError, ToolError
from executor.model import Call, Event, Result
from executor.permissions import Mode, Verdict, decide
from executor.scheduling import Order
from executor.text import one_line
from executor.tool import Arguments, Context, Registry, Surroundings, Tool

Emit: TypeAlias = Callable[[Event], None]

MAX_TRACE = 10_000
"""Characters of a traceback in the log."""

log = logging.getLogger(__name__)


class Pipeline:
    """Answers the calls of one loop.

    Args:
        registry: the tools under the names that the model uses.
        mode: what may be done without asking.
        allowed: canonical names that the loop's type has; None = all.
        loop_type: its name, for refusals.
    """

    def __init__(
        self,
        registry: Registry,
        mode: Mode,
        allowed: Collection[str] | None = None,
        loop_type: str | None = None,
    ) -> None:
        self._registry = registry
        self._mode = mode
        self._loop_type = loop_type
        self._reasons: dict[str, str] = {}
        for tool in registry.all():
            if not tool.entry.enabled:
                self._reasons[tool.name] = "it is switched off in the catalog"
            elif allowed is not None and tool.canonical not in allowed:
                self._reasons[tool.name] = f"loops of type {loop_type} don't have it"

    def enabled(self) -> tuple[Tool, ...]:
        """The tools that the model is shown."""
        return tuple(tool for tool in self._registry.all() if tool.name not in self._reasons)

    def disabled(self) -> dict[str, str]:
        """The other tools, each with the reason."""
        return dict(self._reasons)

    def order(self, call: Call) -> Order:
        """How the call may be ordered in its turn."""
        tool = self._registry.get(call.name)
        if tool is None or tool.is_safe:
            return Order.SAFE
        return Order.LAST if tool.is_last else Order.UNSAFE

    async def answer(
        self,
        call: Call,
        loop: Surroundings,
        emit: Emit | None = None,
        time_left: float | None = None,
    ) -> Result:
        """The result of a call. Raises nothing but cancellation.

        Args:
            call: of the model.
            loop: what it runs in.
            emit: takes the call's events.
            time_left: seconds until the loop ends.
        """
        started = time.perf_counter()
        try:
            tool = self._enabled(call.name)
            arguments = self._checked(tool, call)
            context = Context(call.id, tool.entry, loop, emit, time_left)
            outcome = await tool.run(context, arguments)
        except (ToolError, SandboxError) as error:
            details = error.details if isinstance(error, ToolError) else None
            return results.refusal(call, error.code, str(error), _since(started), details)
        except Exception as error:
            # On one line, and shown escaped: the exception may hold text of the box.
            trace = one_line("".join(traceback.format_exception(error)), MAX_TRACE)
            log.error("call %r of tool %r failed: %s", call.id, call.name, trace)
            message = f"The tool failed inside the executor ({type(error).__name__})."
            return results.refusal(call, Code.INTERNAL, message, _since(started))
        return results.result_of(call, outcome, _since(started))

    # Stage 1.
    def _enabled(self, name: str) -> Tool:
        tool = self._registry.get(name)
        if tool is None:
            near = difflib.get_close_matches(name, self._names(), n=3)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"Tools: {self._list()}."
            raise ToolError(Code.UNKNOWN_TOOL, f"Unknown tool: {name}. {hint}")
        reason = self._reasons.get(name)
        if reason is not None:
            raise ToolError(Code.DISABLED, f"{name} is disabled: {reason}. Tools: {self._list()}.")
        return tool

    def _names(self) -> list[str]:
        return [tool.name for tool in self.enabled()]

    def _list(self) -> str:
        return ", ".join(self._names())

    # Stages 2 and 3.
    def _checked(self, tool: Tool, call: Call) -> Arguments:
        verdict = decide(self._mode, tool.access, tool.canonical)
        if verdict is Verdict.DENY:
            raise ToolError(
                Code.PERMISSION_DENIED,
                f"{tool.name} is not allowed in {self._mode} mode, which changes nothing. "
                "Read and search instead, and say what you would do.",
            )
        # Nobody is asked about a call that can't be run.
        arguments = tool.parse(call.input)
        if verdict is Verdict.ASK:
            raise ToolError(
                Code.APPROVAL_REQUIRED,
                f"{tool.name} needs approval in {self._mode} mode, and there is no one to ask. "
                f"It would be allowed by mode {self._allowing(tool)}.",
                {"mode": self._mode.value, "allowed_by": self._allowing(tool)},
            )
        return arguments

    def _allowing(self, tool: Tool) -> str:
        edits = decide(Mode.ACCEPT_EDITS, tool.access, tool.canonical)
        return (Mode.ACCEPT_EDITS if edits is Verdict.ALLOW else Mode.BYPASS).value


def _since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
