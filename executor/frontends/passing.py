"""What of a box's terminal output may reach the person's terminal.

`executor shell` is of no use without sequences: colours, cursor movement, erasing, the
alternate screen pass. Nothing passes that writes outside of the screen (title, clipboard,
notification, link, printer, palette) or that makes the terminal answer, since its answer
is typed at whatever reads the terminal next: no OSC, DCS, APC, PM, SOS, no C1, no report
of any kind, no mouse and no focus. Programs that ask for the cursor's position (CSI 6 n)
get no answer; those that were met do without one after a moment.

A sequence is passed whole or not at all: what reaches the terminal always leaves its
parser where it was, so a box can't put half a sequence before text of ours.
"""

from __future__ import annotations

import codecs
import re

_TEXT = re.compile(
    "[\a\b\t\n\v\f\r\x20-\x7e\xa0-\u061b\u061d-\u200d\u2010-\u2027\u202f-\u2065\u206a-\U0010ffff]+"
)
"""Not: other controls, C1, line separators, bidirectional controls."""
_CSI = re.compile(r"\x1b\[([<-?]?)([0-9:;]{0,64})([ -/]{0,2})([@-~])")
_BEGUN = re.compile(r"\x1b(?:\[[<-?]?[0-9:;]{0,64}[ -/]{0,2}|[ -/]{1,2})?\Z")
_CHARSET = re.compile(r"\x1b[()][AB0]")
_SINGLE = re.compile(r"\x1b[78DEMHc=>]")
_RESET = "\x1b[!p\x1b[H\x1b[2J"
"""Passes for a full reset (ESC c), which would take the lines above the screen with it."""
_OTHER = re.compile(r"\x1b[ -/]{0,2}[0-~]")
_STRING = re.compile(r"\x1b[]PX^_k]|[\x90\x98\x9d-\x9f]")
"""Begins what goes on to a terminator: OSC, DCS, SOS, PM, APC, and screen's title."""
_STRING_END = re.compile(r"\x1b\\?|[\a\n\x18\x1a\x9c]")
"""A real terminal takes no line feed for the end. Nothing of the string has been shown, so
an early end only shows as text what should not be seen; without it one stray introducer
would leave the person with a screen on which nothing appears any more."""

_USUAL_TABS, _USUAL_CURSOR = "\x1b[?5W", "\x1b[0 q"
_PLAIN_FINALS = frozenset("@ABCDEFGHIJKLMPSTXZ`abdefgmrsu")
_PRIVATE_MODES = {
    "1": "l",  # cursor keys
    "5": "l",  # reverse video
    "6": "l",  # origin
    "7": "h",  # wrap around
    "12": "l",  # blinking cursor
    "25": "h",  # the cursor is seen
    "47": "l",
    "1047": "l",
    "1048": "l",
    "1049": "l",  # the alternate screen
    "2004": "l",  # pastes are marked
    "2026": "l",  # drawing is held back
}
"""Modes that may be switched, and their usual state."""


class Passing:
    """Bytes of a box in any pieces → bytes for a terminal; the same wherever they are cut."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._is_in_string = False
        self._modes: set[str] = set()
        self._is_styled = False
        self._mends: set[str] = set()

    def feed(self, data: bytes) -> str:
        """What may be shown now."""
        text = self._held + self._decoder.decode(data)
        self._held = ""
        shown: list[str] = []
        at = 0
        while at < len(text):
            piece, at = self._in_string(text, at) if self._is_in_string else self._next(text, at)
            shown.append(piece)
        return "".join(shown)

    def end(self) -> str:
        """What takes back the modes that were left switched; nothing more comes."""
        modes = "".join(f"\x1b[?{mode}{_PRIVATE_MODES[mode]}" for mode in sorted(self._modes))
        # Margins go with the cursor kept where it is; ordinary keys, characters, colours.
        rest = "\x1b7\x1b[r\x1b8\x1b>\x1b(B\x1b)B\x1b[4l\x1b[m" if self._is_styled else ""
        mends = "".join(sorted(self._mends))
        self._modes.clear()
        self._mends.clear()
        self._is_styled = False
        return modes + rest + mends

    def _next(self, text: str, at: int) -> tuple[str, int]:
        """The piece at `at` as it may be shown, and where the next one begins."""
        if match := _TEXT.match(text, at):
            return match[0], match.end()
        if match := _CSI.match(text, at):
            return self._csi(match), match.end()
        if match := _STRING.match(text, at):
            self._is_in_string = True
            return "", match.end()
        if match := _CHARSET.match(text, at) or _SINGLE.match(text, at):
            self._is_styled = True
            if match[0] == "\x1bH":
                self._mends.add(_USUAL_TABS)
            return _RESET if match[0] == "\x1bc" else match[0], match.end()
        if _BEGUN.match(text, at):
            self._held = text[at:]
            return "", len(text)
        match = _OTHER.match(text, at)
        return "", match.end() if match else at + 1

    def _in_string(self, text: str, at: int) -> tuple[str, int]:
        match = _STRING_END.search(text, at)
        if match is None:
            return "", len(text)
        if match[0] == "\x1b":
            if match.end() == len(text):
                self._held = "\x1b"
                return "", len(text)
            # It ends the string and begins something else.
            self._is_in_string = False
            return "", match.start()
        self._is_in_string = False
        return "", match.end()

    def _csi(self, match: re.Match[str]) -> str:
        """A control sequence, or what is left of it."""
        private, numbers, between, final = match.groups()
        each = [number.lstrip("0") for number in re.split("[:;]", numbers)]
        if any(len(number) > 5 for number in re.split("[:;]", numbers)):
            return ""  # repeated a thousand million times, perhaps
        if final == "J" and "3" in each:
            return ""  # what the person did before is not the box's to erase
        if final in "hl" and not between:
            return self._switched(private, numbers, final)
        if private == "?" and not between and final in "JK":
            return match[0]
        if private:
            return ""
        if (between, final) == (" ", "q"):
            self._mends.add(_USUAL_CURSOR)
            return match[0]
        if (between, final) == ("!", "p"):
            return match[0]  # soft reset
        if between or final not in _PLAIN_FINALS:
            return ""
        if final == "T" and ";" in numbers:
            return ""  # follows the mouse
        if final == "g":
            self._mends.add(_USUAL_TABS)
        self._is_styled = True
        return match[0]

    def _switched(self, private: str, numbers: str, final: str) -> str:
        """Modes on or off: those that are allowed."""
        if private not in ("", "?"):
            return ""
        allowed = _PRIVATE_MODES if private else ("4",)
        modes = [mode for mode in numbers.split(";") if mode in allowed]
        if not modes:
            return ""
        self._is_styled = True
        if private:
            for mode in modes:
                (self._modes.discard if final == _PRIVATE_MODES[mode] else self._modes.add)(mode)
        return f"\x1b[{private}{';'.join(modes)}{final}"
