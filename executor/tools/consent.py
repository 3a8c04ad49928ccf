"""Questions to the user, and plan mode: what a loop may do after somebody agreed."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from executor.errors import Code, ToolError
from executor.model import (
    ApprovalAnswer,
    ApprovalAnswered,
    ApprovalRequest,
    ApprovalRequested,
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
    try:
        async with asyncio.timeout(context.entry.timeout_ms / 1000):
            answers = await approver.answer(questions)
    except TimeoutError:
        seconds = context.entry.timeout_ms // 1000
        raise ToolError(Code.TIMEOUT, f"Nobody answered within {seconds} s.") from None
    chosen = {text: [str(label) for label in answers.get(text, ())] for text in texts}
    lines = [f"{text} → {', '.join(chosen[text]) or 'no answer'}" for text in texts]
    return Outcome("\n".join(lines), {"answers": chosen})


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
        timeout=context.entry.timeout_ms / 1000,
        arguments_hash=hashlib.sha256(repr(arguments).encode("utf-8", "replace")).hexdigest(),
    )


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
    context.tell(ApprovalRequested(request=request))
    try:
        async with asyncio.timeout(request.timeout):
            answer = await approver.approve(request)
    except TimeoutError:
        context.tell(ApprovalAnswered(request_id=request.id, approved=False, reason="no answer"))
        raise ToolError(
            Code.TIMEOUT, f"Nobody decided on the plan within {request.timeout:.0f} s."
        ) from None
    context.tell(
        ApprovalAnswered(request_id=request.id, approved=answer.approved, reason=answer.reason)
    )
    return answer


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
    context.tell(ApprovalRequested(request=request))

    async def wait() -> None:
        answer = await leader.approve(request)
        context.tell(
            ApprovalAnswered(request_id=request.id, approved=answer.approved, reason=answer.reason)
        )
        if answer.approved and context.session.mode == "plan":
            for rule in rules:
                context.session.rules = context.session.rules.allowing(rule)
            _change_mode(context, context.session.mode_before_plan or "default")

    context.session.keep_running(wait())
    said = "".join(f"\n[{note}]" for note in notes)
    return Outcome(
        f"The plan was submitted for approval (request {request.id}); plan mode goes on until it "
        f"is answered.{said}",
        _output(request.id),
    )
