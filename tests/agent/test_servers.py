"""Servers: programs that are spoken to over their stdin and stdout. Over every transport."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from executor.agent.servers import MAX_SERVERS, MAX_STDERR
from executor.bytestream import StreamClosed
from executor.errors import Code, ToolError
from executor.model import Limits, LoopSpec
from executor.sandbox.box import Sandbox
from executor.sandbox.engine import Engine
from executor.served import Program, Served, State
from executor.settings import Settings
from tests.conftest import LIMITS, docker_box, local_box, make_worktree, open_docker_box
from tests.driver import Box, LoopThread, wait_until
from tests.local_box import open_local_box

T = TypeVar("T")
LARGE = random.Random(7).randbytes(8 << 20)
"""More than all buffers on the way hold."""
OWN = f"{os.getpid()}"
"""After the point of each sleep that is counted: a local box sees those of all other tests, too."""
STORM = (
    "import os, sys, time\n"
    "print('on', flush=True)\n"
    "os.close(1)\n"
    "while True:\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        if os.fork() == 0:\n"
    f"            time.sleep(987.{OWN})\n"
    "        os._exit(0)\n"
    "    try:\n"
    "        while os.waitpid(-1, os.WNOHANG)[0]:\n"
    "            pass\n"
    "    except ChildProcessError:\n"
    "        pass\n"
    "    time.sleep(0.02)\n"
)
"""Leaves orphans in sessions of their own, one after the other."""


def _has_gvisor() -> bool:
    async def runtimes() -> tuple[str, ...]:
        async with await Engine.connect(Settings.load()) as engine:
            return engine.facts.runtimes

    return "runsc" in asyncio.run(runtimes())


def _gvisor_box(thread: LoopThread, directory: Path) -> Box:
    if not _has_gvisor():
        pytest.skip("the engine has no runtime runsc; scripts/gvisor.sh installs it")
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="servers", runtime="runsc")
    return Box(thread, thread.enter(open_docker_box(spec, directory / "state")), root, "docker")


@pytest.fixture(scope="module", params=["local", "docker", "runsc"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One box a module, over each transport."""
    directory = tmp_path_factory.mktemp(request.param)
    make = {"local": local_box, "docker": docker_box, "runsc": _gvisor_box}[request.param]
    with LoopThread() as thread:
        yield make(thread, directory)


@pytest.fixture
def started(box: Box) -> Iterator[list[Served]]:
    """What `serve` has started; all of it is ended after the test."""
    servers: list[Served] = []
    yield servers
    for server in servers:
        box.thread.run(server.end(0.2))


def serve(box: Box, started: list[Served], *argv: str, cwd: str = "", **environment: str) -> Served:
    """A started server."""
    server = box.thread.run(box.sandbox.serve(Program(argv, environment, cwd)))
    started.append(server)
    return server


def wait(box: Box, work: Coroutine[Any, Any, T]) -> T:
    return box.thread.run(work, timeout=60)


async def rest_of(server: Served) -> bytes:
    """All that it still prints."""
    pieces = []
    while piece := await server.stream.read():
        pieces.append(piece)
    return b"".join(pieces)


async def line_of(server: Served) -> bytes:
    """The next line."""
    line = b""
    while not line.endswith(b"\n"):
        piece = await server.stream.read(1)
        assert piece, f"it ended after {line!r}"
        line += piece
    return line


def ended(box: Box, server: Served) -> State:
    """How it is once it has ended by itself."""
    wait_until(lambda: not wait(box, server.state()).is_running)
    return wait(box, server.state())


def refused(box: Box, program: Program) -> ToolError:
    with pytest.raises(ToolError) as caught:
        wait(box, box.sandbox.serve(program))
    return caught.value


def test_a_server_answers_line_by_line(box: Box, started: list[Served]) -> None:
    """What is written comes to its stdin at once, what it prints comes back at once."""
    server = serve(box, started, "sh", "-c", 'while read -r line; do echo "<$line>"; done')

    async def talk() -> list[bytes]:
        answers = []
        for text in (b"one\n", b"two\n"):
            await server.stream.write(text)
            answers.append(await line_of(server))
        await server.stream.write_eof()
        return [*answers, await rest_of(server)]

    assert wait(box, talk()) == [b"<one>\n", b"<two>\n", b""]
    assert ended(box, server) == State(is_running=False, exit_code=0)


def test_large_messages_pass_in_both_directions_at_once(box: Box, started: list[Served]) -> None:
    """Eight megabytes each way are whole, and more than any buffer on the way holds."""
    server = serve(box, started, "cat")

    async def both() -> bytes:
        async def send() -> None:
            await server.stream.write(LARGE)
            await server.stream.write_eof()

        sending = asyncio.ensure_future(send())
        got = await rest_of(server)
        await sending
        return got

    assert wait(box, both()) == LARGE


def test_the_end_of_stdin_is_told_and_its_answer_still_comes(
    box: Box, started: list[Served]
) -> None:
    """A program that reads to the end of its stdin answers after it."""
    server = serve(box, started, "sh", "-c", "wc -c; echo over >&2; exit 4")

    async def all_of_it() -> bytes:
        await server.stream.write(b"x" * 100_000)
        await server.stream.write_eof()
        return await rest_of(server)

    assert wait(box, all_of_it()).split() == [b"100000"]
    assert ended(box, server) == State(is_running=False, exit_code=4, stderr=b"over\n")


def test_a_signal_that_ended_it_is_named(box: Box, started: list[Served]) -> None:
    """A server that was killed has no exit code, and its output ends."""
    server = serve(box, started, "sh", "-c", "echo on; kill -KILL $$")
    assert wait(box, rest_of(server)) == b"on\n"
    assert ended(box, server) == State(is_running=False, signal="SIGKILL")


def test_one_that_runs_is_running(box: Box, started: list[Served]) -> None:
    """Its state has what it said so far, and no end."""
    server = serve(box, started, "sh", "-c", "echo ready >&2; exec sleep 991")
    wait_until(lambda: wait(box, server.state()).stderr == b"ready\n")
    assert wait(box, server.state()) == State(is_running=True, stderr=b"ready\n")


def test_the_last_of_stderr_is_kept(box: Box, started: list[Served]) -> None:
    """Of a flood on stderr the last 64 KiB are there, to the last byte."""
    server = serve(box, started, "sh", "-c", "seq 100000 >&2; echo last >&2")
    said = ended(box, server).stderr
    wait_until(lambda: wait(box, server.state()).stderr.endswith(b"last\n"))
    said = wait(box, server.state()).stderr
    assert len(said) == MAX_STDERR
    assert said.endswith(b"99999\n100000\nlast\n")


def test_stderr_is_bytes_that_nobody_has_to_understand(box: Box, started: list[Served]) -> None:
    """What is no text comes as it was said."""
    server = serve(box, started, "sh", "-c", r"printf '\377\000\033' >&2")
    ended(box, server)
    wait_until(lambda: wait(box, server.state()).stderr == b"\xff\x00\x1b")


def test_it_has_its_variables_and_directory(box: Box, started: list[Served]) -> None:
    """Variables come on top of those that commands have; it starts below the worktree."""
    box.run("mkdir -p deep/er && printf '#!/bin/sh\\necho by path' > deep/own && chmod +x deep/own")
    server = serve(box, started, "sh", "-c", 'echo "$A $LANG $PWD"; pwd', cwd="deep/er", A="a = b")
    told, where = wait(box, rest_of(server)).decode().splitlines()
    assert told == f"a = b C.UTF-8 {where}"
    assert where.endswith("/deep/er")
    by_path = serve(box, started, "./own", cwd="deep")
    assert wait(box, rest_of(by_path)) == b"by path\n"


def test_a_program_that_there_is_not_is_named(box: Box) -> None:
    """NOT_FOUND says which; nothing is left of the attempt."""
    error = refused(box, Program(("no-such-server", "--stdio")))
    assert error.code is Code.NOT_FOUND
    assert "no-such-server" in str(error)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (Program(()), Code.INVALID_ARGUMENTS),
        (Program(("",)), Code.INVALID_ARGUMENTS),
        (Program(("cat", "a\0b")), Code.INVALID_ARGUMENTS),
        (Program(("cat",), {"A": "\0"}), Code.INVALID_ARGUMENTS),
        (Program(("cat",), {"A=B": "c"}), Code.INVALID_ARGUMENTS),
        (Program(("cat",), {}, "no/such"), Code.FILE_NOT_FOUND),
        (Program(("cat",), {}, "../.."), Code.FILE_NOT_FOUND),
        (Program(("cat",), {}, "/etc"), Code.FILE_NOT_FOUND),
        (Program(("/etc/passwd",)), Code.NOT_FOUND),
    ],
)
def test_what_can_not_be_started_is_refused(box: Box, program: Program, code: Code) -> None:
    """Each has its reason, and takes no place."""
    for _ in range(2):
        assert refused(box, program).code is code


def test_arguments_that_no_program_takes_are_refused(box: Box) -> None:
    """What is too long for the kernel is said; gVisor has another word for it."""
    error = refused(box, Program(("cat", "x" * 200_000)))
    assert error.code in (Code.TOO_LARGE, Code.EXECUTION_ERROR)
    assert "too long" in str(error)


def test_output_that_nobody_reads_waits_and_holds_nobody_up(
    box: Box, started: list[Served]
) -> None:
    """Floods on stdout stop at their pipes, floods on stderr are dropped, and calls go on."""
    for _ in range(3):
        serve(box, started, "yes")
        serve(box, started, "sh", "-c", "yes >&2")
    began = time.monotonic()
    for _ in range(20):
        assert box.run("echo beside").out == b"beside\n"
    assert time.monotonic() - began < 30
    assert all(wait(box, server.state()).is_running for server in started)


def test_one_that_reads_nothing_holds_up_its_writer_alone(box: Box, started: list[Served]) -> None:
    """Who writes more than the pipe and the window hold waits; the others are answered."""
    deaf = serve(box, started, "sleep", "990")
    server = serve(box, started, "cat")

    async def write_both() -> bytes:
        stuck = asyncio.ensure_future(deaf.stream.write(LARGE))
        await server.stream.write(b"through\n")
        line = await line_of(server)
        assert not stuck.done()
        await deaf.end(0.2)
        with pytest.raises(StreamClosed):
            await stuck
        return line

    assert wait(box, write_both()) == b"through\n"


def test_who_closes_its_stdin_is_written_to_no_more(box: Box, started: list[Served]) -> None:
    """Writing raises, after all that it had printed could be read."""
    server = serve(box, started, "sh", "-c", "exec <&-; echo closed; exec sleep 989")

    async def write() -> bytes:
        line = await line_of(server)
        with pytest.raises(StreamClosed):
            while True:
                await server.stream.write(bytes(1 << 16))
        return line

    assert wait(box, write()) == b"closed\n"
    assert wait(box, server.state()).is_running


def test_the_last_words_of_one_that_has_ended_are_not_lost(box: Box, started: list[Served]) -> None:
    """A write to a server that is gone fails, and what it printed before is still there."""
    server = serve(box, started, "sh", "-c", "seq 20000; exit 7")

    async def write_and_read() -> bytes:
        with pytest.raises(StreamClosed):
            while True:
                await server.stream.write(b"x")
        return await rest_of(server)

    # More than the first window is not asked for while nobody reads.
    words = wait(box, write_and_read())
    assert words == b"".join(b"%d\n" % number for number in range(1, 20001))
    assert ended(box, server).exit_code == 7


def test_a_connection_that_is_aborted_leaves_the_server_running(
    box: Box, started: list[Served]
) -> None:
    """Neither its stdin nor its stdout end with the connection; there is no second one."""
    program = "echo on >&2; cat; echo stdin ended >&2"
    server = serve(box, started, "sh", "-c", program)
    server.stream.abort()
    wait_until(lambda: wait(box, server.state()).stderr == b"on\n")
    box.run("sleep 0.2")
    assert wait(box, server.state()) == State(is_running=True, stderr=b"on\n")
    with pytest.raises(ToolError) as caught:
        number = server._number  # type: ignore[attr-defined]
        wait(box, box.sandbox._connection.channels.dial_server(number))
    assert caught.value.code is Code.EXECUTION_ERROR


def test_the_end_asks_first(box: Box, started: list[Served]) -> None:
    """Its stdin is closed and TERM is sent; one that says goodbye has its own exit code."""
    program = "trap 'echo bye >&2; exit 9' TERM; echo on; while :; do sleep 0.05; done"
    server = serve(box, started, "sh", "-c", program)
    assert wait(box, line_of(server)) == b"on\n"
    state = wait(box, server.end(10))
    assert (state.is_running, state.exit_code, state.signal) == (False, 9, None)
    assert state.stderr.endswith(b"bye\n")
    assert wait(box, server.end()) == wait(box, server.state()) == state
    with pytest.raises(StreamClosed):
        wait(box, server.stream.read())


def test_who_does_not_heed_it_is_killed(box: Box, started: list[Served]) -> None:
    """After the grace comes KILL, for all that it started, too."""
    nap = f"sleep 988.{OWN}"
    program = f"trap '' TERM; {nap} & {nap} & echo on; wait; wait; while :; do :; done"
    server = serve(box, started, "sh", "-c", program)
    assert wait(box, line_of(server)) == b"on\n"
    began = time.monotonic()
    state = wait(box, server.end(0.3))
    assert (state.exit_code, state.signal, state.is_out_of_memory) == (None, "SIGKILL", False)
    assert time.monotonic() - began < 20
    assert count(box, nap) == 0


def count(box: Box, words: str) -> int:
    """How many processes of the box have these words among their arguments."""
    script = (
        "import os\n"
        f"words = {words[:1]!r} + {words[1:]!r}\n"  # it must not find itself
        "found = 0\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        line = open(f'/proc/{pid}/cmdline', 'rb').read(10000)\n"
        "    except OSError:\n"
        "        continue\n"
        "    found += words in line.replace(b'\\0', b' ').decode('utf-8', 'replace')\n"
        "print(found)\n"
    )
    more: dict[str, Any] = {"argv": ["python3"], "script": ".py", "body": script.encode()}
    return int(box.run(None, **more).out)


def test_a_storm_of_orphans_ends_with_its_server(box: Box, started: list[Served]) -> None:
    """Sessions and parents of their own save none of them, and a neighbour is not touched."""
    neighbour = serve(box, started, "cat")
    server = serve(box, started, "python3", "-c", STORM)
    assert wait(box, line_of(server)) == b"on\n"
    wait_until(lambda: count(box, f"time.sleep(987.{OWN})") > 5)
    assert not wait(box, server.end(0.2)).is_running
    assert count(box, f"time.sleep(987.{OWN})") == 0

    async def talk() -> bytes:
        await neighbour.stream.write(b"still here\n")
        return await line_of(neighbour)

    assert wait(box, talk()) == b"still here\n"


def test_the_one_too_many_is_refused(box: Box, started: list[Served]) -> None:
    """Sixteen may run; one that is ended makes room for another."""
    for _ in range(MAX_SERVERS):
        serve(box, started, "cat")
    error = refused(box, Program(("cat",)))
    assert error.code is Code.LIMIT
    assert str(MAX_SERVERS) in str(error)

    async def all_talk() -> list[bytes]:
        async def one(server: Served, text: bytes) -> bytes:
            await server.stream.write(text)
            return await line_of(server)

        texts = [b"%d\n" % number for number in range(MAX_SERVERS)]
        return await asyncio.gather(*map(one, started, texts))

    assert wait(box, all_talk()) == [b"%d\n" % number for number in range(MAX_SERVERS)]
    wait(box, started.pop().end(0.2))
    serve(box, started, "cat")


def test_the_end_of_a_call_is_no_end_of_a_server(box: Box, started: list[Served]) -> None:
    """A neighbour that is ended for its time, with all it started, does not take it along."""
    program = f"setsid sh -c 'echo child; exec sleep 986.{OWN}' & cat"
    server = serve(box, started, "sh", "-c", program)
    assert wait(box, line_of(server)) == b"child\n"
    wait_until(lambda: count(box, f"sleep 986.{OWN}") == 2)  # its own script, and the child
    ran = box.run("trap '' TERM; (trap '' TERM; sleep 985) & sleep 985; wait", timeout=0.5)
    assert ran.value["timed_out"] is True
    box.run("kill -KILL $$")

    async def talk() -> bytes:
        await server.stream.write(b"on\n")
        return await line_of(server)

    assert wait(box, talk()) == b"on\n"
    assert count(box, f"sleep 986.{OWN}") == 2


def test_a_server_is_nothing_that_a_call_left(box: Box, started: list[Served]) -> None:
    """Neither it nor its children are listed, nor when its own process has ended."""
    server = serve(box, started, "sh", "-c", f"setsid sleep 984.{OWN} & echo on; cat")
    assert wait(box, line_of(server)) == b"on\n"
    gone = serve(box, started, "sh", "-c", f"setsid sleep 984.{OWN} >/dev/null 2>&1 & echo on")
    assert wait(box, rest_of(gone)) == b"on\n"
    ended(box, gone)
    calls = box.request("left", {}).value["calls"]
    assert [one for one in calls if OWN in one["command"] or "cat" in one["command"]] == []


def test_programs_are_told_by_name(box: Box) -> None:
    """Of those that are asked for the box names what its PATH leads to."""
    asked = {"programs": ["sh", "no-such-server", "/bin/sh", "cat", "", "./sh"]}
    value = box.request("shell", asked).value
    assert value["programs"] == ["sh", "/bin/sh", "cat"]
    assert "programs" not in box.request("shell", {}).value


def test_memory_that_ran_out_is_said(container: Box) -> None:
    """A server that is ended for memory says so, and the box lives on."""
    eat = "print(len(bytearray(b'x') * (2 << 30)))"
    server = wait(container, container.sandbox.serve(Program(("python3", "-c", eat))))
    state = ended(container, server)
    assert (state.signal, state.is_out_of_memory) == ("SIGKILL", True)
    assert wait(container, server.end()) == state
    later = wait(container, container.sandbox.serve(Program(("sh", "-c", "kill -9 $$"))))
    assert ended(container, later).is_out_of_memory is False
    assert wait(container, later.end()).is_out_of_memory is False


def test_at_the_process_limit_servers_make_room(loop_thread: LoopThread, tmp_path: Path) -> None:
    """A server that fills the box is ended by the next command, and its end is told."""
    box = docker_box(loop_thread, tmp_path, Limits(memory="512m", pids=64), "full")
    storm = "while :; do sleep 983 & done 2>/dev/null"
    server = wait(box, box.sandbox.serve(Program(("bash", "-c", storm))))
    wait_until(lambda: _is_full(box))
    assert box.run("/bin/echo back").out == b"back\n"
    state = wait(box, server.end())
    assert (state.is_running, state.signal) == (False, "SIGKILL")
    assert wait(box, box.sandbox.serve(Program(("cat",)))) is not None


def _is_full(box: Box) -> bool:
    try:
        return any("background processes" in note for note in box.run("/bin/true").value["notes"])
    except ToolError as error:
        return error.code is Code.LIMIT


def test_nothing_of_a_server_is_left_in_the_agent(tmp_path: Path) -> None:
    """A hundred that came and went leave no descriptor, no process and no memory."""

    async def run() -> tuple[int, int, int]:
        root, scratch = tmp_path / "worktree", tmp_path / "scratch"
        root.mkdir()
        scratch.mkdir()
        async with open_local_box(root, scratch) as box:
            agent = await _agent_of(box)
            sizes = []
            for round in range(100):
                if round in (20, 99):
                    sizes.append(await _size_of(box, agent))
                server = await box.serve(Program(("sh", "-c", "yes | head -c 300000; cat")))
                await server.stream.read()
                if round % 3 == 0:
                    server.stream.abort()
                await server.end(0.2)
            (before, first), (after, last) = sizes
            return before, after, last - first

    before, after, grown = asyncio.run(run())
    assert after == before
    assert grown < 1 << 20


async def _agent_of(box: Sandbox) -> int:
    """The pid of the agent of a local box: the parent of what it starts."""
    server = await box.serve(Program(("sh", "-c", "echo $PPID")))
    line = await line_of(server)
    await server.end(0.2)
    return int(line)


async def _size_of(box: Sandbox, agent: int) -> tuple[int, int]:
    """The agent's descriptors and bytes of memory of its own, at the least of some moments.

    The last connection's ABORT is on its way when its server has ended; an answer comes after it.
    While the agent looks through the processes it has a descriptor more for a moment.
    """
    sizes = []
    for _ in range(5):
        await box.request("shell", {}, timeout=30)
        sizes.append((len(os.listdir(f"/proc/{agent}/fd")), _own_memory(agent)))
    return min(one for one, _ in sizes), min(other for _, other in sizes)


def _own_memory(pid: int) -> int:
    """Bytes; without pages of files, which come and go with what else the machine does."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "VmSwap"))
