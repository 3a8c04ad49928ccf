"""What the catalog says about servers: those of MCP, and those of programming languages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from typing import Any, Literal
from urllib.parse import urlsplit

_LONGEST_MS = 600_000
"""What a call of an MCP server may take where nothing is said of it."""
MOST_PROGRAMS = 64
"""Programs of language servers that a box is asked for."""


@dataclass(frozen=True, slots=True)
class McpEntry:
    """One MCP server: `[mcp.NAME]`, a name of small letters, digits and dashes.

    Attributes:
        command: the words of a server that is spoken to over stdin and stdout; empty = it has
            a URL.
        url: of a server that is spoken to over streamable HTTP; None = it has a command.
        where: a command runs in the box, or on the host by this name. Those on the host are
            reported: nothing confines them.
        lane: whose box runs the command.
        environment: variables of a command, beside those of the box's commands; on the host
            beside PATH, HOME and the locale. `${NAME}` in a value of a server of the host is the
            variable of that name where the executor runs; but for those it is masked in results.
        headers: of each request to a URL. `${NAME}` in a value is the variable of that name
            where the executor runs; it goes to the URL's host alone and is masked elsewhere.
        tools: names, as the server has them, of those that are taken; None = all.
        start_timeout_ms: milliseconds until it has to have answered, the list of its tools
            included.
        idle_timeout_ms: milliseconds that a call may take without a word of progress.
        timeout_ms: milliseconds that a call may take at all.
        max_output_bytes: of a result, that the model is shown.
        enabled: False takes it away.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    where: Literal["box", "host"] = "box"
    lane: str = "no-net"
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] | None = None
    start_timeout_ms: int = 30_000
    idle_timeout_ms: int = 60_000
    timeout_ms: int = _LONGEST_MS
    max_output_bytes: int = 100_000
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class LanguageEntry:
    """One language and its servers: `[languages.NAME]`.

    Attributes:
        extensions: of its files, with the dot → the identifier that the protocol has for such
            files, for example ``{".ts": "typescript", ".tsx": "typescriptreact"}``.
        commands: the words of each server, in the order of preference; the first one whose
            program is in the box when that begins is taken. A program is a name, looked for in the
            PATH of the box, or an absolute path.
        environment: variables of the server; PATH only where all programs are absolute paths.
        options: what it is initialised with (`initializationOptions`).
        settings: what it is told when it asks for its configuration, by section.
        project_files: names of files that tell it how the project is made; `*` in one stands for
            any characters. It is told of their changes as of those of the language's own.
        at_once: programs of these commands whose answers are whole from the beginning. With
            others a question waits until they have reported about the files that they were sent.
        following: programs of these commands that see by themselves, or when they are told, what
            has changed in any file. On others changed files are opened.
        searched: programs of these commands that look for uses of a name in no more than so many
            files, without a word; an answer says so where there are more.
        indexed_by: programs of these commands that look for uses of a name only in files that they
            were asked about, without a word, where no file of this name is, which is one of
            project_files without a star; an answer says so.
        ready_once_logged: programs of these commands that answer before they know all files, which
            they do once they have logged one of these texts. A question waits for that, once and
            no longer than some seconds.
        over_once_logged: programs of these commands that go on without the process that does their
            work, and answer that there is nothing, once they have logged one of these texts. They
            are started again then.
        start_timeout_ms: milliseconds until it has to have answered `initialize`.
        enabled: False takes it away.
    """

    extensions: Mapping[str, str]
    commands: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    project_files: tuple[str, ...] = ()
    at_once: tuple[str, ...] = ()
    following: tuple[str, ...] = ()
    searched: Mapping[str, int] = field(default_factory=dict)
    indexed_by: Mapping[str, str] = field(default_factory=dict)
    ready_once_logged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    over_once_logged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    start_timeout_ms: int = 30_000
    enabled: bool = True


# ─── tables → entries ───────────────────────────────────────────────────────────────


def mcp_entry(table: Mapping[str, Any]) -> McpEntry:
    """The entry of a sound table `[mcp.NAME]`."""
    tools = table.get("tools")
    given = {
        **table,
        "command": tuple(table.get("command", ())),
        "tools": None if tools is None else tuple(tools),
    }
    return McpEntry(**given)


def language_entry(table: Mapping[str, Any]) -> LanguageEntry:
    """The entry of a sound table `[languages.NAME]`."""
    commands = tuple(tuple(words) for words in table.get("commands", ()))
    lists = {key: tuple(table.get(key, ())) for key in ("project_files", "at_once", "following")}
    return LanguageEntry(**{**table, "commands": commands, **lists})


# ─── faults ─────────────────────────────────────────────────────────────────────────

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LONGEST_NAME = 255
"""Characters of a file's name."""
_EXTENSION = re.compile(r"\.[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*")
_FOREIGN = re.compile(r"mcp__[a-z0-9][a-z0-9-]{0,31}__([A-Za-z0-9_.-]+|\*)")
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""Where a variable's value stands in a text."""
_OWN_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Those that the transport writes."""


def is_foreign(tool: str) -> bool:
    """Is it a tool of an MCP server, `mcp__SERVER__TOOL`, or all of one, `mcp__SERVER__*`?

    Which tools servers have is known when they are asked, so a list may name any.
    """
    return _FOREIGN.fullmatch(tool) is not None


def server_faults(merged: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """What does not go together in the tables `mcp` and `languages` of a catalog.

    Args:
        merged: the whole file as it comes to, each key of a right type.
        given: what the last file has of it.

    Returns:
        One sentence each, with its key in front and its mend at the end.
    """
    found = []
    for name, table in merged.get("mcp", {}).items():
        found += [f"mcp.{name}{fault}" for fault in (_name_fault(name) or _mcp_faults(table))]
    languages = merged.get("languages", {})
    for name, table in languages.items():
        own = given.get("languages", {}).get(name, {})
        faults = _name_fault(name) or [*_language_faults(table), *_program_faults(table, own)]
        found += [f"languages.{name}{fault}" for fault in faults]
    return [*found, *_shared_extensions(languages), *_number_fault(languages)]


def _name_fault(name: str) -> list[str]:
    if _NAME.fullmatch(name):
        return []
    return [": can't be its name; use at most 32 small letters, digits and dashes"]


def _mcp_faults(table: Mapping[str, Any]) -> list[str]:
    command, url = table.get("command"), table.get("url")
    if (command is None) == (url is None):
        many = "has a command and a url; leave one of them out"
        return [f": {many}" if command is not None else ": write command or url"]
    found = _words_faults(".command", command) if command is not None else _url_faults(str(url))
    off = ("headers",) if command is not None else ("where", "lane", "environment")
    kind = "command" if command is not None else "url"
    found += [f".{key}: is none of a server with a {kind}; leave it out" for key in off
              if key in table]  # fmt: skip
    if table.get("where") == "host" and "lane" in table:
        found.append(".lane: a server of the host has no box; leave lane or where out")
    found += _environment_faults(table.get("environment", {}), table.get("where") == "host")
    found += _header_faults(table.get("headers", {}))
    found += [f".tools: {tool!r} is no name of a tool; write it as the server has it"
              for tool in table.get("tools") or () if not _is_text(tool)]  # fmt: skip
    idle, most = table.get("idle_timeout_ms"), table.get("timeout_ms", _LONGEST_MS)
    if idle is not None and idle > most:
        found.append(
            f".idle_timeout_ms: {idle} is more than timeout_ms = {most}; lower it or raise that"
        )
    return found


def _is_text(value: str) -> bool:
    """Is it one line with something on it?"""
    return bool(value.strip()) and value.isprintable()


def _words_faults(key: str, words: Sequence[str]) -> list[str]:
    if not words or not words[0].strip():
        return [f"{key}: its first word is the program, and is missing"]
    return [f"{key}: {word!r} holds a NUL, which no command takes" for word in words
            if "\0" in word]  # fmt: skip


def _url_faults(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        return [f".url: {url!r} can't be read ({error}); write https://HOST/PATH"]
    if parts.scheme not in ("https", "http") or not host or not url.isprintable():
        return [f".url: {url!r} is no URL of a server; write https://HOST/PATH"]
    if parts.username is not None or parts.password is not None:
        return [".url: holds a name or a password, which is shown; write headers with ${NAME}"]
    if parts.fragment or REFERENCE.search(url):
        return [".url: is taken as it stands, without ${NAME} and #; write https://HOST/PATH"]
    return []


def _environment_faults(values: Mapping[str, str], on_host: bool) -> list[str]:
    found = []
    for name, value in values.items():
        key = f".environment.{name}"
        if not _VARIABLE.fullmatch(name):
            found.append(f"{key}: can't name a variable; use letters, digits and _")
        if "\0" in value:
            found.append(f"{key}: holds a NUL, which no variable can")
        if on_host:
            found += _reference_faults(key, value)
        elif REFERENCE.search(value):
            found.append(
                f"{key}: names a variable of this machine, and the box would see its value; "
                'write the value, or where = "host"'
            )
    return found


def _header_faults(values: Mapping[str, str]) -> list[str]:
    found = []
    for name, value in values.items():
        key = f".headers.{name}"
        if not _HEADER.fullmatch(name):
            found.append(f"{key}: can't name a header; use letters, digits and dashes")
        elif name.lower() in _OWN_HEADERS:
            found.append(f"{key}: is written by the transport; leave it out")
        if not value.isprintable() or not value.isascii():
            found.append(f"{key}: holds what no header can; write one line of ASCII")
        found += _reference_faults(key, value)
    return found


def _reference_faults(key: str, value: str) -> list[str]:
    if "${" not in REFERENCE.sub("", value):
        return []
    return [f"{key}: holds a ${{ that names no variable; write ${{NAME}}"]


def _language_faults(table: Mapping[str, Any]) -> list[str]:
    extensions, commands = table.get("extensions", {}), table.get("commands", ())
    found = [] if extensions else [
        '.extensions: is missing; write extensions = {".xyz" = "xyz"}'
    ]  # fmt: skip
    if not commands:
        found.append('.commands: is missing; write commands = [["its-server", "--stdio"]]')
    for words in commands:
        found += _words_faults(".commands", words)
    for extension, identifier in extensions.items():
        if not _EXTENSION.fullmatch(extension):
            found.append(
                f".extensions: {extension!r} is no extension; it begins with a dot and has "
                "letters, digits, _, + and -"
            )
        if not _is_text(identifier):
            found.append(f".extensions: {extension!r} has no identifier; write one, as the "
                         "protocol has it")  # fmt: skip
    project_files = table.get("project_files", ())
    found += [f".project_files: {name!r} is no name of a file; write it without a directory, and "
              "with no wildcard but *" for name in project_files
              if not _is_file_name(name)]  # fmt: skip
    for name in table.get("indexed_by", {}).values():
        if "*" in name:
            found.append(f".indexed_by: {name!r} stands for many names; write one, without *")
        elif name not in project_files:
            found.append(f".indexed_by: {name!r} is not among project_files; write it there, too")
    found += _json_faults(".options", table.get("options", {}))
    found += _json_faults(".settings", table.get("settings", {}))
    return found + _environment_faults(table.get("environment", {}), on_host=False)


def _program_faults(table: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """Programs that are not found as they are started, or that are none.

    Args:
        table: of a language.
        own: what the last file has of it. Another one may name programs of commands that are
            no longer there.
    """
    programs = [words[0] for words in table.get("commands", ()) if words]
    for program in programs:
        if "/" in program and not program.startswith("/"):
            yield (
                f".commands: {program!r} is a relative path; write an absolute one, or a name that "
                "the image's PATH finds"
            )
    if "PATH" in table.get("environment", {}) and not all("/" in program for program in programs):
        yield (
            ".environment.PATH: the programs of commands are not looked for there; write their "
            "absolute paths in commands, or leave PATH out"
        )
    keys = ("at_once", "following", "searched", "indexed_by")
    for key in (*keys, "ready_once_logged", "over_once_logged"):
        for name in own.get(key, ()):
            if name not in programs:
                yield f".{key}: {name!r} is no program of commands; write it as it is there"


def _json_faults(key: str, value: Any) -> Iterator[str]:
    """What of a value can't be sent as JSON."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _json_faults(f"{key}.{name}", inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _json_faults(f"{key}.{number}", inner)
    elif isinstance(value, date | time):
        yield f"{key}: is a date or a time, which JSON does not have; write it as text, in quotes"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{key}: is {value}, which JSON does not have; write a finite number"


def _is_file_name(name: str) -> bool:
    """Is it the name of a file, which may have stars in it?"""
    forbidden = "/\0?[{\\" if "*" in name else "/\0"
    return 0 < len(name) <= _LONGEST_NAME and not any(one in name for one in forbidden)


def _shared_extensions(languages: Mapping[str, Any]) -> Iterator[str]:
    """Extensions of more than one language that is on."""
    owners: dict[str, str] = {}
    for name, table in languages.items():
        if table.get("enabled", True):
            for extension in table.get("extensions", {}):
                owner = owners.setdefault(extension, name)
                if owner != name:
                    yield (
                        f"languages.{name}.extensions: {extension!r} belongs to {owner} already; "
                        f"leave it out, or write [languages.{owner}] enabled = false"
                    )


def _number_fault(languages: Mapping[str, Any]) -> Iterator[str]:
    """More programs than a box is asked for."""
    on = (table for table in languages.values() if table.get("enabled", True))
    programs = {words[0] for table in on for words in table.get("commands", ()) if words}
    if len(programs) > MOST_PROGRAMS:
        yield (
            f"languages: have {len(programs)} programs, and a box is asked for {MOST_PROGRAMS} at "
            "most; leave commands out, or write enabled = false where a language is not needed"
        )
