"""Which calls of a turn run together: what they touch, who waits for whom, and in what order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import toolsets
from executor.catalog import load
from executor.model import Access
from executor.places import Place, State
from executor.scheduling import (
    LOOKAHEAD,
    MAX_PARALLEL,
    Area,
    Effects,
    Intent,
    Schedule,
    disturbs,
    effects_of,
    intent_of,
    must_wait,
)
from executor.tool import Action, Context, Order, no_actions
from tests.test_pipeline import surroundings

SAFE, UNSAFE, BARRIER, LAST = Order.SAFE, Order.UNSAFE, Order.BARRIER, Order.LAST
TOOLS = toolsets.registry("standard", load())


def intended(name: str, **given: Any) -> Intent:
    """What a call of the standard toolset is going to do."""
    tool = TOOLS.get(name)
    assert tool is not None
    context = Context("1", tool.entry, surroundings(load()))
    return intent_of(tool, tool.parse(given), context)


def there(path: str, kind: str = "f", **more: Any) -> Place:
    """A path that leads to itself."""
    return Place(path, path, State.THERE, kind, path, **more)


def effects(name: str, places: Sequence[Place] = (), /, **given: Any) -> Effects:
    """What a call of the standard toolset does where these places are."""
    intent = intended(name, **given)
    known = {path: there(path, "d" if path in ("", "d") else "f") for path in intent.paths}
    known |= {p: Place(p, p, State.OUTSIDE) for p in intent.paths if p.startswith("/")}
    return effects_of(intent, known | {place.own: place for place in places})


def run(command: str) -> Effects:
    """What a command does."""
    return effects("run_command", command=command)


# ─── what is known of a call ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "order"),
    [
        ("ls", SAFE),
        ("cat a | grep x", SAFE),
        ("cat a > /dev/null", SAFE),
        ("(cd d && ls)", SAFE),
        ("ls > f", UNSAFE),
        ("make", UNSAFE),
        ("rm a", UNSAFE),
        ("cd d", BARRIER),
        ("cat a; cd d", BARRIER),
        ("sleep 1", BARRIER),
        ("ls && timeout 5 sleep 9", BARRIER),
        ("if [", BARRIER),
    ],
)
def test_a_command_is_ordered_by_what_it_does(command: str, order: Order) -> None:
    """What changes nothing is safe; what may move the shell is a barrier, so what is not read."""
    assert intended("run_command", command=command).order is order


def test_a_script_starts_in_the_root_and_moves_nobody() -> None:
    """`run_code` has a shell of its own; what its arguments or variables do is unknown."""
    moved = intended("run_code", language="bash", code="cd d; cat a")
    assert (moved.order, moved.directories) == (SAFE, ("",))
    for more in ({"args": ["x"]}, {"env": {"PATH": "."}}):
        unknown = intended("run_code", language="bash", code="ls", **more)
        assert (unknown.order, unknown.writes_all) == (UNSAFE, True)
    assert intended("run_code", language="python", code="1").writes_all


@pytest.mark.parametrize(
    ("access", "order", "expected"),
    [
        (Access.READ, SAFE, (True, False)),
        (Access.SESSION, SAFE, (False, False)),
        (Access.NETWORK, SAFE, (False, False)),
        (Access.EXEC, SAFE, (False, False)),
        (Access.SESSION, UNSAFE, (False, False)),
        (Access.WRITE, UNSAFE, (True, True)),
        (Access.EXEC, UNSAFE, (True, True)),
    ],
)
def test_a_tool_that_declares_nothing(
    access: Access, order: Order, expected: tuple[bool, bool]
) -> None:
    """It may touch what its access and its order allow: unknown is everything."""
    intent = declared(None, access, order)
    assert (intent.reads_all, intent.writes_all) == expected


@pytest.mark.parametrize("access", [Access.SESSION, Access.NETWORK])
def test_what_is_no_file_has_an_order_too(access: Access) -> None:
    """Questions run together; one that follows a change of the same kind waits for it."""
    ask, tell = (effects_of(declared(None, access, order), None) for order in (SAFE, UNSAFE))
    assert not must_wait(ask, ask)
    assert must_wait(ask, tell) and must_wait(tell, ask)
    assert not must_wait(READ_A, tell)
    assert must_wait(ask, run("make"))


@pytest.mark.parametrize("name", TOOLS.list())
def test_every_tool_for_files_or_programs_declares_what_it_does(name: str) -> None:
    """Rules are matched and turns are ordered by it; undeclared is everything."""
    tool = TOOLS.get(name)
    assert tool is not None
    assert tool.actions is not no_actions or tool.access in (Access.SESSION, Access.NETWORK)


def declared(actions: Any, access: Access = Access.EXEC, order: Order = UNSAFE) -> Intent:
    """What a call of a tool with this declaration is going to do."""
    tool = TOOLS.get("run_code")
    assert tool is not None
    entry = replace(tool.entry, access=access)
    tool = replace(tool, entry=entry, order=order, actions=actions or no_actions)
    return intent_of(tool, None, Context("1", entry, surroundings(load())))


def test_a_declaration_that_fails_costs_only_company() -> None:
    """A tool whose declaration raises is taken to touch everything."""

    def broken(context: Context, given: Any) -> Sequence[Action]:
        raise ZeroDivisionError

    assert declared(broken) == Intent(UNSAFE, reads_all=True, writes_all=True)


def test_a_path_that_is_refused_touches_nothing() -> None:
    """The call will be refused by the tool, so it waits for nobody."""
    assert intended("delete_file", path="../x") == Intent(SAFE)


@pytest.mark.parametrize(
    "command",
    ["ln -s a l; echo x > l", "mv l m && echo x > m", "cp -a d e; echo x > e/l", "make > log"],
)
def test_a_command_that_makes_links_and_writes_may_write_anywhere(command: str) -> None:
    """The links that it follows are not there yet when the paths are looked up."""
    assert run(command).writes is None


# ─── who waits for whom ─────────────────────────────────────────────────────────────

READ_A, READ_C = effects("read_file", path="a"), effects("read_file", path="c")
EDIT_B = effects("edit_file", path="b", old_string="x", new_string="y")


def link(path: str, *passed: str, to: str) -> Place:
    """A link."""
    return Place(to, path, State.THERE, "f", to, links=passed or (path,))


def new(path: str, first: str) -> Place:
    """A path of which nothing is there from `first` on."""
    return Place(path, path, State.MISSING, missing=first)


def write(path: str, *places: Place) -> Effects:
    """A `write_file`."""
    return effects("write_file", places, path=path, content="")


@pytest.mark.parametrize(
    ("earlier", "later", "waits"),
    [
        (READ_A, READ_A, False),
        (EDIT_B, READ_C, False),
        (EDIT_B, effects("read_file", path="b"), True),
        (effects("read_file", path="b"), EDIT_B, True),
        (EDIT_B, write("c"), True),
        (EDIT_B, run("ls"), True),
        (EDIT_B, run("cat b"), True),
        (EDIT_B, run("cat c"), False),
        (EDIT_B, run("ls /usr/bin"), False),
        (EDIT_B, run("cat /tmp/x"), True),
        (EDIT_B, effects("grep", pattern="x", path="d"), False),
        (EDIT_B, effects("grep", pattern="x"), True),
        (EDIT_B, effects("glob", pattern="*", path="d"), False),
        (write("new", new("new", "new")), effects("glob", pattern="*", path="d"), True),
        (effects("delete_file", path="b"), effects("list_directory", path="d"), True),
        (write("d/.gitignore"), effects("grep", pattern="x", path="d/e"), True),
        (write(".gitignore"), effects("glob", pattern="*", path="d/e"), True),
        (write("x"), effects("read_file", path="x/y"), True),
        (effects("delete_file", path="d"), effects("read_file", path="d/e/f"), True),
        (effects("delete_file", path="d"), effects("read_file", path="dd"), False),
        (effects("move_file", **{"from": "d", "to": "e"}), effects("read_file", path="e/f"), True),
        (effects("move_file", **{"from": "d", "to": "e"}), READ_A, False),
        (run("rm a"), READ_A, True),
        (run("rm a"), READ_C, False),
        (run("rm -r d"), READ_C, True),
        (run("make"), READ_C, True),
        (READ_C, run("make"), True),
        (run("make"), run("true"), True),
        (run("cat b"), run("ls"), False),
        (run("cd d"), READ_A, True),
        (READ_A, run("cd d"), True),
        (effects("edit_file", [link("l", to="b")], path="l", old_string="", new_string=""),
         effects("read_file", path="b"), True),
        (EDIT_B, effects("read_file", [link("l", "k", "l", to="b")], path="l"), True),
        (effects("delete_file", [link("l", to="b")], path="l"),
         effects("read_file", path="b"), False),
        (effects("delete_file", [link("l", to="b")], path="l"),
         effects("read_file", [link("m", "m", "l", to="b")], path="m"), True),
        (write("n/x", new("n/x", "n")), effects("read_file", [new("n/y", "n")], path="n/y"), True),
            (effects("run_command", [there("a", shared=True)], command="echo >> a"), READ_C, True),
        (EDIT_B, effects("read_file", [there("c", shared=True)], path="c"), False),
        (effects("todo_write", todos=[]), READ_A, False),
        (effects("todo_write", todos=[]), effects("todo_write", todos=[]), True),
        (effects("complete_task", summary="x"), READ_A, False),
    ],
)  # fmt: skip
def test_a_call_waits_for_what_it_depends_on(earlier: Effects, later: Effects, waits: bool) -> None:
    """Unless what both touch is known and disjoint; unsafe calls keep their order anyway."""
    assert must_wait(later, earlier) is waits


@given(
    path=st.lists(st.sampled_from("ab"), max_size=3).map("/".join),
    other=st.lists(st.sampled_from("ab"), max_size=3).map("/".join),
    deep=st.booleans(),
)
def test_a_write_meets_all_that_it_may_reach(path: str, other: str, deep: bool) -> None:
    """What is at or below a written path is touched, and what is read with all below it."""
    writer = Effects(UNSAFE, writes=(Area(path),))
    reader = Effects(SAFE, reads=(Area(other, deep),))
    parts, others = [p for p in path.split("/") if p], [p for p in other.split("/") if p]
    below = others[: len(parts)] == parts
    above = deep and parts[: len(others)] == others
    assert disturbs(writer, reader) is (below or above)


# ─── the order ──────────────────────────────────────────────────────────────────────


class Play:
    """A schedule, played by hand."""

    def __init__(self, *calls: Effects, close: bool = True) -> None:
        self.schedule = Schedule()
        self.calls = list(calls)
        self.running: list[int] = []
        for _ in calls:
            self.schedule.add()
        if close:
            self.schedule.close()

    def go(self) -> list[int]:
        """What starts now."""
        started: list[int] = []
        while (step := self.schedule.step()).learn or step.start:
            for position in step.start:
                self.schedule.start(position)
                started.append(position)
            for position in step.learn:
                self.schedule.learn(position, self.calls[position])
                if self.calls[position].order is BARRIER:
                    break
        self.running += started
        return started

    def end(self, position: int) -> list[int]:
        """A call ends; what starts then."""
        self.running.remove(position)
        self.schedule.end(position)
        return self.go()


def test_the_example_of_the_specification() -> None:
    """[Read A, Edit B, Read C, Bash "ls"]: Read C passes Edit B, and `ls`, which sees B, waits."""
    play = Play(READ_A, EDIT_B, READ_C, run("ls"))
    assert play.go() == [0, 1, 2]
    assert play.end(0) == []
    assert play.end(1) == [3]
    assert (play.end(2), play.end(3), play.schedule.is_over) == ([], [], True)


EVERYTHING = Effects(UNSAFE, None, None, reshapes=True)
NO_FILES = Effects(SAFE)
WALL = Effects(BARRIER, None, None, reshapes=True)
END = Effects(LAST)


@pytest.mark.parametrize(
    ("calls", "waves"),
    [
        ([], [[]]),
        ([READ_A] * 3, [[0, 1, 2]]),
        ([EDIT_B, EDIT_B, READ_C], [[0, 2], [1]]),
        ([EVERYTHING, READ_A, NO_FILES], [[0, 2], [1]]),
        ([READ_A, WALL, READ_A, READ_A], [[0], [1], [2, 3]]),
        ([WALL, WALL, NO_FILES], [[0], [1], [2]]),
        ([END, READ_A, END, EDIT_B], [[1, 3], [0], [2]]),
        ([END] * (LOOKAHEAD + 5) + [READ_A], [[LOOKAHEAD + 5], *([n] for n in range(105))]),
        ([READ_A] * 25, [list(range(10)), list(range(10, 20)), list(range(20, 25))]),
    ],
)
def test_what_starts_when_all_that_runs_has_ended(
    calls: list[Effects], waves: list[list[int]]
) -> None:
    """Wave after wave, with `MAX_PARALLEL` calls at a time."""
    play = Play(*calls)
    found = [play.go()]
    while play.running:
        for position in play.running:
            play.schedule.end(position)
        play.running = []
        found.append(play.go())
    assert found == ([*waves, []] if calls else waves)
    assert play.schedule.is_over


def test_the_last_waits_for_calls_that_may_still_come() -> None:
    """While a model is still streaming, nobody knows whether there are others."""
    play = Play(END, close=False)
    assert play.go() == []
    play.calls.append(READ_A)
    play.schedule.add()
    assert play.go() == [1]
    assert play.end(1) == []
    play.schedule.close()
    assert play.go() == [0]


def test_what_a_reshaped_path_leads_to_is_found_anew() -> None:
    """Until a link is moved nobody knows what a call behind it writes, so others wait for it."""
    move = Effects(UNSAFE, (), (Area("l", True), Area("m", True)), reshapes=True)
    through = Effects(UNSAFE, (), (Area("m", True),))
    play = Play(move, through, READ_A)
    assert play.go() == [0]
    play.calls[1] = Effects(UNSAFE, (), (Area("a"),))
    assert play.end(0) == [1]
    assert play.end(1) == [2]


AREAS = st.one_of(
    st.none(),
    st.lists(st.builds(Area, st.sampled_from(["", "a", "b", "a/b"]), st.booleans())).map(tuple),
)
EFFECTS = st.builds(
    Effects,
    st.sampled_from([SAFE, SAFE, UNSAFE, BARRIER, LAST]),
    AREAS,
    AREAS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(calls=st.lists(EFFECTS, max_size=25), data=st.data())
def test_whatever_ends_first_dependent_calls_keep_their_order(
    calls: list[Effects], data: st.DataObject
) -> None:
    """Every call runs once, none beside or before one it waits for, the last ones last."""
    play = Play(*calls)
    ended: list[int] = []
    play.go()
    while play.running:
        assert len(play.running) <= MAX_PARALLEL
        for position in play.running:
            before = [p for p in range(position) if p not in ended and calls[p].order is not LAST]
            assert not any(must_wait(calls[position], calls[p]) for p in before)
            if calls[position].order is LAST:
                assert play.running == [position]
                assert all(calls[p].order is LAST for p in range(len(calls)) if p not in ended)
        position = data.draw(st.sampled_from(sorted(play.running)))
        ended.append(position)
        play.end(position)
    assert sorted(ended) == list(range(len(calls)))
    assert play.schedule.is_over
