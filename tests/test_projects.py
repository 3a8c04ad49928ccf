"""build, test, validate: what they run, what rules see of it, what they tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.catalog import PACKAGED, Catalog, load, parse
from executor.controller import Controller
from executor.errors import Code, ConfigError
from executor.model import (
    ApprovalAnswer,
    ApprovalRequest,
    Event,
    Finished,
    LoopSpec,
    Output,
    Progress,
    Question,
    Result,
)
from executor.settings import Settings
from executor.tools import projects, reports
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread, wait_until
from tests.loops import Work, open_work, opener


def catalog(text: str) -> Catalog:
    """The packaged catalog with a user's text over it."""
    return parse([(PACKAGED, Path(load.__code__.co_filename).with_name(PACKAGED).read_text()),
                  ("my.toml", text)])  # fmt: skip


@contextmanager
def over(directory: Path, text: str = "", approver: Any = None, **spec: Any) -> Iterator[Work]:
    """A loop with a user's catalog and an approver."""
    root = make_worktree(directory / "worktree")
    with LoopThread() as thread:
        made = replace(Settings.load(), state_directory=directory / "state")
        controller = thread.enter(
            Controller(made, catalog(text), opener=opener("local", directory), approver=approver)
        )
        loop = thread.enter(controller.open(LoopSpec(worktree=root, limits=LIMITS, **spec)))
        yield Work(thread, loop, root, "local")


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """A loop of its own."""
    with open_work("local", tmp_path) as made:
        yield made


def named(result: Result) -> str | None:
    """The command that a result names."""
    return (result.structured or {}).get("command")


# ─── what is run ────────────────────────────────────────────────────────────────────

NPM = '{"scripts": {"test": "jest", "build": "tsc", "validate": "x"}}'
NO_TESTS = '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'
MAKE = "all: x\nbuild:\n\ttrue\ntest : y\n\ttrue\nvalidate:\n\ttrue\n"


@pytest.mark.parametrize(
    ("files", "build", "test", "validate"),
    [
        ({"pyproject.toml": ""}, None, "python3 -m pytest", "python3 -m pytest"),
        ({"setup.cfg": ""}, None, "python3 -m pytest", "python3 -m pytest"),
        ({"package.json": NPM}, "npm run build", "npm test", "npm run validate"),
        ({"package.json": NO_TESTS}, None, None, None),
        ({"package.json": "[" * 50_000}, None, None, None),
        ({"package.json": '{"scripts": ["test"]}'}, None, None, None),
        ({"package.json": '{"scripts": {"test": 5}}'}, None, None, None),
        ({"Cargo.toml": ""}, "cargo build", "cargo test", "cargo test"),
        ({"go.mod": "module x\n"}, "go build ./...", "go test ./...", "go test ./..."),
        ({"Makefile": MAKE}, "make build", "make test", "make validate"),
        ({"Makefile": "all:\n\ttrue\ncheck:\n\ttrue\n"}, "make all", "make check", "make check"),
        ({"Makefile": "test := 1\n# build: x\n\tvalidate: y\n"}, None, None, None),
        (
            {"pyproject.toml": "", "package.json": NPM, "Makefile": MAKE},
            "npm run build",
            "python3 -m pytest",
            "npm run validate",
        ),
        ({}, None, None, None),
    ],
)
def test_what_the_worktree_has_is_found(
    work: Work,
    files: Mapping[str, str],
    build: str | None,
    test: str | None,
    validate: str | None,
) -> None:
    """Each of the three by what lies in the root; where nothing does, the call says what to
    give, and nothing is run."""
    for name, content in files.items():
        work.write(name, content)
    for name, expected in (("build", build), ("test", test), ("validate", validate)):
        result = work.call(name)
        if expected is None:
            assert result.code is Code.INVALID_ARGUMENTS
            assert f"tools.{name}.command" in str(result.content)
        else:
            assert named(result) == expected
            assert f"[ran: {expected}]" in str(result.content)


def test_what_the_model_says_comes_first_then_the_catalog(tmp_path: Path) -> None:
    """The worktree is looked at last; whatever ran is named, in its root."""
    text = '[tools.test]\ncommand = "echo from the catalog; pwd"\n'
    with over(tmp_path, text) as work:
        work.write("pyproject.toml", "")
        work.write("sub/x", "")
        work.call("run_command", command="cd sub")
        result = work.call("test", command="echo mine")
        assert result.content == "mine\n[ran: echo mine]"
        result = work.call("test")
        assert result.content == (
            f"from the catalog\n{work.root}\n[ran: echo from the catalog; pwd]"
        )
        moved = work.call("test", command="cd sub; cd ..; cd sub; false")
        assert moved.structured is not None and moved.structured["cwd"] == f"{work.root}/sub"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[tools.test]\ncommand = ["pytest"]\n', "tools.test.command: is a list; write one line"),
        ('[tools.glob]\ncommand = "x"\n', "tools.glob.command: has no effect for this tool"),
    ],
)
def test_a_command_in_the_catalog_is_a_line_and_for_these_tools(text: str, fault: str) -> None:
    """Anything else is a fault that says what to write."""
    with pytest.raises(ConfigError) as caught:
        catalog(text)
    assert any(fault in one for one in caught.value.faults), caught.value.faults


def test_a_command_fails_and_times_out_like_any_other(work: Work) -> None:
    """Exit codes, signals, limits and timeouts are told as `run_command` tells them."""
    result = work.call("build", command="echo no; exit 2")
    assert (result.code, result.is_error) == (Code.EXECUTION_ERROR, True)
    assert str(result.content).startswith("Exit code: 2\nno\n")
    assert result.structured is not None and result.structured["exit_code"] == 2
    result = work.call("test", command="echo some; sleep 60", timeout_ms=200)
    assert result.code is Code.TIMEOUT
    assert str(result.content).startswith("Command timed out after 200ms\nsome\n")
    result = work.call("test", command="true", timeout_ms=600_001)
    assert result.code is Code.INVALID_ARGUMENTS


def test_isolated_is_run_command_under_another_name(work: Work) -> None:
    """The same arguments, the same result; it says the lane that it ran in."""
    given = {"command": "echo a; echo b >&2; exit 3", "timeout_ms": 5000}
    first, second = work.turn(("run_command", given), ("run_command_isolated", given))
    assert first.content == second.content == "Exit code: 3\na\n\n\nSTDERR:\nb\n"
    assert first.structured == second.structured
    assert second.structured is not None and second.structured["lane"] == "no-net"


# ─── rules, approvers ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["build", "test", "validate"])
@pytest.mark.parametrize("given", [{}, {"command": "env make all"}])
def test_rules_on_commands_hold_for_what_was_found(
    tmp_path: Path, name: str, given: Mapping[str, str]
) -> None:
    """A deny rule for commands is about what really runs, named or found; others run."""
    with over(tmp_path, deny=("run_command(make *)",)) as work:
        work.write("Makefile", "all:\n\ttouch ran\ntest:\n\ttouch ran\n")
        result = work.call(name, **given)
        assert result.code is Code.PERMISSION_DENIED, result.content
        assert "run_command(make *)" in str(result.content)
        assert not (work.root / "ran").exists()
        (work.root / "Makefile").unlink()
        work.write("go.mod", "")
        assert work.call(name).code is not Code.PERMISSION_DENIED


@pytest.mark.parametrize("name", ["run_command_isolated", "run_command"])
def test_rules_hold_in_the_background(tmp_path: Path, name: str) -> None:
    """What goes on after its call is judged as what does not."""
    with over(tmp_path, deny=("run_command(touch *)",)) as work:
        result = work.call(name, command="true; touch ran", run_in_background=True)
        assert result.code is Code.PERMISSION_DENIED
        assert not (work.root / "ran").exists()


def test_a_file_that_may_not_be_read_is_not_looked_at(tmp_path: Path) -> None:
    """What rules deny to reading says nothing about the project either."""
    with over(tmp_path, deny=("Read(package.json)",)) as work:
        work.write("package.json", NPM)
        assert work.call("build").code is Code.INVALID_ARGUMENTS


class Person:
    """Allows what it is asked, and notes it."""

    def __init__(self) -> None:
        self.asked: list[ApprovalRequest] = []

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Yes."""
        self.asked.append(request)
        return ApprovalAnswer(approved=True)

    async def answer(self, questions: Sequence[Question]) -> Mapping[str, Sequence[str]]:
        """Nobody asks it."""
        raise AssertionError(questions)


def test_whoever_is_asked_sees_the_command_that_was_found(tmp_path: Path) -> None:
    """The request holds what will run, and a rule for it; the rule then allows it unasked."""
    person = Person()
    with over(tmp_path, approver=person, mode="default") as work:
        work.write("Makefile", "test:\n\techo tested\n")
        assert "tested" in str(work.call("test").content)
        (request,) = person.asked
        assert request.arguments == {"command": "make test"}
        assert request.action == "make test"
        assert request.rules == ("run_command(make test *)",)
        work.loop.allow("run_command(make test *)")
        assert work.call("test").code is None
        assert len(person.asked) == 1


# ─── validation ─────────────────────────────────────────────────────────────────────

TYPE = (
    '[loop_types.careful]\nrequire_validation = true\ntools = ["read_file", "write_file", '
    '"run_command", "task_output", "validate", "complete_task"]\n'
)


@pytest.mark.parametrize(
    ("name", "given", "holds"),
    [
        ("read_file", {"path": "a.txt"}, True),
        ("run_command", {"command": "ls; cat a.txt"}, True),
        ("run_command", {"command": "touch b"}, False),
        ("run_command", {"command": "touch b; exit 1"}, False),
        ("write_file", {"path": "new.txt", "content": "x"}, False),
        ("write_file", {"path": "a.txt", "content": "x"}, True),  # refused: it was not read
        ("run_command", {"command": "touch b", "run_in_background": True}, False),
    ],
)
def test_a_validation_holds_until_something_is_changed(
    tmp_path: Path, name: str, given: dict[str, Any], holds: bool
) -> None:
    """Row 40: complete_task is there after `validate` passed, and not after a change."""
    with over(tmp_path, TYPE, loop_type="careful") as work:
        work.write("a.txt", "x")
        result = work.call("complete_task", summary="done")
        assert (result.code, work.loop.session.validated) == (Code.DISABLED, None)
        assert "validate has not passed yet" in str(result.content)
        assert work.call("validate", command="false").is_error
        assert work.loop.session.validated is False
        result = work.call("complete_task", summary="done")
        assert result.code is Code.DISABLED and "failed" in str(result.content)
        assert work.call("validate", command="touch report").code is None
        assert work.loop.session.validated is True
        work.call(name, **given)
        assert work.loop.session.validated is (True if holds else None)
        assert (work.call("complete_task", summary="done").code is None) is holds


def test_a_validation_that_was_cancelled_has_not_passed(work: Work) -> None:
    """What was true before it began no longer counts."""
    assert work.call("validate", command="true").code is None
    call = work.make("validate", {"command": "touch begun; sleep 60"})
    future = asyncio.run_coroutine_threadsafe(work.loop.turn([call]), work.thread.loop)
    wait_until((work.root / "begun").exists)

    async def cancel() -> int:
        return work.loop.cancel()

    assert work.thread.run(cancel()) == 1
    (result,) = future.result(30)
    assert result.code is Code.CANCELLED and not work.loop.session.validated


# ─── one pipe, cancellation ─────────────────────────────────────────────────────────

MERGED = '[toolsets.merged]\nbase = "standard"\nmerge_stderr = true\n'


def test_both_streams_in_one_pipe_keep_their_order(tmp_path: Path) -> None:
    """F59: exact in twenty of twenty runs, and the data say that they are merged."""
    with over(tmp_path, MERGED, toolset="merged") as work:
        command = "for i in 1 2 3; do echo o$i; echo e$i >&2; done"
        for _ in range(20):
            result = work.call("run_command", command=command)
            assert result.content == "o1\ne1\no2\ne2\no3\ne3\n"
        assert result.structured is not None
        assert (result.structured["merged"], result.structured["stderr"]) == (True, "")
        result = work.call("run_command", command="echo a >&2; exit 7")
        assert result.content == "Exit code: 7\na\n"
        started = work.call("run_command", command=command, run_in_background=True)
        result = work.call("task_output", task_id=str(started.content).rpartition(" ")[2])
        assert str(result.content).endswith("\no1\ne1\no2\ne2\no3\ne3\n")


def test_a_cancelled_command_keeps_what_it_had_printed(work: Work) -> None:
    """Row 92: an error with the code CANCELLED, and the output so far."""
    call = work.make("run_command", {"command": "echo some; touch begun; sleep 60"})
    future = asyncio.run_coroutine_threadsafe(work.loop.turn([call]), work.thread.loop)
    wait_until((work.root / "begun").exists)

    async def cancel() -> int:
        return work.loop.cancel()

    assert work.thread.run(cancel()) == 1
    (result,) = future.result(30)
    assert (result.code, result.is_error) == (Code.CANCELLED, True)
    assert "some\n" in str(result.content)


# ─── what a test run counted ────────────────────────────────────────────────────────

PYTEST = """\
============================= test session starts ==============================
collected 6 items

test_a.py .Fs.E                                                           [100%]

=================================== FAILURES ===================================
    def test_y():
>       assert 0
=========================== short test summary info ============================
FAILED test_a.py::test_y - assert 0
ERROR test_a.py::test_z - RuntimeError: FAILED x::y - z
=============== 1 failed, 2 passed, 1 skipped, 1 xfailed, 1 error in 0.12s ===============
"""
JEST = """\
FAIL src/a.test.js
  ● sums \u203a adds
    expected 3
  ✕ adds (5 ms)

Test Suites: 1 failed, 1 passed, 2 total
Tests:       1 failed, 2 skipped, 3 passed, 6 total
Snapshots:   0 total
"""
VITEST = """\
 FAIL  src/a.test.ts > sums > adds
 Test Files  1 failed (1)
      Tests  1 failed | 2 passed (3)
"""
UNITTEST = """\
FAIL: test_y (test_a.T.test_y)
----------------------------------------------------------------------
Ran 5 tests in 0.002s

FAILED (failures=1, errors=1, skipped=1)
"""
CARGO = """\
running 2 tests
test tests::adds ... ok
test tests::fails ... FAILED

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 1 test
test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""
GO = """\
--- FAIL: TestY (0.00s)
    a_test.go:5: no
FAIL
FAIL\texample.org/a\t0.002s
ok  \texample.org/b\t0.001s
?   \texample.org/c\t[no test files]
"""
GO_VERBOSE = """\
=== RUN   TestX
--- PASS: TestX (0.00s)
--- SKIP: TestS (0.00s)
ok  \texample.org/a\t0.002s
"""
BOTH = ["test_a.py::test_y", "test_a.py::test_z"]


def counted(
    passed: int | None, failed: int, skipped: int, errors: int, failures: list[str]
) -> dict[str, Any]:
    return {
        "passed": passed,
        "failed": failed,
        "skipped": skipped,
        "errors": errors,
        "failures": failures,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PYTEST, counted(2, 1, 2, 1, BOTH)),
        (PYTEST.replace("2 passed", "\x1b[32m2 passed\x1b[0m"), counted(2, 1, 2, 1, BOTH)),
        ("..\n2 passed in 0.01s\n", counted(2, 0, 0, 0, [])),
        ("==== 3 passed, 1 warning in 75.20s (0:01:15) ====\n", counted(3, 0, 0, 0, [])),
        ("no tests ran in 0.00s\n", counted(0, 0, 0, 0, [])),
        (JEST, counted(3, 1, 2, 0, ["sums \u203a adds"])),
        (VITEST, counted(2, 1, 0, 0, ["src/a.test.ts > sums > adds"])),
        (UNITTEST, counted(2, 1, 1, 1, ["test_y (test_a.T.test_y)"])),
        ("Ran 1 test in 0.000s\n\nOK\n", counted(1, 0, 0, 0, [])),
        (CARGO, counted(4, 1, 2, 0, ["tests::fails"])),
        (GO, counted(None, 1, 0, 0, ["TestY"])),
        (GO_VERBOSE, counted(1, 0, 1, 0, [])),
        ("FAIL\texample.org/a [build failed]\n", None),
        ("all good\n", None),
        ("I passed 2 in 3 s\n", None),
        ("99999999999999999999 passed in 0.1s\n", None),
        ("", None),
    ],
    ids=range(17),
)
def test_what_test_runners_count_is_read(text: str, expected: dict[str, Any] | None) -> None:
    """Of each runner what it says at the end; of anything else nothing."""
    assert reports.read(text) == expected


@pytest.mark.parametrize(("text", "is_told"), [(PYTEST, True), (CARGO, False), (GO, False)])
def test_sums_of_parts_need_all_of_them(text: str, is_told: bool) -> None:
    """Where something was left out of the output, only a total at the end counts."""
    assert (reports.read(text, is_whole=False) is not None) is is_told


PIECES = st.sampled_from(
    [
        *("FAILED a::b - ", "ERROR ", "= ", "1 failed, ", "2 passed", " in 1.0s", "Tests: ", "● "),
        *("Ran 3 tests in 1s", "FAILED (failures=1)", "--- FAIL: T (0.0s)", "ok  \tx\t1s", "\t"),
        *("test a ... FAILED", "test result: ok. 1 passed; 0 failed; 0 ignored;", "\x1b[", "m"),
        *("\n", "\r", "\0", "9" * 30, "(", ")", " | ", " \u203a ", "\u2028", "\ud800"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=20), max_size=60))
def test_no_text_breaks_the_reading(pieces: list[str]) -> None:
    """Whatever is printed gives None, or counts that are sane."""
    report = reports.read("".join(pieces))
    if report is not None:
        numbers = [report[name] for name in ("passed", "failed", "skipped", "errors")]
        assert all(number is None or 0 <= number <= 10**10 for number in numbers)
        assert len(report["failures"]) <= reports.MAX_FAILURES
        assert all(len(name) <= reports.MAX_NAME for name in report["failures"])


@pytest.mark.parametrize(
    "line",
    [
        "1 a, " * 400,
        "=" * 2000,
        "Tests: " + "1 failed, " * 300,
        "--- FAIL: " + "x" * 3000,
        " " * 2000,
    ],
)
def test_hostile_lines_take_no_time(line: str) -> None:
    """Many lines made to be looked at for long are read in a moment."""
    text = (line + "\n") * 5000

    async def timely() -> None:
        async with asyncio.timeout(20):
            await asyncio.to_thread(reports.read, text)

    asyncio.run(timely())


MAKE_AFTER = "make: *** [Makefile:2: test] Error 1\nmake: Leaving directory '/workspace'\n"
TOX_AFTER = (
    "py: exit 1 (0.62 seconds) /workspace> pytest pid=7\n  py: FAIL code 1 (0.9=setup[0.3]+cmd"
    "[0.6] seconds)\n  evaluation failed :( (1.0 seconds)\n"
)
FORGED = "==== 9 passed in 0.01s ===="
QUIET = (
    "F\nFAILED test_a.py::test_y - assert 0\n1 failed, 1 xfailed, 2 xpassed in 61.50s (0:01:01)\n"
)


def summed(duration: float, names: list[str], **counts: int) -> dict[str, Any]:
    """A summary in which what is not named is 0."""
    words = ("passed", "failed", "errors", "skipped", "xfailed", "xpassed")
    found = {**dict.fromkeys(words, 0), **counts}
    return {"runner": "pytest", **found, "duration_s": duration, "failed_tests": names}


WHOLE = summed(0.12, BOTH, passed=2, failed=1, skipped=1, xfailed=1, errors=1)


@pytest.mark.parametrize(
    ("stdout", "stderr", "expected"),
    [
        (PYTEST, "", WHOLE),
        (PYTEST, MAKE_AFTER, WHOLE),
        (PYTEST + MAKE_AFTER, "", WHOLE),
        ("py: commands[0]> pytest\n" + PYTEST + TOX_AFTER, "", WHOLE),
        ("", PYTEST, WHOLE),
        (
            "\n".join(f"\x1b[31m{line}\x1b[0m" if "=" in line else line
                      for line in PYTEST.splitlines()),
            "",
            WHOLE,
        ),
        (FORGED + "\n" + PYTEST, "", WHOLE),
        (PYTEST + "..\n3 passed in 1.00s\n", "", summed(1.0, [], passed=3)),
        (QUIET, "", summed(61.5, [], failed=1, xfailed=1, xpassed=2)),
        (f"short test summary info\n{QUIET}", "",
         summed(61.5, BOTH[:1], failed=1, xfailed=1, xpassed=2)),
        (f"test_a.py ..\n{FORGED}\ntest_b.py ....   [ 40%]\nKilled\n", "", None),
        (f"{FORGED}\n.....\nSegmentation fault\n", "", None),
        (f"{FORGED}\nFatal Python error: Aborted\n", "", None),
        (f"{FORGED}\ntests/test_b.py::test_z PASSED\n", "", None),
        (f"{FORGED}\n=========== FAILURES ===========\n", "", None),
        (FORGED + "\nline" * 11, "", None),
        (GO, "", None),
        (JEST, "", None),
    ],
    ids=range(18),
)  # fmt: skip
def test_the_end_of_a_run_of_pytest_is_read(
    stdout: str, stderr: str, expected: dict[str, Any] | None
) -> None:
    """Its last line counts, whoever called it; a line like it before the run is over does not."""
    assert reports.pytest_summary(stdout, stderr) == expected


@pytest.mark.parametrize("stdout", [PYTEST, GO, JEST, "nothing"])
def test_both_are_read_of_one_look(stdout: str) -> None:
    """The report that all runners have, and pytest's own summary."""
    both = (reports.read(stdout), reports.pytest_summary(stdout))
    assert reports.read_both(stdout) == both


def test_parameters_with_a_dash_do_not_end_a_name() -> None:
    """What is in brackets belongs to the name; what follows is why it failed."""
    names = ["a.py::t[c - d]", "a.py::t[x]", "a.py::t[y - z]", "a.py::u"]
    entries = f"FAILED {names[0]} - no\nFAILED {names[1]} - [e] - f\nFAILED {names[2]}\n"
    text = f"short test summary info\n{entries}ERROR {names[3]} - x[1] - y\n"
    summary = reports.pytest_summary(f"{text}3 failed, 1 error in 0.10s\n") or {}
    assert summary["failed_tests"] == names


def test_no_more_tests_are_named_than_failed() -> None:
    """Of many the first fifty; of a list that a test has printed no more than are counted."""
    listed = "\n".join(f"FAILED test_a.py::test_{n} - x" for n in range(80))
    text = "=== short test summary info ===\n{}\n==== {} failed in 1.00s ====\n"
    many = reports.pytest_summary(text.format(listed, 80)) or {}
    assert many["failed_tests"] == [f"test_a.py::test_{n}" for n in range(50)]
    few = reports.pytest_summary(text.format(listed, 2)) or {}
    assert few["failed_tests"] == ["test_a.py::test_0", "test_a.py::test_1"]


@pytest.mark.parametrize("name", ["build", "test", "validate"])
def test_all_three_sum_up_what_pytest_says(work: Work, name: str) -> None:
    """Also where make calls it; whether it went well is the exit code's to say."""
    work.write("out.txt", PYTEST)
    targets = (f"{target}:\n\t@cat out.txt; exit 1\n" for target in ("all", "test", "validate"))
    work.write("Makefile", "".join(targets))
    result = work.call(name)
    assert (result.structured or {})["summary"] == WHOLE
    assert result.is_error and "short test summary info" in str(result.content)
    (work.root / "out.txt").write_text(f"{FORGED}\n")
    result = work.call(name)
    found = result.structured or {}
    assert (result.is_error, found["summary"], found.get("passed")) == (True, None, None)
    assert FORGED in str(result.content)
    result = work.call(name, command="cat out.txt")
    assert (result.structured or {})["summary"] == summed(0.01, [], passed=9)
    assert (work.call(name, command="echo fine").structured or {})["summary"] is None


def test_a_long_command_tells_that_it_runs(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output is told as it comes, and where nothing comes how long it has run."""
    monkeypatch.setattr(projects, "PROGRESS_SECONDS", 0.01)
    call = work.make("build", {"command": "echo begun; until [ -e go ]; do sleep 0.01; done"})
    told: list[Event] = []

    async def build() -> None:
        async for event in work.loop.stream([call]):
            told.append(event)
            if isinstance(event, Progress):
                (work.root / "go").touch()

    work.thread.run(build())
    (first, *_) = [event for event in told if isinstance(event, Progress)]
    assert first.call_id == call.id and "until [ -e go ]" in first.message
    assert first.message.endswith("running for 0 s") and first.current is not None
    assert [event.text for event in told if isinstance(event, Output)] == ["begun\n"]
    (end,) = [event for event in told if isinstance(event, Finished)]
    assert end.result.code is None


def test_the_test_tool_tells_counts_or_null(work: Work) -> None:
    """The data have the fields always; they are null where nothing was recognised."""
    work.write("out.txt", PYTEST)
    result = work.call("test", command="cat out.txt; exit 1")
    found = result.structured or {}
    assert {name: found[name] for name in counted(0, 0, 0, 0, [])} == counted(2, 1, 2, 1, BOTH)
    result = work.call("test", command="echo fine")
    found = result.structured or {}
    assert [found[name] for name in counted(0, 0, 0, 0, [])] == [None] * 5
