"""A loop as a server of the Model Context Protocol: its tools, for one client.

The official SDK speaks the protocol. What is here says what its requests mean for a loop: calls
that change something run one at a time and in order, others beside each other; a cancelled call
is ended in the box; what happens meanwhile is told as progress. The tools are listed while the box
is still being opened, and the client is told when they are others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias

import mcp_types as types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated, ToolsListChanged

from executor.callables import forget, is_cancelled
from executor.errors import ConfigError, SandboxError
from executor.frontends.mcp_contents import answer_of, fault, tools_of
from executor.frontends.mcp_notices import (
    MAX_WAITING,
    Context,
    Notices,
    Told,
    said_of,
    with_logging,
)
from executor.frontends.mcp_resources import TEMPLATE, Resources, read, uri_of
from executor.frontends.mcp_stdio import Incoming, Outgoing
from executor.loop import Loop
from executor.model import Call, Finished, Result
from executor.sandbox.completion import to_completion

INSTRUCTIONS: Final = (
    "These tools work on one worktree inside a sandbox: /workspace, without a network unless the "
    "user named hosts. Files have to be read before they are changed. Results that are too long "
    "are cut, and say in which file of the sandbox the whole is; that is a resource, too."
)
PATIENCE: Final = 3.0
"""Seconds that a list of tools waits for the loop: what is foreseen may differ from what it has,
and there are clients that do not hear of changes."""
MAX_CALLS: Final = 100
"""Calls at a time, whoever still waits for their answers: over HTTP a client may hang up."""
MAX_LISTENING: Final = 16
"""Requests to listen to changes, which newer versions of the protocol have, at a time."""
_LEVELS: Final = (
    *("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"),
)

Foreseen: TypeAlias = Callable[[], Awaitable[list[types.Tool]]]


class Order:
    """Who runs beside whom: calls that only look together, every other one alone.

    Places are given in the order of coming, so that nobody is passed for ever.
    """

    def __init__(self) -> None:
        self._running = 0
        self._is_alone = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def place(self, *, beside: bool) -> AsyncIterator[None]:
        """A place for a call, for as long as this lasts.

        Args:
            beside: it may run beside others like it.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((beside, turn))
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was this one's turn in the same moment
            else:
                self._waiting.remove((beside, turn))
                self._give()
            raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._running -= 1
        self._is_alone = False
        self._give()

    def _give(self) -> None:
        while self._waiting and not self._is_alone:
            beside, turn = self._waiting[0]
            if turn.cancelled():
                return  # it takes itself away
            if self._running and not beside:
                return
            self._waiting.popleft()
            self._running += 1
            self._is_alone = not beside
            turn.set_result(None)


class LoopServer:
    """Serves one loop to one client.

    Args:
        opened: the loop, once it is open; may fail as opening a loop does, and is asked again
            then when the client asks for something.
        version: of this program.
        with_structured: results have their data, too.
        foreseen: the tools that the loop will have, as far as that is known before it is open;
            None = the client has to wait for them.
    """

    def __init__(
        self,
        opened: Callable[[], Awaitable[Loop]],
        version: str,
        *,
        with_structured: bool = True,
        foreseen: Foreseen | None = None,
    ) -> None:
        self._opened = opened
        self._with_structured = with_structured
        self._foreseen = foreseen
        self._order = Order()
        self._calls: set[asyncio.Task[Any]] = set()
        self._number = 0
        self._level = _LEVELS.index("info")
        self._notices = Notices(lambda level: _LEVELS.index(level) >= self._level)
        self._bus = InMemorySubscriptionBus()
        self._listening = ListenHandler(
            self._bus, max_subscriptions=MAX_LISTENING, max_buffered_events=MAX_WAITING
        )
        self._resources = Resources()
        self._open: Loop | None = None
        self._is_settled = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._failure = ""
        self._shown: list[types.Tool] | None = None
        self._kept: list[str] = []
        self.server = self._made(version)

    def _made(self, version: str) -> Server[Any]:
        """The SDK's server, which asks this one."""
        with with_logging():
            server: Server[Any] = Server(
                "executor",
                version=version,
                instructions=INSTRUCTIONS,
                on_list_tools=self._list_tools,
                on_call_tool=self._call_tool,
                on_list_resources=self._list_resources,
                on_list_resource_templates=self._list_templates,
                on_read_resource=self._read_resource,
                on_subscriptions_listen=self._listen,
                on_set_logging_level=self._set_level,
            )
        server.add_notification_handler(
            "notifications/initialized", types.NotificationParams, self._initialized
        )
        return server

    @property
    def is_busy(self) -> bool:
        """A call runs."""
        return bool(self._calls)

    async def run(self, incoming: Incoming, outgoing: Outgoing) -> None:
        """Serve the client until it ends the connection; then no call runs any more."""
        told = NotificationOptions(tools_changed=True, resources_changed=True)
        try:
            options = self.server.create_initialization_options(told)
            await self.server.run(incoming, outgoing, options)
        except Exception as error:
            # Messages that come while it is cancelled are faults of the SDK's own streams, which
            # it raises instead.
            if is_cancelled():
                raise asyncio.CancelledError from error
            raise
        finally:
            await to_completion(self._end())

    async def _end(self) -> None:
        """Cancel what still runs, and wait until it is over."""
        self._notices.abandon()
        running = {*self._calls, *((self._watching,) if self._watching is not None else ())}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    # ─── the loop ───

    def _begin(self) -> None:
        """Somebody is there: have the loop, and look at what happens in it."""
        if self._watching is None or (self._watching.done() and self._open is None):
            self._is_settled = asyncio.Event()  # who waits for the one before keeps that one's
            self._watching = asyncio.create_task(self._watch(self._is_settled))
            self._watching.add_done_callback(forget)

    async def _watch(self, is_settled: asyncio.Event) -> None:
        try:
            loop = self._open = await self._opened()
        except (ConfigError, SandboxError) as error:
            # Without a list of tools it is the answer to what is asked first.
            if self._shown is not None and str(error) != self._failure:
                self._failure = str(error)
                self._notices.say("error", _without_sandbox(error))
            return
        finally:
            is_settled.set()
        events = loop.events()
        await self._look(loop)
        async for event in events:
            self._notices.hear(event)
            if said_of(event) is not None:
                await self._look(loop)

    async def _loop(self) -> Loop:
        self._begin()
        try:
            return await self._opened()
        except (ConfigError, SandboxError) as error:
            raise fault(types.INTERNAL_ERROR, _without_sandbox(error)) from error

    async def _look(self, loop: Loop) -> None:
        """Tell the client if the loop has other tools or results than the client knows of."""
        tools = tools_of(loop)
        if self._shown is not None and self._shown != tools:
            self._shown = tools
            self._notices.changed("tools")
            await self._bus.publish(ToolsListChanged())
        kept, before = list(loop.kept()), self._kept
        if kept != before:
            self._kept = kept
            self._notices.changed("resources")
            await self._bus.publish(ResourcesListChanged())
            for path in sorted({*before}.difference(kept)):
                await self._bus.publish(ResourceUpdated(uri_of(path)))

    # ─── what the client asks ───

    async def _initialized(self, context: Context, params: types.NotificationParams) -> None:
        self._notices.begin(context.session)
        self._begin()

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        self._begin()
        return await self._listening(context, params)

    async def _set_level(
        self, context: Context, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        self._level = _LEVELS.index(params.level)
        return types.EmptyResult()

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        _require_first_page(params)
        tools = await self._foreseen_tools()
        if tools is None:
            tools = tools_of(await self._loop())
        self._shown = tools
        return types.ListToolsResult(tools=tools)

    async def _foreseen_tools(self) -> list[types.Tool] | None:
        """The tools of a loop that takes its time; None = it is open, or will never be."""
        if self._foreseen is None:
            return None
        self._begin()
        is_settled = self._is_settled
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(is_settled.wait(), PATIENCE)
        tools = None if is_settled.is_set() else await self._foreseen()
        return None if is_settled.is_set() else tools

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        self._begin()
        if self._open is None:
            _require_first_page(params)
            return types.ListResourcesResult(resources=[])
        return self._resources.page(self._open, params.cursor if params is not None else None)

    async def _list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        _require_first_page(params)
        return types.ListResourceTemplatesResult(resource_templates=[TEMPLATE])

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        self._begin()
        return await read(self._open, params.uri, context.protocol_version)

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if len(self._calls) >= MAX_CALLS:
            text = f"{MAX_CALLS} calls run or wait; send this again when some have ended"
            raise fault(types.INTERNAL_ERROR, text)
        self._number += 1
        call = Call(f"call-{self._number}", params.name, params.arguments or {})
        # A task of its own: what cancels the request does so again and again, while ending the
        # call in the box takes its time.
        task = asyncio.ensure_future(self._answered(call, context))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(forget)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def _answered(self, call: Call, context: Context) -> types.CallToolResult:
        loop = await self._loop()
        async with self._order.place(beside=loop.runs_beside(call)):
            with self._notices.told(context) as told:
                result = await _result_of(loop, call, told)
                await told.finish()
        link = self._resources.link(result, loop, context.protocol_version)
        await self._look(loop)
        return answer_of(result, link, with_structured=self._with_structured)


def _without_sandbox(error: Exception) -> str:
    return f"no sandbox could be had: {error}"


def _require_first_page(params: types.PaginatedRequestParams | None) -> None:
    if params is not None and params.cursor is not None:
        raise fault(types.INVALID_PARAMS, "this list has one page; ask without a cursor")


async def _result_of(loop: Loop, call: Call, told: Told) -> Result:
    """Make the call, and tell what happens meanwhile."""
    async with contextlib.aclosing(loop.stream([call])) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, Finished):
                result = event.result
            else:
                told.take(event)
    return result
