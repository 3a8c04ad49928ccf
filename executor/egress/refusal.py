"""What is said when something is refused or fails: one shape for programs, models and people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from executor.egress.policy import DEFAULT_PORTS, Reason
from executor.errors import Code, ToolError
from executor.text import one_line

MAX_SHOWN = 300
"""Characters of a host name, as a hostile client sent it, that are repeated to anybody."""

_STATUS = {
    Reason.MALFORMED: 400,
    Reason.TARGET: 400,
    Reason.SLOW: 408,
    Reason.CONNECTIONS: 429,
    Reason.QUOTA: 429,
    Reason.HEAD: 431,
    Reason.UPGRADE: 501,
    Reason.NO_NAME: 502,
    Reason.RESOLVER: 502,
    Reason.REFUSED: 502,
    Reason.UNREACHABLE: 502,
    Reason.UPSTREAM: 502,
    Reason.JOURNAL: 503,
    Reason.CLOSED: 503,
    Reason.INTERNAL: 500,
    Reason.RESOLVER_SLOW: 504,
    Reason.DIAL_SLOW: 504,
    Reason.UPSTREAM_SLOW: 504,
}

_SAID: Mapping[Reason, str] = {
    Reason.NO_EGRESS: "{at} can't be reached: nothing outside this sandbox can, since no egress "
    "is allowed now; the user can allow it with --egress {rule}",
    Reason.HOST: "{at} is not on the list of hosts that this sandbox may reach; "
    "the user can allow it with --egress {rule}",
    Reason.PORT: "{host} may be reached, but not at port {port} this way; "
    "the user can allow it with --egress {host}:{port} (CONNECT to port 80 never is)",
    Reason.LITERAL: "{at} is an IP address, and hosts are reached by name only; use the name",
    Reason.ADDRESS: "{at} is not reached: its name leads to {detail}",
    Reason.HOST_MISMATCH: "the Host header names another host than the request's target, {at}; "
    "send the same in both",
    Reason.NOT_TLS: "what came after CONNECT {at} is not TLS; only TLS is carried that way",
    Reason.NO_SNI: "the TLS hello after CONNECT {at} names no server; a client that sends one "
    "(SNI) is needed",
    Reason.SNI: "the TLS hello after CONNECT {at} names another server; use one name in both",
    Reason.ECH: "the TLS hello after CONNECT {at} is encrypted for another server; turn "
    "Encrypted Client Hello off",
    Reason.MALFORMED: "the request is malformed: {detail}; send it as RFC 9112 has it",
    Reason.TARGET: "the request's target is not taken: {detail}; send CONNECT HOST:PORT, or "
    "http://HOST/PATH as proxies get it",
    Reason.SLOW: "{detail} did not come in time; send it at once",
    Reason.HEAD: "the request's head is too large: {detail}",
    Reason.UPGRADE: "{at}: another protocol over plain HTTP is not carried; use it over TLS "
    "(as wss://)",
    Reason.CONNECTIONS: "{detail} connections are open at a time, and no more may be; close some "
    "and try again",
    Reason.QUOTA: "this sandbox has sent and received all the {detail} bytes that it may; the "
    "user can raise total_bytes",
    Reason.NO_NAME: "the name {host} does not exist, as the host's name server says; check it",
    Reason.RESOLVER: "the host's name server did not answer for {host} ({detail}); try again",
    Reason.RESOLVER_SLOW: "the host's name server did not answer for {host} in time; try again",
    Reason.REFUSED: "{at} refused the connection: nothing listens there; check host and port",
    Reason.UNREACHABLE: "{at} can't be reached from the host ({detail}); check its network",
    Reason.DIAL_SLOW: "{at} did not answer in time; try again, or check that it is up",
    Reason.UPSTREAM: "{at} gave no usable answer: {detail}; try again",
    Reason.UPSTREAM_SLOW: "{at} stopped answering; try again",
    Reason.JOURNAL: "{at} was not reached, since the decision can't be recorded in the audit "
    "log; the operator has to make it writable",
    Reason.SECRET: "{at} was not asked, since a secret could not be put into the request: {detail}",
    Reason.CLOSED: "{at} can't be reached: the loop is ending",
    Reason.CHANGED: "{at} may no longer be reached: the list of hosts has changed",
    Reason.INTERNAL: "{at} was not reached: the broker failed; see its log",
}
_DENIED = frozenset(
    {
        *(Reason.NO_EGRESS, Reason.HOST, Reason.PORT, Reason.LITERAL, Reason.ADDRESS),
        *(Reason.HOST_MISMATCH, Reason.NOT_TLS, Reason.NO_SNI, Reason.SNI, Reason.ECH),
        *(Reason.UPGRADE, Reason.CONNECTIONS, Reason.QUOTA, Reason.JOURNAL, Reason.SECRET),
        *(Reason.MALFORMED, Reason.TARGET, Reason.SLOW, Reason.HEAD),
        *(Reason.CHANGED, Reason.CLOSED, Reason.INTERNAL),
    }
)


class Refused(ToolError):
    """Something is not reached. As a tool's error it is NETWORK_DENIED or NETWORK_ERROR.

    Attributes:
        reason: from the closed set.
        host, port: what was asked for, as far as it was understood; 0 = not.
        detail: what is particular about it.
        is_denial: it was decided here; else the other end, or the way there, failed.
    """

    def __init__(self, reason: Reason, host: str = "", port: int = 0, detail: str = "") -> None:
        self.reason = reason
        self.host = one_line(host, MAX_SHOWN)
        self.port = port
        self.detail = detail
        self.is_denial = reason in _DENIED
        at = (f"{self.host}:{port}" if port else self.host) or "the host"
        # A rule without a port would not do for an unusual one.
        rule = self.host if port in (0, *DEFAULT_PORTS.values()) else at
        told = {"host": self.host, "port": port, "at": at, "rule": rule, "detail": one_line(detail)}
        code = Code.NETWORK_DENIED if self.is_denial else Code.NETWORK_ERROR
        facts = {"reason": reason.value, "host": self.host, "port": port}
        super().__init__(code, _SAID[reason].format_map(told), facts)

    @property
    def status(self) -> int:
        """Of the HTTP response that says it."""
        return _STATUS.get(self.reason, 403)

    def response(self, with_body: bool = True) -> bytes:
        """That response, which ends its connection.

        Its phrase says what happened, too: many clients show of a refused CONNECT no more.
        """
        said = {
            "error": "egress_denied" if self.is_denial else "egress_failed",
            **(self.details or {}),
            "message": str(self),
        }
        body = json.dumps(said).encode("ascii") + b"\n"
        phrase = _phrase(f"{HTTPStatus(self.status).phrase} - {self}")
        head = (
            f"HTTP/1.1 {self.status} {phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-executor-egress: {self.reason}\r\n"
            "connection: close\r\n\r\n"
        )
        return head.encode("ascii") + (body if with_body else b"")


def _phrase(text: str) -> str:
    """Printable ASCII, as a reason phrase has to be."""
    return "".join(one if " " <= one <= "~" else "?" for one in text)
