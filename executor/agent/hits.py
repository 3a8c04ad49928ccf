"""ripgrep's output, of whatever size, as lines for the model, within limits."""

from __future__ import annotations

import re

from .text import characters, leading_bytes, spelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, TypeAlias

    from .search import Filter, Options

    Pauses: TypeAlias = Generator[None, Any, None]
    Rest: TypeAlias = Generator[None, Any, bytes]

_LONG = 256 << 10
_SLICE = 1000
"""Records, or as much work as they are, between two pauses."""
_MAX_WARNINGS = 20

_RECORD = re.compile(rb"([^\0]+)\0(\d+)(?::(\d+):|-)([^\n]*)\n")
_RECORD_START = re.compile(rb"([^\0]+)\0(\d+)(?::(\d+):|-)")
_NAMED = re.compile(rb"([^\0]+)\0")
_COUNTED = re.compile(rb"([^\0]+)\0(\d+)\r?\n")
_BINARY = re.compile(
    rb"(\./.*?|/proc/self/fd/\d+): binary file matches "
    rb"\(found \"\\0\" byte around offset \d+\)\n",
    re.DOTALL,
)


class _File:
    """What is shown of one file: lines, each with: is it a match, and is it clipped?"""

    __slots__ = ("has_more", "label", "lines", "matches", "name", "size")

    def __init__(self, name: bytes, prefix: str) -> None:
        self.name = name
        self.label = spelled(prefix + name.decode("utf-8", "surrogateescape")).encode()
        self.lines: list[tuple[bool, bytes, bool]] = []
        self.matches = 0
        self.size = 0
        self.has_more = False

    def add(self, is_match: bool, line: bytes, room: int, *, clipped: bool = False) -> None:
        """Take a line, of which no more is kept than could be shown."""
        self.matches += is_match
        self.size += len(line) + 1
        if self.size <= room or not self.lines:
            self.lines.append((is_match, line, clipped))


class _LongLine:
    """A line too long to be held: the part around the match, and how much is left out."""

    def __init__(self, start: re.Match[bytes], span: int) -> None:
        self.path, number, self.column = start.groups()
        self.number = int(number)
        self._anchor = int(self.column) - 1 if self.column else 0
        self._start = max(0, self._anchor - span)
        self._end = self._anchor + span
        self._position = 0
        self._window = b""
        self._before = self._after = 0
        self._last = b""

    def feed(self, piece: bytes) -> None:
        """Take more of the line."""
        begin = max(0, self._start - self._position)
        end = max(0, self._end - self._position)
        self._before += leading_bytes(piece[:begin])
        self._window += piece[begin:end]
        self._after += leading_bytes(piece[end:])
        self._position += len(piece)
        self._last = piece[-1:] or self._last

    def clipped(self, line_chars: int) -> bytes:
        """What is shown of it."""
        after = self._after - (self._last == b"\r" and self._after > 0)
        window = self._window if self._after else self._window.removesuffix(b"\r")
        return _around(window, self._anchor - self._start, self._before, after, line_chars)


def _clip(line: bytes, anchor: int, line_chars: int) -> bytes:
    """The line, or if it is too long the part of it around the byte `anchor`."""
    if len(line) <= line_chars or characters(line) <= line_chars:
        return line
    return _around(line, anchor, 0, 0, line_chars)


def _around(window: bytes, anchor: int, before: int, after: int, line_chars: int) -> bytes:
    text = window.decode("utf-8", "surrogateescape")
    at = len(window[:anchor].decode("utf-8", "surrogateescape"))
    start = max(0, min(at - line_chars // 3, len(text) - line_chars))
    left = before + start
    right = after + max(0, len(text) - start - line_chars)
    shown_text = text[start : start + line_chars].encode("utf-8", "surrogateescape")
    head = f"[{left} characters]…" if left else ""
    tail = f"…[{right} characters]" if right else ""
    return head.encode() + shown_text + tail.encode()


class _Opened:
    """Names of files, as ripgrep says them or as it was given descriptors of them."""

    def __init__(self) -> None:
        self._opened: dict[bytes, bytes] = {}

    def name(self, path: bytes) -> bytes:
        """The path of the workspace that ripgrep means."""
        return self._opened.get(path) or path.removeprefix(b"./")


class Hits(_Opened):
    """ripgrep's output → the lines to show, sorted by path, within the limits.

    Output of any size is taken in bounded memory: files that come too late in the order
    to be shown are only counted, and of a long line only the part to show is kept.

    Attributes:
        read: bytes taken.
        warnings: what went wrong, for the model.
    """

    def __init__(self, options: Options, name_filter: Filter, prefix: str = "") -> None:
        super().__init__()
        self._options = options
        self._prefix = prefix
        self._filter = name_filter
        self._buffer = b""
        self._long: _LongLine | None = None
        self._path = b""
        self._file: _File | None = None
        self._last_match = self._last_line = 0
        self._files: dict[bytes, _File] = {}
        self._held = 0
        self._too_late: bytes | None = None
        self._matches = self._file_count = self._size = 0
        self._work = self._more_warnings = 0
        self._partial = self._has_more = False
        self._apart = bool(options.before or options.after)
        self.read = 0
        self.warnings: list[str] = []

    def stop(self, reason: str) -> None:
        """There is no more output, though it is not complete."""
        self._partial = True
        self.warn(reason)
        self._end_file()

    def warn(self, warning: str) -> None:
        """Keep a warning; those that come too late to be shown are only counted."""
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(warning)
        else:
            self._more_warnings += 1

    # ─── output → records ───────────────────────────────────────────────────────────

    def _pause(self) -> Pauses:
        """Give way when enough was done since the last time."""
        self._work += 1
        if self._work > _SLICE:
            self._work = 0
            yield None

    def feed(self, piece: bytes) -> Pauses:
        """Take the next piece of the output."""
        self.read += len(piece)
        if self._long is not None:
            piece = yield from self._feed_long(self._long, piece)
        buffer = self._buffer + piece if self._buffer else piece
        position = 0
        while True:
            record = _RECORD.match(buffer, position)
            if record is None:
                break
            position = record.end()
            path, number, column, line = record.groups()
            self._work += 1
            if path != self._path or self._work > _SLICE:
                yield from self._pause()
            if path != self._path:
                yield from self._begin_file(path)
            if self._file is not None:
                line = line.removesuffix(b"\r")
                anchor = int(column) - 1 if column else 0
                part = _clip(line, anchor, self._options.line_chars)
                self._add(int(number), column, part, clipped=part is not line)
        self._buffer = buffer[position:]
        if len(self._buffer) > _LONG:
            yield from self._begin_long()

    def finish(self) -> Pauses:
        """All output was taken."""
        if self._long is not None:
            yield from self._feed_long(self._long, b"\n")
        yield from self._take_binaries(self._buffer)
        self._end_file()

    def begin(self, opened: dict[bytes, bytes]) -> None:
        """The next output is of these files: what ripgrep calls them → their names."""
        self._opened = opened
        self._path = self._buffer = b""

    def _begin_long(self) -> Pauses:
        """Stop holding a line that has no end yet."""
        self._buffer = yield from self._take_binaries(self._buffer)
        start = _RECORD_START.match(self._buffer)
        if start is not None:
            self._long = _LongLine(start, 4 * self._options.line_chars)
            self._long.feed(self._buffer[start.end() :])
            self._buffer = b""

    def _feed_long(self, line: _LongLine, piece: bytes) -> Rest:
        """Take more of a long line; gives what comes after it."""
        end = piece.find(b"\n")
        if end < 0:
            line.feed(piece)
            return b""
        line.feed(piece[:end])
        self._long = None
        if line.path != self._path:
            yield from self._begin_file(line.path)
        if self._file is not None:
            part = line.clipped(self._options.line_chars)
            self._add(line.number, line.column, part, clipped=True)
        return piece[end + 1 :]

    def _take_binaries(self, data: bytes) -> Rest:
        """Note the files that are said to be binary; gives what follows."""
        position = 0
        while True:
            said = _BINARY.match(data, position)
            if said is None:
                return data[position:]
            position = said.end()
            yield from self._pause()
            name = self.name(said[1])
            if self._file is not None and self._file.name == name:
                self._file = None  # its lines up to here say less than that it is binary
            self._end_file()
            self._work += self._filter.work(name)
            if self._filter.takes(name):
                self._file = _File(name, self._prefix)
                line = self._file.label + b": binary file matches"
                self._file.add(True, line, self._options.max_bytes)

    # ─── records → files ────────────────────────────────────────────────────────────

    def _begin_file(self, path: bytes) -> Pauses:
        # What is said of binary files stands before the path of the next file, and only once.
        self._path = yield from self._take_binaries(path)
        name = self.name(self._path)
        self._end_file()
        self._last_match = self._last_line = 0
        self._work += self._filter.work(name)
        if self._filter.takes(name):
            self._file = _File(name, self._prefix)

    def _add(self, number: int, column: bytes | None, line: bytes, *, clipped: bool) -> None:
        """Add a line of the open file; a match if it has a column."""
        file, options = self._file, self._options
        if file is None:
            return
        if file.matches >= options.per_file:
            if column is not None:
                file.has_more = self._has_more = True
                column = None
            if number > self._last_match + options.after:
                return
        if self._apart and self._last_line not in (0, number - 1):
            file.add(False, b"--", options.max_bytes)
        self._last_line = number
        if column is not None:
            self._last_match = number
        mark = b"-" if column is None else b":"
        if options.numbers:
            mark += b"%d" % number + mark
        text = file.label + mark + line.replace(b"\0", b"")
        file.add(column is not None, text, options.max_bytes, clipped=clipped)

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is None or not file.matches:
            return
        self._matches += file.matches
        self._file_count += 1
        self._size += file.size + (3 if self._apart and self._size else 0)
        if self._too_late is None or file.name < self._too_late:
            self._files[file.name] = file
            self._held += min(file.size, self._options.max_bytes)
            most = 2 * self._options.max_results
            if self._held > 8 * self._options.max_bytes or len(self._files) > most:
                self._forget_late_files()

    def _forget_late_files(self) -> None:
        """Every file shows a match and takes its bytes: hold no more of them than that allows."""
        size = 0
        for count, name in enumerate(sorted(self._files)):
            if size > self._options.max_bytes or count > self._options.max_results:
                self._too_late = min(name, self._too_late or name)
                del self._files[name]
            else:
                size += self._files[name].size
        self._held = size

    # ─── files → reply ──────────────────────────────────────────────────────────────

    def _lines(self) -> Generator[tuple[_File, bool, bytes, bool], None, None]:
        """All lines that are held, in order."""
        for index, name in enumerate(sorted(self._files)):
            file = self._files[name]
            if self._apart and index:
                yield file, False, b"--", False
            for is_match, line, clipped in file.lines:
                yield file, is_match, line, clipped

    @property
    def matches(self) -> int:
        """Matches found, of each file as many as are shown of one."""
        return self._matches

    @property
    def is_exact(self) -> bool:
        """There are no other matches than those."""
        return not (self._partial or self._has_more)

    def labels(self, most: int) -> list[str]:
        """The first files with matches."""
        return [self._files[name].label.decode() for name in sorted(self._files)[:most]]

    def reply(self) -> tuple[dict[str, Any], bytes]:
        """The reply, with as many lines as the limits allow."""
        shown_lines: list[bytes] = []
        cut_short: dict[str, None] = {}
        shown_matches = size = 0
        has_clipped = False
        for file, is_match, line, clipped in self._lines():
            size += len(line) + 1
            too_large = size > self._options.max_bytes and shown_lines
            if too_large or (is_match and shown_matches == self._options.max_results):
                break
            shown_lines.append(line)
            shown_matches += is_match
            has_clipped = has_clipped or clipped
            if is_match and file.has_more:
                cut_short[file.label.decode()] = None
        while shown_lines and shown_lines[-1] == b"--":
            shown_lines.pop()
        reply = {
            "matches": self._matches,
            "shown": shown_matches,
            "files": self._file_count,
            "truncated": shown_matches < self._matches or self._partial or self._has_more,
            "partial": self._partial,
            "clipped": has_clipped,
            "ignored": 0,
            "warnings": self._first_warnings(list(cut_short)),
            "total_bytes": self._size,
        }
        return reply, b"\n".join(shown_lines)

    def _first_warnings(self, cut_short: list[str]) -> list[str]:
        """The first warnings, and of which of the files shown there are more matches."""
        most = self._options.per_file
        warnings = [*self.warnings]
        warnings += [f"{label}: only the first {most} matches" for label in cut_short]
        rest = len(warnings) + self._more_warnings - _MAX_WARNINGS
        if rest <= 0:
            return warnings
        return [*warnings[: _MAX_WARNINGS - 1], f"and {rest + 1} more warnings"]


class Names(_Opened):
    """ripgrep's names of files with matches → the lines to show, sorted by path.

    The same as `Hits` where no lines of the files are shown: only names, or how many lines of
    each match.

    Attributes:
        read: bytes taken.
        warnings: what went wrong, for the model.
    """

    def __init__(self, options: Options, name_filter: Filter, prefix: str = "") -> None:
        super().__init__()
        self._options = options
        self._filter = name_filter
        self._prefix = prefix
        self._counts = options.show == "counts"
        self._record = _COUNTED if self._counts else _NAMED
        self._rest = b""
        self._found: list[tuple[bytes, int]] = []
        self._beyond: bytes | None = None
        self._files = self._matches = self._size = self._held = self._work = 0
        self._more_warnings = 0
        self._partial = False
        self.read = 0
        self.warnings: list[str] = []

    def stop(self, reason: str) -> None:
        """There is no more output, though it is not complete."""
        self._partial = True
        self.warn(reason)

    def warn(self, warning: str) -> None:
        """Keep a warning; those that come too late to be shown are only counted."""
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(warning)
        else:
            self._more_warnings += 1

    def feed(self, piece: bytes) -> Pauses:
        """Take the next piece of the output."""
        self.read += len(piece)
        data = self._rest + piece
        position = 0
        for record in self._record.finditer(data):
            position = record.end()
            name = self.name(record[1])
            self._work += 1 + self._filter.work(name)
            if self._filter.takes(name):
                self._take(name, int(record[2]) if self._counts else 1)
            if self._work > _SLICE:
                self._work = 0
                yield None
        self._rest = data[position:]

    def finish(self) -> Pauses:
        """All output was taken."""
        yield from ()

    def begin(self, opened: dict[bytes, bytes]) -> None:
        """The next output is of these files: what ripgrep calls them → their names."""
        self._opened = opened
        self._rest = b""

    def _take(self, name: bytes, count: int) -> None:
        self._files += 1
        self._matches += count
        size = len(self._line(name, count)) + 1
        self._size += size
        if self._beyond is not None and name >= self._beyond:
            return  # what was left out stands before it
        self._held += size
        self._found.append((name, count))
        if self._held > 4 * self._options.max_bytes:
            self._in_order()

    def _in_order(self) -> list[tuple[bytes, int]]:
        """The first names; no more of them are held than the limits allow."""
        self._found.sort()
        size = kept = 0
        for name, count in self._found[: self._options.max_results]:
            size += len(self._line(name, count)) + 1
            if size > self._options.max_bytes + 1 and kept:
                break
            kept += 1
            self._held = size
        if kept < len(self._found):
            self._beyond = self._found[kept][0]
        del self._found[kept:]
        return self._found

    def _line(self, name: bytes, count: int) -> bytes:
        label = spelled(self._prefix + name.decode("utf-8", "surrogateescape")).encode()
        return label + b":%d" % count if self._counts else label

    @property
    def matches(self) -> int:
        """Matching lines, or files with any where only those are told."""
        return self._matches

    @property
    def is_exact(self) -> bool:
        """There are no others."""
        return not self._partial

    def labels(self, most: int) -> list[str]:
        """The first files with matches."""
        names = (self._prefix + name.decode("utf-8", "surrogateescape")
                 for name, _ in self._in_order()[:most])  # fmt: skip
        return [spelled(name) for name in names]

    def reply(self) -> tuple[dict[str, Any], bytes]:
        """The reply, with as many lines as the limits allow."""
        lines = [self._line(name, count) for name, count in self._in_order()]
        more = [f"and {self._more_warnings} more warnings"] if self._more_warnings else []
        reply = {
            "matches": self._matches,
            "shown": len(lines),
            "files": self._files,
            "truncated": len(lines) < self._files or self._partial,
            "partial": self._partial,
            "clipped": False,
            "ignored": 0,
            "warnings": [*self.warnings[: _MAX_WARNINGS - 1], *more] if more else self.warnings,
            "total_bytes": self._size,
        }
        return reply, b"\n".join(lines)
