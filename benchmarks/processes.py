"""Memory of processes, as the host's `/proc` tells it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

INTERVAL = 0.005
"""Seconds between two looks at a process whose peak is wanted."""


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes.

    Attributes:
        rss: everything resident, shared pages included.
        pss: shared pages divided among those who share them; 0 = may not be read.
        unique: what would be free if the process ended; 0 = may not be read.
    """

    rss: int
    pss: int
    unique: int


def resident(pid: int) -> Resident:
    """The memory of a process now; PSS needs the right to trace it (root)."""
    try:
        fields = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    except PermissionError:
        return Resident(_fields(Path(f"/proc/{pid}/status"))["VmRSS"], 0, 0)
    unique = fields["Private_Clean"] + fields["Private_Dirty"]
    return Resident(fields["Rss"], fields["Pss"], unique)


def parent(pid: int) -> int:
    """The parent's pid: for process 1 of a container that is the engine's shim."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "PPid":
            return int(value)
    raise ProcessLookupError(pid)


def _fields(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if unit == "kB":
            found[name] = int(number) << 10
    return found


class Growth:
    """How much a process grew at the most while the `with` block ran.

    The peak is the higher of what was seen every few milliseconds and the kernel's own
    high-water mark, where that rose.
    """

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._seen = 0
        self.bytes = 0

    def __enter__(self) -> Growth:
        before = _fields(self._status)
        self._start, self._mark = before["VmRSS"], before["VmHWM"]
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        after = _fields(self._status)
        mark = after["VmHWM"] if after["VmHWM"] > self._mark else 0
        self.bytes = max(self._seen, mark, after["VmRSS"]) - self._start

    def _watch(self) -> None:
        with suppress(OSError, KeyError):  # the process may end
            while not self._stop.is_set():
                self._seen = max(self._seen, _fields(self._status)["VmRSS"])
                time.sleep(INTERVAL)
