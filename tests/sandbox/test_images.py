"""Recipes, root file systems, and the runtime volume, on the real engine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import socket
import subprocess
import tarfile
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
import pytest

from executor.errors import EngineError, ImageNotFound
from executor.sandbox import images
from executor.sandbox.attach import Demultiplexer
from executor.sandbox.engine import Engine
from executor.sandbox.facts import parse_facts
from executor.sandbox.images import build, ensure_image, ensure_runtime
from executor.sandbox.recipes import Recipe, Recipes, load_recipe
from executor.sandbox.rootfs import Bootstrap, mmdebstrap_command, parse_sources
from executor.sandbox.runtime import (
    KIND,
    PYTHON,
    TARGET,
    Progress,
    Runtime,
    fill_volume,
    python_reference,
    runtime_of,
    silent,
)
from executor.settings import ImageSource, Settings
from tests.sandbox import engines

SECONDS = 240.0
BOOTSTRAP_SECONDS = 600.0
"""For what takes one minute where nothing else is done."""

# ─── where packages come from ───────────────────────────────────────────────────────

DEB822 = """\
Types: deb deb-src
# a comment
URIs: http://mirror.lan/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.lan/security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.lan/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://other.lan/
Suites: bookworm
Components: stable
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----
"""
ONE_LINERS = """\
# deb http://off.lan/debian bookworm main
deb http://mirror.lan/debian bookworm main non-free # ours
deb [arch=amd64 signed-by=/etc/keys/a.gpg] http://mirror.lan/debian bookworm-updates main
deb-src http://mirror.lan/debian bookworm main
deb https://other.lan/linux/debian bookworm stable
deb http://mirror.lan/debian trixie main
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "debian.sources",
            DEB822,
            [
                "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
                "http://mirror.lan/debian bookworm main",
                "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
                "http://mirror.lan/debian bookworm-updates main",
                "deb http://mirror.lan/security bookworm-security main",
            ],
        ),
        (
            "sources.list",
            ONE_LINERS,
            [
                "deb http://mirror.lan/debian bookworm main",
                "deb [signed-by=/etc/keys/a.gpg] http://mirror.lan/debian bookworm-updates main",
            ],
        ),
        ("sources.list.save", ONE_LINERS, []),
        ("debian.sources", "", []),
    ],
)
def test_only_the_release_of_debian_is_taken_from_the_host(
    name: str, text: str, expected: list[str]
) -> None:
    """Mirrors are taken over; other suites, other makers and what is off are not."""
    assert parse_sources(name, text, "bookworm") == expected


def test_mirrors_do_not_stay_in_the_image() -> None:
    """The command gets the mirrors for the build; the image names none."""
    mirror = "deb http://user:secret@mirror.lan/debian bookworm main"
    command = mmdebstrap_command(load_recipe("base"), [mirror])

    hooks = [argument for argument in command if argument.startswith("--customize-hook")]
    assert command[-3:] == ["bookworm", "-", mirror]
    assert not any("secret" in hook for hook in hooks)
    assert any("sources.list" in hook and "mirror.lan" not in hook for hook in hooks)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a shell script in the place of mmdebstrap."""

    def install(text: str) -> None:
        program = tmp_path / "mmdebstrap"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


PROBE = Recipe("probe", "bookworm", {"jq": "small"}, "0" * 12)


def test_output_of_the_bootstrap_is_handed_on_and_its_steps_told(script: Any) -> None:
    """Bytes come from stdout, steps from stderr; the lines of hooks are left out."""
    script('echo "I: installing" >&2; echo "I: running hook" >&2; printf "tar bytes"')
    steps: list[str] = []

    assert b"".join(Bootstrap(PROBE, steps.append)) == b"tar bytes"
    assert steps == ["installing"]


def test_failed_bootstrap_says_what_the_program_said(script: Any) -> None:
    """A failure after output has begun is still an error, with the program's words."""
    script('printf half; echo "E: no such package" >&2; exit 25')

    with pytest.raises(EngineError, match=r"exit code 25(.|\n)*no such package"):
        list(Bootstrap(PROBE, lambda step: None))


def test_stopped_bootstrap_ends_soon(script: Any) -> None:
    """`stop` ends the program; the iteration ends with an error, not with a whole tar."""
    script("printf half; exec sleep 600")
    run = Bootstrap(PROBE, lambda step: None)
    start = time.monotonic()

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(list, run)
        while run._process is None:
            assert time.monotonic() - start < 30
        run.stop()
        with pytest.raises(EngineError):
            reading.result(30)


def test_missing_bootstrap_program_is_said_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without mmdebstrap and debootstrap the sentence says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EngineError, match="apt-get install mmdebstrap"):
        Bootstrap(PROBE, lambda step: None)


# ─── the runtime ────────────────────────────────────────────────────────────────────


def settings_with(**given: Any) -> Settings:
    """This machine's engine, with the usual state directory (its lock is shared)."""
    usual = Settings.load()
    values = {"docker_host": usual.docker_host, "state_directory": usual.state_directory}
    return Settings(**(values | given))


@contextlib.asynccontextmanager
async def connected(seconds: float = SECONDS, **settings: Any) -> AsyncIterator[Engine]:
    """The engine of this machine."""
    async with asyncio.timeout(seconds):
        async with await Engine.connect(settings_with(**settings)) as engine:
            yield engine


@contextlib.asynccontextmanager
async def own(made: Iterable[str], **settings: Any) -> AsyncIterator[OwnEngine]:
    """The same, for tests that remove what is old: only of these names, and what is current."""
    async with asyncio.timeout(SECONDS):
        async with await OwnEngine.connect(settings_with(**settings)) as engine:
            assert isinstance(engine, OwnEngine)
            engine.made = frozenset(made)
            yield engine


async def run_in(
    engine: Engine, image: str, command: list[str], volume: str = "", user: str = "1000:1000"
) -> tuple[int, str]:
    """Runs a command in a hardened container; returns its exit code and output."""
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "LogConfig": {"Type": "none"},
    }
    if volume:
        mount = {"Type": "volume", "Source": volume, "Target": TARGET, "ReadOnly": True}
        host["Mounts"] = [mount | {"VolumeOptions": {"NoCopy": True}}]
    body = {
        "Image": image,
        "User": user,
        "Entrypoint": command,
        "Cmd": [],
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": host,
    }
    container = await engine.create(f"executor-test-{uuid.uuid4().hex[:12]}", body)
    try:
        frames, output = Demultiplexer(), b""
        with await engine.attach(container) as stream:
            stream.setblocking(False)
            await engine.start(container)
            while data := await asyncio.get_running_loop().sock_recv(stream, 1 << 16):
                output += b"".join(piece for _, piece in frames.feed(data))
        return await engine.wait(container, 60), output.decode()
    finally:
        await engine.remove(container)


def make_agent(directory: Path, text: str = "print('the entry')") -> Path:
    """A folder with a tiny agent."""
    directory.mkdir(exist_ok=True)
    (directory / "__main__.py").write_text(f"import words\n{text}\n")
    (directory / "words.py").write_text(f"# {uuid.uuid4()}\n")
    return directory


@contextlib.asynccontextmanager
async def python_part() -> AsyncIterator[tuple[Engine, str, str]]:
    """The engine, the base image's id and the Python part's, all made."""
    async with connected() as engine:
        base = await ensure_image(engine, "base")
        await ensure_runtime(engine)
        found = await engine.inspect_image(python_reference(base))
        assert found is not None
        yield engine, base, str(found["Id"])


ENTRY = [PYTHON, "-I", "-S", "-B", f"{TARGET}/agent"]


def test_runtime_is_ready_and_found_quickly() -> None:
    """Once made, the runtime is found without a build; its volume has the labels and the hash."""

    async def run() -> None:
        async with connected() as engine:
            runtime = await ensure_runtime(engine)
            start = time.monotonic()
            assert await ensure_runtime(engine) == runtime
            assert time.monotonic() - start < 5, "a busy machine; a build takes longer than that"
            labels = (await engine.inspect_volume(runtime.volume) or {})["Labels"]
            assert labels == {KIND: "runtime", "executor.hash": runtime.hash}

    asyncio.run(run())


class OwnEngine(Engine):
    """The engine, as if nothing of ours were on it but what is current and what a test has made.

    What others have there is never seen by what removes things: other tests and other versions
    use them at the same time.
    """

    made: frozenset[str] = frozenset()
    """Names of images and volumes."""

    async def list_images(self, labels: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """Those that bear a name of ours."""
        ours = self.made | await images._current(self)
        listed = await super().list_images(labels)
        return [one for one in listed if ours & set(one.get("RepoTags") or [])]

    async def list_volumes(self, labels: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """Those that bear a name of ours."""
        ours = self.made | await images._current(self)
        return [one for one in await super().list_volumes(labels) if one["Name"] in ours]

    async def list_containers(self, labels: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """Of builds there is none of a test's."""
        return []


class CountingEngine(Engine):
    """The engine, with an account of what it was asked."""

    asked: list[str]

    async def _call(self, what: str, *arguments: Any, **options: Any) -> Any:
        self.asked.append(what)
        return await super()._call(what, *arguments, **options)


def test_what_a_box_needs_is_found_with_few_requests() -> None:
    """Base image and runtime cost two requests, and are the ones that are found singly."""

    async def run() -> None:
        settings = Settings.load()
        async with await CountingEngine.connect(settings) as engine:
            assert isinstance(engine, CountingEngine)
            engine.asked = []
            runtime = await ensure_runtime(engine)
            base = await ensure_image(engine, "base")
            engine.asked = []
            image, found = await images.ensure(engine, "base")
            assert (image["Id"], found) == (base, runtime)
            assert image["Config"]["Env"]
            assert len(engine.asked) == 2, engine.asked
            other, found = await images.ensure(engine, load_recipe("base").reference)
            assert (other["Id"], found) == (base, runtime)
            with pytest.raises(ImageNotFound, match="nobody/nothing:1"):
                await images.ensure(engine, "nobody/nothing:1")

    asyncio.run(run())


def test_a_changed_agent_is_seen_though_its_files_are_as_long(tmp_path: Path) -> None:
    """The runtime's name follows the files' bytes, also where it was asked for before."""
    agent = make_agent(tmp_path / "agent", "print('one')")
    first = runtime_of("sha256:1", agent)
    assert runtime_of("sha256:1", agent) == first
    (tmp_path / "new").write_text((agent / "__main__.py").read_text().replace("one", "two"))
    (tmp_path / "new").replace(agent / "__main__.py")
    assert runtime_of("sha256:1", agent) != first
    assert runtime_of("sha256:2", agent) != runtime_of("sha256:1", agent)


def test_runtime_runs_in_an_image_that_has_nothing() -> None:
    """Python, its C modules and ripgrep run in an empty image, unprivileged."""
    script = (
        "import ctypes, json, os, selectors, ssl, subprocess, sqlite3, sys, _blake2;"
        f"rg = subprocess.run(['{TARGET}/bin/rg', '--version'], capture_output=True, text=True);"
        f"print(open('{TARGET}/hash').read(), os.getuid(), rg.stdout.split()[0], sys.executable)"
    )
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("empty"))

    async def run() -> None:
        async with connected() as engine:
            runtime = await ensure_runtime(engine)
            reference = f"executor-test:{uuid.uuid4().hex[:12]}"
            image = await engine.import_image(reference, [empty.getvalue()])
            try:
                command = [PYTHON, "-I", "-S", "-B", "-c", script]
                code, output = await run_in(engine, image, command, runtime.volume)
            finally:
                await engine.remove_image(reference)
            assert (code, output.split()) == (0, [runtime.hash, "1000", "ripgrep", PYTHON])

    asyncio.run(run())


def test_runtime_is_owned_by_root_and_readable_by_all() -> None:
    """Nothing in the volume can be written; all but one loader can be read."""
    script = f"""import os
for folder, folders, files in os.walk('{TARGET}'):
    for path in [folder, *(os.path.join(folder, name) for name in files)]:
        about = os.lstat(path)
        if path == '{TARGET}/lib/loader' and (about.st_uid, about.st_mode) == (65534, 0o100111):
            continue
        if about.st_uid or about.st_gid or about.st_mode & 0o022 or not about.st_mode & 0o004:
            print(path, oct(about.st_mode), about.st_uid)
"""

    async def run() -> None:
        async with connected() as engine:
            runtime = await ensure_runtime(engine)
            base = await ensure_image(engine, "base")
            command = [PYTHON, "-I", "-S", "-B", "-c", script]
            assert await run_in(engine, base, command, runtime.volume) == (0, "")

    asyncio.run(run())


def test_changed_agent_gets_a_volume_of_its_own(tmp_path: Path) -> None:
    """Other bytes in an agent's file, another volume; the old one stays as it is."""
    agent = make_agent(tmp_path / "agent")

    async def run() -> None:
        async with python_part() as (engine, base, python):
            first = runtime_of(base, agent)
            await fill_volume(engine, first, python, silent, agent)
            (agent / "__main__.py").write_text("print('changed')\n")
            second = runtime_of(base, agent)
            start = time.monotonic()
            await fill_volume(engine, second, python, silent, agent)
            assert time.monotonic() - start < 20

            outputs = [await run_in(engine, base, ENTRY, r.volume) for r in (first, second)]
            assert outputs == [(0, "the entry\n"), (0, "changed\n")]
            for runtime in (first, second):
                assert await engine.remove_volume(runtime.volume)

    asyncio.run(run())


def test_two_fillers_at_once_both_end_well(tmp_path: Path) -> None:
    """Several processes may fill one volume; it is complete when each of them returns."""
    agent = make_agent(tmp_path / "agent")

    async def fill(runtime: Runtime, base: str, python: str) -> tuple[int, str]:
        async with connected() as engine:
            await fill_volume(engine, runtime, python, silent, agent)
            return await run_in(engine, base, ENTRY, runtime.volume)

    async def run() -> None:
        async with python_part() as (engine, base, python):
            runtime = runtime_of(base, agent)
            results = await asyncio.gather(*(fill(runtime, base, python) for _ in range(3)))
            assert results == [(0, "the entry\n")] * 3
            assert await engine.remove_volume(runtime.volume)

    asyncio.run(run())


@pytest.mark.parametrize("crash", ["before the agent", "while python was copied", "by a container"])
def test_what_a_dead_filler_left_is_completed(tmp_path: Path, crash: str) -> None:
    """Wherever a filler died, the next one makes the volume complete."""
    agent = make_agent(tmp_path / "agent")

    async def leave(engine: Engine, base: str, python: str, runtime: Runtime) -> None:
        name = f"executor-fill-{runtime.hash}"
        await engine.create_volume(runtime.volume, {})
        mount: dict[str, Any] = {"Type": "volume", "Source": runtime.volume, "Target": TARGET}
        body: dict[str, Any] = {"Image": python, "Entrypoint": [PYTHON, "-V"], "Cmd": []}
        if crash == "while python was copied":
            junk = f"mkdir {TARGET}/bin; echo junk > {PYTHON}"
            body |= {"Image": base, "Entrypoint": ["sh", "-c", junk]}
            mount["VolumeOptions"] = {"NoCopy": True}
        container = await engine.create(name, body | {"HostConfig": {"Mounts": [mount]}})
        await engine.start(container)
        await engine.wait(container, 60)
        if crash != "by a container":
            await engine.remove(container)

    async def run() -> None:
        async with python_part() as (engine, base, python):
            runtime = runtime_of(base, agent)
            await leave(engine, base, python, runtime)
            if crash != "while python was copied":
                assert (await run_in(engine, base, ENTRY, runtime.volume))[0] != 0
            await fill_volume(engine, runtime, python, silent, agent)
            assert await run_in(engine, base, ENTRY, runtime.volume) == (0, "the entry\n")
            assert await engine.remove_volume(runtime.volume)

    asyncio.run(run())


def test_agent_without_entry_is_refused(tmp_path: Path) -> None:
    """A package without its agent's entry is said to be broken; no volume stays behind."""
    (tmp_path / "lonely.py").touch()

    async def run() -> None:
        async with python_part() as (engine, base, python):
            runtime = runtime_of(base, tmp_path)
            with pytest.raises(EngineError, match=r"no __main__\.py"):
                await fill_volume(engine, runtime, python, silent, tmp_path)
            await engine.remove_volume(runtime.volume)

    asyncio.run(run())


# ─── images ─────────────────────────────────────────────────────────────────────────


def test_foreign_image_must_be_there(tmp_path: Path) -> None:
    """A name that is not ours is looked for on the engine and never pulled."""

    async def run() -> None:
        async with connected(state_directory=tmp_path) as engine:
            with pytest.raises(ImageNotFound, match=r"docker pull nobody/nothing:1.*base, heavy"):
                await ensure_image(engine, "nobody/nothing:1")
            base = await ensure_image(engine, "base")
            assert await ensure_image(engine, load_recipe("base").reference) == base

    asyncio.run(run())


def test_base_image_is_what_it_promises() -> None:
    """Programs, UTF-8 and licences are in the base image; manuals and apt's lists are not."""
    script = (
        "for p in python3 pip pytest git bash rg make jq ps curl file; do "
        "command -v $p >/dev/null || echo no $p; done; "
        "python3 -c 'import ensurepip, venv' || echo no environments; "
        "test -e /usr/lib/python3*/EXTERNALLY-MANAGED || echo pip writes into the system; "
        "locale -a | grep -qi c.utf || echo no utf-8; "
        "test -e /usr/share/doc/git/copyright || echo no licences; "
        "find /var/lib/apt/lists /usr/share/man/ -type f -size +0 2>/dev/null; true"
    )

    async def run() -> None:
        async with connected() as engine:
            base = await ensure_image(engine, "base")
            assert await run_in(engine, base, ["sh", "-c", script]) == (0, "no rg\n")
            about = await engine.inspect_image(base) or {}
            assert about["Size"] < 350 << 20
            assert not about["Config"].get("Volumes")

    asyncio.run(run())


def test_build_removes_what_is_old_and_ours_and_unused() -> None:
    """Old volumes and images of ours go; those in use and those of others stay."""
    mark = uuid.uuid4().hex[:12]
    names = {kind: f"executor-test-{kind}-{mark}" for kind in ("old", "used", "other")}
    old = f"executor-python:{mark}"

    async def run() -> None:
        async with own({old, *names.values()}) as engine:
            base = await ensure_image(engine, "base")
            for kind, name in names.items():
                await engine.create_volume(name, {} if kind == "other" else {KIND: "runtime"})
            mount = {"Type": "volume", "Source": names["used"], "Target": "/v"}
            user = await engine.create(
                f"executor-test-{mark}", {"Image": base, "HostConfig": {"Mounts": [mount]}}
            )
            empty = io.BytesIO()
            with tarfile.open(fileobj=empty, mode="w"):
                pass
            await engine.import_image(old, [empty.getvalue()], [f"LABEL {KIND}=python"])

            built = await build(engine)

            left = {kind for kind, n in names.items() if await engine.inspect_volume(n)}
            assert left == {"used", "other"}
            assert await engine.inspect_image(old) is None
            assert {entry.kind for entry in built if entry.current} >= {"base", "python", "runtime"}
            await engine.remove(user)
            for name in names.values():
                await engine.remove_volume(name)

    asyncio.run(run())


def test_two_choices_of_layers_lie_side_by_side(tmp_path: Path) -> None:
    """An image that another person's file asks for stays, until that file asks for another one or
    is gone; one's own is current, and both say which layers they have."""
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w"):
        pass
    mine, other = tmp_path / "mine.toml", tmp_path / "other $HOME.toml"
    plain = tmp_path / "other.toml"
    marked = f'[heavy]\nlayers = ["go"]\npackages = ["p{uuid.uuid4().hex[:12]}"]\n'
    mine.write_text(marked.replace('"go"', '"node", "c"'))
    plain.write_text(marked)
    other.write_text(marked.replace('"go"', '"rust"'))
    chosen = {file: Recipes(file).load("heavy") for file in (mine, plain, other)}

    async def there(engine: Engine) -> set[Path]:
        found = {file: await engine.inspect_image(one.reference) for file, one in chosen.items()}
        return {file for file, image in found.items() if image is not None}

    async def run() -> None:
        async with own((one.reference for one in chosen.values()), images_file=mine) as engine:
            for recipe in chosen.values():
                changes = images._changes(recipe)
                await engine.import_image(recipe.reference, [empty.getvalue()], changes)
            listed = {entry.name: entry for entry in await images.list_built(engine)}
            about = [listed[one.reference] for one in chosen.values()]
            assert [(e.layers, e.current) for e in about] == [
                (("node", "c"), True),
                (("go",), False),
                (("rust",), False),
            ]
            assert [entry.file for entry in about] == [str(mine), str(plain), ""]
            assert await ensure_image(engine, "heavy") == listed[chosen[mine].reference].id

            await images._prune(engine)
            assert await there(engine) == {mine, plain}, "a name like that is in no label"
            plain.write_text("[heavy\n")
            await images._prune(engine)
            assert await there(engine) == {mine, plain}, "somebody is writing in it"
            plain.write_text(marked.replace('"go"', '"java"'))
            await images._prune(engine)
            assert await there(engine) == {mine}
            await engine.remove_image(chosen[mine].reference)

    asyncio.run(run())


@pytest.mark.timeout(BOOTSTRAP_SECONDS + 60)
@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed")
def test_image_is_made_out_of_packages() -> None:
    """With no registry, a root file system out of signed packages becomes an image."""
    steps: list[str] = []

    async def run() -> None:
        async with connected(BOOTSTRAP_SECONDS, image_source=ImageSource.PACKAGES) as engine:
            recipe = Recipe("probe", "bookworm", {"jq": "small"}, uuid.uuid4().hex[:12])
            image = await images._build_image(engine, recipe, lambda step, *_: steps.append(step))
            try:
                check = 'jq -n "1+1"; cat /etc/apt/sources.list; ls /etc/apt/sources.list.d'
                code, output = await run_in(engine, image, ["sh", "-c", check])
                two, *sources = output.splitlines()
                assert (code, two) == (0, "2")
                assert all(line.startswith("#") for line in sources)
                labels = (await engine.inspect_image(image) or {})["Config"]["Labels"]
                assert labels[KIND] == "probe"
            finally:
                await engine.remove_image(recipe.reference)

    asyncio.run(run())
    assert any("installing" in step for step in steps)


def test_what_is_told_after_the_end_is_told_to_nobody() -> None:
    """A build that was cancelled may still say something when its event loop is closed."""
    told: list[str] = []

    async def ready() -> Progress:
        tell = images._from_threads(lambda step, *_: told.append(step))
        await asyncio.to_thread(tell, "in time", None, None)
        return tell

    asyncio.run(ready())("late", None, None)
    assert told == ["in time"]


def test_waiting_for_another_build_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Image and runtime of one command wait for each other, too, while the other one tells much."""
    monkeypatch.setattr(images, "_LOCK_POLL", 0.001)
    told: list[str] = []
    done = asyncio.Event()

    def tell(step: str, *_: object) -> None:
        told.append(step)
        asyncio.get_running_loop().call_later(0.1, done.set)

    async def hold(engine: Engine) -> None:
        async with images._lock(engine, silent):
            waits = asyncio.create_task(wait(engine))
            await done.wait()
        await waits

    async def wait(engine: Engine) -> None:
        async with images._lock(engine, tell):
            told.append("its turn")

    async def run() -> None:
        async with connected(state_directory=tmp_path) as engine:
            await hold(engine)

    asyncio.run(run())
    assert told == ["waiting for another build", "its turn"]


# ─── registries ─────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def registry(directory: Path) -> Iterator[int]:
    """A registry on loopback; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    configuration = directory / "registry.yml"
    configuration.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {directory}/data}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            ["docker-registry", "serve", str(configuration)], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert server.poll() is None and time.monotonic() < deadline, "no registry"
        yield port
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is missing")
def test_image_is_made_out_of_a_registry(tmp_path: Path) -> None:
    """Where a registry answers, its image is completed with the packages and committed."""
    with registry(tmp_path) as port:
        place = f"127.0.0.1:{port}/debian"
        recipe = Recipe("probe", "bookworm", {"git": "there already"}, uuid.uuid4().hex[:12])

        async def run() -> None:
            async with connected(
                image_source=ImageSource.REGISTRY, image_reference=place + ":{release}-slim"
            ) as engine:
                base = await ensure_image(engine, "base")
                await engine.tag_image(base, f"{place}:bookworm-slim")
                client = docker.APIClient(engine.settings.docker_host)
                await asyncio.to_thread(client.push, place, "bookworm-slim")
                await engine.remove_image(f"{place}:bookworm-slim")

                image = await images._build_image(engine, recipe, silent)

                assert await run_in(engine, image, ["git", "--version"], user="0:0")
                labels = (await engine.inspect_image(image) or {})["Config"]["Labels"]
                assert labels[KIND] == "probe"
                await engine.remove_image(recipe.reference)
                await engine.remove_image(f"{place}:bookworm-slim")

        asyncio.run(run())


def test_silent_registry_costs_seconds_only() -> None:
    """A registry that takes the connection and says nothing is given up soon."""

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            reference = f"127.0.0.1:{listener.getsockname()[1]}/debian:{{release}}"
            async with connected(
                image_source=ImageSource.REGISTRY, image_reference=reference, registry_timeout=1.0
            ) as engine:
                start = time.monotonic()
                with pytest.raises(EngineError, match="could not pull"):
                    await images._build_image(engine, PROBE, silent)
                assert time.monotonic() - start < 10

    asyncio.run(run())


@pytest.mark.parametrize(
    ("image", "machine", "is_foreign"),
    [
        ("amd64", "x86_64", False),
        ("386", "x86_64", False),
        ("386", "i686", False),
        ("arm", "armv7l", False),
        ("arm64", "x86_64", True),
        ("amd64", "i686", True),
    ],
)
def test_only_an_image_that_needs_emulation_is_told_of(
    image: str, machine: str, is_foreign: bool
) -> None:
    """One that the machine runs by itself is no matter for anybody."""
    version, info = engines.DOCKER_29
    facts = parse_facts("unix:///s", version, info | {"Architecture": machine})
    assert bool(images.notices("x", {"Architecture": image}, facts)) == is_foreign
