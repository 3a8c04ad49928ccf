"""Recipes of images: those that are shipped, and what a person's own file makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import ConfigError
from executor.sandbox.recipes import Recipe, Recipes, load_recipe
from executor.sandbox.rootfs import failure, install_script, mmdebstrap_command, program_commands
from executor.settings import Settings

BASE = 'release = "bookworm"\n[packages]\ngit = "history"\nmake = "make"\n'
HEAVY = """
extends = "base"
usual = ["c", "node"]
[packages]
jq = "JSON"
[layers.c]
gcc = "C"
make = "make"
[layers.node]
nodejs = "node"
[layers.java]
default-jdk-headless = "java"
"""


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A directory of recipes as they are shipped."""
    directory = tmp_path / "images"
    directory.mkdir()
    (directory / "base.toml").write_text(BASE)
    (directory / "heavy.toml").write_text(HEAVY)
    return directory


def own(shipped: Path, text: str, name: str = "images.toml") -> Recipes:
    """All images, with a person's file of this text."""
    file = shipped.parent / name
    file.write_text(text)
    return Recipes(file, shipped)


# ─── shipped ────────────────────────────────────────────────────────────────────────


def test_shipped_recipes_are_sound() -> None:
    """Both recipes can be read; heavy has all of base; each package has a reason."""
    assert Recipes().names() == ["base", "heavy"]
    base, heavy = load_recipe("base"), load_recipe("heavy")

    assert {"python3", "python3-pytest", "git", "procps"} <= set(base.packages)
    assert set(base.packages) < set(heavy.packages)
    assert all(heavy.packages.values())
    assert all(reason for layer in heavy.offered.values() for reason in layer.values())
    assert base.reference == f"executor-base:{base.hash}"


def test_the_usual_heavy_image_builds_and_tests() -> None:
    """Compilers, make, cmake, pytest, node and java are in it, each in a layer to choose."""
    heavy = load_recipe("heavy")
    wanted = {
        *("gcc", "g++", "make", "cmake", "python3-pytest", "nodejs", "npm"),
        "default-jdk-headless",
    }
    assert wanted <= heavy.packages.keys()
    assert wanted <= {package for layer in heavy.offered.values() for package in layer}
    assert set(heavy.layers) <= heavy.offered.keys()


def test_changed_recipe_has_another_name(shipped: Path) -> None:
    """Any change of a recipe, or of the one that it extends, gives another hash."""
    names = ("base", "heavy")
    before = [load_recipe(name, shipped).hash for name in names]
    chosen = own(shipped, '[heavy]\nlayers = ["c"]\n').load("heavy").hash

    (shipped / "base.toml").write_text(BASE + 'jq = "JSON"\n')

    assert not set(before) & {load_recipe(name, shipped).hash for name in names}
    assert own(shipped, '[heavy]\nlayers = ["c"]\n').load("heavy").hash != chosen


def test_wrong_recipe_is_refused_with_every_fault(shipped: Path) -> None:
    """What could be taken for an option or a shell's word is no package and no release."""
    text = 'release = "book worm"\nusual = ["no"]\n[packages]\n"--force" = "x"\n"a;b" = "y"\n'
    (shipped / "base.toml").write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_recipe("base", shipped)

    assert len(caught.value.faults) == 4


# ─── programs of PyPI and npm ───────────────────────────────────────────────────────

PROGRAMS = """
[mine]
extends = "base"
packages = ["nodejs", "npm", "pip:a-server[all]==1.2", "npm:@b/server@3.4.5", "npm:c@1.0.0"]
"""


def test_programs_of_pypi_and_npm_are_packages_like_others(shipped: Path) -> None:
    """They are told apart by their prefix, are part of the hash, and can be a layer."""
    recipe = own(shipped, PROGRAMS).load("mine")
    assert recipe.debian == ("git", "make", "nodejs", "npm")
    assert recipe.pip == ("a-server[all]==1.2",)
    assert recipe.npm == ("@b/server@3.4.5", "c@1.0.0")
    newer = own(shipped, PROGRAMS.replace("==1.2", "==1.3")).load("mine")
    assert newer.hash != recipe.hash

    chosen = Recipes(None).load("heavy")
    assert "language-servers" in chosen.offered
    assert "language-servers" not in chosen.layers
    assert chosen.pip == chosen.npm == ()


@pytest.mark.parametrize(
    "package",
    [
        *("pip:a", "pip:a>=1", "pip:--index==1", "pip:a==1 b==2", "pip:a==1;x", "pip:a==$(x)"),
        *("npm:a", "npm:a@latest", "npm:a@^1.0", "npm:--x@1", "npm:@b@1", "npm:a@1 b", "npm:A@1"),
        *("gem:a==1", "pip:", "npm:"),
    ],
)
def test_program_without_a_pinned_version_is_refused(shipped: Path, package: str) -> None:
    """What is no exact version, or could be an option or a shell's word, is no package."""
    with pytest.raises(ConfigError) as caught:
        own(shipped, f"[mine]\nextends = 'base'\npackages = [{package!r}]\n")
    assert len(caught.value.faults) == 1
    assert "package" in caught.value.faults[0]


def test_programs_are_installed_after_the_packages_of_debian(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way of building has them; a mirror's address is in no command, its name is; a
    recipe without any runs nothing more."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:word@mirror.example.invalid/simple")
    recipe, plain = own(shipped, PROGRAMS).load("mine"), load_recipe("base", shipped)

    [include] = [word for word in mmdebstrap_command(recipe, []) if word.startswith("--include")]
    assert include == "--include=git,make,nodejs,npm"
    hooks = [word for word in mmdebstrap_command(recipe, []) if "chroot" in word]
    assert len(hooks) == 1
    for part in ("a-server[all]==1.2", "@b/server@3.4.5 c@1.0.0"):
        assert part in hooks[0]
        assert part in install_script(recipe)
    assert 'PIP_INDEX_URL="$PIP_INDEX_URL"' in hooks[0]
    assert "mirror" not in hooks[0].replace("or a mirror of it", "")
    assert "\n" not in hooks[0]
    assert program_commands(plain, '"$1"') == []
    assert "pip" not in install_script(plain)


def test_index_that_is_not_reached_is_what_a_failed_build_says() -> None:
    """The refusal comes first, with what the installer said before it; else all is shown."""
    refusal = (
        "a==1 could not be installed. Such a version has to be on PyPI, which has to be reached. "
        "Without one, leave it or its layer out."
    )
    said = ["I: running a hook", "WARNING: Retrying", "ERROR: none", "ERROR: no match", refusal]
    shown = failure("mmdebstrap", 25, [*said, f"E: {refusal}"])
    assert shown.splitlines() == [refusal, "ERROR: none", "ERROR: no match"]
    assert failure("mmdebstrap", 25, ["E: no"]) == "mmdebstrap failed with exit code 25:\nE: no"


# ─── a person's own ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "packages", "layers"),
    [
        ("", {"git", "make", "jq", "gcc", "nodejs"}, ("c", "node")),
        ("[heavy]\n", {"git", "make", "jq", "gcc", "nodejs"}, ("c", "node")),
        ("[heavy]\nlayers = []\n", {"git", "make", "jq"}, ()),
        ('[heavy]\nlayers = ["java"]\n', {"git", "make", "jq", "default-jdk-headless"}, ("java",)),
        (
            '[heavy]\nlayers = ["node"]\npackages = ["sqlite3", "jq"]\n',
            {"git", "make", "jq", "nodejs", "sqlite3"},
            ("node",),
        ),
        (
            '[heavy]\n[heavy.packages]\nsqlite3 = "a data base"\n',
            {"git", "make", "jq", "gcc", "nodejs", "sqlite3"},
            ("c", "node"),
        ),
    ],
)
def test_layers_are_a_choice(
    shipped: Path, text: str, packages: set[str], layers: tuple[str, ...]
) -> None:
    """Layers take the place of the usual ones, packages are added, and base stays whole."""
    recipe = own(shipped, text).load("heavy")
    assert (set(recipe.packages), recipe.layers) == (packages, layers)
    assert own(shipped, text).load("base") == load_recipe("base", shipped)


def test_an_image_of_ones_own_extends_one_of_ours(shipped: Path) -> None:
    """It has a name of its own, and heavy as it is chosen in the same file below it."""
    images = own(
        shipped,
        '[heavy]\nlayers = ["node"]\n'
        '[data]\nextends = "heavy"\npackages = ["r-base-core"]\n'
        '[more]\nextends = "heavy"\nlayers = ["java"]\n'
        '[small]\nextends = "base"\n',
    )
    assert images.names() == ["base", "data", "heavy", "more", "small"]
    data, heavy = images.load("data"), images.load("heavy")
    assert data.reference.startswith("executor-data:")
    assert data.packages.keys() == heavy.packages.keys() | {"r-base-core"}
    more = {"git", "make", "jq", "default-jdk-headless"}
    assert images.load("more").packages.keys() == more
    assert images.load("small").packages.keys() == load_recipe("base", shipped).packages.keys()
    assert len({images.load(name).hash for name in images.names()}) == 5


def test_choices_have_names_of_their_own(shipped: Path) -> None:
    """Two choices are two images; the same choice, however it is written, is one, and what is
    usual anyway is the image that everybody has."""

    def chosen(text: str, name: str = "images.toml") -> Recipe:
        return own(shipped, text, name).load("heavy")

    usual = load_recipe("heavy", shipped)
    node = chosen('[heavy]\nlayers = ["node"]\n')
    both = chosen('[heavy]\nlayers = ["java", "c"]\n')
    assert len({usual.hash, node.hash, both.hash}) == 3
    assert chosen('# again\n[heavy]\nlayers = ["c", "java"]\n', "b.toml").hash == both.hash
    assert chosen('[heavy]\nlayers = ["node", "c", "node"]\n').reference == usual.reference
    assert node.file == shipped.parent / "images.toml"


FAULTY = """
[base]
packages = ["jq"]
[python]
extends = "base"
["Big Data"]
extends = "base"
[heavy]
extends = "base"
layers = ["c", "nod"]
packages = ["--force", "sqlite3", "a b"]
colour = "red"
[orphan]
packages = "jq"
[lost]
extends = "hevy"
layers = ["c"]
[plain]
extends = "base"
layers = ["c"]
[odd]
extends = "heavy"
layers = "c"
packages = { jq = 1 }
"""


def test_every_fault_of_a_file_is_said_at_once(shipped: Path) -> None:
    """Each with the file, the key and the mend."""
    (shipped.parent / "images.toml").write_text("number = 1\n" + FAULTY)
    with pytest.raises(ConfigError) as caught:
        Recipes(shipped.parent / "images.toml", shipped)
    file = shipped.parent / "images.toml"
    faults = [fault.removeprefix(f"{file}: ") for fault in caught.value.faults]
    assert [fault.partition(": ")[0] for fault in faults] == [
        *("number", "base", "python", "Big Data"),
        *("heavy.colour", "heavy.extends", "heavy.layers", "heavy.packages", "heavy.packages"),
        *("orphan.extends", "orphan.packages", "lost.extends", "plain.layers"),
        *("odd.layers", "odd.packages"),
    ]
    said = "\n".join(faults)
    assert "there is no layer 'nod'; did you mean node?" in said
    assert "there is no image 'hevy'; did you mean heavy?" in said
    assert "'--force' is no package name" in said
    assert 'write [NAME] with extends = "base"' in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[heavy\n", "is no TOML"),
        (b"\xff\xfe", "is no TOML"),
        (b"a = " + b"[" * 20_000, "is no TOML"),
        (b"#" * (1 << 21), "a choice of images has few"),
    ],
)
def test_a_file_that_is_none_is_said(shipped: Path, content: bytes, said: str) -> None:
    """No TOML, no text, and far too much: one sentence with the file's name."""
    file = shipped.parent / "images.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{file}: .*{said}"):
        Recipes(file, shipped)
    with pytest.raises(ConfigError, match="can't be read"):
        Recipes(shipped, shipped)


def test_where_the_file_is_looked_for(tmp_path: Path) -> None:
    """It is named by a variable, or lies beside the catalog, or is not there at all."""
    home = {"HOME": str(tmp_path)}
    assert Settings.load(home).images_file is None
    usual = tmp_path / ".config" / "executor" / "images.toml"
    usual.parent.mkdir(parents=True)
    usual.touch()
    assert Settings.load(home).images_file == usual
    named = tmp_path / "mine.toml"
    with pytest.raises(ConfigError, match=f"EXECUTOR_IMAGES: {named} is not a file"):
        Settings.load(home | {"EXECUTOR_IMAGES": str(named)})
    named.touch()
    assert Settings.load(home | {"EXECUTOR_IMAGES": str(named)}).images_file == named
