"""A tiny image of this machine's own programs, and boxes made of it.

Nothing is fetched: `sh`, `cat` and the like are copied with the libraries that they
name. In the runtime volume a shell takes the agent's place, so that a test can say what
process 1 does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import platform
import re
import shutil
import socket
import subprocess
import tarfile
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from executor.model import Limits, LoopSpec
from executor.sandbox.attach import Demultiplexer
from executor.sandbox.container import Files, Image, Owner, Plan
from executor.sandbox.engine import Engine
from executor.sandbox.facts import EngineFacts, parse_facts
from executor.settings import Settings

PROGRAMS = (
    *("sh", "cat", "sleep", "id", "ls", "stat", "touch", "dd"),
    *("mkdir", "chmod", "df", "grep", "env", "rm", "getent", "tr", "head"),
)
LABEL = "executor.test"
LIFE = 60
"""Seconds within which a box must have said everything."""

FACTS = parse_facts(
    "unix:///var/run/docker.sock",
    {"Version": "20.10.24", "ApiVersion": "1.41", "MinAPIVersion": "1.12"},
    {
        "NCPU": 4,
        "Architecture": platform.machine(),
        "Runtimes": {"runc": {}, "runsc": {}},
        "DefaultRuntime": "runc",
    },
)


def facts(**changes: Any) -> EngineFacts:
    """The facts of a Docker 20.10, with these changes."""
    return dataclasses.replace(FACTS, **changes)


def plan(**changes: Any) -> Plan:
    """A plan for uid 1000 with the default limits, with these changes."""
    values: dict[str, Any] = {
        "spec": LoopSpec(worktree="/srv/work", limits=Limits()),
        "worktree": Path("/srv/work"),
        "owner": Owner(1000, 1000),
        "image": Image("sha256:1234"),
        "runtime_volume": "executor-runtime-1",
        "files": Files(*map(Path, ("/s/passwd", "/s/group", "/s/hosts", "/s/gitconfig"))),
        "labels": {"executor.controller": "c0"},
        "facts": FACTS,
    }
    return Plan(**(values | changes))


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[Engine]:
    """The engine of this machine."""
    connected = await Engine.connect(Settings.load())
    async with connected:
        yield connected


@contextlib.asynccontextmanager
async def tiny_image(engine: Engine, changes: Iterable[str] = ()) -> AsyncIterator[Image]:
    """An image with a shell, removed afterwards."""
    name = f"executor-test-{uuid.uuid4().hex[:12]}:tiny"
    await engine.import_image(name, [root_file_system()], [*changes, f"LABEL {LABEL}=tiny"])
    try:
        inspected = await engine.inspect_image(name)
        assert inspected is not None
        yield Image.of(inspected)
    finally:
        assert await engine.remove_image(name)


@contextlib.asynccontextmanager
async def runtime_volume(engine: Engine, image: Image) -> AsyncIterator[str]:
    """A volume where `bin/python3` is a shell that reads commands from its input."""
    name = f"executor-test-{uuid.uuid4().hex[:12]}"
    script = (
        "mkdir /v/bin && printf '#!/bin/sh\\nexec sh -s\\n' > /v/bin/python3 && chmod -R 755 /v"
    )
    mount = {"Type": "volume", "Source": name, "Target": "/v"}
    request = {
        "Image": image.reference,
        "User": "0:0",
        "Entrypoint": ["/bin/sh", "-c", script],
        "Cmd": [],
        "Env": ["LD_PRELOAD="],
        "HostConfig": {"NetworkMode": "none", "Mounts": [mount]},
    }
    await engine.create_volume(name, {LABEL: "tiny"})
    try:
        async with created(engine, request) as id:
            await engine.start(id)
            assert await engine.wait(id, LIFE) == 0
        yield name
    finally:
        assert await engine.remove_volume(name)


@contextlib.asynccontextmanager
async def created(engine: Engine, request: dict[str, Any]) -> AsyncIterator[str]:
    """A container of this request, removed afterwards."""
    labels = {**request.get("Labels", {}), LABEL: "tiny"}
    id = await engine.create(
        f"executor-test-{uuid.uuid4().hex[:12]}", {**request, "Labels": labels}
    )
    try:
        yield id
    finally:
        await engine.remove(id)


async def say(engine: Engine, id: str, script: str) -> str:
    """Starts a created box; what the commands print when process 1 reads them."""
    connection = await engine.attach(id)
    try:
        await engine.start(id)
        connection.settimeout(LIFE)
        return await asyncio.to_thread(_converse, connection, script)
    finally:
        connection.close()


def _converse(connection: socket.socket, script: str) -> str:
    connection.sendall(script.encode() + b"\nexit 0\n")
    connection.shutdown(socket.SHUT_WR)
    demultiplexer, output = Demultiplexer(), bytearray()
    while data := connection.recv(1 << 16):
        for _, piece in demultiplexer.feed(data):
            output += piece
    return output.decode()


# ─── the image ──────────────────────────────────────────────────────────────────────


def root_file_system() -> bytes:
    """A tar with the programs and what they are linked with."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for path in sorted(_closure()):
            tar.add(path, arcname=path.lstrip("/"))
        for name in PROGRAMS:
            tar.add(Path(_program(name)).resolve(), arcname=f"bin/{name}")
    return buffer.getvalue()


def _program(name: str) -> str:
    path = shutil.which(name, path="/usr/bin:/bin")
    assert path is not None, f"{name} is missing on this machine"
    return path


def _closure() -> set[str]:
    """The libraries of all programs, as the dynamic loader names them."""
    found: set[str] = set()
    for name in PROGRAMS:
        listed = subprocess.run(
            ["ldd", _program(name)], capture_output=True, text=True, timeout=30, check=True
        )
        found |= set(re.findall(r"(/\S+) \(0x", listed.stdout))
    return found
