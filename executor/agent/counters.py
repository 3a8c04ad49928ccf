"""What the kernel counts for the box: memory kills and refused forks (cgroup v1 and v2)."""

import os

_OOM = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
)
_PIDS = (
    "/sys/fs/cgroup/pids.events",
    "/sys/fs/cgroup/pids/pids.events",
)


class Counter:
    """One monotonic number out of a cgroup file; 0 for ever where there is none."""

    __slots__ = ("_file", "_key")

    def __init__(self, paths: tuple[str, ...], key: bytes) -> None:
        self._key = key
        self._file = -1
        for path in paths:
            try:
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                return
            except OSError:
                continue

    @property
    def is_there(self) -> bool:
        """The kernel counts; gVisor does not."""
        return self._file >= 0

    def read(self) -> int:
        """The number now."""
        if self._file < 0:
            return 0
        try:
            content = os.pread(self._file, 4096, 0)
        except OSError:
            return 0
        for line in content.splitlines():
            if line.startswith(self._key):
                return int(line[len(self._key) :])
        return 0


def memory_kills() -> Counter:
    """Processes of the box that the kernel ended for memory."""
    return Counter(_OOM, b"oom_kill ")


def refused_forks() -> Counter:
    """Forks that the process limit refused."""
    return Counter(_PIDS, b"max ")
