"""What is found of the repository that a worktree belongs to, and what is refused."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  # before a process becomes somebody else
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from executor.errors import ConfigError
from executor.git.meaning import attributes, public_address, settings
from executor.git.program import Git
from executor.git.repository import discover, discover_bare_or_not
from executor.git.values import Head, Person, Repository
from executor.sandbox.container import Owner
from executor.sandbox.ownership import GitEntry, open_worktree
from tests.git import loops
from tests.git.conftest import HostGit
from tests.git.others import OTHER, STRANGER, give, needs_root, shared_place
from tests.git.test_program import trap

git = loops.git


def find(place: Path, program: Path | None = None) -> Repository:
    """What is found of a worktree's repository."""
    with open_worktree(place) as worktree:
        found = asyncio.run(discover(Git.find(program), worktree))
    assert found is not None
    return found


def known(found: Repository) -> dict[str, str]:
    """Its settings; of several the last."""
    return dict(found.settings)


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user has none but what a test gives him."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")


@pytest.fixture(name="shared")
def _shared() -> Iterator[Path]:
    with shared_place() as place:
        yield place


@pytest.fixture(name="origin")
def _origin(tmp_path: Path) -> Path:
    return loops.make_origin(tmp_path / "origin")


# ─── layouts ────────────────────────────────────────────────────────────────────────


def test_there_may_be_none(tmp_path: Path) -> None:
    """A directory without `.git` has no repository, whatever is above it."""
    below = loops.make_origin(tmp_path / "o") / "d"
    with open_worktree(below) as worktree:
        assert asyncio.run(discover(Git.find(), worktree)) is None


def test_a_main_checkout(host_git: HostGit, origin: Path) -> None:
    """Of a main checkout everything is below its `.git`."""
    commit = git(origin, "rev-parse", "HEAD")
    git(origin, "tag", "v1")
    found = find(origin, host_git.program)
    directory = origin / ".git"
    status = directory.stat()
    assert found.git_directory == found.common_directory == directory
    assert (found.worktree, found.entry) == (origin, GitEntry.DIRECTORY)
    assert found.owner == Owner(status.st_uid, status.st_gid)
    assert found.stores == (directory / "objects",)
    assert found.object_format == "sha1"
    assert found.head == Head("refs/heads/main", commit)
    assert found.refs == {"refs/heads/main": commit, "refs/tags/v1": commit}
    assert (found.shallow, found.sparse, found.person, found.notices) == (None, None, None, ())


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_linked_worktree(
    host_git: HostGit, origin: Path, tmp_path: Path, is_relative: bool
) -> None:
    """Casebook 77: a linked worktree has a directory of its own in the repository's."""
    linked = tmp_path / "linked"
    git(origin, "worktree", "add", "-q", "-b", "b1", str(linked))
    if is_relative:
        (linked / ".git").write_text("gitdir: ../origin/.git/worktrees/linked\n")
        (origin / ".git/worktrees/linked/gitdir").write_text("../../../../linked/.git\n")
    found = find(linked, host_git.program)
    assert found.git_directory == origin / ".git/worktrees/linked"
    assert found.common_directory == origin / ".git"
    assert (found.entry, found.head.branch) == (GitEntry.FILE, "refs/heads/b1")


def test_relative_worktrees_as_an_extension(newer_git: HostGit, origin: Path) -> None:
    """Casebook 77: git that knows the extension is had with it; older git is refused by name."""
    git(origin, "config", "core.repositoryFormatVersion", "1")
    git(origin, "config", "extensions.relativeWorktrees", "true")
    if newer_git.version >= (2, 48):
        assert find(origin, newer_git.program).head.commit
        return
    with pytest.raises(ConfigError, match=r"can't read .*relativeworktrees"):
        find(origin, newer_git.program)


def test_a_submodule_and_its_repository(origin: Path, tmp_path: Path) -> None:
    """Casebook 81: a submodule is told of; as a worktree of its own it has its repository."""
    outer = loops.make_origin(tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(origin), "sub")
    found = find(outer)
    assert found.submodules == ("sub",)
    assert "sub" in found.notices[0]
    inner = find(outer / "sub")
    assert inner.git_directory == outer / ".git/modules/sub"
    (outer / ".git/modules/sub/config").write_text("[core]\n\tworktree = ../../../other\n")
    with pytest.raises(ConfigError, match=r"core\.worktree is"):
        find(outer / "sub")


def test_lfs_is_told_of(origin: Path) -> None:
    """Casebook 81: that pointers of LFS stay pointers is said, as the index has it."""
    loops.commit(origin, {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    (origin / ".gitattributes").unlink()
    (notice,) = find(origin).notices
    assert "pointers stay pointers" in notice


def test_a_separate_directory(tmp_path: Path) -> None:
    """The git directory may be anywhere if it is the same user's."""
    git(tmp_path, "init", "-q", "-b", "main", f"--separate-git-dir={tmp_path}/apart", "tree")
    found = find(tmp_path / "tree")
    assert (found.git_directory, found.entry) == (tmp_path / "apart", GitEntry.FILE)
    assert found.head == Head("refs/heads/main", None)


def test_a_detached_head(origin: Path) -> None:
    """A detached HEAD has a commit and no branch."""
    git(origin, "checkout", "-q", "--detach")
    assert find(origin).head == Head(None, git(origin, "rev-parse", "HEAD"))


def test_sha256(host_git: HostGit, tmp_path: Path) -> None:
    """The other hash is told."""
    origin = loops.make_origin(tmp_path / "o", "--object-format=sha256")
    found = find(origin, host_git.program)
    assert found.object_format == "sha256"
    assert len(found.head.commit or "") == 64


def test_a_shallow_clone(origin: Path, tmp_path: Path) -> None:
    """Of a shallow clone the file is told that says where it is cut."""
    loops.commit(origin, {"a.txt": "2\n"})
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", "cut")
    assert find(tmp_path / "cut").shallow == tmp_path / "cut/.git/shallow"


@pytest.mark.parametrize("index", ["--sparse-index", "--no-sparse-index"])
def test_sparse_and_split(host_git: HostGit, origin: Path, index: str) -> None:
    """Sparse patterns, the worktree's own configuration, sparse and split index are had."""
    git(origin, "sparse-checkout", "set", "--cone", index, "d")
    if index != "--sparse-index":
        git(origin, "update-index", "--split-index")
    found = find(origin, host_git.program)
    assert known(found)["core.sparseCheckout"] == "true"
    assert "/d/" in (found.sparse or "")


def test_alternates(origin: Path, tmp_path: Path) -> None:
    """Stores that a store borrows from are found, by relative and quoted names, in any depth."""
    git(tmp_path, "clone", "-q", "--shared", str(origin), "a b")
    git(tmp_path, "clone", "-q", "--shared", "a b", "c")
    store = tmp_path / "c/.git/objects"
    (store / "info/alternates").write_text(
        '# mine\n"../../../a\\040b/.git/objects"\n/gone/objects\n'
    )
    (tmp_path / "a b/.git/objects/info/alternates").write_text("../../../origin/.git/objects\n")
    found = find(tmp_path / "c")
    others = (tmp_path / "a b/.git/objects", origin / ".git/objects")
    assert found.stores == (store, *others)
    assert found.notices == ("The alternate object store /gone/objects is missing.",)


def test_many_refs_are_no_work(origin: Path) -> None:
    """A hundred thousand packed refs are had in seconds."""
    commit = git(origin, "rev-parse", "HEAD")
    lines = [f"{commit} refs/tags/t{number:06}\n" for number in range(100_000)]
    (origin / ".git/packed-refs").write_text("# pack-refs with: sorted \n" + "".join(lines))
    begun = time.monotonic()
    found = find(origin)
    assert len(found.refs) == 100_001
    assert time.monotonic() - begun < 15


def test_a_bare_repository_and_its_checkouts(
    host_git: HostGit, origin: Path, tmp_path: Path
) -> None:
    """`--repo` names a bare repository, a checkout, or a link to one."""
    program = Git.find(host_git.program)
    git(tmp_path, "clone", "-q", "--bare", str(origin), "bare.git")
    found = asyncio.run(discover_bare_or_not(program, tmp_path / "bare.git"))
    assert (found.worktree, found.entry) == (None, GitEntry.NONE)
    assert found.git_directory == tmp_path / "bare.git"
    (tmp_path / "link").symlink_to(origin)
    assert asyncio.run(discover_bare_or_not(program, tmp_path / "link")) == find(
        origin, host_git.program
    )
    for wrong in (tmp_path / "home", tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="repo:"):
            asyncio.run(discover_bare_or_not(program, wrong))


# ─── refusals ───────────────────────────────────────────────────────────────────────


def _config(lines: str) -> Mapping[str, str]:
    return {".git/config": f"[core]\n\trepositoryFormatVersion = 1\n{lines}"}


REFUSED = {
    "partial": (_config("[extensions]\n\tpartialClone = origin\n"), "partial clone"),
    "promisor": (_config('[remote "origin"]\n\tpromisor = true\n'), "partial clone"),
    "reftable": (_config("[extensions]\n\trefStorage = reftable\n"), "reftable|refstorage"),
    "extension": (_config("[extensions]\n\tnew = true\n"), "extension"),
    "version": ({".git/config": "[core]\n\trepositoryFormatVersion = 9\n"}, "can't read"),
    "bare": ({".git/config": "[core]\n\tbare = true\n"}, "says that it is bare"),
    "elsewhere": ({".git/config": "[core]\n\tworktree = /nowhere\n"}, "core.worktree"),
    "broken": ({".git/config": "[core\n"}, "configuration can't be read"),
    "head": ({".git/HEAD": "nonsense\n"}, "can't read"),
    "commondir": ({".git/commondir": "/\n"}, "has no such worktree"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused(host_git: HostGit, origin: Path, case: str) -> None:
    """What a box could not have as it is, is refused with a reason and a mend."""
    files, why = REFUSED[case]
    loops.write(origin, files)
    with pytest.raises(ConfigError, match=why):
        find(origin, host_git.program)


def test_a_reftable_is_refused(newer_git: HostGit, tmp_path: Path) -> None:
    """Git that has reftables makes a repository that is refused with the mend."""
    program = Git.find(newer_git.program)
    place = tmp_path / "r"
    done = asyncio.run(program.run(["init", "-q", "--ref-format=reftable", str(place)]))
    assert done.code == 0
    with pytest.raises(ConfigError, match="git refs migrate"):
        find(place, newer_git.program)


def test_missing_objects_are_refused(origin: Path) -> None:
    """A repository whose HEAD has no tree is refused before a loop begins."""
    tree = git(origin, "rev-parse", "HEAD^{tree}")
    (origin / ".git/objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(ConfigError, match="lacks objects"):
        find(origin)


def test_a_directory_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    """An empty `.git` is no repository."""
    (tmp_path / "w/.git").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no git repository"):
        find(tmp_path / "w")


@pytest.mark.parametrize("text", ["", "gitdir:", "nonsense", "gitdir: /nonexistent/x\n"])
def test_a_pointer_that_leads_nowhere_is_refused(tmp_path: Path, text: str) -> None:
    """A `.git` file has to point to a git directory."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w/.git").write_text(text)
    with pytest.raises(ConfigError, match=r"no pointer|can't be found"):
        find(tmp_path / "w")


def test_the_way_back_must_be_the_same(origin: Path, tmp_path: Path) -> None:
    """H11: a copied worktree is not the one that the repository knows; the mend is named."""
    git(origin, "worktree", "add", "-q", str(tmp_path / "linked"))
    shutil.copytree(tmp_path / "linked", tmp_path / "copy")
    with pytest.raises(ConfigError, match=r"points back to .*git worktree repair"):
        find(tmp_path / "copy")
    (origin / ".git/worktrees/linked/gitdir").unlink()
    with pytest.raises(ConfigError, match="points back to nothing"):
        find(tmp_path / "linked")


# ─── other users ────────────────────────────────────────────────────────────────────


@needs_root
def test_anothers_repository_is_had_as_he_has_it(shared: Path) -> None:
    """Casebook 79: root has another user's repository without trusting it by configuration."""
    origin = give(loops.make_origin(shared / "origin"), OTHER)
    git(origin, "config", "user.name", "Ada", uid=OTHER.uid)
    git(origin, "config", "user.email", "ada@example.org", uid=OTHER.uid)
    (origin / ".git").chmod(0o700)
    found = find(origin)
    assert (found.owner, found.person) == (OTHER, Person("Ada", "ada@example.org"))


@needs_root
def test_who_commits_may_be_who_runs_the_loop(shared: Path, tmp_path: Path) -> None:
    """Where the owner has no identity, ours is taken; the configuration is not changed."""
    configuration = tmp_path / "home/.gitconfig"
    configuration.write_text("[user]\n\tname = Root\n\temail = root@example.org\n")
    found = find(give(loops.make_origin(shared / "origin"), OTHER))
    assert found.person == Person("Root", "root@example.org")
    assert configuration.read_text().count("\n") == 3


@needs_root
def test_strangers_repositories_are_refused(shared: Path) -> None:
    """A pointer to another user's repository is not followed."""
    origin = give(loops.make_origin(shared / "origin"), STRANGER)
    tree = shared / "tree"
    loops.write(tree, {".git": f"gitdir: {origin}/.git\n"})
    with pytest.raises(ConfigError, match="belongs to uid"):
        find(give(tree, OTHER))


@needs_root
def test_roots_repositories_are_not_anybodys(shared: Path) -> None:
    """A pointer to root's repository is refused unless that points back."""
    origin = loops.make_origin(shared / "origin")
    tree = shared / "tree"
    loops.write(tree, {".git": f"gitdir: {origin}/.git\n"})
    with pytest.raises(ConfigError, match="belongs to uid"):
        find(give(tree, OTHER))
    git(origin, "worktree", "add", "-q", str(shared / "linked"))
    assert find(give(shared / "linked", OTHER)).owner.uid == 0
    (origin / ".git").chmod(0o700)
    with pytest.raises(ConfigError, match="may not read"):
        find(shared / "linked")


@needs_root
def test_objects_that_the_owner_may_not_read_are_refused(shared: Path) -> None:
    """Alternates don't show one user's objects to another."""
    hidden = shared / "hidden"
    hidden.mkdir(mode=0o700)
    secret = loops.make_origin(hidden / "secret")
    origin = loops.make_origin(shared / "origin")
    (origin / ".git/objects/info/alternates").write_text(f"{secret}/.git/objects\n")
    with pytest.raises(ConfigError, match="can't be read by uid"):
        find(give(origin, OTHER))


@needs_root
@pytest.mark.parametrize("name", ["info/exclude", "info/attributes", "info/sparse-checkout"])
def test_root_reads_no_file_for_another(shared: Path, name: str) -> None:
    """A link in another user's repository leads to nothing that he may not read himself."""
    secret = shared / "secret"
    secret.write_text("s3cret text\n")
    secret.chmod(0o600)
    origin = loops.make_origin(shared / "origin")
    (origin / ".git" / name).unlink(missing_ok=True)
    (origin / ".git" / name).symlink_to(secret)
    assert "s3cret" not in repr(find(give(origin, OTHER)))


def test_a_pipe_is_not_waited_for(origin: Path) -> None:
    """A named pipe where a file should be is no file."""
    exclude = origin / ".git/info/exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.unlink(missing_ok=True)
    os.mkfifo(exclude)
    assert find(origin).excludes == ""


def told_as(user: Owner, work: Callable[[], object]) -> str:
    """What the work comes to, or fails with, in a process of somebody else."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user.gid)
            os.setuid(user.uid)
            told = repr(work())
        except BaseException as error:
            told = repr(error)
        os.write(writing, told.encode()[:4096])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        told = file.read().decode()
    os.waitpid(child, 0)
    return told


@needs_root
def test_an_ordinary_user(shared: Path) -> None:
    """Not root: one's own repository is had; another's worktree only if he may read it all."""
    own = give(loops.make_origin(shared / "own"), STRANGER)
    assert told_as(STRANGER, lambda: find(own).owner) == repr(STRANGER)
    origin = give(loops.make_origin(shared / "origin"), STRANGER)
    (shared / "linked").mkdir()
    give(shared / "linked", STRANGER)
    git(origin, "worktree", "add", "-q", str(shared / "linked"), uid=STRANGER.uid)
    linked = give(shared / "linked", OTHER)
    assert told_as(STRANGER, lambda: find(linked).owner) == repr(STRANGER)
    (origin / ".git").chmod(0o700)
    assert "may not read" in told_as(STRANGER, lambda: find(linked).owner)


# ─── configuration ──────────────────────────────────────────────────────────────────


def test_nothing_fires(host_git: HostGit, origin: Path, tmp_path: Path) -> None:
    """H5: looking at a repository full of commands executes none of them."""
    loops.commit(origin, {".gitattributes": "* filter=mine diff=mine\n"})
    git(origin, "config", "core.fsmonitor", "false")
    trap(origin, tmp_path / "canaries", included=True)
    found = find(origin, host_git.program)
    assert not (tmp_path / "canaries/fired").exists()
    assert "canary" not in repr(found.settings) + found.attributes
    assert "included" in found.reads


def test_the_users_files_and_identity(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Identity, excludes and attributes of the user are had, the repository's after them."""
    home = tmp_path / "home"
    loops.write(
        home,
        {
            ".gitconfig": "[user]\n\tname = Ada\n\temail = ada@example.org\n"
            "[core]\n\texcludesFile = ~/mine\n\tautocrlf = input\n",
            "mine": "*.mine",
            ".config/git/attributes": "*.txt text diff=python\n*.x filter=lfs\n",
        },
    )
    loops.write(origin / ".git/info", {"exclude": "*.repo\n", "attributes": "*.c eol=lf\n"})
    found = find(origin)
    assert found.person == Person("Ada", "ada@example.org")
    assert found.excludes == "*.mine\n*.repo\n"
    assert found.attributes == "*.txt text diff=python\n*.c eol=lf\n"
    assert known(found)["core.autocrlf"] == "input"
    loops.commit(origin, {"d/.gitattributes": "*.txt -text\n"})
    assert find(origin).attributes == "*.txt diff=python\n*.c eol=lf\n"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    assert find(origin).attributes == "*.c eol=lf\n"


def test_what_git_reads_of_the_worktree(origin: Path) -> None:
    """Paths of the worktree that the user's own configuration has git obey are listed."""
    for key, value in {
        "core.hooksPath": ".husky",
        "include.path": "../shared.config",
        "core.attributesFile": str(origin / "attributes"),
        "filter.x.clean": "sh ./tools/clean %f",
        "alias.go": "!scripts/go",
        "diff.external": "a.txt",
        "core.editor": "vi",
        "merge.m.driver": "/usr/bin/merge %A",
    }.items():
        git(origin, "config", key, value)
    (origin / ".git/hooks").mkdir(exist_ok=True)
    (origin / ".git/hooks/pre-push").symlink_to("../../hooks/pre-push")
    assert set(find(origin).reads) == {
        ".husky",
        "shared.config",
        "attributes",
        "tools/clean",
        "scripts/go",
        "a.txt",
        "hooks/pre-push",
    }


def test_settings_are_as_git_reads_them(origin: Path) -> None:
    """Keys have git's spelling, several values stay several, secrets of addresses are gone."""
    text = (
        "[core]\n\tAUTOCRLF\n\thooksPath = x\n\tquotePath = false\n"
        '[branch "Feature.X"]\n\tremote = origin\n\tmerge = refs/heads/Feature.X\n'
        '[remote "origin"]\n\turl = https://me:s3cret@example.org/x.git?token=s3cret\n'
        "\tfetch = +refs/heads/*:refs/remotes/origin/*\n\tfetch = refs/notes/*:refs/notes/*\n"
    )
    with (origin / ".git/config").open("a") as file:
        file.write(text)
    found = find(origin).settings
    assert [pair for pair in found if pair[0] != "core.fileMode"] == [
        ("core.autocrlf", "true"),
        ("core.quotePath", "false"),
        ("branch.Feature.X.remote", "origin"),
        ("branch.Feature.X.merge", "refs/heads/Feature.X"),
        ("remote.origin.url", "https://example.org/x.git"),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
        ("remote.origin.fetch", "refs/notes/*:refs/notes/*"),
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("core.hookspath", "x"),
        ("core.fsmonitor", "true"),
        ("core.autocrlf", "sometimes"),
        ("core.excludesfile", "/etc/passwd"),
        ("format.pretty", "%H %GS"),
        ("branch.x.remote", "-x"),
        ("branch.x\ny.remote", "origin"),
        ("remote.x.url", "/home/me/x"),
        ("remote.x.url", "ext::sh -c x"),
        ("remote.x.vcs", "mine"),
        ("diff.x.command", "x"),
        ("diff.x.textconv", "x"),
        ("alias.x", "!x"),
        ("credential.helper", "x"),
        ("http.extraheader", "x"),
        ("user.signingkey", "x"),
        ("include.path", "x"),
        ("init.defaultbranch", "-x"),
        ("log.date", "a\nb"),
    ],
)
def test_what_means_nothing_inside_is_left_out(key: str, value: str) -> None:
    """No setting that names a program, a file or a credential, nor a strange value, is taken."""
    assert settings([(key, value)]) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:s3cret@example.org:8443/a.git#s3cret", "https://example.org:8443/a.git"),
        ("ssh://git@example.org/a.git", "ssh://git@example.org/a.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("s3cret@example.org:a/b.git", "example.org:a/b.git"),
        ("git://[::1]/a", "git://[::1]/a"),
        ("file:///home/me/a", None),
        ("../a", None),
        ("https://-x/a", None),
        ("ext::sh -c touch% x", None),
        ("https://example.org:x/", None),
    ],
)
def test_addresses_without_secrets(url: str, shown: str | None) -> None:
    """Of a remote's address only what is no secret is told."""
    assert public_address(url) == shown


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("*.txt text eol=crlf", "*.txt text eol=crlf"),
        ('"a b" -text', '"a b" -text'),
        ("*.bin filter=lfs diff=lfs merge=lfs -text", "*.bin -text"),
        ("*.py diff=python merge=union", "*.py diff=python merge=union"),
        ("*.x filter=mine diff=mine", ""),
        ("*.x -filter !diff", "*.x -filter !diff"),
        ("# *.x text", ""),
        ("[attr]mine text", ""),
        ("*.u working-tree-encoding=UTF-16 whitespace=tab-in-indent", None),
        ("*.u eol=x text=maybe", ""),
    ],
)
def test_attributes_that_mean_something(line: str, kept: str | None) -> None:
    """Of attributes those are taken that name no driver of the user's."""
    expected = line if kept is None else kept
    assert attributes(line + "\n") == (expected + "\n" if expected else "")


def test_looking_changes_nothing(origin: Path) -> None:
    """H4: the repository is the same, byte for byte, and has no new file."""
    os.utime(origin / "a.txt")  # the index is out of date
    before = loops.digest(origin)
    found = find(origin)
    assert loops.digest(origin) == before
    assert replace(found) == find(origin)
