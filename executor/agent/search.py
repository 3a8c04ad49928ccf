"""The search operations: glob and grep, done by ripgrep.

Hidden files are searched, files that `.gitignore` names are not, `.git` never is. When
nothing below a directory that the caller named would be seen, what is ignored there is
searched after all.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from .hits import Hits
from .operation import Command, Exit, Failure
from .pattern import Pattern
from .workspace import Workspace, kind, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, TypeAlias

    from .operation import Operation, Steps

    Pauses: TypeAlias = Generator[None, Any, None]
    Runs: TypeAlias = Generator[Command | None, bytes | Exit | None, Exit]

_SLICE = 500
_MAX_ENTRIES = 2_000_000
_MAX_LINK_DIRECTORIES = 500
_MAX_ARGUMENT = 100_000
_MAX_OUTPUT = 512 << 20
_MAX_DEPTH = 256
_ANY_READING = 1 << 30

_COMMON = [
    "--no-config",
    "--color=never",
    "--hidden",
    "--no-require-git",
    "--no-ignore-messages",
    "--glob=!.git",
]


def _run(argv: list[str], take: Any) -> Runs:
    """Run a program, handing each piece of its output to `take`."""
    answer = yield Command(argv)
    while not isinstance(answer, Exit):
        if answer:
            take(answer)
        answer = yield None
    return answer


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


# ─── glob ───────────────────────────────────────────────────────────────────────────


class _Matches:
    """The first matches in order, and how many there are, by reading of the pattern."""

    def __init__(self, pattern: Pattern, prefix: str, keep: int, age_of: Any) -> None:
        self._pattern = pattern
        self._prefix = prefix
        self._keep = keep
        self._age_of = age_of
        self.kept: list[tuple[int, bytes]] = []
        self.reading: int | None = None
        self.counts: dict[int, int] = {}
        self.seen = 0

    def offer(self, path: str) -> None:
        """Take a path relative to the pattern's base, if it matches."""
        self.seen += 1
        reading = self._pattern.reading(path)
        if reading is None:
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
    path: str = arguments.get("path") or ""
    text: str = arguments["pattern"]
    _require_text("pattern", text)
    with workspace.failures(path):
        base = workspace.plain(path)
        _require_directory(workspace, base)
    with workspace.failures(text):
        base, text = _anchored(workspace, base, text)
        pattern = Pattern(text)
        base = "/".join(filter(None, (base, pattern.base)))
        if ".git" in base.split("/"):
            return _globbed([], 0, 0, False, ".git is never searched.")
        try:
            status = workspace.status(base)
        except (FileNotFoundError, NotADirectoryError):
            return _globbed([], 0, 0, False, _hint(base, None))
    if pattern.literal or not stat.S_ISDIR(status.st_mode):
        found = [os.fsencode(base)] if pattern.literal and stat.S_ISREG(status.st_mode) else []
        return _globbed(found, len(found), 0, False, None if found else _hint(base, status))
    return (yield from _Glob(workspace, pattern, base, arguments).run())


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


class _Glob:
    """One search for names: what ripgrep sees, and what it was told to ignore."""

    def __init__(
        self, workspace: Workspace, pattern: Pattern, base: str, arguments: dict[str, Any]
    ) -> None:
        self._workspace = workspace
        self._pattern = pattern
        self._base = base
        self._prefix = base + "/" if base else ""
        self._strip = len(os.fsencode(self._prefix)) + 2
        self._rest = b""
        age_of = self._age if arguments.get("order") == "modified" else _no_age
        keep = arguments.get("max_results", 1000)
        self._visible = _Matches(pattern, self._prefix, keep, age_of)
        self._all = _Matches(pattern, self._prefix, keep, age_of)
        self._links: dict[str, list[str]] = {}
        self._unreadable = 0
        self._partial = False

    def _age(self, path: bytes) -> int:
        """A number that is smaller the younger a file is."""
        try:
            return -os.stat(path, dir_fd=self._workspace.directory).st_mtime_ns
        except OSError:
            return 0

    def run(self) -> Steps:
        """The reply."""
        argv = [self._workspace.ripgrep, "--files", "--null", "--no-messages", *_COMMON]
        if self._pattern.depth is not None:
            argv.append(f"--max-depth={self._pattern.depth}")
        exit = yield from _run([*argv, "--", "./" + self._base], self._take)
        if exit.status not in (0, 1) and (exit.status != 2 or exit.stderr):
            said = exit.stderr.decode("utf-8", "replace").strip()
            raise Failure("EXECUTION_ERROR", f"The search failed ({exit.status}). {said}")
        yield from self._walk()
        if self._base and not self._visible.seen and self._all.seen:
            self._visible = self._all
            for links in self._links.values():
                for path in links:
                    self._visible.offer(path)
        elif self._links:
            yield from self._add_links()
        found = self._visible.sorted()
        reading = self._visible.reading if found else self._all.reading
        everything = self._all.counts.get(reading, 0) if reading is not None else 0
        ignored = max(0, everything - self._visible.total)
        note = self._note(0 if found else ignored)
        return _globbed(found, self._visible.total, ignored, self._partial, note)

    def _note(self, ignored: int) -> str | None:
        notes = []
        if ignored:
            notes.append(f"{ignored} match{'es' * (ignored > 1)} hidden by .gitignore.")
        if self._unreadable:
            notes.append(f"{self._unreadable} directories could not be read.")
        if self._partial:
            notes.append("The tree is too large or too deep to be searched as a whole.")
        return " ".join(notes) or None

    def _take(self, piece: bytes) -> None:
        *paths, self._rest = (self._rest + piece).split(b"\0")
        for path in paths:
            self._visible.offer(os.fsdecode(path[self._strip :]))

    def _walk(self) -> Pauses:
        """Look at every file, ignored or not, and note the links that match."""
        todo = [("", 1)]
        entries = 0
        while todo:
            directory, depth = todo.pop()
            try:
                fd = self._open(directory)
            except OSError as error:
                self._unreadable += error.errno in (errno.EACCES, errno.EPERM)
                continue
            try:
                with os.scandir(fd) as scan:
                    for entry in scan:
                        entries += 1
                        if entries % _SLICE == 0:
                            yield None
                        self._look_at(entry, directory, depth, todo)
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
        if entry.is_file(follow_symlinks=False):
            self._all.offer(path)
        elif entry.is_dir(follow_symlinks=False):
            if self._pattern.depth is None or depth < self._pattern.depth:
                if depth < _MAX_DEPTH:
                    todo.append((path, depth + 1))
                else:
                    self._partial = True
        elif entry.is_symlink() and self._pattern.matches(path) and self._leads_to_file(path):
            self._links.setdefault(directory, []).append(path)

    def _leads_to_file(self, path: str) -> bool:
        try:
            return stat.S_ISREG(self._workspace.status(self._prefix + path).st_mode)
        except OSError:
            return False

    def _add_links(self) -> Steps:
        """Links to files: ripgrep tells which of them are ignored when it may follow them."""
        directories = list(self._links)[:_MAX_LINK_DIRECTORIES]
        found: list[bytes] = []
        argv = [self._workspace.ripgrep, "--files", "--null", "--no-messages", "--follow"]
        places = ["./" + (self._prefix + directory).rstrip("/") for directory in directories]
        yield from _run([*argv, "--max-depth=1", *_COMMON, "--", *places], found.append)
        listed = set(b"".join(found).split(b"\0"))
        for directory in directories:
            for path in self._links[directory]:
                if b"./" + os.fsencode(self._prefix + path) in listed:
                    self._visible.offer(path)
        return {}, b""


# ─── grep ───────────────────────────────────────────────────────────────────────────


class Options:
    """What is searched for, and how much of it is shown."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        context: int = arguments.get("context", 2)
        before, after = arguments.get("before"), arguments.get("after")
        self.before: int = context if before is None else before
        self.after: int = context if after is None else after
        self.per_file: int = arguments.get("per_file", 100)
        self.max_results: int = arguments.get("max_results", 2000)
        self.max_bytes: int = arguments.get("max_bytes", 100_000)
        self.line_chars: int = arguments.get("line_chars", 500)
        self.expression = _expression(arguments)

    def argv(self, program: str, path: str, *, ignored: bool, narrow: list[str]) -> list[str]:
        """The command that searches `path`."""
        return [
            program,
            *_COMMON,
            *(["--no-ignore"] if ignored else []),
            "--no-heading",
            "--line-number",
            "--column",
            "--with-filename",
            "--null",
            "--binary",
            "--no-context-separator",
            f"--before-context={self.before}",
            f"--after-context={self.after}",
            f"--max-count={self.per_file + 1}",
            *narrow,
            *self.expression,
            "--",
            "./" + path,
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

    def takes(self, path: bytes) -> bool:
        """Is a path of the workspace wanted?"""
        reading = self._reading(path)
        return (reading is not None and reading <= self._best) != self._negated

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
        best = self._best
        rest = b""

        def take(piece: bytes) -> None:
            nonlocal best, rest
            *paths, rest = (rest + piece).split(b"\0")
            for path in paths:
                reading = self._reading(path[2:])
                best = best if reading is None else min(best, reading)

        argv = [workspace.ripgrep, "--files", "--null", "--no-messages", *_COMMON]
        yield from _run([*argv, "--", "./" + base], take)
        self._best = best
        return {}, b""


def grep(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """Lines of files that match a regular expression, with the lines around them."""
    path: str = arguments.get("path") or ""
    options = Options(arguments)
    with workspace.failures(path):
        base = workspace.plain(path)
        status = workspace.status(base)
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            raise Failure(
                "NOT_A_FILE", f"{shown(path)} is a {kind(status.st_mode)}; it is not searched."
            )
        if stat.S_ISREG(status.st_mode):
            # The search says nothing that a model could use when this fails.
            os.close(workspace.open(base, os.O_RDONLY))
    name_filter = Filter(arguments.get("file_pattern"), arguments.get("type"), base)
    yield from name_filter.settle(workspace, base)
    hits, exit = yield from _search(workspace, options, base, name_filter, ignored=False)
    if exit.status == 1 and base and stat.S_ISDIR(status.st_mode):
        anything = yield from _sees_anything(workspace, base)
        if not anything:
            hits, exit = yield from _search(workspace, options, base, name_filter, ignored=True)
    hits.warnings += _warnings(exit)
    return hits.reply()


def _search(
    workspace: Workspace, options: Options, base: str, name_filter: Filter, *, ignored: bool
) -> Generator[Command | None, bytes | Exit | None, tuple[Hits, Exit]]:
    hits = Hits(options, name_filter)
    argv = options.argv(workspace.ripgrep, base, ignored=ignored, narrow=name_filter.flags)
    answer = yield Command(argv)
    while not isinstance(answer, Exit):
        if answer:
            hits.feed(answer)
        if hits.read > _MAX_OUTPUT:
            hits.stop(f"the search was ended after {_MAX_OUTPUT >> 20} MiB of matches")
            return hits, Exit(0, b"")
        answer = yield None
    hits.finish()
    if answer.status == 2 and not hits.read:
        yield from _require_valid(workspace, options, name_filter)
    elif answer.status not in (0, 1, 2):
        reason = f"the search was ended early (status {answer.status})"
        if not hits.read:
            raise Failure("EXECUTION_ERROR", reason)
        hits.stop(reason)
    return hits, answer


def _require_valid(workspace: Workspace, options: Options, name_filter: Filter) -> Steps:
    """Search nothing, to learn whether it was the expression that failed."""
    argv = [workspace.ripgrep, "--no-config", *name_filter.flags, *options.expression]
    exit = yield from _run([*argv, "--", "/dev/null"], len)
    if exit.status == 2:
        reason = exit.stderr.decode("utf-8", "replace").strip().removeprefix("rg: ")
        raise Failure("INVALID_ARGUMENTS", reason)
    return {}, b""


def _sees_anything(
    workspace: Workspace, base: str
) -> Generator[Command | None, bytes | Exit | None, bool]:
    """Is there any file below `base` that is not ignored?"""
    argv = [workspace.ripgrep, "--files", "--quiet", "--no-messages", *_COMMON]
    exit = yield from _run([*argv, "--", "./" + base], len)
    return exit.status == 0


def _warnings(exit: Exit) -> list[str]:
    lines = exit.stderr.decode("utf-8", "replace").splitlines()
    return [line.removeprefix("rg: ").removeprefix("./") for line in lines if line.strip()]


OPERATIONS: dict[str, Operation] = {"glob": glob, "grep": grep}
