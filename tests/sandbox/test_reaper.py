"""Identities, and what is cleared away when their holders are dead."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from executor.errors import ConfigError, EngineError
from executor.sandbox import reaper
from executor.sandbox.container import (
    LABEL_BOOT,
    LABEL_CONTROLLER,
    LABEL_EXPIRES,
    LABEL_POLICY,
    LABEL_STATE,
    Image,
)
from executor.sandbox.engine import Engine, status
from executor.sandbox.reaper import Identity, Reaped, reap
from executor.settings import Settings
from tests.driver import wait_until
from tests.sandbox.tiny import LIFE, engine, tiny_image

ROOT = Path(__file__).parents[2]

HOLDER = """
import sys
from pathlib import Path
from executor.sandbox.reaper import Identity
identity = Identity.claim(Path(sys.argv[1]))
(identity.files_directory("loop-1") / "passwd").write_text("x")
print(identity.id, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(state: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Another process that has claimed an identity; its id and the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, state],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """An image with a shell."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        connected = runner.run(stack.enter_async_context(engine()))
        yield runner.run(stack.enter_async_context(tiny_image(connected)))
        runner.run(stack.aclose())


class OwnBoxes(Engine):
    """The real engine, showing what was made through it: other tests run beside."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ids: set[str] = set()

    async def create(
        self,
        name: str,
        request: Mapping[str, Any],
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> str:
        id = await super().create(name, request, on_warning)
        self.ids.add(id)
        return id

    async def list_containers(self, labels: Mapping[str, str | None]) -> list[dict[str, Any]]:
        listed = await super().list_containers(labels)
        return [container for container in listed if container["Id"] in self.ids]


def run(scenario: Callable[[Engine], Any]) -> None:
    """Runs a scenario with an engine."""

    async def main() -> None:
        async with await OwnBoxes.connect(Settings.load()) as connected:
            await asyncio.wait_for(scenario(connected), LIFE)

    asyncio.run(main())


def labels(state: Path, controller: str, **changes: str) -> dict[str, str]:
    return {
        LABEL_CONTROLLER: controller,
        LABEL_BOOT: reaper.boot_id(),
        LABEL_STATE: str(state),
        LABEL_EXPIRES: str(int(time.time()) + 3600),
        LABEL_POLICY: "p",
        **changes,
    }


@contextlib.asynccontextmanager
async def box(
    engine: Engine,
    image: Image,
    labels: dict[str, str],
    command: str | None = "sleep 600",
    holder: Identity | None = None,
) -> AsyncIterator[str]:
    """A running box with these labels; an ended one for `true`, a created one for None."""
    name = f"executor-test-{uuid.uuid4().hex[:12]}"
    if holder is not None:
        holder.hold(name)
    request = {
        "Image": image.reference,
        "Entrypoint": ["/bin/sh", "-c", command or "true"],
        "Cmd": [],
        "HostConfig": {"NetworkMode": "none"},
        "Labels": labels,
    }
    id = await engine.create(name, request)
    try:
        if command is not None:
            await engine.start(id)
        if command == "true":
            await engine.wait(id, LIFE)
        yield id
    finally:
        await engine.remove(id)


async def exists(engine: Engine, id: str) -> bool:
    try:
        await engine.inspect(id)
    except EngineError as error:
        assert status(error) == 404
        return False
    return True


class NoContainers(Engine):
    """An engine without a container, for what concerns directories only."""

    def __init__(self) -> None:
        pass

    async def list_containers(self, labels: Any) -> list[dict[str, Any]]:
        return []


def reap_directories(state: Path) -> Reaped:
    return asyncio.run(reap(NoContainers(), state))


# ─── identities ─────────────────────────────────────────────────────────────────────


def test_an_identity_leaves_nothing_behind(tmp_path: Path) -> None:
    """Closing removes directory and lock, and may be repeated."""
    with Identity.claim(tmp_path / "state") as identity:
        files = identity.files_directory("loop-1")
        (files / "passwd").write_text("x")
        assert files.parent == identity.directory
        assert sorted(os.listdir(tmp_path / "state" / "controllers")) == [
            identity.id,
            f"{identity.id}.lock",
        ]
        identity.discard_files("loop-1")
        assert list(identity.directory.iterdir()) == []
    assert os.listdir(tmp_path / "state" / "controllers") == []
    identity.discard_files("loop-1")
    identity.close()


def test_the_state_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    """Nobody else reads or writes what is generated."""
    with Identity.claim(tmp_path / "a" / "state") as identity:
        for path in (identity.state, identity.directory.parent, identity.directory):
            assert path.stat().st_mode & 0o777 == 0o700


def test_a_state_directory_that_cannot_be_used_is_a_fault_with_a_mend(tmp_path: Path) -> None:
    """What the system says, and which variable to set."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"Not a directory.*EXECUTOR_STATE_DIR"):
        Identity.claim(tmp_path / "file" / "state")


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", ".x", "A"])
def test_a_name_never_leaves_the_directory(tmp_path: Path, name: str) -> None:
    """What is not a loop's name is not made a path."""
    with Identity.claim(tmp_path) as identity, pytest.raises(ValueError, match="no name"):
        identity.files_directory(name)


def test_labels_say_who_and_until_when(tmp_path: Path) -> None:
    """Everything that the reaper asks for is on the container."""
    before = int(time.time())
    with Identity.claim(tmp_path) as identity:
        found = identity.labels("loop-1", "acme", 60.0)
        expires = int(found.pop("executor.expires"))
        assert before + 60 <= expires <= before + 60 + LIFE
        assert found == {
            "executor.controller": identity.id,
            "executor.boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "executor.loop": "loop-1",
            "executor.tenant": "acme",
            "executor.state": str(tmp_path),
        }


def test_a_commands_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """A process that the controller started, and that outlives it, keeps nothing alive."""
    identity = Identity.claim(tmp_path)
    broken = [Identity.claim(tmp_path / "other") for _ in range(8)]
    readers, writers = os.pipe()
    started, start = os.pipe()
    for one in broken:  # closed by somebody else: the child can't, and goes on with the next
        os.close(one._lock)
    pid = os.fork()
    if pid == 0:
        os.close(writers)
        os.write(start, b".")
        os.read(readers, 1)
        os._exit(0)
    os.close(readers)
    os.read(started, 1)  # it gives the lock up when it begins, not when it is made
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        try:
            os.close(identity._lock)
            identity._lock = -1
            # Another thread's child may have the lock for the moment between fork and exec.
            wait_until(lambda: reap_directories(tmp_path).directories == (identity.id,))
        finally:
            child.kill()
            for one in broken:
                one._lock = -1
            for descriptor in (writers, started, start):
                os.close(descriptor)
            os.waitpid(pid, 0)


# ─── directories ────────────────────────────────────────────────────────────────────


def test_a_living_process_keeps_its_directory_and_a_killed_one_does_not(tmp_path: Path) -> None:
    """M4: the kernel says whether a controller lives, also after SIGKILL."""
    with holder(tmp_path) as (id, process):
        assert reap_directories(tmp_path) == Reaped()
        assert (tmp_path / "controllers" / id / "loop-1" / "passwd").exists()
        process.send_signal(signal.SIGSTOP)
        assert reap_directories(tmp_path) == Reaped()
        process.kill()
        process.wait(LIFE)
        assert reap_directories(tmp_path) == Reaped(directories=(id,))
    assert os.listdir(tmp_path / "controllers") == []


def test_a_stale_directory_is_removed_without_following_links(tmp_path: Path) -> None:
    """M12: what a link in there points to is left alone."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("alive")
    state = tmp_path / "state"
    with holder(state) as (id, process):
        process.kill()
        process.wait(LIFE)
    directory = state / "controllers" / id
    (directory / "link").symlink_to(canary)
    (directory / "loop-1" / "deep").symlink_to(canary / "file")
    assert reap_directories(state).directories == (id,)
    assert (canary / "file").read_text() == "alive"


def test_what_is_not_ours_in_the_state_directory_stays(tmp_path: Path) -> None:
    """Files that no controller makes are not touched, links in place of locks neither."""
    controllers = tmp_path / "controllers"
    (controllers / "notes").mkdir(parents=True)
    (controllers / "notes.lock").touch()
    target = tmp_path / "target"
    target.touch()
    (controllers / "0123456789abcdef.lock").symlink_to(target)
    before = sorted(os.listdir(controllers))
    assert reap_directories(tmp_path) == Reaped()
    assert sorted(os.listdir(controllers)) == before


def test_without_a_state_directory_there_is_nothing_to_do(tmp_path: Path) -> None:
    """The reaper makes no directory."""
    assert reap_directories(tmp_path / "nowhere") == Reaped()
    assert not (tmp_path / "nowhere").exists()


CHURN = """
import asyncio, os, sys
from pathlib import Path
from executor.sandbox.reaper import Identity, reap
from tests.sandbox.test_reaper import NoContainers
state = Path(sys.argv[1])
for number in range(60):
    identity = Identity.claim(state)
    files = identity.files_directory("loop")
    (files / "passwd").write_text(identity.id)
    asyncio.run(reap(NoContainers(), state, identity))
    assert (files / "passwd").read_text() == identity.id
    if number % 2:
        identity.close()
    else:
        os.close(identity._lock)
"""


@pytest.mark.timeout(120)
def test_claims_and_reaps_at_once_hurt_nobody(tmp_path: Path) -> None:
    """M4: a living controller's directory stays, however many reap and claim meanwhile."""
    runners = [
        subprocess.Popen([sys.executable, "-c", CHURN, tmp_path], cwd=ROOT) for _ in range(4)
    ]
    assert [runner.wait(100) for runner in runners] == [0] * 4
    reap_directories(tmp_path)
    assert os.listdir(tmp_path / "controllers") == []


# ─── containers ─────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(120)
def test_a_killed_controllers_box_is_removed_and_a_living_ones_is_not(
    tmp_path: Path, image: Image
) -> None:
    """67, M3, M4: running boxes of dead holders go, those of living ones and others stay."""

    async def scenario(engine: Engine) -> None:
        with holder(tmp_path) as (dead, process), holder(tmp_path) as (alive, _):
            async with (
                box(engine, image, labels(tmp_path, dead)) as orphan,
                box(engine, image, labels(tmp_path, dead), "true") as ended,
                box(engine, image, labels(tmp_path, dead), None) as unstarted,
                box(engine, image, labels(tmp_path, alive)) as kept,
                box(engine, image, labels(tmp_path, alive), "true") as kept_ended,
                box(engine, image, {"somebody": "else"}) as foreign,
            ):
                assert not set((await reap(engine, tmp_path)).containers) & {orphan, kept}
                process.kill()
                await asyncio.to_thread(process.wait, LIFE)
                with Identity.claim(tmp_path) as own:
                    mark = own.labels("l", "t", 60)
                    async with box(engine, image, mark, holder=own) as mine:
                        passes = await asyncio.gather(
                            reap(engine, tmp_path, own), reap(engine, tmp_path, own)
                        )
                        assert await exists(engine, mine)
                removed = {id for one in passes for id in one.containers}
                assert removed >= {orphan, ended, unstarted}
                assert [id for one in passes for id in one.directories] == [dead]
                assert [one.failures for one in passes] == [(), ()]
                assert not await exists(engine, orphan)
                for id in (kept, kept_ended, foreign):
                    assert await exists(engine, id)
                assert (tmp_path / "controllers" / alive).is_dir()

    run(scenario)


@pytest.mark.timeout(120)
def test_two_controllers_do_not_reap_each_other(tmp_path: Path, image: Image) -> None:
    """M4: two controllers, in one process or two state directories, keep their boxes."""

    async def scenario(engine: Engine) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        with Identity.claim(one) as first, Identity.claim(one) as same, Identity.claim(two) as far:
            async with contextlib.AsyncExitStack() as stack:
                boxes = [
                    await stack.enter_async_context(
                        box(engine, image, identity.labels("l", "t", 60), command, identity)
                    )
                    for identity in (first, same, far)
                    for command in ("sleep 600", "true", None)
                ]
                for identity in (first, same, far):
                    found = await reap(engine, identity.state, identity)
                    assert not set(found.containers) & set(boxes)
                for id in boxes:
                    assert await exists(engine, id)

    run(scenario)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("changes", "command", "removed"),
    [
        ({LABEL_STATE: "/elsewhere"}, "sleep 600", False),
        ({LABEL_STATE: "/elsewhere"}, "true", False),
        ({LABEL_STATE: "/elsewhere", LABEL_EXPIRES: "1"}, "sleep 600", True),
        ({LABEL_EXPIRES: "1"}, "sleep 600", True),
        ({LABEL_EXPIRES: "soon"}, "sleep 600", True),
        ({LABEL_EXPIRES: "soon", LABEL_STATE: "/elsewhere"}, "sleep 600", False),
        ({LABEL_BOOT: "another"}, "sleep 600", False),
        ({}, "sleep 600", True),
        ({}, None, True),
    ],
)
def test_a_controller_that_is_not_known_here(
    tmp_path: Path, image: Image, changes: dict[str, str], command: str | None, removed: bool
) -> None:
    """M4: gone from our state directory is dead; another directory's or boot's is not."""

    async def scenario(engine: Engine) -> None:
        marked = labels(tmp_path, "0" * 16, **changes)
        async with box(engine, image, marked, command) as id:
            expected = (id,) if removed else ()
            assert (await reap(engine, tmp_path)).containers == expected
            assert await exists(engine, id) is not removed

    run(scenario)


@pytest.mark.timeout(120)
def test_after_a_boot_the_known_controllers_boxes_go(tmp_path: Path, image: Image) -> None:
    """M4: a lock from before the boot is free, and its boxes are removed."""

    async def scenario(engine: Engine) -> None:
        with holder(tmp_path) as (dead, process):
            process.kill()
            await asyncio.to_thread(process.wait, LIFE)
        async with box(engine, image, labels(tmp_path, dead, **{LABEL_BOOT: "before"})) as id:
            found = await reap(engine, tmp_path)
            assert (id in found.containers, found.directories) == (True, (dead,))

    run(scenario)


@pytest.mark.timeout(120)
def test_ended_boxes_that_nobody_wants_go_after_a_while(
    tmp_path: Path, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4: one's own ended box, and a foreign one, are removed when their time is over."""
    monkeypatch.setattr(reaper, "OWN_GRACE", -1.0)
    monkeypatch.setattr(reaper, "FOREIGN_GRACE", -1.0)
    name = f"/elsewhere-{uuid.uuid4().hex}"

    async def scenario(engine: Engine) -> None:
        with Identity.claim(tmp_path) as own, Identity.claim(tmp_path) as other:
            foreign = labels(tmp_path, "0" * 16, **{LABEL_STATE: name})
            async with (
                box(engine, image, own.labels("l", "t", 60), "true", own) as mine,
                box(engine, image, own.labels("l", "t", 60), None, own) as opening,
                box(engine, image, other.labels("l", "t", 60), "true") as others,
                box(engine, image, foreign, "true") as ended,
                box(engine, image, foreign) as running,
            ):
                assert set((await reap(engine, tmp_path, own)).containers) == {mine, ended}
                for id in (opening, others, running):
                    assert await exists(engine, id)

    run(scenario)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", ["sleep 600", "true", None])
def test_a_box_that_its_controller_has_let_go_is_swept_at_once(
    tmp_path: Path, image: Image, command: str | None
) -> None:
    """M4: a living controller's own sweep takes what closing could not remove, files too;
    nobody else's does, for to others the controller lives."""

    async def scenario(engine: Engine) -> None:
        with Identity.claim(tmp_path) as own, Identity.claim(tmp_path) as other:
            mark = {**own.labels("l", "t", 60), LABEL_POLICY: "p"}
            async with box(engine, image, mark, command, own) as id:
                name = (await engine.inspect(id))["Name"].removeprefix("/")
                files = own.files_directory(name)
                for identity in (own, other, None):
                    assert (await reap(engine, tmp_path, identity)).containers == ()
                own.let_go(name)
                for identity in (other, None):
                    assert (await reap(engine, tmp_path, identity)).containers == ()
                assert files.is_dir()
                assert (await reap(engine, tmp_path, own)).containers == (id,)
                assert (await exists(engine, id), files.exists()) == (False, False)

    run(scenario)


@pytest.mark.timeout(120)
def test_what_built_for_a_dead_process_is_swept(tmp_path: Path, image: Image) -> None:
    """M3: a building container goes when nobody holds the lock of its state directory."""

    async def scenario(engine: Engine) -> None:
        lock = tmp_path / reaper.BUILD_LOCK
        async with (
            box(engine, image, reaper.build_labels(tmp_path)) as building,
            box(engine, image, reaper.build_labels(tmp_path / "other")) as elsewhere,
        ):
            with lock.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                assert (await reap(engine, tmp_path)).containers == ()
            assert (await reap(engine, tmp_path)).containers == (building,)
            assert await exists(engine, elsewhere)

    run(scenario)


class Refusing(NoContainers):
    """An engine that removes nothing."""

    def __init__(self, listed: list[dict[str, Any]]) -> None:
        self.listed = listed

    async def list_containers(self, labels: Any) -> list[dict[str, Any]]:
        return self.listed if LABEL_CONTROLLER in labels else []

    async def remove(self, id: str) -> None:
        raise EngineError(f"can't remove {id}")


def test_a_directory_stays_as_long_as_a_box_of_it_does(tmp_path: Path) -> None:
    """What could not be removed is said, and tried again by the next pass."""
    with holder(tmp_path) as (dead, process):
        process.kill()
        process.wait(LIFE)
    container = {"Id": "c1", "State": "running", "Labels": labels(tmp_path, dead)}
    found = asyncio.run(reap(Refusing([container]), tmp_path))
    assert found == Reaped(failures=("can't remove c1",))
    assert (tmp_path / "controllers" / dead).is_dir()
    assert reap_directories(tmp_path).directories == (dead,)
