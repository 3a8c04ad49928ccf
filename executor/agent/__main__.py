"""Process 1 of the box; with `terminal`, a person's shell beside it.

The order of the first lines matters: see `bootstrap`.
"""

import os
import sys


def _import_path() -> None:
    """Let `agent` be importable, and nothing that the image or the worktree brings."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.dirname(folder))
    sys.path[:] = [entry for entry in sys.path if entry not in ("", folder)]


_import_path()

# The folder is the package `agent` in the box; E402: the path is set just above.
from agent.bootstrap import bootstrap  # noqa: E402

_streams = bootstrap()

# Nothing else is loaded before the bootstrap.
if sys.argv[1:] == ["terminal"]:
    from agent.terminal import serve
else:
    from agent.service import serve

serve(*_streams)
