"""What asks this process to end, heard from its first moment to its last.

Imports next to nothing: it is there before everything that takes time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Ctrl-C and its like. While nothing is open they end the process at once.

    Attributes:
        first: the signal that came first; None before.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._stop: Callable[[], object] | None = None
        self._again: Callable[[], object] | None = None

    def hear(self) -> None:
        """Begin. Only the main thread may."""
        for number in _ENDING:
            # Under nohup a hang-up is meant to be ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    @contextmanager
    def kept_for(
        self, stop: Callable[[], object], again: Callable[[], object] | None = None
    ) -> Iterator[None]:
        """The first signal calls `stop`; those after it leave the clean-up in peace.

        Args:
            again: called by those, to leave out what of the clean-up can be left out.
        """
        self._stop, self._again = stop, again
        try:
            yield
        finally:
            self._stop = self._again = None

    def ignore(self) -> None:
        """What comes from now on changes nothing: the process ends, with its exit code.

        At its very end the interpreter would give signals their default meaning back.
        """
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        is_first = self.first is None
        if self.first is None:
            self.first = number
        if self._stop is None:
            os._exit(128 + self.first)
        if is_first:
            self._stop()
        elif self._again is not None:
            self._again()


HEARD = Signals()
"""Those of this process."""
