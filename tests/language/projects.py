"""Small projects of two files and more, which real language servers are asked about.

Each has a constant behind characters that the encodings count differently, and a function that
is used on such a line. Their names occur nowhere but where they are meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

Place = tuple[str, int, int]
"""Path, and line and column of a character, counted from 1."""


@dataclass(frozen=True)
class Project:
    """A project and its server.

    Attributes:
        server: the program that answers.
        files: what it is made of.
        main: the file that uses what another one defines.
        other: the one that defines it.
        declares: the one that `main` sees it by.
        foo, answer: names of the function and of the constant.
        says: words of the function's description.
        comment: a line that says nothing.
        new: a file that uses the function, too; its name and what is in it.
        bad: a last line of `main` that is an error.
        broken: what in `declares` becomes what, to make the use in `main` an error; None =
            this server looks at one file alone.
        config: the user's catalog.
    """

    server: str
    files: Mapping[str, str]
    main: str
    other: str
    declares: str
    foo: str
    answer: str
    says: str
    comment: str
    new: tuple[str, str]
    bad: str
    broken: tuple[str, str] | None
    config: str = ""

    def find(self, path: str, word: str, files: Mapping[str, str] | None = None) -> list[Place]:
        """Where a word stands in a file, in order."""
        text = (self.files if files is None else files)[path]
        return [
            (path, number, match.start() + 1)
            for number, line in enumerate(text.split("\n"), 1)
            for match in re.finditer(rf"\b{word}\b", line)
        ]

    @property
    def use(self) -> Place:
        """Where `main` calls the function: the last place there with its name."""
        return self.find(self.main, self.foo)[-1]

    @property
    def definition(self) -> Place:
        """Where the function is defined."""
        return self.find(self.other, self.foo)[0]

    @property
    def uses(self) -> list[Place]:
        """Everywhere that it is named, sorted."""
        return sorted(place for path in self.files for place in self.find(path, self.foo))


JEDI = Project(
    server="jedi-language-server",
    files={
        "pyproject.toml": '[project]\nname = "small"\nversion = "1"\n',
        "pkg/__init__.py": "",
        "pkg/a.py": (
            's = "😀𝒳é"; answer: int = 42\n\n\n'
            'def foo(x: int) -> int:\n    """Gives back what it is given."""\n    return x\n\n\n'
            "def bar() -> int:\n    return foo(1)\n"
        ),
        "main.py": ('from pkg.a import answer, foo\n\ns = "😀𝒳é"; y = foo(answer)\nprint(s, y)\n'),
    },
    main="main.py",
    other="pkg/a.py",
    declares="pkg/a.py",
    foo="foo",
    answer="answer",
    says="Gives back what it is given.",
    comment="# x",
    new=("new.py", "from pkg.a import foo\n\nfoo(9)\n"),
    bad="z = (",
    broken=None,
    config='[languages.python]\ncommands = [["jedi-language-server"]]\n',
)
PYRIGHT = replace(
    JEDI,
    server="pyright-langserver",
    bad='z: int = "x"',
    broken=("x: int", "x: str"),
    config="",
)
TYPESCRIPT = Project(
    server="typescript-language-server",
    files={
        "tsconfig.json": '{"compilerOptions": {"strict": true, "module": "commonjs"}}\n',
        "a.ts": (
            "/* 😀𝒳é */ export const answer: number = 42;\n\n"
            "/** Gives back what it is given. */\n"
            "export function foo(x: number): number {\n  return x;\n}\n\n"
            "export function bar(): number {\n  return foo(1);\n}\n"
        ),
        "main.ts": (
            'import { answer, foo } from "./a";\n\n'
            'const s = "😀𝒳é"; const y = foo(answer);\nconsole.log(s, y);\n'
        ),
    },
    main="main.ts",
    other="a.ts",
    declares="a.ts",
    foo="foo",
    answer="answer",
    says="Gives back what it is given.",
    comment="// x",
    new=("new.ts", 'import { foo } from "./a";\n\nfoo(9);\n'),
    bad='const z: number = "x";',
    broken=("x: number", "x: string"),
)
CLANGD = Project(
    server="clangd",
    files={
        "compile_commands.json": json.dumps(
            [
                {"directory": "/workspace", "file": name, "command": f"cc -c {name}"}
                for name in ("main.c", "a.c", "new.c")
            ]
        ),
        "a.h": (
            "#pragma once\n\n/* 😀𝒳é */ extern const int answer;\n\n"
            "// Gives back what it is given.\nint foo(int x);\n"
        ),
        "a.c": (
            '#include "a.h"\n\n/* 😀𝒳é */ const int answer = 42;\n\n'
            "int foo(int x) {\n  return x;\n}\n\nint bar(void) {\n  return foo(1);\n}\n"
        ),
        "main.c": (
            '#include "a.h"\n\nint main(void) {\n'
            '  const char *s = "😀𝒳é"; int y = foo(answer);\n  return y + (s != 0);\n}\n'
        ),
    },
    main="main.c",
    other="a.c",
    declares="a.h",
    foo="foo",
    answer="answer",
    says="Gives back what it is given.",
    comment="// x",
    new=("new.c", '#include "a.h"\n\nint baz(void) { return foo(9); }\n'),
    bad='int z = "x" + ;',
    broken=("int x)", "int x, int y)"),
)
GOPLS = Project(
    server="gopls",
    files={
        "go.mod": "module example.com/small\n\ngo 1.19\n",
        "a/a.go": (
            "package a\n\n/* 😀𝒳é */ const Answer = 42\n\n"
            "// Gives back what it is given.\nfunc Foo(x int) int {\n\treturn x\n}\n\n"
            "func Bar() int {\n\treturn Foo(1)\n}\n"
        ),
        "main.go": (
            'package main\n\nimport "example.com/small/a"\n\nfunc main() {\n'
            '\ts := "😀𝒳é"; y := a.Foo(a.Answer)\n\tprintln(s, y)\n}\n'
        ),
    },
    main="main.go",
    other="a/a.go",
    declares="a/a.go",
    foo="Foo",
    answer="Answer",
    says="Gives back what it is given.",
    comment="// x",
    new=(
        "new.go",
        'package main\n\nimport "example.com/small/a"\n\nfunc baz() int { return a.Foo(9) }\n',
    ),
    bad='func z() int { return "x" }',
    broken=("x int", "x string"),
)
PROJECTS = (PYRIGHT, TYPESCRIPT, CLANGD, GOPLS, JEDI)
