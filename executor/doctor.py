"""What of this machine helps or hinders: facts → findings.

`judge` is pure; `examine` asks the machine and the engine. Nothing is changed.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from executor.errors import EngineError, EngineUnavailable
from executor.sandbox.engine import Engine, address_fault
from executor.sandbox.facts import EngineFacts, Version, parse_version
from executor.sandbox.images import list_built
from executor.sandbox.rootfs import bootstrapper
from executor.settings import ImageSource, Settings

Level = Literal["ok", "warning", "fault"]

ENGINE_FLOOR: Version = (29, 5, 1)
ENGINE_CVES = "CVE-2026-6406, CVE-2026-41567, CVE-2026-42306"
RUNC_FLOORS: tuple[Version, ...] = ((1, 2, 8), (1, 3, 3), (1, 4, 0))
"""The first release of each line with the repairs; a newer line has them all."""
RUNC_CVES = "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881"
RUNC_ESCAPE_FLOOR: Version = (1, 1, 12)
RUNC_ESCAPE = "CVE-2024-21626"
_UNPATCHED_CANDIDATES = frozenset({"1.4.0-rc.1", "1.4.0-rc.2"})
_OPENAT2: Version = (5, 6)
_IMAGE_BYTES = 2 << 30
_LEAST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked at, in a word or two.
        level: `fault` = the main job can't run, or not with the promised limits.
        text: what was found.
        mend: what to do; empty when there is nothing to be done.
    """

    name: str
    level: Level
    text: str
    mend: str = ""


async def examine(settings: Settings) -> list[Finding]:
    """Everything that can be found out without starting a box."""
    findings = [_python(), *_directories(settings)]
    try:
        engine = await Engine.connect(settings)
    except EngineUnavailable as error:
        return [*findings, Finding("engine", "fault", str(error), "see the sentence before")]
    async with engine:
        findings += judge(engine.facts)
        if (fault := address_fault(settings)) is not None:
            findings.append(Finding("engine's address", "warning", fault, "see there"))
        findings += _disk(engine.facts)
        findings += await _images(engine)
    return findings


# ─── the engine, pure ───────────────────────────────────────────────────────────────


def judge(facts: EngineFacts) -> list[Finding]:
    """What follows from what the engine says about itself."""
    return [
        _engine_version(facts),
        _runtime_version(facts),
        _limits(facts),
        _seccomp(facts),
        _confinement(facts),
        *_users(facts),
        _mount_options(facts),
        _kernel(facts),
        *_place(facts),
        *(Finding("engine's own warning", "warning", line) for line in facts.warnings),
    ]


def _engine_version(facts: EngineFacts) -> Finding:
    api = ".".join(map(str, facts.api_version))
    text = f"{facts.name} {facts.version}, API {api}, at {facts.address}"
    if facts.name == "docker" and parse_version(facts.version) < ENGINE_FLOOR:
        floor = ".".join(map(str, ENGINE_FLOOR))
        return Finding(
            "engine",
            "warning",
            f"{text}: older than {floor}, so it may have {ENGINE_CVES}; distributions repair "
            "faults under old version numbers",
            "look up the CVEs at your distribution, or upgrade the engine",
        )
    return Finding("engine", "ok", text)


def _runtime_version(facts: EngineFacts) -> Finding:
    name, version = facts.oci_runtime or "unknown", facts.oci_version or "of unknown version"
    text = f"{name} {version}; available: {', '.join(facts.runtimes) or 'unknown'}"
    faults = runc_faults(facts.oci_version) if facts.oci_runtime == "runc" else ""
    if not faults:
        return Finding("runtime", "ok", text)
    return Finding(
        "runtime",
        "warning",
        f"{text}: this version may have {faults}; distributions repair faults under old "
        "version numbers",
        "look up the CVEs at your distribution, or upgrade runc to 1.2.8, 1.3.3, 1.4.0 or newer",
    )


def runc_faults(version: str) -> str:
    """The CVEs that a version of runc has, unless its distribution has repaired them."""
    numbers = parse_version(version)
    if not numbers:
        return ""
    if numbers < RUNC_ESCAPE_FLOOR:
        return f"{RUNC_ESCAPE}, {RUNC_CVES}"
    line = [floor for floor in RUNC_FLOORS if floor[:2] == numbers[:2]]
    is_patched = numbers >= line[0] if line else numbers > RUNC_FLOORS[-1]
    return "" if is_patched and version not in _UNPATCHED_CANDIDATES else RUNC_CVES


def _limits(facts: EngineFacts) -> Finding:
    limits = {
        "memory": facts.memory_limit,
        "swap": facts.swap_limit,
        "CPU": facts.cpu_limit,
        "processes": facts.pids_limit,
    }
    missing = [name for name, enforced in limits.items() if not enforced]
    text = f"cgroup version {facts.cgroup_version}, driver {facts.cgroup_driver or 'unknown'}"
    if not missing:
        return Finding("limits", "ok", f"{text}; memory, swap, CPU and processes are enforced")
    if missing == ["swap"]:
        mend = "boot with the kernel parameters cgroup_enable=memory swapaccount=1"
    elif facts.rootless:
        mend = "a rootless engine needs cgroup version 2 with delegation; or use a rootful engine"
    else:
        mend = "enable these controllers in the kernel, or use another machine"
    return Finding("limits", "fault", f"{text}; not enforced: {', '.join(missing)}", mend)


def _seccomp(facts: EngineFacts) -> Finding:
    if facts.seccomp:
        return Finding("seccomp", "ok", "system calls are filtered")
    return Finding(
        "seccomp",
        "fault",
        "the engine can't filter system calls",
        "use an engine and a kernel with seccomp",
    )


def _confinement(facts: EngineFacts) -> Finding:
    if facts.apparmor or facts.selinux:
        name = "AppArmor" if facts.apparmor else "SELinux"
        return Finding("mandatory access control", "ok", f"{name} confines containers")
    return Finding(
        "mandatory access control",
        "warning",
        "neither AppArmor nor SELinux confines containers: one layer less",
        "enable one of them in the kernel, where that is possible",
    )


def _users(facts: EngineFacts) -> Iterator[Finding]:
    if facts.rootless:
        yield Finding(
            "users",
            "warning",
            "the engine is rootless: inside, only uid 0 owns the files of the engine's user",
            "give the worktree to the engine's user, and run with --uid 0",
        )
    elif facts.userns:
        yield Finding(
            "users",
            "warning",
            "the engine maps uids: files written inside belong to other uids outside",
            "give the worktree to the mapped uid",
        )


def _mount_options(facts: EngineFacts) -> Finding:
    if facts.has_recursive_read_only:
        return Finding("mounts", "ok", "recursive read-only mounts are enforced")
    return Finding(
        "mounts",
        "warning",
        "this engine drops ReadOnlyForceRecursive: what is mounted below a read-only mount "
        "could be written (nothing is, as far as boxes are made by this program)",
        "upgrade to Docker 25 or newer",
    )


def _kernel(facts: EngineFacts) -> Finding:
    text = f"{facts.kernel} on {facts.architecture}, {facts.cpus} CPUs, {facts.memory >> 20} MiB"
    if parse_version(facts.kernel) >= _OPENAT2:
        return Finding("kernel", "ok", text)
    return Finding(
        "kernel",
        "warning",
        f"{text}: without openat2 files are opened by a slower walk",
        "use Linux 5.6 or newer",
    )


def _place(facts: EngineFacts) -> Iterator[Finding]:
    if not facts.is_local:
        yield Finding(
            "engine's machine",
            "warning",
            f"{facts.address} may be another machine, and worktrees are mounted by their path",
            "have the worktree under the same path on the engine's machine",
        )


# ─── this machine ───────────────────────────────────────────────────────────────────


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok", f"{version} on {platform.system()} {platform.release()}")


def _directories(settings: Settings) -> Iterator[Finding]:
    directory = settings.state_directory
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = directory / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        mend = "set EXECUTOR_STATE_DIR to a directory that can be written"
        yield Finding("state directory", "fault", f"{directory}: {error.strerror}", mend)
        return
    yield Finding("state directory", "ok", str(directory))


def _disk(facts: EngineFacts) -> Iterator[Finding]:
    """Room for images, where the engine's directory can be looked at."""
    if not facts.is_local or not facts.root_directory:
        return
    place = Path(facts.root_directory)
    with suppress(OSError):
        free = shutil.disk_usage(place).free
        text = f"{free >> 20} MiB are free in {place}"
        level: Level = "ok" if free >= _IMAGE_BYTES else "warning"
        if free < _LEAST_BYTES:
            level = "fault"
        yield Finding("disk", level, text, "" if level == "ok" else f"make room in {place}")


async def _images(engine: Engine) -> list[Finding]:
    try:
        built = await list_built(engine)
    except EngineError as error:
        return [Finding("images", "fault", str(error), "see the sentence before")]
    current = {entry.kind: entry.name for entry in built if entry.current}
    missing = [kind for kind in ("base", "runtime") if kind not in current]
    if not missing:
        return [Finding("images", "ok", ", ".join(current.values()))]
    text = f"not built yet: {', '.join(missing)}; the first loop builds them and takes longer"
    findings = [Finding("images", "warning", text, "run `executor images build`")]
    packages = engine.settings.image_source is not ImageSource.REGISTRY
    if "base" in missing and packages and bootstrapper() is None:
        findings.append(
            Finding(
                "mmdebstrap",
                "warning",
                "without it (or debootstrap) images can be made from a registry only",
                "run `apt-get install mmdebstrap`",
            )
        )
    return findings


def is_able(findings: list[Finding]) -> bool:
    """The main job can run here."""
    return all(finding.level != "fault" for finding in findings)
