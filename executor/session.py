"""What is remembered for one loop: the files that it read, where it is, what it finished."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

from executor.background import Background
from executor.model import MOUNT, Artifact, Todo
from executor.rules import Rules


@dataclass(frozen=True, slots=True)
class Reading:
    """What the loop has seen of one file.

    Attributes:
        hash: of the whole file when it was last read or written; None for huge files.
        through: line up to which it was shown without a gap, counted from line 1.
        whole: every byte was shown or written by the loop.
        modified: when the file was modified as it was read, for messages only: what a change
            rests on is the hash. None = the loop wrote it itself.
    """

    hash: str | None
    through: int = 0
    whole: bool = False
    modified: str | None = None


Identity: TypeAlias = tuple[Literal["key", "path"], str]
"""What a reading is filed under: the agent's key of the file, else its path."""


class Session:
    """The memory of one loop. Paths are worktree paths, compared as text.

    A file may have several paths, through links. The agent gives each file a key: paths
    with the same key share what was seen of it. The key is not believed to mean more: what
    a change rests on is the hash, which the agent compares.

    Attributes:
        cwd: where the last command ended, as seen inside the box.
        shells: lane → name of the shell that command lines are given to; None = the box has
            none.
        wanted_programs: names and absolute paths of programs that each new box is asked for; a
            catalog that is loaded has no more than 64.
        programs: lane → those of them that its box has.
        completed: the summary that the model gave to `complete_task`; None before.
        mode: permission mode; plan mode changes it.
        rules: what is allowed, asked and denied, whatever the mode says.
        mode_before_plan: what leaving plan mode goes back to; None = not in plan mode.
        submitted: the request that a plan waits for in somebody else's time; None = none.
        todos: the model's own list.
        artifacts: plans, specs and phases that it made.
        queued: texts that tools want said in the host's next turn.
        background: what goes on beside its calls.
        validated: the last `validate` passed and nothing was changed since; None = none ran.
    """

    def __init__(self) -> None:
        self.cwd = MOUNT
        self.shells: dict[str, str | None] = {}
        self.wanted_programs: tuple[str, ...] = ()
        self.programs: dict[str, frozenset[str]] = {}
        self.completed: str | None = None
        self.mode = "bypass"
        self.mode_before_plan: str | None = None
        self.submitted: str | None = None
        self.rules = Rules()
        self.todos: tuple[Todo, ...] = ()
        self.artifacts: list[Artifact] = []
        self.queued: list[str] = []
        self.background = Background()
        self.validated: bool | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._files: dict[str, Identity] = {}
        self._reads: dict[Identity, Reading] = {}
        self._locks: WeakValueDictionary[Identity, asyncio.Lock] = WeakValueDictionary()

    def shell_of(self, lane: str) -> str | None:
        """That of a lane; bash as long as there was no box to ask."""
        return self.shells.get(lane, "bash")

    def keep_running(self, work: Coroutine[Any, Any, None]) -> None:
        """Let this go on beside the calls; it is cancelled when the loop closes."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Cancel what was kept running, and wait for its end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def reading(self, path: str) -> Reading | None:
        """What was seen of the file; None if nothing was."""
        file = self._files.get(path)
        return self._reads.get(file) if file is not None else None

    def same_file(self, path: str, key: str | None) -> Reading | None:
        """What was seen, by whatever path, of the file that the path leads to now.

        Args:
            path: of the file.
            key: the agent's key of it; None = unknown, the path alone counts.
        """
        return self.reading(path) if key is None else self._reads.get(("key", key))

    def saw(
        self,
        path: str,
        digest: str | None,
        first: int,
        last: int,
        more: bool,
        key: str | None = None,
        modified: str | None = None,
    ) -> None:
        """Lines `first` to `last` were shown whole; `more` lines follow in the file.

        Readings of unchanged content add up when they leave no gap, so a file too long
        for one reading can be known as a whole.
        """
        before = self.same_file(path, key) or self.reading(path)
        same = before is not None and digest is not None and before.hash == digest
        through = before.through if same and before is not None else 0
        whole = before.whole if same and before is not None else False
        if first <= through + 1:
            through = max(through, last)
            whole = whole or (not more and through == last)
        self._note(path, key, Reading(digest, through, whole, modified))

    def knows(
        self, path: str, digest: str | None, key: str | None = None, modified: str | None = None
    ) -> None:
        """The loop read or wrote every byte of the file."""
        self._note(path, key, Reading(digest, whole=True, modified=modified))

    def edited(self, path: str, digest: str | None, key: str | None = None) -> None:
        """The loop changed the file: what it knew of it, it still knows."""
        before = self.same_file(path, key) or self.reading(path) or Reading(None)
        # Line numbers may have moved: a gapless reading has to start again.
        self._note(path, key, replace(before, hash=digest, through=0, modified=None))

    def forget(self, path: str) -> None:
        """The file, or the directory with all in it, is gone.

        A file that was read by another path, too, is still known by that one.
        """
        for name in self._at_or_below(path):
            self._leave(name)

    def move(self, source: str, target: str) -> None:
        """What was seen of `source`, or of the files in it, holds for `target` now."""
        moved: dict[str, Reading] = {}
        for name in self._at_or_below(source):
            moved[target + name[len(source) :]] = self._reads[self._files[name]]
            self._leave(name)
        self.forget(target)
        for name, reading in moved.items():
            # The keys of the new places are not known before the agent tells them.
            self._note(name, None, reading)

    def clear_reads(self) -> None:
        """Everything has to be read again."""
        self._files.clear()
        self._reads.clear()

    def lock(self, path: str) -> asyncio.Lock:
        """The lock of this file: changes to one file follow each other.

        Paths that are not known yet to lead to one file have a lock each; there the
        agent's comparison of hashes decides.
        """
        return self._locks.setdefault(self._files.get(path, ("path", path)), asyncio.Lock())

    def _note(self, path: str, key: str | None, reading: Reading) -> None:
        file: Identity = ("path", path) if key is None else ("key", key)
        if self._files.get(path, file) != file:
            self._leave(path)
        self._files[path] = file
        self._reads[file] = reading

    def _leave(self, path: str) -> None:
        file = self._files.pop(path)
        if file not in self._files.values():
            del self._reads[file]

    def _at_or_below(self, path: str) -> list[str]:
        below = path + "/"
        return [name for name in self._files if name == path or name.startswith(below)]
