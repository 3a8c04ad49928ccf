"""From the tree to the commands: what follows what, in which directory, in which shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from executor.shell import git, sed
from executor.shell.builtins import BUILTINS, Changes
from executor.shell.effects import ANYTHING, HARMLESS, Argv, Effect, Text
from executor.shell.programs import PROGRAMS, SPECIAL, WRITERS
from executor.shell.statements import (
    DECLARATIONS,
    Assignment,
    Redirect,
    Statement,
    here_document,
    read_statement,
)
from executor.shell.syntax import Source, parse, parts, skip
from executor.shell.values import (
    NOTHING,
    SHELL_VARIABLES,
    UNKNOWN,
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
from executor.shell.words import Node, Reader, Scanned, finished
from executor.shell.wrappers import SHELLS, wrapper_of

MAX_COMMANDS = 1_000
MAX_SHELLS = 12
"""How deep shells may be nested, one giving a text to the next."""
MAX_DIRECTORIES = 8

State = tuple[Paths, Paths]
"""Where the shell may be after a command that succeeded, and after one that failed. An
empty set = it does not get there."""


@dataclass(slots=True)
class Knowledge:
    """What one reading of the line finds out and an earlier part of it has to know.

    The line is read again until nothing new is found.

    Attributes:
        functions: names of all functions that are defined.
        moving: those of which the body may change the directory.
        loops: where loops begin that do so, by text and offset.
        numbers: variables that are given nothing but numbers.
        is_tainted: variables are changed that otherwise are known: HOME and PWD.
    """

    functions: set[str] = field(default_factory=set)
    moving: set[str] = field(default_factory=set)
    loops: set[tuple[str, int]] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    is_tainted: bool = False

    def size(self) -> int:
        """Grows with each thing that is found."""
        sets = (self.functions, self.moving, self.loops, self.numbers)
        return sum(map(len, sets)) + self.is_tainted


@dataclass(slots=True)
class Analysis:
    """One reading of a line, over all its nested texts.

    Attributes:
        knowledge: of this reading and the ones before.
        home: where `~` leads at the start.
        commands: found, in order.
        fault: the first thing that is not understood.
        moves: the directory of the outermost shell may change.
        evaluated: variables that arithmetic evaluates.
        assigned: variables that are given a value.
        doubtful: variables that hold what may be any text.
    """

    knowledge: Knowledge
    home: str | None
    commands: list[Simple] = field(default_factory=list)
    fault: str | None = None
    moves: bool = False
    evaluated: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)

    def add(self, simple: Simple) -> None:
        """Take up a command.

        Raises:
            NotUnderstood: there are too many.
        """
        if len(self.commands) >= MAX_COMMANDS:
            raise NotUnderstood(f"it has more than {MAX_COMMANDS} commands")
        self.commands.append(simple)

    def blame(self, fault: NotUnderstood) -> None:
        """Remember what is not understood; the first is told."""
        if self.fault is None:
            self.fault = str(fault)

    def finish(self) -> None:
        """What can be said only at the end."""
        self.knowledge.numbers |= self.assigned - self.doubtful
        bad = sorted((self.evaluated | self.knowledge.numbers) & self.doubtful)
        if bad:
            self.blame(
                NotUnderstood(
                    f"arithmetic evaluates {bad[0]}, whose text can't be known and may run commands"
                )
            )


def analysed(text: str, directory: str, home: str | None) -> Analysis:
    """The line, read until nothing new is found."""
    knowledge = Knowledge()
    while True:
        before = knowledge.size()
        analysis = Analysis(knowledge, home)
        _run_text(analysis, text, frozenset((directory,)), depth=0, posix=False, inner=False)
        analysis.finish()
        if knowledge.size() == before:
            return analysis
        if before > 50:
            analysis.blame(NotUnderstood("its functions and loops are too involved"))
            return analysis


def _run_text(
    analysis: Analysis, text: str, directories: Paths, *, depth: int, posix: bool, inner: bool
) -> State:
    """A text that a shell is given."""
    if depth > MAX_SHELLS:
        analysis.blame(NotUnderstood("shells are nested too deep"))
        return None, None
    try:
        source = parse(text)
    except NotUnderstood as fault:
        analysis.blame(fault)
        return None, None
    analysis.knowledge.functions |= source.functions
    if _SETS_KNOWN.search(text):
        analysis.knowledge.is_tainted = True
    shell = Shell(analysis, source, depth, posix, inner)
    try:
        return shell.sequence(parts(source.text, source.root, 0, len(source.text)), directories)
    except NotUnderstood as fault:
        analysis.blame(fault)
        return None, None


_SETS_KNOWN = re.compile(r"(?<!\$)(?<!\$\{)\b(?:HOME|PWD|OLDPWD|CDPATH)\b")


@dataclass(slots=True)
class Shell:
    """One shell over one text.

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

    # ─── many commands ──────────────────────────────────────────────────────────────

    def sequence(self, children: Sequence[Node], directories: Paths) -> State:
        """Commands one after the other, with `;`, `&` and line ends between."""
        state: State = (directories, NOTHING)
        previous: Node | None = None
        for index, child in enumerate(children):
            if not child.is_named:
                if child.type not in (";", "&", "\n", ";;", ";&", ";;&"):
                    raise NotUnderstood(f"{child.type!r} where a command is expected")
                previous = None
                continue
            if previous is not None and "\n" not in self._between(previous, child):
                raise NotUnderstood("two commands with nothing between them")
            previous = child
            following = children[index + 1] if index + 1 < len(children) else None
            at = _either(state)
            try:
                if following is not None and following.type == "&":
                    self.apart(child, at)
                    state = (at, at)
                else:
                    state = self.run(child, at)
            except NotUnderstood as fault:
                self.analysis.blame(fault)
                state = (None, None)
        return state

    def _between(self, first: Node, second: Node) -> str:
        # A here-document ends with its line.
        return self.source.text[first.end_byte - 1 : second.start_byte]

    def apart(self, node: Node, directories: Paths, tail: Tail | None = None) -> None:
        """A command in a shell of its own: a pipeline's, a background one."""
        inner, self.inner = self.inner, True
        try:
            self.run(node, directories, tail)
        finally:
            self.inner = inner

    def _apart_sequence(self, children: Sequence[Node], directories: Paths) -> None:
        inner, self.inner = self.inner, True
        try:
            self.sequence(children, directories)
        finally:
            self.inner = inner

    def run(self, node: Node, directories: Paths, tail: Tail | None = None) -> State:
        """One statement of any kind.

        Args:
            node: the statement.
            directories: where it may start.
            tail: redirects that the grammar hangs on something larger.
        """
        method = _STATEMENTS.get(node.type)
        if method is not None:
            return method(self, node, directories, tail)
        return self._simple(node, directories, tail)

    # ─── lists and pipelines ────────────────────────────────────────────────────────

    def _list(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        steps: list[tuple[str, Node]] = []
        while node.type == "list":
            left, operator, right = self._three(node)
            steps.append((operator.type, right))
            node = left
        state = self.run(node, directories)
        for index, (operator_type, right) in enumerate(reversed(steps)):
            last = tail if index == len(steps) - 1 else None
            state = self._then(state, operator_type, right, last)
        return state

    def _three(self, node: Node) -> tuple[Node, Node, Node]:
        children = parts(self.source.text, node)
        if len(children) != 3 or children[1].type not in ("&&", "||"):
            raise NotUnderstood("a list of commands that is not understood")
        return children[0], children[1], children[2]

    def _then(self, state: State, operator: str, right: Node, tail: Tail | None = None) -> State:
        ok, failed = state
        after = self.run(right, ok if operator == "&&" else failed, tail)
        if operator == "&&":
            return after[0], _joined(failed, after[1])
        return _joined(ok, after[0]), after[1]

    def _pipeline(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        children = parts(self.source.text, node)
        if children and children[0].type in ("|", "|&"):
            children = children[1:]  # behind a here-document
        for index, child in enumerate(children):
            if index % 2:
                if child.type not in ("|", "|&") or (self.posix and child.type == "|&"):
                    raise NotUnderstood(f"{child.type!r} in a pipeline")
                continue
            self.apart(child, directories, tail if index == len(children) - 1 else None)
        return directories, directories

    def _negated(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        children = parts(self.source.text, node)
        if len(children) != 2 or children[0].type != "!":
            raise NotUnderstood("a negation that is not understood")
        ok, failed = self.run(children[1], directories, tail)
        return failed, ok

    # ─── compound commands ──────────────────────────────────────────────────────────

    def _group(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        text, start, end = self.source.text, node.start_byte, node.end_byte
        if text.startswith("((", start):
            if self.posix or not text.startswith("))", end - 2):
                raise NotUnderstood("(( )) that is not understood")
            self._reader(directories).arithmetic(start + 2, end - 2)
            state: State = (directories, directories)
        else:
            inner = self._within(node, "{", "}")
            state = self.sequence(inner, directories)
        self._redirected(tail, directories)
        return state

    def _subshell(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        if self.source.text.startswith("((", node.start_byte):
            raise NotUnderstood("(( that is no arithmetic")
        self._apart_sequence(self._within(node, "(", ")"), directories)
        self._redirected(tail, directories)
        return directories, directories

    def _within(self, node: Node, opening: str, closing: str) -> list[Node]:
        children = parts(self.source.text, node)
        if (
            len(children) < 2
            or children[0].type != opening
            or children[-1].type != closing
            or children[-1].is_missing
        ):
            raise NotUnderstood("brackets that are not understood")
        return children[1:-1]

    def _if(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        state = self._branches(node, directories)
        self._redirected(tail, directories)
        return state, state

    def _branches(self, node: Node, directories: Paths) -> Paths:
        """Conditions and branches, each from wherever those before it may lead."""
        ends: list[Paths] = []
        at = directories
        group: list[Node] = []
        is_condition = False
        for child in parts(self.source.text, node):
            if child.type in ("if", "elif", "then", "else", "fi"):
                if group:
                    ok, failed = self.sequence(group, at)
                    if is_condition:
                        at = _joined(ok, failed)
                    else:
                        ends.append(_joined(ok, failed))
                group = []
                is_condition = child.type in ("if", "elif")
            elif child.type in ("elif_clause", "else_clause"):
                if group:
                    ends.append(_either(self.sequence(group, at)))
                    group = []
                ends.append(self._branches(child, at))
            else:
                group.append(child)
        if group:
            ends.append(_either(self.sequence(group, at)))
        result = at
        for end in ends:
            result = _joined(result, end)
        return result

    def _while(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        def turn(at: Paths) -> Paths:
            *condition, body = parts(self.source.text, node)
            if condition[0].type not in ("while", "until"):
                raise NotUnderstood("a loop that is not understood")
            at = _either(self.sequence(condition[1:], at))
            return _joined(at, self._body(body, at))

        return self._loop(node, directories, turn, tail)

    def _for(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        *head, body = parts(self.source.text, node)
        types = [child.type for child in head]
        if types[:2] not in (["for", "variable_name"], ["select", "variable_name"]):
            raise NotUnderstood("a loop that is not understood")
        name = self._slice(head[1])
        if "in" in types:
            values = [child for child in head[3:] if child.type not in (";", "\n")]
            words = self._words(values, directories)
            numbers = all(word.is_number or (word.text or "x").isdigit() for word in words)
            if not numbers or types[0] == "select":
                self.analysis.doubtful.add(name)
        else:
            self.analysis.doubtful.add(name)
        self.analysis.assigned.add(name)
        self._check_name(name)
        return self._loop(node, directories, lambda at: self._body(body, at), tail)

    def _words(self, nodes: Sequence[Node], directories: Paths) -> list[Word]:
        """Words of a loop or a case, one node each."""
        found: list[Word] = []
        reader = self._reader(directories)
        for node in nodes:
            scanned, end = reader.word(node.start_byte, node.end_byte)
            if end != node.end_byte or end == node.start_byte or self._touches(node):
                raise NotUnderstood("a word that the shell reads in another way than the parser")
            found += finished(scanned, self._home)
        return found

    def _touches(self, node: Node) -> bool:
        """Whether something stands before it that would be of the same word."""
        before = self.source.text[node.start_byte - 1 : node.start_byte]
        return before not in ("", " ", "\t", "\n", "(", "|", ";", "&", ")")

    def _c_for(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        *head, body = parts(self.source.text, node)
        text = self.source.text
        opening = next((child for child in head if child.type == "(("), None)
        closing = next((child for child in head if child.type == "))"), None)
        if opening is None or closing is None or self.posix:
            raise NotUnderstood("a loop that is not understood")
        at = opening.end_byte
        reader = self._reader(directories)
        for piece in text[at : closing.start_byte].split(";"):
            reader.arithmetic(at, at + len(piece))
            at += len(piece) + 1
        return self._loop(node, directories, lambda start: self._body(body, start), tail)

    def _loop(
        self, node: Node, directories: Paths, turn: Callable[[Paths], Paths], tail: Tail | None
    ) -> State:
        """A loop's later turns begin where the earlier ones ended."""
        key = (self.source.text, node.start_byte)
        start = None if key in self.analysis.knowledge.loops else directories
        after = turn(start)
        if after != start:
            self.analysis.knowledge.loops.add(key)
            after = None
        self._redirected(tail, directories)
        return after, after

    def _body(self, node: Node, directories: Paths) -> Paths:
        if node.type == "do_group":
            return _either(self.sequence(self._within(node, "do", "done"), directories))
        if node.type == "compound_statement":
            return _either(self._group(node, directories, None))
        raise NotUnderstood("a loop that is not understood")

    def _case(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        children = parts(self.source.text, node)
        types = [child.type for child in children]
        if types[0] != "case" or types[-1] != "esac" or "in" not in types:
            raise NotUnderstood("a case that is not understood")
        self._words([child for child in children[1 : types.index("in")]], directories)
        after = directories
        for child in children[types.index("in") + 1 : -1]:
            if child.type != "case_item":
                raise NotUnderstood("a case that is not understood")
            # `;&` falls through: each branch may begin where another ended.
            after = _joined(after, self._case_item(child, after))
        self._redirected(tail, directories)
        return after, after

    def _case_item(self, node: Node, directories: Paths) -> Paths:
        children = parts(self.source.text, node)
        closing = next((n for n, child in enumerate(children) if child.type == ")"), None)
        if closing is None:
            raise NotUnderstood("a case that is not understood")
        patterns = [child for child in children[:closing] if child.type not in ("(", "|")]
        reader = self._reader(directories)
        for pattern in patterns:
            scanned, end = reader.word(pattern.start_byte, pattern.end_byte)
            if end != pattern.end_byte or self._touches(pattern) or scanned.units == _ESAC:
                raise NotUnderstood("a case that is not understood")
        return _either(self.sequence(children[closing + 1 :], directories))

    def _function(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        text = self.source.text
        children = parts(text, node)
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if body is None or not re.fullmatch(r"[\w.:+@-]+", self._slice(name)):
            raise NotUnderstood("a function that is not understood")
        title = self._slice(name)
        head = [child.type for child in children if child.end_byte <= body.start_byte]
        if any(kind not in ("function", "word", "(", ")") for kind in head):
            raise NotUnderstood("a function that is not understood")
        if title in _RESERVED or (self.posix and "function" in head):
            raise NotUnderstood("a function that is not understood")
        inner, moves = self.inner, self.analysis.moves
        self.inner, self.analysis.moves = False, False
        try:
            self.run(body, None)
            if self.analysis.moves:
                self.analysis.knowledge.moving.add(title)
        finally:
            self.inner, self.analysis.moves = inner, moves
        redirects = [child for child in children if child.start_byte >= body.end_byte]
        if redirects:
            self._redirected(self._tail(redirects, body.end_byte, node.end_byte), None)
        self._redirected(tail, None)
        return directories, directories

    # ─── redirects ──────────────────────────────────────────────────────────────────

    def _redirected_statement(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        if tail is not None:
            raise NotUnderstood("redirects that are not understood")
        children = [child for child in node.children if child.end_byte > child.start_byte]
        body = node.child_by_field_name("body")
        redirects = [child for child in children if body is None or child != body]
        start = node.start_byte if body is None else body.end_byte
        tail = self._tail(redirects, start, node.end_byte)
        if body is None:
            state = self._simple(node, directories, tail)
        else:
            if body.start_byte != node.start_byte:
                raise NotUnderstood("redirects that are not understood")
            state = self.run(body, directories, tail)
        if tail.here is None:
            return state
        return self._behind_here(tail, state, directories)

    def _tail(self, redirects: Sequence[Node], start: int, end: int) -> Tail:
        """The part of the text that these redirects take."""
        for node in redirects[:-1]:
            if node.type == "heredoc_redirect":
                raise NotUnderstood("something behind a here-document")
        last = redirects[-1]
        if last.type != "heredoc_redirect":
            return Tail(start, end)
        line_end = self.source.text.find("\n", last.start_byte)
        more = [
            child
            for child in last.children
            if child.type in ("pipeline", "&&", "||") and child.start_byte < line_end
        ]
        stop = more[0].start_byte if more else line_end
        return Tail(start, stop, last, more[0] if more else None, line_end)

    def _behind_here(self, tail: Tail, state: State, directories: Paths) -> State:
        """What stands on the line of a here-document behind it: `cat <<E | sh && ls`."""
        assert tail.here is not None
        after = tail.more
        if after is None:
            return state
        children = list(tail.here.children)
        if after.type == "pipeline":
            skip(self.source.text, after.end_byte, tail.line_end)
            self._here_pipeline(after, directories)
            return directories, directories
        index = children.index(after)
        right = children[index + 1]
        skip(self.source.text, after.end_byte, right.start_byte)
        skip(self.source.text, right.end_byte, tail.line_end)
        return self._then(state, after.type, right)

    def _here_pipeline(self, node: Node, directories: Paths) -> None:
        inner, self.inner = self.inner, True
        try:
            # `| a && cd b` is one pipeline to the grammar: then the shell itself may move.
            if any(child.type == "list" for child in node.children):
                self.inner = inner
            self._pipeline_loosely(node, directories)
        finally:
            self.inner = inner

    def _pipeline_loosely(self, node: Node, directories: Paths) -> None:
        for child in parts(self.source.text, node):
            if child.type in ("|", "|&"):
                continue
            self.run(child, directories)

    def _redirected(self, tail: Tail | None, directories: Paths) -> None:
        """Redirects of a compound command: a command of no words."""
        if tail is None:
            return
        statement = self._statement(tail.start, tail, directories)
        if statement.words or statement.assignments:
            raise NotUnderstood("words behind a compound command")
        self._add(statement, HARMLESS, directories)

    # ─── simple commands ────────────────────────────────────────────────────────────

    def _simple(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        if node.type not in _SIMPLE:
            raise NotUnderstood(f"a {node.type.replace('_', ' ')} where a command is expected")
        start = node.start_byte
        end = tail if tail is not None else Tail(start, node.end_byte)
        statement = self._statement(start, end, directories)
        return self._execute(statement, directories)

    def _statement(self, start: int, tail: Tail, directories: Paths) -> Statement:
        reader = self._reader(directories)
        statement = read_statement(self.source, reader, start, tail.end, self._home)
        if (statement.delimiter is None) != (tail.here is None):
            raise NotUnderstood("a here-document that is not understood")
        if statement.delimiter is not None:
            statement.stdin, _ = here_document(self.source, reader, statement.delimiter, tail.here)
        return statement

    def _double_brackets(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        text = self.source.text
        if not text.startswith("[[", node.start_byte):
            return self._simple(node, directories, tail)
        end = node.end_byte
        closed = re.match(r"\[\[[ \t\n].*[ \t\n]\]\]\Z", text[node.start_byte : end], re.DOTALL)
        if self.posix or closed is None:
            raise NotUnderstood("[[ ]] that is not understood")
        reader = self._reader(directories)
        words = self._test_words(reader, node.start_byte + 2, end - 2)
        if any(word.text in _ARITHMETIC_TESTS for word in words):
            for word in words:
                self._evaluate(word)
        if any(word.text in ("-v", "-R") for word in words):
            if any(word.text is None or "[" in word.text for word in words):
                raise NotUnderstood("a test of a variable whose name can't be known")
        effect = SPECIAL["test"](words)
        shown = text[node.start_byte : end].encode("latin-1").decode("utf-8", "surrogateescape")
        statement = Statement(shown, words=[known("[["), *words, known("]]")])
        self._add(statement, replace(effect, is_read_only=True), directories)
        self._redirected(tail, directories)
        return directories, directories

    def _test_words(self, reader: Reader, at: int, end: int) -> list[Word]:
        text = self.source.text
        words: list[Word] = []
        while at < end:
            match = re.compile(r"(?:[ \t\n]|\\\n)+").match(text, at, end)
            if match is not None:
                at = match.end()
                continue
            match = re.compile(r"&&|\|\||[<>()|;&]").match(text, at, end)
            if match is not None:
                if match[0] in ("|", ";", "&") and "=~" not in [word.text for word in words]:
                    raise NotUnderstood("[[ ]] that is not understood")
                if text[at : at + 2] in ("<(", ">("):
                    raise NotUnderstood("[[ ]] that is not understood")
                words.append(known(match[0]))
                at = match.end()
                continue
            if text[at] == "#":
                raise NotUnderstood("a comment within [[ ]]")
            scanned, stop = reader.word(at, end)
            word = finished(scanned, self._home, expand=False)[0]
            if word.text == "]]" and word.is_plain:
                raise NotUnderstood("[[ ]] that is not understood")
            words.append(replace(word, splits=False) if word.text is None else word)
            at = stop
        return words

    def _evaluate(self, word: Word) -> None:
        """A word that is evaluated as arithmetic."""
        if word.is_number:
            return
        if word.text is None:
            raise NotUnderstood("[[ ]] compares as numbers what can't be known")
        if re.fullmatch(r"[A-Za-z_]\w*", word.text):
            self.analysis.evaluated.add(word.text)
        elif "[" in word.text:
            raise NotUnderstood("[[ ]] compares as numbers what has a subscript")

    def _execute(self, statement: Statement, directories: Paths) -> State:
        for assignment in statement.assignments:
            self._assigned(assignment)
        words = statement.words
        if not words:
            alone = all(is_own_variable(item.name) for item in statement.assignments)
            # What another variable does to later commands can't be told.
            self._add(statement, HARMLESS if alone else ANYTHING, directories)
            return directories, directories
        if words[0].is_plain and words[0].text in _RESERVED:
            raise NotUnderstood(f"{words[0].text!r} is read in another way by the shell")
        return self._argv(statement, words, directories, is_sure=True, nesting=0)

    def _assigned(self, assignment: Assignment) -> None:
        name, value = assignment.name, assignment.value
        self.analysis.assigned.add(name)
        self._check_name(name)
        if not value.is_number and not re.fullmatch(r"-?\d*", value.text or "x"):
            self.analysis.doubtful.add(name)

    def _check_name(self, name: str) -> None:
        if name in SHELL_VARIABLES or name.startswith("BASH_"):
            raise NotUnderstood(f"{name} makes shells run something")

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
        arguments = list(words[1:])
        if name is None or (words[0].text is None):
            self._add(replace_words(statement, words), ANYTHING, directories, is_sure=is_sure)
            return None, None
        changes = BUILTINS[name](arguments, self.posix) if name in BUILTINS else None
        found = wrapper_of(name)
        run = found(arguments) if found is not None else None
        effect = self._effect(name, texts, arguments, directories)
        if changes is not None:
            effect = Effect(
                changes.reads, (), () if changes.is_known else None, changes.is_read_only
            )
        if run is not None and name != "find":
            is_installed = installed_program(texts) is not None
            effect = replace(HARMLESS, is_read_only=run.is_harmless and is_installed)
            if not is_installed or (name in SHELLS and not run.is_harmless):
                effect = ANYTHING
        self._add(replace_words(statement, words), effect, directories, is_sure=is_sure)
        state: State = (directories, directories)
        if changes is not None:
            state = self._change(changes, directories, statement)
        runs = run.runs if run is not None else ()
        if name in SHELLS and run is None:
            runs = (Text(statement.stdin, name != "bash"),)
        for each in runs:
            if isinstance(each, Text):
                self._text(each, directories)
            else:
                where = self._directory(each, directories)
                inner = self._argv(
                    statement,
                    each.words,
                    where,
                    is_sure=is_sure and each.is_sure,
                    nesting=nesting + 1,
                )
                if name in ("command", "builtin", "exec"):
                    state = inner
        if name in self.analysis.knowledge.moving:
            self._move()
            state = (None, None)
        return state

    def _directory(self, argv: Argv, directories: Paths) -> Paths:
        if argv.directory is None:
            return directories
        return resolved((argv.directory,), directories)

    def _text(self, text: Text, directories: Paths) -> State:
        """A text that is run by another shell, or by this one again."""
        if text.text is None:
            self._add(Statement("", words=[UNKNOWN]), ANYTHING, directories)
            if text.here:
                self._move()
                self.analysis.knowledge.is_tainted = True
            return None, None
        return _run_text(
            self.analysis,
            text.text,
            directories,
            depth=self.depth + 1,
            posix=text.posix or self.posix,
            inner=self.inner if text.here else True,
        )

    def _change(self, changes: Changes, directories: Paths, statement: Statement) -> State:
        """What a builtin does to its shell."""
        self.analysis.doubtful |= changes.doubtful
        for name in changes.doubtful:
            self._check_name(name)
        if changes.taints:
            self.analysis.knowledge.is_tainted = True
        state: State = (directories, directories)
        for text in changes.texts:
            state = self._text(text, directories)
        if changes.ends and not self.analysis.knowledge.functions & {"exit"}:
            return NOTHING, NOTHING
        if changes.moves:
            self._move()
            return self._moved(changes.target, directories), directories
        return state

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

    def _effect(
        self, name: str, texts: Sequence[str | None], arguments: list[Word], directories: Paths
    ) -> Effect:
        if installed_program(texts) is None or name in self.analysis.knowledge.functions:
            return ANYTHING
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
        )
        if simple.words and _endangers(simple):
            simple = replace(simple, is_read_only=False)
            if not all(map(is_own_variable, simple.assignments)) and simple.words[0] != "read":
                simple = replace(simple, reads=None, writes=None, lists=NOTHING)
        self.analysis.add(simple)

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
            self._apart_sequence(inner, directories)

        return Reader(
            self.source.text,
            self.source.nodes,
            visit,
            variable,
            self.analysis.knowledge.numbers.__contains__,
            self._used,
            self.analysis.doubtful.add,
            self.posix,
        )

    def _file_contents(self, node: Node, directories: Paths) -> None:
        """`$(< file)`."""
        statement = self._statement(
            node.start_byte, Tail(node.start_byte, node.end_byte), directories
        )
        self._add(statement, HARMLESS, directories)

    def _used(self, name: str) -> None:
        if name.isdigit():
            raise NotUnderstood("arithmetic over an argument that can't be known")
        self.analysis.evaluated.add(name)


@dataclass(frozen=True, slots=True)
class Tail:
    """Where redirects stand.

    Attributes:
        start, end: the part of the text, without what a here-document brings along.
        here: the node of a here-document.
        more: what stands behind a here-document on its line.
        line_end: of that line.
    """

    start: int
    end: int
    here: Node | None = None
    more: Node | None = None
    line_end: int = 0


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


def _contents(effect: Effect) -> list[Word]:
    return [word for word in effect.reads or () if word not in effect.lists]


def _joined(first: Paths, second: Paths) -> Paths:
    both = union((first, second))
    return None if both is not None and len(both) > MAX_DIRECTORIES else both


def _either(state: State) -> Paths:
    return _joined(*state)


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


_RESERVED = frozenset(
    "if then else elif fi case esac for select while until do done in function { } ! [[ ]] coproc".split()
)
_ESAC = [(character, False) for character in "esac"]
_SUBSTITUTIONS = (("$(", ")"), ("`", "`"), ("<(", ")"), (">(", ")"))
_ARITHMETIC_TESTS = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")
_SIMPLE = frozenset(
    (
        *("command", "declaration_command", "unset_command", "variable_assignment"),
        *("variable_assignments", "test_command", "redirected_statement"),
    )
)
_STATEMENTS: dict[str, Callable[[Shell, Node, Paths, Tail | None], State]] = {
    "list": Shell._list,
    "pipeline": Shell._pipeline,
    "negated_command": Shell._negated,
    "compound_statement": Shell._group,
    "subshell": Shell._subshell,
    "if_statement": Shell._if,
    "while_statement": Shell._while,
    "for_statement": Shell._for,
    "c_style_for_statement": Shell._c_for,
    "case_statement": Shell._case,
    "function_definition": Shell._function,
    "redirected_statement": Shell._redirected_statement,
    "test_command": Shell._double_brackets,
}
