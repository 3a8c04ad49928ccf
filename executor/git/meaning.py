"""Which of a user's configuration has a meaning in a box, and which attributes.

A key is taken if it changes what is committed, or what a person sees of it, and if no value of
it can name a program, a file or a credential. Everything else is left out, so that a key of a
coming git is left out too. Read against git-config(1) and gitattributes(5) of 2.39 to 2.47.
Colours and columns are left out: `always` would put escapes into what programs read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit, urlunsplit

Check = Callable[[str], bool]

_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0", ""})
_LONGEST = 1000


def _boolean(value: str) -> bool:
    return value.lower() in _BOOLEANS


def _number(value: str) -> bool:
    return re.fullmatch(r"[+-]?\d{1,15}[kmgKMG]?", value) is not None


def _words(*allowed: str) -> Check:
    return lambda value: value.lower() in allowed


def _either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _matches(pattern: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: len(value) <= _LONGEST and compiled.fullmatch(value) is not None


_LIST = _matches(r"[A-Za-z0-9=,. _-]*")
_NAME = _matches(r"[^\x00-\x20\x7f~^:?*\[\\-][^\x00-\x20\x7f~^:?*\[\\]*")
_ENCODING = _matches(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_ENCODINGS = _matches(r"[A-Za-z0-9][A-Za-z0-9._:, -]*")
_TEXT = _matches(r"[^\x00-\x08\x0a-\x1f\x7f]*")
# `%G…` has git run gpg.
_FORMAT = _matches(r"(?:(?!%[-+ ]?G)[^\x00-\x08\x0a-\x1f\x7f])*")
_REFSPEC = _matches(r"[+^]?[A-Za-z0-9][^\x00-\x20\x7f~^?\[\\:]*(?::[^\x00-\x20\x7f~^?\[\\:]*)?")
_SORT = _matches(r"-?[A-Za-z][A-Za-z0-9:=._-]*")

_MIXED = _either(_boolean, _number)
_RENAMES = _either(_boolean, _words("copies", "copy"))
_FORWARD = _either(_boolean, _words("only"))
_REBASE = _either(_boolean, _words("merges", "m", "interactive", "i"))
_WHITESPACE = _words("nowarn", "warn", "fix", "error", "error-all", "strip")
_IGNORED = _words("none", "untracked", "dirty", "all")

_BOOLEAN_KEYS = """
    core.fileMode core.ignoreCase core.precomposeUnicode core.symlinks core.quotePath
    core.trustctime core.protectNTFS core.protectHFS core.sparseCheckout core.sparseCheckoutCone
    core.ignoreStat core.warnAmbiguousRefs core.preloadIndex core.splitIndex
    index.sparse index.skipHash feature.manyFiles
    diff.noprefix diff.mnemonicPrefix diff.indentHeuristic diff.suppressBlankEmpty diff.relative
    diff.autoRefreshIndex
    merge.renormalize merge.stat merge.autoStash merge.branchdesc merge.defaultToUpstream
    rebase.autoSquash rebase.autoStash rebase.updateRefs rebase.stat rebase.abbreviateCommands
    rebase.rescheduleFailedExec rebase.forkPoint
    commit.status log.abbrevCommit log.follow log.showRoot log.mailmap
    status.short status.branch status.relativePaths status.showStash status.aheadBehind
    status.displayCommentPrefix
    stash.showPatch stash.showStat stash.showIncludeUntracked
    blame.blankBoundary blame.showRoot blame.showEmail blame.markIgnoredLines
    blame.markUnblamableLines
    grep.lineNumber grep.column grep.fullName grep.extendedRegexp
    am.keepcr am.threeWay checkout.guess clean.requireForce rerere.enabled rerere.autoUpdate
    push.autoSetupRemote
"""
_NUMBER_KEYS = """
    core.bigFileThreshold core.compression core.looseCompression index.version
    diff.context diff.interHunkContext diff.renameLimit diff.statGraphWidth
    merge.renameLimit merge.verbosity status.renameLimit
"""
_OTHER_KEYS: dict[str, Check] = {
    # ─ what is committed ─
    "core.autocrlf": _either(_boolean, _words("input")),
    "core.eol": _words("lf", "crlf", "native"),
    "core.safecrlf": _either(_boolean, _words("warn")),
    "core.checkStat": _words("default", "minimal"),
    "core.checkRoundtripEncoding": _ENCODINGS,
    "core.commentChar": _matches(r"[!-~]|auto"),
    "commit.cleanup": _words("strip", "whitespace", "verbatim", "scissors", "default"),
    "i18n.commitEncoding": _ENCODING,
    "apply.whitespace": _WHITESPACE,
    "apply.ignoreWhitespace": _words("no", "none", "never", "false", "change"),
    "merge.renames": _RENAMES,
    "merge.directoryRenames": _either(_boolean, _words("conflict")),
    "merge.conflictStyle": _words("merge", "diff3", "zdiff3"),
    "merge.ff": _FORWARD,
    "merge.log": _MIXED,
    "pull.rebase": _REBASE,
    "pull.ff": _FORWARD,
    "rebase.missingCommitsCheck": _words("ignore", "warn", "error"),
    "rebase.backend": _words("apply", "merge"),
    "init.defaultBranch": _NAME,
    "branch.autoSetupMerge": _either(_boolean, _words("always", "inherit", "simple")),
    "branch.autoSetupRebase": _words("always", "never", "local", "remote"),
    "push.default": _words("nothing", "current", "upstream", "tracking", "simple", "matching"),
    "remote.pushDefault": _NAME,
    "checkout.defaultRemote": _NAME,
    # ─ what is seen of it ─
    "core.abbrev": _either(_boolean, _number, _words("auto")),
    "core.whitespace": _LIST,
    "i18n.logOutputEncoding": _ENCODING,
    "diff.algorithm": _words("default", "myers", "minimal", "patience", "histogram"),
    "diff.renames": _RENAMES,
    "diff.colorMoved": _LIST,
    "diff.colorMovedWS": _LIST,
    "diff.dirstat": _LIST,
    "diff.wsErrorHighlight": _LIST,
    "diff.wordRegex": _TEXT,
    "diff.submodule": _words("short", "log", "diff"),
    "diff.ignoreSubmodules": _IGNORED,
    "diff.srcPrefix": _matches(r"[\w./-]*"),
    "diff.dstPrefix": _matches(r"[\w./-]*"),
    "log.date": _TEXT,
    "log.decorate": _either(_boolean, _words("short", "full", "auto")),
    "log.diffMerges": _LIST,
    "blame.date": _TEXT,
    "format.pretty": _FORMAT,
    "commit.verbose": _MIXED,
    "status.showUntrackedFiles": _either(_boolean, _words("no", "normal", "all")),
    "status.renames": _RENAMES,
    "status.submoduleSummary": _MIXED,
    "grep.patternType": _words("default", "basic", "extended", "fixed", "perl"),
    "branch.sort": _SORT,
    "tag.sort": _SORT,
    "versionsort.suffix": _matches(r"[A-Za-z0-9._+-]*"),
}
_PLAIN: dict[str, tuple[str, Check]] = {
    **{key.lower(): (key, _boolean) for key in _BOOLEAN_KEYS.split()},
    **{key.lower(): (key, _number) for key in _NUMBER_KEYS.split()},
    **{key.lower(): (key, check) for key, check in _OTHER_KEYS.items()},
}
# Section and last part of a key with a part of the user's choice between them.
_NAMED: dict[tuple[str, str], tuple[str, Check]] = {
    ("branch", "remote"): ("remote", _NAME),
    ("branch", "merge"): ("merge", _NAME),
    ("branch", "rebase"): ("rebase", _REBASE),
    ("branch", "pushremote"): ("pushRemote", _NAME),
    ("remote", "fetch"): ("fetch", _REFSPEC),
    ("diff", "binary"): ("binary", _boolean),
    ("diff", "xfuncname"): ("xfuncname", _TEXT),
    ("diff", "wordregex"): ("wordRegex", _TEXT),
    ("submodule", "ignore"): ("ignore", _IGNORED),
    ("submodule", "active"): ("active", _boolean),
}
_SCP = re.compile(
    r"(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9][A-Za-z0-9.-]*):([^/\x00-\x20:][^\x00-\x20]*)"
)
_SCHEMES = frozenset({"https", "http", "ssh", "git"})
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_ADDRESS_PATH = re.compile(r"[^\x00-\x20\x7f\\]*")


def settings(listed: Iterable[tuple[str, str | None]]) -> list[tuple[str, str]]:
    """Those settings that have a meaning in a box, in their order, in git's spelling.

    Args:
        listed: keys as `git config --list` has them, and values; None = a key without one,
            which git takes for true.
    """
    found = []
    for key, value in listed:
        taken = _setting(key, value)
        if taken is not None:
            found.append(taken)
    return found


def _setting(key: str, value: str | None) -> tuple[str, str] | None:
    text = "true" if value is None else value
    section, _, rest = key.partition(".")
    name, _, last = rest.rpartition(".")
    if not name:
        if section == "advice" and re.fullmatch(r"[A-Za-z]{1,64}", last):
            return (key, text) if _boolean(text) else None
        spelling, check = _PLAIN.get(key, ("", _never))
        return (spelling, text) if check(text) else None
    if not _is_name(name):
        return None
    if (section, last) == ("remote", "url"):
        address = public_address(text)
        return (f"remote.{name}.url", address) if address is not None else None
    spelling, check = _NAMED.get((section, last), ("", _never))
    return (f"{section}.{name}.{spelling}", text) if check(text) else None


def _never(_: str) -> bool:
    return False


def _is_name(name: str) -> bool:
    return len(name) <= _LONGEST and not re.search(r"[\x00-\x1f\x7f]", name)


def public_address(url: str) -> str | None:
    """The address of a remote without what could be a secret; None if none can be told.

    Kept are scheme, host, port and path, and the user of `ssh` if he is `git`. A path of this
    machine is none of the box's business.
    """
    match = _SCP.fullmatch(url)
    if match is not None and "://" not in url:
        user = "git@" if match[1] == "git" else ""
        return f"{user}{match[2]}:{match[3]}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if (
        parts.scheme not in _SCHEMES
        or not _HOST.fullmatch(host)
        or not _ADDRESS_PATH.fullmatch(parts.path)
    ):
        return None
    user = "git@" if parts.scheme == "ssh" and parts.username == "git" else ""
    place = f"{user}{host}" + (f":{port}" if port is not None else "")
    return urlunsplit((parts.scheme, place, parts.path, "", ""))


# ─── attributes ─────────────────────────────────────────────────────────────────────

_BUILT_IN = """
    ada bash bibtex cpp csharp css dts elixir fortran fountain golang html ini java kotlin
    markdown matlab objc pascal perl php python ruby rust scheme tex
"""
_DRIVERS = frozenset(_BUILT_IN.split())
_MERGES = frozenset({"text", "binary", "union"})
_ATTRIBUTE = re.compile(r"([-!]?)([A-Za-z0-9_.-]+)(?:=(\S*))?")
_CONTENT = frozenset(
    {"text", "crlf", "eol", "binary", "ident", "working-tree-encoding", "encoding"}
)
_SWITCHES = frozenset(
    {"text", "crlf", "binary", "ident", "diff", "merge", "whitespace", "delta"}
    | {"export-ignore", "export-subst", "working-tree-encoding", "eol"}
)
_VALUES: dict[str, Check] = {
    "text": _words("auto"),
    "crlf": _words("input"),
    "eol": _words("lf", "crlf"),
    "working-tree-encoding": _ENCODING,
    "encoding": _ENCODING,
    "diff": lambda value: value in _DRIVERS,
    "merge": lambda value: value in _MERGES,
    "whitespace": _LIST,
    "conflict-marker-size": _number,
}


def attributes(text: str, *, has_content: bool = True) -> str:
    """Lines of a file of attributes, with those words that name no driver of the user's.

    Args:
        text: of the file.
        has_content: take also what says how content is read and written.
    """
    lines = []
    for line in text.splitlines():
        pattern, words = _split(line.strip())
        kept = [word for word in words if _is_meant(word, has_content)]
        if pattern and kept:
            lines.append(f"{pattern} {' '.join(kept)}\n")
    return "".join(lines)


def _split(line: str) -> tuple[str, list[str]]:
    """Pattern and words; nothing of comments and macros."""
    if not line or line.startswith(("#", "[attr]")):
        return "", []
    match = re.match(r'"(?:[^"\\]|\\.)*"|\S+', line)
    return (match[0], line[match.end() :].split()) if match is not None else ("", [])


def _is_meant(word: str, has_content: bool) -> bool:
    match = _ATTRIBUTE.fullmatch(word)
    if match is None:
        return False
    sign, name, value = match.groups()
    if name.startswith("linguist-"):
        return True
    if name in _CONTENT and not has_content:
        return False
    if value is None:
        return name in _SWITCHES or (name == "filter" and bool(sign))
    return not sign and name in _VALUES and _VALUES[name](value)
