"""What modes and rules say about calls: casebook group K, and more of its kind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import toolsets
from executor.catalog import PACKAGED, load, parse
from executor.errors import AgentLost, Code, ConfigError, ToolError
from executor.loop import rules_of
from executor.model import Access, LoopSpec
from executor.permissions import (
    Hit,
    Judgement,
    Mode,
    Verdict,
    check_patterns,
    covers,
    hit,
    is_host,
    judge,
    parsed,
    restrictions,
)
from executor.rules import Command, Rules
from executor.session import Session
from executor.tool import (
    Action,
    Answer,
    Arguments,
    Contacts,
    Context,
    OnOutput,
    Outcome,
    RunsCommand,
    Text,
    Tool,
    Touches,
)
from tests.loops import Work, open_work
from tests.test_catalog import TEXT
from tests.test_pipeline import NoBox, surroundings

CATALOG = load()
REGISTRY = toolsets.registry("standard", CATALOG)
KNOWN = toolsets.names(CATALOG)
PROGRAMS = "/workspace/programs"
ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


class PlainBox(NoBox):
    """A worktree without links, of which nothing else can be asked."""

    async def ready(self) -> None:
        return None

    async def request(
        self,
        op: str,
        arguments: dict[str, Any],
        body: bytes = b"",
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Answer:
        assert op == "resolve"
        place: dict[str, Any] = {
            "state": "missing",
            "kind": None,
            "key": None,
            "shared": False,
            "links": [],
        }
        places = [{**place, "path": p, "own": p, "missing": p} for p in arguments["paths"]]
        return Replied({"places": places})


@dataclass(frozen=True)
class Replied:
    """An answer of an agent."""

    value: dict[str, Any]
    data: bytes = b""


def judged(
    tool: str | Tool, mode: Mode | str = Mode.DEFAULT, rules: Rules | None = None, **arguments: Any
) -> Judgement:
    """What is said about a call whose judgement asks nothing of a box."""
    found = REGISTRY.get(tool) if isinstance(tool, str) else tool
    assert found is not None
    loop = replace(surroundings(CATALOG), session=Session(), box=PlainBox())
    loop.session.mode = str(mode)
    loop.session.rules = rules or Rules()
    context = Context("1", found.entry, loop, tool=found.name)
    return asyncio.run(judge(found, found.parse(arguments), context))


def command(
    text: str,
    mode: Mode | str = Mode.DEFAULT,
    *,
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
) -> Verdict:
    """The verdict on a command line; rules are patterns of commands."""
    one, two, three = (
        [f"run_command({pattern})" for pattern in some] for some in (allow, ask, deny)
    )
    rules = Rules.parse(one, two, three, KNOWN)
    return judged("run_command", mode, rules, command=text).verdict


# ─── rules as texts ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("run_command(", "write Tool or Tool(pattern)"),
        ("run command", "write Tool or Tool(pattern)"),
        ("run_command()", "nothing in the brackets"),
        ("run_comand(ls)", "there is no tool 'run_comand'; did you mean run_command?"),
        ("zzz", "there is no tool 'zzz'; known: "),
        ("run_command(git * push)", "* stands only as the last word"),
        ("run_command(git pu*)", "* stands only as the last word"),
        ("run_command(FOO=1 ls)", "assignments have no rules"),
        ("run_command(ls 'a)", "a quote ' is never closed"),
        ("run_command(ls \\)", "single backslash"),
        ("grep(*.py)", "write read_file(…)"),
        ("run_code(a * b)", "* stands only"),
        ("read_file(domain:UPPER CASE)", "write a host as domain:example.org"),
        ("run_*", "only names of MCP tools may end with *"),
        ("mcp__x__*(a)", "no patterns"),
    ],
)
def test_a_text_that_is_no_rule_says_why(text: str, fault: str) -> None:
    """A bad rule is a fault of the configuration that names the rule and the mend."""
    with pytest.raises(ConfigError) as raised:
        Rules.parse(deny=[text], known=KNOWN)
    assert repr(text) in str(raised.value) and fault in str(raised.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("read_file(# x)", "is a comment"),
        ("edit_file(a[b)", "never closed"),
        ("read_file(/workspace/x)", "would mean workspace in the worktree"),
    ],
)
def test_a_pattern_of_paths_that_matches_nothing_is_a_fault(text: str, fault: str) -> None:
    """What would silently never deny anything is refused when the loop is opened."""
    with pytest.raises(ConfigError, match=fault):
        rules_of(LoopSpec(worktree=".", deny=(text,)), CATALOG)


def test_all_faults_of_all_lists_come_at_once() -> None:
    """Each with its list."""
    with pytest.raises(ConfigError) as raised:
        Rules.parse(["("], [")"], ["nope"], known=KNOWN)
    assert [fault.partition(":")[0] for fault in raised.value.faults] == ["allow", "ask", "deny"]


def test_rules_of_the_catalog_come_before_those_of_the_loop() -> None:
    """Both hold; names of the host's own tools are known, and names of every toolset."""
    catalog = parse([(PACKAGED, TEXT), ("my", '[permissions]\ndeny = ["run_command(rm *)"]\n')])
    tool = replace(host_tool([]), name="Deploy", canonical="deploy")
    spec = LoopSpec(worktree=".", deny=("deploy", "Deploy", "mcp__git__*"))
    rules = rules_of(spec, catalog, [tool])
    assert [rule.text for rule in rules.deny] == [
        *("run_command(rm *)", "deploy", "Deploy", "mcp__git__*"),
    ]


def test_a_prompt_whose_rules_are_none_is_a_fault() -> None:
    """What a plan would be granted is looked at before the loop is opened."""
    catalog = parse([(PACKAGED, TEXT), ("my", '[prompts]\n"x" = ["run_comand(ls *)"]\n')])
    with pytest.raises(ConfigError, match="did you mean run_command"):
        rules_of(LoopSpec(worktree="."), catalog)


def test_the_catalog_checks_its_rules() -> None:
    """Rules in the file that are none are faults of the file."""
    more = '[permissions]\nask = ["("]\n[prompts]\n"run tests" = ["run_command(a * b)"]\n'
    with pytest.raises(ConfigError) as raised:
        parse([(PACKAGED, TEXT), ("my", more)])
    assert [fault[: fault.index(" is")] for fault in raised.value.faults] == [
        "my: permissions.ask: '('",
        "my: prompts.run tests: 'run_command(a * b)'",
    ]


def test_packaged_prompts_stand_for_rules() -> None:
    """`run tests` is known, whatever its case in the file, and allows pytest and no more."""
    rules = Rules.parse(CATALOG.prompts["run tests"], known=KNOWN)
    for text, verdict in (
        ("pytest -x tests", ALLOW),
        ("python -m pytest", ALLOW),
        ("npm test", ALLOW),
        ("python -c 'import pytest'", ASK),
        ("python pytest -m x", ASK),
        ("npm install x", ASK),
    ):
        assert judged("run_command", rules=rules, command=text).verdict is verdict, text


# ─── patterns of commands ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["default", "acceptEdits"])
@pytest.mark.parametrize(
    "text",
    [
        *("ls; rm -xf x", "ls && rm x", "ls | sh", "ls || rm x", "ls & rm x", "ls > f", "lsof"),
        *("ls $(rm x)", "ls <(rm x)", "ls `rm x`", "ls\nrm x", "LD_PRELOAD=./x.so ls", "./ls"),
        *("if true; then rm x; fi", "ls 2> f", "ls(", "eval ls; rm x", "PATH=. ls"),
    ],
)
def test_an_allowed_program_lets_nothing_else_through(text: str, mode: str) -> None:
    """Casebook K87: one allowed command does not allow the line that it is in."""
    assert command(text, mode, allow=["ls", "ls *"]) is ASK


@pytest.mark.parametrize("text", ["ls -la 'a;b'", "ls", "ls 'x > y'", "ls > /dev/null 2>&1"])
def test_an_allowed_program_is_allowed(text: str) -> None:
    """Casebook K87: quoted separators are text."""
    assert command(text, allow=["ls *"]) is ALLOW


@pytest.mark.parametrize(
    "text",
    [
        *("git log --output=f", "git diff --output f", "git show HEAD > f", "git branch -D b"),
        *("git -c core.pager='sh -c x' log", "git -C /other status", "git grep -Oless x"),
        *("git archive -o f HEAD", "find . -exec rm {} +", "find . -delete"),
        *("find . -fprintf f x", "find . -okdir rm {} +", "rg --pre ./p x", "sort -o f g"),
        *("sed -n '1w f' g", "sed -i s/a/b/ f", "xargs rm", "tar --to-command=sh -xf x"),
    ],
)
def test_what_only_looks_like_reading_is_asked(text: str) -> None:
    """Casebook K89, K90: options that run or write."""
    assert command(text) is ASK


@pytest.mark.parametrize(
    "text",
    [
        *("git log --oneline -5", "git status", "git diff --stat", "find . -name '*.py'"),
        *("rg x", "sort f", "sed -n 1p f", "cat a | head -3", "ls && pwd"),
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_commands_that_only_read_need_no_rule(text: str, mode: Mode) -> None:
    """Casebook K89, K90: allowed in every mode, plan mode too."""
    assert command(text, mode) is ALLOW


RM = (
    *("rm x", "FOO=1 rm x", "/bin/rm x", "\\rm x", "'r'm x", "timeout 5 rm x", "env -i rm x"),
    *("nice rm x", "command rm x", "sh -c 'rm x'", "xargs rm < l", "busybox rm x"),
    *("ls; rm x", "true && rm x", "echo $(rm x)", "if true; then rm x; fi", "$X x", "r$Y x"),
    *("bash <<< 'rm x'", "eval 'rm x'", "find . -exec rm {} +", "env $X rm x", "rm", "rm\\\n x"),
)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("text", RM)
def test_a_denied_program_is_never_silently_allowed(text: str, mode: Mode) -> None:
    """Casebook K91: behind prefixes and wrappers, and where it can't be known."""
    verdict = command(text, mode, deny=["rm"])
    assert verdict is DENY if mode in (Mode.BYPASS, Mode.PLAN) else verdict in (DENY, ASK)


@pytest.mark.parametrize(
    "text", ["ls", "cat rm", "echo 'rm x'", "git rm-x", "python x.py", "rmdir"]
)
def test_a_denied_program_leaves_others_alone(text: str) -> None:
    """In mode bypass all else goes on without a question."""
    assert command(text, Mode.BYPASS, deny=["rm *"]) is ALLOW


@pytest.mark.parametrize(
    "text",
    [
        *(
            "git push origin main --force",
            "git push --force",
            "git push --forc",
            "git push -u x --force",
        ),
        *("git -C /x push --force", "git --no-pager push --force=yes", "git push $X", "git $X"),
    ],
)
def test_denied_options_are_found_in_any_position(text: str) -> None:
    """Shortened too, after others, and where a variable may hide them."""
    assert command(text, Mode.BYPASS, deny=["git push --force"]) is DENY


@pytest.mark.parametrize(
    "text", ["git push", "git push origin", "git log --force", "git commit -m push"]
)
def test_what_a_denied_option_is_not_about(text: str) -> None:
    """The rule names the subcommand and the option; both have to be there."""
    assert command(text, Mode.BYPASS, deny=["git push --force"]) is ALLOW


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("rm -rf", "rm -fr x", Hit.YES),
        ("rm -rf", "rm -r -f x", Hit.YES),
        ("rm -rf", "rm -r x", Hit.NO),
        ("rm -f", "rm -vf x", Hit.YES),
        ("find -delete", "find . -delete", Hit.YES),
        ("find -delete", "find . -depth", Hit.NO),
        ("git push", "git push -- x", Hit.YES),
        ("rm -f", "rm -- -f", Hit.NO),
        ("rm", "$X y", Hit.MAYBE),
        ("git push", "git $X", Hit.MAYBE),
        ("git push", "git log $X", Hit.NO),
        ("*", "anything at all", Hit.YES),
        ("/usr/bin/rm", "rm x", Hit.YES),
    ],
)
def test_what_a_rule_that_denies_means(pattern: str, text: str, expected: Hit) -> None:
    """Rather too much than too little: prefixes, clusters, other places of the program."""
    assert hit(Command.parse(pattern), parsed(text).commands[0]) is expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("git push *", "git push", True),
        ("git push *", "git push origin --force", True),
        ("git push", "git push origin", False),
        ("git push", "git push", True),
        ("git push *", "git --exec-path=x push", False),
        ("git push *", "git -C /x push", False),
        ("git push --force *", "git push origin --force", True),
        ("git push --force *", "git push origin", False),
        ("git push -u --tags", "git push --tags -u", True),
        ("python -m pytest *", "python -m pytest x", True),
        ("python -m pytest *", "python pytest -m x", False),
        ("ls *", "/bin/ls x", True),
        ("ls *", "./ls x", False),
        ("./run *", "./run x", True),
        ("ls *", "ls $X", True),
        ("git log *", "git $X", False),
        ("echo '*'", "echo '*'", True),
        ("echo 'a b' *", "echo 'a b' c", True),
        ("echo 'a b' *", "echo a b c", False),
        ("make *", "make x 'y z'", True),
        ("*", "anything $X", True),
        ("rm *", "FOO=1 rm x", False),
        ("rm *", "NO_COLOR=1 rm x", True),
    ],
)
def test_what_a_rule_that_allows_means(pattern: str, text: str, expected: bool) -> None:
    """Exactly what it says: no option before the words that it does not name."""
    assert covers(Command.parse(pattern), parsed(text).commands[0]) is expected


def test_every_command_of_a_line_has_to_be_allowed() -> None:
    """Several rules may allow it together; wrappers need no rule of their own."""
    text = "git add . && timeout 5 git commit -m x | tee log"
    allow = ["git add *", "git commit *", "tee *"]
    assert command(text, allow=allow) is ALLOW
    for left_out in allow:
        assert command(text, allow=[rule for rule in allow if rule != left_out]) is ASK


def test_where_the_shell_writes_needs_a_rule_for_the_file() -> None:
    """A redirect is the shell's own: the rule for the command does not speak of it."""
    for more, verdict in (((), ASK), (("edit_file(/log)",), ALLOW), (("edit_file(/x)",), ASK)):
        rules = Rules.parse(["run_command(make *)", *more], known=KNOWN)
        found = judged("run_command", rules=rules, command="make > log")
        assert found.verdict is verdict
        assert found.allowing == (("edit_file(/log)",) if verdict is ASK else ())


def test_deny_wins_over_ask_and_ask_over_allow() -> None:
    """In every mode, bypass included; plan mode is not widened by what is allowed."""
    for mode in Mode:
        lists = {"allow": ["rm *"], "ask": ["rm *"], "deny": ["rm *"]}
        assert command("rm x", mode, **lists) is DENY
        del lists["deny"]
        assert command("rm x", mode, **lists) is (DENY if mode is Mode.PLAN else ASK)
        del lists["ask"]
        assert command("rm x", mode, **lists) is (DENY if mode is Mode.PLAN else ALLOW)


def test_what_is_not_understood_is_refused_where_nobody_asks() -> None:
    """With a deny rule in mode bypass; without one it runs, and other modes ask."""
    fault = "echo ${X@P} <("
    assert command(fault, Mode.BYPASS) is ALLOW
    assert command(fault, Mode.BYPASS, allow=["rm *"]) is ALLOW
    assert command(fault, Mode.BYPASS, ask=["rm *"]) is ASK
    assert command(fault, Mode.BYPASS, deny=["rm *"]) is DENY
    assert command(fault, deny=["rm *"]) is ASK
    assert command(fault, allow=["echo *"]) is ASK
    rules = Rules.parse(deny=["run_command(rm *)"], known=KNOWN)
    paths = Rules.parse(deny=["read_file(.env)"], known=KNOWN)
    assert judged("run_command", Mode.BYPASS, paths, command=fault).verdict is DENY
    assert judged("run_command", Mode.BYPASS, paths, command="python x.py").verdict is ALLOW
    reason = judged("run_command", Mode.BYPASS, rules, command=fault).reason
    assert "run_command(rm *) may deny it" in reason and "plainly" in reason


# ─── tools that run commands ────────────────────────────────────────────────────────


def test_rules_on_commands_hold_for_all_that_runs_a_shell() -> None:
    """Decisions row 21: bash code is a command line; a rule of its own tool holds too."""
    rules = Rules.parse(deny=["run_command(rm *)"], known=KNOWN)
    bash: dict[str, Any] = {"language": "bash", "code": "ls\nrm x"}
    assert judged("run_code", Mode.BYPASS, rules, **bash).verdict is DENY
    assert judged("run_code", Mode.BYPASS, rules, language="bash", code="ls").verdict is ALLOW
    assert judged("run_code", Mode.BYPASS, rules, language="python", code="1").verdict is ALLOW
    own = Rules.parse(deny=["run_code(rm *)"], known=KNOWN)
    assert judged("run_code", Mode.BYPASS, own, **bash).verdict is DENY
    assert judged("run_command", Mode.BYPASS, own, command="rm x").verdict is ALLOW
    whole = Rules.parse(deny=["run_command"], known=KNOWN)
    assert judged("run_code", Mode.BYPASS, whole, **bash).verdict is DENY


def test_code_runs_unasked_unless_a_rule_speaks_of_it() -> None:
    """Decisions row 21: what Python does can't be told, so a pattern may mean it."""
    python: dict[str, Any] = {"language": "python", "code": "import os"}
    assert judged("run_code", **python).verdict is ALLOW
    for rule in ("run_code(rm *)", "run_code"):
        assert (
            judged("run_code", rules=Rules.parse(ask=[rule], known=KNOWN), **python).verdict is ASK
        )
    pattern = Rules.parse(deny=["run_code(rm *)"], known=KNOWN)
    assert judged("run_code", rules=pattern, **python).verdict is ASK
    assert judged("run_code", Mode.BYPASS, pattern, **python).verdict is DENY
    assert judged("run_code", Mode.PLAN, **python).verdict is DENY


def test_names_of_other_toolsets_mean_the_same_tools() -> None:
    """A rule that is written for one toolset holds in all of them."""
    rules = Rules.parse(deny=["Bash(rm *)"], known={**KNOWN, "Bash": "run_command"})
    assert judged("run_command", Mode.BYPASS, rules, command="rm x").verdict is DENY
    assert rules.deny[0].names("Bash", "run_command")


# ─── tools of the host ──────────────────────────────────────────────────────────────


class Script(Arguments):
    """Arguments of a tool of the host's that runs a command."""

    text: Text


def test_tools_of_the_host_are_judged_by_what_they_run() -> None:
    """Rules on commands hold for them, and so do rules of their own name."""

    def actions(context: Context, given: Script) -> Sequence[Action]:
        return [RunsCommand(given.text)]

    template = REGISTRY.all()[0]
    entry = replace(template.entry, access=Access.EXEC)
    schema = {"properties": {"text": {}}, "required": ["text"]}
    tool = Tool("deploy", "", schema, Script, _unused, "deploy", entry, actions=actions)
    known = {**KNOWN, "deploy": "deploy"}
    for rule in ("run_command(rm *)", "deploy(rm *)", "deploy"):
        rules = Rules.parse(deny=[rule], known=known)
        assert judged(tool, Mode.BYPASS, rules, text="rm x").verdict is DENY
    allow = Rules.parse(["deploy(rm *)"], known=known)
    assert judged(tool, rules=allow, text="rm x").verdict is ALLOW
    assert judged("run_command", rules=allow, command="rm x").verdict is ASK
    assert judged(tool, text="rm x").allowing == ("run_command(rm x)",)


class Url(Arguments):
    """Arguments of the test's own tool."""

    host: Text


async def _unused(context: Context, given: Any) -> Outcome:
    return Outcome("")


def host_tool(seen: list[str], access: Access = Access.NETWORK, *, name: str = "web_fetch") -> Tool:
    """A tool that contacts the host that it is given."""

    def actions(context: Context, given: Url) -> Sequence[Action]:
        seen.append(given.host)
        return [Contacts(given.host)]

    template = REGISTRY.all()[0]
    entry = replace(template.entry, access=access)
    schema = {"properties": {"host": {}}, "required": ["host"]}
    return Tool(name, "", schema, Url, _unused, name, entry, actions=actions)


@pytest.mark.parametrize(
    ("pattern", "host", "expected"),
    [
        ("x.org", "x.org", True),
        ("x.org", "a.x.org", False),
        ("*.x.org", "a.b.x.org", True),
        ("*.x.org", "x.org", False),
        ("*.x.org", "ax.org", False),
        ("*", "anything", True),
    ],
)
def test_patterns_of_hosts(pattern: str, host: str, expected: bool) -> None:
    """A star stands for names below; the name itself is another pattern."""
    assert is_host(pattern, host) is expected


def test_rules_on_hosts() -> None:
    """A host that no rule allows is asked; the smallest rule names that host."""
    tool = host_tool([])
    known = {**KNOWN, "web_fetch": "web_fetch"}
    found = judged(tool, host="a.x.org")
    assert (found.verdict, found.allowing) == (ASK, ("web_fetch(domain:a.x.org)",))
    allow = Rules.parse(allow=["web_fetch(domain:*.x.org)"], known=known)
    assert judged(tool, rules=allow, host="A.x.org").verdict is ALLOW
    assert judged(tool, rules=allow, host="y.org").verdict is ASK
    deny = Rules.parse(deny=["web_fetch(domain:*.x.org)"], known=known)
    assert judged(tool, Mode.BYPASS, deny, host="a.x.org").verdict is DENY
    assert judged(tool, Mode.BYPASS, deny, host="y.org").verdict is ALLOW
    assert judged(tool, Mode.PLAN, host="y.org").verdict is DENY


def test_rules_on_foreign_tools() -> None:
    """Decisions row 61: `mcp__server__*` is every tool of the server."""
    tool = host_tool([], Access.EXEC, name="mcp__git__push")
    found = judged(tool, host="x")
    assert (found.verdict, found.allowing) == (ASK, ("mcp__git__push",))
    assert Rules(known=KNOWN).allowing(found.allowing[0]).allow
    allow = Rules.parse(allow=["mcp__git__*"], known=KNOWN)
    assert judged(tool, rules=allow, host="x").verdict is ALLOW
    other = Rules.parse(allow=["mcp__gitlab__*"], known=KNOWN)
    assert judged(tool, rules=other, host="x").verdict is ASK
    deny = Rules.parse(deny=["mcp__git__*"], known=KNOWN)
    assert judged(tool, Mode.BYPASS, deny, host="x").verdict is DENY


def test_patterns_need_something_to_match() -> None:
    """A pattern for a tool that says nothing of its calls is a fault, not a rule in vain."""
    rules = Rules.parse(deny=["complete_task(x)"], known=KNOWN)
    with pytest.raises(ConfigError, match="write complete_task for every call of it"):
        check_patterns(rules, REGISTRY.all())


def test_bypass_without_rules_looks_at_nothing() -> None:
    """The judgement of every call of an unattended loop costs nothing to speak of."""
    seen: list[str] = []
    for allow in ((), ("run_command(ls *)",)):
        rules = Rules.parse(allow, known=KNOWN)
        assert judged(host_tool(seen), Mode.BYPASS, rules, host="x").verdict is ALLOW
    assert seen == []


def writing(path: str, mode: Mode) -> Judgement:
    """What is said about a tool that changes this path of the box."""

    def actions(context: Context, given: Script) -> Sequence[Action]:
        return [Touches(given.text, "write")]

    template = REGISTRY.all()[0]
    entry = replace(template.entry, access=Access.WRITE)
    schema = {"properties": {"text": {}}, "required": ["text"]}
    tool = Tool("patch", "", schema, Script, _unused, "patch", entry, actions=actions)
    return judged(tool, mode, text=path)


def test_accepting_edits_ends_with_the_worktree() -> None:
    """Elsewhere in the box a change is asked about; the plan file is the loop's own."""
    assert writing("a/b", Mode.ACCEPT_EDITS).verdict is ALLOW
    found = writing("/tmp/x y", Mode.ACCEPT_EDITS)
    assert (found.verdict, found.allowing) == (ASK, ("patch(//tmp/x\\ y)",))
    assert "outside of the worktree" in found.reason
    allow = Rules.parse(["patch(//tmp/x\\ y)"])
    assert allow.allow[0].pattern == "//tmp/x\\ y"
    for mode in (Mode.DEFAULT, Mode.PLAN, Mode.ACCEPT_EDITS):
        assert writing("/run/executor/plans/test.md", mode).verdict is ALLOW
    assert writing("/run/executor/plans/other.md", Mode.PLAN).verdict is DENY


# ─── the smallest rule ──────────────────────────────────────────────────────────────

SMALLEST = {
    "git push origin main --force": "git push *",
    "git -C /x push": "git -C /x push",
    "npm run build -- --fast": "npm run build *",
    "npm run": "npm run",
    "cargo run --release": "cargo run --release",
    "pytest -x tests": "pytest *",
    "python x.py 'a b'": "python x.py 'a b'",
    "rm -rf build": "rm -rf build",
    "./run.sh *.c": None,
    "make": "make",
    "FOO=1 make x": None,
    "rm $X": None,
    "touch 'it'\\''s [x] *'": "touch 'it'\"'\"'s [x] *'",
}


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_line_is_judged_as_the_shell_of_the_box_reads_it(tmp_path: Path, shell: str) -> None:
    """To bash this is one quoted text, to other shells two of them and a command between."""
    line = "echo $'a\\'; touch made; echo \\''"

    def change(spec: LoopSpec) -> LoopSpec:
        programs = Path(spec.worktree) / "programs"
        programs.mkdir()
        (programs / shell).symlink_to(f"/bin/{shell}")
        (programs / "touch").symlink_to("/bin/touch")
        return replace(spec, deny=("run_command(touch *)",), environment={"PATH": PROGRAMS})

    with open_work("docker", tmp_path, change=change) as work:
        result = work.call("run_command", command=line)
        assert work.loop.session.shell_of("no-net") == shell
        if shell == "bash":
            assert result.content == "a'; touch made; echo '\n"
        else:
            assert result.code is Code.PERMISSION_DENIED, result.content
        assert not (work.root / "made").exists()


@pytest.mark.parametrize("text", SMALLEST)
def test_the_smallest_rule_allows_the_command_and_no_other_program(text: str) -> None:
    """What is offered to a person is a word prefix, or the command itself."""
    found = judged("run_command", command=text)
    pattern = SMALLEST[text]
    assert found.allowing == (() if pattern is None else (f"run_command({pattern})",))
    if pattern is None:
        return
    rules = Rules.parse(found.allowing, known=KNOWN)
    assert judged("run_command", rules=rules, command=text).verdict is ALLOW
    for more in ("; rm -rf /", " && curl x | sh", " > /etc/x", " $(rm x)"):
        assert judged("run_command", rules=rules, command=text + more).verdict is ASK


WORDS = st.lists(st.text("ab-=*?'\" \\$\n;é", min_size=1, max_size=6), min_size=1, max_size=4)


@given(WORDS)
def test_what_is_offered_is_a_rule_that_allows_the_call(words: list[str]) -> None:
    """Whatever characters a command has, quoted and read again it is the same command."""
    import shlex

    text = shlex.join(["prog", *words])
    found = judged("run_command", command=text)
    if not found.allowing:
        return
    rules = Rules.parse(found.allowing, known=KNOWN)
    assert judged("run_command", rules=rules, command=text).verdict is ALLOW


# ─── paths ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def secretive(tmp_path: Path) -> Iterator[Work]:
    """A loop that may not read `.env`, nor change what is in `docs`."""
    rules = ("read_file(**/.env*)", "edit_file(/docs/**)")
    with open_work("local", tmp_path, change=lambda spec: replace(spec, deny=rules)) as work:
        work.write(".env", "KEY=1\n")
        work.write(".env.local", "KEY=2\n")
        work.write("a/b.txt", "KEY=3\n")
        work.write("docs/index.md", "# Docs\n")
        (work.root / "x").symlink_to(".env")
        (work.root / "d").symlink_to("docs")
        yield work


@pytest.mark.parametrize("path", [".env", "./.env", "a/../.env", "x", ".env.local"])
def test_no_spelling_of_a_secret_is_read(secretive: Work, path: str) -> None:
    """Casebook K94: link, detour and pattern; the refusal names the rule, the mode is bypass."""
    result = secretive.call("read_file", path=path)
    assert result.code is Code.PERMISSION_DENIED and "read_file(**/.env*)" in str(result.content)
    assert secretive.call("grep", pattern="KEY", path=path).code is Code.PERMISSION_DENIED


def test_a_container_enforces_the_same(tmp_path: Path) -> None:
    """The same agent in a box: reading, searching and changing what is denied."""
    rules = ("read_file(**/.env*)", "edit_file(/docs/**)")
    with open_work("docker", tmp_path, change=lambda spec: replace(spec, deny=rules)) as work:
        work.write(".env", "KEY=1\n")
        work.write("docs/index.md", "# Docs\n")
        (work.root / "x").symlink_to(".env")
        assert work.call("read_file", path="x").code is Code.PERMISSION_DENIED
        assert "1 file left out" in str(work.call("grep", pattern="KEY").content)
        assert work.call("delete_file", path="docs/index.md").code is Code.PERMISSION_DENIED
        assert work.call("run_command", command="cat x").code is Code.PERMISSION_DENIED
        box: Any = work.opened[0]
        for op, path in (("read", "x"), ("delete", "docs/index.md")):
            with pytest.raises(ToolError) as raised:
                work.thread.run(box.request(op, {"path": path}))
            assert raised.value.code is Code.PERMISSION_DENIED


@pytest.mark.parametrize(
    "text",
    [
        *("cat .env", "cat ./.env", "cat $PWD/.env", "cat a/../.env", "cat x", "head -1 < .env"),
        *("cp .env y", "mv .env y", "cd a && cat ../.env", "sh -c 'cat .env'", "grep K .env x"),
        *("rm docs/index.md", "rm -r docs", "echo x > docs/new", "cp a/b.txt d/c", "mv a docs/a"),
    ],
)
def test_known_operands_of_commands_are_paths_too(secretive: Work, text: str) -> None:
    """Casebook K94: what a command is known to read and write is judged by what it leads to."""
    assert secretive.call("run_command", command=text).code is Code.PERMISSION_DENIED


def test_searches_leave_a_secret_out(secretive: Work) -> None:
    """Casebook K94: grep skips it, glob does not name it, and both say so."""
    found = secretive.call("grep", pattern="KEY")
    assert found.structured is not None and found.structured["files"] == 1
    assert "KEY=1" not in str(found.content) and "2 files left out" in str(found.content)
    found = secretive.call("glob", pattern="**/*")
    assert ".env" not in str(found.content) and "2 files left out" in str(found.content)
    assert secretive.call("list_directory").code is None


def test_a_secret_gets_no_other_name(secretive: Work) -> None:
    """Casebook K94: moved away it could be read."""
    move = {"from": ".env", "to": "y"}
    assert secretive.call("move_file", **move).code is Code.PERMISSION_DENIED
    assert (secretive.root / ".env").exists()


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("write_file", {"path": "docs/new.md", "content": ""}),
        ("write_file", {"path": "d/new.md", "content": ""}),
        ("delete_file", {"path": "docs/index.md"}),
        ("delete_file", {"path": "docs", "recursive": True}),
        ("move_file", {"from": "docs/index.md", "to": "i"}),
        ("move_file", {"from": "docs", "to": "i"}),
        ("move_file", {"from": "a/b.txt", "to": "docs/b"}),
        ("move_file", {"from": "a/b.txt", "to": "d/b"}),
    ],
)
def test_rules_on_edits_hold_for_all_writers(
    secretive: Work, tool: str, arguments: dict[str, Any]
) -> None:
    """Write, delete and move, at both ends, through links to the directory too."""
    assert secretive.call(tool, **arguments).code is Code.PERMISSION_DENIED
    assert (secretive.root / "docs/index.md").read_text() == "# Docs\n"
    assert sorted(path.name for path in (secretive.root / "docs").iterdir()) == ["index.md"]


def test_what_no_rule_speaks_of_goes_on(secretive: Work) -> None:
    """Reading what may not be changed, changing what may be."""
    assert secretive.call("read_file", path="docs/index.md").code is None
    assert secretive.call("write_file", path="new", content="x").code is None
    assert secretive.call("run_command", command="cat a/b.txt docs/index.md > out").code is None
    assert secretive.call("move_file", **{"from": "a", "to": "c"}).code is None
    assert secretive.call("move_file", **{"from": "d", "to": "e"}).code is None


def test_a_new_box_is_told_what_is_denied(secretive: Work) -> None:
    """The agent that replaces a lost one enforces the same."""
    box = secretive.opened[0]
    secretive.thread.run(_lose(box))
    assert secretive.call("read_file", path="a/b.txt").code is None
    assert len(secretive.opened) == 2
    with pytest.raises(ToolError) as raised:
        secretive.thread.run(secretive.opened[1].request("read", {"path": ".env"}))
    assert raised.value.code is Code.PERMISSION_DENIED


async def _lose(box: Any) -> None:
    box._connection.lose(AgentLost("test"))


def test_the_agent_is_told_of_deny_rules_only() -> None:
    """Those that speak of reading and writing, with the worktree's root by one name."""
    rules = Rules.parse(
        allow=["read_file(a)"],
        ask=["edit_file(b)"],
        deny=["read_file(c)", "edit_file(//workspace/d)", "delete_file(e)", "run_command(rm *)"],
        known=KNOWN,
    )
    assert restrictions(rules) == {
        "read": [["c", "read_file(c)"]],
        "write": [["/d", "edit_file(//workspace/d)"]],
    }


# ─── modes and files ────────────────────────────────────────────────────────────────


def moded(directory: Path, mode: str, allow: tuple[str, ...] = ()) -> Any:
    return open_work("local", directory, change=lambda spec: replace(spec, mode=mode, allow=allow))


def test_default_mode_asks_before_anything_is_lost(tmp_path: Path) -> None:
    """A new file and a move to a free name go on; the rest is asked, with the smallest rule."""
    with moded(tmp_path, "default") as work:
        assert work.call("write_file", path="new", content="1").code is None
        assert work.call("move_file", **{"from": "new", "to": "f"}).code is None
        work.write("g h", "2")
        work.call("read_file", path="f")
        asked: dict[str, tuple[str, dict[str, Any]]] = {
            "write_file(/f)": ("write_file", {"path": "f", "content": "2"}),
            "edit_file(/f)": ("edit_file", {"path": "f", "old_string": "1", "new_string": "2"}),
            "delete_file(/f)": ("delete_file", {"path": "f"}),
            "move_file(/g\\ h)": ("move_file", {"from": "f", "to": "g h", "overwrite": True}),
        }
        for rule, (tool, arguments) in asked.items():
            result = work.call(tool, **arguments)
            assert result.code is Code.APPROVAL_REQUIRED, result.content
            assert result.details is not None and result.details["allowed_by"] == [rule]
        assert work.call("move_file", **{"from": "f", "to": "g h"}).code is Code.EXISTS
        assert (work.root / "f").read_text() == "1"


def test_the_rule_that_is_named_allows_the_call(tmp_path: Path) -> None:
    """Given as an allow rule, the call runs in mode default."""
    rules = ("write_file(/f)", "edit_file(/docs/)", "delete_file(/old)", "move_file(/g\\ h)")
    with moded(tmp_path, "default", rules) as work:
        for name in ("f", "docs/x", "old", "g h"):
            work.write(name, "1")
            work.call("read_file", path=name)
        assert work.call("write_file", path="f", content="2").code is None
        edit = {"path": "docs/x", "old_string": "1", "new_string": "2"}
        assert work.call("edit_file", **edit).code is None
        assert work.call("delete_file", path="old").code is None
        move = {"from": "f", "to": "g h", "overwrite": True}
        assert work.call("move_file", **move).code is None


def test_an_allowed_directory_is_not_left_by_a_link(tmp_path: Path) -> None:
    """What is allowed is what the path leads to, not how it is written."""
    with moded(tmp_path, "default", ("edit_file(/src/**)",)) as work:
        work.write("secret", "1")
        work.write("src/a", "1")
        (work.root / "src/link").symlink_to("../secret")
        for path in ("src/a", "src/link"):
            work.call("read_file", path=path)
        arguments = {"old_string": "1", "new_string": "2"}
        assert work.call("edit_file", path="src/a", **arguments).code is None
        result = work.call("edit_file", path="src/link", **arguments)
        assert result.code is Code.APPROVAL_REQUIRED
        assert "edit_file(/secret)" in str(result.content)


def test_rules_can_be_granted_while_the_loop_is_open(tmp_path: Path) -> None:
    """By the host, until the loop ends; a text that is no rule grants nothing."""
    with moded(tmp_path, "default") as work:
        touch = {"command": "touch x"}
        assert work.call("run_command", **touch).code is Code.APPROVAL_REQUIRED
        with pytest.raises(ConfigError, match="did you mean run_command"):
            work.loop.allow("run_comand(touch *)")
        work.loop.allow("run_command(touch *)")
        assert work.call("run_command", **touch).code is None


def test_accepting_edits_covers_edits_and_not_deletion(tmp_path: Path) -> None:
    """Write, edit and move go on; deleting and commands are still asked."""
    with moded(tmp_path, "acceptEdits") as work:
        work.write("f", "1")
        work.call("read_file", path="f")
        assert work.call("write_file", path="f", content="2").code is None
        edit = {"path": "f", "old_string": "2", "new_string": "3"}
        assert work.call("edit_file", **edit).code is None
        assert work.call("move_file", **{"from": "f", "to": "g"}).code is None
        assert work.call("delete_file", path="g").code is Code.APPROVAL_REQUIRED
        assert work.call("run_command", command="touch h").code is Code.APPROVAL_REQUIRED
        assert work.call("run_command", command="cat g").code is None


def test_plan_mode_changes_nothing(tmp_path: Path) -> None:
    """Looking goes on; whatever changes something is refused, with what can be done."""
    with moded(tmp_path, "plan", ("run_command(touch *)", "edit_file(**)")) as work:
        work.write("f", "1")
        assert work.call("read_file", path="f").code is None
        assert work.call("run_command", command="cat f | wc -l").code is None
        for tool, arguments in (
            ("write_file", {"path": "new", "content": ""}),
            ("run_command", {"command": "touch x"}),
            ("run_code", {"language": "bash", "code": "ls"}),
            ("move_file", {"from": "f", "to": "g"}),
        ):
            result = work.call(tool, **arguments)
            assert result.code is Code.PERMISSION_DENIED
            assert "plan mode changes nothing" in str(result.content)
            assert "/run/executor/plans/test.md" in str(result.content)


def test_a_redirect_into_an_allowed_file_is_allowed(tmp_path: Path) -> None:
    """The rule for the command and the rule for the file, both."""
    rules = ("run_command(touch *)", "edit_file(/log)")
    with moded(tmp_path, "default", rules) as work:
        assert work.call("run_command", command="touch x > log").code is None
        assert work.call("run_command", command="touch x > other").code is Code.APPROVAL_REQUIRED
        (work.root / "link").symlink_to("other")
        assert work.call("run_command", command="touch x > link").code is Code.APPROVAL_REQUIRED
