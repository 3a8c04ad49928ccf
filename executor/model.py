"""Values that cross layers: what is asked of a loop, and what comes back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias

from executor.errors import Code, ConfigError
from executor.text import json_line

Block: TypeAlias = dict[str, Any]
"""One Anthropic `tool_result` content block."""

MOUNT = "/workspace"
"""Where the worktree is inside every box."""
LANE: Final = "no-net"
"""The lane that every loop has: the box that is opened with it, and never has a network."""
RESULTS = "/run/executor/results"
"""Where the loop reads outputs that were too long for the model."""
PLANS = "/run/executor/plans"
"""Where the loop writes its plan."""
GIT_DIRECTORY = "/run/executor/git"
"""Where a loop's own git directory is, unless it lies over the worktree's `.git`."""
GIT_OBJECTS = "/run/executor/objects"
"""Below it, numbered, are the object stores of the origin, read-only."""
GIT_SETTINGS = "/run/executor/gitconfig"
"""What git reads in every box in place of its system's settings, which it includes."""
CERTIFICATES = "/run/executor/ca.crt"
"""Where the certificates are that a loop was given, if it was."""
CACHES = "/run/executor/caches"
"""Below it, each by its name, are a loop's caches."""
DIRECTORIES = "/workspaces"
"""Where directories are that a loop has beside its worktree, each by its name."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_DIRECTORIES = 16
MAX_CACHES = 16
_EXEC_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
IMAGE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"
"""What an image's name may be, as a pattern."""
_IMAGE = re.compile(IMAGE_NAME)
CACHE_NAME = re.compile(r"(?!\.\.?$)[a-z0-9._-]{1,32}")
"""What the name of a cache may be."""
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

MARKER = "EXECUTOR_CALL"
"""The environment variable that marks the processes of a call; reserved."""


class Access(StrEnum):
    """What a tool touches; permissions and scheduling are decided from it."""

    READ = "read"
    WRITE = "write"
    EXEC = "exec"
    NETWORK = "network"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a model."""

    id: str
    name: str
    input: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to. `to_line` is the contract of `executor run`'s output.

    Attributes:
        content: what the model is shown.
        is_error: the tool failed, or the command ended with another code than 0.
        code: why, from the closed set; null on success.
        structured: the same as data, for a program.
        truncated: something was left out of `content`.
        total_bytes: size of the whole output in bytes, where it is known.
        spill: where the loop can read the whole output; null if it was not kept.
        duration_ms: milliseconds from the call's start to its result.
        details: JSON-able facts about an error or a notice.
        lane: whose box the call was for; null where there is no tool of that name.
    """

    id: str | None
    name: str | None
    content: str | list[Block]
    is_error: bool = False
    code: Code | None = None
    structured: dict[str, Any] | None = None
    truncated: bool = False
    total_bytes: int | None = None
    spill: str | None = None
    duration_ms: float = 0.0
    details: dict[str, Any] | None = None
    lane: str | None = None

    def to_line(self) -> str:
        """The result as one line of JSON, without the line's end."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["duration_ms"] = round(self.duration_ms, 3)
        # Names that are no UTF-8 hold lone surrogates: as escapes they survive the way, and
        # so does what a terminal would obey.
        return json_line(fields)


# ─── what is asked of people, and what a loop makes ─────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """What somebody has to decide before a call runs.

    Attributes:
        id: of the request; an answer names it.
        step_id: the call's id.
        exec_id: the loop.
        tool: the tool's name as the model sees it.
        arguments: exactly what would run; `arguments_hash` is its fingerprint.
        action: the command or the path, whole, as text.
        description: what the model says that it does.
        reason: why this needs a decision.
        diff: what an edit would change; None where it can't be shown.
        rules: permission rules that would allow this and its like.
        timeout: seconds after which no answer is a no.
        arguments_hash: an answer holds for these arguments only.
    """

    id: str
    step_id: str
    exec_id: str
    tool: str
    arguments: Mapping[str, Any]
    action: str
    description: str | None
    reason: str
    diff: str | None = None
    rules: tuple[str, ...] = ()
    timeout: float
    arguments_hash: str


class Remember(StrEnum):
    """How long an approval holds."""

    ONCE = "once"
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """A decision.

    Attributes:
        approved: the call may run.
        modified_arguments: run with these instead; they are checked like any others.
        reason: shown to the model when it is not approved.
        remember: `session` also allows what the request's `rules` name, until the loop ends.
        arguments_hash: the request's; None = the approver holds no copy and trusts the request.
    """

    approved: bool
    modified_arguments: Mapping[str, Any] | None = None
    reason: str | None = None
    remember: Remember = Remember.ONCE
    arguments_hash: str | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """One answer that a question offers."""

    label: str
    description: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the model. Free text is always possible as an answer.

    Attributes:
        question: the whole question.
        header: at most 12 characters, for a small display.
        options: 2 to 4.
        multi_select: more than one may be chosen.
    """

    question: str
    header: str
    options: tuple[Option, ...]
    multi_select: bool = False


@dataclass(frozen=True, slots=True)
class Todo:
    """One item of the model's own list."""

    content: str
    status: Literal["pending", "in_progress", "completed"]
    active_form: str | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A plan, a spec or a phase, checked.

    Attributes:
        kind: which of the three.
        name: a plan's title, else the name.
        content: the tool's arguments, as checked.
    """

    kind: Literal["plan", "spec", "phase"]
    name: str
    content: Mapping[str, Any]


# ─── events of `Loop.stream` ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    exec_id: str = ""
    seq: int = 0
    monotonic_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStarted(_Stamp):
    """The call was taken up."""

    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(_Stamp):
    """Live output of a running command. Best effort: the result is what counts."""

    call_id: str
    channel: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOpened(_Stamp):
    """A box was opened for the loop."""

    lane: str
    sandbox: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLost(_Stamp):
    """A box was lost; its processes and its `/tmp` are gone."""

    lane: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCompleted(_Stamp):
    """The model called `complete_task`."""

    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(_Stamp):
    """How far a call is.

    Attributes:
        call_id: of the call.
        message: what is being done.
        current, total: how much of how much, in units of the tool's own; None = unknown.
    """

    call_id: str
    message: str
    current: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested(_Stamp):
    """Somebody has to decide whether a call may run; the call waits."""

    request: ApprovalRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered(_Stamp):
    """The decision, or that none came in time (`approved` is false then).

    Attributes:
        request_id: of the request.
        approved: the call may run.
        reason: what was said, or why nothing was.
    """

    request_id: str
    approved: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAsked(_Stamp):
    """The model asks the user; the call waits for the answers."""

    call_id: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolCallBegin(_Stamp):
    """A tool of an MCP server is called."""

    server: str
    tool: str
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolCallEnd(_Stamp):
    """It ended, one way or another."""

    server: str
    tool: str
    call_id: str
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChanged(_Stamp):
    """The permission mode of the loop changed."""

    mode: str
    previous: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TodosChanged(_Stamp):
    """The model wrote its list of todos anew."""

    todos: tuple[Todo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactCreated(_Stamp):
    """The model made a plan, a spec or a phase."""

    artifact: Artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandQueued(_Stamp):
    """A tool asks the host to say this text in its next turn; nothing executes it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundStarted(_Stamp):
    """A task goes on after its call."""

    task_id: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundEnded(_Stamp):
    """A background task ended.

    Attributes:
        status: `completed`, `failed`, `killed` or `lost`.
        exit_code: of a command; None for anything else.
    """

    task_id: str
    status: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(_Stamp):
    """Something beside the work failed: a hook, a server, a commit. No result is changed.

    Attributes:
        message: what happened, and what to do.
        call_id: the call that it belongs to; None = none.
    """

    message: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(_Stamp):
    """The call has its result."""

    result: Result


Event: TypeAlias = (
    CallStarted
    | Output
    | Progress
    | ApprovalRequested
    | ApprovalAnswered
    | QuestionAsked
    | McpToolCallBegin
    | McpToolCallEnd
    | ModeChanged
    | TodosChanged
    | ArtifactCreated
    | CommandQueued
    | BackgroundStarted
    | BackgroundEnded
    | LaneOpened
    | LaneLost
    | TaskCompleted
    | Warned
    | Finished
)
"""Everything that `Loop.stream` and `Loop.events` tell."""


@dataclass(frozen=True, slots=True)
class Spilled:
    """Where the whole of an output is kept.

    Attributes:
        path: as seen in the box; the tools that read files take it.
        kept: bytes that are in it.
        notice: what a reader has to know, for example what is not in it; None = nothing.
    """

    path: str
    kept: int
    notice: str | None = None


# ─── what a loop is given ───────────────────────────────────────────────────────────


def parse_size(text: str | int) -> int:
    """`2g`, `512m`, `64MiB` or a number of bytes → bytes (units are powers of 1024).

    Raises:
        ConfigError: not a size.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write for example 512m or 2g")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def plain(number: float) -> str:
    """A number as people write it: `600000`, `0.5`; never `6e+05`."""
    return str(int(number)) if number == int(number) else str(number)


SECCOMP_PROFILES = ("standard", "strict")
QUOTAS = ("none", "watch", "loop-ext4")
GIT_SHARING = ("shared", "copy", "shallow", "hidden")
LANDINGS = ("keep", "refs", "branch")
NESTED = ("set-aside", "report")
COMMIT_MESSAGE = "{tools}"
"""Of automatic commits: `{tools}` is what the turn's tools did, `{exec_id}` the loop's name."""


@dataclass(frozen=True, slots=True)
class GitOptions:
    """What a loop has of its worktree's repository, and what comes back of it.

    Attributes:
        sharing: how the origin's objects get into the box: `shared`, mounted read-only, all of
            them; `copy`, of the branches and tags that it is shown; `shallow`, of HEAD alone,
            without history; `hidden`, there is no git inside.
        landing: what is done with the loop's commits when it ends: `keep` them aside for
            `executor git import`; make `refs` below `refs/loops/<exec_id>/` in the origin;
            make these and advance the worktree's `branch`, if it is where it was. None = `branch`
            where that is what was asked for, with `commit` or `LoopSpec.repo`, otherwise `keep`.
        commit: commit after each turn that changed something, and land that.
        message: of these commits; `{tools}` and `{exec_id}` are filled in.
        paths: pathspecs of what these commits take; none = everything.
        name, email: who commits in the box; None = as the host's configuration says.
        nested: what is done with repositories that the loop made or changed below its
            worktree: `set-aside` renames their `.git`, so that git outside never obeys
            them; `report` only names them.
        pack_bytes: the most that the loop's new objects may take, packed.
    """

    sharing: str = "shared"
    landing: str | None = None
    commit: bool = False
    message: str = COMMIT_MESSAGE
    paths: tuple[str, ...] = ()
    name: str | None = None
    email: str | None = None
    nested: str = "set-aside"
    pack_bytes: int | str = "512m"

    def faults(self) -> list[str]:
        """Everything that is wrong with these options, one sentence each."""
        found: list[str] = []
        for name, allowed in (
            ("sharing", GIT_SHARING),
            ("landing", (None, *LANDINGS)),
            ("nested", NESTED),
        ):
            if getattr(self, name) not in allowed:
                found.append(
                    f"git.{name}: there is no {getattr(self, name)!r}; "
                    f"use one of {', '.join(filter(None, allowed))}"
                )
        if self.sharing == "hidden" and (self.commit or self.landing in ("refs", "branch")):
            found.append("git: nothing is committed or landed when git is hidden; choose one")
        if not self.message.strip():
            found.append("git.message: is empty; give the text of a commit")
        for name in ("name", "email"):
            text = getattr(self, name)
            if text is not None and (not text.strip() or any(c in text for c in "<>\n\0")):
                found.append(
                    f"git.{name}: {text!r} can't stand in a commit; leave out < > and lines"
                )
        for path in self.paths:
            if not path or "\0" in path or path.startswith("-"):
                found.append(f"git.paths: {path!r} is no pathspec")
        try:
            if parse_size(self.pack_bytes) <= 0:
                found.append(f"git.pack_bytes: {self.pack_bytes} is too small; give 1 or more")
        except ConfigError as error:
            found.append(f"git.pack_bytes: {error}")
        return found


@dataclass(frozen=True, slots=True)
class Limits:
    """What one box may use.

    Attributes:
        memory: bytes (or `2g`), hard; swap is off. At least 64 MiB.
        cpus: cores.
        pids: processes and threads.
        call_timeout: seconds that a command may take when it names no timeout; None = the
            catalog's value. At most the catalog's longest timeout of a command.
        max_seconds: seconds that the loop may take in all; None = a day.
        file_bytes: the largest file that a process may write.
        open_files: descriptors a process.
        disk_bytes: bytes that the loop may add to its worktree (see `LoopSpec.quota`).
        disk_files: files and directories that it may add.
        idle_seconds: seconds without a call after which the box is given back; the next
            call opens a new one. A call counts for as long as it runs, and so does a
            background task; what a call left running by itself does not, and ends with the
            box. None = never.
    """

    memory: int | str = "4g"
    cpus: float = 2.0
    pids: int = 512
    call_timeout: float | None = None
    max_seconds: float | None = None
    file_bytes: int | str = "20g"
    open_files: int = 16384
    disk_bytes: int | str = "10g"
    disk_files: int = 1_000_000
    idle_seconds: float | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory limit in bytes."""
        return parse_size(self.memory)

    def faults(self) -> list[str]:
        """Everything that is wrong with these limits, one sentence each."""
        found: list[str] = []
        for name in ("memory", "file_bytes", "disk_bytes"):
            try:
                size = parse_size(getattr(self, name))
            except ConfigError as error:
                found.append(f"{name}: {error}")
                continue
            if name == "memory" and size < 64 << 20:
                found.append(f"memory: {self.memory} is too small; give at least 64m")
        if not 0.01 <= self.cpus <= 4096:
            found.append(f"cpus: {self.cpus} is out of range; give 0.01 or more")
        if self.disk_files < 1:
            found.append(f"disk_files: {self.disk_files} is too small; give 1 or more")
        if self.pids < 16:
            found.append(f"pids: {self.pids} is too small for a shell; give at least 16")
        for name in ("call_timeout", "max_seconds", "idle_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < float("inf"):
                found.append(f"{name}: {seconds} must be more than 0 seconds")
        return found


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that a loop has beside its worktree, at `/workspaces/<name>`.

    Attributes:
        path: on the engine's host.
        name: in the box; None = the last part of the path.
        is_writable: commands and tools may change what is in it.
    """

    path: Path | str
    name: str | None = None
    is_writable: bool = False

    @classmethod
    def parse(cls, text: str) -> Directory:
        """`DIR`, `DIR:ro` or `DIR:rw`."""
        path, colon, mode = text.rpartition(":")
        if colon and mode in ("ro", "rw"):
            return cls(path, is_writable=mode == "rw")
        return cls(text)

    @property
    def mount(self) -> str:
        """Where it is in the box."""
        return f"{DIRECTORIES}/{self.name}"


def _named_directories(given: Iterable[Directory | Path | str]) -> tuple[Directory, ...]:
    """The same directories, each with a name that no other has."""
    taken: set[str] = set()
    found: list[Directory] = []
    for one in given:
        directory = one if isinstance(one, Directory) else Directory.parse(str(one))
        name = directory.name
        if name is None:
            last = os.path.basename(os.path.abspath(directory.path))
            base = name = re.sub(r"[^A-Za-z0-9._-]", "_", last).lstrip("._-")[:60] or "directory"
            number = 2
            while name in taken:
                name, number = f"{base}-{number}", number + 1
        taken.add(name)
        found.append(replace(directory, name=name))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class EgressOptions:
    """What a loop may reach outside its boxes, through the broker; nothing by default.

    Attributes:
        hosts: `HOST`, or `*.SUFFIX` for the names below one; `:PORT` behind it for one port.
            Without a port: 443 by CONNECT, and plain HTTP on 80.
        setup_hosts: more of them, for the set-up alone.
        private: exact `HOST` or `HOST:PORT` out of `hosts` whose addresses may be private ones,
            as of a registry in the own network. For the operator to say, never for the loop.
        ca_file: a bundle of certificates of the host's that clients in the box believe instead
            of the image's; None = the image's.
        connections: how many there may be at a time.
        total_bytes: bytes (or `2g`) that the loop may send and receive in all.
    """

    hosts: tuple[str, ...] = ()
    setup_hosts: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    ca_file: Path | str | None = None
    connections: int = 64
    total_bytes: int | str = "10g"

    def faults(self) -> list[str]:
        """What is wrong with these options, one sentence each; of hosts see `egress.options`."""
        found: list[str] = []
        if self.connections < 1:
            found.append(f"egress.connections: {self.connections} is too small; give 1 or more")
        try:
            if parse_size(self.total_bytes) < 1:
                found.append(f"egress.total_bytes: {self.total_bytes} is too small; give 1 or more")
        except ConfigError as error:
            found.append(f"egress.total_bytes: {error}")
        if self.ca_file is not None:
            found += _ca_file_faults(Path(self.ca_file))
        return found


def _ca_file_faults(file: Path) -> list[str]:
    """What is wrong with a bundle of certificates, as far as its name goes."""
    if not str(file).strip() or not file.exists():
        return [f"egress.ca_file: there is no {file}; give a file of certificates in PEM form"]
    if not file.is_file():
        return [f"egress.ca_file: {file} is not a file; give one of certificates in PEM form"]
    if not os.access(file, os.R_OK):
        return [f"egress.ca_file: {file} can't be read; give its readers the right to"]
    return []


class Secret:
    """A value that the loop may use and never see.

    Commands find a placeholder in the variable `name`; the broker and the tools of the host put
    the value in its place, in headers to the hosts it is for. It is no dataclass, and can't be
    pickled: what shows, copies or writes a `LoopSpec` gets no value.

    Attributes:
        name: of the variable.
        hosts: exact names, each with an optional `:PORT` behind it and an optional `https://`
            or `http://` before it. Without a port it is for HTTPS at 443 and plain HTTP at 80,
            without a scheme for both.
    """

    __slots__ = ("_value", "hosts", "name")

    name: str
    hosts: tuple[str, ...]

    def __init__(self, name: str, value: str, hosts: Iterable[str] = ()) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "hosts", tuple(hosts))
        object.__setattr__(self, "_value", value)

    @property
    def value(self) -> str:
        """Never shown, logged or passed to a box."""
        return str(object.__getattribute__(self, "_value"))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a secret's {name} can't be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a secret's {name} can't be removed")

    def __repr__(self) -> str:
        return f"Secret(name={self.name!r}, value=***, hosts={self.hosts!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, others = (self.name, self.value, self.hosts), (other.name, other.value, other.hosts)
        return mine == others

    def __hash__(self) -> int:
        return hash((self.name, self.hosts))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret does not leave its process")


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """One loop: its worktree and how it is boxed.

    Attributes:
        worktree: a directory on the engine's host; bind-mounted at `/workspace`.
        limits: what the box may use.
        toolset: the names and schemas shown to the model.
        loop_type: restricts the tools to the catalog's list; None = all of the toolset.
        mode: permission mode.
        image: a name of ours (`base`, `heavy`) or any image on the engine.
        runtime: the engine's runtime; None = its default.
        environment: variables for every command.
        uid: run as this uid and gid instead of the worktree owner's.
        exec_id: name of the loop; generated when absent. Unique among the open loops of one
            `Controller`; two controllers may use the same name, and their boxes' names and
            labels tell them apart.
        tenant: label for hosts that serve several.
        seccomp: our profile of system calls: `standard`, or `strict` without debuggers.
        quota: how `disk_bytes` and `disk_files` are enforced: `none`; `watch`, a look every
            few seconds that ends the box (soft); `loop-ext4`, a file system of its own that
            the worktree is copied into and back (hard, needs root).
        allow, ask, deny: permission rules, as `run_command(git status *)`; see `rules`. Deny
            wins over ask, ask over allow, and each over the mode; but plan mode is not widened.
        skills: directories of skills and commands that the user trusts.
        worktree_skills: take skills from `.claude` in the worktree too.
        text_only: images and pages are described, not sent.
        read_only: the worktree can't be written to.
        agent_id: set for subagents.
        depth: how many agents are above this one.
        chain_id: the same for a loop and all its subagents; made when absent.
        tools: canonical names of all tools that it has, of those that its type allows; None =
            all of them.
        add_dirs: directories beside the worktree, read-only unless they say otherwise; as
            text `DIR`, `DIR:ro` or `DIR:rw`. Limits of disk space don't count them.
        git: what it has of the worktree's repository, and what comes back.
        repo: a repository, bare or not, to take the worktree from; `worktree` is left out then.
        branch: of it; made at its HEAD where there is none. What the loop commits lands there.
        egress: what it may reach outside.
        secrets: values that it may use and never see.
        setup: a command line that runs in each new box before its first call.
        caches: names of directories that loops of the tenant share and that last.
    """

    worktree: Path | str = ""
    limits: Limits = field(default_factory=Limits)
    toolset: str = "standard"
    loop_type: str | None = None
    mode: str = "bypass"
    image: str = "base"
    runtime: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None
    exec_id: str | None = None
    tenant: str = "default"
    seccomp: str = "standard"
    quota: str = "watch"
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    skills: tuple[Path | str, ...] = ()
    worktree_skills: bool = False
    text_only: bool = False
    read_only: bool = False
    agent_id: str | None = None
    depth: int = 0
    chain_id: str | None = None
    tools: tuple[str, ...] | None = None
    add_dirs: tuple[Directory | Path | str, ...] = ()
    git: GitOptions = GitOptions()
    repo: Path | str | None = None
    branch: str | None = None
    egress: EgressOptions = EgressOptions()
    secrets: tuple[Secret, ...] = ()
    setup: str | None = None
    caches: tuple[str, ...] = ()

    @property
    def directories(self) -> tuple[Directory, ...]:
        """The directories beside the worktree, by name; those of skills are read-only."""
        skills = (Directory(path, f"skills-{n}") for n, path in enumerate(self.skills, 1))
        return _named_directories((*self.add_dirs, *skills))

    @property
    def writable(self) -> tuple[Path | str, ...]:
        """Directories of the host that the loop may change: what runs here can't lie there."""
        added = (one.path for one in self.directories if one.is_writable)
        return (self.worktree, *added)

    @property
    def skill_directories(self) -> tuple[tuple[Path, str], ...]:
        """The directories of skills, each with where it is in the box."""
        return tuple(
            (Path(path), f"{DIRECTORIES}/skills-{n}") for n, path in enumerate(self.skills, 1)
        )

    def faults(self) -> list[str]:
        """Everything that is wrong with this specification, one sentence each."""
        found = [*self.limits.faults(), *environment_faults(self.environment), *self.git.faults()]
        found += [*self.egress.faults(), *cache_faults(self.caches)]
        found += [*setup_faults(self.setup), *self._ca_file_faults()]
        found += [
            f"secrets.{name}: the environment sets {name}, too; leave it out there"
            for name in sorted({secret.name for secret in self.secrets} & self.environment.keys())
        ]
        if self.egress.setup_hosts and self.setup is None:
            found.append("setup_egress: nothing would use it, as there is no setup; give one")
        path = Path(self.worktree)
        found += self._repository_faults()
        if self.repo is not None and not str(self.worktree):
            pass  # one is made
        elif not str(self.worktree).strip():
            found.append(
                "worktree: is empty; give a directory (--worktree), or a repository and a branch "
                "(--repo, --branch)"
            )
        elif not path.exists():
            found.append(f"worktree: {path} does not exist; give an existing directory")
        elif not path.is_dir():
            found.append(f"worktree: {path} is not a directory; give one")
        if self.exec_id is not None and not _EXEC_ID.fullmatch(self.exec_id):
            found.append(
                f"exec_id: {self.exec_id!r} is not allowed; use 1 to 64 of a-z 0-9 . _ - "
                "and start with a letter or digit"
            )
        if self.uid is not None and not 0 <= self.uid < 2**31:
            found.append(f"uid: {self.uid} is out of range; give 0 to {2**31 - 1}")
        for name, allowed in (("seccomp", SECCOMP_PROFILES), ("quota", QUOTAS)):
            if getattr(self, name) not in allowed:
                found.append(
                    f"{name}: there is no {getattr(self, name)!r}; use one of {', '.join(allowed)}"
                )
        found += self._directory_faults()
        if not _IMAGE.fullmatch(self.image):
            found.append(
                f"image: {self.image!r} is no name of an image; write base, heavy, or for "
                "example debian:12-slim"
            )
        return found

    def _repository_faults(self) -> list[str]:
        if self.repo is None:
            return ["branch: of which repository? give repo, too"] if self.branch else []
        if not self.branch:
            return ["repo: of which branch? give branch, too"]
        return ["git.sharing: a worktree of a repository needs git"] * (
            self.git.sharing == "hidden"
        )

    def _ca_file_faults(self) -> list[str]:
        """A loop could put a link to any file in the place of one that lies where it writes."""
        if self.egress.ca_file is None:
            return []
        file = Path(self.egress.ca_file)
        places = Path(os.path.realpath(file)), Path(os.path.realpath(file.parent), file.name)
        return [
            f"egress.ca_file: {file} lies in {root}, where the loop can rewrite it; keep it "
            "elsewhere"
            for root in filter(str, self.writable)
            if any(place.is_relative_to(os.path.realpath(root)) for place in places)
        ]

    def _directory_faults(self) -> list[str]:
        found: list[str] = []
        directories = self.directories
        if len(directories) > MAX_DIRECTORIES:
            found.append(f"add_dirs: {len(directories)} are too many; at most {MAX_DIRECTORIES}")
        real = {os.path.realpath(self.worktree): "the worktree"}
        names: set[str] = set()
        own = len(directories) - len(self.skills)
        for number, one in enumerate(directories):
            path = os.path.realpath(one.path)
            option = "add_dirs" if number < own else "skills"
            if one.name in names:
                found.append(f"add_dirs: two are called {one.name!r}; name one otherwise")
            names.add(str(one.name))
            if not _DIRECTORY_NAME.fullmatch(str(one.name)):
                found.append(f"add_dirs: {one.name!r} is no name; use A-Z a-z 0-9 . _ -")
            if not os.path.isdir(path):
                found.append(f"{option}: {one.path} is not a directory; give an existing one")
                continue
            for other, what in real.items():
                if os.path.commonpath((path, other)) in (path, other):
                    found.append(
                        f"{option}: {one.path} is, contains or lies in {what}; one file must not "
                        "have two places in a box"
                    )
            real[path] = str(one.path)
        return found

    def with_exec_id(self, exec_id: str) -> LoopSpec:
        """The same specification under this name."""
        return replace(self, exec_id=exec_id)


def setup_faults(setup: str | None) -> list[str]:
    """What is wrong with the command line of a set-up; None = there is none."""
    if setup is None:
        return []
    if not setup.strip():
        return ["setup: is empty; give a command line"]
    return ["setup: holds a NUL character, which no command can"] * ("\0" in setup)


def cache_faults(caches: Iterable[str]) -> list[str]:
    """What is wrong with names of caches."""
    names = list(caches)
    found = [
        f"caches: {name!r} is no name; use 1 to 32 of a-z 0-9 . _ -"
        for name in names
        if not CACHE_NAME.fullmatch(name)
    ]
    found += [f"caches: {name!r} is named twice" for name in sorted(set(names))
              if names.count(name) > 1]  # fmt: skip
    if len(names) > MAX_CACHES:
        found.append(f"caches: {len(names)} are too many; at most {MAX_CACHES}")
    return found


def environment_faults(environment: Mapping[str, str]) -> list[str]:
    """What is wrong with variables meant for commands inside the box."""
    found: list[str] = []
    for name, value in environment.items():
        if name == MARKER:
            found.append(f"environment: {name} is reserved for the executor")
        elif not _ENVIRONMENT_NAME.fullmatch(name):
            found.append(f"environment: {name!r} is not a variable name")
        elif "\0" in value:
            found.append(f"environment: the value of {name} holds a NUL character")
    return found
