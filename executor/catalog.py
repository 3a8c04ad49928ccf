"""Reads and checks the catalog: tools, toolsets, loop types, and the defaults of a run.

The packaged `catalog.toml` comes first; a user's file overrides it key by key. Whatever
is wrong is reported at once, each fault with its file, its key and the mend.
"""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from executor.catalog_servers import (
    LanguageEntry,
    McpEntry,
    is_foreign,
    language_entry,
    mcp_entry,
    server_faults,
)
from executor.catalog_tables import Lane as Lane  # noqa: PLC0414 - who uses a catalog has it from here
from executor.catalog_tables import Network, instead, shape_faults, shown
from executor.errors import ConfigError
from executor.model import (
    LANE,
    Access,
    EgressOptions,
    GitOptions,
    Limits,
    LoopSpec,
    cache_faults,
    parse_size,
    plain,
    setup_faults,
)
from executor.rules import Rules

PACKAGED = "catalog.toml"

PROJECT = ("build", "test", "validate")
"""Tools that run a command of the project's, which a catalog may name."""

_LIMIT_NAMES = frozenset(field.name for field in fields(Limits))


class Keep(StrEnum):
    """Which part of an output stays when it is too long for the model."""

    START = "start"
    END = "end"
    BOTH = "both"


class Unit(StrEnum):
    """What the limit of an output counts."""

    BYTES = "bytes"
    """Of UTF-8."""
    CHARACTERS = "characters"


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a command that the catalog makes a tool of.

    Attributes:
        type: of its JSON value.
        description: for the model.
        enum: the values that it may have; none = any.
        is_required: False = the words of the command that need it are left out without it.
    """

    type: Literal["string", "integer", "number", "boolean"] = "string"
    description: str = ""
    enum: tuple[str, ...] = ()
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """What the catalog says about one tool.

    Attributes:
        lane: the kind of sandbox that the tool is meant for.
        access: what it touches.
        timeout_ms: milliseconds that a call may take; for commands the default.
        max_output_bytes: UTF-8 bytes of output that the model is shown; characters where
            `unit` says so.
        max_timeout_ms: milliseconds; the largest timeout that a call may ask for.
        keep: which part of a longer output stays.
        description: replaces the tool's own text.
        enabled: False takes the tool away.
        unit: what the limit of the output counts; a toolset says it.
        command: a command line of the user's; as words it makes a tool of its own, in which
            `{name}` stands for a parameter.
        params: of those words, by name.
    """

    lane: Lane
    access: Access
    timeout_ms: int
    max_output_bytes: int
    max_timeout_ms: int | None = None
    keep: Keep = Keep.START
    description: str | None = None
    enabled: bool = True
    unit: Unit = Unit.BYTES
    command: str | tuple[str, ...] | None = None
    params: Mapping[str, Param] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...] | None:
        """The words of the command that this tool is; None = it is one of ours."""
        return self.command if isinstance(self.command, tuple) else None


@dataclass(frozen=True, slots=True)
class LaneEntry:
    """What the catalog says about one lane: the kind of box that tools are meant for.

    Lanes of a loop whose boxes would be alike share one; see `executor.lanes`.

    Attributes:
        network: `none`; `broker`, what the loop's egress rules allow, through the broker; or
            `bridge`, the engine's network without any protection of ours.
        image, runtime, memory, cpus, pids: of its box; None = as the loop says.
        slots: how many of its calls run at a time.
        queue: how many may wait for a slot; one more is refused.
    """

    network: Network = "none"
    image: str | None = None
    runtime: str | None = None
    memory: int | str | None = None
    cpus: float | None = None
    pids: int | None = None
    slots: int = 10
    queue: int = 100


@dataclass(frozen=True, slots=True)
class ToolsetEntry:
    """What the catalog says about one toolset.

    Attributes:
        line_separator: stands between line number and line in what `read_file` shows.
        merge_stderr: commands write both streams into one pipe, in exact order.
        reads: how long a reading of a file allows to change it: until the next iteration
            of the loop is announced, or as long as the loop is open.
        base: the toolset of ours that a user's own is made of; None = it is one of ours.
        tools: canonical names of the tools that it shows, and `mcp__SERVER__TOOL` or
            `mcp__SERVER__*` of MCP servers; None = all of its base, and all of those.
        reach: which files its tools take: those of the worktree, of what was added to the
            loop and of spilled results; or all of the box (see `executor.paths`).
        relative_to: where a relative path of a file begins: at the worktree's root, or where
            the last command ended.
        shown: how paths of the worktree are shown: without the root, or with `/workspace`.
        unit: what the limits of its outputs count.
        limits: canonical name of a tool → how much of its output is shown; where it has none,
            the tool's own limit in `unit`.
    """

    line_separator: str
    merge_stderr: bool = False
    reads: Literal["iteration", "loop"] = "iteration"
    base: str | None = None
    tools: tuple[str, ...] | None = None
    reach: Literal["worktree", "box"] = "worktree"
    relative_to: Literal["root", "cwd"] = "root"
    shown: Literal["relative", "absolute"] = "relative"
    unit: Unit = Unit.BYTES
    limits: Mapping[str, int] = field(default_factory=dict)

    def limited(self, name: str, entry: ToolEntry) -> ToolEntry:
        """What the catalog says about a tool, with the limit that it has in this toolset.

        Args:
            name: the tool's canonical name.
            entry: of the tool.
        """
        size = self.limits.get(name, entry.max_output_bytes)
        return replace(entry, max_output_bytes=size, unit=self.unit)


@dataclass(frozen=True, slots=True)
class LoopType:
    """What the catalog says about one type of loops.

    Attributes:
        tools: canonical names of all tools that such a loop has, and `mcp__SERVER__TOOL` or
            `mcp__SERVER__*` of MCP servers.
        require_validation: `complete_task` is there only after `validate` has passed.
    """

    tools: tuple[str, ...]
    require_validation: bool = False


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """What the catalog says about one type of subagents.

    Attributes:
        description: what it is good for; a model chooses by that.
        tools: canonical or shown names of its tools; `*` = all that its loop has.
        model: name of the model; None = the client's own.
        mode: permission mode; a narrower one of its loop holds instead. None = its loop's.
        isolation: `copy`, a worktree of its own that is merged back; `read-only`, its loop's.
        prompt: what it is told of itself, before its task.
    """

    description: str
    tools: tuple[str, ...] = ("*",)
    model: str | None = None
    mode: str | None = None
    isolation: Literal["copy", "read-only"] = "copy"
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the catalog's `[controller]` demands of the engine.

    Attributes:
        tenancy: whether the loops belong to one party, or to several that do not trust each
            other: those need a runtime with a kernel of its own.
        allow_shared_kernel: several tenants may share the machine's kernel all the same.
        require_patched_engine: refuse engines and runtimes with known faults, by version.
        require_access_control: refuse engines without AppArmor or SELinux.
        apparmor_profile: name of a loaded profile for every box; None = the engine's.
        uids: first and last of those that worktrees get which are made for loops, one each,
            where the controller may give files away.
        images: names and patterns of images that loops may have, besides ours and those that
            are given by digest; None = all that are on the engine, and for several parties
            none but those.
    """

    tenancy: Literal["single", "multi"] = "single"
    allow_shared_kernel: bool = False
    require_patched_engine: bool = False
    require_access_control: bool = False
    apparmor_profile: str | None = None
    uids: tuple[int, int] = (1_900_000_000, 1_900_000_999)
    images: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the catalog's `[permissions]` says of every loop.

    Attributes:
        allow, ask, deny: permission rules; see `executor.rules`.
        timeout: seconds that somebody may take to decide.
    """

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class HookEntry:
    """One of the catalog's `[[hooks]]`; see `executor.hooks.Hook`.

    Attributes:
        event: when it is called.
        command: for `/bin/sh`, or a program and its arguments; run on this machine.
        matcher: a tool's name or a regular expression; `*` = every tool.
        timeout: seconds.
    """

    event: str
    command: str | tuple[str, ...]
    matcher: str = "*"
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """How much is kept of outputs that are too long for the model.

    Attributes:
        call_bytes: of one output.
        loop_bytes: of all outputs of one loop; the oldest makes room for the newest.
        files: how many there are at a time.
    """

    call_bytes: int = 32 << 20
    loop_bytes: int = 256 << 20
    files: int = 1000


@dataclass(frozen=True, slots=True)
class WebSearchOptions:
    """What the catalog's `[web_search]` says. The provider's key comes from the environment.

    Attributes:
        provider: which of the search APIs answers.
        results: how many are asked for where the model does not say.
        engine: Google's Programmable Search Engine to ask (its `cx`); None = the settings'.
    """

    provider: Literal["google", "serper"] = "serper"
    results: int = 5
    engine: str | None = None

    @property
    def most(self) -> int:
        """How many results the provider gives at most for one search."""
        return MOST_RESULTS[self.provider]


MOST_RESULTS = {"google": 10, "serper": 100}
"""By provider; what their APIs take as `num`."""


@dataclass(frozen=True, slots=True)
class OracleOptions:
    """What the catalog's `[oracle]` says of the second model, which `oracle` asks.

    Attributes:
        model: its name; None = there is none, and the tool is not offered.
        max_tokens: the longest answer.
        prompt: what it is told of itself; None = the tool's own text.
    """

    model: str | None = None
    max_tokens: int = 4096
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """The whole catalog, checked.

    Attributes:
        tools: by canonical name.
        toolsets: by name.
        loop_types: by name.
        loop: defaults of a run, as arguments of `LoopSpec` and `Limits`.
        controller: what the engine has to offer before a loop is opened.
        permissions: rules for every loop; those of a loop's own come after them.
        hooks: commands around each call, in order.
        prompts: what a plan may ask for, in lower case → the rules that allow it.
        spill: how much is kept of long outputs.
        agents: types of subagents, by name.
        lanes: by name; there are `no-net`, `net` and `heavy`, and no others.
        egress: defaults of a run, as arguments of `EgressOptions`, but for its hosts.
        web_search: who searches.
        oracle: which second model is asked.
        mcp: MCP servers, by name.
        languages: servers of programming languages, by name, in order.
    """

    tools: Mapping[str, ToolEntry]
    toolsets: Mapping[str, ToolsetEntry]
    loop_types: Mapping[str, LoopType]
    loop: Mapping[str, Any]
    controller: Policy = Policy()
    permissions: Permissions = Permissions()
    hooks: tuple[HookEntry, ...] = ()
    prompts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    spill: SpillLimits = SpillLimits()
    agents: Mapping[str, AgentEntry] = field(default_factory=dict)
    lanes: Mapping[Lane, LaneEntry] = field(default_factory=dict)
    egress: Mapping[str, Any] = field(default_factory=dict)
    web_search: WebSearchOptions = WebSearchOptions()
    oracle: OracleOptions = OracleOptions()
    mcp: Mapping[str, McpEntry] = field(default_factory=dict)
    languages: Mapping[str, LanguageEntry] = field(default_factory=dict)

    def loop_spec(self, worktree: Path | str, **given: Any) -> LoopSpec:
        """A specification from the `[loop]` defaults; what is given and not None wins.

        Args:
            worktree: the directory that the loop works in.
            given: fields of `LoopSpec` and of `Limits`, side by side; `git` and `egress` as
                tables of fields of `GitOptions` and `EgressOptions`.
        """
        values = {**self.loop, **{key: value for key, value in given.items() if value is not None}}
        values["environment"] = {
            **self.loop.get("environment", {}),
            **(given.get("environment") or {}),
        }
        for name in ("add_dirs", "skills"):
            values[name] = tuple(map(_at_home, values.get(name, ())))
        values["git"] = _git_options(self.loop.get("git", {}), given.get("git") or {})
        values["egress"] = _egress_options(self.egress, self.loop, given.get("egress") or {})
        values["caches"] = tuple(values.get("caches", ()))
        values.pop("setup_egress", None)
        limits = {name: values.pop(name) for name in _LIMIT_NAMES & values.keys()}
        return LoopSpec(worktree=worktree, limits=Limits(**limits), **values)

    def require_toolset(self, name: str) -> None:
        """Look whether there is such a toolset.

        Raises:
            ConfigError: there is none; names what there is.
        """
        if name not in self.toolsets:
            raise ConfigError(f"toolset: there is no {name!r}{instead(name, self.toolsets)}")

    def faults(self, spec: LoopSpec) -> list[str]:
        """What this catalog finds wrong with a specification, one sentence each."""
        found: list[str] = []
        for option, value, known in (
            ("toolset", spec.toolset, self.toolsets),
            ("loop_type", spec.loop_type, self.loop_types),
        ):
            if value is not None and value not in known:
                found.append(f"{option}: there is no {value!r}{instead(value, known)}")
        longest = {name: entry.max_timeout_ms for name, entry in self.tools.items()}
        return found + _call_timeout_faults(spec.limits.call_timeout, longest)


def _git_options(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> GitOptions:
    """Options of git: what is given and not None wins."""
    values = {**defaults, **{key: value for key, value in given.items() if value is not None}}
    if "paths" in values:
        values["paths"] = tuple(values["paths"])
    return GitOptions(**values)


def _egress_options(
    defaults: Mapping[str, Any], loop: Mapping[str, Any], given: Mapping[str, Any]
) -> EgressOptions:
    """What a loop may reach: `[egress]` and `[loop]`; what is given and not None wins."""
    hosts = {"hosts": loop.get("egress", ()), "setup_hosts": loop.get("setup_egress", ())}
    values = {**defaults, **hosts}
    values |= {key: value for key, value in given.items() if value is not None}
    for name in ("hosts", "setup_hosts", "private"):
        values[name] = tuple(values.get(name, ()))
    return EgressOptions(**{**values, "ca_file": _at_home(values.get("ca_file"))})


def _at_home(directory: Any) -> Any:
    """The directory, with a `~` at the front of a text resolved."""
    return os.path.expanduser(directory) if isinstance(directory, str) else directory


def _call_timeout_faults(seconds: float | None, longest: Mapping[str, int | None]) -> list[str]:
    """A default that is above the ceiling of what it is the default for.

    Args:
        seconds: the default.
        longest: `max_timeout_ms` of each tool that has one.
    """
    bounds = [(most, name) for name, most in longest.items() if most is not None]
    if seconds is None or not bounds or not min(bounds)[0] < seconds * 1000 < float("inf"):
        return []
    most, name = min(bounds, key=lambda bound: bound[0])
    return [
        f"call_timeout: {plain(seconds)} seconds is more than the {plain(most / 1000)} that "
        f"max_timeout_ms of {name} allows; lower it or raise tools.{name}.max_timeout_ms"
    ]


# ─── the files ───────────────────────────────────────────────────────────────────────

JudgeHosts = Callable[[EgressOptions], list[str]]
"""Finds what is wrong with lists of hosts: `executor.egress.options.host_faults`. Catalogs are
below it, and are told it where a whole file is to be checked before any loop is."""


def load(config: Path | str | None = None, hosts: JudgeHosts | None = None) -> Catalog:
    """The packaged catalog with the user's file over it.

    Args:
        config: the file; None = there is none.
        hosts: reads lists of hosts; None = that is done when a loop is opened.

    Raises:
        ConfigError: the file can't be read, or anything in it is wrong; all faults.
    """
    sources = [(PACKAGED, resources.files("executor").joinpath(PACKAGED).read_text("utf-8"))]
    if config is not None:
        try:
            sources.append((str(config), Path(config).read_text("utf-8")))
        except FileNotFoundError:
            raise ConfigError(f"{config}: there is no such file; give an existing one") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{config}: can't be read ({error}); give a TOML file") from error
    return parse(sources, hosts)


def parse(sources: Sequence[tuple[str, str]], hosts: JudgeHosts | None = None) -> Catalog:
    """Catalog texts, the packaged one first, → the catalog. Pure.

    Args:
        sources: (file name for messages, TOML text) in rising order of precedence.
        hosts: as in `load`.

    Raises:
        ConfigError: with every fault of every source.
    """
    faults: list[str] = []
    merged: dict[str, Any] = {}
    for name, text in sources:
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            faults.append(f"{name}: not valid TOML: {error}; mend the syntax there")
            continue
        found, sound = shape_faults(table)
        if merged:
            found += _name_faults(table, merged)
        before, merged = merged, _merge(merged, sound)
        found += _beside(found, _sense_faults(merged, sound, first=not before))
        if hosts is not None:
            found += _host_faults(merged, hosts)
        faults += [f"{name}: {fault}" for fault in found]
    if faults:
        raise ConfigError(faults)
    return _build(merged)


def _build(merged: Mapping[str, Any]) -> Catalog:
    return Catalog(
        tools={name: _tool(entry) for name, entry in merged["tools"].items()},
        toolsets={
            name: _toolset(_merge(merged["toolsets"].get(entry.get("base"), {}), entry))
            for name, entry in merged["toolsets"].items()
        },
        loop_types={
            name: LoopType(tuple(entry["tools"]), entry.get("require_validation", False))
            for name, entry in merged["loop_types"].items()
        },
        loop=merged["loop"],
        controller=_policy(merged.get("controller", {})),
        permissions=_permissions(merged.get("permissions", {})),
        hooks=tuple(_hook(entry) for entry in merged.get("hooks", ())),
        prompts={
            text.strip().lower(): tuple(rules) for text, rules in merged.get("prompts", {}).items()
        },
        spill=_spill(merged.get("spill", {})),
        agents={
            name: AgentEntry(**{**entry, "tools": tuple(entry.get("tools", ("*",)))})
            for name, entry in merged.get("agents", {}).items()
            if "description" in entry
        },
        lanes={name: LaneEntry(**entry) for name, entry in merged["lanes"].items()},
        egress=merged.get("egress", {}),
        web_search=WebSearchOptions(**merged.get("web_search", {})),
        oracle=OracleOptions(**merged.get("oracle", {})),
        mcp={name: mcp_entry(table) for name, table in merged.get("mcp", {}).items()},
        languages={
            name: language_entry(table) for name, table in merged.get("languages", {}).items()
        },
    )


_OWN = {
    "lane": LANE,
    "access": "exec",
    "timeout_ms": 120_000,
    "max_output_bytes": 30_000,
    "keep": "both",
}
"""What holds for a tool of the user's that does not say it."""


def _tool(entry: Mapping[str, Any]) -> ToolEntry:
    command = entry.get("command")
    if isinstance(command, list):
        entry = {**_OWN, **entry, "command": tuple(command)}
    given = {
        **entry,
        "access": Access(entry["access"]),
        "keep": Keep(entry.get("keep", Keep.START)),
        "params": {name: _param(table) for name, table in entry.get("params", {}).items()},
    }
    return ToolEntry(**given)


def _param(table: Mapping[str, Any]) -> Param:
    return Param(
        table.get("type", "string"),
        table.get("description", ""),
        tuple(table.get("enum", ())),
        table.get("required", True),
    )


def _toolset(entry: Mapping[str, Any]) -> ToolsetEntry:
    tools = entry.get("tools")
    given = {
        **entry,
        "unit": Unit(entry.get("unit", Unit.BYTES)),
        "tools": None if tools is None else tuple(tools),
    }
    return ToolsetEntry(**given)


def _spill(entry: Mapping[str, Any]) -> SpillLimits:
    return SpillLimits(**{name: parse_size(value) for name, value in entry.items()})


def _policy(entry: Mapping[str, Any]) -> Policy:
    first, last = entry.get("uids", Policy().uids)
    images = tuple(entry["images"]) if "images" in entry else None
    return Policy(**{**entry, "uids": (first, last), "images": images})


def _permissions(entry: Mapping[str, Any]) -> Permissions:
    lists = {name: tuple(entry.get(name, ())) for name in ("allow", "ask", "deny")}
    return Permissions(**lists, timeout=float(entry.get("timeout", 600)))


def _hook(entry: Mapping[str, Any]) -> HookEntry:
    command = entry["command"]
    if not isinstance(command, str):
        command = tuple(command)
    return HookEntry(**{**entry, "command": command})


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


# ─── faults ─────────────────────────────────────────────────────────────────────────


def _name_faults(table: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Tables of a user's file that name a tool, toolset or lane which does not exist."""
    found = [
        f"lanes.{name}: there is no such lane{instead(name, base['lanes'])}"
        for name in _table(table, "lanes")
        if name not in base["lanes"]
    ]
    for kind in ("tools", "toolsets"):
        tables = table.get(kind)
        if not isinstance(tables, Mapping):
            continue
        for name, given in tables.items():
            if _is_own(kind, name, given, base):
                found += _own_faults(kind, name, given, base)
            elif name not in base[kind]:
                own = "command" if kind == "tools" else "base"
                found.append(
                    f"{kind}.{name}: unknown name{instead(name, base[kind])}; one of your own "
                    f"needs {own}"
                )
            elif kind == "tools" and isinstance(given, Mapping):
                found += _idle_faults(name, given, base[kind][name])
    return found


def _table(file: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A table of a file; an empty one where it is something else."""
    found = file.get(key)
    return found if isinstance(found, Mapping) else {}


def _is_own(kind: str, name: str, given: Any, base: Mapping[str, Any]) -> bool:
    """Does a table make a tool or a toolset of the user's own?"""
    if name in base[kind] or not isinstance(given, Mapping):
        return False
    if kind == "toolsets":
        return "base" in given
    return "command" in given or "params" in given


def _own_faults(
    kind: str, name: str, given: Mapping[str, Any], base: Mapping[str, Any]
) -> list[str]:
    """What is wrong with a tool or a toolset of the user's own."""
    if _OWN_NAME.fullmatch(name) is None:
        return [f"{kind}.{name}: is no name; write letters, digits, _ and -, at most 64"]
    if kind == "toolsets":
        if given["base"] in base[kind]:
            return []
        return [f"{kind}.{name}.base: there is no toolset {given['base']!r}"
                f"{instead(str(given['base']), base[kind])}"]  # fmt: skip
    return [f"{kind}.{name}.{fault}" for fault in _command_faults(given)]


_OWN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""Where a parameter stands in a word of a command."""


def _command_faults(given: Mapping[str, Any]) -> list[str]:
    """What is wrong with the command of a tool of the user's own."""
    command, params = given.get("command"), given.get("params", {})
    if not isinstance(command, list) or not command or not isinstance(params, Mapping):
        return ['command: write a list of words, for example ["deploy.sh", "{environment}"]']
    used = {name for word in command for name in PLACEHOLDER.findall(str(word))}
    if PLACEHOLDER.search(str(command[0])):
        return ["command: its first word is the program and can't come from the model"]
    names = [name for name in params if PLACEHOLDER.fullmatch(f"{{{name}}}") is None]
    return [
        *(f"command: there is no parameter {name!r}; add it to params"
          for name in sorted(used - params.keys())),
        *(f"params.{name}: is not used in command" for name in sorted(params.keys() - used)),
        *(f"params.{name}: is no name; write letters, digits and _" for name in names),
        *(f"params.{name}.enum: is for texts; leave type out" for name, said in params.items()
          if isinstance(said, Mapping) and "enum" in said
          and said.get("type", "string") != "string"),
        *("command: its first word is the program, and is empty" for _ in range(command[0] == "")),
        *(f"command: {word!r} holds a NUL, which no command takes"
          for word in command if "\0" in str(word)),
        *(f"command: a shell would read what the model puts into {word!r}; write \"$1\" there, and "
          "the parameter as a word at the end, after one for $0"
          for word in _shell_code(command) if PLACEHOLDER.search(word)),
    ]  # fmt: skip


_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})


def _shell_code(command: Sequence[Any]) -> list[str]:
    """The words that a shell reads as code, but for what is the model's alone: a tool to run it."""
    if str(command[0]).rpartition("/")[2] not in _SHELLS:
        return []
    return [
        str(word)
        for before, word in itertools.pairwise(command)
        if re.fullmatch(r"-[A-Za-z]*c", str(before)) and not PLACEHOLDER.fullmatch(str(word))
    ]


def _idle_faults(name: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """Keys that mean something for some tools only."""
    return [
        f"tools.{name}.{key}: has no effect for this tool; leave it out"
        for key in ("keep", "max_timeout_ms", "command", "params")
        if key in given and key not in known and not (key == "command" and name in PROJECT)
    ] + [
        f"tools.{name}.command: is {shown(given['command'])}; write one line, for example "
        '"make check"'
        for _ in range(name in PROJECT and "command" in given)
        if not isinstance(given["command"], str)
    ]


def _sense_faults(merged: Mapping[str, Any], table: Mapping[str, Any], first: bool) -> list[str]:
    """Values that are well formed but don't go together."""
    found: list[str] = []
    for name, entry in merged["tools"].items():
        longest = entry.get("max_timeout_ms")
        if longest is not None and longest < entry.get("timeout_ms", 0):
            found.append(
                f"tools.{name}.timeout_ms: {entry['timeout_ms']} is more than max_timeout_ms = "
                f"{longest}; lower it or raise max_timeout_ms"
            )
    for name, entry in merged["loop_types"].items():
        for tool in entry.get("tools", ()):
            if tool not in merged["tools"] and not is_foreign(tool):
                found.append(
                    f"loop_types.{name}.tools: there is no tool {tool!r}"
                    f"{instead(tool, merged['tools'])}"
                )
    for name, entry in merged["toolsets"].items():
        found += [
            f"toolsets.{name}.limits: there is no tool {tool!r}{instead(tool, merged['tools'])}"
            for tool in entry.get("limits", ())
            if tool not in merged["tools"]
        ]
        found += [
            f"toolsets.{name}.tools: there is no tool {tool!r}{instead(tool, merged['tools'])}"
            for tool in entry.get("tools", ())
            if tool not in merged["tools"] and not is_foreign(tool)
        ]
    found += [
        f"agents.{name}.description: is missing; say what such agents are good for"
        for name, entry in merged.get("agents", {}).items()
        if "description" not in entry
    ]
    for name, lane in table.get("lanes", {}).items():
        found += [f"lanes.{name}.{fault}" for fault in _lane_faults(name, lane)]
    if first or "loop" in table:
        found += _loop_faults(merged)
    if "mcp" in table or "languages" in table:
        found += server_faults(merged, table)
    if "egress" in table:
        found += _egress_options(table["egress"], {}, {}).faults()
    if "web_search" in table:
        found += _web_search_faults(WebSearchOptions(**merged["web_search"]))
    if "spill" in table:
        found += _spill_faults(merged["spill"])
    return found + _rule_faults(table)


def _beside(found: Sequence[str], more: Sequence[str]) -> list[str]:
    """Faults of servers, without those that come of a key that is wrong and was set aside."""
    wrong = [fault.partition(": ")[0] for fault in found]
    return [
        fault
        for fault in more
        if not fault.startswith(("mcp.", "languages."))
        or not any(f"{key}.".startswith(f"{fault.partition(': ')[0]}.") for key in wrong)
    ]


def _host_faults(merged: Mapping[str, Any], hosts: JudgeHosts) -> list[str]:
    options = _egress_options(merged.get("egress", {}), merged.get("loop", {}), {})
    return [fault if fault.startswith("egress.") else f"loop.{fault}" for fault in hosts(options)]


def _web_search_faults(options: WebSearchOptions) -> list[str]:
    if options.results <= options.most:
        return []
    return [
        f"web_search.results: {options.results} is more than the {options.most} that "
        f"{options.provider} gives; lower it"
    ]


def _lane_faults(name: str, given: Mapping[str, Any]) -> list[str]:
    """What a lane's table says that its box can't be."""
    limits = {key: given[key] for key in ("memory", "cpus", "pids") if key in given}
    if name == LANE and given.get("network", "none") != "none":
        return [
            f'network: is "{given["network"]}", but no-net is the lane without network; write '
            '"none", or give its tools another lane',
            *Limits(**limits).faults(),
        ]
    return Limits(**limits).faults()


def _spill_faults(given: Mapping[str, Any]) -> list[str]:
    try:
        limits = _spill(given)
    except ConfigError as error:
        return [f"spill: {fault}" for fault in error.faults]
    if limits.call_bytes < 1 << 20:
        return [f"spill.call_bytes: {given['call_bytes']} is too small; write 1m or more"]
    if limits.loop_bytes < limits.call_bytes:
        return [
            f"spill.loop_bytes: {limits.loop_bytes} is less than call_bytes = {limits.call_bytes}; "
            "raise it or lower call_bytes"
        ]
    return []


def _rule_faults(table: Mapping[str, Any]) -> list[str]:
    """Texts that are no rules. Whether their tools exist is known when a loop is opened."""
    found: list[str] = []
    lists = {
        f"permissions.{name}": rules
        for name, rules in table.get("permissions", {}).items()
        if name != "timeout"
    }
    lists |= {f"prompts.{text}": rules for text, rules in table.get("prompts", {}).items()}
    for key, rules in lists.items():
        try:
            Rules.parse(rules)
        except ConfigError as error:
            found += [f"{key}: {fault.removeprefix('allow: ')}" for fault in error.faults]
    return found


def _loop_faults(merged: Mapping[str, Any]) -> list[str]:
    loop = merged["loop"]
    limits = Limits(**{name: loop[name] for name in _LIMIT_NAMES & loop.keys()})
    found = [f"loop.{fault}" for fault in limits.faults()]
    found += [f"loop.{fault}" for fault in _git_options(loop.get("git", {}), {}).faults()]
    found += [f"loop.{fault}" for fault in setup_faults(loop.get("setup"))]
    found += [f"loop.{fault}" for fault in cache_faults(loop.get("caches", ()))]
    longest = {name: entry.get("max_timeout_ms") for name, entry in merged["tools"].items()}
    found += [f"loop.{fault}" for fault in _call_timeout_faults(limits.call_timeout, longest)]
    for key, known in (("toolset", merged["toolsets"]), ("loop_type", merged["loop_types"])):
        value = loop.get(key)
        if value is not None and value not in known:
            found.append(f"loop.{key}: there is no {value!r}{instead(value, known)}")
    return found
