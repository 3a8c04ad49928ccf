"""Repositories of a user, and a box of the engine's own client with git inside.

The box is made by the client so that what is tested is the private directory alone.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from executor.git import private
from executor.git.program import Git
from executor.git.repository import discover
from executor.git.values import OBJECTS, PRIVATE, Repository, Sharing
from executor.model import GIT_SETTINGS, GitOptions
from executor.sandbox import images
from executor.sandbox.container import Owner
from executor.sandbox.engine import Engine
from executor.sandbox.ownership import GitEntry, open_worktree
from executor.settings import Settings

OWNER = Owner(4242, 4242) if os.geteuid() == 0 else Owner(os.getuid(), os.getgid())
"""Whose boxes and worktrees are; the repositories that they belong to are ours."""
USER = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}


def open_place() -> Iterator[Path]:
    """A directory that every user may enter; pytest's own are closed to others than us."""
    with TemporaryDirectory(prefix="executor-git-") as made:
        Path(made).chmod(0o755)
        yield Path(made).resolve()


def git(directory: Path, *arguments: str, given: bytes | None = None) -> str:
    """What the user's git says; it must succeed."""
    done = subprocess.run(
        ["git", *arguments], cwd=directory, input=given, env=USER, capture_output=True, check=False
    )
    assert done.returncode == 0, (arguments, done.stderr)
    return os.fsdecode(done.stdout).rstrip("\n")


def commit(directory: Path, files: Mapping[str, str], message: str) -> str:
    """Writes files, commits everything, and returns the commit's name."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "-m", message)
    return git(directory, "rev-parse", "HEAD")


def make_origin(directory: Path, *options: str) -> Path:
    """A repository with three commits on `main` and a branch `side` that leaves it."""
    git(directory, "init", "-q", "-b", "main", *options, "origin")
    origin = directory / "origin"
    commit(origin, {"a.txt": "one\n", "b/c.txt": "two\n"}, "first")
    commit(origin, {"a.txt": "one\nmore\n"}, "second")
    git(origin, "tag", "-a", "-m", "v1", "v1")
    git(origin, "switch", "-q", "-c", "side", "HEAD~1")
    commit(origin, {"side.txt": "side\n"}, "on the side")
    git(origin, "switch", "-q", "main")
    commit(origin, {"d.txt": "four\n"}, "third")
    return origin


def own(directory: Path) -> None:
    """Gives all of a worktree to `OWNER`, also a repository that is in it."""
    for path in [directory, *directory.rglob("*")]:
        os.chown(path, OWNER.uid, OWNER.gid, follow_symlinks=False)


def link(origin: Path, *options: str) -> Path:
    """A linked worktree on the new branch `work`, of `OWNER`, whose index knows its files."""
    worktree = origin.parent / "worktree"
    git(origin, "worktree", "add", "-q", "-b", "work", *options, str(worktree))
    own(worktree)
    git(worktree, "update-index", "-q", "--refresh")
    return worktree


def look(worktree: Path) -> Repository:
    """The repository that a worktree belongs to."""
    with open_worktree(worktree) as opened:
        found = asyncio.run(discover(Git.find(), opened))
    assert found is not None
    return found


def prepare(
    repository: Repository,
    directory: Path,
    sharing: Sharing = Sharing.SHARED,
    *,
    is_exact_stat: bool = True,
) -> Path:
    """A private git directory that is `OWNER`'s."""
    asyncio.run(
        private.prepare(Git.find(), repository, directory, sharing, is_exact_stat=is_exact_stat)
    )
    private.give_away(directory, OWNER)
    return directory


@dataclass(frozen=True)
class Said:
    """What a command inside came to."""

    code: int
    output: str
    errors: str


class Inside:
    """A running box."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sh(self, script: str) -> Said:
        """Runs a shell's script in the worktree."""
        done = subprocess.run(
            ["docker", "exec", self.name, "sh", "-c", script], capture_output=True, check=False
        )
        return Said(done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr))

    def do(self, script: str) -> str:
        """What a script that must succeed prints."""
        said = self.sh(script)
        assert said.code == 0, (script, said)
        return said.output


async def _programs() -> tuple[str, str]:
    async with await Engine.connect(Settings.load()) as engine:
        base = await images.ensure_image(engine, "base")
        return base, (await images.ensure_runtime(engine)).volume


@contextmanager
def inside(
    repository: Repository,
    worktree: Path,
    directory: Path,
    sharing: Sharing = Sharing.SHARED,
    options: GitOptions | None = None,
) -> Iterator[Inside]:
    """A box with a worktree and its private git directory, as the contract of both says."""
    base, volume = asyncio.run(_programs())
    command = ["docker", "run", "--detach", "--rm", "--init", "--network", "none", "--read-only"]
    command += ["--user", str(OWNER), "--tmpfs", "/tmp:exec,mode=1777", "--workdir", "/workspace"]
    command += ["--volume", f"{worktree}:/workspace", "--volume", f"{volume}:/opt/executor:ro"]
    if repository.entry is GitEntry.FILE:
        private.write_pointer(directory.parent / "pointer")
        os.chown(directory.parent / "pointer", OWNER.uid, OWNER.gid)
        command += ["--volume", f"{directory.parent}/pointer:/workspace/.git:ro"]
        command += ["--volume", f"{directory}:{PRIVATE}"]
    else:
        command += ["--volume", f"{directory}:/workspace/.git"]
    if sharing is Sharing.SHARED:
        for number, store in enumerate(repository.stores):
            command += ["--volume", f"{store}:{OBJECTS}/{number}:ro"]
    settings = private.system_settings(repository, options or GitOptions())
    (directory.parent / "gitconfig").write_bytes(settings)
    command += ["--volume", f"{directory.parent}/gitconfig:{GIT_SETTINGS}:ro"]
    variables = {
        "HOME": "/tmp",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/opt/executor/bin",
        "EDITOR": "true",
        "GIT_CONFIG_SYSTEM": GIT_SETTINGS,
    }
    for name, value in variables.items():
        command += ["--env", f"{name}={value}"]
    started = subprocess.run(
        [*command, base, "sleep", "600"], capture_output=True, text=True, check=False
    )
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    try:
        yield Inside(name)
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
