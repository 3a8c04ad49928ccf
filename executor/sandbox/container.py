"""A loop's specification → the body of the engine's `POST /containers/create`. Pure.

Every field that bears on security is written out, also where the engine's default is
the same: defaults differ between engines and can be changed by their administrators.
`inspection` compares what the engine made of it. `docs/security.md` has the reasons.

Memory in files. Everything that is written outside the worktree is memory of the box,
and process 1 is the victim when there is none left. So all of it together is at most
half of the memory limit, dealt out in 64ths of it:

    =================  ======  ===========  ==========================================
    path               64ths   at 4 GiB     for
    =================  ======  ===========  ==========================================
    /tmp               14      896 MiB      commands; what volumes of the image get
    /home/sandbox       8      512 MiB      HOME: caches, configuration
    /dev/shm            4      256 MiB      shared memory of browsers, workers
    /run/executor       3      192 MiB      the agent: output of running commands
    /var/tmp            2      128 MiB      commands
    /run                1       64 MiB      pid files, sockets
    =================  ======  ===========  ==========================================

`/dev` and, with cgroup v1, `/sys/fs/cgroup` are file systems in memory too, which uid 0
could fill: they are read-only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from executor.errors import BadPath, ConfigError
from executor.model import (
    CERTIFICATES,
    DIRECTORIES,
    GIT_DIRECTORY,
    GIT_OBJECTS,
    GIT_SETTINGS,
    MOUNT,
    RESULTS,
    LoopSpec,
    parse_size,
)
from executor.sandbox import bridge, podman, seccomp
from executor.sandbox.facts import EngineFacts

RUNTIME = "/opt/executor"
HOME = "/home/sandbox"
ENTRYPOINT = (
    f"{RUNTIME}/bin/python3",
    *("-I", "-S", "-B", "-X", "frozen_modules=on"),
    f"{RUNTIME}/agent",
)

LABEL_CONTROLLER = "executor.controller"
LABEL_BOOT = "executor.boot"
LABEL_LOOP = "executor.loop"
LABEL_TENANT = "executor.tenant"
LABEL_EXPIRES = "executor.expires"
LABEL_STATE = "executor.state"
LABEL_POLICY = "executor.policy"

READ_ONLY_PATHS = (
    *("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),
    *("/dev", "/sys/fs/cgroup"),
)
"""The engine's own list, which ours takes the place of, and two more for uid 0."""

_MASKED_PATHS = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys"),
    *("/proc/latency_stats", "/proc/pressure", "/proc/sched_debug", "/proc/scsi"),
    "/proc/timer_list",
    *("/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware"),
)
"""What the newest engines mask, for all of them: an older one lets some of it be read. And
`pressure`: everybody may ask to be told of the machine's, each request takes the kernel some
milliseconds to end, and a process with thousands of them can't be killed for minutes."""

SHARES = {
    "/tmp": 14,
    HOME: 8,
    "/dev/shm": 4,
    "/run/executor": 3,
    "/var/tmp": 2,
    "/run": 1,
}
"""64ths of the memory limit."""

MAX_VOLUMES = 8
MAX_ENVIRONMENT = 100_000
"""Bytes. Linux starts no program with more than 128 KiB in one variable."""
_VOLUMES_SHARE = 4
_PAGE = 4096
_BYTES_PER_INODE = 8192
_FEWEST_INODES = 256
_LOCKED_MEMORY = 8 << 20
_PENDING_SIGNALS = 4096
_QUEUE_BYTES = 400 << 10
"""Both are counted by uid over the whole machine: a person's own limits must stay above."""
_GVISOR_PIDS = 4096
_SYSCTLS = {
    "net.ipv4.tcp_rmem": "4096 131072 1048576",
    "net.ipv4.tcp_wmem": "4096 16384 1048576",
}
"""Buffers of TCP that grow by themselves, which no memory limit of control groups' version 1
counts: 1 MiB at most instead of 4 and up to 32. Every kernel since 4.15 has these for each network
namespace, and no other bound on sockets. What a program asks for may be more (`net.core`, the
machine's own); the agent's `sockets` looks after that. gVisor takes no notice."""
_SHARED_MEMORY = {
    "kernel.shm_rmid_forced": "1",
    "kernel.msgmni": "512",
    "kernel.sem": "250 32000 100 512",
}
"""A System V segment goes with the last process that has it. It would stay otherwise, as memory
that no kill gives back: one command could leave a box in which nothing more can be started. Queues
of messages and semaphores do stay, so there are few: 8 MiB of one, 2 MiB of the other."""
_CREATE_MOUNTPOINT = (1, 42)

FORBIDDEN = (
    *("/etc", "/proc", "/sys", "/dev", "/run", "/var/run", "/boot"),
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/var/lib/docker", "/var/lib/containerd", "/var/lib/containers"),
)
"""No worktree is, contains or lies in one of these."""
FORBIDDEN_ITSELF = ("/", "/root", "/home", "/usr", "/var")
"""No worktree is or contains one of these; directories in them are fine."""

_UNSAFE_FOR_AGENT = (
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GLIBC_TUNABLES"),
    *("PYTHONHOME", "PYTHONPATH"),
)


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a box is: the uid and gid of everything that runs in it."""

    uid: int
    gid: int

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"


@dataclass(frozen=True, slots=True)
class Image:
    """What of an image has a say in the container that is made of it.

    Attributes:
        reference: id or name, as the engine is to be asked for it.
        environment: its `NAME=value` entries.
        volumes: paths that it declares as volumes.
        working_directory: where it wants process 1 to start, which no box heeds.
    """

    reference: str
    environment: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    working_directory: str = ""

    @classmethod
    def of(cls, inspected: Mapping[str, Any]) -> Image:
        """The image in a reply to `GET /images/{name}/json`, by its id."""
        config = inspected.get("Config") or {}
        return cls(
            reference=str(inspected["Id"]),
            environment=tuple(config.get("Env") or ()),
            volumes=tuple(sorted(config.get("Volumes") or ())),
            working_directory=str(config.get("WorkingDir") or ""),
        )


@dataclass(frozen=True, slots=True)
class Files:
    """Generated files on the engine's machine that are bound over the image's.

    Attributes:
        git_settings: what git reads before any other settings.
        git: file or directory that covers the worktree's `.git`; None = it has none.
        certificates: those that clients believe instead of the image's; None = the image's.
    """

    passwd: Path
    group: Path
    hosts: Path
    git_settings: Path
    git: Path | None = None
    certificates: Path | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """A directory that is mounted beside the worktree.

    Attributes:
        source: real path on the engine's machine.
        target: in the box.
        read_only: the box can't change it.
        git: what covers its `.git`; None = it has none.
    """

    source: Path
    target: str
    read_only: bool
    git: Path | None = None


@dataclass(frozen=True, slots=True)
class GitView:
    """What a box has of git.

    Attributes:
        directory: the loop's own git directory on the engine's machine; the box may write it.
        pointer: a file that is bound over the worktree's `.git` and points to that directory;
            None = the directory is bound there itself.
        stores: object directories of the origin, read-only in the box.
        identities: device and inode that each of them must have there.
        nothing: an empty file. It covers what a store says of those that it borrows from: they
            are in `stores`, too, and git would complain at each command of paths that it lacks.
        covers: paths in the worktree, and files or directories of ours that are bound over them.
        described: for `capabilities`.
    """

    directory: Path
    pointer: Path | None = None
    stores: tuple[Path, ...] = ()
    described: str = "own"
    identities: tuple[tuple[int, int], ...] = ()
    nothing: Path | None = None
    covers: tuple[tuple[str, Path], ...] = ()

    @property
    def inside(self) -> str:
        """Where the git directory is in the box."""
        return f"{MOUNT}/.git" if self.pointer is None else GIT_DIRECTORY


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Hard limits of the machine's processes; an engine can't always raise them.

    Attributes:
        open_files, locked_memory, core, file_bytes, processes, pending_signals,
            queue_bytes: None = unlimited.
    """

    open_files: int | None = None
    locked_memory: int | None = None
    core: int | None = None
    file_bytes: int | None = None
    processes: int | None = None
    pending_signals: int | None = None
    queue_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a container is made of.

    Attributes:
        worktree: real path on the engine's machine.
        runtime_volume: name of the volume that holds the agent.
        labels: whose it is and how long it may live (`reaper.Identity.labels`).
        sizes: bytes for paths in memory, instead of their shares.
        seccomp: path of the profile of system calls, for an engine that wants one; None =
            the profile itself is sent (see `seccomp.write`).
        apparmor: name of a loaded profile; None = the engine's own choice.
        results: the directory of the loop's long outputs; None = there is none.
        beside: what else is mounted.
        git: what there is of git; None = it is covered.
        caches: directories of the tenant's.
        network: `none`, or `bridge`, the engine's own (see `executor.sandbox.bridge`).
    """

    spec: LoopSpec
    worktree: Path
    owner: Owner
    image: Image
    runtime_volume: str
    files: Files
    labels: Mapping[str, str]
    facts: EngineFacts
    ceilings: Ceilings = Ceilings()
    sizes: Mapping[str, int] = field(default_factory=dict)
    seccomp: str | None = None
    apparmor: str | None = None
    results: Path | None = None
    beside: tuple[Beside, ...] = ()
    git: GitView | None = None
    caches: tuple[Beside, ...] = ()
    network: str = "none"


def create_request(plan: Plan) -> dict[str, Any]:
    """The body of `POST /containers/create`.

    Raises:
        BadPath: the image's working directory leads out through a process's descriptors.
        ConfigError: the image, its volumes, the runtime or the sizes can't be served.
    """
    require_usable(plan.image)
    if faults := runtime_faults(plan.spec.runtime, plan.facts):
        raise ConfigError(faults)
    memory = plan.spec.limits.memory_bytes
    profile = plan.seccomp or seccomp.profile_of(plan.spec, plan.facts)
    sizes = memory_files(memory, covered_volumes(plan.image.volumes), plan.sizes)
    request: dict[str, Any] = {
        "Image": plan.image.reference,
        "User": str(plan.owner),
        "Entrypoint": list(ENTRYPOINT),
        "Cmd": [],
        "WorkingDir": MOUNT,
        "Hostname": "sandbox",
        "Domainname": "",
        "Env": _agent_environment(plan.image.environment),
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "StopTimeout": 1,
        "Labels": dict(plan.labels),
        "HostConfig": {
            **_isolation(),
            **_limits(plan),
            "Sysctls": _sysctls(plan.facts),
            "Tmpfs": _tmpfs(sizes, plan.owner),
            "ShmSize": sizes["/dev/shm"],
            "Mounts": _mounts(plan),
            "MaskedPaths": masked_paths(plan.facts),
            "SecurityOpt": security_options(profile, plan.apparmor),
        },
    }
    if plan.spec.runtime:
        request["HostConfig"]["Runtime"] = plan.spec.runtime
    if plan.network == bridge.NETWORK:
        bridge.connect(request)
    if podman.is_podman(plan.facts):
        podman.adapt(request, plan.ceilings.processes)
    request["Labels"][LABEL_POLICY] = policy_hash(request)
    return request


def require_usable(image: Image) -> None:
    """Refuses an image by what it says of itself, before the engine is told anything of it.

    Raises:
        BadPath: its working directory leads out through a process's descriptors.
        ConfigError: its volumes or its environment can't be served.
    """
    if fault := working_directory_fault(image.working_directory):
        raise BadPath(fault)
    if faults := [*volume_faults(image.volumes), *environment_faults(image.environment)]:
        raise ConfigError(faults)


def policy_hash(request: Mapping[str, Any]) -> str:
    """32 hex digits over the whole request but the label that holds them."""
    labels = {name: text for name, text in request["Labels"].items() if name != LABEL_POLICY}
    text = json.dumps({**request, "Labels": labels}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# ─── isolation ──────────────────────────────────────────────────────────────────────


def _isolation() -> dict[str, Any]:
    """The part of `HostConfig` that is the same for every loop."""
    return {
        "Binds": [],
        "VolumesFrom": [],
        "VolumeDriver": "",
        "LogConfig": {"Type": "none", "Config": {}},
        "NetworkMode": "none",
        "PortBindings": {},
        "PublishAllPorts": False,
        "Dns": [],
        "DnsOptions": [],
        "DnsSearch": [],
        "ExtraHosts": [],
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "AutoRemove": False,
        "Privileged": False,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "GroupAdd": [],
        "CgroupnsMode": "private",
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "CgroupParent": "",
        "Devices": [],
        "DeviceCgroupRules": [],
        "DeviceRequests": [],
        "StorageOpt": {},
        "ReadonlyRootfs": True,
        "ReadonlyPaths": list(READ_ONLY_PATHS),
        "Init": False,
    }


def masked_paths(facts: EngineFacts) -> list[str]:
    """`HostConfig.MaskedPaths`: what tells of the machine; ours takes the engine's place."""
    throttle = "/sys/devices/system/cpu/cpu{}/thermal_throttle"
    return [*_MASKED_PATHS, *(throttle.format(number) for number in range(facts.cpus))]


def security_options(profile: str, apparmor: str | None = None) -> list[str]:
    """`HostConfig.SecurityOpt`: the one place for seccomp and AppArmor profiles.

    Args:
        profile: of system calls: JSON, or its path where the engine wants that. Without one
            the engine's default would be in force.
        apparmor: name of a loaded profile; None = the engine's own choice.
    """
    options = ["no-new-privileges:true", f"seccomp={profile}"]
    return options if apparmor is None else [*options, f"apparmor={apparmor}"]


# ─── limits ─────────────────────────────────────────────────────────────────────────


def _limits(plan: Plan) -> dict[str, Any]:
    limits, facts = plan.spec.limits, plan.facts
    memory = limits.memory_bytes
    cpus = min(limits.cpus, facts.cpus) if facts.cpus else limits.cpus
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "MemoryReservation": 0,
        "NanoCpus": int(cpus * 1_000_000_000),
        "CpuShares": 256,
        "CpusetCpus": "",
        "CpusetMems": "",
        "PidsLimit": _pids(plan),
        "OomScoreAdj": 500,
        "Ulimits": [
            _ulimit("core", 1, plan.ceilings.core),
            _ulimit("nofile", limits.open_files, plan.ceilings.open_files),
            _ulimit("fsize", parse_size(limits.file_bytes), plan.ceilings.file_bytes),
            _ulimit("memlock", _LOCKED_MEMORY, plan.ceilings.locked_memory),
            _ulimit("sigpending", _PENDING_SIGNALS, plan.ceilings.pending_signals),
            _ulimit("msgqueue", _QUEUE_BYTES, plan.ceilings.queue_bytes),
            *_process_ulimit(plan),
        ],
    }


def _sysctls(facts: EngineFacts) -> dict[str, str]:
    """In a user namespace many kernels let nobody write those of the IPC namespace."""
    return dict(_SYSCTLS) if facts.userns else _SYSCTLS | _SHARED_MEMORY


def _is_gvisor(plan: Plan) -> bool:
    return plan.facts.is_gvisor(plan.spec.runtime or plan.facts.default_runtime)


def _pids(plan: Plan) -> int:
    """gVisor's own threads count against the limit; `nproc` is what bounds processes there."""
    pids = plan.spec.limits.pids
    return max(pids, _GVISOR_PIDS) if _is_gvisor(plan) else pids


def _process_ulimit(plan: Plan) -> list[dict[str, Any]]:
    """`nproc`, only where it counts the processes of one box and not all of one uid.

    Under gVisor it does, and nothing else bounds them: `PidsLimit` counts gVisor's threads.
    """
    return [_ulimit("nproc", plan.spec.limits.pids, None)] if _is_gvisor(plan) else []


def _ulimit(name: str, value: int, ceiling: int | None) -> dict[str, Any]:
    value = value if ceiling is None else min(value, ceiling)
    return {"Name": name, "Soft": value, "Hard": value}


def working_directory_fault(path: str) -> str:
    """Why no process may start there: the path leads through the descriptors of one.

    A process that starts in `/proc/self/fd/N` starts wherever a descriptor of the engine
    leads, out of the container (CVE-2024-21626).
    """
    if not any(_clean(path).is_relative_to(place) for place in ("/proc", "/dev")):
        return ""
    return (
        f"image: its working directory {path!r} leads through a process or a device, out of the "
        "container perhaps; use an image with another WORKDIR"
    )


def runtime_faults(runtime: str | None, facts: EngineFacts) -> list[str]:
    """Why the engine can't run a box with the runtime that is asked for."""
    if runtime is None or not facts.runtimes or runtime in facts.runtimes:
        return []
    known = ", ".join(facts.runtimes)
    return [f"runtime: the engine has no {runtime!r}; it has {known}"]


# ─── files in memory ────────────────────────────────────────────────────────────────


def memory_files(
    memory: int, volumes: Sequence[str] = (), sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Path → bytes, for everything that is kept in memory, `/dev/shm` included.

    Args:
        memory: the box's memory limit in bytes.
        volumes: paths that share `_VOLUMES_SHARE` 64ths, which `/tmp` goes without.
        sizes: bytes for single paths instead of their shares.

    Raises:
        ConfigError: all together are more than half of the memory limit.
    """
    table = {path: share * memory // 64 for path, share in SHARES.items()}
    if volumes:
        share = _VOLUMES_SHARE * memory // 64
        table["/tmp"] -= share
        table.update({path: share // len(volumes) for path in volumes})
    table.update(sizes or {})
    table = {path: size // _PAGE * _PAGE for path, size in table.items()}
    total = sum(table.values())
    if total > memory // 2:
        listed = ", ".join(f"{path} {size}" for path, size in table.items())
        raise ConfigError(
            f"memory: files in memory come to {total} bytes ({listed}), more than half of the "
            f"limit of {memory}; raise the limit or make them smaller"
        )
    if faults := [path for path, size in table.items() if size < _PAGE]:
        raise ConfigError(f"memory: nothing is left for {', '.join(faults)}; raise the limit")
    return table


def _tmpfs(sizes: Mapping[str, int], owner: Owner) -> dict[str, str]:
    """`HostConfig.Tmpfs`: path → mount options."""
    own = f"uid={owner.uid},gid={owner.gid}"
    special = {
        "/tmp": "exec,mode=1777",
        "/var/tmp": "exec,mode=1777",
        HOME: f"exec,mode=0700,{own}",
        "/run": f"noexec,mode=0755,{own}",
        "/run/executor": f"noexec,mode=0700,{own}",
    }
    volume = f"exec,mode=0755,{own}"
    return {
        path: f"rw,nosuid,nodev,size={size},nr_inodes={_inodes(size)},{special.get(path, volume)}"
        for path, size in sizes.items()
        if path != "/dev/shm"
    }


def _inodes(size: int) -> int:
    """An inode is memory as well, about 1 KiB that the size does not count."""
    return max(_FEWEST_INODES, size // _BYTES_PER_INODE)


def covered_volumes(volumes: Iterable[str]) -> list[str]:
    """Volumes of an image that need a cover of their own, as clean paths.

    A volume that is left to the engine is a directory on the host without any limit. One
    at a place that is mounted anyway is covered by that.
    """
    ours = {*SHARES, MOUNT, RUNTIME, RESULTS, "/etc/passwd", "/etc/group", "/etc/hosts"}
    return sorted({str(_clean(path)) for path in volumes} - ours)


def volume_faults(volumes: Iterable[str]) -> list[str]:
    """Why volumes that an image declares can't be covered."""
    volumes = list(volumes)
    covered = covered_volumes(volumes)
    odd = sorted(path for path in volumes if not path.startswith("/") or not path.isprintable())
    faults = [f"image: its volume {path!r} is no absolute path; use another image" for path in odd]
    faults += [
        f"image: its volume {path} can't be covered; use an image without `VOLUME {path}`"
        for path in covered
        if not _is_coverable(_clean(path))
    ]
    if len(covered) > MAX_VOLUMES:
        faults.append(f"image: it declares {len(covered)} volumes, {MAX_VOLUMES} can be covered")
    return faults


def environment_faults(entries: Iterable[str]) -> list[str]:
    """Why variables that an image sets can't be those of a box."""
    entries = list(entries)
    faults = [
        f"image: an entry of its environment has no name ({entry[:80]!r}); use another image"
        for entry in entries
        if not entry.partition("=")[0]
    ]
    if (size := sum(len(entry.encode(errors="replace")) for entry in entries)) > MAX_ENVIRONMENT:
        faults.append(
            f"image: its environment has {size} bytes, {MAX_ENVIRONMENT} can be handed to "
            "commands; use an image with fewer or shorter ENV entries"
        )
    return faults


def _is_coverable(path: PurePosixPath) -> bool:
    """A cover inside the worktree would leave its mount point in there."""
    kept = (
        *("/proc", "/sys", "/dev", "/etc", "/bin", "/sbin", "/lib", "/usr/bin"),
        *(MOUNT, RUNTIME, DIRECTORIES),
    )
    if any(path.is_relative_to(place) for place in kept):
        return False
    return not any(PurePosixPath(place).is_relative_to(path) for place in kept)


def _clean(path: str) -> PurePosixPath:
    """`a//b/../c` → `/a/c`, as the engine does it."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return PurePosixPath("/", *parts)


# ─── mounts ─────────────────────────────────────────────────────────────────────────


def _mounts(plan: Plan) -> list[dict[str, Any]]:
    files = plan.files
    read_only = {"/etc/passwd": files.passwd, "/etc/group": files.group, "/etc/hosts": files.hosts}
    read_only[GIT_SETTINGS] = files.git_settings
    if files.certificates is not None:
        read_only[CERTIFICATES] = files.certificates
    if files.git is not None and plan.git is None:
        read_only[f"{MOUNT}/.git"] = files.git
    if plan.results is not None:
        read_only[RESULTS] = plan.results
    read_only |= {f"{one.target}/.git": one.git for one in plan.beside if one.git is not None}
    beside = [
        _bind(plan, one.source, one.target, read_only=one.read_only)
        for one in (*plan.beside, *plan.caches)
    ]
    return [
        _bind(plan, plan.worktree, MOUNT, read_only=plan.spec.read_only),
        *beside,
        {
            "Type": "volume",
            "Source": plan.runtime_volume,
            "Target": RUNTIME,
            "ReadOnly": True,
            "VolumeOptions": {"NoCopy": True},
        },
        *(_bind(plan, source, target, read_only=True) for target, source in read_only.items()),
        *_git_mounts(plan),
    ]


def _git_mounts(plan: Plan) -> list[dict[str, Any]]:
    """The loop's own git directory, what points to it, and what of the origin it borrows."""
    git = plan.git
    if git is None:
        return []
    mounts = [_bind(plan, git.directory, git.inside, read_only=False)]
    if git.pointer is not None:
        mounts.append(_bind(plan, git.pointer, f"{MOUNT}/.git", read_only=True))
    for number, store in enumerate(git.stores):
        target = f"{GIT_OBJECTS}/{number}"
        mounts.append(_bind(plan, store, target, read_only=True))
        if git.nothing is not None and (store / "info" / "alternates").is_file():
            mounts.append(_bind(plan, git.nothing, f"{target}/info/alternates", read_only=True))
    return mounts + [
        _bind(plan, cover, f"{MOUNT}/{path}", read_only=True) for path, cover in git.covers
    ]


def _bind(plan: Plan, source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    """A bind mount; options that the engine does not know are not sent to it."""
    options: dict[str, Any] = {"Propagation": "rprivate", "NonRecursive": True}
    if plan.facts.api_version >= _CREATE_MOUNTPOINT:
        options["CreateMountpoint"] = False
    if read_only and plan.facts.has_recursive_read_only and not _is_gvisor(plan):
        options["ReadOnlyForceRecursive"] = True
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": options,
    }


def mount_faults(source: Path, forbidden: Iterable[Path] = ()) -> list[str]:
    """Why a directory must not be a worktree: a box that can write there owns the host.

    Args:
        source: real path.
        forbidden: more directories of the kind of `FORBIDDEN`, e.g. the state directory.
    """
    if not str(source).isprintable():
        return [f"worktree: {str(source)!r} can't be named to an engine; use a printable name"]
    faults = []
    for place in (*map(Path, FORBIDDEN), *forbidden):
        if source == place:
            relation = "is a directory"
        elif source.is_relative_to(place):
            relation = f"lies in {place},"
        elif place.is_relative_to(source):
            relation = f"contains {place},"
        else:
            continue
        faults.append(f"worktree: {source} {relation} that no sandbox may have; give another one")
    if not faults and any(Path(place).is_relative_to(source) for place in FORBIDDEN_ITSELF):
        faults.append(f"worktree: {source} holds more than one project; give a directory inside it")
    return faults[:1]


# ─── the agent's environment ────────────────────────────────────────────────────────


def _agent_environment(image: Iterable[str]) -> list[str]:
    """What process 1 gets. The image's variables are for commands, see `environment`.

    A variable of the image can't be removed in a way that all engines understand; it can
    be emptied.
    """
    own = {"PATH": f"{RUNTIME}/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}
    names = {entry.partition("=")[0] for entry in image} | set(_UNSAFE_FOR_AGENT)
    emptied = {name: "" for name in sorted(names) if name and name not in own}
    return [f"{name}={value}" for name, value in (own | emptied).items()]
