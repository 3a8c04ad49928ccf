"""Group J: process 1 of the box is somebody else's program, or its own commands fight it.

Over real boxes, in which another program takes the agent's place, and over scripted ones.
"""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import os
import resource
import select
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import executor
from executor import messages
from executor.agent import frame
from executor.agent.frame import encode, encode_json
from executor.agent.service import Service
from executor.errors import AgentLost, Code, ModelRefused, ProtocolError, SandboxError, ToolError
from executor.messages import MessagesApi
from executor.model import Limits, LoopSpec
from executor.sandbox import connection as connection_module
from executor.sandbox import container
from executor.sandbox.connection import Connection
from executor.sandbox.stream import BUFFER, CROWD, AttachedStream
from tests.conftest import make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.loops import Work, open_work
from tests.messages_server import KEY, Status, in_order, serving
from tests.scripted import Deaf
from tests.security.probes import PYTHON, probe
from tests.test_pipeline import ANSWERS, result_of

SOURCES = sorted(Path(executor.__file__).parent.rglob("*.py"))
HOST = [path for path in SOURCES if "agent" not in path.parts]
SMALL = Limits(memory="256m", cpus=1, pids=64)

# ─── another program as process 1 ───────────────────────────────────────────────────

PRELUDE = """
import json, os, sys, time
sys.path.insert(0, "/opt/executor")
from agent import frame
from agent.frame import encode, encode_json
parser = frame.Parser(frame.TO_AGENT)
def say(*pieces):
    left = b"".join(pieces)
    while left:
        left = left[os.write(1, left):]
def frames():
    while True:
        data = os.read(0, 65536)
        if not data:
            os._exit(0)
        yield from parser.feed(data)
def calls():
    "Channels of calls; pings are answered meanwhile."
    for kind, channel, payload in frames():
        if kind == frame.PING:
            say(encode(frame.PONG, 0, payload))
        elif kind == frame.CALL:
            yield channel, json.loads(payload)
RAN = {"exit_code": 0, "signal": None, "timed_out": False, "oom": False, "limit": None,
       "cwd": "/workspace", "notes": [], "shell": "sh", "interpreter": None}
for name in ("stdout", "stderr"):
    RAN[name] = {"total": 0, "head": 0, "tail": 0}
hash = open("/opt/executor/hash").read().strip()
say(encode_json(frame.READY, 0, {"hash": hash, "confined": True}))
"""


@contextmanager
def agent_of(source: str) -> Iterator[None]:
    """Boxes that are opened meanwhile have this program as their process 1."""
    command = (f"{container.RUNTIME}/bin/python3", *("-I", "-S", "-B", "-c", PRELUDE + source))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "ENTRYPOINT", command)
        yield


def open_on(thread: LoopThread, directory: Path, runtime: str, name: str) -> Box:
    """A box of its own; open until the thread ends."""
    root = make_worktree(directory / name)
    spec = LoopSpec(worktree=root, limits=SMALL, exec_id=name, runtime=runtime)
    sandbox = thread.enter(open_docker_box(spec, directory / f"state-{name}"))
    return Box(thread, sandbox, root, "docker")


HOSTILE: dict[str, tuple[str, type[SandboxError], str]] = {
    "a length over the cap": (
        "next(calls()); say(frame.HEADER.pack(frame.REPLY, 1, 0xFFFFFFFF), bytes(1 << 20))",
        ProtocolError,
        "at most 1048576",
    ),
    "no frame": ("next(calls()); say(b'HTTP/1.1 302 Found\\r\\n\\r\\n')", ProtocolError, "kind 72"),
    "another call's answer": (
        "channel, _ = next(calls()); say(encode_json(frame.REPLY, channel + 1, {'ok': RAN}))",
        ProtocolError,
        "not waiting",
    ),
    "an answer twice": (
        "channel, _ = next(calls()); say(encode_json(frame.REPLY, channel, {'ok': RAN}) * 2);"
        "time.sleep(60)",
        ProtocolError,
        "not waiting",
    ),
    "deep JSON": (
        "channel, _ = next(calls()); say(encode(frame.REPLY, channel, b'[' * 900_000))",
        ProtocolError,
        "unreadable JSON",
    ),
    "a flood of pongs": (
        "next(calls())\nwhile True: say(encode(frame.PONG, 0, b'x' * 8) * 5000)",
        ProtocolError,
        "ping that was not sent",
    ),
    "a flood of data": (
        "channel, _ = next(calls())\nwhile True: say(encode(frame.DATA, channel, bytes(1 << 20)))",
        ProtocolError,
        "more than were asked for",
    ),
    "a flood of tiny data": (
        "channel, _ = next(calls())\nwhile True: say(encode(frame.DATA, channel, b'x') * 5000)",
        ProtocolError,
        "more than were asked for",
    ),
    "a flood of live output": (
        "channel, _ = next(calls())\n"
        "while True: say(encode(frame.STDOUT, channel, b'x' * 1000) * 100)",
        ProtocolError,
        "not asked for",
    ),
    "a flood beside the stream": (
        "next(calls())\nwhile True: os.write(2, b'x' * 65536)",
        ProtocolError,
        "on stderr",
    ),
    "giving up": (
        "next(calls()); say(encode_json(frame.FATAL, 0, {'reason': '\\x1b]0;%s{0}\\n\\x07'}));"
        "time.sleep(60)",
        ProtocolError,
        r"\\x1b",
    ),
    "an end": ("next(calls()); os._exit(0)", AgentLost, "ended"),
    "silence": ("\nwhile True: time.sleep(60)", AgentLost, "did not answer"),
    "a byte at a time": (
        "channel, _ = next(calls())\n"
        "for byte in encode(frame.REPLY, channel, b' ' * 9999): say(bytes([byte])); time.sleep(.2)",
        AgentLost,
        "did not answer",
    ),
    "pings answered and nothing else": (
        "list(calls())",
        AgentLost,
        "was not ended by the agent",
    ),
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch over a box waits for three seconds."""
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 0.5)
    monkeypatch.setattr(connection_module, "PING_PATIENCE", 3.0)
    monkeypatch.setattr(connection_module, "CANCEL_MARGIN", 4.0)


@pytest.mark.statement("J1", "J2", "J5")
@pytest.mark.usefixtures("impatient")
def test_a_hostile_process_1_costs_its_box_alone(runtime: str, tmp_path: Path) -> None:
    """Each ends in its typed error within seconds; the honest box beside it goes on."""
    with LoopThread() as thread:
        beside = open_on(thread, tmp_path, runtime, "honest")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number, (name, (source, kind, words)) in enumerate(HOSTILE.items()):
            with agent_of(source):
                box = open_on(thread, tmp_path, runtime, f"hostile-{number}")
            started = time.monotonic()
            with pytest.raises(SandboxError) as caught:
                for _ in range(2):  # the first of two answers may have been a good one
                    box.run("true", 1)
            assert type(caught.value) is kind, (name, caught.value)
            assert words.replace("\\\\", "\\") in str(caught.value), name
            assert "\x1b" not in str(caught.value)
            assert time.monotonic() - started < 30, name
            assert beside.run("echo here").out == b"here\n", name
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 160 << 10, f"{grown} KiB"


EARLY = {
    "an answer": "say(encode_json(frame.REPLY, 1, {'ok': RAN}))",
    "data": "say(encode(frame.DATA, 1, b'x'))",
    "a pong": "say(encode(frame.PONG, 0, b''))",
    "ready twice": "say(encode_json(frame.READY, 0, {'hash': ''}))",
}


@pytest.mark.statement("J5")
@pytest.mark.parametrize("what", EARLY)
def test_what_is_said_before_it_was_asked_ends_the_box(
    runtime: str, tmp_path: Path, what: str
) -> None:
    """The numbers of calls can be guessed, and an answer that comes first is none."""
    with LoopThread() as thread:
        with agent_of(EARLY[what] + "\ntime.sleep(60)"):
            with pytest.raises(SandboxError):
                box = open_on(thread, tmp_path, runtime, "early")
                until = time.monotonic() + 20
                while box.sandbox.error is None and time.monotonic() < until:
                    time.sleep(0.01)
                raise box.sandbox.error or AssertionError("the box lives")


# ─── floods and other boxes ─────────────────────────────────────────────────────────


@pytest.mark.statement("J5")
def test_a_read_of_tiny_frames_is_made_smaller() -> None:
    """One turn of the loop takes no more than some hundred frames of one box."""

    async def run() -> tuple[list[int], int]:
        connection = Connection(None, lambda error: connection.fail_waiting(error))  # noqa: PLW0108 (it is not there yet)
        connection.connected(Deaf())
        connection.received(encode_json(frame.READY, 0, {"hash": ""}))
        stream = AttachedStream(connection)
        call = asyncio.ensure_future(connection.request("run", {}, on_output=lambda *_: None))
        await asyncio.sleep(0)
        sizes = []

        def feed(payload: bytes) -> None:
            inner = encode(frame.STDOUT, 1, payload)
            view = stream.get_buffer(-1)
            whole = (len(view) - 8) // len(inner) * inner
            view[: len(whole) + 8] = b"\x01\0\0\0" + len(whole).to_bytes(4, "big") + whole
            sizes.append(len(whole) // len(inner))
            stream.buffer_updated(len(whole) + 8)
            assert connection.error is None

        for _ in range(12):
            feed(b"x")
        for _ in range(12):
            feed(bytes(2000))
        size = len(stream.get_buffer(-1))
        connection.close()
        await asyncio.gather(call, return_exceptions=True)
        return sizes, size

    sizes, size = asyncio.run(run())
    assert sizes[0] > 6000
    assert max(sizes[5:12]) <= 2 * CROWD
    assert size == BUFFER


FLOODS = {
    "tiny live output": (
        "channel, _ = next(calls())\n"
        "os.set_blocking(0, False)\n"
        "credit = 1 << 20\n"
        "while True:\n"
        "    if credit >= 5000: say(encode(frame.STDOUT, channel, b'x') * 5000); credit -= 5000\n"
        "    try: data = os.read(0, 65536)\n"
        "    except BlockingIOError: data = None\n"
        "    if data == b'': os._exit(0)\n"
        "    for kind, at, payload in parser.feed(data or b''):\n"
        "        if kind == frame.PING: say(encode(frame.PONG, 0, payload))\n"
        "        if kind == frame.CREDIT: credit += json.loads(payload)['bytes']\n"
    ),
}


@pytest.mark.statement("J5", runsc="what the host does with a flood is the same whatever sent it")
def test_a_box_that_floods_leaves_the_others_their_turn(runtime: str, tmp_path: Path) -> None:
    """A hundred calls beside a flood of one-byte frames are answered within tens of ms."""
    with LoopThread() as thread:
        beside = open_on(thread, tmp_path, runtime, "beside")
        with agent_of(FLOODS["tiny live output"]):
            flooding = open_on(thread, tmp_path, runtime, "flooding")
        calm = statistics.quantiles(latencies(beside), n=20)[-1]
        seen = 0

        def count(channel: str, data: bytes) -> None:
            nonlocal seen
            seen += 1

        flood = flooding.start("yes", 60, on_output=count)
        rough = statistics.quantiles(latencies(beside), n=20)[-1]
        assert seen > 10_000 and not flood.done()
        print(f"p95 of a call: {calm * 1000:.1f} ms in calm, {rough * 1000:.1f} ms beside a flood")
        assert rough < max(0.1, 20 * calm)


def latencies(box: Box) -> list[float]:
    """Seconds of each of a hundred calls."""
    found = []
    for _ in range(100):
        started = time.perf_counter()
        box.request("stat", {"path": "."})
        found.append(time.perf_counter() - started)
    return found


# ─── J3, J6: what the sources do not contain ────────────────────────────────────────

EVALUATING = {"pickle", "marshal", "shelve", "dill", "yaml", "runpy", "code", "pty"}
CALLED = {"eval", "exec", "compile", "__import__", "globals", "vars"}
APART = "urllib.parse"
SPEAKING = {
    *("http", "urllib", "httpx", "httpcore", "h11", "aiohttp", "websockets", "requests"),
    *("ftplib", "xmlrpc"),
}


def modules(tree: ast.AST) -> Iterator[str]:
    """The module of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def imports(tree: ast.AST) -> Iterator[str]:
    """The first word of every import."""
    yield from (name.split(".")[0] for name in modules(tree))


def speaks(tree: ast.AST) -> bool:
    """Whether it imports a client; what takes addresses apart is none."""
    return any(name.split(".")[0] in SPEAKING for name in modules(tree) if name != APART)


def called(tree: ast.AST) -> Iterator[str]:
    """The bare names that are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


@pytest.mark.statement("J3")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_source_evaluates_data(path: Path) -> None:
    """Neither side imports what turns data into objects or code, or calls it."""
    tree = ast.parse(path.read_text("utf-8"))
    assert not set(imports(tree)) & EVALUATING
    assert not set(called(tree)) & CALLED
    loaders = ("import_module", "SourceFileLoader", "spec_from_file_location")
    assert not [word for word in loaders if word in ast.unparse(tree)]


@pytest.mark.statement("J6")
def test_nothing_but_the_engines_client_speaks_http() -> None:
    """A box is spoken to in frames over a stream: no redirect, cookie or encoding exists.

    One module more asks the model of agents; what it asks is in the tests below. The broker, the
    tools of the web and the MCP servers of a URL speak to the world, and no module of the sandbox
    knows of them.
    """
    speakers = {path for path in SOURCES if speaks(ast.parse(path.read_text()))}
    to_the_world = {path for path in speakers if path.parent.name == "egress"}
    assert {path.stem for path in speakers - to_the_world} == {
        *("engine", "messages"),
        *("fetching", "search"),
        "remote",
    }
    words = ("urlopen", "HTTPConnection", "Session(", "allow_redirects")
    for path in HOST:
        if path.parent.name == "sandbox":
            assert not [
                word
                for word in ("executor.egress", "fetching", "executor.foreign")
                if word in path.read_text()
            ]
    for name in ("connection", "stream", "replies", "box", "channels", "control", "attach"):
        text = next(
            path for path in HOST if path.parts[-2:] == ("sandbox", f"{name}.py")
        ).read_text()
        assert not [word for word in words if word in text]


@pytest.mark.statement("J6")
def test_the_model_has_one_address() -> None:
    """It is the settings', which are read before there is a box; one place makes the request."""
    tree = ast.parse(Path(messages.__file__).read_text())
    used = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    requests = [text for text in used if ".stream(" in text and text.startswith("client.")]
    assert requests == ["client.stream('POST', url, content=body)"]
    (url,) = [
        ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "url"
        and "base_url" in ast.unparse(node.value)
    ]
    assert url == "f\"{self.base_url.rstrip('/')}/v1/messages\""
    (client,) = [text for text in used if text.startswith("httpx.AsyncClient(")]
    assert "follow_redirects=False" in client and "trust_env=False" in client
    text = {path.stem: path.read_text() for path in HOST}
    assert {name for name in text if "MessagesApi(" in text[name]} == {"controller"}
    assert {name for name in text if "model_url" in text[name]} == {"controller", "settings"}


@pytest.mark.statement("J6")
def test_nothing_that_is_said_is_an_address(loop_thread: LoopThread, heard: Heard) -> None:
    """Whatever a box or the model's server says, the host connects to the model alone."""
    away = "http://canary-of-the-box.invalid/canary-of-the-box"
    answers = [
        Status(429, headers={"location": away, "retry-after": "0", "refresh": f"0; {away}"}),
        Status(503, away, {"location": away, "alt-svc": 'h2="canary-of-the-box.invalid:443"'}),
        Status(307, away, {"location": away, "set-cookie": f"a={away}"}),
    ]
    server = loop_thread.enter(serving(in_order(*answers)))
    api = MessagesApi(KEY, server.url, first_wait=0.001)
    said = [{"role": "user", "content": [{"type": "text", "text": away}], "url": away}]
    heard.events.clear()
    heard.is_listening = True
    try:
        asked = api.create(said, system=away, tools=[{"name": away}], model=away, max_tokens=1)
        with pytest.raises(ModelRefused):
            loop_thread.run(asked)
    finally:
        heard.is_listening = False
    assert [request.path for request in server.requests] == ["/v1/messages"] * 3
    assert {request.headers["host"] for request in server.requests} == {server.url[7:]}
    assert heard.events == []


# ─── J4: nothing that is said is a name of something on the host ────────────────────

CANARY = "/canary-of-the-box/../etc/passwd"
PAYLOADS = (
    CANARY,
    "cos\nsystem\n(S'touch /tmp/canary-of-the-box'\ntR.",
    "!!python/object/apply:os.system ['touch /tmp/canary-of-the-box']",
    "__import__('os').system('touch /tmp/canary-of-the-box')",
    "{0.__class__.__init__.__globals__} %(canary-of-the-box)s ${canary-of-the-box}",
    "file:///canary-of-the-box http://169.254.169.254/canary-of-the-box",
    "-canary-of-the-box; touch /tmp/canary-of-the-box #\x1b]52;c;AAAA\x07\r\n",
)
HARMLESS = ("object.", "marshal.", "gc.", "code.__new__")


class Heard:
    """What the interpreter did on the host while a call was answered."""

    def __init__(self) -> None:
        self.is_listening = False
        self.events: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_listening and not event.startswith(HARMLESS):
            text = repr(arguments)
            if "canary-of-the-box" in text:
                self.events.append(f"{event}{text[:200]}")


@pytest.fixture(scope="module")
def heard() -> Heard:
    """One for all: an audit hook can't be taken back."""
    return Heard()


def mutated(value: Any, payload: str) -> Iterator[Any]:
    """The value with each of its texts, one at a time, and then all, replaced."""
    if isinstance(value, dict):
        texts = [name for name, part in value.items() if isinstance(part, str | list | type(None))]
        for name in texts:
            new = [payload] if isinstance(value[name], list) else payload
            yield {**value, name: new}
        yield {**value, **dict.fromkeys(texts, payload)}
        yield {**value, "path": payload, "container": payload, "image": payload, "pid": payload}


@pytest.mark.statement("J3", "J4")
@pytest.mark.parametrize("name", ANSWERS)
def test_what_an_answer_says_names_nothing_on_the_host(name: str, heard: Heard) -> None:
    """No open, import, process or connection of the host has a word of an answer in it."""
    tool, given, value, data = ANSWERS[name]
    heard.events.clear()
    for payload in PAYLOADS:
        for lie in (value, *mutated(value, payload)):
            for bulk in (data, payload.encode() + b"\0"):
                heard.is_listening = True
                try:
                    result = asyncio.run(result_of(tool, given, lie, bulk))
                finally:
                    heard.is_listening = False
                json.loads(json.dumps({"content": result.content, "more": result.structured}))
    assert heard.events == []
    assert not Path("/tmp/canary-of-the-box").exists()


@pytest.mark.statement("J2")
@pytest.mark.parametrize("name", ANSWERS)
def test_a_field_that_no_answer_has_ends_the_box(name: str) -> None:
    """Fields are a closed set for each operation; one more is none of our agents."""
    tool, given, value, data = ANSWERS[name]
    result = asyncio.run(result_of(tool, given, {**value, "container": CANARY}, data))
    assert result.code is Code.PROTOCOL_ERROR


REMARKS: list[tuple[str, str, Any]] = [
    ("command", "notes", ["x" * 20_000]),
    ("command", "notes", [""] * 20_000),
    ("command", "shell", "x" * 20_000),
    ("code", "interpreter", "x" * 20_000),
    ("grep", "warnings", ["x" * 300_000]),
    ("grep", "warnings", [""] * 300_000),
    ("list", "unreadable", ["x"] * 200_000),
    ("glob", "note", "x" * 300_000),
    ("read", "hash", "x" * 20_000),
    ("read", "modified", "x" * 20_000),
]


@pytest.mark.statement("I8", "J2")
@pytest.mark.parametrize(("name", "field", "flood"), REMARKS)
def test_remarks_are_bounded(name: str, field: str, flood: Any) -> None:
    """What stands beside the text, and is not cut with it, is no way to flood the model."""
    tool, given, value, data = ANSWERS[name]
    assert field in value
    result = asyncio.run(result_of(tool, given, {**value, field: flood}, data))
    assert result.code is Code.PROTOCOL_ERROR
    few = flood[:1] if len(flood) > 1 else [flood[0][:1000]]
    result = asyncio.run(result_of(tool, given, {**value, field: few}, data))
    assert result.code is not Code.PROTOCOL_ERROR


@pytest.mark.statement("J4")
def test_the_audit_hears_what_it_is_there_for(heard: Heard) -> None:
    """A file that is opened by such a name is heard."""
    heard.events.clear()
    heard.is_listening = True
    try:
        with pytest.raises(OSError):
            open("/canary-of-the-box")  # noqa: SIM115 (it does not open)
    finally:
        heard.is_listening = False
    assert heard.events[0].startswith("open")


# ─── J10: what is said is text ──────────────────────────────────────────────────────

RUDE = (
    "\x1b[2J\x1b]0;owned\x07 %s %n %(name)s {0} {name} ${x}\r\nERROR root: forged\u2028line\x9b31m"
)


def rude_error(message: str) -> ToolError:
    """The error of a call that is answered by this message."""

    async def run() -> ToolError:
        connection = Connection(None, lambda error: connection.fail_waiting(error))  # noqa: PLW0108 (it is not there yet)
        connection.connected(Deaf())
        call = asyncio.ensure_future(connection.request("stat", {}))
        await asyncio.sleep(0)
        error = {"code": "TIMEOUT", "message": message, "details": {"text": message}}
        connection.received(encode_json(frame.REPLY, 1, {"error": error}))
        with pytest.raises(ToolError) as caught:
            await call
        connection.close()
        return caught.value

    return asyncio.run(run())


@pytest.mark.statement("J10")
def test_an_error_of_the_agent_is_data_and_capped() -> None:
    """It is neither a template nor endless; as JSON it is one line."""
    assert str(rude_error(RUDE)) == RUDE
    assert len(str(rude_error(RUDE * 1000))) == connection_module.MAX_MESSAGE
    assert "\n" not in json.dumps(str(rude_error(RUDE)))


LEVELS = ("debug", "info", "warning", "error", "exception", "critical")


@pytest.mark.statement("J10")
@pytest.mark.parametrize("path", HOST, ids=lambda path: path.stem)
def test_what_is_logged_is_an_argument_never_the_template(path: Path) -> None:
    """Every call of a logger has a constant text, so no text of a box is formatted."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        is_logger = ast.unparse(node.func.value) in ("log", "logger", "logging", "self.log")
        if is_logger and node.func.attr in LEVELS:
            assert isinstance(node.args[0], ast.Constant), ast.unparse(node)


# ─── J7, J8: the agent and its commands ─────────────────────────────────────────────

CLOSED = """
memory = (ctypes.c_ulong * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
at = ctypes.addressof(memory)
tell({
    "mem": attempt(os.open, "/proc/1/mem", os.O_RDWR),
    "ptrace": syscall(117 if IS_ARM else 101, 16, 1, 0, 0),
    "seize": syscall(117 if IS_ARM else 101, 0x4206, 1, 0, 0),
    "readv": syscall(270 if IS_ARM else 310, 1, at, 1, at, 1, 0),
    "writev": syscall(271 if IS_ARM else 311, 1, at, 1, at, 1, 0),
})
"""
STREAM = """
pidfd = attempt(os.pidfd_open, 1)
tell({
    "fd": attempt(os.listdir, "/proc/1/fd"),
    "environ": attempt(open, "/proc/1/environ"),
    "open": [attempt(os.open, f"/proc/1/fd/{n}", os.O_RDWR) for n in range(32)],
    "steal": [syscall(438, pidfd, n, 0) if isinstance(pidfd, int) else pidfd for n in range(32)],
})
"""
OWN = """
fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
tell(sorted({os.readlink(fd) for fd in fds if os.path.lexists(fd)} - {"/dev/null"}))
"""
REFUSED = {"EACCES", "EPERM", "ENOENT", "ENOSYS", "ESRCH", "EBADF", "ENXIO"}
GVISOR_FD = (
    "gVisor shows /proc/1/fd to the same uid, dumpable or not: a command can write on the stream. "
    "That is a hostile agent, which costs its own box alone (J1 to J6, tested over runsc)"
)


@pytest.mark.statement("J8")
def test_no_command_reaches_the_memory_of_the_agent(hostile: Box) -> None:
    """It is neither read nor written nor traced, by any way that the kernel has."""
    for name, value in probe(hostile, CLOSED).items():
        assert value in REFUSED, (name, value)


@pytest.mark.statement("J8")
def test_no_command_inherits_the_stream(hostile: Box) -> None:
    """What a command starts with are pipes of its own."""
    assert all(link.startswith(("pipe:", "/proc/")) for link in probe(hostile, OWN))


@pytest.mark.statement("J8", runsc=GVISOR_FD)
def test_no_command_can_open_the_stream(hostile: Box) -> None:
    """The agent's descriptors are neither listed, opened nor stolen."""
    for name, value in probe(hostile, STREAM).items():
        assert set(value if isinstance(value, list) else [value]) <= REFUSED, (name, value)


FORGED = (
    "import glob, os\n"
    "for path in glob.glob('/proc/1/fd/*'):\n"
    "    try:\n"
    "        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)\n"
    "        os.write(fd, b'\\xff' * 64)\n"
    "    except OSError: pass\n"
    "import time; time.sleep(2); print('unharmed')\n"
)


@pytest.mark.statement("J8")
def test_noise_on_the_stream_costs_its_box_at_most(work: Callable[[], Work]) -> None:
    """Where the stream can be opened, noise on it ends the box; elsewhere nothing happens."""
    loop = work()
    result = loop.call("run_code", language="python", code=FORGED)
    if result.code is None:
        assert str(result.content).startswith("unharmed")
    else:
        assert result.code in (Code.PROTOCOL_ERROR, Code.SANDBOX_LOST), result
    assert str(loop.call("run_command", command="echo next").content).startswith("next")


REPLACED = """
import glob
places = ["/opt/executor/agent/__main__.py", "/opt/executor/bin/python3", "/opt/executor/hash",
          *glob.glob("/opt/executor/agent/__pycache__/*"), *glob.glob("/opt/executor/lib/ld-*")]
def replace(path):
    return [attempt(os.open, path, os.O_WRONLY), attempt(os.unlink, path),
            attempt(os.rename, path, path + "x"), attempt(os.chmod, path, 0o777),
            attempt(os.symlink, "/tmp/x", path + ".new"), attempt(os.truncate, path, 0)]
tell({path: replace(path) for path in places})
"""


@pytest.mark.statement("J7")
def test_the_agents_files_can_not_be_replaced(hostile: Box) -> None:
    """The runtime is a read-only mount: EROFS, and nothing else, whoever owns the files."""
    found = probe(hostile, REPLACED)
    assert len(found) > 5
    for path, errors in found.items():
        assert set(errors) <= {"EROFS", "EACCES", "EPERM"}, (path, errors)
        assert "EROFS" in errors, (path, errors)


@pytest.mark.statement("J7")
def test_no_variable_or_file_of_a_command_gets_into_the_agent(hostile: Box) -> None:
    """LD_PRELOAD, PYTHON* and start-up files are the command's own affair."""
    run = hostile.run
    run('printf \'open("/workspace/loaded", "w")\' > sitecustomize.py; cp sitecustomize.py ~/x.pth')
    more = {"LD_PRELOAD": "/workspace/x.so", "PYTHONPATH": "/workspace", "PYTHONSTARTUP": "x"}
    assert run("true", environment=more).code == 0
    (hostile.root / "loaded").unlink(missing_ok=True)
    assert hostile.request("grep", {"pattern": "loaded", "path": "."}).value["matches"] >= 0
    assert run("echo still").out == b"still\n"
    assert not (hostile.root / "loaded").exists()


@pytest.fixture
def work(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Work]]:
    """A loop over the runtime, whose watch is less patient."""
    monkeypatch.setattr(connection_module, "PING_INTERVAL", 0.5)
    monkeypatch.setattr(connection_module, "PING_PATIENCE", 4.0)
    limits = Limits(memory="512m", cpus=1, pids=128)
    with open_work("docker", tmp_path, limits, lambda spec: replace(spec, runtime=runtime)) as one:
        yield lambda: one


HEADLESS = """
import ctypes, os, threading, time
def go():
    while True:
        open("/workspace/beat", "a").write(".")
        time.sleep(0.02)
threading.Thread(target=go).start()
while True:
    time.sleep(0.05)
    ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
"""


@pytest.mark.statement("I10", runsc="gVisor lists such a process as dead, and no thread of it")
@pytest.mark.parametrize("how", ["python3 headless.py", "setsid python3 headless.py & sleep 60"])
def test_a_process_whose_first_thread_has_ended_ends_with_its_call(hostile: Box, how: str) -> None:
    """It is listed as dead while its other threads go on; the time-out ends it all the same."""
    (hostile.root / "headless.py").write_text(HEADLESS)
    beat = hostile.root / "beat"
    beat.unlink(missing_ok=True)
    value = hostile.run(how, 3).value
    assert (value["timed_out"], value["notes"]) == (True, [])
    hostile.run("true")
    size = beat.stat().st_size
    hostile.run("sleep 0.5")
    assert beat.stat().st_size == size > 0


CROWD_OF_MEGABYTES = r"""
import ctypes, os, signal, sys, time
if len(sys.argv) == 1:
    large = {f"A{number}": "x" * 100_000 for number in range(10)}
    os.execve(sys.executable, ["python3", sys.argv[0], "again"], large)
fields = open("/proc/self/stat").read().rpartition(") ")[2].split()
ctypes.memset(int(fields[47]), 0, int(fields[48]) - int(fields[47]))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(80):
    if not os.fork():
        os.setsid()
        time.sleep(60)
        os._exit(0)
open("/workspace/crowd", "w").write("there")
time.sleep(60)
"""


@pytest.mark.statement("I16", runsc="gVisor does not tell where an environment lies")
def test_a_crowd_with_large_environments_ends_with_its_call(hostile: Box) -> None:
    """What the agent reads of a process is little, so that it finds the call's in time."""
    (hostile.root / "crowd.py").write_text(CROWD_OF_MEGABYTES)
    value = hostile.run("python3 crowd.py; sleep 60", 12, grace=0.2).value
    assert (value["timed_out"], value["notes"]) == (True, [])
    assert (hostile.root / "crowd").read_text() == "there"
    assert hostile.run("cat /proc/[0-9]*/cmdline | grep -c '[c]rowd.py'", 20).out == b"0\n"


FROZEN = """
import os, sys
sys.path.insert(0, "/opt/executor")
from agent import processes
processes.IS_INIT = True
os.mkfifo("/workspace/gate")
pid = os.fork()
if not pid:  # waits in the kernel until somebody opens the other end
    action = (os.POSIX_SPAWN_OPEN, 0, "/workspace/gate", os.O_RDONLY, 0)
    os._exit(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=[action]), 0)[1])
while processes.scan()[pid].state != "D":
    pass
look, stopped = processes.freeze()
processes.thaw(look, stopped)
os.close(os.open("/workspace/gate", os.O_WRONLY))
print(pid in stopped, os.waitpid(pid, 0)[1])
"""


@pytest.mark.statement("I16", runsc="gVisor shows no state D")
def test_what_waits_in_the_kernel_during_a_freeze_goes_on(hostile: Box) -> None:
    """A process is stopped with all others, and unlike a stopped one it is woken up again."""
    ran = hostile.run(None, 20, argv=PYTHON, script=".py", body=FROZEN.encode())
    assert ran.out == b"False 0\n", (ran.value, ran.out, ran.err)


@pytest.mark.statement("J7")
def test_no_file_of_home_hides_the_worktree(hostile: Box) -> None:
    """The agent's own programs heed no configuration that a command has left in its HOME."""
    hostile.run("mkdir -p ~/.config/git && echo '*' > ~/.config/git/ignore; echo '*' > ~/all")
    hostile.run("printf '[core]\\nexcludesFile = ~/all\\n' > ~/.gitconfig; echo x > seen")
    found = hostile.request("grep", {"pattern": "x", "path": "."}).value
    listed = hostile.request("glob", {"pattern": "se*n", "path": "."})
    hostile.run("rm -rf ~/.config ~/.gitconfig ~/all")
    assert (found["matches"] > 0, found["ignored"]) == (True, 0)
    assert (listed.data, listed.value["ignored"]) == (b"seen", 0)


@pytest.mark.statement("I13")
def test_the_agent_needs_no_watch_of_the_kernels(tmp_path: Path) -> None:
    """They are counted by uid over the machine, and another box may hold them all: it polls.

    A regular file stands for that: the kernel refuses a watch over one.
    """
    file = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    source, sink = os.pipe()
    service = Service(source, sink)
    seen: list[str] = []
    service.watch(file, select.EPOLLIN, lambda events: seen.append("file"))
    service.watch(source, select.EPOLLIN, lambda events: seen.append("pipe"))
    try:
        with pytest.raises(PermissionError):
            service.poll.register(file, select.EPOLLIN)
        service.step()
        assert seen == ["file"]
        os.write(sink, b"x")
        service.step()
        assert sorted(seen) == ["file", "file", "pipe"]
        service.forget(file)
        service.step()
        assert seen.count("file") == 2
    finally:
        for descriptor in (file, source, sink):
            os.close(descriptor)


STORMS = {
    "STOP to all": "os.kill(-1, signal.SIGSTOP)",
    "CONT to all": "os.kill(-1, signal.SIGCONT)",
    "INT to process 1": "os.kill(1, signal.SIGINT)",
    "KILL to process 1": "os.kill(1, signal.SIGKILL)",
    "STOP to process 1": "os.kill(1, signal.SIGSTOP)",
    "KILL to all": "os.kill(-1, signal.SIGKILL)",
    "TERM to all": "os.kill(-1, signal.SIGTERM)",
    "every signal to process 1": "[os.kill(1, n) for n in range(1, 65) if n not in (32, 33)]",
    "CHLD to process 1": "os.kill(1, signal.SIGCHLD)",
}
STORM = """
import os, signal, sys
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_IGN)
while True:
    try:
        {}
    except OSError:
        pass
"""


@pytest.mark.statement("J7", "J11")
@pytest.mark.parametrize("storm", STORMS)
def test_a_storm_of_signals_is_answered_and_the_next_call_works(
    work: Callable[[], Work], storm: str
) -> None:
    """The answer comes within the deadline and is no success; the next call has a box."""
    loop = work()
    loop.write("storm.py", STORM.format(STORMS[storm]))
    started = time.monotonic()
    result = loop.call("run_command", command="python3 storm.py; echo survived", timeout_ms=2000)
    seconds = time.monotonic() - started
    assert seconds < 25
    if result.code is None or result.code is Code.EXECUTION_ERROR:
        # The storm has killed itself: its shell goes on, or was killed as well.
        assert storm in ("KILL to all", "TERM to all"), result
    else:
        assert result.code in (Code.TIMEOUT, Code.SANDBOX_LOST), result
    if result.code is Code.SANDBOX_LOST:
        words = ("stopped, starved or ended by a command", "stream", "was not ended")
        assert any(word in str(result.content) for word in words), result.content
    again = loop.call("run_command", command="echo next")
    assert str(again.content).startswith("next"), again
    assert (again.code, again.is_error) == (None, False)


@pytest.mark.statement("J7")
def test_a_killed_agent_is_a_lost_box_and_no_success(work: Callable[[], Work]) -> None:
    """Where process 1 can be killed, the call that did it is SANDBOX_LOST."""
    loop = work()
    result = loop.call("run_command", command="kill -9 1; sleep 1; echo done", timeout_ms=20000)
    if result.code is None:  # runc: the kernel lets nobody kill process 1 from inside
        assert str(result.content).startswith("done")
        assert len(loop.opened) == 1
    else:
        assert result.code is Code.SANDBOX_LOST
        assert "done" not in str(result.content)
    assert str(loop.call("run_command", command="echo next").content).startswith("next")


# ─── J9: the engine's word ──────────────────────────────────────────────────────────

GREEDY = """
child = 0
for channel, given in calls():
    child = os.fork()
    if not child:
        kept = []
        while True: kept.append(bytearray(b'x' * (16 << 20)))
    os.waitpid(child, 0)
    say(encode_json(frame.REPLY, channel, {'ok': RAN}))
"""


@pytest.mark.statement("J9", runsc="gVisor kills the whole box for memory, which is a loss")
def test_an_agent_that_hides_a_kill_for_memory_is_found_out(
    runtime: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says exit code 0; at the end the engine says that memory ran out, and that is told."""
    with caplog.at_level(logging.WARNING):
        with LoopThread() as thread:
            with agent_of(GREEDY):
                box = open_on(thread, tmp_path, runtime, "greedy")
            assert box.run("true", 30).code == 0
            assert said_of_boxes(caplog) == []
    (line,) = said_of_boxes(caplog)
    assert line.startswith("memory ran out in the box executor-greedy-")


def said_of_boxes(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about boxes, and nothing of what other tests left behind."""
    return [record.getMessage() for record in caplog.records if record.name.endswith(".box")]


@pytest.mark.statement("J9")
def test_no_success_comes_out_of_a_box_that_was_killed(runtime: str, tmp_path: Path) -> None:
    """Process 1 that runs out of memory is a loss, with the engine's cause."""
    source = "next(calls())\nkept = []\nwhile True: kept.append(bytearray(b'x' * (16 << 20)))"
    with LoopThread() as thread:
        with agent_of(source):
            box = open_on(thread, tmp_path, runtime, "dying")
        with pytest.raises(AgentLost) as caught:
            box.run("true", 40)
        assert "memory" in str(caught.value) or "ended with code" in str(caught.value)
        with pytest.raises(AgentLost):
            box.run("true", 5)


LIES: dict[str, dict[str, Any]] = {
    "exit 0 and out of memory": {"oom": True, "limit": "memory"},
    "exit 0 and a limit": {"limit": "pids"},
    "out of memory without a limit": {"exit_code": 1, "oom": True},
    "exit 0 and a signal": {"signal": "SIGKILL"},
    "exit code 256": {"exit_code": 256},
    "an exit code that is true": {"exit_code": True},
    "a signal of many lines": {"exit_code": None, "signal": "SIGKILL\nSuccess"},
    "a directory that is none": {"cwd": "workspace"},
    "an endless directory": {"cwd": "/" + "x" * (1 << 17)},
    "an unknown limit": {"exit_code": 1, "limit": "moon"},
}


@pytest.mark.statement("J9")
@pytest.mark.parametrize("lie", LIES)
def test_an_outcome_that_contradicts_itself_is_no_outcome(lie: str) -> None:
    """No success that met a limit, no exit code beside a signal."""
    tool, given, value, data = ANSWERS["command"]
    result = asyncio.run(result_of(tool, given, {**value, **LIES[lie]}, data))
    assert result.code is Code.PROTOCOL_ERROR
