"""Images of other makers: all of them run, or are refused with the reason."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import executor
from executor.catalog import Policy, parse
from executor.catalog import load as load_catalog
from executor.errors import (
    BadPath,
    Code,
    ConfigError,
    EngineError,
    ExecutorError,
    ImageNotAllowed,
    ImageNotFound,
    ToolError,
)
from executor.model import LoopSpec
from executor.sandbox import allowance, images, targets
from executor.sandbox.box import Host, open_box
from executor.sandbox.container import MAX_ENVIRONMENT, environment_faults, volume_faults
from executor.sandbox.environment import command_environment
from executor.sandbox.inspection import read_back_faults
from executor.sandbox.reaper import Identity
from tests.conftest import LIMITS, make_worktree, open_docker_box
from tests.driver import Box, LoopThread
from tests.git.others import shared_place
from tests.sandbox import foreign, tiny

needs_busybox = pytest.mark.skipif(
    not foreign.has_busybox(), reason="busybox-static is not installed"
)


@contextlib.contextmanager
def opened(
    directory: Path,
    root: foreign.Root,
    config: Mapping[str, Any] | None = None,
    machine: str | None = None,
) -> Iterator[Box]:
    """A box of such an image (see `foreign.loaded`) over an empty worktree."""
    work = make_worktree(directory / "worktree")
    with foreign.loaded(root, config, machine) as image, LoopThread() as thread:
        spec = LoopSpec(worktree=work, limits=LIMITS, exec_id="foreign", image=image)
        sandbox = thread.enter(open_docker_box(spec, directory / "state"))
        yield Box(thread, sandbox, work, "docker")


# ─── what runs ──────────────────────────────────────────────────────────────────────

ENVIRONMENT = [
    *("PATH=/bin", "OWN=kept", "LINES=one\ntwo", "nothing", "A B=c", "GIT_AUTHOR_NAME=An Image"),
    *("LD_PRELOAD=/evil.so", "LD_LIBRARY_PATH=/evil", "LD_AUDIT=/evil.so", "GLIBC_TUNABLES=x=y"),
    *("PYTHONHOME=/evil", "PYTHONPATH=/evil", "PYTHONSTARTUP=/evil.py", "PYTHONWARNINGS=error"),
    *("BASH_ENV=/evil.sh", "ENV=/evil.sh", "BASH_FUNC_ls%%=() { echo evil; }", "SHELLOPTS=xtrace"),
    *("PS4=$(touch /tmp/evil)", "PROMPT_COMMAND=touch /tmp/evil", "CDPATH=/", "IFS=/"),
    *("GIT_DIR=/evil", "GIT_EXEC_PATH=/evil", "GIT_SSH_COMMAND=evil", "GIT_TRACE=1"),
    *("http_proxy=http://evil.example", "HTTPS_PROXY=http://evil.example", "no_proxy=*"),
    *("DOCKER_HOST=tcp://evil", "HOME=/evil", "USER=evil", "LANG=xx_XX", "LC_ALL=xx_XX", "TZ=Evil"),
]
TRAPS = {
    "Env": ENVIRONMENT,
    "Entrypoint": ["/bin/false"],
    "Cmd": ["evil"],
    "Shell": ["/bin/false"],
    "User": "nobody-of-this-name:nor-this",
    "WorkingDir": "/srv",
    "Healthcheck": {"Test": ["CMD", "/bin/touch", "/tmp/evil"], "Interval": 1_000_000_000},
    "OnBuild": ["RUN false"],
    "StopSignal": "SIGUSR1",
    "ExposedPorts": {"80/tcp": {}},
    "Labels": {
        "executor.kind": "base",
        "executor.controller": "evil",
        "executor.loop": "evil",
        "executor.expires": "0",
    },
    "Volumes": {
        path: {}
        for path in ("/data", "/da ta/deep", "/workspace", "/tmp", "/opt/executor", "/run/executor")
    },
    "Tty": True,
    "OpenStdin": False,
    "Hostname": "evil",
}


@needs_busybox
@pytest.mark.statement("M11", "G10", "B16")
def test_an_image_full_of_traps(tmp_path: Path) -> None:
    """Nothing of an image's configuration is heeded but its variables, and of those none that
    changes how programs are loaded, what shells and git do, or whom is asked; its volumes are
    memory of the box; a preloaded library of its own is none of the agent's."""
    root = foreign.busybox().file("srv", "WORKDIR is a file").file("etc/ld.so.preload", "/evil.so")
    with opened(tmp_path, root, TRAPS) as box:
        look = "id -u; pwd; python3 -c 'print(6*7)'; stat -f -c %T /data '/da ta/deep'; ls /tmp"
        ran = box.run(look)
        assert (ran.code, ran.err) == (0, b""), "not even a complaint about /evil.so"
        assert ran.out.decode().split("\n") == [
            *(str(box.root.stat().st_uid), "/workspace", "42", "tmpfs", "tmpfs", ""),
        ]
        variables = dict(
            line.partition("=")[::2] for line in box.run("env -0").out.decode().split("\0") if line
        )
        made = box.thread.run(inspect(box))
    assert not any("evil" in f"{name}={value}" for name, value in variables.items())
    dropped = {entry.partition("=")[0] for entry in ENVIRONMENT[6:]} - {
        "HOME",
        "USER",
        "LANG",
        "TZ",
    }
    assert not dropped & variables.keys()
    assert variables["OWN"] == "kept" and variables["LINES"] == "one\ntwo"
    assert (variables["HOME"], variables["LANG"], variables["TZ"]) == (
        *("/home/sandbox", "C.UTF-8", "UTC"),
    )
    config = made["Config"]
    assert "/opt/executor/bin/python3" in config["Entrypoint"] and not config["Cmd"]
    assert config["Healthcheck"]["Test"] == ["NONE"] and "Health" not in made["State"]
    assert (config["StopSignal"], config["Tty"], config["Hostname"]) == (
        "SIGKILL",
        False,
        "sandbox",
    )
    assert config["Labels"]["executor.loop"] == "foreign"
    volumes = [one for one in made["Mounts"] if one["Type"] == "volume"]
    assert [one["Destination"] for one in volumes] == ["/opt/executor"]


async def inspect(box: Box) -> dict[str, Any]:
    """What the engine says of a box."""
    async with tiny.engine() as engine:
        return await engine.inspect(box.sandbox.id)


@pytest.mark.statement("M11")
def test_an_image_without_any_program(tmp_path: Path) -> None:
    """One file and no shell: file tools and the runtime's Python serve; commands say why not."""
    with opened(tmp_path, foreign.Root().file("only", "this\n")) as box:
        (box.root / "a.txt").write_text("needle\n")
        for command in ("true", "cd / && true"):
            with pytest.raises(
                ToolError, match="no shell, neither bash nor sh; run_code"
            ) as caught:
                box.run(command)
            assert caught.value.code is Code.UNSUPPORTED
        body = b"print(open('/only').read(), open('a.txt').read())"
        ran = box.run(None, argv=["python3"], script=".py", body=body)
        assert (ran.code, ran.out) == (0, b"this\n needle\n\n")
        with pytest.raises(ToolError, match="bash: there is no such program in this image"):
            box.run(None, argv=["bash"], script=".sh", body=b"true")


@needs_busybox
def test_an_image_for_another_machine_with_a_path_to_nowhere(tmp_path: Path) -> None:
    """A shell is found though PATH leads nowhere, and a person is told of the other machine."""
    config = {"Env": ["PATH=/nowhere:relative:"], "WorkingDir": "/a\nb", "User": "99999999999"}
    machine = "arm64" if os.uname().machine == "x86_64" else "amd64"
    with opened(tmp_path, foreign.busybox(), config, machine) as box:
        assert box.run("echo $PATH; /bin/pwd").out.startswith(b"/nowhere:relative:")
        ran = box.run(None, argv=["bash"], script=".sh", body=b"echo $0 $PPID")
        assert ran.code == 0 and ran.value["interpreter"] == "/bin/sh"
        notices = box.sandbox.capabilities["notices"]
        assert any("its programs start only where" in text for text in notices), notices


def test_an_image_with_another_python(tmp_path: Path) -> None:
    """The image's own python3 is what commands find, and never what the agent runs."""
    root = foreign.usual().file("bin/python3", "#!/bin/sh\necho its own\n", 0o755)
    config = {"Env": ["PATH=/bin", "PYTHONHOME=/bin", "PYTHONPLATLIBDIR=x"]}
    with opened(tmp_path, root, config) as box:
        ran = box.run("python3 -c 'print(1)'; cat /proc/1/cmdline | tr '\\0' ' '")
        assert ran.out.startswith(b"its own\n/opt/executor/bin/python3 -I ")


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="musl-tools is not installed")
def test_an_image_of_another_c_library(tmp_path: Path) -> None:
    """Programs that are linked with musl run beside the agent, and know the box's names."""
    with opened(tmp_path, foreign.musl(tmp_path)) as box:
        ran = box.run(None, argv=["/bin/names"])
        uid = box.root.stat().st_uid
        assert (ran.code, ran.out.decode()) == (0, f"musl {uid} sandbox /home/sandbox 127.0.0.1\n")


# ─── what is refused ────────────────────────────────────────────────────────────────


@pytest.mark.statement("G10", "M11")
@pytest.mark.parametrize(
    ("volumes", "said"),
    [
        ((), ()),
        (("/data", "/da,ta", "/da:ta", "/workspace", "/tmp/", "//run//executor"), ()),
        (("/",), ("/ can't be covered",)),
        (("",), ("no absolute path", "/ can't be covered")),
        (("data",), ("'data' is no absolute path",)),
        (("/da\nta",), ("no absolute path",)),
        (("/etc",), ("/etc can't be covered",)),
        (("/etc/ssl", "/opt"), ("/etc/ssl can't", "/opt can't")),
        (("/workspace/deep",), ("/workspace/deep can't be covered",)),
        (("/opt/executor/lib",), ("/opt/executor/lib can't be covered",)),
        (("/x/../proc/sys",), ("/proc/sys can't be covered",)),
        (tuple(f"/v{number}" for number in range(9)), ("it declares 9 volumes",)),
    ],
)
def test_volumes_that_can_not_be_covered(volumes: tuple[str, ...], said: tuple[str, ...]) -> None:
    """Each is named, with the mend."""
    faults = volume_faults(volumes)
    assert len(faults) == len(said)
    assert all(words in fault for fault, words in zip(faults, said, strict=True))


@pytest.mark.statement("M11")
@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (ENVIRONMENT, ""),
        ([f"V{number}=x" for number in range(5000)], ""),
        ([f"V{number}={'x' * 40}" for number in range(5000)], "can be handed to commands"),
        (["BIG=" + "x" * MAX_ENVIRONMENT], "can be handed to commands"),
        (["=odd"], "has no name ('=odd')"),
        ([""], "has no name"),
    ],
)
def test_environments_that_can_not_be_handed_on(entries: list[str], said: str) -> None:
    """Far too much of it, and entries without a name; thousands of small ones are fine."""
    faults = environment_faults(entries)
    assert [said in fault for fault in faults] == ([True] if said else [])
    spec = LoopSpec(worktree="/srv/work", limits=LIMITS)
    assert command_environment(spec, "sandbox", entries)["HOME"] == "/home/sandbox"


def test_files_in_the_place_of_directories_are_named() -> None:
    """What the sandbox mounts at is there as it needs it, or not at all, or as a link."""
    kinds = {
        "/tmp": "file",
        "/etc/passwd": "directory",
        "/etc/group": "file",
        "/opt": "directory",
        "/workspace": "file",
        "/home": "link",
        "/data": "file",
    }
    faults = targets.kind_faults("x:1", kinds)
    found = [re.findall(r"a (\w+) at '(\S+)'.*needs a (\w+)", fault) for fault in faults]
    assert [one for groups in found for one in groups] == [
        ("file", "/tmp", "directory"),
        ("directory", "/etc/passwd", "file"),
        ("file", "/workspace", "directory"),
        ("file", "/data", "directory"),
    ]


REFUSED: list[tuple[foreign.Root, dict[str, Any], type[ExecutorError], str]] = [
    (foreign.Root(), {"WorkingDir": "/proc/self/fd/7"}, BadPath, "another WORKDIR"),
    (foreign.Root(), {"Volumes": {"/": {}}}, ConfigError, "VOLUME /"),
    (foreign.Root(), {"Volumes": {"/etc/ssl": {}}}, ConfigError, "VOLUME /etc/ssl"),
    (foreign.Root().file("data", ""), {"Volumes": {"/data": {}}}, ConfigError, "file at '/data'"),
    (foreign.Root().file("tmp", ""), {}, ConfigError, "file at '/tmp'"),
    (foreign.Root().file("opt", ""), {}, ConfigError, "file at '/opt'"),
    (foreign.Root().file("workspace", ""), {}, ConfigError, "file at '/workspace'"),
    (foreign.Root().directory("etc/passwd"), {}, ConfigError, "directory at '/etc/passwd'"),
    (foreign.Root().link("workspace", "/etc"), {}, ConfigError, "link at '/workspace'"),
    (foreign.Root(), {"Env": ["=odd"]}, ConfigError, "has no name"),
]


@pytest.mark.statement("M11", "B16", "G10", "G12")
def test_what_is_refused_is_refused_with_the_reason(tmp_path: Path) -> None:
    """No container is left of any of them, no volume on the host, and nothing in the worktree."""
    root = make_worktree(tmp_path / "worktree")
    before = engine_volumes()

    async def scene() -> None:
        async with tiny.engine() as engine:
            with Identity.claim(tmp_path / "state") as identity:
                for content, config, error, said in REFUSED:
                    with foreign.loaded(content, config) as image:
                        spec = LoopSpec(
                            worktree=root, limits=LIMITS, exec_id="refused", image=image
                        )
                        with pytest.raises(error, match=said):
                            async with open_box(Host(engine, identity), spec):
                                raise AssertionError(f"{config} was opened")
                assert await engine.list_containers({"executor.controller": identity.id}) == []

    asyncio.run(scene())
    assert list(root.iterdir()) == []
    assert engine_volumes() <= before


def engine_volumes() -> set[str]:
    """Volumes without a name: what an engine makes for `VOLUME`."""
    done = subprocess.run(
        ["docker", "volume", "ls", "-q"], capture_output=True, check=True, timeout=30, text=True
    )
    return {name for name in done.stdout.split() if re.fullmatch("[0-9a-f]{64}", name)}


@pytest.mark.statement("M11")
def test_the_images_own_intervals_of_a_health_check_are_no_difference() -> None:
    """An engine leaves them beside the NONE that was asked for; a test that runs is another box."""
    request = {"Healthcheck": {"Test": ["NONE"]}, "HostConfig": {"MaskedPaths": [], "Mounts": []}}
    request |= {"Image": "x", "Labels": {}}
    fields = {"Test": ["NONE"], "Interval": 1_000_000_000}
    assert read_back_faults(request, {"Config": {"Healthcheck": fields}}) == []
    [fault] = read_back_faults(request, {"Config": {"Healthcheck": {"Test": ["CMD", "x"]}}})
    assert fault.startswith("Healthcheck: ")


# ─── which are allowed ──────────────────────────────────────────────────────────────

DIGEST = "sha256:" + "ab" * 32
LISTED = ("python:3.*", "registry.example/team/*", "tool", f"pinned@{DIGEST}")
OURS = ("base", "heavy", "mine")


@pytest.mark.statement("M11")
@pytest.mark.parametrize("name", [*OURS, DIGEST, f"x@{DIGEST}", f"registry.example/x@{DIGEST}"])
@pytest.mark.parametrize(
    "policy", [Policy(), Policy(tenancy="multi"), Policy(images=()), Policy(images=LISTED)]
)
def test_ours_and_digests_are_allowed_everywhere(policy: Policy, name: str) -> None:
    """Whatever else is listed, and whoever the tenants are."""
    allowance.require_allowed(policy, name, OURS)


@pytest.mark.statement("M11")
@pytest.mark.parametrize(
    ("name", "is_listed"),
    [
        ("python:3.12", True),
        ("docker.io/library/python:3.12", True),
        ("docker.io/python:3.12-slim", True),
        ("registry.example/team/deep/x:1", True),
        ("registry.example/team/x", True),
        ("tool", True),
        ("tool:latest", True),
        ("tool:1", False),
        ("python", False),
        ("python:2", False),
        ("evil/python:3.12", False),
        ("registry.example/teams/x", False),
        ("registry.example:5000/team/x", False),
        ("ab" * 32, False),
        ("ab" * 6, False),
        ("sha256:abab", False),
        (f"x@{DIGEST}0", False),
        (f"x@{DIGEST.upper()}", False),
    ],
)
def test_other_images_are_allowed_by_the_list_alone(name: str, is_listed: bool) -> None:
    """By whole names and patterns; a short id or half a digest is no digest. Without a list one
    party has all, and several have none."""
    for policy, is_allowed in (
        (Policy(images=LISTED), is_listed),
        (Policy(tenancy="multi", images=LISTED), is_listed),
        (Policy(images=()), False),
        (Policy(tenancy="multi"), False),
        (Policy(), True),
        (Policy(images=("*",)), True),
    ):
        if is_allowed:
            allowance.require_allowed(policy, name, OURS)
        else:
            with pytest.raises(ImageNotAllowed, match=r"by its digest .*base, heavy, mine.*listed"):
                allowance.require_allowed(policy, name, OURS)


@pytest.mark.statement("M11")
def test_a_digest_is_what_it_says() -> None:
    """An engine that gives another image for a digest is not believed."""
    other = "sha256:" + "cd" * 32
    right: list[tuple[str, dict[str, Any]]] = [
        (DIGEST, {"Id": DIGEST}),
        (f"x@{DIGEST}", {"Id": other, "RepoDigests": [f"x@{DIGEST}"]}),
        ("x:1", {"Id": other}),
    ]
    wrong: list[tuple[str, dict[str, Any]]] = [
        (DIGEST, {"Id": other}),
        (f"x@{DIGEST}", {"Id": other, "RepoDigests": [f"x@{other}"]}),
        (f"x@{DIGEST}", {"Id": other, "RepoDigests": None}),
    ]
    for name, found in right:
        allowance.require_same(name, found)
    for name, found in wrong:
        with pytest.raises(ImageNotAllowed, match="another digest"):
            allowance.require_same(name, found)


@pytest.mark.statement("M11")
def test_an_image_that_is_not_allowed_is_not_asked_for(tmp_path: Path) -> None:
    """Neither the engine nor a registry hears its name; one on the list that is not there is
    not pulled either."""
    root = make_worktree(tmp_path / "worktree")

    async def scene() -> None:
        async with tiny.engine() as engine:
            with Identity.claim(tmp_path / "state") as identity:
                for image, policy, error in (
                    ("nobody/x:1", Policy(images=("tool",)), ImageNotAllowed),
                    ("nobody/x:1", Policy(images=("nobody/*",)), ImageNotFound),
                    ("nobody/x:1", Policy(), ImageNotFound),
                    (f"nobody/x@{DIGEST}", Policy(images=()), ImageNotFound),
                    (DIGEST, Policy(), ImageNotFound),
                ):
                    spec = LoopSpec(worktree=root, limits=LIMITS, exec_id="no", image=image)
                    with pytest.raises(error) as caught:
                        async with open_box(Host(engine, identity, policy=policy), spec):
                            raise AssertionError("it was opened")
                    assert isinstance(caught.value, EngineError) and image in str(caught.value)

    asyncio.run(scene())


@pytest.mark.statement("M11")
def test_nothing_is_pulled_for_a_loop() -> None:
    """One call in the package pulls: what makes our own images of what the person set."""
    package = Path(executor.__file__).parent
    calls = [
        (path.name, function.name)
        for path in sorted(package.rglob("*.py"))
        if "pull" in path.read_text()
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr in ("pull", "pull_image", "_pull_image")
    ]
    assert {name for name, _ in calls} == {"engine.py", "images.py"}
    assert [one for one in calls if one[0] == "images.py"] == [("images.py", "_from_registry")]


@pytest.mark.statement("M11")
def test_the_list_is_in_the_catalog() -> None:
    """`[controller] images`: names and patterns; what can be neither is a fault with its key."""
    packaged = Path(executor.__file__).parent / "catalog.toml"
    assert load_catalog().controller.images is None

    def policy(text: str) -> Policy:
        sources = [("catalog.toml", packaged.read_text()), ("mine.toml", text)]
        return parse(sources).controller

    assert policy('[controller]\nimages = ["python:3.*", "*"]').images == ("python:3.*", "*")
    assert policy("[controller]\nimages = []").images == ()
    with pytest.raises(ConfigError, match=r"mine.toml: controller.images"):
        policy('[controller]\nimages = ["a b"]')


# ─── by the command line ────────────────────────────────────────────────────────────

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("write_file", {"path": "a.txt", "content": "one\nneedle\n"}),
    ("read_file", {"path": "a.txt"}),
    ("edit_file", {"path": "a.txt", "old_string": "one", "new_string": "1"}),
    ("list_directory", {"path": "."}),
    ("glob", {"pattern": "**/*.txt"}),
    ("grep", {"pattern": "needle"}),
    ("run_command", {"command": "cd /tmp && cat /workspace/a.txt"}),
    ("run_code", {"language": "python", "code": "print(6 * 7)"}),
    ("run_code", {"language": "bash", "code": "echo from a shell"}),
    ("git_status", {}),
    ("git_commit", {"message": "first", "paths": ["a.txt"]}),
    ("git_log", {}),
]


def run_calls(directory: Path, image: str) -> list[dict[str, Any]]:
    """What `executor run --image` answers to the calls, over a new repository."""
    root = make_worktree(directory / "worktree")
    subprocess.run(["git", "init", "-q", root], check=True, timeout=30)
    for folder, folders, files in os.walk(root):
        for name in (".", *folders, *files):
            os.chown(Path(folder, name), root.stat().st_uid, root.stat().st_gid)
    lines = [
        json.dumps({"id": str(number), "name": name, "input": given})
        for number, (name, given) in enumerate(CALLS)
    ]
    command = [sys.executable, "-m", "executor", "run", "--image", image, "--worktree", str(root)]
    environment = {**os.environ, "EXECUTOR_STATE_DIR": str(directory / "state")}
    done = subprocess.run(
        command,
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def base_id() -> str:
    """Our own base image, as a foreign one by its digest: it has everything."""

    async def ask() -> str:
        async with tiny.engine() as engine:
            return await images.ensure_image(engine, "base")

    return asyncio.run(ask())


@needs_busybox
@pytest.mark.statement("M11")
def test_four_images_by_the_command_line() -> None:
    """`executor run --image` over busybox alone, over nothing, over programs of glibc with a git
    that is none, and over an image by its digest: file tools work in all of them, commands and
    git where there are such programs, and otherwise it is said what is missing."""
    broken_git = foreign.usual().file("bin/git", "#!/bin/sh\necho no, >&2; exit 3\n", 0o755)
    with (
        shared_place() as place,
        foreign.loaded(foreign.busybox(), TRAPS) as small,
        foreign.loaded(foreign.Root()) as nothing,
        foreign.loaded(broken_git, {"Env": ["PATH=/bin"]}) as broken,
    ):
        answers = {
            name: run_calls(place / name, image)
            for name, image in {
                "small": small,
                "nothing": nothing,
                "broken": broken,
                "whole": base_id(),
            }.items()
        }
    for name, found in answers.items():
        assert [one["is_error"] for one in found[:6]] == [False] * 6, (name, found)
        assert "needle" in found[1]["content"] and "a.txt:2:needle" in found[5]["content"]
        assert "42" in found[7]["content"], name
        has_shell = name != "nothing"
        assert [one["is_error"] for one in (found[6], found[8])] == [not has_shell] * 2, name
        assert ("needle" if has_shell else "no shell") in found[6]["content"]
        assert ("from a shell" if has_shell else "bash: there is no") in found[8]["content"]
    for name in ("small", "nothing"):
        assert {one["code"] for one in answers[name][9:]} == {"NOT_FOUND"}
        assert "git: there is no such program in this image" in answers[name][9]["content"]
    assert "git: there is no such program" in answers["small"][10]["content"]
    assert [one["is_error"] for one in answers["broken"][9:]] == [True] * 3
    assert "no," in answers["broken"][9]["content"]
    whole = answers["whole"][9:]
    assert [one["is_error"] for one in whole] == [False] * 3, whole
    assert "a.txt" in whole[0]["content"] and "first" in whole[2]["content"]
