"""What a loop has left in its worktree: the values, and how they are said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from executor.text import one_line

_FEW = 5
_SHOWN = 200
"""Characters of a name that people are shown."""


class Oddity(StrEnum):
    """What is strange about something that the loop made or changed."""

    UNREADABLE = "its owner may not read it"
    OWNER = "belongs to another user or group than the worktree"
    SPECIAL_MODE = "set-uid, set-gid or sticky"
    CAPABILITIES = "gives capabilities to who runs it"
    NAME = "its name does not print"
    SPECIAL = "a socket, pipe or device"
    LINK = "a link out of the worktree"
    MOUNTED = "something is mounted there, and was not looked into"
    UNSEEN = "could not be looked into"


class Fate(StrEnum):
    """What became of a repository inside the worktree; the worst first."""

    LEFT = "left"
    """The loop made or changed it, and git obeys it."""
    SET_ASIDE = "set aside"
    """The loop made or changed it; git no longer finds it."""
    UNTOUCHED = "untouched"
    """It was there before, and nothing of it has changed."""


@dataclass(frozen=True, slots=True)
class Nested:
    """A repository inside the worktree.

    Attributes:
        path: its `.git`; of a bare repository, the directory. A long one is cut in the middle.
        is_bare: git finds it by what the directory holds.
        fate: what became of it.
        reason: what has changed; empty = nothing.
        now: of one that was set aside, the new name of its `.git`, or of the bare
            repository's `HEAD`.
        fault: what could not be done to it; None = nothing was tried, or all went well.
    """

    path: str
    is_bare: bool
    fate: Fate
    reason: str = ""
    now: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """Names, the first ones only. A long path is cut in the middle."""

    count: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What a loop has left in its worktree. Names are the loop's: to be shown with care.

    Attributes:
        changed: files and links that were made or changed; the content of nested
            repositories' git directories is not counted.
        executed: those that programs of the host execute or obey, by the program.
        nested: repositories in it, by their fate.
        nested_counts: how many there are of each fate.
        odd: what is strange, by the oddity.
        is_whole: everything was looked at.
    """

    changed: Listed = Listed()
    executed: Mapping[str, Listed] = field(default_factory=dict)
    nested: tuple[Nested, ...] = ()
    nested_counts: Mapping[Fate, int] = field(default_factory=dict)
    odd: Mapping[Oddity, Listed] = field(default_factory=dict)
    is_whole: bool = True

    @property
    def is_harmless(self) -> bool:
        """Git in the worktree obeys no repository that the loop made or changed."""
        return self.is_whole and not self.nested_counts.get(Fate.LEFT)

    def sentences(self) -> list[str]:
        """For people: one line each, the worst first. Nothing in it acts on a terminal."""
        return [*self._warnings(), *self._listed()]

    def _warnings(self) -> list[str]:
        said = []
        if not self.is_whole:
            said.append(
                "The look at the worktree was ended early: there may be repositories of the "
                "loop's in it, and git that is run there may obey them."
            )
        left = [nested for nested in self.nested if nested.fate is Fate.LEFT]
        if left:
            count = self.nested_counts[Fate.LEFT]
            said.append(
                f"Run no git in the worktree: it obeys {_number(count, 'repository')} that the "
                f"loop made or changed, {_some(count, [_told(nested) for nested in left])}."
            )
        aside = [nested for nested in self.nested if nested.fate is Fate.SET_ASIDE]
        if aside:
            count = self.nested_counts[Fate.SET_ASIDE]
            said.append(
                f"{_number(count, 'repository')} that the loop made or changed in the worktree "
                f"{'is' if count == 1 else 'are'} set aside by another name, so that git does "
                f"not obey: {_some(count, [_told(nested) for nested in aside])}."
            )
        return said

    def _listed(self) -> list[str]:
        said = []
        if self.changed.count:
            said.append(f"{_number(self.changed.count, 'file')} changed: {_few(self.changed)}.")
        said += [
            f"Look at before use, {runner} may execute or obey: {_few(listed)}."
            for runner, listed in self.executed.items()
        ]
        said += [
            f"{_number(listed.count, 'strange entry')} ({oddity}): {_few(listed)}."
            for oddity, listed in self.odd.items()
        ]
        return said

    def as_json(self) -> dict[str, Any]:
        """For programs: names as they are; what is no UTF-8 in them as halves of characters."""
        return {
            "changed": _listed_json(self.changed),
            "executed": {who: _listed_json(listed) for who, listed in self.executed.items()},
            "nested": [
                {
                    "path": nested.path,
                    "is_bare": nested.is_bare,
                    "fate": str(nested.fate),
                    "reason": nested.reason,
                    "now": nested.now,
                    "fault": nested.fault,
                }
                for nested in self.nested
            ],
            "nested_counts": {str(fate): count for fate, count in self.nested_counts.items()},
            "odd": {odd.name.lower(): _listed_json(listed) for odd, listed in self.odd.items()},
            "is_whole": self.is_whole,
        }


def _number(count: int, thing: str) -> str:
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"1 {thing}" if count == 1 else f"{count:,} {plural}"


def _few(listed: Listed) -> str:
    return _some(listed.count, [one_line(name, _SHOWN) for name in listed.names[:_FEW]])


def _some(count: int, shown: Sequence[str]) -> str:
    """The first few of many."""
    first = shown[:_FEW]
    rest = count - len(first)
    return ", ".join(first) + (f" and {rest:,} more" if rest > 0 else "")


def _told(nested: Nested) -> str:
    path = one_line(nested.path, _SHOWN)
    if nested.fault is not None:
        return f"{path} (it can't be set aside: {one_line(nested.fault, _SHOWN)})"
    if nested.now is not None:
        return f"{path} ({'its HEAD is' if nested.is_bare else 'now'} {nested.now})"
    return f"{path} ({one_line(nested.reason, _SHOWN)})"


def _listed_json(listed: Listed) -> dict[str, Any]:
    return {"count": listed.count, "names": list(listed.names)}
