"""The agent over bare pipes: what it does with frames, good and bad."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.agent import frame
from executor.agent.frame import Parser, encode, encode_json
from tests.local_box import AGENT

MODULES = sorted(AGENT.glob("*.py"))


class Agent:
    """An agent process, spoken to frame by frame."""

    def __init__(self, root: Path, lease: float = 30.0) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(AGENT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin"},
        )
        self.parser = Parser(frame.TO_HOST)
        self.frames: list[tuple[int, int, bytes]] = []
        self.hello = {
            "lease": lease,
            "root": str(root),
            "scratch": str(root),
            "box": "b",
            "environment": {"PATH": "/usr/bin:/bin"},
        }

    def send(self, *pieces: bytes) -> None:
        """Write frames."""
        assert self.child.stdin is not None
        self.child.stdin.write(b"".join(pieces))
        self.child.stdin.flush()

    def take(self) -> tuple[int, int, bytes]:
        """The next frame; the test's own time limit bounds the wait."""
        assert self.child.stdout is not None
        while not self.frames:
            data = self.child.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            if not data:
                raise EOFError
            self.frames += self.parser.feed(data)
        return self.frames.pop(0)

    def answer(self) -> tuple[int, dict[str, Any], bytes]:
        """The next reply: channel, value, data."""
        data = b""
        while True:
            kind, channel, payload = self.take()
            if kind == frame.REPLY:
                return channel, json.loads(payload), data
            data += payload


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """A fresh agent that has been greeted."""
    agent = Agent(tmp_path)
    kind, _, payload = agent.take()
    assert kind == frame.READY
    words = {"hash", "pid", "python", "mounted", "filtered", "confined"}
    assert set(json.loads(payload)) == words
    agent.send(encode_json(frame.HELLO, 0, agent.hello))
    yield agent
    assert agent.child.stdin is not None
    agent.child.stdin.close()
    agent.child.wait(20)
    for pipe in (agent.child.stdout, agent.child.stderr):
        assert pipe is not None
        pipe.close()


def run(command: str | None, **more: Any) -> dict[str, Any]:
    """The arguments of a command."""
    return {
        "op": "run",
        "command": command,
        "argv": None,
        "cwd": None,
        "environment": {},
        "timeout": 20,
        "grace": 1,
        "merge": False,
        "head": 1000,
        "tail": 1000,
        **more,
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_the_agent_imports_the_standard_library_alone(module: Path) -> None:
    """Every import of the agent is of the standard library or of a sibling.

    `markup_program` is a program of its own, for which two packages are in the runtime volume;
    no module imports such programs.
    """
    outside = {"bs4", "markdownify"} if module.stem == "markup_program" else set()
    programs = {"markup_program", "pdf_program"}
    siblings = {path.stem for path in MODULES} - programs | {"agent"}
    for node in ast.walk(ast.parse(module.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if not node.level else []
            assert not node.level or (node.module or node.names[0].name) in siblings
        for name in names:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names | {"agent"} | outside, name


def test_waits_for_children_happen_in_one_place() -> None:
    """Only `processes` starts and reaps: a second wait would lose exit codes.

    `terminal` is a program of its own, in a process of its own.
    """
    words = ("waitpid", "waitid", "subprocess", "Popen", "posix_spawn", "os.fork", "wait4")
    for module in MODULES:
        code = "\n".join(ast.unparse(node) for node in ast.parse(module.read_text()).body[1:])
        if module.stem not in ("processes", "terminal"):
            assert not [word for word in words if word in code], module.name


def test_a_ping_is_echoed(agent: Agent) -> None:
    """PONG carries the ping's payload."""
    agent.send(encode(frame.PING, 0, b"42"))
    assert agent.take() == (frame.PONG, 0, b"42")


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff" * 9,
        frame.HEADER.pack(frame.CALL, 1, 0xFFFFFFFF),
        encode(frame.CALL, 1, b"{"),
        encode(frame.CALL, 1, b"[]"),
        encode(frame.HELLO, 0, b"{}"),
        encode(frame.READY, 0, b"{}"),
    ],
)
def test_unreadable_input_ends_the_agent_with_a_reason(agent: Agent, bad: bytes) -> None:
    """DESIGN §4: the agent says FATAL and ends."""
    agent.send(bad)
    kind, _, payload = agent.take()
    assert kind == frame.FATAL
    assert "unreadable input" in json.loads(payload)["reason"]
    assert agent.child.wait(20) == 0


def test_the_end_of_the_stream_ends_the_agent(agent: Agent) -> None:
    """EOF means: end."""
    assert agent.child.stdin is not None
    agent.child.stdin.close()
    assert agent.child.wait(20) == 0


def test_the_lease_ends_the_agent(tmp_path: Path) -> None:
    """No frame within the lease: the agent ends although the stream is open."""
    agent = Agent(tmp_path, lease=0.5)
    agent.send(encode_json(frame.HELLO, 0, agent.hello))
    assert agent.child.wait(20) == 0
    assert agent.child.stderr is not None
    assert b"no word from the host" in agent.child.stderr.read()


def test_a_channel_in_use_is_a_breach(agent: Agent) -> None:
    """Two calls on one channel end the agent."""
    agent.send(encode_json(frame.CALL, 1, run("sleep 30")), encode_json(frame.CALL, 1, run("true")))
    assert agent.take()[0] == frame.FATAL


def test_input_comes_in_pieces(agent: Agent, tmp_path: Path) -> None:
    """A body of several frames is joined before the call begins."""
    arguments = run(None, argv=["cat"], script=".txt", body=6)
    agent.send(encode_json(frame.CALL, 1, arguments), encode(frame.BODY, 1, b"abc"))
    agent.send(encode(frame.PING, 0, b"1"), encode(frame.BODY, 1, b"def"))
    assert agent.take() == (frame.PONG, 0, b"1")
    channel, value, data = agent.answer()
    assert (channel, value["ok"]["exit_code"], data) == (1, 0, b"abcdef")


def test_too_much_input_is_refused_and_dropped(agent: Agent) -> None:
    """Input over the cap is an error of that call; its bytes are read and forgotten."""
    agent.send(encode_json(frame.CALL, 1, {"op": "write", "path": "x", "body": 65 << 20}))
    assert agent.answer()[1]["error"]["code"] == "TOO_LARGE"
    for _ in range(65):
        agent.send(encode(frame.BODY, 1, bytes(1 << 20)))
    agent.send(encode(frame.PING, 0, b"after"))
    assert agent.take() == (frame.PONG, 0, b"after")


def test_a_call_can_be_cancelled_before_its_input_is_there(agent: Agent) -> None:
    """CANCEL during the input answers CANCELLED, and late input is ignored."""
    agent.send(encode_json(frame.CALL, 1, run("true", body=10)), encode(frame.CANCEL, 1))
    assert agent.answer()[1]["error"]["code"] == "CANCELLED"
    agent.send(encode(frame.BODY, 1, b"0123456789"), encode_json(frame.CALL, 2, run("echo x")))
    assert agent.answer()[2] == b"x\n"


def test_a_host_that_does_not_read_stops_being_read(agent: Agent) -> None:
    """Back-pressure: the agent keeps a bounded backlog and serves on once it is taken."""
    command = run("head -c 900000 /dev/zero", head=500_000, tail=500_000)
    for channel in range(1, 13):
        agent.send(encode_json(frame.CALL, channel, command))
    sizes = [len(agent.answer()[2]) for _ in range(12)]
    assert sizes == [900_000] * 12


def test_an_unknown_operation_and_bad_arguments_cost_that_call_alone(agent: Agent) -> None:
    """The agent answers INTERNAL and goes on."""
    agent.send(
        encode_json(frame.CALL, 1, {"op": "nope"}), encode_json(frame.CALL, 2, {"op": "run"})
    )
    assert [agent.answer()[1]["error"]["code"] for _ in range(2)] == ["INTERNAL", "INTERNAL"]
    agent.send(encode_json(frame.CALL, 3, run("echo x")))
    assert agent.answer()[2] == b"x\n"
