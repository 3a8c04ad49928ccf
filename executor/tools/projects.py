"""build, test, validate: the project's own commands, under names that all projects share.

What runs is what the model says, else what the catalog says, else what the worktree is found
to have. It is known before the call is judged (`Tool.prepare`), so that rules, approvers and
hooks see the command line and not only the tool's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from executor.catalog import PROJECT
from executor.errors import Code, ToolError
from executor.model import MOUNT, plain
from executor.results import decode
from executor.tool import (
    Action,
    Arguments,
    Context,
    Outcome,
    Positive,
    Raw,
    RunsCode,
    RunsCommand,
)
from executor.tools import reports
from executor.tools.commands import run_line

PROGRESS_SECONDS = 10.0
"""Between two reports of how long a command has run."""
MAX_FILE = 1 << 20
"""Bytes of a project's file that are looked at."""

BUILD, TEST, VALIDATE = PROJECT


class ProjectCommand(Arguments):
    """Arguments of `build`, `test` and `validate`."""

    command: Raw | None = Field(
        None, description="Shell command to run in the worktree's root (default: the project's own)"
    )
    timeout_ms: Positive | None = Field(
        None, description="Timeout in milliseconds (default: {default})"
    )


def runs_command(context: Context, given: ProjectCommand) -> Sequence[Action]:
    """What the command is going to do; unknown until it was looked for."""
    if given.command is None:
        return [RunsCode("shell", "")]
    return [RunsCommand(given.command, MOUNT)]


async def build(context: Context, given: ProjectCommand) -> Outcome:
    """Run build command

    The project's own, in the worktree's root, unless command is given; the result names it.
    """
    return await _run(context, given)


async def test(context: Context, given: ProjectCommand) -> Outcome:
    """Run test suite

    The project's own, in the worktree's root, unless command is given; the result names it.
    """
    outcome = await _ran(context, given)
    found = outcome.structured or {}
    empty = dict.fromkeys(("passed", "failed", "skipped", "errors", "failures"))
    report, summary = reports.read_both(
        found["stdout"], found["stderr"], is_whole=not outcome.truncated
    )
    counted = {"summary": _believed(summary, outcome), **(_believed(report, outcome) or empty)}
    return replace(outcome, structured={**found, **counted})


async def validate(context: Context, given: ProjectCommand) -> Outcome:
    """Run validation command

    The project's own, or its tests, in the worktree's root, unless command is given; the
    result names it. What it comes to holds until something is changed.
    """
    context.session.validated = False
    outcome = await _run(context, given)
    context.session.validated = not outcome.is_error
    return outcome


async def _run(context: Context, given: ProjectCommand) -> Outcome:
    """The command's outcome, with pytest's summary."""
    outcome = await _ran(context, given)
    found = outcome.structured or {}
    summary = _believed(reports.pytest_summary(found["stdout"], found["stderr"]), outcome)
    return replace(outcome, structured={**found, "summary": summary})


async def _ran(context: Context, given: ProjectCommand) -> Outcome:
    """The command's outcome, which names it."""
    assert given.command is not None, "it was looked for before the call was judged"
    async with _telling_progress(context, given.command):
        outcome = await run_line(context, given.command, given.timeout_ms)
    structured = {**(outcome.structured or {}), "command": given.command}
    return replace(outcome, structured=structured)


def _believed(report: dict[str, Any] | None, outcome: Outcome) -> dict[str, Any] | None:
    """What was counted; None where a command failed and its counts have no failure.

    A test may have printed them, or they are of another run: nobody may take them for success.
    """
    if report is None or not outcome.is_error or report["failed"] or report["errors"]:
        return report
    return None


@contextlib.asynccontextmanager
async def _telling_progress(context: Context, command: str) -> AsyncIterator[None]:
    """Tells now and then how long a command has run: a quiet one can't be told from a dead one."""
    started = time.monotonic()

    async def tell() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            seconds = round(time.monotonic() - started, 1)
            context.progress(f"{command}: running for {plain(round(seconds))} s", seconds)

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()


# ─── what the project has ───────────────────────────────────────────────────────────


async def build_command(context: Context, given: ProjectCommand) -> Mapping[str, Any]:
    """The command of `build`, where the model gave none."""
    return await _completed(context, given, BUILD)


async def test_command(context: Context, given: ProjectCommand) -> Mapping[str, Any]:
    """The command of `test`, where the model gave none."""
    return await _completed(context, given, TEST)


async def validate_command(context: Context, given: ProjectCommand) -> Mapping[str, Any]:
    """The command of `validate`, where the model gave none."""
    return await _completed(context, given, VALIDATE)


async def _completed(context: Context, given: ProjectCommand, purpose: str) -> Mapping[str, Any]:
    if given.command is not None:
        return {}
    if isinstance(context.entry.command, str):
        return {"command": context.entry.command}
    command = await _found(context, purpose)
    if command is not None:
        return {"command": command}
    raise ToolError(
        Code.INVALID_ARGUMENTS,
        f"The worktree's root has nothing that says how to {purpose}: no "
        f"{_WANTED[purpose]}. Give command, or have tools.{purpose}.command set in the catalog.",
    )


_WANTED = {
    BUILD: "script build in package.json, no Cargo.toml, no go.mod and no target build or all "
    "in a Makefile",
    TEST: "pyproject.toml, no script test in package.json, no Cargo.toml, no go.mod and no "
    "target test or check in a Makefile",
    VALIDATE: "script or target validate, and nothing that says how to test",
}
_SCRIPTS = {BUILD: ("build",), TEST: ("test",), VALIDATE: ("validate",)}
_TARGETS = {BUILD: ("build", "all"), TEST: ("test", "check"), VALIDATE: ("validate",)}
_PYTHON = ("pyproject.toml", "pytest.ini", "setup.py", "setup.cfg", "tox.ini")
_UNSET = "no test specified"
"""What `npm init` writes where a project has no tests."""


async def _content(context: Context, path: str) -> str | None:
    """What is in a file of the project; None if it is not there or may not be read."""
    asked = {
        "path": path,
        "offset": 1,
        "limit": 50_000,
        "max_bytes": MAX_FILE,
        "line_chars": 100_000,
        "encoding": "utf-8",
    }
    try:
        answer = await context.ask("read", asked)
    except ToolError as error:
        if error.code is Code.TIMEOUT:
            raise
        return None
    return decode(answer.data)


async def _is_there(context: Context, path: str) -> bool:
    return await _content(context, path) is not None


async def _python(context: Context, purpose: str) -> str | None:
    if purpose == BUILD:
        return None
    for name in _PYTHON:
        if await _is_there(context, name):
            return "python3 -m pytest"  # Debian has no `python`
    return None


async def _script(context: Context, purpose: str) -> str | None:
    text = await _content(context, "package.json")
    scripts = _scripts_in(text) if text is not None else {}
    for name in _SCRIPTS[purpose]:
        script = scripts.get(name)
        if isinstance(script, str) and _UNSET not in script:
            return "npm test" if name == "test" else f"npm run {name}"
    return None


def _scripts_in(text: str) -> Mapping[str, Any]:
    """The scripts of a package.json, whatever it is."""
    try:
        package = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    scripts = package.get("scripts") if isinstance(package, dict) else None
    return scripts if isinstance(scripts, dict) else {}


async def _cargo(context: Context, purpose: str) -> str | None:
    if not await _is_there(context, "Cargo.toml"):
        return None
    return "cargo build" if purpose == BUILD else "cargo test"


async def _go(context: Context, purpose: str) -> str | None:
    if not await _is_there(context, "go.mod"):
        return None
    return "go build ./..." if purpose == BUILD else "go test ./..."


async def _target(context: Context, purpose: str) -> str | None:
    for name in ("GNUmakefile", "makefile", "Makefile"):  # as make itself looks for them
        text = await _content(context, name)
        if text is None:
            continue
        for target in _TARGETS[purpose]:
            if re.search(rf"^{target}[ \t]*:(?!=)", text, re.MULTILINE):
                return f"make {target}"
        return None
    return None


_DETECTORS: tuple[Callable[[Context, str], Awaitable[str | None]], ...] = (
    _python,
    _script,
    _cargo,
    _go,
    _target,
)


async def _found(context: Context, purpose: str) -> str | None:
    """What the worktree has for a purpose; None = nothing."""
    if purpose == VALIDATE:
        # What says that it validates comes before what only tests.
        own = await _script(context, VALIDATE) or await _target(context, VALIDATE)
        return own or await _found(context, TEST)
    for detect in _DETECTORS:
        if (command := await detect(context, purpose)) is not None:
            return command
    return None
