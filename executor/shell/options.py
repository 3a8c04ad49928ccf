"""Options of programs: which are known, and what is left as operands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from executor.shell.values import Word, without_prefix


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a program that are known to be harmless.

    Attributes:
        flags: letters without an argument.
        valued: letters with an argument.
        long: names without an argument, or with one after `=` only.
        long_valued: names with an argument, after `=` or as the next word.
        files: letters and names whose argument is a file that is read.
        places: letters and names whose argument is a file or directory that is written.
        numbers: `-5` is one, too.
    """

    flags: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    numbers: bool = False


def options(
    flags: str = "",
    valued: str = "",
    long: str = "",
    long_valued: str = "",
    *,
    files: str = "",
    places: str = "",
    numbers: bool = False,
) -> Options:
    """`Options`, the names as one text with blanks between."""
    return Options(
        flags,
        valued,
        frozenset(long.split()),
        frozenset(long_valued.split()),
        frozenset(files.split()),
        frozenset(places.split()),
        numbers,
    )


@dataclass(slots=True)
class Parsed:
    """Arguments, sorted.

    Attributes:
        seen: letters and names of options, in order.
        values: what they were given.
        operands: all else.
        rest: where the operands begin, as an index; only for programs that stop there.
        is_known: every option is one of the table.
        is_certain: no word that can't be known may be an option.
    """

    seen: list[str] = field(default_factory=list)
    values: dict[str, list[Word]] = field(default_factory=dict)
    operands: list[Word] = field(default_factory=list)
    rest: int = 0
    is_known: bool = True
    is_certain: bool = True

    def has(self, *names: str) -> bool:
        """One of these options is there."""
        return any(name in self.seen for name in names)

    def given(self, names: frozenset[str]) -> list[Word]:
        """All that these options were given."""
        return [word for name in names for word in self.values.get(name, ())]


def parse(table: Options, arguments: Sequence[Word], *, stops: bool = False) -> Parsed:
    """Sort the arguments of a program as getopt does.

    Args:
        table: what is known of its options.
        arguments: without the program's name.
        stops: options end at the first operand, as for a program that runs another.
    """
    parsed = Parsed()
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word.text == "--":
            parsed.operands += arguments[at + 1 :]
            parsed.rest = at + 1
            return parsed
        if word.text is None and word.may_be_option:
            parsed.is_certain = False
        is_option = word.prefix.startswith("-") and word.text != "-"
        if not is_option:
            if stops:
                break
            parsed.operands.append(word)
        elif word.prefix.startswith("--"):
            at += _long(table, parsed, word, arguments, at)
        else:
            at += _short(table, parsed, word, arguments, at)
        at += 1
    parsed.rest = at
    if stops:
        parsed.operands += arguments[at:]
    return parsed


def _take(parsed: Parsed, name: str, arguments: Sequence[Word], at: int) -> int:
    """The next word is the option's argument."""
    if at + 1 >= len(arguments):
        parsed.is_known = False
        return 0
    value = arguments[at + 1]
    if value.splits or re.match(r"-[^\d]", value.prefix):
        # Should a version of the program not take an argument here, it would be an option.
        parsed.is_certain = False
    parsed.values.setdefault(name, []).append(value)
    return 1


def _long(table: Options, parsed: Parsed, word: Word, arguments: Sequence[Word], at: int) -> int:
    name, mark, _ = word.prefix[2:].partition("=")
    if word.text is None and not mark:
        parsed.is_known = False
        return 0
    parsed.seen.append(name)
    if mark:
        if name not in table.long and name not in table.long_valued:
            parsed.is_known = False
        value = without_prefix(word, len(name) + 3)
        parsed.values.setdefault(name, []).append(value)
        return 0
    if name in table.long_valued:
        return _take(parsed, name, arguments, at)
    if name not in table.long:
        parsed.is_known = False
    return 0


def _short(table: Options, parsed: Parsed, word: Word, arguments: Sequence[Word], at: int) -> int:
    letters = word.prefix[1:]
    if table.numbers and letters.isascii() and letters.isdigit() and word.text is not None:
        return 0
    for index, letter in enumerate(letters):
        parsed.seen.append(letter)
        if letter in table.valued:
            if index + 1 < len(letters) or word.text is None:
                value = without_prefix(word, index + 2)
                parsed.values.setdefault(letter, []).append(value)
                return 0
            return _take(parsed, letter, arguments, at)
        if letter not in table.flags:
            parsed.is_known = False
    if word.text is None:
        parsed.is_known = False
    return 0
