"""A sandbox for coding-agent loops: every tool call runs in the loop's own container."""

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
