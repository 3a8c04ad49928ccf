"""The first message of a TLS connection, read as far as its server name. Pure.

RFC 8446, 4.1.2 and 5.1; RFC 6066, 3. The message may be cut over records, and records over
segments. What a server might read in another way than is done here is refused: other records
in between, bytes behind the message in its record, an extension twice, several names.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_BYTES = 1 << 16
"""Of a hello with its records. The largest that clients send, with keys that resist quantum
computers, are some KiB."""
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_RECORD_HEAD = 5
_MAX_RECORD = 1 << 14
_SERVER_NAME = 0
_HOST_NAME = 0
_ENCRYPTED = 0xFE0D
"""`encrypted_client_hello` (RFC 9849). Browsers send it with noise in it, too."""


class NotTls(ValueError):
    """The bytes don't begin a TLS connection, or not in a way that has one reading."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a client says in the open.

    Attributes:
        server: the name that it asks for, as sent; None = none.
        is_encrypted: another hello is in it, that only the server can read, or noise.
    """

    server: str | None
    is_encrypted: bool


class Reading:
    """Takes a hello in, piece by piece; each byte is looked at once, however small they are."""

    def __init__(self) -> None:
        self._taken = 0
        self._head = bytearray()
        """Of the record that begins."""
        self._left = 0
        """Bytes that the record still has."""
        self._message = bytearray()

    def feed(self, data: bytes) -> Hello | None:
        """The hello, when this piece ends it or goes beyond it; None = there is more to come.

        Raises:
            NotTls: it is none, whatever comes.
        """
        at = 0
        while at < len(data):
            part = data[at : at + (self._left or _RECORD_HEAD - len(self._head))]
            at += len(part)
            if self._left:
                self._left -= len(part)
                self._message += part
            else:
                self._begin(part)
            if self._is_whole():
                return _read(bytes(self._message[4:]))
        self._taken += len(data)
        if self._taken > MAX_BYTES:
            raise NotTls(f"a hello of more than {MAX_BYTES} bytes")
        return None

    def _begin(self, part: bytes) -> None:
        """A part of a record's head."""
        self._head += part
        if self._head[0] != _HANDSHAKE or (len(self._head) > 1 and self._head[1] != 3):
            raise NotTls("no handshake record")
        if len(self._head) == _RECORD_HEAD:
            self._left = int.from_bytes(self._head[3:], "big")
            self._head.clear()
            if not 0 < self._left <= _MAX_RECORD:
                raise NotTls(f"a record of {self._left} bytes")

    def _is_whole(self) -> bool:
        """Whether the message is here, and the record that it ends in."""
        if self._message and self._message[0] != _CLIENT_HELLO:
            raise NotTls("the first message is no ClientHello")
        if len(self._message) < 4:
            return False
        length = int.from_bytes(self._message[1:4], "big")
        if length > MAX_BYTES:
            raise NotTls(f"a hello of more than {MAX_BYTES} bytes")
        if len(self._message) + self._left > 4 + length:
            raise NotTls("bytes behind the hello in its record")
        return len(self._message) == 4 + length


def _read(body: bytes) -> Hello:
    try:
        return _hello(_Reader(body))
    except IndexError as error:
        raise NotTls("a hello that is cut short") from error


class _Reader:
    """Takes bytes from the front; IndexError where there are too few."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise IndexError(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> _Reader:
        """The bytes behind a length of so many bytes."""
        return _Reader(self.take(self.number(size)))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)


def _hello(body: _Reader) -> Hello:
    body.take(2 + 32)  # version, random
    body.vector(1)  # session
    body.vector(2)  # cipher suites
    body.vector(1)  # compression
    server: str | None = None
    seen: set[int] = set()
    extensions = body.vector(2) if body else _Reader(b"")
    if body:
        raise NotTls("bytes behind the extensions")
    while extensions:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind in seen:
            raise NotTls(f"extension {kind} twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            server = _server_name(content)
    return Hello(server, _ENCRYPTED in seen)


def _server_name(content: _Reader) -> str:
    entries = content.vector(2)
    if entries.number(1) != _HOST_NAME:
        raise NotTls("a server name of an unknown type")
    name = entries.vector(2).rest()
    if entries or content:
        raise NotTls("more than one server name")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError as error:
        raise NotTls("a server name that is not ASCII") from error
