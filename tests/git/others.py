"""Places and files of another user, for tests that root runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor.sandbox.container import Owner

OTHER = Owner(12345, 12346)
STRANGER = Owner(12355, 12356)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@contextlib.contextmanager
def shared_place() -> Iterator[Path]:
    """A directory that everybody may enter; pytest's own are only ours."""
    place = Path(tempfile.mkdtemp(prefix="executor-test-")).resolve()
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


def give(place: Path, owner: Owner) -> Path:
    """Give a tree to somebody."""
    for path in [place, *place.rglob("*")]:
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
    return place
