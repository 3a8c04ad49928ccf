"""Programs of git that the tests of git run with: this machine's, and a newer one."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
"""Where this machine gets its own packages from; the newer ones come from there, too."""
RELEASE = "trixie"
PACKAGES = (
    *("git", "libc6", "libpcre2-8-0", "zlib1g"),
    *("libcurl3t64-gnutls", "libexpat1"),
)
"""Git, and the libraries of its programs that the tests run."""
_DEADLINE = 300.0
_WRAPPER = """#!/bin/sh
# Git of another release, with that release's loader, libraries, programs and templates.
GIT_EXEC_PATH={exec_path}
GIT_TEMPLATE_DIR={templates}
export GIT_EXEC_PATH GIT_TEMPLATE_DIR
exec {loader} --library-path {libraries} --argv0 "$0" {program} "$@"
"""


class Missing(Exception):
    """The newer git's packages can't be had; says why."""


@dataclass(frozen=True, slots=True)
class HostGit:
    """A git to run tests with.

    Attributes:
        program: absolute path of the program.
        version: its major and minor version.
    """

    program: Path
    version: tuple[int, int]

    @classmethod
    def of(cls, program: Path) -> HostGit:
        """The git that `program` is."""
        told = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True, timeout=30
        ).stdout
        found = re.fullmatch(r"git version (\d+)\.(\d+)\b.*", told.strip())
        assert found is not None, told
        return cls(program, (int(found[1]), int(found[2])))


class _Release:
    """Packages of Debian's next release, with a state of apt of their own.

    Nothing of this machine's apt is changed: its sources give the server and the key only.
    """

    def __init__(self, directory: Path) -> None:
        """Makes the directories of that state below `directory`."""
        self._directory = directory
        for name in ("sources", "state/lists/partial", "cache/archives/partial", "packages"):
            (directory / name).mkdir(parents=True)
        (directory / "status").touch()

    def fetch(self) -> list[Path]:
        """The packages, downloaded and checked by apt."""
        (self._directory / "sources" / "newer.sources").write_text(_newer_sources())
        self._apt("update")
        self._apt("download", *PACKAGES)
        return sorted((self._directory / "packages").glob("*.deb"))

    def _apt(self, *arguments: str) -> None:
        options = {
            "Dir::Etc::sourcelist": os.devnull,
            "Dir::Etc::sourceparts": self._directory / "sources",
            "Dir::State": self._directory / "state",
            "Dir::State::status": self._directory / "status",
            "Dir::Cache": self._directory / "cache",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::Retries": "1",
        }
        given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        _run("apt-get", "-qq", *given, *arguments, cwd=self._directory / "packages")


def _run(*command: str | Path, cwd: Path) -> None:
    """Runs it, or says what it said."""
    try:
        subprocess.run(
            command, cwd=cwd, check=True, capture_output=True, text=True, timeout=_DEADLINE
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()[-1:]
        raise Missing(f"{command[0]} {command[-1]}: {' '.join(said)}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from None


def _newer_sources() -> str:
    """The first of this machine's sources of Debian, of the newer release."""
    try:
        lines = SOURCES.read_text().split("\n\n")[0].splitlines()
    except OSError as error:
        raise Missing(f"no sources of Debian's packages are known: {error}") from None
    kept = [line for line in lines if line.startswith(("Types:", "URIs:", "Signed-By:"))]
    return "\n".join([*kept, f"Suites: {RELEASE}", "Components: main", ""])


def _unpack(packages: list[Path], root: Path) -> None:
    """Lays the packages' files out below `root`; no script of theirs runs."""
    for package in packages:
        _run("dpkg-deb", "-x", package, root, cwd=root)


def _wrap(root: Path, wrapper: Path) -> None:
    """Writes the program that runs the git of `root` from everywhere.

    The `git` among git's own programs is one, too, because git starts them by their paths and
    the machine's loader can't. Most of the others are symbolic links to it; it tells by its
    name which it is asked for.
    """
    loader = next(root.glob("usr/lib/*/ld-linux*.so*"))
    core = root / "usr/lib/git-core"
    parts = {
        "exec_path": core,
        "templates": root / "usr/share/git-core/templates",
        "loader": loader,
        "libraries": loader.parent,
        "program": core / "git.program",
    }
    (core / "git").rename(core / "git.program")
    for path in (core / "git", wrapper):
        path.write_text(_WRAPPER.format(**{k: shlex.quote(str(v)) for k, v in parts.items()}))
        path.chmod(0o755)


def _build(directory: Path) -> HostGit:
    """A newer git below `directory`."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Missing(f"there is no {program} on this machine")
    root = directory / "root"
    root.mkdir()
    _unpack(_Release(directory / "apt").fetch(), root)
    wrapper = directory / "git"
    _wrap(root, wrapper)
    return HostGit.of(wrapper)


@pytest.fixture(scope="session")
def machine_git() -> HostGit:
    """This machine's git."""
    found = shutil.which("git")
    if found is None:
        pytest.skip("there is no git on this machine")
    return HostGit.of(Path(found))


@pytest.fixture(scope="session")
def newer_git(tmp_path_factory: pytest.TempPathFactory) -> HostGit:
    """The git of Debian's next release, with everything that it needs of that release."""
    try:
        return _build(tmp_path_factory.mktemp("newer-git"))
    except Missing as missing:
        pytest.skip(f"the packages of a newer git can't be had: {missing}")


@pytest.fixture(scope="session", params=["machine", "newer"])
def host_git(request: pytest.FixtureRequest) -> HostGit:
    """Each git that the host may have: Debian 12's and 13's."""
    found: HostGit = request.getfixturevalue(f"{request.param}_git")
    return found
