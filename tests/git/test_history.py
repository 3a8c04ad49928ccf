"""Whole loops with git by the controller: what is shown, what comes back, what a kill leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from executor.controller import Controller
from executor.errors import ConfigError
from executor.git.records import Records, State, recover
from executor.git.uids import lease, owners_of_worktrees
from executor.loop import Loop
from executor.model import Call, GitOptions, LoopSpec, Warned
from executor.settings import Settings
from tests.conftest import LIMITS
from tests.git.boxes import git, make_origin, open_place

UID = 1000
DEADLINE = 180
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of others")


@pytest.fixture(name="place")
def _place() -> Iterator[Path]:
    yield from open_place()


def give(directory: Path, uid: int = UID) -> None:
    """All below a directory is that user's, where we may say so."""
    if os.geteuid() == 0:
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, uid, uid, follow_symlinks=False)


def settings(place: Path) -> Settings:
    """With a state directory beside the repositories."""
    return replace(Settings.load(), state_directory=place / "state")


def spec(worktree: Path | None, options: GitOptions | None = None, **more: object) -> LoopSpec:
    """Of a loop that asks nobody."""
    made = LoopSpec(
        worktree=worktree or "",
        limits=LIMITS,
        exec_id="one",
        mode="bypass",
        git=options or GitOptions(),
    )
    return replace(made, **more)  # type: ignore[arg-type]


class Run:
    """An open loop, and what its commands say."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._count = 0

    async def sh(self, command: str) -> tuple[int | None, str]:
        """Exit code and output."""
        self._count += 1
        call = Call(f"call{self._count}", "run_command", {"command": command})
        result = await self.loop.execute(call)
        assert result.structured is not None, result
        told = result.structured
        return told["exit_code"], f"{told['stdout']}{told['stderr']}"

    async def do(self, command: str) -> str:
        """What a command prints that must succeed."""
        code, text = await self.sh(command)
        assert code == 0, (command, text)
        return text.rstrip("\n")


@asynccontextmanager
async def opened(place: Path, wanted: LoopSpec) -> AsyncIterator[Run]:
    """A loop of a controller of its own."""
    async with Controller(settings(place)) as controller, controller.open(wanted) as loop:
        yield Run(loop)


async def one(place: Path, wanted: LoopSpec, *commands: str) -> tuple[list[str], Loop]:
    """What commands of a whole loop print; the loop, closed."""
    async with opened(place, wanted) as run:
        told = [await run.do(command) for command in commands]
    return told, run.loop


def left(place: Path) -> list[str]:
    """What there is of loops below the state directory."""
    state = place / "state"
    return sorted(
        str(path.relative_to(state))
        for name in ("git", "worktrees", "controllers")
        for path in (state / name).glob("*")
    )


# ─── what is shown ──────────────────────────────────────────────────────────────────


def _dirty(worktree: Path) -> None:
    (worktree / "a.txt").write_text("staged\n")
    git(worktree, "add", "a.txt")
    (worktree / "a.txt").write_text("staged\nand more\n")
    (worktree / "new.txt").write_text("untracked\n")
    (worktree / "both.txt").write_text("added\n")
    git(worktree, "add", "both.txt")


def _main(place: Path) -> Path:
    return make_origin(place)


def _linked(place: Path) -> Path:
    git(make_origin(place), "worktree", "add", "-q", "-b", "work", str(place / "worktree"))
    return place / "worktree"


def _detached(place: Path) -> Path:
    git(make_origin(place), "worktree", "add", "-q", "--detach", str(place / "worktree"), "HEAD~1")
    return place / "worktree"


def _unborn(place: Path) -> Path:
    git(place, "init", "-q", "-b", "main", "origin")
    (place / "origin" / "new.txt").write_text("x\n")
    return place / "origin"


def _changed(place: Path) -> Path:
    worktree = _linked(place)
    _dirty(worktree)
    return worktree


def _sha256(place: Path) -> Path:
    worktree = make_origin(place, "--object-format=sha256")
    _dirty(worktree)
    return worktree


def _shallow(place: Path) -> Path:
    git(place, "clone", "-q", "--depth=1", f"file://{make_origin(place)}", "clone")
    return place / "clone"


def _borrowing(place: Path) -> Path:
    git(place, "clone", "-q", "--shared", str(make_origin(place)), "clone")
    return place / "clone"


def _split(place: Path) -> Path:
    worktree = _linked(place)
    git(worktree, "update-index", "--split-index")
    _dirty(worktree)
    return worktree


def _sparse(place: Path) -> Path:
    worktree = _linked(place)
    git(worktree, "sparse-checkout", "set", "--no-cone", "/a.txt")
    return worktree


def _crlf(place: Path) -> Path:
    origin = make_origin(place)
    git(origin, "config", "core.autocrlf", "true")
    (origin / "a.txt").unlink()
    git(origin, "checkout", "-q", "a.txt")
    assert b"\r\n" in (origin / "a.txt").read_bytes()
    return origin


KINDS = {
    made.__name__[1:]: made
    for made in (
        *(_main, _linked, _detached, _unborn, _changed, _sha256),
        *(_shallow, _borrowing, _split, _sparse, _crlf),
    )
}


@pytest.mark.parametrize("kind", KINDS)
def test_inside_shows_what_outside_shows(place: Path, kind: str) -> None:
    """Status, HEAD and branch are the same; the host's `.git` stays, and nothing is left."""
    worktree = KINDS[kind](place)
    give(place)
    questions = [
        "git status --porcelain",
        "git symbolic-ref -q HEAD || echo detached",
        "git rev-parse -q --verify HEAD || echo unborn",
    ]
    outside = [
        os.fsdecode(subprocess.check_output(["sh", "-c", question], cwd=worktree, env=_USER))
        for question in questions
    ]
    entry = worktree / ".git"
    before = entry.read_bytes() if entry.is_file() else None
    told, loop = asyncio.run(one(place, spec(worktree), *questions))
    assert told == [text.rstrip("\n") for text in outside]
    assert (entry.read_bytes() if entry.is_file() else None) == before
    assert git(worktree, "status", "--porcelain") == outside[0].rstrip("\n")
    assert loop.report is not None
    assert loop.report.faults == ()
    assert left(place) == []


_USER = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_OPTIONAL_LOCKS": "0",
}


def test_a_partial_clone_is_refused(place: Path) -> None:
    """Its missing objects can't be fetched without a network, and that is said."""
    origin = make_origin(place)
    git(origin, "config", "uploadpack.allowFilter", "true")
    git(place, "clone", "-q", "--filter=blob:none", f"file://{origin}", "clone")
    give(place)
    with pytest.raises(ConfigError, match=r"partial|promisor"):
        asyncio.run(one(place, spec(place / "clone"), "true"))
    assert left(place) == []


# ─── --repo ─────────────────────────────────────────────────────────────────────────


def _bare(place: Path) -> Path:
    git(place, "clone", "-q", "--bare", str(make_origin(place)), "bare.git")
    bare = place / "bare.git"
    git(bare, "update-ref", "refs/remotes/origin/far", "refs/heads/side")
    give(place)
    return bare


@pytest.mark.parametrize(("branch", "source"), [("side", "side"), ("fresh", "main")])
def test_a_branch_of_a_bare_repository(place: Path, branch: str, source: str) -> None:
    """It is checked out clean, its commits land on it, and nothing is left of the worktree."""
    bare = _bare(place)
    start = git(bare, "rev-parse", source)
    wanted = spec(None, repo=bare, branch=branch)
    made = "echo x > n.txt && git add n.txt && git commit -qm made && git rev-parse HEAD"
    (status, head, new), loop = asyncio.run(
        one(place, wanted, "git status --porcelain", "git rev-parse HEAD", made)
    )
    assert (status, head) == ("", start)
    assert loop.report is not None, "it is over"
    assert git(bare, "rev-parse", branch) == new, loop.report.sentences()
    assert left(place) == []


def test_what_is_uncommitted_of_a_worktree_of_ours_lands_aside(place: Path) -> None:
    """The worktree goes, and what was left in it is a commit of its own."""
    bare = _bare(place)
    _, loop = asyncio.run(one(place, spec(None, repo=bare, branch="side"), "echo x > n.txt"))
    assert loop.report is not None
    assert git(bare, "show", "refs/loops/one/uncommitted:n.txt") == "x"
    assert left(place) == []


# ─── coming back ────────────────────────────────────────────────────────────────────

COMMIT = "echo more >> a.txt && git commit -qam made && git rev-parse HEAD"


@pytest.mark.parametrize("landing", ["keep", "refs", "branch"])
@pytest.mark.parametrize("kind", ["main", "linked", "sha256"])
def test_each_way_of_landing(place: Path, kind: str, landing: str) -> None:
    """Kept: the origin has nothing new. Refs: below the loop's name. Branch: it advances."""
    worktree = KINDS[kind](place)
    start = git(worktree, "rev-parse", "HEAD")
    give(place)
    (new,), loop = asyncio.run(one(place, spec(worktree, GitOptions(landing=landing)), COMMIT))
    assert loop.report is not None
    refs = git(worktree, "for-each-ref", "--format=%(objectname)", "refs/loops/one/head")
    assert refs == ("" if landing == "keep" else new), loop.report.sentences()
    assert git(worktree, "rev-parse", "HEAD") == (new if landing == "branch" else start)
    if landing == "branch" and kind != "sha256":
        assert git(worktree, "status", "--porcelain") == ""
    assert [name.split("/")[0] for name in left(place)] == (["git"] if landing == "keep" else [])


async def _turns(place: Path, wanted: LoopSpec, *commands: str) -> tuple[list[str], Loop]:
    warned = []
    async with opened(place, wanted) as run:
        for number, command in enumerate(commands):
            call = Call(f"t{number}", "run_command", {"command": command})
            async for event in run.loop.stream([call]):
                if isinstance(event, Warned):
                    warned.append(event.message)
    return warned, run.loop


def test_a_commit_per_turn(place: Path) -> None:
    """Each turn that changed something is one commit on the branch, with the wanted words."""
    worktree = _linked(place)
    start = git(worktree, "rev-parse", "HEAD")
    give(place)
    options = GitOptions(
        commit=True, message="turn of {exec_id}", paths=("a.txt",), name="Bo", email="bo@x"
    )
    warned, _ = asyncio.run(
        _turns(place, spec(worktree, options), "echo 1 >> a.txt", "echo 2 >> a.txt; echo > z.txt")
    )
    assert warned == []
    told = git(worktree, "log", "--format=%an %ae %s", f"{start}..HEAD").splitlines()
    assert told == ["Bo bo@x turn of one"] * 2
    assert git(worktree, "status", "--porcelain") == "?? z.txt"
    assert left(place) == []


def test_a_commit_that_fails_is_a_warning(place: Path) -> None:
    """The turn's results are what they were, and one event says why nothing was committed."""
    worktree = _linked(place)
    give(place)
    broken = 'echo 1 >> a.txt; rm -rf "$(git rev-parse --git-dir)"/refs; true'
    warned, loop = asyncio.run(_turns(place, spec(worktree, GitOptions(commit=True)), broken))
    assert len(warned) == 1
    assert "not committed" in warned[0]
    assert loop.report is not None
    assert loop.report.faults
    assert (worktree / "a.txt").read_text().endswith("1\n")


# ─── boxes that go ──────────────────────────────────────────────────────────────────


async def _lost(place: Path, wanted: LoopSpec, command: str | None) -> tuple[bool, Loop]:
    """A loop whose box is killed after a command; whether another box was opened for its end."""
    async with opened(place, wanted) as run:
        if command is not None:
            await run.do(command)
        name = run.loop._lane.name
        killed = ["docker", "kill", name]
        process = await asyncio.create_subprocess_exec(*killed, stdout=subprocess.DEVNULL)
        await process.wait()
        while run.loop._lane.is_open:
            await asyncio.sleep(0.02)
    return run.loop._lane.replaced > 0, run.loop


def test_a_lost_box_is_not_replaced_for_nothing(place: Path) -> None:
    """A loop that changed no ref needs no box at its end."""
    worktree = _linked(place)
    give(place)
    is_replaced, loop = asyncio.run(_lost(place, spec(worktree), "git status; git diff"))
    assert not is_replaced
    assert loop.report is not None
    assert loop.report.sentences() == []
    assert left(place) == []


@pytest.mark.parametrize(
    "command", [COMMIT, "git tag t HEAD~1", "git stash list; echo x >> a.txt; git stash"]
)
def test_a_lost_box_is_replaced_for_what_it_made(place: Path, command: str) -> None:
    """Commits, tags and stashes come out by another box."""
    worktree = _linked(place)
    give(place)
    is_replaced, loop = asyncio.run(
        _lost(place, spec(worktree, GitOptions(landing="refs")), command)
    )
    assert is_replaced
    assert loop.report is not None
    assert git(worktree, "for-each-ref", "refs/loops/one/"), loop.report.sentences()


def test_a_box_lost_in_mid_commit(place: Path) -> None:
    """A stale lock of the killed git is no reason to lose the commits before it."""
    worktree = _linked(place)
    give(place)
    hang = f'{COMMIT}; touch "$(git rev-parse --git-dir)"/index.lock'
    _, loop = asyncio.run(_lost(place, spec(worktree, GitOptions(landing="branch")), hang))
    assert loop.report is not None
    assert git(worktree, "log", "-1", "--format=%s") == "made", loop.report.sentences()


def test_time_that_is_over_loses_no_commit(place: Path) -> None:
    """The box is taken away at the end of the loop's time; what was committed is not lost."""
    worktree = _linked(place)
    give(place)
    wanted = spec(worktree, GitOptions(landing="refs"), limits=replace(LIMITS, max_seconds=6))

    async def run() -> Loop:
        async with opened(place, wanted) as run:
            await run.do(COMMIT)
            while not run.loop._lane._is_closed:
                await asyncio.sleep(0.05)
        return run.loop

    loop = asyncio.run(run())
    assert loop.report is not None
    landed = git(worktree, "for-each-ref", "refs/loops/one/head")
    kept = Records(place / "state").find("one")
    assert landed or (kept is not None and kept.record.state is State.UNEXPORTED)


def test_two_loops_on_one_worktree(place: Path) -> None:
    """Both commit; the second landing is told of the conflict, and nothing is lost."""
    worktree = _linked(place)
    give(place)
    options = GitOptions(landing="branch")
    first, second = (spec(worktree, options, exec_id=name) for name in ("one", "two"))

    async def run() -> list[str]:
        async with Controller(settings(place)) as controller, controller.open(first) as one:
            async with controller.open(second) as two:
                await Run(one).do(COMMIT)
                await Run(two).do("git add -A; git commit -qm other --allow-empty")
            await Run(one).do("true")
        assert one.report is not None and two.report is not None
        return [*one.report.sentences(), *two.report.sentences()]

    told = asyncio.run(run())
    subjects = {
        git(worktree, "log", "-1", "--format=%s", f"refs/loops/{name}/head")
        for name in ("one", "two")
    }
    assert subjects == {"made", "other"}
    assert any("refs/loops/one" in sentence for sentence in told), told


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2, 0.5, 1.0, 1.6, 2.4])
def test_a_cancelled_run_leaves_nothing(place: Path, seconds: float) -> None:
    """Whenever it is cancelled, no box, lock or half-made entry stays."""
    bare = _bare(place)

    async def run() -> None:
        task = asyncio.create_task(one(place, spec(None, repo=bare, branch="side"), "sleep 30"))
        await asyncio.wait({task}, timeout=seconds)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(run())
    assert left(place) == []
    assert _boxes(place) == ""


# ─── the controller is killed ───────────────────────────────────────────────────────

CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from executor.git import history, landing, quarantine
from executor.git.records import Entry
from tests.git.test_history import COMMIT, one, spec
from executor.model import GitOptions

owner, name, when = {point!r}
holder = {{"History": history.History, "Entry": Entry, "quarantine": quarantine,
          "landing": landing, "history": history}}[owner]
old = getattr(holder, name)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if asyncio.iscoroutinefunction(old):
    async def new(*a, **k):
        if when == "before":
            die()
        await old(*a, **k)
        die()
else:
    def new(*a, **k):
        if when == "before":
            die()
        old(*a, **k)
        die()
setattr(holder, name, new)
place = Path({place!r})
asyncio.run(one(place, spec(**{arguments!r}, options=GitOptions(landing="branch")),
    COMMIT, "git init -q nested; true"))
"""

POINTS = [
    *(
        (owner, name, when)
        for owner, name in (
            ("History", "place"),
            ("History", "collect"),
            ("History", "settle"),
            ("Entry", "arrived"),
            ("Entry", "save"),
            ("quarantine", "_put"),
        )
        for when in ("before", "after")
    ),
    ("History", "_close", "before"),
    ("History", "_look", "before"),
    ("landing", "land", "after"),
    ("History", "_prepare", "after"),
]
KILLED_AFTER_COMMIT = {"collect", "settle", "arrived", "_put", "_close", "_look", "land"}


def _boxes(place: Path) -> str:
    label = f"label=executor.state={(place / 'state').resolve()}"
    return subprocess.check_output(["docker", "ps", "-aq", "--filter", label], text=True).strip()


def kill(place: Path, point: tuple[str, str, str], **arguments: object) -> None:
    """A controller that is killed there."""
    root = str(Path(__file__).resolve().parents[2])
    code = CHILD.format(root=root, point=point, place=str(place), arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stderr.decode()[-2000:])


async def _start_again(place: Path) -> None:
    """The next controller, until its first look is over."""
    async with Controller(settings(place)):
        pass


def import_(place: Path, worktree: Path) -> None:
    """Take over what is kept, by the command line."""
    subprocess.run(
        [sys.executable, "-m", "executor", "git", "import", "one"],
        env={**os.environ, "EXECUTOR_STATE_DIR": str(place / "state")},
        cwd=worktree,
        check=True,
        capture_output=True,
        timeout=DEADLINE,
    )


@pytest.mark.parametrize("made", ["linked", "repo"])
@pytest.mark.parametrize("point", POINTS, ids=["-".join(point) for point in POINTS])
def test_a_killed_controller_loses_nothing(
    place: Path, point: tuple[str, str, str], made: str
) -> None:
    """The next start leaves no box, and what was committed has landed or can be imported."""
    if made == "linked":
        worktree = _linked(place)
        give(place)
        arguments: dict[str, object] = {"worktree": str(worktree)}
        branch = "work"
    else:
        worktree = _bare(place)
        arguments = {"worktree": None, "repo": str(worktree), "branch": "side"}
        branch = "side"
    kill(place, point, **arguments)
    asyncio.run(_start_again(place))
    assert _boxes(place) == ""
    assert [name for name in left(place) if name.startswith("controllers")] == []
    if made == "linked" and point[1] in KILLED_AFTER_COMMIT:
        assert not (worktree / "nested" / ".git").exists()
    if point[1] in KILLED_AFTER_COMMIT:
        if git(worktree, "log", "-1", "--format=%s", branch) != "made":
            import_(place, worktree)
        assert git(worktree, "log", "-1", "--format=%s", branch) == "made"
    asyncio.run(_start_again(place))
    rest = [entry.record.state for entry in Records(place / "state").entries()]
    assert rest in ([], [State.UNEXPORTED])


def test_the_refs_of_a_quarantine_are_taken_up(place: Path) -> None:
    """What came before its record was written is known again after a crash."""
    worktree = _linked(place)
    give(place)
    kill(place, ("quarantine", "_put", "after"), worktree=str(worktree))
    entry = Records(place / "state").find("one")
    assert entry is not None
    assert entry.record.came is None
    asyncio.run(_start_again(place))
    entry = Records(place / "state").find("one")
    assert entry is not None
    assert entry.record.came is not None
    assert entry.record.came.branch == "refs/heads/work"
    assert git(worktree, "rev-parse", "HEAD") != entry.record.came.refs["head"]
    assert recover(place / "state") == []


@ROOT_ONLY
def test_a_uid_is_not_leased_while_its_worktree_is_there(place: Path) -> None:
    """A controller was killed, and its box may run: its uid is nobody else's."""
    bare = _bare(place)
    kill(place, ("History", "collect", "before"), worktree=None, repo=str(bare), branch="side")
    state = place / "state"
    taken = owners_of_worktrees(state)
    assert len(taken) == 1
    first = min(taken)
    with lease(state, first, first + 1, taken=taken) as found:
        assert found.uid == first + 1
    asyncio.run(_start_again(place))
    assert _boxes(place) == ""


@ROOT_ONLY
def test_a_worktree_of_ours_in_a_file_system_of_its_own(place: Path) -> None:
    """With `repo` and quota loop-ext4 commits land, and nothing is left."""
    bare = _bare(place)
    wanted = spec(None, repo=bare, branch="side", quota="loop-ext4")
    (new,), loop = asyncio.run(one(place, wanted, COMMIT))
    assert loop.report is not None
    assert git(bare, "rev-parse", "side") == new, loop.report.sentences()
    assert left(place) == []


@ROOT_ONLY
def test_git_in_a_file_system_of_its_own(place: Path) -> None:
    """With quota loop-ext4 commits land, and nothing of the file system is left."""
    worktree = _linked(place)
    give(place)
    wanted = spec(worktree, GitOptions(landing="branch"), quota="loop-ext4")
    (new,), loop = asyncio.run(one(place, wanted, COMMIT))
    assert loop.report is not None
    assert git(worktree, "rev-parse", "HEAD") == new, loop.report.sentences()
    assert left(place) == []
    assert list((place / "state" / "kept").glob("*")) == []


@ROOT_ONLY
@pytest.mark.parametrize("name", ["collect", "settle"])
@pytest.mark.parametrize("made", ["linked", "repo"])
def test_a_kill_with_a_file_system_of_its_own(place: Path, made: str, name: str) -> None:
    """What had come can be imported; of the rest it is said in which image it is."""
    if made == "linked":
        arguments: dict[str, object] = {"worktree": str(_linked(place))}
        give(place)
    else:
        arguments = {"worktree": None, "repo": str(_bare(place)), "branch": "side"}
    kill(place, ("History", name, "before"), quota="loop-ext4", **arguments)
    asyncio.run(_start_again(place))
    entry = Records(place / "state").find("one")
    assert entry is not None
    assert entry.record.state is State.UNEXPORTED
    assert "image" in str(entry.record.failure)
    assert list((place / "state" / "kept").glob("*.ext4"))
    assert (entry.record.came is not None) == (name == "settle")


# ─── what else a loop has ───────────────────────────────────────────────────────────


def test_a_repository_that_is_made_inside_is_set_aside(place: Path) -> None:
    """In the worktree and in a directory beside it; plain git outside then fires nothing."""
    worktree = _linked(place)
    beside = place / "beside"
    beside.mkdir()
    give(place)
    wanted = spec(worktree, add_dirs=(f"{beside}:rw",))
    commands = ("git init -q sub", "git init -q /workspaces/beside/sub")
    _, loop = asyncio.run(one(place, wanted, *commands))
    assert not (worktree / "sub" / ".git").exists()
    assert not (beside / "sub" / ".git").exists()
    assert loop.report is not None
    assert len([line for line in loop.report.sentences() if "sub/.git" in line]) == 2


def test_an_idle_box_is_given_back(place: Path) -> None:
    """What it committed comes out by another box; the loop's git directory is the same."""
    worktree = _linked(place)
    give(place)
    limits = replace(LIMITS, idle_seconds=1)
    wanted = spec(worktree, GitOptions(landing="branch"), limits=limits)

    async def run() -> str:
        async with opened(place, wanted) as run:
            new = await run.do(COMMIT)
            while run.loop._lane.is_open:
                await asyncio.sleep(0.05)
        return new

    assert asyncio.run(run()) == git(worktree, "rev-parse", "HEAD")
    assert left(place) == []


def test_a_cancelled_turn_is_not_committed_by_itself(place: Path) -> None:
    """What it changed is in the commit of the next turn, or of the loop's end."""
    worktree = _linked(place)
    start = git(worktree, "rev-parse", "HEAD")
    give(place)

    async def run() -> None:
        async with opened(place, spec(worktree, GitOptions(commit=True))) as run:
            call = Call("a", "run_command", {"command": "echo x >> a.txt; sleep 60"})
            turn = asyncio.create_task(run.loop.turn([call]))
            while not (worktree / "a.txt").read_text().endswith("x\n"):
                await asyncio.sleep(0.02)
            turn.cancel()
            await asyncio.wait({turn})
            assert git(worktree, "rev-parse", "HEAD") == start

    asyncio.run(run())
    assert git(worktree, "diff", "--name-only", start, "HEAD") == "a.txt"
    assert left(place) == []


@ROOT_ONLY
def test_a_loop_of_another_uid(place: Path) -> None:
    """With `uid` the box works as that one, and its commits come back."""
    worktree = _linked(place)
    give(place, 1234)
    wanted = spec(worktree, GitOptions(landing="branch"), uid=1234)
    (user, new), _ = asyncio.run(one(place, wanted, "id -u", COMMIT))
    assert user == "1234"
    assert git(worktree, "rev-parse", "HEAD") == new
    assert (worktree / ".git").stat().st_uid == 1234


@ROOT_ONLY
def test_a_worktree_of_another_user_than_its_repository(place: Path) -> None:
    """It is refused, with both uids named, and nothing is left."""
    worktree = _linked(place)
    give(place)
    give(worktree, 1234)
    with pytest.raises(ConfigError, match=r"uid 1000.* uid 1234"):
        asyncio.run(one(place, spec(worktree), "true"))
    assert left(place) == []


def test_the_quota_counts_the_own_git_directory(place: Path) -> None:
    """What is written there ends the box as if it were in the worktree."""
    worktree = _linked(place)
    give(place)
    limits = replace(LIMITS, disk_bytes="8m")
    fill = 'head -c 64m /dev/zero > "$(git rev-parse --git-dir)/fill"; sleep 60'

    async def run() -> str:
        async with opened(place, spec(worktree, limits=limits, quota="watch")) as run:
            result = await run.loop.execute(Call("a", "run_command", {"command": fill}))
        return str(result.content)

    assert "disk" in asyncio.run(run())


@pytest.mark.parametrize("kind", ["empty", "submodule", "old submodule", "lfs"])
def test_what_does_not_work_inside_is_said(place: Path, kind: str) -> None:
    """78, 81: a notice names submodules and large files, and status shows no change."""
    worktree = _linked(place)
    if kind != "lfs":
        other = make_origin_at(place / "other")
        git(worktree, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other))
        git(worktree, "commit", "-qm", "submodule")
        if kind == "empty":
            git(worktree, "submodule", "deinit", "-q", "-f", "--all")
        elif kind == "old submodule":
            # As `git clone` made them once: with the git directory in its place.
            names = [path for path in worktree.iterdir() if (path / ".git").is_file()]
            real = git(names[0], "rev-parse", "--absolute-git-dir")
            (names[0] / ".git").unlink()
            shutil.copytree(real, names[0] / ".git")
            git(place, "config", "-f", f"{names[0]}/.git/config", "--unset", "core.worktree")
    else:
        (worktree / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
        git(worktree, "add", "-A")
        git(worktree, "commit", "-qm", "lfs")
    give(place)
    work = "git status --porcelain && git diff && git add -A && git commit -qam x --allow-empty"
    more = "git stash list && cat origin/* 2>/dev/null | head -c 1"
    (said, files), loop = asyncio.run(one(place, spec(worktree), work, more))
    assert said == ""
    assert bool(files) == kind.endswith("submodule")
    assert loop.report is not None
    assert loop.report.faults == ()
    assert loop.report.commits == 1
    assert git(worktree, "status", "--porcelain") == ""


def make_origin_at(directory: Path) -> Path:
    """Another repository."""
    directory.mkdir()
    return make_origin(directory)


def test_no_git_on_the_host_is_said_to_the_tools(place: Path) -> None:
    """The loop works, and its surroundings say why there is no git."""
    worktree = _linked(place)
    give(place)

    async def run() -> tuple[str | None, str]:
        other = replace(settings(place), git_program=Path("/nonexistent/git"))
        async with Controller(other) as controller, controller.open(spec(worktree)) as loop:
            return loop._surroundings.no_git, await Run(loop).do("echo works")

    reason, told = asyncio.run(run())
    assert told == "works"
    assert reason is not None
    assert "/nonexistent/git" in reason
