"""A server's places as places for a model: whose files are read, and what is shown of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.code_questions import MOST_SPOTS, Spot
from executor.errors import Code, ToolError
from executor.language import places
from executor.language.answers import LARGEST, BadAnswer, Edit, Extent, Renaming, Target
from executor.language.places import Files, Spots, previews_of, spots_of, text_of
from executor.language.positions import Encoding, Text
from executor.language.uris import path_of, uri_of
from executor.model import PLANS
from executor.text import visible
from executor.tool import Context
from tests.fuzzing import cases
from tests.loops import Work, open_work

WHOLE = Extent(0, 0, LARGEST, LARGEST)

# ─── URIs ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("", "file:///workspace"),
        ("a.py", "file:///workspace/a.py"),
        ("src/b c.py", "file:///workspace/src/b%20c.py"),
        ("pages/[id].tsx", "file:///workspace/pages/%5Bid%5D.tsx"),
        ("@types/ü.d.ts", "file:///workspace/%40types/%C3%BC.d.ts"),
        ("100%.py", "file:///workspace/100%25.py"),
        ("a#b?c.py", "file:///workspace/a%23b%3Fc.py"),
        ("\udcff.py", "file:///workspace/%FF.py"),
        ("/usr/include/stdio.h", "file:///usr/include/stdio.h"),
        ("/", "file:///"),
    ],
)
def test_a_path_is_a_uri_and_back(path: str, uri: str) -> None:
    """Spelled as servers spell theirs."""
    assert uri_of(path) == uri
    assert path_of(uri) == path


NAMES = st.binary(min_size=1, max_size=20).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)


@pytest.mark.fuzz
@cases(500)
@given(st.lists(NAMES, max_size=5), st.booleans())
def test_any_name_comes_back(names: list[bytes], is_absolute: bool) -> None:
    """Names of any bytes, in the worktree and elsewhere."""
    below = b"/".join(names).decode("utf-8", "surrogateescape")
    path = f"/usr/{below}" if is_absolute and names else below
    uri = uri_of(path)
    assert uri.isascii() and uri.isprintable() and path_of(uri) == path


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///workspace/", ""),
        ("file:///workspace/a/", "a"),
        ("file://localhost/workspace/a.py", "a.py"),
        ("file:/workspace/a.py", "a.py"),
        ("FILE:///workspace/a.py", "a.py"),
        ("file:///workspace/./a//b/../c.py", "a/c.py"),
        ("file:///workspace/../etc/passwd", "/etc/passwd"),
        ("file:///workspace/%2e%2e/%2E%2E/etc/passwd", "/etc/passwd"),
        ("file:///workspace/..%2fetc%2fpasswd", "/etc/passwd"),
        ("file:///../../workspace/a.py", "a.py"),
        ("file:///%2f/workspace/a.py", "a.py"),
        ("file:///workspaces/a.py", "/workspaces/a.py"),
        ("file:///workspace%2Fa.py", "a.py"),
        ("file:///workspace/a.py#L3", "a.py"),
        ("file:///workspace/a.py?x=1", "a.py"),
        ("file:///workspace/a b.py", "a b.py"),
        ("file:///workspace/ü.py", "ü.py"),
        ("file:///workspace/%zz%4.py", "%zz%4.py"),
        ("file:///workspace/a\nb.py", "a\nb.py"),
        ("file:///C:/x.py", "/C:/x.py"),
        ("file:///c%3A/x.py", "/c:/x.py"),
    ],
)
def test_whatever_uri_names_a_file(uri: str, path: str) -> None:
    """Servers spell URIs in their own ways; none of them leads past what a path may."""
    assert path_of(uri) == path


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "a.py",
        "/workspace/a.py",
        "untitled:Untitled-1",
        "jdt://contents/rt.jar/java.lang/String.class",
        "http://localhost/workspace/a.py",
        "file://host/workspace/a.py",
        "file://C:/x.py",
        "file:////host/share/x.py",
        "file://C:\\x.py",
        "file:a.py",
        "file:",
        "file://",
        "file://localhost",
        "file://user@localhost/workspace/a.py",
        "file://localhost:80/workspace/a.py",
        "file:///workspace/a%00.py",
        "file:///workspace/a\0.py",
        "file:///workspace/\ud800.py",
        " file:///workspace/a.py",
        "f\u0131le:///workspace/a.py",
        "file:///workspace/" + "a" * 20_000,
        "file:" * 4000,
    ],
    ids=range(23),
)
def test_what_names_no_file_of_the_box(uri: str) -> None:
    """Other schemes, other hosts, NUL, half a character, nothing at all."""
    assert path_of(uri) is None


@pytest.mark.fuzz
@cases(1000)
@given(st.text(), st.sampled_from(["", "file:", "file:/", "file://", "file:///", "file:///%"]))
def test_any_text_is_a_uri_or_none(text: str, start: str) -> None:
    """Nothing raises, and what comes out is a path as tools name it."""
    path = path_of(start + text)
    if path is not None:
        assert "\0" not in path and "//" not in path
        assert not {".", ".."} & set(path.split("/"))
        assert path_of(uri_of(path)) == path


# ─── a loop ─────────────────────────────────────────────────────────────────────────

DENY = ("read_file(/secret/**)", "read_file(*.key)")
PY = "first = 1\r\nsecond = '😀'; third = 2\n\n\tlast\n"


def filled(work: Work) -> Work:
    """With files of all kinds."""
    work.write("a.py", PY)
    work.write("src/b.py", "def b():\n    return a\n")
    work.write("secret/c.py", "KEY = 'x'\n")
    work.write("d.key", "KEY\n")
    work.write("marked.py", b"\xef\xbb\xbfx = 1\n")
    work.write("wide.py", "x = '😀'\r\n".encode("utf-16"))
    work.write("latin.py", "x = 'é'\n".encode("latin-1"))
    work.write("binary.py", b"a\0b\n")
    work.write("half.py", b"\xff\xfea\0b")
    work.write(os.fsdecode(b"odd-\xff.py"), "odd\n")
    work.write("large.py", b"x = 1\n" * (3 << 19))
    (work.root / "link.py").symlink_to("secret/c.py")
    (work.root / "out.py").symlink_to("/etc/hostname")
    os.mkfifo(work.root / "pipe.py")
    return work


@pytest.fixture(scope="module", params=["local", "docker"])
def work(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Work]:
    """A loop whose rules let nothing in `secret`, and no key, be read."""
    directory = tmp_path_factory.mktemp("places")
    with open_work(request.param, directory, change=lambda spec: replace(spec, deny=DENY)) as made:
        yield filled(made)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """The same over the local transport alone."""
    directory = tmp_path_factory.mktemp("local")
    with open_work("local", directory, change=lambda spec: replace(spec, deny=DENY)) as made:
        yield filled(made)


def context(work: Work, **more: Any) -> Context:
    """Of a call that reads."""
    tool = work.loop.registry.get("read_file")
    assert tool is not None
    return Context("1", tool.entry, work.loop._surroundings, **more)


def text(work: Work, path: str) -> str:
    """Of a file."""
    return work.thread.run(text_of(context(work), path))


def spots(work: Work, *targets: Target, encoding: Encoding = "utf-16", **more: Any) -> Spots:
    """Of places."""
    return work.thread.run(spots_of(Files(context(work, **more), encoding), targets))


def at(path: str, *extent: int, text: str = "") -> Target:
    """A place in a file."""
    return Target(uri_of(path), Extent(*extent), text)


# ─── texts ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.py", PY),
        ("marked.py", "x = 1\n"),
        ("wide.py", "x = '😀'\r\n"),
        ("latin.py", "x = '\ufffd'\n"),
        (os.fsdecode(b"odd-\xff.py"), "odd\n"),
    ],
)
def test_a_whole_file_is_read_as_text(work: Work, path: str, expected: str) -> None:
    """Whatever encoding it is in, with its ends of lines as they are."""
    assert text(work, path) == expected


def test_a_large_file_is_read_whole(work: Work) -> None:
    """Eight megabytes, which no tool gives a model."""
    work.write("most.py", b"x" * places.MOST_BYTES)
    assert len(text(work, "most.py")) == places.MOST_BYTES


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("none.py", Code.FILE_NOT_FOUND),
        ("src", Code.NOT_A_FILE),
        ("", Code.NOT_A_FILE),
        ("pipe.py", Code.NOT_A_FILE),
        ("binary.py", Code.UNSUPPORTED),
        ("half.py", Code.UNSUPPORTED),
        ("large.py", Code.TOO_LARGE),
        ("secret/c.py", Code.PERMISSION_DENIED),
        ("link.py", Code.PERMISSION_DENIED),
        ("d.key", Code.PERMISSION_DENIED),
        ("out.py", Code.INVALID_PATH),
        ("/etc/hostname", Code.INVALID_PATH),
        ("/proc/self/environ", Code.INVALID_PATH),
        (f"{PLANS}/of-another-loop.md", Code.INVALID_PATH),
        ("x" * 300, Code.INVALID_PATH),
    ],
)
def test_what_is_not_read_is_an_error(work: Work, path: str, code: Code) -> None:
    """The agent's own errors, and what the loop's rules deny."""
    with pytest.raises(ToolError) as raised:
        text(work, path)
    assert raised.value.code is code
    assert "base64" not in str(raised.value), "nobody has asked for that"


# ─── places ─────────────────────────────────────────────────────────────────────────


def test_places_are_counted_as_people_do(work: Work) -> None:
    """From one, in characters, with the line that is there."""
    found = spots(work, at("a.py", 1, 15, 1, 20), at("src/b.py", 0, 4, 0, 5))
    assert found == Spots(
        (
            Spot("a.py", 2, 15, 2, 20, "second = '😀'; third = 2"),
            Spot("src/b.py", 1, 5, 1, 6, "def b():"),
        ),
        2,
        0,
    )


@pytest.mark.parametrize(("encoding", "character"), [("utf-8", 17), ("utf-16", 15), ("utf-32", 14)])
def test_places_are_counted_as_the_server_does(
    local: Work, encoding: Encoding, character: int
) -> None:
    """One place of a line with a wide character, in every encoding."""
    found = spots(local, at("a.py", 1, character, 1, character + 5), encoding=encoding)
    (spot,) = found.spots
    assert (spot.line, spot.column, spot.end_column) == (2, 15, 20)


def test_what_is_said_of_a_place_is_kept(local: Work) -> None:
    """Instead of the line, which may be empty, too."""
    said, empty = spots(
        local, at("a.py", 0, 0, 0, 5, text="error: x"), at("a.py", 2, 0, 2, 0)
    ).spots
    assert (said.text, empty.text) == ("error: x", "")


def test_denied_files_hide_their_places(work: Work) -> None:
    """By the file's own name, by a link to it, whatever the server says of the place."""
    found = spots(
        work,
        at("a.py", 0, 0, 0, 5),
        at("secret/c.py", 0, 0, 0, 3),
        at("secret/c.py", 0, 6, 0, 9, text="error: KEY is x"),
        at("link.py", 0, 0, 0, 3),
        at("src/../d.key", 0, 0, 0, 3),
        Target("file:///workspace/secret%2Fc.py", Extent(0, 0, 0, 1)),
        at("src/b.py", 0, 0, 0, 3),
    )
    assert [spot.path for spot in found.spots] == ["a.py", "src/b.py"]
    assert (found.total, found.hidden) == (7, 5)
    assert "KEY" not in repr(found)


@pytest.mark.parametrize(
    "rules",
    [
        {"deny": {"read": [["/src/**", "lsp(/src/**)"]]}},
        {"ask": {"read": [["/src/**", "lsp(/src/**)"]]}},
        {"places": ["a.py"]},
    ],
    ids=["denied", "not asked", "another"],
)
def test_rules_of_the_call_hide_places_too(local: Work, rules: dict[str, Any]) -> None:
    """What the call may not read, though the loop may."""
    given_ = (at("src/b.py", 0, 0, 0, 3), at("a.py", 0, 0, 0, 5))
    found = spots(local, *given_, rules=rules)
    assert ([spot.path for spot in found.spots], found.total, found.hidden) == (["a.py"], 2, 1)
    assert spots(local, *given_).hidden == 0


@pytest.mark.parametrize(
    "path",
    ["binary.py", "large.py", "src", "out.py", "/usr/lib/x.py", "/proc/self/environ"],
)
def test_what_cannot_be_read_has_no_text(work: Work, path: str) -> None:
    """The place is shown as the server counts, from one; what it says of it, too."""
    found = spots(work, at(path, 3, 7, 3, 9), at(path, 0, 0, 0, 1, text="error: x"))
    assert found == Spots((Spot(path, 4, 8, 4, 10), Spot(path, 1, 1, 1, 2, "error: x")), 2, 0)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("jdt://contents/String.class", "jdt://contents/String.class"),
        ("file:///workspace/a%00.py", "file:///workspace/a%00.py"),
        ("x:\n\x1b[2J", "x:\\n\\x1b[2J"),
    ],
)
def test_what_is_no_file_is_shown_by_its_uri(local: Work, uri: str, shown: str) -> None:
    """Nothing of it is looked for in the box."""
    place = Spot(shown, 2, 3, 2, 4, is_file=False)
    assert spots(local, Target(uri, Extent(1, 2, 1, 3))).spots == (place,)


def test_places_beyond_a_file_are_brought_back(local: Work) -> None:
    """The file may be another by now than the server knows."""
    (spot,) = spots(local, at("src/b.py", 50, 3, 60, 1)).spots
    assert spot == Spot("src/b.py", 3, 1, 3, 1)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (1, "x" * 299 + "…"),
        (150, "x" * 299 + "…"),
        (1000, "…" + "x" * 298 + "…"),
        (2000, "…" + "x" * 101),
    ],
)
def test_of_a_long_line_the_part_around_is_shown(local: Work, column: int, expected: str) -> None:
    """Three hundred characters of it, and that it goes on."""
    local.write("long.py", "x" * 2000 + "\n")
    (spot,) = spots(local, at("long.py", 0, column - 1, 0, column)).spots
    assert (spot.column, spot.text) == (column, expected)


def test_a_toolset_that_reaches_all_of_the_box_sees_it(tmp_path: Path) -> None:
    """Libraries outside of the worktree have lines; what its tools don't read, has none."""
    with open_work(
        "docker", tmp_path, change=lambda spec: replace(spec, toolset="claude-code")
    ) as made:
        made.write("a.py", PY)
        tool = made.loop.registry.get("Read")
        assert tool is not None
        call = Context("1", tool.entry, made.loop._surroundings)
        targets = [at(path, 0, 0, 0, 1) for path in ("/etc/passwd", "/proc/self/status", "a.py")]
        found = made.thread.run(spots_of(Files(call, "utf-16"), targets))
    assert [spot.text.partition(":")[0] for spot in found.spots] == ["root", "", "first = 1"]


# ─── many of them ───────────────────────────────────────────────────────────────────


def numbered(work: Work, folder: str, count: int, data: str = "x = 1\n") -> list[Target]:
    """A place in each of so many new files."""
    (work.root / folder).mkdir(exist_ok=True)
    for number in range(count):
        (work.root / folder / f"{number}.py").write_text(data)
    return [at(f"{folder}/{number}.py", 0, 0, 0, 1) for number in range(count)]


@pytest.mark.parametrize("line", ["x = 1\n", "😀é = 1; " * 30], ids=["short", "one line"])
def test_ten_thousand_places_in_one_file(local: Work, line: str) -> None:
    """The first are shown, all are counted, and it takes no second."""
    local.write("many.py", line * 5000)
    targets = [at("many.py", index, index, index, index + 1) for index in range(10_000)]
    began = time.process_time()
    found = spots(local, *targets)
    assert time.process_time() - began < 1
    assert (len(found.spots), found.total, found.hidden) == (MOST_SPOTS, 10_000, 0)


def test_of_many_files_the_first_are_read(local: Work) -> None:
    """Fifty have a text; of the others it is still seen whether they may be read."""
    targets = numbered(local, "many", 150)
    denied = [at("secret/c.py", 0, 0, 0, 1), at("link.py", 0, 0, 0, 1)]
    found = spots(local, *targets, *denied, *numbered(local, "more", 100))
    texts = [spot.text for spot in found.spots]
    assert texts == ["x = 1"] * places.MOST_FILES + [""] * (MOST_SPOTS - places.MOST_FILES)
    assert (found.total, found.hidden) == (252, 2)


def test_of_large_files_as_many_as_there_is_room_for(local: Work) -> None:
    """Sixteen megabytes in all."""
    targets = numbered(local, "heavy", 4, "x = 1\n" * 1_000_000)
    texts = [spot.text for spot in spots(local, *targets, at("a.py", 0, 0, 0, 1)).spots]
    assert texts == ["x = 1", "x = 1", "", "", "first = 1"]


def test_what_was_read_already_is_not_read_again(local: Work) -> None:
    """Its places are those of the text that the server was sent."""
    local.write("now.py", "later = 1\n")
    files = Files(context(local), "utf-16", {"now.py": Text("before = 1\n")})
    found = local.thread.run(spots_of(files, [at("now.py", 0, 0, 0, 1)]))
    assert [spot.text for spot in found.spots] == ["before = 1"]


def test_ten_thousand_files_are_not_all_looked_for(local: Work) -> None:
    """Only as many as are shown; where all are denied, a thousand, and no place is shown."""
    began = time.monotonic()
    numbered(local, "many", MOST_SPOTS)
    found = spots(local, *(at(f"many/{number}.py", 0, 0, 0, 1) for number in range(10_000)))
    assert (len(found.spots), found.total, found.hidden) == (MOST_SPOTS, 10_000, 0)
    numbered(local, "secret", places.MOST_LOOKS)
    targets = [at(f"secret/{number}.py", 0, 0, 0, 1) for number in range(10_000)]
    found = spots(local, *targets, at("a.py", 0, 0, 0, 1))
    assert (found.spots, found.total, found.hidden) == ((), 10_001, places.MOST_LOOKS)
    assert time.monotonic() - began < 30


# ─── previews ───────────────────────────────────────────────────────────────────────


def edit(*extent: int, new: str) -> Edit:
    """A part that is replaced."""
    return Edit(Extent(*extent), new)


def previews(
    work: Work, files: Mapping[str, Sequence[Edit]], encoding: Encoding = "utf-16"
) -> Spots:
    """Of edits by path."""
    made = Renaming({uri_of(path): tuple(edits) for path, edits in files.items()})
    return work.thread.run(previews_of(Files(context(work), encoding), made))


def lines(found: Spots) -> list[tuple[int, int, str]]:
    """Line, column and text of each place."""
    return [(spot.line, spot.column, spot.text) for spot in found.spots]


def test_lines_are_shown_as_they_would_be(work: Work) -> None:
    """One for each line, all its edits in it, at the first of them; nothing is changed."""
    found = previews(
        work,
        {
            "a.py": [edit(1, 15, 1, 20, new="fifth"), edit(1, 0, 1, 6, new="2nd")],
            "src/b.py": [edit(0, 4, 0, 5, new="name"), edit(1, 11, 1, 12, new="b")],
        },
    )
    assert found == Spots(
        (
            Spot("a.py", 2, 1, 2, 7, "2nd = '😀'; fifth = 2"),
            Spot("src/b.py", 1, 5, 1, 6, "def name():"),
            Spot("src/b.py", 2, 12, 2, 13, "    return b"),
        ),
        3,
        0,
    )
    assert text(work, "a.py") == PY


def test_a_whole_file_given_anew_shows_what_differs(local: Work) -> None:
    """As servers rename that know no smaller edit; the place is that of the word."""
    local.write("jedi.py", "alpha = 1\r\nother = 2\r\nprint(alpha, 3)\r\n")
    new = "beta = 1\nother = 2\nprint(beta, 3)\n"
    found = previews(local, {"jedi.py": [edit(0, 0, 3, 0, new=new)]})
    assert lines(found) == [(1, 1, "beta = 1"), (3, 7, "print(beta, 3)")]
    assert [spot.end_column for spot in found.spots] == [6, 12]


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([edit(0, 0, 0, 0, new="import x\n")], [(1, 1, "import x")]),
        ([edit(1, 0, 1, 0, new="a\nb\n")], [(2, 1, "a"), (2, 1, "b")]),
        ([edit(1, 0, 2, 0, new="")], [(2, 1, "[removed]")]),
        ([edit(0, 3, 1, 0, new=" ")], [(1, 1, "one two")]),
        ([edit(0, 3, 0, 3, new="a\nb")], [(1, 4, "onea"), (1, 4, "b")]),
        ([edit(0, 0, 0, 0, new="a"), edit(0, 0, 0, 0, new="b")], [(1, 1, "abone")]),
        ([edit(0, 0, 0, 3, new="x"), edit(0, 0, 0, 0, new="y")], [(1, 1, "yx")]),
        ([edit(0, 0, 0, 3, new="x"), edit(0, 3, 0, 3, new="y")], [(1, 1, "xy")]),
        ([edit(0, 0, 0, 3, new="one")], []),
        ([edit(99, 0, 99, 9, new="end")], [(4, 1, "end")]),
        ([edit(2, 0, 99, 0, new="3\n")], [(3, 1, "3")]),
        ([], []),
    ],
)
def test_edits_of_every_kind(
    local: Work, edits: list[Edit], expected: list[tuple[int, int, str]]
) -> None:
    """What is put in, taken out, joined, at one place, beyond the end, or no change at all."""
    local.write("three.py", "one\ntwo\nthree\n")
    found = previews(local, {"three.py": edits})
    assert lines(found) == expected
    assert found.total == len(expected)


@pytest.mark.parametrize(
    ("extent", "is_doubtful"),
    [
        *(
            ((0, 4, 0, 7), False),
            ((0, 5, 0, 7), False),
            ((0, 5, 0, 6), False),
            ((0, 4, 0, 4), False),
        ),
        *(((0, 0, 1, 0), False), ((0, 5, 0, 8), True), ((0, 3, 0, 6), True), ((0, 9, 0, 10), True)),
        *(
            ((0, 0, 0, 3), True),
            ((0, 7, 0, 8), True),
            ((0, 0, 0, 0), False),
            ((0, 90, 0, 93), True),
        ),
    ],
)
def test_what_is_replaced_is_the_name(
    local: Work, extent: tuple[int, int, int, int], is_doubtful: bool
) -> None:
    """All of it, a part, or more; where it is something else the server counts otherwise."""
    local.write("net.py", "int foo(int x)\n")
    made = Renaming({uri_of("net.py"): (edit(*extent, new="bar"),)})
    found = local.thread.run(previews_of(Files(context(local), "utf-16"), made, "foo"))
    assert found.doubtful == (("net.py",) if is_doubtful else ())


ACTING = "\x1b[31m \x00 \x9b \u202e \ud800"


@pytest.mark.parametrize("new", [f"x{ACTING}", f"first = 1\n{ACTING}\n", "\r"])
def test_new_text_is_harmless(local: Work, new: str) -> None:
    """A server's text comes to a model with nothing that acts, hides or is no character."""
    local.write("tame.py", "first = 1\nother = 2\n")
    (spot, *_) = previews(local, {"tame.py": [edit(0, 0, 0, 5, new=new)]}).spots
    assert visible(spot.text) == spot.text
    assert spot.text.encode()


def test_what_acts_in_a_file_is_no_difference(local: Work) -> None:
    """Given anew it is as it was, to the character."""
    old = "first = '\x0c\u200d'\nother = first # \x1b\n"
    local.write("odd.py", old)
    found = previews(local, {"odd.py": [Edit(WHOLE, old.replace("other", "third"))]})
    assert lines(found) == [(2, 1, "third = first # \x1b")]


@pytest.mark.parametrize(
    "edits",
    [
        [edit(0, 0, 0, 3, new="x"), edit(0, 2, 0, 5, new="y")],
        [edit(0, 0, 0, 3, new="x"), edit(0, 0, 0, 3, new="x")],
        [edit(0, 0, 1, 0, new="x"), edit(0, 1, 0, 1, new="y")],
        [edit(0, 0, LARGEST, 0, new="x"), edit(3, 0, 3, 1, new="y")],
    ],
)
def test_edits_that_overlap_are_refused(local: Work, edits: list[Edit]) -> None:
    """Nobody knows what they mean."""
    with pytest.raises(BadAnswer, match=r"overlap in line \d of one file"):
        previews(local, {"a.py": edits})


def test_edits_of_denied_files_are_hidden(work: Work) -> None:
    """Their lines are counted, and nothing of them is shown: not what would be put in, either."""
    change = [edit(0, 0, 0, 3, new="KEY2"), edit(0, 5, 0, 5, new="KEY3"), edit(4, 0, 4, 0, new="x")]
    found = previews(work, {"secret/c.py": change, "src/b.py": [edit(0, 4, 0, 5, new="n")]})
    assert [spot.path for spot in found.spots] == ["src/b.py"]
    assert (found.total, found.hidden) == (3, 2)
    assert "KEY" not in repr(found)


def test_edits_of_what_cannot_be_read_have_no_text(local: Work) -> None:
    """One place for each line, by the server's count."""
    change = [edit(4, 9, 4, 10, new="b"), edit(4, 2, 4, 3, new="a"), edit(2, 0, 2, 1, new="c")]
    found = previews(local, {"binary.py": change})
    assert found == Spots((Spot("binary.py", 3, 1, 3, 2), Spot("binary.py", 5, 3, 5, 4)), 2, 0)


def test_places_in_a_file_that_is_gone_are_left_out(local: Work) -> None:
    """A server that has not noticed its end helps nobody by them."""
    assert spots(local, at("none.py", 3, 7, 3, 9), at("a.py", 0, 0, 0, 5)).total == 1
    assert spots(local, at("none.py", 3, 7, 3, 9)) == Spots()
    assert previews(local, {"none.py": [edit(0, 0, 0, 1, new="x")]}) == Spots()


def test_a_file_by_two_names_is_one_file(local: Work) -> None:
    """Its edits belong together, whatever the URIs are."""
    made = Renaming(
        {
            "file:///workspace/src/b.py": (edit(0, 0, 0, 3, new="x"),),
            "file:///workspace/./src/b%2epy": (edit(0, 4, 0, 5, new="y"),),
        }
    )
    found = local.thread.run(previews_of(Files(context(local), "utf-16"), made))
    assert lines(found) == [(1, 1, "x y():")]


@pytest.mark.parametrize("line", ["ab\n", "ab"], ids=["lines", "one line"])
def test_ten_thousand_edits_of_one_file(local: Work, line: str) -> None:
    """All are counted, the first are shown, and it takes no second."""
    local.write("edited.py", line * 10_000)
    places_ = [(index, 0) if "\n" in line else (0, 2 * index) for index in range(10_000)]
    edits = [edit(row, column, row, column + 1, new="xyz") for row, column in places_]
    began = time.process_time()
    found = previews(local, {"edited.py": edits[::-1]})
    assert time.process_time() - began < 1
    assert found.total == (10_000 if "\n" in line else 1)
    assert found.spots[0].text.startswith("xyzb") and len(found.spots) <= MOST_SPOTS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = 1\n" * 200_000, "y = 2\n" * 200_000),
        ("\n" * 1_000_000, "\n" * 1_000_001),
        ("x" * 1_000_000, "y" * 1_000_000),
        ("ab" * 500_000, "ab" * 499_999 + "c"),
        ("x = 1\n" * 100_000, ""),
        ("a\nb\n" * 100_000, "b\na\n" * 100_001),
    ],
    ids=["lines", "one more", "line", "end of a line", "nothing", "turned"],
)
def test_a_megabyte_given_anew_is_quick(local: Work, old: str, new: str) -> None:
    """However little it has in common with what is there."""
    local.write("whole.py", old)
    began = time.process_time()
    found = previews(local, {"whole.py": [Edit(WHOLE, new)]})
    assert time.process_time() - began < 2
    assert found.total >= len(found.spots) > 0


def test_edits_of_many_files_have_bounds(local: Work) -> None:
    """As many places as an answer has; all lines are counted."""
    numbered(local, "many", MOST_SPOTS)
    many = {f"many/{number}.py": [edit(0, 0, 0, 1, new="y")] for number in range(10_000)}
    found = previews(local, many)
    assert (len(found.spots), found.total, found.hidden) == (MOST_SPOTS, 10_000, 0)
