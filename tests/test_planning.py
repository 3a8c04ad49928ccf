"""Todos, plans, specs and phases: what a loop says about its own work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from executor import toolsets
from executor.catalog import load, parse
from executor.errors import Code
from executor.model import ArtifactCreated, Call, Event, Limits, Result, TodosChanged
from executor.pipeline import Pipeline
from executor.session import Session
from executor.tool import Surroundings
from executor.tools.planning import markdown_of

CATALOG = load()
PIPELINE = Pipeline(toolsets.registry("standard", CATALOG))


def around(**given: Any) -> Surroundings:
    """A loop without a box: these tools need none."""
    plain = Surroundings(
        exec_id="test",
        session=Session(),
        limits=Limits(),
        lane="no-net",
        toolset=CATALOG.toolsets["standard"],
        roots=(),
        box=None,  # type: ignore[arg-type]
    )
    return replace(plain, **given)


def answer(loop: Surroundings, name: str, given: Any, events: list[Event] | None = None) -> Result:
    emit = events.append if events is not None else None
    return asyncio.run(PIPELINE.answer(Call("1", name, given), loop, emit)).result


# ─── todos ──────────────────────────────────────────────────────────────────────────

TODOS = [
    {"content": "Run tests", "status": "in_progress", "activeForm": "Running tests"},
    {"content": "Commit", "status": "pending"},
]


def test_todos_replace_each_other_whole() -> None:
    """The list is the loop's, an event tells it, and the text names the active one."""
    loop, events = around(), list[Event]()
    result = answer(loop, "todo_write", {"todos": TODOS}, events)
    assert result.content == "Todo list updated. Active: Running tests"
    assert [todo.content for todo in loop.session.todos] == ["Run tests", "Commit"]
    assert [type(event) for event in events] == [TodosChanged]
    result = answer(loop, "todo_write", {"todos": []})
    assert (result.content, loop.session.todos) == ("Todo list updated.", ())


@pytest.mark.parametrize("active", [0, 1])
def test_none_or_one_may_be_in_progress(active: int) -> None:
    """Without an active form the content is named."""
    todos = [{"content": f"t{n}", "status": "in_progress"} for n in range(active)]
    text = answer(around(), "todo_write", {"todos": todos}).content
    assert text == "Todo list updated." + (" Active: t0" if active else "")


def test_two_in_progress_are_refused() -> None:
    """The specification's words; the old list stays."""
    loop = around()
    answer(loop, "todo_write", {"todos": TODOS})
    todos = [{"content": name, "status": "in_progress"} for name in "ab"]
    result = answer(loop, "todo_write", {"todos": todos})
    assert result.content == "Exactly one task should be in_progress at a time"
    assert result.code is Code.INVALID_ARGUMENTS
    assert len(loop.session.todos) == 2


@pytest.mark.parametrize(
    ("todos", "field"),
    [
        ([{"content": "x", "status": "done"}], "todos.0.status"),
        ([{"content": "x"}], "todos.0.status"),
        ([{"content": "x", "status": "pending", "id": 1}], "todos.0.id"),
        ("all of it", "todos"),
    ],
)
def test_faulty_todos_name_the_field(todos: Any, field: str) -> None:
    """The path to the fault is in the message."""
    result = answer(around(), "todo_write", {"todos": todos})
    assert result.code is Code.INVALID_ARGUMENTS
    assert field in str(result.content)


# ─── artifacts ──────────────────────────────────────────────────────────────────────


def spec_of(name: str, *dependencies: str) -> dict[str, Any]:
    return {"name": name, "title": "T", "description": "D", "dependencies": [*dependencies]}


def plan_of(*specs: dict[str, Any]) -> dict[str, Any]:
    return {"title": "Login", "overview": "O", "specs": [*specs]}


def phases_of(count: int) -> dict[str, Any]:
    phases = [{"name": f"p{n}", "title": "T", "description": "D"} for n in range(count)]
    return {"name": "s", "title": "T", "overview": "O", "phases": phases}


PHASE = {
    "name": "p",
    "title": "T",
    "objective": "O",
    "tasks": [{"description": "do", "file": "src/a.py", "action": "create"}],
    "validation_command": "make test",
}
MADE = [
    ("create_plan", plan_of(spec_of("a"), spec_of("b", "a")), "Plan created with 2 specs"),
    ("create_plan", plan_of(spec_of("a")), "Plan created with 1 spec"),
    ("create_spec", phases_of(3), "Spec created with 3 phases"),
    ("create_spec", phases_of(7), "Spec created with 7 phases"),
    ("create_phase", PHASE, "Phase created with 1 task"),
]


@pytest.mark.parametrize(("name", "given", "text"), MADE)
def test_artifacts_are_kept_and_told(name: str, given: dict[str, Any], text: str) -> None:
    """The loop has it, an event tells it, and the data is the checked arguments."""
    loop, events = around(), list[Event]()
    result = answer(loop, name, given, events)
    assert (result.content, result.is_error) == (text, False)
    [artifact] = loop.session.artifacts
    assert artifact.kind == name.removeprefix("create_")
    assert result.structured == artifact.content
    assert artifact.content["title"] == given["title"]
    assert [type(event) for event in events] == [ArtifactCreated]
    assert markdown_of(artifact).startswith(f"# {given['title']}\n")


REFUSED = [
    ("create_plan", plan_of(), "specs is empty"),
    ("create_plan", plan_of(spec_of("a"), spec_of("a")), "'a' is given more than once"),
    ("create_plan", plan_of(spec_of("a", "z")), "a depends on 'z'"),
    ("create_plan", plan_of(spec_of("a", "a")), "a depend on each other in a circle"),
    (
        "create_plan",
        plan_of(spec_of("a", "b"), spec_of("b", "c"), spec_of("c", "a"), spec_of("d")),
        "a, b, c depend on each other in a circle",
    ),
    ("create_spec", phases_of(2), "phases"),
    ("create_spec", phases_of(8), "phases"),
    ("create_phase", {**PHASE, "tasks": [{"description": "x", "file": "../up"}]}, "../up"),
    ("create_phase", {**PHASE, "tasks": [{"description": "x", "action": "rename"}]}, "action"),
    ("create_phase", {k: v for k, v in PHASE.items() if k != "tasks"}, "tasks is required"),
]


@pytest.mark.parametrize(("name", "given", "reason"), REFUSED)
def test_faulty_artifacts_are_refused(name: str, given: dict[str, Any], reason: str) -> None:
    """Nothing is kept, and the fault is named."""
    loop = around()
    result = answer(loop, name, given)
    assert result.code in (Code.INVALID_ARGUMENTS, Code.INVALID_PATH)
    assert reason in str(result.content)
    assert loop.session.artifacts == []


def test_markdown_has_all_of_a_phase() -> None:
    """Tasks with what is done to which file, and the validation."""
    loop = around()
    answer(loop, "create_phase", PHASE)
    text = markdown_of(loop.session.artifacts[0])
    assert "- do (create src/a.py)" in text
    assert text.endswith("Validation: `make test`\n")


# ─── loop types ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "has", "lacks"),
    [
        ("plan", "create_plan", "run_command"),
        ("spec", "create_spec", "create_plan"),
        ("phase", "create_phase", "create_spec"),
        ("code", "run_command", "create_phase"),
    ],
)
def test_loop_types_have_their_artifact_alone(kind: str, has: str, lacks: str) -> None:
    """The catalog's lists are the fourth specification's."""
    pipeline = Pipeline(
        toolsets.registry("standard", CATALOG), CATALOG.loop_types[kind].tools, kind
    )
    names = {tool.name for tool in pipeline.enabled(around())}
    assert has in names
    assert lacks not in names


@pytest.mark.parametrize(
    ("validated", "reason"),
    [(None, "has not passed yet"), (False, "the last validate failed"), (True, None)],
)
def test_completion_can_demand_a_validation(validated: bool | None, reason: str | None) -> None:
    """Without one complete_task is DISABLED with what to do; with it the task completes."""
    text = "[loop_types.strict]\ntools = ['complete_task']\nrequire_validation = true\n"
    packaged = (packaged_text(), ("my", text))
    kind = parse(packaged).loop_types["strict"]
    assert kind.require_validation
    loop = around(require_validation=kind.require_validation)
    loop.session.validated = validated
    result = answer(loop, "complete_task", {"summary": "done"})
    if reason is None:
        assert loop.session.completed == "done"
    else:
        assert result.code is Code.DISABLED
        assert reason in str(result.content)


def packaged_text() -> tuple[str, str]:
    from importlib import resources

    return "catalog.toml", resources.files("executor").joinpath("catalog.toml").read_text("utf-8")
