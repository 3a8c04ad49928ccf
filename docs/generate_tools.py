"""Writes `docs/tools.md` out of the registry: what a model is shown, and the limits behind it.

`python docs/generate_tools.py` prints it, `--write` keeps it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from executor import toolsets
from executor.catalog import Catalog, load
from executor.model import plain
from executor.permissions import Mode, decide
from executor.tool import LARGEST, Order, Tool

PAGE = Path(__file__).resolve().parent / "tools.md"
HEAD = """\
# Tools

Made by `python docs/generate_tools.py --write` out of the registry and the packaged catalog;
don't edit it by hand. `executor tools` prints the same as JSON, for the model.

Access decides what a permission mode says about a tool (the last table). Sizes are bytes of
what the model is shown, in `claude-code` characters; *keeps* says which part stays when there
is more. A loop adds a paragraph about its box to some texts of `claude-code`.
"""


def page() -> str:
    """The whole page."""
    catalog = load(None)
    parts = [HEAD]
    canonical: dict[str, Tool] = {}
    for name in catalog.toolsets:
        tools = toolsets.registry(name, catalog).all()
        parts.append(f"## Toolset `{name}`\n")
        parts += [_section(tool) for tool in tools]
        for tool in tools:
            canonical.setdefault(tool.canonical, tool)
    parts += [_loop_types(catalog), _agents(catalog), _modes(canonical.values())]
    return "\n".join(parts)


def _section(tool: Tool) -> str:
    entry = tool.entry
    facts = [f"access *{tool.access}*", f"time {entry.timeout_ms / 1000:g} s"]
    if entry.max_timeout_ms is not None:
        facts[-1] += f" by default, at most {entry.max_timeout_ms / 1000:g} s"
    facts += [f"shows {entry.max_output_bytes:,} {entry.unit}", f"keeps *{entry.keep}*"]
    if tool.order is Order.SAFE:
        facts.append("runs together with its neighbours")
    if tool.order is Order.LAST:
        facts.append("runs last in its turn")
    if tool.canonical != tool.name:
        facts.insert(0, f"the canonical `{tool.canonical}`")
    lines = [f"### {tool.name}", "", _quoted(tool.description), "", f"{', '.join(facts)}.", ""]
    rows = list(_arguments(tool.schema))
    if rows:
        lines += ["| argument | type | |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A text of many lines as it is: it has headings and lists of its own."""
    return text if "\n" not in text.strip() else f"````text\n{text}\n````"


def _arguments(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, part in schema["properties"].items():
        mark = "" if name in required else "?"
        text = str(part.get("description", "")).replace("|", "\\|")
        yield f"| `{name}`{mark} | {_type(part)} | {text} |"


def _type(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "anyOf" in part:
        return " or ".join(_type(one) for one in part["anyOf"])
    kind = str(part.get("type", "any"))
    bounds = [
        f"{sign} {plain(part[key])}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if part.get(key, LARGEST) != LARGEST
    ]
    return " ".join([kind, *bounds])


def _loop_types(catalog: Catalog) -> str:
    lines = ["## Loop types", "", "The list is the whole set. Without a type a loop has all.", ""]
    lines += ["| type | tools |", "|---|---|"]
    for name, kind in sorted(catalog.loop_types.items()):
        lines.append(f"| `{name}` | {', '.join(kind.tools)} |")
    return "\n".join([*lines, ""])


def _agents(catalog: Catalog) -> str:
    lines = ["## Types of agents", "", "What `Task` can start. `*` is all that the loop has.", ""]
    lines += ["| type | tools | its worktree |", "|---|---|---|"]
    for name, kind in catalog.agents.items():
        place = {"copy": "a copy, merged back", "read-only": "its loop's, read-only"}
        lines.append(f"| `{name}` | {', '.join(kind.tools)} | {place[kind.isolation]} |")
    return "\n".join([*lines, ""])


def _modes(tools: Iterable[Tool]) -> str:
    lines = ["## Permission modes", ""]
    lines += [f"| tool | {' | '.join(Mode)} |", "|---" * (len(Mode) + 1) + "|"]
    for tool in tools:
        verdicts = [decide(mode, tool.access, tool.canonical).value for mode in Mode]
        lines.append(f"| {tool.canonical} | {' | '.join(verdicts)} |")
    lines += [
        "",
        "Of a call more is known than of its tool. *Ask* and *deny* become *allow* for:",
        "- commands that only look, by their parse, in every mode;",
        "- a new file by write_file and a move to a free name, in mode default;",
        "- changes of the loop's own plan file, in every mode.",
        "",
        "Changes outside the worktree and what was added to the loop writable are asked about in",
        "mode acceptEdits, too. Rules come before all of that. Where nobody can be asked, *ask* is",
        "an error result: `APPROVAL_REQUIRED`.",
    ]
    return "\n".join([*lines, ""])


def main() -> int:
    """Print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace docs/tools.md")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
