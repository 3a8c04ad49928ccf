"""What isolation a box really has, for a person and for a program. Pure.

Flat and JSON-able. It is made of the request that the engine was read back against and of
what the engine says about itself: what was dropped, is unknown, or was only asked for is
not claimed.

    ====================  ================================================================
    key                   value
    ====================  ================================================================
    engine, api           the engine's name and version; the version of the API spoken
    runtime               the runtime's name at the engine
    own_kernel            its boxes have a kernel of their own; false = the machine's
    agent_protection      what keeps commands away from process 1: `kernel`, or `watchdog`
                          where process 1 can be killed from inside, which ends the box
    path_resolution       how the agent stays below the worktree: `openat2`, or `walk`
    user                  uid:gid of everything in the box, seen inside
    user_outside          the same seen from outside; null = not known
    users                 `same`, `remapped` or `rootless`
    network               `none`; or that it is the engine's own, and unprotected
    memory, swap          bytes; swap is always 0
    cpus, pids            cores; processes and threads
    open_files            descriptors a process
    file_bytes            the largest file that a process may write
    cgroup                version of the control groups that hold the limits
    swap_accounting       the memory limit counts swap, too
    seccomp               the profile of system calls
    apparmor, selinux     the profile and the label in force; `none` = no such layer
    read_only_root        the image can't be written
    recursive_read_only   read-only mounts are so with all that is mounted below them
    ignored_options       options of mounts that this engine does not know; not asked for
    quota                 how growth of the worktree is limited
    git                   what of git there is inside
    notices               sentences for a person
    engine_notices        those of them that are about the engine, not about this box
    ====================  ================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from executor.sandbox import bridge
from executor.sandbox.container import Owner
from executor.sandbox.facts import EngineFacts, parse_version

_OPENAT2 = (5, 6)


def describe(
    facts: EngineFacts,
    request: Mapping[str, Any],
    inspected: Mapping[str, Any],
    outside: Owner | None,
    notices: Iterable[str] = (),
    engine_notices: Iterable[str] = (),
) -> dict[str, Any]:
    """The capabilities of a box, but for `seccomp`, `quota` and `git`, which others know.

    Args:
        facts: what the engine says about itself.
        request: what the box was made of; the engine was read back against it.
        inspected: the engine's reply about the started container.
        outside: whose the box is on the engine's machine; None = not known.
        notices: what a person should be told about the box.
        engine_notices: the same about the engine, which says nothing new with the next box.
    """
    host = request["HostConfig"]
    about_engine = list(dict.fromkeys(engine_notices))
    runtime = host.get("Runtime") or facts.default_runtime
    limits = {one["Name"]: one["Hard"] for one in host["Ulimits"]}
    return {
        "engine": f"{facts.name} {facts.version}",
        "api": ".".join(map(str, facts.api_version)),
        "runtime": runtime,
        "own_kernel": facts.has_own_kernel(runtime),
        "agent_protection": "watchdog" if facts.is_gvisor(runtime) else "kernel",
        "path_resolution": _path_resolution(facts, runtime),
        "user": request["User"],
        "user_outside": str(outside) if outside is not None else None,
        "users": _users(facts),
        "network": bridge.described(host["NetworkMode"]),
        "memory": host["Memory"],
        "swap": host["MemorySwap"] - host["Memory"],
        "cpus": host["NanoCpus"] / 1_000_000_000,
        "pids": min(host["PidsLimit"], limits.get("nproc", host["PidsLimit"])),
        "open_files": limits["nofile"],
        "file_bytes": limits["fsize"],
        "cgroup": facts.cgroup_version,
        "swap_accounting": facts.swap_limit,
        "apparmor": _shown(inspected, "AppArmorProfile", facts.apparmor),
        "selinux": _shown(inspected, "ProcessLabel", facts.selinux),
        "read_only_root": host["ReadonlyRootfs"],
        "recursive_read_only": _is_recursive(host["Mounts"]),
        "ignored_options": list(facts.ignored_options),
        "notices": list(dict.fromkeys((*notices, *about_engine))),
        "engine_notices": about_engine,
    }


def _users(facts: EngineFacts) -> str:
    if facts.rootless:
        return "rootless"
    return "remapped" if facts.userns else "same"


def _path_resolution(facts: EngineFacts, runtime: str) -> str:
    """gVisor has no `openat2`, nor has a kernel before 5.6."""
    has_call = parse_version(facts.kernel) >= _OPENAT2 and not facts.is_gvisor(runtime)
    return "openat2" if has_call else "walk"


def _shown(inspected: Mapping[str, Any], name: str, is_there: bool) -> str:
    """What inspect shows, where the engine has the layer at all."""
    value = str(inspected.get(name) or "") if is_there else ""
    return value if value and value != "unconfined" else "none"


def _is_recursive(mounts: Iterable[Mapping[str, Any]]) -> bool:
    read_only = [one for one in mounts if one["ReadOnly"] and one["Type"] == "bind"]
    return all(one["BindOptions"].get("ReadOnlyForceRecursive", False) for one in read_only)
