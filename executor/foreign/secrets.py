"""Values of headers and environments that come from the executor's own variables: secrets."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping

from executor.catalog_servers import REFERENCE, McpEntry
from executor.egress.secrets import faults
from executor.foreign.hosted import KEPT
from executor.model import Secret
from executor.settings import values_of

_PREFIX = "EXECUTOR_MCP_"
_NOWHERE = "this-host.invalid"
"""Where the secrets of servers on the host are sent: nowhere."""


def secret_name(server: str, variable: str) -> str:
    """Under which name the value of a variable is a secret."""
    return f"{_PREFIX}{server.replace('-', '_')}__{variable}"


def is_veiled(name: str) -> bool:
    """It is such a name: no box has a variable of it."""
    return name.startswith(_PREFIX)


def variables_of(entries: Mapping[str, McpEntry]) -> dict[str, str]:
    """The variables of the executor that these servers name, as far as they are set."""
    texts = (
        text
        for entry in entries.values()
        for text in (*entry.headers.values(), *entry.environment.values())
    )
    return values_of({one[1] for text in texts for one in REFERENCE.finditer(text)})


def secrets_of(entries: Mapping[str, McpEntry], variables: Mapping[str, str]) -> Iterator[Secret]:
    """The secrets that the headers and the environments of these servers are made of.

    Those of an environment are masked, and sent nowhere.

    Args:
        entries: by name.
        variables: of the process; what is not set there, or can be no secret, is left out.
    """
    for server, entry in entries.items():
        if not entry.enabled:
            continue
        texts = entry.headers if entry.url is not None else entry.environment
        named = {one[1] for text in texts.values() for one in REFERENCE.finditer(text)}
        if entry.url is None:
            named -= {*KEPT}  # paths and languages, which every server of the host has
        for variable in sorted(named & variables.keys()):
            secret = secret_of(server, entry.url, variable, variables[variable])
            if not faults([secret]):  # else that server says what is wrong, and no other
                yield secret


def secret_of(server: str, url: str | None, variable: str, value: str) -> Secret:
    """The value of a variable as a secret of the URL's host; None = it is sent nowhere."""
    if url is None:
        return Secret(secret_name(server, variable), value, (_NOWHERE,))
    parts = urllib.parse.urlsplit(url)
    host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return Secret(secret_name(server, variable), value, (host,))
