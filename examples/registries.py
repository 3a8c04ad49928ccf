"""Drives pip, npm and apt in boxes, through the broker: `make outside`.

Which hosts they need is read from the configuration of the same clients on this machine, and so
are the certificates that they believe. It needs the world outside, so it is no test of the suite;
what gets out besides is looked at in `tests/security/test_f_egress.py`.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

EXECUTOR = Path(sys.executable).with_name("executor")
TRUST = Path("/etc/ssl/certs/ca-certificates.crt")
"""Where Debian keeps what its clients believe."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client of registries.

    Attributes:
        name: for people.
        hosts: that it needs.
        image: that has it.
        command: what it is to do.
        expected: what its output has then.
    """

    name: str
    hosts: tuple[str, ...]
    image: str
    command: str
    expected: str


def _output(*command: str) -> str:
    """What a client of this machine says about itself; empty where it is not there."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _pip() -> Client:
    code = "from pip._internal.models.index import PyPI as i; print(i.url, i.file_storage_domain)"
    index, files = _output(sys.executable, "-c", code).split()
    own = _output(sys.executable, "-m", "pip", "config", "get", "global.index-url").strip()
    index = own or index
    command = "python3 -m venv .venv && .venv/bin/pip download --no-deps six"
    return Client("pip", (_host(index), files), "base", command, "Successfully downloaded six")


def _npm() -> Client | None:
    registry = _output("npm", "config", "get", "registry").strip()
    if not registry:
        return None
    command = "npm view left-pad version"
    return Client("npm", (_host(registry),), "heavy", command, "1.3.0")


def _apt() -> Client | None:
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    texts = [path.read_text() for path in lists if path.is_file()]
    lines = [line.partition("#")[0] for text in texts for line in text.splitlines()]
    # Other archives may not have what the image is made of.
    own = platform.freedesktop_os_release()["ID"]
    found = re.findall(r"https?://[^\s\]]+", "\n".join(lines))
    urls = [url for url in found if own in url]
    if not urls:
        return None
    command = (
        "mkdir -p /tmp/apt/lists/partial; "
        f"echo 'deb [trusted=yes] {urls[0]} stable main' > /tmp/apt/list; "
        "apt-get -o Dir::State=/tmp/apt -o Dir::State::lists=/tmp/apt/lists -o Dir::Cache=/tmp/apt "
        "-o Dir::Etc::sourcelist=/tmp/apt/list -o Dir::Etc::sourceparts=- "
        "-o APT::Update::Error-Mode=any update && echo all is there"
    )
    return Client("apt", (_host(urls[0]),), "base", command, "all is there")


def clients() -> Iterator[Client]:
    """Those that this machine has a configuration for."""
    for made in (_pip(), _npm(), _apt()):
        if made is not None:
            yield made


def run(client: Client, hosts: Sequence[str]) -> str:
    """What the client printed in a box that may reach these hosts.

    Raises:
        RuntimeError: the executor itself failed.
    """
    call = {"id": "1", "name": "run_command", "input": {"command": client.command}}
    with tempfile.TemporaryDirectory() as worktree:
        options = ["--worktree", worktree, "--image", client.image]
        options += [word for host in hosts for word in ("--egress", host)]
        options += ["--ca-file", str(TRUST)] if TRUST.exists() else []
        done = subprocess.run(
            [EXECUTOR, "run", *options],
            input=json.dumps(call) + "\n", capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"executor run: {done.stderr}")
    return str(json.loads(done.stdout)["content"])


def main() -> int:
    """Each client with its hosts and without; the exit code."""
    failed = 0
    for client in clients():
        told = run(client, client.hosts)
        works = client.expected in told
        print(f"{client.name}: {'works' if works else 'FAILED'} where its registry is allowed")
        answer = run(client, ["registry.invalid"])
        refused = client.expected not in answer and "the broker refused" in answer
        print(f"{client.name}: {'refused' if refused else 'NOT REFUSED'} where another one is")
        failed += not (works and refused)
        if not works:
            print(told)
        if not refused:
            print(answer)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
