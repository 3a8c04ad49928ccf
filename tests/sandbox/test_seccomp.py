"""The profiles of system calls: what they say, how they are made, how engines get them."""

from __future__ import annotations

import ctypes
import ctypes.util
import dataclasses
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import ConfigError
from executor.model import LoopSpec
from executor.sandbox import seccomp
from executor.sandbox.container import create_request
from tests.sandbox.tiny import facts, plan

ROOT = Path(__file__).resolve().parents[2]
GARBAGE = 0xDEADBEEF << 32


def _load() -> ModuleType:
    path = ROOT / "seccomp" / "generate.py"
    spec = importlib.util.spec_from_file_location("seccomp_generate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = _load()
PROFILES: list[tuple[str, str]] = [
    (name, machine) for name in generate.PROFILES for machine in generate.ARCHITECTURES
]


def verdict(profile: dict[str, Any], name: str, *arguments: int) -> str:
    """What a runtime makes of a call: `allow`, or the number of an error.

    Conditions of one rule are all to hold, rules are alternatives, 64 bits are compared.
    """
    for rule in profile["syscalls"]:
        if name in rule["names"] and all(
            arguments[one["index"]] & one["value"] == one["valueTwo"]
            for one in rule.get("args", ())
        ):
            return "allow" if rule["action"] == "SCMP_ACT_ALLOW" else str(rule["errnoRet"])
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    return str(profile["defaultErrnoRet"])


@pytest.fixture(params=PROFILES, ids="-".join)
def named(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Every profile by name, as an engine gets it."""
    name, machine = request.param
    return name, json.loads(seccomp.profile(name, machine))


# ─── what they say ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "standard", "strict"),
    [
        (("openat2", 0, 0, 0, 0), "allow", "allow"),
        (("clone3", 0, 0), "38", "38"),
        (("clone", 0x11), "allow", "allow"),
        (("clone", 0x3D0F00), "allow", "allow"),
        *((("clone", flag | 0x11), "1", "1") for flag in (0x20000, 0x2000000, 0x4000000)),
        *((("clone", flag | 0x11), "1", "1") for flag in (0x8000000, 0x10000000, 0x20000000)),
        (("clone", 0x40000011), "1", "1"),
        *(((name, 0, 0, 0), "1", "1") for name in ("unshare", "setns", "mount", "umount2", "bpf")),
        *(((name, 0, 0, 0), "1", "1") for name in ("keyctl", "add_key", "request_key", "chroot")),
        *(((name, 0, 0, 0), "1", "1") for name in ("io_uring_setup", "io_uring_enter")),
        *(((name, 0, 0, 0), "1", "1") for name in ("userfaultfd", "perf_event_open", "kcmp")),
        *(((name, 0, 0, 0), "1", "1") for name in ("open_by_handle_at", "name_to_handle_at")),
        *(((name, 0, 0, 0), "allow", "1") for name in ("ptrace", "process_vm_readv", "io_setup")),
        *(((name, 0, 0, 0), "allow", "1") for name in ("vmsplice", "tee", "io_submit")),
        (("splice", 0, 0, 0), "allow", "allow"),
        (("personality", 0), "allow", "allow"),
        (("personality", 0xFFFFFFFF), "allow", "allow"),
        (("personality", 0x40000), "allow", "1"),
        (("personality", 0x400000), "1", "1"),
        (("socket", 1, 1, 0), "allow", "allow"),
        (("socket", 2, 0x80801, 0), "allow", "allow"),
        (("socket", 10, 2, 17), "allow", "allow"),
        (("socket", 2, 3, 0), "1", "1"),
        (("socket", 2, 10, 0), "1", "1"),
        (("socket", 2, 2, 6), "1", "1"),
        *((("socket", 2, kind, 132), "1", "1") for kind in (1, 5)),
        *((("socket", 10, 1, protocol), "1", "1") for protocol in (256, 262)),
        (("socket", 16, 3, 0), "allow", "allow"),
        *((("socket", 16, 3, protocol), "1", "1") for protocol in (6, 9, 12, 15, 16, 21)),
        *(
            (("socket", family, 3, 0), "1", "1")
            for family in range(3, 64)
            if family not in (10, 16)
        ),
        (("socketpair", 1, 1, 0), "allow", "allow"),
        *((("socketpair", family, 1, 0), "1", "1") for family in (2, 10, 16, 30)),
        *((("fcntl", 0, command), "allow", "allow") for command in (*range(12), 36, 37, 38)),
        *((("fcntl", 0, command), "allow", "allow") for command in (1025, 1030, 1031, 1033)),
        *((("fcntl", 0, command), "1", "1") for command in (1024, 1026, 1040)),
        *((("ioctl", 0, request), "allow", "allow") for request in (0x5401, 0x5413, 0x541B)),
        *((("ioctl", 0, request), "allow", "allow") for request in (0x5410, 0x541D, 0x5422)),
        *((("ioctl", 0, request), "1", "1") for request in (0x5412, 0x541C, 0x5423)),
        *((("ioctl", 0, request), "1", "1") for request in (0x40086602, 0x401C5820)),
        *((("ioctl", 0, request), "allow", "allow") for request in (0x80086601, 0x801C581F)),
        *((("ioctl", 0, request), "allow", "allow") for request in (0x40049409, 0x4020940D)),
        (("setsockopt", 0, 6, 31), "1", "1"),
        (("setsockopt", 0, 6, 1), "allow", "allow"),
        *((("setsockopt", 0, 6, name), "1", "1") for name in (14, 32, 38)),
        *((("setsockopt", 0, 1, name), "1", "1") for name in (26, 50, 51, 52)),
        *((("setsockopt", 0, 1, name), "allow", "allow") for name in (14, 20, 31, 42, 66)),
        *((("setsockopt", 0, 17, name), "allow", "allow") for name in (1, 103, 104)),
        (("setsockopt", 0, 17, 100), "1", "1"),
        *((("setsockopt", 0, 41, name), "1", "1") for name in (20, 42, 46)),
        *((("setsockopt", 0, 41, name), "allow", "allow") for name in (16, 26, 31, 52)),
        *((("setsockopt", 0, level, 26), "allow", "allow") for level in (0, 255, 270)),
        *(((name, 0, 0, 0, 0x4000), "allow", "allow") for name in ("sendto", "recvfrom")),
        *(((name, 0, 0, 0, 0x4001), "allow", "1") for name in ("sendto", "recvfrom")),
        *(((name, 0, 0, 0x4000, 0), "allow", "allow") for name in ("sendmsg", "recvmsg")),
        *(((name, 0, 0, 0x4001, 0), "allow", "1") for name in ("sendmsg", "recvmsg")),
        *((("prlimit64", pid, 7, 8), "allow", "allow") for pid in (0, 2, 257, 1 << 31, 0xFFFFFFFF)),
        *((("prlimit64", 0, kind, 8), "allow", "allow") for kind in range(16) if kind != 4),
        (("prlimit64", 1, 7, 8), "1", "1"),
        *((("prlimit64", pid, 4, 8), "0", "0") for pid in (0, 1, 2)),
        *((("setrlimit", kind, 8), "allow", "allow") for kind in range(16) if kind != 4),
        (("setrlimit", 4, 8), "0", "0"),
        (("sched_setaffinity", 0), "allow", "allow"),
        (("sched_setaffinity", 1), "1", "1"),
        (("sched_setscheduler", 1), "1", "1"),
        (("sched_setparam", 1), "1", "1"),
        (("sched_setattr", 1), "1", "1"),
        (("setpriority", 0, 7), "allow", "allow"),
        *((("setpriority", which, 0), "1", "1") for which in (1, 2)),
        (("setpriority", 0, 1), "1", "1"),
        (("ioprio_set", 1, 0), "allow", "allow"),
        *((("ioprio_set", which, 0), "1", "1") for which in (2, 3)),
        (("ioprio_set", 1, 1), "1", "1"),
        *((("prctl", option), "allow", "allow") for option in (4, 15, 38, 63, 0x53564D41)),
        *((("prctl", option), "1", "1") for option in (62, 67)),
        (("prctl", 22), "allow", "22"),
        (("prctl", 21), "allow", "allow"),
        (("seccomp", 1, 0, 0), "allow", "22"),
        *((("mknodat", 0, 0, kind | 0o644), "allow", "allow") for kind in (0, 0x1000, 0x8000)),
        *((("mknodat", 0, 0, kind | 0o644), "1", "1") for kind in (0x2000, 0x6000)),
        (("renameat2", 0, 0, 0, 0, 3), "allow", "allow"),
        (("renameat2", 0, 0, 0, 0, 4), "1", "1"),
        (("mmap", 0, 0, 0, 0x22), "allow", "allow"),
        (("mmap", 0, 0, 0, 0x40022), "1", "1"),
        (("memfd_create", 0, 3), "allow", "allow"),
        (("memfd_create", 0, 4), "1", "1"),
        (("shmget", 0, 0, 0o1600), "allow", "allow"),
        (("shmget", 0, 0, 0o5600), "1", "1"),
        (("madvise", 0, 0, 14), "allow", "allow"),
        (("madvise", 0, 0, 12), "1", "1"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_what_passes(
    named: tuple[str, dict[str, Any]], call: tuple[Any, ...], standard: str, strict: str
) -> None:
    """B4-B12, C1-C6, C11, C12, I14: a call is answered so, whatever its upper 32 bits are."""
    name, profile = named
    expected = {"standard": standard, "strict": strict}[name]
    syscall, *arguments = call
    assert verdict(profile, syscall, *arguments) == expected
    assert verdict(profile, syscall, *(one | GARBAGE for one in arguments)) == expected


def test_no_condition_can_be_misread(named: tuple[str, dict[str, Any]]) -> None:
    """C6: only masked 32-bit comparisons, no argument twice in a rule, one architecture."""
    _, profile = named
    assert len(profile["architectures"]) == 1
    for rule in profile["syscalls"]:
        conditions = rule.get("args", [])
        places = [one["index"] for one in conditions]
        assert len(set(places)) == len(places), rule
        for one in conditions:
            assert one["op"] == "SCMP_CMP_MASKED_EQ", rule
            # An address has 64 bits for the kernel, too.
            bits = 64 if (rule["names"], one["index"]) == (["prlimit64"], 2) else 32
            assert one["value"] < 1 << bits and one["valueTwo"] & ~one["value"] == 0, rule


def test_asking_for_the_limit_of_core_dumps_sets_nothing(
    named: tuple[str, dict[str, Any]],
) -> None:
    """D7: only the null address is one without new values, over all of its 64 bits."""
    _, profile = named
    assert verdict(profile, "prlimit64", 0, 4 | GARBAGE, 0) == "allow"
    for address in (1, 1 << 31, 1 << 32, 0x7F << 40, 1 << 63):
        assert verdict(profile, "prlimit64", 0, 4, address) == ("0" if address < 1 << 32 else "1")


NEW = {"getxattrat", "listxattrat", "mseal", "removexattrat", "setxattrat"}
"""Younger than the library of the oldest supported distribution."""


@pytest.mark.parametrize(("machine", "token"), [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
def test_every_name_is_a_system_call(machine: str, token: int) -> None:
    """A runtime skips names that it does not know: there are none in the profiles."""
    library = ctypes.util.find_library("seccomp")
    if library is None:
        pytest.skip("libseccomp is not installed")
    resolve = ctypes.CDLL(library).seccomp_syscall_resolve_name_arch
    profile = json.loads(seccomp.profile("standard", machine))
    names = {name for rule in profile["syscalls"] for name in rule["names"]} - NEW
    assert [name for name in sorted(names) if resolve(token, name.encode()) < 0] == []


# ─── how they are made ──────────────────────────────────────────────────────────────────


def test_profiles_and_page_are_current() -> None:
    """What is packaged and documented is what the source makes now."""
    for path, content in generate.files(generate.read()).items():
        assert path.read_text("utf-8") == content, "run: make seccomp"


def test_the_copy_of_the_engines_profile_is_the_one_that_is_named() -> None:
    """The file that ours is compared with has the sum in ORIGIN.md."""
    directory = ROOT / "seccomp" / "engine"
    found = hashlib.sha256((directory / "default.json").read_bytes()).hexdigest()
    assert found in (directory / "ORIGIN.md").read_text("utf-8")


@given(
    st.sets(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=4),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 31),
)
def test_everything_but_leaves_out_nothing_else(values: set[int], other: int, bit: int) -> None:
    """The pairs fit every 32-bit number but the ones that are named."""
    pairs = generate.everything_but(values)
    for number in (*values, other, *(one ^ (1 << bit) for one in values)):
        fits = any(number & mask == value for mask, value in pairs)
        assert fits is (number not in values)


def _source(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "groups.toml"
    remarks = '[[refused]]\nreason=""\ncalls=[]\n[[foreign]]\nreason=""\ncalls=[]\n'
    remarks += '[[closed]]\nreason=""\ncalls=[]\n'
    path.write_text(text + remarks)
    return path


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            '[[group]]\nname="g"\nreason=""\ncalls=["socket"]\n'
            "when=[{argument=0,is_not={a=38}},{argument=0,is_not={b=40}}]\n",
            "two conditions on one argument",
        ),
        ('[[group]]\nname="g"\nreason=""\ncalls=["clone3"]\nerrno=1\n', "equal to the default"),
        (
            '[[group]]\nname="g"\nreason=""\ncalls=["socket"]\n'
            '[[group]]\nname="h"\nreason=""\ncalls=["socket"]\nwhen=[{argument=0,is={a=1}}]\n',
            "with and without conditions",
        ),
    ],
    ids=["alternatives", "dropped refusal", "condition in vain"],
)
def test_the_traps_of_the_format_are_refused(tmp_path: Path, text: str, fault: str) -> None:
    """A source whose profile would not mean what it says is not made into one."""
    with pytest.raises(ValueError, match=fault):
        generate.read(_source(tmp_path, text))


def test_every_difference_has_a_reason() -> None:
    """A call that the engine lets pass is refused with a reason, or the generator fails."""
    source = generate.read()
    unexplained = dataclasses.replace(source, refused=source.refused[1:])
    with pytest.raises(ValueError, match="no reason why not fanotify_mark"):
        generate.difference(unexplained, "standard", "x86_64")
    vain = (*source.refused, generate.Remark("no", frozenset({"read"}), None))
    with pytest.raises(ValueError, match="refused, but allowed: read"):
        generate.difference(dataclasses.replace(source, refused=vain), "strict", "aarch64")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_is_added_to_the_engines_default(machine: str) -> None:
    """Nothing is let through beyond the engine's default but fixed addresses, for gdb."""
    source = generate.read()
    added = {
        name: [group.name for group in generate.difference(source, name, machine).added]
        for name in generate.PROFILES
    }
    assert added == {"standard": ["Fixed addresses"], "strict": []}


def test_the_apparmor_profile_is_one() -> None:
    """The optional profile has no fault of syntax, and the parser would say so."""
    parser = shutil.which("apparmor_parser")
    if parser is None:
        pytest.skip("apparmor_parser is not installed")
    text = (ROOT / "seccomp" / "agent-sandbox.apparmor").read_text("utf-8")
    for broken in (False, True):
        given = text.replace("deny mount,", "deny mounting,") if broken else text
        command = [parser, "--skip-kernel-load", "--skip-cache"]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) is broken, done.stderr


# ─── how engines get them ───────────────────────────────────────────────────────────────


def _options(**changes: Any) -> list[str]:
    request: dict[str, Any] = create_request(plan(**changes))["HostConfig"]
    options: list[str] = request["SecurityOpt"]
    return options


def test_docker_is_sent_the_profile_itself() -> None:
    """The profile that the loop names, for the engine's machine, inline."""
    spec = LoopSpec(worktree="/srv/work", seccomp="strict")
    options = _options(spec=spec, facts=facts(architecture="aarch64"))
    assert options == [
        "no-new-privileges:true",
        "seccomp=" + seccomp.profile("strict", "aarch64"),
    ]
    assert _options(apparmor="mine")[-1] == "apparmor=mine"


def test_podman_is_given_the_path_of_a_file(tmp_path: Path) -> None:
    """The profile is written to the box's own directory, and its path sent."""
    spec = LoopSpec(worktree="/srv/work")
    podman = facts(name="podman")
    assert seccomp.write(spec, facts(), tmp_path) is None
    path = seccomp.write(spec, podman, tmp_path)
    assert path is not None
    assert Path(path).read_text() == seccomp.profile("standard", podman.architecture)
    assert _options(facts=podman, seccomp=path)[1] == f"seccomp={path}"


@pytest.mark.parametrize("architecture", ["riscv64", ""])
def test_another_machine_gets_no_box(architecture: str) -> None:
    """No profile, no box: the error says what to do."""
    with pytest.raises(ConfigError, match="aarch64 and x86_64 only; use an engine on one"):
        create_request(plan(facts=facts(architecture=architecture)))


_OWN = "the agent's own (no namespaces and mounts; none of our profiles, gVisor answers the rest)"
_NAMED = "strict for gVisor (ours: what is refused by name)"


@pytest.mark.parametrize(
    ("runtime", "default", "security", "ready", "text"),
    [
        (None, "runc", {"seccomp"}, {"filtered": True}, "strict (ours)"),
        ("runc", "runsc", {"seccomp"}, {"filtered": True}, "strict (ours)"),
        ("runsc", "runc", {"seccomp"}, {"filtered": True}, _NAMED),
        ("runsc", "runc", {"seccomp"}, {"filtered": False}, _OWN),
        ("runsc", "runc", {"seccomp"}, {"filtered": "yes"}, _OWN),
        (None, "runsc", {"seccomp"}, {}, _OWN),
        (None, "runc", set(), {"filtered": True}, "none"),
    ],
)
def test_nothing_is_claimed_that_is_not_in_force(
    runtime: str | None, default: str, security: set[str], ready: dict[str, Any], text: str
) -> None:
    """`capabilities` says whether our profile filters the box's calls."""
    spec = LoopSpec(worktree="/srv/work", seccomp="strict", runtime=runtime)
    engine = facts(default_runtime=default, security=frozenset(security))
    assert seccomp.described(spec, engine, ready) == text


@pytest.mark.parametrize(
    ("ready", "is_used"),
    [
        ({"confined": True}, True),
        ({"confined": False}, False),
        ({}, False),
        ({"confined": 1}, False),
    ],
)
def test_a_box_has_to_say_that_it_is_confined(ready: dict[str, Any], is_used: bool) -> None:
    """Silence is no proof; the sentence has the mend."""
    fault = seccomp.unconfined(ready)
    assert (fault == "") is is_used
    assert is_used or "--oci-seccomp (`make gvisor` does)" in fault


# ─── gVisor's ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "machine"), PROFILES)
def test_gvisor_is_told_what_is_refused(name: str, machine: str) -> None:
    """By name: nothing that the other profile lets pass, all that it is known to hold back."""
    theirs = json.loads(seccomp.profile(name, machine, is_gvisor=True))
    ours = json.loads(seccomp.profile(name, machine))
    assert theirs["defaultAction"] == "SCMP_ACT_ALLOW"
    assert {rule["action"] for rule in theirs["syscalls"]} == {"SCMP_ACT_ERRNO"}
    passing = {call for rule in ours["syscalls"] for call in rule["names"]}
    closed = {call for rule in theirs["syscalls"] if "args" not in rule for call in rule["names"]}
    assert not closed & passing
    assert closed >= {
        *("mount", "umount2", "unshare", "setns", "pivot_root", "chroot", "open_tree", "fsopen"),
        *("move_mount", "fsmount", "fsconfig", "fspick", "mount_setattr", "bpf", "keyctl"),
        *("io_uring_setup", "userfaultfd", "perf_event_open", "open_by_handle_at", "reboot"),
    }
    assert ("ptrace" in closed) is (name == "strict")


@pytest.mark.parametrize("flag", [0x8000, 1 << 17, *(1 << bit for bit in range(25, 31))])
def test_gvisor_refuses_each_flag_of_a_new_namespace(flag: int) -> None:
    """`clone` with any of them; with flags of threads and processes it passes."""
    profile = json.loads(seccomp.profile("standard", "x86_64", is_gvisor=True))

    def is_refused(flags: int) -> bool:
        return any(
            "clone" in rule["names"]
            and all(flags & one["value"] == one["valueTwo"] for one in rule["args"])
            for rule in profile["syscalls"]
            if "args" in rule
        )

    assert is_refused(flag | 0x11)
    assert not is_refused(0x11) and not is_refused(0x3D0F00)


def test_clone3_passes_where_no_other_error_can_be_said() -> None:
    """gVisor would say EPERM, on which C libraries give up; the agent says ENOSYS."""
    for name in generate.PROFILES:
        text = seccomp.profile(name, "x86_64", is_gvisor=True)
        assert '"clone3"' not in text


def test_gvisors_program_is_small() -> None:
    """A filter has 4096 instructions at the most; gVisor takes some 25 for a condition."""
    for name, machine in PROFILES:
        profile = json.loads(seccomp.profile(name, machine, is_gvisor=True))
        assert len(profile["syscalls"]) < 32


def test_each_runtime_is_sent_its_own() -> None:
    """By the program behind the runtime's name, not by the name."""
    spec = LoopSpec(worktree="/srv/work", runtime="runsc")
    assert seccomp.profile_of(spec, facts()) == seccomp.profile(
        "standard", facts().architecture, is_gvisor=True
    )
    disguised = facts(programs={"runsc": "/usr/bin/runc"})
    assert seccomp.profile_of(spec, disguised) == seccomp.profile("standard", facts().architecture)
