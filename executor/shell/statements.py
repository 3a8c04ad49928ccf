"""One simple command: its text → assignments, words and redirects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from executor.shell.syntax import Source
from executor.shell.values import NotUnderstood, Word, known
from executor.shell.words import ASSIGNMENT, BLANK, Node, Reader, finished

_REDIRECT = re.compile(r"(?:&>>|&>|(?:\d+)?(?:<<<|<<-|<<|<>|<&|>>|>\||>&|<(?!\()|>(?!\()))")
_JOINED = re.compile(r"[\w+[\]]*\\\n", re.ASCII)
"""A word that is joined by the shell before it looks whether it is reserved or assigns."""
_SUBSCRIPTED = re.compile(r"[A-Za-z_]\w*\[", re.ASCII)
_NAMED_DESCRIPTOR = re.compile(r"\{[A-Za-z_]\w*\}(?=[<>])", re.ASCII)
_EXPANDED = re.compile(r"[$`\\'\"*?\[~{]")
_BASH_ONLY = frozenset(("&>", "&>>", "<<<"))


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where a stream of a command goes or comes from.

    Attributes:
        operator: as written, without the descriptor.
        target: the file; for `<<<` the text. None = a here-document.
    """

    operator: str
    target: Word | None

    @property
    def reads(self) -> bool:
        """It opens its target for reading."""
        return self.operator in ("<", "<>")

    @property
    def writes(self) -> bool:
        """It opens its target for writing."""
        if self.operator in (">&", "<&"):
            text = self.target.text if self.target is not None else None
            if text is not None and re.fullmatch(r"\d+-?|-", text):
                return False
            return self.operator == ">&" or text is None
        return self.operator in (">", ">>", ">|", "&>", "&>>", "<>")


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name=value` before a command, or alone."""

    name: str
    value: Word


@dataclass(slots=True)
class Statement:
    """A simple command as it was read.

    Attributes:
        text: as written.
        assignments: what stands before it.
        words: the program and its arguments.
        redirects: in order.
        delimiter: of its here-document, with `-` or without, quoted or not; None = it has none.
        stdin: what it is given to read; None = not known.
    """

    text: str
    assignments: list[Assignment] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    delimiter: Delimiter | None = None
    stdin: str | None = None


@dataclass(frozen=True, slots=True)
class Delimiter:
    """What ends a here-document."""

    at: int
    text: str
    is_quoted: bool
    strips_tabs: bool


def read_statement(
    source: Source, reader: Reader, start: int, end: int, home: str | None
) -> Statement:
    """The simple command in this part of the text.

    Args:
        source: of the text.
        reader: of its words; visits substitutions as they come.
        start, end: where it stands, a here-document's text not included.
        home: where `~` leads.

    Raises:
        NotUnderstood: the part is not one simple command.
    """
    text = source.text
    shown = text[start:end].strip()
    statement = Statement(shown.encode("latin-1").decode("utf-8", "surrogateescape"))
    at = start
    while True:
        match = BLANK.match(text, at, end)
        if match is not None:
            if not match[0].replace("\\\n", "") and start < at and match.end() < end:
                raise NotUnderstood("a line is continued within a word")
            at = match.end()
        if at >= end:
            return statement
        at = _token(statement, reader, text, at, end, home)


def _token(
    statement: Statement, reader: Reader, text: str, at: int, end: int, home: str | None
) -> int:
    match = _REDIRECT.match(text, at, end)
    if match is not None:
        return _redirect(statement, reader, text, at, end, home)
    if text[at] == "#":
        raise NotUnderstood("a comment within a command")
    if _NAMED_DESCRIPTOR.match(text, at, end):
        raise NotUnderstood("a redirect that names its descriptor by a variable")
    scanned, stop = reader.word(at, end)
    if stop == at:
        raise NotUnderstood(f"{text[at]!r} stands where a word is expected")
    if stop < end and text[stop] in "<>" and text.endswith("\\\n", at, stop):
        raise NotUnderstood("a line is continued before a redirect")
    if _JOINED.match(text, at, stop):
        raise NotUnderstood("a line is continued within a word")
    match = ASSIGNMENT.match(text, at, stop)
    if match is None and not statement.words and _SUBSCRIPTED.match(text, at, stop):
        raise NotUnderstood("a subscript that is evaluated as it runs")
    declares = bool(statement.words) and statement.words[0].text in DECLARATIONS
    if match is None or (statement.words and not declares):
        if match is not None and text[match.end() : match.end() + 1] == "(":
            raise NotUnderstood("an array where none can stand")
        statement.words += finished(scanned, home, has_braces=not reader.posix)
        return stop
    if reader.posix and (match[2] is not None or "+" in match[0]):
        raise NotUnderstood(f"sh does not know the assignment {match[0]}")
    if match[2] is not None and not match[2].isdigit():
        reader.used(match[2])
    scanned.units = scanned.units[match.end() - at :]
    value = finished(scanned, home, expand=False)[0]
    statement.assignments.append(Assignment(match[1], value))
    if declares:
        whole = match[0] + value.text if value.text is not None else None
        statement.words.append(Word(whole, match[0], is_number=value.is_number))
    return stop


DECLARATIONS = frozenset(("export", "declare", "typeset", "local", "readonly"))
"""Builtins whose operands are read as assignments."""


def _redirect(
    statement: Statement, reader: Reader, text: str, at: int, end: int, home: str | None
) -> int:
    match = _REDIRECT.match(text, at, end)
    assert match is not None
    operator = match[0].lstrip("0123456789")
    if reader.posix and operator in _BASH_ONLY:
        raise NotUnderstood(f"sh does not know {operator}")
    blank = BLANK.match(text, match.end(), end)
    at = blank.end() if blank is not None else match.end()
    if blank is not None and "\n" in blank[0]:
        raise NotUnderstood("a line is continued within a redirect")
    if operator in (">&", "<&") and text.startswith("-", at, end):
        # A token of its own, whatever stands behind it.
        statement.redirects.append(Redirect(operator, known("-")))
        return at + 1
    scanned, stop = reader.word(at, end)
    if stop == at or text[at] == "#":
        raise NotUnderstood("a redirect without a target")
    if operator in ("<<", "<<-"):
        if statement.delimiter is not None:
            raise NotUnderstood("two here-documents in one command")
        raw = text[at:stop]
        if re.search(r"[$`<>]|\\\n", raw) or "\n" in raw:
            raise NotUnderstood("a here-document whose delimiter is no plain word")
        delimiter = scanned.literal
        quoted = any(mark in raw for mark in "\\'\"")
        statement.delimiter = Delimiter(match.start(), delimiter, quoted, operator == "<<-")
        statement.redirects.append(Redirect(operator, None))
        return stop
    words = finished(scanned, home, expand=operator != "<<<")
    target = words[0] if len(words) == 1 else Word(None, splits=True)
    if operator in (">&", "<&") and (target.text is None or _EXPANDED.search(target.text)):
        raise NotUnderstood(f"what stands behind {operator} is expanded twice by bash")
    if operator == "<<<":
        statement.stdin = target.text
    statement.redirects.append(Redirect(operator, target))
    return stop


def here_document(
    source: Source, reader: Reader, delimiter: Delimiter, node: Node
) -> tuple[str | None, int]:
    """The text of a here-document and where the line before it ends.

    The lines are looked for as the shell does, and have to be those of the parser.

    Raises:
        NotUnderstood: they are not.
    """
    text = source.text
    line_end = text.find("\n", delimiter.at)
    start = at = line_end + 1
    while line_end >= 0 and at < len(text):
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        line = text[at:stop]
        if (line.lstrip("\t") if delimiter.strips_tabs else line) == delimiter.text:
            ends = [child.end_byte for child in node.children if child.type == "heredoc_end"]
            if ends != [stop]:
                break
            if delimiter.is_quoted:
                return text[start:at].encode("latin-1").decode("utf-8", "surrogateescape"), line_end
            body = reader.body(start, at)
            if body is not None:
                body = body.encode("latin-1").decode("utf-8", "surrogateescape")
            return body, line_end
        at = stop + 1
    raise NotUnderstood("a here-document that the shell reads in another way than the parser")
