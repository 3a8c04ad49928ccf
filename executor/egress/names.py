"""Host names in the one spelling in which they are compared, resolved and shown. Pure.

A name is canonical in lower case, of A-labels, without the one dot that may end it. What is no
name that way has no other reading either: nothing is decoded, cut, or mapped to what it looks
like. So a name that was judged is the name that is resolved, byte for byte.
"""

from __future__ import annotations

import ipaddress
import re

import idna

MAX_NAME = 253
"""Characters of a whole name (RFC 1035, 3.1, without its length bytes)."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
"""Letters, digits, hyphens inside (RFC 1123, 2.1); `_` is in use, and means nothing else."""
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label that `inet_aton` reads as a part of an address; no top-level domain is one."""
_PORT = re.compile(r"[1-9][0-9]{0,4}")
MAX_PORT = 65535


class NotAName(ValueError):
    """A text names no host. The message ends a sentence that begins with the text."""


class IsAnAddress(NotAName):
    """It is an IP address, in whatever spelling; names alone are listed."""


def canonical(text: str) -> str:
    """The name in its one spelling.

    Args:
        text: ASCII, as it came; see `written` for what people write.

    Raises:
        IsAnAddress: it is an address, or what some resolver takes for one.
        NotAName: it is neither.
    """
    name = text.lower().removesuffix(".")
    if ":" in name or "[" in name:
        raise IsAnAddress("is an IP address")
    if not name or len(name) > MAX_NAME:
        raise NotAName("is empty" if not name else "is longer than names can be")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        raise IsAnAddress("is an IP address")
    # `str.lower` maps the Kelvin sign to `k`: what was not ASCII before is no name.
    if not text.isascii() or not all(_LABEL.fullmatch(label) for label in labels):
        raise NotAName("is no host name")
    return name


def written(text: str) -> str:
    """The canonical name of one that a person wrote, whose labels may be of any script.

    Each such label becomes the A-label of exactly these characters (IDNA 2008, RFC 5891): one
    that only looks like another stays different from it.

    Raises:
        NotAName, IsAnAddress: as `canonical`.
    """
    if text.isascii():
        return canonical(text)
    try:
        labels = [_a_label(label) for label in text.lower().split(".")]
    except idna.IDNAError as error:
        raise NotAName(f"is no host name ({error})") from error
    return canonical(".".join(labels))


def _a_label(label: str) -> str:
    return label if label.isascii() else idna.alabel(label).decode("ascii")


def address(text: str) -> str:
    """An IP address in its one spelling: dotted decimal, or IPv6 in brackets, compressed.

    Raises:
        NotAName: in any other spelling, or with a zone.
    """
    try:
        if text.startswith("[") and text.endswith("]") and "%" not in text:
            return f"[{ipaddress.IPv6Address(text[1:-1])}]"
        return str(ipaddress.IPv4Address(text))
    except ValueError as error:
        raise NotAName("is no IP address in its usual spelling") from error


def is_address(host: str) -> bool:
    """Whether a canonical host is an address: no name begins with `[` or ends in a number."""
    return host.startswith("[") or host.rpartition(".")[2].isdigit()


def host_of(text: str) -> str:
    """A host that may be either: a canonical name, or an address in its one spelling.

    Raises:
        IsAnAddress: an address in another spelling.
        NotAName: neither.
    """
    try:
        return canonical(text)
    except IsAnAddress:
        try:
            return address(text)
        except NotAName:
            raise IsAnAddress("is an IP address") from None


def split(text: str) -> tuple[str, int | None]:
    """`HOST` or `HOST:PORT` → the host as it was written, and the port.

    Raises:
        NotAName: the port is none, or is written in an unusual way.
    """
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        return text, None
    if ":" in host and not host.startswith("["):
        return text, None  # an IPv6 address without brackets: `canonical` says so
    if not _PORT.fullmatch(port) or int(port) > MAX_PORT:
        raise NotAName("has no port from 1 to 65535 behind its colon")
    return host, int(port)
