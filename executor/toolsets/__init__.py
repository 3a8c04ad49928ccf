"""The names and schemas under which tools are shown to a model."""

from __future__ import annotations

from collections.abc import Iterable

from executor.catalog import Catalog, load
from executor.model import Limits
from executor.tool import Registry, Tool
from executor.toolsets import claude_code, custom, loom, standard
from executor.toolsets.building import Shown, build

_TOOLSETS: dict[str, tuple[Shown, ...]] = {
    standard.NAME: standard.TOOLS,
    claude_code.NAME: claude_code.TOOLS,
    loom.NAME: loom.TOOLS,
}


def names(catalog: Catalog, own: Iterable[Tool] = ()) -> dict[str, str]:
    """Every name of a tool in any toolset → its canonical name, as permission rules use them.

    Args:
        catalog: has names of its own.
        own: the host's tools, which have theirs.
    """
    shown = {
        item.name: item.canonical or item.name for tools in _TOOLSETS.values() for item in tools
    }
    found = {**shown, **{name: name for name in catalog.tools}}
    for tool in own:
        found |= {tool.name: tool.canonical, tool.canonical: tool.canonical}
    return found


def registry(toolset: str, catalog: Catalog, limits: Limits | None = None) -> Registry:
    """The tools of a toolset, in the order in which the model sees them.

    Args:
        toolset: one of ours, or one that the user's catalog makes of ours.
        catalog: the checked catalog; the commands that it makes tools of come last.
        limits: of the loop; its call timeout stands in the descriptions.
    """
    entry = catalog.toolsets[toolset]
    shown = (*_TOOLSETS[entry.base or toolset], *custom.commands_of(catalog))
    if entry.tools is not None:
        shown = tuple(item for item in shown if (item.canonical or item.name) in entry.tools)
    return build(shown, catalog, limits, entry)


def register_all_tools(
    registry: Registry, toolset: str = claude_code.NAME, catalog: Catalog | None = None
) -> None:
    """Add the tools of a toolset to a registry, without the one that starts agents.

    Args:
        registry: takes them.
        toolset: one of ours, or one that the catalog makes.
        catalog: limits and texts; None = the packaged one.

    Raises:
        ConfigError: a name is taken, or there is no such toolset.
    """
    for tool in _all(toolset, catalog):
        if tool.canonical != TASK:
            registry.register(tool)


def register_task_tool(
    registry: Registry, toolset: str = claude_code.NAME, catalog: Catalog | None = None
) -> None:
    """Add the tool that starts agents to a registry.

    Which agents there are is the loop's business (`Surroundings.agents`); one that has none
    has the tool disabled.

    Args:
        registry: takes it.
        toolset: whose tool it is; a toolset without one adds nothing.
        catalog: limits and texts; None = the packaged one.

    Raises:
        ConfigError: the name is taken, or there is no such toolset.
    """
    for tool in _all(toolset, catalog):
        if tool.canonical == TASK:
            registry.register(tool)


TASK = "task"
"""The canonical name of the tool that starts agents."""
_made = registry


def _all(toolset: str, catalog: Catalog | None) -> tuple[Tool, ...]:
    catalog = catalog if catalog is not None else load()
    catalog.require_toolset(toolset)
    return _made(toolset, catalog).all()
