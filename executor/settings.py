"""Environment → `Settings`. The only reader of `os.environ` in the host package."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from executor.errors import ConfigError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_SCHEMES = ("unix://", "tcp://", "http://", "https://")
_IMAGE_REFERENCE = "debian:{release}-slim"
_REGISTRY_TIMEOUT = 8.0
_LONGEST = 600.0
_TERMINAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_BASES = {"STATE": ".local/state", "CONFIG": ".config"}


class ImageSource(StrEnum):
    """Where the images' root file system comes from."""

    AUTO = "auto"
    """A registry if one answers within seconds, otherwise the packages."""
    REGISTRY = "registry"
    PACKAGES = "packages"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the machine says about how to run; what a loop may do is not in here.

    Attributes:
        docker_host: address of the engine; None = the default socket.
        tls_verify: speak TLS to a `tcp://` engine and check its certificate.
        cert_path: directory with `ca.pem`, `cert.pem` and `key.pem` for TLS.
        allow_insecure_engine: accept an engine that anybody may use (`tcp://` without
            TLS, a world-writable socket).
        state_directory: locks and what outlives a controller. Created on first use.
        config_file: the user's configuration file; None = there is none.
        images_file: the user's choice of what images hold (see `sandbox.recipes`); None = there
            is none.
        image_source: where the images' root file system comes from.
        image_reference: the image that a registry is asked for; `{release}` is replaced.
        registry_timeout: seconds that a registry has to give its first answer.
        terminal: kind of the person's terminal; empty where there is none.
        model_key: key of the Messages API, for subagents; None = there is none.
        model_url: its address; None = the usual one.
        model_name: of the model that subagents ask where nothing else names one.
        google_search_key, google_search_engine, google_search_url: key of Google's Custom Search,
            the search engine that is asked, and another address than the usual one.
        serper_key, serper_url: the same of Serper.
        git_program: git of the host, absolute; None = the one among the system's programs.
    """

    docker_host: str | None = None
    tls_verify: bool = False
    cert_path: Path | None = None
    allow_insecure_engine: bool = False
    state_directory: Path = field(
        default_factory=lambda: Path.home() / _BASES["STATE"] / "executor"
    )
    config_file: Path | None = None
    images_file: Path | None = None
    image_source: ImageSource = ImageSource.AUTO
    image_reference: str = _IMAGE_REFERENCE
    registry_timeout: float = _REGISTRY_TIMEOUT
    terminal: str = ""
    model_key: str | None = field(default=None, repr=False)
    model_url: str | None = None
    model_name: str | None = None
    git_program: Path | None = None
    google_search_key: str | None = field(default=None, repr=False)
    google_search_engine: str | None = None
    google_search_url: str | None = None
    serper_key: str | None = field(default=None, repr=False)
    serper_url: str | None = None

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """The settings of this process.

        Args:
            environment: variables to read instead of the process's own.

        Raises:
            ConfigError: variables hold what they can't; names every one of them.
        """
        reader = _Reader(os.environ if environment is None else environment)
        settings = cls(
            docker_host=reader.address("DOCKER_HOST"),
            tls_verify=bool(reader.text("DOCKER_TLS_VERIFY")),
            cert_path=reader.path("DOCKER_CERT_PATH"),
            allow_insecure_engine=reader.flag("EXECUTOR_ALLOW_INSECURE_ENGINE"),
            state_directory=reader.path("EXECUTOR_STATE_DIR") or reader.base("STATE"),
            config_file=reader.config_file("EXECUTOR_CATALOG", "catalog.toml"),
            images_file=reader.config_file("EXECUTOR_IMAGES", "images.toml"),
            image_source=reader.image_source("EXECUTOR_IMAGE_SOURCE"),
            image_reference=reader.text("EXECUTOR_IMAGE_REFERENCE") or _IMAGE_REFERENCE,
            registry_timeout=reader.seconds("EXECUTOR_REGISTRY_TIMEOUT", _REGISTRY_TIMEOUT),
            terminal=reader.terminal("TERM"),
            model_key=reader.text("ANTHROPIC_API_KEY") or None,
            model_url=reader.text("ANTHROPIC_BASE_URL") or None,
            model_name=reader.text("ANTHROPIC_MODEL") or None,
            git_program=reader.path("EXECUTOR_GIT"),
            google_search_key=reader.text("EXECUTOR_GOOGLE_SEARCH_KEY") or None,
            google_search_engine=reader.text("EXECUTOR_GOOGLE_SEARCH_ENGINE") or None,
            google_search_url=reader.text("EXECUTOR_GOOGLE_SEARCH_URL") or None,
            serper_key=reader.text("EXECUTOR_SERPER_KEY") or None,
            serper_url=reader.text("EXECUTOR_SERPER_URL") or None,
        )
        if reader.faults:
            raise ConfigError(reader.faults)
        return settings

    def with_model(self, name: str | None) -> Settings:
        """The same, and agents ask the model of this name.

        Args:
            name: None = as it is.

        Raises:
            ConfigError: there is no key to ask any model with.
        """
        if name is None:
            return self
        if self.model_key is None:
            raise ConfigError(
                "--model: no agent can ask it without a key; set ANTHROPIC_API_KEY, or leave "
                "the option out"
            )
        return replace(self, model_name=name)


def user_surroundings(uid: int | None = None) -> dict[str, str]:
    """Variables by which git finds the configuration of a user; an empty one is not set.

    Args:
        uid: of another user; None = whoever runs this process.
    """
    if uid is None:
        names = ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
        found = {name: os.environ.get(name, "") for name in names}
        return found | {"HOME": os.environ.get("HOME") or os.fspath(Path.home())}
    try:
        return {"HOME": pwd.getpwuid(uid).pw_dir}
    except KeyError:
        return {}


def values_of(names: Iterable[str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of these names that are set and not empty, as they are.

    Args:
        names: of secrets that a person gives to a loop by the name of a variable.
        environment: variables to read instead of the process's own.
    """
    variables = os.environ if environment is None else environment
    return {name: variables[name] for name in names if variables.get(name)}


class _Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.faults: list[str] = []

    def text(self, name: str) -> str:
        return self._environment.get(name, "").strip()

    def terminal(self, name: str) -> str:
        """The name of a kind of terminal; one that no terminal has counts as none."""
        text = self.text(name)
        return text if _TERMINAL.fullmatch(text) else ""

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        if not text:
            return None
        path = Path(text).expanduser()
        if not path.is_absolute():
            self.faults.append(f"{name}: {text!r} is not an absolute path; give one")
        return path

    def base(self, kind: str) -> Path:
        """Our directory under an XDG base; a relative base is ignored, as XDG says."""
        text = self.text(f"XDG_{kind}_HOME")
        home = Path(self.text("HOME") or Path.home())
        base = Path(text) if text.startswith("/") else home / _BASES[kind]
        return base / "executor"

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in _TRUE | _FALSE:
            self.faults.append(f"{name}: {text!r} is neither yes nor no; write 1 or 0")
        return text in _TRUE

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name)
        try:
            seconds = float(text) if text else default
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= _LONGEST:
            self.faults.append(f"{name}: {text!r} is not a number of seconds up to {_LONGEST:g}")
            return default
        return seconds

    def address(self, name: str) -> str | None:
        text = self.text(name)
        if text and not text.startswith(_SCHEMES):
            self.faults.append(
                f"{name}: {text!r} is no address of an engine; write unix:///path/to/socket "
                "or tcp://host:port"
            )
        return text or None

    def image_source(self, name: str) -> ImageSource:
        text = self.text(name).lower() or ImageSource.AUTO.value
        try:
            return ImageSource(text)
        except ValueError:
            allowed = ", ".join(ImageSource)
            self.faults.append(f"{name}: {text!r} is unknown; allowed are {allowed}")
            return ImageSource.AUTO

    def config_file(self, variable: str, name: str) -> Path | None:
        """The file that is named (it must exist), else the usual one where it exists."""
        named = self.path(variable)
        if named is not None:
            if not named.is_file():
                self.faults.append(f"{variable}: {named} is not a file")
            return named
        usual = self.base("CONFIG") / name
        return usual if usual.is_file() else None
