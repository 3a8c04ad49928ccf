"""`docs/conformance.md`: nothing that is shown to a model is left out, nothing is made up.

A row of the page is `| entry | tested by, or why it differs |`. An entry that begins with a
name in backquotes is about that tool or error code; a second name is the tool's argument,
`= value` its default.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from executor import toolsets
from executor.catalog import load
from executor.errors import Code
from tests.test_conformance import Elsewhere, Is, Says

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "conformance.md").read_text(encoding="utf-8")

SHOWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    name: {tool.name: tool.schema for tool in toolsets.registry(name, load()).all()}
    for name in ("standard", "loom", "claude-code")
}
SECTIONS = {
    "S1, task daemon": "standard",
    "S2, workspace": "standard",
    "S3, loom": "loom",
    "S4, loopr": "standard",
    "S5, co-coder": "claude-code",
    "Beyond the specifications": "standard",
    "Error codes": "standard",
}
"""Heading → the toolset that its rows are about."""

NAMED = {
    "S1, task daemon": "read_file write_file edit_file list_directory glob grep run_command "
    "query_loop share_data complete_task "
    "INVALID_PATH FILE_NOT_FOUND NOT_READ TIMEOUT UNKNOWN_TOOL",
    "S2, workspace": "list_directory read_file write_file delete_file move_file run_code "
    "web_fetch web_search "
    "INVALID_PATH FILE_NOT_FOUND PERMISSION_DENIED TIMEOUT EXECUTION_ERROR",
    "S4, loopr": "read_file write_file edit_file list_directory glob grep run_command "
    "run_command_isolated build test validate complete_task create_plan create_spec create_phase "
    "web_fetch web_search",
    "S3, loom": " ".join(SHOWN["loom"]),
    "S5, co-coder": " ".join([*SHOWN["claude-code"], "NOT_READ", "CONFLICT"]),
    "Error codes": " ".join(Code),
}
"""Heading → the names that the specification gives, of which each has a row."""
LATER: tuple[str, ...] = ()
"""Tools of the specifications that are not there yet: their rows say so."""

STATED = (Says, Is, Elsewhere)
_ENTRY = re.compile(r"`([^`]+)`(?: `([^`]+)`)?(?: = (.+))?")
_KEY = re.compile(r"[1-5](-[a-z0-9]+)+")
_NODE = re.compile(r"([\w/]+)::(\w+)")


@dataclass(frozen=True)
class Row:
    """One row of the page.

    Attributes:
        section: the heading above it.
        entry: the first cell.
        tests: row ids and `file::function`, as the second cell names them.
        differs: what it says after *differs*; "" = nothing.
    """

    section: str
    entry: str
    tests: tuple[str, ...]
    differs: str

    @property
    def subject(self) -> str | None:
        """The tool or code that it is about."""
        found = _ENTRY.match(self.entry)
        return found[1] if found else None

    @property
    def argument(self) -> str | None:
        """The argument that it is about."""
        found = _ENTRY.match(self.entry)
        return found[2] if found else None

    @property
    def default(self) -> str | None:
        """The default that it tells."""
        found = _ENTRY.fullmatch(self.entry)
        return found[3] if found else None


def rows_of(section: str, text: str) -> Iterator[Row]:
    """The rows of a section's table, without its head."""
    for line in text.splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if len(cells) != 2 or line.startswith(("| entry |", "|---")):
            continue
        entry, told = (cell.strip() for cell in cells)
        tested, _, differs = told.partition("differs: ")
        names = re.findall(r"`([^`]+)`", tested)
        assert re.sub(r"`[^`]+`|[ ,;]", "", tested) == "", f"{entry}: {tested}"
        yield Row(section, entry, tuple(names), differs)


PARTS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))
ROWS = [row for section in SECTIONS for row in rows_of(section, PARTS[section])]


@functools.cache
def functions() -> frozenset[str]:
    """`file::function` of all tests."""
    return frozenset(
        f"{path.relative_to(TESTS).with_suffix('')}::{node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


@functools.cache
def keys() -> frozenset[str]:
    """The ids of the rows in the tests of conformance."""
    found = set[str]()
    for path in TESTS.glob("test_conformance*.py"):
        if path != Path(__file__):
            values = vars(importlib.import_module(f"tests.{path.stem}")).values()
            tables = [value for value in values if isinstance(value, tuple)]
            found |= {row.key for table in tables for row in table if isinstance(row, STATED)}
    return frozenset(found)


def default_of(part: Mapping[str, Any]) -> str | None:
    """The default that a schema tells a model, by `default` or in words."""
    if "default" in part:
        return json.dumps(part["default"])
    text = str(part.get("description", ""))
    words = (
        r"\(default:? ([^)]+)\)",
        r"(\S+) \(default\)",
        r"[Dd]efault: ([^ .;)]+)",
        r"[Dd]efaults to ([\w ]+)\.",
    )
    found = (re.search(pattern, text) for pattern in words)
    return next((match[1] for match in found if match), None)


def test_the_page_has_a_table_for_each_part() -> None:
    """Every section is there and has rows, and no row stands in it twice."""
    for section in SECTIONS:
        entries = [row.entry for row in ROWS if row.section == section]
        assert entries, section
        twice = sorted({entry for entry in entries if entries.count(entry) > 1})
        assert twice == [], section


def test_every_row_is_tested_or_says_why_not() -> None:
    """A second cell is never empty."""
    assert [row.entry for row in ROWS if not row.tests and not row.differs] == []


def test_every_test_that_is_named_exists() -> None:
    """As a function of a file, or as the id of a row."""
    named = {name: row.entry for row in ROWS for name in row.tests}
    wrong = {
        name: entry
        for name, entry in named.items()
        if name not in (functions() if _NODE.fullmatch(name) else keys())
    }
    assert wrong == {}


def test_no_row_of_the_tests_is_left_out() -> None:
    """Every statement that is tested stands on the page, in its specification's section."""
    told = {name: row.section for row in ROWS for name in row.tests if _KEY.fullmatch(name)}
    assert sorted(keys() - told.keys()) == []


@pytest.mark.parametrize("section", NAMED)
def test_every_name_of_a_specification_has_a_row(section: str) -> None:
    """Tools, and error codes."""
    told = {row.subject for row in ROWS if row.section == section}
    assert sorted(set(NAMED[section].split()) - told) == []


@pytest.mark.parametrize(
    ("toolset", "tool"), [(toolset, tool) for toolset in SHOWN for tool in SHOWN[toolset]]
)
def test_every_argument_has_a_row(toolset: str, tool: str) -> None:
    """With its default, if the schema tells one."""
    rows = [row for row in ROWS if SECTIONS[row.section] == toolset and row.subject == tool]
    assert rows, "the tool has no row"
    for name, part in SHOWN[toolset][tool]["properties"].items():
        about = [row for row in rows if row.argument == name]
        assert about, f"{name} has no row"
        if (default := default_of(part)) is not None:
            assert default in {row.default for row in about}, f"{name} = {default} has no row"


def test_no_row_is_about_what_is_not_there() -> None:
    """Every tool, code, argument and default that an entry begins with exists."""
    wrong = []
    for row in ROWS:
        tools = SHOWN[SECTIONS[row.section]]
        if row.subject is None or (row.subject in LATER and row.differs):
            continue
        known = tools.get(row.subject)
        if known is None:
            if row.subject not in set(Code):
                wrong.append(row.entry)
            continue
        part = known["properties"].get(row.argument) if row.argument else {}
        if part is None or (row.default is not None and row.default != default_of(part)):
            wrong.append(row.entry)
    assert wrong == []
