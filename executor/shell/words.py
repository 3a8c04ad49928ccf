"""Words of the shell: from the text between two blanks to what a program is given.

tree-sitter says where a command begins and ends and where a substitution does. Within that
the text is read again, character by character, by bash's own rules of quoting: what the two
don't agree on is not understood. That catches the places where the grammar differs from
the shell.

Everything here works on text that is decoded as Latin-1, one character a byte, as the
tree's offsets are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from executor.shell.values import UNKNOWN, NotUnderstood, Word, known

Node: TypeAlias = Any
"""A node of tree-sitter, whose package has no types."""

BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_PLAIN = re.compile(r"[^\s\\'\"$`|&;()<>*?\[\]{}~#!=,]+")
_META = frozenset("|&;()<> \t\n")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[(\w+)\])?\+?=", re.ASCII)
_EXPANSION = re.compile(
    r"\$\{(?:(#)?([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([@*]|\w+|\$[A-Za-z_]\w*)\])?)", re.ASCII
)
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//?[#%]?|\^\^?|,,?|:")
_SEQUENCE = re.compile(r"(?:-?\d{1,9}|[A-Za-z])\.\.(?:-?\d{1,9}|[A-Za-z])(?:\.\.-?\d{1,9})?")
_MOST_ALTERNATIVES = 64
_QUOTES = frozenset("\\'\"$`")
_NUMBERS = frozenset("#?$!-")
_UNKNOWN = frozenset(("", "\0", "\0\0"))

Unit: TypeAlias = tuple[str, bool]
"""A character and whether it was quoted. `""` for the character = something unknown, which
may become several words where it is not quoted. `\\0` = an unknown number; two of them = one
or no word."""


@dataclass(slots=True)
class Scanned:
    """One word as it was read.

    Attributes:
        units: its characters.
        is_plain: no quote, escape or expansion in it.
        whole: the word, if there is nothing in it that the shell looks at; no units then.
    """

    units: list[Unit] = field(default_factory=list)
    is_plain: bool = True
    whole: str | None = None

    @property
    def literal(self) -> str:
        """Its known characters."""
        return self.whole or "".join(text for text, _ in self.units)

    def add(self, text: str, *, quoted: bool) -> None:
        """Append known characters."""
        self.units += [(character, quoted) for character in text]


@dataclass(slots=True)
class Reader:
    """Reads words of one text.

    Attributes:
        source: the text, one character a byte.
        nodes: where substitutions, expansions and arrays begin.
        visit: is given the commands of each substitution, in order.
        variable: value of a variable that is known; None = it is not.
        is_number: whether a variable holds a number or nothing.
        used: is told each name in an arithmetic expression.
        assigned: is told each name that an expansion assigns to.
        posix: as sh reads it, where that differs from bash: not understood.
        splits_numbers: IFS may be digits.
    """

    source: str
    nodes: Mapping[int, Node]
    visit: Callable[[Node], None]
    variable: Callable[[str], str | None]
    is_number: Callable[[str], bool]
    used: Callable[[str], None]
    assigned: Callable[[str], None]
    posix: bool = False
    splits_numbers: bool = False

    # ─── one word ───────────────────────────────────────────────────────────────────

    def word(self, at: int, end: int) -> tuple[Scanned, int]:
        """The word that begins here, and where it ends.

        Raises:
            NotUnderstood: it can't be read for sure.
        """
        match = _PLAIN.match(self.source, at, end)
        if match is not None and (match.end() == end or self.source[match.end()] in " \t\n"):
            return Scanned(whole=match[0]), match.end()
        scanned = Scanned()
        start = at
        while at < end:
            match = _PLAIN.match(self.source, at, end)
            if match is not None:
                scanned.add(match[0], quoted=False)
                at = match.end()
                continue
            character = self.source[at]
            if character in "<>" and self.source[at + 1 : at + 2] == "(":
                at = self._process(scanned, at, end)
            elif character in _META:
                if character == "(" and ASSIGNMENT.fullmatch(self.source, start, at):
                    at = self.array(at, end)
                    if at < end and self.source[at] not in _META:
                        raise NotUnderstood("an array with something behind it")
                    scanned.units.append(("", True))
                break
            elif character in "\\'\"$`":
                at = self._quoting(scanned, at, end)
            else:
                # A tilde counts at the start only, and none of its name may be quoted.
                begins = at == start or self.source[at - 1] == "="
                is_literal = character == "~" and not (
                    begins and self.source[at + 1 : at + 2] not in _QUOTES
                )
                scanned.add(character, quoted=is_literal)
                at += 1
        return scanned, at

    def _quoting(self, scanned: Scanned, at: int, end: int) -> int:
        character = self.source[at]
        scanned.is_plain = False
        if character == "\\":
            if at + 1 >= end:
                raise NotUnderstood("a backslash stands at the end")
            if self.source[at + 1] != "\n":
                scanned.add(self.source[at + 1], quoted=True)
            return at + 2
        if character == "'":
            close = self.source.find("'", at + 1, end)
            if close < 0:
                raise NotUnderstood("a quote is not closed")
            scanned.add(self.source[at + 1 : close], quoted=True)
            return close + 1
        if character == '"':
            return self._double(scanned, at + 1, end)
        if character == "`":
            return self._backticks(scanned, at, quoted=False)
        return self._dollar(scanned, at, end, quoted=False)

    def _double(self, scanned: Scanned, at: int, end: int) -> int:
        """From behind a double quote to behind the next."""
        while at < end:
            character = self.source[at]
            if character == '"':
                return at + 1
            if character == "\\":
                following = self.source[at + 1 : at + 2]
                if following in ("$", "`", '"', "\\"):
                    scanned.add(following, quoted=True)
                elif following != "\n":
                    scanned.add("\\" + following, quoted=True)
                at += 2
            elif character == "`":
                at = self._backticks(scanned, at, quoted=True)
            elif character == "$":
                at = self._dollar(scanned, at, end, quoted=True)
            else:
                scanned.add(character, quoted=True)
                at += 1
        raise NotUnderstood("a double quote is not closed")

    def body(self, at: int, end: int) -> str | None:
        """A here-document whose delimiter was not quoted; its text, if that is known."""
        scanned = Scanned()
        while at < end:
            character = self.source[at]
            if character == "\\":
                following = self.source[at + 1 : at + 2]
                if following == "\n":
                    raise NotUnderstood("a here-document joins lines by a backslash")
                if following in ("$", "`", "\\"):
                    scanned.add(following, quoted=True)
                else:
                    scanned.add("\\" + following, quoted=True)
                at += 2
            elif character == "`":
                at = self._backticks(scanned, at, quoted=True)
            elif character == "$":
                at = self._dollar(scanned, at, end, quoted=True, here=True)
            else:
                scanned.add(character, quoted=True)
                at += 1
        texts = [text for text, _ in scanned.units]
        return None if not _UNKNOWN.isdisjoint(texts) else "".join(texts)

    # ─── what begins with a dollar ──────────────────────────────────────────────────

    def _dollar(
        self, scanned: Scanned, at: int, end: int, *, quoted: bool, here: bool = False
    ) -> int:
        source = self.source
        following = source[at + 1 : at + 2] if at + 1 < end else ""
        if following == "(":
            return self._substitution(scanned, at, end, quoted=quoted)
        if following == "{":
            return self._expansion(scanned, at, end, quoted=quoted)
        if following == "[":
            raise NotUnderstood("$[ ] is an old form of arithmetic; write $(( ))")
        if not quoted and following in ("'", '"'):
            return self._special_quote(scanned, at, end, following)
        match = _NAME.match(source, at + 1, end)
        if match is not None:
            if not quoted and source[match.end() : match.end() + 1] in ("{", ",", "}"):
                # Braces come first: `$x{a,b}` is `$xa $xb`, and `{$x,y}z` is `$xz yz`.
                scanned.units.append(("", False))
                return match.end()
            self._value(scanned, match[0], quoted=quoted)
            return match.end()
        if following and (following in "@*#?$!-" or following.isdigit()):
            scanned.units.append(self._parameter(following, quoted=quoted))
            return at + 2
        if following == "\\" and source[at + 2 : at + 3] == "\n":
            raise NotUnderstood("a line is continued within an expansion")
        scanned.add("$", quoted=quoted)
        return at + 1

    def _number(self, unit: str, *, quoted: bool) -> Unit:
        return ("", False) if self.splits_numbers and not quoted else (unit, quoted)

    def _parameter(self, name: str, *, quoted: bool) -> Unit:
        if name in _NUMBERS and name != "-":
            return self._number("\0", quoted=quoted)
        return ("", quoted and name != "@")

    def _special_quote(self, scanned: Scanned, at: int, end: int, quote: str) -> int:
        if self.posix:
            raise NotUnderstood(f"sh does not know $ before {quote}")
        if quote == '"':
            return self._double(scanned, at + 2, end)
        match = _ANSI.match(self.source, at, end)
        if match is None:
            raise NotUnderstood("a quote is not closed")
        scanned.add(_ANSI_ESCAPE.sub(_ansi, match[1]), quoted=True)
        return match.end()

    def _value(self, scanned: Scanned, name: str, *, quoted: bool) -> None:
        value = self.variable(name)
        if value is None and self.is_number(name):
            scanned.units.append(self._number("\0" if quoted else "\0\0", quoted=quoted))
        elif value is None or (not quoted and re.search(r"[\s*?\[\\]", value)):
            scanned.units.append(("", quoted))
        else:
            scanned.add(value, quoted=True)

    def _substitution(self, scanned: Scanned, at: int, end: int, *, quoted: bool) -> int:
        node = self._node(at, end, ("command_substitution", "arithmetic_expansion"))
        if node.type == "arithmetic_expansion":
            if self.source[at : at + 3] != "$((" or self.source[node.end_byte - 2] != ")":
                raise NotUnderstood("an arithmetic expansion of another form than $(( ))")
            self.arithmetic(at + 3, node.end_byte - 2)
            scanned.units.append(self._number("\0", quoted=quoted))
        else:
            self.visit(node)
            scanned.units.append(("", quoted))
        return int(node.end_byte)

    def _backticks(self, scanned: Scanned, at: int, *, quoted: bool) -> int:
        node = self._node(at, len(self.source), ("command_substitution",))
        if "\\" in self.source[at : node.end_byte] or self.source[node.end_byte - 1] != "`":
            raise NotUnderstood("backticks with a backslash in them; write $( )")
        if "`" in self.source[at + 1 : node.end_byte - 1]:
            raise NotUnderstood("backticks within backticks; write $( )")
        self.visit(node)
        scanned.units.append(("", quoted))
        return int(node.end_byte)

    def _process(self, scanned: Scanned, at: int, end: int) -> int:
        if self.posix:
            raise NotUnderstood("sh does not know <( )")
        node = self._node(at, end, ("process_substitution",))
        self.visit(node)
        scanned.is_plain = False
        scanned.add("/dev/fd/", quoted=True)
        scanned.units.append(("\0", True))
        return int(node.end_byte)

    def _node(self, at: int, end: int, types: tuple[str, ...]) -> Node:
        node = self.nodes.get(at)
        if node is None or node.type not in types or node.end_byte > end:
            raise NotUnderstood("a substitution that can't be told from text")
        return node

    # ─── ${…} and arithmetic ────────────────────────────────────────────────────────

    def _expansion(self, scanned: Scanned, at: int, end: int, *, quoted: bool) -> int:
        node = self._node(at, end, ("expansion",))
        close = int(node.end_byte) - 1
        match = _EXPANSION.match(self.source, at, close)
        if match is None or self.source[close] != "}":
            raise NotUnderstood("an expansion ${ } of a form that is not known")
        length, name, index = match.groups()
        if index not in (None, "@", "*"):
            self._index(index.lstrip("$"))
        at = match.end()
        if at == close and not length:
            if index is None and _NAME.fullmatch(name):
                self._value(scanned, name, quoted=quoted)
            else:
                many = index == "@"
                scanned.units.append(("", False) if many else self._parameter(name, quoted=quoted))
            return close + 1
        if length and at != close:
            raise NotUnderstood("an expansion ${# } of a form that is not known")
        scanned.units.append(
            self._number("\0", quoted=quoted) if length else ("", quoted and index != "@")
        )
        if name == "@":
            scanned.units[-1] = ("", False)
        if not length:
            self._operand(name, at, close, quoted=quoted)
        return close + 1

    def _index(self, text: str) -> None:
        if not text.isdigit():
            self.used(text)

    def _operand(self, name: str, at: int, close: int, *, quoted: bool) -> None:
        """What stands behind the name in `${name…}`: an operator and text."""
        match = _OPERATOR.match(self.source, at, close)
        if match is None:
            raise NotUnderstood("an expansion ${ } of a form that is not known")
        if match[0] == ":":
            self.arithmetic(match.end(), close)
            return
        if match[0] in ("=", ":="):
            self.assigned(name)
        at = match.end()
        inner = Scanned()
        while at < close:
            character = self.source[at]
            if quoted and character == "\\" and self.source[at + 1] != "\n":
                at += 2
                continue
            if character in "{}" or (character in "\\'\"" and quoted):
                raise NotUnderstood("quotes or braces within an expansion ${ }")
            if character in "<>" and self.source[at + 1 : at + 2] == "(":
                raise NotUnderstood("a process substitution within an expansion ${ }")
            if character in "\\'\"$`":
                at = self._quoting(inner, at, close)
            else:
                at += 1

    def arithmetic(self, at: int, end: int) -> None:
        """An arithmetic expression: its substitutions, and the names that it evaluates.

        The shell evaluates a variable's text as an expression again, and an expression may
        run commands: `x='a[$(rm y)]'; echo $((x))`. So the names matter.
        """
        level = 0
        while at < end:
            character = self.source[at]
            match = _NAME.match(self.source, at, end)
            if match is not None:
                self.used(match[0])
                at = match.end()
            elif character == "$":
                at = self._arithmetic_dollar(at, end)
            elif character in "0123456789":
                at = re.compile(r"\w+(?:#\w+)?", re.ASCII).match(self.source, at, end).end()  # type: ignore[union-attr]
            elif character in " \t\n+-*/%<>=!&|^~?:,":
                at += 1
            elif character in "()":
                level += 1 if character == "(" else -1
                if level < 0:
                    raise NotUnderstood("arithmetic whose brackets don't match")
                at += 1
            else:
                raise NotUnderstood(f"arithmetic with {character!r} in it")
        if level:
            raise NotUnderstood("arithmetic whose brackets don't match")

    def _arithmetic_dollar(self, at: int, end: int) -> int:
        match = re.compile(
            r"\$\{(#)?([A-Za-z_]\w*)(\[@\])?\}|\$([A-Za-z_]\w*|[#?$])", re.ASCII
        ).match(self.source, at, end)
        if match is not None:
            name = match[2] or match[4]
            if not match[1] and name not in _NUMBERS:
                self.used(name)
            return match.end()
        if self.source.startswith("$((", at):
            inner = Scanned()
            return self._substitution(inner, at, end, quoted=True)
        raise NotUnderstood("arithmetic over a text that can't be known before it runs")

    # ─── arrays ─────────────────────────────────────────────────────────────────────

    def array(self, at: int, end: int) -> int:
        """The words of `name=(…)`, for what they run; where it ends."""
        node = self._node(at, end, ("array",))
        close = int(node.end_byte) - 1
        if self.posix or self.source[close] != ")":
            raise NotUnderstood("an array that is not understood")
        at += 1
        while at < close:
            match = re.compile(r"(?:[ \t\n]|\\\n)+").match(self.source, at, close)
            if match is not None:
                at = match.end()
                continue
            if self.source[at] in "#[":
                raise NotUnderstood("an array with comments or subscripts in it")
            _, stop = self.word(at, close)
            if stop == at:
                raise NotUnderstood("an array that is not understood")
            at = stop
        return close + 1


# ─── $'…' ───────────────────────────────────────────────────────────────────────────

_ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ANSI_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|(.))",
    re.DOTALL,
)
_ANSI_SINGLE = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


def _ansi(match: re.Match[str]) -> str:
    octal, byte, short, long, single = match.groups()
    if single is not None:
        if single in "cxuU":
            raise NotUnderstood(f"the escape \\{single} in $' '")
        return _ANSI_SINGLE.get(single, "\\" + single)
    if octal is not None or byte is not None:
        number = (int(octal, 8) if octal is not None else int(byte, 16)) & 0xFF
        if number:
            return chr(number)
    else:
        number = int(short or long, 16)
        if 0 < number < 0xD800 or 0xDFFF < number < 0x110000:
            return chr(number).encode().decode("latin-1")
    raise NotUnderstood("a NUL or no character in $' '")


# ─── from characters to words ───────────────────────────────────────────────────────


def finished(
    scanned: Scanned, home: str | None, *, expand: bool = True, has_braces: bool = True
) -> list[Word]:
    """The words that a program is given, after braces, tilde and globs.

    Args:
        scanned: as it was read.
        home: where `~` leads; None = not known.
        expand: false where the shell makes one word of it: assignments and the like.
        has_braces: false where the shell may not know `{a,b}`.
    """
    if scanned.whole is not None:
        return [known(_text(scanned.whole))]
    units = scanned.units
    if not expand or ("{", False) not in units:
        return [_finished(units, home, scanned.is_plain)]
    if not has_braces and any(unit in units for unit in ((",", False), (".", False))):
        return [UNKNOWN]
    alternatives = _braces(units)
    if alternatives is not None and [] in alternatives:
        # An empty word is dropped, unless it was written as an empty quote.
        alternatives = list(filter(None, alternatives)) if scanned.is_plain else None
    if alternatives is not None:
        return [_finished(each, home, False) for each in alternatives]
    opening = units.index(("{", False))
    sequence = _sequence(units, opening)
    prefix = "".join(text for text, _ in units[:opening])
    if sequence and "" not in (text for text, _ in units):
        # A sequence of letters or digits: no slash and no dash in front can come of it.
        under = prefix[: prefix.rfind("/") + 1] if ".." not in prefix.split("/") else None
        tail = "".join(text for text, _ in units[opening:])
        return [
            Word(
                None,
                _text(prefix),
                False,
                None if "/" in tail else _text(under),
                is_number=not prefix and tail.endswith("}"),
            )
        ]
    return [UNKNOWN]


def _sequence(units: list[Unit], opening: int) -> bool:
    text = "".join(text if not quoted else "'" for text, quoted in units[opening:])
    return re.fullmatch(r"\{" + _SEQUENCE.pattern + r"\}[^{}'\0~*?\[]*", text) is not None


def _braces(units: list[Unit]) -> list[list[Unit]] | None:
    """All words of `{a,b}`, of one or of several; None = they are of a harder kind."""
    results: list[list[Unit]] = [[]]
    at = 0
    while at < len(units):
        if units[at] != ("{", False):
            for result in results:
                result.append(units[at])
            at += 1
            continue
        close = next((n for n in range(at + 1, len(units)) if units[n] == ("}", False)), None)
        if close is None or ("{", False) in units[at + 1 : close]:
            return None
        inner = units[at + 1 : close]
        # What stands before a brace goes with each alternative, before it is expanded.
        before = units[at - 1] if at else None
        if before in (("$", False), ("", False)) or any(text in _UNKNOWN for text, _ in inner):
            return None
        parts = _split(inner)
        if len(parts) == 1:
            text = "".join(text for text, _ in inner)
            if ".." in text:
                return None
            parts = [[("{", True), *inner, ("}", True)]]
        if len(results) * len(parts) > _MOST_ALTERNATIVES:
            raise NotUnderstood("braces that make very many words")
        results = [[*result, *part] for result in results for part in parts]
        at = close + 1
    return results


def _split(units: list[Unit]) -> list[list[Unit]]:
    parts: list[list[Unit]] = [[]]
    for unit in units:
        if unit == (",", False):
            parts.append([])
        else:
            parts[-1].append(unit)
    return parts


def _finished(units: list[Unit], home: str | None, is_plain: bool) -> Word:
    if units and units[0] == ("~", False):
        units = _tilde(units, home)
    unknown = next((n for n, (text, _) in enumerate(units) if text in _UNKNOWN), None)
    glob = next((n for n, unit in enumerate(units) if unit in _GLOBS), None)
    if glob is not None and units[glob][0] == "[" and not _is_pattern(units, glob):
        glob = None
    if unknown is None and glob is None:
        text = _text("".join(text for text, _ in units))
        return Word(text, text, is_plain=is_plain)
    first = min(n for n in (unknown, glob) if n is not None)
    prefix = "".join(text for text, _ in units[:first])
    is_number = all(text.strip("\0").isdigit() or "\0" in text for text, _ in units)
    is_unsplit = ("", False) not in units
    splits = not is_unsplit or ("\0\0", False) in units
    under = None
    only_numbers = ("", True) not in units and is_unsplit
    tail = "".join(text for text, _ in units[first:])
    if only_numbers and ".." not in tail.split("/"):
        # A number or a glob can't lead out of the directory that stands before it.
        under = prefix[: prefix.rfind("/") + 1]
    # Even a number could be negative: an option.
    return Word(None, _text(prefix), splits, _text(under), is_number, glob=_glob(units, unknown))


def _glob(units: list[Unit], unknown: int | None) -> str | None:
    """The pattern of files that a word is, if all of it is known."""
    if unknown is not None:
        return None
    marked = (f"\\{text}" if quoted and text in "*?[]\\" else text for text, quoted in units)
    glob: str = _text("".join(marked))
    return glob


def _is_pattern(units: list[Unit], glob: int) -> bool:
    """Whether there is more to a pattern than a bracket that is never closed."""
    later = units[glob + 1 :]
    closes = any(text == "]" for text, _ in later)
    return closes or any(unit in _GLOBS and unit[0] != "[" for unit in later)


_GLOBS = frozenset((("*", False), ("?", False), ("[", False)))


def _tilde(units: list[Unit], home: str | None) -> list[Unit]:
    if len(units) > 1 and units[1] != ("/", False):
        return [("", True), *units[1:]]
    if home is None:
        return [("", True), *units[1:]]
    return [*((character, True) for character in home), *units[1:]]


def _text(text: str | None) -> Any:
    """One character a byte → text; bytes that are no UTF-8 become lone surrogates."""
    if text is None or text.isascii():
        return text
    return text.encode("latin-1").decode("utf-8", "surrogateescape")
