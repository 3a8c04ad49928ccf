"""Commits that are made in the box: by git there, on what the loop has in its worktree.

Nothing of it runs on the host. What the box answers is hostile text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from executor.errors import Code, ToolError
from executor.git.values import Box
from executor.text import one_line, visible

TIMEOUT = 120.0
"""Seconds that a commit may take in all: hooks may run tests."""
GRACE = 2.0
"""Seconds between TERM and KILL: git takes its locks away on TERM."""
MAX_MESSAGE = 64 << 10
"""Bytes of UTF-8; the kernel takes 128 KiB in one argument."""
MOST = 256 << 10
"""Bytes that are taken of the list of files, and of what git said."""
MAX_FILES = 1000
SUBJECT = 72
"""Characters of a message's first line."""

_LINES = 50
_LINE = 200
_OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = re.compile(r"refs/heads/[^\x00-\x20\x7f~^:?*\[\\]{1,1000}")

_NOTHING, _UNMERGED, _BUSY, _LOCKED, _NO_REPOSITORY, _NESTED, _NO_GIT = range(70, 77)

_SCRIPT = r"""
inside=$1 message=$2 what=$3 hooks=$4
shift 4
unset GIT_INDEX_FILE GIT_LITERAL_PATHSPECS GIT_GLOB_PATHSPECS GIT_NOGLOB_PATHSPECS
unset GIT_ICASE_PATHSPECS GIT_DIR GIT_WORK_TREE
export LC_ALL=C GIT_EDITOR=: GIT_TERMINAL_PROMPT=0
if [ -n "$inside" ]; then export GIT_DIR="$inside" GIT_WORK_TREE="$PWD"; fi
top=$PWD tab=$(printf '\t') only=
command -v git >/dev/null || exit 76
directory=$(git rev-parse --absolute-git-dir) || exit 74

# A lock is waited for; it is removed only when no git is running here.
running() {
    for one in /proc/[0-9]*; do
        read -r name 2>/dev/null <"$one/comm" || continue
        case $name in git|git-*) ;; *) continue ;; esac
        at=$(readlink "$one/cwd" 2>/dev/null)
        case $at/ in
            /|"$top"/*|"$directory"/*) printf '%s (%s)' "${one#/proc/}" "$name"; return 0 ;;
        esac
    done
    return 1
}
lock=$directory/index.lock rounds=0
while [ -e "$lock" ] && [ $rounds -lt 15 ]; do
    sleep 0.2
    rounds=$((rounds + 1))
done
if [ -e "$lock" ]; then
    age=$(($(date +%s) - $(stat -c %Y "$lock")))
    if who=$(running); then
        echo "index.lock is $age s old, and process $who is running" >&2
        exit 73
    fi
    rm -f "$lock" && echo "removed index.lock, $age s old: no git was running" >&2
fi

for state in rebase-merge rebase-apply BISECT_LOG MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD; do
    [ -e "$directory/$state" ] || continue
    case $hooks$state in
        1MERGE_HEAD|1CHERRY_PICK_HEAD|1REVERT_HEAD|1rebase-*|1BISECT_LOG) ;;
        *) echo "$state" >&2; exit 72 ;;
    esac
done
unmerged=$(git diff --name-only --diff-filter=U --ignore-submodules) || exit 1
if [ -n "$unmerged" ]; then printf '%s\n' "$unmerged" >&2; exit 71; fi

list=$(mktemp) || exit 1
trap 'rm -f "$list"' EXIT
trap 'exit 143' TERM INT HUP
if [ "$what" != index ]; then
    # Another repository below is left out: a commit would only name one of its commits.
    { git ls-files --others --exclude-standard | sed -n 's|/\("\{0,1\}\)$|\1|p'
      git ls-files --stage | sed -n "s/^160000 [0-9a-f]* [0-9]$tab//p"
    } | sort -u | sed 's/^"/":(exclude,top,literal)/
t
s/^/:(exclude,top,literal)/' >"$list" || exit 1
    if [ -s "$list" ]; then
        printf 'left out, another repository: %s\n' "$(sed 's/:(exclude,top,literal)//' "$list" |
            head -n 5 | tr '\n' ' ')" >&2
    fi
    # A pathspec that means nothing yet is no fault; each comes plain and quoted.
    if [ $# -gt 0 ]; then only=--only; else echo . >>"$list"; fi
    while [ $# -gt 0 ]; do
        case $1 in
            ':!'*|':^'*|':('*exclude*')'*) printf '%s\n' "$2" >>"$list" ;;
            *)
                if [ -n "$({
                    git ls-files --cached --others --exclude-standard -- "$1"
                    git diff --cached --name-only -- "$1"
                } | grep -v '/"\{0,1\}$' | head -n 1)" ]; then
                    printf '%s\n' "$2" >>"$list"
                    is_any=1
                fi
        esac
        shift 2
    done
    if [ -n "$only" ] && [ -z "${is_any-}" ]; then exit 70; fi
    git -c advice.addEmbeddedRepo=false add --all --pathspec-from-file="$list" || exit 1
fi

if [ -n "$only" ]; then names=$list; else names=; fi
nested=$(git diff --cached --raw --no-renames --abbrev | sed -n "s/^:[0-7]* 160000 [^$tab]*$tab//p")
if [ -n "$nested" ]; then printf '%s\n' "$nested" >&2; exit 75; fi
if git diff --cached --quiet && [ ! -e "$directory/MERGE_HEAD" ]; then exit 70; fi
before=$(git rev-parse --verify --quiet HEAD)
# Of some paths nothing may be new, although others are staged.
if [ -n "$only" ] && ! git commit --dry-run --only --pathspec-from-file="$names" >/dev/null; then
    exit 70
fi
if [ "$hooks" = 1 ]; then
    git commit --quiet --cleanup=whitespace --message="$message" \
        ${only:+--only --pathspec-from-file="$names"} >&2
else
    # Nothing of the loop's own has a say in a commit that it has not asked for.
    git -c core.hooksPath=/dev/null -c commit.gpgSign=false -c core.fsmonitor=false \
        -c gc.auto=0 commit --quiet --no-verify --cleanup=whitespace --message="$message" \
        ${only:+--only --pathspec-from-file="$names"} >&2
fi
code=$?
after=$(git rev-parse --verify --quiet HEAD)
if [ "$before" = "$after" ]; then
    if [ $code -eq 0 ]; then exit 70; fi
    exit 1
fi
printf '%s\n%s\n' "$after" "$(git symbolic-ref --quiet HEAD)"
git diff-tree -r --root --no-commit-id --name-status --no-renames -z HEAD
exit 0
"""


class Made(Protocol):
    """A call that was made, as hooks see it; see `executor.hooks.Use`."""

    @property
    def canonical(self) -> str:
        """Name of the tool in the catalog."""

    @property
    def input(self) -> Mapping[str, Any]:
        """The arguments as given."""

    @property
    def is_mutating(self) -> bool:
        """It may have changed the worktree."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that was made in the box, as the box tells of it.

    Attributes:
        commit: its object name.
        branch: full name of the branch that it is on; None = HEAD is detached.
        files: [state, path] of what it changed: `A`, `M`, `D` or `T`; of a merge none.
        is_whole: there are no more files than these.
        said: what git and its hooks printed, harmless.
    """

    commit: str
    branch: str | None
    files: tuple[tuple[str, str], ...]
    is_whole: bool
    said: str = ""


async def commit(
    box: Box, *, inside: str, message: str, paths: Sequence[str], environment: Mapping[str, str]
) -> str | None:
    """Commit what the loop has in its worktree, for the loop: no hook of its own runs.

    While a merge, rebase, cherry-pick, revert or bisect is going on there is nothing that
    could be committed without taking part in it: that is refused.

    Args:
        box: with the worktree.
        inside: the git directory in the box; empty = as git finds it.
        message: the text of it.
        paths: pathspecs of what is committed; none = everything. Repositories below the
            worktree are left out.
        environment: of git, beside the box's own: who commits.

    Returns:
        the name of the new commit; None = there was nothing to commit.

    Raises:
        ToolError: git refused, in its own words; CONFLICT, the repository is in the middle
            of something.
    """
    made = await make(
        box, inside=inside, message=message, paths=paths, environment=environment, hooks=False
    )
    return None if made is None else made.commit


async def make(
    box: Box,
    *,
    inside: str = "",
    message: str,
    paths: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    hooks: bool = True,
    only_index: bool = False,
    timeout: float = TIMEOUT,
) -> Committed | None:
    """The same, and all that is known of the commit.

    Args:
        box, inside, message, paths, environment: see `commit`.
        hooks: those of the repository run, as git has it, and a merge is concluded.
        only_index: only what is staged is committed, as it is staged.
        timeout: seconds that it may take.

    Raises:
        ToolError: see `commit`; TIMEOUT, it took too long.
    """
    if len(message.encode("utf-8", "replace")) > MAX_MESSAGE or "\0" in message:
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"The message can't be that of a commit: it holds a NUL, or more than {MAX_MESSAGE} "
            "bytes. Write a shorter one.",
        )
    what = "index" if only_index else "all"
    pairs = [part for path in paths for part in (path, quoted(path))]
    answer = await box.request(
        "run",
        _arguments([inside, message, what, str(int(hooks)), *pairs], environment or {}, timeout),
        _SCRIPT.encode(),
        timeout=timeout,
    )
    value, data = answer.value, answer.data
    sizes = value["stdout"]
    length = sizes["head"] + sizes["tail"]
    said = visible(data[length:].decode("utf-8", "replace")).strip()
    if value["exit_code"] == _NOTHING:
        return None
    if value["exit_code"] != 0:
        raise _fault(value, said, timeout)
    return _committed(data[:length], is_whole=sizes["total"] == length, said=said)


def _arguments(args: list[str], environment: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """What the agent is told."""
    return {
        "command": None,
        "argv": ["sh"],
        "script": ".sh",
        "args": args,
        "cwd": "",
        "environment": dict(environment),
        "timeout": timeout,
        "grace": GRACE,
        "merge": False,
        "head": MOST,
        "tail": 0,
        "stream": False,
        "shelve": False,
    }


def quoted(path: str) -> str:
    """A path as git reads it on a line of its own, whatever is in it."""
    shown = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in path.encode("utf-8", "surrogateescape")
    )
    return f'"{shown}"'


def _committed(data: bytes, *, is_whole: bool, said: str) -> Committed:
    """What the script printed.

    Raises:
        ToolError: PROTOCOL_ERROR, it is something else.
    """
    name, _, rest = data.partition(b"\n")
    branch, _, rest = rest.partition(b"\n")
    commit_name = name.decode("ascii", "replace")
    if not _OBJECT.fullmatch(commit_name):
        raise ToolError(Code.PROTOCOL_ERROR, "The box named no commit after it had made one.")
    on = branch.decode("utf-8", "replace")
    parts = rest.decode("utf-8", "surrogateescape").split("\0")
    files = tuple(zip(parts[:-1:2], parts[1:-1:2], strict=False))
    whole = is_whole and len(files) <= MAX_FILES
    return Committed(
        commit_name, on if _BRANCH.fullmatch(on) else None, files[:MAX_FILES], whole, said
    )


_STATES = {
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase or git am",
    "BISECT_LOG": "a bisect",
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
}


def _fault(value: Mapping[str, Any], said: str, timeout: float) -> ToolError:
    """Why nothing was committed, and what to do."""
    listed = one_line(", ".join(said.splitlines()), 500)
    code = value["exit_code"]
    if value.get("timed_out"):
        return ToolError(Code.TIMEOUT, f"The commit took more than {timeout:g} s and was ended.")
    if code == _UNMERGED:
        return ToolError(
            Code.CONFLICT,
            f"Nothing was committed: conflicts are not resolved in {listed}. Resolve them, say "
            "so with `git add`, and commit again.",
        )
    if code == _BUSY:
        state = _STATES.get(said.splitlines()[-1] if said else "", "something")
        return ToolError(
            Code.CONFLICT,
            f"Nothing was committed: {state} is going on, and a commit would take part in it. "
            "Conclude or abort it first.",
        )
    if code == _LOCKED:
        return ToolError(
            Code.CONFLICT,
            f"Nothing was committed: {listed}. Wait for that process, or end it; then commit "
            "again.",
        )
    if code == _NESTED:
        return ToolError(
            Code.UNSUPPORTED,
            f"Nothing was committed: another repository is staged as if it were a file "
            f"({listed}), and such entries are never taken out of the sandbox. "
            "Use `git rm --cached` on it.",
        )
    if code == _NO_GIT:
        return ToolError(Code.NOT_FOUND, "git: there is no such program in this image")
    if code == _NO_REPOSITORY:
        return ToolError(Code.NOT_FOUND, f"There is no git repository here: {listed}")
    how = f"signal {value['signal']}" if code is None else f"exit code {code}"
    reason = f"Nothing was committed: git ended with {how}."
    return ToolError(Code.EXECUTION_ERROR, f"{reason}\n{said[:4000]}".rstrip())


# ─── messages ───────────────────────────────────────────────────────────────────────

_FIELDS = re.compile(r"\{(tools|exec_id)\}")
_MAIN = ("command", "file_path", "path", "notebook_path", "source", "from", "language")
"""The argument that says most of a call, whatever its toolset calls it."""


def filled(template: str, uses: Sequence[Made], exec_id: str) -> str:
    """The message of an automatic commit.

    `{tools}` becomes what the turn's calls did, on the first line; where that is not all, the
    message ends with a list of them. Nothing of a call starts a line of its own, or acts.

    Args:
        template: `GitOptions.message`.
        uses: the calls of the turn, in order.
        exec_id: name of the loop.
    """
    told = [_told(use) for use in uses if use.is_mutating] or [_told(use) for use in uses]
    whole = "; ".join(told) or "no calls"
    values = {"tools": whole, "exec_id": one_line(exec_id, _LINE)}
    text = _FIELDS.sub(lambda match: values[match[1]], _clean(template)).strip()
    subject, line_end, rest = text.partition("\n")
    is_cut = len(subject) > SUBJECT
    parts = [one_line(subject, SUBJECT)]
    if line_end:
        parts.append(rest.strip("\n"))
    if "{tools}" in template and (is_cut or len(told) > 1):
        lines = [f"- {one_line(line, _LINE)}" for line in told[:_LINES]]
        if len(told) > _LINES:
            lines.append(f"- and {len(told) - _LINES} more")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _told(use: Made) -> str:
    """One call: its tool, and what it was about."""
    for name in _MAIN:
        about = use.input.get(name)
        if isinstance(about, str) and about.strip():
            return one_line(f"{use.canonical} {about.strip()}", 2 * _LINE)
    return one_line(use.canonical, _LINE)


def _clean(template: str) -> str:
    return visible(template)
