"""Code that is sent into a box and says in JSON what happened to it.

Probes are Python that calls the kernel by number through ctypes, so that no compiler is
needed in the image and no library stands between the probe and the kernel.
"""

from __future__ import annotations

import json
from typing import Any

from tests.driver import Box

PYTHON = ["/opt/executor/bin/python3", "-I", "-S", "-B"]
PRELUDE = """
import ctypes, errno, json, os, platform, signal, sys
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
IS_ARM = platform.machine() == "aarch64"
def syscall(number, *arguments):
    "0 and more, or the name of the error."
    ctypes.set_errno(0)
    words = [ctypes.c_ulong(one & (1 << 64) - 1) if isinstance(one, int) else one
             for one in arguments]
    value = _libc.syscall(ctypes.c_long(number), *words)
    return value if value >= 0 else errno.errorcode.get(ctypes.get_errno(), "E?")
def attempt(function, *arguments):
    "The value, or the name of the error that was raised."
    try:
        value = function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, "E?")
    return value if isinstance(value, (int, str, list, dict, bool, type(None))) else repr(value)
def tell(value):
    print(json.dumps(value))
"""


def probe(box: Box, code: str, timeout: float = 30, **more: Any) -> Any:
    """What the probe told; `code` calls `tell` once.

    Raises:
        AssertionError: it ended in another way.
    """
    body = (PRELUDE + code).encode()
    ran = box.run(None, timeout, argv=PYTHON, script=".py", body=body, **more)
    assert ran.code == 0, (ran.value, ran.out[-2000:], ran.err[-2000:])
    return json.loads(ran.out.decode())
