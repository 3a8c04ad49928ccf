"""From the tree to the commands: what follows what, in which directory, in which shell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from executor.shell.analysis import (
    MAX_READINGS,
    MAX_SHELLS,
    Analysis,
    Knowledge,
    State,
    Tail,
    either,
    met,
)
from executor.shell.commands import Commands, spelt
from executor.shell.effects import HARMLESS
from executor.shell.programs import SPECIAL, may_evaluate
from executor.shell.statements import Statement
from executor.shell.syntax import MAX_BYTES, MAX_NODES, RESERVED, parse, parts, skip
from executor.shell.values import NOTHING, NotUnderstood, Paths, Word, known
from executor.shell.words import Node, Reader, finished


def analysed(text: str, directory: str, home: str | None, *, posix: bool) -> Analysis:
    """The line, read until nothing new is found."""
    knowledge = Knowledge()
    for _ in range(MAX_READINGS):
        before = knowledge.size()
        analysis = Analysis(knowledge, home)
        _run_text(analysis, text, frozenset((directory,)), depth=0, posix=posix, inner=False)
        analysis.finish()
        if knowledge.size() == before:
            return analysis
    analysis.blame(NotUnderstood("its functions, loops and variables are too involved"))
    return analysis


def _run_text(
    analysis: Analysis, text: str, directories: Paths, *, depth: int, posix: bool, inner: bool
) -> State:
    """A text that a shell is given."""
    if depth > MAX_SHELLS:
        analysis.blame(NotUnderstood("shells are nested too deep"))
        return None, None
    analysis.characters += len(text)
    try:
        if analysis.characters > 2 * MAX_BYTES:
            raise NotUnderstood("its texts within texts are too long")
        source = parse(text, MAX_NODES - analysis.size)
        analysis.size += source.size
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


_SETS_KNOWN = re.compile(
    r"(?<!\$)(?<!\$\{)\b(?:HOME|PWD|OLDPWD|CDPATH|IFS(?!=[^\s;&|]*\s+read\b))\b"
)


@dataclass(slots=True)
class Shell(Commands):
    """One shell over one text: everything that is around its simple commands."""

    def run_text(self, text: str, directories: Paths, *, posix: bool, inner: bool) -> State:
        """A text that another shell is given, or this one again."""
        return _run_text(
            self.analysis, text, directories, depth=self.depth + 1, posix=posix, inner=inner
        )

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
            at = either(state)
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

    def apart_sequence(self, children: Sequence[Node], directories: Paths) -> None:
        """Commands in a shell of their own."""
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
            return after[0], met(failed, after[1])
        return met(ok, after[0]), after[1]

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
        self.apart_sequence(self._within(node, "(", ")"), directories)
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
                        at = met(ok, failed)
                    else:
                        ends.append(met(ok, failed))
                group = []
                is_condition = child.type in ("if", "elif")
            elif child.type in ("elif_clause", "else_clause"):
                if group:
                    ends.append(either(self.sequence(group, at)))
                    group = []
                ends.append(self._branches(child, at))
            else:
                group.append(child)
        if group:
            ends.append(either(self.sequence(group, at)))
        result = at
        for end in ends:
            result = met(result, end)
        return result

    def _while(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        def turn(at: Paths) -> Paths:
            *condition, body = parts(self.source.text, node)
            if condition[0].type not in ("while", "until"):
                raise NotUnderstood("a loop that is not understood")
            at = either(self.sequence(condition[1:], at))
            return met(at, self._body(body, at))

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
            self.analysis.spell(spelt(words), directories)
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
            return either(self.sequence(self._within(node, "do", "done"), directories))
        if node.type == "compound_statement":
            return either(self._group(node, directories, None))
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
            after = met(after, self._case_item(child, after))
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
            if end != pattern.end_byte or self._touches(pattern) or scanned.literal == "esac":
                raise NotUnderstood("a case that is not understood")
        return either(self.sequence(children[closing + 1 :], directories))

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
        if title in RESERVED or (self.posix and "function" in head):
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

    def _simple(self, node: Node, directories: Paths, tail: Tail | None) -> State:
        if node.type not in _SIMPLE:
            raise NotUnderstood(f"a {node.type.replace('_', ' ')} where a command is expected")
        start = node.start_byte
        end = tail if tail is not None else Tail(start, node.end_byte)
        statement = self._statement(start, end, directories)
        return self._execute(statement, directories)

    # ─── [[ ]] ──────────────────────────────────────────────────────────────────────

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
        if may_evaluate(words):
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
