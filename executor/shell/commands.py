"""Simple commands: what one runs, changes, reads and writes, from where the shell is."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from executor.model import MOUNT
from executor.shell import git, sed
from executor.shell.analysis import MAX_SHELLS, Analysis, State, Tail, either
from executor.shell.builtins import BUILTINS, Changes
from executor.shell.effects import ANYTHING, HARMLESS, Argv, Effect, Runs, Text
from executor.shell.programs import PROGRAMS, SPECIAL, WRITERS
from executor.shell.statements import (
    DECLARATIONS,
    Assignment,
    Redirect,
    Statement,
    here_document,
    read_statement,
)
from executor.shell.syntax import RESERVED, Source, parts
from executor.shell.values import (
    INTEGERS,
    NOTHING,
    SHELL_VARIABLES,
    UNKNOWN,
    May,
    NotUnderstood,
    Paths,
    Simple,
    Word,
    installed_program,
    is_own_variable,
    joined,
    known,
    program_of,
    resolved,
    union,
)
from executor.shell.words import Node, Reader
from executor.shell.wrappers import ALSO, SHELLS, UNSURE, WRITING, Found, wrapper_of

MAX_PATH = 4096
"""Characters of a word that may be a path."""


@dataclass(slots=True)
class Commands(ABC):
    """One shell over one text: its simple commands. What is around them is `walk.Shell`.

    Attributes:
        analysis: of the line.
        source: the text.
        depth: of texts within texts.
        posix: it may be another shell than bash.
        inner: what it does to its directory does not outlast it.
        here: the directories of the command that is being read.
    """

    analysis: Analysis
    source: Source
    depth: int
    posix: bool
    inner: bool
    here: Paths = NOTHING

    @abstractmethod
    def apart_sequence(self, children: Sequence[Node], directories: Paths) -> None:
        """Commands of a substitution."""

    @abstractmethod
    def run_text(self, text: str, directories: Paths, *, posix: bool, inner: bool) -> State:
        """A text that another shell is given, or this one again."""

    # ─── one simple command ────────────────────────────────────────────────────────────

    def _statement(self, start: int, tail: Tail, directories: Paths) -> Statement:
        reader = self._reader(directories)
        statement = read_statement(self.source, reader, start, tail.end, self._home)
        if (statement.delimiter is None) != (tail.here is None):
            raise NotUnderstood("a here-document that is not understood")
        if statement.delimiter is not None:
            statement.stdin, _ = here_document(self.source, reader, statement.delimiter, tail.here)
        return statement

    def _execute(self, statement: Statement, directories: Paths) -> State:
        words = statement.words
        outlasts = not words or words[0].text in DECLARATIONS
        for assignment in statement.assignments:
            self._assigned(assignment, outlasts=outlasts)
        if not words:
            alone = all(is_own_variable(item.name) for item in statement.assignments)
            # What another variable does to later commands can't be told.
            self._add(statement, HARMLESS if alone else ANYTHING, directories)
            return directories, directories
        if words[0].is_plain and words[0].text in RESERVED:
            raise NotUnderstood(f"{words[0].text!r} is read in another way by the shell")
        return self._argv(statement, words, directories, is_sure=True, nesting=0)

    def _assigned(self, assignment: Assignment, *, outlasts: bool) -> None:
        name, value = assignment.name, assignment.value
        self.analysis.assigned.add(name)
        self.analysis.spell(spelt([value]), self.here)
        self._check_name(name, outlasts=outlasts)
        if not value.is_number and not re.fullmatch(r"-?\d*", value.text or "x"):
            self.analysis.doubtful.add(name)

    def _check_name(self, name: str, *, outlasts: bool = True) -> None:
        """A variable is given a value, or is taken away."""
        if name in SHELL_VARIABLES or name.startswith("BASH_"):
            raise NotUnderstood(f"{name} makes shells run something")
        if name in INTEGERS:
            self.analysis.evaluated.add(name)
        # IFS is the shell's own affair: no program looks at it.
        if outlasts and name != "IFS" and not is_own_variable(name):
            self.analysis.altered.add(name)

    def _argv(
        self,
        statement: Statement,
        words: Sequence[Word],
        directories: Paths,
        *,
        is_sure: bool,
        nesting: int,
    ) -> State:
        """A command and what it runs.

        Args:
            statement: whose redirects and assignments it has, if it is the outermost.
            words: of it.
            directories: where it is run.
            is_sure: see `Simple`.
            nesting: how many wrappers are around it.
        """
        if nesting > MAX_SHELLS:
            raise NotUnderstood("wrappers are nested too deep")
        if nesting:
            statement = Statement(statement.text, words=list(words), stdin=statement.stdin)
        texts = [word.text for word in words]
        name = program_of(texts)
        if name is None:
            self._add(replace_words(statement, words), ANYTHING, directories, is_sure=is_sure)
            rest = next((at for at, word in enumerate(words) if not word.splits), 0)
            if rest:  # `$x rm y` runs rm if x is empty
                guess = Argv(tuple(words[rest:]), is_sure=False)
                self._inner(statement, guess, directories, is_sure=False, nesting=nesting)
            return None, None
        arguments = list(words[1:])
        changes = None
        if name in BUILTINS and texts[0] == name:
            changes = BUILTINS[name](arguments, self.posix)
        wrapper = wrapper_of(name)
        found = wrapper(arguments) if wrapper is not None else None
        effect = self._own_effect(texts, arguments, changes, found, directories)
        self._add(replace_words(statement, words), effect, directories, is_sure=is_sure)
        state: State = (directories, directories)
        if changes is not None:
            state = self._change(changes, directories, statement)
        runs = found.runs if found is not None else ()
        if name in SHELLS and found is None:
            runs = (Text(statement.stdin, name != "bash"),)
        for each in runs:
            after = self._inner(statement, each, directories, is_sure=is_sure, nesting=nesting)
            if name in ("command", "builtin", "exec") or _is_time(words, nesting):
                state = after
        if name in self.analysis.knowledge.moving:
            self._move()
            state = (None, None)
        return state

    def _own_effect(
        self,
        texts: Sequence[str | None],
        arguments: list[Word],
        changes: Changes | None,
        found: Found | None,
        directories: Paths,
    ) -> Effect:
        """What a command does by itself, without what it runs."""
        name = installed_program(texts)
        if name is None or name in self.analysis.knowledge.functions:
            return ANYTHING
        if changes is not None:
            writes = () if changes.is_known else None
            return Effect(changes.reads, (), writes, changes.is_read_only)
        if found is not None and name not in ALSO:
            # A login shell reads a profile, which may do anything.
            is_clear = found.is_harmless or not (name in SHELLS | WRITING or UNSURE in found.runs)
            return replace(HARMLESS, is_read_only=found.is_harmless) if is_clear else ANYTHING
        return self._effect(name, arguments, directories)

    def _inner(
        self,
        statement: Statement,
        each: Runs,
        directories: Paths,
        *,
        is_sure: bool,
        nesting: int,
    ) -> State:
        """A command or a text that a wrapper runs."""
        if isinstance(each, Text):
            return self._text(each, directories, statement.text)
        where = self._directory(each, directories)
        is_sure = is_sure and each.is_sure
        return self._argv(statement, each.words, where, is_sure=is_sure, nesting=nesting + 1)

    def _directory(self, argv: Argv, directories: Paths) -> Paths:
        if argv.directory is None:
            return directories
        return resolved((argv.directory,), directories)

    def _text(self, text: Text, directories: Paths, shown: str) -> State:
        """A text that is run by another shell, or by this one again."""
        if text.text is None:
            self._add(Statement(shown, words=[UNKNOWN]), ANYTHING, directories)
            if text.here:
                self._move()
                self.analysis.knowledge.is_tainted = True
            return None, None
        return self.run_text(
            text.text,
            directories,
            posix=text.posix or self.posix,
            inner=self.inner if text.here else True,
        )

    def _change(self, changes: Changes, directories: Paths, statement: Statement) -> State:
        """What a builtin does to its shell."""
        self.analysis.doubtful |= changes.doubtful
        for name in changes.doubtful | changes.names:
            self._check_name(name)
        self.analysis.exported |= changes.exports
        if changes.taints:
            self.analysis.knowledge.is_tainted = True
        state: State = (directories, directories)
        for text in changes.texts:
            after = self._text(text, directories, statement.text)
            state = self._later(after, directories) if changes.is_later else after
        if changes.ends and not self.analysis.knowledge.functions & {"exit"}:
            return NOTHING, NOTHING
        if changes.moves:
            self._move()
            return self._moved(changes.target, directories), directories
        return state

    def _later(self, after: State, directories: Paths) -> State:
        """Where the shell may be once a text may be run at any time, as a trap is."""
        ends = either(after)
        stays = ends is not None and directories is not None and ends <= directories
        where = directories if stays else None
        return where, where

    def _move(self) -> None:
        if not self.inner:
            self.analysis.moves = True

    def _moved(self, target: Word | None, directories: Paths) -> Paths:
        if target is None or self.analysis.knowledge.is_tainted:
            return None
        if target.text is None or target.text.startswith("-"):
            return None
        if target.text == "":
            return directories
        if target.text.startswith("/"):
            return frozenset((joined("/", target.text),))
        if directories is None:
            return None
        return frozenset(joined(directory, target.text) for directory in directories)

    def _effect(self, name: str, arguments: list[Word], directories: Paths) -> Effect:
        if name == "git":
            return git.effect(arguments, directories)
        if name == "sed":
            return sed.effect(arguments)
        special = SPECIAL.get(name)
        if special is not None:
            if name == "[":
                if not arguments or arguments[-1].text != "]":
                    return ANYTHING
                arguments = arguments[:-1]
            return special(arguments)
        program = PROGRAMS.get(name)
        if program is not None:
            return program.effect(arguments)
        writer = WRITERS.get(name)
        return writer(arguments) if writer is not None else ANYTHING

    # ─── the result ─────────────────────────────────────────────────────────────────

    def _add(
        self, statement: Statement, effect: Effect, directories: Paths, *, is_sure: bool = True
    ) -> None:
        reads = resolved(effect.reads, directories) if effect.reads is not None else None
        writes = resolved(effect.writes, directories) if effect.writes is not None else None
        lists = resolved(effect.lists, directories) if reads is not None else NOTHING
        opened = [item.target for item in statement.redirects if item.reads and item.target]
        written = [item for item in statement.redirects if item.writes]
        targets = [item.target for item in written if item.target is not None]
        contents = resolved([*_contents(effect), *opened], directories) or NOTHING
        changed = resolved(targets, directories)
        alters = [item.name for item in statement.assignments]
        simple = Simple(
            tuple(word.text for word in statement.words),
            statement.text,
            tuple(alters),
            union((reads, resolved(opened, directories))),
            union((writes, changed)),
            effect.is_read_only
            and not (changed is None or changed)
            and not _opens_network(statement.redirects),
            (lists or NOTHING) - contents,
            is_sure,
            changed,
            may=_may(statement, effect, directories),
            is_writer=_is_writer(statement),
        )
        if simple.words and _endangers(simple):
            simple = replace(simple, is_read_only=False)
            if not all(map(is_own_variable, simple.assignments)) and simple.words[0] != "read":
                may = _may(statement, ANYTHING, directories)
                simple = replace(simple, reads=None, writes=None, lists=NOTHING, may=may)
        self.analysis.add(simple)
        self.analysis.spell(spelt(statement.words), directories)

    # ─── reading words ──────────────────────────────────────────────────────────────

    def _slice(self, node: Node) -> str:
        return self.source.text[node.start_byte : node.end_byte]

    @property
    def _home(self) -> str | None:
        return None if self.analysis.knowledge.is_tainted else self.analysis.home

    def _reader(self, directories: Paths) -> Reader:
        self.here = directories

        def variable(name: str) -> str | None:
            if self.analysis.knowledge.is_tainted:
                return None
            if name == "HOME":
                return self.analysis.home
            if name == "PWD" and directories is not None and len(directories) == 1:
                return next(iter(directories)).encode("utf-8", "surrogateescape").decode("latin-1")
            return None

        def visit(node: Node) -> None:
            opening, closing = self._slice(node.children[0]), self._slice(node.children[-1])
            if (opening, closing) not in _SUBSTITUTIONS:
                raise NotUnderstood("a substitution that is not understood")
            children = parts(self.source.text, node)
            inner = [child for child in children[1:-1]]
            if [child.type for child in inner] == ["file_redirect"]:
                self._file_contents(inner[0], directories)
                return
            self.apart_sequence(inner, directories)

        return Reader(
            self.source.text,
            self.source.nodes,
            visit,
            variable,
            self.analysis.knowledge.numbers.__contains__,
            self._used,
            self._given,
            self.posix,
            self.analysis.knowledge.is_tainted,
        )

    def _file_contents(self, node: Node, directories: Paths) -> None:
        """`$(< file)`."""
        statement = self._statement(
            node.start_byte, Tail(node.start_byte, node.end_byte), directories
        )
        self._add(statement, HARMLESS, directories)

    def _given(self, name: str) -> None:
        self._check_name(name)
        self.analysis.doubtful.add(name)

    def _used(self, name: str) -> None:
        if name.isdigit():
            raise NotUnderstood("arithmetic over an argument that can't be known")
        self._check_name(name)  # it may assign
        self.analysis.evaluated.add(name)


def _is_time(words: Sequence[Word], nesting: int) -> bool:
    """`time` as the shell's own word, which runs the command in the shell itself."""
    return not nesting and words[0].is_plain and words[0].text == "time"


def replace_words(statement: Statement, words: Sequence[Word]) -> Statement:
    """The statement with the words of a command that it runs."""
    if statement.words is words:
        return statement
    return Statement(
        statement.text,
        statement.assignments,
        list(words),
        statement.redirects,
        None,
        statement.stdin,
    )


def _may(statement: Statement, effect: Effect, directories: Paths) -> May:
    """What a command may touch, beside what it is known to."""
    # Where it can't be known where it runs, rules that hold in any directory still speak.
    where = frozenset((MOUNT,)) if directories is None else directories
    arguments = [word for word in statement.words[1:] if word.text is not None or word.glob]
    changes = effect.writes is None and _is_writer(statement)
    reads = arguments if effect.reads is None else _contents(effect)
    writes = arguments if changes else list(effect.writes or ())
    targets = [item for item in statement.redirects if item.target is not None]
    reads = [*reads, *(item.target for item in targets if item.target and item.reads)]
    writes = [*writes, *(item.target for item in targets if item.target and item.writes)]
    is_lost = directories is None
    return May(
        _paths(reads, where) if effect.reads is None or is_lost else NOTHING,
        _paths(writes, where) if changes or is_lost else NOTHING,
        _globs(reads, where),
        _globs([_as_glob(word) for word in writes], where),
    )


def _as_glob(word: Word) -> Word:
    """What is written may be a directory: then it is a pattern of all that is below."""
    if word.text is None:
        return word
    return replace(word, glob=re.sub(r"([\\*?\[\]])", r"\\\1", word.text))


def _paths(words: Sequence[Word], directories: frozenset[str]) -> frozenset[str]:
    return resolved([known(text) for text in spelt(words)], directories) or NOTHING


def _is_writer(statement: Statement) -> bool:
    """Its program is one that changes what its operands name."""
    name = program_of([word.text for word in statement.words])
    return name in WRITERS or name == "sed"


_MOST_SPELT = 2000
"""Words of one command that are taken for paths."""


def spelt(words: Sequence[Word]) -> list[str]:
    """Paths that words may name: they themselves, and what stands in them behind a mark."""
    found: dict[str, None] = {}
    for word in words[:_MOST_SPELT]:
        text = word.text or ""
        if not text or len(text) > MAX_PATH or "\n" in text:
            continue
        if not text.startswith("-"):
            found[text] = None
        elif not text.startswith("--"):
            found[text[2:]] = None  # `-f.env`
        for mark in "=@":
            found[text.partition(mark)[2]] = None
    return [text for text in found if text]


def _globs(words: Sequence[Word], directories: frozenset[str]) -> frozenset[str]:
    globs = [known(word.glob) for word in words[:_MOST_SPELT] if word.glob]
    return resolved(globs, directories) or NOTHING


def _contents(effect: Effect) -> list[Word]:
    return [word for word in effect.reads or () if word not in effect.lists]


def _opens_network(redirects: Sequence[Redirect]) -> bool:
    return any(
        (item.reads or item.writes)
        and item.target is not None
        and (item.target.text is None or item.target.text.startswith(("/dev/tcp", "/dev/udp")))
        for item in redirects
    )


def _endangers(simple: Simple) -> bool:
    """Its assignments may change what it does."""
    if simple.words[0] == "read":
        return bool(set(simple.alters) - {"IFS"})
    if simple.words[0] in DECLARATIONS:
        return not all(is_own_variable(name) for name in simple.assignments)
    return bool(simple.alters)


_SUBSTITUTIONS = (("$(", ")"), ("`", "`"), ("<(", ")"), (">(", ")"))
