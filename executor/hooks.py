"""What the host wants to see or to stop: callables and commands around each call.

Commands run on the host, so nothing of a box has a say in how: they come from the user's
catalog or from Python, start in `/` with a fixed environment, and may not lie in the
worktree. What a box sent reaches them as JSON on their input, and as nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import re
import shlex
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeAlias

from executor.callables import TooLate, Unusable, bounded, called, own_json, refuse_constant
from executor.catalog import HookEntry
from executor.errors import Code, ConfigError, ToolError
from executor.text import json_line, one_line
from executor.tool import Context, Outcome, Tool

TIMEOUT = 60.0
"""Seconds that a hook may take."""
ENDING_TIMEOUT = 5.0
"""Seconds that all of them may take when the call was cancelled: somebody waits for its end."""
MAX_OUTPUT = 64 << 10
"""Bytes of each stream of a command that are looked at; the rest is dropped."""
MAX_TOLD = 1 << 20
"""Characters of a result's data, or of a picture, that a command is told."""
MAX_REASON = 4000
"""Characters of a reason or a note for the model."""
_LEFT_OVER = 0.2
"""Seconds in which what a command left running may still write to its streams."""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/",
    "LANG": "C.UTF-8",
}
"""The whole environment of a command."""
DIRECTORY = "/"
"""Where commands start."""


class HookEvent(StrEnum):
    """When a hook is called."""

    BEFORE = "PreToolUse"
    """Before a call runs, after it was approved. May stop it or change its input."""
    AFTER = "PostToolUse"
    """After a call ran, whatever its command's exit code. May add a note for the model."""
    AFTER_FAILURE = "PostToolUseFailure"
    """After a call that ran failed as such: its time was over, its box was lost."""
    AFTER_TURN = "PostTools"
    """Once a turn, if a call that may have changed the worktree succeeded."""


@dataclass(frozen=True, slots=True)
class Use:
    """A call, as hooks see it.

    Attributes:
        tool: name as the model calls it.
        canonical: name in the catalog.
        input: the arguments as given.
        call_id, turn_id, exec_id: whose it is.
        cwd: where commands start, as seen in the box.
        is_mutating: it may have changed the worktree.
    """

    tool: str
    canonical: str
    input: Mapping[str, Any]
    call_id: str
    turn_id: str
    exec_id: str
    cwd: str
    is_mutating: bool

    @classmethod
    def of(cls, tool: Tool, given: Mapping[str, Any], context: Context) -> Use:
        """The use that a pipeline is about to make of a tool."""
        return cls(
            tool.name,
            tool.canonical,
            given,
            context.call_id,
            context.turn_id,
            context.loop.exec_id,
            context.cwd,
            tool.is_mutating,
        )


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a hook is told.

    Attributes:
        event: why it is called.
        uses: the call; after a turn, its calls that may have changed the worktree.
        outcome: what the call came to, as the model is shown it; None before it and after a
            failure.
        error: why it failed; None otherwise.
    """

    event: HookEvent
    uses: tuple[Use, ...]
    outcome: Outcome | None = None
    error: BaseException | None = None

    @property
    def use(self) -> Use:
        """The call, or the first of the turn's."""
        return self.uses[0]

    def to_json(self) -> dict[str, Any]:
        """The same for a command."""
        use = self.use
        told: dict[str, Any] = {
            "hook_event_name": self.event.value,
            "exec_id": use.exec_id,
            "turn_id": use.turn_id,
            "cwd": use.cwd,
        }
        if self.event is HookEvent.AFTER_TURN:
            return told | {"tools": [_named(one) for one in self.uses]}
        told |= _named(use)
        if self.outcome is not None:
            told["tool_response"] = _response(self.outcome)
        if self.error is not None:
            told["error"] = {"code": _code_of(self.error), "message": _message_of(self.error)}
        return told


def _named(use: Use) -> dict[str, Any]:
    return {"tool_name": use.tool, "tool_input": dict(use.input), "call_id": use.call_id}


def _response(outcome: Outcome) -> dict[str, Any]:
    """An outcome for a command: texts as the model has them, and data that is not too long."""
    content: Any = outcome.content
    if not isinstance(content, str):
        content = [_told_block(block) for block in content]
    told = {"content": content, "structured": outcome.structured, "is_error": outcome.is_error}
    if len(json_line(outcome.structured)) > MAX_TOLD:
        told |= {"structured": None, "structured_left_out": True}
    return told


def _told_block(block: Mapping[str, Any]) -> dict[str, Any]:
    size = 0 if block.get("type") == "text" else len(json_line(dict(block)))
    if size <= MAX_TOLD:
        return dict(block)
    return {"type": block.get("type"), "left_out": size}


def _code_of(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return Code.CANCELLED
    return str(getattr(error, "code", Code.INTERNAL))


def _message_of(error: BaseException) -> str:
    return str(error) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Reply:
    """What a hook says. Saying nothing is None.

    Attributes:
        decision: `reject` stops the call; before a call only.
        reason: for the model: why it was stopped, or after a call a note beside its result.
        updated_input: arguments to run with instead; they are judged like any others.
    """

    decision: Literal["allow", "reject"] = "allow"
    reason: str | None = None
    updated_input: Mapping[str, Any] | None = None


Called: TypeAlias = Callable[[Occasion], Reply | Awaitable[Reply | None] | None]


class HookFailed(Exception):
    """A hook gave no answer that can be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook.

    Attributes:
        event: when it is called.
        run: a callable, async or not; or a command: a text for `/bin/sh`, or a program and
            its arguments.
        matcher: a tool's name, canonical or shown, or a regular expression for all of it;
            `*` is every tool.
        timeout: seconds that it may take.

    A command is told of the call by one line of JSON. Exit code 0: all is well, and what it
    prints may be a JSON object with `decision` (`allow` or `reject`), `reason` and
    `updated_input`. Exit code 2: rejected, for the reason on its standard error. Anything
    else is a failure: before a call it stops the call, otherwise it is a warning.
    """

    event: HookEvent
    run: Called | str | Sequence[str]
    matcher: str = "*"
    timeout: float = TIMEOUT

    @property
    def name(self) -> str:
        """For messages."""
        if callable(self.run):
            return getattr(self.run, "__qualname__", repr(self.run))
        text = self.run if isinstance(self.run, str) else shlex.join(self.run)
        return one_line(text, 100)

    def faults(self, roots: Iterable[str] = ()) -> list[str]:
        """What is wrong with it, one sentence each.

        Args:
            roots: paths on the host of what the loop may write.
        """
        found: list[str] = []
        if self.event not in set(HookEvent):
            found.append(f"there is no event {self.event!r}; use one of {', '.join(HookEvent)}")
        try:
            re.compile(self.matcher)
        except re.error as error:
            if self.matcher != "*":
                found.append(f"the matcher {self.matcher!r} is no regular expression: {error}")
        if not 0 < self.timeout < float("inf"):
            found.append(f"timeout is {self.timeout}; give more than 0 seconds")
        if not callable(self.run):
            found += _command_faults(self.run, roots)
        return [f"hook {self.name}: {fault}" for fault in found]

    def matches(self, use: Use) -> bool:
        """Is it about this tool?"""
        if self.matcher in ("*", "", use.tool, use.canonical):
            return True
        return any(re.fullmatch(self.matcher, name) for name in (use.tool, use.canonical))


def _command_faults(command: str | Sequence[str], roots: Iterable[str]) -> list[str]:
    """Commands that could not run, or that the loop itself could rewrite."""
    if not command or not command[0].strip():
        return ["the command is empty; give a program"]
    text = command if isinstance(command, str) else "\n".join(command)
    if "\0" in text:
        return ["the command holds a NUL character"]
    real = [os.path.realpath(root) for root in roots]
    for word in _paths(text, command):
        # Two slashes at the start would stay two.
        place = os.path.realpath(os.path.join(DIRECTORY, re.sub("^/+", "/", word)))
        if any(Path(place).is_relative_to(root) for root in real):
            return [
                f"{word} lies in the worktree or an added directory, where the loop can rewrite "
                "it, and would run on this machine; keep it elsewhere"
            ]
    return []


def _paths(text: str, command: str | Sequence[str]) -> Iterator[str]:
    """What in a command may be a path, as written and without quotes; relative ones, too."""
    yield from re.findall(r"/[^\s'\"`$;|&<>()=:,]+", text)
    words = text.split("\n") if not isinstance(command, str) else []
    with contextlib.suppress(ValueError):  # a quote that is never closed: the shell will say so
        words += shlex.split(text)
    for word in words:
        yield from (part for part in re.split(r"[\s;|&<>()=:,]+", word) if "/" in part)


class Hooks:
    """The hooks of one loop, called in order, one after the other.

    Args:
        hooks: in order.

    Raises:
        ConfigError: with everything that is wrong with one of them.
    """

    def __init__(self, hooks: Sequence[Hook] = ()) -> None:
        self._hooks = tuple(hooks)
        self.check()

    @classmethod
    def from_catalog(cls, entries: Iterable[HookEntry]) -> Hooks:
        """Those of the catalog's `[[hooks]]`.

        Raises:
            ConfigError: with everything that is wrong with one of them.
        """
        return cls(
            [
                Hook(HookEvent(entry.event), entry.command, entry.matcher, entry.timeout)
                for entry in entries
            ]
        )

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def __add__(self, other: Hooks) -> Hooks:
        """These, then the others."""
        return Hooks((*self._hooks, *other._hooks))

    def check(self, roots: Iterable[str] = ()) -> None:
        """Look at them all.

        Args:
            roots: paths on the host of what the loop may write, where no command may lie.

        Raises:
            ConfigError: with everything that is wrong with one of them.
        """
        roots = tuple(roots)
        faults = [fault for hook in self._hooks for fault in hook.faults(roots)]
        if faults:
            raise ConfigError(faults)

    async def before(self, use: Use) -> Mapping[str, Any] | None:
        """PreToolUse: other arguments for the call, or None.

        Each hook sees what the ones before it made of the input. One that fails stops the
        call: what it would have said is not known.

        Raises:
            ToolError: REJECTED, with the reason for the model.
        """
        given = use.input
        for hook in self._for(HookEvent.BEFORE, use):
            try:
                reply = await _asked(hook, Occasion(HookEvent.BEFORE, (use,)), hook.timeout)
            except HookFailed as error:
                raise ToolError(
                    Code.REJECTED,
                    f"{use.tool} was not run: a hook that has to agree failed ({error}).",
                    {"hook": hook.name},
                ) from error
            if reply is None:
                continue
            if reply.decision == "reject":
                reason = reply.reason or "no reason was given"
                raise ToolError(
                    Code.REJECTED,
                    f"{use.tool} was not run: {reason[:MAX_REASON]}",
                    {"hook": hook.name},
                )
            if reply.updated_input is not None:
                use = replace(use, input=reply.updated_input)
        return None if use.input == given else use.input

    async def after(self, use: Use, outcome: Outcome) -> tuple[list[str], list[str]]:
        """PostToolUse → notes for the model, warnings for the host."""
        replies, warnings = await self._told(Occasion(HookEvent.AFTER, (use,), outcome))
        notes = [reply.reason[:MAX_REASON] for reply in replies if reply.reason]
        return notes, warnings

    async def after_failure(self, use: Use, error: BaseException) -> list[str]:
        """PostToolUseFailure → warnings for the host."""
        most = None if isinstance(error, Exception) else ENDING_TIMEOUT
        occasion = Occasion(HookEvent.AFTER_FAILURE, (use,), error=error)
        return (await self._told(occasion, most))[1]

    async def after_turn(self, uses: Sequence[Use], *, is_cancelled: bool = False) -> list[str]:
        """PostTools, once a turn, after mutating calls that succeeded → warnings.

        Who cancels it lets it go on for a short while: the calls have been made.

        Args:
            uses: those calls.
            is_cancelled: the turn was, so that somebody waits for its end.
        """
        most = ENDING_TIMEOUT if is_cancelled else None
        occasion = Occasion(HookEvent.AFTER_TURN, tuple(uses))
        telling = asyncio.ensure_future(self._told(occasion, most))
        try:
            await asyncio.wait({telling})
        except asyncio.CancelledError:
            await asyncio.wait({telling}, timeout=ENDING_TIMEOUT)
            raise
        finally:
            if not telling.done():
                telling.cancel()
                await asyncio.wait({telling})
        return telling.result()[1]

    def _for(self, event: HookEvent, *uses: Use) -> list[Hook]:
        return [
            hook for hook in self._hooks if hook.event == event and any(map(hook.matches, uses))
        ]

    async def _told(
        self, occasion: Occasion, most: float | None = None
    ) -> tuple[list[Reply], list[str]]:
        """What hooks say to something that has happened, and which of them failed.

        Args:
            occasion: what has happened.
            most: seconds that all may take together, if less than they may otherwise.
        """
        replies: list[Reply] = []
        warnings: list[str] = []
        until = None if most is None else time.monotonic() + most
        for hook in self._for(occasion.event, *occasion.uses):
            left = hook.timeout if until is None else max(until - time.monotonic(), 0.0)
            uses = tuple(filter(hook.matches, occasion.uses))
            try:
                told = replace(occasion, uses=uses)
                reply = await _asked(hook, told, min(hook.timeout, left))
            except HookFailed as error:
                warnings.append(f"the {occasion.event} hook {hook.name} failed: {error}")
                continue
            if reply is not None:
                replies.append(reply)
        return replies, warnings


# ─── one hook ───────────────────────────────────────────────────────────────────────


async def _asked(hook: Hook, occasion: Occasion, seconds: float) -> Reply | None:
    """What the hook says.

    Raises:
        HookFailed: it gave no answer.
    """
    if not callable(hook.run):
        return await _run(hook, occasion, seconds)
    try:
        reply: Any = await bounded(called(hook.run, _own(occasion)), seconds)
        return None if reply is None else _usable(reply)
    except ToolError as error:
        return Reply("reject", str(error))
    except TooLate:
        raise HookFailed(f"no answer within {round(seconds, 2):g} s") from None
    except Unusable as error:
        raise HookFailed(str(error)) from None
    except Exception as error:
        raise HookFailed(f"{type(error).__name__}: {one_line(str(error), 500)}") from error


def _own(occasion: Occasion) -> Occasion:
    """A copy: what a hook does to it is done to nothing else."""
    uses = tuple(replace(use, input=copy.deepcopy(use.input)) for use in occasion.uses)
    return replace(occasion, uses=uses, outcome=copy.deepcopy(occasion.outcome))


def _usable(reply: Any) -> Reply:
    """The reply as its type says: what only looks like one may have meant a no.

    Raises:
        Unusable: it is something else.
    """
    if not isinstance(reply, Reply):
        raise Unusable(f"it returned {type(reply).__name__}; return a Reply or None")
    try:
        return _checked(reply.decision, reply.reason, reply.updated_input)
    except ValueError as error:
        raise Unusable(str(error)) from None


async def _run(hook: Hook, occasion: Occasion, seconds: float) -> Reply | None:
    """What a command says.

    Raises:
        HookFailed: it could not be started, took too long, or ended badly.
    """
    assert not callable(hook.run)
    argv = ["/bin/sh", "-c", hook.run] if isinstance(hook.run, str) else list(hook.run)
    try:
        line = (json_line(occasion.to_json()) + "\n").encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        raise HookFailed(f"the call can't be told as JSON: {error}") from error
    try:
        transport, command = await asyncio.get_running_loop().subprocess_exec(
            _Command, *argv, cwd=DIRECTORY, env=ENVIRONMENT, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise HookFailed(f"it can't be started: {error}") from error
    try:
        _give(transport, line)
        async with asyncio.timeout(seconds):
            await command.exited.wait()
        # What it left running may hold its streams open for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEFT_OVER):
                await command.silent.wait()
        return _reply(transport.get_returncode(), *map(bytes, command.said))
    except TimeoutError:
        raise HookFailed(f"no answer within {round(seconds, 2):g} s") from None
    finally:
        await _end(transport, command)


class _Command(asyncio.SubprocessProtocol):
    """A running command.

    Attributes:
        said: the first bytes of its output and of its errors; the rest is dropped.
        exited: it has ended.
        silent: it and all that it started have closed both streams.
    """

    def __init__(self) -> None:
        self.said = (bytearray(), bytearray())
        self.exited = asyncio.Event()
        self.silent = asyncio.Event()
        self._open = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what there is room for."""
        kept = self.said[fd - 1]
        kept += data[: MAX_OUTPUT - len(kept)]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """One of the streams has ended; that it does not read its input is its affair."""
        self._open.discard(fd)
        if not self._open:
            self.silent.set()

    def process_exited(self) -> None:
        """It has ended; what it started may go on."""
        self.exited.set()


def _give(transport: asyncio.SubprocessTransport, line: bytes) -> None:
    """Give a command its input; it need not read it."""
    pipe = transport.get_pipe_transport(0)
    assert isinstance(pipe, asyncio.WriteTransport)
    pipe.write(line)
    pipe.close()


async def _end(transport: asyncio.SubprocessTransport, command: _Command) -> None:
    """Leave nothing: the group is killed if its first process still runs."""
    try:
        if not command.exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
            await command.exited.wait()
    finally:
        pipe = transport.get_pipe_transport(0)
        if isinstance(pipe, asyncio.WriteTransport) and pipe.get_write_buffer_size():
            pipe.abort()  # nobody reads the rest any more
        transport.close()


def _reply(code: int | None, out: bytes, err: bytes) -> Reply | None:
    said = err.decode("utf-8", "replace").strip()
    if code == 2:
        return Reply("reject", said or None)
    if code != 0:
        end = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        raise HookFailed(f"{end}{': ' if said else ''}{one_line(said, 500)}")
    # Programs of some systems begin with a byte order mark.
    text = out.decode("utf-8-sig", "replace").strip()
    if not text.startswith("{"):
        if any(line.startswith("{") for line in text.splitlines()):
            raise HookFailed("it printed other text before a JSON object; print that alone")
        return None
    try:
        return _parsed(json.loads(text, parse_constant=refuse_constant))
    except (ValueError, RecursionError) as error:
        if len(out) >= MAX_OUTPUT:
            raise HookFailed(f"it printed more than {MAX_OUTPUT} bytes of JSON") from None
        raise HookFailed(
            f"it printed JSON that can't be used: {one_line(str(error), 300)}"
        ) from None


_KEYS = ("decision", "reason", "updated_input")
_DECISIONS: dict[Any, Literal["allow", "reject"]] = {
    **{None: "allow", "allow": "allow", "approve": "allow"},
    **{"reject": "reject", "deny": "reject", "block": "reject"},
}


def _parsed(value: dict[str, Any]) -> Reply:
    """A reply as a command writes it.

    Raises:
        ValueError: it is none.
    """
    if "hook_event_name" in value:
        return Reply()  # it has written down what it was told, for itself
    if value and value.keys().isdisjoint(_KEYS):
        raise ValueError(f"it has none of {', '.join(_KEYS)}")
    return _checked(*map(value.get, _KEYS))


def _checked(decision: Any, reason: Any, updated: Any) -> Reply:
    """A reply of these parts.

    Raises:
        ValueError: they are none of a reply's.
    """
    if (decision is not None and not isinstance(decision, str)) or decision not in _DECISIONS:
        raise ValueError(f"decision is {decision!r:.100}; write allow or reject")
    if reason is not None and not isinstance(reason, str):
        raise ValueError("reason must be text")
    if updated is not None:
        if not isinstance(updated, Mapping):
            raise ValueError("updated_input must be an object")
        try:
            updated = own_json(updated)
        except Unusable as error:
            raise ValueError(f"updated_input has {error}") from None
    return Reply(_DECISIONS[decision], reason, updated)
