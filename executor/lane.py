"""A lane: the loop's place for a box, which is opened, replaced and given back as calls need it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from executor.errors import Code, ConfigError, SandboxError, SandboxUnavailable, ToolError
from executor.model import LANE, MOUNT, Event, LaneLost, LaneOpened, LoopSpec, Warned, plain
from executor.permissions import restrictions
from executor.redaction import RedactedOperations, redact_error
from executor.rules import Rule
from executor.sandbox.completion import to_completion
from executor.session import Session
from executor.text import one_line
from executor.tool import Answer, OnOutput, Operations
from executor.tools.background import AWAIT

if TYPE_CHECKING:
    from executor.bytestream import ByteStream
    from executor.egress.broker import Broker
    from executor.egress.secrets import Secrets
    from executor.served import Program, Served

ANSWER_TIMEOUT = 10.0
"""Seconds that the agent may take to name its shell, or to take up what the rules deny."""

_NAMED = 3
"""Refusals of the broker that the error of a failed set-up repeats."""

log = logging.getLogger(__name__)


class OpenBox(Operations, Protocol):
    """A box as the sandbox layer hands it out."""

    @property
    def name(self) -> str:
        """Of the container."""

    @property
    def capabilities(self) -> dict[str, Any]:
        """What isolation is really there."""

    @property
    def error(self) -> SandboxError | None:
        """Why the box is lost; None while it lives."""

    async def mourned(self) -> SandboxError | None:
        """`error`, once the cause was looked for."""

    async def dial(self, port: int) -> ByteStream:
        """Connect to a port of the box's loopback.

        Raises:
            ToolError: nothing listens there.
            SandboxError: the box was lost.
        """

    async def serve(self, program: Program) -> Served:
        """Start a program, to be spoken to over its stdin and stdout; see `Serve`."""


Opener: TypeAlias = Callable[[LoopSpec], AbstractAsyncContextManager[OpenBox]]
"""Opens a box for a loop; leaving the context removes it."""


@dataclass(frozen=True, slots=True)
class Gone:
    """What became of a box that was replaced.

    Attributes:
        cause: as `LaneLost` has it.
        is_lost: nobody of ours wanted it to end.
        lane: whose box it was, where the loop has several; empty = it has one. The working
            directory is common to all of them, and stays.
    """

    cause: str
    is_lost: bool
    lane: str = ""

    @property
    def notice(self) -> str:
        """What the loop has to know about its new box."""
        what = f"was lost ({self.cause})" if self.is_lost else f"is a new one ({self.cause})"
        more = " and a new one was opened on the same worktree" if self.is_lost else ""
        of = f" of lane {self.lane}" if self.lane else ""
        gone = "processes and /tmp" if self.lane else "processes, /tmp and the working directory"
        return f"the sandbox{of} {what}{more}: {gone} are gone, files in {MOUNT} are intact"


@dataclass(frozen=True, slots=True)
class SetUp:
    """What is done in each new box before its first call.

    Attributes:
        spec: of the loop; has the command line.
        broker: lets the set-up reach its hosts; None = there are none.
        tell: takes what it prints, line by line.
        lane: of the boxes.
        secrets: what nobody is shown of that; None = there are none.
    """

    spec: LoopSpec
    broker: Broker | None
    tell: Callable[[str], None]
    lane: str = LANE
    secrets: Secrets | None = None

    async def run(self, box: OpenBox) -> None:
        """Set the box up; connections that only the set-up may have are ended after it.

        Raises:
            SandboxError: it failed, or the box was lost; the box must not be used.
        """
        from executor.setup import set_up

        shown: Operations = RedactedOperations(box, self.secrets) if self.secrets else box
        try:
            if self.broker is None:
                await set_up(shown, self.spec, self.tell)
            else:
                await self._reaching(self.broker, box.name, shown)
        except SandboxError as error:
            redact_error(error, self.secrets)
            raise

    async def _reaching(self, broker: Broker, name: str, box: Operations) -> None:
        """The same with hosts that are reached from the box of that name."""
        from executor.setup import SetupFailed, set_up

        broker.set_up(name)
        begun = time.monotonic()
        try:
            await set_up(box, self.spec, self.tell)
        except SetupFailed as error:
            # Most often a host is missing in the list, and installers hardly say which.
            denied = broker.denied_recently(time.monotonic() - begun, self.lane)
            said = "".join(f"\n  the broker refused: {one}" for one in denied[-_NAMED:])
            raise SetupFailed(f"{error}{said}") from error
        finally:
            broker.set_up_done(name)


class Lane:
    """The loop's place for a box. A box that is gone is replaced when a call needs one.

    It goes when it is lost, and when no call has been running for `Limits.idle_seconds`.
    A background task counts as a call; what a call left running does not, and goes with the box.

    Args:
        spec: of the loop, as it is for this lane.
        opener: opens a box.
        session: of the loop.
        announce: takes events.
        lane: its name.
        is_alone: the loop has no other lane.
        set_up: what is done in each new box; None = nothing.
        known: what a person was told of another box already.

    Attributes:
        lane: its name.
        replaced: how many boxes are gone and replaced.
        gone: what became of the last of them; None = there was no other box yet.
    """

    def __init__(
        self,
        spec: LoopSpec,
        opener: Opener,
        session: Session,
        announce: Callable[[Event], None],
        lane: str = LANE,
        *,
        is_alone: bool = True,
        set_up: SetUp | None = None,
        known: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._known = known
        self.lane = lane
        self.replaced = 0
        self.gone: Gone | None = None
        self._spec = spec
        self._opener = opener
        self._session = session
        self._announce = announce
        self._is_alone = is_alone
        self._set_up = set_up
        self._lock = asyncio.Lock()
        self._box: OpenBox | None = None
        self._is_vacant = False
        self._stack = AsyncExitStack()
        self._is_closed = False
        self._closing = asyncio.Event()
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._giving_back: asyncio.Task[None] | None = None
        self._restricted: tuple[Rule, ...] = ()

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._box.capabilities if self._box is not None else {}

    @property
    def is_open(self) -> bool:
        """There is a box, and it lives."""
        return self._box is not None and self._box.error is None

    @property
    def name(self) -> str:
        """Of the open box's container; empty while there is none."""
        return self._box.name if self._box is not None else ""

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """A call runs for as long as this lasts; the box is not given back meanwhile."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield
        finally:
            self._users -= 1
            self._count_idle_time()

    async def ready(self) -> None:
        """See `Box.ready`."""
        if self._box is None or self._box.error is not None:
            await self._open_for_a_call()
        elif self._restricted is not self._session.rules.deny:
            async with self._lock:
                await self._restrict(self._box)

    async def _restrict(self, box: OpenBox) -> None:
        """Tell the agent what the rules deny to files; it looks at what it opens.

        Raises:
            SandboxError: it did not take it, so the box must not be used.
        """
        rules = self._session.rules
        told = restrictions(rules)
        if any(told.values()) or self._restricted:
            try:
                await box.request("restrict", told, timeout=ANSWER_TIMEOUT)
            except ToolError as error:
                raise SandboxError(f"the agent did not take the loop's rules: {error}") from error
        self._restricted = rules.deny

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Answer:
        """See `Operations.request`."""
        box = self._box
        if box is None or box.error is not None:
            box = await self._open_for_a_call()
        # A background task is use of the box after its call, too.
        with self.in_use() if op == AWAIT else contextlib.nullcontext():
            return await box.request(op, arguments, body, timeout=timeout, on_output=on_output)

    async def _open_for_a_call(self) -> OpenBox:
        """`open`; what is wrong with a lane's image or limits is no fault of the executor's.

        Raises:
            SandboxError: none could be opened.
        """
        try:
            return await self.open()
        except ConfigError as error:
            raise SandboxUnavailable(f"lane {self.lane}: {error}") from error

    async def open(self) -> OpenBox:
        """The open box, after opening one if there is none. Callers at once share it.

        Raises:
            SandboxError: none could be opened.
        """
        async with self._lock:
            if self._is_closed:
                raise SandboxError("the loop is closed")
            box = self._box
            if box is not None and box.error is None:
                return box
            if box is not None:
                error = await box.mourned()
                await self._vacate(Gone(str(error), is_lost=True))
            box = await self._stack.enter_async_context(self._opener(self._spec))
            try:
                await self._make_ready(box)
            except BaseException:
                await self._leave()
                raise
            self._box = box
            if self._is_vacant:
                self._is_vacant = False
                self.replaced += 1
            self._announce(LaneOpened(lane=self.lane, sandbox=box.name))
            if self.lane != LANE and not self.replaced:
                # Those of the first box are shown as it is opened.
                for notice in box.capabilities.get("notices", ()):
                    if notice not in self._known():
                        self._announce(Warned(message=f"lane {self.lane}: {notice}"))
            self._count_idle_time()
            return box

    async def _make_ready(self, box: OpenBox) -> None:
        """What a new box needs before it is handed out; the lock is held."""
        self._restricted = ()
        await self._restrict(box)
        if self._set_up is not None:
            await self._unless_closed(self._set_up.run(box))
        # Command lines are judged as the shell reads them that gets them.
        wanted = self._session.wanted_programs
        asked = {"programs": wanted} if wanted else {}
        answer = await box.request("shell", asked, timeout=ANSWER_TIMEOUT)
        self._session.shells[self.lane] = answer.value["shell"]
        if wanted:
            self._session.programs[self.lane] = frozenset(answer.value["programs"])

    async def _unless_closed(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what may take long. Closing the lane ends it, instead of waiting for it.

        Raises:
            SandboxUnavailable: the lane was closed meanwhile.
        """
        doing = asyncio.ensure_future(work)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({doing, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise SandboxUnavailable(
                    "The loop was closed, or its time was over, before the set-up had ended; "
                    "give it more time, or a shorter set-up."
                )
            doing.result()
        finally:
            doing.cancel()
            closing.cancel()
            await asyncio.wait({doing, closing})

    async def dial(self, port: int) -> ByteStream:
        """Connect to a port of the loopback in the box. None is opened for it.

        Raises:
            ToolError: nothing listens there.
            SandboxError: the box was lost.
        """
        box = self._box
        if box is None or box.error is not None:
            raise ToolError(
                Code.NETWORK_ERROR,
                f"Nothing listens on port {port} in the sandbox of lane {self.lane}, which is not "
                "open; start the server with a command first.",
            )
        try:
            return await box.dial(port)
        except ToolError as error:
            said = f"{error} (in the sandbox of lane {self.lane})"
            raise ToolError(error.code, said, error.details) from error

    async def serve(self, program: Program) -> Served:
        """Start a program in the box, which is opened if there is none; see `Serve`.

        It is no use of the box: one that no call uses is given back, and the program with it.
        """
        with self.in_use():
            box = self._box
            if box is None or box.error is not None:
                box = await self._open_for_a_call()
            return await box.serve(program)

    async def _vacate(self, gone: Gone) -> None:
        """Have no box; the lock is held."""
        self._box = None
        self._is_vacant = True
        if not self._is_alone:
            gone = replace(gone, lane=self.lane)
        self.gone = gone
        if self._is_alone:
            # A new box starts at the root. Where there are others, they are told the directory
            # with each command, and so is this one.
            self._session.cwd = MOUNT
        self._announce(LaneLost(lane=self.lane, cause=gone.cause))
        await self._leave()

    async def _leave(self) -> None:
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        except SandboxError as error:
            reason = one_line(str(error))
            log.warning("the box could not be removed and is left to the reaper: %s", reason)

    def _count_idle_time(self) -> None:
        """From now on nothing runs, unless something does."""
        seconds = self._spec.limits.idle_seconds
        if seconds is None or self._users or self._box is None or self._is_closed:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(seconds, self._on_idle, seconds)

    def _on_idle(self, seconds: float) -> None:
        self._idle = None
        self._giving_back = asyncio.ensure_future(self._give_back(seconds))

    async def _give_back(self, seconds: float) -> None:
        """Remove a box that nobody uses. A call that comes meanwhile waits for a new one."""
        async with self._lock:
            if self._users or self._box is None or self._is_closed:
                return
            error = self._box.error
            cause = f"the box was given back after {plain(seconds)} s without a call"
            gone = Gone(cause, False) if error is None else Gone(str(error), True)
            await self._vacate(gone)

    async def close(self) -> None:
        """Remove the box. Nothing is opened after this."""
        self._is_closed = True
        self._closing.set()
        if self._idle is not None:
            self._idle.cancel()
        await to_completion(self._close())

    async def _close(self) -> None:
        async with self._lock:
            self._box = None
            await self._leave()
        if self._giving_back is not None:
            await asyncio.wait({self._giving_back})
