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

from executor.agent import restrictions
from executor.agent.files import OPERATIONS as FILES
from executor.agent.ignore import Pattern, Patterns, literal
from executor.agent.operation import Failure
from tests.agent.driver import Tree, changed

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


def test_what_is_looked_through_is_what_is_moved(tree: Tree) -> None:
    """Another directory that takes its place while it is looked through is not moved."""
    restrict(tree, read=("/vault/**",))
    tree.write("p/vault/f", "x")
    (tree.path / "way").symlink_to("p")
    steps = FILES["move"](tree.workspace, {"from": "way/vault", "to": "y"}, b"")
    assert not isinstance(steps, tuple)
    with changed(restrictions, _SLICE=1):
        next(steps)
        (tree.path / "way").unlink()
        (tree.path / "way").symlink_to(".")
        with pytest.raises(Failure) as caught:
            while True:
                next(steps)
    assert caught.value.code == "CONFLICT"
    assert (tree.path / "vault/key").exists() and not (tree.path / "y").exists()


def test_nothing_is_moved_to_a_name_that_may_not_be_written(tree: Tree) -> None:
    """A directory does not bring to a denied place what could not be written there."""
    tree.write("w/flows/evil", "x")
    (tree.path / "here").symlink_to(".")
    restrict(tree, write=("/.ci/flows/**",))
    for target in (".ci", "./.ci/", "here/.ci", str(tree.path / ".ci"), "a/../.ci"):
        failure = tree.failure("move", **{"from": "w", "to": target})
        assert failure.code == "PERMISSION_DENIED", target
    assert not (tree.path / ".ci").exists()
    tree.call("move", **{"from": "w", "to": "here/new/.ci"})
    assert (tree.path / "new/.ci/flows/evil").exists()
    tree.call("move", **{"from": "new/.ci", "to": "b", "rules": {"places": ["new/.ci", "b"]}})


def test_a_name_that_looks_deleted_is_a_name(tree: Tree) -> None:
    """What the kernel adds to the name of a deleted file may be a part of a name, too."""
    tree.write("key (deleted)", "KEY=4\n")
    restrict(tree, read=("* (deleted)",))
    assert tree.failure("read", path="key (deleted)").code == "PERMISSION_DENIED"
    restrict(tree, read=("/key",))
    assert tree.call("read", path="key (deleted)")[1] == b"KEY=4"
    rules = {"places": ["key (deleted)"]}
    assert tree.call("read", path="key (deleted)", rules=rules)[1] == b"KEY=4"


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
    try:
        return tree.call("read", path="x")[1].decode()
    except Failure as failure:
        return failure.code


# ─── one call ───────────────────────────────────────────────────────────────────────


def only(pattern: str, how: str = "read", kind: str = "deny") -> dict[str, Any]:
    """A rule that holds for one call."""
    return {kind: {how: [[pattern, f"T({pattern})"]]}}


def test_a_rule_for_one_tool_holds_for_its_calls_alone(tree: Tree) -> None:
    """What it denies below a directory stays; the next call knows nothing of it."""
    tree.write("vault/other/f", "x")
    arguments = {"path": "vault", "recursive": True, "rules": only("/vault/key", "write")}
    failure = tree.failure("delete", **arguments)
    assert (failure.code, "T(/vault/key)" in failure.message) == ("PERMISSION_DENIED", True)
    assert [path.name for path in (tree.path / "vault").iterdir()] == ["key"]
    assert tree.workspace.restrictions is None
    tree.call("delete", path="vault", recursive=True)


@pytest.mark.parametrize("path", SPELLINGS)
def test_what_was_not_asked_about_is_not_opened(tree: Tree, path: str) -> None:
    """A rule that asks is no less a rule where the judged path did not show it."""
    for op, more in (("read", {}), ("grep", {"pattern": "K"}), ("read_image", {"max_bytes": 9})):
        failure = tree.failure(op, path=path, rules=only(".env", kind="ask"), **more)
        assert (failure.code, "asks first" in failure.message) == ("PERMISSION_DENIED", True)
    reply, data = tree.call("grep", pattern="KEY", rules=only(".env", kind="ask"))
    assert (reply["files"], b"KEY=1" in data) == (2, False)
    assert "1 file left out: rules deny to read it, or ask first" in reply["warnings"][0]


def test_only_what_was_judged_is_opened(tree: Tree) -> None:
    """A path that leads elsewhere by now is a conflict, for reading and for every change."""
    (tree.path / "d").symlink_to("vault")
    places = {"places": ["a"]}
    known = tree.hash("vault/key")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read", {"path": "d/key"}),
        ("grep", {"path": "d", "pattern": "KEY"}),
        ("write", {"path": "d/new"}),
        ("write", {"path": "d/key", "expect": known}),
        ("edit", {"path": "d/key", "expect": known, "old": 0, "edits": [[1, 0, False]]}),
        ("delete", {"path": "d/key"}),
        ("move", {"from": "a/b.txt", "to": "d/b.txt"}),
        ("move", {"from": "d/key", "to": "a/key"}),
    ]
    before = sorted(tree.path.rglob("*"))
    for op, arguments in calls:
        failure = tree.failure(op, b"K", rules=places, **arguments)
        assert (failure.code, "judged" in failure.message) == ("CONFLICT", True), (op, failure)
    assert sorted(tree.path.rglob("*")) == before
    assert tree.call("read", path="a/b.txt", rules=places)[1] == b"KEY=2"
    for place in ("", "vault", "vault/key"):
        assert tree.call("read", path="d/key", rules={"places": [place]})[1] == b"KEY=3"
    assert tree.failure("read", path="d/key", rules={"places": ["vault/k"]}).code == "CONFLICT"


@pytest.mark.parametrize("show", ["lines", "files", "counts"])
@pytest.mark.parametrize(
    ("path", "swapped"),
    [("d", "rm -r d && ln -s vault d"), ("d/key", "rm d/key && ln -s ../vault/key d/key")],
)
def test_grep_reads_what_the_agent_has_opened(
    tree: Tree, show: str, path: str, swapped: str
) -> None:
    """What is swapped between the look and ripgrep's start is not searched in its place."""
    tree.write("d/key", "harmless\n")
    restrict(tree, read=("/vault/**",))
    program = tree.path / "rg"
    program.write_text(f'#!/bin/sh\n({swapped}) 2>/dev/null\nexec {tree.workspace.ripgrep} "$@"\n')
    program.chmod(0o755)
    real, tree.workspace.ripgrep = tree.workspace.ripgrep, str(program)
    try:
        reply, data = tree.call("grep", pattern="KEY=3", path=path, show=show)
    finally:
        tree.workspace.ripgrep = real
    assert (reply["matches"], reply["files"], data) == (0, 0, b"")


def test_a_watched_search_finds_what_any_search_finds(tree: Tree) -> None:
    """Hundreds of files, odd names, binary ones, long lines: the same with and without rules."""
    for number in range(250):
        tree.write(f"n/{number % 7}/f{number}.txt", f"one\nKEY {number}\ntwo\n" * (number % 5))
    tree.write("n/a\nb: c.txt", "KEY odd\n")
    tree.write("n/proc/self/fd/7", "KEY fd\n")
    (tree.path / os.fsdecode(b"n/\xff.txt")).write_text("KEY bytes\n")
    tree.write("n/binary", b"KEY\0KEY\n")
    tree.write("n/long", "x" * 600_000 + " KEY " + "y" * 600_000)
    tree.write("n/wide", "KEY wide\n".encode("utf-16"))
    tree.write(".gitignore", "n/0\n")
    for more in (
        {},
        {"show": "files"},
        {"show": "counts"},
        {"path": "n/3", "context": 0},
        {"path": "n/0"},
        {"file_pattern": "*1.txt"},
        {"max_results": 5},
        {"per_file": 1},
        {"path": "n/binary"},
        {"path": "n/long"},
    ):
        arguments: dict[str, Any] = {"pattern": "KEY", "path": "n", **more}
        before = tree.call("grep", **arguments)
        restrict(tree, read=("/vault/**",))
        after = tree.call("grep", **arguments)
        restrict(tree)
        assert after == before, arguments


def test_a_denied_match_tells_nothing(tree: Tree) -> None:
    """Whether a denied file has the text changes no word of what is said."""
    tree.write("d/.gitignore", "out\n")
    tree.write("d/out", "nothing of interest, IGNORED\n")
    restrict(tree, read=("/d/secret",))
    said = []
    for content in ("IGNORED\n", "other\n"):
        tree.write("d/secret", content)
        said.append(tree.call("grep", pattern="IGNORED", path="d"))
    assert said[0] == said[1]


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
