"""The documents: what they say is run, what they list is compared with the code."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from executor.catalog import load
from executor.errors import Code
from executor.model import Event, Result
from executor.permissions import Mode

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SECONDS = 200

_BLOCK = re.compile(r"<!-- (run|prints) -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NO_CODES = (
    *("RESOLVE_", "O_", "ANTHROPIC_", "EXECUTOR_", "GIT_"),
    *("HTTP_", "HTTPS_", "NO_PROXY", "XDG_", "MAVEN_", "GRADLE_", "JAVA_"),
)
"""What names of the kernel's and of the environment begin with."""
_LINK = re.compile(r"\]\(([^)#]+)")


@dataclass(frozen=True)
class Block:
    """A marked block of the README."""

    kind: str
    language: str
    text: str


BLOCKS = [Block(*found) for found in _BLOCK.findall(README)]


def run(directory: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run as a reader would, with `executor` on the path."""
    bin_directory = directory / ".bin"
    bin_directory.mkdir(exist_ok=True)
    script = bin_directory / "executor"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m executor "$@"\n')
    script.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
        # Loops of the same names that another run of this page has kept are none of ours.
        "EXECUTOR_STATE_DIR": str(directory / ".state"),
    }
    return subprocess.run(
        argv,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.timeout(900)  # some twenty commands of the page, one after the other
def test_the_readme_runs(tmp_path: Path) -> None:
    """Every marked block of the README ends well, in order, and prints what it says it prints."""
    last = ""
    for block in BLOCKS:
        if block.kind == "prints":
            if block.language == "json":
                assert _timeless(last.splitlines()[-1]) == _timeless(block.text)
            else:
                assert last.endswith(block.text)
            continue
        argv = {
            "bash": ["bash", "-euo", "pipefail", "-c", block.text],
            "python": [sys.executable, "-c", block.text],
        }[block.language]
        done = run(tmp_path, *argv)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
        last = done.stdout
    assert [block.kind for block in BLOCKS].count("run") >= 3


def _timeless(line: str) -> dict[str, object]:
    value: dict[str, object] = json.loads(line)
    assert isinstance(value.pop("duration_ms"), float)
    return value


def test_every_option_of_run_is_in_the_readme(tmp_path: Path) -> None:
    """The README's options are those of `executor run --help`, no more and no fewer."""
    done = run(tmp_path, "executor", "run", "--help")
    offered = set(re.findall(r"^ +(--[a-z-]+)", done.stdout, re.MULTILINE)) - {"--help"}
    table = README.split("Options of `executor run`:")[1].split("Exit codes")[0]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == offered


def test_every_command_is_in_the_readme(tmp_path: Path) -> None:
    """The README's table of commands is that of `executor --help`."""
    done = run(tmp_path, "executor", "--help")
    offered = set(re.findall(r"^  ([a-z]+)  ", done.stdout.split("Commands:")[1], re.MULTILINE))
    table = README.split("| command | does |")[1].split("Options of")[0]
    assert set(re.findall(r"`executor ([a-z]+)", table)) == offered


def test_bad_usage_ends_with_two(tmp_path: Path) -> None:
    """As the README says: bad usage or configuration is exit code 2."""
    for argv in (["--worktree", "missing"], ["--worktree", ".", "--memory", "many"], ["--nope"]):
        assert run(tmp_path, "executor", "run", *argv).returncode == 2


def test_every_field_of_a_result_is_in_the_readme() -> None:
    """The README's table of the result line has the fields of `Result`, in their order."""
    table = README.split("## The result line")[1].split("##")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert re.findall(r"`(\w+)`", " ".join(first_cells)) == list(Result.__slots__)


def test_every_event_is_in_the_readme() -> None:
    """The README names the members of the union `Event`, in their order and no others."""
    listed = README.split("the closed union `executor.Event`:")[1].split("Each has")[0]
    assert re.findall(r"`(\w+)`", listed) == [kind.__name__ for kind in get_args(Event)]


def test_every_mode_and_toolset_is_in_the_readme() -> None:
    """The README's tables have a row for each permission mode and each packaged toolset."""
    for heading, names in (("## Permissions", set(Mode)), ("## Toolsets", set(load().toolsets))):
        section = README.split(f"\n{heading}\n")[1].split("\n## ")[0]
        assert names <= set(re.findall(r"^\| `([\w-]+)`", section, re.MULTILINE))


def test_the_page_of_tools_is_current() -> None:
    """`docs/tools.md` is what `docs/generate_tools.py` makes now."""
    spec = importlib.util.spec_from_file_location("tools", ROOT / "docs" / "generate_tools.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    current = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    assert current == module.page(), "run: python docs/generate_tools.py --write"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link of a document is a file."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in _LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_the_map_of_the_architecture_names_files() -> None:
    """Every file in ARCHITECTURE.md's map exists, and no module of the package is missing."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    named: set[Path] = set()
    for row in rows:
        folder = ""
        for name in re.findall(r"`([^`]+)`", row):
            head, slash, _ = name.rpartition("/")
            folder = head + slash if slash else folder
            named |= set(_found(name if slash else folder + name))
    package = ROOT / "executor"
    modules = {path for path in package.rglob("*.py") if not path.name.startswith("__")}
    assert modules - named == set()


def _found(name: str) -> list[Path]:
    """The files that a cell of the map means; at least one."""
    for base in (ROOT / "executor", ROOT):
        place = base / name
        if found := list(place.rglob("*.py") if name.endswith("/") else base.glob(name)):
            return found
    raise AssertionError(f"ARCHITECTURE.md names {name}, which does not exist")


def test_decisions_are_numbered_without_a_gap() -> None:
    """Decision records are 0001, 0002, … and each begins with its number and has a status."""
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [page.name[:4] for page in pages] == [f"{n:04}" for n in range(1, len(pages) + 1)]
    for number, page in enumerate(pages, 1):
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. ") and "\nStatus: " in text


def test_codes_named_in_documents_exist() -> None:
    """Every error code that a document names is in the closed set."""
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        if document.name == "seccomp-difference.md":
            continue  # it names what the kernel's headers name
        text = document.read_text(encoding="utf-8")
        named = set(re.findall(r"`([A-Z]+_[A-Z_]+|CONFLICT)`", text)) - {"AF_VSOCK", "AF_ALG"}
        named = {name for name in named if not name.startswith(NO_CODES)}
        assert named <= set(Code), f"{document.name}: {sorted(named - set(Code))}"
