"""Path resolution: inside stays inside, whichever way a path is resolved."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.agent.operation import Failure
from executor.agent.workspace import DIRECTORY, MAX_PATH, Workspace, rename_exclusive, shown
from tests.agent import driver
from tests.agent.driver import Tree, as_nobody

if TYPE_CHECKING:
    from executor.agent.operation import Steps


def opened(workspace: Workspace, path: str) -> str:
    """Where a path leads, relative to the root; or the name of the error."""
    try:
        fd = workspace.open(path, os.O_PATH)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    try:
        return os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), workspace.root)
    finally:
        os.close(fd)


def test_a_path_with_dots_is_followed_as_long_as_it_stays_inside(tree: Tree) -> None:
    """`..` is allowed inside; one step above the root is an error."""
    tree.write("a/b/f", "x")
    assert opened(tree.workspace, "a/./b/../b//f") == "a/b/f"
    assert opened(tree.workspace, "a/b/../..") == "."
    assert opened(tree.workspace, "a/b/../../..") == "EXDEV"
    assert opened(tree.workspace, "../workspace/a/b/f") == "EXDEV"
    assert opened(tree.workspace, "") == opened(tree.workspace, ".") == "."


def test_an_absolute_path_is_inside_or_refused(tree: Tree) -> None:
    """The workspace's own absolute paths work; any other, even a longer name, does not."""
    tree.write("f", "x")
    root = tree.workspace.root
    assert opened(tree.workspace, f"{root}/f") == "f"
    assert opened(tree.workspace, root) == opened(tree.workspace, root + "/") == "."
    for path in ("/etc/passwd", "/", f"{root}x/f", f"{root}/../f", "/proc/self/root/etc"):
        assert opened(tree.workspace, path) == "EXDEV"


def test_links_are_followed_inside_only(tree: Tree) -> None:
    """G1: relative and absolute links that stay inside work, every other is an error."""
    tree.write("e/real", "x")
    root = tree.workspace.root
    links = {
        "relative": "e/real",
        "chain": "relative",
        "absolute": f"{root}/e/real",
        "directory": "e",
        "absolute_directory": f"{root}/e/",
        "through": "directory/../e/real",
        "out": "/etc/hostname",
        "up": "../..",
        "magic": "/proc/self/cwd",
        "near": f"{root}x",
        "dead": "nowhere",
        "loop": "loop",
        "ping": "pong",
        "pong": "ping",
    }
    for name, target in links.items():
        (tree.path / name).symlink_to(target)
    found = {name: opened(tree.workspace, name) for name in links}
    inside = ("relative", "chain", "absolute", "through")
    assert found == {
        **dict.fromkeys(inside, "e/real"),
        **dict.fromkeys(("directory", "absolute_directory"), "e"),
        **dict.fromkeys(("out", "up", "magic", "near"), "EXDEV"),
        **dict.fromkeys(("loop", "ping", "pong"), "ELOOP"),
        "dead": "ENOENT",
    }
    assert opened(tree.workspace, "absolute_directory/real") == "e/real"
    assert opened(tree.workspace, "out/x") in ("EXDEV", "ENOTDIR")


def test_a_long_chain_of_links_is_an_error(tree: Tree) -> None:
    """41 links one after the other are refused as the kernel refuses them."""
    tree.write("l0", "x")
    for number in range(1, 60):
        (tree.path / f"l{number}").symlink_to(f"l{number - 1}")
    assert opened(tree.workspace, "l40") == "l0"
    assert opened(tree.workspace, "l41") == "ELOOP"


def test_a_slash_at_the_end_demands_a_directory(tree: Tree) -> None:
    """`f/` and `f/.` are errors for a file and fine for a directory or a link to one."""
    tree.write("d/f", "x")
    (tree.path / "l").symlink_to("d")
    assert [opened(tree.workspace, path) for path in ("d/", "l/", "l/.")] == ["d"] * 3
    assert [opened(tree.workspace, path) for path in ("d/f/", "d/f/.", "d/f/..")] == ["ENOTDIR"] * 3


def test_a_final_link_is_not_followed_when_asked(tree: Tree) -> None:
    """O_NOFOLLOW refuses a link as the last name, in both ways."""
    tree.write("f", "x")
    (tree.path / "l").symlink_to("f")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        tree.workspace.open("l", os.O_RDONLY | os.O_NOFOLLOW)


@pytest.mark.parametrize("name", ["new\nline", "\x1b[2J", "-rf", "ü" * 127, "a b", "\udcff\udcfe"])
def test_odd_names_are_names_like_any_other(tree: Tree, name: str) -> None:
    """G8: control characters, a leading dash, invalid UTF-8 and long names come back as given."""
    tree.write(name, "x")
    assert opened(tree.workspace, name) == name
    assert shown(name).isprintable()


def test_a_name_has_at_most_255_bytes(tree: Tree) -> None:
    """255 bytes work, 256 are refused with the limit."""
    tree.write("n" * 255, "x")
    assert tree.call("read", path="n" * 255)[1] == b"x"
    failure = tree.failure("read", path="n" * 256)
    assert (failure.code, "255 bytes" in failure.message) == ("INVALID_PATH", True)


def test_a_path_deeper_than_the_kernel_takes_at_once_works(tree: Tree) -> None:
    """6000 bytes of path are walked."""
    fd = os.dup(tree.workspace.directory)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    path = "/".join(["d" * 200] * 30)
    assert stat.S_ISREG(tree.workspace.status(path + "/f").st_mode)
    assert tree.call("delete", path="d" * 200, recursive=True)[0]["deleted"] == 31


def test_a_path_has_a_length_that_is_refused_at_once(tree: Tree) -> None:
    """However it is spelled: by every operation, with the limit, and cut in the message."""
    tree.write("a/f", "")
    for path in ("./" * 200_000 + "a/f", "a/../" * 100_000 + "a/f", "x/" * 200_000 + "f"):
        for op, arguments in (
            ("read", {}),
            ("write", {"expect": None}),
            ("stat", {}),
            ("delete", {}),
            ("list", {}),
        ):
            failure = tree.failure(op, path=path, **arguments)
            assert (failure.code, str(MAX_PATH) in failure.message) == ("INVALID_PATH", True)
            assert len(failure.message) < 1200
    assert opened(tree.workspace, "a/../" * 1000 + "a/f") == "a/f"


def test_links_through_links_are_walked_for_so_long(tree: Tree) -> None:
    """Where the kernel can't help, a path of many parts behind links ends with an error."""
    root = tree.workspace.root
    tree.write("a/f", "")
    (tree.path / "l0").symlink_to(f"{root}/a/f")
    for number in range(1, 9):
        (tree.path / f"l{number}").symlink_to(f"{root}/" + "a/../" * 790 + f"l{number - 1}")
    assert opened(tree.workspace, "l2") == "a/f"
    assert opened(tree.workspace, "l8") == "ELOOP"


def test_so_many_parents_are_made_at_once(tree: Tree) -> None:
    """Those that are missing are counted before the first is made."""
    assert tree.failure("write", b"", path="d/" * 300 + "f").code == "INVALID_PATH"
    assert os.listdir(tree.path) == []
    tree.call("write", b"", path="d/" * 200 + "f")
    tree.call("write", b"", path="d/" * 200 + "./e//" * 200 + "f")
    assert opened(tree.workspace, "d/" * 200 + "e/" * 200 + "f").endswith("e/f")
    assert tree.failure("write", b"", path="d/none/../f").code == "FILE_NOT_FOUND"


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x\udbff"])
def test_what_is_no_path_is_refused(tree: Tree, path: str) -> None:
    """NUL and half surrogate pairs give INVALID_PATH in every operation."""
    for op in ("read", "stat", "list", "delete"):
        assert tree.failure(op, path=path).code == "INVALID_PATH"
    assert tree.failure("write", b"x", path=path).code == "INVALID_PATH"


def test_errors_speak_of_the_path_and_of_what_to_do(tree: Tree) -> None:
    """Missing, dead, cyclic, leaving and file-as-directory are told apart."""
    tree.write("f", "x")
    for name, target in {"dead": "gone", "loop": "loop", "out": "/etc/hostname"}.items():
        (tree.path / name).symlink_to(target)
    said = {
        path: tree.failure("read", path=path)
        for path in ("missing", "no/such", "dead", "loop", "out", "f/x", "../x")
    }
    assert {path: failure.code for path, failure in said.items()} == {
        "missing": "FILE_NOT_FOUND",
        "no/such": "FILE_NOT_FOUND",
        "dead": "FILE_NOT_FOUND",
        "loop": "INVALID_PATH",
        "out": "INVALID_PATH",
        "f/x": "INVALID_PATH",
        "../x": "INVALID_PATH",
    }
    assert "link to gone" in said["dead"].message
    assert "no directory no" in said["no/such"].message
    assert "cycle" in said["loop"].message
    assert "/workspace" in said["out"].message


def test_denied_permission_is_told(public: Tree) -> None:
    """Without root's rights a closed file and a closed directory give PERMISSION_DENIED."""
    public.write("closed", "x").chmod(0)
    public.write("shut/f", "x").parent.chmod(0)

    def act() -> None:
        for beneath in (True, False):
            public.workspace.beneath = beneath
            for path in ("closed", "shut/f"):
                assert public.failure("read", path=path).code == "PERMISSION_DENIED"
            assert public.failure("list", path="shut").code == "PERMISSION_DENIED"

    as_nobody(act)


def test_a_directory_that_may_only_be_entered_is_passed(public: Tree) -> None:
    """Mode 0711 on the way is enough to read a file whose name is known."""
    public.write("d/f", "x").parent.chmod(0o711)

    def act() -> None:
        for beneath in (True, False):
            public.workspace.beneath = beneath
            assert public.call("read", path="d/f")[1] == b"x"

    as_nobody(act)


def test_nothing_stays_open(tree: Tree) -> None:
    """Good and bad look-ups of every kind leave no descriptor behind."""
    tree.write("d/e/f", "x")
    (tree.path / "l").symlink_to(f"{tree.workspace.root}/d/e")
    (tree.path / "loop").symlink_to("loop")
    before = sorted(os.listdir("/proc/self/fd"))
    for path in ("l/f", "d/../d/e/f", "loop", "l/none", "../x", "d/e/f/g", "l/../../../.."):
        opened(tree.workspace, path)
        for follow in (True, False):
            try:
                with tree.workspace.locate(path, follow=follow):
                    pass
            except (OSError, Failure):
                pass
    for path in ("new/a/d/../f", "d/e/f/g/h"):
        with pytest.raises(OSError, match=r"No such file|Not a directory"):
            tree.workspace.locate(path, follow=True, make_parents=True)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_missing_parents_are_made_and_taken_back(tree: Tree) -> None:
    """A failure after making directories leaves none of them; a success leaves all."""
    with (
        pytest.raises(RuntimeError),
        tree.workspace.locate("a/b/c/f", follow=True, make_parents=True),
    ):
        assert (tree.path / "a/b/c").is_dir()
        raise RuntimeError
    assert list(tree.path.iterdir()) == []
    with tree.workspace.locate("a/b/f", follow=True, make_parents=True) as place:
        assert place.name == "f"
    assert (tree.path / "a/b").is_dir()


def test_parents_are_not_made_through_a_dead_link(tree: Tree) -> None:
    """A dead link on the way is an error, and nothing is made where it leads."""
    (tree.path / "l").symlink_to("gone")
    assert tree.failure("write", b"x", path="l/f", create_dirs=True).code == "INVALID_PATH"
    assert os.listdir(tree.path) == ["l"]


def test_exclusive_rename_never_replaces(tree: Tree) -> None:
    """Neither the kernel's way nor the portable one replaces a file, link or directory."""
    from executor.agent import workspace

    fd = tree.workspace.directory
    for rename in (rename_exclusive, workspace._rename_exclusive_slowly):
        tree.write("a", "a")
        tree.write("b", "b")
        (tree.path / "c").mkdir()
        for target in ("b", "c"):
            with pytest.raises(FileExistsError):
                rename(fd, "a", fd, target)
        with pytest.raises(FileExistsError):
            rename(fd, "c", fd, "b")
        rename(fd, "a", fd, "new")
        rename(fd, "c", fd, "new directory")
        assert (tree.path / "new").read_bytes() == b"a"
        assert sorted(os.listdir(tree.path)) == ["b", "new", "new directory"]
        (tree.path / "new directory").rmdir()
        (tree.path / "new").unlink()


def test_sockets_and_devices_open_without_waiting(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G16: a FIFO without a writer and a socket are told apart at once."""
    os.mkfifo(tree.path / "p")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tree.path)
        listener.bind("s")
        kinds = {path: tree.failure("read", path=path).message for path in ("p", "s")}
    assert "FIFO" in kinds["p"]
    assert "socket" in kinds["s"]


def test_a_race_of_links_never_leads_outside(tree: Tree, tmp_path: Path) -> None:
    """G2: while a directory turns into a link to outside and back, nothing outside is written."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"untouched")
    (tree.path / "real").mkdir()
    (tree.path / "link").symlink_to(outside)
    stop = threading.Event()

    def flip() -> None:
        directory = tree.path / "d"
        while not stop.is_set():
            for name in ("real", "link"):
                os.rename(tree.path / name, directory)
                os.rename(directory, tree.path / name)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(3000):
            for path in ("d/f", "d/../d/f", "link/f"):
                try:
                    tree.call("write", b"x", path=path, expect="0" * 32, create_dirs=False)
                except Failure as failure:
                    assert failure.code != "INTERNAL"
    finally:
        stop.set()
        thread.join()
    assert os.listdir(outside) == ["f"]
    assert (outside / "f").read_bytes() == b"untouched"


names = st.sampled_from(["a", "b", "c", ".", "..", ""])
paths = st.lists(names, min_size=1, max_size=6).map("/".join)
targets = st.one_of(paths, paths.map(lambda path: "/" + path), paths.map(lambda path: "@/" + path))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    directories=st.lists(paths, max_size=5),
    links=st.lists(st.tuples(paths, targets), max_size=6),
    asked=st.lists(st.one_of(paths, targets), min_size=1, max_size=8),
)
def test_no_path_escapes_and_both_ways_agree(
    directories: list[str], links: list[tuple[str, str]], asked: list[str]
) -> None:
    """In any tree of directories and links, a path leads inside or fails, the same both ways."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "r"
        root.mkdir()
        tree = Tree(root)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            _grow(tree, directories, links)
        for path in asked:
            spelled = path.replace("@", tree.workspace.root)
            found = {}
            for tree.workspace.beneath in (True, False):
                found[tree.workspace.beneath] = opened(tree.workspace, spelled)
            assert found[True] == found[False], spelled
            assert not found[True].startswith(".."), spelled
        tree.workspace.close()


def _grow(tree: Tree, directories: list[str], links: list[tuple[str, str]]) -> None:
    for path in directories:
        try:
            with tree.workspace.locate(path, follow=False, make_parents=True) as place:
                os.mkdir(place.name, dir_fd=place.parent)
        except (OSError, Failure):
            continue
    for path, target in links:
        try:
            with tree.workspace.locate(path, follow=False) as place:
                os.symlink(
                    target.replace("@", tree.workspace.root), place.name, dir_fd=place.parent
                )
        except (OSError, Failure):
            continue


def test_the_driver_ends_what_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that never returns is an error of the test, not a hang."""
    monkeypatch.setattr(driver, "MAX_STEPS", 10)

    def endless() -> Steps:
        while True:
            yield None

    with pytest.raises(AssertionError, match="does not end"):
        driver.run_steps(endless(), "/")
