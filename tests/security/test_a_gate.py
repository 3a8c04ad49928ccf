"""Group A: what a controller refuses before anything runs, and B16 and C9, which are refusals.

Policies and engines are tables. What has to hold over the whole way is tried with the real
engine behind a proxy that alters what is asked of it or what it answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor import toolsets
from executor.audit import AuditLog
from executor.catalog import Policy, load
from executor.controller import Controller
from executor.errors import (
    BadPath,
    Code,
    ConfigError,
    EngineUnavailable,
    ForbiddenMount,
    ToolError,
    UnsafeRuntime,
)
from executor.loop import Loop
from executor.model import Access, LoopSpec
from executor.sandbox import gate, images, inspection
from executor.sandbox.container import (
    LABEL_LOOP,
    Image,
    create_request,
    working_directory_fault,
)
from executor.sandbox.engine import OVERRIDE, Engine
from executor.sandbox.facts import EngineFacts, parse_facts
from executor.sandbox.gate import admit, choose_runtime, judge_engine, judge_runtime, weakness
from executor.sandbox.inspection import PolicyMismatch, warning_faults
from executor.sandbox.ownership import ceilings, open_worktree
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.driver import Box, LoopThread
from tests.loops import Work
from tests.sandbox import engines, tiny
from tests.sandbox.engine_proxy import EngineProxy, Request, engine_proxy
from tests.test_contract import SAMPLES
from tests.words import with_words

Replies = tuple[dict[str, Any], dict[str, Any]]
PATCHED = Policy(require_patched_engine=True)
MULTI = Policy(tenancy="multi")
SHARED = Policy(tenancy="multi", allow_shared_kernel=True)


@pytest.fixture(scope="module", autouse=True)
def runtime_volume() -> None:
    """The volume is there, so that the only containers in the making are those of the tests."""

    async def ensure() -> None:
        async with tiny.engine() as engine:
            await images.ensure_runtime(engine)

    asyncio.run(ensure())


def facts_of(replies: Replies, **changes: Any) -> EngineFacts:
    """The facts of an engine with other words in its `GET /info`."""
    version, info = replies
    return parse_facts("unix:///s", version, info | changes)


@asynccontextmanager
async def opened(
    directory: Path,
    policy: Policy,
    change: Callable[[LoopSpec], LoopSpec] = lambda spec: spec,
    **settings: Any,
) -> AsyncIterator[Loop]:
    """A loop as a user gets it, of a controller with this policy."""
    root = make_worktree(directory / "worktree")
    spec = change(LoopSpec(worktree=root, limits=LIMITS, exec_id="gate"))
    chosen = replace(Settings.load(), state_directory=directory / "state", **settings)
    catalog = replace(with_words(), controller=policy)
    async with asyncio.timeout(120), Controller(chosen, catalog) as controller:
        async with controller.open(spec) as loop:
            yield loop


def open_once(directory: Path, policy: Policy = MULTI, **more: Any) -> dict[str, Any]:
    """The capabilities of a loop that was opened and closed."""

    async def run() -> dict[str, Any]:
        async with opened(directory, policy, **more) as loop:
            return loop.capabilities

    return asyncio.run(run())


def overrides(directory: Path) -> list[dict[str, Any]]:
    """What the controllers of a state directory wrote down; the chain has to be whole."""
    log = AuditLog(directory / "state")
    assert log.verify() == []
    lines = log.path.read_text().splitlines() if log.path.exists() else []
    return [json.loads(line) for line in lines]


# ─── A1, A2: versions ───────────────────────────────────────────────────────────────


@pytest.mark.statement("A1", "A2")
@pytest.mark.parametrize(
    ("program", "version", "cve"),
    [
        ("docker", "20.10.24+dfsg1", "CVE-2026-41567"),
        ("docker", "29.5.0", "CVE-2026-6406"),
        ("docker", "29.5.1", None),
        ("docker", "29.6.0", None),
        ("docker", "30.0.0", None),
        ("runc", "1.0.3", "CVE-2024-21626"),
        ("runc", "1.1.5", "CVE-2024-21626"),
        ("runc", "1.1.12", "CVE-2025-31133"),
        ("runc", "1.2.7", "CVE-2025-52881"),
        ("runc", "1.2.8", None),
        ("runc", "1.3.2", "CVE-2025-52565"),
        ("runc", "1.3.3", None),
        ("runc", "1.4.0-rc.2", "CVE-2025-31133"),
        ("runc", "1.4.0-rc.3", None),
        ("runc", "1.5.0", None),
        ("podman", "3.0.0", None),
        ("runc", "", None),
    ],
)
def test_versions_below_the_floor_are_named(program: str, version: str, cve: str | None) -> None:
    """A1, A2: each line has its own repaired release; the sentence names CVEs and the mend."""
    text = weakness(program, version)
    assert bool(text) is (cve is not None)
    if cve is not None:
        assert cve in text and "upgrade to" in text and version in text


def test_an_old_escape_is_not_laid_to_newer_releases() -> None:
    """A2: from 1.1.12 on the escape by working directory is repaired."""
    assert "CVE-2024-21626" not in weakness("runc", "1.1.12")


@pytest.mark.statement("A1", "A2")
@pytest.mark.parametrize(
    ("replies", "runtime", "engine", "refused"),
    [
        (engines.DOCKER_20, "runc", True, True),
        (engines.DOCKER_28, "runc", True, False),
        (engines.DOCKER_29, "runc", False, False),
        # The version of runc is of no concern where gVisor runs the boxes.
        (engines.GVISOR_20, "runsc", True, False),
        (engines.GVISOR_20, "runc", True, True),
        # Podman's version is of no concern; its boxes have its default runtime, an old runc.
        (engines.PODMAN_4, "runc", True, True),
        (engines.PODMAN_4, "crun", True, False),
        # The version that is told is the one of the default runtime, crun.
        (engines.PODMAN_5, "runc", False, True),
        (engines.PODMAN_5, "crun", False, False),
    ],
)
def test_a_demand_for_repaired_versions(
    replies: Replies, runtime: str, engine: bool, refused: bool
) -> None:
    """A1, A2: a warning without the demand, a refusal with it, for what is really used."""
    facts = facts_of(replies)
    assert bool(judge_engine(PATCHED, facts).refusals) is engine
    assert bool(judge_runtime(PATCHED, facts, runtime).refusals) is refused
    assert judge_engine(Policy(), facts).refusals == ()
    assert judge_runtime(Policy(), facts, runtime).refusals == ()
    warnings = judge_engine(Policy(), facts).warnings
    assert bool(warnings) is (engine and facts.name == "docker")


@pytest.mark.statement("A1", "A2")
def test_a_controller_does_not_start_on_an_old_engine(tmp_path: Path, facts: EngineFacts) -> None:
    """A1: with the demand the start fails by name, without it the box says what may be wrong."""
    verdict = judge_engine(PATCHED, facts)
    if not verdict.refusals:
        pytest.skip("this engine is repaired")
    with pytest.raises(UnsafeRuntime, match=r"CVE-\d+-\d+.*upgrade to") as caught:
        open_once(tmp_path, PATCHED)
    assert caught.value.faults == verdict.refusals
    notices = open_once(tmp_path, Policy())["notices"]
    assert set(judge_engine(Policy(), facts).warnings) <= set(notices)


# ─── A3: tenants ────────────────────────────────────────────────────────────────────


@pytest.mark.statement("A3")
@pytest.mark.parametrize(
    ("name", "entry", "is_own"),
    [
        ("runc", {"path": "runc"}, False),
        ("crun", {"path": "/usr/bin/crun"}, False),
        ("youki", {"path": "/usr/bin/youki"}, False),
        ("nvidia", {"path": "nvidia-container-runtime"}, False),
        ("runsc", {"path": "/usr/local/bin/runsc", "runtimeArgs": ["--oci-seccomp"]}, True),
        ("gvisor", {"path": "/opt/runsc-20250101", "runtimeArgs": ["--oci-seccomp"]}, True),
        ("runsc", {"runtimeType": "io.containerd.runsc.v1"}, True),
        ("kata", {"runtimeType": "io.containerd.kata.v2"}, True),
        ("kata-fc", {"path": "/opt/kata/bin/kata-runtime"}, True),
        ("io.containerd.kata.v2", {}, True),
        ("krun", {"path": "/usr/bin/krun"}, True),
        # A name that promises more than the program behind it keeps.
        ("runsc", {"path": "/usr/bin/runc"}, False),
        ("kata", {"runtimeType": "io.containerd.runc.v2"}, False),
        ("runscx", {}, False),
        ("not-runsc", {}, False),
    ],
)
def test_whose_kernel_a_runtime_has(name: str, entry: dict[str, Any], is_own: bool) -> None:
    """A3: the program decides, the name only where there is no more; unknown means shared."""
    facts = facts_of(engines.DOCKER_29, Runtimes={name: entry}, DefaultRuntime=name)
    assert facts.has_own_kernel(name) is is_own
    assert bool(judge_runtime(MULTI, facts, name).refusals) is not is_own
    assert bool(judge_engine(MULTI, facts).refusals) is not is_own
    assert judge_runtime(SHARED, facts, name).overrides == (() if is_own else (gate.SHARED_KERNEL,))
    assert judge_runtime(Policy(), facts, name) == gate.Verdict()


@pytest.mark.statement("A3")
@pytest.mark.parametrize(
    ("replies", "policy", "named", "chosen"),
    [
        (engines.DOCKER_20, Policy(), None, "runc"),
        (engines.GVISOR_20, Policy(), None, "runc"),
        (engines.GVISOR_20, MULTI, None, "runsc"),
        (engines.GVISOR_20, SHARED, None, "runsc"),
        (engines.GVISOR_20, SHARED, "runc", "runc"),
        (engines.DOCKER_28, MULTI, None, "io.containerd.kata.v2"),
        # It could not be told to take krun.
        (engines.PODMAN_5, MULTI, None, "crun"),
        (engines.DOCKER_20, SHARED, None, "runc"),
    ],
)
def test_several_tenants_get_a_kernel_of_their_own(
    replies: Replies, policy: Policy, named: str | None, chosen: str
) -> None:
    """A3: where no runtime is named, one with its own kernel is taken if there is one."""
    facts = facts_of(replies)
    assert choose_runtime(policy, facts, named) == chosen
    if facts.name == "docker":
        assert admit(policy, facts, named).runtime == chosen
    else:
        with pytest.raises(UnsafeRuntime, match="shares the machine's kernel"):
            admit(policy, facts, named)


def test_a_runtime_that_the_engine_has_not_is_not_judged() -> None:
    """Nothing can be started with it; the plain sentence about that comes from elsewhere."""
    assert judge_runtime(MULTI, facts_of(engines.DOCKER_20), "runsc") == gate.Verdict()


@pytest.mark.statement("A3")
def test_tenants_on_a_shared_kernel(tmp_path: Path, facts: EngineFacts) -> None:
    """A3: refused by name of the option; allowed with it, and then on record before the box."""

    def named(spec: LoopSpec) -> LoopSpec:
        return replace(spec, runtime="runc", tenant="acme")

    with pytest.raises(UnsafeRuntime, match=r"shares the machine's kernel.*allow_shared_kernel"):
        open_once(tmp_path, MULTI, change=named)
    assert overrides(tmp_path) == []

    found = open_once(tmp_path, SHARED, change=named)
    assert (found["runtime"], found["own_kernel"]) == ("runc", False)
    assert any("shares the machine's kernel" in notice for notice in found["notices"])
    (line,) = overrides(tmp_path)
    assert line["option"] == "controller.allow_shared_kernel"
    assert (line["tenant"], line["loop"], line["runtime"]) == ("acme", "gate", "runc")

    if not any(facts.has_own_kernel(runtime) for runtime in facts.runtimes):
        pytest.skip("no runtime with a kernel of its own is installed")
    found = open_once(tmp_path, MULTI)
    assert found["own_kernel"] is True
    assert len(overrides(tmp_path)) == 1


# ─── A4: seccomp and access control ─────────────────────────────────────────────────


@pytest.mark.statement("A4", "B4")
@pytest.mark.parametrize(
    ("name", "entry", "is_refused"),
    [
        ("runsc", {"path": "/usr/local/bin/runsc"}, True),
        ("runsc", {"path": "/usr/local/bin/runsc", "runtimeArgs": None}, True),
        ("runsc", {"path": "runsc", "runtimeArgs": ["--platform=systrap"]}, True),
        ("gvisor", {"path": "/opt/runsc-20250101", "runtimeArgs": ["--network=none"]}, True),
        ("runsc", {"path": "runsc", "runtimeArgs": ["--oci-seccomp=false"]}, True),
        ("runsc", {"path": "runsc", "runtimeArgs": ["--oci-seccomp", "--oci-seccomp=0"]}, True),
        ("runsc", {"path": "runsc", "runtimeArgs": ["--no-oci-seccomp", "oci-seccomp.x"]}, True),
        ("runsc", {"path": "runsc", "runtimeArgs": ["--network=none", "--oci-seccomp"]}, False),
        ("runsc", {"path": "runsc", "runtimeArgs": ["-oci-seccomp"]}, False),
        ("runsc", {"path": "runsc", "runtimeArgs": ["--oci-seccomp=true"]}, False),
        # Nothing is told: the box itself is tried.
        ("runsc", {}, False),
        ("runsc", {"runtimeType": "io.containerd.runsc.v1"}, False),
        # The argument is gVisor's; others filter without being asked.
        ("runc", {"path": "runc"}, False),
        ("runsc", {"path": "/usr/bin/runc"}, False),
        ("kata", {"path": "/opt/kata/bin/kata-runtime"}, False),
    ],
)
@pytest.mark.parametrize("policy", [Policy(), MULTI, SHARED])
def test_gvisor_has_to_take_up_our_profile(
    name: str, entry: dict[str, Any], is_refused: bool, policy: Policy
) -> None:
    """A4: gVisor without `--oci-seccomp` is refused, with the mend, and no option allows it."""
    facts = facts_of(engines.DOCKER_29, Runtimes={name: entry}, DefaultRuntime=name)
    said = [one for one in judge_runtime(policy, facts, name).refusals if "--oci-seccomp" in one]
    assert bool(said) is is_refused
    if is_refused:
        assert f"run `make gvisor`, or add --oci-seccomp to the runtimeArgs of {name}" in said[0]
        with pytest.raises(UnsafeRuntime, match="leaves the profile of system calls unused"):
            admit(policy, facts, name)


@pytest.mark.statement("A4")
def test_gvisor_beside_another_runtime_is_refused_for_its_own_boxes_only() -> None:
    """The engine can be used: boxes of the other runtime are filtered."""
    runtimes = {"runc": {"path": "runc"}, "runsc": {"path": "/usr/local/bin/runsc"}}
    facts = facts_of(engines.DOCKER_29, Runtimes=runtimes, DefaultRuntime="runc")
    assert admit(Policy(), facts, None).runtime == "runc"
    with pytest.raises(UnsafeRuntime, match="make gvisor"):
        admit(Policy(), facts, "runsc")


@pytest.mark.statement("A4")
def test_podman_does_not_tell_how_it_starts_gvisor() -> None:
    """So nothing is known of it here: `seccomp.unconfined` decides when the box is up."""
    runtimes = {"runsc": {"path": "/usr/bin/runsc"}}
    facts = facts_of(engines.PODMAN_5, Runtimes=runtimes, DefaultRuntime="runsc")
    assert judge_runtime(Policy(), facts, "runsc") == gate.Verdict()


@pytest.mark.statement("A4")
@pytest.mark.parametrize(
    ("options", "policy", "words"),
    [
        (["name=seccomp,profile=default"], Policy(), None),
        ([], Policy(), "can't filter system calls"),
        (["name=apparmor"], Policy(), "can't filter system calls"),
        (["name=seccomp"], Policy(require_access_control=True), "neither AppArmor nor SELinux"),
        (["name=seccomp", "name=apparmor"], Policy(require_access_control=True), None),
        (["name=seccomp", "name=selinux"], Policy(require_access_control=True), None),
        (["name=seccomp"], Policy(apparmor_profile="agent-sandbox"), "has no AppArmor"),
        (["name=seccomp", "name=selinux"], Policy(apparmor_profile="agent-sandbox"), "no AppArmor"),
        (["name=seccomp", "name=apparmor"], Policy(apparmor_profile="agent-sandbox"), None),
    ],
)
def test_layers_that_are_missing(options: list[str], policy: Policy, words: str | None) -> None:
    """A4: seccomp always, the others where the policy demands them; each with its mend."""
    refusals = judge_engine(policy, facts_of(engines.DOCKER_29, SecurityOptions=options)).refusals
    assert bool(refusals) is (words is not None)
    assert words is None or words in refusals[0]


def altered_info(proxy: EngineProxy, change: Callable[[dict[str, Any]], object]) -> None:
    """From now on the engine's `GET /info` says something else."""

    def rewrite(request: Request, body: bytes) -> bytes:
        if request.path != "/info":
            return body
        info = json.loads(body)
        change(info)
        return json.dumps(info).encode()

    proxy.change_answer = rewrite


@pytest.mark.statement("A4")
def test_no_controller_starts_without_seccomp(tmp_path: Path) -> None:
    """A4: an engine whose `GET /info` has no seccomp is left alone."""
    with engine_proxy() as proxy:
        altered_info(proxy, lambda info: info.update(SecurityOptions=["name=apparmor"]))
        with pytest.raises(UnsafeRuntime, match="can't filter system calls"):
            open_once(tmp_path, Policy(), docker_host=proxy.address)
        assert {request.path for request in proxy.requests} <= {"/version", "/info"}


@pytest.mark.statement("A4")
def test_a_profile_of_apparmor_is_asked_for_by_name() -> None:
    """A4: the profile goes into the request, is read back, and its loss is a mismatch."""
    request = create_request(tiny.plan(apparmor="agent-sandbox"))
    assert "apparmor=agent-sandbox" in request["HostConfig"]["SecurityOpt"]
    made = {**request["HostConfig"], "SecurityOpt": request["HostConfig"]["SecurityOpt"][:-1]}
    faults = inspection.read_back_faults(
        request, {"Config": request, "HostConfig": made, "Mounts": []}
    )
    assert any(fault.startswith("HostConfig.SecurityOpt") for fault in faults)
    plain = create_request(tiny.plan())["HostConfig"]["SecurityOpt"]
    assert not any(option.startswith("apparmor") for option in plain)


# ─── A5: who else may command the engine ────────────────────────────────────────────


@pytest.mark.statement("A5")
def test_an_open_socket_is_refused_unless_that_is_named(tmp_path: Path) -> None:
    """A5: not a byte is sent to a socket that all may write; the override is on record."""
    with engine_proxy() as proxy:
        proxy.socket.chmod(0o666)
        with pytest.raises(EngineUnavailable, match=rf"chmod o-w.*{OVERRIDE}"):
            open_once(tmp_path, Policy(), docker_host=proxy.address)
        assert proxy.requests == []
        assert overrides(tmp_path) == []

        allowed = {"docker_host": proxy.address, "allow_insecure_engine": True}
        open_once(tmp_path, Policy(), **allowed)
        (line,) = overrides(tmp_path)
        assert line["option"] == OVERRIDE
        assert str(proxy.socket) in line["reason"]

        proxy.socket.chmod(0o600)
        open_once(tmp_path, Policy(), **allowed)
        assert len(overrides(tmp_path)) == 1, "an override that is not needed is not used"


@pytest.mark.statement("A5")
def test_plain_tcp_is_refused(tmp_path: Path) -> None:
    """A5: an engine that is reached without TLS is anybody's."""
    with pytest.raises(EngineUnavailable, match="without TLS"):
        open_once(tmp_path, Policy(), docker_host="tcp://127.0.0.1:2375")


# ─── A6: what was made is what was asked for ────────────────────────────────────────


def left_on_engine(exec_id: str) -> list[str]:
    """Names of the containers of a loop."""

    async def ask() -> list[str]:
        async with tiny.engine() as engine:
            listed = await engine.list_containers({LABEL_LOOP: exec_id})
            return [one["Names"][0] for one in listed]

    return asyncio.run(ask())


def changed_host(path: str, **changes: Any) -> Callable[[Request, bytes], bytes]:
    """Changes `HostConfig`, or with `Config_NAME` the rest, in bodies at paths of this kind."""

    def rewrite(request: Request, body: bytes) -> bytes:
        if not re.fullmatch(path, request.path):
            return body
        found = json.loads(body)
        if isinstance(found, dict) and "HostConfig" in found:
            found["HostConfig"].update(changes)
        return json.dumps(found).encode()

    return rewrite


CREATE = r"/containers/create\?name=executor-(gate|drops|warned)-.*"
INSPECT = r"/containers/[0-9a-f]{64}/json"


@pytest.mark.statement("A6")
@pytest.mark.parametrize(
    ("side", "changes"),
    [
        ("request", {"SecurityOpt": []}),
        ("request", {"SecurityOpt": ["no-new-privileges:true", "seccomp=unconfined"]}),
        ("request", {"CapDrop": []}),
        ("request", {"Memory": 0, "MemorySwap": 0}),
        ("request", {"MemorySwap": -1}),
        ("request", {"PidsLimit": 0}),
        ("request", {"NanoCpus": 0}),
        ("request", {"NetworkMode": "bridge"}),
        ("request", {"ReadonlyRootfs": False}),
        ("request", {"MaskedPaths": []}),
        ("request", {"ReadonlyPaths": []}),
        ("request", {"Binds": ["/etc:/host:ro"]}),
        ("request", {"Devices": [{"PathOnHost": "/dev/full", "PathInContainer": "/dev/x"}]}),
        ("request", {"PidMode": "host"}),
        ("request", {"LogConfig": {"Type": "json-file", "Config": {}}}),
        ("answer", {"SecurityOpt": None}),
        ("answer", {"Memory": 0}),
        ("answer", {"Privileged": True}),
        ("answer", {"Ulimits": "nonsense"}),
        ("answer", {"Runtime": "another"}),
    ],
)
def test_a_box_that_differs_is_removed_unstarted(
    tmp_path: Path, side: str, changes: dict[str, Any]
) -> None:
    """A6: an engine that drops or adds a field makes a container that never runs."""
    if "MaskedPaths" in changes:
        changes = {"MaskedPaths": ["/proc/kcore"]}
    name = f"drops-{os.getpid()}-{next(iter(changes)).lower()}"
    with engine_proxy() as proxy:
        if side == "request":
            proxy.change_request = changed_host(CREATE, **changes)
        else:
            proxy.change_answer = changed_host(INSPECT, **changes)
        with pytest.raises(PolicyMismatch, match=next(iter(changes))):
            open_once(
                tmp_path,
                Policy(),
                change=lambda spec: replace(spec, exec_id=name),
                docker_host=proxy.address,
            )
        asked = [request.path for request in proxy.requests]
    assert any(re.fullmatch(CREATE, path) for path in asked)
    assert not any(path.endswith("/start") for path in asked)
    assert left_on_engine(name) == []


@pytest.mark.statement("A6")
def test_the_same_way_without_changes_opens_a_box(tmp_path: Path) -> None:
    """A6: the proxy alone is no reason for a refusal."""
    with engine_proxy() as proxy:
        found = open_once(tmp_path, Policy(), docker_host=proxy.address)
        assert found["network"] == "none"
        assert any(request.path.endswith("/start") for request in proxy.requests)


@pytest.mark.statement("A6")
def test_every_field_is_decided(hostile: Box) -> None:
    """A6: each field that an engine knows is compared, or left alone for a written reason."""

    async def inspect() -> dict[str, Any]:
        async with await Engine.connect(Settings.load()) as engine:
            return await engine.inspect(hostile.sandbox.id)

    decided = inspection.COMPARED | set(inspection.AT_LEAST) | set(inspection.LEFT)
    assert set(asyncio.run(inspect())["HostConfig"]) <= decided
    assert set(create_request(tiny.plan())["HostConfig"]) <= decided
    assert all(inspection.LEFT.values())


@pytest.mark.statement("A6")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CpuRealtimeRuntime", 950000),
        ("CpuRealtimePeriod", 1000000),
        ("CpuQuota", -1),
        ("CpuShares", 1024),
        ("CpusetCpus", "0"),
        ("BlkioWeight", 500),
        ("BlkioDeviceWriteBps", [{"Path": "/dev/sda", "Rate": 1}]),
        ("Devices", [{"PathOnHost": "/dev/kvm"}]),
        ("DeviceRequests", [{"Count": -1}]),
        ("DeviceCgroupRules", ["c 1:3 mr"]),
        ("Annotations", {"dev.gvisor.flag.x": "y"}),
        ("MaskedPaths", ["/proc/kcore"]),
        ("ReadonlyPaths", ["/proc/sys"]),
        ("StorageOpt", {"size": "1G"}),
        ("Isolation", "hyperv"),
        ("KernelMemory", 1),
        ("IOMaximumIOps", 1),
        ("CgroupParent", "/other"),
        ("Cgroup", "container:x"),
        ("Links", ["/a:/b"]),
        ("ContainerIDFile", "/x"),
        ("SecurityOpt", ["seccomp={not json"]),
        ("Mounts", ["not a mount"]),
        ("Tmpfs", {"/tmp": "rw,suid,size=1g"}),
    ],
)
def test_fields_that_nobody_asked_for(name: str, value: Any) -> None:
    """A6: also what no request of ours ever sets is looked at, and nonsense is a mismatch."""
    request = create_request(tiny.plan())
    made = {"Config": request, "HostConfig": {**request["HostConfig"], name: value}}
    faults = inspection.read_back_faults(request, {**made, "Mounts": []})
    assert any(fault.startswith(f"HostConfig.{name}") for fault in faults)


# ─── A7: limits that are not in force ───────────────────────────────────────────────

DISCARDED = [
    # Docker 20.10 to 28, from its source; Podman 4 has the same words.
    "Your kernel does not support memory limit capabilities or the cgroup is not mounted. "
    "Limitation discarded.",
    "Your kernel does not support swap limit capabilities or the cgroup is not mounted. "
    "Memory limited without swap.",
    "Your kernel does not support PIDs limit capabilities or the cgroup is not mounted. "
    "PIDs limit discarded.",
    "Your kernel does not support pids limit capabilities or the cgroup is not mounted. "
    "PIDs limit discarded.",
    "Your kernel does not support CPU CFS scheduler. CPU period/quota discarded.",
    "Your kernel does not support CPU CFS scheduler or the cgroup is not mounted. "
    "CPU period/quota discarded.",
    "Your kernel does not support CPU cfs period or the cgroup is not mounted. Period discarded.",
    "Your kernel does not support CPU cfs quota or the cgroup is not mounted. Quota discarded.",
    "Resource limits are not supported and ignored on cgroups V1 rootless systems",
]
SHOWN = [
    "Your kernel does not support memory swappiness capabilities or the cgroup is not mounted. "
    "Memory swappiness discarded.",
    "Your kernel does not support memory soft limit capabilities or the cgroup is not mounted. "
    "Limitation discarded.",
    "Your kernel does not support OomKillDisable. OomKillDisable discarded.",
    "Your kernel does not support CPU shares or the cgroup is not mounted. Shares discarded.",
    "Your kernel does not support cpuset or the cgroup is not mounted. Cpuset discarded.",
    "Your kernel does not support Block I/O weight or the cgroup is not mounted. Weight discarded.",
    "Your kernel does not support cgroup namespaces.  Cgroup namespace setting discarded.",
    "IPv4 forwarding is disabled. Networking will not work.",
    'Configured runtime "io.containerd.runtime.v1.linux" is deprecated and will be removed in '
    "the next release.",
]


@pytest.mark.statement("A7")
def test_which_warnings_are_fatal() -> None:
    """A7: every engine's words for a required limit, and none for anything else."""
    assert warning_faults([*SHOWN, *DISCARDED]) == DISCARDED
    assert warning_faults(None) == []


@pytest.mark.statement("A7")
@pytest.mark.parametrize(
    ("replies", "changes", "words"),
    [
        (engines.DOCKER_20, {}, None),
        (engines.DOCKER_20, {"SwapLimit": False}, "swap.*swapaccount=1"),
        (engines.DOCKER_28, {"MemoryLimit": False}, "memory"),
        (engines.DOCKER_28, {"PidsLimit": False}, "processes"),
        (engines.DOCKER_28, {"CpuCfsQuota": False}, "CPU"),
        (engines.DOCKER_28, {"CgroupDriver": "none"}, "memory, swap, CPU, processes"),
        (engines.ROOTLESS, {}, "delegation"),
        (engines.ROOTLESS_DELEGATED, {}, None),
    ],
)
def test_an_engine_that_can_not_enforce_limits(
    replies: Replies, changes: dict[str, Any], words: str | None
) -> None:
    """A7: no controller starts where a required limit could not be in force."""
    text = " ".join(judge_engine(Policy(), facts_of(replies, **changes)).refusals)
    assert bool(text) is (words is not None)
    assert words is None or re.search(words, text)


def with_warning(text: str) -> Callable[[Request, bytes], bytes]:
    """The engine's answer to a create request warns of something."""

    def rewrite(request: Request, body: bytes) -> bytes:
        if not re.fullmatch(CREATE, request.path):
            return body
        return json.dumps({**json.loads(body), "Warnings": [text]}).encode()

    return rewrite


@pytest.mark.statement("A7")
@pytest.mark.parametrize("text", [DISCARDED[0], DISCARDED[1], DISCARDED[2], DISCARDED[-1]])
def test_a_warning_of_a_limit_ends_the_start(tmp_path: Path, text: str) -> None:
    """A7: the container is removed unstarted, and the engine's own words are the reason."""
    name = f"warned-{os.getpid()}-{DISCARDED.index(text)}"
    with engine_proxy() as proxy:
        proxy.change_answer = with_warning(text)
        with pytest.raises(PolicyMismatch, match=re.escape(text)):
            open_once(
                tmp_path,
                Policy(),
                change=lambda spec: replace(spec, exec_id=name),
                docker_host=proxy.address,
            )
        assert not any(request.path.endswith("/start") for request in proxy.requests)
    assert left_on_engine(name) == []


@pytest.mark.statement("A7")
def test_another_warning_is_shown(tmp_path: Path) -> None:
    """A7: a box is opened all the same, and its capabilities have the engine's words."""
    with engine_proxy() as proxy:
        proxy.change_answer = with_warning(SHOWN[5])
        found = open_once(tmp_path, Policy(), docker_host=proxy.address)
    assert SHOWN[5] in found["notices"]


@pytest.mark.statement("A7")
def test_no_controller_starts_without_swap_accounting(tmp_path: Path) -> None:
    """A7: an engine that says so in `GET /info` is refused before anything is created."""
    with engine_proxy() as proxy:
        altered_info(proxy, lambda info: info.update(SwapLimit=False))
        with pytest.raises(UnsafeRuntime, match="swapaccount=1"):
            open_once(tmp_path, Policy(), docker_host=proxy.address)
        assert {request.path for request in proxy.requests} <= {"/version", "/info"}


# ─── A8: no tool on the host ────────────────────────────────────────────────────────

TOOLS = {tool.name: tool for tool in toolsets.registry("standard", load()).all()}


def tree(root: Path) -> dict[str, bytes]:
    """Everything in a worktree."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"directory"
        for path in sorted(root.rglob("*"))
    }


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Work, Path]]:
    """A loop whose box is killed and whose engine is gone, and a place for canaries."""
    directory = tmp_path_factory.mktemp("dead")
    root = make_worktree(directory / "worktree")
    name = f"dead-{os.getpid()}"
    with engine_proxy() as proxy, LoopThread() as thread:
        loop = thread.enter(
            opened(
                directory,
                Policy(),
                lambda spec: replace(spec, exec_id=name),
                docker_host=proxy.address,
            )
        )
        work = Work(thread, loop, root, "docker")
        for path in ("d/a.txt", "d/gone.txt", "d/from.txt"):
            work.write(path, "one\ntwo\nthree\n")
        assert work.call("read_file", path="d/a.txt").code is None
        asyncio.run(kill_boxes(name))
        proxy.refuse()
        proxy.cut()
        yield work, directory
        proxy.listen()
    # What could not be removed was left to the sweep of a later controller.
    asyncio.run(remove_boxes(name))


async def remove_boxes(exec_id: str) -> None:
    """Removes the containers of a loop."""
    async with tiny.engine() as engine:
        for one in await engine.list_containers({LABEL_LOOP: exec_id}):
            await engine.remove(one["Id"])


async def kill_boxes(exec_id: str) -> None:
    """Kills the containers of a loop."""
    async with tiny.engine() as engine:
        for one in await engine.list_containers({LABEL_LOOP: exec_id}):
            await engine.kill(one["Id"])


WITHOUT_BOX = {"web_fetch": Code.NETWORK_ERROR, "web_search": Code.DISABLED}
"""They run on the host: the sandbox, whose port is asked for, is not open; there is no key."""


@pytest.mark.statement("A8")
@pytest.mark.parametrize("name", TOOLS)
def test_no_tool_works_without_a_box(dead: tuple[Work, Path], name: str) -> None:
    """A8: each tool fails with the box's error, and neither worktree nor host is touched."""
    work, directory = dead
    before = tree(work.root)
    canary = directory / "canary"
    given = dict(SAMPLES[name])
    for key in ("command", "code"):
        if key in given:
            given[key] = f"touch {canary} {work.root}/canary"
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()

    result = work.call(name, **given)

    if name == "git_push":
        assert result.code is Code.DISABLED, result  # as with a box: nothing is ever pushed
    elif TOOLS[name].entry.access is Access.SESSION:
        # It says something to the loop's host and needs no box; there is no task, loop or person.
        assert result.code in (None, Code.NOT_FOUND, Code.APPROVAL_REQUIRED), result
    elif name in WITHOUT_BOX:
        assert result.code is WITHOUT_BOX[name], result
    else:
        assert result.code in (Code.SANDBOX_UNAVAILABLE, Code.SANDBOX_LOST), result
    assert tree(work.root) == before
    assert not canary.exists()
    assert Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text() == children


# ─── A9: what an engine ignores ─────────────────────────────────────────────────────


@pytest.mark.statement("A9")
def test_ignored_options_are_neither_sent_nor_claimed(hostile: Box, facts: EngineFacts) -> None:
    """A9: the box's own request has none of what its engine would drop."""

    async def inspect() -> dict[str, Any]:
        async with await Engine.connect(Settings.load()) as engine:
            return await engine.inspect(hostile.sandbox.id)

    found = hostile.sandbox.capabilities
    assert found["ignored_options"] == list(facts.ignored_options)
    mounts = asyncio.run(inspect())["HostConfig"]["Mounts"]
    sent = {name for one in mounts for name in one.get("BindOptions") or {}}
    assert not sent & set(facts.ignored_options)
    assert found["recursive_read_only"] is ("ReadOnlyForceRecursive" in sent)


@pytest.mark.statement("A9")
@pytest.mark.parametrize(
    ("replies", "ignored"),
    [
        (engines.DOCKER_20, {"ReadOnlyForceRecursive", "CreateMountpoint"}),
        (engines.DOCKER_26, set()),
        (engines.DOCKER_29, set()),
        (engines.PODMAN_4, {"ReadOnlyForceRecursive", "CreateMountpoint"}),
        (engines.PODMAN_5, {"ReadOnlyForceRecursive", "CreateMountpoint"}),
    ],
)
def test_options_by_api(replies: Replies, ignored: set[str]) -> None:
    """A9: `NonRecursive` is honoured by all of them; the younger options are not."""
    facts = facts_of(replies)
    assert set(facts.ignored_options) == ignored
    request = create_request(tiny.plan(facts=facts))
    sent = {
        name
        for one in request["HostConfig"]["Mounts"]
        if one["Type"] == "bind"
        for name in one["BindOptions"]
    }
    assert "NonRecursive" in sent and not sent & ignored


# ─── B16: working directories that lead out ─────────────────────────────────────────


@pytest.mark.statement("B16")
@pytest.mark.parametrize(
    ("path", "is_bad"),
    [
        *((path, True) for path in ("/proc/self/fd/8", "/proc/self/fd/8/../../..", "proc/1/root")),
        *((path, True) for path in ("//proc//self/./fd/7", "/workspace/../proc/self/cwd")),
        *((path, True) for path in ("/proc", "/proc/1/cwd", "/dev/fd/3", "/dev/stdin", "/dev")),
        *((path, False) for path in ("", "/", "/srv/app", "/process", "/devel", "/home/proc")),
    ],
)
def test_working_directories_of_images(path: str, is_bad: bool) -> None:
    """B16: an image that wants to start in a process's descriptors is refused by name."""
    assert bool(working_directory_fault(path)) is is_bad
    image = replace(tiny.plan().image, working_directory=path)
    if is_bad:
        with pytest.raises(BadPath, match="use an image with another WORKDIR"):
            create_request(tiny.plan(image=image))
    else:
        assert create_request(tiny.plan(image=image))["WorkingDir"] == "/workspace"


async def start_all_the_same(
    engine: Engine, directory: Path, image: Image, runtime: str
) -> tuple[str, str]:
    """What a box of an image says of its directory, had the image not been refused."""
    names = ("passwd", "group", "hosts", "git_settings")
    files = {name: directory / name for name in names}
    for path in files.values():
        path.write_text("")
    async with (
        tiny.tiny_image(engine) as innocent,
        tiny.runtime_volume(engine, innocent) as volume,
    ):
        request = create_request(
            tiny.plan(
                spec=LoopSpec(worktree=directory, limits=LIMITS, runtime=runtime),
                worktree=make_worktree(directory / "work"),
                image=replace(image, working_directory=""),
                runtime_volume=volume,
                files=replace(tiny.plan().files, **files),
                facts=engine.facts,
                ceilings=ceilings(),
            )
        )
        async with tiny.created(engine, request) as id:
            made = await engine.inspect(id)
            return made["Config"]["WorkingDir"], await tiny.say(engine, id, "pwd")


@pytest.mark.statement("B16")
@pytest.mark.timeout(120)
def test_an_image_with_a_hostile_working_directory(tmp_path: Path, runtime: str) -> None:
    """B16: no container is created of it; and were there one, it would start in the worktree."""
    asked: list[Request] = []

    async def run() -> tuple[str, str]:
        async with (
            tiny.engine() as engine,
            tiny.tiny_image(engine, ["WORKDIR /proc/self/fd/8"]) as image,
        ):
            assert image.working_directory == "/proc/self/fd/8"
            with engine_proxy() as proxy, pytest.raises(BadPath, match="/proc/self/fd/8"):
                try:
                    async with opened(
                        tmp_path,
                        Policy(),
                        lambda spec: replace(spec, image=image.reference, runtime=runtime),
                        docker_host=proxy.address,
                    ):
                        raise AssertionError("it was opened")
                finally:
                    asked.extend(proxy.requests)
            return await start_all_the_same(engine, tmp_path, image, runtime)

    assert asyncio.run(run()) == ("/workspace", "/workspace\n")
    assert asked and not any(re.fullmatch(CREATE, request.path) for request in asked)


LINKS = {
    "to-fd": "/proc/self/fd/3",
    "to-cwd": "/proc/self/cwd",
    "to-root": "/proc/1/root",
    "to-dev": "/dev/fd",
    "to-proc": "/proc",
    "to-link": "to-fd",
    "deep/up": "../to-proc/self/fd",
}
OUTSIDE = [
    *("/proc/self/fd/3", "/proc/self/fd/3/../../..", "/proc/self/cwd", "/proc/1/root", "/proc"),
    *("/proc/thread-self/fd/0", "/dev/fd/7", "/dev/stdin", "//proc/self/fd/3", "/dev/fd"),
    *("/workspace/../proc/self/fd/3", "../proc/self/fd/3", "deep/../../proc/self/cwd"),
    *LINKS,
    *("to-proc/self/fd/3", "to-proc/self/cwd", "to-dev/3"),
]


def make_links(root: Path) -> None:
    """Links of a worktree that lead to descriptors of processes."""
    (root / "deep").mkdir(exist_ok=True)
    for name, target in LINKS.items():
        if not os.path.lexists(root / name):
            (root / name).symlink_to(target)


@pytest.mark.statement("B16")
@pytest.mark.parametrize("path", OUTSIDE)
def test_no_command_starts_in_a_processs_descriptors(hostile: Box, path: str) -> None:
    """B16: as a command's directory such a path is an error, and the command does not run."""
    make_links(hostile.root)
    with pytest.raises(ToolError) as caught:
        hostile.run("touch ran; pwd", cwd=path)
    assert caught.value.code is Code.FILE_NOT_FOUND
    assert not (hostile.root / "ran").exists()


@pytest.mark.statement("B16")
@pytest.mark.parametrize("path", ["/proc/self/fd", "/proc/self", "/dev/fd", "to-proc/self/fd"])
def test_a_command_that_went_there_is_not_followed(hostile: Box, path: str) -> None:
    """B16: what a command made its directory does not become that of the next one."""
    make_links(hostile.root)
    hostile.run(f"cd {path}")
    assert hostile.run("pwd -P").out == b"/workspace\n"


@pytest.mark.statement("B16")
def test_no_tool_takes_a_working_directory() -> None:
    """B16: a model has no argument with which it could name one."""
    names = {key for tool in TOOLS.values() for key in tool.schema["properties"]}
    assert not names & {"cwd", "workdir", "working_directory", "directory"}


# ─── C9: places that are mounted into no box ────────────────────────────────────────


@pytest.mark.statement("C9")
@pytest.mark.parametrize(
    "place",
    [
        *("/", "/etc", "/root", "/home", "/proc", "/proc/self", "/sys", "/sys/fs/cgroup", "/dev"),
        *("/dev/shm", "/run", "/var/run", "/var", "/usr", "/boot", "/bin", "/lib", "/etc/ssl"),
        *("/var/lib/docker", "/var/run/docker.sock", "/proc/self/cwd/../../etc", "/tmp/../etc"),
    ],
)
@pytest.mark.parametrize("by_link", [False, True])
def test_a_place_that_no_box_may_write(tmp_path: Path, place: str, by_link: bool) -> None:
    """C9: neither itself, nor what it holds or lies in, nor a link to it."""
    if not Path(place).exists():
        pytest.skip(f"there is no {place} here")
    path = Path(place)
    if by_link:
        (tmp_path / "one").symlink_to(place)
        path = tmp_path / "two"
        path.symlink_to("one")
    with pytest.raises(ForbiddenMount):
        open_worktree(path)


@pytest.mark.statement("C9")
def test_the_engines_own_places_are_forbidden(tmp_path: Path) -> None:
    """C9: neither the directory of the engine's socket nor that of our state is mounted."""
    with engine_proxy() as proxy:
        beside = proxy.socket.parent
        for place in (beside, tmp_path / "state"):
            place.mkdir(exist_ok=True)
            (tmp_path / f"link-{place.name}").symlink_to(place)
            for path in (place, tmp_path / f"link-{place.name}"):
                with pytest.raises(ForbiddenMount, match="no sandbox may have"):
                    open_once(
                        tmp_path,
                        Policy(),
                        change=lambda spec, path=path: replace(spec, worktree=path),
                        docker_host=proxy.address,
                    )
        assert not any(re.fullmatch(CREATE, request.path) for request in proxy.requests)


@pytest.mark.statement("C9")
def test_binds_are_never_used() -> None:
    """C9: the older field for mounts is always empty, and filling it is a mismatch."""
    request = create_request(tiny.plan())
    assert request["HostConfig"]["Binds"] == []
    assert "Binds" in inspection.COMPARED
    source = Path(gate.__file__).parent.parent
    users = [path.name for path in source.rglob("*.py") if '"Binds"' in path.read_text("utf-8")]
    # The last one reads what an engine answers.
    assert sorted(users) == ["container.py", "inspection.py", "podman.py"]


def test_a_refusal_is_a_fault_of_the_configuration() -> None:
    """Who catches `ConfigError` catches these, too, and the exit code is the same."""
    assert issubclass(ForbiddenMount, ConfigError) and issubclass(BadPath, ConfigError)
