"""What a command line runs, reads and writes: tables, and a comparison with bash itself."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.shell import Script, Simple, analyse, installed_program, program_of
from tests.fuzzing import cases
from tests.shell_lines import Lines, Trial, is_one_of


def words(line: str) -> list[tuple[str | None, ...]]:
    """The words of each command of a line that is understood."""
    script = analyse(line)
    assert script.fault is None, script.fault
    return [command.words for command in script.commands]


def programs(script: Script) -> list[str | None]:
    """Names of the programs of a line."""
    return [program_of(command.words) for command in script.commands]


def is_allowed(line: str, program: str) -> bool:
    """What a rule that allows every call of one program has to say about a line."""
    script = analyse(line)

    def speaks_of(command: Simple) -> bool:
        named = installed_program(command.words) == program and not command.alters
        return named and not command.writes

    return script.fault is None and all(map(speaks_of, script.commands))


# ─── casebook K 87: an allow rule and the rest of the line ──────────────────────────


@pytest.mark.parametrize("rest", ["", " -la", " -la 'a;b'", ' "a && rm b"', " a\\;b", " # ; rm"])
def test_what_only_looks_like_a_second_command_is_an_argument(rest: str) -> None:
    """Separators in quotes, behind a backslash or in a comment separate nothing."""
    assert is_allowed("ls" + rest, "ls")


@pytest.mark.parametrize(
    "line",
    [
        *("ls; rm -rf x", "ls && rm x", "ls | sh", "ls || rm x", "ls & rm x", "ls > f", "lsof"),
        *("ls $(rm x)", "ls <(rm x)", "ls\nrm x", "ls |& rm x", "ls `rm x`", 'ls "$(rm x)"'),
        *("ls >(rm x)", "ls >> f", "ls &> f", "ls 2> f", "ls >| f", "ls ${x:-$(rm x)}"),
        *("LD_PRELOAD=./x ls", "PATH=. ls", "PATH=.; ls", "./ls", "/workspace/ls", "$x ls"),
        *("ls &\nrm x", "if ls; then rm x; fi", "(ls; rm x)", "{ ls; rm x; }"),
        *("ls <<E\n$(rm x)\nE", "ls <<< $(rm x)", "for i in $(rm x); do ls; done"),
        *("while ls; do rm x; done", "case $(rm x) in a) ls;; esac", "case a in a) rm x;; esac"),
        *("[[ -f $(rm x) ]] && ls", "ls() { rm x; }; ls", "time rm ls", "ls $((`rm x`))"),
        *("a=$(rm x) ls", "a=(1 $(rm x)); ls", "ls $'\\n'; rm x", "! rm ls", "ls\u200b"),
        *("l\u200bs", "alias ls=rm\nls", "exec rm ls", "ls $[`rm x`]", 'ls "${x/a/$(rm x)}"'),
        *("ls;\\\nrm x",),
    ],
)  # fmt: skip
def test_a_rule_for_the_first_word_does_not_let_the_rest_through(line: str) -> None:
    """Whatever else runs, is written or is altered on the line has to be allowed as well."""
    assert not is_allowed(line, "ls")


# ─── casebook K 89, 90 and row 63: what only reads ──────────────────────────────────

READING = [
    *("ls", "ls -la 'a;b'", "cat a b | head -5", "head -n 5 x", "tail -f log", "grep -rn foo ."),
    *("rg x", "rg -n 'a|b' src -g '*.py'", "find . -name '*.py'", "which python", "pwd", "echo hi"),
    *("find . -type f -name '*.py' | wc -l", r"find src \( -name a -o -name b \) -print0"),
    *("find . -name x -print0 | xargs -0 grep -l foo", "find . -exec cat {} +", "printenv", "env"),
    *("date", "date +%s", "date -u", "whoami", "hostname", "uname -a", "wc -l f", "stat f"),
    *("file f", "du -sh .", "df -h", "git status", "git status -s", "git log --oneline -5"),
    *("git diff --stat", "git diff HEAD~1 -- src/a.py", "git show HEAD:file", "git branch"),
    *("git branch -a", "git blame f", "git branch --list 'x*'", "git --no-pager log -p"),
    *("git rev-parse HEAD", "git remote -v", "git tag", "git grep x"),
    *("git log -S foo --since=yesterday", "git stash list", "git ls-files", "sort f"),
    *("sort -u f | uniq -c | sort -rn", "sort ./*.txt", "sed -n 1p f", "sed -n '10,20p' f"),
    *("sed -n '/foo/,/bar/p' f", "sed 's/a/b/g' f", "sed -n -e '1{p;q}' f", "cut -d: -f1 f"),
    *("tr a b < f", "diff -u a b", "cmp a b", "comm a b", "jq . f", "jq -r '.a.b' f", "tree -L 2"),
    *("nl f", "od -c f", "awk '{print $1}' f", "awk -F: 'NR==1{print $2}' f", "sha256sum f"),
    *("md5sum f", "ps aux", "id", "realpath x", "readlink -f x", "basename a/b", "dirname a/b"),
    *("seq 3", "rev f", "tac f", "fold f", "cd src && ls", "(cd src; ls)", "ls 2>/dev/null"),
    *("ls 2>&1 | head", "ls &> /dev/null", "! ls", "for f in *.py; do wc -l \"$f\"; done"),
    *("if [ -f x ]; then cat x; fi", "[[ -f x ]] && cat x", "test -d src && echo yes"),
    *("x=1; echo $x", "while IFS= read -r l; do echo \"$l\"; done < f", "timeout 5 ls", "nice ls"),
    *("command -v python", "type ls", "LC_ALL=C sort f", "sh -c 'ls'", "bash -c 'cat x | grep y'"),
    *("cat <<'E'\n$(rm x)\nE", "cat <<< hi", "echo $(pwd) $((1+2))", "printf '%s\\n' a", "time ls"),
    *("set -euo pipefail; ls", "xargs -n1 echo < f", "cat \"$HOME/x\""),
    *("i=0; while [ $i -lt 5 ]; do echo $i; i=$((i+1)); done", "cat ~/y $PWD/z", "true || false"),
    *(":", "diff <(sort a) <(sort b)", "case $x in a|b) ls;; esac", "echo `date`", "/bin/ls"),
    *("# nothing",),
]  # fmt: skip

NOT_READING = [
    *("git log --output=f", "git log --outp=f", "git diff --output f", "git show HEAD > f"),
    *("git push", "git branch -D b", "git branch new", "git branch -m a"),
    *("git -c core.pager='sh -c x' log", "git -C /other status", "git grep -Oless x"),
    *("git grep --open-files-in-pager=x y", "git stash", "git archive -o f HEAD"),
    *("git diff --ext-diff", "git --exec-path=. status", "git --git-dir=x log"),
    *("git log -p --ext-diff", "git tag v1", "git remote add a b", "git config a b"),
    *("git checkout x", "git diff -O x --no-index a b", "git $x", "git log $x"),
    *("git status --porcelain $x", "git -p log", "find . -exec rm {} +", "find . -delete"),
    *("find . -fprint f", "find . -fprintf f x", "find . -fls f", "find . -okdir rm {} \\;"),
    *("find . -ok rm {} \\;", "find . -execdir rm {} \\;", "find $x"),
    *("find . -name x -exec sh -c 'rm $1' _ {} \\;", "find . -files0-from f"),
    *("find . -newermtX y -bogus", "rg --pre ./p x", "rg --pre=./p x", "rg --hostname-bin x y"),
    *("rg -z x", "rg --search-zip x", "rg $x", "sort -o f g", "sort f -of", "sort --output=f g"),
    *("sort --outp=f g", "sort --compress-program=x f", "sort -T . f", "sort *", "sort $x"),
    *("sort -uof g", "uniq a b", "uniq *", "tree -o f", "tree -R -H . ", "sed -n '1w f' g"),
    *("sed -i s/a/b/ f", "sed -n -i p f", "sed -ni p f", "sed 's/a/b/w f' g", "sed 's/a/b/e' g"),
    *("sed '1e rm' f", "sed -f s f", "sed 'r x' f", "sed --in-place p f", "sed 'W f' g"),
    *("sed -n '/a/{p;w f\n}' g", "sed -s -e p -e 'w f' g", "sed \"$x\" f", "sed '1!e' f"),
    *("sed 'y/a/b/;e' f", "awk '{print > \"f\"}' f", "awk 'BEGIN{system(\"rm x\")}'"),
    *("awk '{print | \"sh\"}' f", "awk -f s f", "awk '\"rm x\" | getline' f", "awk \"$x\" f"),
    *("jq -f s f", "jq 'import \"x\" as x; .' f", "diff -l a b", "xargs rm", "xargs rm < l"),
    *("xargs unknown", "xargs -I{} sh -c 'rm {}'", "tar --to-command=sh", "tar xf a", "date -s x"),
    *("date 01010000", "date --set=x", "hostname x", "hostname -F f", "env A=b", "env A=b ls"),
    *("env LD_PRELOAD=./x ls", "env -S 'rm x'", "file -C", "file -m x f", "printf -v x y"),
    *("hexdump -f x", "LD_PRELOAD=./x ls", "PATH=. ls", "PATH=.; ls", "export PATH=.; ls"),
    *("GIT_EXTERNAL_DIFF=x git diff", "IFS=x ls", "RIPGREP_CONFIG_PATH=x rg y", "PAGER=x git log"),
    *("LESSOPEN=x ls", "FOO=1 ls", "BASH_ENV=x bash -c ls", "ls() { rm x; }; ls", "alias ls=rm"),
    *("./ls", "/tmp/ls", "$x", '"$x" a', "ls\u200b", "source x", ". x", 'eval "$x"', "exec ls > f"),
    *("ls > /dev/tcp/a/1", "cat < /dev/tcp/a/1", "sudo ls", "bash x.sh", "bash", "sh -s < f"),
    *("bash -lc ls", "curl x", "python -c 1", "cargo build", "npm run x", "make", "tee f"),
    *("cp a b", "ls > f", "ls >> f", "> f", "ls >& f", "ls &>> f", "ls 2> f", "coproc ls"),
    *("less f", "more f", "man ls", "watch ls", "strace ls", "nohup ls", "parallel ls"),
    *("history -w f", "fc -s", "mapfile -C 'rm x' a", "read -e x", "enable -f ./x y"),
    *("trap 'rm x' EXIT", "ls; unknown", "cat f | unknown", "kill 1", "python --version"),
    *("set -o history", "shopt -s extglob"),
]  # fmt: skip


@pytest.mark.parametrize("line", READING)
def test_reading_is_seen_as_reading(line: str) -> None:
    """These lines change nothing, and everything that they run is known."""
    script = analyse(line)
    assert script.fault is None
    assert script.is_read_only, [c.words for c in script.commands if not c.is_read_only]
    assert script.writes == frozenset()


@pytest.mark.parametrize("line", NOT_READING)
def test_what_may_write_or_run_something_is_not_reading(line: str) -> None:
    """An option, a redirect, a variable or an unknown program makes a line more than reading."""
    assert not analyse(line).is_read_only


@pytest.mark.parametrize(
    "program", sorted({line.split()[0] for line in READING if line.split()[0].isalnum()} - {"x"})
)
@pytest.mark.parametrize("place", ["{} > f", "{} 2>> f", "{}; rm f", "LD_AUDIT=x {}", "{} | tee f"])
def test_no_program_reads_only_in_such_a_place(place: str, program: str) -> None:
    """Whatever reads only stops to do so when its line writes."""
    assert not analyse(place.format(program)).is_read_only


# ─── casebook K 91: a deny rule and what stands before ──────────────────────────────

WRAPPED = [
    *("rm x", "FOO=1 rm x", "/bin/rm x", "\\rm x", "'r'm x", 'r""m x', "$'\\x72m' x", "r\\\nm x"),
    *("timeout 5 rm x", "timeout -k 1 -s KILL 5 rm x", "timeout --signal=9 5 rm x"),
    *("timeout $t rm x", "env -i rm x", "env - rm x", "env A=b rm x", "env -u A -C d rm x"),
    *("env -- rm x", "env --odd rm x", "nice rm x", "nice -n 5 rm x", "nice -5 rm x"),
    *("nice --adjustment=5 rm x", "ionice -c 3 rm x", "command rm x", "command -p rm x"),
    *("builtin command rm x", "exec rm x", "exec -a ls rm x", "nohup rm x", "stdbuf -oL rm x"),
    *("setsid rm x", "time rm x", "time -p rm x", "time A=1 rm x", "sudo rm x"),
    *("sudo -u root rm x", "sudo A=1 rm x", "doas rm x", "chroot / rm x", "taskset 1 rm x"),
    *("sh -c 'rm x'", "bash -c 'rm x'", "bash -euo pipefail -c 'rm x'", "bash -lc 'rm x'"),
    *("dash -ec 'rm x'", 'sh -c "sh -c \'rm x\'"', "busybox rm x", "busybox sh -c 'rm x'"),
    *("toybox rm x", "eval rm x", "eval 'rm x'", 'eval "ls; rm x"', "trap 'rm x' EXIT"),
    *("xargs rm < l", "xargs -n 1 rm", "xargs -I@ rm @", "find . -exec rm {} +"),
    *("find . -exec rm {} \\;", "find . -execdir sh -c 'rm x' \\;", "timeout 5 env nice sudo rm x"),
    *("watch rm x", "watch 'rm x'", "su -c 'rm x'", "script -c 'rm x' f", "flock l rm x"),
    *("flock l -c 'rm x'", "strace -f rm x", "unshare -r rm x", "parallel rm ::: x"),
    *("bash <<E\nrm x\nE", "bash <<'E'\nrm x\nE", "sh <<< 'rm x'", "mapfile -C 'rm x' a", "{rm,x}"),
]  # fmt: skip


@pytest.mark.parametrize("line", WRAPPED)
def test_a_program_is_found_behind_what_stands_before_it(line: str) -> None:
    """Prefixes, quotes and wrappers do not hide which program runs, or nothing is sure."""
    script = analyse(line)
    assert script.fault is not None or "rm" in programs(script)


PLACES = [
    *("ls; {}", "ls && {}", "ls || {}", "ls | {}", "ls |& {}", "ls & {}", "ls\n{}", "{} &", "! {}"),
    *("({})", "{{ {}; }}", "$({})", '"$({})"', "`{}`", "ls <({})", "ls >({})", "x=$({})"),
    *("x=(1 $({}))", "if {}; then ls; fi", "if ls; then {}; fi", "if ls; then ls; else {}; fi"),
    *("time {}", "ls > $({})", "if ls; then ls; elif {}; then ls; fi", "while {}; do ls; done"),
    *("until ls; do {}; done", "for i in 1; do {}; done", "for i in $({}); do ls; done"),
    *("for ((i=0;i<1;i++)); do {}; done", "select i in 1; do {}; done", "case a in a) {};; esac"),
    *("case $({}) in a) ls;; esac", "f() {{ {}; }}", "case a in $({})) ls;; esac"),
    *("function f {{ {}; }}", "f() ( {} )", "[[ -f $({}) ]]", '[ "$({})" ]', "ls <<E\n$({})\nE"),
    *("ls <<< $({})", "ls ${{x:-$({})}}", 'ls "${{x:=$({})}}"', "cat <<E | {}\na\nE"),
    *("cat <<E && {}\na\nE", "cat <<'E'\na\nE\n{}", "ls # c\n{}", "ls \\\n; {}", "export x=$({})"),
    *("x=1; {}", 'ls "a $(ls "$({})")"', "sh -c '{}'", "cat <<-'E'\n\ta\n\tE\n{}", "ls 2>&1 | {}"),
    *("{} > f", "> f {}"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_program_is_found_wherever_it_stands(place: str) -> None:
    """Every place of the grammar where a command can run is looked into."""
    assert ("rm", "x") in words(place.format("rm x"))


def test_words_of_a_command_stay_together() -> None:
    """`git push` is found with its options in any position."""
    assert ("git", "push", "origin", "main", "--force") in words(
        "x=1; git push origin main --force"
    )


# ─── words ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a b", ("a", "b")),
        ("'a b'", ("a b",)),
        ("'a'\"b\"c", ("abc",)),
        ("a\\ b", ("a b",)),
        ('"a\\$b\\c"', ("a$b\\c",)),
        ('"a\\\nb"', ("ab",)),
        ("a \\\n b", ("a", "b")),
        ("$'a\\tb\\x41\\101\\u00e9\\''", ("a\tbAAé'",)),
        ('$"a"', ("a",)),
        ("''", ("",)),
        ("a#b", ("a#b",)),
        ("{a,b}c", ("ac", "bc")),
        ("{a,b}{c,d}", ("ac", "ad", "bc", "bd")),
        ("{a} {} a{,b}", ("{a}", "{}", "a", "ab")),
        ('"{a,b}"', ("{a,b}",)),
        ("~/x ~ '~'", ("/home/sandbox/x", "/home/sandbox", "~")),
        ("a~ \"\"~ x=~", ("a~", "~", "x=~")),
        ("$HOME/x \"$PWD/y\" ${PWD}", ("/home/sandbox/x", "/workspace/y", "/workspace")),
        ("$x", (None,)),
        ("\"$x\"", (None,)),
        ("a$x", (None,)),
        ("*.py", (None,)),
        ("'*.py' \\*", ("*.py", "*")),
        ("[", ("[",)),
        ("{1..3}", (None,)),
        ("$((1+2))", (None,)),
        ("$(a)", (None,)),
        ("<(a)", (None,)),
        ("$ a$ \"$\"", ("$", "a$", "$")),
        ("é\udcff", ("é\udcff",)),
        ("x=1 --a=b", ("x=1", "--a=b")),
        ("a\u200bb", ("a\u200bb",)),
    ],
)  # fmt: skip
def test_words_are_what_the_shell_would_make_of_them(
    text: str, expected: tuple[str | None, ...]
) -> None:
    """Quotes, escapes, braces and tilde are resolved; what only a run can tell is None."""
    assert ("c", *expected) in words("c " + text)


@pytest.mark.parametrize(
    "line",
    ["$x a", "r$y a", '"$(a)" b', "`a` b", "* a", "r*m a", "~/bin/$x", "ls${IFS}a", "{1..3} a"],
)
def test_a_program_that_is_made_as_it_runs_is_not_known(line: str) -> None:
    """A program's name from an expansion or a glob is None."""
    assert None in [command.words[0] for command in analyse(line).commands if command.words]


@pytest.mark.parametrize(
    "given, name, installed",
    [
        (("rm", "x"), "rm", "rm"),
        (("/bin/rm",), "rm", "rm"),
        (("/usr/local/bin/rm",), "rm", "rm"),
        (("./rm",), "rm", None),
        (("/tmp/rm",), "rm", None),
        (("bin/rm",), "rm", None),
        ((None, "rm"), None, None),
        ((), None, None),
        (("",), None, None),
        (("a/",), None, None),
        (("rm\u200b",), None, None),
        (("\u202erm",), None, None),
        (("r\x07m",), None, None),
    ],
)
def test_a_program_has_a_name_unless_it_hides(
    given: tuple[str | None, ...], name: str | None, installed: str | None
) -> None:
    """Forbidding goes by the name in any directory, allowing only where an image has it."""
    assert program_of(given) == name
    assert installed_program(given) == installed


def test_assignments_are_told_by_name() -> None:
    """What is set before a command is told, and what of it may alter the command."""
    (command,) = analyse("FOO=1 LC_ALL=C x+=2 ls").commands
    assert command.assignments == ("FOO", "LC_ALL", "x")
    assert command.alters == ("FOO", "x")
    assert [c.assignments for c in analyse("PATH=.; ls").commands] == [("PATH",), ()]


# ─── what is read and written ───────────────────────────────────────────────────────

W = "/workspace"


@pytest.mark.parametrize(
    "line, reads, writes",
    [
        ("cat a b", {"a", "b"}, set()),
        ("cat ./a ../x /etc/p b/../.env", {"a", "/x", "/etc/p", ".env"}, set()),
        ("cat $PWD/.env ~/k \"$HOME/l\"", {".env", "/home/sandbox/k", "/home/sandbox/l"}, set()),
        ("cat '.en'v", {".env"}, set()),
        ("cat < a > b", {"a"}, {"b"}),
        ("ls 2> e >> o &> /dev/null", {""}, {"e", "o"}),
        ("echo a >| b >& c", set(), {"b", "c"}),
        ("echo a >&2 2>&1 3>&- <&0", set(), set()),
        ("> f", set(), {"f"}),
        ("{ a=1; echo; } > f 2> g", set(), {"f", "g"}),
        ("while read x; do echo; done < in > out", {"in"}, {"out"}),
        ("cat <<E > f\nx\nE", set(), {"f"}),
        ("echo $(< f)", {"f"}, set()),
        ("cat src/*.py", {"src"}, set()),
        ("cat *", {""}, set()),
        ("cat src/a{1..3}.py", {"src"}, set()),
        ("cat {a,b}.c", {"a.c", "b.c"}, set()),
        ("cat $x", None, set()),
        ("cat src/$x", None, set()),
        ("cat */../../x", None, set()),
        ("cat ~root/x", None, set()),
        ("grep -rn p src t", {"src", "t"}, set()),
        ("grep -r p", {""}, set()),
        ("grep -e p -f l a", {"l", "a"}, set()),
        ("rg p", {""}, set()),
        ("rg -g '*.py' p src", {"src"}, set()),
        ("head -n 3 a", {"a"}, set()),
        ("sort -k 2 a", {"a"}, set()),
        ("sed -n 1p a", {"a"}, set()),
        ("sed -i s/a/b/ f g", {"f", "g"}, {"f", "g"}),
        ("awk '{print}' f x=1", {"f"}, set()),
        ("jq .a f", {"f"}, set()),
        ("cp -r a b d", {"a", "b", "d"}, {"d"}),
        ("cp -t d a b", {"a", "b", "d"}, {"d"}),
        ("mv a b", {"a", "b"}, {"a", "b"}),
        ("rm -rf a b/c", {"a", "b/c"}, {"a", "b/c"}),
        ("rm -f *.pyc", {""}, {""}),
        ("rm -- -a", {"-a"}, {"-a"}),
        ("rm $x", None, None),
        ("rm --odd a", None, None),
        ("mkdir -p a/b", {"a/b"}, {"a/b"}),
        ("touch -r x a", {"x", "a"}, {"a"}),
        ("tee -a f < g", {"f", "g"}, {"f"}),
        ("chmod 644 f", {"f"}, {"f"}),
        ("ln -s a b", {"a", "b"}, {"b"}),
        ("dd if=a of=b bs=1", {"a"}, {"b"}),
        ("tar czf a.tgz src", {"src"}, {"a.tgz"}),
        ("tar xf a.tar -C d", {"a.tar"}, {"d"}),
        ("find src -name x", {"src"}, set()),
        ("find src -delete", {"src"}, {"src"}),
        ("find src -exec cat {} +", {"src"}, set()),
        ("find src -exec rm {} \\;", {"src"}, {"src"}),
        ("diff a b", {"a", "b"}, set()),
        ("diff <(cat a) <(cat b)", {"a", "b"}, set()),
        ("git status", {""}, set()),
        ("pytest", None, None),
        ("./cat a", None, None),
        ("echo hi", set(), set()),
        ("[ -f a ] && [[ b -nt c ]]", {"a", "b", "c"}, set()),
        ("xargs rm", None, None),
        ("env -C d cat a", {"d/a"}, set()),
        ("sh -c 'cat a > b'", {"a"}, {"b"}),
        ("LD_PRELOAD=x cat a", None, None),
        ("echo a > $x", set(), None),
    ],
)  # fmt: skip
def test_operands_are_known(line: str, reads: set[str] | None, writes: set[str] | None) -> None:
    """What a line reads and writes, as absolute paths; None where it can't be told."""
    script = analyse(line)
    assert script.fault is None

    def absolute(paths: set[str] | None) -> set[str] | None:
        if paths is None:
            return None
        return {path if path[:1] == "/" else f"{W}/{path}".rstrip("/") for path in paths}

    assert script.reads == absolute(reads)
    assert script.writes == absolute(writes)


@pytest.mark.parametrize("line", ["ls", "find . -name x", "stat .", "du .", "git status", "tree"])
def test_names_are_told_from_contents(line: str) -> None:
    """Of what is only listed no contents are seen, so a rule about contents says nothing."""
    script = analyse(line)
    assert (script.reads, script.lists) == (frozenset({W}), frozenset({W}))
    assert analyse(line + "; cat x; grep -r y").lists == frozenset()


@pytest.mark.parametrize(
    "line, reads, moves",
    [
        ("cd a && cat b", {"a/b"}, True),
        ("cd a && cat b; cat c", {"a/b", "a/c", "c"}, True),
        ("cd a || exit 1\ncat b", {"a/b"}, True),
        ("cd a || cat b", {"b"}, True),
        ("(cd a && cat b); cat c", {"a/b", "c"}, False),
        ("cd a | cat b", {"b"}, False),
        ("cd a & cat b", {"b"}, False),
        ("x=$(cd a && cat b); cat c", {"a/b", "c"}, False),
        ("sh -c 'cd a && cat b'; cat c", {"a/b", "c"}, False),
        ("eval 'cd a' && cat b", {"a/b"}, True),
        ("command cd a && cat b", {"a/b"}, True),
        ("cd /x && cat b", {"/x/b"}, True),
        ("cd a/../c && cat b", {"c/b"}, True),
        ("if cd a; then cat b; fi", {"a/b", "b"}, True),
        ("cd && cat b", None, True),
        ("cd - && cat b", None, True),
        ("cd $x && cat b", None, True),
        ("pushd a; cat b", None, True),
        ("while true; do cd a; cat b; done", None, True),
        ("f() { cd a; }; f; cat b", None, True),
        ("f() { cd a; }; (f); cat b", None, False),
        ("source x; cat b", None, True),
        ("eval \"$x\"; cat b", None, True),
        ("env cd a; cat b", {"b"}, True),
        ("CDPATH=/; cd a && cat b", None, True),
        ("HOME=/x; cat ~/b", None, False),
        ("read PWD; cat $PWD/b", None, False),
        ("cat b", {"b"}, False),
    ],
)  # fmt: skip
def test_operands_are_seen_from_where_the_shell_is(
    line: str, reads: set[str] | None, moves: bool
) -> None:
    """`cd` moves what follows, as far as it is sure to; the shell's own end is told."""
    script = analyse(line)
    assert script.fault is None
    assert script.changes_directory is moves
    expected = reads and {path if path[0] == "/" else f"{W}/{path}" for path in reads}
    assert script.reads == expected


def test_the_start_is_the_callers() -> None:
    """Relative operands are seen from the directory, and `~` from the home, that are given."""
    assert analyse("cat a ~/b", "/workspace/d", "/h").reads == frozenset({"/workspace/d/a", "/h/b"})
    assert analyse("cat ~/b", "/workspace", None).reads is None


# ─── what is not understood ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "line",
    [
        *("ls (", "ls )", "if ls", "ls |", "'a", '"a', "`a", "$(a", "${a", "a && ", "ls\r"),
        *("ls\r\nrm x", "ls\0", "\ud800", "ls " + "a" * 200_000, "(" * 200 + "ls" + ")" * 200),
        *("$(" * 200 + "ls" + ")" * 200, "ls;" * 1500, "echo " + "{a,b}" * 10),
        *("coproc rm x", "time { rm x; }", "! { rm x; }", "cat <<A <<B\nA\nB\n", "cat <<E\nx"),
        *("alias a=b", "shopt -s extglob\nls !(a)", "hash -p ./x ls", "BASH_ENV=x"),
        *("export PS4='$(rm x)'", "ls a\\\nb\\\n", "echo `a \\`b\\``", "x=$y; echo $((x))"),
        *("read x; echo $((x+1))", "echo $(($1))", "echo $((a[$(rm x)]))", "[[ $x -eq 1 ]]"),
        *("test -v 'a[$(rm x)]'", "printf -v 'a[$(rm x)]' y", "unset 'a[$(rm x)]'"),
        *("declare -n a=b", "echo ${!x}", "echo ${x@P}", "let x=1", "compgen -W '$(rm)'"),
        *("BASH_CMDS[ls]=/bin/rm; ls", "exec {x}>f", "cat <<E\na\\\nE\nE", "set -o posix"),
        *("declare -i x=y", "sh -c 'ls ('", "eval 'if'", "sh -c \"ls \\$'a'\"", "sh -c 'ls &> f'"),
        *("a() { ls; } b", "ls\\", "ls # a\\\r", "ls\u2028("),
        "for i in; do ls; done; )",
    ],
)  # fmt: skip
def test_what_cannot_be_told_for_sure_is_not_understood(line: str) -> None:
    """A reason is given, nothing is claimed about the line, and the caller has to ask."""
    script = analyse(line)
    assert script.fault
    assert (script.reads, script.writes, script.is_read_only) == (None, None, False)
    assert script.changes_directory


@pytest.mark.parametrize(
    "line",
    [
        *(
            "ls &> f",
            "ls |& cat",
            "cat <<< x",
            "cat <(ls)",
            "echo $'a\\'; rm x; echo \\''",
            "x+=1 ls",
        ),
        *("[[ -f x ]]", "((x))", "x=(a)", "a[1]=2 ls", "function f { ls; }", 'echo $"a"'),
    ],
)
def test_another_shell_reads_another_language(line: str) -> None:
    """What only bash knows is not understood where another shell will read it, `sh` included."""
    assert analyse(line).fault is None
    assert analyse(line, posix=True).fault
    assert analyse("sh -c '" + line.replace("'", "'\\''") + "'").fault
    assert analyse("sh -c 'ls {a,b}'").commands[-1].words == ("ls", None)


@pytest.mark.parametrize("line", ["", " \n ", "# only a comment"])
def test_an_empty_line_runs_nothing(line: str) -> None:
    """Nothing is run, read or written."""
    assert analyse(line) == Script((), None, False, frozenset(), frozenset(), True)


def test_a_line_that_is_not_understood_tells_what_was_found() -> None:
    """A rule that forbids still finds its program on the part that is clear."""
    script = analyse("rm x; coproc ls")
    assert script.fault and "rm" in programs(script)


@pytest.mark.parametrize(
    "text",
    [
        "python3 - <<'E' | head -5\nprint('$(x)')\nE\necho",
        "git commit -m \"$(cat <<'E'\na (b\nE\n)\"",
    ],
)
def test_here_documents_of_everyday_use_are_understood(text: str) -> None:
    """A quoted delimiter makes the text plain, whatever is in it."""
    assert analyse(text).fault is None


# ─── bash itself ────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A directory of stubs, for all cases."""
    return Trial(tmp_path_factory.mktemp("trial"))


@pytest.mark.fuzz
@cases(200)
@given(chance=st.randoms(use_true_random=False))
def test_what_bash_runs_was_foretold(trial: Trial, chance: random.Random) -> None:
    """Every program that ran and every file that changed is among what was said, or nothing was."""
    compare(trial, Lines(chance).line())


FOUND = [
    *(
        'b ""~ ~""',
        "q 2&> fa",
        "[[= -n x && c ]]",
        "time x=1 =\\;",
        "b <&-E",
        "b 2>& --c",
        "f 0>&-x",
        '!";"b',
    ),
    *("z=(a b)ls b", "x=(a b)#c\nb", "{}", "a\n{}", "d 1\\\n>2", "q $PWD{a,b}b", "q {a,$HOME}y"),
    *(
        "q {,b}",
        "q ''{,b}",
        "ex\\\n=c q",
        "eval f --  ' '",
        "b >& %'$(rm)'",
        "b >& '`rm`'",
        "r\\\nm x",
    ),
    *("cat <<E arg\nx\nE\nb", "b > fa c > fb d", "a && b > fa", "a | b 2>&1 | c > fa", "env - b"),
    *(
        "x='a[$(rm)]'; b $((x))",
        "x='a[$(rm)]'; [[ x -eq 1 ]]",
        "test -v 'a[$(rm)]'",
        "b $[1]",
        "sh -c 'rm {a,b}'",
        "sh -c 'x+=1 b'",
    ),
    *("((a); (b))", "( (a); b )", "a=1 if b", "$'r\\x6d' x", 'b "`rm x`"', "if\\\n a; then b; fi"),
    *("a() { b; }; a() { c; }; a", "trap 'rm x' EXIT; exit", "IFS=m; x=amb; $x", "b # c\\\nrm x"),
    *("cat <<E\n\\$(rm)\n\\\\$(rm x)\nE", "cat <<'E'\n$(rm)\nE", "cat <<E | sh\nrm x\nE"),
    *("env x[1]=1 b", "$x timeout 5 b", "$x $y b"),
    *("x=rm; $x y", 'set -- rm x; "$@"', "b ${x:=$(rm)}", "for x in rm; do $x y; done", "{rm,x}"),
    *(
        "echo a | while read x; do rm $x; done",
        "b 'a'\"b\"$'c'",
        'b $"a"',
        "b a#b",
        "exec b",
        "b;:",
    ),
    *("trap exit EXIT; b > fa", "x='a[$(rm)]'; RANDOM=$x", "read RANDOM <<< 'a[$(rm)]'"),
    *('export "OPTIND=a[\\$(rm)]"', "time cd a && b > fb", "mapfile -C exit -c 1 x <<< a; b > fa"),
]
"""Where the grammar or the first version of this differed from bash."""


@pytest.mark.parametrize("line", FOUND)
def test_bash_runs_what_is_found_where_it_once_was_not(trial: Trial, line: str) -> None:
    """The same for lines that were found to be read in another way."""
    compare(trial, line)


@pytest.mark.parametrize("place", PLACES)
def test_bash_runs_what_is_found_in_each_place(trial: Trial, place: str) -> None:
    """The same for the places of a command that the tables know."""
    compare(trial, place.format("rm x"))


@pytest.mark.parametrize(
    "line",
    [
        line
        for line in WRAPPED
        if line.split()[0] in ("env", "timeout", "nice", "sh", "bash", "xargs")
    ],
)
def test_bash_runs_what_is_found_behind_wrappers(trial: Trial, line: str) -> None:
    """The same for wrappers."""
    compare(trial, line)


def compare(trial: Trial, line: str) -> None:
    """Whether what is said about a line holds when bash runs it."""
    work = str(trial.work)
    script = analyse(line, work, work)
    if script.fault is not None or len(line) > 1000:
        return
    ran = trial.run(line)
    for program in ran.programs:
        if program[0] in ("id", "stub"):
            continue  # of the machine's own profile
        assert any(is_one_of(program, command.words) for command in script.commands), (
            line,
            program,
        )
        if script.is_read_only:
            assert program[0] in ("ls", "cat", "false"), (line, program)
    if script.writes is not None:
        unsaid = [
            path
            for path in ran.changed
            if not any(path == known or path.startswith(known + "/") for known in script.writes)
        ]
        assert not unsaid, line
    if not script.changes_directory:
        assert ran.ended_in in (None, work), line


def test_the_comparison_sees_what_runs(trial: Trial) -> None:
    """A program, a change and a move are seen when they happen."""
    ran = trial.run("rm 'a b'; unknown; echo > new; cd a")
    assert ran.programs == {("rm", "a b"), ("unknown",)}
    assert ran.changed == {str(trial.work / "new")}
    assert ran.ended_in == str(trial.work / "a")


# ─── bounds ─────────────────────────────────────────────────────────────────────────

GROWING = {
    "words": "ls" + " a" * 60,
    "commands": "ls a;" * 40,
    "pipes": "ls" + " | cat" * 40,
    "and": "ls" + " && cat a" * 40,
    "substitutions": "ls" + " $(cat a)" * 30,
    "quotes": "ls" + " 'a'\"b\"" * 40,
    "variables": "ls" + " $x" * 60,
    "redirects": "ls" + " > a" * 40,
    "braces": "ls" + " {a,b}" * 40,
    "plain here-document": "cat <<'E'\n" + "a $(x)\n" * 200 + "E\n",
    "here-document": "cat <<E\n" + "a $x\n" * 60 + "E\n",
    "brackets": "ls " + "[" * 300,
    "globs": "ls " + "*" * 300,
    "sed": "sed '" + "p;" * 100 + "' f",
    "sed blanks": "sed '" + " " * 300 + "x y' f",
    "find": "find ." + " -name a" * 60,
    "exec": "find ." + " -exec cat {} \\;" * 30,
    "arithmetic": "echo $((" + "1+" * 60 + "1))",
    "case": "case x in " + "a) ls;; " * 30 + "esac",
    "functions": "".join(f"f{n}() {{ ls; }}; " for n in range(30)),
    "directories": "cd a;" * 40,
    "loops": "for i in a; do ls; done;" * 20,
}
"""Lines that can be repeated or grow in one place."""


def work_of(line: str) -> int:
    """How many calls of Python functions the judging takes."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        analyse.__wrapped__(line)
    finally:
        sys.setprofile(None)
    return calls


def grown(name: str, factor: int) -> str:
    """The line with its repeated part so many times as long."""
    line = GROWING[name]
    unit = max(
        (line[at : at + size] for size in range(1, 30) for at in range(min(len(line) - size, 40))),
        key=lambda part: (line.count(part) * len(part) if part * 3 in line else 0, -len(part)),
    )
    at = line.index(unit * 3)
    return line[:at] + unit * (line.count(unit) * (factor - 1)) + line[at:]


@pytest.mark.parametrize("name", sorted(set(GROWING) - {"functions"}))
def test_work_grows_with_the_length_and_no_faster(name: str) -> None:
    """Twice the length takes about twice the calls."""
    line, longer = grown(name, 2), grown(name, 4)
    assert len(longer) > 1.7 * len(line)
    assert work_of(longer) <= 2.3 * work_of(line) + 500


HUGE = {
    **{mark: mark * 15_000 for mark in ("(", "{ ", "$(", "$((", "`", '"', "<(", "if ", "[[ ")},
    **{mark: mark * 8_000 for mark in ("a|", "a&&", "<<A ", "> a ", "f(){ ", "case a in ")},
    **{mark: mark * 8_000 + "ls" for mark in ("env ", "eval ", "timeout 5 ", "xargs ", "sudo ")},
    **{mark: "ls " + mark * 9_000 for mark in ("$x", "{a,b}", "'a'", "*", "~", "[", "{a,")},
    "mixed": "\"'`$(<<{[" * 10_000,
    "text": "cat <<'E'\n" + "a $(b\n" * 15_000 + "E\n",
    "open text": "cat <<E\n" + "a $b\n" * 15_000 + "E\n",
    "word": "a" * 120_000,
}  # fmt: skip


@pytest.mark.parametrize("name", HUGE)
def test_very_long_lines_take_a_bounded_amount_of_work(name: str) -> None:
    """Lines of tens of thousands of parts are judged, or given up, within fixed bounds."""
    assert work_of(HUGE[name]) < 600_000


@pytest.mark.parametrize("text", ["ls " * 80_000, "'" + "a" * 250_000 + "'", "é" * 100_000])
def test_what_the_kernel_would_not_take_is_not_even_parsed(text: str) -> None:
    """A text longer than the longest argument is given up at once."""
    assert work_of(text) < 100
    assert "longer" in (analyse(text).fault or "")


@pytest.mark.parametrize("depth", [5, 100, 5000])
@pytest.mark.parametrize(
    "opening, closing",
    [("(", ")"), ("$(", ")"), ("{ ", "; }"), ('"$(', ')"'), ("if ", "; then ls; fi"), ("x=", "")],
)
def test_depth_never_exhausts_the_stack(opening: str, closing: str, depth: int) -> None:
    """Nesting is understood to a depth, and beyond that the line is not."""
    script = analyse(opening * depth + "ls" + closing * depth)
    assert depth == 5 or script.fault or opening == "x="


def test_a_long_chain_is_not_deep() -> None:
    """`a && b && …` nests in the grammar, but not for the shell."""
    assert len(analyse(" && ".join(["ls"] * 900)).commands) == 900


@cases(1000)
@given(text=st.text(st.sampled_from("ab \n;&|()<>{}[]$`\"'\\#!=*?~-1EFé\u200b\udcff"), max_size=60))
def test_any_text_gets_an_answer(text: str) -> None:
    """No text raises, and what is not understood claims nothing."""
    script = analyse(text)
    assert script.fault is None or not script.is_read_only
