"""`git`: which of its commands only read.

What a repository's own configuration makes git run (a pager, a monitor, a filter) is not
judged: it is in the box, and the box is the wall. Options that name a program or a file are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from executor.model import MOUNT
from executor.shell.effects import ANYTHING, Effect
from executor.shell.options import Options, Parsed, options, parse
from executor.shell.values import Word, known

_GLOBAL = frozenset(("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"))
"""Not -C, -c, --git-dir, --exec-path and the like: another repository, other settings."""

_DIFF_FLAGS = "pusRaWbwzMCDBt"
_DIFF_LONG = (
    "patch no-patch raw patch-with-raw patch-with-stat stat numstat shortstat dirstat cumulative "
    "summary name-only name-status submodule color no-color color-moved no-color-moved "
    "color-moved-ws word-diff word-diff-regex color-words no-renames find-renames find-copies "
    "find-copies-harder rename-empty no-rename-empty check full-index binary abbrev "
    "break-rewrites irreversible-delete diff-filter pickaxe-all pickaxe-regex text "
    "ignore-cr-at-eol ignore-space-at-eol ignore-space-change ignore-all-space ignore-blank-lines "
    "ignore-matching-lines inter-hunk-context function-context exit-code quiet no-ext-diff "
    "no-textconv ignore-submodules no-prefix default-prefix relative no-relative minimal patience "
    "histogram indent-heuristic no-indent-heuristic unified compact-summary "
    "ita-invisible-in-index line-prefix src-prefix dst-prefix diff-algorithm anchored skip-to "
    "rotate-to output-indicator-new output-indicator-old output-indicator-context stat-width "
    "stat-name-width stat-count ws-error-highlight"
)
"""Not --output and --ext-diff."""
_DIFF_VALUED = "diff-algorithm anchored src-prefix dst-prefix line-prefix inter-hunk-context"

_LOG_LONG = (
    _DIFF_LONG + " follow decorate no-decorate decorate-refs decorate-refs-exclude source mailmap "
    "no-mailmap use-mailmap log-size oneline pretty format abbrev-commit no-abbrev-commit "
    "encoding expand-tabs no-expand-tabs notes no-notes show-notes show-signature relative-date "
    "date parents children left-right graph no-graph show-linear-break max-count skip since after "
    "until before author committer grep-reflog grep all-match invert-grep regexp-ignore-case "
    "basic-regexp extended-regexp fixed-strings perl-regexp remove-empty merges no-merges "
    "min-parents max-parents no-min-parents no-max-parents first-parent exclude-first-parent-only "
    "not all branches tags remotes glob exclude reflog ignore-missing bisect cherry-mark "
    "cherry-pick left-only right-only cherry walk-reflogs merge boundary simplify-by-decoration "
    "show-pulls full-history dense sparse simplify-merges ancestry-path date-order "
    "author-date-order topo-order reverse objects no-walk do-walk count timestamp cc "
    "combined-all-paths diff-merges no-diff-merges remerge-diff clear-decorations"
)
_LOG_VALUED = (
    _DIFF_VALUED
    + " max-count skip since after until before author committer grep grep-reflog date "
    "encoding glob exclude "
)


@dataclass(frozen=True, slots=True)
class _Command:
    """One command of git that reads.

    Attributes:
        options: known.
        shows_contents: contents of files are seen, not only names and states.
        condition: what else has to hold.
    """

    options: Options
    shows_contents: bool = False
    condition: Callable[[Parsed], bool] | None = None


_LISTING = ("l", "list", "contains", "no-contains", "merged", "no-merged", "points-at")


def _lists_only(*names: str) -> Callable[[Parsed], bool]:
    def condition(parsed: Parsed) -> bool:
        """Operands make something new, unless one of these options is given."""
        return not parsed.operands or parsed.has(*names)

    return condition


def _first_is(*words: str) -> Callable[[Parsed], bool]:
    def condition(parsed: Parsed) -> bool:
        return bool(parsed.operands) and parsed.operands[0].text in words

    return condition


_LOG = options(_DIFF_FLAGS + "icEFPgmvl", "nSGLUX", _LOG_LONG, _LOG_VALUED, numbers=True)
_DIFF = options(
    _DIFF_FLAGS,
    "SGUlX",
    _DIFF_LONG + " cached staged merge-base base ours theirs no-index",
    _DIFF_VALUED,
    numbers=True,
)

_COMMANDS: dict[str, _Command] = {
    "status": _Command(
        options(
            "sbvzunolarm",
            "",
            "short branch show-stash porcelain long verbose untracked-files ignore-submodules "
            "ignored column no-column ahead-behind no-ahead-behind renames no-renames "
            "find-renames null",
        )
    ),
    "log": _Command(_LOG, True),
    "show": _Command(_LOG, True),
    "shortlog": _Command(
        options("nsec", "", _LOG_LONG + " numbered summary email group", _LOG_VALUED)
    ),
    "rev-list": _Command(options("", "n", _LOG_LONG, _LOG_VALUED, numbers=True)),
    "diff": _Command(_DIFF, True),
    "branch": _Command(
        options(
            "arlvqi",
            "",
            "all remotes list verbose show-current no-color color column no-column ignore-case "
            "abbrev no-abbrev contains no-contains merged no-merged points-at sort format "
            "omit-empty",
            "sort format points-at",
        ),
        False,
        _lists_only(*_LISTING),
    ),
    "tag": _Command(
        options(
            "ln",
            "",
            (
                "list sort format column no-column contains no-contains merged no-merged "
                "points-at ignore-case"
            ),
            "sort format points-at",
        ),
        False,
        _lists_only(*_LISTING),
    ),
    "remote": _Command(options("v", "", "verbose"), False, lambda parsed: not parsed.operands),
    "stash": _Command(options(), False, _first_is("list")),
    "worktree": _Command(options("v", "", "porcelain verbose"), False, _first_is("list")),
    "rev-parse": _Command(
        options(
            "q",
            "",
            "show-toplevel abbrev-ref short verify quiet symbolic symbolic-full-name git-dir "
            "is-inside-work-tree is-inside-git-dir is-bare-repository show-prefix show-cdup all "
            "branches tags remotes absolute-git-dir git-common-dir",
        )
    ),
    "ls-files": _Command(
        options(
            "cdmoiskutvfz",
            "x",
            "cached deleted modified others ignored stage unmerged killed directory eol full-name "
            "exclude-standard error-unmatch deduplicate abbrev no-empty-directory",
            "exclude",
        )
    ),
    "ls-tree": _Command(
        options("drtlz", "", ("name-only name-status long full-name full-tree abbrev object-only"))
    ),
    "blame": _Command(
        options(
            "bcltfnpswe",
            "L",
            (
                "root show-stats porcelain line-porcelain color-lines color-by-age date show-name "
                "show-number show-email"
            ),
        ),
        True,
    ),
    "grep": _Command(
        options(
            "vwiEGPFnlLcohHqazWpr",
            "eABCm",
            "cached untracked no-index text ignore-case word-regexp invert-match full-name "
            "extended-regexp basic-regexp perl-regexp fixed-strings line-number column "
            "files-with-matches name-only files-without-match null only-matching count color "
            "no-color break heading show-function function-context and or not all-match quiet "
            "recursive no-recursive",
            "max-depth threads after-context before-context context max-count",
            numbers=True,
        ),
        True,
    ),
    "describe": _Command(
        options(
            "",
            "",
            (
                "tags all long always contains dirty broken exact-match first-parent abbrev "
                "candidates match exclude"
            ),
            "match exclude",
        )
    ),
    "merge-base": _Command(options("a", "", "all octopus independent is-ancestor fork-point")),
    "show-ref": _Command(
        options("dq", "", ("heads tags branches head dereference hash abbrev verify quiet"))
    ),
    "for-each-ref": _Command(
        options(
            "",
            "",
            ("count sort format points-at merged no-merged contains no-contains ignore-case"),
            "count sort format",
        )
    ),
    "cat-file": _Command(options("tsep"), True),
    "version": _Command(options()),
}


def effect(arguments: Sequence[Word], directories: frozenset[str] | None) -> Effect:
    """What `git` does with these arguments.

    Args:
        arguments: without `git`.
        directories: where it may be run; the repository may begin above.
    """
    at = 0
    while at < len(arguments) and arguments[at].text in _GLOBAL:
        at += 1
    if at >= len(arguments):
        return ANYTHING
    if arguments[at].text == "--version":
        return Effect(is_read_only=True)
    command = _COMMANDS.get(arguments[at].text or "")
    if command is None:
        return ANYTHING
    parsed = parse(command.options, arguments[at + 1 :])
    if not (parsed.is_known and parsed.is_certain):
        return ANYTHING
    if command.condition is not None and not command.condition(parsed):
        return ANYTHING
    if any(
        word.prefix.startswith("/") or ".." in word.prefix.split("/") for word in parsed.operands
    ):
        return Effect(None, (), (), True)
    inside = directories is not None and all(
        directory == MOUNT or directory.startswith(MOUNT + "/") for directory in directories
    )
    if not inside:
        return Effect(None, (), (), True)
    repository = (known(MOUNT),)
    if not command.shows_contents:
        return Effect(repository, repository, (), True)
    return Effect((*repository, *_named(parsed.operands)), (), (), True)


def _named(operands: Sequence[Word]) -> list[Word]:
    """Files that operands may name, in `commit:path` too."""
    found: list[Word] = []
    for word in operands:
        _, mark, path = (word.text or "").partition(":")
        if mark and path:
            found += [known(path), known(f"{MOUNT}/{path}")]
        elif word.text is not None or word.glob is not None:
            found.append(word)
    return found
