"""One MCP server as a loop has it: started when it is needed, started again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, TypeAlias

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from pydantic import ValidationError

from executor.catalog_servers import McpEntry
from executor.errors import Code, SandboxError, ToolError
from executor.foreign.lines import Ends, over_lines
from executor.foreign.lists import ToolList
from executor.served import TAIL, Serve, Served, State, last_words, without_box
from executor.text import one_line, visible

MAX_PAGES = 100
"""Pages of the list of tools that are asked for."""
QUICK = 10.0
"""Seconds; a server that ends sooner after its start has ended quickly."""
MOST_QUICK = 3
"""Quick ends after which it is not started again for a while."""
PAUSE = 60.0
"""Seconds of that while."""
REFRESH_TIMEOUT = 5.0
"""Seconds that a server may take to say which tools it has now."""
REST = 10.0
"""Seconds that it is not asked again for each second that its answer took."""
END_TIMEOUT = 8.0
"""Seconds that the end of a server may take until nobody waits for it any more."""
GRACE = 1.0
"""Seconds between TERM and KILL then."""
FIRST_NUMBER = 1000
"""Of our requests; the SDK numbers its own ones from 1."""
BETWEEN_TOLD = 0.1
"""Seconds between two reports of progress that are passed on."""

log = logging.getLogger(__name__)

Progressed: TypeAlias = Callable[[float, float | None, str | None], None]
"""Is told how far a call is: so much, of so much, in words."""


@dataclass(slots=True)
class Link:
    """How a server is reached.

    Attributes:
        ends: of the connection.
        served: its program; None = it is somebody else's.
    """

    ends: Ends
    served: Served | None = None


@asynccontextmanager
async def started(name: str, serve: Serve, entry: McpEntry, program: Any) -> AsyncIterator[Link]:
    """A link to a program that is started for it. It is the caller's to end the program.

    Raises:
        ToolError, SandboxError: see `Serve`.
    """
    try:
        served = await serve(program)
    except ToolError as error:
        if error.code is not Code.NOT_FOUND or entry.where == "host":
            raise
        advice = 'add its package in images.toml, or let it run on the host with where = "host"'
        raise ToolError(Code.NOT_FOUND, f"{error}; {advice}") from error
    try:
        async with over_lines(name, served.stream) as ends:
            yield Link(ends, served)
    except BaseException:
        with contextlib.suppress(Exception):
            await served.end(0.5)
        raise


@dataclass(slots=True)
class _Live:
    """A server that answers."""

    session: ClientSession
    dispatcher: JSONRPCDispatcher[Any]
    link: Link
    since: float = field(default_factory=time.monotonic)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_NUMBER))

    async def ask(self, method: str, params: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            MCPError: it refuses, or there is none.
        """
        number = next(self.numbers)
        version = self.session.protocol_version
        headers = {MCP_PROTOCOL_VERSION_HEADER: version} if version else {}
        options: Any = {"headers": headers, "request_id": number, **more}
        faults = self.link.ends.faults
        faults[number] = ""
        try:
            return await self.dispatcher.send_raw_request(method, params, options)
        except MCPError as error:
            if not faults[number]:
                raise
            raise MCPError(types.CONNECTION_CLOSED, faults[number]) from error
        finally:
            del faults[number]


@dataclass(slots=True)
class _Run:
    """A server from its start to its end.

    Attributes:
        ready: has it once it answers.
        closing: set = it is to end.
        is_left: it answered, and nobody speaks with it any more.
        last: how it ended and what it last said, in sentences; empty until then.
        keeper: holds it; done = it is gone.
    """

    ready: asyncio.Future[_Live] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    is_left: bool = False
    last: str = ""
    keeper: asyncio.Task[None] = field(init=False)

    @property
    def is_up(self) -> bool:
        """It answers, as far as is known."""
        if self.is_left or not self.ready.done():
            return False
        return not self.ready.result().link.ends.over.is_set()

    def stop(self) -> None:
        """Let it end, whatever it is doing."""
        self.closing.set()
        self.keeper.cancel()

    async def gone(self) -> BaseException | None:
        """Wait until it is gone.

        Returns:
            Why it could not be started; None = it could, or that is not known.
        """
        _, late = await asyncio.wait({self.keeper}, timeout=END_TIMEOUT)
        if late:
            self.stop()
            await asyncio.wait({self.keeper}, timeout=END_TIMEOUT)
        if not self.keeper.done() or self.keeper.cancelled():
            return None
        return self.keeper.exception()


class Connection:
    """One server of one loop.

    Args:
        name: of the server.
        entry: of the catalog.
        link: reaches it.
    """

    def __init__(
        self,
        name: str,
        entry: McpEntry,
        link: Callable[[], AbstractAsyncContextManager[Link]],
    ) -> None:
        self.name = name
        self.entry = entry
        self.listed = ToolList()
        self._changes = self._learnt = 0
        self._link = link
        self._lock = asyncio.Lock()
        self._run: _Run | None = None
        self._quick: list[float] = []
        self._is_closed = False
        self._next_refresh = 0.0

    async def open(self) -> None:
        """Start it, if it does not run, and learn its tools.

        Raises:
            ToolError: EXECUTION_ERROR, it did not start, or not in time; with the reason.
            SandboxError: there is no box to start it in.
        """
        async with self._lock:
            await self._opened()

    async def _opened(self) -> _Run:
        """The server, which is started if none runs; the lock is held."""
        run, last = self._run, ""
        if run is not None:
            if run.is_up and not self._is_closed:
                return run
            await run.gone()
            last = run.last
        if self._is_closed:
            raise ToolError(Code.EXECUTION_ERROR, f"{self._shown} is closed.")
        self._refuse_quick(last)
        self._run = run = _Run()
        run.keeper = asyncio.create_task(self._keep(run))
        await self._begun(run)
        return run

    async def _begun(self, run: _Run) -> None:
        """Wait until a server answers.

        Raises:
            ToolError, SandboxError: see `open`. Nothing is left of it then.
        """
        began, seconds = time.monotonic(), self.entry.start_timeout_ms / 1000
        waits: set[asyncio.Future[Any]] = {run.ready, run.keeper}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            run.stop()
            raise
        if run.ready.done():
            return
        is_late = not run.keeper.done()
        if is_late:
            run.stop()
        error = await run.gone()
        if isinstance(error, SandboxError):
            raise error
        self._count(began)
        cause = _silent(seconds) if is_late else _cause(error)
        raise ToolError(
            Code.EXECUTION_ERROR, f"{self._shown} could not be started: {cause}{run.last}"
        )

    def _refuse_quick(self, last: str) -> None:
        recent = self._quick[-MOST_QUICK:]
        left = PAUSE - (time.monotonic() - recent[-1]) if len(recent) == MOST_QUICK else 0.0
        if left > 0:
            raise ToolError(
                Code.EXECUTION_ERROR,
                f"{self._shown} ended {MOST_QUICK} times soon after its start and is not started "
                f"again for {left:.0f} seconds.{last}",
            )
        if len(recent) == MOST_QUICK:
            self._quick.clear()

    def _count(self, began: float) -> None:
        """Count an end that came soon."""
        if time.monotonic() - began < QUICK:
            self._quick.append(time.monotonic())
        else:
            self._quick.clear()

    @property
    def _shown(self) -> str:
        return f"The MCP server {self.name}"

    # ─── while it runs ───

    async def _keep(self, run: _Run) -> None:
        """Holds a server from its start to its end, in one task as the SDK wants it.

        Raises:
            Exception: it could not be started.
        """
        try:
            async with self._link() as link:
                try:
                    await self._spoken_with(link, run)
                finally:
                    run.last = await _ended(link)
        except Exception as error:
            if not run.ready.done():
                raise
            log.debug(
                "%s ended with %s: %s", self._shown, type(error).__name__, one_line(str(error))
            )

    async def _spoken_with(self, link: Link, run: _Run) -> None:
        """Speak with a server until it ends or is to end."""
        dispatcher: JSONRPCDispatcher[Any] = JSONRPCDispatcher(link.ends.read, link.ends.write)
        session = ClientSession(
            dispatcher=dispatcher,
            client_info=types.Implementation(name="executor", version=metadata.version("executor")),
            logging_callback=self._logged,
            message_handler=self._noticed,
        )
        async with session:
            live = _Live(session, dispatcher, link)
            await session.initialize()
            await self._learn(live)
            run.ready.set_result(live)
            try:
                await _first(link.ends.over.wait(), run.closing.wait())
            finally:
                run.is_left = True
                if not run.closing.is_set():
                    self._count(live.since)

    async def _logged(self, params: types.LoggingMessageNotificationParams) -> None:
        log.debug("MCP server %s: %s", self.name, one_line(str(params.data)))

    async def _noticed(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changes += 1

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Its tools as it last said them, of whatever shape."""
        return self.listed.tools

    @property
    def is_stale(self) -> bool:
        """It has said that its tools changed, and has not told them since."""
        return self._learnt != self._changes

    async def _learn(self, live: _Live) -> None:
        """Ask for its tools. A change that it tells of meanwhile is one still."""
        changes = self._changes
        self.listed = await _listed(live)
        self._learnt = changes

    # ─── what is asked of it ───

    async def refresh(self) -> None:
        """Learn its tools anew if it has said that they changed, and was not asked just now.

        Raises:
            ToolError: it did not answer.
        """
        run = self._run
        if not self.is_stale or run is None or not run.is_up:
            return
        began = time.monotonic()
        if began < self._next_refresh:
            return
        try:
            await asyncio.wait_for(self._learn(run.ready.result()), REFRESH_TIMEOUT)
        except (MCPError, TimeoutError, ValueError) as error:
            self._next_refresh = time.monotonic() + PAUSE  # it holds up the loop no more
            is_late = isinstance(error, TimeoutError)
            cause = _silent(REFRESH_TIMEOUT) if is_late else _cause(error)
            text = f"{self._shown} did not say which tools it has now: {cause}"
            raise ToolError(Code.EXECUTION_ERROR, text) from error
        now = time.monotonic()
        self._next_refresh = now + REST * (now - began)

    async def call(
        self, tool: str, arguments: Mapping[str, Any], most: float, told: Progressed
    ) -> dict[str, Any]:
        """The result of a tool, as the server gives it.

        Args:
            tool: as the server calls it.
            arguments: of the call.
            most: seconds that it may take at all.
            told: is told of progress, ten times a second at most.

        Raises:
            ToolError: TIMEOUT; EXECUTION_ERROR, the server has ended or can't be started;
                INVALID_ARGUMENTS, it says that they are; NETWORK_ERROR.
            SandboxError: there is no box to start it in.
        """
        async with self._lock:
            run = await self._opened()
        live, heard = run.ready.result(), _Heard(told)
        params = {"name": tool, "arguments": dict(arguments)}
        asked = asyncio.create_task(live.ask("tools/call", params, on_progress=heard.take))
        try:
            await self._awaited(asked, heard, most)
            return asked.result()
        except MCPError as error:
            raise await self._refusal(error, run) from error
        finally:
            if not asked.done():
                asked.cancel()  # which tells the server
                await asyncio.wait({asked}, timeout=END_TIMEOUT)

    async def _awaited(self, asked: asyncio.Task[Any], heard: _Heard, most: float) -> None:
        """Wait for the answer, as long as there is progress.

        Raises:
            ToolError: TIMEOUT.
        """
        idle = self.entry.idle_timeout_ms / 1000
        last = time.monotonic() + most
        while not asked.done():
            now = time.monotonic()
            until = min(last, heard.at + idle)
            if now >= last:
                text = f"The call took longer than {most:g} seconds and was cancelled."
                raise ToolError(Code.TIMEOUT, text)
            if now >= until:
                text = f"{self._shown} said nothing for {idle:g} seconds; the call was cancelled."
                raise ToolError(Code.TIMEOUT, text)
            await asyncio.wait({asked}, timeout=until - now)

    async def _refusal(self, error: MCPError, run: _Run) -> ToolError:
        """What to raise for a call that has no result."""
        if not run.is_up:
            await asyncio.wait({run.keeper}, timeout=END_TIMEOUT)
            return ToolError(
                Code.EXECUTION_ERROR,
                f"{self._shown} ended while it ran the call.{run.last} "
                "The next call starts it anew.",
            )
        said = visible(error.error.message)[:TAIL]
        if error.error.code == types.CONNECTION_CLOSED and self.entry.url is not None:
            return ToolError(Code.NETWORK_ERROR, f"{self._shown} did not answer the call: {said}")
        is_invalid = error.error.code == types.INVALID_PARAMS
        code = Code.INVALID_ARGUMENTS if is_invalid else Code.EXECUTION_ERROR
        return ToolError(code, f"{self._shown} refused the call: {said}")

    async def close(self) -> None:
        """End it for good."""
        self._is_closed = True
        run = self._run
        if run is not None:
            if run.ready.done():
                run.closing.set()
            else:
                run.stop()  # it does not look for that yet
            await run.gone()


class _Heard:
    """When a call was last heard of."""

    def __init__(self, told: Progressed) -> None:
        self.at = time.monotonic()
        self._told = told
        self._told_at = 0.0

    async def take(self, progress: float, total: float | None, message: str | None) -> None:
        self.at = time.monotonic()
        if self.at - self._told_at >= BETWEEN_TOLD:
            self._told_at = self.at
            self._told(progress, total, None if message is None else visible(message[:TAIL]))


async def _first(*waits: Awaitable[Any]) -> None:
    """Wait for the first of them."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _listed(live: _Live) -> ToolList:
    """The tools of a server.

    Raises:
        MCPError: it refuses.
        ValueError: there is no end of the list.
    """
    found = ToolList()
    params: dict[str, str] = {}
    for _ in range(MAX_PAGES):
        # No page has a name here: it would be held while the next one is awaited.
        cursor = found.take(await live.ask("tools/list", params))
        if cursor is None:
            return found
        params = {"cursor": cursor}
    raise ValueError(f"its list of tools has more than {MAX_PAGES} pages")


async def _ended(link: Link) -> str:
    """End its program; how it ended and what it last said, in sentences."""
    if link.served is None:
        return last_words(State(True), is_over=False, fault=link.ends.fault)
    is_over = link.ends.over.is_set()
    try:
        state = await link.served.end(GRACE)
    except SandboxError as error:
        return without_box(error)
    return last_words(state, is_over=is_over, fault=link.ends.fault)


def _silent(seconds: float) -> str:
    return f"it did not answer in {seconds:g} seconds."


def _cause(error: BaseException | None) -> str:
    if error is None:
        return "it ended."
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"its answer is none of the protocol: {visible(where)[:TAIL]}: {first['msg']}."
    text = error.error.message if isinstance(error, MCPError) else str(error)
    return f"{visible(text)[:TAIL] or type(error).__name__}."
