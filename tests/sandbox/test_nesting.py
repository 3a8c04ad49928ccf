"""No worktree is opened in one that is in use, or around one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from executor.controller import Controller
from executor.errors import ConfigError
from executor.model import LoopSpec
from executor.sandbox.nesting import claimed
from executor.sandbox.ownership import open_worktree
from executor.sandbox.reaper import Identity
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread

ROOT = Path(__file__).parents[2]


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    """A directory with another one in it, and one beside it."""
    (tmp_path / "outer/deep/inner").mkdir(parents=True)
    (tmp_path / "beside").mkdir()
    return tmp_path / "outer"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("outer", "outer/deep/inner", "lies in"),
        ("outer/deep/inner", "outer", "contains"),
        ("outer", "beside", None),
        ("outer", "outer", None),
        ("outer/deep/inner", "outer/deep/inner", None),
    ],
)
def test_only_nested_ones_are_refused(
    outer: Path, tmp_path: Path, first: str, second: str, words: str | None
) -> None:
    """In, around; not beside, and not the same one. It is said whose it is and what to do."""
    with (
        Identity.claim(tmp_path / "state") as identity,
        Identity.claim(tmp_path / "state") as other,
        open_worktree(tmp_path / first) as one,
        open_worktree(tmp_path / second) as two,
    ):
        with claimed(identity, "first", one):
            if words is None:
                with claimed(other, "second", two):
                    pass
            else:
                with pytest.raises(ConfigError, match=f"{words} .*loop 'first' is at work"):
                    with claimed(other, "second", two):
                        pass
        with claimed(other, "second", two):
            pass
        assert list(tmp_path.glob("state/controllers/*/*")) == []


def test_another_name_of_the_way_does_not_help(outer: Path, tmp_path: Path) -> None:
    """Inodes are compared: a directory that was renamed since is the same one still."""
    with (
        Identity.claim(tmp_path / "state") as identity,
        open_worktree(outer) as one,
        claimed(identity, "first", one),
    ):
        outer.rename(tmp_path / "renamed")
        with open_worktree(tmp_path / "renamed/deep/inner") as two:
            with pytest.raises(ConfigError, match="lies in"):
                with claimed(identity, "second", two):
                    pass


DEAD = """
import os, sys
from pathlib import Path
from executor.sandbox.nesting import claimed
from executor.sandbox.ownership import open_worktree
from executor.sandbox.reaper import Identity
identity = Identity.claim(Path(sys.argv[1]))
with claimed(identity, "dead", open_worktree(sys.argv[2])):
    os.kill(os.getpid(), 9)
"""


def test_what_a_dead_controller_claimed_is_free(outer: Path, tmp_path: Path) -> None:
    """A claim is worth something as long as its controller lives, swept or not."""
    done = subprocess.run(
        [sys.executable, "-c", DEAD, tmp_path / "state", outer], cwd=ROOT, check=False
    )
    assert done.returncode == -9
    (left,) = tmp_path.glob("state/controllers/*/*.worktree")
    assert json.loads(left.read_text())[:2] == ["dead", os.fspath(outer)]
    with (
        Identity.claim(tmp_path / "state") as identity,
        open_worktree(outer / "deep/inner") as inner,
        claimed(identity, "second", inner),
    ):
        pass


@pytest.mark.parametrize("kind", ["none", "watch"])
def test_a_loop_in_the_worktree_of_another_is_refused(tmp_path: Path, kind: str) -> None:
    """Through the controller, with either quota; once the outer loop has ended it can be had."""
    outer = make_worktree(tmp_path / "outer")
    inner = make_worktree(outer / "inner")
    specs = [
        LoopSpec(worktree=path, limits=LIMITS, exec_id=path.name, quota=kind)
        for path in (outer, inner)
    ]
    with LoopThread() as thread:
        settings = replace(Settings.load(), state_directory=tmp_path / "state")
        controller = thread.enter(Controller(settings))
        with LoopThread() as other:
            first = other.enter(other.enter(Controller(settings)).open(specs[0]))
            assert first.capabilities["quota"].startswith(kind)
            with pytest.raises(ConfigError, match=r"lies in .*loop 'outer' is at work"):
                thread.enter(controller.open(specs[1]))
        thread.enter(controller.open(specs[1]))


@pytest.mark.parametrize(
    ("worktree", "beside", "words"),
    [
        ("other", "place/outer/deep:rw", "lies in .*loop 'outer' is at work"),
        ("other", "place/outer/deep:ro", None),
        ("other", "place/outer:rw", None),
        ("other", "place:rw", "contains .*loop 'outer' is at work"),
    ],
)
def test_a_writable_directory_beside_counts_as_a_worktree_does(
    tmp_path: Path, worktree: str, beside: str, words: str | None
) -> None:
    """What a loop may write neither holds nor lies in what another loop writes."""
    for name in ("place/outer/deep", "other"):
        make_worktree(tmp_path / name)
    one = LoopSpec(worktree=tmp_path / "place/outer", limits=LIMITS, exec_id="outer")
    two = LoopSpec(
        worktree=tmp_path / worktree,
        limits=LIMITS,
        exec_id="other",
        add_dirs=(f"{tmp_path / beside.partition(':')[0]}:{beside.partition(':')[2]}",),
    )
    settings = replace(Settings.load(), state_directory=tmp_path.parent / f"{tmp_path.name}-state")
    with LoopThread() as thread:
        controller = thread.enter(Controller(settings))
        thread.enter(controller.open(one))
        if words is None:
            thread.enter(controller.open(two))
        else:
            with pytest.raises(ConfigError, match=words):
                thread.enter(controller.open(two))
