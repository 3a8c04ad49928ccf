"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from executor.errors import ConfigError

# Text, because an empty path would count as the current directory.
Worktree = Annotated[
    str,
    typer.Option(
        "--worktree",
        help="Directory that the loop works in; required unless --repo.",
        show_default=False,
    ),
]
WorktreeOrHere = Annotated[
    str | None,
    typer.Option(
        "--worktree",
        help="Directory that the loop works in; by default this one.",
        show_default=False,
    ),
]
Toolset = Annotated[
    str | None,
    typer.Option(
        "--toolset",
        help="Names and schemas of the tools: standard (default), claude-code, loom, or one of "
        "the catalog.",
    ),
]
LoopType = Annotated[
    str | None,
    typer.Option(
        "--loop-type", help="Restricts the tools: plan, spec, phase, code, or one of the catalog."
    ),
]
ModeName = Annotated[
    str | None,
    typer.Option("--mode", help="Permission mode: default, plan, acceptEdits, bypass (default)."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        help="Rule of calls that run unasked, e.g. run_command(git push *); may be repeated.",
    ),
]
Ask = Annotated[
    list[str] | None,
    typer.Option("--ask", help="Rule of calls that are asked about; may be repeated."),
]
Deny = Annotated[
    list[str] | None,
    typer.Option(
        "--deny", help="Rule of calls that are refused, e.g. read_file(**/.env*); may be repeated."
    ),
]
Image = Annotated[str | None, typer.Option("--image", help="base, heavy, or any image.")]
Runtime = Annotated[str | None, typer.Option("--runtime", help="The engine's runtime, e.g. runsc.")]
Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file that overrides the catalog.")
]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory of the box, e.g. 2g.")]
Cpus = Annotated[float | None, typer.Option("--cpus", help="Cores of the box.")]
Pids = Annotated[int | None, typer.Option("--pids", help="Processes and threads of the box.")]
CallTimeout = Annotated[
    float | None,
    typer.Option("--call-timeout", help="Seconds for a command that names no timeout."),
]
MaxSeconds = Annotated[
    float | None, typer.Option("--max-seconds", help="Seconds for the loop in all.")
]
Env = Annotated[
    list[str] | None, typer.Option("--env", help="NAME=VALUE for every command; may be repeated.")
]
Uid = Annotated[
    int | None, typer.Option("--uid", help="Run as this uid instead of the worktree's owner.")
]
AddDir = Annotated[
    list[str] | None,
    typer.Option(
        "--add-dir",
        help="DIR, DIR:ro or DIR:rw at /workspaces/NAME beside the worktree; may be repeated.",
    ),
]
Skills = Annotated[
    list[str] | None,
    typer.Option("--skills", help="Directory of skills, which is trusted; may be repeated."),
]
WorktreeSkills = Annotated[
    bool | None,
    typer.Option(
        "--worktree-skills/--no-worktree-skills",
        help="Take skills from .claude in the worktree too; they grant nothing.",
    ),
]
TextOnly = Annotated[
    bool | None,
    typer.Option(
        "--text-only/--no-text-only", help="Describe pictures and pages instead of sending them."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Model that agents ask where nothing else names one; its key is ANTHROPIC_API_KEY.",
    ),
]
ExecId = Annotated[str | None, typer.Option("--exec-id", help="Name of the loop.")]
Seccomp = Annotated[
    str | None,
    typer.Option("--seccomp", help="Profile of system calls: standard, or strict (no debuggers)."),
]
Repo = Annotated[
    str | None,
    typer.Option("--repo", help="Repository to take the worktree from, instead of --worktree."),
]
Branch = Annotated[
    str | None,
    typer.Option(
        "--branch", help="Branch of --repo, made where there is none; commits land there."
    ),
]
Commit = Annotated[
    bool | None,
    typer.Option(
        "--commit/--no-commit",
        help="Commit after each turn that changed something, and land it on the branch.",
    ),
]
Landing = Annotated[
    str | None,
    typer.Option(
        "--landing",
        help="What is done with commits at the end: keep (aside, default), refs, branch (default "
        "with --repo and --commit).",
    ),
]
GitSharing = Annotated[
    str | None,
    typer.Option("--git", help="Git in the box: shared (default), copy, shallow, hidden."),
]
Quota = Annotated[
    str | None,
    typer.Option("--quota", help="How the disk limit is kept: none, watch (soft), loop-ext4."),
]
Disk = Annotated[
    str | None, typer.Option("--disk", help="Bytes that the loop may add to its worktree.")
]
IdleSeconds = Annotated[
    float | None,
    typer.Option("--idle-seconds", help="Give the box back after so long without a call."),
]


def environment_of(pairs: Sequence[str] | None) -> dict[str, str]:
    """The variables that `--env` names.

    Raises:
        ConfigError: one is not NAME=VALUE.
    """
    found: dict[str, str] = {}
    faults: list[str] = []
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if equals:
            found[name] = value
        else:
            faults.append(f"--env: {pair!r} has no =; write NAME=VALUE")
    if faults:
        raise ConfigError(faults)
    return found


# ─── run ────────────────────────────────────────────────────────────────────────────
