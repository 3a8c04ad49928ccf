"""What a tool is, what it is given, and where tools are registered."""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import json
import re
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from executor.catalog import ToolEntry, ToolsetEntry
from executor.errors import Code, ConfigError, ToolError
from executor.model import (
    MOUNT,
    PLANS,
    Access,
    ApprovalAnswer,
    ApprovalRequest,
    Block,
    Event,
    Limits,
    Progress,
    Question,
    Result,
    Spilled,
    plain,
)
from executor.paths import Added, Reach
from executor.session import Session
from executor.skills import Skill
from executor.text import beginning

if TYPE_CHECKING:
    from executor.bytestream import ByteStream
    from executor.code_questions import CodeQuestion, Found
    from executor.egress.broker import Broker
    from executor.egress.secrets import Secrets
    from executor.messages import Model
    from executor.search import Provider
    from executor.served import Serve

MAX_NAME = 200
"""Characters of a name that a refusal repeats."""
MAX_FAULTS = 10
"""Faults of one call that a refusal tells; there may be as many as fit into a message."""

# ─── what comes in ──────────────────────────────────────────────────────────────────


def _whole(value: Any) -> Any:
    # JSON has one kind of number: 5.0 is a 5 that a program has written in its own way.
    return int(value) if type(value) is float and value.is_integer() else value


def _encodable(value: str) -> str:
    return _checked(value, "strict")


def _encodable_bytes(value: str) -> str:
    return _checked(value, "surrogateescape")


def _checked(value: str, errors: str) -> str:
    if not value.isascii():
        try:
            value.encode("utf-8", errors)
        except UnicodeEncodeError:
            raise PydanticCustomError("string_unicode", "not valid Unicode") from None
    return value


Text = Annotated[str, AfterValidator(_encodable)]
"""Text that can be written as UTF-8."""

Raw = Annotated[str, AfterValidator(_encodable_bytes)]
"""Text in which bytes that are no UTF-8, as of odd file names, are lone surrogates."""

Path = Raw
"""A path as the model writes it; `Context.path` makes a worktree path of it."""

Whole = BeforeValidator(_whole)
"""Marks an int argument; bounds stand before it: `Annotated[int, Field(le=9), Whole]`."""

LARGEST = 2**53 - 1
"""The largest whole number that every reader of JSON keeps as it is."""

Positive = Annotated[int, Field(ge=1, le=LARGEST), Whole]
"""A whole number from 1 to `LARGEST`; no text, no truth value."""


class Arguments(BaseModel):
    """Base of every tool's arguments: JSON types as the schema says, nothing unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=False)


# ─── what a call is going to do ─────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RunsCommand:
    """A shell command line is run. What it does is read out of it by `executor.shell`.

    Attributes:
        text: the command line.
        cwd: where it starts, as seen in the box, if it always starts there and does not
            move the loop; None = it starts where the last one ended.
    """

    text: str
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class RunsCode:
    """A program in another language is run; what it does is unknown."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Touches:
    """A file, or a directory with everything in it, is read, written or deleted.

    Attributes:
        path: as `Context.path` gives it: below the worktree without a leading slash (the
            root is ``""``), elsewhere in the box absolute.
        how: what is done. `list` reads names only, no contents.
        subtree: everything below the path, too.
    """

    path: str
    how: Literal["read", "list", "write", "delete"]
    subtree: bool = False


@dataclass(frozen=True, slots=True)
class Contacts:
    """A host is contacted.

    Attributes:
        host, port: which.
        is_free: nobody has to be asked, unless a rule says so: the loop's egress rules allow it,
            or it is the sandbox itself, and nothing is sent there that could change it.
        in_order: the call may change something there, or need what calls before it did.
    """

    host: str
    port: int | None = None
    is_free: bool = False
    in_order: bool = False


Action: TypeAlias = RunsCommand | RunsCode | Touches | Contacts
"""What permission rules are matched against, and what the order of a turn follows."""


class Order(Enum):
    """How a call may be ordered among the others of its turn."""

    SAFE = auto()
    """Changes nothing that others see: runs beside whatever it does not depend on."""
    UNSAFE = auto()
    """Changes something: one at a time, in order, and never around what touches the same."""
    BARRIER = auto()
    """Nothing passes it, in either direction."""
    LAST = auto()
    """Runs alone, after all others of the turn."""


# ─── what goes out ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FileRead:
    """The loop has seen this file whole: it may be changed.

    Attributes:
        path: as `Context.path` gives it.
        hash: content hash of what was seen.
    """

    path: str
    hash: str


@dataclass(frozen=True, slots=True)
class PermissionGranted:
    """This rule allows from now on, until the loop ends."""

    rule: str


@dataclass(frozen=True, slots=True)
class QueueCommand:
    """Text for the host's next turn; never executed by us."""

    text: str


Modifier: TypeAlias = FileRead | PermissionGranted | QueueCommand
"""What a tool may change in its loop beside its result. Those of calls that ran together
are applied in the order of the calls, after all of them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool has to say; the pipeline makes the call's result of it.

    Attributes:
        content: what the model is shown; what is over the tool's limit is cut and kept.
        structured: the same as data.
        is_error, code: the tool ran and what it ran has failed.
        truncated: something was left out of `content`.
        total_bytes: size of the whole output in bytes, where it is known.
        details: JSON-able facts.
        spill: where the loop can read the whole output; None if it was not kept.
        modifiers: changes of the loop.
        is_fitted: it is within the tool's limit, and what is left out can be had by another
            call or is kept already: nothing more is cut and kept of it.
    """

    content: str | list[Block]
    structured: dict[str, Any] | None = None
    is_error: bool = False
    code: Code | None = None
    truncated: bool = False
    total_bytes: int | None = None
    details: dict[str, Any] | None = None
    spill: str | None = None
    modifiers: tuple[Modifier, ...] = ()
    is_fitted: bool = False


# ─── what a tool works with ─────────────────────────────────────────────────────────

OnOutput: TypeAlias = Callable[[Literal["stdout", "stderr"], bytes], None]


class Answer(Protocol):
    """A reply of the agent."""

    @property
    def value(self) -> dict[str, Any]:
        """The reply's fields."""

    @property
    def data(self) -> bytes:
        """The reply's bulk bytes."""


class Operations(Protocol):
    """Where the operations of an agent are asked for."""

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Answer:
        """One operation. Cancelling the awaiting task ends it in the box.

        Args:
            op: its name.
            arguments: its arguments.
            body: its bulk input.
            timeout: seconds in which the agent itself ends it; a box that has not answered
                some time after that is lost. None = no bound.
            on_output: takes live output.

        Raises:
            ToolError: the operation failed.
            SandboxError: the box could not be had or was lost.
        """
        ...


class Box(Operations, Protocol):
    """The operations of a box that is replaced when it is lost."""

    async def ready(self) -> None:
        """Have a box to ask.

        Raises:
            SandboxError: none could be had.
        """


class Approver(Protocol):
    """Whoever decides: a person, a program, a queue."""

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Decide. It is cancelled when the request's time is over or the call is cancelled."""

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        """Answer questions of the model.

        Returns:
            question → the labels chosen, or free text.

        Raises:
            ToolError: REJECTED, nobody wants to answer; APPROVAL_REQUIRED, nobody can.
        """


class Peers(Protocol):
    """The other loops of the tenant; see `executor.coordination.Member`."""

    async def query(self, target: str, question: str, timeout: float) -> str:
        """Ask another loop and wait for its answer, `timeout` seconds at most."""

    async def share(self, targets: Sequence[str], kind: str, data: Any) -> None:
        """Give data to other loops: to all of them, or to none."""


class Spill(Protocol):
    """Keeps outputs that are too long for the model where the loop can read them."""

    @property
    def most(self) -> int:
        """Bytes of one output that are kept at the most."""

    def holds(self, path: str) -> bool:
        """It is there still: it was not dropped to make room."""

    async def keep(
        self, output: bytes | AsyncIterable[bytes], instead_of: str | None = None
    ) -> Spilled | None:
        """Keep a whole output; None if there is no place for it.

        Args:
            output: all of it, or its pieces, each taken when the one before is written. Of
                bytes that are too many beginning and end are kept, of pieces the beginning.
            instead_of: path of one that is no longer needed when this one is there.

        Raises:
            Exception: whatever the pieces' maker raises; nothing is kept then.
        """


class KeptOutputs(Spill, Protocol):
    """The same as the host has it: it reads what its loop was shown a part of."""

    def kept(self) -> dict[str, int]:
        """What is there now, oldest first: the path as seen in the boxes → bytes. A copy."""

    async def read(self, path: str, start: int, size: int) -> bytes:
        """Some bytes of one; fewer where it ends before.

        Raises:
            KeyError: it was dropped, or never was.
        """


class Agents(Protocol):
    """Starts agents below this one."""

    def types(self) -> Mapping[str, str]:
        """Name → description of the kinds of agents that may be started."""

    async def run(self, context: Context, given: Any) -> Outcome:
        """Start an agent, or go on with one; see `executor.tools.agents`."""


class Languages(Protocol):
    """The language servers of a loop; see `executor.language.servers`."""

    def missing(self, around: Surroundings) -> str | None:
        """Why no question can be answered in the lane of these surroundings; None = some can."""

    async def ask(self, context: Context, question: CodeQuestion) -> Found:
        """Answer a question; the server is started, and told what has changed, before.

        Raises:
            ToolError: UNSUPPORTED, there is no server for such files, or it can't answer this;
                FILE_NOT_FOUND and what else reading the file raises; INVALID_ARGUMENTS, there is
                no such position, or the server says so; EXECUTION_ERROR, the server did not
                start, ended, or refused; TIMEOUT.
            SandboxError: the box could not be had or was lost.
        """


class Called(Protocol):
    """What a call that a tool made came to."""

    @property
    def result(self) -> Result:
        """For the model, but it is the tool's to show it."""

    @property
    def modifiers(self) -> tuple[Modifier, ...]:
        """What it changes in the loop, once the tool's own outcome has them, too."""


class MakeCall(Protocol):
    """Answers a call that a tool makes for its own."""

    async def __call__(self, context: Context, canonical: str, given: Mapping[str, Any]) -> Called:
        """Permitted, asked about, seen by hooks and run as a call of the model's.

        Args:
            context: of the call that makes it.
            canonical: name of the tool in the catalog.
            given: its arguments, as the loop's toolset has them.
        """


@dataclass(frozen=True, slots=True)
class SecondModel:
    """Another model than the one that drives the loop, asked by tools.

    Attributes:
        model: answers.
        name: which model it is asked to be; None = its own.
        max_tokens: the longest answer.
        prompt: what it is told of itself; None = the tool's own text.
    """

    model: Model
    name: str | None = None
    max_tokens: int = 4096
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Web:
    """Whom tools ask on the host, with the operator's keys; a box reaches none of them.

    Attributes:
        search: searches the web; None = nobody does.
        no_search: why, for the model.
        results: how many a search has where the model does not say.
        oracle: the second model; None = there is none.
        no_oracle: why, for the model.
    """

    search: Provider | None = None
    no_search: str = "no search provider is configured"
    oracle: SecondModel | None = None
    no_oracle: str = "no second model is configured"
    results: int = 5


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all calls of one loop share.

    Attributes:
        exec_id: name of the loop.
        session: its memory.
        limits: of its box.
        lane: kind of the box that runs its calls.
        toolset: the catalog's entry of its toolset.
        roots: paths of the worktree on the host, as a host's prompt may name them.
        box: runs the operations.
        seccomp: profile of system calls of its box.
        tenant: whose loop it is.
        approver: who decides and answers; None = nobody can be asked.
        approval_timeout: seconds that a decision may take.
        peers: the other loops; None = there are none.
        spill: keeps long outputs; None = they are not kept.
        agents: starts subagents; None = there are none.
        text_only: images are described, not sent.
        leader: who decides on plans in their own time; None = the approver does, at once.
        prompts: what commands a plan's prompts stand for, as permission rules.
        require_validation: the task can be completed only after `validate` passed.
        agent_id, depth, chain_id: see `LoopSpec`.
        state: a place of their own for tools that a user registered, by any key.
        added: directories that the loop has beside its worktree.
        runtime: name of the engine's runtime for its boxes; None = the engine's default.
        read_only: its worktree can't be changed.
        skills: those that the user trusts, by name.
        worktree_skills: it has those of its worktree, too.
        call: answers a call that a tool makes, through all stages; None = none can be made.
        reads_tasks: it has the tool that reads background tasks; without it none is started.
        no_git: why there is no git in its box; None = there may be.
        web: whom tools ask on the host.
        secrets: whose values are masked in all that leaves the loop; None = there are none.
        egress: what the loop may reach outside its boxes, by the host's tools too; None =
            nothing.
        dial: connects to a port of the loopback in the box that runs commands; None = nothing
            does. Raises ToolError: nothing listens there.
        serve: starts a program in the box of the lane, to be spoken to over its stdin and stdout;
            None = none can be started.
        languages: the language servers of the loop; None = there are none.
        beside: name of a lane → these surroundings as they are there: other `lane`, `box`,
            `limits` and `runtime`, all else the same. Lanes that share a box are that box's.
        lanes: names of the lanes that have a box of their own; more than one, or none = they
            don't differ.
        reach: which paths of the box its tools take.
        is_bridged: its box has a network of the engine's, which no broker watches.
    """

    exec_id: str
    session: Session
    limits: Limits
    lane: str
    toolset: ToolsetEntry
    roots: tuple[str, ...]
    box: Box
    seccomp: str = "standard"
    tenant: str = "default"
    approver: Approver | None = None
    approval_timeout: float = 600.0
    peers: Peers | None = None
    spill: Spill | None = None
    agents: Agents | None = None
    text_only: bool = False
    leader: Approver | None = None
    prompts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    require_validation: bool = False
    agent_id: str | None = None
    depth: int = 0
    chain_id: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    added: tuple[Added, ...] = ()
    runtime: str | None = None
    read_only: bool = False
    skills: Mapping[str, Skill] = field(default_factory=dict)
    worktree_skills: bool = False
    call: MakeCall | None = None
    reads_tasks: bool = True
    no_git: str | None = None
    web: Web = Web()
    egress: Broker | None = None
    secrets: Secrets | None = None
    dial: Callable[[int], Awaitable[ByteStream]] | None = None
    serve: Serve | None = None
    languages: Languages | None = None
    beside: Mapping[str, Surroundings] = field(default_factory=dict, repr=False, compare=False)
    lanes: tuple[str, ...] = ()
    is_bridged: bool = False

    reach: Reach = field(init=False)

    def __post_init__(self) -> None:
        is_box = self.toolset.reach == "box"
        reach = Reach(self.roots, self.added, self.plan_file, is_box)
        object.__setattr__(self, "reach", reach)

    def in_lane(self, lane: str) -> Surroundings:
        """What calls that run in this lane share."""
        return self.beside.get(lane, self)

    @property
    def plan_file(self) -> str:
        """Where the loop writes its plan, as seen in the box."""
        return f"{PLANS}/{self.exec_id}.md"


@dataclass(slots=True)
class Context:
    """What one call is given. The only way of a tool to the box.

    Attributes:
        call_id: of the call.
        entry: the catalog's entry of the tool.
        loop: what all calls of the loop share.
        emit: takes events of the call; None = nobody listens.
        time_left: seconds until the loop ends; None = it has no end.
        turn_id: the same for all calls of one turn.
        tool: name of the tool as the model calls it.
        grant: allows what a rule names until the loop ends; raises ConfigError on a bad rule.
        judged: path → the agent's mark of what was there when the call was judged.
        rules: what the agent holds the call to where it opens files, besides what the rules
            deny to the whole loop; None = nothing.
        beside: the same where it opens other files than those that it was judged by: about them
            nobody was asked.
        is_trial: it ends, by `Tried`, where it would change a file.
        is_approved: somebody was asked about the call, and agreed to it as it runs.
    """

    call_id: str
    entry: ToolEntry
    loop: Surroundings
    emit: Callable[[Event], None] | None = None
    time_left: float | None = None
    turn_id: str = ""
    tool: str = ""
    grant: Callable[[str], None] | None = None
    judged: dict[str, str] | None = None
    rules: dict[str, Any] | None = None
    beside: dict[str, Any] | None = None
    is_trial: bool = False
    is_approved: bool = False

    def judge(self, path: str, mark: str) -> None:
        """Note what a judgement rests on: what was at a path; empty = nothing."""
        self.judged = {**(self.judged or {}), path: mark}

    def bound(self, path: str) -> dict[str, str]:
        """Arguments that bind a `write`, `move` or `delete` to what the call was judged by.

        The agent refuses it with CONFLICT if something else is at the path by then.
        """
        if self.judged is None or path not in self.judged:
            return {}
        return {"judged": self.judged[path]}

    def tell(self, event: Event) -> None:
        """Tell whoever listens."""
        if self.emit is not None:
            self.emit(event)

    def progress(
        self, message: str, current: float | None = None, total: float | None = None
    ) -> None:
        """Tell how far the call is; see `Progress`."""
        self.tell(Progress(call_id=self.call_id, message=message, current=current, total=total))

    @property
    def cwd(self) -> str:
        """Where the next command starts, as seen in the box."""
        return self.session.cwd

    @property
    def session(self) -> Session:
        """The loop's memory."""
        return self.loop.session

    @property
    def shell(self) -> str | None:
        """The shell that reads the call's command lines; None = the box has none."""
        return self.session.shell_of(self.loop.lane)

    def path(self, text: str) -> str:
        """A path that a model wrote, of something to be read → the path as tools name it.

        Below the worktree it has no leading slash, and the root is ``""``; elsewhere in the
        box it is absolute. Absolute paths below `/workspace`, or below the worktree's place
        on the host, are translated as text; nothing is looked up.

        Raises:
            ToolError: INVALID_PATH, the loop's tools have nothing to do there, or it is no
                path at all.
        """
        return self.loop.reach.to_read(text, self._base)

    def path_to_write(self, text: str) -> str:
        """The same for something to be made, changed or deleted.

        Raises:
            ToolError: INVALID_PATH; PERMISSION_DENIED, it is only for reading.
        """
        path = self.loop.reach.to_write(text, self._base)
        if self.loop.read_only and not path.startswith("/"):
            raise ToolError(
                Code.PERMISSION_DENIED,
                f"The path {text!r} can't be changed: the worktree is read-only here. Say in your "
                "answer what should be changed.",
            )
        return path

    @property
    def _base(self) -> str:
        """Where a relative path of a file begins."""
        return self.cwd if self.loop.toolset.relative_to == "cwd" else MOUNT

    @property
    def seconds(self) -> float:
        """How long one operation may take."""
        seconds = self.entry.timeout_ms / 1000
        return seconds if self.time_left is None else min(seconds, self.time_left)

    def shown(self, path: str) -> str:
        """A path as tools name it → as the model is shown it in this toolset.

        Args:
            path: as `path` gives it; of a worktree's file, or absolute.
        """
        if path.startswith("/"):
            return path
        if self.loop.toolset.shown == "relative":
            return path or "."
        return f"{MOUNT}/{path}" if path else MOUNT

    async def ask(self, op: str, arguments: dict[str, Any], body: bytes = b"") -> Answer:
        """One operation of the agent, ended when the tool's time is over.

        Args:
            op: its name.
            arguments: its arguments.
            body: its bulk input.

        Raises:
            ToolError: the operation failed, or took longer than the catalog allows.
            Tried: the call is a trial, and the operation would have changed something.
        """
        await self.loop.box.ready()
        ends_trial = self.is_trial and op in _CHANGES
        if ends_trial:
            arguments = {**arguments, "trial": True}
        if self.loop.toolset.reach == "box":
            arguments = {**arguments, "reach": "box"}
        if self.rules is not None:
            arguments = {**arguments, "rules": self.rules}
        seconds = self.seconds
        try:
            answer = await self.loop.box.request(op, arguments, body, timeout=seconds)
        except ToolError as error:
            if error.code is not Code.TIMEOUT:
                raise
            text = f"Timed out after {round(seconds * 1000)}ms. Try less at a time."
            raise ToolError(Code.TIMEOUT, text) from None
        if ends_trial:
            raise Tried
        return answer


_CHANGES = frozenset({"write", "edit", "edit_notebook", "delete", "move"})
"""Operations that change files."""


class Tried(Exception):
    """A trial has come to where the call would change a file: nothing stands against it."""


# ─── the tool ───────────────────────────────────────────────────────────────────────

Run: TypeAlias = Callable[[Context, Any], Awaitable[Outcome]]
Actions: TypeAlias = Callable[[Context, Any], Sequence[Action]]
Prepare: TypeAlias = Callable[[Context, Any], Awaitable[Mapping[str, Any]]]


def no_actions(context: Context, given: Any) -> Sequence[Action]:
    """Of a tool that touches nothing but the loop's own memory."""
    return ()


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as a toolset shows it.

    Attributes:
        name: under which the model calls it.
        description: what the model reads.
        schema: JSON Schema of the arguments.
        arguments: checks and holds the arguments.
        run: does the work.
        canonical: name of the tool in the catalog.
        entry: the catalog's entry.
        order: how a call is ordered in its turn, where its actions don't say more.
        actions: what a call with these arguments is going to do.
        output_schema: JSON Schema of `Outcome.structured`; None = it has none.
        show_use: a call in one line, for people; None = its name and arguments.
        unavailable: why a loop does not have the tool; None = it has it.
        mutates: it may change the worktree; None = as its access says.
        describe: the description, made for one loop; None = `description` is it.
        approved_arguments: checks arguments that an approver gave instead of the model's, if
            they may be more than those.
        prepare: what it adds to the arguments by what it finds in the box, before the call is
            judged: so rules, approvers and hooks see what will run.
        can_be_tried: all that it changes are files, by operations of the agent that can be
            tried; see `refuse_early`.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    arguments: type[BaseModel]
    run: Run
    canonical: str
    entry: ToolEntry
    order: Order = Order.UNSAFE
    actions: Actions = no_actions
    output_schema: Mapping[str, Any] | None = None
    show_use: Callable[[Any], str] | None = None
    unavailable: Callable[[Surroundings], str | None] | None = None
    mutates: bool | None = None
    describe: Callable[[Surroundings], str] | None = None
    approved_arguments: type[BaseModel] | None = None
    prepare: Prepare | None = None
    can_be_tried: bool = False

    async def refuse_early(self, context: Context, arguments: BaseModel) -> None:
        """Refuse a call that would be refused when it runs, before anybody is asked about it.

        Raises:
            ToolError: as running it would. Nothing was changed in either case.
        """
        if self.can_be_tried:
            with contextlib.suppress(Tried):
                await self.run(replace(context, is_trial=True), arguments)

    @property
    def access(self) -> Access:
        """What the tool touches."""
        return self.entry.access

    @property
    def is_mutating(self) -> bool:
        """A successful call may have changed the worktree."""
        if self.mutates is not None:
            return self.mutates
        return self.access in (Access.WRITE, Access.EXEC)

    def parse(self, given: Any, *, is_approvers: bool = False) -> BaseModel:
        """Arguments as the model gave them → checked ones.

        Null for an optional argument counts as absent; `create_dirs` counts as
        `createDirs`.

        Args:
            given: the arguments.
            is_approvers: it was an approver who gave them.

        Raises:
            ToolError: INVALID_ARGUMENTS, with the faults, `MAX_FAULTS` at the most, and the names
                of the fields.
        """
        if not isinstance(given, Mapping):
            raise invalid_arguments(self.name, [("input", "must be an object of arguments")])
        arguments = self.arguments
        if is_approvers and self.approved_arguments is not None:
            arguments = self.approved_arguments
        spelled = _SPELLINGS.get(arguments)
        if spelled is None:
            spelled = _SPELLINGS[arguments] = _spellings(arguments)
        if spelled and not spelled.keys().isdisjoint(given):
            given = self._respelled(given, spelled)
        if None in given.values():
            required = self.schema.get("required", ())
            given = {
                name: value
                for name, value in given.items()
                if value is not None or name in required
            }
        try:
            return arguments.model_validate(given)
        except ValidationError as error:
            items = error.errors()
            told = [self._fault(item) for item in items[:MAX_FAULTS]]
            raise invalid_arguments(self.name, told, more=len(items) - len(told)) from None

    def _respelled(self, given: Mapping[str, Any], spelled: Mapping[str, str]) -> dict[str, Any]:
        both = [name for name in spelled if name in given and spelled[name] in given]
        if both:
            name = both[0]
            raise invalid_arguments(
                self.name, [(name, f"is the same as {spelled[name]}; give one of the two")]
            )
        return {spelled.get(name, name): value for name, value in given.items()}

    def _fault(self, item: Any) -> tuple[str, str]:
        path = ".".join(str(part) for part in item["loc"] if part != "[key]")
        name = beginning(path, MAX_NAME) or "input"
        if item["type"] == "extra_forbidden":
            names = list(self.schema["properties"])
            near = difflib.get_close_matches(name, names, n=1)
            known = f"did you mean {near[0]}" if near else f"the arguments are {', '.join(names)}"
            return name, f"is not an argument of this tool; {known}"
        return name, _fault_text(item)


def invalid_arguments(tool: str, faults: Sequence[tuple[str, str]], *, more: int = 0) -> ToolError:
    """The refusal of a call.

    Args:
        tool: its name.
        faults: which argument, and what of it, as words that follow its name.
        more: faults that are not among them.
    """
    sentences = "; ".join(f"{name} {fault}" for name, fault in faults)
    sentences += f"; and {more} more" if more else ""
    return ToolError(
        Code.INVALID_ARGUMENTS,
        f"Invalid arguments for {tool}: {sentences}.",
        {"faults": [{"field": name, "message": fault} for name, fault in faults]},
    )


_SPELLINGS: dict[type[BaseModel], dict[str, str]] = {}


def _spellings(arguments: type[BaseModel]) -> dict[str, str]:
    """snake_case spelling → the shown one, for the arguments shown in camelCase."""
    aliases = [info.alias or "" for info in arguments.model_fields.values()]
    shown = [alias for alias in aliases if alias.isidentifier()]
    return {_snake(name): name for name in shown if _snake(name) != name}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", lambda match: "_" + match[1].lower(), name)


_FAULTS = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "string_unicode": "holds half a character (a lone surrogate); send valid Unicode",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "literal_error": "must be one of {expected}",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "greater_than": "must be more than {gt}",
    "finite_number": "must be a finite number",
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have {max_length} or fewer entries",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have {max_length} or fewer characters",
}


def _fault_text(item: Any) -> str:
    kind = item["type"]
    if kind in ("too_short", "too_long") and isinstance(item["input"], str):
        kind = f"string_{kind}"  # pydantic tells it so of a text that is looked at further
    text = _FAULTS.get(kind)
    if text is None:
        return str(item["msg"])
    bounds = item.get("ctx", {})
    text = text.format_map(
        {key: plain(at) if isinstance(at, float) else at for key, at in bounds.items()}
    )
    if item["type"] in ("missing", "string_unicode"):
        return text
    if item["type"].endswith(("too_short", "too_long")):
        return f"{text}, not {len(item['input'])}"
    return f"{text}, not {_named(item['input'])}"


def _named(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return "so large a number"
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else "a text"
    return "a list" if isinstance(value, list) else "an object"


def schema_of(arguments: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema that models are shown: no titles, no nulls, no defaults, no references."""
    return copy.deepcopy(_made_schema(arguments))


@functools.cache
def _made_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    """Made once: it takes pydantic longer than an engine takes to answer.

    Raises:
        ConfigError: the model refers to itself, for which a schema needs references.
    """
    raw = arguments.model_json_schema(by_alias=True)
    made = _own_docstring_left_out(_plain(raw, raw.get("$defs", {})))
    return {**made, "properties": made.get("properties", {})}


_UNSHOWN = ("title", "default", "anyOf", "$ref", "$defs", "discriminator")
_SCHEMAS = ("items", "additionalProperties")
_LISTS = ("prefixItems", "oneOf", "allOf")
_NAMED_SCHEMAS = ("properties", "patternProperties")


def _plain(part: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """One schema, with what it refers to in its place.

    Args:
        part: of the raw schema.
        known: what references lead to, by the last part of their name.
    """
    kept = {key: value for key, value in part.items() if key not in _UNSHOWN}
    choices = [_plain(one, known) for one in part.get("anyOf", ()) if one.get("type") != "null"]
    if len(choices) == 1:
        kept = {**choices[0], **kept}
    elif choices:
        kept["anyOf"] = choices
    if "$ref" in part:
        kept = {**_referred(part["$ref"].rpartition("/")[2], known), **kept}
    for key, value in kept.items():
        if key in _SCHEMAS and isinstance(value, Mapping):
            kept[key] = _plain(value, known)
        elif key in _LISTS:
            kept[key] = [_plain(one, known) for one in value]
        elif key in _NAMED_SCHEMAS:
            kept[key] = {name: _plain(one, known) for name, one in value.items()}
    order = ("type", "description", "properties", "required")
    first = {key: kept[key] for key in order if kept.get(key)}
    return {**first, **{key: value for key, value in kept.items() if key not in order}}


def _referred(name: str, known: Mapping[str, Any]) -> dict[str, Any]:
    if name not in known:
        raise ConfigError(
            f"the model {name} refers to itself, which no schema without references can say; "
            "give it a bounded depth"
        )
    others = {key: value for key, value in known.items() if key != name}
    return _own_docstring_left_out(_plain(known[name], others))


def _own_docstring_left_out(schema: Mapping[str, Any]) -> dict[str, Any]:
    # pydantic takes a model's docstring, which is for readers of the code.
    return {key: value for key, value in schema.items() if key != "description"}


# ─── the registry ───────────────────────────────────────────────────────────────────


class Registry:
    """The tools of one loop, in the order in which the model sees them."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    @classmethod
    def from_tools(cls, tools: Iterable[Tool]) -> Registry:
        """A registry with these tools.

        Raises:
            ConfigError: two have the same name.
        """
        registry = cls()
        for tool in tools:
            registry.register(tool)
        return registry

    def register(self, tool: Tool, *, replace: bool = False) -> None:
        """Add a tool.

        Args:
            tool: the tool.
            replace: take the place of a tool of the same name.

        Raises:
            ConfigError: the name is taken; names both tools. Or it is no tool.
        """
        if not isinstance(tool, Tool):
            raise ConfigError(f"{tool!r} is no tool; make one of it with custom_tool")
        other = self._tools.get(tool.name)
        if other is not None and not replace:
            raise ConfigError(
                f"two tools are called {tool.name!r}: {_origin(other)} and {_origin(tool)}; "
                "rename one or register with replace=True"
            )
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        """The tool of this name."""
        return self._tools.get(name)

    def list(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self._tools)

    def all(self) -> tuple[Tool, ...]:
        """The tools, in order."""
        return tuple(self._tools.values())

    def definitions(self) -> tuple[dict[str, Any], ...]:
        """The tools as Anthropic's API takes them."""
        return tuple(
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in self.all()
        )

    def to_openai_functions(self) -> tuple[dict[str, Any], ...]:
        """The tools as bare functions: name, description, parameters."""
        return tuple(
            {"name": tool.name, "description": tool.description, "parameters": tool.schema}
            for tool in self.all()
        )


def _origin(tool: Tool) -> str:
    return f"{tool.run.__module__}.{getattr(tool.run, '__qualname__', tool.run)}"
