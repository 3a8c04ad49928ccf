"""What of this machine helps or hinders: facts → findings.

`judge` is pure; `examine` asks the machine and the engine. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from executor.catalog import Lane, LaneEntry, Policy
from executor.errors import ConfigError, EngineError, EngineUnavailable
from executor.git.program import Git
from executor.sandbox import bridge, caches, ext4, gate, podman
from executor.sandbox.container import runtime_faults
from executor.sandbox.engine import Engine, address_fault
from executor.sandbox.facts import EngineFacts, Version, parse_version
from executor.sandbox.images import Entry, list_built
from executor.sandbox.ownership import REMAPPED
from executor.sandbox.rootfs import bootstrapper
from executor.settings import ImageSource, Settings

Level = Literal["ok", "warning", "fault"]

NO_DEMANDS = Policy()
NO_LANES: Mapping[Lane, LaneEntry] = {}
_OPENAT2: Version = (5, 6)
_IGNORED = {
    "ReadOnlyForceRecursive": "what is mounted below a read-only mount could be written; "
    "nothing is, as far as boxes are made by this program",
    "CreateMountpoint": "a source that is missing is an error all the same",
}
"""Option of a mount → what its absence means."""
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


async def examine(
    settings: Settings,
    policy: Policy = NO_DEMANDS,
    runtime: str | None = None,
    lanes: Mapping[Lane, LaneEntry] = NO_LANES,
) -> list[Finding]:
    """Everything that can be found out without starting a box.

    Args:
        policy: what the configuration demands of the engine.
        runtime: what loops are configured to run with; None = nothing is said.
        lanes: as they are configured.
    """
    git = await asyncio.to_thread(_git, settings)
    findings = [_python(), git, *_directories(settings), *_quota(settings)]
    findings += await asyncio.to_thread(lambda: list(_caches(settings)))
    try:
        engine = await Engine.connect(settings)
    except EngineUnavailable as error:
        return [*findings, Finding("engine", "fault", str(error), "see the sentence before")]
    async with engine:
        findings += judge(engine.facts, policy, runtime)
        of_lanes = judge_runtimes(engine.facts, lanes, policy)
        findings += [finding for finding in of_lanes if finding not in findings]
        if (fault := address_fault(settings)) is not None:
            findings.append(Finding("engine's address", "warning", fault, "see there"))
        findings += _disk(engine.facts)
        findings += await _images(engine)
    return findings


# ─── the engine, pure ───────────────────────────────────────────────────────────────


def judge(
    facts: EngineFacts, policy: Policy = NO_DEMANDS, runtime: str | None = None
) -> list[Finding]:
    """What follows from what the engine says about itself, and from the policy."""
    return [
        _engine_version(facts),
        _runtime(facts, gate.choose_runtime(policy, facts, runtime)),
        _limits(facts),
        _seccomp(facts),
        _confinement(facts),
        *_policy(facts, policy, runtime),
        *_allowed_images(policy),
        *_users(facts),
        _mount_options(facts),
        *_podman(facts),
        _kernel(facts),
        *_place(facts),
        *(Finding("engine's own warning", "warning", line) for line in facts.warnings),
    ]


def _engine_version(facts: EngineFacts) -> Finding:
    api = ".".join(map(str, facts.api_version))
    text = f"{facts.name} {facts.version}, API {api}, at {facts.address}"
    return _by_version("engine", text, gate.engine_weakness(facts))


def _runtime(facts: EngineFacts, runtime: str) -> Finding:
    name = facts.program_of(runtime) or facts.oci_runtime or "unknown"
    kernel = "a kernel of its own" if facts.has_own_kernel(runtime) else "the machine's kernel"
    others = ", ".join(facts.runtimes) or "unknown"
    version = facts.version_of(runtime) or "of unknown version"
    text = f"{name} {version}, on {kernel}; available: {others}"
    return _by_version("runtime", text, gate.runtime_weakness(facts, runtime))


def _by_version(name: str, text: str, weakness: str) -> Finding:
    if not weakness:
        return Finding(name, "ok", text)
    fault, _, mend = weakness.partition(": ")
    faults = fault.rpartition(" may have ")[2]
    return Finding(name, "warning", f"{text}: this version may have {faults}", mend)


def _policy(facts: EngineFacts, policy: Policy, runtime: str | None) -> Iterator[Finding]:
    """What is refused only because the configuration says so."""
    known = {*gate.seccomp_faults(facts), *gate.limit_faults(facts)}
    chosen = gate.choose_runtime(policy, facts, runtime)
    verdicts = (gate.judge_engine(policy, facts), gate.judge_runtime(policy, facts, chosen))
    for text in dict.fromkeys(text for verdict in verdicts for text in verdict.refusals):
        if text not in known:
            fault, _, mend = text.rpartition(": ")
            yield Finding("policy", "fault", fault, mend)
    for name in verdicts[1].overrides:
        text = f"controller.{name} is in use: tenants share the machine's kernel"
        yield Finding("policy", "warning", text, "name a runtime with a kernel of its own")


def _allowed_images(policy: Policy) -> Iterator[Finding]:
    """Which images loops may have, where that is not all of them."""
    if policy.images is None and policy.tenancy == "single":
        return
    listed = "".join(f", {pattern}" for pattern in policy.images or ())
    yield Finding("allowed images", "ok", f"ours, and those given by digest{listed}")


def judge_lanes(lanes: Mapping[Lane, LaneEntry], policy: Policy = NO_DEMANDS) -> list[Finding]:
    """Lanes whose boxes have the engine's own network."""
    findings = []
    for name, lane in lanes.items():
        if lane.network == bridge.NETWORK:
            text = f'lane {name} has network = "bridge", which nothing protects'
            level: Level = "fault" if policy.tenancy == "multi" else "warning"
            mend = f'set lanes.{name}.network = "broker", and allow hosts with --egress'
            findings.append(Finding("network", level, text, mend))
    return findings


def judge_runtimes(
    facts: EngineFacts, lanes: Mapping[Lane, LaneEntry], policy: Policy = NO_DEMANDS
) -> list[Finding]:
    """What follows from the runtimes that lanes have of their own."""
    findings = []
    for name, lane in lanes.items():
        if lane.runtime is None:
            continue
        for text in runtime_faults(lane.runtime, facts):
            fault, _, known = text.rpartition("; ")
            mend = f"name another one, or add it to the engine ({known})"
            findings.append(Finding("runtime", "fault", f"lanes.{name}.{fault}", mend))
        findings += _policy(facts, policy, lane.runtime)
    return findings


def _limits(facts: EngineFacts) -> Finding:
    text = f"cgroup version {facts.cgroup_version}, driver {facts.cgroup_driver or 'unknown'}"
    if not (missing := gate.missing_limits(facts)):
        return Finding("limits", "ok", f"{text}; memory, swap, CPU and processes are enforced")
    mend = gate.limit_faults(facts)[0].rpartition(": ")[2]
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
            "the engine is rootless: its own user is uid 0 of the boxes, and worktrees of "
            "nobody else can be written in them",
            "give worktrees to the engine's user",
        )
    elif facts.remapped_root is not None:
        uid, gid = facts.remapped_root
        yield Finding(
            "users",
            "warning",
            f"the engine maps users: uid 0 of a box is {uid} outside, so only worktrees of the "
            f"uids from {uid} to {uid + REMAPPED - 1} can be written in a box",
            f"give worktrees to such a uid, for example with `chown -R {uid + 1000}:{gid + 1000}`",
        )
    elif facts.userns:
        yield Finding(
            "users",
            "warning",
            "the engine maps users, and does not say to which; worktrees can't be opened",
            "name the uid inside with --uid, or use an engine without userns-remap",
        )


def _mount_options(facts: EngineFacts) -> Finding:
    """A9: what an engine drops is not asked of it, and said."""
    ignored = [option for option in facts.ignored_options if option in _IGNORED]
    if not ignored:
        return Finding("mounts", "ok", "recursive read-only mounts are enforced")
    api = ".".join(map(str, facts.api_version))
    effects = "; ".join(f"{option} ({_IGNORED[option]})" for option in ignored)
    return Finding(
        "mounts",
        "warning",
        f"API {api} of {facts.name} does not know, and boxes go without: {effects}",
        "upgrade to Docker 25 or newer",
    )


def _podman(facts: EngineFacts) -> Iterator[Finding]:
    if weaknesses := podman.weaknesses(facts):
        text = "boxes are weaker than on Docker: " + "; ".join(weaknesses)
        yield Finding("podman", "warning", text, "use Docker where one of these matters")


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


def _git(settings: Settings) -> Finding:
    """Without one, loops still run where there is no repository, or where git is hidden."""
    try:
        git = Git.find(settings.git_program)
    except ConfigError as error:
        fault, _, mend = str(error).removeprefix("git: ").rpartition("; ")
        return Finding("git", "warning", fault, mend)
    return Finding("git", "ok", f"{'.'.join(map(str, git.version))}, at {git.program}")


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


def _quota(settings: Settings) -> Iterator[Finding]:
    """Whether a worktree can have a hard limit, and what was kept of those that had."""
    faults = ext4.faults()
    hard = f"loop-ext4 (hard) can't be had: {'; '.join(faults)}" if faults else "loop-ext4 (hard)"
    yield Finding("worktree quota", "ok", f"watch (soft); {hard}")
    if images := sorted((settings.state_directory / "kept").glob("*.ext4")):
        text = f"not brought back whole when their loops ended: {len(images)} in {images[0].parent}"
        yield Finding("kept worktrees", "warning", text, ext4.how_to_mount(images[0]))


def _caches(settings: Settings) -> Iterator[Finding]:
    """What loops keep from one to the next; nothing but a person removes one."""
    if sizes := caches.sizes(settings.state_directory):
        listed = ", ".join(f"{name} {size >> 20} MiB" for name, size in sizes.items())
        place = settings.state_directory / caches.PLACE
        yield Finding("caches", "ok", f"in {place}, by tenant, uid and name: {listed}")


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
    except (ConfigError, EngineError) as error:
        return [Finding("images", "fault", str(error), "see the sentence before")]
    current = [entry for entry in built if entry.current]
    kinds = {entry.kind for entry in current}
    missing = [kind for kind in ("base", "runtime") if kind not in kinds]
    if not missing:
        return [Finding("images", "ok", ", ".join(map(_shown, current)))]
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


def _shown(entry: Entry) -> str:
    """An image's name, with the layers that were chosen for it."""
    return f"{entry.name} ({', '.join(entry.layers)})" if entry.layers else entry.name


def is_able(findings: list[Finding]) -> bool:
    """The main job can run here."""
    return all(finding.level != "fault" for finding in findings)
