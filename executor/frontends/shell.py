"""`executor shell`: a person's terminal in a box."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from executor.catalog import Catalog
from executor.controller import Controller, Loop
from executor.errors import ConfigError
from executor.frontends.options import (
    AddDir,
    Config,
    Cpus,
    Disk,
    Env,
    ExecId,
    Image,
    MaxSeconds,
    Memory,
    Pids,
    Quota,
    Runtime,
    Seccomp,
    Uid,
    environment_of,
)
from executor.frontends.passing import Passing
from executor.frontends.running import (
    NO_SANDBOX,
    Steps,
    Unwritable,
    finish,
    say,
    settings_of,
    write_texts,
)
from executor.model import MOUNT, Limits, LoopSpec, plain
from executor.sandbox.attach import STDOUT
from executor.sandbox.engine import Engine
from executor.sandbox.terminal import Shell, find_box, open_shell, owner_in, shell_environment
from executor.settings import Settings

HUNG_UP = 128 + signal.SIGHUP
_PIECE = 1 << 14
_AHEAD = 16
"""Pieces of input that are read before the box takes them."""
_REST = 2.0
"""Seconds for taking back what the box has switched in the person's terminal."""
_USUAL_SIZE = (24, 80)
_LEAVE = b"\x1d" * 3
"""Ctrl-] three times leaves a shell that answers nothing any more."""


def shell(
    name: Annotated[
        str | None,
        typer.Argument(help="A running box, as `executor ps` shows it.", show_default=False),
    ] = None,
    worktree: Annotated[
        str | None, typer.Option("--worktree", help="Directory to open a box of its own on.")
    ] = None,
    image: Image = None,
    runtime: Runtime = None,
    config: Config = None,
    memory: Memory = None,
    cpus: Cpus = None,
    pids: Pids = None,
    max_seconds: MaxSeconds = None,
    env: Env = None,
    exec_id: ExecId = None,
    uid: Uid = None,
    add_dir: AddDir = None,
    seccomp: Seccomp = None,
    quota: Quota = None,
    disk: Disk = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Pass on all that the box sends to the terminal.")
    ] = False,
) -> None:
    """Open a shell in a box: one of its own on a directory, or the running box of a loop.

    Ctrl-D or `exit` ends it, and all that was started in it; Ctrl-] three times leaves one
    that answers no more. Without a terminal on stdin the shell reads commands from it. Exit
    code: the shell's; 2: bad usage or configuration; 3: no box, or it was lost.
    """
    if (name is None) == (worktree is None):
        finish(_misused)

    def spec(catalog: Catalog) -> LoopSpec:
        made = catalog.loop_spec(
            worktree or "",
            image=image,
            runtime=runtime,
            memory=memory,
            cpus=cpus,
            pids=pids,
            max_seconds=max_seconds,
            environment=environment_of(env),
            exec_id=exec_id,
            uid=uid,
            add_dirs=tuple(add_dir) if add_dir else None,
            seccomp=seccomp,
            quota=quota,
            disk_bytes=disk,
        )
        return replace(made, limits=replace(made.limits, idle_seconds=None))

    async def work() -> int:
        settings, catalog = settings_of(config)
        if name is not None:
            return await _in_running_box(settings, name, is_raw=raw)
        return await _in_new_box(settings, catalog, spec(catalog), is_raw=raw)

    finish(work)


async def _misused() -> int:
    raise ConfigError("give the NAME of a running box, or --worktree DIR to open one; not both")


async def _in_running_box(settings: Settings, name: str, *, is_raw: bool) -> int:
    async with await Engine.connect(settings) as engine:
        container = await find_box(engine, name)
        # What its controller was told of variables is not known here.
        cores = (container.get("HostConfig") or {}).get("NanoCpus") or 0
        spec = LoopSpec(MOUNT, Limits(cpus=max(cores / 1e9, 1.0)))
        code = await _attend(engine, container, spec, is_raw=is_raw)
        if code is None:
            say(
                f"the box {name} is gone: its loop has ended, its time is over, or it was "
                "removed; files in its worktree are intact"
            )
    return NO_SANDBOX if code is None else code


async def _in_new_box(settings: Settings, catalog: Catalog, spec: LoopSpec, *, is_raw: bool) -> int:
    steps = Steps()
    try:
        async with (
            Controller(settings, catalog, progress=steps) as controller,
            controller.open(spec) as loop,
            await Engine.connect(settings) as engine,
        ):
            steps.close()
            with loop.attended() as box:
                code = await _attend(engine, await engine.inspect(box), spec, is_raw=is_raw)
            if code is None:
                say(f"the box is gone: {_why(loop)}; files in its worktree are intact")
    finally:
        steps.close()
    return NO_SANDBOX if code is None else code


def _why(loop: Loop) -> str:
    seconds = loop.spec.limits.max_seconds
    if loop.is_over and seconds is not None:
        return f"its {plain(seconds)} s are over"
    return "it was lost or removed"


async def _attend(
    engine: Engine, container: Mapping[str, Any], spec: LoopSpec, *, is_raw: bool
) -> int | None:
    """Bring the person and a shell in the box together; its exit code, None = box lost."""
    with_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    image = await engine.inspect_image(str(container["Image"])) or {}
    environment = shell_environment(
        spec,
        owner_in(container),
        (image.get("Config") or {}).get("Env") or (),
        engine.settings.terminal if with_terminal else "",
    )
    size = _size() if with_terminal else None
    if with_terminal:
        say("this is a shell in the box; exit or Ctrl-D ends it, Ctrl-] three times leaves it")
    async with open_shell(engine, container, environment, size) as far:
        with _keys_as_they_come() if with_terminal else contextlib.nullcontext():
            is_left = await _relay(far, with_terminal=with_terminal, is_raw=is_raw)
        return HUNG_UP if is_left else await far.exit_code()


def _size() -> tuple[int, int]:
    """Rows and columns; the usual ones where the terminal does not say, or is closed."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return _USUAL_SIZE
    return size.lines or _USUAL_SIZE[0], size.columns or _USUAL_SIZE[1]


@contextlib.contextmanager
def _keys_as_they_come() -> Iterator[None]:
    """Every key goes to the box, Ctrl-C too; the terminal is as before afterwards."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    # A process in the background that mends its terminal would be stopped for it.
    old = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        tty.setraw(keyboard, termios.TCSANOW)
        yield
    finally:
        with contextlib.suppress(termios.error):  # it was closed
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
        signal.signal(signal.SIGTTOU, old)


async def _relay(far: Shell, *, with_terminal: bool, is_raw: bool) -> bool:
    """Carry both ways until the shell's output is over; True when the person has left."""
    typing = asyncio.create_task(_type(far, with_terminal=with_terminal))
    showing = asyncio.create_task(_show(far, is_raw=is_raw))
    loop = asyncio.get_running_loop()
    if with_terminal:
        loop.add_signal_handler(signal.SIGWINCH, lambda: far.resize(*_size()))
    try:
        await asyncio.wait({typing, showing}, return_when=asyncio.FIRST_COMPLETED)
        if typing.done() and typing.result():
            return True
        await showing
        return False
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in (typing, showing):
            task.cancel()
        await asyncio.gather(typing, showing, return_exceptions=True)


async def _type(far: Shell, *, with_terminal: bool) -> bool:
    """Send what is typed; True when the person leaves, False at the end of a pipe."""
    last = b""
    async for data in _pieces(sys.stdin.fileno()):
        last += data
        if with_terminal and _LEAVE in last:
            return True
        last = last[1 - len(_LEAVE) :]
        await far.type(data)
    if not with_terminal:
        far.end_input()
    return with_terminal


async def _show(far: Shell, *, is_raw: bool) -> None:
    """Print what the shell prints, without what a terminal must not be told."""
    streams = {
        number: (stream, Passing())
        for number, stream in enumerate((sys.stdout, sys.stderr), STDOUT)
    }
    try:
        async for number, data in far.output():
            stream, passing = streams[number]
            await write_texts((stream, data if is_raw else passing.feed(data)))
    finally:
        if not is_raw:
            rests = [(stream, passing.end()) for stream, passing in streams.values()]
            # A terminal that takes nothing must not keep its own modes from being mended.
            with contextlib.suppress(TimeoutError, OSError, Unwritable):
                async with asyncio.timeout(_REST):
                    await write_texts(*(rest for rest in rests if rest[1]))


async def _pieces(source: int) -> AsyncIterator[bytes]:
    """What comes from a descriptor, read beside the loop so that signals are heard.

    The thread is a daemon: at the end of the process it may wait for a key that never comes.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: all is over
            while data := _read(source):
                room.acquire()
                loop.call_soon_threadsafe(queue.put_nowait, data)
            loop.call_soon_threadsafe(queue.put_nowait, b"")

    threading.Thread(target=read, name="keys", daemon=True).start()
    while data := await queue.get():
        room.release()
        yield data


def _read(source: int) -> bytes:
    try:
        return os.read(source, _PIECE)
    except OSError:  # the terminal was closed
        return b""
