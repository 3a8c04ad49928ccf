"""What differs at Podman's Docker-compatible API: requests, and replies about them. Pure.

Seen on Podman 4.3, which is older than 26 of the options that it refuses or drops.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from executor.sandbox.facts import EngineFacts

MOST_PROCESSES = 32768
"""The `nproc` limit, for all processes of one uid. Podman would set more than it may itself
where it has no right to raise limits; it lowers its own to the kernel's highest pid, which
is nowhere lower than this."""

_OWNER = re.compile(r"uid=\d+,gid=\d+")
_INODES = re.compile(r",nr_inodes=\d+")
_DEFAULT_CAPABILITIES = frozenset(
    (
        *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
"""What Podman leaves to a container by default; dropping all is told by naming them."""
_ADDED_ENVIRONMENT = ("TERM=xterm", "container=podman", "container=oci")
_UNSAID = {
    "Config": ("NetworkDisabled", "StdinOnce"),
    "HostConfig": ("CgroupnsMode", "MaskedPaths", "ReadonlyPaths", "Mounts", "Sysctls"),
}
"""Fields that its replies leave empty whatever is in force. `Mounts` is told by `Binds` and
by the list of mount points; the others are in `weaknesses`, or are told by other fields."""
_SAME = {
    "IpcMode": ("shareable", "private"),
    "PidMode": ("private", ""),
    "UTSMode": ("private", ""),
}
"""Fields of `HostConfig`: what it says → what was asked for. Only the engine's own other
containers could share what is shareable."""


def is_podman(facts: EngineFacts) -> bool:
    """Whether the engine is Podman."""
    return facts.name == "podman"


def weaknesses(facts: EngineFacts) -> tuple[str, ...]:
    """What of a box is weaker than on Docker, in sentences; none where it is no Podman."""
    if not is_podman(facts):
        return ()
    return (
        "files in memory are limited in bytes only, not in number",
        "Podman's own lists of hidden and read-only paths are in force: more of /proc and /sys "
        "can be read, and a box of uid 0 can fill its memory through /dev",
        "the control group's path, and the address of the machine's resolver, can be read",
        f"the number of processes of one uid on the machine is limited to {MOST_PROCESSES}, "
        "over all boxes",
    )


def adapt(request: dict[str, Any], processes: int | None) -> None:
    """Write a create request in the options that Podman knows.

    Args:
        request: as for Docker; changed in place.
        processes: the machine's hard limit of processes; None = there is none.
    """
    host = request["HostConfig"]
    host["Tmpfs"] = {
        path: _INODES.sub("", _OWNER.sub("U", options)) + ",notmpcopyup"
        for path, options in host["Tmpfs"].items()
    }
    most = MOST_PROCESSES if processes is None else min(processes, MOST_PROCESSES)
    host["Ulimits"] = [*host["Ulimits"], {"Name": "nproc", "Soft": most, "Hard": most}]


def spelled(request: Mapping[str, Any], inspected: Mapping[str, Any]) -> dict[str, Any]:
    """A reply to `GET /containers/{id}/json` in Docker's words.

    What says something else than was asked for is left as it is, and is found by whoever
    compares.
    """
    config, host = dict(inspected.get("Config") or {}), dict(inspected.get("HostConfig") or {})
    _fill_in(config, request, _UNSAID["Config"])
    _fill_in(host, request["HostConfig"], _UNSAID["HostConfig"])
    own = (*_ADDED_ENVIRONMENT, f"HOSTNAME={request['Hostname']}")
    config["Env"] = [entry for entry in config.get("Env") or () if entry not in own]
    config["StopSignal"] = _signal(config.get("StopSignal"))
    if (config.get("Healthcheck") or {}).get("Test") == ["NONE"]:
        config["Healthcheck"] = {"Test": ["NONE"]}
    for name, (said, meant) in _SAME.items():
        if host.get(name) == said:
            host[name] = meant
    if _capabilities(host.get("CapDrop")) >= _DEFAULT_CAPABILITIES:
        host["CapDrop"] = ["ALL"]
    if _binds_fit(host.get("Binds") or (), request["HostConfig"]["Mounts"]):
        host["Binds"] = []
    if _quota_fits(host):
        host["CpuPeriod"] = host["CpuQuota"] = 0
    host["Ulimits"] = list(map(_ulimit, host.get("Ulimits") or ()))
    host["Tmpfs"] = _tmpfs(host.get("Tmpfs") or {}, request["User"])
    return {**inspected, "Config": config, "HostConfig": host}


def _fill_in(made: dict[str, Any], asked: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if not made.get(name):
            made[name] = asked.get(name)


def _signal(value: Any) -> Any:
    """`9` → `SIGKILL`."""
    try:
        return signal.Signals(int(value)).name
    except (TypeError, ValueError):
        return value


def _capabilities(names: Any) -> set[str]:
    return {str(name).upper().removeprefix("CAP_") for name in names or ()}


def _binds_fit(binds: Sequence[str], mounts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the entries `source:target:options` are the mounts that were asked for."""
    wanted = {f"{one['Source']}:{one['Target']}": one for one in mounts}
    found = {place: set(options.split(",")) for place, _, options in _parted(binds)}
    return found.keys() == wanted.keys() and all(
        _mode_fits(found[place], one) for place, one in wanted.items()
    )


def _parted(binds: Sequence[str]) -> list[tuple[str, str, str]]:
    return [bind.rpartition(":") for bind in binds]


def _mode_fits(options: set[str], mount: Mapping[str, Any]) -> bool:
    mode = "ro" if mount["ReadOnly"] else "rw"
    is_recursive = "rbind" in options and mount["Type"] == "bind"
    return mode in options and "rprivate" in options and not is_recursive


def _quota_fits(host: Mapping[str, Any]) -> bool:
    """Whether the quota of cores is `NanoCpus`, told once more in other numbers."""
    period, quota = host.get("CpuPeriod") or 0, host.get("CpuQuota") or 0
    return bool(period) and quota * 1_000_000_000 // period == host.get("NanoCpus")


def _ulimit(one: Mapping[str, Any]) -> dict[str, Any]:
    return {**one, "Name": str(one.get("Name")).lower().removeprefix("rlimit_")}


def _tmpfs(made: Mapping[str, str], user: str) -> dict[str, str]:
    uid, _, gid = user.partition(":")
    return {path: _options(options, f"uid={uid},gid={gid}") for path, options in made.items()}


def _options(made: str, owner: str) -> str:
    """`U` is the box's user by name until the container is made; not to copy is not told."""
    options = [one for one in made.replace(owner, "U").split(",") if one != "rprivate"]
    if "tmpcopyup" not in options:
        options.append("notmpcopyup")
    return ",".join(options)
