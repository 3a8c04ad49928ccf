"""HTML as Markdown. The page is read by a process of its own; the agent looks at no byte of it."""

from __future__ import annotations

import json
import os

from .operation import MARKUP_PROGRAM, Command, Failure
from .pages import in_memory, named, output_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .operation import Operation, Steps
    from .workspace import Workspace

_HEADER = 8 << 10


def markdown(workspace: Workspace, arguments: dict[str, Any], body: bytes) -> Steps:
    """The page in `body`, in UTF-8, as Markdown; links become whole by `address`."""
    python, library = workspace.markup
    if not os.path.isdir(library):
        raise Failure("UNSUPPORTED", "This sandbox's runtime has no library that reads HTML.")
    limits = (arguments["memory"], arguments["seconds"], arguments["max_bytes"])
    said = [*map(str, map(int, limits)), str(arguments["address"]).replace("\0", "")]
    source = yield from in_memory(body)
    try:
        command = Command([python, "-I", "-S", "-B", MARKUP_PROGRAM, library, *said], source)
        most = _HEADER + int(arguments["max_bytes"])
        output, end = yield from output_of(command, most, _senseless())
    finally:
        os.close(source)
    if end.status:
        how = named(end.status)
        raise Failure("EXECUTION_ERROR", f"The page is too much for its reader ({how}).")
    return _reply(output)


def _reply(output: bytes) -> tuple[dict[str, Any], bytes]:
    """What it says, as far as it can be: a page may have taken it over."""
    header, _, data = output.partition(b"\n")
    try:
        said = json.loads(header[:_HEADER])
        title, is_cut = said["title"], said["is_cut"] is True
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _senseless() from None
    if not isinstance(title, str):
        raise _senseless()
    return {"title": title, "is_cut": is_cut}, data


def _senseless() -> Failure:
    return Failure("EXECUTION_ERROR", "The page's reader makes no sense.")


OPERATIONS: dict[str, Operation] = {"markdown": markdown}
