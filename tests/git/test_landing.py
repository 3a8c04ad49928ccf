"""What a loop has made lands in the user's repository, or a conflict says why not."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from executor.git.landing import land, prefix
from executor.git.program import Git
from executor.git.values import Arrival, GitError, Head, Landed, Repository
from executor.sandbox.container import Owner
from executor.sandbox.ownership import GitEntry
from tests.git import loops
from tests.git.conftest import HostGit
from tests.git.loops import Loop, commit, describe, git, log, make_origin, start

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


def take(
    repository: Repository,
    arrival: Arrival,
    *,
    advance: bool = True,
    known: dict[str, str] | None = None,
    exec_id: str = "one",
    program: Path | None = None,
) -> Landed:
    """Land it."""
    work = land(Git.find(program), repository, arrival, exec_id, advance=advance, known=known or {})
    return asyncio.run(work)


@pytest.fixture(name="origin")
def _origin(tmp_path: Path) -> Path:
    return make_origin(tmp_path / "origin")


def begun(origin: Path, tmp_path: Path, bare: str | None = None, name: str = "loop") -> Loop:
    return start(describe(origin, bare=bare), tmp_path / name)


# ─── kinds of repositories ──────────────────────────────────────────────────────────


def _main(tmp_path: Path) -> tuple[Path, str | None]:
    return make_origin(tmp_path / "origin"), None


def _linked(tmp_path: Path) -> tuple[Path, str | None]:
    make_origin(tmp_path / "origin")
    git(tmp_path / "origin", "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    return tmp_path / "linked", None


def _detached(tmp_path: Path) -> tuple[Path, str | None]:
    make_origin(tmp_path / "origin")
    git(tmp_path / "origin", "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    return tmp_path / "linked", None


def _bare(tmp_path: Path) -> tuple[Path, str | None]:
    make_origin(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--bare", str(tmp_path / "source"), str(tmp_path / "origin"))
    return tmp_path / "origin", "refs/heads/main"


def _sha256(tmp_path: Path) -> tuple[Path, str | None]:
    return make_origin(tmp_path / "origin", "--object-format=sha256"), None


def _shallow(tmp_path: Path) -> tuple[Path, str | None]:
    source = make_origin(tmp_path / "source")
    commit(source, {"a.txt": "second\n"})
    url = f"file://{source}"
    git(tmp_path, "clone", "-q", "--depth=1", url, str(tmp_path / "origin"))
    return tmp_path / "origin", None


def _borrowing(tmp_path: Path) -> tuple[Path, str | None]:
    make_origin(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--shared", str(tmp_path / "source"), str(tmp_path / "origin"))
    return tmp_path / "origin", None


def _unborn(tmp_path: Path) -> tuple[Path, str | None]:
    (tmp_path / "origin").mkdir()
    git(tmp_path / "origin", "init", "-q", "-b", "main")
    return tmp_path / "origin", None


def _others(tmp_path: Path) -> tuple[Path, str | None]:
    origin = make_origin(tmp_path / "origin")
    for path in [origin, *origin.rglob("*")]:
        os.chown(path, 1234, 1234, follow_symlinks=False)
    for above in tmp_path.parents[:-2]:
        above.chmod(above.stat().st_mode | 0o011)
    tmp_path.chmod(0o711)
    return origin, None


KINDS = [_main, _linked, _detached, _bare, _sha256, _shallow, _borrowing, _unborn]


@pytest.mark.parametrize("options", [[], ["--ref-format=reftable"]])
def test_a_newer_git_lands_too(options: list[str], tmp_path: Path, newer_git: HostGit) -> None:
    """Another release does the same, where refs are tables, too."""
    origin = tmp_path / "origin"
    origin.mkdir()
    environment = {**loops.IDENTITY, "GIT_DEFAULT_HASH": "sha1"}

    def ask(*arguments: str, place: Path = origin) -> str:
        command = [str(newer_git.program), *arguments]
        done = subprocess.run(
            command, cwd=place, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    ask("init", "-q", "-b", "main", *options)
    loops.write(origin, {"a.txt": "a\n"})
    ask("add", ".")
    ask("commit", "-q", "-m", "base")
    base = ask("rev-parse", "HEAD")
    ask("worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    loops.write(origin, {"a.txt": "loop\n"})
    tree = ask("stash", "create")
    tip = ask("commit-tree", "-p", base, "-m", "made inside", f"{tree}^{{tree}}")
    quarantine = tmp_path / "quarantine"
    ask("clone", "-q", "--bare", "--shared", str(origin), str(quarantine))
    repository = Repository(
        git_directory=origin / ".git",
        common_directory=origin / ".git",
        worktree=origin,
        entry=GitEntry.DIRECTORY,
        owner=Owner(os.geteuid(), os.getegid()),
        stores=(origin / ".git/objects",),
        object_format="sha1",
        head=Head("refs/heads/main", base),
    )
    refs = {"head": tip, "heads/main": tip, "heads/side": tip}
    arrival = Arrival(quarantine, refs, "refs/heads/main", 1)
    landed = take(repository, arrival, program=newer_git.program)
    assert (landed.conflict, landed.advanced) == (None, tip)
    assert ask("rev-parse", "main", "refs/loops/one/heads/side").split() == [tip, tip]
    assert ask("status", "--porcelain") == ""
    bare = replace(
        repository, worktree=None, entry=GitEntry.NONE, head=Head("refs/heads/side", base)
    )
    other = take(bare, arrival, exec_id="two", program=newer_git.program)
    assert f"{tmp_path / 'linked'} has it checked out" in str(other.conflict)


@pytest.mark.parametrize("make", [_main, _linked, _detached, _bare, _unborn])
def test_a_branch_goes_on_from_one_landing_to_the_next(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A loop that lands after each turn finds the branch where it took it, and goes on."""
    worktree, bare = make(tmp_path)
    loop = begun(worktree, tmp_path, bare)
    known: dict[str, str] = {}
    for number in range(3):
        tip = loop.commit({"a.txt": f"{number}\n"}, f"turn {number}")
        landed = take(loop.repository, loop.arrive(tmp_path / f"q{number}"), known=known)
        known = dict(landed.refs)
        assert (landed.conflict, landed.advanced) == (None, tip)
    assert log(worktree, loop.repository.head.branch or "HEAD")[:3] == [
        "turn 2",
        "turn 1",
        "turn 0",
    ]


@pytest.mark.parametrize("make", [*KINDS, pytest.param(_others, marks=ROOT)])
def test_commits_land_in_every_kind_of_repository(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The loop's refs are there, the branch is where the loop has it, and the index follows."""
    worktree, bare = make(tmp_path)
    loop = begun(worktree, tmp_path, bare)
    tip = loop.commit({"new/file.txt": "new\n", "a.txt": "changed\n"}, "made inside")
    arrival = loop.arrive(tmp_path / "quarantine")
    landed = take(loop.repository, arrival)
    assert (landed.conflict, landed.advanced) == (None, tip)
    assert landed.refs["refs/loops/one/head"] == tip
    uid = loop.repository.owner.uid
    user = uid if uid != os.geteuid() else None
    (tmp_path / "quarantine").rename(tmp_path / "gone")
    branch = loop.repository.head.branch or "HEAD"
    for name in ("refs/loops/one/head", branch):
        assert git(worktree, "rev-parse", name, uid=user) == tip
    git(worktree, "fsck", "--strict", uid=user)
    for path in loop.repository.common_directory.rglob("*"):
        assert path.stat().st_uid == uid, path
    if bare is None:
        git(loop.place, "checkout-index", "-a", "-f", f"--prefix={worktree}/")
        assert git(worktree, "diff", "--cached", "HEAD", uid=user) == ""
        assert git(worktree, "diff", uid=user) == ""


def test_what_is_asked_for_lands_and_nothing_else(origin: Path, tmp_path: Path) -> None:
    """Without `advance`, only refs of the loop and objects are new in the repository."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "1\n"})
    before = loops.digest(origin)
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"), advance=False)
    after = loops.digest(origin)
    assert landed.branch is None
    assert {name: after[name] for name in before} == before
    new = after.keys() - before.keys()
    assert all(name.startswith((".git/objects/", ".git/refs/loops/one/")) for name in new)


def test_a_loop_that_made_nothing_leaves_every_byte(origin: Path, tmp_path: Path) -> None:
    """An arrival without refs changes nothing of the repository (H4)."""
    loop = begun(origin, tmp_path)
    before = loops.digest(origin)
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert (dict(landed.refs), landed.advanced, landed.conflict) == ({}, None, None)
    assert loops.digest(origin) == before


def test_many_objects_land_as_a_pack(origin: Path, tmp_path: Path) -> None:
    """A hundred objects and more come as one pack, fewer as files, as with git's own fetch."""
    loop = begun(origin, tmp_path)
    loop.commit({f"many/{n}.txt": f"{n}\n" for n in range(150)})
    take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert len(list((origin / ".git/objects/pack").glob("*.pack"))) == 1
    git(origin, "fsck", "--strict")


def test_shared_repositories_keep_their_modes(tmp_path: Path) -> None:
    """Files that land in a repository with `core.sharedRepository` can be written by its group."""
    origin = make_origin(tmp_path / "origin", "--shared=group")
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "1\n"})
    take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    ref = origin / ".git/refs/loops/one/head"
    assert ref.stat().st_mode & 0o060 == 0o060
    assert ref.parent.stat().st_mode & 0o2070 == 0o2070


def test_everything_that_a_loop_has_lands(origin: Path, tmp_path: Path) -> None:
    """Branches, tags, stashes and the uncommitted snapshot get refs; the index gets none."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "1\n"})
    git(loop.place, "tag", "-a", "-m", "v1", "v1")
    git(loop.place, "branch", "side/way")
    (loop.place / "a.txt").write_text("2\n")
    stash = git(loop.place, "stash", "create")
    arrival = loop.arrive(tmp_path / "quarantine", {"stash/0": stash, "uncommitted": stash})
    landed = take(loop.repository, arrival)
    names = {name.removeprefix("refs/loops/one/") for name in landed.refs}
    assert names == {"head", "heads/main", "heads/side/way", "tags/v1", "stash/0", "uncommitted"}
    shown = git(origin, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags")
    assert shown == "refs/heads/main"
    assert any("branch side/way refs/loops/one/heads/side/way" in note for note in landed.notes)


# ─── the loop's refs ────────────────────────────────────────────────────────────────


def test_a_loop_replaces_what_it_landed_before(origin: Path, tmp_path: Path) -> None:
    """What this loop landed is replaced, even where it was rewritten inside."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "1\n"})
    first = take(loop.repository, loop.arrive(tmp_path / "q1"), advance=False)
    git(loop.place, "commit", "-q", "--amend", "-m", "amended")
    arrival = loop.arrive(tmp_path / "q2")
    second = take(loop.repository, arrival, advance=False, known=dict(first.refs))
    assert second.conflict is None
    assert log(origin, "refs/loops/one/head")[0] == "amended"


def test_commits_of_another_loop_of_the_name_are_not_lost(origin: Path, tmp_path: Path) -> None:
    """They stay, nothing lands over them, and the command that is told makes the way free."""
    loop = begun(origin, tmp_path)
    old = loop.commit({"a.txt": "1\n"}, "of the first loop")
    take(loop.repository, loop.arrive(tmp_path / "q1"), advance=False)
    other = begun(origin, tmp_path, name="other")
    new = other.commit({"a.txt": "2\n"}, "of the second loop")
    arrival = other.arrive(tmp_path / "q2")
    landed = take(other.repository, arrival)
    assert (dict(landed.refs), landed.advanced) == ({}, None)
    assert git(origin, "rev-parse", "refs/loops/one/head", "main").split() == [
        old,
        loop.repository.head.commit,
    ]
    command = str(landed.conflict).split("`")[1]
    subprocess.run(["sh", "-c", command], cwd=origin, env=loops.IDENTITY, check=True)
    assert take(other.repository, arrival, advance=False).conflict is None
    assert git(origin, "rev-parse", "refs/loops/one/head") == new
    assert old in git(origin, "for-each-ref", "--format=%(objectname)", "refs/heads")


def test_a_tag_of_another_loop_of_the_name_is_not_lost(origin: Path, tmp_path: Path) -> None:
    """What is written in a tag is in no branch, even if its commit is."""
    for number in range(2):
        loop = begun(origin, tmp_path, name=f"loop{number}")
        git(loop.place, "tag", "-a", "-m", f"said by {number}", "v1")
        landed = take(loop.repository, loop.arrive(tmp_path / f"q{number}"), advance=False)
    assert "left commits" in str(landed.conflict)
    assert "said by 0" in git(origin, "cat-file", "-p", "refs/loops/one/tags/v1")


def test_commits_that_a_branch_has_may_be_replaced(origin: Path, tmp_path: Path) -> None:
    """A ref that another loop of the name left gives way where its commit is on a branch."""
    loop = begun(origin, tmp_path)
    old = loop.commit({"a.txt": "1\n"})
    take(loop.repository, loop.arrive(tmp_path / "q1"), advance=False)
    git(origin, "branch", "kept", old)
    other = start(loop.repository, tmp_path / "other")
    new = other.commit({"a.txt": "2\n"})
    landed = take(other.repository, other.arrive(tmp_path / "q2"), advance=False)
    assert (landed.conflict, landed.refs["refs/loops/one/head"]) == (None, new)


@pytest.mark.parametrize(("before", "after"), [("x", "x/y"), ("x/y", "x"), ("x/y/z", "x")])
def test_a_branch_can_become_a_directory_of_branches(
    before: str, after: str, origin: Path, tmp_path: Path
) -> None:
    """Names that can't both be are landed all the same, and the older commit keeps a ref."""
    loop = begun(origin, tmp_path)
    git(loop.place, "switch", "-q", "-c", before)
    old = loop.commit({"a.txt": "1\n"})
    first = take(loop.repository, loop.arrive(tmp_path / "q1"), advance=False)
    git(loop.place, "switch", "-q", "-c", "free", "main")
    git(loop.place, "branch", "-q", "-D", before)
    git(loop.place, "switch", "-q", "-c", after)
    new = loop.commit({"a.txt": "2\n"})
    arrival = loop.arrive(tmp_path / "q2")
    landed = take(loop.repository, arrival, advance=False, known=dict(first.refs))
    assert landed.conflict is None
    assert git(origin, "rev-parse", f"refs/loops/one/heads/{after}") == new
    assert git(origin, "rev-parse", f"refs/loops/one/replaced/{old}") == old


@pytest.mark.parametrize("name", ["refs/loops", "refs/loops/one"])
def test_a_ref_where_the_directory_should_be_is_a_conflict(
    name: str, origin: Path, tmp_path: Path
) -> None:
    """It stays, and the command that is told makes the way free."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "1\n"})
    git(origin, "update-ref", name, "HEAD")
    arrival = loop.arrive(tmp_path / "quarantine")
    landed = take(loop.repository, arrival)
    assert (dict(landed.refs), landed.advanced) == ({}, None)
    command = str(landed.conflict).split("`")[1]
    subprocess.run(["sh", "-c", command], cwd=origin, env=loops.IDENTITY, check=True)
    assert take(loop.repository, arrival).conflict is None


@pytest.mark.parametrize(
    ("exec_id", "place"),
    [
        ("loop-1", "refs/loops/loop-1/"),
        ("a..b", "refs/loops/a.%2eb/"),
        ("a...b", "refs/loops/a.%2e.b/"),
        ("a.", "refs/loops/a%2e/"),
        ("a..", "refs/loops/a.%2e/"),
        ("a.lock", "refs/loops/a%2elock/"),
    ],
)
def test_every_name_of_a_loop_has_a_place(exec_id: str, place: str) -> None:
    """Git takes each of them as part of a ref's name."""
    assert prefix(exec_id) == place
    subprocess.run(["git", "check-ref-format", f"{place}head"], check=True)


@pytest.mark.parametrize("exec_id", ["-x", "a/b", "", "A", "a b", "$(x)", "a\n", "../x", ".a"])
def test_no_other_name_gets_one(exec_id: str) -> None:
    """What is no name of a loop never gets into a ref (H10)."""
    with pytest.raises(ValueError, match="no name of a loop"):
        prefix(exec_id)


@pytest.mark.parametrize(
    "name",
    [
        "heads/a..b",
        "heads/a\0update refs/heads/main",
        "heads/a\nb",
        "heads/a b",
        "heads/a.lock",
        "heads/a.lock/b",
        "heads/.hidden/../x",
        "heads/",
        "heads//a",
        "heads/a/",
        "heads/@{1}",
        "remotes/origin/x",
        "../../heads/main",
        "-d",
        "HEAD",
        "heads/\x1b[2J",
    ],
)
def test_a_crafted_name_is_not_landed(name: str, origin: Path, tmp_path: Path) -> None:
    """Names that git would refuse or that lead elsewhere change nothing (H10)."""
    loop = begun(origin, tmp_path)
    tip = loop.commit({"a.txt": "1\n"})
    arrival = replace(loop.arrive(tmp_path / "quarantine"), refs={name: tip})
    before = loops.digest(origin)
    with pytest.raises(GitError, match="can't be landed"):
        take(loop.repository, arrival)
    assert loops.digest(origin) == before


@pytest.mark.parametrize("name", ["-rf", "$(touch x)", "a;b", "`x`", "--all", "ü", "'q'", "|&"])
def test_a_strange_branch_lands_under_its_name(name: str, origin: Path, tmp_path: Path) -> None:
    """What git allows in names is taken as text, never as an option or a command (H10)."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "1\n"})
    ref = f"refs/heads/{name.replace(' ', '-')}"
    git(loop.place, "update-ref", ref, "HEAD")
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert landed.conflict is None
    assert f"refs/loops/one/{ref.removeprefix('refs/')}" in landed.refs
    assert log(origin, f"refs/loops/one/{ref.removeprefix('refs/')}")[0] == "made inside"


# ─── the branch ─────────────────────────────────────────────────────────────────────


def _obey(landed: Landed, place: Path) -> None:
    """Run the last command that the conflict tells."""
    for command in str(landed.conflict).split("`")[1::2]:
        if " log " not in command:
            subprocess.run(["sh", "-ec", command], cwd=place, env=loops.IDENTITY, check=True)


def _give_files(loop: Loop, worktree: Path) -> None:
    """The loop's worktree is the user's: its files are there whatever lands."""
    loops.write(
        worktree,
        {
            name: (loop.place / name).read_text()
            for name in git(loop.place, "ls-files").splitlines()
        },
    )


def test_a_branch_that_moved_stays(origin: Path, tmp_path: Path) -> None:
    """The user's commit is kept, the loop's lands below its refs, and the commands merge it."""
    loop = begun(origin, tmp_path)
    tip = loop.commit({"a.txt": "loop\n"})
    own = commit(origin, {"own.txt": "user\n"}, "of the user")
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert landed.advanced is None
    assert "has moved" in str(landed.conflict)
    assert git(origin, "rev-parse", "main", "refs/loops/one/heads/main").split() == [own, tip]
    _give_files(loop, origin)
    _obey(landed, origin)
    assert {"of the user", "made inside"} <= set(log(origin, "main"))


def test_a_rewritten_branch_stays(origin: Path, tmp_path: Path) -> None:
    """It is not replaced by itself; the command that is told takes it and leaves the files."""
    loop = begun(origin, tmp_path)
    git(loop.place, "commit", "-q", "--amend", "-m", "rewritten")
    tip = loop.commit({"a.txt": "loop\n"})
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert (landed.advanced, log(origin, "main")) == (None, ["base"])
    _give_files(loop, origin)
    _obey(landed, origin)
    assert git(origin, "rev-parse", "main") == tip
    assert git(origin, "status", "--porcelain") == ""


def test_a_rewritten_branch_of_a_bare_repository_stays(tmp_path: Path) -> None:
    """The command that is told takes it, if it is still where it was."""
    worktree, bare = _bare(tmp_path)
    loop = begun(worktree, tmp_path, bare)
    git(loop.place, "commit", "-q", "--amend", "-m", "rewritten")
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert (landed.advanced, log(worktree, "main")) == (None, ["base"])
    _obey(landed, worktree)
    assert log(worktree, "main") == ["rewritten"]


def _switched(other: Path) -> None:
    git(other, "switch", "-q", "main")


def _rebasing(other: Path) -> None:
    git(other, "switch", "-q", "main")
    commit(other, {"a.txt": "side\n"})
    git(other, "switch", "-q", "-c", "else", "main~1")
    commit(other, {"a.txt": "other\n"})
    git(other, "switch", "-q", "main")
    subprocess.run(["git", "rebase", "else"], cwd=other, env=loops.IDENTITY, check=False)
    assert (other / ".git/rebase-merge").exists()


def _bisecting(other: Path) -> None:
    git(other, "switch", "-q", "main")
    commit(other, {"a.txt": "1\n"})
    commit(other, {"a.txt": "2\n"})
    git(other, "bisect", "start", "main", "main~2")


@pytest.mark.parametrize("busy", [_switched, _rebasing, _bisecting])
def test_a_branch_that_another_worktree_has_stays(busy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Checked out, being rebased or bisected elsewhere: it is not moved under that one's feet."""
    origin = make_origin(tmp_path / "origin")
    busy(origin)
    loop = begun(origin, tmp_path, "refs/heads/main")
    tip = loop.commit({"loop.txt": "loop\n"})
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert landed.advanced is None
    assert f"{origin} has it checked out" in str(landed.conflict)
    assert git(origin, "rev-parse", "main") == loop.repository.head.commit
    assert git(origin, "rev-parse", "refs/loops/one/head") == tip
    if busy is _switched:
        _obey(landed, origin)
        assert git(origin, "rev-parse", "main") == tip


def test_a_branch_that_a_linked_worktree_has_stays(origin: Path, tmp_path: Path) -> None:
    """A linked worktree counts as the main one does."""
    git(origin, "branch", "side")
    loop = begun(origin, tmp_path, "refs/heads/side")
    git(origin, "worktree", "add", "-q", str(tmp_path / "linked"), "side")
    tip = loop.commit({"loop.txt": "loop\n"})
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert f"{tmp_path / 'linked'} has it checked out" in str(landed.conflict)
    _obey(landed, origin)
    assert git(origin, "rev-parse", "side") == tip


def test_a_head_that_was_switched_stays(origin: Path, tmp_path: Path) -> None:
    """The worktree is on another branch now, so neither branch nor index is touched."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "loop\n"})
    git(origin, "switch", "-q", "-c", "other")
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert (landed.advanced, log(origin, "main")) == (None, ["base"])
    assert "is on other now" in str(landed.conflict)
    assert git(origin, "status", "--porcelain") == ""


@pytest.mark.parametrize("step", ["merge", "cherry-pick"])
def test_a_merge_that_is_going_on_is_not_lost(step: str, origin: Path, tmp_path: Path) -> None:
    """The branch stays: `git commit` with the loop's index would record it without its changes."""
    git(origin, "checkout", "-q", "-b", "side")
    commit(origin, {"a.txt": "theirs\n", "new.txt": "new\n"})
    git(origin, "checkout", "-q", "main")
    tip = commit(origin, {"a.txt": "mine\n"})
    loop = begun(origin, tmp_path)
    made = loop.commit({"b.txt": "loop\n"})
    subprocess.run(
        ["git", "-C", origin, step, "side"], env=loops.IDENTITY, capture_output=True, check=False
    )
    index = (origin / ".git/index").read_bytes()
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert landed.advanced is None
    assert landed.refs["refs/loops/one/head"] == made
    assert f"a {step} is going on" in str(landed.conflict)
    assert git(origin, "rev-parse", "HEAD") == tip
    assert (origin / ".git/index").read_bytes() == index


def test_a_merge_that_the_loop_has_ended_lands(origin: Path, tmp_path: Path) -> None:
    """What the user had begun and the loop committed is on the branch, once."""
    git(origin, "checkout", "-q", "-b", "side")
    side = commit(origin, {"new.txt": "new\n"})
    git(origin, "checkout", "-q", "main")
    commit(origin, {"a.txt": "mine\n"})
    loop = begun(origin, tmp_path)
    git(origin, "merge", "--no-commit", "side")
    git(loop.place, "merge", "-q", "--no-edit", side)
    tip = git(loop.place, "rev-parse", "HEAD")
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert (landed.conflict, landed.advanced) == (None, tip)
    git(origin, "commit", "-q", "--allow-empty", "-m", "mine")
    assert git(origin, "rev-list", "--parents", "-1", "HEAD").split()[1:] == [tip]


def test_a_branch_that_the_loop_left_alone_stays(origin: Path, tmp_path: Path) -> None:
    """Commits on another branch inside don't move the one that the worktree is on."""
    loop = begun(origin, tmp_path)
    git(loop.place, "switch", "-q", "-c", "feature")
    loop.commit({"a.txt": "loop\n"})
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert (landed.advanced, landed.conflict, log(origin, "main")) == (None, None, ["base"])
    (note,) = landed.notes
    subprocess.run(["sh", "-c", note.split("`")[1]], env=loops.IDENTITY, check=True)
    assert log(origin, "feature")[0] == "made inside"


def test_the_reflog_says_who_moved_the_branch(origin: Path, tmp_path: Path) -> None:
    """The old place of the branch can be found in its reflog, as with any commit."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "loop\n"})
    take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    for name in ("main", "HEAD"):
        assert git(origin, "log", "-g", "-1", "--format=%gs", name) == "executor: loop one"
    assert git(origin, "rev-parse", "main@{1}") == loop.repository.head.commit


# ─── the index ──────────────────────────────────────────────────────────────────────


def test_what_was_staged_inside_is_staged(origin: Path, tmp_path: Path) -> None:
    """The index outside is that of the loop, so a change that it staged stays one."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "loop\n"})
    loops.write(loop.place, {"b.txt": "staged\n"})
    git(loop.place, "add", "b.txt")
    take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    _give_files(loop, origin)
    assert git(origin, "status", "--porcelain") == "M  b.txt"


def test_what_git_knows_of_unchanged_files_stays(origin: Path, tmp_path: Path) -> None:
    """Entries of the same content keep their times and their skip-worktree bits."""
    git(origin, "update-index", "--skip-worktree", "d/c.txt")
    git(origin, "update-index", "--assume-unchanged", "b.txt")
    before = git(origin, "ls-files", "--debug", "b.txt", "d/c.txt")
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "loop\n"})
    assert take(loop.repository, loop.arrive(tmp_path / "quarantine")).conflict is None
    assert git(origin, "ls-files", "--debug", "b.txt", "d/c.txt") == before
    assert git(origin, "ls-files", "-v", "d/c.txt") == "S d/c.txt"


@pytest.mark.parametrize("options", [["--cone"], ["--cone", "--sparse-index"], ["--no-cone"]])
def test_a_sparse_checkout_stays_sparse(options: list[str], origin: Path, tmp_path: Path) -> None:
    """Files outside its patterns are left out, and are not taken for deleted."""
    git(origin, "sparse-checkout", "set", *options, "e" if "--no-cone" not in options else "/a.txt")
    commit(origin, {"a.txt": "more\n"})
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "loop\n", "d/new.txt": "loop\n"})
    assert take(loop.repository, loop.arrive(tmp_path / "quarantine")).conflict is None
    loops.write(origin, {"a.txt": "loop\n", "d/new.txt": "loop\n"})
    assert git(origin, "ls-files", "-t", "d/c.txt") == "S d/c.txt"
    assert git(origin, "status", "--porcelain") == ""
    assert not (origin / "d/c.txt").exists()


def test_a_split_index_stays_readable(origin: Path, tmp_path: Path) -> None:
    """A shared part of the index is found by its name as before."""
    git(origin, "config", "core.splitIndex", "true")
    git(origin, "update-index", "--split-index")
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "loop\n"})
    assert take(loop.repository, loop.arrive(tmp_path / "quarantine")).conflict is None
    _give_files(loop, origin)
    assert git(origin, "status", "--porcelain") == ""


def test_no_content_filter_and_no_hook_runs(origin: Path, tmp_path: Path) -> None:
    """Nothing that the repository would execute at a checkout or a commit is executed."""
    canary = tmp_path / "canary"
    loop = begun(origin, tmp_path)
    for key in ("filter.x.clean", "filter.x.smudge", "core.fsmonitor", "core.editor"):
        git(origin, "config", key, f"touch {canary}; cat")
    for name in ("post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc"):
        hook = origin / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {canary}\n")
        hook.chmod(0o755)
    loop.commit({"a.txt": "loop\n", ".gitattributes": "* filter=x\n"})
    assert take(loop.repository, loop.arrive(tmp_path / "quarantine")).advanced
    assert not canary.exists()


def test_a_held_index_keeps_the_branch_where_it_is(origin: Path, tmp_path: Path) -> None:
    """Branch and index move together; the command that is told moves both later."""
    loop = begun(origin, tmp_path)
    tip = loop.commit({"a.txt": "loop\n"})
    (origin / ".git/index.lock").touch()
    landed = take(loop.repository, loop.arrive(tmp_path / "quarantine"))
    assert (landed.advanced, log(origin, "main")) == (None, ["base"])
    assert f"holds {origin}/.git/index.lock for" in str(landed.conflict)
    assert git(origin, "rev-parse", "refs/loops/one/head") == tip
    assert not list((origin / ".git").glob("executor-index-*"))
    (origin / ".git/index.lock").unlink()
    _give_files(loop, origin)
    _obey(landed, origin)
    assert git(origin, "rev-parse", "main") == tip
    assert git(origin, "status", "--porcelain") == ""


# ─── at the same time ───────────────────────────────────────────────────────────────


def test_two_landings_at_once_both_land(origin: Path, tmp_path: Path) -> None:
    """Each has its refs; of two that advance one branch, one does and the other is told."""
    several = [begun(origin, tmp_path, name=f"loop{n}") for n in range(4)]
    for n, loop in enumerate(several):
        loop.commit({f"{n}.txt": "loop\n"})
    arrivals = [loop.arrive(tmp_path / f"q{n}") for n, loop in enumerate(several)]

    async def all_at_once() -> list[Landed]:
        git_program = Git.find()
        return await asyncio.gather(
            *(
                land(git_program, loop.repository, arrival, f"l{n}", advance=True, known={})
                for n, (loop, arrival) in enumerate(zip(several, arrivals, strict=True))
            )
        )

    landed = asyncio.run(all_at_once())
    assert sum(one.advanced is not None for one in landed) == 1
    assert sum("has moved" in str(one.conflict) for one in landed) == 3
    for n, loop in enumerate(several):
        head = git(loop.place, "rev-parse", "HEAD")
        assert git(origin, "rev-parse", f"refs/loops/l{n}/head") == head
    git(origin, "fsck", "--strict")


def test_the_users_commits_never_fail_for_a_landing(origin: Path, tmp_path: Path) -> None:
    """Two hundred commits of the user's all succeed while landings go on beside (casebook 80)."""
    loop = begun(origin, tmp_path)
    script = (
        "i=0; while [ $i -lt 200 ]; do echo $i > own.txt; git add own.txt || exit 1; "
        'git commit -q -m "own $i" || exit 1; i=$((i+1)); done'
    )
    user = subprocess.Popen(["sh", "-c", script], cwd=origin, env=loops.IDENTITY)
    known: dict[str, str] = {}
    count = 0
    try:
        while user.poll() is None:
            loop.commit({"a.txt": f"{count}\n"})
            arrival = loop.arrive(tmp_path / f"q{count}")
            landed = take(loop.repository, arrival, known=known)
            known = dict(landed.refs)
            count += 1
    finally:
        user.kill() if user.poll() is None else None
        assert user.wait() == 0
    assert count > 3
    assert len(log(origin, "main")) == 201
    assert git(origin, "rev-parse", "refs/loops/one/head") == git(loop.place, "rev-parse", "HEAD")
    git(origin, "fsck", "--strict")


# ─── ends in the middle ─────────────────────────────────────────────────────────────

KILLED = """
import asyncio, os, pickle, signal, sys
from executor.git import landing, staging
from executor.git.program import Git
point = sys.argv[1]
repository, arrival = pickle.load(sys.stdin.buffer)

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

plain = Git.run

async def run(self, arguments, **given):
    if point == f"before {arguments[0]}":
        die()
    done = await plain(self, arguments, **given)
    if point == f"after {arguments[0]}":
        die()
    return done

Git.run = run
if point == "staged":
    stage = staging.stage
    async def staged(*given):
        await stage(*given)
        die()
    staging.stage = staged
if point == "half finished":
    staging.Index.finish = lambda self, *, taken: (
        os.rename("index.lock", "index", src_dir_fd=self._directory, dst_dir_fd=self._directory),
        die(),
    )
asyncio.run(landing.land(Git.find(), repository, arrival, "one", advance=True, known={}))
"""


@pytest.mark.parametrize(
    ("point", "moved"),
    [
        ("before pack-objects", False),
        ("after pack-objects", False),
        ("before unpack-objects", False),
        ("after unpack-objects", False),
        ("after merge-base", False),
        ("staged", False),
        ("before update-ref", False),
        ("after update-ref", True),
        ("half finished", True),
    ],
)
def test_a_landing_that_was_killed_can_be_done_again(
    point: str, moved: bool, origin: Path, tmp_path: Path
) -> None:
    """All of it is there or nothing, and the next landing leaves no trace of the first."""
    loop = begun(origin, tmp_path)
    tip = loop.commit({"a.txt": "loop\n"})
    arrival = loop.arrive(tmp_path / "quarantine")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, point],
        input=pickle.dumps((loop.repository, arrival)),
        check=False,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    base = loop.repository.head.commit
    assert git(origin, "rev-parse", "main") == (tip if moved else base)
    assert bool(git(origin, "for-each-ref", "refs/loops")) is moved
    git(origin, "fsck", "--strict")
    landed = take(loop.repository, arrival)
    assert landed.conflict is None
    assert git(origin, "rev-parse", "main", "refs/loops/one/head").split() == [tip, tip]
    _give_files(loop, origin)
    assert git(origin, "status", "--porcelain") == ""
    left = {path.name for path in (origin / ".git").iterdir()}
    assert not {name for name in left if name.endswith(".lock") or name.startswith("executor")}
    assert not (arrival.directory / "landing").exists()


def test_a_quarantine_without_its_objects_lands_nothing(origin: Path, tmp_path: Path) -> None:
    """Refs never point to what is not there."""
    loop = begun(origin, tmp_path)
    loop.commit({"a.txt": "loop\n"})
    arrival = loop.arrive(tmp_path / "quarantine")
    for pack in (arrival.directory / "objects/pack").iterdir():
        pack.unlink()
    before = loops.digest(origin)
    with pytest.raises(GitError):
        take(loop.repository, arrival)
    assert loops.digest(origin) == before


@ROOT
def test_a_landing_of_root_writes_as_the_owner(tmp_path: Path) -> None:
    """Where the repository is another user's, the index that git makes there is his."""
    worktree, _ = _others(tmp_path)
    loop = begun(worktree, tmp_path)
    assert loop.repository.owner == Owner(1234, 1234)
    loop.commit({"a.txt": "loop\n"})
    assert take(loop.repository, loop.arrive(tmp_path / "quarantine")).conflict is None
    assert (worktree / ".git/index").stat().st_uid == 1234
    git(worktree, "commit", "-q", "--allow-empty", "-m", "goes on", uid=1234)
