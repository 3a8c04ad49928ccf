"""Where an image leads the mounts of a box.

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
from executor.sandbox.engine import Engine, PathEntry

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
    """Refuses an image whose links would lead a mount into the worktree, or that has a file
    where a directory has to be.

    Args:
        engine: that has the image; it remembers those that were found good.
        name: how the person called it.
        labels: whose the container for the look is, should this process die meanwhile.
        more: where the loop's own directories are mounted.

    Raises:
        ConfigError: it has such links or files; names them.
        EngineError: the engine could not tell.
    """
    if image.reference in engine.plain_images and not more:
        return
    paths = places(image.volumes, more)
    async with _unstarted(engine, image, labels or {}) as container:
        looks = (engine.image_entry(container, path) for path in paths)
        found = await asyncio.gather(*looks, return_exceptions=True)
    entries = {
        path: one for path, one in zip(paths, found, strict=True) if isinstance(one, PathEntry)
    }
    links = {path: entry.target for path, entry in entries.items() if entry.kind == "link"}
    kinds = {path: entry.kind for path, entry in entries.items()}
    if faults := [*link_faults(name, links), *kind_faults(name, kinds)]:
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


def kind_faults(name: str, kinds: Mapping[str, str]) -> list[str]:
    """What can't be mounted over, one sentence each.

    Args:
        kinds: path → `file`, `directory` or `link`.
    """
    faults = []
    for path, kind in kinds.items():
        wanted = "file" if path in FILES else "directory"
        if kind not in (wanted, "link"):
            faults.append(
                f"image: {name} has a {kind} at {path!r}, where the sandbox needs a {wanted}; use "
                "an image without it"
            )
    return faults


@contextlib.asynccontextmanager
async def _unstarted(engine: Engine, image: Image, labels: Mapping[str, str]) -> AsyncIterator[str]:
    """A container of the image, without any mount; removed again."""
    request = {
        "Image": image.reference,
        "Entrypoint": ["/never-started"],
        # Otherwise the engine would make the image's own one, wherever it leads.
        "WorkingDir": "/",
        "NetworkDisabled": True,
        "Labels": dict(labels),
        "HostConfig": {
            "NetworkMode": "none",
            "LogConfig": {"Type": "none", "Config": {}},
            # In place of directories on the host, which the engine would fill from the image.
            "Tmpfs": dict.fromkeys(covered_volumes(image.volumes), ""),
        },
    }
    id = await engine.create(f"executor-look-{secrets.token_hex(4)}", request)
    try:
        yield id
    finally:
        await to_completion(engine.remove(id))
