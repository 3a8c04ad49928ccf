"""The `loom` toolset: four tools whose results are JSON."""

from __future__ import annotations

import codecs
import hashlib
import json
import posixpath
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from executor.catalog import Keep
from executor.errors import Code, ToolError
from executor.model import MOUNT
from executor.results import Captured, Limit, clip, decode, name_of, shown_name, size_of
from executor.tool import (
    Action,
    Answer,
    Arguments,
    Context,
    Order,
    Outcome,
    Path,
    Raw,
    RunsCommand,
    Text,
    Touches,
    Whole,
)
from executor.tools import commands, files, rich, web
from executor.toolsets.building import Shown

NAME = "loom"

WORDS = {
    "write_file": "edit_file with an empty old_str",
    "list_directory": "list_files",
    "run_command": "bash",
    "run_code": "bash",
    "old_string": "old_str",
    "new_string": "new_str",
    "numResults": "max_results",
    "Use encoding base64 to get its bytes": "Use bash to look at it",
    "It is too large for encoding base64; use run_command": "Use bash",
}
"""What refusals say in the words of our own tools → in those of this toolset."""

MOST_READ = 8 << 20
"""Bytes of a file that are given at a time at the most."""
MOST_ENTRIES = 10_000
LINES = 1_000_000


def _told(value: dict[str, Any], **more: Any) -> Outcome:
    """A value as data, and as JSON for the model."""
    return Outcome(json.dumps(value, ensure_ascii=False), value, **more)


# ─── read_file ──────────────────────────────────────────────────────────────────────


class ReadFile(Arguments):
    """Arguments of `read_file`."""

    path: Path = Field(description="Path of the file, from the workspace's root")
    max_bytes: Annotated[int, Field(ge=1, le=MOST_READ), Whole] | None = Field(
        None, description="How much of it to read (default: 1 MiB)"
    )


async def read_file(context: Context, given: ReadFile) -> Outcome:
    """Read the contents of a file. One that is longer than max_bytes is cut between lines.

    A file has to be read before edit_file changes it.
    """
    path = context.path(given.path)
    most = given.max_bytes or min(context.entry.max_output_bytes, MOST_READ)
    window = {"offset": 1, "limit": LINES, "max_bytes": most, "line_chars": most}
    # It says what is no text, and where a file is cut that is too long.
    try:
        answer = await context.ask("read", {"path": path, "encoding": "utf-8", **window})
    except ToolError as error:
        return await rich.in_its_place(context, path, error)
    contents = None
    if not answer.value["more"] and not answer.value["clipped"]:
        contents = await _whole(context, path, most)
    is_cut = contents is None
    rich.require_content(context, path, answer.value["size"])
    if contents is None:
        contents = _beginning(answer.data, most)
        _note(context, path, answer)
    value = {"path": context.shown(path), "contents": contents, "truncated": is_cut}
    size = answer.value["size"]
    return _told(value, truncated=is_cut, total_bytes=size, is_fitted=True)


def _beginning(data: bytes, most: int) -> str:
    """As many whole characters as fit; a single line may be longer than all that fits."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data[:most])


async def _whole(context: Context, path: str, most: int) -> str | None:
    """All of a text file, with its own line ends; None if it is longer than that.

    A byte order mark is left out: it is no part of the text, and edits keep it.
    """
    try:
        asked = {"path": path, "encoding": "base64", "max_raw_bytes": most}
        answer = await context.ask("read", asked)
    except ToolError as error:
        if error.code is Code.TOO_LARGE:
            return None
        raise
    value = answer.value
    context.session.knows(path, value["hash"], value.get("key"), value["modified"])
    if answer.data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return answer.data.decode("utf-16", "replace")
    return decode(answer.data.removeprefix(codecs.BOM_UTF8))


def _note(context: Context, path: str, answer: Answer) -> None:
    value = answer.value
    clipped = value["clipped"]
    last = clipped[0][0] - 1 if clipped else value["lines"]
    known = {"key": value.get("key"), "modified": value["modified"]}
    context.session.saw(path, value["hash"], 1, last, more=True, **known)


# ─── list_files ─────────────────────────────────────────────────────────────────────


class ListFiles(Arguments):
    """Arguments of `list_files`."""

    root: Path | None = Field(
        None, description="Directory to list, from the workspace's root (default: the root)"
    )
    max_results: Annotated[int, Field(ge=1, le=MOST_ENTRIES), Whole] | None = Field(
        None, description="How many entries to list at most (default: 1000)"
    )


def lists_files(context: Context, given: ListFiles) -> Sequence[Action]:
    """What `list_files` is going to do."""
    return [Touches(context.path(given.root or "."), "list")]


async def list_files(context: Context, given: ListFiles) -> Outcome:
    """List the files and directories in a directory of the workspace, hidden ones too."""
    path = context.path(given.root or ".")
    asked = {
        "path": path,
        "recursive": False,
        "include_hidden": True,
        "max_depth": None,
        "max_entries": given.max_results or 1000,
    }
    answer = await context.ask("list", asked)
    records = (record.split(b"\x1f", 4) for record in answer.data.split(b"\0") if record)
    entries = [
        {"path": shown_name(posixpath.join(path, name_of(name))), "is_dir": kind == b"d"}
        for kind, _, _, _, name in records
    ]
    value: dict[str, Any] = {"entries": entries}
    if answer.value["truncated"]:
        value |= {"truncated": True, "total": answer.value["total"]}
    return _told(value, truncated=answer.value["truncated"])


# ─── edit_file ──────────────────────────────────────────────────────────────────────


class Piece(Arguments):
    """One replacement."""

    old_str: Text = Field(
        description="Exact text to replace; empty only to make a file, or to fill an empty one"
    )
    new_str: Text = Field(description="What to put in its place")
    replace_all: bool | None = Field(None, description="Replace every occurrence (default: false)")


class EditFile(Arguments):
    """Arguments of `edit_file`."""

    path: Path = Field(description="Path of the file, from the workspace's root")
    edits: Annotated[list[Piece], Field(min_length=1)] = Field(
        description="Replacements, made one after the other; all of them or none"
    )


async def edit_file(context: Context, given: EditFile) -> Outcome:
    """Replace text in a file that was read with read_file, or make a new file.

    All edits are made, or none. To make a file, give one edit with an empty old_str.
    """
    if any(not piece.old_str for piece in given.edits):
        return await _filled(context, given)
    pieces = [(piece.old_str, piece.new_str, piece.replace_all is True) for piece in given.edits]
    value = await files.edit_pieces(context, given.path, pieces)
    return _edited(context, given, value["replacements"], value["original_size"], value["size"])


def _edited(context: Context, given: EditFile, count: int, before: int, after: int) -> Outcome:
    value = {
        "path": context.shown(context.path(given.path)),
        "edits_applied": count,
        "original_bytes": before,
        "new_bytes": after,
    }
    return _told(value)


EMPTY = hashlib.blake2b(b"", digest_size=16).hexdigest()
"""The agent's hash of an empty file."""


async def _filled(context: Context, given: EditFile) -> Outcome:
    """A new file, or an empty one that is filled."""
    if len(given.edits) > 1:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            "An empty old_str makes a file, and has to be the only edit. Nothing was changed.",
        )
    path = context.path_to_write(given.path)
    async with context.session.lock(path):
        found = (await context.ask("stat", {"path": path})).value
        if found["exists"] and found["size"]:
            raise ToolError(
                Code.INVALID_ARGUMENTS,
                f"{shown_name(context.shown(path))} has {found['size']} bytes, so old_str can't "
                "be empty. Give the text to replace.",
            )
        asked = {"path": path, "create_dirs": True, "keep_bom": False, **context.bound(path)}
        # Whatever comes between the look and the change is a conflict.
        asked |= {"expect": EMPTY} if found["exists"] else {"create_only": True}
        body = given.edits[0].new_str.encode()
        answer = await context.ask("write", asked, body)
        context.session.knows(path, answer.value["hash"], answer.value.get("key"))
    return _edited(context, given, 1, 0, answer.value["size"])


# ─── bash ───────────────────────────────────────────────────────────────────────────


class Bash(Arguments):
    """Arguments of `bash`."""

    command: Raw = Field(description="Command to execute")
    cwd: Path | None = Field(
        None, description="Directory to run it in (default: the workspace's root)"
    )
    timeout_secs: Annotated[int, Field(ge=1, le=300), Whole] | None = Field(
        None, description="Seconds that it may take (default: 60)"
    )


def runs_bash(context: Context, given: Bash) -> Sequence[Action]:
    """What `bash` is going to do."""
    return [RunsCommand(given.command, _directory(context, given)[1])]


def _directory(context: Context, given: Bash) -> tuple[str, str]:
    """Where the command runs: as the agent takes it, and as it is seen in the box."""
    path = context.path(given.cwd or ".")
    if path.startswith("/"):
        raise ToolError(
            Code.INVALID_PATH, "cwd must be in the workspace; start the command with cd instead."
        )
    return path, posixpath.join(MOUNT, path).rstrip("/")


DEFAULT_SECONDS = 60


async def bash(context: Context, given: Bash) -> Outcome:
    """Execute a shell command in the workspace. Each starts in the root, or in cwd."""
    path, _ = _directory(context, given)
    longest = (context.entry.max_timeout_ms or 300_000) / 1000
    usual = context.loop.limits.call_timeout or min(DEFAULT_SECONDS, longest)
    seconds = given.timeout_secs or usual
    if seconds > longest:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"timeout_secs is {seconds}, and at most {longest:g} is allowed.",
        )
    outcome = await commands.waited_for(
        context, {"command": given.command, "cwd": path}, b"", seconds
    )
    return _as_json(context, outcome)


def _as_json(context: Context, outcome: Outcome) -> Outcome:
    """What became of a command, each stream within half of what is shown of both."""
    facts = outcome.structured or {}
    half = Limit.of(context).size // 2
    streams = {name: facts[name] for name in ("stdout", "stderr")}
    sizes = {name: size_of(text) for name, text in streams.items()}
    is_cut = outcome.truncated
    for name, other in (("stdout", "stderr"), ("stderr", "stdout")):
        if sizes[name] > half:
            total = max((outcome.total_bytes or 0) - sizes[other], sizes[name])
            streams[name] = _shorter(streams[name], total, half)
            is_cut = True
    value: dict[str, Any] = {
        "exit_code": facts["exit_code"],
        **streams,
        "timed_out": facts["timed_out"],
        "truncated": is_cut,
    }
    notes = [*facts["notes"]]
    if facts["limit"] is not None:
        notes.append(f"the limit of {facts['limit']} was reached")
    if outcome.spill is not None:
        notes.append(f"Full content saved to: {outcome.spill}")
    if notes:
        value["notes"] = notes
    return _told(
        value,
        is_error=outcome.is_error,
        code=outcome.code,
        truncated=is_cut,
        total_bytes=outcome.total_bytes,
        spill=outcome.spill,
        is_fitted=True,
    )


def _shorter(text: str, total: int, most: int) -> str:
    """Beginning and end of a stream that has a room of its own."""
    data = text.encode("utf-8", "surrogatepass")
    half = most // 2
    return clip(Captured(data[:half], data[-half:], total), most, Keep.BOTH).text


# ─── web_search ─────────────────────────────────────────────────────────────────────


class WebSearch(Arguments):
    """Arguments of `web_search`."""

    query: Text = Field(
        min_length=1, max_length=web.MOST_SEARCHED, description="What to search for"
    )
    max_results: Annotated[int, Field(ge=1, le=100), Whole] | None = Field(
        None, description="How many results (default: 5)"
    )


async def web_search(context: Context, given: WebSearch) -> Outcome:
    """Search the web. Gives title, address and a snippet of each result."""
    asked = {"query": given.query, "numResults": given.max_results}
    outcome = await web.web_search(context, web.WebSearch.model_validate(asked))
    return _told({"query": given.query, **(outcome.structured or {})})


TOOLS: tuple[Shown, ...] = (
    Shown(
        name="read_file",
        arguments=ReadFile,
        run=read_file,
        order=Order.SAFE,
        actions=files.reads_file,
        words=WORDS,
    ),
    Shown(
        name="list_files",
        canonical="list_directory",
        arguments=ListFiles,
        run=list_files,
        order=Order.SAFE,
        actions=lists_files,
        words=WORDS,
    ),
    Shown(
        name="edit_file",
        arguments=EditFile,
        run=edit_file,
        actions=files.writes_file,
        can_be_tried=True,
        words=WORDS,
    ),
    Shown(
        name="bash",
        canonical="run_command",
        arguments=Bash,
        run=bash,
        actions=runs_bash,
        words=WORDS,
    ),
    Shown(
        name="oracle",
        arguments=web.Oracle,
        run=web.oracle,
        order=Order.SAFE,
        unavailable=web.no_oracle,
    ),
    Shown(
        name="web_search",
        arguments=WebSearch,
        run=web_search,
        order=Order.SAFE,
        unavailable=web.no_search,
        words=WORDS,
    ),
)
