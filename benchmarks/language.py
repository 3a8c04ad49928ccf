"""Language servers: a look-up in a project of 200 files, once its server is warm."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import NotRun, Stage, ask, own
from benchmarks.timing import Attempt, Sample, alternately
from executor import Controller, Limits, LoopSpec
from executor.loop import Loop
from executor.sandbox.engine import Engine
from executor.served import Program, Served
from tests.security.images import build

FILES = 200
FILES_A_PACKAGE = 10
METHODS = 8
PLACES = 10
"""Places that are asked about in turn, each in a file of its own."""
ROUNDS = 200
BUDGET = 50.0
SERVERS: Mapping[str, tuple[str, ...]] = {
    "jedi": ("jedi-language-server",),
    "pyright": ("pyright-langserver", "--stdio"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name is used.

    Attributes:
        path: of the file, from the worktree's root.
        line, column: of the name's first character, counted from 1.
        definition: path of the file in which it is defined.
    """

    path: str
    line: int
    column: int
    definition: str


async def look_ups(stage: Stage) -> list[Row]:
    """`goto_definition` by the tool, beside the same request to such a server without us."""
    rows: list[Row] = []
    image = await _image(stage)
    async with AsyncExitStack() as stack:
        attempts: dict[str, Attempt] = {}
        first: dict[str, float] = {}
        for name, argv in SERVERS.items():
            worktree = stage.worktree(f"language-{name}")
            places = _fill(worktree)
            loop = await stack.enter_async_context(_loop(stage, worktree, image, argv))
            started = time.perf_counter()
            await _looked_up(loop, places[0])
            first[name] = time.perf_counter() - started
            attempts[name] = _ours(loop, places)
            attempts[f"{name}, bare"] = await stack.enter_async_context(_bare(loop, argv, places))
        found = await alternately(
            attempts,
            stage.rounds(ROUNDS),
            stage.ticks("lsp"),
            warm=2 * PLACES,
            block=PLACES,
        )
    for name in SERVERS:
        rows += _rows(name, found[name], found[f"{name}, bare"], first[name])
    return rows


def _rows(name: str, ours: Sample, bare: Sample, first: float) -> list[Row]:
    reason = f"the server alone takes {report.milliseconds(bare)} here"
    what = f"lsp goto_definition in {FILES} files, {name}, warm"
    return [
        report.within(what, ours.p50 * 1000, BUDGET, "ms", reason),
        report.compared(
            f"  beside {name} alone", ours, bare, "a program in the box that asks it over pipes"
        ),
        Row(f"  the first look-up with {name}, its start included", f"{first * 1000:.0f} ms"),
    ]


async def _image(stage: Stage) -> str:
    """The image with the servers; made when it is missing, which takes minutes."""
    async with await Engine.connect(stage.controller.settings) as engine:
        return await build.ensure(engine, "servers", lambda line: None)


@contextlib.asynccontextmanager
async def _loop(
    stage: Stage, worktree: Path, image: str, argv: tuple[str, ...]
) -> AsyncIterator[Loop]:
    """A loop whose questions about Python are answered by this server."""
    catalog = stage.controller.catalog
    python = replace(catalog.languages["python"], commands=(argv,))
    languages = {**catalog.languages, "python": python}
    spec = LoopSpec(
        worktree,
        image=image,
        limits=Limits(memory="2g"),
        exec_id=f"bench-{secrets.token_hex(4)}",
    )
    async with (
        Controller(stage.controller.settings, replace(catalog, languages=languages)) as controller,
        controller.open(spec) as loop,
    ):
        yield loop


# ─── by the tool ────────────────────────────────────────────────────────────────────


def _ours(loop: Loop, places: list[Place]) -> Attempt:
    turns = cycle(places)

    async def attempt() -> float:
        place = next(turns)
        started = time.perf_counter()
        await _looked_up(loop, place)
        return time.perf_counter() - started

    return attempt


async def _looked_up(loop: Loop, place: Place) -> None:
    """One look-up.

    Raises:
        NotRun: it failed, or found something else.
    """
    asked = {"path": place.path, "line": place.line, "column": place.column}
    result = await ask(loop, "lsp", operation="goto_definition", **asked)
    assert result.structured is not None, "look-ups have a structured result"
    locations: list[dict[str, Any]] = result.structured["locations"]
    if [location["path"] for location in locations] != [place.definition]:
        raise NotRun(f"lsp: {place} was not found: {str(result.content)[:300]}")


# ─── without us ─────────────────────────────────────────────────────────────────────

_CLIENT = """
import json, pathlib, subprocess, sys, time
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def send(**message):
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    server.stdin.write(b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
    server.stdin.flush()
def receive():
    size = 0
    while line := server.stdout.readline().strip():
        name, _, value = line.partition(b":")
        size = int(value) if name.lower() == b"content-length" else size
    return json.loads(server.stdout.read(size) or sys.exit("the server ended"))
def ask(method, params, number=[0]):
    number[0] += 1
    send(id=number[0], method=method, params=params)
    while True:
        message = receive()
        if "method" in message and "id" in message:
            items = message.get("params") or {}
            is_settings = message["method"] == "workspace/configuration"
            send(id=message["id"], result=[None for _ in items["items"]] if is_settings else None)
        elif message.get("id") == number[0] and "method" not in message:
            return message.get("result") or sys.exit(f"no answer: {message}")
root = pathlib.Path.cwd().as_uri()
folders = [{"uri": root, "name": "project"}]
capabilities = {"textDocument": {"definition": {"linkSupport": True}}}
asked = {"processId": None, "rootUri": root, "workspaceFolders": folders}
ask("initialize", {**asked, "capabilities": capabilities})
send(method="initialized", params={})
opened = set()
for line in sys.stdin:
    path, at, character = json.loads(line)
    document = {"uri": f"{root}/{path}"}
    if path not in opened:
        opened.add(path)
        about = {**document, "languageId": "python", "version": 1}
        text = pathlib.Path(path).read_text()
        send(method="textDocument/didOpen", params={"textDocument": {**about, "text": text}})
    position = {"line": at, "character": character}
    started = time.perf_counter()
    ask("textDocument/definition", {"textDocument": document, "position": position})
    print(time.perf_counter() - started, flush=True)
"""
"""Starts a server and asks it about places that it reads; the seconds of each answer."""


@contextlib.asynccontextmanager
async def _bare(loop: Loop, argv: tuple[str, ...], places: list[Place]) -> AsyncIterator[Attempt]:
    """The same questions to a server of its own in the same box, by the box's clock."""
    box: Any = loop._lane._box
    served: Served = await box.serve(Program(("python3", "-c", _CLIENT, *argv)))
    turns = cycle(places)

    async def attempt() -> float:
        place = next(turns)
        question = json.dumps([place.path, place.line - 1, place.column - 1])
        await served.stream.write(f"{question}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            piece = await served.stream.read()
            if not piece:
                said = (await served.state()).stderr.decode(errors="replace")
                raise NotRun(f"{argv[0]} alone: {said[-300:]}")
            answer += piece
        return float(answer)

    try:
        yield attempt
    finally:
        await served.end()


# ─── the project ────────────────────────────────────────────────────────────────────


def _fill(worktree: Path) -> list[Place]:
    """Packages of modules that use those before them; places of such uses."""
    names = [_module(number) for number in range(FILES)]
    for number, name in enumerate(names):
        path = worktree / f"{name}.py"
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            own(path.parent)
        path.write_text(_text(number))
        own(path)
    own(worktree / "project")
    step = FILES // PLACES
    return [
        _place(names[number], names[number - 1], number) for number in range(step - 1, FILES, step)
    ]


def _module(number: int) -> str:
    """A module's path without its ending; every package begins with one named `first`."""
    package, place = divmod(number, FILES_A_PACKAGE)
    return f"project/part{package:02}/module{place}" if place else f"project/part{package:02}/first"


def _text(number: int) -> str:
    lines = [f'"""Shapes of kind {number}."""', "", "from dataclasses import dataclass"]
    for before in range(max(number - 3, 0), number):
        module = _module(before).replace("/", ".")
        lines.append(f"from {module} import Shape{before}, area_of_{before}")
    lines += ["", "", "@dataclass", f"class Shape{number}:", "    width: int", "    height: int"]
    for method in range(METHODS):
        lines += [
            "",
            f"    def scaled_{method}(self, factor: int) -> 'Shape{number}':",
            f'        """The same, {method} wider."""',
            f"        width = self.width * factor + {method}",
            f"        return Shape{number}(width, self.height * factor)",
        ]
    lines += ["", "", f"def area_of_{number}(shape: Shape{number}) -> int:"]
    for before in range(max(number - 3, 0), number):
        lines.append(f"    other_{before} = Shape{before}(shape.width, shape.height)")
        lines.append(f"    shape.height += area_of_{before}(other_{before}.scaled_1(2))")
    return "\n".join([*lines, "    return shape.width * shape.height", ""])


def _place(name: str, before: str, number: int) -> Place:
    """The call of the function that the module before defines."""
    called = f"area_of_{number - 1}("
    lines = (line.find(called) for line in _text(number).splitlines())
    line, column = next((line, at) for line, at in enumerate(lines, 1) if at > 0)
    return Place(f"{name}.py", line, column + 1, f"{before}.py")
