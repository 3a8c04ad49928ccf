"""Made-up command lines, and what really runs when bash is given one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("a", "b", "c", "ls", "rm", "cat", "false")
WRAPPERS = ("env", "timeout", "nice", "xargs", "find", "sh", "bash")


class Lines:
    """Makes command lines from a grammar; half of them are then spoilt a little.

    No slash is made but in `/dev/null`, so that nothing outside the directory is touched.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def line(self) -> str:
        """One line, or several."""
        text = self._sequence(self._of(0, 1, 1, 2))
        return self._spoilt(text) if self._chance.random() < 0.4 else text

    def _of(self, *choices: object) -> object:
        return self._chance.choice(choices)

    def _text(self, *choices: str) -> str:
        return self._chance.choice(choices)

    def _blank(self) -> str:
        return self._text(" ", " ", "  ", "\t", " \\\n ")

    def _word(self, depth: object) -> str:
        count = self._chance.choice((1, 1, 1, 2))
        return "".join(self._piece(int(str(depth))) for _ in range(count))

    def _piece(self, depth: int) -> str:
        kind = self._chance.randrange(12)
        if kind < 5:
            plain = ("a", "b1", "-x", "--", "x=1", "{a,b}", "{}", "*", "?", "[a]", "~", "=", "#")
            return self._text(*plain, "!", "1", "a.b", "{1..3}", "[", "]", "%", "^")
        if kind < 7:
            return "'" + self._text("", " ", ";", "$(rm)", '"', "\\", "\n") + "'"
        if kind < 8:
            inner = ("a", " ", ";", "'", '\\"', "\\$", "$x", "$", "`ls`", self._expansion(depth))
            return '"' + "".join(self._text(*inner) for _ in range(2)) + '"'
        if kind < 9:
            return "\\" + self._text("a", " ", "$", '"', "'", "\n", ";", "#")
        if kind < 10:
            return self._text("$'\\n'", "$'\\x41'", "$'\\''", '$"a"')
        return self._expansion(depth)

    def _expansion(self, depth: int) -> str:
        plain = ("$x", "$HOME", "$PWD", "$1", "$@", "$#", "${x}", "${x:-a}", "${#x}", "${x%b}")
        counted = ("$((1))", "$((x+1))", "$((1<<2))", "${x:1}", "${x/a/b}", "${x:=a}")
        if depth and self._chance.random() < 0.4:
            opening, closing = self._chance.choice((("$(", ")"), ("`", "`"), ("<(", ")")))
            return opening + self._sequence(0 if opening == "`" else depth - 1) + closing
        return self._text(*plain, *counted)

    def _redirect(self) -> str:
        operator = self._text(">", ">>", ">|", "<", ">&", "<&", "<<<", "&>", "2>", "2>&")
        return operator + self._text("", " ") + self._text("fa", "fb", "1", "-", '"f c"', "$x")

    def _simple(self, depth: int) -> str:
        if depth and self._chance.random() < 0.15:
            return self._wrapped(depth)
        words: list[str] = []
        while self._chance.random() < 0.2:
            words.append(self._text("x=", "y=1", "FOO=a", "x=$(ls)", "z=(a b)", self._redirect()))
        odd = ("r\\m", "'r'm", '"ls"', "$x", "time ls", "! rm", "command rm", "eval rm", "cd", "[")
        words.append(self._text(*NAMES, *NAMES, *odd, self._word(depth)))
        for _ in range(self._chance.randrange(4)):
            is_word = self._chance.random() < 0.8
            words.append(self._word(depth) if is_word else self._redirect())
        if "[" in words:
            words.append("]")
        return self._blank().join(words)

    def _wrapped(self, depth: int) -> str:
        inner, text = self._simple(0), "'" + self._sequence(0).replace("'", "'\\''") + "'"
        return self._text(
            f"env {self._text('', '-i', '-u x', 'A=b', '-', '-C .', '--')} {inner}",
            f"timeout {self._text('5', '-k 1 5', '-s KILL 5', '$x')} {inner}",
            f"nice {self._text('', '-n 5', '-5', '--adjustment=5')} {inner}",
            f"{self._text('sh', 'bash', 'bash -e', 'bash -euo pipefail')} -c {text}",
            f"eval {text}",
            f"trap {text} EXIT",
            f"bash <<< {text}",
            f"a | xargs {self._text('', '-n 1', '-I {}', '-r')} {inner} {{}}",
            f"find . {self._text('-exec', '-execdir')} {self._text(*NAMES)} {{}} \\;",
        )

    def _here(self, depth: int) -> str:
        delimiter = self._text("E", "'E'", '"E"', "\\E")
        lines = ("a\n", "$x\n", "$(rm x)\n", "`ls`\n", "'\n", "\tE\n", "E \n", "\\$x\n", "<<F\n")
        body = "".join(self._text(*lines) for _ in range(self._chance.randrange(3)))
        head = self._text("cat", "bash", "while read x; do b; done", "{ a; b; }", "a && b", "")
        tail = self._text("", "", " | b", " > fa", " && b", " arg", " | b > fb && c")
        return f"{head} {self._text('<<', '<<-')}{delimiter}{tail}\n{body}E\n"

    def _compound(self, depth: int) -> str:
        inner = [self._sequence(depth - 1) for _ in range(3)]
        end = self._text(";", "\n")
        return self._text(
            f"if {inner[0]}{end} then {inner[1]}{end} else {inner[2]}{end} fi",
            f"while false{end} do {inner[0]}{end} done",
            f"for x in {self._word(0)} 1{end} do {inner[0]}{end} done",
            f"( {inner[0]} )",
            f"{{ {inner[0]}{end} }}",
            f"case {self._word(0)} in a|'b') {inner[0]} ;; *) {inner[1]} ;; esac",
            f"{self._text('g', 'ls')}() {{ {inner[0]}{end} }}",
            f"(( {self._text('x', 'x=1', '1 > 2', '1<<2')} ))",
            f"[[ {self._text('-f fa', 'a == b', 'a < b', '-n $x && c', '$x -eq 1')} ]]",
            f"for ((i=0;i<2;i++)); do {inner[0]}; done",
            f"(({inner[0]}))",
            f"time {{ {inner[0]}; }}",
        )

    def _sequence(self, depth: object) -> str:
        level = int(str(depth))
        made: list[str] = []
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            kind = self._chance.random()
            if level and kind < 0.25:
                made.append(self._compound(level))
            else:
                made.append(self._here(level) if kind < 0.3 else self._simple(level))
        ends = (";", "&&", "||", "|", "&", "\n", "|&", " # c\n", "; ")
        return "".join(part + self._text(*ends) for part in made[:-1]) + made[-1]

    def _spoilt(self, text: str) -> str:
        marks = (
            *";&|()<>{}[]$`\"'\\ \n\t#!=*?~-1",
            "$(",
            "))",
            "((",
            "${",
            "<<",
            "\\\n",
            "fi",
            "do ",
        )
        for _ in range(self._chance.choice((1, 1, 2, 3))):
            at = self._chance.randrange(len(text) + 1)
            gone = self._chance.choice((0, 1))
            text = text[:at] + self._chance.choice((*marks, "")) + text[at + gone :]
        return text


# ─── what bash makes of one ─────────────────────────────────────────────────────────

_STUB = """#!/bin/sh
line=$(printf '%s\\001' "${0##*/}" "$@"; printf '\\002')
printf %s "$line" >> "$LOG"
echo out
[ "${0##*/}" != false ]
"""
_MISSING = '() { local l; l=$(printf "%s\\001" "$@"; printf "\\002"); printf %s "$l" >>"$LOG"; }'
_START = "unset BASH_ENV\ntrap 'builtin pwd > \"$AT_END\"' EXIT\n"


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a line.

    Attributes:
        programs: arguments of all that was started, the program's name first.
        changed: paths of files that are not as they were.
        ended_in: directory; None = not known.
    """

    programs: frozenset[tuple[str, ...]]
    changed: frozenset[str]
    ended_in: str | None


@dataclass(slots=True)
class Trial:
    """A directory in which lines are run, every program in it being a stub that takes notes."""

    root: Path
    work: Path = field(init=False)

    def __post_init__(self) -> None:
        self.work = self.root / "work"
        programs = self.root / "bin"
        programs.mkdir()
        stub = programs / "stub"
        stub.write_text(_STUB)
        stub.chmod(0o755)
        for name in NAMES:
            (programs / name).symlink_to("stub")
        for name in WRAPPERS:
            found = shutil.which(name)
            assert found is not None, f"the trial needs {name}"
            (programs / name).symlink_to(found)
        (self.root / "start").write_text(_START)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": str(self.root / "bin"),
            "HOME": str(self.work),
            "LOG": str(self.root / "log"),
            "AT_END": str(self.root / "end"),
            "BASH_ENV": str(self.root / "start"),
            "BASH_FUNC_command_not_found_handle%%": _MISSING,
            "FUNCNEST": "5",
            "LANG": "C.UTF-8",
        }

    def run(self, line: str) -> Ran:
        """Run a line to its end, or for a second."""
        shutil.rmtree(self.work, ignore_errors=True)
        (self.work / "b1").mkdir(parents=True)
        (self.work / "a").mkdir()
        for name in ("fa", "a.b"):
            (self.work / name).write_text("1\n")
        for name in ("log", "end"):
            (self.root / name).unlink(missing_ok=True)
        before = self._state()
        self._start(line)
        after = self._state()
        changed = {
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        }
        end = self.root / "end"
        return Ran(
            frozenset(self._programs()),
            frozenset(changed),
            end.read_text().rstrip("\n") or None if end.exists() else None,
        )

    def _start(self, line: str) -> None:
        process = subprocess.Popen(
            ["bash", "-c", line],
            env=self._environment(),
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _programs(self) -> list[tuple[str, ...]]:
        log = self.root / "log"
        if not log.exists():
            return []
        records = log.read_text("utf-8", "surrogateescape").split("\2")[:-1]
        return [tuple(record.split("\1")[:-1]) for record in records]

    def _state(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for directory, _, files in os.walk(self.work):
            for name in files:
                path = os.path.join(directory, name)
                state = os.lstat(path)
                found[path] = (state.st_mode, state.st_size, state.st_mtime_ns, state.st_ino)
        return found


def is_one_of(program: Sequence[str], words: Sequence[str | None]) -> bool:
    """Whether a program's arguments are what these words may become.

    None may become any number of words.
    """
    ends = {0}
    for word in words:
        if word is None:
            ends = {later for end in ends for later in range(end, len(program) + 1)}
        else:
            ends = {end + 1 for end in ends if end < len(program) and program[end] == word}
    return len(program) in ends
