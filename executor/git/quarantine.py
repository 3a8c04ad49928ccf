"""Takes over what a box says that it has made: into a repository of ours, and only if sound.

The repository is bare, has no hooks and nothing but our own configuration, and borrows the
origin's objects. Nothing that the box sent is asked for how to read it: git reads one pack
from a file, by its own strict rules, and everything else is looked at afterwards. What is
not wanted there is refused as a whole, and nothing of it stays.

Bounds, whatever the pack is: `SECONDS` in all, `MOST_OBJECTS` objects, `MOST_INFLATED` bytes
of them when unpacked, `MEMORY` bytes for git, and `ALLOCATION` for one object, so that a delta
that grows without bound is named as such. Trees that name each other over and over, which have
more paths than can be counted, end at the same limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import re
import secrets
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor.git import objects
from executor.git.index import opened, take
from executor.git.program import Done, Git
from executor.git.values import REFS, Arrival, GitError, Refused, Repository
from executor.sandbox import descent
from executor.sandbox.completion import to_completion
from executor.text import one_line

SECONDS = 120.0
"""That all of the taking over may take."""
MOST_OBJECTS = 1 << 20
"""Objects in one pack."""
MOST_INFLATED = 8 << 30
"""Bytes of all objects of a pack, unpacked."""
MOST_TREES = 512 << 20
"""Bytes of all its trees, which are read one by one."""
MOST_REFS = 10_000
MEMORY = 1 << 30
"""Bytes that a process of git may have."""
ALLOCATION = 512 << 20
"""Bytes that git may take for one purpose, for example for one unpacked object."""
_BATCH = 32 << 20
"""Bytes of trees that are read at a time."""
_LISTING = 192 << 20
"""Bytes that git may print about the objects of a pack."""
_CHANGES = 128 << 20
"""Bytes that git may print about the changes in a batch of commits."""
_COMMITS = 256
"""Commits in a batch."""
_MOST_SHALLOW = 16 << 20
_MOST_NAMED = 5
"""Things that one sentence names."""
_EXCHANGE = 2
"""Flag of renameat2(2): both names stay, and lead to what the other led to."""
_STRICT = ",".join(
    f"{name}=error"
    for name in (
        "badFilemode",
        "emptyName",
        "fullPathname",
        "gitattributesSymlink",
        "gitignoreSymlink",
        "gitmodulesParse",
        "gitmodulesSymlink",
        "hasDot",
        "hasDotdot",
        "hasDotgit",
        "mailmapSymlink",
        "nullSha1",
        "zeroPaddedFilemode",
    )
)
"""What fsck only remarks on by itself. The other faults are errors to it already."""
_CONFIG = """\
[core]
\trepositoryFormatVersion = {version}
\tbare = true
\tbigFileThreshold = 64m
\tdeltaBaseCacheLimit = 64m
\thooksPath = /dev/null
\tfsmonitor = false
[pack]
\tthreads = 1
\twindowMemory = 64m
\tdeltaCacheSize = 64m
[gc]
\tauto = 0
[maintenance]
\tauto = false
"""
_NAME = re.compile(r"head|index|uncommitted|stash/(?:0|[1-9][0-9]{0,4})|(?:heads|tags)/(.+)")
_UNFIT = re.compile(r"\.\.|@\{|//|[ ~^:?*\[\\]|(?:^|/)[.-]|\.lock(?:/|$)|[./]$|^/|^@$")
_MADE = re.compile(r"(?:pack|keep)\t([0-9a-f]{40}|[0-9a-f]{64})\n")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a box says that it has made. All of it is hostile.

    Attributes:
        refs: as in `Arrival`.
        branch: full name of the branch that HEAD is on; None = detached.
        base: the commit that `index` goes with: of the start or of `refs`; None = there is none.
        pack: descriptor of a file of ours with the bytes that it sent, all of them.
        notes: what was left out before.
    """

    refs: Mapping[str, str]
    branch: str | None
    base: str | None
    pack: int
    notes: tuple[str, ...] = ()


def fits(name: str) -> bool:
    """Whether the part of a ref's name behind `refs/heads/` or `refs/tags/` is acceptable.

    The rules of `git-check-ref-format(1)`, and: what can be printed, at most 200 bytes, no part
    that begins with `-`.
    """
    return (
        0 < len(name.encode("utf-8", "surrogatepass")) <= 200
        and name.isprintable()
        and _UNFIT.search(name) is None
    )


async def accept(
    git: Git,
    repository: Repository,
    offer: Offer,
    start: Collection[str],
    directory: Path,
    *,
    pack_bytes: int,
) -> Arrival:
    """Takes an offer over into `directory`, which replaces what was there in one step.

    Args:
        git: of the host.
        repository: the origin, whose objects the quarantine borrows.
        offer: of the box.
        start: names of objects that the box began with: what leads from there is not new.
        directory: of the quarantine; its parent exists and is ours alone.
        pack_bytes: the most that the pack may have.

    Raises:
        Refused: what was offered is broken, too large or could do harm.
        OSError: there is no room for it, or the directory is not ours.
    """
    _check_names(offer, repository)
    if offer.base is not None and offer.base not in {*start, *offer.refs.values()}:
        raise Refused([f"HEAD: {offer.base} is neither old nor among what is offered"])
    await to_completion(asyncio.to_thread(repair, directory))
    making = directory.with_name(f".{directory.name}.new-{secrets.token_hex(6)}")
    try:
        await to_completion(asyncio.to_thread(_make, making, repository))
        taking = _Taking(git, repository, making, tuple(start), time.monotonic() + SECONDS)
        commits = await taking.take(offer, pack_bytes)
        await to_completion(asyncio.to_thread(_put, making, directory))
    except GitError as error:
        raise Refused([f"it can't be taken over: {one_line(str(error), 300)}"]) from error
    finally:
        await to_completion(asyncio.to_thread(_remove, making))
    return Arrival(directory, dict(offer.refs), offer.branch, commits, offer.notes)


async def discard(directory: Path) -> None:
    """Removes a quarantine, and what a crash left beside it; nothing there is no error.

    Raises:
        OSError: it can't be removed.
    """
    await to_completion(asyncio.to_thread(repair, directory))
    await to_completion(asyncio.to_thread(_remove, directory))


def repair(directory: Path) -> None:
    """After a crash: the old quarantine or the new one is there, and nothing beside it.

    Raises:
        OSError: it can't be done.
    """
    old = f".{directory.name}.old-"
    for name in sorted(os.listdir(directory.parent)):
        if name.startswith(old) and not directory.exists():
            os.rename(directory.parent / name, directory)
        elif name.startswith((old, f".{directory.name}.new-")):
            _remove(directory.parent / name)


def refs(directory: Path) -> dict[str, str]:
    """What a quarantine of ours has, by names below the loop's: for a record that lacks it.

    Raises:
        OSError: it can't be read.
    """
    found = {}
    root = directory / REFS
    for place, _, names in os.walk(root):
        for name in names:
            path = Path(place, name)
            value = path.read_text("ascii", "replace").strip()
            known = path.relative_to(root).as_posix()
            if _NAME.fullmatch(known) and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", value):
                found[known] = value
    return found


# ─── names ──────────────────────────────────────────────────────────────────────────


def _check_names(offer: Offer, repository: Repository) -> None:
    if len(offer.refs) > MOST_REFS:
        raise Refused([f"there are {len(offer.refs)} new refs; at most {MOST_REFS} are taken over"])
    for name, value in offer.refs.items():
        match = _NAME.fullmatch(name)
        if match is None or (match[1] is not None and not fits(match[1])):
            raise Refused([f"{one_line(name, 200)!r} is no name of a ref that is taken over"])
        if not objects.is_name(value, repository.object_format):
            raise Refused([f"{name}: {one_line(value, 80)!r} is no name of an object"])
    if offer.base is not None and not objects.is_name(offer.base, repository.object_format):
        raise Refused([f"HEAD: {one_line(offer.base, 80)!r} is no name of an object"])
    branch = offer.branch
    if branch is not None and not (
        branch.startswith("refs/heads/") and fits(branch.removeprefix("refs/heads/"))
    ):
        raise Refused([f"HEAD: {one_line(branch, 200)!r} is no name of a branch"])


def _is_of_kind(name: str, kind: str, commit: str) -> bool:
    """Whether an object may be what the ref is, by its type and that of what it leads to."""
    if name == "index":
        return kind == "tree"
    if name.startswith("tags/"):
        return kind in ("tag", "commit") and commit == "commit"
    return kind == "commit"


# ─── taking over ────────────────────────────────────────────────────────────────────


class _Taking:
    """One offer on its way into a quarantine that nobody else knows yet."""

    def __init__(
        self,
        git: Git,
        repository: Repository,
        directory: Path,
        start: tuple[str, ...],
        until: float,
    ) -> None:
        self._git = git
        self._repository = repository
        self._format = repository.object_format
        self._directory = directory
        self._start = start
        self._until = until

    async def take(self, offer: Offer, pack_bytes: int) -> int:
        """Everything that has to be done; how many commits are new."""
        sent = await self._unpack(offer.pack, pack_bytes)
        await self._check_objects(sent)
        await self._check_kinds(offer.refs)
        commits = await self._check_connected(offer)
        await self._check_gitlinks(commits, offer)
        await self._set(offer.refs)
        aside = [value for name, value in offer.refs.items() if _is_aside(name)]
        return len(set(commits) - set(aside))

    async def _unpack(self, pack: int, pack_bytes: int) -> list[bytes]:
        """Have git read the pack; the names of the objects that were sent."""
        size = os.fstat(pack).st_size
        if size > pack_bytes:
            raise Refused([f"the pack has {size} bytes; at most {pack_bytes} are taken over"])
        count = objects.announced(os.pread(pack, 12, 0))
        if count > MOST_OBJECTS:
            raise Refused([f"the pack holds {count} objects; at most {MOST_OBJECTS} are taken"])
        os.lseek(pack, 0, os.SEEK_SET)
        arguments = ["index-pack", "--stdin", "--fix-thin", f"--strict={_STRICT}", "--threads=1"]
        done = await self._run([*arguments, f"--max-input-size={pack_bytes}"], pack)
        made = _MADE.fullmatch(os.fsdecode(done.output))
        if done.code != 0 or made is None:
            raise Refused([f"git refuses the pack: {_said(done)}"])
        index = self._directory / "objects" / "pack" / f"pack-{made[1]}.idx"
        end = size - objects.DIGESTS[self._format]
        sent, whole = await asyncio.to_thread(
            lambda: [
                objects.packed(index.read_bytes(), self._format, before)
                for before in (end, sys.maxsize)
            ]
        )
        await self._check_borrowed(set(whole).difference(sent))
        return sent

    async def _check_borrowed(self, names: Collection[bytes]) -> None:
        """What git put into the pack, because deltas are made from it, is the origin's own.

        Git here may read more than the origin's owner, who says what his stores borrow from:
        a delta could bring him an object of somebody else whose name he knows.
        """
        owner = self._repository.owner
        if not names or os.geteuid() or owner.uid == 0:
            return
        told = await self._git.output(
            ["cat-file", "--batch-check=%(objectname)"],
            git_directory=self._repository.git_directory,
            owner=owner,
            given=b"".join(b"%s\n" % name.hex().encode() for name in names),
        )
        strange = [line.split()[0] for line in told.decode().splitlines() if " " in line]
        if strange:
            raise Refused([f"it is made from objects that the origin lacks: {_some(strange)}"])

    async def _check_objects(self, sent: list[bytes]) -> None:
        """What was sent is not too large, unpacked, and no tree holds a strange name."""
        asked = b"".join(b"%s\n" % name.hex().encode() for name in sent)
        told = await self._output(
            ["cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)", "--buffer"],
            asked,
            most=_LISTING,
        )
        batches = await asyncio.to_thread(lambda: list(_tree_batches(told)))
        for batch in batches:
            answer = await self._output(
                ["cat-file", "--batch", "--buffer"], batch, most=_BATCH + ALLOCATION
            )
            strange = await asyncio.to_thread(self._strange, answer)
            if strange:
                raise Refused([f"a file may not be named {_some(strange)}: some would read .git"])

    def _strange(self, answer: bytes) -> list[str]:
        return [
            name
            for tree in objects.contents(answer, self._format)
            for name in objects.strange_names(tree, self._format)
        ]

    async def _check_kinds(self, refs: Mapping[str, str]) -> None:
        asked = "".join(f"{value}\n{value}^{{commit}}\n" for value in refs.values())
        told = await self._output(["cat-file", "--batch-check=%(objecttype)"], asked.encode())
        kinds = told.decode("utf-8", "replace").split("\n")
        for number, (name, value) in enumerate(refs.items()):
            kind, commit = kinds[2 * number], kinds[2 * number + 1]
            if not _is_of_kind(name, kind, commit):
                what = "is missing" if kind.endswith(" missing") else f"is a {one_line(kind, 80)}"
                raise Refused([f"{name}: {value} {what}, which is nothing that may be there"])

    async def _check_connected(self, offer: Offer) -> list[str]:
        """Nothing is missing of what the refs lead to; the names of the new commits."""
        asked = self._range(offer.refs.values())
        # What of the start the origin has lost is not in the way; every tip was looked at.
        arguments = ["rev-list", "--ignore-missing", "--stdin"]
        done = await self._run([*arguments, "--objects", "--quiet"], asked)
        if done.code != 0:
            raise Refused([f"objects are missing or broken: {_said(done)}"])
        commits = self._range(value for name, value in offer.refs.items() if name != "index")
        told = await self._output(arguments, commits, most=_LISTING)
        return told.decode().split()

    def _range(self, tips: Iterator[str] | Collection[str]) -> bytes:
        wanted = sorted(set(tips))
        known = sorted(set(self._start))
        lines = [*(f"{tip}\n" for tip in wanted), *(f"^{name}\n" for name in known)]
        # Without any tip it would be an error.
        return "".join(lines).encode() if wanted else b""

    async def _check_gitlinks(self, commits: Sequence[str], offer: Offer) -> None:
        """No commit of another repository is there that was not there before, at that path.

        Git outside goes into the repository that such an entry stands for, and obeys it.
        """
        for first in range(0, len(commits), _COMMITS):
            await self._refuse_gitlinks_of(commits[first : first + _COMMITS])
        if "index" in offer.refs:
            base = offer.base if offer.base is not None else await self._empty_tree()
            await self._refuse_gitlinks([base, offer.refs["index"]], b"")

    async def _refuse_gitlinks_of(self, commits: Sequence[str]) -> None:
        """A batch that git prints too much about is halved."""
        lines = "".join(f"{commit}\n" for commit in commits)
        try:
            # -c: of a merge, what none of its parents had.
            await self._refuse_gitlinks(["--stdin", "-c", "--root"], lines.encode())
        except GitError:
            if len(commits) == 1:
                raise
            middle = len(commits) // 2
            await self._refuse_gitlinks_of(commits[:middle])
            await self._refuse_gitlinks_of(commits[middle:])

    async def _refuse_gitlinks(self, arguments: Sequence[str], given: bytes) -> None:
        options = ["-r", "-z", "--raw", "--no-renames", "--ignore-submodules=none"]
        told = await self._output(["diff-tree", *options, *arguments], given, most=_CHANGES)
        found = await asyncio.to_thread(objects.new_gitlinks, told)
        if found:
            raise Refused(
                [f"{_some(found)}: a repository inside the repository; remove its .git first"]
            )

    async def _empty_tree(self) -> str:
        told = await self._output(["hash-object", "-t", "tree", "-w", "--stdin"], b"")
        return told.decode().strip()

    async def _set(self, refs: Mapping[str, str]) -> None:
        script = "".join(f"create {REFS}/{name}\0{value}\0" for name, value in refs.items())
        done = await self._run(["update-ref", "--stdin", "-z"], script.encode())
        if done.code != 0:
            raise Refused([f"the refs can't all be there: {_said(done)}"])

    async def _output(self, arguments: Sequence[str], given: bytes, most: int = 64 << 20) -> bytes:
        done = await self._run(arguments, given, most)
        if done.code != 0:
            raise Refused([f"what the box sent can't be read: {_said(done)}"])
        return done.output

    async def _run(self, arguments: Sequence[str], given: bytes | int, most: int = 1 << 20) -> Done:
        left = self._until - time.monotonic()
        if left <= 0:
            raise Refused([f"it takes longer than {SECONDS:g} s to look at what the box sent"])
        return await self._git.run(
            arguments,
            git_directory=self._directory,
            given=given,
            environment={"GIT_ALLOC_LIMIT": str(ALLOCATION)},
            most=most,
            timeout=left,
            memory=MEMORY,
        )


def _is_aside(name: str) -> bool:
    """Whether a ref is nothing that the loop has committed."""
    return name == "uncommitted" or name.startswith("stash/")


def _tree_batches(told: bytes) -> Iterator[bytes]:
    """The trees among the objects, some at a time.

    Args:
        told: a line for each object: its name, type and size.

    Raises:
        Refused: the objects are too large.
    """
    batch: list[bytes] = []
    inflated = trees = filled = 0
    for line in told.splitlines():
        name, kind, text = line.split(b" ")
        size = int(text)
        inflated += size
        if kind == b"tree":
            trees += size
            filled += size
            batch.append(name + b"\n")
        if inflated > MOST_INFLATED:
            raise Refused([f"unpacked it has more than {MOST_INFLATED} bytes"])
        if trees > MOST_TREES:
            raise Refused([f"its directories have more than {MOST_TREES} bytes"])
        if filled >= _BATCH:
            yield b"".join(batch)
            batch, filled = [], 0
    if batch:
        yield b"".join(batch)


def _said(done: Done) -> str:
    """What git said, for a person; it may quote what the box sent."""
    return one_line(done.errors.strip() or f"git ended with {done.code}", 300)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(one_line(name, 100)) for name in names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


# ─── the directory ──────────────────────────────────────────────────────────────────


def _make(directory: Path, repository: Repository) -> None:
    """Writes a bare repository that borrows the origin's objects; no template, no hook."""
    for name in ("", "objects", "objects/info", "objects/pack", "refs"):
        (directory / name).mkdir(mode=0o700)
    config = _CONFIG.format(version=int(repository.object_format != "sha1"))
    if repository.object_format != "sha1":
        config += f"[extensions]\n\tobjectFormat = {repository.object_format}\n"
    (directory / "config").write_text(config)
    (directory / "HEAD").write_text("ref: refs/heads/none\n")
    lines = b"".join(_alternate(os.fsencode(store)) + b"\n" for store in repository.stores)
    (directory / "objects" / "info" / "alternates").write_bytes(lines)
    if repository.shallow is not None and (names := _shallow(repository.shallow, repository)):
        (directory / "shallow").write_bytes(names)


def _alternate(path: bytes) -> bytes:
    """A line of `objects/info/alternates`: quoted where git would read it in another way."""
    if not path.startswith((b'"', b"#")) and b"\n" not in path:
        return path
    quoted = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + quoted + b'"'


def _shallow(path: Path, repository: Repository) -> bytes:
    """Where the origin's history is cut; nothing but names of objects."""
    with opened(path.parent, repository.owner) as directory:
        taken = take(directory, path.name, repository.owner, _MOST_SHALLOW)
    names = taken.data.decode("ascii", "replace").split("\n") if taken is not None else []
    return "".join(
        f"{name}\n" for name in names if objects.is_name(name, repository.object_format)
    ).encode()


def _put(making: Path, directory: Path) -> None:
    """Makes the new quarantine the one, in one step where the file system can do it."""
    if not directory.exists():
        os.rename(making, directory)
        return
    parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _exchange(parent, making.name, directory.name):
            return
        # In between neither is there by its name; `repair` brings the old one back.
        old = f".{directory.name}.old-{secrets.token_hex(6)}"
        os.rename(directory.name, old, src_dir_fd=parent, dst_dir_fd=parent)
        os.rename(making.name, directory.name, src_dir_fd=parent, dst_dir_fd=parent)
        descent.remove(old, parent)
    finally:
        os.close(parent)


def _exchange(parent: int, one: str, other: str) -> bool:
    """Exchanges two names; False where kernel or file system can't."""
    renameat2 = getattr(_libc, "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(parent, os.fsencode(one), parent, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), other)


def _remove(directory: Path) -> None:
    """Removes a quarantine by descriptors; nothing there is no error."""
    parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            descent.remove(directory.name, parent)
    finally:
        os.close(parent)
