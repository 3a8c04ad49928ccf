"""Rows of the report, the machine they hold for, and both ways to show them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.timing import Sample

TIMES = "\N{MULTIPLICATION SIGN}"


class Verdict(StrEnum):
    """What became of a budget."""

    HELD = "held"
    MISSED = "missed"
    REFERENCE = ""
    """There is no budget: the row is for comparison."""
    FAILED = "could not run"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        name: what was measured.
        measured, baseline, ratio, budget: as shown.
        reason: why a budget was missed, or what has to be known to read the row.
    """

    name: str
    measured: str
    baseline: str = ""
    ratio: str = ""
    budget: str = ""
    verdict: Verdict = Verdict.REFERENCE
    reason: str = ""


def milliseconds(sample: Sample) -> str:
    """Median and 95th percentile."""
    return f"{sample.p50 * 1000:.3g} ms (p95 {sample.p95 * 1000:.3g})"


def at_most(
    name: str, ours: Sample, baseline: Sample, what: str, times: float, reason: str = ""
) -> Row:
    """Ours may take so many times as long as the baseline."""
    ratio = ours.p50 / baseline.p50
    is_held = ratio <= times
    return Row(
        name,
        milliseconds(ours),
        f"{what}: {milliseconds(baseline)}",
        f"{ratio:.2f}{TIMES}",
        f"≤ {times:g}{TIMES}",
        Verdict.HELD if is_held else Verdict.MISSED,
        "" if is_held else reason,
    )


def at_least(
    name: str, ours: Sample, other: Sample, what: str, times: float, reason: str = ""
) -> Row:
    """Ours has to be so many times as fast as the other."""
    ratio = other.p50 / ours.p50
    is_held = ratio >= times
    return Row(
        name,
        milliseconds(ours),
        f"{what}: {milliseconds(other)}",
        f"{ratio:.0f}{TIMES} faster",
        f"≥ {times:g}{TIMES} faster",
        Verdict.HELD if is_held else Verdict.MISSED,
        "" if is_held else reason,
    )


def compared(name: str, ours: Sample, other: Sample, what: str) -> Row:
    """The same without a budget."""
    ratio = ours.p50 / other.p50
    return Row(name, milliseconds(ours), f"{what}: {milliseconds(other)}", f"{ratio:.2f}{TIMES}")


def within(name: str, value: float, budget: float, unit: str, reason: str = "") -> Row:
    """An amount with a limit of its own."""
    is_held = value <= budget
    return Row(
        name,
        f"{value:.3g} {unit}",
        budget=f"≤ {budget:g} {unit}",
        verdict=Verdict.HELD if is_held else Verdict.MISSED,
        reason="" if is_held else reason,
    )


# ─── the machine ────────────────────────────────────────────────────────────────────


def machine(engine: dict[str, Any]) -> list[tuple[str, str]]:
    """What the figures depend on; nothing that names this machine.

    Args:
        engine: the engine's reply to `GET /info`.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return [
        ("Cores", str(len(os.sched_getaffinity(0)))),
        ("Memory", f"{total / (1 << 30):.0f} GiB"),
        ("Kernel", f"Linux {platform.release().split('-')[0]} {platform.machine()}"),
        ("Engine", f"Docker API engine {engine.get('ServerVersion', '?')}"),
        ("Runtime", str(engine.get("DefaultRuntime", "?"))),
        ("Control groups", f"version {engine.get('CgroupVersion', '?')}"),
        ("Storage driver", str(engine.get("Driver", "?"))),
        ("Python", platform.python_version()),
        ("Load at the start (1, 5, 15 min)", load),
    ]


# ─── showing ────────────────────────────────────────────────────────────────────────

_HEADS = ("what", "measured", "baseline", "ratio", "budget", "")
_STYLES = {Verdict.HELD: "green", Verdict.MISSED: "yellow", Verdict.FAILED: "red"}


def reasons(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Each reason once, with the rows that it is about."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            names.setdefault(row.reason, []).append(row.name.strip())
    return [("; ".join(about), reason) for reason, about in names.items()]


def table(rows: Sequence[Row]) -> Table:
    """For a terminal."""
    shown = Table(box=None, pad_edge=False)
    for head in _HEADS:
        shown.add_column(head, overflow="fold")
    for row in rows:
        style = _STYLES.get(row.verdict)
        verdict = f"[{style}]{row.verdict}[/]" if style else ""
        shown.add_row(row.name, row.measured, row.baseline, row.ratio, row.budget, verdict)
    return shown


def write(path: Path, facts: Sequence[tuple[str, str]], rows: Sequence[Row], note: str) -> None:
    """The report as Markdown.

    Args:
        path: is replaced.
        facts: of the machine.
        rows: of the report.
        note: how it was measured.
    """
    lines = ["# Benchmarks", "", note, "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts]
    lines += ["", f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    for row in rows:
        name = f"· {row.name.strip()}" if row.name.startswith(" ") else row.name
        cells = (name, row.measured, row.baseline, row.ratio, row.budget, row.verdict)
        lines.append(f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in cells)} |")
    if found := reasons(rows):
        lines += ["", "## Notes", "", *(f"- **{name}**: {reason}." for name, reason in found)]
    path.write_text("\n".join(lines) + "\n")
