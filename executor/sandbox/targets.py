"""Where the links of an image lead the mounts of a box.

The engine follows an image's links on its way to a mount point, and makes what is missing
at their end. A link into the worktree would have it make files there, as root, in a
person's directory; one in the worktree's own place would mount that elsewhere. What leads
anywhere else ends in the container's own layer, like all that the image holds.

An image is looked at through a container without mounts that is never started.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from executor.errors import ConfigError
from executor.model import MOUNT
from executor.sandbox.completion import to_completion
from executor.sandbox.container import RUNTIME, SHARES, Image, covered_volumes
from executor.sandbox.engine import Engine

PLAIN = (MOUNT, "/proc", "/sys", "/dev")
"""Where no link is accepted, wherever it leads."""
FILES = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


async def require_plain(
    engine: Engine,
    image: Image,
    name: str,
    labels: Mapping[str, str] | None = None,
    more: Sequence[str] = (),
) -> None:
    """Refuses an image whose links would lead a mount into the worktree.

    Args:
        engine: that has the image; it remembers those that were found good.
        name: how the person called it.
        labels: whose the container for the look is, should this process die meanwhile.
        more: where the loop's own directories are mounted.

    Raises:
        ConfigError: it has such links; names them.
        EngineError: the engine could not tell.
    """
    if image.reference in engine.plain_images and not more:
        return
    paths = places(image.volumes, more)
    async with _unstarted(engine, image, labels or {}) as container:
        looks = (engine.link_target(container, path) for path in paths)
        found = await asyncio.gather(*looks, return_exceptions=True)
    targets = {path: end for path, end in zip(paths, found, strict=True) if isinstance(end, str)}
    if faults := link_faults(name, targets):
        raise ConfigError(faults)
    for end in found:  # an engine can't look behind a link that leads nowhere, for one
        if isinstance(end, BaseException):
            raise end
    engine.plain_images.add(image.reference)


def places(volumes: Iterable[str], more: Iterable[str] = ()) -> list[str]:
    """Everything that is mounted at, and the directories on the way there.

    Args:
        volumes: of the image.
        more: where the loop's own directories are mounted.
    """
    ends = {*PLAIN, *FILES, *SHARES, RUNTIME, *covered_volumes(volumes), *more}
    paths = {path for end in ends for path in (PurePosixPath(end), *PurePosixPath(end).parents)}
    return sorted(str(path) for path in paths if path != PurePosixPath("/"))


def link_faults(name: str, targets: Mapping[str, str]) -> list[str]:
    """What is wrong with an image of these links, one sentence each.

    Args:
        targets: path of a link → where it leads in the end.
    """
    return [
        f"image: {name} has a link at {path!r} that leads to {target!r}, where the sandbox "
        f"mounts something; use an image without it"
        for path, target in targets.items()
        if path in PLAIN or PurePosixPath(target).is_relative_to(PurePosixPath(MOUNT))
    ]


@contextlib.asynccontextmanager
async def _unstarted(engine: Engine, image: Image, labels: Mapping[str, str]) -> AsyncIterator[str]:
    """A container of the image, without any mount; removed again."""
    request = {
        "Image": image.reference,
        "Entrypoint": ["/never-started"],
        "NetworkDisabled": True,
        "Labels": dict(labels),
        "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none", "Config": {}}},
    }
    id = await engine.create(f"executor-look-{secrets.token_hex(4)}", request)
    try:
        yield id
    finally:
        await to_completion(engine.remove(id))
