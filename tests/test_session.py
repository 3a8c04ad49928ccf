"""What a loop remembers of the files that it read."""

from __future__ import annotations

import pytest

from executor.errors import Code, ToolError
from executor.paths import worktree_path
from executor.session import Session

ROOTS = ("/home/u/wt", "/mnt/real/wt")


def whole(session: Session, path: str) -> bool | None:
    reading = session.reading(path)
    return reading.whole if reading is not None else None


def test_nothing_is_known_at_first() -> None:
    """A file that was not read is unknown."""
    assert Session().reading("a") is None


def test_a_reading_to_the_end_is_whole() -> None:
    """Line 1 to the last line is the whole file; less is not."""
    session = Session()
    session.saw("a", "h", 1, 9, more=False)
    session.saw("b", "h", 1, 9, more=True)
    session.saw("c", "h", 2, 9, more=False)
    session.saw("empty", "h", 1, 0, more=False)
    assert [whole(session, path) for path in ("a", "b", "c", "empty")] == [True, False, False, True]


def test_gapless_readings_of_the_same_content_add_up() -> None:
    """A file read page by page is known as a whole, but not with a gap or after a change."""
    session = Session()
    session.saw("a", "h", 1, 5, more=True)
    session.saw("a", "h", 6, 9, more=False)
    session.saw("gap", "h", 1, 5, more=True)
    session.saw("gap", "h", 7, 9, more=False)
    session.saw("changed", "h", 1, 5, more=True)
    session.saw("changed", "other", 6, 9, more=False)
    session.saw("unhashed", None, 1, 5, more=True)
    session.saw("unhashed", None, 6, 9, more=False)
    found = [whole(session, path) for path in ("a", "gap", "changed", "unhashed")]
    assert found == [True, False, False, False]


def test_a_part_read_again_does_not_make_a_whole_reading_less() -> None:
    """What was known as a whole stays so while the content is the same."""
    session = Session()
    session.knows("a", "h")
    session.saw("a", "h", 3, 4, more=True)
    session.edited("a", "i")
    assert whole(session, "a") is True
    reading = session.reading("a")
    assert reading is not None and reading.hash == "i"


def test_an_edit_after_a_partial_reading_stays_partial() -> None:
    """Editing does not show the rest of the file."""
    session = Session()
    session.saw("a", "h", 1, 5, more=True)
    session.edited("a", "i")
    session.saw("a", "i", 6, 9, more=False)
    assert whole(session, "a") is False


def test_forgetting_and_moving_cover_what_is_below() -> None:
    """Delete forgets and move carries a directory's files; names that only begin alike stay."""
    session = Session()
    for path in ("d/a", "d/e/b", "dd", "t/old"):
        session.knows(path, path)
    session.move("d", "t")
    assert session.reading("d/a") is None
    assert session.reading("t/old") is None
    moved = session.reading("t/e/b")
    assert moved is not None and moved.hash == "d/e/b"
    session.forget("t")
    assert session.reading("t/a") is None
    assert whole(session, "dd") is True


def test_paths_of_one_file_share_a_reading() -> None:
    """What was seen or changed by one name holds for the others that have the file's key."""
    session = Session()
    session.knows("real", "h", "K")
    assert session.reading("link") is None
    assert session.same_file("link", "K") == session.reading("real")
    assert session.same_file("link", None) is None
    session.edited("link", "i", "K")
    reading = session.reading("real")
    assert reading is not None and (reading.hash, reading.whole) == ("i", True)
    assert session.lock("link") is session.lock("real")
    session.forget("link")
    assert whole(session, "real") is True
    session.forget("real")
    assert session.same_file("link", "K") is None


def test_a_link_that_leads_elsewhere_has_another_reading() -> None:
    """The key that came last counts; the file behind the old one keeps its reading."""
    session = Session()
    session.knows("link", "h", "K")
    session.knows("old", "h", "K")
    session.saw("link", "i", 1, 5, more=True, key="L")
    assert whole(session, "link") is False
    assert whole(session, "old") is True


def test_a_moved_file_leaves_its_key_behind() -> None:
    """A new file at the old place, which has the old key, is another file."""
    session = Session()
    session.knows("a", "h", "K")
    session.move("a", "b")
    session.knows("a", "new", "K")
    moved = session.reading("b")
    assert moved is not None and moved.hash == "h"
    session.saw("b", "h", 1, 1, more=True, key="L")
    assert session.same_file("c", "L") == session.reading("b")
    assert whole(session, "b") is True


def test_clearing_forgets_every_reading() -> None:
    """After it nothing is known, by path or by key."""
    session = Session()
    session.knows("a", "h", "K")
    session.clear_reads()
    assert session.reading("a") is None
    assert session.same_file("a", "K") is None


def test_one_path_has_one_lock() -> None:
    """Changes to one path share a lock; other paths have their own."""
    session = Session()
    lock = session.lock("a")
    assert session.lock("a") is lock
    assert session.lock("b") is not lock


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.txt", "a.txt"),
        ("./a//b/", "a/b"),
        ("a/../b", "b"),
        ("", ""),
        (".", ""),
        ("/workspace", ""),
        ("/workspace/a/b", "a/b"),
        ("//workspace/a", "a"),
        ("/workspace/x/../a", "a"),
        ("/home/u/wt/a.py", "a.py"),
        ("/mnt/real/wt", ""),
        ("~/x", "~/x"),
        ("a b/\udcff", "a b/\udcff"),
        ("..a/b", "..a/b"),
    ],
)
def test_paths_are_translated_as_text(text: str, expected: str) -> None:
    """Relative paths and absolute ones below the mount or the host's place are understood."""
    assert worktree_path(text, ROOTS) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("..", "../x", "a/../../x", "/etc/passwd", "/", "/workspace/../etc", "/workspaces/a"),
        *("a\0b", "/home/u/wt/../other", "/home/u/wtx"),
    ],
)
def test_other_paths_are_refused_with_the_root(text: str) -> None:
    """What leads elsewhere is INVALID_PATH; the message names the root, not the host's path."""
    with pytest.raises(ToolError) as caught:
        worktree_path(text, ROOTS)
    assert caught.value.code is Code.INVALID_PATH
    assert "/workspace" in str(caught.value)
    assert not any(root in str(caught.value) for root in ROOTS)
