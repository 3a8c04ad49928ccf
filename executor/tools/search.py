"""Search by name and by content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from executor.catalog import Keep
from executor.model import MOUNT
from executor.results import (
    NOTICE_ROOM,
    Clip,
    Limit,
    clip_text,
    decode,
    fitting_lines,
    names_of,
    shown_name,
    size_of,
    with_notices,
)
from executor.tool import Action, Arguments, Context, Outcome, Path, Raw, Touches, Whole

MAX_PATHS = 1000
DEFAULT_CONTEXT = 2
MAX_MATCHES = 2000
MAX_MATCHES_A_FILE = 100
LINE_CHARACTERS = 500
NO_MATCHES = "No matches found"


class Glob(Arguments):
    """Arguments of `glob`."""

    pattern: Raw = Field(description="Glob pattern to match")
    path: Path | None = Field(None, description="Base directory (default: worktree root)")


def lists_names(context: Context, given: Glob) -> Sequence[Action]:
    """What `glob` is going to do."""
    return [Touches(context.path(given.path or "."), "list", subtree=True)]


async def glob(context: Context, given: Glob) -> Outcome:
    """Find files matching a glob pattern (e.g., **/*.rs)"""
    return await found(context, given.pattern, given.path, "path")


async def found(
    context: Context, pattern: str, path: str | None, order: Literal["path", "modified"]
) -> Outcome:
    """The files that match a pattern.

    Args:
        context: of the call.
        pattern: from the directory, or absolute.
        path: the directory; None = where relative paths begin.
        order: by path, or the last modified first.
    """
    inside = _in_worktree(context, pattern)
    arguments = {
        "pattern": pattern if inside is None else inside,
        "path": "" if inside is not None else context.path(path or "."),
        "max_results": MAX_PATHS,
        "order": order,
    }
    answer = await context.ask("glob", arguments)
    value, paths = answer.value, names_of(answer.data)
    lines = [shown_name(context.shown(path)) for path in paths]
    shown = fitting_lines(lines, Limit.of(context).less(NOTICE_ROOM)) if lines else 0
    left_out = max(value["total"] - shown, 0)
    notices: list[str] = []
    if left_out:
        notices.append(f"{left_out} more matches; narrow the pattern or give a path")
    if value["ignored"] and (paths or not value["note"]):
        notices.append(f"{value['ignored']} ignored by .gitignore")
    if value["note"]:
        notices.append(value["note"])
    structured = {
        "matches": paths[:shown],
        "total": value["total"],
        "ignored": value["ignored"],
    }
    text = "\n".join(lines[:shown]) if lines else NO_MATCHES
    whole = size_of("\n".join(lines)) if len(lines) == value["total"] else None
    return Outcome(
        with_notices(text, notices),
        structured,
        truncated=left_out > 0,
        total_bytes=whole,
        is_fitted=True,
    )


def _in_worktree(context: Context, pattern: str) -> str | None:
    """An absolute pattern as one from the worktree's root; None if it is none of its files."""
    for root in (*context.loop.roots, MOUNT):
        if pattern.startswith(root + "/"):
            return pattern[len(root) :].lstrip("/")
    return None


class Grep(Arguments):
    """Arguments of `grep`."""

    pattern: Raw = Field(description="Regex pattern to search for")
    path: Path | None = Field(None, description="File or directory to search (default: worktree)")
    file_pattern: Raw | None = Field(None, description="Glob to filter files (e.g., *.rs)")
    context: Annotated[int, Field(ge=0, le=100), Whole] | None = Field(
        None, description=f"Lines of context around matches (default: {DEFAULT_CONTEXT})"
    )
    ignore_case: bool | None = Field(None, description="Ignore case (default: false)")
    literal: bool | None = Field(
        None, description="Take the pattern as plain text, not as a regex (default: false)"
    )
    max_results: Annotated[int, Field(ge=1, le=MAX_MATCHES), Whole] | None = Field(
        None, description=f"Max matching lines to return (default: {MAX_MATCHES})"
    )


def searches(context: Context, given: Grep) -> Sequence[Action]:
    """What `grep` is going to do."""
    return [Touches(context.path(given.path or "."), "read", subtree=True)]


def _clipped(text: str, limit: Limit, keep: Keep) -> Clip:
    """The lines within a limit; where the beginning is kept, none of them is cut.

    The agent counts bytes: of characters there may be more than it was asked for.
    """
    if limit.holds(text):
        return Clip(text)
    lines = text.split("\n")
    shown = "\n".join(lines[: fitting_lines(lines, limit)])
    if keep is Keep.START and limit.holds(shown):
        return Clip(shown, size_of(text) - size_of(shown))
    return clip_text(text, limit, keep)


async def grep(context: Context, given: Grep) -> Outcome:
    """Search file contents with regex. Returns matching lines with context.

    Files ignored by .gitignore are searched only when given as path; if nothing else
    matches, matches in them are counted.
    """
    limit = Limit.of(context)
    arguments = {
        "pattern": given.pattern,
        "path": context.path(given.path or "."),
        "file_pattern": given.file_pattern,
        "context": DEFAULT_CONTEXT if given.context is None else given.context,
        "ignore_case": given.ignore_case is True,
        "literal": given.literal is True,
        "max_results": given.max_results or MAX_MATCHES,
        "per_file": MAX_MATCHES_A_FILE,
        "max_bytes": limit.less(NOTICE_ROOM).most_bytes,
        "line_chars": LINE_CHARACTERS,
    }
    answer = await context.ask("grep", arguments)
    value = answer.value
    clip = _clipped(decode(answer.data), limit.less(NOTICE_ROOM), context.entry.keep)
    structured = {
        "matches": value["matches"],
        "files": value["files"],
        "partial": value["partial"],
        "ignored": value["ignored"],
        "warnings": value["warnings"],
    }
    truncated = value["truncated"] or clip.left_out > 0
    notices = [str(warning) for warning in value["warnings"]]
    if truncated:
        notices.insert(0, "more matches were left out; narrow the pattern, path or file_pattern")
    return Outcome(
        with_notices(clip.text or NO_MATCHES, notices),
        structured,
        truncated=truncated or value["clipped"],
        total_bytes=value["total_bytes"],
        is_fitted=True,
    )
