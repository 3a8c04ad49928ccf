"""Where paths lead: through which links, to what, and nothing is waited for or left."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from executor.agent.workspace import MAX_PATH
from tests.agent.driver import Tree, as_nobody

FIELDS = ("state", "path", "own", "missing", "links")


def place(tree: Tree, path: str) -> dict[str, Any]:
    """Where one path leads."""
    value, data = tree.call("resolve", paths=[path])
    assert data == b""
    (found,) = value["places"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def linked(tree: Tree) -> Tree:
    """A tree with links of every kind."""
    tree.write("d/f", "x")
    root = tree.workspace.root
    for name, target in {
        "l": "d",
        "d/g": "../d/f",
        "d/up": "..",
        "abs": f"{root}/d",
        "chain": "l",
        "out": "/etc/passwd",
        "over": "../x",
        "dead": "new/x",
        "loop": "loop",
    }.items():
        (tree.path / name).symlink_to(target)
    return tree


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", ("there", "", "", None, [])),
        ("d/f", ("there", "d/f", "d/f", None, [])),
        ("./d//f", ("there", "d/f", "d/f", None, [])),
        ("l", ("there", "d", "l", None, ["l"])),
        ("l/f", ("there", "d/f", "d/f", None, ["l"])),
        ("l/g", ("there", "d/f", "d/g", None, ["l", "d/g"])),
        ("chain/g", ("there", "d/f", "d/g", None, ["chain", "l", "d/g"])),
        ("d/up/l", ("there", "d", "l", None, ["d/up", "l"])),
        ("abs/f", ("there", "d/f", "d/f", None, ["abs"])),
        ("dead", ("missing", "new/x", "dead", "new", ["dead"])),
        ("l/new/x", ("missing", "d/new/x", "d/new/x", "d/new", ["l"])),
        ("d/f/x", ("missing", "d/f/x", "d/f/x", "d/f/x", [])),
        ("out", ("outside", "out", "out", None, [])),
        ("over/y", ("outside", "over/y", "over/y", None, [])),
        ("/etc/passwd", ("outside", "/etc/passwd", "/etc/passwd", None, [])),
        ("d/../..", ("outside", "d/../..", "d/../..", None, [])),
        ("loop", ("unclear", "loop", "loop", None, [])),
        ("loop/x", ("unclear", "loop/x", "loop/x", None, [])),
        ("new/../d", ("unclear", "new/../d", "new/../d", None, [])),
        ("a\0b", ("unclear", "a\0b", "a\0b", None, [])),
        ("\ud800", ("unclear", "\ud800", "\ud800", None, [])),
    ],
)
def test_where_a_path_leads(linked: Tree, path: str, expected: tuple[Any, ...]) -> None:
    """By the kernel's way and by the walk: through every link, as far as something is there."""
    found = place(linked, path)
    assert tuple(found[name] for name in FIELDS) == expected


def test_an_absolute_path_inside_is_one_of_the_workspace(linked: Tree) -> None:
    """Commands name files so."""
    assert place(linked, f"{linked.workspace.root}/l/f")["path"] == "d/f"
    assert place(linked, linked.workspace.root)["path"] == ""


def test_what_is_there(linked: Tree) -> None:
    """Its kind, the key under which sessions file it, and whether it has other names."""
    os.link(linked.path / "d/f", linked.path / "hard")
    (linked.path / "h").write_text("")
    os.mkfifo(linked.path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(linked.path / "socket"))
        found = {name: place(linked, name) for name in ("l/f", "hard", "h", "d", "pipe", "socket")}
    assert {name: (f["kind"], f["key"], f["shared"]) for name, f in found.items()} == {
        "l/f": ("f", "d/f", True),
        "hard": ("f", "hard", True),
        "h": ("f", "h", False),
        "d": ("d", "d", False),
        "pipe": ("o", "pipe", False),
        "socket": ("o", "socket", False),
    }


def test_names_as_listings_spell_them(tree: Tree) -> None:
    """`\\xHH` stands for a byte where only that exists, as for every operation."""
    (tree.path / os.fsdecode(b"a\xff")).write_text("")
    assert place(tree, "a\\xff")["path"] == os.fsdecode(b"a\xff")


def test_no_path_makes_the_others_fail(public: Tree) -> None:
    """Too long ones, and those in a directory that may not be searched, are unclear."""
    public.write("closed/f", "")
    public.write("f", "")
    (public.path / "closed").chmod(0)
    paths = ["x" * (MAX_PATH + 1), "y" * 300, "closed/f", "f"]

    def look() -> None:
        value, _ = public.call("resolve", paths=paths)
        states = [found["state"] for found in value["places"]]
        assert states == ["unclear", "unclear", "unclear", "there"]

    as_nobody(look)
    (public.path / "closed").chmod(0o755)


def test_many_paths_give_way(tree: Tree) -> None:
    """Other calls go on meanwhile."""
    assert tree.pauses("resolve", paths=["x"] * 1000) >= 10


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(st.one_of(NAMES, st.just("..")), min_size=1, max_size=4).map("/".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(links=st.dictionaries(PATHS, PATHS, max_size=6), path=PATHS)
@example(links={"a": "a", "a/a/a": ".."}, path="..")
def test_it_says_what_the_kernel_says(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], path: str
) -> None:
    """What is there is where opening the path leads, and no descriptor stays open."""
    root = tmp_path_factory.mktemp("tree")
    for name, target in links.items():
        at = Path(os.path.normpath(root / name))
        if not at.is_relative_to(root) or at == root or at.exists() or at.is_symlink():
            continue
        with suppress(OSError):  # a link that leads nowhere, or to itself, is in the way
            at.parent.mkdir(parents=True, exist_ok=True)
            at.symlink_to(target)
    (root / "d").mkdir(exist_ok=True)
    real = os.path.realpath(root / path)
    before = len(os.listdir("/proc/self/fd"))
    tree = Tree(root)
    found = place(tree, path)
    tree.workspace.close()
    assert len(os.listdir("/proc/self/fd")) == before
    if found["state"] == "there":
        assert os.path.join(os.path.realpath(root), found["path"]).rstrip("/") == real
        assert os.path.lexists(real)
        assert found["missing"] is None
        assert all((root / passed).is_symlink() for passed in found["links"])
    elif found["state"] == "missing":
        assert not os.path.exists(root / path)
