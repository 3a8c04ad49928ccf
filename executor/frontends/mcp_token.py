"""The token that clients of the HTTP server show, in a file that only its owner can read."""

from __future__ import annotations

import os
import re
import secrets
import stat
import tempfile
from pathlib import Path

from executor.errors import ConfigError
from executor.frontends.running import say

SHORTEST = 16
"""Characters of a token."""
_MOST_BYTES = 4096
_FRESH_BYTES = 32
_TOKEN = re.compile(r"[\x21-\x7e]+")


def token_of(file: Path) -> str:
    """The token in the file; where there is no file, one with a fresh token is made.

    Raises:
        ConfigError: the file can't be used, others can read it, or what is in it is no token.
    """
    try:
        return _read(file)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(file, error) from error
    try:
        return _made(file)
    except OSError as error:
        raise _unusable(file, error) from error


def _read(file: Path) -> str:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        entry = os.fstat(descriptor)
        if not stat.S_ISREG(entry.st_mode):
            raise ConfigError(f"--token-file: {file} is no file; name one, or one to be made")
        if entry.st_mode & 0o077:
            raise ConfigError(
                f"--token-file: others than its owner may use {file} "
                f"(mode {stat.S_IMODE(entry.st_mode):04o}); chmod 600 it, and if others could have "
                "read it, delete it and let a new one be made"
            )
        data = os.read(descriptor, _MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    return _checked(file, data)


def _checked(file: Path, data: bytes) -> str:
    token = data.decode("latin-1").strip()
    if len(data) > _MOST_BYTES or len(token) < SHORTEST or not _TOKEN.fullmatch(token):
        # What is there is not shown: it may be a token all the same.
        raise ConfigError(
            f"--token-file: {file} holds no token: {SHORTEST} or more printable characters of "
            "ASCII without spaces, on one line; delete it and let a new one be made"
        )
    return token


def _made(file: Path) -> str:
    token = secrets.token_urlsafe(_FRESH_BYTES)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".token-") as stream:
        stream.write(token + "\n")
        stream.flush()
        try:
            os.link(stream.name, file)  # whole, or not at all: others may start at the same time
        except FileExistsError:
            return _read(file)
    say(f"made a token in {file}; clients send it as: Authorization: Bearer TOKEN")
    return token


def _unusable(file: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"--token-file: {file}: {error.strerror}; name a file that can be read, or one that can "
        "be made"
    )
