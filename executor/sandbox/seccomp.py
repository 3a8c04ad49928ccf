"""Which system calls a box may make: the packaged profiles, and how an engine takes one.

The profiles are made by `seccomp/generate.py` out of `seccomp/groups.toml`, which has the
reasons. A box inherits its filter from process 1, and so does whatever is started in it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from executor.errors import ConfigError
from executor.model import LoopSpec
from executor.sandbox.facts import EngineFacts

ARCHITECTURES = ("aarch64", "x86_64")
"""Machines that there are profiles for, as `uname -m` calls them."""
_GVISOR = "runsc"


@cache
def profile(name: str, architecture: str) -> str:
    """A packaged profile as compact JSON.

    Args:
        name: `standard` or `strict`.
        architecture: of the engine's machine.

    Raises:
        ConfigError: there is no profile for that machine.
    """
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"seccomp: the engine's machine is {architecture or 'of unknown architecture'!r}, and "
            f"there are profiles for {' and '.join(ARCHITECTURES)} only; use an engine on one of "
            "these"
        )
    text = (_directory() / f"{name}-{architecture}.json").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


def write(spec: LoopSpec, facts: EngineFacts, directory: Path) -> str | None:
    """The profile as a file, for an engine that wants the path of one; None = it does not.

    Args:
        directory: ours alone, on the engine's machine, for as long as the box lives.

    Raises:
        ConfigError: there is no profile for the engine's machine.
    """
    if not facts.seccomp_by_path:
        return None
    path = directory / "seccomp.json"
    path.write_text(profile(spec.seccomp, facts.architecture), "utf-8")
    return str(path)


def described(spec: LoopSpec, facts: EngineFacts) -> str:
    """What of the profile is in force in the loop's boxes, in words for `capabilities`."""
    if (spec.runtime or facts.default_runtime).startswith(_GVISOR):
        # It is handed over all the same, and left unused without a flag of the runtime's.
        return "none of ours (gVisor answers system calls itself)"
    return f"{spec.seccomp} (ours)" if facts.seccomp else "none"


def _directory() -> Path:
    """`seccomp/`: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "seccomp"
    return installed if installed.is_dir() else package.parent / "seccomp"
