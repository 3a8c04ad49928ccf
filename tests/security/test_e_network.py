"""Group E: there is no network, for a command that looks for one in every way it can."""

from __future__ import annotations

import ast
import os
import secrets
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import executor
from executor.model import LoopSpec
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.loops import open_work
from tests.security.probes import PRELUDE, probe

UNREACHABLE = {"ENETUNREACH", "EHOSTUNREACH"}
"""Linux says the first, gVisor the second."""
AT_ONCE = 0.1
"""Seconds in which an address is refused that can't be reached."""
METADATA = ["169.254.169.254", "100.100.100.200", "fd00:ec2::254"]
GATEWAYS = ["172.17.0.1", "192.168.65.7", "192.168.65.254", "10.0.2.2", "192.168.127.1"]
"""What engines call the way out: Docker's bridge, its desktop, user-mode networks."""
NAMES = ["metadata.google.internal", "host.docker.internal", "host.containers.internal"]
RESOLVERS = ["1.1.1.1", "8.8.8.8", "172.17.0.1", "2606:4700:4700::1111"]

LOOK = r"""
import socket, time

def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET

def timed(function):
    "What came of it and the seconds that it took; a busy machine gets another chance."
    for _ in range(5):
        began = time.monotonic()
        found = [attempt(function), time.monotonic() - began]
        if found[1] < 0.1:
            break
    return found

def connect(address, port):
    with socket.socket(family(address), socket.SOCK_STREAM) as made:
        made.settimeout(2)
        made.connect((address, port))
    return "connected"

def ask(address, name):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1"
    with socket.socket(family(address), socket.SOCK_DGRAM) as made:
        made.sendto(query, (address, 53))
    return "sent"

def resolve(name):
    try:
        socket.getaddrinfo(name, 80)
    except socket.gaierror as error:
        return "no name" if error.errno != socket.EAI_SYSTEM else "system error"
    return "found"

def ping(address, kind):
    number = socket.IPPROTO_ICMPV6 if ":" in address else socket.IPPROTO_ICMP
    with socket.socket(family(address), kind, number) as made:
        made.sendto(b"\x08\0\xf7\xff\0\0\0\0", (address, 0))
    return "sent"

def interfaces():
    lines = open("/proc/net/dev").read().splitlines()[2:]
    found = {line.split(":")[0].strip() for line in lines}
    found |= {name for _, name in socket.if_nameindex()}
    if os.path.isdir("/sys/class/net"):
        found |= set(os.listdir("/sys/class/net"))
    return sorted(found)

def look(given):
    kinds = (socket.SOCK_DGRAM, socket.SOCK_RAW)
    return {
        "queries": {one: attempt(ask, one, given["name"]) for one in given["resolvers"]},
        "unknown": timed(lambda: resolve(given["name"])),
        "interfaces": interfaces(),
        "metadata": {one: timed(lambda: connect(one, 80)) for one in given["metadata"]},
        "host": {one: timed(lambda: connect(one, given["port"])) for one in given["host"]},
        "names": {one: timed(lambda: resolve(one)) for one in given["names"]},
        "pings": [attempt(ping, one, kind) for one in ("8.8.8.8", "::ffff:808:808", "2001::1")
                  for kind in kinds],
    }
"""


# ─── the host's side ────────────────────────────────────────────────────────────────


def host_addresses() -> list[str]:
    """Every address of this machine but those that are also the box's own."""
    done = subprocess.run(
        ["ip", "-o", "addr"], capture_output=True, text=True, timeout=10, check=True
    )
    words = [line.split() for line in done.stdout.splitlines()]
    found = [line[3].partition("/")[0] for line in words if len(line) > 3]
    return [one for one in found if one not in ("127.0.0.1", "::1") and not one.startswith("fe80")]


class Listener:
    """A TCP server on every address of this machine; `accepted` counts who came."""

    def __init__(self) -> None:
        self.accepted = 0
        self._socket = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])

    def count(self) -> int:
        """Take everyone who waits at the door."""
        while True:
            try:
                self._socket.accept()[0].close()
            except BlockingIOError:
                return self.accepted
            self.accepted += 1

    def close(self) -> None:
        self._socket.close()


class Sniffer:
    """Reads every packet of this machine while it is open, and keeps those with a word in it."""

    def __init__(self, word: str) -> None:
        self._word = word.encode()
        self._found: list[bytes] = []
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._reader, self._stopper = os.pipe()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            ready = select.select([self._socket.fileno(), self._reader], [], [])[0]
            if self._socket.fileno() in ready:
                packet = self._socket.recv(1 << 16)
                if self._word in packet:
                    self._found.append(packet)
            elif self._reader in ready:
                return

    def close(self) -> list[bytes]:
        """What was found; all that came until now is looked at first."""
        os.write(self._stopper, b"x")
        self._thread.join(30)
        self._socket.close()
        return self._found


def own_query(word: str) -> None:
    """A query on this machine's loopback that a sniffer must see, or it sees nothing at all."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(word.encode(), ("127.0.0.1", 53))


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    """A server on this machine that no box may reach."""
    made = Listener()
    yield made
    made.close()


def targets(listener: Listener, name: str) -> dict[str, Any]:
    """What a probe is to try."""
    return {
        "name": name,
        "port": listener.port,
        "host": [*GATEWAYS, *host_addresses()],
        "metadata": METADATA,
        "names": NAMES,
        "resolvers": RESOLVERS,
    }


def new_name() -> str:
    """A name that was never asked for."""
    return f"x{secrets.token_hex(8)}.attacker.test"


@pytest.fixture(scope="module")
def seen(hostile: Box, listener: Listener) -> dict[str, Any]:
    """What a command found when it looked for a network."""
    given = targets(listener, new_name())
    value = probe(hostile, f"{LOOK}\ntell(look({given!r}))")
    assert isinstance(value, dict)
    return value


# ─── what must be so ────────────────────────────────────────────────────────────────


def check_interfaces(seen: dict[str, Any]) -> None:
    assert seen["interfaces"] == ["lo"]


def check_unreachable(seen: dict[str, Any], kind: str) -> None:
    assert seen[kind]
    for address, (error, seconds) in seen[kind].items():
        assert error in UNREACHABLE, (address, error)
        assert seconds < AT_ONCE, (address, seconds)


def check_names(seen: dict[str, Any]) -> None:
    for name, (found, seconds) in [*seen["names"].items(), ("any", seen["unknown"])]:
        assert found == "no name", name
        assert seconds < AT_ONCE, (name, seconds)


def check_queries(seen: dict[str, Any]) -> None:
    assert seen["queries"]
    assert set(seen["queries"].values()) <= UNREACHABLE


def check_pings(seen: dict[str, Any]) -> None:
    assert set(seen["pings"]) <= UNREACHABLE | {"EPERM", "EACCES"}


def check_everything(seen: dict[str, Any]) -> None:
    check_interfaces(seen)
    check_unreachable(seen, "metadata")
    check_unreachable(seen, "host")
    check_names(seen)
    check_queries(seen)
    check_pings(seen)


@pytest.mark.statement("E1")
def test_only_loopback_exists(seen: dict[str, Any]) -> None:
    """`/proc/net/dev`, netlink and `/sys/class/net` know `lo` and nothing else."""
    check_interfaces(seen)


@pytest.mark.statement("E2")
def test_metadata_services_are_unreachable(seen: dict[str, Any]) -> None:
    """The addresses of clouds' metadata are refused at once, and their name is unknown."""
    check_unreachable(seen, "metadata")
    check_names(seen)


@pytest.mark.statement("E3")
def test_the_host_is_unreachable(seen: dict[str, Any], listener: Listener) -> None:
    """A server on every address of this machine is met by nobody, by whatever name."""
    before = listener.count()
    with socket.create_connection(("127.0.0.1", listener.port), timeout=10):
        pass
    assert listener.count() == before + 1, "the server can be met, from here"
    check_unreachable(seen, "host")


@pytest.mark.statement("E4")
def test_no_query_leaves_from_the_first_moment(
    runtime: str, listener: Listener, tmp_path: Path
) -> None:
    """The host's interfaces carry no packet of a box that asks for a name as it starts."""
    if os.geteuid() != 0:
        pytest.skip("reading the packets of this machine needs root")
    word = secrets.token_hex(8)
    sniffer = Sniffer(word)
    root = make_worktree(tmp_path / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="first", runtime=runtime)
    try:
        with LoopThread() as thread:
            box = Box(
                thread, thread.enter(open_docker_box(spec, tmp_path / "state")), root, "docker"
            )
            given = targets(listener, f"x{word}.attacker.test")
            code = (
                f"{LOOK}\nuntil = time.monotonic() + 1\nrounds = [look({given!r})]\n"
                f"while time.monotonic() < until:\n    rounds.append(look({given!r}))\n"
                "tell([rounds[0], rounds[-1]])"
            )
            rounds = probe(box, code)
    finally:
        own_query(f"own-{word}")
        found = sniffer.close()
    for seen in rounds:
        check_queries(seen)
        check_names(seen)
    assert found, "not even our own packet was seen"
    assert [packet for packet in found if b"own-" not in packet] == []


@pytest.mark.statement("E5")
def test_nothing_can_be_pinged(seen: dict[str, Any]) -> None:
    """Neither by a datagram socket, which Docker allows to everybody, nor by a raw one."""
    check_pings(seen)


# ─── two boxes ──────────────────────────────────────────────────────────────────────

NAMED = r"""
import ctypes, mmap, socket, time
_libc.mq_open.restype = ctypes.c_int
_libc.shmat.restype = ctypes.c_void_p
KEY, PORT, WORD = 0x45584543, 45454, b"a word"
CREATE = 0o1000 | 0o600

def number(function, *arguments):
    "What a call of the library gave, or the name of the error."
    ctypes.set_errno(0)
    value = function(*arguments)
    return value if value >= 0 else errno.errorcode.get(ctypes.get_errno(), "E?")
"""
OFFER = (
    NAMED
    + r"""
import os
tcp = socket.create_server(("0.0.0.0", PORT))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", PORT))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0executor-test")
abstract.listen()
number(_libc.shmget, KEY, 4096, CREATE)
number(_libc.semget, KEY, 1, CREATE)
number(_libc.msgget, KEY, CREATE)
number(_libc.mq_open, b"/executor-test", os.O_RDWR | os.O_CREAT, 0o600, None)
open("/dev/shm/executor-test", "wb").write(WORD)
open("/workspace/offered", "w").close()
while True:
    accepted = tcp.accept()[0]
    accepted.sendall(WORD)
    accepted.close()
"""
)
TAKE = (
    NAMED
    + r"""
def tcp(address):
    with socket.create_connection((address, PORT), timeout=2) as made:
        return made.recv(100).decode()

def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(0.2)
        made.connect(("127.0.0.1", PORT))
        made.send(WORD)
        try:
            made.recv(10)
        except TimeoutError:
            return "taken"

def abstract():
    with socket.socket(socket.AF_UNIX) as made:
        made.connect("\0executor-test")
    return "connected"

found = {
    "tcp": attempt(tcp, "127.0.0.1"),
    "udp": attempt(udp),
    "abstract": attempt(abstract),
    "shm": number(_libc.shmget, KEY, 0, 0),
    "sem": number(_libc.semget, KEY, 0, 0),
    "msg": number(_libc.msgget, KEY, 0),
    "mqueue": number(_libc.mq_open, b"/executor-test", os.O_RDWR),
    "file": attempt(lambda: open("/dev/shm/executor-test").read()),
}
tell({name: value if isinstance(value, str) else "there" for name, value in found.items()})
"""
)
NOTHING = {
    **dict.fromkeys(("tcp", "udp", "abstract"), "ECONNREFUSED"),
    **dict.fromkeys(("shm", "sem", "msg", "mqueue", "file"), "ENOENT"),
}
OFFERED = {
    "tcp": "a word",
    "udp": "taken",
    "abstract": "connected",
    **dict.fromkeys(("shm", "sem", "msg", "mqueue"), "there"),
    "file": "a word",
}


@contextmanager
def offering(box: Box) -> Iterator[dict[str, str]]:
    """The box offers something in every way that there is; what it can take of it itself."""
    (box.root / "offered").unlink(missing_ok=True)
    command = ["/opt/executor/bin/python3", "-I", "-S", "-B"]
    body = (PRELUDE + OFFER).encode()
    running = box.start(None, 200, argv=command, script=".py", body=body)
    deadline = time.monotonic() + 30
    while not (box.root / "offered").exists():
        assert not running.done(), running.result()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield probe(box, TAKE)
    box.run("pkill -f script-")
    running.result(30)


@pytest.fixture(scope="module")
def offered(
    hostile: Box, runtime: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A second box of the same owner that offers all it can, for as long as the module."""
    directory = tmp_path_factory.mktemp("other")
    root = make_worktree(directory / "worktree")
    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="other", runtime=runtime)
    with LoopThread() as thread:
        box = Box(thread, thread.enter(open_docker_box(spec, directory / "state")), root, "docker")
        with offering(box) as taken:
            yield taken


@pytest.mark.statement("E6")
def test_two_boxes_exchange_nothing(hostile: Box, offered: dict[str, str]) -> None:
    """TCP, UDP, abstract sockets, SysV and POSIX objects of one box are not there in another."""
    assert offered == OFFERED
    assert probe(hostile, TAKE) == NOTHING


# ─── later ──────────────────────────────────────────────────────────────────────────


@pytest.mark.statement("E7")
def test_a_pause_changes_nothing(hostile: Box, listener: Listener, offered: dict[str, str]) -> None:
    """E1 to E6 hold in a box that was paused and goes on."""
    before = listener.count()
    subprocess.run(["docker", "pause", hostile.sandbox.id], check=True, timeout=30)
    subprocess.run(["docker", "unpause", hostile.sandbox.id], check=True, timeout=30)
    given = targets(listener, new_name())
    check_everything(probe(hostile, f"{LOOK}\ntell(look({given!r}))"))
    assert probe(hostile, TAKE) == NOTHING
    assert listener.count() == before


@pytest.mark.statement("E7")
def test_a_replaced_box_has_no_network_either(
    runtime: str, listener: Listener, offered: dict[str, str], tmp_path: Path
) -> None:
    """E1 to E6 hold in the box that takes the place of a lost one."""
    before = listener.count()
    given = targets(listener, new_name())
    with open_work("docker", tmp_path, change=lambda spec: replace(spec, runtime=runtime)) as work:
        first = work.opened[0]
        subprocess.run(["docker", "kill", first.id], check=True, timeout=30, capture_output=True)  # type: ignore[attr-defined]
        while first.error is None:
            work.call("run_command", command="sleep 0.1")
        box = Box(work.thread, work.opened[-1], work.root, "docker")  # type: ignore[arg-type]
        work.call("run_command", command="true")
        box.sandbox = work.opened[-1]  # type: ignore[assignment]
        assert box.sandbox is not first
        check_everything(probe(box, f"{LOOK}\ntell(look({given!r}))"))
        assert probe(box, TAKE) == NOTHING
    assert listener.count() == before


# ─── the source ─────────────────────────────────────────────────────────────────────

KNOWN = {
    "sandbox/inspection.py": ["NetworkMode: _text"],
    "sandbox/bridge.py": ["NetworkMode = NETWORK"],
}
"""Where the mode is only compared with the one that was asked for; and the one place that gives
a box the engine's network, for lanes whose catalog says `bridge` and that are unprotected."""
_CALLS = {"networks", "create_network", "connect_container_to_network"}


def network_faults(source: str) -> list[str]:
    """Places in a module that reach for the engine's networks, or name one that is not `none`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in _CALLS:
            found.append(f".{node.attr}")
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "/networks" in node.value
        ):
            found.append(repr(node.value))
        if isinstance(node, ast.Dict):
            found += _other_modes(node)
        if isinstance(node, ast.Assign):
            found += [
                f"NetworkMode = {ast.unparse(node.value)}"
                for target in node.targets
                if isinstance(target, ast.Subscript)
                and isinstance(target.slice, ast.Constant)
                and target.slice.value == "NetworkMode"
            ]
        if isinstance(node, ast.keyword) and node.arg in _options(source):
            found.append(f"{node.arg}=")
    return found


def _options(source: str) -> tuple[str, ...]:
    """Options of the engine's library. `network` is a word of ours, too, where that is not used."""
    options = ("network_mode", "networks")
    return (*options, "network") if "import docker" in source else options


def _other_modes(node: ast.Dict) -> list[str]:
    pairs = [(key.value, value) for key, value in zip(node.keys, node.values, strict=True)
             if isinstance(key, ast.Constant)]  # fmt: skip
    return [
        f"{key}: {ast.unparse(value)}"
        for key, value in pairs
        if (
            key == "NetworkMode" and not (isinstance(value, ast.Constant) and value.value == "none")
        )
        or key in ("NetworkingConfig", "EndpointsConfig")
    ]


@pytest.mark.statement("E8")
@pytest.mark.parametrize(
    "code",
    [
        "client.networks.get(n).connect(box)",
        "api.connect_container_to_network(box, n)",
        "api._post(f'/networks/{n}/connect')",
        "request = {'HostConfig': {'NetworkMode': 'bridge'}}",
        "request = {'NetworkMode': chosen}",
        "request['HostConfig']['NetworkMode'] = chosen",
        "request = {'NetworkingConfig': {}}",
        "api.create_host_config(network_mode='none')",
        "import docker\nclient.containers.create(image, network=chosen)",
    ],
)
def test_reaching_for_a_network_would_be_found(code: str) -> None:
    """The look at the source finds each way in which a box could be given a network."""
    assert network_faults(code)


@pytest.mark.statement("E8")
def test_no_code_connects_a_box_to_a_network() -> None:
    """No module of the package names a network of the engine's, or a mode that is not `none`."""
    root = Path(executor.__file__).parent
    modules = sorted(root.rglob("*.py"))
    assert len(modules) > 40
    faults = {str(path.relative_to(root)): network_faults(path.read_text()) for path in modules}
    assert {name: found for name, found in faults.items() if found} == KNOWN
