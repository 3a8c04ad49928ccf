"""The certificates that an operator gives a loop's clients, for example of a proxy's own authority.

A box gets a copy of the certificates alone: a file that holds more, perhaps a private key, is
refused, and comments are left out.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from pathlib import Path

from executor.errors import ConfigError

MOST_BYTES = 4 << 20
"""A bundle of all public authorities has 200 to 300 KiB."""
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----[ \t]*\r?\n([A-Za-z0-9+/=\s]+?)-----END \1-----")
_KIND = b"CERTIFICATE"


def read(path: Path | str) -> bytes:
    """The certificates in a file, one PEM block after the other.

    Raises:
        ConfigError: it can't be read, is too large, or holds no certificate, a broken one, or
            something else.
    """
    data = _content(Path(path))
    blocks = _BLOCK.findall(data)
    kinds = {kind for kind, _ in blocks}
    if data.count(b"-----BEGIN") != len(blocks):
        raise ConfigError(f"egress.ca_file: {path} holds a broken block; give PEM certificates")
    if others := sorted(kinds - {_KIND}):
        named = b", ".join(others).decode("ascii").lower()
        raise ConfigError(
            f"egress.ca_file: {path} holds a block of the kind {named}; a loop could read it, so "
            "give a file with certificates alone"
        )
    if not blocks:
        raise ConfigError(
            f"egress.ca_file: {path} holds no certificate; give some in PEM form, which begins "
            "with -----BEGIN CERTIFICATE-----"
        )
    found = b"".join(
        b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n" % b"\n".join(body.split())
        for _, body in blocks
    )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"egress.ca_file: {path} holds a certificate that can't be read ({error})"
        ) from error
    return found


def _content(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"egress.ca_file: {path} is not a file; give one")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"egress.ca_file: {path} can't be read ({error.strerror or error})"
        ) from error
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"egress.ca_file: {path} has more than {MOST_BYTES} bytes; give fewer certificates"
        )
    return data
