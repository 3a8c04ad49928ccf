"""Glob patterns: `*`, `?`, `[...]`, `{a,b}`, `**` over paths with `/`.

A name may itself look like a pattern (`[id]`, `{x}`). So a pattern with brackets or
braces has several readings; the most literal one that finds anything is what was meant.

The agent has one thread, so that no pattern may keep it: its length, its braces and what
they expand to are bounded, and what remains is compiled bit by bit.
"""

from __future__ import annotations

import re

from .operation import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any, TypeAlias

    Pauses: TypeAlias = Generator[None, Any, None]

MAX_CHARACTERS = 1000
MAX_BRACES = 32
MAX_EXPANDED = 16 << 10
"""Characters that all alternatives of all readings may have together."""
_MAX_ALTERNATIVES = 256
_MAX_VARIED = 4
_MAX_COMPILED = 2000
_ANY_DIRECTORIES = r"(?:[^/]+/)*"


class Pattern:
    """A glob pattern.

    Args:
        pattern: the text, relative to some directory.

    Attributes:
        base: the directory that all matches are in, as far as the text names it plainly.
        literal: the text is a plain path; `base` is all of it.
        unclosed: `[` or `{` where the text opens one that it never closes; else empty.
        depth: how many names below `base` a match has; None if there is no limit.

    Raises:
        Failure: INVALID_ARGUMENTS, no pattern, or one that would take too much time.
    """

    def __init__(self, pattern: str) -> None:
        require_bounded(pattern)
        parts = [part for part in _split(pattern) if part not in ("", ".")]
        plain = 0
        while plain < len(parts) and not _is_magic(parts[plain]):
            plain += 1
        self.literal = plain == len(parts)
        self.base = "/".join(parts[:plain])
        rest = "/".join(parts[plain:])
        self.unclosed = _unclosed(rest)
        alternatives = expand(rest)
        self.depth = _depth(alternatives)
        self._texts = list(_readings(rest, alternatives))
        _require_few(sum(len(text) for texts, _, _ in self._texts for text in texts))
        self._readings: list[list[re.Pattern[str]]] = []
        self._any: re.Pattern[str] | None = None
        self._size = 0

    def prepare(self) -> Pauses:
        """Compile it, giving way in between; otherwise that is done when it is first used.

        Raises:
            Failure: INVALID_ARGUMENTS, no pattern.
        """
        for texts, literal, braces in self._texts[len(self._readings) :]:
            reading: list[re.Pattern[str]] = []
            pending: list[str] = []
            size = 0
            for text in texts:
                pending.append(_translate(text, literal, braces=braces))
                size += len(pending[-1])
                if size > _MAX_COMPILED:
                    reading.append(_compile(pending))
                    self._size += size
                    pending, size = [], 0
                    yield None
            if pending:
                reading.append(_compile(pending))
                self._size += size
            self._readings.append(reading)
            yield None
        if self._any is None and self._size <= _MAX_COMPILED and len(self._readings) > 1:
            self._any = _compile([part.pattern for parts in self._readings for part in parts])

    def work(self, path: str | bytes) -> int:
        """About how many units of 4 µs a match of this path may take."""
        return 1 + self._size * (len(path) + 50) // 4000

    def reading(self, path: str) -> int | None:
        """Which reading matches a path relative to `base`, most literal first; None: none."""
        if len(self._readings) < len(self._texts):
            for _ in self.prepare():
                pass
        if self._any is not None and self._any.fullmatch(path) is None:
            return None
        for index, parts in enumerate(self._readings):
            for part in parts:
                if part.fullmatch(path) is not None:
                    return index
        return None

    def reading_from_start(self, path: str) -> int | None:
        """The same for a path relative to where the pattern starts, above `base`."""
        if self.literal:
            return 0 if path == self.base else None
        if not self.base:
            return self.reading(path)
        below = path.startswith(self.base + "/")
        return self.reading(path[len(self.base) + 1 :]) if below else None

    def matches(self, path: str) -> bool:
        """Does any reading match?"""
        return self.reading(path) is not None


def require_bounded(pattern: str) -> None:
    """Refuse a text that would take long even to be taken apart.

    Raises:
        Failure: INVALID_ARGUMENTS.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise Failure(
            "INVALID_ARGUMENTS",
            f"The pattern has {len(pattern)} characters; a glob pattern may have "
            f"{MAX_CHARACTERS}. Use a shorter one, or several calls.",
        )
    if pattern.count("{") > MAX_BRACES:
        raise Failure(
            "INVALID_ARGUMENTS",
            f"The pattern has more than {MAX_BRACES} opening braces; use fewer.",
        )


def _require_few(expanded: int) -> None:
    if expanded > MAX_EXPANDED:
        raise Failure(
            "INVALID_ARGUMENTS",
            f"The pattern stands for {expanded} characters once its braces and brackets are "
            f"written out; at most {MAX_EXPANDED} can be used. Use fewer of them.",
        )


def _compile(alternatives: list[str]) -> re.Pattern[str]:
    text = "|".join(alternatives)
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise Failure("INVALID_ARGUMENTS", f"The pattern can't be used: {error}.") from None


def _is_magic(part: str) -> bool:
    return any(character in part for character in "*?[{\\")


def _depth(alternatives: list[str]) -> int | None:
    depth = 0
    for alternative in alternatives:
        parts = alternative.split("/")
        if "**" in parts:
            return None
        depth = max(depth, len(parts))
    return depth


def _readings(
    rest: str, alternatives: list[str]
) -> Iterator[tuple[list[str], frozenset[int], bool]]:
    """Every way to understand the pattern, the most literal first.

    Each is: alternatives, parts whose brackets are text, and whether braces are text.
    """
    if alternatives != [rest]:
        for choice in _choices([_split(rest)]):
            yield [rest], choice, True
    for choice in _choices([alternative.split("/") for alternative in alternatives]):
        yield alternatives, choice, False


def _choices(alternatives: list[list[str]]) -> Iterator[frozenset[int]]:
    """Which parts have their brackets taken literally: sets of positions of parts."""
    varied = sorted(
        {index for parts in alternatives for index, part in enumerate(parts) if "[" in part}
    )
    if len(varied) > _MAX_VARIED:
        yield frozenset(varied)
        yield frozenset()
        return
    for number in range(1 << len(varied)):
        bits = f"{number:b}".rjust(len(varied), "0") if varied else ""
        yield frozenset(index for index, bit in zip(varied, bits, strict=True) if bit == "0")


# ─── text → parts and alternatives ──────────────────────────────────────────────────


class _Braces:
    """A pair of braces with a comma: where it opens and closes, and where its commas are."""

    __slots__ = ("closing", "commas", "opening")

    def __init__(self, opening: int) -> None:
        self.opening = opening
        self.closing = -1
        self.commas: list[int] = []


def _significant(pattern: str) -> Iterator[tuple[int, str]]:
    """Characters with their positions, without those after a backslash."""
    escaped = False
    for position, character in enumerate(pattern):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            yield position, character


def _braces(pattern: str) -> list[_Braces]:
    """The pairs of braces that close and have a comma, in the order in which they open."""
    found: list[_Braces] = []
    if "{" not in pattern:
        return found
    open_ones: list[_Braces] = []
    for position, character in _significant(pattern):
        if character == "{":
            open_ones.append(_Braces(position))
        elif character == "," and open_ones:
            open_ones[-1].commas.append(position)
        elif character == "}" and open_ones:
            braces = open_ones.pop()
            if braces.commas:
                braces.closing = position
                found.append(braces)
    return sorted(found, key=lambda braces: braces.opening)


def _unclosed(pattern: str) -> str:
    """The bracket or brace that is opened and never closed, if there is one."""
    opened: list[str] = []
    start = -1
    for position, character in _significant(pattern):
        if start >= 0:
            # A bracket that comes first in a class is a member of it.
            inner = pattern[start + 1 : position].lstrip("!^")
            if character == "]" and inner:
                start = -1
            elif character == "/":
                break
        elif character == "[":
            start = position
        elif character == "{":
            opened.append(character)
        elif character == "}" and opened:
            opened.pop()
    return "[" if start >= 0 else "{" if opened else ""


def _split(pattern: str) -> list[str]:
    """The parts between slashes, but for slashes within braces."""
    parts: list[str] = []
    start, inner = 0, -1
    braces = _braces(pattern)
    for position, character in _significant(pattern):
        while braces and braces[0].opening < position:
            inner = max(inner, braces.pop(0).closing)
        if character == "/" and position > inner:
            parts.append(pattern[start:position])
            start = position + 1
    parts.append(pattern[start:])
    return parts


def expand(pattern: str) -> list[str]:
    """`a{b,c}` → `ab`, `ac`. Braces without a comma stay.

    Raises:
        Failure: INVALID_ARGUMENTS, too many.
    """
    return _expanded(pattern, _braces(pattern), 0, len(pattern))


def _expanded(pattern: str, braces: list[_Braces], start: int, end: int) -> list[str]:
    """The alternatives of `pattern[start:end]`."""
    done = [""]
    for pair in braces:
        if start <= pair.opening < end:
            options: list[str] = []
            first = pair.opening + 1
            for last in (*pair.commas, pair.closing):
                options += _expanded(pattern, braces, first, last)
                first = last + 1
            head = pattern[start : pair.opening]
            if len(done) * len(options) > _MAX_ALTERNATIVES:
                raise Failure(
                    "INVALID_ARGUMENTS",
                    f"The pattern has more than {_MAX_ALTERNATIVES} alternatives; "
                    "use fewer braces.",
                )
            done = [before + head + option for before in done for option in options]
            _require_few(sum(map(len, done)))
            start = pair.closing + 1
    return [before + pattern[start:end] for before in done]


# ─── parts → regular expressions ────────────────────────────────────────────────────


def _translate(pattern: str, literal: frozenset[int], *, braces: bool = False) -> str:
    """A pattern without alternatives as a regular expression.

    What stands between two stars matches at the first place it can and never again
    (atomic groups), so that no pattern takes more than a time in proportion to the path.
    """
    parts = _split(pattern) if braces else pattern.split("/")
    runs: list[list[str]] = [[]]
    for index, part in enumerate(parts):
        if part == "**":
            if runs[-1] or len(runs) == 1:
                runs.append([])
        elif part:
            runs[-1].append(_component(part, brackets_are_text=index in literal))
    first, *others = ["/".join(run) for run in runs]
    if not others:
        return first
    *middle, last = others
    expression = first + "/" if first else ""
    expression += "".join(f"(?>(?:[^/]+/)*?{run}/)" for run in middle)
    return expression + _ANY_DIRECTORIES + (last or "[^/]+")


def _component(part: str, *, brackets_are_text: bool) -> str:
    pieces: list[str] = [""]
    position = 0
    while position < len(part):
        character = part[position]
        position += 1
        if character == "*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append("")
            continue
        if character == "?":
            count = 1 + len(part[position:]) - len(part[position:].lstrip("?"))
            position += count - 1
            pieces[-1] += "[^/]" if count == 1 else f"[^/]{{{count}}}"
        elif character == "[" and not brackets_are_text:
            expression, position = _class(part, position)
            pieces[-1] += expression
        elif character == "\\" and position < len(part):
            pieces[-1] += re.escape(part[position])
            position += 1
        else:
            pieces[-1] += character if character.isalnum() else re.escape(character)
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle) + "[^/]*" + last


def _class(part: str, start: int) -> tuple[str, int]:
    """The class whose bracket opened before `start`, and where it ends; else a bracket."""
    position = start
    negated = part[position : position + 1] in ("!", "^")
    position += negated
    end = part.find("]", position + 1)
    if end < 0:
        return r"\[", start
    inner = re.sub(r"([\\\[\]^&~|])", r"\\\1", part[position:end])
    return f"(?!/)[{'^' * negated}{inner}]", end + 1
