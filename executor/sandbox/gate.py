"""What the policy demands and what the engine is → refused, allowed, or warned of. Pure.

Two gates. `judge_engine` is asked when a controller starts: seccomp, the limits that must be
in force, access control, the engine's version. `judge_runtime` is asked for every box with
the runtime that it will really have, since that is what runs hostile code: an engine may
have a safe runtime beside one that is not.

What was found by version alone is a warning, since distributions repair faults under old
version numbers; with `require_patched_engine` it is a refusal. An override that is in use is
told to the caller, who has it written to the audit log before a box is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from executor.catalog import Policy
from executor.errors import UnsafeRuntime
from executor.sandbox.facts import EngineFacts, Version, parse_version

SHARED_KERNEL = "allow_shared_kernel"
"""The name under which that override is audited."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Where known faults of a program were repaired.

    Attributes:
        lines: the first repaired release of each line of releases; newer lines have it.
        candidates: releases that compare as repaired and are not.
        faults: the CVEs.
    """

    program: str
    lines: tuple[Version, ...]
    faults: str
    candidates: frozenset[str] = frozenset()

    def has(self, version: str) -> bool:
        """Whether this version is below the floor; one that can't be read is not known to be."""
        numbers = parse_version(version)
        if not numbers:
            return False
        line = [first for first in self.lines if first[:2] == numbers[:2]]
        is_repaired = numbers >= line[0] if line else numbers > self.lines[-1]
        return not is_repaired or version in self.candidates

    @property
    def mend(self) -> str:
        """The releases to upgrade to."""
        return ", ".join(".".join(map(str, line)) for line in self.lines) + " or newer"


FLOORS = (
    Floor("docker", ((29, 5, 1),), "CVE-2026-6406, CVE-2026-41567, CVE-2026-42306"),
    Floor("runc", ((1, 1, 12),), "CVE-2024-21626"),
    Floor(
        "runc",
        ((1, 2, 8), (1, 3, 3), (1, 4, 0)),
        "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
        frozenset({"1.4.0-rc.1", "1.4.0-rc.2"}),
    ),
)


def weaknesses(program: str, version: str) -> list[Floor]:
    """The floors that a version of `docker` or `runc` is below."""
    return [floor for floor in FLOORS if floor.program == program and floor.has(version)]


def weakness(program: str, version: str) -> str:
    """The sentence about a version below its floors, with the mend; empty when there is none."""
    found = weaknesses(program, version)
    if not found:
        return ""
    faults = ", ".join(floor.faults for floor in found)
    return (
        f"{program} {version} may have {faults}: upgrade to {found[-1].mend}, or see whether "
        "your distribution has repaired them under this version number"
    )


def engine_weakness(facts: EngineFacts) -> str:
    """What the engine's version says about known faults; Podman's says nothing."""
    return weakness(facts.name, facts.version)


def runtime_weakness(facts: EngineFacts, runtime: str) -> str:
    """The same for a runtime; an engine tells the version of one of them only."""
    return weakness(_program(facts, runtime), facts.version_of(runtime))


def _program(facts: EngineFacts, runtime: str) -> str:
    return "runc" if facts.is_runc(runtime) else facts.program_of(runtime)


# ─── the engine ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        refusals: why not; nothing = it may be used. One sentence each, with the mend.
        warnings: what a person should know.
        overrides: names of the options without which there would be a refusal.
    """

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises `UnsafeRuntime` with all refusals."""
        if self.refusals:
            raise UnsafeRuntime(self.refusals)


def judge_engine(policy: Policy, facts: EngineFacts) -> Verdict:
    """Whether boxes may be opened on this engine at all."""
    refusals = [*seccomp_faults(facts), *limit_faults(facts), *_access_faults(policy, facts)]
    warnings: list[str] = []
    if text := engine_weakness(facts):
        (refusals if policy.require_patched_engine else warnings).append(_by_policy(policy, text))
    known = facts.runtimes if facts.name == "docker" else ()
    runtimes = known or (facts.default_runtime,)
    verdicts = [judge_runtime(policy, facts, runtime) for runtime in runtimes]
    if all(verdict.refusals for verdict in verdicts):
        refusals += judge_runtime(policy, facts, choose_runtime(policy, facts, None)).refusals
    return Verdict(tuple(refusals), tuple(warnings))


def seccomp_faults(facts: EngineFacts) -> list[str]:
    """Why system calls would not be filtered."""
    if facts.seccomp:
        return []
    return [
        f"{_named(facts)} can't filter system calls (seccomp), and no box is opened without "
        "that: use an engine and a kernel with seccomp"
    ]


def limit_faults(facts: EngineFacts) -> list[str]:
    """Which required limits would not be in force."""
    missing = missing_limits(facts)
    if not missing:
        return []
    if missing == ["swap"]:
        mend = "boot with the kernel parameters cgroup_enable=memory swapaccount=1"
    elif facts.rootless:
        mend = "a rootless engine needs cgroup version 2 with delegation; or use a rootful engine"
    else:
        mend = "enable these controllers in the kernel, or use another machine"
    listed = ", ".join(missing)
    where = f"cgroup version {facts.cgroup_version}, driver {facts.cgroup_driver or 'unknown'}"
    return [f"limits that {_named(facts)} does not enforce: {listed} ({where}): {mend}"]


def missing_limits(facts: EngineFacts) -> list[str]:
    """Names of required limits that this engine can't enforce."""
    limits = {
        "memory": facts.memory_limit,
        "swap": facts.swap_limit,
        "CPU": facts.cpu_limit,
        "processes": facts.pids_limit,
    }
    return [name for name, is_enforced in limits.items() if not is_enforced]


def _access_faults(policy: Policy, facts: EngineFacts) -> list[str]:
    found = []
    if policy.require_access_control and not (facts.apparmor or facts.selinux):
        found.append(
            f"neither AppArmor nor SELinux confines containers of {_named(facts)}, and "
            "controller.require_access_control demands one: enable one of them in the kernel "
            "and the engine, or take the option out"
        )
    if policy.apparmor_profile is not None and not facts.apparmor:
        found.append(
            f"{_named(facts)} has no AppArmor, so the profile {policy.apparmor_profile} of "
            "controller.apparmor_profile can't be in force: enable AppArmor, or take the option out"
        )
    return found


def _by_policy(policy: Policy, text: str) -> str:
    demanded = "; controller.require_patched_engine refuses it"
    return text + (demanded if policy.require_patched_engine else "")


def _named(facts: EngineFacts) -> str:
    return f"{facts.name} {facts.version} at {facts.address}"


# ─── the runtime of a box ───────────────────────────────────────────────────────────


def choose_runtime(policy: Policy, facts: EngineFacts, named: str | None) -> str:
    """The runtime that a box gets; empty = the engine has not told of any.

    Several tenants get one with a kernel of its own where there is one, gVisor first. A
    runtime that is named is taken as it is, and judged. Podman's API has no way to choose:
    its boxes have its default, whatever else it knows.
    """
    if named is not None:
        return named
    if policy.tenancy == "multi" and facts.name == "docker":
        own = [runtime for runtime in facts.runtimes if facts.has_own_kernel(runtime)]
        own.sort(key=lambda runtime: (not facts.is_gvisor(runtime), runtime))
        if own and not facts.has_own_kernel(facts.default_runtime):
            return own[0]
    return facts.default_runtime


def judge_runtime(policy: Policy, facts: EngineFacts, runtime: str) -> Verdict:
    """Whether a box may be opened with this runtime.

    One that the engine does not have is not judged: nothing can be started with it.
    """
    if facts.runtimes and runtime not in facts.runtimes:
        return Verdict()
    refusals, warnings, overrides = unfiltered_faults(facts, runtime), [], []
    if policy.tenancy == "multi" and not facts.has_own_kernel(runtime):
        text = _shared(facts, runtime)
        if policy.allow_shared_kernel:
            warnings.append(text)
            overrides.append(SHARED_KERNEL)
        else:
            refusals.append(
                f"{text}: {_other(facts)}, or set controller.allow_shared_kernel = true"
            )
    if text := runtime_weakness(facts, runtime):
        (refusals if policy.require_patched_engine else warnings).append(_by_policy(policy, text))
    elif policy.require_patched_engine and facts.is_runc(runtime) and not facts.version_of(runtime):
        refusals.append(
            f"{_named(facts)} does not tell the version of its runtime {runtime}, and "
            "controller.require_patched_engine wants to know it: make it the engine's default "
            "runtime, or name another one"
        )
    return Verdict(tuple(refusals), tuple(warnings), tuple(overrides))


def unfiltered_faults(facts: EngineFacts, runtime: str) -> list[str]:
    """Why the profile of system calls would not be in force with this runtime.

    Of an engine that does not tell how it starts gVisor nothing is known here; what such a
    box can do is tried in it (`seccomp.unconfined`).
    """
    if not facts.ignores_seccomp(runtime):
        return []
    return [
        f"the runtime {runtime} of {_named(facts)} is gVisor without the argument --oci-seccomp, "
        "so it leaves the profile of system calls unused, and a command could write what is "
        "mounted read-only: run `make gvisor`, or add --oci-seccomp to the runtimeArgs of "
        f"{runtime} in the engine's daemon.json and send its process HUP"
    ]


def _shared(facts: EngineFacts, runtime: str) -> str:
    program = facts.program_of(runtime) or "unknown"
    name = f"{runtime or 'unknown'} ({program})" if program != runtime else program
    return (
        f"the runtime {name} shares the machine's kernel with its boxes, as far as is known, "
        'and controller.tenancy is "multi": one fault in the kernel is enough to get from one '
        "tenant to the next"
    )


def _other(facts: EngineFacts) -> str:
    own = [runtime for runtime in facts.runtimes if facts.has_own_kernel(runtime)]
    if own and facts.name == "podman":
        return f"make {' or '.join(own)} Podman's own default"
    if own:
        return f"name {' or '.join(own)} as the loop's runtime"
    return "install gVisor (`make gvisor`) or Kata Containers"


# ─── both, for one box ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Admission:
    """A box may be opened.

    Attributes:
        runtime: its runtime; None = the engine has not told of any, or judges names itself.
        warnings: what a person should know.
        overrides: to be written to the audit log first.
    """

    runtime: str | None
    warnings: tuple[str, ...]
    overrides: tuple[str, ...]


def admit(policy: Policy, facts: EngineFacts, named: str | None) -> Admission:
    """Admits a box with the runtime that is named, or with the one that fits.

    Docker is told the runtime by name also where it is the default: an engine's default
    may change, and the one that was judged is the one that is read back.

    Raises:
        UnsafeRuntime: the policy does not allow it; holds every reason.
    """
    runtime = choose_runtime(policy, facts, named)
    engine, mine = judge_engine(policy, facts), judge_runtime(policy, facts, runtime)
    both = Verdict(_once(engine.refusals, mine.refusals))
    both.check()
    told = runtime if facts.name == "docker" and runtime in facts.runtimes else named
    return Admission(told or None, _once(engine.warnings, mine.warnings), mine.overrides)


def _once(*groups: Sequence[str]) -> tuple[str, ...]:
    found: Iterable[str] = (text for group in groups for text in group)
    return tuple(dict.fromkeys(found))
