"""`executor shell`: a person's terminal in a box, and the person's terminal afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from executor.egress.secrets import PREFIX
from executor.errors import ConfigError, SandboxUnavailable
from executor.model import LoopSpec
from executor.sandbox.container import LABEL_LOOP, RUNTIME, Owner
from executor.sandbox.engine import Engine
from executor.sandbox.terminal import (
    UNREADABLE_LOADER,
    find_box,
    meant,
    owner_in,
    shell_environment,
)
from tests.driver import wait_until
from tests.sandbox.engine_proxy import Request, engine_proxy
from tests.terminals import COMMAND, PROMPT, SECONDS, Machine, Screen


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An empty worktree and a state directory of its own."""
    return Machine(tmp_path)


class OpenLoop:
    """`executor run` of another process, with a box that stays open."""

    def __init__(self, machine: Machine, exec_id: str) -> None:
        self.exec_id = exec_id
        self._number = 0
        self.process = subprocess.Popen(
            [
                *(*COMMAND, "run", "--worktree", str(machine.worktree)),
                *("--exec-id", exec_id, "--pids", "60"),
            ],
            env=machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def send(self, command: str, **given: Any) -> None:
        """One call that is not waited for."""
        self._number += 1
        call = {"id": str(self._number), "name": "run_command"}
        assert self.process.stdin is not None
        line = json.dumps({**call, "input": {"command": command, **given}})
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next result."""
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def call(self, command: str, **given: Any) -> str:
        """One call's content."""
        self.send(command, **given)
        return str(self.answer()["content"])

    def arguments(self) -> str:
        """The arguments of every process in the box, without those of this look."""
        looking = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
        return self.call(looking).replace(looking, "")


@pytest.fixture
def loop(machine: Machine) -> Iterator[OpenLoop]:
    """A loop of another controller whose box is open."""
    opened = OpenLoop(machine, f"shell-{os.getpid()}")
    try:
        assert opened.call("echo open") == "open\n"
        yield opened
        assert opened.process.stdin is not None
        opened.process.stdin.close()
        assert opened.process.wait(SECONDS) == 0
    finally:
        if opened.process.poll() is None:
            opened.process.kill()
        with opened.process:
            pass


# ─── a box of its own ───────────────────────────────────────────────────────────────


def interrupts_and_ends(screen: Screen) -> None:
    """Ctrl-C ends what runs in the shell and not the shell; its exit code comes out."""
    # What is to be interrupted says itself that it runs: between two commands the keys are the
    # shell's own, and it may start the second one all the same.
    screen.type("sh -c 'echo go-$((1+1)); exec sleep 1000'\r")
    screen.expect("go-2\r\n")
    screen.type("\x03")
    screen.expect(PROMPT)
    screen.type("exit 5\r")
    assert screen.wait() == 5
    assert screen.is_as_before()


def test_a_terminal_in_a_box(machine: Machine) -> None:
    """There is a terminal of the person's kind and size, in the worktree, as the box's user."""
    with machine.own_shell() as screen:
        screen.type("id -u; pwd; stty size; echo $TERM-$((1+1)); test -w . && echo writable\r")
        owner = machine.worktree.stat().st_uid
        screen.expect(rf"{owner}\r\n/workspace\r\n24 80\r\nxterm-256color-2\r\nwritable\r\n")
        screen.resize(50, 132)
        screen.type("until [ \"$(stty size)\" = '50 132' ]; do :; done; echo resized-$((1+1))\r")
        screen.expect("resized-2")
        interrupts_and_ends(screen)


def test_a_shell_has_the_rights_of_the_box_and_no_more(machine: Machine) -> None:
    """B2: no capability, no new privileges, filtered system calls, none of our variables."""
    text = "grep -E '^(Cap|NoNew|Seccomp:)' /proc/self/status; env; ls /proc/1/fd; exit 0\n"
    done = machine.run("shell", "--worktree", str(machine.worktree), text=text)
    facts = dict(line.split(":\t") for line in done.stdout.splitlines() if ":\t" in line)
    assert {facts[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    names = {line.partition("=")[0] for line in done.stdout.splitlines() if "=" in line}
    assert not names & {"PYTHONPATH", "EXECUTOR_STATE_DIR", "EXECUTOR_CALL", "EDITOR", "PAGER"}
    assert "Permission denied" in done.stderr


def test_a_pipe_is_run_as_a_script(machine: Machine) -> None:
    """Without a terminal commands come from stdin, the streams are two, the exit code is theirs."""
    done = machine.run(
        "shell",
        *("--worktree", str(machine.worktree), "--env", "MARK=mine"),
        text="echo $MARK; echo bad >&2; printf '\\033]0;title\\a\\033[31mred'; exit 7",
    )
    assert done.returncode == 7
    # What is said of the engine comes first.
    said = [line for line in done.stderr.splitlines() if not line.startswith("executor: ")]
    assert said == ["bad"]
    assert done.stdout.startswith("mine\n\x1b[31mred")
    assert "title" not in done.stdout


def test_a_shell_may_reach_what_commands_may(machine: Machine) -> None:
    """It is in the box of commands, with the broker's proxy and a placeholder for the secret."""
    machine.environment["TOKEN"] = "canary-7f3a-of-a-person"
    done = machine.run(
        "shell",
        *("--worktree", str(machine.worktree), "--egress", "upstream.example"),
        *("--secret", "TOKEN@upstream.example"),
        text='echo "$http_proxy $TOKEN"; curl -sS https://elsewhere.example/; exit 0\n',
    )
    assert done.stdout.startswith(f"http://127.0.0.1:3128 {PREFIX}"), done
    assert "403" in done.stderr
    assert "canary" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [[], ["some-box", "--worktree", "."]])
def test_one_box_has_to_be_named(machine: Machine, arguments: list[str]) -> None:
    """Neither or both of NAME and --worktree is bad usage, and says what to give."""
    done = machine.run("shell", *arguments)
    assert done.returncode == 2
    assert "give the NAME of a running box, or --worktree DIR" in done.stderr


def test_an_unknown_box_is_said(machine: Machine) -> None:
    """A name that no box has is an error that says where the names are."""
    done = machine.run("shell", "no-such-box")
    assert done.returncode == 3
    assert "there is no box 'no-such-box'; `executor ps` lists the boxes" in done.stderr


def test_the_time_of_the_box_is_the_shells(machine: Machine) -> None:
    """`--max-seconds` ends the box and the shell in it, with a sentence and exit code 3."""
    with machine.own_shell("--max-seconds", "4") as screen:
        assert screen.wait() == 3
        assert b"the box is gone: its 4 s are over" in screen.shown
        assert screen.is_as_before()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_the_terminal_as_it_was(machine: Machine, number: signal.Signals) -> None:
    """A shell that is told to end restores the terminal first, and removes its box."""
    with machine.own_shell("--exec-id", f"signal-{os.getpid()}") as screen:
        assert not screen.is_as_before()
        screen.stop(number)
        assert screen.wait() == 128 + number
        assert screen.is_as_before()
    listed = machine.run("ps", "--json")
    assert listed.returncode == 0, listed.stderr
    boxes = json.loads(listed.stdout)
    assert f"signal-{os.getpid()}" not in [box["loop"] for box in boxes]


# ─── the box of another controller ──────────────────────────────────────────────────


def test_a_shell_in_the_box_of_another_controller(machine: Machine, loop: OpenLoop) -> None:
    """A running loop is entered by its name; both see the same files and processes."""
    with machine.shell(loop.exec_id) as screen:
        screen.expect(rf"shell in the box executor-{loop.exec_id}-\w+ of loop {loop.exec_id};")
        screen.expect(PROMPT, SECONDS)
        screen.type("echo by-hand > /tmp/note; echo done-$((1+1))\r")
        screen.expect("done-2")
        assert loop.call("cat /tmp/note") == "by-hand\n"
        screen.type("\x04")
        assert screen.wait() == 0
        assert screen.is_as_before()


def test_the_end_of_a_call_spares_the_person(machine: Machine, loop: OpenLoop) -> None:
    """A call that is ended takes its own processes with it, never those of a person's shell."""
    with machine.shell(loop.exec_id) as screen:
        screen.expect(PROMPT, SECONDS)
        screen.type("sleep 1111 & (setsid sleep 2222 &); echo up-$((1+1))\r")
        screen.expect("up-2")
        loop.send("(setsid sleep 3333 &); trap '' TERM; sleep 4444; sleep 4444", timeout_ms=500)
        assert loop.answer()["code"] == "TIMEOUT"
        left = loop.arguments()
        assert ("sleep 1111" in left, "sleep 2222" in left) == (True, True)
        assert ("sleep 3333" in left, "sleep 4444" in left) == (False, False)
        screen.type("echo alive-$((1+1))\r")
        screen.expect("alive-2")
        screen.type("exit\r")
        screen.type("exit\r")
        assert screen.wait() == 0
    left = loop.arguments()
    assert "sleep" not in left and "terminal" not in left


FILL = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        open("/tmp/full", "w").close()
"""


def test_room_for_a_call_is_not_made_at_the_cost_of_the_person(
    machine: Machine, loop: OpenLoop
) -> None:
    """At the process limit what calls have left is ended, and the person's shell stays."""
    with machine.shell(loop.exec_id) as screen:
        screen.expect(PROMPT, SECONDS)
        screen.type("sleep 1111 & echo up-$((1+1))\r")
        screen.expect("up-2")
        loop.call(f"setsid python3 -c '{FILL}' & until test -e /tmp/full; do :; done")
        # A call that is quicker than the flood may find the room that the one before has left.
        answers = (loop.call("echo next") for _ in range(50))
        assert any("background processes of earlier calls were ended" in one for one in answers)
        left = loop.arguments()
        assert ("sleep 1111" in left, "full" in left) == (True, False)
        screen.type("echo alive-$((1+1))\r")
        screen.expect("alive-2")
        screen.type("exit\r")
        assert screen.wait() == 0


def test_a_closed_terminal_ends_the_shell(machine: Machine, loop: OpenLoop) -> None:
    """A window that is closed, or a client that is killed, leaves no process in the box."""
    for is_killed in (False, True):
        with machine.shell(loop.exec_id) as screen:
            screen.expect(PROMPT, SECONDS)
            screen.type("nohup setsid sleep 1111 & echo up-$((1+1))\r")
            screen.expect("up-2")
            wait_until(lambda: "sleep 1111" in loop.arguments())
            if is_killed:
                screen.process.kill()
            else:
                screen.close()
            screen.process.wait(SECONDS)
        wait_until(lambda: not re.search("sleep 1111|agent terminal", loop.arguments()))


def test_a_lost_box_is_said(machine: Machine, loop: OpenLoop) -> None:
    """When the box is killed the shell ends with a sentence, and the terminal is as before."""
    boxes = json.loads(machine.run("ps", "--json").stdout)
    (container,) = [box["container"] for box in boxes if box["loop"] == loop.exec_id]
    with machine.shell(container) as screen:
        screen.expect(PROMPT, SECONDS)
        subprocess.run(["docker", "kill", container], capture_output=True, check=True, timeout=60)
        assert screen.wait() == 3
        assert b"files in its worktree are intact" in screen.shown
        assert screen.is_as_before()
    assert "the sandbox was lost" in loop.call("echo new")


def test_a_shell_can_be_killed_from_inside(machine: Machine, loop: OpenLoop) -> None:
    """A box that kills the person's shell ends it and nothing else; its exit code says so."""
    with machine.shell(loop.exec_id) as screen:
        screen.expect(PROMPT, SECONDS)
        loop.call("kill -9 -1")
        assert screen.wait() == 128 + signal.SIGKILL
        assert screen.is_as_before()
    assert loop.call("echo still") == "still\n"


def test_a_relay_is_closed_from_its_first_moment(machine: Machine, loop: OpenLoop) -> None:
    """C12: what the far half is started by is out of reach before it could do that itself."""
    boxes = json.loads(machine.run("ps", "--json").stdout)
    (container,) = [box["container"] for box in boxes if box["loop"] == loop.exec_id]
    code = "import os; print(os.getuid(), os.stat('/proc/self/mem').st_uid)"

    def ran(*beginning: str) -> str:
        command = [*beginning, f"{RUNTIME}/bin/python3", "-I", "-S", "-c", code]
        done = subprocess.run(
            ["docker", "exec", container, *command], capture_output=True, check=True, timeout=60
        )
        return done.stdout.decode()

    # The kernel gives the files of a closed process to root.
    uid, owner = ran().split()
    assert uid == owner != "0"
    assert ran(UNREADABLE_LOADER).split() == [uid, "0"]


def test_a_shell_that_is_stuck_can_be_left(machine: Machine, loop: OpenLoop) -> None:
    """Ctrl-] three times ends the shell whatever runs in it."""
    with machine.shell(loop.exec_id) as screen:
        screen.expect(PROMPT, SECONDS)
        screen.type("stty raw -echo; echo go-$((1+1)); sleep 1111\r")
        screen.expect("go-2")
        screen.type("\x1d\x1d\x1dq")
        assert screen.wait() == 128 + signal.SIGHUP
        assert screen.is_as_before()


def test_a_relay_that_is_stopped_from_inside_can_be_left(machine: Machine, loop: OpenLoop) -> None:
    """K2: a call that stops the far half of a person's shell can't hold the person."""
    with machine.shell(loop.exec_id) as screen:
        screen.expect(PROMPT, SECONDS)
        screen.type("echo relay-$PPID-$((1+1))\r")
        relay = screen.expect(r"relay-\d+-2\r\n").split("-")[-2]
        looked = loop.call(f"kill -STOP {relay}; ps -o stat=,args= {relay}")
        assert looked.startswith("T") and "agent terminal" in looked
        screen.type("\x1d\x1d\x1d")
        assert screen.wait() == 128 + signal.SIGHUP
        assert screen.is_as_before()
    assert loop.call(f"kill -CONT {relay}") == ""
    wait_until(lambda: "agent terminal" not in loop.arguments())


def test_a_shell_that_takes_nothing_more_can_be_left(machine: Machine, loop: OpenLoop) -> None:
    """Ctrl-] three times is seen though more was pasted than the box or its engine will take."""
    with machine.shell(loop.exec_id) as screen:
        screen.expect(PROMPT, SECONDS)
        screen.type("echo go-$((1+1)); exec sleep 1111\r")
        screen.expect("go-2")
        for _ in range(1500):
            screen.type("x" * 999 + "\r")
            screen.take()
        screen.type("\x1d\x1d\x1d")
        assert screen.wait() == 128 + signal.SIGHUP
        assert screen.is_as_before()


def test_a_large_paste_arrives_whole(machine: Machine, loop: OpenLoop) -> None:
    """A megabyte that is pasted into a program that reads it gets there, byte for byte."""
    line = "y" * 99
    with machine.shell(loop.exec_id) as screen:
        screen.expect(PROMPT, SECONDS)
        screen.type("stty -echo; echo go-$((1+1)); exec 3>&1; sha256sum >&3\r")
        screen.expect("go-2")
        for _ in range(10_500):
            screen.type(line + "\r")
        screen.type("\x04")
        screen.expect(hashlib.sha256(f"{line}\n".encode() * 10_500).hexdigest())
        screen.type("exit 6\r")
        assert screen.wait() == 6


def test_a_box_that_ends_before_its_shell_is_said_to_be_gone(machine: Machine) -> None:
    """A box that has ended when the shell is to be started in it is no fault of the engine."""

    async def end_it(request: Request) -> None:
        if match := re.fullmatch(r"/containers/(\w+)/exec", request.path):
            command = ["docker", "kill", match[1]]
            await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)

    with engine_proxy(before=end_it) as proxy:
        machine.environment["DOCKER_HOST"] = proxy.address
        done = machine.run("shell", "--worktree", str(machine.worktree), text="true")
    assert done.returncode == 3
    assert "the box is gone: it was lost or removed; files" in done.stderr
    assert "The engine could not" not in done.stderr


def test_a_silent_engine_holds_nobody(machine: Machine) -> None:
    """When the engine answers no more the shell ends in about 15 s, and says what is left."""
    frozen = threading.Event()

    async def hold(_: Request) -> None:
        if frozen.is_set():
            await asyncio.Event().wait()

    with engine_proxy(before=hold) as proxy:
        machine.environment["DOCKER_HOST"] = proxy.address
        with machine.own_shell() as screen:
            frozen.set()
            screen.type("exit 4\r")
            assert screen.wait(40) == 3
            assert screen.is_as_before()
            screen.expect("the engine does not answer, .* removes it later")
            assert b"the box is gone" not in screen.shown
    del machine.environment["DOCKER_HOST"]
    assert "boxes 1" in machine.run("reap").stdout


def test_a_shell_in_the_background_waits_to_be_brought_to_the_front(
    machine: Machine, loop: OpenLoop
) -> None:
    """The terminal of whoever types meanwhile is not changed under their hands."""
    variables = {**machine.environment, "PS1": "me> "}
    with Screen(["bash", "--norc", "--noediting", "-i"], variables) as screen:
        screen.expect("me> ")
        screen.type(" ".join([*COMMAND, "shell", loop.exec_id, "&\r"]))
        screen.expect("shell in the box", SECONDS)
        until = time.monotonic() + SECONDS
        screen.type("jobs; echo seen-$((1+1))\r")
        while "Stopped" not in screen.expect("seen-2"):
            assert time.monotonic() < until
            screen.type("jobs; echo seen-$((1+1))\r")
        assert screen.is_as_before()
        screen.type("fg\r")
        screen.expect(PROMPT)
        screen.type("exit 5\r")
        screen.expect("me> ")
        screen.type("echo code-$?\r")
        screen.expect("code-5")
        screen.type("exit\r")
        screen.wait()


def test_a_shell_that_was_stopped_goes_on(machine: Machine, loop: OpenLoop) -> None:
    """After a stop, in which another has used the terminal, keys go to the box as before."""
    with machine.shell(loop.exec_id) as screen:
        screen.expect(PROMPT, SECONDS)
        screen.stop(signal.SIGSTOP)
        termios.tcsetattr(screen.far, termios.TCSANOW, screen.modes)
        screen.stop(signal.SIGCONT)
        wait_until(lambda: not screen.is_as_before())
        interrupts_and_ends(screen)


def test_a_terminal_that_knows_no_size_is_taken_for_a_usual_one(machine: Machine) -> None:
    """Where the person's terminal says 0 by 0 the shell has 24 lines of 80, not one of one."""
    with machine.shell("--worktree", str(machine.worktree), size=(0, 0)) as screen:
        screen.expect(PROMPT, SECONDS)
        screen.type("stty size\r")
        screen.expect("24 80\r\n")
        screen.type("exit\r")
        assert screen.wait() == 0


# ─── pure ───────────────────────────────────────────────────────────────────────────


def listed(id: str, name: str, loop: str, state: str = "running") -> dict[str, Any]:
    """One box as an engine lists it."""
    return {"Id": id * 64, "Names": [f"/{name}"], "State": state, "Labels": {LABEL_LOOP: loop}}


A = listed("a", "executor-one-1", "one")
B = listed("b", "executor-two-2", "executor-one-1")
C = listed("c", "executor-three-3", "one", "exited")
D = listed("d", "executor-four-4", "aaaaaa")
E = listed("e", "executor-five-5", "five", "exited")
F = listed("f", "executor-one-6", "one")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("executor-one-1", [A]),  # though a loop bears the name of that container
        ("a" * 12, [A]),
        ("a" * 64, [A]),
        ("aaaaaa", [D]),  # a loop's name comes before a beginning of an id
        ("aaaaa", [A]),
        ("aaa", []),
        ("one", [A, C, F]),
        ("", []),
        ("executor-one", []),
        ("/executor-one-1", []),
    ],
)
def test_a_containers_own_name_comes_first(name: str, found: list[dict[str, Any]]) -> None:
    """Name or id of a container, then name of a loop, then the beginning of an id."""
    assert meant([A, B, C, D, E, F], name) == found


class Listing:
    """An engine that knows these boxes."""

    async def list_containers(self, labels: Mapping[str, str | None]) -> list[dict[str, Any]]:
        """All of them."""
        return [A, B, C, D, E, F]


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        (
            "one",
            ConfigError,
            "there are 2 boxes 'one'; give the container of one: aaaaaaaaaaaa (executor-one-1, "
            "loop 'one'), ffffffffffff (executor-one-6, loop 'one')",
        ),
        ("five", SandboxUnavailable, "the box 'five' does not run (exited), so nothing can be"),
        ("six", SandboxUnavailable, "there is no box 'six'; `executor ps` lists the boxes"),
    ],
)
def test_no_box_is_guessed(name: str, kind: type[Exception], said: str) -> None:
    """Of several boxes none is entered, and neither is another than the one that was meant."""
    with pytest.raises(kind) as raised:
        asyncio.run(find_box(cast("Engine", Listing()), name))
    assert said in str(raised.value)


def test_a_person_is_asked_and_may_edit(tmp_path: Path) -> None:
    """What keeps commands from waiting for somebody is not set where somebody is there."""
    spec = LoopSpec(tmp_path, environment={"EDITOR": "vi"})
    found = shell_environment(spec, Owner(5, 5), ["PATH=/x"], "linux")
    assert (found["TERM"], found["EDITOR"]) == ("linux", "vi")
    assert not {"PAGER", "GIT_PAGER", "GIT_TERMINAL_PROMPT"} & found.keys()
    assert shell_environment(spec, Owner(5, 5), [], "")["TERM"] == "dumb"


@pytest.mark.parametrize("config", [{}, {"User": ""}, {"User": "root"}, {"User": "0:0:0"}])
def test_nothing_is_started_in_a_foreign_container(config: Mapping[str, str]) -> None:
    """A container whose user is no pair of numbers is no box of ours."""
    with pytest.raises(SandboxUnavailable, match="no numeric user"):
        owner_in({"Id": "0" * 64, "Config": config})
