"""The environment of commands. Pure: nothing of the host's environment gets in.

`TERM` is `dumb`: there is no terminal, and programs that believe it print no colours and
ask no questions. `LANG` is `C.UTF-8` and `TZ` is `UTC` in every image, so that one and
the same command prints the same everywhere; the variables of the loop change both.

A box with a way out has a proxy at its own loopback. What was tried against one that denies:

    ====================================  =====================================================
    client                                how it finds the proxy
    ====================================  =====================================================
    curl, git over https                  `https_proxy`, and only the lower-case `http_proxy`
    wget, pip, requests, httpx, urllib,   either spelling
    npm, apt-get, cargo, go
    node 24's `fetch` and `http`          either, if `NODE_USE_ENV_PROXY` is 1
    older node's                          not at all: a package has to be given it
    Maven, Gradle                         `MAVEN_OPTS`, `GRADLE_OPTS`
    any other Java                        `-Dhttps.proxyHost`, given to that program
    ssh, git over ssh or `git://`         not at all
    ====================================  =====================================================

What Java as such reads, `JAVA_TOOL_OPTIONS` and `JDK_JAVA_OPTIONS`, it also writes to standard
error at each start, so that scripts that ask `java -version` go wrong; it is left alone.
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from executor.model import CERTIFICATES, GIT_SETTINGS, LoopSpec
from executor.sandbox.caches import cache_environment
from executor.sandbox.container import HOME, RUNTIME

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Only EDITOR is set: git prefers VISUAL and GIT_EDITOR, so they would defeat
# `EDITOR=true git rebase -i`, and core.editor comes before EDITOR.
EDITOR = (
    'sh -c "echo No editor can run here: give the text as an option, as in git commit -m, '
    'or set EDITOR=true to keep it as it is. >&2; exit 1" editor'
)

_DROPPED = re.compile(
    r"LD_\w+|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|MALLOC_\w+"
    r"|PYTHON[A-Z]+"
    r"|LANGUAGE|LC_\w+"
    r"|BASH_\w+(?:%%|\(\))?|ENV|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|CDPATH|IFS"
    r"|GIT_(?!(?:AUTHOR|COMMITTER)_)\w+"
    r"|VISUAL|HOSTNAME|PWD|OLDPWD|SHLVL|_|DOCKER_HOST|SSH_AUTH_SOCK|DISPLAY"
    r"|EXECUTOR_\w+"
    r"|(?i:(?:https?|ftp|all|no)_proxy)"
)
"""Variables of an image that commands do not get: they change how programs are loaded or
how this package's own programs behave, or they speak of another machine."""

PROXY_PORT = 3128
"""Where the agent listens on the box's loopback, if the box has a way out."""
PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_DIRECT = ("localhost", "127.0.0.1", "::1")
"""What is in the box itself. Neither curl nor Python knows networks in all versions."""
_PROXIES = re.compile(r"(?i:(?:https?|ftp|all)_proxy)")
_PROPERTIES = " ".join(
    f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={PROXY_PORT}"
    for scheme in ("http", "https")
)
"""Java goes past a proxy for `localhost|127.*|[::1]` if nobody says otherwise."""
_MAVEN = f"{_PROPERTIES} -Daether.connector.http.useSystemProperties=true"
"""From 3.9 on Maven takes no notice of these properties without the last one."""


def command_environment(
    spec: LoopSpec,
    user: str,
    image_environment: Iterable[str] = (),
    *,
    has_proxy: bool = False,
) -> dict[str, str]:
    """What every command of the loop starts with; the agent adds the call's own.

    Args:
        spec: the loop's.
        user: name of the box's uid (`ownership.user_name`).
        image_environment: the image's `NAME=value` entries.
        has_proxy: the agent listens at `PROXY`.
    """
    image = _kept(image_environment)
    # nproc and most thread pools see all of the machine's cores, not the box's share.
    cores = str(max(1, math.ceil(spec.limits.cpus)))
    own = {
        "HOME": HOME,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/sh",
        "PATH": f"{image.get('PATH') or DEFAULT_PATH}:{RUNTIME}/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "EDITOR": EDITOR,
        "GIT_TERMINAL_PROMPT": "0",
        # Settings by variables would outdo those that a test suite gives its repositories.
        "GIT_CONFIG_SYSTEM": GIT_SETTINGS,
        "DEBIAN_FRONTEND": "noninteractive",
        "OMP_NUM_THREADS": cores,
        "GOMAXPROCS": cores,
        **cache_environment(spec.caches),
    }
    if has_proxy:
        own |= _way_out(image)
        own |= _believed() if spec.egress.ca_file is not None else {}
    given = {
        name: value
        for name, value in spec.environment.items()
        if not _leads_into_the_box(name, value)
    }
    return _with_direct({**image, **own, **given})


def environment_notices(spec: LoopSpec) -> list[str]:
    """What of the loop's variables its commands don't get, one sentence each.

    A proxy's address may hold a password, so no more of it is said than host and port.
    """
    return [
        f"{name} is not passed on: it names {where}, which in the sandbox is the sandbox itself. "
        "What the loop may reach outside is said with --egress HOST."
        for name, value in spec.environment.items()
        if (where := _leads_into_the_box(name, value)) and value.rstrip("/") != PROXY
    ]


def _leads_into_the_box(name: str, value: str) -> str:
    """Host and port of a proxy that runs on the host's loopback; empty = it is none.

    In the box, the same address is the box's own.
    """
    if not _PROXIES.fullmatch(name):
        return ""
    try:
        parts = urlsplit(value if "://" in value else f"//{value}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    if not (host.rstrip(".") in ("localhost", "0.0.0.0", "::") or _is_loopback(host)):
        return ""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def _is_loopback(host: str) -> bool:
    """An address of the loopback, in any spelling that libraries take."""
    if host.rstrip(".").endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            # 127.1 and 2130706433 are addresses to a C library.
            address = ipaddress.ip_address(socket.inet_aton(host))
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def _way_out(image: Mapping[str, str]) -> dict[str, str]:
    """How clients find the proxy. ALL_PROXY is not among it: the proxy speaks only HTTP."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    return {
        **dict.fromkeys(names, PROXY),
        **dict.fromkeys(("no_proxy", "NO_PROXY"), ""),
        "NODE_USE_ENV_PROXY": "1",
        "MAVEN_OPTS": f"{_MAVEN} {image.get('MAVEN_OPTS', '')}".rstrip(),
        "GRADLE_OPTS": f"{_PROPERTIES} {image.get('GRADLE_OPTS', '')}".rstrip(),
    }


def _believed() -> dict[str, str]:
    """The certificates that the operator gave, for clients that can be told of them.

    Java and the wget of Debian read no such file.
    """
    names = (
        *("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT"),
        *("NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO"),
    )
    return dict.fromkeys(names, CERTIFICATES)


def _with_direct(environment: dict[str, str]) -> dict[str, str]:
    """The same; wherever a proxy is named, servers in the box are reached without it."""
    if not any(map(_PROXIES.fullmatch, environment)) and not environment.keys() & {
        *("no_proxy", "NO_PROXY")
    }:
        return environment
    said = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    names = dict.fromkeys((*_DIRECT, *filter(None, map(str.strip, said.split(",")))))
    return {**environment, **dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(names))}


def _kept(entries: Iterable[str]) -> dict[str, str]:
    """The image's variables, without those that are dropped."""
    pairs = (entry.partition("=") for entry in entries)
    return {
        name: value for name, mark, value in pairs if name and mark and not _DROPPED.fullmatch(name)
    }
