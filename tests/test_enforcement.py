"""What rules say of paths holds for what is opened, whatever happens after the judgement."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.approvals import CallableApprover
from executor.errors import Code
from executor.hooks import Hook, HookEvent, Hooks, Occasion
from executor.model import ApprovalRequest
from tests.loops import Work, open_work

SECRET = "KEY=1\n"


class Asked:
    """Somebody who says yes to everything, and notes what it was."""

    def __init__(self) -> None:
        self.requests: list[ApprovalRequest] = []

    def approve(self, request: ApprovalRequest) -> bool:
        """Yes."""
        self.requests.append(request)
        return True


@pytest.fixture
def asked() -> Asked:
    """Nobody was asked yet."""
    return Asked()


def filled(work: Work) -> Work:
    """With a secret, a directory of documents, and links to both."""
    work.write(".env", SECRET)
    work.write("a/b.txt", "KEY=2\n")
    work.write("docs/index.md", "# KEY\n")
    work.write("docs/sub/page.md", "page\n")
    (work.root / "x").symlink_to("a/b.txt")
    (work.root / "d").symlink_to("docs")
    return work


def opened(directory: Path, asked: Asked | None = None, *hooks: Hook, **spec: Any) -> Any:
    """A loop with these rules."""
    approver = CallableApprover(asked.approve, lambda questions: {}) if asked else None
    return open_work(
        "local",
        directory,
        change=lambda given: replace(given, **spec),
        approver=approver,
        hooks=Hooks(hooks),
    )


# ─── rules of one tool ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rule", ["delete_file(/docs/sub/**)", "delete_file(**/page.md)"])
def test_a_tools_own_rule_holds_below_what_it_is_given(tmp_path: Path, rule: str) -> None:
    """What may not be deleted by name is not deleted with the directory that it is in."""
    with opened(tmp_path, deny=(rule,)) as work:
        filled(work)
        result = work.call("delete_file", path="docs", recursive=True)
        assert result.code is Code.PERMISSION_DENIED and rule in str(result.content)
        assert (work.root / "docs/sub/page.md").read_text() == "page\n"
        work.call("read_file", path="docs/sub/page.md")
        edit = {"path": "docs/sub/page.md", "old_string": "page", "new_string": "x"}
        assert work.call("edit_file", **edit).code is None


def test_a_tools_own_rule_holds_for_what_is_moved(tmp_path: Path) -> None:
    """A directory is not moved with what may not be moved."""
    with opened(tmp_path, deny=("move_file(**/page.md)",)) as work:
        filled(work)
        result = work.call("move_file", **{"from": "docs", "to": "e"})
        assert result.code is Code.PERMISSION_DENIED and (work.root / "docs").is_dir()
        assert work.call("delete_file", path="docs", recursive=True).code is None


# ─── rules that ask ─────────────────────────────────────────────────────────────────


def test_a_search_leaves_out_what_nobody_was_asked_about(tmp_path: Path, asked: Asked) -> None:
    """A rule that asks for one file hides it from a search of all; by name it is asked about."""
    with opened(tmp_path, asked, ask=("read_file(.env)",)) as work:
        filled(work)
        found = work.call("grep", pattern="KEY")
        assert SECRET.strip() not in str(found.content) and not asked.requests
        assert "1 file left out: rules deny to read it, or ask first" in str(found.content)
        assert SECRET.strip() in str(work.call("grep", pattern="KEY", path=".env").content)
        assert SECRET.strip() in str(work.call("read_file", path=".env").content)
        assert [request.tool for request in asked.requests] == ["grep", "read_file"]


def test_what_is_asked_about_by_name_is_not_lost_with_its_directory(
    tmp_path: Path, asked: Asked
) -> None:
    """Deleting a directory is no way round a rule that asks for a file in it."""
    with opened(tmp_path, asked, ask=("edit_file(**/page.md)",)) as work:
        filled(work)
        result = work.call("delete_file", path="docs", recursive=True)
        assert result.code is Code.PERMISSION_DENIED and "asks first" in str(result.content)
        assert (work.root / "docs/sub/page.md").exists() and not asked.requests
        assert work.call("delete_file", path="docs/sub/page.md").code is None
        assert len(asked.requests) == 1


# ─── what changes between the judgement and the opening ─────────────────────────────


def swapped(change: Callable[[], None]) -> Hook:
    """Something in the box that is just in time."""

    def before(occasion: Occasion) -> None:
        change()

    return Hook(HookEvent.BEFORE, before)


def relink(link: Path, target: str) -> None:
    """Let a link lead elsewhere."""
    spare = link.with_name("spare")
    spare.symlink_to(target)
    os.rename(spare, link)


@pytest.mark.parametrize(
    ("rules", "tool", "arguments"),
    [
        ({"ask": ("read_file(.env)",)}, "read_file", {"path": "x"}),
        ({"ask": ("read_file(.env)",)}, "read_file", {"path": "x", "encoding": "base64"}),
        ({"ask": ("read_file(.env)",)}, "grep", {"path": "x", "pattern": "KEY"}),
        ({"deny": ("read_file(.env)",)}, "read_file", {"path": "x"}),
        ({"ask": ("edit_file(.env)",)}, "write_file", {"path": "x", "content": "z"}),
        ({"deny": ("write_file(.env)",)}, "write_file", {"path": "x", "content": "z"}),
        (
            {"allow": ("write_file(/a/**)",), "mode": "default"},
            "write_file",
            {"path": "x", "content": "z"},
        ),
    ],
)
def test_a_link_that_is_swapped_after_the_judgement_opens_nothing(
    tmp_path: Path, rules: dict[str, Any], tool: str, arguments: dict[str, Any]
) -> None:
    """Judged by one file and led to another: refused, not read, not changed."""
    root = tmp_path / "worktree"
    armed: list[bool] = []
    hook = swapped(lambda: relink(root / "x", ".env") if armed else None)
    with opened(tmp_path, Asked(), hook, **rules) as work:
        filled(work)
        work.call("read_file", path="x")
        work.call("read_file", path=".env")
        armed.append(True)
        result = work.call(tool, **arguments)
        assert result.code in (Code.CONFLICT, Code.PERMISSION_DENIED), result
        assert SECRET.strip() not in str(result.content)
        assert (root / ".env").read_text() == SECRET


def test_what_was_approved_runs_for_the_place_that_was_shown(tmp_path: Path) -> None:
    """The file that was asked about is opened; another that takes its place is not."""
    root = tmp_path / "worktree"
    asked, armed = Asked(), list[bool]()
    hook = swapped(lambda: relink(root / "d", "a") if armed else None)
    with opened(tmp_path, asked, hook, ask=("edit_file(/docs/**)",)) as work:
        filled(work)
        assert work.call("write_file", path="d/new.md", content="n").code is None
        assert (root / "docs/new.md").read_text() == "n"
        armed.append(True)
        result = work.call("write_file", path="d/newer.md", content="n")
        assert result.code is Code.CONFLICT and "make the call again" in str(result.content)
        assert not (root / "a/newer.md").exists() and len(asked.requests) == 2


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("delete_file", {"path": "d/index.md"}),
        ("move_file", {"from": "a/b.txt", "to": "d/index.md", "overwrite": True}),
        ("write_file", {"path": "d/index.md", "content": "n"}),
        ("edit_file", {"path": "d/index.md", "old_string": "K", "new_string": "n"}),
    ],
)
def test_an_answer_is_for_what_the_path_led_to(
    tmp_path: Path, tool: str, arguments: dict[str, Any]
) -> None:
    """No rule is needed for that: a directory that is swapped after the question loses nothing."""
    root = tmp_path / "worktree"
    asked, armed = Asked(), list[bool]()
    hook = swapped(lambda: relink(root / "d", "e") if armed else None)
    with opened(tmp_path, asked, hook, mode="default") as work:
        filled(work)
        work.write("e/index.md", "# KEY\n")
        work.call("read_file", path="d/index.md")
        work.call("read_file", path="e/index.md")
        armed.append(True)
        assert work.call(tool, **arguments).code is Code.CONFLICT
        assert len(asked.requests) == 1
        assert (root / "e/index.md").read_text() == (root / "docs/index.md").read_text()


def test_a_link_out_of_the_worktree_is_judged_by_where_it_leads(
    tmp_path: Path, asked: Asked
) -> None:
    """Where a toolset reads all of the box, a rule for a file there holds for links to it."""
    outside = tmp_path / "outside.txt"
    outside.write_text("outside\n")
    spec = {"toolset": "claude-code", "ask": (f"Read(/{outside})",)}
    with opened(tmp_path, asked, **spec) as work:
        filled(work)
        (work.root / "link").symlink_to(outside)
        assert "outside" in str(work.call("Read", file_path="/workspace/link").content)
        assert len(asked.requests) == 1


# ─── in a real box ──────────────────────────────────────────────────────────────────


def test_a_box_searches_what_its_agent_has_opened(tmp_path: Path) -> None:
    """Over every runtime: ripgrep is given descriptors, and finds what it found by names."""
    names = [f"n/{number % 3}/f{number}" for number in range(230)]
    with open_work(
        "docker",
        tmp_path,
        change=lambda given: replace(
            given, deny=("read_file(.env)",), ask=("delete_file(**/keep)",)
        ),
    ) as work:
        filled(work)
        for name in names:
            work.write(name, f"KEY of {name}\n")
        work.write("n/2/keep", "kept\n")
        found = work.call("grep", pattern="KEY", context=0)
        lines = str(found.content).split("\n")
        assert {line.partition(":")[0] for line in lines if ":1:" in line} == {
            *names,
            "a/b.txt",
            "docs/index.md",
        }
        assert SECRET.strip() not in str(found.content)
        assert "1 file left out" in str(found.content)
        result = work.call("delete_file", path="n", recursive=True)
        assert result.code is Code.PERMISSION_DENIED and "asks first" in str(result.content)
        assert (work.root / "n/2/keep").exists() and not (work.root / "n/1").exists()
