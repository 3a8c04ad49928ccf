"""The names under which a model sees the tools of MCP servers.

A name is looked up whole and never taken apart: servers choose names with any characters in
them, those that divide the parts too.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Collection, Iterable

from executor.rules import FOREIGN

LONGEST = 64
"""Characters of a name that the models' interfaces take."""
_DIGITS = 8
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_UNFIT_ARGUMENT = re.compile(r"[^A-Za-z0-9_.-]")


def is_unicode(text: str) -> bool:
    """It has no half of a character: it can be sent back to the server that said it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def prefix(server: str) -> str:
    """What the names of a server's tools begin with."""
    return f"{FOREIGN}{server}__"


def name_of(server: str, tool: str) -> str:
    """The name of a server's tool: short enough, and of the characters that names may have."""
    whole = prefix(server) + _UNFIT.sub("_", tool)
    return whole if len(whole) <= LONGEST else _hashed(whole, tool)


def named(server: str, tools: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Name for the model → name of the server, of each tool; no two have the same.

    Args:
        server: its name.
        tools: as the server calls them, in its order.
        taken: names that others have already.
    """
    found: dict[str, str] = {}
    for tool in dict.fromkeys(tools):
        name = name_of(server, tool)
        if name in found or name in taken:
            name = _hashed(name, tool)
        if name not in found and name not in taken:
            found[name] = tool
    return found


def is_fit(argument: str) -> bool:
    """Models' interfaces take it as the name of an argument."""
    return 0 < len(argument) <= LONGEST and _UNFIT_ARGUMENT.search(argument) is None


def properties_named(arguments: Collection[str]) -> dict[str, str]:
    """Name for the model → name of the server, of each argument whose name is not fit.

    Args:
        arguments: as the server calls all of them. Of those that even then have the same name,
            the first has it.
    """
    taken = {name for name in arguments if is_fit(name)}
    found: dict[str, str] = {}
    for own in arguments:
        if own in taken:
            continue
        name = _UNFIT_ARGUMENT.sub("_", own)
        if not is_fit(name) or name in taken or name in found:
            name = _hashed(name, own)
        if name not in taken:
            found.setdefault(name, own)
    return found


def _hashed(name: str, tool: str) -> str:
    digits = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{name[: LONGEST - _DIGITS - 1]}_{digits}"


def holds(allowed: Collection[str], name: str) -> bool:
    """Whether a list of tools has this one, by its name or by a pattern of MCP tools."""
    if name in allowed:
        return True
    if not name.startswith(FOREIGN):
        return False
    return any(
        one.startswith(FOREIGN) and one.endswith("*") and fnmatch.fnmatchcase(name, one)
        for one in allowed
    )


def both(some: Collection[str], others: Collection[str]) -> tuple[str, ...]:
    """The list of those that two lists have, patterns of MCP tools among them."""
    found = [name for name in some if holds(others, name)]
    return tuple(dict.fromkeys([*found, *(name for name in others if holds(some, name))]))


def may_have(allowed: Collection[str] | None, server: str) -> bool:
    """Whether a list of tools may have one of a server's; None = all."""
    begin = prefix(server)
    return allowed is None or any(
        one.startswith(begin)
        or (one.startswith(FOREIGN) and one.endswith("*") and begin.startswith(one[:-1]))
        for one in allowed
    )
