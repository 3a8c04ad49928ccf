"""The far half of a person's shell, over bare pipes: what it starts, and that it ends it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.agent import frame, processes
from executor.agent.frame import encode, encode_json
from executor.agent.processes import Process, guests_among
from tests.local_box import AGENT

SECONDS = 30.0


class Far:
    """The far half as a child process, spoken to frame by frame."""

    def __init__(self, directory: Path, size: tuple[int, int] | None, **variables: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(AGENT), "terminal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.shown = b""
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory), **variables}
        self.send(
            frame.HELLO,
            {"environment": environment, "directory": str(directory), "size": size},
        )

    def send(self, kind: int, value: dict[str, Any] | bytes) -> None:
        """Write one frame."""
        assert self.child.stdin is not None
        data = encode(kind, 1, value) if isinstance(value, bytes) else encode_json(kind, 1, value)
        self.child.stdin.write(data)
        self.child.stdin.flush()

    def type(self, text: str) -> None:
        """The person types."""
        self.send(frame.BODY, text.encode())

    def expect(self, text: str) -> None:
        """Read until this was printed."""
        assert self.child.stdout is not None
        until = time.monotonic() + SECONDS
        while text.encode() not in self.shown:
            left = until - time.monotonic()
            ready = left > 0 and select.select([self.child.stdout], [], [], left)[0]
            data = os.read(self.child.stdout.fileno(), 1 << 16) if ready else b""
            assert data, f"{text!r} never came: {self.shown!r}"
            self.shown += data
        self.shown = self.shown.partition(text.encode())[2]

    def end(self) -> tuple[int, bytes, bytes]:
        """Exit code and the rest of both streams; what is typed stays open meanwhile."""
        assert self.child.stdout is not None and self.child.stderr is not None
        rest = {self.child.stdout.fileno(): b"", self.child.stderr.fileno(): b""}
        left = list(rest)
        until = time.monotonic() + SECONDS
        while left:
            ready = select.select(left, [], [], max(until - time.monotonic(), 0))[0]
            assert ready, f"it does not end: {rest}"
            for descriptor in ready:
                data = os.read(descriptor, 1 << 16)
                rest[descriptor] += data
                if not data:
                    left.remove(descriptor)
        out, err = rest.values()
        return self.child.wait(SECONDS), out, err


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Far]]:
    """What a test starts; killed if it is still there."""
    far: list[Far] = []
    yield far
    for one in far:
        if one.child.poll() is None:
            one.child.kill()
        with one.child:
            pass


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_pipes_run_what_is_typed(tmp_path: Path, started: list[Far]) -> None:
    """Without a size the shell reads commands from a pipe, with two streams and its exit code."""
    far = Far(tmp_path, None)
    started.append(far)
    far.type("pwd; echo to err >&2; test -t 0 || echo no terminal\nexit 7\n")
    assert far.end() == (7, f"{tmp_path}\nno terminal\n".encode(), b"to err\n")


def test_an_empty_body_is_the_end_of_a_pipe(tmp_path: Path, started: list[Far]) -> None:
    """The shell ends when nothing more comes, and all that it printed arrives."""
    far = Far(tmp_path, None)
    started.append(far)
    far.type("head -c 3000000 /dev/zero | tr '\\0' x\n")
    far.send(frame.BODY, b"")
    code, out, _ = far.end()
    assert (code, len(out)) == (0, 3_000_000)


def test_a_size_makes_a_terminal(tmp_path: Path, started: list[Far]) -> None:
    """With a size there is a terminal of that size, whose keys send signals; it can be resized."""
    far = Far(tmp_path, (30, 90))
    started.append(far)
    far.type("stty size; tty\n")
    far.expect("30 90\r\n/dev/pts/")
    far.send(frame.CALL, {"size": [50, 132]})
    far.type("stty size\n")
    far.expect("50 132\r\n")
    # One program says so and sleeps: a key between two commands of a list is bash's own.
    far.type("sh -c 'echo go-$((1+1)); exec sleep 1000'\n")
    far.expect("go-2\r\n")
    far.type("\x03")
    far.type("echo up-$((1+1))\n")
    far.expect("up-2")
    far.type("exit 3\n")
    assert far.end()[0] == 3


def test_an_unknown_terminal_is_a_common_one(tmp_path: Path, started: list[Far]) -> None:
    """A TERM that the image does not know would leave every program without a screen."""
    far = Far(tmp_path, None, TERM="none-such-256color")
    started.append(far)
    far.type("echo $TERM\nexit\n")
    assert far.end()[1] == b"xterm\n"


@pytest.mark.parametrize("size", [None, (24, 80)])
def test_the_end_of_the_stream_ends_everything(
    tmp_path: Path, started: list[Far], size: tuple[int, int] | None
) -> None:
    """A person who is gone leaves nothing: not the shell, nor what has left its session."""
    far = Far(tmp_path, size)
    started.append(far)
    far.type("(setsid sh -c 'trap \"\" HUP TERM; echo $$ > daemon; exec sleep 1000' &)\n")
    far.type("sleep 1000 & echo $! > job; echo $$ > shell\n")
    far.type("until test -s daemon; do :; done; echo all-$((1+1))-up\n")
    far.expect("all-2-up")
    pids = [int((tmp_path / name).read_text()) for name in ("daemon", "job", "shell")]
    assert all(map(is_alive, pids))
    assert far.child.stdin is not None
    far.child.stdin.close()
    assert far.end()[0] == 128 + signal.SIGHUP
    assert not any(map(is_alive, pids))


def test_a_shell_takes_its_processes_with_it(tmp_path: Path, started: list[Far]) -> None:
    """What was left in the background ends with the shell, and what it printed is not lost."""
    far = Far(tmp_path, None)
    started.append(far)
    far.type("setsid sleep 1000 & echo $! > job; echo last; exit 4\n")
    assert far.end()[:2] == (4, b"last\n")
    assert not is_alive(int((tmp_path / "job").read_text()))


def test_what_is_unreadable_starts_nothing(tmp_path: Path, started: list[Far]) -> None:
    """Bytes that are no frame, or no settings, end it with a sentence and exit code 127."""
    far = Far(tmp_path, None)
    started.append(far)
    assert far.child.stdin is not None
    far.send(frame.PING, b"")  # may be sent to an agent, and is nothing here
    far.child.stdin.write(b"\xff" * 20)
    far.child.stdin.flush()
    code, _, err = far.end()
    assert code == 127 and b"the shell could not be started" in err


# ─── guests ─────────────────────────────────────────────────────────────────────────


def listed(**parents: int) -> dict[int, Process]:
    """Processes `p7=1`: pid 7 with parent 1."""
    found = {}
    for name, parent in parents.items():
        pid = int(name[1:])
        fields = [b"S", b"%d" % parent, b"%d" % pid, b"%d" % pid, *[b"0"] * 15, b"100"]
        found[pid] = Process(pid, fields)
    return found


def test_guests_are_what_came_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's shell and all below it are guests; what comes from process 1 is not."""
    found = listed(p7=0, p8=7, p9=8, p10=1, p11=10, p12=99)
    monkeypatch.setattr(processes, "IS_INIT", True)
    assert guests_among(found) == {7, 8, 9}
    assert guests_among(listed(p10=1, p11=10)) == set()
    monkeypatch.setattr(processes, "IS_INIT", False)
    assert guests_among(found) == set()
