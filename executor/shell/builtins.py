"""Builtins of the shell: what they do to the shell itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from executor.shell.effects import Text
from executor.shell.programs import may_evaluate
from executor.shell.values import NotUnderstood, Word

Arguments = Sequence[Word]


@dataclass(frozen=True, slots=True)
class Changes:
    """What a builtin does.

    Attributes:
        is_read_only: nothing outlasts the shell, and nothing unknown is run.
        is_known: it writes no file.
        reads: operands that it reads; None = anything.
        moves: the shell's directory changes.
        target: to this one; None = not known.
        ends: the shell ends.
        texts: what it runs as a text of the shell.
        is_later: not now, but whenever something happens.
        doubtful: variables that it gives values that can't be known.
        names: variables that it gives a value, or takes away.
        exports: variables that it hands to programs.
        taints: it may change any variable.
    """

    is_read_only: bool = False
    is_known: bool = True
    reads: tuple[Word, ...] | None = ()
    moves: bool = False
    target: Word | None = None
    ends: bool = False
    texts: tuple[Text, ...] = ()
    is_later: bool = False
    doubtful: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    exports: frozenset[str] = frozenset()
    taints: bool = False


def _cd(arguments: Arguments, posix: bool) -> Changes:
    words = list(arguments)
    is_physical = False
    while words and words[0].text in ("-L", "-P", "-e", "--"):
        is_physical = is_physical or words[0].text == "-P"
        words.pop(0)
    # -P: where a link leads is not known, so nor is where its `..` does.
    is_plain = len(words) == 1 and not words[0].splits and not is_physical
    target = words[0] if is_plain else None
    if not words:
        return Changes(True, moves=True)
    return Changes(True, moves=True, target=target)


def _stack(arguments: Arguments, posix: bool) -> Changes:
    return Changes(True, moves=True)


def _exit(arguments: Arguments, posix: bool) -> Changes:
    ends = not arguments or (len(arguments) == 1 and re.fullmatch(r"\d+", arguments[0].text or ""))
    return Changes(True, ends=bool(ends))


def _eval(arguments: Arguments, posix: bool) -> Changes:
    texts = [word.text for word in arguments]
    if texts[:1] == ["--"]:
        del texts[0]
    if not texts:
        return Changes(True)
    text = None if None in texts else " ".join(text or "" for text in texts)
    return Changes(text is not None, texts=(Text(text, posix, here=True),), taints=text is None)


def _source(arguments: Arguments, posix: bool) -> Changes:
    unknown = Text(None, posix, here=True)
    return Changes(False, False, None, moves=True, texts=(unknown,), taints=True)


def _trap(arguments: Arguments, posix: bool) -> Changes:
    words = arguments[1:] if arguments and arguments[0].text == "--" else arguments
    if not words or words[0].text in ("-", "", "-l", "-p"):
        return Changes(True)
    text = words[0].text
    return Changes(text is not None, texts=(Text(text, posix, here=True),), is_later=True)


def _alias(arguments: Arguments, posix: bool) -> Changes:
    if any(word.text is None or "=" in word.text for word in arguments):
        raise NotUnderstood("an alias is defined, by which any word may become another")
    return Changes(True)


_SET = re.compile(r"[-+][eufx]+|[-+][euf]*o")
_SET_NAMES = ("pipefail", "errexit", "nounset", "noglob", "xtrace")
_SHOPT_NAMES = ("nullglob", "globstar", "failglob", "inherit_errexit")
"""Not dotglob and nocaseglob, by which `*` names more than rules on paths take it to."""


def _set(arguments: Arguments, posix: bool) -> Changes:
    at = 0
    while at < len(arguments):
        text = arguments[at].text
        if text is None or not _SET.fullmatch(text):
            if text == "--":
                return Changes(True)
            if text is None or text[:1] in ("-", "+"):
                raise NotUnderstood("set changes how the shell reads")
            return Changes(True)
        if text.endswith("o"):
            at += 1
            if at < len(arguments) and arguments[at].text not in _SET_NAMES:
                raise NotUnderstood("set changes how the shell reads")
        at += 1
    return Changes(True)


def _shopt(arguments: Arguments, posix: bool) -> Changes:
    for word in arguments:
        if word.text not in ("-s", "-u", "-q", "-p", *_SHOPT_NAMES):
            raise NotUnderstood("shopt changes how the shell reads")
    return Changes(True)


def _subscripts(arguments: Arguments) -> None:
    """Names with a subscript: the shell evaluates it, which may run commands.

    Raises:
        NotUnderstood: there is one, or there may be.
    """
    for word in arguments:
        if word.text is None and "=" not in word.prefix:
            raise NotUnderstood("a variable is named by a text that can't be known")
        name = (word.text if word.text is not None else word.prefix).partition("=")[0]
        if "[" in name:
            raise NotUnderstood("a variable is named with a subscript")


def _variables(arguments: Arguments, posix: bool) -> Changes:
    """`declare` and the like."""
    _subscripts(arguments)
    options = [word.text or "" for word in arguments if word.prefix.startswith("-")]
    if any("i" in option or "n" in option for option in options):
        raise NotUnderstood("a variable that stands for another or is evaluated")
    given = [word for word in arguments if "=" in word.prefix]
    # What is written without quotes was looked at as an assignment; `"x=y"` is one, too.
    return Changes(
        not any("f" in option for option in options),
        doubtful=_names(word for word in given if not _is_numeric(word)),
        names=_names(given),
        exports=_names(arguments) if any("x" in option for option in options) else frozenset(),
    )


def _export(arguments: Arguments, posix: bool) -> Changes:
    return replace(_variables(arguments, posix), exports=_names(arguments))


def _names(words: Iterable[Word]) -> frozenset[str]:
    """Names of variables before a `=`, or alone; options are none."""
    texts = (word.text if word.text is not None else word.prefix for word in words)
    return frozenset(
        text.partition("=")[0].removesuffix("+") for text in texts if text[:1] not in ("-", "+")
    )


def _is_numeric(word: Word) -> bool:
    value = (word.text or "").partition("=")[2]
    return word.is_number or (word.text is not None and re.fullmatch(r"-?\d*", value) is not None)


def _unset(arguments: Arguments, posix: bool) -> Changes:
    _subscripts(arguments)
    return Changes(True, names=_names(arguments))


def _read(arguments: Arguments, posix: bool) -> Changes:
    _subscripts(arguments)
    names = _names(arguments)
    for word in arguments:
        array = re.match(r"-[a-zA-Z]*?a(.+)", word.text or word.prefix)
        names |= {array[1]} if array is not None else set()
    edits = any(re.match(r"-\w*e", word.prefix) for word in arguments)
    return Changes(not edits, doubtful=names | {"REPLY"})


def _mapfile(arguments: Arguments, posix: bool) -> Changes:
    _subscripts(arguments)
    texts = [
        Text(following.text, posix, here=True)
        for word, following in pairwise(arguments)
        if (word.text or "").startswith("-C")
    ]
    if any(re.match(r"-\w*C.", word.text or "") for word in arguments):
        raise NotUnderstood("mapfile runs a text")
    names = _names(arguments) | {"MAPFILE"}
    return Changes(False, texts=tuple(texts), is_later=True, doubtful=names)


def _getopts(arguments: Arguments, posix: bool) -> Changes:
    _subscripts(arguments[1:2])
    names = frozenset(word.text or "" for word in arguments[1:2])
    return Changes(True, doubtful=names | {"OPTARG"})


def _printf(arguments: Arguments, posix: bool) -> Changes | None:
    first = arguments[0] if arguments else None
    if first is None or not first.may_be_option or first.text in ("--", "-"):
        return None
    if first.text is None and not first.prefix and not first.splits and first.under is None:
        return None if len(arguments) == 1 else _unclear()
    if first.text == "-v" and len(arguments) > 1:
        _subscripts(arguments[1:2])
        return Changes(False, doubtful=frozenset((arguments[1].text or "",)))
    return _unclear() if first.text is None or first.text.startswith("-v") else None


def _unclear() -> Changes:
    raise NotUnderstood("printf may set a variable whose name can't be known")


def _let(arguments: Arguments, posix: bool) -> Changes:
    raise NotUnderstood("let evaluates a text; write (( ))")


def _test(arguments: Arguments, posix: bool) -> Changes | None:
    if may_evaluate(arguments):
        raise NotUnderstood("a test that may be of a variable's subscript")
    return None


def _enable(arguments: Arguments, posix: bool) -> Changes:
    return Changes(False, False, None)


def _plain(arguments: Arguments, posix: bool) -> Changes:
    return Changes(True)


def _wait(arguments: Arguments, posix: bool) -> Changes:
    # -p names a variable.
    if any((word.text or "").startswith("-") and "p" in (word.text or "") for word in arguments):
        _subscripts(arguments)
    if any(word.text is None and not word.is_number for word in arguments):
        raise NotUnderstood("wait may set a variable whose name can't be known")
    return Changes(True, names=_names(word for word in arguments if word.text is not None))


def _jobs(arguments: Arguments, posix: bool) -> Changes:
    if any(word.text is None or "x" in word.text for word in arguments):
        raise NotUnderstood("jobs -x runs a command")
    return Changes(True)


def _unknown(arguments: Arguments, posix: bool) -> Changes:
    raise NotUnderstood("a builtin that changes how commands are found")


Builtin = Callable[[Arguments, bool], Changes | None]

BUILTINS: dict[str, Builtin] = {
    "cd": _cd,
    "pushd": _stack,
    "popd": _stack,
    "exit": _exit,
    "eval": _eval,
    "source": _source,
    ".": _source,
    "trap": _trap,
    "alias": _alias,
    "set": _set,
    "shopt": _shopt,
    "unset": _unset,
    "read": _read,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "getopts": _getopts,
    "printf": _printf,
    "let": _let,
    "test": _test,
    "[": _test,
    "enable": _enable,
    "hash": _unknown,
    "complete": _unknown,
    "compgen": _unknown,
    "compopt": _unknown,
    "bind": _enable,
    "fc": _unknown,
    "history": _enable,
    "export": _export,
    **{name: _variables for name in ("declare", "typeset", "local", "readonly")},
    **{name: _plain for name in ("return", "break", "continue", "shift")},
    "wait": _wait,
    "jobs": _jobs,
}
"""Builtins that are more than a program. None = it is like one, after all."""
