"""The search operations: glob and grep, done by ripgrep.

Hidden files are searched, files that `.gitignore` names are not, `.git` never is. When
nothing below a directory that the caller named would be seen, what is ignored there is
searched after all.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
from collections import deque
from functools import cache

from .counters import memory_kills
from .hits import Hits, Names
from .operation import Command, Exit, Failure
from .pattern import Pattern, require_bounded
from .text import spelled
from .workspace import Denied, Workspace, kind, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeAlias

    from .counters import Counter
    from .operation import Operation, Steps

    Pauses: TypeAlias = Generator[None, Any, None]
    Runs: TypeAlias = Generator[Command | None, bytes | Exit | None, Exit]
    Take: TypeAlias = Callable[[bytes], Pauses]

_SLICE = 2000
"""Units of work between two pauses; one is about 4 µs."""
_OPEN = 10
"""Units that it takes to open a directory, or to look where a link leads."""
_MAX_ENTRIES = 2_000_000
_MAX_LINKS = 100_000
_MAX_LINK_DIRECTORIES = 500
_MAX_LINK_BYTES = 100_000
_MAX_ARGUMENT = 100_000
_MAX_OUTPUT = 512 << 20
_MAX_WAITING = 32 << 20
_MAX_REASON = 2000
_MAX_NAMED = 5
_MAX_HIDDEN = 3
_MAX_CANDIDATES = 100_000
"""Files with matches that are looked at where some files may not be read."""
_OPEN_AT_A_TIME = 100
"""Files that are open at a time: fewer than every box may have."""
_MAX_IGNORED = 1 << 20
"""Bytes of matches that are looked at to say that there are some in ignored files."""
_MAX_IGNORED_FILE = "16M"
_MAX_DEPTH = 256
_ANY_READING = 1 << 30

_COMMON = [
    "--no-config",
    "--color=never",
    "--hidden",
    "--no-require-git",
    "--no-ignore-global",  # what commands leave in their HOME hides no file of the worktree
    "--no-ignore-messages",
    "--glob=!.git",
]


def _run(
    argv: list[str],
    take: Take,
    enough: Callable[[], bool] = lambda: False,
    files: tuple[int, ...] = (),
) -> Runs:
    """Run a program, handing each piece of its output to `take`.

    More output may come in whenever `take` gives way; it waits its turn.

    Args:
        argv: its file and arguments.
        take: takes a piece.
        enough: nothing more is needed, and the program can be left to be ended.
        files: see `Command`.

    Raises:
        Failure: LIMIT, much more output comes in than can be looked at.
    """
    waiting = _Waiting()
    waiting.add((yield Command(argv, files=files)))
    while True:
        while waiting.pieces:
            for _ in take(waiting.next()):
                waiting.add((yield None))
            if enough():
                return Exit(0, b"")
        if waiting.exit is not None:
            return waiting.exit
        waiting.add((yield None))


class _Waiting:
    """Output that came in while what came before was looked at."""

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.exit: Exit | None = None
        self._size = 0

    def add(self, answer: bytes | Exit | None) -> None:
        """Take what a pause brought."""
        if isinstance(answer, Exit):
            self.exit = answer
        elif answer:
            self.pieces.append(answer)
            self._size += len(answer)
        if self._size > _MAX_WAITING:
            raise Failure(
                "LIMIT",
                "The pattern takes too long to be matched with so many files. "
                "Use a simpler one, or search a directory further down.",
            )

    def next(self) -> bytes:
        """The piece whose turn it is."""
        piece = self.pieces.popleft()
        self._size -= len(piece)
        return piece


def _listing(workspace: Workspace) -> list[str]:
    """The beginning of a command that names files, each with a NUL after it."""
    common = [*_COMMON, *workspace.unsearched]
    return [workspace.ripgrep, "--files", "--null", "--no-messages", *common]


def _nothing(piece: bytes) -> Pauses:
    """Takes output that only the exit code of its program is asked for."""
    yield from ()


def _run_whole(argv: list[str], take: Take) -> Runs:
    """The same for a program whose output is of no use when it was ended early.

    Raises:
        Failure: OUT_OF_MEMORY or EXECUTION_ERROR, it was.
    """
    kills = _kills()
    exit = yield from _run(argv, take)
    if exit.status < 0:
        raise _early_end(exit.status, kills)
    return exit


def _kills() -> int:
    """How many processes of the box the kernel has ended for memory."""
    return _memory_kills().read()


@cache
def _memory_kills() -> Counter:
    return memory_kills()


def _early_end(status: int, kills_before: int) -> Failure:
    """Why a search ended by itself, which it never should."""
    if status == -signal.SIGKILL and _kills() > kills_before:
        return Failure(
            "OUT_OF_MEMORY",
            "the search was ended because the memory of the sandbox was used up. "
            "Search a smaller part, leave out files with very long lines, or end what else runs.",
        )
    if status >= 0:
        return Failure("EXECUTION_ERROR", f"the search failed with exit code {status}")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return Failure("EXECUTION_ERROR", f"the search was ended early by {name}. Try again.")


def _require_text(name: str, value: str) -> None:
    try:
        size = len(os.fsencode(value))
    except UnicodeEncodeError:
        raise Failure("INVALID_ARGUMENTS", f"{name} is not valid text.") from None
    if "\0" in value or size > _MAX_ARGUMENT:
        raise Failure(
            "INVALID_ARGUMENTS",
            f"{name} holds a NUL character or is longer than {_MAX_ARGUMENT} bytes.",
        )


class _Hidden:
    """The files below a directory that rules deny to read: searches leave them out.

    Args:
        workspace: that is searched.
        base: the directory, as the search names it; it may lead through links.
    """

    def __init__(self, workspace: Workspace, base: str) -> None:
        restrictions = workspace.restrictions
        self._restrictions = restrictions if restrictions and restrictions.hides_any else None
        self.is_watched = self._restrictions is not None
        self._asks = restrictions is not None and restrictions.asks
        self._place = ""
        if self._restrictions is not None:
            fd = workspace.open(base, os.O_PATH)
            try:
                self._place = workspace.real(fd)
                status = os.fstat(fd)
            finally:
                os.close(fd)
            is_directory = stat.S_ISDIR(status.st_mode)
            self._restrictions.require("read", self._place, is_directory)
            if not is_directory:
                self._restrictions = None  # there is nothing else to be searched

    def __bool__(self) -> bool:
        return self._restrictions is not None

    def takes(self, path: str) -> bool:
        """Is this file one of them? Its path begins at the directory."""
        if self._restrictions is None:
            return False
        return self._restrictions.hides(f"{self._place}/{path}" if self._place else path)

    def told(self, count: int) -> str:
        """The sentence on files that are left out."""
        them = "it" if count == 1 else "them"
        said = f"{count} file{'s' * (count > 1)} left out: rules deny to read {them}"
        return f"{said}{', or ask first: give the path of one' if self._asks else ''}."


# ─── glob ───────────────────────────────────────────────────────────────────────────


class _Matches:
    """The first matches in order, and how many there are, by reading of the pattern."""

    def __init__(
        self, pattern: Pattern, prefix: str, keep: int, age_of: Any, hidden: _Hidden
    ) -> None:
        self._hidden = hidden
        self._pattern = pattern
        self._prefix = prefix
        self._keep = keep
        self._age_of = age_of
        self.kept: list[tuple[int, bytes]] = []
        self.reading: int | None = None
        self.counts: dict[int, int] = {}
        self.seen = self.denied = 0

    def offer(self, path: str) -> None:
        """Take a path relative to the pattern's base, if it matches."""
        self.seen += 1
        reading = self._pattern.reading(path)
        if reading is None:
            return
        if self._hidden.takes(path):
            self.denied += 1
            return
        self.counts[reading] = self.counts.get(reading, 0) + 1
        if self.reading is None or reading < self.reading:
            self.reading = reading
            self.kept.clear()
        if reading == self.reading:
            whole = os.fsencode(self._prefix + path)
            self.kept.append((self._age_of(whole), whole))
            if len(self.kept) > 4 * self._keep:
                self.sorted()

    @property
    def total(self) -> int:
        """Matches of the most literal reading that has any."""
        return self.counts.get(self.reading, 0) if self.reading is not None else 0

    def sorted(self) -> list[bytes]:
        """The paths to give."""
        self.kept.sort()
        del self.kept[self._keep :]
        return [path for _, path in self.kept]


def _no_age(path: bytes) -> int:
    return 0


def glob(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Files, and links to files, whose paths match a pattern."""
    path = workspace.spelled_out(arguments.get("path") or "")
    text: str = arguments["pattern"]
    _require_text("pattern", text)
    require_bounded(text)
    with workspace.failures(path):
        base = workspace.plain(path)
        _require_directory(workspace, base)
    with workspace.failures(text):
        base, text = _anchored(workspace, base, text)
        pattern = Pattern(text)
        yield from pattern.prepare()
        base = "/".join(filter(None, (base, pattern.base)))
        if ".git" in base.split("/"):
            return _globbed([], 0, 0, False, ".git is never searched.")
        try:
            status = workspace.status(base)
        except (FileNotFoundError, NotADirectoryError):
            _require_closed(pattern, "pattern")
            return _globbed([], 0, 0, False, _hint(base, None))
        workspace.require_not_gits(base)
        if pattern.literal or not stat.S_ISDIR(status.st_mode):
            _Hidden(workspace, base)  # refuses it if it is one
    if pattern.literal or not stat.S_ISDIR(status.st_mode):
        is_it = pattern.literal and stat.S_ISREG(status.st_mode)
        found = [os.fsencode(workspace.prefix + base)] if is_it else []
        return _globbed(found, len(found), 0, False, None if found else _hint(base, status))
    with workspace.failures(base):
        search = _Glob(workspace, pattern, base, arguments)
    return (yield from search.run())


def _require_directory(workspace: Workspace, path: str) -> None:
    status = workspace.status(path)
    if not stat.S_ISDIR(status.st_mode):
        raise Failure(
            "INVALID_PATH",
            f"{shown(path)} is a {kind(status.st_mode)}, not a directory. Give the directory "
            "as path and the name in the pattern.",
        )


def _anchored(workspace: Workspace, base: str, pattern: str) -> tuple[str, str]:
    """Directory and pattern, where the pattern may be absolute or begin with `..`."""
    if pattern.startswith("/"):
        return "", workspace.plain(pattern)
    parts = pattern.split("/")
    while parts[0] in (".", ".."):
        if parts.pop(0) == "..":
            if not base:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            base = base.rpartition("/")[0]
        if not parts:
            break
    return base, "/".join(parts)


def _hint(base: str, status: os.stat_result | None) -> str | None:
    """What to say when a plain path has no match."""
    if status is None:
        return f"There is no {shown(base)}."
    if stat.S_ISDIR(status.st_mode):
        where = f"{shown(base)} is a directory" if base else "The pattern names a directory"
        return f"{where}; only files are found. Use **/* to find the files in it."
    return None


def _globbed(
    found: list[bytes], total: int, ignored: int, truncated: bool, note: str | None
) -> tuple[dict[str, Any], bytes]:
    reply = {
        "matches": len(found),
        "total": total,
        "ignored": ignored,
        "truncated": truncated or total > len(found),
        "note": note,
    }
    return reply, b"\0".join(found)


def _require_closed(pattern: Pattern, name: str) -> None:
    """Refuse a pattern that found nothing and was never closed."""
    if pattern.unclosed:
        raise Failure(
            "INVALID_ARGUMENTS",
            f"{name} has a {pattern.unclosed} that is never closed, and no file has such a name. "
            f"Close it, or write \\{pattern.unclosed} for the character itself.",
        )


def _unread(directories: list[str]) -> str:
    """Which directories could not be read."""
    named = [shown(path) or "." for path in sorted(directories)[:_MAX_NAMED]]
    if len(directories) == 1:
        return f"1 directory could not be read: {named[0]}."
    rest = ", …" if len(directories) > len(named) else ""
    return f"{len(directories)} directories could not be read: {', '.join(named)}{rest}."


class _Glob:
    """One search for names: what ripgrep sees, and what it was told to ignore."""

    def __init__(
        self, workspace: Workspace, pattern: Pattern, base: str, arguments: dict[str, Any]
    ) -> None:
        self._workspace = workspace
        self._pattern = pattern
        self._base = base
        self._prefix = base + "/" if base else ""
        self._parts = 0 if workspace.beneath else 1
        self._strip = len(os.fsencode(self._prefix)) + 2
        self._named = os.fsencode(workspace.prefix)
        self._rest = b""
        age_of = self._age if arguments.get("order") == "modified" else _no_age
        keep = arguments.get("max_results", 1000)
        self._hidden = hidden = _Hidden(workspace, base)
        self._visible = _Matches(pattern, self._prefix, keep, age_of, hidden)
        self._all = _Matches(pattern, self._prefix, keep, age_of, hidden)
        self._links: dict[str, list[str]] = {}
        self._link_count = self._work = 0
        self._unreadable: list[str] = []
        self._partial = False

    def _age(self, path: bytes) -> int:
        """A number that is smaller the younger a file is."""
        try:
            return -os.stat(path, dir_fd=self._workspace.directory).st_mtime_ns
        except OSError:
            return 0

    def run(self) -> Steps:
        """The reply."""
        argv = _listing(self._workspace)
        if self._pattern.depth is not None:
            argv.append(f"--max-depth={self._pattern.depth}")
        kills = _kills()
        exit = yield from _run([*argv, "--", "./" + self._base], self._take)
        if exit.status not in (0, 1) and (exit.status != 2 or exit.stderr):
            said = exit.stderr.decode("utf-8", "replace").strip()[:_MAX_REASON]
            failure = _early_end(exit.status, kills)
            raise Failure(failure.code, f"{failure.message} {said}".strip())
        yield from self._walk()
        if self._base and not self._visible.seen and self._all.seen:
            self._visible = self._all
            for links in self._links.values():
                for path in links:
                    yield from self._offer(self._visible, path)
        elif self._links:
            yield from self._add_links()
        found = [self._named + path for path in self._visible.sorted()]
        reading = self._visible.reading if found else self._all.reading
        everything = self._all.counts.get(reading, 0) if reading is not None else 0
        ignored = max(0, everything - self._visible.total)
        if not found and not ignored:
            _require_closed(self._pattern, "pattern")
        note = self._note(0 if found else ignored)
        return _globbed(found, self._visible.total, ignored, self._partial, note)

    def _did(self, work: int) -> Pauses:
        """Give way when enough was done since the last time."""
        self._work += work
        if self._work > _SLICE:
            self._work = 0
            yield None

    def _offer(self, matches: _Matches, path: str) -> Pauses:
        matches.offer(path)
        return self._did(self._pattern.work(path))

    def _note(self, ignored: int) -> str | None:
        notes = []
        if ignored:
            notes.append(f"{ignored} match{'es' * (ignored > 1)} hidden by .gitignore.")
        if denied := max(self._visible.denied, self._all.denied):
            notes.append(self._hidden.told(denied))
        if self._unreadable:
            notes.append(_unread(self._unreadable))
        if self._partial:
            notes.append("The tree is too large or too deep to be searched as a whole.")
        return " ".join(notes) or None

    def _take(self, piece: bytes) -> Pauses:
        *paths, self._rest = (self._rest + piece).split(b"\0")
        for path in paths:
            self._visible.offer(os.fsdecode(path[self._strip :]))
            self._work += self._pattern.work(path)
            if self._work > _SLICE:
                yield from self._did(0)

    def _walk(self) -> Pauses:
        """Look at every file, ignored or not, and note the links that match."""
        todo = [("", 1)]
        entries = 0
        while todo:
            directory, depth = todo.pop()
            # A long path, and any where the kernel doesn't help, is opened part by part.
            yield from self._did(_OPEN + len(directory) // 50 + self._parts * depth)
            entries += 1
            try:
                fd = self._open(directory)
            except Denied:
                continue  # what is in it is counted where ripgrep names it
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EPERM):
                    self._unreadable.append(self._workspace.prefix + self._prefix + directory)
                continue
            try:
                with os.scandir(fd) as scan:
                    for entry in scan:
                        entries += 1
                        self._look_at(entry, directory, depth, todo)
                        if self._work > _SLICE:
                            yield from self._did(0)
            finally:
                os.close(fd)
            if entries > _MAX_ENTRIES:
                self._partial = True
                return

    def _open(self, directory: str) -> int:
        path = self._prefix + directory if directory else self._base
        return self._workspace.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def _look_at(
        self, entry: os.DirEntry[str], directory: str, depth: int, todo: list[tuple[str, int]]
    ) -> None:
        name = entry.name
        if name == ".git":
            return
        path = f"{directory}/{name}" if directory else name
        self._work += self._pattern.work(path)
        if entry.is_file(follow_symlinks=False):
            self._all.offer(path)
        elif entry.is_dir(follow_symlinks=False):
            if self._pattern.depth is None or depth < self._pattern.depth:
                if depth < _MAX_DEPTH:
                    todo.append((path, depth + 1))
                else:
                    self._partial = True
        elif entry.is_symlink() and self._pattern.matches(path) and self._leads_to_file(path):
            if self._link_count == _MAX_LINKS:
                self._partial = True
            else:
                self._link_count += 1
                self._links.setdefault(directory, []).append(path)

    def _leads_to_file(self, path: str) -> bool:
        self._work += _OPEN
        try:
            return stat.S_ISREG(self._workspace.status(self._prefix + path).st_mode)
        except OSError:
            return False

    def _add_links(self) -> Steps:
        """Links to files: ripgrep tells which of them are ignored when it may follow them."""
        wanted: set[bytes] = set()
        places: list[str] = []
        size = 0
        for directory, links in self._links.items():
            place = "./" + (self._prefix + directory).rstrip("/")
            size += len(os.fsencode(place)) + 1
            if size > _MAX_LINK_BYTES or len(places) == _MAX_LINK_DIRECTORIES:
                self._partial = True
                break
            places.append(place)
            wanted.update(b"./" + os.fsencode(self._prefix + path) for path in links)
            yield from self._did(len(links))
        rest = b""

        def take(piece: bytes) -> Pauses:
            nonlocal rest
            *paths, rest = (rest + piece).split(b"\0")
            for path in wanted.intersection(paths):
                yield from self._offer(self._visible, os.fsdecode(path[self._strip :]))

        argv = [self._workspace.ripgrep, "--files", "--null", "--no-messages", "--follow"]
        yield from _run_whole([*argv, "--max-depth=1", *_COMMON, "--", *places], take)
        return {}, b""


# ─── grep ───────────────────────────────────────────────────────────────────────────


class Options:
    """What is searched for, and how much of it is shown.

    `show` is what is told of the matches: `lines`, the names of `files` that have any, or how
    many matching lines each file has, `counts`.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        context: int = arguments.get("context", 2)
        before, after = arguments.get("before"), arguments.get("after")
        self.before: int = context if before is None else before
        self.after: int = context if after is None else after
        self.per_file: int = arguments.get("per_file", 100)
        self.max_results: int = arguments.get("max_results", 2000)
        self.max_bytes: int = arguments.get("max_bytes", 100_000)
        self.line_chars: int = arguments.get("line_chars", 500)
        self.numbers: bool = arguments.get("numbers", True)
        self.named: str = arguments.get("named", "")
        self.show: str = arguments.get("show", "lines")
        self.expression = _expression(arguments)

    def argv(
        self,
        program: str,
        path: str,
        *,
        ignored: bool,
        narrow: list[str],
        show: list[str] | None = None,
    ) -> list[str]:
        """The command that searches `path`; `show` is what it prints instead."""
        return [
            program,
            *_COMMON,
            *(["--no-ignore"] if ignored else []),
            "--with-filename",
            "--null",
            "--binary",
            *(self._shown() if show is None else show),
            *narrow,
            *self.expression,
            "--",
            "./" + path,
        ]

    def argv_of(self, program: str, paths: list[str]) -> list[str]:
        """The command that searches these files, whatever they are called."""
        common = [*_COMMON, "--with-filename", "--null", "--binary"]
        return [program, *common, *self._shown(), *self.expression, "--", *paths]

    def _shown(self) -> list[str]:
        """The options that say what is printed of a match."""
        if self.show == "files":
            return ["--files-with-matches"]
        if self.show == "counts":
            return ["--count"]
        return [
            "--no-heading",
            "--line-number",
            "--column",
            "--no-context-separator",
            f"--before-context={self.before}",
            f"--after-context={self.after}",
            f"--max-count={self.per_file + 1}",
        ]


def _expression(arguments: dict[str, Any]) -> list[str]:
    """The part of the command that says what to search for."""
    pattern: str = arguments["pattern"]
    _require_text("pattern", pattern)
    flags = ["--crlf"]
    if arguments.get("ignore_case", False):
        flags.append("--ignore-case")
    if arguments.get("literal", False):
        flags.append("--fixed-strings")
    if arguments.get("multiline", False):
        flags += ["--multiline", "--multiline-dotall"]
    return [*flags, f"--regexp={pattern}"]


class Filter:
    """Which files are searched, by a glob and a type of ripgrep's."""

    _SIMPLE = re.compile(r"(?:[\w.?+@~ -]|(?<!\*)\*|\{[\w.+@~, -]+\})+", re.ASCII)

    def __init__(self, file_pattern: str | None, type_: str | None, base: str) -> None:
        self._base = base + "/" if base else ""
        self._name_only = True
        self._negated = self._has_brackets = False
        self.hidden: _Hidden | None = None
        self._best = _ANY_READING
        self.pattern: Pattern | None = None
        self.flags = [f"--type={type_}"] if type_ else []
        if file_pattern is None:
            return
        _require_text("file_pattern", file_pattern)
        self._negated = file_pattern.startswith("!")
        text = file_pattern.removeprefix("!").removeprefix("./").lstrip("/")
        self._name_only = "/" not in text
        self._has_brackets = "[" in text
        self.pattern = Pattern(
            "**/" + text if self._name_only else text + "**" * text.endswith("/")
        )
        last = text.rpartition("/")[2]
        simple = self._SIMPLE.fullmatch(last)
        if simple and "{" not in text.rpartition("/")[0] and not (type_ or self._negated):
            # ripgrep leaves out by name what can't match anyway; the whole path is judged here.
            self.flags = [f"--type-add=wanted:{last}", "--type=wanted"]

    def prepare(self) -> Pauses:
        """Compile the pattern, giving way in between.

        Raises:
            Failure: INVALID_ARGUMENTS, no pattern.
        """
        if self.pattern is not None:
            yield from self.pattern.prepare()

    def work(self, path: bytes) -> int:
        """About how many units of 4 µs `takes` may take for this path."""
        if self.pattern is None:
            return 0
        return self.pattern.work(path) * (1 if self._name_only or not self._base else 2)

    def takes(self, path: bytes) -> bool:
        """Is a path of the workspace wanted, and may it be read?"""
        return self.wants(path) and not (self.hidden and self.hides(path))

    def wants(self, path: bytes) -> bool:
        """Is a path of the workspace wanted?"""
        reading = self._reading(path)
        return (reading is not None and reading <= self._best) != self._negated

    @property
    def is_watched(self) -> bool:
        """There are files that may not be read."""
        return self.hidden is not None and self.hidden.is_watched

    def hides(self, path: bytes) -> bool:
        """May it not be read?"""
        text = os.fsdecode(path)
        return self.hidden is not None and self.hidden.takes(text.removeprefix(self._base))

    def _reading(self, path: bytes) -> int | None:
        """How literally the pattern matches the path from the root or the searched directory."""
        if self.pattern is None:
            return 0
        text = os.fsdecode(path)
        found = self.pattern.reading_from_start(text)
        if self._base and text.startswith(self._base) and not self._name_only:
            other = self.pattern.reading_from_start(text[len(self._base) :])
            found = other if found is None else found if other is None else min(found, other)
        return found

    def settle(self, workspace: Workspace, base: str) -> Steps:
        """Find out how literally the pattern is meant: as literally as any file allows."""
        if not self._has_brackets:
            return {}, b""
        rest = b""
        work = 0

        def take(piece: bytes) -> Pauses:
            nonlocal rest, work
            *paths, rest = (rest + piece).split(b"\0")
            for path in paths:
                reading = self._reading(path[2:])
                self._best = self._best if reading is None else min(self._best, reading)
                work += self.work(path)
                if work > _SLICE:
                    work = 0
                    yield None

        argv = _listing(workspace)
        yield from _run_whole([*argv, "--", "./" + base], take)
        return {}, b""


def grep(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Lines of files that match a regular expression, with the lines around them."""
    path = workspace.spelled_out(arguments.get("path") or "")
    options = Options(arguments)
    with workspace.failures(path):
        base = workspace.plain(path)
        status = workspace.status(base)
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            raise Failure(
                "NOT_A_FILE", f"{shown(path)} is a {kind(status.st_mode)}; it is not searched."
            )
        workspace.require_not_gits(base)
        if stat.S_ISREG(status.st_mode):
            # The search says nothing that a model could use when this fails.
            os.close(workspace.open(base, os.O_RDONLY))
    name_filter = Filter(arguments.get("file_pattern"), arguments.get("type"), base)
    with workspace.failures(path):
        name_filter.hidden = _Hidden(workspace, base)
    yield from name_filter.prepare()
    yield from name_filter.settle(workspace, base)
    hits, exit = yield from _search(workspace, options, base, name_filter, ignored=False)
    if exit.status == 1 and base and stat.S_ISDIR(status.st_mode):
        anything = yield from _sees_anything(workspace, base)
        if not anything:
            hits, exit = yield from _search(workspace, options, base, name_filter, ignored=True)
    for warning in _warnings(workspace.prefix or options.named, exit):
        hits.warn(warning)
    if name_filter.hidden:
        denied = yield from _count_hidden(workspace, base, name_filter)
        if denied:
            hits.warn(name_filter.hidden.told(denied))
    hidden = None
    if not hits.matches and stat.S_ISDIR(status.st_mode):
        hidden = yield from _look_at_ignored(workspace, options, arguments, name_filter, base)
    reply, data = hits.reply()
    if hidden is not None and hidden.matches:
        reply["ignored"] = hidden.matches
        reply["warnings"] = [_hidden(hidden), *reply["warnings"]]
    elif name_filter.pattern is not None and not hits.matches:
        _require_closed(name_filter.pattern, "file_pattern")
    return reply, data


def _look_at_ignored(
    workspace: Workspace,
    options: Options,
    arguments: dict[str, Any],
    name_filter: Filter,
    base: str,
) -> Generator[Command | None, bytes | Exit | None, Hits | Names]:
    """What would be found in ignored files too; large ones among them are left out."""
    everything = Filter(arguments.get("file_pattern"), arguments.get("type"), base)
    everything.hidden = name_filter.hidden
    yield from everything.prepare()
    everything.flags = [*everything.flags, f"--max-filesize={_MAX_IGNORED_FILE}"]
    hits, _ = yield from _search(
        workspace, options, base, everything, ignored=True, most=_MAX_IGNORED
    )
    return hits


def _count_hidden(
    workspace: Workspace, base: str, name_filter: Filter
) -> Generator[Command | None, bytes | Exit | None, int]:
    """How many files are wanted and may not be read.

    Whether they hold what was searched for is not said: that would tell of their content.
    """
    count = work = 0
    rest = b""

    def take(piece: bytes) -> Pauses:
        nonlocal rest, count, work
        *paths, rest = (rest + piece).split(b"\0")
        for path in paths:
            name = path.removeprefix(b"./")
            count += name_filter.hides(name) and name_filter.wants(name)
            work += _OPEN + name_filter.work(name)
            if work > _SLICE:
                work = 0
                yield None

    argv = _listing(workspace)
    yield from _run_whole([*argv, *name_filter.flags, "--", "./" + base], take)
    return count


def _hidden(hits: Hits | Names) -> str:
    """The sentence on matches in ignored files."""
    count = f"{'' if hits.is_exact else 'more than '}{hits.matches}"
    plural = "" if hits.matches == 1 and hits.is_exact else "es"
    return (
        f"{count} match{plural} hidden by .gitignore ({', '.join(hits.labels(_MAX_HIDDEN))}); "
        "give the file as path to search it"
    )


def _search(
    workspace: Workspace,
    options: Options,
    base: str,
    name_filter: Filter,
    *,
    ignored: bool,
    most: int = _MAX_OUTPUT,
) -> Generator[Command | None, bytes | Exit | None, tuple[Hits | Names, Exit]]:
    kind_of_hits = Hits if options.show == "lines" else Names
    hits = kind_of_hits(options, name_filter, workspace.prefix or options.named)
    narrow = [*name_filter.flags, *workspace.unsearched]
    if name_filter.is_watched:
        argv = options.argv(
            workspace.ripgrep, base, ignored=ignored, narrow=narrow, show=["--files-with-matches"]
        )
        exit = yield from _search_opened(workspace, options, argv, name_filter, hits, most)
        return hits, exit
    argv = options.argv(workspace.ripgrep, base, ignored=ignored, narrow=narrow)
    kills = _kills()
    exit = yield from _run(argv, hits.feed, lambda: hits.read > most)
    if hits.read > most:
        hits.stop(f"the search was ended after {most >> 20} MiB of matches")
        return hits, exit
    yield from hits.finish()
    if exit.status == 2 and not hits.read:
        yield from _require_valid(workspace, options, name_filter)
    elif exit.status not in (0, 1, 2):
        failure = _early_end(exit.status, kills)
        if not hits.read:
            raise failure
        hits.stop(failure.message)
    return hits, exit


def _search_opened(
    workspace: Workspace,
    options: Options,
    argv: list[str],
    name_filter: Filter,
    hits: Hits | Names,
    most: int,
) -> Generator[Command | None, bytes | Exit | None, Exit]:
    """The same where some files may not be read: what is searched is what the agent opened.

    A path may be made to lead elsewhere between ripgrep's look at it and its opening it. So it
    is first asked only which files are worth a look, and then has them opened for it. What the
    first search says of files that may not be read changes nothing of what the model is told.
    """
    names = _Paths(name_filter)
    kills = _kills()
    exit = yield from _run(argv, names.take, lambda: names.is_full)
    if exit.status == 2 and not names.read:
        yield from _require_valid(workspace, options, name_filter)
    elif exit.status not in (0, 1, 2):
        raise _early_end(exit.status, kills)
    if names.is_full:
        hits.stop(f"only the first {_MAX_CANDIDATES} files with matches were looked at")
    for start in range(0, len(names.found), _OPEN_AT_A_TIME):
        yield from _search_some(
            workspace, options, names.found[start : start + _OPEN_AT_A_TIME], hits, most
        )
        if hits.read > most:
            hits.stop(f"the search was ended after {most >> 20} MiB of matches")
            break
    return Exit(0 if hits.matches else max(exit.status, 1), exit.stderr)


def _search_some(
    workspace: Workspace, options: Options, names: list[bytes], hits: Hits | Names, most: int
) -> Generator[Command | None, bytes | Exit | None, None]:
    """Search these files, each as it is opened now."""
    opened: dict[bytes, bytes] = {}
    files: list[int] = []
    try:
        for name in names:
            try:
                fd = workspace.open(os.fsdecode(name), os.O_RDONLY)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise workspace.failure(error, os.fsdecode(name)) from error
                continue  # it is gone, or it may not be read
            files.append(fd)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                opened[b"/proc/self/fd/%d" % fd] = name
        if not opened:
            return
        hits.begin(opened)
        argv = options.argv_of(workspace.ripgrep, [os.fsdecode(path) for path in opened])
        kills = _kills()
        exit = yield from _run(argv, hits.feed, lambda: hits.read > most, tuple(files))
        if exit.status not in (0, 1, 2):
            hits.stop(_early_end(exit.status, kills).message)
        elif hits.read <= most:
            yield from hits.finish()
    finally:
        for fd in files:
            os.close(fd)


class _Paths:
    """ripgrep's names of files that are wanted, a limited number of them.

    Attributes:
        found: the names.
        read: bytes taken.
    """

    def __init__(self, name_filter: Filter) -> None:
        self.found: list[bytes] = []
        self.read = self._work = self._size = 0
        self._rest = b""
        self._filter = name_filter

    @property
    def is_full(self) -> bool:
        """There is no room for more."""
        return len(self.found) >= _MAX_CANDIDATES or self._size > _MAX_WAITING

    def take(self, piece: bytes) -> Pauses:
        """Take the next piece of the output."""
        self.read += len(piece)
        *paths, self._rest = (self._rest + piece).split(b"\0")
        for path in paths:
            name = path.removeprefix(b"./")
            self._work += _OPEN + self._filter.work(name)
            if self._filter.takes(name) and not self.is_full:
                self.found.append(name)
                self._size += len(name)
            if self._work > _SLICE:
                self._work = 0
                yield None


def _require_valid(workspace: Workspace, options: Options, name_filter: Filter) -> Steps:
    """Search nothing, to learn whether it was the expression that failed."""
    argv = [workspace.ripgrep, "--no-config", *name_filter.flags, *options.expression]
    exit = yield from _run_whole([*argv, "--", "/dev/null"], _nothing)
    if exit.status == 2:
        raise Failure("INVALID_ARGUMENTS", _expression_fault(exit.stderr))
    return {}, b""


def _expression_fault(stderr: bytes) -> str:
    """What ripgrep says of an expression, without its own command line and its advice."""
    said = stderr.decode("utf-8", "replace").strip().removeprefix("rg: ")
    said = said.partition("\n\nConsider ")[0]
    if said.startswith("unrecognized file type"):
        return f"There is no file type {said.rpartition(': ')[2]!r}. Filter by a glob instead."
    if r'literal "\n"' in said:
        return (
            r"The pattern holds \n, and a search looks at one line at a time. "
            "Search for a part of one line, with context for the lines around it."
        )
    reason = said.rpartition("\nerror: ")[2] if "\nerror: " in said else said
    if len(reason) > _MAX_REASON:
        reason = "…" + reason[-_MAX_REASON:]
    mend = "Write it another way" if "not supported" in reason else "Correct it"
    return (
        f"The pattern is no regex that can be searched for: {reason}. {mend}, or use literal=true."
    )


def _sees_anything(
    workspace: Workspace, base: str
) -> Generator[Command | None, bytes | Exit | None, bool]:
    """Is there any file below `base` that is not ignored?"""
    argv = [workspace.ripgrep, "--files", "--quiet", "--no-messages", *_COMMON]
    argv += workspace.unsearched
    exit = yield from _run_whole([*argv, "--", "./" + base], _nothing)
    return exit.status == 0


def _warnings(prefix: str, exit: Exit) -> list[str]:
    lines = exit.stderr.decode("utf-8", "surrogateescape").split("\n")
    texts = (spelled(line).removeprefix("rg: ") for line in lines)
    named = (prefix + text[2:] if text.startswith("./") else text for text in texts if text.strip())
    return sorted(named)


OPERATIONS: dict[str, Operation] = {"glob": glob, "grep": grep}
