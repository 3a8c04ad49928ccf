"""Git in the box of a whole loop: the page for users says what works, and each line is run."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from executor.controller import Controller
from executor.loop import Loop
from executor.model import Call, GitOptions, LoopSpec, Result
from executor.sandbox import gate
from executor.sandbox.engine import Engine
from executor.sandbox.facts import EngineFacts
from executor.settings import Settings
from tests.conftest import LIMITS
from tests.driver import LoopThread
from tests.git.boxes import git, make_origin, open_place
from tests.sandbox.tiny import tiny_image

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "git.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `((?:[A-Z]+=\w+ )?git [^`]+)` \| (works|fails: (.+)) \|$", re.MULTILINE)
ROWS = [(found[1], found[3]) for found in ROW.finditer(PAGE)]
"""Each command of the page, and the words that it fails with; None = it works."""
FEW = (
    *("git status", "git commit -m text", "git stash", "git rebase side", "git gc", "git fsck"),
    *("git merge --no-edit side", "git push", "git clone /workspace /tmp/copy"),
    *("git worktree add -b topic /tmp/other", "git switch -c topic", "git fetch . side"),
)
STATES = {
    "git commit -m": "echo x >> a.txt; git add a.txt",
    "git add": "echo x >> a.txt",
    "git stash pop": "echo x >> a.txt; git stash -q",
    "git stash": "echo x >> a.txt",
    "git restore": "echo x >> a.txt",
    "git commit": "echo x >> a.txt; git add a.txt",
}
"""What there has to be before a command means something, by how it begins."""
RESET = """
for state in merge rebase cherry-pick revert; do git $state --abort; done
git bisect reset; git worktree remove -f /tmp/other
rm -rf /tmp/other /tmp/copy /tmp/new /tmp/far; git worktree prune
git config --unset user.name
git switch -qf work && git reset -q --hard "$START" && git clean -qfdx; git branch -D topic
git tag -d v2 v3; git stash clear
"""
PERSON = ("Ada Lovelace", "ada@example.org")


class Inside:
    """An open loop, and what its commands say."""

    def __init__(self, thread: LoopThread, loop: Loop) -> None:
        self.loop = loop
        self._thread = thread
        self._count = 0

    def run(self, command: str) -> tuple[int | None, str]:
        """Exit code and all that a command prints."""
        self._count += 1
        call = Call(f"call{self._count}", "run_command", {"command": command})
        result = self._thread.run(self.loop.execute(call))
        assert result.structured is not None, result
        told = result.structured
        return told["exit_code"], f"{told['stdout']}{told['stderr']}"

    def do(self, command: str) -> str:
        """What a command prints that must succeed."""
        code, text = self.run(command)
        assert code == 0, (command, text)
        return text.strip()


def reset(inside: Inside, start: str) -> None:
    """Everything as it was when the loop began; the last step says whether it is."""
    inside.run(f"START={start}\n{{ {RESET} }} >/dev/null 2>&1")
    assert inside.do("git rev-parse HEAD; git status --porcelain") == start


@contextmanager
def opened(
    place: Path,
    worktree: Path,
    *,
    options: GitOptions | None = None,
    runtime: str | None = None,
    image: str | None = None,
) -> Iterator[Inside]:
    """A loop in a real box over a worktree, by the controller."""
    spec = LoopSpec(
        worktree=worktree,
        limits=LIMITS,
        exec_id="inside",
        mode="bypass",
        git=options or GitOptions(),
        runtime=runtime,
    )
    if image is not None:
        spec = replace(spec, image=image)
    settings = replace(Settings.load(), state_directory=place / "state")
    with LoopThread() as thread:
        yield Inside(thread, thread.enter(thread.enter(Controller(settings)).open(spec)))


def give(directory: Path, uid: int) -> None:
    """All below a directory is that user's, where we may say so."""
    if os.geteuid() == 0:
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, uid, uid, follow_symlinks=False)


def make_worktree(place: Path, kind: str, uid: int) -> Path:
    """A worktree on the branch `work`, with a branch `side`; all of it that user's."""
    origin = make_origin(place)
    git(origin, "config", "user.name", PERSON[0])
    git(origin, "config", "user.email", PERSON[1])
    git(origin, "remote", "add", "origin", "https://example.org/some.git")
    git(origin, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    worktree = origin
    if kind == "linked":
        worktree = place / "worktree"
        git(origin, "worktree", "add", "-q", "-b", "work", str(worktree))
    else:
        git(origin, "switch", "-q", "-c", "work")
    git(worktree, "config", "branch.work.remote", "origin")
    git(worktree, "config", "branch.work.merge", "refs/heads/work")
    give(place, uid)
    return worktree


LINKED, MAIN, ROOT, GVISOR = (
    pytest.param(("linked", "runc", 1000), id="linked"),
    pytest.param(("main", "runc", 1000), id="main"),
    pytest.param(("linked", "runc", 0), id="root"),
    pytest.param(("main", "runsc", 1000), id="gvisor"),
)
"""Kind of worktree, runtime and uid of a loop."""


@pytest.fixture(scope="module", params=[LINKED, MAIN, ROOT, GVISOR])
def box(request: pytest.FixtureRequest) -> Iterator[tuple[Inside, str]]:
    """A loop over each kind of worktree, of an ordinary user and of root; the first commit."""
    kind, runtime, uid = request.param
    if uid == 0 and os.geteuid() != 0:
        pytest.skip("only root has worktrees of root")
    if runtime == "runsc" and not has_gvisor():
        pytest.skip("the engine has no gVisor that takes up our profile; run `make gvisor`")
    for place in open_place():
        worktree = make_worktree(place, kind, uid)
        with opened(place, worktree, runtime=runtime) as inside:
            yield inside, inside.do("git rev-parse HEAD")


def has_gvisor() -> bool:
    """Whether the engine has a `runsc` that boxes are admitted with."""

    async def ask() -> EngineFacts:
        async with await Engine.connect(Settings.load()) as engine:
            return engine.facts

    facts = asyncio.run(ask())
    return "runsc" in facts.runtimes and not gate.unfiltered_faults(facts, "runsc")


def test_the_page_has_the_usual_commands() -> None:
    """No command of the usual ones is missing in the table."""
    told = " ".join(command for command, _ in ROWS)
    for word in (
        *("status", "diff", "log", "add", "commit", "--amend", "stash", "branch", "switch -c"),
        *("restore", "reset", "rebase", "merge", "cherry-pick", "tag", "blame", "bisect"),
        *("worktree add", "gc", "submodule status", "push", "fetch", "pull", "clone"),
    ):
        assert word in told, word


def hold(box: tuple[Inside, str], command: str, words: str | None) -> None:
    """A command works, or fails with these words."""
    inside, start = box
    reset(inside, start)
    prepared = next((STATES[key] for key in STATES if command.startswith(key)), "true")
    inside.do(prepared)
    code, text = inside.run(command)
    if words is None:
        assert code == 0, text
    else:
        assert code not in (0, None)
        assert words in text


@pytest.mark.parametrize("box", [LINKED, MAIN], indirect=True, scope="module")
@pytest.mark.parametrize(("command", "words"), ROWS, ids=[command for command, _ in ROWS])
def test_a_line_of_the_page_holds(box: tuple[Inside, str], command: str, words: str | None) -> None:
    """A command works, or fails with the sentence that the page gives."""
    hold(box, command, words)


@pytest.mark.parametrize("box", [ROOT, GVISOR], indirect=True, scope="module")
@pytest.mark.parametrize("command", FEW)
def test_a_few_lines_hold_for_root_and_over_gvisor(box: tuple[Inside, str], command: str) -> None:
    """What depends on whose the files are, and on the kernel."""
    hold(box, command, dict(ROWS)[command])


def test_who_commits_and_what_wins(box: tuple[Inside, str]) -> None:
    """The host's identity without any word inside; each usual way inside comes before it."""
    inside, start = box
    reset(inside, start)
    commit = "commit -q --allow-empty -m x && git log -1 --format='%an <%ae> %cn'"
    assert inside.do(f"git {commit}") == "Ada Lovelace <ada@example.org> Ada Lovelace"
    assert inside.do(f"git -c user.name=Eve {commit}").startswith("Eve <ada@example.org> Eve")
    assert inside.do(f"GIT_AUTHOR_NAME=Bob git {commit}").startswith("Bob <ada@")
    assert inside.do(f"git config user.name Own && git {commit}").startswith("Own <ada@")
    inside.do("git config --unset user.name && git config --global user.name Mine")
    assert inside.do(f"git {commit}").startswith("Mine <ada@")
    made = (
        f"rm -rf /tmp/n; git init -q /tmp/n && cd /tmp/n && git config user.name T && git {commit}"
    )
    assert inside.do(made).startswith("T <ada@")
    inside.do("git config --global --unset user.name")
    assert inside.do(f"cd /tmp/n && git config --unset user.name && git {commit}").startswith("Ada")


def test_safe_directories_are_exact(box: tuple[Inside, str]) -> None:
    """79: each is one path of ours, from the one file that is ours."""
    inside, _ = box
    told = inside.do("git config --show-origin --get-all safe.directory").splitlines()
    assert {line.split("\t")[0] for line in told} == {"file:/run/executor/gitconfig"}
    places = [line.split("\t")[1] for line in told]
    assert places[:2] == ["/workspace", "/workspace/.git"]
    assert set(places[2:]) <= {"/run/executor/git"}
    code, text = inside.run("echo x >> /run/executor/gitconfig || rm /run/executor/gitconfig")
    assert code != 0, text
    assert inside.run("env | grep -E '^GIT_(CONFIG_(COUNT|KEY)|AUTHOR|COMMITTER)'")[0] == 1


def test_another_repository_takes_from_the_worktree(box: tuple[Inside, str]) -> None:
    """A clone and a fetch of `/workspace` have its commits."""
    inside, start = box
    reset(inside, start)
    inside.do("rm -rf /tmp/c /tmp/f; git clone -q /workspace /tmp/c; git init -q /tmp/f")
    inside.do(f"cd /tmp/f && git fetch -q /workspace && git cat-file -e {start}")
    assert inside.do(f"git -C /tmp/c cat-file -t {start}") == "commit"


def test_a_plain_directory_has_an_identity() -> None:
    """Where there is no repository, one that is made inside can be committed to."""
    for place in open_place():
        worktree = place / "plain"
        worktree.mkdir()
        give(worktree, 1000)
        with opened(place, worktree) as inside:
            inside.do("git init -q . && git commit -q --allow-empty -m x")
            assert inside.do("git log --format='%an <%ae>'") == "executor <executor@localhost>"
    for place in open_place():
        worktree = place / "plain"
        worktree.mkdir()
        give(worktree, 1000)
        with opened(place, worktree, options=GitOptions(name='B "o" \\ t', email="b@x")) as inside:
            inside.do("git init -q . && git commit -q --allow-empty -m x")
            assert inside.do("git log --format='%an <%ae>'") == 'B "o" \\ t <b@x>'


def test_commits_by_us_have_the_identity_too() -> None:
    """Of a turn, and of what was left uncommitted, which is made without the image's settings."""
    for place in open_place():
        origin = make_worktree(place, "main", 1000)
        options = GitOptions(landing="refs")
        with opened(place, origin, options=options) as inside:
            inside.do("echo x >> a.txt && git commit -qam inside && echo y >> a.txt")
        owned = ("-c", "safe.directory=*", "log", "-1", "--format=%an <%ae>")
        assert git(origin, *owned, "refs/loops/inside/head") == "Ada Lovelace <ada@example.org>"


async def ask_without_git(place: Path, worktree: Path) -> tuple[list[Result], list[str]]:
    """What calls for git come to in an image that has none, and the report of that loop."""
    calls = [
        Call("a", "run_command", {"command": "git status"}),
        Call("b", "git_status", {}),
        Call("c", "git_commit", {"message": "m"}),
    ]
    settings = replace(Settings.load(), state_directory=place / "state")
    async with await Engine.connect(settings) as engine, tiny_image(engine) as image:
        spec = LoopSpec(
            worktree=worktree, limits=LIMITS, exec_id="bare", image=image.reference, mode="bypass"
        )
        async with Controller(settings) as controller, controller.open(spec) as loop:
            results = [await loop.execute(call) for call in calls]
        assert loop.report is not None
        return results, loop.report.sentences()


def test_an_image_without_git_says_so() -> None:
    """The shell names what is missing, the git tools too, and the loop ends without a fault."""
    for place in open_place():
        worktree = make_worktree(place, "main", 1000)
        results, sentences = asyncio.run(ask_without_git(place, worktree))
        for result in results:
            words = r"git: (command )?not found|git: there is no such program in this image"
            assert result.is_error and re.search(words, str(result.content)), result
        assert sentences == []


def test_settings_of_the_image_stay(box: tuple[Inside, str]) -> None:
    """The image's own file is read before ours, and one that is missing is no fault."""
    inside, _ = box
    assert inside.do("git config --system --get include.path") == "/etc/gitconfig"
    code, text = inside.run("git config --list --show-scope >/dev/null")
    assert (code, text) == (0, "")


def test_an_index_with_lists_of_another_place_makes_no_noise() -> None:
    """An untracked cache and a file monitor of the host's are not spoken of inside."""
    for place in open_place():
        worktree = make_worktree(place, "linked", os.geteuid())
        git(worktree, "-c", "core.untrackedCache=true", "update-index", "--untracked-cache")
        git(worktree, "-c", "core.untrackedCache=true", "status")
        index = Path(git(worktree, "rev-parse", "--git-path", "index"))
        assert b"UNTR" in (worktree / index).read_bytes()
        give(place, 1000)
        with opened(place, worktree) as inside:
            assert inside.run("git status --porcelain") == (0, "")
            assert inside.run("GIT_OPTIONAL_LOCKS=0 git status --porcelain") == (0, "")


def test_a_sparse_index_is_read_without_a_word() -> None:
    """A worktree with a sparse index shows no change and prints no advice."""
    for place in open_place():
        worktree = make_worktree(place, "linked", os.geteuid())
        git(worktree, "update-index", "-q", "--refresh")
        git(worktree, "sparse-checkout", "set", "--cone", "--sparse-index", "none")
        assert "b/" in git(worktree, "ls-files", "--sparse").splitlines()
        give(place, 1000)
        with opened(place, worktree) as inside:
            assert inside.run("git status --porcelain") == (0, "")
            assert "b/c.txt" in inside.do("git ls-files")
            inside.do("git commit -q --allow-empty -m x && git sparse-checkout disable")
            assert inside.do("cat b/c.txt") == "two"
