"""The command line: call lines, result lines, exit codes, signals."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import toolsets
from executor.catalog import load
from executor.errors import Code, ConfigError
from executor.frontends.lines import Item, Iteration, Lines
from executor.frontends.options import reach_of, secrets_of
from executor.frontends.reading import MAX_LINE
from executor.frontends.rendering import render_tool_use
from executor.model import Call, EgressOptions, Result, Secret
from tests import pictures
from tests.conftest import make_worktree

SECONDS = 120


# ─── call lines ─────────────────────────────────────────────────────────────────────


def read(*lines: str) -> list[Item]:
    reader = Lines()
    return [item for line in lines for item in reader.read(line.encode())]


def refused(*lines: str) -> Result:
    item = read(*lines)[-1]
    assert isinstance(item, Result)
    assert (item.is_error, item.code) == (True, Code.INVALID_ARGUMENTS)
    assert item.details == {"line": len(lines)}
    return item


def test_a_line_is_a_call() -> None:
    """An object with id, name and input is one call; blank lines are nothing."""
    found = read('{"id": "1", "name": "glob", "input": {"pattern": "*"}}', "", "  \r")
    assert found == [Call("1", "glob", {"pattern": "*"})]


def test_a_line_may_be_a_turn() -> None:
    """An array is several calls; what is no call in it is refused in its place."""
    found = read(
        '[{"id": "1", "name": "a", "input": {}}, 5, {"id": "2", "name": "b", "input": {}}]'
    )
    assert found[0] == Call("1", "a", {})
    assert isinstance(found[1], Result)
    assert found[2] == Call("2", "b", {})


def test_a_line_may_be_an_assistant_message() -> None:
    """The tool_use blocks of a message are its calls; other blocks and keys are passed over."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "glob", "input": {}, "cache_control": None},
        ],
    }
    assert read(json.dumps(message)) == [Call("t1", "glob", {})]
    assert read('{"role": "user", "content": "hello"}') == []


@pytest.mark.parametrize(
    ("line", "id", "name", "expected"),
    [
        ("nonsense", None, None, "not valid JSON"),
        ('{"id": "1"', None, None, "not valid JSON"),
        ("NaN", None, None, "not valid JSON"),
        ("[" * 100_000, None, None, "not valid JSON"),
        ("3", None, None, "a call is an object"),
        ("{}", None, None, "id is missing or empty"),
        ('{"id": "", "name": "a", "input": {}}', None, "a", "id is missing or empty"),
        ('{"id": 7, "name": "a", "input": {}}', None, "a", "id must be text in quotes"),
        ('{"id": "1", "name": 7, "input": {}}', "1", None, "name must be text in quotes"),
        ('{"event": "lunch"}', None, None, "the only event is"),
        ('{"event": "iteration", "id": "1"}', None, None, "the only event is"),
        ('[{"event": "iteration"}]', None, None, "id is missing or empty"),
        ('{"id": "1", "input": {}}', "1", None, "name is missing or empty"),
        ('{"id": "1", "name": "a"}', "1", "a", "input must be an object"),
        ('{"id": "1", "name": "a", "input": []}', "1", "a", "input must be an object"),
        ('{"id": "1", "name": "a", "input": {}, "x": 1}', "1", "a", "unknown field 'x'"),
    ],
)
def test_what_is_no_call_gets_a_result(
    line: str, id: str | None, name: str | None, expected: str
) -> None:
    """A bad line is one error result with the line's number and what is known of the call."""
    result = refused("", line)
    assert (result.id, result.name) == (id, name)
    assert expected in str(result.content)


def test_a_line_that_was_cut_is_too_long_and_no_bad_json() -> None:
    """The person hears what to change: its form is right."""
    call = b'{"id": "1", "name": "a", "input": {"x": "'
    (item,) = Lines().read(call + b"x" * (MAX_LINE + 1 - len(call)))
    assert isinstance(item, Result)
    assert "longer than 64 MiB" in str(item.content) and "JSON" not in str(item.content)


def test_a_line_may_be_an_event() -> None:
    """The host's word that an iteration begins is no call and has no result."""
    assert read('{"event": "iteration"}') == [Iteration()]


def test_an_id_is_used_once_in_a_run() -> None:
    """A second call of the same id is refused, on whatever line."""
    call = '{"id": "1", "name": "a", "input": {}}'
    assert "was used before" in str(refused(call, call).content)
    assert "was used before" in str(refused(f"[{call}, {call}]").content)


def test_bytes_that_are_no_utf8_are_refused() -> None:
    """A line that is not UTF-8 is an error result; a byte order mark is passed over."""
    (item,) = Lines().read(b'{"id": "\xff"}')
    assert isinstance(item, Result) and "not valid UTF-8" in str(item.content)
    assert Lines().read(b'\xef\xbb\xbf{"id":"1","name":"a","input":{}}') == [Call("1", "a", {})]


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(line: bytes) -> None:
    """Whatever a line holds, it is read or refused."""
    for item in Lines().read(line):
        assert isinstance(item, Item)


# ─── the program ────────────────────────────────────────────────────────────────────


def boxes_of(program: Program, exec_id: str) -> list[Any]:
    """What `ps` says of a loop's boxes."""
    code, out, _ = program.run("ps", "--json")
    assert code == 0
    return [box for box in json.loads(out) if box["loop"] == exec_id]


class Program:
    """`python -m executor` with a state directory and configuration of its own."""

    def __init__(self, directory: Path) -> None:
        self.worktree = make_worktree(directory / "worktree")
        self.environment = {
            **os.environ,
            "EXECUTOR_STATE_DIR": str(directory / "state"),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "PYTHONPATH": str(Path(__file__).parent.parent),
        }

    def write(self, name: str, text: str) -> Path:
        """A file of the worktree that belongs to its owner."""
        path = self.worktree / name
        path.write_text(text)
        owner = self.worktree.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
        return path

    def into_full_disk(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run with a stdout that takes nothing."""
        with open("/dev/full", "w") as full:
            return subprocess.run(
                [sys.executable, "-m", "executor", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=full,
                stderr=subprocess.PIPE,
                env=self.environment,
                text=True,
                timeout=SECONDS,
                check=False,
            )

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "executor", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.environment, **more},
            text=True,
        )

    def run(self, *arguments: str, calls: str = "", **more: Any) -> tuple[int, str, str]:
        process = self.start(*arguments, **more)
        out, err = process.communicate(calls, timeout=SECONDS)
        return process.returncode, out, err

    def answers(self, *calls: object, options: Sequence[str] = ()) -> list[dict[str, Any]]:
        lines = "".join(
            f"{call if isinstance(call, str) else json.dumps(call)}\n" for call in calls
        )
        code, out, err = self.run("run", "--worktree", str(self.worktree), *options, calls=lines)
        assert code == 0, err
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program with an empty worktree."""
    return Program(tmp_path)


def call(id: str, name: str, **given: Any) -> dict[str, Any]:
    return {"id": id, "name": name, "input": given}


KEYS = [
    *("id", "name", "content", "is_error", "code", "structured", "truncated", "total_bytes"),
    *("spill", "duration_ms", "details", "lane"),
]


def test_run_answers_every_line_in_order(program: Program) -> None:
    """Calls, turns, messages and nonsense each get their results, in order, and exit code 0."""
    program.write("a.txt", "one\ntwo\n")
    answers = program.answers(
        call("1", "read_file", path="a.txt"),
        "nonsense",
        [call("2", "nope"), call("3", "complete_task", summary="done"), call("1", "glob")],
        {"role": "assistant", "content": [{"type": "tool_use", **call("4", "run_command")}]},
        call("5", "run_command", command="echo out; echo err >&2; exit 3"),
    )
    assert [list(answer) for answer in answers] == [KEYS] * 7
    assert [answer["id"] for answer in answers] == ["1", None, "2", "3", "1", "4", "5"]
    assert answers[0]["content"] == "     1│one\n     2│two"
    codes = [answer["code"] for answer in answers]
    assert codes == [
        None,
        "INVALID_ARGUMENTS",
        "UNKNOWN_TOOL",
        None,
        "INVALID_ARGUMENTS",
        "INVALID_ARGUMENTS",
        "EXECUTION_ERROR",
    ]
    assert answers[1]["details"] == {"line": 2}
    assert answers[6]["content"] == "Exit code: 3\nout\n\n\nSTDERR:\nerr\n"
    assert set(answers[6]["structured"]) == {
        *("exit_code", "signal", "timed_out", "oom", "limit", "cwd", "lane", "merged"),
        *("stdout", "stderr", "shell", "notes"),
    }


def test_results_are_written_as_they_come(program: Program) -> None:
    """A result is flushed before the next line is sent."""
    process = program.start("run", "--worktree", str(program.worktree))
    assert process.stdin and process.stdout
    for number in range(2):
        process.stdin.write(json.dumps(call(str(number), "run_command", command="true")) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == str(number)
    process.stdin.close()
    assert process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--worktree", "/no/such/place"], "does not exist"),
        (["run", "--worktree", "{file}"], "is not a directory"),
        (["run", "--worktree", ""], "worktree: is empty"),
        (["call", "glob", "--worktree", ""], "worktree: is empty"),
        (["run", "--worktree", "{tree}", "--image", "bad image"], "is no name of an image"),
        (["run", "--worktree", "{tree}", "--uid", "-1"], "is out of range; give 0 to"),
        (
            ["run", "--worktree", "{tree}", "--call-timeout", "9999"],
            "call_timeout: 9999 seconds is more than the 600 that max_timeout_ms",
        ),
        (["images", "build", "nope"], "'nope' can't be built; there are base and heavy"),
        (["run", "--worktree", "{tree}", "--calls", "/no/such/file"], "--calls: /no/such/file"),
        (["run", "--worktree", "{tree}", "--calls", "{tree}"], "is a directory"),
        (["run", "--worktree", "{tree}", "--toolset", "fancy"], "toolset: there is no 'fancy'"),
        (["run", "--worktree", "{tree}", "--loop-type", "x"], "loop_type: there is no 'x'"),
        (["run", "--worktree", "{tree}", "--mode", "yolo"], "mode: there is no 'yolo'"),
        (["run", "--worktree", "{tree}", "--memory", "lots"], "is not a size"),
        (["run", "--worktree", "{tree}", "--memory", "1m", "--pids", "1"], "pids: 1 is too small"),
        (["run", "--worktree", "{tree}", "--env", "X"], "--env: 'X' has no ="),
        (["run", "--worktree", "{tree}", "--exec-id", "A b"], "exec_id: 'A b' is not allowed"),
        (["run", "--worktree", "{tree}", "--config", "/no/such.toml"], "there is no such file"),
        (["run", "--worktree", "{tree}", "--frobnicate"], "No such option"),
        (["run"], "--worktree"),
        (["call", "glob", "{{", "--worktree", "{tree}"], "not valid JSON"),
        (["call", "glob", "[]", "--worktree", "{tree}"], "must be a JSON object"),
        (["tools", "--format", "xml"], "--format: there is no 'xml'"),
        (["run", "--worktree", "{tree}", "--egress", "*"], "egress: '*' would be every host"),
        (["call", "glob", "--secret", "NOT_SET_HERE@a.org"], "the variable NOT_SET_HERE is not"),
    ],
)
def test_bad_usage_is_exit_code_2(program: Program, arguments: list[str], expected: str) -> None:
    """What is wrong is said on stderr in one sentence, and nothing is started."""
    file = program.worktree / "file"
    file.write_text("")
    filled = [part.format(tree=program.worktree, file=file) for part in arguments]
    code, out, err = program.run(*filled)
    assert (code, out) == (2, "")
    assert expected in err and "Traceback" not in err


def test_an_iteration_clears_what_was_read(program: Program) -> None:
    """After the event a file has to be read again; the event itself has no result line."""
    program.write("a.txt", "one\n")
    edit = {"path": "a.txt", "old_string": "one", "new_string": "two"}
    read, unread = program.answers(
        call("1", "read_file", path="a.txt"), {"event": "iteration"}, call("2", "edit_file", **edit)
    )
    assert (read["code"], unread["code"]) == (None, "NOT_READ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--worktree", "{tree}", "--calls", "{file}"],
        ["call", "run_command", '{{"command": "echo x"}}', "--worktree", "{tree}"],
        ["tools"],
        ["ps"],
    ],
)
def test_a_full_output_is_exit_code_1(
    program: Program, tmp_path: Path, arguments: list[str]
) -> None:
    """Results that can't be written end the run with one sentence."""
    file = tmp_path / "calls"
    file.write_text(json.dumps(call("1", "run_command", command="true")) + "\n")
    filled = [part.format(tree=program.worktree, file=file) for part in arguments]
    done = program.into_full_disk(*filled)
    assert done.returncode == 1
    assert "the output could not be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("closing", "code", "expected"),
    [(">&-", 1, ""), ("2>&-", 0, '"id": "1"'), ("2>/dev/full", 0, '"id": "1"')],
)
def test_a_stream_that_is_closed_or_full_holds_nothing_up(
    program: Program, tmp_path: Path, closing: str, code: int, expected: str
) -> None:
    """Results that have no place are an error; what is said to nobody is lost, and no more."""
    file = tmp_path / "calls"
    file.write_text(json.dumps(call("1", "run_command", command="true")) + "\n")
    command = [sys.executable, "-m", "executor", "run", "--worktree", str(program.worktree)]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *command, "--calls", str(file)],
        capture_output=True,
        env=program.environment,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == code
    assert expected in done.stdout
    assert "Traceback" not in done.stderr
    if closing == ">&-":
        assert "the output could not be written: Bad file descriptor" in done.stderr


def test_a_closed_stdin_is_an_empty_one(program: Program) -> None:
    """Without a stdin there are no call lines, and the run ends well."""
    command = [sys.executable, "-m", "executor", "run", "--worktree", str(program.worktree)]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        capture_output=True,
        env=program.environment,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_version_prints_name_and_version(program: Program) -> None:
    """`--version` is one line, needs no engine and no configuration, and ends with 0."""
    code, out, err = program.run("--version", DOCKER_HOST="unix:///none", XDG_CONFIG_HOME="/none")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"executor \d+\.\d+\.\d+\S*\n", out)
    done = program.into_full_disk("--version")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_help_that_has_no_place_is_one_sentence(program: Program) -> None:
    """A full disk under `--help` is said like one under results."""
    done = program.into_full_disk("--help")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the output could not be written: No space left on device" in done.stderr


def test_a_locale_without_glyphs_ends_nothing(program: Program) -> None:
    """What a terminal's character set does not have is printed as an escape; JSON is UTF-8."""
    code, out, err = program.run("tools", PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    assert json.loads(out)
    code, out, err = program.run("doctor", PYTHONIOENCODING="ascii")
    assert "\\u2713 executor: " in out and "Traceback" not in err


def test_images_are_listed_with_their_time(program: Program) -> None:
    """Images and volumes alike have ISO 8601, in UTC or with an offset."""
    code, out, _ = program.run("images", "list", "--json")
    assert code == 0
    for entry in json.loads(out):
        assert datetime.fromisoformat(entry["created"]).tzinfo is not None


def test_no_engine_is_exit_code_3(program: Program, tmp_path: Path) -> None:
    """Without an engine nothing runs: exit code 3 and the address."""
    address = f"unix://{tmp_path}/none.sock"
    code, out, err = program.run(
        "run", "--worktree", str(program.worktree), calls="", DOCKER_HOST=address
    )
    assert (code, out) == (3, "")
    assert "none.sock" in err and "Traceback" not in err


def test_a_missing_image_is_exit_code_3(program: Program) -> None:
    """An image that is not on the engine is named."""
    code, out, err = program.run(
        "run", "--worktree", str(program.worktree), "--image", "nope.invalid/x:1"
    )
    assert (code, out) == (3, "")
    assert "nope.invalid/x:1" in err and "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_leaves_nothing(program: Program, number: signal.Signals) -> None:
    """Ctrl-C in mid-call removes the box first, says so, and ends with 128 + the signal."""
    process = program.start("run", "--worktree", str(program.worktree), "--exec-id", "ended")
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(call("1", "run_command", command="true")) + "\n")
    process.stdin.write(json.dumps(call("2", "run_command", command="sleep 100")) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == "1"
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    name = {signal.SIGINT: "Ctrl-C"}.get(number, number.name)
    last = err.splitlines()[-1]
    assert last == f"executor: ended by {name}; what was opened is cleaned away"
    code, out, _ = program.run("ps", "--json")
    assert code == 0
    assert not [box for box in json.loads(out) if box["loop"] == "ended"]


def test_a_hail_of_signals_ends_the_run_as_one_does(program: Program) -> None:
    """Signals that follow the first, up to the very end, print nothing and skip no clean-up."""
    process = program.start("run", "--worktree", str(program.worktree), "--exec-id", "hail")
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(json.dumps(call("1", "run_command", command="true")) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == "1"
    until = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < until:
        process.send_signal(signal.SIGINT)
        time.sleep(0.001)
    err = process.stderr.read()
    process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in err and "Exception" not in err
    assert boxes_of(program, "hail") == []


@pytest.mark.parametrize(
    "moment",
    [
        "import atexit; atexit.register(os.kill, os.getpid(), signal.SIGINT)",
        "sys.meta_path.insert(0, Early())",
    ],
    ids=["after the end", "while loading"],
)
def test_a_signal_outside_the_run_ends_the_process_quietly(program: Program, moment: str) -> None:
    """While nothing is open a signal ends the process at once, without a traceback."""
    script = (
        "import os, signal, sys\n"
        "class Early:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name in ('typer', 'pydantic'): os.kill(os.getpid(), signal.SIGINT)\n"
        f"{moment}\n"
        "from executor.frontends.cli import main\n"
        "sys.argv = ['executor', 'tools']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=program.environment,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, b"")


def test_a_signal_with_many_calls_waiting_is_quiet(program: Program, tmp_path: Path) -> None:
    """Call lines that are read and not taken up yet are dropped without a word."""
    lines = [call("0", "run_command", command="true")]
    lines += [call(str(n), "run_command", command="sleep 100") for n in range(1, 500)]
    file = tmp_path / "calls"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    process = program.start("run", "--worktree", str(program.worktree), "--calls", str(file))
    assert process.stdout
    assert json.loads(process.stdout.readline())["id"] == "0"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err and "Exception" not in err


def stalled(program: Program, exec_id: str) -> subprocess.Popen[str]:
    """A run of three calls; nobody reads its results, and the pipe has room for the first."""
    process = program.start("run", "--worktree", str(program.worktree), "--exec-id", exec_id)
    assert process.stdin and process.stdout
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    for number in range(3):
        command = f"head -c 1500 /dev/zero | tr '\\0' x; touch {number}"
        process.stdin.write(json.dumps(call(str(number), "run_command", command=command)) + "\n")
    process.stdin.close()
    process.stdin = None
    until = time.monotonic() + SECONDS
    while not (program.worktree / "1").exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.01)
    return process


def test_a_signal_is_heard_while_nobody_reads(program: Program) -> None:
    """A reader that has stopped holds up its results, not the end of the run."""
    process = stalled(program, "stalled")
    time.sleep(0.5)  # the second result is on its way, and nothing can be seen of it
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    _, err = process.communicate()
    assert "Traceback" not in err
    assert boxes_of(program, "stalled") == []


def test_a_box_lives_on_while_nobody_reads(program: Program, tmp_path: Path) -> None:
    """The agent hears its pings meanwhile; late readers get every result, whole and in order."""
    program.environment["PYTHONPATH"] = f"{tmp_path}:{program.environment['PYTHONPATH']}"
    (tmp_path / "sitecustomize.py").write_text(
        "from executor.sandbox import box, connection\n"
        "box.LEASE, connection.PING_INTERVAL = 1.5, 0.2\n"
    )
    process = stalled(program, "slow")
    time.sleep(4)  # the fault under test is the passing of time itself
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    found = [(answer["id"], answer["content"], answer["details"]) for answer in answers]
    assert found == [(str(number), "x" * 1500, None) for number in range(3)]


def test_a_result_larger_than_the_pipe_is_written_whole(program: Program) -> None:
    """A reader that takes its time gets every byte of a large result."""
    program.write("big", "x" * 300_000)
    given = call("1", "read_file", path="big", encoding="base64")
    (answer,) = program.answers(given)
    assert base64.b64decode(answer["content"]) == b"x" * 300_000


def test_an_id_of_half_a_character_comes_back(program: Program) -> None:
    """What JSON lets a caller use as an id is in its result, bit for bit."""
    answers = program.answers(call("\ud800", "glob", pattern="*"), call("é", "nope\udfff"))
    assert [answer["id"] for answer in answers] == ["\ud800", "é"]


def test_what_a_killed_run_left_is_swept_by_the_next(program: Program) -> None:
    """After `kill -9` the next run on the machine removes the box and the files."""
    process = program.start("run", "--worktree", str(program.worktree), "--exec-id", "killed")
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(call("1", "run_command", command="true")) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == "1"
    process.kill()
    process.communicate(timeout=SECONDS)
    assert program.answers(call("1", "run_command", command="echo next"))[0]["content"] == "next\n"
    code, out, _ = program.run("ps", "--json")
    assert code == 0
    assert not [box for box in json.loads(out) if box["loop"] == "killed"]
    state = Path(program.environment["EXECUTOR_STATE_DIR"])
    assert list((state / "controllers").iterdir()) == []


def test_ps_shows_the_whole_name_of_a_loop(program: Program) -> None:
    """However narrow the table is, `ps` cuts no name that `shell` is to be given."""
    name = "a-name-of-forty-characters-for-this-loop"
    process = program.start("run", "--worktree", str(program.worktree), "--exec-id", name)
    assert process.stdin and process.stdout
    process.stdin.write(json.dumps(call("1", "run_command", command="true")) + "\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == "1"
    code, out, _ = program.run("ps")
    process.communicate(timeout=SECONDS)
    assert code == 0
    assert name in out


def test_a_reader_that_goes_away_ends_the_run(program: Program) -> None:
    """When nobody reads the results any more the run ends without a traceback."""
    process = program.start("run", "--worktree", str(program.worktree), "--exec-id", "unread")
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.write(json.dumps(call("1", "run_command", command="true")) + "\n")
    process.stdin.flush()
    assert process.wait(SECONDS) == 128 + signal.SIGPIPE
    assert "Traceback" not in process.stderr.read()
    process.stdin.close()


def test_call_prints_what_the_model_would_see(program: Program) -> None:
    """`call` is one call with human output; a failed one goes to stderr with exit code 1."""
    program.write("a.txt", "one\n")
    place = ("--worktree", str(program.worktree))
    assert program.run("call", "read_file", '{"path": "a.txt"}', *place)[:2] == (0, "     1│one\n")
    code, out, err = program.run("call", "read_file", '{"path": "b.txt"}', *place)
    assert (code, out) == (1, "")
    assert "b.txt" in err


def test_call_reads_before_it_edits(program: Program) -> None:
    """A person's edit works at once: the file is read first, which is said on stderr."""
    file = program.write("a.txt", "one\n")
    place = ("--worktree", str(program.worktree))
    edit = json.dumps({"path": "a.txt", "old_string": "one", "new_string": "two"})
    code, out, err = program.run("call", "edit_file", edit, *place)
    assert (code, out) == (0, "Replaced 1 occurrence(s) in a.txt\n")
    assert "read a.txt first" in err
    whole = json.dumps({"path": "a.txt", "content": "three\n"})
    assert program.run("call", "write_file", whole, *place)[0] == 0
    assert file.read_text() == "three\n"


def test_terminal_controls_in_output_are_shown_as_escapes(program: Program) -> None:
    """What a person is shown can't steer the terminal."""
    place = ("--worktree", str(program.worktree))
    command = json.dumps({"command": "printf 'a\\033[2Jb\\n'"})
    assert program.run("call", "run_command", command, *place)[1] == "a\\x1b[2Jb\n"


def test_what_a_loop_reaches_comes_from_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option lands in its field; a secret's value comes from the environment alone."""
    monkeypatch.setenv("TOKEN", "value-of-the-token")
    given = reach_of(
        ["a.org", "*.b.org"],
        ["c.org"],
        ["a.org"],
        Path("/ca.pem"),
        "make deps",
        ["pip", "npm"],
        ["TOKEN@a.org", "TOKEN@b.org:8443"],
    )
    spec = load().loop_spec(".", **given)
    assert spec.egress == EgressOptions(
        ("a.org", "*.b.org"), ("c.org",), ("a.org",), Path("/ca.pem")
    )
    assert (spec.setup, spec.caches) == ("make deps", ("pip", "npm"))
    assert spec.secrets == (Secret("TOKEN", "value-of-the-token", ("a.org", "b.org:8443")),)
    assert "value-of-the-token" not in repr(spec)
    plain = load().loop_spec(".", **reach_of(None, None, None, None, None, None, None))
    assert (plain.egress, plain.setup, plain.secrets) == (EgressOptions(), None, ())


def test_a_secret_that_was_written_on_the_command_line_is_not_repeated() -> None:
    """Who mistakes --secret for its value is told how it is given, and nothing else."""
    with pytest.raises(ConfigError) as caught:
        secrets_of(["sk-my-key", "UNSET_A@a.org", "UNSET_B=sk-my-key@b.org", "@c.org"])
    assert len(caught.value.faults) == 4 and "sk-my-key" not in str(caught.value)


def test_catalog_check_says_all_that_is_wrong(program: Program, tmp_path: Path) -> None:
    """Every fault with file and key and exit code 2; of a sound file that, and exit code 0."""
    file = tmp_path / "my.toml"
    file.write_text(
        "[lanes.no-net]\nnetwork = 'broker'\n[tools.raed_file]\n[loop]\negress = ['*']\n"
    )
    code, out, err = program.run("catalog", "check", "--config", str(file))
    assert (code, out) == (2, "")
    for key in ("lanes.no-net.network", "tools.raed_file", "loop.egress"):
        assert f"executor: {file}: {key}: " in err
    file.write_text("[permissions]\ndeny = ['raed_file(x)']\n")
    code, _, err = program.run("catalog", "check", "--config", str(file))
    assert code == 2 and f"{file}: permissions.deny: 'raed_file(x)' is not a rule" in err
    file.write_text("[lanes.heavy]\nimage = 'heavy'\n[loop]\negress = ['*.example.org']\n")
    code, out, err = program.run("catalog", "check", str(file))
    assert (code, out, err) == (0, f"{file}: no faults\n", "")
    code, _, err = program.run("catalog", "check", str(file), "--config", str(file))
    assert code == 2 and "give one of them" in err


def test_catalog_check_says_why_no_loop_would_open(program: Program, tmp_path: Path) -> None:
    """What a loop is refused for when it is opened is found before; a worktree is not missed."""
    file = tmp_path / "my.toml"
    file.write_text(
        "[loop]\nsetup_egress = ['example.org']\nimage = 'bad name!'\nuid = -5\n"
        "add_dirs = ['/none']\nenvironment = {'1 BAD' = 'x'}\n"
    )
    code, out, err = program.run("catalog", "check", str(file))
    assert (code, out) == (2, "")
    for key in ("setup_egress", "image", "uid", "add_dirs", "environment"):
        assert err.count(f"executor: {file}: loop.{key}: ") == 1, err
    assert "worktree" not in err
    file.write_text(f"[loop]\nadd_dirs = ['{tempfile.gettempdir()}']\n")
    assert program.run("catalog", "check", str(file))[0] == 0


def test_catalog_show_says_what_holds_and_what_was_changed(
    program: Program, tmp_path: Path
) -> None:
    """Tools with lane and limits, lanes with their real network, and whose each value is."""
    file = tmp_path / "my.toml"
    same = "[tools.glob]\nlane = 'no-net'\n"
    zig = "[languages.zig]\nextensions = {'.zig' = 'zig'}\ncommands = [['zls']]\n"
    mine = f"[tools.grep]\ntimeout_ms = 5500\n[lanes.heavy]\nnetwork = 'bridge'\n{same}{zig}"
    file.write_text(mine)
    code, out, _ = program.run("catalog", "show", "--config", str(file))
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert code == 0
    assert rows["grep"] == ["grep", "no-net", "read", "5.5", "s", "100,000", "B"]
    assert rows["build"][:6] == ["build", "heavy", "exec", "600", "s", "600"]
    assert rows["net"][1:6] == ["none", "(no", "hosts)", "no-net", "base"]
    assert rows["heavy"][1:4] == ["bridge", "(unprotected)", "heavy"]
    assert f"changed by {file}:\n  tools.grep.timeout_ms = 5500 (packaged: 60000)\n" in out
    assert '\n  languages.zig.extensions.".zig" = "zig"\n' in out
    code, out, _ = program.run("catalog", "show", "--config", str(file), "--json")
    shown = json.loads(out)
    assert (code, shown["tools"]["grep"]["timeout_ms"]) == (0, 5500)
    assert shown["lanes"]["net"]["effective_network"] == "none"
    assert (shown["lanes"]["net"]["memory"], shown["loop"]["memory"]) == ("4g", "4g")
    assert shown["changed"] == {
        "tools.grep.timeout_ms": {"value": 5500, "packaged": 60000, "from": str(file)},
        "lanes.heavy.network": {"value": "bridge", "packaged": "broker", "from": str(file)},
        'languages.zig.extensions.".zig"': {"value": "zig", "packaged": None, "from": str(file)},
        "languages.zig.commands": {"value": [["zls"]], "packaged": None, "from": str(file)},
    }
    code, out, _ = program.run("catalog", "show")
    assert code == 0 and out.endswith("all of it is packaged\n")


@pytest.mark.parametrize(
    ("format", "key"),
    [("anthropic", "input_schema"), ("openai", "function"), ("mcp", "inputSchema")],
)
def test_tools_prints_definitions(program: Program, format: str, key: str) -> None:
    """`tools` prints the definitions in the form of each API, without an engine."""
    code, out, _ = program.run(
        "tools", "--format", format, DOCKER_HOST="unix:///none", EXECUTOR_SERPER_KEY="key"
    )
    definitions = json.loads(out)
    assert code == 0 and all(key in definition for definition in definitions)
    names = [one.get("name") or one["function"]["name"] for one in definitions]
    # In the order of the toolset.
    assert names == list(toolsets.registry("standard", load()).list())


def test_tools_says_which_mcp_servers_are_not_asked(program: Program, tmp_path: Path) -> None:
    """Without a worktree no server is started, and each that is on is named on stderr."""
    file = tmp_path / "my.toml"
    file.write_text(
        '[mcp.git]\ncommand = ["x"]\n[mcp.far]\nurl = "https://a.org/"\n'
        '[mcp.off]\ncommand = ["x"]\nenabled = false\n'
    )
    code, out, err = program.run("tools", "--config", str(file), DOCKER_HOST="unix:///none")
    assert code == 0 and json.loads(out)
    assert "MCP servers git, far are not asked" in err and "--worktree DIR" in err
    code, out, _ = program.run("catalog", "show", "--config", str(file))
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["far"] == ["far", "at", "its", "URL", "https://a.org/"]
    assert rows["off"] == ["off", "box", "of", "no-net", "x", "off"]
    assert rows["go"] == ["go", ".go", "gopls"]


def test_tools_of_a_worktree_are_those_of_an_open_loop(program: Program) -> None:
    """With a worktree a loop is opened in it; what it has is listed, as a run would have it."""
    place = ["--worktree", str(program.worktree)]
    code, out, _ = program.run("tools", *place)
    assert code == 0
    assert {"read_file", "run_command"} <= {tool["name"] for tool in json.loads(out)}
    (program.worktree / "my.toml").write_text("")
    code, _, err = program.run("tools", *place, "--config", str(program.worktree / "my.toml"))
    assert code == 2 and "lies in the worktree" in err


def test_tools_says_what_openai_would_refuse(program: Program, tmp_path: Path) -> None:
    """A description that is longer than OpenAI takes is told, with the key that shortens it."""
    _, out, told = program.run("tools", "--format", "openai", "--toolset", "claude-code")
    functions = [one["function"] for one in json.loads(out)]
    for name, size in ((one["name"], len(one["description"])) for one in functions):
        assert (f"the description of {name} has {size} characters" in told) == (size > 1024)
    assert "[tools.run_command] description" in told
    catalog = tmp_path / "catalog.toml"
    catalog.write_text("[tools.run_command]\ndescription = 'Run a command.'\n")
    given = ("--format", "openai", "--toolset", "claude-code", "--config", str(catalog))
    assert "description of Bash" not in program.run("tools", *given)[2]


def test_tools_are_those_of_a_run(program: Program, tmp_path: Path) -> None:
    """With a model's key there are agents, with skills the tool for them, each with its list."""
    reasons = _reasons(program)
    assert "ANTHROPIC_API_KEY" in reasons["Task"] and "--skills" in reasons["Skill"]
    (tmp_path / "skills" / "review").mkdir(parents=True)
    (tmp_path / "skills" / "review" / "SKILL.md").write_text("---\ndescription: x\n---\nReview.\n")
    given = ["--toolset", "claude-code", "--skills", str(tmp_path / "skills")]
    _, out, _ = program.run("tools", *given, ANTHROPIC_API_KEY="key")
    texts = {tool["name"]: tool["description"] for tool in json.loads(out)}
    assert "- review: x" in texts["Skill"] and "- Explore" in texts["Task"]


def _reasons(program: Program) -> dict[str, Any]:
    _, out, _ = program.run("tools", "--toolset", "claude-code", "--all", ANTHROPIC_API_KEY="")
    return {tool["name"]: tool["disabled"] for tool in json.loads(out)}


@pytest.mark.parametrize("command", ["run", "call"])
def test_a_hook_that_fails_is_told_of(program: Program, command: str) -> None:
    """A hook that fails after a call changes no result; the person is told."""
    config = program.worktree.parent / "hooks.toml"
    config.write_text('[[hooks]]\nevent = "PostToolUse"\ncommand = "exit 3"\n')
    given = ["--worktree", str(program.worktree), "--config", str(config)]
    if command == "call":
        code, _, err = program.run("call", "list_directory", "{}", *given)
    else:
        line = json.dumps(call("1", "list_directory"))
        code, _, err = program.run("run", *given, calls=line)
    assert code == 0
    assert "exit 3" in err and "code 3" in err


def test_a_model_of_texts_is_sent_no_picture(program: Program) -> None:
    """With --text-only a picture is a text that describes it; without, a block."""
    (program.worktree / "dot.png").write_bytes(pictures.png(2, 2))
    reading = call("1", "read_file", path="dot.png")
    (sent,) = program.answers(reading)
    (told,) = program.answers(reading, options=["--text-only"])
    assert "image" in [block["type"] for block in sent["content"]]
    assert "not sent" in json.dumps(told["content"])


def test_a_person_is_told_of_a_picture(program: Program) -> None:
    """`executor call` prints the text that a model is shown, and of a picture what it is."""
    content = pictures.png(2, 2)
    (program.worktree / "dot.png").write_bytes(content)
    place = ["--worktree", str(program.worktree)]
    code, out, _ = program.run("call", "read_file", '{"path": "dot.png"}', *place)
    assert code == 0
    assert f"[image: image/png, {len(content):,} bytes]" in out


def test_tools_shows_why_a_tool_is_missing(program: Program) -> None:
    """A loop type leaves tools out; --all shows them with the reason."""
    _, out, _ = program.run("tools", "--loop-type", "plan")
    names = [tool["name"] for tool in json.loads(out)]
    assert names == ["read_file", "write_file", "glob", "grep", "create_plan", "complete_task"]
    _, out, _ = program.run("tools", "--loop-type", "plan", "--all")
    reasons = {tool["name"]: tool["disabled"] for tool in json.loads(out)}
    assert reasons["glob"] is None
    assert reasons["run_command"] == "loops of type plan don't have it"


def test_doctor_says_whether_loops_can_run(program: Program) -> None:
    """`doctor --json` ends with 0 here; without an engine with 1, a fault and its mend."""
    code, out, _ = program.run("doctor", "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (0, True)
    assert report["capabilities"]["network"] == "none"
    code, out, _ = program.run("doctor", "--json", DOCKER_HOST="unix:///none.sock")
    faults = [found for found in json.loads(out)["findings"] if found["level"] == "fault"]
    assert code == 1
    assert [fault["name"] for fault in faults] == ["engine"] and faults[0]["mend"]


def test_doctor_tries_the_box_that_is_configured(program: Program, tmp_path: Path) -> None:
    """The trial box is the loop of the configuration, also where that may run no command."""
    file = tmp_path / "strict.toml"
    setup = 'setup = "exit 9"\nsetup_egress = ["example.org"]\n'
    file.write_text(f'[loop]\nmode = "plan"\nseccomp = "strict"\nmemory = "300m"\n{setup}')
    code, out, _ = program.run("doctor", "--json", "--config", str(file))
    found = json.loads(out)["capabilities"]
    assert (code, found["seccomp"], found["memory"]) == (0, "strict (ours)", 300 << 20)
    file.write_text('[controller]\nrequire_patched_engine = "x"\n')
    code, out, _ = program.run("doctor", "--json", "--config", str(file))
    assert (code, json.loads(out)["findings"][-1]["name"]) == (1, "configuration")


def test_doctor_tries_every_lane_on_the_image_that_is_there(
    program: Program, tmp_path: Path
) -> None:
    """No image of a lane is built or missed for a trial, and each box has a finding of its own."""
    file = tmp_path / "my.toml"
    file.write_text('[loop]\negress = ["example.org"]\n[lanes.net]\nimage = "none-such:1"\n')
    code, out, _ = program.run("doctor", "--json", "--config", str(file))
    found = {one["name"]: one["text"] for one in json.loads(out)["findings"]}
    assert (code, "a command ran" in found["trial box"]) == (0, True), found
    assert "network: none" in found["isolation of the trial box of lane net"]
    assert not any("{" in text for name, text in found.items() if "isolation" in name)


def test_a_runtime_that_a_lane_can_not_have_is_said_before_any_call(
    program: Program, tmp_path: Path
) -> None:
    """It is no matter of the first call in that lane."""
    file = tmp_path / "my.toml"
    file.write_text('[lanes.heavy]\nruntime = "runcs"\n')
    command = ("call", "run_command", '{"command": "true"}', "--worktree", str(program.worktree))
    code, _, err = program.run(*command, "--config", str(file))
    assert code == 2 and "runtime: the engine has no 'runcs'" in err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "commands may reach example.org, through the broker"),
        ("[lanes.net]\nnetwork = 'none'", "can be reached in lane heavy only"),
        (
            "[lanes.net]\nnetwork = 'none'\n[lanes.heavy]\nnetwork = 'none'",
            "warning: no lane has the broker, so nothing can reach example.org",
        ),
    ],
)
def test_what_commands_may_reach_is_what_their_lane_has(
    program: Program, tmp_path: Path, table: str, said: str
) -> None:
    """The hosts that were named are promised only where the broker is."""
    file = tmp_path / "my.toml"
    file.write_text(table)
    calls = tmp_path / "calls"
    calls.touch()
    words = ("--worktree", str(program.worktree), "--config", str(file), "--calls", str(calls))
    _, _, err = program.run("run", *words, "--egress", "example.org")
    assert said in err, err


def test_what_is_known_of_the_engine_is_told_by_the_first_command_only(program: Program) -> None:
    """A1: `call` and `run` say notices by one rule, once a day what is the engine's."""
    _, out, _ = program.run("doctor", "--json")
    about_engine = json.loads(out)["capabilities"]["engine_notices"]
    command = ("call", "run_command", '{"command": "true"}', "--worktree", str(program.worktree))
    _, _, first = program.run(*command)
    _, _, second = program.run(*command)
    _, _, third = program.run("run", "--worktree", str(program.worktree))
    for text in about_engine:
        assert [text in said for said in (first, second, third)] == [True, False, False]


def test_configuration_never_comes_from_the_worktree(program: Program) -> None:
    """A catalog that lies in the worktree has no say, even when it is the working directory."""
    for name in ("catalog.toml", "config.toml", ".executor.toml"):
        (program.worktree / name).write_text("[tools.glob]\nenabled = false\n")
    process = subprocess.run(
        [sys.executable, "-m", "executor", "tools"],
        cwd=program.worktree,
        env=program.environment,
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    assert "glob" in [tool["name"] for tool in json.loads(process.stdout)]


def test_a_question_about_code_is_shown_with_its_operation() -> None:
    """A person who looks on sees what was asked, not of which file alone."""
    asked = Call("1", "lsp", {"operation": "find_references", "path": "a.py", "line": 3})
    assert render_tool_use(asked) == "lsp find_references a.py"
