"""How a command runs, ends and prints. Results go to stdout, all that is for people to stderr.

What comes from elsewhere is shown through `executor.text`: by `say`, by `show`, and in
logs, whose lines are one line each.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from executor.catalog import Catalog, load
from executor.egress.options import host_faults
from executor.errors import ConfigError, SandboxError
from executor.frontends.signals import HEARD
from executor.model import LoopSpec
from executor.sandbox import quota
from executor.settings import Settings
from executor.text import json_line, one_line, visible

OK, FAILED, USAGE, NO_SANDBOX = 0, 1, 2, 3
LOG_LINE = 10_000
"""Characters of a line of the log."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - called where the error is handled; `finish` ends the run for it


err = _Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
out = _Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def say(text: str) -> None:
    """Tell the person something, on stderr; nothing in it acts on the terminal.

    Further lines are set in, so that none can be taken for another thing that is said.
    Where stderr takes nothing the work goes on: nobody reads it.
    """
    with contextlib.suppress(OSError):
        err.print("executor: " + visible(text).replace("\n", "\n    "))


_OF_STRANGERS = ("client", "mcp.client")
"""Loggers that tell, trace and all, of each fault in what an MCP server sends, which can be any
number. What of it matters to a call is in its result."""


class _OneLine(logging.Formatter):
    """A record is one line: what it tells of can't pass itself off as another record."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record), LOG_LINE)


def log_to_stderr() -> None:
    """Show warnings of the package and its libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("executor: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in _OF_STRANGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # What the interpreter prints by itself it prints as it is.
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    sys.unraisablehook = lambda fault: _tell_fault(fault.exc_value)
    threading.excepthook = lambda fault: _tell_fault(fault.exc_value)


def _tell_fault(error: BaseException | None) -> None:
    if error is not None:
        text = "".join(traceback.format_exception(error))
        say(f"this is a fault of the executor itself:\n{text}")


class _Ended(Exception):
    """A signal asked for the end; everything opened was closed before this is raised."""

    def __init__(self, number: int, left: Sequence[str]) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        but = f", but {'; '.join(left)}" if left else ""
        super().__init__(f"ended by {name}; what was opened is cleaned away{but}")
        self.number = number


class Unwritable(Exception):
    """The results have nowhere to go: a full disk, a closed descriptor."""


def finish(work: Callable[[], Coroutine[Any, Any, int]]) -> NoReturn:
    """Run to the end, map failures to exit codes, exit."""
    log_to_stderr()
    try:
        code = asyncio.run(_until_signal(work()))
    except ConfigError as error:
        for fault in error.faults:
            say(fault)
        code = USAGE
    except SandboxError as error:
        say(str(error))
        code = NO_SANDBOX
    except _Ended as ended:
        HEARD.ignore()
        say(str(ended))
        code = 128 + ended.number
    except BrokenPipeError:
        code = _nobody_reads(128 + signal.SIGPIPE)
    except Unwritable as error:
        with contextlib.suppress(OSError):
            say(f"the output could not be written: {error}")
        code = _nobody_reads(FAILED)
    except Exception:
        # Text of a box may be in it, so that the interpreter must not print it.
        say(f"this is a fault of the executor itself:\n{traceback.format_exc()}")
        code = FAILED
    raise SystemExit(code)


def enter(app: Callable[..., Any]) -> NoReturn:
    """Run the command that this process was called with.

    What is wrong with its arguments is shown as all else is: a name among them may have come
    from a worktree, by way of a shell's wildcard.
    """
    try:
        code = app(standalone_mode=False) or OK
    except BrokenPipeError:
        code = _nobody_reads(128 + signal.SIGPIPE)
    except OSError as error:
        say(f"the output could not be written: {error.strerror}")
        code = _nobody_reads(FAILED)
    except Exception as error:
        code = _misused(error)
    raise SystemExit(code)


def _misused(error: Any) -> int:
    """Show what the parser of arguments complains of; its exit code."""
    if not hasattr(error, "show"):
        raise error
    text = io.StringIO()
    error.show(file=text)
    with contextlib.suppress(OSError):
        err.print(visible(text.getvalue()), end="")
    return int(error.exit_code)


async def _until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run the work; a signal cancels it once, and its clean-up is then left in peace."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    with HEARD.kept_for(
        lambda: loop.call_soon_threadsafe(task.cancel),
        lambda: loop.call_soon_threadsafe(quota.call_off),
    ):
        try:
            return await task
        except asyncio.CancelledError as error:
            if HEARD.first is not None:
                # Whoever could not clean up has noted that.
                raise _Ended(HEARD.first, getattr(error, "__notes__", ())) from None
            raise


def _nobody_reads(code: int) -> int:
    # The interpreter flushes stdout once more at its end: let it, somewhere harmless.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """What fails in here is the output's fault.

    Raises:
        Unwritable: the output takes no more; a reader that is gone stays a `BrokenPipeError`.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritable(error.strerror or str(error)) from error


def settings_of(config: Path | None) -> tuple[Settings, Catalog]:
    """The machine's settings, and the catalog with the user's file or the one named here."""
    settings = Settings.load()
    return settings, load(config or settings.config_file, host_faults)


def require_outside(file: Path | None, spec: LoopSpec, option: str = "config") -> None:
    """Refuse a file that the loop could rewrite, or swap for a link to another.

    A configuration has hooks, which run here; a report is written where its name leads to.

    Args:
        file: its name; None = there is none.
        spec: of the loop.
        option: what names the file.

    Raises:
        ConfigError: the file lies in the worktree, or in a directory that is added writable.
    """
    if file is None:
        return
    places = Path(os.path.realpath(file)), Path(os.path.realpath(file.parent), file.name)
    for root in filter(str, spec.writable):  # a worktree that is yet to be made has no name
        if any(place.is_relative_to(os.path.realpath(root)) for place in places):
            where = "the worktree" if root == spec.worktree else root
            raise ConfigError(
                f"{option}: {file} lies in {where}, where the loop can rewrite it; "
                "keep it elsewhere"
            )


class Steps:
    """Shows what takes long while a box is opened; nothing where it is quick.

    Args:
        has_bar: as a bar, on a terminal; else in lines, for boxes that are opened beside others.
    """

    def __init__(self, *, has_bar: bool = True) -> None:
        self._has_bar = has_bar and err.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=err,
            transient=True,
            disable=not self._has_bar,
        )
        self._task: TaskID | None = None
        self._step = ""

    def __call__(self, step: str, done: int | None, total: int | None) -> None:
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(step, total=total)
        if step != self._step:
            self._step = step
            if not self._has_bar:
                say(one_line(step))
        self._progress.update(
            self._task, description=one_line(step), total=total, completed=done or 0
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._progress.stop()
            self._task = None


async def write_texts(*texts: tuple[TextIO, str | bytes], told: str = "") -> None:
    """Write texts beside the loop: who reads them may be slow, or have stopped.

    Nothing else waits for the reader then: signals are heard, and boxes keep their agents'
    lease. The thread is a daemon and writes the bare descriptors: at the end of the process
    it may wait for a reader that never comes.

    Args:
        texts: and where each belongs, in order.
        told: for the person, on stderr, after them. Nothing is lost where it can't be written.

    Raises:
        BrokenPipeError: there is no reader any more.
        Unwritable: there is no room.
    """
    loop = asyncio.get_running_loop()
    written: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
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
                _write_all(stream.fileno(), _encoded(text, stream))
        except Exception as error:  # whatever it is, somebody waits for the end of this
            failure = error
        if failure is None and told:
            with contextlib.suppress(OSError):
                _write_all(sys.stderr.fileno(), _encoded(told, sys.stderr))
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=write, name="results", daemon=True).start()
    with writing():
        await written


def _encoded(text: str | bytes, stream: TextIO) -> bytes:
    if isinstance(text, bytes):
        return text
    # A program reads JSON in UTF-8 whatever the locale; a terminal does not.
    is_for_program = stream is sys.stdout and not stream.isatty()
    return text.encode("utf-8" if is_for_program else stream.encoding, "backslashreplace")


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever shares the descriptor made it so
            select.select([], [descriptor], [])


def write_json(value: object) -> None:
    """Print a value for a program."""
    with writing():
        sys.stdout.buffer.write(_encoded(json_line(value, indent=2) + "\n", sys.stdout))
        sys.stdout.flush()


def show(*shown: object) -> None:
    """Print tables and texts for a person; text from elsewhere was made visible before."""
    with writing():
        out.print(*shown)
