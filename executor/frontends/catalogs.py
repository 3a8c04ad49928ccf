"""`executor catalog`: whether a configuration is sound, and what it comes to."""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from executor.catalog import PACKAGED, Catalog, LaneEntry, ToolEntry
from executor.catalog_servers import LanguageEntry, McpEntry
from executor.egress.options import faults as faults_of_egress
from executor.errors import ConfigError
from executor.frontends.options import Config
from executor.frontends.running import OK, finish, settings_of, show, write_json
from executor.lanes import Terms, terms_of
from executor.loop import rules_of
from executor.model import plain
from executor.text import one_line, visible

app = typer.Typer(
    help="The tools, lanes and defaults of loops, as your file changes them.", no_args_is_help=True
)

_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that TOML has without quotes."""

File = Annotated[
    Path | None, typer.Argument(help="The configuration, as --config.", show_default=False)
]


@app.command()
def check(named: File = None, config: Config = None) -> None:
    """Say everything that is wrong with a configuration. Exit code 0: nothing; 2: something."""

    async def work() -> int:
        file, _ = _loaded(_named(named, config))
        show(f"{visible(str(file)) if file is not None else 'the packaged catalog'}: no faults")
        return OK

    finish(work)


@app.command("show")
def show_command(
    named: File = None,
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show what holds: tools, lanes, defaults, and which values your file has changed."""

    async def work() -> int:
        file, catalog = _loaded(_named(named, config))
        changes = [] if file is None else list(_changes(file))
        if as_json:
            write_json(_as_data(file, catalog, changes))
        else:
            _show(file, catalog, changes)
        return OK

    finish(work)


def _named(file: Path | None, config: Path | None) -> Path | None:
    if file is not None and config is not None:
        raise ConfigError("config: FILE and --config are the same; give one of them")
    return file or config


def _loaded(config: Path | None) -> tuple[Path | None, Catalog]:
    """The file that was named, or the user's own, and the catalog that it comes to.

    Raises:
        ConfigError: with all that is wrong with it.
    """
    settings, catalog = settings_of(config)
    file = config or settings.config_file
    spec = catalog.loop_spec(".")
    faults = _loop_faults(catalog)
    try:
        rules_of(spec, catalog)
    except ConfigError as error:
        faults += [f"permissions.{fault}" for fault in error.faults]
    try:
        terms_of(spec, catalog)
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError([f"{file}: {fault}" for fault in faults])
    return file, catalog


def _loop_faults(catalog: Catalog) -> list[str]:
    """What no loop could be opened with, whatever its worktree is."""
    with tempfile.TemporaryDirectory(prefix="executor-check-") as directory:
        spec = catalog.loop_spec(directory)
        found = [*spec.faults(), *catalog.faults(spec), *faults_of_egress(spec)]
        found = [
            fault if fault.startswith("egress.") else f"loop.{fault}"
            for fault in dict.fromkeys(found)
            if not _is_of_worktree(fault, directory)
        ]
    return found


def _is_of_worktree(fault: str, directory: str) -> bool:
    """The place of the worktree is at fault, which is not in the file."""
    return directory in fault or "contains or lies in the worktree;" in fault


# ─── what a file changes ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Change:
    """One value of a user's file.

    Attributes:
        key: as TOML has it, with dots between tables.
        value: of the file.
        packaged: what it takes the place of; None = nothing.
    """

    key: str
    value: Any
    packaged: Any


def _changes(file: Path) -> Iterator[_Change]:
    """What a file says otherwise than the packaged catalog."""
    packaged = dict(_leaves(resources.files("executor").joinpath(PACKAGED).read_text("utf-8")))
    for key, value in _leaves(file.read_text("utf-8")):
        if key not in packaged or packaged[key] != value:
            yield _Change(key, value, packaged.get(key))


def _leaves(text: str) -> Iterator[tuple[str, Any]]:
    def below(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
        for name, value in table.items():
            key = path + (name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False))
            if isinstance(value, Mapping):
                yield from below(value, f"{key}.")
            else:
                yield key, value

    return below(tomllib.loads(text), "")


# ─── what holds ─────────────────────────────────────────────────────────────────────


def _lanes(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Each lane's table, with what its box is really like and which lane it shares it with."""
    terms = terms_of(catalog.loop_spec("."), catalog)
    return {name: _lane(entry, terms[name]) for name, entry in catalog.lanes.items()}


def _lane(entry: LaneEntry, terms: Terms) -> dict[str, Any]:
    return {
        **asdict(entry),
        "image": terms.image,
        "runtime": terms.runtime,
        **{name: getattr(terms.limits, name) for name in ("memory", "cpus", "pids")},
        "effective_network": terms.network,
        "box": terms.lane,
    }


def _as_data(file: Path | None, catalog: Catalog, changes: list[_Change]) -> dict[str, Any]:
    spec = catalog.loop_spec(".")
    return {
        "file": None if file is None else str(file),
        "tools": {name: asdict(tool) for name, tool in catalog.tools.items()},
        "lanes": _lanes(catalog),
        "toolsets": {name: asdict(toolset) for name, toolset in catalog.toolsets.items()},
        "loop_types": {name: asdict(kind) for name, kind in catalog.loop_types.items()},
        "agents": {name: asdict(agent) for name, agent in catalog.agents.items()},
        "loop": dict(catalog.loop),
        "egress": {**asdict(spec.egress), "ca_file": _text(spec.egress.ca_file)},
        "web_search": asdict(catalog.web_search),
        "oracle": asdict(catalog.oracle),
        "mcp": {name: asdict(server) for name, server in catalog.mcp.items()},
        "languages": {name: asdict(language) for name, language in catalog.languages.items()},
        "permissions": asdict(catalog.permissions),
        "prompts": {name: list(rules) for name, rules in catalog.prompts.items()},
        "hooks": [asdict(hook) for hook in catalog.hooks],
        "spill": asdict(catalog.spill),
        "controller": asdict(catalog.controller),
        # All that is not in here is the packaged catalog's.
        "changed": {
            change.key: {"value": change.value, "packaged": change.packaged, "from": str(file)}
            for change in changes
        },
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _show(file: Path | None, catalog: Catalog, changes: list[_Change]) -> None:
    show(_tools_table(catalog.tools))
    show("")
    show(_lanes_table(_lanes(catalog)))
    show("")
    show(_languages_table(catalog.languages))
    show("")
    if catalog.mcp:
        show(_mcp_table(catalog.mcp))
        show("")
    if not changes:
        show("all of it is packaged")
        return
    show(f"changed by {one_line(str(file), 500)}:")
    for change in changes:
        before = "" if change.packaged is None else f" (packaged: {_value(change.packaged)})"
        show(f"  {one_line(change.key)} = {_value(change.value)}{before}")


def _value(value: object) -> str:
    return one_line(json.dumps(value, ensure_ascii=False, default=str), 200)


def _tools_table(tools: Mapping[str, ToolEntry]) -> Table:
    table = Table(box=None)
    for column in ("tool", "lane", "access", "timeout", "longest", "output", ""):
        table.add_column(column, no_wrap=True)
    for name, tool in tools.items():
        table.add_row(
            one_line(name),
            tool.lane,
            tool.access.value,
            _seconds(tool.timeout_ms),
            "" if tool.max_timeout_ms is None else _seconds(tool.max_timeout_ms),
            f"{tool.max_output_bytes:,} B",
            "" if tool.enabled else "off",
        )
    return table


def _seconds(milliseconds: int) -> str:
    return f"{plain(milliseconds / 1000)} s"


def _lanes_table(lanes: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(box=None)
    # The rest is in --json: a terminal of 80 columns has no place for what is seldom set.
    columns = ("box", "image", "memory", "cpus", "pids", "slots")
    for column in ("lane", "network", *columns):
        table.add_column(column, no_wrap=column == "network")
    for name, lane in lanes.items():
        cells = ("" if lane[column] is None else str(lane[column]) for column in columns)
        table.add_row(name, _network_in_words(lane), *map(one_line, cells))
    return table


def _languages_table(languages: Mapping[str, LanguageEntry]) -> Table:
    table = Table(box=None)
    for column in ("language", "files", "servers", ""):
        table.add_column(column)
    for name, language in languages.items():
        table.add_row(
            name,
            one_line(" ".join(language.extensions)),
            one_line(", ".join(words[0] for words in language.commands)),
            "" if language.enabled else "off",
        )
    return table


def _mcp_table(servers: Mapping[str, McpEntry]) -> Table:
    table = Table(box=None)
    for column in ("mcp server", "where", "what", ""):
        table.add_column(column)
    for name, server in servers.items():
        is_box = server.where == "box"
        where = (
            "at its URL" if server.url else f"box of {server.lane}" if is_box else "this machine"
        )
        what = server.url or " ".join(server.command)
        table.add_row(name, where, one_line(what, 200), "" if server.enabled else "off")
    return table


def _network_in_words(lane: Mapping[str, Any]) -> str:
    if lane["network"] == "bridge":
        return "bridge (unprotected)"
    if lane["network"] != lane["effective_network"]:
        return "none (no hosts)"
    return str(lane["network"])
