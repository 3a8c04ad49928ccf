"""What test runners say at the end, read out of their output: counts, and what failed. Pure.

The text is a command's output, so nothing in it is believed to be well formed: lines are
looked at one by one, of at most so many and so long, by patterns without repetition inside
repetition. What is not recognised gives None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

MAX_LINES = 50_000
"""Lines that are looked at, of the end: some hundredths of a second."""
MAX_LINE = 2000
"""Characters of a line that are looked at."""
MAX_FAILURES = 100
"""Names of failed tests that are given; all are counted."""
MAX_NAME = 300
"""Characters of such a name."""
MAX_COUNT = 10**9

_STYLE = re.compile(r"\x1b\[[0-9;]{0,20}m")


@dataclass(slots=True)
class Report:
    """What a test run came to.

    Attributes:
        passed, failed, skipped, errors: how many; None = the runner does not say.
        failures: names of tests that failed, in order, at most `MAX_FAILURES`.
    """

    passed: int | None = 0
    failed: int = 0
    skipped: int = 0
    errors: int = 0
    failures: list[str] = field(default_factory=list)

    def name(self, text: str) -> None:
        """Note a test that failed."""
        text = text.strip()[:MAX_NAME]
        if text and len(self.failures) < MAX_FAILURES and text not in self.failures:
            self.failures.append(text)

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "passed": self.passed,
            "failed": self.failed,
            "skipped": self.skipped,
            "errors": self.errors,
            "failures": self.failures,
        }


def read(stdout: str, stderr: str = "", *, is_whole: bool = True) -> dict[str, Any] | None:
    """The report of `read_both`."""
    return read_both(stdout, stderr, is_whole=is_whole)[0]


def read_both(
    stdout: str, stderr: str = "", *, is_whole: bool = True
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """What is counted in all runners' words, and `pytest_summary`, of one look at the output.

    Args:
        stdout, stderr: what the command printed.
        is_whole: see `_others`.
    """
    run = _pytest_run(stdout, stderr)
    if run is None:
        return _others(stdout, stderr, is_whole=is_whole), None
    return run.as_report().as_data(), run.as_summary()


def _others(stdout: str, stderr: str, *, is_whole: bool) -> dict[str, Any] | None:
    """What the test runner of this output counted; None if it can't be told.

    Args:
        stdout, stderr: what the command printed.
        is_whole: nothing was left out of it. Of runners that report in parts, a part that
            is missing would make the sums wrong.
    """
    every = f"{stdout}\n{stderr}".splitlines()
    is_whole = is_whole and len(every) <= MAX_LINES
    lines = _plain(every)
    for reader in (_jest, _unittest):
        if (report := reader(lines)) is not None:
            return report.as_data()
    for reader in (_cargo, _go):
        if is_whole and (report := reader(lines)) is not None:
            return report.as_data()
    return None


def _plain(lines: list[str]) -> list[str]:
    """The last of them, without styles, none longer than is looked at."""
    return [_STYLE.sub("", line[:MAX_LINE]) for line in lines[-MAX_LINES:]]


def _count(text: str) -> int:
    return min(int(text[:12]), MAX_COUNT)


# ─── pytest ─────────────────────────────────────────────────────────────────────────

MAX_FAILED_TESTS = 50
"""Names of failed tests in the summary of a run of pytest."""
_LINES_AFTER = 10
"""Lines that make, tox or a script print after pytest has ended, at most."""

_PYTEST_END = re.compile(
    r"(?:=+ )?((?:\d{1,9} [a-z]{1,20}, ){0,10}\d{1,9} [a-z]{1,20}|no tests ran)"
    r" in (\d{1,9}(?:\.\d{1,6})?)s(?: \([0-9:, a-z]{1,40}\))?(?: =+)?"
)
_PYTEST_PART = re.compile(r"(\d{1,9}) ([a-z]{1,20})")
_PYTEST_FAILED = re.compile(r"(?:FAILED|ERROR) ([^ ].*)")
_PYTEST_LIST = re.compile(r"(?:=+ )?short test summary info(?: =+)?")
_PYTEST_GOES_ON = re.compile(
    r".{0,500}\[ {0,2}\d{1,3}%\]|[.FEsxX]{2,}|={3,} .{1,200} ={3,}|_{3,} .{1,200} _{3,}"
    r"|Fatal Python error: .*|.{1,500}::.{1,500} (?:PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*"
)
"""What a run prints that is not over: a line like its last before that was a test's own."""
_PYTEST_WORDS = ("passed", "failed", "errors", "skipped", "xfailed", "xpassed")


@dataclass(slots=True)
class _PytestRun:
    """What the last line of pytest says, and the list before it."""

    counts: dict[str, int]
    seconds: float
    names: list[str]

    def as_report(self) -> Report:
        """In the words that all runners have."""
        counts = self.counts
        return Report(
            passed=counts["passed"] + counts["xpassed"],
            failed=counts["failed"],
            skipped=counts["skipped"] + counts["xfailed"],
            errors=counts["errors"],
            failures=self.names[:MAX_FAILURES],
        )

    def as_summary(self) -> dict[str, Any]:
        """In pytest's own words."""
        return {
            "runner": "pytest",
            **self.counts,
            "duration_s": self.seconds,
            "failed_tests": self.names[:MAX_FAILED_TESTS],
        }


def pytest_summary(stdout: str, stderr: str = "") -> dict[str, Any] | None:
    """What pytest says of its run at the end, also where make or tox have called it.

    The last line of its kind counts, and only where the output ends with it, but for what
    make and tox say after it. It is text of the box's, and proves nothing: whether the run went
    well is told by the exit code.

    Args:
        stdout, stderr: what the command printed.
    """
    run = _pytest_run(stdout, stderr)
    return None if run is None else run.as_summary()


def _pytest_run(*streams: str) -> _PytestRun | None:
    runs = (_pytest(_plain(stream.splitlines())) for stream in streams)
    return next((run for run in runs if run is not None), None)


def _pytest(lines: list[str]) -> _PytestRun | None:
    end = _pytest_end(lines)
    if end is None or (found := _PYTEST_END.fullmatch(lines[end].strip())) is None:
        return None
    counts = dict.fromkeys(_PYTEST_WORDS, 0)
    for number, word in _PYTEST_PART.findall(found[1]):
        name = "errors" if word == "error" else word
        if name in counts:
            counts[name] += _count(number)
    most = counts["failed"] + counts["errors"]
    return _PytestRun(counts, float(found[2]), _pytest_names(lines[:end], most))


def _pytest_end(lines: list[str]) -> int | None:
    """Where the last line of a run is that is over; None = it is not, or it is no run."""
    after = 0
    for at in range(len(lines) - 1, -1, -1):
        line = lines[at].strip()
        if _PYTEST_END.fullmatch(line):
            return at
        after += bool(line)
        if after > _LINES_AFTER or _PYTEST_GOES_ON.fullmatch(line):
            return None
    return None


def _pytest_name(entry: str) -> str:
    """The test's name in an entry of the list, without what it failed of.

    What stands in brackets are its parameters, which may hold the dash that ends a name.
    """
    name = entry.partition(" - ")[0]
    if "[" not in name or name.endswith("]"):
        return name
    whole, bracket, _ = entry.partition("] - ")
    return whole + bracket[:1]


def _pytest_names(lines: list[str], most: int) -> list[str]:
    """The tests that failed, out of the last list before the end; no more than were counted."""
    start = next(
        (at for at in range(len(lines) - 1, -1, -1) if _PYTEST_LIST.fullmatch(lines[at].strip())),
        len(lines),
    )
    report = Report()
    for line in lines[start:]:
        if (found := _PYTEST_FAILED.fullmatch(line)) is not None:
            name = _pytest_name(found[1])
            if "::" in name or name.endswith(".py"):
                report.name(name)
    return report.failures[:most]


# ─── jest, vitest ───────────────────────────────────────────────────────────────────

_JEST_END = re.compile(
    r"\s*Tests:?\s{1,20}(\d{1,9} \w{1,10}(?:(?:, | \| )\d{1,9} \w{1,10}){0,6})\b.*"
)
_JEST_PART = re.compile(r"(\d{1,9}) (passed|failed|skipped|todo|pending)")
_JEST_FAILED = re.compile(r"\s{0,8}(?:\u25cf|FAIL|\u00d7|\u2715)\s{1,4}(\S.*)")


def _jest(lines: list[str]) -> Report | None:
    end = next((line for line in reversed(lines) if _JEST_END.fullmatch(line)), None)
    if end is None:
        return None
    report = Report()
    for number, word in _JEST_PART.findall(end):
        name = word if word in ("passed", "failed") else "skipped"
        setattr(report, name, getattr(report, name) + _count(number))
    for line in lines if report.failed else ():
        found = _JEST_FAILED.fullmatch(line)
        if found is not None and (" \u203a " in found[1] or " > " in found[1]):
            report.name(found[1])
    return report


# ─── unittest ───────────────────────────────────────────────────────────────────────

_RAN = re.compile(r"Ran (\d{1,9}) tests? in .{1,40}")
_VERDICT = re.compile(r"(OK|FAILED)(?: \((.{1,200})\))?")
_UNITTEST_PART = re.compile(
    r"(failures|errors|skipped|expected failures|unexpected successes)=(\d{1,9})"
)
_UNITTEST_FAILED = re.compile(r"(?:FAIL|ERROR): (\S.*)")


def _unittest(lines: list[str]) -> Report | None:
    at = next((at for at in range(len(lines) - 1, -1, -1) if _RAN.fullmatch(lines[at])), None)
    if at is None:
        return None
    verdict = next(filter(None, map(_VERDICT.fullmatch, lines[at + 1 : at + 5])), None)
    ran = _RAN.fullmatch(lines[at])
    if verdict is None or ran is None:
        return None
    counts = {name: _count(number) for name, number in _UNITTEST_PART.findall(verdict[2] or "")}
    report = Report(
        failed=counts.get("failures", 0) + counts.get("unexpected successes", 0),
        errors=counts.get("errors", 0),
        skipped=counts.get("skipped", 0) + counts.get("expected failures", 0),
    )
    report.passed = max(_count(ran[1]) - report.failed - report.errors - report.skipped, 0)
    _name_all(report, lines, _UNITTEST_FAILED.fullmatch)
    return report


def _name_all(
    report: Report, lines: Iterable[str], match: Callable[[str], re.Match[str] | None]
) -> None:
    for line in lines:
        if (found := match(line)) is not None:
            report.name(found[1])


# ─── cargo ──────────────────────────────────────────────────────────────────────────

_CARGO_END = re.compile(
    r"test result: (?:ok|FAILED)\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored;.{0,200}"
)
_CARGO_FAILED = re.compile(r"test (\S.*?) \.\.\. FAILED")


def _cargo(lines: list[str]) -> Report | None:
    ends = [found for line in lines if (found := _CARGO_END.fullmatch(line))]
    if not ends:
        return None
    report = Report(
        passed=sum(_count(end[1]) for end in ends),
        failed=sum(_count(end[2]) for end in ends),
        skipped=sum(_count(end[3]) for end in ends),
    )
    _name_all(report, lines, _CARGO_FAILED.fullmatch)
    return report


# ─── go ─────────────────────────────────────────────────────────────────────────────

_GO_TEST = re.compile(r"\s{0,80}--- (PASS|FAIL|SKIP): (\S{1,1000}) \(\d{1,9}\.\d{1,4}s\)")
_GO_PACKAGE = re.compile(
    r"(?:ok  |FAIL)\t(\S{1,1000})\t.{0,200}|\?   \t\S{1,1000}\t\[no test files\]"
)


def _go(lines: list[str]) -> Report | None:
    packages = [found for line in lines if (found := _GO_PACKAGE.fullmatch(line))]
    if not packages:
        return None
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    report = Report()
    for line in lines:
        if (found := _GO_TEST.fullmatch(line)) is not None:
            counts[found[1]] += 1
            if found[1] == "FAIL":
                report.name(found[2])
    report.failed, report.skipped = counts["FAIL"], counts["SKIP"]
    # Without -v it names the tests that failed only.
    report.passed = counts["PASS"] if counts["PASS"] else None
    report.errors = sum(
        "[build failed]" in found[0] or "[setup failed]" in found[0] for found in packages
    )
    return report
