"""The configuration of a user and his repository, as git lists it: read, never obeyed."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from executor.errors import ConfigError
from executor.git import meaning
from executor.git.program import Git
from executor.git.reading import read
from executor.git.values import GitError, Person
from executor.sandbox.container import Owner
from executor.settings import user_surroundings

_MOST = 32 << 20
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPES = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}
# Keys whose value is a file or directory that git obeys or reads.
_FILES = re.compile(
    r"core\.(hookspath|attributesfile|excludesfile)|include\.path|includeif\..*\.path"
    r"|commit\.template|blame\.ignorerevsfile|mailmap\.file|init\.templatedir|diff\.orderfile"
    r"|gpg\.ssh\.(allowedsignersfile|revocationfile)|fsck\.skiplist|http\..*(sslcert|sslkey)"
)
# Keys whose value git executes.
_COMMANDS = re.compile(
    r"core\.(fsmonitor|pager|editor|askpass|sshcommand|gitproxy|alternaterefscommand)"
    r"|sequence\.editor|interactive\.difffilter|pager\..*|alias\..*|web\.browser"
    r"|diff\.external|diff\..*\.(command|textconv)|merge\..*\.driver"
    r"|filter\..*\.(clean|smudge|process)|hook\..*\.command|trailer\..*\.(cmd|command)"
    r"|credential\.(.*\.)?helper|gpg\.(.*\.)?program|gpg\.ssh\.defaultkeycommand"
    r"|(difftool|mergetool|browser|man|guitool)\..*\.(cmd|path)|submodule\..*\.update"
    r"|uploadpack\.packobjectshook|gc\.recentobjectshook|tar\..*\.command"
    r"|remote\..*\.(uploadpack|receivepack)|sendemail\..*"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting, as git read it.

    Attributes:
        scope: `system`, `global`, `local` or `worktree`.
        origin: the file; empty where it is none.
        key: in lower case, but for the part of the user's choice.
        value: None = the key stands without one.
    """

    scope: str
    origin: str
    key: str
    value: str | None

    @property
    def is_own(self) -> bool:
        """It is the repository's."""
        return self.scope in ("local", "worktree")


async def listed(git: Git, git_directory: Path | None, owner: Owner | None) -> list[Entry]:
    """Every setting of the machine, the user and the repository, in git's order.

    Raises:
        ConfigError: git can't read a file of them.
    """
    done = await git.run(
        ["config", "--list", "-z", "--show-scope", "--show-origin", "--includes"],
        git_directory=git_directory,
        owner=owner,
        most=_MOST,
        user_configuration=True,
    )
    if done.code != 0:
        raise ConfigError(f"git: its configuration can't be read: {done.reason}; mend it")
    fields = os.fsdecode(done.output).split("\0")
    found = []
    for scope, origin, setting in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
        key, has_value, value = setting.partition("\n")
        if scope != "command":
            file = origin.removeprefix("file:") if origin.startswith("file:") else ""
            found.append(Entry(scope, file, key, value if has_value else None))
    return found


async def person(git: Git, entries: Sequence[Entry], owner: Owner) -> Person | None:
    """Who commits: as the repository and its owner say, else as our own configuration does."""
    found = _person(entries)
    if found is not None or owner.uid == os.geteuid():
        return found
    with suppress(ConfigError, GitError):
        return _person(await listed(git, None, None))
    return None


def _person(entries: Iterable[Entry]) -> Person | None:
    known = {entry.key: entry.value or "" for entry in entries}
    name, email = (_plain(known.get(key, "")) for key in ("user.name", "user.email"))
    return Person(name, email) if name and email else None


def _plain(text: str) -> str:
    """Without what an identity can't have: git takes it out as well, and then may find nothing."""
    return re.sub(r"[\x00-\x1f\x7f<>]", "", text).strip(" .,:;\"'\\")


def unquoted(line: bytes) -> bytes:
    """A name that git may have quoted like a string of C."""
    if len(line) < 2 or not (line.startswith(b'"') and line.endswith(b'"')):
        return line
    return _ESCAPE.sub(_unescaped, line[1:-1])


def _unescaped(match: re.Match[bytes]) -> bytes:
    text = match[1]
    return bytes([int(text, 8) & 0xFF]) if len(text) == 3 else _ESCAPES.get(text, text)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the files are that a configuration names.

    Attributes:
        worktree: whose they must not be; None = there is none.
        common: the repository's common directory.
        owner: with whose rights they are read.
    """

    worktree: Path | None
    common: Path
    owner: Owner

    async def excludes(self, entries: Sequence[Entry]) -> str:
        """What the user does not want to see: his own file first, then the repository's."""
        own = await self._users(entries, "core.excludesfile", "ignore")
        return "".join(_ended(text) for text in (own, await self._info("exclude")))

    async def attributes(self, entries: Sequence[Entry], *, has_own: bool) -> str:
        """How content is read: the user's own file first, then the repository's.

        Args:
            entries: the configuration.
            has_own: the worktree has attributes of its own. They overrule the user's file,
                which in the box has a place above theirs: then nothing about content is
                taken from it.
        """
        own = await self._users(entries, "core.attributesfile", "attributes")
        return meaning.attributes(own, has_content=not has_own) + meaning.attributes(
            await self._info("attributes")
        )

    def reads(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        """Worktree paths that git outside executes or obeys, each once."""
        if self.worktree is None:
            return ()
        found: dict[str, None] = {}
        for entry in entries:
            for path in self._named(entry):
                inside = self._inside(path)
                if inside is not None:
                    found[inside] = None
        for path in self._hooks():
            if (inside := self._inside(path)) is not None:
                found[inside] = None
        return tuple(found)

    async def _users(self, entries: Sequence[Entry], key: str, default: str) -> str:
        values = [entry.value or "" for entry in entries if entry.key == key]
        home = self._home()
        if values:
            path = self._expanded(values[-1])
        elif (base := home.get("XDG_CONFIG_HOME")) or (base := home.get("HOME")):
            is_base = bool(home.get("XDG_CONFIG_HOME"))
            path = Path(base, "git", default) if is_base else Path(base, ".config/git", default)
        else:
            path = None
        # What is in the worktree the box has itself; what is there may be its own work.
        if path is None or not path.is_absolute() or self._inside(path) is not None:
            return ""
        return await self._text(path)

    async def _info(self, name: str) -> str:
        return await self._text(self.common / "info" / name)

    async def _text(self, path: Path) -> str:
        data = await read(path, self.owner)
        return os.fsdecode(data.replace(b"\0", b"")) if data is not None else ""

    def _home(self) -> dict[str, str]:
        is_other = os.geteuid() == 0 and self.owner.uid != 0
        return user_surroundings(self.owner.uid if is_other else None)

    def _expanded(self, value: str) -> Path | None:
        """The path that a value names; a relative one is of the worktree."""
        if value.startswith("~"):
            name, _, rest = value[1:].partition("/")
            try:
                home = pwd.getpwnam(name).pw_dir if name else self._home().get("HOME")
            except KeyError:
                return None
            return Path(home, rest) if home else None
        return Path(value) if value else None

    def _named(self, entry: Entry) -> list[Path]:
        """Paths that an entry names, and its own file."""
        origin = [Path(entry.origin)] if entry.origin.startswith("/") else []
        value = entry.value or ""
        if _FILES.fullmatch(entry.key):
            path = self._expanded(value)
            is_include = entry.key.startswith("include")
            if path is not None and is_include and not path.is_absolute() and origin:
                path = origin[0].parent / path
            return origin + ([path] if path is not None else [])
        if not _COMMANDS.fullmatch(entry.key):
            return origin
        return [*origin, *(path for word in _words(value) if (path := self._command(word)))]

    def _command(self, word: str) -> Path | None:
        """The path that a word of a command is; one without `/` only if it is there."""
        if word.startswith("~") or "/" in word:
            return self._expanded(word)
        if self.worktree is None or not word or not os.path.lexists(self.worktree / word):
            return None
        return Path(word)

    def _hooks(self) -> list[Path]:
        """Where hooks lead that are links."""
        found = []
        with suppress(OSError), os.scandir(self.common / "hooks") as hooks:
            found += [Path(self.common, "hooks", os.readlink(e)) for e in hooks if e.is_symlink()]
        return found

    def _inside(self, path: Path) -> str | None:
        """The same as a path of the worktree; None if it is none, or in its `.git`."""
        if self.worktree is None:
            return None
        named = os.path.normpath(self.worktree / path)
        # The directories on the way, if they are there, may be links; the last one may be made.
        for place in (named, os.path.realpath(named)):
            relative = os.path.relpath(place, self.worktree)
            if relative.split("/", 1)[0] not in ("..", ".", ".git"):
                return relative
        return None


def _words(command: str) -> list[str]:
    """The words of a command line of the shell; roughly, if it isn't a plain one."""
    text = command.removeprefix("!")
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
