"""Tools under the names and schemas of one toolset → a registry."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from executor.catalog import Catalog, ToolEntry, ToolsetEntry
from executor.errors import ToolError
from executor.model import Limits, plain
from executor.tool import (
    Actions,
    Context,
    Order,
    Outcome,
    Prepare,
    Registry,
    Run,
    Surroundings,
    Tool,
    no_actions,
    schema_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One tool as a toolset shows it.

    Attributes:
        name: under which the model calls it.
        canonical: its name in the catalog; None = the same.
        arguments: the model of its arguments; the schema is made of it.
        run: does the work. Its docstring is the description, where there is no other.
        order, actions, output_schema, show_use, unavailable, mutates, approved_arguments,
            prepare, can_be_tried: see `Tool`.
        description: what the model reads.
        describe: the same, made for one loop.
        schema: the schema that the toolset's specification gives, made for the tool's entry;
            None = it is made of the arguments.
        words: what refusals say in the words of our own tools → in those of this toolset.
    """

    name: str
    arguments: type[BaseModel]
    run: Run
    canonical: str | None = None
    order: Order = Order.UNSAFE
    actions: Actions = no_actions
    output_schema: Mapping[str, Any] | None = None
    show_use: Callable[[Any], str] | None = None
    unavailable: Callable[[Surroundings], str | None] | None = None
    mutates: bool | None = None
    description: str | None = None
    describe: Callable[[Surroundings], str] | None = None
    schema: Callable[[ToolEntry], Mapping[str, Any]] | None = None
    approved_arguments: type[BaseModel] | None = None
    prepare: Prepare | None = None
    can_be_tried: bool = False
    words: Mapping[str, str] = field(default_factory=dict)


def build(
    shown: Iterable[Shown],
    catalog: Catalog,
    limits: Limits | None = None,
    toolset: ToolsetEntry | None = None,
) -> Registry:
    """The tools in the order in which the model sees them.

    Args:
        shown: the tools of the toolset.
        catalog: the checked catalog.
        limits: of the loop; its call timeout stands in the descriptions.
        toolset: the catalog's entry of it, with the limits of its outputs; None = each tool
            has its own.
    """
    limits = limits or Limits()

    def entry_of(item: Shown) -> ToolEntry:
        name = item.canonical or item.name
        entry = catalog.tools[name]
        return entry if toolset is None else toolset.limited(name, entry)

    return Registry.from_tools(_tool(item, entry_of(item), limits) for item in shown)


def _tool(item: Shown, entry: ToolEntry, limits: Limits) -> Tool:
    schema = schema_of(item.arguments) if item.schema is None else dict(item.schema(entry))
    for name, per_second in (("timeout_ms", 1000), ("timeout", 1)):
        part = schema["properties"].get(name)
        if part is None or "{default}" not in part.get("description", ""):
            continue
        default = limits.call_timeout or entry.timeout_ms / 1000
        part["description"] = part["description"].format(default=plain(default * per_second))
        if entry.max_timeout_ms is not None:
            part["maximum"] = entry.max_timeout_ms * per_second // 1000
    return Tool(
        name=item.name,
        description=entry.description or item.description or inspect.getdoc(item.run) or "",
        schema=schema,
        arguments=item.arguments,
        run=_speaking(item.run, item.words) if item.words else item.run,
        canonical=item.canonical or item.name,
        entry=entry,
        order=item.order,
        actions=item.actions,
        output_schema=item.output_schema,
        show_use=item.show_use,
        unavailable=item.unavailable,
        mutates=item.mutates,
        describe=None if entry.description else item.describe,
        approved_arguments=item.approved_arguments,
        prepare=item.prepare,
        can_be_tried=item.can_be_tried,
    )


def spoken(text: str, words: Mapping[str, str]) -> str:
    """A text of our own tools in the words of a toolset."""
    pattern = "|".join(map(_passage, sorted(words, key=len, reverse=True)))
    return re.sub(pattern, lambda match: words[match[0]], text)


def _passage(words: str) -> str:
    """Where a refusal says this, but not within the name of a file that it may be about."""
    before = r"(?<![\w./-])" if words[0].isalnum() else ""
    return rf"{before}{re.escape(words)}(?![\w/-]|\.\w)"


def _speaking(run: Run, words: Mapping[str, str]) -> Run:
    """The same tool, whose refusals name tools and arguments as this toolset does."""

    @functools.wraps(run)
    async def speaking(context: Context, given: Any) -> Outcome:
        try:
            return await run(context, given)
        except ToolError as error:
            raise ToolError(error.code, spoken(str(error), words), error.details) from error

    return speaking
