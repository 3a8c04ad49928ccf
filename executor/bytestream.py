"""A connection's bytes in both directions, whatever carries them."""

from __future__ import annotations

from typing import Protocol


class StreamClosed(ConnectionError):
    """The other side, or what carries the stream, has ended it."""


class ByteStream(Protocol):
    """One connection. Each direction ends by itself; `abort` ends both at once."""

    async def read(self, most: int = 1 << 16) -> bytes:
        """The next bytes; empty once the other side has said that no more come.

        Raises:
            StreamClosed: it was aborted.
        """

    async def write(self, data: bytes) -> None:
        """Send; waits for as long as the other side takes no more.

        Raises:
            StreamClosed: nobody takes it any more.
        """

    async def write_eof(self) -> None:
        """No more bytes come from this side. May be said again."""

    def abort(self, reason: str = "") -> None:
        """End both directions now. May be called again, and after the end."""
