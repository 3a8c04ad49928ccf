"""Patterns of paths in the syntax of gitignore, as git reads it.

The host judges calls by them and the agent enforces them, so both have to read a pattern
in the same way: the host imports this module too. It needs nothing but `re`.

Differences from git: characters are compared, not bytes, so that `?` takes one `é`; and a
pattern that begins with two slashes is anchored at the root of the box, not of the tree.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t-\r ",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_SLASH_NOT = "[^/]"
_STARS = re.compile(r"\*\*+")
_CACHED = 4096
"""Directories of which is remembered what the patterns say."""


class Pattern:
    """One line of a gitignore file.

    Attributes:
        text: as it was written.
        is_negated: begins with `!`: what matches is taken back.
        is_absolute: anchored at the root of the box.
        is_free: names things at any depth.
        fault: why nothing can match it; None = something can.
    """

    __slots__ = ("_directories", "_names", "_regex", "fault", "is_absolute", "is_free",
                 "is_negated", "text")  # fmt: skip

    def __init__(self, text: str) -> None:
        self.text = text
        body = _without_trailing_spaces(text)
        self.is_negated = body.startswith("!")
        body = body[self.is_negated :]
        self.is_absolute = body.startswith("//")
        body = body[self.is_absolute :]
        self._directories = body.endswith("/")
        body = body[: len(body) - self._directories]
        self._names = "/" not in body
        self.is_free = self._names or body.startswith("**/")
        self.fault = _fault(text, body)
        regex = None if self.fault else _regex(body.removeprefix("/"))
        if regex is None and self.fault is None:
            self.fault = "has a [ that is never closed, or ends with a single backslash"
        self._regex = re.compile(regex or r"(?!)", re.DOTALL)

    def matches(self, path: str, is_directory: bool) -> bool:
        """Does it name this path, itself and not by a directory above it?"""
        if self._directories and not is_directory:
            return False
        name = path.rpartition("/")[2] if self._names else path
        return self._regex.fullmatch(name) is not None


class Patterns:
    """The lines of one gitignore file: the last that matches decides.

    What is below a matched directory is matched with it, and can't be taken back.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._patterns = [Pattern(text) for text in texts]
        self._inside = [(i, p) for i, p in enumerate(self._patterns) if not p.is_absolute][::-1]
        self._outside = [
            (i, p) for i, p in enumerate(self._patterns) if p.is_absolute or p.is_free
        ][::-1]
        self._known: dict[str, int | None] = {}

    def find(self, path: str, *, is_directory: bool = False, anywhere: bool = True) -> int | None:
        """The position of the pattern that matches a path; None = none does.

        Args:
            path: relative to the tree, or absolute and outside of it; without `.` and `..`.
            is_directory: it is one.
            anywhere: patterns that are free of any place also name paths outside the tree.
        """
        is_outside = path.startswith("/")
        if is_outside and not anywhere:
            patterns = [item for item in self._outside if item[1].is_absolute]
        else:
            patterns = self._outside if is_outside else self._inside
        if not patterns or not path.strip("/"):
            return None
        parent = path.rpartition("/")[0]
        found = self._directory(parent, patterns, anywhere) if parent else None
        return found if found is not None else _last(patterns, path.lstrip("/"), is_directory)

    def _directory(
        self, path: str, patterns: list[tuple[int, Pattern]], anywhere: bool
    ) -> int | None:
        """The same for a directory, which many files share."""
        key = path if anywhere or not path.startswith("/") else "\0" + path
        if key in self._known:
            return self._known[key]
        found: int | None = None
        parts = path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            found = _last(patterns, "/".join(parts[:count]), True)
            if found is not None:
                break
        if len(self._known) >= _CACHED:
            self._known.clear()
        self._known[key] = found
        return found


def _last(patterns: list[tuple[int, Pattern]], path: str, is_directory: bool) -> int | None:
    """Of patterns in reverse order: the first that matches, if it takes nothing back."""
    for position, pattern in patterns:
        if pattern.matches(path, is_directory):
            return None if pattern.is_negated else position
    return None


def literal(path: str) -> str:
    """The pattern that names this path of the tree, or outside of it, and no other."""
    escaped = re.sub(r"([\\*?\[\]!# ])", r"\\\1", path)
    return "/" + escaped


def _without_trailing_spaces(text: str) -> str:
    bare = text.rstrip(" ")
    lost = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if lost % 2 and len(bare) < len(text) else bare


def _fault(text: str, body: str) -> str | None:
    if text.startswith("#"):
        return r"is a comment; write \# for the character itself"
    if not body.strip("/"):
        return "names nothing"
    return None


# ─── one pattern → a regular expression ─────────────────────────────────────────────


def _regex(glob: str) -> str | None:
    """The expression for a pattern without its marks; None = nothing matches it.

    Pieces between two stars of one name are taken where they come first and never tried
    again (atomic groups), so that no name makes a pattern slow.
    """
    names: list[str] = []
    position = 0
    # git compares what is before the first special character by itself: what comes then is
    # the start of a pattern to it.
    start = len(re.split(r"[*?\[\\]", glob, maxsplit=1)[0])
    while position < len(glob):
        stars = _STARS.match(glob, position)
        at_border = position in (0, start) or glob[position - 1] == "/"
        if stars is not None and at_border and _is_border(glob, stars.end()):
            position = stars.end()
            if glob[position : position + 1] == "/":
                names.append("(?:.*/)?")
                position += 1
            else:
                names.append(".*")
            continue
        end = start if position < start else len(glob)
        name, position = _name(glob[:end], position)
        if name is None:
            return None
        names.append(name)
    return "".join(names)


def _is_border(glob: str, position: int) -> bool:
    return position == len(glob) or glob.startswith(("/", "\\/"), position)


def _name(glob: str, position: int) -> tuple[str | None, int]:
    """The expression for the characters up to the next slash, with it."""
    pieces = [""]
    while position < len(glob):
        character = glob[position]
        position += 1
        if character == "*":
            pieces.append("")
        elif character == "?":
            pieces[-1] += _SLASH_NOT
        elif character == "[":
            found = _bracket(glob, position)
            if found is None:
                return None, position
            pieces[-1] += found[0]
            position = found[1]
        else:
            if character == "\\":
                if position == len(glob):
                    return None, position
                character = glob[position]
                position += 1
            if character == "/":
                return _joined(pieces) + "/", position
            pieces[-1] += re.escape(character)
    return _joined(pieces), position


def _joined(pieces: list[str]) -> str:
    """The pieces of a name with anything between them."""
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    steps = "".join(f"(?>{_SLASH_NOT}*?{piece})" for piece in middle if piece)
    return f"{first}{steps}{_SLASH_NOT}*{last}"


def _bracket(glob: str, position: int) -> tuple[str, int] | None:
    """The expression for a bracket whose content begins here, and where it ends."""
    is_negated = glob.startswith(("!", "^"), position)
    position += is_negated
    items = ""
    before: str | None = None
    is_first = True
    while True:
        if position >= len(glob):
            return None
        character = glob[position]
        if character == "]" and not is_first:
            break
        is_first = False
        if glob.startswith("[:", position) and (end := glob.find(":]", position + 2)) >= 0:
            known = _CLASSES.get(glob[position + 2 : end])
            if known is None:
                return None
            items += known
            before, position = None, end + 2
            continue
        if (
            character == "-"
            and before is not None
            and glob[position + 1 : position + 2]
            not in (
                "",
                "]",
            )
        ):
            last, position = _escaped(glob, position + 1)
            if last is None:
                return None
            if before <= last:
                items += f"{re.escape(before)}-{re.escape(last)}"
            before = None
            continue
        one, position = _escaped(glob, position)
        if one is None:
            return None
        items += re.escape(one)
        before = one
    if is_negated:
        return f"[^/{items}]", position + 1
    return (f"(?!/)[{items}]" if items else "(?!)"), position + 1


def _escaped(glob: str, position: int) -> tuple[str | None, int]:
    """The character here, or the one that a backslash here stands before."""
    if glob[position] != "\\":
        return glob[position], position + 1
    if position + 1 >= len(glob):
        return None, position + 1
    return glob[position + 1], position + 2
