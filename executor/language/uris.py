"""URIs of language servers ↔ paths as tools name them. Pure: nothing is looked up."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import quote, unquote_to_bytes

from executor.model import MOUNT

MAX_URI = 16_384
"""Characters of the longest URI that may name a file; a path has a quarter of that."""

_FILE = re.compile(
    r"file:(?://(?:localhost)?)?(/(?!/)[^?#]*)(?:[?#].*)?", re.ASCII | re.DOTALL | re.IGNORECASE
)


def uri_of(path: str) -> str:
    """The URI of a file of the box, spelled as most servers do themselves.

    Args:
        path: as tools name it; below the worktree without a leading slash, elsewhere absolute.
    """
    whole = posixpath.join(MOUNT, path) if path else MOUNT
    return f"file://{quote(whole.encode('utf-8', 'surrogateescape'))}"


def path_of(uri: str) -> str | None:
    """The path of the file that a URI names, as tools name it; None = it names no file of the box.

    Args:
        uri: whatever a server sent.
    """
    found = _FILE.fullmatch(uri) if len(uri) <= MAX_URI else None
    if found is None:
        return None
    try:
        name = unquote_to_bytes(found[1].encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return None  # half a character, which no name has
    if b"\0" in name:
        return None
    path = posixpath.normpath("/" + name.decode("utf-8", "surrogateescape").lstrip("/"))
    if path == MOUNT:
        return ""
    return path.removeprefix(f"{MOUNT}/")
