"""Connections that the host carries on the stream: from programs in the box, and to them.

Programs connect to a port of the loopback; each connection is a channel of the stream, and
what is allowed is decided by the host alone. The host in turn may connect to a port of the
loopback. Who opens a channel says how many bytes it takes; the other side's first GRANT is the
answer. Both sides having said SHUT, or both ABORT, is the end: an ABORT is answered by one.

What is kept here is bounded: a window for each connection towards a program that does not
read, nothing at all in the other direction, and buffers of sockets of a fixed size. Carried
bytes take a part of the stream that is their own: what waits of them is less than `ROOM` and
one `PIECE`, so that no answer is delayed by more, and no flood of commands' output can keep
them out.
"""

from __future__ import annotations

import _socket
import json
import select
import struct
from collections import deque
from contextlib import suppress

from . import frame
from .frame import FROM_BOX, MAX_CONNECTIONS, WINDOW, encode, encode_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .service import Timer

PIECE = 1 << 16
"""Bytes of one frame."""
ROOM = 1 << 17
"""Bytes of connections that may wait for the host to read, whatever else does. A piece is begun
whenever there are less."""
BUFFER = 1 << 17
"""Bytes of each buffer of a socket of ours; Linux doubles it. No limit of the box counts them."""
BACKLOG = 128
"""Connections that wait in the kernel while `MAX_CONNECTIONS` are carried. Clients take a wait
better than a refusal: what opens many connections at once goes on with a few, and what is
answered 429 to a CONNECT gives up. The host ends those that are idle."""
ACCEPTS = 16
"""Connections that are accepted in one turn."""
REST = 1.0
"""Seconds until connections are accepted again where the box has no descriptor or memory left."""
DIAL_TIMEOUT = 30.0
"""Seconds after which the host has certainly given up."""
_LOOPBACK = ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1"))
_RESET = struct.pack("ii", 1, 0)
_IN, _OUT, _ERROR = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR


class Proxy:
    """The connections of this box.

    Args:
        service: has the loop and the stream.
    """

    def __init__(self, service: Any) -> None:
        self.service = service
        self.carried: dict[int, Carried | Dialling] = {}
        self.aborted: dict[int, bool] = {}
        self.listeners: list[_socket.socket] = []
        self.is_listening = False
        self.last = FROM_BOX - 1
        self.count = 0
        self.stalled: deque[Carried] = deque()
        self.waiting: deque[tuple[int, int]] = deque()
        self.waiting_bytes = 0

    # ── listening ──

    def listen(self, port: int) -> None:
        """Take connections to this port of the loopback; of IPv6's too where there is one.

        Raises:
            OSError: the port can't be had.
        """
        for family, address in _LOOPBACK:
            listener = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            try:
                listener.setblocking(False)
                listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
                _shrink(listener)  # what is accepted inherits it
                if family == _socket.AF_INET6:
                    listener.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
                listener.bind((address, port))
                listener.listen(BACKLOG)
            except OSError:
                listener.close()
                if family == _socket.AF_INET:
                    raise
                continue
            self.listeners.append(listener)
        self._accept_again()

    def _accept_again(self) -> None:
        if self.is_listening or self.count >= MAX_CONNECTIONS:
            return
        self.is_listening = True
        for listener in self.listeners:
            self.service.watch(listener.fileno(), _IN, lambda _, one=listener: self._accept(one))

    def _stop_accepting(self) -> None:
        self.is_listening = False
        for listener in self.listeners:
            self.service.forget(listener.fileno())

    def _accept(self, listener: _socket.socket) -> None:
        for _ in range(ACCEPTS):
            if self.count >= MAX_CONNECTIONS:
                self._stop_accepting()
                return
            try:
                descriptor, _ = listener._accept()  # type: ignore[attr-defined]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                self._stop_accepting()
                self.service.after(REST, self._accept_again)
                return
            accepted = _socket.socket(listener.family, _socket.SOCK_STREAM, 0, descriptor)
            accepted.setblocking(False)
            self.count += 1
            self.last += 1
            opening = encode(frame.OPEN, self.last) + granting(self.last, WINDOW)
            self.service.send(opening)
            self.carried[self.last] = Connected(self, self.last, accepted, 0)

    # ── frames ──

    def on_frame(self, kind: int, number: int, payload: bytes) -> None:
        """A frame of the host about one connection; one that can't be read ends the agent."""
        if kind == frame.DIAL:
            self._dial(number, json.loads(payload))
            return
        carried = self.carried.get(number)
        if carried is None:
            # By SHUT it knows of an end that it had not known of when we said ABORT.
            if kind == frame.ABORT or (kind == frame.SHUT and self.aborted.get(number)):
                self._forget_aborted(number)
        elif kind == frame.ABORT:
            self.service.send(encode_json(frame.ABORT, number, {"reason": ""}))
            carried.close(is_reset=True)
            self.remove(number)
        else:
            size = int(json.loads(payload)["bytes"]) if kind == frame.GRANT else 0
            carried.on_frame(kind, payload, size)

    def _dial(self, number: int, asked: dict[str, Any]) -> None:
        if number >= FROM_BOX or number in self.carried or number in self.aborted:
            raise ValueError(f"the number {number} is not free for a connection")
        if "server" in asked:
            self.service.commands.carry(self, number, int(asked["server"]))
            return
        dialling = Dialling(self, number, int(asked["port"]))
        self.carried[number] = dialling
        dialling.try_next()

    def refuse(self, number: int, reason: str) -> None:
        """Tell the host that there is nothing to connect it to."""
        self.aborted[number] = False
        self.service.send(encode_json(frame.ABORT, number, {"reason": reason[:200]}))

    def _forget_aborted(self, number: int) -> None:
        if self.aborted.pop(number, None) is not None:
            self._has_ended(number)

    def abort(self, number: int, reason: str, *, had_shut: bool = False) -> None:
        """Tell the host that a connection is over; it is counted until the host knows."""
        del self.carried[number]
        self.refuse(number, reason)
        self.aborted[number] = had_shut

    def remove(self, number: int) -> None:
        """A connection is over, and the host knows."""
        del self.carried[number]
        self._has_ended(number)

    def _has_ended(self, number: int) -> None:
        if number >= FROM_BOX:
            self.count -= 1
            self._accept_again()

    # ── the stream ──

    def has_room(self) -> bool:
        """Whether the stream takes another piece of a connection."""
        while self.waiting and self.waiting[0][0] <= self.service.written:
            self.waiting_bytes -= self.waiting.popleft()[1]
        return self.waiting_bytes < ROOM

    def push(self, number: int, data: bytes) -> None:
        """Send a piece of a connection."""
        self.service.send(encode(frame.PUSH, number, data))
        if unsent := len(self.service.unsent):
            self.waiting.append((self.service.written + unsent, len(data)))
            self.waiting_bytes += len(data)

    def on_output(self) -> None:
        """The host has taken some: whoever waits for that takes turns."""
        for _ in range(len(self.stalled)):
            if not self.has_room():
                return
            self.stalled.popleft().resume()


class Carried:
    """One connection: what may go in either direction, and what waits to.

    How bytes are read and written is said by those that inherit from it.
    """

    __slots__ = (
        *("credit", "has_read_all", "is_closed", "is_shut", "is_stalled"),
        *("number", "pending", "proxy", "taken"),
    )

    def __init__(self, proxy: Proxy, number: int, credit: int) -> None:
        self.proxy = proxy
        self.number = number
        self.credit = credit
        self.pending = bytearray()
        self.taken = 0
        self.has_read_all = self.is_shut = self.is_stalled = self.is_closed = False

    def _receive(self, size: int) -> bytes:
        """At most so many bytes of the program's; empty = no more come.

        Raises:
            BlockingIOError: there are none now.
            OSError: the connection failed.
        """
        raise NotImplementedError

    def _put(self, data: bytes | memoryview) -> int:
        """Give the program some of it; how much it took.

        Raises:
            BlockingIOError: it takes nothing now.
            OSError: the connection failed.
        """
        raise NotImplementedError

    def _say_end(self) -> None:
        """Tell the program that no more bytes come."""
        raise NotImplementedError

    def _expect(self) -> None:
        """Watch for what is wanted now."""
        raise NotImplementedError

    def close(self, *, is_reset: bool = False) -> None:
        """Let go of the program; it is told so at once, or has everything first."""
        raise NotImplementedError

    def on_frame(self, kind: int, payload: bytes, size: int) -> None:
        """What the host says of this connection."""
        try:
            if kind == frame.GRANT:
                self.credit += size
            elif kind == frame.PUSH:
                self._take(payload)
            elif kind == frame.SHUT:
                self.is_shut = True
                self._end_output()
            self._expect()
        except OSError as error:
            self._fail(error)
        except Exception as error:  # a fault of ours ends this connection alone
            self._fail(OSError(0, repr(error)))

    def on_ready(self, events: int) -> None:
        """The program can be read from or written to, or the connection has failed."""
        try:
            self._move(events)
            self._expect()
        except OSError as error:
            self._fail(error)
        except Exception as error:
            self._fail(OSError(0, repr(error)))

    def _move(self, events: int) -> None:
        if events & _OUT:
            self._flush()
        if self._wants_input():
            self._read()

    def resume(self) -> None:
        """The stream has room: it is this connection's turn."""
        self.is_stalled = False
        if not self.is_closed:
            self.on_ready(0)

    # ── from the program to the host ──

    def _wants_input(self) -> bool:
        return not (self.has_read_all or self.is_stalled or self.is_closed) and self.credit > 0

    def _read(self) -> None:
        if not self.proxy.has_room():
            self.is_stalled = True
            self.proxy.stalled.append(self)
            return
        try:
            data = self._receive(min(PIECE, self.credit))
        except BlockingIOError:
            return
        if data:
            self.credit -= len(data)
            self.proxy.push(self.number, data)
            return
        self.has_read_all = True
        self.proxy.service.send(encode(frame.SHUT, self.number))
        self._end_output()

    # ── from the host to the program ──

    def _take(self, payload: bytes) -> None:
        if self.pending:
            self.pending += payload
            return
        sent = self._send(payload)
        if sent < len(payload):
            self.pending += memoryview(payload)[sent:]

    def _flush(self) -> None:
        if self.pending:
            with memoryview(self.pending) as view, view[:PIECE] as piece:
                sent = self._send(piece)
            del self.pending[:sent]
            self._end_output()

    def _send(self, data: bytes | memoryview) -> int:
        try:
            sent = self._put(data)
        except BlockingIOError:
            return 0
        self.taken += sent
        if self.taken >= WINDOW // 2 and not self.is_shut:
            self.proxy.service.send(granting(self.number, self.taken))
            self.taken = 0
        return sent

    def _end_output(self) -> None:
        """Once everything is written, say so to the program; the end, if it said so too."""
        if not self.is_shut or self.pending or self.is_closed:
            return
        if self.has_read_all:
            self.close()
            self.proxy.remove(self.number)
        else:
            self._say_end()

    # ── the end ──

    def _fail(self, error: OSError) -> None:
        if self.is_closed:
            return
        self.close(is_reset=True)
        if self.is_shut and self.has_read_all:  # what the host takes for the end already
            self.proxy.remove(self.number)
            return
        reason = "reset" if isinstance(error, ConnectionError) else str(error.strerror)
        self.proxy.abort(self.number, reason, had_shut=self.has_read_all)


class Connected(Carried):
    """A connection over a socket."""

    __slots__ = ("events", "is_watched", "socket")

    def __init__(self, proxy: Proxy, number: int, socket: _socket.socket, credit: int) -> None:
        super().__init__(proxy, number, credit)
        self.socket = socket
        self.is_watched = False
        self.events = -1
        with suppress(OSError):  # it may be over already
            # Answers come in pieces, none of which is to wait for an acknowledgement.
            socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        self._expect()

    def _receive(self, size: int) -> bytes:
        return self.socket.recv(size)

    def _put(self, data: bytes | memoryview) -> int:
        return self.socket.send(data)

    def _say_end(self) -> None:
        self.socket.shutdown(_socket.SHUT_WR)

    def _move(self, events: int) -> None:
        if events & _ERROR and (number := self._error()):
            raise OSError(number, "the connection failed")
        is_unread = not self._wants_input()
        super()._move(events)
        if is_unread and events & select.EPOLLHUP and not self.pending and not self.is_closed:
            self._be_quiet()

    def _error(self) -> int:
        return int(self.socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR))

    def _expect(self) -> None:
        """Watch for what is wanted now; for failures always."""
        if self.is_closed:
            return
        events = (_IN if self._wants_input() else 0) | (_OUT if self.pending else 0)
        if events == self.events:
            return
        self.events = events
        if self.is_watched:
            self.proxy.service.expect(self.socket.fileno(), events)
        else:
            self.is_watched = True
            self.proxy.service.watch(self.socket.fileno(), events, self.on_ready)

    def _be_quiet(self) -> None:
        """Both directions have ended, but not everything is read: it would be told for ever."""
        self.proxy.service.forget(self.socket.fileno())
        self.is_watched = False
        self.events = 0

    def close(self, *, is_reset: bool = False) -> None:
        """Close the socket; the program is told so at once, or has everything first."""
        self.is_closed = True
        _close(self.proxy, self.socket, is_reset=is_reset)
        self.pending.clear()


class Dialling:
    """A connection to a port of the loopback that is not there yet."""

    def __init__(self, proxy: Proxy, number: int, port: int) -> None:
        self.proxy = proxy
        self.number = number
        self.port = port
        self.credit = 0
        self.left = list(_LOOPBACK)
        self.socket: _socket.socket | None = None
        self.reason = ""
        self.timer: Timer = proxy.service.after(DIAL_TIMEOUT, self._too_late)

    def on_frame(self, kind: int, payload: bytes, size: int) -> None:
        """What the host says meanwhile: how much it takes."""
        self.credit += size

    def try_next(self) -> None:
        """Begin with the next address; none is left: tell the host."""
        if not self.left:
            self.close()
            self.proxy.abort(self.number, self.reason or "refused")
            return
        family, address = self.left.pop(0)
        try:
            socket = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        except OSError as error:
            self._failed(error)
            return
        self.socket = socket
        try:
            socket.setblocking(False)
            _shrink(socket)
            socket.connect((address, self.port))
        except BlockingIOError:
            self.proxy.service.watch(socket.fileno(), _OUT, self._on_ready)
        except (OSError, OverflowError) as error:
            self._failed(error)
        else:
            self._connected(socket)

    def _on_ready(self, events: int) -> None:
        assert self.socket is not None, "it is what is ready"
        number = self.socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if number:
            self._failed(OSError(number, ""))
            return
        self.proxy.service.forget(self.socket.fileno())
        self._connected(self.socket)

    def _connected(self, socket: _socket.socket) -> None:
        self.socket = None
        self.close()
        self.proxy.service.send(granting(self.number, WINDOW))
        self.proxy.carried[self.number] = Connected(self.proxy, self.number, socket, self.credit)

    def _failed(self, error: Exception) -> None:
        """Try the next address; where IPv4 refuses, what IPv6 lacks does not matter."""
        refused = isinstance(error, ConnectionRefusedError)
        if not self.reason:
            self.reason = "refused" if refused else str(error)[:200]
        if self.socket is not None:
            _close(self.proxy, self.socket)
            self.socket = None
        self.try_next()

    def _too_late(self) -> None:
        self.close()
        self.proxy.abort(self.number, "timeout")

    def close(self, *, is_reset: bool = False) -> None:
        """Give up, or hand on what was made."""
        self.proxy.service.drop(self.timer)
        if self.socket is not None:
            _close(self.proxy, self.socket, is_reset=is_reset)
            self.socket = None


def granting(number: int, size: int) -> bytes:
    """A frame that lets so many bytes more of a connection come."""
    return encode_json(frame.GRANT, number, {"bytes": size})


def _shrink(socket: _socket.socket) -> None:
    """Fixed buffers: by itself the kernel would let them grow to megabytes."""
    for option in (_socket.SO_RCVBUF, _socket.SO_SNDBUF):
        socket.setsockopt(_socket.SOL_SOCKET, option, BUFFER)


def _close(proxy: Proxy, socket: _socket.socket, *, is_reset: bool = False) -> None:
    proxy.service.forget(socket.fileno())
    if is_reset:
        with suppress(OSError):  # it is over anyway
            socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, _RESET)
    socket.close()
