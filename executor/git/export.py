"""Out of the box: what its loop has committed, as a list of refs and one pack.

Two scripts run in the box, by its own git, on its own git directory. The first says what is
there, the second packs what the origin has not. Both may say anything: the list is read
strictly, and the pack goes as bytes into a file of ours, from where `quarantine` takes it. No
git of the host comes near what the box can write.

The scripts need `sh`, `cat`, `cp`, `rm` and git 2.20.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from executor.errors import Code, SandboxError, ToolError
from executor.git import objects, quarantine
from executor.git.private import person_of
from executor.git.program import Git
from executor.git.quarantine import MOST_REFS, Offer
from executor.git.values import Arrival, Box, ObjectFormat, Person, Refused, Reply, Repository
from executor.model import GitOptions, parse_size
from executor.text import one_line

LIST_SECONDS = 120.0
"""That the box has to say what is there; it may have to read changed files for it."""
PACK_SECONDS = 300.0
"""That it has to pack it."""
FETCH_SECONDS = 300.0
"""That the pack may take on its way to us."""
PIECE = 1 << 20
"""Bytes that are fetched at a time."""
PIECE_SECONDS = 30.0
LISTING = 1 << 20
"""Bytes of the list, not counting the refs that the box began with."""
MOST_STASHES = 1000
_PER_REF = 320
_HEAD = 64 << 10
"""Bytes that come with the answer and need not be fetched."""
_MARGIN = 1 << 20
"""Bytes beyond the limit that are kept in the box, so that it is told from a broken pack."""
_GRACE = 1.0
_MOST_NAMED = 10
_NO_GIT, _NO_REPOSITORY = 97, 98
_LINE = re.compile(
    r"(?P<kind>branch|head|tree|index|uncommitted|stash|ref|left) (?P<rest>[^\0\r\n]*)"
)
_LEFT = {
    "index": "the index was left out: it has unmerged files, or can't be read",
    "uncommitted": "uncommitted changes were left out: git in the box can't commit them",
    "some": "some uncommitted files were left out: git in the box can't read them",
}
"""What the first script may say that it has left out, and why."""

_FIRST = r"""
command -v git >/dev/null 2>&1 || exit 97
unset GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_NAMESPACE
export GIT_WORK_TREE="$PWD"
# A pipe would hold git up until the time is over.
for one in HEAD config packed-refs index shallow info/exclude objects/info/alternates; do
    if [ -p "$GIT_DIR/$one" ]; then echo "$one is a pipe" >&2; exit 98; fi
done
git rev-parse --git-dir >/dev/null || exit 98
temporary="$GIT_DIR/executor-index-$$"
trap 'rm -f "$temporary" "$temporary.lock"' EXIT
trap 'exit 99' HUP INT TERM

branch=$(git symbolic-ref -q HEAD) || branch=
head=$(git rev-parse -q --verify 'HEAD^{commit}') || head=
if [ -n "$head" ]; then
    tree=$(git rev-parse -q --verify 'HEAD^{tree}') || exit 98
else
    tree=$(git hash-object -t tree /dev/null) || exit 98
fi
printf 'branch %s\nhead %s\ntree %s\n' "$branch" "$head" "$tree"
git for-each-ref --count="$1" --format='ref %(objectname) %(refname)' \
    refs/heads refs/tags || exit 98
if git rev-parse -q --verify refs/stash >/dev/null; then
    git rev-list -g --max-count="$2" refs/stash -- | while read -r name; do
        printf 'stash %s\n' "$name"
    done
fi

index=
if [ -f "$GIT_DIR/index" ] && cp "$GIT_DIR/index" "$temporary"; then
    export GIT_INDEX_FILE="$temporary"
    if index=$(git write-tree 2>/dev/null); then
        printf 'index %s\n' "$index"
    else
        printf 'left index\n'
    fi
fi
[ "${3-}" = snapshot ] || { echo end; exit 0; }

export GIT_INDEX_FILE="$temporary"
quietly="-c advice.addEmbeddedRepo=false -c core.safecrlf=false"
: "${GIT_AUTHOR_NAME:=$4}" "${GIT_AUTHOR_EMAIL:=$5}"
: "${GIT_COMMITTER_NAME:=$4}" "${GIT_COMMITTER_EMAIL:=$5}"
export GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
git $quietly add -u --ignore-errors . 1>&2 || echo 'left some'
# A repository inside is listed with a slash at its end, which is ignored here.
git ls-files -z -o --exclude-standard | git $quietly update-index -z --add --stdin 1>&2 ||
    git $quietly add -A --ignore-errors . 1>&2 || echo 'left some'
if all=$(git write-tree); then
    if [ "$all" != "$tree" ]; then
        if made=$(echo 'Uncommitted changes' | git commit-tree "$all" ${head:+-p "$head"}); then
            printf 'uncommitted %s\n' "$made"
        else
            echo 'left uncommitted'
        fi
    fi
else
    echo 'left uncommitted'
fi
echo end
"""

_SECOND = r"""
unset GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_NAMESPACE
{{
git cat-file --batch-check <<'END' | while read -r name kind size; do
{known}END
    [ "$kind" = missing ] || printf '^%s\n' "$name"
done
cat <<'END'
{tips}END
}} | git -c pack.threads=1 -c pack.windowMemory=64m -c pack.packSizeLimit=0 \
    -c core.bigFileThreshold=32m pack-objects --revs --thin --stdout -q --delta-base-offset
"""

log = logging.getLogger(__name__)


async def collect(
    git: Git,
    box: Box,
    repository: Repository,
    start: Mapping[str, str],
    directory: Path,
    options: GitOptions,
    *,
    inside: str,
    snapshot: bool,
) -> Arrival | None:
    """What the loop has made since its start, checked, in a quarantine; None = nothing.

    May be called again for the same loop: the quarantine is then replaced in one step.
    Where the index, a stash or uncommitted changes are why it would be refused, they are left
    out, with a note.

    Args:
        git: of the host.
        box: of the loop; nothing else should change its git directory meanwhile.
        repository: the origin.
        start: names of objects by full names of refs, as the box was given them.
        directory: of the quarantine; its parent exists and is ours alone.
        options: of the loop.
        inside: the git directory in the box.
        snapshot: also what is not committed and not ignored, as a commit `uncommitted`.

    Raises:
        Refused: what the box has made can't be had, is broken, too large, or could do harm.
        SandboxError: the box was lost.
        OSError: the host has no room for it.
    """
    person = person_of(repository, options) if snapshot else None
    listing = await _list(box, repository, start, inside, person)
    if listing is None:
        return None
    wanted = _news(listing, repository, start)
    if not wanted:
        return None
    collecting = _Collecting(git, box, repository, start, directory, options, inside)
    notes = (*listing.notes, *_gone(listing, start))
    try:
        return await collecting.take(listing, wanted, notes)
    except Refused as refusal:
        committed = {name: value for name, value in wanted.items() if not _is_extra(name)}
        if len(committed) == len(wanted):
            raise
        left = f"{', '.join(_some(wanted.keys() - committed.keys()))} left out: {refusal}"
        log.info("%s", left)
        if not committed:
            raise
        return await collecting.take(listing, committed, (*notes, left))


@dataclass(frozen=True, slots=True)
class _Collecting:
    """One way from one box into one quarantine."""

    git: Git
    box: Box
    repository: Repository
    start: Mapping[str, str]
    directory: Path
    options: GitOptions
    inside: str

    async def take(
        self, listing: _Listing, wanted: Mapping[str, str], notes: tuple[str, ...]
    ) -> Arrival:
        """Have these refs packed, and take the pack over."""
        most = parse_size(self.options.pack_bytes)
        known = _known(self.repository, self.start)
        script = _SECOND.format(known=_lines(known), tips=_lines({*wanted.values()} - known))
        # It has no name, so that nothing is left of it whatever happens.
        with tempfile.TemporaryFile(dir=self.directory.parent) as file:
            ended = await _run(
                self.box,
                script.encode(),
                file,
                most=most,
                seconds=PACK_SECONDS,
                inside=self.inside,
                room={"directory": self.inside, "bytes": most + _MARGIN},
            )
            if ended.code != 0:
                raise Refused([f"git in the box can't pack what it has made: {ended.said}"])
            await asyncio.to_thread(file.flush)
            offer = Offer(wanted, listing.branch, listing.head, file.fileno(), notes)
            return await quarantine.accept(
                self.git, self.repository, offer, known, self.directory, pack_bytes=most
            )


def _known(repository: Repository, start: Mapping[str, str]) -> set[str]:
    """What the loop began with: the origin has all that leads from there."""
    head = repository.head.commit
    return {*start.values()} | ({head} if head is not None else set())


def _lines(names: Iterable[str]) -> str:
    return "".join(f"{name}\n" for name in sorted(names))


# ─── what is there ──────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Listing:
    """What the box says that it has; well-formed, and no more than that.

    Attributes:
        branch: that HEAD is on, by its full name; None = detached.
        head: commit of HEAD; None = the branch is unborn.
        tree: of HEAD.
        refs: below `refs/heads/` and `refs/tags/`, by full names.
        stashes: newest first.
        index: tree of the index; None = there is none.
        uncommitted: commit of what is not committed; None = nothing.
        notes: what was left out, one sentence each.
    """

    branch: str | None = None
    head: str | None = None
    tree: str | None = None
    refs: dict[str, str] = field(default_factory=dict)
    stashes: list[str] = field(default_factory=list)
    index: str | None = None
    uncommitted: str | None = None
    notes: list[str] = field(default_factory=list)


async def _list(
    box: Box,
    repository: Repository,
    start: Mapping[str, str],
    inside: str,
    person: Person | None,
) -> _Listing | None:
    """What is there; None where the image has no git, so that nothing was made.

    Args:
        box, repository, start, inside: see `collect`.
        person: who commits what is not committed; None = it is left.
    """
    most = LISTING + _PER_REF * len(start)
    count = MOST_REFS + len(start)
    arguments = [str(count + 1), str(MOST_STASHES)]
    if person is not None:
        arguments += ["snapshot", person.name, person.email]
    answer = io.BytesIO()
    try:
        ended = await _run(
            box,
            _FIRST.encode(),
            answer,
            most=most,
            seconds=LIST_SECONDS,
            inside=inside,
            arguments=arguments,
        )
    except _NoShell:
        log.info("the image has no sh, so that nothing is taken out of its git directory")
        return None
    if ended.code == _NO_GIT:
        log.info("the image has no git, so that nothing is taken out of its git directory")
        return None
    if ended.code != 0:
        raise Refused([f"what is in the box is no sound repository any more: {ended.said}"])
    listing = _parse(answer.getvalue(), repository.object_format)
    if len(listing.refs) > count:
        raise Refused([f"there are more than {count} branches and tags"])
    return listing


def _parse(answer: bytes, format: ObjectFormat) -> _Listing:
    """Reads the answer of the first script.

    Raises:
        Refused: it is not what the script prints.
    """
    try:
        lines = answer.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise Refused(["a name of a branch or tag is not UTF-8"]) from error
    if lines[-2:] != ["end", ""]:
        raise Refused(["the list of what the box has is cut off"])
    listing = _Listing()
    seen: set[str] = set()
    for line in lines[:-2]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise Refused([f"the list of what the box has is broken at {_quoted(line)}"])
        kind, rest = match["kind"], match["rest"]
        if kind in seen:
            raise Refused([f"the list of what the box has says {kind} twice"])
        if kind not in ("ref", "stash", "left"):
            seen.add(kind)
        _take_line(listing, kind, rest, format)
    return listing


def _take_line(listing: _Listing, kind: str, rest: str, format: ObjectFormat) -> None:
    if kind == "branch":
        listing.branch = _branch(rest)
    elif kind == "left":
        if rest not in _LEFT:
            raise Refused([f"the list of what the box has is broken at {_quoted(rest)}"])
        if _LEFT[rest] not in listing.notes:
            listing.notes.append(_LEFT[rest])
    elif kind == "ref":
        value, _, name = rest.partition(" ")
        _take_ref(listing, name, _object(value, format))
    elif kind == "stash":
        listing.stashes.append(_object(rest, format))
    elif kind == "head":
        listing.head = _object(rest, format) if rest else None
    else:
        setattr(listing, kind, _object(rest, format))


def _take_ref(listing: _Listing, name: str, value: str) -> None:
    _, _, short = name.removeprefix("refs/").partition("/")
    if not name.startswith(("refs/heads/", "refs/tags/")) or not quarantine.fits(short):
        raise Refused([f"{_quoted(name)} is no name of a branch or tag that is taken over"])
    if name in listing.refs:
        raise Refused([f"the list of what the box has says {_quoted(name)} twice"])
    listing.refs[name] = value


def _branch(name: str) -> str | None:
    """The branch of HEAD; a HEAD that is on something else counts as detached."""
    if not name.startswith("refs/heads/"):
        return None
    if not quarantine.fits(name.removeprefix("refs/heads/")):
        raise Refused([f"HEAD: {_quoted(name)} is no name of a branch that is taken over"])
    return name


def _object(text: str, format: ObjectFormat) -> str:
    if not objects.is_name(text, format):
        raise Refused([f"{_quoted(text)} is no name of an object of {format}"])
    return text


def _news(listing: _Listing, repository: Repository, start: Mapping[str, str]) -> dict[str, str]:
    """What is new or changed, by the names of `Arrival.refs`."""
    found = {
        name.removeprefix("refs/"): value
        for name, value in listing.refs.items()
        if start.get(name) != value
    }
    known = _known(repository, start)
    has_moved = listing.branch is not None and listing.branch.removeprefix("refs/") in found
    if listing.head is not None and (has_moved or listing.head not in known):
        found["head"] = listing.head
    new = [stash for stash in listing.stashes if stash not in known]
    found |= {f"stash/{number}": stash for number, stash in enumerate(new)}
    if listing.index is not None and listing.index != listing.tree:
        found["index"] = listing.index
    if listing.uncommitted is not None:
        found["uncommitted"] = listing.uncommitted
    if len(found) > MOST_REFS:
        raise Refused([f"there are {len(found)} new refs; at most {MOST_REFS} are taken over"])
    # What is staged is worth nothing alone: its files are in the worktree.
    return found if found.keys() != {"index"} else {}


def _is_extra(name: str) -> bool:
    """Whether it is nothing that the loop has committed to a branch or tag."""
    return name in ("index", "uncommitted") or name.startswith("stash/")


def _gone(listing: _Listing, start: Mapping[str, str]) -> list[str]:
    gone = {
        name
        for name in start
        if name.startswith(("refs/heads/", "refs/tags/")) and name not in listing.refs
    }
    if not gone:
        return []
    return [f"deleted in the box, and left as it is outside: {', '.join(_some(gone))}"]


def _some(names: Collection[str]) -> list[str]:
    more = len(names) - _MOST_NAMED
    return [*sorted(names)[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])]


def _quoted(text: str) -> str:
    return repr(one_line(text, 200))


# ─── scripts in the box ─────────────────────────────────────────────────────────────


class _NoShell(Exception):
    """The image has no shell."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a script has ended.

    Attributes:
        code: its exit code; None = a signal ended it.
        said: what it printed on standard error, for a person.
    """

    code: int | None
    said: str


async def _run(
    box: Box,
    script: bytes,
    file: IO[bytes],
    *,
    most: int,
    seconds: float,
    inside: str,
    arguments: Collection[str] = (),
    room: Mapping[str, Any] | None = None,
) -> _Ended:
    """Run a script in the box; its standard output goes into a file of ours.

    Raises:
        Refused: it prints more than `most` bytes, takes too long, or the agent says what can't be.
        SandboxError: the box was lost.
    """
    asked: dict[str, Any] = {
        "argv": ["sh"],
        "script": ".sh",
        "args": [*arguments],
        "cwd": ".",
        "environment": _environment(inside),
        "timeout": seconds,
        "grace": _GRACE,
        "merge": False,
        "head": _HEAD,
        "tail": 0,
        "shelve": True,
    }
    if room is not None:
        asked["room"] = dict(room)
    try:
        reply = await box.request("run", asked, script, timeout=seconds)
    except ToolError as error:
        if error.code is Code.NOT_FOUND:
            raise _NoShell from error
        raise Refused([f"nothing can be run in the box: {one_line(str(error), 200)}"]) from error
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            return await _take_output(box, reply, file, most)
    except TimeoutError as error:
        raise Refused([f"its output did not come within {FETCH_SECONDS:g} s"]) from error
    except ToolError as error:
        raise Refused([f"its output is not there: {one_line(str(error), 200)}"]) from error
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Refused([f"the agent's answer is not what an agent says: {error!r:.100}"]) from error
    finally:
        await _drop(box, reply)


def _environment(inside: str) -> dict[str, str]:
    return {
        "GIT_DIR": inside,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_PAGER": "cat",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
    }


async def _take_output(box: Box, reply: Reply, file: IO[bytes], most: int) -> _Ended:
    value = reply.value
    total, head = int(value["stdout"]["total"]), int(value["stdout"]["head"])
    if value["timed_out"]:
        raise Refused(["git in the box takes too long to say what it has made"])
    if total > most:
        raise Refused([f"what the loop has made takes {total} bytes; at most {most} are taken"])
    errors = reply.data[head + int(value["stdout"]["tail"]) :]
    code = value["exit_code"]
    said = errors.decode("utf-8", "replace").strip() or f"it ended with {code}"
    ended = _Ended(code if isinstance(code, int) else None, one_line(said, 300))
    if ended.code != 0:
        return ended
    if total == head == len(reply.data) - len(errors):
        await asyncio.to_thread(file.write, reply.data[:head])
        return ended
    await _fetch(box, value["shelf"], total, file)
    return ended


async def _fetch(box: Box, shelf: Mapping[str, Any], total: int, file: IO[bytes]) -> None:
    """All bytes of an output, in pieces; as many as were said, or it is refused."""
    if [*shelf["stdout"]] != [total, total, 0]:
        raise Refused(["the box has no room for what its git has packed; nothing is taken over"])
    position = 0
    while position < total:
        size = min(PIECE, total - position)
        piece = await box.request(
            "fetch",
            {
                "shelf": shelf["number"],
                "stream": "stdout",
                "position": position,
                "size": size,
            },
            timeout=PIECE_SECONDS,
        )
        if not 0 < len(piece.data) <= size or piece.value["next"] != position + len(piece.data):
            raise Refused([f"{total} bytes were announced, and {position} have come"])
        await asyncio.to_thread(file.write, piece.data)
        position += len(piece.data)


async def _drop(box: Box, reply: Reply) -> None:
    """Let the agent forget the output; it would by itself, after a while."""
    shelf = reply.value.get("shelf")
    if isinstance(shelf, dict):
        with suppress(ToolError, SandboxError):
            given = {"shelf": shelf.get("number"), "size": 0}
            await box.request("fetch", given, timeout=PIECE_SECONDS)
