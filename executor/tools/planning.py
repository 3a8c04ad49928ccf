"""What a loop says about its own work: completion, todos, plans, specs and phases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from executor.errors import Code, ToolError
from executor.model import Artifact, ArtifactCreated, TaskCompleted, Todo, TodosChanged
from executor.results import counted
from executor.tool import Arguments, Context, Outcome, Path, Surroundings, Text

# ─── complete_task ──────────────────────────────────────────────────────────────────


class CompleteTask(Arguments):
    """Arguments of `complete_task`."""

    summary: Text = Field(description="Brief summary of what was accomplished")


async def complete_task(context: Context, given: CompleteTask) -> Outcome:
    """Signal that the current task/phase is complete. Only use when validation passes."""
    context.session.completed = given.summary
    context.tell(TaskCompleted(summary=given.summary))
    return Outcome(
        f"Task marked complete: {given.summary}", {"completed": True, "summary": given.summary}
    )


def not_validated(loop: Surroundings) -> str | None:
    """Why a loop whose type demands it can't be completed yet."""
    if not loop.require_validation or loop.session.validated:
        return None
    if loop.session.validated is None:
        return "validate has not passed yet; run it first"
    return "the last validate failed; mend what it names and run it again"


# ─── todo_write ─────────────────────────────────────────────────────────────────────


class TodoItem(Arguments):
    """One item of the list."""

    content: Text = Field(description="Brief, actionable title in imperative form")
    status: Literal["pending", "in_progress", "completed"] = Field(description="Task status")
    active_form: Text | None = Field(
        None,
        alias="activeForm",
        description="Present continuous form for spinner display",
    )


class TodoWrite(Arguments):
    """Arguments of `todo_write`."""

    todos: list[TodoItem] = Field(description="The complete list of todos (replaces existing list)")


MORE_THAN_ONE = "Exactly one task should be in_progress at a time"


async def todo_write(context: Context, given: TodoWrite) -> Outcome:
    """Create or update a structured task list. Replaces the entire list atomically."""
    todos = tuple(Todo(item.content, item.status, item.active_form) for item in given.todos)
    active = [todo for todo in todos if todo.status == "in_progress"]
    if len(active) > 1:
        raise ToolError(Code.INVALID_ARGUMENTS, MORE_THAN_ONE)
    context.session.todos = todos
    context.tell(TodosChanged(todos=todos))
    text = "Todo list updated."
    if active:
        text = f"Todo list updated. Active: {active[0].active_form or active[0].content}"
    shown = [
        {"content": todo.content, "status": todo.status, "activeForm": todo.active_form}
        for todo in todos
    ]
    return Outcome(text, {"todos": shown})


# ─── plans, specs and phases ────────────────────────────────────────────────────────


class PlannedSpec(Arguments):
    """One spec of a plan."""

    name: Text = Field(min_length=1, description="Unique name of the spec")
    title: Text = Field(description="Title of the spec")
    description: Text = Field(description="What the spec is about")
    dependencies: list[Text] | None = Field(
        None, description="Names of the specs that have to be done before"
    )


class CreatePlan(Arguments):
    """Arguments of `create_plan`."""

    title: Text = Field(min_length=1, description="Title of the plan")
    overview: Text = Field(description="What is to be reached, and how")
    specs: list[PlannedSpec] = Field(description="The specs of the plan, at least one")


async def create_plan(context: Context, given: CreatePlan) -> Outcome:
    """Create plan with specs. Structured output - no markdown parsing."""
    if not given.specs:
        raise _faulty("create_plan", ["specs is empty; a plan has at least one spec"])
    names = [spec.name for spec in given.specs]
    needs = {spec.name: tuple(spec.dependencies or ()) for spec in given.specs}
    faults = _repeated("specs", names) + _unmet(needs)
    if faults:
        raise _faulty("create_plan", faults)
    return _made(context, "plan", given.title, given, f"with {counted(len(names), 'spec')}")


class PlannedPhase(Arguments):
    """One phase of a spec."""

    name: Text = Field(min_length=1, description="Unique name of the phase")
    title: Text = Field(description="Title of the phase")
    description: Text = Field(description="What is done in the phase")
    validation: Text | None = Field(None, description="How to tell that it is done")


class CreateSpec(Arguments):
    """Arguments of `create_spec`."""

    name: Text = Field(min_length=1, description="Name of the spec")
    title: Text = Field(description="Title of the spec")
    overview: Text = Field(description="What is to be reached, and how")
    phases: Annotated[list[PlannedPhase], Field(min_length=3, max_length=7)] = Field(
        description="The phases of the spec, 3 to 7, in order"
    )


async def create_spec(context: Context, given: CreateSpec) -> Outcome:
    """Create spec with phases. Structured output - no markdown parsing."""
    names = [phase.name for phase in given.phases]
    if faults := _repeated("phases", names):
        raise _faulty("create_spec", faults)
    return _made(context, "spec", given.name, given, f"with {counted(len(names), 'phase')}")


class PlannedTask(Arguments):
    """One task of a phase."""

    description: Text = Field(description="What is to be done")
    file: Path | None = Field(None, description="File path relative to worktree")
    action: Literal["create", "modify", "delete"] | None = Field(
        None, description="What happens to the file"
    )


class CreatePhase(Arguments):
    """Arguments of `create_phase`."""

    name: Text = Field(min_length=1, description="Name of the phase")
    title: Text = Field(description="Title of the phase")
    objective: Text = Field(description="What is to be reached")
    tasks: list[PlannedTask] = Field(description="The tasks of the phase, in order")
    validation_command: Text = Field(description="Command that tells whether it is done")


async def create_phase(context: Context, given: CreatePhase) -> Outcome:
    """Create phase with tasks. Structured output - no markdown parsing."""
    for task in given.tasks:
        if task.file is not None:
            context.path(task.file)
    tasks = [task.description for task in given.tasks]
    return _made(context, "phase", given.name, given, f"with {counted(len(tasks), 'task')}")


def _made(
    context: Context,
    kind: Literal["plan", "spec", "phase"],
    name: str,
    given: Arguments,
    what: str,
) -> Outcome:
    content = given.model_dump(exclude_none=True, by_alias=True)
    artifact = Artifact(kind, name, content)
    context.session.artifacts.append(artifact)
    context.tell(ArtifactCreated(artifact=artifact))
    return Outcome(f"{kind.capitalize()} created {what}", content)


def _faulty(tool: str, faults: Sequence[str]) -> ToolError:
    return ToolError(
        Code.INVALID_ARGUMENTS,
        f"Invalid arguments for {tool}: {'; '.join(faults)}.",
        {"faults": list(faults)},
    )


def _repeated(field: str, names: Sequence[str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    return [f"{field}: the name {name!r} is given more than once" for name in twice]


def _unmet(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """Dependencies on specs that are not there, and circles of them."""
    faults = [
        f"specs: {name} depends on {needed!r}, which is no spec of this plan"
        for name, all_needed in needs.items()
        for needed in all_needed
        if needed not in needs
    ]
    left = {name: set(all_needed) & needs.keys() for name, all_needed in needs.items()}
    while ready := [name for name, all_needed in left.items() if not all_needed & left.keys()]:
        for name in ready:
            del left[name]
    if left:
        faults.append(f"specs: {', '.join(sorted(left))} depend on each other in a circle")
    return faults


def markdown_of(artifact: Artifact) -> str:
    """The artifact as a Markdown text for people."""
    content = artifact.content
    title = content.get("title", artifact.name)
    lines = [f"# {title}", "", content.get("overview") or content.get("objective") or "", ""]
    for spec in content.get("specs", ()):
        needs = ", ".join(spec.get("dependencies", ()))
        after = f" (after {needs})" if needs else ""
        lines += [f"## {spec['name']}: {spec['title']}{after}", "", spec["description"], ""]
    for phase in content.get("phases", ()):
        lines += [f"## {phase['name']}: {phase['title']}", "", phase["description"], ""]
        if phase.get("validation"):
            lines += [f"Validation: {phase['validation']}", ""]
    for task in content.get("tasks", ()):
        where = " ".join(part for part in (task.get("action"), task.get("file")) if part)
        lines.append(f"- {task['description']}" + (f" ({where})" if where else ""))
    if "validation_command" in content:
        lines += ["", f"Validation: `{content['validation_command']}`"]
    return "\n".join(lines).rstrip("\n") + "\n"
