"""Commands and code: run in the box, cut to what a model can read."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from executor.catalog import Keep
from executor.errors import Code, Partial, ToolError, partial_of
from executor.model import MOUNT, Output, Spilled, environment_faults, plain
from executor.results import (
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
from executor.tools import way_out
from executor.tools.background import start
from executor.tools.outputs import GRACE, captured, causes, code_of, kept


class RunCommand(Arguments):
    """Arguments of `run_command` and `run_command_isolated`."""

    command: Raw = Field(description="Shell command to execute")
    timeout_ms: Positive | None = Field(
        None, description="Timeout in milliseconds (default: {default})"
    )
    description: Text | None = Field(None, description="What the command does, in a few words")
    run_in_background: bool | None = Field(
        None,
        description="Start it and go on at once; task_output reads its output, kill_shell ends it",
    )


class Bash(Arguments):
    """Arguments of the `claude-code` toolset's `Bash`, as a model sees them."""

    command: Raw = Field(description="The command to execute")
    description: Text | None = Field(
        None, description="Clear, concise description of what this command does"
    )
    timeout: Positive | None = Field(
        None, description="Optional timeout in milliseconds (max 600000)"
    )
    run_in_background: bool | None = Field(
        None, description="Set to true to run this command in the background"
    )


def runs_command(context: Context, given: Any) -> Sequence[Action]:
    """What a command line is going to do, in the background too."""
    return [RunsCommand(given.command)]


async def run_command(context: Context, given: RunCommand) -> Outcome:
    """Execute a shell command in the worktree. Use for git, build tools, tests."""
    return await _command(context, given, "timeout_ms", given.timeout_ms)


async def run_command_isolated(context: Context, given: RunCommand) -> Outcome:
    """Execute command without network"""
    return await _command(context, given, "timeout_ms", given.timeout_ms)


async def bash(context: Context, given: Bash) -> Outcome:
    """Executes a given bash command with optional timeout."""
    return await _command(context, given, "timeout", given.timeout)


async def _command(
    context: Context, given: RunCommand | Bash, name: str, milliseconds: int | None
) -> Outcome:
    if given.run_in_background:
        timeout = None
        if milliseconds is not None:
            timeout = _timeout(context, name, milliseconds, per_second=1000)
        arguments = _arguments(context, {"command": given.command}, timeout)
        return await start(context, arguments, given.description or given.command)
    timeout = _timeout(context, name, milliseconds, per_second=1000)
    return await waited_for(context, {"command": given.command}, b"", timeout)


async def run_line(context: Context, command: str, timeout_ms: int | None) -> Outcome:
    """A command line that a tool knows by itself, in the worktree's root; the result names it.

    Args:
        context: of the call.
        command: the line.
        timeout_ms: what the model asked for; None = the catalog's default.
    """
    timeout = _timeout(context, "timeout_ms", timeout_ms, per_second=1000)
    arguments = {"command": command, "cwd": ""}
    return await waited_for(context, arguments, b"", timeout, (f"ran: {command}",))


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
    _check_start(context, given)
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
    outcome = await waited_for(context, arguments, given.code.encode(), timeout)
    duration = (time.monotonic() - started) * 1000
    more = {"exitCode": (outcome.structured or {})["exit_code"], "duration": round(duration, 1)}
    return replace(outcome, structured={**(outcome.structured or {}), **more})


def _check_start(context: Context, given: RunCode) -> None:
    """Raises ToolError: INVALID_ARGUMENTS, no program can be started with these."""
    faults = [("env", text.partition(": ")[2]) for text in environment_faults(given.env or {})]
    faults += [
        (f"args.{number}", "it holds a NUL character")
        for number, text in enumerate(given.args or ())
        if "\0" in text
    ]
    if faults:
        sentences = "; ".join(f"{field}: {text}" for field, text in faults)
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"Invalid arguments for {context.tool}: {sentences}.",
            {"faults": [{"field": field, "message": text} for field, text in faults]},
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


async def waited_for(
    context: Context,
    arguments: dict[str, Any],
    body: bytes,
    timeout: float,
    notes: Sequence[str] = (),
) -> Outcome:
    """Run it to its end.

    Args:
        context: of the call.
        arguments: what to run, for the agent.
        body: its input, as a script has one.
        timeout: seconds that it may take.
        notes: what the model has to know beside the output.
    """
    if context.time_left is not None:
        timeout = min(timeout, context.time_left)
    full = _arguments(context, arguments, timeout)
    full["stream"] = context.emit is not None
    started = time.monotonic()
    try:
        answer = await context.loop.box.request(
            "run", full, body, timeout=timeout, on_output=_live(context)
        )
    except asyncio.CancelledError as error:
        partial = partial_of(error)
        if partial is not None:
            error.args = (Partial(_outcome(context, partial, timeout, notes)),)
        raise
    notes = (*notes, *way_out.hints(context.loop, answer, time.monotonic() - started))
    outcome = _outcome(context, answer, timeout, notes)
    if not outcome.truncated:
        return outcome
    try:
        spilled = await kept(context, answer)
    except asyncio.CancelledError as error:
        error.args = (Partial(outcome),)
        raise
    return outcome if spilled is None else _outcome(context, answer, timeout, notes, spilled)


def _arguments(
    context: Context, arguments: dict[str, Any], timeout: float | None
) -> dict[str, Any]:
    """What the agent is told of a command."""
    budget, keep = Limit.of(context).most_bytes, context.entry.keep
    head = {Keep.START: budget, Keep.END: 0, Keep.BOTH: budget // 2}[keep]
    return {
        "command": None,
        "argv": None,
        "script": None,
        "args": [],
        "cwd": None,
        # An agent knows only where its own commands ended.
        **({"at": context.cwd} if context.loop.lanes else {}),
        "environment": {},
        **arguments,
        **_careful(context, arguments.get("environment", {})),
        "timeout": timeout,
        "grace": GRACE,
        "merge": context.loop.toolset.merge_stderr,
        "head": head,
        "tail": budget - head,
        "stream": False,
        "shelve": context.loop.spill is not None,
    }


_ONLY_NAMED = "'safe.bareRepository=explicit'"
"""A setting as `git -c` hands it on."""


def _careful(context: Context, environment: dict[str, str]) -> dict[str, Any]:
    """What git is told where somebody decides on commands.

    `git status` runs unasked then, and so may a tool that makes a new file. A directory with
    files called HEAD, config, objects and refs is a bare repository to git, whose settings name
    programs: it has to be named by `--git-dir` to be one. `.git` is nobody's to write.
    """
    if context.session.mode == "bypass":
        return {}
    return {"environment": {"GIT_CONFIG_PARAMETERS": _ONLY_NAMED, **environment}}


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
    more: Sequence[str] = (),
    spilled: Spilled | None = None,
) -> Outcome:
    """What the model is told of a command.

    Args:
        context: of the call.
        answer: of the agent.
        timeout: seconds that it was given.
        more: what the model has to know beside the output.
        spilled: where the whole of its output is kept; None = nowhere.
    """
    value = answer.value
    context.session.cwd = value["cwd"]
    stdout, stderr = captured(answer)
    keep = context.entry.keep
    failed = value["timed_out"] or value.get("cancelled") is True or value["exit_code"] != 0
    reasons = causes(value, timeout, context.loop.limits) if failed else []
    notes = [str(note) for note in value["notes"]]
    notes += _hints(context.loop.seccomp, answer.data, failed=failed)
    if value["timed_out"] and timeout == context.time_left:
        notes.append("the loop's time is over")
    notes += more
    told = [*notes, *saved_notices(spilled, keep)]
    limit = Limit.of(context)
    room = size_of(
        with_notices("".join(f"{cause}\n" for cause in reasons) + "\n", told), limit.unit
    )
    path = None if spilled is None else spilled.path
    streams = show_streams(stdout, stderr, limit.less(room if reasons or told else 0), keep, path)
    return Outcome(
        with_notices("\n".join([*reasons, streams.text]), told),
        _structured(context, value, streams, notes),
        is_error=failed,
        code=code_of(value) if failed else None,
        truncated=streams.truncated,
        total_bytes=streams.total,
        spill=path,
        is_fitted=True,
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
        **({"interpreter": value["interpreter"]} if value["interpreter"] is not None else {}),
    }
