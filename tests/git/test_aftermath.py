"""What a loop left in its worktree: that git of the host obeys none of it, and what is told."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from executor.git.aftermath import MAX_NAMES, Aftermath, look
from executor.git.findings import Fate, Oddity
from executor.sandbox.descent import remove
from executor.sandbox.measure import before_now
from tests.git.conftest import HostGit
from tests.sandbox.trees import needs_root

SUFFIX = "loop-1"
DEADLINE = 60
HOOKS = (
    *("post-index-change", "pre-commit", "post-commit", "reference-transaction", "post-checkout"),
    *("fsmonitor-watchman", "pre-auto-gc", "post-rewrite", "prepare-commit-msg", "commit-msg"),
)
PLAIN = (
    *("status", "diff", "add -A", "commit -m x", "status", "diff HEAD", "describe --dirty --all"),
    *("submodule status", "submodule summary", "grep x", "ls-files -o", "stash", "stash pop"),
    *("clean -nd", "log -p -2", "submodule update --init", "submodule foreach true", "status"),
)
"""What a person does in a worktree, in this order; any of it may fail."""
IN_DIRECTORIES = ("status", "diff")
"""What a person, or a prompt, does in every directory of it."""
INSIDE = ("objects", "refs", "logs", "info", "hooks", "branches")
"""Directories of a git directory that are no other ones than it to git."""


def start() -> int:
    """A time that all that was done before is not later than."""
    now = time.time_ns()
    # The coarse clock stands still for milliseconds, and an inode may have the fine one's time.
    while before_now() <= now:
        pass
    return before_now()


def aftermath(
    root: Path,
    since: int,
    *,
    set_aside: str | None = SUFFIX,
    has_git: bool = True,
    reads: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> Aftermath:
    """One look at a directory."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return look(
            descriptor,
            since,
            set_aside=set_aside,
            has_git=has_git,
            reads=reads,
            stop=stop or threading.Event(),
        )
    finally:
        os.close(descriptor)


@dataclass
class Yard:
    """A user's repository, and a loop in its worktree that leaves traps there.

    Attributes:
        root: the worktree.
        canaries: where each trap that is sprung leaves a file.
    """

    git: HostGit
    base: Path
    canaries: Path = field(init=False)
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        self.canaries = self.base / "canaries"
        self.root = self.base / "worktree"
        for directory in (self.canaries, self.root, self.base / "home"):
            directory.mkdir()
        (self.base / "home/.gitconfig").write_text(
            "[user]\nname = a\nemail = a@b.invalid\n[init]\ndefaultBranch = main\n"
            "[protocol]\nallow = always\n[gc]\nauto = 0\n[maintenance]\nauto = false\n"
        )
        self.make(self.root)

    def make(self, directory: Path) -> None:
        """A repository with one commit."""
        directory.mkdir(exist_ok=True, parents=True)
        self.do(directory, "init -q")
        (directory / "tracked").write_text("x\n")
        self.do(directory, "add tracked")
        self.do(directory, "commit -qm first")

    def do(self, directory: Path, line: str) -> None:
        """Runs git as the person, whatever comes of it."""
        subprocess.run(
            [self.git.program, *line.split()],
            cwd=directory,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.base / "home"),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_TERMINAL_PROMPT": "0",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=DEADLINE,
        )

    def trap(self, name: str) -> str:
        """A command that leaves a canary, and fails."""
        path = self.base / f"trap-{name}"
        path.write_text(f"#!/bin/sh\ntouch {self.canaries}/{name}\nexit 1\n")
        path.chmod(0o755)
        return str(path)

    def evil(self, directory: Path) -> Path:
        """A repository that springs traps however it is used; its git directory."""
        self.make(directory)
        git = directory / ".git"
        with (git / "config").open("a") as config:
            config.write(
                f"[core]\nfsmonitor = {self.trap('fsmonitor')}\npager = {self.trap('pager')}\n"
                f"sshCommand = {self.trap('ssh')}\neditor = {self.trap('editor')}\n"
                f"[diff]\nexternal = {self.trap('external')}\n"
                f'[diff "x"]\ntextconv = {self.trap("textconv")}\n'
                f'[filter "x"]\nclean = {self.trap("clean")}\nsmudge = {self.trap("smudge")}\n'
                f'[merge "x"]\ndriver = {self.trap("merge")}\n'
                f"[gpg]\nprogram = {self.trap('gpg')}\n[alias]\nst = !{self.trap('alias')}\n"
                f"[credential]\nhelper = !{self.trap('credential')}\n"
            )
        (git / "hooks").mkdir(exist_ok=True)
        for hook in HOOKS:
            (git / "hooks" / hook).write_text(Path(self.trap(f"hook-{hook}")).read_text())
            (git / "hooks" / hook).chmod(0o755)
        (directory / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
        (directory / "tracked").write_text("y\n")
        return git

    def bare(self, directory: Path) -> None:
        """The same, found by what the directory holds."""
        git = self.evil(directory)
        for path in list(git.iterdir()):
            path.rename(directory / path.name)
        git.rmdir()
        with (directory / "config").open("a") as config:
            config.write(f"[core]\nbare = false\nworktree = {directory}\n")

    def link(self, path: str) -> None:
        """What is at the path is a submodule in the user's index."""
        self.do(self.root, f"add {path}")
        self.do(self.root, "commit -qm submodule")

    def live(self) -> set[str]:
        """The traps that a person's commands spring: at the root, then in each directory."""
        for path in self.canaries.iterdir():
            path.unlink()
        for line in PLAIN:
            self.do(self.root, line)
        for directory, below, _ in os.walk(self.root):
            is_root = Path(directory) == self.root
            below[:] = [
                name for name in below if name not in INSIDE and not (is_root and name == ".git")
            ]
            for line in IN_DIRECTORIES:
                self.do(Path(directory), line)
        return set(os.listdir(self.canaries))


@pytest.fixture
def yard(host_git: HostGit, tmp_path: Path) -> Yard:
    """A user's repository, nothing in it yet."""
    return Yard(host_git, tmp_path)


# ─── the canaries ───────────────────────────────────────────────────────────────────


def _nested(yard: Yard) -> None:
    yard.evil(yard.root / "sub")


def _submodule(yard: Yard) -> None:
    yard.evil(yard.root / "sub")
    yard.link("sub")


def _deep(yard: Yard) -> None:
    yard.evil(yard.root / "a/b/c/sub")
    yard.evil(yard.root / "a/b/c/sub/in/it")


def _ignored(yard: Yard) -> None:
    yard.evil(yard.root / "build/sub")
    (yard.root / ".gitignore").write_text("build/\n")


def _pointer(yard: Yard) -> None:
    git = yard.evil(yard.root / "sub")
    yard.link("sub")
    git.rename(yard.root / "elsewhere")
    (yard.root / "sub/.git").write_text("gitdir: ../elsewhere\n")


def _link(yard: Yard) -> None:
    git = yard.evil(yard.root / "sub")
    yard.link("sub")
    git.rename(yard.root / ".elsewhere")
    (yard.root / "sub/.git").symlink_to("../.elsewhere")


def _pointer_to_git(yard: Yard) -> None:
    yard.evil(yard.root / "other")
    (yard.root / "sub").mkdir()
    (yard.root / "sub/.git").write_text(f"gitdir: {yard.root}/other/.git\n")


def _split(yard: Yard) -> None:
    git = yard.evil(yard.root / "sub")
    yard.link("sub")
    git.rename(yard.root / "common")
    (yard.root / "head").mkdir()
    (yard.root / "head/HEAD").write_text("ref: refs/heads/main\n")
    (yard.root / "head/commondir").write_text("../common\n")
    (yard.root / "sub/.git").write_text("gitdir: ../head\n")


def _include(yard: Yard) -> None:
    yard.make(yard.root / "sub")
    yard.link("sub")
    (yard.root / "included").write_text(f"[core]\nfsmonitor = {yard.trap('included')}\n")
    with (yard.root / "sub/.git/config").open("a") as config:
        config.write("[include]\npath = ../../included\n")


def _hooks_path(yard: Yard) -> None:
    yard.make(yard.root / "sub")
    yard.link("sub")
    (yard.root / "sub/hooks").mkdir()
    (yard.root / "sub/hooks/post-index-change").symlink_to(yard.trap("hooks-path"))
    # The hook runs when the index is written, which git does for an entry whose times differ.
    os.utime(yard.root / "sub/tracked", (0, 0))
    with (yard.root / "sub/.git/config").open("a") as config:
        config.write(f"[core]\nhooksPath = {yard.root}/sub/hooks\n")


def _worktree(yard: Yard) -> None:
    yard.evil(yard.root / "sub")
    yard.link("sub")
    with (yard.root / "sub/.git/config").open("a") as config:
        config.write("[core]\nworktree = ../../..\n")


def _unpopulated(yard: Yard) -> None:
    """The user's own submodule, of which there is a name in the index and no more."""
    yard.make(yard.base / "upstream")
    yard.do(yard.root, f"submodule add -q {yard.base}/upstream sub")
    yard.do(yard.root, "commit -qm submodule")
    yard.do(yard.root, "submodule deinit -f sub")
    yard.evil(yard.root / "sub")


def _populated(yard: Yard) -> None:
    yard.make(yard.base / "upstream")
    yard.do(yard.root, f"submodule add -q {yard.base}/upstream sub")
    yard.do(yard.root, "commit -qm submodule")
    (yard.root / "sub/.git").unlink()
    yard.evil(yard.root / "sub")


def _update(yard: Yard) -> None:
    yard.evil(yard.root / "sub")
    yard.link("sub")
    (yard.root / ".gitmodules").write_text(
        f'[submodule "sub"]\npath = sub\nurl = ./sub\nupdate = !{yard.trap("update")}\n'
        f'[submodule "../../x"]\npath = sub\r\nurl = ext::{yard.trap("ext")}\n'
    )


def _lfs(yard: Yard) -> None:
    yard.evil(yard.root / "sub")
    (yard.root / ".lfsconfig").write_text(
        f"[lfs]\nurl = ssh://x\n[core]\nfsmonitor = {yard.trap('lfs')}\n"
    )
    (yard.root / ".gitattributes").write_text("* filter=lfs diff=x\n")


def _bare(yard: Yard) -> None:
    yard.bare(yard.root / "folder")


def _bare_submodule(yard: Yard) -> None:
    yard.evil(yard.root / "sub")
    yard.link("sub")
    for path in list((yard.root / "sub/.git").iterdir()):
        path.rename(yard.root / "sub" / path.name)
    (yard.root / "sub/.git").rmdir()


def _closed(yard: Yard) -> None:
    yard.evil(yard.root / "a/sub")
    yard.link("a/sub")
    (yard.root / "a/sub/.git").chmod(0)
    (yard.root / "a/sub").chmod(0)


def _taken(yard: Yard) -> None:
    """Every name and file that the look is going to make is there already."""
    git = yard.evil(yard.root / "sub")
    yard.evil(yard.root / f"sub/.git.{SUFFIX}")
    (git / ".gitignore/x").mkdir(parents=True)
    (git / f".gitignore.{SUFFIX}").write_text("!*\n")
    (git / f"HEAD.{SUFFIX}").mkdir()


def _enormous(yard: Yard) -> None:
    git = yard.evil(yard.root / "sub")
    for number in range(5000):
        (git / f"x{number}").touch()


PLANTS = (
    *(_nested, _submodule, _deep, _ignored, _pointer, _link, _pointer_to_git, _split, _include),
    *(_hooks_path, _worktree, _unpopulated, _populated, _update, _lfs, _bare, _closed, _taken),
    *(_enormous, _bare_submodule),
)
_ids = [plant.__name__.strip("_") for plant in PLANTS]
QUIET = (_bare_submodule,)
"""Git obeys none of these anyway."""


@pytest.mark.statement("H5", "H6", "H8")
@pytest.mark.parametrize("plant", PLANTS, ids=_ids)
def test_a_persons_git_obeys_nothing_that_a_loop_left(
    yard: Yard, plant: Callable[[Yard], None]
) -> None:
    """After the look no trap is sprung, at the root or in any directory, by any command."""
    since = start()
    plant(yard)
    found = aftermath(yard.root, since)
    assert found.is_harmless
    assert found.nested_counts[Fate.SET_ASIDE]
    assert yard.live() == set()
    assert aftermath(yard.root, since).is_harmless


@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant not in QUIET])
def test_the_same_traps_are_sprung_where_repositories_are_only_reported(
    machine_git: HostGit, tmp_path: Path, plant: Callable[[Yard], None]
) -> None:
    """The traps work: it is the look that keeps them from being sprung."""
    yard = Yard(machine_git, tmp_path)
    since = start()
    plant(yard)
    found = aftermath(yard.root, since, set_aside=None)
    assert found.nested_counts[Fate.LEFT]
    assert not found.is_harmless
    assert "Run no git" in found.sentences()[0]
    assert yard.live() != set()


VECTORS = {
    "core.fsmonitor": "status",
    "core.editor": "commit --allow-empty",
    "core.sshCommand": "fetch ssh://nowhere.invalid/x",
    "core.hooksPath": "status",
    "diff.external": "diff",
    "diff.x.textconv": "diff",
    "filter.x.clean": "add -A",
    "filter.x.process": "add -A",
    "filter.x.smudge": "checkout -f HEAD~0 -- tracked",
    "gpg.program": "commit -S --allow-empty -m x",
    "credential.helper": "fetch https://localhost:1/x",
    "alias.st": "st",
    "merge.x.driver": "merge side",
    "include.path": "status",
    "remote.x.vcs": "fetch x",
    "uploadpack.packObjectsHook": "fetch .",
    "pager.status": "--paginate status",
    "sequence.editor": "rebase -i --root --autostash",
    "core.askPass": "fetch https://localhost:1/x",
}
SPRUNG = {
    *("core.fsmonitor", "core.editor", "core.sshCommand", "core.hooksPath", "diff.external"),
    *("diff.x.textconv", "filter.x.clean", "filter.x.process", "gpg.program", "alias.st"),
    *("include.path", "filter.x.smudge", "sequence.editor"),
}
"""Those that these commands spring; the others want a terminal, a server, or more."""


@pytest.mark.statement("H5", "H6")
@pytest.mark.parametrize("aside", [True, False], ids=["set-aside", "reported"])
@pytest.mark.parametrize("key", VECTORS)
def test_no_setting_of_a_nested_repository_is_obeyed(
    machine_git: HostGit, tmp_path: Path, key: str, aside: bool
) -> None:
    """Each setting that runs a program, by the command that obeys it, run in its directory."""
    yard = Yard(machine_git, tmp_path)
    since = start()
    sub = yard.root / "sub"
    yard.make(sub)
    value = yard.trap("setting")
    if key == "core.hooksPath":
        (tmp_path / "hooks").mkdir()
        (tmp_path / "hooks/post-index-change").symlink_to(value)
        value = str(tmp_path / "hooks")
    elif key == "include.path":
        (tmp_path / "included").write_text(f"[core]\nfsmonitor = {value}\n")
        value = str(tmp_path / "included")
    elif key == "alias.st":
        value = f"!{value}"
    (sub / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    (sub / "tracked").write_text("y\n")
    yard.do(sub, f"config {key} {value}")
    aftermath(yard.root, since, set_aside=SUFFIX if aside else None)
    yard.do(sub, VECTORS[key])
    is_sprung = bool(os.listdir(yard.canaries))
    assert is_sprung == (not aside and key in SPRUNG)


@pytest.mark.statement("H6")
@pytest.mark.parametrize("aside", [True, False], ids=["set-aside", "reported"])
def test_a_repository_made_at_the_root_of_a_plain_directory_is_set_aside(
    host_git: HostGit, tmp_path: Path, aside: bool
) -> None:
    """Where no git was covered, `git init` by the loop is as hostile as any."""
    yard = Yard(host_git, tmp_path)
    plain = yard.base / "plain"
    plain.mkdir()
    since = start()
    yard.evil(plain)
    found = aftermath(plain, since, set_aside=SUFFIX if aside else None, has_git=False)
    assert [(nested.path, nested.fate) for nested in found.nested] == [
        (".git", Fate.SET_ASIDE if aside else Fate.LEFT)
    ]
    yard.root = plain
    assert (yard.live() == set()) == aside


def test_a_worktree_is_removed_by_git_without_a_trap(yard: Yard) -> None:
    """`git worktree remove --force` of a linked worktree springs none, and removes it."""
    linked = yard.base / "linked"
    yard.do(yard.root, f"worktree add -q {linked}")
    since = start()
    yard.evil(linked / "sub")
    assert aftermath(linked, since).nested_counts == {Fate.SET_ASIDE: 1}
    yard.do(yard.root, f"worktree remove --force {linked}")
    assert not linked.exists()
    assert os.listdir(yard.canaries) == []


def test_nothing_of_what_was_set_aside_is_added(yard: Yard) -> None:
    """`git add --all` takes the files of the directory, not what was its git directory."""
    since = start()
    _taken(yard)
    aftermath(yard.root, since)
    yard.do(yard.root, "add -A")
    index = subprocess.run(
        [yard.git.program, "ls-files", "-s"],
        cwd=yard.root,
        env={"HOME": str(yard.base / "home")},
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    ).stdout
    assert "sub/tracked" in index
    assert "160000" not in index
    assert not [line for line in index.splitlines() if "sub/.git.loop-1-" in line]


@pytest.mark.parametrize("kind", ["fifo", "socket", "file", "dangling", "empty"])
def test_a_git_entry_of_any_kind_is_set_aside(yard: Yard, kind: str) -> None:
    """What git makes of it does not matter."""
    since = start()
    sub = yard.root / "sub"
    sub.mkdir()
    if kind == "fifo":
        os.mkfifo(sub / ".git")
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(sub)
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(".git")
        finally:
            os.chdir(here)
    elif kind == "file":
        (sub / ".git").write_bytes(b"\xff" * 10_000)
    elif kind == "dangling":
        (sub / ".git").symlink_to("/nowhere")
    else:
        (sub / ".git").mkdir()
    found = aftermath(yard.root, since)
    assert [(nested.path, nested.now) for nested in found.nested] == [
        ("sub/.git", f".git.{SUFFIX}")
    ]
    assert ".git" not in os.listdir(sub)
    assert yard.live() == set()


# ─── what was there before ──────────────────────────────────────────────────────────


def _own(yard: Yard) -> Path:
    """A repository of the user's in the worktree, with all that it may lead to."""
    sub = yard.root / "sub"
    yard.make(sub)
    (sub / "scripts").mkdir()
    (sub / "scripts/hook").write_text("#!/bin/sh\n")
    (sub / "githooks").mkdir()
    (sub / "githooks/pre-commit").write_text("#!/bin/sh\n")
    (sub / "included").write_text("[core]\n\tpager = cat\n[include]\n\tpath = also\n")
    (sub / "also").write_text("[user]\n\tname = a\n")
    (sub / ".git/hooks").mkdir(exist_ok=True)
    (sub / ".git/hooks/pre-push").symlink_to("../../scripts/hook")
    with (sub / ".git/config").open("a") as config:
        config.write(
            "[core]\nhooksPath = githooks\n[include]\npath = ../included\n"
            '[filter "x"]\nclean = "scripts/clean --all"\n'
        )
    (sub / "scripts/clean").write_text("#!/bin/sh\n")
    yard.make(yard.root / "target")
    (yard.root / "pointing").mkdir()
    (yard.root / "pointing/.git").write_text("gitdir: ../target/.git\n")
    return sub


def test_a_repository_that_nobody_changed_stays(yard: Yard) -> None:
    """What the user had there is as before, though the loop worked in its files."""
    sub = _own(yard)
    yard.make(yard.base / "upstream")
    yard.do(yard.root, f"submodule add -q {yard.base}/upstream module")
    yard.bare(yard.root / "fixture")
    since = start()
    (sub / "tracked").write_text("work\n")
    (sub / "new").write_text("work\n")
    (yard.root / "module/new").write_text("work\n")
    (yard.root / "pointing/new").write_text("work\n")
    (sub / ".git/objects/aa").mkdir(exist_ok=True)
    found = aftermath(yard.root, since)
    assert {nested.path for nested in found.nested} == {
        *("sub/.git", "target/.git", "pointing/.git", "module/.git", "fixture")
    }
    assert found.nested_counts == {Fate.UNTOUCHED: 5}
    assert found.is_harmless
    assert (sub / ".git/HEAD").exists()


def _away_and_back(sub: Path) -> None:
    (sub / ".git").rename(sub / "x")
    (sub / "x").rename(sub / ".git")


def _link_included(sub: Path) -> None:
    (sub / "included").unlink()
    (sub / "included").symlink_to("also")


def _old_times(sub: Path) -> None:
    (sub / ".git/config").touch()
    os.utime(sub / ".git/config", (1, 1))


CHANGES: dict[str, Callable[[Path], object]] = {
    "config": lambda sub: (sub / ".git/config").open("a").write("[core]\n"),
    "hook": lambda sub: (sub / ".git/hooks/post-checkout").write_text("#!/bin/sh\n"),
    "attributes": lambda sub: (sub / ".git/info/attributes").write_text("* filter=x\n"),
    "mode": lambda sub: (sub / ".git/hooks").chmod(0o700),
    "index": lambda sub: (sub / ".git/index").touch(),
    "worktree": lambda sub: (sub / ".git/config.worktree").write_text(""),
    "common": lambda sub: (sub / ".git/commondir").write_text("../x\n"),
    "module": lambda sub: (sub / ".git/modules/objects").mkdir(parents=True),
    "renamed": _away_and_back,
    "linked hook": lambda sub: (sub / "scripts/hook").write_text("evil\n"),
    "times of a linked hook": lambda sub: os.utime(sub / "scripts/hook", (1, 1)),
    "hook of hooksPath": lambda sub: (sub / "githooks/post-commit").write_text("evil\n"),
    "filter": lambda sub: (sub / "scripts/clean").write_text("evil\n"),
    "included": lambda sub: (sub / "included").write_text("[core]\nfsmonitor = evil\n"),
    "included by an included": lambda sub: (sub / "also").write_text("[core]\n"),
    "included by a link": _link_included,
    "old times": _old_times,
    "hard link": lambda sub: os.link(sub / ".git/config", sub / "linked"),
}


@pytest.mark.statement("H6")
@pytest.mark.parametrize("change", CHANGES)
def test_a_repository_that_somebody_changed_does_not(
    machine_git: HostGit, tmp_path: Path, change: str
) -> None:
    """Any change of it, or of what it leads to in the worktree, is enough."""
    yard = Yard(machine_git, tmp_path)
    sub = _own(yard)
    since = start()
    CHANGES[change](sub)
    fates = {nested.path: nested.fate for nested in aftermath(yard.root, since).nested}
    assert fates.pop("sub/.git") is Fate.SET_ASIDE
    assert set(fates.values()) == {Fate.UNTOUCHED}


def test_a_pointer_to_a_changed_repository_is_set_aside(
    machine_git: HostGit, tmp_path: Path
) -> None:
    """Though the pointer is as old as ever, and by whatever name that is found first."""
    yard = Yard(machine_git, tmp_path)
    _own(yard)
    since = start()
    (yard.root / "target/.git/config").write_text("[core]\n")
    found = aftermath(yard.root, since, set_aside=None)
    assert {nested.path for nested in found.nested if nested.fate is Fate.LEFT} == {
        *("target/.git", "pointing/.git")
    }


# ─── what can't be had, races ───────────────────────────────────────────────────────


@contextmanager
def mounted(source: Path, target: Path) -> Iterator[None]:
    """One directory over another."""
    subprocess.run(["mount", "--bind", source, target], check=True, timeout=DEADLINE)
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True, timeout=DEADLINE)


@needs_root
def test_what_can_not_be_renamed_is_said_first(machine_git: HostGit, tmp_path: Path) -> None:
    """A mount can't be; nothing mounted is entered or changed."""
    yard = Yard(machine_git, tmp_path)
    since = start()
    outside = yard.base / "outside"
    yard.evil(outside)
    for name in ("sub/.git", "data"):
        (yard.root / name).mkdir(parents=True)
    with mounted(outside / ".git", yard.root / "sub/.git"), mounted(outside, yard.root / "data"):
        found = aftermath(yard.root, since)
    [nested] = found.nested
    assert (nested.path, nested.fate, nested.now) == ("sub/.git", Fate.LEFT, None)
    assert nested.fault
    assert found.sentences()[0].startswith("Run no git in the worktree: it obeys 1 repository")
    assert found.odd[Oddity.MOUNTED].count == 2
    assert (outside / ".git/HEAD").exists()


def test_links_that_appear_meanwhile_lead_nowhere(tmp_path: Path) -> None:
    """A directory that is exchanged with a link, over and over, never leads the look out."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "sub").mkdir(parents=True)
    (outside / ".git/objects").mkdir(parents=True)
    (outside / "HEAD").touch()
    (outside / "commondir").touch()
    (root / "link").symlink_to(outside)
    before = sorted(os.walk(outside))
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            (root / "sub").rename(root / "away")
            (root / "link").rename(root / "sub")
            (root / "sub").rename(root / "link")
            (root / "away").rename(root / "sub")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(300):
            aftermath(root, 0)
            (outside / ".git").stat()
    finally:
        stop.set()
        thread.join()
    assert sorted(os.walk(outside)) == before


def _as_owner(uid: int, root: Path) -> list[str]:
    """What a look finds that is had by a process of that uid without capabilities."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            found = aftermath(root, 0)
            told = "\n".join(f"{nested.path} {nested.fate}" for nested in found.nested)
            os.write(writing, told.encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told_by_child:
        lines = told_by_child.read().splitlines()
    os.waitpid(child, 0)
    return sorted(lines)


@needs_root
def test_an_owner_gets_into_what_the_loop_closed() -> None:
    """Who is not root opens directories of his own for the look, and closes them again."""
    with tempfile.TemporaryDirectory(prefix="executor-test-") as made:
        base = Path(made)
        base.chmod(0o755)
        git = base / "root/a/b/sub/.git"
        git.mkdir(parents=True)
        (git / "HEAD").touch()
        (base / "root/locked/.git").mkdir(parents=True)
        for path in (base / "root", *(base / "root").rglob("*")):
            os.chown(path, 12345, 12345)
        for path in (git, git.parent, git.parent.parent, base / "root/a"):
            path.chmod(0)
        (base / "root/locked").chmod(0o555)
        assert _as_owner(12345, base / "root") == [
            "a/b/sub/.git set aside",
            "locked/.git set aside",
        ]
        hidden = base / f"root/a/b/sub/.git.{SUFFIX}"
        assert sorted(os.listdir(hidden)) == [".gitignore", f"HEAD.{SUFFIX}"]
        assert hidden.stat().st_uid == (hidden / ".gitignore").stat().st_uid == 12345
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (base / "root/a", hidden)]
        assert modes == [0, 0]
        assert stat.S_IMODE((base / "root/locked").stat().st_mode) == 0o555


def test_a_look_that_is_called_off_says_so(tmp_path: Path) -> None:
    """It is not taken for a whole one."""
    stop = threading.Event()
    stop.set()
    (tmp_path / "x").touch()
    found = aftermath(tmp_path, 0, stop=stop)
    assert not found.is_whole
    assert not found.is_harmless
    assert "ended early" in found.sentences()[0]


def test_a_tree_of_any_depth_is_looked_at_to_its_end() -> None:
    """20,000 directories below one another, a repository in every thousandth."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    base = Path(tempfile.mkdtemp(prefix="executor-test-", dir=memory))
    parent = os.open(base, os.O_RDONLY)
    try:
        (base / "root").mkdir()
        here = os.open(base / "root", os.O_RDONLY)
        for depth in range(20_000):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
            if not depth % 1000:
                os.mkdir(".git", dir_fd=here)
        os.close(here)
        found = aftermath(base / "root", 0)
    finally:
        remove("root", parent)
        os.close(parent)
        base.rmdir()
    assert found.nested_counts == {Fate.SET_ASIDE: 20}
    assert max(len(nested.path) for nested in found.nested) < 100


# ─── what is told ───────────────────────────────────────────────────────────────────

KINDS = {
    ".envrc": "shells",
    "a/.vscode/tasks.json": "editors",
    ".idea/runConfigurations/x.xml": "editors",
    "x.code-workspace": "editors",
    ".claude/settings.local.json": "coding agents",
    ".mcp.json": "coding agents",
    ".cursor/mcp.json": "coding agents",
    "sub/Makefile": "builds",
    "justfile": "builds",
    "package.json": "package managers",
    ".npmrc": "package managers",
    ".yarn/releases/yarn.cjs": "package managers",
    "vite.config.ts": "package managers",
    "tests/conftest.py": "Python",
    "pyproject.toml": "Python",
    "lib/x.pth": "Python",
    "sitecustomize.py": "Python",
    ".pre-commit-config.yaml": "hooks of git",
    ".husky/pre-commit": "hooks of git",
    ".tool-versions": "shells",
    ".python-version": "shells",
    "mise.toml": "shells",
    ".gitattributes": "git",
    ".lfsconfig": "git",
    ".githooks/pre-commit": "git",
    "build.rs": "Cargo",
    ".cargo/config.toml": "Cargo",
    "gradlew": "Gradle",
    "Gemfile": "Ruby",
    ".github/workflows/ci.yml": "continuous integration",
    ".devcontainer/devcontainer.json": "containers",
    "compose.yaml": "containers",
    "tools/hooks/run.sh": "git, by the host's own configuration",
    "team.gitconfig": "git, by the host's own configuration",
}


@pytest.mark.statement("H12")
@pytest.mark.parametrize("path", KINDS)
def test_changed_files_that_programs_obey_are_listed(tmp_path: Path, path: str) -> None:
    """By the program; those that are as they were are not."""
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("before\n")
    reads = ("tools/hooks", "team.gitconfig")
    since = start()
    assert not aftermath(tmp_path, since + 10**12, reads=reads).executed
    (tmp_path / path).write_text("after\n")
    (tmp_path / "ordinary.py").write_text("x\n")
    found = aftermath(tmp_path, since, reads=reads)
    [(runner, listed)] = found.executed.items()
    assert runner.startswith(KINDS[path])
    assert listed.names == (path,)
    assert any(f"{runner} may execute or obey: {path}." in said for said in found.sentences())


def test_a_link_in_place_of_such_a_directory_is_listed(tmp_path: Path) -> None:
    """What it leads to is as good as in it."""
    (tmp_path / ".vscode").symlink_to("ordinary")
    (tmp_path / "tools").symlink_to("elsewhere")
    found = aftermath(tmp_path, 0, reads=("tools/hooks",))
    assert {names.names for names in found.executed.values()} == {(".vscode",), ("tools",)}


def test_what_is_strange_is_listed(tmp_path: Path) -> None:
    """Each oddity, of what has changed; ordinary entries are none."""
    tmp_path.chmod(0o755)
    (tmp_path / "unreadable").touch(0o000)
    (tmp_path / "closed").mkdir(0o600)
    (tmp_path / "set-uid").touch(0o755)
    (tmp_path / "set-uid").chmod(0o4755)
    (tmp_path / "new\nline\x1b[2J").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "ordinary ü").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below/inside").symlink_to("../ordinary")
    (tmp_path / "below/outside").symlink_to("../../ordinary")
    (tmp_path / "absolute").symlink_to("/etc")
    found = aftermath(tmp_path, 0)
    told = {oddity: set(listed.names) for oddity, listed in found.odd.items()}
    assert told == {
        Oddity.UNREADABLE: {"unreadable", "closed"},
        Oddity.SPECIAL_MODE: {"set-uid"},
        Oddity.NAME: {"new\nline\x1b[2J"},
        Oddity.SPECIAL: {"pipe"},
        Oddity.LINK: {"below/outside", "absolute"},
    }
    assert not aftermath(tmp_path, before_now() + 10**12).odd
    assert all(said.isprintable() for said in found.sentences())
    assert any(r"new\nline\x1b[2J" in said for said in found.sentences())


@needs_root
def test_strange_owners_and_capabilities_are_listed(tmp_path: Path) -> None:
    """What belongs to somebody else, and programs that give their user more."""
    (tmp_path / "theirs").touch()
    os.chown(tmp_path / "theirs", 12345, -1)
    program = tmp_path / "program"
    program.touch(0o755)
    capability = b"\x01\x00\x00\x02\x00\x20\x00\x00" + bytes(12)
    os.setxattr(program, "security.capability", capability)
    found = aftermath(tmp_path, 0)
    assert {oddity: listed.names for oddity, listed in found.odd.items()} == {
        Oddity.OWNER: ("theirs",),
        Oddity.CAPABILITIES: ("program",),
    }


def test_changed_files_are_counted_and_the_first_named(tmp_path: Path) -> None:
    """Old ones are not, nor directories, nor deleted ones."""
    (tmp_path / "old").touch()
    since = start()
    (tmp_path / "directory").mkdir()
    for number in range(MAX_NAMES + 500):
        (tmp_path / "directory" / f"{number}").touch()
    found = aftermath(tmp_path, since)
    assert found.changed.count == MAX_NAMES + 500
    assert len(found.changed.names) == MAX_NAMES
    [said] = found.sentences()
    assert said.startswith("1,500 files changed: directory/")
    assert said.endswith(" and 1,495 more.")
    assert found.as_json()["changed"]["count"] == MAX_NAMES + 500


@needs_root
def test_other_spellings_are_found_where_the_file_system_knows_them(
    machine_git: HostGit, tmp_path: Path
) -> None:
    """In a directory that folds case, `.GIT` is `.git` to git, and is set aside."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    made = subprocess.run(
        ["mkfs.ext4", "-q", "-O", "casefold", image], check=False, timeout=DEADLINE
    )
    if made.returncode:
        pytest.skip("no file system that folds case can be made here")
    command: list[str | Path] = ["mount", "-o", "loop", image, mount]
    if subprocess.run(command, check=False, timeout=DEADLINE, capture_output=True).returncode:
        pytest.skip("the kernel has no file system that folds case")
    try:
        root = mount / "root"
        root.mkdir()
        subprocess.run(["chattr", "+F", root], check=True, timeout=DEADLINE)
        (root / "a/.GIT").mkdir(parents=True)
        (root / "b/.Git").mkdir(parents=True)
        found = aftermath(root, 0)
        assert found.nested_counts == {Fate.SET_ASIDE: 2}
        assert os.listdir(root / "a") == os.listdir(root / "b") == [f".git.{SUFFIX}"]
    finally:
        subprocess.run(["umount", mount], check=True, timeout=DEADLINE)
