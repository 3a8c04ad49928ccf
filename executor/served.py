"""Programs in a box that are spoken to over their stdin and stdout: MCP and language servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from executor.bytestream import ByteStream
from executor.errors import SandboxError
from executor.text import visible

MAX_STDERR = 64 << 10
"""Bytes of a server's stderr that are kept: the last ones."""
TAIL = 2000
"""Characters of them that an error shows."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to be started in a box.

    Attributes:
        argv: its name, looked up by the box's PATH, or its path; and its arguments. No shell
            reads them.
        environment: variables beside those that commands have.
        cwd: where it starts, below the worktree; empty = its root.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """What became of a started program.

    Attributes:
        is_running: it has not ended yet.
        exit_code, signal: how it ended; one of the two, once it has.
        is_out_of_memory: it was ended for memory.
        stderr: the last that it wrote there, at most `MAX_STDERR` bytes.
    """

    is_running: bool
    exit_code: int | None = None
    signal: str | None = None
    is_out_of_memory: bool = False
    stderr: bytes = b""


class Served(Protocol):
    """A started program. It ends with its box, whatever else happens."""

    @property
    def stream(self) -> ByteStream:
        """Its stdin and stdout. Reading gives ``b""`` once it has closed its stdout; writing
        raises `StreamClosed` once it takes no more, or the box is lost."""

    async def state(self) -> State:
        """How it is.

        Raises:
            SandboxError: the box is lost.
        """

    async def end(self, grace: float = 2.0) -> State:
        """End it and all that it started: its stdin is closed, TERM, after `grace` seconds KILL.

        May be called again. Once it returns nothing of it is left in the box.

        Raises:
            SandboxError: the box is lost, and it with the box.
        """


Serve: TypeAlias = Callable[[Program], Awaitable[Served]]
"""Starts a program in a box.

Raises ToolError: NOT_FOUND, the box has no such program; LIMIT, too many are running already;
EXECUTION_ERROR, it could not be started. Raises SandboxError: there is no box.
"""


def last_words(state: State, *, is_over: bool, fault: str | None) -> str:
    """How a program ended and what it last said, in sentences that follow another one.

    Args:
        state: after its end.
        is_over: it spoke no more before it was ended from here; else how it ended says nothing.
        fault: of it, for which it was ended from here; None = there was none.
    """
    said = "" if fault is None else f" It was ended: {visible(fault)}."
    if state.is_out_of_memory:
        said += " It had no more memory."
    elif fault is not None or not is_over or state.is_running:
        pass
    elif state.signal is not None:
        said += f" It was ended by {visible(state.signal)}."
    elif state.exit_code is not None:
        said += f" Its exit code is {state.exit_code}."
    tail = visible(state.stderr.decode(errors="replace").strip())[-TAIL:]
    return f"{said} Its stderr ends with:\n{tail}\n" if tail else said


def without_box(error: SandboxError) -> str:
    """The same of a program whose box is lost: what became of it nobody can say any more."""
    return f" Its sandbox is gone: {visible(str(error).rstrip('.'))}."
