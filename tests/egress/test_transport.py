"""HTTP of the host's own tools: each hop is judged, checked, counted and recorded."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest

from executor.egress import Refused
from executor.errors import Code
from tests.egress.proxying import NAME, OK, certificate, proxy, run, saying, serving

TARGET = "other.example"


def moved(to: str, status: int = 302) -> bytes:
    """A redirect."""
    return f"HTTP/1.1 {status} Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def test_a_page_is_fetched_from_a_host_of_the_list(tmp_path: Path) -> None:
    """Its name resolved by the broker's dialler, its bytes counted, the journal told."""

    async def scenario() -> None:
        seen: list[bytes] = []
        async with serving(saying(OK, seen)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    answer = await client.get(f"http://{NAME}:{server.port}/a?canary=1")
                    assert (answer.status_code, answer.text) == (200, "hi")
                assert made.names.asked == [NAME]
                lines = await made.lines()
                kept = ("sandbox", "lane", "host", "scheme", "verdict", "reason", "count")
                assert [[line[name] for name in kept] for line in lines] == [
                    ["", "", NAME, "http", "allow", "allowed", 1]
                ]
                assert lines[0]["up"] == len(seen[0]) and lines[0]["down"] == len(OK)
                assert "canary" not in made.log.path.read_text()

    run(scenario())


def test_tls_is_verified_with_the_loop_s_certificates(tmp_path: Path) -> None:
    """By name; a server with another certificate is not spoken to."""
    made_for, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made_for, key)

    async def scenario() -> None:
        async with serving(saying(OK), tls) as server:
            url = f"https://{NAME}:{server.port}/"
            hosts = (f"{NAME}:{server.port}", f"{TARGET}:{server.port}")
            private = (NAME, TARGET)
            async with proxy(tmp_path, *hosts, private=private, ca_file=made_for) as made:
                made.names.answers[TARGET] = "127.0.0.1"
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    assert (await client.get(url)).text == "hi"
                    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
                        await client.get(f"https://{TARGET}:{server.port}/")
            async with proxy(tmp_path, *hosts) as made:
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
                        await client.get(url)
                    assert made.broker.used.connections == 0

    run(scenario())


@pytest.mark.statement("F9")
@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://evil.example/", "host_not_allowed"),
        ("http://127.0.0.1:{port}/", "ip_literal"),
        ("http://[::1]:{port}/", "ip_literal"),
        ("http://0x7f.1:{port}/", "ip_literal"),
        ("http://2130706433:{port}/", "ip_literal"),
        ("http://169.254.169.254/latest", "ip_literal"),
        ("http://near.example:{port}/", "address_not_allowed"),
        (f"http://{NAME}:1/", "port_not_allowed"),
        (f"https://{NAME}.evil.example/", "host_not_allowed"),
    ],
)
def test_a_redirect_is_judged_as_any_request(tmp_path: Path, location: str, reason: str) -> None:
    """To a private address, or one that is not on the list, it does not lead."""

    async def scenario() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(moved(location.format(port=server.port)))

        async with serving(answer) as server:
            hosts = (f"{NAME}:{server.port}", f"near.example:{server.port}")
            async with proxy(tmp_path, *hosts) as made:
                made.names.answers["near.example"] = "127.0.0.1"
                transport = made.broker.transport()
                async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
                    with pytest.raises(Refused) as caught:
                        await client.get(f"http://{NAME}:{server.port}/")
                assert caught.value.reason == reason
                assert caught.value.code is Code.NETWORK_DENIED
                assert (caught.value.details or {})["reason"] == reason
                assert server.connections == 1
                lines = await made.lines()
                assert [line["verdict"] for line in lines] == ["allow", "deny"]

    run(scenario())


def test_what_was_approved_for_a_call_is_just_that(tmp_path: Path) -> None:
    """This host and port, and never a private address."""

    async def scenario() -> None:
        async with serving(saying(OK)) as server, serving(saying(OK)) as other:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                made.names.answers[TARGET] = "127.0.0.1"
                approved = [(TARGET, other.port), (NAME, other.port)]
                transport = made.broker.transport(granted=approved)
                async with httpx.AsyncClient(transport=transport) as client:
                    assert (await client.get(f"http://{NAME}:{server.port}/")).text == "hi"
                    for host, reason in (
                        (TARGET, "address_not_allowed"),
                        (NAME, "address_not_allowed"),
                    ):
                        with pytest.raises(Refused) as caught:
                            await client.get(f"http://{host}:{other.port}/")
                        assert caught.value.reason == reason
                    with pytest.raises(Refused) as caught:
                        await client.get(f"http://{TARGET}:1/")
                    assert caught.value.reason == "host_not_allowed"
                assert other.connections == 0

    run(scenario())


def test_a_list_that_changes_ends_what_tools_have_open(tmp_path: Path) -> None:
    """A request that waits for its answer fails, and the next is refused."""
    dialled = asyncio.Event()

    async def hanging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        dialled.set()
        await reader.read()

    async def scenario() -> None:
        async with serving(hanging) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    going = asyncio.create_task(client.get(f"http://{NAME}:{server.port}/"))
                    await dialled.wait()
                    assert made.broker.used.connections == 1
                    made.broker.change(["files.example"])
                    with pytest.raises(httpx.TransportError):
                        await going
                    with pytest.raises(Refused):
                        await client.get(f"http://{NAME}:{server.port}/")
                assert made.broker.used.connections == 0

    run(scenario())


@pytest.mark.statement("F8")
def test_a_tool_can_t_name_another_host_in_its_header(tmp_path: Path) -> None:
    """Whatever headers a model gives it."""

    async def scenario() -> None:
        async with serving(saying(OK)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    for header in ("evil.example", NAME, f"{NAME}:1", "a@b"):
                        with pytest.raises(Refused) as caught:
                            url = f"http://{NAME}:{server.port}/"
                            await client.get(url, headers={"host": header})
                        assert caught.value.reason == "host_mismatch"
                assert server.connections == 0

    run(scenario())


def test_bytes_of_tools_count_as_those_of_boxes(tmp_path: Path) -> None:
    """The quota ends them, too; and a closing broker."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(1 << 14))
            await writer.drain()

    async def scenario() -> None:
        async with serving(endless) as server:
            url = f"http://{NAME}:{server.port}/"
            async with proxy(tmp_path, f"{NAME}:{server.port}", total_bytes="1m") as made:
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    with pytest.raises(httpx.ReadError):
                        await client.get(url)
                    with pytest.raises(Refused) as caught:
                        await client.get(url)
                    assert caught.value.reason == "byte_quota"
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                transport = made.broker.transport()
                async with httpx.AsyncClient(transport=transport) as client:
                    async with client.stream("GET", url) as answer:
                        parts = answer.aiter_raw()
                        assert await anext(parts)
                        await made.broker.aclose()
                        with pytest.raises(httpx.TransportError):
                            while True:
                                await anext(parts)

    run(scenario())


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (None, Code.NETWORK_ERROR, "name_not_found"),
        ("127.0.0.1", Code.NETWORK_ERROR, "connection_refused"),
    ],
)
def test_what_fails_on_the_way_is_told_from_what_is_denied(
    tmp_path: Path, answer: str | None, code: Code, reason: str
) -> None:
    """With the code that a call reports."""

    async def scenario() -> None:
        async with serving(saying(OK)) as server:
            port = server.port
        async with proxy(tmp_path, f"{NAME}:{port}") as made:
            made.names.answers[NAME] = answer
            async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                with pytest.raises(Refused) as caught:
                    await client.get(f"http://{NAME}:{port}/")
            assert (caught.value.code, caught.value.reason) == (code, reason)
            assert made.broker.used.connections == 0

    run(scenario())


def test_a_loop_without_egress_gives_its_tools_none(tmp_path: Path) -> None:
    """And what is neither http nor https is none of it."""

    async def scenario() -> None:
        async with proxy(tmp_path) as made:
            async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                with pytest.raises(Refused) as caught:
                    await client.get("http://files.example/")
                assert caught.value.reason == "no_egress"
                with pytest.raises(httpx.UnsupportedProtocol):
                    await client.get("ftp://files.example/")

    run(scenario())


def test_the_environment_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the host's own does not get the requests."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario() -> None:
        async with serving(saying(OK)) as server:
            async with proxy(tmp_path, f"{NAME}:{server.port}") as made:
                async with httpx.AsyncClient(transport=made.broker.transport()) as client:
                    assert (await client.get(f"http://{NAME}:{server.port}/")).text == "hi"

    run(scenario())
