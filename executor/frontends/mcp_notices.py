"""What a client of the Model Context Protocol is told without asking: how a call goes on, what
else happens, which lists have changed.

Of those who tell, each has one message under way at a time, and what waits is bounded: a client
that does not read makes nobody keep what it might have read. What happens is told once: by a call
during which it happened, and else by the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeAlias

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from executor.frontends.mcp_contents import sendable
from executor.model import BackgroundEnded, Event, LaneLost, LaneOpened, Output, Progress, Warned
from executor.text import one_line

PROGRESS_INTERVAL: Final = 0.25
"""Seconds between two notifications about one call."""
MAX_MESSAGE: Final = 500
"""Characters of a notification's message."""
MAX_WAITING: Final = 100
"""Messages that wait; of more the oldest are left out, and that is said."""
MAX_CLAIMED: Final = 10_000
"""Events of which is known that they were told."""

Context: TypeAlias = ServerRequestContext[Any, Any]
Sending: TypeAlias = Coroutine[Any, Any, None]
Wants: TypeAlias = Callable[[types.LoggingLevel], bool]
"""The client wants messages of this level."""


def said_of(event: Event) -> tuple[types.LoggingLevel, str] | None:
    """What a client may want to know of an event, and how much; None = nothing of the kind."""
    match event:
        case Warned(message=message):
            return "warning", message
        case BackgroundEnded(task_id=task, status=status, exit_code=code):
            ended = f"the background task {task} has ended: {status}"
            return "info", ended if code is None else f"{ended}, exit code {code}"
        case LaneLost(lane=lane, cause=cause):
            return "notice", f"the sandbox of lane {lane} is gone: {cause}"
        case LaneOpened(lane=lane, sandbox=name):
            return "debug", f"lane {lane} has the sandbox {name}"
    return None


class Claims:
    """Which events were told: the loop tells each of them to all who listen."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def __contains__(self, number: int) -> bool:
        """The event of this number was told."""
        return number in self._numbers

    def add(self, number: int) -> None:
        """It is told now."""
        self._numbers[number] = None
        if len(self._numbers) > MAX_CLAIMED:
            del self._numbers[next(iter(self._numbers))]


class _Teller(ABC):
    """Tells one thing after the other."""

    def __init__(self, wants: Wants, claims: Claims) -> None:
        self._wants = wants
        self._claims = claims
        self._waiting: deque[tuple[int | None, types.LoggingLevel, str]] = deque()
        self._left_out = 0
        self._sending: asyncio.Task[None] | None = None

    @abstractmethod
    def _next(self) -> Sending | None:
        """What sends the next message; None = there is none now."""

    def _hear(self, event: Event) -> None:
        """Have it told, if the client wants to know."""
        found = said_of(event)
        if found is not None and self._wants(found[0]) and event.seq not in self._claims:
            self._add(event.seq, *found)

    def _add(self, number: int | None, level: types.LoggingLevel, text: str) -> None:
        if len(self._waiting) >= MAX_WAITING:
            untold = [one for one in self._waiting if one[0] is None or one[0] not in self._claims]
            self._left_out += len(untold) >= MAX_WAITING
            self._waiting = deque(untold[-(MAX_WAITING - 1) :])
        self._waiting.append((number, level, text))
        self._go_on()

    def _message(self) -> tuple[types.LoggingLevel, str] | None:
        """The next one that nobody else has told."""
        if count := self._left_out:
            self._left_out = 0
            return "warning", f"{count} messages were left out here: they were not read in time"
        while self._waiting:
            number, level, text = self._waiting.popleft()
            if number is None or number not in self._claims:
                if number is not None:
                    self._claims.add(number)
                return level, text
        return None

    def _go_on(self) -> None:
        if self._sending is None and (sending := self._next()) is not None:
            self._send(sending)

    def _send(self, sending: Sending) -> None:
        self._sending = asyncio.ensure_future(sending)
        self._sending.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if not task.cancelled():
            task.exception()  # a notification that nobody takes is no fault of a call
            self._go_on()

    async def finish(self) -> None:
        """Everything that was to be told is."""
        while self._sending is not None:
            await asyncio.wait({self._sending})

    def abandon(self) -> None:
        """Nobody wants to be told anything more."""
        self._waiting.clear()
        if self._sending is not None:
            self._sending.cancel()


class Told(_Teller):
    """Notifications about one call; of its progress those are left out that come too soon.

    Args:
        context: of the request.
        wants: what the client wants to know.
        claims: what was told.
    """

    def __init__(self, context: Context, wants: Wants, claims: Claims) -> None:
        # Newer versions say it with each request, and the SDK knows it.
        says_itself = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        super().__init__((lambda level: True) if says_itself else wants, claims)
        self._context = context
        self._count = 0
        self._last = 0.0

    def take(self, event: Event) -> None:
        """Tell the client what it may want to know of it."""
        match event:
            case Output(text=text):
                lines = text.strip().splitlines()
                self._progress(lines[-1] if lines else "")
            case Progress(message=message):
                self._progress(message)
            case _:
                self._hear(event)

    def _progress(self, message: str) -> None:
        now = time.monotonic()
        if not message or now - self._last < PROGRESS_INTERVAL or self._sending is not None:
            return
        self._last = now
        self._count += 1
        self._send(self._context.session.report_progress(self._count, None, _short(message)))

    def _next(self) -> Sending | None:
        message = self._message()
        if message is None:
            return None
        return _logged(self._context.session, *message, self._context.request_id)


class Notices(_Teller):
    """Notifications about a connection: what happens outside of calls, and lists that changed.

    Args:
        wants: what the client wants to know.

    Attributes:
        claims: what was told.
    """

    def __init__(self, wants: Wants) -> None:
        self.claims = Claims()
        super().__init__(wants, self.claims)
        self._session: ServerSession | None = None
        self._calls = 0
        self._changed: dict[str, None] = {}

    def begin(self, session: ServerSession) -> None:
        """The client listens from now on. Those of newer versions never do: they ask."""
        self._session = session
        self._go_on()

    def hear(self, event: Event) -> None:
        """Tell it, unless a call does that runs now."""
        if self._session is not None:
            self._hear(event)

    def say(self, level: types.LoggingLevel, text: str) -> None:
        """Tell what no loop tells."""
        if self._wants(level):
            self._add(None, level, text)

    def changed(self, what: str) -> None:
        """The list of `tools` or of `resources` is another one."""
        self._changed[what] = None
        self._go_on()

    @contextlib.contextmanager
    def told(self, context: Context) -> Iterator[Told]:
        """What tells of a call, for as long as it runs; what it has not told by then is told."""
        told = Told(context, self._wants, self.claims)
        self._calls += 1
        try:
            yield told
        finally:
            told.abandon()
            self._calls -= 1
            self._go_on()

    def _next(self) -> Sending | None:
        session = self._session
        if session is None:
            return None
        if self._changed:
            what = next(iter(self._changed))
            del self._changed[what]
            is_tools = what == "tools"
            send = (
                session.send_tool_list_changed if is_tools else session.send_resource_list_changed
            )
            return send()
        message = None if self._calls else self._message()
        return None if message is None else _logged(session, *message)


@contextlib.contextmanager
def with_logging() -> Iterator[None]:
    """Messages of levels can be spoken of: the protocol's earlier versions have them still.

    Those are the versions of most clients, but the SDK warns of what newer ones leave out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        yield


def _logged(
    session: ServerSession, level: types.LoggingLevel, text: str, request: Any = None
) -> Sending:
    with with_logging():
        return session.send_log_message(level, _short(text), related_request_id=request)


def _short(text: str) -> str:
    return str(sendable(one_line(text, MAX_MESSAGE)))
