"""Repositories for tests, made by the real git, without anybody's configuration."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from executor.git.values import Head, ObjectFormat, Repository
from executor.sandbox.container import Owner
from executor.sandbox.ownership import GitEntry

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_COMMITTER_NAME": "A U Thor",
    "GIT_COMMITTER_EMAIL": "author@example.org",
    "LC_ALL": "C",
}


def run(directory: Path, *arguments: str, given: bytes | None = None) -> str:
    """What git prints, without the last line's end."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=directory,
        env=ENVIRONMENT,
        input=given,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode().rstrip("\n")


def make(directory: Path, files: Mapping[str, str], format: str = "sha1") -> Path:
    """A repository with one commit on `main`."""
    directory.mkdir()
    run(directory, "init", "-q", "-b", "main", "--template=", f"--object-format={format}")
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    run(directory, "add", "-A")
    run(directory, "commit", "-q", "--allow-empty", "-m", "first")
    return directory


def described(directory: Path) -> Repository:
    """What the product finds of a plain repository, as far as coming back needs it."""
    git = directory / ".git"
    status = os.stat(git)
    lines = run(directory, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return Repository(
        git_directory=git,
        common_directory=git,
        worktree=directory,
        entry=GitEntry.DIRECTORY,
        owner=Owner(status.st_uid, status.st_gid),
        stores=(git / "objects",),
        object_format=cast(ObjectFormat, run(directory, "rev-parse", "--show-object-format")),
        head=Head("refs/heads/main", run(directory, "rev-parse", "HEAD")),
        refs=dict(line.split(" ", 1) for line in lines),
    )


def private(origin: Path, worktree: Path, directory: Path) -> Path:
    """A loop's own git directory over a copy of the files, borrowing the origin's objects."""
    head = run(origin, "rev-parse", "HEAD")
    format = run(origin, "rev-parse", "--show-object-format")
    worktree.mkdir()
    directory.mkdir()
    run(directory, "init", "-q", "--bare", "--template=", f"--object-format={format}", ".")
    run(directory, "config", "core.bare", "false")
    (directory / "objects/info/alternates").write_text(f"{origin}/.git/objects\n")
    (directory / "HEAD").write_text("ref: refs/heads/main\n")
    (directory / "refs/heads/main").write_text(f"{head}\n")
    inside(directory, worktree, "reset", "-q", "--hard")
    return directory


def inside(directory: Path, worktree: Path, *arguments: str, given: bytes | None = None) -> str:
    """Git as the loop runs it."""
    return run(
        worktree, f"--git-dir={directory}", f"--work-tree={worktree}", *arguments, given=given
    )
