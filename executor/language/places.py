"""Places that a language server names as places for a model, with the lines that are there.

The files are read by the agent for the call that asks, so what the loop's rules deny to be read
stays unread whatever a server says of it: such places are left out, and only counted.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise, takewhile
from operator import eq, ne
from typing import TypeAlias

from executor.code_questions import MOST_SPOTS, Spot
from executor.errors import Code, ToolError
from executor.language.answers import BadAnswer, Edit, Extent, Renaming, Target
from executor.language.positions import Encoding, Text
from executor.language.uris import path_of
from executor.results import shown_name
from executor.text import one_line, visible
from executor.tool import Context

MOST_BYTES = 8 << 20
"""Bytes of a file that is read."""
MOST_FILES = 50
"""Files whose text is read for one answer."""
MOST_BYTES_IN_ALL = 16 << 20
"""Bytes that they may have together."""
MOST_LOOKS = 1000
"""Files of one answer of which it is found out whether they may be read; places in the others
are not shown."""
MOST_CHARACTERS = 300
"""Characters of a line that are shown."""
BEFORE = 100
"""Of these, those before the place where a longer line is cut."""
QUICK = 1 << 18
"""Characters in which places are found in no time; with more, a thread does it."""
_HEAD = 8192
"""Bytes at the start of a file that say whether it is text."""
REFUSALS = (Code.PERMISSION_DENIED, Code.CONFLICT)
"""Codes of files that this call may not read: a rule denies it or asks first, or the call that
was agreed to is not about them."""

Place: TypeAlias = tuple[int, int, int, int]
"""Line and column of the beginning, and of the end; counted from 1."""


@dataclass(frozen=True, slots=True)
class Spots:
    """Places for a model.

    Attributes:
        spots: the first of them, at most `MOST_SPOTS`.
        total: how many there are.
        hidden: how many were left out since the loop may not read what is there.
        doubtful: paths of files in which a renaming would replace something else than the name.
    """

    spots: tuple[Spot, ...] = ()
    total: int = 0
    hidden: int = 0
    doubtful: tuple[str, ...] = ()


# ─── files ──────────────────────────────────────────────────────────────────────────


async def text_of(context: Context, path: str) -> str:
    """The whole text of a file of the box, without a byte order mark.

    UTF-16 is read where a mark says so. What is no UTF-8 becomes U+FFFD.

    Args:
        context: of the call.
        path: as tools name it.

    Raises:
        ToolError: TOO_LARGE, it has more than `MOST_BYTES`; UNSUPPORTED, it is no text;
            PERMISSION_DENIED, a rule denies it; whatever else reading a file raises.
    """
    name = shown_name(context.shown(path))
    try:
        data = await _data_of(context, path, MOST_BYTES)
    except ToolError as error:
        if error.code is not Code.TOO_LARGE:
            raise
        most = f"{MOST_BYTES >> 20} MiB"
        text = f"{name} is too large: nothing is asked about files of more than {most}."
        raise ToolError(Code.TOO_LARGE, text, error.details) from error
    content = _decoded(data)
    if content is None:
        raise ToolError(Code.UNSUPPORTED, f"{name} is not text ({len(data)} bytes).")
    return content


async def _data_of(context: Context, path: str, most: int) -> bytes:
    if path.startswith("/"):
        context.loop.reach.to_read(path)  # what no tool of the loop reads, no server shows
    asked = {"path": path, "encoding": "base64", "max_raw_bytes": most}
    return (await context.ask("read", asked)).data


def _decoded(data: bytes) -> str | None:
    """Bytes of a file → its text; None = it is none."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return data.decode("utf-16")
        except UnicodeDecodeError:
            pass
    if b"\0" in data[:_HEAD]:
        return None
    return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")


class Files:
    """The files of one answer, each looked at once.

    Args:
        context: of the call.
        encoding: in whose units the server counts.
        known: path → text of what was read for this call already.
        is_sent: whether the server was sent the text of a file, and counts in that.

    Attributes:
        encoding: likewise.
        unlike: files that were read and are otherwise on the disk than as text: they begin with a
            mark, or are no UTF-8. A server that was not sent them may count in what is there.
    """

    def __init__(
        self,
        context: Context,
        encoding: Encoding,
        known: Mapping[str, Text] | None = None,
        is_sent: Callable[[str], bool] = lambda path: False,
    ) -> None:
        self.encoding = encoding
        self.unlike: list[str] = []
        self._is_sent = is_sent
        self._context = context
        self._texts: dict[str, Text | None] = {**(known or {})}
        self._denied: set[str] = set()
        self._gone: set[str] = set()
        self._read = 0
        self._room = MOST_BYTES_IN_ALL

    def is_denied(self, path: str | None) -> bool:
        """It was looked at, and may not be read."""
        return path in self._denied

    def is_gone(self, path: str | None) -> bool:
        """It was looked at, and is not there: the server has not noticed that (clangd)."""
        return path in self._gone

    async def may_look(self, path: str | None) -> bool:
        """Whether places in it may be shown. Raises what `text_of` raises of a lost box."""
        if path is None or path in self._texts:
            return True
        looks = len(self._texts) + len(self._denied) + len(self._gone)
        if path in self._denied or path in self._gone or looks >= MOST_LOOKS:
            return False
        try:
            self._texts[path] = await self._looked_at(path)
        except ToolError as error:
            if error.code in REFUSALS:
                self._denied.add(path)
            elif error.code is Code.FILE_NOT_FOUND:
                self._gone.add(path)
            elif error.code is Code.TIMEOUT:
                raise
            else:
                self._texts[path] = None
        return path in self._texts

    async def _looked_at(self, path: str) -> Text | None:
        # Where nothing more is to be read, the agent still says whether it may be.
        most = min(MOST_BYTES, self._room) if self._read < MOST_FILES else 0
        data = await _data_of(self._context, path, most)
        self._read += 1
        self._room -= len(data)
        content = _decoded(data)
        if content is None:
            return None
        if content.encode() != data and not self._is_sent(path):
            self.unlike.append(path)
        text = Text(content)
        if len(content) > QUICK:  # other loops have their turn meanwhile
            await asyncio.to_thread(text.prepare, self.encoding)
        return text

    def text(self, path: str | None) -> Text | None:
        """What is in it; None = that is not known."""
        return self._texts.get(path) if path is not None else None


# ─── places ─────────────────────────────────────────────────────────────────────────


async def spots_of(files: Files, targets: Sequence[Target]) -> Spots:
    """Places for a model, of a server's.

    Args:
        files: of the answer.
        targets: the server's, in the order in which they are to be shown.

    Raises:
        ToolError: TIMEOUT.
        SandboxError: the box could not be had or was lost.
    """
    paths: dict[str, str | None] = {}
    spots: list[Spot] = []
    hidden = gone = 0
    for target in targets:
        if target.uri not in paths:
            paths[target.uri] = path_of(target.uri)
        path = paths[target.uri]
        if len(spots) < MOST_SPOTS and await files.may_look(path):
            spots.append(_spot(path, target, files.text(path), files.encoding))
        elif files.is_denied(path):
            hidden += 1
        elif files.is_gone(path):
            gone += 1
    return Spots(tuple(spots), len(targets) - gone, hidden)


def _spot(path: str | None, target: Target, text: Text | None, encoding: Encoding) -> Spot:
    shown = path if path is not None else _shown(target.uri)
    extent = target.extent
    if text is None:
        return Spot(shown, *_uncounted(extent), target.text, is_file=path is not None)
    line, column = text.place(extent.line, extent.character, encoding)
    end = text.place(extent.end_line, extent.end_character, encoding)
    return Spot(shown, line, column, *end, target.text or _excerpt(text.line(line), column))


def _shown(uri: str) -> str:
    """What is no file of the box, by its URI."""
    return one_line(uri, MOST_CHARACTERS)


def _uncounted(extent: Extent) -> Place:
    """Where it is in a file that can't be read, as the server counts but from 1."""
    return extent.line + 1, extent.character + 1, extent.end_line + 1, extent.end_character + 1


def _excerpt(line: str, column: int) -> str:
    """A line, or of a long one the part around a place."""
    if len(line) <= MOST_CHARACTERS:
        return line
    start = max(column - 1 - BEFORE, 0) if column > MOST_CHARACTERS - BEFORE else 0
    before = "…" if start else ""
    part = line[start : start + MOST_CHARACTERS - len(before)]
    if start + len(part) < len(line):
        part = part[:-1] + "…"
    return before + part


# ─── previews ───────────────────────────────────────────────────────────────────────


async def previews_of(files: Files, renaming: Renaming, word: str = "") -> Spots:
    """The lines that a renaming would change, as they would be.

    Nothing is changed. A place is that of the line's first edit in the file as it is.

    Args:
        files: of the answer.
        renaming: the server's.
        word: the name that is changed; empty = it is not known.

    Raises:
        BadAnswer: edits of one file overlap.
        ToolError: TIMEOUT.
        SandboxError: the box could not be had or was lost.
    """
    spots: list[Spot] = []
    doubtful: list[str] = []
    total = hidden = 0
    for (path, shown), edits in _by_file(renaming.files).items():
        is_shown = len(spots) < MOST_SPOTS and await files.may_look(path)
        if files.is_gone(path):
            continue
        text = files.text(path)
        found = await _lines(shown, edits, text, files.encoding, is_file=path is not None)
        total += found.count
        if is_shown:
            spots += islice(found.spots(), MOST_SPOTS - len(spots))
            doubtful += [path] if path is not None and found.replaces_else_than(word) else []
        elif files.is_denied(path):
            hidden += found.count
    return Spots(tuple(spots), total, hidden, tuple(doubtful))


def _by_file(files: Mapping[str, tuple[Edit, ...]]) -> dict[tuple[str | None, str], list[Edit]]:
    """Path and name for a model → all edits of a file, whatever URIs name it."""
    found: dict[tuple[str | None, str], list[Edit]] = {}
    for uri, edits in files.items():
        path = path_of(uri)
        shown = path if path is not None else _shown(uri)
        found.setdefault((path, shown), []).extend(edits)
    return found


async def _lines(
    shown: str, edits: Sequence[Edit], text: Text | None, encoding: Encoding, *, is_file: bool
) -> _Lines:
    """See `_Lines`."""
    size = len(text.content) + sum(len(edit.new_text) for edit in edits) if text is not None else 0
    if size <= QUICK:
        return _Lines(shown, edits, text, encoding, is_file=is_file)
    made = partial(_Lines, shown, edits, text, encoding, is_file=is_file)
    return await asyncio.to_thread(made)


class _Lines:
    """The lines of one file that edits would change.

    Args:
        shown: name of the file for a model.
        edits: of it, in any order.
        text: of it; None = that is not known, and every line where an edit begins is changed.
        encoding: in whose units the server counts.
        is_file: it is one of the box.

    Attributes:
        count: how many there are.

    Raises:
        BadAnswer: edits overlap.
    """

    def __init__(
        self,
        shown: str,
        edits: Sequence[Edit],
        text: Text | None,
        encoding: Encoding,
        *,
        is_file: bool,
    ) -> None:
        self._shown = shown
        self._is_file = is_file
        self._content = text.content if text is not None else ""
        self._unread = [] if text is not None else _first_of_lines(edits)
        self._cuts = _cuts(text, edits, encoding) if text is not None else []
        self._hunks = list(_hunks(text, self._cuts)) if text is not None else []
        self.count = len(self._unread) + sum(hunk.count for hunk in self._hunks)

    def replaces_else_than(self, word: str) -> bool:
        """An edit replaces something that neither holds this word nor is a part of it."""
        return any(not _is_of(self._content, cut, word) for cut in self._cuts)

    def spots(self) -> Iterator[Spot]:
        """They, from the first to the last."""
        for extent in self._unread:
            yield Spot(self._shown, *_uncounted(extent), is_file=self._is_file)
        for hunk in self._hunks:
            for place, line in hunk.lines():
                yield Spot(self._shown, *place, _excerpt(line, place[1]))


def _first_of_lines(edits: Sequence[Edit]) -> list[Extent]:
    extents = sorted((edit.extent for edit in edits), key=lambda one: (one.line, one.character))
    return list({extent.line: extent for extent in reversed(extents)}.values())[::-1]


@dataclass(frozen=True, slots=True)
class _Cut:
    """An edit: what is between two offsets is replaced.

    Attributes:
        start, end: they.
        new: what comes there.
        puts_in: to the server there is nothing between them.
    """

    start: int
    end: int
    new: str
    puts_in: bool


def _cuts(text: Text, edits: Sequence[Edit], encoding: Encoding) -> list[_Cut]:
    """The edits in the order of their places."""
    found: list[_Cut] = []
    tamed = visible if _act(edits, text.content) else str
    for edit in edits:
        part = edit.extent
        start = text.offset(part.line, part.character, encoding)
        end = text.offset(part.end_line, part.end_character, encoding)
        puts_in = (part.line, part.character) == (part.end_line, part.end_character)
        found.append(_Cut(start, end, tamed(edit.new_text), puts_in))
    found.sort(key=lambda cut: (cut.start, cut.end))  # what is inserted at one place stays in order
    for before, after in pairwise(found):
        if after.start < before.end:
            line, _ = text.located(after.start)
            raise BadAnswer(f"two edits overlap in line {line} of one file")
    return found


def _act(edits: Sequence[Edit], content: str) -> bool:
    """They would put in a character that acts or hides, and that the file has nowhere itself: what
    it has comes back where a server gives a whole file anew."""
    characters: set[str] = set().union(*(edit.new_text for edit in edits))
    acting = {one for one in characters if visible(one) != one}
    return bool(acting) and not acting <= set(content)


def _is_of(content: str, cut: _Cut, word: str) -> bool:
    """An edit replaces what has this word in it, or a part of it; or it only puts something in."""
    if cut.puts_in or word in content[cut.start : cut.end]:
        return True
    # Some servers leave what the two names have in common (jedi).
    is_part = content.find(word, max(cut.end - len(word), 0), cut.start + len(word)) >= 0
    return is_part and cut.start < cut.end


def _hunks(text: Text, cuts: Sequence[_Cut]) -> Iterator[_Hunk]:
    """Edits of the same lines together."""
    together: list[_Cut] = []
    last = 0
    for cut in cuts:
        first, _ = text.located(cut.start)
        if together and first > last:
            yield _Hunk(text, together)
            together = []
        together.append(cut)
        last, _ = text.located(cut.end)
    if together:
        yield _Hunk(text, together)


class _Hunk:
    """Lines that follow each other, and what edits make of them.

    Args:
        text: of the file.
        cuts: the edits, in the order of their places.

    Attributes:
        count: how many lines are changed.
    """

    def __init__(self, text: Text, cuts: Sequence[_Cut]) -> None:
        self._first, _ = text.located(cuts[0].start)
        last, _ = text.located(cuts[-1].end)
        start, end = text.bounds(self._first)[0], text.bounds(last)[1]
        self._before = _split(text.content[start:end])
        self._after = _split(_with(text.content, cuts, start, end))
        self._places = _single(text, cuts)
        if len(self._before) == len(self._after):
            differ = map(ne, self._before, self._after)
            self._changed = [index for index, is_other in enumerate(differ) if is_other]
        else:
            self._narrow()
            self._changed = list(range(max(len(self._after), 1)))
        self.count = len(self._changed)

    def _narrow(self) -> None:
        """Leave out lines at both ends that stay as they are."""
        before, after = self._before, self._after
        head = _alike(before, after)
        tail = _alike(before[head:][::-1], after[head:][::-1])
        self._first += head
        self._before = before[head : len(before) - tail]
        self._after = after[head : len(after) - tail]

    def lines(self) -> Iterator[tuple[Place, str]]:
        """The changed lines as they would be, each with its place in the file as it is."""
        for index in self._changed:
            # Of lines that are new the place is the last one that they replace.
            at = max(min(index, len(self._before) - 1), 0)
            old = self._before[at] if self._before else ""
            new = self._after[index] if self._after else "[removed]"
            number = self._first + at
            place = self._places.get(number) or (number, *_difference(number, old, new))
            yield place, new


def _split(text: str) -> list[str]:
    return text.replace("\r\n", "\n").split("\n")


def _with(content: str, cuts: Sequence[_Cut], start: int, end: int) -> str:
    """What edits make of a part of a text."""
    pieces: list[str] = []
    for cut in cuts:
        pieces += (content[start : cut.start], cut.new)
        start = cut.end
    return "".join([*pieces, content[start:end]])


def _single(text: Text, cuts: Sequence[_Cut]) -> dict[int, Place]:
    """Line → the place of the first edit that begins there, of those within one line."""
    found: dict[int, Place] = {}
    for cut in cuts:
        begin, end = text.located(cut.start), text.located(cut.end)
        if begin[0] == end[0]:
            found.setdefault(begin[0], (*begin, *end))
    return found


def _difference(number: int, old: str, new: str) -> tuple[int, int, int]:
    """Where a line differs from another: its first column, its line, the column behind it.

    Whole words, since a server that gives lines anew has most often renamed a word in them.
    """
    start = _alike(old, new)
    end = len(old) - _alike(old[start:][::-1], new[start:][::-1])
    while start and _is_of_word(old[start - 1]):
        start -= 1
    while end < len(old) and _is_of_word(old[end]):
        end += 1
    return start + 1, number, end + 1


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How many parts two begin with that are the same."""
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"
