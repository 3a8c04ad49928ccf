"""`executor git`: what loops have made is listed, shown, taken over and discarded."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from executor.git.records import Entry, Record, Records, State
from tests.git.loops import IDENTITY, Loop, commit, describe, digest, git, log, make_origin, start

DEAD = "0" * 16
SECONDS = 120


class Machine:
    """A state directory, a repository and the command line."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.state = place / "state"
        self.origin = make_origin(place / "origin")
        self._count = 0

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the command line."""
        return {**os.environ, **IDENTITY, "EXECUTOR_STATE_DIR": str(self.state), "NO_COLOR": "1"}

    def run(
        self, *arguments: str, code: int = 0, place: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One command; checks its exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "executor", "git", *arguments],
            cwd=place or self.origin,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def loop(self) -> Loop:
        """A loop that begins now."""
        self._count += 1
        return start(describe(self.origin), self.place / f"loop{self._count}")

    def keep(self, loop: Loop, exec_id: str = "one", state: State = State.KEPT) -> Entry:
        """What a loop has made is kept, as after its end."""
        record = Record.begin(loop.repository, exec_id=exec_id, tenant=None, controller=DEAD)
        entry = Records(self.state).create(record)
        arrival = replace(loop.arrive(entry.quarantine), commits=2)
        entry.arrived(arrival)
        if state is State.UNEXPORTED:
            entry.private.mkdir()
            (entry.private / "HEAD").write_text("ref: refs/heads/main\n")
        entry.save(replace(entry.record, state=state))
        return entry

    def made(self, exec_id: str = "one", message: str = "made inside") -> Entry:
        """A loop that made a commit, and ended."""
        loop = self.loop()
        loop.commit({"a.txt": "from the loop\n"}, message)
        return self.keep(loop, exec_id)


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_there_may_be_nothing(machine: Machine) -> None:
    """Without any loop the list is empty, and the other commands say so."""
    assert "nothing is kept" in machine.run("list").stdout
    assert json.loads(machine.run("list", "--json").stdout) == []
    for command in ("import", "log", "diff", "discard"):
        assert "nothing is kept" in machine.run(command, code=2).stderr
        assert "executor git list" in machine.run(command, "other", code=2).stderr


def test_what_is_kept_is_listed_and_shown(machine: Machine) -> None:
    """The list names the loop, the log its commits, the difference its lines; all untouched."""
    entry = machine.made()
    before = digest(machine.origin)
    (row,) = json.loads(machine.run("list", "--json").stdout)
    assert (row["exec_id"], row["state"], row["commits"]) == ("one", "kept", 2)
    assert row["directory"] == str(entry.directory)
    assert "kept" in machine.run("list").stdout
    told = machine.run("log").stdout
    assert "made inside" in told
    assert "base" not in told
    assert "+from the loop" in machine.run("diff", "one").stdout.splitlines()
    assert "a.txt | 2 +-" in machine.run("diff", entry.name, "--stat").stdout
    assert digest(machine.origin) == before


def test_an_import_advances_the_branch(machine: Machine) -> None:
    """Commits and branch arrive, what landed is printed, and nothing stays kept beside."""
    entry = machine.made()
    told = machine.run("import").stdout
    assert "refs/loops/one/head" in told
    assert " main, was " in told
    assert log(machine.origin, "main") == ["made inside", "base"]
    assert not entry.directory.exists()


def test_an_import_of_refs_leaves_the_branch(machine: Machine) -> None:
    """`--refs-only` lands the refs; a later import takes the branch along."""
    machine.made()
    machine.run("import", "--refs-only")
    assert log(machine.origin, "main") == ["base"]
    assert log(machine.origin, "refs/loops/one/heads/main")[0] == "made inside"
    machine.run("import")
    assert log(machine.origin, "main")[0] == "made inside"


def test_a_conflict_is_told_and_loses_nothing(machine: Machine) -> None:
    """The exit code is 1, the way out is said, and the loop stays kept."""
    entry = machine.made()
    commit(machine.origin, {"own.txt": "own\n"}, "own")
    done = machine.run("import", code=1)
    assert "main was not advanced: it has moved" in done.stderr
    assert "merge refs/loops/one/heads/main" in done.stderr
    assert log(machine.origin, "main")[0] == "own"
    assert entry.directory.exists()


def test_a_repository_that_is_gone_is_a_clear_error(machine: Machine) -> None:
    """What was made can still be looked at by nobody else, and is not lost."""
    entry = machine.made()
    machine.origin.rename(machine.place / "moved")
    assert "is gone" in machine.run("import", code=2, place=machine.place).stderr
    assert entry.directory.exists()


def test_the_newest_of_the_repository_here_is_meant(machine: Machine) -> None:
    """In a repository, its newest loop; elsewhere one has to be named, and the list is told."""
    machine.made("one", "first")
    machine.made("two", "second")
    git(machine.origin, "worktree", "add", "-q", "--detach", str(machine.place / "linked"))
    for place in (machine.origin, machine.origin / "d", machine.place / "linked"):
        assert "second" in machine.run("log", place=place).stdout
    told = machine.run("log", place=machine.place, code=2).stderr
    assert "one-" in told
    assert "two-" in told
    assert "several loops" in machine.run("discard", "--yes", code=2).stderr


def test_an_import_without_a_name_tells_what_else_is_kept(machine: Machine) -> None:
    """The newest is taken over; the older ones are named, so that they are not forgotten."""
    machine.made("one", "first")
    machine.made("two", "second")
    assert "older loops are kept of this repository, too: one" in machine.run("import").stderr
    assert "older" not in machine.run("import", "one", "--refs-only").stderr


def test_a_name_that_loops_of_several_repositories_have(machine: Machine, tmp_path: Path) -> None:
    """The repository here is meant; elsewhere a loop's name does not say which, an entry's does."""
    mine = machine.made("one", "mine")
    other = Machine(tmp_path / "other")
    other.state = machine.state
    newer = other.made("one", "theirs")
    assert "mine" in machine.run("log", "one").stdout
    assert "theirs" in other.run("log", "one").stdout
    for command in ("log", "import", "discard"):
        told = machine.run(command, "one", place=tmp_path, code=2).stderr
        assert "several loops may be meant" in told
        assert mine.name in told and newer.name in told
    assert "mine" in machine.run("log", mine.name, place=tmp_path).stdout
    machine.run("import", "one")
    assert log(machine.origin, "main")[0] == "mine"
    assert log(other.origin, "main") == ["base"]
    assert "theirs" in machine.run("log", "one", place=tmp_path).stdout


@pytest.mark.parametrize("name", [[], ["one"]], ids=["unnamed", "named"])
def test_a_directory_that_is_gone_is_in_no_repository(machine: Machine, name: list[str]) -> None:
    """As a worktree that was made for a loop is, once it is over."""
    machine.made("one", "mine")
    gone = machine.place / "gone"
    gone.mkdir()
    asked = [sys.executable, "-m", "executor", "git", "log", *name]
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *asked],
        cwd=gone,
        env=machine.environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stdout


def test_older_loops_of_the_same_name_are_told(machine: Machine) -> None:
    """The newest is taken over; another one has a name that it is meant by."""
    older = machine.made("one", "first")
    machine.made("two", "another")
    machine.made("one", "second")
    told = machine.run("import", "one", "--refs-only").stderr
    assert f"older loops are kept of this repository, too: {older.name}\n" in told
    told = machine.run("import", older.name, "--refs-only", code=1).stderr
    assert "another loop of the same name" in told and "older loops" not in told


def test_what_a_loop_wrote_does_not_act(machine: Machine) -> None:
    """Control characters of messages, names and lines are shown, not obeyed."""
    loop = machine.loop()
    loop.commit({"x\u202ey.txt": "\x1b]0;title\x07\n", "a.txt": "\x1b[2J\n"}, "red \x1b[31m\r now")
    machine.keep(loop)
    for command in (["log"], ["diff"], ["diff", "--stat"], ["list"]):
        told = machine.run(*command).stdout
        assert not set(told) & {"\x1b", "\x07", "\r", "\u202e"}
    assert "red \\x1b[31m" in machine.run("log").stdout


def test_no_driver_or_filter_of_a_loop_runs(machine: Machine) -> None:
    """Attributes that choose drivers choose none: there is no configuration that has one."""
    canary = machine.place / "canary"
    for key in ("diff.x.textconv", "diff.x.command", "filter.x.clean", "core.pager"):
        git(machine.origin, "config", key, f"touch {canary}")
    loop = machine.loop()
    loop.commit({".gitattributes": "* diff=x filter=x\n", "a.txt": "loop\n"})
    machine.keep(loop)
    for command in (["log"], ["diff"], ["diff", "--stat"], ["import"]):
        machine.run(*command)
    assert not canary.exists()


def test_discarding_asks_or_needs_to_be_told(machine: Machine) -> None:
    """Commits that are nowhere else are counted, and go only where that was said."""
    entry = machine.made()
    done = machine.run("discard", code=1)
    assert "2 commits of loop one are in no repository" in done.stderr
    assert "--yes" in done.stderr
    assert entry.directory.exists()
    machine.run("discard", "one", "--yes")
    assert os.listdir(machine.state / "git") == []


def test_what_has_landed_is_discarded_without_asking(machine: Machine) -> None:
    """Its commits are in the repository."""
    machine.made()
    machine.run("import", "--refs-only")
    machine.run("discard")
    assert log(machine.origin, "refs/loops/one/head")[0] == "made inside"


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"\n", 1), (b"no\n", 1)])
def test_a_person_at_a_terminal_is_asked(answer: bytes, code: int, machine: Machine) -> None:
    """Only yes is yes."""
    entry = machine.made()
    near, far = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "executor", "git", "discard"],
        cwd=machine.origin,
        env=machine.environment,
        stdin=far,
        stdout=far,
        stderr=far,
    )
    os.close(far)
    told = b""
    while b"[y/N]" not in told:
        told += os.read(near, 4096)
    assert b"2 commits" in told
    os.write(near, answer)
    assert process.wait(SECONDS) == code
    os.close(near)
    assert entry.directory.exists() is bool(code)


def test_what_never_came_out_is_told(machine: Machine) -> None:
    """Host git never touches a loop's own git directory: what came is taken, the rest is kept."""
    loop = machine.loop()
    loop.commit({"a.txt": "loop\n"})
    entry = machine.keep(loop, state=State.UNEXPORTED)
    done = machine.run("import")
    assert "may have made more" in done.stderr
    assert log(machine.origin, "main")[0] == "made inside"
    assert (entry.private / "HEAD").exists()
    assert str(entry.private) in machine.run("discard", code=1).stderr


def test_an_open_loop_is_left_alone(machine: Machine) -> None:
    """While its controller lives nothing of it is imported or discarded."""
    from executor.sandbox.reaper import Identity

    with Identity.claim(machine.state) as identity:
        loop = machine.loop()
        loop.commit({"a.txt": "loop\n"})
        entry = machine.keep(loop)
        entry.save(replace(entry.record, state=State.OPEN, controller=identity.id))
        for command in (["import"], ["discard", "--yes"]):
            assert "one is open" in machine.run(command[0], "one", *command[1:], code=2).stderr
    machine.run("import", "one")


@pytest.mark.parametrize("name", ["-x", "../../etc", "a/b", "$(touch x)", "\x1b[2J"])
def test_a_name_is_only_compared(name: str, machine: Machine) -> None:
    """What is no name of a loop finds nothing (H10)."""
    machine.made()
    done = machine.run("discard", "--yes", "--", name, code=2)
    assert "\x1b" not in done.stderr
    assert "nothing is kept of a loop" in done.stderr
