"""What of an operator's file of certificates gets into a box."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from executor.errors import ConfigError
from executor.sandbox import certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A certificate and its key, in PEM form."""
    directory = tmp_path_factory.mktemp("ca")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", "key", "-out", "crt", "-subj", "/CN=proxy.example"),
        ],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    return (directory / "crt").read_bytes(), (directory / "key").read_bytes()


def test_a_bundle_comes_without_what_stands_around_it(
    tmp_path: Path, made: tuple[bytes, bytes]
) -> None:
    """Every certificate is there, comments are not, and what comes out is read as the same."""
    crt = made[0]
    file = tmp_path / "ca.pem"
    file.write_bytes(
        b"# Proxy, password hunter2\n" + crt + b"\r\n# more\n" + crt.replace(b"\n", b"\r\n")
    )
    found = certificates.read(file)
    assert found == crt + crt
    file.write_bytes(found)
    assert certificates.read(file) == found


def test_what_holds_more_or_less_than_certificates_is_refused(
    tmp_path: Path, made: tuple[bytes, bytes]
) -> None:
    """A private key never gets into a box, and a broken bundle is told before one is opened."""
    crt, key = made
    file = tmp_path / "ca.pem"
    body = crt.split(b"\n")
    for content, said in (
        (crt + key, "a block of the kind private key"),
        (key, "a block of the kind private key"),
        (b"", "holds no certificate"),
        (b"\x30\x82" * 100, "holds no certificate"),
        (crt[:-30], "holds a broken block"),
        (crt + b"-----BEGIN CERTIFICATE-----\nAAAA\n", "holds a broken block"),
        (b"\n".join([body[0], *body[2:]]), "can't be read"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "can't be read"),
        (b"#" * (certificates.MOST_BYTES + 1), "has more than"),
    ):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=said) as raised:
            certificates.read(file)
        assert key.split(b"\n")[1].decode() not in str(raised.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A pipe, a directory and nothing at all hang nobody."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=r"egress\.ca_file"):
            certificates.read(path)
