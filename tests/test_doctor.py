"""Facts → findings, as tables; and one look at this machine."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from executor.catalog import LaneEntry, Policy
from executor.doctor import Finding, examine, is_able, judge, judge_runtimes
from executor.sandbox.facts import parse_facts
from executor.settings import Settings
from tests.sandbox import engines


def levels(
    replies: tuple[dict[str, Any], dict[str, Any]],
    policy: Policy = Policy(),  # noqa: B008
    runtime: str | None = None,
    **changes: Any,
) -> dict[str, str]:
    """Name → level of what is found about an engine, without what is well."""
    version, info = replies
    findings = judge(parse_facts("unix:///s", version, info | changes), policy, runtime)
    return {finding.name: finding.level for finding in findings if finding.level != "ok"}


OLD = {"engine": "warning", "runtime": "warning"}
PODMAN = {"mounts": "warning", "podman": "warning"}
UNCONFINED = {"mandatory access control": "warning"}


@pytest.mark.parametrize(
    ("replies", "changes", "expected"),
    [
        (engines.DOCKER_20, {}, OLD | UNCONFINED | {"mounts": "warning"}),
        (engines.DOCKER_26, {}, OLD | UNCONFINED),
        (engines.PODMAN_4, {}, {"runtime": "warning"} | PODMAN | UNCONFINED),
        (
            engines.ROOTLESS,
            {},
            OLD
            | UNCONFINED
            | {"limits": "fault", "users": "warning", "mounts": "warning"}
            | {"engine's own warning": "warning"},
        ),
        (engines.REMAPPED, {}, OLD | {"users": "warning"}),
        (engines.DOCKER_26, {"SwapLimit": False}, OLD | UNCONFINED | {"limits": "fault"}),
        (engines.DOCKER_26, {"PidsLimit": False}, OLD | UNCONFINED | {"limits": "fault"}),
        (engines.DOCKER_26, {"SecurityOptions": []}, OLD | UNCONFINED | {"seccomp": "fault"}),
        (engines.DOCKER_26, {"KernelVersion": "5.4.0"}, OLD | UNCONFINED | {"kernel": "warning"}),
        (engines.DOCKER_28, {}, {"engine": "warning"}),
        (engines.DOCKER_29, {}, {}),
        (engines.ROOTLESS_DELEGATED, {}, {"engine": "warning", "users": "warning"} | UNCONFINED),
        (engines.PODMAN_5, {}, PODMAN),
    ],
)
def test_engines(
    replies: tuple[dict[str, Any], dict[str, Any]],
    changes: dict[str, Any],
    expected: dict[str, str],
) -> None:
    """A1, A4, A7, A9: each engine is judged by what it says, and only by that."""
    assert levels(replies, **changes) == expected


def test_patched_engine_has_no_warnings() -> None:
    """A1: at the floors nothing is said against engine and runtime."""
    version = engines.DOCKER_26[0] | {
        "Version": "29.5.1",
        "Components": [{"Name": "runc", "Version": "1.3.3"}],
    }
    found = levels((version, engines.DOCKER_26[1]))

    assert found == UNCONFINED


def test_warning_names_the_faults_and_the_floor() -> None:
    """A1: below the floor the CVEs and the patched version are named."""
    finding = judge(parse_facts("unix:///s", *engines.DOCKER_20))[0]

    assert "CVE-2026-41567" in finding.text
    assert "29.5.1" in finding.mend


def test_what_an_engine_ignores_is_named() -> None:
    """A9: options that the API drops are named, with what their absence means."""
    found = {f.name: f for f in judge(parse_facts("unix:///s", *engines.DOCKER_20))}
    assert "ReadOnlyForceRecursive" in found["mounts"].text
    assert "CreateMountpoint" in found["mounts"].text
    assert "API 1.41" in found["mounts"].text
    found = {f.name: f for f in judge(parse_facts("unix:///s", *engines.DOCKER_26))}
    assert found["mounts"].level == "ok"


def test_the_mapped_users_are_named() -> None:
    """Where users are remapped, the uids that fit and the command that helps are said."""
    found = {f.name: f for f in judge(parse_facts("unix:///s", *engines.REMAPPED_20))}
    assert "from 100000 to 165535" in found["users"].text
    assert "chown -R 101000:101000" in found["users"].mend


@pytest.mark.parametrize(
    ("replies", "policy", "runtime", "level"),
    [
        (engines.DOCKER_29, Policy(require_patched_engine=True), None, None),
        (engines.DOCKER_28, Policy(require_patched_engine=True), None, "fault"),
        (engines.DOCKER_28, Policy(require_access_control=True), None, None),
        (engines.DOCKER_26, Policy(require_access_control=True), None, "fault"),
        (engines.DOCKER_26, Policy(apparmor_profile="p"), None, "fault"),
        (engines.DOCKER_26, Policy(tenancy="multi"), None, "fault"),
        (engines.DOCKER_26, Policy(tenancy="multi", allow_shared_kernel=True), None, "warning"),
        (engines.GVISOR_20, Policy(tenancy="multi"), None, None),
        (engines.GVISOR_20, Policy(tenancy="multi"), "runc", "fault"),
        (engines.DOCKER_26, Policy(), "runc", None),
    ],
)
def test_what_the_policy_refuses_is_found(
    replies: tuple[dict[str, Any], dict[str, Any]],
    policy: Policy,
    runtime: str | None,
    level: str | None,
) -> None:
    """A1, A3, A4: doctor says beforehand what a controller would refuse."""
    assert levels(replies, policy, runtime).get("policy") == level


def test_the_runtime_of_each_lane_is_judged() -> None:
    """One that the engine lacks is a fault, and one that the policy refuses is one, too."""
    facts = parse_facts("unix:///s", *engines.DOCKER_29)
    (found,) = judge_runtimes(facts, {"net": LaneEntry(), "heavy": LaneEntry(runtime="runcs")})
    assert (found.name, found.level) == ("runtime", "fault")
    assert "lanes.heavy.runtime: the engine has no 'runcs'" in found.text and found.mend
    found, *_ = judge_runtimes(facts, {"heavy": LaneEntry(runtime="runc")}, Policy("multi"))
    assert (found.name, found.level) == ("policy", "fault")
    assert judge_runtimes(facts, {"heavy": LaneEntry(runtime="runc")}) == []


def test_every_finding_that_is_not_well_says_what_to_do() -> None:
    """No warning of ours and no fault is without its mend."""
    strict = Policy("multi", require_patched_engine=True, require_access_control=True)
    for replies in engines.ALL.values():
        for finding in judge(parse_facts("tcp://engine:2376", *replies), strict):
            is_ours = finding.name != "engine's own warning"
            assert finding.mend or finding.level == "ok" or not is_ours, finding


def examined(settings: Settings) -> dict[str, Finding]:
    """The findings about this machine by name."""

    async def run() -> list[Finding]:
        async with asyncio.timeout(60):
            return await examine(settings)

    return {finding.name: finding for finding in asyncio.run(run())}


def test_this_machine_can_run_loops(tmp_path: Path) -> None:
    """With the engine of this machine no fault is found, and all areas are looked at."""
    host = Settings.load().docker_host

    found = examined(Settings(docker_host=host, state_directory=tmp_path / "state"))

    assert is_able(list(found.values())), found
    assert {"engine", "limits", "seccomp", "kernel", "images", "python"} <= set(found)


def test_missing_engine_is_a_fault_with_its_sentence(tmp_path: Path) -> None:
    """Without an engine the report ends with why."""
    address = f"unix://{tmp_path}/none.sock"

    found = examined(Settings(docker_host=address, state_directory=tmp_path))

    assert found["engine"].level == "fault"
    assert address in found["engine"].text


def test_state_directory_that_can_not_be_made_is_a_fault(tmp_path: Path) -> None:
    """A file in the way of the state directory is found, whoever runs this."""
    (tmp_path / "file").touch()

    found = examined(Settings(docker_host="unix:///none", state_directory=tmp_path / "file/state"))

    assert found["state directory"].level == "fault"


@pytest.mark.parametrize("missing", [False, True])
def test_the_machines_git_is_named(tmp_path: Path, missing: bool) -> None:
    """Version and place; where there is none, a warning, since loops run without one as well."""
    program = tmp_path / "git" if missing else None
    settings = Settings(
        docker_host="unix:///none", state_directory=tmp_path / "state", git_program=program
    )

    found = examined(settings)["git"]

    if missing:
        assert (found.level, found.mend) == ("warning", "install git")
        assert str(program) in found.text and "Errno" not in found.text
    else:
        assert found.level == "ok"
        assert re.fullmatch(r"\d+\.\d+, at /.*git", found.text)
