"""Egress: what a download through the broker reaches, and what a request has added to it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks import report
from benchmarks.report import TIMES, Row, Verdict
from benchmarks.stage import NotRun, Stage, ask
from benchmarks.timing import Sample, alternately, blocking
from executor import LoopSpec
from executor.loop import Loop
from executor.model import EgressOptions

MIB = 1 << 20
DOWNLOAD = 32 * MIB
DOWNLOADS = 30
REQUESTS = 5
"""Requests of one attempt, each over a connection of its own."""
ROUNDS = 200
SMALL = 1024
SHARE_BUDGET = 0.5
ADDED_BUDGET = 5.0
_POURING = 'while read count; do dd if=/dev/zero bs=64K count="$count" status=none; echo end; done'
_SERVER = """
import socket, sys, threading
with socket.socket(fileno=int(sys.argv[1])) as listener:
    def answer(peer):
        with peer:
            head = b""
            while b"\\r\\n\\r\\n" not in head:
                piece = peer.recv(65536)
                if not piece:
                    return
                head += piece
            size = int(head.split(b" ")[1].rsplit(b"/", 1)[1])
            peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % size)
            block = bytes(1 << 20)
            while size > 0:
                peer.sendall(block[:size])
                size -= len(block)
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""
"""A server on the host: a path names how many bytes it is answered with."""

_CLIENT = """
import socket, sys, time
port, target, size, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
host = target.split("/")[2]
asked = f"GET {target}{size} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode()
block = bytearray(1 << 20)
times = []
for _ in range(count):
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(asked)
        got = 0
        while taken := peer.recv_into(block):
            if not got and not block.startswith(b"HTTP/1.1 200"):
                sys.exit(bytes(block[:taken]).decode())
            got += taken
    if got < size:
        sys.exit(f"{got} bytes of {size} came")
    times.append(time.perf_counter() - started)
print(sum(times) / len(times))
"""
"""Asks for that many bytes so many times, a connection each; the seconds of one, on average."""


async def through_the_broker(stage: Stage) -> list[Row]:
    """Downloads beside the bare stream that carries them, and requests beside direct ones."""
    async with AsyncExitStack() as stack:
        port = stack.enter_context(_server())
        loop = await stack.enter_async_context(_reaching(stage, port))
        return [*await _downloads(stage, loop, port), await _requests(stage, loop, port)]


@contextlib.asynccontextmanager
async def _reaching(stage: Stage, port: int) -> AsyncIterator[Loop]:
    """A loop that may reach one port of this machine."""
    worktree = stage.worktree("egress")
    (worktree / "client.py").write_text(_CLIENT)
    at = f"127.0.0.1:{port}"
    egress = EgressOptions(hosts=(at,), private=(at,), total_bytes="1t")
    spec = LoopSpec(worktree, egress=egress, exec_id=f"bench-{secrets.token_hex(4)}")
    async with stage.controller.open(spec) as loop:
        yield loop


async def _asked(loop: Loop, port: int, size: int, count: int) -> float:
    """Seconds of one request of a program in the box, by its own clock."""
    command = f"python3 client.py 3128 http://127.0.0.1:{port}/ {size} {count}"
    result = await ask(loop, "run_command", command=command)
    assert result.structured is not None, "commands have a structured result"
    return float(result.structured["stdout"])


async def _downloads(stage: Stage, loop: Loop, port: int) -> list[Row]:
    with _pouring(stage) as pour:
        found = await alternately(
            {
                "ours": lambda: _asked(loop, port, DOWNLOAD, 1),
                "bare": blocking(pour),
            },
            stage.rounds(DOWNLOADS),
            stage.ticks("download"),
        )
    ours, bare = found["ours"], found["bare"]
    ratio = bare.p50 / ours.p50
    is_held = ratio >= SHARE_BUDGET
    reason = "each byte passes the broker, host and agent once more, on the same processors"
    return [
        Row(
            f"download of {DOWNLOAD // MIB} MiB through the broker",
            _speed(ours),
            f"the same bytes over a bare attach stream: {_speed(bare)}",
            f"{ratio:.2f}{TIMES} as fast",
            f"≥ {SHARE_BUDGET:g}{TIMES} as fast",
            Verdict.HELD if is_held else Verdict.MISSED,
            "" if is_held else reason,
        ),
    ]


def _speed(sample: Sample) -> str:
    return f"{DOWNLOAD / MIB / sample.p50:.3g} MiB/s"


async def _requests(stage: Stage, loop: Loop, port: int) -> Row:
    client = str(Path(stage.directory, "egress", "client.py"))
    given = [str(port), f"http://127.0.0.1:{port}/", str(SMALL), str(REQUESTS)]

    async def direct() -> float:
        done = subprocess.run(
            [sys.executable, "-I", "-S", client, *given], capture_output=True, check=True
        )
        return float(done.stdout)

    found = await alternately(
        {"ours": lambda: _asked(loop, port, SMALL, REQUESTS), "direct": direct},
        stage.rounds(ROUNDS),
        stage.ticks("requests"),
    )
    added = (found["ours"].p50 - found["direct"].p50) * 1000
    reason = f"the same request from the host takes {report.milliseconds(found['direct'])} here"
    return report.within("  added to a request of 1 KiB", added, ADDED_BUDGET, "ms", reason)


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """A server in a process of its own; its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SERVER, str(number)], pass_fds=[number]
        )
        try:
            yield int(listener.getsockname()[1])
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _pouring(stage: Stage) -> Iterator[Callable[[], None]]:
    """Has a plain container write as many bytes to its attach stream, and reads them."""
    block = bytearray(MIB)
    with stage.attached_container("bash", "-c", _POURING) as stream:

        def pour() -> None:
            stream.sendall(b"%d\n" % (DOWNLOAD >> 16))
            taken = 0
            while not block[:taken].endswith(b"end\n"):
                taken = stream.recv_into(block)
                if not taken:
                    raise NotRun("the container ended")

        yield pour
