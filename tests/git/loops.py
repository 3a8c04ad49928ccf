"""Repositories and what loops made of them, by real git, for tests of what comes back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor.git.values import Arrival, Head, Repository
from executor.sandbox.container import Owner
from executor.sandbox.ownership import GitEntry

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}


def git(place: Path, *arguments: str, given: bytes = b"", uid: int | None = None) -> str:
    """What the user's git prints there.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(
        ["git", *arguments],
        cwd=place,
        input=given,
        capture_output=True,
        env=IDENTITY,
        user=uid,
        group=uid,
        extra_groups=[] if uid is not None else None,
        check=False,
    )
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr.decode()}"
    return done.stdout.decode().strip()


def write(place: Path, files: Mapping[str, str]) -> None:
    """Write files below a directory."""
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def commit(place: Path, files: Mapping[str, str], message: str = "change") -> str:
    """Write files and commit everything; the commit."""
    write(place, files)
    git(place, "add", "-A")
    git(place, "commit", "-q", "--allow-empty", "-m", message)
    return git(place, "rev-parse", "HEAD")


def make_origin(place: Path, *options: str) -> Path:
    """A repository with three files in one commit on `main`."""
    place.mkdir(parents=True)
    git(place, "init", "-q", "-b", "main", *options)
    commit(place, {"a.txt": "a\n", "b.txt": "b\n", "d/c.txt": "c\n"}, "base")
    return place


def describe(worktree: Path, *, bare: str | None = None) -> Repository:
    """What is known of a repository when a loop starts.

    Args:
        worktree: of it, or a bare one.
        bare: the branch that a loop of a bare repository is given; None = it is none.
    """
    status = worktree.stat()
    owner = Owner(status.st_uid, status.st_gid)
    uid = owner.uid if owner.uid != os.geteuid() else None

    def ask(*arguments: str) -> str:
        return git(worktree, *arguments, uid=uid)

    own = Path(ask("rev-parse", "--absolute-git-dir"))
    common = Path(ask("rev-parse", "--path-format=absolute", "--git-common-dir"))
    text = (own / "HEAD").read_text().strip()
    branch = bare or (text.removeprefix("ref: ") if text.startswith("ref: ") else None)
    tip = ask("for-each-ref", "--format=%(objectname)", branch) if branch else ""
    tip = tip or ("" if branch else ask("rev-parse", "HEAD"))
    lines = ask(
        "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags"
    ).splitlines()
    entry = GitEntry.FILE if (worktree / ".git").is_file() else GitEntry.DIRECTORY
    stores = [common / "objects"]
    alternates = stores[0] / "info" / "alternates"
    if alternates.exists():
        stores += [Path(line) for line in alternates.read_text().splitlines()]
    return Repository(
        git_directory=own,
        common_directory=common,
        worktree=None if bare else worktree,
        entry=GitEntry.NONE if bare else entry,
        owner=owner,
        stores=tuple(stores),
        object_format="sha256" if ask("rev-parse", "--show-object-format") == "sha256" else "sha1",
        head=Head(branch, tip or None),
        refs=dict((line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines),
        shallow=common / "shallow" if (common / "shallow").exists() else None,
    )


@dataclass
class Loop:
    """What a loop has of a repository: here an ordinary clone that nobody attacks.

    Attributes:
        place: its worktree.
        repository: its origin.
    """

    place: Path
    repository: Repository

    def commit(self, files: Mapping[str, str], message: str = "made inside") -> str:
        """A commit of the loop's."""
        return commit(self.place, files, message)

    def arrive(self, directory: Path, extra: Mapping[str, str] | None = None) -> Arrival:
        """Everything that it has, in a quarantine.

        Args:
            directory: to be made.
            extra: more refs, by names below the loop's.
        """
        refs = {}
        told = git(self.place, "for-each-ref", "--format=%(refname) %(objectname)")
        for line in told.splitlines():
            name, value = line.split(" ", 1)
            if self.repository.refs.get(name) != value and "/remotes/" not in name:
                refs[name.removeprefix("refs/")] = value
        head = git(self.place, "rev-parse", "HEAD")
        if head != self.repository.head.commit:
            refs["head"] = head
            refs["index"] = git(self.place, "write-tree")
        refs |= extra or {}
        symbolic = (self.place / ".git/HEAD").read_text().strip()
        branch = symbolic.removeprefix("ref: ") if symbolic.startswith("ref: ") else None
        quarantine(self.place, self.repository, directory, refs)
        return Arrival(directory, refs, branch, 1)


def start(repository: Repository, place: Path) -> Loop:
    """A loop that begins where the repository is now."""
    depth = ["--depth=1"] if repository.shallow else []
    owner = repository.owner.uid if repository.owner.uid != os.geteuid() else None
    place.mkdir()
    if owner is not None:  # git takes nothing from another user's repository
        os.chown(place, owner, owner)
    source = f"file://{repository.common_directory}"
    git(place, "clone", "-q", "--no-checkout", *depth, source, ".", uid=owner)
    if owner is not None:
        for path in [place, *place.rglob("*")]:
            os.chown(path, os.geteuid(), os.getegid())
    head = repository.head
    if head.commit is None:
        git(place, "symbolic-ref", "HEAD", head.branch or "")
        return Loop(place, repository)
    for name, value in repository.refs.items():
        if name.startswith("refs/heads/"):
            git(place, "update-ref", name, value)
    if head.branch is None:
        git(place, "checkout", "-q", "--detach", head.commit)
    else:
        git(place, "symbolic-ref", "HEAD", head.branch)
        git(place, "reset", "-q", "--hard", head.commit)
    return Loop(place, repository)


def quarantine(
    source: Path, repository: Repository, directory: Path, refs: Mapping[str, str]
) -> None:
    """A bare repository that borrows the origin's objects and has what is new."""
    form = f"--object-format={repository.object_format}"
    git(source, "init", "-q", "--bare", "--template=", form, str(directory))
    alternates = directory / "objects" / "info" / "alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text("".join(f"{store}\n" for store in repository.stores))
    if repository.shallow is not None:
        (directory / "shallow").write_text(repository.shallow.read_text())
    have = sorted({*repository.refs.values(), repository.head.commit or ""} - {""})
    wanted = "\n".join([*sorted(set(refs.values())), *(f"^{one}" for one in have)]) + "\n"
    if not refs:
        return
    packed = subprocess.run(
        ["git", "pack-objects", "--revs", "--thin", "--stdout", "-q"],
        cwd=source,
        input=wanted.encode(),
        stdout=subprocess.PIPE,
        env=IDENTITY,
        check=True,
    )
    git(directory, "index-pack", "--stdin", "--fix-thin", "--strict", given=packed.stdout)
    for name, value in refs.items():
        if name != "index":
            git(directory, "update-ref", f"refs/loop/{name}", value)


def digest(directory: Path) -> Mapping[str, bytes]:
    """Every file of a directory and what is in it."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def log(place: Path, name: str) -> Sequence[str]:
    """Subjects of the commits of a ref, newest first."""
    return git(place, "log", "--format=%s", name).splitlines()
