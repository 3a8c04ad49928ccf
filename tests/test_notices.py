"""What a person is told about a box, and how often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from executor.frontends import notices

BOX = "This worktree belongs to root."
ENGINE = "docker 20.10 may have CVE-2024-1."
CAPABILITIES = {"notices": [BOX, ENGINE], "engine_notices": [ENGINE]}


def told(capsys: pytest.CaptureFixture[str], state: Path) -> list[str]:
    notices.tell(CAPABILITIES, state)
    return [line.removeprefix("executor: ") for line in capsys.readouterr().err.splitlines()]


def test_what_is_about_the_engine_is_told_once_a_day(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A1: the first box says it, the next ones do not; a day later it is said again."""
    assert told(capsys, tmp_path) == [BOX, ENGINE]
    assert told(capsys, tmp_path) == [BOX]
    record = tmp_path / notices.TOLD
    aged = {name: moment - notices.AGAIN for name, moment in json.loads(record.read_text()).items()}
    record.write_text(json.dumps(aged))
    assert told(capsys, tmp_path) == [BOX, ENGINE]


def test_another_state_directory_is_another_person(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What one state directory remembers is not remembered for another."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert told(capsys, tmp_path / "one") == told(capsys, tmp_path / "two") == [BOX, ENGINE]


@pytest.mark.parametrize("text", ["", "[]", '{"x": "y"', '{"x": "y"}', "\0", '{"x": 1e999}'])
def test_a_record_that_is_broken_hides_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str
) -> None:
    """Where it can't be known what was told, everything is, and the record is good again."""
    (tmp_path / notices.TOLD).write_text(text)
    assert told(capsys, tmp_path) == [BOX, ENGINE]
    assert told(capsys, tmp_path) == [BOX]


def test_a_clock_that_was_ahead_hides_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What was told at a time that has not come yet is told."""
    told(capsys, tmp_path)
    record = tmp_path / notices.TOLD
    ahead = {name: moment + 1e6 for name, moment in json.loads(record.read_text()).items()}
    record.write_text(json.dumps(ahead))
    assert told(capsys, tmp_path) == [BOX, ENGINE]


def test_where_nothing_can_be_written_everything_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A state directory that is gone is no reason to be silent, nor to fail."""
    assert told(capsys, tmp_path / "gone") == told(capsys, tmp_path / "gone") == [BOX, ENGINE]
