"""Glob patterns: `*`, `?`, `[...]`, `{a,b}`, `**` over paths with `/`.

A name may itself look like a pattern (`[id]`, `{x}`). So a pattern with brackets or
braces has several readings; the most literal one that finds anything is what was meant.
"""

from __future__ import annotations

import re

from .operation import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_ALTERNATIVES = 256
_MAX_VARIED = 4
_ANY_DIRECTORIES = r"(?:[^/]+/)*"


class Pattern:
    """A glob pattern.

    Args:
        pattern: the text, relative to some directory.

    Attributes:
        base: the directory that all matches are in, as far as the text names it plainly.
        literal: the text is a plain path; `base` is all of it.
        depth: how many names below `base` a match has; None if there is no limit.

    Raises:
        Failure: INVALID_ARGUMENTS, no pattern.
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in _split(pattern) if part not in ("", ".")]
        plain = 0
        while plain < len(parts) and not _is_magic(parts[plain]):
            plain += 1
        self.literal = plain == len(parts)
        self.base = "/".join(parts[:plain])
        rest = "/".join(parts[plain:])
        alternatives = expand(rest)
        self.depth = _depth(alternatives)
        self._readings = [_compile(reading) for reading in _readings(rest, alternatives)]
        readings = "|".join(reading.pattern for reading in self._readings)
        self._any = self._readings[0] if len(self._readings) == 1 else _compile([readings])

    def reading(self, path: str) -> int | None:
        """Which reading matches a path relative to `base`, most literal first; None: none."""
        if self._any.fullmatch(path) is None:
            return None
        for index, reading in enumerate(self._readings):
            if reading.fullmatch(path) is not None:
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
        return self._any.fullmatch(path) is not None


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


def _readings(rest: str, alternatives: list[str]) -> Iterator[list[str]]:
    """Every way to understand the pattern, as regular expressions, the most literal first."""
    if alternatives != [rest]:
        for choice in _choices([rest]):
            yield [_translate(rest, choice, braces=True)]
    for choice in _choices(alternatives):
        yield [_translate(alternative, choice) for alternative in alternatives]


def _choices(alternatives: list[str]) -> Iterator[frozenset[int]]:
    """Which parts have their brackets taken literally: sets of positions of parts."""
    varied = sorted(
        {
            index
            for alternative in alternatives
            for index, part in enumerate(_split(alternative))
            if "[" in part
        }
    )
    if len(varied) > _MAX_VARIED:
        yield frozenset(varied)
        yield frozenset()
        return
    for number in range(1 << len(varied)):
        bits = f"{number:b}".rjust(len(varied), "0") if varied else ""
        yield frozenset(index for index, bit in zip(varied, bits, strict=True) if bit == "0")


# ─── text → parts and alternatives ──────────────────────────────────────────────────


def _split(pattern: str) -> list[str]:
    """The parts between slashes, but for slashes within braces."""
    parts: list[str] = []
    start = depth = 0
    for position, character in _significant(pattern):
        if character == "{" and _closing(pattern, position) is not None:
            depth += 1
        elif character == "}" and depth:
            depth -= 1
        elif character == "/" and not depth:
            parts.append(pattern[start:position])
            start = position + 1
    parts.append(pattern[start:])
    return parts


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


def _closing(pattern: str, start: int) -> int | None:
    """Where the brace that opens at `start` closes; None if it doesn't or has no comma."""
    depth = 0
    comma = False
    for offset, character in _significant(pattern[start:]):
        if character == "{":
            depth += 1
        elif character == "," and depth == 1:
            comma = True
        elif character == "}":
            depth -= 1
            if not depth:
                return start + offset if comma else None
    return None


def expand(pattern: str) -> list[str]:
    """`a{b,c}` → `ab`, `ac`. Braces without a comma stay.

    Raises:
        Failure: INVALID_ARGUMENTS, too many.
    """
    done: list[str] = []
    todo = [pattern]
    while todo:
        text = todo.pop()
        braces = _first_braces(text)
        if braces is None:
            done.append(text)
        else:
            start, end = braces
            options = _options(text[start + 1 : end])
            todo += [text[:start] + option + text[end + 1 :] for option in reversed(options)]
        if len(done) + len(todo) > _MAX_ALTERNATIVES:
            raise Failure(
                "INVALID_ARGUMENTS",
                f"The pattern has more than {_MAX_ALTERNATIVES} alternatives; use fewer braces.",
            )
    return done


def _first_braces(pattern: str) -> tuple[int, int] | None:
    for position, character in _significant(pattern):
        if character == "{":
            end = _closing(pattern, position)
            if end is not None:
                return position, end
    return None


def _options(inner: str) -> list[str]:
    options: list[str] = []
    start = depth = 0
    for position, character in _significant(inner):
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        elif character == "," and not depth:
            options.append(inner[start:position])
            start = position + 1
    options.append(inner[start:])
    return options


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
            pieces[-1] += "[^/]"
        elif character == "[" and not brackets_are_text:
            expression, position = _class(part, position)
            pieces[-1] += expression
        elif character == "\\" and position < len(part):
            pieces[-1] += re.escape(part[position])
            position += 1
        else:
            pieces[-1] += re.escape(character)
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
