"""Language servers that others wrote, in a container, about projects that change under them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.model import Result
from tests.driver import wait_until
from tests.foreign.test_client import said
from tests.language.desks import Desk, locations, open_desk, restore
from tests.language.projects import CLANGD, JEDI, PROJECTS, PYRIGHT, TYPESCRIPT, Project
from tests.servers_image import servers_image

__all__ = ["servers_image"]


@pytest.fixture(scope="module", params=PROJECTS, ids=lambda project: project.server)
def shared(
    request: pytest.FixtureRequest, servers_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """One loop for each server."""
    directory = tmp_path_factory.mktemp(request.param.server)
    with open_desk(servers_image, directory, request.param) as desk:
        yield desk


@pytest.fixture
def desk(shared: Desk) -> Desk:
    """The loop, with the project as it is in the beginning: to the server that is a change."""
    restore(shared)
    return shared


# ─── one question each ──────────────────────────────────────────────────────────────


def test_definition_in_another_file(desk: Desk) -> None:
    """From a name behind characters beyond the first plane, to the character."""
    assert desk.places("goto_definition", desk.project.use) == [desk.project.definition]


def test_every_character_of_a_name_means_it(desk: Desk) -> None:
    """Its first and its last one."""
    path, line, column = desk.project.use
    last = path, line, column + len(desk.project.foo) - 1
    assert desk.places("goto_definition", last) == [desk.project.definition]


def test_definition_behind_odd_characters(desk: Desk) -> None:
    """Columns of answers are characters, however the server counts."""
    project = desk.project
    asked = project.find(project.main, project.answer)[-1]
    [found] = locations(desk.ask("goto_definition", asked))
    [place] = project.find(project.other, project.answer)
    assert (found["path"], found["line"], found["column"]) == place
    assert found["end_column"] - found["column"] == len(project.answer)
    assert found["text"].strip() == project.files[project.other].split("\n")[place[1] - 1].strip()


def test_hover_says_what_it_is(desk: Desk) -> None:
    """Signature and description come from the other file."""
    told = said(desk.ask("hover", desk.project.use))
    assert desk.project.says.rstrip(".") in told
    assert desk.project.foo in told


def test_references_in_all_files(desk: Desk) -> None:
    """Each of them, and the definition, to the character."""
    assert sorted(desk.places("find_references", desk.project.use)) == desk.project.uses


def test_symbols_of_a_file(desk: Desk) -> None:
    """With kind and name, where the name stands."""
    found = locations(desk.ask("document_symbols", desk.project.definition))
    told = {one["text"].strip(): (one["path"], one["line"], one["column"]) for one in found}
    assert told[f"function {desk.project.foo}"] == desk.project.definition
    assert desk.project.find(desk.project.other, desk.project.answer)[0] in told.values()


def test_rename_preview_shows_every_line(desk: Desk) -> None:
    """As it would be; and changes nothing."""
    project = desk.project
    found = locations(desk.ask("rename_preview", project.use, new_name="Quux"))
    told = {(one["path"], one["line"]): one["text"].strip() for one in found}
    wanted = {
        (path, line): re.sub(
            rf"\b{project.foo}\b", "Quux", project.files[path].split("\n")[line - 1]
        ).strip()
        for path, line, _ in project.uses
    }
    assert told == wanted
    assert desk.files() == project.files


def test_a_name_that_nobody_knows(desk: Desk) -> None:
    """Nothing is found on an empty line, and the answer shows what stands at the place."""
    project = desk.project
    empty = project.files[project.other].split("\n").index("") + 1
    result = desk.work.call(
        "lsp", operation="find_references", path=project.other, line=empty, column=1
    )
    assert not _found(result), said(result)
    beyond = desk.work.call(
        "lsp", operation="goto_definition", path=project.main, line=1, column=999
    )
    assert beyond.is_error
    assert "999" in said(beyond)


def _found(result: Result) -> list[dict[str, Any]]:
    return [] if result.is_error else locations(result)


# ─── after a change ─────────────────────────────────────────────────────────────────


def test_a_line_that_a_command_put_before(desk: Desk) -> None:
    """Casebook 99: no tool knows of the change, and the answer is of the file as it is now."""
    project = desk.project
    path, line, column = project.definition
    assert desk.places("goto_definition", project.use) == [project.definition]
    desk.run(f"sed -i {shlex.quote('1i ' + project.comment)} {project.other}")
    assert desk.places("goto_definition", project.use) == [(path, line + 1, column)]
    wanted = sorted(place for name in project.files for place in desk.find(name, project.foo))
    assert sorted(desk.places("find_references", project.use)) == wanted


def test_an_edit_of_the_file_that_is_asked_about(desk: Desk) -> None:
    """What edit_file wrote is asked about at once, twice."""
    project = desk.project
    line = project.files[project.main].split("\n")[project.use[1] - 1]
    for count in (1, 2):
        desk.work.call("read_file", path=project.main)
        edited = desk.work.call(
            "edit_file", path=project.main, old_string=line, new_string=f"{project.comment}\n{line}"
        )
        assert not edited.is_error, said(edited)
        use = desk.find(project.main, project.foo)[-1]
        assert use[1] == project.use[1] + count
        assert desk.places("goto_definition", use) == [project.definition]
        assert use in desk.places("find_references", use)


def test_a_new_file_and_its_end(desk: Desk) -> None:
    """Its places are found at once, and no more once it is deleted."""
    project = desk.project
    name, text = project.new
    assert sorted(desk.places("find_references", project.use)) == project.uses
    written = desk.work.call("write_file", path=name, content=text)
    assert not written.is_error, said(written)
    uses = project.find(name, project.foo, {name: text})
    assert sorted(desk.places("find_references", project.use)) == sorted([*project.uses, *uses])
    desk.run(f"rm {name}")
    assert sorted(desk.places("find_references", project.use)) == project.uses


def test_more_changes_than_a_server_is_sent(desk: Desk) -> None:
    """Twenty-four new files by one command, and their end: it is started anew and knows them.

    No more than that: jedi looks into thirty files at most.
    """
    project = desk.project
    name, text = project.new
    stem, suffix = name.split(".")
    made = {f"{stem}{one}.{suffix}": text.replace("baz", f"baz{one}") for one in range(10, 34)}
    desk.ask("find_references", project.use)
    desk.work.write("all.txt", text)
    copy = f'sed "s/baz/baz$i/" all.txt > {stem}$i.{suffix}'
    desk.run(f"for i in $(seq 10 33); do {copy}; done")
    uses = [place for path in made for place in project.find(path, project.foo, made)]
    # To clangd files that its database does not name are none of the project.
    wanted = project.uses if project.server == "clangd" else sorted([*project.uses, *uses])
    assert sorted(desk.places("find_references", project.use)) == wanted
    desk.run(f"rm {' '.join(made)}")
    assert sorted(desk.places("find_references", project.use)) == project.uses


def test_an_error_and_its_mending(desk: Desk) -> None:
    """Reported after the change that makes it, and no more after the one that mends it."""
    project = desk.project
    assert desk.errors() == []
    desk.run(f"printf '%s\\n' {shlex.quote(project.bad)} >> {project.main}")
    last = project.files[project.main].count("\n") + 1
    assert [line for line, _ in desk.errors()] == [last]
    desk.run(f"sed -i '$d' {project.main}")
    assert desk.errors() == []


@pytest.mark.parametrize(
    "shared",
    [project for project in PROJECTS if project.broken is not None],
    indirect=True,
    ids=lambda project: project.server,
)
def test_an_error_by_another_file(desk: Desk) -> None:
    """The change of what is called makes the call an error, though its file is as it was."""
    project = desk.project
    assert desk.errors() == []
    assert project.broken is not None
    before, after = project.broken
    desk.run(f"sed -i {shlex.quote(f's/{before}/{after}/')} {project.declares}")
    assert [line for line, _ in desk.errors()] == [project.use[1]]
    desk.run(f"sed -i {shlex.quote(f's/{after}/{before}/')} {project.declares}")
    assert desk.errors() == []


# ─── the server's end ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", ["goto_definition", "find_references", "rename_preview"])
def test_the_first_answer_of_a_server_is_whole(desk: Desk, operation: str) -> None:
    """One that is killed is started anew, and asked while it still reads the project."""
    desk.kill()
    more = {"new_name": "Quux"} if operation == "rename_preview" else {}
    found = sorted(desk.places(operation, desk.project.use, **more))
    assert found == ([desk.project.definition] if "goto" in operation else desk.project.uses)


def test_what_happened_while_no_server_was_there(desk: Desk) -> None:
    """A new server knows the files as they are, those that were open too."""
    project = desk.project
    path, line, column = project.definition
    desk.ask("diagnostics")
    desk.kill()
    desk.run(f"sed -i {shlex.quote('1i ' + project.comment)} {project.other} {project.main}")
    use = desk.find(project.main, project.foo)[-1]
    assert desk.places("goto_definition", use) == [(path, line + 1, column)]
    assert desk.errors() == []


# ─── loops of their own ─────────────────────────────────────────────────────────────


def test_the_tool_of_claude_code(servers_image: str, tmp_path: Path) -> None:
    """Its paths are absolute, in questions and answers."""
    path, line, column = JEDI.use
    with open_desk(servers_image, tmp_path, JEDI, "claude-code") as desk:
        root = "/workspace/"
        given = {"file_path": root + path, "line": line, "column": column}
        result = desk.work.call("LSP", operation="goto_definition", **given)
        assert said(result).startswith(f"{root}pkg/a.py:4:5: def foo"), said(result)
        assert "Gives back" in said(desk.work.call("LSP", operation="hover", **given))
        found = said(desk.work.call("LSP", operation="find_references", **given))
        assert f"{root}main.py:{line}:{column}: " in found


def test_a_language_of_ones_own(servers_image: str, tmp_path: Path) -> None:
    """A table of the user's catalog is all that it takes."""
    config = (
        '[languages.mine]\nextensions = {".mine" = "python"}\n'
        'commands = [["no-such-server"], ["jedi-language-server"]]\n'
    )
    project = replace(JEDI, config=config, files={"one.mine": "def foo(): ...\n\n\nfoo()\n"})
    with open_desk(servers_image, tmp_path, project) as desk:
        assert desk.places("goto_definition", ("one.mine", 4, 1)) == [("one.mine", 1, 5)]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.server)
def test_files_that_are_no_plain_text(servers_image: str, tmp_path: Path, project: Project) -> None:
    """Places in files that were never open are counted as they are shown."""
    name, new = project.new
    odd = 's = "éè"; ' if name.endswith(".py") else "/* éè */ "
    new = re.sub(r"\b(\w+\.)?\w+\(9\)", lambda found: odd + found[0], new)
    files = {**project.files, name: new.replace("éè", "\ufffd\ufffd")}
    with open_desk(servers_image, tmp_path, project, empty=True) as desk:
        for path, text in project.files.items():
            mark = b"\xef\xbb\xbf" if path == project.other else b""
            desk.work.write(path, mark + text.encode())
        desk.work.write(name, new.encode("latin-1"))
        wanted = sorted(place for path in files for place in project.find(path, project.foo, files))
        assert sorted(desk.places("find_references", project.use)) == wanted
        assert desk.places("goto_definition", project.use) == [project.definition]


def test_places_outside_of_the_worktree(servers_image: str, tmp_path: Path) -> None:
    """They are named, without the line: no tool of the loop reads there."""
    project = replace(JEDI, files={"main.py": "import json\n\njson.dumps(1)\n"})
    with open_desk(servers_image, tmp_path, project) as desk:
        [found] = locations(desk.ask("goto_definition", ("main.py", 3, 6)))
        assert found["path"].startswith("/usr/lib/python3")
        assert found["path"].endswith("/json/__init__.py")
        assert found["text"] == ""


@pytest.mark.parametrize(
    ("project", "text", "package"),
    [
        (
            TYPESCRIPT,
            'import { z } from "left";\nconsole.log(z);\n',
            "node_modules/left/index.d.ts",
        ),
        (PYRIGHT, "from left import z\n\nprint(z)\n", ".venv/lib/python3.11/site-packages/left.py"),
    ],
    ids=["node_modules", "venv"],
)
def test_what_a_command_has_installed(
    servers_image: str, tmp_path: Path, project: Project, text: str, package: str
) -> None:
    """An import that is missing is there after the installation, and missing again without it."""
    files = {project.main: text, "pyrightconfig.json": '{"venvPath": ".", "venv": ".venv"}\n'}
    declared = "export const z: number;" if package.endswith(".ts") else "z: int = 1"
    with open_desk(servers_image, tmp_path, replace(project, files=files)) as desk:
        desk.run(f"mkdir -p $(dirname $(dirname {package}))")
        # A server that was just started may report in parts, so that the first one is no proof.
        wait_until(lambda: len(desk.errors()) == 1)
        desk.run(f"mkdir -p $(dirname {package}) && echo {shlex.quote(declared)} > {package}")
        assert desk.errors() == []
        desk.run(f"rm -r {package} $(dirname {package})")
        wait_until(lambda: len(desk.errors()) == 1)


@pytest.mark.parametrize("project", [TYPESCRIPT, PYRIGHT], ids=lambda project: project.server)
def test_the_first_answer_in_many_files(
    servers_image: str, tmp_path: Path, project: Project
) -> None:
    """A use in the last of thousands of files is found at once."""
    path, text = project.new
    suffix = path.rpartition(".")[2]
    with open_desk(servers_image, tmp_path, project) as desk:
        desk.run(f"mkdir many && for i in $(seq 3000); do echo > many/x$i.{suffix}; done")
        desk.work.write(path, text)
        uses = project.find(path, project.foo, {path: text})
        assert sorted(desk.places("find_references", project.use)) == sorted([*project.uses, *uses])


def test_a_report_in_parts_is_taken_whole(servers_image: str, tmp_path: Path) -> None:
    """The syntax of a long file is reported seconds before its types: the first answer has both."""
    line = "export const x{0} = [1].map(v => [v].map(w => String(w).split('').map(q => q.length)));"
    text = "\n".join(line.format(number) for number in range(2000))
    files = {"main.ts": f'{text}\nexport const bad: number = "x";\n'}
    with open_desk(servers_image, tmp_path, replace(TYPESCRIPT, files=files)) as desk:
        assert [line for line, _ in desk.errors()] == [2001]


def test_the_compiler_behind_a_server_is_killed(servers_image: str, tmp_path: Path) -> None:
    """As for memory, for example: the server lives on and knows nothing, and is started again."""
    with open_desk(servers_image, tmp_path, TYPESCRIPT) as desk:
        for _ in range(2):
            assert desk.places("goto_definition", TYPESCRIPT.use) == [TYPESCRIPT.definition]
            desk.run("pkill -KILL -f '[t]sserver.js'")
        assert len(desk.errors()) == 0


@pytest.mark.parametrize("project", [TYPESCRIPT, PYRIGHT], ids=lambda project: project.server)
def test_errors_and_their_mending_in_several_files(
    servers_image: str, tmp_path: Path, project: Project
) -> None:
    """Broken and mended at once, and asked about one after the other or in one turn: each answer
    is of the file as it is now, or says that it may lack something, as on a busy machine."""
    suffix = project.main.rpartition(".")[2]
    count, line = {
        "ts": (600, "export const x{0} = [1].map(v => [v].map(w => String(w).split('')));"),
        "py": (600, "x{0} = [[q * {0} for q in [v]] for v in [1]]"),
    }[suffix]
    text = "\n".join(line.format(number) for number in range(count))
    names = [f"{stem}.{suffix}" for stem in ("first", "second", "third")]
    asked = [("lsp", {"operation": "diagnostics", "path": name}) for name in names]
    with open_desk(servers_image, tmp_path, replace(project, files={}, main=names[0])) as desk:
        for number in range(4):
            bad = "" if number % 2 else project.bad
            for name in names:
                desk.work.write(name, f"{text}\n{bad}\n{project.comment} {number}\n")
            if number % 4 < 2:
                results = desk.work.turn(*asked)
            else:
                results = [desk.work.call(tool, **given) for tool, given in asked]
            for (tool, given), result in zip(asked, results, strict=True):
                answer = said(result)
                while "reported nothing" in answer or "not have reported" in answer:
                    answer = said(desk.work.call(tool, **given))
                told = [line for line in answer.split("\n") if ": error: " in line]
                at = f"{given['path']}:{count + 1}:"
                assert [line.startswith(at) for line in told] == [True] * bool(bad), answer
                assert not any(line.startswith("[") for line in told), said(result)


@pytest.mark.parametrize(
    ("project", "files", "change"),
    [
        (
            TYPESCRIPT,
            {
                "tsconfig.json": '{"extends": "./tsconfig.base.json"}\n',
                "tsconfig.base.json": '{"compilerOptions": {"strict": true}}\n',
                "main.ts": "export function f(a) { return a; }\n",
            },
            "sed -i s/true/false/ tsconfig.base.json",
        ),
        (
            CLANGD,
            {
                "macros.inc": "#define ANOTHER 1\n",
                "main.c": '#include "macros.inc"\nint main(void) { return ONE; }\n',
            },
            "echo '#define ONE 1' > macros.inc",
        ),
    ],
    ids=["extended", "included"],
)
def test_a_file_of_a_less_usual_name(
    servers_image: str, tmp_path: Path, project: Project, files: dict[str, str], change: str
) -> None:
    """What a configuration extends, and what is included under another suffix than a header's: its
    change takes an error away."""
    with open_desk(servers_image, tmp_path, replace(project, files=files)) as desk:
        wait_until(lambda: len(desk.errors()) == 1)
        desk.ask("diagnostics")  # no file is so young any more that it is read again anyway
        desk.run(change)
        assert desk.errors() == []


def test_a_server_that_does_not_look_everywhere(servers_image: str, tmp_path: Path) -> None:
    """Where it leaves files out without a word, the answer says so: of jedi in forty files."""
    with open_desk(servers_image, tmp_path, JEDI) as desk:
        assert "looks for uses" not in said(desk.ask("find_references", JEDI.use))
        _, text = JEDI.new
        desk.work.write("all.txt", text)
        desk.run("mkdir node_modules; for i in $(seq 10 50); do cp all.txt new$i.py; done")
        answer = desk.ask("find_references", JEDI.use)
        assert len({one["path"] for one in locations(answer)}) < 41
        told = "jedi-language-server looks for uses in 30 files at most, and there are 44 here"
        assert told in said(answer)
        assert told in said(desk.ask("rename_preview", JEDI.use, new_name="quux"))
        assert told not in said(desk.ask("goto_definition", JEDI.use))


def test_a_server_without_an_index(servers_image: str, tmp_path: Path) -> None:
    """Without a compile_commands.json clangd finds uses in few files, and the answer says so."""
    files = {name: text for name, text in CLANGD.files.items() if not name.endswith(".json")}
    told = "without a compile_commands.json clangd looks for uses only in files that it was asked"
    with open_desk(servers_image, tmp_path, replace(CLANGD, files=files)) as desk:
        answer = desk.ask("find_references", CLANGD.use)
        assert "a.c" not in {one["path"] for one in locations(answer)}
        assert told in said(answer)
        assert told in said(desk.ask("rename_preview", CLANGD.use, new_name="quux"))
        assert told not in said(desk.ask("goto_definition", CLANGD.use))
        path = "compile_commands.json"
        written = desk.work.call("write_file", path=path, content=CLANGD.files[path])
        assert not written.is_error, said(written)
        answer = desk.ask("find_references", CLANGD.use)
        assert told not in said(answer), "it was started anew, and has read it"
        assert sorted(desk.places("find_references", CLANGD.use)) == CLANGD.uses


def test_files_that_may_not_be_read(servers_image: str, tmp_path: Path) -> None:
    """A rule hides what is in them from answers, too: places there are counted."""
    config = '[permissions]\ndeny = ["read_file(pkg/a.py)"]\n'
    project = replace(JEDI, config=JEDI.config + config)
    with open_desk(servers_image, tmp_path, project) as desk:
        result = desk.ask("find_references", project.use)
        assert result.structured is not None
        assert {one["path"] for one in locations(result)} == {"main.py"}
        assert result.structured["hidden"] == len(project.find("pkg/a.py", "foo"))
        assert "def foo" not in said(result)
        refused = desk.work.call("lsp", operation="document_symbols", path="pkg/a.py")
        assert refused.is_error
        assert "foo" not in said(refused)
