"""Casebook F at the agent: how commands start, print and end. Over both transports."""

from __future__ import annotations

import os
import re
import time

import pytest

from executor.agent.commands import one_program
from executor.errors import Code, ToolError
from tests.driver import ARGUMENTS, Box


def test_exit_codes_and_silence_are_told_as_they_are(box: Box) -> None:
    """Casebook F60: a silent command answers at once, with empty streams and its own code."""
    for command, code in (("true", 0), ("exit 1", 1), ("exit 7", 7)):
        ran = box.run(command)
        assert (ran.code, ran.out, ran.err) == (code, b"", b"")
    assert box.run("echo e >&2").err == b"e\n"


def test_two_hundred_commands_keep_their_codes_among_orphans(box: Box) -> None:
    """Statement I12: 200 of 200 exit codes are right while orphans end beside them."""
    codes = [
        box.run(f"for i in 1 2; do (setsid sh -c 'exit 3' &) ; done; exit {n % 256}").code
        for n in range(200)
    ]
    assert codes == [n % 256 for n in range(200)]


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60 & echo hi",
        "(while :; do echo n; sleep .1; done) & echo hi",
        "setsid sleep 60 & echo hi",
        "nohup python3 -m http.server 8123 & echo hi",
    ],
)
def test_a_background_child_never_keeps_the_call_open(box: Box, command: str) -> None:
    """Casebook F45: the call ends with its shell, whoever still holds its output."""
    begun = time.monotonic()
    ran = box.run(command)
    assert ran.code == 0
    assert b"hi\n" in ran.out
    assert time.monotonic() - begun < 10, "the child ends only after a minute"


def test_a_background_child_lives_on_and_may_go_on_printing(box: Box) -> None:
    """Casebook F45 and G65: a background process outlives its call and its output pipe."""
    box.run("(i=0; while :; do i=$((i+1)); echo $i; echo $i > beat; sleep .05; done) & echo ok")
    box.run("until [ -s beat ] && [ $(cat beat) -gt 5 ]; do sleep .05; done")


def test_a_timeout_ends_the_whole_tree(box: Box) -> None:
    """Casebook F47 and statement I10: nothing of a timed out command runs on."""
    box.run("touch before; mkdir -p kept; echo kept > kept/file")
    ran = box.run("sleep 998 & setsid sleep 998 & nohup sleep 998 & (sleep 4; touch PROOF)", 0.5)
    assert ran.value["timed_out"]
    assert box.run(f"{ARGUMENTS} | grep -c 'sleep 99[8]'").out == b"0\n"
    assert not (box.root / "PROOF").exists()
    assert (box.root / "kept/file").read_text() == "kept\n"
    assert box.run("echo next").out == b"next\n"


def test_a_process_that_ignores_term_is_killed_after_the_grace(box: Box) -> None:
    """Statement I11: TERM, then KILL."""
    begun = time.monotonic()
    ran = box.run("trap '' TERM; while :; do sleep 0.1; done", 0.3, grace=0.3)
    assert ran.value["signal"] == "SIGKILL"
    assert time.monotonic() - begun < 10


def test_a_stopped_process_does_not_hold_up_the_timeout(box: Box) -> None:
    """Statement I11: a stopped process ends like any other."""
    assert box.run("kill -STOP $$", 0.3).value["timed_out"]


def test_bytes_that_are_no_text_come_back_exact(box: Box) -> None:
    """Casebook F48: the agent decodes nothing."""
    assert box.run(r"printf 'ok\xff\xfe\n'").out == b"ok\xff\xfe\n"
    ran = box.run("head -c 100000 /dev/urandom; exit 3", head=60_000, tail=60_000)
    assert (ran.code, len(ran.out)) == (3, 100_000)


@pytest.mark.parametrize(
    ("command", "out", "code"),
    [
        ("cat", b"", 0),
        ("read x; echo $?", b"1\n", 0),
        ("python3 -c 'input()'", b"", 1),
        ("[ -t 0 ]; echo $?", b"1\n", 0),
        ("[ -t 1 ]; echo $?", b"1\n", 0),
        (": < /dev/tty", b"", 1),
    ],
)
def test_nothing_is_on_the_input_and_there_is_no_terminal(
    box: Box, command: str, out: bytes, code: int
) -> None:
    """Casebook F50 and F51: programs that ask get the end of the input."""
    ran = box.run(command)
    assert (ran.out, ran.code) == (out, code)


def test_a_background_job_takes_nothing_from_later_commands(box: Box) -> None:
    """Casebook F62: commands share no input."""
    box.run("cat > /dev/null &")
    assert box.run("echo one").out + box.run("echo two").out == b"one\ntwo\n"


def test_bash_judges_the_syntax_itself(box: Box) -> None:
    """Casebook F53: no check before the shell's own; its message and code come through."""
    assert box.run("shopt -s extglob\nls !(zz) >/dev/null && echo y").out == b"y\n"
    ran = box.run("for i in 1; do")
    assert ran.code == 2
    assert b"syntax error" in ran.err


def test_a_syntax_error_shows_the_commands_own_line(box: Box) -> None:
    """What the agent puts before a command is seen neither in messages nor in line numbers."""
    ran = box.run("cd . )")
    assert ran.code == 2
    assert b"trap" not in ran.err
    assert b"`cd . )'" in ran.err
    assert b"line 1" in ran.err
    assert b"line 2" in box.run("cd .\nnope").err


def test_the_directory_lasts_and_variables_do_not(box: Box) -> None:
    """Casebook F55: `cd` is kept between calls, the environment is not."""
    box.run("mkdir -p d/e && cd d")
    assert box.run("pwd").out == f"{box_root(box)}/d\n".encode()
    box.run("cd 'e' ; false")
    assert box.run("pwd").out == f"{box_root(box)}/d/e\n".encode()
    assert box.run("cd nope").code == 1
    assert box.run("export V=1; pwd").out == f"{box_root(box)}/d/e\n".encode()
    assert box.run("echo ${V-unset}").out == b"unset\n"
    box.run(f"cd {box_root(box)}")


def box_root(box: Box) -> str:
    """The worktree as commands see it."""
    return "/workspace" if box.kind == "docker" else str(box.root)


def test_a_deleted_directory_leads_back_to_the_root_and_is_said(box: Box) -> None:
    """Casebook F55: the next command runs in the root and its result says so."""
    box.run("mkdir -p gone && cd gone")
    ran = box.run("rm -rf ../gone")
    assert ran.value["cwd"] == box_root(box)
    assert "deleted" in ran.value["notes"][0] or "no longer exists" in ran.value["notes"][0]
    box.run("mkdir -p gone2 && cd gone2")
    os.rmdir(box.root / "gone2")
    ran = box.run("pwd")
    assert ran.out == f"{box_root(box)}\n".encode()
    assert "no longer exists" in ran.value["notes"][0]


def test_leaving_the_worktree_lasts_for_one_call(box: Box) -> None:
    """Decisions row 30: outside is allowed within a call; the next one begins at the root."""
    ran = box.run("cd /; pwd")
    assert ran.out == b"/\n"
    assert ran.value["cwd"] == box_root(box)
    assert "outside the worktree" in ran.value["notes"][0]


def test_hidden_moves_are_seen(box: Box) -> None:
    """However a command changes the directory, the change is kept."""
    box.run("mkdir -p moved")
    for command in ("c'd' moved", 'eval "c"d moved', "X=cd; $X moved", "pushd moved >/dev/null"):
        assert box.run(command).value["cwd"] == f"{box_root(box)}/moved", command
        box.run(f"cd {box_root(box)}")


@pytest.mark.parametrize("prefix", ["set -x; ", "set -e; ", "set -u; ", "set -o noclobber; "])
def test_asking_for_the_directory_leaves_no_trace(box: Box, prefix: str) -> None:
    """Shell options of the command show nothing of how the directory is learnt."""
    ran = box.run(f"{prefix}cd .; echo 'x' ; exit 4")
    assert (ran.code, ran.out) == (4, b"x\n")
    assert b"pwd" not in ran.err
    assert b"trap" not in ran.err


def test_a_long_command_is_run(box: Box) -> None:
    """Casebook A19: what no argument list can hold goes by a file, which is gone afterwards."""
    assert box.run(": " + 200_000 * "x" + "; echo ok; exit 3").out == b"ok\n"
    assert box.run("echo '" + 120_000 * "y" + "' | wc -c").out == b"120001\n"


def test_a_script_gets_its_arguments_and_is_removed(box: Box) -> None:
    """Code of any size is handed over outside the worktree, never as an argument."""
    code = b"import sys\nprint(sys.argv[1:], __file__)\n" + b"#" * 500_000
    ran = box.run(None, argv=["python3"], script=".py", args=["a b", "--x"], body=code, cwd="")
    assert ran.out.startswith(b"['a b', '--x'] ")
    path = ran.out.split()[-1].decode()
    assert not path.startswith(box_root(box))
    assert box.run(f"ls {path}").code == 2


def test_a_script_imports_from_the_worktree(box: Box) -> None:
    """Python code finds the worktree's modules, as it would when it lay there."""
    (box.root / "neighbour.py").write_text("NAME = 'here'\n")
    code = b"import neighbour, os; print(neighbour.NAME, os.environ['PYTHONPATH'])"
    path = {"PYTHONPATH": "/p"}
    ran = box.run(None, argv=["python3"], script=".py", body=code, environment=path)
    assert ran.out == f"here {box_root(box)}:/p\n".encode()


def test_a_missing_program_is_named(box: Box) -> None:
    """A program that is not there is NOT_FOUND with its name; in a shell it is the shell's 127."""
    with pytest.raises(ToolError, match=r"nope-x: there is no such program") as caught:
        box.run(None, argv=["nope-x"])
    assert caught.value.code is Code.NOT_FOUND
    assert box.run("nope-x").code == 127


def test_merged_output_is_in_order(box: Box) -> None:
    """Casebook F59: one pipe for both streams keeps their order, 20 of 20 times."""
    loop = "for i in 1 2 3; do echo o$i; echo e$i >&2; done"
    for _ in range(20):
        assert box.run(loop, merge=True).out == b"o1\ne1\no2\ne2\no3\ne3\n"
    ran = box.run(loop)
    assert (ran.out, ran.err) == (b"o1\no2\no3\n", b"e1\ne2\ne3\n")


def test_a_flood_keeps_head_and_tail_and_is_counted(box: Box) -> None:
    """Casebook F57: 500 MB cost their counting; the end and the exit code are there."""
    ran = box.run("yes | head -c 500000000; echo END; exit 7", 120, head=1000, tail=1000)
    assert ran.code == 7
    assert ran.value["stdout"] == {"total": 500_000_004, "head": 1000, "tail": 1000}
    assert ran.out.startswith(b"y\ny\n")
    assert ran.out.endswith(b"y\nEND\n")
    assert box.run("yes", 0.5).value["timed_out"]


def test_live_output_comes_while_the_command_runs(box: Box) -> None:
    """Output is streamed on request; the result is whole all the same."""
    seen: list[tuple[str, bytes]] = []

    def take(channel: str, data: bytes) -> None:
        seen.append((channel, data))
        (box.root / "go").touch()

    command = "echo first; until [ -e go ]; do sleep .02; done; echo last >&2"
    future = box.start(command, on_output=take)
    ran = future.result(30)
    assert seen == [("stdout", b"first\n"), ("stderr", b"last\n")]
    assert (ran.out, ran.err) == (b"first\n", b"last\n")


def test_a_flood_of_live_output_never_holds_up_the_command(box: Box) -> None:
    """Back-pressure: live output is dropped rather than kept or waited for."""
    sizes: list[int] = []
    ran = box.run(
        "head -c 30000000 /dev/zero; echo END",
        head=100,
        tail=100,
        on_output=lambda channel, data: sizes.append(len(data)),
    )
    assert ran.value["stdout"]["total"] == 30_000_004
    assert ran.out.endswith(b"END\n")
    assert sum(sizes) <= 30_000_004


def test_many_calls_are_in_flight_at_once(box: Box) -> None:
    """Twenty commands that wait for each other all end: none blocks another."""
    box.run("rm -f gate.*")
    futures = [
        box.start(f"touch gate.{n}; until [ $(ls gate.* | wc -l) = 20 ]; do sleep .02; done")
        for n in range(20)
    ]
    assert [future.result(60).code for future in futures] == [0] * 20


def test_a_cancelled_call_ends_in_the_box_and_alone(box: Box) -> None:
    """Cancelling ends that command's tree; its neighbours go on."""
    box.run("rm -f up go")
    neighbour = box.start("until [ -e go ]; do sleep .02; done; echo fine")
    doomed = box.start("touch up; sleep 997 & sleep 997")
    box.run("until [ -e up ]; do sleep .02; done")
    doomed.cancel()
    box.run(f"while {ARGUMENTS} | grep -q 'sleep 99[7]'; do sleep .02; done; touch go")
    assert neighbour.result(30).out == b"fine\n"


def test_environment_of_a_call_is_added(box: Box) -> None:
    """A call's own variables come on top, the marker of the call last."""
    ran = box.run('echo "$A-$EXECUTOR_CALL-$PWD"', environment={"A": "b", "EXECUTOR_CALL": "x"})
    assert re.match(rb"b-[0-9a-z-]+-\d+-/", ran.out)


def test_commands_inherit_no_descriptor(box: Box) -> None:
    """Statement B15: a command has its three streams and nothing else of the agent."""
    ran = box.run(None, argv=["ls"], args=["-l", "/proc/self/fd"])
    numbers = [int(n) for n in re.findall(rb" (\d+) ->", ran.out)]
    assert numbers == [0, 1, 2, 3], ran.out  # 3 is the listing's own
    assert b"/dev/null" in ran.out


def test_default_signals_are_given_back(box: Box) -> None:
    """A command dies of a broken pipe as it does in any shell."""
    ran = box.run("yes | head -1; echo ${PIPESTATUS[0]}")
    assert ran.out == b"y\n141\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("true", ["true"]),
        ("ls -la  src/a.py", ["ls", "-la", "src/a.py"]),
        ("git log --format=oneline", ["git", "log", "--format=oneline"]),
        ("true x", None),
        ("cd x", None),
        ("echo hi", None),
        ("exit 1", None),
        ("A=b ls", None),
        ("ls; ls", None),
        ("ls\nls", None),
        ("ls *", None),
        ("ls ~", None),
        ("ls $A", None),
        ("ls 'a'", None),
        ("ls {a,b}", None),
        ("ls # x", None),
        ("! ls", None),
        ("ls &", None),
        (" ls", None),
        ("ls ", None),
        ("", None),
    ],
)
def test_a_shell_is_spared_only_where_it_adds_nothing(
    command: str, words: list[str] | None
) -> None:
    """Only plain words that start with no word of the shell are run without one."""
    assert one_program(command) == words


def test_running_without_a_shell_looks_like_running_with_one(box: Box) -> None:
    """Codes, messages, directory and scripts without a first line are as in a shell."""
    (box.root / "bin").mkdir()
    (box.root / "bin/plain").write_text("echo from $0 $1; exit 5\n")
    (box.root / "bin/plain").chmod(0o755)
    path = {"PATH": f"{box_root(box)}/bin:/usr/bin:/bin"}
    assert box.run("plain x", environment=path).code == 5
    missing = box.run("no-such-program x")
    assert missing.code == 127
    assert b"command not found" in missing.err
    assert box.run("sleep 30", 0.3).value["timed_out"]
    box.run("mkdir -p direct && cd direct")
    assert box.run("readlink /proc/self/cwd").out == f"{box_root(box)}/direct\n".encode()
    box.run(f"cd {box_root(box)}")
    hooked = {"BASH_FUNC_ls%%": "() { echo mine; }"}
    assert box.run("ls x", environment=hooked).out == b"mine\n"
