"""Our images and the runtime volume: made when missing, removed when old.

What exists is named by the hash of what it is made from, so nothing is ever stale by
accident, and a second run finds everything by its name.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from executor.errors import ConfigError, EngineError, ImageNotFound
from executor.sandbox.engine import Engine
from executor.sandbox.facts import EngineFacts, machine_name
from executor.sandbox.reaper import BUILD_LOCK, build_labels
from executor.sandbox.recipes import BASE, Recipe, Recipes, load_recipe
from executor.sandbox.rootfs import (
    NO_BOOTSTRAPPER,
    Bootstrap,
    bootstrapper,
    install_script,
)
from executor.sandbox.runtime import (
    HASH,
    KIND,
    Progress,
    Runtime,
    build_python,
    check_architecture,
    fill_volume,
    python_reference,
    runtime_of,
    silent,
)
from executor.settings import ImageSource

__all__ = [
    "Entry",
    "Progress",
    "Runtime",
    "build",
    "ensure",
    "ensure_image",
    "ensure_runtime",
    "list_built",
]

_LOCK_SECONDS = 1800.0
_LOCK_POLL = 0.2
_INSTALL_SECONDS = 900
_ABANDONED = 3600.0
_NATIVE = {("386", "x86_64")}
"""Images of the one kind that machines of the other run by themselves."""
_PLAIN_FILE = re.compile(r"[\w/.+@ -]*")

LAYERS = "executor.layers"
"""Label: which layers of its recipe an image has."""
FILE = "executor.images-file"
"""Label: the person's file that has a say in what an image holds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of ours on the engine.

    Attributes:
        kind: `base`, `heavy`, or of a person's own file; `python` or `runtime`.
        name: the image's or volume's.
        id: the image's id; the name of a volume.
        created: ISO 8601; empty where the engine does not say.
        size: bytes; None for a volume.
        current: this version of executor uses it.
        layers: what was chosen of an image's recipe.
        file: the person's file that has a say in it; empty = it is as it is shipped.
    """

    kind: str
    name: str
    id: str
    created: str
    size: int | None
    current: bool
    layers: tuple[str, ...] = ()
    file: str = ""


def recipes(engine: Engine) -> Recipes:
    """The images that can be built for this engine's settings.

    Raises:
        ConfigError: the person's own file is wrong; names every fault.
    """
    return Recipes(engine.settings.images_file)


async def ensure_image(engine: Engine, name: str, progress: Progress = silent) -> str:
    """The id of an image, ready to be used.

    Args:
        engine: where it must be.
        name: one of `recipes` (`base`, `heavy`, a person's own), which is built when it is
            missing, or any image on the engine.
        progress: told what takes long.

    Raises:
        ImageNotFound: no such image on the engine; nothing is pulled by itself.
        EngineError: the build failed.
    """
    return str((await _ready_image(engine, name, progress, recipes(engine)))["Id"])


async def ensure(
    engine: Engine,
    name: str,
    progress: Progress = silent,
    *,
    repair: bool = False,
    ours: Recipes | None = None,
) -> tuple[dict[str, Any], Runtime]:
    """`ensure_image` and `ensure_runtime`, with as few requests as both take together.

    Args:
        engine, name, progress: as `ensure_image` takes them.
        repair: as `ensure_runtime` takes it.
        ours: `recipes`, as somebody has read and judged them; None = they are read now.

    Returns:
        What the engine knows of the image, and the runtime.
    """
    ours = ours or recipes(engine)
    if name == "base":
        base = await _ready_image(engine, name, progress, ours)
        return base, await _ready_runtime(engine, str(base["Id"]), progress, repair=repair)
    found, runtime = await asyncio.gather(
        _ready_image(engine, name, progress, ours), ensure_runtime(engine, progress, repair=repair)
    )
    return found, runtime


async def _ready_image(
    engine: Engine, name: str, progress: Progress, ours: Recipes
) -> dict[str, Any]:
    """What the engine knows of an image that is ready to be used."""
    if name not in ours.names():
        found = await engine.inspect_image(name)
        if found is None:
            raise ImageNotFound(
                f"The image {name} is not on the engine at {engine.facts.address}. Pull or load "
                f"it first (`docker pull {name}`), or use one of {', '.join(ours.names())}."
            )
        return found
    recipe = ours.load(name)
    found = await engine.inspect_image(recipe.reference)
    if found is not None:
        return found
    async with _lock(engine, progress):
        found = await engine.inspect_image(recipe.reference)
        if found is None:
            found = await engine.inspect_image(await _build_image(engine, recipe, progress))
    if found is None:
        raise ImageNotFound(f"The image {name} was removed right after it was built. Try again.")
    return found


def notices(name: str, found: Mapping[str, Any], facts: EngineFacts) -> tuple[str, ...]:
    """What a person should know of an image before a command of it fails.

    Args:
        name: how the loop asks for it.
        found: what the engine knows of it.
        facts: what the engine says about itself.
    """
    architecture = machine_name(str(found.get("Architecture") or facts.architecture))
    if architecture == facts.architecture or (architecture, facts.architecture) in _NATIVE:
        return ()
    return (
        f"The image {name} is for {architecture}, and the engine's machine is "
        f"{facts.architecture}: its programs start only where the machine emulates the other "
        "kind. File tools work.",
    )


async def ensure_runtime(
    engine: Engine, progress: Progress = silent, *, repair: bool = False
) -> Runtime:
    """The runtime volume of this version's agent, ready to be mounted.

    Args:
        engine: where it must be.
        progress: told what takes long.
        repair: look into the volume, too, and complete it; for when a box whose volume
            exists has not started.

    Raises:
        EngineError: the build failed.
    """
    base = await ensure_image(engine, "base", progress)
    return await _ready_runtime(engine, base, progress, repair=repair)


async def _ready_runtime(engine: Engine, base: str, progress: Progress, *, repair: bool) -> Runtime:
    """The runtime volume that belongs to this base image."""
    runtime = runtime_of(base)
    if not repair and await engine.inspect_volume(runtime.volume) is not None:
        return runtime
    async with _lock(engine, progress):
        python = await engine.inspect_image(python_reference(base))
        python_id = str(python["Id"]) if python else await build_python(engine, base, progress)
        await fill_volume(engine, runtime, python_id, progress)
    return runtime


async def build(
    engine: Engine,
    names: Sequence[str] = ("base",),
    progress: Progress = silent,
    *,
    fresh: bool = False,
) -> list[Entry]:
    """Makes images and the runtime volume, and removes old ones of ours that are unused.

    Args:
        engine: where.
        names: of `recipes`; base is always among them.
        progress: told what is being done.
        fresh: make the images anew although they exist, for newer packages.

    Returns:
        What there is afterwards.

    Raises:
        ConfigError: a name that is none of ours.
    """
    ours = recipes(engine)
    if unknown := [name for name in names if name not in ours.names()]:
        known = " and ".join(ours.names())
        raise ConfigError([f"{name!r} can't be built; there are {known}" for name in unknown])
    for name in dict.fromkeys(("base", *names)):
        if fresh:
            async with _lock(engine, progress):
                await _build_image(engine, ours.load(name), progress)
        else:
            await ensure_image(engine, name, progress)
    await ensure_runtime(engine, progress)
    await _prune(engine)
    return await list_built(engine)


async def list_built(engine: Engine) -> list[Entry]:
    """Everything of ours on the engine, whatever version made it."""
    current = await _current(engine)
    entries = [_image_entry(image, current) for image in await engine.list_images({KIND: None})]
    for volume in await engine.list_volumes({KIND: "runtime"}):
        name = str(volume["Name"])
        created = str(volume.get("CreatedAt") or "")
        entries.append(Entry("runtime", name, name, created, None, name in current))
    return sorted(entries, key=lambda entry: (entry.kind, entry.created))


def _image_entry(image: dict[str, Any], current: set[str]) -> Entry:
    tags = [_short(tag) for tag in image.get("RepoTags") or [] if tag != "<none>:<none>"]
    labels = image.get("Labels") or {}
    return Entry(
        kind=str(labels.get(KIND, "")),
        name=next(iter(tags), ""),
        id=str(image["Id"]),
        created=_moment(image["Created"]),
        size=int(image.get("Size") or 0),
        current=not current.isdisjoint(tags),
        layers=tuple(str(labels.get(LAYERS) or "").split()),
        file=str(labels.get(FILE) or ""),
    )


def _moment(created: object) -> str:
    """Seconds since 1970 or ISO 8601, as engines write either, → ISO 8601."""
    if not isinstance(created, int):
        return str(created or "")
    moment = datetime.fromtimestamp(created, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _short(tag: str) -> str:
    """Podman writes names of images in full."""
    return tag.removeprefix("localhost/").removeprefix("docker.io/library/")


async def _current(engine: Engine) -> set[str]:
    """Names of what this version uses, made or not."""
    names = _references(engine.settings.images_file) | _references(None)
    base = await engine.inspect_image(load_recipe(BASE).reference)
    if base is not None:
        names |= {python_reference(str(base["Id"])), runtime_of(str(base["Id"])).volume}
    return names


def _references(file: Path | None) -> set[str]:
    """The images that a person's file, or what is shipped, makes."""
    ours = Recipes(file)
    return {ours.load(name).reference for name in ours.names()}


def _is_chosen_elsewhere(entry: Entry) -> bool:
    """The image is what another file on this machine still asks for."""
    if not entry.file or not Path(entry.file).is_file():
        return False
    try:
        return entry.name in _references(Path(entry.file))
    except ConfigError:
        return True  # somebody is writing in it


async def _prune(engine: Engine) -> None:
    """Removes what bears our labels, is not current, and is used by no container."""
    for container in await engine.list_containers({KIND: "build"}):
        if time.time() - float(container["Created"]) > _ABANDONED:
            await engine.remove(str(container["Id"]))
    for entry in await list_built(engine):
        if entry.current or _is_chosen_elsewhere(entry):
            continue
        if entry.kind == "runtime":
            await engine.remove_volume(entry.name)
        else:
            await engine.remove_image(entry.id)


@asynccontextmanager
async def _lock(engine: Engine, progress: Progress) -> AsyncIterator[None]:
    """One build at a time in this state directory; the kernel frees a dead one's lock."""
    directory = engine.settings.state_directory
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + _LOCK_SECONDS
    is_told = False
    with (directory / BUILD_LOCK).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"Another process has been building for {_LOCK_SECONDS:g} s and holds "
                        f"{file.name}. End it, then try again."
                    ) from None
            if not is_told:
                progress("waiting for another build", None, None)  # of this process, or another
                is_told = True
            await asyncio.sleep(_LOCK_POLL)
        yield


# ─── one image ──────────────────────────────────────────────────────────────────────


async def _build_image(engine: Engine, recipe: Recipe, progress: Progress) -> str:
    """Builds an image from where the settings say; returns its id."""
    source = engine.settings.image_source
    if source is not ImageSource.PACKAGES:
        try:
            return await _from_registry(engine, recipe, progress)
        except EngineError as error:
            if source is ImageSource.REGISTRY:
                raise
            if bootstrapper() is None:
                raise EngineError(f"{str(error).rstrip('.')}. {NO_BOOTSTRAPPER}") from error
            progress("no registry can be used, building from packages", None, None)
    check_architecture(engine)
    return await _from_packages(engine, recipe, progress)


def _from_threads(progress: Progress) -> Progress:
    """The same for other threads; what they tell after the loop's end is told to nobody."""
    loop = asyncio.get_running_loop()

    def tell(step: str, done: int | None, total: int | None) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(progress, step, done, total)

    return tell


async def _from_packages(engine: Engine, recipe: Recipe, progress: Progress) -> str:
    tell = _from_threads(progress)
    total = 0

    def report(step: str) -> None:
        tell(f"{recipe.name}: {step}", None, None)

    bootstrap = Bootstrap(recipe, report)

    def counted() -> Any:
        nonlocal total
        for piece in bootstrap:
            total += len(piece)
            tell(f"{recipe.name}: importing", total, None)
            yield piece

    try:
        return await engine.import_image(recipe.reference, counted(), _changes(recipe))
    except asyncio.CancelledError:
        bootstrap.stop()
        raise


async def _from_registry(engine: Engine, recipe: Recipe, progress: Progress) -> str:
    """A registry's plain image, with the packages put into it and committed."""
    reference = engine.settings.image_reference.format(release=recipe.release)
    tell = _from_threads(progress)

    def report(step: str) -> None:
        tell(f"{reference}: {step}", None, None)

    progress(f"asking the registry for {reference}", None, None)
    plain = await engine.pull_image(reference, engine.settings.registry_timeout, report)
    progress(f"{recipe.name}: installing packages", None, None)
    body = {
        "Image": plain,
        "User": "0:0",
        "Entrypoint": ["sh", "-c", install_script(recipe)],
        "Cmd": [],
        "Labels": build_labels(engine.settings.state_directory),
    }
    container = await engine.create(f"executor-build-{time.time_ns()}", body)
    try:
        await engine.start(container)
        code = await engine.wait(container, _INSTALL_SECONDS)
        if code:
            raise EngineError(
                f"Installing packages in {reference} failed with exit code {code}; can containers "
                f"reach {_indexes(recipe)}? EXECUTOR_IMAGE_SOURCE=packages builds without that."
            )
        return await engine.commit(container, recipe.reference, _changes(recipe))
    finally:
        await engine.remove(container)


def _indexes(recipe: Recipe) -> str:
    """Where the packages of an image come from."""
    found = ["a Debian mirror"]
    found += ["PyPI"] if recipe.pip else []
    found += ["npm"] if recipe.npm else []
    return " and ".join(found)


def _changes(recipe: Recipe) -> list[str]:
    """What the image says of itself."""
    file = str(recipe.file or "")
    return [
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "ENTRYPOINT []",
        'CMD ["bash"]',
        f"LABEL {KIND}={recipe.name}",
        f"LABEL {HASH}={recipe.hash}",
        f"LABEL executor.release={recipe.release}",
        f'LABEL {LAYERS}="{" ".join(recipe.layers)}"',
        # In a name of any other kind the engine would see words and variables of its own.
        f'LABEL {FILE}="{file if _PLAIN_FILE.fullmatch(file) else ""}"',
    ]
