"""What a person is told about an open box: each time, or once a day where it is the engine's."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from executor.frontends.running import say

TOLD = "told.json"
"""In the state directory: digest of a sentence → when it was told, in seconds since 1970."""
AGAIN = 86400.0
"""Seconds after which a sentence about the engine is told once more."""


def tell(capabilities: Mapping[str, Any], state: Path) -> None:
    """Say the notices of a box that are news.

    Those about the engine and its runtime are the same for every box on it: who reads them
    with each call reads none of them any more.

    Args:
        capabilities: of the box.
        state: the state directory, which remembers what was told.
    """
    about_engine = capabilities.get("engine_notices", ())
    for text in capabilities.get("notices", ()):
        if text not in about_engine:
            say(str(text))
    for text in _news(about_engine, state / TOLD):
        say(text)


def _news(texts: Iterable[str], record: Path) -> list[str]:
    """Those that were not told within the last day; they are on record as told now."""
    now = time.time()
    told = {digest: moment for digest, moment in _read(record).items() if _is_recent(moment, now)}
    news = {_digest(text): text for text in texts}
    for digest in told:
        news.pop(digest, None)
    if news:
        _write(record, told | dict.fromkeys(news, now))
    return list(news.values())


def _is_recent(moment: Any, now: float) -> bool:
    return isinstance(moment, int | float) and 0 <= now - moment < AGAIN


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(record: Path) -> dict[str, Any]:
    """Nothing where it can't be read: then everything is told."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(record.read_text("utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def _write(record: Path, told: Mapping[str, Any]) -> None:
    """In one step: another command may be reading."""
    new = record.with_name(f"{TOLD}.{os.getpid()}")
    with suppress(OSError):
        new.write_text(json.dumps(told), "utf-8")
        new.replace(record)
