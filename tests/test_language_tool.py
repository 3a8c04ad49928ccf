"""The tool `lsp`: what it takes, when a loop has it, and how answers look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from executor import toolsets
from executor.catalog import load
from executor.catalog_servers import LanguageEntry
from executor.code_questions import CodeQuestion, Found, Spot
from executor.errors import AgentLost, Code
from executor.model import Call, Limits, Result
from executor.permissions import Mode
from executor.pipeline import Pipeline
from executor.results import size_of
from executor.session import Session
from executor.tool import Context, Order, Surroundings
from tests.loops import Work, open_work
from tests.words import WORDS, with_words

CATALOG = load()
PLACED = ("goto_definition", "hover", "find_references", "rename_preview")
ALL = (*PLACED, "diagnostics", "document_symbols")
EMPTY = Found("words")
HERE = {"path": "a.py", "line": 3, "column": 5, "new_name": "new"}


class NoBox:
    """A box that nobody may ask for."""

    async def ready(self) -> None:
        """There is none."""
        raise AgentLost("asked for a box")

    async def request(self, *given: Any, **more: Any) -> Any:
        """There is none."""
        raise AgentLost("asked for a box")


@dataclass
class Answerer:
    """Language servers whose answer is known before.

    Attributes:
        found: the answer.
        reason: why there are none.
        asked: what was asked.
    """

    found: Found
    reason: str | None = None
    asked: list[CodeQuestion] = field(default_factory=list)

    def missing(self, around: Surroundings) -> str | None:
        """Why there are none."""
        return self.reason

    async def ask(self, context: Context, question: CodeQuestion) -> Found:
        """The answer."""
        self.asked.append(question)
        return self.found


def surroundings(toolset: str = "standard", **more: Any) -> Surroundings:
    return Surroundings(
        "test",
        Session(),
        Limits(),
        lane="no-net",
        toolset=CATALOG.toolsets[toolset],
        roots=("/home/u/wt",),
        box=NoBox(),
        **more,
    )


def answered(answerer: Answerer | None, toolset: str = "standard", /, **given: Any) -> Result:
    """The result of a call of the toolset's tool."""
    pipeline = Pipeline(toolsets.registry(toolset, CATALOG))
    name = "lsp" if toolset == "standard" else "LSP"
    around = surroundings(toolset, languages=answerer)
    return asyncio.run(pipeline.answer(Call("1", name, given), around)).result


def shown(found: Found, operation: str = "find_references", toolset: str = "standard") -> Result:
    """What a model is shown of an answer."""
    path = "path" if toolset == "standard" else "file_path"
    given = {path: "a.py", "line": 3, "column": 5}
    if operation == "rename_preview":
        given["new_name"] = "new"
    return answered(Answerer(found), toolset, operation=operation, **given)


def spots(count: int, text: str = "x = 1") -> tuple[Spot, ...]:
    return tuple(Spot("d/a.py", line, 2, line, 3, text) for line in range(1, count + 1))


# ─── what it takes ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", ALL)
def test_a_question_has_what_its_operation_needs(operation: str) -> None:
    """A place is passed on where it is needed, and passed over elsewhere; so is the new name."""
    answerer = Answerer(EMPTY)
    assert answered(answerer, operation=operation, **HERE).code is None
    [question] = answerer.asked
    place = (3, 5) if operation in PLACED else (None, None)
    assert (question.operation, question.path) == (operation, "a.py")
    assert (question.line, question.column) == place
    assert question.new_name == ("new" if operation == "rename_preview" else None)


@pytest.mark.parametrize("operation", PLACED)
def test_what_is_missing_is_named(operation: str) -> None:
    """A place is asked of whoever left it out, and nobody else is asked."""
    answerer = Answerer(EMPTY)
    result = answered(answerer, operation=operation, path="a.py", column=None)
    assert result.code is Code.INVALID_ARGUMENTS
    for name in ("line", "column"):
        assert f"{name} is required for {operation}" in str(result.content)
    assert ("new_name" in str(result.content)) == (operation == "rename_preview")
    assert result.details is not None
    assert {"field": "line", "message": f"is required for {operation}"} in result.details["faults"]
    assert answerer.asked == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"line": 0}, "line must be 1 or more, not 0"),
        ({"column": -1}, "column must be 1 or more, not -1"),
        ({"line": "3"}, "line must be a whole number, not the text '3'"),
        ({"operation": "rename"}, "operation must be one of 'goto_definition', 'hover'"),
        ({"new_name": ""}, "new_name must have 1 or more"),
        ({"new_name": "x" * 1001}, "new_name must have 1000 or fewer"),
        ({"new_name": "\ud800"}, "new_name holds half a character"),
        ({"file_path": "a.py"}, "file_path is not an argument of this tool; did you mean path"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, Any], said: str) -> None:
    """With the field, as by any tool."""
    answerer = Answerer(EMPTY)
    result = answered(answerer, **{"operation": "rename_preview", **HERE, **given})
    assert result.code is Code.INVALID_ARGUMENTS
    assert said in str(result.content)
    assert answerer.asked == []


@pytest.mark.parametrize("path", ["/workspace/d/a.py", "/home/u/wt/d/a.py", "d/./a.py"])
def test_a_path_is_asked_as_tools_name_it(path: str) -> None:
    """However a model writes it."""
    answerer = Answerer(EMPTY)
    answered(answerer, operation="diagnostics", path=path)
    assert [question.path for question in answerer.asked] == ["d/a.py"]


def test_a_path_elsewhere_is_refused() -> None:
    """Before any server is asked; where a toolset sees all of the box, it is asked."""
    answerer = Answerer(EMPTY)
    result = answered(answerer, operation="diagnostics", path="/usr/lib/x.py")
    assert result.code is Code.INVALID_PATH
    assert answerer.asked == []
    given = {"operation": "hover", "file_path": "/usr/lib/x.py", "line": 1, "column": 1}
    assert answered(answerer, "claude-code", **given).code is None
    assert answerer.asked == [CodeQuestion("hover", "/usr/lib/x.py", 1, 1)]


def test_the_other_toolset_needs_a_place_always() -> None:
    """The seed's arguments, all of them, and its three operations."""
    result = answered(Answerer(EMPTY), "claude-code", operation="diagnostics", path="a.py")
    assert result.code is Code.INVALID_ARGUMENTS
    for said in ("operation must be one of", "file_path is required", "line is required"):
        assert said in str(result.content)


# ─── when a loop has it ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("toolset", ["standard", "claude-code"])
def test_without_servers_it_is_disabled_with_the_reason(toolset: str) -> None:
    """It is neither shown nor run."""
    pipeline = Pipeline(toolsets.registry(toolset, CATALOG))
    for answerer, reason in (
        (None, "the loop has no language servers"),
        (Answerer(EMPTY, "there is none in the image"), "there is none in the image"),
    ):
        around = surroundings(toolset, languages=answerer)
        name = "lsp" if toolset == "standard" else "LSP"
        assert pipeline.disabled(around)[name] == reason
        assert name not in {tool.name for tool in pipeline.enabled(around)}
        result = answered(answerer, toolset, operation="hover", **HERE)
        assert (result.code, reason in str(result.content)) == (Code.DISABLED, True)
    assert name in {tool.name for tool in pipeline.enabled(surroundings(languages=Answerer(EMPTY)))}


def test_loom_has_none() -> None:
    """Its specification has no such tool."""
    canonical = {tool.canonical for tool in toolsets.registry("loom", CATALOG).all()}
    assert "lsp" not in canonical


@pytest.mark.parametrize(("toolset", "name"), [("standard", "lsp"), ("claude-code", "LSP")])
def test_it_only_reads(toolset: str, name: str) -> None:
    """So it runs beside others, and no mode asks before it."""
    tool = toolsets.registry(toolset, CATALOG).get(name)
    assert tool is not None
    assert (tool.access, tool.order, tool.is_mutating) == ("read", Order.SAFE, False)


# ─── how answers look ───────────────────────────────────────────────────────────────


def test_a_place_is_a_line() -> None:
    """Path, line, column, and what stands there; one whose text is unknown is a place alone."""
    result = shown(
        Found(
            "words",
            (
                Spot("d/a.py", 3, 5, 3, 9, "    def f():"),
                Spot("/usr/lib/b.py", 1, 1, 2, 4),
                Spot("odd\n\udcff.py", 7, 1, 7, 1, "x"),
                Spot("jdt://a/B.class", 1, 1, 1, 2, is_file=False),
            ),
            4,
        )
    )
    assert result.content == (
        "d/a.py:3:5:     def f():\n/usr/lib/b.py:1:1\nodd\\x0a\\xff.py:7:1: x\njdt://a/B.class:1:1"
    )
    assert result.structured == {
        "operation": "find_references",
        "server": "words",
        "locations": [
            {
                **{"path": "d/a.py", "line": 3, "column": 5},
                **{"end_line": 3, "end_column": 9, "text": "    def f():", "is_file": True},
            },
            {
                **{"path": "/usr/lib/b.py", "line": 1, "column": 1},
                **{"end_line": 2, "end_column": 4, "text": "", "is_file": True},
            },
            {
                **{"path": "odd\n\udcff.py", "line": 7, "column": 1},
                **{"end_line": 7, "end_column": 1, "text": "x", "is_file": True},
            },
            {
                **{"path": "jdt://a/B.class", "line": 1, "column": 1},
                **{"end_line": 1, "end_column": 2, "text": "", "is_file": False},
            },
        ],
        "total": 4,
        "hidden": 0,
        "text": None,
        "notes": [],
    }
    assert (result.truncated, result.total_bytes) == (False, size_of(str(result.content)))


def test_the_other_toolset_shows_whole_paths() -> None:
    """As it does everywhere."""
    result = shown(Found("words", spots(1), 1), "goto_definition", "claude-code")
    assert result.content == "/workspace/d/a.py:1:2: x = 1"


def test_a_place_stays_on_its_line() -> None:
    """Whatever a server made of it."""
    result = shown(Found("words", spots(1, "a\r\nb\rc"), 1), "rename_preview")
    assert str(result.content).splitlines()[0] == "d/a.py:1:2: a\\r\\nb\\rc"


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        ("goto_definition", "No definition found."),
        ("hover", "No information found."),
        ("find_references", "No references found."),
        ("diagnostics", "No problems reported."),
        ("document_symbols", "No symbols found."),
        ("rename_preview", "Nothing found that would be renamed."),
    ],
)
def test_nothing_is_said_in_words(operation: str, said: str) -> None:
    """And is no error; what has to be known of it follows."""
    assert shown(Found("words"), operation).content == said
    result = shown(Found("words", notes=("the place is a⟦here⟧\nb",)), operation)
    assert (result.content, result.code) == (f"{said}\n[the place is a⟦here⟧\\nb]", None)
    assert result.structured is not None
    assert result.structured["notes"] == ["the place is a⟦here⟧\\nb"]


def test_hidden_places_are_counted() -> None:
    """An answer never looks whole that is not, nor empty that was not."""
    some = shown(Found("words", spots(2), 5, hidden=3))
    assert str(some.content).splitlines()[2:] == [
        "[3 more are where the rules let this loop read nothing]"
    ]
    assert some.truncated is False
    none = shown(Found("words", (), 1, hidden=1))
    assert none.content == (
        "Nothing that can be shown.\n[1 more is where the rules let this loop read nothing]"
    )
    assert none.structured is not None
    assert (none.structured["total"], none.structured["hidden"]) == (1, 1)


def test_places_beyond_the_cap_are_counted() -> None:
    """Those that the loop may not see are not among those that it might have seen."""
    result = shown(Found("words", spots(200), 515, hidden=3))
    lines = str(result.content).splitlines()
    assert len(lines) == 202
    assert lines[200] == "[200 of 512 are shown]"
    assert (result.truncated, result.total_bytes) == (True, None)


@pytest.mark.parametrize("toolset", ["standard", "claude-code"])
def test_lines_that_do_not_fit_are_counted(toolset: str) -> None:
    """No line is cut, and the notices have their place."""
    notes = tuple("n" * 1000 for _ in range(5))
    found = Found("words", spots(200, "é" * 1000), 200, notes=notes)
    result = shown(found, "find_references", toolset)
    tool = toolsets.registry(toolset, CATALOG).get("lsp" if toolset == "standard" else "LSP")
    assert tool is not None
    entry = tool.entry
    assert size_of(str(result.content), entry.unit) <= entry.max_output_bytes
    lines = str(result.content).splitlines()
    places = [line for line in lines if line.startswith(("d/a.py", "/workspace"))]
    assert 0 < len(places) < 200 and all(line.endswith("é" * 1000) for line in places)
    assert lines[len(places)] == f"[{len(places)} of 200 are shown]"
    assert lines[-1] == f"[{'n' * 499}…]"
    assert result.structured is not None
    assert len(result.structured["locations"]) == len(places)
    assert (result.truncated, result.spill) == (True, None)


def test_hover_is_shown_as_it_is() -> None:
    """With its lines, and harmless: no sequence of a terminal, nothing that hides."""
    text = "```python\ndef f(a: int) -> str\n```\n\tSays \x1b[31mred\u202e.\n"
    result = shown(Found("words", text=text), "hover")
    harmless = "```python\ndef f(a: int) -> str\n```\n\tSays \\x1b[31mred\\u202e."
    assert result.content == harmless
    assert result.structured is not None
    assert (result.structured["text"], result.structured["locations"]) == (harmless, [])


def test_a_long_hover_is_cut_and_said() -> None:
    """As any output."""
    result = shown(Found("words", text="line\n" * 40_000), "hover")
    assert (result.truncated, result.total_bytes) == (True, 199_999)
    assert size_of(str(result.content)) <= CATALOG.tools["lsp"].max_output_bytes


def test_a_preview_says_that_it_is_one() -> None:
    """Nothing was changed, and what does it is named."""
    result = shown(Found("words", spots(1), 1, notes=("renames a.py to b.py",)), "rename_preview")
    assert str(result.content).splitlines()[1:] == [
        "[nothing was changed: make these changes with edit_file]",
        "[renames a.py to b.py]",
    ]


# ─── in loops ───────────────────────────────────────────────────────────────────────

TEXT = "one two\nthree wrong\nüñ two \U0001d4b3 two\n"


def open_words(kind: str, directory: Path, **more: Any) -> Any:
    def change(spec: Any) -> Any:
        return replace(spec, **more)

    return open_work(kind, directory, change=change, catalog=with_words())


@pytest.fixture(scope="module", params=["local", "docker"])
def work(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Work]:
    """One loop a module, over each transport, which has a server of words."""
    with open_words(request.param, tmp_path_factory.mktemp(request.param)) as opened:
        opened.write("d/a.txt", TEXT)
        yield opened


@pytest.mark.parametrize(
    ("operation", "place", "expected"),
    [
        ("goto_definition", (3, 10), "d/a.txt:1:5: one two"),
        (
            "find_references",
            (1, 5),
            "d/a.txt:1:5: one two\n"
            "d/a.txt:3:4: üñ two \U0001d4b3 two\n"
            "d/a.txt:3:10: üñ two \U0001d4b3 two",
        ),
        ("hover", (3, 8), "the word \U0001d4b3"),
        ("diagnostics", (), "d/a.txt:2:7: error: this word is wrong"),
        (
            "rename_preview",
            (2, 1),
            "d/a.txt:2:1: 3 wrong\n[nothing was changed: make these changes with edit_file]",
        ),
    ],
)
def test_a_server_answers(
    work: Work, operation: str, place: tuple[int, ...], expected: str
) -> None:
    """A real one, by characters as people count them; and no file has changed."""
    given = dict(zip(("line", "column"), place, strict=False))
    if operation == "rename_preview":
        given["new_name"] = "3"  # type: ignore[assignment]
    result = work.call("lsp", operation=operation, path="d/a.txt", **given)
    assert (result.content, result.code) == (expected, None)
    assert (work.root / "d/a.txt").read_text() == TEXT


def test_symbols_are_listed(work: Work) -> None:
    """One to a line, where it is named."""
    result = work.call("lsp", operation="document_symbols", path="d/a.txt")
    lines = str(result.content).splitlines()
    assert len(lines) == 8
    assert lines[0].startswith("d/a.txt:1:1: ") and lines[0].endswith(" one")


def test_a_place_that_is_not_there_is_refused(work: Work) -> None:
    """With what the file has."""
    for line, column, said in ((9, 1, "There is no line 9"), (1, 9, "There is no column 9")):
        given = {"operation": "hover", "path": "d/a.txt", "line": line, "column": column}
        result = work.call("lsp", **given)
        assert (result.code, said in str(result.content)) == (Code.INVALID_ARGUMENTS, True)


def test_a_file_without_a_server_is_told_at_once(work: Work) -> None:
    """With the extensions that have one."""
    result = work.call("lsp", operation="diagnostics", path="d/a.xyz")
    assert result.code is Code.UNSUPPORTED
    assert ".xyz" in str(result.content) and ".txt" in str(result.content)


def test_it_runs_beside_its_neighbours(work: Work) -> None:
    """Whatever is asked in one turn has answers in order, and a change is seen by what follows."""
    asked = {"operation": "goto_definition", "path": "turn.txt", "line": 1, "column": 1}
    results = work.turn(
        ("write_file", {"path": "turn.txt", "content": "new\n"}),
        ("lsp", asked),
        ("lsp", {**asked, "operation": "hover"}),
        ("run_command", {"command": "echo newer > turn.txt"}),
        ("lsp", {**asked, "operation": "hover"}),
    )
    assert [result.code for result in results] == [None] * 5
    assert [result.content for result in results[1:3]] == ["turn.txt:1:1: new", "the word new"]
    assert results[4].content == "the word newer"


@pytest.mark.parametrize("mode", [Mode.PLAN, Mode.DEFAULT])
def test_modes_let_it_read_and_rules_do_not(tmp_path: Path, mode: Mode) -> None:
    """Nobody is asked; what may not be read is refused before any server hears of it."""
    denying = {"mode": mode, "deny": ("read_file(secret/)",)}
    with open_words("local", tmp_path, **denying) as work:
        for path in ("a.txt", "secret/a.txt"):
            work.write(path, TEXT)
        asked = {"operation": "hover", "line": 1, "column": 1}
        assert work.call("lsp", path="a.txt", **asked).content == "the word one"
        denied = work.call("lsp", path="secret/a.txt", **asked)
        assert denied.code is Code.PERMISSION_DENIED
        assert "word" not in str(denied.content)


def test_the_other_toolset_asks_the_same_server(tmp_path: Path) -> None:
    """By its own names, relative to where the last command ended."""
    with open_words("docker", tmp_path, toolset="claude-code") as work:
        work.write("d/a.txt", TEXT)
        work.call("Bash", command="cd d")
        given = {"file_path": "a.txt", "line": 3, "column": 5}
        result = work.call("LSP", operation="goto_definition", **given)
        assert result.content == "/workspace/d/a.txt:1:5: one two"
        missing = work.call("LSP", operation="hover", **{**given, "file_path": "none.txt"})
        assert missing.code is Code.FILE_NOT_FOUND
        [shown] = [one for one in work.loop.definitions() if one["name"] == "LSP"]
        assert shown["description"].startswith("Perform LSP operations: go-to-definition, hover")


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_a_box_without_a_server_has_no_tool(tmp_path: Path, kind: str) -> None:
    """The image decides: what it would have to have is named, and the call costs no box."""
    there_is_none = LanguageEntry({".txt": "plaintext"}, (("no-such-server", "--stdio"),))
    catalog = replace(load(), languages={"words": there_is_none})
    with open_work(kind, tmp_path, catalog=catalog) as work:
        told = "no language server when it began (none of no-such-server)"
        assert told in work.loop.disabled()["lsp"]
        assert "lsp" not in json.dumps(work.loop.definitions())
        result = work.call("lsp", operation="diagnostics", path="a.txt")
        assert result.code is Code.DISABLED
        assert "no-such-server" in str(result.content)


def test_a_language_that_is_off_has_no_server(tmp_path: Path) -> None:
    """`enabled = false` of the catalog."""
    catalog = replace(load(), languages={"words": replace(WORDS, enabled=False)})
    with open_work("local", tmp_path, catalog=catalog) as work:
        assert "lsp" in work.loop.disabled()
