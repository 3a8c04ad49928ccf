"""Group N: what developers use still works in a box of the default profile.

The images are made of Debian packages when the tests first run (`tests/security/images`);
nothing is fetched inside. What gVisor can't do is skipped over it, with the reason.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from executor.model import Limits, LoopSpec
from executor.sandbox.engine import Engine
from executor.sandbox.rootfs import NO_BOOTSTRAPPER, bootstrapper
from executor.settings import Settings
from tests.conftest import make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.loops import Work, open_work
from tests.security.images import build

pytestmark = pytest.mark.timeout(1800)  # the first test of an image waits until it is made

Images = Callable[[str], str]


@pytest.fixture(scope="module")
def images(request: pytest.FixtureRequest) -> Images:
    """The reference of a test image, made when it is missing; progress goes to the terminal."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")

    def tell(line: str) -> None:
        if reporter is not None:
            reporter.write_line(line)

    async def ensured(name: str) -> str:
        async with await Engine.connect(Settings.load()) as engine:
            return await build.ensure(engine, name, tell)

    def reference(name: str) -> str:
        if bootstrapper() is None:
            pytest.skip(NO_BOOTSTRAPPER)
        return asyncio.run(ensured(name))

    return reference


@contextmanager
def opened(directory: Path, image: str, runtime: str, uid: int | None = None) -> Iterator[Box]:
    """A box with the default limits; its worktree is an ordinary user's, or the uid's."""
    root = make_worktree(directory / "worktree")
    if uid is not None:
        os.chown(root, uid, uid)
    spec = LoopSpec(worktree=root, image=image, exec_id="tools", runtime=runtime)
    with LoopThread() as thread:
        sandbox = thread.enter(open_docker_box(spec, directory / "state"))
        yield Box(thread, sandbox, root, "docker")


@pytest.fixture(scope="module")
def compilers(
    runtime: str, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    """A box with compilers and debuggers."""
    with opened(tmp_path_factory.mktemp(runtime), images("compilers"), runtime) as box:
        yield box


@pytest.fixture(scope="module")
def services(
    runtime: str, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    """A box with languages, data bases, terminals and a browser."""
    with opened(tmp_path_factory.mktemp(runtime), images("services"), runtime) as box:
        yield box


def said(box: Box, command: str, timeout: float = 120, given: str = "") -> str:
    """What a command that has to go well says, standard error after standard output.

    Args:
        box: where; the command begins at the worktree's root.
        command: for the shell.
        timeout: seconds.
        given: what is in the file `given`.
    """
    if given:
        put(box, "given", given)
    ran = box.run(command, timeout, cwd="")
    text = (ran.out + ran.err).decode("utf-8", "replace")
    assert ran.code == 0, f"{ran.value}\n{text[-3000:]}"
    return text


def failed(box: Box, command: str, timeout: float = 120) -> str:
    """The same of one that has to fail by itself."""
    ran = box.run(command, timeout, cwd="")
    text = (ran.out + ran.err).decode("utf-8", "replace")
    assert ran.code not in (0, None), f"{ran.value}\n{text[-3000:]}"
    return text


def put(box: Box, name: str, text: str) -> None:
    """A file of the worktree's owner, made from outside."""
    path = box.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    owner = box.root.stat()
    while path != box.root:
        os.chown(path, owner.st_uid, owner.st_gid)
        path = path.parent


# ─── N1: compilers ──────────────────────────────────────────────────────────────────

C = """
#include <pthread.h>
#include <stdio.h>
static void *work(void *given) { *(int *)given += 1; return NULL; }
int main(void) {
    int value = 41;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, &value)) return 1;
    pthread_join(thread, NULL);
    printf("%d\\n", value);
    return 0;
}
"""
CPP = """
#include <future>
#include <iostream>
#include <stdexcept>
int main() {
    auto answer = std::async(std::launch::async, [] { return 41; });
    try { throw std::runtime_error("one"); }
    catch (const std::exception &) { std::cout << answer.get() + 1 << std::endl; }
}
"""
RUST = """
use std::thread;
fn main() {
    let worker = thread::spawn(|| (1..=6).map(|n| n * 2).sum::<i32>());
    println!("{}", worker.join().unwrap());
}
"""
GO = """package main
import ("fmt"; "net"; "os/exec")
func Answer() int { channel := make(chan int); go func() { channel <- 42 }(); return <-channel }
func main() {
    listener, err := net.Listen("tcp", "127.0.0.1:0")
    if err != nil { panic(err) }
    defer listener.Close()
    out, err := exec.Command("echo", "child").Output()
    if err != nil { panic(err) }
    fmt.Print(Answer(), " ", string(out))
}
"""
GO_TEST = """package main
import "testing"
func TestAnswer(t *testing.T) { if Answer() != 42 { t.Fatal("wrong") } }
"""


@pytest.mark.statement("N1")
@pytest.mark.parametrize(
    ("name", "source", "command", "answer"),
    [
        ("a.c", C, "gcc -O2 -pthread -o c a.c && ./c", "42\n"),
        ("b.c", C, "clang -O2 -pthread -o clang-c b.c && ./clang-c", "42\n"),
        (
            "c.c",
            C,
            "gcc -shared -fPIC -o libc1.so c.c && ldd libc1.so >/dev/null && echo so",
            "so\n",
        ),
        ("a.cc", CPP, "g++ -O2 -pthread -o cc a.cc && ./cc", "42\n"),
        ("a.rs", RUST, "rustc -O -o rs a.rs && ./rs", "42\n"),
    ],
    ids=["gcc", "clang", "shared", "g++", "rustc"],
)
def test_a_compiled_program_runs(
    compilers: Box, name: str, source: str, command: str, answer: str
) -> None:
    """What a compiler makes in the worktree is executable there, threads and all."""
    put(compilers, name, source)
    assert said(compilers, command) == answer


@pytest.mark.statement("N1")
def test_go_builds_runs_and_tests_without_a_network(compilers: Box) -> None:
    """`go build` with a cache in HOME, `go test` out of /tmp, `go vet`."""
    put(compilers, "go/go.mod", "module example.invalid/answer\n\ngo 1.19\n")
    put(compilers, "go/main.go", GO)
    put(compilers, "go/main_test.go", GO_TEST)
    go = "cd go && export GOFLAGS=-mod=mod GOPROXY=off &&"
    assert said(compilers, f"{go} go build -o answer . && ./answer", 300) == "42 child\n"
    assert said(compilers, f"{go} go test ./...", 300).startswith("ok")
    said(compilers, f"{go} go vet ./...", 300)


# ─── N2, N3: Python ─────────────────────────────────────────────────────────────────

PYTEST = """
import os, time, pytest
@pytest.mark.parametrize("number", range(40))
def test_number(number, tmp_path, worker_id):
    (tmp_path / "x").write_text(worker_id)
    assert worker_id.startswith("gw")
"""
MULTIPROCESSING = """
import multiprocessing, sys
from multiprocessing import shared_memory

def double(number): return 2 * number
def fill(name, semaphore, event):
    memory = shared_memory.SharedMemory(name)
    memory.buf[0] = 42
    memory.close(); event.set(); semaphore.release()

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(4) as pool:
            assert pool.map(double, range(100)) == list(range(0, 200, 2))
        memory = shared_memory.SharedMemory(create=True, size=4096)
        semaphore, event, queue = context.Semaphore(0), context.Event(), context.Queue()
        child = context.Process(target=fill, args=(memory.name, semaphore, event))
        child.start()
        assert semaphore.acquire(timeout=60) and event.wait(60)
        child.join()
        assert memory.buf[0] == 42 and child.exitcode == 0
        memory.close(); memory.unlink()
        with context.Manager() as manager:
            assert list(manager.list([1])) == [1]
        print(method)
"""
ASYNCIO = """
import asyncio, os, sys

async def main():
    for _ in range(3):
        children = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", f"exit({n})")
            for n in range(8)
        ]
        assert [await child.wait() for child in children] == list(range(8))
    echo = await asyncio.create_subprocess_shell("cat", stdin=-1, stdout=-1)
    print((await echo.communicate(b"piped"))[0].decode())

asyncio.set_child_watcher(asyncio.ThreadedChildWatcher())
asyncio.run(main())
"""
PIDFD = """
import os, select, signal
child = os.fork()
if not child:
    signal.pause()
descriptor = os.pidfd_open(child)
signal.pidfd_send_signal(descriptor, signal.SIGTERM)
poll = select.poll(); poll.register(descriptor, select.POLLIN)
assert poll.poll(10_000)
assert os.waitid(os.P_PIDFD, descriptor, os.WEXITED).si_status == signal.SIGTERM
"""


@pytest.mark.statement("N2")
def test_pytest_runs_with_four_workers(services: Box) -> None:
    """`pytest -n 4`, each worker with files of its own in /tmp."""
    put(services, "py/test_it.py", PYTEST)
    assert "40 passed" in said(services, "cd py && python3 -m pytest -q -n 4 -p no:cacheprovider")


@pytest.mark.statement("N2")
def test_multiprocessing_works_in_all_its_ways(services: Box) -> None:
    """fork, spawn and forkserver; pools, POSIX semaphores, shared memory, managers."""
    put(services, "multi.py", MULTIPROCESSING)
    assert said(services, "python3 multi.py").split() == ["fork", "spawn", "forkserver"]
    assert said(services, "ls -A /dev/shm") == ""


@pytest.mark.statement("N3")
def test_asyncio_watches_its_children(services: Box) -> None:
    """By threads, which is the default."""
    assert said(services, "python3 given", given=ASYNCIO).split() == ["piped"]


NO_PIDFD = "gVisor has no pidfd_open; asyncio's default watcher, by threads, works there"


@pytest.mark.statement("N3", runsc=NO_PIDFD)
def test_a_process_can_be_signalled_and_awaited_by_its_descriptor(services: Box) -> None:
    """`pidfd_open`, `pidfd_send_signal`, poll, `waitid(P_PIDFD)`; asyncio's other watcher."""
    said(services, "python3 given", given=PIDFD)
    source = ASYNCIO.replace("Threaded", "Pidfd")
    assert said(services, "python3 given", given=source).split() == ["piped"]


# ─── N4, N5: node and Java ──────────────────────────────────────────────────────────

NODE = """
const assert = require('assert')
const fs = require('fs/promises')
const { execFileSync } = require('child_process')
const { Worker } = require('worker_threads')
const net = require('net')
async function main() {
  const worker = new Worker(
    "require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true })
  assert.strictEqual(await new Promise(done => worker.once('message', done)), 42)
  await fs.writeFile('made.txt', 'x'.repeat(100000))
  assert.strictEqual((await fs.stat('made.txt')).size, 100000)
  await Promise.all([...Array(50).keys()].map(n => fs.writeFile(`/tmp/n${n}`, `${n}`)))
  assert.strictEqual(execFileSync('echo', ['child']).toString(), 'child\\n')
  const server = net.createServer(socket => socket.end('hello')).listen(0, '127.0.0.1')
  await new Promise(done => server.once('listening', done))
  const socket = net.connect(server.address().port, '127.0.0.1')
  let text = ''
  for await (const piece of socket) text += piece
  server.close()
  assert.strictEqual(text, 'hello')
  assert.ok(require('os').networkInterfaces().lo)
  console.log('all of node')
}
main().catch(error => { console.error(error); process.exit(1) })
"""
JAVA = """
import java.util.concurrent.*;
import java.util.stream.*;
public class Answer {
    public static void main(String[] given) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        Future<Integer> answer =
            pool.submit(() -> IntStream.rangeClosed(1, 6).map(n -> 2 * n).sum());
        System.out.println(answer.get());
        pool.shutdown();
        Process child = new ProcessBuilder("echo", "child").inheritIO().start();
        System.exit(child.waitFor());
    }
}
"""


@pytest.mark.statement("N4")
def test_node_and_npm_test_run(services: Box) -> None:
    """Worker threads, files, children and sockets, from a package without dependencies."""
    put(services, "node/test.js", NODE)
    put(
        services,
        "node/package.json",
        '{"name": "answer", "version": "1.0.0", "scripts": {"test": "node test.js"}}',
    )
    assert "all of node" in said(services, "cd node && npm test")


@pytest.mark.statement("N5")
def test_java_is_compiled_and_run(services: Box) -> None:
    """`javac` and `java` with threads and a child."""
    put(services, "java/Answer.java", JAVA)
    command = "cd java && javac Answer.java && java -Xmx256m Answer"
    assert said(services, command, 300).split() == ["42", "child"]


# ─── N6, N7: services on loopback ───────────────────────────────────────────────────

POSTGRES = """
set -e
export PATH="$(echo /usr/lib/postgresql/*/bin):$PATH" PGDATA=/workspace/data
initdb -A trust -U me >/dev/null
pg_ctl -w -l /tmp/log -o "-k /tmp -c listen_addresses=127.0.0.1 -p 5433" start >/dev/null ||
    { cat /tmp/log; exit 1; }
trap 'pg_ctl -m fast stop >/dev/null' EXIT
for host in 127.0.0.1 /tmp; do
    psql -h $host -p 5433 -U me -d postgres -At <<'END'
create table if not exists numbers(n int);
insert into numbers select generate_series(1, 1000);
set max_parallel_workers_per_gather = 2;
select count(*) > 0 from numbers;
END
done
"""
REDIS = """
set -e
redis-server --port 6390 --bind 127.0.0.1 --unixsocket /tmp/redis.sock --dir /tmp \\
    --daemonize yes --save '' >/dev/null
for way in "-p 6390" "-s /tmp/redis.sock"; do
    for _ in $(seq 100); do redis-cli $way ping >/dev/null 2>&1 && break; sleep 0.1; done
    redis-cli $way set answer 42 >/dev/null
    redis-cli $way get answer
done
redis-cli -p 6390 bgsave >/dev/null
redis-cli -p 6390 shutdown nosave || true
"""
SERVER = """
import http.server, os, threading, urllib.request, socket
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for host in ("127.0.0.1", "localhost"):
    with urllib.request.urlopen(f"http://{host}:{server.server_port}/served.txt") as reply:
        print(reply.read().decode())
server.shutdown()
one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
one.bind(("127.0.0.1", 0))
other.sendto(b"datagram", one.getsockname())
print(one.recv(20).decode())
near, far = socket.socketpair()
near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, (1).to_bytes(4, "little"))])
print(len(socket.recv_fds(far, 10, 2)[1]), "descriptor")
"""


@pytest.mark.statement("N6")
def test_postgresql_answers_on_loopback_and_on_a_socket(services: Box) -> None:
    """initdb on the worktree, shared memory, parallel workers, both ways in."""
    assert said(services, POSTGRES, 300).split().count("t") == 2


@pytest.mark.statement("N6")
def test_redis_answers_on_loopback_and_on_a_socket(services: Box) -> None:
    """A daemon of a command serves the next ones of it."""
    assert said(services, REDIS).split() == ["42", "42"]


@pytest.mark.statement("N7")
def test_servers_on_loopback_are_reached(services: Box) -> None:
    """TCP by address and by name, UDP, and descriptors through a Unix socket."""
    put(services, "served.txt", "served")
    assert said(services, "python3 given 2>/dev/null", given=SERVER).split() == [
        *("served", "served", "datagram", "1", "descriptor")
    ]


@pytest.mark.statement("N7")
def test_a_server_of_one_command_serves_the_next(services: Box) -> None:
    """What is left running in the background is reached over loopback by later calls."""
    put(services, "served.txt", "served")
    said(services, "python3 -m http.server 8765 --bind 127.0.0.1 >/dev/null 2>&1 &")
    fetch = (
        "curl -sf --retry 50 --retry-connrefused --retry-delay 1 http://127.0.0.1:8765/served.txt"
    )
    assert said(services, fetch) == "served"
    said(services, "pkill -f '[h]ttp.server 8765'")


# ─── N8, N9: terminals, locks, watches, keys ────────────────────────────────────────

PEXPECT = """
import pexpect
child = pexpect.spawn("python3 -q", encoding="utf-8", timeout=60)
child.expect(">>> "); child.sendline("import os; print(os.isatty(0), 6 * 7)")
child.expect("True 42"); child.expect(">>> "); child.sendeof(); child.expect(pexpect.EOF)
child = pexpect.spawn("sleep 100"); child.sendintr(); child.expect(pexpect.EOF); child.close()
print("interrupted by", child.signalstatus)
"""
TMUX = """
set -e
export TERM=xterm
tmux -S /tmp/tmux.sock -f /dev/null new-session -d -x 80 -y 24 'sh'
tmux -S /tmp/tmux.sock send-keys 'echo "in $((6 * 7))"; tty' Enter
for _ in $(seq 100); do
    tmux -S /tmp/tmux.sock capture-pane -p | grep -q '^in 42' && break
    sleep 0.1
done
tmux -S /tmp/tmux.sock capture-pane -p
tmux -S /tmp/tmux.sock kill-server
"""
LOCKS = """
import fcntl, os
for name in ("/workspace/locked", "/tmp/locked"):
    one, other = open(name, "w"), open(name, "w")
    fcntl.flock(one, fcntl.LOCK_EX)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB); raise SystemExit("not locked")
    except BlockingIOError:
        pass
    fcntl.flock(one, fcntl.LOCK_UN)
    fcntl.lockf(one, fcntl.LOCK_EX)
    child = os.fork()
    if not child:
        try:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os._exit(42)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
print("locked")
"""
INOTIFY = """
set -e
cd "$1"
rm -rf watched; mkdir watched
inotifywait -q -t 60 -e close_write -e moved_to --format %f watched >/tmp/seen 2>/tmp/watch &
watcher=$!
for _ in $(seq 100); do
    echo new >watched/made.txt
    kill -0 $watcher 2>/dev/null || break
    sleep 0.1
done
wait $watcher
cat /tmp/seen
"""


@pytest.mark.statement("N8")
def test_script_gives_a_terminal(services: Box) -> None:
    """util-linux `script` runs a program on a terminal of its own."""
    assert "/dev/pts/" in said(services, "script -qec 'tty' /dev/null")


@pytest.mark.statement("N8")
def test_pexpect_talks_to_a_program_on_a_terminal(services: Box) -> None:
    """What is typed arrives, and control-C is a signal."""
    assert "interrupted by 2" in said(services, "python3 given", given=PEXPECT)


@pytest.mark.statement("N8")
def test_tmux_runs_a_shell(services: Box) -> None:
    """A session without a client, keys sent to it, its screen read."""
    screen = said(services, TMUX)
    assert "in 42" in screen
    assert "/dev/pts/" in screen


@pytest.mark.statement("N9")
def test_locks_of_both_kinds_hold(services: Box) -> None:
    """flock and POSIX locks, in the worktree and in /tmp."""
    assert said(services, "python3 given", given=LOCKS) == "locked\n"
    assert said(services, "flock -n /tmp/l sh -c 'flock -n /tmp/l true || echo held'") == "held\n"


@pytest.mark.statement("N9")
@pytest.mark.parametrize("place", ["/workspace", "/tmp"])
def test_changes_are_watched(services: Box, place: str) -> None:
    """inotify tells of files that are written inside."""
    assert said(services, f"sh given {place}", given=INOTIFY) == "made.txt\n"


@pytest.mark.statement("N9")
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_keys_are_made(services: Box, kind: str) -> None:
    """ssh-keygen has a user name, a home and random numbers."""
    said(
        services, f"rm -f /tmp/k; ssh-keygen -q -t {kind} -N '' -f /tmp/k && ssh-keygen -lf /tmp/k"
    )
    assert said(services, f"ssh-keygen -q -t {kind} -N '' -f ~/.ssh/{kind} <<<y; ls ~/.ssh").split()


# ─── N10: sanitizers and debuggers ──────────────────────────────────────────────────

LEAK = """
#include <stdlib.h>
/* Many: what a stale register or an old stack slot still names is not counted as lost. */
__attribute__((noinline)) static void lose(void) { *(volatile char *)malloc(100) = 1; }
int main(void) {
    for (int n = 0; n < 1000; n++) lose();
    return 0;
}
"""
OVERFLOW = """
#include <stdlib.h>
int main(void) { char *text = malloc(10); volatile char c = text[10]; free(text); return c; }
"""
RACE = """
#include <pthread.h>
static int shared;
static void *work(void *given) { for (int n = 0; n < 1000; n++) shared++; return NULL; }
int main(void) {
    pthread_t one, two;
    pthread_create(&one, NULL, work, NULL); pthread_create(&two, NULL, work, NULL);
    pthread_join(one, NULL); pthread_join(two, NULL);
    return 0;
}
"""
UNDEFINED = "#include <limits.h>\nint main(int n, char **v) { return (INT_MAX - 1 + n + n) > 0; }\n"
STACK = """
#include <stdio.h>
#include <unistd.h>
static int inner(int n) { return n * 2; }
static int outer(int n) { return inner(n) + 2; }
int main(int count, char **given) {
    if (count > 1) { puts("waiting"); fflush(stdout); for (;;) pause(); }
    printf("%d\\n", outer(20));
    return 0;
}
"""
ATTACH = """
set -e
./stack wait >/tmp/out & child=$!
until grep -q waiting /tmp/out 2>/dev/null; do sleep 0.05; done
gdb -q -batch -nx -ex bt -ex detach -p $child
kill $child
"""
PROGRAMS = (
    ("leak", LEAK, "-fsanitize=address"),
    ("overflow", OVERFLOW, "-fsanitize=address"),
    ("race", RACE, "-fsanitize=thread -pthread"),
    ("undefined", UNDEFINED, "-fsanitize=undefined"),
    ("stack", STACK, ""),
)


@pytest.fixture(scope="module")
def built(compilers: Box) -> Box:
    """The same box, with programs to be looked into."""
    build_them(compilers)
    return compilers


def build_them(box: Box) -> None:
    """Compile what the sanitizers and debuggers look at."""
    for name, source, flags in PROGRAMS:
        put(box, f"{name}.c", source)
        said(box, f"gcc -g -O0 {flags} -o {name} {name}.c")


@pytest.mark.statement("N10")
def test_the_address_sanitizer_finds_overflows(built: Box) -> None:
    """ASan's shadow memory is mapped, its report names the line."""
    text = failed(built, "./overflow")
    assert "heap-buffer-overflow" in text
    assert "overflow.c:3" in text


@pytest.mark.statement("N10")
def test_the_leak_sanitizer_finds_leaks(built: Box) -> None:
    """LSan stops its own process by ptrace and counts what is lost."""
    assert "detected memory leaks" in failed(built, "./leak")


@pytest.mark.statement("N10")
def test_the_thread_sanitizer_finds_races(built: Box) -> None:
    """TSan finds its place in the address space, by personality(2) if it must."""
    assert "data race" in failed(built, "./race")


@pytest.mark.statement("N10")
def test_the_sanitizer_of_undefined_behaviour_reports(built: Box) -> None:
    """UBSan names the overflow."""
    assert "signed integer overflow" in said(built, "./undefined || true")


@pytest.mark.statement("N10")
def test_gdb_runs_and_stops_a_program(built: Box, runtime: str) -> None:
    """A breakpoint, a backtrace, a variable."""
    text = said(built, "gdb -q -batch -nx -ex 'break inner' -ex run -ex bt -ex 'p n' ./stack")
    assert "#1" in text and "outer" in text
    assert "$1 = 20" in text
    if runtime == "runc":  # gVisor has no personality(ADDR_NO_RANDOMIZE); gdb goes on without
        assert "Error disabling address space randomization" not in text


@pytest.mark.statement("N10", runsc="gVisor lets a process trace its descendants only")
def test_gdb_attaches_to_a_process_of_the_box(built: Box) -> None:
    """A process that runs already is looked into and goes on."""
    assert "main" in said(built, "bash given", given=ATTACH)


@pytest.mark.statement("N10")
def test_strace_shows_system_calls(built: Box) -> None:
    """Of a program and of its children."""
    text = said(built, "strace -f -e trace=execve,write sh -c './stack; true'")
    assert 'write(1, "42\\n"' in text


DELVE = "printf 'break main.Answer\\ncontinue\\nstack\\nexit\\n'"


@pytest.mark.statement("N10")
def test_delve_debugs_a_go_program(built: Box) -> None:
    """A breakpoint and a stack of goroutines."""
    put(built, "dlv/go.mod", "module example.invalid/answer\n\ngo 1.19\n")
    put(built, "dlv/main.go", GO)
    said(built, "cd dlv && GOPROXY=off go build -gcflags='all=-N -l' -o answer .", 300)
    dlv = "dlv exec --allow-non-terminal-interactive=true --check-go-version=false ./answer"
    assert "main.Answer" in said(built, f"cd dlv && {DELVE} | {dlv}")


STRICT = {
    "gdb": "gdb -q -batch -nx -ex run ./stack",
    "strace": "strace ./stack",
    "LeakSanitizer": "./leak",
}


@pytest.fixture(scope="module")
def strict(
    runtime: str, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Work]:
    """A loop with the compilers in the profile `strict`, used as a model uses it."""
    image, directory = images("compilers"), tmp_path_factory.mktemp(f"strict-{runtime}")

    def change(spec: LoopSpec) -> LoopSpec:
        return replace(spec, image=image, runtime=runtime, seccomp="strict")

    with open_work("docker", directory, Limits(), change) as work:
        for name, source, flags in PROGRAMS:
            work.write(f"{name}.c", source)
            result = work.call("run_command", command=f"gcc -g -O0 {flags} -o {name} {name}.c")
            assert result.code is None, result
        yield work


@pytest.mark.statement(
    "N10", runsc="the hint is the host's; that strict has no ptrace there: test_g_remount"
)
@pytest.mark.parametrize("tool", STRICT)
def test_debuggers_fail_in_strict_with_what_to_do(strict: Work, tool: str) -> None:
    """Nothing is traced, it does not look like success, and the result names the way out."""
    result = strict.call("run_command", command=STRICT[tool])
    assert "Operation not permitted" in str(result.content) or "fatal error" in str(result.content)
    assert "seccomp profile strict has no ptrace" in str(result.content), result
    assert "detect_leaks=0" in str(result.content)


@pytest.mark.statement("N10")
def test_sanitizers_work_in_strict_without_looking_for_leaks(strict: Work) -> None:
    """ASan and UBSan are whole but for the one thing, and the hint is right."""
    result = strict.call("run_command", command="ASAN_OPTIONS=detect_leaks=0 ./leak")
    assert result.code is None, result
    result = strict.call("run_command", command="ASAN_OPTIONS=detect_leaks=0 ./overflow")
    assert "heap-buffer-overflow" in str(result.content)
    assert "signed integer overflow" in str(
        strict.call("run_command", command="./undefined").content
    )


# ─── N11, N12: browser, packages, root ──────────────────────────────────────────────

PAGE = """<!doctype html><title>page</title><p id=answer></p>
<script>document.getElementById('answer').textContent = 'in ' + 6 * 7</script>
"""


@pytest.mark.statement("N11")
def test_a_browser_shows_a_page(services: Box) -> None:
    """Headless Chromium without its own sandbox runs a page's script."""
    put(services, "page.html", PAGE)
    flags = "--headless --no-sandbox --disable-gpu --dump-dom"
    assert "in 42" in said(services, f"chromium {flags} file:///workspace/page.html", 180)


@pytest.mark.statement("N12")
def test_installing_a_package_says_why_it_can_not_be(
    runtime: str, images: Images, tmp_path: Path
) -> None:
    """apt's own error, and what can be done, as the model is told it."""
    image = images("services")
    change = lambda spec: replace(spec, image=image, runtime=runtime)  # noqa: E731
    with open_work("docker", tmp_path, Limits(), change) as work:
        for command in ("apt-get install -y hello", "apt-get update", "dpkg -i x.deb"):
            result = work.call("run_command", command=command)
            assert result.is_error
            assert "read-only" in str(result.content).lower(), result
            assert "an image that has" in str(result.content), result


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("gcc", marks=pytest.mark.statement("N1")),
        pytest.param("multiprocessing", marks=pytest.mark.statement("N2")),
        pytest.param("gdb", marks=pytest.mark.statement("N10")),
    ],
)
def test_a_root_owned_worktree_is_worked_in_as_well(
    runtime: str, images: Images, tmp_path: Path, statement: str
) -> None:
    """uid 0 without capabilities compiles, forks and debugs like anybody else."""
    if os.geteuid():
        pytest.skip("only root can make a worktree that is root's")
    with opened(tmp_path, images("compilers"), runtime, uid=0) as box:
        assert said(box, "id -u") == "0\n"
        if statement == "gcc":
            put(box, "a.c", C)
            assert said(box, "gcc -pthread -o c a.c && ./c") == "42\n"
        elif statement == "multiprocessing":
            assert "spawn" in said(box, "python3 given", given=MULTIPROCESSING)
        else:
            build_them(box)
            assert "$1 = 20" in said(
                box, "gdb -q -batch -nx -ex 'break inner' -ex run -ex 'p n' ./stack"
            )
