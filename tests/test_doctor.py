"""Facts → findings, as tables; and one look at this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from executor.doctor import Finding, examine, is_able, judge, runc_faults
from executor.sandbox.facts import parse_facts
from executor.settings import Settings
from tests.sandbox import engines


def levels(replies: tuple[dict[str, Any], dict[str, Any]], **changes: Any) -> dict[str, str]:
    """Name → level of what is found about an engine, without what is well."""
    version, info = replies
    findings = judge(parse_facts("unix:///s", version, info | changes))
    return {finding.name: finding.level for finding in findings if finding.level != "ok"}


OLD = {"engine": "warning", "runtime": "warning"}
UNCONFINED = {"mandatory access control": "warning"}


@pytest.mark.parametrize(
    ("replies", "changes", "expected"),
    [
        (engines.DOCKER_20, {}, OLD | UNCONFINED | {"mounts": "warning"}),
        (engines.DOCKER_26, {}, OLD | UNCONFINED),
        (engines.PODMAN_4, {}, {"runtime": "warning", "mounts": "warning"} | UNCONFINED),
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
    assert "29.5.1" in finding.text
    assert finding.mend


@pytest.mark.parametrize(
    ("version", "is_faulty"),
    [
        ("1.1.5", True),
        ("1.1.15", True),
        ("1.2.7", True),
        ("1.2.8", False),
        ("1.3.2", True),
        ("1.3.3", False),
        ("1.4.0-rc.1", True),
        ("1.4.0-rc.3", False),
        ("1.4.0", False),
        ("1.5.0", False),
        ("", False),
    ],
)
def test_versions_of_runc(version: str, is_faulty: bool) -> None:
    """A2: every line of runc has its own patched release; an unknown version says nothing."""
    assert bool(runc_faults(version)) is is_faulty


def test_very_old_runc_has_the_escape_by_working_directory() -> None:
    """A2: below 1.1.12 the escape through a leaked descriptor is named, too."""
    assert "CVE-2024-21626" in runc_faults("1.1.5")
    assert "CVE-2024-21626" not in runc_faults("1.1.12")


def test_every_finding_that_is_not_well_says_what_to_do() -> None:
    """No warning of ours and no fault is without its mend."""
    for replies in (engines.DOCKER_20, engines.ROOTLESS, engines.REMAPPED):
        for finding in judge(parse_facts("tcp://engine:2376", *replies)):
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
