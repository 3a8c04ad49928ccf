"""Asking a new box for what never came out of a loop's own git directory.

Its controller died, or its box was lost: the directory is as the loop left it, and what a box
has written no git of the host may read.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace
from pathlib import Path

from executor.errors import ConfigError
from executor.git import export, private
from executor.git.program import Git
from executor.git.records import TREE, Entry, State
from executor.git.values import Box, Sharing
from executor.model import GIT_DIRECTORY, GitOptions, LoopSpec
from executor.sandbox import ownership
from executor.sandbox.container import GitView, Owner
from executor.sandbox.quota import Quota


class Placed(Quota):
    """A box works in this directory of ours; nothing limits it there."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def place(self) -> ownership.Worktree:
        """See `Quota.place`."""
        return ownership.open_own(self._directory)


@dataclass(frozen=True, slots=True)
class Question:
    """What a box is opened with, to be asked for a loop's history.

    Attributes:
        spec: of the loop that the box is opened for.
        view: the git directory as the loop left it.
        quota: where the box works.
    """

    spec: LoopSpec
    view: GitView
    quota: Quota


def prepared(entry: Entry, directory: Path, users: ownership.UserMap) -> Question:
    """What a box is to be opened with.

    Args:
        entry: its own git directory is there.
        directory: ours alone, for what the box sees beside.
        users: which uids boxes have.

    Raises:
        ConfigError: its git directory is elsewhere, and not reachable.
        OSError: there is no such directory any more.
    """
    if entry.record.elsewhere is not None and not entry.private.is_dir():
        raise ConfigError(f"loop {entry.record.exec_id}: {entry.record.failure}")
    status = os.stat(entry.private, follow_symlinks=False)
    outside = Owner(status.st_uid, status.st_gid)
    inside = users.inside(outside) or outside
    tree = entry.made / TREE
    if not tree.is_dir():
        tree = directory / TREE
        tree.mkdir(mode=0o755)
        private.write_pointer(tree / ".git")
        os.chown(tree, outside.uid, outside.gid)
    pointer = directory / "pointer"
    private.write_pointer(pointer)
    os.chown(pointer, outside.uid, outside.gid)
    record = entry.record
    is_shared = record.sharing == Sharing.SHARED
    view = GitView(
        directory=entry.private,
        pointer=pointer,
        stores=tuple(map(Path, record.stores)) if is_shared else (),
        identities=record.identities if is_shared else (),
        nothing=private.write_nothing(directory / "nothing"),
    )
    spec = LoopSpec(worktree=tree, exec_id=record.exec_id, uid=inside.uid, quota="none")
    return Question(spec, view, Placed(tree))


async def ask(git: Git, box: Box, entry: Entry) -> None:
    """Take out of the box what the loop has made, and note it.

    Raises:
        Refused: what it has made is not taken over.
        SandboxError: the box was lost.
        OSError: the host has no room for it.
    """
    record = entry.record
    arrival = await export.collect(
        git,
        box,
        record.repository(),
        record.refs,
        entry.quarantine,
        GitOptions(),
        inside=GIT_DIRECTORY,
        snapshot=entry.made.is_dir(),
    )
    if arrival is not None:
        await asyncio.to_thread(entry.arrived, arrival)
    await asyncio.to_thread(_settle, entry)


def _settle(entry: Entry) -> None:
    entry.save(replace(entry.record, state=State.KEPT, failure=None))
    entry.remove_private()
    entry.remove_worktree()
