"""Images for the tests of group N, out of Debian packages, by the product's own machinery.

`python -m tests.security.images.build` makes them ahead of the tests. They are named by
the hash of their lists: a second run finds them, and what an older list made is removed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

from executor.sandbox.engine import Engine
from executor.sandbox.recipes import Recipe, load_recipe
from executor.sandbox.rootfs import Bootstrap
from executor.settings import Settings

LISTS = Path(__file__).parent
LABEL = "executor.test"

Tell = Callable[[str], None]


def names() -> list[str]:
    """The images that there are lists of."""
    return sorted(path.stem for path in LISTS.glob("*.toml"))


async def ensure(engine: Engine, name: str, tell: Tell) -> str:
    """The reference of a test image, which is made when it is missing.

    Args:
        name: of its list.
        tell: takes lines about the progress.

    Raises:
        EngineError: it could not be made.
    """
    recipe = load_recipe(name, LISTS)
    reference = f"executor-test-{name}:{recipe.hash}"
    if await engine.inspect_image(reference) is not None:
        return reference
    started = time.monotonic()
    await engine.import_image(reference, Bootstrap(recipe, _steps(recipe, tell)), _changes(name))
    for image in await engine.list_images({LABEL: f"tools-{name}"}):
        if reference not in (image.get("RepoTags") or []):
            await engine.remove_image(str(image["Id"]))
    made = await engine.inspect_image(reference)
    assert made is not None, "it was made just now"
    seconds = time.monotonic() - started
    tell(f"{reference}: {made['Size'] / 1e9:.2f} GB, made in {seconds:.0f} s")
    return reference


def _steps(recipe: Recipe, tell: Tell) -> Tell:
    started = time.monotonic()
    return lambda step: tell(f"{recipe.name} {time.monotonic() - started:4.0f} s: {step}")


def _changes(name: str) -> list[str]:
    """No label of the product: it would clear away what is none of its images."""
    return [
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "ENTRYPOINT []",
        'CMD ["bash"]',
        f"LABEL {LABEL}=tools-{name}",
    ]


async def main(wanted: list[str]) -> None:
    """Make those images, or all."""
    async with await Engine.connect(Settings.load()) as engine:
        for name in wanted or names():
            print(await ensure(engine, name, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
