"""Options that several commands have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
Http = Annotated[
    int | None,
    typer.Option(
        "--http",
        min=0,
        max=65535,
        metavar="PORT",
        help="Serve over HTTP on this port of 127.0.0.1 instead, 0 = any: a loop for each client.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the token that clients over HTTP show; made where there is none.",
    ),
]
Sessions = Annotated[
    int | None,
    typer.Option("--sessions", min=1, help="Clients over HTTP at a time; 4 by default."),
]
SessionIdle = Annotated[
    float | None,
    typer.Option(
        "--session-idle",
        help="Seconds without any request after which a client has gone; 1800 by default.",
    ),
]


@dataclass(frozen=True)
class HttpTerms:
    """How the server is reached.

    Attributes:
        port: of the loopback; 0 = any free one.
        token_file: has the token; made where there is none.
        sessions: at a time.
        idle: seconds without any request after which a session is ended.
    """

    port: int
    token_file: Path
    sessions: int = 4
    idle: float = 1800.0


def http_terms(
    port: int | None, token_file: Path | None, sessions: int | None, idle: float | None
) -> HttpTerms | None:
    """What the options say of a server over HTTP; None = there is none.

    Raises:
        ConfigError: one is missing, or is no number that can be meant.
    """
    if port is None:
        if (token_file, sessions, idle) == (None, None, None):
            return None
        raise ConfigError(
            "--token-file, --sessions, --session-idle: only with --http PORT; give that, too"
        )
    if token_file is None:
        raise ConfigError(
            "--http: who may use the server is said by a token; give --token-file FILE, which is "
            "made where there is none"
        )
    terms = HttpTerms(port, token_file)
    idle = terms.idle if idle is None else idle
    if not (math.isfinite(idle) and idle > 0):
        raise ConfigError("--session-idle: give a number of seconds above 0")
    return replace(terms, sessions=sessions or terms.sessions, idle=idle)


_AS_GIVEN = (
    *("toolset", "loop_type", "mode", "image", "runtime", "memory", "cpus", "pids"),
    *("call_timeout", "max_seconds", "exec_id", "uid", "worktree_skills", "text_only"),
    *("seccomp", "quota", "idle_seconds", "repo", "branch"),
)
_REACH = (*("egress", "setup_egress", "egress_private", "ca_file", "setup", "cache", "secret"),)


def loop_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a command's options say of its loop, for `Catalog.loop_spec`.

    Args:
        given: the command's parameters, by name; it need not have all that there are.

    Raises:
        ConfigError: one is not of its form, or the environment lacks a secret.
    """
    return {
        **{name: given.get(name) for name in _AS_GIVEN},
        **{name: tuple(given.get(name) or ()) for name in ("allow", "ask", "deny")},
        "environment": environment_of(given.get("env")),
        "add_dirs": tuple(given.get("add_dir") or ()) or None,
        "skills": tuple(given.get("skills") or ()) or None,
        "disk_bytes": given.get("disk"),
        "git": {
            "sharing": given.get("git"),
            "commit": given.get("commit"),
            "landing": given.get("landing"),
        },
        **reach_of(*(given.get(name) for name in _REACH)),
    }


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
