"""What a loop has made and what it has left, when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.git.aftermath import Aftermath
from executor.git.values import Landed
from executor.text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a loop has made and left. Names in it are the loop's: to be shown with care.

    Attributes:
        exec_id: the loop's name.
        commits: how many it made that the origin had not.
        landed: what is in the origin now; None = nothing.
        is_kept: its commits are kept aside, for `executor git import`.
        faults: why something is not where it should be, one sentence each.
        notes: what else there is to say about its git, one sentence each.
        aftermath: what it left in its worktree; None = nobody could look.
        beside: what it left in the other directories that it could write, by their names.
        worktree: where a worktree that was made for it still is; None = it is gone, or was given.
    """

    exec_id: str
    commits: int = 0
    landed: Landed | None = None
    is_kept: bool = False
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    aftermath: Aftermath | None = None
    beside: tuple[tuple[str, Aftermath], ...] = ()
    worktree: Path | None = None

    def sentences(self) -> list[str]:
        """For people: one line each, the worst first."""
        found = [*self.faults]
        if self.landed is not None and self.landed.conflict is not None:
            found.append(self.landed.conflict)
        if self.aftermath is not None:
            found += self.aftermath.sentences()
        for name, left in self.beside:
            found += [f"{name}: {sentence}" for sentence in left.sentences()]
        found += self.notes
        if self.worktree is not None:
            found.append(f"the loop's worktree is kept: {self.worktree}")
        if self.commits:
            found.append(f"{_commits(self.commits)} {self._where()}")
        rest = f"refs/loops/{self.exec_id}/uncommitted"
        if self.landed is not None and rest in self.landed.refs:
            found.append(f"what was left uncommitted is in {rest}")
        return [one_line(sentence) for sentence in found]

    def _where(self) -> str:
        if self.landed is not None and self.landed.advanced is not None:
            branch = (self.landed.branch or "HEAD").removeprefix("refs/heads/")
            return f"landed: {branch} is at {self.landed.advanced[:12]}"
        if self.landed is not None and self.landed.refs:
            return f"landed below refs/loops/{self.exec_id}/"
        if self.is_kept:
            return f"kept aside; take over with: executor git import {self.exec_id}"
        return "made"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        landed = self.landed
        return {
            "exec_id": self.exec_id,
            "commits": self.commits,
            "landed": None
            if landed is None
            else {
                "refs": dict(landed.refs),
                "branch": landed.branch,
                "advanced": landed.advanced,
                "conflict": landed.conflict,
            },
            "kept": self.is_kept,
            "faults": list(self.faults),
            "notes": list(self.notes),
            "aftermath": None if self.aftermath is None else self.aftermath.as_json(),
            "beside": {name: left.as_json() for name, left in self.beside},
            "worktree": None if self.worktree is None else str(self.worktree),
        }


def _commits(count: int) -> str:
    return "1 commit" if count == 1 else f"{count} commits"
