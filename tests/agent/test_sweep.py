"""The operation sweep: which files there are, how each was left, and that it holds nobody up."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from executor.agent import sweep
from executor.errors import Partial, ProtocolError
from executor.sandbox.replies import MAX_SWEPT, MAX_SWEPT_FILES, most_data, most_records, shape_of
from tests.agent.driver import Tree, as_nobody, changed
from tests.conftest import docker_box, local_box
from tests.driver import Box, LoopThread

MANY = 60_000
ASKED: dict[str, Any] = {"suffixes": [".py", ".pyi"], "names": ["pyproject.toml"], "known": ""}


class File(NamedTuple):
    """One record."""

    modified: int
    size: int
    inode: int
    path: str


def read(data: bytes) -> list[File]:
    """The records of an answer."""
    assert not data or data.endswith(b"\0")
    records = [record.split(b"\x1f", 3) for record in data.split(b"\0")[:-1]]
    return [
        File(int(modified), int(size), int(inode), os.fsdecode(path))
        for modified, size, inode, path in records
    ]


def swept(tree: Tree, **arguments: Any) -> tuple[dict[str, Any], list[File]]:
    """What a sweep says, and its records; the host would take both."""
    asked = {**ASKED, **arguments}
    value, data = tree.call("sweep", **asked)
    shape = shape_of("sweep", asked)
    assert shape is not None
    shape.check(value, data)
    return value, read(data)


def paths(tree: Tree, **arguments: Any) -> list[str]:
    """The paths of a sweep."""
    return [file.path for file in swept(tree, **arguments)[1]]


# ─── what is found ──────────────────────────────────────────────────────────────────


def test_a_sweep_says_how_each_file_was_left(tree: Tree) -> None:
    """Time, size and inode are those of lstat; the answer says when it began.

    The time is the kernel's, which no program can set.
    """
    began = time.time_ns()
    path = tree.write("src/a.py", "12345")
    os.utime(path, ns=(0, -1_234_567_890))
    value, files = swept(tree)
    status = path.lstat()
    assert files == [File(status.st_ctime_ns, 5, status.st_ino, "src/a.py")]
    assert began <= value.pop("now") <= time.time_ns()
    assert len(value.pop("mark")) == 32
    assert value == {"files": 1, "truncated": False}


def test_files_are_found_by_suffix_and_by_name(tree: Tree) -> None:
    """A name counts whole, a suffix in the spelling that was asked for; nothing asked: nothing."""
    for name in ("a.py", "a.pyi", "a.pyc", "py", "b.PY", "pyproject.toml", "my.pyproject.toml"):
        tree.write(f"d/{name}", "")
    assert paths(tree) == ["d/a.py", "d/a.pyi", "d/pyproject.toml"]
    assert paths(tree, suffixes=[".PY"], names=[]) == ["d/b.PY"]
    assert paths(tree, suffixes=[], names=["py"]) == ["d/py"]
    assert paths(tree, suffixes=[], names=[]) == []


def test_a_star_in_a_name_stands_for_any_characters(tree: Tree) -> None:
    """None among them; what else a name has is taken as it is, and so is one without a star."""
    for name in (
        *(
            "tsconfig.json",
            "tsconfig.app.json",
            "d/tsconfig\n.json",
            "tsconfig.json5",
            "package.json",
        ),
        *("my.tsconfig.json", "Tsconfig.json", "tsconfig/x.json", "a+b.c", "aab.c", "[x].y", "x.y"),
    ):
        tree.write(name, "")
    tree.write("node_modules/tsconfig.json", "")
    names = ["tsconfig*.json", "a+b*.c", "[x].y"]
    assert paths(tree, suffixes=[], names=names) == [
        *("[x].y", "a+b.c", "d/tsconfig\n.json"),
        *("node_modules/", "tsconfig.app.json", "tsconfig.json"),
    ]
    every = paths(tree, suffixes=[], names=["*"])
    assert {"x.y", "tsconfig/x.json", "tsconfig.json5"} < set(every)


def test_what_is_nobodys_own_source_text_is_not_entered(tree: Tree) -> None:
    """Git's directory, environments, caches and packages are left out at every depth."""
    for name in (*sweep.LEFT_OUT, *sweep.PACKAGES):
        tree.write(f"{name}/x.py", "")
        tree.write(f"d/{name}/x.py", "")
    for name in (".hidden", "build", "venvs", "Node_modules"):
        tree.write(f"{name}/x.py", "")
    assert (len(sweep.LEFT_OUT), len(sweep.PACKAGES)) == (9, 3)
    found = [path for path in paths(tree) if path.endswith(".py")]
    assert found == [".hidden/x.py", "Node_modules/x.py", "build/x.py", "venvs/x.py"]


def test_a_directory_of_packages_says_how_it_was_left(tree: Tree) -> None:
    """So do scopes in it and the way to what pip installs, and nothing else of what is there."""
    for name in (
        *("node_modules/left/a.py", "node_modules/left/@x/a.py", "node_modules/a.py"),
        *("node_modules/@types/left/lib/a.py", "d/node_modules/lib/python3.11/a.py"),
        *(".venv/lib/python3.11/site-packages/left/a.py", ".venv/lib/python3.11/a.py"),
        *(".venv/lib/left/a.py", ".venv/bin/a.py", "venv/@types/a.py", "lib/python3/@x/a.py"),
    ):
        tree.write(name, "")
    tree.path.joinpath("e").mkdir()
    tree.path.joinpath("e/node_modules").symlink_to("../node_modules")
    _, files = swept(tree)
    assert [file.path for file in files] == [
        *(".venv/", ".venv/lib/", ".venv/lib/python3.11/", ".venv/lib/python3.11/site-packages/"),
        *("d/node_modules/", "lib/python3/@x/a.py", "node_modules/", "node_modules/@types/"),
        "venv/",
    ]
    for file in files:
        status = (tree.path / file.path).lstat()
        assert file[:3] == (status.st_ctime_ns, status.st_size, status.st_ino)


def test_files_come_in_the_order_of_their_bytes(tree: Tree) -> None:
    """Sorted by the whole path; names that are no text, or hold separators, stay as they are."""
    names = [
        *("a/x.py", "a-b.py", "a.py", "a0.py", "B.py", "\udcff.py", "ü/é.py", "ü!.py"),
        *("new\nline.py", "sep\x1farated.py", "-rf.py", "[id]/p.py", " .py", ".py", "a/..py"),
    ]
    for name in names:
        tree.write(name, "")
    assert paths(tree) == sorted(names, key=os.fsencode)


def test_a_large_directory_is_sorted_in_portions(tree: Tree) -> None:
    """The order is that of all names, and neither sorting nor looking keeps the agent."""
    names = [f"{number * 7919 % 5000:x}.py" for number in range(5000)]
    for name in names:
        tree.write(f"d/{name}", "")
    assert paths(tree) == [f"d/{name}" for name in sorted(names)]
    assert tree.pauses("sweep", **ASKED) >= 2 * (5000 // 300)


def test_only_regular_files_are_found(tree: Tree) -> None:
    """No link is followed, no FIFO, socket or directory taken for a file, and nothing waits."""
    tree.write("a.py", "")
    tree.write("directory.py/b.py", "")
    for name, target in (
        *(("link.py", "a.py"), ("dead.py", "nowhere"), ("loop.py", "loop.py")),
        *(("up", ".."), ("self", "."), ("out", "/etc")),
    ):
        (tree.path / name).symlink_to(target)
    os.mkfifo(tree.path / "fifo.py")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(tree.path)
        listener.bind("socket.py")
        os.chdir(here)
        assert paths(tree) == ["a.py", "directory.py/b.py"]


def test_rules_and_reach_do_not_change_a_sweep(tree: Tree) -> None:
    """It is of the worktree in any case, whatever the call it is made for was judged by."""
    tree.write("a.py", "")
    tree.write("secret/b.py", "")
    deny = {"read": [["secret/", "read_file(secret/)"], ["*.py", "read_file(*.py)"]]}
    rules = {"deny": deny, "ask": deny, "places": ["a.py"]}
    assert paths(tree, rules=rules, reach="box") == ["a.py", "secret/b.py"]


# ─── bounds ─────────────────────────────────────────────────────────────────────────


def test_a_deep_tree_is_swept_as_far_as_it_goes(tree: Tree) -> None:
    """400 levels end by the limit, which is said; what is beside them is found."""
    tree.write("z.py", "")
    fd = os.dup(tree.workspace.directory)
    for _ in range(400):
        os.mkdir("d", dir_fd=fd)
        os.mknod("f.py", dir_fd=fd)
        inner = os.open("d", os.O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    value, files = swept(tree)
    assert value["truncated"]
    assert [file.path for file in files] == [
        *("d/" * depth + "f.py" for depth in range(127, -1, -1)),
        "z.py",
    ]


def test_paths_that_no_tool_takes_are_left_out(tree: Tree) -> None:
    """Beyond 8 KiB nothing can open a file by its path; that something is there is said."""
    fd = os.dup(tree.workspace.directory)
    for _ in range(40):
        os.mkdir("d" * 255, dir_fd=fd)
        os.mknod("f.py", dir_fd=fd)
        inner = os.open("d" * 255, os.O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    value, files = swept(tree)
    assert value["truncated"] and len(files) == 32
    assert max(len(file.path) for file in files) == 31 * 256 + 4


def test_files_bytes_and_names_are_bounded(tree: Tree) -> None:
    """Each bound is kept to the one, and only what is left out makes an answer truncated."""
    for number in range(10):
        tree.write(f"d{number}/f.py", "")
    whole, files = swept(tree)
    size = sum(len(f"{f.modified}_{f.size}_{f.inode}_{f.path}_") for f in files)
    for bound, enough in (("MAX_FILES", 10), ("MAX_DATA", size), ("_NAMES", 20)):
        with changed(sweep, **{bound: enough}):
            value, found = swept(tree)
            assert (found, value["truncated"], value["mark"]) == (files, False, whole["mark"])
        with changed(sweep, **{bound: enough - 1}):
            value, found = swept(tree)
            assert (found, value["truncated"]) == (files[:9], True), bound
            assert value["mark"] != whole["mark"]


def test_packages_take_no_room_from_files(tree: Tree) -> None:
    """However many names and directories there are of them, each file is found behind them."""
    for number in range(10):
        tree.write(f"d{number}/f.py", "")
        for package in range(10):
            tree.write(f"d{number}/node_modules/@x{package}/index.js", "")
    value, files = swept(tree)
    assert (len(files), value["truncated"]) == (120, False)
    sources = [file for file in files if file.path.endswith(".py")]
    with changed(sweep, _NAMES=30):  # d0, …, and what is in each
        assert swept(tree)[1] == files
    with changed(sweep, _PACKAGE_NAMES=15):
        value, found = swept(tree)
        counts = [sum(f"d{number}/node" in file.path for file in found) for number in range(10)]
        assert (counts, value["truncated"]) == ([11, 6, *[1] * 8], False)
        assert set(sources) < set(found)
    packages = [file for file in files if file not in sources]
    size = sum(len(f"{f.modified}_{f.size}_{f.inode}_{f.path}_") for f in packages[:25])
    for bound, count in ((size, 25), (size - 1, 24), (0, 0)):
        with changed(sweep, _PACKAGE_DATA=bound):
            value, found = swept(tree)
        assert [file for file in found if file not in sources] == packages[:count]
        assert (len(found), value["truncated"]) == (10 + count, False)


def test_packages_that_are_left_out_make_no_sweep_truncated(tree: Tree) -> None:
    """Neither behind the last file that there is room for, nor too deep: they are no files."""
    tree.write("a.py", "")
    tree.write("node_modules/index.js", "")
    for bound in ("MAX_FILES", "_DEPTH"):
        with changed(sweep, **{bound: 1}):
            value, files = swept(tree)
        assert ([file.path for file in files], value["truncated"]) == (["a.py"], False)


def test_the_host_takes_as_much_as_is_sent() -> None:
    """The bounds of both sides are the same."""
    assert (sweep.MAX_DATA, sweep.MAX_FILES) == (MAX_SWEPT, MAX_SWEPT_FILES)
    assert (most_data("sweep", ASKED), most_records("sweep", ASKED)) == (MAX_SWEPT, MAX_SWEPT_FILES)


# ─── what can't be read, or changes ─────────────────────────────────────────────────


def test_what_can_not_be_read_is_left_out(public: Tree) -> None:
    """A directory that can't be opened, and one whose files can't be looked at."""
    public.write("a/x.py", "")
    public.write("shut/x.py", "").parent.chmod(0)
    public.write("named/x.py", "").parent.chmod(0o444)

    def act() -> None:
        value, files = swept(public)
        assert [file.path for file in files] == ["a/x.py"]
        assert not value["truncated"]

    as_nobody(act)


def test_a_lack_of_descriptors_is_no_answer(tree: Tree) -> None:
    """To leave out what can't be opened for it would say that files are gone."""
    tree.write("d/" * 40 + "x.py", "")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, hard))
    try:
        failure = tree.failure("sweep", **ASKED)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (failure.code, "too many files are open" in failure.message) == ("LIMIT", True)
    assert paths(tree) == ["d/" * 40 + "x.py"]


def test_a_directory_that_holds_itself_is_swept_once(tree: Tree) -> None:
    """A mount of the worktree inside of it leads round in a circle, which is not gone."""
    tree.write("a.py", "")
    point = tree.path / "b" / "again"
    point.mkdir(parents=True)
    command = ["mount", "--bind", str(tree.path), str(point)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount")
    try:
        assert paths(tree) == ["a.py"]
    finally:
        subprocess.run(["umount", str(point)], check=True)


def _changes(root: Path) -> Iterator[Callable[[], object]]:
    """What another process does to directories that are open, named, or looked at already."""
    for number in range(20):
        here, moved = root / f"d{number:02}", root / f"moved{number:02}"
        yield (here / "b.py").unlink
        yield partial((here / "c.py").rename, here / "inner" / "c.py")
        yield partial(here.rename, moved)
        yield partial(here.symlink_to, "/etc")
        yield (moved / "b.py").mkdir


def test_changes_during_a_sweep_do_no_harm(tree: Tree) -> None:
    """Files come and go, directories become links: the rest is found, and nothing outside."""
    for number in range(20):
        for name in ("b.py", "c.py", "inner/x.py"):
            tree.write(f"d{number:02}/{name}", "")
    tree.write("kept/y.py", "")
    tree.write("z.py", "")
    before = sorted(os.listdir("/proc/self/fd"))
    with changed(sweep, _SLICE=1):
        steps = sweep.sweep(tree.workspace, ASKED, b"")
        changes = _changes(tree.path)
        try:
            while True:
                assert next(steps) is None
                next(changes, lambda: None)()
        except StopIteration as stop:
            value, data = stop.value
    found = [file.path for file in read(data)]
    assert found == sorted(set(found)) and {"kept/y.py", "z.py"} < set(found)
    assert all(
        path.rpartition("/")[2] in ("b.py", "c.py", "x.py", "y.py", "z.py") for path in found
    )
    assert not value["truncated"] and next(changes, None) is None, "not all changes were made"
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_sweep_that_is_ended_early_leaves_nothing_open(tree: Tree) -> None:
    """At whichever pause it is closed."""
    tree.write("a/b/c/x.py", "")
    tree.write("a/b/y.py", "")
    before = sorted(os.listdir("/proc/self/fd"))
    with changed(sweep, _SLICE=1):
        most = tree.pauses("sweep", **ASKED)
        assert most > 8
        for count in range(most):
            steps = sweep.sweep(tree.workspace, ASKED, b"")
            for _ in range(count):
                next(steps)
            steps.close()
            assert sorted(os.listdir("/proc/self/fd")) == before


# ─── the mark ───────────────────────────────────────────────────────────────────────


def test_what_is_known_is_not_sent_again(tree: Tree) -> None:
    """With the mark of what is there the answer has no records, but still says how many."""
    tree.write("a.py", "")
    tree.write("b.py", "")
    first, files = swept(tree)
    again, none = swept(tree, known=first["mark"])
    assert (len(files), none) == (2, [])
    assert {**again, "now": 0} == {**first, "now": 0}
    other, all_again = swept(tree, known="0" * 32)
    assert (other["mark"], all_again) == (first["mark"], files)


def _rewritten(path: Path) -> None:
    """Another inode with the same content, size and time."""
    status = path.stat()
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


def _resized(path: Path) -> None:
    """Another size, with the same inode and time."""
    status = path.stat()
    with path.open("ab") as file:
        file.write(b"more")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _touched(path: Path) -> None:
    """Another time alone, by as little as the kernel's clock has."""
    status = path.stat()
    while path.stat().st_ctime_ns == status.st_ctime_ns:
        os.utime(path, ns=(0, status.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        _rewritten,
        _resized,
        _touched,
        Path.unlink,
        lambda path: path.rename(path.with_name("b.py")),
        lambda path: path.with_name("b.py").write_bytes(b""),
    ],
    ids=["inode", "size", "time", "deleted", "renamed", "new"],
)
def test_each_change_gives_another_mark(tree: Tree, change: Callable[[Path], object]) -> None:
    """Time, size, inode and path: whichever differs, the records are sent."""
    path = tree.write("a.py", "text")
    first, files = swept(tree)
    change(path)
    second, others = swept(tree, known=first["mark"])
    assert second["mark"] != first["mark"] and others != files


def _made_again(path: Path) -> None:
    """A directory of the same name and content is in its place."""
    old = path.rename(path.with_name("old"))
    path.mkdir()
    for inner in old.iterdir():
        inner.rename(path / inner.name)


@pytest.mark.parametrize(
    ("directory", "change"),
    [
        ("node_modules", lambda path: path.joinpath("left").mkdir()),
        ("node_modules", _made_again),
        ("node_modules/@types", lambda path: path.joinpath("left").mkdir()),
        (".venv/lib/python3.11/site-packages", lambda path: path.joinpath("left.py").touch()),
        ("d/venv/lib/python3.11/site-packages", lambda path: path.joinpath("right.py").unlink()),
        ("venv", shutil.rmtree),
    ],
)
def test_an_installation_gives_another_mark(
    tree: Tree, directory: str, change: Callable[[Path], object]
) -> None:
    """Whatever comes, goes or is replaced directly in a directory of packages."""
    path = tree.write(f"{directory}/right.py", "").parent
    probe = tree.write("probe.txt", "")
    while probe.stat().st_ctime_ns == path.stat().st_ctime_ns:  # another change may leave it, too
        os.utime(probe)
    first, _ = swept(tree)
    change(path)
    assert swept(tree)[0]["mark"] != first["mark"]


def test_changes_of_what_is_not_asked_for_keep_the_mark(tree: Tree) -> None:
    """Other files, directories and what is left out have no part in it."""
    tree.write("a.py", "")
    tree.write("node_modules/left/a.py", "")
    first, _ = swept(tree)
    for name in ("a.txt", "d/b.txt", "__pycache__/x.py", "node_modules/left/b.py"):
        tree.write(name, "")
    assert swept(tree)[0]["mark"] == first["mark"]


# ─── in a running agent ─────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=["local", "docker"])
def forest(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    """A box over each transport, with 60,000 files."""
    directory = tmp_path_factory.mktemp(request.param)
    with LoopThread() as thread:
        box = (local_box if request.param == "local" else docker_box)(thread, directory)
        for number in range(0, MANY, 1000):
            part = box.root / f"part{number:05}"
            part.mkdir()
            for one in range(number, number + 1000):
                os.mknod(part / f"file{one:05}.py")
        yield box


def test_a_sweep_of_too_many_files_is_truncated(forest: Box) -> None:
    """The first 50,000 of 60,000 come, and with their mark none."""
    answer = forest.request("sweep", ASKED)
    files = read(answer.data)
    assert (answer.value["files"], answer.value["truncated"]) == (50_000, True)
    assert [file.path for file in files[::49_999]] == [
        "part00000/file00000.py",
        "part49000/file49999.py",
    ]
    again = forest.request("sweep", {**ASKED, "known": answer.value["mark"]})
    assert (again.value["mark"], again.data) == (answer.value["mark"], b"")


def test_other_calls_are_answered_during_a_sweep(forest: Box) -> None:
    """Eight sweeps are under way when a look at a file is answered; cancelled they are over."""

    async def scene() -> None:
        box = forest.sandbox
        sweeps = [asyncio.ensure_future(box.request("sweep", ASKED)) for _ in range(8)]
        assert (await box.request("stat", {"path": "part00000"})).value["exists"]
        assert not any(one.done() for one in sweeps)
        for one in sweeps:
            one.cancel()
        for error in await asyncio.gather(*sweeps, return_exceptions=True):
            assert isinstance(error, asyncio.CancelledError)
            assert not any(isinstance(one, Partial) for one in error.args), "it was answered"

    forest.thread.run(scene())
    assert forest.request("stat", {"path": "none"}).value["exists"] is False


def test_the_search_is_not_loaded_for_a_sweep() -> None:
    """An idle box pays for every module that it has ever loaded."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from agent.service import Service; "
        "Service(0, 1)._operation('sweep'); print(' '.join(sorted(sys.modules)))"
    )
    package = Path(sweep.__file__).parent.parent
    argv = [sys.executable, "-I", "-S", "-B", "-c", code, str(package)]
    done = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "agent.sweep" in loaded
    assert not {"agent.search", "agent.restrictions", "agent.pages", "typing"} & loaded


# ─── what the host takes ────────────────────────────────────────────────────────────

MARK = "0123456789abcdef" * 2
ANSWER: dict[str, Any] = {"mark": MARK, "files": 1, "truncated": False, "now": 1}
ONE = b"1\x1f2\x1f3\x1fd/a.py\0"


def record(path: bytes) -> bytes:
    """A record with this path."""
    return b"1\x1f2\x1f3\x1f" + path + b"\0"


@pytest.mark.parametrize(
    ("value", "data", "known"),
    [
        (ANSWER, ONE, ""),
        (ANSWER, ONE, "f" * 32),
        (ANSWER, b"", MARK),
        ({**ANSWER, "files": 0}, b"", ""),
        ({**ANSWER, "files": 2}, ONE + record(b"\xff\n\x1f\\.py"), ""),
        (ANSWER, record(b"d/node_modules/"), ""),
        ({**ANSWER, "files": 2}, b"-1\x1f2\x1f3\x1f...\0" + record(b".a/..b/c..py"), ""),
        (ANSWER, record(b"a" * 8192), ""),
    ],
)
def test_answers_of_an_agent_of_ours_are_taken(
    value: dict[str, Any], data: bytes, known: str
) -> None:
    """Records, or none where the mark is known."""
    shape = shape_of("sweep", {**ASKED, "known": known})
    assert shape is not None
    shape.check(value, data)


@pytest.mark.parametrize(
    ("value", "data", "known"),
    [
        *(({key: part for key, part in ANSWER.items() if key != name}, ONE, "") for name in ANSWER),
        *(({**ANSWER, "mark": mark}, ONE, "") for mark in ("", MARK + "0", MARK.upper(), 1, None)),
        *(({**ANSWER, "mark": mark}, ONE, "") for mark in (MARK + "\n", "٣" * 32)),
        *(({**ANSWER, "files": count}, ONE, "") for count in (0, 2, -1, True, 1.0, "1", 50_001)),
        *(({**ANSWER, "now": now}, ONE, "") for now in (-1, 1 << 63, 1.5, None, True)),
        ({**ANSWER, "truncated": 0}, ONE, ""),
        ({**ANSWER, "more": 1}, ONE, ""),
        (ANSWER, ONE, MARK),
        ({**ANSWER, "files": 50_001}, b"", MARK),
        (ANSWER, b"", ""),
        (ANSWER, b"", "f" * 32),
        ({**ANSWER, "files": 0}, b"x", ""),
        (ANSWER, ONE + b"x", ""),
        *(
            (ANSWER, record(path), "")
            for path in (b"", b"/etc/passwd", b"..", b".", b"../a", b"./a")
        ),
        *(
            (ANSWER, record(path), "")
            for path in (b"a/..", b"a/../b", b"a/./b", b"a//b", b"a//", b"/")
        ),
        (ANSWER, record(b"a" * 8193), ""),
        (ANSWER, record(b"a/" * 4096 + b"b"), ""),
        *((ANSWER, data, "") for data in (b"1\x1f2\x1fa\0", b"\x1f2\x1f3\x1fa\0", b"a\0", b"\0")),
        *((ANSWER, data, "") for data in (b"1\x1f-2\x1f3\x1fa\0", b"1\x1f2\x1f 3\x1fa\0")),
        (ANSWER, b"1" * 21 + b"\x1f2\x1f3\x1fa\0", ""),
        (ANSWER, "٣".encode() + b"\x1f2\x1f3\x1fa\0", ""),
    ],
)
def test_answers_that_no_agent_of_ours_gives_are_refused(
    value: dict[str, Any], data: bytes, known: str
) -> None:
    """Fields that are missing or wrong, records that do not fit them, paths of another place."""
    shape = shape_of("sweep", {**ASKED, "known": known})
    assert shape is not None
    with pytest.raises(ProtocolError):
        shape.check(value, data)


@pytest.mark.parametrize(
    "path", [b"a/" * 4095 + b"a", b"." * 8192, b"../" * 2730, b"a" * 8191 + b"/", b"\x1f" * 8192]
)
def test_many_records_are_looked_at_in_time(path: bytes) -> None:
    """The longest answer is judged in less than a second, whatever it is made of."""
    one = record(path)
    data = one * (MAX_SWEPT // len(one))
    value = {**ANSWER, "files": data.count(b"\0")}
    shape = shape_of("sweep", ASKED)
    assert shape is not None
    began = time.process_time()
    try:
        shape.check(value, data)
    except ProtocolError:
        assert path.endswith(b"/") or b"../" in path
    assert time.process_time() - began < 1
