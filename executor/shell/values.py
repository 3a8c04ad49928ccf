"""What a command line does, as values."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from executor.text import hidden

Paths = frozenset[str] | None
"""Absolute paths as seen in the box; each stands for itself and all that is below it.
None = can't be known: everything."""

NOTHING: frozenset[str] = frozenset()

STANDARD_DIRECTORIES = frozenset(
    ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
)
"""Where programs of an image are. Elsewhere a program of the same name may be anything."""

_HARMLESS_VARIABLES = frozenset(
    (
        *("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_NUMERIC"),
        *("LC_TIME", "TZ", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "COLUMNS"),
        *("LINES", "LS_COLORS"),
    )
)
"""Variables that change how a read-only program prints, never what it runs or writes."""


SHELL_VARIABLES = frozenset(("BASH_ENV", "ENV", "PS4", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND"))
"""What a shell runs, or how it reads, by the value of a variable."""

INTEGERS = frozenset(
    (
        *("RANDOM", "SRANDOM", "SECONDS", "LINENO", "HISTCMD", "OPTIND", "BASHPID", "EUID"),
        *("PPID", "UID"),
    )
)
"""Variables whose new value the shell evaluates as arithmetic, which may run commands."""

_OWN = re.compile(
    r"(?!LD_|GIT_|BASH|PATH$|IFS$|ENV$|HOME$|SHELL$|PS\d$|PROMPT|CDPATH$|GLOBIGNORE$|POSIX"
    r"|TMPDIR$|RIPGREP|GREP_|LESS|PAGER$|EDITOR$|VISUAL$|XDG_|LOCPATH$|NLSPATH$|GCONV|MALLOC"
    r"|GLIBC|AWK|MAGIC$|EXECIGNORE$|SSH_|PYTHON|NODE_|PERL|RUBY|TERMINFO|TREE|JQ|_$)"
)


def is_own_variable(name: str) -> bool:
    """A variable of the line's own: no program that only reads looks at it."""
    return _OWN.match(name) is not None


class NotUnderstood(Exception):
    """A part of the line whose meaning can't be told; the text says why."""


@dataclass(frozen=True, slots=True)
class May:
    """What a command may touch, beside what it is known to.

    Attributes:
        read, write: absolute paths that its words spell, of a command that is not known, or
            not with these options.
        read_globs, write_globs: absolute patterns of files; a quoted character that would be
            one of a pattern stands behind a backslash. What is written is there though it is
            known: it may be a directory.
    """

    read: frozenset[str] = NOTHING
    write: frozenset[str] = NOTHING
    read_globs: frozenset[str] = NOTHING
    write_globs: frozenset[str] = NOTHING


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command that would run, wherever in the line it stands.

    A wrapper (`timeout`, `env`, `sh -c`) and what it runs are one each. Commands that never
    get to run, in a branch that isn't taken, are there too.

    Attributes:
        words: the arguments as the shell would make them. None = any number of words that
            can't be known before it runs. Empty: only assignments or redirects.
        text: as written, for messages; the inner command of a wrapper has the wrapper's.
        assignments: names of the variables that are set before it.
        reads: what it is known to read. None = unknown, so everything.
        writes: what it is known to write or delete, redirects included.
        is_read_only: it changes nothing and runs nothing unknown.
        lists: those of `reads` of which only names and states are seen, no contents.
        is_sure: false for the best guess at what a wrapper runs when its own options can't
            be known; then a command whose program is unknown stands beside it.
        redirected: those of `writes` that the shell itself opens, by redirects: a rule that
            allows the program does not speak of them.
        altered: variables that the line gives a value elsewhere and that may change which
            program runs or what it does.
        may: what it may touch, by its words, where it is not known what it does with them.
        is_writer: its program is one that changes what its operands name.
    """

    words: tuple[str | None, ...]
    text: str
    assignments: tuple[str, ...]
    reads: Paths
    writes: Paths
    is_read_only: bool
    lists: frozenset[str] = NOTHING
    is_sure: bool = True
    redirected: Paths = NOTHING
    altered: tuple[str, ...] = ()
    may: May = May()
    is_writer: bool = False

    @property
    def alters(self) -> tuple[str, ...]:
        """Variables given on the line that may change which program runs or what it does.

        A rule that allows the program does not speak of it with these.
        """
        names = (*self.assignments, *self.altered)
        return tuple(name for name in names if name not in _HARMLESS_VARIABLES)


@dataclass(frozen=True, slots=True)
class Script:
    """What a whole command line does.

    Attributes:
        commands: all that may run, in the order of the text.
        fault: why it is not understood; None = it is. `commands` is then what was found,
            and not all of it.
        changes_directory: the shell may end in another directory than it began in.
        reads, writes: of all commands together; None if it is not understood.
        lists: those of `reads` of which no command sees contents.
        is_read_only: changes nothing and runs nothing unknown.
        spelt: paths that words of the line may name: whatever is given words that can't be
            known may be given these.
    """

    commands: tuple[Simple, ...]
    fault: str | None
    changes_directory: bool
    reads: Paths
    writes: Paths
    is_read_only: bool
    lists: frozenset[str] = NOTHING
    spelt: frozenset[str] = NOTHING

    @classmethod
    def of(
        cls,
        commands: Sequence[Simple],
        fault: str | None,
        *,
        changes_directory: bool,
        spelt: frozenset[str] = NOTHING,
    ) -> Script:
        """The line that consists of these commands."""
        if fault is not None:
            return cls(tuple(commands), fault, True, None, None, False, NOTHING, spelt)
        reads = union(command.reads for command in commands)
        contents = [(command.reads or NOTHING) - command.lists for command in commands]
        lists = NOTHING.union(*(command.lists for command in commands))
        return cls(
            tuple(commands),
            None,
            changes_directory,
            reads,
            union(command.writes for command in commands),
            all(command.is_read_only for command in commands),
            lists.difference(*contents),
            spelt,
        )


def union(sets: Iterable[Paths]) -> Paths:
    """All of them together; unknown if one is."""
    known: set[str] = set()
    for paths in sets:
        if paths is None:
            return None
        known |= paths
    return frozenset(known)


def program_of(words: Sequence[str | None]) -> str | None:
    """Name of the program that these words run, whatever its directory: `/bin/rm` → `rm`.

    For rules that forbid. One that allows has to know which file it is: `installed_program`.

    Returns:
        None: it can't be known, or the name holds a character that isn't seen.
    """
    if not words or not words[0]:
        return None
    name = posixpath.basename(words[0])
    return None if not name or hidden(name) or not name.isprintable() else name


def installed_program(words: Sequence[str | None]) -> str | None:
    """The same, where it is found by name or stands where an image has its programs.

    `./ls` is no `ls`: None.
    """
    name = program_of(words)
    if name is None or words[0] is None or "/" not in words[0]:
        return name
    return name if posixpath.dirname(words[0]) in STANDARD_DIRECTORIES else None


# ─── words ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, after the shell's expansions.

    Attributes:
        text: exactly; None = can't be known.
        prefix: the known text that it begins with, as far as it is known.
        splits: it may become several words, the later ones with any beginning, or none.
        under: if unknown, the directory in which everything lies that it may name, as
            written; "" = the working directory. None = anywhere.
        is_number: if unknown, it is a number.
        is_plain: written without quotes, escapes and expansions.
        glob: if nothing but a pattern of files makes it unknown, the pattern, in which a
            quoted character that would be a part of one stands behind a backslash.
    """

    text: str | None
    prefix: str = ""
    splits: bool = False
    under: str | None = None
    is_number: bool = False
    is_plain: bool = False
    glob: str | None = None

    @property
    def may_be_option(self) -> bool:
        """It may begin with a dash."""
        return self.splits or self.prefix[:1] in ("", "-")


UNKNOWN = Word(None, splits=True)
"""Any number of words of which nothing is known."""


def known(text: str) -> Word:
    """A word of this text."""
    return Word(text, text, is_plain=True)


def without_prefix(word: Word, length: int) -> Word:
    """The word without its first characters, which are known: `if=x` → `x`."""
    if word.text is not None:
        return known(word.text[length:])
    under = word.under
    if under is not None:
        under = under[length:]
    return replace(word, prefix=word.prefix[length:], under=under, glob=None)


# ─── paths ──────────────────────────────────────────────────────────────────────────

_DEVICES = frozenset(
    f"/dev/{name}"
    for name in ("null", "zero", "full", "tty", "random", "urandom", "stdin", "stdout", "stderr")
)
"""Files that keep nothing of what is written and tell nothing of the box."""
_LARGEST_SET = 64


def is_device(path: str) -> bool:
    """A file that keeps nothing and tells nothing, or one that is open already."""
    return path in _DEVICES or path == "/dev/fd" or path.startswith("/dev/fd/")


def joined(directory: str, path: str) -> str:
    """A path from a directory, as text: nothing is looked up, so links are not followed."""
    return posixpath.normpath("/" + posixpath.join(directory, path).lstrip("/"))


def resolved(words: Iterable[Word], directories: Paths) -> Paths:
    """What operands name, from any of these working directories."""
    paths: set[str] = set()
    for word in words:
        text = word.text if word.text is not None else word.under
        if text is None:
            return None
        if not text and word.text is not None:
            continue  # "" names no file
        if text.startswith("/"):
            paths.add(joined("/", text))
        elif directories is None:
            return None
        else:
            paths.update(joined(directory, text) for directory in directories)
    if len(paths) > _LARGEST_SET:
        return frozenset((posixpath.commonpath(paths),))
    return frozenset(path for path in paths if not is_device(path))
