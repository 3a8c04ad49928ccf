"""What is found out about one line while it is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from executor.model import MOUNT
from executor.shell.values import (
    NOTHING,
    NotUnderstood,
    Paths,
    Simple,
    known,
    resolved,
    union,
)
from executor.shell.words import Node

MAX_COMMANDS = 1_000
MAX_WORDS = 100_000
"""Words of all commands; each guess at what a wrapper runs has its own."""
MAX_SHELLS = 12
"""How deep shells may be nested, one giving a text to the next."""
MAX_DIRECTORIES = 8
MAX_SPELT = 2_000
"""Words of a line that are taken for paths."""
MAX_READINGS = 6
"""How often a line is read again for what was found out at its end."""

State = tuple[Paths, Paths]
"""Where the shell may be after a command that succeeded, and after one that failed. An
empty set = it does not get there."""


def met(first: Paths, second: Paths) -> Paths:
    both = union((first, second))
    return None if both is not None and len(both) > MAX_DIRECTORIES else both


def either(state: State) -> Paths:
    return met(*state)


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
        found = len(self.functions) + len(self.moving) + len(self.loops) + len(self.numbers)
        return found + self.is_tainted


@dataclass(slots=True)
class Analysis:
    """One reading of a line, over all its nested texts.

    Attributes:
        knowledge: of this reading and the ones before.
        home: where `~` leads at the start.
        commands: found, in order.
        characters, size: of all texts that were parsed, in characters and nodes.
        words: of all commands.
        fault: the first thing that is not understood.
        moves: the directory of the outermost shell may change.
        evaluated: variables that arithmetic evaluates.
        assigned: variables that are given a value.
        doubtful: variables that hold what may be any text.
        altered: variables that are given a value and may change what any program does.
        exported: variables that are handed to programs.
        spelt: paths that words of the line may name.
    """

    knowledge: Knowledge
    home: str | None
    commands: list[Simple] = field(default_factory=list)
    characters: int = 0
    size: int = 0
    words: int = 0
    fault: str | None = None
    moves: bool = False
    evaluated: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    altered: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    spelt: set[str] = field(default_factory=set)

    def spell(self, texts: Iterable[str], directories: Paths) -> None:
        """Remember words: a command whose own can't be known may be given them."""
        if len(self.spelt) > MAX_SPELT:
            return
        where = frozenset((MOUNT,)) if directories is None else directories
        self.spelt |= resolved([known(text) for text in texts], where) or NOTHING

    def add(self, simple: Simple) -> None:
        """Take up a command.

        Raises:
            NotUnderstood: there are too many.
        """
        if len(self.commands) >= MAX_COMMANDS:
            raise NotUnderstood(f"it has more than {MAX_COMMANDS} commands")
        self.words += len(simple.words)
        if self.words > MAX_WORDS:
            raise NotUnderstood("its commands, with those that they may run, have too many words")
        self.commands.append(simple)

    def blame(self, fault: NotUnderstood) -> None:
        """Remember what is not understood; the first is told."""
        if self.fault is None:
            self.fault = str(fault)

    def finish(self) -> None:
        """What can be said only at the end."""
        self.commands = [self._as_altered(simple) for simple in self.commands]
        self.knowledge.numbers |= self.assigned - self.doubtful
        bad = sorted((self.evaluated | self.knowledge.numbers) & self.doubtful)
        if bad:
            self.blame(
                NotUnderstood(
                    f"arithmetic evaluates {bad[0]}, whose text can't be known and may run commands"
                )
            )

    def _as_altered(self, simple: Simple) -> Simple:
        """The command with what the line's variables make of it.

        Which commands come after an assignment can't be told: of loops, functions, traps.
        """
        if not simple.words:
            return simple
        if self.altered:
            names = tuple(sorted(self.altered | self.exported))
            return replace(
                simple,
                reads=None,
                writes=None,
                lists=NOTHING,
                is_read_only=False,
                altered=names,
                may=replace(
                    simple.may,
                    read=simple.may.read | ((simple.reads or NOTHING) - simple.lists),
                    write=simple.may.write | (simple.writes or NOTHING),
                ),
            )
        if self.exported and not simple.is_read_only:
            return replace(simple, altered=tuple(sorted(self.exported)))
        return simple


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
