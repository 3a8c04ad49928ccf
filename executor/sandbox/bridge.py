"""A box on the engine's own network, for lanes with `network = "bridge"`. Pure.

Nothing of ours protects it: such a box reaches all that the engine's machine reaches, that
machine's own services and its neighbours among it, asks name servers itself, and no line is
written of what it sends. It is there for those who have a network of their own around the
engine's machine. This is the one place that gives a box a network, see statement E8.
"""

from __future__ import annotations

from typing import Any

from executor.catalog import Policy
from executor.model import LANE
from executor.sandbox.facts import EngineFacts

NETWORK = "bridge"
DESCRIBED = (
    "bridge: UNPROTECTED, the engine's own network; all that its machine reaches can be reached, "
    "and nothing of it is checked or recorded"
)
"""What `capabilities` says of the network."""
NOTICE = (
    'The network of lane {lane} is "bridge" and UNPROTECTED: its commands reach all that the '
    "engine's machine reaches, and nothing is checked or recorded. "
    'network = "broker" allows single hosts instead.'
)
_NO_NETWORK = "--network=none"


def faults(policy: Policy, facts: EngineFacts, runtime: str, lane: str) -> list[str]:
    """Why a box must not have the engine's network, or can't.

    Args:
        policy: what engine and runtime have to offer.
        facts: what the engine says about itself.
        runtime: name of the one that the box will have; empty = the engine's default.
        lane: of the box.
    """
    option = f"lanes.{lane}.network"
    found = []
    if lane == LANE:
        found.append(f'{option}: lane {lane} has no network; "bridge" is for net and heavy')
    if policy.tenancy == "multi":
        found.append(
            f'{option}: "bridge" would let tenants reach each other and this machine; with '
            'controller.tenancy = "multi" use "broker" or "none"'
        )
    if facts.name != "docker":
        found.append(f'{option}: "bridge" is for Docker alone, not for {facts.name}; use "broker"')
    runtime = runtime or facts.default_runtime
    if _has_none(facts, runtime):
        found.append(
            f"{option}: the engine starts the runtime {runtime} with {_NO_NETWORK}, so its boxes "
            'have no network, "bridge" or not; use "broker", or another runtime in this lane'
        )
    return found


def _has_none(facts: EngineFacts, runtime: str) -> bool:
    """The runtime is told to give no box a network."""
    given = ["--" + text.lstrip("-") for text in facts.arguments.get(runtime, ())]
    networks = [one for one in given if one.startswith("--network=")]
    return bool(networks) and networks[-1] == _NO_NETWORK


def connect(request: dict[str, Any]) -> None:
    """Gives the box of a create request the engine's network; changes it in place.

    Its name servers stay what the engine takes.
    """
    request["NetworkDisabled"] = False
    request["HostConfig"]["NetworkMode"] = NETWORK


def described(mode: str) -> str:
    """A network mode, as `capabilities` has it."""
    return DESCRIBED if mode == NETWORK else mode
