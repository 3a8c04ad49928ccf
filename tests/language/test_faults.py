"""Language servers that are broken, hostile or slow, in a container: every call has its end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.catalog_servers import LanguageEntry
from executor.errors import Code
from executor.model import Limits, Progress, Result
from tests.conftest import LIMITS
from tests.driver import ARGUMENTS, wait_until
from tests.foreign.test_client import said
from tests.loops import Work, open_work
from tests.test_catalog import with_user_file

STUB = (Path(__file__).parent / "stubs" / "server.py").read_text()
TIMEOUT = 6.0
"""Seconds that a call may take."""
ROOM = 24.0
"""Seconds more that a test allows it: the end of its server and box, on a busy machine."""


class Stubs:
    """A loop with one stub server.

    Attributes:
        work: the loop.
    """

    def __init__(self, work: Work) -> None:
        self.work = work

    def ask(self, operation: str = "goto_definition", path: str = "a.x", **more: Any) -> Result:
        """The result of a question, which has to come in time."""
        began = time.monotonic()
        given = {"line": 1, "column": 1, **more}
        result = self.work.call("lsp", operation=operation, path=path, **given)
        assert time.monotonic() - began < TIMEOUT + ROOM
        return result

    def refused(self, code: Code, operation: str = "goto_definition", **more: Any) -> str:
        """The text of an error that a question has to come to."""
        result = self.ask(operation, **more)
        assert result.code is code, said(result)
        assert "\x1b" not in said(result)
        assert len(said(result)) < 5000
        return said(result)

    def lines(self, operation: str = "goto_definition", **more: Any) -> list[int]:
        """The lines of the answer's places."""
        result = self.ask(operation, **more)
        assert not result.is_error, said(result)
        assert result.structured is not None
        return [one["line"] for one in result.structured["locations"]]

    def noted(self, name: str) -> list[str]:
        """What the stub has noted in the box."""
        result = self.work.call("run_command", command=f"cat /tmp/{name}")
        return said(result).split()

    def servers(self) -> int:
        """How many stub servers are in the box."""
        command = f"{ARGUMENTS} | grep -o '[p]ython3 -c' | wc -l"
        result = self.work.call("run_command", command=command)
        return int(said(result).split()[0])


Opened = Callable[..., Stubs]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens a loop whose server for `.x` behaves so, with a file `a.x`."""
    with ExitStack() as stack:

        def make(
            kind: str,
            limits: Limits = LIMITS,
            words: tuple[str, ...] | None = None,
            others: dict[str, LanguageEntry] | None = None,
            timeout: float = TIMEOUT,
            **more: Any,
        ) -> Stubs:
            command = ("python3", "-c", STUB, kind) if words is None else words
            entry = LanguageEntry(extensions={".x": "x"}, commands=(command,), **more)
            languages = {"stub": entry, **(others or {})}
            catalog = replace(with_user_file(_within(timeout)), languages=languages)
            work = stack.enter_context(open_work("docker", tmp_path, limits, catalog=catalog))
            work.write("a.x", "one\ntwo\n")
            return Stubs(work)

        yield make


# ─── it does not start ──────────────────────────────────────────────────────────────


def test_one_that_says_nothing_is_ended(opened: Opened) -> None:
    """The error has the last words of its stderr, and the next call starts it again."""
    stubs = opened("silent", start_timeout_ms=1500)
    for count in (1, 2):
        text = stubs.refused(Code.EXECUTION_ERROR)
        assert "did not answer in 1.5 seconds" in text
        assert "wait for a licence" in text
        assert len(stubs.noted("starts")) == count
    assert stubs.servers() == 0


def test_one_that_ends_at_once(opened: Opened) -> None:
    """Exit code and stderr are in the error."""
    text = opened("dies").refused(Code.EXECUTION_ERROR)
    assert "No module named 'server'" in text
    assert "exit code is 3" in text


def test_one_that_refuses_to_start(opened: Opened) -> None:
    """In its own words."""
    assert "no licence" in opened("refuses").refused(Code.EXECUTION_ERROR)


def test_one_that_is_no_language_server(opened: Opened) -> None:
    """What it says is shown as far as it helps."""
    assert "Welcome to my server!" in opened("garbage_first").refused(Code.EXECUTION_ERROR)


@pytest.mark.parametrize("program", ["no-such-server", "/etc/passwd", "/workspace/a.x"])
def test_one_that_is_not_there(opened: Opened, program: str) -> None:
    """Where no language has a server the tool is off, and says so with the name."""
    result = opened("none", words=(program, "--stdio")).ask()
    assert result.code is Code.DISABLED
    assert program in said(result)


def test_one_of_several_that_is_not_there(opened: Opened) -> None:
    """Where another language has one the error is of the file that is asked about."""
    missing = LanguageEntry(extensions={".y": "y"}, commands=(("no-such-server", "--stdio"),))
    stubs = opened("good", others={"other": missing})
    stubs.work.write("b.y", "")
    text = stubs.refused(Code.UNSUPPORTED, path="b.y")
    assert "it had none of no-such-server when it began" in text
    assert ".y" in text


def test_files_of_no_language(opened: Opened) -> None:
    """The error says which there are."""
    stubs = opened("good")
    stubs.work.write("b.y", "")
    text = stubs.refused(Code.UNSUPPORTED, path="b.y")
    assert ".y" in text
    assert ".x" in text


def test_files_that_are_none(opened: Opened) -> None:
    """What reading them says; the server is asked nothing."""
    stubs = opened("good")
    (stubs.work.root / "d.x").mkdir()
    stubs.work.write("big.x", b"x" * (9 << 20))
    stubs.work.write("binary.x", bytes(range(256)) * 16)
    (stubs.work.root / "away.x").symlink_to("/etc/passwd")
    for path in ("no.x", "d.x", "big.x", "../../etc/a.x", "/proc/self/a.x", "a.x/b.x", "away.x"):
        result = stubs.ask(path=path)
        assert result.is_error, path
        assert result.code is not Code.INTERNAL, (path, said(result))
        assert "root:" not in said(result)
    stubs.refused(Code.UNSUPPORTED, path="binary.x")
    assert stubs.lines() == [1]
    assert stubs.noted("heard").count("textDocument/definition") == 1


@pytest.mark.parametrize("kind", ["odd", "nothing"])
def test_one_that_can_do_little(opened: Opened, kind: str) -> None:
    """What it does not say that it can do is not asked."""
    stubs = opened(kind)
    assert "goto_definition" in stubs.refused(Code.UNSUPPORTED)
    if kind == "odd":
        assert not stubs.ask("hover").is_error
    assert "textDocument/definition" not in stubs.noted("heard")


# ─── it ends over a question ────────────────────────────────────────────────────────


def test_a_crash_is_mended_within_the_call(opened: Opened) -> None:
    """The server is started again, has the document, and answers."""
    stubs = opened("crash_once")
    assert stubs.lines() == [1]
    assert len(stubs.noted("starts")) == 2
    assert stubs.noted("heard").count("textDocument/didOpen") == 2


def test_a_crash_each_time_is_an_error(opened: Opened) -> None:
    """Twice a call, no more."""
    stubs = opened("crash")
    text = stubs.refused(Code.EXECUTION_ERROR)
    assert "I am broken" in text
    assert "exit code is 7" in text
    assert len(stubs.noted("starts")) == 2
    told = stubs.ask("diagnostics")  # it reports before it is asked whether that was all
    assert not told.is_error and "may not have reported all" in said(told)


def test_one_that_dies_and_leaves_its_output_to_another(opened: Opened) -> None:
    """It is started again within the call, and how it ended is said."""
    stubs = opened("dies_behind_a_helper", timeout=60.0)
    text = stubs.refused(Code.EXECUTION_ERROR)
    assert "I am broken" in text
    assert "exit code is 7" in text
    assert stubs.lines() == [1]
    assert len(stubs.noted("starts")) == 3


def test_one_that_goes_on_without_what_does_its_work(opened: Opened) -> None:
    """That there is nothing is no answer once it has logged so; it is started again."""
    logged = {"over_once_logged": {"python3": ["[worker] gone"]}}
    stubs = opened("goes_on_without_its_worker", **logged)
    text = stubs.refused(Code.EXECUTION_ERROR)
    assert "it logged that it can work no more: [worker] gone: 2" in text
    assert stubs.lines() == [1]
    assert len(stubs.noted("starts")) == 3
    assert stubs.servers() == 1


def test_one_that_hangs_is_ended_and_the_next_call_has_a_new_one(opened: Opened) -> None:
    """The call ends in its time with the server's last words."""
    stubs = opened("hang_once")
    text = stubs.refused(Code.TIMEOUT)
    assert "I think" in text
    assert stubs.lines() == [1]
    assert stubs.servers() == 1


def test_one_that_reads_no_more(opened: Opened) -> None:
    """What it is to be told waits, and nobody waits for that."""
    stubs = opened("deaf")
    stubs.work.write("a.x", "long\n" * 200_000)
    stubs.refused(Code.TIMEOUT)
    stubs.work.write("a.x", "short\n" * 200_000)
    stubs.refused(Code.TIMEOUT)
    assert len(stubs.noted("starts")) == 2


def test_a_question_that_is_never_answered(opened: Opened) -> None:
    """Others are, by the same server or by a new one."""
    stubs = opened("hang")
    stubs.refused(Code.TIMEOUT)
    assert stubs.lines("diagnostics") == []
    assert stubs.servers() == 1


@pytest.mark.parametrize(
    "kind",
    [
        *("garbage", "endless_header", "too_long", "negative", "no_json", "no_unicode", "deep"),
        *("half", "flood_of_news", "flood_of_requests"),
    ],
)
def test_what_is_no_protocol_costs_the_server(opened: Opened, kind: str) -> None:
    """It is ended, started once more, and the call says what was wrong."""
    stubs = opened(kind)
    result = stubs.ask()
    # A flood may last longer than a call where the machine is busy.
    is_late = kind.startswith("flood") and result.code is Code.TIMEOUT
    assert is_late or result.code is Code.EXECUTION_ERROR, said(result)
    assert len(said(result)) < 5000
    assert len(stubs.noted("starts")) == 2 or is_late
    assert stubs.servers() == is_late
    assert stubs.work.call("read_file", path="a.x").is_error is False


def test_memory_that_is_not_there(opened: Opened) -> None:
    """A server that the box's limit ended is said to have had no more."""
    stubs = opened("memory", replace(LIMITS, memory="128m"))
    result = stubs.ask()
    assert result.is_error
    assert "memory" in said(result)
    assert stubs.work.call("read_file", path="a.x").is_error is False


# ─── it says odd things ─────────────────────────────────────────────────────────────


def test_answers_to_nobody_are_passed_over(opened: Opened) -> None:
    """The right one is taken, and the one after it is not."""
    stubs = opened("other_messages")
    assert stubs.lines() == [1]
    assert stubs.lines() == [1]
    assert len(stubs.noted("starts")) == 1


def test_much_news_before_an_answer(opened: Opened) -> None:
    """Fifteen thousand messages are no reason to lose the sixteenth."""
    assert opened("much_news").lines() == [1]


def test_answers_in_another_order(opened: Opened) -> None:
    """Each of two calls at once has its own, of one server."""
    stubs = opened("in_reverse")
    stubs.work.write("b.x", "three\n")
    given = {"operation": "goto_definition", "line": 1, "column": 1}
    results = stubs.work.turn(*(("lsp", {**given, "path": path}) for path in ("a.x", "b.x")))
    assert [said(result) for result in results] == ["a.x:1:1: one", "b.x:1:1: three"]
    assert len(stubs.noted("starts")) == 1


def test_what_it_wants_of_the_client(opened: Opened) -> None:
    """No edit, no page and no message is anybody's concern; its settings it is told."""
    stubs = opened("wants_much", settings={"stub": {"depth": 3}})
    told = said(stubs.ask("hover"))
    answers = json.loads(told)
    assert answers[0]["applied"] is False
    assert answers[1] == {"success": False}
    assert answers[2][0] == 3
    assert len(answers[2]) == 4
    assert answers[3] == []
    assert answers[4] == [{"uri": "file:///workspace", "name": "workspace"}]
    assert answers[5:8] == [None, None, None]
    assert answers[8]["code"] == -32601
    assert len(answers[8]["message"]) < 200
    assert (stubs.work.root / "a.x").read_text() == "one\ntwo\n"


def test_work_that_never_ends(opened: Opened) -> None:
    """The answer comes all the same, in time, and says that more may be found later."""
    stubs = opened("busy")
    events = stubs.work.events(
        ("lsp", {"operation": "goto_definition", "path": "a.x", "line": 1, "column": 1})
    )
    [result] = [event.result for event in events if hasattr(event, "result")]
    assert not result.is_error, said(result)
    assert said(result).startswith("a.x:1:1: one")
    assert "Indexing" in said(result)
    assert any("Indexing" in str(event) for event in events if isinstance(event, Progress))


def test_one_that_knows_all_files_later(opened: Opened) -> None:
    """Its first answer is asked for once it has logged that it does."""
    stubs = opened("ready_later", ready_once_logged={"python3": ["nothing", "Found "]})
    result = stubs.ask()
    assert said(result).startswith("a.x:1:1: one")
    assert "may not know all files" not in said(result)


def test_one_that_never_says_that_it_knows_all_files(opened: Opened) -> None:
    """Its answers say that more may be found later."""
    stubs = opened("good", ready_once_logged={"python3": ["Found "]})
    for _ in range(2):
        result = stubs.ask()
        assert said(result).startswith("a.x:1:1: one")
        assert "may not know all files yet; more may be found later" in said(result)


def test_one_that_reports_nothing(opened: Opened) -> None:
    """Questions are answered, and diagnostics say that there was no report."""
    stubs = opened("mute")
    assert stubs.lines() == [1]
    told = said(stubs.ask("diagnostics"))
    assert "reported nothing" in told


def test_one_that_writes_much_on_stderr(opened: Opened) -> None:
    """Nobody reads all of it, and it does not stand still for that."""
    assert opened("talks").lines() == [1]


def test_an_answer_that_has_to_be_asked_for_again(opened: Opened) -> None:
    """A change came in between; for ever is too long."""
    assert opened("modified").lines() == [1]


def test_an_answer_that_is_never_up_to_date(opened: Opened) -> None:
    """In the server's words, after some attempts."""
    assert "content modified" in opened("modified_for_ever").refused(Code.EXECUTION_ERROR)


@pytest.fixture(scope="module")
def echoing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stubs]:
    """A loop whose server answers what is in the file."""
    entry = LanguageEntry(extensions={".x": "x"}, commands=(("python3", "-c", STUB, "echo"),))
    catalog = replace(with_user_file(_within(TIMEOUT)), languages={"stub": entry})
    with open_work("docker", tmp_path_factory.mktemp("echo"), catalog=catalog) as work:
        work.write("a.x", "")
        yield Stubs(work)


def _at(uri: object, line: object = 0, character: object = 0) -> dict[str, Any]:
    there = {"line": line, "character": character}
    return {"uri": uri, "range": {"start": there, "end": there}}


URIS: list[Any] = [
    *(
        "untitled:Untitled-1",
        "https://example.org/a.x",
        "jdt://contents/a.class",
        "",
        "a.x",
        "file:",
    ),
    *("file:///workspace/%00", "file:///workspace/%ff.x", "file:///%zz", "file://%"),
    *("file:///workspace/../../etc/shadow", "file:///workspace/%2e%2e/%2e%2e/etc/shadow"),
    *("file:///proc/self/environ", "file:///dev/zero", "file:///workspace", "file:///"),
    *("file://elsewhere/share/a.x", "FILE:///workspace/a.x", "file:///workspace/no/such.x"),
    *("file:///workspace/" + "a/" * 5000, "file:///workspace/\x1b[2J\n", "x" * 100_000),
    *("file:///workspace/\ud800", "\U0001f600"),
]


def test_places_with_odd_addresses(echoing: Stubs) -> None:
    """They are shown as text or left out, and the one that is right among them is there."""
    places = [_at(uri) for uri in URIS]
    right = _at("file:///workspace/a.x")
    echoing.work.write("a.x", json.dumps({"result": [*places, right]}))
    result = echoing.ask("find_references")
    assert not result.is_error, said(result)
    assert "\x1b" not in said(result)
    assert "root:" not in said(result)
    assert "a.x:1:1: " in said(result)
    for place in places:
        echoing.work.write("a.x", json.dumps({"result": place}))
        result = echoing.ask()
        assert not result.is_error, (place, said(result))


@pytest.mark.parametrize("number", [-1, 10**9, 2**63, 10**30])
def test_places_beyond_the_text(echoing: Stubs, number: int) -> None:
    """Before the beginning is the beginning, and beyond the end is the end."""
    for place in (_at("file:///workspace/a.x", number), _at("file:///workspace/a.x", 0, number)):
        text = json.dumps({"result": place})
        echoing.work.write("a.x", text)
        end = 1 if number < 0 else len(text) + 1
        assert said(echoing.ask()) == f"a.x:1:{end}: {text}"


@pytest.mark.parametrize("number", [1.5, True, None, "0", []])
def test_places_that_are_no_numbers(echoing: Stubs, number: object) -> None:
    """They are an error that says so."""
    for place in (_at("file:///workspace/a.x", number), _at("file:///workspace/a.x", 0, number)):
        echoing.work.write("a.x", json.dumps({"result": place}))
        assert "can't be used" in echoing.refused(Code.EXECUTION_ERROR)


RESULTS: list[Any] = [
    *(5, "x", True, [], {}, [[]], [5], [None], {"uri": 5}, {"contents": {}}, {"contents": 5}),
    *({"contents": [{"language": 5, "value": None}]}, {"contents": {"kind": "markdown"}}),
    *({"changes": 5}, {"changes": {"": 5}}, {"documentChanges": [5]}, {"documentChanges": [{}]}),
    *([{"name": 5}], [{"name": "x", "kind": 999, "children": 5}], {"items": 5}, [{"range": []}]),
    *({"changes": {"file:///workspace/a.x": [{"range": {}, "newText": 5}]}},),
]
OPERATIONS = ("goto_definition", "hover", "find_references", "document_symbols", "rename_preview")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_answers_of_another_shape(echoing: Stubs, operation: str) -> None:
    """Nothing is found, or the error says that the answer can't be used."""
    for made in RESULTS:
        echoing.work.write("a.x", json.dumps({"result": made}))
        result = echoing.ask(operation, new_name="y")
        if result.is_error:
            assert result.code is Code.EXECUTION_ERROR, (made, said(result))
            assert "can't be used" in said(result)
        else:
            assert result.structured is not None
            assert (result.structured["locations"], result.structured["text"]) == ([], None), made
    assert len(echoing.noted("starts")) == 1


@pytest.mark.parametrize(
    "error",
    [
        *(
            5,
            {},
            None,
            {"code": "x", "message": 5},
            {"code": -32602, "message": "bad\x1b[2J place"},
        ),
        {"code": 0, "message": "no" * 100_000},
    ],
)
def test_errors_of_every_shape(echoing: Stubs, error: Any) -> None:
    """They are errors, or nothing; never more than a few lines."""
    echoing.work.write("a.x", json.dumps({"error": error, "result": None}))
    result = echoing.ask()
    assert "\x1b" not in said(result)
    assert len(said(result)) < 5000
    if isinstance(error, dict) and error:
        assert result.is_error


def test_edits_that_overlap(echoing: Stubs) -> None:
    """No line is shown of a change that nobody can make."""
    span = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 5}}
    edits = [{"range": span, "newText": "x"}, {"range": span, "newText": "y"}]
    change = {"changes": {"file:///workspace/a.x": edits}}
    echoing.work.write("a.x", json.dumps({"result": change}))
    result = echoing.ask("rename_preview", new_name="y")
    assert result.code is Code.EXECUTION_ERROR, said(result)


def test_symbols_in_symbols(echoing: Stubs) -> None:
    """Two hundred deep; some are shown, and nothing breaks."""
    there = {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
    symbol: dict[str, Any] = {"name": "x", "kind": 5, "range": there, "selectionRange": there}
    for _ in range(200):
        symbol = {**symbol, "children": [symbol]}
    echoing.work.write("a.x", json.dumps({"result": [symbol]}))
    result = echoing.ask("document_symbols")
    assert "x" in said(result)


# ─── it says much ───────────────────────────────────────────────────────────────────


def test_very_many_places(opened: Opened) -> None:
    """Two hundred are shown of those that are taken."""
    stubs = opened("many")
    stubs.work.write("a.x", "40000")
    result = stubs.ask("find_references")
    assert not result.is_error, said(result)
    assert result.structured is not None
    assert len(result.structured["locations"]) == 200
    assert result.structured["total"] >= 10_000
    assert "200 of " in said(result)
    assert len(said(result)) < 100_000


def test_more_places_than_a_message_may_have(opened: Opened) -> None:
    """A hundred thousand of them cost the server; others are answered then."""
    stubs = opened("many")
    stubs.work.write("a.x", "100000")
    assert "bytes" in stubs.refused(Code.EXECUTION_ERROR)
    stubs.work.write("a.x", "3")
    assert stubs.lines() == [1, 1, 1]


def test_a_description_of_megabytes(opened: Opened) -> None:
    """As much as a result may have is shown; what no message may have is an error."""
    stubs = opened("long_hover")
    stubs.work.write("a.x", "5000000")
    result = stubs.ask("hover")
    assert not result.is_error, said(result)
    assert result.truncated
    assert len(said(result)) < 110_000
    stubs.work.write("a.x", "10000000")
    assert "bytes" in stubs.refused(Code.EXECUTION_ERROR, "hover")


# ─── it goes ────────────────────────────────────────────────────────────────────────


def test_a_box_that_was_given_back(opened: Opened) -> None:
    """The next question is answered by a new server in a new box."""
    stubs = opened("good", replace(LIMITS, idle_seconds=0.5))
    assert stubs.lines() == [1]
    wait_until(lambda: not stubs.work.loop._lane.is_open)
    assert stubs.lines() == [1]
    assert len(stubs.work.opened) == 2


def test_a_box_that_was_lost(opened: Opened) -> None:
    """So it is where the box was ended from outside."""
    stubs = opened("good")
    assert stubs.lines() == [1]
    box = stubs.work.opened[-1]
    closed = box._connection.closed  # type: ignore[attr-defined]
    stubs.work.thread.loop.call_soon_threadsafe(closed, "ended from outside")
    wait_until(lambda: box.error is not None)
    assert stubs.lines() == [1]
    assert len(stubs.work.opened) == 2


def test_a_box_that_is_lost_over_a_question(opened: Opened) -> None:
    """It is a server that ended over it: it is asked again, in a new box, and the call says so."""
    stubs = opened("hang_in_the_first_box")

    async def lose() -> Result:
        asked = asyncio.ensure_future(_hanging(stubs))
        await _until_heard(stubs, "textDocument/definition")
        box = stubs.work.opened[-1]
        box._connection.closed("ended from outside")  # type: ignore[attr-defined]
        return await asked

    result = stubs.work.thread.run(lose())
    assert not result.is_error, said(result)
    assert said(result).startswith("a.x:1:1: one")
    assert "the sandbox was lost (ended from outside" in said(result)
    assert len(stubs.work.opened) == 2


def test_a_call_that_is_cancelled_tells_the_server(opened: Opened) -> None:
    """And leaves it running, for the next one."""
    stubs = opened("hang")

    async def cancel() -> None:
        asked = asyncio.ensure_future(_hanging(stubs))
        await _until_heard(stubs, "textDocument/definition")
        asked.cancel()
        await asyncio.wait([asked])
        await _until_heard(stubs, "$/cancelRequest")

    stubs.work.thread.run(cancel())
    assert stubs.lines("diagnostics") == []
    assert len(stubs.noted("starts")) == 1


def test_a_loop_that_is_closed_over_a_question(tmp_path: Path) -> None:
    """It waits for no answer."""
    entry = LanguageEntry(extensions={".x": "x"}, commands=(("python3", "-c", STUB, "hang"),))
    catalog = replace(with_user_file(""), languages={"stub": entry})
    with open_work("docker", tmp_path, catalog=catalog) as work:
        work.write("a.x", "one\n")
        stubs = Stubs(work)

        async def begin() -> asyncio.Future[Result]:
            asked = asyncio.ensure_future(_hanging(stubs))
            await _until_heard(stubs, "textDocument/definition")
            return asked

        asked = work.thread.run(begin())
        began = time.monotonic()
    assert time.monotonic() - began < ROOM
    assert asked.done()


def test_servers_of_a_closed_loop_end(tmp_path: Path) -> None:
    """One that stays when it is told to end is ended, and does not keep the loop from closing."""
    entry = LanguageEntry(extensions={".x": "x"}, commands=(("python3", "-c", STUB, "stays"),))
    catalog = replace(with_user_file(""), languages={"stub": entry})
    with open_work("docker", tmp_path, catalog=catalog) as work:
        work.write("a.x", "one\n")
        assert Stubs(work).lines() == [1]
        began = time.monotonic()
    assert time.monotonic() - began < ROOM


def _within(seconds: float) -> str:
    """A user's catalog that gives questions so long."""
    return f"[tools.lsp]\ntimeout_ms = {int(seconds * 1000)}\n"


async def _hanging(stubs: Stubs) -> Result:
    given = {"operation": "goto_definition", "path": "a.x", "line": 1, "column": 1}
    return await stubs.work.loop.execute(stubs.work.make("lsp", given))


async def _until_heard(stubs: Stubs, method: str) -> None:
    """Until the stub has noted a message."""
    command = f"until grep -qs '{method}' /tmp/heard; do sleep 0.02; done"
    made = stubs.work.make("run_command", {"command": command})
    result = await stubs.work.loop.execute(made)
    assert not result.is_error, said(result)
