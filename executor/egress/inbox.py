"""A box's connection to the proxy, read request by request."""

from __future__ import annotations

import asyncio
import contextlib

from executor.bytestream import ByteStream, StreamClosed
from executor.egress import hello, names, requests
from executor.egress.policy import Reason
from executor.egress.refusal import Refused
from executor.egress.streams import PIECE

LINGER = 5.0
"""Seconds that a refused client has to read why, and to end."""
LINGER_BYTES = 1 << 20
"""Bytes that one whose connection is over may go on sending."""


class Inbox:
    """What a client sends, with what was read of it beforehand.

    Args:
        stream: the connection.
        head: seconds for a whole head, or for a whole TLS hello.
        keep: seconds that a connection may wait for its next request.
    """

    def __init__(self, stream: ByteStream, head: float, keep: float) -> None:
        self.stream = stream
        self._head = head
        self._keep = keep
        self._ahead = bytearray()
        self._is_new = True
        self._is_over = False

    async def next(self) -> requests.Ask | None:
        """The next request; None = there is none, and that is no fault.

        Raises:
            Refused: what comes is none, or not in time.
            StreamClosed: the client is gone.
        """
        if not self._is_new and not await self._begins():
            return None
        self._is_new = False
        try:
            async with asyncio.timeout(self._head):
                return await self._whole_head()
        except TimeoutError:
            raise Refused(Reason.SLOW, detail="the request's head") from None

    async def _begins(self) -> bool:
        """Waits for a request after another; False = none comes."""
        if not self._ahead:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._keep):
                    self._ahead += await self.stream.read(PIECE)
        return bool(self._ahead)

    async def _whole_head(self) -> requests.Ask | None:
        searched = 0
        while True:
            if self._ahead:
                end = requests.head_end(self._ahead, searched)
                if end is not None:
                    head = bytes(self._ahead[:end])
                    del self._ahead[:end]
                    return requests.parse(head)
            searched = len(self._ahead)
            data = await self.stream.read(PIECE)
            if not data:
                if self._ahead:
                    raise Refused(Reason.MALFORMED, detail="it ends in its head")
                return None
            self._ahead += data

    async def some(self) -> bytes:
        """Bytes of a body; empty = no more come.

        Raises:
            StreamClosed: the client is gone.
        """
        if self._ahead:
            data = bytes(self._ahead)
            self._ahead.clear()
            return data
        return await self.stream.read(PIECE)

    async def left(self) -> None:
        """Waits until the client has ended, while it has nothing to say: its answer is awaited.

        As with other proxies, the end of what a client sends is its end: from here one that only
        says that no more comes looks like one that is gone. What it sends ahead is kept, to be
        read as its next request; beyond one piece it is left where it is, and with it the end.

        Raises:
            StreamClosed: always, sooner or later.
        """
        while len(self._ahead) < PIECE:
            data = await self.stream.read(PIECE)
            if not data:
                raise StreamClosed("the client is gone")
            self._ahead += data
        await asyncio.get_running_loop().create_future()

    def give_back(self, data: bytes) -> None:
        """Bytes that were read and belong to what comes next."""
        self._ahead[:0] = data

    async def tls(self, host: str) -> bytes:
        """What the client has sent of TLS so far, its hello whole and for this host.

        Raises:
            Refused: it is not, or not in time.
            StreamClosed: the client is gone.
        """
        data, reading = self._ahead, hello.Reading()
        try:
            async with asyncio.timeout(self._head):
                said = reading.feed(bytes(data))
                while said is None:
                    more = await self.stream.read(PIECE)
                    if not more:
                        raise Refused(Reason.NOT_TLS, host)
                    data += more
                    said = reading.feed(more)
        except TimeoutError:
            raise Refused(Reason.SLOW, host, detail="the TLS hello") from None
        except hello.NotTls as error:
            raise Refused(Reason.NOT_TLS, host) from error
        if reason := _hello_fault(said, host):
            raise Refused(reason, host)
        self._ahead = bytearray()
        return bytes(data)

    async def say_last(self, data: bytes) -> None:
        """Sends the last bytes, which nobody has to read to their end."""
        with contextlib.suppress(StreamClosed, TimeoutError):
            async with asyncio.timeout(LINGER):
                await self.stream.write(data)
        await self.finish(LINGER)

    async def finish(self, wait: float) -> None:
        """No more bytes come. Waits, so many seconds, until the client has ended, too; once.

        What it still sends is taken, boundedly: to a client whose bytes nobody takes, the kernel
        does not show the answer.
        """
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(StreamClosed, TimeoutError):
            async with asyncio.timeout(wait):
                await self.stream.write_eof()
                taken = 0
                while taken < LINGER_BYTES and (more := await self.stream.read(PIECE)):
                    taken += len(more)


def _hello_fault(said: hello.Hello, host: str) -> Reason | None:
    """Why this hello must not reach the host; None = it may."""
    if said.server is None:
        # Clients name no server where they were given an address (RFC 6066, 3).
        return None if names.is_address(host) else Reason.NO_SNI
    try:
        is_same = names.host_of(said.server) == host
    except names.NotAName:
        is_same = False
    if is_same:
        return None
    return Reason.ECH if said.is_encrypted else Reason.SNI
