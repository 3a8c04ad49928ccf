"""Groups E and F again, for a box that may reach one server: everything else is as it was."""

from __future__ import annotations

import functools
import http.server
import json
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from executor.audit import AuditLog
from executor.egress import Broker, Dialler
from executor.model import EgressOptions, LoopSpec
from executor.sandbox.box import Host, Sandbox, open_box
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import Identity
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.driver import Box, LoopThread, wait_until
from tests.egress.proxying import Names
from tests.security.probes import probe
from tests.security.test_e_network import (
    GATEWAYS,
    LOOK,
    METADATA,
    NAMES,
    Listener,
    Sniffer,
    check_everything,
    host_addresses,
    own_query,
    targets,
)

NAME = "allowed.example"
PATH = f"/{secrets.token_hex(8)}"
"""What stands in no log."""

PROXY = r"""
import http.client, socket, ssl

def proxied(method, target, headers=(), body=None):
    "Status and JSON of an answer of the proxy, as a program in here gets it."
    made = http.client.HTTPConnection("127.0.0.1", 3128, timeout=20)
    made.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    for name, value in headers:
        made.putheader(name, value)
    made.endheaders()
    answer = made.getresponse()
    text = answer.read().decode("latin-1")
    made.close()
    return [answer.status, answer.headers.get("x-executor-egress"), text]

def get(host, port, path="/"):
    at = f"[{host}]" if ":" in host else host
    return proxied("GET", f"http://{at}:{port}{path}", [("Host", f"{at}:{port}")])

def connect(host, port):
    at = f"[{host}]" if ":" in host else host
    return proxied("CONNECT", f"{at}:{port}", [("Host", f"{at}:{port}")])
"""


class Counting(http.server.BaseHTTPRequestHandler):
    """Answers everything, and counts it."""

    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""


@dataclass
class Reach:
    """A box with a proxy, the one server that it may reach, and the log of the broker.

    Attributes:
        box: over the runtime at hand.
        port: of the server, on the host's loopback.
        seen: paths that the server was asked for.
        names: what the broker's resolver was asked for.
        log: the broker's audit log.
    """

    box: Box
    port: int
    seen: list[str]
    names: Names
    log: Path
    broker: Broker


@asynccontextmanager
async def opened(
    runtime: str, directory: Path, names: Names, port: int
) -> AsyncIterator[tuple[Sandbox, Broker]]:
    """A box with a proxy, as a controller opens it."""
    at = f"{NAME}:{port}"
    spec = LoopSpec(
        worktree=make_worktree(directory / "worktree"),
        limits=LIMITS,
        exec_id="reaching",
        runtime=runtime,
        quota="none",
        egress=EgressOptions(hosts=(at, "*.allowed.example"), private=(at,)),
    )
    (directory / "state").mkdir()
    broker = Broker(
        spec.egress,
        exec_id="reaching",
        tenant="t",
        journal=AuditLog(directory / "state"),
        dialler=Dialler(names),
        open_lanes=("net",),
    )
    async with broker, await Engine.connect(Settings.load()) as engine:
        with Identity.claim(directory / "state") as identity:
            serve = functools.partial(broker.serve, "net")
            host = Host(engine, identity, lane="net", serve=serve)
            async with open_box(host, spec) as sandbox:
                yield sandbox, broker


@pytest.fixture(scope="module")
def reach(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reach]:
    """One box a runtime."""
    directory = tmp_path_factory.mktemp(runtime)
    seen: list[str] = []
    handler = type("Handler", (Counting,), {"seen": seen})
    names = Names()
    names.answers[NAME] = "127.0.0.1"
    names.answers["private.allowed.example"] = "127.0.0.1"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        port = int(server.server_address[1])
        with LoopThread() as loop_thread:
            sandbox, broker = loop_thread.enter(opened(runtime, directory, names, port))
            box = Box(loop_thread, sandbox, directory / "worktree", "docker")
            yield Reach(box, port, seen, names, directory / "state" / "audit.jsonl", broker)
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    """A server on every address of this machine that no box may reach."""
    made = Listener()
    yield made
    made.close()


@pytest.mark.statement("E1", "E2", "E3", "E4", "E5")
def test_a_box_that_may_reach_a_server_has_no_network(reach: Reach, listener: Listener) -> None:
    """Past the proxy there is nothing: no interface, no address, no name, and no packet."""
    word = secrets.token_hex(8)
    sniffer = Sniffer(word)
    before = listener.count()
    try:
        own_query(word)
        given = targets(listener, f"{word}.attacker.test")
        check_everything(probe(reach.box, f"{LOOK}\ntell(look({given!r}))", timeout=60))
    finally:
        found = sniffer.close()
    assert listener.count() == before
    assert found, "the sniffer sees the query of this test"
    assert not [packet for packet in found if b"attacker" in packet]


@pytest.mark.statement("F1", "F2", "F3", "E2", "E3")
def test_the_proxy_reaches_what_is_named_and_nothing_else(reach: Reach, listener: Listener) -> None:
    """One answer of the server; of all else 403, no packet, no query, nobody met."""
    word = secrets.token_hex(8)
    port = listener.port
    addresses = [*METADATA, *GATEWAYS, *host_addresses(), "127.0.0.1", "::1", "2130706433"]
    others = [*NAMES, f"{word}.attacker.test", f"{NAME}.attacker.test", "private.allowed.example"]
    code = f"""{PROXY}
tell({{
    "allowed": get({NAME!r}, {reach.port}, {PATH!r}),
    "addresses": [get(one, {port})[:2] + connect(one, 443)[:1] for one in {addresses!r}],
    "names": [get(one, 80)[:2] + connect(one, 443)[:1] for one in {others!r}],
    "port": get({NAME!r}, {port})[:2],
}})"""
    sniffer = Sniffer(word)
    before = listener.count()
    reach.names.asked.clear()
    try:
        own_query(word)
        seen = probe(reach.box, code, timeout=60)
    finally:
        found = sniffer.close()
    assert found, "the sniffer sees the query of this test"
    assert seen["allowed"] == [200, None, "hello"]
    assert reach.seen.count(PATH) == 1
    assert {tuple((one[0], one[2])) for one in seen["addresses"]} == {(403, 403)}
    assert {tuple((one[0], one[2])) for one in seen["names"]} == {(403, 403)}
    assert seen["port"][0] == 403
    assert listener.count() == before
    assert set(reach.names.asked) == {NAME, "private.allowed.example"}
    assert not [packet for packet in found if b"attacker" in packet]


@pytest.mark.statement("F15")
def test_what_was_decided_is_in_the_log(reach: Reach) -> None:
    """Each with box, host, port, bytes and verdict; no path, no query string."""
    question = f"?q={secrets.token_hex(8)}"
    code = f"""{PROXY}
tell([get({NAME!r}, {reach.port}, {(PATH + question)!r})[0], get("denied.example", 80)[0]])"""
    assert probe(reach.box, code) == [200, 403]
    # Its lines come about a second after the requests, in their order.
    wait_until(
        lambda: reach.log.exists() and b"denied.example" in reach.log.read_bytes(),
        what="the record",
    )

    lines = [json.loads(line) for line in reach.log.read_text().splitlines()]
    told = [line for line in lines if line.get("host") == NAME and line["verdict"] == "allow"]
    assert told
    assert {one["sandbox"] for one in told} == {reach.box.sandbox.name}
    assert {one["port"] for one in told} == {reach.port}
    assert all(one["down"] >= 5 for one in told)
    (denied,) = [line for line in lines if line.get("host") == "denied.example"]
    assert denied["verdict"] == "deny"
    assert question not in reach.log.read_text()
    assert PATH not in reach.log.read_text()
    assert not AuditLog(reach.log.parent).verify()
