"""The lanes of a loop: what their boxes are like, which of them share one, who waits for a place.

A tool has a lane, and a lane has a box. Boxes that would be alike are one: with no hosts to reach
and no limits or image of its own, every lane of a loop is the box of `no-net`. Where lanes really
differ, the worktree, what was added to it, results and caches are the same in all of them; `/tmp`,
the home directory and processes are not. There is one working directory, which is always in the
worktree.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from executor.catalog import Catalog, LaneEntry
from executor.catalog_tables import Network
from executor.errors import Code, ConfigError, ToolError
from executor.lane import Lane, Opener, SetUp
from executor.model import LANE, Event, Limits, LoopSpec
from executor.sandbox.completion import to_completion
from executor.session import Session

if TYPE_CHECKING:
    from executor.bytestream import ByteStream
    from executor.egress.broker import Broker
    from executor.egress.secrets import Secrets
    from executor.served import Program, Served
    from executor.tool import Tool

COMMANDS = "run_command"
"""The tool whose lane is the one that serves what it started: decisions, row 78."""
ISOLATED = "run_command_isolated"
"""The tool whose lane is always `no-net`, whatever the catalog says."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the box of a lane is like; lanes of the same terms share it.

    Attributes:
        image, runtime, limits: as `LoopSpec` has them.
        network: as it really is: `broker` only where the loop may reach something.
        lane: the first of the lanes that share the box; it is called by that name.
    """

    image: str
    runtime: str | None
    limits: Limits
    network: Network
    lane: str = field(default=LANE, compare=False)

    def has_proxy(self, spec: LoopSpec) -> bool:
        """Whether programs in the box find a proxy there.

        Where the lane reaches nothing there is one for the set-up, if that does.
        """
        if self.network != "none":
            return self.network == "broker"
        return spec.setup is not None and bool(spec.egress.hosts or spec.egress.setup_hosts)

    def specified(self, spec: LoopSpec) -> LoopSpec:
        """The loop's specification, for the box of this lane."""
        return replace(spec, image=self.image, runtime=self.runtime, limits=self.limits)


def terms_of(spec: LoopSpec, catalog: Catalog) -> dict[str, Terms]:
    """The terms of each lane, by its name; `no-net` comes first.

    What a lane's table in the catalog names comes before what the loop says.

    Raises:
        ConfigError: limits of a lane that no box can have.
    """
    found: dict[str, Terms] = {}
    faults: list[str] = []
    for name, entry in _entries(catalog).items():
        one = _terms(spec, entry, name)
        faults += [f"lanes.{name}.{fault}" for fault in one.limits.faults()]
        # Equal ones go by the name of the first of them.
        found[name] = next((known for known in found.values() if known == one), one)
    own = set(spec.limits.faults())
    if faults := [fault for fault in faults if fault.split(".", 2)[2] not in own]:
        raise ConfigError(faults)
    return found


def _entries(catalog: Catalog) -> dict[str, LaneEntry]:
    """What the catalog says about each lane; `no-net` comes first, and is always there."""
    return {LANE: LaneEntry(), **{str(name): entry for name, entry in catalog.lanes.items()}}


def _terms(spec: LoopSpec, entry: LaneEntry, name: str) -> Terms:
    named = {
        key: value
        for key in ("memory", "cpus", "pids")
        if (value := getattr(entry, key)) is not None
    }
    network: Network = entry.network
    if network == "broker" and not spec.egress.hosts:
        network = "none"
    return Terms(
        entry.image if entry.image is not None else spec.image,
        entry.runtime if entry.runtime is not None else spec.runtime,
        replace(spec.limits, **named) if named else spec.limits,
        network,
        name,
    )


def lane_of(tool: Tool) -> str:
    """The lane that a tool is meant for."""
    return LANE if tool.canonical == ISOLATED else tool.entry.lane


# ─── who waits ──────────────────────────────────────────────────────────────────────


class Queue:
    """The places of a lane: so many calls run at a time, and so many may wait.

    Args:
        lane: its name, for people.
        slots: calls that run at a time.
        most: calls that may wait; one more is refused.
    """

    def __init__(self, lane: str, slots: int, most: int) -> None:
        self._lane = lane
        self._slots = self._free = slots
        self._most = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def place(self, tell: Callable[[str], None]) -> AsyncIterator[None]:
        """One of its places, for as long as this lasts; in the order of coming.

        Args:
            tell: is told when it has to be waited for.

        Raises:
            ToolError: LIMIT, too many wait already.
        """
        if self._free:
            self._free -= 1
        else:
            await self._wait(tell)
        try:
            yield
        finally:
            self._give()

    async def _wait(self, tell: Callable[[str], None]) -> None:
        before = len(self._waiting)
        if before >= self._most:
            raise ToolError(
                Code.LIMIT,
                f"The lane {self._lane} is full: {self._slots} of its calls run and {before} wait, "
                "so this one was not run. Wait for results of the others before you call more.",
            )
        tell(f"waiting for a place in lane {self._lane}, {before} before")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give()  # it was this one's turn in the same moment
            else:
                with contextlib.suppress(ValueError):  # it was passed over in the same moment
                    self._waiting.remove(turn)
            raise

    def _give(self) -> None:
        """A place is free: the first that still waits has it."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its call was cancelled, and does not know it yet
                turn.set_result(None)
                return
        self._free += 1


# ─── the lanes ──────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Outfit:
    """What the boxes of a loop are opened with.

    Attributes:
        openers: what opens the boxes of these terms.
        broker: what the loop may reach outside; None = nothing.
        secrets: what its boxes have placeholders for; None = there are none.
        tell: takes what set-ups print, line by line.
    """

    openers: Callable[[Terms], Opener]
    broker: Broker | None = None
    secrets: Secrets | None = None
    tell: Callable[[str], None] = lambda line: None

    def set_up(self, spec: LoopSpec, lane: str) -> SetUp | None:
        """What is done in each new box of a lane; None = nothing."""
        if spec.setup is None:
            return None
        # Who reads along sees the same lines again for each box.
        told = "" if lane == LANE else f"lane {lane}: "
        return SetUp(spec, self.broker, lambda line: self.tell(told + line), lane, self.secrets)

    @classmethod
    def of(cls, opener: Opener) -> Outfit:
        """The same opener for all lanes."""
        return cls(lambda terms: opener)


@dataclass(frozen=True, slots=True)
class Attended:
    """The box that a person is in.

    Attributes:
        name: of its container.
        spec: of the loop, as it is for this box, with the placeholders of its secrets.
        has_proxy: what a person starts there may be carried outside.
    """

    name: str
    spec: LoopSpec
    has_proxy: bool


class Lanes:
    """The lanes of one loop. That of `no-net` is opened first, others when a call needs them.

    Args:
        spec: of the loop.
        catalog: says what lanes there are.
        outfit: opens boxes.
        session: of the loop.
        announce: takes the events of lanes.

    Attributes:
        main: the lane `no-net`.
        boxes: the lanes that have a box of their own, by name.
    """

    def __init__(
        self,
        spec: LoopSpec,
        catalog: Catalog,
        outfit: Outfit,
        session: Session,
        announce: Callable[[Event], None],
    ) -> None:
        self._spec = spec
        self._secrets = outfit.secrets
        self._terms = terms_of(spec, catalog)
        distinct = {terms.lane: terms for terms in self._terms.values()}
        self.boxes: dict[str, Lane] = {
            name: Lane(
                terms.specified(spec),
                outfit.openers(terms),
                session,
                announce,
                name,
                is_alone=len(distinct) == 1,
                set_up=outfit.set_up(spec, name),
                known=lambda: self.main.capabilities.get("notices", ()),
            )
            for name, terms in distinct.items()
        }
        self.main = self.boxes[LANE]
        self._queues = {
            name: Queue(name, entry.slots, entry.queue) for name, entry in _entries(catalog).items()
        }

    @property
    def are_several(self) -> bool:
        """They have more than one box."""
        return len(self.boxes) > 1

    def terms(self, lane: str) -> Terms:
        """Those of a lane; a name that nobody knows is `no-net`."""
        return self._terms.get(lane, self._terms[LANE])

    def queue(self, lane: str) -> Queue:
        """The places of a lane, which lanes that share a box don't share."""
        return self._queues.get(lane, self._queues[LANE])

    def open_ones(self) -> dict[str, Lane]:
        """The lanes whose boxes are open, by name."""
        return {name: lane for name, lane in self.boxes.items() if lane.is_open}

    def in_use(self, lane: str) -> contextlib.AbstractContextManager[None]:
        """See `Lane.in_use`."""
        return self.boxes[self.terms(lane).lane].in_use()

    @contextlib.asynccontextmanager
    async def attended(self, lane: str) -> AsyncIterator[Attended]:
        """A person is in a lane's box for as long as this lasts: it is not given back as idle.

        Raises:
            SandboxError: it could not be opened.
        """
        terms = self.terms(lane)
        place = self.boxes[terms.lane]
        spec = terms.specified(self._spec)
        if self._secrets is not None:
            spec = replace(spec, environment={**spec.environment, **self._secrets.placeholders})
        with place.in_use():
            await place.ready()
            yield Attended(place.name, spec, terms.has_proxy(self._spec))

    async def dial(self, lane: str, port: int) -> ByteStream:
        """See `Lane.dial`."""
        return await self.boxes[self.terms(lane).lane].dial(port)

    async def serve(self, lane: str, program: Program) -> Served:
        """See `Lane.serve`."""
        return await self.boxes[self.terms(lane).lane].serve(program)

    @property
    def capabilities(self) -> dict[str, Any]:
        """What isolation the box of `no-net` has; with `lanes`, that of the others, if any."""
        found = self.main.capabilities
        if not self.are_several:
            return found
        others = {name: lane.capabilities for name, lane in self.boxes.items() if name != LANE}
        return {**found, "lanes": others}

    def described(self, tools: Iterable[Tool]) -> dict[str, list[str]]:
        """Which of the tools runs where, by the names of boxes."""
        found: dict[str, list[str]] = {name: [] for name in self.boxes}
        for tool in tools:
            found[self.terms(lane_of(tool)).lane].append(tool.name)
        return found

    async def close(self) -> None:
        """Remove all boxes, at once. Nothing is opened after this."""
        await to_completion(self._close())

    async def _close(self) -> None:
        lanes = self.boxes.values()
        ends = await asyncio.gather(*(lane.close() for lane in lanes), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end


def notice(described: Mapping[str, Collection[str]]) -> str:
    """What the loop has to know once its second box is there.

    Args:
        described: as `Lanes.described` has it.
    """
    others = "; ".join(_sentence(name, tools) for name, tools in described.items() if name != LANE)
    return (
        f"this loop has several sandboxes: {others}; all other tools run in lane {LANE}. The "
        "worktree and saved results are the same in all of them; /tmp, the home directory and "
        "processes are not, so put what other tools need into the worktree"
    )


def _sentence(name: str, tools: Collection[str]) -> str:
    return f"lane {name} runs {', '.join(tools) or 'nothing'}"
