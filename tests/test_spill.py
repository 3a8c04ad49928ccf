"""Outputs that are too long: what is shown of them, where the rest is, and when it goes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.catalog import Keep, SpillLimits, ToolEntry, Unit, load
from executor.controller import Controller
from executor.errors import Code
from executor.loop import Loop
from executor.model import RESULTS, Access, Call, Limits, LoopSpec, Result, Spilled
from executor.results import Limit, clip_text, fitted, size_of
from executor.sandbox.engine import Engine
from executor.sandbox.reaper import Identity, reap
from executor.sandbox.spill import Results, opened
from executor.session import Session
from executor.settings import Settings
from executor.tool import Context, Outcome, Spill, Surroundings
from tests.conftest import LIMITS, RUNTIME, make_worktree
from tests.driver import LoopThread, wait_until
from tests.loops import opener
from tests.scripted import open_scripted_box
from tests.test_pipeline import NoBox

SMALL = SpillLimits(call_bytes=1000, loop_bytes=2500, files=3)


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Results]:
    """The place of a loop's long outputs."""
    with Identity.claim(tmp_path / "state") as identity:
        with opened(identity, "test", SpillLimits()) as made:
            yield made


@contextmanager
def place(directory: Path, limits: SpillLimits) -> Iterator[Results]:
    with Identity.claim(directory / "state") as identity, opened(identity, "x", limits) as made:
        yield made


def keep(results: Results, output: bytes | AsyncIterator[bytes]) -> Spilled:
    """What is kept of an output."""
    spilled = asyncio.run(results.keep(output))
    assert spilled is not None
    return spilled


def kept(results: Results, spilled: Spilled) -> bytes:
    """The bytes that a reader finds."""
    return (results.directory / spilled.path.removeprefix(RESULTS + "/")).read_bytes()


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """An output that comes in pieces."""
    for part in parts:
        yield part


# ─── the place ──────────────────────────────────────────────────────────────────────


def test_files_count_up_and_only_the_host_writes_them(results: Results) -> None:
    """Names are numbers, files are for reading by all, the directory is open to its readers."""
    first, second = keep(results, b"one\n"), keep(results, pieces(b"t", b"wo\n"))
    assert (first.path, second.path) == (f"{RESULTS}/1.txt", f"{RESULTS}/2.txt")
    assert (kept(results, first), kept(results, second)) == (b"one\n", b"two\n")
    assert (first.kept, first.notice) == (4, None)
    modes = [path.stat().st_mode & 0o777 for path in sorted(results.directory.iterdir())]
    assert modes == [0o444, 0o444]
    assert results.directory.stat().st_mode & 0o777 == 0o755
    assert results.directory.parent.stat().st_mode & 0o077 == 0, "others on the host see nothing"


def test_what_is_more_than_a_call_may_keep_loses_its_middle(tmp_path: Path) -> None:
    """Beginning and end stay, the gap is marked in the file, and the notice has the number."""
    with place(tmp_path, SMALL) as results:
        spilled = keep(results, b"a" * 3000 + b"z" * 3000)
        content = kept(results, spilled)
        assert len(content) <= 1000
        assert content.startswith(b"a" * 480) and content.endswith(b"z" * 480)
        assert b"\n[5000 bytes were not kept]\n" in content
        assert spilled.notice == "5000 bytes were not kept"


def test_pieces_that_are_too_many_are_taken_and_counted(tmp_path: Path) -> None:
    """A source that goes on past the limit is read to its end, and what is lost is said."""
    with place(tmp_path, SMALL) as results:
        spilled = keep(results, pieces(b"a" * 900, b"b" * 900, b"c" * 900))
        assert kept(results, spilled) == b"a" * 900 + b"b" * 100
        assert spilled.notice == "1700 bytes were not kept"


def test_the_oldest_makes_room_and_that_is_said(tmp_path: Path) -> None:
    """The loop's bytes and files are bounded; the newest is always there."""
    with place(tmp_path, SMALL) as results:
        for _ in range(2):
            assert keep(results, b"x" * 1000).notice is None
        spilled = keep(results, b"y" * 1000)
        assert spilled.notice is not None and "dropped: 1.txt of " + RESULTS in spilled.notice
        assert sorted(path.name for path in results.directory.iterdir()) == ["2.txt", "3.txt"]
        for _ in range(3):
            last = keep(results, b"z")
        names = sorted(path.name for path in results.directory.iterdir())
        assert names == ["4.txt", "5.txt", "6.txt"]
        assert kept(results, last) == b"z"


def test_a_source_that_fails_leaves_nothing(results: Results) -> None:
    """Its exception comes through, and no half of a file stays."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"some"
        raise LookupError("the box is gone")

    with pytest.raises(LookupError):
        asyncio.run(results.keep(broken()))
    assert list(results.directory.iterdir()) == []


def test_cancelling_leaves_nothing(results: Results) -> None:
    """A call that is cancelled while its output is kept leaves no half of a file."""

    async def stuck() -> AsyncIterator[bytes]:
        yield b"some"
        await asyncio.Event().wait()

    async def run() -> None:
        task = asyncio.ensure_future(results.keep(stuck()))
        while not list(results.directory.iterdir()):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert list(results.directory.iterdir()) == []


def test_no_place_is_no_failure(results: Results) -> None:
    """Where nothing can be written, nothing is kept, and the call goes on."""
    results.directory.rmdir()
    assert asyncio.run(results.keep(b"x")) is None
    results.directory.mkdir()


def test_the_end_removes_files_and_follows_no_link(tmp_path: Path) -> None:
    """All that is in the directory is removed by the loop's end, and nothing else."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "stays").write_text("x")
    with place(tmp_path, SMALL) as results:
        keep(results, b"x")
        (results.directory / "link").symlink_to(other)
        directory = results.directory
    assert not directory.exists()
    assert (other / "stays").read_text() == "x"


DIES = """
import asyncio, os, signal, sys
from pathlib import Path
from executor.catalog import SpillLimits
from executor.sandbox.reaper import Identity
from executor.sandbox.spill import opened
identity = Identity.claim(Path(sys.argv[1]))
with opened(identity, "x", SpillLimits()) as results:
    asyncio.run(results.keep(b"x" * 100_000))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_reaper_removes_what_a_killed_controller_kept(tmp_path: Path) -> None:
    """After kill -9 the next pass of the reaper removes the directory and all in it."""
    state = tmp_path / "state"
    done = subprocess.run([sys.executable, "-c", DIES, str(state)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(state.glob("controllers/*/results-x-*/1.txt"))

    async def sweep() -> None:
        async with await Engine.connect(Settings.load()) as engine:
            await reap(engine, state)

    asyncio.run(sweep())
    assert list(state.glob("controllers/*")) == []


# ─── what is shown ──────────────────────────────────────────────────────────────────


def entry(keep: Keep, size: int = 1000, unit: Unit = Unit.BYTES) -> ToolEntry:
    return ToolEntry("no-net", Access.READ, 1000, size, keep=keep, unit=unit)


def context(made: ToolEntry, spill: Spill | None) -> Context:
    """Of a call of a tool that a user has registered."""
    around = Surroundings(
        exec_id="test",
        session=Session(),
        limits=Limits(),
        lane="no-net",
        toolset=load().toolsets["standard"],
        roots=(),
        box=NoBox(),
        spill=spill,
    )
    return Context("../../etc/passwd", made, around)


def fit(outcome: Outcome, made: ToolEntry, spill: Spill | None) -> Outcome:
    return asyncio.run(fitted(outcome, context(made, spill)))


LONG = "".join(f"line {number}\n" for number in range(1000))

PATH = f"{RESULTS}/1.txt"


@pytest.mark.parametrize(
    ("keep", "start", "middle", "end"),
    [
        (Keep.START, "line 0\n", "", f"...\n\n[Output truncated. Full content saved to: {PATH}]"),
        (Keep.END, f"[Output truncated. Full content saved to: {PATH}]\n\n...", "", "line 999\n"),
        (
            Keep.BOTH,
            "line 0\n",
            f" bytes left out; full text: {PATH}]\n",
            f"line 999\n[Full content saved to: {PATH}]",
        ),
    ],
)
def test_each_layout_says_where_the_whole_is(
    results: Results, keep: Keep, start: str, middle: str, end: str
) -> None:
    """The notice stands where the text is cut; the whole is kept, byte for byte."""
    shown = fit(Outcome(LONG), entry(keep), results)
    text = str(shown.content)
    assert text.startswith(start) and middle in text and text.endswith(end)
    assert size_of(text) <= 1000
    assert (shown.truncated, shown.total_bytes, shown.spill) == (True, len(LONG), PATH)
    assert kept(results, Spilled(PATH, 0)) == LONG.encode()


@pytest.mark.parametrize("keep", Keep)
def test_without_a_place_the_cut_is_said_all_the_same(keep: Keep) -> None:
    """No path is named, the bytes are counted, and `spill` is null."""
    shown = fit(Outcome(LONG), entry(keep), None)
    assert "bytes left out]" in str(shown.content) and RESULTS not in str(shown.content)
    assert (shown.truncated, shown.spill) == (True, None)


def test_what_fits_or_is_fitted_is_left_alone(results: Results) -> None:
    """A text within the limit, and one that its tool has cut itself, are not touched."""
    for outcome in (Outcome("x" * 1000), Outcome(LONG, is_fitted=True)):
        assert fit(outcome, entry(Keep.START), results) is outcome
    assert list(results.directory.iterdir()) == []


def test_characters_are_counted_where_the_toolset_says_so(results: Results) -> None:
    """1,000 characters of three bytes each are within a limit of 1,000 characters."""
    wide = "あ" * 1000
    assert fit(Outcome(wide), entry(Keep.BOTH, unit=Unit.CHARACTERS), results).content == wide
    shown = fit(Outcome(wide + "い"), entry(Keep.BOTH, unit=Unit.CHARACTERS), results)
    text = str(shown.content)
    assert 800 < len(text) <= 1000 and text.startswith("あああ") and "い" in text
    assert shown.total_bytes == 3003
    assert fit(Outcome(wide), entry(Keep.BOTH), results).truncated


@given(st.text(min_size=150, max_size=600), st.integers(100, 400), st.sampled_from(Keep))
def test_a_cut_by_characters_is_never_inside_one(text: str, size: int, keep: Keep) -> None:
    """Whatever the text, what is shown are its own whole characters, within the limit."""
    shown = clip_text(text, Limit(size, Unit.CHARACTERS), keep)
    assert len(shown.text) <= size
    if shown.left_out:
        before, _, after = shown.text.partition(f"[{shown.left_out} bytes left out]")
        assert text.startswith((before, before.removesuffix("\n")))
        assert text.endswith(after.removeprefix("\n"))
    else:
        assert shown.text == text


def test_a_list_in_json_is_cut_by_entries(results: Results) -> None:
    """The first block is valid JSON of the first entries; the notice is a block of its own."""
    value = [{"n": number, "text": "é" * 20} for number in range(500)]
    shown = fit(Outcome(json.dumps(value)), entry(Keep.BOTH), results)
    assert isinstance(shown.content, list)
    entries, notice = (block["text"] for block in shown.content)
    assert json.loads(entries) == value[: len(json.loads(entries))] and len(entries) > 500
    assert notice == f"[Output truncated. Full content saved to: {PATH}]"
    assert json.loads(kept(results, Spilled(PATH, 0))) == value


def test_an_object_in_json_loses_entries_of_its_longest_part(results: Results) -> None:
    """Keys stay, the longest list or text gets shorter, and what is left parses."""
    value = {"ok": True, "name": "x", "rows": list(range(2000)), "note": "y" * 300}
    shown = fit(Outcome(json.dumps(value)), entry(Keep.START), results)
    assert isinstance(shown.content, list)
    found = json.loads(shown.content[0]["text"])
    assert found.keys() == value.keys() and found["note"] == "y" * 300
    rows = found["rows"]
    assert rows == list(range(len(rows))) and len(rows) > 50
    assert all(size_of(block["text"]) <= 1000 for block in shown.content)


@pytest.mark.parametrize("text", ["{" * 5000, "[1, 2", "[" * 2000 + "]" * 2000])
def test_what_only_looks_like_json_is_cut_as_text(results: Results, text: str) -> None:
    """Broken or endlessly nested JSON is text like any other."""
    shown = fit(Outcome(text + " " * 2000), entry(Keep.START), results)
    assert isinstance(shown.content, str) and size_of(shown.content) <= 1000


def test_texts_of_blocks_share_the_limit_and_pictures_stay(results: Results) -> None:
    """Texts are cut from where the limit is reached; a picture is no text."""
    picture: dict[str, Any] = {"type": "image", "source": {"type": "base64", "data": "x" * 5000}}
    blocks = [{"type": "text", "text": "a" * 600}, picture, {"type": "text", "text": "b" * 600}]
    shown = fit(Outcome(blocks), entry(Keep.BOTH), results)
    assert isinstance(shown.content, list)
    assert shown.content[0]["text"] == "a" * 600 and shown.content[1] == picture
    texts = [block["text"] for block in shown.content if block["type"] == "text"]
    assert sum(map(size_of, texts)) <= 1000 and PATH in texts[-1]
    assert kept(results, Spilled(PATH, 0)) == b"a" * 600 + b"\n" + b"b" * 600


def test_the_call_has_no_say_in_the_name(results: Results) -> None:
    """The id of the call comes from the model and is no part of any path."""
    shown = fit(Outcome(LONG), entry(Keep.START), results)
    assert shown.spill == PATH
    assert [path.name for path in results.directory.iterdir()] == ["1.txt"]


# ─── commands ───────────────────────────────────────────────────────────────────────


class Work:
    """A loop over an agent process, with a place for long outputs."""

    def __init__(self, thread: LoopThread, loop: Loop, results: Results) -> None:
        self._thread = thread
        self._loop = loop
        self.results = results
        self._number = 0

    def call(self, name: str, **given: Any) -> Result:
        """The result of one call."""
        self._number += 1
        return self._thread.run(self._loop.execute(Call(f"c{self._number}", name, given)))

    def whole(self, result: Result) -> bytes:
        """All of an output."""
        assert result.spill is not None
        return kept(self.results, Spilled(result.spill, 0))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Work]:
    """One loop a module."""
    directory = tmp_path_factory.mktemp("spill")
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test")
    with Identity.claim(directory / "state") as identity:
        with opened(identity, "test", SpillLimits()) as results, LoopThread() as thread:
            loop = Loop(spec, load(), opener("local", directory), spill=results)
            thread.enter(loop._opened())
            yield Work(thread, loop, results)


def test_a_short_output_is_not_kept(work: Work) -> None:
    """What is shown whole needs no file."""
    result = work.call("run_command", command="seq 100")
    assert (result.spill, result.truncated) == (None, False)


SEQUENCE = "".join(f"{number}\n" for number in range(1, 200_001)).encode()


def test_a_long_output_is_kept_whole(work: Work) -> None:
    """1.3 MB of which head and tail are shown are in the file to the last byte."""
    result = work.call("run_command", command="seq 200000")
    assert result.truncated and result.total_bytes == len(SEQUENCE)
    assert work.whole(result) == SEQUENCE
    text = str(result.content)
    assert f" bytes left out; full text: {result.spill}]\n" in text
    assert text.endswith(f"200000\n[Full content saved to: {result.spill}]")
    assert size_of(text) <= load().tools["run_command"].max_output_bytes
    assert result.structured is not None
    assert size_of(result.structured["stdout"]) <= 100_000


def test_both_streams_are_kept_in_the_layout_of_the_text(work: Work) -> None:
    """stdout, the heading, stderr: also where each alone would have fitted."""
    command = "seq 20000; seq 20000 >&2; exit 3"
    result = work.call("run_command", command=command)
    part = SEQUENCE[: SEQUENCE.index(b"\n20001\n") + 1]
    assert work.whole(result) == part + b"\n\nSTDERR:\n" + part
    assert result.code is Code.EXECUTION_ERROR and result.truncated
    assert result.total_bytes == 2 * len(part)


def test_past_the_spool_the_ends_are_kept_and_the_gap_is_said(work: Work) -> None:
    """Of 40 MB the agent has 16 MiB: the file has both ends, a mark, and the notice a number."""
    command = "echo BEGIN; head -c 40000000 /dev/zero | tr '\\0' x; echo; echo END"
    result = work.call("run_command", command=command)
    content = work.whole(result)
    missing = 40_000_011 - (16 << 20)
    mark = f"\n[{missing} bytes were not kept]\n".encode()
    assert result.total_bytes == 40_000_011
    assert content.startswith(b"BEGIN\nxxx") and content.endswith(b"xxx\nEND\n")
    assert len(content) == (16 << 20) + len(mark) and mark in content
    assert f"[{missing} bytes were not kept]" in str(result.content)


def test_code_is_kept_like_commands(work: Work) -> None:
    """What run_code prints is kept too."""
    result = work.call("run_code", language="python", code="print('x\\n' * 100_000)")
    assert work.whole(result) == b"x\n" * 100_000 + b"\n"
    assert result.structured is not None and result.structured["exitCode"] == 0


def test_many_outputs_at_a_time_keep_their_own(work: Work) -> None:
    """Outputs of calls one after the other never mix."""
    found = [work.call("run_command", command=f"yes {n} | head -n 100000") for n in range(3)]
    assert [work.whole(result) for result in found] == [
        f"{n}\n".encode() * 100_000 for n in range(3)
    ]
    assert len({result.spill for result in found}) == 3


def test_reads_and_searches_are_continued_and_not_kept(work: Work) -> None:
    """Their way to the rest is another call; no file is made for them."""
    work.call("run_command", command="seq 100000 > big; mkdir many; touch many/{1..9999}")
    before = len(list(work.results.directory.iterdir()))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": "big"}),
        ("read_file", {"path": "big", "encoding": "base64"}),
        ("grep", {"pattern": "1", "context": 0}),
        ("glob", {"pattern": "many/*"}),
        ("list_directory", {"path": "many"}),
    ]
    for name, arguments in calls:
        result = work.call(name, **arguments)
        assert not result.is_error and result.spill is None
    assert len(list(work.results.directory.iterdir())) == before


def test_a_toolset_counts_in_characters(tmp_path: Path) -> None:
    """Its limits hold for reading, searching and commands, in characters."""
    catalog = load()
    limits = {"read_file": 5000, "grep": 3000, "run_command": 3000}
    toolset = replace(catalog.toolsets["standard"], unit=Unit.CHARACTERS, limits=limits)
    catalog = replace(catalog, toolsets={**catalog.toolsets, "standard": toolset})
    root = make_worktree(tmp_path / "worktree")
    (root / "a.txt").write_text("あいうえお" * 8 + "\n" + ("あいうえお" * 8 + "\n") * 3000)
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="test")
    with LoopThread() as thread:
        loop = Loop(spec, catalog, opener("local", tmp_path))
        thread.enter(loop._opened())
        calls = {
            "read_file": {"path": "a.txt"},
            "grep": {"pattern": "う"},
            "run_command": {"command": "cat a.txt"},
        }
        for name, arguments in calls.items():
            result = thread.run(loop.execute(Call(name, name, arguments)))
            text = str(result.content)
            assert result.truncated, name
            assert limits[name] * 0.85 < len(text) <= limits[name], name
            assert "\ufffd" not in text


# ─── in a real box ──────────────────────────────────────────────────────────────────


def test_the_loop_reads_what_was_kept_and_cannot_change_it(tmp_path: Path) -> None:
    """read_file, grep and commands read the file, nothing writes it, a new box has it too."""
    root = make_worktree(tmp_path / "worktree")
    state = tmp_path / "state"
    settings = replace(Settings.load(), state_directory=state)
    spec = LoopSpec(worktree=root, limits=LIMITS, runtime=RUNTIME[0] if RUNTIME else None)
    with LoopThread() as thread:
        controller = thread.enter(Controller(settings, load()))
        loop = thread.enter(controller.open(spec))

        def call(name: str, **given: Any) -> Result:
            return thread.run(loop.execute(Call(name, name, given)))

        path = call("run_command", command="seq 200000").spill
        assert path == f"{RESULTS}/1.txt"
        read = call("read_file", path=path, offset=150_000, limit=2)
        assert str(read.content).startswith("150000│150000\n150001│150001")
        assert f"{path}:77777:77777" in str(call("grep", pattern="^77777$", path=path).content)
        listed = call("list_directory", path=RESULTS)
        assert listed.content == "1.txt"
        tried = (
            f"echo x > {path}; echo x >> {path}; rm -f {path}; mv {path} /tmp/x; chmod 777 {path}"
        )
        call("run_command", command=f"{tried}; touch {RESULTS}/2.txt; true")
        for refused in (call("write_file", path=path, content="x"), call("delete_file", path=path)):
            assert refused.code is Code.PERMISSION_DENIED
        (file,) = state.glob("controllers/*/results-*/1.txt")
        assert file.read_bytes() == SEQUENCE
        box = loop._lane.name
        subprocess.run(["docker", "kill", box], check=True, capture_output=True, timeout=60)
        wait_until(lambda: loop._lane._box is None or loop._lane._box.error is not None)
        again = call("read_file", path=path, limit=1)
        assert str(again.content).startswith("     1│1"), again
        assert loop._lane.name != box
    assert list(state.glob("controllers/*")) == []


def test_the_loop_reads_what_a_running_task_has_printed(tmp_path: Path) -> None:
    """All of it so far, at a path that its tools take; the next look takes its place."""
    root = make_worktree(tmp_path / "worktree")
    settings = replace(Settings.load(), state_directory=tmp_path / "state")
    spec = LoopSpec(worktree=root, limits=LIMITS, runtime=RUNTIME[0] if RUNTIME else None)
    with LoopThread() as thread:
        controller = thread.enter(Controller(settings, load()))
        loop = thread.enter(controller.open(spec))

        def call(name: str, **given: Any) -> Result:
            return thread.run(loop.execute(Call(name, name, given)))

        command = "seq 200000; echo > up; sleep 600"
        call("run_command", command=command, run_in_background=True)
        wait_until((root / "up").exists)
        result = call("task_output", task_id="bash_1", block=False)
        assert (result.truncated, result.spill) == (True, f"{RESULTS}/1.txt")
        read = call("read_file", path=result.spill, offset=150_000, limit=2)
        assert str(read.content).startswith("150000│150000\n150001│150001")
        again = call("task_output", task_id="bash_1", block=False)
        assert again.spill == f"{RESULTS}/2.txt"
        assert call("list_directory", path=RESULTS).content == "2.txt"
        call("kill_shell", shell_id="bash_1")
        ended = call("task_output", task_id="bash_1")
        assert ended.spill == f"{RESULTS}/3.txt"
        whole = call("run_command", command=f"tail -1 {ended.spill}")
        assert whole.content == "200000\n"


# ─── hostile agents ─────────────────────────────────────────────────────────────────


def answers_of(shelf: Any, fetched: Any) -> Any:
    """A script for an agent that says this of its output."""

    def say(arguments: dict[str, Any]) -> tuple[Any, bytes]:
        if arguments["op"] == "fetch":
            answer: tuple[Any, bytes] = fetched(arguments)
            return answer
        ends = {"total": 10**9, "head": 4, "tail": 4}
        value = {
            "exit_code": 0,
            "signal": None,
            "timed_out": False,
            "oom": False,
            "limit": None,
            "cwd": "/workspace",
            "notes": [],
            "shell": "sh",
            "interpreter": None,
            "stdout": ends,
            "shelf": shelf,
        }
        return value, b"headtail"

    return say


def ran(directory: Path, say: Any) -> tuple[Result, list[Path]]:
    """The result of a command in a box that says so, and what was kept of it."""

    async def run() -> tuple[Result, list[Path]]:
        with place(directory, SpillLimits(call_bytes=1 << 20)) as results:

            @asynccontextmanager
            async def box(spec: LoopSpec) -> AsyncIterator[Any]:
                async with open_scripted_box(say) as opened_box:
                    yield opened_box

            spec = LoopSpec(worktree=directory, exec_id="x")
            loop = Loop(spec, load(), box, spill=results)
            async with asyncio.timeout(20), loop._opened():
                result = await loop.execute(Call("1", "run_command", {"command": "x"}))
                return result, list(results.directory.iterdir())

    return asyncio.run(run())


@pytest.mark.parametrize("total", [10**9, 2**62])
def test_an_agent_that_gives_drops_is_asked_no_more(tmp_path: Path, total: int) -> None:
    """One byte for each piece ends the fetching; the result stands, and says what is missing."""
    asked: list[Any] = []

    def fetched(arguments: dict[str, Any]) -> tuple[Any, bytes]:
        asked.append(arguments)
        if arguments["size"] == 0:
            return {"next": 0}, b""
        return {"next": arguments["position"] + 1}, b"x"

    result, _ = ran(tmp_path, answers_of({"number": 1, "stdout": [total, total, 0]}, fetched))
    assert not result.is_error and result.truncated
    assert len(asked) <= 3
    assert "bytes were not kept" in str(result.content)


def test_an_agent_that_no_longer_has_it_costs_only_the_file(tmp_path: Path) -> None:
    """The command's result stands without a file when the output can't be fetched."""

    def fetched(arguments: dict[str, Any]) -> tuple[Any, bytes]:
        return {"unknown": 1}, b""

    result, files = ran(tmp_path, answers_of({"number": 1, "stdout": [10**9, 10, 10]}, fetched))
    assert (result.code, result.spill, files) == (None, None, [])
    assert "head" in str(result.content) and "tail" in str(result.content)


@pytest.mark.parametrize(
    "shelf",
    [
        *({"number": "1"}, {"number": 1, "stdout": [1, 2, 3]}, {"number": 1, "other": [1, 1, 0]}),
        *({"number": -1}, [1], {"stdout": [1, 1, 0]}, {"number": 1, "stdout": [2**64, 0, 0]}),
    ],
)
def test_a_shelf_of_a_wrong_shape_costs_the_box(tmp_path: Path, shelf: Any) -> None:
    """What no agent of ours says is a broken protocol."""
    result, _ = ran(tmp_path, answers_of(shelf, lambda arguments: ({"next": 0}, b"")))
    assert result.code is Code.PROTOCOL_ERROR


# ─── any output ─────────────────────────────────────────────────────────────────────

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=120,
)


class Nowhere:
    """A place that keeps nothing and says that it did."""

    most = 1 << 20

    def holds(self, path: str) -> bool:
        return True

    async def keep(
        self, output: bytes | AsyncIterable[bytes], instead_of: str | None = None
    ) -> Spilled | None:
        return Spilled(PATH, 0)


@given(
    st.text(max_size=900) | VALUES.map(json.dumps),
    st.sampled_from(Keep),
    st.sampled_from(Unit),
    st.integers(300, 600),
    st.booleans(),
)
def test_any_output_is_within_the_limit(
    text: str, keep: Keep, unit: Unit, size: int, is_kept: bool
) -> None:
    """Whatever is cut in whatever way fits, is said, and JSON stays JSON."""
    spill = Nowhere() if is_kept else None
    shown = fit(Outcome(text), entry(keep, size, unit), spill)
    content = shown.content
    if shown.truncated:
        assert shown.spill == (PATH if is_kept else None)
        assert shown.total_bytes == size_of(text)
    else:
        assert content == text
    texts = [content] if isinstance(content, str) else [block["text"] for block in content]
    assert sum(size_of(part, unit) for part in texts) <= size
    if not isinstance(content, str):
        json.loads(texts[0])
