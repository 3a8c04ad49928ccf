"""A language that every box has a server for: words, in files whose name ends in `.txt`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from executor.catalog import Catalog, load
from executor.catalog_servers import LanguageEntry

_SERVER = (Path(__file__).parent / "word_server.py").read_text(encoding="utf-8")
WORDS = LanguageEntry({".txt": "plaintext"}, (("python3", "-c", _SERVER),))


def with_words() -> Catalog:
    """The packaged catalog with this language alone."""
    return replace(load(), languages={"words": WORDS})
