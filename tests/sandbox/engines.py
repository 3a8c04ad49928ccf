"""What engines answered to `GET /version` and `GET /info`, shortened to what is read.

Captured from running engines, except where a comment says otherwise.
"""

from __future__ import annotations

from typing import Any

Reply = dict[str, Any]

DOCKER_20: tuple[Reply, Reply] = (
    {
        "Components": [
            {"Name": "Engine", "Version": "20.10.24+dfsg1", "Details": {"ApiVersion": "1.41"}},
            {"Name": "containerd", "Version": "1.6.20~ds1", "Details": {}},
            {"Name": "runc", "Version": "1.1.5+ds1", "Details": {"GitCommit": "1.1.5+ds1-1"}},
            {"Name": "docker-init", "Version": "0.19.0", "Details": {"GitCommit": ""}},
        ],
        "Version": "20.10.24+dfsg1",
        "ApiVersion": "1.41",
        "MinAPIVersion": "1.12",
        "Arch": "amd64",
    },
    {
        "Driver": "overlay2",
        "MemoryLimit": True,
        "SwapLimit": True,
        "CpuCfsQuota": True,
        "PidsLimit": True,
        "CgroupDriver": "cgroupfs",
        "CgroupVersion": "1",
        "KernelVersion": "6.18.44",
        "OperatingSystem": "Debian GNU/Linux 12 (bookworm)",
        "Architecture": "x86_64",
        "NCPU": 2,
        "MemTotal": 25276510208,
        "DockerRootDir": "/var/lib/docker",
        "Runtimes": {
            "io.containerd.runc.v2": {"path": "runc"},
            "io.containerd.runtime.v1.linux": {"path": "runc"},
            "runc": {"path": "runc"},
        },
        "DefaultRuntime": "runc",
        "SecurityOptions": ["name=seccomp,profile=default"],
        "Warnings": None,
    },
)

DOCKER_26: tuple[Reply, Reply] = (
    {
        "Components": [
            {"Name": "Engine", "Version": "26.1.5+dfsg1", "Details": {"ApiVersion": "1.45"}},
            {"Name": "containerd", "Version": "1.7.24~ds1", "Details": {}},
            {"Name": "runc", "Version": "1.1.15+ds1", "Details": {"GitCommit": "1.1.15+ds1-2"}},
            {"Name": "docker-init", "Version": "0.19.0", "Details": {"GitCommit": ""}},
        ],
        "Version": "26.1.5+dfsg1",
        "ApiVersion": "1.45",
        "MinAPIVersion": "1.24",
        "Arch": "amd64",
    },
    {
        **DOCKER_20[1],
        "OperatingSystem": "Debian GNU/Linux 13 (trixie)",
        "DockerRootDir": "/d/data",
        "Runtimes": {
            "io.containerd.runc.v2": {"path": "runc", "status": {}},
            "runc": {"path": "runc", "status": {}},
        },
        "SecurityOptions": ["name=seccomp,profile=builtin"],
    },
)

PODMAN_4: tuple[Reply, Reply] = (
    {
        "Components": [
            {"Name": "Podman Engine", "Version": "4.3.1", "Details": {"APIVersion": "4.3.1"}},
            {"Name": "Conmon", "Version": "conmon version 2.1.6, commit: unknown", "Details": {}},
            {
                "Name": "OCI Runtime (runc)",
                "Version": "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1\nspec: 1.0.2-dev",
                "Details": {"Package": "runc_1.1.5+ds1-1_amd64"},
            },
        ],
        "Version": "4.3.1",
        "ApiVersion": "1.41",
        "MinAPIVersion": "1.24",
        "Arch": "amd64",
    },
    {
        "Driver": "overlay",
        "MemoryLimit": True,
        "SwapLimit": True,
        "CpuCfsQuota": True,
        "PidsLimit": True,
        "CgroupDriver": "cgroupfs",
        "CgroupVersion": "1",
        "KernelVersion": "6.18.44",
        "OperatingSystem": "debian",
        "Architecture": "amd64",
        "NCPU": 2,
        "MemTotal": 25276510208,
        "DockerRootDir": "/var/lib/containers/storage",
        "Runtimes": {"crun": {"path": "/usr/bin/crun"}, "runc": {"path": "/usr/bin/runc"}},
        "DefaultRuntime": "runc",
        "SecurityOptions": ["name=seccomp,profile=default"],
        "Warnings": [],
    },
)

# Not captured: the reply of 20.10 with what rootless mode without cgroup version 2 changes.
ROOTLESS: tuple[Reply, Reply] = (
    DOCKER_20[0],
    {
        **DOCKER_20[1],
        "CgroupDriver": "none",
        "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"],
        "Warnings": ["WARNING: Running in rootless-mode without cgroups."],
    },
)

# Not captured: as an engine with `userns-remap` on a host with AppArmor answers.
REMAPPED: tuple[Reply, Reply] = (
    DOCKER_26[0],
    {
        **DOCKER_26[1],
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "SecurityOptions": [
            "name=apparmor",
            "name=seccomp,profile=builtin",
            "name=cgroupns",
            "name=userns",
        ],
    },
)
