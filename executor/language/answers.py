"""Answers of language servers as values. Pure; any JSON may come.

A server runs among files that a stranger may have written, so nothing of its answers is believed
to have the protocol's shape: what has not is a `BadAnswer`. Names and messages are made harmless
for one line. Numbers are brought between 0 and the protocol's largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from executor.language.uris import path_of
from executor.text import one_line, visible

MOST = 10_000
"""Targets, symbols or edits that are taken of one answer; those behind are left."""
MOST_OTHERS = 20
"""Of what a renaming does to files as a whole, so much is told."""
MAX_NAME = 200
"""Characters of a name that are shown."""
MAX_MESSAGE = 1000
"""Characters of a diagnostic's message that are shown."""
MAX_TEXT = 200_000
"""Characters of what is said of a place that are taken."""
MAX_INDENT = 20
"""Steps by which a symbol is indented at the most."""
LARGEST = 2**31 - 1
"""The protocol's largest number."""

_KINDS = (
    *("file", "module", "namespace", "package", "class", "method", "property", "field"),
    *("constructor", "enum", "interface", "function", "variable", "constant", "string"),
    *("number", "boolean", "array", "object", "key", "null", "enum member", "struct"),
    *("event", "operator", "type parameter"),
)
"""Kinds of symbols; the protocol counts them from 1."""
_SEVERITIES = ("error", "warning", "information", "hint")
"""Severities of diagnostics; the protocol counts them from 1."""


class BadAnswer(ValueError):
    """An answer has not the protocol's shape; says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """From a place to another as the protocol counts them: from 0, the end is no longer in it."""

    line: int
    character: int
    end_line: int
    end_character: int


@dataclass(frozen=True, slots=True)
class Target:
    """A place in a file.

    Attributes:
        uri: of the file, as the server sent it.
        extent: where.
        text: what is said of it; empty = nothing.
    """

    uri: str
    extent: Extent
    text: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of a file is replaced.

    Attributes:
        extent: the part, in the file as it is before any edit.
        new_text: what comes there.
    """

    extent: Extent
    new_text: str


@dataclass(frozen=True, slots=True)
class Renaming:
    """What giving a thing another name would change.

    Attributes:
        files: URI of a file → the edits in it, in the server's order.
        others: what else would be done, in words.
    """

    files: Mapping[str, tuple[Edit, ...]]
    others: tuple[str, ...] = ()


# ─── places ─────────────────────────────────────────────────────────────────────────


def targets(result: Any) -> list[Target]:
    """The places of a `Location`, a list of them or of `LocationLink`s; each of them once.

    Raises:
        BadAnswer: it is none of these.
    """
    if result is None:
        return []
    items = result if isinstance(result, list) else [result]
    return list(dict.fromkeys(_target(item) for item in items[:MOST]))


def _target(item: Any) -> Target:
    place = _mapping(item, "a place")
    if "targetUri" in place:
        part = place.get("targetSelectionRange") or place.get("targetRange")
        return Target(_text(place["targetUri"], "a URI"), _extent(part))
    return Target(_text(place.get("uri"), "a URI"), _extent(place.get("range")))


def symbols(result: Any, uri: str) -> list[Target]:
    """The symbols of a file, each before those inside of it, which are indented.

    Args:
        result: `DocumentSymbol`s or `SymbolInformation`s.
        uri: of the file.

    Raises:
        BadAnswer: it is neither.
    """
    if result is None:
        return []
    found: list[Target] = []
    waiting = [iter(_list(result, "symbols"))]
    while waiting and len(found) < MOST:
        for item in waiting[-1]:
            symbol = _mapping(item, "a symbol")
            found.append(_symbol(symbol, uri, len(waiting) - 1))
            if symbol.get("children") is not None:
                waiting.append(iter(_list(symbol["children"], "symbols")))
            break
        else:
            waiting.pop()
    return found


def _symbol(symbol: Mapping[str, Any], uri: str, depth: int) -> Target:
    name = one_line(_text(symbol.get("name"), "a symbol's name"), MAX_NAME)
    text = f"{'  ' * min(depth, MAX_INDENT)}{_word(_KINDS, symbol.get('kind'), 'symbol')} {name}"
    if "location" in symbol:
        place = _target(symbol["location"])
        return Target(place.uri, place.extent, text)
    return Target(uri, _extent(symbol.get("selectionRange") or symbol.get("range")), text)


# ─── texts ──────────────────────────────────────────────────────────────────────────


def hover_text(result: Any) -> str | None:
    """What is said of a place, in Markdown; None = nothing.

    Raises:
        BadAnswer: it is no `Hover`.
    """
    if result is None:
        return None
    contents = _mapping(result, "what is said of a place").get("contents")
    parts = contents if isinstance(contents, list) else [contents]
    texts: list[str] = []
    room = MAX_TEXT
    for part in parts[:MOST]:
        if part is not None and room > 0:
            texts.append(_marked(part, room))
            room -= len(texts[-1])
    return "\n\n".join(text for text in texts if text) or None


def _marked(part: Any, room: int) -> str:
    """One text, plain, `MarkupContent` or `MarkedString`; no more characters of it than this."""
    if isinstance(part, str):
        return visible(part[:room]).strip()
    held = _mapping(part, "a text")
    text = visible(_text(held.get("value"), "a text")[:room]).strip("\r\n")
    language = held.get("language")
    if isinstance(language, str) and text.strip():
        return f"```{one_line(language, MAX_NAME)}\n{text}\n```"
    return text.strip()


def diagnostics(items: Any, uri: str) -> list[Target]:
    """What is wrong with a file: the most severe first, of these the first in the file.

    Args:
        items: `Diagnostic`s.
        uri: of the file.

    Raises:
        BadAnswer: they are none.
    """
    found: list[tuple[int, Target]] = []
    for item in islice(_list([] if items is None else items, "diagnostics"), MOST):
        diagnostic = _mapping(item, "a diagnostic")
        severity = diagnostic.get("severity")
        rank = severity if type(severity) is int and 0 < severity <= len(_SEVERITIES) else 1
        extent = _extent(diagnostic.get("range"))
        found.append((rank, Target(uri, extent, _diagnosis(diagnostic, rank))))
    found.sort(key=lambda one: (one[0], one[1].extent.line, one[1].extent.character))
    return [target for _, target in found]


def _diagnosis(diagnostic: Mapping[str, Any], rank: int) -> str:
    message = diagnostic.get("message")
    if isinstance(message, Mapping):  # as `MarkupContent`
        message = message.get("value")
    # Servers break and indent long messages.
    words = " ".join(_text(message, "a diagnostic's message")[: 2 * MAX_MESSAGE].split())
    source, code = diagnostic.get("source"), diagnostic.get("code")
    origin = [str(one) for one in (source, code) if _is_label(one)]
    text = f"{_SEVERITIES[rank - 1]}: {one_line(words, MAX_MESSAGE)}"
    return f"{text} ({one_line(' '.join(origin), MAX_NAME)})" if origin else text


def _is_label(value: Any) -> bool:
    """It may be shown as who says something: a text, or a number that is none too long."""
    if isinstance(value, str):
        return bool(value)
    return type(value) is int and -LARGEST <= value <= LARGEST


# ─── renaming ───────────────────────────────────────────────────────────────────────


def renaming(result: Any) -> Renaming:
    """What a `WorkspaceEdit` would change.

    Raises:
        BadAnswer: it is none.
    """
    if result is None:
        return Renaming({})
    whole = _mapping(result, "a change of files")
    steps = whole.get("documentChanges")
    if steps is not None:
        return _steps(_list(steps, "changes of files"))
    changes = whole.get("changes")
    given = _mapping({} if changes is None else changes, "changes by file").items()
    return _gathered(((uri, _list(edits, "edits")) for uri, edits in given), [])


def _steps(steps: list[Any]) -> Renaming:
    """What a list of changes does: edits of files, and files made, moved or deleted."""
    edited: list[tuple[str, list[Any]]] = []
    others: list[str] = []
    for item in islice(steps, MOST):
        step = _mapping(item, "a change of a file")
        if "kind" in step:
            others.append(_deed(step))
            continue
        document = _mapping(step.get("textDocument"), "a document")
        edits = _list(step.get("edits"), "edits")
        edited.append((_text(document.get("uri"), "a URI"), edits))
    return _gathered(edited, others)


def _deed(step: Mapping[str, Any]) -> str:
    """In words, what is done to a file as a whole."""
    match step["kind"]:
        case "create":
            return f"creates {_shown(step.get('uri'))}"
        case "delete":
            return f"deletes {_shown(step.get('uri'))}"
        case "rename":
            return f"renames {_shown(step.get('oldUri'))} to {_shown(step.get('newUri'))}"
    raise BadAnswer("a change of a file is of no known kind")


def _shown(uri: Any) -> str:
    """A file for a text, or the URI of what is no file of the box."""
    text = _text(uri, "a URI")
    path = path_of(text)
    return one_line(text if path is None else path or ".", MAX_NAME)


def _gathered(edited: Iterable[tuple[str, list[Any]]], others: list[str]) -> Renaming:
    """All edits by file; at most `MOST` of them."""
    files: dict[str, list[Edit]] = {}
    for uri, edit in islice(_apart(edited), MOST):
        files.setdefault(uri, []).append(_edit(edit))
    told = others[:MOST_OTHERS]
    if len(others) > MOST_OTHERS:
        told.append(f"and so on, {len(others)} changes of whole files in all")
    return Renaming({uri: tuple(edits) for uri, edits in files.items()}, tuple(told))


def _apart(edited: Iterable[tuple[str, list[Any]]]) -> Iterator[tuple[str, Any]]:
    for uri, edits in edited:
        for edit in edits:
            yield uri, edit


def _edit(item: Any) -> Edit:
    edit = _mapping(item, "an edit")
    new = edit.get("newText")
    if new is None and "snippet" in edit:
        new = _mapping(edit["snippet"], "a snippet").get("value")
    return Edit(_extent(edit.get("range")), _text(new, "an edit's new text"))


# ─── parts of all of them ───────────────────────────────────────────────────────────


def _extent(value: Any) -> Extent:
    """A `Range`; one that ends before it begins is turned round."""
    part = _mapping(value, "a range")
    first, last = sorted((_position(part.get("start")), _position(part.get("end"))))
    return Extent(*first, *last)


def _position(value: Any) -> tuple[int, int]:
    place = _mapping(value, "a position")
    return _number(place.get("line")), _number(place.get("character"))


def _number(value: Any) -> int:
    # JSON has one kind of number: 5.0 is a 5 that a program has written in its own way.
    if type(value) is int or (type(value) is float and value.is_integer()):
        return min(max(int(value), 0), LARGEST)
    raise BadAnswer("a position is not counted in whole numbers")


def _word(words: tuple[str, ...], number: Any, otherwise: str) -> str:
    """The word that a number counted from 1 stands for."""
    return words[number - 1] if type(number) is int and 0 < number <= len(words) else otherwise


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise BadAnswer(f"{what} is no object")


def _list(value: Any, what: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise BadAnswer(f"{what} are no list")


def _text(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    raise BadAnswer(f"{what} is no text")
