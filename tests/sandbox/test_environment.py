"""The environment of commands, and what programs make of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from executor.model import EgressOptions, Limits, LoopSpec
from executor.sandbox.environment import EDITOR, command_environment, environment_notices


def environment(
    image: tuple[str, ...] = (), *, has_proxy: bool = False, **own: str
) -> dict[str, str]:
    spec = LoopSpec(worktree="w", limits=Limits(cpus=1.5), environment=own)
    return command_environment(spec, "sandbox", image, has_proxy=has_proxy)


def test_every_variable_is_documented_here() -> None:
    """61, 74, 75, 76: home, locale, clock, temporary files and terminal are the same always."""
    assert environment() == {
        "HOME": "/home/sandbox",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "SHELL": "/bin/sh",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/executor/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "EDITOR": EDITOR,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_SYSTEM": "/run/executor/gitconfig",
        "DEBIAN_FRONTEND": "noninteractive",
        "OMP_NUM_THREADS": "2",
        "GOMAXPROCS": "2",
    }


def test_nothing_of_the_host_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """105: the controller's own variables are not looked at."""
    before = environment()
    for name in ("OPENAI_API_KEY", "SSH_AUTH_SOCK", "DOCKER_HOST", "PATH", "HOME", "LANG"):
        monkeypatch.setenv(name, "canary-7f3a")
    assert environment() == before


@pytest.mark.parametrize(
    "entry",
    [
        *("LD_PRELOAD=/x", "LD_LIBRARY_PATH=/x", "LD_AUDIT=/x", "GLIBC_TUNABLES=x"),
        *("PYTHONPATH=/x", "PYTHONHOME=/x", "PYTHONSTARTUP=/x"),
        *("LC_ALL=C", "LC_CTYPE=POSIX", "LANGUAGE=de", "LANG=C", "TZ=Asia/Tokyo"),
        *("VISUAL=vi", "EDITOR=vi", "GIT_EDITOR=vi", "GIT_DIR=/x", "GIT_CONFIG_GLOBAL=/x"),
        *("HOME=/root", "USER=app", "TERM=xterm", "HOSTNAME=x", "PWD=/x"),
        *("EXECUTOR_CALL=7", "DOCKER_HOST=tcp://x", "=x", "x", ""),
    ],
)
def test_an_image_can_not_change_what_is_promised(entry: str) -> None:
    """M11: loader, locale, home and the like are not the image's to say."""
    assert environment((entry,)) == environment()


def test_the_rest_of_an_images_variables_is_kept() -> None:
    """An image's own programs find what they were built with, its PATH first."""
    image = ("PATH=/usr/local/go/bin:/usr/bin", "GOPATH=/go", "A=b=c", "PYTHON_VERSION=3.12")
    found = environment(image)
    assert found["PATH"] == "/usr/local/go/bin:/usr/bin:/opt/executor/bin"
    assert (found["GOPATH"], found["A"], found["PYTHON_VERSION"]) == ("/go", "b=c", "3.12")


def test_the_users_variables_come_last() -> None:
    """What the user says for the loop holds, against the image and against us."""
    found = environment(("A=image",), A="user", LANG="de_DE.UTF-8", LD_PRELOAD="/lib/x.so")
    assert (found["A"], found["LANG"], found["LD_PRELOAD"]) == ("user", "de_DE.UTF-8", "/lib/x.so")


# ─── the proxy ──────────────────────────────────────────────────────────────────────

DIRECT = "localhost,127.0.0.1,::1"
PROPERTIES = (
    "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=3128 "
    "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=3128"
)


def test_a_box_with_a_proxy_tells_its_clients_of_it() -> None:
    """83: both spellings, what Node, Maven and Gradle read, and servers in the box past it."""
    before, found = environment(), environment(has_proxy=True)
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    assert {name: found[name] for name in found.keys() - before.keys()} == {
        **dict.fromkeys(names, "http://127.0.0.1:3128"),
        "no_proxy": DIRECT,
        "NO_PROXY": DIRECT,
        "NODE_USE_ENV_PROXY": "1",
        "MAVEN_OPTS": f"{PROPERTIES} -Daether.connector.http.useSystemProperties=true",
        "GRADLE_OPTS": PROPERTIES,
    }
    assert environment(("MAVEN_OPTS=-Xmx1g",), has_proxy=True)["MAVEN_OPTS"].endswith(" -Xmx1g")


@pytest.mark.parametrize("has_proxy", [False, True])
@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "All_Proxy", "ftp_proxy"])
def test_an_images_proxies_are_dropped(name: str, *, has_proxy: bool) -> None:
    """83: where an image was built says nothing of where it runs."""
    image = (f"{name}=http://proxy.example:3128", "no_proxy=example", "NO_PROXY=x")
    assert environment(image, has_proxy=has_proxy) == environment(has_proxy=has_proxy)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("http://127.0.0.1:9", "127.0.0.1:9"),
        ("http://me:hunter2@localhost:3129/", "localhost:3129"),
        ("127.0.0.1:9", "127.0.0.1:9"),
        ("socks5h://[::1]:1080", "[::1]:1080"),
        ("http://LOCALHOST.:1", "localhost.:1"),
        ("http://127.1:8080", "127.1:8080"),
        ("http://2130706433:8080", "2130706433:8080"),
        ("http://0.0.0.0:1", "0.0.0.0:1"),
        ("http://[::ffff:127.0.0.1]", "[::ffff:127.0.0.1]"),
        ("http://proxy.localhost", "proxy.localhost"),
    ],
)
@pytest.mark.parametrize("has_proxy", [False, True])
def test_a_proxy_on_the_hosts_loopback_is_dropped_with_a_warning(
    value: str, told: str, *, has_proxy: bool
) -> None:
    """83: in the box it would be the box; its password is in no sentence."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        spec = LoopSpec(worktree="w", limits=Limits(cpus=1.5), environment={name: value})
        found = command_environment(spec, "sandbox", has_proxy=has_proxy)
        assert found == environment(has_proxy=has_proxy)
        (notice,) = environment_notices(spec)
        assert notice.startswith(f"{name} is not passed on: it names {told}, which in the sandbox")
        assert "--egress" in notice
        assert "hunter2" not in notice


@pytest.mark.parametrize(
    "value", ["http://proxy.example:8080", "http://10.0.0.1:1", "", "http://[", "http://h:x"]
)
def test_another_proxy_of_the_users_holds(value: str) -> None:
    """83: the user's own word goes before ours, and servers in the box are reached past it."""
    found = environment(has_proxy=True, http_proxy=value, NO_PROXY="intern.example, localhost")
    assert (found["http_proxy"], found["https_proxy"]) == (value, "http://127.0.0.1:3128")
    assert found["NO_PROXY"] == found["no_proxy"] == f"{DIRECT},intern.example"
    assert environment(http_proxy=value)["no_proxy"] == DIRECT
    assert environment_notices(LoopSpec(worktree="w", environment={"http_proxy": value})) == []


def test_given_certificates_are_named_only_where_there_is_a_way_out() -> None:
    """Clients find them at one place, each by its own variable; the user's own one holds."""
    spec = LoopSpec(
        worktree="w", environment={"PIP_CERT": "/x"}, egress=EgressOptions(ca_file="ca.pem")
    )
    found = command_environment(spec, "sandbox", has_proxy=True)
    assert {name for name, value in found.items() if value == "/run/executor/ca.crt"} == {
        *("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"),
        *("NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO"),
    }
    assert found["PIP_CERT"] == "/x"
    assert "/run/executor/ca.crt" not in command_environment(spec, "sandbox").values()


# ─── git ────────────────────────────────────────────────────────────────────────────


def git(directory: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Git as a command of a box runs it."""
    person = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME",)}
    person |= {f"GIT_{who}_EMAIL": "x@x" for who in ("AUTHOR", "COMMITTER")}
    own = {"HOME": str(directory), "PATH": os.defpath, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *arguments],
        cwd=directory,
        env={**environment(), **own, **person, **changes},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=5,
        check=False,
        start_new_session=True,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits, and a staged change."""
    git(tmp_path, "init", "-q")
    for number in range(3):
        (tmp_path / "file").write_text(f"{number}\n")
        git(tmp_path, "add", "file")
        assert git(tmp_path, "commit", "-q", "-m", f"number {number}").returncode == 0
    (tmp_path / "file").write_text("staged\n")
    git(tmp_path, "add", "file")
    return tmp_path


def test_a_commit_without_a_message_fails_with_the_editor_named(repository: Path) -> None:
    """51: it ends at once, says what to do, and nothing is committed."""
    head = git(repository, "rev-parse", "HEAD").stdout
    result = git(repository, "commit")
    assert result.returncode == 1
    assert "No editor can run here" in result.stderr
    assert "problem with the editor" in result.stderr
    assert git(repository, "rev-parse", "HEAD").stdout == head


def test_an_interactive_rebase_fails_with_the_editor_named(repository: Path) -> None:
    """51: it ends at once and leaves no rebase behind."""
    git(repository, "commit", "-q", "-m", "staged")
    result = git(repository, "rebase", "-i", "HEAD~2")
    assert result.returncode == 1
    assert "problem with the editor" in result.stderr
    assert not (repository / ".git" / "rebase-merge").exists()


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (("rebase", "-i", "HEAD~2"), {"EDITOR": "true"}),
        (("rebase", "-i", "HEAD~2"), {"GIT_EDITOR": "true"}),
        (("rebase", "-i", "HEAD~2"), {"GIT_SEQUENCE_EDITOR": "true"}),
        (("-c", "core.editor=true", "rebase", "-i", "HEAD~2"), {}),
        (("commit", "--amend", "--no-edit"), {}),
        (("commit", "--amend"), {"EDITOR": "true"}),
        (("commit", "--amend"), {"TERM": "xterm", "EDITOR": "true"}),
    ],
)
def test_every_usual_way_around_the_editor_works(
    repository: Path, arguments: tuple[str, ...], changes: dict[str, str]
) -> None:
    """51: the editor that fails stands in nobody's way who names another."""
    git(repository, "commit", "-q", "-m", "staged")
    assert git(repository, *arguments, **changes).returncode == 0


def test_a_log_is_not_paged(repository: Path) -> None:
    """51: the whole log comes, without a pager that waits."""
    assert git(repository, "log", "--format=%s").stdout == "number 2\nnumber 1\nnumber 0\n"
