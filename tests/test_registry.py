"""Tools of a user's own: functions of the host, commands and toolsets of the catalog."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import runpy
import sys
import tomllib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

import executor
from executor import (
    Code,
    ConfigError,
    Contacts,
    Context,
    Controller,
    Hooks,
    Outcome,
    Registry,
    Settings,
    Touches,
    custom_tool,
    register_all_tools,
    register_task_tool,
)
from executor.catalog import PACKAGED, Catalog, LoopType, load, parse
from executor.egress.options import host_faults
from executor.hooks import Hook, HookEvent, Occasion, Reply
from executor.model import Access
from executor.tool import Action, Order, Tool
from executor.toolsets import registry
from tests.loops import Work, open_work
from tests.pictures import PNG
from tests.test_catalog import TEXT, faults_of

ROOT = Path(__file__).resolve().parents[1]


class CountWords(BaseModel):
    """Arguments of `count_words`."""

    path: str = Field(description="File in the worktree")
    longest: int | None = None


def reads(context: Context, given: CountWords) -> Sequence[Action]:
    return [Touches(context.path(given.path), "read")]


@custom_tool(access="read", actions=reads)
async def count_words(context: Context, given: CountWords) -> dict[str, Any]:
    """Count the words of a text file."""
    asked = {"path": context.path(given.path), "encoding": "base64"}
    answer = await context.ask("read", asked)
    return {"words": len(answer.data.split())}


@custom_tool(access=Access.WRITE)
async def stamp(context: Context, given: CountWords) -> str:
    """Write a stamp into a file."""
    asked = {"path": context.path_to_write(given.path), "create_dirs": True}
    await context.ask("write", asked, b"stamp\n")
    return "stamped"


@custom_tool
async def long_text(context: Context, given: CountWords) -> str:
    """A text that is too long."""
    return "line\n" * 20_000


@custom_tool
async def failing(context: Context, given: CountWords) -> Outcome:
    """A tool with a fault."""
    raise KeyError("secret")


OWN = [count_words, stamp, long_text, failing]


def own_tools(directory: Path, more: str = "", mode: str = "bypass", **company: Any) -> Any:
    return open_work(
        "local",
        directory,
        change=lambda spec: replace(spec, mode=mode),
        catalog=catalog_with(more),
        **{"tools": OWN, **company},
    )


def catalog_with(more: str) -> Catalog:
    return parse([(PACKAGED, TEXT), ("my", more)])


# ─── functions ──────────────────────────────────────────────────────────────────────


def test_a_function_becomes_a_tool() -> None:
    """Name, text and schema are the function's, its docstring's and its model's."""
    tool = count_words
    assert isinstance(tool, Tool)
    assert (tool.name, tool.description) == ("count_words", "Count the words of a text file.")
    assert tool.schema == {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File in the worktree"},
            "longest": {"type": "integer"},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
    assert (tool.access, tool.order, tool.is_mutating) == (Access.READ, Order.SAFE, False)
    assert (stamp.order, stamp.is_mutating) == (Order.UNSAFE, True)


def test_what_the_decorator_is_told_wins() -> None:
    """Name, description, flags and limits may be given."""

    async def anything(context: Context, given: CountWords) -> str:
        return ""

    tool = custom_tool(
        anything, name="other", description="Text", mutates=True, max_output=1000, timeout_ms=5
    )
    assert (tool.name, tool.canonical, tool.description) == ("other", "other", "Text")
    assert (tool.order, tool.is_mutating) == (Order.UNSAFE, True)
    assert (tool.entry.max_output_bytes, tool.entry.timeout_ms) == (1000, 5)


class Loose(BaseModel):
    """A model that wants to be coerced."""

    model_config = ConfigDict(strict=False, extra="ignore")

    number: int


@pytest.mark.parametrize(
    "given", [{"path": 1}, {"path": "a", "longest": "2"}, {"path": "a", "x": 1}, {}]
)
def test_arguments_are_taken_as_json_has_them(given: dict[str, Any]) -> None:
    """No text for a number and nothing unknown, though the model does not say so."""
    with pytest.raises(executor.ToolError) as caught:
        count_words.parse(given)
    assert caught.value.code is Code.INVALID_ARGUMENTS


def test_a_model_that_says_otherwise_is_believed() -> None:
    """The user's own configuration of a model stands; what is handed over is that model."""

    @custom_tool
    async def loose(context: Context, given: Loose) -> str:
        """Anything."""
        return str(given.number)

    parsed = loose.parse({"number": "5", "more": 1})
    assert isinstance(parsed, Loose) and parsed.number == 5


async def no_docstring(context: Context, given: CountWords) -> str:
    return ""


async def no_model(context: Context, given: str) -> str:
    """Text."""
    return ""


async def too_few(context: Context) -> str:
    """Text."""
    return ""


def not_async(context: Context, given: CountWords) -> str:
    """Text."""
    return ""


def test_a_name_that_models_can_not_call_is_a_fault() -> None:
    """The APIs of models take letters, digits, _ and -."""
    for name in ("a b", "x" * 65, "é", "a.b"):
        with pytest.raises(ConfigError, match="is no name"):
            custom_tool(count_words.run, name=name, description="x", arguments=CountWords)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_docstring, "has no description"),
        (no_model, "has no pydantic model"),
        (too_few, "has no pydantic model"),
        (not_async, "is not async"),
    ],
)
def test_what_is_no_tool_fails_as_it_is_made(function: Any, said: str) -> None:
    """The fault names the tool and the mend."""
    with pytest.raises(ConfigError, match=said):
        custom_tool(function)


class Nested(BaseModel):
    """A part of arguments."""

    number: int


class Colour(Enum):
    """One of two."""

    RED = "red"
    BLUE = "blue"


class Rich(BaseModel):
    """Arguments that are more than texts and numbers."""

    colour: Colour = Colour.RED
    pair: tuple[int, str] = (1, "a")
    day: date = date(2000, 1, 1)
    numbers: frozenset[int] = frozenset()
    either: int | str = Field(1, description="One or the other")
    nested: Nested | None = Field(None, description="A part")
    named: dict[str, Nested] = Field(default={}, description="Parts by name")
    share: float = 0.5


class Endless(BaseModel):
    """Arguments that refer to themselves."""

    parts: list[Endless] = []


class NoObject(RootModel[list[int]]):
    """Arguments that are no object."""


@custom_tool
async def rich_tool(context: Context, given: Rich) -> Rich:
    """Give back what it is given."""
    return given


def test_a_schema_says_all_and_refers_to_nothing() -> None:
    """Parts stand where they are used, and a choice of types stays one."""
    part = {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
    }
    shown = rich_tool.schema["properties"]
    assert "$" not in str(rich_tool.schema)
    assert shown["nested"] == {**part, "description": "A part"}
    assert shown["named"]["additionalProperties"] == part
    assert shown["either"] == {
        "description": "One or the other",
        "anyOf": [{"type": "integer"}, {"type": "string"}],
    }
    assert shown["colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert shown["pair"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"colour": "blue"}, {"colour": Colour.BLUE}),
        ({"pair": [2, "b"]}, {"pair": (2, "b")}),
        ({"day": "2026-01-02"}, {"day": date(2026, 1, 2)}),
        ({"numbers": [1, 2.0]}, {"numbers": frozenset({1, 2})}),
        ({"nested": {"number": 5.0}}, {"nested": Nested(number=5)}),
        ({"share": 1}, {"share": 1.0}),
        ({"nested": None}, {"nested": None}),
    ],
)
def test_arguments_of_any_type_can_be_given(given: dict[str, Any], taken: dict[str, Any]) -> None:
    """JSON has no dates, tuples or members of enums: they are given as what JSON has."""
    assert rich_tool.parse(given).model_dump() == Rich(**taken).model_dump()


@pytest.mark.parametrize(
    "given", [{"colour": "green"}, {"pair": "2b"}, {"share": "1"}, {"either": 1.5}, {"x": 1}]
)
def test_they_are_still_checked(given: dict[str, Any]) -> None:
    """What the schema does not say is refused."""
    with pytest.raises(executor.ToolError) as caught:
        rich_tool.parse(given)
    assert caught.value.code is Code.INVALID_ARGUMENTS


def test_names_that_are_no_utf8_can_be_given() -> None:
    """They hold lone surrogates for their bytes, and are handed over with them."""
    parsed = count_words.parse({"path": "\udcff", "longest": 5.0})
    assert parsed.model_dump() == {"path": "\udcff", "longest": 5}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"access": "all"}, "access is 'all'; known: read, write, exec, network, session"),
        ({"keep": "middle"}, "keep is 'middle'; known: "),
        ({"order": "SAFE"}, "order is 'SAFE'"),
        ({"timeout_ms": 0}, "timeout_ms is 0"),
        ({"max_output": "1"}, "max_output is '1'"),
        ({"description": 5}, "has no description"),
        ({"arguments": dict}, "has no pydantic model"),
        ({"arguments": Endless}, "refers to itself"),
        ({"arguments": NoObject}, "are no object"),
    ],
)
def test_options_that_make_no_sense_fail_as_it_is_made(options: Any, said: str) -> None:
    """Every one is a fault of the configuration, with the tool's name."""
    with pytest.raises(ConfigError, match="tool rich_tool: .*" + re.escape(said)):
        custom_tool(rich_tool.run, **{"arguments": Rich, "description": "x", **options})


@pytest.mark.parametrize("given", [5, object(), functools.partial(rich_tool.run)])
def test_what_is_no_function_fails_as_it_is_made(given: Any) -> None:
    """It is neither decorated nor registered."""
    with pytest.raises(ConfigError, match="is no function"):
        custom_tool(given)
    with pytest.raises(ConfigError, match="is no tool"):
        Registry().register(given)


# ─── the registry ───────────────────────────────────────────────────────────────────


def test_a_registry_lists_in_order_and_gives_by_name() -> None:
    """What was registered is there, once, in the order in which it came."""
    tools = Registry.from_tools(OWN)
    assert tools.list() == ("count_words", "stamp", "long_text", "failing")
    assert tools.get("stamp") is stamp
    assert tools.get("none") is None
    assert tools.all() == tuple(OWN)
    assert [one["name"] for one in tools.definitions()] == list(tools.list())
    bare = tools.to_openai_functions()[0]
    assert set(bare) == {"name", "description", "parameters"}


def test_a_name_is_registered_once_unless_it_is_to_be_replaced() -> None:
    """Both tools are named, so that it is clear which two they are."""
    tools = Registry.from_tools([stamp])
    with pytest.raises(ConfigError, match=r"two tools are called 'stamp': .*stamp and .*stamp"):
        tools.register(stamp)
    tools.register(replace(stamp, description="new"), replace=True)
    assert tools.all()[0].description == "new"


@pytest.mark.parametrize("toolset", ["standard", "claude-code", "loom"])
def test_all_tools_of_a_toolset_are_registered_at_once(toolset: str) -> None:
    """The registry has the toolset's tools beside what it had."""
    tools = Registry.from_tools([count_words])
    register_all_tools(tools, toolset)
    names = [name for name in registry(toolset, load()).list() if name != "Task"]
    assert tools.list() == ("count_words", *names)


def test_the_tool_that_starts_agents_is_registered_by_itself() -> None:
    """As the seed has it; a toolset without such a tool adds nothing."""
    tools = Registry()
    register_all_tools(tools)
    register_task_tool(tools)
    assert set(tools.list()) == set(registry("claude-code", load()).list())
    register_task_tool(tools, "standard")
    with pytest.raises(ConfigError, match="two tools are called 'Task'"):
        register_task_tool(tools)


def test_the_seeds_tools_are_the_usual_ones() -> None:
    """Without a name it is the toolset whose specification has the function."""
    tools = Registry()
    register_all_tools(tools)
    assert tools.get("Bash") is not None
    with pytest.raises(ConfigError, match="two tools are called 'Read'"):
        register_all_tools(tools)
    with pytest.raises(ConfigError, match="there is no 'other'; known: claude-code"):
        register_all_tools(tools, "other")


def test_every_public_name_is_there() -> None:
    """`executor` has what it says it has."""
    for name in executor.__all__:
        assert getattr(executor, name) is not None


# ─── in a loop ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def work(tmp_path: Path) -> Any:
    """A loop with tools of its own."""
    with own_tools(tmp_path) as opened:
        opened.write("a.txt", "two words\n")
        yield opened


def test_a_tool_of_ones_own_is_called_like_any_other(work: Work) -> None:
    """It is shown, it reaches the worktree by its context, and a value becomes JSON and data."""
    assert "count_words" in [tool["name"] for tool in work.loop.definitions()]
    result = work.call("count_words", path="/workspace/a.txt")
    assert (result.content, result.structured) == ('{"words": 2}', {"words": 2})
    assert work.call("count_words", path="../x").code is Code.INVALID_PATH
    assert work.call("count_words", path="none").code is Code.FILE_NOT_FOUND


def test_its_output_is_cut_like_any_others(work: Work) -> None:
    """30,000 bytes are shown, and it is said that there was more."""
    result = work.call("long_text", path="a")
    assert len(str(result.content)) <= 30_000
    assert (result.truncated, result.total_bytes) == (True, 100_000)
    assert "bytes left out" in str(result.content)


def test_its_fault_is_a_result(work: Work) -> None:
    """What it raises does not end the loop, and its text is not shown to the model."""
    result = work.call("failing", path="a")
    assert result.code is Code.INTERNAL
    assert "secret" not in str(result.content)
    assert not work.call("count_words", path="a.txt").is_error


PICTURE = {"type": "base64", "media_type": "image/png", "data": b64encode(PNG).decode()}
IMAGE: dict[str, Any] = {"type": "image", "source": PICTURE}
RETURNED: dict[str, tuple[Any, Any]] = {
    "a model": (Nested(number=1), '{"number": 1}'),
    "nothing": (None, "null"),
    "half a character": ("a\ud800b", "a?b"),
    "half of one within": ({"a": "\ud800"}, '{"a": "?"}'),
    "a picture": (Outcome([IMAGE]), [IMAGE]),
    "bytes": (b"x", None),
    "no number": ({"a": float("nan")}, None),
    "what is no JSON": (Outcome("x", {"a": object()}), None),
    "no content": (Outcome(5), None),  # type: ignore[arg-type]
    "no block": (Outcome([{"type": "?"}]), None),
    "text that is none": (Outcome([{"type": "text", "text": 5}]), None),
    "no picture": (Outcome([{**IMAGE, "source": {**PICTURE, "data": "AAAA"}}]), None),
    "a picture of another kind": (
        Outcome([{**IMAGE, "source": {**PICTURE, "media_type": "image/gif"}}]),
        None,
    ),
}
"""What a function returns, and the content of the result; None = it has failed."""


@custom_tool
async def returning(context: Context, given: CountWords) -> Any:
    """Give what it is asked for."""
    return RETURNED[given.path][0]


@custom_tool
async def cancelling(context: Context, given: CountWords) -> str:
    """Cancel itself."""
    raise asyncio.CancelledError


def test_what_it_returns_is_what_models_take(tmp_path: Path) -> None:
    """JSON, text and whole pictures; anything else is a fault of the tool, and the loop goes on."""
    with own_tools(tmp_path, tools=[returning, cancelling]) as work:
        for name, (_, content) in RETURNED.items():
            result = work.call("returning", path=name)
            if content is None:
                assert result.code is Code.INTERNAL, name
            else:
                assert (result.code, result.content) == (None, content), name
                json.dumps(result.structured, allow_nan=False).encode()
        assert work.call("cancelling", path="x").code is Code.INTERNAL
        assert work.call("read_file", path="nowhere").code is Code.FILE_NOT_FOUND


def test_its_pictures_are_described_where_none_are_sent(tmp_path: Path) -> None:
    """A loop that is given text only is given no picture by any tool."""
    change = functools.partial(replace, text_only=True)
    with open_work("local", tmp_path, change=change, tools=[returning]) as work:
        content = work.call("returning", path="a picture").content
    assert isinstance(content, list)
    assert [block["type"] for block in content] == ["text"]
    assert "image/png" in content[0]["text"] and "text only" in content[0]["text"]


def test_calls_that_depend_on_each_other_keep_their_order(work: Work) -> None:
    """A reading after a writing sees what was written."""
    _, result = work.turn(("stamp", {"path": "new.txt"}), ("count_words", {"path": "new.txt"}))
    assert result.structured == {"words": 1}


def test_two_tools_of_one_name_are_a_fault_at_once() -> None:
    """A controller is not made with them."""
    with pytest.raises(ConfigError, match="two tools are called 'stamp'"):
        Controller(Settings(), load(), tools=[stamp, stamp])


def test_a_tool_can_not_take_the_name_of_the_toolsets(tmp_path: Path) -> None:
    """A loop is not opened with two tools of one name."""
    other = replace(count_words, name="Read")
    with (
        pytest.raises(ConfigError, match="two tools are called 'Read'"),
        open_work(
            "local",
            tmp_path,
            change=lambda spec: replace(spec, toolset="claude-code"),
            tools=[other],
        ),
    ):
        pass


@pytest.mark.parametrize(
    "other", [replace(stamp, name="run_code"), replace(stamp, canonical="run_code")]
)
def test_a_tool_can_not_take_the_name_that_rules_are_meant_for(other: Tool) -> None:
    """Modes let `run_code` run unasked: no other tool may be called so, in any toolset."""
    with pytest.raises(ConfigError, match="the catalog has a tool run_code"):
        Controller(Settings(), load(), tools=[other])


@pytest.mark.parametrize(
    ("more", "given", "code"),
    [
        ("deny = ['count_words']", "a.txt", Code.PERMISSION_DENIED),
        ("deny = ['read_file(*.txt)']", "a.txt", Code.PERMISSION_DENIED),
        ("deny = ['read_file(*.py)']", "a.txt", None),
        ("ask = ['count_words']", "a.txt", Code.APPROVAL_REQUIRED),
    ],
)
def test_rules_hold_for_it(tmp_path: Path, more: str, given: str, code: Code | None) -> None:
    """By its own name, and by what it declares to touch."""
    with own_tools(tmp_path, f"[permissions]\n{more}\n") as work:
        work.write("a.txt", "x\n")
        assert work.call("count_words", path=given).code is code


@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        ("default", (None, Code.APPROVAL_REQUIRED)),
        ("plan", (None, Code.PERMISSION_DENIED)),
        ("acceptEdits", (None, None)),
        ("bypass", (None, None)),
    ],
)
def test_modes_hold_for_it_by_its_access(
    tmp_path: Path, mode: str, codes: tuple[Code | None, Code | None]
) -> None:
    """A reader is free in every mode, a writer is not."""
    with own_tools(tmp_path, mode=mode) as work:
        work.write("a.txt", "x\n")
        reading, writing = work.call("count_words", path="a.txt"), work.call("stamp", path="b")
    assert (reading.code, writing.code) == codes


def test_hooks_hold_for_it(tmp_path: Path) -> None:
    """A hook before the call rejects it."""
    seen: list[str] = []

    def before(occasion: Occasion) -> Reply:
        seen.append(occasion.use.tool)
        return Reply(decision="reject", reason="not today")

    with own_tools(tmp_path, hooks=Hooks([Hook(HookEvent.BEFORE, before)])) as work:
        result = work.call("count_words", path="a.txt")
    assert (result.code, seen) == (Code.REJECTED, ["count_words"])
    assert "not today" in str(result.content)


@pytest.mark.parametrize(("kind", "code"), [("own", None), ("code", Code.DISABLED)])
def test_loop_types_hold_for_it(tmp_path: Path, kind: str, code: Code | None) -> None:
    """A type has it only where its list names it."""
    catalog = load()
    types = {**catalog.loop_types, "own": LoopType(("read_file", "count_words"))}
    with open_work(
        "local",
        tmp_path,
        change=lambda spec: replace(spec, loop_type=kind),
        catalog=replace(catalog, loop_types=types),
        tools=OWN,
    ) as work:
        work.write("a.txt", "x\n")
        assert work.call("count_words", path="a.txt").code is code


def test_a_loop_can_lack_it(tmp_path: Path) -> None:
    """What a tool says of its being unavailable is the reason that the model reads."""
    tool = replace(count_words, unavailable=lambda loop: "there is no library")
    with own_tools(tmp_path, tools=[tool]) as work:
        result = work.call("count_words", path="a")
        assert "there is no library" in str(result.content)
        assert work.loop.disabled()["count_words"] == "there is no library"


def test_hosts_that_it_names_are_judged(tmp_path: Path) -> None:
    """A tool that contacts a host is held to rules on hosts."""

    def contacts(context: Context, given: CountWords) -> Sequence[Action]:
        return [Contacts(given.path)]

    tool = replace(count_words, actions=contacts)
    with own_tools(
        tmp_path, "[permissions]\ndeny = ['count_words(domain:*.evil.example)']\n", tools=[tool]
    ) as work:
        assert work.call("count_words", path="a.evil.example").code is Code.PERMISSION_DENIED


def test_the_example_runs(tmp_path: Path) -> None:
    """`examples/own_tool.py` counts the words of its file."""
    made = runpy.run_path(str(ROOT / "examples/own_tool.py"))
    with own_tools(tmp_path, tools=[made["count_words"]]) as work:
        work.write("poem.txt", "So much depends\nupon a red wheel barrow\n")
        assert work.call("count_words", path="poem.txt").structured == {
            "path": "poem.txt",
            "words": 8,
        }


# ─── commands and toolsets of the catalog ───────────────────────────────────────────

DEPLOY = """
[tools.deploy]
description = "Deploy"
command = ["printf", "%s|", "{environment}", "--times={times}", "{flag}"]
[tools.deploy.params.environment]
description = "Where to"
enum = ["staging", "production"]
[tools.deploy.params.times]
type = "integer"
required = false
[tools.deploy.params.flag]
required = false
"""


def test_a_command_of_the_catalog_is_a_tool_of_every_toolset() -> None:
    """Its schema is made of its parameters; it stands after the toolset's own tools."""
    catalog = catalog_with(DEPLOY)
    for toolset in ("standard", "claude-code", "loom"):
        tool = registry(toolset, catalog).all()[-1]
        assert (tool.name, tool.description, tool.access) == ("deploy", "Deploy", Access.EXEC)
    assert tool.schema == {
        "type": "object",
        "properties": {
            "environment": {
                "type": "string",
                "enum": ["staging", "production"],
                "description": "Where to",
            },
            "times": {"type": "integer", "description": "The times"},
            "flag": {"type": "string", "description": "The flag"},
        },
        "required": ["environment"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ({"environment": "staging"}, "staging|"),
        ({"environment": "staging", "times": 3}, "staging|--times=3|"),
        ({"environment": "staging", "flag": "$(id); `id` \"'*"}, "staging|$(id); `id` \"'*|"),
        ({"environment": "staging", "flag": ""}, "staging||"),
    ],
)
def test_its_words_are_filled_in_and_no_shell_reads_them(
    tmp_path: Path, given: dict[str, Any], printed: str
) -> None:
    """What the model gives is one word, whatever is in it; words that lack theirs are left out."""
    with own_tools(tmp_path, DEPLOY) as work:
        result = work.call("deploy", **given)
    assert (result.content, result.is_error) == (printed, False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"environment": "else"}, "must be one of 'staging' or 'production'"),
        ({}, "environment is required"),
        ({"environment": "staging", "times": "3"}, "times must be a whole number"),
        ({"environment": "staging", "flag": "--force"}, "flag begins with a dash"),
        ({"environment": "staging", "flag": "a\0b"}, "flag holds a NUL"),
        ({"environment": "staging", "other": 1}, "other is not an argument"),
    ],
)
def test_its_parameters_are_checked(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    """No value becomes an option, and none is of another kind than the catalog says."""
    with own_tools(tmp_path, DEPLOY) as work:
        result = work.call("deploy", **given)
    assert result.code is Code.INVALID_ARGUMENTS
    assert said in str(result.content)


def test_rules_on_commands_hold_for_it(tmp_path: Path) -> None:
    """It is judged by the command line that runs."""
    more = f"{DEPLOY}\n[permissions]\ndeny = ['run_command(printf *)']\n"
    with own_tools(tmp_path, more) as work:
        result = work.call("deploy", environment="staging")
    assert result.code is Code.PERMISSION_DENIED


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    """`enabled = false` takes a tool of ours away, or one's own."""
    more = f"{DEPLOY}\n[tools.grep]\nenabled = false\n"
    more = more.replace('description = "Deploy"', 'description = "Deploy"\nenabled = false')
    with own_tools(tmp_path, more) as work:
        for name, given in (("deploy", {"environment": "staging"}), ("grep", {"pattern": "x"})):
            result = work.call(name, **given)
            assert result.code is Code.DISABLED
            assert "switched off in the catalog" in str(result.content)


def test_a_program_of_the_worktree_is_run_from_its_root() -> None:
    """A name with a slash is of the worktree, not of wherever the agent is."""
    tool = registry("standard", catalog_with('[tools.x]\ncommand = ["./bin/x"]\n')).get("x")
    assert tool is not None and tool.schema["properties"] == {}
    (action,) = tool.actions(None, tool.parse({}))  # type: ignore[arg-type]
    assert getattr(action, "text", None) == "/workspace/bin/x"


MINE = '[toolsets.mine]\nbase = "claude-code"\ntools = ["read_file", "deploy"]\n'


def test_a_toolset_of_ones_own_is_made_of_another() -> None:
    """It shows the tools that it names, as its base does, and keeps its base's settings."""
    catalog = catalog_with(DEPLOY + MINE + "line_separator = '>'\n")
    entry = catalog.toolsets["mine"]
    assert registry("mine", catalog).list() == ("Read", "deploy")
    assert (entry.reach, entry.unit, entry.line_separator) == ("box", "characters", ">")
    assert entry.limits["read_file"] == 100_000


def test_its_limits_are_laid_over_those_of_its_base() -> None:
    """A limit that it does not name is its base's."""
    catalog = catalog_with(MINE.replace(', "deploy"', "") + "limits = {grep = 5000}\n")
    assert dict(catalog.toolsets["mine"].limits) == {
        **load().toolsets["claude-code"].limits,
        "grep": 5000,
    }


def test_a_loop_runs_with_it(tmp_path: Path) -> None:
    """Its tools work; those of its base that it does not name are unknown."""
    with open_work(
        "local",
        tmp_path,
        change=lambda spec: replace(spec, toolset="mine"),
        catalog=catalog_with(DEPLOY + MINE),
    ) as work:
        work.write("a.txt", "x\n")
        assert work.call("Read", file_path="a.txt").content == "     1\tx"
        assert work.call("deploy", environment="staging").content == "staging|"
        assert work.call("Bash", command="ls").code is Code.UNKNOWN_TOOL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[toolsets.mine]\nbase = 'other'\n", "toolsets.mine.base: there is no toolset 'other'"),
        ("[toolsets.mine]\ntools = ['read_file']\n", "one of your own needs base"),
        (
            "[toolsets.mine]\nbase = 'standard'\ntools = ['reed_file']\n",
            "toolsets.mine.tools: there is no tool 'reed_file'; did you mean read_file?",
        ),
        ("[toolsets.mine]\nbase = 'standard'\ntools = []\n", "toolsets.mine.tools: is empty"),
        ("[toolsets.'a b']\nbase = 'standard'\n", "toolsets.a b: is no name"),
        ("[tools.mine]\ntimeout_ms = 5\n", "one of your own needs command"),
        ("[tools.mine]\ncommand = 'ls'\n", "tools.mine.command: write a list of words"),
        ("[tools.mine]\ncommand = []\n", "tools.mine.command: write a list of words"),
        ("[tools.mine]\ncommand = ['{x}']\nparams = {x = {}}\n", "its first word is the program"),
        ("[tools.mine]\ncommand = ['a', '{x}']\n", "there is no parameter 'x'"),
        (
            "[tools.mine]\ncommand = ['/bin/sh', '-ec', 'echo {x}']\nparams = {x = {}}\n",
            "a shell would read what the model puts into 'echo {x}'",
        ),
        ("[tools.mine]\ncommand = ['a']\nparams = {x = {}}\n", "params.x: is not used"),
        (
            "[tools.mine]\ncommand = ['a', '{x}']\nparams.x = {type = 'integer', enum = ['1']}\n",
            "params.x.enum: is for texts",
        ),
        ("[tools.mine]\ncommand = ['', 'a']\n", "is the program, and is empty"),
        ('[tools.mine]\ncommand = ["a", "b\\u0000"]\n', "holds a NUL"),
        ("[tools.mine]\ncommand = ['a']\nparams = {x = {typ = 1}}\n", "params.x.typ: unknown key"),
        ("[tools.glob]\ncommand = ['a']\n", "tools.glob.command: has no effect"),
        ("[tools.'a.b']\ncommand = ['a']\n", "tools.a.b: is no name"),
    ],
)
def test_faults_of_ones_own_tables_name_key_and_mend(text: str, said: str) -> None:
    """Every fault is found as the catalog is read."""
    assert any(said in fault for fault in faults_of(text)), faults_of(text)


S4_CATALOG = """
[tools.read_file]
lane = "no-net"
timeout_ms = 10000
max_output_bytes = 100000
description = "Read file contents with line numbers"

[tools.write_file]
lane = "no-net"
timeout_ms = 10000
description = "Write content to file"

[tools.edit_file]
lane = "no-net"
timeout_ms = 10000
description = "Replace string in file (requires prior read)"

[tools.list_directory]
lane = "no-net"
timeout_ms = 5000
description = "List directory contents"

[tools.glob]
lane = "no-net"
timeout_ms = 30000
max_output_bytes = 50000
description = "Find files matching pattern"

[tools.grep]
lane = "no-net"
timeout_ms = 60000
max_output_bytes = 100000
description = "Search file contents with regex"

[tools.run_command]
lane = "net"
timeout_ms = 120000
max_output_bytes = 100000
description = "Execute shell command"

[tools.run_command_isolated]
lane = "no-net"
timeout_ms = 120000
max_output_bytes = 100000
description = "Execute command without network"

[tools.web_fetch]
lane = "net"
timeout_ms = 30000
max_output_bytes = 500000
description = "Fetch URL content"

[tools.web_search]
lane = "net"
timeout_ms = 30000
max_output_bytes = 50000
description = "Web search via API"

[tools.build]
lane = "heavy"
timeout_ms = 600000
max_output_bytes = 1000000
description = "Run build command"

[tools.test]
lane = "heavy"
timeout_ms = 600000
max_output_bytes = 1000000
description = "Run test suite"

[tools.validate]
lane = "heavy"
timeout_ms = 600000
max_output_bytes = 500000
description = "Run validation command"

[tools.complete_task]
lane = "no-net"
timeout_ms = 1000
description = "Signal task completion"

[tools.create_plan]
lane = "no-net"
timeout_ms = 5000
description = "Create plan with specs (structured output)"

[tools.create_spec]
lane = "no-net"
timeout_ms = 5000
description = "Create spec with phases (structured output)"

[tools.create_phase]
lane = "no-net"
timeout_ms = 5000
description = "Create phase with tasks (structured output)"
"""


def test_a_catalog_as_the_fourth_specification_writes_it_loads() -> None:
    """Its file loads unchanged: keys and tools are known."""
    catalog = catalog_with(S4_CATALOG)
    assert catalog.tools["run_command"].description == "Execute shell command"
    assert (catalog.tools["glob"].timeout_ms, catalog.tools["glob"].lane) == (30_000, "no-net")


def test_each_tool_of_the_fourth_specification_has_its_lane(tmp_path: Path) -> None:
    """Its file as `--config`, unchanged: all seventeen, in the lane that the file says."""
    file = tmp_path / "catalog.toml"
    file.write_text(S4_CATALOG)
    catalog = load(file, host_faults)
    said = {name: table["lane"] for name, table in tomllib.loads(S4_CATALOG)["tools"].items()}
    assert {name: catalog.tools[name].lane for name in said} == said and len(said) == 17
    assert {lane for lane in said.values()} == set(catalog.lanes)
    tools = {tool.canonical: tool for tool in registry("standard", catalog).all()}
    assert tools.keys() >= said.keys()
    assert all(tool.entry.lane == said.get(name, tool.entry.lane) for name, tool in tools.items())


def test_pieces_of_the_registry_are_loaded_when_they_are_asked_for() -> None:
    """Importing the package loads no tool, so that the command line starts at once."""
    code = "import executor, sys; print('executor.toolsets' in sys.modules)"

    async def output() -> bytes:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        return (await child.communicate())[0]

    assert asyncio.run(output()) == b"False\n"
