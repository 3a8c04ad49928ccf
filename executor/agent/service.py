"""The agent's one loop: frames in, operations and commands, frames out.

One thread, one epoll. Nothing here blocks: operations that take long give way, output
that the host does not take is bounded, and what the host sends is not read while too
much of our own is waiting.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import select
import signal
import sys
import time
from collections import deque
from contextlib import suppress

from . import frame, processes
from .confinement import confine
from .files import OPERATIONS as FILE_OPERATIONS
from .frame import FrameError, Parser, encode, encode_json
from .operation import RUNTIME, Command, Exit, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, NoReturn

    from .operation import Steps

    Reaction = Callable[[int], None]

CHUNK = 1 << 16
"""Bytes a read from a pipe. A larger buffer would be mapped and unmapped for every frame."""
MAX_BODY = 64 << 20
"""Bytes that the input of one call may have."""
MAX_WAITING = 96 << 20
"""Bytes that the unfinished inputs of all calls may have."""
PAUSE_INPUT = 4 << 20
"""Bytes of unsent output over which nothing more is read from the host."""
SLICE = 0.005
"""Seconds that operations run on before the loop looks elsewhere."""
BACKGROUND = ("begin", "await_task", "peek", "stop_task", "left", "end_left")
"""What `background` does; it is loaded when the first of them comes."""
SERVERS = ("serve", "server_state", "server_end")
"""What `servers` does; loaded in the same way."""
RICH = ("read_image", "read_pages", "read_notebook", "edit_notebook", "markdown")
DEFAULT_LEASE = 30.0
DIRECTORIES = "/workspaces"
"""Directories that are mounted beside the worktree."""
MAX_DIRECTORIES = 32
STORES = "/run/executor/objects"
"""Object stores of the repository that the worktree belongs to, numbered."""
MAX_STORES = 128
_UNREADABLE = (
    *(FrameError, ValueError, KeyError, TypeError, AttributeError),
    *(RecursionError, OverflowError),  # JSON that is too deep; Infinity for a size
)
"""What frames that are none of the host's may raise. The agent says so and ends: it would
otherwise be deaf until its lease is over."""


class Incoming:
    """A call whose input is still on its way."""

    __slots__ = ("arguments", "body", "missing")

    def __init__(self, arguments: dict[str, Any], missing: int) -> None:
        self.arguments = arguments
        self.missing = missing
        self.body = bytearray()


class Timer:
    """Something to be done at a time of the monotonic clock."""

    __slots__ = ("action", "at")

    def __init__(self, at: float, action: Callable[[], None]) -> None:
        self.at = at
        self.action: Callable[[], None] | None = action

    def __lt__(self, other: Timer) -> bool:
        return self.at < other.at


class Service:
    """The box's state. `commands.Job` and `Task` are the two kinds of running calls."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.sink = sink
        self.poll = select.epoll()
        self.slow_poll = select.poll()
        self.slow: set[int] = set()
        self.reactions: dict[int, Reaction] = {}
        self.timers: list[Timer] = []
        self.timers_off = 0
        self.children: dict[int, Callable[[int], None]] = {}
        self.calls: dict[int, Any] = {}
        self.incoming: dict[int, Incoming] = {}
        self.waiting_bytes = 0
        self.runnable: list[Task] = []
        self.parser = Parser(frame.TO_AGENT)
        self.frames: deque[tuple[int, int, bytes]] = deque()
        self.unsent = bytearray()
        self.written = 0
        self.proxy: Any = None
        self.input_paused = False
        self.lease = DEFAULT_LEASE
        self.heard = time.monotonic()
        self.settings: dict[str, Any] = {}
        self.workspace: Any = None
        self.roots: Any = None
        self.commands: Any = None
        self.operations = dict(FILE_OPERATIONS)

    # ── descriptors, timers, children ──

    def watch(self, descriptor: int, events: int, reaction: Reaction) -> None:
        """Call `reaction(events)` whenever the descriptor is ready."""
        self.reactions[descriptor] = reaction
        try:
            self.poll.register(descriptor, events)
        except OSError:
            # What can be watched so is counted by uid over the whole machine, and another box
            # may hold it all.
            self.slow_poll.register(descriptor, events)
            self.slow_poll.register(self.poll, select.POLLIN)
            self.slow.add(descriptor)

    def expect(self, descriptor: int, events: int) -> None:
        """Watch a descriptor, which is watched already, for other events."""
        (self.slow_poll if descriptor in self.slow else self.poll).modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        if self.reactions.pop(descriptor, None) is None:
            return
        if descriptor in self.slow:
            self.slow.remove(descriptor)
            self.slow_poll.unregister(descriptor)
        else:
            self.poll.unregister(descriptor)

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Call `action` once, later."""
        timer = Timer(time.monotonic() + seconds, action)
        heapq.heappush(self.timers, timer)
        return timer

    def drop(self, timer: Timer) -> None:
        """Forget a timer and all that its action holds; one that has fired is fine."""
        timer.action = None
        self.timers_off += 1
        if self.timers_off > 100 and self.timers_off > len(self.timers) // 2:
            self.timers = [timer for timer in self.timers if timer.action is not None]
            heapq.heapify(self.timers)
            self.timers_off = 0

    def run(self) -> None:
        """Serve until the stream ends."""
        wake, self._wake_sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_sink, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        self.watch(wake, select.EPOLLIN, lambda events: self._on_children(wake))
        self.watch(self.source, select.EPOLLIN, self._on_input)
        self.after(1.0, self._check_lease)
        while True:
            self.step()

    def step(self) -> None:
        """One turn of the loop."""
        for descriptor, events in self._ready(self._patience()):
            reaction = self.reactions.get(descriptor)
            if reaction is not None and not self._survives(reaction, events):
                self.forget(descriptor)  # it would fail again at once, and for ever
        now = time.monotonic()
        while self.timers and self.timers[0].at <= now:
            action = heapq.heappop(self.timers).action
            if action is not None:
                self._survives(action)
        if self.runnable and len(self.unsent) <= PAUSE_INPUT:
            self._advance_tasks()

    def _ready(self, patience: float) -> list[tuple[int, int]]:
        """Descriptors that are ready and what for, after so many seconds at the most."""
        if not self.slow:
            return self.poll.poll(patience)
        ready = self.slow_poll.poll(patience * 1000 if patience >= 0 else None)
        mine = self.poll.fileno()
        return self.poll.poll(0) + [one for one in ready if one[0] != mine]

    def _survives(self, action: Callable[..., None], *arguments: int) -> bool:
        """Do something; a fault of ours in one call must not end all the others."""
        try:
            action(*arguments)
        except Exception as error:
            where = error.__traceback__
            while where is not None and where.tb_next is not None:
                where = where.tb_next
            line = where.tb_lineno if where is not None else 0
            sys.stderr.write(f"executor agent: {error!r:.500} at line {line}\n")
            return False
        return True

    def _patience(self) -> float:
        if self.runnable and len(self.unsent) <= PAUSE_INPUT:
            return 0
        return max(0.0, self.timers[0].at - time.monotonic()) if self.timers else -1

    def _on_children(self, wake: int) -> None:
        with suppress(BlockingIOError):
            os.read(wake, 4096)
        self.take_ended()

    def take_ended(self) -> None:
        """Reap, and tell whoever started them that they have ended."""
        for pid, status in processes.reap():
            ended = self.children.pop(pid, None)
            if ended is not None:  # otherwise an orphan, and reaping it was all
                self._survives(ended, status)

    # ── the stream ──

    def _on_input(self, events: int) -> None:
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end("the stream ended")
        self.heard = time.monotonic()
        try:
            self.frames += self.parser.feed(data)
        except FrameError as error:
            self.fatal(f"unreadable input: {error}")
        self._take_frames()

    def _take_frames(self) -> None:
        """Act on what was read, for as long as the host takes our answers."""
        try:
            while self.frames and len(self.unsent) <= PAUSE_INPUT:
                self._on_frame(*self.frames.popleft())
        except _UNREADABLE as error:
            self.fatal(f"unreadable input: {type(error).__name__}: {error}")

    def _on_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == frame.CALL:
            self._on_call(channel, json.loads(payload))
        elif kind == frame.PING:
            self.send(encode(frame.PONG, channel, payload))
        elif kind == frame.BODY:
            self._on_body(channel, payload)
        elif kind == frame.CANCEL:
            self._on_cancel(channel)
        elif kind == frame.CREDIT:
            call = self.calls.get(channel)
            if call is not None:
                call.credit += int(json.loads(payload)["bytes"])
        elif kind != frame.HELLO:
            self._carry().on_frame(kind, channel, payload)
        else:
            self._on_hello(json.loads(payload))

    def _on_hello(self, settings: dict[str, Any]) -> None:
        from .commands import Commands
        from .roots import Roots
        from .workspace import Workspace

        self.settings = settings
        self.lease = float(settings["lease"])
        self.workspace = Workspace(settings["root"])
        if "ripgrep" in settings:
            self.workspace.ripgrep = settings["ripgrep"]
        if "pdf" in settings:
            self.workspace.pdf = tuple(settings["pdf"])
        if "markup" in settings:
            self.workspace.markup = tuple(settings["markup"])
        self.roots = Roots(self.workspace, settings.get("roots", ()), settings.get("hidden", ()))
        self.commands = Commands(self, settings)
        if "proxy" in settings:
            try:
                self._carry().listen(int(settings["proxy"]))
            except OSError as error:
                self.fatal(f"the proxy's port {settings['proxy']} can't be listened on: {error}")

    def _carry(self) -> Any:
        """What carries connections; loaded when it is needed, as an idle box's memory is code."""
        if self.proxy is None:
            from .proxy import Proxy

            self.proxy = Proxy(self)
        return self.proxy

    def send(self, data: bytes) -> None:
        """Hand bytes to the host, now or when it takes them."""
        if self.unsent:
            self.unsent += data
        else:
            written = self._write(data)
            if written == len(data):
                return
            self.unsent += memoryview(data)[written:]
            self.watch(self.sink, select.EPOLLOUT, self._on_output)
        if len(self.unsent) > PAUSE_INPUT and not self.input_paused:
            self.input_paused = True
            self.forget(self.source)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            written = os.write(self.sink, data)
        except BlockingIOError:
            return 0
        except OSError:
            self.end("the host is gone")
        self.written += written
        return written

    def _on_output(self, events: int) -> None:
        with memoryview(self.unsent) as view, view[: 1 << 20] as piece:
            written = self._write(piece)  # type: ignore[arg-type]  # any buffer will do
        del self.unsent[:written]
        if not self.unsent:
            self.forget(self.sink)
        if self.proxy is not None:
            self.proxy.on_output()
        if self.input_paused and len(self.unsent) < PAUSE_INPUT // 4:
            self._take_frames()
        if self.input_paused and len(self.unsent) < PAUSE_INPUT // 4:
            self.input_paused = False
            self.watch(self.source, select.EPOLLIN, self._on_input)

    def _check_lease(self) -> None:
        """End when the host has been silent for too long.

        After a pause of the whole box the clock has moved but the pings wait unread, so
        what is pending is read before the lease is judged.
        """
        if time.monotonic() - self.heard > self.lease:
            self._on_input(0)
        if time.monotonic() - self.heard > self.lease:
            self.end(f"no word from the host for {self.lease:.0f} s")
        self.after(1.0, self._check_lease)

    def fatal(self, reason: str) -> NoReturn:
        """Say why and end: the host broke the protocol."""
        self._write(encode_json(frame.FATAL, 0, {"reason": reason[:1000]}))
        self.end(reason)

    def end(self, reason: str) -> NoReturn:
        """The loop is over. Process 1 takes every process of the box with it."""
        for call in list(self.calls.values()):
            call.abandon()
        if self.commands is not None and self.commands.servers is not None:
            self.commands.servers.abandon()
        processes.kill_everything()
        sys.stderr.write(f"executor agent: {reason}\n")
        os._exit(0)

    # ── calls ──

    def _on_call(self, channel: int, arguments: dict[str, Any]) -> None:
        if channel in self.calls or channel in self.incoming:
            raise FrameError(f"channel {channel} is in use")
        if self.workspace is None:
            raise FrameError("a call before HELLO")
        missing = int(arguments.pop("body", 0))
        if missing < 0:
            raise FrameError(f"an input of {missing} bytes")
        if not missing:
            self.start(channel, arguments, b"")
        elif missing > MAX_BODY or self.waiting_bytes + missing > MAX_WAITING:
            # The bytes still come; the channel takes and drops them.
            self.incoming[channel] = Incoming({}, missing)
            message = f"the input is too long: {MAX_BODY >> 20} MiB can be taken at a time"
            self.fail(channel, Failure("TOO_LARGE", message))
        else:
            self.waiting_bytes += missing
            self.incoming[channel] = Incoming(arguments, missing)

    def _on_body(self, channel: int, payload: bytes) -> None:
        incoming = self.incoming.get(channel)
        if incoming is None:
            return  # cancelled meanwhile
        incoming.missing -= len(payload)
        if incoming.arguments:
            incoming.body += payload
        if incoming.missing > 0:
            return
        del self.incoming[channel]
        if incoming.arguments:
            self.waiting_bytes -= len(incoming.body) + incoming.missing
            self.start(channel, incoming.arguments, bytes(incoming.body))

    def _on_cancel(self, channel: int) -> None:
        incoming = self.incoming.pop(channel, None)
        if incoming is not None and incoming.arguments:
            self.waiting_bytes -= len(incoming.body) + incoming.missing
            self.fail(channel, Failure("CANCELLED", "cancelled before it began"))
        call = self.calls.get(channel)
        if call is not None:
            call.cancel()

    def start(self, channel: int, arguments: dict[str, Any], body: bytes) -> None:
        """Take up a call: answer it, or keep it running."""
        try:
            name = arguments.pop("op")
            if name == "run":
                self.commands.start(channel, arguments, body)
                return
            if name == "shell":
                self.reply(channel, self.commands.describe(arguments))
                return
            if name == "fetch":
                self.reply(channel, *self.commands.fetch(arguments))
                return
            if name in BACKGROUND:
                self.commands.background(name)(channel, arguments, body)
                return
            if name in SERVERS:
                self.commands.serving().operations[name](channel, arguments)
                return
            workspace = self.roots.place(name, arguments)
            if arguments.get("rules") is not None:
                from .restrictions import bound

                workspace = bound(workspace, arguments["rules"])
            outcome = self._operation(name)(workspace, arguments, body)
            if isinstance(outcome, tuple):
                self.reply(channel, *outcome)
                return
            task = Task(self, channel, outcome, workspace.root)
            self.calls[channel] = task
            self.runnable.append(task)
        except Exception as error:  # one faulty call must not end the box
            self.fail(channel, as_failure(error))

    def _operation(self, name: str) -> Any:
        operation = self.operations.get(name)
        if operation is None:
            # On first use: most of an idle box's memory is code.
            if name in RICH:
                from .markup import OPERATIONS as MARKUP
                from .notebooks import OPERATIONS
                from .pages import OPERATIONS as PAGES

                self.operations.update(OPERATIONS | PAGES | MARKUP)
            elif name == "sweep":
                from .sweep import OPERATIONS as SWEEP

                self.operations.update(SWEEP)
            else:
                from .restrictions import OPERATIONS as RESTRICTIONS
                from .search import OPERATIONS

                self.operations.update(OPERATIONS | RESTRICTIONS)
            operation = self.operations.get(name)
        if operation is None:
            raise Failure("INTERNAL", f"unknown operation {name!r}")
        return operation

    def reply(self, channel: int, value: dict[str, Any], data: bytes = b"") -> None:
        """End a call with its answer."""
        self.calls.pop(channel, None)
        try:
            tail = encode_json(frame.REPLY, channel, {"ok": value})
        except FrameError as error:
            self.fail(channel, Failure("INTERNAL", f"the answer is too long: {error}"))
            return
        if len(data) <= frame.MAX_PAYLOAD:
            self.send(encode(frame.DATA, channel, data) + tail if data else tail)
            return
        for piece in frame.split(data):
            self.send(encode(frame.DATA, channel, piece))
        self.send(tail)

    def fail(self, channel: int, failure: Failure) -> None:
        """End a call with an error."""
        self.calls.pop(channel, None)
        error = {"code": failure.code, "message": failure.message, "details": failure.details}
        try:
            reply = encode_json(frame.REPLY, channel, {"error": error})
        except FrameError:
            error |= {"message": failure.message[:2000], "details": None}
            reply = encode_json(frame.REPLY, channel, {"error": error})
        self.send(reply)

    # ── operations that take several steps ──

    def _advance_tasks(self) -> None:
        until = time.monotonic() + SLICE
        while self.runnable and time.monotonic() < until:
            task = self.runnable.pop(0)
            if task.advance() and not task.is_waiting:
                self.runnable.append(task)


class Task:
    """An operation that gives way, and the program that it may be running."""

    def __init__(self, service: Service, channel: int, steps: Steps, directory: str) -> None:
        self.service = service
        self.channel = channel
        self.directory = directory
        self.steps: Generator[Any, Any, Any] = steps
        self.credit = 0
        self.is_waiting = False
        self.pid = 0
        self.out = self.err = -1
        self.stderr = b""
        self.status: int | None = None
        self.value: bytes | Exit | None = None

    def advance(self) -> bool:
        """Run to the next yield; False when the operation is over."""
        value, self.value = self.value, None
        try:
            request = self.steps.send(value)
        except StopIteration as stop:
            reply, data = stop.value
            self._finish(lambda: self.service.reply(self.channel, reply, data))
            return False
        except Exception as error:
            failure = as_failure(error)
            self._finish(lambda: self.service.fail(self.channel, failure))
            return False
        if isinstance(request, Command):
            return self._start(request)
        if self.pid:
            self._next_piece()
        return True

    def cancel(self) -> None:
        """End the operation and answer that it was cancelled."""
        failure = Failure("CANCELLED", "cancelled")
        self._finish(lambda: self.service.fail(self.channel, failure))

    def abandon(self) -> None:
        """The box ends: let the operation clean up."""
        self.steps.close()

    def _finish(self, answer: Callable[[], None]) -> None:
        if self in self.service.runnable:
            self.service.runnable.remove(self)
        self.is_waiting = True
        self.steps.close()
        if self.pid and self.status is None:
            processes.send(self.pid, signal.SIGKILL)
            self.service.children[self.pid] = _nothing_more
        self._close_pipes()
        answer()

    def _close_pipes(self) -> None:
        for descriptor in (self.out, self.err):
            if descriptor >= 0:
                self.service.forget(descriptor)
                os.close(descriptor)
        self.out = self.err = -1

    def _start(self, command: Command) -> bool:
        self._close_pipes()
        self.status, self.stderr = None, b""
        self.out, out = os.pipe2(os.O_CLOEXEC)
        self.err, err = os.pipe2(os.O_CLOEXEC)
        try:
            environment = {"PATH": os.defpath, "LANG": "C.UTF-8"}
            argv = command.argv
            self.pid = processes.spawn(
                argv[0], argv, environment, self.directory, out, err, command.source, command.files
            )
        except OSError as error:
            failure = processes.start_failure(error, os.path.basename(command.argv[0]))
            self.pid = 0
            self._finish(lambda: self.service.fail(self.channel, failure))
            return False
        finally:
            os.close(out)
            os.close(err)
        os.set_blocking(self.out, False)
        os.set_blocking(self.err, False)
        self.service.children[self.pid] = self._on_exit
        self.service.watch(self.err, select.EPOLLIN, self._on_stderr)
        self._next_piece()
        return True

    def _next_piece(self) -> None:
        """Have the next output, or wait for it."""
        if self.out < 0 and self.status is None:
            self.is_waiting = True
            return
        if self.out < 0:
            self.value = Exit(self.status or 0, self.stderr)
            self.pid = 0
            return
        try:
            piece = os.read(self.out, CHUNK)
        except BlockingIOError:
            self.is_waiting = True
            if self.out not in self.service.reactions:
                self.service.watch(self.out, select.EPOLLIN, self._on_stdout)
            return
        if piece:
            self.value = piece
            return
        self.service.forget(self.out)
        os.close(self.out)
        self.out = -1
        self._next_piece()

    def _resume(self) -> None:
        self.is_waiting = False
        self._next_piece()
        if not self.is_waiting:
            self.service.runnable.append(self)

    def _on_stdout(self, events: int) -> None:
        self.service.forget(self.out)
        self._resume()

    def _on_stderr(self, events: int) -> None:
        try:
            piece = os.read(self.err, CHUNK)
        except BlockingIOError:
            return
        self.stderr = (self.stderr + piece)[: 64 << 10]
        if not piece:
            self.service.forget(self.err)
            os.close(self.err)
            self.err = -1

    def _on_exit(self, status: int) -> None:
        self.status = status
        if self.err >= 0:
            self._on_stderr(0)
        if self.is_waiting and self.out < 0:
            self._resume()


def as_failure(error: Exception) -> Failure:
    """Any exception of an operation as the error that the host is told."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, (KeyError, TypeError, ValueError)):
        return Failure("INTERNAL", f"the agent could not use the arguments: {error!r}"[:500])
    return Failure("INTERNAL", f"the agent failed: {error!r}"[:500])


def _nothing(number: int, stack: Any) -> None:
    """A handler must exist for the wake-up descriptor to be written."""


def _nothing_more(status: int) -> None:
    """The process was ended on purpose; nobody asks for its status."""


def _identity(path: str) -> list[int] | None:
    """Device and inode: the host compares them with what it meant to be mounted."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_dev, status.st_ino]


def _mounted() -> list[str]:
    """Where the host has mounted what it looks at again."""
    found = ["/workspace", "/etc/passwd"]
    for place, most in ((DIRECTORIES, MAX_DIRECTORIES), (STORES, MAX_STORES)):
        try:
            found += [f"{place}/{name}" for name in sorted(os.listdir(place))[:most]]
        except OSError:
            continue
    return found


def _content_hash() -> str:
    try:
        with open(RUNTIME + "/hash", encoding="ascii") as file:
            return file.read(200).strip()
    except OSError:
        return ""


def serve(source: int, sink: int) -> None:
    """Say READY and serve the host until its stream ends."""
    os.umask(0o022)
    os.chdir("/")
    service = Service(source, sink)
    version = ".".join(map(str, sys.version_info[:3]))
    ready: dict[str, Any] = {"hash": _content_hash(), "pid": os.getpid(), "python": version}
    ready["mounted"] = {path: _identity(path) for path in _mounted()}
    ready["filtered"], ready["confined"] = confine()
    service.send(encode_json(frame.READY, 0, ready))
    # While the host reads READY, load what its first frame needs.
    from .commands import Commands  # noqa: F401
    from .roots import Roots  # noqa: F401
    from .workspace import Workspace  # noqa: F401

    # Calls are freed by counting references; looking for cycles between them would cost
    # a fifth of a call. What is there now stays, and growth is still looked at.
    gc.freeze()
    gc.set_threshold(20_000)
    service.run()
