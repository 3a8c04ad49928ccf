"""Absolute paths: beneath which directory of the box each operation resolves them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from executor.agent.operation import Failure
from executor.agent.roots import Roots
from tests.agent.driver import OPERATIONS, Tree, run_steps

if TYPE_CHECKING:
    from executor.agent.operation import Reply


@dataclass
class Places:
    """A small box: a worktree and the directories beside it.

    Attributes:
        path: all of the box.
        tree: the worktree.
    """

    path: Path
    tree: Tree
    roots: Roots

    def at(self, name: str) -> str:
        """The absolute path of something in the box."""
        return str(self.path / name)

    def call(self, op: str, body: bytes = b"", /, **arguments: Any) -> Reply:
        """The reply of one operation, as the agent gives it."""
        workspace = self.roots.place(op, arguments)
        outcome = OPERATIONS[op](workspace, arguments, body)
        return outcome if isinstance(outcome, tuple) else run_steps(outcome, workspace.root)

    def refused(self, op: str, body: bytes = b"", /, **arguments: Any) -> str:
        """The code of an operation that must fail."""
        try:
            reply = self.call(op, body, **arguments)
        except Failure as failure:
            return failure.code
        raise AssertionError(f"{op} {arguments} succeeded: {reply}")

    def link(self, name: str, target: str) -> None:
        """A symbolic link in the box."""
        (self.path / name).symlink_to(target)


@pytest.fixture(params=["openat2", "walk"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    """A box of directories; paths are resolved by the kernel, and by walking."""
    for name in ("workspace", "results", "tmp", "extra", "usr/lib", "proc/1", "run"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("workspace/a.txt", "results/1.txt", "tmp/t.txt", "extra/e.txt", "usr/lib/u.py"):
        (tmp_path / name).write_text(f"of {name}\n")
    (tmp_path / "proc/1/environ").write_text("SECRET=1\n")
    tree = Tree(tmp_path / "workspace", beneath=request.param == "openat2")
    given: list[dict[str, Any]] = [
        {"path": str(tmp_path / "results")},
        {"path": str(tmp_path / "extra")},
        {"path": str(tmp_path / "run/plans"), "write": True, "make": True},
        {"path": str(tmp_path / "tmp"), "write": True, "box": True},
    ]
    hidden = [str(tmp_path / "proc"), str(tmp_path / "run/private")]
    yield Places(tmp_path, tree, Roots(tree.workspace, given, hidden, str(tmp_path)))
    tree.workspace.close()


READABLE = ("results/1.txt", "extra/e.txt")
BOX_ONLY = ("tmp/t.txt", "usr/lib/u.py")


@pytest.mark.parametrize("name", READABLE)
def test_a_root_is_read_by_its_absolute_path(places: Places, name: str) -> None:
    """Spilled results and added directories are read; the key is the absolute path."""
    value, data = places.call("read", path=places.at(name))
    assert data == f"of {name}".encode()
    assert value["key"] == places.at(name)


@pytest.mark.parametrize("name", BOX_ONLY)
def test_what_is_no_root_needs_all_of_the_box(places: Places, name: str) -> None:
    """Without reach the path leads out of the worktree; with it the file is read."""
    assert places.refused("read", path=places.at(name)) == "INVALID_PATH"
    value, data = places.call("read", path=places.at(name), reach="box")
    assert data == f"of {name}".encode()
    assert value["key"] == places.at(name)


def test_paths_of_the_worktree_are_its_own_with_and_without_reach(places: Places) -> None:
    """A file of the worktree has one key, however far the call reaches."""
    for given in ({}, {"reach": "box"}):
        for path in ("a.txt", places.at("workspace/a.txt")):
            value, _ = places.call("read", path=path, **given)
            assert value["key"] == "a.txt"


@pytest.mark.parametrize("op", ["write", "edit", "delete", "move"])
@pytest.mark.parametrize("name", READABLE)
def test_a_root_for_reading_is_not_changed(places: Places, op: str, name: str) -> None:
    """Nothing is written to, deleted from or moved out of results and read-only directories."""
    path = places.at(name)
    arguments = {"from": path, "to": path + "2"} if op == "move" else {"path": path, "old": 1}
    assert places.refused(op, b"xy", **arguments, reach="box") == "PERMISSION_DENIED"
    assert (places.path / name).read_text() == f"of {name}\n"


def test_a_directory_that_is_made_for_the_plan_can_be_written(places: Places) -> None:
    """The plan's directory comes into being, and a plan can be written, read and edited."""
    path = places.at("run/plans/x.md")
    made, _ = places.call("write", b"# Plan\n", path=path)
    assert made["created"] and made["key"] == path
    value, _ = places.call("read", path=path)
    assert value["hash"] == made["hash"]
    places.call("edit", b"PlanGoal", path=path, old=4, expect=value["hash"])
    assert Path(path).read_text() == "# Goal\n"


def test_scratch_is_written_only_by_toolsets_that_reach_it(places: Places) -> None:
    """A file in /tmp is written with reach, and is out of the worktree without."""
    path = places.at("tmp/new/n.txt")
    assert places.refused("write", b"x", path=path) == "INVALID_PATH"
    places.call("write", b"x", path=path, reach="box")
    assert Path(path).read_bytes() == b"x"


@pytest.mark.parametrize("op", ["write", "delete"])
def test_reach_does_not_write_everywhere(places: Places, op: str) -> None:
    """The whole box is for looking: a change outside of the roots is refused."""
    path = places.at("usr/lib/u.py")
    assert places.refused(op, b"x", path=path, reach="box") == "INVALID_PATH"
    assert Path(path).read_text() == "of usr/lib/u.py\n"


# Name of a link, where it leads, and what reading through it comes to without and with reach.
LINKS = {
    "from worktree to tmp": ("workspace/l", "tmp/t.txt", "INVALID_PATH", "of tmp/t.txt"),
    "from worktree to results": ("workspace/l", "results/1.txt", "INVALID_PATH", "of results"),
    "from worktree to proc": ("workspace/l", "proc/1/environ", "INVALID_PATH", "INVALID_PATH"),
    "from extra to worktree": ("extra/l", "workspace/a.txt", "INVALID_PATH", "of workspace"),
    "from extra to proc": ("extra/l", "proc/1/environ", "INVALID_PATH", "INVALID_PATH"),
    "within extra": ("extra/l", "extra/e.txt", "of extra", "of extra"),
}


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("is_absolute", [True, False])
def test_links_lead_only_where_the_call_reaches(
    places: Places, case: str, is_absolute: bool
) -> None:
    """A link leaves its root only for a call that reaches the box, and never to what is hidden."""
    name, target, without, reaching = LINKS[case]
    places.link(name, places.at(target) if is_absolute else f"../{target}")
    if not is_absolute and case == "within extra":
        without = "INVALID_PATH"  # its text leads out and back in; the kernel refuses that
    path = "l" if name.startswith("workspace/") else places.at(name)
    for expected, given in ((without, {}), (reaching, {"reach": "box"})):
        if expected.isupper():
            assert places.refused("read", path=path, **given) == expected
        else:
            assert places.call("read", path=path, **given)[1].decode().startswith(expected)


@pytest.mark.parametrize("way", ["proc/1/environ", "proc", "usr/../proc/1/environ", "l/1/environ"])
def test_what_is_hidden_is_not_entered_by_any_way(places: Places, way: str) -> None:
    """A hidden directory is refused by its path, by `..`, and by a link to it."""
    places.link("l", "proc")
    assert places.refused("read", path=places.at(way), reach="box") == "INVALID_PATH"
    assert places.refused("stat", path=places.at(way), reach="box") == "INVALID_PATH"


def test_the_place_of_what_is_hidden_can_hide_too(places: Places) -> None:
    """A directory that is named by the host is hidden like those of the kernel."""
    (places.path / "run/private").mkdir()
    (places.path / "run/private/key").write_text("k")
    assert places.refused("read", path=places.at("run/private/key"), reach="box") == "INVALID_PATH"


def test_magic_links_are_never_followed(places: Places) -> None:
    """A link of /proc to an open file is a text that leads nowhere, in every kind of root."""
    own = os.open(places.at("usr/lib/u.py"), os.O_RDONLY)
    try:
        roots = Roots(places.tree.workspace, [{"path": f"/proc/{os.getpid()}/fd"}])
        arguments = {"path": f"/proc/{os.getpid()}/fd/{own}"}
        with pytest.raises(Failure) as caught:
            workspace = roots.place("read", arguments)
            OPERATIONS["read"](workspace, arguments, b"")
        assert caught.value.code == "INVALID_PATH"
    finally:
        os.close(own)


@pytest.mark.parametrize("kind", ["fifo", "socket", "directory"])
def test_special_files_are_refused_without_waiting(places: Places, kind: str) -> None:
    """A FIFO without a writer, a socket and a directory are no files, in every root."""
    import socket

    for name, given in (("extra/s", {}), ("usr/s", {"reach": "box"})):
        path = places.at(name)
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            os.mkdir(path)
        else:
            here = os.open(os.path.dirname(path), os.O_PATH)
            with socket.socket(socket.AF_UNIX) as made:  # the whole path may be too long
                made.bind(f"/proc/self/fd/{here}/s")
            os.close(here)
        assert places.refused("read", path=path, **given) == "NOT_A_FILE"


def test_a_root_that_is_replaced_by_a_link_is_none(places: Places) -> None:
    """A command that puts a link in the plan's place does not move writes elsewhere."""
    places.call("write", b"x", path=places.at("run/plans/x.md"))
    (places.path / "run/plans").rename(places.path / "run/old")
    places.link("run/plans", places.at("usr"))
    refusal = places.refused("write", b"y", path=places.at("run/plans/y.md"))
    assert refusal == "FILE_NOT_FOUND"
    assert not (places.path / "usr/y.md").exists()


def test_a_root_that_is_replaced_by_a_directory_is_the_new_one(places: Places) -> None:
    """What is written is where its path says, also after the directory was renamed."""
    places.call("write", b"x", path=places.at("run/plans/x.md"))
    (places.path / "run/plans").rename(places.path / "run/old")
    places.call("write", b"y", path=places.at("run/plans/y.md"))
    assert (places.path / "run/plans/y.md").read_bytes() == b"y"


def test_a_move_stays_in_one_root(places: Places) -> None:
    """From the worktree to /tmp is the business of `mv`; within /tmp it is ours."""
    arguments = {"from": "a.txt", "to": places.at("tmp/b.txt"), "reach": "box"}
    assert places.refused("move", **arguments) == "UNSUPPORTED"
    paths = {"from": places.at("tmp/t.txt"), "to": places.at("tmp/d/u.txt")}
    places.call("move", **paths, reach="box")
    assert (places.path / "tmp/d/u.txt").read_text() == "of tmp/t.txt\n"


def test_searches_name_files_by_absolute_paths(places: Places) -> None:
    """Matches outside of the worktree have absolute paths, those inside relative ones."""
    found = places.call("glob", pattern="*.py", path=places.at("usr/lib"), reach="box")[1]
    assert found == os.fsencode(places.at("usr/lib/u.py"))
    found = places.call("glob", pattern="*.txt", path=places.at("extra"))[1]
    assert found == os.fsencode(places.at("extra/e.txt"))
    found = places.call("glob", pattern=places.at("extra/*.txt"))[1]
    assert found == os.fsencode(places.at("extra/e.txt"))
    found = places.call("grep", pattern="of", path=places.at("usr"), reach="box")[1]
    assert found == f"{places.at('usr/lib/u.py')}:1:of usr/lib/u.py".encode()
    found = places.call("grep", pattern="of", path=places.at("extra/e.txt"))[1]
    assert found == f"{places.at('extra/e.txt')}:1:of extra/e.txt".encode()
    found = places.call("grep", pattern="of", path="", reach="box")[1]
    assert found == b"a.txt:1:of workspace/a.txt"


def test_a_search_of_the_whole_box_leaves_out_what_is_hidden(places: Places) -> None:
    """Everything but the hidden directories is searched from the root."""
    data = places.call("grep", pattern="of|SECRET", path=str(places.path), reach="box")[1]
    files = {line.split(b":")[0] for line in data.split(b"\n") if line != b"--"}
    assert os.fsencode(places.at("usr/lib/u.py")) in files
    assert not any(b"/proc/" in file for file in files)
    found = places.call("glob", pattern="**/*", path=str(places.path), reach="box")[1]
    assert b"/usr/lib/u.py" in found and b"/proc/" not in found


def test_an_absolute_pattern_is_held_to_the_roots(places: Places) -> None:
    """A pattern leads no further than a path does."""
    assert places.refused("glob", pattern=places.at("usr/lib/*.py")) == "INVALID_PATH"
    found = places.call("glob", pattern=places.at("usr/lib/*.py"), reach="box")[1]
    assert found == os.fsencode(places.at("usr/lib/u.py"))


def test_a_listing_and_a_deletion_work_beside_the_worktree(places: Places) -> None:
    """A directory that was added is listed; what is deleted is told by absolute paths."""
    assert places.call("list", path=places.at("extra"))[1].endswith(b"\x1fe.txt\0")
    path = places.at("tmp/t.txt")
    assert places.call("delete", path=path, reach="box")[1] == os.fsencode(path)


@pytest.mark.parametrize("reach", [{}, {"reach": "box"}])
def test_rules_hold_for_absolute_paths(places: Places, reach: dict[str, str]) -> None:
    """What a rule denies is denied in every root, by what is opened and not by its name."""
    denied = [["/" + places.at("extra/e.txt"), "read_file(e)"], ["/a.txt", "read_file(a)"]]
    places.call("restrict", read=denied, write=[])
    places.link("extra/l", "e.txt")
    for name in ("extra/e.txt", "extra/l", "workspace/a.txt"):
        assert places.refused("read", path=places.at(name), **reach) == "PERMISSION_DENIED"
    assert b"e.txt:" not in places.call("grep", pattern="of", path=places.at("extra"), **reach)[1]


# A path → state, where it leads, its own place, what of it is missing, and the links on the way.
RESOLVED: dict[str, tuple[str, str, str, str | None, list[str]]] = {
    "tmp/t.txt": ("there", "/tmp/t.txt", "/tmp/t.txt", None, []),
    "tmp/l": ("there", "/tmp/t.txt", "/tmp/l", None, ["/tmp/l"]),
    "tmp/in": ("there", "a.txt", "/tmp/in", None, ["/tmp/in"]),
    "tmp/root": ("there", "", "/tmp/root", None, ["/tmp/root"]),
    "tmp/d/none/x": ("missing", "/usr/none/x", "/usr/none/x", "/usr/none", ["/tmp/d"]),
    "tmp/gone": ("missing", "/tmp/nowhere", "/tmp/gone", "/tmp/nowhere", ["/tmp/gone"]),
    "tmp/p": ("outside", "/tmp/p", "/tmp/p", None, []),
    "proc/1/environ": ("outside", "/proc/1/environ", "/proc/1/environ", None, []),
    "workspace/a.txt": ("there", "a.txt", "a.txt", None, []),
}


@pytest.mark.parametrize("name", RESOLVED)
def test_absolute_paths_are_followed_wherever_they_lead(places: Places, name: str) -> None:
    """Rules match where a path leads, beside the worktree too; what is hidden stays hidden."""
    for link, target in (
        *(("tmp/l", "t.txt"), ("tmp/in", "../workspace/a.txt"), ("tmp/gone", "nowhere")),
        *(("tmp/d", places.at("usr")), ("tmp/p", "../proc/1"), ("tmp/root", "../workspace")),
    ):
        places.link(link, target)
    state, path, own, missing, links = RESOLVED[name]

    def at(path: str | None) -> str | None:
        return places.at(path[1:]) if path is not None and path.startswith("/") else path

    (found,) = places.call("resolve", paths=[places.at(name)])[0]["places"]
    assert (found["state"], found["path"], found["own"]) == (state, at(path), at(own))
    assert (found["missing"], found["links"]) == (at(missing), list(map(at, links)))
