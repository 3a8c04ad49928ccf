"""The catalog: what it holds, how a user's file changes it, what it refuses."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from executor.catalog import PACKAGED, Catalog, Keep, LaneEntry, load, parse
from executor.egress.options import host_faults
from executor.errors import ConfigError
from executor.model import Access, EgressOptions, Limits, Secret

TEXT = resources.files("executor").joinpath(PACKAGED).read_text("utf-8")


def with_user_file(text: str) -> Catalog:
    return parse([(PACKAGED, TEXT), ("my.toml", text)])


def faults_of(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        with_user_file(text)
    return caught.value.faults


def test_packaged_values_are_the_seeds() -> None:
    """The packaged catalog holds the seeds' timeouts, limits and lanes."""
    tools = load().tools
    command = tools["run_command"]
    assert (command.lane, command.timeout_ms, command.max_output_bytes) == ("net", 120_000, 100_000)
    assert (command.max_timeout_ms, command.keep, command.access) == (
        600_000,
        Keep.BOTH,
        Access.EXEC,
    )
    assert tools["read_file"].max_output_bytes == 100_000
    assert tools["list_directory"].timeout_ms == 5_000
    assert tools["glob"].max_output_bytes == 50_000
    assert load().toolsets["standard"].line_separator == "│"


def test_loop_types_name_only_tools_that_exist() -> None:
    """Every loop type's list holds known tools, and the plan type has no commands."""
    catalog = load()
    assert set(catalog.loop_types) == {"plan", "spec", "phase", "code"}
    for tools in (kind.tools for kind in catalog.loop_types.values()):
        assert set(tools) <= set(catalog.tools)
    assert "run_command" not in catalog.loop_types["plan"].tools


def test_user_file_overrides_key_by_key() -> None:
    """A user's key replaces that key alone; what it does not name stays."""
    catalog = with_user_file("[tools.grep]\ntimeout_ms = 5\n[loop]\nmemory = '1g'\n")
    assert catalog.tools["grep"].timeout_ms == 5
    assert catalog.tools["grep"].max_output_bytes == 100_000
    assert catalog.loop["memory"] == "1g"
    assert catalog.loop["pids"] == 512


def test_a_catalog_of_the_seed_loads_unchanged() -> None:
    """A file in the seed's form loads, tables of tools that come later included."""
    catalog = with_user_file(
        '[tools.read_file]\nlane = "no-net"\ntimeout_ms = 10000\nmax_output_bytes = 100000\n'
        'description = "Read file contents with line numbers"\n'
        '[tools.build]\nlane = "heavy"\ntimeout_ms = 600000\nmax_output_bytes = 1000000\n'
        'description = "Run build command"\n'
    )
    assert catalog.tools["read_file"].description == "Read file contents with line numbers"
    build = catalog.tools["build"]
    assert (build.description, build.timeout_ms) == ("Run build command", 600_000)


def test_packaged_lanes_are_the_specifications() -> None:
    """Rows 79 and 80: slots 10, 5 and 1, a queue of 100; net and heavy reach what is allowed."""
    lanes = load().lanes
    assert {name: (lane.network, lane.slots, lane.queue) for name, lane in lanes.items()} == {
        "no-net": ("none", 10, 100),
        "net": ("broker", 5, 100),
        "heavy": ("broker", 1, 100),
    }
    for lane in lanes.values():
        assert (lane.image, lane.runtime, lane.memory, lane.cpus, lane.pids) == (None,) * 5


def test_a_lane_is_overridden_key_by_key() -> None:
    """What a file leaves out is packaged, or the loop's."""
    text = "[lanes.heavy]\nimage = 'heavy'\nmemory = '8g'\ncpus = 4.0\n"
    catalog = with_user_file(text + "[lanes.net]\nnetwork = 'bridge'\nqueue = 0\n")
    assert catalog.lanes["heavy"] == LaneEntry(
        "broker", image="heavy", memory="8g", cpus=4.0, slots=1
    )
    assert catalog.lanes["net"] == LaneEntry("bridge", slots=5, queue=0)


def test_what_loops_reach_comes_from_two_tables(tmp_path: Path) -> None:
    """`[egress]` says how, `[loop]` what; what is given for one loop wins, list by list."""
    (tmp_path / "ca.pem").touch()
    file = f"{tmp_path}/ca.pem"
    catalog = with_user_file(
        f"[egress]\nprivate = ['a.org']\nconnections = 3\nca_file = '{file}'\n"
        "[loop]\negress = ['a.org', '*.b.org']\nsetup_egress = ['c.org']\n"
        "setup = 'make deps'\ncaches = ['pip']\n"
    )
    spec = catalog.loop_spec(".")
    assert spec.egress == EgressOptions(
        ("a.org", "*.b.org"), ("c.org",), ("a.org",), file, 3, "10g"
    )
    assert (spec.setup, spec.caches, spec.secrets) == ("make deps", ("pip",), ())
    secret = Secret("TOKEN", "value-of-it", ("d.org",))
    given = {"hosts": ["d.org"], "ca_file": None}
    spec = catalog.loop_spec(".", egress=given, setup=None, caches=("x",), secrets=(secret,))
    assert (spec.egress.hosts, spec.egress.setup_hosts) == (("d.org",), ("c.org",))
    assert (spec.egress.ca_file, spec.setup, spec.caches) == (file, "make deps", ("x",))
    assert spec.secrets == (secret,)
    assert load().loop_spec(".").egress == EgressOptions()


def test_the_web_tools_are_the_specifications() -> None:
    """Times and limits of `web_fetch` and `web_search`, and what is asked where nobody says."""
    tools = load().tools
    for name, size in (("web_fetch", 500_000), ("web_search", 50_000)):
        tool = tools[name]
        assert (tool.lane, tool.access, tool.timeout_ms) == ("net", Access.NETWORK, 30_000)
        assert tool.max_output_bytes == size
    assert (load().web_search.provider, load().web_search.results) == ("serper", 5)
    assert load().oracle.model is None
    text = "[web_search]\nprovider = 'google'\nengine = 'abc'\n[oracle]\nmodel = 'm'\n"
    catalog = with_user_file(text)
    assert (catalog.web_search.engine, catalog.web_search.most) == ("abc", 10)
    assert (catalog.oracle.model, catalog.oracle.max_tokens) == ("m", 4096)


def test_hosts_are_judged_where_somebody_reads_them() -> None:
    """A whole file is checked before any loop is; its keys are named as they stand in it."""
    user = (
        "[loop]\negress = ['*']\nsetup_egress = ['http://x.org/']\n"
        "[egress]\nprivate = ['*.x.org']\n"
    )
    with_user_file(user)
    with pytest.raises(ConfigError) as caught:
        parse([(PACKAGED, TEXT), ("my.toml", user)], host_faults)
    keys = [fault.split(": ")[1] for fault in caught.value.faults]
    assert sorted(keys) == ["egress.private", "loop.egress", "loop.setup_egress"]


def test_all_faults_are_reported_at_once() -> None:
    """Unknown keys, wrong types and senseless values come together, with file and key."""
    faults = faults_of(
        "foo = 1\n"
        "[tools.read_file]\ntimout_ms = 3\nlane = 'moon'\n"
        "[tools.raed_file]\nlane = 'net'\n"
        "[tools.run_command]\ntimeout_ms = 700000\n"
        "[loop]\nmemory = true\ncpus = 0\n"
        "[loop_types.mine]\ntools = ['grap']\n"
    )
    assert len(faults) == 8
    assert all(fault.startswith("my.toml: ") for fault in faults)
    for expected in (
        "foo: unknown key; known: ",
        "tools.read_file.timout_ms: unknown key; did you mean timeout_ms?",
        'tools.read_file.lane: is \'moon\'; write "no-net", "net" or "heavy"',
        "tools.raed_file: unknown name; did you mean read_file?",
        "tools.run_command.timeout_ms: 700000 is more than max_timeout_ms = 600000",
        "loop.memory: is true or false; write a size",
        "loop.cpus: 0 is out of range",
        "loop_types.mine.tools: there is no tool 'grap'; did you mean grep?",
    ):
        assert any(expected in fault for fault in faults), expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a =\n", "not valid TOML"),
        ("[tools]\ngrep = 3\n", "tools.grep: is a whole number; write a table, [tools.grep]"),
        ("[tools.grep]\nenabled = 1\n", "tools.grep.enabled: is a whole number; write true or"),
        ("[tools.grep]\ntimeout_ms = 0\n", "tools.grep.timeout_ms: is 0; write 1 or more"),
        ("[tools.grep]\ntimeout_ms = '9'\n", "timeout_ms: is text; write a whole number"),
        ("[loop_types.x]\n", "loop_types.x.tools: is missing; add it"),
        ("[loop_types.x]\ntools = []\n", "loop_types.x.tools: is empty; name at least one"),
        (
            "[loop]\ntoolset = 'fancy'\n",
            "loop.toolset: there is no 'fancy'; known: claude-code, loom, standard",
        ),
        ("[loop]\nmode = 'yolo'\n", "loop.mode: is 'yolo'; write"),
        ("[loop]\nworktree = '/'\n", "loop.worktree: unknown key"),
        ("[tools.glob]\nkeep = 'end'\n", "tools.glob.keep: has no effect for this tool"),
        ("[loop]\ncall_timeout = 700.0\n", "loop.call_timeout: 700 seconds is more than the 600"),
        ("[toolsets.standard]\nreads = 'turn'\n", "toolsets.standard.reads: is 'turn'; write"),
        ("[toolsets.other]\nmerge_stderr = true\n", "toolsets.other: unknown name"),
        ("[lanes.hevay]\n", "lanes.hevay: there is no such lane; did you mean heavy?"),
        ("lanes = 3\n", "lanes: is a whole number; write a table"),
        ("[lanes.no-net]\nnetwork = 'broker'\n", "no-net is the lane without network"),
        ("[lanes.no-net]\nnetwork = 'bridge'\n", "no-net is the lane without network"),
        ("[lanes.net]\nnetwork = 'host'\n", "lanes.net.network: is 'host'; write \"none\""),
        ("[lanes.net]\nslots = 0\n", "lanes.net.slots: is 0; write 1 or more"),
        ("[lanes.net]\nimage = 'a b'\n", "lanes.net.image: is 'a b'; write a name"),
        ("[lanes.net]\nmemory = '1m'\n", "lanes.net.memory: 1m is too small"),
        ("[lanes.net]\npids = 3\n", "lanes.net.pids: 3 is too small"),
        ("[lanes.net]\nlane = 3\n", "lanes.net.lane: unknown key; known: cpus"),
        ("[egress]\nca_file = '/no/such'\n", "egress.ca_file: there is no /no/such"),
        ("[egress]\nconnections = 0\n", "egress.connections: is 0; write 1 or more"),
        ("[egress]\ntotal_bytes = 'x'\n", "egress.total_bytes: 'x' is not a size"),
        ("[egress]\nhosts = []\n", "egress.hosts: unknown key"),
        ("[loop]\negress = 'a.org'\n", "loop.egress: is text; write a list of hosts"),
        ("[loop]\ncaches = ['A']\n", "loop.caches: 'A' is no name"),
        ("[loop]\nsetup = ''\n", "loop.setup: is empty"),
        ("[web_search]\nprovider = 'bing'\n", "web_search.provider: is 'bing'; write"),
        (
            "[web_search]\nprovider = 'google'\nresults = 11\n",
            "web_search.results: 11 is more than the 10 that google gives",
        ),
        ("[oracle]\nmodel = ''\n", "oracle.model: is empty"),
    ],
)
def test_each_fault_names_key_and_mend(text: str, expected: str) -> None:
    """A single fault is one sentence that says where it is and what to write."""
    (fault,) = faults_of(text)
    assert expected in fault


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    """A named file that is not there is a fault, not an empty file."""
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "none.toml")


def test_directories_of_the_user_may_begin_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell would resolve it, which the file does not pass through."""
    monkeypatch.setenv("HOME", str(tmp_path))
    user = "[loop]\nadd_dirs = ['~/data:rw']\nskills = ['~/skills']\n"
    spec = with_user_file(user).loop_spec("w")
    assert (spec.add_dirs, spec.skills) == ((f"{tmp_path}/data:rw",), (f"{tmp_path}/skills",))


def test_loop_spec_takes_defaults_and_lets_given_values_win() -> None:
    """`[loop]` gives the defaults; what is given wins; None means not given."""
    catalog = with_user_file("[loop]\ncpus = 1\n[loop.environment]\nA = '1'\nB = '2'\n")
    spec = catalog.loop_spec("w", memory="1g", cpus=None, environment={"B": "3"})
    assert spec.limits == Limits(memory="1g", cpus=1)
    assert (spec.toolset, spec.mode, spec.image) == ("standard", "bypass", "base")
    assert spec.environment == {"A": "1", "B": "3"}


def test_a_specification_is_checked_against_the_catalog() -> None:
    """Toolsets and loop types that do not exist are found, with the known ones."""
    spec = load().loop_spec(".", toolset="nope", loop_type="plam")
    faults = load().faults(spec)
    assert faults == [
        "toolset: there is no 'nope'; known: claude-code, loom, standard",
        "loop_type: there is no 'plam'; did you mean plan?",
    ]


def test_a_default_timeout_is_at_most_the_longest() -> None:
    """More than any command may ask for is refused with both numbers, wherever it comes from."""
    (fault,) = load().faults(load().loop_spec(".", call_timeout=9999))
    assert "9999 seconds is more than the 600 that max_timeout_ms of run_c" in fault
    assert load().faults(load().loop_spec(".", call_timeout=600)) == []
    longer = "[tools.{}]\nmax_timeout_ms = 10000000\n"
    commands = [name for name, tool in load().tools.items() if tool.max_timeout_ms is not None]
    user = "".join(map(longer.format, commands))
    assert with_user_file(user).faults(load().loop_spec(".", call_timeout=9999)) == []
