"""Git on the host has nothing of its caller's surroundings, executes nothing, leaves nothing."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from executor.errors import ConfigError
from executor.git.program import Git, as_owner
from executor.git.values import GitError
from executor.sandbox.container import Owner
from executor.settings import Settings
from tests.git import loops
from tests.git.conftest import HostGit
from tests.git.others import OTHER, give, needs_root, shared_place

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to."""
    return asyncio.run(work)


@pytest.fixture(name="origin")
def _origin(tmp_path: Path) -> Path:
    return loops.make_origin(tmp_path / "origin")


@pytest.fixture(name="shared")
def _shared() -> Iterator[Path]:
    with shared_place() as place:
        yield place


def script(path: Path, text: str) -> Path:
    """A program."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_program_is_absolute_and_known(host_git: HostGit) -> None:
    """Git is called by its absolute path, and its release is known."""
    found = Git.find(host_git.program)
    assert (found.program, found.version) == (host_git.program, host_git.version)
    assert Git.find().program.is_absolute()


def test_no_program_of_the_callers_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H15: neither PATH nor the working directory has a say in which git runs."""
    script(tmp_path / "git", f"touch {tmp_path}/fired")
    monkeypatch.setenv("PATH", f"{tmp_path}:.")
    monkeypatch.chdir(tmp_path)
    found = Git.find()
    run(found.run(["version"]))
    assert found.program.parent != tmp_path
    assert not (tmp_path / "fired").exists()


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("git version 2.30.9", "oldest"),
        ("something else", "does not say that it is git"),
    ],
)
def test_an_unfit_program_is_refused(tmp_path: Path, says: str, why: str) -> None:
    """What is too old, or no git, is refused with the mend."""
    with pytest.raises(ConfigError, match=why):
        Git.find(script(tmp_path / "git", f"echo {says}"))


@pytest.mark.parametrize("name", ["/nonexistent/git", "git"])
def test_a_wrong_name_is_refused(name: str) -> None:
    """A program that isn't there, or whose name is relative, is refused."""
    with pytest.raises(ConfigError, match="git:"):
        Git.find(Path(name))


def test_a_variable_names_the_program() -> None:
    """EXECUTOR_GIT names the program; a relative name is a fault."""
    assert Settings.load({"EXECUTOR_GIT": "/opt/git"}).git_program == Path("/opt/git")
    with pytest.raises(ConfigError, match="EXECUTOR_GIT"):
        Settings.load({"EXECUTOR_GIT": "git"})


def test_nothing_of_the_callers_environment_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git's environment is the fixed one and what a call adds."""
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "touch /tmp/x")
    monkeypatch.setenv("SECRET", "s3cret")
    program = script(
        tmp_path / "git", "case $1 in --version) echo git version 2.39.5;; *) env;; esac"
    )
    told = run(Git.find(program).text(["x"], environment={"MINE": "1"}))
    names = {line.partition("=")[0] for line in told.splitlines()}
    assert "MINE" in names
    assert not {"SECRET", "GIT_EXTERNAL_DIFF", "XDG_CONFIG_HOME"} & names
    assert "HOME=/nonexistent" in told.splitlines()


def test_it_runs_where_no_box_writes(tmp_path: Path) -> None:
    """The working directory is the root directory unless another is given."""
    program = script(
        tmp_path / "git", "case $1 in --version) echo git version 2.39.5;; *) pwd;; esac"
    )
    assert run(Git.find(program).text(["x"])) == "/"
    assert run(Git.find(program).text(["x"], directory=tmp_path)) == str(tmp_path)


def test_failures_are_told(origin: Path) -> None:
    """A failed command has a code and git's words; `output` raises them."""
    git = Git.find()
    done = run(git.run(["cat-file", "-e", "nosuch"], git_directory=origin / ".git"))
    assert done.code == 128
    assert "Not a valid object name nosuch" in done.reason
    with pytest.raises(GitError, match="Not a valid object name"):
        run(git.output(["cat-file", "-e", "nosuch"], git_directory=origin / ".git"))


def test_input_is_bytes_or_a_descriptor(tmp_path: Path) -> None:
    """Much input arrives whole, by either way; git that does not read it is no fault."""
    data = os.urandom(5 << 20)
    (tmp_path / "data").write_bytes(data)
    git = Git.find()
    by_bytes = run(git.text(["hash-object", "--stdin"], given=data))
    with (tmp_path / "data").open("rb") as file:
        by_descriptor = run(git.text(["hash-object", "--stdin"], given=file.fileno()))
    assert by_bytes == by_descriptor
    assert len(by_bytes) == 40
    assert run(git.run(["version"], given=data)).code == 0


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def is_over(process: int) -> bool:
    """It has ended, or ends within some seconds: KILL takes its time on a busy machine."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 10)[0])
    finally:
        os.close(handle)


def children() -> list[str]:
    """Processes that this one has started and that are there, zombies too."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


STRAY = "case $1 in --version) echo git version 2.39.5; exit;; esac"


@pytest.mark.parametrize("way", ["cancelled", "late", "too long", "told it"])
def test_nothing_is_left(tmp_path: Path, way: str) -> None:
    """However a call ends, its process group is gone, and so are its pipes."""
    ends = {"too long": "yes", "told it": f"sleep 600 >/dev/null 2>&1 & echo $! >{tmp_path}/pid"}
    last = ends.get(way, "sleep 600")
    program = script(
        tmp_path / "git",
        f"{STRAY}\n(sleep 600) & echo $! >{tmp_path}/pid\n: >{tmp_path}/on\n{last}",
    )
    if way == "told it":
        program = script(tmp_path / "git", f"{STRAY}\necho fine")
    git = Git.find(program)

    async def work() -> tuple[int, int]:
        await Git.find().run(["version"])  # what asyncio opens once is open
        before = descriptors()
        if way == "late":
            with pytest.raises(GitError, match="not done in"):
                await git.run(["x"], timeout=0.5)
        elif way == "too long":
            with pytest.raises(GitError, match="more than 1000 bytes"):
                await git.run(["x"], most=1000)
        elif way == "told it":
            assert await git.text(["x"]) == "fine"
        else:
            task = asyncio.create_task(git.run(["x"]))
            while not (tmp_path / "on").exists():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.sleep(0)
        return before, descriptors()

    before, after = run(work())
    assert after == before
    assert not children()
    if way != "told it":
        assert is_over(int((tmp_path / "pid").read_text()))


@needs_root
def test_it_runs_as_the_owner(shared: Path) -> None:
    """As root, git runs as the repository's owner, without root's groups."""
    program = script(shared / "git", f"{STRAY}\nid -u; id -G")
    told = run(Git.find(program).text(["x"], owner=OTHER))
    assert told.split() == [str(OTHER.uid), str(OTHER.gid)]
    told = run(Git.find(program).text(["x"], owner=Owner(0, 0)))
    assert told.split()[0] == "0"


@needs_root
def test_what_it_writes_is_the_owners(shared: Path) -> None:
    """What git writes in another user's repository belongs to him."""
    origin = loops.make_origin(shared / "origin")
    give(origin, OTHER)
    git = Git.find()
    arguments = ["update-ref", "refs/loops/x", "refs/heads/main"]
    run(git.output(arguments, git_directory=origin / ".git", owner=OTHER))
    assert (origin / ".git/refs/loops/x").stat().st_uid == OTHER.uid


@needs_root
def test_a_program_as_somebody_may_what_he_may(shared: Path) -> None:
    """What is run as somebody can't read what is not his."""
    secret = shared / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    done = run(as_owner(["/bin/cat", str(secret)], OTHER))
    assert (done.code, done.output) == (1, b"")


# ─── what git would execute ─────────────────────────────────────────────────────────

EXECUTED = {
    "core.fsmonitor": "{canary}",
    "core.pager": "{canary}",
    "core.editor": "{canary}",
    "core.sshCommand": "{canary}",
    "core.gitProxy": "{canary}",
    "core.askPass": "{canary}",
    "core.alternateRefsCommand": "{canary}",
    "sequence.editor": "{canary}",
    "diff.external": "{canary}",
    "diff.mine.command": "{canary}",
    "diff.mine.textconv": "{canary}",
    "filter.mine.clean": "{canary}",
    "filter.mine.smudge": "{canary}",
    "filter.mine.process": "{canary}",
    "filter.mine.required": "true",
    "merge.mine.driver": "{canary}",
    "gpg.program": "{canary}",
    "log.showSignature": "true",
    "commit.gpgSign": "true",
    "tag.gpgSign": "true",
    "credential.helper": "!{canary}",
    "alias.rev-parse": "!{canary}",
    "alias.status": "!{canary}",
    "uploadpack.packObjectsHook": "{canary}",
    "gc.auto": "1",
    "gc.recentObjectsHook": "{canary}",
    "pager.log": "{canary}",
    "pager.config": "{canary}",
    "interactive.diffFilter": "{canary}",
    "submodule.sub.update": "!{canary}",
    "submodule.recurse": "true",
    "remote.origin.url": "ext::{canary}",
    "remote.origin.vcs": "mine",
    "protocol.allow": "always",
    "protocol.ext.allow": "always",
    "hook.mine.event": "reference-transaction",
    "hook.mine.command": "{canary}",
}


def trap(origin: Path, canaries: Path, *, included: bool) -> None:
    """Give a repository every setting and hook that could execute something."""
    canaries.mkdir()
    canaries.chmod(0o777)
    canary = script(canaries / "canary", f'echo "$0 $*" >>{canaries}/fired\nexit 1')
    target = origin / "included" if included else origin / ".git/config"
    for key, value in EXECUTED.items():
        loops.git(origin, "config", "-f", str(target), key, value.format(canary=canary))
    if included:
        loops.git(origin, "config", "include.path", "../included")
    hooks = origin / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-index-change", "post-checkout", "pre-auto-gc"):
        script(hooks / name, f"echo {name} >>{canaries}/fired")
    (origin / ".git/info").mkdir(exist_ok=True)
    (origin / ".git/info/attributes").write_text("* diff=mine filter=mine merge=mine\n")


COMMANDS = [
    ["rev-parse", "HEAD"],
    ["for-each-ref", "--contains=HEAD"],
    ["ls-files", "--stage", "-z"],
    ["cat-file", "-p", "HEAD"],
    ["symbolic-ref", "HEAD"],
    ["merge-base", "--is-ancestor", "HEAD~1", "HEAD"],
    ["log", "-p", "--no-ext-diff", "--no-textconv", "HEAD"],
    ["diff-tree", "-r", "-p", "HEAD~1", "HEAD"],
    ["diff", "--no-ext-diff", "--no-textconv", "HEAD~1", "HEAD"],
    ["update-ref", "refs/loops/x/head", "HEAD"],
    ["read-tree", "--reset", "HEAD"],
    ["rev-list", "--objects", "HEAD"],
    ["fsck", "--connectivity-only"],
    ["config", "--list"],
    ["count-objects", "-v"],
    ["fetch", "origin"],
    ["ls-remote", "origin"],
    ["maintenance", "run", "--auto"],
    ["gc", "--auto"],
]


@pytest.mark.parametrize("included", [False, True], ids=["own", "included"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_nothing_that_is_configured_is_executed(
    host_git: HostGit, origin: Path, tmp_path: Path, command: list[str], included: bool
) -> None:
    """H5: no setting of a repository, or of a file that it includes, has git execute anything."""
    loops.commit(origin, {"a.txt": "changed\n"})
    trap(origin, tmp_path / "canaries", included=included)
    run(Git.find(host_git.program).run(command, git_directory=origin / ".git"))
    assert not (tmp_path / "canaries/fired").exists()


def test_the_canaries_can_fire(origin: Path, tmp_path: Path) -> None:
    """The same settings do execute something where nothing overrules them."""
    loops.commit(origin, {"a.txt": "changed\n"})
    trap(origin, tmp_path / "canaries", included=False)
    subprocess.run(
        ["git", "update-ref", "refs/loops/x/head", "HEAD"],
        cwd=origin,
        env=loops.IDENTITY,
        capture_output=True,
        check=False,
    )
    assert (tmp_path / "canaries/fired").exists()


def test_filters_of_a_repository_are_blanked(
    host_git: HostGit, origin: Path, tmp_path: Path
) -> None:
    """A checkout with the variables of `without_drivers` runs no filter; without them it does."""
    trap(origin, tmp_path / "canaries", included=False)
    name = "filter.a=b c.smudge"
    loops.git(origin, "config", name, f"{tmp_path}/canaries/canary")
    (origin / ".git/info/attributes").write_text('* filter=mine\na.txt filter="a=b\n')
    git = Git.find(host_git.program)
    fired = tmp_path / "canaries/fired"

    async def check_out(tree: Path, *, blanked: bool) -> int:
        tree.mkdir()
        directory = origin / ".git"
        variables = {"GIT_WORK_TREE": str(tree), "GIT_INDEX_FILE": str(tree) + ".index"}
        if blanked:
            variables |= await git.without_drivers(directory)
            assert name in variables.values()
        arguments = ["read-tree", "--reset", "-u", "HEAD"]
        return (await git.run(arguments, git_directory=directory, environment=variables)).code

    assert run(check_out(tmp_path / "blanked", blanked=True)) == 0
    assert (tmp_path / "blanked/a.txt").read_text() == "a\n"
    assert not fired.exists()
    run(check_out(tmp_path / "plain", blanked=False))
    assert fired.exists()


def test_hooks_of_the_configuration_are_switched_off(origin: Path, tmp_path: Path) -> None:
    """Git that has hooks in its configuration is told to run none of them."""
    trap(origin, tmp_path / "canaries", included=False)
    git = replace(Git.find(), version=(2, 54))
    told = run(
        git.text(
            ["config", "--get", "hook.mine.enabled"],
            git_directory=origin / ".git",
            environment=run(git.without_drivers(origin / ".git")),
        )
    )
    assert told == "false"
    assert run(git.run(["var", "GIT_EDITOR"], git_directory=origin / ".git")).code == 0


def test_the_users_configuration_is_only_listed(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but a listing sees the user's configuration, and nothing else may ask for it."""
    (tmp_path / "config").write_text(
        f"[user]\n\tname = Grace\n[trace2]\n\tnormalTarget = {tmp_path}/trace\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    git = Git.find()
    listing = ["config", "--list"]
    assert "user.name=Grace" not in run(git.text(listing, git_directory=origin / ".git"))
    assert "user.name=Grace" in run(
        git.text(listing, git_directory=origin / ".git", user_configuration=True)
    )
    assert not (tmp_path / "trace").exists()
    with pytest.raises(ValueError, match="only be listed"):
        run(git.text(["log"], git_directory=origin / ".git", user_configuration=True))
