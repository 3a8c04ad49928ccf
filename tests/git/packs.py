"""Packs and objects of git, written byte by byte: git itself would refuse to make most of them."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

COMMIT, TREE, BLOB, TAG, OFFSET_DELTA, REFERENCE_DELTA = 1, 2, 3, 4, 6, 7
KINDS = {COMMIT: "commit", TREE: "tree", BLOB: "blob", TAG: "tag"}
PERSON = "A U Thor <author@example.org> 1700000000 +0000"


@dataclass(frozen=True)
class Thing:
    """An object, or a delta against `base`."""

    kind: int
    content: bytes
    base: str = ""
    format: str = "sha1"

    @property
    def name(self) -> str:
        """Name of the object; of a delta it can't be told."""
        head = f"{KINDS[self.kind]} {len(self.content)}\0".encode()
        return hashlib.new(self.format, head + self.content).hexdigest()


def blob(content: bytes) -> Thing:
    """A file's content."""
    return Thing(BLOB, content)


def entry(mode: str, name: str | bytes, value: str) -> bytes:
    """An entry of a tree, whatever it is."""
    raw = name if isinstance(name, bytes) else name.encode()
    return mode.encode() + b" " + raw + b"\0" + bytes.fromhex(value)


def tree(*entries: tuple[str, str | bytes, str]) -> Thing:
    """A directory: mode, name and object of each entry, in the order that is given."""
    return Thing(TREE, b"".join(entry(*one) for one in entries))


def commit(directory: Thing | str, *parents: Thing | str, message: str = "made") -> Thing:
    """A commit of a directory."""
    names = [parent if isinstance(parent, str) else parent.name for parent in parents]
    top = directory if isinstance(directory, str) else directory.name
    lines = [f"tree {top}", *(f"parent {name}" for name in names)]
    lines += [f"author {PERSON}", f"committer {PERSON}", "", message, ""]
    return Thing(COMMIT, "\n".join(lines).encode())


def tag(target: str, kind: str, name: str = "v1") -> Thing:
    """An annotated tag."""
    lines = [f"object {target}", f"type {kind}", f"tag {name}", f"tagger {PERSON}", "", "made", ""]
    return Thing(TAG, "\n".join(lines).encode())


def delta(base: str, base_size: int, result_size: int, steps: bytes) -> Thing:
    """A delta against an object that is named."""
    return Thing(REFERENCE_DELTA, _varint(base_size) + _varint(result_size) + steps, base)


def copy(size: int) -> bytes:
    """A step of a delta: `size` bytes from the base's beginning, at most 16 MiB - 1."""
    return b"\xf0" + struct.pack("<L", size)[:3]


def write(things: Iterable[Thing], count: int | None = None, format: str = "sha1") -> bytes:
    """A pack; `count` = what its head says, where that is not how many there are."""
    body = [encode(thing) for thing in things]
    head = b"PACK" + struct.pack(">LL", 2, len(body) if count is None else count)
    content = head + b"".join(body)
    return content + hashlib.new(format, content).digest()


def encode(thing: Thing) -> bytes:
    """One object as it stands in a pack."""
    return _header(thing.kind, len(thing.content)) + (
        bytes.fromhex(thing.base) + zlib.compress(thing.content, 1)
    )


def _header(kind: int, size: int) -> bytes:
    first, size = kind << 4 | size & 15, size >> 4
    found = bytearray()
    while size:
        found.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    found.append(first)
    return bytes(found)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
