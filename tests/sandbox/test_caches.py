"""Directories that outlast loops: whose they are, how large they may get, who has them."""

from __future__ import annotations

import asyncio
import functools
import os
import stat
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from executor.errors import ConfigError
from executor.model import LoopSpec
from executor.sandbox import caches
from executor.sandbox.box import Host, Sandbox, open_box
from executor.sandbox.caches import Caches, cache_environment, sizes, tenant_directory
from executor.sandbox.container import Owner
from executor.sandbox.engine import Engine
from executor.sandbox.measure import Usage
from executor.sandbox.reaper import Identity
from executor.settings import Settings
from tests.agent.driver import as_nobody
from tests.conftest import LIMITS, RUNTIME, UID, make_worktree


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, run to its end."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


OWNER = Owner(UID, UID) if os.geteuid() == 0 else Owner(os.geteuid(), os.getegid())
SMALL = Usage(1 << 20, 50)


def large(directory: Path) -> None:
    (directory / "large").write_bytes(b"x" * (2 << 20))


async def run_line(box: Sandbox, command: str) -> str:
    """What a command prints, which must end well."""
    arguments = {
        **dict.fromkeys(("argv", "script")),
        **{"command": command, "args": [], "cwd": "", "environment": {}, "timeout": 30.0},
        **{"grace": 1.0, "merge": True, "head": 10_000, "tail": 0, "stream": False},
        "shelve": False,
    }
    answer = await box.request("run", arguments, timeout=30.0)
    assert answer.value["exit_code"] == 0, answer.data
    return answer.data.decode()


async def taken(state: Path, *names: str, tenant: str = "default", most: Usage = SMALL) -> Caches:
    return await Caches.open(state, tenant, OWNER, names, most)


@awaited
async def test_a_cache_lasts_and_belongs_to_the_box(tmp_path: Path) -> None:
    """It is its owner's alone, and what was put into it is there the next time."""
    first = await taken(tmp_path, "pip", "npm")
    (pip, npm) = first.opened
    assert pip.path == tmp_path / "caches" / "default" / str(OWNER.uid) / "pip"
    assert (pip.target, npm.target) == ("/run/executor/caches/pip", "/run/executor/caches/npm")
    for cache in first.opened:
        status = cache.path.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (OWNER.uid, 0o700)
        above = cache.path.parent.stat()
        assert (above.st_uid, stat.S_IMODE(above.st_mode)) == (os.geteuid(), 0o700)
    (pip.path / "wheel").write_text("w")
    await first.close()
    second = await taken(tmp_path, "pip")
    assert (second.opened[0].path / "wheel").read_text() == "w"
    assert second.notices == []
    await second.close()


@awaited
async def test_one_that_is_too_large_is_emptied_by_who_comes_or_goes_alone(tmp_path: Path) -> None:
    """Nothing is taken from under a box; the last one to leave, or the next one, empties it."""
    first, second = await taken(tmp_path, "c"), await taken(tmp_path, "c")
    path = first.opened[0].path
    large(path)
    await second.close()
    assert (path / "large").exists(), "the first still has it"
    await first.close()
    assert list(path.iterdir()) == []
    assert len(first.notices) == 1
    for number in range(100):
        (path / str(number)).touch()
    third = await taken(tmp_path, "c")
    assert list(path.iterdir()) == []
    assert "was emptied" in third.notices[0]
    await third.close()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["c", "c.LOCK"]


@awaited
async def test_links_and_depth_of_a_hostile_box_lead_nowhere(tmp_path: Path) -> None:
    """What is emptied is what is in the cache: no link is followed, no mode is in the way."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("safe")
    first = await taken(tmp_path, "c")
    path = first.opened[0].path
    (path / "out").symlink_to(canary)
    deep = path
    for _ in range(200):
        deep /= "d"
    os.makedirs(deep, exist_ok=True)
    os.mkfifo(path / "pipe")
    large(path)
    (path / "d").chmod(0)
    await first.close()
    assert list(path.iterdir()) == []
    assert (canary / "file").read_text() == "safe"


@pytest.mark.parametrize("part", ["caches", "default", "uid", "c"])
@awaited
async def test_a_link_in_the_place_of_a_directory_is_refused(tmp_path: Path, part: str) -> None:
    """No part of the way to a cache may be a link, and the sentence names the place."""
    target = tmp_path / "elsewhere"
    target.mkdir()
    parts = ["caches", "default", str(OWNER.uid), "c"]
    index = 2 if part == "uid" else parts.index(part)
    above = tmp_path.joinpath(*parts[:index])
    above.mkdir(parents=True, exist_ok=True)
    (above / parts[index]).symlink_to(target)
    with pytest.raises(ConfigError, match=r"caches: .* can't be used"):
        await taken(tmp_path, "c")
    assert list(target.iterdir()) == []


@awaited
async def test_privileged_bits_do_not_last(tmp_path: Path) -> None:
    """A program with a set-uid or set-gid bit has neither once its box is gone; others stay."""
    first = await taken(tmp_path, "c", most=caches.MOST)
    path = first.opened[0].path
    (path / "below").mkdir()
    for name, mode in (("a", 0o4755), ("below/b", 0o2755), ("below/c", 0o755)):
        (path / name).touch()
        (path / name).chmod(mode)
    await first.close()
    modes = [stat.S_IMODE((path / name).stat().st_mode) for name in ("a", "below/b", "below/c")]
    assert modes == [0o755] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_modes_of_a_box_disarm_nothing_where_we_are_not_root() -> None:
    """What its owner may not read loses its bits, counts, and keeps no loop from the cache."""
    nobody = Owner(65534, 65534)

    async def look(state: Path) -> None:
        first = await Caches.open(state, "t", nobody, ["c"])
        path = first.opened[0].path
        for name in ("a", "b", "c", "d"):
            (path / name).touch()
            (path / name).chmod(0o4111)
        hidden = path / "hidden" / "below"
        hidden.mkdir(parents=True)
        (hidden / "tool").touch()
        (hidden / "tool").chmod(0o6111)
        hidden.chmod(0)
        hidden.parent.chmod(0)
        path.chmod(0)
        await first.close()
        second = await Caches.open(state, "t", nobody, ["c"], SMALL)
        tools = [*(path / name for name in ("a", "b", "c", "d")), hidden / "tool"]
        assert {stat.S_IMODE(tool.stat().st_mode) for tool in tools} == {0o111}
        large(hidden)
        hidden.chmod(0)
        hidden.parent.chmod(0)
        await second.close()
        assert list(path.iterdir()) == []

    # pytest's directories are for its own user alone.
    with tempfile.TemporaryDirectory(prefix="executor-test-") as state:
        os.chown(state, nobody.uid, nobody.gid)
        as_nobody(lambda: asyncio.run(look(Path(state))))


@awaited
async def test_a_cache_whose_box_may_live_is_left_as_it_is(tmp_path: Path) -> None:
    """Nothing is taken from under a box that the engine did not remove; the next one sees to it."""
    first = await taken(tmp_path, "c")
    path = first.opened[0].path
    large(path)
    await first.close(tend=False)
    assert (path / "large").exists()
    second = await taken(tmp_path, "c")
    assert list(path.iterdir()) == []
    await second.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "A", "c.LOCK", "a\0b", "x" * 33])
@awaited
async def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    """No name leads out of the tenant's directory, or to a file of ours in it."""
    with pytest.raises(ConfigError, match="is no name of a cache"):
        await taken(tmp_path, name)


def test_no_two_tenants_have_one_directory() -> None:
    """Whatever a tenant is called, its directory is one name, and nobody else's."""
    tenants = ["a", "A", "../a", "a/b", ".", "", "+a", "a" * 64, "a" * 65, "\ud800", "ä"]
    tenants += [tenant_directory("A")]
    names = [tenant_directory(tenant) for tenant in tenants]
    assert len(set(names)) == len(tenants)
    assert all("/" not in name and name not in ("", ".", "..") for name in names)
    assert tenant_directory("team-1") == "team-1"


@awaited
async def test_sizes_of_all_caches_are_told(tmp_path: Path) -> None:
    """Doctor shows them by tenant, uid and name, and none of our own files among them."""
    first = await taken(tmp_path, "c", tenant="t", most=caches.MOST)
    large(first.opened[0].path)
    await first.close()
    found = sizes(tmp_path)
    assert list(found) == [f"t/{OWNER.uid}/c"]
    assert found[f"t/{OWNER.uid}/c"] >= 2 << 20


def test_package_managers_are_led_to_the_first_cache() -> None:
    """Without a cache nothing is said; with two, all of it is in the first."""
    assert cache_environment(()) == {}
    found = cache_environment(("deps", "more"))
    assert found["PIP_CACHE_DIR"] == "/run/executor/caches/deps/pip"
    assert all(value.startswith("/run/executor/caches/deps/") for value in found.values())


@awaited
async def test_boxes_have_their_tenants_caches_and_no_others(tmp_path: Path) -> None:
    """Two loops of a tenant share what is written; another tenant's box sees nothing of it."""
    state = tmp_path / "state"
    runtime = RUNTIME[0] if RUNTIME else None

    def spec(name: str, tenant: str) -> LoopSpec:
        root = make_worktree(tmp_path / name)
        return LoopSpec(
            worktree=root,
            limits=LIMITS,
            exec_id=name,
            tenant=tenant,
            caches=("deps", "more"),
            runtime=runtime,
            quota="none",
        )

    async with await Engine.connect(Settings.load()) as engine:
        with Identity.claim(state) as identity:
            host = Host(engine, identity)
            script = (
                'set -e; mkdir -p "$PIP_CACHE_DIR"; echo mine > "$PIP_CACHE_DIR/w"; '
                "cp /bin/true /run/executor/caches/more/tool; /run/executor/caches/more/tool; "
                "touch /run/executor/caches/x 2>/dev/null && echo leak; "
                "mount | grep -c ' /run/executor/caches/'"
            )
            async with open_box(host, spec("one", "a")) as box:
                assert await run_line(box, script) == "2\n"
                async with open_box(host, spec("two", "a")) as other:
                    assert await run_line(other, 'cat "$PIP_CACHE_DIR/w"') == "mine\n"
            async with open_box(host, spec("three", "b")) as box:
                assert await run_line(box, "find /run/executor/caches -type f | wc -l") == "0\n"
            async with open_box(host, spec("four", "a")) as box:
                assert await run_line(box, 'cat "$PIP_CACHE_DIR/w"') == "mine\n"
            inside = LoopSpec(worktree=state / "caches", limits=LIMITS, exec_id="five")
            with pytest.raises(ConfigError, match="that no sandbox may have"):
                async with open_box(host, inside):
                    pass
