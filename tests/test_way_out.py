"""What is said beside a command's output where its program knew nothing of the box's proxy."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from executor.catalog import load
from executor.egress import Broker
from executor.egress.streams import SocketStream
from executor.model import EgressOptions, Limits
from executor.session import Session
from executor.tool import Surroundings
from executor.tools import way_out, web

CATALOG = load()


@dataclass
class Said:
    """An agent's answer about a command that has ended."""

    data: bytes
    exit_code: int = 1
    value: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.value = {"exit_code": self.exit_code, "timed_out": False}


def around(broker: Broker | None, lane: str = "net") -> Surroundings:
    toolset, box = CATALOG.toolsets["claude-code"], None
    more: dict[str, Any] = {"lane": lane, "roots": (), "box": box, "egress": broker}
    return Surroundings("test", Session(), Limits(), toolset=toolset, **more)


def broker_of(*hosts: str) -> Broker:
    options = EgressOptions(hosts=hosts)
    return Broker(options, exec_id="t", tenant="t", journal=None, open_lanes=("net",))


@pytest.mark.parametrize(
    ("output", "mend"),
    [
        (b"curl: (6) Could not resolve host: a.example", "an option or setting"),
        (b"E: Temporary failure resolving 'a.example'", "an option or setting"),
        (b"socket.gaierror: [Errno -3] Temporary failure in name resolution", "an option"),
        (b"dial tcp: lookup a.example: no such host", "an option"),
        (b"error trying to connect: dns error: failed to lookup address information", "an option"),
        (b"wget: bad address 'a.example'", "an option"),
        (b"Error: getaddrinfo EAI_AGAIN a.example", "NODE_USE_ENV_PROXY"),
        (b"{ code: 'ENOTFOUND', syscall: 'getaddrinfo' }", "NODE_USE_ENV_PROXY"),
        (b"java.net.UnknownHostException: a.example", "-Dhttps.proxyHost=127.0.0.1"),
        (b"Caused by: java.nio.channels.UnresolvedAddressException", "-Dhttps.proxyPort=3128"),
        (b"ssh: Could not resolve hostname a.example: Name or service not known", "ssh can't"),
    ],
)
def test_a_program_that_looks_names_up_itself_is_led_to_the_broker(
    output: bytes, mend: str
) -> None:
    """A bare DNS failure gets one sentence with the proxy and what that client needs."""
    for code in (1, 0):  # `npm install | tail` ends well, too
        (hint,) = way_out.hints(around(broker_of("a.example")), Said(b"x\n" + output, code), 1.0)
        assert "http://127.0.0.1:3128" in hint
        assert "the broker does" in hint
        assert mend in hint


def test_nothing_is_said_where_there_is_no_way_out() -> None:
    """Without egress, and in a lane that has none, a DNS failure stays what it is."""
    said = Said(b"Could not resolve host: a.example")
    assert way_out.hints(around(None), said, 1.0) == []
    assert way_out.hints(around(broker_of("a.example"), "no-net"), said, 1.0) == []
    assert way_out.hints(around(broker_of("a.example")), Said(b"all is well", 0), 1.0) == []


def test_what_the_broker_refused_is_said_with_the_mend() -> None:
    """A failed command's result names the hosts that its box was denied, each once."""
    asyncio.run(_refused())


async def _refused() -> None:
    async with broker_of("a.example") as broker:
        for host in ("b.example", "b.example", *(f"c{number}.example" for number in range(4))):
            near, far = socket.socketpair()
            stream = SocketStream(*await asyncio.open_connection(sock=near))
            reader, writer = await asyncio.open_connection(sock=far)
            writer.write(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
            writer.write_eof()
            async with asyncio.timeout(20):
                await asyncio.gather(broker.serve("net", stream, "box"), reader.read())
            writer.close()
        loop = around(broker)
        hints = way_out.hints(loop, Said(b"could not find a version"), 60.0)
        assert len(hints) == 4
        assert "c3.example:443 is not on the list" in hints[2]
        assert "--egress c3.example" in hints[2]
        assert hints[3] == "the broker refused 2 more hosts"
        assert way_out.hints(loop, Said(b"fine", 0), 60.0) == []
        assert len(way_out.hints(loop, Said(b"CONNECT tunnel failed, response 403", 0), 60.0)) == 4
        assert way_out.hints(around(broker, "no-net"), Said(b"x"), 60.0) == []


def test_what_a_box_reaches_is_told_to_the_model() -> None:
    """The sentence about the sandbox is true for a lane with egress, and for one without."""
    broker = broker_of("a.example", "*.b.example", "c.example:8443")
    assert way_out.network(around(None, "no-net")) == "has no network"
    assert way_out.network(around(broker, "no-net")) == "has no network"
    said = way_out.network(around(broker))
    assert said.startswith("reaches a.example, *.b.example, c.example:8443 and nothing else")
    many = broker_of(*(f"h{number}.example" for number in range(30)))
    assert "h19.example and 10 more and nothing else" in way_out.network(around(many))


@pytest.mark.parametrize("lane", ["net", "heavy"])
def test_a_lane_that_reaches_nothing_says_so(lane: str) -> None:
    """Whatever it is called; one that has a network of the engine's says no such thing."""
    for broker in (None, broker_of()):
        loop = around(broker, lane)
        assert way_out.network(loop) == "has no network"
        assert way_out.network(replace(loop, is_bridged=True)) == f"is of the lane {lane}"


def test_what_can_be_fetched_is_told_to_the_model() -> None:
    """A broker that lets nobody out is as good as none."""
    nothing = "Nothing outside the sandbox can be reached"
    assert web.about_reach(around(None)).startswith(nothing)
    assert web.about_reach(around(broker_of())).startswith(nothing)
    assert "only the hosts that the user has allowed" in web.about_reach(around(broker_of("a.b")))
