"""Commands and code: run in the box, cut to what a model can read."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from executor.catalog import Keep
from executor.errors import Code, Partial, ToolError, partial_of
from executor.model import MOUNT, Limits, Output, environment_faults, plain
from executor.results import Captured, Streams, show_streams, size_of, with_notices
from executor.tool import (
    Action,
    Answer,
    Arguments,
    Context,
    OnOutput,
    Outcome,
    Positive,
    Raw,
    RunsCode,
    RunsCommand,
    Text,
)

GRACE = 2.0
"""Seconds between TERM and KILL for a command that is ended."""


class RunCommand(Arguments):
    """Arguments of `run_command`."""

    command: Raw = Field(description="Shell command to execute")
    timeout_ms: Positive | None = Field(
        None, description="Timeout in milliseconds (default: {default})"
    )


def runs_command(context: Context, given: RunCommand) -> Sequence[Action]:
    """What `run_command` is going to do."""
    return [RunsCommand(given.command)]


async def run_command(context: Context, given: RunCommand) -> Outcome:
    """Execute a shell command in the worktree. Use for git, build tools, tests."""
    timeout = _timeout(context, "timeout_ms", given.timeout_ms, per_second=1000)
    answer, timeout = await _run(context, {"command": given.command}, b"", timeout)
    return _outcome(context, answer, timeout)


class RunCode(Arguments):
    """Arguments of `run_code`."""

    language: Literal["python", "bash"] = Field(description="Language of the code")
    code: Text = Field(description="Code to execute")
    args: list[Raw] | None = Field(None, description="Command-line arguments")
    env: dict[str, Raw] | None = Field(None, description="Environment variables")
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Seconds, default: {default}"
    )


def runs_code(context: Context, given: RunCode) -> Sequence[Action]:
    """What `run_code` is going to do. Variables and arguments change what bash code means."""
    if given.language == "bash" and not given.args and not given.env:
        return [RunsCommand(given.code, MOUNT)]
    return [RunsCode(given.language, given.code)]


_INTERPRETERS = {"python": ("python3", ".py"), "bash": ("bash", ".sh")}


async def run_code(context: Context, given: RunCode) -> Outcome:
    """Execute Python or bash code in a sandboxed environment, in the worktree's root."""
    faults = environment_faults(given.env or {})
    faults += [f"args[{n}] holds a NUL" for n, text in enumerate(given.args or ()) if "\0" in text]
    if faults:
        raise ToolError(Code.INVALID_ARGUMENTS, f"Invalid arguments: {'; '.join(faults)}.")
    timeout = _timeout(context, "timeout", given.timeout, per_second=1)
    program, suffix = _INTERPRETERS[given.language]
    arguments = {
        "argv": [program],
        "script": suffix,
        "args": given.args or [],
        "cwd": "",
        "environment": given.env or {},
    }
    started = time.monotonic()
    answer, timeout = await _run(context, arguments, given.code.encode(), timeout)
    duration = (time.monotonic() - started) * 1000
    return _outcome(
        context,
        answer,
        timeout,
        exitCode=answer.value["exit_code"],
        duration=round(duration, 1),
        interpreter=answer.value["interpreter"],
    )


def _timeout(context: Context, name: str, given: float | None, *, per_second: int) -> float:
    """The time that the command may take, in seconds.

    Args:
        context: of the call.
        name: of the argument, for the refusal.
        given: its value, in the argument's own unit; None = the default.
        per_second: that unit.
    """
    entry, limits = context.entry, context.loop.limits
    if given is None:
        default = limits.call_timeout
        return default if default is not None else entry.timeout_ms / 1000
    longest = entry.max_timeout_ms
    if longest is not None and given * 1000 / per_second > longest:
        most = longest * per_second / 1000
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"{name} is {plain(given)}, and at most {plain(most)} is allowed; give less and do "
            "the work in several calls.",
        )
    return given / per_second


async def _run(
    context: Context, arguments: dict[str, Any], body: bytes, timeout: float
) -> tuple[Answer, float]:
    """Run it; the answer, and the timeout that held."""
    if context.time_left is not None:
        timeout = min(timeout, context.time_left)
    budget, keep = context.entry.max_output_bytes, context.entry.keep
    head = {Keep.START: budget, Keep.END: 0, Keep.BOTH: budget // 2}[keep]
    full = {
        "command": None,
        "argv": None,
        "script": None,
        "args": [],
        "cwd": None,
        "environment": {},
        **arguments,
        "timeout": timeout,
        "grace": GRACE,
        "merge": context.loop.toolset.merge_stderr,
        "head": head,
        "tail": budget - head,
        "stream": context.emit is not None,
    }
    try:
        answer = await context.loop.box.request(
            "run", full, body, timeout=timeout, on_output=_live(context)
        )
    except asyncio.CancelledError as error:
        partial = partial_of(error)
        if partial is not None:
            error.args = (Partial(_outcome(context, partial, timeout)),)
        raise
    return answer, timeout


def _live(context: Context) -> OnOutput | None:
    """Makes events of live output; a character may come in two pieces."""
    emit = context.emit
    if emit is None:
        return None
    make = codecs.getincrementaldecoder("utf-8")
    decoders = {"stdout": make("replace"), "stderr": make("replace")}

    def on_output(channel: Literal["stdout", "stderr"], data: bytes) -> None:
        text = decoders[channel].decode(data)
        if text:
            emit(Output(call_id=context.call_id, channel=channel, text=text))

    return on_output


# ─── what became of it ──────────────────────────────────────────────────────────────


def _outcome(context: Context, answer: Answer, timeout: float, **more: Any) -> Outcome:
    value = answer.value
    context.session.cwd = value["cwd"]
    stdout, stderr = _captured(answer)
    entry = context.entry
    failed = value["timed_out"] or value.get("cancelled") is True or value["exit_code"] != 0
    causes = _causes(value, timeout, context.loop.limits) if failed else []
    notes = [str(note) for note in value["notes"]]
    notes += _hints(context.loop.seccomp, answer.data, failed=failed)
    if value["timed_out"] and timeout == context.time_left:
        notes.append("the loop's time is over")
    room = size_of(with_notices("".join(f"{cause}\n" for cause in causes) + "\n", notes))
    budget = entry.max_output_bytes - (room if causes or notes else 0)
    streams = show_streams(stdout, stderr, budget, entry.keep)
    return Outcome(
        with_notices("\n".join([*causes, streams.text]), notes),
        {**_structured(context, value, streams, notes), **more},
        is_error=failed,
        code=_code(value) if failed else None,
        truncated=streams.truncated,
        total_bytes=streams.total,
    )


_UNTRACED = re.compile(
    rb"ptrace[^\n]{0,80}Operation not permitted|LeakSanitizer has encountered a fatal error",
    re.IGNORECASE,
)
_UNINSTALLED = re.compile(
    rb"Could not open lock file /var/lib/(?:dpkg|apt)/"
    rb"|dpkg: error: (?:requested operation requires superuser|unable to access the dpkg database)"
)


def _hints(profile: str, output: bytes, *, failed: bool) -> list[str]:
    """What the box has to do with it, where a program's own words lead elsewhere.

    A debugger may end well although it could trace nothing; apt asks for root, which
    would not help.
    """
    hints: list[str] = []
    if profile == "strict" and _UNTRACED.search(output):
        hints.append(
            "the seccomp profile strict has no ptrace, so debuggers and LeakSanitizer can't work; "
            "ASAN_OPTIONS=detect_leaks=0 keeps the rest of ASan, the profile standard allows all"
        )
    if failed and _UNINSTALLED.search(output):
        hints.append(
            "packages can't be installed in the sandbox: its root file system is read-only, for "
            "root too; open the loop with an image that has them"
        )
    return hints


def _captured(answer: Answer) -> tuple[Captured, Captured]:
    found: list[Captured] = []
    position = 0
    for name in ("stdout", "stderr"):
        sizes = answer.value.get(name) or {"total": 0, "head": 0, "tail": 0}
        middle = position + sizes["head"]
        end = middle + sizes["tail"]
        data = answer.data
        found.append(Captured(data[position:middle], data[middle:end], sizes["total"]))
        position = end
    return found[0], found[1]


def _structured(
    context: Context, value: dict[str, Any], streams: Streams, notes: list[str]
) -> dict[str, Any]:
    return {
        "exit_code": value["exit_code"],
        "signal": value["signal"],
        "timed_out": value["timed_out"],
        "oom": value["oom"],
        "limit": value["limit"],
        "cwd": value["cwd"],
        "lane": context.loop.lane,
        "merged": context.loop.toolset.merge_stderr,
        "stdout": streams.stdout,
        "stderr": streams.stderr,
        "shell": value["shell"],
        "notes": notes,
    }


_LIMITS: dict[str, tuple[Code, Callable[[Limits], str]]] = {
    "memory": (
        Code.OUT_OF_MEMORY,
        lambda limits: f"killed: the memory limit of {_size(limits.memory_bytes)} was reached",
    ),
    "pids": (Code.LIMIT, lambda limits: f"the process limit of {limits.pids} was reached"),
    "disk": (Code.NO_SPACE, lambda limits: "no space left"),
    "output": (Code.LIMIT, lambda limits: "the output limit was reached"),
}


def _causes(value: dict[str, Any], timeout: float, limits: Limits) -> list[str]:
    """Why the command counts as failed, the first thing that the model reads."""
    causes: list[str] = []
    if value["timed_out"]:
        causes.append(f"Command timed out after {round(timeout * 1000)}ms")
    elif value.get("cancelled") is True:
        causes.append("Command cancelled")
    elif value["exit_code"] is not None:
        causes.append(f"Exit code: {value['exit_code']}")
    else:
        causes.append(f"Killed by signal {value['signal']}")
    limit = _LIMITS.get(value["limit"])
    if limit is not None:
        causes.append(limit[1](limits))
    return causes


def _code(value: dict[str, Any]) -> Code:
    if value["timed_out"]:
        return Code.TIMEOUT
    if value.get("cancelled") is True:
        return Code.CANCELLED
    limit = _LIMITS.get(value["limit"])
    return limit[0] if limit is not None else Code.EXECUTION_ERROR


def _size(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            number = size / unit
            return f"{number:.0f} {name}" if number == int(number) else f"{number:.1f} {name}"
    return f"{size} bytes"
