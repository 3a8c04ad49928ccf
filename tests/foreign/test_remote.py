"""MCP servers at a URL: by what the loop may reach, with secrets that nobody else sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from executor.catalog_servers import McpEntry
from executor.errors import Code
from executor.foreign import events, remote
from executor.foreign.bounds import MAX_LINE, MAX_PARTS
from executor.model import EgressOptions, LoopSpec, Result
from executor.scheduling import MAX_PARALLEL
from tests.driver import wait_until
from tests.foreign.http_stub import Far, far
from tests.foreign.test_client import names, said
from tests.loops import Work, open_work

POLLS = 600
"""Times that an answer may be asked for in ten minutes, which is as long as a call may take."""
TOKEN = "a-token-that-nobody-else-sees"


@contextmanager
def opened(
    directory: Path,
    server: Far,
    host: str = "localhost",
    headers: Mapping[str, str] = MappingProxyType({"authorization": "Bearer ${FAR_TOKEN}"}),
    idle: int = 15_000,
    most: int = 600_000,
) -> Iterator[Work]:
    """A loop that may reach a host, with a server at that port."""
    at = f"{host}:{server.port}"

    def change(spec: LoopSpec) -> LoopSpec:
        return replace(spec, egress=EgressOptions(hosts=(at,), private=("localhost",)))

    entry = McpEntry(
        url=f"http://localhost:{server.port}/mcp",
        headers=headers,
        idle_timeout_ms=idle,
        timeout_ms=most,
        start_timeout_ms=10_000,
    )
    # Where the audit log is, without which nothing that has to be recorded is done.
    (directory / "state").mkdir(mode=0o700, exist_ok=True)
    with open_work("local", directory, change=change, mcp={"far": entry}) as work:
        yield work


def test_a_server_at_a_url_is_reached_with_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable's value is in the header that the server gets, and masked in what it says."""
    monkeypatch.setenv("FAR_TOKEN", TOKEN)
    with far() as server, opened(tmp_path, server) as work:
        assert "mcp__far__say" in names(work), work.loop.capabilities.get("notices")
        result = work.call("mcp__far__say")
        assert not result.is_error, said(result)
        assert server.headers[-1]["authorization"] == f"Bearer {TOKEN}"
        assert said(result).startswith("you sent Bearer ")
        assert TOKEN not in said(result)
        shown = work.call("run_command", command="env")
        assert "EXECUTOR_MCP_" not in said(shown)


def test_a_host_that_the_loop_may_not_reach_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's host has to be among those that the loop may reach."""
    monkeypatch.setenv("FAR_TOKEN", TOKEN)
    with far() as server, opened(tmp_path, server, "other.example") as work:
        assert not server.headers
        assert "mcp__far__say" not in names(work)
        notices = "\n".join(work.loop.capabilities["notices"])
        assert "far could not be started" in notices
        assert "is not on the list of hosts" in notices


def test_a_variable_that_is_not_set_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the variable of a header nothing is sent, and its name is said."""
    monkeypatch.delenv("FAR_TOKEN", raising=False)
    with far() as server, opened(tmp_path, server) as work:
        assert not server.headers
        assert "FAR_TOKEN is not set" in "\n".join(work.loop.capabilities["notices"])


def test_an_answer_that_is_too_large_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of more than the most is an error result, and the next call works."""
    monkeypatch.setenv("FAR_TOKEN", TOKEN)
    with far() as server, opened(tmp_path, server) as work:
        server.is_large = True
        assert f"its answer has more than {MAX_LINE} bytes" in said(work.call("mcp__far__say"))
        server.is_large = False
        assert not work.call("mcp__far__say").is_error


def test_a_redirect_to_another_host_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that sends elsewhere is an error, and nothing goes there."""
    monkeypatch.setenv("FAR_TOKEN", TOKEN)
    with far() as other, far() as server, opened(tmp_path, server) as work:
        server.moves = f"http://localhost:{other.port}/mcp"
        assert work.call("mcp__far__say").is_error
        assert not other.headers


def test_a_packed_answer_is_an_error(tmp_path: Path) -> None:
    """An answer that is compressed is not unpacked, with secrets or without: it may be a bomb."""
    with far() as server, opened(tmp_path, server, headers={}) as work:
        server.is_packed = True
        assert "its answer is packed" in said(work.call("mcp__far__say"))
        assert server.headers[-1]["accept-encoding"] == "identity"
        server.is_packed = False
        assert not work.call("mcp__far__say").is_error


def test_an_event_without_an_end_is_an_error(tmp_path: Path) -> None:
    """An event of more bytes than a message may have ends the answer, and the next call works."""
    with far() as server, opened(tmp_path, server, headers={}) as work:
        server.is_endless = True
        assert "an event of more than" in said(work.call("mcp__far__say"))
        assert server.sent < 64 << 20
        server.is_endless = False
        assert not work.call("mcp__far__say").is_error


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_an_answer_that_breaks_off_says_why(tmp_path: Path, kind: str) -> None:
    """An answer that breaks off is an error with the reason, and the next call works."""
    with far() as server, opened(tmp_path, server, headers={}) as work:
        server.cut = kind
        result = work.call("mcp__far__say")
        assert result.code is Code.NETWORK_ERROR
        assert "did not answer the call: peer closed connection" in said(result)
        server.cut = None
        assert not work.call("mcp__far__say").is_error


async def both(work: Work, server: Far) -> tuple[Result, Result]:
    """The results of a call that is under way, and of one that begins and ends meanwhile."""
    waiting = work.make("mcp__far__say", {"waits": True})
    good = asyncio.create_task(work.loop.execute(waiting))
    assert await asyncio.to_thread(server.held.wait, 60)
    bad = await work.loop.execute(work.make("mcp__far__say", {}))
    server.go.set()
    return await good, bad


def test_an_answer_that_fails_costs_no_other_call(tmp_path: Path) -> None:
    """A call that is under way while another one's answer fails has its own answer."""
    with far() as server, opened(tmp_path, server, headers={}) as work:
        server.is_packed = True
        good, bad = work.thread.run(both(work, server))
        assert bad.code is Code.NETWORK_ERROR
        assert "its answer is packed" in said(bad)
        assert said(good) == "you sent "


def test_a_refused_call_is_no_end_of_a_session(tmp_path: Path) -> None:
    """A refusal of one call with the status 400 is told, and neither it nor others end by it."""
    with far() as server:
        server.session, server.refusal = "first", -32000
        with opened(tmp_path, server, headers={}) as work:
            good, bad = work.thread.run(both(work, server))
            assert said(bad).endswith("no such row")
            assert said(good) == "you sent "


def test_many_calls_are_answered_at_a_time(tmp_path: Path) -> None:
    """Calls that are under way hold up no other, nor does the server's own stream."""
    with far() as server:
        server.session, server.change = "first", threading.Event()
        with opened(tmp_path, server, headers={}, idle=60_000) as work:

            async def many() -> list[Result]:
                calls = [work.make("mcp__far__say", {"waits": True}) for _ in range(MAX_PARALLEL)]
                tasks = [asyncio.create_task(work.loop.execute(call)) for call in calls]
                await asyncio.to_thread(wait_until, lambda: len(server.open) == MAX_PARALLEL, 30)
                server.go.set()
                return await asyncio.gather(*tasks)

            assert [said(one) for one in work.thread.run(many())] == ["you sent "] * MAX_PARALLEL


def test_answers_that_fail_are_no_ends_of_a_server(tmp_path: Path) -> None:
    """However many answers fail, the server is spoken to in the next call."""
    with far() as server, opened(tmp_path, server, headers={}) as work:
        server.is_packed = True
        failed = work.turn(*[("mcp__far__say", {})] * 4)
        assert [one.code for one in failed] == [Code.NETWORK_ERROR] * 4
        server.is_packed = False
        assert not work.call("mcp__far__say").is_error


@pytest.mark.parametrize(
    "lost",
    [
        (404, ""),
        (404, '{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "unknown"}}'),
        (400, '{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "no session"}}'),
    ],
)
def test_a_session_that_a_server_has_lost_is_begun_anew(
    tmp_path: Path, lost: tuple[int, str]
) -> None:
    """A server that does not know its session any more is told so, and the next call works."""
    with far() as server:
        server.session, server.lost = "first", lost
        with opened(tmp_path, server, headers={}) as work:
            assert not work.call("mcp__far__say").is_error
            server.session = "second"
            assert "The next call starts it anew" in said(work.call("mcp__far__say"))
            assert not work.call("mcp__far__say").is_error
            assert server.headers[-1]["mcp-session-id"] == "second"


def test_nobody_reads_the_answer_of_a_call_that_was_given_up(tmp_path: Path) -> None:
    """An answer that is late, or has no end, is closed; many such calls block no other."""
    with far() as server, opened(tmp_path, server, headers={}, idle=300) as work:
        server.is_silent = True
        assert [one.code for one in work.turn(*[("mcp__far__say", {})] * 12)] == [Code.TIMEOUT] * 12
        wait_until(lambda: not server.open, 30)
        server.is_silent = False
        late = work.turn(*[("mcp__far__say", {"waits": True})] * 12)
        assert [one.code for one in late] == [Code.TIMEOUT] * 12
        wait_until(lambda: not work.call("mcp__far__say").is_error, 30)


def test_the_rest_of_an_answer_is_not_asked_for_without_end(tmp_path: Path) -> None:
    """However soon a server wants it, it is asked ten times a second, and not after the call."""
    with far() as server, opened(tmp_path, server, headers={}, idle=3000) as work:
        server.events = b"retry: 0\nid: 7\ndata:\n\n"
        assert work.call("mcp__far__say").code is Code.TIMEOUT
        assert server.asked_on <= 40
        server.events = b'data: {"jsonrpc": "2.0", "id": 0, "result": {"content": []}}\n\n'
        assert not work.call("mcp__far__say").is_error


def test_an_answer_may_be_asked_for_as_long_as_its_call_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends each answer after an event is asked for the rest again and again."""
    monkeypatch.setattr(events, "SOONEST", 0)  # that no time is lost with pauses: not the server's
    monkeypatch.setattr(remote, "SOONEST", 1000)  # nor ours
    with far() as server, opened(tmp_path, server, headers={}, idle=300_000) as work:
        server.events, server.most_asked_on = b"retry: 0\nid: 7\ndata:\n\n", POLLS
        assert said(work.call("mcp__far__say")) == "you sent "
        assert server.asked_on == POLLS


def test_a_stream_that_says_nothing_is_kept(tmp_path: Path) -> None:
    """A server's own stream is read on, however much longer than a call it says nothing."""
    with far() as server:
        server.session, server.change = "first", threading.Event()
        with opened(tmp_path, server, headers={}, idle=500, most=500) as work:
            for _ in range(8):
                assert work.call("mcp__far__say", waits=True).code is Code.TIMEOUT
            assert "mcp__far__more" not in names(work)
            server.change.set()

            def has_more() -> bool:
                return not work.call("mcp__far__say").is_error and "mcp__far__more" in names(work)

            wait_until(has_more, 30)


def test_a_server_that_asks_and_takes_no_answers_is_ended(tmp_path: Path) -> None:
    """Requests without end on a server's own stream end it, and that is said."""
    ping = b'data: {"jsonrpc": "2.0", "id": 1, "method": "ping"}\n\n'
    with far() as server:
        server.session, server.pushes = "first", ping * 50
        with opened(tmp_path, server, headers={}) as work:
            told = "It was ended: it made more than 100 requests and took no answers."
            wait_until(lambda: told in said(work.call("mcp__far__say", waits=True)), 30)
            server.pushes = None
            server.go.set()
            assert not work.call("mcp__far__say").is_error


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "it answered 401 Unauthorized; check its headers, as in headers = {Auth"),
        (404, "it answered 404 Not Found; check its url"),
        (429, "it answered 429 Too Many Requests; call it less often"),
        (500, "it answered 500 Internal Server Error"),
        (302, "it answered 302 Found"),
        (200, "it answered with text/plain, which is no message; check its url"),
    ],
)
def test_an_unwilling_server_is_told_with_its_status(
    tmp_path: Path, status: int, told: str
) -> None:
    """A status that is no answer is said as it is, at the start and in a call."""
    with far() as server:
        server.status = status
        with opened(tmp_path, server, headers={}) as work:
            assert told in "\n".join(work.loop.capabilities["notices"])
        server.status = None
        (tmp_path / "other").mkdir()
        with opened(tmp_path / "other", server, headers={}) as work:
            server.status = status
            result = work.call("mcp__far__say")
            assert told in said(result)
            assert result.code is Code.NETWORK_ERROR


def test_an_answer_of_too_many_values_is_an_error(tmp_path: Path) -> None:
    """An answer that would cost far more than its bytes is not read, however it comes."""
    with far() as server, opened(tmp_path, server, headers={}) as work:
        server.events = b"data: [" + b"[]," * MAX_PARTS + b"[]]\n\n"
        assert f"a message of more than {MAX_PARTS} parts" in said(work.call("mcp__far__say"))
        server.events = None
        assert not work.call("mcp__far__say").is_error
