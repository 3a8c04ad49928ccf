"""`executor mcp`: cut results as resources, lists that change, and what is told unasked."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import mcp_types as types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from executor.catalog import SpillLimits, load
from executor.errors import ConfigError, EngineError
from executor.frontends import mcp_loops, mcp_server
from executor.frontends.mcp_notices import MAX_WAITING, Claims, Notices, said_of
from executor.frontends.mcp_resources import LEAST, MOST, PAGE, ROOT, Asked, Resources, read
from executor.frontends.mcp_server import LoopServer
from executor.frontends.mcp_stdio import MAX_UNANSWERED
from executor.loop import Loop
from executor.model import (
    RESULTS,
    BackgroundEnded,
    LaneLost,
    LaneOpened,
    LoopSpec,
    Output,
    Result,
    Warned,
)
from executor.sandbox.reaper import Identity
from executor.sandbox.spill import Results, opened
from tests.conftest import LIMITS, make_worktree
from tests.driver import wait_until
from tests.foreign.test_client import STUB
from tests.loops import opener
from tests.mcp_clients import SECONDS, SERVER, boxes, client, served

OLD, NEW = "2025-11-25", "2026-07-28"
NOT_FOUND = -32002
HUGE = "yes 0123456 | head -c 3m"
"""A command whose output is cut."""
UNLIMITED = SpillLimits()
BACKGROUND = "until [ -e {0} ]; do read -t 0.05 <> <(:); done; true"
"""A command that ends when there is such a file."""
OLD_LOGGING = pytest.mark.filterwarnings("ignore:The logging capability is deprecated")


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    """An empty one."""
    return make_worktree(tmp_path / "worktree")


# ─── URIs ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "uri",
    [
        "",
        ROOT,
        f"{ROOT}1",
        f"{ROOT}0.txt",
        f"{ROOT}01.txt",
        f"{ROOT}-1.txt",
        f"{ROOT}1.txt/",
        f"{ROOT}1.txt#x",
        f"{ROOT}1.txt\n",
        f"{ROOT}/1.txt",
        f"{ROOT}./1.txt",
        f"{ROOT}../results/1.txt",
        f"{ROOT}../../etc/passwd",
        f"{ROOT}..%2f..%2fetc%2fpasswd",
        f"{ROOT}%2e%2e/1.txt",
        f"{ROOT}%31.txt",
        f"{ROOT}\uff11.txt",
        f"{ROOT}1.txt\x00",
        f"{ROOT}{'9' * 400}.txt",
        "executor://user@results/1.txt",
        "executor://results:80/1.txt",
        "executor://other/1.txt",
        "executor:///run/executor/results/1.txt",
        "file:///run/executor/results/1.txt",
        "EXECUTOR://results/1.txt",
        f"{RESULTS}/1.txt",
    ],
)
def test_nothing_but_results_has_a_uri(uri: str) -> None:
    """No spelling of another path, and no second spelling of a result's."""
    assert Asked.of(uri) is None


@given(st.text() | st.from_regex(r"executor://results/[ -~]{0,20}", fullmatch=True))
def test_whatever_is_asked_for_is_a_result(uri: str) -> None:
    """Any text at all leads to a number's file among the results, or to nothing."""
    try:
        asked = Asked.of(uri)
    except ValueError:
        return
    if asked is not None:
        assert re.fullmatch(rf"{RESULTS}/[1-9][0-9]*\.txt", asked.path)
        assert LEAST <= asked.size <= MOST and asked.start >= 0


def test_a_query_is_two_numbers() -> None:
    """Offset and limit, in any order; a limit is brought within what a read returns."""
    path = f"{RESULTS}/7.txt"
    uri = f"{ROOT}7.txt"
    assert Asked.of(uri) == Asked.of(f"{uri}?") == Asked(path, 0, MOST)
    assert Asked.of(f"{uri}?offset=5") == Asked(path, 5, MOST)
    assert Asked.of(f"{uri}?limit=10&offset=%35") == Asked(path, 5, 10)
    assert Asked.of(f"{uri}?limit=0") == Asked(path, 0, LEAST)
    assert Asked.of(f"{uri}?limit=999999999999") == Asked(path, 0, MOST)


@pytest.mark.parametrize(
    "query",
    ["x", "offset", "offset=", "offset=-1", "offset=1.5", "offset=1e3", "offset=\u0661",
     "offset=1&offset=2", "limit=1&size=2", "offset=1&limit=2&x=3", "=", "&&", "%", "offset=+1",
     f"offset={'9' * 30}"],
)  # fmt: skip
def test_other_queries_are_refused(query: str) -> None:
    """What is no number of bytes is said to be none, not taken for 0."""
    with pytest.raises(ValueError, match="numbers of bytes"):
        Asked.of(f"{ROOT}7.txt?{query}")


# ─── pieces ─────────────────────────────────────────────────────────────────────────


class Shelf:
    """The results of a loop that is not open, and their reader."""

    def __init__(self, directory: Path, limits: SpillLimits = UNLIMITED, **more: Any) -> None:
        self._stack = contextlib.ExitStack()
        identity = self._stack.enter_context(Identity.claim(directory / "state"))
        self.results: Results = self._stack.enter_context(opened(identity, "test", limits))
        root = make_worktree(directory / "worktree")
        spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test", **more)
        self.loop = Loop(spec, load(), opener("local", directory), spill=self.results)

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def keep(self, data: bytes) -> str:
        """The URI of a result that is kept."""
        spilled = await self.results.keep(data)
        assert spilled is not None
        return ROOT + spilled.path.rpartition("/")[2]

    async def read(self, uri: str) -> tuple[bytes, str | None]:
        """A piece, and the URI of the one after it."""
        (found,) = (await read(self.loop, uri, OLD)).contents
        assert found.meta is not None
        return data_of(found), found.meta.get("executor/next")

    async def refusal(self, uri: str, version: str = OLD) -> MCPError:
        """Why there is no such piece."""
        with pytest.raises(MCPError) as refused:
            await read(self.loop, uri, version)
        return refused.value


def data_of(found: types.TextResourceContents | types.BlobResourceContents) -> bytes:
    """The bytes of what was read."""
    if isinstance(found, types.TextResourceContents):
        return found.text.encode()
    return base64.b64decode(found.blob)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """One for all examples."""
    with Shelf(tmp_path_factory.mktemp("shelf")) as made:
        yield made


@settings(deadline=None)
@given(
    st.binary(max_size=60)
    | st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace"))
    | st.lists(st.sampled_from(["a", "é", "€", "𝄞", "\0"])).map(
        lambda some: "".join(some).encode()
    ),
    st.integers(1, 70),
)
def test_pieces_are_the_whole(shelf: Shelf, data: bytes, size: int) -> None:
    """Each after the one before, or each at a multiple of the size: nothing twice or lost."""

    async def run() -> None:
        uri = await shelf.keep(data)
        is_text = data.decode("utf-8", "ignore").encode() == data
        joined, following = await shelf.read(f"{uri}?limit={size}")
        while following is not None:
            (found,) = (await read(shelf.loop, following, OLD)).contents
            assert isinstance(found, types.TextResourceContents) or not is_text
            piece, following = await shelf.read(following)
            joined += piece
        assert joined == data
        step = max(size, LEAST)
        pieces = [
            (await shelf.read(f"{uri}?limit={step}&offset={start}"))[0]
            for start in range(0, len(data) + 1, step)
        ]
        assert b"".join(pieces) == data

    asyncio.run(run())


def test_bytes_that_are_no_text_are_as_they_were(shelf: Shelf) -> None:
    """What is no UTF-8 comes in base64, exactly the bytes that were asked for."""

    async def run() -> None:
        data = bytes(range(256)) * 8
        uri = await shelf.keep(data)
        (found,) = (await read(shelf.loop, f"{uri}?offset=200&limit=300", OLD)).contents
        assert isinstance(found, types.BlobResourceContents)
        assert found.mime_type == "application/octet-stream"
        assert base64.b64decode(found.blob) == data[200:500]
        assert found.meta == {
            "executor/offset": 200,
            "executor/total": 2048,
            "executor/next": f"{uri}?offset=500&limit=300",
        }

    asyncio.run(run())


def test_a_read_is_bounded(shelf: Shelf) -> None:
    """Without a limit, and with too high a one, it is 128 KiB; the end says that it is one."""

    async def run() -> None:
        data = b"0123456\n" * (MOST // 8) + b"the end"
        uri = await shelf.keep(data)
        for asked in (uri, f"{uri}?limit={MOST * 9}"):
            assert await shelf.read(asked) == (data[:MOST], f"{uri}?offset={MOST}&limit={MOST}")
        assert await shelf.read(f"{uri}?offset={MOST}") == (b"the end", None)
        assert await shelf.read(f"{uri}?offset={len(data)}") == (b"", None)
        refused = await shelf.refusal(f"{uri}?offset={len(data) + 1}")
        assert refused.code == types.INVALID_PARAMS
        assert f"ends at byte {len(data)}" in refused.message
        refused = await shelf.refusal(f"{uri}?offset=x")
        assert refused.code == types.INVALID_PARAMS

    asyncio.run(run())


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    """Never made, dropped meanwhile, or of a loop that is closed; each version has its code."""

    async def run() -> None:
        limits = SpillLimits(files=2)
        with Shelf(tmp_path, limits) as shelf:
            uris = [await shelf.keep(b"x" * 100) for _ in range(3)]
            for uri in (uris[0], f"{ROOT}9.txt", f"{ROOT}../etc/passwd", "file:///etc/passwd"):
                refused = await shelf.refusal(uri)
                assert (refused.code, refused.data) == (NOT_FOUND, {"uri": uri})
            assert (await shelf.refusal(uris[0], NEW)).code == types.INVALID_PARAMS
            with pytest.raises(MCPError):
                await read(None, uris[2], OLD)
            reading = asyncio.ensure_future(shelf.read(uris[1]))
            await shelf.keep(b"y")  # drops the one that is being read
            assert await reading == (b"x" * 100, None)
            assert (await shelf.refusal(uris[1])).code == NOT_FOUND
            shelf.results.close()
            assert (await shelf.refusal(uris[2])).code == NOT_FOUND

    asyncio.run(run())


def test_the_list_of_many_comes_in_pages(tmp_path: Path) -> None:
    """10,000 results: the newest first, each once, also where some are dropped between pages."""
    count = 10_000

    async def run() -> None:
        with Shelf(tmp_path, SpillLimits(files=count)) as shelf:
            for _ in range(count):
                await shelf.keep(b"x")
            resources = Resources()
            names: list[str] = []
            cursor = None
            for number in itertools.count():
                page = resources.page(shelf.loop, cursor)
                assert len(page.resources) <= PAGE
                names += [one.name for one in page.resources]
                if number % 10 == 0:
                    await shelf.keep(b"y")
                if (cursor := page.next_cursor) is None:
                    break
            # Each tenth page took the oldest one away, before its turn came.
            assert names == [f"{one}.txt" for one in range(count, 10, -1)]
            for cursor in ("x", "", "-1", "1" * 40):
                with pytest.raises(MCPError) as refused:
                    resources.page(shelf.loop, cursor)
                assert refused.value.code == types.INVALID_PARAMS

    asyncio.run(run())


@pytest.mark.parametrize(
    "rules",
    [{"deny": (f"read_file(/{RESULTS}/**)",)}, {"deny": ("read_file",)}, {"ask": ("read_file",)}],
)
def test_what_rules_keep_from_readers_is_no_resource(tmp_path: Path, rules: Any) -> None:
    """A rule that denies the file, or wants somebody asked, hides it here as well."""

    async def run() -> None:
        with Shelf(tmp_path, **rules) as shelf:
            uri = await shelf.keep(b"x")
            resources = Resources()
            assert resources.page(shelf.loop, None).resources == []
            assert (await shelf.refusal(uri)).code == NOT_FOUND
            result = Result("1", "run_command", "x", truncated=True, spill=f"{RESULTS}/1.txt")
            assert resources.link(result, shelf.loop, OLD) is None

    asyncio.run(run())


# ─── what is told ───────────────────────────────────────────────────────────────────


def test_events_are_told_by_how_much_they_matter() -> None:
    """Faults are warnings, a lost box a notice, the rest less; output is no message."""
    ended = BackgroundEnded(task_id="bash_1", status="failed", exit_code=3)
    assert said_of(Warned(message="so it is")) == ("warning", "so it is")
    assert said_of(ended) == ("info", "the background task bash_1 has ended: failed, exit code 3")
    lost = said_of(LaneLost(lane="no-net", cause="it was removed"))
    assert lost == ("notice", "the sandbox of lane no-net is gone: it was removed")
    opened = said_of(LaneOpened(lane="no-net", sandbox="executor-x"))
    assert opened is not None and opened[0] == "debug"
    assert said_of(Output(call_id="1", channel="stdout", text="x")) is None


class DeafSession:
    """The session of a client that takes nothing: a notification is never over."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = asyncio.Event()

    async def send_log_message(self, level: str, data: str, **_: Any) -> None:
        """A message."""
        self.begun.append(f"{level}: {data}")
        await self.go.wait()

    async def send_tool_list_changed(self) -> None:
        """A change."""
        self.begun.append("tools")
        await self.go.wait()


def test_a_message_is_told_once_however_many_hear_it() -> None:
    """By one of the calls during which it happened, and then not by the connection."""

    async def run() -> None:
        notices = Notices(lambda level: True)
        session: Any = DeafSession()
        session.go.set()
        context: Any = SimpleNamespace(session=session, protocol_version=OLD, request_id=1)
        notices.begin(session)
        event = Warned(message="so it is", seq=1)
        with notices.told(context) as one, notices.told(context) as other:
            for hear in (notices.hear, one.take, other.take):
                hear(event)
            await one.finish()
            await other.finish()
        notices.hear(Warned(message="so it is again", seq=2))
        await notices.finish()
        assert session.begun == ["warning: so it is", "warning: so it is again"]

    asyncio.run(run())


def test_old_claims_are_forgotten() -> None:
    """A connection may last: that its oldest events were told is known no more."""
    claims = Claims()
    for number in range(20_000):
        claims.add(number)
    assert 19_999 in claims and 0 not in claims


def test_who_does_not_read_makes_nobody_keep_more() -> None:
    """One message is under way, few wait, and what was left out is said when there is room."""

    async def run() -> None:
        notices = Notices(lambda level: True)
        session: Any = DeafSession()
        notices.begin(session)
        for number in range(1, 1001):
            notices.hear(Warned(message=str(number), seq=number))
            notices.changed("tools")
        await asyncio.sleep(0)
        assert session.begun == ["warning: 1"]
        session.go.set()
        await notices.finish()
        begun = session.begun
        assert begun[1] == "tools" and begun.count("tools") == 1
        left_out = 1000 - 1 - MAX_WAITING
        assert begun[2].startswith(f"warning: {left_out} messages were left out")
        assert begun[3:] == [f"warning: {one}" for one in range(1000 - MAX_WAITING + 1, 1001)]

    asyncio.run(run())


# ─── the official client ────────────────────────────────────────────────────────────


class Heard:
    """What a client was told without asking."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.logs: list[tuple[str, str]] = []
        self._changed = asyncio.Event()

    async def message(self, message: Any) -> None:
        """A notification."""
        if (method := getattr(message, "method", None)) is not None:
            self.methods.append(method.removeprefix("notifications/"))
            self._changed.set()

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        """A message of a level."""
        self.logs.append((params.level, str(params.data)))
        self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for it."""
        async with asyncio.timeout(SECONDS):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    @property
    def handlers(self) -> dict[str, Any]:
        """For a session."""
        return {"message_handler": self.message, "logging_callback": self.log}


async def run_command(session: ClientSession | Client, command: str, **more: Any) -> Any:
    """The result of a command."""
    return await session.call_tool("run_command", {"command": command, **more})


def link_of(result: types.CallToolResult) -> types.ResourceLink:
    """The link at the end of a result."""
    link = result.content[-1]
    assert isinstance(link, types.ResourceLink), result.content
    return link


async def piece_of(session: ClientSession, uri: str) -> Any:
    """What is read there."""
    (found,) = (await session.read_resource(uri)).contents
    return found


def test_a_result_that_was_cut_is_a_resource(worktree: Path) -> None:
    """Its link names it, the list has it, and its pieces are the whole; nothing else is there."""

    async def run() -> None:
        heard = Heard()
        async with client(worktree, **heard.handlers) as session:
            assert (await session.list_resources()).resources == []
            short = await run_command(session, "echo short")
            assert [block.type for block in short.content] == ["text"]
            link = link_of(await run_command(session, HUGE))
            size = 3 << 20
            assert (link.uri, link.name, link.size) == (f"{ROOT}1.txt", "1.txt", size)
            assert f"{RESULTS}/1.txt" in str(link.description)
            await heard.until(lambda: heard.methods == ["resources/list_changed"])
            (listed,) = (await session.list_resources()).resources
            assert (listed.uri, listed.size) == (link.uri, size)
            assert listed.title == "A result of run_command" and "?offset=" in str(
                listed.description
            )
            (template,) = (await session.list_resource_templates()).resource_templates
            assert template.uri_template == "executor://results/{name}{?offset,limit}"
            text, following = "", str(link.uri)
            while following:
                found = await piece_of(session, following)
                assert found.mime_type == "text/plain" and found.uri == following
                text += found.text
                following = found.meta.get("executor/next", "")
            assert text == "0123456\n" * (size // 8)
            for name in ("2.txt", "../../etc/passwd", "%2e%2e%2fetc%2fpasswd", "1.txt/../2.txt"):
                with pytest.raises(MCPError) as refused:
                    await session.read_resource(ROOT + name)
                assert refused.value.code == NOT_FOUND
            with pytest.raises(MCPError) as refused:
                await session.read_resource(f"{link.uri}?offset={size + 1}")
            assert refused.value.code == types.INVALID_PARAMS

    asyncio.run(run())


def test_bytes_of_a_command_are_a_resource_too(worktree: Path) -> None:
    """What is no UTF-8 is the same bytes in base64, and a failed command's output is there."""

    async def run() -> None:
        async with client(worktree) as session:
            ran = await run_command(session, "yes $'\\xff\\xfe' | head -c 120000; exit 3")
            assert ran.is_error
            found = await piece_of(session, link_of(ran).uri)
            assert isinstance(found, types.BlobResourceContents)
            assert base64.b64decode(found.blob) == b"\xff\xfe\n" * 40_000

    asyncio.run(run())


def test_values_of_secrets_are_masked_there(
    worktree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that is in the worktree, and so in a long output, does not leave in a resource."""
    value = "canary-4f9aZq77"
    monkeypatch.setenv("TOKEN", value)
    (worktree / "x").write_text(value + "\n")

    async def run() -> None:
        options = ("--secret", "TOKEN@a.example", "--egress", "a.example")
        async with client(worktree, *options) as session:
            link = link_of(await run_command(session, "yes $(cat x) | head -c 1600k"))
            for offset in (0, MOST - 3):
                found = await piece_of(session, f"{link.uri}?offset={offset}")
                assert value[2:] not in found.text and "*" * len(value) in found.text

    asyncio.run(run())


def test_what_makes_room_is_told(worktree: Path, tmp_path: Path) -> None:
    """The list changes when a result is dropped for another one, and reading it says so."""
    config = tmp_path / "config.toml"
    config.write_text("[spill]\nfiles = 1\n")

    async def run() -> None:
        heard = Heard()
        async with client(worktree, "--config", str(config), **heard.handlers) as session:
            first = link_of(await run_command(session, HUGE))
            second = link_of(await run_command(session, HUGE))
            await heard.until(lambda: heard.methods == ["resources/list_changed"] * 2)
            assert [one.uri for one in (await session.list_resources()).resources] == [second.uri]
            with pytest.raises(MCPError) as refused:
                await session.read_resource(first.uri)
            assert refused.value.code == NOT_FOUND and refused.value.data == {"uri": first.uri}

    asyncio.run(run())


def test_tools_that_change_are_told(worktree: Path, tmp_path: Path) -> None:
    """A server of the loop has a new tool after a call: the client hears of it, and of no other."""
    config = tmp_path / "config.toml"
    command = json.dumps(["python3", "-c", STUB])
    config.write_text(f"[mcp.good]\ncommand = {command}\n")

    async def run() -> None:
        heard = Heard()
        async with client(worktree, "--config", str(config), **heard.handlers) as session:
            before = {tool.name for tool in (await session.list_tools()).tools}
            assert "mcp__good__add" in before, "its tools were waited for"
            await session.call_tool("mcp__good__echo", {"text": "x"})
            assert heard.methods.count("tools/list_changed") == 0
            await session.call_tool("mcp__good__add", {})
            await heard.until(lambda: "tools/list_changed" in heard.methods)
            after = {tool.name for tool in (await session.list_tools()).tools}
            assert len(after - before) == 1 and before < after
            await session.call_tool("mcp__good__echo", {"text": "x"})
            assert heard.methods.count("tools/list_changed") == 1

    asyncio.run(run())


def test_tools_are_listed_while_the_box_is_opened(worktree: Path) -> None:
    """A long set-up holds up no list; when the box turns out to lack something, that is told."""

    async def run() -> None:
        heard = Heard()
        setup = BACKGROUND.format("go")
        async with client(worktree, "--setup", setup, **heard.handlers) as session:
            foreseen = {tool.name for tool in (await session.list_tools()).tools}
            assert {"read_file", "run_command", "lsp"} <= foreseen
            assert (await session.list_resources()).resources == []
            assert heard.methods == []
            (worktree / "go").touch()
            await heard.until(lambda: heard.methods == ["tools/list_changed"])
            real = {tool.name for tool in (await session.list_tools()).tools}
            assert foreseen - real == {"lsp"}, "the image has no language server"

    asyncio.run(run())


def test_a_sandbox_that_can_not_be_had_is_told_to_who_has_a_list(worktree: Path) -> None:
    """The list was foreseen, the loop fails: that is told, and what each call is answered."""

    async def run() -> None:
        heard = Heard()
        setup = BACKGROUND.format("go") + "; exit 3"
        async with client(worktree, "--setup", setup, **heard.handlers) as session:
            assert (await session.list_tools()).tools
            (worktree / "go").touch()
            await heard.until(lambda: bool(heard.logs))
            ((level, text),) = heard.logs
            assert level == "error" and "exit code 3" in text
            for asking in (session.list_tools(), run_command(session, "true")):
                with pytest.raises(MCPError, match="exit code 3"):
                    await asking

    asyncio.run(run())


@OLD_LOGGING
def test_what_ends_outside_of_calls_is_told(worktree: Path) -> None:
    """The end of a background task, once, if the client wants such messages."""

    async def run() -> None:
        heard = Heard()
        async with client(worktree, **heard.handlers) as session:
            for name in ("first", "second"):
                await run_command(session, BACKGROUND.format(name), run_in_background=True)
            (worktree / "first").touch()
            await heard.until(lambda: len(heard.logs) == 1)
            await session.set_logging_level("warning")
            (worktree / "second").touch()
            shown = ""
            while "exit" not in shown.lower() and "completed" not in shown:
                found = await session.call_tool("task_output", {"task_id": "bash_2"})
                shown = str(found.content)
            await session.set_logging_level("debug")
            await run_command(session, "true")
        ((level, text),) = heard.logs
        assert level == "info" and "bash_1 has ended: completed, exit code 0" in text

    asyncio.run(run())


@OLD_LOGGING
def test_a_box_that_is_lost_is_told(worktree: Path) -> None:
    """That it is gone, and that there is a new one, each once; the call says it as well."""

    async def run() -> None:
        heard = Heard()
        async with client(worktree, "--exec-id", "mcp-lost", **heard.handlers) as session:
            await session.set_logging_level("debug")
            await run_command(session, "true")
            name = boxes("mcp-lost")[0]
            await asyncio.to_thread(
                subprocess.run, ["docker", "rm", "-f", name], check=True, capture_output=True
            )
            while True:
                ran = await run_command(session, "echo here")
                if not ran.is_error:
                    break
            await session.send_ping()
            levels = [level for level, text in heard.logs if "lane no-net" in text]
            assert levels == ["debug", "notice", "debug"], heard.logs

    asyncio.run(run())


# ─── the protocol's versions ────────────────────────────────────────────────────────


def test_what_is_declared_is_there(worktree: Path) -> None:
    """Lists that change, no subscriptions, levels, and no prompts or completions."""
    with served(worktree) as wire:
        declared = wire.greet()["result"]["capabilities"]
        assert declared == {
            "logging": {},
            "resources": {"listChanged": True, "subscribe": False},
            "tools": {"listChanged": True},
        }
        absent = ("prompts/list", "completion/complete", "resources/subscribe", "server/discover")
        for number, method in enumerate(absent, 1):
            params: dict[str, Any] = (
                {"uri": f"{ROOT}1.txt"} if method.startswith("resources") else {}
            )
            if method.startswith("completion"):
                reference = {"type": "ref/resource", "uri": ROOT}
                params = {"ref": reference, "argument": {"name": "name", "value": ""}}
            wire.request(number, method, **params)
            assert wire.receive()["error"]["code"] == -32601, method
        wire.request(9, "logging/setLevel", level="nonsense")
        assert wire.receive()["error"]["code"] == types.INVALID_PARAMS
        for number, what in enumerate(("tools", "resources", "resources/templates"), 10):
            wire.request(number, f"{what}/list", cursor="nonsense")
            assert wire.receive()["error"]["code"] == types.INVALID_PARAMS, what


@pytest.mark.parametrize(("version", "has_link"), [("2025-03-26", False), ("2025-06-18", True)])
def test_older_clients_get_no_links(worktree: Path, version: str, has_link: bool) -> None:
    """A client whose version has no such block is given none; the resource is there for both."""
    with served(worktree) as wire:
        about = {"name": "test", "version": "1"}
        wire.request(0, "initialize", protocolVersion=version, capabilities={}, clientInfo=about)
        assert wire.receive()["result"]["protocolVersion"] == version
        wire.call(1, HUGE)
        kinds = [block["type"] for block in wire.receive()["result"]["content"]]
        assert kinds == (["text", "resource_link"] if has_link else ["text"])
        wire.request(2, "resources/read", uri=f"{ROOT}1.txt?limit=8")
        (found,) = wire.receive()["result"]["contents"]
        assert found["text"] == "0123456\n"


def test_newer_clients_ask_to_be_told(worktree: Path, tmp_path: Path) -> None:
    """The version of 2026: changes come to those who listen, messages with a call that asks."""
    config = tmp_path / "config.toml"
    config.write_text("[spill]\nfiles = 1\n")

    async def run() -> None:
        heard = Heard()
        given = StdioServerParameters(
            command=sys.executable,
            args=[*SERVER, str(worktree), "--config", str(config)],
            env={**os.environ},
        )
        made = Client(given, mode=NEW, log_level="debug", cache=None, **heard.handlers)
        async with asyncio.timeout(SECONDS), made as session:
            assert session.protocol_version == NEW
            listening = session.listen(
                tools_list_changed=True,
                resources_list_changed=True,
                resource_subscriptions=[f"{ROOT}1.txt"],
            )
            async with listening as changes:
                await run_command(session, BACKGROUND.format("go"), run_in_background=True)
                link = link_of(await run_command(session, HUGE))
                assert await anext(changes) == ResourcesListChanged()
                (worktree / "go").touch()
                while not any("bash_1 has ended" in text for _, text in heard.logs):
                    await run_command(session, "true")
                await run_command(session, HUGE)
                found = {await anext(changes), await anext(changes)}
                assert found == {ResourcesListChanged(), ResourceUpdated(link.uri)}
            with pytest.raises(MCPError) as refused:
                await session.read_resource(link.uri)
            assert refused.value.code == types.INVALID_PARAMS
            assert sum("bash_1 has ended" in text for _, text in heard.logs) == 1

    asyncio.run(run())


# ─── hostile clients ────────────────────────────────────────────────────────────────


def test_a_client_that_never_reads_holds_up_nothing(worktree: Path) -> None:
    """It asks a thousand times for 128 KiB: few answers are held, and its end is the box's."""
    with served(worktree, "--exec-id", "mcp-mute") as wire:
        wire.greet()
        wire.call(1, HUGE)
        wire.receive()
        for number in range(2, 1002):
            wire.request(number, "resources/read", uri=f"{ROOT}1.txt")
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        # What a parent had counts in the usage that `wait4` tells, so it is looked at meanwhile.
        held = Path(f"/proc/{wire.process.pid}/status")
        peaks = [0]

        def is_over() -> bool:
            peaks.extend(int(peak) for peak in re.findall(r"VmHWM:\s+(\d+) kB", held.read_text()))
            return wire.process.poll() is not None

        wait_until(is_over)
        assert wire.process.returncode == 0
        assert 0 < max(peaks) << 10 < 500 << 20
    assert boxes("mcp-mute") == []


def test_requests_beyond_all_measure_are_refused_and_the_next_ones_are_not(worktree: Path) -> None:
    """A client that reads at last has an answer to each of them, and can go on."""
    with served(worktree) as wire:
        wire.greet()
        wire.call(1, BACKGROUND.format("go"))
        for number in range(2, MAX_UNANSWERED + 11):
            wire.call(number, "true")
        refused = [wire.receive() for _ in range(10)]
        assert all("wait for their answers" in one["error"]["message"] for one in refused)
        wire.cancel(2)
        wire.request(1000, "ping")
        assert wire.receive()["id"] == 1000
        (worktree / "go").touch()
        answered = [wire.receive() for _ in range(MAX_UNANSWERED - 1)]
        assert all("result" in one for one in answered)
        wire.call(1001, "echo again")
        assert "again" in wire.receive()["result"]["content"][0]["text"]


def test_a_client_that_never_reads_can_be_ended(worktree: Path) -> None:
    """SIGTERM while an answer is stuck: the usual code, and no box."""
    with served(worktree, "--exec-id", "mcp-stuck") as wire:
        wire.greet()
        wire.call(1, HUGE)
        wire.receive()
        wire.request(2, "resources/read", uri=f"{ROOT}1.txt")
        wire.call(3, "touch after")
        wait_until((worktree / "after").exists)
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(timeout=SECONDS) == 128 + signal.SIGTERM
    assert boxes("mcp-stuck") == []


# ─── a loop that goes away ──────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def connected(server: LoopServer, **handlers: Any) -> AsyncIterator[ClientSession]:
    """The SDK's client of a server in this process."""
    to_server, incoming = anyio.create_memory_object_stream[Any](10)
    outgoing, from_server = anyio.create_memory_object_stream[Any](10)
    serving = asyncio.create_task(server.run(incoming, outgoing))
    async with ClientSession(from_server, to_server, **handlers) as session:
        await session.initialize()
        yield session
    await to_server.aclose()
    await serving


def test_a_loop_that_is_closed_takes_its_results_along(tmp_path: Path) -> None:
    """Whoever is connected still gets answers: there is no such result, and no box for calls."""

    async def run() -> None:
        with Shelf(tmp_path) as shelf:
            stack = contextlib.AsyncExitStack()
            loop = await stack.enter_async_context(shelf.loop._opened())

            async def given() -> Loop:
                return loop

            async with connected(LoopServer(given, "1")) as session:
                assert (await session.list_tools()).tools
                uri = await shelf.keep(b"x" * 10)
                assert (await piece_of(session, uri)).text == "x" * 10
                await stack.aclose()
                shelf.results.close()
                with pytest.raises(MCPError) as refused:
                    await session.read_resource(uri)
                assert refused.value.code == NOT_FOUND
                ran = await run_command(session, "true")
                assert ran.is_error

    asyncio.run(run())


def test_a_box_is_had_as_soon_as_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine was not there when it was asked: it is asked again, but not at every request."""
    monkeypatch.setattr(mcp_loops, "AGAIN_SECONDS", math.inf)

    async def run() -> None:
        tries: list[bool] = []
        with Shelf(tmp_path) as shelf:

            async def keep(opened: asyncio.Future[Loop], end: asyncio.Event) -> None:
                tries.append(started.is_set())
                if not started.is_set():
                    raise EngineError("start Docker")
                async with shelf.loop._opened() as loop:
                    opened.set_result(loop)
                    await end.wait()

            started = asyncio.Event()
            kept = mcp_loops.KeptLoop(keep)
            async with connected(LoopServer(kept.opened, "1")) as session:
                for _ in range(2):
                    for asking in (session.list_tools(), run_command(session, "true")):
                        with pytest.raises(MCPError, match="start Docker"):
                            await asking
                assert tries == [False]
                monkeypatch.setattr(mcp_loops, "AGAIN_SECONDS", 0.0)
                started.set()
                assert (await session.list_tools()).tools
                assert not (await run_command(session, "true")).is_error
                assert tries == [False, True]
                uri = await shelf.keep(b"x" * 10)
                assert (await piece_of(session, uri)).text == "x" * 10
            assert await kept.close() is None

    asyncio.run(run())


def test_a_box_that_fails_again_is_told_to_who_has_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure was an answer, the next one is of a list that was foreseen: it is news."""
    monkeypatch.setattr(mcp_server, "PATIENCE", 0.0)

    async def run() -> None:
        heard = Heard()
        failed = asyncio.Event()
        failed.set()

        async def opened() -> Loop:
            await failed.wait()
            raise EngineError("start Docker")

        async def foreseen() -> list[types.Tool]:
            return [types.Tool(name="foreseen", input_schema={"type": "object"})]

        server = LoopServer(opened, "1", foreseen=foreseen)
        async with connected(server, **heard.handlers) as session:
            with pytest.raises(MCPError, match="start Docker"):
                await run_command(session, "true")
            failed.clear()
            assert [tool.name for tool in (await session.list_tools()).tools] == ["foreseen"]
            assert heard.logs == []
            failed.set()
            await heard.until(lambda: bool(heard.logs))
            ((level, text),) = heard.logs
            assert level == "error" and "start Docker" in text

    asyncio.run(run())


def test_a_new_attempt_hides_no_failure() -> None:
    """Another request begins it in the moment in which the one that waited hears of the end."""

    async def run() -> None:
        fails = asyncio.Event()
        tries = itertools.count(1)

        async def opened() -> Loop:
            match next(tries):
                case 1:
                    await fails.wait()
                    asyncio.get_running_loop().call_soon(server._begin)
                case 2:  # that one
                    await asyncio.Event().wait()
            raise EngineError("start Docker")

        async def foreseen() -> list[types.Tool]:
            raise AssertionError("the box has failed")

        server = LoopServer(opened, "1", foreseen=foreseen)
        async with connected(server) as session:
            asking = asyncio.create_task(session.list_tools())
            await session.send_ping()  # answered after the other one has begun to wait
            fails.set()
            with pytest.raises(MCPError, match="start Docker"):
                await asking

    asyncio.run(run())


def test_a_wrong_specification_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time puts that right."""
    monkeypatch.setattr(mcp_loops, "AGAIN_SECONDS", 0.0)

    async def run() -> None:
        tries: list[bool] = []

        async def keep(opened: asyncio.Future[Loop], end: asyncio.Event) -> None:
            tries.append(True)
            raise ConfigError("there is no such lane")

        kept = mcp_loops.KeptLoop(keep)
        for _ in range(2):
            with pytest.raises(ConfigError, match="no such lane"):
                await kept.opened()
        assert tries == [True]

    asyncio.run(run())


def test_what_is_wrong_can_be_sent_whatever_it_names() -> None:
    """A directory's name need be no text, and the error of a box may have it."""

    async def run() -> None:
        async def opened() -> Loop:
            raise EngineError("there is no /srv/\udcff")

        async with connected(LoopServer(opened, "1")) as session:
            with pytest.raises(MCPError) as refused:
                await session.list_tools()
            assert refused.value.message.endswith("there is no /srv/\\xff")

    asyncio.run(run())


def test_who_is_cancelled_amid_messages_is_cancelled() -> None:
    """Whatever comes in that moment: no fault of the SDK's streams takes its place."""

    async def run() -> None:
        to_server, incoming = anyio.create_memory_object_stream[Any](math.inf)
        outgoing, from_server = anyio.create_memory_object_stream[Any](math.inf)
        serving = asyncio.create_task(LoopServer(never_opened, "1").run(incoming, outgoing))
        for number in range(100):
            request = types.JSONRPCRequest(jsonrpc="2.0", id=number, method="ping")
            to_server.send_nowait(SessionMessage(request))
        await from_server.receive()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        to_server.close()
        from_server.close()

    asyncio.run(run())


async def never_opened() -> Loop:
    """A loop that is still being opened."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


@pytest.mark.skipif(shutil.which("npx") is None, reason="no npx here to run the inspector with")
def test_the_inspector_finds_resources(worktree: Path) -> None:
    """The protocol's own inspector lists them and their template; what is not there is an error."""
    server = [sys.executable, *SERVER, str(worktree)]
    asked = ["npx", "-y", "@modelcontextprotocol/inspector", "--cli", *server, "--method"]

    def inspected(*more: str) -> subprocess.CompletedProcess[str]:
        command = [*asked, *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    listed = inspected("resources/list")
    assert listed.returncode == 0 and json.loads(listed.stdout) == {"resources": []}
    templates = json.loads(inspected("resources/templates/list").stdout)["resourceTemplates"]
    assert [one["uriTemplate"] for one in templates] == ["executor://results/{name}{?offset,limit}"]
    refused = inspected("resources/read", "--uri", f"{ROOT}1.txt")
    assert refused.returncode != 0 and "there is no such result" in refused.stderr + refused.stdout
