"""Skills as a tool: a text for the model, with the output of commands that stand in it.

The user's own are trusted: what their heads want allowed is allowed until the loop ends, from
when they are used; rules that deny or ask, and plan mode, hold all the same. Those of a worktree
are the repository's words: they are read in the box and grant nothing. Commands in either run in
the box as calls of `run_command`, judged, asked about and seen by hooks like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import Field

from executor.errors import Code, ConfigError, ToolError
from executor.model import Result
from executor.results import decode, names_of, with_notices
from executor.skills import MAX_BYTES, MAX_SKILLS, Skill, listing, name_of, parse
from executor.text import one_line
from executor.tool import Arguments, Context, Modifier, Outcome, Surroundings, Text

PLACES = (".claude/skills", ".claude/commands")
"""Where a worktree has skills and commands."""
COMMAND = "run_command"
MAX_COMMANDS = 20
"""Of one skill."""
MAX_TEXT = 1 << 20
"""Characters of a skill with its arguments, without what its commands print."""
_PREFIX = re.compile(r":\*\)$")


class UseSkill(Arguments):
    """Arguments of `skill`."""

    skill: Text = Field(min_length=1, description="The skill's name, e.g. 'commit'")
    args: Text | None = Field(None, description="Arguments for the skill")


async def skill(context: Context, given: UseSkill) -> Outcome:
    """Execute a skill (slash command): returns its instructions."""
    name = given.skill.strip().removeprefix("/")
    found = await _found(context, name)
    arguments = (given.args or "").strip()
    _require_bounds(found, arguments)
    refused = _grant(context, found)
    pieces: list[str] = []
    modifiers: list[Modifier] = []
    for part in found.parts:
        text = part.given(arguments)
        pieces.append(await _output(context, found, text, modifiers) if part.is_command else text)
    body = "".join(pieces)
    if arguments and not found.takes_arguments:
        body = f"{body}\n\nARGUMENTS: {arguments}"
    if found.directory is not None:
        body = f"Base directory for this skill: {found.directory}\n\n{body}"
    return Outcome(
        with_notices(body, refused),
        {"skill": found.name, "trusted": found.is_trusted},
        modifiers=tuple(modifiers),
    )


def _require_bounds(found: Skill, arguments: str) -> None:
    """Raises ToolError: LIMIT, it has too many commands or comes to too much."""
    commands = sum(part.is_command for part in found.parts)
    if commands > MAX_COMMANDS:
        raise ToolError(
            Code.LIMIT,
            f"The skill {found.name} begins with {commands} commands, and at most {MAX_COMMANDS} "
            "are run. Read its file instead.",
        )
    if found.room_for(arguments) > MAX_TEXT:
        raise ToolError(
            Code.LIMIT,
            f"The skill {found.name} with these args has more than {MAX_TEXT} characters; give "
            "shorter ones.",
        )


async def _output(context: Context, found: Skill, command: str, modifiers: list[Modifier]) -> str:
    """What a command of the skill prints, with its exit code where that is not 0.

    Raises:
        ToolError: it was not run; the skill says something else without it.
    """
    call = context.loop.call
    if call is None:
        raise ToolError(Code.UNSUPPORTED, f"The skill {found.name} runs commands; here none can.")
    answered = await call(context, COMMAND, {"command": command})
    result: Result = answered.result
    modifiers += answered.modifiers
    if result.is_error and result.structured is None:
        raise ToolError(
            result.code or Code.EXECUTION_ERROR,
            f"The skill {found.name} begins with the command {command!r}, which was not run: "
            f"{result.content}",
        )
    return str(result.content).rstrip("\n")


# ─── which there are ────────────────────────────────────────────────────────────────


async def _found(context: Context, name: str) -> Skill:
    """The skill of this name.

    Raises:
        ToolError: NOT_FOUND, with those that there are.
    """
    loop = context.loop
    if (found := loop.skills.get(name)) is not None:
        return found
    more = await of_worktree(context) if loop.worktree_skills else {}
    if name in more:
        return more[name]
    known = ", ".join(dict.fromkeys((*loop.skills, *more))) or "none"
    raise ToolError(Code.NOT_FOUND, f"There is no skill {one_line(name, 100)!r}. Skills: {known}.")


async def of_worktree(context: Context) -> dict[str, Skill]:
    """The skills that the worktree has now, as its box shows them; none of them is trusted.

    Raises:
        ToolError, SandboxError: the box could not be asked.
    """
    found: dict[str, Skill] = {}
    for place in PLACES:
        for path in await _paths(context, place):
            name = name_of(path)
            if name is None or name in found:
                continue
            text = await _text(context, f"{place}/{path}")
            if text is None:
                continue
            inside = path.removesuffix("/SKILL.md")
            directory = None if inside == path else context.shown(f"{place}/{inside}")
            found[name] = parse(name, text, directory=directory)
    return found


async def _paths(context: Context, place: str) -> list[str]:
    """Paths of text files below a place of the worktree, up to three levels."""
    paths: list[str] = []
    for depth in ("*", "*/*", "*/*/*"):
        try:
            answer = await context.ask("glob", _glob(place, f"{depth}.md"))
        except ToolError as error:
            if error.code in (Code.FILE_NOT_FOUND, Code.INVALID_ARGUMENTS, Code.NOT_A_FILE):
                return []
            raise
        paths += names_of(answer.data)
    return sorted(path.removeprefix(f"{place}/") for path in paths)[:MAX_SKILLS]


def _glob(place: str, pattern: str) -> dict[str, Any]:
    return {"path": place, "pattern": pattern, "max_results": MAX_SKILLS, "order": "path"}


async def _text(context: Context, path: str) -> str | None:
    """A file's text; None = it is gone, too large, or denied by a rule."""
    try:
        answer = await context.ask("read", {"path": path, "encoding": "base64"})
    except ToolError:
        return None
    return decode(answer.data) if len(answer.data) <= MAX_BYTES else None


def without(loop: Surroundings) -> str | None:
    """Why a loop has no skills."""
    if loop.skills or loop.worktree_skills:
        return None
    return "the loop was opened without skills (LoopSpec.skills, --skills DIR)"


def with_skills(text: str) -> Callable[[Surroundings], str]:
    """A description that goes on with the skills of a loop.

    Args:
        text: what stands before them.
    """

    def describe(loop: Surroundings) -> str:
        lines = listing(loop.skills)
        if loop.worktree_skills:
            lines.append(f"- those in the worktree's {' and '.join(PLACES)}")
        return "\n".join([text, "", "Skills:", *lines])

    return describe


# ─── what a skill's head allows ─────────────────────────────────────────────────────


def _grant(context: Context, found: Skill) -> list[str]:
    """Allow what a trusted skill's head names; what of it grants nothing is said."""
    if not found.allowed_tools:
        return []
    if not found.is_trusted:
        return ["allowed-tools of a skill of the worktree grants nothing"]
    refused: list[str] = []
    for text in found.allowed_tools:
        try:
            context.session.rules = context.session.rules.allowing(_rule(text))
        except ConfigError as error:
            refused.append(f"allowed-tools: {text!r} grants nothing: {error}")
    return refused


def _rule(text: str) -> str:
    """`Bash(git add:*)` is written `Bash(git add *)` here."""
    return _PREFIX.sub(" *)", text.strip())
