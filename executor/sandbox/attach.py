"""The attach stream of a container: the raw socket under it, and its framing.

Without a terminal an engine puts eight bytes of header before every piece of output:
stream number (1 stdout, 2 stderr), three zeros, length (big endian).
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader

STDOUT = 1
STDERR = 2
_HEADER = struct.Struct(">BxxxI")
_PIECE = 64 * 1024
_BACKLOG = 1 << 20
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Demultiplexer:
    """Bytes of an attach stream in any pieces → (stream, payload) in the same order.

    Payloads are handed on as they arrive, whole or not: nothing is stored, so a length
    that the engine never fills costs nothing.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream = STDOUT
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The pieces of output that are in `data`.

        Raises:
            ValueError: `data` is no such stream; the container has a terminal, perhaps.
        """
        pieces: list[tuple[int, bytes]] = []
        position = 0
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                self._left -= len(piece)
                position += len(piece)
                pieces.append((self._stream, piece))
                continue
            wanted = _HEADER.size - len(self._header)
            self._header += data[position : position + wanted]
            position += wanted
            if len(self._header) == _HEADER.size:
                self._stream, self._left = _HEADER.unpack(self._header)
                if self._stream not in (STDOUT, STDERR) or any(self._header[1:4]):
                    raise ValueError(f"no frame of an attach stream: {self._header!r}")
                self._header = b""
        return pieces


def plain_socket(buffered: BufferedReader, release: Callable[[], object]) -> socket.socket:
    """The connection under an upgraded HTTP response, as a plain socket of one's own.

    Nothing is lost: what the HTTP layer has read ahead comes first. A TLS connection
    (asyncio and `os.dup` can't take one) is carried over by a thread.

    Args:
        buffered: the response's reader, just behind the header.
        release: closes the HTTP layer's own; called when it is no longer needed.
    """
    connection: socket.socket = buffered.raw._sock  # type: ignore[attr-defined]
    connection.setblocking(False)
    try:
        ahead = buffered.read1(_BACKLOG) or b""
    except _NOT_NOW:
        ahead = b""
    is_tls = isinstance(connection, ssl.SSLSocket)
    own = connection if is_tls else connection.dup()
    if not is_tls:
        release()
    if not ahead and not is_tls:
        own.setblocking(True)
        return own
    near, inner = socket.socketpair()
    inner.setblocking(False)
    way_in = _Way(own, inner, ahead)
    thread = threading.Thread(target=_carry, args=(way_in, release), name="attach", daemon=True)
    thread.start()
    return near


def _carry(way_in: _Way, release: Callable[[], object]) -> None:
    """Moves bytes both ways until either end closes, then closes both."""
    far, inner = way_in.source, way_in.sink
    ways = [way_in, _Way(inner, far)]
    with far, inner, selectors.DefaultSelector() as selector:
        with suppress(OSError):
            while all([way.move() for way in ways]):
                for end in (far, inner):
                    _watch(selector, end, ways[0].interest(end) | ways[1].interest(end))
                is_readable = way_in.interest(far) & selectors.EVENT_READ
                selector.select(0 if is_readable and _has_decrypted(far) else None)
        release()


def _has_decrypted(end: socket.socket) -> bool:
    """Bytes wait inside the TLS layer, where no selector sees them."""
    return isinstance(end, ssl.SSLSocket) and end.pending() > 0


def _watch(selector: selectors.BaseSelector, end: socket.socket, events: int) -> None:
    if end in selector.get_map():
        if events:
            selector.modify(end, events)
        else:
            selector.unregister(end)
    elif events:
        selector.register(end, events)


class _Way:
    """One direction, with at most `_BACKLOG` bytes under way."""

    def __init__(self, source: socket.socket, sink: socket.socket, held: bytes = b"") -> None:
        self.source = source
        self.sink = sink
        self._held = bytearray(held)
        self._ended = False

    def interest(self, end: socket.socket) -> int:
        """What has to be waited for at `end`."""
        events = 0
        if end is self.source and not self._ended and len(self._held) < _BACKLOG:
            events |= selectors.EVENT_READ
        if end is self.sink and self._held:
            events |= selectors.EVENT_WRITE
        return events

    def move(self) -> bool:
        """Reads and writes what is possible now; False when this way has ended."""
        if not self._ended and len(self._held) < _BACKLOG:
            with suppress(*_NOT_NOW):
                data = self.source.recv(_PIECE)
                self._ended = not data
                self._held += data
        if self._held:
            with suppress(*_NOT_NOW):
                del self._held[: self.sink.send(self._held)]
        return not (self._ended and not self._held)
