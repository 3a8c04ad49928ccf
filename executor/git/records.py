"""What is kept of loops' histories under the state directory, and who still needs it.

`<state>/git/<exec_id>-<nonce>/` has `record.json`, the loop's own git directory (`private`, which
a box could write: git on the host never runs with it) and what came out of it, checked
(`arrival`). A worktree that was made for the loop is `<state>/worktrees/<exec_id>-<nonce>`.

A record is written whole or not at all. Its directory is locked (`flock`) while somebody works
on it; the kernel frees the lock however that one ends. A directory is made, and goes, under a
name that begins with a dot, so that a crash leaves either an entry with its record or something
that the next `recover` clears away.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from executor.errors import ConfigError
from executor.git import quarantine
from executor.git.values import Arrival, Head, ObjectFormat, Repository
from executor.sandbox import descent, reaper
from executor.sandbox.container import Owner
from executor.sandbox.ownership import GitEntry

VERSION = 1
RECORD = "record.json"
PRIVATE_DIRECTORY = "private"
ARRIVAL_DIRECTORY = "arrival"
TREE = "tree"
"""In the directory of a worktree that was made: the worktree itself."""
_MOST = 64 << 20
"""Bytes of a record: one of a repository with 10^5 refs has a tenth of this."""
_NAME = re.compile(r"([a-z0-9][a-z0-9._-]{0,127})-([0-9a-f]{8})")
_UNFINISHED = re.compile(r"\.(?:making|going)-[a-z0-9._-]{1,160}")
_ATTEMPTS = 8


class State(StrEnum):
    """How far a loop's history has come."""

    OPEN = "open"
    """A living controller has the loop."""
    KEPT = "kept"
    """All that it made is in the arrival."""
    UNEXPORTED = "unexported"
    """Its own git directory may hold what no arrival has: a box has to be asked for it."""


@dataclass(frozen=True, slots=True)
class Came:
    """What an `Arrival` is, but for its directory."""

    refs: Mapping[str, str]
    branch: str | None
    commits: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one loop's history.

    Attributes:
        exec_id: of the loop.
        tenant: its tenant; None = it has none.
        controller: id of the controller that has, or had, it.
        created: seconds since 1970.
        git_directory, common_directory, worktree: of the origin, as in `Repository`.
        identity: device and inode of the origin's common directory.
        worktree_identity: of the worktree; None = a bare repository.
        entry, object_format: as in `Repository`.
        branch, commit: where HEAD was at the start: a `Head`.
        refs: names and objects below `refs/heads` and `refs/tags` that it was shown.
        stores: object directories of the origin.
        identities: device and inode of each of them.
        state: how far it has come.
        made: device and inode of the directory of the worktree that was made for it; None =
            it works in one of the user's.
        came: what is in the arrival; None = nothing has come.
        landed: what of it is in the origin, by full names.
        imported: whether all of the arrival has landed.
        failure: why it could not be exported; None = no attempt has failed.
        sharing: how it had the origin's objects: a box needs the same to be asked.
        elsewhere: where its own git directory is, if not in the entry: in the file system of
            its quota.
        version: of this layout.
    """

    exec_id: str
    tenant: str | None
    controller: str
    created: float
    git_directory: str
    common_directory: str
    worktree: str | None
    identity: tuple[int, int]
    worktree_identity: tuple[int, int] | None
    entry: GitEntry
    object_format: ObjectFormat
    branch: str | None
    commit: str | None
    refs: Mapping[str, str] = field(default_factory=dict)
    stores: tuple[str, ...] = ()
    identities: tuple[tuple[int, int], ...] = ()
    state: State = State.OPEN
    made: tuple[int, int] | None = None
    came: Came | None = None
    landed: Mapping[str, str] = field(default_factory=dict)
    imported: bool = False
    failure: str | None = None
    sharing: str = "shared"
    elsewhere: str | None = None
    version: int = VERSION

    @classmethod
    def begin(
        cls,
        repository: Repository,
        *,
        exec_id: str,
        tenant: str | None,
        controller: str,
        sharing: str = "shared",
    ) -> Record:
        """The record of a loop that begins.

        Raises:
            OSError: the repository is gone.
        """
        worktree = repository.worktree
        return cls(
            exec_id=exec_id,
            tenant=tenant,
            controller=controller,
            created=time.time(),
            git_directory=os.fspath(repository.git_directory),
            common_directory=os.fspath(repository.common_directory),
            worktree=os.fspath(worktree) if worktree is not None else None,
            identity=_identity(os.stat(repository.common_directory)),
            worktree_identity=_identity(os.stat(worktree)) if worktree is not None else None,
            entry=repository.entry,
            object_format=repository.object_format,
            branch=repository.head.branch,
            commit=repository.head.commit,
            refs=dict(repository.refs),
            stores=tuple(os.fspath(store) for store in repository.stores),
            identities=repository.identities,
            sharing=sharing,
        )

    def repository(self) -> Repository:
        """The origin, as far as landing needs it, with `head` as it was at the start.

        Raises:
            ConfigError: it is not there any more.
        """
        common = Path(self.common_directory)
        try:
            status = common.stat()
            if _identity(status) != self.identity:
                raise ConfigError(
                    f"{common}: another repository is there than the one that loop "
                    f"{self.exec_id} worked on; put that one back, or see what the loop made "
                    f"with `executor git log {self.exec_id}`"
                )
            os.stat(self.git_directory)
        except OSError as error:
            raise ConfigError(
                f"{self.git_directory}: the repository that loop {self.exec_id} worked on is gone "
                f"({error.strerror}); put it back, or see what the loop made with "
                f"`executor git log {self.exec_id}`"
            ) from error
        return Repository(
            git_directory=Path(self.git_directory),
            common_directory=common,
            worktree=Path(self.worktree) if self.worktree is not None else None,
            entry=self.entry,
            owner=Owner(status.st_uid, status.st_gid),
            stores=tuple(Path(store) for store in self.stores),
            identities=self.identities,
            object_format=self.object_format,
            head=Head(self.branch, self.commit),
            refs=self.refs,
        )


_RECORD = TypeAdapter(Record)


class Entry:
    """One directory below `<state>/git`.

    Attributes:
        directory: its path.
        record: what its `record.json` says; `save` writes another one.
    """

    def __init__(self, state: Path, name: str, record: Record) -> None:
        self._state = state
        self.name = name
        self.directory = state / "git" / name
        self.record = record

    @property
    def private(self) -> Path:
        """The loop's own git directory: a box writes it, git on the host never reads it."""
        return self.directory / PRIVATE_DIRECTORY

    @property
    def quarantine(self) -> Path:
        """Where what came is, or is to be put."""
        return self.directory / ARRIVAL_DIRECTORY

    @property
    def made(self) -> Path:
        """Where a worktree of ours for the loop is, if one was made: `tree` in it."""
        return self._state / "worktrees" / self.name

    def arrival(self) -> Arrival | None:
        """What has come of the loop; None = nothing has."""
        came = self.record.came
        if came is None or not self.quarantine.is_dir():
            return None
        return Arrival(self.quarantine, came.refs, came.branch, came.commits, came.notes)

    def save(self, record: Record) -> None:
        """Replace the record, whole or not at all.

        Raises:
            OSError: there is no room, for example; the old one is still there.
        """
        directory = os.open(self.directory, descent.DIRECTORY)
        try:
            _write(directory, record)
        finally:
            os.close(directory)
        self.record = record

    def arrived(self, arrival: Arrival) -> None:
        """Note what has come.

        Raises:
            OSError: as `save`.
        """
        came = Came(dict(arrival.refs), arrival.branch, arrival.commits, tuple(arrival.notes))
        self.save(replace(self.record, came=came, imported=False))

    def make_worktree_directory(self) -> Path:
        """The directory that a worktree of ours for the loop is made in; it is noted as its own.

        Raises:
            OSError: it can't be made.
        """
        parent = self._state / "worktrees"
        parent.mkdir(mode=0o700, exist_ok=True)
        self.made.mkdir(mode=0o700)
        self.save(replace(self.record, made=_identity(os.stat(self.made, follow_symlinks=False))))
        return self.made

    def remove_worktree(self) -> None:
        """Remove the worktree that was made for the loop; nobody else's, and no link is followed.

        Raises:
            OSError: it is not all gone.
        """
        if self.record.made is None:
            return
        with _opened(self._state / "worktrees") as parent:
            if parent is not None and _is_at(parent, self.name, self.record.made):
                with suppress(FileNotFoundError):  # another one removes it, too
                    descent.remove(self.name, parent)

    def remove_private(self) -> None:
        """Remove the loop's own git directory, once all of it has come.

        Raises:
            OSError: it is not all gone.
        """
        with _opened(self.directory) as directory:
            if directory is not None:
                with suppress(FileNotFoundError):
                    descent.remove(PRIVATE_DIRECTORY, directory)

    def remove(self) -> None:
        """Remove all of it. The record goes with the name, so that no half of it stays.

        Raises:
            OSError: it is not all gone; the next `recover` goes on.
        """
        self.remove_worktree()
        with _opened(self._state / "git") as parent:
            if parent is None:
                return
            going = f".going-{self.name}"
            with suppress(FileNotFoundError):
                os.rename(self.name, going, src_dir_fd=parent, dst_dir_fd=parent)
                descent.remove(going, parent)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Keep others from working on the entry; False: somebody else does, or it is gone."""
        with _opened(self.directory) as directory:
            yield directory is not None and _lock(directory, self.directory)


class Records:
    """The entries of a state directory.

    Args:
        state: the state directory.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._root = state / "git"
        self.faults: list[str] = []

    def create(self, record: Record) -> Entry:
        """A new entry with its record.

        Raises:
            OSError: it can't be written.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened(self._root) as root:
            if root is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._root))
            for _ in range(_ATTEMPTS):
                name = f"{record.exec_id}-{secrets.token_hex(4)}"
                if self._make(root, name, record):
                    return Entry(self._state, name, record)
        raise FileExistsError(errno.EEXIST, "no free name", str(self._root))

    def _make(self, root: int, name: str, record: Record) -> bool:
        """Make it where `recover` takes it for unfinished, and only then give it its name."""
        making = f".making-{name}"
        os.mkdir(making, 0o700, dir_fd=root)
        try:
            directory = os.open(making, descent.DIRECTORY, dir_fd=root)
            try:
                if not _lock(directory, self._root / making):
                    return False  # somebody clears it away just now
                _write(directory, record)
                os.rename(making, name, src_dir_fd=root, dst_dir_fd=root)
                os.fsync(root)
            finally:
                os.close(directory)
        except BaseException:
            with suppress(OSError):
                descent.remove(making, root)
            raise
        return True

    def entries(self) -> list[Entry]:
        """All of them, newest first. `faults` says what can't be read, one sentence each."""
        self.faults = []
        found = []
        for name in _names(self._root):
            if not _NAME.fullmatch(name):
                continue
            try:
                found.append(Entry(self._state, name, _read(self._root / name)))
            except FileNotFoundError:
                if (self._root / name).is_dir():
                    self.faults.append(_unreadable(self._root / name, "it has no record"))
            except (OSError, ValueError) as error:
                self.faults.append(_unreadable(self._root / name, _reason(error)))
        return sorted(found, key=lambda entry: (-entry.record.created, entry.name))

    def find(self, exec_id: str) -> Entry | None:
        """The newest entry of a loop's name, or the one whose own name is given; None = none."""
        for entry in self.entries():
            if exec_id in (entry.record.exec_id, entry.name):
                return entry
        return None


def recover(state: Path) -> list[str]:
    """Puts in order what dead controllers left; may run any number of times at once.

    What may hold a loop's work is kept: `unexported` while its own git directory is there,
    `kept` when all has come. What is half made, half removed or empty goes.

    Args:
        state: the state directory.

    Returns:
        What could not be put in order, one sentence each.
    """
    root = state / "git"
    faults = _clear_unfinished(root)
    records = Records(state)
    entries = records.entries()
    faults += records.faults
    living = {path.name for path in reaper.living(state)}
    for entry in entries:
        if entry.record.controller in living and entry.record.state is State.OPEN:
            continue
        try:
            with entry.locked() as is_ours:
                if is_ours:
                    # Read again: it may have changed before it was locked.
                    _settle(Entry(state, entry.name, _read(entry.directory)), living)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            faults.append(f"{entry.directory} can't be put in order: {_reason(error)}")
    return faults


def _settle(entry: Entry, living: set[str]) -> None:
    record = entry.record
    if record.state is State.OPEN:
        if record.controller in living:
            return
        record = _completed(entry)
    has_private = _has_content(entry.private)
    if has_private and record.state is not State.KEPT:
        state = State.UNEXPORTED
    elif record.elsewhere is not None and record.state is not State.KEPT:
        state = State.UNEXPORTED
        record = replace(record, failure=_elsewhere(record))
    elif entry.arrival() is not None:
        state = State.KEPT
    elif has_private:
        state = State.UNEXPORTED  # its arrival was lost
    else:
        entry.remove()
        return
    if state is not record.state:
        entry.save(replace(record, state=state))
    if state is State.KEPT:
        # All of it has come: the end was interrupted before these were gone.
        entry.remove_private()
        entry.remove_worktree()


def _completed(entry: Entry) -> Record:
    """The record with what has come since it was written: the quarantine is there before it."""
    record = entry.record
    quarantine.repair(entry.quarantine)
    refs = quarantine.refs(entry.quarantine)
    if not refs or (record.came is not None and dict(record.came.refs) == refs):
        return record
    known = record.came.branch if record.came is not None else record.branch
    on = (known or "").removeprefix("refs/")
    branch = known if on and refs.get(on) == refs.get("head") else None
    before = record.came.commits if record.came is not None else 0
    note = "its controller ended before the commits that came last were counted"
    entry.save(replace(record, came=Came(refs, branch, before, (note,)), imported=False))
    return entry.record


def _elsewhere(record: Record) -> str:
    return (
        f"its own git directory was in the file system of its quota, {record.elsewhere}, when its "
        "controller ended; that is kept as an image now: mount it and copy that directory to "
        f"{PRIVATE_DIRECTORY} here"
    )


def _has_content(directory: Path) -> bool:
    with _opened(directory) as descriptor:
        return descriptor is not None and bool(os.listdir(descriptor))


def _clear_unfinished(root: Path) -> list[str]:
    faults = []
    with _opened(root) as parent:
        if parent is None:
            return []
        for name in _names(root):
            if not _UNFINISHED.fullmatch(name):
                continue
            try:
                with _opened(root / name) as directory:
                    if directory is not None and _lock(directory, root / name):
                        descent.remove(name, parent)
            except FileNotFoundError:
                continue
            except OSError as error:
                faults.append(f"{root / name} can't be removed: {_reason(error)}")
    return faults


# ─── files ──────────────────────────────────────────────────────────────────────────


def _write(directory: int, record: Record) -> None:
    text = json.dumps(_spelled(asdict(record), _as_text), separators=(",", ":"))
    name = f".{RECORD}-{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        try:
            rest = memoryview(text.encode())
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(name, RECORD, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
        raise
    os.fsync(directory)


def _read(directory: Path) -> Record:
    """The record of an entry.

    Raises:
        OSError: it can't be read; FileNotFoundError: there is none.
        ValueError: it is none of ours, is cut, or was written by a later version.
    """
    file = os.open(directory / RECORD, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(file, "rb") as stream:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("its record is no file")
        text = stream.read(_MOST + 1)
    if len(text) > _MOST:
        raise ValueError("its record is too large")
    try:
        record = _RECORD.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"its record is broken: {where} {first['msg']}".strip()) from error
    if record.version > VERSION:
        raise ValueError("its record was written by a later version of the executor; use that one")
    if not (match := _NAME.fullmatch(directory.name)) or match[1] != record.exec_id:
        raise ValueError(f"its record is that of another loop, {record.exec_id!r}")
    named = {one.name: _spelled(getattr(record, one.name), _as_name) for one in fields(record)}
    return Record(**named)


def _as_text(name: str) -> str:
    """Names of the disk need not be text; their bytes, each as a character, are."""
    return os.fsencode(name).decode("latin-1")


def _as_name(text: str) -> str:
    return os.fsdecode(text.encode("latin-1", "replace"))


def _spelled(value: Any, spell: Callable[[str], str]) -> Any:
    """The same value, each of its texts spelled in another way."""
    if isinstance(value, StrEnum):
        return value
    if isinstance(value, str):
        return spell(value)
    if isinstance(value, Came):
        return Came(*(_spelled(getattr(value, one.name), spell) for one in fields(value)))
    if isinstance(value, Mapping):
        return {spell(key): _spelled(one, spell) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_spelled(one, spell) for one in value)
    return value


def _unreadable(directory: Path, reason: str) -> str:
    return (
        f"{directory} is left as it is: {reason}; when you need nothing of it, remove the directory"
    )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def _opened(directory: Path) -> Iterator[int | None]:
    """A directory's descriptor; None: it is not there, or is none."""
    try:
        descriptor = os.open(directory, descent.DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> bool:
    """Whether the directory could be locked, and is still what the path names."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except (BlockingIOError, FileNotFoundError):
        return False


def _is_at(parent: int, name: str, identity: tuple[int, int]) -> bool:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and _identity(status) == identity


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
