"""What process 1 does before anything else, so that no command can reach into it."""

import os
from signal import SIG_DFL, SIG_IGN, SIGINT, SIGPIPE, signal

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


def bootstrap() -> tuple[int, int]:
    """Close process 1 against its own children; give its private input and output.

    1. SIGINT to its default: Python's handler would let `kill -INT 1` end the box.
    2. Not dumpable: the same uid then can't open `/proc/1/fd`, `mem` or `environ`, nor
       trace it, nor a child of it between fork and exec.
    3. The stream moves to close-on-exec descriptors, `/dev/null` takes its place: no
       command can read from or write on it.

    Returns:
        The descriptors of the stream's input and output, non-blocking.
    """
    signal(SIGINT, SIG_DFL)
    prctl(PR_SET_DUMPABLE, 0)
    if os.getpid() != 1:
        # Orphans come to process 1; elsewhere (tests without a container) ask for it.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal(SIGPIPE, SIG_IGN)  # a vanished host is an error return, not a signal
    source, sink = _moved(0), _moved(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if null > 1:
        os.close(null)
    return source, sink


def prctl(option: int, value: int) -> None:
    """`prctl(2)`; Python has no binding for it.

    Raises:
        OSError: the kernel refused.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _moved(descriptor: int) -> int:
    """A close-on-exec, non-blocking duplicate above the standard descriptors."""
    import fcntl

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 16)
    os.set_blocking(moved, False)
    return moved
