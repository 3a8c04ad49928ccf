"""Skills: texts that tell a model how something is done, as files with a head of a few fields.

`<name>/SKILL.md` or `<name>.md` below a directory; one level further down the name is
`<directory>:<name>`. Those of the user's directories are read here, once, when a loop is opened;
those of a worktree are the box's and read by its agent (`executor.tools.skills`), as text.

The head is a small part of YAML: `key: value`, quotes, lists, and blocks after `|` and `>`. What
is not understood of it is left out; nothing of it makes anything but text.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor.errors import ConfigError

MAX_BYTES = 256 << 10
"""Of one skill's text."""
MAX_HEAD = 16 << 10
"""Characters of a head that are looked at."""
MAX_SKILLS = 200
"""Of one directory."""
MAX_DESCRIPTION = 1000
"""Characters of a description; the rest is left out where it is read."""
SKILL_FILE = "SKILL.md"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEAD = re.compile(r"---[ \t]*\n(.*?)(?:^---[ \t]*(?:\n|\Z))", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"([A-Za-z_][\w-]*):(?:[ \t]+(.*))?")
_COMMAND = re.compile(r"(?<![^\s])!`([^`\n]+)`")
_ARGUMENT = re.compile(r"\$(ARGUMENTS|[1-9])(?![0-9A-Za-z_])")
_HARMLESS = re.compile(r"[\w./:@%+=, -]*")
"""What means nothing to a shell, wherever it stands but for the spaces between words."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill.

    Attributes:
        name: under which it is asked for.
        description: what it is for.
        body: its text, without the head.
        allowed_tools: what its head wants allowed, as it is written there.
        argument_hint: what its arguments are, for people and models.
        directory: where its files are in the box; None = there are none, or not there.
        is_trusted: the user has named the directory that it is from.
    """

    name: str
    description: str
    body: str
    allowed_tools: tuple[str, ...] = ()
    argument_hint: str = ""
    directory: str | None = None
    is_trusted: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """The body in pieces: texts, and commands whose output stands in their place."""
        parts: list[Part] = []
        position = 0
        for match in _COMMAND.finditer(self.body):
            parts.append(Part(self.body[position : match.start()]))
            parts.append(Part(match[1], is_command=True))
            position = match.end()
        return tuple(part for part in (*parts, Part(self.body[position:])) if part.text)

    @property
    def takes_arguments(self) -> bool:
        """Its text says where they stand."""
        return _ARGUMENT.search(self.body) is not None

    def room_for(self, arguments: str) -> int:
        """Characters that the body may come to with these arguments in their places."""
        return len(self.body) + len(_ARGUMENT.findall(self.body)) * len(arguments)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a skill's body."""

    text: str
    is_command: bool = False

    def given(self, arguments: str) -> str:
        """The text with arguments in their places; what is not given is nothing.

        No argument becomes part of a command's own words: one that means something to a shell is
        given to it as the value of its parameter, and stands for itself in quotes and without.

        Args:
            arguments: all of them, as one line; `$1` is the first as a shell splits them.
        """
        words = _words(arguments)
        if self.is_command and not _HARMLESS.fullmatch(arguments) and _ARGUMENT.search(self.text):
            values = " ".join(map(shlex.quote, words))
            return f"ARGUMENTS={shlex.quote(arguments)}; set -- {values}; {self.text}"

        def value(match: re.Match[str]) -> str:
            if match[1] == "ARGUMENTS":
                return arguments
            place = int(match[1]) - 1
            return words[place] if place < len(words) else ""

        return _ARGUMENT.sub(value, self.text)


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()


# ─── a file ─────────────────────────────────────────────────────────────────────────


def parse(name: str, text: str, *, directory: str | None = None, trusted: bool = False) -> Skill:
    """A skill from its file's text. Never fails: what is not understood is text.

    Args:
        name: from the file's place; a name in the head is for people and not heeded.
        text: of the file.
        directory: where its files are in the box.
        trusted: the user has named the directory that it is from.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    match = _HEAD.match(text)
    fields = _fields(match[1][:MAX_HEAD]) if match is not None else {}
    body = text[match.end() :] if match is not None else text
    description = _line(fields.get("description", "")) or _first_line(body)
    return Skill(
        name=name,
        description=description[:MAX_DESCRIPTION],
        body=body.strip("\n"),
        allowed_tools=_listed(fields.get("allowed-tools", "")),
        argument_hint=_line(fields.get("argument-hint", ""))[:MAX_DESCRIPTION],
        directory=directory,
        is_trusted=trusted,
    )


def _line(value: str | Sequence[str]) -> str:
    text = value if isinstance(value, str) else f"[{', '.join(value)}]"
    return " ".join(text.split())


def _first_line(body: str) -> str:
    return next((line.strip("# ").strip() for line in body.splitlines() if line.strip("# ")), "")


def _listed(value: str | Sequence[str]) -> tuple[str, ...]:
    """`Read, Bash(git add:*)` → its parts; commas in brackets are no borders."""
    if not isinstance(value, str):
        return tuple(item for item in value if item)
    parts = re.findall(r"(?:[^,()]|\([^()]*\))+", value)
    return tuple(part.strip() for part in parts if part.strip())


def _fields(head: str) -> dict[str, str | list[str]]:
    """The fields of a head; of several with one name the first."""
    found: dict[str, str | list[str]] = {}
    lines = deque(head.split("\n"))
    while lines:
        match = _FIELD.fullmatch(lines.popleft().rstrip())
        if match is None:
            continue
        below: list[str] = []
        while lines and (not lines[0].strip() or lines[0][0] in " \t" or lines[0][:2] == "- "):
            below.append(lines.popleft())
        found.setdefault(match[1].lower(), _value(match[2] or "", below))
    return found


def _value(text: str, below: Sequence[str]) -> str | list[str]:
    text = text.strip()
    if text[:1] in ("|", ">") and len(text) <= 2:
        lines = [line.strip() for line in below]
        return ("\n" if text[0] == "|" else " ").join(lines).strip()
    items = [line.strip() for line in below if line.strip()]
    if not text and items and all(item.startswith("- ") for item in items):
        return [_plain(item[2:]) for item in items]
    if text.startswith("[") and text.endswith("]"):
        return [_plain(item) for item in _listed(text[1:-1])]
    return _plain(" ".join([text, *items]))


def _plain(text: str) -> str:
    """A scalar: without quotes, or without the comment after it."""
    text = text.strip()
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    if text[:1] == text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    return re.sub(r"(^|\s)#.*", "", text).strip()


# ─── the user's directories ─────────────────────────────────────────────────────────


def name_of(path: str) -> str | None:
    """The name of the skill in a file, by the file's path below its directory; None = none.

    `review/SKILL.md` and `review.md` are `review`; `git/commit.md` is `git:commit`.
    """
    parts = path.split("/")
    if parts[-1] == SKILL_FILE:
        parts = parts[:-1]
    elif parts[-1].endswith(".md"):
        parts[-1] = parts[-1].removesuffix(".md")
    else:
        return None
    if not 1 <= len(parts) <= 2 or not all(map(_NAME.fullmatch, parts)):
        return None
    return ":".join(parts)


def load(
    directories: Iterable[tuple[Path, str | None]], writable: Iterable[Path | str] = ()
) -> dict[str, Skill]:
    """The skills of the user's directories; of several with one name the first.

    Args:
        directories: each with where it is in the boxes; None = nowhere.
        writable: directories that the loop can write to. What lies there is not the user's word.

    Raises:
        ConfigError: a directory or a file can't be read, is too large, or there are too many; or
            a link leads to where the loop can write.
    """
    places = [os.path.realpath(path) for path in writable]
    found: dict[str, Skill] = {}
    faults: list[str] = []
    for directory, mount in directories:
        try:
            for path in sorted(_files(directory)):
                name = name_of(path)
                if name is None or name in found:
                    continue
                inside = None
                if mount is not None and path.endswith(f"/{SKILL_FILE}"):
                    inside = f"{mount}/{path.removesuffix(f'/{SKILL_FILE}')}"
                _require_outside(directory / path, places)
                text = _read(directory / path)
                found[name] = parse(name, text, directory=inside, trusted=True)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            faults.append(f"skills: {directory} can't be read: {reason or error}")
    if faults:
        raise ConfigError(faults)
    return found


def _require_outside(path: Path, places: Iterable[str]) -> None:
    real = os.path.realpath(path)
    for place in places:
        if os.path.commonpath((real, place)) == place:
            raise ValueError(f"{path.name} is a link into {place}, where the loop can rewrite it")


def _files(directory: Path) -> Iterator[str]:
    for count, path in enumerate(_below(directory, "")):
        if count == MAX_SKILLS:
            raise ValueError(f"it has more than {MAX_SKILLS} skills")
        yield path


def _below(directory: Path, prefix: str, depth: int = 0) -> Iterator[str]:
    entries = {entry.name: entry for entry in os.scandir(directory)}
    if SKILL_FILE in entries and prefix:
        # The other files of a skill's directory are its own, not skills.
        yield f"{prefix}{SKILL_FILE}"
        return
    for name, entry in entries.items():
        if name.startswith("."):
            continue
        if entry.is_dir() and depth < 2:
            yield from _below(directory / name, f"{prefix}{name}/", depth + 1)
        elif name.endswith(".md") and name != SKILL_FILE:
            yield f"{prefix}{name}"


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path.name} is no file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path.name} has more than {MAX_BYTES} bytes")
    return data.decode("utf-8", "replace")


def listing(skills: Mapping[str, Skill]) -> list[str]:
    """A line for each, for a model."""
    lines = []
    for skill in skills.values():
        hint = f" {skill.argument_hint}" if skill.argument_hint else ""
        lines.append(f"- {skill.name}{hint}: {skill.description or 'no description'}")
    return lines
