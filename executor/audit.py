"""A log of decisions that somebody may have to answer for: JSON lines, chained by hash.

Every line holds the hash of the line before it, and a file beside the log holds the hash of
the last one: a line that was changed, taken out or cut off is found by `AuditLog.verify`.
There is no secret in this, so it does not hold against somebody who may write both files
and computes all hashes anew; keep a copy of the last hash elsewhere where that matters.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from executor.errors import ConfigError

NAME = "audit.jsonl"
TORN = "torn"
"""The event that is noted after a line which was cut short by a crash."""
_FIRST = "0" * 64
_PIECE = 1 << 16


class AuditLog:
    """The log in a state directory. Several controllers may write it at once."""

    def __init__(self, state: Path) -> None:
        self.path = state / NAME
        self._head = state / f"{NAME}.head"

    def append(self, event: str, **facts: Any) -> None:
        """Adds a line; it is on the disk when this returns.

        Args:
            event: what was decided, in a word or two.
            facts: JSON-able.

        Raises:
            ConfigError: the log can't be written, so what it was to record must not happen.
        """
        self.extend([(event, facts)])

    def extend(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Adds lines, in order; all of them are on the disk when this returns.

        Args:
            entries: event and facts of each, as `append` takes them.

        Raises:
            ConfigError: as `append`; none of them is in the log.
        """
        if not entries:
            return
        try:
            with self._locked() as file:
                size = os.fstat(file).st_size
                try:
                    self._add(file, entries)
                except Exception:
                    # A part of it would make a line that nobody can tell from a changed one.
                    os.ftruncate(file, size)
                    raise
        except OSError as error:
            raise ConfigError(
                f"audit log: {self.path} can't be written ({error.strerror}), and nothing that "
                "has to be recorded is done without it; make it writable"
            ) from error

    def verify(self) -> list[str]:
        """What is wrong with the log, one sentence each; nothing = nobody has changed it."""
        if not self.path.exists():
            return [f"{self.path} was removed"] if self._head.exists() else []
        with self._locked() as file:
            with os.fdopen(os.dup(file), "rb") as copy:
                lines = copy.read().split(b"\n")
            head = self._head.read_text("ascii") if self._head.exists() else _FIRST
        # A last line without its end was cut short by a crash; the next `append` says so.
        return [*_chain_faults(lines[:-1]), *_head_faults(lines[:-1], head)]

    @contextmanager
    def _locked(self) -> Iterator[int]:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _add(self, file: int, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        before, torn = _last_lines(file)
        if torn:
            os.write(file, b"\n")
            entries = [(TORN, {"torn": _digest(torn)}), *entries]
        self._write(file, entries, before)

    def _write(
        self, file: int, entries: Sequence[tuple[str, Mapping[str, Any]]], before: bytes
    ) -> None:
        """Appends the lines and notes the hash of the last one."""
        if len(entries) > 1:
            self._note(f"{_digest(before)} {len(entries)}")
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines: list[bytes] = []
        for event, facts in entries:
            entry = {"time": moment, "event": event, **facts, "before": _digest(before)}
            before = json.dumps(entry).encode("ascii")
            lines.append(before + b"\n")
        data = b"".join(lines)
        if os.write(file, data) != len(data):
            raise OSError(0, "the disk is full")
        os.fsync(file)
        self._note(_digest(before))

    def _note(self, head: str) -> None:
        """What `verify` looks for: a line's hash, and how many may follow; one if not said."""
        fresh = self._head.with_suffix(f".{os.getpid()}")
        fresh.write_text(head, "ascii")
        fresh.replace(self._head)


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else _FIRST


def _last_lines(file: int) -> tuple[bytes, bytes]:
    """The last whole line, without its end, and what a crash left of one after it."""
    position = os.fstat(file).st_size
    tail = b""
    while position > 0 and tail.count(b"\n") < 2:
        start = max(position - _PIECE, 0)
        tail = os.pread(file, position - start, start) + tail
        position = start
    whole, _, torn = tail.rpartition(b"\n")
    return whole.rpartition(b"\n")[2], torn


def _chain_faults(lines: list[bytes]) -> Iterator[str]:
    before = _FIRST
    for number, line in enumerate(lines, 1):
        entry = _entry(line)
        after = _entry(lines[number]) if number < len(lines) else {}
        if after.get("event") == TORN and after.get("torn") == _digest(line):
            continue
        if not entry:
            yield f"line {number} is no entry"
        elif entry.get("before") != before:
            yield f"line {number} does not follow the line before it: one was changed or removed"
        before = _digest(line)


def _head_faults(lines: list[bytes], head: str) -> Iterator[str]:
    """A crash may come between lines and their note, which then is so many behind."""
    digest, _, count = head.partition(" ")
    known = [_FIRST, *map(_digest, lines)]
    behind = int(count) if count.isdecimal() else 1
    if digest not in known[-1 - behind :]:
        yield f"the last of the {len(lines)} lines is not the one that was written last"


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
