"""What git's objects and listings say, read by us: nothing here runs git.

Formats: `gitformat-pack(5)` for a pack's head and its index, `git-diff-tree(1)` for raw
differences, fsck's idea of a tree for its entries.
"""

from __future__ import annotations

import re
import struct
import unicodedata
from collections.abc import Iterator

from executor.git.values import ObjectFormat, Refused

DIGESTS: dict[ObjectFormat, int] = {"sha1": 20, "sha256": 32}
"""Bytes of an object's name."""
GITLINK = b"160000"
"""Mode of an entry that is another repository's commit."""
_HEAD = struct.Struct(">4sLL")
_MAGIC = b"\377tOc\0\0\0\2"
_FANOUT = 256 * 4
_NAME = {format: re.compile(f"[0-9a-f]{{{2 * size}}}") for format, size in DIGESTS.items()}
_ENTRY = {
    format: re.compile(rb"[0-7]{5,6} ([^\0]+)\0.{%d}" % size, re.DOTALL)
    for format, size in DIGESTS.items()
}
_CHANGE = re.compile(rb"(:+)((?:[0-7]{6} )+)(?:[0-9a-f]+ )+[A-Z]+")
_LONGEST_GIT = 64
"""Bytes that a spelling of `.git` has at the most, with characters that don't count."""


def is_name(text: str, format: ObjectFormat) -> bool:
    """Whether it is the full name of an object."""
    return _NAME[format].fullmatch(text) is not None


def announced(head: bytes) -> int:
    """How many objects a pack says that it holds, by its first 12 bytes.

    Raises:
        Refused: it is no pack.
    """
    if len(head) == _HEAD.size:
        magic, version, count = _HEAD.unpack(head)
        if magic == b"PACK" and version == 2:
            return int(count)
    raise Refused(["what the box sent is no pack of git"])


def packed(index: bytes, format: ObjectFormat, end: int) -> list[bytes]:
    """Names of a pack's objects, those that lie before `end` in it.

    Args:
        index: of the pack, made by git of the host.
        format: of its objects.
        end: where in the pack that follows which the box did not send.
    """
    if index[:8] != _MAGIC:
        raise Refused(["git of the host made an index of a pack that is not read here"])
    size = DIGESTS[format]
    count = int.from_bytes(index[8 + _FANOUT - 4 : 8 + _FANOUT], "big")
    names = 8 + _FANOUT
    offsets = names + count * (size + 4)
    table = offsets + 4 * count
    found = []
    for number, (offset,) in enumerate(struct.iter_unpack(">L", index[offsets:table])):
        if offset & 0x80000000:
            place = table + 8 * (offset & 0x7FFFFFFF)
            offset = int.from_bytes(index[place : place + 8], "big")  # noqa: PLW2901
        if offset < end:
            found.append(index[names + number * size : names + (number + 1) * size])
    return found


# ─── trees ──────────────────────────────────────────────────────────────────────────


def contents(answer: bytes, format: ObjectFormat) -> Iterator[bytes]:
    """The objects in an answer of `cat-file --batch`.

    Raises:
        Refused: it is not what git prints.
    """
    position = 0
    while position < len(answer):
        end = answer.find(b"\n", position)
        words = answer[position:end].split(b" ")
        if end < 0 or len(words) != 3:
            raise Refused(["an object that the box sent can't be read"])
        start, size = end + 1, int(words[2])
        yield answer[start : start + size]
        position = start + size + 1


def strange_names(tree: bytes, format: ObjectFormat) -> list[str]:
    """Names in a tree that some file system takes for `.git`, and git's own fsck does not.

    Fsck knows what HFS+ and NTFS make of a name. File systems that compare names after a
    compatibility normalisation (ZFS can) take full-width letters for plain ones, too.
    """
    return [
        raw.decode("utf-8", "replace")
        for raw in _ENTRY[format].findall(tree)
        if not raw.isascii() and len(raw) <= _LONGEST_GIT and _is_git(raw)
    ]


def _is_git(raw: bytes) -> bool:
    text = raw.decode("utf-8", "ignore")
    plain = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Mn", "Cc"))
    return kept.rstrip(" .") in (".git", "git~1") or kept.startswith(".git:")


# ─── differences ────────────────────────────────────────────────────────────────────


def new_gitlinks(answer: bytes) -> list[str]:
    """Paths that are another repository's commit now and were not, or another one.

    Args:
        answer: of `diff-tree -z -r --raw`, with or without `-c` and lines of commits.

    Raises:
        Refused: it is not what git prints.
    """
    if GITLINK not in answer:
        return []
    found: list[str] = []
    tokens = iter(answer.split(b"\0"))
    for token in tokens:
        if not token.startswith(b":"):
            continue  # name of a commit, or the end
        change = _CHANGE.fullmatch(token)
        path = next(tokens, None)
        if change is None or path is None:
            raise Refused(["differences that git printed can't be read"])
        modes = change[2].split()
        if modes[len(change[1])] == GITLINK:
            found.append(path.decode("utf-8", "replace"))
    return found
