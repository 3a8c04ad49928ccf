"""A user's repository, loops of a real controller in its worktree, and traps that they leave.

A trap is a command that makes a file in a directory of the host that no box has. So a trap
that is sprung inside does nothing, and one that a program of the host springs is seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from executor.catalog import load
from executor.controller import Controller
from executor.git.records import Entry, Records
from executor.git.report import Report
from executor.lane import OpenBox
from executor.model import LoopSpec
from executor.settings import Settings
from tests.conftest import LIMITS, UID
from tests.driver import LoopThread
from tests.loops import Work

OWNER = UID if os.geteuid() == 0 else os.getuid()
SECONDS = 120
CANARY = "canary-of-the-repository"
PRIVATE = (
    *("hooks/post-checkout", "config.worktree", "info/attributes", "modules/sub/config"),
    *("credentials", "logs/refs/heads/secret", "worktrees/another/HEAD", "COMMIT_EDITMSG"),
)
"""Files of a git directory that say something, or have something executed."""
IDENTITY = "[user]\nname = Ada\nemail = ada@example.org\n"
HOOKS = (
    *("post-index-change", "pre-commit", "post-commit", "reference-transaction", "post-checkout"),
    *("post-rewrite", "prepare-commit-msg", "commit-msg", "pre-auto-gc", "post-merge"),
    *("pre-push", "pre-receive", "update", "post-receive", "pre-applypatch", "pre-rebase"),
)
VECTORS = (
    *("core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "core.askPass"),
    *("core.gitProxy", "core.alternateRefsCommand", "diff.external", "diff.x.textconv"),
    *("diff.x.command", "filter.x.clean", "filter.x.smudge", "filter.x.process"),
    *("filter.lfs.clean", "filter.lfs.smudge", "filter.lfs.process", "merge.x.driver"),
    *("gpg.program", "gpg.ssh.program", "gpg.ssh.defaultKeyCommand", "credential.helper"),
    *("alias.status", "alias.st", "sequence.editor", "interactive.diffFilter"),
    *("pager.status", "pager.log", "uploadpack.packObjectsHook", "remote.x.vcs"),
    *("difftool.x.cmd", "mergetool.x.cmd", "man.x.cmd", "browser.x.cmd", "sendemail.smtpServer"),
    *("trailer.x.command", "trailer.x.cmd", "guitool.x.cmd", "tar.x.command", "web.browser"),
    *("submodule.sub.update", "hook.x.command"),
)
"""Settings whose values git, or a program of git's, executes (git-config(1))."""
_SHELL = ("alias.", "credential.", "submodule.")
"""Settings whose values are commands only behind an exclamation mark."""


@dataclass
class Yard:
    """A place of a user's.

    Attributes:
        place: of all that is here; every user may enter it.
        runtime: of the boxes.
        is_linked: the worktree is a linked one, whose `.git` is a file.
    """

    place: Path
    runtime: str
    is_linked: bool = True
    main: Path = field(init=False)
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        for name in ("canaries", "home", "settings"):
            (self.place / name).mkdir()
        self.root = self.place / "worktree"
        self.main = self.place / "origin" if self.is_linked else self.root
        self.main.mkdir()
        (self.place / "home/.gitconfig").write_text(IDENTITY)
        for path in (self.main, self.place / "home", self.place / "canaries"):
            self.give(path)
        (self.place / "canaries").chmod(0o777)
        self.place.chmod(0o777)
        self.git("init", "-q", "-b", "main", place=self.main)
        self.write(self.main / "tracked", "tracked\n")
        self.write(self.main / "d/other", "other\n")
        self.git("add", ".", place=self.main)
        self.git("commit", "-qm", "first", place=self.main)
        if self.is_linked:
            branch = ["-b", "work", str(self.root)]
            self.git("worktree", "add", "-q", *branch, place=self.main)

    # ─── what the user has ───

    @property
    def directory(self) -> Path:
        """The common git directory."""
        return self.main / ".git"

    @property
    def branch(self) -> str:
        """That the worktree has checked out."""
        return "work" if self.is_linked else "main"

    def give(self, path: Path) -> None:
        """Make the user the owner of a tree."""
        for one in [path, *path.rglob("*")]:
            os.chown(one, OWNER, OWNER, follow_symlinks=False)

    def write(self, path: Path, text: str) -> None:
        """Write a file of the user's."""
        made = [one for one in path.parents if not one.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for one in (path, *made):
            os.chown(one, OWNER, OWNER)

    def try_git(
        self, *arguments: str, place: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """What the user's own git comes to, as the user."""
        return subprocess.run(
            ["git", *arguments],
            cwd=place or self.root,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.place / "home"),
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_TERMINAL_PROMPT": "0",
                "LC_ALL": "C",
            },
            user=OWNER if os.geteuid() == 0 else None,
            group=OWNER if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )

    def git(self, *arguments: str, place: Path | None = None) -> str:
        """What the user's own git says; it must succeed."""
        done = self.try_git(*arguments, place=place)
        assert done.returncode == 0, (arguments, done.stderr)
        return str(done.stdout).rstrip("\n")

    def tip(self, name: str = "") -> str:
        """The commit of a branch, by default the worktree's."""
        return self.git("rev-parse", name or self.branch, place=self.main)

    # ─── loops ───

    @property
    def state(self) -> Path:
        """The controller's state directory."""
        return self.place / "state"

    @contextmanager
    def work(self, exec_id: str = "one", **more: Any) -> Iterator[Work]:
        """An open loop; of the worktree, unless a repository is given."""
        given: dict[str, Any] = {"limits": LIMITS, "exec_id": exec_id, "runtime": self.runtime}
        if "repo" not in more:
            given["worktree"] = self.root
        spec = LoopSpec(**{**given, **more})
        opened: list[OpenBox] = []
        with LoopThread() as thread:
            settings = replace(Settings.load(), state_directory=self.state)
            controller = thread.enter(Controller(settings, load()))
            loop = thread.enter(controller.open(spec))
            work = Work(thread, loop, Path(loop.spec.worktree), "docker", opened)
            yield work

    def session(
        self, *scripts: str, exec_id: str = "one", must: bool = True, **more: Any
    ) -> Report:
        """Commands of one loop, each a turn; what the closed loop says that it made and left."""
        with self.work(exec_id, **more) as work:
            for script in scripts:
                result = work.call("run_command", command=script)
                assert not (must and result.is_error), (script, result.content)
        report = work.loop.report
        assert report is not None
        return report

    @property
    def environment(self) -> dict[str, str]:
        """Of the command line."""
        return {**os.environ, "EXECUTOR_STATE_DIR": str(self.state), "NO_COLOR": "1"}

    def executor(self, *arguments: str, code: int | None = 0) -> str:
        """What our command line prints on both outputs."""
        done = subprocess.run(
            [sys.executable, "-m", "executor", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, (arguments, done.returncode, said)
        return said

    def killed(self, *scripts: str, arguments: tuple[str, ...] = ()) -> None:
        """A loop whose controller is killed after these commands."""
        where = () if arguments else ("--worktree", str(self.root))
        command = ["run", *where, "--exec-id", "dead", "--runtime", self.runtime, *arguments]
        with subprocess.Popen(
            [sys.executable, "-m", "executor", *command],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            for number, script in enumerate(scripts):
                call = {"id": f"c{number}", "name": "run_command", "input": {"command": script}}
                process.stdin.write(json.dumps(call) + "\n")
                process.stdin.flush()
                told = process.stdout.readline()
                assert '"is_error": true' not in told and told, told
            process.kill()
            process.wait(30)

    def entries(self) -> list[Entry]:
        """What is kept of loops."""
        return Records(self.state).entries()

    # ─── traps ───

    @property
    def canaries(self) -> Path:
        """The directory of the files that traps make."""
        return self.place / "canaries"

    def sprung(self) -> set[str]:
        """Names of the traps that a program of the host has sprung."""
        return set(os.listdir(self.canaries))

    def command(self, name: str) -> str:
        """A trap, as one shell command."""
        return f"touch {self.canaries}/{name}"

    def vectors(self, where: str) -> str:
        """Text of a configuration that has every setting of `VECTORS`, a trap each."""
        lines = []
        for key in VECTORS:
            section, _, rest = key.partition(".")
            part, _, name = rest.rpartition(".")
            mark = "!" if key.startswith(_SHELL) else ""
            title = f'[{section} "{part}"]' if part else f"[{section}]"
            lines.append(f'{title}\n\t{name} = "{mark}{self.command(f"{where}-{key}")}"')
        lines.append('[hook "x"]\n\tevent = post-index-change')
        lines.append('[remote "x"]\n\turl = ext::sh -c "touch% ' + f'{self.canaries}/{where}-ext"')
        return "\n".join(lines) + "\n"

    def plant(self, directory: str, where: str, *, fatal: bool = False) -> str:
        """Shell: plants all in a git directory of the box: settings, included ones, hooks.

        Args:
            directory: in the box.
            where: part of the canaries' names.
            fatal: also what keeps git from working in that directory at all.
        """
        hook = f"#!/bin/sh\\n{self.command(where + '-hook-')}$(basename $0)\\nexit 0\\n"
        lines = [
            f"mkdir -p {directory}/hooks {directory}/info {directory}/modules/sub",
            f"cat >{directory}/included <<'END'\n{self.vectors(where + '-included')}END",
            f"cat >>{directory}/config <<'END'\n{self.vectors(where)}"
            "[include]\n\tpath = included\n[protocol]\n\tallow = always\nEND",
            f"cp {directory}/included {directory}/modules/sub/config",
            f"echo '* filter=x diff=x merge=x' >{directory}/info/attributes",
            f"for hook in {' '.join(HOOKS)}; do printf '{hook}' >{directory}/hooks/$hook; done",
            f"chmod 755 {directory}/hooks/*",
        ]
        if fatal:
            lines.append(f"printf '[core]\\n\\tworktree = ../..\\n' >>{directory}/config")
        return "\n".join(lines)


@contextmanager
def yard(runtime: str, *, is_linked: bool = True) -> Iterator[Yard]:
    """A place of a user's; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="executor-yard-") as made:
        yield Yard(Path(made).resolve(), runtime, is_linked)


def digest(directory: Path) -> dict[str, str]:
    """Every entry of a tree by its name: mode, owner, and what is in it."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        said = f"{status.st_mode:o} {status.st_uid} {hashlib.sha256(data).hexdigest()}"
        found[str(path.relative_to(directory))] = said
    return found


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Names of what came, went or is not what it was."""
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}
