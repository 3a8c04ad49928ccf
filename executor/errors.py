"""Every exception of the package, and the closed set of error codes.

ExecutorError
├── ConfigError            bad options, files or environment; holds every fault at once
│   ├── BadPath             a working directory that no engine may be told
│   └── ForbiddenMount      a directory that no sandbox may have
├── ToolError              becomes the error result of one call
├── StreamBroken           a model's stream ended before its message did
├── ModelError             a model that was asked gave no reply
│   ├── ModelRefused        the same request would fail again
│   └── ModelUnavailable    nothing answers, or not in time
└── SandboxError           the container is thrown away
    ├── EngineError        the engine refused or failed
    │   ├── EngineUnavailable   nothing answers
    │   │   └── UnsafeRuntime   what answers is not as safe as the policy demands
    │   ├── ImageNotAllowed     the controller's policy does not allow the image
    │   └── ImageNotFound       the image is neither here nor to be had
    ├── SandboxUnavailable      no box could be started
    ├── AgentLost               the box ended or no longer answers
    ├── QuotaExceeded           the loop added too much to its worktree
    ├── NotReturned             the loop's changes are kept elsewhere than in its worktree
    └── ProtocolError           the agent sent what no agent of ours sends
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Why a call failed. Closed: a host may switch over it."""

    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    INVALID_PATH = "INVALID_PATH"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    NOT_A_FILE = "NOT_A_FILE"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    NOT_READ = "NOT_READ"
    CONFLICT = "CONFLICT"
    NO_MATCH = "NO_MATCH"
    AMBIGUOUS = "AMBIGUOUS"
    EXISTS = "EXISTS"
    TOO_LARGE = "TOO_LARGE"
    UNSUPPORTED = "UNSUPPORTED"
    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    DISABLED = "DISABLED"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    REJECTED = "REJECTED"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    LIMIT = "LIMIT"
    NO_SPACE = "NO_SPACE"
    NETWORK_DENIED = "NETWORK_DENIED"
    NETWORK_ERROR = "NETWORK_ERROR"
    NOT_FOUND = "NOT_FOUND"
    SANDBOX_UNAVAILABLE = "SANDBOX_UNAVAILABLE"
    SANDBOX_LOST = "SANDBOX_LOST"
    PROTOCOL_ERROR = "PROTOCOL_ERROR"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class Partial:
    """What a call had come to when it was cancelled: an argument of its `CancelledError`.

    That stays the plain class: `asyncio.timeout` takes no subclass of it for its own.

    Attributes:
        value: the agent's answer, or what a tool made of it.
    """

    value: Any


def partial_of(error: BaseException) -> Any:
    """What the cancelled call had come to; None if that is not known."""
    return next((arg.value for arg in error.args if isinstance(arg, Partial)), None)


class ExecutorError(Exception):
    """The root: catch this to catch everything that this package raises on purpose."""


class ConfigError(ExecutorError):
    """The options, files or environment are wrong; nothing was started.

    Attributes:
        faults: every fault found, one sentence each, with where it is and the mend.
    """

    def __init__(self, faults: Sequence[str] | str) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class BadPath(ConfigError):
    """A path that leads out of a container by way of a process's descriptors."""


class ForbiddenMount(ConfigError):
    """A box that could write there would own the host."""


class ToolError(ExecutorError):
    """One call failed; the loop goes on.

    Attributes:
        code: the reason, from the closed set.
        details: JSON-able facts for a program.
    """

    def __init__(self, code: Code, message: str, details: Mapping[str, Any] | None = None) -> None:
        self.code = code
        self.details: dict[str, Any] | None = dict(details) if details is not None else None
        super().__init__(message)


class ModelError(ExecutorError):
    """A model that was asked gave no reply.

    Attributes:
        status: of HTTP; None = there was no answer, or it came as part of a stream.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class ModelRefused(ModelError):
    """The far end does not take the request; the same one would fail again."""


class ModelUnavailable(ModelError):
    """Nothing answers, or not in time, however often it was tried."""


class StreamBroken(ExecutorError):
    """A model's stream ended before its message did, after calls of it may have run.

    Whoever asks the model again must not run the finished calls a second time unknowingly.

    Attributes:
        results: the `Result` of every call that ended, in the order of the calls.
        unanswered: ids of the calls that were not begun, or were ended for this.
    """

    def __init__(
        self, reason: str, results: Sequence[Any] = (), unanswered: Sequence[str] = ()
    ) -> None:
        self.results: tuple[Any, ...] = tuple(results)
        self.unanswered: tuple[str, ...] = tuple(unanswered)
        super().__init__(
            f"the model's stream broke: {reason}; {len(self.results)} of its calls have ended, "
            f"{len(self.unanswered)} were not run to their end"
        )


class SandboxError(ExecutorError):
    """The box is unusable: it could not be had, or it was lost.

    Attributes:
        code: what a call that met this error reports.
    """

    code: Code = Code.SANDBOX_UNAVAILABLE


class EngineError(SandboxError):
    """The container engine refused a request or failed while serving it."""


class EngineUnavailable(EngineError):
    """No container engine answers at the address."""


class UnsafeRuntime(EngineUnavailable):
    """The engine or its runtime is not as safe as the controller's policy demands.

    Attributes:
        faults: every reason, one sentence each, with the mend.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class ImageNotFound(EngineError):
    """The image is not on the engine and can't be had."""


class ImageNotAllowed(EngineError):
    """The image may be on the engine, but the controller's policy does not allow it."""


class SandboxUnavailable(SandboxError):
    """No box could be started for the loop."""


class AgentLost(SandboxError):
    """The box ended, or its agent no longer answers. Processes and `/tmp` are gone."""

    code = Code.SANDBOX_LOST


class QuotaExceeded(SandboxError):
    """The loop added more to its worktree than it may; its box is ended, the files stay."""

    code = Code.NO_SPACE


class NotReturned(SandboxError):
    """A loop is over and not all of its changes are in its worktree. They are kept."""


class ProtocolError(SandboxError):
    """The agent broke the protocol; its box is ended, no other is touched."""

    code = Code.PROTOCOL_ERROR
