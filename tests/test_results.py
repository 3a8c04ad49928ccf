"""How outputs are cut for the model."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from executor.agent.text import spelled
from executor.catalog import Keep
from executor.results import (
    Captured,
    clip,
    clip_text,
    decode,
    fitting_lines,
    name_of,
    show_streams,
    shown_name,
    size_of,
    with_notices,
)

NOTHING = Captured(b"", b"", 0)


def whole(data: bytes) -> Captured:
    return Captured(data, b"", len(data))


def test_what_fits_is_not_touched() -> None:
    """A stream within the budget is shown byte for byte."""
    assert clip(whole(b"a\nb\n"), 4).text == "a\nb\n"
    assert clip(Captured(b"ab", b"cd", 4), 4).text == "abcd"


def test_both_ends_stay_and_the_marker_counts_what_is_missing() -> None:
    """Head and tail are kept; the marker on its own line says how many bytes are left out."""
    shown = clip(Captured(b"a" * 500, b"b" * 499 + b"\n", 5000), 264)
    lines = shown.text.split("\n")
    assert lines == ["a" * 100, "[4800 bytes left out]", "b" * 99, ""]
    assert shown.left_out == 4800


def test_each_strategy_keeps_its_part() -> None:
    """START keeps the beginning, END the end."""
    data = b"0123456789" * 50
    start, end = clip(whole(data), 264, Keep.START), clip(whole(data), 264, Keep.END)
    assert start.text == decode(data[:200]) + "\n[300 bytes left out]"
    assert end.text == "[300 bytes left out]\n" + decode(data[-200:])


def test_invalid_bytes_become_marks_and_never_raise() -> None:
    """Two bytes that are no UTF-8 are shown as two replacement marks."""
    assert clip(whole(b"ok\xff\xfe\n"), 100).text == "ok\ufffd\ufffd\n"


@given(st.binary(max_size=400), st.integers(100, 300), st.sampled_from(Keep))
@example(b"\xff" * 300, 200, Keep.BOTH)
def test_bytes_of_any_kind_stay_within_the_budget(data: bytes, budget: int, keep: Keep) -> None:
    """Whatever the bytes are, the text takes no more than the budget."""
    assert size_of(clip(whole(data), budget, keep).text) <= budget


@given(st.text(min_size=200, max_size=400), st.integers(100, 250), st.sampled_from(Keep))
def test_a_cut_is_never_inside_a_character(text: str, budget: int, keep: Keep) -> None:
    """Valid text stays valid: what is shown are its own characters, and the count is right."""
    shown = clip_text(text, budget, keep)
    if not shown.left_out:
        assert shown.text == text
        return
    before, _, after = shown.text.partition(f"[{shown.left_out} bytes left out]")
    head, tail = before.removesuffix("\n"), after.removeprefix("\n")
    assert text.startswith((before, head))
    assert text.endswith(tail)
    # One more where the text's own line ends at the cut: the marker has no line end of its own.
    assert size_of(text) - size_of(head) - size_of(tail) - shown.left_out in (0, 1)


def test_four_byte_characters_are_cut_between() -> None:
    """A cut in the middle of an emoji moves to its border, on both sides."""
    shown = clip_text("😀" * 100, 64 + 11, Keep.BOTH)
    assert shown.text == "😀\n[392 bytes left out]\n😀"


def test_streams_are_laid_out_as_the_seed_says() -> None:
    """stdout, then STDERR under its heading; one alone has no heading."""
    out, err = whole(b"o\n"), whole(b"e\n")
    assert show_streams(out, err, 1000, Keep.BOTH).text == "o\n\n\nSTDERR:\ne\n"
    assert show_streams(out, NOTHING, 1000, Keep.BOTH).text == "o\n"
    assert show_streams(NOTHING, err, 1000, Keep.BOTH).text == "e\n"
    empty = show_streams(NOTHING, NOTHING, 1000, Keep.BOTH)
    assert (empty.text, empty.stdout, empty.stderr, empty.total) == ("", "", "", 0)


def test_a_short_stream_is_whole_beside_a_long_one() -> None:
    """The short stream is shown whole and the long one gets the rest of the budget."""
    flood = Captured(b"x" * 500, b"y" * 500, 10**9)
    shown = show_streams(flood, whole(b"why\n"), 1000, Keep.BOTH)
    assert shown.stderr == "why\n"
    assert shown.truncated and shown.total == 10**9 + 4
    assert 900 < size_of(shown.text) <= 1000
    other = show_streams(whole(b"why\n"), flood, 1000, Keep.BOTH)
    assert other.stdout == "why\n" and other.truncated


def test_two_long_streams_share_the_budget() -> None:
    """Two floods get half each."""
    flood = Captured(b"x" * 500, b"y" * 500, 5000)
    shown = show_streams(flood, flood, 1000, Keep.BOTH)
    assert shown.stdout == shown.stderr
    assert size_of(shown.text) <= 1000


def test_lines_are_counted_until_the_budget_is_full() -> None:
    """Whole lines are taken while they fit, and always one."""
    assert fitting_lines(["ab", "cd", "ef"], 5) == 2
    assert fitting_lines(["ab", "cd"], 5) == 2
    assert fitting_lines(["abcdef"], 3) == 1
    assert fitting_lines(["é", "é"], 4) == 1


def test_notices_stand_on_lines_of_their_own() -> None:
    """Each notice is the last line, in brackets, after exactly one line end."""
    assert with_notices("a\n", ["b", "c"]) == "a\n[b]\n[c]"
    assert with_notices("", ["b"]) == "[b]"
    assert with_notices("a\n", []) == "a\n"


def test_names_that_are_no_utf8_can_be_given_back() -> None:
    """A name's odd bytes become lone surrogates and encode to the same bytes."""
    assert name_of(b"a\xff").encode("utf-8", "surrogateescape") == b"a\xff"


@given(st.binary(max_size=30))
def test_names_are_shown_as_the_agent_shows_them(name: bytes) -> None:
    """The host's texts and the agent's messages spell one name in one way, and it leads back."""
    text = name.decode("utf-8", "surrogateescape")
    shown = shown_name(text)
    assert shown == spelled(text)
    shown.encode()
