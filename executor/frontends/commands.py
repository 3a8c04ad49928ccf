"""The commands. Results go to stdout, everything meant for people to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import stat
import sys
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Sequence,
)
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table

from executor.catalog import Catalog
from executor.controller import Controller
from executor.errors import ConfigError
from executor.frontends import catalogs, diagnosis, history, notices, reading, shell
from executor.frontends.asking import terminal
from executor.frontends.lines import Item, Iteration, Lines
from executor.frontends.options import (
    AddDir,
    Allow,
    Ask,
    Branch,
    Cache,
    CaFile,
    CallTimeout,
    Commit,
    Config,
    Cpus,
    Deny,
    Disk,
    Egress,
    EgressPrivate,
    Env,
    ExecId,
    GitSharing,
    Http,
    HttpTerms,
    IdleSeconds,
    Image,
    Landing,
    LoopType,
    MaxSeconds,
    Memory,
    Model,
    ModeName,
    Pids,
    Quota,
    Repo,
    Runtime,
    Seccomp,
    SecretAt,
    SessionIdle,
    Sessions,
    Setup,
    SetupEgress,
    Skills,
    TextOnly,
    TokenFile,
    Toolset,
    Uid,
    Worktree,
    WorktreeOrHere,
    WorktreeSkills,
    http_terms,
    loop_options,
)
from executor.frontends.rendering import raw_content, render_content, render_tool_result
from executor.frontends.running import (
    FAILED,
    OK,
    Steps,
    finish,
    require_outside,
    say,
    settings_of,
    show,
    write_json,
    write_texts,
    writing,
)
from executor.git import records
from executor.git.tidying import tidy
from executor.lanes import COMMANDS, terms_of
from executor.loop import Loop
from executor.model import Call, Event, Finished, LoopSpec, Result, Warned
from executor.sandbox import images as image_store
from executor.sandbox.container import (
    LABEL_CONTROLLER,
    LABEL_EXPIRES,
    LABEL_LOOP,
    LABEL_STATE,
    LABEL_TENANT,
)
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import reap
from executor.settings import Settings
from executor.text import one_line, visible
from executor.tool import Tool

if TYPE_CHECKING:
    import mcp_types as types

    from executor.frontends.mcp_loops import Keep
    from executor.frontends.mcp_server import LoopServer
    from executor.git.report import Report

app = typer.Typer(
    name="executor",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
images_app = typer.Typer(help="The images that boxes are made from.", no_args_is_help=True)
app.add_typer(images_app, name="images")
app.add_typer(history.app, name="git")
app.add_typer(catalogs.app, name="catalog")
app.command("shell")(shell.shell)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"executor {diagnosis.version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print name and version.", is_eager=True, callback=_tell_version
        ),
    ] = False,
) -> None:
    """Runs a coding agent's tool calls, each loop in a container of its own."""


@app.command()
def run(
    worktree: Worktree = "",
    calls: Annotated[str, typer.Option("--calls", help="File with call lines; - is stdin.")] = "-",
    toolset: Toolset = None,
    loop_type: LoopType = None,
    mode: ModeName = None,
    allow: Allow = None,
    ask: Ask = None,
    deny: Deny = None,
    image: Image = None,
    runtime: Runtime = None,
    config: Config = None,
    memory: Memory = None,
    cpus: Cpus = None,
    pids: Pids = None,
    call_timeout: CallTimeout = None,
    max_seconds: MaxSeconds = None,
    env: Env = None,
    exec_id: ExecId = None,
    uid: Uid = None,
    add_dir: AddDir = None,
    skills: Skills = None,
    worktree_skills: WorktreeSkills = None,
    text_only: TextOnly = None,
    model: Model = None,
    seccomp: Seccomp = None,
    quota: Quota = None,
    disk: Disk = None,
    idle_seconds: IdleSeconds = None,
    repo: Repo = None,
    branch: Branch = None,
    git: GitSharing = None,
    commit: Commit = None,
    landing: Landing = None,
    egress: Egress = None,
    setup_egress: SetupEgress = None,
    egress_private: EgressPrivate = None,
    ca_file: CaFile = None,
    setup: Setup = None,
    cache: Cache = None,
    secret: SecretAt = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="File for what the loop made and left, as JSON; not where the loop can write.",
        ),
    ] = None,
) -> None:
    """Run the calls of a model, one JSON line each, and write one result line each.

    A line is a call {"id", "name", "input"}, an array of calls (one assistant turn), or an
    Anthropic message with tool_use blocks; {"event": "iteration"} says that the model has
    to read files again before it changes them. Exit code 0: every call was answered; 1:
    the results could not be written; 2: bad usage or configuration; 3: no sandbox could be
    had.
    """

    given = locals()

    def spec(catalog: Catalog) -> LoopSpec:
        return catalog.loop_spec(worktree, **loop_options(given))

    finish(lambda: _run(spec, config, calls, model, report))


async def _run(
    make: Callable[[Catalog], LoopSpec],
    config: Path | None,
    calls: str,
    model: str | None,
    report: Path | None,
) -> int:
    settings, catalog = settings_of(config)
    settings = settings.with_model(model)
    spec = _one_worktree(make(catalog))
    require_outside(config or settings.config_file, spec)
    require_outside(report, spec, "--report")
    source = _open_calls(calls)
    told = _open_report(report)
    steps = Steps()
    try:
        async with Controller(settings, catalog, progress=steps, approver=terminal()) as controller:
            started = time.monotonic()
            async with _opened(controller, spec) as loop:
                steps.close()
                seconds = time.monotonic() - started
                _tell_opened(loop, catalog, seconds, settings.state_directory)
                lines = Lines()
                async for line in _lines(source):
                    await _answer(loop, lines.read(line))
                if loop.completed is not None:
                    say(f"task completed: {loop.completed}")
            _tell_report(loop.report, told)
    finally:
        steps.close()
        os.close(source)
        if told is not None:
            told.close()
    return OK


def _one_worktree(spec: LoopSpec) -> LoopSpec:
    """The same; with a directory and a repository nobody could say which is meant.

    Raises:
        ConfigError: both are given.
    """
    if spec.repo is not None and str(spec.worktree):
        raise ConfigError("give --worktree, or --repo with --branch, not both")
    return spec


def _open_report(file: Path | None) -> FileIO | None:
    """The report's file, before anything runs: afterwards would be too late to say no."""
    if file is None:
        return None
    try:
        return open(file, "ab", buffering=0)
    except OSError as error:
        raise ConfigError(
            f"--report: {file}: {error.strerror}; name a file that can be written"
        ) from error


def _tell_report(report: Report | None, file: FileIO | None = None) -> None:
    """What the loop made and left, for the person and for programs."""
    if report is None:
        return
    for sentence in report.sentences():
        say(sentence)
    if file is not None:
        with writing():
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.truncate(0)
            file.write(json.dumps(report.as_json(), indent=2).encode() + b"\n")


@contextlib.asynccontextmanager
async def _opened(controller: Controller, spec: LoopSpec) -> AsyncIterator[Loop]:
    """An open loop; what fails beside its calls, a hook for example, is said to the person."""
    telling: asyncio.Task[None] | None = None
    try:
        async with controller.open(spec) as loop:
            telling = asyncio.create_task(_tell_warnings(loop.events()))
            yield loop
    finally:
        if telling is not None:
            await telling  # its events end with the loop


async def _tell_warnings(events: AsyncIterator[Event]) -> None:
    async for event in events:
        if isinstance(event, Warned):
            say(event.message)


def _open_calls(name: str) -> int:
    """The descriptor that call lines are read from."""
    if name == "-":
        if sys.stdin.isatty():
            say("reading call lines from the terminal; end with Ctrl-D")
        return os.dup(sys.stdin.fileno())
    try:
        source = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(f"{name}: {error.strerror}") from error
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.close(source)
        raise _unreadable(f"{name} is a directory")
    return source


def _unreadable(reason: str) -> ConfigError:
    return ConfigError(f"--calls: {reason}; give a file of call lines")


def _tell_opened(loop: Loop, catalog: Catalog, seconds: float, state: Path) -> None:
    facts = loop.capabilities
    notices.tell(facts, state)
    what = ", ".join(
        f"{name} {facts[name]}" for name in ("network", "runtime", "user", "pids") if name in facts
    )
    say(f"loop {loop.exec_id} open in {seconds:.2f} s ({what})")
    if loop.spec.egress.hosts:
        say(_reach(loop.spec, catalog))


def _reach(spec: LoopSpec, catalog: Catalog) -> str:
    """What of the hosts that were named can be reached, in a sentence."""
    hosts = ", ".join(spec.egress.hosts)
    terms = terms_of(spec, catalog)
    if terms[catalog.tools[COMMANDS].lane].network == "broker":
        return f"commands may reach {hosts}, through the broker"
    if lanes := [name for name, one in terms.items() if one.network == "broker"]:
        return f"commands reach no hosts; {hosts} can be reached in lane {', '.join(lanes)} only"
    return f"warning: no lane has the broker, so nothing can reach {hosts}"


async def _lines(source: int) -> AsyncIterator[bytes]:
    """The call lines.

    Raises:
        ConfigError: they can't be read.
    """
    try:
        async for line in reading.lines(source):
            yield line
    except OSError as error:
        raise _unreadable(str(error.strerror)) from error


async def _answer(loop: Loop, items: Sequence[Item]) -> None:
    """One turn: its results in order, each as soon as its predecessors are out."""
    if items and isinstance(items[0], Iteration):
        await loop.next_iteration()
        return
    calls = [item for item in items if isinstance(item, Call)]
    answers = _one(loop, calls[0]) if len(calls) == 1 else _turn(loop, calls)
    async with contextlib.aclosing(answers):
        for item in items:
            if isinstance(item, Result):
                await _write(item)
            elif isinstance(item, Call):
                await _write(await anext(answers), item)
        async for _ in answers:
            pass


async def _one(loop: Loop, call: Call) -> AsyncGenerator[Result, None]:
    yield await loop.execute(call)


async def _turn(loop: Loop, calls: Sequence[Call]) -> AsyncGenerator[Result, None]:
    async with contextlib.aclosing(loop.stream(calls)) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, Finished):
                yield event.result


async def _write(result: Result, call: Call | None = None) -> None:
    summary = render_tool_result(result, call) + "\n"
    await write_texts((sys.stdout, result.to_line() + "\n"), told=summary)


# ─── call ───────────────────────────────────────────────────────────────────────────


@app.command()
def call(
    tool: Annotated[str, typer.Argument(help="Name of the tool.", show_default=False)],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help="The tool's arguments as a JSON object.")
    ] = "{}",
    worktree: WorktreeOrHere = None,
    toolset: Toolset = None,
    mode: ModeName = None,
    allow: Allow = None,
    ask: Ask = None,
    deny: Deny = None,
    image: Image = None,
    runtime: Runtime = None,
    config: Config = None,
    memory: Memory = None,
    cpus: Cpus = None,
    pids: Pids = None,
    env: Env = None,
    uid: Uid = None,
    add_dir: AddDir = None,
    skills: Skills = None,
    worktree_skills: WorktreeSkills = None,
    seccomp: Seccomp = None,
    quota: Quota = None,
    disk: Disk = None,
    repo: Repo = None,
    branch: Branch = None,
    git: GitSharing = None,
    commit: Commit = None,
    landing: Landing = None,
    egress: Egress = None,
    setup_egress: SetupEgress = None,
    egress_private: EgressPrivate = None,
    ca_file: CaFile = None,
    setup: Setup = None,
    cache: Cache = None,
    secret: SecretAt = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the text as it is, control characters too.")
    ] = False,
) -> None:
    """Run one call and print what the model would be shown. Exit code 1: it failed.

    What a terminal would obey or not show is printed as an escape like \\x1b or \\u202e.
    """

    given = locals()

    def spec(catalog: Catalog) -> LoopSpec:
        return catalog.loop_spec(
            "." if worktree is None and repo is None else worktree or "", **loop_options(given)
        )

    finish(lambda: _call(spec, config, tool, arguments, raw))


async def _call(
    make: Callable[[Catalog], LoopSpec], config: Path | None, tool: str, text: str, is_raw: bool
) -> int:
    given = _arguments(text)
    settings, catalog = settings_of(config)
    spec = _one_worktree(make(catalog))
    require_outside(config or settings.config_file, spec)
    steps = Steps()
    try:
        async with Controller(settings, catalog, progress=steps, approver=terminal()) as controller:
            async with _opened(controller, spec) as loop:
                steps.close()
                notices.tell(loop.capabilities, settings.state_directory)
                await _read_first(loop, tool, given)
                result = await loop.execute(Call("call", tool, given))
            report = loop.report
    finally:
        steps.close()
    content = raw_content(result) if is_raw else render_content(result)
    await write_texts((sys.stderr if result.is_error else sys.stdout, content))
    _tell_report(report)
    return FAILED if result.is_error else OK


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the arguments are not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError('the arguments must be a JSON object, for example {"path": "a.txt"}')
    return given


async def _read_first(loop: Loop, name: str, given: dict[str, Any]) -> None:
    """A person who calls a tool has seen the file; the session must know its content too."""
    tool = loop.registry.get(name)
    reader = next((one for one in loop.registry.all() if one.canonical == "read_file"), None)
    if reader is None or tool is None or tool.canonical not in ("edit_file", "write_file"):
        return
    known = reader.schema["properties"].keys()
    key = "path" if "path" in known else "file_path"
    path = given.get(key)
    ways = [extra for extra in ({"limit": 1}, {"encoding": "base64"}) if extra.keys() <= known]
    for extra in ways or [{}]:
        reading = await loop.execute(Call("read", reader.name, {key: path, **extra}))
        if not reading.is_error and reading.structured is not None:
            if (digest := reading.structured.get("hash")) is not None:
                loop.mark_read(str(path), digest)
            say(f"read {one_line(str(path))} first, as {name} requires")
            return


# ─── mcp ────────────────────────────────────────────────────────────────────────────


@app.command()
def mcp(
    worktree: WorktreeOrHere = None,
    toolset: Toolset = None,
    loop_type: LoopType = None,
    mode: ModeName = None,
    allow: Allow = None,
    ask: Ask = None,
    deny: Deny = None,
    image: Image = None,
    runtime: Runtime = None,
    config: Config = None,
    memory: Memory = None,
    cpus: Cpus = None,
    pids: Pids = None,
    call_timeout: CallTimeout = None,
    max_seconds: MaxSeconds = None,
    env: Env = None,
    exec_id: ExecId = None,
    uid: Uid = None,
    add_dir: AddDir = None,
    skills: Skills = None,
    worktree_skills: WorktreeSkills = None,
    text_only: TextOnly = None,
    model: Model = None,
    seccomp: Seccomp = None,
    quota: Quota = None,
    disk: Disk = None,
    idle_seconds: IdleSeconds = None,
    repo: Repo = None,
    branch: Branch = None,
    git: GitSharing = None,
    commit: Commit = None,
    landing: Landing = None,
    egress: Egress = None,
    setup_egress: SetupEgress = None,
    egress_private: EgressPrivate = None,
    ca_file: CaFile = None,
    setup: Setup = None,
    cache: Cache = None,
    secret: SecretAt = None,
    structured: Annotated[
        bool,
        typer.Option(
            "--structured/--no-structured",
            help="Results as data beside the text; some clients show models both.",
        ),
    ] = True,
    http: Http = None,
    token_file: TokenFile = None,
    sessions: Sessions = None,
    session_idle: SessionIdle = None,
) -> None:
    """Serve a loop's tools to a client of the Model Context Protocol over stdin and stdout.

    The loop lasts as long as the client's connection. All that is for people goes to stderr.
    Exit code 0: the client has ended the connection; 2: bad usage or configuration; 3: no
    sandbox could be had, which the client was told, too. With --http, clients that have the
    token of --token-file come and go, each with a loop of its own, until a signal ends the
    server.
    """

    given = locals()

    def spec(catalog: Catalog) -> LoopSpec:
        return catalog.loop_spec(
            "." if worktree is None and repo is None else worktree or "", **loop_options(given)
        )

    def work() -> Coroutine[Any, Any, int]:
        terms = http_terms(http, token_file, sessions, session_idle)
        return _mcp(spec, config, model, terms, with_structured=structured)

    finish(work)


async def _mcp(
    make: Callable[[Catalog], LoopSpec],
    config: Path | None,
    model: str | None,
    http: HttpTerms | None,
    *,
    with_structured: bool,
) -> int:
    try:
        from executor.frontends import mcp_loops, mcp_server, mcp_stdio
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    settings, catalog = settings_of(config)
    settings = settings.with_model(model)
    spec = _one_worktree(make(catalog))
    require_outside(config or settings.config_file, spec)
    if faults := [*spec.faults(), *catalog.faults(spec)]:
        raise ConfigError(faults)
    served = functools.partial(
        mcp_server.LoopServer,
        version=diagnosis.version(),
        with_structured=with_structured,
        foreseen=functools.partial(_foreseen, settings, catalog, spec),
    )
    kept = functools.partial(_kept_open, settings, catalog)
    if http is not None:
        return await _mcp_over_http(spec, kept, served, http)
    with mcp_stdio.claimed_stdout() as wire:
        async with mcp_loops.KeptLoop(functools.partial(kept, spec, Steps())) as loop:
            async with mcp_stdio.messages(sys.stdin.fileno(), wire) as (incoming, outgoing):
                await served(loop.opened).run(incoming, outgoing)
    return OK


async def _mcp_over_http(
    spec: LoopSpec,
    kept: Callable[..., Coroutine[Any, Any, None]],
    served: Callable[[Callable[[], Awaitable[Loop]]], LoopServer],
    terms: HttpTerms,
) -> NoReturn:
    try:
        from executor.frontends import mcp_http, mcp_token
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    require_outside(terms.token_file, spec, "--token-file")
    token = mcp_token.token_of(terms.token_file)
    number = itertools.count(1)

    def keeping() -> Keep:
        own = spec
        if spec.exec_id is not None:
            own = spec.with_exec_id(f"{spec.exec_id[:58]}-{next(number)}")
        return functools.partial(kept, own, Steps(has_bar=False))

    await mcp_http.serve(terms, token, keeping, served)
    raise AssertionError("only a signal ends it")


async def _foreseen(settings: Settings, catalog: Catalog, spec: LoopSpec) -> list[types.Tool]:
    """The tools of a loop, as far as they are known before it is open."""
    from executor.frontends.mcp_contents import tools_of

    async with _looked_at(settings, catalog, spec, is_open=False) as loop:
        return tools_of(loop)


def _not_installed(error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(f"mcp: {error.name} is not installed; pip install 'executor[mcp]'")


async def _kept_open(
    settings: Settings,
    catalog: Catalog,
    spec: LoopSpec,
    steps: Steps,
    opened: asyncio.Future[Loop],
    end: asyncio.Event,
) -> None:
    """Open the loop beside the client's first messages, and keep it until its last one."""
    try:
        async with Controller(settings, catalog, progress=steps) as controller:
            started = time.monotonic()
            async with _opened(controller, spec) as loop:
                steps.close()
                seconds = time.monotonic() - started
                _tell_opened(loop, catalog, seconds, settings.state_directory)
                opened.set_result(loop)
                await end.wait()
            _tell_report(loop.report)
    finally:
        steps.close()


# ─── tools ──────────────────────────────────────────────────────────────────────────


@app.command()
def tools(
    toolset: Toolset = None,
    format: Annotated[
        str, typer.Option("--format", help="anthropic, openai or mcp.")
    ] = "anthropic",
    loop_type: LoopType = None,
    skills: Skills = None,
    config: Config = None,
    all: Annotated[bool, typer.Option("--all", help="Disabled ones too, with reasons.")] = False,
    worktree: Annotated[
        str | None,
        typer.Option(
            "--worktree",
            help="Open a loop in this directory, and list what it has: those of MCP servers too.",
            show_default=False,
        ),
    ] = None,
    image: Image = None,
    runtime: Runtime = None,
    egress: Egress = None,
    egress_private: EgressPrivate = None,
    ca_file: CaFile = None,
) -> None:
    """Print the tools' definitions as JSON, as a model is given them."""
    given = locals()

    async def work() -> int:
        settings, catalog = settings_of(config)
        spec = catalog.loop_spec(worktree or ".", **loop_options(given))
        faults = catalog.faults(spec)
        if format not in _FORMATS:
            faults.append(f"--format: there is no {format!r}; known: {', '.join(_FORMATS)}")
        if faults:
            raise ConfigError(faults)
        _tell_of_unasked(catalog, is_asked=worktree is not None)
        if worktree is not None:
            spec = _one_worktree(spec)
            require_outside(config or settings.config_file, spec)
        async with _looked_at(settings, catalog, spec, is_open=worktree is not None) as loop:
            reasons = loop.disabled()
            shown = [tool for tool in loop.registry.all() if all or tool.name not in reasons]
            definitions = [
                _FORMATS[format](replace(tool, description=loop.description(tool)))
                for tool in shown
            ]
        if all:
            for tool, definition in zip(shown, definitions, strict=True):
                definition["disabled"] = reasons.get(tool.name)
        write_json(definitions)
        if format == "openai":
            _tell_of_long_descriptions(shown, definitions)
        return OK

    finish(work)


def _tell_of_unasked(catalog: Catalog, is_asked: bool) -> None:
    names = [name for name, entry in catalog.mcp.items() if entry.enabled]
    if names and not is_asked:
        say(
            f"the MCP servers {', '.join(names)} are not asked for their tools here: they run "
            "in a loop; give --worktree DIR to open one"
        )


@contextlib.asynccontextmanager
async def _looked_at(
    settings: Settings, catalog: Catalog, spec: LoopSpec, is_open: bool
) -> AsyncIterator[Loop]:
    """A loop to look at: open, with the tools of MCP servers, or an outline of it."""
    if not is_open:
        controller = Controller(settings, catalog, opener=_never)
        async with controller, controller.outlined(spec) as loop:
            yield loop
        return
    steps = Steps()
    try:
        async with Controller(settings, catalog, progress=steps) as controller:
            async with _opened(controller, spec) as loop:
                steps.close()
                notices.tell(loop.capabilities, settings.state_directory)
                yield loop
    finally:
        steps.close()


def _never(spec: LoopSpec) -> NoReturn:
    raise AssertionError("no loop is opened here")


OPENAI_CHARACTERS = 1024
"""Of a description; OpenAI's API refuses a request with a longer one."""


def _tell_of_long_descriptions(shown: Sequence[Tool], definitions: Sequence[Any]) -> None:
    for tool, definition in zip(shown, definitions, strict=True):
        size = len(definition["function"]["description"])
        if size > OPENAI_CHARACTERS:
            say(
                f"the description of {tool.name} has {size} characters, of which OpenAI's API "
                f"takes {OPENAI_CHARACTERS}; give it a shorter one in the catalog: "
                f"[tools.{tool.canonical}] description"
            )


_FORMATS: dict[str, Callable[[Tool], dict[str, Any]]] = {
    "anthropic": lambda tool: {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.schema,
    },
    "openai": lambda tool: {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.schema,
        },
    },
    "mcp": lambda tool: {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.schema,
    },
}


# ─── images, ps, reap, doctor ───────────────────────────────────────────────────────


@images_app.command("build")
def images_build(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="base (default), heavy, or your own.", show_default=False),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Anew, for newer packages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Make the images and the runtime volume where they are missing or stale.

    What heavy holds, and which images of your own there are, is said in images.toml beside
    the catalog, or in the file that EXECUTOR_IMAGES names.
    """

    async def work() -> int:
        steps = Steps()
        try:
            async with await Engine.connect(Settings.load()) as engine:
                entries = await image_store.build(
                    engine, tuple(names or ("base",)), steps, fresh=fresh
                )
        finally:
            steps.close()
        _show_images(entries, as_json)
        return OK

    finish(work)


@images_app.command("list")
def images_list(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the images and runtime volumes that are on the engine."""

    async def work() -> int:
        async with await Engine.connect(Settings.load()) as engine:
            _show_images(await image_store.list_built(engine), as_json)
        return OK

    finish(work)


def _show_images(entries: Sequence[image_store.Entry], as_json: bool) -> None:
    fields = ("kind", "name", "id", "created", "size", "current", "layers", "file")
    rows = [{field: getattr(entry, field) for field in fields} for entry in entries]
    if as_json:
        write_json(rows)
        return
    table = Table("kind", "name", "size", "current", "layers", box=None)
    for entry in entries:
        size = f"{entry.size / 1e6:.0f} MB" if entry.size is not None else ""
        table.add_row(
            one_line(entry.kind),
            one_line(entry.name),
            size,
            "yes" if entry.current else "no",
            one_line(" ".join(entry.layers)),
        )
    show(table if entries else "no images yet; make them with: executor images build")


@app.command()
def ps(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the boxes on the engine, whoever's they are."""

    async def work() -> int:
        async with await Engine.connect(Settings.load()) as engine:
            listed = await engine.list_containers({LABEL_CONTROLLER: None})
        rows = [_box_row(container) for container in listed]
        if as_json:
            write_json(rows)
            return OK
        table = Table(box=None)
        for column in ("loop", "tenant", "state", "controller", "container", "until"):
            # Cut short, a name is of no use to `executor shell`.
            table.add_column(column, no_wrap=column in {"loop", "container"})
        for row in rows:
            table.add_row(*(one_line(str(value)) for value in row.values()))
        show(table if rows else "no boxes")
        return OK

    finish(work)


def _box_row(container: dict[str, Any]) -> dict[str, Any]:
    labels = container.get("Labels") or {}
    expires = str(labels.get(LABEL_EXPIRES, ""))
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(expires or 0) % (1 << 40)))
    return {
        "loop": labels.get(LABEL_LOOP),
        "tenant": labels.get(LABEL_TENANT),
        "state": container.get("State"),
        "controller": labels.get(LABEL_CONTROLLER),
        "container": str(container.get("Id"))[:12],
        "until": until if expires else None,
    }


@app.command("reap")
def reap_command() -> None:
    """Remove what controllers that ended without clean-up left behind."""

    async def work() -> int:
        settings = Settings.load()
        async with await Engine.connect(settings) as engine:
            reaped = await reap(engine, settings.state_directory, tidy=tidy)
            left = await engine.list_containers({LABEL_CONTROLLER: None})
        faults = await asyncio.to_thread(records.recover, settings.state_directory)
        state = str(settings.state_directory.resolve())
        foreign = sum((box.get("Labels") or {}).get(LABEL_STATE) != state for box in left)
        show(f"removed: boxes {len(reaped.containers)}, directories {len(reaped.directories)}")
        if foreign:
            show(
                f"left alone: boxes of other state directories {foreign} (EXECUTOR_STATE_DIR "
                "names the one that is swept)"
            )
        for failure in (*reaped.failures, *faults):
            say(failure)
        return FAILED if reaped.failures or faults else OK

    finish(work)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    config: Config = None,
) -> None:
    """Say whether loops can run here, and what isolation is really there."""

    async def work() -> int:
        report = await diagnosis.examine(config)
        if as_json:
            write_json(report.to_json())
        else:
            for finding in report.findings:
                show(f"{_MARKS[finding.level]} {finding.name}: {visible(finding.text)}")
                if finding.mend:
                    show(f"    → {visible(finding.mend)}")
        return OK if report.is_able else FAILED

    finish(work)


_MARKS = {"ok": "✓", "warning": "!", "fault": "✗"}
