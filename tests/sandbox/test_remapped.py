"""Boxes of an engine with `userns-remap`: a real one, beside the machine's."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.controller import Controller
from executor.errors import ConfigError
from executor.loop import Loop
from executor.model import Call, Limits, LoopSpec
from tests.sandbox.second_engine import SecondEngine, second_engine

BASE = 100000
"""The first uid outside that is one of a box."""


class RemappedEngine(SecondEngine):
    """Its users are those of a file of its own, which only it sees in place of the machine's."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # The mapped root has to come by.
        directory.chmod(0o711)
        ranges = "".join(f"{name}:{BASE}:65536\n" for name in ("nobody", "nogroup"))
        (directory / "ranges").write_text(ranges)

    def _command(self) -> list[str]:
        words = super()._command()
        place = words.index("dockerd")
        script = 'mount --bind "$0" /etc/subuid && mount --bind "$0" /etc/subgid && exec "$@"'
        ranges = str(self.directory / "ranges")
        return [*words[:place], "--mount", "sh", "-c", script, ranges, *words[place:]]


@pytest.fixture(scope="module")
def engine() -> Iterator[SecondEngine]:
    """A running engine that remaps users."""
    with second_engine(RemappedEngine, userns_remap="nobody:nogroup") as running:
        yield running


@pytest.fixture
def work(engine: SecondEngine) -> Path:
    """A worktree where the engine's users can come to."""
    directory = engine.directory / "work"
    directory.mkdir(exist_ok=True)
    return directory


@asynccontextmanager
async def opened(engine: SecondEngine, work: Path, uid: int | None = None) -> AsyncIterator[Loop]:
    """A loop on that engine."""
    spec = LoopSpec(worktree=work, limits=Limits(memory="512m"), exec_id="remapped", uid=uid)
    settings = replace(engine.settings, state_directory=engine.directory / "state")
    async with asyncio.timeout(120), Controller(settings) as controller:
        async with controller.open(spec) as loop:
            yield loop


def run(engine: SecondEngine, work: Path, command: str, uid: int | None = None) -> tuple[str, Any]:
    """What a command in a box prints, and the box's capabilities."""

    async def ask() -> tuple[str, Any]:
        async with opened(engine, work, uid) as loop:
            result = await loop.execute(Call("1", "run_command", {"command": command}))
            assert result.code is None, result
            return str(result.content), loop.capabilities

    return asyncio.run(ask())


@pytest.mark.parametrize("inside", [1000, 0])
def test_a_box_has_the_owners_uid_less_the_base(
    engine: SecondEngine, work: Path, inside: int
) -> None:
    """What is written inside belongs to the worktree's owner outside."""
    os.chown(work, BASE + inside, BASE + inside)
    name = f"made-by-{inside}"
    said, capabilities = run(engine, work, f"id -u; touch {name}; cat /proc/self/uid_map")
    assert said.split() == [str(inside), "0", str(BASE), "65536"]
    assert (work / name).stat().st_uid == BASE + inside
    assert capabilities["users"] == "remapped"
    assert capabilities["user"] == f"{inside}:{inside}"
    assert capabilities["user_outside"] == f"{BASE + inside}:{BASE + inside}"


@pytest.mark.parametrize("owner", [0, BASE - 1, BASE + 65536])
def test_an_owner_without_a_uid_inside_is_refused(
    engine: SecondEngine, work: Path, owner: int
) -> None:
    """The sentence says whose it is, which uids there are, and the command that helps."""
    os.chown(work, owner, owner)
    with pytest.raises(ConfigError) as caught:
        run(engine, work, "true")
    text = str(caught.value)
    assert f"belongs to {owner}:{owner}" in text
    assert f"chown -R {BASE + 1000}:{BASE + 1000} {work}" in text


def test_a_uid_that_is_named_is_one_inside(engine: SecondEngine, work: Path) -> None:
    """`--uid` is taken as it is, and what that means outside is said."""
    os.chown(work, 0, 0)
    said, capabilities = run(engine, work, "id -u; touch x 2>/dev/null || echo closed", uid=7)
    assert said.split() == ["7", "closed"]
    assert any(f"uid 7 ({BASE + 7} outside)" in notice for notice in capabilities["notices"])


@pytest.mark.parametrize("git", ["file", "directory"])
def test_git_works_where_users_are_mapped(engine: SecondEngine, git: str) -> None:
    """Inside, the git entry has the worktree's owner, as git demands; commits come out."""
    main, own = engine.directory / f"main-{git}", engine.directory / f"work-{git}"
    person = ("-c", "user.name=A", "-c", "user.email=a@localhost")
    subprocess.run(["git", "init", "-q", main], check=True)
    subprocess.run(
        ["git", "-C", main, *person, "commit", "-q", "--allow-empty", "-m", "one"], check=True
    )
    if git == "file":
        subprocess.run(["git", "-C", main, "worktree", "add", "-q", own], check=True)
    else:
        own = main
    for root in {main, own}:
        for path in (root, *root.rglob("*")):
            os.chown(path, BASE + 1000, BASE + 1000, follow_symlinks=False)
    said, facts = run(
        engine, own, "stat -c %u .git && git status --short && git commit -q --allow-empty -m two"
    )
    assert said.split() == ["1000"]
    assert facts["git"].startswith("own")
    (kept,) = (engine.directory / "state" / "git").glob("*/record.json")
    assert '"commits":1' in kept.read_text().replace(" ", "")
    shutil.rmtree(kept.parent)


@pytest.mark.statement("D5")
@pytest.mark.parametrize("inside", [1000, 0])
def test_control_groups_under_a_map_of_users(engine: SecondEngine, work: Path, inside: int) -> None:
    """D5: without the read-only flag, which the engine drops here, the owner is another."""
    os.chown(work, BASE + inside, BASE + inside)
    said, _ = run(
        engine,
        work,
        "cd /sys/fs/cgroup; find . -maxdepth 2 -writable; for d in . */; do"
        " mkdir $d/x 2>/dev/null && echo made $d; done;"
        " for f in */cgroup.procs */memory.limit_in_bytes */release_agent memory.max; do"
        " (echo 0 > $f) 2>/dev/null && echo wrote $f; done; echo done",
    )
    assert [line for line in said.splitlines() if "made" in line or "wrote" in line] == []
    assert "done" in said
