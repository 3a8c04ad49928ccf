"""What an engine says about itself → `EngineFacts`. Pure.

Engines differ by maker, version and set-up. Every such difference that the package
knows of is read here, from the replies to `GET /version` and `GET /info`, and asked
for by name elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

API_FLOOR = (1, 41)
"""The oldest engine API that is spoken: Docker 20.10, Podman 4."""
API_CEILING = (1, 51)
"""The newest that was tried; a newer engine is spoken to in this one."""
_RECURSIVE_READ_ONLY = (1, 44)
_CREATE_MOUNTPOINT = (1, 42)
DELEGATED = "CgroupControllers"
"""Where `parse_facts` finds the names of the control groups that a rootless Podman may use."""
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_VERSION_TEXT = re.compile(r"\d+(?:\.\d+)*(?:-rc\.?\d+)?")
_RUNTIME_COMPONENT = re.compile(r"runc|OCI Runtime \((?P<name>[\w.-]+)\)")
_OWN_KERNEL = re.compile(r"(containerd-shim-|io\.containerd\.)?(runsc|kata|krun)\b[\w.-]*")
_GVISOR = re.compile(r"(containerd-shim-|io\.containerd\.)?runsc\b[\w.-]*")
_RUNC = re.compile(r"(containerd-shim-|io\.containerd\.)?runc\b[\w.-]*")
_FLAG = "--oci-seccomp"
_SAYS_YES = re.compile(r"--oci-seccomp(=(1|t|T|true|TRUE|True))?")
_REMAPPED_ROOT = re.compile(r"(\d{1,10})\.(\d{1,10})")

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """The leading numbers of a version: `20.10.24+dfsg1` → (20, 10, 24); none → ()."""
    match = _VERSION.search(text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine, as it described itself.

    Attributes:
        address: where it was reached, e.g. `unix:///var/run/docker.sock`.
        name: whose engine it is; they differ in small ways.
        version: as the engine writes it, e.g. `20.10.24+dfsg1`.
        api_version: the version that is spoken with it.
        offered_api: the newest version that it offers.
        minimum_api: the oldest version that it accepts.
        oci_runtime: name of the program that starts containers, e.g. `runc`.
        oci_version: that program's version; empty = the engine does not say.
        cgroup_version: 1 or 2.
        cgroup_driver: `none` = no limit can be enforced.
        security: names out of the engine's security options, e.g. `seccomp`.
        memory_limit, swap_limit, cpu_limit, pids_limit: what it can enforce.
        default_runtime: used when a loop names none.
        runtimes: the names that a loop may give.
        programs: name of a runtime → path of its program, or its type where the engine
            names that; a name that says nothing more is not in here.
        arguments: name of a runtime → what its program is started with; a runtime of which
            the engine does not tell that is not in here.
        storage_driver: e.g. `overlay2`.
        root_directory: where it keeps its data, on its own machine.
        architecture: as `uname -m` says, e.g. `x86_64`.
        memory: bytes of its machine.
        warnings: its own words.
    """

    address: str
    name: Literal["docker", "podman"]
    version: str
    api_version: Version
    offered_api: Version
    minimum_api: Version
    oci_runtime: str
    oci_version: str
    cgroup_version: int
    cgroup_driver: str
    security: frozenset[str]
    memory_limit: bool
    swap_limit: bool
    cpu_limit: bool
    pids_limit: bool
    default_runtime: str
    runtimes: tuple[str, ...]
    storage_driver: str
    root_directory: str
    operating_system: str
    kernel: str
    architecture: str
    cpus: int
    memory: int
    warnings: tuple[str, ...]
    programs: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def seccomp(self) -> bool:
        """System calls can be filtered."""
        return "seccomp" in self.security

    @property
    def apparmor(self) -> bool:
        """AppArmor confines containers."""
        return "apparmor" in self.security

    @property
    def selinux(self) -> bool:
        """SELinux labels containers."""
        return "selinux" in self.security

    @property
    def rootless(self) -> bool:
        """The engine runs as an ordinary user."""
        return "rootless" in self.security

    @property
    def userns(self) -> bool:
        """Container uids are other uids outside."""
        return "userns" in self.security or self.rootless

    @property
    def seccomp_by_path(self) -> bool:
        """A seccomp profile must be a path on the engine's machine, not JSON."""
        return self.name == "podman"

    @property
    def has_recursive_read_only(self) -> bool:
        """`ReadOnlyForceRecursive` is honoured, not dropped; `NonRecursive` always was."""
        return self.name == "docker" and self.api_version >= _RECURSIVE_READ_ONLY

    @property
    def ignored_options(self) -> tuple[str, ...]:
        """Options of mounts that this engine would drop; they are not sent to it."""
        ignored = []
        if not self.has_recursive_read_only:
            ignored.append("ReadOnlyForceRecursive")
        if self.name == "podman" or self.api_version < _CREATE_MOUNTPOINT:
            ignored.append("CreateMountpoint")
        return tuple(ignored)

    @property
    def remapped_root(self) -> tuple[int, int] | None:
        """Uid and gid that uid 0 of a box has outside, where the engine remaps users.

        With `userns-remap` Docker keeps its data in a directory of that name; it tells
        the map nowhere else. None = no remapping, or the engine does not say.
        """
        if "userns" not in self.security or self.rootless:
            return None
        match = _REMAPPED_ROOT.fullmatch(PurePosixPath(self.root_directory).name)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def is_local(self) -> bool:
        """Paths of this machine are the engine's paths."""
        return self.address.startswith("unix://")

    # ── runtimes ──

    def program_of(self, runtime: str) -> str:
        """What starts the boxes of this runtime: a program's name, or a shim's type.

        The path or type that the administrator registered is what runs, whatever name it
        was given; the name decides only where the engine tells nothing else.
        """
        return PurePosixPath(self.programs.get(runtime) or runtime).name

    def is_gvisor(self, runtime: str) -> bool:
        """System calls of this runtime's boxes are served by gVisor."""
        return _GVISOR.fullmatch(self.program_of(runtime)) is not None

    def ignores_seccomp(self, runtime: str) -> bool:
        """It is known to leave profiles of system calls unused: gVisor that was not asked."""
        told = self.arguments.get(runtime)
        if not self.is_gvisor(runtime) or told is None:
            return False
        given = ["--" + text.lstrip("-") for text in told]
        flags = [one for one in given if one.partition("=")[0] == _FLAG]
        return not flags or _SAYS_YES.fullmatch(flags[-1]) is None

    def is_runc(self, runtime: str) -> bool:
        """It is runc, under whatever name."""
        return _RUNC.fullmatch(self.program_of(runtime)) is not None

    def version_of(self, runtime: str) -> str:
        """The version of a runtime; empty where the engine tells that of another one only."""
        if not self.oci_runtime:
            return ""
        told = self.programs.get(self.oci_runtime, self.oci_runtime)
        return self.oci_version if self.programs.get(runtime, runtime) == told else ""

    def has_own_kernel(self, runtime: str) -> bool:
        """Boxes of this runtime are known not to share the machine's kernel.

        True for gVisor, Kata Containers and krun. What is not known is taken to share it.
        """
        return _OWN_KERNEL.fullmatch(self.program_of(runtime)) is not None


def parse_facts(address: str, version: Mapping[str, Any], info: Mapping[str, Any]) -> EngineFacts:
    """The facts in the replies to `GET /version` and `GET /info`.

    Args:
        address: where the engine was reached.
        version: the reply to `GET /version`.
        info: the reply to `GET /info`; of a rootless Podman with `DELEGATED`.
    """
    offered = parse_version(str(version.get("ApiVersion") or ""))
    components = [part for part in version.get("Components") or [] if isinstance(part, dict)]
    podman = any("podman" in str(part.get("Name", "")).lower() for part in components)
    oci_runtime, oci_version = _oci_runtime(components)
    return EngineFacts(
        address=address,
        name="podman" if podman else "docker",
        version=str(version.get("Version") or "unknown"),
        api_version=min(offered, API_CEILING),
        offered_api=offered,
        minimum_api=parse_version(str(version.get("MinAPIVersion") or "")),
        oci_runtime=oci_runtime,
        oci_version=oci_version,
        cgroup_version=2 if str(info.get("CgroupVersion")) == "2" else 1,
        cgroup_driver=str(info.get("CgroupDriver") or ""),
        security=_security(info),
        **_limits(info),
        default_runtime=str(info.get("DefaultRuntime") or ""),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        programs=_programs(info.get("Runtimes") or {}),
        arguments={} if podman else _arguments(info.get("Runtimes") or {}),
        storage_driver=str(info.get("Driver") or ""),
        root_directory=str(info.get("DockerRootDir") or ""),
        operating_system=str(info.get("OperatingSystem") or ""),
        kernel=str(info.get("KernelVersion") or ""),
        architecture=machine_name(str(info.get("Architecture") or version.get("Arch") or "")),
        cpus=int(info.get("NCPU") or 0),
        memory=int(info.get("MemTotal") or 0),
        warnings=tuple(str(line) for line in info.get("Warnings") or []),
    )


def _oci_runtime(components: list[dict[str, Any]]) -> tuple[str, str]:
    """Docker lists `runc`; Podman `OCI Runtime (crun)` with a whole `--version` text."""
    for part in components:
        match = _RUNTIME_COMPONENT.fullmatch(str(part.get("Name", "")))
        if match:
            numbers = _VERSION_TEXT.search(str(part.get("Version", "")))
            return match["name"] or "runc", numbers[0] if numbers else ""
    return "", ""


def _programs(runtimes: Mapping[str, Any]) -> dict[str, str]:
    """Docker gives a path, or for a shim of containerd its type."""
    found = {}
    for name, entry in runtimes.items():
        given = entry if isinstance(entry, dict) else {}
        if program := str(given.get("path") or given.get("runtimeType") or ""):
            found[name] = program
    return found


def _arguments(runtimes: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Docker tells them of a program, and leaves out an empty list; of a shim nobody does."""
    return {
        name: tuple(map(str, entry.get("runtimeArgs") or ()))
        for name, entry in runtimes.items()
        if isinstance(entry, dict) and entry.get("path")
    }


def _security(info: Mapping[str, Any]) -> frozenset[str]:
    """`["name=seccomp,profile=default", "name=rootless"]` → {seccomp, rootless}."""
    names = set()
    for option in info.get("SecurityOptions") or []:
        for pair in str(option).split(","):
            key, _, value = pair.partition("=")
            if key == "name":
                names.add(value)
    if info.get("Rootless") is True:  # Podman has it here, and in no option
        names.add("rootless")
    return frozenset(names)


def _limits(info: Mapping[str, Any]) -> dict[str, bool]:
    """What is enforced. Without a cgroup driver nothing is, whatever else is said.

    A rootless Podman says what the machine's root could enforce; it enforces what was
    delegated to its user, and nothing with version 1.
    """
    enforced = info.get("CgroupDriver") != "none"
    keys = {
        "memory_limit": ("MemoryLimit", "memory"),
        "swap_limit": ("SwapLimit", "memory"),
        "cpu_limit": ("CpuCfsQuota", "cpu"),
        "pids_limit": ("PidsLimit", "pids"),
    }
    found = {name: enforced and bool(info.get(key)) for name, (key, _) in keys.items()}
    if info.get("Rootless") is True:
        is_second = str(info.get("CgroupVersion")) == "2"
        delegated = set(info.get(DELEGATED) or ()) if is_second else set()
        return {name: found[name] and keys[name][1] in delegated for name in keys}
    return found


def machine_name(name: str) -> str:
    """One name for each kind of machine: engines have `uname -m`, images and Podman Go's names."""
    same = {"amd64": "x86_64", "arm64": "aarch64", "armv7l": "arm", "armv6l": "arm", "i686": "386"}
    return same.get(name, name)
