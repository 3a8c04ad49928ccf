"""The way between loops: questions, shared data, alerts and stops, within one tenant.

`LocalCoordinator` serves the loops of one process; `redis_coordination` those of several.
Nothing is kept for a loop that is not open: what is sent to it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from executor.errors import Code, ConfigError, ToolError
from executor.text import one_line

MAX_MESSAGE = 1 << 20
"""Bytes of JSON that one message may take."""
MAX_NAMED = 100
"""Characters that a refusal repeats of a name that there is not."""
MAX_RATE = 100
"""Messages a second that one loop may send."""
MAX_INBOX = 1000
"""Messages that may wait for one loop."""
MAX_WAITING = 64 << 20
"""Bytes that they may take together."""


@dataclass(frozen=True, slots=True)
class Query:
    """Another loop asks; `Member.answer` with this id answers it."""

    id: str
    sender: str
    question: str


@dataclass(frozen=True, slots=True)
class Share:
    """Another loop gives data."""

    sender: str
    kind: str
    data: Any


@dataclass(frozen=True, slots=True)
class Notification:
    """The host alerts its loops."""

    kind: str
    data: Any


@dataclass(frozen=True, slots=True)
class Stop:
    """The host wants the loop to end; what that means is the loop's host's business."""

    reason: str


Message: TypeAlias = Query | Share | Notification | Stop


class Member(Protocol):
    """One loop's place among the others."""

    async def query(self, target: str, question: str, timeout: float) -> str:
        """Ask another loop and wait for its answer.

        Args:
            target: its exec_id.
            question: text.
            timeout: seconds.

        Raises:
            ToolError: NOT_FOUND, no such loop, or it closed; TIMEOUT; CONFLICT, it waits for an
                answer of this one; INVALID_ARGUMENTS, it is this one; LIMIT, too much or too
                large.
        """

    async def share(self, targets: Sequence[str], kind: str, data: Any) -> None:
        """Give data to other loops: to all of them, or to none.

        Raises:
            ToolError: as for `query`.
        """

    def inbox(self) -> AsyncIterator[Message]:
        """What comes in, until the loop closes."""

    async def answer(self, query_id: str, text: str) -> None:
        """Answer a question.

        Raises:
            ToolError: NOT_FOUND, nobody waits for it any more; LIMIT, too large.
        """


class Coordinator(Protocol):
    """Where loops join, and where their host speaks to them."""

    def join(self, tenant: str, exec_id: str) -> AbstractAsyncContextManager[Member]:
        """A place for a loop, for as long as the context lasts.

        Raises:
            ConfigError: a loop of this tenant has that name.
        """

    async def alert(
        self, tenant: str, kind: str, data: Any, targets: Sequence[str] | None = None
    ) -> None:
        """Tell loops something.

        Args:
            tenant: whose loops.
            kind, data: what.
            targets: exec_ids; None = all of the tenant's.

        Raises:
            ToolError: NOT_FOUND, LIMIT.
        """

    def subscribe(self, tenant: str) -> AsyncIterator[Notification]:
        """The alerts of a tenant, from now on."""

    async def stop(self, tenant: str, exec_id: str, reason: str) -> None:
        """Ask a loop to end.

        Raises:
            ToolError: NOT_FOUND.
        """


# ─── what both kinds check ──────────────────────────────────────────────────────────


class Rate:
    """At most `MAX_RATE` messages in any second."""

    def __init__(self) -> None:
        self._sent: deque[float] = deque()

    def count(self, messages: int = 1) -> None:
        """Count messages that are about to be sent.

        Raises:
            ToolError: LIMIT; they must not be sent then.
        """
        now = time.monotonic()
        while self._sent and self._sent[0] <= now - 1:
            self._sent.popleft()
        if len(self._sent) + messages > MAX_RATE:
            raise ToolError(
                Code.LIMIT,
                f"More than {MAX_RATE} messages a second; wait, and send fewer, larger ones.",
            )
        self._sent.extend([now] * messages)


def encoded(value: Any) -> str:
    """The value as JSON.

    Raises:
        ToolError: LIMIT, it is too large; INVALID_ARGUMENTS, it is no JSON.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(Code.INVALID_ARGUMENTS, f"The data is no JSON value: {error}.") from error
    if len(text) > MAX_MESSAGE:
        raise ToolError(
            Code.LIMIT,
            f"The message takes {len(text)} bytes of JSON, at most {MAX_MESSAGE} are allowed; "
            "write it to a file and say where, or send a part.",
        )
    return text


def no_loop(targets: Iterable[str]) -> ToolError:
    """The refusal for loops that are not open."""
    names = sorted({one_line(target, MAX_NAMED) for target in targets})
    what = f"There is no open loop {names[0]!r}" if len(names) == 1 else f"No open loops {names}"
    return ToolError(
        Code.NOT_FOUND, f"{what}; nothing was sent. Check the execution id.", {"missing": names}
    )


def checked_targets(sender: str, targets: Sequence[str]) -> list[str]:
    """The targets, each once.

    Raises:
        ToolError: INVALID_ARGUMENTS, there is none, or the sender is among them.
    """
    if not targets:
        raise ToolError(Code.INVALID_ARGUMENTS, "There is no target; name at least one loop.")
    if sender in targets:
        raise ToolError(
            Code.INVALID_ARGUMENTS, f"{sender!r} is this loop itself; name another one."
        )
    return list(dict.fromkeys(targets))


def unanswered(target: str, timeout: float) -> ToolError:
    """The refusal when no answer came."""
    return ToolError(
        Code.TIMEOUT,
        f"{target} did not answer within {round(timeout * 1000)}ms. Go on without it or ask again.",
    )


def in_a_circle(target: str) -> ToolError:
    """The refusal when the one that is asked waits for the one that asks."""
    return ToolError(
        Code.CONFLICT,
        f"{target} is waiting for an answer of this loop itself; answer it first, then ask.",
    )


def too_full(target: str) -> ToolError:
    """The refusal when nobody reads the target's messages."""
    return ToolError(
        Code.LIMIT,
        f"{MAX_INBOX} messages, or {MAX_WAITING} bytes of them, wait for {target} unread; it takes "
        "no more now.",
    )


# ─── loops of one process ───────────────────────────────────────────────────────────


class LocalCoordinator:
    """Coordinates the loops of one process. Made once, given to every controller."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], _LocalMember] = {}
        self._subscribers: dict[str, set[asyncio.Queue[Notification]]] = {}

    @contextlib.asynccontextmanager
    async def join(self, tenant: str, exec_id: str) -> AsyncGenerator[Member]:
        """See `Coordinator.join`."""
        if (tenant, exec_id) in self._members:
            raise ConfigError(f"exec_id: a loop {exec_id!r} is open; give another name")
        member = _LocalMember(self, tenant, exec_id)
        self._members[tenant, exec_id] = member
        try:
            yield member
        finally:
            del self._members[tenant, exec_id]
            member.close()

    async def alert(
        self, tenant: str, kind: str, data: Any, targets: Sequence[str] | None = None
    ) -> None:
        """See `Coordinator.alert`."""
        size = len(encoded([kind, data]))
        if targets is None:
            targets = [name for owner, name in self._members if owner == tenant]
        members = self.found(tenant, targets)
        for member in members:
            member.check_room()
        for member in members:
            member.put(Notification(kind, data), size)
        for queue in self._subscribers.get(tenant, ()):
            queue.put_nowait(Notification(kind, data))

    async def subscribe(self, tenant: str) -> AsyncGenerator[Notification]:
        """See `Coordinator.subscribe`."""
        queue: asyncio.Queue[Notification] = asyncio.Queue()
        self._subscribers.setdefault(tenant, set()).add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._subscribers[tenant].discard(queue)

    async def stop(self, tenant: str, exec_id: str, reason: str) -> None:
        """See `Coordinator.stop`."""
        for member in self.found(tenant, [exec_id]):
            member.put(Stop(reason), len(reason))

    def found(self, tenant: str, targets: Sequence[str]) -> list[_LocalMember]:
        """The members of these names.

        Raises:
            ToolError: NOT_FOUND, one is not open.
        """
        missing = [name for name in targets if (tenant, name) not in self._members]
        if missing:
            raise no_loop(missing)
        return [self._members[tenant, name] for name in targets]

    def waits(self, tenant: str, waiting: str, target: str) -> bool:
        """Whether a loop waits for another one, by whatever way."""
        seen, left = set[str](), [waiting]
        while left:
            name = left.pop()
            if name == target:
                return True
            if name in seen or (tenant, name) not in self._members:
                continue
            seen.add(name)
            left += self._members[tenant, name].asked
        return False


class _LocalMember:
    def __init__(self, coordinator: LocalCoordinator, tenant: str, exec_id: str) -> None:
        self.asked: Counter[str] = Counter()
        self._coordinator = coordinator
        self._tenant = tenant
        self._exec_id = exec_id
        self._rate = Rate()
        self._inbox: asyncio.Queue[tuple[Message, int] | None] = asyncio.Queue()
        self._waiting = 0
        self._open: dict[str, asyncio.Future[str]] = {}

    async def query(self, target: str, question: str, timeout: float) -> str:
        [target] = checked_targets(self._exec_id, [target])
        encoded(question)
        [member] = self._coordinator.found(self._tenant, [target])
        if self._coordinator.waits(self._tenant, target, self._exec_id):
            raise in_a_circle(target)
        self._rate.count()
        self.asked[target] += 1
        try:
            async with asyncio.timeout(timeout):
                return await member.asked_by(self._exec_id, question)
        except TimeoutError:
            raise unanswered(target, timeout) from None
        finally:
            self.asked -= Counter([target])

    async def asked_by(self, sender: str, question: str) -> str:
        """The answer of this one to another."""
        query = Query(f"query-{secrets.token_hex(8)}", sender, question)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.put(query, len(question))
        self._open[query.id] = future
        try:
            return await future
        finally:
            self._open.pop(query.id, None)

    async def share(self, targets: Sequence[str], kind: str, data: Any) -> None:
        targets = checked_targets(self._exec_id, targets)
        text = encoded([kind, data])
        members = self._coordinator.found(self._tenant, targets)
        for member in members:
            member.check_room()
        self._rate.count(len(members))
        for member in members:
            # A copy each: nothing that one changes is seen by another.
            member.put(Share(self._exec_id, *json.loads(text)), len(text))

    async def inbox(self) -> AsyncGenerator[Message]:
        while (found := await self._inbox.get()) is not None:
            message, size = found
            self._waiting -= size
            yield message

    async def answer(self, query_id: str, text: str) -> None:
        encoded(text)
        future = self._open.get(query_id)
        if future is None or future.done():
            raise nobody_waits(query_id)
        future.set_result(text)

    def check_room(self) -> None:
        """Raises ToolError: LIMIT, nobody reads what comes in."""
        if self._inbox.qsize() >= MAX_INBOX or self._waiting >= MAX_WAITING:
            raise too_full(self._exec_id)

    def put(self, message: Message, size: int) -> None:
        """Let a message of so many bytes wait here."""
        self.check_room()
        self._waiting += size
        self._inbox.put_nowait((message, size))

    def close(self) -> None:
        """Nothing more comes; who waits for an answer is told."""
        self._inbox.put_nowait(None)
        for future in self._open.values():
            if not future.done():
                future.set_exception(closed_meanwhile(self._exec_id))


def closed_meanwhile(target: str) -> ToolError:
    """The refusal when the one that was asked is gone."""
    return ToolError(Code.NOT_FOUND, f"{target} was closed before it answered.")


def nobody_waits(query_id: str) -> ToolError:
    """The refusal of an answer that comes too late."""
    return ToolError(
        Code.NOT_FOUND, f"Nobody waits for an answer to {query_id}: it is answered or too late."
    )
