"""Places in a text: as people count them, as the protocol does, and back."""

from __future__ import annotations

import re
import time
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent import text as agent_text
from executor.language.positions import Encoding, NoPosition, Text
from tests.fuzzing import cases

ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
PIECES = st.sampled_from(
    [
        *"ab\r\n\f\v\t\0\x85é\u0301☃\u2028\u2029\ufeff😀\U0001f468\u200d",
        "\r\n",
        "👨\u200d👩",
        "e\u0301",
        "\ud83d",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.characters()), max_size=200).map("".join)
"""Texts in which ends of lines and characters of several units are common."""


def units(text: str, encoding: Encoding) -> int:
    """Units that a text has, counted by hand."""
    if encoding == "utf-32":
        return len(text)
    if encoding == "utf-16":
        return sum(2 if character > "\uffff" else 1 for character in text)
    return len(text.encode("utf-8", "surrogatepass"))


def protocol_lines(text: str) -> list[tuple[int, int]]:
    """Where each of the protocol's lines begins and where its end does."""
    found, start = [], 0
    for end in re.finditer("\r\n|\n|\r", text):
        found.append((start, end.start()))
        start = end.end()
    return [*found, (start, len(text))]


def people_lines(text: str) -> list[str]:
    """The lines as `read_file` numbers them; behind the last line feed is one more."""
    parts = text.split("\n")
    return [part.removesuffix("\r") for part in parts[:-1]] + parts[-1:]


# ─── there and back ─────────────────────────────────────────────────────────────────


@pytest.mark.fuzz
@pytest.mark.parametrize("encoding", ENCODINGS)
@cases(300)
@given(content=TEXTS)
def test_every_place_of_a_text_comes_back(encoding: Encoding, content: str) -> None:
    """What people count is the same after a way through the protocol, at every place."""
    text = Text(content)
    lines = protocol_lines(content)
    for number, line in enumerate(people_lines(content), 1):
        assert text.line(number) == line
        for column in range(1, len(line) + 2):
            found = text.position(number, column, encoding)
            assert text.place(found["line"], found["character"], encoding) == (number, column)
            start, end = lines[found["line"]]
            offset = text.offset(found["line"], found["character"], encoding)
            assert start <= offset <= end
            assert found["character"] == units(content[start:offset], encoding)
            assert text.located(offset) == (number, column)


@pytest.mark.fuzz
@pytest.mark.parametrize("encoding", ENCODINGS)
@cases(300)
@given(content=TEXTS)
def test_every_place_of_the_protocol_comes_back(encoding: Encoding, content: str) -> None:
    """The same from the protocol's side; inside of a character its start is meant."""
    text = Text(content)
    for number, (start, end) in enumerate(protocol_lines(content)):
        before = 0
        for offset in range(start, end + 1):
            place = text.place(number, before, encoding)
            assert text.position(*place, encoding) == {"line": number, "character": before}
            width = units(content[offset], encoding) if offset < end else 100
            for inside in range(1, width):
                assert text.place(number, before + inside, encoding) == place
            before += width


@pytest.mark.fuzz
@cases(500)
@given(TEXTS, st.integers(), st.integers(), st.sampled_from(ENCODINGS))
def test_whatever_a_server_sends_is_a_place(
    content: str, line: int, character: int, encoding: Encoding
) -> None:
    """Any two numbers are a place of the text that people can count to."""
    text = Text(content)
    number, column = text.place(line, character, encoding)
    assert 1 <= column <= len(text.line(number)) + 1
    text.position(number, column, encoding)


@pytest.mark.fuzz
@cases(500)
@given(TEXTS)
def test_lines_are_those_that_reading_shows(content: str) -> None:
    """Line numbers mean the lines of `read_file`, whose agent shows them."""
    data = content.encode("utf-8", "surrogatepass")
    window = agent_text.Window(1, 10_000, 1 << 20, 10_000)
    reply, shown = agent_text.show(data, window)
    rows = shown.decode("utf-8", "surrogatepass").split("\n") if reply["lines"] else []
    text = Text(content)
    # A carriage return at the very end ends no line; reading shows it as it is.
    assert [text.line(number) for number in range(1, reply["lines"] + 1)] == rows
    assert text.line(reply["lines"] + 1) == text.line(0) == text.line(-1) == ""


# ─── single cases ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "place", "encoding", "expected"),
    [
        ("", (1, 1), "utf-16", (0, 0)),
        ("a\n", (2, 1), "utf-16", (1, 0)),
        ("a\r\nb", (1, 2), "utf-16", (0, 1)),
        ("a\rb\nc", (1, 3), "utf-16", (1, 0)),
        ("a\rb\nc", (2, 1), "utf-16", (2, 0)),
        ("a\fb\u2028c", (1, 5), "utf-16", (0, 4)),
        ("😀x", (1, 2), "utf-8", (0, 4)),
        ("😀x", (1, 2), "utf-16", (0, 2)),
        ("😀x", (1, 2), "utf-32", (0, 1)),
        ("e\u0301x", (1, 3), "utf-16", (0, 2)),
        ("\r\r\n", (1, 2), "utf-16", (1, 0)),
    ],
)
def test_a_place_is_a_position(
    content: str, place: tuple[int, int], encoding: Encoding, expected: tuple[int, int]
) -> None:
    """Positions of texts that are counted by hand."""
    found = Text(content).position(*place, encoding)
    assert (found["line"], found["character"]) == expected


@pytest.mark.parametrize(
    ("line", "character", "expected"),
    [
        (0, 99, (1, 3)),
        (0, -1, (1, 1)),
        (-5, 1, (1, 1)),
        (2, 0, (3, 1)),
        (3, 0, (3, 3)),
        (2**31, 2**31, (3, 3)),
        (1, 1, (2, 1)),
        (1, 2, (2, 2)),
    ],
)
def test_what_is_beyond_is_brought_back(
    line: int, character: int, expected: tuple[int, int]
) -> None:
    """Beyond a line is its end, beyond the text its end, inside of a character its start."""
    assert Text("ab\r\n😀\ncd").place(line, character, "utf-16") == expected


@pytest.mark.parametrize(
    ("line", "column", "word"),
    [
        *(
            (1, 1, "one"),
            (1, 3, "one"),
            (1, 4, "one"),
            (1, 5, ""),
            (1, 6, "zwei_2"),
            (1, 9, "zwei_2"),
        ),
        *((2, 1, ""), (2, 2, ""), (2, 3, "größe"), (2, 8, "größe"), (2, 99, "größe"), (3, 1, "")),
        (99, 1, ""),
    ],
)
def test_the_word_at_a_place(line: int, column: int, word: str) -> None:
    """Of whichever of its characters, or behind it."""
    assert Text("one, zwei_2\n\t$größe\n").word(line, column) == word


def test_of_a_long_word_there_is_a_part() -> None:
    """A line may have megabytes."""
    assert Text("x" * 1000).word(1, 500) == "x" * 400


@pytest.mark.parametrize(
    ("content", "line", "column", "said"),
    [
        ("a\nb\n", 4, 1, "There is no line 4: the file has 2 lines."),
        ("a", 0, 1, "There is no line 0: the file has 1 line."),
        ("", 2, 1, "There is no line 2: the file has 0 lines."),
        ("abc", 1, 5, "column 5 in line 1: it has 3 characters, and its end is column 4."),
        ("abc\r\n", 1, 5, "column 5 in line 1: it has 3 characters, and its end is column 4."),
        ("a\n😀", 2, 3, "column 3 in line 2: it has 1 character, and its end is column 2."),
        ("abc", 1, 0, "column 0 in line 1"),
        ("abc", 1, -1, "column -1 in line 1"),
    ],
)
def test_where_nothing_is_it_is_said_what_is(
    content: str, line: int, column: int, said: str
) -> None:
    """A line or column that isn't there is an error that says how many there are."""
    with pytest.raises(NoPosition, match=re.escape(said)):
        Text(content).position(line, column, "utf-16")


# ─── size ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "content",
    ["x" * (1 << 20), "é😀x" * (1 << 18), "\n" * (1 << 20), "\r" * (1 << 20), "😀\r\n" * (1 << 18)],
    ids=["ascii", "wide", "lines", "returns", "wide lines"],
)
def test_large_texts_are_quick(content: str, encoding: Encoding) -> None:
    """Ten thousand places in a text of a megabyte, or in one line of it, take no second."""
    text = Text(content)
    lines = protocol_lines(content)
    began = time.process_time()
    for index in range(10_000):
        number = index * len(lines) // 10_000
        line, column = text.place(number, index * 100, encoding)
        text.position(line, column, encoding)
    assert time.process_time() - began < 1
