"""What a server may send, however it is reached; more of it ends the server."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from dataclasses import dataclass, field
from typing import Any

from mcp_types import (
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)

from executor.text import one_line

MAX_LINE = 16 << 20
"""Bytes of one message."""
MAX_PARTS = 400_000
"""Texts, objects, lists and commas of one message, so that it is read in less than half a second
and takes no more than some times its bytes."""
MAX_JUNK = 1000
"""Messages that are none, and come in one minute."""
MAX_JUNK_BYTES = 2 * MAX_LINE
"""Bytes of them."""
MAX_ASKED = 100
"""Requests of a server whose answers it has not taken."""
MAX_MESSAGES = 100_000
"""Messages, events or lines that come in one minute."""
MINUTE = 60.0
_PART = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)

log = logging.getLogger(__name__)


class TooMuch(Exception):
    """A server has sent more than it may; with what, as in "it was ended: …"."""


@dataclass(slots=True)
class Measure:
    """How much of what a server may send it has sent.

    Attributes:
        name: of the server, for the log.
        junk, junk_bytes: of messages of this minute that were none.
        asked: requests of the server that have no answer yet.
    """

    name: str
    junk: int = 0
    junk_bytes: int = 0
    asked: int = 0
    _since: float = field(default_factory=time.monotonic)
    _count: int = 0

    def count(self) -> None:
        """One more message, event or line has come.

        Raises:
            TooMuch: more than a minute may have.
        """
        self._turn()
        self._count += 1
        if self._count > MAX_MESSAGES:
            raise TooMuch(f"it sent more than {MAX_MESSAGES} messages in a minute")

    def no_message(self, data: bytes) -> None:
        """What came was no message.

        Raises:
            TooMuch: there was too much of that in a minute.
        """
        self._turn()
        log.debug(
            "MCP server %s: this is no message: %s",
            self.name,
            one_line(data[:200].decode(errors="replace")),
        )
        self.junk += 1
        self.junk_bytes += len(data)
        if self.junk > MAX_JUNK:
            raise TooMuch(f"it sent more than {MAX_JUNK} lines that are no messages in a minute")
        if self.junk_bytes > MAX_JUNK_BYTES:
            size = f"{MAX_JUNK_BYTES} bytes"
            raise TooMuch(f"it sent more than {size} that are no messages in a minute")

    def _turn(self) -> None:
        """Begin anew where another minute has begun."""
        now = time.monotonic()
        if now - self._since > MINUTE:
            self._since = now
            self._count = self.junk = self.junk_bytes = 0

    def take(self, message: JSONRPCMessage) -> None:
        """A message is passed on.

        Raises:
            TooMuch: it is a request, and too many have no answer.
        """
        if isinstance(message, JSONRPCRequest):
            self.asked += 1
            if self.asked > MAX_ASKED:
                raise TooMuch(f"it made more than {MAX_ASKED} requests and took no answers")

    def answered(self) -> None:
        """It has taken an answer."""
        self.asked = max(0, self.asked - 1)


def require_few_parts(data: bytes) -> None:
    """Refuse a message that would cost far more than its bytes.

    Raises:
        TooMuch: it has too many parts.
    """
    # This is quick, and sees more than there are: texts have commas and braces too.
    if data.count(b"{") + data.count(b"[") + data.count(b",") <= MAX_PARTS:
        return
    for number, _ in enumerate(_PART.finditer(data)):
        if number >= MAX_PARTS:
            counted = "parts (texts, lists, objects, commas)"
            raise TooMuch(f"it sent a message of more than {MAX_PARTS} {counted}")


def parsed(data: bytes) -> JSONRPCMessage:
    """The message that these bytes are.

    The parser of the SDK refuses what is nested deeper than any message has to be; so deep a
    schema costs its tool alone.

    Raises:
        TooMuch: it has too many parts.
        ValueError, RecursionError: it is none.
    """
    require_few_parts(data)
    message = jsonrpc_message_adapter.validate_python(json.loads(data), by_name=False)
    make_finite(message)
    return message


def make_finite(message: JSONRPCMessage) -> None:
    """Make numbers that no double has null, as JavaScript writes them: nobody counts with them."""
    if isinstance(message, JSONRPCRequest | JSONRPCNotification):
        waiting: list[Any] = [message.params]
    else:
        waiting = [getattr(message, "result", None)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            items: Any = one.items()
        elif isinstance(one, list):
            items = enumerate(one)
        else:
            continue
        for key, value in items:
            if isinstance(value, dict | list):
                waiting.append(value)
            elif isinstance(value, int | float) and not _is_finite(value):
                one[key] = None


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False
