"""What an open box is said to have: facts of engines → the keys that differ, as a table."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from executor.model import Limits
from executor.sandbox import capabilities
from executor.sandbox.capabilities import describe
from executor.sandbox.container import Owner, create_request
from executor.sandbox.facts import parse_facts
from tests.sandbox import engines
from tests.sandbox.tiny import plan

MODERN = {"cgroup": 2, "recursive_read_only": True, "ignored_options": []}
OLD = {"cgroup": 1, "recursive_read_only": False}
BOTH = ["ReadOnlyForceRecursive", "CreateMountpoint"]
KERNEL = {"own_kernel": False, "agent_protection": "kernel", "path_resolution": "openat2"}
GVISOR = {"own_kernel": True, "agent_protection": "watchdog", "path_resolution": "walk"}
CONFINED = {"AppArmorProfile": "docker-default", "ProcessLabel": ""}

TABLE: list[tuple[Any, str | None, dict[str, Any], dict[str, Any]]] = [
    (
        engines.DOCKER_20,
        None,
        {},
        {"api": "1.41", "users": "same", "apparmor": "none", "ignored_options": BOTH}
        | {"engine": "docker 20.10.24+dfsg1", "runtime": "runc"}
        | KERNEL
        | OLD,
    ),
    (engines.GVISOR_20, "runsc", {}, {"runtime": "runsc"} | GVISOR | OLD),
    (engines.GVISOR_20, "runc", {}, {"runtime": "runc"} | KERNEL | OLD),
    (engines.REMAPPED_20, None, {}, {"users": "remapped"} | KERNEL | OLD),
    (engines.DOCKER_28, None, CONFINED, {"apparmor": "docker-default", "api": "1.51"} | MODERN),
    (engines.DOCKER_28, None, {"AppArmorProfile": "unconfined"}, {"apparmor": "none"}),
    (engines.DOCKER_28, None, {}, {"apparmor": "none"}),
    (
        engines.DOCKER_28,
        "io.containerd.kata.v2",
        CONFINED,
        {"own_kernel": True, "agent_protection": "kernel"},
    ),
    # What is shown of a layer that the engine does not have is not believed.
    (engines.DOCKER_26, None, CONFINED, {"apparmor": "none", "selinux": "none"}),
    (
        engines.PODMAN_5,
        None,
        {"ProcessLabel": "system_u:system_r:container_t:s0:c1,c2"},
        {"selinux": "system_u:system_r:container_t:s0:c1,c2", "ignored_options": BOTH}
        | {"recursive_read_only": False, "cgroup": 2},
    ),
    (engines.ROOTLESS_DELEGATED, None, {}, {"users": "rootless"} | MODERN),
]


@pytest.mark.statement("A4", "A9")
@pytest.mark.parametrize(("replies", "runtime", "inspected", "expected"), TABLE)
def test_capabilities_say_what_is_there(
    replies: tuple[dict[str, Any], dict[str, Any]],
    runtime: str | None,
    inspected: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    """A4, A9: each is told of the request and of the engine's own words, and nothing more."""
    facts = parse_facts("unix:///s", *replies)
    spec = replace(plan().spec, runtime=runtime, limits=Limits(cpus=1.5))
    request = create_request(plan(facts=facts, spec=spec))

    found = describe(facts, request, inspected, Owner(1000, 1000), ["one", "two", "one"])

    assert {key: found[key] for key in expected} == expected
    assert found["notices"] == ["one", "two"]
    assert (found["swap"], found["cpus"], found["memory"]) == (0, 1.5, 4 << 30)
    assert (found["network"], found["read_only_root"]) == ("none", True)


def test_capabilities_are_flat_and_documented() -> None:
    """Every key is a plain value or a list of texts, and stands in the one table of them."""
    request = create_request(plan())
    found = describe(plan().facts, request, {}, None)
    text = str(capabilities.__doc__)

    assert json.loads(json.dumps(found)) == found
    assert all(not isinstance(value, dict) for value in found.values())
    table = text.split("    ====")[2]
    words = {word.strip(",") for line in table.splitlines() for word in line[:26].split()}
    assert set(found) <= words
    assert {"seccomp", "quota", "git"} <= words


def test_a_limit_that_was_lowered_is_told_as_it_is() -> None:
    """What the machine can't give is not claimed: cores and descriptors are those asked for."""
    facts = replace(plan().facts, cpus=1)
    request = create_request(plan(facts=facts))
    assert describe(facts, request, {}, None)["cpus"] == 1.0
