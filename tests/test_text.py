"""What acts or hides in a text: shown to people, kept off logs, counted for models."""

from __future__ import annotations

import json
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent.text import spelled
from executor.results import shown_name
from executor.text import Sanitiser, hidden, json_line, one_line, visible

NASTY = st.text(
    st.one_of(
        st.sampled_from(
            "\x1b[]()PX^_\\\a\b\r\n\t\x00\x7f\x84\x85\x90\x9b\x9c\x9d;?0152mJHtc"
            "\u200b\u200d\u202e\u2066\u2028\ufeff\ufe0f\U000e0041\U000e0100\ud83d\ude00é☃"
        ),
        st.characters(),
    )
)
"""Text in which sequences, odd characters and halves of them are common."""

SEQUENCES = {
    "CSI": "\x1b[2J",
    "OSC 8": "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
    "OSC 52": "\x1b]52;c;QUFB\a",
    "OSC 7": "\x1b]7;file:///\a",
    "OSC 1337": "\x1b]1337;File=:QUFB\a",
    "title": "\x1b]0;title\a\x1b]2;title\x1b\\\x1bktitle\x1b\\",
    "DCS": "\x1bP$qm\x1b\\",
    "APC": "\x1b_Gi=1\x1b\\",
    "PM": "\x1b^x\x1b\\",
    "SOS": "\x1bXx\x1b\\",
    "C1": "\x9b31m\x9d0;t\x9c\x90q\x9c\x85\x84",
    "report": "\x1b[21t\x1b[6n\x1b[c\x1bZ\x05",
    "overwrite": "good\rbad",
    "backspaces": "good\b\b\b\bbad!",
    "others": "\a\x00\x0b\x0c\x0e\x0f\x7f",
    "separators": "a\u2028b\u2029c",
    "bidi": "a\u202eb\u2066c\u200fd\u061ce",
    "zero width": "a\u200bb\u2060c\ufeffd\u00ade\u3164f",
    "tags": "a\U000e0041\U000e007f",
}


def acts(character: str) -> bool:
    """Whether a terminal would do something else than show a glyph."""
    if character in "\n\t":
        return False
    bidirectional = character in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067"
    return (
        unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs")
        or bidirectional
        or character in "\u2068\u2069\u200b\u200c\u200d\u2060\ufeff"
        or "\U000e0000" <= character <= "\U000e0fff"
    )


# ─── for people and logs ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SEQUENCES)
def test_no_sequence_acts(name: str) -> None:
    """Every kind of control sequence is shown as text."""
    shown = visible(SEQUENCES[name])
    assert not any(map(acts, shown))
    assert "\\" in shown


def test_what_is_shown_names_the_character() -> None:
    """Escapes have the character's number; what is ordinary stays as it is."""
    assert visible("\x1b[31m\r\u202e\U000e0041") == "\\x1b[31m\\x0d\\u202e\\U000e0041"
    assert visible("one\r\ntwo\tthree\n") == "one\ntwo\tthree\n"
    ordinary = "naïve 漢字 ⚠️ ✅ שלום مرحبا \xa0 \ue0b0"
    assert visible(ordinary) == ordinary


@given(NASTY)
def test_nothing_in_what_is_shown_acts(text: str) -> None:
    """No character that a terminal obeys is left, and showing it again changes nothing."""
    shown = visible(text)
    assert not any(map(acts, shown))
    assert visible(shown) == shown
    shown.encode()


@pytest.mark.statement("K4")
@given(st.lists(NASTY, max_size=6))
def test_any_split_shows_the_same(pieces: list[str]) -> None:
    """K4: however a text is cut, the pieces come out as the whole does."""
    sanitiser = Sanitiser()
    shown = "".join(map(sanitiser.feed, pieces)) + sanitiser.end()
    assert shown == visible("".join(pieces))


def test_a_line_end_over_a_border_is_one() -> None:
    """CR and LF in two pieces are a line end, and a lone CR at the very end is shown."""
    sanitiser = Sanitiser()
    assert [sanitiser.feed("a\r"), sanitiser.feed("\nb\r"), sanitiser.end()] == [
        "a",
        "\nb",
        "\\x0d",
    ]


@given(NASTY)
def test_one_line_is_one_line(text: str) -> None:
    """What a log is told of can't begin a line of its own, and has a bound."""
    line = one_line(text, 40)
    assert "\n" not in line and "\t" not in line
    assert not any(map(acts, line))
    assert len(line) <= 40


def test_one_line_says_that_it_was_cut() -> None:
    """What is left out is said by an ellipsis; line ends and tabs can be told."""
    assert one_line("a\n\tb") == "a\\n\\tb"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"


# ─── JSON ───────────────────────────────────────────────────────────────────────────


@given(NASTY.filter(lambda text: not any("\ud800" <= one <= "\udfff" for one in text)))
def test_json_says_the_same_and_does_not_act(text: str) -> None:
    """A result line can be looked at in a terminal, and its parsed value is unchanged."""
    line = json_line({text: [text]})
    assert not any(map(acts, line))
    assert "\n" not in line
    assert json.loads(line) == {text: [text]}


def test_json_keeps_ordinary_text_readable() -> None:
    """Only what acts or hides is escaped; bytes that were no UTF-8 survive as halves."""
    assert json_line("é漢\x7f\x9b\u202e\U000e0041") == '"é漢\\u007f\\u009b\\u202e\\udb40\\udc41"'
    assert json.loads(json_line("a\udcff")) == "a\udcff"


# ─── for models ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("if user\u202e\u2066 admin\u202e", {"U+202E": 2, "U+2066": 1}),
        ("a\u200bb\u200cc\u200dd\u2060e", {"U+200B": 1, "U+200C": 1, "U+200D": 1, "U+2060": 1}),
        ("a\u200e\u200f\u061c", {"U+200E": 1, "U+200F": 1, "U+061C": 1}),
        ("x\ufeffy", {"U+FEFF": 1}),
        ("so\u00adft", {"U+00AD": 1}),
        (
            "\u3164\u115f\u1160\uffa0\u180e",
            dict.fromkeys(("U+3164", "U+115F", "U+1160", "U+FFA0", "U+180E"), 1),
        ),
        ("".join(chr(0xE0000 + ord(one)) for one in "hi"), {"U+E0068": 1, "U+E0069": 1}),
        ("👍\ufe00\ufe01\U000e0101", {"U+FE00": 1, "U+FE01": 1, "U+E0101": 1}),
        ("城\U000e0158漢\U000e011f", {"U+E0158": 1}),
        ("❤\ufe0f\ufe0f", {"U+FE0F": 1}),
        ("a\ufe0f", {"U+FE0F": 1}),
        ("\U0001f3f4\U000e0068\U000e0069\U000e007f", {"U+E0068": 1, "U+E0069": 1, "U+E007F": 1}),
    ],
)
def test_what_hides_is_counted(text: str, found: dict[str, int]) -> None:
    """K3: each carrier of unseen text is named with its number."""
    assert hidden(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "plain ASCII\n",
        "naïve 漢字 “quoted” – dash… \xa0",  # noqa: RUF001
        "\ufeffBOM at the start",
        "⚠️ ✔️ ❤️ 1️⃣ ©️",
        "👨\u200d👩\u200d👧 🏳️\u200d🌈 👩🏽\u200d💻",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "می\u200cخواهم",  # noqa: RUF001
        "क्\u200dष",
        "ស្រុក\u200bខ្មែរ",
        "葛\U000e0100城",
        "שלום עולם مرحبا",
    ],
)
def test_what_belongs_there_is_no_alarm(text: str) -> None:
    """Emoji, scripts that join letters, and a byte order mark are left in peace."""
    assert hidden(text) == {}


def test_looking_costs_next_to_nothing() -> None:
    """100 KB without such characters are looked through in a few milliseconds at most."""
    for line in ("hello world\n", "naïve – “q”\n", "漢字かな\n", "ok ✅ 🎉\n"):  # noqa: RUF001
        text = line * (100_000 // len(line))
        took = []
        for _ in range(5):
            began = time.thread_time()
            assert hidden(text) == {}
            took.append(time.thread_time() - began)
        assert min(took) < 0.02


def test_host_and_agent_spell_every_character_alike() -> None:
    """G8: a name is shown with the same escapes by both, so that both take it back."""
    everything = [chr(number) for number in range(0x110000)]
    differing = [one for one in everything if shown_name(one) != spelled(one)]
    assert differing == []
    assert shown_name("a\u202egpj.exe\n\x1b[2J") == "a\\xe2\\x80\\xaegpj.exe\\x0a\\x1b[2J"
