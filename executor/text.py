"""Text from elsewhere, for people, logs and models: what acts or hides in it. Pure.

One rule for terminals and logs (`visible`, `Sanitiser`): nothing is removed, and nothing
acts. A character that a terminal obeys, or that has no glyph of its own, is shown as its
escape: `\\x1b`, `\\u202e`, `\\U000e0041`. Line feed and tab stay; CR LF is one line end. A
sequence loses its introducer by that and is plain text from there on, so that no grammar
of sequences has to be known, and a new kind of them can't slip through. An escape is
plain ASCII: to show a text twice changes nothing any more.

Models get text as it is, since an edit has to match it: what hides in it is counted
(`hidden`) and said beside it.
"""

from __future__ import annotations

import json
import re
from collections import Counter

MAX_LINE = 2000
"""Characters of a text that `one_line` shows."""

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
"""C0 but tab and line feed, DEL, C1, line and paragraph separator, halves of characters."""
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
)
"""Bidirectional controls, zero-width characters, fillers, joiners: what has no glyph."""
_SELECTORS = "\ufe00-\ufe0f"
_STYLE = "\ufe0e\ufe0f"
"""After an emoji they choose its style, which every third text does: people see them act."""
_HIGH = "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
"""The same beyond U+FFFF: formats of shorthand and music, tags, more selectors."""

_ACTING = re.compile(f"[{_CONTROLS}{_INVISIBLE}\ufe00-\ufe0d{_HIGH}]")
_UNSAFE_IN_JSON = re.compile(f"[\x7f-\x9f\u2028\u2029\ud800-\udfff{_INVISIBLE}]")
_HIGH_ONLY = re.compile(f"[{_HIGH}]")
_UNSAFE_IN_JSON_OR_HIGH = re.compile(f"{_UNSAFE_IN_JSON.pattern}|{_HIGH_ONLY.pattern}")


# ─── for people and logs ────────────────────────────────────────────────────────────


def visible(text: str) -> str:
    """The text as a terminal may be shown it: no character of it acts or hides.

    May have several lines; see `one_line` for what has to stay on one.
    """
    if text.isascii() and text.isprintable():
        return text
    return _ACTING.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """The same on one line, for a log or a status: line ends and tabs become `\\n`, `\\t`.

    Args:
        text: from anywhere.
        limit: characters; what is longer ends in `…`.
    """
    shown = visible(text[: limit + 1]).replace("\n", "\\n").replace("\t", "\\t")
    return beginning(shown, limit)


def beginning(text: str, limit: int) -> str:
    """A text as it is, cut with `…` to so many characters, for an answer that repeats it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Sanitiser:
    """`visible` for text in pieces: wherever it is cut, the same comes out in all.

    Only a carriage return can't be judged alone: whether it ends a line is seen by what
    follows. It is kept back until then.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """What may be shown now."""
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        return visible(text.removesuffix(self._held) if self._held else text)

    def end(self) -> str:
        """What was kept back, when nothing more comes."""
        held, self._held = self._held, ""
        return visible(held)


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def json_line(value: object, indent: int | None = None) -> str:
    """JSON that may also meet a terminal: what acts or hides is written as `\\uXXXX`.

    The parsed value is the same. Halves of characters, which are no UTF-8, survive too.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if "\x7f" not in text and not _holds(text, _UNSAFE_IN_JSON):
        return text
    # Outside strings JSON is ASCII, so whatever is found stands inside of one.
    return _UNSAFE_IN_JSON_OR_HIGH.sub(_json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


_ASCII = bytes(range(128))


def _holds(text: str, low: re.Pattern[str]) -> bool:
    """Whether the text has, beyond ASCII, a match of `low`, a class below U+10000, or of `_HIGH`.

    Most texts have few characters beyond ASCII, and a look at those alone costs nothing. One
    class for both takes three times as long, and most texts need only the first.
    """
    if text.isascii():
        return False
    rest = text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
    text = rest.decode("utf-8", "surrogatepass")
    if low.search(text):
        return True
    is_wide = len(text.encode("utf-16-le", "surrogatepass")) > 2 * len(text)
    return is_wide and _HIGH_ONLY.search(text) is not None


# ─── for models ─────────────────────────────────────────────────────────────────────

_SUSPECT = re.compile(f"[{_INVISIBLE}{_SELECTORS}]")

_EMOJI = (
    "#*0-9\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u24c2\u25a0-\u27bf"
    "\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_JOINING = (  # scripts whose letters change their form or break by a joiner between them
    "\u0600-\u061b\u061d-\u07ff\u0840-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u17b3"
    "\u17b6-\u17ff\u1800-\u180a\u1810-\u18af\ua840-\ua87f\ua8e0-\ua8ff\ufb50-\ufdff\ufe70-\ufefc"
)
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17b3\u17b6-\u17ff"
"""Scripts that show by a zero-width space where a line may be broken."""
_IDEOGRAPHS = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

_ORDINARY = re.compile(
    "\\A\ufeff"
    f"|(?<=[{_EMOJI}])[{_STYLE}]"
    f"|(?<=[{_EMOJI}{_STYLE}])\u200d(?=[{_EMOJI}])"
    f"|(?<=[{_JOINING}])[\u200c\u200d](?=[^{_INVISIBLE}{_SELECTORS}])"
    f"|(?<=[{_UNSPACED}])\u200b(?=[{_UNSPACED}])"
    "|(?<=[\u1820-\u18aa])[\u180b-\u180f](?=[\u1820-\u18aa\\s]|\\Z)"
    # As many variants as any ideograph is registered with; the others would each carry a byte.
    f"|(?<=[{_IDEOGRAPHS}])[\ufe00-\ufe02\U000e0100-\U000e011f]"
    "|(?<=[\u2200-\u22ff\u2a00-\u2aff])\ufe00"
    # The three flags that have a code: England, Scotland, Wales.
    "|(?<=\U0001f3f4)\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067"
    "|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
    f"|([{_INVISIBLE}{_SELECTORS}{_HIGH}])"
)
"""Where such characters belong into a text, and, as a group, where they do not."""


def hidden(text: str) -> dict[str, int]:
    """Characters that a model or a person doesn't see, by name, the commonest first.

    Not where a script or an emoji needs one: a joiner between letters of Arabic or of an
    Indic script, one selector after an emoji or an ideograph, a byte order mark at the
    start. Costs next to nothing for a text that has none.

    Returns:
        `{"U+202E": 2}`: how often each is there.
    """
    if not _holds(text, _SUSPECT):
        return {}
    found = Counter(match[1] for match in _ORDINARY.finditer(text) if match[1])
    return {f"U+{ord(character):04X}": count for character, count in found.most_common()}
