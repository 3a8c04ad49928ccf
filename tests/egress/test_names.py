"""Names, addresses and lists of hosts: what is one of them, and what it is then."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.egress import addresses, names
from executor.egress.policy import Kind, Policy, Reason
from executor.errors import ConfigError

# ─── names ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("files.example", "files.example"),
        ("FILES.Example", "files.example"),
        ("files.example.", "files.example"),
        ("a_b.example", "a_b.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("localhost", "localhost"),
        ("1.files.example", "1.files.example"),
        ("0x7f.example", "0x7f.example"),
    ],
)
def test_a_name_has_one_spelling(text: str, name: str) -> None:
    """Case and one dot at the end are no difference."""
    assert names.canonical(text) == name
    assert names.canonical(name) == name


@pytest.mark.statement("F2")
@pytest.mark.parametrize(
    "text",
    [
        *("2130706433", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1", "127.0.0.1.", "0x7f000001"),
        *("[::ffff:169.254.169.254]", "[::1]", "[fe80::1%eth0]", "[64:ff9b::a9fe:a9fe]"),
        *("::1", "fe80::1", "0", "00.00", "0X7F.0x0.0.1", "1.2.3.4.5", "files.1", "[v1.x]", "0x"),
        *("4294967295", "127.0.0.0x1", "017700000001"),
    ],
)
def test_an_address_is_no_name_however_it_is_spelt(text: str) -> None:
    """Whatever some resolver could read as a number is refused before one is asked."""
    with pytest.raises(names.IsAnAddress):
        names.canonical(text)


@pytest.mark.statement("F5")
@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", ".files.example", "files..example", "files.example..", "-a.example"),
        *("a-.example", "files.example\0.evil.example", "files.example%00", "files.example\r\n"),
        *("files example", "files.example ", " files.example", "user@files.example"),
        *("files.example/", "files.example\\", "files,example", "*.example", "f\u0131les.example"),
        *("a" * 64 + ".example", ".".join(["a" * 63] * 4) + ".example", "\u212aelvin.example"),
        *("файл.example", "files.exampl\u0435", "files\u3002example", "%66iles.example"),
    ],
)
def test_what_is_no_name_is_not_made_one(text: str) -> None:
    """Nothing is decoded, cut off, trimmed or mapped."""
    with pytest.raises(names.NotAName):
        names.canonical(text)


@settings(deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"[a-zA-Z0-9.:\[\]x_-]{1,30}", fullmatch=True))
def test_whatever_is_a_name_is_plain_and_no_address(text: str) -> None:
    """Of any text: what comes out is letters, digits, hyphens and dots, and not a number."""
    try:
        name = names.canonical(text)
    except names.NotAName:
        return
    assert re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name)
    assert names.canonical(name) == name == text.lower().removesuffix(".")
    with pytest.raises(OSError):
        socket.inet_aton(name)
    with pytest.raises(ValueError):
        ip_address(name)


@pytest.mark.statement("F5")
def test_what_people_write_becomes_the_labels_of_just_these_characters() -> None:
    """A rule in another script is its A-label; what looks like a name is another."""
    assert names.written("Bücher.example") == "xn--bcher-kva.example"
    assert names.written("faß.example") == "xn--fa-hia.example"
    assert names.written("\u0430pple.example") == "xn--pple-43d.example"
    for text in ("\uff11\uff12\uff17.0.0.1", "\ufb01le.example", "a\u200db.example", "é" * 80):
        with pytest.raises(names.NotAName):
            names.written(text)


@pytest.mark.parametrize(
    "port", ["", "0", "080", "65536", "+80", "\uff180", "8_0", "80 ", "-1", "80:80"]
)
def test_a_port_is_a_decimal_number(port: str) -> None:
    """From 1 to 65535, without a sign, a space, or a zero in front."""
    with pytest.raises(names.NotAName):
        names.host_of(names.split(f"files.example:{port}")[0])


def test_an_address_that_was_asked_for_has_one_spelling_too() -> None:
    """Where an operator has listed one, the usual spelling is meant, and no zone."""
    assert names.host_of("127.0.0.1") == "127.0.0.1"
    assert names.host_of("[0:0::1]") == "[::1]"
    for text in ("127.1", "[fe80::1%lo]", "[::1", "[127.0.0.1]", "127.0.0.1."):
        with pytest.raises(names.IsAnAddress):
            names.host_of(text)


# ─── addresses ──────────────────────────────────────────────────────────────────────


@pytest.mark.statement("F3")
@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "127.255.255.255", "10.0.0.1", "172.16.0.1", "172.31.255.255"),
        *("192.168.0.1", "169.254.169.254", "169.254.0.1", "100.64.0.1", "100.127.255.255"),
        *("0.0.0.0", "0.1.2.3", "192.0.0.1", "198.18.0.1", "198.19.255.255", "224.0.0.1"),
        *("239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
        *("::", "::1", "::2", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1"),
        *("ff02::1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::8.8.8.8"),
        *("64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::808:808", "2002:7f00:1::"),
        *("2002:a9fe:a9fe::1", "2001:0:7f00:1::", "2001:0:808:808:0:0:80ff:fffe"),
        *("2001:2::1", "2001:10::1", "2001:2f::1", "100::1", "4000::1", "5f00::1", "1::1"),
    ],
)
def test_an_address_that_is_not_the_internet_is_refused(text: str) -> None:
    """Private, special and translated ones, and everything that nobody has assigned."""
    assert addresses.fault(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        *("8.8.8.8", "172.32.0.1", "172.15.0.1", "100.63.0.1", "100.128.0.1", "192.0.1.1"),
        *("192.0.2.1", "198.51.100.1", "203.0.113.1", "198.17.0.1", "198.20.0.1", "223.0.0.1"),
        *("2606:4700::1", "2a00::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"),
    ],
)
def test_an_address_of_the_internet_is_not(text: str) -> None:
    """And neither are the ranges of documentation, which networks use as their own."""
    assert addresses.fault(ip_address(text)) is None


def test_what_an_operator_says_is_private_is_still_no_metadata_service() -> None:
    """Private networks open by that, and nothing else does."""
    for text in ("127.0.0.1", "10.0.0.1", "::1", "fd00::1", "::ffff:10.0.0.1", "100.64.0.1"):
        assert addresses.fault(ip_address(text), is_private=True) is None
    refused = ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "::ffff:169.254.169.254")
    for text in (*refused, "64:ff9b::a9fe:a9fe", "0.0.0.0", "224.0.0.1", "255.255.255.255"):
        assert addresses.fault(ip_address(text), is_private=True)


@settings(deadline=None)
@given(st.ip_addresses(v=4))
def test_an_address_within_another_is_judged_as_itself(address: IPv4Address) -> None:
    """However IPv6 carries an IPv4 address, it is not allowed where that one is not."""
    if addresses.fault(address) is None:
        return
    number = int(address)
    low, high = number & 0xFFFF, number >> 16
    inverse = number ^ 0xFFFFFFFF
    for text in (
        f"::ffff:{high:x}:{low:x}",
        f"64:ff9b::{high:x}:{low:x}",
        f"2002:{high:x}:{low:x}::1",
        f"2001:0:{high:x}:{low:x}::",
        f"2001:0:808:808:0:0:{inverse >> 16:x}:{inverse & 0xFFFF:x}",
    ):
        assert addresses.fault(ip_address(text)), text


def test_addresses_of_this_host_are_known() -> None:
    """Without a list of them: what can be bound to is one."""
    assert addresses.is_own(ip_address("127.0.0.1"))
    assert addresses.is_own(ip_address("0.0.0.0"))
    assert not addresses.is_own(ip_address("9.9.9.9"))
    assert not addresses.is_own(ip_address("2606:4700::1"))


# ─── lists ──────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("F5", "F6", "F14")
@pytest.mark.parametrize(
    ("rule", "host", "port", "kind", "reason"),
    [
        ("files.example", "files.example", 443, "https", "allowed"),
        ("files.example", "files.example", 80, "http", "allowed"),
        ("files.example", "files.example", 80, "https", "port_not_allowed"),
        ("files.example", "files.example", 443, "http", "port_not_allowed"),
        ("files.example", "files.example", 853, "https", "port_not_allowed"),
        ("files.example", "files.example", 22, "https", "port_not_allowed"),
        ("files.example", "files.example.evil.example", 443, "https", "host_not_allowed"),
        ("files.example", "evilfiles.example", 443, "https", "host_not_allowed"),
        ("files.example", "a.files.example", 443, "https", "host_not_allowed"),
        ("files.example", "example", 443, "https", "host_not_allowed"),
        ("*.files.example", "a.files.example", 443, "https", "allowed"),
        ("*.files.example", "b.a.files.example", 80, "http", "allowed"),
        ("*.files.example", "files.example", 443, "https", "host_not_allowed"),
        ("*.files.example", "evilfiles.example", 443, "https", "host_not_allowed"),
        ("files.example:8443", "files.example", 8443, "https", "allowed"),
        ("files.example:8443", "files.example", 8443, "http", "allowed"),
        ("files.example:8443", "files.example", 443, "https", "port_not_allowed"),
        ("files.example:80", "files.example", 80, "https", "port_not_allowed"),
        ("files.example:80", "files.example", 80, "http", "allowed"),
        ("*.files.example:8443", "a.files.example", 8443, "https", "allowed"),
        ("Bücher.example", "xn--bcher-kva.example", 443, "https", "allowed"),
        ("FILES.example.", "files.example", 443, "https", "allowed"),
        ("files.example", "10.0.0.1", 443, "https", "ip_literal"),
    ],
)
def test_a_rule_means_what_it_says(rule: str, host: str, port: int, kind: str, reason: str) -> None:
    """Exact names, names below one, and ports; nothing beside them."""
    verdict = Policy.of([rule]).judge(host, port, kind)
    assert (verdict.is_allowed, verdict.reason) == (reason == "allowed", Reason(reason))


def test_nothing_is_allowed_by_no_rule() -> None:
    """And it is said that there is none."""
    assert Policy().judge("files.example", 443, Kind.TUNNEL).reason is Reason.NO_EGRESS
    assert not Policy()
    assert Policy.of(["files.example"])


def test_every_fault_of_a_list_is_said_at_once() -> None:
    """With the entry, and what to write instead."""
    with pytest.raises(ConfigError) as caught:
        Policy.of(
            ["https://files.example/a", "*", "10.0.0.1", "a b", "x.example:0", "files.example"],
            private=["*.near.example", "127.1"],
        )
    faults = caught.value.faults
    assert len(faults) == 7, faults
    for part in ("https://", "'*'", "10.0.0.1", "'a b'", "x.example:0", "*.near", "127.1"):
        assert any(part in fault for fault in faults), part


def test_an_address_is_listed_only_where_an_operator_has_listed_it_as_private() -> None:
    """By the loop alone it can't be."""
    policy = Policy.of(["10.0.0.1:8443", "[::1]:80"], private=["10.0.0.1", "[0::1]:80"])
    assert policy.judge("10.0.0.1", 8443, "https").is_allowed
    assert policy.may_be_private("10.0.0.1", 8443)
    assert policy.may_be_private("[::1]", 80)
    assert not policy.may_be_private("[::1]", 443)
    assert policy.judge("10.0.0.2", 8443, "https").reason is Reason.LITERAL
