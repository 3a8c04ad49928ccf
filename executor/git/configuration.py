"""Git's configuration file, written so that git reads back what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

from executor.git.values import GitError

_KEY = re.compile(r"([A-Za-z0-9-]+)\.(?:(.*)\.)?([A-Za-z][A-Za-z0-9-]*)", re.DOTALL)
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\b": "\\b"})


def configuration(settings: Iterable[tuple[str, str]]) -> bytes:
    r"""The text of a configuration file.

    Every value is quoted, with git's escapes (git-config(1), "Values"), so that spaces at its
    ends, `;` and `#` are part of it. A carriage return needs no escape: it is followed by the
    closing quote or by `\n`, never by the line feed that git would join it with.

    Args:
        settings: keys in git's spelling (`branch.main.remote`) and values, in order.

    Raises:
        GitError: a key or value that no configuration file can have.
    """
    lines: list[str] = []
    header = ""
    for key, value in settings:
        section, subsection, name = _split(key, value)
        above = header
        header = f"[{section}]" if subsection is None else f'[{section} "{_escape(subsection)}"]'
        if header != above:
            lines.append(header)
        lines.append(f'\t{name} = "{value.translate(_ESCAPED)}"')
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _split(key: str, value: str) -> tuple[str, str | None, str]:
    match = _KEY.fullmatch(key)
    if match is None or "\0" in key + value or "\n" in (match[2] or ""):
        raise GitError(f"git: {key!r} can't be written into a configuration file")
    return match[1], match[2], match[3]


def _escape(subsection: str) -> str:
    return subsection.replace("\\", "\\\\").replace('"', '\\"')
