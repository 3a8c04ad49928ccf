"""Trees for tests of what looks at, copies and removes them."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("a", "b", "c", "d", "e", "- -", "ü", "\udcff\udcfe", "new\nline", "x" * 255)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and give away")


def snapshot(root: Path) -> dict[str, tuple[Any, ...]]:
    """All that a copy has to have in common with a tree, hard links as groups."""
    found: dict[str, tuple[Any, ...]] = {}
    groups: dict[int, str] = {}
    for directory, directories, files in os.walk(root):
        for name in sorted(directories + files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            shown = os.path.relpath(path, root)
            facts: tuple[Any, ...] = (kind, status.st_uid, status.st_gid)
            if stat.S_ISLNK(kind):
                facts += (os.readlink(path),)
            elif stat.S_ISREG(kind):
                group = groups.setdefault(status.st_ino, shown) if status.st_nlink > 1 else ""
                content = Path(path).read_bytes()
                facts += (stat.S_IMODE(status.st_mode), status.st_mtime_ns, content, group)
            else:
                facts += (stat.S_IMODE(status.st_mode),)
            found[shown] = facts
    return found


def grow(root: Path, dice: random.Random, entries: int, canary: Path | None = None) -> None:
    """Makes random entries; links lead to the canary, to one another, or nowhere."""
    places = [root]
    for _ in range(entries):
        path = dice.choice(places) / f"{dice.choice(NAMES)[:200]}{dice.randrange(50)}"
        if os.path.lexists(path):
            continue
        kind = dice.choice(("directory", "file", "file", "link", "hard link"))
        if kind == "directory":
            path.mkdir()
            places.append(path)
        elif kind == "file":
            path.write_bytes(dice.randbytes(dice.choice((0, 1, 100, 70_000))))
        elif kind == "link":
            targets = [os.fspath(place) for place in places] + ["..", "nowhere", "/", "."]
            path.symlink_to(dice.choice([*targets, os.fspath(canary or root)]))
        else:
            files = [one for one in places[-1].iterdir() if one.is_file() and not one.is_symlink()]
            if files:
                os.link(dice.choice(files), path)


def alter(root: Path, dice: random.Random, changes: int) -> None:
    """What a loop may do to its worktree, at random."""
    for _ in range(changes):
        entries = [Path(d, n) for d, ds, fs in os.walk(root) for n in ds + fs]
        if not entries:
            return
        path = dice.choice(entries)
        status = os.lstat(path)
        kind = dice.choice(("remove", "rewrite", "in place", "mode", "rename", "link", "swap"))
        if kind == "remove":
            remove(path)
        elif kind == "mode" and not path.is_symlink():
            path.chmod(dice.choice((0o600, 0o755, 0o700, 0o444)))
        elif kind == "rename":
            with contextlib.suppress(OSError):
                path.rename(dice.choice(entries))
        elif kind == "swap":
            remove(path)
            if stat.S_ISDIR(status.st_mode):
                path.write_bytes(b"was a directory")
            else:
                path.mkdir()
                (path / "inside").symlink_to("..")
        elif stat.S_ISREG(status.st_mode):
            _change_file(path, status, dice, kind)


def _change_file(path: Path, status: os.stat_result, dice: random.Random, kind: str) -> None:
    if kind == "rewrite":
        path.unlink()
        path.write_bytes(dice.randbytes(50))
    elif kind == "in place":
        # The same size and the same time: only the content tells.
        path.write_bytes(dice.randbytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif kind == "link":
        with contextlib.suppress(FileExistsError):
            os.link(path, path.with_name(f"link{dice.randrange(99)}"))


def remove(path: Path) -> None:
    """By the system's own program: what is tested here is not used to test it."""
    subprocess.run(["rm", "-rf", "--", path], check=True)


def deep(root: Path, levels: int) -> None:
    """Directories in one another, deeper than any path can name."""
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=directory))
    os.close(directory)


@contextlib.contextmanager
def small_disk(place: Path, options: str = "size=1m") -> Iterator[Path]:
    """A file system in memory."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@contextlib.contextmanager
def directory(path: Path) -> Iterator[int]:
    """A descriptor of a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
