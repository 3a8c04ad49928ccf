"""What an operation of the agent is made of.

An operation is a function `(workspace, arguments, body) -> (reply, data)` or a
generator function that ends by returning that pair. The agent has one thread: a
generator gives way by `yield None`, and starts a program by yielding a `Command`;
from then on every `yield` is answered by the next piece of the program's output
(bytes) and at last by an `Exit`.
"""

from __future__ import annotations

# `typing` would cost every idle box 0.8 MB; type checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeAlias

    Reply: TypeAlias = tuple[dict[str, Any], bytes]
    Steps: TypeAlias = Generator["Command | None", "bytes | Exit | None", Reply]
    Operation: TypeAlias = Callable[[Any, dict[str, Any], bytes], Reply | Steps]

RUNTIME = "/opt/executor"
RIPGREP = RUNTIME + "/bin/rg"
PDF = (RUNTIME + "/bin/python3", RUNTIME + "/lib/libpdfium.so")
"""What takes PDF files apart: an interpreter, and the library."""
PROGRAM = __file__.rpartition("/")[0] + "/pdf_program.py"
MARKUP = (PDF[0], RUNTIME + "/lib/markup")
"""What reads HTML: an interpreter, and the directory of its packages."""
MARKUP_PROGRAM = __file__.rpartition("/")[0] + "/markup_program.py"


class Failure(Exception):
    """The operation failed; becomes the call's error reply.

    Args:
        code: a value of the host's closed set of codes.
        message: for the model: what was wrong, what to do instead.
        details: JSON-able facts for a program.
    """

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class Command:
    """A program to run for an operation, in the workspace.

    Args:
        argv: the program's file and its arguments.
        source: a descriptor of its input, which the operation closes; -1 = nothing.
        files: descriptors that it has under the same numbers; the operation closes them.
    """

    __slots__ = ("argv", "files", "source")

    def __init__(self, argv: list[str], source: int = -1, files: tuple[int, ...] = ()) -> None:
        self.argv = argv
        self.source = source
        self.files = files


class Exit:
    """How a `Command` ended.

    Args:
        status: exit code, or the negative number of the signal that ended it.
        stderr: the first 64 KiB of what it said.
    """

    __slots__ = ("status", "stderr")

    def __init__(self, status: int, stderr: bytes) -> None:
        self.status = status
        self.stderr = stderr
