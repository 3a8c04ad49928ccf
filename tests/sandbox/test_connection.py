"""The near half against an agent that lies: scripted bytes in, typed errors out."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent import frame
from executor.agent.frame import encode, encode_json
from executor.errors import AgentLost, Code, ProtocolError, SandboxError, ToolError
from executor.sandbox import connection as connection_module
from executor.sandbox.connection import (
    LIVE_CREDIT,
    LIVE_PIECE,
    MAX_PIECES,
    MAX_STDERR,
    Connection,
)
from executor.sandbox.replies import MAX_DATA, MAX_RECORDS, MAX_SWEPT, MAX_SWEPT_FILES, SLACK
from tests.fuzzing import cases

HELLO = {"lease": 30.0}
RAN: dict[str, Any] = {
    **dict.fromkeys(("signal", "limit", "shell", "interpreter")),
    **{"exit_code": 0, "timed_out": False, "oom": False, "cwd": "/workspace", "notes": []},
}
"""The fields of a command that went well."""


class Script:
    """A stream whose far end is written by the test."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True


def play(scene: Callable[[Connection, Script], Awaitable[Any]]) -> Any:
    """Run a scene with a connection that has said HELLO."""

    async def run() -> Any:
        script = Script()
        connection = Connection("h", lambda error: connection.fail_waiting(error))  # noqa: PLW0108 (it is not there yet)
        connection.connected(script)
        connection.received(encode_json(frame.READY, 0, {"hash": "h"}))
        await connection.hello(HELLO, 5)
        try:
            return await asyncio.wait_for(scene(connection, script), 20)
        finally:
            connection.close()

    return asyncio.run(run())


def outcome_of(*answer: bytes) -> Any:
    """What a call on channel 1 comes to when the agent sends these bytes."""

    async def scene(connection: Connection, script: Script) -> Any:
        call = asyncio.ensure_future(connection.request("any", {}))
        await asyncio.sleep(0)
        for piece in answer:
            connection.received(piece)
        try:
            return await call
        except (ToolError, SandboxError) as error:
            return error

    return play(scene)


def reply(value: Any, channel: int = 1) -> bytes:
    """A REPLY frame."""
    return encode_json(frame.REPLY, channel, value)


def test_an_answer_brings_its_value_and_its_data() -> None:
    """DATA frames before a REPLY are joined to its data."""
    answer = outcome_of(
        encode(frame.DATA, 1, b"ab"), encode(frame.DATA, 1, b"c"), reply({"ok": {}})
    )
    assert (answer.value, answer.data) == ({}, b"abc")


def test_an_error_reply_is_a_tool_error() -> None:
    """Code, message and details of the agent's error reach the caller."""
    error = outcome_of(
        reply({"error": {"code": "NO_SPACE", "message": "full", "details": {"a": 1}}})
    )
    assert isinstance(error, ToolError)
    assert (error.code, str(error), error.details) == (Code.NO_SPACE, "full", {"a": 1})


DEEP = b"[" * 100_000

HOSTILE = {
    "unknown id": reply({"ok": {}}, channel=7),
    "unknown kind": frame.HEADER.pack(99, 1, 0),
    "length over the cap": frame.HEADER.pack(frame.REPLY, 1, 0xFFFFFFFF),
    "no JSON": encode(frame.REPLY, 1, b"{"),
    "not UTF-8": encode(frame.REPLY, 1, b'{"ok": "\xff"}'),
    "no object": reply([]),
    "both outcomes": reply({"ok": {}, "error": None}),
    "neither outcome": reply({}),
    "ok of the wrong type": reply({"ok": []}),
    "error of the wrong type": reply({"error": "x"}),
    "unknown code": reply({"error": {"code": "HAPPY", "message": "x"}}),
    "code of the wrong type": reply({"error": {"code": ["TIMEOUT"], "message": "x"}}),
    "details of the wrong type": reply(
        {"error": {"code": "TIMEOUT", "message": "x", "details": 3}}
    ),
    "NaN": encode(frame.REPLY, 1, b'{"ok": {"a": NaN}}'),
    "Infinity": encode(frame.REPLY, 1, b'{"ok": {"a": -Infinity}}'),
    "deep nesting": encode(frame.REPLY, 1, b'{"ok": {"a": ' + DEEP + b"}}"),
    "a number of 5,000 digits": encode(frame.REPLY, 1, b'{"ok": {"a": ' + b"9" * 5000 + b"}}"),
    "a number of 21 digits": encode(frame.REPLY, 1, b'{"ok": {"a": ' + b"9" * 21 + b"}}"),
    "a pong unasked": encode(frame.PONG, 0, b"") * 2,
    "a pong too many": encode(frame.PONG, 0, b"12345678") * 2,
    "a second READY": encode_json(frame.READY, 0, {"hash": "h"}),
    "Infinity in other words": encode(
        frame.REPLY, 1, b'{"error": {"code": "TIMEOUT", "message": "x", "details": {"a": 1e999}}}'
    ),
    "details that are too deep": encode(
        frame.REPLY,
        1,
        b'{"error": {"code": "TIMEOUT", "message": "x", "details": {"a": %s}}}'
        % (b"[" * 50 + b"]" * 50),
    ),
    "live output unasked": encode(frame.STDOUT, 1, b"x"),
    "empty data": encode(frame.DATA, 1, b""),
    "giving up": encode_json(frame.FATAL, 0, {"reason": "\x1b]0;x\x07"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_end_the_box_with_a_protocol_error(name: str) -> None:
    """Statements J1 and J2: what no agent of ours sends costs the box, and nothing else."""
    error = outcome_of(HOSTILE[name])
    assert isinstance(error, ProtocolError), error
    assert "\x1b" not in str(error)


def test_a_duplicate_answer_ends_the_box() -> None:
    """An id is good for one answer."""

    async def scene(connection: Connection, script: Script) -> SandboxError | None:
        call = asyncio.ensure_future(connection.request("any", {}))
        await asyncio.sleep(0)
        connection.received(reply({"ok": {}}) + reply({"ok": {}}))
        await call
        return connection.error

    assert isinstance(play(scene), ProtocolError)


def test_too_much_data_ends_the_box() -> None:
    """An answer is bounded, whatever the agent sends."""
    piece = encode(frame.DATA, 1, bytes(frame.MAX_PAYLOAD))
    pieces = [piece] * (MAX_DATA // frame.MAX_PAYLOAD + 1)
    assert isinstance(outcome_of(*pieces), ProtocolError)


def test_data_of_all_calls_together_are_bounded() -> None:
    """Many calls at once are no way around the bound."""

    async def scene(connection: Connection, script: Script) -> list[Any]:
        calls = [asyncio.ensure_future(connection.request("any", {})) for _ in range(8)]
        await asyncio.sleep(0)
        for number in range(MAX_DATA // frame.MAX_PAYLOAD + 1):
            connection.received(encode(frame.DATA, 1 + number % 8, bytes(frame.MAX_PAYLOAD)))
        return await asyncio.gather(*calls, return_exceptions=True)

    assert {type(outcome) for outcome in play(scene)} == {ProtocolError}


def test_data_count_until_their_answer_has_come() -> None:
    """One answer after the other may bring more than the bound in all."""

    async def scene(connection: Connection, script: Script) -> None:
        piece = bytes(frame.MAX_PAYLOAD)
        for channel in range(1, 4):
            call = asyncio.ensure_future(connection.request("any", {}))
            await asyncio.sleep(0)
            for _ in range(MAX_DATA // 2 // frame.MAX_PAYLOAD):
                connection.received(encode(frame.DATA, channel, piece))
            connection.received(reply({"ok": {}}, channel))
            assert len((await call).data) == MAX_DATA // 2

    play(scene)


def test_tiny_pieces_of_data_end_the_box() -> None:
    """An agent fills its frames: 41 of two bytes are a flood, and 40 are held as 80 bytes."""
    tiny = encode(frame.DATA, 1, b"ab")
    assert outcome_of(tiny * MAX_PIECES, reply({"ok": {}})).data == b"ab" * MAX_PIECES
    assert isinstance(outcome_of(tiny * (MAX_PIECES + 1)), ProtocolError)


ASKED: dict[str, tuple[dict[str, Any], int]] = {
    "run": ({"head": 100, "tail": 50}, 300),
    "read": ({"max_bytes": 1000, "line_chars": 10}, 1040 + SLACK),
    "grep": ({"max_bytes": 1000, "line_chars": 10}, 1040 + SLACK),
    "list": ({"max_entries": 5}, MAX_RECORDS),
    "sweep": ({"known": ""}, MAX_SWEPT),
    "write": ({}, 0),
    "edit": ({}, 0),
    "move": ({}, 0),
    "stat": ({}, 0),
}


@pytest.mark.parametrize("op", ASKED)
def test_more_data_than_were_asked_for_end_the_box(op: str) -> None:
    """Statement J2: each request bounds its answer, and it is found before all has come."""
    arguments, most = ASKED[op]

    async def scene(connection: Connection, script: Script) -> SandboxError | None:
        call = asyncio.ensure_future(connection.request(op, dict(arguments)))
        await asyncio.sleep(0)
        if most:
            for piece in frame.split(bytes(most)):
                connection.received(encode(frame.DATA, 1, piece))
            assert connection.error is None
        connection.received(encode(frame.DATA, 1, b"x"))
        with pytest.raises(ProtocolError, match="more than were asked for"):
            await call
        return connection.error

    assert isinstance(play(scene), ProtocolError)


@pytest.mark.parametrize(
    ("op", "arguments", "most"),
    [
        ("glob", {"max_results": 3}, 3),
        ("list", {"max_entries": 3}, 3),
        ("delete", {}, 1000),
        ("sweep", {"known": ""}, MAX_SWEPT_FILES),
    ],
)
def test_more_records_than_were_asked_for_end_the_box(
    op: str, arguments: dict[str, Any], most: int
) -> None:
    """Statement J2: forty million empty names would be forty million objects of the host."""

    async def scene(connection: Connection, script: Script) -> None:
        call = asyncio.ensure_future(connection.request(op, arguments))
        await asyncio.sleep(0)
        connection.received(encode(frame.DATA, 1, bytes(most + 1)) + reply({"ok": {}}))
        with pytest.raises(ProtocolError, match="more records"):
            await call

    play(scene)


def test_a_flood_beside_the_stream_ends_the_box() -> None:
    """Statement J5: what is said on stderr is bounded, and only its end is kept."""

    async def scene(connection: Connection, script: Script) -> SandboxError | None:
        for _ in range(MAX_STDERR // 1000):
            connection.received_stderr(bytes(1000))
        assert connection.error is None
        connection.received_stderr(bytes(2000))
        assert len(connection.stderr) <= 8192
        return connection.error

    assert isinstance(play(scene), ProtocolError)


def test_another_runtime_is_refused() -> None:
    """READY must repeat the hash of the volume that was mounted."""

    async def run() -> None:
        connection = Connection("h", lambda error: connection.fail_waiting(error))  # noqa: PLW0108 (it is not there yet)
        connection.connected(Script())
        connection.received(encode_json(frame.READY, 0, {"hash": "other"}))
        with pytest.raises(ProtocolError, match="another runtime"):
            await connection.hello(HELLO, 5)

    asyncio.run(run())


def test_an_agent_that_does_not_come_up_is_lost() -> None:
    """The start has its own limit."""

    async def run() -> None:
        connection = Connection("h", lambda error: connection.fail_waiting(error))  # noqa: PLW0108 (it is not there yet)
        connection.connected(Script())
        with pytest.raises(AgentLost, match="did not come up"):
            await connection.hello(HELLO, 0.05)

    asyncio.run(run())


def test_a_lost_stream_ends_every_waiting_call() -> None:
    """No call is left waiting, and none is taken afterwards."""

    async def scene(connection: Connection, script: Script) -> list[Any]:
        calls = [asyncio.ensure_future(connection.request("any", {})) for _ in range(3)]
        await asyncio.sleep(0)
        connection.closed("gone")
        late = asyncio.ensure_future(connection.request("any", {}))
        assert script.is_closed
        return await asyncio.gather(*calls, late, return_exceptions=True)

    errors = play(scene)
    assert [type(error) for error in errors] == [AgentLost] * 4


def test_cancelling_a_call_waits_for_its_end_in_the_box() -> None:
    """CANCEL is sent, and the cancellation goes on only after the agent's answer."""

    async def scene(connection: Connection, script: Script) -> None:
        call = asyncio.ensure_future(connection.request("run", {"grace": 1}, grace=1))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        assert script.sent.endswith(encode(frame.CANCEL, 1))
        assert not call.done()
        connection.received(reply({"ok": RAN}))
        with pytest.raises(asyncio.CancelledError):
            await call
        assert connection.error is None

    play(scene)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are seconds long in the product are short."""
    monkeypatch.setattr(connection_module, "CANCEL_MARGIN", 0.05)
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 0.01)
    monkeypatch.setattr(connection_module, "PING_PATIENCE", 0.3)


async def loss_of(connection: Connection) -> SandboxError:
    """Why the connection is lost, once it is; `play` bounds the wait."""
    while connection.error is None:
        await asyncio.sleep(0.001)
    return connection.error


async def cancelled_twice(connection: Connection) -> None:
    """A call whose caller has gone before the agent has said that it is ended."""
    call = asyncio.ensure_future(connection.request("run", {"grace": 0}, timeout=60))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.sleep(0)
    assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.usefixtures("impatient")
def test_a_call_cancelled_twice_is_watched_to_its_end() -> None:
    """When the caller does not wait for the end of its call, the deadline still does."""

    async def scene(connection: Connection, script: Script) -> SandboxError:
        await cancelled_twice(connection)
        return await loss_of(connection)

    assert "was not ended by the agent" in str(play(scene))


def test_a_call_cancelled_twice_is_ended_by_its_answer() -> None:
    """The late answer is taken and the box lives."""

    async def scene(connection: Connection, script: Script) -> SandboxError | None:
        await cancelled_twice(connection)
        connection.received(reply({"error": {"code": "CANCELLED", "message": "cancelled"}}))
        again = asyncio.ensure_future(connection.request("any", {}))
        await asyncio.sleep(0)
        connection.received(reply({"ok": {}}, channel=2))
        await again
        return connection.error

    assert play(scene) is None


@pytest.mark.usefixtures("impatient")
def test_a_call_that_can_not_be_sent_costs_the_box_in_time() -> None:
    """A stream that takes nothing is lost when the first call's time and margin are over."""

    async def scene(connection: Connection, script: Script) -> Any:
        connection.pause()
        calls = [connection.request("grep", {}, timeout=seconds) for seconds in (0.02, 60)]
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = play(scene)
    assert [type(error) for error in errors] == [AgentLost] * 2
    assert "took no input" in str(errors[0])


def test_a_call_waits_until_the_stream_takes_it() -> None:
    """Nothing is sent while the stream is full, and all of it afterwards."""

    async def scene(connection: Connection, script: Script) -> None:
        connection.pause()
        call = asyncio.ensure_future(connection.request("any", {}, timeout=60))
        await asyncio.sleep(0)
        assert b"any" not in script.sent
        connection.resume()
        while b"any" not in script.sent:
            await asyncio.sleep(0)
        connection.received(reply({"ok": {}}))
        await call
        assert connection.error is None

    play(scene)


@pytest.mark.usefixtures("impatient")
def test_pongs_that_answer_no_ping_keep_no_box() -> None:
    """An agent that does not read can't say what a ping held, and answers as often as asked."""

    async def scene(connection: Connection, script: Script) -> tuple[str, str]:
        await asyncio.sleep(0)  # the first ping goes out
        connection.received(encode(frame.PONG, 0, b"guessed"))
        silent = await loss_of(connection)
        other = Connection(None, lambda error: other.fail_waiting(error))  # noqa: PLW0108 (it is not there yet)
        other.received(encode(frame.PONG, 0, b""))
        return str(silent), str(other.error)

    silent, hasty = play(scene)
    assert "did not answer" in silent
    assert "a ping that was not sent" in hasty


@pytest.mark.usefixtures("impatient")
def test_pongs_that_echo_their_pings_keep_the_box() -> None:
    """Each ping is answered by what it held."""

    async def scene(connection: Connection, script: Script) -> None:
        parser = frame.Parser(frame.TO_AGENT)
        echoed: set[bytes] = set()
        while len(echoed) < 50:
            sent, script.sent = script.sent, b""
            for kind, channel, payload in parser.feed(sent):
                if kind == frame.PING:
                    echoed.add(payload)
                    connection.received(encode(frame.PONG, channel, payload))
            await asyncio.sleep(0.001)
        assert connection.error is None

    play(scene)


def test_an_operation_out_of_time_is_ended_in_the_box() -> None:
    """Past its time an operation is cancelled; the agent's word turns into TIMEOUT."""

    async def scene(connection: Connection, script: Script) -> Any:
        call = asyncio.ensure_future(connection.request("grep", {}, timeout=0.01))
        while not script.sent.endswith(encode(frame.CANCEL, 1)):
            await asyncio.sleep(0.001)
        connection.received(reply({"error": {"code": "CANCELLED", "message": "cancelled"}}))
        try:
            return await call
        except ToolError as error:
            return error

    assert play(scene).code is Code.TIMEOUT


def test_live_output_is_bounded_by_credit() -> None:
    """More live output than was granted is a breach; what is taken is granted again."""

    async def scene(connection: Connection, script: Script) -> tuple[int, bytes, Any]:
        seen = 0

        def take(channel: str, data: bytes) -> None:
            nonlocal seen
            seen += len(data)

        call = asyncio.ensure_future(connection.request("run", {"grace": 0}, on_output=take))
        await asyncio.sleep(0)
        for _ in range(32):
            connection.received(encode(frame.STDOUT, 1, bytes(50_000)))
        sent = script.sent
        connection.received(reply({"ok": RAN}))
        return seen, sent, await call

    seen, sent, _ = play(scene)
    assert seen == 1_600_000
    assert json.dumps({"bytes": 550_000}, separators=(",", ":")).encode() in sent


def test_a_listener_that_fails_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of one listener is logged; its call goes on, and so does every other."""

    async def scene(connection: Connection, script: Script) -> tuple[int, Any]:
        times = 0

        def take(channel: str, data: bytes) -> None:
            nonlocal times
            times += 1
            raise ZeroDivisionError

        call = asyncio.ensure_future(connection.request("run", {"grace": 0}, on_output=take))
        await asyncio.sleep(0)
        for _ in range(2 * LIVE_CREDIT // LIVE_PIECE):
            connection.received(encode(frame.STDOUT, 1, bytes(LIVE_PIECE)))
        connection.received(reply({"ok": RAN}))
        return times, await call

    with caplog.at_level(logging.ERROR):
        times, answer = play(scene)
    assert (times, answer.value) == (1, RAN)
    assert "a listener to live output failed" in caplog.text


@pytest.mark.parametrize("size", [0, LIVE_PIECE + 1])
def test_live_output_comes_in_pieces_of_a_read(size: int) -> None:
    """Empty pieces would cost the credit nothing, and huge ones fill a queue of events."""

    async def scene(connection: Connection, script: Script) -> SandboxError | None:
        request = connection.request("run", {"grace": 0}, on_output=lambda channel, data: None)
        call = asyncio.ensure_future(request)
        await asyncio.sleep(0)
        connection.received(encode(frame.STDOUT, 1, bytes(size)))
        with pytest.raises(ProtocolError):
            await call
        return connection.error

    assert isinstance(play(scene), ProtocolError)


@pytest.mark.fuzz
@cases(2000)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_fuzzed_bytes_never_raise_anything_else(pieces: list[bytes]) -> None:
    """Bytes from the agent end in frames or a typed error, never an exception."""
    loop = asyncio.new_event_loop()

    async def run() -> None:
        connection = Connection(None, lambda error: connection.fail_waiting(error))  # noqa: PLW0108 (it is not there yet)
        connection.connected(Script())
        for piece in pieces:
            connection.received(piece)
        assert connection.error is None or isinstance(connection.error, SandboxError)

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


@pytest.mark.fuzz
@cases(500)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["ok", "error", "code", "message", "details", "x"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_as_an_answer_is_an_answer_or_a_typed_error(value: Any) -> None:
    """Whatever JSON comes as a REPLY, the caller gets an answer, a ToolError or a ProtocolError."""
    outcome = outcome_of(encode(frame.REPLY, 1, json.dumps(value).encode()))
    assert isinstance(outcome, (ToolError, ProtocolError)) or set(value) == {"ok"}
