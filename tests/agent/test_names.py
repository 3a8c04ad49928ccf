"""Names of files with matches: whatever comes in, the first ones in order are told."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from executor.agent.hits import Names
from executor.agent.search import Filter, Options
from tests.agent.driver import Tree

NAMES = st.lists(
    st.text(
        st.characters(codec="utf-8", exclude_characters="\0/", exclude_categories=["Cc", "Cs"]),
        min_size=1,
        max_size=12,
    ).filter(lambda name: name not in (".", "..")),
    unique=True,
    max_size=60,
)


def fed(found: Names, output: bytes, cuts: list[int]) -> Names:
    """The names after all of the output, which came in pieces."""
    places = sorted({0, len(output), *(cut % (len(output) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        for _ in found.feed(output[start:end]):
            pass
    for _ in found.finish():
        pass
    return found


@settings(deadline=None)
@given(NAMES, st.lists(st.integers(0, 10_000), max_size=8), st.integers(1, 300), st.booleans())
@example(
    ["0", "\xa0", "¡", "00", "01", "0\xa0", "0¡", "0𐀀", "\xa0\xa0", "0\xa0\xa0", "0\xa0𐀀", "1"],
    [],
    17,
    True,
)
def test_any_output_gives_the_first_names_in_order(
    names: list[str], cuts: list[int], room: int, counts: bool
) -> None:
    """Cut anywhere, in any order: what is told is the beginning of the sorted list, all counted."""
    show = "counts" if counts else "files"
    options = Options({"pattern": "x", "show": show, "max_bytes": room, "max_results": 1000})
    rows = [f"./{name}\0{len(name)}\r\n" if counts else f"./{name}\0" for name in names]
    found = fed(Names(options, Filter(None, None, "")), "".join(rows).encode(), cuts)
    reply, data = found.reply()
    lines = data.split(b"\n") if data else []
    in_order = sorted(names, key=str.encode)[: len(lines)]
    assert len(lines) == reply["shown"]
    if counts:
        assert [line.rpartition(b":")[2] for line in lines] == [b"%d" % len(n) for n in in_order]
    assert (reply["files"], reply["truncated"]) == (len(names), len(lines) < len(names))
    assert reply["matches"] == (sum(map(len, names)) if counts else len(names))
    assert len(data) <= room or len(lines) == 1
    assert bool(lines) is bool(names)


def test_no_more_names_are_held_than_can_be_told() -> None:
    """A million files with matches take no more memory than the text that may be shown."""
    options = Options({"pattern": "x", "show": "files", "max_bytes": 1000, "max_results": 10**6})
    found = Names(options, Filter(None, None, ""))
    for number in range(100_000, 0, -1):
        for _ in found.feed(b"./%06d\0" % number):
            pass
        assert len(found._found) <= 4 * 1000 // 7 + 1
    reply, data = found.reply()
    assert data.split(b"\n")[:2] == [b"000001", b"000002"]
    assert (reply["files"], reply["truncated"]) == (100_000, True)


def test_names_are_told_under_the_root_that_is_asked_for(tree: Tree) -> None:
    """`named` stands before every path of the worktree, in lines and in names."""
    tree.write("d/a.txt", "needle\n")
    for show, line in (
        ("lines", b"/workspace/d/a.txt:1:needle"),
        ("files", b"/workspace/d/a.txt"),
        ("counts", b"/workspace/d/a.txt:1"),
    ):
        asked: dict[str, Any] = {
            "pattern": "needle",
            "show": show,
            "named": "/workspace/",
            "context": 0,
        }
        assert tree.call("grep", **asked)[1] == line


def test_lines_can_be_without_numbers(tree: Tree) -> None:
    """What stands between path and line says whether the line matches."""
    tree.write("a.txt", "one\nneedle\n")
    asked: dict[str, Any] = {"pattern": "needle", "numbers": False, "context": 1}
    assert tree.call("grep", **asked)[1] == b"a.txt-one\na.txt:needle"
