"""A sandbox for coding-agent loops: every tool call runs in the loop's own container."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.approvals import CallableApprover, PolicyApprover, QuestionRequest, QueueApprover
    from executor.catalog import Catalog
    from executor.controller import Controller, Loop
    from executor.errors import (
        AgentLost,
        Code,
        ConfigError,
        EngineError,
        EngineUnavailable,
        ExecutorError,
        ImageNotFound,
        ProtocolError,
        SandboxError,
        SandboxUnavailable,
        ToolError,
    )
    from executor.hooks import Hook, HookEvent, Hooks, Occasion, Reply, Use
    from executor.model import (
        Access,
        ApprovalAnswer,
        ApprovalRequest,
        Call,
        CallStarted,
        Event,
        Finished,
        LaneLost,
        LaneOpened,
        Limits,
        LoopSpec,
        Output,
        Question,
        Remember,
        Result,
        TaskCompleted,
    )
    from executor.permissions import Mode
    from executor.settings import Settings
    from executor.tool import Approver, Registry, Tool

__all__ = [
    "Access",
    "AgentLost",
    "ApprovalAnswer",
    "ApprovalRequest",
    "Approver",
    "Call",
    "CallStarted",
    "CallableApprover",
    "Catalog",
    "Code",
    "ConfigError",
    "Controller",
    "EngineError",
    "EngineUnavailable",
    "Event",
    "ExecutorError",
    "Finished",
    "Hook",
    "HookEvent",
    "Hooks",
    "ImageNotFound",
    "LaneLost",
    "LaneOpened",
    "Limits",
    "Loop",
    "LoopSpec",
    "Mode",
    "Occasion",
    "Output",
    "PolicyApprover",
    "ProtocolError",
    "Question",
    "QuestionRequest",
    "QueueApprover",
    "Registry",
    "Remember",
    "Reply",
    "Result",
    "SandboxError",
    "SandboxUnavailable",
    "Settings",
    "TaskCompleted",
    "Tool",
    "ToolError",
    "Use",
]

_HOMES = (
    *("model", "errors", "permissions", "settings", "catalog", "tool", "controller"),
    *("approvals", "hooks"),
)


def __getattr__(name: str) -> Any:
    """A name of `__all__`, loaded when it is first asked for.

    Loading all takes a while, and the command line hears signals before that.
    """
    if name in __all__:
        for home in _HOMES:
            found = vars(import_module(f"executor.{home}")).get(name)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
