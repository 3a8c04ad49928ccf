"""glob and grep: what is found, what is left out, and that both are said."""

from __future__ import annotations

import fnmatch
import os
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.agent import hits, search
from executor.agent.operation import Command, Exit, Failure
from executor.agent.pattern import MAX_CHARACTERS, MAX_EXPANDED, Pattern, expand
from tests.agent.driver import Tree, as_nobody, changed, drain


def globbed(tree: Tree, pattern: str, path: str = "", **more: Any) -> tuple[dict[str, Any], Any]:
    """The reply and the paths."""
    reply, data = tree.call("glob", pattern=pattern, path=path, **more)
    found = [os.fsdecode(path) for path in data.split(b"\0")] if data else []
    assert reply["matches"] == len(found)
    return reply, found


def grepped(tree: Tree, pattern: str, path: str = "", **more: Any) -> tuple[dict[str, Any], Any]:
    """The reply and the lines."""
    more.setdefault("context", 0)
    more.setdefault("file_pattern", None)
    reply, data = tree.call("grep", pattern=pattern, path=path, **more)
    return reply, data.decode("utf-8", "surrogateescape").split("\n") if data else []


# ─── glob ───────────────────────────────────────────────────────────────────────────


def test_33_brackets_that_exist_are_literal(tree: Tree) -> None:
    """Folders called `[locale]` and `(auth)` are found by their names, in every position."""
    page = "app/[locale]/(auth)/page.tsx"
    tree.write(page, "x\n")
    tree.write("app/a/(auth)/other.tsx", "x\n")
    for pattern, path in (
        ("app/[locale]/(auth)/**", ""),
        ("app/[locale]/**/*.tsx", ""),
        ("**/[locale]/**", ""),
        ("**/*.tsx", "app/[locale]"),
        ("[locale]/(auth)/*", "app"),
        ("app/[locale]/(auth)/page.[jt]sx", ""),
        (page, ""),
    ):
        assert globbed(tree, pattern, path)[1] == [page], pattern
    assert globbed(tree, "app/[abc]/**")[1] == ["app/a/(auth)/other.tsx"]
    assert tree.call("read", path=page)[1] == b"x"
    assert tree.call("list", path="app/[locale]")[0]["entries"] == 1
    assert grepped(tree, "x", "app/[locale]")[1] == [f"{page}:1:x"]
    assert grepped(tree, "x", file_pattern="[locale]/**/*.tsx", path="app")[1] == [f"{page}:1:x"]


def test_other_names_that_look_like_patterns_are_found(tree: Tree) -> None:
    """Braces, stars, backslashes and unclosed brackets in names."""
    names = ["{a,b}/x", "{c}/x", "[id]/[slug].ts", "a*b", "[open", "q?", "!x", "back\\slash"]
    for name in names:
        tree.write(name, "")
    for pattern, found in {
        "{a,b}/*": ["{a,b}/x"],
        "{c}/*": ["{c}/x"],
        "[id]/[slug].*": ["[id]/[slug].ts"],
        "a*b": ["a*b"],
        "[open": ["[open"],
        "q?": ["q?"],
        "!*": ["!x"],
        "back\\\\slash": ["back\\slash"],
        "\\[id\\]/*": ["[id]/[slug].ts"],
    }.items():
        assert globbed(tree, pattern)[1] == found, pattern


def test_the_literal_reading_is_only_tried_first(tree: Tree) -> None:
    """Where no such name exists, brackets are a class."""
    for name in ("a/x.js", "b/x.ts", "c/x.py"):
        tree.write(name, "")
    assert globbed(tree, "[ab]/x.[jt]s")[1] == ["a/x.js", "b/x.ts"]
    assert globbed(tree, "[!ab]/*")[1] == ["c/x.py"]
    assert globbed(tree, "{a,b}/*.{js,ts}")[1] == ["a/x.js", "b/x.ts"]
    tree.write("[ab]/x.js", "")
    assert globbed(tree, "[ab]/x.[jt]s")[1] == ["[ab]/x.js"]


def test_34_hidden_files_are_found_and_ignored_ones_counted(tree: Tree) -> None:
    """Hidden files match like any other; ignored ones are a number, or found when named."""
    for name in (".github/workflows/ci.yml", ".hidden.ts", "a.ts", "dist/b.ts", ".git/x.ts"):
        tree.write(name, "")
    tree.write(".gitignore", "dist/\n")
    reply, found = globbed(tree, ".github/workflows/*.yml")
    assert found == [".github/workflows/ci.yml"]
    reply, found = globbed(tree, "**/*.ts")
    assert (found, reply["ignored"]) == ([".hidden.ts", "a.ts"], 1)
    for pattern, path in (("dist/*.ts", ""), ("*.ts", "dist"), ("dist/b.ts", ""), ("dist/**", "")):
        assert globbed(tree, pattern, path)[1] == ["dist/b.ts"], pattern
    assert globbed(tree, ".git/**")[1] == globbed(tree, "**/x.ts")[1] == []


@pytest.mark.parametrize("rule", ["dist/", "dist", "/dist/**", "dist/*", "*.ts", "*"])
def test_an_ignored_match_is_never_plainly_nothing(tree: Tree, rule: str) -> None:
    """However the rule is spelled, what a named directory hides is found or counted."""
    tree.write("dist/deep/b.ts", "hit\n")
    tree.write("src/.gitignore", rule + "\n")
    tree.write("src/dist/c.ts", "hit\n")
    tree.write(".gitignore", rule + "\n")
    for pattern in ("dist/**/*.ts", "src/dist/*.ts", "d*/**/*.ts", "src/d*/*.ts"):
        reply, found = globbed(tree, pattern)
        assert found or (reply["ignored"] == 1 and "hidden by .gitignore" in reply["note"])
    assert grepped(tree, "hit", "dist")[1] == ["dist/deep/b.ts:1:hit"]
    assert grepped(tree, "hit", "src/dist/c.ts")[1] == ["src/dist/c.ts:1:hit"]


def test_35_order_and_limit(tree: Tree) -> None:
    """By path in byte order, or newest first with ties by path; what is left off is counted."""
    for number, name in enumerate(("b", "a", "c", "B", "d/a", "ü", "d-a")):
        os.utime(tree.write(name, ""), ns=(0, (number // 2) * 10**9))
    by_path = ["B", "a", "b", "c", "d-a", "d/a", "ü"]
    assert globbed(tree, "**")[1] == by_path
    reply, found = globbed(tree, "**", max_results=3)
    assert (found, reply["total"], reply["truncated"]) == (by_path[:3], 7, True)
    newest = ["d-a", "d/a", "ü", "B", "c", "a", "b"]
    assert globbed(tree, "**", order="modified")[1] == newest
    assert globbed(tree, "**", order="modified", max_results=3)[1] == newest[:3]
    assert not globbed(tree, "**", max_results=7)[0]["truncated"]


def test_only_files_and_links_to_files_match(tree: Tree) -> None:
    """Directories, FIFOs and links to anything else are left out, ignored links too."""
    tree.write("d/f.x", "")
    tree.write("e/.gitignore", "ignored.x\n")
    tree.write("e/f", "")
    for name, target in {
        "l.x": "d/f.x",
        "dir.x": "d",
        "dead.x": "none",
        "out.x": "/etc/hostname",
        "e/ignored.x": "f",
        "only/l.x": "../d/f.x",
    }.items():
        (tree.path / name).parent.mkdir(exist_ok=True)
        (tree.path / name).symlink_to(target)
    (tree.path / "sub.x").mkdir()
    os.mkfifo(tree.path / "p.x")
    assert globbed(tree, "**/*.x")[1] == ["d/f.x", "l.x", "only/l.x"]
    reply, found = globbed(tree, "d")
    assert (found, "is a directory" in reply["note"]) == ([], True)


def test_36_links_that_point_upward_end(tree: Tree) -> None:
    """G6: each file is found once, in glob and grep, whatever links lead round in circles."""
    tree.write("t/a/f", "1\n")
    (tree.path / "t/a/up").symlink_to("..")
    (tree.path / "t/self").symlink_to(".")
    (tree.path / "t/dead").symlink_to("nowhere")
    assert globbed(tree, "**/f")[1] == ["t/a/f"]
    assert globbed(tree, "t/self/**/f")[1] == ["t/self/a/f"]
    reply, found = grepped(tree, "1")
    assert (found, reply["warnings"]) == (["t/a/f:1:1"], [])


@pytest.mark.parametrize(
    "name", ["new\nline", "\x1b[2Jx", "-rf", "n" * 255, "\udcff", "\u202ex", " "]
)
def test_odd_names_come_back_as_they_are(tree: Tree, name: str) -> None:
    """G8: names with control characters and invalid UTF-8 survive, also as directories."""
    tree.write(f"{name}/{name}", "hit\n")
    assert globbed(tree, "**")[1] == [f"{name}/{name}"]
    assert globbed(tree, "*", name)[1] == [f"{name}/{name}"]
    reply, found = grepped(tree, "hit")
    assert (len(found), reply["files"], found[0][-6:]) == (1, 1, ":1:hit")
    assert "\x1b" not in found[0]
    assert grepped(tree, "hit", name)[1] == found


def test_glob_paths_and_anchors(tree: Tree) -> None:
    """Dots, absolute patterns, missing bases and paths that are no directory."""
    tree.write("a/b/f", "")
    tree.write("g", "")
    (tree.path / "out").symlink_to("/etc")
    root = tree.workspace.root
    for pattern, path, found in (
        ("./a/./b/*", "", ["a/b/f"]),
        (f"{root}/a/**", "", ["a/b/f"]),
        ("../../g", "a/b", ["g"]),
        ("../g*", "a", ["g"]),
        ("*", "./a//b/", ["a/b/f"]),
        ("*", "", ["g"]),
        ("none/*", "", []),
        ("g/*", "", []),
    ):
        assert globbed(tree, pattern, path)[1] == found, pattern
    for arguments, code in (
        ({"pattern": "*", "path": "none"}, "FILE_NOT_FOUND"),
        ({"pattern": "*", "path": "g"}, "INVALID_PATH"),
        ({"pattern": "*", "path": "out"}, "INVALID_PATH"),
        ({"pattern": "../*"}, "INVALID_PATH"),
        ({"pattern": "/etc/*"}, "INVALID_PATH"),
        ({"pattern": "out/*"}, "INVALID_PATH"),
        ({"pattern": "[z-a]"}, "INVALID_ARGUMENTS"),
        ({"pattern": "{a,b}" * 10}, "INVALID_ARGUMENTS"),
        ({"pattern": "a\0b"}, "INVALID_ARGUMENTS"),
    ):
        assert tree.failure("glob", **arguments).code == code, arguments


def test_unreadable_directories_are_noted(public: Tree) -> None:
    """Nothing found and something closed is not plainly nothing."""
    public.write("shut/f", "").parent.chmod(0)

    def act() -> None:
        reply, found = globbed(public, "**/f")
        assert (found, "could not be read" in reply["note"]) == ([], True)

    as_nobody(act)


def test_a_bottomless_tree_ends_with_a_marker(tree: Tree) -> None:
    """G6: 5000 directories, each in the one before, are searched as far as paths reach."""
    fd = os.dup(tree.workspace.directory)
    for _ in range(5000):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    tree.write("d/d/f", "hit\n")
    start = time.monotonic()
    reply, found = globbed(tree, "**/f")
    assert (found, reply["truncated"], "too deep" in reply["note"]) == (["d/d/f"], True, True)
    reply, lines = grepped(tree, "hit")
    assert (lines, len(reply["warnings"]) > 0) == (["d/d/f:1:hit"], True)
    assert tree.call("list", path="", recursive=True)[0]["truncated"]
    assert tree.call("delete", path="d", recursive=True)[0]["deleted"] == 5001
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*", ".hidden", True),
        ("*", "a/b", False),
        ("?", "ä", True),
        ("**", "a/b/c", True),
        ("**/c", "c", True),
        ("**/c", "a/b/c", True),
        ("**/c", "a/bc", False),
        ("a/**", "a", False),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/x/y/c", True),
        ("a/**/b/**/c", "a/b/x/b/c", True),
        ("a/**/b/**/c", "a/x/c", False),
        ("a**b", "axxb", True),
        ("a**b", "a/b", False),
        ("**/**/f", "f", True),
        ("*.[ch]", "x.c", True),
        ("[^a]", "b", True),
        ("[!a]", "a", False),
        ("[]a]", "]", True),
        ("[a-c]x", "bx", True),
        ("a[/]b", "a/b", False),
        ("{a,b/c}/d", "b/c/d", True),
        ("{a,{b,c}}d", "cd", True),
        ("{,x}y", "y", True),
        ("src/**/*.{ts,tsx}", "src/a/b.tsx", True),
        ("a.b", "axb", False),
        ("A", "a", False),
        ("*\n*", "a\nb", True),
        ("(a|b)+", "(a|b)+", True),
        ("*a*b*c", "xaybzc", True),
        ("*ab", "aab", True),
        ("*a?b*", "aaab", True),
    ],
)
def test_patterns_mean_what_globs_mean(pattern: str, path: str, expected: bool) -> None:
    """One table of the rules."""
    found = Pattern(pattern)
    below = f"{found.base}/" if found.base else ""
    if found.literal:
        assert (found.base == path) == expected
    else:
        assert (path.startswith(below) and found.matches(path[len(below) :])) == expected


part = st.text(alphabet="ab*?", min_size=1, max_size=6)


@given(pattern=part, name=st.text(alphabet="ab", min_size=1, max_size=8))
def test_within_a_name_patterns_agree_with_fnmatch(pattern: str, name: str) -> None:
    """Stars and question marks in one name mean what they mean in the standard library."""
    found = Pattern(pattern)
    matches = found.base == name if found.literal else found.matches(name)
    assert matches == fnmatch.fnmatchcase(name, pattern)


@given(
    pattern=st.lists(st.sampled_from(["**", "a", "b", "*", "a*"]), min_size=1, max_size=5),
    path=st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5),
)
def test_double_stars_agree_with_a_simple_model(pattern: list[str], path: list[str]) -> None:
    """Any number of directories in their place, and at least a file at the end."""
    found = Pattern("/".join(["*", *pattern]))
    assert found.matches("/".join(["x", *path])) == _model(pattern, path)


def _model(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        rest = pattern[1:] or ["*"]
        return any(_model(rest, path[start:]) for start in range(len(path)))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _model(pattern[1:], path[1:])


def test_no_pattern_takes_long(tree: Tree) -> None:
    """G7: many stars over long names and paths need no more time than few."""
    start = time.process_time()
    assert not Pattern("*a" * 60 + "b").matches("a" * 255)
    assert not Pattern("**/a/" * 30 + "b").matches("a/" * 2000 + "c")
    assert not Pattern("**/*a*a*a*a*/" * 20 + "b").matches(("a" * 100 + "/") * 40 + "c")
    assert len(expand("{a,b}" * 8)) == 256
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("{" * 20_000, "1000"),
        ("{a,b}" * 8 + "x" * 90_000, "1000"),
        ("x" * 1001, "1000"),
        ("./" * 45_000 + "x", "1000"),
        ("{" * 33, "32"),
        ("{a," * 33, "32"),
        ("{a,b}" * 9, "256"),
        ("{a,b}" * 7 + "x" * 900, "16384"),
        ("[a]/[b]/[c]/[d]/{" + ",".join(f"*{number}" for number in range(200)) + "}", "16384"),
    ],
)
def test_a_pattern_that_would_take_long_is_refused(tree: Tree, text: str, limit: str) -> None:
    """By its length, its braces or what they stand for, with the limit, before any search."""
    for op, arguments in (
        ("glob", {"pattern": text}),
        ("grep", {"pattern": "x", "file_pattern": text}),
    ):
        failure = tree.failure(op, **arguments)
        assert (failure.code, limit in failure.message) == ("INVALID_ARGUMENTS", True)
        assert len(failure.message) < 300
        assert tree.pauses(op, **arguments) == 0


@pytest.mark.parametrize(
    "text",
    [
        "{a,b}" * 8 + "*[a]" * 4,
        "{" + ",".join(f"[ab]*{number}*" for number in range(100)) + "}",
        "[a]*/[b]*/[c]*/[d]*/{" + ",".join(f"{number}*[x]" for number in range(100)) + "}",
        "[a]" * 330,
        "**/" + "[ab]" * 240,
    ],
)
def test_a_large_pattern_is_compiled_bit_by_bit(text: str) -> None:
    """Between two pauses no more is compiled than one alternative of a thousand characters."""
    found = Pattern(text)
    pauses = drain(found.prepare())
    compiled = [part.pattern for reading in found._readings for part in reading]
    assert pauses >= len(compiled) >= len(found._texts)
    assert max(map(len, compiled)) < 10 * MAX_CHARACTERS
    assert sum(map(len, compiled)) < 10 * MAX_EXPANDED


def test_matching_gives_way_by_the_work_that_it_is(tree: Tree) -> None:
    """What a pattern costs, not the number of names, decides when others get their turn."""
    for number in range(400):
        tree.write(f"d/{number}" + "a" * 100, "x\n")
    heavy = "{" + ",".join(f"**/*[ab]*[ab]{number}" for number in range(50)) + "}"
    for op, text, arguments in (
        ("glob", heavy, {}),
        ("grep", "**/" + heavy, {"pattern": "x", "context": 0}),
    ):
        pattern = Pattern(text)
        drain(pattern.prepare())
        work = 400 * pattern.work("d/" + "a" * 102)
        name = "pattern" if op == "glob" else "file_pattern"
        assert tree.pauses(op, **{**arguments, name: heavy}) > work // (2 * search._SLICE) > 20
    assert tree.pauses("glob", pattern="**") < 10


def test_directories_without_files_give_way_too(tree: Tree) -> None:
    """To open a directory is work, whatever is in it or whether it can be opened."""
    for number in range(1000):
        (tree.path / f"d{number}").mkdir()
    assert tree.pauses("glob", pattern="**") > 1000 * search._OPEN // (2 * search._SLICE) > 1


def test_output_that_comes_while_there_is_work_waits_its_turn(tree: Tree) -> None:
    """Nothing of it is lost or out of order, and when it is too much that is an error."""
    text = "{" + ",".join(f"*[ab]{number}" for number in range(50)) + "}"
    pieces = [
        b"".join(b"./%06da%d\0" % (n, n % 100) for n in range(at, at + 500)) for at in range(8)
    ]
    for most, code in ((32 << 20, ""), (10_000, "LIMIT")):
        steps = search.glob(tree.workspace, {"pattern": text, "max_results": 10_000}, b"")
        answers: list[Any] = [*pieces, Exit(0, b"")]
        with changed(search, _MAX_WAITING=most):
            try:
                while not isinstance(steps.send(None), Command):
                    pass
                while True:
                    steps.send(answers.pop(0) if answers else None)
            except StopIteration as stop:
                assert (code, stop.value[0]["total"]) == ("", sum(_ends_so(p) for p in pieces))
            except Failure as failure:
                assert failure.code == code
            assert len(answers) == 0 or code


def _ends_so(piece: bytes) -> int:
    """How many names of a piece the pattern of the test above matches."""
    return len(re.findall(rb"/\d{6}a[1-4]?\d\0", piece))


# ─── grep ───────────────────────────────────────────────────────────────────────────


def test_lines_come_with_path_number_and_context(tree: Tree) -> None:
    """As ripgrep prints them, sorted by path, groups parted."""
    tree.write("b", "".join(f"{number}\n" for number in range(1, 20)))
    tree.write("a", "x\n3\ny\n")
    reply, lines = grepped(tree, "^(3|9)$", context=1)
    assert lines == [
        *("a-1-x", "a:2:3", "a-3-y", "--"),
        *("b-2-2", "b:3:3", "b-4-4", "--", "b-8-8", "b:9:9", "b-10-10"),
    ]
    assert reply == {
        "matches": 3,
        "shown": 3,
        "files": 2,
        "truncated": False,
        "partial": False,
        "clipped": False,
        "ignored": 0,
        "warnings": [],
        "total_bytes": len("\n".join(lines)) + 1,
    }
    assert grepped(tree, "^(3|4)$", "b", context=1)[1] == ["b-2-2", "b:3:3", "b:4:4", "b-5-5"]
    assert grepped(tree, "^3$", before=0, after=1)[1] == ["a:2:3", "a-3-y", "--", "b:3:3", "b-4-4"]
    assert grepped(tree, "^3$", "a")[1] == grepped(tree, "^3$", "./a")[1] == ["a:2:3"]


def test_39_errors_no_match_and_warnings_are_told_apart(tree: Tree) -> None:
    """A bad expression is an error with ripgrep's words, no match a success without lines."""
    tree.write("a", "hit (\n")
    failure = tree.failure("grep", pattern="(")
    assert (failure.code, "unclosed group" in failure.message) == ("INVALID_ARGUMENTS", True)
    reply, lines = grepped(tree, "zzz")
    assert (reply["matches"], reply["warnings"], lines) == (0, [], [])
    assert grepped(tree, "(", literal=True)[1] == ["a:1:hit ("]
    assert grepped(tree, "HIT", ignore_case=True)[1] == ["a:1:hit ("]
    assert tree.failure("grep", pattern="x", path="none").code == "FILE_NOT_FOUND"
    assert tree.failure("grep", pattern="x", path="../x").code == "INVALID_PATH"
    for pattern in ("a\0b", "x" * 200_000, "a\nb", "\ud800"):
        assert tree.failure("grep", pattern=pattern).code == "INVALID_ARGUMENTS", pattern[:5]
    failure = tree.failure("grep", pattern="x", type="nothing")
    assert (failure.code, "nothing" in failure.message) == ("INVALID_ARGUMENTS", True)
    assert grepped(tree, "--files")[1] == grepped(tree, "-e")[1] == []
    assert grepped(tree, "h.t \\(\n", multiline=True)[1] == ["a:1:hit ("]


def test_39_an_unreadable_file_is_a_warning(public: Tree) -> None:
    """The other matches are there; a closed file asked for by name is an error."""
    public.write("a", "hit\n")
    public.write("b", "hit\n").chmod(0)
    public.write("shut/c", "hit\n").parent.chmod(0)

    def act() -> None:
        reply, lines = grepped(public, "hit")
        assert (lines, reply["matches"]) == (["a:1:hit"], 1)
        assert sorted(warning.split(":")[0] for warning in reply["warnings"]) == ["b", "shut"]
        reply, lines = grepped(public, "zzz")
        assert (lines, len(reply["warnings"])) == ([], 2)
        assert public.failure("grep", pattern="(").code == "INVALID_ARGUMENTS"
        assert public.failure("grep", pattern="x", path="b").code == "PERMISSION_DENIED"

    as_nobody(act)


@pytest.mark.parametrize("context", [0, 1])
@pytest.mark.parametrize("filler", ["a", "ä"])
def test_40_a_long_line_is_clipped_around_the_match(tree: Tree, context: int, filler: str) -> None:
    """Under 2 kB with the match, text on both sides and what is left out."""
    count = 500_000
    tree.write("m", f"{filler * count}NEEDLE{'b' * count}\n{'c' * count}\n")
    _, data = tree.call("grep", pattern="NEEDLE", context=context, file_pattern=None)
    shown = data.decode()
    assert len(shown) < 2000
    line = shown.split("\n")[0]
    left, right = count - 166, count + 6 - 334
    middle = f"{filler * 166}NEEDLE{'b' * 328}"
    assert line == f"m:1:[{left} characters]…{middle}…[{right} characters]"
    if context:
        assert shown.split("\n")[1] == f"m-2-{'c' * 500}…[{count - 500} characters]"


@pytest.mark.parametrize("size", [501, 5_000, 262_100, 262_160, 700_000])
def test_clipping_counts_right_at_any_size(tree: Tree, size: int) -> None:
    """Held whole or taken in pieces: the same text, also at the line's ends and with CR."""
    tree.write("m", b"N" + b"a" * (size - 2) + b"M\r\n")
    assert grepped(tree, "N")[1] == [f"m:1:N{'a' * 499}…[{size - 500} characters]"]
    assert grepped(tree, "M")[1] == [f"m:1:[{size - 500} characters]…{'a' * 499}M"]
    assert grepped(tree, "N", line_chars=size)[1] == [f"m:1:N{'a' * (size - 2)}M"]


def test_42_line_ends_of_either_kind_end_lines(tree: Tree) -> None:
    """`$` matches before CR LF, and no CR is shown."""
    tree.write("f", b"foo\r\nbar\r\n")
    tree.write("g", b"foo\nbar")
    assert grepped(tree, "foo$")[1] == ["f:1:foo", "g:1:foo"]
    assert grepped(tree, "^bar$", context=1)[1] == [
        *("f-1-foo", "f:2:bar", "--", "g-1-foo", "g:2:bar")
    ]


def test_43_utf_16_is_searched_and_binary_only_named(tree: Tree) -> None:
    """Text with a UTF-16 mark matches; of a binary file only that it matches is said."""
    tree.write("u16", b"\xff\xfeh\0i\0t\0\n\0")
    tree.write("u16be", b"\xfe\xff\0h\0i\0t\0\n")
    tree.write("bin", b"hit\n\0\0\nhit\n")
    tree.write("late", b"hit\n" * 50_000 + b"\0\nhit\n")
    tree.write("none", b"\0\1\2")
    start = time.process_time()
    reply, lines = grepped(tree, "hit", context=2)
    assert time.process_time() - start < 2
    text = [line for line in lines if line != "--"]
    assert text[0] == "bin: binary file matches"
    assert text[-2:] == ["u16:1:hit", "u16be:1:hit"]
    assert "\0" not in "".join(lines)
    assert reply["files"] == 4
    assert grepped(tree, "hit", "bin")[1] == ["bin: binary file matches"]


def test_binary_files_between_others_are_kept_apart(tree: Tree) -> None:
    """What ripgrep says of binary files is never taken for a part of a path, nor for a file.

    The lines of the file after it are all there, and counted once.
    """
    said = b'./bin: binary file matches (found "\\0" byte around offset 3)\n'
    found = hits.Hits(search.Options({"pattern": "x"}), search.Filter(None, None, ""))
    drain(found.feed(said + b"./f\x001:1:x\n./f\x002-y\n./f\x003:1:x\n"))
    drain(found.finish())
    reply, data = found.reply()
    assert (reply["matches"], reply["files"]) == (3, 2)
    assert data.split(b"\n")[2:] == [b"f:1:x", b"f-2-y", b"f:3:x"]
    names = [f"{letter}{number}" for number in range(30) for letter in ("bin", "txt")]
    for name in names:
        tree.write(name, b"hit\n" + b"\0" * name.startswith("bin"))
    _, lines = grepped(tree, "hit")
    assert lines == [
        f"{name}: binary file matches" if name.startswith("bin") else f"{name}:1:hit"
        for name in sorted(names)
    ]


def test_21_a_huge_file_is_searched_in_bounded_memory(tree: Tree) -> None:
    """A sparse file of 1 GiB with a match at its end is answered."""
    with tree.write("big", "").open("r+b") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"k=1\n")
    assert grepped(tree, "k=1")[1] == ["big: binary file matches"]


def test_22_special_files_are_not_waited_for(tree: Tree) -> None:
    """G16: a FIFO is refused by name and passed over in its directory."""
    os.mkfifo(tree.path / "p")
    tree.write("f", "hit\n")
    start = time.monotonic()
    failure = tree.failure("grep", pattern="hit", path="p")
    assert (failure.code, "FIFO" in failure.message) == ("NOT_A_FILE", True)
    assert grepped(tree, "hit")[1] == ["f:1:hit"]
    assert time.monotonic() - start < 20, "a FIFO would be waited for without end"


def test_many_matches_are_cut_and_counted(tree: Tree) -> None:
    """100 a file, 2000 in all, and the bytes: each limit shows, and the order stays by path."""
    tree.write("a", "hit\n" * 150)
    reply, lines = grepped(tree, "hit", context=2)
    assert (len(lines), reply["matches"], reply["truncated"]) == (102, 100, True)
    assert lines[-2:] == ["a-101-hit", "a-102-hit"]
    assert "first 100 matches" in reply["warnings"][0]
    tree.write("a", "hit\n" * 100)
    assert not grepped(tree, "hit")[0]["truncated"]
    for number in range(60):
        tree.write(f"d/{number:02}", "hit\n" * 50)
    reply, lines = grepped(tree, "hit", "d")
    assert (len(lines), reply["shown"], reply["matches"]) == (2000, 2000, 3000)
    assert (lines[0], lines[-1], reply["truncated"]) == ("d/00:1:hit", "d/39:50:hit", True)
    reply, lines = grepped(tree, "hit", "d", max_bytes=1000)
    assert sum(len(line) + 1 for line in lines) <= 1000
    assert (lines[0], reply["truncated"], reply["matches"]) == ("d/00:1:hit", True, 3000)
    assert reply["total_bytes"] == sum(len(f"d/00:{line}:hit\n") for line in range(1, 51)) * 60
    reply, lines = grepped(tree, "hit", "d", max_results=3)
    assert (lines, reply["shown"]) == (["d/00:1:hit", "d/00:2:hit", "d/00:3:hit"], 3)


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("*.ts", "", ["a.ts", "src/b.ts", "src/deep/c.ts"]),
        ("*.{ts,py}", "", ["a.ts", "src/b.ts", "src/d.py", "src/deep/c.ts"]),
        ("src/*.ts", "", ["src/b.ts"]),
        ("src/**/*.ts", "", ["src/b.ts", "src/deep/c.ts"]),
        ("**/*.ts", "src", ["src/b.ts", "src/deep/c.ts"]),
        ("deep/*.ts", "src", ["src/deep/c.ts"]),
        ("src/deep/*.ts", "src", ["src/deep/c.ts"]),
        ("{src,lib}/*.ts", "", ["src/b.ts"]),
        ("b.ts", "", ["src/b.ts"]),
        ("src/d.py", "", ["src/d.py"]),
        ("src/", "", ["src/b.ts", "src/d.py", "src/deep/c.ts"]),
        ("!*.ts", "", ["src/d.py"]),
        ("[ab].ts", "", ["a.ts", "src/b.ts"]),
        ("*.ts", "a.ts", ["a.ts"]),
        ("*.py", "a.ts", []),
        ("*.TS", "", []),
    ],
)
def test_file_patterns_narrow_the_search(
    tree: Tree, pattern: str, path: str, found: list[str]
) -> None:
    """By name anywhere, or by path from the root or from the directory searched."""
    for name in ("a.ts", "src/b.ts", "src/deep/c.ts", "src/d.py", "src/ignored.ts"):
        tree.write(name, "hit\n")
    tree.write(".gitignore", "ignored.*\n")
    _, lines = grepped(tree, "hit", path, file_pattern=pattern)
    assert lines == [f"{name}:1:hit" for name in found]


def test_hidden_is_searched_ignored_and_git_are_not(tree: Tree) -> None:
    """The same rule as for names."""
    for name in (".env", "a", "dist/b", ".git/c", "sub/.git/d"):
        tree.write(name, "hit\n")
    tree.write(".gitignore", "dist/\n")
    assert grepped(tree, "hit")[1] == [".env:1:hit", "a:1:hit"]
    assert grepped(tree, "hit", "dist")[1] == ["dist/b:1:hit"]
    assert grepped(tree, "hit", "dist/b")[1] == ["dist/b:1:hit"]


def test_a_type_of_ripgrep_narrows_too(tree: Tree) -> None:
    """`type` takes the names that ripgrep knows."""
    tree.write("a.py", "hit\n")
    tree.write("a.js", "hit\n")
    assert grepped(tree, "hit", type="py")[1] == ["a.py:1:hit"]


@pytest.mark.parametrize(
    ("status", "memory_kills", "code", "said"),
    [
        (-9, 1, "OUT_OF_MEMORY", "memory of the sandbox was used up"),
        (-9, 0, "EXECUTION_ERROR", "SIGKILL"),
        (-15, 1, "EXECUTION_ERROR", "SIGTERM"),
        (-35, 0, "EXECUTION_ERROR", "signal 35"),
        (101, 0, "EXECUTION_ERROR", "exit code 101"),
    ],
)
def test_a_search_that_is_killed_says_so(
    tree: Tree, status: int, memory_kills: int, code: str, said: str
) -> None:
    """By what it ended; with matches so far the reply is partial and says the same."""
    kills = iter([0, memory_kills] * 3)
    arguments = {"pattern": "hit", "file_pattern": None}
    with changed(search, _kills=lambda: next(kills)):
        for op, output in (
            (search.grep, b"./a\x001:1:hit\n"),
            (search.grep, b""),
            (search.glob, b"./a\0"),
        ):
            steps = op(tree.workspace, {**arguments, "pattern": "hit*"}, b"")
            while not isinstance(next(steps), Command):
                pass
            try:
                if output:
                    steps.send(output)
                steps.send(Exit(status, b""))
                raise AssertionError("the search goes on")
            except StopIteration as stop:
                assert op is search.grep and output
                assert (stop.value[0]["partial"], stop.value[0]["truncated"]) == (True, True)
                assert said in stop.value[0]["warnings"][0]
                assert stop.value[1] == b"a:1:hit"
            except Failure as failure:
                assert not output or op is search.glob
                assert (failure.code, said in failure.message) == (code, True)


def test_a_bad_expression_is_said_in_few_words(tree: Tree) -> None:
    """ripgrep repeats the expression; of a long one the end is shown, where the reason is."""
    failure = tree.failure("grep", pattern="x" * 50_000 + "(", file_pattern=None)
    assert failure.code == "INVALID_ARGUMENTS" and "unclosed group" in failure.message
    assert len(failure.message) < 2100


def test_many_small_records_give_way() -> None:
    """Records, files and binary files in one piece of output are taken a thousand at a time."""
    for record, count in (
        (b"./a\x00%d:1:x\n", 5000),
        (b"./a%d\x001:1:x\n", 5000),
        (b'./a%d: binary file matches (found "\\0" byte around offset 1)\n', 3000),
    ):
        found = hits.Hits(search.Options({"pattern": "x"}), search.Filter(None, None, ""))
        piece = b"".join(record % number for number in range(1, count + 1))
        pauses = drain(found.feed(piece)) + drain(found.finish())
        assert pauses >= count // (hits._SLICE + 1)
        reply, _ = found.reply()
        assert (reply["matches"] == count) or reply["files"] == 1


def test_warnings_are_counted_and_few_are_kept(tree: Tree) -> None:
    """They are of the files that are shown, in order, however the files come."""
    options = search.Options({"pattern": "x", "max_results": 3000})
    replies = []
    for order in (1, -1):
        found = hits.Hits(options, search.Filter(None, None, ""))
        for number in range(100)[::order]:
            piece = b"".join(b"./f%02d\x00%d:1:x\n" % (number, line) for line in range(1, 103))
            drain(found.feed(piece))
        drain(found.finish())
        replies.append(found.reply())
    assert replies[0] == replies[1]
    warnings = replies[0][0]["warnings"]
    assert warnings[:2] == ["f00: only the first 100 matches", "f01: only the first 100 matches"]
    assert (len(warnings), warnings[-1]) == (20, "and 11 more warnings")


def test_matches_in_ignored_files_are_never_passed_over_in_silence(tree: Tree) -> None:
    """When nothing else is found they are counted, and the file given as path is searched."""
    tree.write("li/.gitignore", "*.log\n")
    tree.write("li/a.log", "q1\nq1\n")
    for arguments in ({}, {"path": "li"}, {"file_pattern": "*.log"}, {"file_pattern": "a.log"}):
        reply, data = tree.call("grep", pattern="q1", **arguments)
        assert (data, reply["matches"], reply["ignored"]) == (b"", 0, 2)
        assert reply["warnings"] == [
            "2 matches hidden by .gitignore (li/a.log); give the file as path to search it"
        ]
    assert tree.call("grep", pattern="q1", path="li/a.log")[0]["matches"] == 2
    none = tree.call("grep", pattern="q2")[0]
    assert (none["ignored"], none["warnings"]) == (0, [])


def test_a_clipped_line_is_said_to_be(tree: Tree) -> None:
    """Only where it is shown."""
    tree.write("a", "hit " + "x" * 1000)
    assert tree.call("grep", pattern="hit")[0]["clipped"]
    assert not tree.call("grep", pattern="hit", line_chars=2000)[0]["clipped"]


@pytest.mark.parametrize("text", ["[", "{a", "src/[", "x{a,b"])
def test_a_pattern_that_is_never_closed_is_an_error(tree: Tree, text: str) -> None:
    """Unless a file has just that name."""
    tree.write("f", "x")
    assert tree.failure("glob", pattern=text).code == "INVALID_ARGUMENTS"
    assert tree.failure("grep", pattern="x", file_pattern=text).code == "INVALID_ARGUMENTS"
    tree.write(text, "x")
    assert tree.call("glob", pattern=text)[0]["matches"] == 1
    assert tree.call("grep", pattern="x", file_pattern=text)[0]["matches"] == 1


@pytest.mark.parametrize("pattern", ["(", r"a\nb", "(?=x)", r"(a)\1", "*"])
def test_what_is_wrong_with_a_regex_is_said_without_ripgreps_options(
    tree: Tree, pattern: str
) -> None:
    """There is no such option to give, and the group around it is not the caller's."""
    failure = tree.failure("grep", pattern=pattern)
    assert failure.code == "INVALID_ARGUMENTS"
    assert "--" not in failure.message and "(?:" not in failure.message


@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8), long=st.integers(1, 2000))
def test_output_may_come_in_any_pieces(cuts: list[int], long: int) -> None:
    """However the output of ripgrep is cut, the reply is the same."""
    output = b"".join(
        (
            b'./b1: binary file matches (found "\\0" byte around offset 4)\n',
            b"./new\nline\x001:1:hit\r\n",
            b'./b2: binary file matches (found "\\0" byte around offset 4)\n',
            b"./long\x0012:%d:" % long + b"x" * (long - 1) + b"hit" + b"y" * long + b"\n",
            b"./long\x0013-z\n./a\x001:1:hit\n",
            b'./b3: binary file matches (found "\\0" byte around offset 99)\n',
        )
    )
    arguments = {"pattern": "hit", "context": 1, "line_chars": 60}
    replies = []
    for sizes in (cuts, [len(output)]):
        found = hits.Hits(search.Options(arguments), search.Filter(None, None, ""))
        position = number = 0
        while position < len(output):
            size = sizes[number % len(sizes)]
            drain(found.feed(output[position : position + size]))
            position += size
            number += 1
        drain(found.finish())
        replies.append(found.reply())
    assert replies[0] == replies[1]
    assert replies[0][1].startswith(b"a:1:hit\n--\nb1: binary file matches\n--\nb2: binary")
    assert b"new\\x0aline:1:hit" in replies[0][1]


def test_a_million_matches_are_taken_in_bounded_memory() -> None:
    """Only what can be shown is kept, and the first paths win whatever comes first."""
    found = hits.Hits(search.Options({"pattern": "x"}), search.Filter(None, None, ""))
    for number in range(20_000, 0, -1):
        drain(found.feed(b"".join(b"./%06d\x00%d:1:hit\n" % (number, n) for n in range(1, 11))))
    drain(found.finish())
    held = sum(len(line) for file in found._files.values() for _, line, _ in file.lines)
    assert held < 2_000_000
    reply, data = found.reply()
    assert (reply["matches"], reply["files"], reply["shown"]) == (200_000, 20_000, 2000)
    assert data.startswith(b"000001:1:hit\n")
    assert data.count(b"\n--\n") == 199
