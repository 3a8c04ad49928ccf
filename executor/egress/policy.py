"""Which hosts and ports a loop may reach: rules as people write them, and judgements. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from executor.egress.names import (
    IsAnAddress,
    NotAName,
    address,
    canonical,
    is_address,
    split,
    written,
)
from executor.errors import ConfigError


class Kind(StrEnum):
    """How a host is spoken to."""

    TUNNEL = "https"
    """TLS that nobody here looks into: by CONNECT, or by a tool of the host."""
    PLAIN = "http"


KINDS = {kind.value: kind for kind in Kind}
"""By the scheme of an address."""
DEFAULT_PORTS = {Kind.TUNNEL: 443, Kind.PLAIN: 80}
"""The ports of a rule that names none."""
NEVER_TUNNELLED = 80
"""A port that no CONNECT leads to, whatever the rules say: plain HTTP is looked into."""


class Reason(StrEnum):
    """Why something was refused or failed. Closed: programs may switch over it."""

    ALLOWED = "allowed"
    # refused by policy: 403
    NO_EGRESS = "no_egress"
    HOST = "host_not_allowed"
    PORT = "port_not_allowed"
    LITERAL = "ip_literal"
    ADDRESS = "address_not_allowed"
    HOST_MISMATCH = "host_mismatch"
    # a tunnel that was closed
    NOT_TLS = "not_tls"
    NO_SNI = "no_sni"
    SNI = "sni_mismatch"
    ECH = "ech_mismatch"
    # no request as it has to be: 400, 408, 431, 501
    MALFORMED = "malformed"
    TARGET = "bad_target"
    SLOW = "too_slow"
    HEAD = "head_too_large"
    UPGRADE = "upgrade_not_carried"
    # limits: 429
    CONNECTIONS = "too_many_connections"
    QUOTA = "byte_quota"
    # the other end: 502, 504
    NO_NAME = "name_not_found"
    RESOLVER = "name_server_failed"
    RESOLVER_SLOW = "name_server_timeout"
    REFUSED = "connection_refused"
    UNREACHABLE = "unreachable"
    DIAL_SLOW = "connect_timeout"
    UPSTREAM = "upstream_failed"
    UPSTREAM_SLOW = "upstream_timeout"
    # ended
    IDLE = "idle"
    CHANGED = "policy_changed"
    CLOSED = "closing"
    CLIENT = "client_gone"
    # ours: 503
    JOURNAL = "journal_failed"
    SECRET = "secret_failed"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a judgement."""

    is_allowed: bool
    reason: Reason


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a list.

    Attributes:
        host: canonical; an address only where it is listed as private.
        is_suffix: the names below it are meant, at any depth, and not itself.
        port: the only one; None = the usual one of each kind.
    """

    host: str
    is_suffix: bool = False
    port: int | None = None

    @classmethod
    def of(cls, text: str) -> Rule:
        """Reads `HOST`, `*.SUFFIX`, either with `:PORT`.

        Raises:
            NotAName: it is none of them; the message ends a sentence about the text.
        """
        if text == "*" or text.startswith("*:"):
            raise NotAName("would be every host there is, which is the same as no rule at all")
        if "/" in text or "@" in text:
            raise NotAName(f"holds more than a host, which is {_host_within(text)!r}")
        host, port = split(text)
        if host.startswith("*."):
            return cls(written(host[2:]), True, port)
        try:
            return cls(written(host), False, port)
        except IsAnAddress:
            return cls(address(host), False, port)

    def names(self, host: str) -> bool:
        """Whether the host is meant."""
        return host.endswith(f".{self.host}") if self.is_suffix else host == self.host

    def takes(self, port: int, kind: Kind) -> bool:
        """Whether the port is meant."""
        if kind is Kind.TUNNEL and port == NEVER_TUNNELLED:
            return False
        return port == (self.port or DEFAULT_PORTS[kind])


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be reached; nothing by default.

    Attributes:
        rules: any of them allows.
        private: exact hosts whose addresses may be private ones.
    """

    rules: tuple[Rule, ...] = ()
    private: tuple[Rule, ...] = ()

    @classmethod
    def of(cls, hosts: Iterable[str], private: Iterable[str] = ()) -> Policy:
        """Reads both lists.

        Raises:
            ConfigError: with every fault of both.
        """
        faults: list[str] = []
        near = tuple(_read(private, "egress private", faults))
        rules = tuple(_read(hosts, "egress", faults))
        faults += [
            f"egress private: *.{rule.host} names more than one host; name each by itself"
            for rule in near
            if rule.is_suffix
        ]
        listed = {rule.host for rule in near}
        faults += [
            f"egress: {rule.host} is an IP address, and names alone are listed; name the host, "
            "or have the operator list the address as private"
            for rule in rules
            if not rule.is_suffix and rule.host not in listed and is_address(rule.host)
        ]
        if faults:
            raise ConfigError(faults)
        return cls(rules, near)

    def __bool__(self) -> bool:
        return bool(self.rules)

    def judge(self, host: str, port: int, kind: Kind | str) -> Verdict:
        """Whether the host may be reached at the port.

        Args:
            host: canonical (`names.host_of`).
            port: 1 to 65535.
            kind: how it is going to be spoken to.
        """
        kind = Kind(kind)
        if not self.rules:
            return Verdict(False, Reason.NO_EGRESS)
        meant = [rule for rule in self.rules if rule.names(host)]
        if any(rule.takes(port, kind) for rule in meant):
            return Verdict(True, Reason.ALLOWED)
        if meant:
            return Verdict(False, Reason.PORT)
        return Verdict(False, Reason.LITERAL if is_address(host) else Reason.HOST)

    def may_be_private(self, host: str, port: int) -> bool:
        """Whether an operator has said that the host's addresses may be private ones."""
        return any(rule.host == host and rule.port in (None, port) for rule in self.private)

    def with_hosts(self, more: Policy) -> Policy:
        """This one and what another allows."""
        return Policy((*self.rules, *more.rules), (*self.private, *more.private))


def exactly(pairs: Collection[tuple[str, int]]) -> Policy:
    """What somebody has approved for one call: exactly these, and none of them private.

    Raises:
        NotAName: a host is none.
    """
    return Policy(tuple(Rule(canonical(host), False, port) for host, port in pairs))


def _without_user(text: str) -> str:
    """The same, without what may be a password in a pasted address."""
    before, at, after = text.rpartition("@")
    return f"{before[: before.rfind('/') + 1]}{at}{after}"


def _host_within(text: str) -> str:
    """The host, and the port, of an address that somebody pasted; to be shown, not used."""
    authority = text.rpartition("://")[2].lstrip("/")
    for end in "/?#":
        authority = authority.partition(end)[0]
    return authority.rpartition("@")[2]


def _read(texts: Iterable[str], where: str, faults: list[str]) -> Iterator[Rule]:
    for text in texts:
        try:
            yield Rule.of(text)
        except NotAName as fault:
            faults.append(
                f"{where}: {_without_user(text)!r} {fault}; write HOST or *.SUFFIX, with :PORT "
                "if it is only one"
            )
