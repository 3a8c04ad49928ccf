"""What rules deny, at the moment of opening; and gitignore patterns, as git reads them."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent.ignore import Pattern, Patterns, literal
from tests.agent.driver import Tree

# ─── patterns ───────────────────────────────────────────────────────────────────────

NAMES = ("a", "b", "ab", "a.b", ".env", "x]", "-", "A1", " s", "a b", "[", "b!", "#c", "\\")
PIECES = (
    *("a", "b", "ab", "*", "**", "?", "/", "/", ".", "[ab]", "[!a]", "[a-c]", "[^b]", "[]a]"),
    *("[[:alpha:]]", "\\a", "\\*", ".env", "**/", "/**", "!", "[a", "[a\\]]", "[b-a]", "[-a]"),
    *("[[:foo:]]", "A1", "***", " ", "-", "#", "\\", "[/]", "[a-c-e]", "[\\]]"),
)


class Repository:
    """A repository with files of all kinds of names, and git's own word on patterns."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        subprocess.run(["git", "init", "-q", path], check=True)
        chance = random.Random(seed)
        self.paths: dict[str, bool] = {}
        for _ in range(150):
            path = self.path / "/".join(chance.choices(NAMES, k=chance.randint(1, 4)))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except OSError:  # a file is where a directory would have to be
                continue
        for found in self.path.rglob("*"):
            name = str(found.relative_to(self.path))
            if not name.startswith(".git"):
                self.paths[name] = found.is_dir()

    def ignored(self, patterns: list[str]) -> set[str]:
        """The paths that git ignores for these lines."""
        (self.path / ".git/info/exclude").write_text("\n".join(patterns) + "\n")
        done = subprocess.run(
            ["git", "-C", self.path, "check-ignore", "-z", "--stdin", "--no-index"],
            input="".join(f"{path}\0" for path in self.paths),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return {path for path in done.stdout.split("\0") if path}

    def matched(self, patterns: list[str]) -> set[str]:
        """The paths that we say are matched."""
        compiled = Patterns(patterns)
        return {
            path
            for path, is_directory in self.paths.items()
            if compiled.find(path, is_directory=is_directory) is not None
        }


@pytest.mark.parametrize("seed", range(3))
def test_patterns_match_what_git_ignores(seed: int, tmp_path: Path) -> None:
    """Stars, classes, escapes, anchors, negation and directories mean what they mean to git."""
    repository = Repository(tmp_path, seed)
    chance = random.Random(seed)
    for _ in range(120):
        lines = ["".join(chance.choices(PIECES, k=chance.randint(1, 6))) for _ in range(3)]
        lines = [line for line in lines[: chance.randint(1, 3)] if "//" not in line[:3]]
        assert repository.matched(lines) == repository.ignored(lines), lines


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**/.env*", ".env", True),
        ("**/.env*", "a/.env.local/x", True),
        ("**/.env*", ".envrc.md", True),
        ("secrets/", "a/secrets/key", True),
        ("/secrets/**", "secrets/key", True),
        ("/secrets/**", "a/secrets/key", False),
        ("src/*.py", "src/a/b.py", False),
        ("//etc/**", "/etc/passwd", True),
        ("//etc/**", "etc/passwd", False),
        ("*.pem", "/etc/ssl/x.pem", True),
        ("/x", "/x", False),
        ("é?", "éé", True),
    ],
)
def test_where_patterns_are_anchored(pattern: str, path: str, expected: bool) -> None:
    """One slash is the worktree's root, two are the box's; without one a name is anywhere."""
    assert (Patterns([pattern]).find(path) is not None) is expected


def test_an_allowance_is_not_free_of_its_place() -> None:
    """Where patterns allow something, only those that say so reach out of the worktree."""
    patterns = Patterns(["*.py", "//tmp/**"])
    assert patterns.find("a/b.py", anywhere=False) == 0
    assert patterns.find("/usr/b.py", anywhere=False) is None
    assert patterns.find("/usr/b.py") == 0
    assert patterns.find("/tmp/x/y", anywhere=False) == 1


def test_the_last_pattern_decides() -> None:
    """`!` takes back, but nothing below a directory that is matched itself."""
    assert Patterns(["*.key", "!public.key"]).find("public.key") is None
    assert Patterns(["!public.key", "*.key"]).find("public.key") == 1
    assert Patterns(["keys/", "!keys/public.key"]).find("keys/public.key") == 0


@pytest.mark.parametrize("pattern", ["", "  ", "/", "!", "# x", "a[b", "a\\"])
def test_patterns_that_match_nothing_say_so(pattern: str) -> None:
    """A line that git would read as nothing has a fault."""
    assert Pattern(pattern).fault is not None
    assert Patterns([pattern]).find("a") is None


@given(st.text("ab*?[]!# \\/.é\n", min_size=1).filter(lambda text: text.strip("/")))
def test_a_literal_pattern_names_its_path_alone(path: str) -> None:
    """Whatever characters a path has, its pattern matches it and no path beside it."""
    path = "/".join(part for part in path.split("/") if part)
    patterns = Patterns([literal(path)])
    assert patterns.find(path) == 0
    assert patterns.find(path + "x") is None and patterns.find("x/" + path) is None


# ─── files ──────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=[True, False], ids=["openat2", "walk"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    """A workspace with a secret; paths are resolved by the kernel, or walked."""
    tree = Tree(tmp_path, beneath=request.param)
    tree.write(".env", "KEY=1\n")
    tree.write("a/b.txt", "KEY=2\n")
    tree.write("vault/key", "KEY=3\n")
    (tree.path / "x").symlink_to(".env")
    (tree.path / "to-vault").symlink_to("vault")
    yield tree
    tree.workspace.close()


def restrict(tree: Tree, read: tuple[str, ...] = (), write: tuple[str, ...] = ()) -> None:
    pairs = {
        "read": [[pattern, f"Read({pattern})"] for pattern in read],
        "write": [[pattern, f"Edit({pattern})"] for pattern in write],
    }
    tree.call("restrict", **pairs)


SPELLINGS = (".env", "./.env", "a/../.env", "x", "a/../x")


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_of_a_denied_file_is_read(tree: Tree, path: str) -> None:
    """Casebook K94: what is opened counts, not how it was named."""
    restrict(tree, read=("**/.env*",))
    failure = tree.failure("read", path=path)
    assert failure.code == "PERMISSION_DENIED" and "Read(**/.env*)" in failure.message
    assert tree.failure("read", path=path, encoding="base64").code == "PERMISSION_DENIED"
    assert tree.failure("grep", pattern="K", path=path).code == "PERMISSION_DENIED"
    assert tree.call("read", path="a/b.txt")[1] == b"KEY=2"


def test_searches_leave_denied_files_out(tree: Tree) -> None:
    """Grep and glob skip them, below links and in denied directories too, and say how many."""
    restrict(tree, read=("**/.env*", "vault/"))
    for pattern in ("KEY", "no such text"):
        reply, data = tree.call("grep", pattern=pattern)
        assert b"KEY=1" not in data and b"KEY=3" not in data
        assert "2 files left out: rules deny to read them." in reply["warnings"], reply
    assert tree.call("grep", pattern="KEY")[0]["files"] == 1
    reply, data = tree.call("glob", pattern="**/*")
    assert data.split(b"\0") == [b"a/b.txt", b"x"]
    assert "2 files left out" in reply["note"]
    for op in ("grep", "glob"):
        failure = tree.failure(op, pattern="**", path="to-vault")
        assert failure.code == "PERMISSION_DENIED"


def test_a_link_above_the_searched_files_does_not_help(tree: Tree) -> None:
    """Files below a link to a directory are judged by where they are."""
    restrict(tree, read=("/vault/**",))
    reply, data = tree.call("grep", pattern="KEY", path="to-vault")
    assert (reply["files"], data) == (0, b"")
    assert "1 file left out: rules deny to read it." in reply["warnings"]
    assert tree.call("glob", pattern="*", path="to-vault")[1] == b""


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_of_a_denied_file_is_changed(tree: Tree, path: str) -> None:
    """Write, edit, delete and move of it are refused, and nothing is left behind."""
    known = tree.hash(".env")
    restrict(tree, write=(".env",))
    changes: dict[str, dict[str, Any]] = {
        "write": {"path": path, "expect": known},
        "edit": {"path": path, "expect": known, "old": 3},
    }
    for op, arguments in changes.items():
        assert tree.failure(op, b"KEYXXX", **arguments).code == "PERMISSION_DENIED"
    if not path.endswith("x"):  # a link is itself what is deleted and moved
        assert tree.failure("delete", path=path).code == "PERMISSION_DENIED"
        assert tree.failure("move", **{"from": path, "to": "y"}).code == "PERMISSION_DENIED"
    move = {"from": "a/b.txt", "to": ".env", "overwrite": True}
    assert tree.failure("move", **move).code == "PERMISSION_DENIED"
    assert (tree.path / ".env").read_text() == "KEY=1\n"
    assert not list(tree.path.glob("**/.executor-*"))


def test_a_denied_file_is_not_made_either(tree: Tree) -> None:
    """A new file, also through a link to nothing, and the directories on its way."""
    (tree.path / "hole").symlink_to("vault/new/key")
    restrict(tree, write=("vault/",))
    for path in ("vault/new/key", "hole"):
        assert tree.failure("write", b"x", path=path).code == "PERMISSION_DENIED"
    assert not (tree.path / "vault/new").exists()


def test_a_file_that_may_not_be_read_gets_no_other_name(tree: Tree) -> None:
    """Neither by itself nor with a directory that it is in; an edit would tell of its content."""
    known = tree.hash(".env")
    restrict(tree, read=(".env", "/vault/key"))
    for source in (".env", "vault"):
        failure = tree.failure("move", **{"from": source, "to": "y"})
        assert failure.code == "PERMISSION_DENIED"
    failure = tree.failure("edit", b"KEYXXX", path="x", expect=known, old=3)
    assert failure.code == "PERMISSION_DENIED"
    tree.call("move", **{"from": "a", "to": "c"})
    tree.call("move", **{"from": "x", "to": "z"})
    assert (tree.path / "vault/key").exists() and (tree.path / "z").is_symlink()


def test_a_directory_is_deleted_but_for_what_is_denied(tree: Tree) -> None:
    """What may not be changed stays, with the directories above it, and is named."""
    tree.write("vault/other/f", "x")
    restrict(tree, write=("/vault/key",))
    failure = tree.failure("delete", path="vault", recursive=True)
    assert failure.code == "PERMISSION_DENIED" and failure.details is not None
    assert [item["path"] for item in failure.details["failed"]] == ["vault/key"]
    assert sorted(path.name for path in (tree.path / "vault").iterdir()) == ["key"]


def mark(tree: Tree, path: str) -> str:
    """What is at a path now, as `judged` wants it."""
    return tree.call("stat", path=path, follow=False)[0]["mark"] or ""


def test_a_change_loses_what_it_was_judged_by(tree: Tree) -> None:
    """With the mark of what may be lost, anything else in its place is a conflict."""
    move = {"from": "a/b.txt", "to": ".env", "overwrite": True, "judged": mark(tree, ".env")}
    write = {"path": ".env", "judged": mark(tree, ".env")}
    (tree.path / ".env").write_text("other")
    for op, arguments in (("move", move), ("write", write)):
        known = {"expect": tree.hash(".env")} if op == "write" else {}
        for judged in ("", arguments["judged"]):
            failure = tree.failure(op, b"x", **{**arguments, **known, "judged": judged})
            assert failure.code == "CONFLICT", failure.message
    gone = tree.failure("write", b"x", path="new", judged=write["judged"])
    assert (gone.code, "went away" in gone.message) == ("CONFLICT", True)
    tree.call("write", b"x", path="new", judged="")
    tree.call("move", **{**move, "judged": mark(tree, ".env")})
    assert (tree.path / ".env").read_text() == "KEY=2\n"


def test_a_link_that_changes_meanwhile_does_not_help(tree: Tree) -> None:
    """Swapped between a harmless file and the secret as fast as it goes: never the secret."""
    restrict(tree, read=(".env",))
    link, spare = tree.path / "x", tree.path / "spare"
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for target in ("a/b.txt", ".env"):
                os.symlink(target, spare)
                os.rename(spare, link)

    swapper = threading.Thread(target=swap)
    swapper.start()
    outcomes: set[str] = set()
    try:
        for _ in range(3000):
            outcomes.add(_read(tree))
    finally:
        done.set()
        swapper.join(30)
    assert outcomes <= {"KEY=2", "PERMISSION_DENIED"} and len(outcomes) == 2


def _read(tree: Tree) -> str:
    from executor.agent.operation import Failure

    try:
        return tree.call("read", path="x")[1].decode()
    except Failure as failure:
        return failure.code


def test_restrictions_can_be_taken_back(tree: Tree) -> None:
    """Empty lists lift them; a deleted file that is open is known by the name that it had."""
    restrict(tree, read=(".env",))
    restrict(tree)
    assert tree.call("read", path=".env")[1] == b"KEY=1"
    fd = tree.workspace.open(".env", os.O_RDONLY)
    try:
        (tree.path / ".env").unlink()
        assert tree.workspace.real(fd) == ".env"
    finally:
        os.close(fd)
