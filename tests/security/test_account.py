"""The account of the security statements: no statement is lost, no failure looks like success."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.security.__main__ import selects, table
from tests.statements import load

STATEMENTS = {"A1": {"text": "one"}, "F1": {"text": "two", "later": "comes later"}}


def found(outcome: str, runtime: str = "runc", reason: str = "") -> dict[str, Any]:
    """One line of the account, for A1."""
    test = f"test_it[{runtime}]"
    return {
        "ids": ["A1"],
        "runtime": runtime,
        "test": test,
        "outcome": outcome,
        "reason": reason,
    }


def row(lines: list[str], id: str) -> list[str]:
    """The first words of a statement's line."""
    return next(line.split() for line in lines if line.startswith(f"{id} "))


def test_a_statement_that_holds_on_both_runtimes_is_sound() -> None:
    """Passed tests make `held`, and what comes later is no fault."""
    lines, is_sound = table(STATEMENTS, [found("passed"), found("passed", "runsc")])
    assert is_sound
    assert row(lines, "A1")[1:3] == ["held", "held"]
    assert row(lines, "F1")[1:3] == ["later", "later"]
    assert any(line.strip() == "runc: comes later" for line in lines)


@pytest.mark.parametrize(
    "account",
    [
        [],
        [found("passed"), found("failed")],
        [found("failed", "runsc"), found("passed")],
    ],
)
def test_a_failed_or_untested_statement_is_unsound(account: list[dict[str, Any]]) -> None:
    """One failed test of several is enough, on either runtime, and so is no test at all."""
    assert table(STATEMENTS, account)[1] is False


def test_a_skipped_test_is_not_applicable_with_its_reason() -> None:
    """Nothing that was skipped counts as held, and its reason is printed."""
    account = [found("passed"), found("skipped", "runsc", "gVisor has no such call")]
    lines, is_sound = table(STATEMENTS, account)
    assert is_sound
    assert row(lines, "A1")[1:3] == ["held", "n/a"]
    assert any(line.strip() == "runsc: gVisor has no such call" for line in lines)


def test_every_statement_has_a_test_or_waits_for_another_part() -> None:
    """Each id stands in a marker somewhere in the tests, unless it says what comes first."""
    sources = Path(__file__).parent.parent.rglob("test_*.py")
    markers = [
        marker
        for path in sources
        for marker in re.findall(r"mark\.statement\(([^)]*)\)", path.read_text("utf-8"))
    ]
    named = {id for marker in markers for id in re.findall(r'"([A-N]\d+)"', marker)}
    missing = [id for id, entry in load().items() if "later" not in entry and id not in named]
    assert missing == []


def test_with_a_selection_only_what_was_selected_is_in_the_table() -> None:
    """A statement that no selected test is about is not called untested; a failure still is one."""
    both = STATEMENTS | {"A2": {"text": "three"}}
    lines, is_sound = table(both, [found("passed")], is_part=True)
    assert is_sound
    assert [line.split()[0] for line in lines if line[0] != " "] == ["ID", "A1"]
    assert row(lines, "A1")[1:3] == ["held", "n/a"]
    assert table(both, [found("passed")])[1] is False
    assert table(both, [found("passed"), found("failed")], is_part=True)[1] is False


def test_a_selection_of_nothing_is_unsound() -> None:
    """A name that fits no test proves nothing."""
    lines, is_sound = table(STATEMENTS, [], is_part=True)
    assert not is_sound
    assert lines == ["no test of a statement was selected"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], False),
        (["-x", "-v"], False),
        (["-k", "netlink"], True),
        (["-knetlink"], True),
        ([__file__], True),
        ([f"{__file__}::test_it"], True),
    ],
)
def test_a_selection_is_known_by_its_arguments(arguments: list[str], expected: bool) -> None:
    """Names, files and single tests select; how loud pytest is does not."""
    assert selects(arguments) is expected
