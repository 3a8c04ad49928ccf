"""What is recorded of decisions: all of it, and no more than a disk bears."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from executor.audit import AuditLog
from executor.egress import Reason
from executor.egress.journal import BURST, OTHERS, Decision, Journal
from executor.errors import ConfigError
from tests.egress.proxying import run


def decision(host: str = "files.example", allowed: bool = True, **facts: Any) -> Decision:
    """One decision."""
    reason = Reason.ALLOWED if allowed else Reason.HOST
    return Decision("box-1", "net", host, 443, "https", allowed, reason, **facts)


def lines(log: AuditLog) -> list[dict[str, Any]]:
    """What is in the log."""
    return [json.loads(line) for line in log.path.read_text().splitlines()]


@pytest.mark.statement("F15")
def test_the_same_decisions_are_one_line_with_their_sum(tmp_path: Path) -> None:
    """And others have their own, in the order in which they first came."""

    async def scenario() -> None:
        log = AuditLog(tmp_path)
        journal = Journal(log, "loop-1", "tenant-1")
        for _ in range(1000):
            journal.note(decision(up=2, down=3))
        journal.note(decision("evil.example", allowed=False))
        await journal.aclose()
        found = [
            (one["host"], one["verdict"], one["count"], one["up"], one["down"])
            for one in lines(log)
        ]
        assert found == [
            ("files.example", "allow", 1000, 2000, 3000),
            ("evil.example", "deny", 1, 0, 0),
        ]
        assert log.verify() == []

    run(scenario())


@pytest.mark.statement("F15")
def test_a_flood_of_refusals_does_not_fill_the_disk(tmp_path: Path) -> None:
    """Beyond a budget they are one line; what was allowed always has its own."""

    async def scenario() -> None:
        log = AuditLog(tmp_path)
        now = 0.0
        journal = Journal(log, "loop-1", "tenant-1", clock=lambda: now)
        for number in range(20_000):
            journal.note(decision(f"a{number}.example", allowed=False))
        for number in range(BURST):
            journal.note(decision(f"b{number}.example", up=1))
        now += 10
        journal.note(decision("late.example", allowed=False))
        await journal.aclose()
        found = lines(log)
        assert len(found) == BURST + 1 + BURST + 1
        assert sum(one["count"] for one in found) == 20_000 + BURST + 1
        others = [one for one in found if one["host"] == OTHERS]
        assert [(one["count"], one["verdict"]) for one in others] == [(20_000 - BURST, "deny")]
        assert found[-1]["host"] == "late.example"
        assert log.path.stat().st_size < 400 * len(found)

    run(scenario())


def test_lines_are_written_while_the_loop_goes_on(tmp_path: Path) -> None:
    """A disk that hangs stops no connection; everything is there at the end, once."""
    release = threading.Event()

    class Slow(AuditLog):
        def extend(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
            release.wait(20)
            super().extend(entries)

    async def scenario() -> None:
        log = Slow(tmp_path)
        journal = Journal(log, "loop-1", "tenant-1")
        journal.note(decision(up=1))
        writing = asyncio.create_task(journal.aclose())
        await asyncio.sleep(0)
        journal.note(decision("late.example", up=1))
        release.set()
        await writing
        await journal.aclose()
        assert [one["host"] for one in lines(log)] == ["files.example", "late.example"]

    run(scenario())


def test_what_can_t_be_written_is_kept_and_said(tmp_path: Path) -> None:
    """It is written when it can be, with what came meanwhile."""

    async def scenario() -> None:
        log = AuditLog(tmp_path)
        log.path.mkdir()
        journal = Journal(log, "loop-1", "tenant-1")
        journal.note(decision(up=1))
        with pytest.raises(ConfigError):
            await journal.aclose()
        assert journal.is_failing
        journal.note(decision(up=1))
        log.path.rmdir()
        await journal.aclose()
        assert not journal.is_failing
        assert [(one["count"], one["up"]) for one in lines(log)] == [(2, 2)]

    run(scenario())


def test_no_thread_left_loses_no_line(tmp_path: Path) -> None:
    """Any failure is said, and tried again, as that of a disk is."""

    class Threadless(AuditLog):
        def extend(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
            raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        journal = Journal(Threadless(tmp_path), "loop-1", "tenant-1")
        journal.note(decision(up=1))
        with pytest.raises(ConfigError, match="can't start new thread"):
            await journal.aclose()
        assert journal.is_failing
        journal.audit = log = AuditLog(tmp_path)
        await journal.aclose()
        assert not journal.is_failing
        assert [(one["host"], one["up"]) for one in lines(log)] == [("files.example", 1)]

    run(scenario())


def test_who_closes_it_can_be_cancelled(tmp_path: Path) -> None:
    """While the writer's last lines are on their way; they arrive all the same."""
    begun, release = threading.Event(), threading.Event()

    class Slow(AuditLog):
        def extend(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
            begun.set()
            release.wait(20)
            super().extend(entries)

    async def scenario() -> None:
        log = Slow(tmp_path)
        journal = Journal(log, "loop-1", "tenant-1")
        journal.note(decision(up=1))
        await asyncio.to_thread(begun.wait, 20)
        closing = asyncio.create_task(journal.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await journal.aclose()
        assert [one["host"] for one in lines(log)] == ["files.example"]

    run(scenario())


def test_a_hostile_name_is_escaped_in_the_log(tmp_path: Path) -> None:
    """No character of it acts on the terminal of who reads the log, or of `jq -r`."""

    async def scenario() -> None:
        log = AuditLog(tmp_path)
        journal = Journal(log, "loop-1", "tenant-1")
        journal.note(decision("a\x1b[2J\u202e\n.example", allowed=False))
        await journal.aclose()
        assert lines(log)[0]["host"] == "a\\x1b[2J\\u202e\\n.example"

    run(scenario())


def test_without_a_log_nothing_is_kept() -> None:
    """Who gives none has said that nobody wants to know."""

    async def scenario() -> None:
        journal = Journal(None, "loop-1", "tenant-1")
        journal.note(decision())
        await journal.aclose()
        assert not journal.is_failing

    run(scenario())
