"""The commands. Results go to stdout, everything meant for people to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from executor.catalog import Catalog, load
from executor.controller import Controller, Loop
from executor.errors import ConfigError, SandboxError
from executor.frontends import diagnosis
from executor.frontends.lines import Item, Iteration, Lines
from executor.frontends.signals import HEARD
from executor.model import Call, Finished, LoopSpec, Result
from executor.permissions import Mode
from executor.pipeline import Pipeline
from executor.sandbox import images as image_store
from executor.sandbox.container import (
    LABEL_CONTROLLER,
    LABEL_EXPIRES,
    LABEL_LOOP,
    LABEL_TENANT,
)
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import reap
from executor.settings import Settings
from executor.tool import Tool
from executor.toolsets import standard

OK, FAILED, USAGE, NO_SANDBOX = 0, 1, 2, 3
MAX_LINE = 64 << 20
"""Bytes. A longer call line is refused, not held."""
LINES_AHEAD = 16
"""Call lines that are read before they are needed."""

app = typer.Typer(
    name="executor",
    help="Runs a coding agent's tool calls, each loop in a container of its own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
images_app = typer.Typer(help="The images that boxes are made from.", no_args_is_help=True)
app.add_typer(images_app, name="images")
err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


# ─── running and ending ─────────────────────────────────────────────────────────────


class _Ended(Exception):
    """A signal asked for the end; everything opened was closed before this is raised."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Unwritable(Exception):
    """The results have nowhere to go: a full disk, a closed descriptor."""


def _finish(work: Callable[[], Coroutine[Any, Any, int]]) -> NoReturn:
    """Run to the end, map failures to exit codes, exit."""
    try:
        code = asyncio.run(_until_signal(work()))
    except ConfigError as error:
        for fault in error.faults:
            err.print(f"executor: {_visible(fault)}")
        code = USAGE
    except SandboxError as error:
        err.print(f"executor: {_visible(str(error))}")
        code = NO_SANDBOX
    except _Ended as ended:
        code = 128 + ended.number
    except BrokenPipeError:
        code = _nobody_reads(128 + signal.SIGPIPE)
    except _Unwritable as error:
        with contextlib.suppress(OSError):
            err.print(f"executor: the output could not be written: {error}")
        code = _nobody_reads(FAILED)
    raise SystemExit(code)


async def _until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run the work; a signal cancels it once, and its clean-up is then left in peace."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    with HEARD.kept_for(lambda: loop.call_soon_threadsafe(task.cancel)):
        try:
            return await task
        except asyncio.CancelledError:
            if HEARD.first is not None:
                raise _Ended(HEARD.first) from None
            raise


def _nobody_reads(code: int) -> int:
    # The interpreter flushes stdout once more at its end: let it, somewhere harmless.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """What fails in here is the output's fault.

    Raises:
        _Unwritable: the output takes no more; a reader that is gone stays a `BrokenPipeError`.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _Unwritable(error.strerror or str(error)) from error


def _visible(text: str) -> str:
    """Text from elsewhere that a terminal may be shown: no control character acts."""
    return "".join(
        char
        if char.isprintable() or char in "\n\t"
        else f"\\x{ord(char):02x}"
        if ord(char) < 256
        else f"\\u{ord(char):04x}"
        for char in text
    )


def _settings(config: Path | None) -> tuple[Settings, Catalog]:
    settings = Settings.load()
    return settings, load(config or settings.config_file)


class _Steps:
    """Shows what takes long while a box is opened; nothing where it is quick."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=err,
            transient=True,
            disable=not err.is_terminal,
        )
        self._task: TaskID | None = None
        self._step = ""

    def __call__(self, step: str, done: int | None, total: int | None) -> None:
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(step, total=total)
        if step != self._step:
            self._step = step
            if not err.is_terminal:
                err.print(f"executor: {_visible(step)}")
        self._progress.update(
            self._task, description=_visible(step), total=total, completed=done or 0
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._progress.stop()
            self._task = None


# ─── options that several commands have ─────────────────────────────────────────────

# Text, because an empty path would count as the current directory.
Worktree = Annotated[
    str, typer.Option("--worktree", help="Directory that the loop works in.", show_default=False)
]
Toolset = Annotated[str | None, typer.Option("--toolset", help="Names and schemas of the tools.")]
LoopType = Annotated[str | None, typer.Option("--loop-type", help="Restricts the tools.")]
ModeName = Annotated[
    str | None,
    typer.Option("--mode", help="Permission mode: default, plan, acceptEdits, bypass (default)."),
]
Image = Annotated[str | None, typer.Option("--image", help="base, heavy, or any image.")]
Runtime = Annotated[str | None, typer.Option("--runtime", help="The engine's runtime, e.g. runsc.")]
Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file that overrides the catalog.")
]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory of the box, e.g. 2g.")]
Cpus = Annotated[float | None, typer.Option("--cpus", help="Cores of the box.")]
Pids = Annotated[int | None, typer.Option("--pids", help="Processes and threads of the box.")]
CallTimeout = Annotated[
    float | None,
    typer.Option("--call-timeout", help="Seconds for a command that names no timeout."),
]
MaxSeconds = Annotated[
    float | None, typer.Option("--max-seconds", help="Seconds for the loop in all.")
]
Env = Annotated[
    list[str] | None, typer.Option("--env", help="NAME=VALUE for every command; may be repeated.")
]
Uid = Annotated[
    int | None, typer.Option("--uid", help="Run as this uid instead of the worktree's owner.")
]
ExecId = Annotated[str | None, typer.Option("--exec-id", help="Name of the loop.")]
Seccomp = Annotated[
    str | None,
    typer.Option("--seccomp", help="Profile of system calls: standard, or strict (no debuggers)."),
]
Quota = Annotated[
    str | None,
    typer.Option("--quota", help="How the disk limit is kept: none, watch (soft), loop-ext4."),
]
Disk = Annotated[
    str | None, typer.Option("--disk", help="Bytes that the loop may add to its worktree.")
]
IdleSeconds = Annotated[
    float | None,
    typer.Option("--idle-seconds", help="Give the box back after so long without a call."),
]


def _environment(pairs: Sequence[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    faults: list[str] = []
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if equals:
            found[name] = value
        else:
            faults.append(f"--env: {pair!r} has no =; write NAME=VALUE")
    if faults:
        raise ConfigError(faults)
    return found


# ─── run ────────────────────────────────────────────────────────────────────────────


@app.command()
def run(
    worktree: Worktree,
    calls: Annotated[str, typer.Option("--calls", help="File with call lines; - is stdin.")] = "-",
    toolset: Toolset = None,
    loop_type: LoopType = None,
    mode: ModeName = None,
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
    seccomp: Seccomp = None,
    quota: Quota = None,
    disk: Disk = None,
    idle_seconds: IdleSeconds = None,
) -> None:
    """Run the calls of a model, one JSON line each, and write one result line each.

    A line is a call {"id", "name", "input"}, an array of calls (one assistant turn), or an
    Anthropic message with tool_use blocks; {"event": "iteration"} says that the model has
    to read files again before it changes them. Exit code 0: every call was answered; 1:
    the results could not be written; 2: bad usage or configuration; 3: no sandbox could be
    had.
    """

    def spec(catalog: Catalog) -> LoopSpec:
        return catalog.loop_spec(
            worktree,
            toolset=toolset,
            loop_type=loop_type,
            mode=mode,
            image=image,
            runtime=runtime,
            memory=memory,
            cpus=cpus,
            pids=pids,
            call_timeout=call_timeout,
            max_seconds=max_seconds,
            environment=_environment(env),
            exec_id=exec_id,
            uid=uid,
            seccomp=seccomp,
            quota=quota,
            disk_bytes=disk,
            idle_seconds=idle_seconds,
        )

    _finish(lambda: _run(spec, config, calls))


async def _run(make: Callable[[Catalog], LoopSpec], config: Path | None, calls: str) -> int:
    settings, catalog = _settings(config)
    spec = make(catalog)
    source = _open_calls(calls)
    steps = _Steps()
    try:
        async with Controller(settings, catalog, progress=steps) as controller:
            started = time.monotonic()
            async with controller.open(spec) as loop:
                steps.close()
                _tell_opened(loop, time.monotonic() - started)
                lines = Lines()
                async for line in _lines(source):
                    await _answer(loop, lines.read(line))
                if loop.completed is not None:
                    err.print(f"executor: task completed: {_visible(loop.completed)}")
    finally:
        steps.close()
        os.close(source)
    return OK


def _open_calls(name: str) -> int:
    """The descriptor that call lines are read from."""
    if name == "-":
        if sys.stdin.isatty():
            err.print("executor: reading call lines from the terminal; end with Ctrl-D")
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


def _tell_opened(loop: Loop, seconds: float) -> None:
    facts = loop.capabilities
    for notice in facts.get("notices", ()):
        err.print(f"executor: {_visible(str(notice))}")
    what = ", ".join(
        f"{name} {facts[name]}" for name in ("network", "runtime", "user", "pids") if name in facts
    )
    err.print(f"executor: loop {loop.exec_id} open in {seconds:.2f} s ({what})")


async def _lines(source: int) -> AsyncIterator[bytes]:
    """The lines of a descriptor, read beside the loop so that signals are heard.

    The thread is a daemon and reads the bare descriptor: at the end of the process it may
    wait for input that never comes, or for room that nobody makes any more.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
    room = threading.Semaphore(LINES_AHEAD)

    def put(item: bytes | OSError | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
            try:
                for line in _split(source):
                    put(line)
                put(None)
            except OSError as error:
                put(error)

    threading.Thread(target=read, name="calls", daemon=True).start()
    while (item := await queue.get()) is not None:
        room.release()
        if isinstance(item, OSError):
            raise _unreadable(str(item.strerror)) from item
        yield item


def _split(source: int) -> Any:
    buffer = bytearray()
    while data := os.read(source, 1 << 16):
        buffer += data
        if b"\n" not in data:
            # A line without end is cut: it is no JSON then and gets its error.
            del buffer[MAX_LINE:]
            continue
        *whole, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        yield from whole
    if buffer:
        yield bytes(buffer)


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
    summary = _summary(result, call) + "\n"
    await _print((sys.stdout, result.to_line() + "\n"), (sys.stderr, summary))


async def _print(*texts: tuple[TextIO, str]) -> None:
    """Write texts beside the loop: who reads them may be slow, or have stopped.

    Nothing else waits for the reader then: signals are heard, and boxes keep their agents'
    lease. The thread is a daemon and writes the bare descriptors: at the end of the process
    it may wait for a reader that never comes.

    Raises:
        BrokenPipeError: there is no reader any more.
        _Unwritable: there is no room.
    """
    loop = asyncio.get_running_loop()
    written: asyncio.Future[None] = loop.create_future()

    def settle(error: OSError | None) -> None:
        if written.done():
            return
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)

    def write() -> None:
        failure = None
        try:
            for stream, text in texts:
                encoding = "utf-8" if stream is sys.stdout else stream.encoding
                _write_all(stream.fileno(), text.encode(encoding, "backslashreplace"))
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=write, name="results", daemon=True).start()
    with _writing():
        await written


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever shares the descriptor made it so
            select.select([], [descriptor], [])


def _summary(result: Result, call: Call | None) -> str:
    mark = f"✗ {result.code}" if result.is_error else "✓"
    subject = _subject(call) if call is not None else ""
    return f"{mark} {_visible(result.name or '?')} {subject} {result.duration_ms:.1f} ms"


def _subject(call: Call) -> str:
    """What the call is about, in one short line."""
    for name in ("path", "command", "pattern", "from", "language", "summary"):
        value = call.input.get(name)
        if isinstance(value, str):
            line = _visible(value.replace("\n", " "))
            return line if len(line) <= 60 else line[:59] + "…"
    return ""


# ─── call ───────────────────────────────────────────────────────────────────────────


@app.command()
def call(
    tool: Annotated[str, typer.Argument(help="Name of the tool.", show_default=False)],
    arguments: Annotated[
        str, typer.Argument(metavar="[JSON]", help="The tool's arguments as a JSON object.")
    ] = "{}",
    worktree: Worktree = ".",
    toolset: Toolset = None,
    mode: ModeName = None,
    image: Image = None,
    runtime: Runtime = None,
    config: Config = None,
    memory: Memory = None,
    cpus: Cpus = None,
    pids: Pids = None,
    env: Env = None,
    uid: Uid = None,
    seccomp: Seccomp = None,
    quota: Quota = None,
    disk: Disk = None,
) -> None:
    """Run one call and print what the model would be shown. Exit code 1: it failed."""

    def spec(catalog: Catalog) -> LoopSpec:
        return catalog.loop_spec(
            worktree,
            toolset=toolset,
            mode=mode,
            image=image,
            runtime=runtime,
            memory=memory,
            cpus=cpus,
            pids=pids,
            environment=_environment(env),
            uid=uid,
            seccomp=seccomp,
            quota=quota,
            disk_bytes=disk,
        )

    _finish(lambda: _call(spec, config, tool, arguments))


async def _call(
    make: Callable[[Catalog], LoopSpec], config: Path | None, tool: str, text: str
) -> int:
    given = _arguments(text)
    settings, catalog = _settings(config)
    steps = _Steps()
    try:
        async with (
            Controller(settings, catalog, progress=steps) as controller,
            controller.open(make(catalog)) as loop,
        ):
            steps.close()
            await _read_first(loop, tool, given)
            result = await loop.execute(Call("call", tool, given))
    finally:
        steps.close()
    content = result.content if isinstance(result.content, str) else json.dumps(result.content)
    if content:
        stream = sys.stderr if result.is_error else sys.stdout
        await _print((stream, _visible(content).removesuffix("\n") + "\n"))
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
    tool, path = loop.registry.get(name), given.get("path")
    if tool is None or tool.canonical not in ("edit_file", "write_file"):
        return
    for extra in ({"limit": 1}, {"encoding": "base64"}):
        reading = await loop.execute(Call("read", "read_file", {"path": path, **extra}))
        if not reading.is_error and reading.structured is not None:
            loop.mark_read(str(path), reading.structured["hash"])
            err.print(f"executor: read {_visible(str(path))} first, as {name} requires")
            return


# ─── tools ──────────────────────────────────────────────────────────────────────────


@app.command()
def tools(
    toolset: Toolset = None,
    format: Annotated[
        str, typer.Option("--format", help="anthropic, openai or mcp.")
    ] = "anthropic",
    loop_type: LoopType = None,
    config: Config = None,
    all: Annotated[bool, typer.Option("--all", help="Disabled ones too, with reasons.")] = False,
) -> None:
    """Print the tools' definitions as JSON, as a model is given them."""

    async def work() -> int:
        _, catalog = _settings(config)
        spec = catalog.loop_spec(".", toolset=toolset, loop_type=loop_type)
        faults = catalog.faults(spec)
        if format not in _FORMATS:
            faults.append(f"--format: there is no {format!r}; known: {', '.join(_FORMATS)}")
        if faults:
            raise ConfigError(faults)
        allowed = catalog.loop_types[spec.loop_type] if spec.loop_type is not None else None
        registry = standard.registry(catalog, spec.limits)
        pipeline = Pipeline(registry, Mode(spec.mode), allowed, spec.loop_type)
        shown = registry.all() if all else pipeline.enabled()
        definitions = [_FORMATS[format](tool) for tool in shown]
        if all:
            reasons = pipeline.disabled()
            for tool, definition in zip(shown, definitions, strict=True):
                definition["disabled"] = reasons.get(tool.name)
        _write_json(definitions)
        return OK

    _finish(work)


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


def _write_json(value: object) -> None:
    with _writing():
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def _show(*shown: object) -> None:
    with _writing():
        out.print(*shown)


# ─── images, ps, reap, doctor ───────────────────────────────────────────────────────


@images_app.command("build")
def images_build(
    names: Annotated[
        list[str] | None, typer.Argument(help="base (default), heavy.", show_default=False)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Anew, for newer packages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Make the images and the runtime volume where they are missing or stale."""

    async def work() -> int:
        steps = _Steps()
        try:
            async with await Engine.connect(Settings.load()) as engine:
                entries = await image_store.build(
                    engine, tuple(names or ("base",)), steps, fresh=fresh
                )
        finally:
            steps.close()
        _show_images(entries, as_json)
        return OK

    _finish(work)


@images_app.command("list")
def images_list(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the images and runtime volumes that are on the engine."""

    async def work() -> int:
        async with await Engine.connect(Settings.load()) as engine:
            _show_images(await image_store.list_built(engine), as_json)
        return OK

    _finish(work)


def _show_images(entries: Sequence[image_store.Entry], as_json: bool) -> None:
    fields = ("kind", "name", "id", "created", "size", "current")
    rows = [{field: getattr(entry, field) for field in fields} for entry in entries]
    if as_json:
        _write_json(rows)
        return
    table = Table("kind", "name", "size", "current", box=None)
    for entry in entries:
        size = f"{entry.size / 1e6:.0f} MB" if entry.size is not None else ""
        table.add_row(entry.kind, entry.name, size, "yes" if entry.current else "no")
    _show(table if entries else "no images yet; make them with: executor images build")


@app.command()
def ps(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the boxes on the engine, whoever's they are."""

    async def work() -> int:
        async with await Engine.connect(Settings.load()) as engine:
            listed = await engine.list_containers({LABEL_CONTROLLER: None})
        rows = [_box_row(container) for container in listed]
        if as_json:
            _write_json(rows)
            return OK
        table = Table("loop", "tenant", "state", "controller", "container", "until", box=None)
        for row in rows:
            table.add_row(*(_visible(str(value)) for value in row.values()))
        _show(table if rows else "no boxes")
        return OK

    _finish(work)


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
            reaped = await reap(engine, settings.state_directory)
        _show(f"removed {len(reaped.containers)} boxes, {len(reaped.directories)} directories")
        for failure in reaped.failures:
            err.print(f"executor: {_visible(failure)}")
        return FAILED if reaped.failures else OK

    _finish(work)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Say whether loops can run here, and what isolation is really there."""

    async def work() -> int:
        report = await diagnosis.examine()
        if as_json:
            _write_json(report.to_json())
        else:
            for finding in report.findings:
                _show(f"{_MARKS[finding.level]} {finding.name}: {_visible(finding.text)}")
                if finding.mend:
                    _show(f"    → {_visible(finding.mend)}")
        return OK if report.is_able else FAILED

    _finish(work)


_MARKS = {"ok": "✓", "warning": "!", "fault": "✗"}
