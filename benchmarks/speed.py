"""Times: a read, a command, a cold start, a search."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.report import Row
from benchmarks.stage import PLAIN_UID, NotRun, Stage, ask, docker_cli, own
from benchmarks.timing import Attempt, Sample, alternately, awaited, blocking
from executor import Controller, LoopSpec
from executor.hooks import Hook, HookEvent, Hooks, Occasion
from executor.loop import Loop

ROUNDS = 200
BLOCK = 20
"""Attempts a turn, where attempts are short."""
COLD_ROUNDS = 20
SEARCHES = 200
READ_BYTES = 4096
READ_BUDGET = 0.4
PIPELINE_BUDGET = 0.3
FILES = 50_000
FILES_A_DIRECTORY = 100
NEEDLE = "needle_in_the_haystack"
HIT_EVERY = 1000
"""One file in so many holds the needle."""


# ─── a read ─────────────────────────────────────────────────────────────────────────


async def reads(stage: Stage) -> list[Row]:
    """`read_file` of 4 KB, beside a bare Unix socket's echo of as many bytes."""
    worktree = _with_file(stage, "reads")
    async with stage.loop(worktree) as loop:
        with _echo() as echo, stage.attached_container("cat") as stream:
            found = await alternately(
                {
                    "ours": awaited(lambda: ask(loop, "read_file", path="file.txt")),
                    "stream": blocking(lambda: _through(stream)),
                    "echo": blocking(echo),
                },
                stage.rounds(5 * ROUNDS),
                stage.ticks("read_file"),
                warm=50,
                block=BLOCK,
            )
    ours, stream_echo = found["ours"], found["stream"]
    reason = (
        f"the engine's stream alone takes {report.milliseconds(stream_echo)} here for 4 KB there "
        "and back; the rest is host and agent, each woken up once a call"
    )
    return [
        report.within(
            "read_file, 4 KB, whole `loop.execute`", ours.p50 * 1000, READ_BUDGET, "ms", reason
        ),
        report.compared(
            "  beside an attach stream", ours, stream_echo, "`cat` in a container, 4 KB echoed"
        ),
        report.compared("  beside a Unix socket", ours, found["echo"], "a process, 4 KB echoed"),
    ]


_HEADER = struct.Struct(">BxxxI")
"""Before each piece of an attach stream: which stream, and the length."""


def _through(stream: socket.socket) -> None:
    """Sends 4 KB through an attach stream and waits until all of it is back."""
    stream.sendall(b"x" * READ_BYTES)
    missing = READ_BYTES
    while missing:
        _, length = _HEADER.unpack(_exactly(stream, _HEADER.size))
        _exactly(stream, length)
        missing -= length


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.recv(size - len(data))
        if not piece:
            raise NotRun("the container ended")
        data += piece
    return data


_ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as peer:
    while data := peer.recv(65536):
        peer.sendall(data)
"""


@contextmanager
def _echo() -> Iterator[Callable[[], None]]:
    """Sends 4 KB to another process and waits until all of it is back."""
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _ECHO, str(number)], pass_fds=[number]
    )
    theirs.close()
    body = b"x" * READ_BYTES

    def echo() -> None:
        ours.sendall(body)
        missing = READ_BYTES
        while missing:
            missing -= len(ours.recv(missing))

    try:
        with ours:
            yield echo
    finally:
        process.wait()


# ─── the pipeline ───────────────────────────────────────────────────────────────────

RULES: Mapping[str, Any] = {
    "allow": (
        *("run_command(git status *)", "run_command(git diff *)", "run_command(pytest *)"),
        *("run_command(make test *)", "edit_file(/src/)", "edit_file(/tests/)"),
    ),
    "ask": (
        *("run_command(git push *)", "run_command(git commit *)", "run_command(npm publish *)"),
        *("edit_file(/pyproject.toml)", "edit_file(/.github/)", "delete_file", "run_code"),
    ),
    "deny": (
        *("run_command(git push --force *)", "run_command(sudo *)", "run_command(curl *)"),
        *("edit_file(**/.env*)", "edit_file(**/*.lock)", "edit_file(/.git/)", "move_file"),
    ),
}
"""Twenty rules, as a user has them; none is about reading files."""
SECRETS = ("read_file(**/.env*)", "read_file(**/*.pem)")


async def pipeline(stage: Stage) -> list[Row]:
    """What a call has around the agent's own operation: rules, mode, a hook, the result."""
    looking = {**RULES, "deny": (*RULES["deny"][len(SECRETS) :], *SECRETS)}
    kinds: Mapping[str, tuple[Mapping[str, Any], Any]] = {
        "plain": ({}, None),
        "rules": ({"mode": "default", **RULES}, None),
        "async": ({"mode": "default", **RULES}, _has_no_objection_either),
        "function": ({"mode": "default", **RULES}, _has_no_objection),
        "looking": ({"mode": "default", **looking}, None),
    }
    settings = stage.controller.settings
    async with AsyncExitStack() as stack:
        attempts: dict[str, Attempt] = {}
        for name, (given, hook) in kinds.items():
            hooks = Hooks([Hook(HookEvent.BEFORE, hook)] if hook else [])
            controller = await stack.enter_async_context(Controller(settings, hooks=hooks))
            spec = LoopSpec(_with_file(stage, f"pipeline-{name}"), **given)
            loop = await stack.enter_async_context(controller.open(spec))
            attempts[name] = _reading(loop)
        bare: Any = loop._lane._box
        attempts["bare"] = awaited(lambda: bare.request("read", _READ))
        rounds, ticks = stage.rounds(5 * ROUNDS), stage.ticks("pipeline")
        found = await alternately(attempts, rounds, ticks, warm=50, block=BLOCK)
    added = {name: (found[name].p50 - found["bare"].p50) * 1000 for name in kinds}
    reason = f"the agent's own `read` takes {report.milliseconds(found['bare'])} here"
    thread = "it runs in a thread, so that one that hangs holds nothing up"
    look = "the agent is asked where the path leads before the call is judged: one more request"
    name = "pipeline adds to a read of 4 KB"
    return [
        report.within(name, added["plain"], PIPELINE_BUDGET, "ms", reason),
        report.compared("  whole", found["plain"], found["bare"], "the agent's `read` alone"),
        report.within(
            "  mode default, 20 rules", added["rules"], PIPELINE_BUDGET, "ms", "each is looked at"
        ),
        Row("  and a hook, an async function", f"{added['async']:.3g} ms"),
        Row("  and a hook, a function", f"{added['function']:.3g} ms", reason=thread),
        Row("  with rules about reading", f"{added['looking']:.3g} ms", reason=look),
    ]


_READ = {
    "path": "file.txt",
    "offset": 1,
    "limit": 2000,
    "max_bytes": 100_000,
    "line_chars": 2000,
    "encoding": "utf-8",
}
"""What `read_file` asks the agent for."""


def _has_no_objection(occasion: Occasion) -> None:
    """A hook that sees the call and lets it be."""


async def _has_no_objection_either(occasion: Occasion) -> None:
    """The same, in the loop's own thread."""


def _reading(loop: Loop) -> Attempt:
    return awaited(lambda: ask(loop, "read_file", path="file.txt"))


def _with_file(stage: Stage, name: str) -> Path:
    """A worktree with a file of 4 KB."""
    worktree = stage.worktree(name)
    (worktree / "file.txt").write_text(("x" * 63 + "\n") * (READ_BYTES // 64))
    return worktree


# ─── a command ──────────────────────────────────────────────────────────────────────


async def commands(stage: Stage) -> list[Row]:
    """`run_command true`, beside the same shell on the host and `docker exec`."""
    program, shell = docker_cli(), ["bash", "-c", "true"]
    async with stage.loop(stage.worktree("commands")) as loop:
        ours = awaited(lambda: ask(loop, "run_command", command="true"))
        plain = await alternately(
            {
                "ours": ours,
                "bash": blocking(lambda: _host(*shell)),
                "sh": blocking(lambda: _host("sh", "-c", "true")),
            },
            stage.rounds(2 * ROUNDS),
            stage.ticks("run_command"),
            warm=20,
            block=BLOCK,
        )
        with stage.idle_container() as other:
            execs = await alternately(
                {
                    "ours": ours,
                    "cli": blocking(lambda: _host(program, "exec", str(other.id), "true")),
                    "sdk": blocking(lambda: other.exec_run(["true"])),
                },
                stage.rounds(ROUNDS),
                stage.ticks("docker exec"),
                block=BLOCK,
            )
    name, again = "run_command `true`", "  beside `docker exec`"
    bare = execs["cli"].p50 / plain["bash"].p50
    reason = (
        f"bash on the host with nothing around it takes {report.milliseconds(plain['bash'])} "
        f"here: that alone is {bare:.0f}{report.TIMES} as fast as `docker exec`"
    )
    added = plain["ours"].p50 - plain["bash"].p50
    why = (
        f"{added * 1000:.2g} ms are added to the shell's own time: the stream there and back, and "
        "a start under the engine's system call filter"
    )
    return [
        report.at_most(name, plain["ours"], plain["bash"], "`bash -c true` on the host", 2, why),
        report.compared("  the same", plain["ours"], plain["sh"], "`sh -c true` on the host"),
        report.at_least(again, execs["ours"], execs["cli"], "`docker exec` of `true`", 40, reason),
        report.at_least(
            "  beside the Docker SDK", execs["ours"], execs["sdk"], "the SDK, the same", 40, reason
        ),
    ]


def _host(*argv: str) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)


# ─── a cold start ───────────────────────────────────────────────────────────────────


async def cold_starts(stage: Stage) -> list[Row]:
    """From `controller.open` to the first result, beside a bare `docker run`."""
    program = docker_cli()
    worktree = stage.worktree("cold")
    whole: list[float] = []

    async def ours() -> float:
        started = time.perf_counter()
        async with stage.loop(worktree) as loop:
            await ask(loop, "run_command", command="true")
            first = time.perf_counter()
        whole.append(time.perf_counter() - started)
        return first - started

    bare = [program, "run", "--rm", "--network", "none", stage.image, "true"]
    found = await alternately(
        {"ours": ours, "docker": blocking(lambda: _host(*bare))},
        stage.rounds(COLD_ROUNDS),
        stage.ticks("cold start"),
        warm=1,
    )
    baseline = "`docker run --rm --network none IMAGE true`"
    return [
        report.at_most(
            "cold start to the first result", found["ours"], found["docker"], baseline, 1.25
        ),
        report.compared(
            "  with the box's removal, as in the baseline",
            Sample(tuple(whole[1:])),
            found["docker"],
            baseline,
        ),
    ]


# ─── a search ───────────────────────────────────────────────────────────────────────


async def searches(stage: Stage) -> list[Row]:
    """`grep` over 50,000 files, beside ripgrep itself in the same box."""
    worktree = stage.worktree("haystack")
    hits = _fill(worktree)
    command = (
        f"start=$EPOCHREALTIME; rg --no-heading --line-number --context 2 --hidden {NEEDLE} .; "
        "echo $start $EPOCHREALTIME >&2"
    )
    async with stage.loop(worktree) as loop:

        async def inside() -> float:
            """What ripgrep took by the box's own clock, without us."""
            result = await ask(loop, "run_command", command=command)
            assert result.structured is not None, "commands have a structured result"
            start, end = map(float, result.structured["stderr"].split())
            return end - start

        async def ours() -> float:
            started = time.perf_counter()
            result = await ask(loop, "grep", pattern=NEEDLE)
            seconds = time.perf_counter() - started
            if result.structured is None or result.structured["matches"] != hits:
                raise NotRun(f"grep did not find the {hits} lines that are there")
            return seconds

        found = await alternately(
            {
                "ours": ours,
                "inside": inside,
                "outside": awaited(lambda: ask(loop, "run_command", command=command)),
            },
            stage.rounds(SEARCHES),
            stage.ticks("grep"),
        )
    name, mine = f"grep over {FILES:,} files", found["ours"]
    return [
        report.at_most(name, mine, found["inside"], "`rg` in the box, its own clock", 1.2),
        report.compared("  the same", mine, found["outside"], "`rg` by run_command, from outside"),
    ]


# ─── git ────────────────────────────────────────────────────────────────────────────


async def statuses(stage: Stage) -> list[Row]:
    """`git status` over 50,000 files in the box, beside the host's own in the same worktree."""
    worktree = stage.worktree("versioned")
    _fill(worktree)
    for arguments in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "--all"),
        ("-c", "user.name=Bench", "-c", "user.email=bench@localhost", "commit", "-qm", "all"),
    ):
        _git(worktree, *arguments)
    command = "git --no-optional-locks status --porcelain"
    async with stage.loop(worktree) as loop:

        async def inside() -> float:
            """What git took by the box's own clock."""
            timed = f"start=$EPOCHREALTIME; {command}; echo $start $EPOCHREALTIME >&2"
            result = await ask(loop, "run_command", command=timed)
            assert result.structured is not None, "commands have a structured result"
            if result.structured["stdout"]:
                raise NotRun("git in the box takes files for changed")
            start, end = map(float, result.structured["stderr"].split())
            return end - start

        found = await alternately(
            {
                "inside": inside,
                "ours": awaited(lambda: ask(loop, "run_command", command=command)),
                "host": blocking(lambda: _git(worktree, *command.split()[1:])),
            },
            stage.rounds(SEARCHES),
            stage.ticks("git status"),
        )
    name = f"`git status` over {FILES:,} files"
    return [
        report.at_most(name, found["ours"], found["host"], "the host's own git", 1.2),
        report.compared("  the same, by the box's clock", found["inside"], found["host"], "that"),
    ]


def _git(worktree: Path, *arguments: str) -> None:
    """Git on the host, as the worktree's owner and with nobody's configuration."""
    user = PLAIN_UID if os.geteuid() == 0 else None
    environment = {"PATH": os.defpath, "GIT_CONFIG_GLOBAL": os.devnull, "HOME": os.devnull}
    subprocess.run(
        ["git", "-C", str(worktree), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        env=environment,
        user=user,
        group=user,
        extra_groups=() if user is not None else None,
    )


def _fill(worktree: Path) -> int:
    """The haystack; how many lines in it match."""
    text = "".join(f"line {number} of a plain source file\n" for number in range(30))
    hits = 0
    for start in range(0, FILES, FILES_A_DIRECTORY):
        directory = worktree / f"part{start // FILES_A_DIRECTORY:03}"
        directory.mkdir()
        for number in range(start, start + FILES_A_DIRECTORY):
            path = directory / f"file{number:05}.txt"
            if number % HIT_EVERY:
                path.write_text(text)
            else:
                path.write_text(text + NEEDLE + "\n" + text)
                hits += 1
            own(path)
        own(directory)
    return hits
