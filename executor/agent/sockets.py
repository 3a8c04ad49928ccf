"""Memory that waits in sockets, which the box's memory limit does not count.

With control groups of version 1 nobody counts what TCP and UDP hold, and netlink's is counted
by no version. (Unix sockets are counted by both.) So process 1 looks at what the kernel tells
of the box's network namespace, and ends the box's commands when that is too much.

=============================  ==============================================================
file in `/proc/net`            what it tells
=============================  ==============================================================
`sockstat`                     how many sockets there are, whatever their state; the pages
                               that TCP and UDP of the whole machine hold
`protocols`                    how many sockets are listed, by protocol
`tcp`, `tcp6`, `udp`, `udp6`,  the bytes in the queues of each listed socket
`netlink`
=============================  ==============================================================

Nobody tells what TCP of one namespace holds. A byte in a queue of TCP may stand for a
thousand, each sent alone; and a socket that was reset, or never bound, is listed nowhere but
may hold data. What such sockets may hold at most is believed no further than the machine's
pages have become more since the box was calm: other boxes' data must not end this one's.
"""

from __future__ import annotations

import math
import os
import re
import signal
import time
from contextlib import suppress

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from .service import Timer

FASTEST = 2.5e9
"""Bytes a second with which two cores were seen to fill sockets."""
SOONEST, LATEST = 0.05, 0.15
"""Seconds between two looks while something runs. A look costs up to a quarter of a millisecond
when the processor has been asleep."""
IDLE = 1.0
"""Seconds between two looks where no command runs: a person's shell may."""
SETTLE = 0.25
"""Seconds in which what was ended gives its memory back."""
PATIENCE = 1.0
"""Seconds for which a queue of TCP must look as if it held far more than its bytes: others'
memory may have grown in the meantime. Such queues are filled slowly."""
SHARE = 10
"""A look may take one part in this many of the agent's time."""
_NETWORK = "/proc/net/"
_UNTOLD = 4 << 20
"""Bytes; older kernels do not tell a namespace the largest buffer that a socket may ask for."""
_MOST_OF_A_BYTE = 1024
"""Bytes of memory for one of TCP; 839 were seen."""
_CORKED = 80 << 10
"""Bytes that UDP keeps to be sent later, for one socket."""
_READABLE_TCP, _READABLE_UDP, _READABLE_NETLINK = 1 << 15, 1024, 1024
"""Sockets that are looked at one by one. With more of them a look takes too long: UDP's and
netlink's lists are walked from their beginning for every 4 KiB that is read of them."""
_TCP = {b"TCP": "tcp", b"TCPv6": "tcp6"}
_UDP = {b"UDP": "udp", b"UDPv6": "udp6"}
_UNIX = (b"UNIX", b"UNIX-STREAM")
_SUMMARY = re.compile(rb"^(?:sockets: used|TCP: .* mem|UDP: .* mem) (\d+)", re.MULTILINE)
_QUEUES = re.compile(
    rb"^ *\d+: \S+ \S+ (?!0A)\S\S (?!00000000:00000000 )([0-9A-F]{8}):([0-9A-F]{8}) ", re.MULTILINE
)
"""Queues to be sent and to be read, if one is not empty. Listening sockets (0A) count others."""


def allowance(memory: int) -> int:
    """Bytes that sockets of a box may hold beside its memory limit.

    TCP of the whole machine may hold a tenth of its memory: one box at most a third of that.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(memory // 4, machine // 32)


def are_told() -> bool:
    """Whether the kernel tells of sockets. gVisor does not: it counts them as the box's memory."""
    return os.path.exists(_NETWORK + "sockstat")


class Watch:
    """Looks after the sockets, and the more often the less may be held.

    Args:
        service: has the timers.
        memory: the box's limit in bytes.
        end: is to end the box's commands; it is told why.

    Attributes:
        ended: bytes that were held when commands were last ended, while it is still too much.
    """

    def __init__(self, service: Any, memory: int, end: Callable[[str], None]) -> None:
        self.service = service
        self.end = end
        self.sockets = Sockets(allowance(memory), self._hold)
        self.is_held = False
        self.pause = min(max(self.sockets.allowance / FASTEST / 2, SOONEST), LATEST)
        self.ended = 0
        self.timer: Timer = service.after(0, self._look)

    def soon(self) -> None:
        """A command begins: the next look may be as far off as for an idle box."""
        if self.timer.at > time.monotonic() + self.pause:
            self.service.drop(self.timer)
            self.timer = self.service.after(self.pause, self._look)

    def _look(self) -> None:
        began = time.thread_time()
        pause = IDLE
        try:
            held = self.sockets.held()
            if held > self.sockets.allowance:
                pause = SETTLE if self._too_much(held) else self.pause
                return
            self.ended = 0
            if self.sockets.suspected < math.inf:
                pause = self.pause
            elif processes.has_children():
                pause = min(max(self.pause, (time.thread_time() - began) * SHARE), IDLE)
        finally:
            self.timer = self.service.after(pause, self._look)
            if self.is_held:
                self.is_held = False
                processes.send(-1, signal.SIGCONT)

    def _hold(self) -> None:
        self.is_held = True
        processes.send(-1, signal.SIGSTOP)

    def _too_much(self, held: int) -> bool:
        """End what holds it, unless that is over already and the memory is on its way back.

        Less than before may also be the beginning of the next command's: that is seen soon.
        """
        is_falling, self.ended = held < self.ended, held
        if not is_falling:
            self.end(
                f"sockets held {held >> 20} MiB of memory that no limit counts, and they may hold "
                f"{self.sockets.allowance >> 20} MiB; the box's processes were ended"
            )
        return not is_falling


class Sockets:
    """What sockets of this network namespace hold.

    Args:
        allowance: bytes; up to there nobody needs to know exactly.
        hold: is to stop the box's processes, before a look that takes milliseconds: a hundred
            of them would make seconds out of it.

    Attributes:
        others: bytes that TCP and UDP of other namespaces hold, at most.
        suspected: when queues first looked as if they held too much, by the monotonic clock.
    """

    def __init__(self, allowance: int, hold: Callable[[], None]) -> None:
        self.allowance = allowance
        self.hold = hold
        self.others = 0
        self.suspected = math.inf
        self._summary = os.open(_NETWORK + "sockstat", os.O_RDONLY | os.O_CLOEXEC)
        largest = _sysctl("core/rmem_max", _UNTOLD), _sysctl("core/wmem_max", _UNTOLD)
        self.netlink_buffer = 2 * largest[0]
        self.receive_buffer = max(2 * largest[0], _sysctl("ipv4/tcp_rmem", 0))
        self.send_buffer = max(2 * largest[1], _sysctl("ipv4/tcp_wmem", 0))

    def held(self) -> int:
        """Bytes that are held, or an upper bound that is within the allowance."""
        used, *pages = map(int, _SUMMARY.findall(os.pread(self._summary, 4096, 0)))
        shared = sum(pages) * os.sysconf("SC_PAGE_SIZE")
        if used * (self.send_buffer + self.receive_buffer) <= self.allowance // 4:
            self.others = shared
            return 0
        counts = _protocols()
        tcp, udp = _sum(counts, _TCP), _sum(counts, _UDP)
        netlinks = counts.get(b"NETLINK", 0)
        unlisted = max(0, used - tcp - udp - netlinks - _sum(counts, _UNIX))
        bound = (tcp + udp + unlisted) * (self.send_buffer + self.receive_buffer)
        self.others = shared if bound <= self.allowance // 4 else min(self.others, shared)

        # Cheap bounds first, and what lies behind one only where it is too high.
        netlink, corked = netlinks * self.netlink_buffer, (udp + unlisted) * _CORKED
        held = min(bound, shared) + netlink + corked
        if held > self.allowance and netlinks <= _READABLE_NETLINK:
            held += _netlink() - netlink
        if held <= self.allowance:
            self.suspected = math.inf
            return held
        rest = held - min(bound, shared)
        if rest + min(bound, shared - self.others) > self.allowance:
            self.hold()
        surely, perhaps = self._shared(shared, unlisted, counts)
        if rest + perhaps <= self.allowance:
            self.suspected = math.inf
        self.suspected = min(self.suspected, time.monotonic())
        return rest + (perhaps if time.monotonic() - self.suspected > PATIENCE else surely)

    def _shared(self, shared: int, unlisted: int, counts: dict[bytes, int]) -> tuple[int, int]:
        """Bytes of what TCP and UDP hold on the machine that are held here: at least, at most."""
        surely, unseen, perhaps = 0, unlisted * self.receive_buffer, 0
        if _sum(counts, _TCP) <= _READABLE_TCP:
            for send, receive in _queues(counts, _TCP):
                surely += send + receive
                perhaps += min(send * _MOST_OF_A_BYTE, self.send_buffer)
                perhaps += min(receive * _MOST_OF_A_BYTE, self.receive_buffer)
        else:
            unseen += _sum(counts, _TCP) * (self.send_buffer + self.receive_buffer)
        if _sum(counts, _UDP) <= _READABLE_UDP:  # of these the kernel tells the memory itself
            received = sum(receive for _, receive in _queues(counts, _UDP))
            surely, perhaps = surely + received, perhaps + received
        else:
            unseen += _sum(counts, _UDP) * self.receive_buffer
        if unseen + perhaps <= self.allowance // 4:
            self.others = shared
        self.others = min(self.others, max(0, shared - surely))
        added = shared - self.others
        return max(surely, min(unseen, added)), max(surely, min(unseen + perhaps, added))


def _sum(counts: dict[bytes, int], protocols: Iterable[bytes]) -> int:
    return sum(counts.get(name, 0) for name in protocols)


def _queues(counts: dict[bytes, int], files: dict[bytes, str]) -> Iterator[tuple[int, int]]:
    """Bytes to be sent and to be read, of every socket that has some."""
    for protocol, name in files.items():
        if counts.get(protocol):  # a list of none costs the kernel milliseconds
            for send, receive in _QUEUES.findall(_content(name)):
                yield int(send, 16), int(receive, 16)


def _netlink() -> int:
    lines = _content("netlink").splitlines()[1:]
    return sum(int(fields[4]) for line in lines if len(fields := line.split()) > 4)


def _protocols() -> dict[bytes, int]:
    """Listed sockets by protocol."""
    lines = _content("protocols").splitlines()[1:]
    return {fields[0]: int(fields[2]) for line in lines if len(fields := line.split()) > 2}


def _sysctl(name: str, otherwise: int) -> int:
    """The last number of a setting of the network."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/sys/net/{name}") as file:
        return int(file.read().split()[-1])
    return otherwise


def _content(name: str) -> bytes:
    """A file that is made up while it is read, whole."""
    pieces: list[bytes] = []
    try:
        handle = os.open(_NETWORK + name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while piece := os.read(handle, 1 << 16):
            pieces.append(piece)
    finally:
        os.close(handle)
    return b"".join(pieces)
