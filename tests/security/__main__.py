"""`python -m tests.security`: runs the tests of the security statements, prints the table.

Arguments are pytest's. Where they select tests (`-k NAME`, a file, a test), only statements
that a selected test is about are in the table.

Exit code 1: a statement failed, or none of the tests that ran proves it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.statements import load

RUNTIMES = ("runc", "runsc")


def main() -> int:
    """Run, print, and say whether every statement holds."""
    with tempfile.TemporaryDirectory() as directory:
        account = Path(directory) / "account.json"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "statement"]
        arguments = sys.argv[1:]
        subprocess.run([*command, "--statements", account, *arguments], check=False)
        found = json.loads(account.read_text()) if account.exists() else []
    lines, is_sound = table(load(), found, is_part=selects(arguments))
    print("\n".join(lines))
    return 0 if is_sound else 1


_SELECTING = ("-k", "--deselect", "--ignore", "--lf", "--last-failed")


def selects(arguments: Sequence[str]) -> bool:
    """Whether pytest, with these arguments, runs a part of the tests."""
    return any(
        one.startswith(_SELECTING) or Path(one.partition("::")[0]).exists() for one in arguments
    )


def table(
    statements: dict[str, dict[str, str]], found: list[dict[str, Any]], *, is_part: bool = False
) -> tuple[list[str], bool]:
    """The lines to print, and whether no statement failed or was left untested.

    Args:
        found: what `tests.statements` wrote.
        is_part: only a part of the tests was to run, and only that is told of.
    """
    if is_part:
        ran = {id for one in found for id in one["ids"]}
        statements = {id: entry for id, entry in statements.items() if id in ran}
        if not statements:
            return ["no test of a statement was selected"], False
    faults = ("FAILED",) if is_part else ("FAILED", "untested")
    lines = [f"{'ID':<5}{'runc':<10}{'runsc':<10}statement"]
    is_sound = True
    for id, entry in statements.items():
        verdicts = {runtime: _verdict(id, runtime, entry, found) for runtime in RUNTIMES}
        is_sound &= all(verdict not in faults for verdict, _ in verdicts.values())
        lines.append(f"{id:<5}{verdicts['runc'][0]:<10}{verdicts['runsc'][0]:<10}{entry['text']}")
        for runtime, (_, reason) in verdicts.items():
            if reason:
                lines.append(f"{'':<5}{runtime}: {reason}")
    return lines, is_sound


def _verdict(
    id: str, runtime: str, entry: dict[str, str], found: list[dict[str, Any]]
) -> tuple[str, str]:
    """`held`, `n/a`, `later`, `FAILED` or `untested`, and why."""
    if "later" in entry:
        return "later", entry["later"] if runtime == "runc" else ""
    mine = [one for one in found if id in one["ids"] and one["runtime"] == runtime]
    if failed := [one["test"] for one in mine if one["outcome"] == "failed"]:
        return "FAILED", ", ".join(failed)
    reasons = "; ".join(dict.fromkeys(one["reason"] for one in mine if one["reason"]))
    if any(one["outcome"] == "passed" for one in mine):
        return "held", f"but {reasons}" if reasons else ""
    if mine:
        return "n/a", reasons
    # What is proven on the host has no runtime: it counts once, under runc.
    if runtime == "runsc" and any(id in one["ids"] for one in found):
        return "n/a", "the same on the host whatever the runtime"
    return "untested", ""


if __name__ == "__main__":
    sys.exit(main())
