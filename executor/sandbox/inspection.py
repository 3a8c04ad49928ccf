"""What the engine made of a request. Pure.

Engines drop what they do not know, rewrite what means the same, and let what they can't
enforce pass with a warning. A box whose policy is not the one that was asked for is not
started: security fields are compared by name, each through a normaliser for the
spellings that are alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from executor.errors import SandboxUnavailable


class PolicyMismatch(SandboxUnavailable):
    """The engine did not make the container that was asked for.

    Attributes:
        faults: one sentence for each field.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("The engine made another container than asked for: " + "; ".join(faults))


def _text(value: Any) -> str:
    return str(value or "")


def _number(value: Any) -> int:
    return int(value or 0)


def _flag(value: Any) -> bool:
    return bool(value)


def _names(value: Any) -> list[str]:
    return sorted(map(str, value or ()))


def _words(value: Any) -> list[str]:
    return list(value or ())


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value or {})


def _capabilities(value: Any) -> list[str]:
    """`cap_net_raw`, `CAP_NET_RAW` and `NET_RAW` are one."""
    return sorted(str(name).upper().removeprefix("CAP_") for name in value or ())


def _security(value: Any) -> list[str]:
    """`no-new-privileges`, with `:true` or `=true`; JSON profiles whatever their spacing."""
    return sorted(map(_security_option, value or ()))


def _security_option(option: str) -> str:
    name, _, rest = option.partition("=")
    if name == "seccomp" and rest.startswith("{"):
        return "seccomp=" + json.dumps(json.loads(rest), sort_keys=True)
    if re.fullmatch(r"no-new-privileges([:=]true)?", option):
        return "no-new-privileges"
    return option


def _ulimits(value: Any) -> list[tuple[str, int, int]]:
    return sorted((one["Name"], one["Soft"], one["Hard"]) for one in value or ())


def _log(value: Any) -> str:
    return _text((value or {}).get("Type"))


def _healthcheck(value: Any) -> dict[str, Any]:
    """Where none is to run, the image's own intervals are left beside that, for nothing."""
    given = dict(value or {})
    return {"Test": ["NONE"]} if given.get("Test") == ["NONE"] else given


def _restart(value: Any) -> str:
    name = _text((value or {}).get("Name"))
    return "" if name == "no" else name


def _tmpfs(value: Any) -> dict[str, list[str]]:
    return {path: sorted(options.split(",")) for path, options in (value or {}).items()}


def _mounts(value: Any) -> list[tuple[Any, ...]]:
    """`ReadOnly: false` and options that are off are left out by engines."""
    return sorted(map(_mount, value or ()))


def _mount(one: Mapping[str, Any]) -> tuple[Any, ...]:
    bind = {name: option for name, option in (one.get("BindOptions") or {}).items() if option}
    volume = {name: option for name, option in (one.get("VolumeOptions") or {}).items() if option}
    return (
        _text(one.get("Target")),
        _text(one.get("Type")),
        _text(one.get("Source")),
        _flag(one.get("ReadOnly")),
        json.dumps([bind, volume], sort_keys=True),
    )


def _isolation(value: Any) -> str:
    text = _text(value)
    return "" if text == "default" else text


Normaliser = Callable[[Any], Any]

_CONFIG: dict[str, Normaliser] = {
    "User": _text,
    "Entrypoint": _words,
    "Cmd": _words,
    "WorkingDir": _text,
    "Hostname": _text,
    "Env": _names,
    "OpenStdin": _flag,
    "StdinOnce": _flag,
    "Tty": _flag,
    "NetworkDisabled": _flag,
    "Healthcheck": _healthcheck,
    "StopSignal": _text,
}
_HOST_CONFIG: dict[str, Normaliser] = {
    "Binds": _names,
    "VolumesFrom": _names,
    "VolumeDriver": _text,
    "LogConfig": _log,
    "NetworkMode": _text,
    "PortBindings": _mapping,
    "PublishAllPorts": _flag,
    "Dns": _names,
    "DnsOptions": _names,
    "DnsSearch": _names,
    "ExtraHosts": _names,
    "RestartPolicy": _restart,
    "AutoRemove": _flag,
    "Privileged": _flag,
    "CapAdd": _capabilities,
    "CapDrop": _capabilities,
    "SecurityOpt": _security,
    "GroupAdd": _names,
    "CgroupnsMode": _text,
    "IpcMode": _text,
    "PidMode": _text,
    "UTSMode": _text,
    "UsernsMode": _text,
    "CgroupParent": _text,
    "Links": _names,
    "Devices": _names,
    "DeviceCgroupRules": _names,
    "DeviceRequests": _names,
    "Sysctls": _mapping,
    "StorageOpt": _mapping,
    "Annotations": _mapping,
    "ReadonlyRootfs": _flag,
    "ReadonlyPaths": _names,
    "ContainerIDFile": _text,
    "Cgroup": _text,
    "Isolation": _isolation,
    "Init": _flag,
    "Memory": _number,
    "MemorySwap": _number,
    "MemoryReservation": _number,
    "KernelMemory": _number,
    "KernelMemoryTCP": _number,
    "OomKillDisable": _flag,
    "BlkioWeight": _number,
    "BlkioWeightDevice": _words,
    "BlkioDeviceReadBps": _words,
    "BlkioDeviceWriteBps": _words,
    "BlkioDeviceReadIOps": _words,
    "BlkioDeviceWriteIOps": _words,
    "IOMaximumIOps": _number,
    "IOMaximumBandwidth": _number,
    "CpuCount": _number,
    "CpuPercent": _number,
    "NanoCpus": _number,
    "CpuPeriod": _number,
    "CpuQuota": _number,
    "CpuRealtimePeriod": _number,
    "CpuRealtimeRuntime": _number,
    "CpuShares": _number,
    "CpusetCpus": _text,
    "CpusetMems": _text,
    "PidsLimit": _number,
    "OomScoreAdj": _number,
    "Ulimits": _ulimits,
    "Tmpfs": _tmpfs,
    "ShmSize": _number,
    "Mounts": _mounts,
}

COMPARED = frozenset(_HOST_CONFIG)
"""Fields of `HostConfig` that must come back as they were asked for."""
AT_LEAST = ("MaskedPaths",)
"""Fields to which an engine may add."""
LEFT = {
    "Runtime": "compared where it was asked for by name; some engines have no name for it",
    "ConsoleSize": "there is no console",
    "MemorySwappiness": "there is no swap to use, and engines differ in how they say so",
}
"""Fields that are not compared, and why."""


def check_read_back(request: Mapping[str, Any], inspected: Mapping[str, Any]) -> None:
    """Raises `PolicyMismatch` when the container is not the one that was asked for."""
    if faults := read_back_faults(request, inspected):
        raise PolicyMismatch(faults)


def read_back_faults(request: Mapping[str, Any], inspected: Mapping[str, Any]) -> list[str]:
    """Security fields in which a created container differs from its request.

    Args:
        request: the body of `POST /containers/create`.
        inspected: the reply to `GET /containers/{id}/json`.
    """
    config, host = inspected.get("Config") or {}, inspected.get("HostConfig") or {}
    faults = [
        *_differences("", _CONFIG, request, config),
        *_differences("HostConfig.", _HOST_CONFIG, request["HostConfig"], host),
        *_image_faults(request["Image"], inspected),
        *_shorter(request["HostConfig"], host),
        *_mount_point_faults(request, inspected.get("Mounts") or []),
    ]
    asked = request["HostConfig"].get("Runtime")
    if asked and host.get("Runtime") != asked:
        faults.append(f"HostConfig.Runtime: asked for {asked!r}, made {host.get('Runtime')!r}")
    labels = config.get("Labels") or {}
    for name, value in request["Labels"].items():
        if labels.get(name) != value:
            faults.append(f"Labels: {name} is {labels.get(name)!r} instead of {value!r}")
    return faults


def _differences(
    prefix: str,
    fields: Mapping[str, Normaliser],
    asked: Mapping[str, Any],
    made: Mapping[str, Any],
) -> list[str]:
    faults = []
    for name, normalise in fields.items():
        if name in made and made[name] == asked.get(name):
            continue  # word for word: nothing to be normalised
        wanted = normalise(asked.get(name))
        try:
            found = normalise(made.get(name))
        except (TypeError, ValueError, KeyError, AttributeError):
            faults.append(f"{prefix}{name}: can't be read: {str(made.get(name))[:200]!r}")
            continue
        if wanted != found:
            faults.append(f"{prefix}{name}: asked for {wanted!r}, made {found!r}")
    return faults


def _image_faults(asked: str, inspected: Mapping[str, Any]) -> list[str]:
    made = inspected.get("Image")
    if asked.startswith("sha256:") and made != asked:
        return [f"Image: asked for {asked}, made of {made}"]
    return []


def _shorter(asked: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    faults = []
    for name in AT_LEAST:
        if missing := sorted(set(asked[name]) - set(made.get(name) or ())):
            faults.append(f"HostConfig.{name}: {', '.join(missing)} missing")
    return faults


def _mount_point_faults(request: Mapping[str, Any], made: Iterable[Mapping[str, Any]]) -> list[str]:
    """The mounts that there are, those of the image's volumes among them, are ours."""
    wanted = {one["Target"]: one for one in request["HostConfig"]["Mounts"]}
    found = {_text(one.get("Destination")): one for one in made if one.get("Type") != "tmpfs"}
    faults = [f"Mounts: nobody asked for one at {path}" for path in sorted(found.keys() - wanted)]
    faults += [f"Mounts: {path} is missing" for path in sorted(wanted.keys() - found)]
    for path in sorted(wanted.keys() & found):
        one, asked = found[path], wanted[path]
        source = one.get("Name") if asked["Type"] == "volume" else one.get("Source")
        if (one.get("Type"), source) != (asked["Type"], asked["Source"]):
            faults.append(f"Mounts: {path} is {source!r} instead of {asked['Source']!r}")
        if _flag(one.get("RW")) is asked["ReadOnly"]:
            faults.append(f"Mounts: {path} has RW={one.get('RW')!r}")
        if asked["Type"] == "bind" and one.get("Propagation") != "rprivate":
            faults.append(f"Mounts: {path} has propagation {one.get('Propagation')!r}")
    return faults


_REQUIRED_LIMIT = re.compile(
    r"\bmemory limit|limited without swap|\bswap limit|\bpids limit|\bcfs\b|\bcpu (cfs )?quota"
    r"|cpu limit|resource limits",
    re.IGNORECASE,
)


def warning_faults(warnings: Iterable[str] | None) -> list[str]:
    """The warnings of a create reply that say a required limit is not in force.

    Memory, swap, CPU and processes are required. Other warnings are for the reader.
    """
    return [text for text in warnings or () if _REQUIRED_LIMIT.search(text)]
