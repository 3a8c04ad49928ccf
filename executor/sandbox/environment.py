"""The environment of commands. Pure: nothing of the host's environment gets in.

`TERM` is `dumb`: there is no terminal, and programs that believe it print no colours and
ask no questions. `LANG` is `C.UTF-8` and `TZ` is `UTC` in every image, so that one and
the same command prints the same everywhere; the variables of the loop change both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from executor.model import GIT_SETTINGS, LoopSpec
from executor.sandbox.container import HOME, RUNTIME

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Only EDITOR is set: git prefers VISUAL and GIT_EDITOR, so they would defeat
# `EDITOR=true git rebase -i`, and core.editor comes before EDITOR.
EDITOR = (
    'sh -c "echo No editor can run here: give the text as an option, as in git commit -m, '
    'or set EDITOR=true to keep it as it is. >&2; exit 1" editor'
)

_DROPPED = re.compile(
    r"LD_\w+|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|MALLOC_\w+"
    r"|PYTHON[A-Z]+"
    r"|LANGUAGE|LC_\w+"
    r"|GIT_(DIR|WORK_TREE|INDEX_FILE|EDITOR|SEQUENCE_EDITOR|PAGER|CONFIG\w*)"
    r"|VISUAL|HOSTNAME|PWD|OLDPWD|SHLVL|_|DOCKER_HOST|SSH_AUTH_SOCK|DISPLAY"
    r"|EXECUTOR_\w+"
)
"""Variables of an image that commands do not get: they change how programs are loaded or
how this package's own programs behave, or they speak of another machine."""


def command_environment(
    spec: LoopSpec,
    user: str,
    image_environment: Iterable[str] = (),
) -> dict[str, str]:
    """What every command of the loop starts with; the agent adds the call's own.

    Args:
        user: name of the box's uid (`ownership.user_name`).
        image_environment: the image's `NAME=value` entries.
    """
    image = _kept(image_environment)
    # nproc and most thread pools see all of the machine's cores, not the box's share.
    cores = str(max(1, math.ceil(spec.limits.cpus)))
    own = {
        "HOME": HOME,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/sh",
        "PATH": f"{image.get('PATH') or DEFAULT_PATH}:{RUNTIME}/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "EDITOR": EDITOR,
        "GIT_TERMINAL_PROMPT": "0",
        # Settings by variables would outdo those that a test suite gives its repositories.
        "GIT_CONFIG_SYSTEM": GIT_SETTINGS,
        "DEBIAN_FRONTEND": "noninteractive",
        "OMP_NUM_THREADS": cores,
        "GOMAXPROCS": cores,
    }
    return {**image, **own, **spec.environment}


def _kept(entries: Iterable[str]) -> dict[str, str]:
    """The image's variables, without those that are dropped."""
    pairs = (entry.partition("=") for entry in entries)
    return {
        name: value for name, mark, value in pairs if name and mark and not _DROPPED.fullmatch(name)
    }
