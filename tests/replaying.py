"""Recorded turns of a model against the command line: `tests/replays/TOOLSET.jsonl`.

What each call has to come to stands in `TOOLSET.expected.jsonl`, in the order of the calls.
`python -m tests.replaying TOOLSET` records it anew: look at the difference before you keep it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests import pictures
from tests.conftest import UID

ROOT = Path(__file__).resolve().parent.parent
REPLAYS = ROOT / "tests" / "replays"
PROJECT = ROOT / "examples" / "inventory"
SECONDS = 200
LONG = 1500
"""Characters of a text that is compared by its ends, length and hash."""
EDGE = 120
"""Characters of each of its ends."""
FIRST_MODIFIED = 1_700_000_000
"""When the first file of the worktree was changed; each has a second of its own."""

RULES = (
    *("--deny", "read_file(**/.env*)"),
    *("--ask", "run_command(git push *)"),
)
COMPARED = ("id", "name", "is_error", "code", "content", "structured", "truncated", "spill", "lane")

VARIES: Mapping[str, tuple[str, str]] = {
    r"\bin [0-9.]+s\b": ("in SECONDS", "how long pytest took"),
    r"\b0x[0-9a-f]{6,}\b": ("ADDRESS", "where Python put an object, in pytest's report"),
}
"""What differs from run to run: a pattern, what stands for it, and what it is."""

NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "head", "metadata": {}, "source": ["# Counting"]},
        {
            "cell_type": "code",
            "id": "sum",
            "execution_count": 1,
            "metadata": {},
            "outputs": [{"output_type": "stream", "name": "stdout", "text": ["3\n"]}],
            "source": ["print(1 + 2)"],
        },
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


# ─── the sample repository ──────────────────────────────────────────────────────────


def make_project(directory: Path) -> Path:
    """The example project with a picture, a PDF file, a notebook and a secret, as a worktree."""
    worktree = directory / "worktree"
    shutil.copytree(
        PROJECT, worktree, ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache")
    )
    (worktree / "docs").mkdir()
    (worktree / "docs" / "plate.png").write_bytes(pictures.PNG)
    (worktree / "docs" / "manual.pdf").write_bytes(pictures.pdf("Shelf one", "Shelf two"))
    (worktree / "notes.ipynb").write_text(json.dumps(NOTEBOOK, indent=1) + "\n")
    (worktree / ".env").write_text("TOKEN=secret\n")
    for number, path in enumerate(sorted(worktree.rglob("*"), reverse=True)):
        os.utime(path, (FIRST_MODIFIED + number,) * 2)
    if os.geteuid() == 0:
        for path in (worktree, *worktree.rglob("*")):
            os.chown(path, UID, UID)
    return worktree


# ─── the run ────────────────────────────────────────────────────────────────────────


def replay(toolset: str, directory: Path) -> list[dict[str, Any]]:
    """The result lines of `executor run` for a toolset's recorded turns."""
    worktree = make_project(directory)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "executor", "run", "--worktree", str(worktree)),
            *("--toolset", toolset, "--calls", str(REPLAYS / f"{toolset}.jsonl"), *RULES),
            *("--exec-id", f"replay-{toolset}"),  # it stands in the name of the plan's file
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={
            **{key: value for key, value in os.environ.items() if key != "ANTHROPIC_API_KEY"},
            "EXECUTOR_STATE_DIR": str(directory / "state"),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "PYTHONPATH": str(ROOT),
        },
        text=True,
        timeout=SECONDS,
        check=False,
        start_new_session=True,  # no terminal: there is nobody to ask
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def told(result: Mapping[str, Any]) -> dict[str, Any]:
    """What of a result is compared: without what differs from run to run, long texts folded."""
    return {key: _folded(result[key]) for key in COMPARED}


def _folded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _steady(key, part, value) for key, part in value.items()}
    if isinstance(value, list):
        return [_folded(part) for part in value]
    if not isinstance(value, str):
        return value
    for pattern, (stands_for_it, _) in VARIES.items():
        value = re.sub(pattern, stands_for_it, value)
    if len(value) <= LONG:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()
    return {"length": len(value), "sha256": digest, "ends": [value[:EDGE], value[-EDGE:]]}


def _steady(key: str, part: Any, around: Mapping[str, Any]) -> Any:
    """A value of an object, or what stands for it where it differs from run to run."""
    if key == "modified":
        return "when the file was changed"
    if key in ("duration", "duration_s"):
        return "how long the code took"
    if key == "size" and around.get("type") == "directory":
        return "what the file system says of a directory"
    if key == "data" and around.get("media_type") == "image/png" and len(part) > LONG:
        # PDFium draws it and zlib packs it: other versions of them make other bytes.
        width, height = struct.unpack_from(">II", base64.b64decode(part), 16)
        return f"a picture of {width} by {height}"
    return _folded(part)


# ─── what was recorded ──────────────────────────────────────────────────────────────


def expected(toolset: str) -> list[dict[str, Any]]:
    """What the results have to be, as `told` gives them."""
    text = (REPLAYS / f"{toolset}.expected.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def turns(toolset: str) -> Iterator[list[dict[str, Any]]]:
    """The calls of each recorded turn."""
    for line in (REPLAYS / f"{toolset}.jsonl").read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        if isinstance(value, list):
            yield value
        elif "event" not in value:
            blocks = value.get("content")
            is_message = isinstance(blocks, list)
            yield [b for b in blocks if b["type"] == "tool_use"] if is_message else [value]


def record(toolset: str) -> None:
    """Write down what the results are now."""
    with tempfile.TemporaryDirectory(prefix="executor-replay-") as name:
        Path(name).chmod(0o755)
        results = replay(toolset, Path(name))
    lines = (json.dumps(told(result), ensure_ascii=False) + "\n" for result in results)
    (REPLAYS / f"{toolset}.expected.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        record(wanted)
