"""What was found by trying to break the language servers: each test failed once.

Positions are of the files as they are, whatever changed them; calls end in time; a server can cost
the controller neither its memory nor its turn.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from executor.approvals import CallableApprover
from executor.bytestream import ByteStream
from executor.catalog_servers import LanguageEntry
from executor.language import documents, messages, reports, servers
from executor.language import server as server_module
from executor.language.documents import Document
from executor.language.messages import Ended
from executor.language.positions import Text
from executor.language.server import LanguageServer
from executor.language.uris import uri_of
from executor.model import EgressOptions, Limits, LoopSpec, Result, Secret
from executor.served import State
from tests.conftest import LIMITS
from tests.foreign.test_client import said
from tests.language.test_messages import Pipes
from tests.loops import Work, open_work
from tests.test_catalog import with_user_file

STUB = (Path(__file__).parent / "stubs" / "hostile.py").read_text()
T = TypeVar("T")
PLACED = {"operation": "find_references", "line": 1, "column": 1}


class Desk:
    """A loop with one hostile server.

    Attributes:
        work: the loop.
    """

    def __init__(self, work: Work) -> None:
        self.work = work

    def call(self, path: str = "a.x", operation: str = "find_references") -> Result:
        """A question about the first word of a file."""
        given = {**PLACED, "operation": operation, "path": path, "new_name": "new"}
        return self.work.call("lsp", **given)

    def found(self, path: str = "a.x") -> list[tuple[str, int]]:
        """Where that word stands, path and line each."""
        result = self.call(path)
        assert not result.is_error, said(result)
        return found_in(result)

    def shown(self, path: str = "a.x", operation: str = "find_references") -> tuple[set[str], int]:
        """The files of the answer, and how many places it hides. No line of a secret is in it."""
        result = self.call(path, operation)
        assert not result.is_error, said(result)
        assert result.structured is not None
        assert "hush" not in f"{said(result)} {result.structured}"
        return {name for name, _ in found_in(result)}, result.structured["hidden"]

    def starts(self) -> int:
        """How often the server was started."""
        return (self.work.root / ".starts").read_text().count("\n")

    def heard(self, method: str) -> int:
        """How often the server has heard something."""
        path = self.work.root / ".heard"
        return path.read_text().count(f"{method}\n") if path.exists() else 0

    def run(self, making: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What comes of work in the loop's thread."""
        return self.work.thread.run(making())

    async def asked(self, path: str = "a.x", **more: Any) -> Result:
        """The same question, in the loop's thread."""
        given = {**PLACED, "path": path, **more}
        return await self.work.loop.execute(self.work.make("lsp", given))

    async def until_heard(self, method: str, count: int = 1) -> None:
        """Until the server has heard something so often."""
        async with asyncio.timeout(60):
            while self.heard(method) < count:
                await asyncio.sleep(0.01)


ASKED = ("textDocument/definition", "textDocument/references", "textDocument/rename")


def columns_in(result: Result) -> list[tuple[str, int]]:
    """Path and column of each place."""
    assert result.structured is not None, said(result)
    return [(one["path"], one["column"]) for one in result.structured["locations"]]


def found_in(result: Result) -> list[tuple[str, int]]:
    """Path and line of each place."""
    assert result.structured is not None
    return [(one["path"], one["line"]) for one in result.structured["locations"]]


Opened = Callable[..., Desk]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens a loop whose server for `.x` is of this kind, with a file `a.x`."""
    with ExitStack() as stack:

        def make(
            kind: str = "",
            transport: str = "local",
            limits: Limits = LIMITS,
            change: Callable[[LoopSpec], LoopSpec] = lambda spec: spec,
            seconds: float = 20.0,
            approver: CallableApprover | None = None,
            **more: Any,
        ) -> Desk:
            entry = LanguageEntry({".x": "x"}, (("python3", "-c", STUB, kind),), **more)
            config = f"[tools.lsp]\ntimeout_ms = {int(seconds * 1000)}\n"
            catalog = replace(with_user_file(config), languages={"hostile": entry})
            work = stack.enter_context(
                open_work(
                    transport, tmp_path, limits, change=change, catalog=catalog, approver=approver
                )
            )
            work.write("a.x", "word\n")
            return Desk(work)

        yield make


# ─── files as they are ──────────────────────────────────────────────────────────────


def test_a_change_that_puts_time_and_size_back(opened: Opened) -> None:
    """As archives and `touch -r` do: the file is another one all the same."""
    desk = opened()
    path = desk.work.write("b.x", "word\nnone\n")
    assert desk.found("b.x") == [("b.x", 1)]
    assert desk.found() == [("a.x", 1), ("b.x", 1)]
    status = path.stat()
    path.write_text("none\nword\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert desk.found() == [("a.x", 1), ("b.x", 2)]


def test_files_of_the_future_cost_no_server(opened: Opened) -> None:
    """A clock was wrong, or an archive's; nothing has changed for that."""
    desk = opened()
    for number in range(40):
        path = desk.work.write(f"f{number}.x", "none\n")
        os.utime(path, (4e9, 4e9))
    for _ in range(3):
        assert desk.found() == [("a.x", 1)]
    assert desk.starts() == 1


def test_more_files_than_are_looked_at(opened: Opened) -> None:
    """The answer says so, and no more once they are gone."""
    desk = opened()
    assert "looked at" not in said(desk.call())
    many = "mkdir m && seq -f m/%.0f.x 50001 | xargs touch"
    assert not desk.work.call("run_command", command=many).is_error
    assert "only 50000 files are looked at for changes" in said(desk.call())
    assert not desk.work.call("run_command", command="rm -r m").is_error
    assert "looked at" not in said(desk.call())


@pytest.mark.parametrize("name", ["node_modules/b.x", "link.x", "b.X"])
def test_a_document_that_no_sweep_sees(opened: Opened, name: str) -> None:
    """Its changes are seen as those of others, by questions about others."""
    desk = opened()
    path = desk.work.write(name if name != "link.x" else "real.y", "word\n")
    if name == "link.x":
        (desk.work.root / name).symlink_to("real.y")
    assert desk.found(name) == [(name, 1)]
    path.write_text("none\nword\n")
    assert desk.found() == [("a.x", 1), (name, 2)]
    path.unlink()
    assert desk.found() == [("a.x", 1)]


def test_many_fresh_files_cost_one_start(opened: Opened) -> None:
    """Files whose time may hide another change are looked at again, which is no change."""
    desk = opened()
    assert desk.found() == [("a.x", 1)]
    for number in range(60):
        desk.work.write(f"f{number}.x", "none\n")
    for _ in range(4):
        assert desk.found() == [("a.x", 1)]
    assert desk.starts() <= 2


def test_more_changes_than_a_server_is_told_of(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that follows changes by itself is started anew, rather than told of a part of them."""
    monkeypatch.setattr(documents, "MOST_TOLD", 10)
    desk = opened(following=("python3",))
    assert desk.found() == [("a.x", 1)]
    for count, starts in ((5, 1), (20, 2)):
        for number in range(count):
            desk.work.write(f"{count}-{number}.x", "none\n")
        assert desk.found() == [("a.x", 1)]
        assert desk.starts() == starts


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbf/12/ word x\n", "/12/ new x"),
        (b"/\xe9\xe8/ word x\n", "/\ufffd\ufffd/ new x"),
    ],
    ids=["marked", "latin"],
)
@pytest.mark.parametrize("operation", ["goto_definition", "find_references", "rename_preview"])
def test_a_file_that_is_no_plain_text_is_counted_as_it_is_shown(
    opened: Opened, data: bytes, text: str, operation: str
) -> None:
    """A server that counts what is on the disk is sent the text, and asked once more."""
    desk = opened("reads_disk")
    desk.work.write("b.x", "/1/ word x\n")
    desk.work.write("c.x", data)
    result = desk.call(operation=operation)
    assert columns_in(result) == [("a.x", 1), ("b.x", 5), ("c.x", 6)]
    assert "c.x:1:6: " + (text if "rename" in operation else text.replace("new", "word")) in said(
        result
    )
    noted = [line for line in said(result).split("\n") if line.startswith("[")]
    asks = "[nothing was changed: make these changes with edit_file]"
    assert noted == ([asks] if operation == "rename_preview" else [])
    desk.call(operation=operation)
    assert sum(desk.heard(operation_) for operation_ in ASKED) == 3, "what it was sent it knows"


def test_more_files_that_are_no_plain_text_than_are_opened(opened: Opened) -> None:
    """Of the others the answer says that they may be counted otherwise, and where edits miss."""
    desk = opened("reads_disk")
    for number in range(10, 10 + documents.MOST_SENT + 2):
        desk.work.write(f"f{number}.x", b"/\xe9\xe8/\xef\xbb\xbf word x\n")
    told = said(desk.call(operation="rename_preview"))
    assert "otherwise than is shown in 2 files with a byte order mark or invalid UTF-8" in told
    assert "in f26.x, f27.x python3 would replace something else than word" in told
    told = said(desk.call(operation="rename_preview"))
    assert "otherwise" not in told, "they were opened by now"


def test_a_turn_that_edits_another_file_first(opened: Opened) -> None:
    """Answers are those of the order in which the calls were made, in both directions."""
    desk = opened()
    desk.work.write("b.x", "word\n")
    assert desk.found("b.x") == [("b.x", 1)]
    assert desk.found() == [("a.x", 1), ("b.x", 1)]
    for number in range(2, 8):
        before, after = "none\n" * (number - 2) + "word\n", "none\n" * (number - 1) + "word\n"
        asked = ("lsp", {**PLACED, "path": "a.x"})
        command = f"printf '{after}' > b.x".replace("\n", "\\n")
        assert (desk.work.root / "b.x").read_text() == before
        first, _, last = desk.work.turn(asked, ("run_command", {"command": command}), asked)
        assert found_in(first) == [("a.x", 1), ("b.x", number - 1)]
        assert found_in(last) == [("a.x", 1), ("b.x", number)]


def test_files_are_counted_that_are_of_the_language(opened: Opened) -> None:
    """Not those that say how the project is made."""
    more = {"searched": {"python3": 2}, "indexed_by": {"python3": "index.json"}}
    desk = opened(project_files=("proj.toml", "index.json"), **more)
    desk.work.write("proj.toml", "")
    assert said(desk.call()) == "a.x:1:1: word"
    desk.work.write("b.x", "")
    told = said(desk.call())
    assert "looks for uses in" not in told and "without a index.json" in told
    desk.work.write("index.json", "")
    desk.work.write("c.x", "")
    told = said(desk.call())
    assert "looks for uses in 2 files at most, and there are 3 here" in told
    assert "without" not in told


# ─── rules ──────────────────────────────────────────────────────────────────────────


def test_a_rule_that_asks_about_one_file_hides_no_other(opened: Opened) -> None:
    """Only what it names is hidden from a call that nobody was asked about."""
    desk = opened(change=lambda spec: replace(spec, ask=("read_file(secret.x)",)))
    for name in ("b.x", "secret.x"):
        desk.work.write(name, "word\n")
    assert desk.found("b.x") == [("b.x", 1)]
    desk.work.write("secret.x", "word hidden\n")
    result = desk.call()
    assert found_in(result) == [("a.x", 1), ("b.x", 1)]
    assert "hidden" not in said(result).replace("more is where", "")


WATCHED = {
    "ask": ("read_file(a.x)", "read_file(asked.x)", "read_file(pattern/**)", "lsp(own.x)"),
    "deny": ("read_file(denied.x)", "lsp(denied-too.x)"),
}
"""Rules; of the files `a.x` and `b.x` only the second may be read without a question."""


@pytest.fixture
def watched(opened: Opened) -> Desk:
    """A loop with these rules, whose person agrees to all, and a server that reads the disk."""
    desk = opened(
        "reads_disk",
        change=lambda spec: replace(spec, mode="default", **WATCHED),
        approver=CallableApprover(lambda request: True),
    )
    desk.work.write("b.x", "word\n")
    for name in ("asked.x", "own.x", "denied.x", "denied-too.x"):
        desk.work.write(name, "word hush\n")
    desk.work.write("pattern/asked.y", "word hush\n")
    (desk.work.root / "link.x").symlink_to("pattern/asked.y")
    return desk


@pytest.mark.parametrize("operation", ["goto_definition", "find_references", "rename_preview"])
def test_who_agreed_to_a_file_agreed_to_no_other(watched: Desk, operation: str) -> None:
    """Files that no rule is about are shown; of the others nothing is, and they are counted."""
    for change in ("", "more\n"):
        for name in ("b.x", "asked.x"):
            watched.work.write(name, f"word{' hush' if name != 'b.x' else ''}\n{change}")
        assert watched.shown("a.x", operation) == ({"a.x", "b.x"}, 5)
        assert watched.shown("b.x", operation) == ({"b.x"}, 6)
        for name in ("asked.x", "own.x", "link.x"):
            result = watched.call(name, operation)
            assert {path for path, _ in found_in(result)} == {name, "b.x"}
            assert result.structured is not None and result.structured["hidden"] == 5
    for name in ("denied.x", "denied-too.x"):
        assert watched.call(name, operation).is_error


def test_others_that_have_changed_are_known_to_an_agreed_call(opened: Opened) -> None:
    """By a server that knows open documents alone: none of them is closed for it."""
    desk = opened(
        change=lambda spec: replace(spec, mode="default", ask=("read_file(a.x)",)),
        approver=CallableApprover(lambda request: True),
    )
    desk.work.write("b.x", "word\n")
    assert desk.found("b.x") == [("b.x", 1)]
    for number in (2, 3):
        desk.work.write("b.x", "none\n" * (number - 1) + "word\n")
        assert desk.found() == [("a.x", 1), ("b.x", number)]
        assert found_in(desk.call(operation="rename_preview")) == [("a.x", 1), ("b.x", number)]


def test_a_document_that_may_not_be_read_for_a_time(opened: Opened) -> None:
    """It is open again with the first call that may read it, whatever that is about."""
    desk = opened(change=lambda spec: replace(spec, deny=("read_file(secret.y)",)))
    link = desk.work.root / "link.x"
    for name in ("plain.y", "secret.y"):
        desk.work.write(name, "word hush\n")
    link.symlink_to("plain.y")
    assert desk.found("link.x") == [("link.x", 1)]
    link.unlink()
    link.symlink_to("secret.y")
    assert desk.shown() == ({"a.x"}, 0)
    link.unlink()
    link.symlink_to("plain.y")
    assert desk.found() == [("a.x", 1), ("link.x", 1)]


# ─── in time ────────────────────────────────────────────────────────────────────────


def test_a_loop_that_is_closed_over_a_start(tmp_path: Path) -> None:
    """It waits for no server that is still to say its first word."""
    entry = LanguageEntry({".x": "x"}, (("python3", "-c", STUB, "says_nothing"),))
    catalog = replace(with_user_file(""), languages={"hostile": entry})
    with open_work("local", tmp_path, catalog=catalog) as work:
        work.write("a.x", "word\n")
        desk = Desk(work)

        async def begin() -> asyncio.Future[Result]:
            asking = asyncio.ensure_future(desk.asked())
            await desk.until_heard("initialize")
            return asking

        asking = desk.run(begin)
        began = time.monotonic()
    assert time.monotonic() - began < 20
    assert asking.done()
    assert "closed" in said(asking.result())


class _Held:
    """A program whose pipes are the test's.

    Attributes:
        pipes: they.
        is_running: its process has not ended.
    """

    def __init__(self) -> None:
        self.pipes = Pipes()
        self.is_running = True

    @property
    def stream(self) -> ByteStream:
        """The pipes."""
        return self.pipes

    async def state(self) -> State:
        """How the process is."""
        return State(self.is_running, None if self.is_running else 3, stderr=b"I am broken")

    async def end(self, grace: float = 2.0) -> State:
        """It stays as it is, but nobody minds."""
        return await self.state()

    async def asked(self, method: str) -> int:
        """The number of the next message, which has to ask this."""
        message = await self.pipes.heard()
        assert message["method"] == method
        number: int = message["id"]
        return number


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[LanguageServer, _Held]]:
    """A server whose pipes are the test's."""
    held = _Held()
    server = LanguageServer("held", held, LanguageEntry({".x": "x"}, (("held",),)))
    try:
        async with asyncio.timeout(60):
            yield server, held
    finally:
        held.pipes.say(b"")
        await server.end()


def _desk_of(server: LanguageServer) -> servers._Desk:
    """Where it is asked; no time is given to it before it is given up."""
    desk = servers._Desk(LanguageEntry({".x": "x"}, (("held",),)), ("held",))
    desk._server = server
    return desk


def test_one_that_was_not_asked_is_not_ended_for_its_silence() -> None:
    """The call's time went elsewhere, and it is said where."""

    async def scenario() -> None:
        async with _server() as (server, held):
            desk = _desk_of(server)
            asking = asyncio.ensure_future(server.ask("a", None))
            held.pipes.tell(id=await held.asked("a"), result=1)
            assert await asking == 1
            assert "the sandbox is busy" in await desk.give_up(0.0)
            assert not server.is_over
            assert desk._server is server

    asyncio.run(scenario())


def test_one_that_owes_an_answer_is_ended_for_its_silence() -> None:
    """It has had all of the time."""

    async def scenario() -> None:
        async with _server() as (server, held):
            asking = asyncio.ensure_future(server.ask("a", None))
            await held.asked("a")
            assert "still at work" in await _desk_of(server).give_up(600.0)
            assert "said nothing for long and was ended" in await _desk_of(server).give_up(0.0)
            with pytest.raises(Ended):
                await asking

    asyncio.run(scenario())


def test_one_that_takes_nothing_is_ended_for_that() -> None:
    """Though it was asked nothing: what it is to be told waits."""

    async def scenario() -> None:
        async with _server() as (server, held):
            held.pipes.takes.clear()
            server.notify("textDocument/didOpen", {"text": "x" * (20 << 20)})
            assert "said nothing for long and was ended" in await _desk_of(server).give_up(0.0)

    asyncio.run(scenario())


def test_one_that_talks_and_never_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is at work is given time, but not for ever."""

    async def scenario() -> None:
        async with _server() as (server, held):
            desk = _desk_of(server)
            asking = asyncio.ensure_future(server.ask("a", None))
            await held.asked("a")
            held.pipes.tell(method="window/logMessage", params={"message": "thought"})
            assert "still at work" in await desk.give_up(600.0)
            monkeypatch.setattr(servers, "PATIENCE", 0.0)
            assert "answered nothing for long and was ended" in await desk.give_up(600.0)
            with pytest.raises(Ended):
                await asking

    asyncio.run(scenario())


def test_one_whose_process_has_ended_answers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds its output open; how it ended is known."""
    monkeypatch.setattr(server_module, "MUTE", 0.0)

    async def scenario() -> None:
        async with _server() as (server, held):
            asking = asyncio.ensure_future(server.ask("a", None))
            await held.asked("a")
            held.is_running = False
            with pytest.raises(Ended):
                await asking
            assert server.is_over
            assert "exit code is 3. Its stderr ends with:\nI am broken" in await server.end()

    asyncio.run(scenario())


def test_one_that_is_given_up_is_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not silent: it had ended."""

    async def scenario() -> None:
        async with _server() as (server, held):
            asking = asyncio.ensure_future(server.ask("a", None))
            await held.asked("a")
            held.is_running = False
            monkeypatch.setattr(server_module, "MUTE", 0.0)
            told = await _desk_of(server).give_up(0.0)
            assert "It has ended; the next call starts it anew. Its exit code is 3." in told
            with pytest.raises(Ended):
                await asking

    asyncio.run(scenario())


def test_one_that_another_process_carries_on_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrapper has ended before the first answer, and what it has started serves."""
    monkeypatch.setattr(server_module, "MUTE", 0.0)

    async def scenario() -> None:
        async with _server() as (server, held):
            beginning = asyncio.ensure_future(server.initialize())
            number = await held.asked("initialize")
            held.is_running = False
            held.pipes.tell(id=number, result={})
            await beginning
            assert not await server.has_died()
            assert not server.is_over

    asyncio.run(scenario())


def test_work_for_an_answer_holds_up_no_other_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is waited for that works by itself, not one that worked for the last question."""
    monkeypatch.setattr(server_module, "QUIET", 600.0)

    async def scenario() -> None:
        async with _server() as (server, held):
            server._last_work = -math.inf
            asking = asyncio.ensure_future(server.ask("a", None))
            number = await held.asked("a")
            for kind in ("begin", "end"):
                value = {"kind": kind, "title": "x"}
                held.pipes.tell(method="$/progress", params={"token": 1, "value": value})
            held.pipes.tell(id=number, result=None)
            await asking
            await server.settled(600.0, print)
            held.pipes.tell(method="$/progress", params={"token": 1, "value": {"kind": "end"}})
            await server.news(600.0)
            waiting = asyncio.ensure_future(server.settled(600.0, print))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(scenario())


def test_one_that_reports_nothing_is_waited_for_once() -> None:
    """Not again with each question."""

    async def scenario() -> None:
        async with _server() as (server, _):
            desk = _desk_of(server)
            desk._documents._send(server, "a.x", "word")
            await desk._seen(server, 0.0)
            assert desk._documents.awaited(server, 600.0) > time.monotonic()
            await desk._seen(server, 600.0)

    asyncio.run(scenario())


# ─── reports ────────────────────────────────────────────────────────────────────────


class _Reports:
    """A document of a server whose pipes are the test's."""

    def __init__(self, server: LanguageServer, held: _Held) -> None:
        server._capabilities = {"documentSymbolProvider": True}
        self.server, self.held = server, held
        self.documents = _desk_of(server)._documents

    def send(self, text: str) -> Document:
        """The document, which was sent with this text as for diagnostics."""
        self.documents._send(self.server, "a.x", text)
        self.documents._send_again(self.server, "a.x", text)
        known = self.documents._open["a.x"]
        assert known.sent is not None
        return Document("a.x", Text(text), known.changed, known.sent)

    async def tell(self, *messages: str, **more: Any) -> None:
        """Report problems of the document, which are taken in."""
        problems = [{"range": _HERE, "severity": 1, "message": message} for message in messages]
        told = {"uri": uri_of("a.x"), "diagnostics": problems, **more}
        count = self.server.told
        self.held.pipes.tell(method="textDocument/publishDiagnostics", params=told)
        while self.server.told == count:
            await self.server.news(60)

    async def hear(self, method: str) -> Any:
        """The next message that says this, whatever was said before."""
        while (message := await self.held.pipes.heard())["method"] != method:
            pass
        return message

    async def answer(self) -> None:
        """Answer the next question that only is to be answered."""
        message = await self.hear("textDocument/documentSymbol")
        self.held.pipes.tell(id=message["id"], result=[])

    def ask(self, document: Document) -> asyncio.Future[reports.Told]:
        """The last report, once it is there."""
        return asyncio.ensure_future(reports.last_report(self.server, document, 600.0))


_HERE = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 1}}


def _words(told: reports.Told) -> list[str]:
    assert told.report is not None
    return [target.text for target in told.report.targets]


def test_a_report_of_the_text_before_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was under way, and one of the closed document: neither has a version."""

    async def scenario() -> None:
        async with _server() as (server, held):
            desk = _Reports(server, held)
            desk.send("old")
            await desk.tell("old")
            document = desk.send("new")
            await desk.tell("old", "older")
            await desk.tell()
            assert document.last_report(server) is None, "it is waited for as for a new one"
            asking = desk.ask(document)
            await desk.answer()
            while document.sent.after is None:
                await asyncio.sleep(0)
            assert document.report(server) is None
            await desk.tell("new")
            for _ in range(2):
                await desk.answer()
            told = await asking
            assert told.is_whole and "new" in _words(told)[0]
            assert (await desk.ask(document)).report is told.report, "it is not asked again"
            monkeypatch.setattr(reports, "HEARD_AGAIN", 0.0)
            asking = desk.ask(desk.send("newest"))
            await desk.answer()
            await desk.tell("newest")
            for _ in range(2):
                await desk.answer()
            assert (await asking).is_whole, "a text that is new has all of the time"

    asyncio.run(scenario())


def test_a_server_is_heard_out_after_each_report_of_any_document() -> None:
    """What it has reported of another one stood before the rest."""

    async def scenario() -> None:
        async with _server() as (server, held):
            desk = _Reports(server, held)
            document = desk.send("text")
            server.watched.add("b.x")
            asking = desk.ask(document)
            await desk.tell(version=1)
            await desk.answer()
            await desk.tell(uri=uri_of("b.x"), version=1)
            await desk.answer()
            await desk.answer()
            await desk.tell("late", version=1)
            for _ in range(3):
                await desk.answer()
            assert ["late" in words for words in _words(await asking)] == [True]

    asyncio.run(scenario())


def test_what_came_while_it_was_heard_out_is_taken() -> None:
    """Though it ended, or did not answer; and it is said that it may be a part."""

    async def scenario() -> None:
        async with _server() as (server, held):
            desk = _Reports(server, held)
            asking = desk.ask(desk.send("text"))
            await desk.tell(version=1)
            await desk.hear("textDocument/documentSymbol")
            await desk.tell("late", version=1)
            held.pipes.say(b"")
            told = await asking
            assert "late" in _words(told)[0] and not told.is_whole

    asyncio.run(scenario())


def test_one_that_never_answers_is_heard_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report of it is a part for all that is known; it is not waited for so long again."""

    async def scenario() -> None:
        async with _server() as (server, held):
            desk = _Reports(server, held)
            document = desk.send("text")
            await desk.tell(version=1)
            monkeypatch.setattr(reports, "HEARD_OUT", 0.01)
            assert not (await desk.ask(document)).is_whole
            await desk.hear("textDocument/documentSymbol")
            monkeypatch.setattr(reports, "HEARD_OUT", 600.0)
            monkeypatch.setattr(reports, "HEARD_AGAIN", 0.01)
            assert not (await desk.ask(document)).is_whole
            await desk.hear("textDocument/documentSymbol")
            monkeypatch.setattr(reports, "HEARD_AGAIN", 600.0)
            asking = desk.ask(document)
            for _ in range(2):
                await desk.answer()
            assert (await asking).is_whole, "it was only busy"

    asyncio.run(scenario())


def test_what_is_known_is_taken_where_reports_of_the_text_before_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server has not answered since: what it has reported since is of one text or the other."""
    monkeypatch.setattr(reports, "HEARD_OUT", 0.01)

    async def scenario() -> None:
        async with _server() as (server, held):
            desk = _Reports(server, held)
            desk.send("text")
            await desk.tell("known")
            desk.documents._state += 1
            document = desk.send("text")
            await desk.tell()
            told = await desk.ask(document)
            assert "known" in _words(told)[0] and not told.is_whole
            told = await desk.ask(desk.send("new"))
            assert told == (None, False)

    asyncio.run(scenario())


def test_one_that_says_later_that_it_answers_problems() -> None:
    """As pyright does: anew for each of its settings, before it takes the first one back."""

    async def scenario() -> None:
        async with _server() as (server, held):
            desk = _Reports(server, held)
            asking = desk.ask(desk.send("text"))
            for number, word, is_able in (
                (1, "register", True),
                (2, "register", True),
                (1, "unregister", True),
                (2, "unregister", False),
            ):
                one = {"id": f"r{number}", "method": server_module.PROBLEMS}
                params = {"registrations" if word == "register" else "unregisterations": [one]}
                assert server._answer(f"client/{word}Capability", params) is None
                assert server.answers_problems is is_able
                if number == 1 and is_able and word == "register":
                    assert (await asking).report is None, "it is asked instead"

    asyncio.run(scenario())


def test_news_wake_all_who_wait() -> None:
    """One who begins to wait in the same moment takes them from nobody."""

    async def scenario() -> None:
        async with _server() as (server, _):
            work = {"token": 1, "value": {"kind": "begin", "title": "x"}}
            first = asyncio.ensure_future(server.news(600))
            asyncio.get_running_loop().call_soon(server._hear, "$/progress", work)
            second = asyncio.ensure_future(server.news(0.1))
            await asyncio.gather(first, second)

    asyncio.run(scenario())


def test_documents_wait_for_one_that_reads_slowly() -> None:
    """What it has not taken is not all that there is."""

    async def scenario() -> None:
        async with _server() as (server, held):
            held.pipes.takes.clear()
            server.notify("textDocument/didOpen", {"text": "x" * (20 << 20)})
            waiting = asyncio.ensure_future(server.room())
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            held.pipes.takes.set()
            await waiting

    asyncio.run(scenario())


# ─── the controller's turn and memory ───────────────────────────────────────────────


async def _longest_stall(work: Awaitable[Result]) -> tuple[Result, float]:
    """The result, and the processor's seconds in which no other work had its turn meanwhile."""
    asking = asyncio.ensure_future(work)
    longest, before = 0.0, time.thread_time()
    while not asking.done():
        await asyncio.sleep(0.001)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    return asking.result(), longest


def _reading() -> float:
    """The processor's seconds in which as much is read here as one message may have."""
    data = b"[" + b"[]," * (messages.MAX_OBJECTS - 2) + b"[]]"
    began = time.thread_time()
    json.loads(data)
    return time.thread_time() - began


@pytest.mark.parametrize(
    ("kind", "text", "operation"),
    [
        ("many", "[] 2790000", "find_references"),
        ("many", "[[[[]]]] 930000", "document_symbols"),
        ("many", '{"":{"":0}} 690000', "hover"),
        ("many", "0 4190000", "find_references"),
        ("", "\u200b 2700000", "hover"),
        ("", "\x01 1300000", "hover"),
    ],
)
def test_an_answer_of_megabytes_holds_nobody_up(
    opened: Opened, kind: str, text: str, operation: str
) -> None:
    """Whatever it is made of: it costs no more than a message that is just taken, or three."""
    desk = opened(kind)
    desk.work.write("a.x", text)
    result, stall = desk.run(lambda: _longest_stall(desk.asked(operation=operation)))
    assert len(said(result)) < 110_000
    assert stall < 3 * _reading()


def test_names_of_works_are_short(opened: Opened) -> None:
    """What a server says of its work is kept, but not a megabyte of each."""
    desk = opened("long_tokens")
    tracemalloc.start()
    try:
        for _ in range(3):
            desk.call()
        assert tracemalloc.get_traced_memory()[0] < 20 << 20
    finally:
        tracemalloc.stop()


def test_one_that_has_ended_is_kept_nowhere(opened: Opened) -> None:
    """Nor what it has said, and was to be told."""
    desk = opened("long_ids")
    assert "it asked with an id of 1000 characters; 200 are taken" in said(desk.call())
    gc.collect()
    assert not any(isinstance(one, LanguageServer) for one in gc.get_objects())


# ─── secrets ────────────────────────────────────────────────────────────────────────


def test_a_secret_that_a_server_says_is_masked_before_it_is_cut(opened: Opened) -> None:
    """A long message ends within it, and shows no part of it."""
    value = "canary-4f9aZq77"
    desk = opened(
        "flags",
        change=lambda spec: replace(
            spec,
            egress=EgressOptions(hosts=("upstream.example",)),
            secrets=(Secret("TOKEN", value, ("upstream.example",)),),
        ),
    )
    desk.work.write("a.x", f"flag {value}\n")
    for operation in ("diagnostics", "document_symbols"):
        text = said(desk.call(operation=operation))
        assert "xxx" in text
        assert value[:5] not in text
