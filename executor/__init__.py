"""A sandbox for coding-agent loops: every tool call runs in the loop's own container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.approvals import CallableApprover, PolicyApprover, QuestionRequest, QueueApprover
    from executor.catalog import (
        Catalog,
        Keep,
        LoopType,
    )
    from executor.catalog_servers import McpEntry
    from executor.controller import Controller
    from executor.errors import (
        AgentLost,
        Code,
        ConfigError,
        EngineError,
        EngineUnavailable,
        ExecutorError,
        ImageNotAllowed,
        ImageNotFound,
        ModelError,
        ProtocolError,
        SandboxError,
        SandboxUnavailable,
        ToolError,
    )
    from executor.foreign.servers import McpServers, register_mcp_tools
    from executor.hooks import Hook, HookEvent, Hooks, Occasion, Reply, Use
    from executor.loop import Loop
    from executor.messages import MessagesApi, Model
    from executor.model import (
        Access,
        ApprovalAnswer,
        ApprovalAnswered,
        ApprovalRequest,
        ApprovalRequested,
        ArtifactCreated,
        BackgroundEnded,
        BackgroundStarted,
        Call,
        CallStarted,
        CommandQueued,
        Directory,
        EgressOptions,
        Event,
        Finished,
        GitOptions,
        LaneLost,
        LaneOpened,
        Limits,
        LoopSpec,
        McpToolCallBegin,
        McpToolCallEnd,
        ModeChanged,
        Output,
        Progress,
        Question,
        QuestionAsked,
        Remember,
        Result,
        Secret,
        TaskCompleted,
        TodosChanged,
        Warned,
    )
    from executor.permissions import Mode
    from executor.settings import Settings
    from executor.tool import (
        Approver,
        Arguments,
        Contacts,
        Context,
        FileRead,
        Order,
        Outcome,
        PermissionGranted,
        QueueCommand,
        Registry,
        RunsCode,
        RunsCommand,
        Surroundings,
        Tool,
        Touches,
    )
    from executor.toolsets import register_all_tools, register_task_tool
    from executor.toolsets.custom import custom_tool

_OF_MCP = ("McpServers", "register_mcp_tools")
"""Names whose home needs the extra `mcp`."""

__all__ = [
    "Access",
    "AgentLost",
    "ApprovalAnswer",
    "ApprovalAnswered",
    "ApprovalRequest",
    "ApprovalRequested",
    "Approver",
    "Arguments",
    "ArtifactCreated",
    "BackgroundEnded",
    "BackgroundStarted",
    "Call",
    "CallStarted",
    "CallableApprover",
    "Catalog",
    "Code",
    "CommandQueued",
    "ConfigError",
    "Contacts",
    "Context",
    "Controller",
    "Directory",
    "EgressOptions",
    "EngineError",
    "EngineUnavailable",
    "Event",
    "ExecutorError",
    "FileRead",
    "Finished",
    "GitOptions",
    "Hook",
    "HookEvent",
    "Hooks",
    "ImageNotAllowed",
    "ImageNotFound",
    "Keep",
    "LaneLost",
    "LaneOpened",
    "Limits",
    "Loop",
    "LoopSpec",
    "LoopType",
    "McpEntry",
    "McpServers",
    "McpToolCallBegin",
    "McpToolCallEnd",
    "MessagesApi",
    "Mode",
    "ModeChanged",
    "Model",
    "ModelError",
    "Occasion",
    "Order",
    "Outcome",
    "Output",
    "PermissionGranted",
    "PolicyApprover",
    "Progress",
    "ProtocolError",
    "Question",
    "QuestionAsked",
    "QuestionRequest",
    "QueueApprover",
    "QueueCommand",
    "Registry",
    "Remember",
    "Reply",
    "Result",
    "RunsCode",
    "RunsCommand",
    "SandboxError",
    "SandboxUnavailable",
    "Secret",
    "Settings",
    "Surroundings",
    "TaskCompleted",
    "TodosChanged",
    "Tool",
    "ToolError",
    "Touches",
    "Use",
    "Warned",
    "custom_tool",
    "register_all_tools",
    "register_mcp_tools",
    "register_task_tool",
]


def __getattr__(name: str) -> Any:
    """A name of `__all__`, loaded when it is first asked for.

    Loading all takes a while, and the command line hears signals before that.
    """
    if name in _OF_MCP:
        from executor.foreign import servers

        return getattr(servers, name)
    if name in __all__:
        from executor import (
            approvals,
            catalog,
            controller,
            errors,
            hooks,
            loop,
            messages,
            model,
            permissions,
            settings,
            tool,
            toolsets,
        )
        from executor.toolsets import custom

        homes = (model, errors, permissions, settings, catalog, tool, loop, controller)
        for home in (*homes, approvals, hooks, toolsets, custom, messages):
            if (found := getattr(home, name, None)) is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
