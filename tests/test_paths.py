"""Paths as models write them: what each toolset takes, for reading and for changing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.catalog import PACKAGED, Catalog, load, parse
from executor.controller import Controller
from executor.errors import Code, ConfigError, ToolError
from executor.loop import Loop
from executor.model import MOUNT, PLANS, RESULTS, Call, Directory, LoopSpec, Result
from executor.paths import Added, Reach
from executor.sandbox import targets
from executor.sandbox.container import Beside, create_request
from executor.sandbox.inspection import read_back_faults
from executor.sandbox.ownership import open_beside
from executor.settings import Settings
from tests.conftest import LIMITS, RUNTIME, UID, make_worktree
from tests.driver import LoopThread
from tests.sandbox.tiny import plan
from tests.test_catalog import TEXT

PLAN = f"{PLANS}/x.md"
ADDED = (
    Added("/workspaces/lib", ("/srv/lib",)),
    Added("/workspaces/out", ("/srv/out",), is_writable=True),
)
WORKTREE = Reach(("/home/u/wt", "/mnt/wt"), ADDED, PLAN)
BOX = replace(WORKTREE, is_box=True, hidden=("/run/executor/git",))
INVALID, DENIED = Code.INVALID_PATH, Code.PERMISSION_DENIED

# What the model writes → for reading and for changing, in a toolset of the worktree and in one
# of the whole box: the path that tools use, or the code of the refusal.
PATHS: dict[str, tuple[Any, Any, Any, Any]] = {
    "a.txt": ("a.txt",) * 4,
    "": ("",) * 4,
    ".": ("",) * 4,
    "./d//e/": ("d/e",) * 4,
    "d/../a": ("a",) * 4,
    "/workspace": ("",) * 4,
    "/workspace/d/a": ("d/a",) * 4,
    "//workspace//a": ("a",) * 4,
    "/home/u/wt/src/a.py": ("src/a.py",) * 4,
    "/mnt/wt": ("",) * 4,
    "/home/u/wt/../wt/a": ("a",) * 4,
    "/home/u/wtx/a": (INVALID, INVALID, "/home/u/wtx/a", INVALID),
    "..": (INVALID, INVALID, "/", INVALID),
    "../tmp/x": (INVALID, INVALID, "/tmp/x", "/tmp/x"),
    "../home/u/wt/a": (INVALID, INVALID, "/home/u/wt/a", INVALID),
    "d/../../workspace/a": ("a",) * 4,
    f"{RESULTS}/1.txt": (f"{RESULTS}/1.txt", DENIED, f"{RESULTS}/1.txt", DENIED),
    RESULTS: (RESULTS, DENIED, RESULTS, DENIED),
    PLAN: (PLAN,) * 4,
    f"{PLANS}/other.md": (INVALID, INVALID, f"{PLANS}/other.md", INVALID),
    "/workspaces/lib/a": ("/workspaces/lib/a", DENIED, "/workspaces/lib/a", DENIED),
    "/srv/lib/a": ("/workspaces/lib/a", DENIED, "/workspaces/lib/a", DENIED),
    "/workspaces/out": ("/workspaces/out",) * 4,
    "/srv/out/a/../b": ("/workspaces/out/b",) * 4,
    "/workspaces/none/a": (INVALID, INVALID, "/workspaces/none/a", INVALID),
    "/tmp/x": (INVALID, INVALID, "/tmp/x", "/tmp/x"),
    "/home/sandbox/.cache/x": (INVALID, INVALID, *("/home/sandbox/.cache/x",) * 2),
    "/usr/include/stdio.h": (INVALID, INVALID, "/usr/include/stdio.h", INVALID),
    "/": (INVALID, INVALID, "/", INVALID),
    "/etc/../proc/1/environ": (INVALID,) * 4,
    "/proc": (INVALID,) * 4,
    "/sys/kernel": (INVALID,) * 4,
    "/dev/null": (INVALID,) * 4,
    "/opt/executor/agent": (INVALID,) * 4,
    "/run/executor/git/HEAD": (INVALID, INVALID, INVALID, INVALID),
    "/opt/other": (INVALID, INVALID, "/opt/other", INVALID),
    "/procs/x": (INVALID, INVALID, "/procs/x", INVALID),
    "a\0b": (INVALID,) * 4,
    "/tmp/a\0": (INVALID,) * 4,
    "../../proc/1/environ": (INVALID,) * 4,
}


def placed(reach: Reach, text: str, *, is_change: bool, base: str = MOUNT) -> str | Code:
    try:
        return reach.to_write(text, base) if is_change else reach.to_read(text, base)
    except ToolError as error:
        assert error.code is not INVALID or f"The root is {MOUNT}" in str(error)
        return error.code


@pytest.mark.parametrize("text", PATHS)
def test_what_a_path_means(text: str) -> None:
    """Each path means one place in both kinds of toolsets, or is refused with the right code."""
    found = [
        placed(reach, text, is_change=is_change)
        for reach in (WORKTREE, BOX)
        for is_change in (False, True)
    ]
    assert found == list(PATHS[text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "src/deep/a"),
        ("../a", "src/a"),
        ("../../..", "/"),
        ("../../../tmp/a", "/tmp/a"),
        ("/workspace/a", "a"),
        (".", "src/deep"),
    ],
)
def test_relative_paths_may_begin_where_the_last_command_ended(text: str, expected: str) -> None:
    """With a base they are taken from there, and may lead out where the toolset reaches."""
    assert placed(BOX, text, is_change=False, base="/workspace/src/deep") == expected


def test_a_refusal_does_not_name_the_host(tmp_path: Path) -> None:
    """A path that only looks like the worktree's is refused without repeating its place."""
    with pytest.raises(ToolError) as caught:
        WORKTREE.to_read("/home/u/wt-other/secret")
    assert "/home/u" not in str(caught.value)
    with pytest.raises(ToolError) as caught:
        WORKTREE.to_read("/etc/passwd")
    assert "'/etc/passwd' is outside the worktree" in str(caught.value)


PART = st.sampled_from(["a", "..", ".", "", "proc", "workspace", "tmp", "dev", "wt", "opt", "u"])


@given(st.lists(PART, max_size=8), st.booleans(), st.booleans())
def test_no_spelling_leads_to_what_is_hidden(
    parts: list[str], is_absolute: bool, is_change: bool
) -> None:
    """Whatever is written, the place is in the worktree or is one that the toolset has."""
    text = ("/" if is_absolute else "") + "/".join(parts)
    for reach in (WORKTREE, BOX):
        found = placed(reach, text, is_change=is_change)
        if isinstance(found, Code):
            continue
        assert ".." not in found.split("/")
        if not found.startswith("/"):
            continue
        assert reach is BOX
        assert not found.startswith(("/proc", "/dev", "/sys", "/opt/executor", MOUNT + "/"))
        if is_change:
            assert found.startswith(("/tmp", "/home/sandbox"))


# ─── the catalog ────────────────────────────────────────────────────────────────────


def catalog(**keys: str) -> Catalog:
    """Ours, with other values in the toolset `standard`."""
    lines = "\n".join(f"{key} = {value}" for key, value in keys.items())
    return parse([(PACKAGED, TEXT), ("my", f"[toolsets.standard]\n{lines}")])


def test_a_toolset_says_how_far_it_reaches() -> None:
    """The keys are read, and a limit for a tool that there is not is a fault."""
    entry = catalog(reach='"box"', relative_to='"cwd"', shown='"absolute"', unit='"characters"')
    made = entry.toolsets["standard"]
    assert (made.reach, made.relative_to, made.shown, made.unit) == (
        *("box", "cwd"),
        *("absolute", "characters"),
    )
    with pytest.raises(ConfigError) as caught:
        parse([(PACKAGED, TEXT), ("my", "[toolsets.standard.limits]\nread_fil = 5000")])
    assert "toolsets.standard.limits: there is no tool 'read_fil'; did you mean read_file?" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "text",
    [
        'call_bytes = "1k"',
        'call_bytes = "8m"\nloop_bytes = "4m"',
        'call_bytes = "much"',
        "files = 0",
        "bytes = 1",
    ],
)
def test_wrong_limits_of_kept_outputs_are_faults(text: str) -> None:
    """Sizes that make no sense are named with their key."""
    with pytest.raises(ConfigError, match=r"my: spill"):
        parse([(PACKAGED, TEXT), ("my", f"[spill]\n{text}")])


# ─── directories beside the worktree ────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "path", "is_writable"),
    [
        ("/a/b", "/a/b", False),
        ("/a/b:ro", "/a/b", False),
        ("/a/b:rw", "/a/b", True),
        ("/a:b", "/a:b", False),
        ("rw", "rw", False),
    ],
)
def test_an_added_directory_is_for_reading_unless_it_says_otherwise(
    text: str, path: str, is_writable: bool
) -> None:
    """`:ro` and `:rw` at the end are the mode; any other colon belongs to the name."""
    assert Directory.parse(text) == Directory(path, is_writable=is_writable)


def test_added_directories_have_names_of_their_own() -> None:
    """Two with the same last part get different names; odd characters are replaced."""
    spec = LoopSpec(worktree=".", add_dirs=("/x/lib", Path("/y/lib"), "/z/a b", "/", "/q/-x"))
    mounts = [directory.mount for directory in spec.directories]
    assert mounts == [f"/workspaces/{name}" for name in ("lib", "lib-2", "a_b", "directory", "x")]


def test_what_cannot_be_added_is_said(tmp_path: Path) -> None:
    """The worktree, what holds it or lies in it, what is missing and a name twice are faults."""
    root = make_worktree(tmp_path / "outer/worktree")
    (root / "inner").mkdir()
    (tmp_path / "x/lib").mkdir(parents=True)
    (tmp_path / "link").symlink_to(root)
    cases: dict[Directory | Path | str, str] = {
        root: "is, contains or lies in the worktree",
        tmp_path / "outer": "is, contains or lies in the worktree",
        root / "inner": "is, contains or lies in the worktree",
        tmp_path / "link": "is, contains or lies in the worktree",
        tmp_path / "missing": "is not a directory",
        Directory(tmp_path / "x", name="../x"): "is no name",
    }
    for added, said in cases.items():
        (fault,) = LoopSpec(worktree=root, add_dirs=(added,)).faults()
        assert fault.startswith("add_dirs: ") and said in fault
    twice = (Directory(tmp_path / "x", name="n"), Directory(tmp_path / "x/lib", name="n"))
    faults = LoopSpec(worktree=root, add_dirs=twice).faults()
    assert "two are called 'n'" in faults[0] and "lies in" in faults[1]
    many = LoopSpec(worktree=root, add_dirs=tuple(f"/{number}" for number in range(20)))
    assert any("too many" in fault for fault in many.faults())


@pytest.mark.parametrize("place", ["/etc", "/proc", "/var/run", "/"])
def test_no_directory_that_a_worktree_may_not_be_is_added(place: str) -> None:
    """The worktree's checks hold for added directories, for reading too."""
    with pytest.raises(ConfigError) as caught:
        open_beside(place)
    assert str(caught.value).startswith("add_dirs:")


def test_links_of_an_image_are_looked_for_where_directories_are_added() -> None:
    """The way to an added directory is among the places that are looked at."""
    places = targets.places([], ["/workspaces/lib"])
    assert {"/workspaces", "/workspaces/lib"} <= set(places)
    assert targets.link_faults("x", {"/workspaces": "/workspace/a"})


def test_what_is_added_and_kept_is_mounted_as_it_is_asked_for() -> None:
    """Kept outputs and directories for reading are read-only, and one that is not is found."""
    beside = (
        Beside(Path("/srv/lib"), "/workspaces/lib", read_only=True),
        Beside(Path("/srv/out"), "/workspaces/out", read_only=False, git=Path("/s/git-file")),
    )
    request = create_request(plan(results=Path("/s/results"), beside=beside))
    mounts = {one["Target"]: one for one in request["HostConfig"]["Mounts"]}
    made = {
        RESULTS: ("/s/results", True),
        "/workspaces/lib": ("/srv/lib", True),
        "/workspaces/out": ("/srv/out", False),
        "/workspaces/out/.git": ("/s/git-file", True),
    }
    for target, (source, read_only) in made.items():
        assert (mounts[target]["Source"], mounts[target]["ReadOnly"]) == (source, read_only)
        assert mounts[target]["BindOptions"]["Propagation"] == "rprivate"
    said = [
        {"Type": "bind", "Source": source, "Destination": target, "RW": True}
        for target, (source, _) in made.items()
    ]
    faults = read_back_faults(request, {"Mounts": said})
    for target, (_, read_only) in made.items():
        assert (f"Mounts: {target} has RW=True" in faults) is read_only


# ─── in a real box ──────────────────────────────────────────────────────────────────


class Work:
    """A loop in a container, with two directories beside its worktree."""

    def __init__(self, thread: LoopThread, loop: Loop, root: Path, directory: Path) -> None:
        self._thread = thread
        self.loop = loop
        self.root = root
        self.directory = directory

    def call(self, name: str, **arguments: Any) -> Result:
        """The result of one call."""
        return self._thread.run(self.loop.execute(Call(name + repr(arguments), name, arguments)))

    def code(self, name: str, **arguments: Any) -> Code | None:
        """Its code; None = it went well."""
        result = self.call(name, **arguments)
        assert result.is_error is (result.code is not None)
        return result.code


def open_work(directory: Path, thread: LoopThread, made: Catalog, mode: str = "bypass") -> Work:
    """A loop over `directory/worktree`."""
    root = make_worktree(directory / "worktree")
    for name in ("lib", "out"):
        make_worktree(directory / name)
        (directory / name / "a.txt").write_text(f"of {name}\n")
    subprocess.run(["git", "init", "-q", directory / "out"], check=True, timeout=60)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", f"{UID}:{UID}", directory / "out"], check=True, timeout=60)
    spec = LoopSpec(
        worktree=root,
        limits=LIMITS,
        mode=mode,
        runtime=RUNTIME[0] if RUNTIME else None,
        add_dirs=(directory / "lib", f"{directory}/out:rw"),
    )
    settings = replace(Settings.load(), state_directory=directory / "state")
    controller = thread.enter(Controller(settings, made))
    return Work(thread, thread.enter(controller.open(spec)), root, directory)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """One loop a module, of a toolset of the worktree."""
    with LoopThread() as thread:
        yield open_work(tmp_path_factory.mktemp("paths"), thread, load())


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """One loop a module, of a toolset of the whole box."""
    made = catalog(reach='"box"', relative_to='"cwd"', shown='"absolute"')
    with LoopThread() as thread:
        yield open_work(tmp_path_factory.mktemp("wide"), thread, made)


def test_an_added_directory_is_read_and_searched(work: Work) -> None:
    """By its place in the box and by its place on the host; texts name its place in the box."""
    for path in ("/workspaces/lib/a.txt", str(work.directory / "lib/a.txt")):
        assert str(work.call("read_file", path=path).content) == "     1│of lib"
    found = work.call("grep", pattern="of", path="/workspaces/lib", context=0)
    assert found.content == "/workspaces/lib/a.txt:1:of lib"
    assert work.call("glob", pattern="*", path="/workspaces/lib").content == "/workspaces/lib/a.txt"
    assert work.call("run_command", command="cat /workspaces/*/a.txt").content == "of lib\nof out\n"


def test_a_directory_for_reading_is_not_changed_by_anything(work: Work) -> None:
    """Tools refuse, and commands meet a read-only file system."""
    path = "/workspaces/lib/a.txt"
    work.call("read_file", path=path)
    edit = {"path": path, "old_string": "of", "new_string": "x"}
    assert work.code("write_file", path=path, content="x") is DENIED
    assert work.code("edit_file", **edit) is DENIED
    assert work.code("delete_file", path=path) is DENIED
    assert work.code("move_file", **{"from": path, "to": "x"}) is DENIED
    ran = work.call("run_command", command=f"echo x > {path}; rm -f {path}; touch {path}2")
    assert "Read-only file system" in str(ran.content)
    assert (work.directory / "lib/a.txt").read_text() == "of lib\n"


def test_a_directory_for_writing_is_changed_and_its_git_is_covered(work: Work) -> None:
    """Files are made and edited in it, but nothing in its git directory is seen or changed."""
    assert work.code("write_file", path="/workspaces/out/d/new.txt", content="a\n") is None
    edit = {"path": "/workspaces/out/d/new.txt", "old_string": "a", "new_string": "b"}
    assert work.code("edit_file", **edit) is None
    assert (work.directory / "out/d/new.txt").read_text() == "b\n"
    ran = work.call("run_command", command="ls /workspaces/out/.git; touch /workspaces/out/.git/x")
    assert "HEAD" not in str(ran.content) and "touch: cannot touch" in str(ran.content)
    assert not (work.directory / "out/.git/x").exists()


def test_the_plan_file_can_be_written_and_read(work: Work) -> None:
    """The loop's own plan file works like a file of the worktree; another one does not."""
    path = f"{PLANS}/{work.loop.exec_id}.md"
    assert work.code("write_file", path=path, content="# Plan\n") is None
    assert work.code("edit_file", path=path, old_string="Plan", new_string="Goal") is None
    assert work.call("read_file", path=path).content == "     1│# Goal"
    assert work.code("write_file", path=f"{PLANS}/other.md", content="x") is INVALID


@pytest.mark.parametrize("path", ["/tmp/x", "/usr/bin/env", "/proc/1/environ", "/etc/passwd"])
def test_a_toolset_of_the_worktree_has_nothing_else(work: Work, path: str) -> None:
    """Neither a path nor a link leads out of the worktree."""
    assert work.code("read_file", path=path) is INVALID
    assert work.code("write_file", path=path, content="x") is INVALID
    work.call("run_command", command=f"echo x > /tmp/x; ln -sfn {path} link")
    assert work.code("read_file", path="link") is INVALID


def test_a_wide_toolset_reads_the_box(wide: Work) -> None:
    """Files outside of the worktree are read, also through links; paths are shown absolute."""
    wide.call("run_command", command="mkdir -p /tmp/d src; echo t > /tmp/d/t.txt; ln -s /tmp/d l")
    assert wide.call("read_file", path="/tmp/d/t.txt").content == "     1│t"
    assert wide.call("read_file", path="l/t.txt").content == "     1│t"
    assert str(wide.call("read_file", path="/etc/passwd").content).count("sandbox")
    assert wide.call("glob", pattern="*.txt", path="/tmp/d").content == "/tmp/d/t.txt"
    assert wide.call("grep", pattern="^t", path="/tmp", context=0).content == "/tmp/d/t.txt:1:t"
    assert wide.call("write_file", path="n.txt", content="x").content == (
        "Wrote 1 bytes to /workspace/n.txt"
    )
    assert wide.call("glob", pattern="*.txt").content == "/workspace/n.txt"


def test_a_wide_toolset_writes_scratch_and_reads_before_it(wide: Work) -> None:
    """/tmp and HOME are written like the worktree: an existing file has to be read first."""
    for path in ("/tmp/w.txt", "/home/sandbox/w.txt"):
        wide.call("run_command", command=f"echo old > {path}")
        assert wide.code("write_file", path=path, content="new\n") is Code.NOT_READ
        wide.call("read_file", path=path)
        assert wide.code("write_file", path=path, content="new\n") is None
        assert wide.code("edit_file", path=path, old_string="new", new_string="newer") is None
        wide.call("run_command", command=f"echo other > {path}")
        assert wide.code("edit_file", path=path, old_string="o", new_string="x") is Code.CONFLICT
        assert wide.code("delete_file", path=path) is None
    assert wide.code("write_file", path="/etc/x", content="x") is INVALID
    assert wide.code("write_file", path="/var/tmp/x", content="x") is INVALID


@pytest.mark.parametrize("path", ["/proc/1/environ", "/proc/self/root/etc/passwd", "/dev/zero"])
def test_a_wide_toolset_has_nothing_of_what_is_hidden(wide: Work, path: str) -> None:
    """Neither by its path nor by a link, and no operation waits for what has no end."""
    assert wide.code("read_file", path=path) is INVALID
    wide.call("run_command", command=f"ln -sfn {path} hidden; ln -sfn {path} /tmp/hidden")
    assert wide.code("read_file", path="hidden") is INVALID
    assert wide.code("read_file", path="/tmp/hidden") is INVALID
    assert "environ" not in str(wide.call("glob", pattern="**/environ", path="/").content)


def test_special_files_outside_of_the_worktree_are_refused_at_once(wide: Work) -> None:
    """A FIFO that nobody writes to is no file."""
    wide.call("run_command", command="rm -f /tmp/fifo; mkfifo /tmp/fifo")
    assert wide.code("read_file", path="/tmp/fifo") is Code.NOT_A_FILE


def test_relative_paths_follow_the_working_directory(wide: Work) -> None:
    """After `cd src` a relative path, glob and grep begin there."""
    wide.call("run_command", command="mkdir -p src; echo s > src/s.txt; cd src")
    assert wide.call("read_file", path="s.txt").content == "     1│s"
    assert wide.call("glob", pattern="*.txt").content == "/workspace/src/s.txt"
    assert wide.code("read_file", path="src/s.txt") is Code.FILE_NOT_FOUND
    wide.call("run_command", command="cd ..")
    assert wide.code("read_file", path="src/s.txt") is None
