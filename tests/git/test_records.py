"""What is kept of loops' histories, and what becomes of it when a controller dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from executor.errors import ConfigError
from executor.git.records import Came, Entry, Record, Records, State, recover
from executor.git.values import Arrival
from executor.sandbox.reaper import Identity
from tests.git.loops import describe, make_origin

DEAD = "0" * 16


@pytest.fixture(name="state")
def _state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(name="record")
def _record(tmp_path: Path) -> Record:
    repository = describe(make_origin(tmp_path / "origin"))
    return Record.begin(repository, exec_id="one", tenant=None, controller=DEAD)


def fill(directory: Path) -> None:
    """Something of a loop's."""
    directory.mkdir()
    (directory / "HEAD").write_text("x\n")


def arrive(entry: Entry) -> None:
    """An arrival, as far as a record knows it."""
    fill(entry.quarantine)
    entry.arrived(Arrival(entry.quarantine, {"head": "a" * 40}, "refs/heads/main", 1, ("note",)))


def test_a_record_is_read_as_it_was_written(state: Path, record: Record) -> None:
    """Every field survives, names that are no text too."""
    odd = "refs/heads/\udcff\udc80ü"
    came = Came({odd: "b" * 40}, odd, 3, ("a note",))
    full = replace(
        record,
        tenant="t",
        refs={odd: "a" * 40},
        came=came,
        made=(1, 2),
        landed={odd: "b" * 40},
        imported=True,
        failure="broken: ü",
        state=State.UNEXPORTED,
    )
    entry = Records(state).create(full)
    found = Records(state).find("one")
    assert found is not None
    assert (found.record, found.name) == (full, entry.name)
    assert (entry.directory.stat().st_mode & 0o777, os.listdir(entry.directory)) == (
        0o700,
        ["record.json"],
    )


def test_the_origin_is_described_as_at_the_start(tmp_path: Path, record: Record) -> None:
    """A record leads back to its repository, with HEAD as it was."""
    before = describe(tmp_path / "origin")
    assert record.repository() == replace(before, shallow=None)
    (tmp_path / "origin").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"is gone .*executor git log one"):
        record.repository()
    make_origin(tmp_path / "origin")
    with pytest.raises(ConfigError, match="another repository"):
        record.repository()


def test_the_newest_entry_of_a_name_is_found(state: Path, record: Record) -> None:
    """Names of loops may come again; the whole name of an entry names one of them."""
    records = Records(state)
    old = records.create(replace(record, created=1.0))
    new = records.create(replace(record, created=2.0))
    assert [entry.name for entry in records.entries()] == [new.name, old.name]
    for name, found in (("one", new), (new.name, new), (old.name, old)):
        entry = records.find(name)
        assert entry is not None
        assert entry.name == found.name
    assert records.find("another") is None


BROKEN: list[Callable[[str], str]] = [
    lambda text: "",
    lambda text: text[: len(text) // 2],
    lambda text: "[]",
    lambda text: text.replace('"version":1', '"version":2'),
    lambda text: text.replace('"exec_id":"one"', '"exec_id":"two"'),
    lambda text: text.replace('"state":"open"', '"state":"else"'),
    lambda text: text.replace('"created":', '"created":"x","was":'),
]


@pytest.mark.parametrize("damage", BROKEN)
def test_a_broken_record_is_told_and_left(
    damage: Callable[[str], str], state: Path, record: Record
) -> None:
    """What can't be read may be somebody's work: it stays, and the others are read."""
    records = Records(state)
    broken = records.create(record)
    whole = records.create(record)
    fill(whole.private)
    file = broken.directory / "record.json"
    file.write_text(damage(file.read_text()))
    assert [entry.name for entry in records.entries()] == [whole.name]
    assert len(records.faults) == 1
    (fault,) = recover(state)
    assert str(broken.directory) in fault
    assert broken.directory.is_dir()


def test_a_record_that_does_not_fit_leaves_the_old_one(state: Path, record: Record) -> None:
    """Where writing fails the old record is there, and nothing beside it."""
    entry = Records(state).create(record)
    script = (
        "import resource, sys; from pathlib import Path; from dataclasses import replace\n"
        "from executor.git.records import Records\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "entry = Records(Path(sys.argv[1])).find('one')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: entry.save(replace(entry.record, failure='x' * 1000))\n"
        "except OSError: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, state], check=False).returncode == 7
    assert os.listdir(entry.directory) == ["record.json"]
    found = Records(state).find("one")
    assert found is not None
    assert found.record == record


# ─── recover ────────────────────────────────────────────────────────────────────────


def test_what_a_living_controller_has_open_is_left(state: Path, record: Record) -> None:
    """As long as its lock is held, even an empty entry stays."""
    with Identity.claim(state) as identity:
        entry = Records(state).create(replace(record, controller=identity.id))
        assert recover(state) == []
        assert entry.directory.is_dir()
        fill(entry.private)
    assert recover(state) == []
    found = Records(state).find("one")
    assert found is not None
    assert found.record.state is State.UNEXPORTED


@pytest.mark.parametrize(
    ("has_private", "has_arrival", "left"),
    [
        (True, False, State.UNEXPORTED),
        (True, True, State.UNEXPORTED),
        (False, True, State.KEPT),
        (False, False, None),
    ],
)
def test_a_dead_controllers_loop_keeps_what_it_made(
    has_private: bool, has_arrival: bool, left: State | None, state: Path, record: Record
) -> None:
    """What may hold its work stays, whatever has come of it; what is empty goes. Twice is once."""
    entry = Records(state).create(record)
    if has_private:
        fill(entry.private)
    if has_arrival:
        arrive(entry)
    for _ in range(2):
        assert recover(state) == []
        found = Records(state).find("one")
        assert (found.record.state if found else None) == left
    assert entry.private.exists() is has_private
    assert entry.directory.exists() is (left is not None)
    assert (entry.arrival() is not None) is has_arrival


def test_the_end_of_a_kept_loop_is_finished(state: Path, record: Record) -> None:
    """Where all has come, its own git directory and the worktree made for it go."""
    entry = Records(state).create(record)
    fill(entry.private)
    fill(entry.make_worktree_directory() / "tree")
    arrive(entry)
    entry.save(replace(entry.record, state=State.KEPT))
    assert recover(state) == []
    assert not entry.private.exists()
    assert not entry.made.exists()
    assert entry.arrival() is not None


def test_a_made_worktree_stays_while_something_is_not_exported(state: Path, record: Record) -> None:
    """It may hold changes that nobody has committed."""
    entry = Records(state).create(record)
    fill(entry.private)
    fill(entry.make_worktree_directory() / "tree")
    assert recover(state) == []
    assert (entry.made / "tree/HEAD").exists()


@pytest.mark.parametrize("name", [".making-one-00000000", ".going-one-00000000"])
def test_what_is_half_made_or_half_removed_goes(name: str, state: Path) -> None:
    """It has no name of an entry, and nobody holds it."""
    (state / "git" / name / "private").mkdir(parents=True)
    assert recover(state) == []
    assert os.listdir(state / "git") == []


def test_nothing_else_is_touched(state: Path, tmp_path: Path) -> None:
    """Files of other names, links and worktrees without an entry are not the reaper's."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    (state / "git/.cache").mkdir(parents=True)
    (state / "git/.going-x").symlink_to(tmp_path / "mine")
    (state / "worktrees/foreign-00000000").mkdir(parents=True)
    recover(state)
    assert (tmp_path / "mine/file").exists()
    assert (state / "git/.cache").is_dir()
    assert (state / "worktrees/foreign-00000000").is_dir()


def test_no_link_is_followed(state: Path, record: Record, tmp_path: Path) -> None:
    """A loop's links lead nowhere when what it made is removed (M12)."""
    canary = tmp_path / "canary"
    fill(canary)
    entry = Records(state).create(record)
    fill(entry.private)
    tree = entry.make_worktree_directory() / "tree"
    fill(tree)
    for place in (entry.private, tree):
        (place / "deep").mkdir()
        for name in ("link", "deep/link"):
            (place / name).symlink_to(canary)
        os.link(canary / "HEAD", place / "hard")
    entry.remove()
    assert (canary / "HEAD").read_text() == "x\n"
    assert os.listdir(state / "git") == os.listdir(state / "worktrees") == []


def test_another_directory_in_its_place_is_not_removed(
    state: Path, record: Record, tmp_path: Path
) -> None:
    """A worktree is removed by its identity, not by its name."""
    entry = Records(state).create(record)
    entry.make_worktree_directory().rename(tmp_path / "elsewhere")
    fill(entry.made)
    entry.remove()
    assert (entry.made / "HEAD").exists()
    entry = Records(state).create(record)
    entry.make_worktree_directory().rmdir()
    entry.made.symlink_to(tmp_path / "elsewhere")
    entry.remove()
    assert (tmp_path / "elsewhere").is_dir()


def test_a_locked_entry_is_left_to_who_locked_it(state: Path, record: Record) -> None:
    """Somebody works on it: it is put in order when that one has ended."""
    entry = Records(state).create(record)
    with entry.locked() as is_ours:
        assert is_ours
        with entry.locked() as again:
            assert not again
        assert recover(state) == []
        assert entry.directory.exists()
    assert recover(state) == []
    assert not entry.directory.exists()


def test_many_may_put_in_order_at_once(state: Path, record: Record) -> None:
    """Eight at a time do what one does."""
    records = Records(state)
    for number in range(12):
        entry = records.create(record)
        if number % 3 == 0:
            fill(entry.private)
        elif number % 3 == 1:
            arrive(entry)
    (state / "git/.going-one-00000000/x").mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        assert [fault for faults in pool.map(recover, [state] * 8) for fault in faults] == []
    states = sorted(entry.record.state for entry in records.entries())
    assert states == [State.KEPT] * 4 + [State.UNEXPORTED] * 4
    assert len(os.listdir(state / "git")) == 8


KILLED = """
import os, signal, sys
from pathlib import Path
from executor.git import records
point, state, text = sys.argv[1:]
record = records._RECORD.validate_json(text)

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

name, _, count = point.partition(" ")
seen = 0
plain = getattr(os, name)

def counted(*given, **named):
    global seen
    seen += 1
    if seen == int(count):
        die()
    return plain(*given, **named)

setattr(os, name, counted)
entry = records.Records(Path(state)).create(record)
entry.private.mkdir()
(entry.private / "HEAD").write_text("x")
entry.save(record)
entry.remove()
die()
"""


@pytest.mark.parametrize(
    "point",
    [*(f"rename {n}" for n in range(1, 5)), *(f"fsync {n}" for n in range(1, 6)), "unlink 1",
     "rmdir 1", "rmdir 2", "open 3", "open 4"],
)  # fmt: skip
def test_a_kill_at_any_step_can_be_put_in_order(point: str, state: Path, record: Record) -> None:
    """What is left is a whole entry or nothing, and no fault is found."""
    text = json.dumps({**json.loads(_text(record))})
    done = subprocess.run(
        [sys.executable, "-c", KILLED, point, str(state), text],
        check=False,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert recover(state) == []
    entries = Records(state).entries()
    assert all(entry.record.state is State.UNEXPORTED for entry in entries)
    expected = [entry.name for entry in entries]
    left = os.listdir(state / "git") if (state / "git").exists() else []
    assert left == expected
    for entry in entries:
        assert set(os.listdir(entry.directory)) <= {"record.json", "private"} | {
            name for name in os.listdir(entry.directory) if name.startswith(".record.json-")
        }


def _text(record: Record) -> str:
    from executor.git.records import _RECORD

    return _RECORD.dump_json(record).decode()
