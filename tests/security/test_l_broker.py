"""L and casebook O, of a whole loop: real boxes, its broker, a server, secrets on both sides."""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import logging
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from executor.catalog import load
from executor.controller import Controller
from executor.egress.secrets import PREFIX
from executor.loop import Loop
from executor.model import Call, EgressOptions, LoopSpec, Result, Secret
from executor.settings import Settings
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread, wait_until
from tests.security.probes import PYTHON

CANARY = "canary-7f3a"
VALUE = "v4lue.of+the/secret=="
OTHER = f"{VALUE}and-more"
ENGINE = "/var/run/docker.sock"


class Echo(http.server.BaseHTTPRequestHandler):
    """Says what it was told, in ways that a value could slip through."""

    seen: ClassVar[list[tuple[str, dict[str, str], bytes]]]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        said = self.headers.get("authorization", "").removeprefix("Bearer ").encode()
        getattr(self, f"_{self.path.split('?')[0].strip('/') or 'plain'}")(said)

    def _plain(self, said: bytes) -> None:
        self._send(200, {"x-echo": said.decode(), "set-cookie": f"k={said.decode()}"}, said)

    def _pieces(self, said: bytes) -> None:
        self.send_response(200, said.decode())
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in (said, said.hex().encode(), base64.b64encode(b"u:" + said)):
            for one in (b"<" + part + b">").decode():
                self.wfile.write(f"1\r\n{one}\r\n".encode())
        self.wfile.write(b"0\r\nx-trailer: " + said + b"\r\n\r\n")

    def _old(self, said: bytes) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n<" + said)
        self.wfile.flush()
        self.wfile.write(b">")
        self.close_connection = True

    def _moved(self, said: bytes) -> None:
        self._send(302, {"location": f"http://localhost/?k={said.decode()}"}, b"")

    def _packed(self, said: bytes) -> None:
        self._send(200, {"content-encoding": "gzip"}, gzip.compress(said))

    def _silent(self, said: bytes) -> None:
        self.connection.recv(1)  # until it is left
        self.close_connection = True

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""


@dataclass
class Servers:
    """Two servers of one name, at different ports; secrets are for the first."""

    ports: list[int] = field(default_factory=list)
    seen: list[list[tuple[str, dict[str, str], bytes]]] = field(default_factory=list)


@contextmanager
def servers() -> Iterator[Servers]:
    """Both, until the block is left."""
    made = Servers()
    with ExitStack() as stack:
        for _ in range(2):
            seen: list[tuple[str, dict[str, str], bytes]] = []
            handler = type("Handler", (Echo,), {"seen": seen})
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            stack.enter_context(server)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            made.ports.append(int(server.server_address[1]))
            made.seen.append(seen)
        yield made


@dataclass
class Opened:
    """A loop, and all that could know its secrets."""

    thread: LoopThread
    controller: Controller
    loop: Loop
    spec: LoopSpec
    state: Path
    servers: Servers
    logged: list[str]

    def run(self, command: str) -> Result:
        """What a command of the box with egress came to."""
        made = self.loop.execute(Call(f"c{len(self.logged)}", "run_command", {"command": command}))
        return self.thread.run(made)

    def python(self, code: str) -> Any:
        """What a program of the box with egress told in JSON."""
        found = self.run(f"{' '.join(PYTHON)} - <<'END'\n{code}\nEND")
        assert not found.is_error, found.content
        return json.loads(str(found.content).split("\n")[0])  # a note may follow

    def inspected(self) -> str:
        """What the engine knows of all boxes of the loop."""
        names = [lane.name for lane in self.loop._lanes.boxes.values()]
        done = subprocess.run(["docker", "inspect", *names], capture_output=True, check=True)
        return done.stdout.decode()


class Kept(logging.Handler):
    """All that is logged, at any level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(scope="module")
def opened(runtime: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """One loop a runtime, of a controller whose environment is full of secrets."""
    directory = tmp_path_factory.mktemp(runtime)
    kept = Kept()
    with pytest.MonkeyPatch.context() as patch, servers() as made, LoopThread() as thread:
        engine = directory / CANARY / "docker.sock"
        engine.parent.mkdir()
        engine.symlink_to(ENGINE)
        patch.setenv("DOCKER_HOST", f"unix://{engine}")
        patch.setenv("OPENAI_API_KEY", CANARY)
        patch.setenv("SSH_AUTH_SOCK", f"/run/{CANARY}/agent.sock")
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            patch.setenv(name, f"http://user:{CANARY}@proxy.example:3128")
        bound, other = (f"localhost:{port}" for port in made.ports)
        spec = LoopSpec(
            worktree=make_worktree(directory / "worktree"),
            limits=LIMITS,
            runtime=runtime,
            quota="none",
            egress=EgressOptions(hosts=(bound, other), private=(bound, other)),
            secrets=(
                Secret("TOKEN", VALUE, (f"http://{bound}",)),
                Secret("LONGER", OTHER, (f"http://{bound}",)),
            ),
        )
        logging.getLogger("executor").addHandler(kept)
        patch.setattr(logging.getLogger("executor"), "level", logging.DEBUG)
        settings = replace(Settings.load(), state_directory=directory / "state")
        controller = thread.enter(Controller(settings, load()))
        loop = thread.enter(controller.open(spec))
        yield Opened(thread, controller, loop, spec, directory / "state", made, kept.lines)
    logging.getLogger("executor").removeHandler(kept)


SEARCH = """
import json, os
NEEDLE = bytes.fromhex({needle!r})
found = []
def look(path, most=4 << 20):
    try:
        with open(path, "rb") as file:
            if NEEDLE in file.read(most):
                found.append(path)
    except OSError:
        pass
for place in ("/workspace", "/tmp", "/var/tmp", "/run", "/home", "/etc", "/root", "/opt/executor"):
    for directory, _, names in os.walk(place):
        for name in names:
            look(directory + "/" + name)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "status", "mountinfo", "maps", "cgroup", "comm", "auxv"):
        look("/proc/" + pid + "/" + name)
places = ["/var/run/docker.sock", "/run/docker.sock", "/root/.ssh", "/root/.docker"]
home = os.path.expanduser("~")
places += [home + "/.ssh", home + "/.docker", home + "/.netrc", home + "/.git-credentials"]
print(json.dumps([found, [one for one in places if os.path.exists(one)], dict(os.environ)]))
"""


@pytest.mark.statement("L1")
def test_nothing_of_the_controllers_environment_is_in_a_box_with_egress(opened: Opened) -> None:
    """Casebook 105: keys, sockets, a proxy with a password; the box has a proxy, but its own."""
    found, places, environment = opened.python(SEARCH.format(needle=CANARY.encode().hex()))
    assert (found, places) == ([], [])
    assert not {"OPENAI_API_KEY", "SSH_AUTH_SOCK", "DOCKER_HOST"} & set(environment)
    assert environment["HTTP_PROXY"] == environment["https_proxy"] == "http://127.0.0.1:3128"
    assert CANARY not in json.dumps(environment)
    assert CANARY not in opened.inspected()
    ran = opened.run("env; export -p; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; true")
    assert CANARY not in json.dumps(ran.content)


ASK = """
import base64, http.client, json, os
TOKEN, LONGER = os.environ["TOKEN"], os.environ["LONGER"]
BOUND, OTHER = {ports}
def ask(path, port=BOUND, method="GET", body=None, **headers):
    made = http.client.HTTPConnection("127.0.0.1", 3128, timeout=30)
    headers = {{"Host": "localhost:%d" % port, **headers}}
    made.request(method, "http://localhost:%d%s" % (port, path), body, headers)
    answer = made.getresponse()
    text = answer.read().decode("latin-1")
    return [answer.status, answer.reason, dict(answer.getheaders()), text]
def raw(text):
    import socket
    made = socket.create_connection(("127.0.0.1", 3128), 30)
    made.sendall(text.encode())
    data = b""
    while piece := made.recv(65536):
        data += piece
    return data.decode("latin-1")
bearer = {{"Authorization": "Bearer " + TOKEN}}
basic = base64.b64encode(("user:" + LONGER).encode()).decode()
told = {{
    "plain": ask("/", **bearer),
    "pieces": ask("/pieces", **bearer),
    "old": ask("/old", **bearer),
    "moved": ask("/moved", **bearer),
    "packed": ask("/packed", **{{"Accept-Encoding": "gzip"}}, **bearer),
    "longer": ask("/", Authorization="Bearer " + LONGER, Range="bytes=0-3"),
    "basic": ask("/", Authorization="Basic " + basic),
    "query": ask("/?q=" + TOKEN),
    "body": ask("/", method="POST", body=TOKEN),
    "agent": ask("/", **{{"User-Agent": TOKEN, "Referer": TOKEN}}),
    "other": ask("/", OTHER, **bearer),
    "trailer": raw("POST http://localhost:%d/ HTTP/1.1\\r\\nHost: localhost:%d\\r\\n"
                   "Connection: close\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
                   "0\\r\\nX-Key: %s\\r\\n\\r\\n" % (BOUND, BOUND, TOKEN)),
    "connect": raw("CONNECT localhost:%d HTTP/1.1\\r\\nHost: localhost:%d\\r\\n"
                   "Authorization: Bearer %s\\r\\n\\r\\nno TLS" % (BOUND, BOUND, TOKEN)),
}}
print(json.dumps([TOKEN, LONGER, told]))
"""


@pytest.mark.statement("L2", "L3", "L4")
def test_a_value_is_a_header_of_its_host_and_nothing_else_inside_or_out(opened: Opened) -> None:
    """Put in by the broker, on plain HTTP, for one host and port; masked in whatever comes back."""
    for seen in opened.servers.seen:
        seen.clear()
    token, longer, told = opened.python(ASK.format(ports=opened.servers.ports))
    assert token.startswith(PREFIX) and longer.startswith(PREFIX) and token != longer

    bound, other = opened.servers.seen
    sent = {name: headers.get("authorization") for name, headers, _ in bound}
    assert {sent[f"/{name}"] for name in ("pieces", "old", "moved", "packed")} == {
        f"Bearer {VALUE}"
    }
    roots = [headers.get("authorization") for path, headers, _ in bound if path == "/"]
    basic = base64.b64encode(f"user:{OTHER}".encode()).decode()
    assert roots[:3] == [f"Bearer {VALUE}", f"Bearer {OTHER}", f"Basic {basic}"]
    assert not [1 for _, headers, _ in bound if "range" in headers]
    assert f"/?q={token}" in sent
    assert token.encode() in [body for _, _, body in bound]
    assert token in [headers["user-agent"] for _, headers, _ in bound if "referer" in headers]
    ((_, headers, _),) = other
    assert headers["authorization"] == f"Bearer {token}"

    everything = json.dumps(told)
    for form in (
        VALUE,
        OTHER,
        VALUE.encode().hex(),
        base64.b64encode(b"u:" + VALUE.encode())[4:20],
    ):
        assert (form if isinstance(form, str) else form.decode()) not in everything
    mask = "*" * len(VALUE)
    assert told["plain"][3] == mask and told["plain"][2]["x-echo"] == mask
    assert told["longer"][3] == "*" * len(OTHER)
    assert told["pieces"][3].startswith(f"<{mask}><{mask}{mask}><")
    assert told["old"][3] == f"<{mask}>"
    assert told["moved"][2]["location"] == f"http://localhost/?k={mask}"
    assert (told["packed"][0], told["packed"][2]["x-executor-egress"]) == (502, "upstream_failed")
    assert told["trailer"].startswith("HTTP/1.1 200")


@pytest.mark.statement("L5")
def test_a_value_is_in_nothing_that_the_host_keeps_or_shows(opened: Opened) -> None:
    """Not with the engine, in the state directory, a log, a `repr`; in a box a placeholder."""
    opened.python(ASK.format(ports=opened.servers.ports))
    ran = opened.run(
        "printenv TOKEN LONGER; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; true"
    )
    assert str(ran.content).startswith(PREFIX)
    found, _, environment = opened.python(SEARCH.format(needle=VALUE.encode().hex()))
    assert found == []
    shown = [
        *(json.dumps(environment), str(ran.content), opened.inspected()),
        *map(repr, (opened.spec, opened.loop, opened.controller, opened.spec.secrets)),
        repr(vars(opened.loop)),
        *opened.logged,
    ]
    assert VALUE not in "".join(shown)
    assert PREFIX in json.dumps(environment)
    audit = opened.state / "audit.jsonl"  # its lines come about a second after the requests
    wait_until(lambda: audit.exists() and b"localhost" in audit.read_bytes(), what="the record")
    files = [path for path in opened.state.rglob("*") if path.is_file()]
    assert audit in files
    assert not [path for path in files if VALUE.encode() in path.read_bytes()]


LEAVE = """
import json, socket
BOUND, _ = {ports}
def ask(path):
    made = socket.create_connection(("127.0.0.1", 3128), 30)
    target = "localhost:%d" % BOUND
    lines = "GET http://%s/%s HTTP/1.1", "Host: %s" , "Connection: close"
    head = "\\r\\n".join(lines) % (target, path, target)
    made.sendall((head + "\\r\\n\\r\\n").encode())
    return made
for _ in range(3):
    for left in [ask("silent") for _ in range(50)]:
        left.close()
for _ in range(1000):  # the last of them may be on their way yet
    said = ask("").recv(12).decode(errors="replace")
    if said.endswith("200"):
        break
print(json.dumps(said))
"""


@pytest.mark.statement("F11")
def test_connections_that_a_box_has_left_count_no_longer(opened: Opened) -> None:
    """Three times fifty to a server that never answers; of 64 places one is free all the same."""
    assert opened.python(LEAVE.format(ports=opened.servers.ports)) == "HTTP/1.1 200"
