"""H: git in the box, and what comes back of it, through the whole product.

Real controllers and boxes over a user's real repository. Traps are planted from inside; what
springs them is a program of the host: ours, or the git of the user who goes on working there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.errors import ConfigError
from executor.git import export
from executor.git.program import ENVIRONMENT, SEARCHED, Git
from executor.model import GitOptions
from executor.sandbox.ownership import GitEntry, open_worktree
from tests.conftest import make_worktree
from tests.driver import Box
from tests.loops import Work
from tests.security.probes import probe
from tests.security.yard import CANARY, PRIVATE, Yard, changed, digest, yard

RACES = """
old, new = b"/workspace/.git", b"/workspace/swapped"
os.symlink("/tmp", new)
RENAMEAT2 = 276 if IS_ARM else 316
told = {
    "write": attempt(os.open, old, os.O_WRONLY),
    "truncate": attempt(os.truncate, old, 0),
    "unlink": attempt(os.unlink, old),
    "rmdir": attempt(os.rmdir, old),
    "rename": attempt(os.rename, old, b"/workspace/moved"),
    "replace": attempt(os.rename, new, old),
    "exchange": syscall(RENAMEAT2, -100, old, -100, new, 2),
    "link": attempt(os.link, old, b"/workspace/linked"),
    "symlink": attempt(os.symlink, b"/tmp", old),
    "parent": attempt(os.rename, b"/workspace", b"/workspace2"),
}
if not os.path.isdir(old):
    told |= {
        "create": attempt(os.open, old + b"/new", os.O_CREAT | os.O_WRONLY),
        "mkdir": attempt(os.mkdir, old + b"/hooks"),
        "chmod": attempt(os.chmod, old, 0o777),
        "xattr": attempt(os.setxattr, old, b"user.x", b"y"),
    }
os.unlink(new)
tell(told)
"""
REFUSED = {"EROFS", "EBUSY", "EACCES", "ENOTDIR", "EPERM", "EISDIR", "ENOTEMPTY", "EXDEV"}
REFUSED |= {"EEXIST", "EINVAL", "ENOTSUP", "EOPNOTSUPP"}
FILE = ("linked", True)
DIRECTORY = ("main", False)
KINDS = (FILE, DIRECTORY)
COMMITS = "echo more >>tracked && git add -A && git commit -qm inside"
PLAIN = (
    *("status", "diff", "add -A", "commit -qm mine", "log -p -3", "status", "diff HEAD~1"),
    *("describe --all --dirty", "submodule status", "submodule summary", "grep x", "stash -u"),
    *("stash pop", "clean -nd", "checkout -b another", "submodule update --init --recursive"),
    *("submodule foreach true", "ls-files -o", "gc --auto", "blame tracked"),
)
"""What a user does in the worktree, in this order; any of it may fail."""


@pytest.fixture(params=[one[1] for one in KINDS], ids=[one[0] for one in KINDS])
def place(request: pytest.FixtureRequest, runtime: str) -> Iterator[Yard]:
    """A user's repository, the worktree a linked one or the main one."""
    with yard(runtime, is_linked=request.param) as made:
        yield made


@pytest.fixture
def linked(runtime: str) -> Iterator[Yard]:
    """The same, with a linked worktree."""
    with yard(runtime) as made:
        yield made


def _box(work: Work) -> Box:
    sandbox: Any = work.thread.run(_box_of(work))
    return Box(work.thread, sandbox, work.root, "docker")


async def _box_of(work: Work) -> Any:
    await work.loop.execute(work.make("run_command", {"command": "true"}))
    return work.loop._lane


# ─── H1, H2, H14: the entry, and what is behind it ──────────────────────────────────


@pytest.mark.statement("H1", "H14")
def test_the_git_entry_stays_whatever_is_done_to_it(place: Yard) -> None:
    """Writing, removing, renaming, exchanging, linking: refused; the host's is untouched."""
    before = digest(place.directory), (place.root / ".git").lstat()
    with place.work() as work:
        told = probe(_box(work), RACES)
        assert set(map(str, told.values())) <= REFUSED, told
        commands = ["rm -rf .git && test ! -e .git", "mv .git x", "ln -sfnT /tmp .git"]
        commands += ["rmdir .git", "mv .git/. x", "mv ../workspace/.git x", "ln .git linked"]
        if place.is_linked:
            commands += ["echo x >.git", "mkdir -p .git/hooks", "touch .git/./config.worktree"]
            commands += ["ln -s . link; echo x >link/.git", "cp /dev/null .git/../.git"]
        for command in commands:
            assert work.call("run_command", command=command).is_error, command
        for name, given in (
            ("write_file", {"path": ".git/hooks/post-checkout", "content": "#!/bin/sh\n"}),
            ("write_file", {"path": "./.git/./config", "content": "[core]\n"}),
            ("write_file", {"path": "link/.git", "content": "gitdir: /tmp\n"}),
            ("delete_file", {"path": ".git", "recursive": True}),
            ("move_file", {"from": ".git", "to": "moved"}),
            ("move_file", {"from": "tracked", "to": ".git", "overwrite": True}),
        ):
            if place.is_linked or ("hooks" not in str(given) and "config" not in str(given)):
                assert work.call(name, **given).is_error, (name, given)
    after = (place.root / ".git").lstat()
    assert digest(place.directory) == before[0]
    assert (after.st_ino, after.st_mtime_ns) == (before[1].st_ino, before[1].st_mtime_ns)


@pytest.mark.statement("H14")
def test_another_spelling_is_another_file(linked: Yard) -> None:
    """`.GIT` on a file system that tells cases apart is no `.git`, and is never tracked."""
    report = linked.session("mkdir -p .GIT/hooks '.git ' && echo x >.GIT/config")
    assert linked.git("rev-parse", "--git-dir").endswith("/worktrees/worktree")
    report = linked.session("git add -Af . ; git ls-files", exec_id="two", must=False)
    assert report.faults == ()
    assert not linked.entries()


@pytest.mark.statement("H2", "L7")
def test_only_objects_of_the_repository_are_in_the_box(place: Yard) -> None:
    """Hooks, configuration, reflogs, stashes, other worktrees: no file, mount or ref shows them."""
    for name in PRIVATE:
        place.write(place.directory / name, f"#{CANARY}\n")
    place.git("config", "http.extraheader", f"Authorization: {CANARY}", place=place.main)
    place.git("config", "remote.up.url", f"https://ada:{CANARY}@example.org/x", place=place.main)
    place.write(place.root / "tracked", "stashed\n")
    place.git("stash", "push", "-qm", f"{CANARY}-stash")
    before = digest(place.directory)
    with place.work() as work:
        box = _box(work)
        places = "/workspace /tmp /var/tmp /home /run /etc /opt/executor/agent /dev/shm"
        ran = box.run(f"grep -rsa --exclude-dir=objects {CANARY} {places}; true", 60)
        assert ran.out == b""
        told = box.run(
            "cat /proc/self/mountinfo /proc/self/mounts; git config -l --show-origin; "
            "git stash list; git reflog --all; git worktree list; git for-each-ref; env"
        )
        assert CANARY not in told.out.decode()
        if place.runtime == "runsc":
            assert str(place.directory) not in told.out.decode()
        directory = "/run/executor/git" if place.is_linked else "/workspace/.git"
        for name in ("hooks/post-checkout", "config.worktree", "credentials", "modules/sub/config"):
            for path in (f"{directory}/{name}", f"{place.directory}/{name}"):
                assert box.run(f"cat {path}").code != 0, path
        stores = box.run("ls -d /run/executor/objects/* 2>/dev/null").out.decode().split()
        assert bool(stores) == (place.runtime == "runc")
        for store in stores:
            for attack in (f"touch {store}/x", f"rm -r {store}/pack", f"chmod -R 777 {store}"):
                assert box.run(attack).code != 0, attack
    assert digest(place.directory) == before


# ─── H3, H4 ─────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("H3")
def test_git_works_inside(place: Yard) -> None:
    """The commands that an agent uses, from a status to a rebase."""
    with place.work() as work:
        for command in (
            *("git status --porcelain", "echo x >>tracked && git diff --exit-code; test $? = 1"),
            *("git add -A", "git commit -qm one", "git log --oneline -3", "git diff HEAD~1"),
            *("echo y >>tracked && git restore tracked", "echo z >>d/other && git stash"),
            *("git stash pop", "git branch side", "git switch -qc third", "git commit -qam two"),
            *("git checkout -q side", "git rebase -q third", "git blame tracked", "git tag v1"),
            *("git merge -q third", "git revert --no-edit HEAD", "git worktree list"),
            "git fsck --no-dangling",
        ):
            result = work.call("run_command", command=command)
            assert not result.is_error, (command, result.content)
    assert work.loop.report is not None and work.loop.report.commits >= 2


@pytest.mark.statement("H4")
def test_the_repository_is_the_same_until_an_import(place: Yard) -> None:
    """After commits, tags and stashes not a byte differs; an import adds what it says."""
    before, tip = digest(place.directory), place.tip()
    report = place.session(
        COMMITS, "git tag v9 && git branch side", "echo x >d/other && git stash", "git gc -q"
    )
    assert report.is_kept and report.commits
    assert digest(place.directory) == before
    for command in ("list", "log", "diff"):
        place.executor("git", command, *(["one"] if command != "list" else []))
    assert digest(place.directory) == before
    place.executor("git", "import", "one")
    own = "worktrees/worktree/" if place.is_linked else ""
    expected = (
        *("objects", "refs/loops", f"refs/heads/{place.branch}", "logs/", "packed-refs"),
        *(f"{own}index", f"{own}logs", f"{own}ORIG_HEAD"),
    )
    for name in changed(before, digest(place.directory)):
        assert name.startswith(expected) or name in ("logs",), name
    assert place.git("rev-parse", f"{place.branch}~1") == tip
    assert place.git("fsck", "--no-dangling") == ""
    assert place.git("status", "--porcelain", "--untracked-files=no") in ("", " M d/other")


# ─── H5 to H8: nothing that a loop leaves is obeyed ─────────────────────────────────


def _nested(made: Yard, name: str) -> str:
    """Shell: a repository in the worktree, with a commit and every trap."""
    return (
        f"mkdir -p {name} && git -C {name} init -q && touch {name}/x && git -C {name} add x && "
        f"git -C {name} commit -qm x\n{made.plant(f'{name}/.git', name.replace('/', '_'))}\n"
        f"echo y >{name}/x; echo '* filter=x diff=x merge=x' >{name}/.gitattributes\n"
    )


def _traps(made: Yard, *, is_fatal: bool = False) -> list[str]:
    """Shell: every trap that a loop can set, in its own git directory and in the worktree."""
    private = made.plant("$(git rev-parse --absolute-git-dir)", "private", fatal=is_fatal)
    private = f"g=$(git rev-parse --absolute-git-dir)\n{private}".replace(
        "$(git rev-parse --absolute-git-dir)", "$g", 50
    ).replace("g=$g", "g=$(git rev-parse --absolute-git-dir)", 1)
    modules = (
        f'[submodule "sub"]\n\tpath = sub\n\turl = ./sub\n\tupdate = !{made.command("update")}\n'
        f'[submodule "../../x"]\n\tpath = sub\r\n\turl = ext::sh -c {made.command("ext")}\n'
        f'[submodule ".."]\n\tpath = ..\n\turl = -u{made.command("option")}\n'
    )
    return [
        *(_nested(made, name) for name in ("sub", "a/b/c/deep", "pointed", "linked", "bare")),
        "mv pointed/.git elsewhere && echo 'gitdir: ../elsewhere' >pointed/.git\n"
        "mv linked/.git .else && ln -s ../.else linked/.git\n"
        "mv bare/.git/* bare/ && rm -r bare/.git\n"
        "printf '[core]\\n\\tbare = false\\n\\tworktree = .\\n' >>bare/config",
        f"cat >.gitmodules <<'END'\n{modules}END\n"
        "echo '* filter=lfs diff=x merge=x' >.gitattributes\n"
        f"printf '[lfs]\\n\\turl = ssh://x\\n[core]\\n\\tfsmonitor = "
        f'"{made.command("lfsconfig")}"\\n\' >.lfsconfig',
        private,
    ]


def _use_as_the_user(made: Yard) -> None:
    """All that a user does in the worktree and in every directory of it."""
    for line in PLAIN:
        made.try_git(*line.split())
    for directory, below, _ in os.walk(made.root):
        if Path(directory) == made.root and ".git" in below:
            below.remove(".git")
        for line in ("status", "diff"):
            made.try_git(line, place=Path(directory))


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A global configuration of who runs the controller: git-lfs, each command a trap."""
    fired = tmp_path / "fired"
    fired.mkdir()
    home = tmp_path / "controller"
    home.mkdir()
    text = "".join(f"\t{key} = touch {fired}/{key}\n" for key in ("clean", "smudge", "process"))
    text = f'[filter "lfs"]\n{text}\trequired = true\n'
    (home / ".gitconfig").write_text(text + f'[diff "x"]\n\ttextconv = touch {fired}/textconv\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    yield fired


@pytest.mark.statement("H5", "H6", "H7", "H8")
@pytest.mark.parametrize("landing", ["keep", "refs", "branch", "commit"])
def test_no_program_of_a_loop_runs_on_the_host(place: Yard, landing: str, drivers: Path) -> None:
    """By no operation of ours, nor by what the user then does in the worktree."""
    options = GitOptions(commit=True) if landing == "commit" else GitOptions(landing=landing)
    tip = place.tip()
    report = place.session(COMMITS, *_traps(place), git=options, must=False)
    assert place.sprung() == set(), "at the end of the loop"
    assert report.aftermath is not None
    named = {one.path for one in report.aftermath.nested}
    assert {"sub/.git", "a/b/c/deep/.git", "pointed/.git", "linked/.git"} <= named, named
    assert any(name == "bare" or name.startswith("bare/") for name in named), named
    place.executor("git", "list")
    for command in ("log", "diff"):
        place.executor("git", command, "one", code=None)
    if place.entries():
        place.executor("git", "import", "one", code=None)
        place.executor("git", "discard", "one", "--yes", code=None)
    assert place.sprung() == set(), "by the command line"
    assert os.listdir(drivers) == []
    has_advanced = place.tip() != tip
    assert has_advanced == (landing != "refs"), report.sentences()
    _use_as_the_user(place)
    assert place.sprung() == set(), "by the user's git"
    if place.is_linked:
        place.git("worktree", "remove", "--force", str(place.root), place=place.main)
        assert place.sprung() == set(), "by removing the worktree"


@pytest.mark.statement("H5", "H6", "H8")
def test_the_traps_are_sprung_where_git_is_let_near(linked: Yard) -> None:
    """The control: with `nested = report`, and with host git in what a loop wrote, they fire."""
    options = GitOptions(nested="report")
    linked.session(*_traps(linked), git=options, must=False)
    assert linked.sprung() == set()
    for name in ("sub", "a/b/c/deep", "pointed", "linked", "bare"):
        for line in ("status", "diff"):
            linked.try_git(line, place=linked.root / name)
    fired = linked.sprung()
    for name in ("sub", "a_b_c_deep", "pointed", "linked", "bare"):
        assert any(one.startswith(f"{name}-") for one in fired), (name, fired)


@pytest.mark.statement("H5", "H6", "H7", "H8")
def test_nothing_runs_for_a_worktree_that_was_made(linked: Yard, drivers: Path) -> None:
    """`--repo` and `--branch`: check-out, landing and removal obey nothing of the loop's."""
    attributes = "* filter=lfs diff=x\n"
    linked.write(linked.main / ".gitattributes", attributes)
    linked.git("add", ".", place=linked.main)
    linked.git("commit", "-qm", "attributes", place=linked.main)
    report = linked.session(COMMITS, *_traps(linked), must=False, repo=linked.main, branch="made")
    assert linked.sprung() == set()
    assert os.listdir(drivers) == []
    assert linked.git("log", "-1", "--format=%s", "made", place=linked.main) == "inside", (
        report.sentences()
    )
    assert report.worktree is None
    assert not any((linked.state / "worktrees").glob("*/tree"))


@pytest.mark.statement("H5", "H6", "H8")
@pytest.mark.parametrize("how", ["worktree", "repo"])
def test_nothing_runs_when_a_dead_controller_is_cleared_away(linked: Yard, how: str) -> None:
    """kill -9, then the reaper, the list, an import that asks a box, and the user's git."""
    arguments = () if how == "worktree" else ("--repo", str(linked.main), "--branch", "made")
    tip = linked.tip()
    linked.killed(COMMITS, *_traps(linked), arguments=arguments)
    linked.executor("reap")
    assert linked.sprung() == set()
    said = linked.executor("git", "list")
    assert "dead" in said
    linked.executor("git", "log", "dead", code=None)
    linked.executor("git", "import", "dead")
    branch = linked.branch if how == "worktree" else "made"
    assert linked.git("log", "-1", "--format=%s", branch, place=linked.main) == "inside"
    assert linked.tip(f"{branch}~1") == tip
    assert linked.sprung() == set()
    _use_as_the_user(linked)
    assert linked.sprung() == set()


@pytest.mark.statement("H5")
def test_a_private_directory_that_leads_astray_is_only_refused(linked: Yard) -> None:
    """With `core.worktree` and the rest in it, the loop ends, and the host obeys nothing."""
    linked.session(COMMITS, *_traps(linked, is_fatal=True), must=False)
    linked.executor("git", "list")
    linked.executor("git", "import", "one", code=None)
    assert linked.sprung() == set()


# ─── H9: a hostile git directory, and a hostile git ─────────────────────────────────

PREPARED = "g=$(git rev-parse --absolute-git-dir); h=$(git rev-parse HEAD); "
PROGRAM = """
mkdir -p $HOME/bin && for d in $HOME/bin /workspace/bin; do mkdir -p $d
printf '#!/bin/sh\\necho evil >&2\\nexec cat /dev/zero\\n' >$d/git && chmod 755 $d/git; done
printf 'export PATH=$HOME/bin:/workspace/bin:$PATH\\n' | tee $HOME/.profile $HOME/.bashrc
"""
HOSTILE = {
    "head-fifo": "rm $g/HEAD && mkfifo $g/HEAD",
    "head-link": "rm $g/HEAD && ln -s /etc/passwd $g/HEAD",
    "head-text": "printf 'ref: refs/heads/../../../../etc/x\\n' >$g/HEAD",
    "head-long": "head -c 300000000 /dev/zero | tr '\\0' x >$g/HEAD",
    "index-fifo": "rm $g/index && mkfifo $g/index",
    "index-link": "rm $g/index && ln -s /dev/zero $g/index",
    "refs-link": "mv $g/refs /tmp/r; ln -s /etc $g/refs",
    "refs-cycle": "ln -s . $g/refs/heads/round",
    "ref-fifo": "mkfifo $g/refs/heads/pipe",
    "ref-newline": "echo $h >\"$g/refs/heads/$(printf 'a\\nref b')\"",
    "ref-option": "echo $h >$g/refs/heads/--upload-pack=x; "
    "printf '%s refs/heads/-x\\n' $h >>$g/packed-refs",
    "ref-dots": "printf '%s refs/heads/../../evil\\n' $h >>$g/packed-refs",
    "ref-escape": "printf '%s refs/heads/\\033[2Jx\\n' $h >>$g/packed-refs",
    "refs-many": "c=$(git commit-tree -m x HEAD^{tree}); i=0; while [ $i -lt 100000 ]; do "
    'echo "$c refs/heads/n$i"; i=$((i+1)); done >>$g/packed-refs',
    "replace": "git replace -f HEAD $(git commit-tree -m replaced HEAD^{tree})",
    "grafts": "mkdir -p $g/info; echo $h >$g/info/grafts; echo $h >>$g/shallow",
    "shallow-text": "printf 'x\\0y\\n' >$g/shallow",
    "alternates-cycle": "echo $g/objects >>$g/objects/info/alternates",
    "alternates-away": "echo /workspace/evil >$g/objects/info/alternates",
    "alternates-fifo": "rm -f $g/objects/info/alternates; mkfifo $g/objects/info/alternates",
    "objects-link": "rm -rf $g/objects; ln -s /proc/1/root $g/objects",
    "objects-corrupt": "c=$(git rev-parse HEAD); o=$g/objects/$(echo $c | cut -c1-2)/$(echo $c | "
    "cut -c3-); chmod u+w $o; echo broken >$o",
    "objects-gone": "c=$(git rev-parse HEAD^{tree}); rm -f $g/objects/$(echo $c | cut -c1-2)/"
    "$(echo $c | cut -c3-)",
    "directory-closed": "chmod 0 $g",
    "directory-emptied": "rm -rf $g/* $g/.??*",
    "config-broken": "echo '[[[' >$g/config",
    "config-pack": "git config pack.window 1000000; git config pack.depth 4000; git config "
    "pack.packSizeLimit 1; git config core.compression 9; "
    "git config core.fsmonitor 'cat /dev/zero'",
    "config-include": "git config include.path /dev/zero",
    "git-in-home": PROGRAM,
    "git-aliased": "printf '[alias]\\n\\trev-parse = !cat /dev/zero\\n[core]\\n\\t"
    "fsmonitor = sleep 1000\\n' >$HOME/.gitconfig; git config core.hooksPath /workspace/bin",
}
HARMLESS = {
    *("refs-cycle", "ref-fifo", "replace", "grafts", "config-pack", "git-in-home", "git-aliased"),
    *("ref-option", "ref-dots", "ref-escape", "ref-newline", "alternates-cycle", "index-fifo"),
    *("index-link", "head-text", "refs-link"),
}
"""After these the commits may still come; after the others nothing does, and the report says it."""


@pytest.mark.statement("H9")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_git_directory_is_refused_or_harmless(
    linked: Yard, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host stays whole and bounded, the report says why, and the next loop works."""
    for limit in ("LIST_SECONDS", "PACK_SECONDS", "FETCH_SECONDS"):  # minutes otherwise
        monkeypatch.setattr(export, limit, 15.0)
    before, tip = digest(linked.directory), linked.tip()
    options = GitOptions(landing="branch")
    report = linked.session(COMMITS, PREPARED + HOSTILE[case], must=False, git=options)
    assert linked.git("fsck", "--no-dangling", "--strict") == ""
    if linked.tip() != tip:
        # Over gVisor the directory has its objects itself, and needs no others.
        is_copied = linked.runtime == "runsc" and case == "alternates-away"
        assert is_copied or case in HARMLESS, report.sentences()
        assert linked.tip(f"{linked.branch}~1") == tip
        assert linked.git("log", "-1", "--format=%s") == "inside"
    else:
        came = changed(before, digest(linked.directory))
        assert all(one.startswith(("objects/", "refs/loops", "logs/refs")) for one in came), came
        # A loop that has destroyed its own refs has made nothing.
        assert report.faults or case in HARMLESS, report.sentences()
        assert all(one.isprintable() for one in report.sentences())
    refs = linked.git("for-each-ref", "--format=%(refname)").splitlines()
    assert all(one.startswith(("refs/heads/", "refs/loops/one/")) for one in refs), refs
    assert {one for one in refs if one.startswith("refs/heads/")} <= {
        "refs/heads/main",
        "refs/heads/work",
    }
    tip = linked.tip()
    after = linked.session("git commit -q --allow-empty -m later", exec_id="later", git=options)
    assert after.landed is not None, after.sentences()
    assert linked.tip(f"{linked.branch}~1") == tip


@pytest.mark.statement("H9")
@pytest.mark.parametrize(
    "name", [".GIT", "git~1", ".gi\\342\\200\\214t", ".git ", "link", "module"]
)
def test_a_bad_tree_is_refused(linked: Yard, name: str) -> None:
    """`.git` in any spelling, a repository inside, a link for `.gitmodules`: nothing lands."""
    before = digest(linked.directory)
    entry = f"100644 blob $b\\t{name}\\n"
    if name == "link":
        entry = "120000 blob $b\\t.gitmodules\\n"
    elif name == "module":
        entry = "160000 commit $(git rev-parse HEAD)\\tinside\\n"
    script = (
        f'b=$(echo x | git hash-object -w --stdin); t=$(printf "{entry}" | git mktree --missing); '
        "git update-ref refs/heads/work $(git commit-tree -p HEAD -m bad $t)"
    )
    report = linked.session(script, git=GitOptions(landing="branch"))
    assert report.faults and "refused" in report.faults[0], report.sentences()
    assert digest(linked.directory) == before
    assert not any((linked.state / "git").glob("*/arrival/objects"))


@pytest.mark.statement("H9")
def test_a_pack_over_the_limit_is_refused(linked: Yard) -> None:
    """What is packed larger than allowed does not land; the rest of the loop is untouched."""
    before = digest(linked.directory)
    script = "head -c 3000000 /dev/urandom >big && git add -A && git commit -qm big"
    options = GitOptions(landing="branch", pack_bytes="1m")
    report = linked.session(script, git=options)
    assert report.faults and "1048576" in report.faults[0], report.sentences()
    assert digest(linked.directory) == before


# ─── H10, H11 ───────────────────────────────────────────────────────────────────────


@pytest.mark.statement("H10")
def test_names_from_a_model_are_never_options(linked: Yard) -> None:
    """Tools of git take none that begins with a dash, and no shell reads any."""
    hostile = (
        *("--upload-pack=touch x", "-x", "a;touch x", "$(touch x)", "`touch x`", "a\nb", "../x"),
        *("a..b", "x.lock", "", "@{-1}", "HEAD^{/x}", "a b", "--output=x", "-Oorder"),
    )
    with linked.work() as work:
        names = {one["name"]: one for one in work.loop.definitions()}
        tools = [name for name in names if name.startswith("git_")]
        for tool in tools:
            schema = names[tool]["input_schema"]
            for key, kind in schema.get("properties", {}).items():
                if kind.get("type") != "string":
                    continue
                required = {one: "x" for one in schema.get("required", [])}
                for name in hostile:
                    work.call(tool, **{**required, key: name})
        listed = str(work.call("run_command", command="ls -A; ls -A d").content)
        assert {"x", "order"}.isdisjoint(listed.split()), listed
        refs = str(work.call("run_command", command="git for-each-ref").content)
        assert "/-" not in refs
    assert not (linked.root / "x").exists()


@pytest.mark.statement("H10")
@pytest.mark.parametrize(
    "branch", ["--x", "-b", "a;touch x", "a..b", "x.lock", "a\nb", "../x", "HEAD"]
)
def test_a_bad_name_of_a_branch_is_refused(linked: Yard, branch: str) -> None:
    """`--branch` is checked before anything is made."""
    before = digest(linked.directory)
    with pytest.raises(ConfigError), linked.work(repo=linked.main, branch=branch):
        pass
    assert digest(linked.directory) == before
    assert not any((linked.state / "worktrees").glob("*/tree"))


@pytest.mark.statement("H10")
@pytest.mark.parametrize("branch", ["$(id>x)", "a;id>x", "`id`", "a|id&", "'x'"])
def test_no_shell_reads_the_name_of_a_branch(linked: Yard, branch: str) -> None:
    """What a shell would execute is a name like any, and lands under it."""
    report = linked.session(COMMITS, repo=linked.main, branch=branch)
    assert report.faults == ()
    refs = linked.git("for-each-ref", "--format=%(refname)", place=linked.main).splitlines()
    assert f"refs/heads/{branch}" in refs
    assert linked.git("status", "--porcelain", place=linked.main) == ""


@pytest.mark.statement("H10")
@pytest.mark.parametrize("exec_id", ["--x", "../x", "a/b", "x;y", "$(x)", "a\nb", ".x", "x" * 65])
def test_a_bad_name_of_a_loop_is_refused(linked: Yard, exec_id: str) -> None:
    """It becomes a part of refs and paths, so it is no more than a plain word."""
    with pytest.raises(ConfigError, match="exec_id"), linked.work(exec_id):
        pass


@pytest.mark.statement("H11")
@pytest.mark.parametrize("case", ["elsewhere", "another", "back", "gone", "link"])
def test_pointers_that_do_not_match_are_refused(linked: Yard, case: str) -> None:
    """A `.git` file that leads where nothing leads back opens no loop and changes nothing."""
    other = linked.place / "other"
    linked.git("worktree", "add", "-q", "-b", "other", str(other), place=linked.main)
    back = linked.directory / "worktrees/worktree/gitdir"
    pointer = linked.root / ".git"
    if case == "elsewhere":
        linked.write(pointer, f"gitdir: {linked.place}/home\n")
    elif case == "another":
        linked.write(pointer, f"gitdir: {linked.directory}/worktrees/other\n")
    elif case == "back":
        back.write_text(f"{other}/.git\n")
    elif case == "gone":
        back.unlink()
    else:
        pointer.unlink()
        pointer.symlink_to(linked.directory / "worktrees/worktree")
    before = digest(linked.directory), digest(other)
    with pytest.raises(ConfigError), linked.work():
        pass
    assert (digest(linked.directory), digest(other)) == before


# ─── H12, H13, H15 ──────────────────────────────────────────────────────────────────

EXECUTED = (
    *(".envrc", ".vscode/tasks.json", ".idea/workspace.xml", ".claude/settings.json", ".mcp.json"),
    *("Makefile", "package.json", ".npmrc", "conftest.py", "pyproject.toml", "sitecustomize.py"),
    *(".pre-commit-config.yaml", ".tool-versions", ".python-version", "x.pth"),
)


@pytest.mark.statement("H12")
def test_what_a_users_tools_execute_is_listed(linked: Yard) -> None:
    """The controller runs none of it, and the report names each."""
    lines = [
        f"mkdir -p $(dirname {name}); echo '{linked.command('ran')}' >{name}; chmod 755 {name}"
        for name in EXECUTED
    ]
    report = linked.session("\n".join(lines))
    assert report.aftermath is not None
    told = json.dumps(report.as_json())
    listed = json.dumps(report.as_json()["aftermath"]["executed"])
    assert [name for name in EXECUTED if json.dumps(name)[1:-1] not in listed] == [], told
    assert linked.sprung() == set()


@pytest.mark.statement("H13")
def test_git_that_appears_while_the_box_is_made_is_no_loop(tmp_path: Path) -> None:
    """A `.git` that is there at the start but was not at the first look refuses the box."""
    root = make_worktree(tmp_path / "worktree")
    with open_worktree(root) as worktree:
        assert worktree.git is GitEntry.NONE
        (root / ".git").mkdir()
        with pytest.raises(Exception, match=r"\.git of .* was replaced"):
            worktree.check()


@pytest.mark.statement("H6", "H13")
def test_a_repository_made_in_a_plain_directory_is_set_aside(linked: Yard) -> None:
    """`git init` works inside; at the end git outside sees nothing of it."""
    plain = linked.place / "plain"
    plain.mkdir()
    linked.give(plain)
    report = linked.session(
        "git init -q && touch x && git add x && git commit -qm x",
        linked.plant(".git", "plain"),
        worktree=plain,
    )
    assert report.aftermath is not None
    assert [one.path for one in report.aftermath.nested] == [".git"]
    assert not (plain / ".git").exists()
    assert (plain / ".git.from-one").is_dir()
    for line in ("status", "diff", "log"):
        assert linked.try_git(line, place=plain).returncode != 0
    assert linked.sprung() == set()


@pytest.mark.statement("H15")
def test_host_git_is_found_by_fixed_absolute_paths(
    linked: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `git` of the worktree, first in PATH and in the directory that is worked in, is not run."""
    trap = f'#!/bin/sh\n{linked.command("program")}\nexec /usr/bin/git "$@"\n'
    for name in ("git", "sh", "tar", "docker"):
        linked.write(linked.root / name, trap)
        (linked.root / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{linked.root}:.:{os.environ['PATH']}")
    monkeypatch.chdir(linked.root)
    monkeypatch.setenv("GIT_EXEC_PATH", str(linked.root))
    report = linked.session(COMMITS, git=GitOptions(landing="branch"))
    assert report.landed is not None and report.landed.advanced
    linked.executor("git", "list")
    assert linked.sprung() == set()
    assert Git.find().program.is_absolute()
    assert ENVIRONMENT["PATH"] == ":".join(SEARCHED)
    assert all(one.startswith("/") for one in SEARCHED)
