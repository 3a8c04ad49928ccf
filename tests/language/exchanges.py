"""Recorded exchanges with real language servers: what was asked, and what the tool answered.

`python -m tests.language.exchanges` records them anew, one file for each server. A difference is
then seen in the files' history, and is either a server's new version or a fault of ours.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from executor.sandbox.engine import Engine
from executor.settings import Settings
from tests.foreign.test_client import said
from tests.language.desks import Desk, open_desk
from tests.language.projects import PROJECTS, Place, Project
from tests.security.images import build

RECORDED = Path(__file__).parent / "recorded"

Step = dict[str, Any]
"""`write`: a file and what is in it now; or `ask`: arguments of the tool, and `answer`: the lines
of its text."""


def file_of(project: Project) -> Path:
    """Where the exchange with a project's server is recorded."""
    return RECORDED / f"{project.server}.json"


def steps(project: Project) -> Iterator[Step]:
    """What is done, without the answers."""
    for path, text in project.files.items():
        yield {"write": [path, text]}
    for operation in ("goto_definition", "hover", "find_references"):
        yield _ask(operation, project.use)
    yield _ask("goto_definition", project.find(project.main, project.answer)[-1])
    yield _ask("rename_preview", project.use, new_name="Quux")
    yield {"ask": {"operation": "document_symbols", "path": project.other}}
    other = f"{project.comment}\n{project.files[project.other]}"
    yield {"write": [project.other, other]}
    yield _ask("goto_definition", project.use)
    yield {"write": [project.main, f"{project.files[project.main]}{project.bad}\n"]}
    yield {"ask": {"operation": "diagnostics", "path": project.main}}


def _ask(operation: str, place: Place, **more: str) -> Step:
    path, line, column = place
    return {"ask": {"operation": operation, "path": path, "line": line, "column": column, **more}}


def play(desk: Desk, recorded: Iterator[Step]) -> Iterator[Step]:
    """The same steps with the answers of now. Places are sorted: servers have no order of them."""
    for step in recorded:
        if "write" in step:
            desk.work.write(*step["write"])
            yield {"write": step["write"]}
        else:
            result = desk.work.call("lsp", **step["ask"])
            lines = said(result).split("\n")
            is_text = step["ask"]["operation"] == "hover"
            yield {"ask": step["ask"], "answer": lines if is_text else sorted(lines)}


async def _image() -> str:
    async with await Engine.connect(Settings.load()) as engine:
        return await build.ensure(engine, "servers", print)


def record() -> None:
    """Write the files anew."""
    image = asyncio.run(_image())
    for project in PROJECTS:
        with (
            tempfile.TemporaryDirectory() as directory,
            open_desk(image, Path(directory), project, empty=True) as desk,
        ):
            made = list(play(desk, steps(project)))
        text = json.dumps(made, indent=1, ensure_ascii=False)
        file_of(project).write_text(text + "\n")
        print(file_of(project).name)


if __name__ == "__main__":
    record()
