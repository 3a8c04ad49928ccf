"""Questions about code, which language servers in the box answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

from pydantic import Field

from executor.code_questions import CodeQuestion, Found, Operation, Spot
from executor.errors import Code, ToolError
from executor.results import (
    NOTICE_ROOM,
    Limit,
    fitting_lines,
    shown_name,
    size_of,
    with_notices,
)
from executor.text import one_line, visible
from executor.tool import (
    Action,
    Arguments,
    Context,
    Outcome,
    Path,
    Positive,
    Surroundings,
    Text,
    Touches,
    invalid_arguments,
)

MOST_NAME = 1000
"""Characters of a new name."""
MOST_NOTE = 500
"""Characters that are shown of what has to be known of an answer."""

_NEEDS: Mapping[Operation, tuple[str, ...]] = {
    "goto_definition": ("line", "column"),
    "hover": ("line", "column"),
    "find_references": ("line", "column"),
    "diagnostics": (),
    "document_symbols": (),
    "rename_preview": ("line", "column", "new_name"),
}
"""What an operation needs beside the path; it passes over the rest."""

_NOTHING: Mapping[Operation, str] = {
    "goto_definition": "No definition found.",
    "hover": "No information found.",
    "find_references": "No references found.",
    "diagnostics": "No problems reported.",
    "document_symbols": "No symbols found.",
    "rename_preview": "Nothing found that would be renamed.",
}


class Lsp(Arguments):
    """Arguments of `lsp`."""

    operation: Operation = Field(description="What to ask")
    path: Path = Field(description="File path relative to worktree")
    line: Positive | None = Field(
        None,
        description="Line number (1-indexed); not needed by diagnostics and document_symbols",
    )
    column: Positive | None = Field(
        None,
        description="Column of a character of the name (1-indexed); needed where line is",
    )
    new_name: Annotated[Text, Field(min_length=1, max_length=MOST_NAME)] | None = Field(
        None, description="For rename_preview: the name that would be given"
    )


def reads_code(context: Context, given: Lsp) -> Sequence[Action]:
    """What `lsp` is going to do. The answer is of all files, so changes of any come before or
    behind it; which of them may be read is seen where they are."""
    return [Touches(_question(context, given).path, "read"), Touches("", "list", subtree=True)]


async def lsp(context: Context, given: Lsp) -> Outcome:
    """Ask a language server about code: where a name is defined or used, what it is, what is wrong.

    Line and column say which name is meant: those of any of its characters. Answers are of the
    files as they are now. rename_preview shows the lines as they would be, and changes nothing.
    """
    return await answered(context, _question(context, given))


def no_servers(loop: Surroundings) -> str | None:
    """Why nothing can be asked about code in this loop; None = something can."""
    if loop.languages is None:
        return "the loop has no language servers"
    return loop.languages.missing(loop)


def _question(context: Context, given: Lsp) -> CodeQuestion:
    """What is asked.

    Raises:
        ToolError: INVALID_ARGUMENTS, the operation needs more; INVALID_PATH.
    """
    missing = [name for name in _NEEDS[given.operation] if getattr(given, name) is None]
    if missing:
        fault = f"is required for {given.operation}"
        raise invalid_arguments(context.tool, [(name, fault) for name in missing])
    needed = {name: getattr(given, name) for name in _NEEDS[given.operation]}
    return CodeQuestion(given.operation, context.path(given.path), **needed)


# ─── answers ────────────────────────────────────────────────────────────────────────


async def answered(context: Context, question: CodeQuestion) -> Outcome:
    """Ask, and say what was found.

    Raises:
        ToolError, SandboxError: see `executor.tool.Languages`; DISABLED, there are none.
    """
    languages = context.loop.languages
    if languages is None:
        raise ToolError(Code.DISABLED, "This loop has no language servers.")
    found = await languages.ask(context, question)
    if question.operation == "hover":
        return _hover(found)
    return _places(context, question.operation, found)


def _hover(found: Found) -> Outcome:
    text = visible(found.text or "").strip("\n")
    # It is not fitted: what is too long is cut and kept by the pipeline.
    return Outcome(
        with_notices(text or _NOTHING["hover"], _notes(found)),
        _structured("hover", found, (), text or None),
    )


def _places(context: Context, operation: Operation, found: Found) -> Outcome:
    """One line for each place, as many as fit."""
    lines = [_line(context, spot) for spot in found.spots]
    shown = fitting_lines(lines, Limit.of(context).less(_room(found))) if lines else 0
    visible_ones = max(found.total - found.hidden, len(lines))
    notices = []
    if shown < visible_ones:
        notices.append(f"{shown} of {visible_ones} are shown")
    if found.hidden:
        verb = "is" if found.hidden == 1 else "are"
        notices.append(f"{found.hidden} more {verb} where the rules let this loop read nothing")
    if operation == "rename_preview" and lines:
        notices.append("nothing was changed: make these changes with edit_file")
    nothing = "Nothing that can be shown." if found.total else _NOTHING[operation]
    return Outcome(
        with_notices("\n".join(lines[:shown]) or nothing, [*notices, *_notes(found)]),
        _structured(operation, found, found.spots[:shown], None),
        truncated=shown < visible_ones,
        total_bytes=size_of("\n".join(lines)) if len(lines) == visible_ones else None,
        is_fitted=True,
    )


def _room(found: Found) -> int:
    """What the notices may take."""
    return NOTICE_ROOM + sum(size_of(note) + len("\n[]") for note in _notes(found))


def _line(context: Context, spot: Spot) -> str:
    name = context.shown(spot.path) if spot.is_file else spot.path
    place = f"{shown_name(name)}:{spot.line}:{spot.column}"
    text = spot.text.replace("\r", "\\r").replace("\n", "\\n")
    return f"{place}: {text}" if text else place


def _notes(found: Found) -> list[str]:
    return [one_line(note, MOST_NOTE) for note in found.notes]


def _structured(
    operation: Operation, found: Found, spots: Sequence[Spot], text: str | None
) -> dict[str, object]:
    return {
        "operation": operation,
        "server": found.server,
        "locations": [asdict(spot) for spot in spots],
        "total": found.total,
        "hidden": found.hidden,
        "text": text,
        "notes": _notes(found),
    }
