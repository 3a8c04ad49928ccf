"""Searches: two providers against real servers that speak their APIs, well and badly."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from executor.catalog import load
from executor.errors import Code, ConfigError, ToolError
from executor.model import Limits
from executor.search import Found, GoogleSearch, SerperSearch
from executor.session import Session
from executor.tool import Context, Outcome, Surroundings, Tool, Web
from executor.toolsets import registry
from tests.web_server import Answer, Asked, Site, redirect, reply, site

KEY = "serper-key-0123456789"
HITS = [
    {"title": f"T{n}", "link": f"https://{host}/{n}", "snippet": f"s{n}"}
    for n, host in enumerate(
        ["a.org", "b.a.org", "nota.org", "c.org", "d.org", "A.ORG.", "B\u00fccher.example"]
    )
]


def as_json(value: Any, status: int = 200, **headers: str) -> bytes:
    return reply(json.dumps(value).encode(), "application/json", status, **headers)


def run_serper(answer: Answer, count: int = 5) -> tuple[list[Found], Site]:
    async def main() -> tuple[list[Found], Site]:
        async with site({"/search": answer}) as server:
            base = f"http://127.0.0.1:{server.port}"
            provider = SerperSearch(KEY, base_url=base, patience=2.0, wait=0.01)
            return await provider.search("q&x=1", count), server

    return asyncio.run(main())


def test_serper_is_asked_as_its_api_has_it() -> None:
    """POST /search, the key in X-API-KEY, q and num as JSON; results are in `organic`."""
    found, server = run_serper(as_json({"organic": HITS}), 2)
    assert found == [Found(f"T{n}", HITS[n]["link"], f"s{n}") for n in (0, 1)]
    (asked,) = server.asked
    assert asked.line == "POST /search HTTP/1.1" and asked.headers["x-api-key"] == KEY
    assert json.loads(asked.body) == {"q": "q&x=1", "num": 2}


def test_google_is_asked_as_its_api_has_it(caplog: pytest.LogCaptureFixture) -> None:
    """GET /customsearch/v1 with key, cx, q and num; results are in `items`; no log has the key."""
    caplog.set_level(logging.DEBUG)

    async def main() -> Asked:
        async with site({"/customsearch/v1": as_json({"items": HITS})}) as server:
            base = f"http://127.0.0.1:{server.port}"
            found = await GoogleSearch(KEY, base_url=base, engine="cx1").search("a b&c", 3)
            assert [one.title for one in found] == ["T0", "T1", "T2"]
            return server.asked[0]

    asked = asyncio.run(main())
    assert asked.path == f"/customsearch/v1?key={KEY}&cx=cx1&q=a+b%26c&num=3"
    assert KEY not in caplog.text


def test_results_are_one_line_each_and_nothing_acts() -> None:
    """Control characters are shown as escapes; what has no address of the web is left out."""
    given = [
        {"title": "a\x1b[2J\nb", "link": "https://a.org/\u202e", "snippet": "x\n\n y\x07"},
        {"title": "no", "link": "javascript:1"},
        {"title": 5, "link": "http://b.org", "snippet": None},
        "no result",
    ]
    found, _ = run_serper(as_json({"organic": given}))
    assert found == [
        Found("a\\x1b[2J\\nb", "https://a.org/\\u202e", "x y\\x07"),
        Found("", "http://b.org", ""),
    ]


@pytest.mark.parametrize("value", [{}, {"organic": []}, {"organic": None}, {"organic": {"a": 1}}])
def test_no_results_are_no_error(value: Mapping[str, Any]) -> None:
    """A reply without the list has none."""
    assert run_serper(as_json(value))[0] == []


async def endless(_: Asked, writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        writer.write(b" " * (1 << 16))
        await writer.drain()


async def silent(_: Asked, writer: Any) -> None:
    await writer.wait_closed()


BOMB = gzip.compress(b" " * (8 << 20))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (endless, "more than 4 MiB"),
        (silent, "no answer within 2 s"),
        (redirect("http://127.0.0.1:9/"), "redirect (HTTP 302)"),
        (reply(BOMB, "application/json", Content_Encoding="gzip"), "compressed"),
        (reply(b"{", "application/json"), "no JSON object"),
        (reply(b"[" * 100_000, "application/json"), "no JSON object"),
        (as_json(["x"]), "no JSON object"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "RemoteProtocolError"),
        (b"<html>", "RemoteProtocolError"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 40_000 + b"\r\n", "RemoteProtocolError"),
        (as_json({"message": f"bad key {KEY}\x1b"}, 403), "HTTP 403, bad key …\\x1b"),
        (as_json({"error": {"message": "quota"}}, 400), "HTTP 400, quota"),
    ],
)
def test_what_is_no_answer_is_an_error_without_the_key(answer: Answer, expected: str) -> None:
    """NETWORK_ERROR with the reason, whatever the far end sends, and in bounded time."""
    with pytest.raises(ToolError) as raised:
        run_serper(answer)
    assert raised.value.code is Code.NETWORK_ERROR
    assert expected in str(raised.value) and KEY not in str(raised.value)


@pytest.mark.parametrize(("status", "tries"), [(429, 2), (500, 2), (503, 2), (401, 1), (400, 1)])
def test_a_second_try_only_where_it_may_help(status: int, tries: int) -> None:
    """Quota and server errors are tried once more, others not at all."""

    async def main() -> int:
        answers = {"/search": as_json({"message": "no"}, status, Retry_After="0")}
        async with site(answers) as server:
            provider = SerperSearch(KEY, base_url=f"http://127.0.0.1:{server.port}", wait=0.01)
            with pytest.raises(ToolError, match=f"HTTP {status}, no"):
                await provider.search("q", 1)
            return len(server.asked)

    assert asyncio.run(main()) == tries


def test_a_second_try_that_succeeds_is_the_answer() -> None:
    """A quota that was full for a moment is no failure of the search."""

    async def main() -> None:
        async with site({"/search": as_json({}, 429)}) as server:

            async def then_well(_: Asked, writer: asyncio.StreamWriter) -> None:
                well = as_json({"organic": HITS[:1]})
                writer.write(well if len(server.asked) > 1 else as_json({}, 429))

            server.answers["/search"] = then_well
            provider = SerperSearch(KEY, base_url=f"http://127.0.0.1:{server.port}", wait=0.01)
            assert len(await provider.search("q", 1)) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("key", "url"),
    [("", "https://x.org"), ("a\nb", "https://x.org"), ("k" * 9, "http://x.org"), ("k", "ftp:")],
)
def test_keys_and_addresses_are_checked(key: str, url: str) -> None:
    """No key goes out in the clear, and none that would break a header."""
    with pytest.raises(ConfigError) as raised:
        SerperSearch(key, base_url=url)
    assert "Serper: " in str(raised.value) and "kkkkkkkkk" not in str(raised.value)


def test_no_key_is_shown() -> None:
    """Neither provider's repr has it."""
    assert KEY not in repr([SerperSearch(KEY), GoogleSearch(KEY, engine="x")])


# ─── the tools ──────────────────────────────────────────────────────────────────────


class Fixed:
    """A provider whose results are known; it notes what it was asked."""

    name = "Fixed"
    most = 10

    def __init__(self) -> None:
        self.counts: list[int] = []

    async def search(self, query: str, count: int) -> list[Found]:
        self.counts.append(count)
        return [Found(hit["title"], hit["link"], hit["snippet"]) for hit in HITS][:count]


def tool(toolset: str, name: str, web: Web) -> tuple[Tool, Context]:
    catalog = load()
    found = registry(toolset, catalog).get(name)
    assert found is not None
    loop = Surroundings(
        *("test", Session(), Limits(), "net", catalog.toolsets[toolset], (), None),  # type: ignore[arg-type]
        web=web,
    )
    return found, Context("1", found.entry, loop, tool=name)


def call(toolset: str, name: str, web: Web, **given: Any) -> Outcome:
    found, context = tool(toolset, name, web)

    async def main() -> Outcome:
        return await found.run(context, found.parse(given))

    return asyncio.run(main())


def test_results_are_text_and_data() -> None:
    """Each has a number, a title, an address and a snippet; five where nothing is said."""
    provider = Fixed()
    outcome = call("standard", "web_search", Web(provider), query="x")
    assert str(outcome.content).startswith("1. T0\n   https://a.org/0\n   s0\n2. T1\n")
    assert outcome.structured is not None and len(outcome.structured["results"]) == 5
    assert outcome.structured["results"][0] == {
        "title": "T0",
        "url": "https://a.org/0",
        "snippet": "s0",
    }
    assert provider.counts == [5]


def test_more_than_the_provider_gives_is_refused() -> None:
    """Decisions row 51: not silently fewer."""
    with pytest.raises(ToolError, match="numResults is 11, and Fixed gives at most 10"):
        call("standard", "web_search", Web(Fixed()), query="x", numResults=11)


@pytest.mark.parametrize(
    ("filters", "hosts"),
    [
        ({"allowed_domains": ["a.org"]}, ["T0", "T1", "T5"]),
        ({"allowed_domains": ["A.org."]}, ["T0", "T1", "T5"]),
        ({"allowed_domains": ["b.a.org", "c.org"]}, ["T1", "T3"]),
        ({"blocked_domains": ["a.org", "d.org"]}, ["T2", "T3", "T6"]),
        ({"allowed_domains": ["b\u00fccher.example"]}, ["T6"]),
        ({"allowed_domains": ["xn--bcher-kva.example"]}, ["T6"]),
        ({"blocked_domains": ["a.org", "d.org", "b\u00fccher.example"]}, ["T2", "T3"]),
        ({"blocked_domains": ["a.org", "d.org", "xn--bcher-kva.example"]}, ["T2", "T3"]),
        ({"allowed_domains": ["a.org"], "blocked_domains": ["b.a.org"]}, ["T0", "T5"]),
        ({"allowed_domains": ["org.evil"]}, []),
    ],
)
def test_domains_are_filtered_exactly_and_below(filters: Any, hosts: list[str]) -> None:
    """`nota.org` is not `a.org`, and `b.a.org` is below it."""
    outcome = call("claude-code", "WebSearch", Web(Fixed()), query="xx", **filters)
    assert outcome.structured is not None
    assert [one["title"] for one in outcome.structured["results"]] == hosts


@pytest.mark.parametrize(
    ("domain", "fault"),
    [
        ("https://x", "has more than a domain in it"),
        ("x.org/a", "has more than a domain in it"),
        ("x.org:443", "has more than a domain in it"),
        ("10.0.0.1", "is an IP address"),
        ("::1", "is an IP address"),
        ("a b", "is no host name"),
    ],
)
def test_a_domain_that_is_none_is_refused(domain: str, fault: str) -> None:
    """An address or a pattern of another kind filters nothing, so it is said, with the reason."""
    with pytest.raises(ToolError) as raised:
        call("claude-code", "WebSearch", Web(Fixed()), query="xx", blocked_domains=[domain])
    assert str(raised.value) == (
        f"Invalid arguments for WebSearch: blocked_domains: {domain!r} {fault}; write a domain "
        "alone, as example.org."
    )


class Never(Fixed):
    """A provider that does not answer."""

    async def search(self, query: str, count: int) -> list[Found]:
        await asyncio.Event().wait()
        return []


class Impatient(Fixed):
    """A provider whose own time is over."""

    async def search(self, query: str, count: int) -> list[Found]:
        raise TimeoutError("of its own")


def test_a_search_takes_no_longer_than_the_call_may() -> None:
    """Whoever the provider is; and an end of its own time is not taken for the call's."""
    found, context = tool("standard", "web_search", Web(Never()))
    context.time_left = 0.05

    async def main() -> None:
        with pytest.raises(ToolError, match=r"Timed out after 50ms\.") as raised:
            await asyncio.wait_for(found.run(context, found.parse({"query": "x"})), 30)
        assert raised.value.code is Code.TIMEOUT

    asyncio.run(main())
    with pytest.raises(TimeoutError, match="of its own"):
        call("standard", "web_search", Web(Impatient()), query="x")


def test_loom_says_too_many_in_its_own_words() -> None:
    """The argument that is refused is one that the tool has."""
    with pytest.raises(ToolError, match="max_results is 11, and Fixed gives at most 10"):
        call("loom", "web_search", Web(Fixed()), query="x", max_results=11)


def test_loom_gets_json() -> None:
    """As its other tools: what is said is the data."""
    outcome = call("loom", "web_search", Web(Fixed()), query="x", max_results=1)
    assert json.loads(str(outcome.content)) == outcome.structured
    assert outcome.structured is not None and len(outcome.structured["results"]) == 1


@pytest.mark.parametrize(
    ("toolset", "name"),
    [("standard", "web_search"), ("claude-code", "WebSearch"), ("loom", "web_search")],
)
def test_without_a_key_the_tool_is_disabled_with_the_reason(toolset: str, name: str) -> None:
    """Decisions row 57: it is not listed, and a call says why."""
    found, context = tool(toolset, name, Web(no_search="no key"))
    assert found.unavailable is not None and found.unavailable(context.loop) == "no key"
    assert found.unavailable(tool(toolset, name, Web(Fixed()))[1].loop) is None
