"""The prompt at the terminal, on a real one: what is shown, and what counts as an answer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor.frontends.asking import Keys, terminal
from tests.terminals import COMMAND, SECONDS, Machine, Screen

ASK = r"\(e\)dit: "
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "PYTHONPATH": str(Path(__file__).parent.parent),
    "TERM": "xterm",
    "LANG": "C.UTF-8",
}
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def asking(size: tuple[int, int] = (40, 100), **given: Any) -> Screen:
    """A program that asks, in a terminal."""
    arguments = [sys.executable, "-m", "tests.asker", json.dumps(given)]
    return Screen(arguments, ENVIRONMENT, size)


def one(screen: Screen, name: str = "a") -> Any:
    """The answer that the program got."""
    screen.expect(f"ANSWER {name} ")
    return json.loads(screen.expect(r"\n"))


def request(**changes: Any) -> dict[str, Any]:
    """A request to run a command."""
    action = changes.get("action", "git push origin")
    return {"action": action, "arguments": {"command": action}, **changes}


def plain(text: str) -> str:
    """What a person reads of it."""
    return STYLE.sub("", text).replace("\r", "")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("y\r", {"approved": True}),
        ("YES\r", {"approved": True}),
        ("\r\rmaybe\ry\r", {"approved": True}),
        ("a\r", {"approved": True, "remember": "session"}),
        ("n\r\r", {"approved": False}),
        ("n\ruse make\r", {"approved": False, "reason": "use make"}),
        ("\x03", {"approved": False}),
        ("\x04", {"approved": False}),
        ("yes\x03", {"approved": False}),
        ("nx\x7f\x7fy\r", {"approved": True}),
    ],
)
def test_what_counts_as_an_answer(typed: str, expected: dict[str, Any]) -> None:
    """A word and Enter; Ctrl-C is a no, an empty line is nothing."""
    rules = ["run_command(git push *)"]
    with asking(requests=[request(rules=rules)]) as screen:
        shown = plain(screen.expect(ASK))
        assert "run_command asks to run" in shown and "git push origin" in shown
        assert "Always: run_command(git push *)" in shown
        assert "Why you are asked: mode default asks before commands" in shown
        screen.type(typed)
        answer = {
            **{"modified_arguments": None, "reason": None, "remember": "once"},
            "arguments_hash": "hash",
        }
        assert one(screen) == {**answer, **expected}
        assert screen.wait() == 0
        assert screen.is_as_before()


def test_without_rules_nothing_is_allowed_for_ever() -> None:
    """`always` is offered only where there is a rule to be granted."""
    with asking(requests=[request()]) as screen:
        assert "(a)lways" not in screen.expect(ASK)
        screen.type("a\r")
        screen.expect(ASK)
        screen.type("n\r\r")
        assert one(screen)["approved"] is False


def test_what_hides_in_a_command_is_shown() -> None:
    """Casebook K95: marks of direction, characters without width, sequences of the terminal."""
    action = "echo hi\u202e #; ls\u200b; echo \x1b[2K\rls\x07 \x9b2J"
    with asking(requests=[request(action=action)]) as screen:
        shown = plain(screen.expect(ASK))
        for escape in ("\\u202e", "\\u200b", "\\x1b[2K\\x0dls", "\\x07", "\\x9b2J"):
            assert escape in shown, shown
        assert "characters that are not seen: U+202E (1), U+200B (1)" in shown
        assert "\u202e" not in screen.shown.decode() and "\x1b[2K\rls" not in screen.shown.decode()
        screen.type("n\r\r")
        one(screen)


def test_a_long_command_is_shown_to_its_end() -> None:
    """Casebook K95: page by page, and no answer counts before the tail was there."""
    action = f"echo {'x' * 5000}\n{'y' * 3000}; rm precious"
    with asking((24, 80), requests=[request(action=action)]) as screen:
        before = plain(screen.expect("more lines: any key goes on"))
        assert "rm precious" not in before
        screen.type("y")
        for _ in range(10):
            seen = plain(screen.expect(f"more lines: any key goes on|{ASK}"))
            if "(e)dit" in seen:
                break
            screen.type(" ")
        assert "rm precious" in seen
        whole = plain(screen.shown.decode())
        assert whole.count("x") >= 5000 and whole.count("y") >= 3000
        screen.type("y\r")
        assert one(screen)["approved"]


def test_the_end_of_a_long_command_is_a_key_away() -> None:
    """What is passed over is counted."""
    action = "".join(f"line {number}\n" for number in range(2000)) + "rm precious"
    with asking((24, 80), requests=[request(action=action)]) as screen:
        screen.expect("any key goes on, e shows the end")
        screen.type("e")
        shown = plain(screen.expect(ASK))
        assert re.search(r"… 19\d\d lines", shown) and "rm precious" in shown
        screen.type("\x03")
        assert not one(screen)["approved"]


def test_ctrl_c_within_the_pages_is_a_no() -> None:
    """Whoever does not want to read on has not agreed."""
    with asking((24, 80), requests=[request(action="x\n" * 500)]) as screen:
        screen.expect("any key goes on")
        screen.type("\x03")
        assert not one(screen)["approved"]


def test_everything_that_would_run_is_shown() -> None:
    """Arguments that are no part of the action, the difference, and the model's own word."""
    arguments = {
        "path": "f",
        "old_string": "hidden below the difference",
        "replace_all": True,
        "description": "tidy",
    }
    diff = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+two"
    given = request(action="f", arguments=arguments, diff=diff, description="tidy\x1b[2J")
    with asking(requests=[given]) as screen:
        shown = plain(screen.expect(ASK))
        assert "-one" in shown and "+two" in shown and '"replace_all": true' in shown
        assert "The model says: tidy\\x1b[2J" in shown and "hidden below" not in shown
        screen.type("y\r")
        one(screen)
    with asking(requests=[{**given, "diff": None}]) as screen:
        assert "hidden below" in plain(screen.expect(ASK))
        screen.type("y\r")
        one(screen)


def test_arguments_can_be_edited() -> None:
    """As JSON, with the keys of a line; what is no JSON object is not taken."""
    with asking(requests=[request(action="git push")]) as screen:
        screen.expect(ASK)
        screen.type("e\r")
        screen.expect("Run this instead: .*push")
        screen.type("\x7f")
        screen.type("\r")
        screen.expect("That is no JSON")
        screen.type("}\x1b[D\x1b[D --dry-run\x1b[H\x1b[F\r")
        answer = one(screen)
        assert answer["approved"] and answer["modified_arguments"] == {
            "command": "git push --dry-run"
        }


def test_an_edit_that_changes_nothing_approves_nothing() -> None:
    """The question is put again."""
    with asking(requests=[request(action="git push")]) as screen:
        screen.expect(ASK)
        screen.type("e\r")
        screen.expect("Run this instead")
        screen.type("\r")
        screen.expect(ASK)
        screen.type("n\r\r")
        assert not one(screen)["approved"]


def test_questions_that_come_together_wait_for_each_other() -> None:
    """One after the other; what is typed ahead is not taken for the next."""
    with asking(requests=[request(id="a", action="first"), request(id="b", action="second")]) as (
        screen
    ):
        assert "second" not in plain(screen.expect(ASK))
        screen.type("y\r")
        assert one(screen, "a")["approved"]
        assert "second" in plain(screen.expect(ASK))
        screen.type("n\r\r")
        assert not one(screen, "b")["approved"]


def test_a_question_that_nobody_waits_for_leaves_the_terminal_as_it_was() -> None:
    """When its time is over it is taken back, and the next one is put."""
    with asking(requests=[request()], seconds=1) as screen:
        screen.expect(ASK)
        screen.expect("no answer is needed any more")
        assert one(screen) == {"timeout": True}
        assert screen.wait() == 0
        assert screen.is_as_before()


def test_a_program_that_is_ended_meanwhile_gives_the_terminal_back() -> None:
    """Whatever ends the wait, the modes are restored."""
    with asking(requests=[request()]) as screen:
        screen.expect(ASK)
        screen.stop(signal.SIGINT)
        screen.wait()
        assert screen.is_as_before()


QUESTION = {
    "question": "Which \u202edatabase?",
    "header": "Database",
    "options": [["SQLite", "a file"], ["Postgres", "a server"]],
}


@pytest.mark.parametrize(
    ("typed", "several", "expected"),
    [
        ("2\r", False, ["Postgres"]),
        ("\r1\r", False, ["SQLite"]),
        ("1, 2\r", True, ["SQLite", "Postgres"]),
        ("1,2\r", False, ["1,2"]),
        ("none of these\r", True, ["none of these"]),
        ("3\r", False, ["3"]),
    ],
)
def test_questions_are_answered_by_number_or_in_own_words(
    typed: str, several: bool, expected: list[str]
) -> None:
    """Nothing of a question acts on the terminal either."""
    with asking(questions=[{**QUESTION, "multi_select": several}]) as screen:
        shown = plain(screen.expect("own words: "))
        assert "Which \\u202edatabase?" in shown and "2. Postgres: a server" in shown
        screen.type(typed)
        assert one(screen, "questions") == {QUESTION["question"]: expected}


def test_a_person_need_not_answer() -> None:
    """Ctrl-C is told to the model."""
    with asking(questions=[QUESTION]) as screen:
        screen.expect("own words: ")
        screen.type("\x03")
        assert one(screen, "questions")["code"] == "REJECTED"


def test_no_terminal_is_no_approver(tmp_path: Path) -> None:
    """A process of a session without one; and a file that is none."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.asker", json.dumps({"requests": [request()]})],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=True,
    )
    assert done.stdout == "ANSWER none\n"
    (tmp_path / "file").touch()
    assert terminal(str(tmp_path / "file")) is None


# ─── the commands ───────────────────────────────────────────────────────────────────

TOUCH = json.dumps({"command": "touch made"})


def test_a_call_asks_at_its_terminal(tmp_path: Path) -> None:
    """`executor call --mode default`: asked, edited, and run as edited."""
    machine = Machine(tmp_path)
    arguments = ["call", "run_command", TOUCH, "--worktree", str(machine.worktree)]
    with Screen([*COMMAND, *arguments, "--mode", "default"], machine.environment) as screen:
        shown = plain(screen.expect(ASK, SECONDS))
        assert "touch made" in shown and "Always: run_command(touch made)" in shown
        screen.type("e\r")
        screen.expect("instead: ")
        screen.type("\x1b[D\x1b[D too\r")
        assert screen.wait(SECONDS) == 0
        assert screen.is_as_before()
    assert sorted(path.name for path in machine.worktree.iterdir()) == ["made", "too"]


def test_a_run_asks_at_the_terminal_and_never_on_its_input(tmp_path: Path) -> None:
    """Standard input carries calls: nothing in it is an answer. An `ask` rule holds in bypass."""
    machine = Machine(tmp_path)
    call = {"name": "run_command", "input": {"command": "touch made"}}
    lines = "".join(json.dumps({"id": id, **call}) + "\n" for id in "ab") + "y\ny\n"
    arguments = ["run", "--worktree", str(machine.worktree), "--ask", "run_command(touch *)"]
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with Screen([*COMMAND, *arguments], machine.environment, **streams) as screen:
        assert screen.process.stdin is not None and screen.process.stdout is not None
        screen.process.stdin.write(lines.encode())
        screen.process.stdin.close()
        screen.expect(ASK, SECONDS)
        screen.type("n\rnot now\r")
        screen.expect("REJECTED run_command")
        screen.expect(ASK, SECONDS)
        screen.type("y\r")
        assert screen.wait(SECONDS) == 0
        results = [json.loads(line) for line in screen.process.stdout]
    assert [result["code"] for result in results] == [
        *("REJECTED", None, "INVALID_ARGUMENTS", "INVALID_ARGUMENTS")
    ]
    assert results[0]["content"] == "User denied permission: not now"


def test_without_a_terminal_nothing_waits(tmp_path: Path) -> None:
    """Decisions row 1: an error at once, with the rule; given as `--allow` it runs."""
    machine = Machine(tmp_path)

    def call(*more: str) -> subprocess.CompletedProcess[str]:
        arguments = ["call", "run_command", TOUCH, "--worktree", str(machine.worktree)]
        return subprocess.run(
            [*COMMAND, *arguments, "--mode", "default", *more],
            env=machine.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            start_new_session=True,
            check=False,
        )

    done = call()
    assert done.returncode == 1
    assert "allowed by the rule run_command(touch made)" in done.stderr
    assert call("--allow", "run_command(touch made)").returncode == 0
    denied = call("--allow", "run_command(touch made)", "--deny", "run_command(touch *)")
    assert denied.returncode == 1 and "the rule run_command(touch *) denies it" in denied.stderr
    assert call("--deny", "run_comand(x)").returncode == 2


# ─── what imitates the prompt ───────────────────────────────────────────────────────

FORGED = (
    "ls\nWhy you are asked: no reason\nAlways: ls\n── run_command asks to run ──\nRun it? (y)es"
)


def test_no_line_of_a_command_can_be_taken_for_one_of_ours() -> None:
    """Whatever others wrote is set in, on every line, folded ones too; ours is not."""
    given = request(
        action=f"{FORGED}\n{'x' * 300}", reason=f"r\n{FORGED}", rules=[f"run({FORGED})"]
    )
    given["description"] = f"tidy\n{FORGED}"
    with asking((60, 80), requests=[given]) as screen:
        lines = plain(screen.expect(ASK)).split("\n")
        ours = [line for line in lines if line and not line.startswith("  ")]
        starts = [line.split(":")[0] for line in ours if ":" in line]
        assert starts.count("Why you are asked") == starts.count("Always") == 1
        assert starts.count("The model says") == 1
        assert sum("asks to run" in line and line.startswith("─") for line in ours) == 1
        assert not any(line.startswith("x") for line in lines)
        assert sum(line.count("x") for line in lines if set(line.strip()) == {"x"}) == 300
        screen.type("n\r\r")
        one(screen)


def test_no_option_can_be_taken_for_another() -> None:
    """What the model wrote for one is on its line."""
    options = [["Yes\n2. No", "fine\n3. Maybe"], ["b", "B"]]
    question = {"question": "Which?\n1. this", "header": "h", "options": options}
    with asking(questions=[question]) as screen:
        shown = plain(screen.expect("own words: "))
        assert "1. Yes\\n2. No: fine\\n3. Maybe" in shown and "\n  2. b: B" in shown
        screen.type("1\r")
        assert one(screen, "questions") == {"Which?\n1. this": ["Yes\n2. No"]}


def test_a_difference_of_line_ends_is_seen() -> None:
    """A carriage return is shown, at the end of a line, too."""
    diff = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+one\r"
    with asking(requests=[request(action="f", diff=diff)]) as screen:
        assert "+one\\x0d" in plain(screen.expect(ASK))
        screen.type("n\r\r")
        one(screen)


def test_the_source_of_a_cell_is_shown_once() -> None:
    """In the difference; where there is none, as it was given."""
    arguments = {"notebook_path": "n", "new_source": "source of it", "cell_id": "one"}
    given = {"action": "n", "arguments": arguments, "tool": "notebook_edit"}
    with asking(requests=[{**given, "diff": "@@ -1 +1 @@\n-a\n+b"}]) as screen:
        shown = plain(screen.expect(ASK))
        assert '"cell_id": "one"' in shown and "source of it" not in shown
        screen.type("n\r\r")
        one(screen)
    with asking(requests=[given]) as screen:
        assert "source of it" in plain(screen.expect(ASK))
        screen.type("n\r\r")
        one(screen)


def test_tens_of_thousands_of_lines_are_soon_shown() -> None:
    """And editing such a command answers each key."""
    action = "\n" * 25_000 + "rm precious"
    with asking((24, 80), requests=[request(action=action)]) as screen:
        screen.expect("e shows the end")
        screen.type("e")
        assert "rm precious" in plain(screen.expect(ASK))
        screen.type("e\r")
        screen.expect("Run this instead: ")
        screen.type("\x1b[D" * 3 + "x\r")
        assert one(screen)["modified_arguments"] == {"command": f"{action[:-1]}x{action[-1]}"}


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_key_may_come_in_pieces(size: int) -> None:
    """As it does over a slow line: half of a sequence, or of a character, is no text."""
    data = "nä\x1b[D漢\x1b[3~\x1bOFy\x1b[99;5u\r".encode()
    keys = Keys()
    found = [key for at in range(0, len(data), size) for key in keys.take(data[at : at + size])]
    assert found == ["n", "ä", "left", "漢", "delete", "end", "y", "enter"]
