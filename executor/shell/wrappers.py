"""Programs that run others: which command of their arguments is the inner one."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from executor.shell.carried import CARRYING
from executor.shell.effects import Argv, Runs, Text
from executor.shell.options import Options, options, parse
from executor.shell.programs import FIND_RUNS, find_starts
from executor.shell.values import UNKNOWN, Word, is_own_variable

Arguments = Sequence[Word]

UNSURE = Argv((UNKNOWN,))
"""Something is run of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a wrapper runs.

    Attributes:
        runs: commands and texts; UNSURE among them where more may be.
        is_harmless: the wrapper changes nothing by itself.
        directory: where it runs them.
    """

    runs: tuple[Runs, ...]
    is_harmless: bool = False


Wrapper = Callable[[Arguments], Found | None]
"""Given the arguments: what is run; None = it is no wrapper with these."""


def _prefix(table: Options, skipped: int = 0, *, harmless: bool = False) -> Wrapper:
    """Options, then so many operands of its own, then the command."""

    def wrapper(arguments: Arguments) -> Found | None:
        parsed = parse(table, arguments, stops=True)
        inner = tuple(arguments[parsed.rest + skipped :])
        own = arguments[: parsed.rest + skipped]
        is_sure = parsed.is_known and parsed.is_certain and not any(word.splits for word in own)
        runs: list[Runs] = []
        if inner:
            runs.append(Argv(inner, is_sure=is_sure))
            rest = _behind_assignments(inner)
            if rest != inner:
                # So does `sudo`, and `time` where it is the shell's own word.
                is_sure = False
                runs += [Argv(rest, is_sure=False)] if rest else []
        elif is_sure:
            return Found((), harmless)
        if not is_sure:
            # An option that is not known may take the next word, or be one that runs.
            runs += [
                Argv(tuple(arguments[at:]), is_sure=False) for at in _later(arguments, len(inner))
            ]
            runs.append(UNSURE)
        return Found(tuple(runs), harmless and is_sure)

    return wrapper


def _behind_assignments(words: tuple[Word, ...]) -> tuple[Word, ...]:
    at = 0
    while at < len(words) and _ASSIGNED.match(words[at].prefix):
        at += 1
    return words[at:]


def _later(arguments: Arguments, inner: int) -> list[int]:
    """Where else the inner command may begin, within reason."""
    first = len(arguments) - inner
    places = [at for at in range(1, min(len(arguments), first + 4)) if at != first]
    return places if len(places) <= 16 else [*places[:8], *places[-8:]]


_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=", re.ASCII)


def _env(arguments: Arguments) -> Found | None:
    table = options("i0v", "uC", "ignore-environment null debug", "unset chdir")
    parsed = parse(table, arguments, stops=True)
    at = parsed.rest
    if at < len(arguments) and arguments[at].text == "-":
        at += 1  # an old way to write -i
    altered: list[str] = []
    while at < len(arguments) and "=" in arguments[at].prefix:
        # env takes any name, one with a dash or a blank, too
        altered.append(arguments[at].prefix.partition("=")[0])
        at += 1
    inner = tuple(arguments[at:])
    own = arguments[:at]
    is_sure = parsed.is_known and parsed.is_certain and not any(word.splits for word in own)
    if not all(map(is_own_variable, altered)):
        is_sure = False
    if not arguments:
        return None
    chosen = parsed.given(frozenset(("C", "chdir")))
    directory = chosen[-1] if chosen else None
    runs: list[Runs] = [Argv(inner, directory, is_sure)] if inner else []
    if inner and inner[0].text is None:
        # It may be one more variable.
        is_sure = False
        runs += [Argv(inner[1:], directory, False)] if inner[1:] else []
    if not is_sure:
        runs.append(UNSURE)
    # Variables may change what the inner program does: `env LD_PRELOAD=./x ls`.
    return Found(tuple(runs), is_sure and not altered)


_SETTINGS = frozenset(("pipefail", "errexit", "nounset", "noglob"))


def _shell(*, posix: bool, is_known: bool = True) -> Wrapper:
    def wrapper(arguments: Arguments) -> Found | None:
        """`sh -c TEXT`; None = it reads its standard input."""
        letters, at, is_sure = _shell_options(arguments)
        is_sure = is_sure and is_known
        if "c" in letters and at < len(arguments):
            run = Text(arguments[at].text, posix)
            # A login shell reads profiles first, which are the image's or the loop's own.
            return Found((run,) if is_sure else (run, UNSURE), is_sure and "l" not in letters)
        if is_sure and (at >= len(arguments) or "s" in letters):
            return None
        return Found((UNSURE,))

    return wrapper


def _shell_options(arguments: Arguments) -> tuple[str, int, bool]:
    """Letters of a shell's options, where its operands begin, and whether all is known."""
    letters = ""
    at = 0
    while at < len(arguments):
        text = arguments[at].text
        if text is None:
            return letters, at, not arguments[at].may_be_option and not arguments[at].splits
        if text in ("--", "-"):
            return letters, at + 1, True
        if text[:1] not in ("-", "+"):
            return letters, at, True
        if text in ("--norc", "--noprofile", "--posix"):
            at += 1
            continue
        if not re.fullmatch(r"-[acefhlnuvxCs]*o?|\+[efuxv]+", text):
            return letters + ("c" if "c" in text else ""), at + 1, False
        letters += text[1:] if text[0] == "-" else ""
        if text.endswith("o"):
            at += 1
            if at >= len(arguments) or arguments[at].text not in _SETTINGS:
                return letters, at, False
        at += 1
    return letters, at, True


def _text_after(table: Options) -> Wrapper:
    """A program whose operands, joined, are given to a shell."""

    def wrapper(arguments: Arguments) -> Found | None:
        parsed = parse(table, arguments, stops=True)
        words = [word.text for word in arguments[parsed.rest :]]
        if not words:
            return Found((), False)
        text = None if None in words else " ".join(word or "" for word in words)
        sure = parsed.is_known and parsed.is_certain
        return Found((Text(text, True),) if sure else (Text(text, True), UNSURE))

    return wrapper


def _option_text(names: str, table: Options) -> Wrapper:
    """A program that gives the argument of `-c` to a shell, or runs its operands."""

    def wrapper(arguments: Arguments) -> Found | None:
        parsed = parse(table, arguments)
        texts = parsed.given(frozenset(names.split()))
        return Found((*(Text(word.text, True) for word in texts), UNSURE))

    return wrapper


def _flock(arguments: Arguments) -> Found | None:
    table = options(
        "sexnuFov",
        "wEc",
        "shared exclusive nonblock unlock close no-fork verbose",
        "timeout conflict-exit-code command",
    )
    parsed = parse(table, arguments, stops=True)
    inner = tuple(arguments[parsed.rest + 1 :])
    if inner[:1] and inner[0].text in ("-c", "--command"):
        return Found((Text(inner[1].text if len(inner) == 2 else None, True),))
    return Found((Argv(inner), UNSURE) if inner else ())


def _xargs(arguments: Arguments) -> Found | None:
    table = options(
        "0rtpxo",
        "InLPsdE",
        "null no-run-if-empty verbose interactive exit open-tty",
        "max-args max-lines max-procs max-chars delimiter eof replace",
    )
    parsed = parse(table, arguments, stops=True)
    inner = tuple(arguments[parsed.rest :])
    own = arguments[: parsed.rest]
    is_sure = parsed.is_known and parsed.is_certain and not any(word.splits for word in own)
    if not inner:
        return Found((UNSURE,) if not is_sure else (), is_sure)
    replaced = parsed.given(frozenset(("I", "replace")))
    if replaced:
        mark = replaced[-1].text or ""
        inner = tuple(_replaced(word, mark) for word in inner)
    else:
        inner = (*inner, UNKNOWN)
    runs: tuple[Runs, ...] = (Argv(inner, is_sure=is_sure),)
    return Found(runs if is_sure else (*runs, UNSURE), is_sure)


def _replaced(word: Word, mark: str) -> Word:
    """A word in which `mark` will be replaced by something of one word."""
    if not mark or (word.text is not None and mark not in word.text):
        return word
    text = word.text if word.text is not None else word.prefix
    return Word(None, text.partition(mark)[0], word.splits)


def _find(arguments: Arguments) -> Found | None:
    starts, at = find_starts(arguments)
    sought = _sought(arguments)
    runs: list[Runs] = []
    while at < len(arguments):
        if arguments[at].text in FIND_RUNS:
            first = at + 1
            while at < len(arguments) and arguments[at].text != ";" and not _ends(arguments, at):
                at += 1
            in_place = arguments[first - 1].text in ("-execdir", "-okdir")
            inner = tuple(_found(word, starts, in_place, sought) for word in arguments[first:at])
            if not inner or any(word.splits for word in inner):
                runs.append(UNSURE)
            runs.append(Argv(inner, Word(None) if in_place else None) if inner else UNSURE)
        elif arguments[at].text is None and (arguments[at].splits or not arguments[at].prefix):
            runs.append(UNSURE)  # it may be -exec
        at += 1
    return Found(tuple(runs), True) if runs else None


def _ends(arguments: Arguments, at: int) -> bool:
    return arguments[at].text == "+" and arguments[at - 1].text == "{}"


def _sought(arguments: Arguments) -> str:
    """The pattern that names have that are found; `` = there is none, or not one alone."""
    texts = [word.text for word in arguments]
    is_one = texts.count("-name") == 1 and not {"!", "-not", "-o", "-or", ",", None} & set(texts)
    return texts[texts.index("-name", 0, -1) + 1] or "" if is_one and texts[-1] != "-name" else ""


def _found(word: Word, starts: Sequence[Word], in_place: bool, sought: str) -> Word:
    """A word of `-exec` in which `{}` will be a file that was found."""
    if word.text is None or "{}" not in word.text:
        return word
    before = word.text.partition("{}")[0]
    if word.text != "{}" or in_place or len(starts) != 1 or starts[0].text is None:
        glob = starts[0].glob if len(starts) == 1 and word.text == "{}" else None
        return Word(None, before or ("./" if in_place else ""), glob=glob)
    start = starts[0].text
    return Word(None, start, False, start, glob=f"{start}/**/{sought}" if sought else None)


def _parallel(arguments: Arguments) -> Found | None:
    # What it reads are arguments, or commands if it is given none.
    found = _text_after(_ANY_OPTIONS)(arguments)
    runs = found.runs if found is not None else ()
    return Found(runs if UNSURE in runs else (*runs, UNSURE))


def _carrying(run: Callable[[Arguments], Iterable[Runs]]) -> Wrapper:
    def wrapper(arguments: Arguments) -> Found | None:
        runs = tuple(run(arguments))
        return Found(runs) if runs else None

    return wrapper


def _busybox(arguments: Arguments) -> Found | None:
    return Found((Argv(tuple(arguments)),), True) if arguments else Found((), True)


def _command(arguments: Arguments) -> Found | None:
    if arguments and re.fullmatch(r"-p?[vV]p?", arguments[0].text or ""):
        return Found((), True)
    return _prefix(options("p"), harmless=True)(arguments)


_ANY_OPTIONS = options("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")

WRAPPERS: dict[str, Wrapper] = {
    "env": _env,
    "timeout": _prefix(
        options("v", "ks", "foreground preserve-status verbose", "kill-after signal"),
        1,
        harmless=True,
    ),
    "nice": _prefix(options("", "n", "", "adjustment", numbers=True), harmless=True),
    "ionice": _prefix(options("t", "cn", "ignore", "class classdata"), harmless=True),
    "chrt": _prefix(options("abfiorv"), 1),
    "taskset": _prefix(options("c", "", "cpu-list"), 1),
    "nohup": _prefix(options()),
    "stdbuf": _prefix(options("", "ioe", "", "input output error"), harmless=True),
    "setsid": _prefix(options("cfw", "", "ctty fork wait")),
    "time": _prefix(options("pv", "f", "portability verbose", "format"), harmless=True),
    "exec": _prefix(options("cl", "a")),
    "builtin": _prefix(options(), harmless=True),
    "command": _command,
    "sudo": _prefix(
        options(
            "AbEHnPSkKis",
            "ugpCrtT",
            "preserve-env non-interactive set-home stdin login",
            "user group",
        )
    ),
    "doas": _prefix(options("nLs", "uC")),
    "chroot": _prefix(options("", "", "skip-chdir", "userspec groups"), 1),
    "unshare": _prefix(options("muinpUrfCT", "SG")),
    "nsenter": _prefix(options("aFZ", "tSG")),
    "setpriv": _prefix(options("", "", "no-new-privs reset-env", "reuid regid groups")),
    "runuser": _option_text("c command", options("lpm", "cugGsw", "", "command user group shell")),
    "su": _option_text("c command", options("lpmf", "cgGsw", "", "command group shell")),
    "script": _option_text("c command", options("aefqt", "cEIOBmoT", "", "command")),
    "strace": _prefix(options("cCdfFhiknqrtTvwxyYzZ", "abeEIoOpPsSuX")),
    "ltrace": _prefix(options("bcCfhiLrStTV", "aAeloFnpPsux")),
    "catchsegv": _prefix(options()),
    "unbuffer": _prefix(options("p")),
    "caffeinate": _prefix(_ANY_OPTIONS),
    "proot": _prefix(_ANY_OPTIONS),
    "fakeroot": _prefix(options("hv", "lsib")),
    "xvfb-run": _prefix(options("alh", "efnpsw")),
    "parallel": _parallel,
    "watch": _text_after(options("bcdegtwxp", "nq")),
    "flock": _flock,
    "busybox": _busybox,
    "toybox": _busybox,
    "xargs": _xargs,
    "find": _find,
    "bash": _shell(posix=False),
    "sh": _shell(posix=True),
    "dash": _shell(posix=True),
    "ash": _shell(posix=True),
    "rbash": _shell(posix=False),
    **{name: _shell(posix=True, is_known=False) for name in ("zsh", "ksh", "mksh", "fish")},
    **{name: _carrying(run) for name, run in CARRYING.items()},
}
"""Programs that run what their arguments say."""

ALSO = frozenset(("find", *CARRYING))
"""Those that do something else besides."""
WRITING = frozenset(("flock", "strace", "ltrace", "script", "parallel", "fakeroot", "proot"))
"""Those that write files of their own."""

SHELLS = frozenset(("bash", "sh", "dash", "ash", "rbash", "zsh", "ksh", "mksh", "fish"))
"""Those that run what they read from their standard input."""


def wrapper_of(name: str) -> Wrapper | None:
    """The wrapper of this name; versions such as `bash-5.2` or `xargs.exe` are not known."""
    return WRAPPERS.get(posixpath.basename(name))
