"""What runs in a new box before its first call: `LoopSpec.setup`, most often an installation."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Literal

from executor.errors import SandboxError, ToolError
from executor.model import LoopSpec, plain
from executor.text import one_line
from executor.tool import Answer, Operations

TIMEOUT = 600.0
"""Seconds that a set-up may take: downloads and builds of a whole project are in it."""
GRACE = 2.0
"""Seconds between TERM and KILL when it takes longer."""
LAST_LINES = 20
_KEPT = 64 << 10
_LONGEST_LINE = 500


class SetupFailed(SandboxError):
    """The set-up did not end well, so its box is not used."""


async def set_up(box: Operations, spec: LoopSpec, tell: Callable[[str], None]) -> None:
    """Run the loop's set-up, in the worktree's root; nothing happens where it has none.

    Args:
        box: an open one, with all that the set-up may reach.
        spec: the loop's.
        tell: takes the set-up's output, one line after the other, made harmless.

    Raises:
        SetupFailed: it did not exit with 0, or took longer than `TIMEOUT`; the sentence has its
            last lines.
        SandboxError: the box was lost.
    """
    if spec.setup is None:
        return
    lines = _Lines(tell)
    shown = one_line(spec.setup, _LONGEST_LINE)
    try:
        answer = await box.request(
            "run", _arguments(spec.setup), timeout=TIMEOUT, on_output=lines.take
        )
    except ToolError as error:
        raise SetupFailed(f"setup: `{shown}` could not be run: {error}") from error
    finally:
        lines.end()
    if fault := _fault(answer):
        raise SetupFailed(f"setup: `{shown}` {fault}{_last_words(answer)}")


def _arguments(command: str) -> dict[str, object]:
    """What the agent is told; both streams come as one, in the order of writing."""
    return {
        "command": command,
        "argv": None,
        "script": None,
        "args": [],
        "cwd": "",
        "environment": {},
        "timeout": TIMEOUT,
        "grace": GRACE,
        "merge": True,
        "head": 0,
        "tail": _KEPT,
        "stream": True,
        "shelve": False,
    }


def _fault(answer: Answer) -> str:
    """How it failed; empty = it did not."""
    value = answer.value
    if value["timed_out"]:
        return f"took longer than {plain(TIMEOUT)} s"
    if value["exit_code"] == 0:
        return ""
    if value["exit_code"] is None:
        return f"was killed by signal {value['signal']}"
    return f"ended with exit code {value['exit_code']}"


def _last_words(answer: Answer) -> str:
    text = answer.data.decode("utf-8", "replace")
    lines = [one_line(line, _LONGEST_LINE) for line in text.splitlines() if line.strip()][
        -LAST_LINES:
    ]
    if not lines:
        return ", and printed nothing"
    return "; it printed at the end:\n" + "\n".join(f"  {line}" for line in lines)


class _Lines:
    """Output in pieces → whole lines. A bar that draws over itself is one line at its end."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def take(self, channel: Literal["stdout", "stderr"], data: bytes) -> None:
        """See `executor.tool.OnOutput`."""
        *lines, self._begun = (self._begun + self._decoder.decode(data)).split("\n")
        # What comes without an end of line must not be kept whole.
        self._begun = self._begun[-_KEPT:]
        for line in lines:
            self._say(line)

    def end(self) -> None:
        """Say what has no end of line."""
        begun, self._begun = self._begun, ""
        self._say(begun)

    def _say(self, line: str) -> None:
        shown = line.rstrip("\r").rpartition("\r")[2]
        if shown.strip():
            self._tell(one_line(shown, _LONGEST_LINE))
