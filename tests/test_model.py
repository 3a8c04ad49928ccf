"""Values that cross layers, as a program meets them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from executor.errors import ConfigError
from executor.model import (
    EgressOptions,
    Limits,
    LoopSpec,
    Result,
    Secret,
    environment_faults,
    parse_size,
    plain,
)


def test_a_result_line_is_one_line_of_json_with_every_field() -> None:
    """The line format of DESIGN §10, with characters as they are."""
    line = Result("1", "read_file", "é\n☃", duration_ms=1.23456).to_line()
    assert "\n" not in line
    assert "é" in line
    assert json.loads(line) == {
        "id": "1",
        "name": "read_file",
        "content": "é\n☃",
        "is_error": False,
        "code": None,
        "structured": None,
        "truncated": False,
        "total_bytes": None,
        "spill": None,
        "duration_ms": 1.235,
        "details": None,
        "lane": None,
    }


def test_a_name_that_is_no_utf8_survives_the_line() -> None:
    """Statement G8: undecodable names come back as the same bytes."""
    name = b"a\xff.txt".decode("utf-8", "surrogateescape")
    line = Result("1", "glob", name).to_line()
    assert json.loads(line.encode())["content"].encode("utf-8", "surrogateescape") == b"a\xff.txt"


@pytest.mark.parametrize("id", ["\ud800", "\udfff x", "a\udcff", "\U0001f600", "\x00", "\u2028"])
def test_an_id_comes_back_as_it_was_given(id: str) -> None:
    """A caller finds its call again, whatever JSON let it use as the id."""
    line = Result(id, "glob", "☃").to_line().encode()
    assert json.loads(line)["id"] == id
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("64", 64), ("2g", 2 << 30), ("512M", 512 << 20), ("1.5k", 1536), ("64MiB", 64 << 20), (7, 7)],
)
def test_sizes_are_read_in_powers_of_1024(text: str | int, size: int) -> None:
    """`2g`, `512m` and the like, as container tools write them."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "g", "-1g", "2x", "2 g b", "1e9", "²g"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """A size that can't be read is named."""
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


def test_every_fault_of_a_specification_is_found_at_once() -> None:
    """A person mends all of it in one go."""
    limits = Limits(memory="1m", cpus=0, pids=1, call_timeout=0, max_seconds=-1)
    spec = LoopSpec("/nonexistent", limits, exec_id="No!", uid=-1, environment={"A-B": "x"})
    spec = replace(spec, image="bad image")
    named = [fault.partition(":")[0] for fault in spec.faults()]
    assert named == [
        *("memory", "cpus", "pids", "call_timeout", "max_seconds"),
        *("environment", "worktree", "exec_id", "uid", "image"),
    ]


@pytest.mark.parametrize("worktree", ["", " "])
def test_an_empty_worktree_is_not_the_current_directory(worktree: str) -> None:
    """An unset variable of a script must not lend the place where it runs."""
    (fault,) = LoopSpec(worktree).faults()
    assert fault.startswith("worktree: is empty; give a directory")


@pytest.mark.parametrize(
    "image", ["base", "debian:12-slim", "host:5000/a/b@sha256:0a", "0123456789ab", "a__b--c.d"]
)
def test_names_of_images_are_taken(image: str) -> None:
    """Tags, digests, ports and bare ids."""
    assert LoopSpec(".", image=image).faults() == []


@pytest.mark.parametrize(
    ("number", "text"), [(600000, "600000"), (9999e3, "9999000"), (7.0, "7"), (0.25, "0.25")]
)
def test_numbers_are_written_plainly(number: float, text: str) -> None:
    """People read no exponents."""
    assert plain(number) == text


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        *(("pip", True), ("a.b_c-1", True), ("x" * 32, True), ("x" * 33, False), ("", False)),
        *((".", False), ("..", False), ("...", True), ("Pip", False), ("a/b", False)),
        *(("a\n", False), ("é", False)),
    ],
)
def test_names_of_caches_are_names_of_one_directory(name: str, is_right: bool) -> None:
    """Nothing that leads elsewhere, and nothing that two file systems take for different."""
    assert (LoopSpec(".", caches=(name,)).faults() == []) is is_right


def test_what_a_loop_reaches_is_checked_with_all_else(tmp_path: Path) -> None:
    """Limits, certificates, set-up, caches and names of secrets, each fault by itself."""
    options = EgressOptions(
        setup_hosts=("example.org",),
        ca_file=tmp_path / "none.pem",
        connections=0,
        total_bytes="lots",
    )
    secret = Secret("TOKEN", "a-value-that-is-long-enough", ("example.org",))
    spec = LoopSpec(
        ".", egress=options, caches=("a", "a"), secrets=(secret,), environment={"TOKEN": "x"}
    )
    named = [fault.partition(":")[0] for fault in spec.faults()]
    assert named == [
        *("egress.connections", "egress.total_bytes", "egress.ca_file", "caches"),
        *("secrets.TOKEN", "setup_egress"),
    ]
    assert secret.value not in repr(spec) and secret.value not in str(spec.faults())
    for setup in ("", " ", "a\0b"):
        assert [fault[:6] for fault in LoopSpec(".", setup=setup).faults()] == ["setup:"]
        assert LoopSpec(".", setup="pip download x").faults() == []


def test_certificates_come_from_where_no_loop_can_write(tmp_path: Path) -> None:
    """A link in their place would lead into the box whatever it names."""
    inside, outside = tmp_path / "tree" / "ca.pem", tmp_path / "ca.pem"
    inside.parent.mkdir()
    outside.write_text("x")
    inside.symlink_to(outside)

    def faults(file: Path) -> list[str]:
        return LoopSpec(tmp_path / "tree", egress=EgressOptions(ca_file=file)).faults()

    assert faults(outside) == []
    (fault,) = faults(inside)
    assert fault.startswith("egress.ca_file: ") and "can rewrite it" in fault
    (fault,) = faults(tmp_path)
    assert "is not a file" in fault


def test_reserved_and_impossible_variables_are_refused() -> None:
    """The call's marker is ours; a NUL ends a variable."""
    assert len(environment_faults({"EXECUTOR_CALL": "x", "A": "a\0b", "1A": "", "OK": "="})) == 3
