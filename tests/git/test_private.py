"""The private git directory: git works inside, and the origin stays as it is."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import subprocess
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from executor.git import private
from executor.git.configuration import configuration
from executor.git.index import shared_name, take_index
from executor.git.program import Git
from executor.git.values import GitError, Head, Person, Repository, Sharing
from executor.model import GitOptions
from executor.sandbox.container import Owner
from executor.sandbox.ownership import GitEntry
from tests.git.boxes import (
    OWNER,
    USER,
    Inside,
    commit,
    git,
    inside,
    link,
    look,
    make_origin,
    open_place,
    own,
    prepare,
)

NO_NETWORK = "There is no network in this sandbox, so git can't push to, fetch from or clone "


def digest(directory: Path) -> str:
    """Of every name, mode and content below a directory."""
    found = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        found.update(f"{path} {path.lstat().st_mode}".encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory that the owners of worktrees may enter, too."""
    yield from open_place()


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    """A linked worktree."""
    return link(make_origin(tmp_path))


@pytest.fixture
def box(worktree: Path, tmp_path: Path) -> Iterator[Inside]:
    """A box that shares the origin's objects; the origin is the same afterwards."""
    repository = look(worktree)
    before = digest(repository.common_directory)
    with inside(repository, worktree, prepare(repository, tmp_path / "git")) as opened:
        yield opened
    assert digest(repository.common_directory) == before


# ─── commands ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("git status --porcelain --branch", "## work"),
        ("echo x >> a.txt; git diff --stat", " 1 file changed, 1 insertion(+)"),
        ("git log --format=%s -1 v1", "second"),
        ("echo x > n; git add n; git status --porcelain", "A  n"),
        ("echo x > n; git add n; git commit -qm new; git log -1 --format=%s", "new"),
        ("git commit -q --amend -m other; git log -1 --format=%s", "other"),
        ("echo x >> a.txt; git stash -q; git stash pop -q; git status --porcelain", " M a.txt"),
        ("git branch x; git branch --list x", "  x"),
        ("git switch -q -c y; git rev-parse --abbrev-ref HEAD", "y"),
        ("echo x > a.txt; git restore a.txt; git status --porcelain --branch", "## work"),
        ("git reset -q --hard HEAD~1; git log -1 --format=%s", "second"),
        ("git rebase -q side; git log --format=%s -2 | tail -1", "second"),
        ("git rebase -q -i HEAD~2 && git log -1 --format=%s", "third"),
        ("git merge -q --no-edit side; git log -1 --format=%s", "Merge branch 'side' into work"),
        ("git cherry-pick side >/dev/null; git log -1 --format=%s", "on the side"),
        ("git revert --no-edit HEAD >/dev/null; git log -1 --format=%s", 'Revert "third"'),
        ("git tag z; git tag -a -m z zz; git describe", "zz"),
        ("git blame -s a.txt | cut -d' ' -f2- | tail -1", "2) more"),
        (
            "git bisect start HEAD HEAD~2 >&2 && git bisect run true | tail -1",
            "bisect found first bad commit",
        ),
        ("git gc -q && git fsck && git status --porcelain --branch", "## work"),
        ("git worktree add -q /tmp/w -b w && git -C /tmp/w log -1 --format=%s", "third"),
        ("git worktree add -q sub/w -b w && git -C sub/w status --porcelain -b", "## w"),
        ("git submodule status; echo done", "done"),
        ("git clone -q . /tmp/c && git -C /tmp/c log -1 --format=%s", "third"),
        ("git reflog -1 --format=%gs; git commit -qm x --allow-empty; git reflog -1", "commit: x"),
        ("git -c user.name=other -c core.abbrev=5 log -1 --format=%h | wc -c", "6"),
        ("cd b && git rev-parse --show-toplevel", "/workspace"),
        ("git sparse-checkout set --no-cone b && ls", "b"),
        ("git notes add -m n && git notes show", "n"),
        ("git fetch . side:copied -q; git branch --list copied", "  copied"),
    ],
)
def test_a_command_works_inside(box: Inside, script: str, last: str) -> None:
    """What developers use git for works in a box, and leaves the origin as it was."""
    said = box.sh(script)
    lines = [line for line in said.output.splitlines() if line]
    assert lines[-1:] == [last] or lines[-1].endswith(last), said


@pytest.mark.parametrize(
    "script",
    ["rm .git", "mv .git x", "echo x > .git", "ln -sf /tmp .git", "mkdir -p .git/hooks"],
)
def test_the_pointer_stays(box: Inside, script: str) -> None:
    """H1: nothing inside replaces the pointer to the private directory."""
    assert box.sh(script).code != 0
    assert box.do("git status --porcelain") == ""


def test_the_origins_objects_are_only_read(box: Inside) -> None:
    """H2: nothing can be written where the origin's objects are."""
    assert "Read-only" in box.sh("touch /run/executor/objects/0/x").errors


# ─── no network ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("push", "https://example.org/a.git"),
        ("push origin work", "https://example.org/a.git"),
        ("fetch", "https://example.org/a.git"),
        ("pull", "https://example.org/a.git"),
        ("pull origin main", "https://example.org/a.git"),
        ("ls-remote", "https://example.org/a.git"),
        ("clone -q https://example.org/b /tmp/b", "https://example.org/b"),
        ("clone -q git@example.org:b /tmp/b", "git@example.org:b"),
        ("fetch ssh://example.org/b", "ssh://example.org/b"),
        ("fetch git://example.org/b", "git://example.org/b"),
    ],
)
def test_remotes_fail_with_one_sentence(
    worktree: Path, tmp_path: Path, command: str, address: str
) -> None:
    """Git says at once that there is no network, and how commits leave the box."""
    git(worktree, "remote", "add", "origin", "https://example.org/a.git")
    repository = look(worktree)
    with inside(repository, worktree, prepare(repository, tmp_path / "git")) as box:
        said = box.sh(f"git {command}")
        assert said.code != 0
        assert said.errors == (
            f"{NO_NETWORK}{address}. Commits leave it by `executor git import`, outside.\n"
        )
        assert box.do("git remote get-url origin") == "https://example.org/a.git\n"


def test_a_push_without_a_remote_says_so(box: Inside) -> None:
    """Where the host's configuration has no remote, git's own sentence says that."""
    assert "No configured push destination" in box.sh("git push").errors


def test_remotes_in_the_box_can_be_used(box: Inside) -> None:
    """A repository inside is pushed to, and cloned from, as ever."""
    box.do("git init -q --bare /tmp/r && git remote add here /tmp/r && git push -q here work")
    assert box.do("git clone -q -b work /tmp/r /tmp/s && git -C /tmp/s log -1 --format=%s") == (
        "third\n"
    )


# ─── nothing is read again ──────────────────────────────────────────────────────────


def known_unreadable(worktree: Path) -> None:
    """Makes a file that git knows, and that nobody but root can read any more.

    It is older than the index: of one as new as that, git looks into the content.
    """
    os.utime(worktree / "a.txt", (1e9, 1e9))
    (worktree / "a.txt").chmod(0)
    git(worktree, "update-index", "-q", "--refresh")


def test_nothing_is_hashed_again(worktree: Path, tmp_path: Path) -> None:
    """Git inside goes by the index: it does not even try to read files that it knows."""
    known_unreadable(worktree)
    repository = look(worktree)
    with inside(repository, worktree, prepare(repository, tmp_path / "git")) as box:
        assert box.sh("cat a.txt").code != 0
        assert box.do("git status --porcelain") == ""


def test_files_that_were_moved_are_not_hashed_again(worktree: Path, tmp_path: Path) -> None:
    """Of a copy with other inodes, owners and change times, times and sizes are enough."""
    known_unreadable(worktree)
    copied = tmp_path / "copied"
    subprocess.run(["cp", "-a", worktree, copied], check=True)
    repository = look(worktree)
    directory = prepare(repository, tmp_path / "git", is_exact_stat=False)
    with inside(repository, copied, directory) as box:
        assert box.do("git status --porcelain") == ""
        box.do("echo longer >> d.txt")
        assert box.do("git status --porcelain") == " M d.txt\n"


def test_the_time_of_the_index_is_kept(worktree: Path, tmp_path: Path) -> None:
    """A file that was changed when the index was written is looked into inside, too."""
    repository = look(worktree)
    directory = prepare(repository, tmp_path / "git")
    known = (repository.git_directory / "index").stat().st_mtime_ns
    assert (directory / "index").stat().st_mtime_ns == known


# ─── kinds of repositories ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("sharing", list(Sharing))
@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_what_is_staged_can_be_committed(
    tmp_path: Path, sharing: Sharing, object_format: str
) -> None:
    """Objects that only the index names are there, whatever way objects come in."""
    worktree = link(make_origin(tmp_path, "--object-format", object_format))
    (worktree / "new.txt").write_text("staged\n")
    git(worktree, "add", "new.txt")
    own(worktree)
    repository = look(worktree)
    directory = prepare(repository, tmp_path / "git", sharing)
    with inside(repository, worktree, directory, sharing) as box:
        assert box.do("git status --porcelain") == "A  new.txt\n"
        assert box.do("git cat-file -p :new.txt") == "staged\n"
        box.do("git commit -qm new && git fsck --strict")
        subjects = box.do("git log --format=%s").splitlines()
        whole = sharing is not Sharing.SHALLOW
        assert subjects == ["new", "third", *(["second", "first"] if whole else [])]
        assert ("side" in box.do("git branch")) is whole


def test_a_main_checkout(tmp_path: Path) -> None:
    """Where `.git` is a directory, the private one is bound over it."""
    origin = make_origin(tmp_path)
    own(origin)
    repository = look(origin)
    with inside(repository, origin, prepare(repository, tmp_path / "git")) as box:
        assert box.do("git status --porcelain -b") == "## main\n"
        box.do("echo x > n && git add n && git commit -qm n")
    assert git(origin, "log", "-1", "--format=%s") == "third"


def test_detached(worktree: Path, tmp_path: Path) -> None:
    """HEAD is at the same commit, on no branch."""
    git(worktree, "checkout", "-q", "--detach", "HEAD~1")
    own(worktree)
    repository = look(worktree)
    with inside(repository, worktree, prepare(repository, tmp_path / "git")) as box:
        assert box.do("git status --porcelain -b") == "## HEAD (no branch)\n"
        assert box.do("git log -1 --format=%s") == "second\n"


@pytest.mark.parametrize("sharing", list(Sharing))
def test_unborn(tmp_path: Path, sharing: Sharing) -> None:
    """The first commit of a repository can be made inside, of what is staged, too."""
    git(tmp_path, "init", "-q", "-b", "main", "origin")
    origin = tmp_path / "origin"
    (origin / "a").write_text("a\n")
    git(origin, "add", "a")
    own(origin)
    repository = look(origin)
    with inside(repository, origin, prepare(repository, tmp_path / "git", sharing), sharing) as box:
        box.do("git commit -qm first")
        assert box.do("git show HEAD:a") == "a\n"


@pytest.mark.parametrize("sharing", list(Sharing))
def test_a_shallow_origin(tmp_path: Path, sharing: Sharing) -> None:
    """History ends inside where it ends outside."""
    origin = make_origin(tmp_path)
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{origin}", "cut")
    own(tmp_path / "cut")
    repository = look(tmp_path / "cut")
    directory = prepare(repository, tmp_path / "git", sharing)
    with inside(repository, tmp_path / "cut", directory, sharing) as box:
        expected = "third\n" if sharing is Sharing.SHALLOW else "third\nsecond\n"
        assert box.do("git log --format=%s") == expected
        box.do("git fsck && git commit -q --allow-empty -m x")


@pytest.mark.parametrize("options", [["--cone"], ["--no-cone"], ["--cone", "--sparse-index"]])
@pytest.mark.parametrize("sharing", list(Sharing))
def test_sparse(tmp_path: Path, options: list[str], sharing: Sharing) -> None:
    """Files that were left out are neither there nor deleted."""
    worktree = link(make_origin(tmp_path))
    commit(worktree, {"e/f.txt": "f\n", "g/h.txt": "h\n"}, "more")
    git(worktree, "sparse-checkout", "set", *options, "b")
    own(worktree)
    repository = look(worktree)
    directory = prepare(repository, tmp_path / "git", sharing)
    with inside(repository, worktree, directory, sharing) as box:
        assert box.do("git status --porcelain") == ""
        assert not (worktree / "e").exists()
        box.do("git reset -q --hard && git commit -q --allow-empty -m x && git fsck")
        assert not (worktree / "e").exists()
        assert box.do("git ls-files").split() == git(worktree, "ls-files").split()


def test_a_split_index(worktree: Path, tmp_path: Path) -> None:
    """The shared part comes with the index."""
    git(worktree, "update-index", "--split-index")
    (worktree / "link").write_text("l")
    git(worktree, "add", "link")
    own(worktree)
    repository = look(worktree)
    directory = prepare(repository, tmp_path / "git")
    assert list(directory.glob("sharedindex.*"))
    with inside(repository, worktree, directory) as box:
        assert box.do("git status --porcelain") == "A  link\n"


def test_a_lost_shared_index_is_a_clear_error(worktree: Path, tmp_path: Path) -> None:
    """An index whose shared part is gone is no index."""
    git(worktree, "update-index", "--split-index")
    repository = look(worktree)
    for path in repository.git_directory.glob("sharedindex.*"):
        path.unlink()
    with pytest.raises(GitError, match="its shared part sharedindex"):
        prepare(repository, tmp_path / "git")


def test_an_index_that_is_written_meanwhile_is_whole(worktree: Path) -> None:
    """However the user's git replaces it, index and shared part are of one state."""
    repository = look(worktree)
    flags = os.O_RDONLY | os.O_DIRECTORY
    descriptor = os.open(repository.git_directory, flags)
    done = threading.Event()

    def write() -> None:
        for number in range(30):
            (worktree / f"file{number}").write_text("x")
            git(worktree, "add", f"file{number}")
            git(worktree, "update-index", "--split-index" if number % 3 else "--no-split-index")
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    split = 0
    while not done.is_set():
        found = take_index(descriptor, "sha1", repository.owner)
        split += len(found) - 1
        for taken in found.values():
            assert hashlib.sha1(taken.data[:-20]).digest() == taken.data[-20:]
    writer.join()
    os.close(descriptor)
    assert split > 0


def test_names_are_no_extensions(worktree: Path) -> None:
    """A file called `link` does not make an index a split one."""
    for number in range(8):
        (worktree / ("x" * number + "link")).write_text("l")
    git(worktree, "add", "-A")
    index = (look(worktree).git_directory / "index").read_bytes()
    assert shared_name(index, "sha1") is None


@pytest.mark.parametrize("sharing", list(Sharing))
def test_a_merge_goes_on(tmp_path: Path, sharing: Sharing) -> None:
    """A merge with conflicts that was begun outside is ended inside, as a merge."""
    worktree = link(make_origin(tmp_path))
    commit(worktree, {"side.txt": "mine\n"}, "mine")
    merged = subprocess.run(
        ["git", "merge", "side"], cwd=worktree, env=USER, capture_output=True, check=False
    )
    assert merged.returncode == 1
    own(worktree)
    repository = look(worktree)
    directory = prepare(repository, tmp_path / "git", sharing)
    with inside(repository, worktree, directory, sharing) as box:
        assert box.do("git status --porcelain") == "AA side.txt\n"
        box.do("echo both > side.txt && git commit -qam merged")
        assert len(box.do("git log -1 --format=%p").split()) == 2


def test_a_rebase_is_told(worktree: Path) -> None:
    """What can't be gone on with inside is said."""
    commit(worktree, {"side.txt": "mine\n"}, "mine")
    repository = look(worktree)
    assert private.unfinished(repository) == ()
    rebased = subprocess.run(
        ["git", "rebase", "side"], cwd=worktree, env=USER, capture_output=True, check=False
    )
    assert rebased.returncode != 0
    assert private.unfinished(repository) == (
        "A rebase is going on in the worktree. Inside, git does not know of it; end it outside.",
    )


def test_stores_of_stores(tmp_path: Path) -> None:
    """An origin that borrows objects itself can be worked with."""
    origin = make_origin(tmp_path)
    git(tmp_path, "clone", "-q", "--shared", str(origin), "borrower")
    own(tmp_path / "borrower")
    repository = look(tmp_path / "borrower")
    assert len(repository.stores) == 2
    directory = prepare(repository, tmp_path / "git")
    with inside(repository, tmp_path / "borrower", directory) as box:
        assert box.do("git log -1 --format=%s") == "third\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("sharing", list(Sharing))
def test_another_users_repository(tmp_path: Path, sharing: Sharing) -> None:
    """As root, a repository of a user is read as that user, and what is written is ours."""
    origin = make_origin(tmp_path)
    subprocess.run(["chown", "-R", str(OWNER), origin], check=True)
    repository = look(origin)
    assert repository.owner == OWNER
    directory = prepare(repository, tmp_path / "git", sharing)
    with inside(repository, origin, directory, sharing) as box:
        assert box.do("git status --porcelain -b") == "## main\n"


# ─── what is refused ────────────────────────────────────────────────────────────────


def test_links_are_not_followed(worktree: Path, tmp_path: Path) -> None:
    """An index that is a link is not read: it could lead to what its owner can't read."""
    repository = look(worktree)
    index = repository.git_directory / "index"
    index.rename(tmp_path / "elsewhere")
    index.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GitError):
        prepare(repository, tmp_path / "git")


def test_a_pipe_is_not_waited_for(worktree: Path, tmp_path: Path) -> None:
    """A pipe in place of the index holds nobody up."""
    repository = look(worktree)
    index = repository.git_directory / "index"
    index.unlink()
    os.mkfifo(index)
    with pytest.raises(GitError, match="no plain file"):
        prepare(repository, tmp_path / "git")


def test_a_directory_with_content_is_refused(worktree: Path, tmp_path: Path) -> None:
    """Nothing that is there is written over."""
    (tmp_path / "git").mkdir()
    (tmp_path / "git/HEAD").write_text("ref: refs/heads/x\n")
    with pytest.raises(GitError, match="not empty"):
        prepare(look(worktree), tmp_path / "git")


def test_a_state_file_that_names_no_commit_is_refused(worktree: Path, tmp_path: Path) -> None:
    """What goes to git as an argument is the name of an object."""
    repository = look(worktree)
    (repository.git_directory / "MERGE_HEAD").write_text("--all\n")
    with pytest.raises(GitError, match="names no commit: '--all'"):
        prepare(repository, tmp_path / "git")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what others may not")
def test_what_the_owner_may_not_read_is_not_read(worktree: Path, tmp_path: Path) -> None:
    """A controller that is root is no way to another user's index."""
    repository = replace(look(worktree), owner=Owner(4243, 4243))
    (repository.git_directory / "index").chmod(0o600)
    with pytest.raises(GitError, match="may not read it"):
        asyncio.run(
            private.prepare(
                Git.find(), repository, tmp_path / "git", Sharing.SHARED, is_exact_stat=True
            )
        )


# ─── files ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_settings_are_read_back_as_they_were(tmp_path: Path, seed: int) -> None:
    """Git reads every value that we write, whatever characters it has."""
    source = random.Random(seed)
    letters = "ab \\\"\n;#\t\b\r='[].\N{SNOWMAN}\udcff$`"
    pairs = []
    for _ in range(300):
        value = "".join(source.choices(letters, k=source.randrange(12)))
        middle = "".join(source.choices(letters.replace("\n", ""), k=source.randrange(1, 8)))
        key = source.choice(["core.value", f"remote.{middle}.name", f"url.x{middle}.a-b"])
        pairs.append((key, value))
    (tmp_path / "config").write_bytes(configuration(pairs))
    listed = subprocess.run(
        ["git", "config", "--file", tmp_path / "config", "-z", "--list"],
        env=USER,
        capture_output=True,
        check=True,
    ).stdout
    expected = "".join(f"{key}\n{value}\0" for key, value in pairs)
    assert listed == expected.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("key", ["core", "co re.x", "a.b\nc.d", "core.1x", "core.x\n", ".x", "a."])
def test_a_key_that_git_could_not_read_is_refused(key: str) -> None:
    """A key never becomes another one, or a section of its own."""
    with pytest.raises(GitError, match="can't be written"):
        configuration([(key, "x")])


def test_modes(worktree: Path, tmp_path: Path) -> None:
    """The directory is its owner's alone."""
    directory = prepare(look(worktree), tmp_path / "git", Sharing.COPY)
    for path in [directory, *directory.rglob("*")]:
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (OWNER.uid, OWNER.gid)
        assert not status.st_mode & 0o022
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_giving_away_follows_no_link(tmp_path: Path) -> None:
    """A link is given away itself, what it leads to is not."""
    (tmp_path / "kept").mkdir()
    deep = tmp_path / "tree"
    for _ in range(60):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "link").symlink_to(tmp_path / "kept")
    private.give_away(tmp_path / "tree", OWNER)
    assert (deep / "link").lstat().st_uid == OWNER.uid
    assert (tmp_path / "kept").stat().st_uid == 0


PLAIN = Repository(
    git_directory=Path("/x"),
    common_directory=Path("/x"),
    worktree=Path("/y"),
    entry=GitEntry.FILE,
    owner=Owner(1, 1),
    stores=(),
    object_format="sha1",
    head=Head("refs/heads/main", None),
)


@pytest.mark.parametrize(
    ("person", "options", "expected"),
    [
        (None, GitOptions(), ("executor", "executor@localhost")),
        (Person("Ada", "ada@x"), GitOptions(), ("Ada", "ada@x")),
        (Person("Ada", "ada@x"), GitOptions(name="Bot"), ("Bot", "ada@x")),
        (Person("Ada", "ada@x"), GitOptions(name="Bot", email="b@x"), ("Bot", "b@x")),
    ],
)
def test_who_commits(person: Person | None, options: GitOptions, expected: tuple[str, str]) -> None:
    """The loop's options come before the host's configuration, and a neutral name is last."""
    told = private.system_settings(replace(PLAIN, person=person), options)
    assert (values(told, "user.name"), values(told, "user.email")) == ([expected[0]], [expected[1]])


def values(configured: bytes, key: str) -> list[str]:
    """What git reads in a configuration file."""
    done = subprocess.run(
        ["git", "config", "--file", "-", "-z", "--get-all", key],
        input=configured,
        env=USER,
        capture_output=True,
        check=True,
    )
    return os.fsdecode(done.stdout).split("\0")[:-1]


def test_only_exact_paths_are_safe() -> None:
    """79: no `safe.directory` is a pattern."""
    safe = values(private.system_settings(PLAIN, GitOptions()), "safe.directory")
    assert safe == ["/workspace", "/workspace/.git", "/run/executor/git"]


@pytest.mark.parametrize("name", ['"; [core]\n\tpager = x', "a\\", " # ", "[x]", "\N{SNOWMAN}"])
def test_a_name_stays_a_name(name: str) -> None:
    """Whatever stands in a name, it is one value and no other setting."""
    told = private.system_settings(None, GitOptions(name=name))
    assert values(told, "user.name") == [name]
    with pytest.raises(subprocess.CalledProcessError):
        values(told, "core.pager")


def test_a_box_with_a_proxy_leaves_http_to_git() -> None:
    """83: where there is a way out for HTTP, only what it can't carry is led to our program."""
    starts = {"https://", "http://", "ssh://", "git://", "git@"}

    near = private.system_settings(None, GitOptions(), has_proxy=False)
    for start in starts:
        assert values(near, f"url.outside::{start}.insteadOf") == [start]
    far = private.system_settings(None, GitOptions(), has_proxy=True)
    for start in ("https://", "http://"):
        with pytest.raises(subprocess.CalledProcessError):
            values(far, f"url.outside::{start}.insteadOf")
    for start in ("ssh://", "git://", "git@"):
        assert values(far, f"url.outside::{start}.insteadOf") == [start]


def test_packed_refs_have_no_header() -> None:
    """GitPython, and an MCP server that uses it, refuses one that does not say `peeled`."""
    refs = {"refs/tags/v1": "b" * 40, "refs/heads/größe": "a" * 40}
    lines = private.packed(refs).decode().splitlines()
    assert lines == [f"{'a' * 40} refs/heads/größe", f"{'b' * 40} refs/tags/v1"]
    assert private.packed({}) == b""


def test_without_a_repository_there_is_an_identity() -> None:
    """A `git init` in a plain directory can be committed to."""
    told = private.system_settings(None, GitOptions())
    assert values(told, "user.name") == ["executor"]
    assert values(told, "safe.directory") == ["/workspace", "/workspace/.git"]


def test_copies_of_objects_need_no_memory(tmp_path: Path) -> None:
    """A large repository is copied by way of a file, not through this process."""
    origin = make_origin(tmp_path)
    (origin / "large").write_bytes(os.urandom(64 << 20))
    git(origin, "add", "large")
    git(origin, "commit", "-q", "-m", "large")
    repository = look(origin)
    tracemalloc.start()
    try:
        prepare(repository, tmp_path / "private", Sharing.COPY)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    packs = list((tmp_path / "private/objects/pack").glob("*.pack"))
    assert [pack.stat().st_size > 64 << 20 for pack in packs] == [True]
