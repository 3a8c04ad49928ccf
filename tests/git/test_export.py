"""What a loop has made comes out of its box, by the real git and the real agent."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from executor.errors import AgentLost, Code, SandboxError, ToolError
from executor.git import export
from executor.git.export import collect
from executor.git.program import Git
from executor.git.values import Arrival, Box, Refused, Reply, Repository
from executor.model import GitOptions
from tests.git import origins
from tests.local_box import open_local_box

FILES = {"a": "one\n", "d/b": "two\n", ".gitignore": "*.log\n"}


class Place:
    """An origin, a loop's worktree and git directory over it, and where a quarantine goes."""

    def __init__(self, directory: Path, format: str = "sha1") -> None:
        self.origin = origins.make(directory / "origin", FILES, format)
        self.repository: Repository = origins.described(self.origin)
        self.worktree = directory / "work"
        self.inside = directory / "inside"
        origins.private(self.origin, self.worktree, self.inside)
        self.start = {"refs/heads/main": self.head}
        self.parent = directory / "kept"
        self.parent.mkdir()
        self.directory = self.parent / "arrival"
        self.scratch = directory / "scratch"
        self.scratch.mkdir()

    @property
    def head(self) -> str:
        """The loop's HEAD."""
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        """Git as the loop runs it."""
        return origins.inside(self.inside, self.worktree, *arguments)

    def commit(self, name: str, content: str) -> str:
        """The loop commits a file."""
        path = self.worktree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name)
        return self.head

    def there(self, *arguments: str) -> str:
        """Git on the quarantine."""
        return origins.run(self.parent, f"--git-dir={self.directory}", *arguments)

    async def take(
        self,
        box: Box,
        *,
        options: GitOptions | None = None,
        snapshot: bool = False,
    ) -> Arrival | None:
        """Collect from a box."""
        return await collect(
            Git.find(),
            box,
            self.repository,
            self.start,
            self.directory,
            options if options is not None else GitOptions(),
            inside=str(self.inside),
            snapshot=snapshot,
        )

    def collect(
        self,
        *,
        options: GitOptions | None = None,
        snapshot: bool = False,
        over: Callable[[Box], Box] = lambda box: box,
    ) -> Arrival | None:
        """Collect from an agent of its own."""

        async def work() -> Arrival | None:
            async with open_local_box(self.worktree, self.scratch) as box:
                return await self.take(over(box), options=options, snapshot=snapshot)

        return asyncio.run(work())

    def arrives(self, *, snapshot: bool = False) -> Arrival:
        """Collect what is there."""
        arrival = self.collect(snapshot=snapshot)
        assert arrival is not None
        return arrival


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An origin and a loop."""
    return Place(tmp_path)


# ─── what comes ─────────────────────────────────────────────────────────────────────


def test_nothing_new_is_nothing(place: Place) -> None:
    """A loop that only read leaves no quarantine; a file that is not committed is none, either."""
    (place.worktree / "new").write_text("x")
    assert place.collect() is None
    assert os.listdir(place.parent) == []


def test_commits_come_with_their_content(place: Place) -> None:
    """Branch, HEAD and what they hold."""
    first = place.commit("a", "changed\n")
    second = place.commit("d/new", "new\n")
    arrival = place.arrives()
    assert arrival.refs == {"heads/main": second, "head": second}
    assert (arrival.branch, arrival.commits, arrival.notes) == ("refs/heads/main", 2, ())
    assert place.there("show", "refs/loops/head:d/new") == "new"
    assert place.there("rev-parse", "refs/loops/head~1") == first
    assert os.listdir(place.parent) == ["arrival"]


@pytest.mark.parametrize("format", ["sha1", "sha256"])
def test_every_kind_of_ref_comes(tmp_path: Path, format: str) -> None:
    """Branches, tags of both kinds, stashes newest first, the index."""
    place = Place(tmp_path, format)
    place.git("switch", "-q", "-c", "feature/x")
    made = place.commit("a", "changed\n")
    place.git("tag", "-a", "-m", "label", "v1")
    place.git("tag", "light")
    stashes = []
    for text in ("older\n", "newer\n"):
        (place.worktree / "a").write_text(text)
        place.git("stash", "push", "-q")
        stashes.append(place.git("rev-parse", "refs/stash"))
    (place.worktree / "staged").write_text("staged\n")
    place.git("add", "staged")
    arrival = place.arrives()
    assert arrival.refs == {
        "heads/feature/x": made,
        "tags/v1": place.git("rev-parse", "refs/tags/v1"),
        "tags/light": made,
        "head": made,
        "stash/0": stashes[1],
        "stash/1": stashes[0],
        "index": place.git("write-tree"),
    }
    assert place.there("show", "refs/loops/index:staged") == "staged"
    assert place.there("show", "refs/loops/stash/1:a") == "older"
    assert arrival.branch == "refs/heads/feature/x"


def test_a_detached_head_comes(place: Place) -> None:
    """Without a branch."""
    place.git("checkout", "-q", "--detach")
    made = place.commit("a", "changed\n")
    arrival = place.arrives()
    assert (arrival.refs, arrival.branch) == ({"head": made}, None)


def test_a_rewritten_branch_comes(place: Place) -> None:
    """An amended commit has the old one's parents, and nothing of it is missing."""
    place.git("commit", "-q", "--amend", "-m", "other")
    arrival = place.arrives()
    assert arrival.refs == {"heads/main": place.head, "head": place.head}
    assert arrival.commits == 1


def test_history_without_a_common_commit_comes(place: Place) -> None:
    """An orphan branch."""
    place.git("checkout", "-q", "--orphan", "fresh")
    made = place.commit("a", "fresh\n")
    assert place.arrives().refs == {"heads/fresh": made, "head": made}


def test_an_unborn_head_is_nothing(place: Place) -> None:
    """No commit: what is staged alone does not leave the box, its files are in the worktree."""
    place.git("checkout", "-q", "--orphan", "fresh")
    assert place.collect() is None
    place.git("rm", "-q", "-r", "--cached", ".")
    assert place.collect() is None


def test_what_is_staged_alone_is_nothing(place: Place) -> None:
    """A `git add` leaves nothing to take over, however often it is looked for."""
    (place.worktree / "a").write_text("staged")
    place.git("add", "a")
    assert place.collect() is None


@pytest.mark.parametrize("name", ["HEAD", "config", "objects/info/alternates"])
def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(place: Place, name: str) -> None:
    """The look ends at once, and says what is there."""
    (place.inside / name).unlink(missing_ok=True)
    os.mkfifo(place.inside / name)
    with pytest.raises(Refused, match=f"{name} is a pipe"):
        place.collect()


def test_deleted_branches_are_a_note(place: Place) -> None:
    """They stay outside."""
    place.git("switch", "-q", "-c", "other")
    place.git("branch", "-q", "-D", "main")
    assert place.collect() is not None
    made = place.commit("a", "changed\n")
    arrival = place.arrives()
    assert arrival.refs == {"heads/other": made, "head": made}
    assert arrival.notes == ("deleted in the box, and left as it is outside: refs/heads/main",)


def test_uncommitted_changes_come_as_a_commit(place: Place) -> None:
    """Changed, new, deleted and staged; not what is ignored; the loop's own index stays."""
    (place.worktree / "a").write_text("changed\n")
    (place.worktree / "d/b").unlink()
    (place.worktree / "new").write_text("new\n")
    (place.worktree / "noise.log").write_text("noise\n")
    (place.worktree / "staged").write_text("staged\n")
    place.git("add", "staged")
    index = (place.inside / "index").read_bytes()
    files = set(os.listdir(place.inside))
    arrival = place.arrives(snapshot=True)
    assert set(arrival.refs) == {"index", "uncommitted"}
    names = place.there("ls-tree", "-r", "--name-only", "refs/loops/uncommitted").split()
    assert names == [".gitignore", "a", "new", "staged"]
    assert place.there("rev-parse", "refs/loops/uncommitted^") == place.head
    assert arrival.commits == 0
    assert (place.inside / "index").read_bytes() == index
    assert set(os.listdir(place.inside)) == files


def test_without_changes_there_is_no_commit_of_them(place: Place) -> None:
    """Nothing of nothing."""
    assert place.collect(snapshot=True) is None


def test_changes_before_the_first_commit_come(place: Place) -> None:
    """A commit without a parent."""
    place.git("checkout", "-q", "--orphan", "fresh")
    place.git("rm", "-q", "-r", "-f", ".")
    (place.worktree / "new").write_text("new\n")
    assert list(place.arrives(snapshot=True).refs) == ["uncommitted"]
    assert place.there("rev-list", "--count", "refs/loops/uncommitted") == "1"


def test_in_a_conflict_changes_come_and_the_index_does_not(place: Place) -> None:
    """An unmerged index is no tree."""
    place.git("switch", "-q", "-c", "other")
    place.commit("a", "theirs\n")
    place.git("switch", "-q", "main")
    place.commit("a", "ours\n")
    with pytest.raises(AssertionError):
        place.git("merge", "-q", "other")
    arrival = place.arrives(snapshot=True)
    assert set(arrival.refs) == {"heads/main", "heads/other", "head", "uncommitted"}
    assert "<<<<<<<" in place.there("show", "refs/loops/uncommitted:a")
    assert arrival.notes == ("the index was left out: it has unmerged files, or can't be read",)


def test_repositories_inside_are_no_part_of_the_changes(place: Place) -> None:
    """One that is not tracked is left alone."""
    origins.make(place.worktree / "sub", {"x": "x\n"})
    (place.worktree / "new").write_text("new\n")
    arrival = place.arrives(snapshot=True)
    assert set(arrival.refs) == {"uncommitted"}
    names = place.there("ls-tree", "-r", "--name-only", "refs/loops/uncommitted").split()
    assert names == [".gitignore", "a", "d/b", "new"]


def test_what_is_only_staged_does_not_hold_up_commits(place: Place) -> None:
    """A repository in the index is refused, and what was committed comes with a note."""
    made = place.commit("a", "changed\n")
    origins.make(place.worktree / "sub", {"x": "x\n"})
    place.git("add", "-A")
    arrival = place.arrives(snapshot=True)
    assert arrival.refs == {"heads/main": made, "head": made}
    assert len(arrival.notes) == 1
    assert arrival.notes[0].startswith("index, uncommitted left out: 'sub': a repository inside")


def test_a_repository_inside_a_commit_is_refused(place: Place) -> None:
    """Nothing of it stays."""
    origins.make(place.worktree / "sub", {"x": "x\n"})
    place.commit("a", "changed\n")
    with pytest.raises(Refused, match="'sub'"):
        place.collect()
    assert os.listdir(place.parent) == []


def test_a_pack_of_many_pieces_comes(place: Place) -> None:
    """More than is fetched at a time, in the right order."""
    content = os.urandom(3 * export.PIECE // 2).hex()
    made = place.commit("large", content)
    assert place.arrives().refs["head"] == made
    assert place.there("show", "refs/loops/head:large") == content


def test_a_pack_over_the_limit_is_refused(place: Place) -> None:
    """It is not even fetched."""
    place.commit("large", os.urandom(1 << 20).hex())
    with pytest.raises(Refused, match="at most 100000 are taken"):
        place.collect(options=GitOptions(pack_bytes=100_000))
    assert os.listdir(place.parent) == []


@pytest.mark.skipif(shutil.which("busybox") is None, reason="there is no busybox here")
def test_the_smallest_shell_will_do(place: Place) -> None:
    """The scripts use nothing that the shell of small images has not."""

    class Small(Liar):
        async def request(
            self,
            op: str,
            arguments: dict[str, Any],
            body: bytes = b"",
            *,
            timeout: float | None = None,
        ) -> Reply:
            if op == "run":
                arguments = {**arguments, "argv": ["busybox", "sh"]}
            return await super().request(op, arguments, body, timeout=timeout)

    place.git("tag", "v1")
    made = place.commit("a", "changed\n")
    (place.worktree / "a").write_text("stashed\n")
    place.git("stash", "push", "-q")
    (place.worktree / "new").write_text("new\n")
    arrival = place.collect(
        snapshot=True, over=lambda box: Small(box, lambda op, number, reply: reply)
    )
    assert arrival is not None
    assert set(arrival.refs) == {"heads/main", "head", "tags/v1", "stash/0", "uncommitted"}
    assert arrival.refs["head"] == made


def test_again_after_each_turn(place: Place) -> None:
    """The next quarantine has all since the start, in place of the last."""
    place.commit("a", "changed\n")
    place.arrives()
    made = place.commit("a", "again\n")
    arrival = place.arrives()
    assert (arrival.refs["head"], arrival.commits) == (made, 2)
    assert os.listdir(place.parent) == ["arrival"]


def test_what_the_origin_has_is_not_sent(place: Place) -> None:
    """The pack is as large as the change."""
    large = os.urandom(1 << 20).hex()
    (place.origin / "large").write_text(large)
    origins.run(place.origin, "add", "-A")
    origins.run(place.origin, "commit", "-q", "-m", "large")
    place.repository = origins.described(place.origin)
    place.git("reset", "-q", "--hard", origins.run(place.origin, "rev-parse", "HEAD"))
    place.start = {"refs/heads/main": place.head}
    place.commit("a", "changed\n")
    assert place.collect(options=GitOptions(pack_bytes=10_000)) is not None


# ─── hostile ────────────────────────────────────────────────────────────────────────


def test_what_git_in_the_box_obeys_changes_nothing(place: Place) -> None:
    """Configuration, attributes and hooks of the loop run in the box, or not at all."""
    made = place.commit("a", "changed\n")
    for key, value in (
        ("core.fsmonitor", "false"),
        ("pack.packSizeLimit", "1m"),
        ("log.showSignature", "true"),
        ("core.quotePath", "false"),
        ("column.ui", "always"),
        ("color.ui", "always"),
        ("core.pager", "cat /etc/passwd"),
        ("core.abbrev", "5"),
    ):
        place.git("config", key, value)
    assert place.arrives().refs == {"heads/main": made, "head": made}


@pytest.mark.parametrize("what", ["HEAD", "objects", "."])
def test_a_broken_git_directory_is_refused(place: Place, what: str) -> None:
    """With git's own words."""
    place.commit("a", "changed\n")
    path = place.inside / what
    path.rename(place.inside.parent / "gone")
    with pytest.raises(Refused):
        place.collect()
    assert os.listdir(place.parent) == []


def test_a_missing_object_is_refused(place: Place) -> None:
    """The loop has removed what its commit needs."""
    place.commit("a", "changed\n")
    name = place.git("rev-parse", "HEAD:a")
    (place.inside / "objects" / name[:2] / name[2:]).unlink()
    with pytest.raises(Refused, match="can't pack"):
        place.collect()
    assert os.listdir(place.parent) == []


def test_a_name_that_does_not_fit_is_refused(place: Place) -> None:
    """Git allows a longer name than is taken over."""
    place.git("update-ref", "refs/heads/" + "x" * 201, "HEAD")
    with pytest.raises(Refused, match="no name of a branch"):
        place.collect()


def test_too_many_refs_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number, whatever they are."""
    monkeypatch.setattr(export, "MOST_REFS", 10)
    for number in range(12):
        place.git("update-ref", f"refs/heads/x{number}", "HEAD")
    with pytest.raises(Refused, match="more than 11 branches"):
        place.collect()


# ─── an agent that lies ─────────────────────────────────────────────────────────────


@dataclass
class Said:
    """A reply."""

    value: dict[str, Any]
    data: bytes = b""


@dataclass
class Liar:
    """A box whose answers are the real ones, changed.

    Attributes:
        box: the real one; None = nothing is asked of it.
        change: takes the operation, its number and the reply; gives another, or raises.
        asked: operations, so far.
    """

    box: Box | None
    change: Callable[[str, int, Reply], Reply]
    asked: list[str] = field(default_factory=list)

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Reply:
        """Asks, and changes the answer."""
        self.asked.append(op)
        reply: Reply = Said({})
        if self.box is not None:
            reply = await self.box.request(op, arguments, body, timeout=timeout)
        return self.change(op, self.asked.count(op), reply)


def _listing(text: str | bytes, **fields: Any) -> Callable[[str, int, Reply], Reply]:
    data = text.encode() if isinstance(text, str) else text
    sizes = {"total": len(data), "head": len(data), "tail": 0}
    none = {"total": 0, "head": 0, "tail": 0}
    value = {"exit_code": 0, "timed_out": False, "stdout": sizes, "stderr": none, **fields}

    def change(op: str, number: int, reply: Reply) -> Reply:
        return Said(value, data)

    return change


NAME = "1" * 40
LISTS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "cut off"),
    "cut off": (f"branch refs/heads/main\nhead {NAME}\n", "cut off"),
    "another line": ("hello there\nend\n", "broken at"),
    "no word": ("end\nend\n", "broken at"),
    "no object": ("head HEAD\nend\n", "no name of an object"),
    "option": ("head --all\nend\n", "no name of an object"),
    "another format": (f"head {'1' * 64}\nend\n", "no name of an object"),
    "twice": (f"head {NAME}\nhead {NAME}\nend\n", "says head twice"),
    "ref twice": (f"ref {NAME} refs/heads/a\nref {NAME} refs/heads/a\nend\n", "twice"),
    "other refs": (f"ref {NAME} refs/remotes/a\nend\n", "no name of a branch"),
    "no ref": (f"ref {NAME}\nend\n", "no name of a branch"),
    "dots": (f"ref {NAME} refs/heads/../../x\nend\n", "no name of a branch"),
    "dash": (f"ref {NAME} refs/heads/-x\nend\n", "no name of a branch"),
    "branch": ("branch refs/heads/a b\nend\n", "no name of a branch"),
    "nul": (f"ref {NAME} refs/heads/a\0b\nend\n", "broken at"),
    "return": (f"ref {NAME} refs/heads/a\r\nend\n", "broken at"),
    "escape": (f"ref {NAME} refs/heads/a\x1b[2J\nend\n", "no name of a branch"),
    "encoding": (f"ref {NAME} refs/heads/".encode() + b"\xff\nend\n", "not UTF-8"),
    "left": ("left everything\nend\n", "broken at"),
}


@pytest.mark.parametrize("what", LISTS)
def test_a_list_that_is_no_list_is_refused(place: Place, what: str) -> None:
    """Every line is one of those that the script prints."""
    text, words = LISTS[what]
    with pytest.raises(Refused, match=words) as caught:
        asyncio.run(place.take(Liar(None, _listing(text))))
    assert str(caught.value).isprintable()


ANSWERS: dict[str, tuple[dict[str, Any], str]] = {
    "no repository": ({"exit_code": 98}, "no sound repository"),
    "signal": ({"exit_code": None, "signal": "SIGKILL"}, "no sound repository"),
    "time": ({"timed_out": True}, "too long"),
    "endless": ({"stdout": {"total": 1 << 40, "head": 0, "tail": 0}}, "1099511627776 bytes"),
    "no shelf": ({"stdout": {"total": 1 << 20, "head": 0, "tail": 0}}, "not what an agent"),
    "no output": ({"stdout": None}, "not what an agent"),
    "text": ({"stdout": {"total": "x", "head": 0, "tail": 0}}, "not what an agent"),
    "negative": ({"stdout": {"total": -1, "head": -1, "tail": 0}}, "not what an agent|cut off"),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_that_is_none_is_refused(place: Place, what: str) -> None:
    """Whatever the agent says of sizes and ends."""
    fields, words = ANSWERS[what]
    with pytest.raises(Refused, match=words):
        asyncio.run(place.take(Liar(None, _listing("end\n", **fields))))


def test_an_image_without_git_has_made_nothing(place: Place) -> None:
    """Nor one without a shell."""
    assert asyncio.run(place.take(Liar(None, _listing("", exit_code=97)))) is None

    def no_shell(op: str, number: int, reply: Reply) -> Reply:
        raise ToolError(Code.NOT_FOUND, "sh: there is no such program in this image")

    assert asyncio.run(place.take(Liar(None, no_shell))) is None


def _in_fetch(
    change: Callable[[int, Reply], Reply],
) -> Callable[[str, int, Reply], Reply]:
    return lambda op, number, reply: change(number, reply) if op == "fetch" else reply


FETCHES: dict[str, tuple[Callable[[int, Reply], Reply], str]] = {
    "nothing": (lambda number, reply: Said(reply.value), "bytes were announced"),
    "less": (lambda number, reply: Said(reply.value, reply.data[:-1]), "bytes were announced"),
    "more": (
        lambda number, reply: Said({"next": reply.value.get("next", 0) + 1}, reply.data + b"x"),
        "bytes were announced",
    ),
    "elsewhere": (lambda number, reply: Said({"next": 1 << 40}, reply.data), "were announced"),
    "no number": (lambda number, reply: Said({}, reply.data), "not what an agent"),
}


@pytest.mark.parametrize("what", FETCHES)
def test_a_pack_that_comes_otherwise_than_announced_is_refused(place: Place, what: str) -> None:
    """As many bytes as were said, from where they were asked for."""
    change, words = FETCHES[what]
    place.commit("large", os.urandom(export.PIECE).hex())
    with pytest.raises(Refused, match=words):
        place.collect(over=lambda box: Liar(box, _in_fetch(change)))
    assert os.listdir(place.parent) == []


def test_other_bytes_than_a_pack_are_refused(place: Place) -> None:
    """They reach git of the host as the content of a file, and it does not like them."""
    place.commit("large", os.urandom(export.PIECE).hex())

    def other(number: int, reply: Reply) -> Reply:
        return Said(reply.value, bytes(len(reply.data)))

    with pytest.raises(Refused, match="no pack"):
        place.collect(over=lambda box: Liar(box, _in_fetch(other)))


def test_a_box_without_room_is_refused(place: Place) -> None:
    """Where the box could not keep its pack, nothing is taken for it."""
    place.commit("large", os.urandom(export.PIECE).hex())

    def no_room(op: str, number: int, reply: Reply) -> Reply:
        if op == "run" and number == 2:
            total = reply.value["stdout"]["total"]
            reply.value["shelf"]["stdout"] = [total, 65536, 65536]
        return reply

    with pytest.raises(Refused, match="no room"):
        place.collect(over=lambda box: Liar(box, no_room))


@pytest.mark.parametrize("op", ["run", "fetch"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_lost_box_goes_up(place: Place, op: str, is_lost: bool) -> None:
    """As such; an operation that failed is a refusal."""
    place.commit("large", os.urandom(export.PIECE).hex())

    def fail(asked: str, number: int, reply: Reply) -> Reply:
        if asked == op:
            raise AgentLost("gone") if is_lost else ToolError(Code.LIMIT, "full")
        return reply

    with pytest.raises(SandboxError if is_lost else Refused):
        place.collect(over=lambda box: Liar(box, fail))
    assert os.listdir(place.parent) == []


def test_a_slow_box_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that come, but never all of them."""
    monkeypatch.setattr(export, "FETCH_SECONDS", 0.2)
    place.commit("large", os.urandom(export.PIECE).hex())

    class Slow(Liar):
        async def request(
            self,
            op: str,
            arguments: dict[str, Any],
            body: bytes = b"",
            *,
            timeout: float | None = None,
        ) -> Reply:
            if op == "fetch" and arguments["size"]:
                await asyncio.Event().wait()
            return await super().request(op, arguments, body, timeout=timeout)

    began = time.monotonic()
    with pytest.raises(Refused, match="did not come within"):
        place.collect(over=lambda box: Slow(box, lambda op, number, reply: reply))
    assert time.monotonic() - began < 20
    assert os.listdir(place.parent) == []


@pytest.mark.parametrize("where", ["run", "fetch"])
def test_a_cancelled_one_leaves_nothing(place: Place, where: str) -> None:
    """Where it waits for the box."""
    place.commit("large", os.urandom(export.PIECE).hex())

    async def work() -> None:
        reached = asyncio.Event()

        class Stuck(Liar):
            async def request(
                self,
                op: str,
                arguments: dict[str, Any],
                body: bytes = b"",
                *,
                timeout: float | None = None,
            ) -> Reply:
                if op == where and (op == "run" or arguments["size"]):
                    reached.set()
                    await asyncio.Event().wait()
                return await super().request(op, arguments, body, timeout=timeout)

        async with open_local_box(place.worktree, place.scratch) as box:
            stuck = Stuck(box, lambda asked, number, reply: reply)
            task = asyncio.ensure_future(place.take(stuck))
            await reached.wait()
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()

    asyncio.run(work())
    assert os.listdir(place.parent) == []
