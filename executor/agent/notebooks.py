"""Jupyter notebooks: what is in their cells, and the change of one cell.

A change is made in the file's text: of the cell's source, and of what belongs to it, the bytes
are replaced, and every other byte stays as it is. So keys keep their order and the file its
indent, and a diff shows what was changed and nothing else.
"""

from __future__ import annotations

import binascii
import json
import os
import re

from . import files, pictures, ranges
from .operation import Failure
from .text import spelled
from .workspace import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .operation import Operation, Steps
    from .ranges import Pausing, Value
    from .workspace import Workspace

MAX_PARTS = 1500
"""Pieces of a notebook that are given: sources, outputs, pictures."""
_FORMAT = 4
_HAS_IDS = 5
"""The minor format from which on every cell has an id."""
_TYPES = ("code", "markdown", "raw")
_NAMED = 20
_NAME = 64
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_TEXTS = (
    *("text/plain", "text/markdown", "application/json", "text/latex", "text/html"),
    "image/svg+xml",
)
"""What is shown of an output that has several forms: the first of these."""
_ESCAPED = re.compile(rb"(?<!\\)(?:\\\\)*\\u(?!00[0-7])")
_CONTROLS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""What tells a terminal its colours, where to write, and where a link leads."""
_SPACE = b" \t\r\n"


class Cell:
    """One cell.

    Attributes:
        value: its range, and those of what is in it.
        type: `code`, `markdown` or `raw`.
        name: its id, or `cell-N` (from 0) where it has none that can be shown as it is.
    """

    __slots__ = ("name", "type", "value")

    def __init__(self, value: Value, kind: str, name: str) -> None:
        self.value = value
        self.type = kind
        self.name = name


class Notebook:
    """A notebook's text and where its cells are.

    Attributes:
        data: the text.
        root: all of it.
        minor: the second number of its format.
        cells: in their order.
        listed: the array that they are in.
    """

    __slots__ = ("cells", "data", "listed", "minor", "root")

    def __init__(self, data: bytes, root: Value) -> None:
        self.data = data
        self.root = root
        self.minor = self._format()
        listed = root.get("cells")
        if listed is None or listed.kind != "array":
            raise _broken(data, root.start, "it has no list of cells")
        self.listed = listed
        self.cells = [self._cell(number, value) for number, value in enumerate(listed.items)]

    def _format(self) -> int:
        if self.root.kind != "object":
            raise _broken(self.data, self.root.start, "it is not an object")
        self.require_single(self.root)
        major, minor = (self._number(name) for name in ("nbformat", "nbformat_minor"))
        if major is None or minor is None:
            raise _broken(self.data, self.root.start, "it does not say its nbformat")
        if major != _FORMAT:
            raise Failure(
                "UNSUPPORTED",
                f"The notebook has nbformat {major}; only nbformat {_FORMAT} is understood. "
                "Convert it, for example with run_command: jupyter nbconvert --to notebook "
                f"--nbformat {_FORMAT}.",
                {"nbformat": major},
            )
        return minor

    def _number(self, name: str) -> int | None:
        found = self.plain(self.root, name)
        return found if type(found) is int and 0 <= found < 1000 else None

    def _cell(self, number: int, value: Value) -> Cell:
        if value.kind != "object":
            raise _broken(self.data, value.start, f"cell {number} is not an object")
        self.require_single(value)
        kind, name = self.plain(value, "cell_type"), self.plain(value, "id")
        if kind not in _TYPES:
            raise _broken(self.data, value.start, f"cell {number} has no cell_type that is known")
        source = value.get("source")
        if source is None or not _is_text(source):
            raise _broken(self.data, value.start, f"cell {number} has no source that is text")
        if type(name) is str and 0 < len(name) <= _NAME and spelled(name) == name:
            return Cell(value, kind, name)
        return Cell(value, kind, f"cell-{number}")

    def require_single(self, value: Value) -> None:
        """Refuse an object with a key that it has twice: readers differ about which counts."""
        seen: set[str] = set()
        for key, at, _ in value.members:
            if key in seen:
                raise _broken(self.data, at, f"the key {json.dumps(key)[:100]} is there twice")
            seen.add(key)

    def plain(self, value: Value, name: str) -> Any:
        """A member that is a text, number, true, false or null; None if it is not there."""
        found = value.get(name)
        if found is None or found.kind not in ("string", "plain"):
            return None
        return ranges.decoded(self.data, found)

    def text(self, value: Value | None) -> str | None:
        """A text that is given as one, or as a list of pieces; None if it is neither."""
        if value is None or not _is_text(value):
            return None
        found = ranges.decoded(self.data, value)
        return found if type(found) is str else "".join(found)


def _is_text(value: Value) -> bool:
    return value.kind == "string" or (
        value.kind == "array" and all(item.kind == "string" for item in value.items)
    )


def _broken(data: bytes, at: int, reason: str) -> Failure:
    line = data.count(b"\n", 0, at) + 1
    return Failure(
        "EXECUTION_ERROR",
        f"This is not a valid notebook: line {line}: {reason}. Its text can be read with offset=1 "
        "and changed with edit_file.",
        {"line": line},
    )


def parsed(data: bytes) -> Pausing[Notebook]:
    """A notebook's text → the notebook.

    Raises:
        Failure: EXECUTION_ERROR, it is broken; UNSUPPORTED, its format; TOO_LARGE.
    """
    try:
        root = yield from ranges.scan(data)
    except ranges.Broken as error:
        raise _broken(data, error.at, error.reason) from None
    except ranges.TooMuch:
        raise Failure(
            "TOO_LARGE",
            "The notebook has too many lines and outputs to be shown by cells. Use run_command "
            "to clear its outputs, or read its text with offset=1.",
        ) from None
    return Notebook(data, root)


# ─── read ───────────────────────────────────────────────────────────────────────────


def read_notebook(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """All cells with their outputs: texts, and pictures as the bytes that they are."""
    content = yield from files.content(workspace, arguments["path"], files.EDIT_LIMIT)
    notebook = yield from parsed(content.data)
    parts = _Parts(arguments)
    shown_cells = 0
    for cell in notebook.cells:
        if parts.is_full:
            break
        shown_cells += 1
        count = notebook.plain(cell.value, "execution_count")
        text = notebook.text(cell.value.get("source")) or ""
        parts.add("source", cell.name, cell.type, text, count=count)
        yield from _add_attachments(notebook, cell, parts)
        outputs = cell.value.get("outputs")
        for output in outputs.items if outputs is not None and cell.type == "code" else ():
            yield from _add_output(notebook, cell, output, parts)
            yield None
    language = _language(notebook)
    reply = {"cells": len(notebook.cells), "shown": shown_cells, "language": language}
    return {**content.facts, **reply, "parts": parts.parts}, b"".join(parts.pieces)


def _language(notebook: Notebook) -> str | None:
    """The language of the code cells, where the notebook says it."""
    for path in (("language_info", "name"), ("kernelspec", "language")):
        value = notebook.root.get("metadata")
        for name in path:
            value = value.get(name) if value is not None else None
        if value is not None and value.kind == "string":
            return str(ranges.decoded(notebook.data, value))[:100]
    return None


class _Parts:
    """Texts and pictures, as many as are wanted, with what is left out of them.

    Args:
        given: `max_bytes` of all texts, `part_bytes` of the text of one output, `pictures`
            and `picture_bytes` of them all.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.parts: list[dict[str, Any]] = []
        self.pieces: list[bytes] = []
        self._room: int = given.get("max_bytes", 1 << 20)
        self._most: int = given.get("part_bytes", 20_000)
        self._pictures: int = given.get("pictures", 10)
        self._picture_room: int = given.get("picture_bytes", 5 << 20)

    @property
    def is_full(self) -> bool:
        """There is no room for another cell."""
        return self._room <= 0 or len(self.parts) >= MAX_PARTS

    def add(self, kind: str, cell: str, what: str, text: str, *, count: Any = None) -> None:
        """A text; what of it has no room is counted."""
        data = text.encode("utf-8", "replace")
        most = self._room if kind == "source" else min(self._room, self._most)
        kept = data if len(data) <= most else data[:most].decode("utf-8", "ignore").encode()
        self._room -= len(kept) + 40
        number = count if type(count) is int and 0 <= count < 1 << 53 else None
        self._add(kind, cell, what, kept, len(data) - len(kept), number)

    def add_picture(self, cell: str, media: str, data: bytes) -> None:
        """A picture; one that has no room is told by its size alone."""
        has_room = self._pictures > 0 and len(data) <= self._picture_room
        if has_room:
            self._pictures -= 1
            self._picture_room -= len(data)
        self._room -= 40
        self._add("picture", cell, media, data if has_room else b"", 0 if has_room else len(data))

    def _add(
        self, kind: str, cell: str, what: str, data: bytes, left_out: int, count: int | None = None
    ) -> None:
        if len(self.parts) >= MAX_PARTS:
            self._room = 0
            return
        facts = {"kind": kind, "cell": cell[:_NAME], "what": what, "count": count}
        self.parts.append({**facts, "length": len(data), "left_out": left_out})
        self.pieces.append(data)


def _add_output(notebook: Notebook, cell: Cell, output: Value, parts: _Parts) -> Pausing[None]:
    if output.kind != "object":
        return
    kind = notebook.plain(output, "output_type")
    if kind == "stream":
        name = notebook.plain(output, "name")
        text = notebook.text(output.get("text")) or ""
        what = "stderr" if name == "stderr" else "stdout"
        parts.add("output", cell.name, what, _CONTROLS.sub("", text))
    elif kind == "error":
        parts.add("output", cell.name, "error", _CONTROLS.sub("", _trace(notebook, output)))
    else:
        yield from _add_forms(notebook, cell, output.get("data"), parts)


def _add_attachments(notebook: Notebook, cell: Cell, parts: _Parts) -> Pausing[None]:
    """The pictures that a cell of text holds."""
    attached = cell.value.get("attachments") if cell.type != "code" else None
    for _, _, forms in attached.members if attached is not None else ():
        picture = yield from _picture(notebook, forms)
        if picture is not None:
            parts.add_picture(cell.name, *picture)
        yield None


def _trace(notebook: Notebook, output: Value) -> str:
    trace = output.get("traceback")
    if trace is not None and trace.items and _is_text(trace):
        return "\n".join(ranges.decoded(notebook.data, trace))
    return ": ".join(
        str(notebook.plain(output, name)) for name in ("ename", "evalue") if output.get(name)
    )


def _add_forms(notebook: Notebook, cell: Cell, forms: Value | None, parts: _Parts) -> Pausing[None]:
    """The forms of one output that are worth to be shown: a picture, and one text."""
    if forms is None:
        return
    picture = yield from _picture(notebook, forms)
    if picture is not None:
        parts.add_picture(cell.name, *picture)
    for media in _TEXTS if picture is None else _TEXTS[:1]:
        value = forms.get(media)
        if value is None:
            continue
        text = notebook.text(value)
        if text is None:
            text = notebook.data[value.start : value.end].decode()
        parts.add("output", cell.name, media, _CONTROLS.sub("", text))
        return
    if picture is None and forms.members:
        names = ", ".join(key for key, _, _ in forms.members[:_NAMED])
        parts.add("output", cell.name, "other", names[:1000])


def _picture(notebook: Notebook, forms: Value) -> Pausing[tuple[str, bytes] | None]:
    """The first picture that is a whole one by its content, whatever it is said to be."""
    for media in _PICTURES:
        text = notebook.text(forms.get(media))
        if text is None:
            continue
        try:
            data = binascii.a2b_base64("".join(text.split()), strict_mode=True)
            picture = yield from pictures.looked_through(data)
        except (ValueError, pictures.Damaged):
            continue
        if picture is not None and not picture.is_too_large:
            return picture.media_type, data
    return None


# ─── edit ───────────────────────────────────────────────────────────────────────────


class Edited:
    """A notebook's text after a change.

    Attributes:
        text: all of it.
        cell: the cell that was changed, made or deleted.
        type: its type now.
        cells: how many there are now.
    """

    __slots__ = ("cell", "cells", "text", "type")

    def __init__(self, text: bytes, cell: str, kind: str, cells: int) -> None:
        self.text = text
        self.cell = cell
        self.type = kind
        self.cells = cells


def edit_notebook(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Replace, insert or delete one cell of a notebook whose content the caller knows."""
    path = workspace.spelled_out(arguments["path"])

    def edited(data: bytes) -> Pausing[Edited]:
        notebook = yield from parsed(data)
        return changed(notebook, arguments, body.decode())

    rewritten = yield from files.rewrite(workspace, path, arguments, edited)
    result = rewritten.result
    facts = {"size": len(result.text), "hash": rewritten.hash, "key": rewritten.key}
    return {**facts, "cell": result.cell[:_NAME], "type": result.type, "cells": result.cells}, b""


def changed(notebook: Notebook, arguments: dict[str, Any], source: str) -> Edited:
    """The notebook after one change.

    Args:
        notebook: before it.
        arguments: `mode` (`replace`, `insert` or `delete`), `cell`, `type`.
        source: of the cell.

    Raises:
        Failure: NO_MATCH, AMBIGUOUS: which cell; INVALID_ARGUMENTS.
    """
    wanted, kind, mode = arguments.get("cell"), arguments.get("type"), arguments["mode"]
    at = _index(notebook, wanted) if wanted is not None else None
    count = len(notebook.cells)
    if mode == "insert":
        return _inserted(notebook, -1 if at is None else at, kind, source)
    if at is None:
        raise Failure("INVALID_ARGUMENTS", f"cell_id is required for edit_mode {mode}.")
    cell = notebook.cells[at]
    if mode == "delete":
        text = _put(notebook.data, [_deletion(notebook, at)])
        return Edited(text, cell.name, cell.type, count - 1)
    puts = list(_replacements(notebook, cell, kind or cell.type, source))
    text = _put(notebook.data, puts)
    if text == notebook.data:
        raise Failure(
            "INVALID_ARGUMENTS", f"no change: cell {shown(cell.name)} has this source already."
        )
    return Edited(text, cell.name, kind or cell.type, count)


def _index(notebook: Notebook, wanted: str) -> int:
    found = [at for at, cell in enumerate(notebook.cells) if cell.name == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise Failure(
            "AMBIGUOUS",
            f"{len(found)} cells are called {shown(wanted)}. Give them ids of their own with "
            "edit_file first.",
            {"count": len(found)},
        )
    names = [cell.name for cell in notebook.cells]
    listed = ", ".join(map(shown, names[:_NAMED])) + (", …" if len(names) > _NAMED else "")
    known = f"The ids are: {listed}." if names else "The notebook has no cells."
    raise Failure("NO_MATCH", f"No cell has the id {shown(wanted)}. {known}")


def _put(data: bytes, puts: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The text with other bytes in some ranges, which don't overlap."""
    pieces: list[bytes] = []
    end = 0
    for start, stop, put in sorted(puts):
        pieces += (data[end:start], put)
        end = stop
    pieces.append(data[end:])
    return b"".join(pieces)


class _Layout:
    """How a notebook is written: its indent and line ends, spaces, escapes.

    Attributes:
        line: what begins a new line at the outermost level; empty = all is on one line.
        unit: one level of indent.
        comma, colon: with the spaces around them.
        escapes: characters outside of ASCII are escaped.
    """

    def __init__(self, notebook: Notebook) -> None:
        data, members = notebook.data, notebook.root.members
        first = data[notebook.root.start + 1 : members[0][1]]
        at = first.rfind(b"\n")
        self.unit = first[at + 1 :] if at >= 0 else b""
        self.line = (b"\r\n" if first[at - 1 : at] == b"\r" else b"\n") if at >= 0 else b""
        between = data[members[0][2].end : members[1][1]]
        self.comma = b", " if between.endswith(b" ") else b","
        self.colon = b":" if data[members[0][2].start - 1 : members[0][2].start] == b":" else b": "
        self.escapes = data.isascii() and _ESCAPED.search(data) is not None

    def text(self, value: Any) -> bytes:
        """A text or number as JSON."""
        return json.dumps(value, ensure_ascii=self.escapes).encode("utf-8", "surrogatepass")

    def container(self, marks: bytes, parts: list[bytes], level: int) -> bytes:
        """Brackets around parts, each on a line of its own where the notebook has lines.

        Args:
            marks: the two brackets.
            parts: what is between them.
            level: of the brackets.
        """
        if not parts:
            return marks
        if not self.line:
            return marks[:1] + self.comma.join(parts) + marks[1:]
        inner = self.line + self.unit * (level + 1)
        outer = self.line + self.unit * level
        return marks[:1] + inner + (b"," + inner).join(parts) + outer + marks[1:]


def _lines(source: str) -> list[str]:
    lines = source.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


# ── one cell replaced ──


def _replacements(
    notebook: Notebook, cell: Cell, kind: str, source: str
) -> Iterable[tuple[int, int, bytes]]:
    """What is put where, so that the cell has this source and type, and no results of another.

    Args:
        notebook: it is in.
        cell: it.
        kind: its type from now on.
        source: its source from now on.
    """
    value = cell.value
    old = value.get("source")
    if kind == cell.type and notebook.text(old) == source:
        return
    if old is not None and notebook.text(old) != source:
        yield old.start, old.end, _new_source(notebook, value, old, source)
    if kind == "code":
        for name, empty in (("outputs", b"[]"), ("execution_count", b"null")):
            found = value.get(name)
            if found is not None and notebook.data[found.start : found.end] != empty:
                yield found.start, found.end, empty
    if kind != cell.type:
        yield from _other_type(notebook, value, kind)


def _new_source(notebook: Notebook, cell: Value, old: Value, source: str) -> bytes:
    """The source in the form of the one before: a text or a list of lines, laid out alike."""
    layout, data = _Layout(notebook), notebook.data
    if old.kind == "string":
        return layout.text(source)
    lines = [layout.text(line) for line in _lines(source)]
    if not lines:
        return b"[]"
    if old.items:
        before = data[old.start + 1 : old.items[0].start]
        after = data[old.items[-1].end : old.end - 1]
    else:
        after = _before_key(data, cell, "source")
        after = after if b"\n" in after else b""
        before = after + layout.unit if after else b""
    between = b"," + before if before else layout.comma
    if len(old.items) > 1:
        between = data[old.items[0].end : old.items[1].start]
    return b"[" + before + between.join(lines) + after + b"]"


def _before_key(data: bytes, value: Value, name: str) -> bytes:
    """The white space in front of a key."""
    at = next(at for key, at, _ in value.members if key == name)
    return data[len(data[:at].rstrip(_SPACE)) : at]


def _other_type(notebook: Notebook, cell: Value, kind: str) -> Iterable[tuple[int, int, bytes]]:
    """Another type, without what only the old one has and with what the new one needs."""
    data, layout = notebook.data, _Layout(notebook)
    old = cell.get("cell_type")
    if old is not None:
        yield old.start, old.end, layout.text(kind)
    unknown = ("attachments",) if kind == "code" else ("outputs", "execution_count")
    yield from _without(cell, unknown)
    if kind != "code":
        return
    keys = [key for key, _, _ in cell.members if key not in unknown]
    after_type = keys[(keys.index("cell_type") + 1) % len(keys)]
    for name, empty, beside in (
        ("execution_count", b"null", after_type),
        ("outputs", b"[]", "source"),
    ):
        if cell.get(name) is None:
            at = next(at for key, at, _ in cell.members if key == beside)
            space = _before_key(data, cell, beside) or layout.comma[1:]
            put = layout.text(name) + layout.colon + empty + b"," + space
            yield at, at, put


def _without(cell: Value, names: tuple[str, ...]) -> Iterable[tuple[int, int, bytes]]:
    """The members of these names taken out, each with one comma."""
    members = cell.members
    kept = next(at for at, member in enumerate(members) if member[0] not in names)
    if kept:
        yield members[0][1], members[kept][1], b""
    for at in range(kept + 1, len(members)):
        if members[at][0] in names:
            yield members[at - 1][2].end, members[at][2].end, b""


# ── one cell more, or less ──


def _inserted(notebook: Notebook, after: int, kind: str | None, source: str) -> Edited:
    if kind is None:
        raise Failure("INVALID_ARGUMENTS", "cell_type is required for edit_mode insert.")
    data, listed, cells = notebook.data, notebook.listed, notebook.listed.items
    layout = _Layout(notebook)
    has_id = notebook.minor >= _HAS_IDS
    name = _new_id({cell.name for cell in notebook.cells}) if has_id else f"cell-{after + 1}"
    text = _new_cell(notebook, layout, kind, name if has_id else None, source)
    if not cells:
        put = (listed.start, listed.end, layout.container(b"[]", [text], 1))
    else:
        space = data[listed.start + 1 : cells[0].start]
        space = space if b"\n" in space else layout.comma[1:]
        if after < 0:
            put = (cells[0].start, cells[0].start, text + b"," + space)
        else:
            put = (cells[after].end, cells[after].end, b"," + space + text)
    return Edited(_put(data, [put]), name, kind, len(cells) + 1)


def _new_id(taken: set[str]) -> str:
    while True:
        name = os.urandom(4).hex()
        if name not in taken:
            return name


def _new_cell(
    notebook: Notebook, layout: _Layout, kind: str, name: str | None, source: str
) -> bytes:
    """A cell as the notebook's others are written; keys in the order in which Jupyter has them."""
    lines = [layout.text(line) for line in _lines(source)]
    sources = [cell.value.get("source") for cell in notebook.cells]
    is_list = not sources or any(old is not None and old.kind == "array" for old in sources)
    fields = {"cell_type": layout.text(kind), "metadata": b"{}"}
    fields["source"] = layout.container(b"[]", lines, 3) if is_list else layout.text(source)
    if name is not None:
        fields["id"] = layout.text(name)
    if kind == "code":
        fields |= {"execution_count": b"null", "outputs": b"[]"}
    members = [layout.text(key) + layout.colon + fields[key] for key in sorted(fields)]
    return layout.container(b"{}", members, 2)


def _deletion(notebook: Notebook, at: int) -> tuple[int, int, bytes]:
    cells = notebook.listed.items
    if len(cells) == 1:
        return notebook.listed.start, notebook.listed.end, b"[]"
    if at:
        return cells[at - 1].end, cells[at].end, b""
    return cells[0].start, cells[1].start, b""


OPERATIONS: dict[str, Operation] = {
    "read_notebook": read_notebook,
    "edit_notebook": edit_notebook,
}
