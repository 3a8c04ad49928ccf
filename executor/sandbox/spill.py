"""Outputs that are too long for the model, kept where the loop can read them.

A directory of the controller's, bound read-only into every box of the loop: its commands can
read what is in it and change nothing, so what is read there is what was written. Files are
called by a number that counts up; nothing of a call or of a box has a say in a name. The
directory goes with the loop, or with the next reaper's pass after its controller has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from pathlib import Path

from executor.catalog import SpillLimits
from executor.model import RESULTS, Spilled
from executor.sandbox.completion import to_completion
from executor.sandbox.descent import DIRECTORY
from executor.sandbox.reaper import Identity

PIECE = 1 << 18
"""Bytes that are written at a time."""
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED = 3

log = logging.getLogger(__name__)


@contextlib.contextmanager
def opened(identity: Identity, exec_id: str, limits: SpillLimits) -> Iterator[Results]:
    """The place of one loop's long outputs, for as long as the loop is open.

    Args:
        identity: whose directory it is made in.
        exec_id: of the loop.
        limits: how much is kept.

    Raises:
        OSError: it can't be made.
    """
    name = f"results-{exec_id}-{secrets.token_hex(4)}"
    directory = identity.files_directory(name)
    try:
        # Every uid of a box may read it; on the host, the directory above is ours alone.
        directory.chmod(0o755)
        results = Results(directory, limits)
        try:
            yield results
        finally:
            results.close()
    finally:
        identity.discard_files(name)


class Results:
    """The long outputs of one loop.

    Args:
        directory: theirs alone.
        limits: how much is kept.

    Attributes:
        directory: on the host; `/run/executor/results` in the boxes.
    """

    def __init__(self, directory: Path, limits: SpillLimits) -> None:
        self.directory = directory
        self._limits = limits
        self._descriptor = os.open(directory, DIRECTORY)
        self._kept: dict[int, int] = {}
        self._used = 0
        self._being_written = 0
        self._last = 0

    @property
    def most(self) -> int:
        """See `executor.tool.Spill`."""
        return self._limits.call_bytes

    def close(self) -> None:
        """Let go of the directory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def holds(self, path: str) -> bool:
        """See `executor.tool.Spill`."""
        return number_of(path) in self._kept

    def kept(self) -> dict[str, int]:
        """See `executor.tool.KeptOutputs`."""
        return {path_of(number): size for number, size in sorted(self._kept.items())}

    async def read(self, path: str, start: int, size: int) -> bytes:
        """See `executor.tool.KeptOutputs`."""
        number = number_of(path)
        if number not in self._kept:
            raise KeyError(path)
        try:
            file = os.open(f"{number}.txt", _OLD, dir_fd=self._descriptor)
        except OSError as error:  # the loop was closed
            raise KeyError(path) from error
        try:
            # To its end: the file must not be closed under the thread that reads it.
            return await to_completion(asyncio.to_thread(os.pread, file, size, start))
        finally:
            os.close(file)

    async def keep(
        self, output: bytes | AsyncIterable[bytes], instead_of: str | None = None
    ) -> Spilled | None:
        """See `executor.tool.Spill`."""
        self._last += 1
        number = self._last
        lost = 0
        if isinstance(output, bytes):
            pieces: AsyncIterable[bytes] = _in_pieces(*_ends(output, self.most))
            lost = max(len(output) - self.most, 0)
        else:
            pieces = output
        try:
            replaced = number_of(instead_of)
            kept, more, dropped = await self._write(number, pieces, replaced)
        except OSError as error:
            log.warning("a long output could not be kept: %s", error.strerror or error)
            return None
        others = [number for number in dropped if number != replaced]
        taken = f"it takes the place of {replaced}.txt" if replaced in dropped else ""
        notice = "; ".join(filter(None, (_not_kept(lost + more), taken, _dropped(others))))
        return Spilled(path_of(number), kept, notice or None)

    async def _write(
        self, number: int, pieces: AsyncIterable[bytes], replaced: int | None
    ) -> tuple[int, int, list[int]]:
        """Make the file.

        Args:
            number: its name.
            pieces: what is in it.
            replaced: of the file that goes when this one is there, or has to before.

        Returns:
            Bytes that are in it, bytes that are not, and the files that had to go for it.

        Raises:
            OSError: it can't be made, or there is no room on the disk.
        """
        name = f"{number}.txt"
        file = os.open(name, _NEW, 0o600, dir_fd=self._descriptor)
        size = left_out = 0
        dropped: list[int] = []
        is_whole = False
        try:
            async for piece in pieces:
                taken = memoryview(piece)[: max(self.most - size, 0)]
                left_out += len(piece) - len(taken)
                self._being_written += len(taken)
                size += len(taken)
                dropped += self._make_room(replaced)
                # To its end: the file must not be closed under the thread that writes it.
                await to_completion(asyncio.to_thread(_write_all, file, taken))
            os.fchmod(file, 0o444)
            is_whole = True
        finally:
            os.close(file)
            self._being_written -= size
            if is_whole:
                self._kept[number] = size
                self._used += size
                if replaced in self._kept:
                    dropped.append(self._drop(replaced))
                dropped += self._make_room()
            else:
                self._remove(number)
        return size, left_out, dropped

    def _make_room(self, first: int | None = None) -> list[int]:
        """Remove the oldest outputs, `first` before them, until the others are within limits."""
        dropped: list[int] = []
        limits = self._limits
        while len(self._kept) > 1 or (self._kept and self._being_written):
            used = self._used + self._being_written
            if used <= limits.loop_bytes and len(self._kept) <= limits.files:
                break
            dropped.append(self._drop(first if first in self._kept else min(self._kept)))
        return dropped

    def _drop(self, number: int) -> int:
        self._used -= self._kept.pop(number)
        self._remove(number)
        return number

    def _remove(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{number}.txt", dir_fd=self._descriptor)


def path_of(number: int) -> str:
    """Where the boxes see the file of this number."""
    return f"{RESULTS}/{number}.txt"


def number_of(path: str | None) -> int | None:
    """What a file is called by; None = no file of ours has such a path."""
    name = (path or "").removeprefix(f"{RESULTS}/").removesuffix(".txt")
    return int(name) if name.isdecimal() and path == f"{RESULTS}/{name}.txt" else None


def _ends(output: bytes, most: int) -> tuple[bytes, bytes, bytes]:
    """The output, or if it is too long its beginning, what is said between, and its end."""
    if len(output) <= most:
        return output, b"", b""
    between = gap(len(output) - most)
    room = max(most - len(between), 0)
    return output[: room // 2], between, output[len(output) - (room - room // 2) :]


def gap(missing: int) -> bytes:
    """What stands in a kept output where bytes are not kept."""
    return f"\n[{missing} bytes were not kept]\n".encode()


async def _in_pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        for start in range(0, len(part), PIECE):
            yield part[start : start + PIECE]


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _not_kept(missing: int) -> str:
    return f"{missing} bytes were not kept" if missing else ""


def _dropped(numbers: list[int]) -> str:
    if not numbers:
        return ""
    names = ", ".join(f"{number}.txt" for number in numbers[:_NAMED])
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"to make room, older results were dropped: {names}{more} of {RESULTS}"
