"""Git on the host: one program, nothing of the caller's surroundings, nothing executed beside it.

What git obeys has three sources: its environment (built here from nothing), configuration of
the machine and of the user (not read, but for one listing, see `Git.run`), and the repository's
own, which is overruled by the settings of `SETTINGS`. Those come last in git's order, so they
win over every file and every file that one includes. Names with a part of the user's choice
(`filter.<name>.clean`) can't be overruled beforehand: see `Git.without_drivers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import stat
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.errors import ConfigError
from executor.git.values import GitError
from executor.sandbox.completion import to_completion
from executor.sandbox.container import Owner
from executor.settings import user_surroundings
from executor.text import one_line

SEARCHED = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
OLDEST = (2, 31)
"""GIT_CONFIG_COUNT came with 2.31; `rev-parse --path-format` and `ls-files` as used here too."""
CONFIGURED_HOOKS = (2, 54)
"""From here on `hook.<name>.command` runs on events, whatever `core.hooksPath` says."""
MOST = 64 << 20
_ERRORS = 64 << 10
_CHUNK = 1 << 16
_NO_PROGRAM = "/bin/false"

ENVIRONMENT: Mapping[str, str] = {
    "PATH": ":".join(SEARCHED),
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    # Looking writes nothing: no refreshed index.
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    # No transport is allowed: not even `ext::`, which is a command.
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_ASKPASS": _NO_PROGRAM,
    "SSH_ASKPASS": _NO_PROGRAM,
    "GIT_SSH": _NO_PROGRAM,
    "GIT_SSH_COMMAND": _NO_PROGRAM,
    "GIT_PROXY_COMMAND": _NO_PROGRAM,
    "GIT_EDITOR": _NO_PROGRAM,
    "GIT_SEQUENCE_EDITOR": _NO_PROGRAM,
    "GIT_PAGER": "cat",
    "GIT_MERGE_AUTOEDIT": "no",
    # `trace2.*Target` of a configuration would have git write into files and sockets.
    "GIT_TRACE2": "0",
    "GIT_TRACE2_EVENT": "0",
    "GIT_TRACE2_PERF": "0",
}
"""All that git has of an environment, where a caller adds nothing."""

SETTINGS: Mapping[str, str] = {
    # ─ keys whose value git executes (git-config(1)) ─
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.pager": "cat",
    "core.editor": _NO_PROGRAM,
    "sequence.editor": _NO_PROGRAM,
    "core.askPass": _NO_PROGRAM,
    "core.sshCommand": _NO_PROGRAM,
    "core.gitProxy": "",
    "core.alternateRefsCommand": "/bin/true",
    "credential.helper": "",
    "diff.external": "",
    "interactive.diffFilter": "",
    "gpg.program": _NO_PROGRAM,
    "gpg.openpgp.program": _NO_PROGRAM,
    "gpg.x509.program": _NO_PROGRAM,
    "gpg.ssh.program": _NO_PROGRAM,
    "gpg.ssh.defaultKeyCommand": "",
    # ─ keys that have git call one of those, or start something by itself ─
    "log.showSignature": "false",
    "merge.verifySignatures": "false",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "push.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "receive.autogc": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "diff.submodule": "short",
    "status.submoduleSummary": "false",
    # ─ files of the user's choice ─
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    # ─ what a repository may say of others' safety ─
    "safe.bareRepository": "explicit",
    # A ref's log that is there goes on; none is begun.
    "core.logAllRefUpdates": "false",
    # With a sparse index, git would look for files in what it takes for the worktree.
    "sparse.expectFilesOutsideOfPatterns": "true",
}
"""What overrules every configuration file."""

_SUBSECTIONS = r"^(filter\..*\.(clean|smudge|process|required)|hook\..*\.(command|event|enabled))$"
_BLANKED = {"clean": "", "smudge": "", "process": "", "required": "false"}
_VERSION = re.compile(r"git version (\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command of git ended.

    Attributes:
        code: its exit code; negative = the signal that ended it.
        output: what it printed.
        errors: the first 64 KiB of what it said beside.
    """

    code: int
    output: bytes
    errors: str

    @property
    def reason(self) -> str:
        """Why it failed, in git's words, on one line."""
        return one_line(self.errors.strip() or f"git ended with {self.code}", 500)


@dataclass(frozen=True, slots=True)
class Git:
    """Git of this machine. Made by `find`.

    Attributes:
        program: absolute path.
        version: major and minor.
    """

    program: Path
    version: tuple[int, int]

    @classmethod
    def find(cls, program: Path | None = None) -> Git:
        """Looks where system programs are, and nowhere else.

        Args:
            program: the one to take instead, absolute.

        Raises:
            ConfigError: there is none, it doesn't run, or it is too old.
        """
        found = program if program is not None else _searched()
        if found is None:
            raise ConfigError(
                "git: there is none on this machine; install git, or hide it from the loop "
                "(--git hidden)"
            )
        if not found.is_absolute():
            raise ConfigError(f"git: {found} is not an absolute path; give one")
        version = _version(found)
        if version < OLDEST:
            raise ConfigError(
                f"git: {found} is {version[0]}.{version[1]}, and {OLDEST[0]}.{OLDEST[1]} is the "
                "oldest that will do; install a newer one, or hide it from the loop "
                "(--git hidden)"
            )
        return cls(found, version)

    async def run(
        self,
        arguments: Sequence[str],
        *,
        git_directory: Path | None = None,
        owner: Owner | None = None,
        given: bytes | int | None = None,
        environment: Mapping[str, str] | None = None,
        most: int = MOST,
        timeout: float = 60,
        user_configuration: bool = False,
        directory: Path = Path("/"),
        memory: int | None = None,
        into: int | None = None,
    ) -> Done:
        """Has git do one thing.

        A cancellation, the time and the size each end the whole process group.

        Args:
            arguments: the command and what it is given; no shell reads them.
            git_directory: of a repository of ours or of the user's, never one that a box may
                write. None = the command needs none.
            owner: as whom to run, if we are root and it isn't root's; None = as ourselves.
            given: standard input: bytes, or an open descriptor. None = nothing.
            environment: variables beside those of `ENVIRONMENT`.
            most: bytes of output that are taken.
            timeout: seconds.
            user_configuration: let git read the configuration of machine and user: the
                owner's, if it runs as him. For `config --list` alone: it executes nothing.
            directory: where to run: one that no box may write.
            memory: bytes of its own that it may have (RLIMIT_DATA: files that it maps don't
                count), for what hostile objects could make large; None = no limit.
            into: descriptor of a file that takes the output, which may be too large for us.

        Raises:
            GitError: no such program, more output than `most`, or not done in time.
        """
        variables = dict(ENVIRONMENT)
        if user_configuration:
            _check_listing(arguments)
            found = _user_variables(owner)
            variables = {
                name: value for name, value in (variables | found).items() if found.get(name, "-")
            }
        if self.version >= CONFIGURED_HOOKS and git_directory and arguments[:1] != ["config"]:
            variables.update(await self.without_drivers(git_directory, owner=owner))
        variables.update(environment or {})
        command = [os.fspath(self.program), "--no-pager", "--no-replace-objects"]
        for key, value in SETTINGS.items():
            command += ["-c", f"{key}={value}"]
        if git_directory is not None:
            command.append(f"--git-dir={git_directory}")
        call = _Call([*command, *arguments], variables, directory, owner, most, memory, into)
        words = " ".join(arguments[:1])
        try:
            async with asyncio.timeout(timeout):
                return await call.run(given)
        except TimeoutError as error:
            raise GitError(f"git {words} was not done in {timeout:g} s and was ended") from error
        except OSError as error:
            raise GitError(f"git {words} can't be run: {error}") from error

    async def output(self, arguments: Sequence[str], **options: Any) -> bytes:
        """What git prints. Options as of `run`.

        Raises:
            GitError: it failed.
        """
        done = await self.run(arguments, **options)
        if done.code != 0:
            raise GitError(f"git {' '.join(arguments[:1])} failed: {done.reason}")
        return done.output

    async def text(self, arguments: Sequence[str], **options: Any) -> str:
        """The same as text, without the line's end; bytes that are no UTF-8 are escaped."""
        return os.fsdecode(await self.output(arguments, **options)).rstrip("\n")

    async def without_drivers(
        self, git_directory: Path, *, owner: Owner | None = None
    ) -> dict[str, str]:
        """Variables that blank the filters and hooks which a repository's own files configure.

        To be given to a command that writes files of a worktree, where attributes choose a
        filter. Drivers of diff and merge can't be blanked so: such commands are to be given
        `--no-ext-diff --no-textconv`, and nothing is merged on the host.

        Raises:
            GitError: the configuration can't be read.
        """
        done = await self.run(
            ["config", "-z", "--name-only", "--includes", "--get-regexp", _SUBSECTIONS],
            git_directory=git_directory,
            owner=owner,
        )
        if done.code not in (0, 1):  # 1: there are none
            raise GitError(f"git config failed: {done.reason}")
        pairs: dict[str, str] = {}
        for key in os.fsdecode(done.output).split("\0")[:-1]:
            section = key.rpartition(".")[0]
            if key.startswith("hook."):
                pairs[f"{section}.enabled"] = "false"
            else:
                pairs.update({f"{section}.{name}": value for name, value in _BLANKED.items()})
        return _as_variables(pairs)


async def as_owner(
    command: Sequence[str], owner: Owner, *, most: int = MOST, timeout: float = 20
) -> Done:
    """Runs a program of the system as somebody, so that it may what he may and no more.

    Args:
        command: absolute program and its arguments.
        owner: whom to run it as, if we are root; otherwise it runs as ourselves.
        most: bytes of output that are taken.
        timeout: seconds.

    Raises:
        GitError: no such program, more output than `most`, or not done in time.
    """
    call = _Call(list(command), {"PATH": ":".join(SEARCHED), "LC_ALL": "C"}, Path("/"), owner, most)
    try:
        async with asyncio.timeout(timeout):
            return await call.run(None)
    except TimeoutError as error:
        raise GitError(f"{command[0]} was not done in {timeout:g} s and was ended") from error
    except OSError as error:
        raise GitError(f"{command[0]} can't be run: {error}") from error


def _as_variables(pairs: Mapping[str, str]) -> dict[str, str]:
    """Settings as variables: a name may have `=` in it, which `-c` would split at."""
    found = {"GIT_CONFIG_COUNT": str(len(pairs))} if pairs else {}
    for number, (key, value) in enumerate(pairs.items()):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def _searched() -> Path | None:
    for directory in SEARCHED:
        path = Path(directory, "git")
        with contextlib.suppress(OSError):
            if stat.S_ISREG(path.stat().st_mode) and os.access(path, os.X_OK):
                return path
    return None


def _version(program: Path) -> tuple[int, int]:
    try:
        told = subprocess.run(
            [program, "--version"],
            env=dict(ENVIRONMENT),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"git: {program} can't be run: {reason}; install git") from error
    match = _VERSION.match(told)
    if match is None:
        raise ConfigError(f"git: {program} does not say that it is git; name the right program")
    return int(match[1]), int(match[2])


def _check_listing(arguments: Sequence[str]) -> None:
    if list(arguments[:2]) != ["config", "--list"]:
        raise ValueError("the user's configuration may only be listed")


def _user_variables(owner: Owner | None) -> dict[str, str]:
    """Where the user's configuration is: the owner's, where git runs as him."""
    # Empty is not unset: git would take an empty name for a file's.
    variables = {"GIT_CONFIG_NOSYSTEM": "0", "GIT_CONFIG_SYSTEM": "", "GIT_CONFIG_GLOBAL": ""}
    other = _identity(owner)
    return variables | user_surroundings(other.uid if other is not None else None)


def _identity(owner: Owner | None) -> Owner | None:
    """As whom a process is to run; None = as this one."""
    return owner if owner is not None and os.geteuid() == 0 and owner.uid != 0 else None


class _Call:
    """One process of git."""

    def __init__(
        self,
        command: list[str],
        variables: Mapping[str, str],
        directory: Path,
        owner: Owner | None,
        most: int,
        memory: int | None = None,
        into: int | None = None,
    ) -> None:
        self._command = command
        self._memory = memory
        self._into = into
        self._options: dict[str, Any] = {
            "cwd": directory,
            "env": variables,
            "start_new_session": True,
            "umask": 0o022,
        }
        other = _identity(owner)
        if other is not None:
            self._options |= {"user": other.uid, "group": other.gid, "extra_groups": []}
        self._most = most

    async def run(self, given: bytes | int | None) -> Done:
        """Its end, and what it said."""
        async with _pipe() as (output, output_end), _pipe() as (errors, errors_end):
            streams = (_standard_input(given), output_end.take(), errors_end.take())
            process = await self._started(*streams)
            is_whole = False
            try:
                self._limit(process.pid)
                output_end.close()
                errors_end.close()
                result = await self._talk(process, given, output, errors)
                is_whole = True
                return result
            finally:
                await to_completion(_end(process, is_whole=is_whole))

    async def _started(self, given: int, output: int, errors: int) -> asyncio.subprocess.Process:
        """The process; asyncio would not end the group of one whose start is cancelled."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._command, stdin=given, stdout=output, stderr=errors, **self._options
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await to_completion(_unwanted(starting))
            raise

    def _limit(self, pid: int) -> None:
        """From outside, since nothing may run between fork and exec in a process of threads."""
        if self._memory is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(pid, resource.RLIMIT_DATA, (self._memory, self._memory))
                # Trees that are nested too deep for git's stack end it with SIGSEGV.
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))

    async def _talk(
        self,
        process: asyncio.subprocess.Process,
        given: bytes | int | None,
        output: asyncio.StreamReader,
        errors: asyncio.StreamReader,
    ) -> Done:
        async with contextlib.AsyncExitStack() as stack:
            taken = asyncio.ensure_future(_take(output, self._most, self._into))
            said = asyncio.ensure_future(_skim(errors))
            fed = asyncio.ensure_future(_feed(process, given))
            stack.push_async_callback(_cancel, (taken, said, fed))
            await asyncio.gather(taken, said, fed)
            told = said.result().decode("utf-8", "replace")
            return Done(await process.wait(), taken.result(), told)


def _standard_input(given: bytes | int | None) -> int:
    if given is None:
        return asyncio.subprocess.DEVNULL
    return given if isinstance(given, int) else asyncio.subprocess.PIPE


async def _take(reader: asyncio.StreamReader, most: int, into: int | None) -> bytes:
    """All of it; nothing, if it goes into a file.

    Raises:
        GitError: it is more than `most`.
    """
    chunks: list[bytes] = []
    size = 0
    while chunk := await reader.read(_CHUNK):
        size += len(chunk)
        if size > most:
            raise GitError(f"git printed more than {most} bytes and was ended")
        if into is None:
            chunks.append(chunk)
            continue
        while chunk:
            chunk = chunk[os.write(into, chunk) :]
    return b"".join(chunks)


async def _skim(reader: asyncio.StreamReader) -> bytes:
    """The beginning of it; the rest is read all the same, lest git waits."""
    kept = b""
    while chunk := await reader.read(_CHUNK):
        kept += chunk[: _ERRORS - len(kept)]
    return kept


async def _feed(process: asyncio.subprocess.Process, given: bytes | int | None) -> None:
    if process.stdin is None or not isinstance(given, bytes):
        return
    # Git may end before it has read all.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(given)
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _unwanted(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    with contextlib.suppress(OSError):  # it could not be started
        await _end(await starting, is_whole=False)


async def _end(process: asyncio.subprocess.Process, *, is_whole: bool) -> None:
    """Nothing of it is left. Its group is killed unless its output came to its end."""
    if not is_whole:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()


class _End:
    """A descriptor that is closed once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def take(self) -> int:
        """Its number."""
        return self._descriptor

    def close(self) -> None:
        """Closes it, if it is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, _End]]:
    """A pipe of our own: unlike one of asyncio's, it is closed even if a stray process has it."""
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    end = _End(writing)
    file = os.fdopen(reading, "rb", buffering=0)
    reader = asyncio.StreamReader(limit=_CHUNK * 4)
    try:
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
    except BaseException:
        file.close()
        end.close()
        raise
    try:
        yield reader, end
    finally:
        end.close()
        transport.close()
