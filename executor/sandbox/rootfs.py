"""The root file system of one of our images as a tar.

Without any registry: mmdebstrap (or debootstrap) on this machine makes a Debian root
file system out of signed packages, and its tar goes straight into the engine.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from executor.errors import EngineError
from executor.sandbox.recipes import Recipe
from executor.settings import values_of

NO_BOOTSTRAPPER = (
    "The images are made from Debian packages, and neither mmdebstrap nor debootstrap is "
    "installed. Run `apt-get install mmdebstrap`, or set EXECUTOR_IMAGE_SOURCE=registry where a "
    "registry can be reached."
)
SUITES = ("", "-updates", "-security")
_ETC_APT = Path("/etc/apt")
_OS_RELEASE = Path("/etc/os-release")
_NO_SOURCES = "# Boxes have no network. Name an archive here to install more into an image of this."
_PIECE = 1 << 20

_LEFT_OUT = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/share/man/*",
)
"""For dpkg. Licences stay; `C.UTF-8` lives elsewhere and stays, too."""
_ALTERNATIVES = "/usr/share/man/man1"
"""Java's packages make links to manuals in there, and can't be installed without it."""

_PROGRAMS = "/opt/programs"
"""Where programs of PyPI and npm are in an image."""
_LINK_SCRIPTS = (
    "import os, sys; from importlib.metadata import distribution; "
    "[os.symlink(sys.argv[2] + '/' + point.name, '/usr/local/bin/' + point.name) "
    "for point in distribution(sys.argv[1]).entry_points if point.group == 'console_scripts']"
)
"""Python, with the names of a package and of a directory: links the package's commands."""
_LEAVE_OUT = "Without one, leave it or its layer out."
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_BELIEVED = "/tmp/executor-authorities.pem"
_PASSED = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "PIP_INDEX_URL", "npm_config_registry",
)  # fmt: skip
"""This machine's ways to the indexes; they are not left in the image."""


# ─── out of packages ────────────────────────────────────────────────────────────────


def bootstrapper() -> str | None:
    """The program that can make a root file system here; None = none is installed."""
    return shutil.which("mmdebstrap") or shutil.which("debootstrap")


class Bootstrap:
    """One run of the bootstrap program, as an iterable of the tar's bytes.

    Args:
        recipe: what to make.
        report: called from other threads with what is being done.
    """

    def __init__(self, recipe: Recipe, report: Callable[[str], None]) -> None:
        program = bootstrapper()
        if program is None:
            raise EngineError(NO_BOOTSTRAPPER)
        self._recipe = recipe
        self._report = report
        self._program = Path(program)
        self._said: deque[str] = deque(maxlen=30)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Ends the program; the iteration ends by an error."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()

    def __iter__(self) -> Iterator[bytes]:
        if self._program.name == "mmdebstrap":
            yield from self._run(mmdebstrap_command(self._recipe, _host_sources(self._recipe)))
            return
        with TemporaryDirectory(prefix="executor-") as place:
            within = program_commands(self._recipe, shlex.quote(place))
            commands = [["sh", "-c", line] for line in within]
            for command in (debootstrap_command(self._recipe, place), *commands):
                for _ in self._run(command):
                    pass
            yield from self._run(["tar", "-C", place, "--numeric-owner", "-c", "."])

    def _run(self, command: list[str]) -> Iterator[bytes]:
        if self._stopped:
            raise EngineError("The build was stopped.")
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._process = process
        assert process.stdout is not None and process.stderr is not None
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        try:
            while piece := process.stdout.read(_PIECE):
                yield piece
            code = process.wait()
            listener.join()
        finally:
            with suppress(OSError):
                process.kill()
            process.wait()
        if code:
            raise EngineError(failure(command[0], code, list(self._said)))

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for raw in process.stderr:
            line = raw.decode(errors="replace").strip()
            if line:
                self._said.append(line)
            if line and "hook" not in line:
                self._report(line.removeprefix("I: "))


def failure(program: str, code: int, said: list[str]) -> str:
    """What a failed build comes to, for a person.

    Args:
        program: that failed.
        code: its exit code.
        said: the last lines of it. Where one is the refusal of an index, it says it all.
    """
    for at, line in enumerate(said):
        if line.endswith(_LEAVE_OUT) and not line.startswith(("I: ", "E: ")):
            return "\n".join([line, *said[max(0, at - 2) : at]])
    return "\n".join([f"{program} failed with exit code {code}:", *said])


def mmdebstrap_command(recipe: Recipe, sources: list[str]) -> list[str]:
    """The command that writes the tar to its standard output.

    Args:
        recipe: what to make.
        sources: lines for apt, for the build alone; empty = the program's own default.
    """
    clean = [
        f"printf '%s\\n' '{_NO_SOURCES}' > \"$1/etc/apt/sources.list\"",
        'rm -rf "$1"/etc/apt/sources.list.d/* "$1"/var/log/* "$1"/var/cache/debconf/*-old',
        'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap',
    ]
    return [
        "mmdebstrap",
        "--variant=minbase",
        "--format=tar",
        "--include=" + ",".join(recipe.debian),
        *(f"--dpkgopt={line}" for line in _LEFT_OUT),
        f'--essential-hook=mkdir -p "$1{_ALTERNATIVES}"',
        *(f"--aptopt={line}" for line in _proxies()),
        *(f"--customize-hook={line}" for line in program_commands(recipe, '"$1"')),
        *(f"--customize-hook={line}" for line in clean),
        recipe.release,
        "-",
        *sources,
    ]


def debootstrap_command(recipe: Recipe, place: str) -> list[str]:
    """The command that fills the directory `place`."""
    sources = [line.split() for line in _host_sources(recipe)]
    mirrors = [words[-3] for words in sources if words[-2] == recipe.release]
    return [
        "debootstrap",
        "--variant=minbase",
        "--include=" + ",".join(recipe.debian),
        recipe.release,
        place,
        *mirrors[:1],
    ]


def install_script(recipe: Recipe) -> str:
    """Shell: turns a plain Debian container into the recipe's root file system."""
    lines = "\n".join(_LEFT_OUT)
    return f"""set -e
export DEBIAN_FRONTEND=noninteractive
cat > /etc/dpkg/dpkg.cfg.d/99executor <<'END'
{lines}
END
mkdir -p {_ALTERNATIVES}
if ! dpkg-query -W {" ".join(recipe.debian)} >/dev/null 2>&1; then
  apt-get -q -o Acquire::Retries=1 update
  apt-get -q -y --no-install-recommends install {" ".join(recipe.debian)}
  apt-get clean
fi
rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/debconf/*-old
{program_script(recipe)}
"""


# ─── programs of PyPI and npm ───────────────────────────────────────────────────────


def program_script(recipe: Recipe) -> str:
    """One line of shell, for root in the image: installs what the recipe has of PyPI and npm.

    Each package of PyPI has a virtual environment of its own, compiled, since boxes can't
    write there; those of npm are neighbours, as they look for each other. None of their
    set-up scripts runs. Their commands are linked into `/usr/local/bin`.
    """
    steps = [_pip_steps(package) for package in recipe.pip]
    if recipe.npm:
        steps.append(_npm_steps(recipe.npm))
    return " && ".join(steps) or ":"


def _pip_steps(package: str) -> str:
    name = re.split(r"[=\[]", package, maxsplit=1)[0]
    place = f"{_PROGRAMS}/pip/{name}"
    return (
        f"{{ python3 -m venv --without-pip {place} && "
        f"python3 -m pip --python {place}/bin/python install -q --no-cache-dir --no-input "
        f"--only-binary :all: --compile {shlex.quote(package)} && "
        f"{place}/bin/python -c {shlex.quote(_LINK_SCRIPTS)} {name} {place}/bin; }} || "
        f"{_refusal(package, 'PyPI')}"
    )


def _npm_steps(packages: tuple[str, ...]) -> str:
    place = f"{_PROGRAMS}/npm"
    cache = "/tmp/executor-npm"
    return (
        f"{{ npm install --global --prefix {place} --cache {cache} --ignore-scripts --no-audit "
        f"--no-fund --no-update-notifier --loglevel=error {shlex.join(packages)} && "
        f"rm -rf {cache} && ln -sf -t /usr/local/bin {place}/bin/*; }} || "
        f"{_refusal(' '.join(packages), 'npm')}"
    )


def _refusal(what: str, index: str) -> str:
    """Shell: ends the build with what somebody without a network has to know."""
    text = (
        f"{what} could not be installed. Such a version has to be on {index}, and that has to be "
        f"reached while an image is built, or a mirror of it (PIP_INDEX_URL, npm_config_registry). "
        f"{_LEAVE_OUT}"
    )
    return f"{{ echo {shlex.quote(text)} >&2; exit 1; }}"


def program_commands(recipe: Recipe, root: str) -> list[str]:
    """Lines of shell on this machine that run `program_script` in a root file system.

    Args:
        recipe: what is made.
        root: the directory, as a word of shell.

    Returns:
        In order; empty where the recipe has no such programs.
    """
    if not recipe.pip and not recipe.npm:
        return []
    # By reference: a mirror's address may hold a password, and commands are shown and logged.
    words = [f'{name}="${name}"' for name in values_of(_PASSED)]
    words += [f"PATH={_PATH}", "HOME=/tmp", "LC_ALL=C.UTF-8"]
    bundle = Path(values_of(("SSL_CERT_FILE",)).get("SSL_CERT_FILE", _CERTIFICATES))
    copy = []
    if bundle.is_file():
        # The authorities that this machine believes: an index of a company may have its own.
        copy = [f"cp {shlex.quote(str(bundle))} {root}{_BELIEVED}"]
        believers = ("PIP_CERT", "npm_config_cafile", "SSL_CERT_FILE")
        words += [f"{name}={_BELIEVED}" for name in believers]
    script = shlex.quote(f"umask 022 && {program_script(recipe)}")
    inside = f"env -i {' '.join(words)} sh -c {script}"
    return [*copy, f"chroot {root} {inside}", f"rm -rf {root}{_BELIEVED} {root}/tmp/.npm"]


# ─── the host's mirrors ─────────────────────────────────────────────────────────────


def _host_sources(recipe: Recipe) -> list[str]:
    """This machine's own sources of the release: they are known to answer from here."""
    files = [_ETC_APT / "sources.list", *sorted((_ETC_APT / "sources.list.d").glob("*"))]
    lines: list[str] = []
    for file in files:
        with suppress(OSError):
            lines += parse_sources(file.name, file.read_text(errors="replace"), recipe.release)
    has_release = any(line.split()[-2] == recipe.release for line in lines)
    return lines if has_release else []


def parse_sources(name: str, text: str, release: str) -> list[str]:
    """The entries of an apt source file that are Debian's `main` of a release.

    Args:
        name: the file's name; `.list` and `.sources` are different formats.
        text: what is in it.
        release: code name; its updates and security suites count, too.

    Returns:
        Lines in the one-line format.
    """
    if name.endswith(".sources"):
        entries = list(_stanzas(text))
    elif name.endswith(".list"):
        entries = list(_one_liners(text))
    else:
        return []
    wanted = {release + suffix for suffix in SUITES}
    found = []
    for addresses, suites, components, key in entries:
        option = f"[signed-by={key}] " if key.startswith("/") else ""
        if "main" in components:
            found += [
                f"deb {option}{address} {suite} main"
                for address in addresses
                for suite in suites
                if suite in wanted
            ]
    return found


_Entry = tuple[list[str], list[str], list[str], str]


def _stanzas(text: str) -> Iterator[_Entry]:
    """Entries of the deb822 format."""
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
            else:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "0")
        if enabled and "deb" in fields.get("types", "").split():
            yield (
                fields.get("uris", "").split(),
                fields.get("suites", "").split(),
                fields.get("components", "").split(),
                fields.get("signed-by", "").strip(),
            )


def _one_liners(text: str) -> Iterator[_Entry]:
    """Entries of the one-line format: `deb [options] address suite component…`."""
    for line in text.splitlines():
        match = re.fullmatch(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)(?:#.*)?", line)
        if match:
            options = dict(word.partition("=")[::2] for word in (match[1] or "").split())
            yield [match[2]], [match[3]], match[4].split(), options.get("signed-by", "")


def _proxies() -> list[str]:
    """This machine's HTTP proxies for apt; they are not left in the image."""
    try:
        dump = subprocess.run(
            ["apt-config", "dump"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = dump.splitlines()
    return [line for line in lines if re.match(r'Acquire::https?::Proxy\b.* "\S+";', line, re.I)]
