"""Files and directories: read, write, edit, list, delete, move."""

from __future__ import annotations

import base64
import binascii
import functools
import operator
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from executor.catalog import Keep
from executor.errors import Code, ToolError
from executor.results import (
    NOTICE_ROOM,
    Limit,
    clip_text,
    counted,
    decode,
    fitting_lines,
    name_of,
    names_of,
    noted,
    shown_name,
    size_of,
    with_notices,
)
from executor.session import Reading
from executor.tool import (
    Action,
    Answer,
    Arguments,
    Context,
    Outcome,
    Path,
    Positive,
    Text,
    Touches,
)
from executor.tools import rich

Encoding = Literal["utf-8", "base64"]

DEFAULT_LINES = 2000
LINE_CHARACTERS = 2000
CACHED_LINES = 2000
PREFIX_ROOM = 16
"""Bytes that a line number and its separator may take."""
MAX_ENTRIES = 10_000


# ─── read_file ──────────────────────────────────────────────────────────────────────


class ReadFile(Arguments):
    """Arguments of `read_file`."""

    path: Path = Field(description="File path relative to worktree")
    offset: Positive | None = Field(
        None, description="Line number to start reading from (1-indexed)"
    )
    limit: Positive | None = Field(
        None, description=f"Max lines to read (default: {DEFAULT_LINES})"
    )
    encoding: Encoding | None = Field(
        None, description="How to return the content: utf-8 (default) or base64 (whole file)"
    )
    pages: Text | None = Field(
        None, description='Pages of a PDF file to read: "3" or "1-5" (at most 20 at a time)'
    )


def reads_file(context: Context, given: ReadFile) -> Sequence[Action]:
    """What `read_file` is going to do."""
    return [Touches(context.path(given.path), "read")]


_FIRST_SECOND = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


async def read_file(context: Context, given: ReadFile) -> Outcome:
    """Read a file's contents with line numbers. Required before editing."""
    path = context.path(given.path)
    if given.encoding == "base64":
        rich.require_no_pages(given.pages)
        return await _read_base64(context, path, given)
    if not rich.is_notebook(path) or _in_lines(given) or given.pages is not None:
        return await _read_text(context, path, given)
    try:
        return await rich.read_notebook(context, path)
    except ToolError as error:
        if error.code not in rich.NO_CELLS:
            raise
        as_text = await _read_text(context, path, given)
        return noted(as_text, [str(error)])


async def _read_text(context: Context, path: str, given: ReadFile) -> Outcome:
    """Lines with their numbers, or the picture that is there instead of lines."""
    arguments = {
        "path": path,
        "offset": given.offset or 1,
        "limit": given.limit or DEFAULT_LINES,
        "max_bytes": Limit.of(context).most_bytes,
        "line_chars": LINE_CHARACTERS,
        "encoding": "utf-8",
    }
    try:
        answer = await context.ask("read", arguments)
    except ToolError as error:
        in_lines = _in_lines(given)
        return await rich.in_its_place(context, path, error, pages=given.pages, in_lines=in_lines)
    rich.require_no_pages(given.pages)
    if answer.value["lines"] == 0:
        return _nothing_to_show(context, path, given.offset or 1, answer.value)
    return _numbered(context, path, answer)


def _in_lines(given: ReadFile) -> bool:
    return given.offset is not None or given.limit is not None


def _numbered(context: Context, path: str, answer: Answer) -> Outcome:
    value = answer.value
    first, clipped, total = value["first"], value["clipped"], value["total_lines"]
    content = decode(answer.data)
    rows = content.split("\n")
    separator = context.loop.toolset.line_separator
    numbered = list(map(operator.add, _prefixes(separator, first, len(rows)), rows))
    for number, length in clipped:
        whole = "goes on" if length is None else f"is {length} characters"
        numbered[number - first] += f"... [line {whole}]"
    more = value["more"]
    limit = Limit.of(context).less(NOTICE_ROOM)
    # There are never more characters than bytes.
    if value["invalid"] or len(answer.data) + PREFIX_ROOM * len(rows) > limit.size:
        shown = fitting_lines(numbered, limit)
        if shown < len(rows):
            more, rows, numbered = True, rows[:shown], numbered[:shown]
            content = "\n".join(rows)
    last = first + len(rows) - 1
    text = "\n".join(numbered)
    if len(rows) == 1 and not limit.holds(text):
        text = clip_text(text, limit, Keep.START).text
    seen = clipped[0][0] - 1 if clipped else last
    unseen = more or bool(clipped)
    known = {"key": value.get("key"), "modified": value["modified"]}
    context.session.saw(path, value["hash"], first, seen, unseen, **known)
    if more or value["invalid"]:
        text = with_notices(text, _read_notices(value, last if more else None, total))
    return Outcome(
        text,
        _read_structured(value, content, len(rows)),
        truncated=more or bool(clipped),
        total_bytes=value["size"],
        is_fitted=True,
    )


def _prefixes(separator: str, first: int, count: int) -> Sequence[str]:
    """Line numbers with their separator. Those of short files are made once."""
    last = first + count - 1
    if last > CACHED_LINES:
        return [f"{number:>6}{separator}" for number in range(first, last + 1)]
    return _first_prefixes(separator)[first - 1 : last]


@functools.cache
def _first_prefixes(separator: str) -> tuple[str, ...]:
    return tuple(f"{number:>6}{separator}" for number in range(1, CACHED_LINES + 1))


def _read_notices(value: dict[str, Any], last: int | None, total: int | None) -> list[str]:
    notices: list[str] = []
    if last is not None:
        left = "more lines" if total is None else counted(total - last, "more line")
        notices.append(f"{left}; continue with offset={last + 1}")
    if value["invalid"]:
        notices.append("not valid UTF-8 (Latin-1?); edits stay byte-exact")
    return notices


def _read_structured(value: dict[str, Any], content: str, lines: int) -> dict[str, Any]:
    return {
        "content": content,
        "size": value["size"],
        "modified": value["modified"],
        "lines": lines,
        "total_lines": value["total_lines"],
        "hash": value["hash"],
        "encoding": "utf-8",
    }


def _nothing_to_show(context: Context, path: str, offset: int, value: dict[str, Any]) -> Outcome:
    size, total = value["size"], value["total_lines"]
    if total == 0:
        known = {"key": value.get("key"), "modified": value["modified"]}
        context.session.saw(path, value["hash"], 1, 0, more=False, **known)
        rich.require_content(context, path, size)
        text = f"empty ({counted(size, 'byte') if size != 0 else '0 bytes'})"
        return Outcome(text, _read_structured(value, "", 0), total_bytes=size)
    raise ToolError(
        Code.INVALID_ARGUMENTS,
        f"offset {offset} is beyond the end: the file has {counted(total, 'line')}.",
        {"total_lines": total},
    )


async def _read_base64(context: Context, path: str, given: ReadFile) -> Outcome:
    if given.offset is not None or given.limit is not None:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            "offset and limit count lines and can't be used with encoding base64; leave them out.",
        )
    answer = await context.ask("read", {"path": path, "encoding": "base64"})
    value = answer.value
    context.session.knows(path, value["hash"], value.get("key"), value["modified"])
    content = base64.b64encode(answer.data).decode()
    structured = {
        "content": content,
        "size": value["size"],
        "modified": value["modified"],
        "lines": None,
        "total_lines": None,
        "hash": value["hash"],
        "encoding": "base64",
    }
    # It is whole or refused: a part of it would be of no use.
    return Outcome(content, structured, total_bytes=value["size"], is_fitted=True)


# ─── write_file ─────────────────────────────────────────────────────────────────────


class WriteFile(Arguments):
    """Arguments of `write_file`."""

    path: Path = Field(description="File path relative to worktree")
    content: Text = Field(description="Content to write")
    encoding: Encoding | None = Field(
        None, description="How content is given: utf-8 (default) or base64"
    )
    create_dirs: bool | None = Field(
        None, alias="createDirs", description="Create missing parent directories (default: true)"
    )


def writes_file(context: Context, given: WriteFile | EditFile) -> Sequence[Action]:
    """What `write_file` and `edit_file` are going to do."""
    return [Touches(context.path_to_write(given.path), "write")]


def file_path(context: Context, text: str) -> str:
    """The path of a file that is changed, whose name can't end with a slash."""
    path = context.path_to_write(text)
    if path and text.endswith("/"):
        raise ToolError(
            Code.INVALID_PATH,
            f"{shown_name(text)} ends with a slash, so it names a directory, not a file; "
            "leave the slash out.",
        )
    return path


async def write_file(context: Context, given: WriteFile) -> Outcome:
    """Write content to a file. Creates parent directories if needed.

    A file that exists must have been read whole with read_file before it is overwritten.
    """
    path = file_path(context, given.path)
    is_text = given.encoding != "base64"
    body = given.content.encode() if is_text else _from_base64(given.content)
    async with context.session.lock(path):
        arguments = {
            "path": path,
            "create_dirs": given.create_dirs is not False,
            "keep_bom": is_text,
            **context.bound(path),
        }
        try:
            answer = await change(context, "write", arguments, body, _hash_if_whole)
        except ToolError as error:
            if error.code is Code.NOT_READ:
                partly = context.session.reading(path) is not None
                raise _not_read_whole(context.shown(path), partly=partly) from error
            raise
        context.session.knows(path, answer.value["hash"], answer.value.get("key"))
    size = answer.value["size"]
    return Outcome(
        f"Wrote {size} bytes to {shown_name(context.shown(path))}",
        {"path": path, "size": size, "created": answer.value["created"]},
    )


async def change(
    context: Context,
    op: str,
    arguments: dict[str, Any],
    body: bytes,
    expected: Callable[[Reading], str | None],
) -> Answer:
    """A change of a file that was read, by this path or by another that leads to it.

    Args:
        context: of the call.
        op: `write` or `edit`.
        arguments: of the operation, without `expect`.
        body: of the operation.
        expected: the hash that a reading entitles to change.
    """
    session, path = context.session, arguments["path"]
    reading = session.reading(path)
    expect = expected(reading) if reading is not None else None
    try:
        return await context.ask(op, {**arguments, "expect": expect}, body)
    except ToolError as error:
        if error.code not in (Code.NOT_READ, Code.CONFLICT):
            raise
        found = await context.ask("stat", {"path": path})
        other = session.same_file(path, found.value.get("key"))
        if other is None or other == reading:
            if error.code is Code.CONFLICT and reading is not None:
                raise _changed(context.shown(path), reading, found.value) from error
            raise
    return await context.ask(op, {**arguments, "expect": expected(other)}, body)


def _changed(path: str, reading: Reading, found: dict[str, Any]) -> ToolError:
    """The refusal of a change of a file that is no longer what was read.

    Args:
        path: as the model is shown it.
        reading: what the loop knows of it.
        found: what is there now.
    """
    now, then = found.get("modified"), reading.modified
    times = [f"modified at {now}"] if now is not None and now != then else []
    times += [f"as it was read: {then}"] if then is not None and now != then else []
    when = f" ({'; '.join(times)})" if times else ""
    return ToolError(
        Code.CONFLICT,
        f"{shown_name(path)} changed since it was read{when}. Read it again.",
        {"modified": now, "modified_when_read": then},
    )


def _hash_if_whole(reading: Reading) -> str | None:
    return reading.hash if reading.whole else None


def _from_base64(content: str) -> bytes:
    try:
        text = "".join(content.split())
        data = base64.b64decode(text, validate=True)
        if len(text) != 4 * -(-len(data) // 3):
            raise ValueError("wrong padding")
        return data
    except (binascii.Error, ValueError) as error:
        raise ToolError(
            Code.INVALID_ARGUMENTS, f"content is not valid base64 ({error}); nothing was written."
        ) from error


def _not_read_whole(path: str, *, partly: bool) -> ToolError:
    reason = (
        "only a part of it was read. Read all of it with read_file first"
        if partly
        else "it was not read. Must read_file before overwriting"
    )
    return ToolError(
        Code.NOT_READ, f"{shown_name(path)} exists and {reason}, or change it with edit_file."
    )


# ─── edit_file ──────────────────────────────────────────────────────────────────────


class EditFile(Arguments):
    """Arguments of `edit_file`."""

    path: Path = Field(description="File path relative to worktree")
    old_string: Text = Field(description="Exact string to find and replace")
    new_string: Text = Field(description="Replacement string")
    replace_all: bool | None = Field(None, description="Replace all occurrences (default: false)")


def seen_hash(reading: Reading) -> str | None:
    """The hash of a file of which something was read."""
    return reading.hash


NOT_READ = "Must read_file before editing. Read the file first to see current content."


async def edit_file(context: Context, given: EditFile) -> Outcome:
    """Replace a specific string in a file. Requires prior read_file call."""
    path = file_path(context, given.path)
    old, new = given.old_string.encode(), given.new_string.encode()
    async with context.session.lock(path):
        arguments = {
            "path": path,
            "replace_all": given.replace_all is True,
            "old": len(old),
        }
        try:
            answer = await change(context, "edit", arguments, old + new, seen_hash)
        except ToolError as error:
            if error.code is Code.NOT_READ:
                raise ToolError(Code.NOT_READ, NOT_READ, error.details) from error
            raise
        value = answer.value
        context.session.edited(path, value["hash"], value.get("key"))
    return Outcome(
        f"Replaced {value['replacements']} occurrence(s) in {shown_name(context.shown(path))}",
        {
            "path": path,
            "replacements": value["replacements"],
            "size": value["size"],
            "hash": value["hash"],
        },
    )


async def edit_pieces(
    context: Context, text: str, edits: Sequence[tuple[str, str, bool]]
) -> dict[str, Any]:
    """Replace several pieces of a file that was read: all of them, or none.

    Args:
        context: of the call.
        text: the path as the model wrote it.
        edits: old text, new text, and: everywhere?; made one after the other.

    Returns:
        The agent's reply: replacements, sizes before and after, hash.

    Raises:
        ToolError: NOT_READ, CONFLICT, NO_MATCH, AMBIGUOUS; nothing was changed.
    """
    path = file_path(context, text)
    pieces = [(old.encode(), new.encode(), everywhere) for old, new, everywhere in edits]
    body = b"".join(old + new for old, new, _ in pieces)
    asked = {
        "path": path,
        "edits": [[len(old), len(new), everywhere] for old, new, everywhere in pieces],
    }
    async with context.session.lock(path):
        try:
            answer = await change(context, "edit", asked, body, seen_hash)
        except ToolError as error:
            if error.code is Code.NOT_READ:
                raise ToolError(Code.NOT_READ, NOT_READ, error.details) from error
            raise
        context.session.edited(path, answer.value["hash"], answer.value.get("key"))
    return answer.value


# ─── list_directory ─────────────────────────────────────────────────────────────────


class ListDirectory(Arguments):
    """Arguments of `list_directory`."""

    path: Path | None = Field(None, description="Directory path relative to worktree (default: .)")
    recursive: bool | None = Field(
        None, description="List the directories below too (default: false)"
    )
    include_hidden: bool | None = Field(
        None, alias="includeHidden", description="Show names that begin with a dot (default: false)"
    )
    max_depth: Positive | None = Field(
        None, description="How many levels to show; makes the list recursive"
    )


def lists_directory(context: Context, given: ListDirectory) -> Sequence[Action]:
    """What `list_directory` is going to do."""
    deep = given.recursive is True or given.max_depth is not None
    return [Touches(context.path(given.path or "."), "list", subtree=deep)]


_TYPES = {"f": "file", "d": "directory", "l": "symlink", "L": "symlink", "o": "other"}


async def list_directory(context: Context, given: ListDirectory) -> Outcome:
    """List files and directories in a path."""
    if given.max_depth is not None and given.recursive is False:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            "max_depth is for recursive listings; use recursive=true or leave it out.",
        )
    arguments = {
        "path": context.path(given.path or "."),
        "recursive": given.recursive is True or given.max_depth is not None,
        "include_hidden": given.include_hidden is True,
        "max_depth": given.max_depth,
        "max_entries": MAX_ENTRIES,
    }
    answer = await context.ask("list", arguments)
    records = [record.split(b"\x1f", 4) for record in answer.data.split(b"\0") if record]
    lines = [_listed(record) for record in records]
    shown = fitting_lines(lines, Limit.of(context).less(NOTICE_ROOM)) if lines else 0
    value = answer.value
    left_out = value["truncated"] or shown < len(lines)
    notices = _list_notices(value, shown, len(lines), flat=not arguments["recursive"])
    whole = None if value["truncated"] else size_of("\n".join(lines))
    text = "\n".join(lines[:shown]) if lines else "empty directory"
    structured = {
        "entries": [_entry(record) for record in records[:shown]],
        "hidden": value["hidden"],
    }
    text = with_notices(text, notices)
    return Outcome(text, structured, truncated=left_out, total_bytes=whole, is_fitted=True)


def _list_notices(value: dict[str, Any], shown: int, received: int, *, flat: bool) -> list[str]:
    notices: list[str] = []
    if value["truncated"] or shown < received:
        total = value["total"]
        rest = "there are more" if total is None else f"{total - shown} more are not"
        way_on = "use glob with a prefix (a*)" if flat else "list a directory further down"
        notices.append(f"only the first {shown} entries are shown, {rest}; {way_on}")
    if value["hidden"]:
        notices.append(f"{value['hidden']} hidden not shown; includeHidden=true shows them")
    if value["unreadable"]:
        notices.append(f"can't be read: {', '.join(map(shown_name, value['unreadable']))}")
    return notices


def _listed(record: list[bytes]) -> str:
    kind, _, _, target, path = record
    name = shown_name(name_of(path))
    if kind == b"d":
        return name + "/"
    if kind in (b"l", b"L"):
        return f"{name} -> {shown_name(name_of(target))}{' (broken)' if kind == b'L' else ''}"
    return name if kind == b"f" else f"{name} (special file)"


def _entry(record: list[bytes]) -> dict[str, Any]:
    kind, size, modified, target, path = record
    # A file's time can be any 64-bit number; a calendar ends with the year 9999.
    seconds = min(max(int(modified) / 1e9, _FIRST_SECOND), _LAST_SECOND)
    moment = datetime.fromtimestamp(seconds, UTC)
    entry: dict[str, Any] = {
        "name": name_of(path),
        "type": _TYPES[kind.decode()],
        "size": int(size),
        "modified": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    if kind in (b"l", b"L"):
        entry["target"] = name_of(target)
    return entry


# ─── delete_file, move_file ─────────────────────────────────────────────────────────


class DeleteFile(Arguments):
    """Arguments of `delete_file`."""

    path: Path = Field(description="File or directory path relative to worktree; taken literally")
    recursive: bool | None = Field(
        None, description="Delete a directory with all in it (default: false)"
    )


def deletes_file(context: Context, given: DeleteFile) -> Sequence[Action]:
    """What `delete_file` is going to do."""
    return [Touches(context.path_to_write(given.path), "delete", subtree=True)]


async def delete_file(context: Context, given: DeleteFile) -> Outcome:
    """Delete a file or directory. A link is deleted itself, never what it points to."""
    path = context.path_to_write(given.path)
    async with context.session.lock(path):
        try:
            answer = await context.ask(
                "delete",
                {"path": path, "recursive": given.recursive is True, **context.bound(path)},
            )
        finally:
            # A recursive delete that failed has deleted some: all must be read again.
            context.session.forget(path)
    count = answer.value["deleted"]
    entries = f" ({count} entries)" if count != 1 else ""
    text = f"Deleted {shown_name(context.shown(path))}{entries}"
    structured = {"deleted": names_of(answer.data), "count": count}
    return Outcome(text, structured, truncated=answer.value["truncated"])


class MoveFile(Arguments):
    """Arguments of `move_file`."""

    source: Path = Field(alias="from", description="Present path relative to worktree")
    target: Path = Field(
        alias="to", description="New path relative to worktree; missing parents are created"
    )
    overwrite: bool | None = Field(
        None, description="Replace a file that is there (default: false)"
    )


def moves_file(context: Context, given: MoveFile) -> Sequence[Action]:
    """What `move_file` is going to do: what was in one place can be read in another."""
    source, target = context.path_to_write(given.source), context.path_to_write(given.target)
    return [
        Touches(source, "read", subtree=True),
        Touches(source, "delete", subtree=True),
        Touches(target, "write", subtree=True),
    ]


async def move_file(context: Context, given: MoveFile) -> Outcome:
    """Move or rename a file or directory. `to` is the new path itself, not a directory."""
    source, target = context.path_to_write(given.source), context.path_to_write(given.target)
    async with AsyncExitStack() as locks:
        # Both paths may be known to lead to one file, which has one lock.
        for lock in sorted({context.session.lock(path) for path in (source, target)}, key=id):
            await locks.enter_async_context(lock)
        slash = "/" if given.target.endswith("/") and target else ""
        arguments = {"from": source, "to": target + slash, "overwrite": given.overwrite is True}
        await context.ask("move", {**arguments, **context.bound(target)})
        context.session.move(source, target)
    return Outcome(
        f"Moved {shown_name(context.shown(source))} to {shown_name(context.shown(target))}",
        {"from": source, "to": target},
    )
