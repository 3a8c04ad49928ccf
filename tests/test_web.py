"""Fetching from the web: against real servers that answer, lie, lead astray and never end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from executor.catalog import load
from executor.egress.broker import Broker
from executor.egress.dialling import Dialler
from executor.egress.secrets import Secrets
from executor.errors import Code, ToolError
from executor.messages import MessagesApi
from executor.model import EgressOptions, Limits, LoopSpec, Secret
from executor.permissions import Verdict, judge
from executor.rules import Rules
from executor.session import Session
from executor.tool import Context, Outcome, SecondModel, Surroundings, Tool, Web
from executor.tools import bodies, fetching, web
from executor.toolsets import names, registry
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.egress.proxying import certificate
from tests.local_box import open_local_box
from tests.messages_server import KEY, Say, Silent, serving
from tests.web_server import Answer, Asked, Site, redirect, reply, site

CATALOG = load()
HOST, OTHER = "one.example", "two.example"


@dataclass
class Lookups:
    """A name server, as the dialler asks one: every name leads to this machine but one."""

    asked: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        if name.startswith("nowhere."):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ["127.0.0.1"]


class Ready:
    """A box that is there already."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    async def ready(self) -> None:
        """It is."""

    async def request(self, *given: Any, **more: Any) -> Any:
        """Of the agent."""
        return await self._sandbox.request(*given, **more)


@dataclass
class World:
    """A loop's surroundings, and servers on this machine.

    Attributes:
        loop: the surroundings.
        one, two: servers; the names `HOST` and `OTHER` lead to either, by their ports.
        names: the name server.
    """

    loop: Surroundings
    one: Site
    two: Site
    names: Lookups

    def url(self, path: str = "/", host: str = HOST) -> str:
        """An address of the first server, or of the second by its name."""
        port = self.two.port if host == OTHER else self.one.port
        return f"http://{host}:{port}{path}"

    def tool(self, name: str = "web_fetch", **more: Any) -> tuple[Tool, Context]:
        """A tool of the loop's toolset, and a context for one call."""
        toolset = "claude-code" if name[0].isupper() else "standard"
        found = registry(toolset, CATALOG).get(name)
        assert found is not None
        return found, Context("1", found.entry, self.loop, tool=name, **more)

    async def fetch(self, url: str, name: str = "web_fetch", **given: Any) -> Outcome:
        """One call, as the pipeline makes it once it is permitted."""
        approved = {"is_approved": given.pop("is_approved", False)}
        tool, context = self.tool(name, **approved)
        arguments = tool.parse({"url": url, **given})
        if tool.prepare is not None:
            await tool.prepare(context, arguments)
        return await tool.run(context, arguments)

    async def refused(self, url: str, **given: Any) -> ToolError:
        """The error of one call."""
        with pytest.raises(ToolError) as raised:
            await self.fetch(url, **given)
        return raised.value

    async def verdict(self, mode: str, url: str, rules: Any = None, **given: Any) -> Any:
        """What the loop's mode and rules say about a call."""
        tool, context = self.tool()
        known = names(CATALOG)
        context.session.mode, context.session.rules = (
            mode,
            Rules.parse(**(rules or {}), known=known),
        )
        return await judge(tool, tool.parse({"url": url, **given}), context)


@contextlib.asynccontextmanager
async def world(
    one: dict[str, Answer] | None = None,
    two: dict[str, Answer] | None = None,
    *,
    hosts: tuple[str, ...] | None = None,
    tls: ssl.SSLContext | None = None,
    has_egress: bool = True,
    secrets: Callable[[int], Secrets] | None = None,
    **more: Any,
) -> AsyncIterator[World]:
    """A loop that may reach both servers by their names, unless it is told otherwise."""
    lookups = Lookups()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(site(one or {}, tls))
        second = await stack.enter_async_context(site(two or {}))
        listed = (f"{HOST}:{first.port}", f"{OTHER}:{second.port}")
        options = EgressOptions(
            hosts=listed if hosts is None else hosts,
            private=tuple(one for one in listed if hosts is None or one in hosts),
            ca_file=more.pop("ca_file", None),
        )
        broker = Broker(
            options,
            exec_id="test",
            tenant="default",
            journal=None,
            secrets=secrets(first.port) if secrets is not None else None,
            dialler=Dialler(lookups),
        )
        await stack.enter_async_context(broker)
        loop = Surroundings(
            exec_id="test",
            session=Session(),
            limits=Limits(),
            lane="net",
            toolset=CATALOG.toolsets["standard"],
            roots=(),
            box=Ready(more.pop("box", None)),
            egress=broker if has_egress else None,
            **more,
        )
        yield World(loop, first, second, lookups)


def run(main: Coroutine[Any, Any, None]) -> None:
    """To its end, and no longer than a test should take."""
    asyncio.run(asyncio.wait_for(main, 100))


# ─── what is shown ──────────────────────────────────────────────────────────────────


def test_text_is_shown_as_it_is_with_its_status() -> None:
    """Decisions row 49: a first line, then the text; status, headers, body, url_final as data."""

    async def main() -> None:
        async with world({"/a": reply(b"x: 1\n", "text/yaml", X_Note="n")}) as at:
            outcome = await at.fetch(at.url("/a"))
            assert outcome.content == f"HTTP 200 OK ({at.url('/a')}, text/yaml, 5 bytes)\n\nx: 1\n"
            facts = outcome.structured
            assert facts is not None and not outcome.is_error
            assert (facts["status"], facts["body"], facts["url_final"]) == (
                *(200, "x: 1\n"),
                at.url("/a"),
            )
            assert facts["headers"]["x-note"] == "n"
            (asked,) = at.one.asked
            assert asked.headers["host"] == f"{HOST}:{at.one.port}"
            assert asked.headers["accept-encoding"] == "gzip, deflate"

    run(main())


@pytest.mark.parametrize(
    ("answer", "line", "is_error"),
    [
        (reply(b"gone", status=404), "HTTP 404 Not Found", True),
        (reply(b"", status=500), "HTTP 500 Internal Server Error", True),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "HTTP 304 Not Modified", False),
        (reply(b"x", None), "HTTP 200 OK", False),
        (b"HTTP/1.1 299 A\tb\r\nContent-Length: 0\r\n\r\n", "HTTP 299 A\\tb", False),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", "HTTP 200 OK", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + reply(b"x"), "HTTP 200 OK", False),
        (reply(b"x", status=302), "HTTP 302 Found", False),
    ],
)
def test_a_status_of_400_or_more_is_an_error_that_is_shown(
    answer: bytes, line: str, is_error: bool
) -> None:
    """Casebook J86: 304, 500 and no content type; the phrase is that of the status."""

    async def main() -> None:
        async with world({"/": answer}) as at:
            outcome = await at.fetch(at.url())
            assert str(outcome.content).startswith(line)
            assert outcome.is_error is is_error
            assert outcome.code is (Code.EXECUTION_ERROR if is_error else None)

    run(main())


def test_what_is_no_text_is_described() -> None:
    """Type and size, not the bytes."""

    async def main() -> None:
        async with world({"/p": reply(b"\x89PNG\0\1", "image/png")}) as at:
            outcome = await at.fetch(at.url("/p"))
            told = str(outcome.content)
            assert "image/png, 6 bytes" in told and "not text" in told
            assert outcome.structured is not None and outcome.structured["body"] == ""

    run(main())


HTML = (
    "<!doctype html><title>T\n t</title><h1>Über</h1><script>alert(1)</script><p>a <a "
    'href="/x">link</a> &amp; <b>bold</b></p><ul><li>one<li>two</ul><table><tr><th>k<th>v'
    "<tr><td>1<td>2</table>"
)
MARKDOWN = (
    "[title: T t]\n\n# Über\n\na [link](http://{at}/x) & **bold**\n\n- one\n- two\n\n"
    "| k | v |\n| --- | --- |\n| 1 | 2 |"
)


def test_html_becomes_markdown_in_the_box(tmp_path: Path) -> None:
    """Decisions row 45: by the agent's process; links are whole, scripts are gone."""

    async def main() -> None:
        (tmp_path / "root").mkdir()
        (tmp_path / "scratch").mkdir()
        async with open_local_box(tmp_path / "root", tmp_path / "scratch") as box:
            answers: dict[str, Answer] = {
                "/": reply(HTML.encode(), "text/html; charset=utf-8"),
                "/deep": reply(b"<div>" * 20_000 + b"in" + b"</div>" * 20_000, "text/html"),
            }
            async with world(answers, box=box) as at:
                outcome = await at.fetch(at.url())
                told = str(outcome.content).partition("\n")[2]
                assert told == MARKDOWN.format(at=f"{HOST}:{at.one.port}")
                assert outcome.structured is not None and outcome.structured["body"] == HTML
                deep = await at.fetch(at.url("/deep"))
                assert str(deep.content).endswith("\n\nin")

    run(main())


def test_html_is_shown_where_nothing_can_read_it(tmp_path: Path) -> None:
    """Without the library, or when it takes too much memory: the source, and why."""

    class Without:
        """A box whose runtime has no library."""

        async def request(self, *_: Any, **__: Any) -> Any:
            """Of the agent."""
            raise ToolError(Code.UNSUPPORTED, "There is no reader.")

    async def main() -> None:
        async with world({"/": reply(b"<p>x", "text/html")}, box=Without()) as at:
            told = str((await at.fetch(at.url())).content)
            assert told.endswith("\n[shown as HTML: There is no reader]\n\n<p>x")
        (tmp_path / "root").mkdir()
        (tmp_path / "scratch").mkdir()
        async with open_local_box(tmp_path / "root", tmp_path / "scratch") as box:
            async with world({"/": reply(b"<p>x", "text/html")}, box=box) as at:
                at.loop = replace(at.loop, limits=Limits(memory=16 << 20))
                told = str((await at.fetch(at.url())).content)
                assert "\n[shown as HTML: The page is too much for its reader (" in told
                assert told.endswith("\n\n<p>x")

    run(main())


def test_links_of_a_page_start_from_its_base(tmp_path: Path) -> None:
    """`<base>`, relative to the page, the first with an address; one of no web is none."""

    async def main() -> None:
        (tmp_path / "root").mkdir()
        (tmp_path / "scratch").mkdir()
        link = "<a href=a>n</a>"
        bases = {
            "<head><base href='http://x.example/d/'></head>": "http://x.example/d/a",
            "<head><base target=_top><base href='/e/'></head>": "http://{at}/e/a",
            "<base href='javascript:1'>": "http://{at}/p/a",
            "<base href='http://[x'>": "http://{at}/p/a",
            "": "http://{at}/p/a",
        }
        async with open_local_box(tmp_path / "root", tmp_path / "scratch") as box:
            async with world(box=box) as at:
                for base, whole in bases.items():
                    at.one.answers["/p/q"] = reply(f"{base}{link}".encode(), "text/html")
                    told = str((await at.fetch(at.url("/p/q"))).content)
                    expected = whole.format(at=f"{HOST}:{at.one.port}")
                    assert told.endswith(f"\n\n[n]({expected})")

    run(main())


def test_a_body_that_is_cut_as_data_is_said_to_be() -> None:
    """The text fits the tool's limit where the body does not; its whole size is told."""

    class Reads:
        """A box whose reader makes a word of each page."""

        async def request(self, *_: Any, **__: Any) -> Any:
            """Of the agent."""
            return Read()

    @dataclass
    class Read:
        """What it says."""

        value: dict[str, Any] = field(default_factory=lambda: {"title": "", "is_cut": False})
        data: bytes = b"word"

    async def main() -> None:
        long = b"<p>" + b"x" * 600_000
        answers: dict[str, Answer] = {
            "/": reply(long, "text/html"),
            "/short": reply(b"<p>x", "text/html"),
        }
        async with world(answers, box=Reads()) as at:
            outcome = await at.fetch(at.url())
            assert str(outcome.content).endswith("\n\nword") and outcome.structured is not None
            assert len(outcome.structured["body"]) < len(long)
            assert (outcome.truncated, outcome.total_bytes) == (True, len(long))
            outcome = await at.fetch(at.url("/short"))
            assert (outcome.truncated, outcome.total_bytes) == (False, None)

    run(main())


# ─── bodies ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "kind", "expected"),
    [
        (b"\x82\xa0\x82\xa2", "text/html; charset=Shift_JIS", "あい"),
        (b"\x82\xa0\x82\xa2", 'text/plain; charset="x-sjis"', "あい"),
        (b'<meta charset="shift_jis">\x82\xa0', "text/html", '<meta charset="shift_jis">あ'),
        (
            b"<meta content='text/html; charset=koi8-r'>\xc1",
            "text/html",
            "<meta content='text/html; charset=koi8-r'>\u0430",
        ),
        (b"\xef\xbb\xbf\xc3\xa9", "text/plain; charset=iso-8859-1", "é"),
        (b"\xff\xfea\0b\0", "text/plain", "ab"),
        (b"\xfe\xff\0a\0b", "text/plain; charset=utf-8", "ab"),
        (b"caf\xe9 \x80", "text/plain", "café €"),
        (b"\xe4\xbd\xa0", "text/plain", "你"),
        (b"a\xffb", "text/plain; charset=utf-8", "a\ufffdb"),
        (b"x", "text/plain; charset=idna", "x"),
        (b"\xb0\xa1", "text/plain; charset=EUC-KR", "가"),
        (b"{}", "application/vnd.api+json", "{}"),
        (b"<html>\xc3\xa9", "", "<html>é"),
        (b"plain", "application/octet-stream", "plain"),
        (b"a\0b", "text/plain", None),
        (b"\xff\0", "", None),
        (b"x", "application/pdf", None),
    ],
)
def test_charsets(data: bytes, kind: str, expected: str | None) -> None:
    """By mark, header, page, bytes, in this order; what is damaged is replaced."""
    assert bodies.content_of(data, kind, is_cut=False).text == expected


def test_half_a_character_at_a_cut_is_left_out() -> None:
    """It is not damaged: the rest of it was not taken."""
    data = "aé".encode()[:-1]
    assert bodies.content_of(data, "text/plain", is_cut=True).text == "a"
    assert bodies.content_of(data, "text/plain", is_cut=False).text == "a\ufffd"


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(b"abc" * 1000)),
        ("x-gzip", gzip.compress(b"abc" * 500) + gzip.compress(b"abc" * 500)),
        ("deflate", zlib.compress(b"abc" * 1000)),
        ("deflate", _raw_deflate(b"abc" * 1000)),
        ("deflate, gzip", gzip.compress(zlib.compress(b"abc" * 1000))),
        ("identity", b"abc" * 1000),
        ("", b"abc" * 1000),
    ],
    ids=["gzip", "x-gzip", "zlib", "deflate", "deflate, gzip", "identity", "none"],
)
@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
def test_codings_are_taken_off_wherever_they_are_cut(coding: str, packed: bytes, cut: int) -> None:
    """Both kinds of deflate, several gzip members, two codings."""
    unpacker = bodies.Unpacker(coding)
    pieces = [packed[at : at + cut] for at in range(0, len(packed), cut)]
    data = b"".join(part for piece in pieces for part in unpacker.feed(piece))
    unpacker.end()
    assert data == b"abc" * 1000


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zlib"])
@pytest.mark.parametrize("more", [-1, 0, 1, 2, 100, 257, 258, 259, 1000, 65_536, 65_537])
def test_bodies_of_about_a_piece_are_whole(coding: str, more: int) -> None:
    """What has been taken of the packed body may have more in it than one piece that came out."""
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "deflate": _raw_deflate,
        "zlib": zlib.compress,
    }
    data = b"a" * ((1 << 16) + more)
    unpacker = bodies.Unpacker("gzip" if coding == "gzip" else "deflate")
    assert b"".join(unpacker.feed(packers[coding](data))) == data
    unpacker.end()


@pytest.mark.parametrize("coding", ["br", "gzip, gzip, gzip", "zstd"])
def test_other_codings_are_not_taken_off(coding: str) -> None:
    """Nor more than two."""
    with pytest.raises(bodies.Unknown):
        bodies.Unpacker(coding)


def test_a_body_packed_otherwise_is_described() -> None:
    """It is said, and the bytes are not shown."""

    async def main() -> None:
        async with world({"/": reply(b"zz", Content_Encoding="br")}) as at:
            assert "packed as br" in str((await at.fetch(at.url())).content)

    run(main())


async def endless(_: Asked, writer: asyncio.StreamWriter) -> None:
    """A body without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        writer.write(b"0123456789abcdef" * 4096)
        await writer.drain()


async def bomb(_: Asked, writer: asyncio.StreamWriter) -> None:
    """A body that swells to a gibibyte and more."""
    packer = zlib.compressobj(9, wbits=31)
    piece = bytes(1 << 20)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n")
    for _number in range(1024):
        writer.write(packer.compress(piece))
        await writer.drain()


async def empty_members(_: Asked, writer: asyncio.StreamWriter) -> None:
    """A packed body that never ends and holds nothing."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\n")
    while True:
        writer.write(gzip.compress(b"") * 2000)
        await writer.drain()


async def packed_twice(_: Asked, writer: asyncio.StreamWriter) -> None:
    """Every kilobyte swells to a megabyte in between, and comes to nothing."""
    packed = gzip.compress(gzip.compress(b"") * 5000) * 100
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\n\r\n")
    while True:
        writer.write(packed)
        await writer.drain()


@pytest.mark.parametrize("answer", [endless, bomb, empty_members, packed_twice])
def test_a_body_without_an_end_is_cut_in_bounded_memory(answer: Answer) -> None:
    """Casebook J86: it stops at the cap, says so, and takes less than 64 MiB."""

    async def main() -> None:
        async with world({"/": answer}) as at:
            tracemalloc.start()
            outcome = await at.fetch(at.url(), timeout=90)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert outcome.truncated and "more than" in str(outcome.content).partition("\n")[0]
            assert peak < 64 << 20

    run(main())


def test_what_unpacks_to_nothing_keeps_nobody_waiting() -> None:
    """Each step of it can be the last: the loop goes on between them, and the work is counted."""
    packer = zlib.compressobj(9, wbits=31)
    packed = packer.compress(gzip.compress(b"") * 5000) + packer.flush()
    unpacker = bodies.Unpacker("gzip, gzip")
    steps = [len(piece) for piece in unpacker.feed(packed)]
    assert len(steps) > 5000 and set(steps) == {0}
    assert unpacker.work > 5000 * len(gzip.compress(b""))


# ─── replies that are none ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "malformed reply"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx", "malformed reply"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "malformed reply"),
        (b"<html>HTTP/0.9", "malformed reply"),
        (b"", "malformed reply"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 40_000 + b"\r\n", "malformed reply"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "malformed reply"),
        (b"HTTP/1.1 200 OK\r\nX y: z\r\n\r\n", "malformed reply"),
        (reply(b"nothing packed", Content_Encoding="gzip"), "packed body is damaged"),
        (reply(gzip.compress(b"x" * 99, mtime=0)[:-9], Content_Encoding="gzip"), "ends too early"),
    ],
)
def test_malformed_replies_are_errors_with_the_reason(answer: bytes, expected: str) -> None:
    """NETWORK_ERROR that names host and fault; never a page."""

    async def main() -> None:
        async with world({"/": answer}) as at:
            error = await at.refused(at.url())
            assert error.code is Code.NETWORK_ERROR
            assert expected in str(error) and HOST in str(error)

    run(main())


async def endless_headers(_: Asked, writer: asyncio.StreamWriter) -> None:
    """A head without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: b\r\n" * 100)
        await writer.drain()


async def endless_informations(_: Asked, writer: asyncio.StreamWriter) -> None:
    """Answers that are none yet."""
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)
        await writer.drain()


async def silent(_: Asked, writer: asyncio.StreamWriter) -> None:
    """No answer."""
    await writer.wait_closed()


async def dripping(_: Asked, writer: asyncio.StreamWriter) -> None:
    """A body that stops before its end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    await writer.drain()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("answer", "code", "expected"),
    [
        (endless_headers, Code.NETWORK_ERROR, "malformed reply"),
        (endless_informations, Code.TIMEOUT, "it did not answer"),
        (silent, Code.TIMEOUT, "it did not answer"),
        (dripping, Code.TIMEOUT, "it went on sending after 3 bytes"),
    ],
)
def test_time_is_bounded_and_the_error_says_how_far_it_came(
    answer: Answer, code: Code, expected: str
) -> None:
    """A server costs no more than the time of the call."""

    async def main() -> None:
        async with world({"/": answer}) as at:
            # How far it comes in so short a time is the machine's matter: longer, if need be.
            for seconds in (0.3, 3, 20):
                error = await at.refused(at.url(), timeout=seconds)
                if error.code is code and expected in str(error):
                    break
            assert error.code is code and expected in str(error)

    run(main())


def test_kinds_of_failure_are_told_apart(tmp_path: Path) -> None:
    """Casebook J84: no such name, refused, not allowed, TLS."""
    made_for, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made_for, key)

    async def main() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            closed = free.getsockname()[1]
            hosts = ("nowhere.example", f"{HOST}:{closed}")
            async with world(hosts=hosts) as at:
                missing = await at.refused("http://nowhere.example/")
                denied = await at.refused("http://other.example/")
            assert (missing.code, denied.code) == (Code.NETWORK_ERROR, Code.NETWORK_DENIED)
            assert "does not exist" in str(missing)
            assert "--egress other.example" in str(denied) and "list of hosts" in str(denied)
        async with world(tls=tls) as at:
            error = await at.refused(at.url().replace("http:", "https:"))
            assert error.code is Code.NETWORK_ERROR and "TLS failed" in str(error)
        async with world() as at:
            at.one.answers["/"] = reply(b"x")
            gone = at.url()
        async with world(hosts=(f"{HOST}:{at.one.port}",)) as later:
            # Nobody has said that its address may be private.
            private = await later.refused(gone)
            assert private.code is Code.NETWORK_DENIED and "--egress-private" in str(private)

    run(main())


# ─── where it is led ────────────────────────────────────────────────────────────────


@pytest.mark.statement("F9")
@pytest.mark.parametrize(
    ("to", "code", "expected"),
    [
        ("http://unlisted.example/", Code.NETWORK_DENIED, "--egress unlisted.example"),
        ("http://169.254.169.254/latest", Code.NETWORK_DENIED, "IP address"),
        ("http://10.0.0.1/", Code.NETWORK_DENIED, "IP address"),
        ("http://2130706433/", Code.NETWORK_DENIED, "IP address"),
        ("http://[::ffff:127.0.0.1]/", Code.NETWORK_DENIED, "IP address"),
        ("http://localhost:{port}/", Code.NETWORK_DENIED, "the sandbox itself"),
        ("http://127.0.0.1:{port}/", Code.NETWORK_DENIED, "the sandbox itself"),
        ("http://127.9.9.9/", Code.NETWORK_DENIED, "the sandbox itself"),
        ("http://[::1]/", Code.NETWORK_DENIED, "the sandbox itself"),
        ("http://x.localhost/", Code.NETWORK_DENIED, "the sandbox itself"),
        ("http://user:pass@two.example/", Code.NETWORK_ERROR, "a name or a password"),
        ("file:///etc/passwd", Code.NETWORK_ERROR, "none of http or https"),
        ("http://a b/", Code.NETWORK_ERROR, "redirects"),
        ("https:////][a", Code.NETWORK_ERROR, "which is no address"),
    ],
)
def test_no_redirect_leads_where_a_call_may_not_go(to: str, code: Code, expected: str) -> None:
    """Each hop is judged like a call; and nobody outside leads into the sandbox."""

    async def main() -> None:
        async with world() as at:
            at.one.answers["/"] = redirect(to.replace("{port}", str(at.two.port)))
            error = await at.refused(at.url())
            assert error.code is code and expected in str(error)
            assert at.two.asked == [] and at.names.asked == [HOST]

    run(main())


@pytest.mark.statement("F9")
def test_a_redirect_to_a_host_whose_address_is_private_fails() -> None:
    """It is listed, and nobody has said that it may be in the own network."""

    async def main() -> None:
        async with world({"/": redirect("http://near.example/")}) as first:
            hosts = (f"{HOST}:{first.one.port}", "near.example")
            private = (f"{HOST}:{first.one.port}",)
            broker = Broker(
                EgressOptions(hosts=hosts, private=private),
                exec_id="test",
                tenant="default",
                journal=None,
                dialler=Dialler(first.names),
            )
            async with broker:
                first.loop = replace(first.loop, egress=broker)
                error = await first.refused(first.url())
            assert error.code is Code.NETWORK_DENIED
            assert "near.example" in str(error) and f"redirected there by {HOST}" in str(error)

    run(main())


def test_redirects_are_followed_as_browsers_do() -> None:
    """Relative ones too; 301, 302 and 303 make a GET of a POST, 307 and 308 do not."""

    async def main() -> None:
        async with world({"/end": reply(b"there")}) as at:
            for status, method in ((301, "GET"), (302, "GET"), (303, "GET"), (307, "POST")):
                at.one.answers["/a/b"] = redirect("../end?x#part", status)
                outcome = await at.fetch(at.url("/a/b"), method="POST", body="data")
                assert outcome.structured is not None
                assert outcome.structured["url_final"] == at.url("/end?x#part")
                last = at.one.asked[-1]
                assert last.line == f"{method} /end?x HTTP/1.1"
                assert last.body == (b"data" if method == "POST" else b"")
                assert ("content-type" in last.headers) is (method == "POST")

    run(main())


def test_credentials_go_to_no_other_host() -> None:
    """Neither they nor any header but the harmless ones; on the same host they stay."""

    async def main() -> None:
        async with world(two={"/x": reply(b"two")}) as at:
            at.one.answers |= {"/": redirect("/same"), "/same": redirect(at.url("/x", OTHER))}
            headers = {"Authorization": "Bearer s", "Cookie": "c=1", "X-Key": "k", "Accept": "a/b"}
            await at.fetch(at.url(), headers=headers)
            assert at.one.asked[1].headers["authorization"] == "Bearer s"
            (asked,) = at.two.asked
            assert asked.headers["accept"] == "a/b"
            assert not {"authorization", "cookie", "x-key"} & asked.headers.keys()

    run(main())


@pytest.mark.parametrize("status", [307, 308])
def test_a_post_is_not_sent_on_to_another_host(status: int) -> None:
    """Decisions row 49."""

    async def main() -> None:
        async with world(two={"/": reply(b"two")}) as at:
            at.one.answers["/"] = redirect(at.url("/", OTHER), status)
            error = await at.refused(at.url(), method="POST", body="secret")
            assert error.code is Code.NETWORK_DENIED and "redirects the POST" in str(error)
            assert at.two.asked == []

    run(main())


def test_redirects_end() -> None:
    """After ten of them the eleventh is an error."""

    async def main() -> None:
        async with world({"/": redirect("/")}) as at:
            error = await at.refused(at.url())
            assert error.code is Code.NETWORK_ERROR and "after 10 redirects" in str(error)
            assert len(at.one.asked) == fetching.MOST_HOPS + 1

    run(main())


def test_no_redirect_leads_from_https_to_http(tmp_path: Path) -> None:
    """What was asked for in secret is not answered in the clear."""
    made_for, key = certificate(tmp_path, HOST)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made_for, key)

    async def main() -> None:
        answers: dict[str, Answer] = {"/ok": reply(b"private")}
        async with world(answers, two={"/": reply(b"x")}, tls=tls, ca_file=made_for) as at:
            secure = at.url("/ok").replace("http:", "https:")
            assert str((await at.fetch(secure)).content).endswith("\n\nprivate")
            at.one.answers["/"] = redirect(at.url("/", OTHER))
            error = await at.refused(at.url().replace("http:", "https:"))
            assert error.code is Code.NETWORK_DENIED and "from https to plain http" in str(error)
            assert at.two.asked == []

    run(main())


def test_rules_hold_for_hosts_that_a_redirect_leads_to() -> None:
    """One that denies, and one that would ask, in every mode."""

    async def main() -> None:
        async with world(two={"/": reply(b"two")}) as at:
            at.one.answers["/"] = redirect(at.url("/", OTHER))
            for some in ("deny", "ask"):
                rules = {some: [f"web_fetch(domain:{OTHER})"]}
                at.loop.session.rules = Rules.parse(**rules, known=names(CATALOG))
                error = await at.refused(at.url())
                assert error.code is Code.PERMISSION_DENIED and OTHER in str(error)
            assert at.two.asked == []

    run(main())


# ─── what may be asked for ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"url": "ftp://x.org/"}, "none of http or https"),
        ({"url": "x.org"}, "none of http or https"),
        ({"url": "http:///x"}, "none of http or https"),
        ({"url": "http://u:p@x.org/"}, "a name or a password"),
        ({"url": "http://x.org:99999/"}, "no port"),
        ({"url": "http://x.org:0/"}, "no port"),
        ({"url": "http://exa mple/"}, "no host name"),
        ({"url": "http://x.org/" + "a" * 9000}, "longer than"),
        ({"body": "x"}, "body is for POST"),
        ({"timeout": 601}, "at most 600 is allowed"),
        ({"headers": {"Host": "evil"}}, "Host is made here"),
        ({"headers": {"Content-Length": "5"}}, "Content-Length is made here"),
        ({"headers": {"transfer-encoding": "chunked"}}, "transfer-encoding is made here"),
        ({"headers": {"Proxy-Authorization": "x"}}, "Proxy-Authorization is made here"),
        ({"headers": {"Connection": "x"}}, "Connection is made here"),
        ({"headers": {"A": "b\r\nC: d"}}, "holds a line end"),
        ({"headers": {"A b": "c"}}, "no name of a header"),
        ({"headers": {"": "c"}}, "no name of a header"),
        ({"headers": {f"A{n}": "b" for n in range(51)}}, "headers are more"),
        ({"method": "POST", "body": "x" * (web.MOST_SENT + 1)}, "at most 1048576 are sent"),
        ({"method": "DELETE"}, "must be one of"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(
    given: dict[str, Any], expected: str
) -> None:
    """Each with what is wrong and which argument it is."""

    async def main() -> None:
        async with world() as at:
            error = await at.refused(**{"url": at.url(), **given})
            assert error.code is Code.INVALID_ARGUMENTS and expected in str(error)
            assert at.one.asked == [] and at.names.asked == []

    run(main())


def test_a_post_sends_its_body_and_headers() -> None:
    """As they are; text where no type is given."""

    async def main() -> None:
        async with world({"/": reply(b"ok")}) as at:
            await at.fetch(at.url(), method="POST", body="é", headers={"X-A": "b"})
            as_json = {"content-type": "application/json"}
            await at.fetch(at.url(), method="POST", body="{}", headers=as_json)
            first, second = at.one.asked
            assert first.body == "é".encode() and first.headers["x-a"] == "b"
            assert first.headers["content-type"] == "text/plain; charset=utf-8"
            assert second.headers["content-type"] == "application/json"

    run(main())


def test_without_egress_nothing_outside_is_reached_and_nobody_is_asked() -> None:
    """Decisions row 50: NETWORK_DENIED at once, naming the host and the option."""

    async def main() -> None:
        async with world(has_egress=False) as at:
            error = await at.refused(at.url(), is_approved=True)
            assert error.code is Code.NETWORK_DENIED and f"--egress {HOST}" in str(error)
        async with world(hosts=()) as at:
            error = await at.refused(at.url(), is_approved=True)
            assert error.code is Code.NETWORK_DENIED
            assert at.names.asked == [] and at.one.asked == []

    run(main())


UNLISTED = "http://unlisted.example:8080/x"


@pytest.mark.parametrize(
    ("mode", "given", "rules", "expected"),
    [
        ("default", {}, {}, Verdict.ALLOW),
        ("default", {"method": "POST"}, {}, Verdict.ASK),
        ("default", {"url": UNLISTED}, {}, Verdict.ASK),
        ("default", {"url": UNLISTED}, {"allow": ["web_fetch(domain:*.example)"]}, Verdict.ALLOW),
        ("default", {}, {"deny": [f"web_fetch(domain:{HOST})"]}, Verdict.DENY),
        ("default", {}, {"ask": [f"web_fetch(domain:{HOST})"]}, Verdict.ASK),
        ("acceptEdits", {"method": "POST"}, {}, Verdict.ASK),
        ("plan", {}, {}, Verdict.ALLOW),
        ("plan", {"method": "POST"}, {}, Verdict.DENY),
        ("plan", {"url": UNLISTED}, {}, Verdict.DENY),
        ("bypass", {"url": UNLISTED}, {}, Verdict.ALLOW),
        ("default", {"url": "http://localhost:8131/"}, {}, Verdict.ALLOW),
        ("default", {"url": "http://127.0.0.1:8131/", "method": "POST"}, {}, Verdict.ASK),
        ("bypass", {"url": "http://localhost/"}, {"deny": ["web_fetch"]}, Verdict.DENY),
    ],
)
def test_who_is_asked(
    mode: str, given: dict[str, Any], rules: dict[str, Any], expected: Verdict
) -> None:
    """A GET to a host of the list or to the sandbox needs no answer; all else does."""

    async def main() -> None:
        async with world() as at:
            url = given.get("url", at.url())
            rest = {name: value for name, value in given.items() if name != "url"}
            found = await at.verdict(mode, url, rules, **rest)
            assert found.verdict is expected
            if expected is Verdict.ASK and not rules and mode == "default":
                host = "127.0.0.1" if "127" in url else url.split("/")[2].split(":")[0]
                assert found.allowing == (f"web_fetch(domain:{host})",)

    run(main())


def test_an_approval_is_for_that_call_host_and_port_and_never_for_private_addresses() -> None:
    """Decisions row 50: without it the name is refused; with it the address is."""

    async def main() -> None:
        async with world() as at:
            port = at.two.port
            url = f"http://new.example:{port}/"
            denied = await at.refused(url)
            assert "list of hosts" in str(denied) and "new.example" not in at.names.asked
            approved = await at.refused(url, is_approved=True)
            assert approved.code is Code.NETWORK_DENIED and "its name leads to" in str(approved)
            assert at.names.asked == ["new.example"]
            # What was approved for one host is not for where it leads.
            at.one.answers["/"] = redirect(url)
            led = await at.refused(at.url(), is_approved=True)
            assert led.code is Code.NETWORK_DENIED and "list of hosts" in str(led)
            for literal in ("http://10.0.0.1/", "http://169.254.169.254/", "http://0x7f.1/"):
                error = await at.refused(literal, is_approved=True)
                assert error.code is Code.NETWORK_DENIED and "IP address" in str(error)
            at.loop.session.rules = Rules.parse(allow=["web_fetch(domain:new.example)"])
            by_rule = await at.refused(url)
            assert "its name leads to" in str(by_rule)
            assert at.two.asked == []

    run(main())


def test_a_secret_goes_to_its_host_and_comes_back_masked() -> None:
    """The model has a placeholder; another host is sent that, and no answer has the value."""
    value = "token-0123456789"
    made: list[Secrets] = []

    def bound(port: int) -> Secrets:
        made.append(Secrets((Secret("TOKEN", value, (f"{HOST}:{port}",)),)))
        return made[0]

    async def echo(asked: Asked, writer: asyncio.StreamWriter) -> None:
        said = asked.headers["authorization"]
        writer.write(reply(said.encode(), X_Echo=said))

    async def main() -> None:
        async with world({"/": echo}, {"/": echo, "/x": reply(b"x")}, secrets=bound) as at:

            async def leak(asked: Asked, writer: asyncio.StreamWriter) -> None:
                said = asked.headers["authorization"].rpartition(" ")[2]
                writer.write(redirect(at.url(f"/x?leaked={said}", OTHER)))

            at.one.answers["/leak"] = leak
            placeholder = made[0].placeholders["TOKEN"]
            headers = {"Authorization": f"Bearer {placeholder}"}
            told = await at.fetch(at.url(), headers=headers)
            assert at.one.asked[0].headers["authorization"] == f"Bearer {value}"
            assert value not in f"{told.content}{told.structured}"
            await at.fetch(at.url("/", OTHER), headers=headers)
            assert at.two.asked[0].headers["authorization"] == f"Bearer {placeholder}"
            await at.fetch(at.url("/leak"), headers=headers)
            assert at.two.asked[1].path.startswith("/x?leaked=")
            assert value not in at.two.asked[1].line

    run(main())


# ─── the sandbox's own servers ──────────────────────────────────────────────────────


def test_localhost_is_the_sandbox(tmp_path: Path) -> None:
    """By name and address, over http and https, without any egress; redirects lead on in there."""
    made_for, key = certificate(tmp_path, "localhost")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made_for, key)

    async def main() -> None:
        (tmp_path / "root").mkdir()
        (tmp_path / "scratch").mkdir()
        async with contextlib.AsyncExitStack() as stack:
            box = await stack.enter_async_context(
                open_local_box(tmp_path / "root", tmp_path / "scratch")
            )
            # The agent of the local transport has the loopback of this machine.
            inside = await stack.enter_async_context(site({"/": reply(b"inside")}))
            secure = await stack.enter_async_context(site({"/": reply(b"x" * 300_000)}, tls))
            inside.answers["/go"] = redirect(f"http://127.0.0.1:{inside.port}/")
            at = await stack.enter_async_context(world(has_egress=False, box=box, dial=box.dial))
            for host in ("localhost", "127.0.0.1", "app.localhost", "LOCALHOST."):
                outcome = await at.fetch(f"http://{host}:{inside.port}/go")
                assert str(outcome.content).endswith("\n\ninside")
            outcome = await at.fetch(f"https://localhost:{secure.port}/")
            assert outcome.structured is not None and len(outcome.structured["body"]) == 300_000
            error = await at.refused("http://localhost:1/")
            assert error.code is Code.NETWORK_ERROR and "port 1" in str(error)
            inside.answers["/out"] = redirect("http://unlisted.example/")
            error = await at.refused(f"http://localhost:{inside.port}/out")
            assert error.code is Code.NETWORK_DENIED

    run(main())


SERVER = """
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = PAGE
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=shift_jis")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.HTTPServer((ADDRESS, 8131), Page).serve_forever()
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_dev_server_in_a_box_is_reached_and_its_page_read_there(
    tmp_path: Path, address: str
) -> None:
    """Casebook J84 and J86 over a real box, whose only network is its loopback."""
    root = make_worktree(tmp_path / "worktree")
    page = "<title>t</title><h2>\u3042\u3044</h2><a href='/n'>n</a>".encode("shift_jis")
    text = SERVER.replace("PAGE", repr(page)).replace("ADDRESS", repr(address))
    (root / "server.py").write_text(text)

    async def main() -> None:
        spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="web")
        async with open_docker_box(spec, tmp_path / "state") as box:
            start = "python3 server.py >/dev/null 2>&1 & for n in $(seq 100); do "
            start += "grep -q ':1FC3 ' /proc/net/tcp && exit 0; sleep 0.1; done; exit 1"
            kept = {"head": 4096, "tail": 4096, "merge": True, "grace": 1.0, "stream": False}
            asked: dict[str, Any] = {
                "command": start,
                "argv": None,
                "cwd": None,
                "environment": {},
                "timeout": 30.0,
            }
            began = await box.request("run", {**asked, **kept}, timeout=30)
            assert began.value["exit_code"] == 0
            async with world(has_egress=False, box=box, dial=box.dial) as at:
                outcome = await at.fetch("http://localhost:8131/")
                told = str(outcome.content).partition("\n")[2]
                assert told == "[title: t]\n\n## \u3042\u3044\n\n[n](http://localhost:8131/n)"

    asyncio.run(asyncio.wait_for(main(), 200))


# ─── a second model ─────────────────────────────────────────────────────────────────


def test_a_prompt_about_a_page_is_answered_by_the_second_model() -> None:
    """It sees page and prompt, and is told that the page gives no orders; or the page is shown."""

    async def main() -> None:
        async with world({"/": reply(b"the page")}) as at:
            loop = replace(at.loop, toolset=CATALOG.toolsets["claude-code"])
            at.loop = loop
            shown = str((await at.fetch(at.url(), "WebFetch", prompt="What is it?")).content)
            assert shown.startswith("[the page itself: ") and shown.endswith("\n\nthe page")
            async with serving(lambda request: Say.of("An answer.")) as server:
                api = MessagesApi(KEY, server.url, "small")
                at.loop = replace(loop, web=Web(oracle=SecondModel(api, "large", 77)))
                told = str((await at.fetch(at.url(), "WebFetch", prompt="What is it?")).content)
                body = server.requests[0].body
            assert told.startswith("HTTP 200 OK") and told.endswith("\n\nAn answer.")
            asked = body["messages"][0]["content"]
            assert "the page" in asked and asked.endswith("What is it?")
            assert "written by strangers" in body["system"]
            assert (body["model"], body["max_tokens"]) == ("large", 77)

    run(main())


def test_of_a_long_page_the_answer_is_said_to_be_about_a_part() -> None:
    """To the second model, too; and what has to be said of the page is said with the answer."""

    async def main() -> None:
        page = b"x" * (web.MOST_ASKED_ABOUT + 1)
        answers: dict[str, Answer] = {"/": reply(page), "/short": reply(page[:-1])}
        async with world(answers) as at, serving(lambda request: Say.of("An answer.")) as server:
            second = SecondModel(MessagesApi(KEY, server.url, "small"), "large", 77)
            toolset = CATALOG.toolsets["claude-code"]
            at.loop = replace(at.loop, toolset=toolset, web=Web(oracle=second))
            outcome = await at.fetch(at.url(), "WebFetch", prompt="What?")
            told = "[the answer is from the first 200000 characters of the page]"
            assert str(outcome.content).partition("\n")[2] == f"{told}\n\nAn answer."
            assert outcome.truncated
            asked = server.requests[0].body["messages"][0]["content"]
            assert "[only the first 200000 characters of the page are here]\nxxx" in asked
            outcome = await at.fetch(at.url("/short"), "WebFetch", prompt="What?")
            assert str(outcome.content).partition("\n")[2] == "\nAn answer."
            assert "characters" not in server.requests[1].body["messages"][0]["content"]

    run(main())


def test_the_notes_on_a_page_come_with_the_answer_about_it() -> None:
    """That it is shown as HTML, as here, or is not whole."""

    class Without:
        """A box whose runtime has no library."""

        async def request(self, *_: Any, **__: Any) -> Any:
            """Of the agent."""
            raise ToolError(Code.UNSUPPORTED, "There is no reader.")

    async def main() -> None:
        page = {"/": reply(b"<p>x", "text/html")}
        async with (
            world({**page}, box=Without()) as at,
            serving(lambda _: Say.of("Yes.")) as server,
        ):
            second = SecondModel(MessagesApi(KEY, server.url, "small"), "large", 77)
            toolset = CATALOG.toolsets["claude-code"]
            at.loop = replace(at.loop, toolset=toolset, web=Web(oracle=second))
            told = str((await at.fetch(at.url(), "WebFetch", prompt="What?")).content)
            assert told.endswith("\n[shown as HTML: There is no reader]\n\nYes.")

    run(main())


def test_a_second_model_takes_no_longer_than_the_call_may() -> None:
    """The oracle's call ends with TIMEOUT; of a page, the page itself is shown."""

    async def main() -> None:
        async with serving(lambda _: Silent()) as server:
            second = SecondModel(MessagesApi(KEY, server.url, "small", tries=1), "large", 77)
            async with world({"/": reply(b"the page")}, web=Web(oracle=second)) as at:
                oracle = registry("loom", CATALOG).get("oracle")
                assert oracle is not None
                context = Context("1", oracle.entry, at.loop, tool="oracle", time_left=0.05)
                with pytest.raises(ToolError, match=r"Timed out after 50ms\.") as raised:
                    await oracle.run(context, oracle.parse({"query": "why?"}))
                assert raised.value.code is Code.TIMEOUT
                fetch, context = at.tool("WebFetch", time_left=2.0)
                given = fetch.parse({"url": at.url(), "prompt": "What?"})
                told = str((await fetch.run(context, given)).content)
                assert told.startswith("[the page itself: Timed out after 2000ms.]\n")
                assert told.endswith("\n\nthe page")

    run(main())


def test_the_oracle_answers_or_says_why_not() -> None:
    """It sees the query alone; its failure is the call's."""

    async def main() -> None:
        async with serving(lambda request: Say.of("42")) as server:
            api = MessagesApi(KEY, server.url, tries=1)
            found = registry("loom", CATALOG).get("oracle")
            assert found is not None
            async with world(web=Web(oracle=SecondModel(api, "large", 5, "Be brief."))) as at:
                context = Context("1", found.entry, at.loop, tool="oracle")
                outcome = await found.run(context, found.parse({"query": "why?"}))
                assert (outcome.content, outcome.structured) == ("42", {"answer": "42"})
                body = server.requests[0].body
                assert body["system"] == "Be brief." and body["model"] == "large"
                assert [one["content"] for one in body["messages"]] == ["why?"]
                assert found.unavailable is not None and found.unavailable(at.loop) is None
        async with world() as at:
            assert found.unavailable(at.loop) == Web().no_oracle
        async with world(web=Web(oracle=SecondModel(api, "large"))) as at:
            context = Context("1", found.entry, at.loop, tool="oracle")
            with pytest.raises(ToolError) as raised:
                await found.run(context, found.parse({"query": "why?"}))
            assert raised.value.code is Code.NETWORK_ERROR

    run(main())
