"""A model's stream → calls: cut anywhere, interleaved, faulty, broken."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.model import Call
from executor.streaming import AnthropicReader, Block, OpenAIReader, Reader, StreamFault, reader_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
INPUTS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)


def start(index: int, id: str = "1", name: str = "read_file", **more: Any) -> dict[str, Any]:
    """A tool_use block begins."""
    block = {"type": "tool_use", "id": id, "name": name, "input": {}, **more}
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, text: str) -> dict[str, Any]:
    """A piece of its input."""
    piece = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": index, "delta": piece}


def stop(index: int) -> dict[str, Any]:
    """It ends."""
    return {"type": "content_block_stop", "index": index}


BEGIN = {"type": "message_start", "message": {"content": []}}
STOP = {"type": "message_stop"}


def taken(events: Iterable[Any], reader: Reader | None = None) -> list[Block]:
    """All calls of these events."""
    reader = reader or AnthropicReader()
    return [block for event in events for block in reader.take(event)]


# ─── Anthropic ──────────────────────────────────────────────────────────────────────


@settings(deadline=None)
@given(given=INPUTS, ascii=st.booleans())
def test_an_input_may_be_cut_anywhere(given: dict[str, Any], ascii: bool) -> None:
    """At every single place, and at all of them."""
    text = json.dumps(given, ensure_ascii=ascii)
    expected = [Block(Call("1", "read_file", given))]
    for cut in range(len(text) + 1):
        events = [start(0), delta(0, text[:cut]), delta(0, text[cut:]), stop(0)]
        assert taken(events) == expected
    assert taken([start(0), *(delta(0, character) for character in text), stop(0)]) == expected


@settings(deadline=None)
@given(inputs=st.lists(INPUTS, max_size=4), data=st.data())
def test_blocks_may_be_interleaved(inputs: list[dict[str, Any]], data: st.DataObject) -> None:
    """Each is told when it ends, whatever is open beside it."""
    left = {
        index: [start(index, id=str(index)), *map_delta(index, json.dumps(given)), stop(index)]
        for index, given in enumerate(inputs)
    }
    reader, ended, found = AnthropicReader(), [], []
    while left:
        index = data.draw(st.sampled_from(sorted(left)))
        event = left[index].pop(0)
        found += reader.take(event)
        if event["type"] == "content_block_stop":
            ended.append(Block(Call(str(index), "read_file", inputs[index])))
            del left[index]
        assert found == ended


def map_delta(index: int, text: str) -> list[dict[str, Any]]:
    """Its input in pieces of three characters."""
    return [delta(index, text[at : at + 3]) for at in range(0, len(text), 3)]


@pytest.mark.parametrize(
    ("events", "given"),
    [
        ([start(0), stop(0)], {}),
        ([start(0), delta(0, ""), stop(0)], {}),
        ([start(0), delta(0, " \n"), stop(0)], {}),
        ([start(0, input={"path": "a"}), stop(0)], {"path": "a"}),
        ([start(0, input={"path": "a"}), delta(0, '{"path": "b"}'), stop(0)], {"path": "b"}),
        ([start(0), delta(0, ' {"a": 1} '), stop(0)], {"a": 1}),
    ],
)
def test_what_counts_as_an_input(events: list[Any], given: dict[str, Any]) -> None:
    """No piece at all is an empty object; what comes in pieces is what counts."""
    assert taken(events) == [Block(Call("1", "read_file", given))]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"a": 1',
        "[1]",
        "1",
        '"a"',
        "null",
        '{"a": NaN}',
        '{"a": 1} {}',
        "{'a': 1}",
        "[" * 5000,
    ],
)
def test_an_input_that_is_no_object_is_a_fault_of_the_call(text: str) -> None:
    """The call is told with what the model has to do; the stream goes on."""
    reader = AnthropicReader()
    faulty, good = taken([start(0), delta(0, text), stop(0), start(1, id="2"), stop(1)], reader)
    assert faulty.call == Call("1", "read_file", {})
    assert faulty.fault is not None
    assert faulty.fault.startswith("The input of read_file is not a JSON object (")
    assert faulty.fault.endswith("Send the call again, with its whole input as one JSON object.")
    assert good == Block(Call("2", "read_file", {}))


@pytest.mark.parametrize("text", ["{}", '{"a": "\\ud83d\\ude00\\u00e9"}', '{"a": "\\\\u"}'])
def test_an_escape_may_be_cut_in_pieces_of_one_character(text: str) -> None:
    """Surrogates and backslashes are whole when the block is."""
    (block,) = taken([start(0), *(delta(0, character) for character in text), stop(0)])
    assert block == Block(Call("1", "read_file", json.loads(text)))


def test_a_thousand_blocks_are_a_thousand_calls() -> None:
    """Open at the same time, each with its own input."""
    numbers = range(1000)
    events = [start(number, id=str(number)) for number in numbers]
    events += [delta(number, json.dumps({"n": number})) for number in reversed(numbers)]
    events += [stop(number) for number in numbers]
    assert [block.call.input["n"] for block in taken(events)] == list(numbers)


def test_other_events_and_blocks_are_passed_over() -> None:
    """Text, thinking, tools of the server, pings, and kinds that come later."""
    text = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    events = [
        {"type": "message_start", "message": {"content": []}},
        {"type": "ping"},
        text,
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "{"}},
        stop(0),
        {"type": "content_block_start", "index": 1, "content_block": server},
        delta(1, "{"),
        stop(1),
        {"type": "comes_later", "index": 7},
        delta(9, "{"),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ]
    reader = AnthropicReader()
    assert (taken(events, reader), reader.is_done) == ([], False)
    assert (taken([STOP], reader), reader.is_done) == ([], True)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([{"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}], "Busy"),
        ([{"type": "error"}], "None"),
        ([start(0), STOP], "the message ended within a block"),
        ([start(0), start(0)], "block 0 begins twice"),
        ([{"index": 0}], "can't be read"),
        ([None], "can't be read"),
        ([["type"]], "can't be read"),
        ([{"type": "content_block_start", "index": 0}], "can't be read"),
        ([start(0), {**delta(0, ""), "delta": {"type": "input_json_delta"}}], "can't be read"),
        ([start(0), delta(0, 7)], "can't be read"),  # type: ignore[arg-type]
        ([start(0), stop(0), start(0)], "block 0 begins twice"),
        ([start(0), delta(0, "{}"), stop(0), delta(0, "x")], "block 0 goes on after its end"),
        ([BEGIN, start(0), stop(0), BEGIN], "the message begins twice"),
        ([start(0, id="")], "can't be read"),
        ([start(0, id=7)], "can't be read"),  # type: ignore[arg-type]
        ([start(0, name=["read_file"])], "can't be read"),  # type: ignore[arg-type]
        ([start([0])], "can't be read"),  # type: ignore[arg-type]
    ],
)
def test_what_breaks_a_stream(events: list[Any], reason: str) -> None:
    """An error that it tells, and events that are none of a whole message."""
    with pytest.raises(StreamFault, match=reason):
        taken(events)


# ─── OpenAI ─────────────────────────────────────────────────────────────────────────


def chunk(*calls: dict[str, Any], finish: str | None = None, index: int = 0) -> dict[str, Any]:
    """A chunk of the answer."""
    choice = {"index": index, "delta": {"tool_calls": list(calls)}, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def piece(index: int, text: str = "", id: str | None = None, name: str = "") -> dict[str, Any]:
    """A piece of a call."""
    function = {"arguments": text, **({"name": name} if name else {})}
    return {"index": index, **({"id": id} if id else {}), "function": function}


@settings(deadline=None)
@given(given=INPUTS)
def test_arguments_may_be_cut_anywhere(given: dict[str, Any]) -> None:
    """A call is told when the message ends, or when another one begins and it is whole."""
    text = json.dumps(given)
    call = Block(Call("c1", "read_file", given))
    for cut in range(len(text) + 1):
        opening = chunk(piece(0, text[:cut], "c1", "read_file"))
        events = [opening, chunk(piece(0, text[cut:]))]
        assert taken([*events, chunk(finish="tool_calls")], OpenAIReader()) == [call]
        reader = OpenAIReader()
        assert taken([*events, chunk(piece(1, "", "c2", "glob"))], reader) == [call]
        assert taken([chunk(finish="stop")], reader) == [Block(Call("c2", "glob", {}))]


def test_calls_whose_pieces_are_interleaved_end_with_the_message() -> None:
    """One that is not whole when another begins may go on; the order is that of the indexes."""
    reader = OpenAIReader()
    events = [
        chunk(piece(0, '{"a"', "c0", "x"), piece(1, '{"b": 1}', "c1", "y")),
        chunk(piece(2, "{", "c2", "z")),
        chunk(piece(0, ": 0}")),
        chunk(piece(2, "}")),
    ]
    assert taken(events, reader) == []
    found = taken([chunk(finish="tool_calls")], reader)
    assert [block.call for block in found] == [
        Call("c0", "x", {"a": 0}),
        Call("c1", "y", {"b": 1}),
        Call("c2", "z", {}),
    ]
    assert reader.is_done


def test_what_else_chunks_may_hold() -> None:
    """Text, usage without choices, other choices, a name in pieces, no id, an empty last piece."""
    reader = OpenAIReader()
    events = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
        {"choices": [], "usage": {"total_tokens": 5}},
        chunk(piece(0, "{}", "other", "other"), finish="stop", index=1),
        chunk(piece(0, "{", None, "read_")),
        chunk(piece(0, "}", None, "file")),
        chunk(piece(1, "{}", "c1", "glob")),
        chunk(piece(0, "")),
    ]
    assert taken(events, reader) == [Block(Call("call_0", "read_file", {}))]
    assert taken([chunk(finish="stop"), {"choices": []}], reader) == [Block(Call("c1", "glob", {}))]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_call_that_is_cut_off_is_not_run(reason: str) -> None:
    """Not even when nothing of its arguments had come, which otherwise are none."""
    for text in ("", '{"a'):
        events = [chunk(piece(0, text, "c0", "x")), chunk(finish=reason)]
        (block,) = taken(events, OpenAIReader())
        assert block.fault is not None and "nothing was run" in block.fault


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([{"error": {"type": "server_error", "message": "Oh"}}], "Oh"),
        (
            [chunk(piece(0, "{}", "c", "x"), piece(1)), chunk(piece(0, "{"))],
            "goes on after its end",
        ),
        ([None], "can't be read"),
        ([chunk({"id": "c"})], "can't be read"),
        ([chunk(piece(0, 7))], "can't be read"),  # type: ignore[arg-type]
    ],
)
def test_what_breaks_a_stream_of_chunks(events: list[Any], reason: str) -> None:
    """An error that it tells, and chunks that are none of a whole message."""
    with pytest.raises(StreamFault, match=reason):
        taken(events, OpenAIReader())


def test_readers_by_name() -> None:
    """The two forms."""
    assert isinstance(reader_of("anthropic"), AnthropicReader)
    assert isinstance(reader_of("openai"), OpenAIReader)
