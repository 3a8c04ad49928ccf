"""Tools of a user's own: functions of the host, and commands that the catalog names."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
import shlex
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypedDict,
    Unpack,
    get_type_hints,
    overload,
)

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model
from pydantic.errors import PydanticUserError

from executor.catalog import PLACEHOLDER, Catalog, Keep, Param, ToolEntry
from executor.errors import Code, ConfigError, ToolError
from executor.model import LANE, MOUNT, Access, Block
from executor.tool import (
    Action,
    Actions,
    Arguments,
    Context,
    Order,
    Outcome,
    Raw,
    Run,
    RunsCommand,
    Surroundings,
    Tool,
    Whole,
    no_actions,
    schema_of,
)
from executor.tools import commands, rich
from executor.toolsets.building import Shown

# ─── functions ──────────────────────────────────────────────────────────────────────


Function: TypeAlias = Callable[[Context, Any], Awaitable[Any]]


NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What the APIs of models take as a tool's name."""


class Options(TypedDict, total=False):
    """What `custom_tool` may be told; see there."""

    access: Access | str
    mutates: bool | None
    name: str | None
    description: str | None
    arguments: type[BaseModel] | None
    order: Order | None
    actions: Actions
    unavailable: Callable[[Surroundings], str | None] | None
    timeout_ms: int
    max_output: int
    keep: Keep | str


@overload
def custom_tool(function: Function, **options: Unpack[Options]) -> Tool: ...
@overload
def custom_tool(**options: Unpack[Options]) -> Callable[[Function], Tool]: ...
def custom_tool(
    function: Function | None = None,
    *,
    access: Access | str = Access.READ,
    mutates: bool | None = None,
    name: str | None = None,
    description: str | None = None,
    arguments: type[BaseModel] | None = None,
    order: Order | None = None,
    actions: Actions = no_actions,
    unavailable: Callable[[Surroundings], str | None] | None = None,
    timeout_ms: int = 30_000,
    max_output: int = 30_000,
    keep: Keep | str = Keep.START,
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of an async function of the host's; a decorator, with or without brackets.

    The function is given the call's `Context` and its arguments. It runs on the host: the
    loop's worktree and box are reached by the context alone. What it returns is shown to the
    model: a text, a JSON value, a pydantic model, or an `Outcome`. What is too long is cut and
    kept as that of any other tool; rules, hooks, permission modes and loop types apply to it.
    It shares the host's event loop: what blocks belongs in `asyncio.to_thread`.

    Args:
        function: the function.
        access: what it touches, which decides what permission modes say about it.
        mutates: it may change the worktree; None = as its access says.
        name: for the model; None = the function's.
        description: for the model; None = the function's docstring.
        arguments: pydantic model of its arguments; None = its second parameter's type. JSON
            types are taken as they are (5.0 counts as 5) and unknown arguments refused, unless
            its own configuration says otherwise.
        order: how a call is ordered among others of its turn; None = beside others if it only
            reads, else alone.
        actions: what a call is going to do, for rules on commands, paths and hosts.
        unavailable: why a loop does not have the tool; None = it has it.
        timeout_ms: milliseconds that one operation of the box may take.
        max_output: how much of its output the model is shown, in the toolset's unit.
        keep: which part of a longer output stays.

    Returns:
        The `Tool`, for `Controller(tools=[…])` or `Registry.register`.

    Raises:
        ConfigError: the function is not async, has no docstring, or its arguments no model
            that is an object's; or what is said of it makes no sense.
    """
    if function is None:
        return functools.partial(
            custom_tool, access=access, mutates=mutates, name=name, description=description,
            arguments=arguments, order=order, actions=actions, unavailable=unavailable,
            timeout_ms=timeout_ms, max_output=max_output, keep=keep,
        )  # fmt: skip
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ConfigError(f"custom_tool: {function!r} is no function; write async def")
    shown = name or function.__name__
    text = description or inspect.getdoc(function)
    model = arguments or _model_of(function)
    faults = [
        *_function_faults(function, shown, text, model),
        *_option_faults(shown, access, keep, order, (timeout_ms, max_output)),
    ]
    if faults or model is None or not text:
        raise ConfigError(faults)
    access = Access(access)
    is_safe = access is Access.READ and not mutates
    strict = _strict(model)
    return Tool(
        name=shown,
        description=text,
        schema=_schema(shown, strict),
        arguments=strict,
        run=_running(function),
        canonical=shown,
        entry=ToolEntry(LANE, access, timeout_ms, max_output, keep=Keep(keep)),
        order=order or (Order.SAFE if is_safe else Order.UNSAFE),
        actions=actions,
        unavailable=unavailable,
        mutates=mutates,
    )


def _model_of(function: Callable[..., Any]) -> type[BaseModel] | None:
    """The type of a function's second parameter, if it is a pydantic model."""
    names = [*inspect.signature(function).parameters]
    try:
        found = get_type_hints(function).get(names[1]) if len(names) > 1 else None
    except NameError as error:
        raise ConfigError(
            f"tool {function.__name__}: the types of its parameters can't be found ({error}); "
            "define them at the top of a module, or give arguments=…"
        ) from error
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def _function_faults(
    function: Function, shown: str, text: str | None, model: type[BaseModel] | None
) -> list[str]:
    """Why a function can't be a tool."""
    faults: list[str] = []
    if NAME.fullmatch(shown) is None:
        faults.append(f"tool {shown!r}: is no name; write letters, digits, _ and -, at most 64")
    if not inspect.iscoroutinefunction(function):
        faults.append(f"tool {shown}: is not async; write async def {function.__name__}")
    if not text or not isinstance(text, str):
        faults.append(f"tool {shown}: has no description; write a docstring for the model")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        faults.append(
            f"tool {shown}: its second parameter has no pydantic model as its type; write "
            f"async def {function.__name__}(context: Context, given: MyArguments)"
        )
    elif issubclass(model, RootModel):
        faults.append(
            f"tool {shown}: its arguments are no object; write a model with a field for each"
        )
    return faults


def _option_faults(
    shown: str, access: object, keep: object, order: object, numbers: tuple[object, object]
) -> list[str]:
    """What of the options makes no sense."""
    faults = [
        f"tool {shown}: {name} is {value!r}; known: {', '.join(kind)}"
        for name, value, kind in (("access", access, Access), ("keep", keep, Keep))
        if value not in tuple(kind)
    ]
    if order is not None and not isinstance(order, Order):
        faults.append(f"tool {shown}: order is {order!r}; write one of Order, or leave it out")
    for name, number in zip(("timeout_ms", "max_output"), numbers, strict=True):
        if type(number) is not int or number < 1:
            faults.append(f"tool {shown}: {name} is {number!r}; write a whole number from 1")
    return faults


class _FromJson(BaseModel):
    """Arguments that are checked as the JSON that they came as.

    Values of Python would be asked for otherwise: members of an enum, dates, tuples.
    """

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """The arguments; 5.0 counts as 5."""
        given = _with_whole_numbers(obj)
        try:
            text = json.dumps(given, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            # The name of a file that is no UTF-8: no JSON that a parser takes.
            return super().model_validate(given, **options)
        return cls.model_validate_json(text, **options)


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _with_whole_numbers(one) for name, one in value.items()}
    return [_with_whole_numbers(one) for one in value] if isinstance(value, list) else value


def _strict(model: type[BaseModel]) -> type[BaseModel]:
    """The model, which takes JSON types as they are and no unknown arguments."""
    config = ConfigDict(**{"strict": True, "extra": "forbid", **model.model_config})
    return types.new_class(
        model.__name__, (model, _FromJson), exec_body=lambda body: body.update(model_config=config)
    )


def _schema(shown: str, model: type[BaseModel]) -> Mapping[str, Any]:
    """The schema of a tool's arguments.

    Raises:
        ConfigError: there is none that models are given.
    """
    try:
        return schema_of(model)
    except (ConfigError, PydanticUserError) as error:
        raise ConfigError(f"tool {shown}: its arguments have no schema: {error}") from error


def _running(function: Function) -> Run:
    """The function as a tool's `run`."""

    @functools.wraps(function)
    async def run(context: Context, given: Any) -> Outcome:
        try:
            outcome = _outcome(await function(context, given))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError(f"{function.__name__} was cancelled by itself") from None
        if isinstance(outcome.content, str):
            return outcome
        blocks = [rich.sendable(context, block) for block in outcome.content]
        return replace(outcome, content=blocks)

    return run


def _outcome(value: Any) -> Outcome:
    """What a function returned, for the model.

    Raises:
        TypeError, ValueError: it is no JSON, or holds blocks that no model's API takes.
    """
    if isinstance(value, Outcome):
        json.dumps([value.structured, value.details], allow_nan=False)
        return replace(value, content=_content(value.content))
    if isinstance(value, str):
        return Outcome(_encodable(value))
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = _encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    # Keys become texts as they do in JSON.
    return Outcome(text, json.loads(text) if isinstance(value, dict) else None)


def _content(content: Any) -> str | list[Block]:
    if isinstance(content, str):
        return _encodable(content)
    if not isinstance(content, list):
        raise TypeError(f"Outcome.content is a text or a list of blocks, not {type(content)}")
    return [_block(block) for block in content]


def _block(block: Any) -> Block:
    """A block of text or a picture; a wrong one would break every later request."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return {**block, "text": _encodable(block["text"])}
    if kind == "image" and rich.is_picture(block.get("source")):
        return dict(block)
    raise TypeError(f"a block of Outcome.content is neither text nor a picture: {block!r:.200}")


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


# ─── commands ───────────────────────────────────────────────────────────────────────


def commands_of(catalog: Catalog) -> tuple[Shown, ...]:
    """The tools that the catalog makes of commands."""
    return tuple(
        _shown(name, entry, entry.words)
        for name, entry in catalog.tools.items()
        if entry.words is not None
    )


def _shown(name: str, entry: ToolEntry, words: tuple[str, ...]) -> Shown:
    def runs(context: Context, given: Any) -> Sequence[Action]:
        return [RunsCommand(shlex.join(_argv(words, given)), MOUNT)]

    async def run(context: Context, given: Any) -> Outcome:
        program, *rest = _argv(words, given)
        asked = {"argv": [program], "args": rest, "cwd": ""}
        return await commands.waited_for(context, asked, b"", entry.timeout_ms / 1000)

    return Shown(
        name=name,
        arguments=_arguments(name, entry.params),
        run=run,
        actions=runs,
        description=f"Run the command {shlex.join(words)} in the worktree's root.",
    )


_TYPES: dict[str, Any] = {
    "string": Raw,
    "integer": Annotated[int, Whole],
    "number": Annotated[float, Field(allow_inf_nan=False)],
    "boolean": bool,
}


def _arguments(name: str, params: Mapping[str, Param]) -> type[BaseModel]:
    """The model of a command's parameters."""
    fields: dict[str, Any] = {}
    for number, (param, said) in enumerate(params.items()):
        kind = Literal[said.enum] if said.enum else _TYPES[said.type]
        about: Any = {"alias": param, "description": said.description or f"The {param}"}
        # A parameter may be called as a method of the model is.
        fields[f"given_{number}"] = (
            (kind, Field(**about)) if said.is_required else (kind | None, Field(None, **about))
        )
    return create_model(name, __base__=Arguments, **fields)


def _argv(words: Sequence[str], given: BaseModel) -> list[str]:
    """The words of the command, with what the model gave in its places.

    Raises:
        ToolError: INVALID_ARGUMENTS, a value would be taken for an option, or holds a NUL.
    """
    values = given.model_dump(by_alias=True, exclude_none=True)
    argv: list[str] = []
    for word in words:
        names = PLACEHOLDER.findall(word)
        if any(name not in values for name in names):
            continue
        made = PLACEHOLDER.sub(lambda match: _word(values[match[1]]), word)
        is_option = made.startswith("-") and not word.startswith("-")
        if names and (is_option or "\0" in made):
            fault = "begins with a dash" if is_option else "holds a NUL"
            raise ToolError(
                Code.INVALID_ARGUMENTS, f"{names[0]} {fault}, which this tool does not take."
            )
        argv.append(made)
    if "/" in argv[0] and not argv[0].startswith("/"):
        argv[0] = f"{MOUNT}/{argv[0].removeprefix('./')}"
    return argv


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
