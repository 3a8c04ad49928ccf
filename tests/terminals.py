"""A terminal for tests: a program in a pty, and what a real terminal would answer it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.conftest import make_worktree

SECONDS = 120
COMMAND = [sys.executable, "-m", "executor"]
PROMPT = r"\$ "
REQUESTS = re.compile(
    rb"\x05"  # ENQ
    rb"|\x1bZ|\x1b\[[>=?]?[0-9;]*c"  # device attributes
    rb"|\x1b\[\??[0-9;]*n"  # status, cursor position
    rb"|\x1b\[[0-9;]*[tx]"  # window and title, parameters
    rb"|\x1b\[>[0-9;]*q|\x1b\[\??[0-9;]*\$p"  # version, modes
    rb"|\x1b\[\?[0-9;]*[uS]|\x1b\[[0-9;]*\*y|\x1b\[\?[0-9;]*m"
    rb"|\x1b\][0-9;]*\?(?:\a|\x1b\\)|\x1b\]52;[^;]*;\?(?:\a|\x1b\\)"  # colours, clipboard
    rb"|\x1bP(?:\$q|\+q)[^\x1b]*\x1b\\|\x1b_G[^\x1b]*\x1b\\"  # settings, graphics
)
"""What makes a terminal write to the program that reads it."""
ANSWER = b"\x1b[answer"


class Screen:
    """A program whose standard streams are a terminal. Everything is bounded.

    Attributes:
        shown: every byte that the program has written.
        answers: how often a real terminal would have answered; each answer was typed.
    """

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        size: tuple[int, int] = (24, 80),
        **more: Any,
    ) -> None:
        self.near, far = pty.openpty()
        self.far = far
        self.shown = b""
        self.answers = 0
        self._looked = 0
        self._answered = 0
        self.resize(*size)
        self.modes = termios.tcgetattr(far)
        streams = {"stdin": far, "stdout": far, "stderr": far, **more}
        self.process = subprocess.Popen(
            arguments,
            env=dict(environment),
            start_new_session=True,
            # A session's leader gets the terminal as its own, so that keys send signals.
            preexec_fn=lambda: fcntl.ioctl(far, termios.TIOCSCTTY, 0),  # noqa: PLW1509
            **streams,
        )

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end()
        self.close()

    def _end(self) -> None:
        """A program that a failed test has left is asked first, so that its box goes with it."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
                return
            self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        """The person closes the terminal's window."""
        for end in (self.near, self.far):
            if end >= 0:
                os.close(end)
        self.near = self.far = -1

    def resize(self, rows: int, columns: int) -> None:
        """The person changes the window's size."""
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """The person types."""
        os.write(self.near, text.encode())

    def expect(self, pattern: str, timeout: float = 60) -> str:
        """Wait until what has come since the last call matches; what came up to there.

        Raises:
            AssertionError: it does not in time.
        """
        until = time.monotonic() + timeout
        compiled = re.compile(pattern.encode())
        while (match := compiled.search(self.shown, self._looked)) is None:
            is_open = self._read(until - time.monotonic())
            assert is_open, f"{pattern!r} never came: {self.shown[self._looked :]!r}"
        before = self.shown[self._looked : match.end()]
        self._looked = match.end()
        return before.decode("utf-8", "replace")

    def take(self) -> None:
        """Read what is there now, so that whoever writes it is not held up."""
        while self._read(0):
            pass

    def wait(self, timeout: float = 60) -> int:
        """The program's exit code; reads what it prints meanwhile."""
        until = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < until, f"it still runs: {self.shown[-2000:]!r}"
            self._read(0.1)
        self.take()
        return self.process.returncode

    def stop(self, number: signal.Signals) -> None:
        """Send the program a signal."""
        self.process.send_signal(number)

    def is_as_before(self) -> bool:
        """Whether the terminal's modes are those that it had before the program."""
        return termios.tcgetattr(self.far) == self.modes

    def _read(self, timeout: float) -> bool:
        if timeout < 0 or not select.select([self.near], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self.near, 1 << 16)
        except OSError:
            return False
        self.shown += data
        for match in REQUESTS.finditer(self.shown, self._answered):
            self._answered = match.end()
            self.answers += 1
            os.write(self.near, ANSWER)
        return bool(data)


class Machine:
    """A state directory, a worktree, and programs that use them."""

    def __init__(self, directory: Path) -> None:
        self.worktree = make_worktree(directory / "worktree")
        self.environment = {
            **os.environ,
            "EXECUTOR_STATE_DIR": str(directory / "state"),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "PYTHONPATH": str(Path(__file__).parent.parent),
            "TERM": "xterm-256color",
        }

    def shell(self, *arguments: str, **more: Any) -> Screen:
        """`executor shell` in a terminal."""
        return Screen([*COMMAND, "shell", *arguments], self.environment, **more)

    def own_shell(self, *arguments: str) -> Screen:
        """The same with a box of its own; the prompt has come."""
        screen = self.shell("--worktree", str(self.worktree), *arguments)
        screen.expect(PROMPT, SECONDS)
        return screen

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """A command of the program without a terminal."""
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
