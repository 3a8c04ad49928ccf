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

# Captured from a second engine with `userns-remap`, on the machine of DOCKER_20.
REMAPPED_20: tuple[Reply, Reply] = (
    DOCKER_20[0],
    {
        **DOCKER_20[1],
        "DockerRootDir": "/tmp/engine/data/100000.100000",
        "SecurityOptions": ["name=seccomp,profile=default", "name=userns"],
    },
)

# Not captured: as an engine with `userns-remap` on a host with AppArmor answers.
REMAPPED: tuple[Reply, Reply] = (
    DOCKER_26[0],
    {
        **DOCKER_26[1],
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "DockerRootDir": "/var/lib/docker/231072.231073",
        "SecurityOptions": [
            "name=apparmor",
            "name=seccomp,profile=builtin",
            "name=cgroupns",
            "name=userns",
        ],
    },
)

# Captured: DOCKER_20 once gVisor was registered by scripts/gvisor.sh.
GVISOR_20: tuple[Reply, Reply] = (
    DOCKER_20[0],
    {
        **DOCKER_20[1],
        "Runtimes": {
            "runc": {"path": "runc"},
            "runsc": {
                "path": "/usr/local/bin/runsc",
                "runtimeArgs": ["--platform=systrap", "--network=none", "--oci-seccomp"],
            },
        },
    },
)

# Not captured: from the API's documentation, on a host with control groups 2 and AppArmor.
DOCKER_28: tuple[Reply, Reply] = (
    {
        "Components": [
            {"Name": "Engine", "Version": "28.5.2", "Details": {"ApiVersion": "1.51"}},
            {"Name": "containerd", "Version": "v1.7.28", "Details": {}},
            {"Name": "runc", "Version": "1.3.3", "Details": {"GitCommit": "v1.3.3-0-gd842d77"}},
            {"Name": "docker-init", "Version": "0.19.0", "Details": {"GitCommit": "de40ad0"}},
        ],
        "Version": "28.5.2",
        "ApiVersion": "1.51",
        "MinAPIVersion": "1.24",
        "Arch": "amd64",
    },
    {
        **DOCKER_26[1],
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "DockerRootDir": "/var/lib/docker",
        "Runtimes": {
            "io.containerd.kata.v2": {"runtimeType": "io.containerd.kata.v2", "status": {}},
            "io.containerd.runc.v2": {"path": "runc", "status": {}},
            "runc": {"path": "runc", "status": {}},
        },
        "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    },
)

# Not captured: the same with the versions in which the known faults are repaired.
DOCKER_29: tuple[Reply, Reply] = (
    {
        **DOCKER_28[0],
        "Components": [
            {"Name": "Engine", "Version": "29.5.1", "Details": {"ApiVersion": "1.54"}},
            {"Name": "runc", "Version": "1.4.0", "Details": {}},
        ],
        "Version": "29.5.1",
        "ApiVersion": "1.54",
        "MinAPIVersion": "1.44",
    },
    DOCKER_28[1],
)

# Not captured: DOCKER_28 in rootless mode, with control groups delegated to its user.
ROOTLESS_DELEGATED: tuple[Reply, Reply] = (
    DOCKER_28[0],
    {
        **DOCKER_28[1],
        "DockerRootDir": "/home/dev/.local/share/docker",
        "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"],
    },
)

# Not captured: PODMAN_4 as Podman 5 answers on Fedora, with SELinux and crun.
PODMAN_5: tuple[Reply, Reply] = (
    {
        "Components": [
            {"Name": "Podman Engine", "Version": "5.4.2", "Details": {"APIVersion": "5.4.2"}},
            {"Name": "Conmon", "Version": "conmon version 2.1.12, commit: ", "Details": {}},
            {
                "Name": "OCI Runtime (crun)",
                "Version": "crun version 1.21\ncommit: 10269840aa07fb7e6b7e1acff6198692d8ff5c88",
                "Details": {},
            },
        ],
        "Version": "5.4.2",
        "ApiVersion": "1.41",
        "MinAPIVersion": "1.24",
        "Arch": "amd64",
    },
    {
        **PODMAN_4[1],
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "DefaultRuntime": "crun",
        "Runtimes": {
            "crun": {"path": "/usr/bin/crun"},
            "krun": {"path": "/usr/bin/krun"},
            "runc": {"path": "/usr/bin/runc"},
        },
        "SecurityOptions": ["name=seccomp,profile=default", "name=selinux"],
    },
)

ALL = {
    "docker 20.10": DOCKER_20,
    "docker 20.10 with gVisor": GVISOR_20,
    "docker 20.10 with userns-remap": REMAPPED_20,
    "docker 20.10, rootless": ROOTLESS,
    "docker 26.1": DOCKER_26,
    "docker 26.1 with userns-remap": REMAPPED,
    "docker 28.5": DOCKER_28,
    "docker 28.5, rootless": ROOTLESS_DELEGATED,
    "docker 29.5": DOCKER_29,
    "podman 4.3": PODMAN_4,
    "podman 5.4": PODMAN_5,
}
