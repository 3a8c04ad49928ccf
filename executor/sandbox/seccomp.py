"""Which system calls a box may make: the packaged profiles, and how an engine takes one.

The profiles are made by `seccomp/generate.py` out of `seccomp/groups.toml`, which has the
reasons. A box inherits its filter from process 1, and so does whatever is started in it.

gVisor has profiles of its own out of the same source, and takes up none unless it was started
with an argument of its own. What is in force there is therefore asked of the box: see
`CONFINED` and `FILTERED`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from executor.errors import ConfigError
from executor.model import LoopSpec
from executor.sandbox.facts import EngineFacts

ARCHITECTURES = ("aarch64", "x86_64")
"""Machines that there are profiles for, as `uname -m` calls them."""
CONFINED = "confined"
"""Key of READY: no command can make a namespace or mount; found out by trying."""
FILTERED = "filtered"
"""Key of READY: the same was so already when process 1 began, so it was the runtime's doing."""


@cache
def profile(name: str, architecture: str, *, is_gvisor: bool = False) -> str:
    """A packaged profile as compact JSON.

    Args:
        name: `standard` or `strict`.
        architecture: of the engine's machine.
        is_gvisor: the one for gVisor, which takes no list of what passes.

    Raises:
        ConfigError: there is no profile for that machine.
    """
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"seccomp: the engine's machine is {architecture or 'of unknown architecture'!r}, and "
            f"there are profiles for {' and '.join(ARCHITECTURES)} only; use an engine on one of "
            "these"
        )
    kind = "-gvisor" if is_gvisor else ""
    text = (_directory() / f"{name}{kind}-{architecture}.json").read_text("utf-8")
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
    path.write_text(profile_of(spec, facts), "utf-8")
    return str(path)


def profile_of(spec: LoopSpec, facts: EngineFacts) -> str:
    """The profile of a loop's boxes, for the runtime that they have.

    Raises:
        ConfigError: there is no profile for the engine's machine.
    """
    return profile(spec.seccomp, facts.architecture, is_gvisor=_is_gvisor(spec, facts))


def described(spec: LoopSpec, facts: EngineFacts, ready: Mapping[str, Any]) -> str:
    """What of the profile is in force in a box, in words for `capabilities`.

    Args:
        ready: what the box said when it was up. It is believed of gVisor only, as nobody
            else knows; no command of the box has run before it.
    """
    if not _is_gvisor(spec, facts):
        return f"{spec.seccomp} (ours)" if facts.seccomp else "none"
    if ready.get(FILTERED) is True:
        return f"{spec.seccomp} for gVisor (ours: what is refused by name)"
    return (
        "the agent's own (no namespaces and mounts; none of our profiles, gVisor answers the rest)"
    )


def unconfined(ready: Mapping[str, Any]) -> str:
    """Why a box that is up may not be used; empty = it may."""
    if ready.get(CONFINED) is True:
        return ""
    return (
        "The box could make namespaces and mounts, and so write what is mounted read-only, since "
        "its runtime does not filter system calls: give gVisor's runtime the argument "
        "--oci-seccomp (`make gvisor` does), or use another runtime"
    )


def _is_gvisor(spec: LoopSpec, facts: EngineFacts) -> bool:
    return facts.is_gvisor(spec.runtime or facts.default_runtime)


def _directory() -> Path:
    """`seccomp/`: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "seccomp"
    return installed if installed.is_dir() else package.parent / "seccomp"
