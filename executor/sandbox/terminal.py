"""A person's shell in a running box: one more program in its container, beside the agent.

The engine starts the far half (`agent/terminal.py`) with no more rights than the box has:
its uid, never privileged, no terminal of the engine's own. The person's terminal never
gets into the box; what goes there are frames with what was typed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from executor.agent import frame
from executor.errors import ConfigError, EngineError, SandboxUnavailable
from executor.model import MOUNT, LoopSpec
from executor.sandbox.attach import Demultiplexer
from executor.sandbox.container import (
    ENTRYPOINT,
    LABEL_CONTROLLER,
    LABEL_LOOP,
    RUNTIME,
    Owner,
)
from executor.sandbox.engine import Engine
from executor.sandbox.environment import command_environment
from executor.sandbox.ownership import user_name

UNREADABLE_LOADER = f"{RUNTIME}/lib/loader"
"""Starts any program of the runtime; see `assembly.UNREADABLE`."""
SETTLE = 2.0
"""Seconds that an engine may take to know that a program has ended."""
_KILLED = 137
_PIECE = 1 << 16
_USER = re.compile(r"(\d+):(\d+)")
_LEAST_ID, _SHOWN_ID = 4, 12
"""Characters of a container's id that are taken for one, and that are shown."""
_FOR_NOBODY = ("PAGER", "GIT_PAGER", "EDITOR", "GIT_TERMINAL_PROMPT", "DEBIAN_FRONTEND")
"""What commands get because nobody is there to answer."""


async def find_box(engine: Engine, name: str) -> dict[str, Any]:
    """The running box that a person means, as the engine inspects it.

    Args:
        name: of the container, or its id as far as `executor ps` shows it; if there is none,
            of the loop; if there is none either, a beginning of an id.

    Raises:
        ConfigError: it may be several.
        SandboxUnavailable: there is no such box, or it does not run.
    """
    listed = await engine.list_containers({LABEL_CONTROLLER: None})
    found = meant(listed, name)
    running = [container for container in found if container.get("State") == "running"]
    if not found:
        raise SandboxUnavailable(f"there is no box {name!r}; `executor ps` lists the boxes")
    if not running:
        states = ", ".join(sorted({str(container.get("State")) for container in found}))
        raise SandboxUnavailable(
            f"the box {name!r} does not run ({states}), so nothing can be started in it; "
            "`executor ps` lists the boxes"
        )
    if len(running) > 1:
        each = ", ".join(map(_described, running))
        raise ConfigError(
            f"there are {len(running)} boxes {name!r}; give the container of one: {each}"
        )
    return await engine.inspect(running[0]["Id"])


def meant(listed: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Those boxes of a list that are meant by a name: a container's own counts first.

    A loop bears the name that its caller gave it, which may be another box's.
    """
    listed = list(listed)
    for is_meant in (_is_container, _is_loop, _begins):
        if found := [container for container in listed if is_meant(container, name)]:
            return found
    return []


def _is_container(container: Mapping[str, Any], name: str) -> bool:
    return name in _names(container) or (len(name) >= _SHOWN_ID and _begins(container, name))


def _is_loop(container: Mapping[str, Any], name: str) -> bool:
    return bool(name) and name == (container.get("Labels") or {}).get(LABEL_LOOP)


def _begins(container: Mapping[str, Any], name: str) -> bool:
    return len(name) >= _LEAST_ID and str(container.get("Id")).startswith(name)


def _names(container: Mapping[str, Any]) -> list[str]:
    return [str(one).removeprefix("/") for one in container.get("Names") or ()]


def _described(container: Mapping[str, Any]) -> str:
    loop = (container.get("Labels") or {}).get(LABEL_LOOP)
    return f"{str(container['Id'])[:_SHOWN_ID]} ({', '.join(_names(container))}, loop {loop!r})"


def shell_environment(
    spec: LoopSpec,
    owner: Owner,
    image_environment: Iterable[str],
    terminal: str,
    *,
    has_proxy: bool = False,
) -> dict[str, str]:
    """What a person's shell starts with: that of commands, but somebody is there.

    Args:
        terminal: kind of the person's terminal; empty = there is none.
        has_proxy: as `command_environment` takes it.
    """
    environment = command_environment(
        spec, user_name(owner), image_environment, has_proxy=has_proxy
    )
    for name in _FOR_NOBODY:
        if name not in spec.environment:
            environment.pop(name, None)
    if "TERM" not in spec.environment:
        environment["TERM"] = terminal or "dumb"
    return environment


def owner_in(container: Mapping[str, Any]) -> Owner:
    """Whose a box is that is known by its inspection only.

    Raises:
        SandboxUnavailable: it is no box of this package.
    """
    user = _USER.fullmatch(str((container.get("Config") or {}).get("User", "")))
    if user is None:
        raise SandboxUnavailable(
            f"The container {str(container.get('Id'))[:12]} has no numeric user, so it is no "
            "box of executor's; nothing was started in it."
        )
    return Owner(int(user[1]), int(user[2]))


def _beginning(engine: Engine, runtime: str) -> tuple[str, ...]:
    """What the far half is started by, where there is code already that would reach into it.

    A program that its own process may not read is closed to others of its uid from its first
    moment, before it could do so itself. gVisor starts none.
    """
    return () if engine.facts.is_gvisor(runtime) else (UNREADABLE_LOADER,)


class Shell:
    """A person's shell that runs. Made by `open_shell`."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        exec_id: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._engine = engine
        self._container = container
        self._exec_id = exec_id
        self._reader = reader
        self._writer = writer

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """What it prints: stream (1 or 2) and bytes, until it has ended or is lost."""
        demultiplexer = Demultiplexer()
        with contextlib.suppress(OSError):
            while data := await self._reader.read(_PIECE):
                for piece in demultiplexer.feed(data):
                    yield piece

    async def type(self, data: bytes) -> None:
        """Send what was typed."""
        for piece in frame.split(data):
            self._writer.write(frame.encode(frame.BODY, 1, piece))
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def end_input(self) -> None:
        """Nothing more will be typed; a shell on pipes ends by that."""
        self._writer.write(frame.encode(frame.BODY, 1))

    def resize(self, rows: int, columns: int) -> None:
        """The person's window has another size."""
        self._writer.write(frame.encode_json(frame.CALL, 1, {"size": [rows, columns]}))

    async def exit_code(self) -> int | None:
        """Of the shell, once its output is over; None = its box was lost."""
        code: int | None = None
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(SETTLE):
                while (said := await self._engine.inspect_exec(self._exec_id))["Running"]:
                    await asyncio.sleep(0.02)
                code = said["ExitCode"]
                while code in (None, _KILLED) and await self._is_box_running():
                    await asyncio.sleep(0.1)
                return None if code in (None, _KILLED) else code
        return code

    async def _is_box_running(self) -> bool:
        try:
            state = (await self._engine.inspect(self._container)).get("State") or {}
        except EngineError:
            return False  # it is gone, or nobody can tell
        return bool(state.get("Running"))


@contextlib.asynccontextmanager
async def open_shell(
    engine: Engine,
    container: Mapping[str, Any],
    environment: Mapping[str, str],
    size: tuple[int, int] | None,
) -> AsyncIterator[Shell]:
    """A shell in a running box; it and all that it started end with the context.

    Args:
        container: the box, as the engine inspects it.
        environment: of the shell.
        size: rows and columns of the person's window; None = the shell gets pipes.

    Raises:
        SandboxUnavailable: it is no box of this package.
        EngineError: the engine starts nothing in it.
    """
    id = str(container["Id"])
    runtime = str((container.get("HostConfig") or {}).get("Runtime") or "")
    request = {
        "Cmd": [*_beginning(engine, runtime), *ENTRYPOINT, "terminal"],
        "User": str(owner_in(container)),
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "Privileged": False,
        "Env": [],
        "WorkingDir": "/",
    }
    exec_id = await engine.create_exec(id, request)
    raw = await engine.start_exec(exec_id)
    raw.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=raw)
    try:
        settings = {"environment": dict(environment), "directory": MOUNT, "size": size}
        writer.write(frame.encode_json(frame.HELLO, 0, settings))
        yield Shell(engine, id, exec_id, reader, writer)
    finally:
        writer.transport.abort()
