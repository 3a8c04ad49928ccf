"""The first message of TLS: whatever way it is cut, one server's name comes out, or none."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.egress.hello import MAX_BYTES, Hello, NotTls, Reading
from tests.egress.proxying import client_hello

NAME = "files.example"


def read(data: bytes) -> Hello | None:
    """What it is when it comes at once."""
    return Reading().feed(data)


def extension(kind: int, content: bytes) -> bytes:
    """One extension."""
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


def server_name(*names: bytes, kind: int = 0) -> bytes:
    """The extension that names a server."""
    entries = b"".join(bytes([kind]) + len(one).to_bytes(2, "big") + one for one in names)
    return extension(0, len(entries).to_bytes(2, "big") + entries)


def message(extensions: bytes, behind: bytes = b"") -> bytes:
    """A ClientHello, without records."""
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    body += len(extensions).to_bytes(2, "big") + extensions + behind
    return b"\1" + len(body).to_bytes(3, "big") + body


def record(fragment: bytes, kind: int = 22, version: bytes = b"\3\1") -> bytes:
    """One record."""
    return bytes([kind]) + version + len(fragment).to_bytes(2, "big") + fragment


def records(data: bytes, size: int) -> bytes:
    """The message cut into records of so many bytes."""
    return b"".join(record(data[at : at + size]) for at in range(0, len(data), size))


ECH = extension(0xFE0D, bytes(200))
GREASE = extension(0x0A0A, b"") + extension(0x1A1A, b"\0")
LARGE = extension(51, bytes(20_000))
GOOD = server_name(NAME.encode())


@pytest.mark.statement("F7")
def test_the_hello_of_a_real_client_is_read() -> None:
    """OpenSSL's, with a name and without, of old versions and new ones."""
    assert read(client_hello(NAME)) == Hello(NAME, False)
    assert read(client_hello(None)) == Hello(None, False)
    old = client_hello(NAME, maximum_version=ssl.TLSVersion.TLSv1_2)
    assert read(old) == Hello(NAME, False)
    assert read(client_hello("FILES.example")) in (
        Hello("FILES.example", False),
        Hello(NAME, False),
    )


@settings(max_examples=60)
@given(st.integers(1, 700), st.booleans(), st.booleans())
def test_a_hello_may_be_cut_anywhere(size: int, large: bool, encrypted: bool) -> None:
    """Over records of any size, and over segments: it is whole with its last byte, not before."""
    extensions = GREASE + (LARGE if large else b"") + GOOD + (ECH if encrypted else b"")
    data = records(message(extensions), min(size * (40 if large else 1), 16384))
    assert read(data + b"early data") == Hello(NAME, encrypted)
    reading = Reading()
    said = [reading.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert said == [None] * (len(said) - 1) + [Hello(NAME, encrypted)]
    for end in {*range(0, min(len(data), 300)), len(data) // 2, len(data) - 1}:
        assert read(data[:end]) is None


@pytest.mark.statement("F7")
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-x\r\n",
        b"\x80\x2e\x01\x03\x01",
        record(message(GOOD), kind=23),
        record(message(GOOD), version=b"\2\0"),
        record(b""),
        b"\x16\3\1" + (16385).to_bytes(2, "big"),
        record(b"\2" + message(GOOD)[1:]),
        record(message(GOOD)[:20]) + record(b"\1", kind=20),
        record(message(GOOD)[:20]) + record(b"\1\0", kind=21),
        record(message(GOOD) + b"\0"),
        record(message(GOOD) + message(server_name(b"evil.example"))),
        record(message(GOOD + server_name(b"evil.example"))),
        record(message(server_name(NAME.encode(), b"evil.example"))),
        record(message(server_name(NAME.encode(), kind=1))),
        record(message(server_name())),
        record(message(extension(0, b""))),
        record(message(extension(0, b"\0\1\0") + GREASE)),
        record(message(server_name("файл.example".encode()))),
        record(message(GOOD, behind=b"\0")),
        record(b"\1\0\0\5\3\3abc"),
        b"\x16\3\1\0\4\1" + (MAX_BYTES + 1).to_bytes(3, "big"),
    ],
)
def test_what_has_another_reading_is_refused(data: bytes) -> None:
    """Not TLS, older than TLS, interleaved, repeated, overlong, or cut short inside."""
    with pytest.raises(NotTls):
        read(data)


def test_a_hello_without_extensions_names_nobody() -> None:
    """As those of very old clients."""
    body = b"\x03\x01" + bytes(32) + b"\0" + b"\0\2\0\x2f" + b"\1\0"
    assert read(record(b"\1" + len(body).to_bytes(3, "big") + body)) == Hello(None, False)


def test_a_hello_that_never_ends_is_given_up() -> None:
    """Records that hold next to nothing don't make it last."""
    tiny = records(message(extension(51, bytes(60_000)) + GOOD), 1)
    with pytest.raises(NotTls):
        read(tiny[: MAX_BYTES + 100])


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but `NotTls` comes of noise, behind a good beginning or not."""
    for noise in (data, record(message(GOOD)[:60]) + data, record(b"\1\0\1\0\3\3" + data)):
        with suppress(NotTls):
            read(noise)
