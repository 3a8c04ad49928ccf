"""Recipes of our images: what is shipped, and what a person's own file makes of it.

A recipe is a TOML file of Debian packages, each with its reason. One may extend another,
and have layers: groups of packages of which a person takes some. The person's choice is in
one file of theirs (`EXECUTOR_IMAGES`, or `images.toml` beside the catalog):

    [heavy]                           # ours, with these layers instead of the usual ones
    layers = ["c", "node"]
    packages = ["sqlite3"]            # and more; or a table, name = "reason"

    [statistics]                      # one more image, for `--image statistics`
    extends = "base"                  # or "heavy", as it is chosen above
    packages = ["r-base-core"]

A package `pip:NAME==VERSION` is of PyPI, `npm:NAME@VERSION` of npm: their programs are put
into the image when it is built, so the build has to reach those indexes. Both are pinned.

An image is named by the hash of all that it is made from. So several choices lie side by
side on one engine, and what is made of an older recipe is not taken for a newer one.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executor.catalog_tables import instead
from executor.errors import ConfigError

BUILD_VERSION = "2"
"""Counts up when images must be made anew although their recipes are the same."""
BASE = "base"
RESERVED = frozenset({"python", "runtime", "build"})
"""Kinds of other things of ours on an engine."""

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_PIP = re.compile(r"pip:([A-Za-z0-9][A-Za-z0-9._-]*)(\[[a-z0-9,-]+\])?==[0-9][A-Za-z0-9.+!]*")
_NPM = re.compile(r"npm:(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*@[0-9][A-Za-z0-9.+-]*")
_IMAGE = re.compile(r"[a-z][a-z0-9-]{0,30}")
_RELEASE = re.compile(r"[a-z]+")
_KEYS = ("extends", "layers", "packages")
_NO_REASON = "chosen"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one of our images is made of.

    Attributes:
        name: `base`, `heavy`, or one of a person's own file.
        release: code name of the Debian release.
        packages: package → why it is in: a name of Debian's, `pip:NAME==VERSION` or
            `npm:NAME@VERSION`.
        hash: twelve hex digits; another recipe or another way of building = another hash.
        layers: those that were taken.
        offered: all layers that there are of it, with their packages.
        fixed: the packages that are in it whatever layers are taken.
        file: the person's file that has a say in it; None = it is as it is shipped.
    """

    name: str
    release: str
    packages: dict[str, str]
    hash: str
    layers: tuple[str, ...] = ()
    offered: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    @property
    def reference(self) -> str:
        """The image's name on an engine."""
        return f"executor-{self.name}:{self.hash}"

    @property
    def debian(self) -> tuple[str, ...]:
        """Names of the packages that are Debian's."""
        return tuple(package for package in self.packages if ":" not in package)

    @property
    def pip(self) -> tuple[str, ...]:
        """Pinned packages of PyPI, as pip reads them."""
        return self._from("pip:")

    @property
    def npm(self) -> tuple[str, ...]:
        """Pinned packages of npm, as npm reads them."""
        return self._from("npm:")

    def _from(self, index: str) -> tuple[str, ...]:
        return tuple(name.removeprefix(index) for name in self.packages if name.startswith(index))


class Recipes:
    """All images that can be built: those that are shipped, and a person's own.

    Args:
        file: the person's; None = there is none.
        directory: of what is shipped; None = the package's.

    Raises:
        ConfigError: the file is wrong; names every fault, with its key and the mend.
    """

    def __init__(self, file: Path | None = None, directory: Path | None = None) -> None:
        self._file = file
        self._directory = directory or _shipped()
        self._shipped = sorted(path.stem for path in self._directory.glob("*.toml"))
        self._own: Mapping[str, Any] = {}
        if file is not None:
            self._own = _read_own(file)
            shipped = {name: load_recipe(name, self._directory) for name in self._shipped}
            if faults := _Check(shipped, self._own).faults():
                raise ConfigError([f"{file}: {fault}" for fault in faults])

    def names(self) -> list[str]:
        """The images that can be built."""
        return sorted({*self._shipped, *self._own})

    def load(self, name: str) -> Recipe:
        """The recipe of one of `names`."""
        own = self._own.get(name)
        if own is None:
            return load_recipe(name, self._directory)
        if name in self._shipped:
            below = load_recipe(name, self._directory)
        else:
            below = self.load(own["extends"])
        return _chosen(name, below, own, self._file)


def load_recipe(name: str, directory: Path | None = None) -> Recipe:
    """Reads and checks `images/<name>.toml` and what it extends, as it is shipped.

    Raises:
        ConfigError: the recipe is wrong; names every fault.
    """
    directory = directory or _shipped()
    digest = hashlib.sha256(BUILD_VERSION.encode())
    table = _read_shipped(directory, name, digest.update)
    offered: dict[str, dict[str, str]] = table["offered"]
    packages: dict[str, str] = dict(table["packages"])
    usual = tuple(layer for layer in table["layers"] if layer in offered)
    for layer in usual:
        packages |= offered[layer]
    every = {name for group in (packages, *offered.values()) for name in group}
    faults = [f"{name}.toml: {text}" for text in _package_faults(sorted(every))]
    faults += [f"{name}.toml: {one!r} is no layer" for one in table["layers"] if one not in offered]
    if not _RELEASE.fullmatch(table["release"]):
        release = table["release"]
        faults.append(f"{name}.toml: release {release!r} is no code name of a Debian release")
    if faults:
        raise ConfigError(faults)
    return Recipe(
        name=name,
        release=table["release"],
        packages=packages,
        hash=digest.hexdigest()[:12],
        layers=usual,
        offered=offered,
        fixed=table["packages"],
    )


def _read_shipped(directory: Path, name: str, note: Callable[[bytes], object]) -> dict[str, Any]:
    raw = (directory / f"{name}.toml").read_bytes()
    note(raw)
    table = tomllib.loads(raw.decode())
    below: dict[str, Any] = {"release": "", "packages": {}, "layers": (), "offered": {}}
    if "extends" in table:
        below = _read_shipped(directory, str(table["extends"]), note)
    return {
        "release": str(table.get("release", below["release"])),
        "packages": {**below["packages"], **table.get("packages", {})},
        "layers": tuple(table.get("usual", below["layers"])),
        "offered": {**below["offered"], **table.get("layers", {})},
    }


def _shipped() -> Path:
    """`images/`: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "images"
    return installed if installed.is_dir() else package.parent / "images"


def _chosen(name: str, below: Recipe, own: Mapping[str, Any], file: Path | None) -> Recipe:
    """A recipe with a person's layers instead of its own, and with more packages."""
    layers = tuple(dict.fromkeys(own.get("layers", below.layers)))
    fixed = {**below.fixed, **_with_reasons(own.get("packages", {}))}
    packages = dict(fixed)
    for layer in layers:
        packages |= below.offered[layer]
    made_from = [below.hash, sorted(packages)]
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:12]
    if name == below.name and packages.keys() == below.packages.keys():
        digest = below.hash  # chosen is what it is anyway
    return Recipe(name, below.release, packages, digest, layers, below.offered, fixed, file)


def _with_reasons(packages: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(packages, Mapping):
        return dict(packages)
    return dict.fromkeys(packages, _NO_REASON)


# ─── a person's file ────────────────────────────────────────────────────────────────


def _read_own(file: Path) -> dict[str, Any]:
    try:
        raw = file.read_bytes()
        if len(raw) > _MOST_BYTES:
            raise ConfigError(f"{file}: it has {len(raw)} bytes; a choice of images has few")
        return tomllib.loads(raw.decode())
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # tomllib's, and of text that is no UTF-8
        raise ConfigError(f"{file}: is no TOML: {error}") from error


class _Check:
    """What is wrong with a person's file, all of it."""

    def __init__(self, shipped: Mapping[str, Recipe], own: Mapping[str, Any]) -> None:
        self._shipped = shipped
        self._own = own

    def faults(self) -> list[str]:
        """One sentence each, with the key in front."""
        return [fault for name, table in self._own.items() for fault in self._of_image(name, table)]

    def _of_image(self, name: str, table: Any) -> list[str]:
        if fault := self._name_fault(name):
            return [fault]
        if not isinstance(table, dict):
            return [f"{name}: is no table; write [{name}] and its keys below"]
        faults = [
            f"{name}.{key}: unknown key{instead(key, _KEYS)}" for key in table if key not in _KEYS
        ]
        faults += self._extends_faults(name, table)
        faults += self._layer_faults(name, table)
        return faults + self._own_package_faults(name, table.get("packages", []))

    def _name_fault(self, name: str) -> str:
        if name == BASE:
            return (
                f"{name}: is what everything else is made from, the agent too, and can't be "
                f'changed; write [NAME] with extends = "{BASE}"'
            )
        if name in RESERVED or not _IMAGE.fullmatch(name):
            return (
                f"{name}: can't name an image; use up to 31 small letters, digits and hyphens, "
                f"and none of {', '.join(sorted(RESERVED))}"
            )
        return ""

    def _extends_faults(self, name: str, table: Mapping[str, Any]) -> list[str]:
        below = table.get("extends")
        if name in self._shipped:
            text = f"{name}.extends: {name} is one of ours, and extends what it does; remove it"
            return [text] if below is not None else []
        known = sorted(self._shipped)
        if below is None:
            return [f"{name}.extends: is missing; say which image it extends: {', '.join(known)}"]
        if below not in known:
            return [f"{name}.extends: there is no image {below!r}{instead(str(below), known)}"]
        return []

    def _layer_faults(self, name: str, table: Mapping[str, Any]) -> list[str]:
        layers = table.get("layers", [])
        if not _is_words(layers):
            return [f'{name}.layers: is no list of names; write layers = ["c", "node"]']
        below = self._shipped.get(name if name in self._shipped else str(table.get("extends")))
        if below is None:
            return []  # said of `extends`
        if layers and not below.offered:
            return [f"{name}.layers: {below.name} has none to choose from; name packages"]
        return [
            f"{name}.layers: there is no layer {one!r}{instead(one, sorted(below.offered))}"
            for one in layers
            if one not in below.offered
        ]

    def _own_package_faults(self, name: str, packages: Any) -> list[str]:
        is_table = isinstance(packages, dict) and _is_words(list(packages.values()))
        if not is_table and not _is_words(packages):
            return [f'{name}.packages: is no list of names; write packages = ["sqlite3"]']
        return [f"{name}.packages: {text}" for text in _package_faults(packages)]


def _package_faults(packages: Iterable[str]) -> list[str]:
    return [fault for package in packages if (fault := _package_fault(package))]


def _package_fault(package: str) -> str:
    """What is wrong with one package's name; empty = nothing."""
    if package.startswith("pip:"):
        if _PIP.fullmatch(package):
            return ""
        return f"{package!r} is no pinned package of PyPI; write pip:NAME==VERSION"
    if package.startswith("npm:"):
        if _NPM.fullmatch(package):
            return ""
        return f"{package!r} is no pinned package of npm; write npm:NAME@VERSION"
    if _PACKAGE.fullmatch(package):
        return ""
    return f"{package!r} is no package name; Debian's are of small letters, digits and .+-"


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
