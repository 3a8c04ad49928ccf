"""The names and schemas under which tools are shown to a model."""

from __future__ import annotations

from executor.catalog import Catalog, load
from executor.model import Limits
from executor.tool import Registry
from executor.toolsets import claude_code, custom, loom, standard
from executor.toolsets.building import Shown, build

_TOOLSETS: dict[str, tuple[Shown, ...]] = {
    standard.NAME: standard.TOOLS,
    claude_code.NAME: claude_code.TOOLS,
    loom.NAME: loom.TOOLS,
}


def names(catalog: Catalog) -> dict[str, str]:
    """Every name of a tool in any toolset → its canonical name, as permission rules use them."""
    shown = {
        item.name: item.canonical or item.name for tools in _TOOLSETS.values() for item in tools
    }
    return {**shown, **{name: name for name in catalog.tools}}


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
    """Add every tool of a toolset to a registry.

    Args:
        registry: takes them.
        toolset: one of ours, or one that the catalog makes.
        catalog: limits and texts; None = the packaged one.

    Raises:
        ConfigError: a name is taken, or there is no such toolset.
    """
    catalog = catalog if catalog is not None else load()
    catalog.require_toolset(toolset)
    for tool in _made(toolset, catalog).all():
        registry.register(tool)


_made = registry
