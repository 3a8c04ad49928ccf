"""Options of git on the command line, from outside: real repositories, real boxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.git.loops import IDENTITY, git, log, make_origin

SECONDS = 200
COMMIT = "echo new > new.txt && git add -A && git commit -qm 'From the loop'"


class Machine:
    """A state directory, a repository, the command line."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.origin = make_origin(place / "origin")

    def run(self, *arguments: str, calls: str = "") -> subprocess.CompletedProcess[str]:
        """One command, as its user types it beside the repository."""
        state = str(self.place / "state")
        return subprocess.run(
            [sys.executable, "-m", "executor", *arguments],
            cwd=self.place,
            env={**os.environ, **IDENTITY, "EXECUTOR_STATE_DIR": state, "NO_COLOR": "1"},
            input=calls,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def call(self, command: str, *options: str) -> subprocess.CompletedProcess[str]:
        """One command in a box."""
        given = json.dumps({"command": command})
        done = self.run("call", "run_command", given, *options)
        assert done.returncode == 0, done.stderr
        return done

    def turn(self, command: str, *options: str) -> dict[str, Any]:
        """A loop of one command; its report."""
        line = json.dumps({"id": "1", "name": "run_command", "input": {"command": command}})
        report = self.place / "report.json"
        done = self.run("run", "--report", str(report), *options, calls=line)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(report.read_text())
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A repository of two commits at least, and nothing that is kept."""
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--worktree", "origin", "--report", "none/r.json"], "No such file or directory; name"),
        (["--worktree", "origin", "--report", "origin/r.json"], "where the loop can rewrite it"),
        (["--worktree", "origin", "--report", "link"], "where the loop can rewrite it"),
        (["--worktree", "origin", "--repo", "origin", "--branch", "x"], "not both"),
        (["--repo", "origin"], "give branch, too"),
        (["--worktree", "origin", "--branch", "x"], "give repo, too"),
        (["--repo", "none", "--branch", "x"], "No such file or directory; name a repository"),
        (["--worktree", "origin", "--git", "x"], "use one of shared, copy, shallow, hidden"),
        (["--worktree", "origin", "--landing", "x"], "use one of keep, refs, branch"),
        (["--worktree", "origin", "--git", "hidden", "--commit"], "choose one"),
        (["--worktree", "origin", "--config", "git.toml"], "known: commit, email, landing"),
        (["--worktree", "origin", "--config", "size.toml"], "-5 is too small"),
    ],
)
def test_wrong_use_is_told_before_anything_runs(
    machine: Machine, arguments: list[str], expected: str
) -> None:
    """Exit code 2 and what to do; no file is made, no loop is begun."""
    (machine.place / "link").symlink_to(machine.origin / "led-here")
    (machine.place / "git.toml").write_text("[loop.git]\ncolour = 1\n")
    (machine.place / "size.toml").write_text("[loop.git]\npack_bytes = -5\n")

    done = machine.run("run", *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr and "Traceback" not in done.stderr
    assert "open in" not in done.stderr
    assert not {"r.json", "led-here"} & {path.name for path in machine.origin.iterdir()}


def test_a_report_for_which_there_is_no_room_is_exit_code_1(machine: Machine) -> None:
    """One sentence, although the loop went well."""
    done = machine.run("run", "--worktree", "origin", "--report", "/dev/full")

    assert done.returncode == 1
    assert "could not be written: No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_call_says_where_its_commit_went(machine: Machine) -> None:
    """It is kept aside, with the command that takes it over; by that it is on the branch."""
    before = git(machine.origin, "rev-parse", "HEAD")

    done = machine.call(COMMIT, "--worktree", "origin")

    assert "1 commit kept aside; take over with: executor git import loop-" in done.stderr
    assert git(machine.origin, "rev-parse", "HEAD") == before
    assert machine.run("git", "import").returncode == 0
    assert log(machine.origin, "HEAD")[0] == "From the loop"


def test_a_call_lands_where_it_is_told_to(machine: Machine) -> None:
    """`call` has the options of `run`: what it commits is on the branch when it ends."""
    machine.call(COMMIT, "--worktree", "origin", "--landing", "branch")
    machine.call("echo more > more.txt", "--worktree", "origin", "--commit")

    assert list(log(machine.origin, "HEAD"))[:2] == [
        "run_command echo more > more.txt",
        "From the loop",
    ]
    assert "nothing is kept" in machine.run("git", "list").stdout


def test_keep_is_obeyed_whatever_else_is_asked_for(machine: Machine) -> None:
    """With `--commit`, and with `--repo`, `--landing keep` leaves the repository as it is."""
    before = git(machine.origin, "for-each-ref")

    for options in (
        ("--worktree", "origin", "--commit", "--exec-id", "one"),
        ("--repo", "origin", "--branch", "other", "--exec-id", "two"),
    ):
        report = machine.turn(COMMIT, "--landing", "keep", *options)
        assert (report["commits"], report["landed"], report["kept"]) == (1, None, True)

    assert git(machine.origin, "for-each-ref") == before
    assert machine.run("git", "import", "two").returncode == 0
    assert git(machine.origin, "log", "-1", "--format=%s", "other").strip() == "From the loop"


def test_a_worktree_that_is_made_counts_what_the_loop_changed(machine: Machine) -> None:
    """Files that were checked out for the loop are none of its changes."""
    report = machine.turn(
        f"{COMMIT}; echo rest > rest.txt", "--repo", "origin", "--branch", "other"
    )

    assert sorted(report["aftermath"]["changed"]["names"]) == ["new.txt", "rest.txt"]
    assert report["landed"]["branch"] == "refs/heads/other"
    assert any(name.endswith("/uncommitted") for name in report["landed"]["refs"])
    assert report["worktree"] is None
