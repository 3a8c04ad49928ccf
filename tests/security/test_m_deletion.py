"""M12: whatever the host deletes by itself, no link is followed, nor in a race."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from executor.sandbox import ext4, reaper
from executor.sandbox.mirror import Mirror
from executor.sandbox.reaper import Identity
from tests.sandbox.test_quota import needs_loops
from tests.sandbox.trees import directory, grow, needs_root, snapshot

TREES = 1000
RACES = 150


def canary_in(place: Path) -> Path:
    """A directory that nothing may change."""
    canary = place / "canary"
    (canary / "inside/deeper").mkdir(parents=True)
    (canary / "inside/file").write_text("canary")
    (canary / "secret").write_text("canary")
    return canary


def tie(tree: Path, dice: random.Random, canary: Path) -> None:
    """A random tree, with links to the canary of every kind in it."""
    tree.mkdir(parents=True)
    grow(tree, dice, 12, canary)
    places = [Path(place) for place, _, _ in os.walk(tree)]
    for number, target in enumerate((canary, canary / "inside", canary / "secret")):
        (dice.choice(places) / f"to{number}").symlink_to(target)
    (dice.choice(places) / "around").symlink_to(os.path.relpath(canary, tree))


def by_reaper(parent: Path, name: str) -> bool:
    """As directories of dead controllers are removed."""
    return reaper._remove_tree(parent, name)


def by_mirror(parent: Path, name: str) -> bool:
    """As what a loop has removed from its copy is removed from the worktree."""
    empty = parent / "empty"
    empty.mkdir(exist_ok=True)
    with directory(empty) as source, directory(parent) as target:
        Mirror(
            source,
            target,
            threading.Event(),
            changed_since=1 << 62,
            foreign_since=1 << 62,
            hidden=frozenset({"empty"}),
            directories={},
        ).run()
    return not os.path.lexists(parent / name)


def by_identity(parent: Path, name: str) -> bool:
    """As the generated files of a box are removed."""
    with Identity.claim(parent / "state") as identity:
        place = identity.directory / "box"
        (parent / name).rename(place)
        identity.discard_files("box")
        return not os.path.lexists(place)


PATHS: list[Callable[[Path, str], bool]] = [by_reaper, by_mirror, by_identity]


@pytest.mark.statement("M12")
@pytest.mark.parametrize("deletes", PATHS)
def test_deleting_trees_of_links_never_leaves_them(
    deletes: Callable[[Path, str], bool], tmp_path: Path
) -> None:
    """A thousand random trees over all ways to delete; the canary is as it was, the trees gone."""
    canary = canary_in(tmp_path)
    before = snapshot(canary)
    parent = tmp_path / "parent"
    parent.mkdir()
    for seed in range(-(-TREES // len(PATHS))):
        tie(parent / "tree", random.Random(seed), canary)
        assert deletes(parent, "tree"), seed
        assert not os.path.lexists(parent / "tree")
    assert snapshot(canary) == before


@pytest.mark.statement("M12")
@pytest.mark.parametrize("deletes", PATHS)
def test_the_top_itself_may_be_a_link(deletes: Callable[[Path, str], bool], tmp_path: Path) -> None:
    """A link in the place of the directory to be removed costs the link at most."""
    canary = canary_in(tmp_path)
    before = snapshot(canary)
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "tree").symlink_to(canary)
    deletes(parent, "tree")
    assert snapshot(canary) == before


@pytest.mark.statement("M12")
@pytest.mark.parametrize("deletes", [by_reaper, by_mirror])
def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed(
    deletes: Callable[[Path, str], bool], tmp_path: Path
) -> None:
    """While deletion runs, another thread swaps directories by links to the canary."""
    canary = canary_in(tmp_path)
    before = snapshot(canary)
    parent, aside = tmp_path / "parent", tmp_path / "aside"
    parent.mkdir()
    aside.mkdir()
    stop = threading.Event()
    swaps = turn = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            for number in range(8):
                place = parent / f"tree{turn}/d{number}"
                try:
                    place.rename(aside / f"a{swaps}")
                    place.symlink_to(canary)
                except OSError:
                    continue
                swaps += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for turn in range(RACES):
            for number in range(8):
                (tmp_path / f"new/d{number}/inside/deeper").mkdir(parents=True)
            (tmp_path / "new").rename(parent / f"tree{turn}")
            deletes(parent, f"tree{turn}")
    finally:
        stop.set()
        thread.join()
    assert swaps > 0
    assert snapshot(canary) == before


@pytest.mark.statement("M12")
def test_the_library_removes_by_descriptors() -> None:
    """The reaper rests on `shutil.rmtree`, which is safe only where this is true."""
    assert shutil.rmtree.avoids_symlink_attacks


@needs_root
@pytest.mark.statement("M12")
def test_giving_a_file_system_back_removes_names_only(tmp_path: Path) -> None:
    """Where its directory holds links, or is one, nothing but our own four names is removed."""
    needs_loops()
    canary = canary_in(tmp_path)
    before = snapshot(canary)
    state = (tmp_path / "state").resolve()
    name = f"{'0' * 16}-test-{'0' * 8}"
    place = state / "quota" / name
    place.mkdir(parents=True)
    for link in ("worktree", "filled", "returned", "image.ext4"):
        (place / link).symlink_to(canary / "secret")
    (place / "mount").symlink_to(canary)
    assert ext4.recover(state, [name]).kept == ()
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(canary)
    ext4.recover(state, [name])
    assert snapshot(canary) == before
