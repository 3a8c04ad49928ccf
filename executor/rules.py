"""Permission rules as they are written: `Tool` or `Tool(pattern)`, in three lists.

What they mean for a call is `permissions`. Three names stand for more than one tool:
`run_command` for all that runs a shell command line, `read_file` for all that reads files,
`edit_file` for all that changes them.

Pure: what can be known of a rule without a loop is checked here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from executor.errors import ConfigError
from executor.text import hidden

COMMANDS, READERS, WRITERS = "run_command", "read_file", "edit_file"
"""Canonical names whose rules hold for every tool of their kind."""
_SEARCHERS = frozenset({"grep", "glob", "list_directory"})
"""They take in whole directories: the agent leaves out what rules of `read_file` deny."""
_BY_COMMAND = frozenset({COMMANDS, "run_command_isolated", "run_code", "build", "test", "validate"})
_HOSTS = "domain:"
FOREIGN = "mcp__"

_RULE = re.compile(r"([A-Za-z_][\w-]*\*?)(?:\((.*)\))?", re.DOTALL)
_HOST = re.compile(r"\*|(?:\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\]")


# ─── patterns of commands ───────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Command:
    """A pattern of command lines: words, and whether more may follow.

    Attributes:
        program: the first word; `*` = any command.
        words: those after it that are no options, in order; `--` too.
        options: those that are, by where they stand: before the first of `words`, …, after
            the last of them.
        is_prefix: the pattern ends with `*`.
    """

    program: str
    words: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]
    is_prefix: bool

    @classmethod
    def parse(cls, pattern: str) -> Command:
        """The pattern's meaning; `*` alone is every command.

        Raises:
            ConfigError: it has none.
        """
        words = _split(pattern)
        is_prefix = bool(words) and words[-1] == ("*", True)
        if is_prefix:
            words.pop()
        if any(has_star for _, has_star in words):
            raise ConfigError(
                "* stands only as the last word, for any words after those before it "
                "(git status *); quote it to mean the character"
            )
        texts = [text for text, _ in words]
        if not texts:
            if not is_prefix:
                raise ConfigError("it names no command")
            return cls("*", (), ((),), True)
        _check_program(texts[0])
        return cls(texts[0], *_parted(texts[1:]), is_prefix)

    @property
    def is_everything(self) -> bool:
        """It is about every command line."""
        return self.program == "*"


def _check_program(name: str) -> None:
    """Raises:
    ConfigError: no command of a line can have this name.
    """
    if re.match(r"[A-Za-z_]\w*=", name):
        raise ConfigError("assignments have no rules; begin with the program")
    if is_option(name) or not name.strip("/") or name.endswith("/"):
        raise ConfigError("it names no program; begin with the program")
    if name in _RESERVED:
        raise ConfigError(f"{name} is the shell's own word; write a rule for what it runs")
    if hidden(name) or not name.isprintable():
        raise ConfigError("the program's name holds a character that is not seen")
    if name.startswith("~"):
        raise ConfigError("~ is not expanded in rules; write the path that the box has")


_RESERVED = frozenset(
    (
        *("if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until"),
        *("do", "done", "in", "function", "{", "}", "!", "coproc"),
    )
)
_OPERATOR = re.compile(r"[;&|<>()]+|\d*[<>].*|.*;|.*`.*|\$.*", re.DOTALL)


def _parted(texts: Iterable[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Words and, for each place between them, options."""
    words: list[str] = []
    options: list[tuple[str, ...]] = [()]
    are_over = False
    for text in texts:
        if not are_over and is_option(text) and text != "--":
            options[-1] = (*options[-1], text)
            continue
        are_over = are_over or text == "--"
        words.append(text)
        options.append(())
    return tuple(words), tuple(options)


def is_option(word: str) -> bool:
    """Would a program take this word for an option?"""
    return word.startswith("-") and word != "-"


def _split(pattern: str) -> list[tuple[str, bool]]:
    """The words as a shell splits them, each with: does it hold a bare star?

    Raises:
        ConfigError: a quote is never closed, a backslash is the last character, or there is
            more than one command.
    """
    words = _quoted(pattern)
    if any(is_bare and _OPERATOR.fullmatch(text) for text, _, is_bare in words):
        raise ConfigError(
            "a rule is about the words of one command: operators, redirects and expansions "
            "never match; write a rule for each command, and edit_file(…) for a redirect"
        )
    return [(text, has_star) for text, has_star, _ in words]


def _quoted(pattern: str) -> list[tuple[str, bool, bool]]:
    """The words, each with: does it hold a bare star, is none of it quoted?"""
    words: list[tuple[str, bool, bool]] = []
    word: str | None = None
    quote = ""
    has_star = False
    is_bare = True
    is_escaped = False
    for character in pattern:
        if is_escaped:
            word, is_escaped = (word or "") + character, False
        elif character == "\\" and quote != "'":
            is_escaped, is_bare = True, False
        elif quote:
            if character == quote:
                quote = ""
            else:
                word = (word or "") + character
        elif character in "'\"":
            quote, word, is_bare = character, word or "", False
        elif character.isspace():
            if word is not None:
                words.append((word, has_star, is_bare))
            word, has_star, is_bare = None, False, True
        else:
            has_star = has_star or character == "*"
            word = (word or "") + character
    if quote:
        raise ConfigError(f"a quote {quote} is never closed")
    if is_escaped:
        raise ConfigError("it ends with a single backslash")
    if word is not None:
        words.append((word, has_star, is_bare))
    return words


# ─── patterns of paths, and globs ───────────────────────────────────────────────────

_MOST_PARTS = 100
_MOST_WORK = 250_000


def may_meet(pattern: str, glob: str) -> bool:
    """Can a pattern of paths mean something that a glob of the shell names, or is above?

    Of a pattern that holds at any depth, not what is below the glob: that would be
    everything.

    Args:
        pattern: in the syntax of gitignore; `//` begins at the root of the box.
        glob: relative to the worktree, or absolute and outside of it.
    """
    if pattern.startswith("!"):
        return False
    is_absolute = pattern.startswith("//")
    body = pattern[is_absolute:].rstrip("/")
    wanted = body.lstrip("/").split("/") if "/" in body else ["**", body]
    is_free = wanted[0] == "**"
    if glob.startswith("/") != is_absolute and not is_free:
        return False
    parts = [part for part in glob.split("/") if part]
    return len(parts) > _MOST_PARTS or _meets(wanted, parts)


def _meets(wanted: list[str], parts: list[str]) -> bool:
    # Backwards, so that what is needed is known: can the rest of the one meet the other's?
    later = [True] * (len(wanted) + 1)
    later[0] = wanted[0] != "**" or wanted == ["**"]
    for part in reversed(parts):
        row = [True] * (len(wanted) + 1)
        for at in reversed(range(len(wanted))):
            if wanted[at] == "**":
                row[at] = row[at + 1] or later[at]
            elif part == "**":
                # It stands for directories above a name of the pattern, not for the last one.
                row[at] = later[at] or (at + 1 < len(wanted) and row[at + 1])
            else:
                row[at] = later[at + 1] and _names_meet(wanted[at], part)
        later = row
    return later[0]


def _names_meet(first: str, second: str) -> bool:
    """Is there a name that both mean? The second is a glob: no star of it takes a first dot."""
    one, other = _tokens(first), _tokens(second)
    if len(one) * len(other) > _MOST_WORK:
        return True
    if one[:1] == ["."] and other[:1] in (["*"], ["?"]):
        return False
    below = [all(token == "*" for token in other[at:]) for at in range(len(other) + 1)]
    for token in reversed(one):
        row = [False] * (len(other) + 1)
        row[-1] = token == "*" and below[-1]
        for at in reversed(range(len(other))):
            if token == "*" or other[at] == "*":
                row[at] = below[at] or row[at + 1]
            else:
                row[at] = below[at + 1] and ("?" in (token, other[at]) or token == other[at])
        below = row
    return below[0]


def _tokens(text: str) -> list[str]:
    """Characters; `*` and `?` for any, and what is quoted with its backslash taken off.

    A bracket is taken for any character. A quoted star is told from a star by a NUL.
    """
    found = re.findall(r"\\(.)|(\[[!^]?\]?(?:\[:\w+:\]|[^\]])*\])|(.)", text, re.DOTALL)
    return [
        f"\0{quoted}" if quoted in ("*", "?") and quoted else "?" if bracket else quoted or plain
        for quoted, bracket, plain in found
    ]


# ─── rules ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Rule:
    """`Tool` or `Tool(pattern)`.

    Attributes:
        text: as it was written.
        tool: canonical or shown name, or the beginning of one and a star.
        pattern: what is in the brackets; None = every call of the tool.
        canonical: the tool's name in the catalog, where it is known.
    """

    text: str
    tool: str
    pattern: str | None
    canonical: str

    def names(self, shown: str, canonical: str) -> bool:
        """Is it about the tool with these names?"""
        if self.tool.endswith("*"):
            return shown.startswith(self.tool[:-1])
        return self.canonical == canonical or self.tool == shown

    @property
    def host(self) -> str | None:
        """The pattern of hosts; None = it is about something else."""
        if self.pattern is None or not self.pattern.startswith(_HOSTS):
            return None
        return self.pattern.removeprefix(_HOSTS).strip().lower()

    @property
    def is_of_commands(self) -> bool:
        """Its pattern is one of commands."""
        return self.canonical in _BY_COMMAND


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules in three lists. Deny wins over ask, ask over allow.

    Attributes:
        allow, ask, deny: the lists, in order.
        known: shown or canonical name → canonical name; empty = any name is taken.
    """

    allow: tuple[Rule, ...] = ()
    ask: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __bool__(self) -> bool:
        return bool(self.allow or self.ask or self.deny)

    @classmethod
    def parse(
        cls,
        allow: Iterable[str] = (),
        ask: Iterable[str] = (),
        deny: Iterable[str] = (),
        known: Mapping[str, str] | None = None,
    ) -> Rules:
        """Rules from their texts.

        Args:
            allow, ask, deny: the texts.
            known: shown or canonical name → canonical name of each tool that there is;
                None = names are not checked.

        Raises:
            ConfigError: with every bad rule, named.
        """
        faults: list[str] = []
        lists: list[tuple[Rule, ...]] = []
        known = known or {}
        for option, texts in (("allow", allow), ("ask", ask), ("deny", deny)):
            rules: list[Rule] = []
            for text in texts:
                try:
                    rules.append(_rule(text.strip(), known))
                except ConfigError as error:
                    faults.append(f"{option}: {text!r} is not a rule: {error}")
            lists.append(tuple(rules))
        if faults:
            raise ConfigError(faults)
        return cls(lists[0], lists[1], lists[2], known)

    def allowing(self, rule: str) -> Rules:
        """The same, and what this rule names is allowed.

        Raises:
            ConfigError: it is no rule.
        """
        added = Rules.parse(allow=[rule], known=self.known).allow
        return self if added[0] in self.allow else replace(self, allow=(*self.allow, *added))

    def denies_whole(self, *names: str) -> str | None:
        """The deny rule that is about every call of the tool with these names."""
        shown, canonical = names[0], names[-1]
        for rule in self.deny:
            if rule.pattern is None and rule.names(shown, canonical):
                return rule.text
        return None


def _rule(text: str, known: Mapping[str, str]) -> Rule:
    match = _RULE.fullmatch(text)
    if match is None:
        raise ConfigError("write Tool or Tool(pattern), for example run_command(git status *)")
    tool, pattern = match[1], match[2]
    if pattern is not None and not pattern.strip():
        raise ConfigError(f"there is nothing in the brackets; write {tool} for every call of it")
    if tool.startswith(FOREIGN):
        if pattern is not None:
            raise ConfigError("calls of MCP servers have no patterns; leave the brackets out")
        return Rule(text, tool, None, tool)
    if tool.endswith("*"):
        raise ConfigError(f"only names of MCP tools may end with *, as in {FOREIGN}server__*")
    canonical = known.get(tool, tool)
    if known and tool not in known:
        near = difflib.get_close_matches(tool, known, n=1)
        instead = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
        raise ConfigError(f"there is no tool {tool!r}; {instead}")
    rule = Rule(text, tool, pattern, canonical)
    if pattern is not None:
        _check_pattern(rule, pattern)
    return rule


def _check_pattern(rule: Rule, pattern: str) -> None:
    if rule.host is not None:
        if _HOST.fullmatch(rule.host) is None:
            raise ConfigError("write a host as domain:example.org or domain:*.example.org")
        if rule.canonical in (*_BY_COMMAND, *_SEARCHERS, READERS, WRITERS):
            raise ConfigError(f"{rule.tool} contacts no host that could be known before it runs")
    elif rule.canonical in _SEARCHERS:
        raise ConfigError(
            f"{rule.tool} has no patterns of its own; write {READERS}(…) for all that reads files"
        )
    elif rule.is_of_commands:
        Command.parse(pattern)
