"""A sandbox for coding-agent loops: every tool call runs in the loop's own container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from executor.model import (
        Access,
        Call,
        CallStarted,
        Event,
        Finished,
        LaneLost,
        LaneOpened,
        Limits,
        LoopSpec,
        Output,
        Result,
        TaskCompleted,
    )
    from executor.permissions import Mode
    from executor.settings import Settings
    from executor.tool import Registry, Tool

__all__ = [
    "Access",
    "AgentLost",
    "Call",
    "CallStarted",
    "Catalog",
    "Code",
    "ConfigError",
    "Controller",
    "EngineError",
    "EngineUnavailable",
    "Event",
    "ExecutorError",
    "Finished",
    "ImageNotFound",
    "LaneLost",
    "LaneOpened",
    "Limits",
    "Loop",
    "LoopSpec",
    "Mode",
    "Output",
    "ProtocolError",
    "Registry",
    "Result",
    "SandboxError",
    "SandboxUnavailable",
    "Settings",
    "TaskCompleted",
    "Tool",
    "ToolError",
]


def __getattr__(name: str) -> Any:
    """A name of `__all__`, loaded when it is first asked for.

    Loading all takes a while, and the command line hears signals before that.
    """
    if name in __all__:
        from executor import catalog, controller, errors, model, permissions, settings, tool

        for home in (model, errors, permissions, settings, catalog, tool, controller):
            if (found := getattr(home, name, None)) is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
