"""What goes on through a broker now, and what went through it: counted, and ended on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from executor.bytestream import StreamClosed
from executor.egress.policy import Kind, Reason


@dataclass(frozen=True, slots=True)
class Used:
    """What a loop has used of its egress so far.

    Attributes:
        connections: open now, from boxes and of the host's tools.
        requests: that were allowed; a tunnel is one.
        denials: that were not.
        up, down: bytes sent and received.
    """

    connections: int
    requests: int
    denials: int
    up: int
    down: int


@dataclass(slots=True)
class Account:
    """The bytes of one loop and of its agents, all their connections together.

    Attributes:
        limit: of both directions in all.
        on_spent: called when it is reached, at each piece that comes after.
    """

    limit: int
    on_spent: list[Callable[[], None]] = field(default_factory=list)
    up: int = 0
    down: int = 0
    is_spent: bool = False
    """Nothing may be sent or received any more."""

    def add(self, up: int, down: int) -> None:
        """Counts a piece before it is passed on.

        Raises:
            StreamClosed: it must not be.
        """
        if self.up + self.down + up + down > self.limit:
            self.is_spent = True
            for told in tuple(self.on_spent):
                told()
            raise StreamClosed("the byte quota is used up")
        self.up += up
        self.down += down


@dataclass(eq=False, slots=True)
class Passage:
    """One connection, of a box or of a tool of the host.

    Attributes:
        lane, sandbox: whose it is: of the stream that it came on. A tool's sandbox is empty.
        account: of its loop.
        target: what it is connected to now; None = nothing yet.
        owes: the same, while its client waits for the head of an answer.
        spare: the same, of a connection that waits for another request.
        drop_spare: ends that one.
        is_granted: somebody has approved it by itself: no list allows it.
        is_ending: it is over, but for its last words: it does not count as open.
        up, down: bytes of the request or tunnel that goes on.
        ended: why it was ended from here.
    """

    lane: str
    sandbox: str
    account: Account
    target: tuple[str, int, Kind] | None = None
    owes: tuple[str, int, Kind] | None = None
    spare: tuple[str, int, Kind] | None = None
    drop_spare: Callable[[], None] = lambda: None
    is_granted: bool = False
    is_ending: bool = False
    up: int = 0
    down: int = 0
    ended: Reason | None = None
    _stop: Callable[[], None] | None = None
    _clock: asyncio.Timeout | None = field(default=None)
    _idle: float = 0.0

    def begin(self, clock: asyncio.Timeout, idle: float) -> None:
        """Ends by this clock: when told to, or when no byte has moved for so many seconds."""
        self._clock, self._idle = clock, idle
        if self.ended is not None:
            clock.reschedule(0)

    def finish(self) -> None:
        """It has ended by itself: nothing is left to be ended."""
        self._clock = self._stop = None

    def stop_by(self, stop: Callable[[], None]) -> None:
        """Ends by calling this."""
        self._stop = stop
        if self.ended is not None:
            stop()

    @property
    def reason_of_end(self) -> Reason | None:
        """Why it was ended from here; None = it was not."""
        if self.ended is None and self._clock is not None and self._clock.expired():
            return Reason.IDLE
        return self.ended

    def touch(self) -> None:
        """Something has happened: it is not idle."""
        self._set_clock(asyncio.get_running_loop().time() + self._idle)

    def hurry(self, seconds: float) -> None:
        """From now on it is idle sooner."""
        self._idle = min(self._idle, seconds)
        self.touch()

    def rest(self) -> None:
        """Nothing is expected to happen: other limits hold than that of idleness."""
        self._set_clock(None)

    def _set_clock(self, when: float | None) -> None:
        # A clock that has run out can't be set again: its task is being cancelled.
        if self._clock is not None and not self._clock.expired() and self.ended is None:
            self._clock.reschedule(when)

    def sent(self, count: int) -> None:
        """Counts bytes to the other end, before they go.

        Raises:
            StreamClosed: they must not go.
        """
        self._count(count, 0)

    def received(self, count: int) -> None:
        """Counts bytes from the other end, before they are passed on.

        Raises:
            StreamClosed: they must not be.
        """
        self._count(0, count)

    def _count(self, up: int, down: int) -> None:
        if self.ended is not None:
            raise StreamClosed(self.ended.value)
        self.account.add(up, down)
        self.up += up
        self.down += down
        self.touch()

    def end(self, reason: Reason) -> None:
        """It is over; may be said again."""
        if self.ended is not None:
            return
        self._set_clock(0)
        self.ended = reason
        if self._stop is not None:
            self._stop()
