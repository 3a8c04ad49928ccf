"""A person's shell in the box: a process of its own beside the agent.

The engine starts it, with the person's input as its own, in frames: HELLO (JSON: what to
start), BODY (what is typed; an empty one = nothing more comes), CALL (JSON: the window's
new size). Its output is the shell's. With a size in HELLO the shell gets a terminal,
otherwise pipes.

All that the shell starts ends with it: orphans come here, not to the agent, and when the
shell has ended or the person is gone nothing of it is left.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import suppress

from . import frame, processes
from .commands import SHELL_LESS, find_shell
from .confinement import confine, is_bound
from .operation import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

CHUNK = 1 << 16
MAX_HELD = 1 << 20
"""Bytes that wait for the shell or for the person; then the other side has to wait."""
GRACE = 0.5
"""Seconds that what the shell has started may take to end by itself."""
GIVE_UP = 3.0
HUNG_UP = 128 + signal.SIGHUP
NO_SHELL = 127
TERMINFO = ("/lib/terminfo", "/usr/share/terminfo", "/etc/terminfo")
COMMON = "xterm"
"""What an image knows that knows any terminal."""

_TIOCSWINSZ = 0x5414  # of Linux on the machines that we run on; saves loading termios
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL


class _Way:
    """Bytes from one descriptor to another, with at most about `MAX_HELD` under way."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.sink = sink
        self.held = bytearray()

    def read(self) -> bool:
        """Take what is there now; False at the end."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # EIO: nobody has the terminal open any more
            data = b""
        self.held += data
        return bool(data)

    def write(self) -> bool:
        """Hand on what is taken now; False when the other side is gone."""
        try:
            del self.held[: os.write(self.sink, self.held)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True


class Terminal:
    """The shell and the ways to and from it.

    Args:
        source, sink: what the person sends, in frames, and where output goes.
        errors: where the shell's second stream goes, when it has pipes.
    """

    def __init__(self, source: int, sink: int, errors: int) -> None:
        self.source = source
        self.sink = sink
        self.errors = errors
        self.parser = frame.Parser(frame.TO_AGENT)
        self.pid = 0
        self.shell = -1
        self.has_window = False
        self.input_ends = False
        self.status: int | None = None
        self.way_in = _Way(-1, -1)
        self.ways_out: list[_Way] = []
        self.wake, wake_sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_sink, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, stack: None)

    def run(self) -> int:
        """Serve until the shell has ended; its exit code."""
        while self.status is None:
            if not self._step():
                self._end_everything(GRACE)
                return HUNG_UP
        self._end_everything(GRACE)
        self._deliver_rest()
        return self.status if self.status >= 0 else 128 - self.status

    # ── start ──

    def _start(self, settings: dict[str, Any]) -> None:
        environment: dict[str, str] = settings["environment"]
        path = environment.get("PATH", os.defpath)
        program = find_shell(path)
        if program is None:
            raise Failure("UNSUPPORTED", SHELL_LESS)
        environment["SHELL"] = program
        if "TERM" in environment and not _is_known(environment["TERM"]):
            environment["TERM"] = COMMON
        directory = settings["directory"]
        with suppress(OSError):  # of the worktree only the name may be left
            os.chdir(directory)
            environment["PWD"] = directory
        start = self._start_on_terminal if settings.get("size") else self._start_on_pipes
        try:
            self.pid = start(program, environment, settings)
        except OSError as error:
            raise processes.start_failure(error, os.path.basename(program)) from error
        processes.prefer_as_victim(self.pid)

    def _start_on_terminal(
        self, program: str, environment: dict[str, str], settings: dict[str, Any]
    ) -> int:
        near, far = os.openpty()
        self.has_window = True
        self.shell = near
        self._resize(settings["size"])
        os.set_blocking(near, False)
        self.way_in = _Way(-1, near)
        self.ways_out = [_Way(near, self.sink)]
        # The first terminal that the leader of a session opens becomes the session's own.
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.ttyname(far), os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]
        try:
            return self._spawn(program, environment, actions)
        finally:
            os.close(far)

    def _start_on_pipes(
        self, program: str, environment: dict[str, str], settings: dict[str, Any]
    ) -> int:
        read, self.shell = os.pipe2(os.O_CLOEXEC)
        out, out_sink = os.pipe2(os.O_CLOEXEC)
        err, err_sink = os.pipe2(os.O_CLOEXEC)
        for descriptor in (self.shell, out, err):
            os.set_blocking(descriptor, False)
        self.way_in = _Way(-1, self.shell)
        self.ways_out = [_Way(out, self.sink), _Way(err, self.errors)]
        actions = [
            (os.POSIX_SPAWN_DUP2, read, 0),
            (os.POSIX_SPAWN_DUP2, out_sink, 1),
            (os.POSIX_SPAWN_DUP2, err_sink, 2),
        ]
        try:
            return self._spawn(program, environment, actions)
        finally:
            for descriptor in (read, out_sink, err_sink):
                os.close(descriptor)

    def _spawn(self, program: str, environment: dict[str, str], actions: list[Any]) -> int:
        return os.posix_spawn(
            program,
            [os.path.basename(program)],
            environment,
            file_actions=actions,
            setsid=True,
            setsigdef=processes.RESET,
        )

    def _resize(self, size: list[int]) -> None:
        import fcntl
        import struct

        rows, columns = (min(max(int(number), 1), 0xFFFF) for number in size)
        with suppress(OSError):
            fcntl.ioctl(self.shell, _TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    # ── one turn ──

    def _step(self) -> bool:
        """Wait for something and do it; False when the person is gone."""
        poll = select.poll()
        is_full = len(self.way_in.held) > MAX_HELD
        poll.register(self.source, 0 if is_full else select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        wanted: dict[int, int] = {}
        if self.way_in.held:
            wanted[self.way_in.sink] = select.POLLOUT
        for way in self.ways_out:
            if len(way.held) <= MAX_HELD:
                wanted[way.source] = wanted.get(way.source, 0) | select.POLLIN
            if way.held:
                wanted[way.sink] = select.POLLOUT
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ready = dict(poll.poll())
        self._reap(ready)
        if not self._move(ready):
            return False
        return self._listen(ready)

    def _reap(self, ready: dict[int, int]) -> None:
        if self.wake not in ready:
            return
        with suppress(BlockingIOError):
            os.read(self.wake, 4096)
        for pid, status in processes.reap():
            if pid == self.pid:
                self.status = status

    def _move(self, ready: dict[int, int]) -> bool:
        for way in list(self.ways_out):
            if way.source in ready and ready[way.source] & ~select.POLLOUT and not way.read():
                self.ways_out.remove(way)
                self._flush(way)
            if way.held and way.sink in ready and not way.write():
                return False
        if self.way_in.held and self.way_in.sink in ready and not self.way_in.write():
            self.way_in.held.clear()  # the shell reads no more
        if self.input_ends and not self.way_in.held and self.shell >= 0:
            self._close_input()
        return True

    def _close_input(self) -> None:
        if self.has_window:
            return  # the terminal is the output's too
        os.close(self.shell)
        self.shell = -1
        self.input_ends = False

    def _listen(self, ready: dict[int, int]) -> bool:
        """Take the person's frames; False when there is nobody any more."""
        events = ready.get(self.source, 0)
        if not events & select.POLLIN:
            return not events & _GONE
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for kind, _, payload in self.parser.feed(data):
            self._on_frame(kind, payload)
        return bool(data)

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == frame.HELLO and not self.pid:
            self._start(json.loads(payload))
        elif kind == frame.BODY and self.shell >= 0:
            self.way_in.held += payload
            self.input_ends = self.input_ends or not payload
            if self.input_ends and not self.way_in.held:
                self._close_input()
        elif kind == frame.CALL and self.has_window:
            self._resize(json.loads(payload)["size"])

    # ── end ──

    def _end_everything(self, grace: float) -> None:
        """HUP to all that is left of the shell, then KILL; bounded."""
        began = time.monotonic()
        is_asked = False
        while True:
            processes.reap()
            left = _descendants()
            now = time.monotonic()
            if not left or now > began + GIVE_UP:
                return
            for pid in left:
                if now > began + grace:
                    processes.send(pid, signal.SIGKILL)
                elif not is_asked:
                    processes.send(pid, signal.SIGHUP)
                    processes.send(pid, signal.SIGCONT)
            is_asked = True
            select.select([self.wake], [], [], 0.02)
            with suppress(BlockingIOError):
                os.read(self.wake, 4096)

    def _deliver_rest(self) -> None:
        """What was printed before the end is in the pipes: at most a pipe's size."""
        for way in self.ways_out:
            room = MAX_HELD
            while room > 0:
                before = len(way.held)
                is_open = way.read()
                room -= len(way.held) - before
                if not is_open or len(way.held) == before:
                    break
            self._flush(way)

    def _flush(self, way: _Way) -> None:
        """Hand on what is held, for as long as the person is there."""
        poll = select.poll()
        poll.register(way.sink, select.POLLOUT)
        poll.register(self.source, 0)
        while way.held:
            ready = dict(poll.poll())
            if ready.get(self.source, 0) & _GONE or not way.write():
                return


def _is_known(name: str) -> bool:
    """Whether the image knows this kind of terminal."""
    folders = (f"{name[:1]}", f"{ord(name[0]):x}") if name and "/" not in name else ()
    return any(
        os.path.exists(f"{place}/{folder}/{name}") for place in TERMINFO for folder in folders
    )


def _descendants() -> list[int]:
    """All processes that come from this one."""
    found = processes.scan()
    own = os.getpid()
    verdicts = {own: True}
    for start in found:
        line = []
        pid = start
        while pid in found and pid not in verdicts and pid not in line:
            line.append(pid)
            pid = found[pid].parent
        verdicts.update(dict.fromkeys(line, verdicts.get(pid, False)))
    return [pid for pid in found if verdicts[pid]]


def serve(source: int, sink: int) -> NoReturn:
    """The whole of it; ends this process with the shell's exit code."""
    # Not blocking, like the other two: who reads slowly holds up only what is printed.
    os.set_blocking(2, False)
    try:
        if is_bound() and not confine()[1]:
            raise Failure("UNSUPPORTED", "it could make namespaces and mounts")
        code = Terminal(source, sink, 2).run()
    except (Failure, frame.FrameError, ValueError, KeyError, TypeError) as error:
        with suppress(OSError):
            os.write(2, f"executor: the shell could not be started: {error}\n".encode())
        code = NO_SHELL
    os._exit(code)
