"""Which calls of one turn may run together: what each touches, and who waits for whom. Pure.

A later call waits for an earlier one unless what both touch is known and disjoint, in both
directions: a write waits for earlier reads of its path. So every schedule gives the results
of the order in which the model made the calls.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

from executor.errors import ToolError
from executor.model import MOUNT, Access
from executor.places import Place, State
from executor.shell import Script, analyse, program_of
from executor.tool import (
    Contacts,
    Context,
    Order,
    RunsCode,
    RunsCommand,
    Tool,
    Touches,
    no_actions,
)

MAX_PARALLEL = 10
"""Calls that run at the same time; each search starts a process in the box."""
LOOKAHEAD = 100
"""Unfinished calls that are compared with each other at a time; later ones wait."""

IGNORE_FILES = (".gitignore", ".ignore", ".rgignore", ".git/info/exclude")
"""What a search obeys, in every directory above the one that it looks at, too."""

log = logging.getLogger(__name__)

_HARMLESS = ("/usr/", "/bin/", "/sbin/", "/lib", "/opt/", "/etc/")
"""Places outside the worktree that no command of a box can change: its root is read-only."""
_DEVICES = frozenset(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")
) | {"/dev/stdin", "/dev/stdout", "/dev/stderr"}

_MAKES_NO_LINKS = frozenset(
    ("cat", "chmod", "echo", "grep", "head", "mkdir", "printf", "rm", "rmdir", "sed", "sort")
) | {"tail", "tee", "touch", "tr", "true", "truncate", "wc"}
"""Programs that write and make no links, so that all they write is where it was before."""

SESSION, NETWORK = "//session", "//network"
_BESIDE = {Access.SESSION: SESSION, Access.NETWORK: NETWORK}
"""What calls may be about that is no file: other loops, tasks and lists; what hosts hold."""

_WAITS = frozenset(("inotifywait", "sleep", "usleep", "wait", "watch"))
"""Programs that let time pass: what the calls behind them see may only come about meanwhile."""


# ─── what a call touches ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Area:
    """A path, or a path and everything below it."""

    path: str
    subtree: bool = False


Areas: TypeAlias = tuple[Area, ...] | None
"""Parts of the worktree; None = everything."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What a call does that others may depend on.

    Attributes:
        order: how it may be ordered among the others.
        reads, writes: what it depends on and what it changes.
        searches: names are listed, and a name may be a link to anywhere.
        creates: something may be there afterwards that was not there before.
        reshapes: links or directories may be changed, so that paths lead elsewhere.
    """

    order: Order
    reads: Areas = ()
    writes: Areas = ()
    searches: bool = False
    creates: bool = False
    reshapes: bool = False


NOTHING = Effects(Order.SAFE)
"""Of a call that will be refused."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What a call is going to do, before anybody has looked where its paths lead.

    Attributes:
        order: how it may be ordered.
        touches: what the tool itself touches.
        operands: what a command touches: it follows links that a tool would not follow.
        directories: where commands start; they have to be there.
        beside: what it is about beside files: a path that none can have.
        reads_all, writes_all: what is read, or written, is unknown.
    """

    order: Order
    touches: tuple[Touches, ...] = ()
    operands: tuple[Touches, ...] = ()
    directories: tuple[str, ...] = ()
    beside: str | None = None
    reads_all: bool = False
    writes_all: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Everything that has to be looked up to know the effects."""
        touched = (touch.path for touch in (*self.touches, *self.operands))
        return (*touched, *self.directories)

    @property
    def writes_somewhere(self) -> bool:
        """It changes some paths, and it is known which."""
        if self.writes_all:
            return False
        return any(touch.how in ("write", "delete") for touch in (*self.touches, *self.operands))

    def blind(self, tool: Tool) -> Intent:
        """The same where nobody can say how a command line will be read."""
        if tool.access is not Access.EXEC:
            return self
        order = self.order if self.order is Order.LAST else Order.BARRIER
        return replace(self, order=order, reads_all=True, writes_all=True)

    def apart(self) -> Intent:
        """The same in a lane whose `/tmp` and home directory are not those that are looked at."""
        if any(path.startswith("/") and not _is_harmless(path) for path in self.paths):
            return self.veiled()
        return self

    def veiled(self) -> Intent:
        """The same where nobody can say where the paths lead."""
        return replace(
            self,
            reads_all=self.reads_all or bool(self.paths),
            writes_all=self.writes_all or self.writes_somewhere,
        )


def intent_of(tool: Tool, arguments: Any, context: Context) -> Intent:
    """What a call is going to do, as its tool declares it.

    Args:
        tool: the tool.
        arguments: checked.
        context: of the call; commands start in its working directory.
    """
    if tool.actions is no_actions:
        return _undeclared(tool)
    try:
        return _declared(tool, arguments, context)
    except ToolError:
        return Intent(Order.SAFE)  # the tool will refuse it for the same reason
    except Exception:
        # A fault in what a tool declares costs the call its company, and nothing else.
        log.exception("what a call of %r is going to do can't be told", tool.name)
        return Intent(tool.order, reads_all=True, writes_all=True)


def _declared(tool: Tool, arguments: Any, context: Context) -> Intent:
    actions = tool.actions(context, arguments)
    touches = tuple(action for action in actions if isinstance(action, Touches))
    intent = Intent(tool.order, touches, beside=_BESIDE.get(tool.access))
    for action in actions:
        if isinstance(action, RunsCode):
            intent = replace(intent, reads_all=True, writes_all=True)
        elif isinstance(action, Contacts) and action.in_order and intent.order is Order.SAFE:
            intent = replace(intent, order=Order.UNSAFE)
        elif isinstance(action, RunsCommand):
            intent = _with_command(intent, action, context)
    if getattr(arguments, "run_in_background", None):
        # The calls behind it may be about the task.
        order = Order.BARRIER if intent.order is Order.BARRIER else Order.UNSAFE
        intent = replace(intent, order=order, beside=SESSION)
    return intent


def _undeclared(tool: Tool) -> Intent:
    """Of a tool that does not say what it touches: as its access and order imply."""
    writes = tool.is_mutating and tool.order is not Order.SAFE
    reads = writes or tool.access is Access.READ
    beside = _BESIDE.get(tool.access, SESSION)
    return Intent(tool.order, beside=beside, reads_all=reads, writes_all=writes)


def _with_command(intent: Intent, action: RunsCommand, context: Context) -> Intent:
    """The intent, and what the command line does."""
    directory = action.cwd or context.cwd
    script = analyse(action.text, directory, posix=context.shell != "bash")
    moves = script.changes_directory and action.cwd is None
    if moves or any(program_of(simple.words) in _WAITS for simple in script.commands):
        return replace(intent, order=Order.BARRIER, reads_all=True, writes_all=True)
    is_safe = script.is_read_only
    is_unclear = not is_safe and _may_write_through_own_links(script)
    operands = [Touches(worktree_name(path), "read") for path in script.reads or ()]
    if not is_safe:
        operands += [Touches(worktree_name(path), "write") for path in script.writes or ()]
    order = intent.order
    if order in (Order.SAFE, Order.UNSAFE):
        order = Order.SAFE if is_safe else Order.UNSAFE
    return replace(
        intent,
        order=order,
        operands=(*intent.operands, *operands),
        directories=(*intent.directories, worktree_name(directory)),
        reads_all=intent.reads_all or is_unclear or script.reads is None,
        writes_all=intent.writes_all or is_unclear or (script.writes is None and not is_safe),
    )


def _may_write_through_own_links(script: Script) -> bool:
    """Whether one of its commands may make a link that another one follows."""
    commands = [simple for simple in script.commands if not simple.is_read_only]
    return len(script.commands) > 1 and any(
        program_of(simple.words) not in _MAKES_NO_LINKS for simple in commands if simple.words
    )


def _is_harmless(path: str) -> bool:
    return path.startswith(_HARMLESS) or path in _DEVICES


def worktree_name(path: str) -> str:
    """An absolute path of the box as a worktree path, if it is one."""
    path = posixpath.normpath(path)
    return "" if path == MOUNT else path.removeprefix(MOUNT + "/")


# ─── where that is ──────────────────────────────────────────────────────────────────


def effects_of(intent: Intent, places: Mapping[str, Place] | None) -> Effects:
    """What a call does.

    Args:
        intent: what it is going to do.
        places: where its paths lead; None = nobody writes to any known path, so that paths
            need not be compared.
    """
    found = _Found(intent)
    places = places or {}
    for touch in intent.touches:
        found.add_touch(touch, places.get(touch.path))
    for touch in intent.operands:
        found.add_operand(touch, places.get(touch.path))
    for path in intent.directories:
        found.add_directory(path, places.get(path))
    return found.effects()


class _Found:
    """Collects the effects of one call."""

    def __init__(self, intent: Intent) -> None:
        self._order = intent.order
        beside = set() if intent.beside is None else {Area(intent.beside)}
        self._reads = set(beside)
        self._writes = set() if intent.order is Order.SAFE else beside
        self._reads_all = intent.reads_all
        self._writes_all = intent.writes_all
        self._searches = self._creates = False
        self._reshapes = intent.writes_all

    def effects(self) -> Effects:
        """All of them."""
        return Effects(
            self._order,
            None if self._reads_all else tuple(self._reads),
            None if self._writes_all else tuple(self._writes),
            self._searches,
            self._creates,
            self._reshapes,
        )

    def add_touch(self, touch: Touches, place: Place | None) -> None:
        """What a tool touches."""
        if place is None or (place.state is State.OUTSIDE and touch.path.startswith("/")):
            # Beside the worktree only the host makes files for tools, and no links.
            place = Place(touch.path, touch.path, State.THERE)
        if place.state in (State.OUTSIDE, State.UNCLEAR):
            self._add_unknown(touch.how)
        elif touch.how == "delete":
            self._reads.update(Area(link) for link in place.links if link != place.own)
            self._writes.add(Area(place.missing or place.own, subtree=True))
            self._reshapes = True
        elif touch.how == "write":
            self._write(place, subtree=touch.subtree)
            self._reshapes |= touch.subtree
        else:
            self._searches |= touch.how == "list"
            self._read(place, subtree=touch.subtree or touch.how == "list")

    def add_operand(self, touch: Touches, place: Place | None) -> None:
        """What a command reads or writes, by whatever means."""
        if _is_harmless(touch.path):
            return
        if place is None or place.state in (State.OUTSIDE, State.UNCLEAR):
            self._add_unknown(touch.how)
        elif place.state is State.THERE and place.kind != "f":
            # It may follow links in a directory; what a FIFO or a device does is unknown.
            self._add_unknown(touch.how)
        elif touch.how == "read":
            self._read(place, subtree=False)
        else:
            self._write(place, subtree=True)
            self._reshapes = True

    def add_directory(self, path: str, place: Place | None) -> None:
        """Where a command starts."""
        self._reads.update(map(Area, place.links if place is not None else ()))
        self._reads.add(Area(path if place is None else place.path))

    def _read(self, place: Place, *, subtree: bool) -> None:
        self._reads.update(map(Area, place.links))
        self._reads.add(_area(place, subtree=subtree))
        if subtree:
            for path in {place.path, place.own}:
                self._reads.update(map(Area, _ignore_files_above(path)))

    def _write(self, place: Place, *, subtree: bool) -> None:
        self._reads.update(map(Area, place.links))
        self._writes_all |= place.shared  # by whatever other names it has
        self._creates |= place.missing is not None
        self._writes |= {Area(place.own, subtree), _area(place, subtree=subtree)}

    def _add_unknown(self, how: str) -> None:
        self._reads_all = True
        if how in ("write", "delete"):
            self._writes_all = self._reshapes = True


def _area(place: Place, *, subtree: bool) -> Area:
    """What is there; where nothing is, everything that would have to be made."""
    return Area(place.path, subtree) if place.missing is None else Area(place.missing, True)


def _ignore_files_above(path: str) -> Iterator[str]:
    directories = [""]
    for part in path.split("/")[:-1]:
        directories.append(f"{directories[-1]}/{part}".lstrip("/"))
    for directory in directories if path else ():
        for name in IGNORE_FILES:
            yield f"{directory}/{name}".lstrip("/")


# ─── who waits for whom ─────────────────────────────────────────────────────────────


def must_wait(later: Effects, earlier: Effects) -> bool:
    """Whether a call has to wait until an earlier one of its turn has ended."""
    if Order.BARRIER in (later.order, earlier.order):
        return True
    if later.order is earlier.order is Order.UNSAFE:
        return True
    return disturbs(earlier, later) or disturbs(later, earlier)


def disturbs(writer: Effects, other: Effects) -> bool:
    """Whether what one call writes may be what the other reads or writes."""
    if writer.writes == () or (other.reads == () and other.writes == ()):
        return False
    if writer.writes is None or other.reads is None or other.writes is None:
        return True
    if other.searches and (writer.creates or writer.reshapes):
        return True
    touched = (*other.reads, *other.writes)
    return any(_meet(area, touch) for area in writer.writes for touch in touched)


def _meet(written: Area, touched: Area) -> bool:
    # Whatever is below a path that is written may be gone, or be reached through a new link.
    if _is_at_or_below(touched.path, written.path):
        return True
    return touched.subtree and _is_at_or_below(written.path, touched.path)


def _is_at_or_below(path: str, top: str) -> bool:
    if not top:
        return not path.startswith("/")
    return path == top or (path.startswith(top) and path[len(top)] == "/")


@dataclass(slots=True)
class _Planned:
    """A call that has not ended.

    Attributes:
        effects: None = not known yet.
        running: it was started.
        is_stale: a call that it waits for changes where paths lead: its own effects have to
            be found anew after that, and until then it may touch anything.
    """

    effects: Effects | None = None
    running: bool = False
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What can be done now, by positions.

    Attributes:
        start: calls that may run.
        learn: calls whose effects have to be found.
    """

    start: tuple[int, ...]
    learn: tuple[int, ...]


class Schedule:
    """The order of one turn's calls, which may still be growing.

    A call that is added is known by its position, from 0. Its effects are told by `learn`
    when a step asks for them; those of calls behind a barrier when it has ended.

    Args:
        parallel: calls that may run at a time.

    Attributes:
        is_closed: no more calls come.
        shape: another number whenever paths may lead elsewhere than before; effects that
            were found meanwhile have to be found again.
    """

    def __init__(self, parallel: int = MAX_PARALLEL) -> None:
        self._parallel = parallel
        self._planned: dict[int, _Planned] = {}
        self._added = 0
        self._running = 0
        self.is_closed = False
        self.shape = 0

    @property
    def is_over(self) -> bool:
        """Every call has ended and no more come."""
        return self.is_closed and not self._planned

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Calls that have not ended."""
        return tuple(self._planned)

    def add(self) -> int:
        """One more call; its position."""
        position = self._added
        self._added += 1
        self._planned[position] = _Planned()
        return position

    def close(self) -> None:
        """No more calls come: the last ones may run when the others have ended."""
        self.is_closed = True

    def learn(self, position: int, effects: Effects) -> None:
        """What a call does."""
        call = self._planned.get(position)
        if call is not None:  # otherwise it was cancelled meanwhile
            call.effects, call.is_stale = effects, False

    def start(self, position: int) -> None:
        """The call runs."""
        self._planned[position].running = True
        self._running += 1

    def end(self, position: int) -> None:
        """The call has ended, or will never run."""
        call = self._planned.pop(position)
        self._running -= call.running
        self.shape += call.running and (call.effects is None or call.effects.reshapes)

    def step(self) -> Step:
        """What can be done now; asked again after every change."""
        start: list[int] = []
        learn: list[int] = []
        ahead: list[Effects] = []
        free = self._parallel - self._running
        for position, call in self._front():
            if call.effects is None:
                learn += self._unknown()
                break
            is_unsettled = not call.running and _reshaped(call.effects, ahead)
            call.is_stale |= is_unsettled
            if call.is_stale:
                if not is_unsettled:
                    learn.append(position)
                ahead.append(_anything(call.effects))
            else:
                can_run = not call.running and len(start) < free
                if can_run and not any(must_wait(call.effects, other) for other in ahead):
                    start.append(position)
                ahead.append(call.effects)
            if call.effects.order is Order.BARRIER:
                break
        return Step(tuple(start) if ahead or learn else self._last(), tuple(learn))

    def _front(self) -> Iterator[tuple[int, _Planned]]:
        """The first of the calls that have not ended, without those that come last."""
        all_but_last = (
            (position, call)
            for position, call in self._planned.items()
            if call.effects is None or call.effects.order is not Order.LAST
        )
        return islice(all_but_last, LOOKAHEAD)

    def _unknown(self) -> list[int]:
        return [position for position, call in self._planned.items() if call.effects is None]

    def _last(self) -> tuple[int, ...]:
        """The next of those that come last, when there are no others."""
        if not self.is_closed or self._running:
            return ()
        return tuple(islice(self._planned, 1))


def _reshaped(effects: Effects, ahead: Iterable[Effects]) -> bool:
    """Whether paths of the call may lead elsewhere when those ahead of it have ended."""
    return any(other.reshapes and disturbs(other, effects) for other in ahead)


def _anything(effects: Effects) -> Effects:
    """What the call may do wherever its paths turn out to lead."""
    return replace(effects, reads=None, writes=() if effects.writes == () else None)
