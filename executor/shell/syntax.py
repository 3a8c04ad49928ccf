"""From text to a tree of tree-sitter-bash, within bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tree_sitter
import tree_sitter_bash

from executor.shell.values import NotUnderstood
from executor.shell.words import Node

MAX_BYTES = 128 * 1024
"""The kernel takes no longer single argument, so no longer text for `bash -c`."""
MAX_DEPTH = 80
"""Levels of the tree; each takes a few of Python's."""
MAX_NODES = 15_000
"""Nodes of the tree, which bounds the time; a here-document is one or two."""
MAX_BARS = 2_000
"""Pipe signs; the parser takes very long for a pipeline of many thousands."""
_MAX_STEPS = 2_500
"""Calls by the parser to ask whether to go on: about 40 steps of its own each."""

_LANGUAGE = tree_sitter.Language(tree_sitter_bash.language())

_STARTS = frozenset(
    (
        *("command_substitution", "process_substitution", "arithmetic_expansion", "expansion"),
        "array",
    )
)


@dataclass(frozen=True, slots=True)
class Source:
    """A text and its tree.

    Attributes:
        text: one character a byte.
        root: of the tree.
        nodes: by where they begin: substitutions, expansions, arrays.
        functions: names of functions that are defined in it.
        size: how many nodes it has.
    """

    text: str
    root: Node
    nodes: dict[int, Node]
    functions: frozenset[str]
    size: int


def parse(text: str, room: int = MAX_NODES) -> Source:
    """A command line's tree.

    Args:
        text: the line.
        room: how many nodes it may have.

    Raises:
        NotUnderstood: it does not parse, or is out of bounds.
    """
    data = _encoded(text)
    steps = 0

    def stop(*_: object) -> bool:
        nonlocal steps
        steps += 1
        return steps > _MAX_STEPS

    try:
        tree = tree_sitter.Parser(_LANGUAGE).parse(
            lambda offset, _: data[offset : offset + 65536], progress_callback=stop
        )
    except ValueError:
        raise NotUnderstood("it is too involved to be parsed") from None
    if tree.root_node.has_error:
        raise NotUnderstood("it is no shell syntax that is understood")
    source = data.decode("latin-1")
    nodes, functions, size = _collected(tree.root_node, source, room)
    return Source(source, tree.root_node, nodes, functions, size)


def _encoded(text: str) -> bytes:
    if len(text) > MAX_BYTES:
        raise NotUnderstood(f"it is longer than {MAX_BYTES} bytes")
    for character, name in (("\0", "a NUL"), ("\r", "a carriage return")):
        if character in text:
            raise NotUnderstood(f"it holds {name}")
    if text.count("|") > MAX_BARS:
        raise NotUnderstood("it has too many pipes")
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise NotUnderstood("it holds half a character") from None
    if len(data) > MAX_BYTES:
        raise NotUnderstood(f"it is longer than {MAX_BYTES} bytes")
    return data


def _collected(root: Node, source: str, room: int) -> tuple[dict[int, Node], frozenset[str], int]:
    """Nodes that words ask for; checks the tree's size and depth on the way.

    A chain `a && b && c` is a tree as deep as it is long, and so is walked along its left
    side: that costs no depth.
    """
    nodes: dict[int, Node] = {}
    functions: set[str] = set()
    count = 0
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        count += 1
        if count > room:
            raise NotUnderstood("it has too many parts")
        if depth > MAX_DEPTH:
            raise NotUnderstood("it is nested too deep")
        if node.type in _STARTS:
            nodes[node.start_byte] = node
        elif node.type == "function_definition":
            name = node.child_by_field_name("name")
            functions.add(source[name.start_byte : name.end_byte])
        for index, child in enumerate(node.children):
            spine = node.type == child.type == "list" and index == 0
            stack.append((child, depth if spine else depth + 1))
    return nodes, frozenset(functions), count


GAP = re.compile(r"(?:[ \t\n]|\\\n)*")


def parts(source: str, node: Node, start: int | None = None, end: int | None = None) -> list[Node]:
    """The children of a node, none of the text between them being left out.

    Args:
        source: the text.
        node: whose children.
        start, end: what they have to cover; None = the node.

    Raises:
        NotUnderstood: something stands between them that the shell would not skip.
    """
    children = [child for child in node.children if child.end_byte > child.start_byte]
    at = node.start_byte if start is None else start
    for child in children:
        skip(source, at, child.start_byte)
        if child.type == "comment":
            check_comment(source, child)
        elif child.type in RESERVED:
            _check_reserved(source, child)
        at = child.end_byte
    skip(source, at, node.end_byte if end is None else end)
    return [child for child in children if child.type != "comment"]


RESERVED = frozenset(
    (
        *("if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until"),
        *("do", "done", "in", "function", "{", "}", "!", "[[", "]]", "coproc"),
    )
)
"""Words that the shell reads in its own way where a command may begin."""
_CLOSING = frozenset(("fi", "done", "esac", "}", "]]"))
_EDGES = frozenset((*" \t\n;&|()<>", ""))


def _check_reserved(source: str, node: Node) -> None:
    """Checks that a word of the grammar is a word of its own: `!"a"` and `{}` are not."""
    start, end = node.start_byte, node.end_byte
    before, after = source[max(0, start - 1) : start], source[end : end + 1]
    # Backticks may stand around commands, and begin a word's next part elsewhere.
    begins = before in _EDGES or (before == "`" and node.type not in _CLOSING)
    ends = after in _EDGES or (after == "`" and node.type in _CLOSING)
    if not (begins and ends):
        raise NotUnderstood("a word that the shell reads in another way than the parser")


def skip(source: str, at: int, end: int) -> None:
    """Checks that there are only blanks, line ends and continuations.

    Raises:
        NotUnderstood: there is something else, or a continuation that joins two words.
    """
    if end < at or not GAP.fullmatch(source, at, end):
        raise NotUnderstood("a text that the shell reads in another way than the parser")
    if end - at and not source[at:end].replace("\\\n", ""):
        raise NotUnderstood("a line is continued within a word")


def check_comment(source: str, node: Node) -> None:
    """Checks that the shell takes it for a comment, too.

    Raises:
        NotUnderstood: it may not.
    """
    start, end = node.start_byte, node.end_byte
    text = source[start:end]
    before = source[start - 1 : start]
    if not text.startswith("#") or "\n" in text or (before and before not in " \t\n;&|"):
        raise NotUnderstood("a comment that the shell reads in another way than the parser")
    if source[end : end + 1] not in ("", "\n"):
        raise NotUnderstood("a comment that the shell reads in another way than the parser")
