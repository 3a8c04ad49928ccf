"""The security statements and the tests that hold them: a marker, and an account of it.

`@pytest.mark.statement("B1")` says that a test proves a statement of
`tests/security/statements.toml`; a test may prove several. `runsc="reason"` says that the
statement has no meaning under gVisor, or that something else carries it there: the test is
skipped with that reason where its `runtime` is `runsc`. `--statements FILE` writes what
came of every one of them, for `python -m tests.security`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STATEMENTS = Path(__file__).parent / "security" / "statements.toml"


def load() -> dict[str, dict[str, str]]:
    """Id → `text`, and `later` where another part of the product has to come first."""
    return tomllib.loads(STATEMENTS.read_text("utf-8"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--statements FILE`."""
    parser.addoption("--statements", type=Path, help="write outcomes of statements as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker and the account."""
    config.addinivalue_line(
        "markers", "statement(*ids, runsc=None): the test proves these security statements"
    )
    config.pluginmanager.register(_Account(config.getoption("--statements")), "statements-account")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A marker names known statements only; what gVisor has no use for is skipped aloud."""
    known = load()
    for item in items:
        for marker in item.iter_markers("statement"):
            if unknown := [id for id in marker.args if id not in known]:
                raise pytest.UsageError(f"{item.nodeid}: no statement {', '.join(unknown)}")
            reason = marker.kwargs.get("runsc")
            if reason and _runtime(item) == "runsc":
                item.add_marker(pytest.mark.skip(reason=reason))


def _runtime(item: pytest.Item) -> str:
    """The value of the test's `runtime` fixture; `runc` where it has none."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("runtime", "runc")) if callspec is not None else "runc"


class _Account:
    """What came of every test that proves a statement."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._found: list[dict[str, Any]] = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Notes outcome and reason of each test once."""
        outcome = yield
        report = outcome.get_result()  # type: ignore[attr-defined]
        ids = [id for marker in item.iter_markers("statement") for id in marker.args]
        if not ids or (report.when != "call" and report.passed):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        self._found.append(
            {
                "ids": ids,
                "runtime": _runtime(item),
                "test": item.nodeid,
                "outcome": report.outcome,
                "reason": str(reason).removeprefix("Skipped: "),
            }
        )

    def pytest_sessionfinish(self) -> None:
        """Writes the account."""
        if self._file is not None:
            self._file.write_text(json.dumps(self._found))
