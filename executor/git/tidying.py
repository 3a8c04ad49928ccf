"""What loops of a dead controller left in their worktrees is made harmless for git, too.

By its claims: they name each directory that its loops could write, and since when.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from executor.git import aftermath
from executor.sandbox.descent import DIRECTORY
from executor.sandbox.nesting import Claim, claims
from executor.text import one_line

log = logging.getLogger(__name__)


def suffix(loop: str) -> str:
    """What the new name of a set-aside `.git` ends with."""
    return f"from-{loop}"


def tidy(directory: Path) -> list[str]:
    """Looks at all that the controller's loops could write, once their boxes are gone.

    Args:
        directory: of the dead controller.

    Returns:
        What could not be looked at, one sentence each.
    """
    faults = []
    for claim, since in claims(directory):
        try:
            _look(claim, since)
        except OSError as error:
            faults.append(f"{claim.path}: what loop {claim.loop} left can't be seen: {error}")
    return faults


def _look(claim: Claim, since: int) -> None:
    try:
        root = os.open(claim.path, DIRECTORY)
    except FileNotFoundError:
        return
    try:
        status = os.fstat(root)
        if (status.st_dev, status.st_ino) != claim.ancestry[0]:
            return  # another one is there by now
        found = aftermath.look(
            root,
            since,
            set_aside=suffix(claim.loop) if claim.sets_aside else None,
            has_git=claim.has_git,
            stop=threading.Event(),
        )
    finally:
        os.close(root)
    for sentence in found.sentences():
        log.warning("%s", one_line(f"loop {claim.loop} in {claim.path}: {sentence}"))
