"""`executor mcp`: a loop as a server of the Model Context Protocol, over stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import toolsets
from executor.catalog import load
from executor.frontends.mcp_contents import annotations_of, answer_of, sendable
from executor.frontends.mcp_server import Order
from executor.model import RESULTS, Result
from tests.driver import wait_until
from tests.mcp_clients import SECONDS, SERVER, Progress, boxes, client, served, text_of, with_file

# ─── contents ───────────────────────────────────────────────────────────────────────


def test_a_text_is_a_block_and_data_leave_out_what_was_printed() -> None:
    """A command's output is in the text; its data are what the text does not say."""
    structured = {"exit_code": 1, "stdout": "a", "stderr": "b", "cwd": "/workspace"}
    result = Result("1", "run_command", "a\nb", is_error=True, structured=structured)
    found = answer_of(result, with_structured=True)
    assert found.content == [types.TextContent(type="text", text="a\nb")]
    assert found.structured_content == {"exit_code": 1, "cwd": "/workspace"}
    assert found.is_error
    assert answer_of(result, with_structured=False).structured_content is None


def test_pictures_are_pictures() -> None:
    """A picture's block is the protocol's, with its kind; others are their JSON."""
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    blocks: list[Any] = [{"type": "image", "source": source}, {"type": "document", "title": "x"}]
    image, other = answer_of(Result("1", "read_file", blocks), with_structured=True).content
    assert image == types.ImageContent(type="image", data="AAAA", mime_type="image/png")
    assert isinstance(other, types.TextContent) and json.loads(other.text) == blocks[1]


@given(st.recursive(st.text(st.characters()), st.lists, max_leaves=5))
def test_every_text_can_be_sent(value: Any) -> None:
    """Whatever names of files hold, the message is UTF-8; what was UTF-8 stays as it is."""
    found = sendable(value)
    json.dumps(found, ensure_ascii=False).encode()
    assert sendable({"\udcff": ("a", 1)}) == {"\\xff": ["a", 1]}
    assert sendable("é\udcff\ud83d") == "é\\udcff\\ud83d"


def test_hints_say_what_a_tool_does() -> None:
    """What reads says so, what changes is destructive, and the web is another world."""
    registry = toolsets.registry("standard", load())

    def hints(name: str) -> tuple[Any, ...]:
        tool = registry.get(name)
        assert tool is not None
        found = annotations_of(tool)
        return found.read_only_hint, found.destructive_hint, found.open_world_hint

    assert hints("read_file") == (True, False, False)
    assert hints("run_command") == (False, True, False)
    assert hints("write_file") == (False, True, False)
    assert hints("web_fetch") == (False, False, True)


def test_the_configurations_of_clients_can_be_copied(worktree: Path) -> None:
    """Each one in the README parses, and starts a server with options that there are."""
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    section = readme.split("\n## As an MCP server\n")[1].split("\n### Over HTTP\n")[0]
    blocks = re.findall(r"```(json|toml)\n(.*?)```", section, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["json", "toml", "json", "json"]
    for kind, text in blocks:
        (servers,) = (json.loads(text) if kind == "json" else tomllib.loads(text)).values()
        given = servers["sandbox"]
        assert (given["command"], given["args"][0]) == ("executor", "mcp")
        arguments = [os.path.expandvars(one) for one in given["args"][1:]]
        arguments = [str(worktree) if one.startswith((".", "$")) else one for one in arguments]
        command = [sys.executable, "-m", "executor", "mcp", *arguments, "--no-such-option"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 2 and "No such option: --no-such-option" in done.stderr


# ─── order ──────────────────────────────────────────────────────────────────────────


class Crowd:
    """Calls that hold their places until they are let go; `log` says who has one."""

    def __init__(self) -> None:
        self.order = Order()
        self.running: set[str] = set()
        self.go: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, *, beside: bool) -> None:
        """A call comes, and has its place or waits."""
        self.go[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._run(name, beside))
        await self.settle()

    async def _run(self, name: str, beside: bool) -> None:
        async with self.order.place(beside=beside):
            self.running.add(name)
            try:
                await self.go[name].wait()
            finally:
                self.running.remove(name)

    async def end(self, name: str) -> None:
        """The call ends."""
        self.go[name].set()
        await self.tasks[name]
        await self.settle()

    async def cancel(self, name: str) -> None:
        """The call is cancelled, wherever it is."""
        self.tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.tasks[name]
        await self.settle()

    async def settle(self) -> None:
        """Everybody who can go on has."""
        for _ in range(5):
            await asyncio.sleep(0)


def test_what_changes_something_runs_alone_and_in_turn() -> None:
    """Reads run together; a change waits for them, and reads after it wait for the change."""

    async def run() -> None:
        crowd = Crowd()
        for name in ("r1", "r2"):
            await crowd.come(name, beside=True)
        await crowd.come("w1", beside=False)
        await crowd.come("r3", beside=True)
        await crowd.come("w2", beside=False)
        assert crowd.running == {"r1", "r2"}
        await crowd.end("r1")
        assert crowd.running == {"r2"}
        await crowd.end("r2")
        assert crowd.running == {"w1"}
        await crowd.end("w1")
        assert crowd.running == {"r3"}
        await crowd.end("r3")
        assert crowd.running == {"w2"}
        await crowd.end("w2")
        assert crowd.running == set()

    asyncio.run(run())


def test_who_is_cancelled_holds_up_nobody() -> None:
    """A cancelled call gives its place back, while it waits and while it runs."""

    async def run() -> None:
        crowd = Crowd()
        await crowd.come("r1", beside=True)
        await crowd.come("w1", beside=False)
        await crowd.come("r2", beside=True)
        await crowd.cancel("w1")
        assert crowd.running == {"r1", "r2"}
        await crowd.come("w2", beside=False)
        await crowd.cancel("r1")
        await crowd.cancel("r2")
        assert crowd.running == {"w2"}
        await crowd.cancel("w2")
        await crowd.come("w3", beside=False)
        assert crowd.running == {"w3"}
        await crowd.end("w3")

    asyncio.run(run())


# ─── the official client ────────────────────────────────────────────────────────────


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    """A worktree with one file."""
    return with_file(tmp_path)


def test_a_recorded_exchange(worktree: Path) -> None:
    """A client lists the loop's tools, reads, changes, runs, and is told what is wrong."""

    async def run() -> None:
        async with client(worktree) as session:
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            expected = toolsets.registry("standard", load()).get("read_file")
            assert expected is not None
            assert tools["read_file"].input_schema == expected.schema
            assert "kill_shell" in tools and "web_search" not in tools  # there is no key
            read = await session.call_tool("read_file", {"path": "a.txt"})
            assert "one" in text_of(read) and not read.is_error
            assert read.structured_content["total_lines"] == 2
            given = {"path": "a.txt", "old_string": "two", "new_string": "three"}
            edited = await session.call_tool("edit_file", given)
            assert not edited.is_error, edited
            ran = await session.call_tool("run_command", {"command": "cat a.txt; exit 3"})
            assert ran.is_error and "three" in text_of(ran)
            assert ran.structured_content["exit_code"] == 3
            assert not {"stdout", "stderr"} & ran.structured_content.keys()
            wrong = await session.call_tool("read_file", {"pat": "a.txt"})
            assert wrong.is_error and "pat is not an argument" in text_of(wrong)
            unknown = await session.call_tool("reed_file", {"path": "a.txt"})
            assert unknown.is_error and "read_file" in text_of(unknown)

    asyncio.run(run())
    assert (worktree / "a.txt").read_text() == "one\nthree\n"


def test_options_are_those_of_a_loop(worktree: Path) -> None:
    """The toolset, rules and the form of results are what the command line says."""

    async def run() -> None:
        options = ("--toolset", "claude-code", "--deny", "Bash(rm *)", "--no-structured")
        async with client(worktree, *options) as session:
            names = {tool.name for tool in (await session.list_tools()).tools}
            assert {"Read", "Bash"} <= names and "read_file" not in names
            denied = await session.call_tool("Bash", {"command": "rm a.txt"})
            assert denied.is_error and "denies it" in text_of(denied)
            read = await session.call_tool("Read", {"file_path": "/workspace/a.txt"})
            assert read.structured_content is None

    asyncio.run(run())


def test_progress_is_told_to_whoever_asks(worktree: Path) -> None:
    """Lines of a running command are progress, with rising numbers, if there is a token."""

    async def run() -> None:
        heard = Progress()
        async with client(worktree) as session:
            waits = "echo begun; until [ -e go ]; do read -t 0.05 <> <(:); done; echo over"
            running = asyncio.create_task(
                session.call_tool("run_command", {"command": waits}, progress_callback=heard)
            )
            await heard.first.wait()
            (worktree / "go").touch()
            assert not (await running).is_error
        assert heard.told[0] == (1, "begun")
        assert [number for number, _ in heard.told] == list(range(1, len(heard.told) + 1))

    asyncio.run(run())


def test_a_huge_output_is_bounded_and_kept(worktree: Path) -> None:
    """Casebook 103: five megabytes are cut aloud, and the whole can be read by its name."""

    async def run() -> None:
        async with client(worktree) as session:
            ran = await session.call_tool("run_command", {"command": "yes 0123456 | head -c 5m"})
            shown, _ = ran.content
            assert isinstance(shown, types.TextContent)
            text = shown.text
            assert len(text) < 200_000
            where = re.search(rf"{RESULTS}/[\w.-]*\w", text)
            assert where is not None, text[-500:]
            read = await session.call_tool("read_file", {"path": where[0]})
            assert not read.is_error and "0123456" in text_of(read)

    asyncio.run(run())


def test_an_odd_name_is_one_that_tools_take(worktree: Path) -> None:
    """What the data call a file is what the text calls it, and what reads it."""
    Path(os.fsdecode(os.fsencode(worktree) + b"/odd\xff.txt")).write_text("odd\n")

    async def run() -> None:
        async with client(worktree) as session:
            found = await session.call_tool("glob", {"pattern": "odd*"})
            assert found.structured_content is not None
            (name,) = found.structured_content["matches"]
            assert name in text_of(found)
            read = await session.call_tool("read_file", {"path": name})
            assert not read.is_error and "odd" in text_of(read)

    asyncio.run(run())


# ─── the wire itself ────────────────────────────────────────────────────────────────


def test_a_cancelled_call_is_ended_and_the_next_one_works(worktree: Path) -> None:
    """Casebook 100: no answer, no process, no proof; cancels of nothing are passed over."""
    with served(worktree) as wire:
        wire.greet()
        wire.call(1, "echo $$ > pid; sleep 60; touch PROOF")
        wire.call(2, "echo queued")
        wait_until((worktree / "pid").exists)
        for number in (1, 77, 0):
            wire.cancel(number)
        assert "queued" in wire.receive()["result"]["content"][0]["text"]
        wire.call(3, "kill -0 $(cat pid) || echo gone; ls")
        found = wire.receive()
        assert found["id"] == 3
        assert "gone" in found["result"]["content"][0]["text"]
        assert "PROOF" not in found["result"]["content"][0]["text"]
        wire.cancel(3)
        wire.request(4, "ping")
        assert wire.receive() == {"jsonrpc": "2.0", "id": 4, "result": {}}


def test_a_call_that_waits_can_be_cancelled(worktree: Path) -> None:
    """A call that waits for its turn never runs once it was cancelled."""
    with served(worktree) as wire:
        wire.greet()
        wire.call(1, "until [ -e go ]; do read -t 0.05 <> <(:); done")
        wire.call(2, "touch PROOF")
        wire.cancel(2)
        wire.request(3, "ping")
        assert wire.receive()["id"] == 3
        (worktree / "go").touch()
        assert wire.receive()["id"] == 1
        wire.call(4, "ls")
        assert "PROOF" not in wire.receive()["result"]["content"][0]["text"]


def test_calls_of_one_client_do_not_overlap(worktree: Path) -> None:
    """Ten commands that are sent at once run one after the other, in their order."""
    with served(worktree) as wire:
        wire.greet()
        for number in range(1, 11):
            wire.call(number, f"n=$(cat log | wc -l); echo {number} $n >> log")
        assert [wire.receive()["id"] for _ in range(10)] == list(range(1, 11))
    expected = "".join(f"{number} {number - 1}\n" for number in range(1, 11))
    assert (worktree / "log").read_text() == expected


def test_what_is_no_message_is_survived(worktree: Path) -> None:
    """Lines that are no JSON, no message or no request of ours cost nothing but themselves."""
    with served(worktree) as wire:
        wire.greet()
        for line in (b"nonsense", b"[]", b"\xff\xfe", b"{}", b"", b"[" * 10_000):
            wire.send(line)
        refused = [wire.receive() for _ in range(5)]
        assert [one["id"] for one in refused] == [None] * 5
        codes = [one["error"]["code"] for one in refused]
        assert codes == [-32700, -32600, -32700, -32600, -32700]
        wire.request(1, "tools/lists")
        found = wire.receive()
        assert (found["id"], found["error"]["code"]) == (1, -32601)
        wire.request(2, "tools/call", name=5)
        found = wire.receive()
        assert (found["id"], found["error"]["code"]) == (2, -32602)
        wire.call(3, "printf 'a\\xffb'")
        assert wire.receive()["id"] == 3


def test_the_end_of_the_input_is_the_end_of_all(worktree: Path) -> None:
    """The client closes its side while a command runs: exit code 0, and the box is gone."""
    with served(worktree, "--exec-id", "mcp-eof") as wire:
        wire.greet()
        wire.call(1, "touch begun; sleep 60")
        wait_until((worktree / "begun").exists)
        assert boxes("mcp-eof")
        out, err = wire.process.communicate(timeout=SECONDS)
        assert wire.process.returncode == 0, err
        assert all(json.loads(line)["jsonrpc"] == "2.0" for line in out.splitlines())
    assert boxes("mcp-eof") == []


def test_a_client_that_reads_no_more_has_gone(worktree: Path) -> None:
    """Its end of stdout is closed, stdin is not: the server ends at the next word, with the box."""
    with served(worktree, "--exec-id", "mcp-deaf") as wire:
        wire.greet()
        wire.call(1, "true")
        wire.receive()
        assert wire.process.stdout is not None
        wire.process.stdout.close()
        wire.request(2, "ping")
        assert wire.process.wait(timeout=SECONDS) == 128 + signal.SIGPIPE
    assert boxes("mcp-deaf") == []


def test_a_signal_ends_it_cleanly(worktree: Path) -> None:
    """SIGTERM with an idle client: one line for people, the usual code, no box."""
    with served(worktree, "--exec-id", "mcp-term") as wire:
        wire.greet()
        wire.call(1, "true")
        wire.receive()
        assert boxes("mcp-term")
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(timeout=SECONDS) == 128 + signal.SIGTERM
        assert wire.process.stderr is not None
        assert b"ended by SIGTERM" in wire.process.stderr.read()
    assert boxes("mcp-term") == []


def test_what_can_not_be_served_is_said(worktree: Path) -> None:
    """Bad usage ends it before a word; a missing sandbox is the answer, and the exit code."""
    with served(worktree, "--toolset", "nonsense") as wire:
        out, err = wire.process.communicate(timeout=SECONDS)
        assert (wire.process.returncode, out) == (2, b"")
        assert b"nonsense" in err
    with served(worktree, "--image", "there-is-no-such-image") as wire:
        wire.greet()
        wire.request(1, "tools/list")
        found = wire.receive()
        assert "there-is-no-such-image" in found["error"]["message"]
        wire.process.communicate(timeout=SECONDS)
        assert wire.process.returncode == 3


@pytest.mark.skipif(shutil.which("npx") is None, reason="no npx here to run the inspector with")
def test_the_inspector_speaks_with_it(worktree: Path) -> None:
    """The protocol's own inspector lists the tools and calls one."""
    server = [sys.executable, *SERVER, str(worktree)]
    asked = ["npx", "-y", "@modelcontextprotocol/inspector", "--cli", *server, "--method"]

    def inspected(*more: str) -> Any:
        command = [*asked, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    tools = inspected("tools/list")["tools"]
    assert "read_file" in {tool["name"] for tool in tools}
    called = ("tools/call", "--tool-name", "read_file", "--tool-arg", "path=a.txt")
    assert "two" in inspected(*called)["content"][0]["text"]
