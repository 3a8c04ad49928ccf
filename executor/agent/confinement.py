"""No command can make a namespace, a mount or another root: of that the box makes sure itself.

Whoever has a user namespace of its own may remount in it what is mounted read-only. The
runtime's filter of system calls prevents it. gVisor takes up a filter only when it is asked
to, not at all for a process that is started beside process 1, and can't say ENOSYS for
`clone3`, without which C libraries make no threads. So what is missing is refused here: by a
filter of this process, which whatever it starts inherits and nobody can take off.
"""

import ctypes
import errno
import os
import struct

from .bootstrap import prctl

PR_SET_SECCOMP = 22
PR_GET_NO_NEW_PRIVS = 39
_FILTER = 2
_CLONE3 = 435
_SAME = (428, 429, 430, 431, 432, 433, 442, 467)
"""Of every machine: open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr,
open_tree_attr."""
_OWN = {
    # unshare, setns, mount, umount2, pivot_root, chroot; clone
    "x86_64": ((272, 308, 165, 166, 155, 161), 56),
    "aarch64": ((97, 268, 40, 39, 41, 51), 220),
}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""As the kernel tells it of each call: a 32-bit one has other numbers."""
_X32 = 0x40000000
_NAMESPACES = 0x7E020000
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_LOAD, _IS, _FROM, _HAS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST = 0, 4, 16


def confine() -> tuple[bool, bool]:
    """Refuse what the runtime does not.

    Returns:
        Whether the runtime refused it already, and whether it is refused now; found out by
        calls that do nothing where they pass.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    machine = os.uname().machine
    is_filtered = _is_confined(libc, machine)
    is_complete = is_filtered and _answer(libc, _CLONE3) == errno.ENOSYS
    if is_complete or machine not in _OWN or not is_bound():
        return is_filtered, is_complete
    _install(machine)
    return is_filtered, _is_confined(libc, machine) and _answer(libc, _CLONE3) == errno.ENOSYS


def is_bound() -> bool:
    """No program gains anything here, which every box is promised; a filter needs it."""
    return bool(ctypes.CDLL(None).prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)


def _is_confined(libc: ctypes.CDLL, machine: str) -> bool:
    """`unshare` of nothing succeeds where it is not refused."""
    calls = _OWN.get(machine)
    return calls is not None and _answer(libc, calls[0][0]) == errno.EPERM


def _answer(libc: ctypes.CDLL, number: int) -> int:
    """The error of a system call whose arguments are all 0."""
    ctypes.set_errno(0)
    zero = ctypes.c_long(0)
    libc.syscall(ctypes.c_long(number), zero, zero, zero, zero, zero)
    return ctypes.get_errno()


def _install(machine: str) -> None:
    """Put the filter into force for this thread, the only one, and all that come from it.

    Raises:
        OSError: the kernel refused.
    """
    code = program(machine)
    held = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    prctl(PR_SET_SECCOMP, _FILTER, head)


def program(machine: str) -> bytes:
    """The filter; it looks at the lower half of an argument, which is all the kernel reads."""
    refused, clone = _OWN[machine]
    lines = [(_LOAD, 0, 0, _MACHINE), (_IS, 1, 0, _ARCHITECTURE[machine])]
    lines += [(_RETURN, 0, 0, _ERROR | errno.EPERM), (_LOAD, 0, 0, _NUMBER)]
    lines += [(_FROM, 0, 1, _X32), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for number in (*refused, *_SAME):
        lines += [(_IS, 0, 1, number), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    lines += [(_IS, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    lines += [(_IS, 0, 3, clone), (_LOAD, 0, 0, _FIRST)]
    lines += [(_HAS, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _ERROR | errno.EPERM)]
    lines += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
