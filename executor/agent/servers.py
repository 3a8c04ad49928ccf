"""Servers: programs that the host speaks to over their stdin and stdout.

A server is none of the calls: no call's end ends it, and nothing of it counts as left running.
What it prints waits in its pipe until the host takes it; the last that it says on stderr is kept
here. It ends when the host wants it to, with everything that it started, or with the box. Loaded
on first use.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time

from . import processes
from .commands import CHUNK, USUAL, Commands, Job, program_of
from .frame import WINDOW
from .operation import Failure
from .proxy import Carried, Proxy, granting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_SERVERS = 16
"""Servers of one box, those included that have ended and whose end nobody has asked for."""
MAX_STDERR = 64 << 10
"""Bytes of stderr that are kept of each; the host takes no more."""
DEAF = 0.1
"""Seconds in which the output of a server that has closed its stdin should have ended, too."""
_OUT_OF_MEMORY = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""How a server ends that was killed for memory, and how a script does whose program was."""


class Server:
    """One server: its process, the pipes, and what became of it."""

    def __init__(self, commands: Commands, number: int) -> None:
        self.commands = commands
        self.service = commands.service
        self.number = number
        self.stdin = self.stdout = self.stderr = -1
        self.said = bytearray()
        self.status: int | None = None
        self.owner: processes.Owner | None = None
        self.kills_before = commands.kills()
        self.is_out_of_memory = False
        self.ending: Ending | None = None
        self.is_carried = self.was_carried = self.is_freed = False

    # ── start ──

    def start(self, arguments: dict[str, Any]) -> None:
        """Spawn it.

        Raises:
            Failure: it could not be started.
        """
        commands = self.commands
        directory = commands.enter(arguments["cwd"] or ".", [])
        marker = f"{commands.box}-server-{self.number}"
        environment = {processes.MARKER: marker, **commands.environment, "PWD": directory}
        environment |= {**arguments["environment"], processes.MARKER: marker}
        argv: list[str] = [*arguments["argv"]]
        if "/" in argv[0]:
            argv[0] = os.path.join(directory, argv[0])
        own = commands.environment.get("PATH", os.defpath)
        program = program_of(argv, f"{environment.get('PATH', own)}:{own}:{USUAL}")
        began = processes.now_in_ticks()
        try:
            pid = self._spawn(program, argv, environment, directory)
        except OSError as error:
            raise processes.start_failure(error, os.path.basename(argv[0])) from error
        self.owner = processes.Owner(pid, marker, began)
        self.service.children[pid] = self._on_exit
        self.service.watch(self.stderr, select.EPOLLIN, self._on_stderr)
        if commands.sockets is not None:
            commands.sockets.soon()

    def _spawn(
        self, program: str, argv: list[str], environment: dict[str, str], directory: str
    ) -> int:
        source, self.stdin = os.pipe2(os.O_CLOEXEC)
        theirs = [source]
        try:
            self.stdout, out = os.pipe2(os.O_CLOEXEC)
            theirs.append(out)
            self.stderr, err = os.pipe2(os.O_CLOEXEC)
            theirs.append(err)
            for descriptor in (self.stdin, self.stdout, self.stderr):
                os.set_blocking(descriptor, False)
            return processes.spawn(program, argv, environment, directory, out, err, source)
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    # ── what it says ──

    def _on_stderr(self, events: int) -> None:
        self._read_stderr()

    def _read_stderr(self) -> int:
        """Take one piece of it; its size, 0 where there is none."""
        if self.stderr < 0:
            return 0
        try:
            data = os.read(self.stderr, CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._close_stderr()
        self.said += data
        if len(self.said) > MAX_STDERR:
            del self.said[:-MAX_STDERR]
        return len(data)

    def _close_stderr(self) -> None:
        if self.stderr >= 0:
            self.service.forget(self.stderr)
            os.close(self.stderr)
            self.stderr = -1

    def state(self) -> tuple[dict[str, Any], bytes]:
        """How it is, and the last that it said."""
        room = 1 << 20  # what it wrote before its end is in the pipe, and no more than this
        while room > 0 and (size := self._read_stderr()):
            room -= size
        status = self.status
        is_signal = status is not None and status < 0
        return {
            "running": status is None,
            "exit_code": None if is_signal else status,
            "signal": processes.signal_name(-status) if status is not None and is_signal else None,
            "oom": self.is_out_of_memory,
        }, bytes(self.said)

    # ── end ──

    def _on_exit(self, status: int) -> None:
        self.status = status
        # The host may want its end as soon as its output ends, which is before this is known.
        is_ours = self.ending is not None and time.monotonic() >= self.ending.kill_at
        if status in _OUT_OF_MEMORY and not is_ours:
            self.is_out_of_memory = self.commands.kills() > self.kills_before
        if self.ending is not None:
            self.ending.has_exited(status)

    def close_input(self) -> None:
        """It is told that no more comes. What its pipe still holds it may read."""
        if self.stdin >= 0:
            self.service.forget(self.stdin)
            os.close(self.stdin)
            self.stdin = -1

    def close_output(self) -> None:
        """Nobody will read what it prints from now on."""
        if self.stdout >= 0:
            self.service.forget(self.stdout)
            os.close(self.stdout)
            self.stdout = -1

    def free(self) -> None:
        """Nothing of it is left. The host may still take what it has printed."""
        self.is_freed = True
        self._close_stderr()
        self.close_input()
        if not self.is_carried:
            self.close_output()


class Piped(Carried):
    """The connection of the host with one server. When it is aborted the server goes on."""

    __slots__ = ("server", "watches_in", "watches_out")

    def __init__(self, proxy: Proxy, number: int, server: Server) -> None:
        super().__init__(proxy, number, 0)
        self.server = server
        self.watches_in = self.watches_out = False
        server.is_carried = server.was_carried = True
        self._expect()

    def _receive(self, size: int) -> bytes:
        return os.read(self.server.stdout, size)

    def _put(self, data: bytes | memoryview) -> int:
        """What it no longer takes is lost; the host is told once it has had all output."""
        if self.server.stdin < 0:
            return len(data)
        try:
            return os.write(self.server.stdin, data)
        except BrokenPipeError:
            self._stop_watching(output=False)
            self.server.close_input()
            self.proxy.service.after(DEAF, self._tell_deaf)
            return len(data)

    def _say_end(self) -> None:
        self._stop_watching(output=False)
        self.server.close_input()

    def _expect(self) -> None:
        if self.is_closed:
            return
        # A pipe whose other end is closed is ready for ever, so each is watched only if wanted.
        service, server = self.proxy.service, self.server
        wants_out = self._wants_input()
        if wants_out is not self.watches_out:
            self.watches_out = wants_out
            if wants_out:
                service.watch(server.stdout, select.EPOLLIN, self.on_ready)
            else:
                service.forget(server.stdout)
        if self.pending and server.stdin < 0:
            self.pending.clear()
            self._end_output()
        if self.is_closed:
            return
        wants_in = bool(self.pending)
        if wants_in is not self.watches_in:
            self.watches_in = wants_in
            if wants_in:
                service.watch(server.stdin, select.EPOLLOUT, self._on_room)
            elif server.stdin >= 0:
                service.forget(server.stdin)

    def _on_room(self, events: int) -> None:
        self.on_ready(select.EPOLLOUT)

    def _tell_deaf(self) -> None:
        """Its stdin is closed. What it has printed comes first, and its end may follow."""
        if self.is_closed or self.is_shut:
            return
        if self.has_read_all or not self._has_output():
            self._fail(OSError(errno.EPIPE, "it reads no more"))
        else:
            self.proxy.service.after(DEAF, self._tell_deaf)

    def _has_output(self) -> bool:
        """Something, be it the end, is to be read."""
        poll = select.poll()
        poll.register(self.server.stdout, select.POLLIN)
        return bool(poll.poll(0))

    def _stop_watching(self, *, output: bool = True) -> None:
        service, server = self.proxy.service, self.server
        if self.watches_in and server.stdin >= 0:
            service.forget(server.stdin)
        self.watches_in = False
        if output and self.watches_out:
            service.forget(server.stdout)
            self.watches_out = False

    def close(self, *, is_reset: bool = False) -> None:
        """Let go of the pipes. A server that goes on keeps them, else its next word would end it.

        What it prints then waits in its pipe for ever, and it with it.
        """
        self.is_closed = True
        self._stop_watching()
        self.pending.clear()
        self.server.is_carried = False
        if not is_reset or self.server.is_freed:
            self.server.close_input()
            self.server.close_output()


class Ending(Job):
    """The end of a server and of all that it started.

    Args:
        server: which one.
        channel: of the call that wants it ended.
        grace: seconds between TERM and KILL.
    """

    def __init__(self, server: Server, channel: int, grace: float) -> None:
        super().__init__(server.commands, channel, {"head": 0, "tail": 0, "grace": grace})
        self.server = server
        self.status = server.status
        self.owner = server.owner

    def begin(self) -> None:
        """Close its stdin, and ask its processes to end."""
        self.server.ending = self
        self.server.close_input()
        self.service.calls[self.channel] = self
        self.commands.jobs[self.channel] = self
        self.stop("end")

    def has_exited(self, status: int) -> None:
        """The server's own process is gone; what it started may not be."""
        self.status = status
        self.commands.sweep_after(0)

    def _finish(self) -> None:
        del self.commands.jobs[self.channel]
        self.commands.ending.pop(self.channel, None)
        server = self.server
        if server.status is None:  # stuck in the kernel, with the signal that ends it
            server.status = -signal.SIGKILL
        value, data = server.state()
        self.commands.servers.forget(server)
        self.service.reply(self.channel, value, data)


class Servers:
    """The servers of one box."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._service = commands.service
        self._servers: dict[int, Server] = {}
        self._last = 0
        self.operations: dict[str, Callable[[int, dict[str, Any]], None]] = {
            "serve": self._serve,
            "server_state": self._state,
            "server_end": self._end,
        }

    def owners(self) -> list[processes.Owner]:
        """Whose processes are no call's."""
        return [owner for one in self._servers.values() if (owner := one.owner) is not None]

    def forget(self, server: Server) -> None:
        """Nothing of it is left."""
        del self._servers[server.number]
        server.free()

    def abandon(self) -> None:
        """The box ends."""
        for owner in self.owners():
            self._commands.abandon(owner)

    def carry(self, proxy: Proxy, number: int, wanted: int) -> None:
        """Have a connection of the host carry the pipes of a server; once for each."""
        server = self._servers.get(wanted)
        if server is None or server.was_carried:
            what = "there is no such server" if server is None else "it is carried already"
            proxy.refuse(number, what)
            return
        self._service.send(granting(number, WINDOW))
        proxy.carried[number] = Piped(proxy, number, server)

    def _serve(self, channel: int, arguments: dict[str, Any]) -> None:
        if len(self._servers) >= MAX_SERVERS:
            raise Failure(
                "LIMIT", f"{MAX_SERVERS} servers have been started in this box; end one of them"
            )
        self._last += 1
        server = Server(self._commands, self._last)
        try:
            server.start(arguments)
        except BaseException:
            server.free()
            raise
        self._servers[server.number] = server
        self._service.reply(channel, {"server": server.number})

    def _one(self, arguments: dict[str, Any]) -> Server:
        server = self._servers.get(int(arguments["server"]))
        if server is None:
            raise Failure("NOT_FOUND", "there is no such server in this box")
        return server

    def _state(self, channel: int, arguments: dict[str, Any]) -> None:
        self._service.reply(channel, *self._one(arguments).state())

    def _end(self, channel: int, arguments: dict[str, Any]) -> None:
        server = self._one(arguments)
        if server.ending is not None:
            raise Failure("CONFLICT", "it is being ended already")
        Ending(server, channel, float(arguments["grace"])).begin()
