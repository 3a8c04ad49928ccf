"""A controller that is root, and a tenant who owns worktree and repository and means harm."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.controller import Controller
from executor.errors import ConfigError, SandboxUnavailable
from executor.git import private, staging
from executor.git.program import Git
from executor.git.quarantine import Offer, accept
from executor.git.records import Record
from executor.git.repository import discover
from executor.git.values import Refused, Repository
from executor.git.worktrees import holder
from executor.model import Call, LoopSpec
from executor.sandbox.container import GitView
from executor.sandbox.ownership import check_stores, open_worktree
from executor.settings import Settings
from tests.conftest import LIMITS
from tests.driver import LoopThread
from tests.git import loops, packs
from tests.git.others import OTHER, STRANGER, give, needs_root, shared_place
from tests.sandbox import tiny

git = loops.git


@pytest.fixture(name="shared")
def _shared() -> Iterator[Path]:
    with shared_place() as place:
        yield place


def find(place: Path) -> Repository:
    """What is found of a worktree's repository."""
    with open_worktree(place) as worktree:
        found = asyncio.run(discover(Git.find(), worktree))
    assert found is not None
    return found


# ─── stores ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("owner", [None, pytest.param(OTHER, marks=needs_root)])
def test_stores_are_known_by_what_they_are(owner: object, shared: Path) -> None:
    """Device and inode of each store are found with it, and kept in the record."""
    source = loops.make_origin(shared / "source")
    git(shared, "clone", "-q", "--shared", str(source), "origin")
    if owner is not None:
        give(source, OTHER)
        give(shared / "origin", OTHER)
    found = find(shared / "origin")
    seen = [os.stat(store) for store in found.stores]
    assert len(seen) == 2
    assert found.identities == tuple((one.st_dev, one.st_ino) for one in seen)
    record = Record.begin(found, exec_id="one", tenant=None, controller="c")
    assert record.repository().identities == found.identities


def test_another_store_than_the_one_that_was_found_is_no_store(shared: Path) -> None:
    """What the engine mounted by a path that was led elsewhere meanwhile is seen by its inode."""
    meant, other, passwd = shared / "meant", shared / "other", shared / "passwd"
    meant.mkdir()
    other.mkdir()
    passwd.write_text("")
    meant_is, other_is, known = (
        (status.st_dev, status.st_ino) for status in map(os.stat, (meant, other, passwd))
    )
    base = tiny.plan()
    plan = replace(
        base,
        files=replace(base.files, passwd=passwd),
        git=GitView(shared / "private", stores=(meant,), identities=(meant_is,)),
    )
    mounted = {"/etc/passwd": list(known), "/run/executor/objects/0": list(meant_is)}
    check_stores(mounted, plan)
    for led in (list(other_is), None):
        with pytest.raises(SandboxUnavailable, match=r"object store .* replaced"):
            check_stores({**mounted, "/run/executor/objects/0": led}, plan)


def test_a_store_that_is_swapped_is_shown_to_nobody(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine follows the path after it was looked at; the box is not used then."""
    origin = loops.make_origin(shared / "origin")
    hidden = loops.make_origin(shared / "hidden")
    really = private.prepare

    async def late(*arguments: Any, **options: Any) -> None:
        await really(*arguments, **options)
        (origin / ".git/objects").rename(shared / "aside")
        (origin / ".git/objects").symlink_to(hidden / ".git/objects")

    monkeypatch.setattr(private, "prepare", late)
    spec = LoopSpec(worktree=origin, limits=LIMITS, exec_id="one", mode="bypass")
    settings = replace(Settings.load(), state_directory=shared / "state")
    with LoopThread() as thread:
        controller = thread.enter(Controller(settings))
        with pytest.raises(SandboxUnavailable, match=r"object store .* replaced"):
            thread.run(_one_call(controller, spec))


async def _one_call(controller: Controller, spec: LoopSpec) -> None:
    async with controller.open(spec) as loop:
        await loop.execute(Call("1", "run_command", {"command": "true"}))


def test_stores_without_end_are_refused(shared: Path) -> None:
    """Each store is a mount of every box: there is a limit, and what to do about it is said."""
    origin = loops.make_origin(shared / "origin")
    for number in range(70):
        (shared / f"store{number}").mkdir()
    names = "".join(f"{shared}/store{number}\n" for number in range(70))
    (origin / ".git/objects/info/alternates").write_text(names)
    with pytest.raises(ConfigError, match="more than 64 stores; run `git repack"):
        find(origin)


# ─── links, pipes, and directories of others ────────────────────────────────────────


@needs_root
@pytest.mark.parametrize("name", ["gitdir", "HEAD"])
def test_root_shows_a_tenant_no_file_of_others(name: str, shared: Path) -> None:
    """A link in a made-up entry for a worktree leads root to nothing: a conflict quotes it."""
    secret = shared / "secret"
    secret.write_text("ref: refs/heads/main\n" if name == "HEAD" else "/s3cret/text\n")
    secret.chmod(0o600)
    origin = loops.make_origin(shared / "origin")
    entry = origin / ".git/worktrees/evil"
    loops.write(entry, {"HEAD": "ref: refs/heads/main\n", "gitdir": "/a/b/.git\n"})
    told = holder(Git.find(), find(give(origin, OTHER)), "refs/heads/main")
    assert asyncio.run(told) == Path("/a/b")
    (entry / name).unlink()
    (entry / name).symlink_to(secret)
    told = holder(Git.find(), find(give(origin, OTHER)), "refs/heads/main")
    assert asyncio.run(told) == (None if name == "HEAD" else entry)


@pytest.mark.timeout(60)
def test_a_pipe_for_the_cuts_of_history_is_not_waited_for(shared: Path) -> None:
    """What is no plain file where history is cut refuses the arrival, at once."""
    origin = loops.make_origin(shared / "origin")
    found = find(origin)
    os.mkfifo(origin / ".git/shallow")
    found = replace(found, shallow=origin / ".git/shallow")
    with pytest.raises(Refused, match="plain file"):
        _accept(found, shared / "arrival", packs.write([]), {})


@needs_root
def test_root_makes_no_index_in_another_users_directory(shared: Path) -> None:
    """A git directory that was led to another user's is left as it is."""
    origin = give(loops.make_origin(shared / "origin"), OTHER)
    victim = give(loops.make_origin(shared / "victim"), STRANGER)
    found = find(origin)
    tree = git(origin, "rev-parse", "HEAD^{tree}", uid=OTHER.uid)
    origin.rename(shared / "before")
    origin.symlink_to(victim)
    loops.write(victim / ".git", {f"executor-index-{'0' * 40}": "theirs"})
    before = loops.digest(victim)
    told = asyncio.run(staging.stage(Git.find(), found, tree, "1" * 40))
    assert isinstance(told, str)
    assert f"belongs to uid {STRANGER.uid}" in told
    asyncio.run(staging.mend(Git.find(), found))
    assert loops.digest(victim) == before


@needs_root
@pytest.mark.parametrize("part", [".git/worktrees/linked", ".git/config", ".git/refs"])
def test_root_uses_no_repository_that_others_write(part: str, shared: Path) -> None:
    """Root's git is not led by what a tenant may write: the whole repository has to be root's."""
    origin = loops.make_origin(shared / "origin")
    git(origin, "worktree", "add", "-q", str(shared / "linked"))
    give(shared / "linked", OTHER)
    assert find(shared / "linked").owner.uid == 0
    os.chown(origin / part, OTHER.uid, OTHER.gid)
    with pytest.raises(ConfigError, match="others than root may write"):
        find(shared / "linked")
    os.chown(origin / part, 0, OTHER.gid)
    (origin / part).chmod(0o775)
    with pytest.raises(ConfigError, match="others than root may write"):
        find(shared / "linked")


# ─── objects ────────────────────────────────────────────────────────────────────────


@needs_root
def test_a_delta_brings_no_object_of_others(shared: Path) -> None:
    """An object of somebody else, whose name is known, does not come back as a delta's base."""
    hidden = shared / "hidden"
    hidden.mkdir(mode=0o700)
    secret = loops.make_origin(hidden / "secret")
    loops.commit(secret, {"s": "s3cret text " * 50})
    base = git(secret, "rev-parse", "HEAD:s")
    size = int(git(secret, "cat-file", "-s", base))
    origin = give(loops.make_origin(shared / "origin"), OTHER)
    found = find(origin)
    made = packs.blob(("s3cret text " * 50).encode()[:10])
    changed = packs.delta(base, size, 10, packs.copy(10))
    top = packs.tree(("100644", "f", made.name))
    start = str(found.head.commit)
    tip = packs.commit(top, start)
    pack = packs.write([changed, top, tip])
    with pytest.raises(Refused, match="unresolved delta"):
        _accept(found, shared / "arrival", pack, {"head": tip.name})
    # Root's git would find it by what the tenant's store says now.
    (origin / ".git/objects/info/alternates").write_text(f"{secret}/.git/objects\n")
    with pytest.raises(Refused, match="objects that the origin lacks"):
        _accept(found, shared / "arrival", pack, {"head": tip.name})
    assert not (shared / "arrival").exists()


def _accept(found: Repository, directory: Path, pack: bytes, refs: dict[str, str]) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(pack)
        file.flush()
        start = str(found.head.commit)
        offer = Offer(refs, "refs/heads/main", start, file.fileno())
        asyncio.run(accept(Git.find(), found, offer, [start], directory, pack_bytes=64 << 20))
