"""Checkouts of our own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from executor.errors import ConfigError
from executor.git import private
from executor.git.checkout import check_out, starting_at
from executor.git.program import Git
from executor.git.repository import discover_bare_or_not
from executor.git.values import GitError, Head, Repository, Sharing
from tests.git.boxes import OWNER, commit, git, inside, make_origin, open_place

SHARINGS = list(Sharing)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that the owners of worktrees may enter, too."""
    yield from open_place()


def found(origin: Path) -> Repository:
    """What `--repo` finds."""
    return asyncio.run(discover_bare_or_not(Git.find(), origin))


def start(repository: Repository, branch: str) -> Repository:
    """What a checkout of a branch starts with."""
    return asyncio.run(starting_at(Git.find(), repository, branch))


def checked_out(
    origin: Path, branch: str, place: Path, sharing: Sharing = Sharing.SHARED
) -> tuple[Repository, Head]:
    """A checkout in `place/tree` with its private directory `place/git`, still ours."""

    async def run() -> tuple[Repository, Head]:
        program = Git.find()
        repository = await discover_bare_or_not(program, origin)
        repository = await starting_at(program, repository, branch)
        await private.prepare(program, repository, place / "git", sharing, is_exact_stat=False)
        head = await check_out(program, repository, branch, place / "tree", place / "git")
        return repository, head

    return asyncio.run(run())


def tree_of(origin: Path, *lines: str) -> str:
    """Name of a tree of any entries, however bad: `mode type object name`."""
    body = b""
    for line in lines:
        mode, _, name, path = line.split(" ", 3)
        body += f"{mode.lstrip('0')} {path}\0".encode() + bytes.fromhex(name)
    return git(origin, "hash-object", "-t", "tree", "--literally", "-w", "--stdin", given=body)


def branch_of(origin: Path, tree: str, branch: str = "bad") -> None:
    """A branch with one commit of a tree."""
    name = git(origin, "commit-tree", tree, "-m", "bad")
    git(origin, "update-ref", f"refs/heads/{branch}", name)


# ─── which branch ───────────────────────────────────────────────────────────────────


def test_a_local_branch(tmp_path: Path) -> None:
    """A branch of the repository is taken where it is."""
    origin = make_origin(tmp_path)
    repository = start(found(origin), "side")
    assert repository.head == Head("refs/heads/side", git(origin, "rev-parse", "side"))
    assert repository.worktree is None
    assert not any("is new" in notice for notice in repository.notices)


def test_the_branch_of_one_remote(tmp_path: Path) -> None:
    """A branch that exactly one remote has is made from there, and follows it."""
    origin = make_origin(tmp_path)
    git(tmp_path, "clone", "-q", str(origin), "clone")
    repository = start(found(tmp_path / "clone"), "side")
    assert repository.head == Head("refs/heads/side", git(origin, "rev-parse", "side"))
    assert repository.notices[-1] == "Branch side is new, from origin/side."
    assert ("branch.side.remote", "origin") in repository.settings


def test_the_branch_of_two_remotes_is_refused(tmp_path: Path) -> None:
    """Git would not guess either; the error says which there are."""
    origin = make_origin(tmp_path)
    git(tmp_path, "clone", "-q", str(origin), "clone")
    git(tmp_path / "clone", "remote", "add", "other", str(origin))
    git(tmp_path / "clone", "fetch", "-q", "other")
    with pytest.raises(ConfigError, match="several remotes \\(origin, other\\)"):
        start(found(tmp_path / "clone"), "side")


def test_a_new_branch(tmp_path: Path) -> None:
    """Any other name is a new branch, from the repository's HEAD; that is said."""
    origin = make_origin(tmp_path)
    repository = start(found(origin), "feature/one")
    name = git(origin, "rev-parse", "main")
    assert repository.head == Head("refs/heads/feature/one", name)
    assert repository.notices[-1] == f"Branch feature/one is new, from main ({name[:12]})."
    assert git(origin, "branch", "--list", "feature/*") == ""


def test_of_a_repository_without_commits(tmp_path: Path) -> None:
    """The branch is unborn, and its first commit can be made inside."""
    git(tmp_path, "init", "-q", "-b", "main", "--bare", "origin")
    repository, head = checked_out(tmp_path / "origin", "first", tmp_path)
    assert head == Head("refs/heads/first", None)
    private.give_away(tmp_path / "tree", OWNER)
    private.give_away(tmp_path / "git", OWNER)
    with inside(repository, tmp_path / "tree", tmp_path / "git") as box:
        box.do("echo a > a && git add a && git commit -qm a")
        assert box.do("git branch") == "* first\n"


@pytest.mark.parametrize(
    "branch",
    ["-f", "--orphan", "", "a..b", "a b", "HEAD", "@{-1}", "a\0b", "x.lock", "/a", "a~1", "a\nb"],
)
def test_names_that_no_branch_has_are_refused(tmp_path: Path, branch: str) -> None:
    """H10: a name is a name, never an option or an expression."""
    with pytest.raises(ConfigError, match="is no name of a branch"):
        start(found(make_origin(tmp_path)), branch)


@pytest.mark.parametrize("branch", ["$(id)", "a;b", "`id`", "x&y", "é"])
def test_names_that_shells_would_read_are_only_names(tmp_path: Path, branch: str) -> None:
    """No shell reads a name."""
    _, head = checked_out(make_origin(tmp_path), branch, tmp_path)
    assert head.branch == f"refs/heads/{branch}"


def test_names_that_stand_in_each_others_way(tmp_path: Path) -> None:
    """No branch is made below another one."""
    with pytest.raises(ConfigError, match="can't be made beside the branch side"):
        start(found(make_origin(tmp_path)), "side/more")


# ─── the files ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("bare", [False, True])
def test_git_works_in_a_checkout(tmp_path: Path, sharing: Sharing, bare: bool) -> None:
    """Status is clean without a look into any file, and commits can be made."""
    origin = make_origin(tmp_path)
    (origin / "dirty.txt").write_text("not in the checkout")
    git(origin, "add", "dirty.txt")
    if bare:
        git(tmp_path, "clone", "-q", "--bare", str(origin), "bare")
        origin = tmp_path / "bare"
    repository, head = checked_out(origin, "side", tmp_path, sharing)
    for path in (tmp_path / "tree").iterdir():
        if path.is_file() and path.name != ".git":
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    private.give_away(tmp_path / "tree", OWNER)
    private.give_away(tmp_path / "git", OWNER)
    with inside(repository, tmp_path / "tree", tmp_path / "git", sharing) as box:
        assert box.do("git status --porcelain -b") == "## side\n"
        assert box.do("git rev-parse HEAD").strip() == head.commit
        assert box.do("ls") == "a.txt\nb\nside.txt\n"
        box.do("echo x > n && git add n && git commit -qm n && git fsck --strict")
    assert (tmp_path / "tree/n").read_text() == "x\n"


def test_nothing_is_hashed_again(tmp_path: Path) -> None:
    """Files that were given away are known by their size and time."""
    repository, _ = checked_out(make_origin(tmp_path), "side", tmp_path)
    # Of files as new as the index git looks into the content.
    index = tmp_path / "git/index"
    os.utime(index, (index.stat().st_atime, index.stat().st_mtime + 10))
    (tmp_path / "tree/a.txt").chmod(0)
    private.give_away(tmp_path / "tree", OWNER)
    private.give_away(tmp_path / "git", OWNER)
    with inside(repository, tmp_path / "tree", tmp_path / "git") as box:
        assert box.sh("cat a.txt").code != 0
        assert box.do("git status --porcelain") == ""


def test_the_repository_does_not_know_of_it(tmp_path: Path) -> None:
    """Nothing is registered, nothing changes in the repository."""
    origin = make_origin(tmp_path)
    before = sorted(str(path) for path in origin.rglob("*"))
    checked_out(origin, "main", tmp_path)
    assert sorted(str(path) for path in origin.rglob("*")) == before
    assert len(git(origin, "worktree", "list").splitlines()) == 1


def test_a_directory_with_files_is_refused(tmp_path: Path) -> None:
    """No file is written over."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        checked_out(make_origin(tmp_path), "main", tmp_path)
    assert (tmp_path / "tree/a.txt").read_text() == "mine"


def test_line_ends_and_encodings(tmp_path: Path) -> None:
    """Attributes and settings say what is written."""
    origin = make_origin(tmp_path)
    attributes = "*.win text eol=crlf\n*.u16 text working-tree-encoding=UTF-16LE\n*.bin -text\n"
    files = {".gitattributes": attributes, "a.win": "a\n", "b.bin": "b\n", "c.cs": "c\n"}
    commit(origin, files, "ends")
    (origin / "d.u16").write_bytes("d\n".encode("utf-16-le"))
    git(origin, "add", "d.u16")
    git(origin, "commit", "-qm", "encoded")
    git(origin, "config", "core.autocrlf", "true")
    checked_out(origin, "main", tmp_path)
    tree = tmp_path / "tree"
    assert (tree / "a.win").read_bytes() == b"a\r\n"
    assert (tree / "b.bin").read_bytes() == b"b\n"
    assert (tree / "c.cs").read_bytes() == b"c\r\n"
    assert (tree / "d.u16").read_bytes() == "d\r\n".encode("utf-16-le")


def test_filters_and_hooks_do_not_run(tmp_path: Path) -> None:
    """Files that a filter makes stay pointers, also where the filter is required."""
    origin = make_origin(tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\n"
    commit(origin, {".gitattributes": "*.big filter=lfs diff=lfs\n", "a.big": pointer}, "large")
    for key in ("smudge", "clean", "process"):
        git(origin, "config", f"filter.lfs.{key}", f"touch {tmp_path}/canary")
    git(origin, "config", "filter.lfs.required", "true")
    git(origin, "config", "core.fsmonitor", f"touch {tmp_path}/canary")
    hook = origin / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/canary\n")
    hook.chmod(0o755)
    checked_out(origin, "main", tmp_path)
    assert (tmp_path / "tree/a.big").read_text() == pointer
    assert not (tmp_path / "canary").exists()


def test_all_files_are_there_where_the_repository_is_sparse(tmp_path: Path) -> None:
    """What the user left out of his own checkout is no matter of another one."""
    origin = make_origin(tmp_path)
    git(origin, "sparse-checkout", "set", "--cone", "--sparse-index", "nothing")
    repository, _ = checked_out(origin, "main", tmp_path)
    assert sorted(os.listdir(tmp_path / "tree")) == [".git", "a.txt", "b", "d.txt"]
    private.give_away(tmp_path / "tree", OWNER)
    private.give_away(tmp_path / "git", OWNER)
    with inside(repository, tmp_path / "tree", tmp_path / "git") as box:
        assert box.do("git status --porcelain") == ""


def test_submodules_stay_empty(tmp_path: Path) -> None:
    """A submodule is an empty directory, and that is said."""
    origin = make_origin(tmp_path)
    name = git(origin, "rev-parse", "HEAD")
    git(origin, "update-index", "--add", "--cacheinfo", f"160000,{name},sub/module")
    git(origin, "commit", "-qm", "submodule")
    repository, _ = checked_out(origin, "main", tmp_path)
    assert repository.submodules == ("sub/module",)
    assert "Submodules are left empty: sub/module." in repository.notices
    assert os.listdir(tmp_path / "tree/sub/module") == []


# ─── hostile commits ────────────────────────────────────────────────────────────────


def test_a_link_leads_no_file_outside(tmp_path: Path) -> None:
    """A tree with a link `a` and a file `a/b` writes nothing where the link leads."""
    origin = make_origin(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    led = git(origin, "hash-object", "-w", "--stdin", given=os.fsencode(outside))
    content = git(origin, "hash-object", "-w", "--stdin", given=b"x")
    below = tree_of(origin, f"100644 blob {content} b")
    for number, entries in enumerate(
        [
            (f"120000 blob {led} a", f"40000 tree {below} a"),
            (f"40000 tree {below} a", f"120000 blob {led} a"),
        ]
    ):
        branch_of(origin, tree_of(origin, *entries), f"bad{number}")
        place = tmp_path / str(number)
        place.mkdir()
        with suppress(GitError):
            checked_out(origin, f"bad{number}", place)
        assert os.listdir(outside) == []


@pytest.mark.parametrize("name", [".git", ".GIT", "git~1", ".g\u200cit", "..", "."])
def test_names_that_spell_git_are_refused(tmp_path: Path, name: str) -> None:
    """No file comes where git, here or elsewhere, would take it for its own."""
    origin = make_origin(tmp_path)
    content = git(origin, "hash-object", "-w", "--stdin", given=b"x")
    below = tree_of(origin, f"100644 blob {content} config")
    branch_of(origin, tree_of(origin, f"40000 tree {below} {name}"))
    with pytest.raises(GitError, match="invalid path"):
        checked_out(origin, "bad", tmp_path)
    assert not (tmp_path / "config").exists()


def test_names_that_differ_in_case_are_two_files(tmp_path: Path) -> None:
    """Where file names have case, both are there."""
    origin = make_origin(tmp_path)
    commit(origin, {"Case": "1", "case": "2"}, "cases")
    checked_out(origin, "main", tmp_path)
    assert {"Case", "case"} <= set(os.listdir(tmp_path / "tree"))


def test_a_link_instead_of_a_directory_of_the_tree(tmp_path: Path) -> None:
    """Links of a commit are made, and are not followed by giving the tree away."""
    origin = make_origin(tmp_path)
    kept = tmp_path / "kept"
    kept.write_text("kept")
    (origin / "link").symlink_to(kept)
    git(origin, "add", "link")
    git(origin, "commit", "-qm", "link")
    checked_out(origin, "main", tmp_path)
    private.give_away(tmp_path / "tree", OWNER)
    assert (tmp_path / "tree/link").readlink() == kept
    assert kept.stat().st_uid == os.geteuid()


def test_a_missing_object_is_a_clear_error(tmp_path: Path) -> None:
    """What can't be checked out says why, and the stores' names are the box's again."""
    origin = make_origin(tmp_path)
    name = git(origin, "rev-parse", "main:a.txt")
    (origin / ".git/objects" / name[:2] / name[2:]).unlink()
    with pytest.raises(GitError, match="main can't be checked out: .*" + name):
        checked_out(origin, "main", tmp_path)
    alternates = (tmp_path / "git/objects/info/alternates").read_text()
    assert alternates == "/run/executor/objects/0\n"


# ─── whose the repository is ────────────────────────────────────────────────────────


def test_stores_whose_names_have_colons(tmp_path: Path) -> None:
    """A path is one path, whatever is in it."""
    place = tmp_path / 'a:b"c\\d'
    place.mkdir()
    _, head = checked_out(make_origin(place), "main", tmp_path)
    assert head.commit is not None
    assert (tmp_path / "tree/a.txt").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("sharing", SHARINGS)
def test_another_users_repository(tmp_path: Path, sharing: Sharing) -> None:
    """As root, a user's repository is read as that user; nothing is left of the copy."""
    origin = make_origin(tmp_path)
    subprocess.run(["chown", "-R", str(OWNER), origin], check=True)
    checked_out(origin, "side", tmp_path, sharing)
    assert (tmp_path / "tree/side.txt").read_text() == "side\n"
    assert not list((tmp_path / "git").glob("objects-*"))
    assert list((tmp_path / "git/objects/pack").iterdir()) == [] or sharing is not Sharing.SHARED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could read what the user can't")
def test_a_store_that_its_owner_cant_read_is_no_way_in(tmp_path: Path) -> None:
    """A user who borrows from root's repository gets nothing of it checked out by root."""
    secret = make_origin(tmp_path)
    name = git(secret, "rev-parse", "main")
    secret.chmod(0o700)
    git(tmp_path, "init", "-q", "-b", "main", "user")
    user = tmp_path / "user"
    (user / ".git/objects/info/alternates").write_text(f"{secret}/.git/objects\n")
    subprocess.run(["chown", "-R", str(OWNER), user], check=True)
    repository = replace(found(secret), git_directory=user / ".git", owner=OWNER)
    repository = replace(repository, common_directory=user / ".git", refs={"refs/heads/main": name})
    with pytest.raises(GitError):
        asyncio.run(starting_at(Git.find(), repository, "main"))


def test_many_files(tmp_path: Path) -> None:
    """A checkout of 5,000 files takes seconds, as it does git itself."""
    origin = make_origin(tmp_path)
    commit(origin, {f"d{n % 50}/f{n}.txt": f"{n}\n" for n in range(5000)}, "many")
    began = time.monotonic()
    checked_out(origin, "main", tmp_path)
    private.give_away(tmp_path / "tree", OWNER)
    assert time.monotonic() - began < 30
    assert sum(len(files) for _, _, files in os.walk(tmp_path / "tree")) == 5004
