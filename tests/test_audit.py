"""The audit log: what was done to it is found, what befell it is survived."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from executor.audit import AuditLog
from executor.errors import ConfigError


def filled(state: Path, count: int = 4) -> AuditLog:
    """A log with so many lines."""
    log = AuditLog(state)
    for number in range(count):
        log.append("override", number=number, why="naïve\nline")
    return log


def events(log: AuditLog) -> list[str]:
    """What was noted, in order; what is no entry as `?`."""
    found = []
    for line in log.path.read_text().splitlines():
        try:
            found.append(json.loads(line)["event"])
        except ValueError:
            found.append("?")
    return found


def test_a_log_that_nobody_touched_is_whole(tmp_path: Path) -> None:
    """M10: entries are single lines with their facts, for the owner alone."""
    log = filled(tmp_path)
    entries = [json.loads(line) for line in log.path.read_text("ascii").splitlines()]
    assert [entry["number"] for entry in entries] == [0, 1, 2, 3]
    assert entries[0]["why"] == "naïve\nline"
    assert log.verify() == []
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert AuditLog(tmp_path / "none").verify() == []


def _edit(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"number": 1', b'"number": 7'), *lines[2:]]


@pytest.mark.parametrize(
    "change",
    [
        _edit,
        lambda lines: lines[1:],
        lambda lines: [*lines[:1], *lines[2:]],
        lambda lines: lines[:-1],
        lambda lines: [*lines[:-1], lines[-1].replace(b"override", b"overrode")],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:2], b"not JSON\n", *lines[2:]],
        lambda lines: [],
    ],
)
def test_a_change_is_found(tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """M10: a line that is edited, removed, cut off, moved, doubled or put in is found."""
    log = filled(tmp_path)
    log.path.write_bytes(b"".join(change(log.path.read_bytes().splitlines(keepends=True))))
    assert log.verify()


def test_a_log_that_was_removed_is_missed(tmp_path: Path) -> None:
    """M10: without the log its last hash says that there was one."""
    log = filled(tmp_path)
    log.path.unlink()
    assert log.verify()


@pytest.mark.parametrize("cut", [1, 20, 70])
def test_a_line_that_a_crash_cut_short_is_survived(tmp_path: Path, cut: int) -> None:
    """What is left of it stays, is chained like the rest, and entries go on after it."""
    log = filled(tmp_path)
    head = log.path.with_name(log.path.name + ".head").read_text()
    whole = log.path.read_bytes()
    log.append("never finished")
    log.path.write_bytes(log.path.read_bytes()[:-cut])
    log.path.with_name(log.path.name + ".head").write_text(head)
    assert log.verify() == []

    log.append("after")
    assert events(log)[:4] == ["override"] * 4
    assert events(log)[-2:] == ["torn", "after"]
    assert log.verify() == []

    text = log.path.read_bytes()
    log.path.write_bytes(whole + text[len(whole) :].replace(b"2", b"3", 1))
    assert log.verify(), "the piece itself can't be changed either"
    log.path.write_bytes(whole.splitlines(keepends=True)[0] + text[len(whole) :])
    assert log.verify(), "nor can the lines before it be taken out"


def _write(state: Path, name: str) -> None:
    log = AuditLog(state)
    for number in range(25):
        log.append("parallel", writer=name, number=number)


def test_several_controllers_write_at_once(tmp_path: Path) -> None:
    """No line is lost, mixed or out of the chain."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path, str(name))) for name in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    log = AuditLog(tmp_path)
    entries = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert len(entries) == 100
    for name in "0123":
        mine = [entry["number"] for entry in entries if entry["writer"] == name]
        assert mine == list(range(25))
    assert log.verify() == []


def test_long_lines_and_long_logs_are_chained(tmp_path: Path) -> None:
    """The line before is found, however long it is."""
    log = filled(tmp_path)
    log.append("long", text="x" * 300_000)
    log.append("after")
    assert log.verify() == []


def test_what_can_not_be_recorded_is_not_done(tmp_path: Path) -> None:
    """A log that can't be written is a fault of the configuration, with the mend."""
    (tmp_path / "audit.jsonl").symlink_to("elsewhere")
    with pytest.raises(ConfigError, match="can't be written"):
        AuditLog(tmp_path).append("override")
    assert not os.path.lexists(tmp_path / "elsewhere")


def _fill_up(patch: pytest.MonkeyPatch, step: int, is_short: bool) -> None:
    """From the writing with this number on the disk is full; part of that one may have room."""
    steps = itertools.count()
    write, note = os.write, AuditLog._note

    def full() -> OSError:
        return OSError(errno.ENOSPC, "No space left on device")

    def writing(file: int, data: bytes) -> int:
        if next(steps) < step:
            return write(file, data)
        if is_short and len(data) > 1:
            return write(file, data[: len(data) // 2])
        raise full()

    def noting(log: AuditLog, head: str) -> None:
        if next(steps) >= step:
            raise full()
        note(log, head)

    patch.setattr(os, "write", writing)
    patch.setattr(AuditLog, "_note", noting)


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize(
    ("torn", "count", "writings"),
    [(b"", 1, 2), (b"", 3, 3), (b'{"time": "2', 1, 4), (b'{"time": "2', 3, 4)],
)
def test_a_full_disk_leaves_no_part_of_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    torn: bytes,
    count: int,
    writings: int,
    is_short: bool,
) -> None:
    """Wherever it fails, nothing was added, nobody is accused, and the next try adds all once."""
    log = filled(tmp_path)
    with log.path.open("ab") as file:
        file.write(torn)
    before = log.path.read_bytes()
    added = [("batch", {"number": number}) for number in range(count)]
    for step in range(writings):
        with monkeypatch.context() as patch:
            _fill_up(patch, step, is_short)
            with pytest.raises(ConfigError, match="can't be written"):
                log.extend(added)
        assert log.path.read_bytes() == before
        assert log.verify() == []
    with monkeypatch.context() as patch:
        _fill_up(patch, writings, is_short)
        log.extend(added)
    assert events(log)[4:] == [*(["?", "torn"] if torn else []), *["batch"] * count]
    assert log.verify() == []


def test_lines_that_are_added_together_are_one_chain(tmp_path: Path) -> None:
    """A crash between them and the note of their hash is no fault; one cut off later is."""
    log = filled(tmp_path, 2)
    head = log.path.with_name(log.path.name + ".head")
    before = head.read_text()
    log.extend([("batch", {"number": number}) for number in range(5)])
    assert log.verify() == []
    assert len(events(log)) == 7
    after = head.read_text()
    head.write_text(f"{before} 5")
    assert log.verify() == []
    head.write_text(after)
    log.path.write_bytes(b"".join(log.path.read_bytes().splitlines(keepends=True)[:-1]))
    assert len(log.verify()) == 1
