"""The catalog's file as it is written: its tables, their keys, and what each may hold.

What a file has that is not in here is a fault with its key and its mend. Whether values go
together, and what they come to, `executor.catalog` knows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from executor.model import IMAGE_NAME

Lane = Literal["no-net", "net", "heavy"]
Network: TypeAlias = Literal["none", "broker", "bridge"]
"""What a lane's box reaches."""

_Count = Annotated[int, Field(ge=1)]
_Text = Annotated[str, Field(min_length=1)]
_Names = Annotated[list[str], Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _ParamTable(_Table):
    type: Literal["string", "integer", "number", "boolean"] | None = None
    description: _Text | None = None
    enum: _Names | None = None
    required: bool | None = None


class _ToolTable(_Table):
    lane: Lane | None = None
    access: Literal["read", "write", "exec", "network", "session"] | None = None
    timeout_ms: _Count | None = None
    max_timeout_ms: _Count | None = None
    max_output_bytes: Annotated[int, Field(ge=1000)] | None = None
    keep: Literal["start", "end", "both"] | None = None
    description: _Text | None = None
    enabled: bool | None = None
    command: str | list[str] | None = None
    params: dict[str, _ParamTable] | None = None


class _LaneTable(_Table):
    network: Network | None = None
    image: Annotated[str, Field(pattern=IMAGE_NAME)] | None = None
    runtime: _Text | None = None
    memory: str | int | None = None
    cpus: float | None = None
    pids: int | None = None
    slots: _Count | None = None
    queue: Annotated[int, Field(ge=0)] | None = None


class _ToolsetTable(_Table):
    base: str | None = None
    tools: _Names | None = None
    line_separator: Annotated[str, Field(min_length=1, max_length=8)] | None = None
    merge_stderr: bool | None = None
    reads: Literal["iteration", "loop"] | None = None
    reach: Literal["worktree", "box"] | None = None
    relative_to: Literal["root", "cwd"] | None = None
    shown: Literal["relative", "absolute"] | None = None
    unit: Literal["bytes", "characters"] | None = None
    limits: dict[str, Annotated[int, Field(ge=1000)]] | None = None


class _LoopTypeTable(_Table):
    tools: _Names
    require_validation: bool | None = None


class _AgentTable(_Table):
    description: _Text | None = None
    tools: _Names | None = None
    model: _Text | None = None
    mode: Literal["default", "plan", "acceptEdits", "bypass"] | None = None
    isolation: Literal["copy", "read-only"] | None = None
    prompt: str | None = None


class _GitTable(_Table):
    sharing: Literal["shared", "copy", "shallow", "hidden"] | None = None
    landing: Literal["keep", "refs", "branch"] | None = None
    commit: bool | None = None
    message: str | None = None
    paths: list[str] | None = None
    name: str | None = None
    email: str | None = None
    nested: Literal["set-aside", "report"] | None = None
    pack_bytes: str | int | None = None


class _LoopTable(_Table):
    memory: str | int | None = None
    cpus: float | None = None
    pids: int | None = None
    call_timeout: float | None = None
    max_seconds: float | None = None
    file_bytes: str | int | None = None
    open_files: _Count | None = None
    disk_bytes: str | int | None = None
    disk_files: _Count | None = None
    idle_seconds: float | None = None
    toolset: str | None = None
    loop_type: str | None = None
    mode: Literal["default", "plan", "acceptEdits", "bypass"] | None = None
    image: str | None = None
    runtime: str | None = None
    environment: dict[str, str] | None = None
    uid: int | None = None
    add_dirs: list[str] | None = None
    skills: list[str] | None = None
    worktree_skills: bool | None = None
    text_only: bool | None = None
    tenant: str | None = None
    seccomp: Literal["standard", "strict"] | None = None
    quota: Literal["none", "watch", "loop-ext4"] | None = None
    git: _GitTable | None = None
    egress: list[str] | None = None
    setup_egress: list[str] | None = None
    setup: str | None = None
    caches: list[str] | None = None


class _EgressTable(_Table):
    private: list[str] | None = None
    ca_file: str | None = None
    connections: _Count | None = None
    total_bytes: str | int | None = None


class _McpTable(_Table):
    command: list[str] | None = None
    url: _Text | None = None
    where: Literal["box", "host"] | None = None
    lane: Lane | None = None
    environment: dict[str, str] | None = None
    headers: dict[str, str] | None = None
    tools: list[str] | None = None
    start_timeout_ms: _Count | None = None
    idle_timeout_ms: _Count | None = None
    timeout_ms: _Count | None = None
    max_output_bytes: Annotated[int, Field(ge=1000)] | None = None
    enabled: bool | None = None


class _LanguageTable(_Table):
    extensions: dict[str, str] | None = None
    commands: Annotated[list[list[str]], Field(min_length=1)] | None = None
    environment: dict[str, str] | None = None
    options: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    project_files: list[str] | None = None
    at_once: list[str] | None = None
    following: list[str] | None = None
    searched: dict[str, _Count] | None = None
    indexed_by: dict[str, str] | None = None
    ready_once_logged: dict[str, list[_Text]] | None = None
    over_once_logged: dict[str, list[_Text]] | None = None
    start_timeout_ms: _Count | None = None
    enabled: bool | None = None


class _WebSearchTable(_Table):
    provider: Literal["google", "serper"] | None = None
    results: _Count | None = None
    engine: _Text | None = None


class _OracleTable(_Table):
    model: _Text | None = None
    max_tokens: _Count | None = None
    prompt: _Text | None = None


class _ControllerTable(_Table):
    tenancy: Literal["single", "multi"] | None = None
    allow_shared_kernel: bool | None = None
    require_patched_engine: bool | None = None
    require_access_control: bool | None = None
    apparmor_profile: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    uids: Annotated[list[_Count], Field(min_length=2, max_length=2)] | None = None
    images: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._:/@*-]*$")]] | None = None


class _PermissionsTable(_Table):
    allow: list[str] | None = None
    ask: list[str] | None = None
    deny: list[str] | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class _SpillTable(_Table):
    call_bytes: str | int | None = None
    loop_bytes: str | int | None = None
    files: _Count | None = None


class _HookTable(_Table):
    event: Literal["PreToolUse", "PostToolUse", "PostToolUseFailure", "PostTools"]
    command: str | list[str]
    matcher: _Text | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class _File(_Table):
    tools: dict[str, _ToolTable] = {}
    toolsets: dict[str, _ToolsetTable] = {}
    loop_types: dict[str, _LoopTypeTable] = {}
    loop: _LoopTable = _LoopTable()
    controller: _ControllerTable = _ControllerTable()
    permissions: _PermissionsTable = _PermissionsTable()
    spill: _SpillTable = _SpillTable()
    hooks: list[_HookTable] = []
    prompts: dict[str, _Names] = {}
    agents: dict[str, _AgentTable] = {}
    lanes: dict[str, _LaneTable] = {}
    egress: _EgressTable = _EgressTable()
    web_search: _WebSearchTable = _WebSearchTable()
    oracle: _OracleTable = _OracleTable()
    mcp: dict[str, _McpTable] = {}
    languages: dict[str, _LanguageTable] = {}


_TABLES: dict[str, type[_Table]] = {
    "tools": _ToolTable,
    "toolsets": _ToolsetTable,
    "loop_types": _LoopTypeTable,
    "hooks": _HookTable,
    "agents": _AgentTable,
    "lanes": _LaneTable,
    "mcp": _McpTable,
    "languages": _LanguageTable,
}
_SINGLE: dict[str, type[_Table]] = {
    "loop": _LoopTable,
    "controller": _ControllerTable,
    "permissions": _PermissionsTable,
    "spill": _SpillTable,
    "egress": _EgressTable,
    "web_search": _WebSearchTable,
    "oracle": _OracleTable,
}


# ─── faults ─────────────────────────────────────────────────────────────────────────


def shape_faults(table: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Unknown keys and wrong types of one file, and the file without them."""
    try:
        _File.model_validate(table)
    except ValidationError as error:
        # A key that may have one of two types is reported once, not once for each type.
        found = {_path(item["loc"]): item for item in error.errors()}
        for path in found:
            table = _without(table, path)
        return [f"{'.'.join(path)}: {_shape_fault(item)}" for path, item in found.items()], table
    return [], table


def _without(table: dict[str, Any], key: Sequence[str]) -> dict[str, Any]:
    """The table without this key, so that the rest of it can still be judged."""
    first, *rest = key
    below = table.get(first)
    kept = {name: value for name, value in table.items() if name != first}
    if rest and isinstance(below, dict) and rest[0] in below:
        kept[first] = _without(below, rest)
    return kept


def _path(location: Sequence[int | str]) -> tuple[str, ...]:
    parts = [str(part) for part in location]
    if parts[-1] in ("int", "str", "float", "list[str]") and len(parts) > 1:
        parts.pop()
    return tuple(parts)


def _shape_fault(item: Any) -> str:
    location, kind, given = item["loc"], item["type"], item["input"]
    if kind == "extra_forbidden":
        known = _known_keys(location)
        return f"unknown key{instead(str(location[-1]), known)}"
    if kind == "missing":
        return "is missing; add it"
    mends = {
        "literal_error": f"is {given!r}; write {_expected(item)}",
        "greater_than_equal": f"is {given!r}; write {_bound(item)} or more",
        "too_short": "is empty; name at least one",
        "string_too_short": "is empty; write some text",
        "string_pattern_mismatch": f"is {given!r}; write a name, without characters that names "
        "don't have",
        "string_too_long": f"is {given!r}; write at most {item.get('ctx', {}).get('max_length')}"
        " characters",
    }
    if kind in mends:
        return mends[kind]
    return f"is {shown(given)}; write {_wanted(location, kind)}"


def _known_keys(location: Sequence[int | str]) -> Iterable[str]:
    if len(location) == 1:
        return _File.model_fields
    if location[0] in _SINGLE:
        if location[:2] == ("loop", "git") and len(location) > 2:
            return _GitTable.model_fields
        return _SINGLE[str(location[0])].model_fields
    if location[2:3] == ("params",):
        return _ParamTable.model_fields
    return _TABLES[str(location[0])].model_fields


def _expected(item: Any) -> str:
    return str(item.get("ctx", {}).get("expected", "an allowed value")).replace("'", '"')


def _bound(item: Any) -> str:
    return str(item.get("ctx", {}).get("ge"))


def shown(value: Any) -> str:
    """What kind of value stands there, in words."""
    kinds = {bool: "true or false", str: "text", dict: "a table", list: "a list", float: "a number"}
    return kinds.get(type(value), "a whole number" if isinstance(value, int) else "no such value")


_SIZES = ("memory", "file_bytes", "disk_bytes", "call_bytes", "loop_bytes", "total_bytes")
_LISTS = {
    "egress": 'a list of hosts, for example ["example.org"]',
    "setup_egress": 'a list of hosts, for example ["example.org"]',
    "private": 'a list of hosts, for example ["registry.example.org"]',
    "caches": 'a list of names, for example ["pip"]',
    "commands": 'a list of commands in words, for example [["gopls"]]',
}
"""What is written in lists that are not of tools."""


def _wanted(location: Sequence[int | str], kind: str) -> str:
    if location[-2:-1] and location[-2] in _SIZES:
        return 'a size, for example "2g"'
    if location[0] == "mcp" and location[2:] == ("command",):
        return 'a list of words, for example ["mcp-server-git"]'
    if location[0] == "languages" and location[2:3] == ("commands",):
        return _LISTS["commands"]
    wants = {
        "int_type": "a whole number",
        "float_type": "a number",
        "string_type": "text in quotes",
        "bool_type": "true or false",
        "list_type": _LISTS.get(str(location[-1]), 'a list of names, for example ["read_file"]'),
        "dict_type": "a table",
        "model_type": f"a table, [{'.'.join(str(part) for part in location)}]",
        "model_attributes_type": f"a table, [{'.'.join(str(part) for part in location)}]",
    }
    return wants.get(kind, "another value")


def instead(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` where something is near, else the list of what there is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"
