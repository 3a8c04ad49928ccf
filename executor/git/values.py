"""The values that the modules of git hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from executor.errors import ExecutorError, SandboxError
from executor.model import GIT_DIRECTORY, GIT_OBJECTS
from executor.sandbox.container import Owner
from executor.sandbox.ownership import GitEntry

PRIVATE = GIT_DIRECTORY
"""Where a loop's own git directory is in the box, if the worktree's `.git` is a file."""
OBJECTS = GIT_OBJECTS
"""Below it, numbered, are the origin's object stores in the box, read-only."""
REFS = "refs/loops"
"""Below it, by `exec_id`, is what loops have made, in the origin."""

ObjectFormat = Literal["sha1", "sha256"]


class GitError(SandboxError):
    """Git on the host could not do what it was asked for; says what, and git's own words."""


class Refused(ExecutorError):
    """What a loop has made is not taken over: it is broken, too large, or could do harm.

    Attributes:
        reasons: one sentence each.
    """

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


class Sharing(StrEnum):
    """How the origin's objects get into the box."""

    SHARED = "shared"
    """Its stores are mounted read-only: every object of the origin can be read."""
    COPY = "copy"
    """Copied: what can be reached from the branches and tags that the loop is shown."""
    SHALLOW = "shallow"
    """Copied: the commit at HEAD and its tree, without history."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where HEAD is.

    Attributes:
        branch: full name of the branch (`refs/heads/main`); None = detached.
        commit: its object name; None = the branch is unborn.
    """

    branch: str | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class Person:
    """Who commits."""

    name: str
    email: str


@dataclass(frozen=True, slots=True)
class Repository:
    """The user's repository that a worktree belongs to, as trusted as its owner is.

    Attributes:
        git_directory: of the worktree: `…/.git`, `…/.git/worktrees/x`, or the bare repository.
        common_directory: what all its worktrees share: configuration, refs, objects.
        worktree: real path; None = a bare repository.
        entry: what the worktree's `.git` is; NONE = a bare repository.
        owner: whose the common directory is.
        stores: object directories, its own first, then alternates, each once.
        identities: device and inode of each of them, as who may read it saw it.
        object_format: the hash of its objects.
        head: of the worktree.
        refs: object names by full names below `refs/heads`, `refs/tags` and `refs/remotes`.
        shallow: the file that says where its history is cut; None = it is whole.
        settings: semantic configuration in the order git read it, keys in git's spelling
            (`core.autocrlf`), never commands, paths or credentials.
        excludes: text of the user's excludes and of `info/exclude`, lowest precedence first.
        attributes: lines of `core.attributesFile` and `info/attributes` that say how content is
            read (text, eol, encoding, diff and merge by built-in drivers).
        sparse: text of `info/sparse-checkout`; None = there is none.
        person: `user.name` and `user.email`; None = not both are set.
        submodules: worktree paths of gitlinks in the index.
        reads: worktree paths that the host's git executes or obeys by the user's own
            configuration (`core.hooksPath`, `include.path`, …).
        notices: what the loop's user should know (submodules left empty, LFS pointers, …).
    """

    git_directory: Path
    common_directory: Path
    worktree: Path | None
    entry: GitEntry
    owner: Owner
    stores: tuple[Path, ...]
    object_format: ObjectFormat
    head: Head
    refs: Mapping[str, str] = field(default_factory=dict)
    shallow: Path | None = None
    settings: tuple[tuple[str, str], ...] = ()
    excludes: str = ""
    attributes: str = ""
    sparse: str | None = None
    person: Person | None = None
    submodules: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    identities: tuple[tuple[int, int], ...] = ()


class Reply(Protocol):
    """A reply of the agent in a box."""

    @property
    def value(self) -> dict[str, Any]:
        """Its fields."""

    @property
    def data(self) -> bytes:
        """Its bulk bytes."""


class Box(Protocol):
    """Where the operations of an agent are asked for; a lane is one."""

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Reply:
        """Have one operation done; see `executor.tool.Operations`."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a loop has made, checked, in a repository of ours that borrows the origin's objects.

    Attributes:
        directory: the quarantine: a bare repository; its refs are those of `refs`.
        refs: object names by names below `refs/loops/<exec_id>/`: `head`, `heads/<branch>`,
            `tags/<tag>`, `stash/<n>`, `index` (a tree), `uncommitted` (a commit).
        branch: full name of the branch that HEAD is on inside; None = detached.
        commits: how many commits there are that the origin had not.
        notes: what was left out and why, one sentence each.
    """

    directory: Path
    refs: Mapping[str, str]
    branch: str | None
    commits: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Landed:
    """What came of taking an arrival over into the origin.

    Attributes:
        refs: object names by full names, as they are in the origin now.
        branch: full name of the branch that was asked to advance; None = none was.
        advanced: its new object name; None = it stays where it is.
        conflict: why it stays, and what to do; None = nothing in the way. Where another loop's
            refs are in the way, nothing lands, and `refs` are those of earlier landings.
        notes: what to know beside, one sentence each: how a branch made inside becomes one here.
    """

    refs: Mapping[str, str]
    branch: str | None = None
    advanced: str | None = None
    conflict: str | None = None
    notes: tuple[str, ...] = ()
