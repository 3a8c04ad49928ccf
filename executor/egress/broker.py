"""The broker of one loop: the proxy that its boxes speak to, on the host.

A box has no network. What its proxy port takes comes here as a stream of bytes, beside the name
of the box that it came from, which nobody in the box can choose. What is asked for is judged by
name, resolved, judged by address, dialled, and only then carried. Nothing that a box sends is
believed to come from a client of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
import traceback
from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from executor.audit import AuditLog
from executor.bytestream import ByteStream, StreamClosed
from executor.egress.conversation import Conversation, Waits
from executor.egress.dialling import Dialler
from executor.egress.journal import Decision, Journal
from executor.egress.passage import Account, Passage, Used
from executor.egress.policy import Kind, Policy, Reason, exactly
from executor.egress.refusal import Refused
from executor.egress.secrets import Secrets
from executor.egress.streams import SocketStream
from executor.errors import ConfigError
from executor.model import EgressOptions, parse_size

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_RECENT = 100
"""Refusals that results of commands can speak of."""
_ENDING = 4
"""Connections that are kept, counting those that are told why they are not, in times of those
that may be open."""


class Broker:
    """What a loop may reach outside. An async context manager.

    Args:
        options: of the loop.
        exec_id, tenant: of the loop, for the journal.
        journal: the log that every decision goes to; None = nobody wants to know.
        secrets: put into plain requests, masked in answers.
        dialler: makes connections.
        open_lanes: lanes whose boxes may reach `options.hosts` after their set-up; the others
            reach nothing then.
        waits: how long anything may take.
        above: broker of the loop that this one's loop is an agent of: what that may reach, and
            has left to send and receive, is what this one may and has; None = there is none.

    Attributes:
        secrets: of the loop; None = none.

    Raises:
        ConfigError: with every fault of the options.
    """

    def __init__(
        self,
        options: EgressOptions,
        *,
        exec_id: str,
        tenant: str,
        journal: AuditLog | None,
        secrets: Secrets | None = None,
        dialler: Dialler | None = None,
        open_lanes: Collection[str] = (),
        waits: Waits | None = None,
        above: Broker | None = None,
    ) -> None:
        self._options = options
        self._hosts = above.hosts if above else Policy.of(options.hosts, options.private)
        self._setup = Policy.of(options.setup_hosts, options.private)
        self.secrets = secrets or None
        self._dialler = dialler or Dialler()
        self._open_lanes = frozenset(open_lanes)
        self._waits = waits or Waits()
        self._journal = Journal(journal, exec_id, tenant)
        self.account: Account = above.account if above else Account(parse_size(options.total_bytes))
        self.account.on_spent.append(self._spent)
        self._above = above
        self._below: list[Broker] = []
        if above:
            above._below.append(self)
        self._passages: set[Passage] = set()
        self._in_setup: set[str] = set()
        self._requests = self._denials = 0
        self._recent: deque[tuple[float, str, Refused]] = deque(maxlen=_RECENT)
        self._is_closed = False
        self._all_left = asyncio.Event()
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends everything; what was decided is in the journal when this returns.

        May be called again. A journal that can't be written is logged, and keeps nothing open.
        """
        self._is_closed = True
        self._end_where(Reason.CLOSED)
        if self._passages:
            self._all_left.clear()
            await self._all_left.wait()
        with contextlib.suppress(ValueError):  # it was closed before
            self.account.on_spent.remove(self._spent)
            if self._above:
                self._above._below.remove(self)
        try:
            await self._journal.aclose()
        except ConfigError as error:
            log.error("egress: %s", error)

    # ─── what is allowed ───

    @property
    def used(self) -> Used:
        """What was used until now."""
        return Used(
            self._open,
            self._requests,
            self._denials,
            self.account.up,
            self.account.down,
        )

    @property
    def _open(self) -> int:
        return sum(not one.is_ending for one in self._passages)

    def denied_recently(self, seconds: float, lane: str | None = None) -> list[Refused]:
        """What was refused, or led nowhere: the latest of each host. The text of each says why.

        Args:
            seconds: how far back.
            lane: whose boxes asked; None = any, and the host's tools.
        """
        since = time.monotonic() - seconds
        latest = {
            (refused.host, refused.port): refused
            for at, asked, refused in self._recent
            if at >= since and lane in (None, asked)
        }
        return list(latest.values())

    @property
    def hosts(self) -> Policy:
        """What lanes with egress may reach."""
        return self._hosts

    def policy(self, lane: str | None, sandbox: str = "") -> Policy:
        """What a channel is judged by: that of the box that it comes from.

        Args:
            lane: of the box; None = a tool of the host, for the loop as a whole.
            sandbox: its name.
        """
        hosts = self._hosts if lane is None or lane in self._open_lanes else Policy()
        if sandbox in self._in_setup:
            return self._hosts.with_hosts(self._setup)
        return hosts

    def set_up(self, sandbox: str) -> None:
        """The box is being set up: it may reach the hosts of the loop and of its set-up."""
        self._in_setup.add(sandbox)

    def set_up_done(self, sandbox: str) -> None:
        """It no longer is; connections that it may not have now are ended. May be said again."""
        self._in_setup.discard(sandbox)
        self._end_disallowed()

    def change(self, hosts: Iterable[str]) -> None:
        """Other hosts than before; connections to those that are not among them are ended.

        The same holds for those below, of agents.

        Raises:
            ConfigError: with every fault of them; nothing was changed.
        """
        self._follow(Policy.of(hosts, self._options.private))

    def _follow(self, hosts: Policy) -> None:
        self._hosts = hosts
        self._end_disallowed()
        for below in self._below:
            below._follow(hosts)

    def _end_disallowed(self) -> None:
        for one in list(self._passages):
            policy = self.policy(one.lane or None, one.sandbox)
            if one.spare is not None and not policy.judge(*one.spare).is_allowed:
                one.drop_spare()
            if one.target is None or one.is_granted:
                continue
            if not policy.judge(*one.target).is_allowed:
                one.end(Reason.CHANGED)

    def _end_where(self, reason: Reason) -> None:
        for one in list(self._passages):
            one.end(reason)

    def _spent(self) -> None:
        self._end_where(Reason.QUOTA)

    def welcome(self) -> None:
        """Lets one more connection be, or does not.

        Raises:
            Refused: there are too many that are open.
            StreamClosed: there are too many, counting those that are being told so.
        """
        most = self._options.connections
        if len(self._passages) > most * _ENDING:
            raise StreamClosed("too many connections")
        if self._open > most:
            raise Refused(Reason.CONNECTIONS, detail=str(most))

    def judge(
        self, passage: Passage, host: str, port: int, kind: Kind, policy: Policy | None = None
    ) -> Policy:
        """Lets it pass, or does not; what it was judged by.

        Raises:
            Refused: it may not be reached, or not now.
        """
        policy = policy or self.policy(passage.lane or None, passage.sandbox)
        verdict = policy.judge(host, port, kind)
        if self._is_closed:
            raise Refused(Reason.CLOSED, host, port)
        if not verdict.is_allowed:
            raise Refused(verdict.reason, host, port)
        if self.account.is_spent:
            raise Refused(Reason.QUOTA, host, port, str(self.account.limit))
        if self._journal.is_failing:
            raise Refused(Reason.JOURNAL, host, port)
        return policy

    async def dial(self, passage: Passage, host: str, port: int, kind: Kind) -> SocketStream:
        """A connection to there, if it may be made.

        Raises:
            Refused: it may not, or nothing answers.
        """
        policy = self.judge(passage, host, port, kind)
        is_private = policy.may_be_private(host, port)
        reader, writer, _ = await self._dialler.dial(host, port, is_private)
        return SocketStream(reader, writer)

    # ─── boxes ───

    async def serve(self, lane: str, stream: ByteStream, sandbox: str) -> None:
        """One connection of a box to its proxy, from the first byte to the last.

        Raises nothing but what cancels it. The stream has ended when this returns.

        Args:
            lane: of the box.
            stream: the connection.
            sandbox: the box's name.
        """
        passage = self.enter(lane, sandbox)
        talk = Conversation(self, passage, stream, self._waits)
        try:
            async with asyncio.timeout(None) as clock:
                passage.begin(clock, self._waits.idle)
                await talk.run()
        except TimeoutError:  # it was ended from here, or was idle
            await talk.last_word()
        except StreamClosed:
            pass  # the client is gone
        except Exception as error:
            # Without the error's own text: bytes of a request, or a secret, may be in it.
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error("egress: %s of %s\n%s", type(error).__name__, sandbox, where)
        finally:
            self.leave(passage)
            stream.abort()

    def enter(self, lane: str, sandbox: str) -> Passage:
        """One more connection."""
        passage = Passage(lane, sandbox, self.account)
        self._passages.add(passage)
        return passage

    def leave(self, passage: Passage) -> None:
        """It has ended; what was let through and came to nothing is in the journal, too."""
        self.passed(passage, Reason.CLIENT)
        passage.finish()
        self._passages.discard(passage)
        if not self._passages:
            self._all_left.set()

    # ─── the journal ───

    def passed(self, passage: Passage, reason: Reason) -> None:
        """A request or tunnel that was allowed is over."""
        if passage.target is None:
            return
        host, port, kind = passage.target
        reason = passage.reason_of_end or reason
        self._requests += 1
        self._note(passage, host, port, kind, True, reason)

    def refused(self, passage: Passage, refused: Refused, scheme: str) -> None:
        """One that was not, or that led nowhere."""
        if refused.is_denial:
            self._denials += 1
        # Not the error itself: its traceback holds the request, its secrets and its connections.
        told = Refused(refused.reason, refused.host, refused.port, refused.detail)
        self._recent.append((time.monotonic(), passage.lane, told))
        self._note(
            passage, refused.host, refused.port, scheme, not refused.is_denial, refused.reason
        )

    def _note(
        self,
        passage: Passage,
        host: str,
        port: int,
        scheme: str,
        is_allowed: bool,
        reason: Reason,
    ) -> None:
        facts = (passage.sandbox, passage.lane, host, port, str(scheme), is_allowed, reason)
        self._journal.note(Decision(*facts, up=passage.up, down=passage.down))
        passage.target, passage.up, passage.down = None, 0, 0

    # ─── tools of the host ───

    def transport(self, granted: Collection[tuple[str, int]] = ()) -> httpx.AsyncBaseTransport:
        """For an `httpx.AsyncClient` of the host: each of its requests is judged here.

        What lanes with egress may reach is what it may. Redirects are requests. What is not
        allowed raises `Refused`, which is a `ToolError`.
        TLS is verified with the host's own trust, or the loop's `ca_file`.

        Args:
            granted: hosts and ports that somebody has approved beside it, for one call.
                They can't be private ones.
        """
        from executor.egress.transport import Transport

        return Transport(self, self._dialler, exactly(granted), self._trust)

    def _trust(self) -> ssl.SSLContext:
        if self._tls is None:
            file = self._options.ca_file
            self._tls = ssl.create_default_context(cafile=str(Path(file)) if file else None)
        return self._tls
