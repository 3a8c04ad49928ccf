"""Skills: what a file's text becomes, whose words grant something, and what commands in it do."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.approvals import CallableApprover
from executor.controller import Controller
from executor.errors import Code, ConfigError
from executor.hooks import Hook, HookEvent, Hooks, Occasion
from executor.loop import Loop
from executor.model import ApprovalAnswer, ApprovalRequest, Call, LoopSpec, Result
from executor.settings import Settings
from executor.skills import MAX_BYTES, MAX_SKILLS, Part, Skill, load, name_of, parse
from executor.tool import Order, Tool
from executor.tools import skills
from executor.toolsets.building import Shown, build
from tests.conftest import LIMITS, make_worktree
from tests.driver import LoopThread
from tests.loops import opener
from tests.test_catalog import with_user_file

# ─── a file ─────────────────────────────────────────────────────────────────────────

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (
        "description: Makes a commit\nargument-hint: [message]\n"
        "allowed-tools: Read, Bash(git add:*)",
        {
            "description": "Makes a commit",
            "argument_hint": "[message]",
            "allowed_tools": ("Read", "Bash(git add:*)"),
        },
    ),
    "quotes": (
        "description: \"a: \\\"b\\\" # c\"\nargument-hint: 'it''s'",
        {"description": 'a: "b" # c', "argument_hint": "it's"},
    ),
    "comment": ("description: a#b # c", {"description": "a#b"}),
    "lists": (
        "description: d\nallowed-tools:\n  - Read\n  - 'Bash(git log *)'\n",
        {"allowed_tools": ("Read", "Bash(git log *)")},
    ),
    "list at the margin": (
        "allowed-tools:\n- Read\n- Grep\ndescription: d",
        {"allowed_tools": ("Read", "Grep"), "description": "d"},
    ),
    "list in a line": ('allowed-tools: [Read, "Grep"]', {"allowed_tools": ("Read", "Grep")}),
    "commas in brackets": (
        "allowed-tools: Bash(a, b), Read",
        {"allowed_tools": ("Bash(a, b)", "Read")},
    ),
    "block": ("description: |\n  one\n  two", {"description": "one two"}),
    "folded": ("description: >-\n  one\n  two\nx: y", {"description": "one two"}),
    "continued": ("description: one\n  two", {"description": "one two"}),
    "first of two": ("description: one\ndescription: two", {"description": "one"}),
    "unknown": ("model: x\n? y\n&a b: c\ndescription: d", {"description": "d"}),
    "capitals": ("Description: d", {"description": "d"}),
    "a tag makes nothing": (
        "description: !!python/object/apply:os.system [x]",
        {"description": "!!python/object/apply:os.system [x]"},
    ),
}


@pytest.mark.parametrize(("head", "expected"), HEADS.values(), ids=HEADS.keys())
def test_head(head: str, expected: dict[str, Any]) -> None:
    """The head's fields, as far as they are understood."""
    skill = parse("x", f"---\n{head}\n---\n\nBody.\n")
    assert {name: getattr(skill, name) for name in expected} == expected
    assert skill.body == "Body."


@pytest.mark.parametrize(
    ("text", "body", "description"),
    [
        ("# How to\n\nDo.", "# How to\n\nDo.", "How to"),
        ("---\nnever closed", "---\nnever closed", "---"),
        ("---\n---\nDo.", "Do.", "Do."),
        ("\ufeff---\r\ndescription: d\r\n---\r\nDo.\r\n", "Do.", "d"),
        ("a\n---\ndescription: d\n---\n", "a\n---\ndescription: d\n---", "a"),
        ("", "", ""),
    ],
)
def test_without_a_head(text: str, body: str, description: str) -> None:
    """Without a head all is body, and the first line describes it."""
    skill = parse("x", text)
    assert (skill.body, skill.description) == (body, description)


@given(st.text())
def test_any_text_is_a_skill(text: str) -> None:
    """No text fails, and none trusts itself."""
    skill = parse("x", text)
    assert not skill.is_trusted and skill.directory is None
    assert "".join(part.text for part in skill.parts if not part.is_command) is not None


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("a !`ls -l` b", [("a ", False), ("ls -l", True), (" b", False)]),
        ("!`a`\n!`b`", [("a", True), ("\n", False), ("b", True)]),
        ("x!`a` `b` !`` !`c\nd`", [("x!`a` `b` !`` !`c\nd`", False)]),
    ],
)
def test_commands_in_a_body(body: str, parts: list[tuple[str, bool]]) -> None:
    """A command stands after a space or at a line's beginning, on one line."""
    assert [(part.text, part.is_command) for part in parse("x", body).parts] == parts


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("all: $ARGUMENTS.", "a b", "all: a b."),
        ("$1-$2-$3", "'a b' c", "a b-c-"),
        ("$10 $1x $ARGUMENTSX", "a", "$10 $1x $ARGUMENTSX"),
        ("$1", "it's", "it's"),
        ("$ARGUMENTS", "$1 !`x`", "$1 !`x`"),
    ],
)
def test_arguments(text: str, arguments: str, expected: str) -> None:
    """Arguments stand where the text says, and are not looked at again."""
    assert Part(text).given(arguments) == expected


SHELL_ARGUMENTS = [
    ("echo $1", "a.txt b", "echo a.txt"),
    ("echo $ARGUMENTS", "a.txt b", "echo a.txt b"),
    ("ls", "; rm x", "ls"),
    ("echo $1", "'a b' c", "ARGUMENTS=''\"'\"'a b'\"'\"' c'; set -- 'a b' c; echo $1"),
]


@pytest.mark.parametrize(("command", "arguments", "expected"), SHELL_ARGUMENTS)
def test_arguments_of_commands(command: str, arguments: str, expected: str) -> None:
    """What means something to a shell is given to it as a value, never as words of its own."""
    assert Part(command, is_command=True).given(arguments) == expected


@pytest.mark.parametrize(
    "text",
    [
        "---\n" + "\n" * 250_000 + "---\nx",
        "---\n" + "a:\n" * 80_000 + "---\nx",
        "---\na: |\n" + " x\n" * 80_000 + "---\nx",
        "---\nallowed-tools: " + "(a" * 120_000 + "\n---\nx",
    ],
)
def test_large_heads_take_little_time(text: str) -> None:
    """A head that a hostile worktree made to be slow is read in far less than a second."""
    started = time.process_time()
    assert parse("x", text).body == "x"
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("review/SKILL.md", "review"),
        ("review.md", "review"),
        ("git/commit.md", "git:commit"),
        ("git/review/SKILL.md", "git:review"),
        ("SKILL.md", None),
        ("a/b/c.md", None),
        ("a.txt", None),
        ("-x.md", None),
        ("a b.md", None),
        ("../x.md", None),
    ],
)
def test_names(path: str, name: str | None) -> None:
    """A skill is called after its place, in few characters."""
    assert name_of(path) == name


# ─── the user's directories ─────────────────────────────────────────────────────────


def put(root: Path, path: str, text: str) -> None:
    """Make a file."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_directory_is_read(tmp_path: Path) -> None:
    """Files and directories of skills are found; what else is in a skill's directory is not."""
    put(tmp_path, "review/SKILL.md", "---\ndescription: Reviews\n---\nLook.")
    put(tmp_path, "review/notes.md", "no skill")
    put(tmp_path, "commit.md", "Commit.")
    put(tmp_path, "git/push.md", "Push.")
    put(tmp_path, ".hidden/SKILL.md", "no")
    found = load([(tmp_path, "/workspaces/skills-1")])
    assert sorted(found) == ["commit", "git:push", "review"]
    assert found["review"] == Skill(
        "review",
        "Reviews",
        "Look.",
        directory="/workspaces/skills-1/review",
        is_trusted=True,
    )
    assert found["commit"].directory is None


def test_links_into_the_worktree_are_refused(tmp_path: Path) -> None:
    """A file that the loop can rewrite is not the user's word, wherever its name stands."""
    put(tmp_path, "worktree/x.md", "---\nallowed-tools: run_command\n---\n")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills/a.md").symlink_to(tmp_path / "worktree/x.md")
    with pytest.raises(ConfigError, match="where the loop can rewrite it"):
        load([(tmp_path / "skills", None)], [tmp_path / "worktree"])
    assert sorted(load([(tmp_path / "skills", None)], [tmp_path / "other"])) == ["a"]


def test_first_directory_wins(tmp_path: Path) -> None:
    """Of two skills with one name the one of the directory named first is taken."""
    put(tmp_path, "a/x.md", "one")
    put(tmp_path, "b/x.md", "two")
    assert load([(tmp_path / "a", None), (tmp_path / "b", None)])["x"].body == "one"


def _too_large(root: Path) -> None:
    put(root, "x.md", "x" * (MAX_BYTES + 1))


def _too_many(root: Path) -> None:
    for number in range(MAX_SKILLS + 1):
        put(root, f"x{number}.md", "x")


def _a_pipe(root: Path) -> None:
    os.mkfifo(root / "x.md")


def _nothing(root: Path) -> None:
    root.rmdir()


@pytest.mark.parametrize("make", [_too_large, _too_many, _a_pipe, _nothing])
def test_bad_directories(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """What can't be read is said, and does not hang."""
    root = tmp_path / "skills"
    root.mkdir()
    make(root)
    with pytest.raises(ConfigError, match="skills"):
        load([(root, None)])


# ─── the tool ───────────────────────────────────────────────────────────────────────


@dataclass
class Work:
    """A loop with skills."""

    thread: LoopThread
    loop: Loop
    root: Path

    def use(self, skill: str, args: str | None = None) -> Result:
        """The result of one skill."""
        return self.call("skill", {"skill": skill, "args": args})

    def call(self, name: str, given: dict[str, Any]) -> Result:
        """The result of one call."""
        return self.thread.run(self.loop.execute(Call("c", name, given)))


Open = Callable[..., Work]


def _tool(catalog: Any) -> Tool:
    shown = Shown(
        name="skill",
        arguments=skills.UseSkill,
        run=skills.skill,
        order=Order.BARRIER,
        unavailable=skills.without,
        describe=skills.with_skills("Execute a skill."),
    )
    return build((shown,), catalog).all()[0]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens loops whose trusted skills are `tmp_path/skills`."""
    with contextlib.ExitStack() as stack:

        def open_one(approver: Any = None, hooks: Hooks | None = None, **fields: Any) -> Work:
            root = make_worktree(tmp_path / "worktree")
            trusted = tmp_path / "skills"
            trusted.mkdir(exist_ok=True)
            catalog = with_user_file("")
            thread = stack.enter_context(LoopThread())
            controller = Controller(
                replace(Settings.load({}), state_directory=tmp_path / "state"),
                catalog,
                opener=opener("local", tmp_path),
                tools=[_tool(catalog)],
                approver=approver,
                hooks=hooks,
            )
            thread.enter(controller)
            given = {"skills": (trusted,), "exec_id": "test", **fields}
            spec = LoopSpec(worktree=root, limits=LIMITS, **given)
            return Work(thread, thread.enter(controller.open(spec)), root)

        yield open_one


def test_body_is_the_result(opened: Open, tmp_path: Path) -> None:
    """The result is the skill's text with its arguments, and where its files are."""
    put(
        tmp_path / "skills",
        "review/SKILL.md",
        "---\ndescription: d\n---\nReview $1 of $ARGUMENTS.",
    )
    put(tmp_path / "skills", "plain.md", "Do it.")
    work = opened()
    result = work.use("review", "a b")
    assert result.content == (
        "Base directory for this skill: /workspaces/skills-1/review\n\nReview a of a b."
    )
    assert result.structured == {"skill": "review", "trusted": True}
    assert work.use("/plain", "now").content == "Do it.\n\nARGUMENTS: now"


def test_description_lists_skills(opened: Open, tmp_path: Path) -> None:
    """The model reads which skills there are, and what their arguments are."""
    put(tmp_path / "skills", "a.md", "---\ndescription: Does a\nargument-hint: <x>\n---\n")
    (shown,) = [tool for tool in opened().loop.definitions() if tool["name"] == "skill"]
    assert shown["description"] == "Execute a skill.\n\nSkills:\n- a <x>: Does a"


def test_unknown_skill(opened: Open, tmp_path: Path) -> None:
    """A name that there is not is refused with those that there are."""
    put(tmp_path / "skills", "a.md", "x")
    result = opened().use("b")
    assert result.code is Code.NOT_FOUND
    assert result.content == "There is no skill 'b'. Skills: a."


def test_no_skills(opened: Open) -> None:
    """A loop without skills does not have the tool."""
    result = opened(skills=()).use("a")
    assert result.code is Code.DISABLED and "without skills" in str(result.content)


def test_directory_in_the_worktree_is_refused(opened: Open, tmp_path: Path) -> None:
    """What the loop can write is not trusted."""
    put(make_worktree(tmp_path / "worktree"), ".claude/skills/a.md", "x")
    with pytest.raises(ConfigError, match="lies in the worktree"):
        opened(skills=(tmp_path / "worktree/.claude/skills",))


# ─── commands in it ─────────────────────────────────────────────────────────────────


def test_output_of_commands_stands_in_the_text(opened: Open, tmp_path: Path) -> None:
    """Commands run in the worktree of the box; a failing one shows its exit code."""
    put(tmp_path / "skills", "a.md", "Files: !`ls $1`\n!`echo x; exit 3`\nEnd.")
    work = opened()
    (work.root / "one.txt").write_text("")
    result = work.use("a", "one.txt")
    assert result.content == "Files: one.txt\nExit code: 3\nx\nEnd."


def test_output_is_not_run(opened: Open, tmp_path: Path) -> None:
    """What a command prints, or an argument holds, is never a command itself."""
    put(tmp_path / "skills", "a.md", "!`cat f`\n$ARGUMENTS")
    work = opened()
    (work.root / "f").write_text("!`touch bad`")
    result = work.use("a", "!`touch worse`")
    assert result.content == "!`touch bad`\n!`touch worse`"
    assert os.listdir(work.root) == ["f"]


@pytest.mark.parametrize("command", ["echo $1", "echo $ARGUMENTS", 'echo "$1"', "echo '$1'"])
@pytest.mark.parametrize("words", ["a; touch bad", "$(touch bad)", "`touch bad`", "'; touch bad #"])
def test_arguments_run_nothing(opened: Open, tmp_path: Path, command: str, words: str) -> None:
    """An argument is never a command, in whatever quotes the skill's author has put it."""
    put(tmp_path / "skills", "a.md", f"!`{command}`")
    work = opened()
    result = work.use("a", words)
    assert not result.is_error, result.content
    assert os.listdir(work.root) == []


def test_skills_are_bounded(opened: Open, tmp_path: Path) -> None:
    """So many commands, and so many copies of long arguments, are refused; nothing is run."""
    put(tmp_path / "skills", "many.md", "!`touch x`\n" * 21)
    put(tmp_path / "skills", "long.md", "$ARGUMENTS" * 2000)
    work = opened()
    assert work.use("many").code is Code.LIMIT
    assert work.use("long", "x" * 1000).code is Code.LIMIT
    assert os.listdir(work.root) == []


@pytest.mark.parametrize("deny", ["run_command(touch *)", "run_command"])
def test_rules_hold_for_commands(opened: Open, tmp_path: Path, deny: str) -> None:
    """A denied command is not run, and the skill fails with the reason."""
    put(tmp_path / "skills", "a.md", "---\nallowed-tools: run_command\n---\n!`touch x`")
    work = opened(deny=(deny,))
    result = work.use("a")
    assert result.code is Code.PERMISSION_DENIED, result.content
    assert "'touch x', which was not run" in str(result.content)
    assert not (work.root / "x").exists()


def test_plan_mode_holds_for_commands(opened: Open, tmp_path: Path) -> None:
    """In plan mode a skill's commands only look."""
    put(tmp_path / "skills", "a.md", "---\nallowed-tools: run_command\n---\n!`touch x`")
    put(tmp_path / "skills", "b.md", "!`ls`")
    work = opened(mode="plan")
    assert work.use("a").code is Code.PERMISSION_DENIED
    assert not work.use("b").is_error


def test_commands_are_asked_about(opened: Open, tmp_path: Path) -> None:
    """Mode default asks before a command of a skill, as before any other."""
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> ApprovalAnswer:
        asked.append(request)
        return ApprovalAnswer(approved=request.action == "touch yes")

    put(tmp_path / "skills", "a.md", "!`touch yes`")
    put(tmp_path / "skills", "b.md", "!`touch no`")
    work = opened(approver=CallableApprover(approve), mode="default")
    assert not work.use("a").is_error
    assert work.use("b").code is Code.REJECTED
    assert [request.action for request in asked] == ["touch yes", "touch no"]
    assert os.listdir(work.root) == ["yes"]


def test_hooks_see_commands(opened: Open, tmp_path: Path) -> None:
    """A hook sees the command as a call of run_command."""
    seen: list[tuple[str, Any]] = []

    def note(occasion: Occasion) -> None:
        seen.extend((use.tool, dict(use.input)) for use in occasion.uses)

    put(tmp_path / "skills", "a.md", "!`true`")
    opened(hooks=Hooks([Hook(HookEvent.BEFORE, note)])).use("a")
    assert seen == [
        ("skill", {"skill": "a", "args": None}),
        ("run_command", {"command": "true"}),
    ]


def test_loop_without_commands(opened: Open, tmp_path: Path) -> None:
    """Where the loop has no run_command, a skill has none either."""
    put(tmp_path / "skills", "a.md", "!`true`")
    work = opened(tools=("skill", "read_file"))
    assert work.use("a").code is Code.DISABLED


# ─── what is granted ────────────────────────────────────────────────────────────────

GRANT = "---\nallowed-tools: run_command(touch:*), Nothing, run_command(a * b)\n---\n!`touch x`"


def test_trusted_skills_grant(opened: Open, tmp_path: Path) -> None:
    """What a trusted head names is allowed from then on; what is no rule is said."""
    put(tmp_path / "skills", "a.md", GRANT)
    work = opened(mode="default")
    assert work.call("run_command", {"command": "touch y"}).code is Code.APPROVAL_REQUIRED
    result = work.use("a")
    assert not result.is_error, result.content
    assert "'Nothing' grants nothing" in str(result.content)
    assert "'run_command(a * b)' grants nothing" in str(result.content)
    assert not work.call("run_command", {"command": "touch y"}).is_error
    assert work.call("run_command", {"command": "rm y"}).code is Code.APPROVAL_REQUIRED


def test_skills_of_the_worktree_grant_nothing(opened: Open) -> None:
    """A repository's words allow nothing, whatever they say."""
    work = opened(mode="default", worktree_skills=True)
    put(work.root, ".claude/commands/a.md", GRANT)
    assert work.use("a").code is Code.APPROVAL_REQUIRED
    put(work.root, ".claude/commands/b.md", GRANT.replace("!`touch x`", "Text."))
    result = work.use("b")
    assert str(result.content).startswith("Text.") and "grants nothing" in str(result.content)
    assert work.loop.session.rules.allow == ()


def test_skills_of_the_worktree(opened: Open, tmp_path: Path) -> None:
    """They are read in the box when they are asked for; the user's own go before them."""
    put(tmp_path / "skills", "a.md", "mine")
    work = opened(worktree_skills=True)
    put(work.root, ".claude/skills/a/SKILL.md", "theirs")
    put(work.root, ".claude/skills/b/SKILL.md", "---\ndescription: d\n---\nb: $1")
    put(work.root, ".claude/commands/git/c.md", "c")
    assert work.use("a").content == "mine"
    assert work.use("b", "x").content == ("Base directory for this skill: .claude/skills/b\n\nb: x")
    assert work.use("git:c").content == "c"
    assert work.use("d").content == "There is no skill 'd'. Skills: a, b, git:c."


def test_skills_of_the_worktree_are_off(opened: Open, tmp_path: Path) -> None:
    """Without the option the worktree's files are no skills."""
    put(tmp_path / "skills", "a.md", "mine")
    work = opened()
    put(work.root, ".claude/skills/b/SKILL.md", "b")
    assert work.use("b").code is Code.NOT_FOUND


def test_links_of_the_worktree_lead_nowhere(opened: Open, tmp_path: Path) -> None:
    """A skill that is a link out of the worktree is none."""
    put(tmp_path, "secret.md", "secret")
    work = opened(worktree_skills=True)
    (work.root / ".claude/commands").mkdir(parents=True)
    (work.root / ".claude/commands/a.md").symlink_to(tmp_path / "secret.md")
    result = work.use("a")
    assert result.code is Code.NOT_FOUND and "secret" not in str(result.content)


def test_files_of_a_skill_in_a_box(tmp_path: Path) -> None:
    """A skill's directory is in the box, at the place that its text names, and read-only."""
    put(tmp_path / "skills", "review/SKILL.md", "Files: !`ls /workspaces/skills-1/$1`")
    put(tmp_path / "skills", "review/check.sh", "echo checked")
    root = make_worktree(tmp_path / "worktree")
    catalog = with_user_file("")
    with LoopThread() as thread:
        controller = Controller(
            replace(Settings.load(), state_directory=tmp_path / "state"),
            catalog,
            tools=[_tool(catalog)],
        )
        thread.enter(controller)
        spec = LoopSpec(worktree=root, limits=LIMITS, skills=(tmp_path / "skills",))
        work = Work(thread, thread.enter(controller.open(spec)), root)
        result = work.use("review", "review")
        place = "/workspaces/skills-1/review"
        assert result.content == (
            f"Base directory for this skill: {place}\n\nFiles: SKILL.md\ncheck.sh"
        )
        ran = work.call("run_command", {"command": f"sh {place}/check.sh; touch {place}/x"})
        assert "checked" in str(ran.content) and "Read-only file system" in str(ran.content)
        read = work.call("read_file", {"path": f"{place}/check.sh"})
        assert "echo checked" in str(read.content)
