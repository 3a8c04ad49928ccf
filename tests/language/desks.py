"""Loops with a project and its language server, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from executor.model import Limits, Result
from tests.foreign.test_client import said
from tests.language.projects import Place, Project
from tests.loops import Work, open_work
from tests.test_catalog import with_user_file


@dataclass
class Desk:
    """A loop in whose worktree a project is, and questions about it."""

    work: Work
    project: Project

    def ask(self, operation: str, place: Place | None = None, **more: Any) -> Result:
        """The result of a question; without a place it is about the project's main file."""
        given: dict[str, Any] = {"path": self.project.main}
        if place is not None:
            given = {"path": place[0], "line": place[1], "column": place[2]}
        result = self.work.call("lsp", operation=operation, **given, **more)
        assert not result.is_error, said(result)
        assert result.structured is not None
        assert result.structured["server"] == self.project.server
        return result

    def places(self, operation: str, place: Place | None = None, **more: Any) -> list[Place]:
        """The places of the answer."""
        return [
            (one["path"], one["line"], one["column"])
            for one in locations(self.ask(operation, place, **more))
        ]

    def errors(self) -> list[tuple[int, str]]:
        """Line and words of each error that is reported of the main file."""
        return [
            (one["line"], one["text"])
            for one in locations(self.ask("diagnostics"))
            if one["text"].startswith("error")
        ]

    def files(self) -> dict[str, str]:
        """The project's files as they are now."""
        return {path: (self.work.root / path).read_text() for path in self.project.files}

    def find(self, path: str, word: str) -> list[Place]:
        """Where a word stands in a file now."""
        return self.project.find(path, word, self.files())

    def run(self, command: str) -> None:
        """Run a command in the box."""
        result = self.work.call("run_command", command=command)
        assert not result.is_error, said(result)

    def kill(self) -> None:
        """Kill the server, by a command in its box."""
        name = self.project.server
        self.run(f"pkill -KILL -f '[{name[0]}]{name[1:]}'")


def locations(result: Result) -> list[dict[str, Any]]:
    """The places of an answer, with what is said of them."""
    assert result.structured is not None
    found: list[dict[str, Any]] = result.structured["locations"]
    return found


@contextmanager
def open_desk(
    image: str, directory: Path, project: Project, toolset: str = "standard", *, empty: bool = False
) -> Iterator[Desk]:
    """A loop with a project, and a box that has its server.

    Args:
        image: of the box.
        directory: for the worktree and all else.
        project: its files are in the worktree, unless that is to be empty.
        toolset: of the loop.
        empty: the worktree is.
    """
    with open_work(
        "docker",
        directory,
        Limits(memory="2g", cpus=2, pids=256),
        change=lambda spec: replace(spec, image=image, toolset=toolset),
        catalog=with_user_file(project.config),
    ) as work:
        desk = Desk(work, project)
        if not empty:
            restore(desk)
        yield desk


def restore(desk: Desk) -> None:
    """Make the worktree what the project is made of."""
    for path in desk.work.root.iterdir():
        if path.is_file() and path.name not in desk.project.files:
            path.unlink()
    for name, text in desk.project.files.items():
        path = desk.work.root / name
        if not path.exists() or path.read_text() != text:
            desk.work.write(name, text)
