"""From a name to a connection: resolved once, every address checked, a checked one dialled."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

from executor.egress import addresses, names
from executor.egress.addresses import Address
from executor.egress.policy import Reason
from executor.egress.refusal import Refused

T = TypeVar("T")
Resolve = Callable[[str], Sequence[str]]
"""A canonical name → its addresses, best first. Runs in a thread; raises `socket.gaierror`."""

MAX_LOOKUPS = 8
"""Names of one loop that are looked up at a time, counting those that were given up."""
MAX_DIALS = 16
"""Connections of one loop that are being made at a time."""
MAX_ADDRESSES = 8
"""Addresses of one name that are tried."""
BUFFER = 1 << 16
"""Bytes that one connection reads ahead; asyncio keeps up to twice as much."""
_NO_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that are waited while dialling.

    Attributes:
        resolve: for the name server.
        connect: for one address.
        dial: for all of them together.
    """

    resolve: float = 10.0
    connect: float = 5.0
    dial: float = 20.0


def resolve(name: str) -> list[str]:
    """As every client on this host resolves it: by its hosts file, name servers, search list."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Dialler:
    """Makes connections for one loop.

    Args:
        resolve: asks for the addresses of a name.
        patience: how long anything may take.
    """

    def __init__(self, resolve: Resolve = resolve, patience: Patience = Patience()) -> None:
        self._resolve = resolve
        self._patience = patience
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._dials = asyncio.Semaphore(MAX_DIALS)

    async def check(self, host: str, port: int, is_private: bool = False) -> list[Address]:
        """The addresses at which the host may be dialled; there is one at least.

        Args:
            host: canonical, and allowed already.
            port: for what is said.
            is_private: its addresses may be private ones.

        Raises:
            Refused: it has none that may be dialled, or no name server says.
        """
        if names.is_address(host):
            found = [ip_address(host.strip("[]"))]
        else:
            found = await self._look_up(host, port)
        faults = [_fault(address, is_private) for address in found]
        checked = [
            addresses.plain(one) for one, said in zip(found, faults, strict=True) if not said
        ]
        if not checked:
            raise Refused(Reason.ADDRESS, host, port, _what_to_do(host, found, faults))
        return list(dict.fromkeys(checked))[:MAX_ADDRESSES]

    async def dial(
        self, host: str, port: int, is_private: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Address]:
        """A connection to one of the checked addresses.

        Raises:
            Refused: there is none that may be dialled, or none answers.
        """

        async def connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(str(address), port, limit=BUFFER)

        (reader, writer), address = await self.reach(host, port, is_private, connect)
        return reader, writer, address

    async def reach(
        self,
        host: str,
        port: int,
        is_private: bool,
        connect: Callable[[Address], Awaitable[T]],
    ) -> tuple[T, Address]:
        """What `connect` makes of the first checked address that answers.

        It gets an address, never the name: nothing is resolved a second time.

        Raises:
            Refused: as `dial`.
        """
        async with self._dials:
            checked = await self.check(host, port, is_private)
            last = Refused(Reason.DIAL_SLOW, host, port)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.dial):
                    for address in checked:
                        try:
                            async with asyncio.timeout(self._patience.connect):
                                return await connect(address), address
                        except OSError as error:  # TimeoutError is one
                            last = _unanswered(error, host, port)
            raise last

    async def _look_up(self, host: str, port: int) -> list[Address]:
        try:
            async with asyncio.timeout(self._patience.resolve):
                await self._lookups.acquire()
                texts = await self._in_thread(host)
        except TimeoutError:
            raise Refused(Reason.RESOLVER_SLOW, host, port) from None
        except (OSError, UnicodeError) as error:
            if isinstance(error, socket.gaierror) and error.errno in _NO_NAME:
                raise Refused(Reason.NO_NAME, host, port) from error
            raise Refused(Reason.RESOLVER, host, port, _said(error)) from error
        found = [ip_address(text) for text in texts]
        if not found:
            raise Refused(Reason.NO_NAME, host, port)
        return found

    def _in_thread(self, host: str) -> asyncio.Future[Sequence[str]]:
        """Resolves in a thread of its own, which nobody waits for when it hangs.

        Its place among the lookups is free again when it has ended, not when it was given up:
        so there are never more threads than places.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def settle(found: Sequence[str] | BaseException) -> None:
            self._lookups.release()
            if answer.done():
                return
            if isinstance(found, BaseException):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def work() -> None:
            try:
                found: Sequence[str] | BaseException = self._resolve(host)
            except Exception as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, found)

        try:
            threading.Thread(target=work, name=f"resolve {host}", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left
            settle(OSError(errno.EAGAIN, str(error)))
        return answer


def _fault(address: Address, is_private: bool) -> str | None:
    said = addresses.fault(address, is_private)
    if said is None and not is_private and any(map(addresses.is_own, addresses.carried(address))):
        return addresses.OWN
    return said


def _what_to_do(host: str, found: list[Address], faults: list[str | None]) -> str:
    """What a name leads to that nothing is dialled at, and what would help, if anything would."""
    for address, said in zip(found, faults, strict=True):
        if _fault(address, True) is None:
            return f"{said}; an operator can allow that for this host with --egress-private {host}"
    return f"{next(filter(None, faults), '')}, which no option allows; use another host"


def _unanswered(error: OSError, host: str, port: int) -> Refused:
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Refused(Reason.DIAL_SLOW, host, port)
    if isinstance(error, ConnectionRefusedError):
        return Refused(Reason.REFUSED, host, port)
    return Refused(Reason.UNREACHABLE, host, port, _said(error))


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
