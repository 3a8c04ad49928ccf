"""A branch of a repository, checked out by us into a directory of ours.

Nothing is registered in the repository, so that nothing there has to be pruned later on. The
host's git does it with the private directory before any box has it: that one has no filter
and no hook, so that files which a filter would replace stay the pointers that are committed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from executor.errors import ConfigError
from executor.git import private
from executor.git.program import Git
from executor.git.values import GitError, Head, Repository
from executor.sandbox.ownership import GitEntry

_HEADS = "refs/heads/"
_REMOTES = "refs/remotes/"
_REMOTE = re.compile(r"remote\.(.+)\.[A-Za-z-]+", re.DOTALL)
_SPARSE = frozenset({"core.sparsecheckout", "core.sparsecheckoutcone", "index.sparse"})
_SECONDS = 900.0
_LISTING_BYTES = 1 << 30
_CAREFUL = private.variables([("core.protectHFS", "true"), ("core.protectNTFS", "true")])
"""Names that another file system takes for `.git` are refused, too: the files may travel."""
_LEFT = re.compile(r"index|sharedindex\..*|MERGE_.*|CHERRY_PICK_HEAD|REVERT_HEAD|SQUASH_MSG")
"""What `private.prepare` takes over from another worktree."""


async def starting_at(git: Git, repository: Repository, branch: str) -> Repository:
    """The repository as a checkout of a branch sees it: to be given to `private.prepare`.

    The branch is a local one; or else the one of that name of a remote, if exactly one has it,
    as `git switch` guesses; or else new, from where the repository's HEAD is. Which of these it
    is stands in the notices. In a repository without commits the branch is unborn.

    Raises:
        ConfigError: no branch can have that name, or several remotes have it.
    """
    full = _HEADS + branch
    is_ours = repository.worktree is None and repository.entry is GitEntry.FILE
    if is_ours and repository.head.branch == full:
        return repository
    await _check_name(git, branch)
    if (clash := _clash(repository, full)) is not None:
        raise ConfigError(
            f"branch: {branch} can't be made beside the branch {clash.removeprefix(_HEADS)}"
        )
    commit, remote, notice = _start(repository, branch)
    refs = dict(repository.refs) | ({full: commit} if commit is not None else {})
    submodules = await _submodules(git, repository, commit)
    left_empty = [f"Submodules are left empty: {', '.join(submodules)}."] if submodules else []
    said = [text for text in (notice, *left_empty) if text]
    return replace(
        repository,
        worktree=None,
        entry=GitEntry.FILE,
        head=Head(full, commit),
        refs=refs,
        settings=_whole(repository.settings) + _upstream(branch, remote),
        sparse=None,
        submodules=submodules,
        notices=(*repository.notices, *said),
    )


async def check_out(
    git: Git, repository: Repository, branch: str, tree: Path, directory: Path
) -> Head:
    """Checks a branch out; tree and private directory are still ours, see `private.give_away`.

    Args:
        git: the host's git.
        repository: as `starting_at` gave it.
        branch: its short name.
        tree: where the files come; made here, or empty.
        directory: prepared by `private.prepare`, `is_exact_stat` false: giving the files away
            changes their owner and change time.

    Returns:
        Where HEAD is inside.

    Raises:
        ConfigError: as `starting_at`; or the directory is not empty.
        GitError: git refuses, for example because a path spells `.git`.
    """
    repository = await starting_at(git, repository, branch)
    try:
        await asyncio.to_thread(_clear, repository, tree, directory)
    except OSError as error:
        raise ConfigError(f"branch: {branch} can't be checked out into {tree}: {error}") from error
    commit = repository.head.commit
    if commit is not None:
        async with _objects(git, repository, commit, directory) as environment:
            done = await git.run(
                ["read-tree", "--reset", "-u", commit],
                git_directory=directory,
                environment=environment | _CAREFUL | {"GIT_WORK_TREE": os.fspath(tree)},
                timeout=_SECONDS,
            )
        if done.code != 0:
            raise GitError(f"git: {branch} can't be checked out: {done.reason}")
    private.write_pointer(tree / ".git")
    return repository.head


# ─── which commit ───────────────────────────────────────────────────────────────────


async def _check_name(git: Git, branch: str) -> None:
    fine = branch and branch[0] != "-" and branch != "HEAD" and "\0" not in branch
    if fine:
        fine = (await git.run(["check-ref-format", _HEADS + branch])).code == 0
    if not fine:
        raise ConfigError(
            f"branch: {branch!r} is no name of a branch; see `git help check-ref-format`"
        )


def _clash(repository: Repository, full: str) -> str | None:
    """A branch whose name is a directory of this one, or the other way round."""
    for name in repository.refs:
        if name.startswith(f"{full}/") or full.startswith(f"{name}/"):
            return name
    return None


def _start(repository: Repository, branch: str) -> tuple[str | None, str | None, str]:
    """Commit, remote that it is of, and what to say of it."""
    if (commit := repository.refs.get(_HEADS + branch)) is not None:
        return commit, None, ""
    remotes = sorted(_remotes(repository))
    found = [name for name in remotes if f"{_REMOTES}{name}/{branch}" in repository.refs]
    if len(found) > 1:
        raise ConfigError(
            f"branch: {branch} is on several remotes ({', '.join(found)}); say which by "
            f"`git branch {branch} {found[0]}/{branch}` in the repository"
        )
    if found:
        commit = repository.refs[f"{_REMOTES}{found[0]}/{branch}"]
        return commit, found[0], f"Branch {branch} is new, from {found[0]}/{branch}."
    head = repository.head
    if head.commit is None:
        return None, None, f"Branch {branch} is new and has no commit yet."
    where = head.branch.removeprefix(_HEADS) if head.branch else "HEAD"
    return head.commit, None, f"Branch {branch} is new, from {where} ({head.commit[:12]})."


def _remotes(repository: Repository) -> set[str]:
    configured = {match[1] for key, _ in repository.settings if (match := _REMOTE.fullmatch(key))}
    names = (name.removeprefix(_REMOTES) for name in repository.refs if name.startswith(_REMOTES))
    return configured or {name.partition("/")[0] for name in names}


def _upstream(branch: str, remote: str | None) -> tuple[tuple[str, str], ...]:
    if remote is None:
        return ()
    return (
        (f"branch.{branch}.remote", remote),
        (f"branch.{branch}.merge", _HEADS + branch),
    )


def _whole(settings: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Settings without those of a sparse checkout: ours has all files."""
    return tuple(pair for pair in settings if pair[0].lower() not in _SPARSE)


async def _submodules(git: Git, repository: Repository, commit: str | None) -> tuple[str, ...]:
    if commit is None:
        return ()
    listed = await git.output(
        ["ls-tree", "-r", "-z", "--full-tree", commit],
        git_directory=repository.git_directory,
        owner=repository.owner,
        most=_LISTING_BYTES,
    )
    entries = (entry.partition(b"\t") for entry in listed.split(b"\0"))
    return tuple(os.fsdecode(path) for about, _, path in entries if about.startswith(b"160000 "))


# ─── the files ──────────────────────────────────────────────────────────────────────


def _clear(repository: Repository, tree: Path, directory: Path) -> None:
    """Makes the directories what the checkout starts with."""
    tree.mkdir(mode=0o700, exist_ok=True)
    if os.listdir(tree):
        raise FileExistsError("it is not empty")
    for name in os.listdir(directory):
        if _LEFT.fullmatch(name):
            (directory / name).unlink()
    if (directory / "HEAD").read_bytes() != private.pointed(repository.head):
        raise GitError(f"git: {directory} was prepared for another branch")


@asynccontextmanager
async def _objects(
    git: Git, repository: Repository, commit: str, directory: Path
) -> AsyncIterator[dict[str, str]]:
    """Variables by which git finds the objects of a commit, whose alternates are the box's.

    A user's stores are not read as root: what they borrow from is the user's word. The commit
    is copied instead, out of what he can read himself.
    """
    alternates = directory / "objects/info/alternates"
    if not alternates.exists():
        yield {}
        return
    aside = directory / "objects/info/alternates.box"
    os.rename(alternates, aside)
    try:
        if os.geteuid() or not repository.owner.uid:
            stores = ":".join(_quoted(os.fspath(store)) for store in repository.stores)
            yield {"GIT_ALTERNATE_OBJECT_DIRECTORIES": stores}
        else:
            with TemporaryDirectory(prefix="objects-", dir=directory) as made:
                variables = {"GIT_OBJECT_DIRECTORY": made}
                await private.copy_objects(
                    git, repository, [commit], directory, cut=[commit], environment=variables
                )
                yield variables
    finally:
        os.rename(aside, alternates)


def _quoted(path: str) -> str:
    """A path for a list with colons (git(1), `GIT_ALTERNATE_OBJECT_DIRECTORIES`)."""
    if ":" not in path and not path.startswith('"'):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
