"""Commits that are made in the box, by real git; the agent is a process of this machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from executor.errors import Code, ToolError
from executor.git import commits
from executor.git.commits import Committed
from executor.git.values import Box
from tests.local_box import open_local_box

T = TypeVar("T")

WHO = {
    "GIT_AUTHOR_NAME": "A Loop",
    "GIT_AUTHOR_EMAIL": "loop@example.org",
    "GIT_COMMITTER_NAME": "A Loop",
    "GIT_COMMITTER_EMAIL": "loop@example.org",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


@dataclass
class Tree:
    """A worktree with a repository, and a box over it."""

    root: Path
    scratch: Path

    def git(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env={**os.environ, **WHO},
            capture_output=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def write(self, name: str, text: str = "x\n") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def in_box(self, work: Callable[[Box], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with open_local_box(self.root, self.scratch) as box:
                return await work(box)

        return asyncio.run(run())

    def commit(self, message: str = "a message", *paths: str, inside: str = "") -> str | None:
        return self.in_box(
            lambda box: commits.commit(
                box, inside=inside, message=message, paths=paths, environment=WHO
            )
        )

    def make(self, **given: Any) -> Committed | None:
        return self.in_box(lambda box: commits.make(box, environment=WHO, **given))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A repository with one commit on `main`."""
    root, scratch = tmp_path / "work", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    made = Tree(root.resolve(), scratch)
    made.git("init", "--quiet", "--initial-branch=main")
    made.write("first")
    made.git("add", "first")
    made.git("commit", "--quiet", "-m", "first")
    return made


def fault(work: Callable[[], object]) -> ToolError:
    with pytest.raises(ToolError) as caught:
        work()
    return caught.value


# ─── what is committed ──────────────────────────────────────────────────────────────


def test_everything_is_committed(tree: Tree) -> None:
    """New, changed, deleted and staged files are in the commit, whose name is returned."""
    tree.write("gone")
    tree.git("add", "gone")
    tree.git("commit", "--quiet", "-m", "second")
    tree.write("first", "changed\n")
    tree.write("sub/new")
    tree.write("staged")
    tree.git("add", "staged")
    (tree.root / "gone").unlink()
    name = tree.commit("the message\n\nand its body")
    assert name == tree.git("rev-parse", "refs/heads/main")
    assert tree.git("status", "--porcelain") == ""
    assert tree.git("log", "-1", "--format=%B|%an|%ce") == (
        "the message\n\nand its body\n|A Loop|loop@example.org"
    )
    shown = tree.git("show", "--no-renames", "--name-status", "--format=", "HEAD").split("\n")
    assert sorted(shown) == ["A\tstaged", "A\tsub/new", "D\tgone", "M\tfirst"]


def test_nothing_new_is_no_commit(tree: Tree) -> None:
    """A clean worktree, ignored files and paths that mean nothing give None."""
    head = tree.git("rev-parse", "HEAD")
    tree.write(".git/info/exclude", "ignored\n")
    tree.write("ignored")
    assert tree.commit() is None
    assert tree.commit("m", "nowhere", "first") is None
    assert tree.git("rev-parse", "HEAD") == head


def test_only_the_paths_are_committed(tree: Tree) -> None:
    """What else is staged stays staged; a pathspec without a file is no fault."""
    tree.write("staged")
    tree.git("add", "staged")
    tree.write("src/a")
    tree.write("src/b.log")
    tree.write("other")
    assert tree.commit("m", "src", ":!*.log", "missing") is not None
    assert tree.git("show", "--name-only", "--format=", "HEAD") == "src/a"
    assert tree.git("status", "--porcelain").split("\n") == [
        "A  staged",
        "?? other",
        "?? src/b.log",
    ]
    assert tree.commit("m", "src/a") is None


@pytest.mark.parametrize(
    "name",
    [
        'q"uote',
        "new\nline",
        "tab\there",
        "-dash",
        ":(top)x",
        "*",
        "é",
        b"\xff".decode("utf-8", "surrogateescape"),
        "a b/",
    ],
)
def test_odd_names_are_committed(tree: Tree, name: str) -> None:
    """Whatever a file is called, it is committed and named as it is."""
    tree.write(name.rstrip("/") + ("/f" if name.endswith("/") else ""))
    made = tree.make(message="m", hooks=False)
    assert made is not None
    assert made.files == (("A", name.rstrip("/") + ("/f" if name.endswith("/") else "")),)
    assert (made.branch, made.is_whole) == ("refs/heads/main", True)


def test_a_file_may_become_a_directory(tree: Tree) -> None:
    """And a directory a file."""
    (tree.root / "first").unlink()
    tree.write("first/inner")
    assert tree.commit() is not None
    (tree.root / "first/inner").unlink()
    (tree.root / "first").rmdir()
    tree.write("first")
    assert tree.commit("m", "first") is not None
    assert tree.git("ls-files") == "first"


@pytest.mark.parametrize("paths", [(), ("deep", "first")])
def test_a_repository_below_is_left_out(tree: Tree, paths: tuple[str, ...]) -> None:
    """A commit of everything names no commit of another repository, and says so."""
    nested = tree.root / 'deep/ne"st'
    nested.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(nested)], check=True)
    tree.git("-C", str(nested), "commit", "--quiet", "--allow-empty", "-m", "x")
    (nested / "f").write_text("x")
    tree.write("first", "new\n")
    made = tree.make(message="m", hooks=False, paths=paths)
    assert made is not None and made.files == (("M", "first"),)
    assert "another repository" in made.said
    assert tree.make(message="m", hooks=False, paths=paths) is None


def test_a_staged_repository_is_refused(tree: Tree) -> None:
    """It would never be taken out of the box: the message says how to get rid of it."""
    tree.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    error = fault(tree.commit)
    assert error.code is Code.UNSUPPORTED and "sub" in str(error) and "rm --cached" in str(error)


# ─── where ──────────────────────────────────────────────────────────────────────────


def test_an_unborn_branch_gets_its_first_commit(tree: Tree) -> None:
    """With paths and without."""
    tree.git("switch", "--quiet", "--orphan", "fresh")
    assert tree.commit() is None
    tree.write("a")
    tree.write("b")
    assert tree.commit("m", "a") == tree.git("rev-parse", "refs/heads/fresh")
    assert tree.commit() is not None
    assert tree.git("ls-tree", "--name-only", "HEAD") == "a\nb"


def test_a_detached_head_moves(tree: Tree) -> None:
    """No branch is named then, and none moves."""
    tree.git("switch", "--quiet", "--detach")
    tree.write("a")
    made = tree.make(message="m", hooks=False)
    assert made is not None and made.branch is None
    assert made.commit == tree.git("rev-parse", "HEAD") != tree.git("rev-parse", "main")


def test_the_git_directory_is_the_one_given(tree: Tree) -> None:
    """Where the worktree's `.git` is a file, or no longer there, its directory is named."""
    elsewhere = tree.root.parent / "private"
    (tree.root / ".git").rename(elsewhere)
    tree.write("a")
    name = tree.commit("m", inside=str(elsewhere))
    assert (
        name
        == subprocess.run(
            ["git", f"--git-dir={elsewhere}", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    )
    assert fault(tree.commit).code is Code.NOT_FOUND


# ─── what is in the way ─────────────────────────────────────────────────────────────


def _conflict(tree: Tree) -> None:
    tree.git("switch", "--quiet", "-c", "side")
    tree.write("first", "side\n")
    tree.git("commit", "--quiet", "-am", "side")
    tree.git("switch", "--quiet", "main")
    tree.write("first", "main\n")
    tree.git("commit", "--quiet", "-am", "main")


@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("command", ["merge", "cherry-pick", "rebase"])
def test_unresolved_conflicts_are_not_committed(tree: Tree, command: str, hooks: bool) -> None:
    """Marks of a conflict never become a commit by themselves."""
    _conflict(tree)
    tree.git(command, "side", check=False)
    head = tree.git("rev-parse", "HEAD")
    error = fault(lambda: tree.make(message="m", hooks=hooks))
    assert error.code is Code.CONFLICT
    assert tree.git("rev-parse", "HEAD") == head


def test_an_automatic_commit_concludes_no_merge(tree: Tree) -> None:
    """A merge in which all is resolved is left to the loop; its own commit concludes it."""
    _conflict(tree)
    tree.git("merge", "side", check=False)
    tree.write("first", "both\n")
    tree.git("add", "first")
    error = fault(tree.commit)
    assert error.code is Code.CONFLICT and "a merge" in str(error)
    made = tree.make(message="merged")
    assert made is not None
    assert len(tree.git("log", "-1", "--format=%P").split()) == 2


def test_a_lock_without_git_is_removed(tree: Tree) -> None:
    """What a killed git left is told with its age, and is not in the way."""
    tree.write(".git/index.lock", "")
    os.utime(tree.root / ".git/index.lock", (1, 1))
    tree.write("a")
    made = tree.make(message="m", hooks=False)
    assert made is not None and "removed index.lock" in made.said
    assert not (tree.root / ".git/index.lock").exists()


def test_a_lock_with_git_stays(tree: Tree) -> None:
    """While a git runs in the worktree the lock may be its own: age and process are told."""
    tree.write("a")
    holder = subprocess.Popen(
        ["git", "hash-object", "--stdin"],
        cwd=tree.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        tree.write(".git/index.lock", "")
        error = fault(tree.commit)
    finally:
        holder.communicate(b"")
    assert error.code is Code.CONFLICT
    assert "s old" in str(error) and str(holder.pid) in str(error)
    assert (tree.root / ".git/index.lock").exists()


# ─── hooks and settings ─────────────────────────────────────────────────────────────

HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-index-change")


def _plant(tree: Tree, canary: Path) -> None:
    for hook in HOOKS:
        path = tree.write(f".git/hooks/{hook}", f"#!/bin/sh\necho {hook} >>'{canary}'\n")
        path.chmod(0o755)


def test_no_hook_takes_part_in_an_automatic_commit(tree: Tree, tmp_path: Path) -> None:
    """A hook that refuses, or a signature that can't be made, is no reason to lose a turn."""
    canary = tmp_path / "canary"
    _plant(tree, canary)
    tree.write(".git/hooks/pre-commit", "#!/bin/sh\nexit 1\n")
    tree.git("config", "commit.gpgSign", "true")
    tree.git("config", "gpg.program", "/bin/false")
    tree.write("a")
    assert tree.commit() is not None
    assert "commit" not in (canary.read_text() if canary.exists() else "")


def test_the_hooks_of_a_commit_of_the_loop_run(tree: Tree, tmp_path: Path) -> None:
    """And one that refuses is heard, in its own words."""
    canary = tmp_path / "canary"
    _plant(tree, canary)
    tree.write("a")
    assert tree.make(message="m") is not None
    assert {"pre-commit", "commit-msg", "post-commit"} <= set(canary.read_text().split())
    tree.write(".git/hooks/pre-commit", "#!/bin/sh\necho not today >&2\nexit 1\n")
    tree.write("b")
    error = fault(lambda: tree.make(message="m"))
    assert error.code is Code.EXECUTION_ERROR and "not today" in str(error)


def test_without_an_author_git_says_so(tree: Tree) -> None:
    """Git's own words are the reason."""
    tree.write("a")
    environment = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "user.useConfigOnly",
        "GIT_CONFIG_VALUE_0": "true",
    }

    def work() -> object:
        return tree.in_box(
            lambda box: commits.commit(
                box, inside="", message="m", paths=(), environment=environment
            )
        )

    assert "tell me who you are" in str(fault(work))


@pytest.mark.parametrize(
    "message", ["#not a comment", "'\"`$(id)`\\", "--amend", "é \u202e", "a\n\n\n\nb  \n"]
)
def test_messages_stay_what_they_are(tree: Tree, message: str) -> None:
    """Nothing in a message is obeyed, by a shell or by git."""
    tree.write("a")
    assert tree.commit(message) is not None
    wanted = "a\n\nb" if "\n" in message else message
    assert tree.git("log", "-1", "--format=%B") == wanted


@pytest.mark.parametrize("message", ["a\0b", "x" * (commits.MAX_MESSAGE + 1)])
def test_a_message_that_no_commit_has_is_refused(tree: Tree, message: str) -> None:
    """Before anything is done."""
    assert fault(lambda: tree.commit(message)).code is Code.INVALID_ARGUMENTS


# ─── what a turn did ────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Use:
    canonical: str
    input: Mapping[str, Any]
    is_mutating: bool = True


EDIT = Use("edit_file", {"path": "a.py", "old_string": "x"})
MAKE = Use("run_command", {"command": "make test"})
READ = Use("read_file", {"path": "b.py"}, is_mutating=False)


@pytest.mark.parametrize(
    ("template", "uses", "wanted"),
    [
        ("{tools}", [EDIT], "edit_file a.py\n"),
        (
            "{tools}",
            [EDIT, READ, MAKE],
            "edit_file a.py; run_command make test\n\n- edit_file a.py\n- run_command make test\n",
        ),
        ("{exec_id}: work", [EDIT, MAKE], "loop-1: work\n"),
        ("wip\n\nby {exec_id}", [EDIT], "wip\n\nby loop-1\n"),
        ("{tools} {other} {}", [EDIT], "edit_file a.py {other} {}\n"),
        (
            "{tools}",
            [Use("run_command", {"command": "echo {exec_id}"})],
            "run_command echo {exec_id}\n",
        ),
        ("{tools}", [Use("todo_write", {"todos": []})], "todo_write\n"),
        ("{tools}", [READ], "read_file b.py\n"),
        (
            "{tools}",
            [Use("run_command", {"command": "a\n\nSigned-off-by: x\x1b[2J\u202e"})],
            "run_command a\\n\\nSigned-off-by: x\\x1b[2J\\u202e\n",
        ),
    ],
)
def test_the_message_says_what_the_turn_did(template: str, uses: list[Use], wanted: str) -> None:
    """On one line, and in a list when there is more; nothing of a call acts."""
    assert commits.filled(template, uses, "loop-1") == wanted


def test_a_message_is_bounded() -> None:
    """72 characters on the first line, 200 on the others, fifty calls."""
    uses = [Use("run_command", {"command": "x" * 10_000})] * 1000
    lines = commits.filled("{tools}", uses, "loop-1").splitlines()
    assert len(lines[0]) == commits.SUBJECT and lines[1] == ""
    assert len(lines) == 53 and max(map(len, lines)) <= 202
    assert lines[-1] == "- and 950 more"
