"""What of a box's terminal output reaches the person's terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.frontends.passing import Passing
from tests.terminals import REQUESTS

STREAMS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace")),
        st.sampled_from(
            [
                *(b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b_", b"\x1b^", b"\x1bX", b"\x1bk"),
                *(
                    b"\x1b\\",
                    b"\a",
                    b"\x18",
                    b"\x1a",
                    b"\xc2\x9b",
                    b"\xc2\x9d",
                    b"\xc2\x9c",
                    b"\x9b",
                ),
                *(b"\x1b[31m", b"\x1b[6n", b"\x1b[?1049h", b"\x1b[21t", b"\x1b[>c", b"\x1b(0"),
                *(b"52;c;QUFB", b"0;title", b"?25", b"1;2", b"h", b"n", b"m", b"\r\n", b"0" * 70),
                *("☃".encode()[:2], "\u202e".encode(), b"$q", b"!p", b" q", b"\x1b#8", b"\x1b%@"),
            ]
        ),
    ),
    max_size=12,
)
SHOWABLE = re.compile(
    r"(?:[\a\b\t\n\v\f\r\x20-\x7e\xa0-\U0010ffff]"
    r"|\x1b\[[0-9:;]*[A-Za-z@`]|\x1b\[\?[0-9;]*[hlJK]|\x1b\[[0-9]* q|\x1b\[!p"
    r"|\x1b[()][AB0]|\x1b[78DEMH=>])*"
)


def passed(*pieces: bytes) -> str:
    """What is shown of these pieces, without what mends the terminal at the end."""
    passing = Passing()
    return "".join(map(passing.feed, pieces))


@pytest.mark.parametrize(
    "data",
    [
        "plain\r\n\tnaïve ☃ 漢字\b\a",
        "\x1b[m\x1b[1;31mred\x1b[38;5;17m\x1b[38:2::1:2:3m\x1b[0m",
        "\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b[1K\x1b[5A\x1b[2;20r\x1b[3L\x1b[4P\x1b[2@\x1b[X",
        "\x1b[?1049h\x1b[?25l\x1b[?1h\x1b=\x1b[?2004h\x1b[?12;25h\x1b[4l\x1b[?7l",
        "\x1b7\x1b8\x1bM\x1bD\x1bE\x1bH\x1b(0lqk\x1b(B\x1b[2 q\x1b[!p",
    ],
)
def test_what_programs_draw_with_passes(data: str) -> None:
    """Text, colours, movement, erasing and the alternate screen come through as they are."""
    assert passed(data.encode()) == data


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a\x1b]0;title\ab\x1b]2;title\x1b\\c", "abc"),
        (b"a\x1b]52;c;QUFB\ab\x1b]52;c;?\x1b\\c", "abc"),
        (b"a\x1b]8;;http://x\x1b\\b\x1b]8;;\ac", "abc"),
        (b"a\x1b]7;file:///\a\x1b]1337;File=:QUFB\a\x1b]10;?\a\x1b]4;1;?\ab", "ab"),
        (
            b"a\x1bP$qm\x1b\\b\x1bP+q544e\x1b\\c\x1b_Gi=1;AAAA\x1b\\d\x1b^x\x1b\\e\x1bXx\x1b\\f",
            "abcdef",
        ),
        (b"a\x1bktitle\x1b\\b", "ab"),
        (b"a\x1b[5n\x1b[6n\x1b[?6n\x1b[c\x1b[0c\x1b[>c\x1b[=c\x1bZ\x05b", "ab"),
        (b"a\x1b[21t\x1b[14t\x1b[22;0t\x1b[23t\x1b[8;5;5t\x1b[x\x1b[>q\x1b[?25$p\x1b[4$pb", "ab"),
        (b"a\x1b[?u\x1b[>1u\x1b[?4m\x1b[>4;2m\x1b[1;1;1;1;1;1*y\x1b[?1;1;0Sb", "ab"),
        (b"a\x1b[?1000h\x1b[?1006h\x1b[?1004h\x1b[1;2;3;4;5T\x1b['|\x1b[2h\x1b[12l\x1b[20hb", "ab"),
        (b"a\x1b[?1000;25;1004lb", "a\x1b[?25lb"),
        (b"a\x1b[5i\x1b[4i\x1b[?5ib\x1b[3Jc\x1b[1000000000bd", "abcd"),
        (b"a\x1b[?3J\x1b[3;0J\x1b[0;3J\x1b[3:0J\x1b[003Jb", "ab"),
        (b"a\x1bcb", "a\x1b[!p\x1b[H\x1b[2Jb"),
        (b"a\x1b%@\x1b#8\x1b F\x1bn\x1b|\x0e\x0f\x00\x11\x13\x7fb", "ab"),
        (b"\xc2\x9b31m\xc2\x9d0;t\xc2\x9cb\x9b6n", "31mb\ufffd6n"),
        ("a\u202eb\u2066c\u200ed\u2028e".encode(), "abcde"),
        (b"a\x1b[12\x1b[31mb", "a12\x1b[31mb"),
        (b"a\x1b]0;never ended\nb", "ab"),
        (b"a\x1b]0;cut\x1b[31mb", "a\x1b[31mb"),
    ],
)
def test_what_acts_outside_of_the_screen_does_not(data: bytes, shown: str) -> None:
    """K2: of titles, clipboard, links, reports, mouse, printer, strings nothing comes through."""
    assert passed(data) == shown


@pytest.mark.statement("K4")
@given(STREAMS)
def test_any_split_passes_the_same(pieces: list[bytes]) -> None:
    """K4: wherever the stream is cut, in a sequence or in a character, the same is shown."""
    whole = b"".join(pieces)
    assert passed(*pieces) == passed(whole)
    assert passed(*(whole[at : at + 1] for at in range(len(whole)))) == passed(whole)


@pytest.mark.statement("K2")
@given(STREAMS)
def test_only_whole_harmless_sequences_pass(pieces: list[bytes]) -> None:
    """Whatever comes, what is shown is text and whole sequences of the list, and asks nothing."""
    shown = passed(*pieces)
    assert SHOWABLE.fullmatch(shown)
    assert not REQUESTS.search(shown.encode("utf-8", "surrogatepass"))
    assert passed(shown.encode()) == shown


def test_what_was_switched_is_taken_back() -> None:
    """At the end the terminal is on its own screen with its cursor, colours and characters."""
    passing = Passing()
    passing.feed(b"\x1b[?1049h\x1b[?25l\x1b[31m\x1b(0\x1b[?2004h\x1b[?2004l")
    end = passing.end()
    assert "\x1b[?1049l" in end and "\x1b[?25h" in end and end.endswith("\x1b[m")
    assert "2004" not in end
    assert passing.end() == ""


@pytest.mark.parametrize(
    ("data", "mend"),
    [(b"\x1b[5 q", "\x1b[0 q"), (b"\x1b[3g", "\x1b[?5W"), (b"\x1bH", "\x1b[?5W")],
)
def test_the_cursors_shape_and_the_tabs_are_taken_back(data: bytes, mend: str) -> None:
    """A cursor's shape or tab stops that the box has set do not outlive its shell."""
    passing = Passing()
    passing.feed(data)
    assert passing.end().endswith(mend)
    assert passing.end() == ""


def test_text_alone_needs_no_mending() -> None:
    """Where nothing was switched nothing is written at the end: a pipe gets plain text."""
    passing = Passing()
    passing.feed(b"plain\n")
    assert passing.end() == ""


def test_a_long_sequence_holds_no_memory() -> None:
    """A sequence that never ends is not kept: what is over its bound becomes text."""
    passing = Passing()
    passing.feed(b"\x1b[")
    shown = "".join(passing.feed(b"1" * 1000) for _ in range(100))
    assert len(shown) > 99_000
    assert passed(b"\x1b]52;c;", *[b"A" * 1000] * 1000, b"\aend") == "end"
