"""Tools of git, through a whole loop: what they say, and what they can't be talked into."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.errors import Code
from executor.model import GitOptions, LoopSpec, Result
from tests.loops import Work, open_work

BEGIN = (
    "git init -q -b main && git config user.name A && git config user.email a@example.org && "
    "printf 'one\\n' >a.txt && git add a.txt && git commit -qm first"
)


def begun(work: Work) -> None:
    done = work.call("run_command", command=BEGIN)
    assert done.is_error is False, done.content


def opened(kind: str, directory: Path, **given: Any) -> Iterator[Work]:
    change: Callable[[LoopSpec], LoopSpec] = lambda spec: replace(spec, **given)  # noqa: E731
    with open_work(kind, directory, change=change) as work:
        if kind == "local":
            os.chown(work.root, os.getuid(), os.getgid())  # git asks whose it is
        yield work


@pytest.fixture(params=["local", "docker"])
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Work]:
    """A loop whose worktree is a repository that it made itself."""
    for one in opened(request.param, tmp_path):
        begun(one)
        yield one


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Work]:
    """The same, by one transport."""
    for one in opened("local", tmp_path):
        begun(one)
        yield one


def ok(result: Result) -> dict[str, Any]:
    assert result.is_error is False, result.content
    assert result.structured is not None
    return result.structured


def change(work: Work) -> None:
    """One file of each kind."""
    line = (
        "printf 'two\\n' >>a.txt; printf 'x\\n' >'new file'; mkdir -p d; echo s >d/staged; "
        "git add d/staged"
    )
    ok(work.call("run_command", command=line))


# ─── what they say ──────────────────────────────────────────────────────────────────


def test_status_names_what_is_staged_changed_and_new(work: Work) -> None:
    """As text for the model, and as data."""
    clean = work.call("git_status")
    assert ok(clean)["clean"] is True and "the worktree is clean" in str(clean.content)
    change(work)
    result = work.call("git_status")
    data = ok(result)
    head = data.pop("commit")
    assert data == {
        "branch": "main",
        "staged": [{"path": "d/staged", "state": "added"}],
        "unstaged": [{"path": "a.txt", "state": "modified"}],
        "untracked": ["new file"],
        "conflicts": [],
        "clean": False,
        "truncated": False,
    }
    assert result.content == (
        f"On branch main at {head[:12]}\nStaged:\n  added: d/staged\nNot staged:\n"
        "  modified: a.txt\nUntracked:\n  new file"
    )


def test_status_tells_renames_conflicts_and_detached_heads(plain: Work) -> None:
    """Each by its own name, and no record is taken for another."""
    ok(plain.call("run_command", command="git mv a.txt b.txt && git switch -q --detach"))
    data = ok(plain.call("git_status"))
    assert data["branch"] is None
    assert data["staged"] == [{"path": "b.txt", "state": "renamed"}]
    plain.call(
        "run_command",
        command="git reset -q --hard && git switch -q -c side && echo s >a.txt && "
        "git commit -qam s && git switch -q main && echo m >a.txt && git commit -qam m; "
        "git merge side",
    )
    result = plain.call("git_status")
    assert ok(result)["conflicts"] == ["a.txt"]
    assert "Conflicts, not resolved:\n  a.txt" in str(result.content)


def test_diff_shows_changes_by_kind(work: Work) -> None:
    """Of the worktree, of what is staged, against a commit, of some paths, and as numbers."""
    change(work)
    diff = work.call("git_diff")
    assert "+two" in str(diff.content) and "staged" not in str(diff.content)
    assert "+s" in str(work.call("git_diff", staged=True).content)
    assert "d/staged" in str(work.call("git_diff", ref="HEAD").content)
    assert (
        work.call("git_diff", ref="HEAD", paths=["/workspace/d/../d"]).content != "No differences"
    )
    assert work.call("git_diff", paths=["d"]).content == "No differences"
    assert "1 file changed" in str(work.call("git_diff", stat=True).content)
    missing = work.call("git_diff", ref="no-such-branch")
    assert missing.is_error is True and "no-such-branch" in str(missing.content)


def test_log_tells_commits(work: Work) -> None:
    """Newest first, as many as were asked for, of some paths."""
    change(work)
    assert ok(work.call("git_commit", message="second\n\nwith a body"))["branch"] == "main"
    result = work.call("git_log")
    subjects = [one["subject"] for one in ok(result)["commits"]]
    assert subjects == ["second", "first"]
    assert "Author: A <a@example.org>" in str(result.content)
    assert "    second\n\n    with a body" in str(result.content)
    short = work.call("git_log", oneline=True, max_count=1)
    assert str(short.content).endswith(" second") and "\n" not in str(short.content)
    of_path = ok(work.call("git_log", paths=["d/staged"], ref="HEAD"))["commits"]
    assert [one["subject"] for one in of_path] == ["second"]


def test_commit_takes_all_or_some_or_what_is_staged(work: Work) -> None:
    """The result names commit, branch and files; without changes there is none."""
    change(work)
    staged = ok(work.call("git_commit", message="staged", all=False))
    assert staged["files"] == [{"path": "d/staged", "state": "added"}]
    some = ok(work.call("git_commit", message="some", paths=["new file"]))
    assert some["files"] == [{"path": "new file", "state": "added"}]
    result = work.call("git_commit", message="the rest")
    assert ok(result)["files"] == [{"path": "a.txt", "state": "modified"}]
    assert str(result.content).startswith(f"[main {ok(result)['commit'][:12]}] the rest\n")
    nothing = work.call("git_commit", message="m")
    assert (nothing.content, ok(nothing)["commit"]) == ("Nothing to commit", None)


def test_nothing_is_pushed(plain: Work) -> None:
    """The refusal names the command that takes commits out of the sandbox."""
    result = plain.call("git_push", remote="origin", branch="main")
    assert (result.is_error, result.code) == (True, Code.DISABLED)
    assert "executor git import test" in str(result.content)


def test_without_a_repository_git_says_so(tmp_path: Path) -> None:
    """Each of them, in git's own words."""
    for work in opened("local", tmp_path):
        for name, given in (
            ("git_status", {}),
            ("git_diff", {}),
            ("git_log", {}),
            ("git_commit", {"message": "m"}),
        ):
            result = work.call(name, **given)
            assert result.is_error is True and "ot a git repository" in str(result.content), name


def test_where_git_is_hidden_there_are_no_tools_of_it(tmp_path: Path) -> None:
    """They are refused with the reason."""
    for work in opened("local", tmp_path, git=GitOptions(sharing="hidden")):
        result = work.call("git_status")
        assert result.code is Code.DISABLED and "git is hidden" in str(result.content)


# ─── what they can't be talked into ─────────────────────────────────────────────────


@pytest.mark.parametrize("ref", ["--output=/workspace/x", "-O/etc/passwd", "a\nb", "", "\x1b[2J"])
@pytest.mark.parametrize("tool", ["git_diff", "git_log"])
def test_a_ref_is_no_option(plain: Work, tool: str, ref: str) -> None:
    """Whatever git would take it for."""
    result = plain.call(tool, ref=ref)
    assert (result.is_error, result.code) == (True, Code.INVALID_ARGUMENTS)
    assert not (plain.root / "x").exists()


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "d/../../x"])
@pytest.mark.parametrize("tool", ["git_diff", "git_log", "git_commit"])
def test_a_path_is_of_the_worktree(plain: Work, tool: str, path: str) -> None:
    """Others are refused before git is asked."""
    more = {"message": "m"} if tool == "git_commit" else {}
    assert plain.call(tool, paths=[path], **more).code is Code.INVALID_PATH


@pytest.mark.parametrize("name", ["-x", "--output=y", ":!a.txt", "*", "$(touch z)", "'; touch z;'"])
def test_a_path_is_a_name(plain: Work, name: str) -> None:
    """No option, no pattern, no text of a shell."""
    (plain.root / name).write_text("x\n")
    (plain.root / "other").write_text("x\n")
    made = ok(plain.call("git_commit", message="m", paths=[name]))
    assert made["files"] == [{"path": name, "state": "added"}]
    assert sorted(path.name for path in plain.root.iterdir() if path.name in "yz") == []


def test_a_message_is_a_text(plain: Work) -> None:
    """No option, no text of a shell; an empty one is refused."""
    (plain.root / "f").write_text("x\n")
    message = "--amend $(touch z) `touch z` '\"; touch z"
    ok(plain.call("git_commit", message=message))
    assert ok(plain.call("git_log"))["commits"][0]["subject"] == message
    assert not (plain.root / "z").exists()
    assert plain.call("git_commit", message=" \n").code is Code.INVALID_ARGUMENTS


@pytest.mark.parametrize(
    ("rule", "tool", "given"),
    [
        ("run_command(git commit *)", "git_commit", {"message": "m"}),
        ("run_command(git add *)", "git_commit", {"message": "m"}),
        ("git_commit", "git_commit", {"message": "m"}),
        ("run_command(git log *)", "git_log", {}),
        ("run_command(git status)", "git_status", {}),
        ("read_file(**/.env*)", "git_diff", {"paths": [".env"]}),
        ("read_file(**/.env*)", "git_diff", {"ref": "HEAD:.env"}),
        ("read_file(/d/**)", "git_diff", {"paths": ["d"]}),
    ],
)
def test_rules_hold_as_for_commands(
    tmp_path: Path, rule: str, tool: str, given: dict[str, Any]
) -> None:
    """What is denied to a command line is denied to the tool that runs the same."""
    for work in opened("local", tmp_path, deny=(rule,)):
        result = work.call(tool, **given)
        assert result.code is Code.PERMISSION_DENIED and rule in str(result.content)


def test_a_diff_leaves_out_what_may_not_be_read(tmp_path: Path) -> None:
    """Under its old name too, and it says that something is missing."""
    for work in opened("local", tmp_path, deny=("read_file(**/.env*)",)):
        begun(work)
        (work.root / ".env").write_text("SECRET=1\n")
        (work.root / "a.txt").write_text("changed\n")
        ok(work.call("git_commit", message="m"))
        (work.root / ".env").rename(work.root / "b.txt")
        (work.root / "a.txt").write_text("again\n")
        result = work.call("git_diff")
        assert "SECRET" not in str(result.content) and "+again" in str(result.content)
        assert "1 files are not shown" in str(result.content)
        assert "SECRET" not in str(work.call("git_diff", ref="HEAD~1").content)


def test_looking_takes_no_lock(plain: Work) -> None:
    """A status at the same time never makes a commit fail."""
    until = time.monotonic() + 30
    for number in range(20):
        assert time.monotonic() < until
        (plain.root / "a.txt").write_text(f"{number}\n")
        results = plain.turn(
            ("git_status", {}),
            ("run_command", {"command": f"git commit -qam {number}"}),
            ("git_status", {}),
            ("git_diff", {}),
        )
        assert not any(result.is_error for result in results), results
    assert len(ok(plain.call("git_log", max_count=100))["commits"]) == 21


def test_looking_starts_no_monitor(plain: Work) -> None:
    """What the repository's settings would start, if git asked it."""
    canary = plain.root.parent / "canary"
    monitor = plain.root.parent / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {canary}\n")
    monitor.chmod(0o755)
    ok(plain.call("run_command", command=f"git config core.fsmonitor {monitor}"))
    for name in ("git_status", "git_diff"):
        ok(plain.call(name))
    assert not canary.exists()


# ─── git's own files ────────────────────────────────────────────────────────────────

PLACES = (
    ".git/config",
    "./.git/hooks/pre-commit",
    "sub/../.git/config",
    "link/config",
    "/workspace/.git/info/attributes",
    "sub/.git/config",
    "new/.git/config",
)


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("toolset", ["standard", "loom", "claude-code"])
def test_no_tool_writes_what_git_obeys(tmp_path: Path, toolset: str, path: str) -> None:
    """Whoever may write files has not been allowed to run commands by that."""
    is_there = path in (".git/config", "sub/../.git/config", "link/config")
    old = "[core]" if is_there else ""
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "standard": ("write_file", {"path": path, "content": "x"}),
        "loom": ("edit_file", {"path": path, "edits": [{"old_str": old, "new_str": "x"}]}),
        "claude-code": (
            "Write",
            {"file_path": f"/workspace/{path}".replace("//workspace", ""), "content": "x"},
        ),
    }
    for work in opened("local", tmp_path, toolset=toolset):
        (work.root / ".git/hooks").mkdir(parents=True)
        (work.root / ".git/config").write_text("[core]\n")
        (work.root / "sub/.git").mkdir(parents=True)
        (work.root / "link").symlink_to(".git")
        before = sorted(work.root.rglob("*"))
        name, arguments = given[toolset]
        result = work.call(name, **arguments)
        assert result.is_error is True and result.code is Code.PERMISSION_DENIED, result.content
        assert "git's own" in str(result.content)
        assert sorted(work.root.rglob("*")) == before
        assert (work.root / ".git/config").read_text() == "[core]\n"


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("read_file", {"path": ".git/config"}),
        ("read_file", {"path": "link/config"}),
        ("grep", {"pattern": "core", "path": "link"}),
        ("grep", {"pattern": "core", "path": ".git/config"}),
        ("glob", {"pattern": "*", "path": "link"}),
        ("list_directory", {"path": ".git"}),
        ("list_directory", {"path": "link/hooks"}),
        ("edit_file", {"path": ".git/config", "old_string": "core", "new_string": "x"}),
        ("move_file", {"from": "a", "to": ".git/hooks/post-index-change"}),
        ("move_file", {"from": "a", "to": "sub/.git"}),
        ("move_file", {"from": ".git/config", "to": "stolen"}),
        ("delete_file", {"path": ".git/config"}),
        ("delete_file", {"path": "link/config"}),
        ("delete_file", {"path": ".git", "recursive": True}),
        ("write_file", {"path": ".GIT/config", "content": "x"}),
        ("notebook_edit", {"notebook_path": "link/n.ipynb", "cell_id": "a", "new_source": "x"}),
    ],
)
def test_files_of_git_are_its_own(tmp_path: Path, tool: str, given: dict[str, Any]) -> None:
    """They are read, moved and deleted by git alone, by whatever path they are reached."""
    for work in opened("local", tmp_path):
        (work.root / ".git/hooks").mkdir(parents=True)
        (work.root / ".git/config").write_text("[core]\n")
        (work.root / ".git/n.ipynb").write_text("{}")
        (work.root / "link").symlink_to(".git")
        (work.root / "sub").mkdir()
        (work.root / "a").write_text("x")
        result = work.call(tool, **given)
        assert result.is_error is True, result.content
        assert result.code in (Code.PERMISSION_DENIED, Code.INVALID_PATH), result.content
        assert (work.root / ".git/config").read_text() == "[core]\n"
        assert not list((work.root / ".git/hooks").iterdir())


@pytest.mark.parametrize("name", ["git-status", ".gitignore", "a.git/x", ".github/x"])
def test_other_names_are_anybodys(tmp_path: Path, name: str) -> None:
    """Only `.git` is git's own."""
    for work in opened("local", tmp_path):
        assert work.call("write_file", path=name, content="x").is_error is False
        assert work.call("read_file", path=name).is_error is False


# ─── from writing a file to running a program ───────────────────────────────────────

MONITOR = (
    "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
    "\tworktree = {root}\n\tfsmonitor = {monitor}\n"
)


@pytest.mark.parametrize("toolset", ["standard", "claude-code"])
def test_new_files_are_no_repository(tmp_path: Path, toolset: str) -> None:
    """Making files and looking with git are both unasked; together they start no program."""
    canary, monitor = tmp_path / "canary", tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {canary}\n")
    monitor.chmod(0o755)
    command, write = ("run_command", "write_file") if toolset == "standard" else ("Bash", "Write")
    name = "path" if toolset == "standard" else "file_path"
    for work in opened("local", tmp_path, toolset=toolset, mode="default"):
        config = MONITOR.format(root=work.root, monitor=monitor)
        files = {"HEAD": "ref: refs/heads/main\n", "config": config, "objects/x": "", "refs/x": ""}
        for file, text in files.items():
            for place in ("/workspace/sub", "/workspace"):
                made = work.call(write, **{name: f"{place}/{file}", "content": text})
                assert made.is_error is False, made.content
        for line in ("git status", "cd sub && git status", "git -P diff"):
            result = work.call(command, command=line)
            assert result.code is not Code.APPROVAL_REQUIRED, result.content  # it has run
        assert not canary.exists()
        work.thread.run(_run_freely(work))
        assert canary.exists()  # it would have been started


async def _run_freely(work: Work) -> None:
    """The same command as any process of the box may run it."""
    box = work.opened[-1]
    arguments: dict[str, Any] = {
        "command": "git status",
        "argv": None,
        "script": None,
        "args": [],
        "cwd": "sub",
        "environment": {},
        "timeout": 20.0,
        "grace": 1.0,
        "merge": False,
        "head": 1000,
        "tail": 0,
        "stream": False,
        "shelve": False,
    }
    await box.request("run", arguments)


@pytest.mark.parametrize("line", ["echo x >.git/config", "echo x >sub/.git/hooks/pre-commit"])
def test_a_rule_for_files_is_none_for_what_git_obeys(tmp_path: Path, line: str) -> None:
    """A rule that allows to write every file does not allow a redirect into `.git`."""
    for work in opened(
        "local", tmp_path, mode="default", allow=("edit_file(**)", "run_command(echo *)")
    ):
        begun_by_hand(work)
        assert work.call("run_command", command="echo x >y").is_error is False
        result = work.call("run_command", command=line)
        assert result.is_error is True and result.code is Code.APPROVAL_REQUIRED, result.content


def begun_by_hand(work: Work) -> None:
    for name in (".git/hooks", "sub/.git/hooks"):
        (work.root / name).mkdir(parents=True)
