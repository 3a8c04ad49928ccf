"""Commands and code: run in the box, cut to what a model can read."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from executor.catalog import Keep
from executor.errors import Code, Partial, SandboxError, ToolError, partial_of
from executor.model import MOUNT, Limits, Output, Spilled, environment_faults, plain
from executor.results import (
    HEADING,
    Captured,
    Limit,
    Streams,
    saved_notices,
    show_streams,
    size_of,
    with_notices,
)
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
    return await _kept(context, answer, _outcome(context, answer, timeout), timeout)


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
    more = {
        "exitCode": answer.value["exit_code"],
        "duration": round(duration, 1),
        "interpreter": answer.value["interpreter"],
    }
    outcome = _outcome(context, answer, timeout, **more)
    return await _kept(context, answer, outcome, timeout, **more)


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
    budget, keep = Limit.of(context).most_bytes, context.entry.keep
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
        "shelve": context.loop.spill is not None,
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


def _outcome(
    context: Context,
    answer: Answer,
    timeout: float,
    spilled: Spilled | None = None,
    **more: Any,
) -> Outcome:
    """What the model is told of a command.

    Args:
        context: of the call.
        answer: of the agent.
        timeout: seconds that it was given.
        spilled: where the whole of its output is kept; None = nowhere.
        more: structured facts.
    """
    value = answer.value
    context.session.cwd = value["cwd"]
    stdout, stderr = _captured(answer)
    keep = context.entry.keep
    failed = value["timed_out"] or value.get("cancelled") is True or value["exit_code"] != 0
    causes = _causes(value, timeout, context.loop.limits) if failed else []
    notes = [str(note) for note in value["notes"]]
    notes += _hints(context.loop.seccomp, answer.data, failed=failed)
    if value["timed_out"] and timeout == context.time_left:
        notes.append("the loop's time is over")
    told = [*notes, *saved_notices(spilled, keep)]
    limit = Limit.of(context)
    room = size_of(with_notices("".join(f"{cause}\n" for cause in causes) + "\n", told), limit.unit)
    path = None if spilled is None else spilled.path
    streams = show_streams(stdout, stderr, limit.less(room if causes or told else 0), keep, path)
    return Outcome(
        with_notices("\n".join([*causes, streams.text]), told),
        {**_structured(context, value, streams, notes), **more},
        is_error=failed,
        code=_code(value) if failed else None,
        truncated=streams.truncated,
        total_bytes=streams.total,
        spill=path,
        is_fitted=True,
    )


# ─── what does not fit ──────────────────────────────────────────────────────────────

PIECE = 1 << 20
"""Bytes of an ended command's output that are asked for at a time."""
FETCH_TIMEOUT = 30.0
"""Seconds that one piece may take."""
KEEP_TIMEOUT = 60.0
"""Seconds that all of them may take; an output that takes longer is not kept."""


async def _kept(
    context: Context, answer: Answer, outcome: Outcome, timeout: float, **more: Any
) -> Outcome:
    """The outcome, and where the whole output is, if not all of it is shown."""
    spill = context.loop.spill
    if not outcome.truncated or spill is None:
        return outcome
    missing: list[int] = []
    try:
        async with (
            asyncio.timeout(KEEP_TIMEOUT),
            aclosing(_whole(context, answer, spill.most, missing)) as pieces,
        ):
            spilled = await spill.keep(pieces)
    except (ToolError, SandboxError, TimeoutError):
        # The command has ended; that its output is gone must not hide what became of it.
        return outcome
    except asyncio.CancelledError as error:
        error.args = (Partial(outcome),)
        raise
    if spilled is None:
        return outcome
    if missing:
        said = f"{sum(missing)} bytes were not kept"
        spilled = replace(spilled, notice="; ".join(filter(None, (said, spilled.notice))))
    return _outcome(context, answer, timeout, spilled, **more)


async def _whole(
    context: Context, answer: Answer, most: int, missing: list[int]
) -> AsyncGenerator[bytes, None]:
    """All of both streams that is kept, laid out as the model is shown them.

    Args:
        context: of the call.
        answer: of the agent, which holds ends of the streams, or all of them.
        most: bytes that have a place.
        missing: takes the numbers of bytes that are not there.
    """
    shelf = answer.value.get("shelf")
    captured = dict(zip(("stdout", "stderr"), _captured(answer), strict=True))
    if shelf is None:
        parts = [stream.head + stream.tail for stream in captured.values()]
        yield HEADING.encode().join(part for part in parts if part)
        return
    names = [name for name in captured if shelf.get(name, [0])[0]]
    room = (most - _MARKS) // max(len(names), 1)
    try:
        for number, name in enumerate(names):
            if number:
                yield HEADING.encode()
            async for piece in _stream(context, shelf, name, room, missing):
                yield piece
    finally:
        done = {"shelf": shelf["number"], "size": 0}
        with suppress(ToolError, SandboxError):
            await context.loop.box.request("fetch", done, timeout=FETCH_TIMEOUT)


_MARKS = 1000
"""Bytes for what stands between streams, and where something is missing."""


async def _stream(
    context: Context, shelf: dict[str, Any], name: str, room: int, missing: list[int]
) -> AsyncIterator[bytes]:
    """One stream, piece by piece: beginning and end, and a mark where bytes are missing."""
    total, head, tail = shelf[name]
    if head + tail > room:
        tail = min(room // 2, tail or total)
        head = min(room - tail, head)
    for start, end in ((0, head), (max(total - tail, head), total)):
        if start > head:
            missing.append(start - head)
            yield f"\n[{start - head} bytes were not kept]\n".encode()
        position = start
        while position < end:
            asked = {
                "shelf": shelf["number"],
                "stream": name,
                "position": position,
                "size": min(PIECE, end - position),
            }
            piece = await context.loop.box.request("fetch", asked, timeout=FETCH_TIMEOUT)
            yield piece.data
            position += asked["size"]
            if piece.value["next"] != position:
                # It can't read its own file, or is none of ours: ask it nothing more.
                missing.append(end - position)
                return


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
