"""Questions to the user, and plan mode: what a loop may do after somebody agreed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from executor.approvals import answered, fingerprint
from executor.callables import TooLate, Unusable, bounded
from executor.errors import Code, ToolError
from executor.model import (
    ApprovalAnswer,
    ApprovalRequest,
    ModeChanged,
    Option,
    Question,
    QuestionAsked,
)
from executor.results import decode
from executor.tool import (
    Approver,
    Arguments,
    Context,
    Outcome,
    PermissionGranted,
    Text,
)

DAY = 86400.0

# ─── ask_user_question ──────────────────────────────────────────────────────────────


class OfferedOption(Arguments):
    """One answer that a question offers."""

    label: Text = Field(min_length=1, description="What the user chooses, 1-5 words")
    description: Text = Field(description="What choosing it means")


class AskedQuestion(Arguments):
    """One question."""

    question: Text = Field(min_length=1, description="The complete question")
    header: Text = Field(max_length=12, description="Short label, at most 12 characters")
    options: Annotated[list[OfferedOption], Field(min_length=2, max_length=4)] = Field(
        description="2-4 answers to choose from; free text is always possible too"
    )
    multi_select: bool | None = Field(
        None, alias="multiSelect", description="More than one may be chosen (default: false)"
    )


class AskUserQuestion(Arguments):
    """Arguments of `ask_user_question`."""

    questions: Annotated[list[AskedQuestion], Field(min_length=1, max_length=4)] = Field(
        description="1-4 questions to ask the user"
    )


async def ask_user_question(context: Context, given: AskUserQuestion) -> Outcome:
    """Ask the user 1-4 questions when their decision is needed to go on."""
    approver = context.loop.approver
    if approver is None:
        raise ToolError(
            Code.APPROVAL_REQUIRED,
            "There is no one to ask in this run. Decide by what you know, and say which "
            "assumption you made.",
        )
    questions = tuple(_question(item) for item in given.questions)
    texts = [question.question for question in questions]
    if len(set(texts)) < len(texts):
        raise ToolError(Code.INVALID_ARGUMENTS, "Two questions are the same; ask each once.")
    context.tell(QuestionAsked(call_id=context.call_id, questions=questions))
    chosen = await _answers(context, approver, questions)
    lines = [f"{text} → {', '.join(chosen[text]) or 'no answer'}" for text in texts]
    return Outcome("\n".join(lines), {"answers": chosen})


async def _answers(
    context: Context, approver: Approver, questions: Sequence[Question]
) -> dict[str, list[str]]:
    seconds = _patience(context)
    try:
        answers: Any = await bounded(approver.answer(questions), seconds)
        return {question.question: _labels(answers, question) for question in questions}
    except ToolError:
        raise
    except TooLate:
        raise ToolError(Code.TIMEOUT, f"Nobody answered within {seconds:g} s.") from None
    except Exception as error:
        why = str(error) if isinstance(error, Unusable) else type(error).__name__
        raise ToolError(
            Code.REJECTED, f"There is no answer: who answers has failed ({why})."
        ) from error


def _patience(context: Context) -> float:
    """Seconds that somebody may take."""
    seconds = context.entry.timeout_ms / 1000
    return seconds if context.time_left is None else min(seconds, context.time_left)


def _labels(answers: Any, question: Question) -> list[str]:
    """What was chosen for one question; a single text is one answer.

    Raises:
        Unusable: something else than texts.
    """
    if not isinstance(answers, Mapping):
        raise Unusable(f"{type(answers).__name__} where answers belong")
    given = answers.get(question.question, ())
    labels = [given] if isinstance(given, str) else given
    if not isinstance(labels, Sequence) or not all(isinstance(one, str) for one in labels):
        raise Unusable("an answer that is no text")
    return list(labels)


def _question(item: AskedQuestion) -> Question:
    options = tuple(Option(option.label, option.description) for option in item.options)
    return Question(item.question, item.header, options, item.multi_select is True)


# ─── plan mode ──────────────────────────────────────────────────────────────────────


class EnterPlanMode(Arguments):
    """Arguments of `enter_plan_mode`."""


async def enter_plan_mode(context: Context, given: EnterPlanMode) -> Outcome:
    """Enter plan mode for structured planning workflow."""
    path = context.loop.plan_file
    if context.session.mode == "plan":
        return Outcome(f"Already in plan mode. Write the plan to {path}, then leave plan mode.")
    _change_mode(context, "plan")
    return Outcome(
        f"Plan mode is on: read and search as you need, change nothing. Write your plan to {path} "
        "(the only file that can be written now); when it is complete, leave plan mode to have "
        "it approved.",
        {"plan_file": path},
    )


def _change_mode(context: Context, mode: str) -> None:
    session = context.session
    previous = session.mode
    session.mode_before_plan = previous if mode == "plan" else None
    session.mode = mode
    context.tell(ModeChanged(mode=mode, previous=previous))


class AllowedPrompt(Arguments):
    """A kind of commands that the plan needs."""

    tool: Literal["Bash"] = Field(description="The tool this prompt applies to")
    prompt: Text = Field(
        description="Semantic description of the action, e.g., 'run tests', 'install dependencies'"
    )


class ExitPlanMode(Arguments):
    """Arguments of `exit_plan_mode`; unknown ones are ignored, as the specification has it."""

    model_config = ConfigDict(extra="ignore")

    allowed_prompts: list[AllowedPrompt] | None = Field(
        None,
        alias="allowedPrompts",
        description="Prompt-based permissions needed to implement the plan. "
        "These describe categories of actions rather than specific commands.",
    )
    push_to_remote: bool | None = Field(
        None,
        alias="pushToRemote",
        description="Whether to push the plan to a remote Claude.ai session",
    )
    remote_session_id: Text | None = Field(
        None, alias="remoteSessionId", description="The remote session ID if pushed to remote"
    )
    remote_session_title: Text | None = Field(
        None, alias="remoteSessionTitle", description="The remote session title if pushed to remote"
    )
    remote_session_url: Text | None = Field(
        None, alias="remoteSessionUrl", description="The remote session URL if pushed to remote"
    )


async def exit_plan_mode(context: Context, given: ExitPlanMode) -> Outcome:
    """Exit plan mode with plan file ready for user approval."""
    if context.session.mode != "plan":
        raise ToolError(
            Code.CONFLICT, "Not in plan mode, so there is nothing to leave. Go on with the work."
        )
    if context.session.submitted is not None:
        raise ToolError(
            Code.CONFLICT,
            f"The plan was submitted (request {context.session.submitted}) and is not answered "
            "yet; plan mode goes on.",
        )
    plan = await _plan(context)
    rules, unknown = _rules(context, given)
    notes = [
        f"allowed prompt {prompt!r} is not known here and grants nothing" for prompt in unknown
    ]
    if given.push_to_remote:
        notes.append("pushToRemote is not available; the plan stays here")
    request = _request(context, plan, rules, notes)
    if context.loop.leader is not None:
        return _wait_for_leader(context, context.loop.leader, request, rules, notes)
    answer = await _decision(context, request)
    rules = _confirmed(answer, rules)
    if not answer.approved:
        reason = f" The user said: {answer.reason}" if answer.reason else ""
        raise ToolError(
            Code.REJECTED, f"The plan was not approved; plan mode goes on.{reason} Change the plan."
        )
    return _left(context, rules, notes)


async def _plan(context: Context) -> str:
    path = context.loop.plan_file
    try:
        answer = await context.ask("read", {"path": path, "encoding": "base64"})
    except ToolError as error:
        if error.code is not Code.FILE_NOT_FOUND:
            raise
        raise ToolError(
            Code.FILE_NOT_FOUND, f"There is no plan yet. Write it to {path}, then leave plan mode."
        ) from error
    text = decode(answer.data)
    if not text.strip():
        raise ToolError(Code.INVALID_ARGUMENTS, f"The plan in {path} is empty. Write it first.")
    return text


def _rules(context: Context, given: ExitPlanMode) -> tuple[tuple[str, ...], list[str]]:
    """The command rules that the prompts stand for, and the prompts that stand for none."""
    rules: list[str] = []
    unknown: list[str] = []
    for item in given.allowed_prompts or ():
        found = context.loop.prompts.get(item.prompt.strip().lower())
        if found is None:
            unknown.append(item.prompt)
        else:
            rules += found
    return tuple(dict.fromkeys(rules)), unknown


def _request(
    context: Context, plan: str, rules: Sequence[str], notes: Sequence[str]
) -> ApprovalRequest:
    arguments = {"plan": plan, "rules": list(rules), "notes": list(notes)}
    return ApprovalRequest(
        id=f"approval-{secrets.token_hex(6)}",
        step_id=context.call_id,
        exec_id=context.loop.exec_id,
        tool=context.tool,
        arguments=arguments,
        action=plan,
        description=None,
        reason="the plan is complete; approving it leaves plan mode and allows the rules",
        rules=tuple(rules),
        timeout=_patience(context),
        arguments_hash=fingerprint(context.tool, arguments),
    )


def _confirmed(answer: ApprovalAnswer, rules: tuple[str, ...]) -> tuple[str, ...]:
    """The rules that were agreed to: all, or those of them that the answer names."""
    if answer.modified_arguments is None:
        return rules
    named = answer.modified_arguments.get("rules", list(rules))
    return tuple(rule for rule in rules if isinstance(named, list) and rule in named)


async def _decision(context: Context, request: ApprovalRequest) -> ApprovalAnswer:
    """What was said of the plan; nobody being there is a yes only where all is allowed anyway."""
    approver = context.loop.approver
    if approver is None:
        if context.session.mode_before_plan == "bypass":
            return ApprovalAnswer(approved=True)
        raise ToolError(
            Code.APPROVAL_REQUIRED,
            "The plan needs approval, and there is no one to ask; plan mode goes on. It would be "
            "left without a question in a loop that was opened in mode bypass.",
        )
    return await answered(approver, request, context.tell)


def _left(context: Context, rules: Sequence[str], notes: Sequence[str]) -> Outcome:
    mode = context.session.mode_before_plan or "default"
    _change_mode(context, mode)
    granted = f" Allowed from now on: {', '.join(rules)}." if rules else ""
    said = "".join(f"\n[{note}]" for note in notes)
    return Outcome(
        f"The plan is approved; plan mode is left (mode {mode}).{granted}{said}",
        _output(None),
        modifiers=tuple(PermissionGranted(rule) for rule in rules),
    )


def _output(request_id: str | None) -> dict[str, Any]:
    if request_id is None:
        return {}
    return {"awaitingLeaderApproval": True, "requestId": request_id}


def _wait_for_leader(
    context: Context,
    leader: Approver,
    request: ApprovalRequest,
    rules: Sequence[str],
    notes: Sequence[str],
) -> Outcome:
    """Somebody else decides, in their own time; the loop stays in plan mode until then."""
    session = context.session
    session.submitted = request.id
    # Whatever time they take: it ends with the loop.
    request = replace(request, timeout=DAY if context.time_left is None else context.time_left)

    async def wait() -> None:
        try:
            answer = await answered(leader, request, session.background.announce)
        except ToolError:
            return  # told of; the model may submit it again
        finally:
            session.submitted = None
        if answer.approved and session.mode == "plan":
            for rule in _confirmed(answer, tuple(rules)):
                session.rules = session.rules.allowing(rule)
            mode = session.mode_before_plan or "default"
            session.mode, session.mode_before_plan = mode, None
            session.background.announce(ModeChanged(mode=mode, previous="plan"))

    session.keep_running(wait())
    said = "".join(f"\n[{note}]" for note in notes)
    return Outcome(
        f"The plan was submitted for approval (request {request.id}); plan mode goes on until it "
        f"is answered.{said}",
        _output(request.id),
    )
