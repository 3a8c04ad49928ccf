"""Every decision of a broker as lines of the audit log: who, where, how much, and the verdict.

No path, query, header or body is in them. Lines are written in batches, by a thread. What is
the same is one line with a count, and refusals of ever new hosts, and names that lead nowhere,
are, beyond a budget, one line for all: a box that floods the broker fills no disk. Where a byte
has gone always has its own line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from executor.audit import AuditLog
from executor.egress.policy import Reason
from executor.errors import ConfigError
from executor.text import one_line

EVENT = "egress"
WINDOW = 1.0
"""Seconds for which lines wait for more of their kind."""
BURST = 200
"""Refusals, or failures, of different hosts that have lines of their own, one after the other."""
RATE = 0.2
"""How many more of them may have, per second."""
OTHERS = "*"
"""The host in the line of those that have none."""
RETRY = 5.0
"""Seconds until what could not be written is tried again."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one request or connection, and what came of it.

    Attributes:
        sandbox, lane: whose it was; of the host's own tools the sandbox is empty.
        host, port, scheme: as far as it was understood.
        is_allowed: else nothing was sent there.
        reason: why it was refused, or why it ended before its end.
        up, down: bytes that were sent and received.
    """

    sandbox: str
    lane: str
    host: str
    port: int
    scheme: str
    is_allowed: bool
    reason: Reason
    up: int = 0
    down: int = 0


@dataclass(slots=True)
class _Sum:
    count: int = 0
    up: int = 0
    down: int = 0


@dataclass(slots=True)
class Journal:
    """The decisions of one loop's broker.

    Attributes:
        audit: where they go; None = nowhere.
        exec_id, tenant: in every line.
        clock: seconds that only grow.
    """

    audit: AuditLog | None
    exec_id: str
    tenant: str
    clock: Callable[[], float] = time.monotonic
    is_failing: bool = False
    _waiting: dict[Decision, _Sum] = field(default_factory=dict)
    _budget: float = BURST
    _filled: float | None = None
    _writer: asyncio.Task[None] | None = None

    def note(self, decision: Decision) -> None:
        """It will be in the log within about a second."""
        if self.audit is None:
            return
        key = _key(decision)
        if key not in self._waiting and _is_flood(decision) and not self._may_have_a_line():
            key = _key(_without_host(decision))
        total = self._waiting.setdefault(key, _Sum())
        total.count += 1
        total.up += decision.up
        total.down += decision.down
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_soon())

    async def aclose(self) -> None:
        """All of it is in the log when this returns.

        Raises:
            ConfigError: it can't be written.
        """
        if self._writer is not None:
            if not self._writer.cancelling():  # twice, it would leave lines that are on their way
                self._writer.cancel()
            await asyncio.wait([self._writer])  # unlike `await`, ends when this is cancelled
            if not self._writer.cancelled():
                self._writer.exception()  # what it says, the next line says again
        await self._write()

    async def _write_soon(self) -> None:
        wait = WINDOW
        while self._waiting:
            await asyncio.sleep(wait)
            try:
                await self._write()
            except ConfigError:
                wait = RETRY
            else:
                wait = WINDOW

    async def _write(self) -> None:
        """Writes what waits; what can't be written goes on waiting."""
        taken, self._waiting = self._waiting, {}
        if not taken or self.audit is None:
            return
        lines = [(EVENT, self._line(key, total)) for key, total in taken.items()]
        work = asyncio.ensure_future(asyncio.to_thread(self.audit.extend, lines))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # it is on its way: it must not be written twice
            if work.exception() is not None:
                self._take_back(taken)
            raise
        except Exception as error:
            self._take_back(taken)
            if isinstance(error, ConfigError):
                raise
            # As when the system has no thread left.
            raise ConfigError(f"audit log: it can't be written ({error})") from error
        self.is_failing = False

    def _take_back(self, taken: dict[Decision, _Sum]) -> None:
        self.is_failing = True
        for key, total in self._waiting.items():
            held = taken.setdefault(key, _Sum())
            held.count += total.count
            held.up += total.up
            held.down += total.down
        self._waiting = taken

    def _line(self, key: Decision, total: _Sum) -> dict[str, object]:
        facts = asdict(key)
        verdict = "allow" if facts.pop("is_allowed") else "deny"
        facts |= {"reason": str(key.reason), "verdict": verdict, "up": total.up, "down": total.down}
        facts["count"] = total.count
        return {"exec_id": self.exec_id, "tenant": self.tenant, **facts}

    def _may_have_a_line(self) -> bool:
        now = self.clock()
        if self._filled is not None:
            self._budget = min(BURST, self._budget + (now - self._filled) * RATE)
        self._filled = now
        if self._budget < 1:
            return False
        self._budget -= 1
        return True


def _is_flood(decision: Decision) -> bool:
    """Whether a box can have any number of them at no cost: nothing was sent or received.

    Names below a listed `*.suffix` are allowed however many they are, and need not exist.
    """
    return not (decision.is_allowed and decision.up + decision.down)


def _key(decision: Decision) -> Decision:
    """What is the same in lines that are one; a host as nobody's terminal obeys it."""
    return Decision(
        decision.sandbox,
        decision.lane,
        one_line(decision.host, 300),
        decision.port,
        decision.scheme,
        decision.is_allowed,
        decision.reason,
    )


def _without_host(decision: Decision) -> Decision:
    return Decision(
        *(decision.sandbox, decision.lane, OTHERS, 0, decision.scheme),
        *(decision.is_allowed, decision.reason),
    )
