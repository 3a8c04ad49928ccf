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

COMMANDS, READERS, WRITERS = "run_command", "read_file", "edit_file"
"""Canonical names whose rules hold for every tool of their kind."""
_SEARCHERS = frozenset({"grep", "glob", "list_directory"})
"""They take in whole directories: the agent leaves out what rules of `read_file` deny."""
_BY_COMMAND = frozenset({COMMANDS, "run_command_isolated", "run_code", "build", "test", "validate"})
_HOSTS = "domain:"
_FOREIGN = "mcp__"

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
        if re.match(r"[A-Za-z_]\w*=", texts[0]):
            raise ConfigError("assignments have no rules; begin with the program")
        return cls(texts[0], *_parted(texts[1:]), is_prefix)

    @property
    def is_everything(self) -> bool:
        """It is about every command line."""
        return self.program == "*"


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
        ConfigError: a quote is never closed, or a backslash is the last character.
    """
    words: list[tuple[str, bool]] = []
    word: str | None = None
    quote = ""
    has_star = False
    is_escaped = False
    for character in pattern:
        if is_escaped:
            word, is_escaped = (word or "") + character, False
        elif character == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            if character == quote:
                quote = ""
            else:
                word = (word or "") + character
        elif character in "'\"":
            quote, word = character, word or ""
        elif character.isspace():
            if word is not None:
                words.append((word, has_star))
            word, has_star = None, False
        else:
            has_star = has_star or character == "*"
            word = (word or "") + character
    if quote:
        raise ConfigError(f"a quote {quote} is never closed")
    if is_escaped:
        raise ConfigError("it ends with a single backslash")
    if word is not None:
        words.append((word, has_star))
    return words


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
    if tool.startswith(_FOREIGN):
        if pattern is not None:
            raise ConfigError("calls of MCP servers have no patterns; leave the brackets out")
        return Rule(text, tool, None, tool)
    if tool.endswith("*"):
        raise ConfigError(f"only names of MCP tools may end with *, as in {_FOREIGN}server__*")
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
    elif rule.canonical in _SEARCHERS:
        raise ConfigError(
            f"{rule.tool} has no patterns of its own; write {READERS}(…) for all that reads files"
        )
    elif rule.is_of_commands:
        Command.parse(pattern)
