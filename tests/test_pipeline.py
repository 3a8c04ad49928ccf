"""The five stages: what is refused where, and that a refusal never reaches the box."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from executor import toolsets
from executor.catalog import PACKAGED, Catalog, load, parse
from executor.errors import AgentLost, Code
from executor.loop import rules_of
from executor.model import Access, Call, Limits, LoopSpec, Result
from executor.permissions import Mode, Verdict, decide
from executor.pipeline import Pipeline
from executor.sandbox.box import Sandbox
from executor.session import Session
from executor.tool import Answer, OnOutput, Registry, Surroundings, Tool
from tests.scripted import open_scripted_box
from tests.test_catalog import TEXT


class NoBox:
    """A place where there is no box: whatever asks for one has gone too far."""

    async def ready(self) -> None:
        raise AgentLost("asked for a box")

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Answer:
        raise AgentLost("asked for a box")


def surroundings(catalog: Catalog) -> Surroundings:
    return Surroundings(
        exec_id="test",
        session=Session(),
        limits=Limits(),
        lane="no-net",
        toolset=catalog.toolsets["standard"],
        roots=("/home/u/wt",),
        box=NoBox(),
    )


def answer(
    name: str, given: Any, mode: Mode = Mode.BYPASS, loop_type: str | None = None, more: str = ""
) -> Result:
    catalog = parse([(PACKAGED, TEXT), ("my", more)])
    allowed = catalog.loop_types[loop_type].tools if loop_type else None
    pipeline = Pipeline(toolsets.registry("standard", catalog), allowed, loop_type)
    around = surroundings(catalog)
    around.session.mode = mode
    around.session.rules = rules_of(LoopSpec(worktree="."), catalog)
    return asyncio.run(pipeline.answer(Call("1", name, given), around)).result


def test_an_unknown_tool_names_the_nearest() -> None:
    """`Unknown tool: N`, and what it may have been."""
    result = answer("raed_file", {})
    assert (result.code, result.is_error) == (Code.UNKNOWN_TOOL, True)
    assert str(result.content).startswith("Unknown tool: raed_file. Did you mean read_file")
    assert "Tools: read_file, write_file" in str(answer("zzz", {}).content)


def test_names_that_go_on_for_ever_are_cut() -> None:
    """A refusal has its place in the model's context, whatever it was asked for."""
    name = "x" * 3_000_000
    for result in (answer(name, {}), answer("read_file", {"path": "a", name: 1})):
        assert "x" * 100 in str(result.content) and len(str(result.content)) < 1000
        assert len(str(result.details)) < 1000


def test_loop_types_take_tools_away() -> None:
    """A tool that the loop type does not have is DISABLED, with what there is."""
    result = answer("run_command", {"command": "true"}, loop_type="plan")
    assert result.code is Code.DISABLED
    assert "loops of type plan don't have it" in str(result.content)
    assert "Tools: read_file, write_file, glob, grep, create_plan, complete_task." in str(
        result.content
    )


def test_the_catalog_can_switch_a_tool_off() -> None:
    """`enabled = false` takes a tool away, and says so."""
    result = answer("grep", {"pattern": "x"}, more="[tools.grep]\nenabled = false\n")
    assert result.code is Code.DISABLED
    assert "switched off in the catalog" in str(result.content)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("read_file", {}, "path is required"),
        ("read_file", {"path": 3}, "path must be text, not 3"),
        ("read_file", {"path": None}, "path must be text, not null"),
        ("read_file", {"path": "a", "offset": "1"}, "offset must be a whole number, not the text"),
        ("read_file", {"path": "a", "offset": True}, "offset must be a whole number, not true"),
        ("read_file", {"path": "a", "offset": 1.5}, "offset must be a whole number, not 1.5"),
        ("read_file", {"path": "a", "offset": 0}, "offset must be 1 or more, not 0"),
        ("read_file", {"path": "a", "offset": -1}, "offset must be 1 or more, not -1"),
        ("read_file", {"path": "a", "lines": 3}, "lines is not an argument of this tool"),
        ("read_file", {"path": "a", "ofset": 3}, "did you mean offset"),
        ("read_file", {"path": "a", "encoding": "utf-16"}, "encoding must be one of 'utf-8' or"),
        ("write_file", {"path": "a", "content": ["x"]}, "content must be text, not a list"),
        ("write_file", {"path": "a", "content": "\ud800"}, "content holds half a character"),
        (
            "write_file",
            {"path": "a", "content": "", "createDirs": True, "create_dirs": True},
            "create_dirs is the same as createDirs; give one of the two",
        ),
        ("edit_file", {"path": "a", "old_string": "x"}, "new_string is required"),
        ("list_directory", {"recursive": "yes"}, "recursive must be true or false, not the text"),
        ("run_command", {"command": "x", "timeout_ms": 0}, "timeout_ms must be 1 or more, not 0"),
        (
            "run_command",
            {"command": "x", "dangerously_disable_sandbox": True},
            "is not an argument",
        ),
        ("run_code", {"language": "perl", "code": ""}, "language must be one of 'python' or"),
        ("run_code", {"language": "bash", "code": "", "args": [1]}, "args.0 must be text, not 1"),
        ("run_code", {"language": "bash", "code": "", "timeout": 0}, "timeout must be more than 0"),
        ("move_file", {"source": "a", "to": "b"}, "from is required"),
        ("complete_task", [], "input must be an object of arguments"),
    ],
)
def test_arguments_are_checked_as_json(name: str, given: Any, expected: str) -> None:
    """Types are JSON's own; the message and the details name the field."""
    result = answer(name, given)
    assert result.code is Code.INVALID_ARGUMENTS
    assert str(result.content).startswith(f"Invalid arguments for {name}: ")
    assert expected in str(result.content)
    assert result.details is not None and result.details["faults"][0]["field"] in str(
        result.content
    )


def test_all_argument_faults_come_at_once() -> None:
    """Two wrong fields are two faults."""
    result = answer("edit_file", {"path": 1, "old_string": "a", "new_string": "b", "all": True})
    assert result.details is not None
    assert {fault["field"] for fault in result.details["faults"]} == {"path", "all"}


def test_of_many_argument_faults_ten_are_told() -> None:
    """The first ones, what is missing before what is not known; of the others how many."""
    result = answer("read_file", {f"x{number}": 1 for number in range(100_000)})
    assert result.details is not None
    fields = [fault["field"] for fault in result.details["faults"]]
    assert fields == ["path", *(f"x{number}" for number in range(9))]
    assert str(result.content).endswith("; and 99991 more.")


@pytest.mark.parametrize(
    "given",
    [
        {"path": "a", "offset": 5.0},
        {"path": "a", "offset": None, "limit": None},
        {"path": "/workspace/a"},
        {"path": "odd\udcff"},
    ],
)
def test_json_has_one_kind_of_number_and_null_is_absence(given: dict[str, Any]) -> None:
    """5.0 counts as 5, null for an optional argument as absent, odd names are taken."""
    assert answer("read_file", given).code is Code.SANDBOX_LOST


def test_both_spellings_of_an_argument_are_understood() -> None:
    """`create_dirs` is `createDirs`."""
    for name in ("create_dirs", "createDirs"):
        result = answer("write_file", {"path": "a", "content": "", name: False})
        assert result.code is Code.SANDBOX_LOST


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        (
            "run_command",
            {"command": "x", "timeout_ms": 700000},
            "timeout_ms is 700000, and at most",
        ),
        ("run_code", {"language": "bash", "code": "", "timeout": 601}, "timeout is 601, and at"),
        ("run_code", {"language": "bash", "code": "", "env": {"A B": "x"}}, "not a variable name"),
        ("run_code", {"language": "bash", "code": "", "env": {"EXECUTOR_CALL": "x"}}, "reserved"),
        ("run_code", {"language": "bash", "code": "", "args": ["a\0"]}, "NUL"),
        ("read_file", {"path": "a", "encoding": "base64", "offset": 1}, "can't be used with"),
        ("write_file", {"path": "a", "content": "%", "encoding": "base64"}, "not valid base64"),
    ],
)
def test_what_the_schema_can_not_say_is_refused_too(
    name: str, given: dict[str, Any], expected: str
) -> None:
    """Ceilings, names and combinations are checked before anything reaches the box."""
    result = answer(name, given)
    assert result.code is Code.INVALID_ARGUMENTS
    assert expected in str(result.content)


def test_paths_are_judged_before_the_box_is_asked() -> None:
    """A path that leads out is INVALID_PATH without a look at any file."""
    result = answer("read_file", {"path": "../x"})
    assert result.code is Code.INVALID_PATH


A, K, D = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


@pytest.mark.parametrize(
    ("access", "tool", "expected"),
    [
        (Access.READ, "read_file", (A, A, A, A)),
        (Access.SESSION, "complete_task", (A, A, A, A)),
        (Access.WRITE, "write_file", (K, D, A, A)),
        (Access.WRITE, "move_file", (K, D, A, A)),
        (Access.WRITE, "delete_file", (K, D, K, A)),
        (Access.EXEC, "run_command", (K, D, K, A)),
        (Access.EXEC, "run_code", (A, D, A, A)),
        (Access.NETWORK, "web_fetch", (K, D, K, A)),
    ],
)
def test_the_matrix_of_modes(access: Access, tool: str, expected: tuple[Verdict, ...]) -> None:
    """What default, plan, acceptEdits and bypass say about each class of access."""
    assert tuple(decide(mode, access, tool) for mode in Mode) == expected


def test_asking_nobody_is_an_error_that_names_the_way() -> None:
    """Without an approver a call that needs one fails at once and says what would allow it."""
    result = answer("run_command", {"command": "git push"}, Mode.DEFAULT)
    assert result.code is Code.APPROVAL_REQUIRED
    assert "no one to ask" in str(result.content)
    assert "the rule run_command(git push *)." in str(result.content)
    assert result.details == {"mode": "default", "allowed_by": ["run_command(git push *)"]}


def test_plan_mode_denies_and_says_what_to_do() -> None:
    """In plan mode nothing is changed; the refusal names the mode."""
    result = answer("write_file", {"path": "a", "content": ""}, Mode.PLAN)
    assert result.code is Code.PERMISSION_DENIED
    assert "plan mode" in str(result.content)


def test_nobody_is_asked_about_a_call_that_can_not_run() -> None:
    """Malformed arguments fail as such, for what they would do is not known; a rule that
    denies every call of the tool wins."""
    for mode in Mode:
        assert answer("run_command", {}, mode).code is Code.INVALID_ARGUMENTS
        for rule in ("run_command", "mcp__*"):
            more = f"[permissions]\ndeny = ['{rule}']\n"
            expected = Code.PERMISSION_DENIED if rule == "run_command" else Code.INVALID_ARGUMENTS
            assert answer("run_command", {}, mode, more=more).code is expected


def test_arguments_are_fingerprinted_only_where_somebody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that nobody is asked about does not pay for it, however long its arguments are."""
    monkeypatch.setattr("executor.approvals.fingerprint", None)
    assert answer("write_file", {"path": "a", "content": "x"}).code is Code.SANDBOX_LOST


def test_an_unforeseen_failure_is_one_result() -> None:
    """An exception of a tool becomes INTERNAL and shows nothing of the host."""

    async def broken(context: object, given: object) -> Any:
        raise ZeroDivisionError("/home/u/secret")

    catalog = load()
    tool = toolsets.registry("standard", catalog).all()[0]
    parts = {name: getattr(tool, name) for name in tool.__slots__}
    registry = Registry.from_tools([Tool(**{**parts, "run": broken})])
    call = Call("1", "read_file", {"path": "a"})
    result = asyncio.run(Pipeline(registry).answer(call, surroundings(catalog))).result
    assert (result.code, result.is_error) == (Code.INTERNAL, True)
    assert "secret" not in str(result.content)


# ─── answers of an agent that is none of ours ───────────────────────────────────────

WRITTEN = {"size": 3, "hash": "aa", "key": "k", "created": True}
STREAM = {"total": 2, "head": 2, "tail": 0}
RAN: dict[str, Any] = {
    **{"exit_code": 0, "signal": None, "timed_out": False, "oom": False, "limit": None},
    **{"cwd": "/workspace", "notes": [], "shell": "sh", "interpreter": None},
    **{"stdout": STREAM, "stderr": {**STREAM, "head": 0, "total": 0}},
}
READ = {
    **{"size": 5, "modified": "2024-01-01T00:00:00.000Z", "hash": "aa", "first": 1, "lines": 2},
    **{"total_lines": 3, "more": True, "clipped": [[2, 9]], "invalid": True, "key": "k"},
}

ANSWERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], bytes]] = {
    "read": ("read_file", {"path": "a"}, READ, b"ab\ncd"),
    "read nothing": (
        "read_file",
        {"path": "a"},
        {**READ, "lines": 0, "total_lines": 0, "clipped": []},
        b"",
    ),
    "read raw": (
        "read_file",
        {"path": "a", "encoding": "base64"},
        {"size": 2, "modified": READ["modified"], "hash": "aa", "key": "k"},
        b"ab",
    ),
    "write": ("write_file", {"path": "a", "content": "abc"}, WRITTEN, b""),
    "edit": (
        "edit_file",
        {"path": "a", "old_string": "a", "new_string": "b"},
        {"size": 3, "hash": "aa", "key": "k", "replacements": 1},
        b"",
    ),
    "list": (
        "list_directory",
        {},
        {"hidden": 1, "truncated": True, "unreadable": ["x"], "total": 9},
        b"f\x1f1\x1f1\x1f\x1fa\0L\x1f1\x1f-1\x1fto\x1fb\0",
    ),
    "delete": ("delete_file", {"path": "a"}, {"deleted": 1, "truncated": False}, b"a\0b"),
    "move": ("move_file", {"from": "a", "to": "b"}, {}, b""),
    "glob": ("glob", {"pattern": "*"}, {"total": 2, "ignored": 1, "note": "n"}, b"a\0b"),
    "grep": (
        "grep",
        {"pattern": "a"},
        {
            **{"matches": 1, "files": 1, "truncated": True, "partial": False},
            **{"warnings": ["w"], "total_bytes": 5, "ignored": 1, "clipped": True},
        },
        b"a:1:a",
    ),
    "command": ("run_command", {"command": "x"}, RAN, b"ab"),
    "failed command": ("run_command", {"command": "x"}, {**RAN, "exit_code": 1}, b"ab"),
    "killed command": ("run_command", {"command": "x"}, {**RAN, "exit_code": None}, b"ab"),
    "code": ("run_code", {"language": "bash", "code": "x"}, RAN, b"ab"),
}

LIES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 1.5, 1 << 64, 10**4200, "", "x", "\ud800", "memory"),
    *([], [[]], ["x"], [None], [[0, 1]], [[9, None]], [["a", "b"]], [[1, 2, 3]]),
    *({}, {"x": 1}, {"total": 1, "head": "x", "tail": 1}, {"total": 1, "head": -1, "tail": 1}),
)
NOISE = (b"", b"\0", b"\x1f\0", b"\xff\n\xff", b"f\x1fx\x1f1\x1f\x1fa\0", b"q\x1f1\x1f1\x1f\x1fa\0")


def lies(value: dict[str, Any], data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The same answer with each field left out, each field another, and other data."""
    for name in value:
        yield {key: kept for key, kept in value.items() if key != name}, data
        for lie in LIES:
            yield {**value, name: lie}, data
    for noise in NOISE:
        yield value, noise
    yield {}, data


@functools.cache
def plain() -> tuple[Catalog, Pipeline]:
    """The packaged catalog, and a pipeline that allows everything."""
    catalog = load()
    return catalog, Pipeline(toolsets.registry("standard", catalog))


async def result_of(name: str, given: dict[str, Any], value: Any, data: bytes) -> Result:
    """What a tool makes of an answer; a PROTOCOL_ERROR has to cost the box."""
    catalog, pipeline = plain()
    async with open_scripted_box(lambda arguments: (value, data)) as sandbox:
        around = replace(surroundings(catalog), box=Seated(sandbox))
        result = (await pipeline.answer(Call("1", name, given), around)).result
        assert (result.code is Code.PROTOCOL_ERROR) == (sandbox.error is not None)
        return result


class Seated:
    """A box that is there and is not replaced."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.request = sandbox.request

    async def ready(self) -> None:
        """It is."""


@pytest.mark.parametrize("name", ANSWERS)
def test_a_tool_reads_the_answers_it_is_made_for(name: str) -> None:
    """The answers that the lies are made from are good ones."""
    result = asyncio.run(result_of(*ANSWERS[name]))
    assert result.code in (None, Code.EXECUTION_ERROR), result.content


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_of_an_agent_makes_a_tool_fail(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Statement J2: a field that is missing or wrong is refused before a tool reads it."""
    tool, given, value, data = ANSWERS[name]

    async def all_lies() -> list[Result]:
        return [await result_of(tool, given, *lie) for lie in lies(value, data)]

    results = asyncio.run(all_lies())
    assert Code.INTERNAL not in {result.code for result in results}
    assert all(result.to_line() for result in results)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    if value:
        assert Code.PROTOCOL_ERROR in {result.code for result in results}


def test_complete_task_is_remembered() -> None:
    """The summary is the flag that the host looks at."""
    catalog = load()
    around = surroundings(catalog)
    pipeline = Pipeline(toolsets.registry("standard", catalog))
    call = Call("1", "complete_task", {"summary": "all green"})
    result = asyncio.run(pipeline.answer(call, around)).result
    assert result.content == "Task marked complete: all green"
    assert result.structured == {"completed": True, "summary": "all green"}
    assert around.session.completed == "all green"
    assert result.duration_ms > 0


def test_what_is_foreseen_of_calls() -> None:
    """A call that will be refused for its name or its arguments is not foreseen."""
    pipeline = Pipeline(toolsets.registry("standard", load()), allowed={"read_file"})
    given = {"path": "a"}
    found = pipeline.foreseen(Call("1", "read_file", given))
    assert found is not None
    assert (found[0].name, found[1].model_dump()["path"]) == ("read_file", "a")
    for call in (
        Call("1", "read_file", {}),
        Call("1", "read_file", {**given, "colour": "red"}),
        Call("1", "list_directory", given),
        Call("1", "nope", given),
    ):
        assert pipeline.foreseen(call) is None
