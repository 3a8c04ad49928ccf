"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from executor.errors import ConfigError
from executor.model import Secret
from executor.settings import values_of

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
Egress = Annotated[
    list[str] | None,
    typer.Option(
        "--egress",
        help="Host that may be reached: HOST, *.SUFFIX or HOST:PORT; none by default; may be "
        "repeated.",
    ),
]
SetupEgress = Annotated[
    list[str] | None,
    typer.Option("--setup-egress", help="The same, for --setup alone; may be repeated."),
]
EgressPrivate = Annotated[
    list[str] | None,
    typer.Option(
        "--egress-private",
        help="HOST or HOST:PORT of --egress that may have a private address; may be repeated.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file", help="Certificates that programs in the box believe instead of the image's."
    ),
]
Setup = Annotated[
    str | None,
    typer.Option("--setup", help="Command that runs in each new box before its first call."),
]
Cache = Annotated[
    list[str] | None,
    typer.Option("--cache", help="Name of a directory for downloads that lasts; may be repeated."),
]
SecretAt = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        help="NAME@HOST: this environment variable's value, for that host alone; may be repeated.",
    ),
]


def reach_of(
    egress: Sequence[str] | None,
    setup_egress: Sequence[str] | None,
    egress_private: Sequence[str] | None,
    ca_file: Path | None,
    setup: str | None,
    cache: Sequence[str] | None,
    secret: Sequence[str] | None,
) -> dict[str, Any]:
    """What these options come to, for `Catalog.loop_spec`.

    Raises:
        ConfigError: a secret is not NAME@HOST, or the environment has none of its name.
    """
    return {
        "egress": {
            "hosts": egress or None,
            "setup_hosts": setup_egress or None,
            "private": egress_private or None,
            "ca_file": ca_file,
        },
        "setup": setup,
        "caches": cache or None,
        "secrets": secrets_of(secret),
    }


def secrets_of(pairs: Sequence[str] | None) -> tuple[Secret, ...]:
    """The secrets that `--secret` names, each with all its hosts; values are the environment's.

    Raises:
        ConfigError: one is not NAME@HOST, or is not set. No value is in the message.
    """
    hosts: dict[str, list[str]] = {}
    faults: list[str] = []
    for pair in pairs or ():
        name, at, host = pair.partition("@")
        if name and host:
            hosts.setdefault(name, []).append(host)
        elif at:
            faults.append(f"--secret: {pair!r} names no variable or no host; write NAME@HOST")
        else:
            # What stands there may be the value itself.
            faults.append("--secret: one has no @; write NAME@HOST, never a value")
    values = values_of(hosts)
    faults += [
        f"--secret: the variable {_shown(name)} is not set, or empty, where the executor runs; "
        "export it there"
        for name in hosts
        if name not in values
    ]
    if faults:
        raise ConfigError(faults)
    return tuple(Secret(name, values[name], tuple(given)) for name, given in hosts.items())


def _shown(name: str) -> str:
    """A secret's variable, without the value that somebody may have written behind it."""
    name, equals, _ = name.partition("=")
    return f"{name} (write it without {equals} and a value)" if equals else name


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
