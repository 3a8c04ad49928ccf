"""The demo: it shows what it says, notices when something is amiss, and leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import docker
import pytest

from executor.sandbox.container import LABEL_STATE

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SECONDS = 200


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for temporary files that every uid may enter."""
    path = Path(tempfile.mkdtemp(prefix="executor-test-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """The demo as a module."""
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


def started(temporary: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "demo.py")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def demo_boxes(temporary: Path) -> list[str]:
    """Names of the containers of this demo, as the engine itself lists them."""
    client = docker.from_env(timeout=SECONDS)  # an engine that has much to do is slow
    found = client.containers.list(
        all=True,
        filters={"label": LABEL_STATE},
        ignore_removed=True,  # by tests beside this one
    )
    client.close()
    return [
        box.name or "" for box in found if Path(box.labels[LABEL_STATE]).is_relative_to(temporary)
    ]


def test_the_demo_goes_as_expected(temporary: Path) -> None:
    """Red, mended, green; network off, limits in force; no container, no temporary file left."""
    process = started(temporary)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert "✗ " not in output.split("What had to be true:")[1]
    assert "1 failed, 12 passed" in output and "13 passed" in output
    assert "+    totals = order.totals()" in output
    assert list(temporary.iterdir()) == []
    assert demo_boxes(temporary) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(temporary: Path, number: signal.Signals) -> None:
    """A signal in mid-run ends it with the signal's code, and nothing of it is left."""
    process = started(temporary)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("✓"):
            break
    process.send_signal(number)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number, output
    assert list(temporary.iterdir()) == []
    assert demo_boxes(temporary) == []


def test_without_an_engine_it_says_so(temporary: Path) -> None:
    """Where no engine answers, the demo ends with 1 and the reason, not with a traceback."""
    process = started(temporary, DOCKER_HOST="unix:///nonexistent/engine.sock")
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "/nonexistent/engine.sock" in output
    assert "Traceback" not in output


def test_a_run_without_results_meets_no_expectation(demo: ModuleType) -> None:
    """What is missing is never taken for what was expected."""
    with demo.prepared() as worktree:
        checks = demo.checks_of(demo.Run("demo-nothing"), worktree)
    met = [check.sentence for check in checks if check.is_met]
    assert [sentence.split(" (")[0] for sentence in met] == [
        "the file belongs to the worktree's owner",
        "no container is left",
    ]


def test_nothing_from_a_box_acts_on_the_terminal(demo: ModuleType) -> None:
    """Escape sequences and other controls in a result are shown, not obeyed."""
    shown = demo.visible("a\x1b]0;title\x07b\rc\x9b31m\nd\u202e")
    assert shown == "a\ufffd]0;title\ufffdb\ufffdc\ufffd31m\nd\ufffd"


def test_the_transcript_has_all_three_forms(demo: ModuleType) -> None:
    """Single calls, a turn, and messages with tool_use blocks; every id once."""
    lines = [json.loads(line) for line in demo.TRANSCRIPT.read_text().splitlines()]
    forms = {"turn" if isinstance(line, list) else "call" * ("name" in line) for line in lines}
    assert forms == {"turn", "call", ""}
    ids = [id for line in lines for id in _ids(line)]
    assert len(ids) == len(set(ids)) == len(demo.calls_of(demo.TRANSCRIPT))


def _ids(line: Any) -> list[str]:
    calls = line if isinstance(line, list) else [line]
    if isinstance(line, dict) and "content" in line:
        calls = [block for block in line["content"] if block["type"] == "tool_use"]
    return [call["id"] for call in calls]


def test_the_example_project_has_one_fault(tmp_path: Path) -> None:
    """As it is committed, one of its tests fails, and only that one."""
    shutil.copytree(EXAMPLES / "inventory", tmp_path / "inventory")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "inventory",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 12 passed" in done.stdout
