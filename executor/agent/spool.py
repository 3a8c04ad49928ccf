"""The output of one stream of a command: all of it counted, head and tail kept.

The first 64 KiB stay in memory, since most commands say less. Then the output goes to
an unlinked file of at most `cap` bytes: its first half fills once, its second half is a
ring. Whatever is printed, a command costs `cap` bytes at the most, and the writer is
never held up.

What an ended command leaves on the `Shelf` can be fetched in pieces for a while.
"""

import os
import time

MEMORY = 64 << 10
CAP = 16 << 20
SHELVED = 8
"""Outputs of ended commands that are kept for fetching; the oldest goes first."""
SHELF_LIFE = 60.0
"""Seconds without a fetch after which an output is forgotten."""


class Spool:
    """Takes bytes, gives the first and the last of them.

    Args:
        directory: where the unlinked file is made when it is needed.
        cap: bytes on disk at the most.
    """

    __slots__ = ("_cap", "_directory", "_file", "_memory", "_stored_head", "_tail", "total")

    def __init__(self, directory: str, cap: int = CAP) -> None:
        self._directory = directory
        self._cap = cap
        self._memory: bytearray | None = bytearray()
        self._stored_head = b""
        self._tail = bytearray()
        self._file = -1
        self.total = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes. Never fails: what can't be stored is only counted."""
        start = self.total
        self.total += len(data)
        if self._memory is not None:
            if self.total <= MEMORY:
                self._memory += data
                return
            self._leave_memory(data)
        if self._file >= 0:
            try:
                self._put(start, data)
                return
            except OSError:
                self._keep_in_memory(start)
        self._tail += data
        if len(self._tail) > 2 * MEMORY:
            del self._tail[:-MEMORY]

    def ends(self, head: int, tail: int) -> tuple[bytes, bytes]:
        """The first `head` and the last `tail` bytes; all in the first part if it fits."""
        if self._memory is not None:
            kept = bytes(self._memory)
            if self.total <= head + tail:
                return kept, b""
            return kept[:head], kept[len(kept) - tail :] if tail else b""
        if self._file < 0:
            return self._ends_in_memory(head, tail)
        head, tail = min(head, self._cap // 2), min(tail, self._cap // 2)
        if self.total <= head + tail:
            return self._get(0, self.total), b""
        return self._get(0, head), self._get(self.total - tail, tail)

    def kept(self) -> tuple[int, int]:
        """How many bytes are there of the beginning, and how many of the end.

        All of it counts as beginning where nothing is missing.
        """
        if self._memory is not None:
            return self.total, 0
        if self._file < 0:
            head = min(len(self._stored_head), self.total)
            rest = self.total - head
            return (self.total, 0) if rest <= len(self._tail) else (head, len(self._tail))
        if self.total <= self._cap:
            return self.total, 0
        return self._cap // 2, self._cap // 2

    def piece(self, position: int, size: int) -> bytes:
        """Bytes from a position on, of those that are kept: what lies between is skipped."""
        head, tail = self.kept()
        if position < head:
            return self._part(position, min(size, head - position))
        position = max(position, self.total - tail)
        return self._part(position, min(size, self.total - position))

    def _part(self, position: int, size: int) -> bytes:
        if self._memory is not None:
            return bytes(self._memory[position : position + size])
        if self._file >= 0:
            return self._get(position, size)
        first = self._stored_head[position : position + size]
        start = len(self._tail) - (self.total - position - len(first))
        return first + bytes(self._tail[start : start + size - len(first)])

    def close(self) -> None:
        """Free the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # ── the file ──

    def _ends_in_memory(self, head: int, tail: int) -> tuple[bytes, bytes]:
        """The ends where there is no file: both were kept, and they may meet."""
        first = self._stored_head[:head]
        kept = len(self._tail)
        after_first = max(0, self.total - len(first))
        if kept >= after_first and after_first <= tail:
            return first + bytes(self._tail[kept - after_first :]), b""
        tail = min(tail, kept, after_first)
        return first, bytes(self._tail[kept - tail :])

    def _leave_memory(self, data: bytes) -> None:
        """Move what is in memory to the file, or go on without one. `data` comes next."""
        kept = bytes(self._memory or b"")
        self._memory = None
        self._stored_head = kept + data[: MEMORY - len(kept)]
        self._tail = bytearray(kept)
        try:
            self._file = _unlinked_file(self._directory)
            self._put(0, kept)
        except OSError:
            self.close()
        else:
            self._tail.clear()

    def _keep_in_memory(self, position: int) -> None:
        """The file can take no more (full tmpfs): go on with 64 KiB of head and of tail."""
        kept = min(position, MEMORY)
        try:
            self._tail = bytearray(self._get(position - kept, kept))
        except OSError:
            self._tail = bytearray()
        self.close()

    def _place(self, position: int) -> tuple[int, int]:
        """Where the output's byte `position` is in the file, and how far one piece goes."""
        half = self._cap // 2
        if position < half:
            return position, half - position
        offset = (position - half) % half
        return half + offset, half - offset

    def _put(self, position: int, data: bytes) -> None:
        half = self._cap // 2
        if len(data) > half and position >= half:
            position += len(data) - half
            data = data[-half:]
        view = memoryview(data)
        while view:
            place, room = self._place(position)
            written = os.pwrite(self._file, view[:room], place)
            view = view[written:]
            position += written

    def _get(self, position: int, size: int) -> bytes:
        pieces = []
        while size > 0:
            place, room = self._place(position)
            piece = os.pread(self._file, min(size, room), place)
            if not piece:
                break
            pieces.append(piece)
            position += len(piece)
            size -= len(piece)
        return b"".join(pieces)


def _unlinked_file(directory: str) -> int:
    """A file without a name, which is gone when it is closed.

    Raises:
        OSError: none can be made.
    """
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        # gVisor has no such files: make one that nobody can have foreseen, and unlink it.
        path = os.path.join(directory, f"spool-{os.urandom(8).hex()}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            os.unlink(path)
        except OSError:
            os.close(file)
            raise
        return file


class Shelved:
    """The output of an ended command.

    Args:
        spools: by the stream's name.
        unwanted: bytes that are not the command's own, and are left out.
    """

    __slots__ = ("_unwanted", "spools", "used")

    def __init__(self, spools: dict[str, Spool], unwanted: bytes) -> None:
        self.spools = spools
        self._unwanted = unwanted
        self.used = time.monotonic()

    def piece(self, name: str, position: int, size: int) -> tuple[bytes, int]:
        """The next bytes of a stream, and where the ones after them begin."""
        spool = self.spools[name]
        head, tail = spool.kept()
        if position >= head:
            position = max(position, spool.total - tail)
        data = spool.piece(position, size)
        at = position + len(data)
        if self._unwanted and name == "stderr":
            data = data.replace(self._unwanted, b"")
        return data, at

    def close(self) -> None:
        """Free the files."""
        for spool in self.spools.values():
            spool.close()


class Shelf:
    """Outputs of ended commands, until they are fetched or too old."""

    def __init__(self) -> None:
        self._shelved: dict[int, Shelved] = {}
        self._last = 0

    def put(self, output: Shelved) -> int:
        """Keep an output; the number that it can be had by."""
        self.clear_old()
        while len(self._shelved) >= SHELVED:
            self.drop(next(iter(self._shelved)))
        self._last += 1
        self._shelved[self._last] = output
        return self._last

    def get(self, number: int) -> Shelved | None:
        """The output of this number; None if it is gone."""
        self.clear_old()
        output = self._shelved.get(number)
        if output is not None:
            output.used = time.monotonic()
        return output

    def drop(self, number: int) -> None:
        """Forget an output."""
        output = self._shelved.pop(number, None)
        if output is not None:
            output.close()

    def clear_old(self) -> None:
        """Forget what nobody has asked for in a while."""
        until = time.monotonic() - SHELF_LIFE
        for number in [n for n, output in self._shelved.items() if output.used < until]:
            self.drop(number)
