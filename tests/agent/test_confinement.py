"""The agent's own filter, on the machine's kernel, in a process that promised to gain nothing."""

from __future__ import annotations

import json
import platform
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor.agent import confinement

AGENT = Path(confinement.__file__).parent
CODE = f"""
import ctypes, errno, json, os, subprocess, sys, threading
sys.path.insert(0, {str(AGENT.parent)!r})
from agent import confinement
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *words):
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(one) for one in words))
    return errno.errorcode.get(ctypes.get_errno(), "passed")
(unshare, setns, mount, umount2, pivot_root, chroot), clone = confinement._OWN[os.uname().machine]
before = call(unshare, 0)
if PROMISE:
    libc.prctl(38, 1, 0, 0, 0)
said = confinement.confine()
bits = (7, 17, 25, 26, 27, 28, 29, 30)
found = {{
    "before": before,
    "said": said,
    "unshare": call(unshare, 0),
    "setns": call(setns, -1 & (1 << 64) - 1, 0),
    "others": [call(one, 0, 0, 0, 0, 0) for one in (mount, umount2, pivot_root, chroot)],
    "new": [call(one, 0, 0, 0, 0, 0) for one in confinement._SAME],
    "clone3": call(435, 0, 0),
}}
if PROMISE and os.uname().machine == "x86_64":
    import mmap
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # eax = 20, getpid of 32-bit programs; int 0x80; ret
    page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    child = os.fork()
    if child == 0:
        os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(start)() == -1 else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found["other machine"] = status in (0, -11)  # -11: this kernel has no such calls
    found["x32"] = call(1 << 30 | 39)
elif PROMISE:
    found["other machine"], found["x32"] = True, "ENOSYS"
if PROMISE:
    found["clone"] = [call(clone, 1 << bit | 17, 0, 0, 0, 0) for bit in bits[1:]]
    # The kernel reads 32 bits of the flags.
    found["dirty"] = call(clone, 1 << 40 | 1 << 28 | 17, 0, 0, 0, 0)
    threads = [threading.Thread(target=lambda: heard.append(call(unshare, 0))) for _ in range(2)]
    heard = []
    [one.start() for one in threads], [one.join() for one in threads]
    found["threads"] = heard
    child = [sys.executable, "-c", "import os, ctypes; l = ctypes.CDLL(None, use_errno=True); "
             "print(l.unshare(0), ctypes.get_errno())"]
    found["child"] = subprocess.run(child, capture_output=True, text=True).stdout
print(json.dumps(found))
"""


def _run(*, promise: bool) -> dict[str, Any]:
    code = f"PROMISE = {promise}\n{CODE}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_the_runtime_lets_pass_is_refused_for_good() -> None:
    """Namespaces and mounts give EPERM, `clone3` ENOSYS; threads and children inherit it."""
    found = _run(promise=True)
    if found.pop("before") != "passed":
        pytest.skip("this process is in a box itself")
    assert found == {
        "said": [False, True],
        "unshare": "EPERM",
        "setns": "EPERM",
        "others": ["EPERM"] * 4,
        "new": ["EPERM"] * 8,
        "clone3": "ENOSYS",
        "clone": ["EPERM"] * 7,
        "dirty": "EPERM",
        "other machine": True,
        "x32": "ENOSYS",
        "threads": ["EPERM"] * 2,
        "child": "-1 1\n",
    }


def test_nothing_is_claimed_where_no_filter_can_be_had() -> None:
    """Without the promise no filter is put into force: that is said, and no call is changed."""
    found = _run(promise=False)
    if found["before"] != "passed":
        pytest.skip("this process is in a box itself")
    assert (found["said"], found["unshare"]) == ([False, False], "passed")
    assert found["clone3"] != "ENOSYS"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_program_is_one(machine: str) -> None:
    """Whole instructions, every jump stays inside, the last one lets pass."""
    code = confinement.program(machine)
    lines = list(struct.iter_unpack("=HBBI", code))
    assert len(lines) < 64
    for place, (operation, yes, no, _) in enumerate(lines):
        assert place + 1 + max(yes, no) < len(lines) or operation == 0x06
    assert lines[-1] == (0x06, 0, 0, 0x7FFF0000)


def test_this_machine_is_known() -> None:
    """Boxes are opened on machines that there are numbers for."""
    assert platform.machine() in confinement._OWN
