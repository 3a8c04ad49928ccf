"""A box with a proxy: what its clients find of it, and what is said where one does not."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from executor.catalog import load
from executor.egress import Broker, Dialler
from executor.git import private
from executor.lane import SetUp
from executor.model import EgressOptions, GitOptions, Limits, LoopSpec
from executor.sandbox.box import Host, Sandbox, open_box
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import Identity
from executor.session import Session
from executor.settings import Settings
from executor.setup import SetupFailed, set_up
from executor.tool import Surroundings
from executor.tools import way_out
from tests.conftest import LIMITS, RUNTIME, make_worktree
from tests.egress.proxying import Names

NAME = "git.example"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files, without a word."""

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""


@contextlib.contextmanager
def served(directory: Path, key: Path | None = None) -> Iterator[int]:
    """A server of files at the host's loopback, by TLS if it gets a key; its port."""
    handler = functools.partial(Quiet, directory=os.fspath(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if key is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(key.with_suffix(".pem"), key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def make_repository(directory: Path) -> None:
    """A bare repository with one commit, as a server of files can hand it out."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main"]
    for arguments in (
        ["init", "-q", "work"],
        ["-C", "work", "commit", "-q", "--allow-empty", "-m", "from afar"],
        ["clone", "-q", "--bare", "work", "far.git"],
        ["-C", "far.git", "update-server-info"],
    ):
        subprocess.run([*git, *arguments], cwd=directory, check=True, capture_output=True)


@dataclass
class Inside:
    """An open box, and the broker behind its proxy."""

    sandbox: Sandbox
    broker: Broker

    async def run(self, command: str) -> tuple[int, str, list[str]]:
        """A command's exit code and output, and what a model is told beside it."""
        arguments = {
            **dict.fromkeys(("argv", "script")),
            **{"command": command, "args": [], "cwd": "", "environment": {}, "timeout": 60.0},
            **{"grace": 1.0, "merge": True, "head": 20_000, "tail": 0, "stream": False},
            "shelve": False,
        }
        answer = await self.sandbox.request("run", arguments, timeout=60.0)
        hints = way_out.hints(around(self.broker), answer, 30.0)
        return answer.value["exit_code"], answer.data.decode(), hints


def around(broker: Broker | None, lane: str = "net") -> Surroundings:
    toolset = load().toolsets["standard"]
    box: Any = None
    return Surroundings("t", Session(), Limits(), lane, toolset, (), box, egress=broker)


def test_clients_of_a_box_with_a_proxy(tmp_path: Path) -> None:
    """83: servers inside are reached past it, allowed hosts by it, and git uses it, too."""
    make_repository(tmp_path)
    key, certificate = tmp_path / "ca.key", tmp_path / "ca.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", key, "-out", certificate, "-subj", f"/CN={NAME}"),
            *("-addext", f"subjectAltName=DNS:{NAME}"),
        ],
        check=True,
        capture_output=True,
    )
    with served(tmp_path) as port, served(tmp_path, key) as secure_port:
        asyncio.run(_clients(tmp_path, (port, secure_port), certificate))


async def _clients(directory: Path, ports: tuple[int, int], certificate: Path) -> None:
    at, secure = (f"{NAME}:{port}" for port in ports)
    spec = LoopSpec(
        worktree=make_worktree(directory / "worktree"),
        limits=LIMITS,
        exec_id="way-out",
        environment={"HTTP_PROXY": "http://me:hunter2@127.0.0.1:9"},
        egress=EgressOptions((at, secure), private=(at, secure), ca_file=certificate),
        runtime=RUNTIME[0] if RUNTIME else None,
        quota="none",
    )
    names = Names()
    names.answers[NAME] = "127.0.0.1"
    broker = Broker(
        spec.egress,
        exec_id="way-out",
        tenant="t",
        journal=None,
        dialler=Dialler(names),
        open_lanes=("net",),
    )
    async with broker, await Engine.connect(Settings.load()) as engine:
        with Identity.claim(directory / "state") as identity:
            host = Host(
                engine,
                identity,
                git_settings=lambda has_proxy: private.system_settings(
                    None, GitOptions(), has_proxy=has_proxy
                ),
                lane="net",
                serve=functools.partial(broker.serve, "net"),
            )
            async with open_box(host, spec) as sandbox:
                inside = Inside(sandbox, broker)
                await _variables(inside, certificate)
                await _requests(inside, at)
                await _git(inside, at, secure)
                await _set_ups(inside, spec)
            async with open_box(replace(host, lane="no-net", serve=None), spec) as sandbox:
                await _without(Inside(sandbox, broker))


async def _variables(inside: Inside, certificate: Path) -> None:
    (notice,) = [n for n in inside.sandbox.capabilities["notices"] if "HTTP_PROXY" in n]
    assert "127.0.0.1:9" in notice
    assert "hunter2" not in notice
    code, out, _ = await inside.run(
        "env | grep -iE '^(http|https|no)_proxy=' | LC_ALL=C sort; cat $SSL_CERT_FILE"
    )
    assert code == 0
    assert out.splitlines()[:6] == [
        "HTTPS_PROXY=http://127.0.0.1:3128",
        "HTTP_PROXY=http://127.0.0.1:3128",
        "NO_PROXY=localhost,127.0.0.1,::1",
        "http_proxy=http://127.0.0.1:3128",
        "https_proxy=http://127.0.0.1:3128",
        "no_proxy=localhost,127.0.0.1,::1",
    ]
    assert out.endswith(certificate.read_text())
    code, _, _ = await inside.run("echo x >> $SSL_CERT_FILE || rm -f $SSL_CERT_FILE")
    assert code != 0


_FETCH = "python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)' "
_SERVER = "mkdir -p /tmp/d && python3 -m http.server -d /tmp/d {port} >/dev/null 2>&1 & "
_WAIT = (
    "until python3 -c 'import socket; socket.create_connection((\"localhost\", {port}))' "
    "2>/dev/null; do :; done; "
)


async def _requests(inside: Inside, at: str) -> None:
    start = (_SERVER + _WAIT).format(port=8130)
    assert await inside.run(f"{start}{_FETCH} http://localhost:8130/; kill %1") == (0, "200\n", [])
    assert await inside.run(f"{_FETCH} http://{at}/far.git/HEAD") == (0, "200\n", [])
    code, out, hints = await inside.run(f"{_FETCH} https://denied.example/x")
    assert code == 1
    assert "403" in out
    assert hints == [
        "the broker refused: denied.example:443 is not on the list of hosts that this sandbox may "
        "reach; the user can allow it with --egress denied.example"
    ]
    code, out, hints = await inside.run(
        "env -u https_proxy -u HTTPS_PROXY " + _FETCH + " https://itself.example/ 2>&1 | tail -1"
    )
    assert code == 0
    assert "resolution" in out
    assert len(hints) == 1
    assert "http://127.0.0.1:3128" in hints[0]


async def _git(inside: Inside, at: str, secure: str) -> None:
    code, out, _ = await inside.run(
        f"git ls-remote https://{secure}/far.git main && "
        f"git clone -q https://{secure}/far.git /tmp/t && git -C /tmp/t log --format=%s"
    )
    assert code == 0
    assert out.endswith("refs/heads/main\nfrom afar\n")
    url = f"http://{at}/far.git"
    code, out, _ = await inside.run(f"git clone -q {url} /tmp/c && git -C /tmp/c log --format=%s")
    assert (code, out) == (0, "from afar\n")
    # As the loop's own git directory has it, which boxes without a proxy use as well.
    code, out, _ = await inside.run(
        "cd /tmp/c && git config remote.origin.vcs outside && "
        f"git config url.{url}.insteadOf {url} && git fetch && git ls-remote && "
        "env -u http_proxy -u https_proxy -u HTTPS_PROXY git fetch"
    )
    assert code == 128
    assert "refs/heads/main" in out
    assert "There is no network in this sandbox, so git can't" in out
    code, out, _ = await inside.run("git clone ssh://git@git.example/far.git /tmp/s")
    assert code == 128
    assert "only by https and its proxy, so git can't push to, fetch from or clone ssh://" in out


async def _set_ups(inside: Inside, spec: LoopSpec) -> None:
    told: list[str] = []
    line = "pwd; printf 'a\\rb\\033[31m\\r\\n'; printf 'no end'; touch made"
    await set_up(inside.sandbox, replace(spec, setup=line), told.append)
    assert told == ["/workspace", "b\\x1b[31m", "no end"]
    assert (Path(spec.worktree) / "made").exists()
    line = "for n in $(seq 30); do echo line-$n; done; printf '\\033]0;x\\007\\n' >&2; exit 7"
    with pytest.raises(SetupFailed) as raised:
        await set_up(inside.sandbox, replace(spec, setup=line), told.append)
    said = str(raised.value)
    assert "ended with exit code 7; it printed at the end:" in said
    assert said.count("line-") == 19 + line.count("line-")
    assert "\\x1b]0;x\\x07" in said
    assert "\x1b" not in said
    with pytest.raises(SetupFailed, match="killed by signal"):
        await set_up(inside.sandbox, replace(spec, setup="kill -9 $$"), told.append)
    with pytest.raises(SetupFailed, match="exit code 1") as raised:
        failing = replace(spec, setup=f"{_FETCH} http://missing.example/ 2>/dev/null")
        await SetUp(failing, inside.broker, told.append, "net").run(inside.sandbox)
    assert "the broker refused: missing.example:80 is not on the list" in str(raised.value)
    await set_up(inside.sandbox, replace(spec, setup=None), told.append)


async def _without(inside: Inside) -> None:
    """A box of the same loop without a proxy is as if there were no egress."""
    code, out, _ = await inside.run("env | grep -i proxy; test -e /run/executor/ca.crt")
    assert (code, out) == (1, "")
    start = (_SERVER + _WAIT).format(port=8130)
    assert (await inside.run(f"{start}{_FETCH} http://localhost:8130/; kill %1"))[:2] == (
        0,
        "200\n",
    )
    code, out, _ = await inside.run("git clone https://git.example/far.git /tmp/c")
    assert code == 128
    assert "There is no network in this sandbox" in out
