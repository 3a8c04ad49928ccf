"""The catalog's tables of servers: `[mcp.NAME]` and `[languages.NAME]`."""

from __future__ import annotations

from importlib import resources

import pytest

from executor.agent.commands import MAX_PROGRAMS
from executor.catalog import PACKAGED, Catalog, parse
from executor.catalog_servers import MOST_PROGRAMS, LanguageEntry, McpEntry, is_foreign
from executor.errors import ConfigError

TEXT = resources.files("executor").joinpath(PACKAGED).read_text("utf-8")


def catalog_with(user: str) -> Catalog:
    """The packaged catalog with a user's file of this text."""
    return parse([(PACKAGED, TEXT), ("my.toml", user)])


def faults_of(user: str) -> tuple[str, ...]:
    """What is wrong with a user's file of this text."""
    with pytest.raises(ConfigError) as caught:
        catalog_with(user)
    return tuple(fault.removeprefix("my.toml: ") for fault in caught.value.faults)


# ─── what holds ─────────────────────────────────────────────────────────────────────


def test_packaged_catalog_has_no_mcp_server_and_five_languages() -> None:
    """Nothing foreign runs unasked; each extension belongs to one language."""
    catalog = parse([(PACKAGED, TEXT)])
    assert catalog.mcp == {}
    assert [*catalog.languages] == ["python", "c", "typescript", "go", "rust"]
    programs = [[words[0] for words in one.commands] for one in catalog.languages.values()]
    assert programs == [
        ["pyright-langserver", "jedi-language-server", "pylsp"],
        ["clangd"],
        ["typescript-language-server"],
        ["gopls"],
        ["rust-analyzer"],
    ]
    extensions = [name for one in catalog.languages.values() for name in one.extensions]
    assert len(extensions) == len(set(extensions))


def test_mcp_servers_are_read_with_their_defaults() -> None:
    """A command of the box, one of this machine and a URL; what is not said is as it is said."""
    catalog = catalog_with(
        '[mcp.git]\ncommand = ["mcp-server-git", "-v"]\nlane = "net"\ntools = ["git_status"]\n'
        '[mcp.here]\ncommand = ["x"]\nwhere = "host"\nenvironment = {KEY = "${KEY}"}\n'
        '[mcp.away]\nurl = "https://mcp.example.org/mcp"\nenabled = false\n'
        'headers = {Authorization = "Bearer ${TOKEN}"}\ntimeout_ms = 5000\n'
        "idle_timeout_ms = 5000\n"
    )
    assert catalog.mcp == {
        "git": McpEntry(("mcp-server-git", "-v"), lane="net", tools=("git_status",)),
        "here": McpEntry(("x",), where="host", environment={"KEY": "${KEY}"}),
        "away": McpEntry(
            url="https://mcp.example.org/mcp",
            headers={"Authorization": "Bearer ${TOKEN}"},
            timeout_ms=5000,
            idle_timeout_ms=5000,
            enabled=False,
        ),
    }


def test_language_is_overridden_key_by_key() -> None:
    """A file of the user's adds an extension, changes the server, and brings a language."""
    catalog = catalog_with(
        '[languages.c]\ncommands = [["ccls"]]\n[languages.c.extensions]\n".cu" = "cuda-cpp"\n'
        '[languages.mine]\nextensions = {".m" = "m"}\ncommands = [["ml", "--stdio"], ["mm"]]\n'
        "options = {deep = {n = [1]}}\n[languages.mine.settings.ml]\nlint = true\n"
    )
    assert catalog.languages["c"].extensions[".cu"] == "cuda-cpp"
    assert catalog.languages["c"].extensions[".h"] == "c"
    assert catalog.languages["c"].commands == (("ccls",),)
    assert catalog.languages["mine"] == LanguageEntry(
        {".m": "m"},
        (("ml", "--stdio"), ("mm",)),
        options={"deep": {"n": [1]}},
        settings={"ml": {"lint": True}},
    )


def test_project_files_may_have_stars() -> None:
    """A name without one is taken as it is."""
    catalog = catalog_with("[languages.go]\nproject_files = ['go*.mod', '*', '[id].json']\n")
    assert catalog.languages["go"].project_files == ("go*.mod", "*", "[id].json")
    assert "tsconfig*.json" in catalog.languages["typescript"].project_files


def test_programs_may_be_absolute_paths() -> None:
    """Then a PATH of the server's own says nothing of where it is; other keys name the path."""
    catalog = catalog_with(
        "[languages.go]\ncommands = [['/opt/go/gopls', '-v']]\nfollowing = ['/opt/go/gopls']\n"
        "environment = {PATH = '/opt/go:/usr/bin'}\n"
    )
    assert catalog.languages["go"].commands == (("/opt/go/gopls", "-v"),)
    assert catalog.languages["go"].following == ("/opt/go/gopls",)
    assert catalog.languages["go"].at_once == ("gopls",), "ours names one that it no longer has"


def test_a_box_is_asked_for_all_programs() -> None:
    """More than it answers about are a fault; those of a language that is off do not count."""
    taken = sum(len(one.commands) for one in parse([(PACKAGED, TEXT)]).languages.values())
    tables = [
        f"[languages.l{number}]\nextensions = {{'.l{number}' = 'l'}}\ncommands = [['s{number}']]\n"
        for number in range(MOST_PROGRAMS - taken + 1)
    ]
    assert MOST_PROGRAMS == MAX_PROGRAMS
    [fault] = faults_of("".join(tables))
    assert fault.startswith(f"languages: have {MOST_PROGRAMS + 1} programs, and a box is asked for")
    catalog = catalog_with("".join([*tables, "enabled = false\n"]))
    assert len(catalog.languages) == MOST_PROGRAMS - taken + 6


def test_extension_of_a_language_that_is_off_is_free() -> None:
    """One's own language may take what one of ours has once that is off."""
    catalog = catalog_with(
        "[languages.python]\nenabled = false\n"
        '[languages.snake]\nextensions = {".py" = "python"}\ncommands = [["snake"]]\n'
    )
    assert not catalog.languages["python"].enabled
    assert catalog.languages["snake"].enabled


def test_lists_of_tools_may_name_those_of_mcp_servers() -> None:
    """Loop types and toolsets name one tool of a server, or all of it; they are not looked up."""
    catalog = catalog_with(
        "[loop_types.q]\ntools = ['read_file', 'mcp__git__*', 'mcp__a-b__do.it']\n"
        "[toolsets.small]\nbase = 'standard'\ntools = ['mcp__git__git_status']\n"
    )
    assert catalog.loop_types["q"].tools == ("read_file", "mcp__git__*", "mcp__a-b__do.it")
    assert catalog.toolsets["small"].tools == ("mcp__git__git_status",)
    wrong = ("mcp__git", "mcp__GIT__x", "mcp__*__x", "mcp____x", "mcp__git__", "mcp__git__a*")
    assert [name for name in wrong if is_foreign(name)] == []


# ─── faults ─────────────────────────────────────────────────────────────────────────

MCP_FAULTS = {
    "[mcp.Git]\ncommand = ['x']\n": "mcp.Git: can't be its name; use at most 32 small",
    "[mcp.a_b]\ncommand = ['x']\n": "mcp.a_b: can't be its name",
    "[mcp.x]\n": "mcp.x: write command or url",
    "[mcp.x]\ncommand = ['x']\nurl = 'https://a.org'\n": "mcp.x: has a command and a url",
    "[mcp.x]\ncommand = 'x'\n": "mcp.x.command: is text; write a list of words",
    "[mcp.x]\ncommand = []\n": "mcp.x.command: its first word is the program, and is missing",
    "[mcp.x]\ncommand = ['x', 3]\n": "mcp.x.command.1: is a whole number; write",
    '[mcp.x]\ncommand = ["x", "a\\u0000"]\n': "holds a NUL, which no command takes",
    "[mcp.x]\ncommand = ['x']\nwhere = 'moon'\n": "mcp.x.where: is 'moon'; write \"box\" or",
    "[mcp.x]\ncommand = ['x']\nlane = 'moon'\n": "mcp.x.lane: is 'moon'; write",
    "[mcp.x]\ncommand = ['x']\nwhere = 'host'\nlane = 'net'\n": "mcp.x.lane: a server of the host",
    "[mcp.x]\ncommand = ['x']\nheaders = {A = 'b'}\n": "mcp.x.headers: is none of a server with a",
    "[mcp.x]\ncommand = ['x']\ntols = []\n": "mcp.x.tols: unknown key; did you mean tools?",
    "[mcp.x]\ncommand = ['x']\ntools = ['']\n": "mcp.x.tools: '' is no name of a tool",
    "[mcp.x]\ncommand = ['x']\ntimeout_ms = 0\n": "mcp.x.timeout_ms: is 0; write 1 or more",
    "[mcp.x]\ncommand = ['x']\nidle_timeout_ms = 9\ntimeout_ms = 5\n": "9 is more than timeout_ms",
    "[mcp.x]\ncommand = ['x']\nenvironment = {'1' = 'x'}\n": "mcp.x.environment.1: can't name a",
    "[mcp.x]\ncommand = ['x']\nenvironment = {A = '${B}'}\n": "the box would see its value",
    "[mcp.x]\ncommand = ['x']\nwhere = 'host'\nenvironment = {A = '${1}'}\n": "write ${NAME}",
    "[mcp.x]\nurl = 'https://a.org'\nwhere = 'host'\n": "mcp.x.where: is none of a server with a",
    "[mcp.x]\nurl = 'https://a.org'\nlane = 'net'\n": "mcp.x.lane: is none of a server with a url",
    "[mcp.x]\nurl = 'ftp://a.org'\n": "mcp.x.url: 'ftp://a.org' is no URL of a server",
    "[mcp.x]\nurl = 'https://'\n": "mcp.x.url: 'https://' is no URL of a server",
    "[mcp.x]\nurl = 'https://a.org:x/'\n": "mcp.x.url: 'https://a.org:x/' can't be read",
    "[mcp.x]\nurl = 'https://u:p@a.org/'\n": "mcp.x.url: holds a name or a password",
    "[mcp.x]\nurl = 'https://a.org/${K}'\n": "mcp.x.url: is taken as it stands",
    "[mcp.x]\nurl = 'https://a.org'\nheaders = {'a b' = 'x'}\n": "mcp.x.headers.a b: can't name",
    "[mcp.x]\nurl = 'https://a.org'\nheaders = {Host = 'x'}\n": "is written by the transport",
    '[mcp.x]\nurl = "https://a.org"\nheaders = {A = "x\\r\\nB: y"}\n': "holds what no header can",
    "[mcp.x]\nurl = 'https://a.org'\nheaders = {A = '${'}\n": "names no variable; write ${NAME}",
}


@pytest.mark.parametrize(("user", "fault"), MCP_FAULTS.items())
def test_fault_of_an_mcp_server_is_one_sentence_with_its_mend(user: str, fault: str) -> None:
    """Each fault is said once, with its key and what to write instead."""
    faults = faults_of(user)
    assert len(faults) == 1
    assert fault in faults[0]


LANGUAGE_FAULTS = {
    "[languages.X]\nextensions = {'.x' = 'x'}\ncommands = [['x']]\n": "languages.X: can't be its",
    "[languages.x]\ncommands = [['x']]\n": "languages.x.extensions: is missing",
    "[languages.c]\nproject_files = ['x']\n": "languages.c.indexed_by: 'compile_commands.json'",
    "[languages.go]\nproject_files = ['a/b']\n": "languages.go.project_files: 'a/b' is no name of",
    "[languages.go]\nproject_files = ['']\n": "languages.go.project_files: '' is no name of a file",
    "[languages.go]\nproject_files = ['a*.[ch]']\n": "and with no wildcard but *",
    "[languages.x]\nextensions = {'.x' = 'x'}\n": "languages.x.commands: is missing",
    "[languages.x]\nextensions = {'.x' = 'x'}\ncommands = [[]]\n": "its first word is the program",
    "[languages.x]\nextensions = {'.x' = 'x'}\ncommands = ['x']\n": "a list of commands in words",
    "[languages.x]\nextensions = {x = 'x'}\ncommands = [['x']]\n": "'x' is no extension; it begins",
    "[languages.x]\nextensions = {'.x/y' = 'x'}\ncommands = [['x']]\n": "'.x/y' is no extension",
    "[languages.x]\nextensions = {'.x' = ''}\ncommands = [['x']]\n": "'.x' has no identifier",
    "[languages.c]\nextensions = {'.x' = 3}\n": "languages.c.extensions..x: is a whole number",
    "[languages.c.extensions]\n'.py' = 'python'\n": "'.py' belongs to python already; leave it out",
    "[languages.c]\nenvironment = {A = '${B}'}\n": "languages.c.environment.A: names a variable",
    "[languages.c]\ncommands = [['./clangd']]\n": "languages.c.commands: './clangd' is a relative",
    "[languages.c]\ncommands = [['bin/clangd']]\nenvironment = {PATH = '/x'}\n": "a relative path",
    "[languages.c]\nenvironment = {PATH = '/x'}\n": "languages.c.environment.PATH: the programs of",
    "[languages.c]\nfollowing = ['ccls']\n": "languages.c.following: 'ccls' is no program of",
    "[languages.go]\nat_once = ['gopls', 'go']\n": "languages.go.at_once: 'go' is no program of",
    "[languages.go]\nsearched = {go = 3}\n": "languages.go.searched: 'go' is no program of",
    "[languages.go]\nindexed_by = {go = 'go.mod'}\n": "languages.go.indexed_by: 'go' is no program",
    "[languages.go]\nover_once_logged = {go = ['x']}\n": "over_once_logged: 'go' is no program of",
    "[languages.go]\nover_once_logged = {gopls = ['']}\n": "languages.go.over_once_logged.gopls",
    "[languages.go]\nready_once_logged = {gopls = 'x'}\n": "go.ready_once_logged.gopls: is text",
    "[languages.c]\nproject_files = ['c*.json']\nindexed_by = {clangd = 'c*.json'}\n": (
        "languages.c.indexed_by: 'c*.json' stands for many names"
    ),
    "[languages.go]\noptions = {a = 2024-01-01}\n": "languages.go.options.a: is a date or a time",
    "[languages.go]\noptions = {a = [1, 10:00:00]}\n": "languages.go.options.a.1: is a date or a",
    "[languages.go]\nsettings = {a = {b = 2024-01-01T10:00:00Z}}\n": "settings.a.b: is a date or",
    "[languages.go]\nsettings = {a = [{b = nan}]}\n": "languages.go.settings.a.0.b: is nan, which",
    "[languages.go]\nsettings = {a = -inf}\n": "languages.go.settings.a: is -inf, which JSON does",
    "[languages.c]\nenabled = 1\n": "languages.c.enabled: is a whole number; write true or false",
}


@pytest.mark.parametrize(("user", "fault"), LANGUAGE_FAULTS.items())
def test_fault_of_a_language_is_one_sentence_with_its_mend(user: str, fault: str) -> None:
    """Each fault is said once, with its key and what to write instead."""
    faults = faults_of(user)
    assert len(faults) == 1
    assert fault in faults[0]


def test_all_faults_of_servers_are_reported_at_once() -> None:
    """Wrong keys, names and values of several servers come together."""
    faults = faults_of(
        "[mcp.A]\ncommand = ['x']\n[mcp.b]\n[mcp.c]\ncommand = ['x']\ntols = 1\n"
        "[languages.d]\ncommands = [[]]\nextensions = {'.go' = 'go'}\n"
        "[loop_types.e]\ntools = ['mcp_x']\n"
    )
    assert len(faults) == 6
