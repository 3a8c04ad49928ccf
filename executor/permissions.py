"""(mode, rules, call) → allow, ask or deny.

Deny wins over ask, ask over allow, and each over what the mode says; only plan mode is not
widened by what is allowed. Commands are judged from their parse (`executor.shell`), paths
by what they lead to (`executor.places`). What was found can change before the call runs:
so what rests on it is handed to the tool (`Context.bound`), and what rules deny to files is
told to the agent (`restrictions`), which looks again at what it has opened.
"""

from __future__ import annotations

import functools
import posixpath
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from executor.agent.ignore import Pattern, Patterns, literal
from executor.errors import Code, ConfigError, ToolError
from executor.model import MOUNT, Access
from executor.places import Place, resolved
from executor.rules import (
    COMMANDS,
    FOREIGN,
    READERS,
    WRITERS,
    Command,
    Rule,
    Rules,
    is_option,
    may_meet,
)
from executor.shell.values import Script, Simple, installed_program, program_of
from executor.tool import Contacts, Context, RunsCode, RunsCommand, Tool, Touches, no_actions


class Mode(StrEnum):
    """How much a loop may do without asking."""

    DEFAULT = "default"
    PLAN = "plan"
    ACCEPT_EDITS = "acceptEdits"
    BYPASS = "bypass"


class Verdict(StrEnum):
    """What is to happen with a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_ALLOW, _ASK, _DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY

_MATRIX: dict[Access, dict[Mode, Verdict]] = {
    access: dict(zip(Mode, row, strict=True))
    for access, row in {
        # default, plan, acceptEdits, bypass
        Access.READ: (_ALLOW, _ALLOW, _ALLOW, _ALLOW),
        Access.SESSION: (_ALLOW, _ALLOW, _ALLOW, _ALLOW),
        Access.WRITE: (_ASK, _DENY, _ALLOW, _ALLOW),
        Access.EXEC: (_ASK, _DENY, _ASK, _ALLOW),
        Access.NETWORK: (_ASK, _DENY, _ASK, _ALLOW),
    }.items()
}

_EXCEPTIONS: dict[tuple[str, Mode], Verdict] = {
    # Deleting can't be taken back by an edit, so accepting edits does not cover it.
    ("delete_file", Mode.ACCEPT_EDITS): _ASK,
    # Made for small computations in the box: runs without a question.
    ("run_code", Mode.DEFAULT): _ALLOW,
    ("run_code", Mode.ACCEPT_EDITS): _ALLOW,
    # The operator has chosen whom they ask, and given a key for it: that is the consent.
    **{
        (tool, mode): _ALLOW
        for tool in ("web_search", "oracle")
        for mode in (Mode.DEFAULT, Mode.PLAN, Mode.ACCEPT_EDITS)
    },
}


def decide(mode: Mode, access: Access, tool: str) -> Verdict:
    """What the mode says about a call of which nothing more is known.

    Args:
        mode: of the loop.
        access: what the tool touches.
        tool: its canonical name.
    """
    return _EXCEPTIONS.get((tool, mode)) or _MATRIX[access][mode]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to happen with a call, and why.

    Attributes:
        verdict: allow, ask or deny.
        reason: a sentence for the model or the person who is asked.
        rule: the rule that decided; None = the mode did.
        allowing: the smallest rules that would allow this call and its like; none where
            only a rule for the whole tool would.
    """

    verdict: Verdict
    reason: str = ""
    rule: str | None = None
    allowing: tuple[str, ...] = ()


_ALLOWED = Judgement(Verdict.ALLOW)


# ─── patterns of commands ───────────────────────────────────────────────────────────


def parsed(text: str, cwd: str = MOUNT, shell: str | None = "bash") -> Script:
    """What a command line does; the parser is loaded when it is first needed."""
    from executor.shell import analyse

    return analyse(text, cwd, posix=shell != "bash")


@functools.lru_cache(512)
def _command(rule: Rule) -> Command | None:
    """What a rule says of commands; without a pattern it is about every one. None = nothing."""
    if rule.host is not None or rule.canonical in (READERS, WRITERS):
        return None
    try:
        return Command.parse("*" if rule.pattern is None else rule.pattern)
    except ConfigError:
        return None  # of a tool of the host's, and about paths


class Hit(StrEnum):
    """Whether a rule that denies or asks is about a command."""

    NO = "no"
    MAYBE = "maybe"
    """Parts of the command can't be known before it runs."""
    YES = "yes"


def hit(pattern: Command, simple: Simple) -> Hit:
    """Does a rule that denies or asks mean this command?

    It does when the pattern's words begin the command, whatever follows, with options in
    any position, in clusters and shortened: rather too often than too seldom.
    """
    words = simple.words
    if pattern.is_everything:
        return Hit.YES
    if not words:
        return Hit.NO
    program = program_of(words)
    if program is None:
        return Hit.MAYBE
    if program != posixpath.basename(pattern.program):
        return Hit.NO
    if _may_mean(pattern, words[1:], unknown=False):
        return Hit.YES
    return Hit.MAYBE if _may_mean(pattern, words[1:], unknown=True) else Hit.NO


def _may_mean(pattern: Command, words: Sequence[str | None], *, unknown: bool) -> bool:
    """Can the words be read so that the pattern matches them?

    Args:
        pattern: of a rule.
        words: after the program.
        unknown: take what can't be known for whatever matches.
    """
    wanted = [word for word in pattern.words if word != "--"]
    count = len(wanted)
    read = {0}
    missing = {part for options in pattern.options for text in options for part in _parts(text)}
    after_option = are_over = False
    for word in words:
        if word is None:
            if unknown:
                read = set(range(min(read), count + 1)) if read else read
                missing.clear()
            after_option = True
        elif not are_over and word == "--":
            are_over, after_option = True, False
        elif not are_over and is_option(word):
            missing = {option for option in missing if not _is_meant(option, word)}
            after_option = "=" not in word
        else:
            # A word after an option may be its value, and say nothing of what is run.
            kept = {at for at in read if after_option or at == count}
            read = kept | {at + 1 for at in read if at < count and wanted[at] == word}
            after_option = False
    return count in read and not missing


def _parts(option: str) -> Iterator[str]:
    """`-rf` is `-r` and `-f`."""
    if option.startswith("--") or len(option) > 3:
        yield option
    else:
        yield from (f"-{letter}" for letter in option[1:])


def _is_meant(option: str, word: str) -> bool:
    """Can a word of a command be this option?"""
    name = word.partition("=")[0]
    if option in (word, name):
        return True
    if option.startswith("--"):
        return len(name) > 2 and name.startswith("--") and option.startswith(name)
    return len(option) == 2 and not word.startswith("--") and option[1] in word[1:]


def covers(pattern: Command, simple: Simple) -> bool:
    """Does a rule that allows mean this command? Exactly, or not at all.

    Options stand in any order, but not before a word that they follow in the pattern, and
    none is there that the pattern does not name unless it ends with `*`.
    """
    if pattern.is_everything:
        return True
    words = simple.words
    if not words or simple.alters or not simple.is_sure:
        return False
    if words[0] != pattern.program and (
        "/" in pattern.program or installed_program(words) != pattern.program
    ):
        return False
    rest = list(words[1:])
    for word, options in zip(pattern.words, pattern.options, strict=False):
        if word not in rest:
            return False
        at = rest.index(word)
        if None in rest[:at] or sorted(map(str, rest[:at])) != sorted(options):
            return False
        rest = rest[at + 1 :]
    for option in pattern.options[-1]:
        if option not in rest:
            return False
        rest.remove(option)
    return pattern.is_prefix or not rest


_SUBCOMMANDS = frozenset(
    (
        *("git", "npm", "yarn", "pnpm", "cargo", "go", "pip", "pip3", "make", "docker", "gh"),
        *("kubectl", "helm", "terraform", "dotnet", "gradle", "mvn", "bundle", "composer"),
    )
)
"""Programs whose first word says what they do."""
_CHECKERS = frozenset(
    (
        *("pytest", "ruff", "mypy", "flake8", "pylint", "black", "isort", "eslint", "prettier"),
        *("tsc", "jest", "vitest", "shellcheck", "tox", "nox"),
    )
)
"""Programs that do one thing, whatever they are given."""
_RUNNERS = frozenset({"run", "exec", "x", "dlx"})
"""Subcommands that run another program: what that is counts too."""


def _smallest(simple: Simple) -> str | None:
    """The pattern that allows a command and its like; None = there is none."""
    words = [word for word in simple.words if word is not None]
    if len(words) < len(simple.words) or not words or simple.alters or not simple.is_sure:
        return None
    program = installed_program(words)
    count = 0
    if program in _CHECKERS:
        count = 1
    elif program in _SUBCOMMANDS:
        count = 3 if words[1:2] and words[1] in _RUNNERS else 2
    begin = words[:count]
    if begin and len(begin) == count and not any(map(is_option, begin[1:])):
        return f"{shlex.join(begin)} *"
    return shlex.join(words)


# ─── patterns of paths ──────────────────────────────────────────────────────────────


def _placed(pattern: str) -> str:
    """`//workspace/x` is `/x`: the worktree's root has two names."""
    mark, text = ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)
    if text == f"/{MOUNT}" or text.startswith(f"/{MOUNT}/"):
        text = text[len(MOUNT) + 1 :] or "**"
    return mark + text


@functools.lru_cache(256)
def _patterns(rules: tuple[Rule, ...]) -> Patterns:
    """What the rules say of paths, in order, as one gitignore file."""
    return Patterns("**" if rule.pattern is None else _placed(rule.pattern) for rule in rules)


@functools.lru_cache(256)
def _path_rules(rules: tuple[Rule, ...], kind: str, shown: str, canonical: str) -> tuple[Rule, ...]:
    """Those that speak of what a tool does to paths.

    Args:
        rules: one of the three lists.
        kind: `READERS` or `WRITERS`: what the tool does to them.
        shown, canonical: names of the tool.
    """
    return tuple(
        rule
        for rule in rules
        if rule.host is None
        and (
            rule.canonical == kind
            or (
                rule.pattern is not None
                and not rule.is_of_commands
                and rule.canonical not in (READERS, WRITERS)
                and rule.names(shown, canonical)
            )
        )
    )


_KINDS = (("read", READERS), ("write", WRITERS))


def restrictions(rules: Rules) -> dict[str, list[list[str]]]:
    """What the agent is told: [pattern, rule] of what may not be read and not be written."""
    return {
        how: _told(rule for rule in rules.deny if rule.canonical == kind and rule.host is None)
        for how, kind in _KINDS
    }


def unreadable(rules: Rules, paths: Iterable[str]) -> list[str]:
    """Those of some paths of the worktree that rules deny to read."""
    patterns = Patterns(pattern for pattern, _ in restrictions(rules)["read"])
    return [path for path in paths if patterns.find(path) is not None]


def _told(rules: Iterable[Rule]) -> list[list[str]]:
    """Rules as the agent takes them."""
    return [["**" if rule.pattern is None else _placed(rule.pattern), rule.text] for rule in rules]


def check_paths(rules: Rules) -> None:
    """Look at the patterns of paths.

    Raises:
        ConfigError: with every pattern that can't match anything.
    """
    faults: list[str] = []
    for some in (rules.allow, rules.ask, rules.deny):
        named: set[str] = set()
        for rule in some:
            if rule.pattern is None or rule.host is not None or rule.is_of_commands:
                named.add(rule.canonical)
                continue
            fault = _path_fault(rule.pattern, is_first=rule.canonical not in named)
            named.add(rule.canonical)
            if fault is not None:
                faults.append(f"{rule.text!r} is not a rule: the pattern {fault}")
    if faults:
        raise ConfigError(faults)


def _path_fault(pattern: str, *, is_first: bool) -> str | None:
    """Why a pattern of paths can't match anything; None = it can."""
    fault = Pattern(_placed(pattern)).fault
    body = pattern.lstrip("!")
    if fault is not None:
        return fault
    if body == MOUNT or body.startswith(f"{MOUNT}/"):
        return f"would mean {MOUNT[1:]} in the worktree; write /x or /{MOUNT}/x"
    if body.startswith(" "):
        return "begins with a blank; leave it out, or write a backslash before it"
    if body.startswith("~"):
        return "begins with ~, which is not expanded; write //home/sandbox/x"
    if not {".", ".."}.isdisjoint(body.split("/")) or "//" in body[1:]:
        return (
            "holds ., .. or an empty name, and paths are compared without; write it from the "
            "worktree's root, or with // from the box's"
        )
    if pattern.startswith("!") and is_first:
        return "takes back what no rule before it in the same list names"
    return None


def check_patterns(rules: Rules, tools: Iterable[Tool]) -> None:
    """Look for patterns at tools that say nothing of what their calls touch.

    Raises:
        ConfigError: with every rule that would never match.
    """
    silent = [tool for tool in tools if tool.actions is no_actions]
    faults = [
        f"{rule.text!r} is not a rule: {tool.name} says nothing that a pattern could match; "
        f"write {tool.name} for every call of it"
        for rule in (*rules.allow, *rules.ask, *rules.deny)
        for tool in silent
        if rule.pattern is not None and rule.names(tool.name, tool.canonical)
    ]
    if faults:
        raise ConfigError(faults)


def is_path(pattern: str, path: str) -> bool:
    """Does a pattern mean this path, compared as text?"""
    return Patterns([_placed(pattern)]).find(path) is not None


_BELOW = "\x01"
"""A name that no pattern means in particular: what matches it matches everything beside it."""


def _is_about(patterns: Patterns, paths: Iterable[str], subtree: bool) -> int | None:
    """The position of the pattern that means one of these places, or all that is below."""
    for path in paths:
        found = patterns.find(path)
        if found is None and subtree:
            found = patterns.find(f"{path}/{_BELOW}" if path else _BELOW)
        if found is not None:
            return found
    return None


# ─── what a call is going to do ─────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Touch:
    """A path that a call or a command of it touches.

    Attributes:
        path: as it was given.
        kind: `READERS` or `WRITERS`; None = only names are seen.
        subtree: everything below it, too.
        follows: the last part is followed if it is a link.
        is_source: it is where something is moved away from.
    """

    path: str
    kind: str | None
    subtree: bool
    follows: bool = True
    is_source: bool = False


@dataclass(slots=True)
class _Case:
    """One call, with all that its rules and its mode have to know.

    Attributes:
        tool, arguments, context: of the call.
        scripts: what it runs, parsed.
        codes: programs in other languages that it runs.
        touches: paths that it touches itself.
        operands: paths that its commands are known to touch.
        contacts: hosts that it contacts; `hosts` are their names.
        places: where paths lead, once they were looked up.
    """

    tool: Tool
    arguments: Any
    context: Context
    scripts: list[Script] = field(default_factory=list)
    codes: list[RunsCode] = field(default_factory=list)
    touches: list[_Touch] = field(default_factory=list)
    operands: list[_Touch] = field(default_factory=list)
    contacts: list[Contacts] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)

    @classmethod
    def of(cls, tool: Tool, arguments: Any, context: Context) -> _Case:
        """The case of this call.

        Raises:
            ToolError: the tool can't say what the call would do, for example INVALID_PATH.
        """
        case = cls(tool, arguments, context)
        for action in tool.actions(context, arguments):
            match action:
                case RunsCommand():
                    cwd = action.cwd or context.cwd
                    case.scripts.append(parsed(action.text, cwd, context.shell))
                case RunsCode():
                    case.codes.append(action)
                case Touches():
                    case.touches.append(_touch(action, tool.canonical))
                case Contacts():
                    case.contacts.append(action)
        case.operands = [touch for script in case.scripts for touch in _operands(script)]
        return case

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts that it contacts."""
        return [contact.host.lower() for contact in self.contacts]

    async def look(self, touches: Iterable[_Touch]) -> None:
        """Look up where paths lead."""
        paths = {touch.path for touch in touches} - self.places.keys()
        if paths:
            leaves = self.context.loop.toolset.reach == "box"
            self.places.update(await resolved(self.context.loop.box, paths, leaves=leaves))

    def where(self, touch: _Touch) -> tuple[str, ...]:
        """The places that a touch is about: where the path leads, and where it is itself."""
        place = self.places.get(touch.path)
        if place is None:
            return (touch.path,)
        return (place.path, place.own) if touch.follows else (place.own,)

    def target(self, touch: _Touch) -> str:
        """The one place that changes or is read."""
        place = self.places.get(touch.path)
        if place is None:
            return touch.path
        return place.path if touch.follows else place.own


def _touch(action: Touches, canonical: str) -> _Touch:
    kinds = {"read": READERS, "list": None, "write": WRITERS, "delete": WRITERS}
    is_move = canonical == "move_file"
    return _Touch(
        action.path,
        kinds[action.how],
        action.subtree,
        follows=action.how != "delete" and not is_move,
        is_source=is_move and action.how == "delete",
    )


def _operands(script: Script) -> Iterator[_Touch]:
    """What the commands of a line are known to touch; they may touch more."""
    for simple in script.commands:
        for path in sorted((simple.reads or frozenset()) - simple.lists):
            yield _Touch(_in_worktree(path), READERS, True)
        for path in sorted(simple.writes or ()):
            yield _Touch(_in_worktree(path), WRITERS, True)


def _in_worktree(path: str) -> str:
    """A path of the box as tools name it: from the worktree's root, if it is in there."""
    if path == MOUNT:
        return ""
    return path.removeprefix(f"{MOUNT}/")


# ─── rules ──────────────────────────────────────────────────────────────────────────


async def _matched(case: _Case, rules: tuple[Rule, ...]) -> tuple[Rule, Hit] | None:
    """The rule of a list, deny or ask, that is about the call, and how surely."""
    tool = case.tool
    for rule in rules:
        if rule.pattern is None and rule.names(tool.name, tool.canonical):
            return rule, Hit.YES
    best: tuple[Rule, Hit] | None = None
    for rule, pattern in _command_rules(rules, tool) if case.scripts or case.codes else ():
        found = _hits(case, rule, pattern)
        if found is Hit.YES:
            return rule, found
        if found is Hit.MAYBE:
            best = best or (rule, found)
    path = await _path_rule(case, rules)
    if path is not None:
        return path, Hit.YES
    for rule in rules if case.hosts else ():
        if _names_host(rule, case):
            return rule, Hit.YES
    return best or await _may_touch(case, rules) or _not_told(case, rules)


_MOST_LOOKED_AT = 200
"""Words of one line that may be paths, of which it is looked up where they lead."""


async def _may_touch(case: _Case, rules: tuple[Rule, ...]) -> tuple[Rule, Hit] | None:
    """A rule on paths that is about what the commands of a line may touch by their words."""
    for kind in (READERS, WRITERS) if case.scripts else ():
        some = _path_rules(rules, kind, case.tool.name, case.tool.canonical)
        if not some:
            continue
        for glob in dict.fromkeys(_globs(case, kind)):
            for rule in some:
                if rule.pattern is None or may_meet(_placed(rule.pattern), glob):
                    return rule, Hit.MAYBE
        paths = dict.fromkeys(path for script in case.scripts for path in _spelt(script, kind))
        touches = [_Touch(_in_worktree(path), kind, True) for path in paths]
        await case.look(touches[:_MOST_LOOKED_AT])
        for touch in touches:
            found = _is_about(_patterns(some), case.where(touch), touch.subtree)
            if found is not None:
                return some[found], Hit.MAYBE
    return None


def _globs(case: _Case, kind: str) -> Iterator[str]:
    """Globs of what is read, or written; of that what is spelt, too, for what is below."""
    for script in case.scripts:
        for simple in script.commands:
            may = simple.may
            globs = sorted(may.read_globs if kind == READERS else may.write_globs)
            for glob in globs:
                first, _, rest = glob.lstrip("/").partition("/")
                is_in_worktree = not first or may_meet(f"/{MOUNT}", f"/{first}")
                yield rest if is_in_worktree else glob


def _spelt(script: Script, kind: str) -> Iterator[str]:
    is_given = False
    for simple in script.commands:
        yield from sorted(simple.may.read if kind == READERS else simple.may.write)
        touched = simple.reads if kind == READERS else simple.writes
        may_touch = kind == READERS or simple.is_writer
        is_given = is_given or (may_touch and touched is None and None in simple.words[1:])
    if is_given:
        yield from sorted(script.spelt)


def _not_told(case: _Case, rules: tuple[Rule, ...]) -> tuple[Rule, Hit] | None:
    """A rule on paths, where a command line is not understood and may touch any."""
    if all(script.fault is None for script in case.scripts):
        return None
    about = (rule for rule in rules if rule.canonical in (READERS, WRITERS) and rule.host is None)
    rule = next(about, None)
    return None if rule is None else (rule, Hit.MAYBE)


def _command_rules(rules: Iterable[Rule], tool: Tool) -> list[tuple[Rule, Command]]:
    """The rules that speak of what a tool runs."""
    named = (
        (rule, _command(rule))
        for rule in rules
        if rule.canonical == COMMANDS or rule.names(tool.name, tool.canonical)
    )
    return [(rule, command) for rule, command in named if command is not None]


def _hits(case: _Case, rule: Rule, pattern: Command) -> Hit:
    found = Hit.NO
    if case.codes and rule.canonical == case.tool.canonical:
        found = Hit.MAYBE
    for script in case.scripts:
        if script.fault is not None:
            found = Hit.MAYBE
        for simple in script.commands:
            one = hit(pattern, simple)
            if one is Hit.YES:
                return one
            found = one if one is Hit.MAYBE else found
    return found


async def _path_rule(case: _Case, rules: tuple[Rule, ...]) -> Rule | None:
    """The rule of a list that is about one of the paths that the call touches."""
    if all(rule.is_of_commands or rule.host is not None for rule in rules):
        return None
    for touches in (case.touches, case.operands):
        for touch in touches:
            if touch.kind is None:
                continue
            some = _path_rules(rules, touch.kind, case.tool.name, case.tool.canonical)
            if not some:
                continue
            await case.look(touches)
            found = _is_about(_patterns(some), case.where(touch), touch.subtree)
            if found is not None:
                return some[found]
    return None


def _names_host(rule: Rule, case: _Case) -> bool:
    pattern = rule.host
    if pattern is None or not rule.names(case.tool.name, case.tool.canonical):
        return False
    return any(is_host(pattern, host) for host in case.hosts)


def is_host(pattern: str, host: str) -> bool:
    """Does a pattern of hosts mean this one? `*.x.org` is every name below `x.org`."""
    # `x.org.` is the same name, written out to the root.
    host = host.lower().removesuffix(".").strip("[]")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return pattern.strip("[]") in ("*", host)


# ─── what is allowed ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Want:
    """Something that the mode does not allow by itself.

    Attributes:
        reason: why, for whoever is asked.
        allowing: the smallest rule that would allow it; None = there is none.
    """

    reason: str
    allowing: str | None


_ALL_OF_IT = "; a rule for it holds at every port, and for POST as for GET"
"""What a person has to know who answers "always" to a single page."""


async def _wants(case: _Case, mode: Mode) -> list[_Want]:
    """What of a call neither its mode nor a rule allows. Modes default and acceptEdits."""
    allow = case.context.session.rules.allow
    tool = case.tool
    is_outside = any(_is_outside(case, touch) for touch in case.touches)
    if decide(mode, tool.access, tool.canonical) is Verdict.ALLOW and not is_outside:
        return []
    if any(rule.pattern is None and rule.names(tool.name, tool.canonical) for rule in allow):
        return []
    wants: list[_Want] = []
    for script in case.scripts:
        wants += await _commands_wanted(case, script, mode)
    for touch in case.touches:
        if touch.kind == WRITERS and tool.access is not Access.EXEC:
            wants += await _change_wanted(case, touch, mode)
    for host in (contact.host.lower() for contact in case.contacts if not contact.is_free):
        if not any(_names_host(rule, case) and is_host(rule.host or "", host) for rule in allow):
            is_foreign = tool.name.startswith(FOREIGN)  # these have no patterns
            rule = tool.name if is_foreign else f"{tool.name}(domain:{host})"
            wants.append(_Want(f"{host} is contacted{'' if is_foreign else _ALL_OF_IT}", rule))
    if not (case.scripts or case.touches or case.hosts) or case.codes:
        wants.append(_Want(f"mode {mode} asks before {tool.access}", tool.name))
    return wants


def _is_outside(case: _Case, touch: _Touch) -> bool:
    """It changes something that is neither in the worktree nor in a directory added to it."""
    loop, path = case.context.loop, touch.path
    if touch.kind != WRITERS or not path.startswith("/") or path == loop.plan_file:
        return False
    return not any(f"{path}/".startswith(f"{added.path}/") for added in loop.reach.added)


async def _commands_wanted(case: _Case, script: Script, mode: Mode) -> list[_Want]:
    """What of a command line is not allowed."""
    if script.is_read_only:
        return []
    rules = _command_rules(case.context.session.rules.allow, case.tool)
    patterns = [pattern for _, pattern in rules]
    if any(pattern.is_everything for pattern in patterns):
        return []
    if script.fault is not None:
        return [_Want(f"the command line is not understood: {script.fault}", None)]
    shown = case.tool.name if case.tool.canonical == COMMANDS else COMMANDS
    wants: list[_Want] = []
    for simple in script.commands:
        if not simple.is_read_only and not any(covers(pattern, simple) for pattern in patterns):
            wants += _command_wanted(simple, shown, mode)
        wants += await _redirects_wanted(case, simple)
    return wants


def _command_wanted(simple: Simple, shown: str, mode: Mode) -> list[_Want]:
    if not simple.words:
        return []  # assignments to the shell itself, or redirects alone
    smallest = _smallest(simple)
    rule = f"{shown}({smallest})" if smallest is not None else None
    return [_Want(f"mode {mode} asks before commands", rule)]


async def _redirects_wanted(case: _Case, simple: Simple) -> list[_Want]:
    """What a rule for the command does not speak of: files that the shell itself writes."""
    if simple.redirected is None:
        return [_Want("the command writes into a file that can't be known", None)]
    touches = [_Touch(_in_worktree(path), WRITERS, False) for path in sorted(simple.redirected)]
    wants: list[_Want] = []
    for touch in touches:
        await case.look(touches)
        if not _is_allowed(case, touch):
            wants.append(_Want("the command writes into a file", _path_rule_for(case, touch)))
    return wants


def _is_allowed(case: _Case, touch: _Touch) -> bool:
    """A rule allows to change this. What git obeys is no file among others: it runs programs."""
    if ".git" in case.target(touch).lower().split("/"):
        return False
    rules = case.context.session.rules.allow
    some = _path_rules(rules, WRITERS, case.tool.name, case.tool.canonical)
    return bool(some) and _patterns(some).find(case.target(touch), anywhere=False) is not None


def _path_rule_for(case: _Case, touch: _Touch) -> str:
    """The rule that allows to change this and nothing else."""
    tool = case.tool
    name = tool.name if tool.access is Access.WRITE else WRITERS
    return f"{name}({literal(case.target(touch))})"


async def _change_wanted(case: _Case, touch: _Touch, mode: Mode) -> list[_Want]:
    """What of a change of a file is not allowed."""
    is_allowed = decide(mode, case.tool.access, case.tool.canonical) is Verdict.ALLOW
    if touch.path == case.context.loop.plan_file or (is_allowed and not _is_outside(case, touch)):
        return []
    await case.look(case.touches)
    if _is_allowed(case, touch):
        return []
    reason = await _reason_to_ask(case, touch, mode)
    return [] if reason is None else [_Want(reason, _path_rule_for(case, touch))]


async def _reason_to_ask(case: _Case, touch: _Touch, mode: Mode) -> str | None:
    """Why a change needs a decision; None = it does not.

    Making a new file and moving something to a free name lose nothing. The agent is asked
    whether that is so, and the tool makes it so (`Context.bound`).
    """
    canonical = case.tool.canonical
    shown = touch.path or "."
    if touch.is_source:
        return None  # it is not lost
    if _is_outside(case, touch):
        return f"{shown} is outside of the worktree"
    if canonical == "delete_file":
        await _bind_deletion(case, touch)
        return f"{shown} is deleted"
    if canonical not in ("write_file", "move_file"):
        return f"mode {mode} asks before changes"
    is_move = canonical == "move_file"
    asked = {"path": touch.path, "follow": not is_move}
    found = (await case.context.ask("stat", asked)).value
    case.context.judge(touch.path, found["mark"] or "")
    if not found["exists"] or (is_move and not getattr(case.arguments, "overwrite", None)):
        return None
    return f"{shown} exists and would be {'replaced' if is_move else 'overwritten'}"


async def _bind_deletion(case: _Case, touch: _Touch) -> None:
    """What somebody agrees to lose is what is there now.

    Of a directory nobody is shown what is in it, and that may change all the time.
    """
    if case.context.loop.approver is None:
        return
    found = (await case.context.ask("stat", {"path": touch.path, "follow": False})).value
    if found["exists"] and found.get("type") != "d":
        case.context.judge(touch.path, found["mark"] or "")


# ─── a call ─────────────────────────────────────────────────────────────────────────


async def judge(tool: Tool, arguments: Any, context: Context) -> Judgement:
    """What the loop's mode and rules say about a call.

    Args:
        tool: the tool.
        arguments: checked.
        context: of the call; the agent is asked what paths lead to, where rules need it.

    Raises:
        ToolError: what the call would do can't be said, for example INVALID_PATH.
        SandboxError: the box could not be had or was lost.
    """
    session = context.session
    rules = session.rules
    context.rules = context.beside = None
    if session.mode == "bypass" and not rules.deny and not rules.ask:
        return _ALLOWED
    mode = Mode(session.mode)
    case = _looked_at(tool, arguments, context)
    judgement = await _judgement(case, mode)
    context.beside = _unasked(case)
    context.rules = _bonds(case, context.beside or {}, is_asked=judgement.verdict is Verdict.ASK)
    return judgement


def _unasked(case: _Case) -> dict[str, Any] | None:
    """What holds for files that nobody was asked about; None = only what the loop is denied."""
    rules = case.context.session.rules
    names = (case.tool.name, case.tool.canonical)
    found: dict[str, Any] = {"deny": {}, "ask": {}}
    for how, kind in _touched(case):
        own = [r for r in _path_rules(rules.deny, kind, *names) if r.canonical != kind]
        ask = _path_rules(rules.ask, kind, *names)
        found["deny"] |= {how: _told(own)} if own else {}
        found["ask"] |= {how: _told(ask)} if ask else {}
    return {name: value for name, value in found.items() if value} or None


def _touched(case: _Case) -> list[tuple[str, str]]:
    """Of `_KINDS` those of which the call touches something."""
    kinds = {touch.kind for touch in case.touches}
    return [(how, kind) for how, kind in _KINDS if kind in kinds]


def _bonds(case: _Case, unasked: Mapping[str, Any], *, is_asked: bool) -> dict[str, Any] | None:
    """What the agent holds the call to; None = nothing but what is denied to the whole loop.

    Paths are judged by where they lead before the call, and by their names as far as they are
    known: directories are not looked through. The agent sees what it opens.

    Args:
        case: the call.
        unasked: see `_unasked`.
        is_asked: nobody runs it before it was asked about, as it is.
    """
    names = (case.tool.name, case.tool.canonical)
    allow = case.context.session.rules.allow
    is_about_places = is_asked or "ask" in unasked
    if not is_about_places:
        is_about_places = any(_path_rules(allow, kind, *names) for _, kind in _touched(case))
    found = {name: value for name, value in unasked.items() if name != "ask" or not is_asked}
    touches = [touch for touch in case.touches if touch.kind is not None]
    if touches and is_about_places and all(touch.path in case.places for touch in touches):
        found["places"] = sorted({case.target(touch) for touch in touches})
    return found or None


async def _judgement(case: _Case, mode: Mode) -> Judgement:
    found = await _by_rules(case, mode)
    if found is not None:
        return found
    wants = await _wants(case, mode) if mode in (Mode.DEFAULT, Mode.ACCEPT_EDITS) else []
    if not wants:
        return _ALLOWED
    reason = "; ".join(dict.fromkeys(want.reason for want in wants))
    allowing = tuple(dict.fromkeys(want.allowing for want in wants))
    if None in allowing:
        return Judgement(Verdict.ASK, reason)
    return Judgement(Verdict.ASK, reason, None, tuple(rule for rule in allowing if rule))


async def _by_rules(case: _Case, mode: Mode) -> Judgement | None:
    """What rules that deny or ask say, and plan mode between them; None = nothing."""
    rules = case.context.session.rules
    denied = await _matched(case, rules.deny) if rules.deny else None
    if denied is not None and denied[1] is Hit.YES:
        text = denied[0].text
        return Judgement(Verdict.DENY, f"the rule {text} denies it.", text)
    if mode is Mode.PLAN and not _is_for_planning(case):
        return Judgement(Verdict.DENY, _plan_reason(case.context))
    if denied is not None:
        verdict = Verdict.DENY if mode is Mode.BYPASS else Verdict.ASK
        return Judgement(verdict, _not_understood(case, denied[0]), denied[0].text)
    asked = await _matched(case, rules.ask) if rules.ask else None
    if asked is None:
        return None
    if case.context.loop.approver is not None:
        for touch in case.touches:
            if touch.kind == WRITERS:
                await _reason_to_ask(case, touch, mode)  # which binds the call to what is there
    return Judgement(Verdict.ASK, f"the rule {asked[0].text} asks first", asked[0].text)


def _looked_at(tool: Tool, arguments: Any, context: Context) -> _Case:
    try:
        return _Case.of(tool, arguments, context)
    except RecursionError:
        raise ToolError(
            Code.INVALID_ARGUMENTS, "The command is nested too deep to be judged; simplify it."
        ) from None


def _not_understood(case: _Case, rule: Rule) -> str:
    """Why it can't be said that a rule does not deny a call."""
    faults = [script.fault for script in case.scripts if script.fault is not None]
    if not faults and rule.canonical in (READERS, WRITERS):
        return (
            f"the rule {rule.text} may deny it (it names what the rule may be about, and what it "
            "does with that is not known). Name the files that are meant one by one, or leave "
            "these out."
        )
    why = faults[0] if faults else "parts of it are known only when it runs"
    return (
        f"the rule {rule.text} may deny it ({why}). Write the command out plainly, without "
        "variables and substitutions."
    )


def _is_for_planning(case: _Case) -> bool:
    """What plan mode allows: looking, the loop's own memory, and the plan file."""
    tool = case.tool
    if tool.access in (Access.READ, Access.SESSION):
        return True
    if tool.access is Access.WRITE:
        if case.context.session.submitted is not None:
            return False  # what is approved later has to be what was submitted
        changed = [touch.path for touch in case.touches if touch.kind == WRITERS]
        return bool(changed) and all(path == case.context.loop.plan_file for path in changed)
    if tool.access is Access.NETWORK:
        allowed = decide(Mode.PLAN, tool.access, tool.canonical) is Verdict.ALLOW
        return allowed or (bool(case.contacts) and all(one.is_free for one in case.contacts))
    if tool.access is not Access.EXEC or tool.canonical == "run_code" or not case.scripts:
        return False
    return not case.codes and all(script.is_read_only for script in case.scripts)


def _plan_reason(context: Context) -> str:
    if context.session.submitted is not None:
        return (
            "plan mode changes nothing, and the plan was submitted: it stays as it is until it is "
            "answered. Read and search meanwhile."
        )
    return (
        "plan mode changes nothing. Read, search and run commands that only look; the one file "
        f"that can be written is {context.loop.plan_file}."
    )
