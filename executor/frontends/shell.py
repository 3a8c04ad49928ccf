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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Annotated, Any

import typer

from executor.catalog import Catalog
from executor.controller import Controller
from executor.errors import ConfigError, EngineError
from executor.frontends import notices
from executor.frontends.options import (
    AddDir,
    Cache,
    CaFile,
    Config,
    Cpus,
    Disk,
    Egress,
    EgressPrivate,
    Env,
    ExecId,
    Image,
    MaxSeconds,
    Memory,
    Pids,
    Quota,
    Runtime,
    Seccomp,
    SecretAt,
    Setup,
    SetupEgress,
    Uid,
    loop_options,
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
from executor.frontends.signals import HEARD
from executor.lanes import Attended
from executor.loop import Loop
from executor.model import MOUNT, Limits, LoopSpec, plain
from executor.sandbox.attach import STDOUT
from executor.sandbox.container import LABEL_LOOP
from executor.sandbox.engine import Engine, status
from executor.sandbox.terminal import (
    Shell,
    find_box,
    open_shell,
    owner_in,
    shell_environment,
)
from executor.settings import Settings
from executor.text import one_line

HUNG_UP = 128 + signal.SIGHUP
_NOT_FOUND = 404
_PIECE = 1 << 14
_AHEAD = 16
"""Pieces of a pipe that are read before the box takes them."""
_KEYS_AHEAD = 1 << 14
"""The same of what is typed or pasted, at most 4 KiB each: the keys that leave come after it."""
_REST = 2.0
"""Seconds for taking back what the box has switched in the person's terminal."""
_USUAL_SIZE = (24, 80)
_LEAVE = b"\x1d" * 3
"""Ctrl-] three times leaves a shell that answers nothing any more."""
_ANSWER, _CLEAN_UP = 5.0, 8.0
"""Seconds for an engine to say anything once the shell has ended, and, where it does not, for
taking back what it was asked for. Otherwise each request would take its minute."""


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
    egress: Egress = None,
    setup_egress: SetupEgress = None,
    egress_private: EgressPrivate = None,
    ca_file: CaFile = None,
    setup: Setup = None,
    cache: Cache = None,
    secret: SecretAt = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Pass on all that the box sends to the terminal.")
    ] = False,
) -> None:
    """Open a shell in a box: one of its own on a directory, or the running box of a loop.

    Ctrl-D or `exit` ends it, and all that was started in it; Ctrl-] three times leaves one
    that answers no more. Without a terminal on stdin the shell reads commands from it. Exit
    code: the shell's; 2: bad usage or configuration; 3: no box, or it was lost.
    """
    given = locals()
    if (name is None) == (worktree is None):
        finish(_misused)

    def spec(catalog: Catalog) -> LoopSpec:
        made = catalog.loop_spec(worktree or "", **loop_options(given))
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
        labels = (container.get("Config") or {}).get("Labels") or {}
        what = f"{_name(container)} of loop {labels.get(LABEL_LOOP)}"
        box = Attended(_name(container), spec, has_proxy=False)
        code = await _attend(engine, container, box, what=what, is_raw=is_raw)
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
            notices.tell(loop.capabilities, settings.state_directory)
            async with loop.attended() as box:
                code = await _attend(engine, await engine.inspect(box.name), box, is_raw=is_raw)
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
    engine: Engine, container: Mapping[str, Any], box: Attended, *, what: str = "", is_raw: bool
) -> int | None:
    """Bring the person and a shell in the box together; its exit code, None = box lost.

    Args:
        what: names the box of somebody else; empty = it is this process's own.
    """
    code: int | None = None
    try:
        code = await _converse(engine, container, box, what=what, is_raw=is_raw)
    except EngineError:
        if await _condition(engine, container) is not _Condition.ENDED:
            raise
    finally:
        if await _condition(engine, container) is _Condition.SILENT:
            code = NO_SANDBOX if code is None else code
            _say_silent(container, is_own=not what)
            if what or box.spec.quota != "loop-ext4":  # its files come back without the engine
                _end_soon(code)
    return code


class _Condition(Enum):
    """What the engine says of a box when it is asked shortly."""

    RUNS = auto()
    ENDED = auto()
    REFUSED = auto()
    """It answered, and did not tell."""
    SILENT = auto()
    """It neither answered nor refused to."""


async def _condition(engine: Engine, container: Mapping[str, Any]) -> _Condition:
    try:
        async with asyncio.timeout(_ANSWER):
            state = (await engine.inspect(str(container["Id"]))).get("State") or {}
    except TimeoutError:
        return _Condition.SILENT
    except EngineError as error:
        return _Condition.ENDED if status(error) == _NOT_FOUND else _Condition.REFUSED
    return _Condition.RUNS if state.get("Running") else _Condition.ENDED


def _name(container: Mapping[str, Any]) -> str:
    return str(container["Name"]).removeprefix("/")


def _say_silent(container: Mapping[str, Any], *, is_own: bool) -> None:
    mend = "the shell there ends by itself"
    if is_own:
        mend = f"the box {_name(container)} ends by itself, and `executor reap` removes it later"
    say(f"the engine does not answer, so how the shell ended is not known; {mend}")


def _end_soon(code: int) -> None:
    """End the process although requests wait: even the interpreter's own end waits for them."""
    ended = code if HEARD.first is None else 128 + HEARD.first
    timer = threading.Timer(_CLEAN_UP, os._exit, (ended,))
    timer.daemon = True
    timer.start()


async def _converse(
    engine: Engine, container: Mapping[str, Any], box: Attended, *, what: str, is_raw: bool
) -> int | None:
    with_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    image = await engine.inspect_image(str(container["Image"])) or {}
    environment = shell_environment(
        box.spec,
        owner_in(container),
        (image.get("Config") or {}).get("Env") or (),
        engine.settings.terminal if with_terminal else "",
        has_proxy=box.has_proxy,
    )
    size = _size() if with_terminal else None
    ends = "; exit or Ctrl-D ends it, Ctrl-] three times leaves it" if with_terminal else ""
    if with_terminal or what:
        say(f"this is a shell in the box{one_line(what and ' ' + what)}{ends}")
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
    loop = asyncio.get_running_loop()

    def go_on() -> None:
        # Whoever had the terminal while this was stopped may have changed it.
        with contextlib.suppress(OSError, termios.error):
            if os.tcgetpgrp(keyboard) == os.getpgrp():
                tty.setraw(keyboard, termios.TCSANOW)

    # In the background this stops until it is brought to the front: the keys are another's.
    tty.setraw(keyboard, termios.TCSANOW)
    # A process in the background that mends its terminal would be stopped for it.
    old = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    loop.add_signal_handler(signal.SIGCONT, go_on)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCONT)
        with contextlib.suppress(termios.error):  # it was closed
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
        signal.signal(signal.SIGTTOU, old)


async def _relay(far: Shell, *, with_terminal: bool, is_raw: bool) -> bool:
    """Carry both ways until the shell's output is over; True when the person has left."""
    left = asyncio.Event()
    leaving = asyncio.create_task(left.wait())
    typing = asyncio.create_task(_type(far, left if with_terminal else None))
    showing = asyncio.create_task(_show(far, is_raw=is_raw))
    loop = asyncio.get_running_loop()
    if with_terminal:
        loop.add_signal_handler(signal.SIGWINCH, lambda: far.resize(*_size()))
    try:
        await asyncio.wait({leaving, showing}, return_when=asyncio.FIRST_COMPLETED)
        if left.is_set():
            return True
        await showing
        return False
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in (leaving, typing, showing):
            task.cancel()
        await asyncio.gather(leaving, typing, showing, return_exceptions=True)


async def _type(far: Shell, left: asyncio.Event | None) -> None:
    """Send what is typed.

    Args:
        left: set when the person leaves, or has closed the terminal; None = it is a pipe.
    """
    keyboard = sys.stdin.fileno()
    async for data in _pieces(keyboard) if left is None else _keys(keyboard, left.set):
        await far.type(data)
    if left is None:
        far.end_input()
    else:
        left.set()


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


def _keys(keyboard: int, leave: Callable[[], None]) -> AsyncIterator[bytes]:
    """What is typed. The keys that leave are seen though a box takes none of those before."""
    loop = asyncio.get_running_loop()
    last = b""

    def look(data: bytes) -> None:
        nonlocal last
        last += data
        if _LEAVE in last:
            loop.call_soon_threadsafe(leave)
        last = last[1 - len(_LEAVE) :]

    return _pieces(keyboard, _KEYS_AHEAD, look)


async def _pieces(
    source: int, ahead: int = _AHEAD, look: Callable[[bytes], None] = lambda data: None
) -> AsyncIterator[bytes]:
    """What comes from a descriptor, read beside the loop so that signals are heard.

    The thread is a daemon: at the end of the process it may wait for a key that never comes.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(ahead)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: all is over
            while data := _read(source):
                look(data)
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
