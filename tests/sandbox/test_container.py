"""The container that is asked for, and the one that the engine makes of it."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import ConfigError
from executor.model import Limits, LoopSpec
from executor.sandbox import container, ownership, seccomp
from executor.sandbox.container import Ceilings, Files, Image, Owner, create_request
from executor.sandbox.inspection import (
    PolicyMismatch,
    check_read_back,
    read_back_faults,
    warning_faults,
)
from tests.sandbox.tiny import (
    created,
    engine,
    facts,
    plan,
    runtime_volume,
    say,
    tiny_image,
)

GIB = 1 << 30


def spec(**changes: Any) -> LoopSpec:
    return LoopSpec(worktree="/srv/work", **changes)


def bind(source: str, target: str, read_only: bool) -> dict[str, Any]:
    options = {"Propagation": "rprivate", "NonRecursive": True}
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": options,
    }


# ─── the request ────────────────────────────────────────────────────────────────────


def test_every_field_is_decided() -> None:
    """The whole request for the default limits, field by field."""
    request = create_request(plan(image=Image("sha256:1234", ("FOO=bar", "PATH=/x"))))
    assert len(request["Labels"].pop("executor.policy")) == 32
    assert request == {
        "Image": "sha256:1234",
        "User": "1000:1000",
        "Entrypoint": [
            "/opt/executor/bin/python3",
            "-I",
            "-S",
            "-B",
            "-X",
            "frozen_modules=on",
            "/opt/executor/agent",
        ],
        "Cmd": [],
        "WorkingDir": "/workspace",
        "Hostname": "sandbox",
        "Domainname": "",
        "Env": [
            "PATH=/opt/executor/bin:/usr/bin:/bin",
            "HOME=/home/sandbox",
            "LANG=C.UTF-8",
            "FOO=",
            "GLIBC_TUNABLES=",
            "LD_AUDIT=",
            "LD_LIBRARY_PATH=",
            "LD_PRELOAD=",
            "PYTHONHOME=",
            "PYTHONPATH=",
        ],
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
        "Labels": {"executor.controller": "c0"},
        "HostConfig": {
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
            "SecurityOpt": [
                "no-new-privileges:true",
                f"seccomp={seccomp.profile('standard', platform.machine())}",
            ],
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
            "Sysctls": {
                "net.ipv4.tcp_rmem": "4096 131072 1048576",
                "net.ipv4.tcp_wmem": "4096 16384 1048576",
                "kernel.shm_rmid_forced": "1",
                "kernel.msgmni": "512",
                "kernel.sem": "250 32000 100 512",
            },
            "StorageOpt": {},
            "ReadonlyRootfs": True,
            "ReadonlyPaths": [
                "/proc/bus",
                "/proc/fs",
                "/proc/irq",
                "/proc/sys",
                "/proc/sysrq-trigger",
                "/dev",
                "/sys/fs/cgroup",
            ],
            "MaskedPaths": [
                "/proc/acpi",
                "/proc/asound",
                "/proc/interrupts",
                "/proc/kcore",
                "/proc/keys",
                "/proc/latency_stats",
                "/proc/pressure",
                "/proc/sched_debug",
                "/proc/scsi",
                "/proc/timer_list",
                "/proc/timer_stats",
                "/sys/devices/virtual/powercap",
                "/sys/firmware",
                *(f"/sys/devices/system/cpu/cpu{n}/thermal_throttle" for n in range(4)),
            ],
            "Init": False,
            "Memory": 4 * GIB,
            "MemorySwap": 4 * GIB,
            "MemoryReservation": 0,
            "NanoCpus": 2_000_000_000,
            "CpuShares": 256,
            "CpusetCpus": "",
            "CpusetMems": "",
            "PidsLimit": 512,
            "OomScoreAdj": 500,
            "Ulimits": [
                {"Name": "core", "Soft": 1, "Hard": 1},
                {"Name": "nofile", "Soft": 16384, "Hard": 16384},
                {"Name": "fsize", "Soft": 20 * GIB, "Hard": 20 * GIB},
                {"Name": "memlock", "Soft": 8 << 20, "Hard": 8 << 20},
                {"Name": "sigpending", "Soft": 4096, "Hard": 4096},
                {"Name": "msgqueue", "Soft": 400 << 10, "Hard": 400 << 10},
            ],
            "Tmpfs": {
                "/tmp": "rw,nosuid,nodev,size=939524096,nr_inodes=114688,exec,mode=1777",
                "/home/sandbox": "rw,nosuid,nodev,size=536870912,nr_inodes=65536,"
                "exec,mode=0700,uid=1000,gid=1000",
                "/run/executor": "rw,nosuid,nodev,size=201326592,nr_inodes=24576,"
                "noexec,mode=0700,uid=1000,gid=1000",
                "/var/tmp": "rw,nosuid,nodev,size=134217728,nr_inodes=16384,exec,mode=1777",
                "/run": "rw,nosuid,nodev,size=67108864,nr_inodes=8192,"
                "noexec,mode=0755,uid=1000,gid=1000",
            },
            "ShmSize": 268435456,
            "Mounts": [
                bind("/srv/work", "/workspace", False),
                {
                    "Type": "volume",
                    "Source": "executor-runtime-1",
                    "Target": "/opt/executor",
                    "ReadOnly": True,
                    "VolumeOptions": {"NoCopy": True},
                },
                bind("/s/passwd", "/etc/passwd", True),
                bind("/s/group", "/etc/group", True),
                bind("/s/hosts", "/etc/hosts", True),
                bind("/s/gitconfig", "/run/executor/gitconfig", True),
            ],
        },
    }


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"spec": spec(limits=Limits(cpus=64))}, "NanoCpus", 4_000_000_000),
        ({"spec": spec(limits=Limits(cpus=64)), "facts": facts(cpus=0)}, "NanoCpus", 64 * 10**9),
        ({"spec": spec(limits=Limits(cpus=0.5))}, "NanoCpus", 500_000_000),
        ({"spec": spec(runtime="runsc")}, "PidsLimit", 4096),
        ({"spec": spec(runtime="runsc")}, "Runtime", "runsc"),
        ({"spec": spec(limits=Limits(pids=64))}, "PidsLimit", 64),
    ],
)
def test_limits_follow_the_machine_and_the_runtime(
    changes: dict[str, Any], field: str, expected: object
) -> None:
    """A limit is what was asked for, as far as machine and runtime can serve it."""
    assert create_request(plan(**changes))["HostConfig"][field] == expected


def test_no_ulimit_is_above_the_machines_hard_limit() -> None:
    """An engine that may not raise limits would refuse the container."""
    ceilings = Ceilings(open_files=1024, locked_memory=65536, core=0, file_bytes=GIB)
    ulimits = create_request(plan(ceilings=ceilings))["HostConfig"]["Ulimits"]
    hard = {"core": 0, "nofile": 1024, "fsize": GIB, "memlock": 65536}
    hard |= {"sigpending": 4096, "msgqueue": 400 << 10}
    assert {one["Name"]: one["Hard"] for one in ulimits} == hard
    assert all(one["Soft"] == one["Hard"] for one in ulimits)


@pytest.mark.parametrize(
    ("api", "runtime", "read_only", "expected"),
    [
        ((1, 41), None, True, {}),
        ((1, 43), None, True, {"CreateMountpoint": False}),
        ((1, 45), None, True, {"CreateMountpoint": False, "ReadOnlyForceRecursive": True}),
        ((1, 45), None, False, {"CreateMountpoint": False}),
        ((1, 45), "runsc", True, {"CreateMountpoint": False}),
    ],
)
def test_mount_options_follow_the_api(
    api: tuple[int, int], runtime: str | None, read_only: bool, expected: dict[str, Any]
) -> None:
    """An engine is sent only the mount options that it knows."""
    request = create_request(plan(facts=facts(api_version=api), spec=spec(runtime=runtime)))
    target = "/etc/passwd" if read_only else "/workspace"
    mount = next(one for one in request["HostConfig"]["Mounts"] if one["Target"] == target)
    assert mount["BindOptions"] == {"Propagation": "rprivate", "NonRecursive": True, **expected}


def test_git_is_covered_read_only() -> None:
    """Where the worktree has a `.git`, a generated one lies over it."""
    places = (Path("/s/p"), Path("/s/g"), Path("/s/h"), Path("/s/gitconfig"))
    files = Files(*places, git=Path("/s/git"))
    mounts = create_request(plan(files=files))["HostConfig"]["Mounts"]
    assert mounts[-1] == bind("/s/git", "/workspace/.git", True)


def test_a_read_only_worktree_is_asked_for_and_looked_at() -> None:
    """The worktree is mounted read-only, and an engine that did not do so is found out."""
    request = create_request(plan(spec=spec(read_only=True)))
    made = copy.deepcopy(inspected(request))
    assert read_back_faults(request, made) == []
    for mounts in (request["HostConfig"]["Mounts"], made["HostConfig"]["Mounts"]):
        (mount,) = [one for one in mounts if one["Target"] == "/workspace"]
        assert mount["ReadOnly"] is True
    mount["ReadOnly"] = False
    assert any("Mounts" in fault for fault in read_back_faults(request, made))


def test_the_policy_label_tells_requests_apart() -> None:
    """Two requests have the same policy label only if they are the same."""
    one, same = create_request(plan()), create_request(plan())
    other = create_request(plan(spec=spec(limits=Limits(pids=100))))
    labels = [request["Labels"]["executor.policy"] for request in (one, same, other)]
    assert labels[0] == labels[1] != labels[2]
    assert container.policy_hash(one) == labels[0]


def test_an_unknown_runtime_is_refused_with_those_that_there_are() -> None:
    """A runtime that the engine lacks is a configuration fault."""
    with pytest.raises(ConfigError, match="no 'kata'; it has runc, runsc"):
        create_request(plan(spec=spec(runtime="kata")))


# ─── files in memory ────────────────────────────────────────────────────────────────


@given(st.integers(64 << 20, 1 << 42), st.integers(0, container.MAX_VOLUMES))
def test_files_in_memory_are_at_most_half_of_it(memory: int, volumes: int) -> None:
    """I15: all tmpfs together with shm never exceed half of the memory limit."""
    table = container.memory_files(memory, [f"/v{number}" for number in range(volumes)])
    assert sum(table.values()) <= memory // 2
    assert min(table.values()) >= 4096
    assert table["/tmp"] == max(table.values())


def test_at_four_gibibytes_shm_has_256_mebibytes() -> None:
    """What Chrome and PyTorch want of /dev/shm is there by default."""
    assert container.memory_files(4 * GIB)["/dev/shm"] == 256 << 20


def test_a_configuration_over_half_is_refused() -> None:
    """I15: sizes that come to more than half of the memory limit are a fault."""
    with pytest.raises(ConfigError, match="more than half of the limit"):
        create_request(plan(sizes={"/tmp": 2 * GIB}))


@pytest.mark.parametrize(
    ("volumes", "covered"),
    [
        (["/data"], ["/data"]),
        (["/data/", "/data//x/../"], ["/data"]),
        (["/tmp", "/workspace", "/home/sandbox"], []),
        (["/var/lib/postgresql/data", "/home"], ["/home", "/var/lib/postgresql/data"]),
    ],
)
def test_volumes_of_an_image_are_covered(volumes: list[str], covered: list[str]) -> None:
    """G10: a volume of the image becomes memory with a size, never a host directory."""
    assert container.covered_volumes(volumes) == covered
    tmpfs = create_request(plan(image=Image("i", volumes=tuple(volumes))))["HostConfig"]["Tmpfs"]
    assert set(tmpfs) == {*container.SHARES, *covered} - {"/dev/shm"}


@pytest.mark.parametrize("volume", ["/", "/workspace/data", "/proc", "/dev/x", "/opt", "/etc"])
def test_volumes_that_cannot_be_covered_are_refused(volume: str) -> None:
    """G10: a volume at a place that must stay as it is makes the image unusable."""
    with pytest.raises(ConfigError, match="can't be covered"):
        create_request(plan(image=Image("i", volumes=(volume,))))


def test_too_many_volumes_are_refused() -> None:
    """G10: an image can't cut the memory into nothing."""
    with pytest.raises(ConfigError, match="9 volumes"):
        create_request(plan(image=Image("i", volumes=tuple(f"/v{n}" for n in range(9)))))


# ─── C9: what may be mounted ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("/root/project", None),
        ("/home/u/project", None),
        ("/home/u", "contains /home/u/.local/state/executor"),
        ("/tmp/w", None),
        ("/srv", None),
        ("/etcetera", None),
        ("/usr/local/src/p", None),
        ("/", "contains /etc"),
        ("/etc", "is a directory"),
        ("/etc/x", "lies in /etc"),
        ("/proc/1/root", "lies in /proc"),
        ("/sys", "is a directory"),
        ("/dev/shm/w", "lies in /dev"),
        ("/run/user/1000/w", "lies in /run"),
        ("/var/run", "is a directory"),
        ("/var", "contains /var/run"),
        ("/var/lib/docker/volumes/v/_data", "lies in /var/lib/docker"),
        ("/root", "more than one project"),
        ("/home", "contains /home/u/.local/state/executor"),
        ("/usr", "more than one project"),
        ("/home/u/.local/state/executor/controllers", "lies in"),
        ("/data/a\nb", "can't be named"),
        ("/data/\udcff", "can't be named"),
    ],
)
def test_places_that_no_box_may_write(source: str, fault: str | None) -> None:
    """C9: a worktree is never the host's own directory, nor near one."""
    faults = container.mount_faults(Path(source), [Path("/home/u/.local/state/executor")])
    assert len(faults) == (fault is not None)
    assert fault is None or fault in faults[0]


# ─── A6, A7: what the engine made of it ─────────────────────────────────────────────


def inspected(request: dict[str, Any]) -> dict[str, Any]:
    """What an engine answers that did as it was told."""
    request = copy.deepcopy(request)
    host = request.pop("HostConfig")
    points = [
        {
            "Type": one["Type"],
            "Name": one["Source"] if one["Type"] == "volume" else "",
            "Source": one["Source"] if one["Type"] == "bind" else "/volumes/_data",
            "Destination": one["Target"],
            "RW": not one["ReadOnly"],
            "Propagation": "rprivate" if one["Type"] == "bind" else "",
        }
        for one in host["Mounts"]
    ]
    return {"Image": request["Image"], "Config": request, "HostConfig": host, "Mounts": points}


def harmless(reply: dict[str, Any]) -> None:
    """What engines rewrite without changing anything."""
    host = reply["HostConfig"]
    for name in ("Binds", "CapAdd", "Dns", "GroupAdd", "Devices", "VolumesFrom"):
        host[name] = None
    _, profile = host["SecurityOpt"]
    spaced = "seccomp=" + json.dumps(json.loads(profile.removeprefix("seccomp=")), indent=1)
    host |= {"CapDrop": ["CAP_ALL"], "SecurityOpt": [spaced, "no-new-privileges"]}
    host |= {"Runtime": "runc"}
    host |= {"RestartPolicy": {"Name": "", "MaximumRetryCount": 0}, "OomKillDisable": False}
    host["MaskedPaths"].append("/proc/newer")
    host["Ulimits"].reverse()
    for mount in host["Mounts"]:
        if not mount["ReadOnly"]:
            del mount["ReadOnly"]
    reply["Config"] |= {"Cmd": None, "Volumes": {"/data": {}}}
    reply["Config"]["Labels"]["image.label"] = "x"


def test_a_faithful_engine_has_no_faults() -> None:
    """A6: harmless rewriting by the engine is not a mismatch."""
    request = create_request(plan())
    reply = inspected(request)
    assert read_back_faults(request, reply) == []
    harmless(reply)
    assert read_back_faults(request, reply) == []
    check_read_back(request, reply)


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(reply: dict[str, Any]) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            reply = reply[parent]
        reply[name] = value

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("Config.User", ""),
        ("Config.Entrypoint", ["/bin/sh"]),
        ("Config.Env", ["LD_PRELOAD=/evil.so"]),
        ("Config.Healthcheck", None),
        ("Config.OpenStdin", False),
        ("Config.StdinOnce", False),
        ("Config.Tty", True),
        ("Config.NetworkDisabled", False),
        ("Config.WorkingDir", "/proc/self/fd/7"),
        ("HostConfig.Binds", ["/:/host"]),
        ("HostConfig.CapAdd", ["NET_ADMIN"]),
        ("HostConfig.CapDrop", None),
        ("HostConfig.SecurityOpt", None),
        ("HostConfig.SecurityOpt", ["no-new-privileges:true"]),
        ("HostConfig.SecurityOpt", ["no-new-privileges:true", "seccomp=unconfined"]),
        ("HostConfig.SecurityOpt", ["no-new-privileges:true", 'seccomp={"syscalls":[]}']),
        ("HostConfig.NetworkMode", "default"),
        ("HostConfig.Privileged", True),
        ("HostConfig.ReadonlyRootfs", False),
        ("HostConfig.ReadonlyPaths", []),
        ("HostConfig.MaskedPaths", []),
        ("HostConfig.PidMode", "host"),
        ("HostConfig.IpcMode", "shareable"),
        ("HostConfig.UTSMode", "host"),
        ("HostConfig.UsernsMode", "host"),
        ("HostConfig.CgroupnsMode", "host"),
        ("HostConfig.Memory", 0),
        ("HostConfig.MemorySwap", -1),
        ("HostConfig.OomKillDisable", True),
        ("HostConfig.NanoCpus", 0),
        ("HostConfig.PidsLimit", None),
        ("HostConfig.OomScoreAdj", 0),
        ("HostConfig.Ulimits", []),
        ("HostConfig.Tmpfs", {}),
        ("HostConfig.ShmSize", 64 << 20),
        ("HostConfig.Mounts", []),
        ("HostConfig.Devices", [{"PathOnHost": "/dev/kvm"}]),
        ("HostConfig.DeviceRequests", [{"Driver": "nvidia"}]),
        ("HostConfig.GroupAdd", ["999"]),
        ("HostConfig.Init", True),
        ("HostConfig.LogConfig", {"Type": "json-file"}),
        ("HostConfig.RestartPolicy", {"Name": "always"}),
        ("HostConfig.AutoRemove", True),
        ("HostConfig.ExtraHosts", ["host.docker.internal:host-gateway"]),
        ("HostConfig.Annotations", {"dev.gvisor.flag.x": "y"}),
        ("Mounts", []),
        ("Config.Labels", {}),
        ("Image", "sha256:5678"),
    ],
)
def test_a_changed_field_is_named(path: str, value: Any) -> None:
    """A6: a security field that the engine changed is found and named."""
    request = create_request(plan())
    reply = inspected(request)
    _set(path, value)(reply)
    faults = read_back_faults(request, reply)
    assert faults
    assert path.removeprefix("Config.") in faults[0]
    with pytest.raises(PolicyMismatch) as caught:
        check_read_back(request, reply)
    assert caught.value.faults == tuple(faults)


def test_a_mount_that_nobody_asked_for_is_named() -> None:
    """A6, G10: a volume that the engine added by itself is found."""
    request = create_request(plan())
    reply = inspected(request)
    reply["Mounts"].append({"Type": "volume", "Destination": "/data", "RW": True})
    reply["Mounts"][2]["RW"] = True
    assert read_back_faults(request, reply) == [
        "Mounts: nobody asked for one at /data",
        "Mounts: /etc/passwd has RW=True",
    ]


@pytest.mark.parametrize(
    ("warning", "fatal"),
    [
        (
            "Your kernel does not support memory limit capabilities or the cgroup is not mounted. "
            "Limitation discarded.",
            True,
        ),
        (
            "Your kernel does not support swap limit capabilities or the cgroup is not mounted. "
            "Memory limited without swap.",
            True,
        ),
        (
            "Your kernel does not support PIDs limit capabilities or the cgroup is not mounted. "
            "PIDs limit discarded.",
            True,
        ),
        ("Your kernel does not support CPU CFS quota or the cgroup is not mounted.", True),
        (
            "Resource limits are not supported and ignored on cgroups V1 rootless systems",
            True,
        ),
        ("Your kernel does not support Block I/O weight. Weight discarded.", False),
        ("Your kernel does not support memory swappiness capabilities.", False),
        ("Your kernel does not support memory soft limit capabilities.", False),
        ("IPv4 forwarding is disabled. Networking will not work.", False),
    ],
)
def test_a_warning_about_a_required_limit_is_a_fault(warning: str, fatal: bool) -> None:
    """A7: memory, swap, CPU and processes must be limited; the rest is for the reader."""
    assert warning_faults([warning]) == ([warning] if fatal else [])


def test_no_warnings_are_no_faults() -> None:
    """A7: engines leave the list out or send null when there is nothing to say."""
    assert warning_faults(None) == []


# ─── a real engine ──────────────────────────────────────────────────────────────────

HOSTILE_IMAGE = [
    "ENV LD_PRELOAD=/evil.so PYTHONPATH=/evil SECRET=canary",
    "VOLUME /data",
    "USER 99",
    "WORKDIR /usr",
    'ENTRYPOINT ["/bin/false"]',
    'CMD ["x"]',
    "HEALTHCHECK CMD true",
]

SCRIPT = r"""
grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Gid)' /proc/1/status
cat /proc/1/oom_score_adj
grep -E '^Max (core|open files|file size|locked)' /proc/1/limits
tr '\0' '\n' < /proc/1/environ
ls /sys/class/net
id -un; id -gn; getent hosts localhost
cat /workspace/mine; ls -A /workspace/.git /data
for path in / /etc /usr /opt/executor /dev /sys/fs/cgroup /proc/sys/kernel /etc/passwd \
    /workspace/.git /etc/hosts /nowhere; do
  touch $path/x 2>/dev/null && echo "WRITABLE $path"
done
for path in /tmp /var/tmp /home/sandbox /run /run/executor /dev/shm /data /workspace; do
  touch $path/x || echo "NOT WRITABLE $path"
done
for path in /tmp /var/tmp /home/sandbox /data; do
  cat /bin/id > $path/prog; chmod 755 $path/prog; $path/prog -u > /dev/null || echo "NOEXEC $path"
done
cat /bin/id > /run/prog; chmod 755 /run/prog; /run/prog 2>/dev/null && echo 'EXEC /run'
rm /workspace/.git 2>/dev/null || rm -r /workspace/.git 2>/dev/null || echo 'git stays'
dd if=/dev/zero of=/tmp/full bs=1M count=400 2>/dev/null || echo 'tmp is full'
df -k --output=size /dev/shm /tmp
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("uid", [0, 12345])
def test_the_engine_makes_what_was_asked_for(tmp_path: Path, uid: int) -> None:
    """A6, B1-B3, D1, D5, E1, G9, G10, I3, M11: read back and looked at from inside."""
    output = asyncio.run(_look_inside(tmp_path, uid))
    shm, tmp = 512 * 1024 * 4 // 64, 512 * 1024 * 10 // 64
    expected = [
        *(f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}", f"Gid:\t{uid}\t{uid}\t{uid}\t{uid}"),
        *(f"Cap{name}:\t0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")),
        *("NoNewPrivs:\t1", "Seccomp:\t2", "500"),
        *("lo", "root" if uid == 0 else "sandbox", "root" if uid == 0 else "sandbox"),
        *("mine", "git stays", "tmp is full"),
        *(f"{shm:9}", f"{tmp:9}"),
    ]
    lines = output.splitlines()
    assert [line for line in expected if line not in lines and line.strip() not in output] == []
    for word in ("WRITABLE", "NOEXEC", "EXEC /run", "canary", "evil", "the-real-head"):
        assert word not in output
    assert "localhost" in output
    assert (tmp_path / "work" / ".git" / "HEAD").read_text() == "the-real-head"
    assert (tmp_path / "work" / "x").stat().st_uid == uid


@pytest.mark.timeout(120)
def test_what_is_mounted_in_a_worktree_stays_outside(tmp_path: Path) -> None:
    """A9: `NonRecursive` is honoured, also by an engine that is older than 1.44."""
    inner = tmp_path / "work" / "inner"
    inner.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(inner)]
    if os.geteuid() or subprocess.run(mount, timeout=10, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (inner / "outside").touch()
        output = asyncio.run(_look_inside(tmp_path, 0, "ls -A /workspace/inner; echo seen"))
    finally:
        subprocess.run(["umount", inner], timeout=10, check=True)
    assert output.splitlines() == ["seen"]


async def _look_inside(tmp_path: Path, uid: int, script: str = SCRIPT) -> str:
    work = tmp_path / "work"
    (work / ".git").mkdir(parents=True)
    (work / ".git" / "HEAD").write_text("the-real-head")
    (work / "mine").write_text("mine\n")
    os.chown(work, uid, uid)
    files = tmp_path / "files"
    files.mkdir()
    async with (
        engine() as connected,
        tiny_image(connected, HOSTILE_IMAGE) as image,
        runtime_volume(connected, image) as volume,
    ):
        with ownership.open_worktree(work) as worktree:
            owner = ownership.owner_of(worktree, None)
            request = create_request(
                plan(
                    spec=LoopSpec(worktree=work, limits=Limits(memory="512m", cpus=0.5)),
                    worktree=worktree.path,
                    owner=owner,
                    image=image,
                    runtime_volume=volume,
                    files=ownership.write_files(files, owner, worktree.git),
                    facts=connected.facts,
                    ceilings=ownership.ceilings(),
                )
            )
            async with created(connected, request) as id:
                worktree.check()
                assert read_back_faults(request, await connected.inspect(id)) == []
                return await say(connected, id, script)


def test_an_owner_is_written_as_the_engine_wants_it() -> None:
    """The user of a container is two numbers."""
    assert str(Owner(1000, 100)) == "1000:100"
