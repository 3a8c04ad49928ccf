"""Programs that run what one of their options says: `tar --to-command=…`, `git -c alias.x=!…`.

They do more than that, so each has an effect of its own, too. What an interpreter is given
(`python -c`, `awk`) is another language and is not looked into.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from executor.shell.effects import Argv, Runs, Text
from executor.shell.values import UNKNOWN, Word, known

Arguments = Sequence[Word]

_UNSURE = Argv((UNKNOWN,))
_EXPECTED = frozenset(("ssh", "gzip", "pigz", "zstd", "xz", "lz4", "lzip", "bzip2", "pbzip2"))
"""What these options are there for; a rule that allows the program speaks of it."""


def _values(arguments: Arguments, letters: str, names: Sequence[str]) -> Iterator[Word]:
    """What options are given, by letter or by a name that may be shortened."""
    for at, word in enumerate(arguments):
        following = arguments[at + 1] if at + 1 < len(arguments) else None
        text = word.text if word.text is not None else word.prefix
        if text.startswith("--"):
            name, mark, value = text[2:].partition("=")
            if not name or not any(each.startswith(name) for each in names):
                continue
        else:
            found = re.match(f"-[A-Za-z]*?[{letters}](.*)", text, re.DOTALL) if letters else None
            if found is None:
                continue
            mark = value = found[1]
        if not mark:
            if following is not None:
                yield following
        else:
            yield known(value) if word.text is not None else Word(None)


def _text(text: str | None) -> Iterator[Runs]:
    if text is None:
        yield _UNSURE
    elif text.strip() not in _EXPECTED:
        yield Text(text, True)


def _tar(arguments: Arguments) -> Iterator[Runs]:
    names = ("to-command", "use-compress-program", "rsh-command", "info-script")
    for word in _values(arguments, "IF", (*names, "new-volume-script")):
        yield from _text(word.text)
    for word in _values(arguments, "", ("checkpoint-action",)):
        if word.text is None or word.text.startswith("exec="):
            yield from _text(word.text and word.text.removeprefix("exec="))


def _rsync(arguments: Arguments) -> Iterator[Runs]:
    for word in _values(arguments, "e", ("rsh", "rsync-path")):
        yield from _text(word.text)


_EDITED = re.compile(r"[:\s]*(?:sil\w*!?\s+)?!(.*)", re.DOTALL)


def _editor(arguments: Arguments) -> Iterator[Runs]:
    plus = [known(word.text[1:]) for word in arguments if word.text and word.text[0] == "+"]
    for word in (*_values(arguments, "c", ("cmd",)), *plus):
        found = _EDITED.match(word.text or "")
        if found is not None:
            yield from _text(found[1])


def _debugger(arguments: Arguments) -> Iterator[Runs]:
    for word in arguments:
        found = re.match(r"(?:shell\s|!)(.*)", word.text or "", re.DOTALL)
        if found is not None:
            yield from _text(found[1])


_SETTING = re.compile(
    r"(?:core\.(?:pager|editor|sshcommand|fsmonitor|askpass|gitproxy|alternaterefscommand)"
    r"|pager\..*|sequence\.editor|diff\.external|.*\.(?:command|cmd|textconv|clean|smudge"
    r"|process|driver|program|helper|path|uploadpack|receivepack))",
    re.IGNORECASE,
)
"""Settings of git whose value it runs."""
_GLOBAL_VALUED = ("-c", "-C", "--git-dir", "--work-tree", "--namespace", "--config-env")


def _git(arguments: Arguments) -> Iterator[Runs]:
    at = 0
    while at < len(arguments) and arguments[at].prefix.startswith("-"):
        text = arguments[at].text
        if text == "-c" and at + 1 < len(arguments):
            yield from _setting(arguments[at + 1], arguments)
        at += 2 if text in _GLOBAL_VALUED else 1
    if at < len(arguments):
        yield from _subcommand(arguments[at].text, arguments[at + 1 :])


def _setting(word: Word, arguments: Arguments) -> Iterator[Runs]:
    key, _, value = (word.text if word.text is not None else word.prefix).partition("=")
    is_alias = key.lower().startswith("alias.")
    if not is_alias and _SETTING.fullmatch(key) is None:
        return
    if word.text is None:
        yield _UNSURE
    elif is_alias and not value.startswith("!"):
        yield Argv((known("git"), *map(known, value.split()), UNKNOWN), is_sure=False)
    else:
        yield from _text(value.removeprefix("!"))


def _subcommand(name: str | None, arguments: Arguments) -> Iterator[Runs]:
    words = [word.text for word in arguments]
    if name == "rebase":
        for word in _values(arguments, "x", ("exec",)):
            yield from _text(word.text)
    elif name == "difftool":
        for word in _values(arguments, "x", ("extcmd",)):
            yield from _text(word.text)
    elif name == "filter-branch":
        for at, text in enumerate(words):
            if text is not None and text.endswith("-filter") and at + 1 < len(words):
                yield from _text(words[at + 1])
    elif name == "bisect" and words[:1] == ["run"]:
        yield Argv(tuple(arguments[1:])) if arguments[1:] else _UNSURE
    elif name == "submodule" and "foreach" in words:
        rest = words[words.index("foreach") + 1 :]
        while rest and rest[0] in ("--recursive", "--quiet", "-q", "--"):
            rest.pop(0)
        yield from _text(None if None in rest else " ".join(text or "" for text in rest))


CARRYING: dict[str, Callable[[Arguments], Iterator[Runs]]] = {
    "tar": _tar,
    "rsync": _rsync,
    "git": _git,
    "gdb": _debugger,
    **{name: _editor for name in ("vim", "vi", "nvim", "ex", "view", "gvim", "vimdiff")},
}
"""What these run, by their options."""
