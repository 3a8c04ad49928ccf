"""`executor git`: what loops have made, kept beside the repositories until somebody takes it.

Git runs in quarantines of ours and, to land, in the user's repository: never in what a box could
write. What loops wrote into commits is shown so that nothing in it acts on a terminal.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table

from executor.controller import Controller
from executor.errors import ConfigError, ExecutorError
from executor.frontends.running import (
    FAILED,
    OK,
    Steps,
    err,
    finish,
    out,
    say,
    settings_of,
    show,
    write_json,
    write_texts,
)
from executor.git.landing import land
from executor.git.program import Git
from executor.git.records import Entry, Record, Records, State, recover
from executor.git.values import Arrival, GitError, Landed, Refused
from executor.settings import Settings
from executor.text import one_line, visible

MOST = 32 << 20
"""Bytes of a log or a difference that are shown."""
LONGEST = 120.0
_PLAIN = ["--no-ext-diff", "--no-textconv", "--no-color"]
_DAY = 86400
_STYLES = (
    (re.compile(r"commit [0-9a-f]+"), "33"),
    (re.compile(r"(diff|index|---|\+\+\+|old mode|new mode|new file|deleted file|rename) "), "1"),
    (re.compile(r"@@"), "36"),
    (re.compile(r"\+"), "32"),
    (re.compile(r"-"), "31"),
)
"""How lines begin that a terminal shows in colour. Git's own colours would not be told apart
from what a commit says in their stead."""

Collect = Callable[[Entry], Awaitable[None]]
"""Takes out what a loop's own git directory has and no arrival, by a box: the entry is `kept`
then."""

ExecId = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXEC_ID]",
        help="Name of the loop; by default the newest of the repository here, or the only one.",
        show_default=False,
    ),
]

app = typer.Typer(help="What loops have committed, and the way of it back.", no_args_is_help=True)


def _finish(work: Callable[[], Coroutine[Any, Any, int]]) -> NoReturn:
    """As `finish`; what git or the disk does not do is no fault of ours."""

    async def told() -> int:
        try:
            return await work()
        except (GitError, Refused) as error:
            say(str(error))
        except PermissionError as error:
            say(f"{error.filename or 'a file'}: {error.strerror}; run this as its owner")
        return FAILED

    finish(told)


# ─── list ───────────────────────────────────────────────────────────────────────────


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List what is kept of loops that are over, and which loops are open."""

    async def work() -> int:
        entries = await _entries()
        if as_json:
            write_json([_row(entry) for entry in entries])
            return OK
        table = Table("loop", "state", "commits", "branch", "worktree", "age", box=None)
        for entry in entries:
            record = entry.record
            cells = (
                record.exec_id,
                _state(record),
                str(record.came.commits) if record.came else "",
                (record.branch or "detached").removeprefix("refs/heads/"),
                record.worktree or record.git_directory,
                _age(record.created),
            )
            table.add_row(*(one_line(cell) for cell in cells))
        show(table if entries else "nothing is kept of any loop")
        return OK

    _finish(work)


def _row(entry: Entry) -> dict[str, Any]:
    record = entry.record
    return {
        "exec_id": record.exec_id,
        "name": entry.name,
        "state": record.state.value,
        "tenant": record.tenant,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
        "repository": record.common_directory,
        "worktree": record.worktree,
        "branch": record.branch,
        "commits": record.came.commits if record.came else None,
        "refs": dict(record.came.refs) if record.came else {},
        "landed": dict(record.landed),
        "imported": record.imported,
        "failure": record.failure,
        "directory": os.fspath(entry.directory),
    }


def _state(record: Record) -> str:
    if record.imported:
        return "imported"
    return record.state.value


def _age(created: float) -> str:
    seconds = max(0.0, time.time() - created)
    for size, unit in ((_DAY, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# ─── import ─────────────────────────────────────────────────────────────────────────


@app.command("import")
def import_command(
    exec_id: ExecId = None,
    refs_only: Annotated[
        bool, typer.Option("--refs-only", help="Leave the branch where it is.")
    ] = False,
) -> None:
    """Take a loop's commits over into the repository, and advance the branch it worked on.

    They land below refs/loops/EXEC_ID/. The branch only goes forward, and only from where it
    was. Exit code 1: something is in the way; nothing is lost, and what to do is said.
    """
    _finish(lambda: take_over(exec_id, advance=not refs_only, collect=_from_a_box))


async def _from_a_box(entry: Entry) -> None:
    """Have a box say what never came out of the loop's own git directory."""
    settings, catalog = settings_of(None)
    steps = Steps()
    try:
        async with Controller(settings, catalog, progress=steps) as controller:
            await controller.collect(entry)
    finally:
        steps.close()


async def take_over(exec_id: str | None, *, advance: bool, collect: Collect | None = None) -> int:
    """`executor git import`; its exit code.

    Args:
        exec_id: of the loop; None = as `_choose` finds it.
        advance: the branch too.
        collect: brings what never came out of the loop's own git directory.
    """
    state = Settings.load().state_directory
    entries = await _entries()
    with _held(state, _choose(entries, exec_id)) as entry:
        arrival = await _arrived(entry, collect)
        record = entry.record
        landed = await land(
            Git.find(Settings.load().git_program),
            record.repository(),
            arrival,
            record.exec_id,
            advance=advance,
            known=record.landed,
        )
        is_whole = landed.conflict is None and advance
        known = {**record.landed, **landed.refs}
        entry.save(replace(record, landed=known, imported=is_whole))
        _tell_landed(record, landed)
        if exec_id != entry.name:
            _tell_others(entry, entries, exec_id)
        if is_whole and record.state is State.KEPT:
            await asyncio.to_thread(entry.remove)
    return FAILED if landed.conflict else OK


def _tell_landed(record: Record, landed: Landed) -> None:
    for name, value in sorted(landed.refs.items()):
        show(visible(f"{value[:12]} {name}"))
    if landed.advanced is not None:
        name = (landed.branch or "HEAD").removeprefix("refs/heads/")
        show(visible(f"{landed.advanced[:12]} {name}, was {(record.commit or 'unborn')[:12]}"))
    if not landed.refs and landed.conflict is None:
        show("nothing to import")
    for note in landed.notes:
        say(note)
    if landed.conflict is not None:
        say(landed.conflict)


def _tell_others(taken: Entry, entries: Sequence[Entry], exec_id: str | None) -> None:
    """The newest was taken for meant: what else is kept of the repository is not forgotten.

    Args:
        taken: which one it was.
        entries: all.
        exec_id: the name that was given; None = none, and others are meant by any.
    """
    record = taken.record
    names = [
        one.name if one.record.exec_id == record.exec_id else one.record.exec_id
        for one in entries
        if one.record.common_directory == record.common_directory
        and one.record.state is not State.OPEN
        and one.name != taken.name
        and exec_id in (None, one.record.exec_id)
    ]
    if names:
        say(f"older loops are kept of this repository, too: {', '.join(names)}")


async def _arrived(entry: Entry, collect: Collect | None) -> Arrival:
    """What came of a loop; first what has never come is fetched, where that can be done."""
    record = entry.record
    if record.state is State.UNEXPORTED:
        if collect is not None:
            try:
                await collect(entry)
            except ExecutorError as error:
                if entry.arrival() is None:
                    raise
                # What came before is sound, whatever the rest has become.
                say(f"loop {record.exec_id} may have made more than this: {error}")
        elif entry.arrival() is not None:
            say(f"loop {record.exec_id} may have made more than this: {_unexported(entry)}")
        else:
            raise ConfigError(f"loop {record.exec_id}: {_unexported(entry)}")
    arrival = entry.arrival()
    if arrival is None:
        raise ConfigError(f"loop {record.exec_id} has made nothing that could be taken over")
    return arrival


def _unexported(entry: Entry) -> str:
    why = entry.record.failure or "its controller ended before"
    return (
        f"what it made was not taken out of its own git directory ({why}); that is kept in "
        f"{entry.private}, where no git of the host may run"
    )


# ─── log, diff ──────────────────────────────────────────────────────────────────────


@app.command("log")
def log_command(exec_id: ExecId = None) -> None:
    """Show the commits that a loop has made."""

    async def work() -> int:
        entry = _choose(await _entries(), exec_id)
        arrival = await _arrived(entry, None)
        tips = {value for name, value in arrival.refs.items() if name != "index"}
        start = {*entry.record.refs.values(), *filter(None, [entry.record.commit])}
        lines = [*sorted(tips), *(f"^{name}" for name in sorted(start))]
        text = "".join(f"{line}\n" for line in lines)
        await _show_git(arrival, ["log", *_PLAIN, "--ignore-missing", "--stdin"], text.encode())
        return OK

    _finish(work)


@app.command("diff")
def diff_command(
    exec_id: ExecId = None,
    stat: Annotated[bool, typer.Option("--stat", help="Names and counts only.")] = False,
) -> None:
    """Show what a loop has changed, from where it started to where it ended."""

    async def work() -> int:
        entry = _choose(await _entries(), exec_id)
        arrival = await _arrived(entry, None)
        end = _end_of(arrival)
        if end is None:
            return OK
        start = entry.record.commit or await _empty_tree(arrival)
        shape = ["--stat"] if stat else ["-p"]
        await _show_git(arrival, ["diff", *_PLAIN, *shape, start, end, "--"])
        return OK

    _finish(work)


def _end_of(arrival: Arrival) -> str | None:
    """The last that there is: uncommitted changes, HEAD, or the branches beside it."""
    names = ["uncommitted", "head", *sorted(n for n in arrival.refs if n.startswith("heads/"))]
    return next((arrival.refs[name] for name in names if name in arrival.refs), None)


async def _empty_tree(arrival: Arrival) -> str:
    return await Git.find(Settings.load().git_program).text(
        ["hash-object", "-t", "tree", "--stdin"], git_directory=arrival.directory, given=b""
    )


async def _show_git(arrival: Arrival, arguments: list[str], given: bytes | None = None) -> None:
    told = await Git.find(Settings.load().git_program).output(
        arguments,
        git_directory=arrival.directory,
        given=given,
        most=MOST,
        timeout=LONGEST,
    )
    text = visible(told.decode("utf-8", "backslashreplace"))
    if out.is_terminal and not out.no_color:
        text = "".join(_coloured(line) for line in text.splitlines(keepends=True))
    await write_texts((sys.stdout, text))


def _coloured(line: str) -> str:
    for pattern, style in _STYLES:
        if pattern.match(line):
            return f"\x1b[{style}m{line.rstrip(chr(10))}\x1b[0m\n"
    return line


# ─── discard ────────────────────────────────────────────────────────────────────────


@app.command()
def discard(
    exec_id: ExecId = None,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Remove what is kept of a loop. What has landed in a repository stays there."""

    async def work() -> int:
        chosen = _choose(await _entries(), exec_id, is_for_good=True)
        with _held(Settings.load().state_directory, chosen) as entry:
            lost = _lost(entry)
            if lost and not yes:
                if not (sys.stdin.isatty() and err.is_terminal):
                    say(f"{lost}; give --yes to discard that, or import it first")
                    return FAILED
                if not await _is_confirmed(f"{lost}. Discard that?"):
                    say("nothing was discarded")
                    return FAILED
            await asyncio.to_thread(entry.remove)
        show(visible(f"discarded {entry.name}"))
        return OK

    _finish(work)


def _lost(entry: Entry) -> str:
    """What nobody would have any more; empty = nothing."""
    record = entry.record
    found = []
    missing = _missing(record)
    if record.came and missing:
        commits = "1 commit" if record.came.commits == 1 else f"{record.came.commits} commits"
        found.append(f"{commits} of loop {record.exec_id} are in no repository")
    if record.state is State.UNEXPORTED:
        found.append(f"loop {record.exec_id}: {_unexported(entry)}")
    if entry.made.exists():
        found.append(f"the worktree {entry.made} is the only one that has its files")
    return "; ".join(found)


def _missing(record: Record) -> list[str]:
    """Names of what has come and is not known to have landed."""
    came = record.came.refs if record.came else {}
    landed = set(record.landed.values())
    return [name for name, value in came.items() if name != "index" and value not in landed]


async def _is_confirmed(question: str) -> bool:
    say(f"{question} [y/N]")
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    stdin = sys.stdin.fileno()
    loop.add_reader(stdin, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(stdin)
    return os.read(stdin, 4096).strip().lower() in (b"y", b"yes")


# ─── which ──────────────────────────────────────────────────────────────────────────


async def _entries() -> list[Entry]:
    """All entries, after what dead controllers left was put in order."""
    state = Settings.load().state_directory
    for fault in await asyncio.to_thread(recover, state):
        say(fault)
    return Records(state).entries()


def _choose(entries: Sequence[Entry], exec_id: str | None, *, is_for_good: bool = False) -> Entry:
    """The entry that is meant.

    Args:
        entries: newest first.
        exec_id: a loop's name, or an entry's; None = what is here.
        is_for_good: the newest of several is not taken for meant.

    Raises:
        ConfigError: there is none, or several might be; says which.
    """
    if exec_id is not None:
        named = [one for one in entries if exec_id in (one.record.exec_id, one.name)]
        if not named:
            raise ConfigError(
                f"nothing is kept of a loop {one_line(exec_id, 100)!r}; `executor git list` shows "
                "what is"
            )
    else:
        named = [one for one in entries if one.record.state is not State.OPEN]
        if not named:
            raise ConfigError("nothing is kept of any loop that is over")
    here = _repositories_here()
    found = [one for one in named if Path(one.record.common_directory) in here] or named
    if len(found) > 1 and (is_for_good or _is_vague(found, exec_id, here)):
        names = "\n".join(
            f"{one.name} ({_age(record.created)} old, {record.worktree or record.git_directory})"
            for one in found
            for record in [one.record]
        )
        raise ConfigError(f"several loops may be meant; name one of them:\n{names}")
    return found[0]


def _is_vague(found: Sequence[Entry], exec_id: str | None, here: set[Path]) -> bool:
    """The newest of these is not what is likely meant.

    Args:
        found: of whom it is.
        exec_id: the name that was given; None = none.
        here: the repositories here.
    """
    origins = {Path(one.record.common_directory) for one in found}
    return len(origins) > 1 or (exec_id is None and not origins & here)


def _repositories_here() -> set[Path]:
    """Common directories of the repositories that this directory is in: by its name alone."""
    try:
        place = Path.cwd()
    except FileNotFoundError:  # it was removed, as a worktree is that was made for a loop
        return set()
    found = set()
    for directory in [place, *place.parents]:
        found.add(directory)  # a bare one
        entry = directory / ".git"
        if entry.is_dir():
            found.add(entry)
        elif entry.is_file():
            with open(entry, "rb") as file:
                pointer = os.fsdecode(file.read(4096)).removeprefix("gitdir: ").rstrip("\r\n")
            found.update((directory / pointer).resolve().parents[1:2])
    return found


@contextmanager
def _held(state: Path, entry: Entry) -> Iterator[Entry]:
    """The entry as it is now, and nobody else works on it meanwhile.

    Raises:
        ConfigError: somebody does, or the loop is open.
    """
    name = entry.record.exec_id
    with entry.locked() as is_ours:
        now = Records(state).find(entry.name) if is_ours else None
        if now is None:
            raise ConfigError(f"loop {name}: another command works on it; try again when it ended")
        if now.record.state is State.OPEN:
            raise ConfigError(f"loop {name} is open; its commits can be had when it has ended")
        yield now
