"""`network = "bridge"`: who is refused it, what is asked of the engine, and what a box has."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import executor
from executor.catalog import Policy, parse
from executor.controller import Controller
from executor.errors import ConfigError, ExecutorError, ImageNotAllowed
from executor.model import LoopSpec
from executor.sandbox import bridge
from executor.sandbox.box import Host, open_box
from executor.sandbox.container import create_request
from executor.sandbox.facts import EngineFacts
from executor.sandbox.reaper import Identity
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.driver import Box
from tests.sandbox import tiny

WITHOUT = tiny.facts(
    programs={"runsc": "/usr/local/bin/runsc"},
    arguments={"runsc": ("-network=host", "--network=none"), "other": ("--network=none", "-x")},
)


@pytest.mark.statement("E8")
@pytest.mark.parametrize(
    ("policy", "facts", "runtime", "lane", "said"),
    [
        (Policy(), tiny.FACTS, "", "net", ()),
        (Policy(), tiny.FACTS, "runsc", "heavy", ()),
        (Policy(), tiny.FACTS, "", "no-net", ("lane no-net has no network",)),
        (Policy(tenancy="multi"), tiny.FACTS, "", "net", ("would let tenants reach each other",)),
        (
            Policy(tenancy="multi", allow_shared_kernel=True),
            tiny.FACTS,
            "",
            "heavy",
            ("would let tenants reach each other",),
        ),
        (Policy(), tiny.facts(name="podman"), "", "net", ("for Docker alone",)),
        (Policy(), WITHOUT, "runsc", "net", ("starts the runtime runsc with --network=none",)),
        (Policy(), WITHOUT, "other", "net", ("starts the runtime other with --network=none",)),
        (Policy(), replace(WITHOUT, default_runtime="runsc"), "", "net", ("the runtime runsc",)),
        (Policy(), WITHOUT, "runc", "net", ()),
        (
            Policy(tenancy="multi"),
            replace(WITHOUT, name="podman"),
            "runsc",
            "no-net",
            ("no-net has no", "tenants", "podman", "runsc"),
        ),
    ],
)
def test_who_may_not_have_the_engines_network(
    policy: Policy, facts: EngineFacts, runtime: str, lane: str, said: tuple[str, ...]
) -> None:
    """Tenants, lane no-net, Podman and runtimes without a network: each has its sentence."""
    faults = bridge.faults(policy, facts, runtime, lane)
    assert len(faults) == len(said)
    for fault, words in zip(faults, said, strict=True):
        assert words in fault and fault.startswith(f"lanes.{lane}.network: ")


@pytest.mark.statement("E8")
def test_the_network_is_all_that_differs() -> None:
    """A request with the engine's network is the one without it, but for two fields."""
    usual = create_request(tiny.plan())
    bridged = create_request(tiny.plan(network="bridge"))
    assert (usual["NetworkDisabled"], usual["HostConfig"]["NetworkMode"]) == (True, "none")
    assert (bridged["NetworkDisabled"], bridged["HostConfig"]["NetworkMode"]) == (False, "bridge")
    assert bridged["Labels"]["executor.policy"] != usual["Labels"]["executor.policy"]
    bridged["HostConfig"]["NetworkMode"], bridged["NetworkDisabled"] = "none", True
    bridged["Labels"] = usual["Labels"]
    assert bridged == usual


@pytest.mark.parametrize(
    ("lane", "error", "said"),
    [
        ('runtime = "runsc"\nnetwork = "bridge"', ConfigError, "with --network=none"),
        ('image = "nobody/x:1"', ImageNotAllowed, "nobody/x:1 is not allowed"),
    ],
)
def test_a_lane_that_can_not_be_had_is_said_when_the_loop_is_opened(
    tmp_path: Path, lane: str, error: type[ExecutorError], said: str
) -> None:
    """Not at the first call that needs its box, when half of the work is done."""
    packaged = (Path(executor.__file__).parent / "catalog.toml").read_text()
    own = f'[lanes.heavy]\n{lane}\n[controller]\nimages = ["tool:*"]\n'
    settings = replace(Settings.load(), state_directory=tmp_path / "state")

    async def scene() -> None:
        async with tiny.engine() as engine:
            given = engine.facts.arguments.get("runsc", ())
        if error is ConfigError and "--network=none" not in given:
            pytest.skip("the engine has no runtime that gives boxes no network")
        async with Controller(settings, parse([("catalog.toml", packaged), ("own", own)])) as made:
            spec = made.catalog.loop_spec(make_worktree(tmp_path / "worktree"))
            with pytest.raises(error, match=said):
                async with made.open(spec):
                    raise AssertionError("it was opened")

    asyncio.run(scene())


REACH = """
import json, socket, sys
routes = [line.split() for line in open("/proc/net/route")][1:]
gateway = next(bytes.fromhex(r[2])[::-1] for r in routes if r[1] == "00000000")
with socket.create_connection((socket.inet_ntoa(gateway), int(sys.argv[1])), 10) as stream:
    said = stream.recv(99).decode()
print(json.dumps([said, sorted(name for _, name in socket.if_nameindex())]))
"""


def greet_one(listener: socket.socket) -> None:
    """Take one connection and say who this is."""
    listener.settimeout(60)
    stream, _ = listener.accept()
    with stream:
        stream.sendall(b"the host")


def test_a_box_on_the_engines_network(tmp_path: Path) -> None:
    """It reaches its gateway, says in its capabilities and a notice that it is unprotected, and
    there is none in lane no-net."""
    root = make_worktree(tmp_path / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="bridge", runtime="runc")

    async def scene(port: int) -> tuple[list[Any], dict[str, Any]]:
        async with tiny.engine() as engine:
            with Identity.claim(tmp_path / "state") as identity:
                host = Host(engine, identity, network="bridge", lane="net")
                with pytest.raises(ConfigError, match="lane no-net has no network"):
                    async with open_box(replace(host, lane="no-net"), spec):
                        raise AssertionError("it was opened")
                async with open_box(host, spec) as sandbox:
                    box = Box.__new__(Box)
                    box.sandbox = sandbox
                    argv = ["python3"]
                    body = REACH.replace("sys.argv[1]", str(port)).encode()
                    ran = await box._run(None, 30, {"argv": argv, "script": ".py", "body": body})
                    assert ran.code == 0, ran.err
                    return json.loads(ran.out), sandbox.capabilities

    with socket.create_server(("0.0.0.0", 0)) as listener:
        greeting = threading.Thread(target=greet_one, args=(listener,))
        greeting.start()
        said, capabilities = asyncio.run(scene(listener.getsockname()[1]))
        greeting.join(30)
    assert said[0] == "the host"
    assert "eth0" in said[1]
    assert capabilities["network"].startswith("bridge: UNPROTECTED")
    assert any("lane net" in text and "UNPROTECTED" in text for text in capabilities["notices"])
