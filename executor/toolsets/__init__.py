"""The names and schemas under which tools are shown to a model."""

from __future__ import annotations

from executor.catalog import Catalog
from executor.model import Limits
from executor.tool import Registry
from executor.toolsets import standard
from executor.toolsets.building import Shown, build

_TOOLSETS: dict[str, tuple[Shown, ...]] = {standard.NAME: standard.TOOLS}


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
        catalog: the checked catalog.
        limits: of the loop; its call timeout stands in the descriptions.
    """
    entry = catalog.toolsets[toolset]
    shown = _TOOLSETS[entry.base or toolset]
    if entry.tools is not None:
        shown = tuple(item for item in shown if (item.canonical or item.name) in entry.tools)
    return build(shown, catalog, limits, entry)
