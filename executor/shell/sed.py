"""`sed`: which scripts only print."""

from __future__ import annotations

import re
from collections.abc import Sequence

from executor.shell.effects import ANYTHING, Effect
from executor.shell.options import options, parse
from executor.shell.values import Word

_OPTIONS = options(
    "nErsuz",
    "el",
    "quiet silent regexp-extended separate unbuffered null-data posix sandbox debug",
    "expression line-length",
)
"""Not -f, whose script is not seen."""
_EDITING = options(
    "nErsuzi",
    "el",
    "quiet silent regexp-extended separate unbuffered null-data posix debug in-place",
    "expression line-length",
)

_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n]|\\.)*/I?)"
_COMMAND = re.compile(
    rf"\s*+(?:{_ADDRESS}(?:\s*+,\s*+(?:[+~]?\d+|{_ADDRESS}))?)?\s*+!?\s*+"
    r"(?:[pPdDnNhHgGxz=}]|[qQ]\s*+\d*|l\s*+\d*|\{"
    r"|s([^\w\s\\;])(?:(?!\1)[^\\\n]|\\.)*\1(?:(?!\1)[^\\\n]|\\.)*\1[gpiIm0-9]*"
    r"|y([^\w\s\\;])(?:(?!\2)[^\\\n]|\\.)*\2(?:(?!\2)[^\\\n]|\\.)*\2)"
    r"\s*+(?:;|\n|\Z|(?=\}))",
    re.ASCII,
)
"""One command that neither writes a file nor runs or reads anything: no w, W, e, r, R, F."""
_LONGEST = 4096


def only_prints(script: str) -> bool:
    """Whether every command of the script only prints or edits what will be printed."""
    at = 0
    if len(script) > _LONGEST:
        return False
    while at < len(script):
        match = _COMMAND.match(script, at)
        if match is None:
            # What opens a block needs nothing behind it.
            opening = re.compile(
                rf"\s*+(?:{_ADDRESS}(?:\s*+,\s*+{_ADDRESS})?)?\s*+!?\s*+\{{"
            ).match(script, at)
            if opening is None:
                return not script[at:].strip("; \n")
            at = opening.end()
        else:
            at = match.end()
    return True


def effect(arguments: Sequence[Word]) -> Effect:
    """What `sed` does with these arguments."""
    parsed = parse(_OPTIONS, arguments)
    if not (parsed.is_known and parsed.is_certain):
        return _editing(arguments)
    scripts = parsed.given(frozenset(("e", "expression")))
    files = parsed.operands
    if not parsed.has("e", "expression"):
        scripts, files = files[:1], files[1:]
    if not scripts or not all(word.text is not None and only_prints(word.text) for word in scripts):
        return ANYTHING
    return Effect(tuple(word for word in files if word.text != "-"), is_read_only=True)


def _editing(arguments: Sequence[Word]) -> Effect:
    """`sed -i`: writes its files. A suffix makes it write others beside them."""
    parsed = parse(_EDITING, arguments)
    if not (parsed.is_known and parsed.is_certain) or parsed.given(frozenset(("in-place",))):
        return ANYTHING
    if any(_SUFFIXED.match(word.text or "") for word in arguments):
        return ANYTHING
    scripts = parsed.given(frozenset(("e", "expression")))
    files = parsed.operands
    if not parsed.has("e", "expression"):
        scripts, files = files[:1], files[1:]
    if not scripts or not all(word.text is not None and only_prints(word.text) for word in scripts):
        return ANYTHING
    return Effect(tuple(files), (), tuple(files))


_SUFFIXED = re.compile(r"-[nErsuz]*i.")
