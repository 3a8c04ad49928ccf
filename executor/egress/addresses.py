"""Which addresses nothing is dialled at, whatever name led there. Pure, but for `is_own`.

The list is of what a request from this host could reach that one from the internet could not,
and of what is no place at all. An IPv6 address that carries an IPv4 one is judged as that one.
The documentation ranges (RFC 5737) are not in it: networks exist that use them as their own,
and nothing answers there in others.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

_METADATA = frozenset(
    map(
        ip_address,
        (
            *("169.254.169.254", "fd00:ec2::254", "fd20:ce::254"),  # most clouds
            *("169.254.170.2", "169.254.170.23", "fd00:ec2::23"),  # keys of AWS tasks and pods
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure's wire server: a public address that only its guests reach
            "192.0.0.192",  # Oracle's old one
        ),
    )
)
METADATA = "a metadata service"
_NOWHERE_4 = {
    "0.0.0.0/8": "this network (RFC 1122)",
    "192.0.0.0/24": "protocol assignments (RFC 6890)",
    "198.18.0.0/15": "benchmarks (RFC 2544)",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved (RFC 1112)",
}
_PRIVATE_4 = {
    "127.0.0.0/8": "loopback",
    "10.0.0.0/8": "a private network (RFC 1918)",
    "172.16.0.0/12": "a private network (RFC 1918)",
    "192.168.0.0/16": "a private network (RFC 1918)",
    "100.64.0.0/10": "a carrier's network (RFC 6598)",
    "169.254.0.0/16": "link-local",
}
_NOWHERE_6 = {
    "::/128": "unspecified",
    "ff00::/8": "multicast",
    "64:ff9b:1::/48": "translation of a local network (RFC 8215)",
    "100::/64": "discarded (RFC 6666)",
    "2001:2::/48": "benchmarks (RFC 5180)",
    "2001:10::/28": "names without a place (RFC 4843)",
    "2001:20::/28": "names without a place (RFC 7343)",
}
_PRIVATE_6 = {
    "::1/128": "loopback",
    "fc00::/7": "a private network (RFC 4193)",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local (RFC 3879)",
}
OWN = "an address of this host"
_GLOBAL_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")

_NOWHERE: list[tuple[IPv4Network | IPv6Network, str]] = [
    *((IPv4Network(net), said) for net, said in _NOWHERE_4.items()),
    *((IPv6Network(net), said) for net, said in _NOWHERE_6.items()),
]
_PRIVATE: list[tuple[IPv4Network | IPv6Network, str]] = [
    *((IPv4Network(net), said) for net, said in _PRIVATE_4.items()),
    *((IPv6Network(net), said) for net, said in _PRIVATE_6.items()),
]


def fault(address: Address, is_private: bool = False) -> str | None:
    """What the address is that nothing may be dialled at; None = it may be dialled.

    Args:
        address: as it was resolved; an IPv6 zone does not make it another.
        is_private: an operator has said that this host may be in a private network. Metadata
            services are refused all the same, and so is what is no place.
    """
    return next((said for one in carried(address) if (said := _fault(one, is_private))), None)


def _fault(address: Address, is_private: bool) -> str | None:
    if address in _METADATA:
        return METADATA
    for net, said in _NOWHERE:
        if address.version == net.version and address in net:
            return said
    for net, said in _PRIVATE:
        if address.version == net.version and address in net:
            return None if is_private else said
    if address.version == 6 and address not in _GLOBAL_6 and address not in _NAT64:
        return "no address of the internet (RFC 4291)"
    return None


def carried(address: Address) -> list[Address]:
    """The address, or the IPv4 addresses that it stands for, or both."""
    if isinstance(address, IPv4Address):
        return [address]
    address = IPv6Address(int(address))  # without its zone
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.teredo is not None:
        return [address, *address.teredo]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return [address, IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address]


def plain(address: Address) -> Address:
    """The address that is dialled: the IPv4 one where an IPv6 one only stands for it."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or IPv6Address(int(address))
    return address


def is_own(address: Address) -> bool:
    """Whether it is one of this host's: then, and only then, can it be bound to.

    Where `net.ipv4.ip_nonlocal_bind` is set everything can, and everything is refused.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
