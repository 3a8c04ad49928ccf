"""Turns "ask" into a decision: what somebody is shown, and whoever decides."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel

from executor.callables import TooLate, Unusable, bounded, called, own_json
from executor.errors import Code, ConfigError, SandboxError, ToolError
from executor.model import (
    ApprovalAnswer,
    ApprovalAnswered,
    ApprovalRequest,
    ApprovalRequested,
    Event,
    Question,
    Remember,
)
from executor.permissions import Hit, Judgement, covers, hit, is_host, is_path, parsed
from executor.rules import Command, Rule, Rules
from executor.text import one_line
from executor.tool import Approver, Contacts, Context, RunsCode, RunsCommand, Tool, Touches

DENIED = "User denied permission"
MAX_DIFF = 128 << 10
"""Bytes of a file, old or new, of which a difference is shown."""
MAX_NOTEBOOK = 4 << 20
"""Bytes of a notebook's sources among which the one that is changed is looked for."""
MAX_SHOWN = 4 << 20
"""Characters of a request's `action`: a command can't be longer, a program's text is cut."""

T = TypeVar("T")


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """What an approval is bound to: SHA-256 of the tool's name and its arguments."""
    text = json.dumps([tool, arguments], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


async def decide(
    tool: Tool,
    given: Mapping[str, Any],
    arguments: BaseModel,
    context: Context,
    judgement: Judgement,
) -> Mapping[str, Any] | None:
    """Have a call approved.

    Args:
        tool: the tool.
        given: its arguments as given; what an approval is bound to.
        arguments: the same, checked.
        context: of the call.
        judgement: why it has to be asked.

    Returns:
        Other arguments that are to run instead; None = run these.

    Raises:
        ToolError: REJECTED; TIMEOUT; APPROVAL_REQUIRED, there is no one to ask; or what the
            call would be refused for anyway.
    """
    approver = context.loop.approver
    if approver is None:
        raise _nobody(tool, context, judgement)
    try:
        given = own_json(given)
    except Unusable as error:
        text = f"Nobody can be asked about {tool.name}: it has {error}."
        raise ToolError(Code.INVALID_ARGUMENTS, text) from error
    await tool.refuse_early(context, arguments)
    request = await _request(tool, given, arguments, context, judgement)
    answer = await answered(approver, request, context.tell)
    if not answer.approved:
        reason = f": {answer.reason}" if answer.reason else "."
        raise ToolError(Code.REJECTED, f"{DENIED}{reason}", {"approval": request.id})
    if answer.modified_arguments is not None:
        return answer.modified_arguments
    if answer.remember is Remember.SESSION:
        _remember(context, request.rules)
    return None


async def answered(
    approver: Approver, request: ApprovalRequest, tell: Callable[[Event], None]
) -> ApprovalAnswer:
    """The answer to a request, which is told of, and so is how it ended.

    Args:
        approver: is asked.
        request: what for, and how long.
        tell: takes the events.

    Raises:
        ToolError: REJECTED, whoever decides has failed or answered something else; TIMEOUT.
    """
    tell(ApprovalRequested(request=request))
    said = "it was cancelled"
    answer: ApprovalAnswer | None = None
    try:
        answer = await _answered(approver, request)
        said = answer.reason or ""
        return answer
    except ToolError as error:
        said = str(error)
        raise
    finally:
        approved = answer is not None and answer.approved
        tell(ApprovalAnswered(request_id=request.id, approved=approved, reason=said or None))


def _nobody(tool: Tool, context: Context, judgement: Judgement) -> ToolError:
    if judgement.rule is not None:
        mend = f"Only without the rule {judgement.rule} would it run unasked."
    elif judgement.allowing:
        mend = f"It would be allowed by the rule {' and '.join(judgement.allowing)}."
    else:
        mend = f"No rule but {tool.name}, for every call of it, would allow it."
    return ToolError(
        Code.APPROVAL_REQUIRED,
        f"{tool.name} needs approval ({judgement.reason.rstrip('.')}), and there is no one to "
        f"ask. {mend}",
        {"mode": context.session.mode, "allowed_by": list(judgement.allowing)},
    )


async def _answered(approver: Approver, request: ApprovalRequest) -> ApprovalAnswer:
    """The answer, if one comes in time and is meant for this request.

    Raises:
        ToolError: REJECTED or TIMEOUT.
    """
    about = {"approval": request.id}
    try:
        answer = _usable(await bounded(approver.approve(request), request.timeout))
    except ToolError:
        raise
    except TooLate:
        text = f"Nobody decided on {request.tool} within {request.timeout:g} s; nothing was run."
        raise ToolError(Code.TIMEOUT, text, about) from None
    except Exception as error:
        why = str(error) if isinstance(error, Unusable) else type(error).__name__
        text = f"{DENIED}: who decides has failed ({why}); nothing was run."
        raise ToolError(Code.REJECTED, text, about) from error
    if answer.arguments_hash not in (None, request.arguments_hash):
        text = f"{DENIED}: the approval was given for other arguments; nothing was run."
        raise ToolError(Code.REJECTED, text, about)
    return answer


def _usable(answer: Any) -> ApprovalAnswer:
    """The answer as its type says: what only looks like a yes is none.

    Raises:
        Unusable: it is something else.
    """
    if not isinstance(answer, ApprovalAnswer):
        raise Unusable(f"{type(answer).__name__} where an answer belongs")
    if not isinstance(answer.approved, bool):
        raise Unusable(f"approved is {answer.approved!r:.40}; it must be true or false")
    if answer.reason is not None and not isinstance(answer.reason, str):
        raise Unusable("its reason is no text")
    if answer.modified_arguments is None:
        return answer
    return replace(answer, modified_arguments=own_json(answer.modified_arguments))


def _remember(context: Context, rules: Iterable[str]) -> None:
    for rule in rules:
        context.session.rules = context.session.rules.allowing(rule)


def _grantable(context: Context, rules: tuple[str, ...]) -> tuple[str, ...]:
    """The rules, if all of them can be granted: what can't be written as a rule is asked again."""
    try:
        for rule in rules:
            context.session.rules.allowing(rule)
    except ConfigError:
        return ()
    return rules


# ─── what is shown ──────────────────────────────────────────────────────────────────


async def _request(
    tool: Tool,
    given: Mapping[str, Any],
    arguments: BaseModel,
    context: Context,
    judgement: Judgement,
) -> ApprovalRequest:
    description = given.get("description")
    timeout = context.loop.approval_timeout
    if context.time_left is not None:
        timeout = min(timeout, context.time_left)
    return ApprovalRequest(
        id=f"approval-{secrets.token_hex(6)}",
        step_id=context.call_id,
        exec_id=context.loop.exec_id,
        tool=tool.name,
        # A copy: whoever decides must not be able to change what runs.
        arguments=own_json(given),
        action=_action(tool, given, arguments, context),
        description=description if isinstance(description, str) else None,
        reason=judgement.reason,
        diff=await _diff(tool, given, arguments, context),
        rules=_grantable(context, judgement.allowing),
        timeout=timeout,
        arguments_hash=fingerprint(tool.name, given),
    )


def _action(tool: Tool, given: Mapping[str, Any], arguments: BaseModel, context: Context) -> str:
    """What the call does, whole: command lines, code, paths and hosts, one a line."""
    lines: list[str] = []
    for action in tool.actions(context, arguments):
        match action:
            case RunsCommand(text=text) | RunsCode(text=text):
                lines.append(text)
            case Touches(path=path):
                lines.append(_shown(path) or ".")
            case Contacts(host=host, port=port):
                lines.append(host if port is None else f"{host}:{port}")
    if not lines:
        lines.append(json.dumps(dict(given), ensure_ascii=False))
    return "\n".join(dict.fromkeys(lines))[:MAX_SHOWN]


async def _diff(
    tool: Tool, given: Mapping[str, Any], arguments: BaseModel, context: Context
) -> str | None:
    """What a change of a text file would change; None where it can't be shown."""
    actions = tool.actions(context, arguments)
    written = [one.path for one in actions if isinstance(one, Touches) and one.how == "write"]
    if len(written) != 1:
        return None
    (place,) = written
    try:
        found = await (_cell if "new_source" in given else _texts)(place, given, context)
    except (ToolError, SandboxError, UnicodeDecodeError):
        return None
    if found is None or len(found[2]) > MAX_DIFF:
        return None
    # Beside the loop: two long files that have little in common take a while.
    return await asyncio.to_thread(_unified, *found) or None


async def _texts(
    place: str, given: Mapping[str, Any], context: Context
) -> tuple[str, str, str] | None:
    """Name, old and new text of a file that is written."""
    change = _change(given)
    if change is None:
        return None
    asked = {"path": place, "encoding": "base64", "max_raw_bytes": MAX_DIFF}
    try:
        old = (await context.ask("read", asked)).data.decode()
    except ToolError as error:
        if error.code is not Code.FILE_NOT_FOUND:
            raise
        old = ""
    new = change(old)
    return None if new is None else (_shown(place), old, new)


async def _cell(
    place: str, given: Mapping[str, Any], context: Context
) -> tuple[str, str, str] | None:
    """Name, old and new source of a notebook's cell."""
    mode, name = given.get("edit_mode") or "replace", str(given.get("cell_id"))
    new = "" if mode == "delete" else str(given["new_source"])
    if mode == "insert":
        return f"{_shown(place)}#new cell", "", new
    # Of every cell its source, and of outputs nothing but that they are there.
    asked = {"path": place, "max_bytes": MAX_NOTEBOOK, "part_bytes": 0, "pictures": 0}
    answer = await context.ask("read_notebook", asked)
    found: list[str] = []
    at = 0
    for part in answer.value["parts"]:
        piece = answer.data[at : at + part["length"]]
        at += part["length"]
        if part["kind"] == "source" and part["cell"] == name and not part["left_out"]:
            found.append(piece.decode())
    if len(found) != 1 or len(found[0]) > MAX_DIFF:
        return None
    return f"{_shown(place)}#{_shown(name)}", found[0], new


def _shown(path: str) -> str:
    """A path on one line."""
    return one_line(path, MAX_SHOWN)


def _change(given: Mapping[str, Any]) -> Callable[[str], str | None] | None:
    """What the arguments make of a text; None = they are of no change that is known."""
    content, edits = given.get("content"), given.get("edits")
    if isinstance(content, str) and given.get("encoding") in (None, "utf-8"):
        return lambda text: content
    if isinstance(edits, list):
        steps = [(edit.get("old_str"), edit.get("new_str"), edit.get("replace_all"))
                 for edit in edits if isinstance(edit, Mapping)]  # fmt: skip
    else:
        steps = [(given.get("old_string"), given.get("new_string"), given.get("replace_all"))]
    if not steps or not all(isinstance(old, str) and isinstance(new, str) for old, new, _ in steps):
        return None

    def edited(text: str) -> str | None:
        for old, new, everywhere in steps:
            if not isinstance(old, str) or not isinstance(new, str) or old not in text:
                return None
            text = text.replace(old, new, -1 if everywhere is True else 1)
        return text

    return edited


def _unified(name: str, old: str, new: str) -> str:
    """The difference in which every character counts: line ends, and whether the last has one."""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    unended = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else f"{line}{unended}" for line in lines)[:-1]


def _lines(text: str) -> list[str]:
    # Not splitlines: it takes characters for line ends that programs don't.
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


# ─── who decides ────────────────────────────────────────────────────────────────────

Decides: TypeAlias = Callable[
    [ApprovalRequest], bool | ApprovalAnswer | Awaitable[bool | ApprovalAnswer]
]
Replies: TypeAlias = Callable[
    [Sequence[Question]],
    Mapping[str, Sequence[str]] | Awaitable[Mapping[str, Sequence[str]]],
]


def _no_answers(questions: Sequence[Question]) -> ToolError:
    return ToolError(
        Code.APPROVAL_REQUIRED,
        "There is no one to ask in this run. Decide by what you know, and say which assumption "
        "you made.",
    )


class CallableApprover:
    """A function decides.

    Args:
        decides: request → true, false, or an answer; async or not. One that is not async is
            called in a thread. Anything else is no answer, and nothing is run.
        replies: questions → answers; None = nobody answers questions.
    """

    def __init__(self, decides: Decides, replies: Replies | None = None) -> None:
        self._decides = decides
        self._replies = replies

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `Approver.approve`."""
        answer: Any = await called(self._decides, request)
        return ApprovalAnswer(approved=answer) if isinstance(answer, bool) else answer

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        """See `Approver.answer`."""
        if self._replies is None:
            raise _no_answers(questions)
        answers: Mapping[str, Sequence[str]] = await called(self._replies, questions)
        return answers


class PolicyApprover:
    """Rules decide, for tests and for runs that nobody watches.

    What a rule of `deny` names is refused, what one of `allow` names is approved, and so is
    or is not all else. Patterns are compared with the text of the request: a command with
    its parse, paths as they were given, hosts. What denies is about any part of a request;
    what allows has to be about all of it.

    Args:
        allow, deny: rules, as those of a loop.
        otherwise: what is said where no rule speaks.
        answers: question → the answers that are given to it.

    Raises:
        ConfigError: with every bad rule, named.
    """

    def __init__(
        self,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        *,
        otherwise: bool = False,
        answers: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._rules = Rules.parse(allow=allow, deny=deny)
        self._otherwise = otherwise
        self._answers = answers

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `Approver.approve`."""
        for rules, approved in ((self._rules.deny, False), (self._rules.allow, True)):
            for rule in rules:
                if _speaks_of(rule, request, allows=approved):
                    return ApprovalAnswer(approved=approved, reason=f"by the rule {rule.text}")
        return ApprovalAnswer(approved=self._otherwise, reason="by default")

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        """See `Approver.answer`."""
        if self._answers is None:
            raise _no_answers(questions)
        return self._answers


def _speaks_of(rule: Rule, request: ApprovalRequest, *, allows: bool) -> bool:
    """Whether a rule is about a request: to allow it all of it, to deny it any part of it."""
    if not rule.names(request.tool, request.tool):
        return False
    if rule.pattern is None:
        return True
    lines = request.action.split("\n")
    if rule.host is not None:
        hosts = [re.sub(r":\d+\Z", "", line) for line in lines]
        return (all if allows else any)(is_host(rule.host, host) for host in hosts)
    command = request.arguments.get("command")
    if isinstance(command, str):
        return _speaks_of_command(rule.pattern, command, allows=allows)
    if rule.is_of_commands:
        return not allows  # what a program in another language runs is not known
    return (all if allows else any)(is_path(rule.pattern, path) for path in lines)


def _speaks_of_command(text: str, command: str, *, allows: bool) -> bool:
    try:
        pattern = Command.parse(text)
    except ConfigError:
        return False
    # Which shell the box has is not known here, and they do not read every line alike.
    scripts = [parsed(command, shell=shell) for shell in ("bash", "sh")]
    if any(script.fault is not None for script in scripts):
        return not allows
    commands = [one for script in scripts for one in script.commands]
    if not allows:
        return any(hit(pattern, one) is not Hit.NO for one in commands)
    # A rule for commands says nothing of the files that the shell itself writes.
    return bool(commands) and all(
        covers(pattern, one) and one.redirected == frozenset() for one in commands
    )


@dataclass(frozen=True, slots=True)
class QuestionRequest:
    """Questions that wait for answers.

    Attributes:
        id: an answer names it.
        questions: of one call.
    """

    id: str
    questions: tuple[Question, ...]


class QueueApprover:
    """Somebody elsewhere decides, in their own time: requests wait until they are answered.

    Iterate over it to get requests as they come; answer each by its id, in any order. An
    answer to a request that has ended, by its time, a cancellation or another answer, is
    refused.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Any, asyncio.Future[Any]]] = {}
        self._unseen: dict[str, ApprovalRequest | QuestionRequest] = {}
        self._news = asyncio.Event()
        self._questions = 0

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """See `Approver.approve`."""
        answer: ApprovalAnswer = await self._decided(request)
        return answer

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        """See `Approver.answer`."""
        self._questions += 1
        request = QuestionRequest(f"question-{self._questions}", tuple(questions))
        answers: Mapping[str, Sequence[str]] = await self._decided(request)
        return answers

    async def _decided(self, request: ApprovalRequest | QuestionRequest) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = (request, future)
        self._unseen[request.id] = request
        self._news.set()
        try:
            return await future
        finally:
            del self._waiting[request.id]
            self._unseen.pop(request.id, None)

    async def __aiter__(self) -> AsyncIterator[ApprovalRequest | QuestionRequest]:
        """The requests, each once, as they come; those that have ended meanwhile are left out."""
        while True:
            while not self._unseen:
                self._news.clear()
                await self._news.wait()
            yield self._unseen.pop(next(iter(self._unseen)))

    def pending(self) -> tuple[ApprovalRequest | QuestionRequest, ...]:
        """The requests that wait, in the order in which they came."""
        return tuple(request for request, _ in self._waiting.values())

    def decide(self, id: str, answer: ApprovalAnswer) -> None:
        """Answer a request.

        Args:
            id: of the request.
            answer: with the request's `arguments_hash`, or without any.

        Raises:
            LookupError: no such request waits: it never was, or it has ended.
            ValueError: the answer is for other arguments; the request goes on waiting.
        """
        request, future = self._pending(id, ApprovalRequest)
        if answer.arguments_hash not in (None, request.arguments_hash):
            raise ValueError(f"{id}: the answer is for other arguments; look at the request again")
        future.set_result(answer)

    def reply(self, id: str, answers: Mapping[str, Sequence[str]]) -> None:
        """Answer questions.

        Args:
            id: of the request.
            answers: question → the labels chosen, or free text.

        Raises:
            LookupError: no such questions wait.
        """
        self._pending(id, QuestionRequest)[1].set_result(answers)

    def expire(self, id: str) -> None:
        """Let a request end as if its time were over.

        Raises:
            LookupError: no such request waits.
        """
        _, future = self._pending(id, ApprovalRequest | QuestionRequest)
        future.set_exception(
            ToolError(Code.TIMEOUT, "Nobody decided in time; nothing was run.", {"approval": id})
        )

    def _pending(self, id: str, kind: Any) -> tuple[Any, asyncio.Future[Any]]:
        found = self._waiting.get(id)
        if found is None or found[1].done() or not isinstance(found[0], kind):
            raise LookupError(f"{id}: no such request waits for an answer; it may have ended")
        return found
