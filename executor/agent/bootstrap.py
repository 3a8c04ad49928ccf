"""What process 1 does before anything else, so that no command can reach into it."""

import os
import signal

PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def bootstrap() -> tuple[int, int]:
    """Close process 1 against its own children; give its private input and output.

    1. Signals are ignored: Linux keeps them from process 1, gVisor delivers them all. Its
       name is another than Python's, so that `pkill -9 python3` does not mean it either.
    2. Not dumpable: the same uid then can't open `/proc/1/fd`, `mem` or `environ`, nor
       trace it, nor a child of it between fork and exec.
    3. The stream moves to close-on-exec descriptors, `/dev/null` takes its place: no
       command can read from or write on it.

    Returns:
        The descriptors of the stream's input and output, non-blocking.
    """
    if os.getpid() == 1:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
            signal.signal(number, signal.SIG_IGN)
        prctl(PR_SET_NAME, b"executor")
    else:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    prctl(PR_SET_DUMPABLE, 0)
    if os.getpid() != 1:
        # Orphans come to process 1; elsewhere (tests without a container) ask for it.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A vanished host is an error return, not a signal.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    source, sink = _moved(0), _moved(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if null > 1:
        os.close(null)
    return source, sink


def prctl(option: int, value: int | bytes, more: bytes | None = None) -> None:
    """`prctl(2)`; Python has no binding for it.

    Raises:
        OSError: the kernel refused.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, more, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _moved(descriptor: int) -> int:
    """A close-on-exec, non-blocking duplicate above the standard descriptors."""
    import fcntl

    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 16)
    os.set_blocking(moved, False)
    return moved
