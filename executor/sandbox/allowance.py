"""Which images boxes may be made of (statement M11). Pure.

Nothing is ever pulled for a loop: an image is on the engine, or is refused. Where the engine's
images come from several hands, `[controller] images` says which of them may be used. A digest
names one content and no other, so it is always as good as an entry in the list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from executor.catalog import Policy
from executor.errors import ImageNotAllowed

_DIGEST = re.compile(r"(?:(?P<name>[^@]+)@)?(?P<digest>sha256:[0-9a-f]{64})")
_USUAL = ("docker.io/library/", "docker.io/")
"""Engines take names without them as if they had them."""


def require_allowed(policy: Policy, name: str, ours: Collection[str]) -> None:
    """Refuses an image by its name, before any engine is asked for it.

    Args:
        policy: `images` are names and patterns; None = all that is on the engine, for one
            party, and nothing but digests for several.
        name: how the loop asks for it.
        ours: names of the images that are built here from recipes; they are always allowed.

    Raises:
        ImageNotAllowed: with the reason and the mend.
    """
    if name in ours or digest_of(name) or _is_listed(name, policy.images or ()):
        return
    if policy.images is not None:
        reason = "it is not in controller.images"
    elif policy.tenancy == "multi":
        reason = 'with controller.tenancy = "multi" a name may become another image any time'
    else:
        return
    raise ImageNotAllowed(
        f"The image {name} is not allowed: {reason}. Give it by its digest (NAME@sha256:...), "
        f"use one of {', '.join(sorted(ours))}, or have it listed in controller.images."
    )


def require_same(name: str, found: Mapping[str, Any]) -> None:
    """Refuses what an engine gives for a digest, where it is something else.

    Args:
        name: how the loop asked for it.
        found: the engine's reply to `GET /images/{name}/json`.

    Raises:
        ImageNotAllowed: it has another digest.
    """
    digest = digest_of(name)
    digests = {str(one).rpartition("@")[2] for one in found.get("RepoDigests") or ()}
    if digest and digest not in {str(found.get("Id")), *digests}:
        raise ImageNotAllowed(
            f"The engine gives {found.get('Id')} for {name}, which has another digest. Load the "
            "image anew."
        )


def digest_of(name: str) -> str:
    """The digest in an image's name; empty = it has none."""
    match = _DIGEST.fullmatch(name)
    return match["digest"] if match else ""


def _is_listed(name: str, patterns: Iterable[str]) -> bool:
    wanted = _whole(name)
    return any(fnmatchcase(wanted, _whole(pattern)) for pattern in patterns)


def _whole(name: str) -> str:
    """`docker.io/library/python` → `python:latest`; a pattern's end is left as it is."""
    for prefix in _USUAL:
        name = name.removeprefix(prefix)
    has_tag = ":" in name.rpartition("/")[2] or "@" in name
    return name if has_tag or name.endswith("*") else f"{name}:latest"
