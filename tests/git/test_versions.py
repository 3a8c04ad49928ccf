"""The gits that the tests run with are whole, and each is what it says."""

from __future__ import annotations

import hashlib
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.git.conftest import HostGit

WHO = "Ada <ada@example.org> 1700000000 +0000"


def run(
    git: HostGit, directory: Path, *arguments: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """One command of that git in `directory`, without anybody's configuration."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        **{f"GIT_{role}_NAME": "Ada" for role in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{role}_EMAIL": "ada@example.org" for role in ("AUTHOR", "COMMITTER")},
    }
    return subprocess.run(
        [git.program, *arguments],
        cwd=directory,
        env=environment,
        input=given,
        capture_output=True,
        check=False,
        timeout=60,
    )


def out(git: HostGit, directory: Path, *arguments: str, given: bytes = b"") -> str:
    """What a command printed that did what it was asked for."""
    done = run(git, directory, *arguments, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def pack(objects: list[tuple[int, bytes]]) -> bytes:
    """A pack of whole objects, each of a type number and at most 2 KiB."""
    body = b"PACK" + (2).to_bytes(4, "big") + len(objects).to_bytes(4, "big")
    for number, content in objects:
        size = len(content)
        body += bytes([0x80 | number << 4 | size & 0xF, size >> 4]) + zlib.compress(content)
    return body + hashlib.sha1(body).digest()


def named(kind: str, content: bytes) -> bytes:
    """The name of an object, as bytes."""
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).digest()


def history(name: bytes) -> bytes:
    """A pack of one commit whose tree has one file of that name."""
    blob = b"text\n"
    tree = b"100644 " + name + b"\0" + named("blob", blob)
    commit = f"tree {named('tree', tree).hex()}\nauthor {WHO}\ncommitter {WHO}\n\nx\n".encode()
    return pack([(3, blob), (2, tree), (1, commit)])


def test_two_releases_are_tested_with(machine_git: HostGit, newer_git: HostGit) -> None:
    """The second git is newer than the machine's, or the machine is as new."""
    assert newer_git.version >= max(machine_git.version, (2, 47))


def test_a_commit_is_made(host_git: HostGit, tmp_path: Path) -> None:
    """It starts its own helpers: what one of them has packed is read back."""
    out(host_git, tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "file").write_text("text\n")
    out(host_git, tmp_path, "add", "file")
    out(host_git, tmp_path, "commit", "-q", "-m", "first")
    out(host_git, tmp_path, "repack", "-adq")
    out(host_git, tmp_path, "clone", "-q", "--no-local", str(tmp_path), "copy")
    assert out(host_git, tmp_path / "copy", "log", "--format=%s %an") == "first Ada"


def test_its_programs_are_its_own(host_git: HostGit, tmp_path: Path) -> None:
    """An alias that is a command finds the same git on its `PATH`."""
    told = out(host_git, tmp_path, "-c", "alias.x=!git --version", "x")
    assert told == out(host_git, tmp_path, "--version")


def test_a_sound_pack_is_taken(host_git: HostGit, tmp_path: Path) -> None:
    """A file of an ordinary name passes the strict check."""
    out(host_git, tmp_path, "init", "-q", "--bare", ".")
    told = out(host_git, tmp_path, "index-pack", "--strict", "--stdin", given=history(b"file"))
    assert told.startswith("pack\t")


@pytest.mark.parametrize(
    "name", [b".git", b".GIT", b"git~1", b".", b"..", b"a/b", b".git\xe2\x80\x8c"]
)
def test_a_bad_tree_is_refused(host_git: HostGit, tmp_path: Path, name: bytes) -> None:
    """A tree that would write into a git directory, or outside, does not pass it."""
    out(host_git, tmp_path, "init", "-q", "--bare", ".")
    done = run(host_git, tmp_path, "index-pack", "--strict", "--stdin", given=history(name))
    assert done.returncode != 0
    assert b"fsck error" in done.stderr
