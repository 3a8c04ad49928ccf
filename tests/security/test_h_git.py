"""H: what holds of git while a repository is hidden from its box.

The part of the statements that needs git inside comes with it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.sandbox.ownership import GitEntry, open_worktree
from tests.conftest import LIMITS, UID, make_worktree
from tests.driver import Box
from tests.loops import Work, open_work
from tests.security.probes import probe

CANARY = "canary-of-the-repository"
GIT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b.invalid",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b.invalid",
}
PRIVATE = (
    *("hooks/post-checkout", "config.worktree", "info/attributes", "modules/sub/config"),
    *("objects/info/alternates", "credentials"),
)
"""Files of a git directory that say something, or have something executed."""
RACES = """
old, new = b"/workspace/.git", b"/workspace/swapped"
os.symlink("/tmp", new)
RENAMEAT2 = 276 if IS_ARM else 316
told = {
    "write": attempt(os.open, old, os.O_WRONLY),
    "create": attempt(os.open, old + b"/new", os.O_CREAT | os.O_WRONLY),
    "truncate": attempt(os.truncate, old, 0),
    "unlink": attempt(os.unlink, old),
    "rmdir": attempt(os.rmdir, old),
    "rename": attempt(os.rename, old, b"/workspace/moved"),
    "replace": attempt(os.rename, new, old),
    "exchange": syscall(RENAMEAT2, -100, old, -100, new, 2),
    "link": attempt(os.link, old, b"/workspace/linked"),
    "symlink": attempt(os.symlink, b"/tmp", old),
    "mkdir": attempt(os.mkdir, old + b"/hooks"),
    "chmod": attempt(os.chmod, old, 0o777),
    "xattr": attempt(os.setxattr, old, b"user.x", b"y"),
    "parent": attempt(os.rename, b"/workspace", b"/workspace2"),
}
os.unlink(new)
tell(told)
"""
REFUSED = {"EROFS", "EBUSY", "EACCES", "ENOTDIR", "EPERM", "EISDIR", "ENOTEMPTY", "EXDEV"}
REFUSED |= {"EEXIST", "EINVAL", "ENOTSUP", "EOPNOTSUPP"}


def git(directory: Path, *arguments: str) -> str:
    """What git says, as the owner of everything."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", directory, *arguments],
        env=GIT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout


@pytest.fixture(scope="module", params=["file", "directory"])
def repository(
    request: pytest.FixtureRequest, runtime: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Work, Path]]:
    """A loop in a linked worktree, or in the main one; and the git directory on the host."""
    directory = tmp_path_factory.mktemp(f"git-{runtime}-{request.param}")
    main = directory / ("worktree" if request.param == "directory" else "origin")
    make_worktree(main)
    git(main, "init", "-q")
    (main / "tracked").write_text("tracked\n")
    git(main, "add", ".")
    git(main, "commit", "-qm", CANARY)
    git(main, "config", "http.extraheader", f"Authorization: {CANARY}")
    if request.param == "file":
        git(main, "worktree", "add", "-q", str(directory / "worktree"))
    for name in PRIVATE:
        path = main / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CANARY)
        path.chmod(0o666)
    subprocess.run(["chown", "-R", f"{UID}:{UID}", directory], check=os.geteuid() == 0, timeout=30)
    with open_work("docker", directory, LIMITS, lambda s: replace(s, runtime=runtime)) as work:
        yield work, main / ".git"


def _box(work: Work) -> Box:
    sandbox: Any = work.opened[-1]
    return Box(work.thread, sandbox, work.root, "docker")


def _everything(directory: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in sorted(directory.rglob("*"))
    }


@pytest.mark.statement("H1", "H2", "H13")
def test_the_git_entry_stays_whatever_is_done_to_it(repository: tuple[Work, Path]) -> None:
    """Writing, removing, renaming, exchanging, linking: refused; the host's is untouched."""
    work, directory = repository
    before = _everything(directory), (work.root / ".git").lstat().st_ino
    told = probe(_box(work), RACES)
    assert set(map(str, told.values())) <= REFUSED, told
    for command in (
        *("echo x > .git", "rm -rf .git", "mv .git x", "mkdir -p .git/hooks", "ln -sfn /tmp .git"),
        *("touch .git/config.worktree", "mkdir -p .git/./modules/../modules", "rmdir .git"),
        *("cp -r /tmp .git/x", "chmod 777 .git && touch .git/x", "git init -q && git status"),
    ):
        assert work.call("run_command", command=command).is_error, command
    for name, given in (
        ("write_file", {"path": ".git/hooks/post-checkout", "content": "#!/bin/sh\n"}),
        ("write_file", {"path": "./.git/./config", "content": "[core]\n"}),
        ("delete_file", {"path": ".git", "recursive": True}),
        ("move_file", {"from": ".git", "to": "moved"}),
        ("move_file", {"from": "tracked", "to": ".git/config", "overwrite": True}),
    ):
        assert work.call(name, **given).is_error, (name, given)
    assert (_everything(directory), (work.root / ".git").lstat().st_ino) == before
    assert (work.root / "tracked").read_text() == "tracked\n"


@pytest.mark.statement("H2")
def test_nothing_of_the_repository_is_in_the_box(repository: tuple[Work, Path]) -> None:
    """No file, mount, link or process shows its configuration, objects or where it is."""
    work, directory = repository
    box = _box(work)
    places = "/workspace /tmp /var/tmp /home /run /etc /opt/executor/agent /dev/shm"
    ran = box.run(f"grep -rs {CANARY} {places}; cat .git .git/* 2>/dev/null; true", 60)
    assert CANARY not in ran.out.decode()
    told = box.run("cat /proc/self/mountinfo /proc/self/mounts; ls -laR .git; git log; git status")
    assert str(directory) not in told.out.decode().replace(str(work.root / ".git"), "")
    assert CANARY not in told.out.decode()
    assert b"not a git repository" in told.err
    for name in (*PRIVATE, "config", "HEAD", "index", "commondir", "gitdir"):
        for path in (f"/workspace/.git/{name}", str(directory / name)):
            assert box.run(f"cat {path}").code != 0, path


@pytest.mark.statement("H13")
def test_git_that_appears_while_the_box_is_made_is_no_loop(tmp_path: Path) -> None:
    """A `.git` that is there at the start but was not at the first look refuses the box."""
    root = make_worktree(tmp_path / "worktree")
    with open_worktree(root) as worktree:
        assert worktree.git is GitEntry.NONE
        (root / ".git").mkdir()
        with pytest.raises(Exception, match=r"\.git of .* was replaced"):
            worktree.check()


@pytest.mark.statement("H13")
def test_a_directory_without_git_has_nothing_protected(runtime: str, tmp_path: Path) -> None:
    """There a command can make a repository, which is the loop's own and no cover of ours."""
    with open_work("docker", tmp_path, LIMITS, lambda s: replace(s, runtime=runtime)) as work:
        assert not work.call("run_command", command="mkdir -p .git/hooks").is_error
        assert os.listdir(work.root / ".git") == ["hooks"]
        assert (work.root / ".git").stat().st_uid == work.root.stat().st_uid
