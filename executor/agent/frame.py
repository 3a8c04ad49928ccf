"""The frame: the one definition of what travels between the host and the agent.

A frame is nine bytes of header (kind: 1, channel: 4, length: 4, big endian) and
`length` bytes of payload. Control payloads are JSON objects in UTF-8, data payloads
are raw bytes. A channel is the number of one call, or of one
carried connection; channel 0 belongs to the box.
"""

import json
import struct

HEADER = struct.Struct("!BII")
MAX_PAYLOAD = 1 << 20
"""Bytes. A longer frame is a fault of the sender, found before anything is stored."""

# Host to agent.
HELLO = 1  # JSON: lease, environment, roots, proxy
CALL = 2  # JSON: op, its arguments, `body` = bytes that follow in BODY frames
BODY = 3  # raw: the input of the call
CANCEL = 4  # empty: end the call
CREDIT = 5  # JSON: `bytes` more live output may be sent on this channel
PING = 6  # raw, echoed
DIAL = 11  # JSON: port, connect this channel to the box's loopback; or server, to its pipes
# Agent to host.
READY = 16  # JSON: the agent is up; its content hash
PONG = 17  # raw: the payload of the ping
STDOUT = 18  # raw: live output, only where the call asked for it
STDERR = 19  # raw: live output
DATA = 20  # raw: bytes that belong to the reply which follows
REPLY = 21  # JSON: `ok` or `error`; ends the call
FATAL = 22  # JSON: `reason`; the agent ends
OPEN = 23  # empty: somebody in the box has connected to the proxy; a channel of the agent's
# Both ways, on channels that carry a connection.
PUSH = 7  # raw: bytes of the connection, within what the other side has granted
SHUT = 8  # empty: no more bytes come from this side
ABORT = 9  # JSON: `reason`; the connection is over
GRANT = 10  # JSON: `bytes` more may be pushed; the first one answers OPEN or DIAL

CARRIED = frozenset({PUSH, SHUT, ABORT, GRANT})
TO_AGENT = frozenset({HELLO, CALL, BODY, CANCEL, CREDIT, PING, DIAL}) | CARRIED
TO_HOST = frozenset({READY, PONG, STDOUT, STDERR, DATA, REPLY, FATAL, OPEN}) | CARRIED

FROM_BOX = 1 << 31
"""Channels from here on are numbered by the agent; the others by the host."""
WINDOW = 1 << 19
"""Bytes of one connection that may be under way in one direction. With half of them a download
has half the speed of the stream that carries it; with twice as many it is no faster, and those
of all connections would not fit into the smallest box."""
MAX_CONNECTIONS = 64
"""Of one box, in either direction, at a time."""

_to_text = json.JSONEncoder(separators=(",", ":")).encode


class FrameError(Exception):
    """The bytes are no frame that the other side may send."""


def encode(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """One frame as bytes.

    Raises:
        FrameError: the payload is longer than `MAX_PAYLOAD`.
    """
    if len(payload) > MAX_PAYLOAD:
        raise FrameError(f"payload of {len(payload)} bytes, at most {MAX_PAYLOAD} are allowed")
    return HEADER.pack(kind, channel, len(payload)) + payload


def encode_json(kind: int, channel: int, value: object) -> bytes:
    """One control frame as bytes."""
    return encode(kind, channel, _to_text(value).encode())


def split(data: bytes) -> list[bytes]:
    """`data` in pieces that each fit into one frame."""
    return [data[start : start + MAX_PAYLOAD] for start in range(0, len(data), MAX_PAYLOAD)]


class Parser:
    """Bytes in any pieces → whole frames. Holds at most one unfinished frame.

    Args:
        kinds: the kinds that the other side may send.
    """

    def __init__(self, kinds: frozenset[int]) -> None:
        self._kinds = kinds
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The frames (kind, channel, payload) that `data` completes.

        Raises:
            FrameError: unknown kind, or a length over the cap.
        """
        buffer = self._buffer
        buffer += data
        frames: list[tuple[int, int, bytes]] = []
        position = 0
        end = len(buffer)
        while end - position >= HEADER.size:
            kind, channel, length = HEADER.unpack_from(buffer, position)
            if kind not in self._kinds:
                raise FrameError(f"unknown frame kind {kind}")
            if length > MAX_PAYLOAD:
                raise FrameError(f"frame of {length} bytes, at most {MAX_PAYLOAD} are allowed")
            start = position + HEADER.size
            if end - start < length:
                break
            frames.append((kind, channel, bytes(buffer[start : start + length])))
            position = start + length
        del buffer[:position]
        return frames
