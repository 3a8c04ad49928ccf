"""`executor doctor`: the machine's findings, and a trial box to prove them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from executor import doctor
from executor.catalog import Catalog, load
from executor.controller import Controller
from executor.doctor import Finding
from executor.egress.options import host_faults
from executor.errors import ConfigError, ExecutorError
from executor.model import Call, LoopSpec
from executor.settings import Settings

_MEND = "mend what the sentence names"


@dataclass(slots=True)
class Report:
    """All findings.

    Attributes:
        findings: in the order in which they were made.
        capabilities: what isolation a trial box had; empty = there was none.
    """

    findings: list[Finding] = field(default_factory=list)
    capabilities: dict[str, Any] = field(default_factory=dict)

    @property
    def is_able(self) -> bool:
        """The main job can run here."""
        return doctor.is_able(self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report as `doctor --json` prints it."""
        return {
            "ok": self.is_able,
            "findings": [asdict(finding) for finding in self.findings],
            "capabilities": self.capabilities,
        }


async def examine(config: Path | None = None) -> Report:
    """Look at everything that a loop needs; ends with a trial box where there can be one.

    Args:
        config: the configuration file; None = the user's own.
    """
    report = Report([Finding("executor", "ok", version())])
    try:
        settings = Settings.load()
        file = config or settings.config_file
        catalog = load(file, host_faults)
    except ConfigError as error:
        report.findings += [Finding("configuration", "fault", one, _MEND) for one in error.faults]
        return report
    report.findings.append(Finding("configuration", "ok", f"file: {file or 'none'}"))
    runtime = catalog.loop.get("runtime")
    report.findings += await doctor.examine(settings, catalog.controller, runtime, catalog.lanes)
    report.findings += doctor.judge_lanes(catalog.lanes, catalog.controller)
    if report.is_able and all(
        finding.level == "ok" for finding in report.findings if finding.name == "images"
    ):
        await _trial(report, settings, catalog)
    return report


def version() -> str:
    """The version of the installed package."""
    try:
        return metadata.version("executor")
    except metadata.PackageNotFoundError:
        return "not installed, run from its sources"


async def _trial(report: Report, settings: Settings, catalog: Catalog) -> None:
    """Open a box on an empty directory, as loops have it, and run one command in it."""
    with tempfile.TemporaryDirectory(prefix="executor-doctor-") as directory:
        spec = _trial_spec(catalog, Path(directory))
        # No image is built for a trial: every lane has the one that is there.
        lanes = {name: replace(lane, image=None) for name, lane in catalog.lanes.items()}
        tried = replace(catalog, lanes=lanes)
        try:
            async with Controller(settings, tried) as controller, controller.open(spec) as loop:
                result = await loop.execute(Call("doctor", "run_command", {"command": "true"}))
                report.capabilities = loop.capabilities
        except ExecutorError as error:
            report.findings.append(Finding("trial box", "fault", str(error), _MEND))
            return
    if result.is_error:
        report.findings.append(Finding("trial box", "fault", str(result.content), _MEND))
        return
    text = f"a command ran in it in {result.duration_ms:.1f} ms"
    report.findings.append(Finding("trial box", "ok", text))
    report.findings += _isolation(report.capabilities)


def _isolation(capabilities: Mapping[str, Any]) -> Iterator[Finding]:
    """What isolation the trial's boxes had: that of `no-net`, then those of other lanes."""
    boxes: dict[str, Mapping[str, Any]] = {"the trial box": capabilities}
    for lane, found in capabilities.get("lanes", {}).items():
        if found:  # one that nothing was run in was never opened
            boxes[f"the trial box of lane {lane}"] = found
    for box, found in boxes.items():
        facts = (
            f"{name}: {_plain(value)}"
            for name, value in found.items()
            if name != "lanes" and not name.endswith("notices")
        )
        yield Finding(f"isolation of {box}", "ok", "\n    ".join(facts))


def _trial_spec(catalog: Catalog, directory: Path) -> LoopSpec:
    """The configured loop, but one that may run a command, on the image that is there."""
    spec = catalog.loop_spec(directory, mode="bypass", image="base", max_seconds=60.0)
    # A set-up is for a worktree with something in it.
    egress = replace(spec.egress, setup_hosts=())
    return replace(spec, loop_type=None, setup=None, egress=egress)


def _plain(value: Any) -> str:
    """A capability as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "unknown" if value is None else str(value)
