"""Git in the worktree: thin tools over the program in the box.

They run what `run_command` would run, so that rules on commands and on files hold for them;
what a model passes are words of an argument list, which no shell reads.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from executor.errors import Code, ToolError
from executor.git import commits
from executor.model import MOUNT
from executor.permissions import restrictions, unreadable
from executor.results import shown_name, with_notices
from executor.tool import (
    Action,
    Arguments,
    Context,
    Outcome,
    Path,
    Raw,
    RunsCommand,
    Surroundings,
    Text,
    Whole,
)
from executor.tools.commands import waited_for
from executor.tools.outputs import GRACE, captured, causes, code_of

MAX_COMMITS = 1000
DEFAULT_COMMITS = 20
MOST = 4 << 20
"""Bytes of git's answer that are read: names of some 50,000 files."""
MAX_NAMES = 1000
"""Names of one kind that are listed; the others are counted."""
MAX_HIDDEN = 500
"""Files that a diff leaves out one by one."""

_GIT = ("git", "-c", "core.fsmonitor=false", "--no-optional-locks")
"""Looking takes no lock that a commit would stumble over, and starts no other program."""
_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv")
_REF = re.compile(r"(?!-)[^\x00-\x1f\x7f]{1,1000}")


def hidden(loop: Surroundings) -> str | None:
    """Why a loop has no git."""
    return loop.no_git


def _no_push(loop: Surroundings) -> str:
    """Why nothing is pushed, and how commits leave the sandbox."""
    return (
        "the sandbox has no remote and no credentials. Commit with git_commit: what is committed "
        f"leaves the sandbox when the loop ends, or by `executor git import {loop.exec_id}` on "
        "the host, from where it can be pushed"
    )


# ─── arguments ──────────────────────────────────────────────────────────────────────

Paths = Annotated[list[Path], Field(max_length=1000)]


class GitStatus(Arguments):
    """Arguments of `git_status`."""


class GitDiff(Arguments):
    """Arguments of `git_diff`."""

    paths: Paths | None = Field(None, description="Files or directories (default: all)")
    staged: bool | None = Field(
        None, description="What is staged, instead of what is not (default: false)"
    )
    ref: Raw | None = Field(
        None, description="Commit or branch to compare with, or a range such as main..HEAD"
    )
    stat: bool | None = Field(
        None, description="Only how much changed in which file (default: false)"
    )


class GitLog(Arguments):
    """Arguments of `git_log`."""

    max_count: Annotated[int, Field(ge=1, le=MAX_COMMITS), Whole] | None = Field(
        None, description=f"How many commits to return (default: {DEFAULT_COMMITS})"
    )
    ref: Raw | None = Field(
        None, description="Commit or branch to begin at, or a range such as main..HEAD"
    )
    paths: Paths | None = Field(
        None, description="Only commits that changed these files or directories"
    )
    oneline: bool | None = Field(None, description="One line for each commit (default: false)")


class GitCommit(Arguments):
    """Arguments of `git_commit`."""

    message: Text = Field(description="Message of the commit")
    paths: Paths | None = Field(
        None, description="Commit only these files or directories (default: all)"
    )
    all: bool | None = Field(
        None,
        description="Commit all changes, new files too (default: true); false: what is staged",
    )


class GitPush(Arguments):
    """Arguments of `git_push`."""

    remote: Text | None = Field(None, description="Remote to push to")
    branch: Text | None = Field(None, description="Branch to push")


# ─── what they are going to do ──────────────────────────────────────────────────────


def _names(context: Context, paths: Sequence[str] | None) -> list[str]:
    """Paths of the worktree, as a command in its root names them.

    Raises:
        ToolError: INVALID_PATH, one is not in the worktree.
    """
    found: list[str] = []
    for text in paths or ():
        path = context.path(text)
        if path.startswith("/"):
            raise ToolError(
                Code.INVALID_PATH,
                f"The path {text!r} is not in the worktree, and git is asked about it alone. The "
                f"root is {MOUNT}: use a path relative to it, for example src/main.py.",
            )
        found.append(path or ".")
    return found


def _ref(context: Context, text: str | None) -> list[str]:
    """The words that name a revision: one or none.

    Raises:
        ToolError: INVALID_ARGUMENTS, it is an option or none at all.
    """
    if text is None:
        return []
    if not _REF.fullmatch(text) or text.startswith("^-"):
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"Invalid arguments for {context.tool}: ref must name a commit, a branch or a range, "
            "for example HEAD~2 or main..HEAD.",
        )
    return [text]


def _line(*words: str) -> list[Action]:
    return [RunsCommand(shlex.join(words), MOUNT)]


def looks(context: Context, given: GitStatus) -> Sequence[Action]:
    """What `git_status` is going to do."""
    return _line("git", "status")


def compares(context: Context, given: GitDiff) -> Sequence[Action]:
    """What `git_diff` is going to do."""
    staged = ["--cached"] if given.staged else []
    words = [*staged, *_ref(context, given.ref), "--", *_names(context, given.paths)]
    return _line("git", "diff", *words)


def tells(context: Context, given: GitLog) -> Sequence[Action]:
    """What `git_log` is going to do."""
    return _line("git", "log", *_ref(context, given.ref), "--", *_names(context, given.paths))


def records(context: Context, given: GitCommit) -> Sequence[Action]:
    """What `git_commit` is going to do, hooks of the repository not counted."""
    names = _names(context, given.paths)
    commit = shlex.join(["git", "commit", "-m", given.message])
    if _takes_staged(given):
        return [RunsCommand(commit, MOUNT)]
    return [RunsCommand(f"{shlex.join(['git', 'add', '-A', '--', *names])} && {commit}", MOUNT)]


def _takes_staged(given: GitCommit) -> bool:
    return given.all is False and not given.paths


# ─── status ─────────────────────────────────────────────────────────────────────────

_STATES = {
    "M": "modified",
    "A": "added",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
    "T": "type changed",
}


@dataclass(slots=True)
class _Status:
    """What `git status --porcelain=v2 --branch -z` says.

    Attributes:
        head: `branch.*` headers.
        staged, unstaged: [state, path], as `_STATES` calls them.
        untracked, conflicts: paths.
    """

    head: dict[str, str] = field(default_factory=dict)
    staged: list[tuple[str, str]] = field(default_factory=list)
    unstaged: list[tuple[str, str]] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> _Status:
        """The status out of git's records, of which the last may be cut off."""
        found = cls()
        records = iter(text.split("\0")[:-1])
        for record in records:
            kind, _, rest = record.partition(" ")
            if kind == "#":
                name, _, value = rest.partition(" ")
                found.head[name.removeprefix("branch.")] = value
            elif kind == "?":
                found.untracked.append(rest)
            elif kind == "u":
                found.conflicts.append(rest.split(" ", 9)[-1])
            elif kind in ("1", "2"):
                found._changed(rest, 7 if kind == "1" else 8)
                if kind == "2":
                    next(records, None)  # the name that it had
        return found

    def _changed(self, rest: str, fields: int) -> None:
        parts = rest.split(" ", fields)
        if len(parts) <= fields:
            return
        for letter, listed in zip(parts[0], (self.staged, self.unstaged), strict=False):
            if letter != ".":
                listed.append((_STATES.get(letter, letter), parts[-1]))

    @property
    def branch(self) -> str | None:
        """Name of the branch; None = HEAD is detached."""
        name = self.head.get("head", "")
        return None if name == "(detached)" else name

    @property
    def commit(self) -> str | None:
        """The commit at HEAD; None = there is none yet."""
        name = self.head.get("oid", "")
        return None if name == "(initial)" else name

    @property
    def is_clean(self) -> bool:
        """The worktree is as the commit at HEAD has it."""
        return not (self.staged or self.unstaged or self.untracked or self.conflicts)

    def text(self) -> str:
        """For the model."""
        where = f"On branch {shown_name(self.branch)}" if self.branch else "HEAD is detached"
        at = f" at {self.commit[:12]}" if self.commit else ", no commits yet"
        lines = [where + at]
        kinds = (
            ("Conflicts, not resolved", [f"  {shown_name(path)}" for path in self.conflicts]),
            ("Staged", [f"  {state}: {shown_name(path)}" for state, path in self.staged]),
            ("Not staged", [f"  {state}: {shown_name(path)}" for state, path in self.unstaged]),
            ("Untracked", [f"  {shown_name(path)}" for path in self.untracked]),
        )
        for title, entries in kinds:
            if entries:
                lines += [f"{title}:", *entries[:MAX_NAMES]]
                if len(entries) > MAX_NAMES:
                    lines.append(f"  and {len(entries) - MAX_NAMES} more")
        if self.is_clean:
            lines.append("Nothing to commit, the worktree is clean")
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """For the host."""
        return {
            "branch": self.branch,
            "commit": self.commit,
            "staged": _entries(self.staged),
            "unstaged": _entries(self.unstaged),
            "untracked": self.untracked[:MAX_NAMES],
            "conflicts": self.conflicts[:MAX_NAMES],
            "clean": self.is_clean,
        }


def _entries(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"path": path, "state": state} for state, path in pairs[:MAX_NAMES]]


async def git_status(context: Context, given: GitStatus) -> Outcome:
    """Show the branch, and which files are staged, changed, untracked or in conflict."""
    words = ("status", "--porcelain=v2", "--branch", "-z")
    text, is_whole = await _answer(context, words)
    status = _Status.read(text)
    listed = (status.staged, status.unstaged, status.untracked, status.conflicts)
    is_listed = is_whole and all(len(one) <= MAX_NAMES for one in listed)
    notices = [] if is_whole else ["there are more files than git's answer has room for"]
    return Outcome(
        with_notices(status.text(), notices),
        {**status.data(), "truncated": not is_listed},
        truncated=not is_listed,
    )


async def _answer(context: Context, words: Sequence[str]) -> tuple[str, bool]:
    """What a command of git that looks has printed, and whether that is all of it.

    Raises:
        ToolError: git failed, in its own words.
    """
    timeout = context.entry.timeout_ms / 1000
    if context.time_left is not None:
        timeout = min(timeout, context.time_left)
    arguments: dict[str, Any] = {
        "command": None,
        "argv": [*_GIT, *words],
        "script": None,
        "args": [],
        "cwd": "",
        "environment": {},
        "timeout": timeout,
        "grace": GRACE,
        "merge": False,
        "head": MOST,
        "tail": 0,
        "stream": False,
        "shelve": False,
    }
    answer = await context.loop.box.request("run", arguments, timeout=timeout)
    out, errors = captured(answer)
    value = answer.value
    if value["timed_out"] or value["exit_code"] != 0:
        reasons = "; ".join(causes(value, timeout, context.loop.limits))
        said = errors.head.decode("utf-8", "replace").strip()[:4000]
        raise ToolError(code_of(value), f"{reasons}\n{said}".strip())
    return out.head.decode("utf-8", "surrogateescape"), out.total == len(out.head)


# ─── diff ───────────────────────────────────────────────────────────────────────────


async def git_diff(context: Context, given: GitDiff) -> Outcome:
    """Show changes: of the worktree against what is staged, or against a commit."""
    ref, names = _ref(context, given.ref), _names(context, given.paths)
    staged = ["--cached"] if given.staged else []
    stat = ["--stat=120"] if given.stat else []
    paths = [f":(top,literal){'' if name == '.' else name}" for name in names]
    denied = await _denied(context, [*staged, *ref], paths)
    if denied:
        paths = [*(paths or [":(top)"]), *(f":(top,literal,exclude){name}" for name in denied)]
        staged.append("--no-renames")  # what is renamed shows the content of what it was
    words = [*_GIT, "diff", *_PLAIN, *staged, *stat, *ref, "--", *paths]
    outcome = await waited_for(
        context, {"argv": words, "cwd": ""}, b"", context.entry.timeout_ms / 1000
    )
    if outcome.is_error or not isinstance(outcome.content, str):
        return outcome
    notices = []
    if denied:
        notices = [f"{len(denied)} files are not shown: rules deny to read them"]
    text = outcome.content if outcome.content.strip() else "No differences"
    data = {"diff": (outcome.structured or {}).get("stdout", ""), "hidden": len(denied)}
    return replace(outcome, content=with_notices(text, notices), structured=data)


async def _denied(context: Context, words: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Files that a diff would show, and that a rule denies to read.

    Raises:
        ToolError: PERMISSION_DENIED, they are too many to be left out.
    """
    if not restrictions(context.session.rules)["read"]:
        return []
    text, is_whole = await _answer(
        context, ["diff", "--name-only", "--no-renames", "-z", *_PLAIN, *words, "--", *paths]
    )
    found = unreadable(context.session.rules, filter(None, text.split("\0")))
    if len(found) > MAX_HIDDEN or not is_whole:
        raise ToolError(
            Code.PERMISSION_DENIED,
            "Rules deny to read so many of these files that they can't be left out one by one. "
            "Give the paths that are meant.",
        )
    return found


# ─── log ────────────────────────────────────────────────────────────────────────────

_FORMAT = "--format=%H%x00%an <%ae>%x00%aI%x00%B"
_FIELDS = 4


async def git_log(context: Context, given: GitLog) -> Outcome:
    """Show the history: commits, newest first."""
    ref, names = _ref(context, given.ref), _names(context, given.paths)
    paths = [f":(top,literal){'' if name == '.' else name}" for name in names]
    count = given.max_count or DEFAULT_COMMITS
    words = ["log", "-z", _FORMAT, f"--max-count={count}", "--no-color", "--no-show-signature"]
    text, is_whole = await _answer(context, [*words, *ref, "--", *paths])
    parts = text.split("\0")
    records = [parts[at : at + _FIELDS] for at in range(0, len(parts) - _FIELDS + 1, _FIELDS)]
    commits_ = [
        {"commit": name, "author": author, "date": date, "subject": _subject(body)}
        for name, author, date, body in records
    ]
    shown = [_shown_commit(*record, is_short=given.oneline is True) for record in records]
    separator = "\n" if given.oneline else "\n\n"
    return Outcome(
        separator.join(shown) or "No commits",
        {"commits": commits_, "truncated": not is_whole},
        truncated=not is_whole,
    )


def _subject(body: str) -> str:
    return body.strip().partition("\n")[0]


def _shown_commit(name: str, author: str, date: str, body: str, *, is_short: bool) -> str:
    if is_short:
        return f"{name[:12]} {_subject(body)}"
    indented = "\n".join(f"    {line}".rstrip() for line in body.strip().split("\n"))
    return f"commit {name}\nAuthor: {author}\nDate:   {date}\n\n{indented}"


# ─── commit ─────────────────────────────────────────────────────────────────────────


async def git_commit(context: Context, given: GitCommit) -> Outcome:
    """Commit changes in the worktree: all of them, some paths, or what is staged."""
    if not given.message.strip():
        raise ToolError(
            Code.INVALID_ARGUMENTS,
            f"Invalid arguments for {context.tool}: message is empty; say what was changed.",
        )
    timeout = context.entry.timeout_ms / 1000
    if context.time_left is not None:
        timeout = min(timeout, context.time_left)
    made = await commits.make(
        context.loop.box,
        message=given.message,
        paths=[f":(top,literal){'' if n == '.' else n}" for n in _names(context, given.paths)],
        only_index=_takes_staged(given),
        timeout=timeout,
    )
    if made is None:
        return Outcome("Nothing to commit", {"commit": None, "branch": None, "files": []})
    on = "detached HEAD" if made.branch is None else made.branch.removeprefix("refs/heads/")
    lines = [f"[{shown_name(on)} {made.commit[:12]}] {_subject(given.message)}"]
    lines += [f"  {_STATES.get(state, state)}: {shown_name(path)}" for state, path in made.files]
    if not made.is_whole:
        lines.append("  and more")
    if made.said:
        lines += ["", made.said]
    data = {
        "commit": made.commit,
        "branch": None if made.branch is None else on,
        "files": [{"path": path, "state": _STATES.get(state, state)} for state, path in made.files],
    }
    return Outcome("\n".join(lines), data, truncated=not made.is_whole)


async def git_push(context: Context, given: GitPush) -> Outcome:
    """Always refused: says how commits leave the sandbox, which has no remote."""
    raise ToolError(Code.DISABLED, f"Nothing is pushed: {_no_push(context.loop)}.")
