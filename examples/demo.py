"""The main job on a real project: `make demo`.

A small project with a failing test becomes a temporary git repository with a worktree.
`executor run` works through a recorded agent transcript in that worktree: it finds the
fault, mends it, proves it and commits it. Then `executor git import` takes the commit over, and
this script looks from outside at what came of it.
Exit code 0: everything is as expected.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

HERE = Path(__file__).resolve().parent
PROJECT = HERE / "inventory"
TRANSCRIPT = HERE / "transcript.jsonl"
EXECUTOR = (sys.executable, "-m", "executor")

FAULTY = "inventory/orders.py"
BRANCH = "mend"
SUBJECT_LINE = "Count an item that stands on two lines once"
HOOKS = ("pre-commit", "post-commit", "reference-transaction", "post-index-change", "post-checkout")
"""Programs of the repository that git would run on the host: none of them may."""
TOUCHED = ("objects/", "refs/", "logs/", "worktrees/")
"""All that an import may change in the repository."""
MEMORY = 512 << 20
PIDS = 128
PLAIN_UID = 1000
"""Owner of the worktree where root runs the demo: the box runs as the worktree's owner."""
PATIENCE = 300
"""Seconds that the run may take before it is given up."""
ENDING = 30
"""Seconds that `executor run` has to clean up after a signal."""
WHOLE, END, START = 12, 4, 5
"""Lines of a result that are shown: all of a short one; the end of a command's; the start."""

INDENT, SUBJECT = 15, 56
"""Columns: what a result is indented by, what is shown of a call's subject."""

console = Console(highlight=False, markup=False, soft_wrap=True)


class Unexpected(Exception):
    """The demo can't go on; the text is one sentence for the person who started it."""


# ─── the project, its repository and the worktree ───────────────────────────────────


@dataclass(frozen=True)
class Worktree:
    """A git worktree of the example project, made for one run."""

    path: Path
    uid: int
    gid: int

    @property
    def repository(self) -> Path:
        """The checkout that it is a worktree of."""
        return self.path.parent / "repository"

    @property
    def hooked(self) -> Path:
        """Where the repository's hooks note that one ran."""
        return self.path.parent / "hooked"

    @property
    def environment(self) -> dict[str, str]:
        """Of `executor`: what it keeps of the loop is gone with the worktree."""
        return {**os.environ, "EXECUTOR_STATE_DIR": str(self.path.parent / "state")}

    def contents(self) -> dict[str, str]:
        """Digests of all files of the repository's `.git`."""
        root = self.repository / ".git"
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.is_file()
        }

    def git(self, *arguments: str, directory: Path | None = None) -> str:
        """The output of git, run as the worktree's owner with no hook or user's setting.

        Raises:
            Unexpected: git is missing or failed.
        """
        command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
        command += ["-C", str(directory or self.path), *arguments]
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "Demo"),
            **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "demo@localhost"),
        }
        is_root = os.geteuid() == 0
        try:
            done = subprocess.run(
                command,
                env=environment,
                user=self.uid if is_root else None,
                group=self.gid if is_root else None,
                extra_groups=[] if is_root else None,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise Unexpected("git is not installed; install it and run again") from error
        if done.returncode != 0:
            raise Unexpected(f"git {arguments[0]} failed: {done.stderr.strip()}")
        return done.stdout


@contextlib.contextmanager
def prepared() -> Iterator[Worktree]:
    """The committed project and a worktree of it; both are gone afterwards."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        uid = gid = PLAIN_UID
    with tempfile.TemporaryDirectory(prefix="executor-demo-") as name:
        worktree = Worktree(Path(name, "worktree"), uid, gid)
        skipped = shutil.ignore_patterns("__pycache__", ".pytest_cache")
        shutil.copytree(PROJECT, worktree.repository, ignore=skipped)
        if os.geteuid() == 0:
            for path in (Path(name), *Path(name).rglob("*")):
                os.chown(path, uid, gid, follow_symlinks=False)
        for arguments in (
            ("init", "-q"),
            ("add", "-A"),
            ("commit", "-q", "-m", "Stock and orders"),
            ("config", "user.name", "Demo"),
            ("config", "user.email", "demo@localhost"),
            ("worktree", "add", "-q", "-b", BRANCH, str(worktree.path)),
        ):
            worktree.git(*arguments, directory=worktree.repository)
        for hook in HOOKS:
            place = worktree.repository / ".git" / "hooks" / hook
            place.write_text(f"#!/bin/sh\necho {hook} >> '{worktree.hooked}'\n")
            place.chmod(0o755)
        yield worktree


# ─── the run ────────────────────────────────────────────────────────────────────────


@dataclass
class Run:
    """What `executor run` gave.

    Attributes:
        results: by the call's id.
        said: lines of its stderr.
        imported: what `executor git import` printed.
        repository: digests of the repository's files before the run, after it, and after the
            import.
    """

    exec_id: str
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    exit_code: int | None = None
    imported: str = ""
    repository: list[dict[str, str]] = field(default_factory=list)

    @property
    def last_words(self) -> str:
        """The last line that it wrote for people."""
        return self.said[-1] if self.said else "it said nothing"

    def structured(self, id: str) -> dict[str, Any]:
        """The structured result of a call; empty if there is none."""
        return self.results.get(id, {}).get("structured") or {}

    def values(self, id: str) -> dict[str, str]:
        """`name value` lines of a command's output."""
        lines = str(self.structured(id).get("stdout", "")).splitlines()
        return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def calls_of(transcript: Path) -> dict[str, dict[str, Any]]:
    """The calls of a transcript by their ids, from all three forms of a line."""
    found: dict[str, dict[str, Any]] = {}
    for line in transcript.read_text().splitlines():
        value = json.loads(line)
        calls = value if isinstance(value, list) else value.get("content", [value])
        found |= {call["id"]: call for call in calls if "name" in call}
    return found


def play(worktree: Worktree, on_result: Callable[[dict[str, Any]], None]) -> Run:
    """Have the transcript executed in the worktree.

    Raises:
        Unexpected: it took far too long, or its output is no result line.
    """
    run = Run(f"demo-{secrets.token_hex(4)}", repository=[worktree.contents()])
    command = [*EXECUTOR, "run", "--worktree", str(worktree.path), "--calls", str(TRANSCRIPT)]
    command += ["--exec-id", run.exec_id, "--memory", str(MEMORY), "--pids", str(PIDS)]
    command += ["--cpus", "1"]
    console.print(f"$ executor {' '.join(command[len(EXECUTOR) :])}\n", style="dim")
    with (
        subprocess.Popen(
            command,
            env=worktree.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
        _ended(process),
    ):
        listener = threading.Thread(target=_listen, args=(process, run), daemon=True)
        listener.start()
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.daemon = True
        watchdog.start()
        assert process.stdout is not None, "a pipe was asked for"
        for line in process.stdout:
            try:
                result = json.loads(line)
                run.results[result["id"]] = result
            except (ValueError, TypeError, KeyError) as error:
                raise Unexpected(f"executor run wrote what is no result line: {line!r}") from error
            on_result(result)
        run.exit_code = process.wait(ENDING)
        watchdog.cancel()
        listener.join(ENDING)
    return run


def take_over(worktree: Worktree, run: Run) -> None:
    """Have the loop's commit taken over into the repository.

    Raises:
        Unexpected: it was not.
    """
    run.repository.append(worktree.contents())
    command = [*EXECUTOR, "git", "import", run.exec_id]
    console.print(f"\n$ executor {' '.join(command[len(EXECUTOR) :])}", style="dim")
    done = subprocess.run(
        command, env=worktree.environment, capture_output=True, text=True, check=False
    )
    run.imported = visible(done.stdout)
    console.print(run.imported.rstrip())
    if done.returncode != 0:
        raise Unexpected(f"executor git import failed: {visible(done.stderr).strip()}")
    run.repository.append(worktree.contents())


def _listen(process: subprocess.Popen[bytes], run: Run) -> None:
    """Show what it says before the first result; later it would only say all things twice."""
    assert process.stderr is not None, "a pipe was asked for"
    for line in process.stderr:
        text = visible(line.decode("utf-8", "replace").rstrip())
        run.said.append(text)
        if not run.results:
            console.print(text, style="dim")


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """If this script is interrupted, so is the run; it gets time to remove its container."""
    try:
        yield
    except BaseException:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
        raise


# ─── what a person sees ─────────────────────────────────────────────────────────────


def visible(text: str) -> str:
    """Text out of a box as a terminal may be shown it: no control character acts."""
    return "".join(
        char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}"
        for char in text.expandtabs(4)
    )


def show(call: dict[str, Any], result: dict[str, Any]) -> None:
    """One call: what was asked, how long it took, and the gist of the answer."""
    exit_code = (result.get("structured") or {}).get("exit_code")
    ending = f"exit {exit_code}" if exit_code is not None else result.get("code") or ""
    mark, style = ("✗", "red") if result["is_error"] else ("✓", "green")
    head = Text.assemble(
        (f"{mark} ", style),
        (f"{result['duration_ms']:8.1f} ms  ", "cyan"),
        (f"{call['name']:<14} ", "bold"),
        f"{subject(call)}  ",
        (str(ending), style),
    )
    console.print(head)
    for line in gist(visible(str(result["content"])), is_command=exit_code is not None):
        console.print(f"{'':{INDENT}}{shortened(line, console.width - INDENT)}", style="dim")


def shortened(line: str, room: int) -> str:
    """The line, or as much of it as there is room for."""
    return line if len(line) <= room else line[: room - 1] + "…"


def subject(call: dict[str, Any]) -> str:
    """What a call is about, in one short line."""
    given = call["input"]
    for name in ("command", "pattern", "path", "code", "summary"):
        if name in given:
            first, *rest = visible(str(given[name])).splitlines()
            return shortened(first + "…" * bool(rest), SUBJECT)
    return ""


def gist(text: str, *, is_command: bool) -> list[str]:
    """A text of few lines whole, otherwise the part that says most."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) <= WHOLE:
        return lines
    if is_command:
        return [f"… {len(lines) - END} lines before", *lines[-END:]]
    return [*lines[:START], f"… {len(lines) - START} more lines"]


# ─── what has to be true afterwards ─────────────────────────────────────────────────


@dataclass(frozen=True)
class Check:
    """One expectation: what was seen, and whether it is what it has to be."""

    is_met: bool
    sentence: str


def checks_of(run: Run, worktree: Worktree) -> list[Check]:
    """Everything that this demo promises, judged from results and from the host."""
    return [
        Check(
            run.results.keys() == calls_of(TRANSCRIPT).keys(),
            f"every call of the transcript has its result ({len(run.results)})",
        ),
        Check(
            (failed := [id for id, result in run.results.items() if result["is_error"]]) == ["red"],
            f"one call failed, the test run before the edit: {', '.join(failed)}",
        ),
        *_project_checks(run, worktree),
        *_git_checks(run, worktree),
        *_box_checks(run, worktree),
    ]


def _project_checks(run: Run, worktree: Worktree) -> Iterator[Check]:
    red, green = run.structured("red"), run.structured("green")
    yield Check(
        red.get("exit_code") == 1 and "1 failed, 12 passed" in red.get("stdout", ""),
        "the tests were red before the edit",
    )
    yield Check(
        green.get("exit_code") == 0 and "13 passed" in green.get("stdout", ""),
        "the tests were green after it",
    )
    owner = (worktree.path / FAULTY).stat().st_uid
    yield Check(owner == worktree.uid, f"the file belongs to the worktree's owner (uid {owner})")
    completed = run.structured("done").get("completed")
    yield Check(completed is True, "the task was completed")


def _git_checks(run: Run, worktree: Worktree) -> Iterator[Check]:
    before, after, imported = run.repository if len(run.repository) == 3 else ({}, {"": ""}, {})
    sentence = f"while the loop ran, none of the {len(before)} files of .git changed"
    yield Check(before == after, sentence)
    commit = worktree.git("log", "-1", "--format=%h %an: %s", BRANCH).strip()
    changed = (
        worktree.git("diff", "--name-status", f"{BRANCH}~1", BRANCH).split() if imported else []
    )
    yield Check(
        commit.endswith(f"Demo: {SUBJECT_LINE}") and changed == ["M", FAULTY],
        f"on the host, the branch {BRANCH} has the agent's commit, of one file: {commit}",
    )
    touched = {name for name, _ in before.items() ^ imported.items()}
    yield Check(
        bool(touched) and all(name.startswith(TOUCHED) for name in touched),
        "the import brought objects and refs, and touched no configuration and no hook",
    )
    status = worktree.git("status", "--porcelain").splitlines()
    yield Check(bool(imported) and not status, "the worktree is clean: git status shows nothing")
    ran = worktree.hooked.read_text().split() if worktree.hooked.exists() else []
    sentence = f"no hook of the repository ran on the host{': ' * bool(ran)}{', '.join(ran)}"
    yield Check(bool(imported) and not ran, sentence)


def _box_checks(run: Run, worktree: Worktree) -> Iterator[Check]:
    network, limits = str(run.structured("network").get("stdout", "")), run.values("limits")
    refused = network.count("ENETUNREACH") == 3 and "name not resolved" in network
    yield Check(
        refused and network.startswith("interfaces lo\n"),
        "the network was off: loopback only, no route, no names",
    )
    yield Check(limits.get("memory") == str(MEMORY), f"memory limit {limits.get('memory')} bytes")
    yield Check(limits.get("pids") == str(PIDS), f"process limit {limits.get('pids')}")
    uid, _, _ = limits.get("uid", "").partition(" ")
    yield Check(uid == str(worktree.uid), f"commands ran as the worktree's owner (uid {uid})")
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    powers = {limits.get(name, "") for name in sets}
    yield Check(powers == {"0" * 16}, "no capability, in none of the five sets")
    yield Check(
        (limits.get("NoNewPrivs"), limits.get("Seccomp"), limits.get("root"))
        == ("1", "2", "read-only"),
        "no new privileges, system calls filtered, root file system read-only",
    )
    left = [row for row in boxes() if row.get("loop") == run.exec_id]
    yield Check(not left, "no container is left")


def boxes() -> list[dict[str, Any]]:
    """The containers that `executor ps` knows of.

    Raises:
        Unexpected: it failed.
    """
    done = subprocess.run([*EXECUTOR, "ps", "--json"], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise Unexpected(f"executor ps ended with exit code {done.returncode}")
    rows: list[dict[str, Any]] = json.loads(done.stdout) if done.stdout.strip() else []
    return rows


# ─── all of it ──────────────────────────────────────────────────────────────────────


def make_images() -> None:
    """Make the images where they are missing; the command shows its own progress.

    Raises:
        Unexpected: there is no engine, or they could not be made.
    """
    done = subprocess.run([*EXECUTOR, "images", "build"], stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Unexpected("the images could not be made; the reason stands above")


def demo() -> None:
    """The whole demo.

    Raises:
        Unexpected: something is not as it has to be.
    """
    make_images()
    calls = calls_of(TRANSCRIPT)
    with prepared() as worktree:
        console.print("A git worktree of the project examples/inventory, one test fails.")
        started = time.monotonic()
        run = play(worktree, lambda result: show(calls[result["id"]], result))
        seconds = time.monotonic() - started
        if run.exit_code != 0:
            raise Unexpected(f"executor run ended with exit code {run.exit_code}: {run.last_words}")
        inside = sum(result["duration_ms"] for result in run.results.values()) / 1000
        console.print(
            f"\n{len(run.results)} calls, {inside:.2f} s in them, {seconds:.2f} s from start to end"
        )
        take_over(worktree, run)
        diff = worktree.git("show", "--no-ext-diff", "--no-textconv", BRANCH)
        console.print(f"\nWhat the host sees (git show {BRANCH}):", style="bold")
        console.print(Syntax(visible(diff), "diff", theme="ansi_dark", background_color="default"))
        checks = checks_of(run, worktree)
    console.print("What had to be true:", style="bold")
    for check in checks:
        console.print(
            f"{'✓' if check.is_met else '✗'} {check.sentence}",
            style="green" if check.is_met else "red",
        )
    missed = [check.sentence for check in checks if not check.is_met]
    if missed:
        raise Unexpected(f"not as expected: {'; '.join(missed)}")


def _on_signal(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(description="The main job on a real project.")
    parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGHUP, _on_signal)
    try:
        demo()
    except Unexpected as error:
        console.print(f"demo: {error}", style="bold red")
        return 1
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything temporary was removed", style="bold")
        return 130
    console.print("The demo went as expected.", style="bold green")
    return 0


if __name__ == "__main__":
    sys.exit(main())
