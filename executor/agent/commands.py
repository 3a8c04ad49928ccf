"""Commands of the loop: start, output, end, and what became of them."""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import time
from contextlib import suppress

from . import counters, frame, processes, sockets
from .frame import encode
from .operation import RUNTIME, Failure
from .spool import SHELF_LIFE, Shelf, Shelved, Spool
from .workspace import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .service import Timer

CHUNK = 1 << 16
MAX_ARGUMENT = 100_000
"""Bytes. The kernel takes 131,071 in one argument; longer commands go by a file."""
MAX_PIECE = 1 << 20
"""Bytes of an ended command's output that are sent at a time."""
LIVE_CREDIT = 1 << 20
"""Bytes of live output that a call may send before the host says that it takes more."""
STAND_INS = {"python3": RUNTIME + "/bin/python3", "bash": "sh"}
"""What serves where an image has no such interpreter; the result names what ran."""
USUAL = "/bin:/usr/bin:/usr/local/bin"
"""Where interpreters are, whatever an image's PATH leads to."""
SHELL_LESS = (
    "this image has no shell, neither bash nor sh; run_code with python and the file tools need "
    "none, and for commands the loop needs another image"
)
MAX_PROGRAMS = 64
"""Programs that may be asked for at a time."""
MAX_DRAINS = 256
"""Pipes held open by background processes of ended calls."""
FORBIDDEN = "may not be entered"
SETTLE = 0.02
"""Seconds between two looks at what is left of a call that is being ended."""
COALESCE = 0.002
"""Seconds in which the ends of several processes lead to one look."""
MAX_DOUBTS = 5
"""Looks that may miss or find something after the KILL before everything is frozen."""
MIN_FREEZES = 2
"""Times that everything is stopped for a call before it may be answered with something left."""
GIVE_UP = 5.0
"""Seconds after the KILL that a process in uninterruptible sleep may hold up the answer."""

_PLAIN = re.compile(r"[A-Za-z0-9_./=:,+@%|&;<> \t\n-]*")
_MOVES = re.compile(
    r"(?:^|[\s;&|])(?:cd|pushd|popd|eval|source|\.|exec|builtin|command)(?:$|[\s;&|<>])"
)


def changes_directory(command: str) -> bool:
    """Whether a shell command could end in another directory than it began in.

    False only for plain words: anything quoted, expanded or grouped may hide a `cd`.
    Asking the shell for its directory at the end costs about a third of a `true`.
    """
    return not _PLAIN.fullmatch(command) or _MOVES.search(command) is not None


_REFUSED_FORK = re.compile(rb"fork\b.*Resource temporarily unavailable")
"""What shells say at the process limit, where the kernel counts no refusals."""
_WORDS = re.compile(r"[A-Za-z0-9_./+][A-Za-z0-9_./:,+@%-]*(?: +[A-Za-z0-9_./=:,+@%-]+)*")
_SHELL_WORDS = frozenset(
    re.findall(
        r"\S+",
        ". : alias bg bind break builtin caller case cd command compgen complete compopt continue "
        "coproc declare dirs disown do done echo elif else enable esac eval exec exit export fc fg "
        "fi for function getopts hash help history if in jobs kill let local logout mapfile popd "
        "printf pushd pwd read readarray readonly return select set shift shopt source suspend "
        "test then time times trap type typeset ulimit umask unalias unset until wait while",
    )
)


def one_program(command: str) -> list[str] | None:
    """The words of a command that starts one program and needs no shell for it.

    A shell would only split it at the spaces and step aside, for about a millisecond.
    None for whatever it could read in another way: quotes, expansions, operators,
    assignments, its own words.
    """
    if not _WORDS.fullmatch(command):
        return None
    words = command.split(" ")
    if words[0] in _SHELL_WORDS or (words[0] in ("true", "false") and len(words) > 1):
        return None
    return [word for word in words if word]


def find_program(name: str, path: str) -> str | None:
    """The file that `name` means, by `path`; relative entries of it are not looked at."""
    if "/" in name:
        return name if _is_program(name) else None
    for folder in path.split(":"):
        candidate = f"{folder}/{name}"
        if folder.startswith("/") and _is_program(candidate):
            return candidate
    return None


def program_of(argv: list[str], path: str) -> str:
    """The file of a program, or of what stands in for it, which then names itself in `argv`.

    Raises:
        Failure: NOT_FOUND, there is none.
    """
    program = find_program(argv[0], path)
    if program is None and argv[0] in STAND_INS:
        program = find_program(STAND_INS[argv[0]], path)
        if program is not None:
            # busybox is what it is called, and no bash.
            argv[0] = os.path.basename(program)
    if program is None:
        raise Failure("NOT_FOUND", f"{argv[0]}: there is no such program in this image")
    return program


def find_shell(path: str) -> str | None:
    """bash, or else sh: by `path`, or where they usually are; an image's may lead nowhere."""
    return next(
        (
            program
            for places in (path, USUAL)
            for name in ("bash", "sh")
            if (program := find_program(name, places))
        ),
        None,
    )


def _real(directory: str) -> str:
    """Where a directory is, without links. A `realpath` of a deep one takes seconds."""
    try:
        handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return directory
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


class Commands:
    """What commands of one loop share: directory, environment, shell."""

    def __init__(self, service: Any, settings: dict[str, Any]) -> None:
        self.service = service
        self.root: str = settings["root"]
        self.scratch: str = settings["scratch"]
        self.box: str = settings["box"]
        self.environment: dict[str, str] = settings["environment"]
        self.cwd: str = self.root
        self.jobs: dict[int, Job] = {}
        self.ending: dict[int, Job] = {}
        self.last_channel = 0
        self.attribution = processes.Attribution(self.box)
        self.sweep_timer: Timer | None = None
        self.drains: list[int] = []
        self.shelf = Shelf()
        self.tasks: Any = None
        self.waiting = 0
        self.servers: Any = None
        self.memory_kills = counters.memory_kills()
        self.refused_forks = counters.refused_forks()
        self.kills_for_sockets = 0
        self.sockets: sockets.Watch | None = None
        if processes.IS_INIT and "memory" in settings and sockets.are_told():
            self.sockets = sockets.Watch(service, int(settings["memory"]), self._end_all)
        path = self.environment.get("PATH", os.defpath)
        self.shell = find_shell(path)
        if self.shell is not None:
            self.environment["SHELL"] = self.shell

    def background(self, name: str) -> Any:
        """What does an operation of the background."""
        if self.tasks is None:
            from .background import Tasks

            self.tasks = Tasks(self)
        return self.tasks.operations[name]

    def serving(self) -> Any:
        """What has the servers of this box."""
        if self.servers is None:
            from .servers import Servers

            self.servers = Servers(self)
        return self.servers

    def carry(self, proxy: Any, number: int, server: int) -> None:
        """Have a connection of the host carry what a server reads and prints."""
        self.serving().carry(proxy, number, server)

    def describe(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The name of the shell; which of the programs that are asked for there are."""
        value: dict[str, Any] = {"shell": self.shell and os.path.basename(self.shell)}
        if "programs" in arguments:
            path = f"{self.environment.get('PATH', os.defpath)}:{USUAL}"
            names = arguments["programs"][:MAX_PROGRAMS]
            value["programs"] = [name for name in names if find_program(name, path)]
        return value

    def start(
        self,
        channel: int,
        arguments: dict[str, Any],
        body: bytes,
        note: str | None = None,
        kind: Any = None,
    ) -> Any:
        """Start a command, as a job of this kind; its reply comes when it has ended.

        At the process limit what earlier calls left running is ended, and `note` says so in
        the result of the second try: otherwise the loop could never start anything again.
        """
        job = (kind or Job)(self, channel, arguments)
        if note is not None:
            job.notes.append(note)
        try:
            job.start(arguments, body)
        except BaseException as error:
            job.release()
            is_full = isinstance(error, Failure) and error.details == {"limit": "pids"}
            if note is not None or not is_full or not self._make_room():
                raise
            note = "the process limit was reached; background processes of earlier calls were ended"
            return self.start(channel, arguments, body, note, kind)
        return job

    def fetch(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """A piece of what an ended command has printed, from `shelf` of its answer.

        The host asks for the next piece when it has taken this one, and for no bytes when it
        needs no more.

        With `task` it is a piece of what that task has printed so far.

        Raises:
            Failure: NOT_FOUND, it is gone.
        """
        if "task" in arguments:
            piece: tuple[dict[str, Any], bytes] = self.background("fetch")(arguments)
            return piece
        number, size = int(arguments["shelf"]), min(int(arguments["size"]), MAX_PIECE)
        output = self.shelf.get(number)
        if output is None:
            raise Failure("NOT_FOUND", "the output is no longer kept")
        if size <= 0:
            self.shelf.drop(number)
            return {"next": 0}, b""
        data, at = output.piece(arguments["stream"], int(arguments["position"]), size)
        return {"next": at}, data

    def kills(self) -> int:
        """How often processes of the box were ended for memory."""
        return self.memory_kills.read() + self.kills_for_sockets

    def _end_all(self, why: str) -> None:
        """Whose memory it is can't be told, so that no command goes on."""
        self.kills_for_sockets += 1
        for job in self.jobs.values():
            job.notes.append(why)
        processes.kill_all_but_guests()

    def _make_room(self) -> bool:
        """End what earlier calls left running, tasks too, if no other call is running.

        A person's shell in the box is not theirs, so it stays.
        """
        if len(self.service.calls) > self.waiting or not processes.IS_INIT:
            return False
        # Zombies count too: they are gone once reaped, in a moment. Where a signal to all is
        # sent to one after the other (gVisor), some may fork in time.
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            is_empty = processes.kill_all_but_guests()
            self.service.take_ended()
            if is_empty:
                return True
            select.select([], [], [], 0.005)
        return True

    def sweep_after(self, seconds: float) -> None:
        """Look after the calls that are being ended: once for all of them, and soon."""
        if self.sweep_timer is not None:
            if self.sweep_timer.at <= time.monotonic() + seconds:
                return
            self.service.drop(self.sweep_timer)
        self.sweep_timer = self.service.after(seconds, self._sweep)

    def _sweep(self) -> None:
        """Ask, then kill, then answer: what every call that is being ended needs now."""
        self.sweep_timer = None
        now = time.monotonic()
        look = processes.Look()
        left = self._left(look)
        for job in self.ending.values():
            if not job.is_asked:
                job.ask(left[job])
        due = [job for job in self.ending.values() if now >= job.kill_at]
        self._kill(look, [pid for job in due for pid in left[job]])
        if doubtful := [job for job in due if job.doubts > MAX_DOUBTS]:
            look, left = self._sweep_frozen(due)
            for job in doubtful:
                job.doubts -= 5 * MAX_DOUBTS  # a process that can't die is not worth a freeze
                job.freezes += 1
        for job in list(self.ending.values()):
            job.judge(len(left[job]), look.is_exact, now)
        if self.ending:
            self.sweep_after(SETTLE)
        else:
            self.attribution.clear()

    def _left(self, look: processes.Look) -> dict[Job, list[int]]:
        running = self.owners()
        ending = [owner for job in self.ending.values() if (owner := job.owner) is not None]
        owned = self.attribution.owned(look, running, ending, self.last_channel)
        return {job: owned[job.owner] for job in self.ending.values() if job.owner is not None}

    def owners(self) -> list[processes.Owner]:
        """Whose processes are to be left alone: of everything that is running, and of servers."""
        running = [] if self.servers is None else self.servers.owners()
        # After servers: one that has ended may have had the number that a command has now.
        running += [owner for job in self.jobs.values() if (owner := job.owner) is not None]
        return running + [
            processes.Owner(call.pid, f"{self.box}-task", 0)
            for call in self.service.calls.values()
            if not isinstance(call, Job) and call.pid
        ]

    def _kill(self, look: processes.Look, pids: list[int]) -> None:
        if processes.IS_INIT and pids and len(pids) == len(look.processes):
            pids = [-1]  # all of the box: at once, and without a race
        for pid in pids:
            processes.send(pid, signal.SIGKILL)

    def abandon(self, owner: processes.Owner) -> None:
        """The box ends; outside a container its processes must be ended one by one."""
        if not processes.IS_INIT:
            look = processes.Look()
            self._kill(look, self.attribution.owned(look, [owner], [], 0)[owner])

    def _sweep_frozen(self, due: list[Job]) -> tuple[processes.Look, dict[Job, list[int]]]:
        """Something forks all the time: stop everything, so that nothing can be missed.

        The last resort, since the box's innocent processes are stopped for a moment too.
        """
        if not processes.IS_INIT:
            look = processes.Look()
            look.is_exact = True
            return look, self._left(look)
        look, stopped = processes.freeze()
        left = self._left(look)
        doomed = {pid for job in due for pid in left[job]}
        for pid in doomed:
            processes.send(pid, signal.SIGKILL)
        processes.thaw(look, doomed | stopped)
        return look, left

    def drain(self, descriptor: int) -> None:
        """Keep reading what a background process prints: a closed pipe would end it."""
        if len(self.drains) >= MAX_DRAINS:
            self._close_drain(self.drains[0])
        self.drains.append(descriptor)

        def on_output(events: int) -> None:
            try:
                if os.read(descriptor, CHUNK):
                    return
            except BlockingIOError:
                return
            self._close_drain(descriptor)

        self.service.watch(descriptor, select.EPOLLIN, on_output)

    def _close_drain(self, descriptor: int) -> None:
        self.drains.remove(descriptor)
        self.service.forget(descriptor)
        os.close(descriptor)

    def enter(self, wanted: str | None, notes: list[str]) -> str:
        """The directory that a command begins in; falls back to the root and says so."""
        if wanted is not None:
            directory = os.path.normpath(f"{self.root}/{wanted}")
            if fault := self._fault_of(directory):
                raise self._no_entry(directory, fault)
            return directory
        if self.cwd != self.root and (fault := self._fault_of(self.cwd)):
            notes.append(
                f"the working directory {shown(self.cwd)} {fault}; this command ran in {self.root}"
            )
            self.cwd = self.root
        if self.cwd == self.root and (fault := self._fault_of(self.root)):
            raise self._no_entry(self.root, fault)
        return self.cwd

    def resume(self, directory: str) -> None:
        """The loop's last command ended there, in another box that has the same worktree."""
        directory = os.path.normpath(directory)
        if directory == self.root or directory.startswith(self.root + "/"):
            self.cwd = directory

    def _no_entry(self, directory: str, fault: str) -> Failure:
        code = "PERMISSION_DENIED" if fault == FORBIDDEN else "FILE_NOT_FOUND"
        return Failure(code, f"{shown(directory)} {fault}")

    def _fault_of(self, directory: str) -> str:
        """Why no command can begin there; empty if one can."""
        try:
            mode = os.stat(directory).st_mode
        except PermissionError:
            return FORBIDDEN
        except OSError:
            return "no longer exists" if directory == self.cwd else "does not exist"
        if not stat.S_ISDIR(mode):
            return "is not a directory"
        if not os.access(directory, os.X_OK):
            return FORBIDDEN
        real = _real(directory)
        if real != self.root and not real.startswith(self.root + "/"):
            return "leads out of the worktree"
        return ""

    def leave(self, directory: str, notes: list[str]) -> None:
        """Where a command ended: the next one begins there, if it is in the worktree."""
        if directory == self.root:
            self.cwd = directory
            return
        if directory.startswith(self.root + "/"):
            self.cwd = directory
            fault = self._fault_of(directory)
        else:
            fault = "is outside the worktree" if directory else "was deleted"
        if fault:
            self.cwd = self.root
            where = shown(directory) or "the directory"
            notes.append(
                f"{where}, where the command ended, {fault}; the next one begins in {self.root}"
            )


class Stream:
    """One output pipe of a job."""

    __slots__ = ("descriptor", "is_shelved", "kind", "spool")

    def __init__(self, descriptor: int, kind: int, spool: Spool) -> None:
        self.descriptor = descriptor
        self.kind = kind
        self.spool = spool
        self.is_shelved = False


class Job:
    """One running command."""

    def __init__(self, commands: Commands, channel: int, arguments: dict[str, Any]) -> None:
        self.commands = commands
        self.service = commands.service
        self.channel = channel
        self.head = int(arguments["head"])
        self.tail = int(arguments["tail"])
        self.grace = float(arguments["grace"])
        self.live = bool(arguments.get("stream"))
        self.shelves = bool(arguments.get("shelve"))
        self.room: dict[str, Any] | None = arguments.get("room")
        self.moves = arguments.get("cwd") is None
        self.credit = LIVE_CREDIT
        self.notes: list[str] = []
        self.files: list[str] = []
        self.streams: list[Stream] = []
        self.prefix = b""
        self.cwd_file = ""
        self.program = ""
        self.is_direct = False
        self.shell: str | None = None
        self.interpreter: str | None = None
        self.status: int | None = None
        self.ending: str | None = None
        self.is_asked = False
        self.doubts = self.freezes = 0
        self.kill_at = self.give_up_at = 0.0
        self.owner: processes.Owner | None = None
        self.timer: Timer | None = None

    # ── start ──

    def start(self, arguments: dict[str, Any], body: bytes) -> None:
        """Spawn the command and watch it.

        Raises:
            Failure: it could not be started.
        """
        commands = self.commands
        if "at" in arguments:
            commands.resume(arguments["at"])
        directory = commands.enter(arguments.get("cwd"), self.notes)
        marker = f"{commands.box}-{self.channel}"
        commands.last_channel = self.channel
        environment = {processes.MARKER: marker, **commands.environment, "PWD": directory}
        environment |= {**arguments["environment"], processes.MARKER: marker}
        command: str | None = arguments.get("command")
        if command is not None:
            argv = self._direct_argv(command, environment) or self._shell_argv(command)
        else:
            argv = self._argv(arguments, body, environment)
        self.kills_before = commands.kills()
        self.refused_before = commands.refused_forks.read()
        began = processes.now_in_ticks()
        merge = bool(arguments["merge"])
        try:
            pid = self._spawn(argv, environment, directory, merge=merge)
        except Failure:
            if not self.is_direct or command is None:
                raise
            # What is no program to the kernel may be a script to the shell, and if not,
            # the shell's message is what the model knows.
            self._drop_streams()
            argv = self._shell_argv(command)
            pid = self._spawn(argv, environment, directory, merge=merge)
        self.owner = processes.Owner(pid, marker, began)
        self.service.children[pid] = self._on_exit
        self.service.calls[self.channel] = self
        commands.jobs[self.channel] = self
        if commands.sockets is not None:
            commands.sockets.soon()
        if arguments["timeout"] is not None:
            seconds = float(arguments["timeout"])
            self.timer = self.service.after(seconds, lambda: self.stop("timeout"))

    def _argv(
        self, arguments: dict[str, Any], body: bytes, environment: dict[str, str]
    ) -> list[str]:
        argv: list[str] = [*arguments["argv"]]
        # A PATH for the code need not lead to what runs the code.
        own = self.commands.environment.get("PATH", os.defpath)
        path = f"{environment.get('PATH', own)}:{own}:{USUAL}"
        self.program = self.interpreter = program_of(argv, path)
        if arguments.get("script") is not None:
            if argv[0] == "python3":
                # The script is no part of the worktree, but its imports are looked for there.
                places = [self.commands.root, environment.get("PYTHONPATH", "")]
                environment["PYTHONPATH"] = ":".join(filter(None, places))
            argv.append(self._write_file("script", arguments["script"], body))
        return [*argv, *arguments.get("args", [])]

    def _direct_argv(self, command: str, environment: dict[str, str]) -> list[str] | None:
        """The command as a program's arguments, where a shell would add nothing."""
        words = one_program(command)
        path = environment.get("PATH", os.defpath)
        if words is None or self.commands.shell is None or "/" in words[0]:
            return None
        if any(not folder.startswith("/") for folder in path.split(":")):
            return None
        if any(name.startswith(("BASH_", "ENV")) for name in environment):
            return None  # it may define functions, or a file to be read first
        program = find_program(words[0], path)
        if program is None:
            return None
        self.is_direct = True
        self.program = environment["_"] = program
        self.shell = os.path.basename(self.commands.shell)
        return words

    def _shell_argv(self, command: str) -> list[str]:
        self.is_direct = False
        shell = self.commands.shell
        if shell is None:
            raise Failure("UNSUPPORTED", SHELL_LESS)
        self.shell = os.path.basename(shell)
        text = command.encode("utf-8", "surrogateescape")
        if b"\0" in text:
            raise Failure("INVALID_ARGUMENTS", "command: holds a NUL character")
        if changes_directory(command):
            self.cwd_file = self._own_path("cwd")
            # On the command's own first line, so that the shell's line numbers are right.
            builtin = "builtin " if self.shell == "bash" else ""
            self.prefix = (
                f"trap '{{ set +x; {builtin}pwd -P >|{self.cwd_file} || "
                f"echo ? >|{self.cwd_file}; }} 2>/dev/null || :' EXIT; "
            ).encode()
            text = self.prefix + text
        self.program = shell
        if len(text) <= MAX_ARGUMENT:
            return [self.shell, "-c", os.fsdecode(text)]
        return [self.shell, self._write_file("command", ".sh", text)]

    def _own_path(self, name: str, suffix: str = "") -> str:
        """A path that nobody has put a trap at: commands may write where the agent does."""
        unguessed = os.urandom(6).hex()
        path = os.path.join(self.commands.scratch, f"{name}-{unguessed}{suffix}")
        self.files.append(path)
        return path

    def _write_file(self, name: str, suffix: str, content: bytes) -> str:
        path = self._own_path(name, suffix)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags | os.O_NONBLOCK, 0o600), "wb") as file:
                file.write(content)
        except OSError as error:
            raise Failure(
                "NO_SPACE", f"the code could not be handed over: {error.strerror}"
            ) from error
        return path

    def _spawn(
        self, argv: list[str], environment: dict[str, str], directory: str, *, merge: bool
    ) -> int:
        out, out_sink = os.pipe2(os.O_CLOEXEC)
        sinks = [out_sink]
        self._add_stream(out, frame.STDOUT)
        if merge:
            err_sink = out_sink
        else:
            err, err_sink = os.pipe2(os.O_CLOEXEC)
            sinks.append(err_sink)
            self._add_stream(err, frame.STDERR)
        try:
            return processes.spawn(self.program, argv, environment, directory, out_sink, err_sink)
        except OSError as error:
            raise processes.start_failure(error, os.path.basename(argv[0])) from error
        finally:
            for sink in sinks:
                os.close(sink)

    def _add_stream(self, descriptor: int, kind: int) -> None:
        os.set_blocking(descriptor, False)
        stream = Stream(descriptor, kind, self._spool())
        self.streams.append(stream)
        self.service.watch(descriptor, select.EPOLLIN, lambda events: self._read(stream))

    # ── output ──

    def _spool(self) -> Spool:
        """Where the output goes; with `room` it may be more than memory has, on a disk."""
        if self.room is not None:
            return Spool(self.room["directory"], int(self.room["bytes"]))
        return Spool(self.commands.scratch)

    def _read(self, stream: Stream) -> int:
        """Take one piece of output; its size, 0 at the end of the pipe, -1 if there is none."""
        if stream.descriptor < 0:
            return 0
        try:
            data = os.read(stream.descriptor, CHUNK)
        except BlockingIOError:
            return -1
        if not data:
            self.service.forget(stream.descriptor)
            os.close(stream.descriptor)
            stream.descriptor = -1
            return 0
        stream.spool.write(data)
        # Live output is best effort: a host that takes none never holds up the writer.
        if self.live and self.credit >= len(data) and len(self.service.unsent) < LIVE_CREDIT:
            self.credit -= len(data)
            self.service.send(encode(stream.kind, self.channel, data))
        return len(data)

    def _read_rest(self) -> None:
        """What the command wrote before it ended is in its pipes: at most a pipe's size."""
        for stream in self.streams:
            room = 1 << 20
            while room > 0:
                size = self._read(stream)
                if size <= 0:
                    break
                room -= size
            if stream.descriptor >= 0:
                self.service.forget(stream.descriptor)
                self.commands.drain(stream.descriptor)
                stream.descriptor = -1

    # ── end ──

    def _on_exit(self, status: int) -> None:
        self.status = status
        if self.ending is None and status < 0:
            # What it started may be what killed it, and would kill the next command as well.
            self.stop("killed")
        elif self.ending is None:
            self._finish()
        else:
            self.commands.sweep_after(COALESCE)

    def cancel(self) -> None:
        """The host wants no answer but that it ended."""
        self.stop("cancel")

    def stop(self, reason: str) -> None:
        """Begin to end the call: TERM, and after the grace KILL."""
        if self.ending is not None or self.channel not in self.commands.jobs:
            return
        self.ending = reason
        self.kill_at = time.monotonic() + self.grace
        self.give_up_at = self.kill_at + GIVE_UP
        self.commands.ending[self.channel] = self
        self.commands.sweep_after(0)

    def ask(self, pids: list[int]) -> None:
        """TERM to every process of the call, to stopped ones too."""
        self.is_asked = True
        for pid in pids:
            processes.send(pid, signal.SIGTERM)
            processes.send(pid, signal.SIGCONT)

    def judge(self, left: int, is_exact: bool, now: float) -> None:
        """Answer when nothing of the call is left, or when it can't be helped.

        Args:
            left: its processes that were seen.
            is_exact: nothing can have been missed.
            now: of the monotonic clock.
        """
        is_doubtful = bool(left) or not is_exact
        if is_doubtful:
            self.doubts += now >= self.kill_at or not left
        elif self.status is not None:
            self._finish()
            return
        # On a slow machine the time may be over before anything was tried.
        if now >= self.give_up_at and (self.freezes >= MIN_FREEZES or not is_doubtful):
            self.notes.append(f"{left} processes could not be ended; they are stuck in the kernel")
            self._finish()

    def _finish(self) -> None:
        del self.commands.jobs[self.channel]
        self.commands.ending.pop(self.channel, None)
        try:
            self._read_rest()
            self._take_directory()
            value, data = self._outcome()
        except Exception as error:
            self._fail(Failure("INTERNAL", f"the agent lost the outcome: {error!r:.300}"))
        else:
            self._reply(value, data)
        finally:
            self.release()

    def _reply(self, value: dict[str, Any], data: bytes) -> None:
        self.service.reply(self.channel, value, data)

    def _fail(self, failure: Failure) -> None:
        self.service.fail(self.channel, failure)

    def _take_directory(self) -> None:
        """Learn where the shell ended; one that was killed or replaced could not say it."""
        if not self.moves:
            return
        directory = self._said_directory() if self.cwd_file else None
        if directory is None:
            directory = self.commands.cwd
            if self.cwd_file and self.ending in ("timeout", "cancel"):
                self.notes.append(f"the working directory stays {shown(directory)}")
        self.commands.leave(directory, self.notes)

    def _said_directory(self) -> str | None:
        """What the shell wrote as its last word; empty if its directory was deleted."""
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self.cwd_file, flags)
        except OSError:
            return None
        try:
            # A pipe that the command has put there would have nobody at its other end.
            said = os.read(file, 1 << 16) if stat.S_ISREG(os.fstat(file).st_mode) else b""
        except OSError:
            said = b""
        finally:
            os.close(file)
        if said == b"?\n":
            return ""
        return os.fsdecode(said[:-1]) if said.startswith(b"/") and said.endswith(b"\n") else None

    def release(self) -> None:
        """Free files, pipes and the timer."""
        if self.timer is not None:
            self.service.drop(self.timer)
            self.timer = None  # it holds what this holds
        self._drop_streams()
        for path in self.files:
            with suppress(OSError):  # it may never have been written
                os.unlink(path)
        self.files = []

    def _drop_streams(self) -> None:
        for stream in self.streams:
            if not stream.is_shelved:
                stream.spool.close()
            if stream.descriptor >= 0:
                self.service.forget(stream.descriptor)
                os.close(stream.descriptor)
        self.streams = []

    def abandon(self) -> None:
        """The box ends; outside a container its processes must be ended one by one."""
        if self.owner is not None:
            self.commands.abandon(self.owner)
        self.release()

    def _outcome(self) -> tuple[dict[str, Any], bytes]:
        status = self.status
        value: dict[str, Any] = {
            "exit_code": status if status is not None and status >= 0 else None,
            "signal": processes.signal_name(-status) if status is not None and status < 0 else None,
            "timed_out": self.ending == "timeout",
            "cancelled": self.ending in ("cancel", "kill"),
            "cwd": self.commands.cwd,
            "shell": self.shell,
            "interpreter": self.interpreter,
        }
        pieces: list[bytes] = []
        for name, stream in zip(("stdout", "stderr"), self.streams, strict=False):
            value[name] = self._kept(stream, pieces, self.head, self.tail)
        value["limit"] = self._limit(pieces)
        value["oom"] = value["limit"] == "memory"
        value["notes"] = self.notes
        if self.shelves and self.ending != "cancel":
            value["shelf"] = self._shelve()
        return value, b"".join(pieces)

    def _shelve(self) -> dict[str, Any] | None:
        """Keep the whole output for a while, where the answer has not all of it."""
        named = dict(zip(("stdout", "stderr"), self.streams, strict=False))
        if all(stream.spool.total <= self.head + self.tail for stream in named.values()):
            return None
        for stream in named.values():
            stream.is_shelved = True
        spools = {name: stream.spool for name, stream in named.items()}
        number = self.commands.shelf.put(Shelved(spools, self.prefix))
        self.service.after(SHELF_LIFE + 1.0, self.commands.shelf.clear_old)
        kept = {name: [spool.total, *spool.kept()] for name, spool in spools.items()}
        return {"number": number, **kept}

    def _kept(self, stream: Stream, pieces: list[bytes], head: int, tail: int) -> dict[str, int]:
        first, last = stream.spool.ends(head, tail)
        total = stream.spool.total
        if self.prefix and stream.kind == frame.STDERR and self.status == 2:
            # A syntax error in the first line makes the shell print the line, with our words.
            clean = first.replace(self.prefix, b"")
            total -= len(first) - len(clean)
            first = clean
        pieces += [first, last]
        return {"total": total, "head": len(first), "tail": len(last)}

    def _limit(self, pieces: list[bytes]) -> str | None:
        """Which limit of the box made the command fail, if one did."""
        if self.status == 0 and self.ending is None:
            return None
        if self.commands.kills() > self.kills_before:
            return "memory"
        if self.commands.refused_forks.read() > self.refused_before:
            return "pids"
        if not self.commands.refused_forks.is_there and any(map(_REFUSED_FORK.search, pieces)):
            return "pids"
        texts = (b"No space left on device", b"Disk quota exceeded")
        if self.status != 0 and any(text in piece for piece in pieces for text in texts):
            return "disk"
        return None
